package over_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/rowtest"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/over"
	"github.com/headrace/headrace/operators/rows"
)

var (
	types = []scalar.Type{scalar.TypeString.Null(), scalar.TypeInt64, scalar.TypeFloat64, scalar.TypeString.Null()}
	names = []string{"key", "n", "x", "s"}
	made  = []scalar.Type{scalar.TypeInt64, scalar.TypeFloat64.Null(), scalar.TypeString.Null(), scalar.TypeInt64, scalar.TypeInt64, scalar.TypeString.Null()}
)

// A fold counts rows, sums floats in order, or puts texts one after the other. A sum above limit fails.
type fold struct {
	column int // of the frame; below zero: count
	limit  float64
	b      *operators.Batch
}

func (f *fold) Read(b *operators.Batch) { f.b = b }

func (f *fold) Over(from, to int, dst array.Builder) scalar.Code {
	switch dst := dst.(type) {
	case *array.Int64Builder:
		dst.Append(int64(to - from))
	case *array.Float64Builder:
		if from == to {
			dst.AppendNull()
			return scalar.CodeNone
		}
		sum := 0.0
		for i := from; i < to; i++ {
			sum += f.b.Columns[f.column].(*array.Float64).Value(i)
		}
		if f.limit > 0 && sum > f.limit {
			return scalar.CodeOverflow
		}
		dst.Append(sum)
	case *array.StringBuilder:
		text := ""
		for i := from; i < to; i++ {
			if c := f.b.Columns[f.column].(*array.String); c.IsValid(i) {
				text += c.Value(i) + " "
			}
		}
		dst.Append(text)
	}
	return scalar.CodeNone
}

func slots(back int, limit float64) []over.Slot {
	return []over.Slot{
		{Kind: over.KindFold, Fold: &fold{column: -1}, Type: made[0], Text: "count()"},
		{Kind: over.KindFold, Fold: &fold{column: 0, limit: limit}, Type: made[1], Text: "sum(x)"},
		{Kind: over.KindFold, Fold: &fold{column: 1}, Type: made[2], Text: "texts(s)"},
		{Kind: over.KindRowNumber, Type: made[3]},
		{Kind: over.KindRank, Type: made[4]},
		{Kind: over.KindPrev, Column: 1, Back: back, Type: made[5]},
	}
}

// naive looks back over all rows of a key for each of them.
func naive(o over.Options, all []*rowtest.Row) (run rowtest.Run, failed int) {
	before := map[string][]*rowtest.Row{}
	span := int64(o.Idle)
	if span == 0 && !o.Forever {
		span = int64(o.Range)
	}
	for _, r := range all {
		if r.Late() {
			run.Late = append(run.Late, fmt.Sprintf("%d/%d %s", r.Partition, r.Offset, r.Value()))
			continue
		}
		key, k := "null", []byte(nil)
		if v := r.Values[0]; !v.IsNull() {
			key, k = "="+v.S, []byte(v.S)
		}
		mine := before[key]
		if n := len(mine); n > 0 && span > 0 && r.Time-mine[n-1].Time >= span {
			mine = nil
		}
		mine = append(mine, r)
		before[key] = mine
		var frame []*rowtest.Row
		for i, x := range mine {
			back := len(mine) - 1 - i
			switch {
			case o.Before && back >= 1 && back <= o.N,
				!o.Before && o.N > 0 && back < o.N,
				o.Range > 0 && x.Time > r.Time-int64(o.Range):
				frame = append(frame, x)
			}
		}
		sum, text, rank, prev := scalar.Null, "", int64(1), scalar.Null
		for _, x := range frame {
			if sum.IsNull() {
				sum = scalar.Float(0)
			}
			sum.F += x.Values[2].F
			if v := x.Values[3]; !v.IsNull() {
				text += v.S + " "
			}
		}
		for _, x := range mine {
			if x.Time < r.Time {
				rank++
			}
		}
		if i := len(mine) - 1 - o.Slots[5].Back; i >= 0 {
			prev = mine[i].Values[3]
		}
		if limit := o.Slots[1].Fold.(*fold).limit; limit > 0 && sum.F > limit {
			failed++
			continue
		}
		values := append(slices.Clone(r.Values), scalar.Int(int64(len(frame))), sum, scalar.String(text), scalar.Int(int64(len(mine))), scalar.Int(rank), prev)
		run.Out = append(run.Out, rowtest.Line(r.Time, k, values, append(slices.Clone(types), made...)))
	}
	return run, failed
}

func randomOptions(rng *rand.Rand) over.Options {
	o := over.Options{Frame: []int{2, 3}, EmitRows: rng.IntN(6), Slots: slots(1+rng.IntN(4), 0)}
	o.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"}
	if rng.IntN(2) == 0 {
		o.Range, o.Forever = time.Duration(1+rng.IntN(40)), true
	} else {
		o.N, o.Before, o.Forever = 1+rng.IntN(6), rng.IntN(2) == 0, true
	}
	if rng.IntN(2) == 0 {
		o.Idle, o.Forever = time.Duration(1+rng.IntN(60)), false
	}
	return o
}

func randomRows(rng *rand.Rand, partitions int, lag int64) (data [][]rowtest.Row, all []*rowtest.Row) {
	data = rowtest.Random(rng, partitions, 60, lag, rng.Int64N(20), func() []scalar.Value {
		k, s := scalar.String([]string{"a", "b", "", "d", "e"}[rng.IntN(5)]), scalar.String(fmt.Sprint("s", rng.IntN(1000)))
		if rng.IntN(8) == 0 {
			k = scalar.Null
		}
		if rng.IntN(4) == 0 {
			s = scalar.Null
		}
		return []scalar.Value{k, scalar.Int(rng.Int64()), scalar.Float(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(20)))), s}
	})
	for p := range data {
		for i := range data[p] {
			all = append(all, &data[p][i])
		}
	}
	slices.SortStableFunc(all, func(a, b *rowtest.Row) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return data, all
}

func TestEachRowLooksBack(t *testing.T) {
	late, restarted := 0, 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 21))
		o := randomOptions(rng)
		n, lag := 1+rng.IntN(3), rng.Int64N(12)
		o.Single = n == 1
		data, all := randomRows(rng, n, lag)
		want, _ := naive(o, all)
		late += len(want.Late)
		if o.Idle > 0 {
			restarted++
		}
		run := rowtest.Options{Types: types, Out: append(slices.Clone(types), made...), Lag: lag, New: func(alloc memory.Allocator) operators.Stateful {
			opts := o
			opts.Rows.Alloc = alloc
			opts.Slots = slots(o.Slots[5].Back, 0)
			op, err := over.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			return op
		}}
		for range 3 {
			got := rowtest.Do(t, rng, run, data)
			slices.Sort(got.Late)
			slices.Sort(want.Late)
			for _, x := range [][2][]string{{got.Out, want.Out}, {got.Late, want.Late}} {
				if !slices.Equal(x[0], x[1]) {
					t.Fatalf("seed %d, rows %d before %v range %d idle %d: %d rows, want %d\n%s", seed, o.N, o.Before, o.Range, o.Idle, len(x[0]), len(x[1]), difference(x[0], x[1]))
				}
			}
		}
		rowtest.Garble(t, rng, run, data)
	}
	if late == 0 || restarted == 0 {
		t.Errorf("%d late, %d with an end", late, restarted)
	}
}

func difference(got, want []string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("row %d\n got %s\nwant %s", i, got[i], want[i])
		}
	}
	return "the rows before are equal"
}

// What is kept of a key is bounded by its frame, and goes when the key does.
func TestStateIsBounded(t *testing.T) {
	for _, c := range []struct {
		name string
		o    over.Options
		most int64
		end  int64 // rows kept long after the last row
	}{
		{"rows", over.Options{N: 10, Forever: true}, 9, 9},
		{"rows before", over.Options{N: 10, Before: true, Forever: true}, 10, 10},
		{"range", over.Options{Range: 20}, 20, 0},
		{"rows until idle", over.Options{N: 10, Idle: 50}, 9, 0},
	} {
		o := c.o
		o.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"}
		o.Frame, o.Slots, o.Single = []int{2, 3}, slots(1, 0), true
		op, err := over.New(o)
		if err != nil {
			t.Fatal(err)
		}
		out, empty := &counting{}, op.StateBytes()
		for i := range int64(1000) {
			row := rowtest.Row{Time: i, Behind: math.MinInt64, Offset: i, Values: []scalar.Value{scalar.String("a"), scalar.Int(1), scalar.Float(1), scalar.Null}}
			op.Process(rowtest.Batch(memory.NewGoAllocator(), types, []rowtest.Row{row}, false), out)
			op.Advance(i, out)
			if n := op.StateRows(); n > c.most {
				t.Fatalf("%s: %d rows are kept after row %d", c.name, n, i)
			}
		}
		op.Advance(5000, out)
		if n := op.StateRows(); n != c.end || c.end == 0 && op.StateBytes() != empty || out.rows != 1000 {
			t.Errorf("%s: %d rows and %d bytes are kept in the end, %d have left", c.name, n, op.StateBytes(), out.rows)
		}
		op.Close()
	}
}

// A row whose value fails does not leave, and is in the frames of others.
func TestAFailedValueFailsItsRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 21))
	data, all := randomRows(rng, 1, 5)
	o := over.Options{
		Rows:  rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}, Topic: "src"},
		Frame: []int{2, 3}, Slots: slots(1, 1e6), N: 3, Forever: true, Single: true,
	}
	want, failed := naive(o, all)
	op, err := over.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	out := &counting{}
	op.Process(rowtest.Batch(memory.NewGoAllocator(), types, data[0], false), out)
	op.Advance(math.MaxInt64, out)
	if out.rows != len(want.Out) || out.failed != failed || out.late != len(want.Late) || failed == 0 || op.Held() != 0 {
		t.Errorf("%d rows, %d failed, %d late; want %d, %d, %d", out.rows, out.failed, out.late, len(want.Out), failed, len(want.Late))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	shape := rows.Shape{Types: types, Names: names, Kept: len(types)}
	for i, o := range []over.Options{
		{Rows: shape, N: -1},
		{Rows: shape, N: over.MaxRows + 1},
		{Rows: shape, N: 1, Range: 1},
		{Rows: shape, Before: true, Range: 1},
		{Rows: shape, N: 1, Frame: []int{9}},
		{Rows: shape, Slots: []over.Slot{{Kind: over.KindFold, Fold: &fold{}}}},
		{Rows: shape, N: 1, Slots: []over.Slot{{Kind: over.KindPrev, Back: 0}}},
		{Rows: shape, N: 1, Slots: []over.Slot{{}}},
	} {
		if _, err := over.New(o); err == nil {
			t.Errorf("options %d are taken", i)
		}
	}
}

type counting struct{ rows, late, failed int }

func (c *counting) Emit(b *operators.Batch) {
	c.rows += b.Rows
	b.Release()
}
func (c *counting) Late(_ *operators.Batch, rows []int)                { c.late += len(rows) }
func (c *counting) Fail(_ *operators.Batch, errs []operators.RowError) { c.failed += len(errs) }

func BenchmarkOver(b *testing.B) {
	const n = 4096
	for _, c := range []struct {
		name string
		keys int
		o    over.Options
	}{
		{"rows=10/keys=2000", 2000, over.Options{N: 10, Forever: true}},
		{"rows=10/keys=10", 10, over.Options{N: 10, Forever: true}},
		{"rows=1000/keys=10", 10, over.Options{N: 1000, Forever: true}},
		{"range=1000/keys=10", 10, over.Options{Range: 1000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			o := c.o
			o.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}}
			o.Frame, o.Slots, o.Single = []int{2}, slots(1, 0)[:2], true
			op, err := over.New(o)
			if err != nil {
				b.Fatal(err)
			}
			defer op.Close()
			out := &counting{}
			w := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				var batch []rowtest.Row
				for range n {
					w++
					batch = append(batch, rowtest.Row{Time: w, Behind: math.MinInt64, Offset: w, Values: []scalar.Value{
						scalar.String(fmt.Sprint("g", rng.IntN(c.keys))), scalar.Int(rng.Int64()), scalar.Float(rng.Float64()), scalar.Null,
					}})
				}
				in := rowtest.Batch(memory.NewGoAllocator(), types, batch, false)
				b.StartTimer()
				op.Process(in, out)
				op.Advance(w, out)
				op.Changes(func(k, v []byte) {})
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
