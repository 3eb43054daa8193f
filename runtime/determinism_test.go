package runtime_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/runtime"
)

// The module of the determinism property: every kind of stage, a chain of two, failing and late rows.
const manyStages = `
topic src {
  user: string, kind: string, amount: float64, qty: int64, big: int64, note: string?, ts: time("ms"),
} with key (user), partitions 3, time ts lag 2s future 1h

topic same = from src |> where kind != "skip" |> set share = div(1000, qty)
topic rekeyed = from src |> where div(100, qty) >= 0 |> select user, kind, amount, ts |> key (kind) with partitions 2
topic tumbled = from src
  |> agg n = count(), mean = avg(amount), total = sum(amount), users = count_distinct(user), small = count() where qty < 3,
         head = first(note), tail = last(note), most = max(amount), least = min(user)
     by kind window tumble(5s)
topic hopped = from src |> agg n = count(), q = sum(qty), mean = avg(amount) by user, kind window hop(9s every 3s)
topic profiled = from src
  |> agg head = list(note, 5), notes = set(note, 8), most = top_k(amount, 3), texts = join(user, " ") where qty > 2, mid = median(amount), high = quantile(qty, 0.9),
         near = approx_quantile(amount, 0.5), users = approx_distinct(user), spread = stddev_samp(amount), even = var_pop(qty),
         who = arg_max(user, amount), least = arg_min(note, qty), all = bool_and(qty > 0), some = bool_or(qty > 4), any = any_value(note)
     by kind window hop(10s every 5s)
topic overflowing = from src |> agg s = sum(big), n = count() by kind window tumble(20s)
topic appended = from same |> where qty > 1 |> select user, kind, amount |> set amount = amount * 2.0
topic chained = from same
  |> agg n = count(), a = sum(amount), tail = last(note), users = count_distinct(user) by kind window tumble(15s)
topic chained2 = from rekeyed |> agg n = count(), a = sum(amount), head = first(user) by kind window hop(10s every 5s)
topic second = from tumbled |> where n > 1 |> agg windows = count(), n = sum(n), m = avg(mean) by kind window tumble(1m)
`

var manyPipelines = []string{"same", "rekeyed", "tumbled", "hopped", "profiled", "overflowing", "appended", "chained", "chained2", "second"}

// manyTopics are compared; the errors of overflowing hold failed groups only, those of the others rows.
var manyTopics = append(slices.Clone(manyPipelines), "same_errors", "rekeyed_errors", "tumbled_late", "hopped_late", "profiled_late", "overflowing_late",
	"overflowing_errors", "chained_late", "chained2_late", "src_invalid")

// sourceRows makes the rows of each partition of src: disordered by more than the lag, with rows that do
// not parse, fail and come late.
func sourceRows(rng *rand.Rand, rows int) [3][]msg {
	var out [3][]msg
	kinds := []string{"a", "b", "c", "d", "skip"}
	for p := range out {
		base := int64(1_700_000_000_000)
		for range rows/4 + rng.IntN(rows) {
			base += int64(rng.IntN(120))
			ts := base - int64(rng.IntN(1500))
			if rng.IntN(12) == 0 {
				ts = base - int64(rng.IntN(40_000))
			}
			user := fmt.Sprintf("u%d-%d", p, rng.IntN(9))
			note := fmt.Sprintf("%q", fmt.Sprintf("n%d", rng.IntN(1000)))
			if rng.IntN(5) == 0 {
				note = "null"
			}
			big := rng.Int64N(1000)
			if rng.IntN(4) == 0 {
				big = 8_000_000_000_000_000_000
			}
			value := fmt.Sprintf(`{"user":%q,"kind":%q,"amount":%v,"qty":%d,"big":%d,"note":%s,"ts":%d}`,
				user, kinds[rng.IntN(len(kinds))], rng.NormFloat64()*1e6, rng.IntN(6), big, note, ts)
			switch rng.IntN(60) {
			case 0:
				value = value[:len(value)/2]
			case 1:
				value = strings.Replace(value, `"qty":`, `"qty":"x`, 1)
			case 2:
				value = strings.Replace(value, `"kind":"`, `"kind":null,"k":"`, 1)
			}
			out[p] = append(out[p], msg{base, user, value})
		}
	}
	return out
}

// A suite is a module over src with the pipelines and topics to compare; every one of exercised has rows.
type suite struct {
	module                       string
	pipelines, topics, exercised []string
}

var manySuite = suite{manyStages, manyPipelines, manyTopics, []string{
	"same", "rekeyed", "tumbled", "tumbled_late", "hopped", "profiled", "chained", "chained_late", "chained2", "second", "same_errors", "overflowing_errors", "src_invalid",
}}

// A variation is one way to run the same rows.
type variation struct {
	name      string
	opts      runtime.Options
	batch     int // rows of a producer batch, at most
	restarts  int
	crashes   bool
	waits     int // one batch in so many is waited for
	inTurn    bool
	lateStart bool // the module is applied when all rows are there
}

func variationOf(rng *rand.Rand, i int) variation {
	if i == 0 {
		return variation{name: "plain", batch: 1 << 20, inTurn: true, lateStart: true}
	}
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	v := variation{
		opts: runtime.Options{
			StepBytes: pick(1, 500, 20_000, 4<<20), OutputBytes: pick(1, 300, 5000, 100_000), BatchRows: pick(1, 3, 50, 8192),
			Workers: pick(1, 3),
		},
		batch: pick(1, 7, 100, 1000), restarts: rng.IntN(4), crashes: rng.IntN(2) == 0, waits: pick(2, 10, 1000),
		inTurn: rng.IntN(3) == 0, lateStart: rng.IntN(3) == 0,
	}
	v.name = fmt.Sprintf("step %d output %d rows %d workers %d batch %d restarts %d crashes %v in turn %v late %v",
		v.opts.StepBytes, v.opts.OutputBytes, v.opts.BatchRows, v.opts.Workers, v.batch, v.restarts, v.crashes, v.inTurn, v.lateStart)
	return v
}

// runVariation gives what each topic holds, by partition.
func runVariation(t *testing.T, rng *rand.Rand, v variation, s suite, rows [3][]msg) map[string]string {
	r := newRig(t, v.opts)
	r.apply("m", "topic src {"+strings.SplitN(strings.SplitN(s.module, "topic src {", 2)[1], "\n\n", 2)[0])
	if !v.lateStart {
		r.apply("m", s.module)
	}
	var names []string
	for _, n := range s.pipelines {
		names = append(names, "m/"+n)
	}
	total := feed(t, r, rng, v, rows)
	if v.lateStart {
		r.apply("m", s.module)
	}
	r.end("src")
	if v.restarts > 0 {
		time.Sleep(time.Duration(rng.IntN(20_000)) * time.Microsecond)
		r.again(v)
	}
	r.ended(names...)
	for _, n := range names {
		checkCounters(t, r.status(n))
	}
	if in := r.status(names[0]).Counters.In; in != int64(total) {
		t.Errorf("the pipelines have read %d rows of %d", in, total)
	}
	out := map[string]string{}
	for _, topic := range s.topics {
		for p := range int(r.topic(topic).Partitions) {
			// A side topic that several pipelines share holds the rows of each in order.
			for _, w := range r.rows(topic, p) {
				part := strings.TrimSpace(fmt.Sprintf("%s/%d %s", topic, p, w.headers["hr-pipeline"]))
				out[part] += fmt.Sprintf("%s late %x code %s\n", w, w.headers["hr-late"], w.headers["hr-code"])
			}
		}
	}
	r.close()
	return out
}

// again restarts as the variation says.
func (r *rig) again(v variation) {
	if v.crashes {
		r.crash()
	} else {
		r.reopen()
	}
}

// feed writes the rows, with the pauses and restarts of a variation, and answers how many there were.
func feed(t *testing.T, r *rig, rng *rand.Rand, v variation, rows [3][]msg) int {
	t.Helper()
	var next [3]int
	total := len(rows[0]) + len(rows[1]) + len(rows[2])
	restart := make([]int, v.restarts)
	for i := range restart {
		restart[i] = rng.IntN(total)
	}
	for done := 0; done < total; {
		p := rng.IntN(3)
		if v.inTurn {
			for p = 0; next[p] == len(rows[p]); p++ {
			}
		}
		n := min(1+rng.IntN(v.batch), len(rows[p])-next[p])
		if n == 0 {
			continue
		}
		r.put("src", p, rows[p][next[p]:next[p]+n]...)
		next[p] += n
		done += n
		if v.waits > 0 && !v.lateStart && rng.IntN(v.waits) == 0 {
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Microsecond)
		}
		restart = slices.DeleteFunc(restart, func(at int) bool {
			if at <= done {
				r.again(v)
			}
			return at <= done
		})
	}
	return total
}

// checkCounters holds what Counters promise.
func checkCounters(t *testing.T, s runtime.PipelineStatus) {
	t.Helper()
	c := s.Counters
	rows, late, failed := c.In-c.Invalid, int64(0), c.Unwritten
	for i, st := range c.Stages {
		if st.In != rows {
			t.Errorf("%s: %d rows come to stage %d (%s), the one before gave %d", s.Name, st.In, i, st.Stage, rows)
		}
		want := st.Out + st.Filtered + st.Failed + st.Late + st.Held - st.Deleted
		if st.Folded > 0 || slices.Contains([]string{"agg", "explode", "top", "changes"}, st.Stage) {
			want = st.Folded + st.Late + st.Failed
		}
		if st.In != want {
			t.Errorf("%s: stage %d (%s) took %d rows and accounts for %d: %+v", s.Name, i, st.Stage, st.In, want, st)
		}
		late, failed, rows = late+st.Late, failed+st.Failed+st.Lost, st.Out
	}
	if rows != c.Out+c.Held+c.Unwritten {
		t.Errorf("%s: %d rows left the last stage: %+v", s.Name, rows, c)
	}
	if late != c.Late || failed != c.Failed {
		t.Errorf("%s: late %d and failed %d by stage: %+v", s.Name, late, failed, c)
	}
}

// For a fixed assignment of rows to partitions nothing changes what the derived topics hold: neither the
// sizes of batches and steps, nor the order in which partitions arrive, nor workers, restarts and crashes.
func TestDerivedTopicsDependOnlyOnTheRowsOfEachPartition(t *testing.T) {
	t.Run("many", func(t *testing.T) { testVariations(t, manySuite) })
	t.Run("rows", func(t *testing.T) { testVariations(t, rowSuite) })
	t.Run("windows", func(t *testing.T) { testVariations(t, windowSuite) })
}

func testVariations(t *testing.T, s suite) {
	seeds, variations := 2, 4
	if os.Getenv("HEADRACE_LONG") != "" {
		seeds, variations = 60, 12
	}
	first := uint64(1)
	if given := os.Getenv("HEADRACE_SEED"); given != "" {
		if _, err := fmt.Sscan(given, &first); err != nil {
			t.Fatal(err)
		}
		seeds = 1
	}
	for seed := first; seed < first+uint64(seeds); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel() // mostly it waits: for steps, ends and restarts
			rng := rand.New(rand.NewPCG(seed, 7))
			rows := sourceRows(rng, 160)
			var want map[string]string
			for i := range variations {
				v := variationOf(rng, i)
				began := time.Now()
				got := runVariation(t, rng, v, s, rows)
				t.Logf("%s: %v", v.name, time.Since(began))
				if want == nil {
					want = got
					for _, topic := range s.exercised {
						if !slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(part string) bool { return strings.HasPrefix(part, topic+"/") }) {
							t.Errorf("the rows exercise nothing of %s", topic)
						}
					}
					continue
				}
				if len(got) != len(want) {
					t.Errorf("HEADRACE_SEED=%d: %d sequences with %s, not %d", seed, len(got), v.name, len(want))
				}
				for part, text := range want {
					if got[part] != text {
						t.Errorf("HEADRACE_SEED=%d: %s differs with %s:\n%s", seed, part, v.name, firstDifference(text, got[part]))
					}
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

func firstDifference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(a), len(b)) {
		x, y := "", ""
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			return fmt.Sprintf("row %d of %d and %d:\n  want %s\n  got  %s", i, len(a), len(b), x, y)
		}
	}
	return "nothing"
}
