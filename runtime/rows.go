package runtime

import (
	"slices"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/dedup"
	"github.com/headrace/headrace/operators/rows"
	"github.com/headrace/headrace/operators/top"
)

// stageOptions are what the operators of a pipeline have in common.
type stageOptions struct {
	emitRows int    // rows that a stage gives away at a time, about
	topic    string // the source
	single   bool   // the source has one partition
}

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

// rowShape is what the rows of a stage look like that keeps them: hidden expressions are evaluated for each
// row when it comes, and what they give is not kept.
func rowShape(low lowering, input plan.Schema, g plan.Grouping, hidden []*plan.Expr, topic string, alloc memory.Allocator) (rows.Shape, error) {
	s := rows.Shape{Types: append(slices.Clone(low.input), typesOf(exprsOf(g.Added))...), Group: g.Group, Topic: topic, Alloc: alloc}
	for _, c := range input.Columns {
		s.Names = append(s.Names, c.Name)
	}
	for _, a := range g.Added {
		s.Names = append(s.Names, a.Name)
	}
	s.Kept = len(s.Types)
	s.Types = append(s.Types, typesOf(hidden)...)
	if exprs := append(exprsOf(g.Added), hidden...); len(exprs) > 0 {
		p, err := low.program(exprs)
		if err != nil {
			return s, err
		}
		s.Added = p
	}
	return s, nil
}

// buildTop makes the operator of a top stage.
func buildTop(low lowering, input plan.Schema, st *plan.Stage, o stageOptions, alloc memory.Allocator) (operators.Operator, error) {
	t := st.Top
	hidden := make([]*plan.Expr, len(t.Order))
	for i, o := range t.Order {
		hidden[i] = o.Expr
	}
	shape, err := rowShape(low, input, t.Grouping, hidden, o.topic, alloc)
	if err != nil {
		return nil, err
	}
	opts := top.Options{
		Rows: shape, N: t.N, Ties: t.Ties, Rank: t.Rank, Update: t.Update, Size: t.Window.Size, Every: t.Window.Every,
		Start: t.Start, End: t.End, EmitRows: o.emitRows,
	}
	for i, x := range t.Order {
		opts.Order = append(opts.Order, top.Order{Column: shape.Kept + i, Desc: x.Desc})
	}
	return top.New(opts)
}

// buildDedup makes the operator of a dedup stage.
func buildDedup(low lowering, input plan.Schema, st *plan.Stage, o stageOptions, alloc memory.Allocator) (operators.Operator, error) {
	shape, err := rowShape(low, input, st.Dedup.Grouping, nil, o.topic, alloc)
	if err != nil {
		return nil, err
	}
	return dedup.New(dedup.Options{Rows: shape, Within: st.Dedup.Within, Idle: st.Dedup.Idle, Last: st.Dedup.Last, Single: o.single, EmitRows: o.emitRows})
}

// account counts the rows of a stage that holds rows back and later gives each of them away, up or drops
// it. It answers false for other stages.
func (s *stageRun) account() bool {
	h, ok := s.op.(interface{ Held() int64 })
	if ok {
		n := s.counters
		n.Held = h.Held()
		n.Filtered = n.In - n.Out - n.Late - n.Failed - n.Held
	}
	return ok
}

// settle lets the stages give away what they must before their state is saved, when a step ends early.
func (c *chain) settle() {
	for _, s := range c.stages {
		if t, ok := s.op.(*top.Top); ok {
			t.Settle(s)
		}
	}
}
