package dedup_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/rowtest"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/dedup"
	"github.com/headrace/headrace/operators/rows"
)

var (
	types = []scalar.Type{scalar.TypeString.Null(), scalar.TypeInt64, scalar.ListType(scalar.TypeInt64)}
	names = []string{"key", "n", "xs"}
)

// naive judges the rows one after the other.
func naive(o dedup.Options, all []*rowtest.Row) (run rowtest.Run) {
	type seen struct{ since int64 }
	known := map[string]*seen{}
	for _, r := range all {
		key, k := "null", []byte(nil)
		if v := r.Values[0]; !v.IsNull() {
			key, k = "="+v.S, []byte(v.S)
		}
		span := int64(o.Within)
		s := known[key]
		if s != nil && span > 0 && s.since+span <= r.At() {
			s = nil
		}
		switch {
		case s != nil && (span == 0 || s.since-r.Time < span):
			if o.Idle && !r.Late() {
				s.since = max(s.since, r.Time)
			}
		case r.Late():
			run.Late = append(run.Late, fmt.Sprintf("%d/%d %s", r.Partition, r.Offset, r.Value()))
		default:
			known[key] = &seen{r.Time}
			run.Out = append(run.Out, rowtest.Line(r.Time, k, r.Values, types))
		}
	}
	return run
}

func TestTheFirstRowOfAKeyPasses(t *testing.T) {
	late, dropped := 0, 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		o := dedup.Options{Within: time.Duration(rng.IntN(60)), EmitRows: rng.IntN(6)}
		o.Idle = o.Within > 0 && rng.IntN(2) == 0
		o.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"}
		lag := rng.Int64N(12)
		n := 1 + rng.IntN(3)
		o.Single = n == 1
		data := rowtest.Random(rng, n, 60, lag, rng.Int64N(20), func() []scalar.Value {
			k := scalar.String([]string{"a", "b", "", "d", "e"}[rng.IntN(5)])
			if rng.IntN(8) == 0 {
				k = scalar.Null
			}
			return []scalar.Value{k, scalar.Int(rng.Int64()), scalar.List(scalar.Int(1), scalar.Int(rng.Int64()))}
		})
		var all []*rowtest.Row
		total := 0
		for p := range data {
			for i := range data[p] {
				all = append(all, &data[p][i])
				total++
			}
		}
		slices.SortStableFunc(all, rowtest.Before)
		want := naive(o, all)
		late, dropped = late+len(want.Late), dropped+total-len(want.Out)-len(want.Late)
		run := rowtest.Options{Types: types, Out: types, Lag: lag, New: func(alloc memory.Allocator) operators.Stateful {
			opts := o
			opts.Rows.Alloc = alloc
			op, err := dedup.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			return op
		}}
		for range 3 {
			got := rowtest.Do(t, rng, run, data)
			for _, x := range [][2][]string{{got.Out, want.Out}, {got.Late, want.Late}} {
				if !slices.Equal(x[0], x[1]) {
					t.Fatalf("seed %d, within %d idle %v: %d rows, want %d\n%.700s\n%.700s", seed, o.Within, o.Idle, len(x[0]), len(x[1]), fmt.Sprint(x[0]), fmt.Sprint(x[1]))
				}
			}
		}
		rowtest.Garble(t, rng, run, data)
	}
	if late == 0 || dropped == 0 {
		t.Errorf("%d late, %d dropped", late, dropped)
	}
}

func TestTheLastRowOfAKeyStays(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 10))
		n, lag := 1+rng.IntN(3), rng.Int64N(12)
		o := dedup.Options{Last: true, EmitRows: rng.IntN(6), Single: n == 1}
		o.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"}
		data := rowtest.Random(rng, n, 60, lag, rng.Int64N(20), func() []scalar.Value {
			return []scalar.Value{scalar.String([]string{"a", "b", "", "d", "e"}[rng.IntN(5)]), scalar.Int(rng.Int64()), scalar.List()}
		})
		last := map[string]*rowtest.Row{}
		for p := range data {
			for i := range data[p] {
				r := &data[p][i]
				old := last[r.Values[0].S]
				if old == nil || old.Time < r.Time || old.Time == r.Time && (old.Partition < r.Partition || old.Partition == r.Partition && old.Offset <= r.Offset) {
					last[r.Values[0].S] = r
				}
			}
		}
		run := rowtest.Options{Types: types, Out: types, Lag: lag, New: func(alloc memory.Allocator) operators.Stateful {
			opts := o
			opts.Rows.Alloc = alloc
			op, err := dedup.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			return op
		}}
		for range 3 {
			got := rowtest.Do(t, rng, run, data)
			table := map[string]string{}
			for i, key := range got.Keys {
				table[key] = got.Out[i]
			}
			if len(table) != len(last) || len(got.Late) > 0 {
				t.Fatalf("seed %d: %d keys of %d, %d late", seed, len(table), len(last), len(got.Late))
			}
			for k, r := range last {
				if want := rowtest.Line(r.Time, []byte(k), r.Values, types); table[k] != want {
					t.Fatalf("seed %d: %s, want %s", seed, table[k], want)
				}
			}
		}
		rowtest.Garble(t, rng, run, data)
	}
}

// A single partition in order waits for nothing.
func TestRowsInOrderPassAtOnce(t *testing.T) {
	op, err := dedup.New(dedup.Options{
		Rows: rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"}, Within: 10, Single: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	row := rowtest.Row{Time: 5, Behind: math.MinInt64, Values: []scalar.Value{scalar.String("a"), scalar.Int(1), scalar.List()}}
	op.Process(rowtest.Batch(memory.NewGoAllocator(), types, []rowtest.Row{row}, false), nil)
	out := counting{}
	op.Advance(5, &out)
	if out.rows != 1 || op.Held() != 0 {
		t.Errorf("%d rows have left, %d are held", out.rows, op.Held())
	}
}

type counting struct{ rows int }

func (c *counting) Emit(b *operators.Batch) {
	c.rows += b.Rows
	b.Release()
}
func (c *counting) Late(*operators.Batch, []int)                {}
func (c *counting) Fail(*operators.Batch, []operators.RowError) {}

func BenchmarkDedup(b *testing.B) {
	const n = 4096
	rng := rand.New(rand.NewPCG(1, 1))
	var batch []rowtest.Row
	for i := range n {
		batch = append(batch, rowtest.Row{Time: int64(i), Behind: math.MinInt64, Offset: int64(i), Values: []scalar.Value{
			scalar.String(fmt.Sprint("g", rng.IntN(2000))), scalar.Int(rng.Int64()), scalar.List(),
		}})
	}
	op, err := dedup.New(dedup.Options{Rows: rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}}, Within: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer op.Close()
	in := rowtest.Batch(memory.NewGoAllocator(), types, batch, false)
	out := &counting{}
	w := int64(n)
	b.ReportAllocs()
	for b.Loop() {
		in.Retain()
		op.Process(in, out)
		op.Advance(w, out)
		op.Changes(func(k, v []byte) {})
		w++
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
