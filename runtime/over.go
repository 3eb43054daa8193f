package runtime

import (
	"fmt"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/over"
	"github.com/headrace/headrace/operators/window"
)

// buildOver makes the operator of an over stage. What its slots look at are columns of the row, or hidden
// ones that are computed when the row comes.
func buildOver(low lowering, input plan.Schema, st *plan.Stage, o stageOptions, alloc memory.Allocator) (operators.Operator, error) {
	p := st.Over
	var hidden []*plan.Expr
	var frame []int // columns of the row
	first := len(input.Columns) + len(p.Added)
	look := func(e *plan.Expr) (column int) {
		at := first + len(hidden)
		if e.Op == plan.ExprColumn && e.Type.Equal(low.input[e.Column]) {
			at = e.Column
			for i, c := range frame {
				if c == at {
					return i
				}
			}
		} else {
			hidden = append(hidden, e)
		}
		frame = append(frame, at)
		return len(frame) - 1
	}
	opts := over.Options{N: p.Rows, Before: p.Before, Range: p.Range, Idle: p.TTL, Forever: p.Forever, Single: o.single, EmitRows: o.emitRows}
	for i := range p.Slots {
		s := &p.Slots[i]
		slot := over.Slot{Type: s.Type, Text: s.Text()}
		switch s.Func {
		case "row_number":
			slot.Kind = over.KindRowNumber
		case "rank":
			slot.Kind = over.KindRank
		case "prev":
			slot.Kind, slot.Column, slot.Back = over.KindPrev, look(s.Arg), int(s.Param.Value.I)
		default:
			slot.Kind = over.KindFold
			w := window.Slot{Func: s.Func, Type: s.Type, Text: slot.Text}
			if s.Arg != nil {
				w.Column, w.ArgType = look(s.Arg), s.Arg.Type
			}
			if s.By != nil {
				w.ByColumn, w.ByType = look(s.By), s.By.Type
			}
			if s.Param != nil {
				w.Param, w.ParamType = s.Param.Value, s.Param.Type
			}
			fold, err := window.NewFold(w)
			if err != nil {
				return nil, fmt.Errorf("runtime: %s: %w", slot.Text, err)
			}
			slot.Fold = fold
		}
		opts.Slots = append(opts.Slots, slot)
	}
	shape, err := rowShape(low, input, p.Grouping, hidden, o.topic, alloc)
	if err != nil {
		return nil, err
	}
	shape.Kept, shape.Hidden = shape.Kept+len(hidden), len(hidden)
	opts.Rows, opts.Frame = shape, frame
	return over.New(opts)
}

var _ over.Folder = (*window.Fold)(nil)
