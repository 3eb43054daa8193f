// Package rowtest runs an operator with state over random rows in every way in which a pipeline may: the
// partitions in any order, in batches of any size, with steps and restarts anywhere. What leaves must
// depend on the rows of each partition alone, so that a test can compare it with a naive version.
package rowtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A Row is one row of a source partition.
type Row struct {
	Values    []scalar.Value
	Time      operators.EventTime
	Behind    operators.EventTime // W_p before the row
	Partition int32
	Offset    int64
}

// Late says whether the row is behind.
func (r *Row) Late() bool { return r.Time < r.Behind }

// At is where the row stands: its event time, or the watermark that it is behind.
func (r *Row) At() operators.EventTime { return max(r.Time, r.Behind) }

// Before orders rows by (at, partition, offset); rows of one record stay as they came.
func Before(a, b *Row) int {
	switch {
	case a.At() != b.At():
		return int(a.At() - b.At())
	case a.Partition != b.Partition:
		return int(a.Partition - b.Partition)
	}
	return int(a.Offset - b.Offset)
}

// Random makes up to n rows of each partition, out of order by up to disorder, with a lag; now and then a
// record has several rows. values makes the columns.
func Random(rng *rand.Rand, partitions, n int, lag, disorder int64, values func() []scalar.Value) [][]Row {
	out := make([][]Row, partitions)
	for p := range out {
		w, base, offset := operators.MinEventTime, int64(1000), int64(0)
		for range n/2 + rng.IntN(n/2+1) {
			base += rng.Int64N(6)
			r := Row{Values: values(), Time: base - rng.Int64N(disorder+1), Behind: w, Partition: int32(p), Offset: offset}
			out[p] = append(out[p], r)
			for ; rng.IntN(8) == 0; w = max(w, r.Time-lag) {
				r.Values = values()
				out[p] = append(out[p], r)
			}
			w = max(w, r.Time-lag)
			offset += 1 + rng.Int64N(3)
		}
	}
	return out
}

// A Run is what left an operator.
type Run struct {
	Keys []string // of the rows of Out
	Out  []string // "@time key: columns", as JSON
	Late []string // "partition/offset"
}

// Result is a Run as text.
func (r *Run) String() string { return fmt.Sprintf("%d rows, %d late", len(r.Out), len(r.Late)) }

// quiet takes everything and checks nothing.
type quiet struct{}

func (quiet) Emit(b *operators.Batch)                     { b.Release() }
func (quiet) Late(*operators.Batch, []int)                {}
func (quiet) Fail(*operators.Batch, []operators.RowError) {}

type sink struct {
	*Run
	t     testing.TB
	types []scalar.Type
}

// Line is how a row that left is written down.
func Line(at operators.EventTime, key []byte, values []scalar.Value, types []scalar.Type) string {
	line := fmt.Appendf(nil, "@%d %q:", at, key)
	if key == nil {
		line = fmt.Appendf(nil, "@%d null:", at)
	}
	for i, v := range values {
		line = append(line, ' ')
		line, _ = scalar.AppendJSON(line, v, types[i])
	}
	return string(line)
}

func (s sink) Emit(b *operators.Batch) {
	defer b.Release()
	if b.Partition != -1 || b.Offsets != nil || b.Behind != nil || len(b.Columns) != len(s.types) {
		s.t.Errorf("a batch of partition %d with %d columns", b.Partition, len(b.Columns))
	}
	for i := range b.Rows {
		var values []scalar.Value
		for c, arr := range b.Columns {
			values = append(values, operators.ValueAt(arr, s.types[c], i))
		}
		s.Keys = append(s.Keys, string(b.Key[i]))
		s.Out = append(s.Out, Line(b.Time[i], b.Key[i], values, s.types))
		if o := b.Origin(i); o.Topic == "src" && o.Offset < 0 || len(o.Value) == 0 {
			s.t.Errorf("origin %+v", o)
		}
	}
}

func (s sink) Late(b *operators.Batch, rows []int) {
	for _, i := range rows {
		o := b.Origin(i)
		s.Run.Late = append(s.Run.Late, fmt.Sprintf("%d/%d %s", o.Partition, o.Offset, o.Value))
	}
}

func (s sink) Fail(_ *operators.Batch, errs []operators.RowError) {
	s.t.Errorf("rows fail: %+v", errs)
}

// Value is the record of a row.
func (r *Row) Value() string { return fmt.Sprintf("record %d of %d", r.Offset, r.Partition) }

// Batch makes a batch of rows of one partition, or of merged rows.
func Batch(alloc memory.Allocator, types []scalar.Type, rows []Row, merged bool) *operators.Batch {
	columns := make([]arrow.Array, len(types))
	for c, t := range types {
		b := array.NewBuilder(alloc, operators.ArrowType(t))
		for i := range rows {
			operators.AppendValue(b, t, rows[i].Values[c])
		}
		columns[c] = b.NewArray()
		b.Release()
	}
	times := make([]operators.EventTime, len(rows))
	b := operators.NewBatch(columns, times)
	b.Partition = -1
	for i := range rows {
		times[i] = rows[i].Time
		b.Key = append(b.Key, []byte("k"))
		if !merged {
			b.Partition = rows[i].Partition
			b.Behind, b.Offsets = append(b.Behind, rows[i].Behind), append(b.Offsets, rows[i].Offset)
			b.AppendTime = append(b.AppendTime, rows[i].Time)
		}
	}
	rows = slices.Clone(rows)
	b.Origin = func(i int) operators.Origin {
		r := &rows[i]
		return operators.Origin{Topic: "src", Partition: r.Partition, Offset: r.Offset, Key: []byte("k"), Value: []byte(r.Value())}
	}
	return b
}

// Options say how rows are run.
type Options struct {
	Types []scalar.Type // of the input
	Out   []scalar.Type // of what leaves
	New   func(alloc memory.Allocator) operators.Stateful
	Lag   int64
	Step  bool // Advance comes before every Changes, as in a pipeline
}

// Do runs rows in a random way.
func Do(t testing.TB, rng *rand.Rand, o Options, rows [][]Row) Run {
	t.Helper()
	var run Run
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	out := sink{&run, t, o.Out}
	op := o.New(alloc)
	store := map[string][]byte{}
	save := func() {
		var last []byte
		op.Changes(func(k, v []byte) {
			if bytes.Compare(k, last) <= 0 {
				t.Errorf("key %q comes after %q", k, last)
			}
			last = append(last[:0], k...)
			if v == nil {
				if _, ok := store[string(k)]; !ok {
					t.Errorf("key %q is deleted that was never put", k)
				}
				delete(store, string(k))
				return
			}
			store[string(k)] = bytes.Clone(v)
		})
		if n := op.StateRows(); n != int64(len(store)) {
			t.Errorf("%d rows are stored, %d counted", len(store), n)
		}
	}
	next, w := make([]int, len(rows)), make([]int64, len(rows))
	for p := range w {
		w[p] = operators.MinEventTime
	}
	most := 1 + rng.IntN(40)
	for {
		p := rng.IntN(len(rows))
		if n := min(1+rng.IntN(most), len(rows[p])-next[p]); n > 0 {
			for next[p]+n < len(rows[p]) && rows[p][next[p]+n].Offset == rows[p][next[p]+n-1].Offset {
				n++ // the rows of a record come in one step
			}
			part := rows[p][next[p] : next[p]+n]
			next[p] += n
			for i := range part {
				w[p] = max(w[p], part[i].Time-o.Lag)
			}
			op.Process(Batch(alloc, o.Types, part, false), out)
		} else {
			w[p] = operators.MaxEventTime
		}
		low := slices.Min(w)
		if rng.IntN(3) > 0 || low == operators.MaxEventTime {
			for {
				op.Advance(low, out)
				more, ok := op.(interface{ More() bool })
				if !ok || !more.More() {
					break
				}
				if rng.IntN(3) == 0 && low != operators.MaxEventTime {
					break // the step is full
				}
			}
		}
		if rng.IntN(4) == 0 {
			if o.Step {
				op.Advance(low, out)
			}
			save()
			if rng.IntN(3) == 0 { // a restart
				op.Close()
				op = o.New(alloc)
				for k, v := range store {
					if err := op.Restore([]byte(k), v); err != nil {
						t.Fatal(err)
					}
				}
				if got := op.StateRows(); got != int64(len(store)) {
					t.Errorf("%d rows after a restart, %d before", got, len(store))
				}
			}
		}
		if low == operators.MaxEventTime {
			break
		}
	}
	save()
	op.Close()
	alloc.AssertSize(t, 0)
	return run
}

// Garble restores damaged rows and requires an error or nothing, never a panic.
func Garble(t testing.TB, rng *rand.Rand, o Options, rows [][]Row) {
	t.Helper()
	alloc := memory.NewGoAllocator()
	op := o.New(alloc)
	defer op.Close()
	for p := range rows {
		op.Process(Batch(alloc, o.Types, rows[p], false), quiet{})
	}
	op.Changes(func(k, v []byte) {
		k, v = bytes.Clone(k), bytes.Clone(v)
		switch rng.IntN(3) {
		case 0:
			k = k[:rng.IntN(len(k))]
		case 1:
			v = v[:rng.IntN(len(v))]
		default:
			v[rng.IntN(len(v))] ^= byte(1 + rng.IntN(255))
		}
		again := o.New(alloc)
		defer again.Close()
		if again.Restore(k, v) == nil {
			again.Advance(operators.MaxEventTime, quiet{})
		}
	})
}
