package runtime_test

import (
	"fmt"
	"testing"

	"github.com/headrace/headrace/runtime"
)

const pay = `topic pay { card: string, kind: string, amount: int64, ts: time("ms") }
  with key (card), partitions 2, time ts lag 1s
`

func payment(ts int64, card, kind string, amount int64) msg {
	return msg{ts, card, fmt.Sprintf(`{"card":%q,"kind":%q,"amount":%d,"ts":%d}`, card, kind, amount, ts)}
}

func TestAPipelineFromEndToEnd(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+`
topic big = from pay |> where amount > 10
topic sums = from pay |> agg n = count(), total = sum(amount) by card window tumble(10s)
`)
	r.put("pay", 0, payment(1000, "a", "x", 5), payment(2000, "a", "x", 20))
	r.put("pay", 1, payment(1500, "b", "x", 30), payment(12_000, "b", "y", 7))
	r.end("pay")
	r.ended("m/big", "m/sums")
	if got, want := r.all("big"), `0: a={"card":"a","kind":"x","amount":20,"ts":"1970-01-01T00:00:02Z"} @2000000000
1: b={"card":"b","kind":"x","amount":30,"ts":"1970-01-01T00:00:01.5Z"} @1500000000
`; got != want {
		t.Errorf("big:\n%swant\n%s", got, want)
	}
	if got, want := r.all("sums"), `0: a={"card":"a","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:00:10Z","n":2,"total":25} @9999999999
0: b={"card":"b","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:00:10Z","n":1,"total":30} @9999999999
0: b={"card":"b","window_start":"1970-01-01T00:00:10Z","window_end":"1970-01-01T00:00:20Z","n":1,"total":7} @19999999999
`; got != want {
		t.Errorf("sums:\n%swant\n%s", got, want)
	}
}
