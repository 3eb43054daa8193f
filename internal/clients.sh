#!/usr/bin/env bash
# Runs real clients against the binary: kcat (librdkafka), kafkajs and pyarrow. Installs them if they are missing.
# Every server listens on loopback, in a temporary directory, and is stopped by its pid.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
command -v kcat >/dev/null || { apt-get update -qq && apt-get install -y -qq kcat; }
command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq npm; }
python3 -c 'import pyarrow.flight' 2>/dev/null || { python3 -m venv "$dir/python" && "$dir/python/bin/pip" install --quiet pyarrow && PATH=$dir/python/bin:$PATH; }
k=127.0.0.1:19392 h=127.0.0.1:19390 f=127.0.0.1:19393
bin/headrace serve --data "$dir/data" --kafka $k --http $h --flight $f --log-level warn 2>"$dir/server.log" &
pid=$!
for _ in $(seq 200); do curl -fsS "http://$h/readyz" >/dev/null 2>&1 && break; sleep 0.05; done
hr() { bin/headrace "$@" --server $k --http $h; }
n=0
same() { # name, want, got
  n=$((n + 1))
  if [ "$2" = "$3" ]; then echo "ok   $1"; else echo "FAIL $1: want <$2> got <$3>"; cat "$dir/server.log"; exit 1; fi
}

hr topic create words -p 3
seq 1 1000 | kcat -b $k -P -t words -p 0
same "kcat produces and consumes in order" "$(seq 1 1000 | sha256sum)" "$(kcat -b $k -C -t words -p 0 -e -q | sha256sum)"
same "kcat consumes from an offset" "901" "$(kcat -b $k -C -t words -p 0 -o 900 -c 1 -q)"
same "kcat consumes the tail" "1000" "$(kcat -b $k -C -t words -p 0 -o -1 -e -q)"
for codec in gzip snappy lz4 zstd; do
  seq 1 500 | kcat -b $k -P -t words -p 1 -z $codec
done
same "kcat produces with every codec" "2000" "$(kcat -b $k -C -t words -p 1 -e -q | wc -l)"
printf 'a:1\nb:2\n' | kcat -b $k -P -t words -p 2 -K : -H kind=test
same "kcat sees keys and headers" "a 1 kind=test" "$(kcat -b $k -C -t words -p 2 -c 1 -q -f '%k %s %h\n')"
same "kcat lists the topic" "3" "$(kcat -b $k -L -t words | grep -c '    partition ')"
same "kcat reads by a group and commits" "1000" "$(timeout 30 kcat -b $k -G g1 words -e -q -X auto.offset.reset=earliest 2>/dev/null | grep -cx '[0-9]*' | awk '{print ($1 >= 1000) ? 1000 : $1}')"
same "a query by time finds the start" "words [0] offset 0" "$(kcat -b $k -Q -t words:0:1)"
seq 1 200 | kcat -b $k -P -t words -p 0 -X enable.idempotence=true
same "kcat's idempotent producer" "1200" "$(kcat -b $k -C -t words -p 0 -e -q | wc -l)"
hr apply examples/flights/flights.hr >/dev/null
gzip -dc examples/data/flights_2001-01-01_14.csv.gz | sed -n 1,20001p >"$dir/flights.csv"
hr produce flights "$dir/flights.csv" --end
for _ in $(seq 200); do [ "$(hr pipeline describe flights/hub_hours -o json | grep -c '"watermark": "+inf"')" -ge 1 ] && break; sleep 0.05; done
want=$(tail -n +2 "$dir/flights.csv" | awk -F, '$2 >= 60' | wc -l)
same "kcat reads a view to its end" "$want" "$(kcat -b $k -C -t delayed -e -q | wc -l)"
same "kcat reads a derived topic" "$(hr consume hub_hours | sort | sha256sum)" "$(kcat -b $k -C -t hub_hours -e -q | sort | sha256sum)"

cp -r server/kafka/testdata/kafkajs "$dir/kafkajs"
(cd "$dir/kafkajs" && npm install --no-audit --no-fund --silent >/dev/null && node test.js "$k")
n=$((n + 1))

awk '/^```python$/ { on = 1; next } /^```$/ { on = 0 } on' docs/flight.md | sed "s/127.0.0.1:9093/$f/" >"$dir/example.py"
same "the example of docs/flight.md" "[{'user': 'ann', 'n': 1}, {'user': 'bob', 'n': 2}]" "$(python3 "$dir/example.py" | grep ann)"
python3 server/flight/testdata/pyarrow_test.py "grpc://$f"
n=$((n + 1))
echo "clients ok: $n checks passed"
