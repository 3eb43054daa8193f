package check

import (
	"github.com/headrace/headrace/dsl/plan"
)

// prune takes columns out of projections that nothing after them reads, so that what the source does not
// decode is never asked for. A column whose expression may give a row error stays: its errors count.
// The stages given are shared by every reader of a stream and are not changed.
func prune(source *plan.Topic, stages []plan.Stage) []plan.Stage {
	live := liveColumns(source, stages)
	out := make([]plan.Stage, len(stages))
	var moved []int // new place of each column of the stage before; nil: all stay
	for i, st := range stages {
		r := remap{moved: moved, done: map[*plan.Expr]*plan.Expr{}}
		switch st.Kind {
		case plan.StageFilter:
			st.Filter = r.expr(st.Filter)
			st.Out, st.OutKey = r.schema(st.Out), r.key(st.OutKey)
		case plan.StageKey, plan.StageChanges:
			st.Out, st.OutKey = r.schema(st.Out), r.key(st.OutKey)
		case plan.StageProject:
			var kept []plan.NamedExpr
			var cols []plan.Column
			places := make([]int, len(st.Project))
			for j, p := range st.Project {
				if !live[i][j] && !canFail(p.Expr) {
					places[j] = -1
					continue
				}
				places[j] = len(kept)
				kept = append(kept, plan.NamedExpr{Name: p.Name, Expr: r.expr(p.Expr)})
				cols = append(cols, st.Out.Columns[j])
			}
			st.Project = kept
			st.Out = plan.Schema{Columns: cols}
			moved = places
			st.OutKey = remap{moved: moved}.key(st.OutKey)
		case plan.StageAggregate:
			a := *st.Agg
			a.By = r.named(a.By)
			a.Slots = r.slots(a.Slots)
			st.Agg = &a
			moved = nil
		case plan.StageExplode:
			x := *st.Explode
			x.List = r.expr(x.List)
			st.Explode = &x
			st.Out, moved = r.extended(st.Out)
			st.OutKey = remap{moved: moved}.key(st.OutKey)
		case plan.StageTop:
			top := *st.Top
			top.Added = r.named(top.Added)
			top.Order = append([]plan.SortExpr(nil), top.Order...)
			for j := range top.Order {
				top.Order[j].Expr = r.expr(top.Order[j].Expr)
			}
			st.Out, moved = r.extended(st.Out)
			after := remap{moved: moved}
			top.Group = after.key(top.Group)
			if top.Window.Kind == 0 && !top.Update {
				top.Start, top.End = after.column(top.Start), after.column(top.End)
			}
			st.OutKey = after.key(st.OutKey)
			st.Top = &top
		case plan.StageOver:
			o := *st.Over
			o.Added, o.Slots = r.named(o.Added), r.slots(o.Slots)
			st.Out, moved = r.extended(st.Out)
			after := remap{moved: moved}
			o.Group, st.OutKey = after.key(o.Group), after.key(st.OutKey)
			st.Over = &o
		case plan.StageDedup:
			d := *st.Dedup
			d.Added = r.named(d.Added)
			st.Out, moved = r.extended(st.Out)
			after := remap{moved: moved}
			d.Group, st.OutKey = after.key(d.Group), after.key(st.OutKey)
			st.Dedup = &d
		case plan.StageLookup:
			l := *st.Lookup
			l.Key = make([]*plan.Expr, len(l.Key))
			for j, e := range st.Lookup.Key {
				l.Key[j] = r.expr(e)
			}
			st.Out, moved = r.extended(st.Out)
			after := remap{moved: moved, done: map[*plan.Expr]*plan.Expr{}}
			l.On, st.OutKey = after.expr(l.On), after.key(st.OutKey)
			st.Lookup = &l
		}
		out[i] = st
	}
	return out
}

// A remap moves the columns of expressions to their new places.
type remap struct {
	moved []int
	done  map[*plan.Expr]*plan.Expr // shared nodes stay shared
}

func (r remap) expr(e *plan.Expr) *plan.Expr {
	if e == nil || r.moved == nil {
		return e
	}
	if n, ok := r.done[e]; ok {
		return n
	}
	n := *e
	if e.Op == plan.ExprColumn {
		n.Column = r.moved[e.Column]
	}
	if len(e.Args) > 0 {
		n.Args = make([]*plan.Expr, len(e.Args))
		for i, a := range e.Args {
			n.Args[i] = r.expr(a)
		}
	}
	r.done[e] = &n
	return &n
}

func (r remap) named(list []plan.NamedExpr) []plan.NamedExpr {
	out := make([]plan.NamedExpr, len(list))
	for i, n := range list {
		out[i] = plan.NamedExpr{Name: n.Name, Expr: r.expr(n.Expr)}
	}
	return out
}

func (r remap) slots(list []plan.AggCall) []plan.AggCall {
	out := append([]plan.AggCall(nil), list...)
	for j := range out {
		out[j].Arg, out[j].By, out[j].Filter = r.expr(out[j].Arg), r.expr(out[j].By), r.expr(out[j].Filter)
	}
	return out
}

func (r remap) schema(s plan.Schema) plan.Schema {
	if r.moved == nil {
		return s
	}
	var out plan.Schema
	for i, c := range s.Columns {
		if r.moved[i] >= 0 {
			out.Columns = append(out.Columns, c)
		}
	}
	return out
}

// column is the new place of a column that stays.
func (r remap) column(i int) int {
	if r.moved == nil {
		return i
	}
	return r.moved[i]
}

// extended is schema for a stage that adds columns to those of its input. It also gives the places of the
// columns after it.
func (r remap) extended(s plan.Schema) (out plan.Schema, moved []int) {
	if r.moved == nil {
		return s, nil
	}
	for i, c := range s.Columns {
		if i < len(r.moved) && r.moved[i] < 0 {
			moved = append(moved, -1)
			continue
		}
		moved = append(moved, len(out.Columns))
		out.Columns = append(out.Columns, c)
	}
	return out, moved
}

// key moves the key's columns; a key that lost one is none.
func (r remap) key(key []int) []int {
	if r.moved == nil {
		return key
	}
	var out []int
	for _, k := range key {
		if r.moved[k] < 0 {
			return nil
		}
		out = append(out, r.moved[k])
	}
	return out
}

// liveColumns says, for the output of each stage, which columns something after it reads. The columns of
// the last stage are all written.
func liveColumns(source *plan.Topic, stages []plan.Stage) [][]bool {
	out := make([][]bool, len(stages))
	if len(stages) == 0 {
		return out
	}
	last := len(stages) - 1
	live := make([]bool, len(stages[last].Out.Columns))
	for i := range live {
		live[i] = true
	}
	for i := last; i >= 0; i-- {
		out[i] = live
		width := len(source.Schema.Columns)
		if i > 0 {
			width = len(stages[i-1].Out.Columns)
		}
		live = readBy(&stages[i], live, width)
	}
	return out
}

// readBy says which of width input columns a stage reads, when only the live ones of its output count.
func readBy(st *plan.Stage, live []bool, width int) []bool {
	in := make([]bool, width)
	switch st.Kind {
	case plan.StageFilter:
		copy(in, live)
		mark(in, st.Filter)
	case plan.StageProject:
		for j, p := range st.Project {
			if live[j] || canFail(p.Expr) {
				mark(in, p.Expr)
			}
		}
	case plan.StageKey, plan.StageChanges:
		copy(in, live)
		for _, k := range st.OutKey {
			in[k] = true
		}
	case plan.StageExplode:
		copy(in, live)
		mark(in, st.Explode.List)
	case plan.StageDedup:
		copy(in, live)
		readByGroups(in, st.Dedup.Grouping)
	case plan.StageOver:
		copy(in, live)
		readByGroups(in, st.Over.Grouping)
		readBySlots(in, st.Over.Slots)
	case plan.StageLookup:
		copy(in, live)
		for _, e := range st.Lookup.Key {
			mark(in, e)
		}
		mark(in, st.Lookup.On)
	case plan.StageTop:
		copy(in, live)
		readByGroups(in, st.Top.Grouping)
		for _, o := range st.Top.Order {
			mark(in, o.Expr)
		}
		if st.Top.Window.Kind == 0 && !st.Top.Update {
			in[st.Top.Start], in[st.Top.End] = true, true
		}
	case plan.StageAggregate:
		for _, b := range st.Agg.By {
			mark(in, b.Expr)
		}
		readBySlots(in, st.Agg.Slots)
	}
	return in
}

func readBySlots(in []bool, slots []plan.AggCall) {
	for _, s := range slots {
		mark(in, s.Arg)
		mark(in, s.By)
		mark(in, s.Filter)
	}
}

// readByGroups marks the input columns that a grouping reads.
func readByGroups(in []bool, g plan.Grouping) {
	for _, a := range g.Added {
		mark(in, a.Expr)
	}
	for _, c := range g.Group {
		if c < len(in) {
			in[c] = true
		}
	}
}

// neededColumns says which source columns are read: by expressions that are evaluated, by the event
// time, by what is written, or by a key that is kept.
func neededColumns(t *plan.Topic, stages []plan.Stage) []bool {
	need := make([]bool, len(t.Schema.Columns))
	if len(stages) == 0 {
		for i := range need {
			need[i] = true
		}
		return need
	}
	copy(need, readBy(&stages[0], liveColumns(t, stages)[0], len(need)))
	mark(need, t.Time.Expr)
	rekeyed := false
	for i := range stages {
		rekeyed = rekeyed || stages[i].Kind == plan.StageKey || stages[i].Kind == plan.StageAggregate
	}
	if !rekeyed || t.Table { // the key of a table's record is held against its columns
		for _, k := range t.Key {
			need[k] = true
		}
	}
	return need
}

// canFail says whether evaluating e may give a row error; such expressions are evaluated even if
// nothing reads their value.
func canFail(e *plan.Expr) bool {
	switch e.Op {
	case plan.ExprColumn, plan.ExprMeta, plan.ExprConst:
		return false
	case plan.ExprField:
		return canFail(e.Args[0])
	}
	return true
}

// mark sets the columns that e reads.
func mark(cols []bool, e *plan.Expr) {
	if e == nil {
		return
	}
	if e.Op == plan.ExprColumn && e.Column >= 0 && e.Column < len(cols) {
		cols[e.Column] = true
	}
	for _, a := range e.Args {
		mark(cols, a)
	}
}
