package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// maxOverRows bounds the rows that a frame, or prev, looks back.
const maxOverRows = 10_000

// An overScope is what the right side of `over .. set` sees beside aggregates: the columns of the row.
type overScope struct {
	cols   []plan.Column
	before bool  // the frame may be empty
	placed *span // the first call that looks past the frame: prev, delta, row_number, rank
}

// overFunctions are those that only `over` has, with the arguments that they take.
var overFunctions = map[string]aggregateKind{"row_number": {0, 0}, "rank": {0, 0}, "prev": {1, 2}, "delta": {1, 1}}

// overCall makes a slot of a call of one of them.
func (w *walk) overCall(n ast.Node, name string, nodes []ast.Node, s *scope) typed {
	a := s.agg
	if kind := overFunctions[name]; len(nodes) < kind.min || len(nodes) > kind.max {
		takes := argCount(kind)
		if name == "prev" {
			takes = "a value, and how many rows before"
		}
		form := map[string]string{"prev": "`prev(x)`, or `prev(x, 2)`", "delta": "`delta(x)`"}[name]
		if form == "" {
			form = "`" + name + "()`"
		}
		w.c.err("E0111", w.c.nodeSpan(n), "`%s` takes %s, not %d", name, takes, len(nodes)).because("it looks at the rows of a key").fix("%s", form)
		return failed
	}
	if s.depth > 0 {
		w.c.err("E0127", w.c.nodeSpan(n), "`%s` cannot stand inside a closure", name).
			because("a closure sees elements of a list, not rows").fix("take it out")
		return failed
	}
	if a.over.placed == nil {
		at := w.c.nodeSpan(n)
		a.over.placed = &at
	}
	call := plan.AggCall{Func: name, Type: scalar.TypeInt64}
	if len(nodes) == 0 {
		return w.slot(n, call, a)
	}
	call.Func = "prev"
	in := *a.in
	in.inAgg, in.depth, in.elems, in.vars = name, 0, nil, nil
	arg := w.check(nodes[0], &in)
	if !arg.ok() {
		return failed
	}
	if arg.typ().Kind == scalar.KindNull {
		w.err("E0118", nodes[0], "`%s(nil)` looks at nothing", name).because("nil is the same in every row").fix("give it a column")
		return failed
	}
	back := int64(1)
	if len(nodes) == 2 {
		p := w.check(nodes[1], &in)
		if !p.ok() {
			return failed
		}
		if p.e.Op != plan.ExprConst || !p.typ().Kind.Integer() {
			w.err("E0119", nodes[1], "the second argument of `prev` must be a constant whole number").
				because("what is kept of a key is known before any row comes").fix("`prev(x, 2)`")
			return failed
		}
		v, code := scalar.Cast(p.e.Value, p.typ(), scalar.TypeInt64)
		if code != scalar.CodeNone || v.I < 1 || v.I > maxOverRows {
			w.err("E0404", nodes[1], "`prev` looks 1 to %d rows back, not %s", maxOverRows, w.text(nodes[1])).
				because("what is kept of a key is bounded").fix("`prev(x, 2)`")
			return failed
		}
		back = v.I
	}
	if w.tooLarge(n, arg.e) {
		return failed
	}
	setText(arg.e, w.text(nodes[0]), map[*plan.Expr]bool{})
	call.Arg, call.Type = arg.e, arg.typ().Null()
	call.Param = &plan.Expr{Op: plan.ExprConst, Type: scalar.TypeInt64, Value: scalar.Int(back), Text: itoa(int(back)), Pos: w.pos(n)}
	before := w.slot(n, call, a)
	if name != "delta" {
		return before
	}
	switch k := arg.typ().Kind; {
	case k.Numeric(), k == scalar.KindTime, k == scalar.KindDuration:
	default:
		w.err("E0111", nodes[0], "`delta` needs a number, a time or a duration, this is %s", TypeString(arg.typ())).
			because("it is the difference to the row before").fix("compare with the row before: `%s != prev(%s)`", w.text(nodes[0]), w.text(nodes[0]))
		return failed
	}
	now := w.check(nodes[0], s)
	if !now.ok() {
		return failed
	}
	return w.operator(n, "-", binaryOps["-"], now, before)
}

// over checks `over by .. rows N set a = ..`.
func (c *checker) over(f *flow, st *syntax.Stage) {
	clauses := c.clauses(st, "by", "rows", "range", "state", "late")
	o := &plan.Over{}
	good := c.overFrame(st, clauses, o)
	g, ok := c.grouping(f, clauses["by"], "over")
	o.Grouping, good = g, good && ok
	if cl := clauses["late"]; cl != nil {
		c.rowsLate(f, cl, "over")
	}
	cols := columnsWith(f.cols, g)
	in := f.scope()
	a := &aggScope{in: in, keys: map[string]int{}, over: &overScope{cols: cols, before: o.Before}}
	outer := &scope{agg: a, where: in.where, unknown: in.unknown, meta: metaNone, facts: in.facts}
	made, at := map[string]*plan.Expr{}, map[string]span{}
	var order []string
	for i := range st.Assigns {
		as := &st.Assigns[i]
		name := as.Name.Text
		if _, twice := at[name]; twice {
			c.err("E0108", c.nameSpan(as.Name), "`%s` is set twice", name).because("all of a `set` happens at once, so neither would be last").fix("keep one of them")
			good = false
			continue
		}
		at[name] = c.nameSpan(as.Name)
		e := c.expression(&as.Value, outer)
		if e == nil || !c.storable(e, name, exprSpan(&as.Value)) {
			good = false
			continue
		}
		made[name], order = e, append(order, name)
	}
	if f.unknown || !good || !c.overBounds(st, clauses, a, o) || !c.affordable(f, st, len(cols)+len(a.slots)) {
		f.unknown = true
		return
	}
	o.Slots = a.slots
	row := append([]plan.Column(nil), cols...)
	for i, s := range a.slots {
		name := "$" + itoa(i)
		row = append(row, plan.Column{Name: name, Input: name, Type: s.Type, Members: memberColumns(s.Type)})
	}
	stage := plan.Stage{Kind: plan.StageOver, Word: "over", Pos: c.src.pos(int(st.Pos)), Over: o, Out: plan.Schema{Columns: row}, OutKey: f.key, Shuffle: true}
	lost := f.lost
	if len(g.Group) > 0 {
		stage.OutKey, stage.Shuffle, lost = g.Group, regroups(f, g.Group), nil
	}
	f.pushMerged(stage)
	f.lost = lost

	var out []plan.NamedExpr
	for i := range cols {
		e := made[cols[i].Name]
		if e == nil {
			e = passthrough(row, i, stage.Pos)
		}
		out = append(out, plan.NamedExpr{Name: cols[i].Name, Expr: e})
	}
	for _, name := range order {
		if columnIndex(cols, name) < 0 {
			out = append(out, plan.NamedExpr{Name: name, Expr: made[name]})
		}
	}
	set := *st
	set.Word = "set"
	c.project(f, &set, out, func(col string) span {
		if p, ok := at[col]; ok {
			return p
		}
		return c.wordSpan(st.Pos)
	})
}

// overFrame reads the frame.
func (c *checker) overFrame(st *syntax.Stage, clauses map[string]*syntax.Clause, o *plan.Over) bool {
	rows, within := clauses["rows"], clauses["range"]
	if rows != nil && within != nil {
		c.err("E0446", c.wordSpan(within.Pos), "`over` has two frames").because("`rows` counts rows, `range` is a span of event time").
			fix("leave one of them out").replace(c.clauseSpan(within), "")
		return false
	}
	if rows != nil && rows.Int != nil {
		at := span{int(rows.Pos), int(rows.End)}
		n, ok := c.intValue(rows.Int, at)
		if ok && (n < 1 || n > maxOverRows) {
			c.err("E0404", at, "`rows` takes 1 to %d rows, not %d", maxOverRows, n).because("what is kept of a key is bounded").
				fix("`rows 10`").replace(at, "rows 10")
			ok = false
		}
		o.Rows, o.Before = int(n), rows.Before
		return ok
	}
	if within != nil && within.From != nil {
		n, ok := c.durationValue(within.From)
		o.Range = time.Duration(n)
		return ok && c.aboveZero(within, n, "range 1h")
	}
	return true
}

// overBounds requires a frame where something is folded, and a bound of the state.
func (c *checker) overBounds(st *syntax.Stage, clauses map[string]*syntax.Clause, a *aggScope, o *plan.Over) bool {
	word := c.wordSpan(st.Pos)
	after := span{word.end, word.end}
	if by := clauses["by"]; by != nil {
		after = span{int(by.End), int(by.End)}
	}
	if o.Rows == 0 && o.Range == 0 {
		for _, s := range a.slots {
			if _, ok := aggregates[s.Func]; ok {
				c.err("E0446", word, "`over` needs a frame").because("`%s` has to know over which rows of the key", s.Func).
					fix("add `rows 10`, the row and the 9 before it, or `range 1h`").replace(after, " rows 10")
				return false
			}
		}
	}
	keep := clauses["state"]
	if keep == nil {
		switch {
		case clauses["by"] == nil: // one key
			o.Forever = true
			return true
		case o.Range > 0 && a.over.placed == nil:
			return true
		}
		x := c.err("E0207", word, "this stage would keep state forever")
		if o.Range > 0 {
			x.because("`%s` looks past the range, at rows of any age", c.src.slice(*a.over.placed))
		} else {
			x.because("the last rows of every key would be kept for good")
		}
		end := after
		for _, w := range []string{"rows", "range"} {
			if cl := clauses[w]; cl != nil {
				end = span{int(cl.End), int(cl.End)}
			}
		}
		x.fix("add `state ttl 7d`, or say `state forever` if that is meant").replace(end, " state ttl 7d")
		return false
	}
	ttl, _, ok := c.keeps(st, nil, keep, "state ttl 7d", "")
	o.TTL, o.Forever = ttl, ttl == 0
	return ok
}

func writeOver(b *strings.Builder, st *plan.Stage, names []string) {
	o := st.Over
	fmt.Fprintf(b, "over rows %d before %v range %s ttl %s forever %v\n", o.Rows, o.Before, durationText(int64(o.Range)), durationText(int64(o.TTL)), o.Forever)
	writeGrouping(b, o.Grouping, st.Out.Columns, names)
	for i, s := range o.Slots {
		fmt.Fprintf(b, "  $%d = ", i)
		writeSlot(b, s, names)
		b.WriteString("\n")
	}
}
