package operators

import (
	"sync/atomic"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
)

// Counts is what became of the rows of one stage. For stages without state In is the sum of the
// others. An aggregate has rows that are neither: In = Late + Failed + rows folded into windows.
type Counts struct {
	In       int64 // rows given to Process
	Out      int64 // rows emitted
	Filtered int64 // rows that a condition left out
	Late     int64
	Failed   int64
}

// Counters are a stage's counts; one goroutine adds, any may read.
type Counters struct {
	In, Out, Filtered, Late, Failed atomic.Int64
}

// Counts is a reading of each counter.
func (c *Counters) Counts() Counts {
	return Counts{c.In.Load(), c.Out.Load(), c.Filtered.Load(), c.Late.Load(), c.Failed.Load()}
}

// A Counting operator counts its rows.
type Counting interface {
	Counts() Counts
}

// A Filter passes the rows whose condition is true.
type Filter struct {
	Counters
	cond  Evaluator
	alloc memory.Allocator
	sel   []int32
}

// NewFilter makes a Filter over the first column of cond, a bool; null counts as false.
func NewFilter(cond Evaluator, alloc memory.Allocator) *Filter {
	return &Filter{cond: cond, alloc: orDefault(alloc)}
}

func orDefault(alloc memory.Allocator) memory.Allocator {
	if alloc == nil {
		return memory.DefaultAllocator
	}
	return alloc
}

// Process implements Operator.
func (f *Filter) Process(b *Batch, out Emitter) {
	defer b.Release()
	f.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	errs := f.selectRows(b)
	fail(b, errs, &f.Counters, out)
	f.Out.Add(int64(len(f.sel)))
	f.Filtered.Add(int64(b.Rows - len(f.sel) - len(errs)))
	switch len(f.sel) {
	case 0:
	case b.Rows:
		b.Retain()
		out.Emit(b)
	default:
		out.Emit(b.Select(f.alloc, f.sel))
	}
}

// selectRows sets f.sel to the rows that are true.
func (f *Filter) selectRows(b *Batch) []RowError {
	if s, ok := f.cond.(Selector); ok {
		sel, errs, err := s.Select(b, nil, f.sel[:0])
		if err != nil {
			panic("operators: select: " + err.Error())
		}
		f.sel = sel
		return errs
	}
	r := mustEval(f.cond, b, nil)
	defer r.Release()
	f.sel = selectTrue(f.sel[:0], r.Columns[0].(*array.Boolean), r.Errors)
	return r.Errors
}

// Advance implements Operator.
func (f *Filter) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (f *Filter) Close() {}

// fail reports the failed rows of a stage.
func fail(b *Batch, errs []RowError, c *Counters, out Emitter) {
	if len(errs) > 0 {
		c.Failed.Add(int64(len(errs)))
		out.Fail(b, errs)
	}
}

// selectTrue appends the rows that are true and did not fail.
func selectTrue(sel []int32, cond *array.Boolean, errs []RowError) []int32 {
	allValid := cond.NullN() == 0
	for i := range cond.Len() {
		if len(errs) > 0 && errs[0].Row == i {
			errs = errs[1:]
			continue
		}
		if cond.Value(i) && (allValid || cond.IsValid(i)) {
			sel = append(sel, int32(i))
		}
	}
	return sel
}

// selectRest appends the rows of [0, n) that did not fail.
func selectRest(sel []int32, n int, errs []RowError) []int32 {
	for i := range n {
		if len(errs) > 0 && errs[0].Row == i {
			errs = errs[1:]
			continue
		}
		sel = append(sel, int32(i))
	}
	return sel
}

// A Project replaces the columns of each row. Everything else of a row stays: event time, key, origin.
type Project struct {
	Counters
	exprs Evaluator
	out   []scalar.Type
	alloc memory.Allocator
	sel   []int32
}

// NewProject makes a Project whose columns are those of exprs, of the types out.
func NewProject(exprs Evaluator, out []scalar.Type, alloc memory.Allocator) *Project {
	return &Project{exprs: exprs, out: out, alloc: orDefault(alloc)}
}

// Types are the types of the columns that p emits.
func (p *Project) Types() []scalar.Type { return p.out }

// Process implements Operator.
func (p *Project) Process(b *Batch, out Emitter) {
	defer b.Release()
	p.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	r := mustEval(p.exprs, b, nil)
	fail(b, r.Errors, &p.Counters, out)
	if len(r.Errors) == 0 {
		p.Out.Add(int64(b.Rows))
		out.Emit(b.With(r.Columns)) // the columns change hands
		return
	}
	defer r.Release()
	p.sel = selectRest(p.sel[:0], b.Rows, r.Errors)
	p.Out.Add(int64(len(p.sel)))
	if len(p.sel) == 0 {
		return
	}
	columns := make([]arrow.Array, len(r.Columns))
	for i, c := range r.Columns {
		if c != nil {
			columns[i] = Gather(p.alloc, c, p.sel)
		}
	}
	out.Emit(b.pick(columns, p.sel))
}

// Advance implements Operator.
func (p *Project) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (p *Project) Close() {}

// A Key gives each row the encoded key of some expressions.
type Key struct {
	Counters
	exprs Evaluator
	types []scalar.Type
	alloc memory.Allocator
	sel   []int32
	errs  []RowError
}

// NewKey makes a Key over the columns of exprs, of the given types. No columns: the null key.
func NewKey(exprs Evaluator, types []scalar.Type, alloc memory.Allocator) *Key {
	return &Key{exprs: exprs, types: types, alloc: orDefault(alloc)}
}

// Process implements Operator.
func (k *Key) Process(b *Batch, out Emitter) {
	defer b.Release()
	k.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	r := mustEval(k.exprs, b, nil)
	defer r.Release()
	keys, errs := EncodeKeys(r.Columns, k.types, b.Rows, r.Errors, k.errs[:0])
	k.errs = errs
	fail(b, errs, &k.Counters, out)
	k.Out.Add(int64(b.Rows - len(errs)))
	keyed := b.With(retainAll(b.Columns))
	keyed.Key = keys
	if len(errs) == 0 {
		out.Emit(keyed)
		return
	}
	defer keyed.Release()
	k.sel = selectRest(k.sel[:0], b.Rows, errs)
	if len(k.sel) > 0 {
		out.Emit(keyed.Select(k.alloc, k.sel))
	}
}

// Advance implements Operator.
func (k *Key) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (k *Key) Close() {}

func retainAll(columns []arrow.Array) []arrow.Array {
	kept := make([]arrow.Array, len(columns))
	for i, c := range columns {
		if c != nil {
			c.Retain()
			kept[i] = c
		}
	}
	return kept
}
