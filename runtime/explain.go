package runtime

import (
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// Explain renders a compiled module for people: the stages of each pipeline and view, keys, shuffles,
// state, and how each expression is evaluated.
func Explain(m *plan.Module) string {
	return dsl.ExplainWith(m, kernelOf)
}

// kernelOf says how an expression over some columns is computed.
func kernelOf(e *plan.Expr, input []plan.Column) string {
	ts := make([]scalar.Type, len(input))
	for i := range input {
		ts[i] = input[i].Type
	}
	p, err := lowering{alloc: memory.DefaultAllocator, input: ts}.program([]*plan.Expr{e})
	if err != nil {
		return "cannot run: " + err.Error()
	}
	return p.Kernel(0)
}
