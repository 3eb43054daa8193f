package operators

import (
	"slices"

	"github.com/headrace/headrace/internal/scalar"
)

// Stages over a table. A table is its latest row for each key, so a stage over it that lets a row go, by a
// condition or because the row failed, says that the key has no row any more: a row that was there
// before must not stay. No stage keeps state for that: a delete of a key that had no row changes nothing.
// The rows of a batch stay as many and in order, and keep their keys.

// A TableFilter is the Filter of a table: it passes the rows whose condition is true, and makes deletes of
// the others.
type TableFilter struct {
	Counters
	cond Evaluator
	rows upserts
	keep []int32
}

// NewTableFilter makes a TableFilter over the first column of cond, a bool; null counts as false.
func NewTableFilter(cond Evaluator) *TableFilter { return &TableFilter{cond: cond} }

// Process implements Operator.
func (f *TableFilter) Process(b *Batch, out Emitter) {
	defer b.Release()
	f.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	sel := f.rows.of(b)
	var errs []RowError
	if s, ok := f.cond.(Selector); ok {
		var err error
		if f.keep, errs, err = s.Select(b, sel, f.keep[:0]); err != nil {
			panic("operators: select: " + err.Error())
		}
	} else {
		f.keep, errs = selectOf(f.cond, b, sel, f.keep[:0])
	}
	fail(b, errs, &f.Counters, out)
	f.Out.Add(int64(b.Rows))
	passed := b.With(retainAll(b.Columns))
	passed.Ops = make([]Op, b.Rows)
	for i := range passed.Ops {
		passed.Ops[i] = OpDelete
	}
	for _, row := range f.keep {
		passed.Ops[row] = OpInsert
		if b.Ops != nil {
			passed.Ops[row] = b.Ops[row]
		}
	}
	out.Emit(passed)
}

// selectOf appends the rows of sel (nil: all) where the first column of cond is true.
func selectOf(cond Evaluator, b *Batch, sel, dst []int32) ([]int32, []RowError) {
	r := mustEval(cond, b, sel)
	defer r.Release()
	verdict := r.Columns[0]
	pass := func(row int32) {
		if failed(r.Errors, int(row)) {
			return
		}
		if v := ValueAt(verdict, scalar.TypeBool, int(row)); !v.IsNull() && v.I != 0 {
			dst = append(dst, row)
		}
	}
	if sel == nil {
		for row := range int32(b.Rows) {
			pass(row)
		}
		return dst, r.Errors
	}
	for _, row := range sel {
		pass(row)
	}
	return dst, r.Errors
}

func failed(errs []RowError, row int) bool {
	_, ok := slices.BinarySearchFunc(errs, row, func(e RowError, row int) int { return e.Row - row })
	return ok
}

// Advance implements Operator.
func (f *TableFilter) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (f *TableFilter) Close() {}

// A TableProject is the Project of a table: it replaces the columns of each row, and makes deletes of the
// rows that fail.
type TableProject struct {
	Counters
	exprs Evaluator
	rows  upserts
}

// NewTableProject makes a TableProject whose columns are those of exprs.
func NewTableProject(exprs Evaluator) *TableProject { return &TableProject{exprs: exprs} }

// Process implements Operator.
func (p *TableProject) Process(b *Batch, out Emitter) {
	defer b.Release()
	p.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	r := mustEval(p.exprs, b, p.rows.of(b))
	fail(b, r.Errors, &p.Counters, out)
	p.Out.Add(int64(b.Rows))
	made := b.With(r.Columns) // the columns change hands
	if len(r.Errors) > 0 {
		made.Ops = make([]Op, b.Rows)
		copy(made.Ops, b.Ops)
		for _, e := range r.Errors {
			made.Ops[e.Row] = OpDelete
		}
	}
	out.Emit(made)
}

// Advance implements Operator.
func (p *TableProject) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (p *TableProject) Close() {}

// upserts finds the rows of a batch that are no deletes: only those are evaluated.
type upserts struct{ sel []int32 }

// of lists them, nil if they are all; valid until the next call.
func (u *upserts) of(b *Batch) []int32 {
	if b.Ops == nil {
		return nil
	}
	u.sel = u.sel[:0]
	for i, op := range b.Ops {
		if op != OpDelete {
			u.sel = append(u.sel, int32(i))
		}
	}
	if u.sel == nil {
		u.sel = []int32{} // a nil selection would mean all rows
	}
	return u.sel
}
