package window

import (
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// A Fold folds rows that stand side by side in a batch by one aggregate, each time anew. So what it gives
// depends on these rows and their order alone, floats included. One goroutine uses it.
type Fold struct {
	slot Slot
	acc  accumulator
	t    *state.Table // of one group
	agg  Aggregate    // the scratch of accumulators

	b       *operators.Batch
	col, by *column
	rows    []int32
	pos     []state.Pos
}

// NewFold makes a Fold of a slot whose Column and ByColumn are those of the batches to come; Arg and
// Filter count for nothing. Errors: ErrOptions.
func NewFold(s Slot) (*Fold, error) {
	if s.Arg = nil; s.ArgType.Kind != scalar.KindInvalid {
		s.Arg = operators.Columns{s.Column}
	}
	acc, err := newAccumulator(s, 0)
	if err != nil {
		return nil, err
	}
	return &Fold{slot: s, acc: acc, t: state.NewTable(acc.cells())}, nil
}

// Read takes up a batch, which the caller keeps alive for the calls of Over.
func (f *Fold) Read(b *operators.Batch) {
	f.b, f.col, f.by = b, nil, nil
	if f.slot.Arg != nil {
		f.col = newColumn(b.Columns[f.slot.Column], f.slot.ArgType)
	}
	if f.slot.ByType.Kind != scalar.KindInvalid {
		f.by = newColumn(b.Columns[f.slot.ByColumn], f.slot.ByType)
	}
	for len(f.rows) < b.Rows {
		f.rows = append(f.rows, int32(len(f.rows)))
	}
}

// Over appends to dst, a builder of the slot's type, what rows from to to-1 give. With a code it appends
// nothing.
func (f *Fold) Over(from, to int, dst array.Builder) scalar.Code {
	f.t.Clear()
	p, _ := f.t.Upsert(state.Hash(nil), nil)
	if len(f.pos) < to-from || len(f.pos) > 0 && f.pos[0] != p {
		f.pos = grown(f.pos, to-from)
		for i := range f.pos {
			f.pos[i] = p
		}
	}
	f.acc.update(&update{t: f.t, b: f.b, rows: f.rows[from:to], pos: f.pos[:to-from], cell: 1, col: f.col, by: f.by, agg: &f.agg})
	at, n := int(p)+1, f.acc.cells()
	return f.acc.finish(f.t, f.t.Arena()[at:at+n:at+n], dst)
}
