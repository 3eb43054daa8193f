package operators

import (
	"sync/atomic"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
)

// A source is memory that several batches point into through Origin and Key, outside Arrow's count.
type source struct {
	refs atomic.Int32
	free func()
}

func (s *source) retain() *source {
	if s != nil {
		s.refs.Add(1)
	}
	return s
}

func (s *source) release() {
	if s != nil && s.refs.Add(-1) == 0 {
		s.free()
	}
}

// NewBatch makes a batch of the given columns, which it takes over (one reference each), and event
// times. The caller sets the other fields before it hands the batch on.
func NewBatch(columns []arrow.Array, times []EventTime) *Batch {
	return &Batch{Columns: columns, Rows: len(times), Time: times}
}

// OnRelease has free called once, when b and every batch derived from it are released: it is for
// memory that Origin and Key point into. It may be set once, before b is shared.
func (b *Batch) OnRelease(free func()) {
	b.src = &source{free: free}
	b.src.refs.Store(1)
}

// Retain adds an owner; each owner releases once. Safe for concurrent use.
func (b *Batch) Retain() { atomic.AddInt32(&b.refs, 1) }

// Release gives up one ownership; the last one releases the columns. Safe for concurrent use.
func (b *Batch) Release() {
	if atomic.AddInt32(&b.refs, -1) >= 0 {
		return
	}
	for _, c := range b.Columns {
		if c != nil {
			c.Release()
		}
	}
	b.Columns = nil
	b.src.release()
	b.src = nil
}

// With is a batch of the same rows with other columns, which it takes over. It shares the per-row
// slices of b and stays valid when b is released.
func (b *Batch) With(columns []arrow.Array) *Batch {
	return &Batch{
		Columns: columns, Rows: b.Rows, Time: b.Time,
		Partition: b.Partition, Behind: b.Behind, Offsets: b.Offsets, AppendTime: b.AppendTime,
		Origin: b.Origin, Key: b.Key, Ops: b.Ops,
		src: b.src.retain(),
	}
}

// Select is a batch of the rows in sel, in that order, gathered from every column. b is unchanged; the
// result stays valid when b is released.
func (b *Batch) Select(alloc memory.Allocator, sel []int32) *Batch {
	columns := make([]arrow.Array, len(b.Columns))
	for i, c := range b.Columns {
		if c != nil {
			columns[i] = Gather(alloc, c, sel)
		}
	}
	return b.pick(columns, sel)
}

// pick is b reduced to the rows of sel, with columns that were gathered already.
func (b *Batch) pick(columns []arrow.Array, sel []int32) *Batch {
	r := &Batch{
		Columns: columns, Rows: len(sel), Time: pick(b.Time, sel),
		Partition: b.Partition, Behind: pick(b.Behind, sel), Offsets: pick(b.Offsets, sel),
		AppendTime: pick(b.AppendTime, sel), Key: pick(b.Key, sel), Ops: pick(b.Ops, sel),
		src: b.src.retain(),
	}
	if origin := b.Origin; origin != nil {
		kept := append([]int32(nil), sel...)
		r.Origin = func(row int) Origin { return origin(int(kept[row])) }
	}
	return r
}

// Pick is the values of the rows in sel, in that order; nil stays nil.
func Pick[T any](from []T, sel []int32) []T { return pick(from, sel) }

func pick[T any](from []T, sel []int32) []T {
	if from == nil {
		return nil
	}
	r := make([]T, len(sel))
	for i, row := range sel {
		r[i] = from[row]
	}
	return r
}

// Slice is rows [from, to) of b without copying. It stays valid when b is released.
func (b *Batch) Slice(from, to int) *Batch {
	columns := make([]arrow.Array, len(b.Columns))
	for i, c := range b.Columns {
		if c != nil {
			columns[i] = array.NewSlice(c, int64(from), int64(to))
		}
	}
	r := &Batch{
		Columns: columns, Rows: to - from, Time: cut(b.Time, from, to),
		Partition: b.Partition, Behind: cut(b.Behind, from, to), Offsets: cut(b.Offsets, from, to),
		AppendTime: cut(b.AppendTime, from, to), Key: cut(b.Key, from, to), Ops: cut(b.Ops, from, to),
		src: b.src.retain(),
	}
	if origin := b.Origin; origin != nil {
		r.Origin = func(row int) Origin { return origin(from + row) }
	}
	return r
}

func cut[T any](s []T, from, to int) []T {
	if s == nil {
		return nil
	}
	return s[from:to:to]
}
