package runtime

import (
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

// fuse makes one operator of the filters and projections at the beginning of stages, if there are at least two. It answers
// how many it took.
//
// Every expression is rewritten over the columns of the first stage: where it reads a column that a projection before it
// computes, that expression stands in its place. What has no column form reads its columns by row, so it can stand only
// where they are still the columns of the input.
func fuse(low lowering, stages []plan.Stage) (*operators.Fused, int, error) {
	columns := make([]*vector.Expr, len(low.input)) // of the stage before, over the input
	for i, t := range low.input {
		columns[i] = &vector.Expr{Op: vector.OpColumn, Column: i, Type: t}
	}
	var steps []vector.Step
	var schema plan.Schema
	n := 0
	for ; n < len(stages); n++ {
		st := &stages[n]
		if st.Type == plan.StreamTable {
			break
		}
		over := low
		over.columns = columns
		switch {
		case st.Kind == plan.StageFilter && over.reaches(st.Filter):
			x, err := over.lower(st.Filter)
			if err != nil {
				return nil, 0, err
			}
			steps = append(steps, vector.Step{Filter: x})
			columns = narrowed(columns, st.Out)
		case st.Kind == plan.StageProject && over.reaches(exprsOf(st.Project)...):
			next := make([]*vector.Expr, len(st.Project))
			for i, p := range st.Project {
				x, err := over.lower(p.Expr)
				if err != nil {
					return nil, 0, err
				}
				if x.Op == vector.OpConst {
					c := *x
					c.Computed, x = true, &c
				}
				next[i] = x
			}
			steps = append(steps, vector.Step{Project: next})
			columns = next
		default:
			return finishFuse(low, steps, columns, schema, n)
		}
		schema = st.Out
	}
	return finishFuse(low, steps, columns, schema, n)
}

func finishFuse(low lowering, steps []vector.Step, columns []*vector.Expr, out plan.Schema, n int) (*operators.Fused, int, error) {
	if n < 2 {
		return nil, 0, nil
	}
	s, err := vector.NewSteps(low.alloc, steps, columns, low.input)
	if err != nil {
		return nil, 0, err
	}
	return operators.NewFused(s), n, nil
}

// narrowed gives columns the types that a filter has left: one that it found not to be null is not nullable.
func narrowed(columns []*vector.Expr, out plan.Schema) []*vector.Expr {
	next := make([]*vector.Expr, len(columns))
	for i, c := range columns {
		next[i] = c
		if t := out.Columns[i].Type; c.Op == vector.OpColumn && c.Type.Nullable && !t.Nullable {
			next[i] = &vector.Expr{Op: vector.OpColumn, Column: c.Column, Type: t}
		}
	}
	return next
}

// reaches says whether expressions can be lowered where l.columns stand for their columns.
func (l lowering) reaches(exprs ...*plan.Expr) bool {
	for _, e := range exprs {
		if needsRows(e) && !l.plain(e) {
			return false
		}
		if !needsRows(e) && !l.reaches(e.Args...) {
			return false
		}
	}
	return true
}

// plain says whether every column that e reads is one of the input.
func (l lowering) plain(e *plan.Expr) bool {
	if e.Op == plan.ExprColumn && l.columns[e.Column].Op != vector.OpColumn {
		return false
	}
	for _, a := range e.Args {
		if !l.plain(a) {
			return false
		}
	}
	return true
}

// overInput is e with its columns as those of the input.
func (l lowering) overInput(e *plan.Expr) *plan.Expr {
	n := *e
	if e.Op == plan.ExprColumn {
		n.Column = l.columns[e.Column].Column
	}
	n.Args = make([]*plan.Expr, len(e.Args))
	for i, a := range e.Args {
		n.Args[i] = l.overInput(a)
	}
	return &n
}
