package runtime

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime/codec"
)

const chainModule = `topic src {
  ts: time("ms"), user: string, amount: float64, country: string, qty: int64, note: string?,
} with key (user), partitions 2, time ts lag %s
topic out = from src |> where amount > 100 and country != "US"
  |> agg n = count(), total = sum(qty), top = max(amount) by country window tumble(10s)
topic wide = from src |> set x = div(qty, qty - 3), l = filter([1, 2, 3], # > qty) |> where x != 7 |> key (country)
topic nested = from src |> set y = (let k = qty + 1; k * k + len(filter([1, 2, 3], # > k)))
`

func chainOf(t testing.TB, name, lag string, alloc memory.Allocator) (*chain, *plan.Pipeline) {
	m, err := dsl.Compile("m.hr", fmt.Sprintf(chainModule, lag), dsl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pl := range m.Pipelines {
		if pl.Name != "m/"+name {
			continue
		}
		made := func(name string) *output {
			ids := []log.PartitionID{{Index: 0}, {Index: 1}}
			return newOutput(name, ids, log.MaxBatchBytes)
		}
		c, err := newChain(pl, sideOutputs{
			source: []log.PartitionID{{Index: 0}, {Index: 1}}, main: made("out"), late: made("late"), invalid: made("invalid"), errors: made("errors"),
		}, emitRows, alloc)
		if err != nil {
			t.Fatal(err)
		}
		return c, pl
	}
	t.Fatalf("no pipeline %s", name)
	return nil, nil
}

// decoded are n rows of a partition, from the i-th on.
func decoded(t testing.TB, pl *plan.Pipeline, alloc memory.Allocator, p, from, n int) *operators.Batch {
	d, err := codec.NewDecoder(pl.Source, pl.Needed, alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.SetPartition(int32(p))
	b := record.NewBuilder()
	for i := from; i < from+n; i++ {
		ts := 1_700_000_000_000 + int64(i)*10
		b.Append(ts, []byte("u"), fmt.Appendf(nil, `{"ts":%d,"user":"u%d","amount":%d,"country":"C%d","qty":%d,"note":null}`, ts, i%50, i%300, i%7, i%5), nil)
	}
	if err := d.Append(int64(from), 1_700_000_100_000_000_000, b.Finish(), 0); err != nil {
		t.Fatal(err)
	}
	rows, invalid := d.Flush()
	if len(invalid) > 0 {
		t.Fatalf("%d invalid rows: %s", len(invalid), invalid[0].Detail)
	}
	return rows
}

// Everything that a chain is given is released, whatever becomes of it.
func TestAChainReleasesWhatItTakes(t *testing.T) {
	for _, name := range []string{"out", "wide", "nested"} {
		t.Run(name, func(t *testing.T) {
			alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
			defer alloc.AssertSize(t, 0)
			c, pl := chainOf(t, name, "1s", alloc)
			for i := range 20 {
				rows := decoded(t, pl, alloc, i%2, i*100, 100)
				invalid := []codec.Invalid{{Offset: int64(i*100 + 99), Value: []byte("x")}}
				first, rest := rows.Slice(0, 30), rows.Slice(30, 100)
				rows.Release()
				c.take(i%2, first, nil)
				c.take(i%2, rest, invalid)
				c.advance(1 << 20)
				var u log.Unit
				c.sink.take(&u)
				c.changes(&u, log.TaskID{})
			}
			if c.counters.In != 2020 {
				t.Errorf("%d rows in", c.counters.In)
			}
			c.close()
		})
	}
}

func TestCountersAreReadBackAsTheyWere(t *testing.T) {
	c := Counters{In: 1, Invalid: 2, Late: 3, Failed: 4, Unwritten: 5, Out: 6, Held: 7, Skipped: 8, Stages: []StageCounters{{In: 1, Out: 2, Filtered: 3, Late: 4, Failed: 5, Folded: 6, Lost: 7}, {}}}
	inputs := []inputState{{maxTime: -5, appended: 6}, unseen()}
	b := appendExtra(nil, &c, inputs, 77)
	got := Counters{Stages: make([]StageCounters, 2)}
	var a, z inputState
	started, err := parseExtra(b, &got, []*inputState{&a, &z})
	if err != nil {
		t.Fatal(err)
	}
	if started != 77 || fmt.Sprint(got) != fmt.Sprint(c) || a.maxTime != -5 || a.appended != 6 || z.maxTime != operators.MinEventTime {
		t.Errorf("%+v %+v %+v", got, a, z)
	}
	for i := range b {
		if _, err := parseExtra(b[:i], &got, []*inputState{&a, &z}); err == nil {
			t.Errorf("%d of %d bytes are understood", i, len(b))
		}
	}
}

// FuzzExtra: what a pipeline's progress holds is read back whole or refused.
func FuzzExtra(f *testing.F) {
	c := Counters{In: 1, Out: -2, Stages: make([]StageCounters, 2)}
	f.Add(appendExtra(nil, &c, []inputState{{maxTime: -5, appended: 6}, unseen()}, 300))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := Counters{Stages: make([]StageCounters, 2)}
		var in [2]inputState
		started, err := parseExtra(b, &got, []*inputState{&in[0], &in[1]})
		if err != nil {
			if !errors.Is(err, errExtra) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		again := Counters{Stages: make([]StageCounters, 2)}
		var in2 [2]inputState
		if s, err := parseExtra(appendExtra(nil, &got, in[:], started), &again, []*inputState{&in2[0], &in2[1]}); err != nil || s != started || !reflect.DeepEqual(again, got) || in2 != in {
			t.Fatalf("%+v %+v becomes %+v %+v, %v", got, in, again, in2, err)
		}
	})
}

// BenchmarkChain is the work of a pipeline on decoded rows: event time, filter, window. The rows are the same
// each time, so the lag is long enough for none to be late, and no window closes.
func BenchmarkChain(b *testing.B) {
	const rows = 8192
	for _, name := range []string{"out", "wide"} {
		b.Run("pipeline="+name, func(b *testing.B) {
			alloc := memory.NewGoAllocator()
			c, pl := chainOf(b, name, "1d", alloc)
			defer c.close()
			batch := decoded(b, pl, alloc, 0, 0, rows)
			times := batch.Time
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				batch.Retain()
				batch.Time = times
				c.take(n%2, batch, nil)
				c.advance(1 << 20)
				var u log.Unit
				c.sink.take(&u)
				c.changes(&u, log.TaskID{})
				n++
			}
			b.ReportMetric(float64(rows)*float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
