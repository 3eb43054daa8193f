package operators

import (
	"github.com/apache/arrow/go/v15/arrow"
)

// A Stepper computes a run of filters and projections over a batch. vector.Steps is one.
//
// Steps leaves b to the caller, who owns the columns of the result; the rest of it is valid until the next call. The error
// means that stepper and batch do not fit each other, which no data can cause.
type Stepper interface {
	Steps(b *Batch) (*StepResult, error)
}

// A StepResult is what a run of stages leaves of a batch.
type StepResult struct {
	Columns []arrow.Array // of the rows that are left; nil if none are
	Rows    []int32       // which these are, ascending; nil: all, if there are Columns
	Steps   []StepCount
}

// A StepCount is what became of the rows of one stage. In = Out + filtered + len(Errors).
type StepCount struct {
	In, Out int
	Errors  []RowError // by row of the batch
}

// A Fused runs stages without state as one: no batch is made between them.
type Fused struct{ steps Stepper }

// NewFused makes a Fused.
func NewFused(steps Stepper) *Fused { return &Fused{steps: steps} }

// Run computes the stages over b, which stays the caller's. It gives the batch that leaves the last stage, or nil, and
// what became of the rows of each stage; the counts are valid until the next call.
func (f *Fused) Run(b *Batch) (*Batch, []StepCount) {
	r, err := f.steps.Steps(b)
	if err != nil {
		panic("operators: steps: " + err.Error()) // a fault in the plan, not in the data
	}
	switch {
	case r.Columns == nil:
		return nil, r.Steps
	case r.Rows == nil:
		return b.With(r.Columns), r.Steps
	}
	return b.pick(r.Columns, r.Rows), r.Steps
}
