package operators

import "github.com/apache/arrow/go/v15/arrow"

// A Result holds evaluated expressions: one column for each, over all rows of the batch that was
// evaluated. What a column holds in an unselected or failed row is undefined; its memory is counted.
type Result struct {
	Columns []arrow.Array
	Errors  []RowError // the first error of each failed row, by ascending row
}

// Release gives the columns back.
func (r *Result) Release() {
	for _, c := range r.Columns {
		if c != nil {
			c.Release()
		}
	}
	r.Columns = nil
}

// An Evaluator computes expressions over the columns of a batch. vector.Program is one.
//
// Eval evaluates the rows of sel (ascending; nil: all rows) and leaves b to the caller, who owns the
// result. Rows that fail are reported in the result; the error means that evaluator and batch do not
// fit each other, which no data can cause.
type Evaluator interface {
	Eval(b *Batch, sel []int32) (*Result, error)
}

// A Selector is an Evaluator that can say where its first expression, a bool, is true without making a
// column of it. vector.Program is one.
type Selector interface {
	Evaluator
	// Select appends to dst the rows of sel (ascending; nil: all rows) that are true and did not fail,
	// ascending, and gives the errors as Eval does. Null counts as false.
	Select(b *Batch, sel, dst []int32) ([]int32, []RowError, error)
}

// Columns is the Evaluator of bare column references: it shares the columns of the batch.
type Columns []int

// Eval implements Evaluator.
func (c Columns) Eval(b *Batch, _ []int32) (*Result, error) {
	r := &Result{Columns: make([]arrow.Array, len(c))}
	for i, col := range c {
		r.Columns[i] = b.Columns[col]
		r.Columns[i].Retain()
	}
	return r, nil
}

// mustEval evaluates and turns a misfit of program and batch, which is a fault in the plan and not in
// the data, into a panic.
func mustEval(e Evaluator, b *Batch, sel []int32) *Result {
	r, err := e.Eval(b, sel)
	if err != nil {
		panic("operators: evaluate: " + err.Error())
	}
	return r
}
