package runtime

import (
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators"
)

// buildExplode makes the operator of an explode stage.
func buildExplode(low lowering, st *plan.Stage, alloc memory.Allocator) (operators.Operator, error) {
	list, err := low.program([]*plan.Expr{st.Explode.List})
	if err != nil {
		return nil, err
	}
	return operators.NewExplode(list, operators.ExplodeOptions{
		Elem: *st.Explode.List.Type.Elem, Left: st.Explode.Left, Index: st.Explode.Index, Alloc: alloc,
	}), nil
}
