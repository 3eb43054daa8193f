package endtoend

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/internal/naive"
	"github.com/headrace/headrace/internal/nexmark"
	"github.com/headrace/headrace/runtime"
)

// A stream is the records of one source topic, by partition.
type stream map[string][][]naive.Record

// A comparison is a module with a maker of its input.
type comparison struct {
	name   string
	module string
	input  func(rng *rand.Rand) stream
	least  int // bytes of a step, so that wide rows do not become a step each
}

// sundry has every kind of column and many expressions, rows that fail, are late, and change partition.
const sundry = `
topic src {
  user: string, kind: string, amount: float64, qty: int32, big: int64, price: decimal(12,3), note: string?,
  tags: list<string>, at: { lat: float64, lon: float64? }?, props: map<string,int64>, took: duration?, ok: bool, ts: time("ms"),
} with key (user), partitions 3, time ts lag 2s future 1h
topic lines { id: int64?, day: date?, at: time("yyyy-MM-dd HH:mm", "Europe/Berlin"), name: string, cost: decimal(9,2)? } with format csv, partitions 2, time at lag 1h
fn share(a: int64, b: int64) -> int64 = div(1000 * a, b)

topic same = from src |> where kind != "skip" |> set share = share(3, qty), first_tag = tags[0], far = (at?.lat ?? 0.0) > 10
topic picked = from src |> select user, kind, n = len(tags), lat = at?.lat, a = props["a"], took, twice = price * 2, when_ = ts + 1h
topic rekeyed = from src |> where div(100, qty) >= 0 |> select user, kind, amount, ts |> key (kind) with partitions 2
topic tumbled = from src
  |> agg n = count(), mean = avg(amount), total = sum(amount), users = count_distinct(user), small = count() where qty < 3,
         head = first(note), tail = last(note), most = max(amount), least = min(user), paid = sum(price), each = avg(price), q = avg(qty)
     by kind window tumble(5s)
topic hopped = from src |> agg n = count(), q = sum(qty), mean = avg(amount) by user, kind window hop(9s every 3s)
topic everything = from src |> agg n = count(), ratio = sum(price) / count() window tumble(7s)
topic overflowing = from src |> agg s = sum(big), n = count() by ok window tumble(20s)
topic chained = from same |> agg n = count(), a = sum(amount), tail = last(note), users = count_distinct(user) by kind window tumble(15s)
topic chained2 = from rekeyed |> agg n = count(), a = sum(amount), head = first(user) by kind window hop(10s every 5s)
topic second = from tumbled |> where n > 1 |> agg windows = count(), n = sum(n), m = avg(mean) by kind window tumble(1m)
topic exploded = from src |> explode tags as tag index i |> where i < 2 |> set twice = tag + tag
topic exploded_left = from src |> explode left tags as tag |> select user, tag, qty |> agg n = count(), tags = count(tag), seq = list(tag, 3) by user window tumble(9s)
topic best = from src |> top 2 by amount desc, qty per kind window tumble(6s) rank place
topic best_ties = from src |> select user, kind, qty, ts |> top 1 ties by qty desc window hop(8s every 4s)
topic hottest = from hopped |> top 1 ties by n desc per window |> select window_start, user, kind, n
topic visits = from src |> agg n = count(), s = sum(qty), who = first(user), mean = avg(price), far = max(at?.lat) by kind window session(400ms)
topic visits_all = from src |> agg n = count(), total = sum(amount) window session(150ms)
topic growing = from src |> agg n = count(), s = sum(amount), users = count_distinct(user), head = first(note) by kind window cumulate(12s every 3s)
topic quarters = from src |> agg n = count(), users = count_distinct(user) by kind window calendar(minute, "Asia/Kathmandu")
topic profile = from src
  |> agg mid = median(qty), p90 = quantile(price, 0.9), spread = stddev_samp(qty), vari = var_pop(price), slowest = arg_max(user, amount), least = arg_min(note, qty),
         worst = top_k(big, 3), some = set(user, 4) where ok, seq = list(note, 5), all_ok = bool_and(ok), one_ok = bool_or(ok), any_note = any_value(note),
         longest = median(took), texts = join(user, "|") where qty > 3
     by kind window tumble(10s)
topic rolling = from src
  |> over by user rows 4 state forever set n = count(), total = sum(amount), mean = avg(price), head = first(note), kinds = count_distinct(kind), up = delta(qty)
topic recent = from src |> where qty > 0
  |> over by kind, fine = price > 500 range 4s
     set most = max(big), least = min(user), s = sum(amount), mid = median(qty), texts = join(note, "|"), best = arg_max(user, amount), size = qty * count()
topic earlier = from src
  |> over by ok rows 5 before state ttl 1s
     set q = sum(big), seen = count(note), nr = row_number(), place = rank(), before = prev(note, 2), all_ok = bool_and(qty > 0), best = top_k(price, 2)
topic together = from tumbled |> over rows 3 set n_3 = sum(n), most_3 = max(most)
topic days = from lines |> where id != nil |> set z = cost ?? 1, id = id + 1 with format csv
topic per_day = from lines |> agg n = count(), xs = sum(cost ?? 0), ids = avg(id), names = max(name) by day window tumble(1d)
`

func sundryRows(rng *rand.Rand) stream {
	src := make([][]naive.Record, 3)
	for p := range src {
		base := int64(1_700_000_000_000)
		for range 40 + rng.IntN(160) {
			base += int64(rng.IntN(120))
			ts := base - int64(rng.IntN(1500))
			if rng.IntN(12) == 0 {
				ts = base - int64(rng.IntN(40_000))
			}
			maybe := func(s string) string {
				if rng.IntN(4) == 0 {
					return "null"
				}
				return s
			}
			user := fmt.Sprintf("u%d-%d", p, rng.IntN(9))
			big := rng.Int64N(1000)
			if rng.IntN(4) == 0 {
				big = 8_000_000_000_000_000_000
			}
			tags := strings.Repeat(`"t",`, rng.IntN(4))
			value := fmt.Sprintf(`{"user":%q,"kind":%q,"amount":%v,"qty":%d,"big":%d,"price":%d.%03d,"note":%s,"tags":[%s],"at":%s,"props":{"a":%d,"b":2},"took":%s,"ok":%v,"ts":%d}`,
				user, []string{"a", "b", "ü", "d", "skip"}[rng.IntN(5)], rng.NormFloat64()*1e6, rng.IntN(6), big, rng.IntN(9e5), rng.IntN(1000),
				maybe(strconv.Quote(fmt.Sprint("n", rng.IntN(1000)))), strings.TrimSuffix(tags, ","),
				maybe(fmt.Sprintf(`{"lat":%v,"lon":%s}`, rng.Float64()*20, maybe("1.5"))), rng.IntN(9), maybe(`"1m30s"`), rng.IntN(2) == 0, ts)
			switch rng.IntN(60) {
			case 0:
				value = value[:len(value)/2]
			case 1:
				value = strings.Replace(value, `"qty":`, `"qty":"x`, 1)
			case 2:
				value = strings.Replace(value, `"kind":"`, `"kind":null,"k":"`, 1)
			case 3:
				value = strings.Replace(value, `"tags":[`, `"tags":[null,`, 1)
			}
			src[p] = append(src[p], naive.Record{Timestamp: base, Key: []byte(user), Value: []byte(value)})
		}
	}
	lines := make([][]naive.Record, 2)
	for p := range lines {
		at := time.Date(2024, 3, 30, 20, 0, 0, 0, time.UTC)
		for range 50 {
			at = at.Add(time.Duration(rng.IntN(60)-20) * time.Minute)
			cost := ""
			if rng.IntN(3) > 0 {
				cost = fmt.Sprintf("%d.%02d", rng.IntN(90), rng.IntN(100))
			}
			day := at.Format(time.DateOnly)
			if rng.IntN(6) == 0 {
				day = ""
			}
			line := fmt.Sprintf("%d,%s,%s,\"name, %d\",%s", rng.IntN(100), day, at.Format("2006-01-02 15:04"), rng.IntN(4), cost)
			if rng.IntN(30) == 0 {
				line += ",more"
			}
			lines[p] = append(lines[p], naive.Record{Value: []byte(line)})
		}
	}
	return stream{"src": src, "lines": lines}
}

// nexmarkRows spreads events over partitions.
func nexmarkRows(events int64, partitions int) func(*rand.Rand) stream {
	return func(*rand.Rand) stream {
		g, err := nexmark.New(nexmark.Config{Rate: 1000}, nil)
		if err != nil {
			panic(err)
		}
		out := make([][]naive.Record, partitions)
		var e nexmark.Event
		for k := range events {
			g.At(k, &e)
			p := int(k) % partitions
			out[p] = append(out[p], naive.Record{Timestamp: 1, Value: nexmark.AppendJSON(nil, &e)})
		}
		return stream{"nexmark": out}
	}
}

func comparisons(t testing.TB) []comparison {
	// A window on append time holds what was appended then: q12 has no answer before the run.
	text, err := nexmark.Module("q0", "q1", "q2", "q5", "q7", "q10", "q11", "q14", "q21", "q22")
	if err != nil {
		t.Fatal(err)
	}
	module := strings.Replace(text, "with format json, time (", "with format json, partitions 4, time (", 1)
	return []comparison{
		{"sundry", sundry, sundryRows, 1},
		{"nexmark", module, nexmarkRows(600, 4), 20_000},
	}
}

// For every module, every way to cut its input and every number of workers, the engine's topics are those that plain rows
// and maps give.
func TestTheEngineAgreesWithTheNaiveInterpreter(t *testing.T) {
	rounds := 2
	if os.Getenv("HEADRACE_LONG") != "" {
		rounds = 100
	}
	first := uint64(1)
	if s := os.Getenv("HEADRACE_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &first); err != nil {
			t.Fatal(err)
		}
		rounds = 1
	}
	for _, c := range comparisons(t) {
		for seed := first; seed < first+uint64(rounds); seed++ {
			t.Run(fmt.Sprintf("%s/seed=%d", c.name, seed), func(t *testing.T) {
				t.Parallel()
				compare(t, c, rand.New(rand.NewPCG(seed, 17)))
			})
		}
	}
}

func compare(t *testing.T, c comparison, rng *rand.Rand) {
	m, err := dsl.Compile("m.hr", c.module, dsl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	input := c.input(rng)
	for _, parts := range input {
		for _, part := range parts {
			for i := range part {
				part[i].AppendTime = time.Now().UnixNano()
			}
		}
	}
	want, err := naive.Run(m, input)
	if err != nil {
		t.Fatal(err)
	}
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	o := runtime.Options{
		StepBytes: max(c.least, pick(1, 2000, 100_000, 4<<20)), OutputBytes: max(c.least, pick(1, 2000, 100_000)), BatchRows: pick(1, 7, 100, 8192), Workers: pick(1, 2, 4),
	}
	t.Logf("%+v", o)
	r := newRigWith(t, o)
	r.apply(c.module)
	var sources []string
	for topic, parts := range input {
		sources = append(sources, topic)
		for p := range parts {
			for len(parts[p]) > 0 {
				n := min(1+rng.IntN(pick(1, 20, 400)), len(parts[p]))
				var msgs []msg
				for _, rec := range parts[p][:n] {
					msgs = append(msgs, msg{ts: rec.Timestamp, key: string(rec.Key), value: string(rec.Value)})
				}
				parts[p] = parts[p][n:]
				r.put(topic, p, msgs...)
			}
		}
	}
	r.end(sources...)
	for _, pl := range m.Pipelines {
		compareTopic(t, r, pl.Output.Name, pl.Name, want[pl.Output.Name])
	}
}

func compareTopic(t *testing.T, r *rig, topic, pipeline string, want *naive.Result) {
	t.Helper()
	var got, expected []string
	for _, w := range r.rows(topic) {
		late := ""
		if h := w.headers["hr-late"]; h != "" {
			late = fmt.Sprint(int64(binary.BigEndian.Uint64([]byte(h))))
		}
		got = append(got, fmt.Sprintf("%d: %s=%s @%d %s", w.partition, w.key, w.value, w.time, late))
	}
	for p, rows := range want.Rows {
		for _, w := range rows {
			late, key := "", "<null>"
			if w.Late != naive.Never {
				late = fmt.Sprint(w.Late)
			}
			if w.Key != nil {
				key = string(w.Key)
			}
			expected = append(expected, fmt.Sprintf("%d: %s=%s @%d %s", p, key, w.Value, w.Time, late))
		}
	}
	sameLines(t, topic, got, expected)

	// Side topics: which records left, and why.
	var lost []naive.Lost
	for _, side := range []string{topic + "_late", topic + "_errors", strings.SplitN(topic, "_", 2)[0] + "_invalid"} {
		lost = append(lost, lostRows(r, side, pipeline)...)
	}
	for _, s := range r.eng.Pipelines() {
		if s.Name == pipeline && s.Source+"_invalid" != topic+"_invalid" {
			lost = append(lost, lostRows(r, s.Source+"_invalid", pipeline)...)
		}
	}
	slices.SortFunc(lost, func(a, b naive.Lost) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Why, b.Why))
	})
	sameLines(t, "what left "+topic, lines(lost), lines(want.Lost))
}

func lines(lost []naive.Lost) []string {
	out := make([]string, len(lost))
	for i, l := range lost {
		out[i] = fmt.Sprintf("%d/%d %s: %s", l.Partition, l.Offset, l.Key, l.Why)
	}
	return out
}

// ordinal counts the rows of a partition below an offset: a derived topic has time marks among them.
func ordinal(rows []row, partition int, offset int64) (n int64) {
	for _, w := range rows {
		if w.partition == partition && w.offset < offset {
			n++
		}
	}
	return n
}

// lostRows reads what a pipeline has sent to a side topic.
func lostRows(r *rig, topic, pipeline string) (out []naive.Lost) {
	if _, ok := r.node.Meta().Catalog().Topic(topic); !ok {
		return nil
	}
	sources := map[string][]row{}
	for _, w := range r.rows(topic) {
		if w.headers["hr-pipeline"] != pipeline {
			continue
		}
		source := w.headers["hr-topic"]
		l := naive.Lost{Why: w.headers["hr-code"]}
		l.Partition, _ = strconv.Atoi(w.headers["hr-partition"])
		l.Offset, _ = strconv.ParseInt(w.headers["hr-offset"], 10, 64)
		if l.Partition >= 0 {
			if sources[source] == nil {
				sources[source] = r.rows(source)
			}
			l.Offset = ordinal(sources[source], l.Partition, l.Offset)
		}
		switch {
		case strings.HasSuffix(topic, "_late"):
			l.Why = "late"
		case strings.HasSuffix(topic, "_invalid"):
			l.Why = "invalid"
		case l.Partition < 0:
			l.Key = w.key
		}
		out = append(out, l)
	}
	return out
}
