package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// The stages that keep rows: top, dedup, over.

// ownClauses are the stages that read their clauses themselves.
var ownClauses = map[string]bool{"agg": true, "top": true, "dedup": true, "over": true, "lookup": true}

// grouping reads `by` or `per`: a column as it is groups; what is computed or has another name becomes a
// column of the row, too.
func (c *checker) grouping(f *flow, cl *syntax.Clause, word string) (g plan.Grouping, good bool) {
	if cl == nil {
		return g, true
	}
	good = true
	what := "`" + cl.Word + "`"
	for i := range cl.Items {
		it := &cl.Items[i]
		n, ok := c.namedItem(it, f.scope(), what)
		if !ok {
			good = false
			continue
		}
		at := exprSpan(it.Value)
		if why := keyable(n.Expr.Type); why != "" {
			x := c.err("E0406", at, "rows cannot be grouped by %s", TypeString(n.Expr.Type)).because("%s", why)
			if n.Expr.Type.Kind.Float() {
				x.fix("make it a decimal or a string: `%s %s = dec(%s, 18, 6)`", cl.Word, n.Name+"_exact", c.src.slice(at)).
					replace(c.itemSpan(it), n.Name+"_exact = dec("+c.src.slice(at)+", 18, 6)")
			} else {
				x.fix("group by one of its parts")
			}
			good = false
			continue
		}
		col := -1
		if n.Expr.Op == plan.ExprColumn && f.cols[n.Expr.Column].Name == n.Name {
			col = n.Expr.Column
		} else {
			if columnIndex(f.cols, n.Name) >= 0 {
				x := c.err("E0108", c.itemSpan(it), "there would be two columns `%s`", n.Name).
					because("`%s` adds what it groups by to the columns that there are", word)
				if it.Name == nil {
					x.fix("give it another name: `%s_2 = %s`", n.Name, oneLine(it.Value.Text)).
						replace(span{at.start, at.start}, n.Name+"_2 = ")
				} else {
					x.fix("give it another name: `%s_2`", n.Name).replace(c.nameSpan(*it.Name), n.Name+"_2")
				}
				good = false
				continue
			}
			col = len(f.cols) + len(g.Added)
			g.Added = append(g.Added, n)
		}
		for _, k := range g.Group {
			if k == col {
				c.err("E0108", at, "`%s` groups twice", n.Name).because("the second one would tell no rows apart").fix("name it once")
				good = false
			}
		}
		g.Group = append(g.Group, col)
	}
	names := map[string]bool{}
	for _, a := range g.Added {
		if names[a.Name] {
			c.err("E0108", c.wordSpan(cl.Pos), "there would be two columns `%s`", a.Name).because("later stages find a column by its name").fix("give one of them another name")
			good = false
		}
		names[a.Name] = true
	}
	return g, good
}

// columnsWith are the columns of the row with those that a grouping adds.
func columnsWith(cols []plan.Column, g plan.Grouping) []plan.Column {
	out := append([]plan.Column(nil), cols...)
	for _, a := range g.Added {
		out = append(out, column(a.Name, a.Expr))
	}
	return out
}

// regroups says whether rows come under another key.
func regroups(f *flow, group []int) bool {
	if f.lost != nil || len(group) != len(f.key) {
		return true
	}
	for i, k := range group {
		if f.key[i] != k {
			return true
		}
	}
	return false
}

// pushMerged appends a stage whose rows come from several partitions in one order.
func (f *flow) pushMerged(s plan.Stage) {
	f.push(s)
	f.stateful, f.judges = true, true
	f.meta = metaTime
	f.border = borderColumn{}
}

// maxTopRows bounds the rows that a group keeps.
const maxTopRows = 10_000

// top checks `top N [ties] by ord, .. per .. window ..`.
func (c *checker) top(f *flow, st *syntax.Stage) {
	clauses := c.clauses(st, "per", "window", "rank", "until", "emit", "state", "late")
	stage := plan.Stage{Kind: plan.StageTop, Word: "top", Pos: c.src.pos(int(st.Pos))}
	t := &plan.Top{Ties: st.Ties}
	good := c.topWindow(f, st, clauses, t)
	if st.N != nil {
		n, ok := c.intValue(st.N, span{int(st.N.Pos), int(st.N.Pos) + 1})
		if ok && (n < 1 || n > maxTopRows) {
			c.err("E0404", span{int(st.N.Pos), int(st.N.Pos) + 1}, "`top` keeps 1 to %d rows of a group, not %d", maxTopRows, n).
				because("what a group keeps must be bounded").fix("`top 10 by ..`")
			ok = false
		}
		t.N, good = int(n), good && ok
	}
	for i := range st.Orders {
		o := &st.Orders[i]
		e := c.expression(&o.Value, f.scope())
		if e == nil {
			good = false
			continue
		}
		switch e.Type.Kind {
		case scalar.KindList, scalar.KindMap, scalar.KindStruct, scalar.KindNull:
			c.err("E0444", exprSpan(&o.Value), "rows cannot be ordered by %s", TypeString(e.Type)).because("its values have no order").fix("order by one of its parts")
			good = false
		}
		t.Order = append(t.Order, plan.SortExpr{Expr: e, Desc: o.Desc})
	}
	g, ok := c.grouping(f, clauses["per"], "top")
	t.Grouping, good = g, good && ok
	if cl := clauses["late"]; cl != nil {
		c.rowsLate(f, cl, "top")
	}
	cols := columnsWith(f.cols, g)
	var added []syntax.Name
	if t.Window.Kind != 0 {
		for _, n := range []string{windowStart, windowEnd} {
			if columnIndex(cols, n) >= 0 {
				c.err("E0108", c.wordSpan(st.Pos), "there would be two columns `%s`", n).
					because("`top .. window` gives the window of a row, and the row has one").
					fix("use the window that the rows have: `per window`, or rename the column")
				good = false
			}
			cols = append(cols, plan.Column{Name: n, Input: n, Type: scalar.TypeTime})
		}
	}
	if cl := clauses["rank"]; cl != nil && cl.Name != nil {
		added = append(added, *cl.Name)
		if columnIndex(cols, cl.Name.Text) >= len(f.cols) {
			c.err("E0108", c.nameSpan(*cl.Name), "there would be two columns `%s`", cl.Name.Text).because("later stages find a column by its name").fix("give the rank another name")
			good = false
		}
		t.Rank = true
		cols = append(cols, plan.Column{Name: cl.Name.Text, Input: cl.Name.Text, Type: scalar.TypeInt64})
	}
	if f.unknown || !good || !c.addedNames(f, added, "top") || !c.affordable(f, st, len(cols)) {
		f.unknown = true
		return
	}
	stage.Top, stage.Out, stage.OutKey = t, plan.Schema{Columns: cols}, f.key
	lost := f.lost
	if len(g.Group) > 0 {
		stage.OutKey, stage.Shuffle, lost = g.Group, regroups(f, g.Group), nil
	} else {
		stage.Shuffle = true // the rows of all partitions meet
	}
	if t.Update {
		lost = nil
		stage.OutKey = append(append([]int(nil), g.Group...), len(cols)-1)
		f.stream = plan.StreamTable
		f.updates = &updating{why: "`top` gives the best rows so far", at: c.wordSpan(st.Pos)}
	}
	f.pushMerged(stage)
	f.lost = lost
}

// topWindow finds what bounds the state of `top`.
func (c *checker) topWindow(f *flow, st *syntax.Stage, clauses map[string]*syntax.Clause, t *plan.Top) bool {
	per, win := clauses["per"], clauses["window"]
	if c.topTable(st, clauses) {
		t.Update = true
		if !st.Ties && clauses["rank"] != nil {
			return true
		}
		c.notBuilt("top", "a table of the best rows by their own keys", c.wordSpan(st.Pos), "only one by rank, without `ties`, is").
			fix("say `rank place`, without `ties`")
		return false
	}
	for _, w := range []string{"until", "state"} {
		if cl := clauses[w]; cl != nil {
			c.notBuilt("top", "`top` with `"+w+"`", span{int(cl.Pos), int(cl.End)}, "the best rows so far, in a table").
				fix("give it a window: `window tumble(1m)`, or `per window` after an aggregate").replace(c.clauseSpan(cl), windowIfNone(win, per))
			return false
		}
	}
	if cl := clauses["emit"]; cl != nil && cl.Emit != nil && cl.Emit.Word != "close" {
		c.notBuilt("top", "`top` that re-emits", span{int(cl.Pos), int(cl.End)}, "the best rows so far, in a table").
			fix("leave it out: the best rows leave when the window closes").replace(c.clauseSpan(cl), windowIfNone(win, per))
		return false
	}
	byRow := per != nil && per.PerWindow
	switch {
	case win != nil && byRow:
		c.err("E0209", span{int(win.Pos), int(win.End)}, "`top` has two windows").because("`per window` is the one that the rows have").
			fix("leave one of them out").replace(c.clauseSpan(win), "")
		return false
	case byRow:
		t.Start, t.End = columnIndex(f.cols, windowStart), columnIndex(f.cols, windowEnd)
		if f.unknown {
			return false
		}
		if !isTime(f.cols, t.Start) || !isTime(f.cols, t.End) {
			c.err("E0209", c.wordSpan(per.Pos), "the rows have no window").
				because("`per window` needs the columns `%s` and `%s`, times that are never null, as an aggregate gives them", windowStart, windowEnd).
				fix("give `top` a window: `window tumble(1m)`")
			return false
		}
		return true
	case win == nil:
		c.err("E0207", c.wordSpan(st.Pos), "this stage would keep state forever").
			because("a better row may always come, so no row would ever be final").
			fix("add a window: `window tumble(1m)`, or `per window` after an aggregate").
			replace(span{int(st.End), int(st.End)}, " window tumble(1m)")
		return false
	}
	var a plan.Aggregate
	if !c.aggWindow(f, st, clauses, &a) {
		return false
	}
	at := span{int(win.Window.Pos), int(win.Window.End)}
	if a.OnAppend || a.Window.Kind != plan.WindowTumble && a.Window.Kind != plan.WindowHop {
		c.notBuilt("top", "`top` in this window", at, "only tumble and hop of event time are").
			fix("`tumble(1m)`").replace(span{int(win.Pos), int(win.End)}, "window tumble(1m)")
		return false
	}
	t.Window = a.Window
	return true
}

// topTable says whether `top` makes a table of the best rows so far, for good.
func (c *checker) topTable(st *syntax.Stage, clauses map[string]*syntax.Clause) bool {
	keep, emit, per := clauses["state"], clauses["emit"], clauses["per"]
	return keep != nil && keep.Mode == "forever" && emit != nil && emit.Emit != nil && emit.Emit.Word == "update" &&
		clauses["window"] == nil && clauses["until"] == nil && (per == nil || !per.PerWindow)
}

func isTime(cols []plan.Column, i int) bool {
	return i >= 0 && cols[i].Type.Kind == scalar.KindTime && !cols[i].Type.Nullable
}

func windowIfNone(win, per *syntax.Clause) string {
	if win != nil || per != nil && per.PerWindow {
		return ""
	}
	return " window tumble(1m)"
}

// rowsLate reads the late clause of a stage that keeps rows.
func (c *checker) rowsLate(f *flow, cl *syntax.Clause, word string) {
	if cl.Mode == "drop" || cl.Mode == "to" {
		c.aggLate(f, cl, true, &plan.Aggregate{})
		return
	}
	c.err("E0402", c.wordSpan(cl.Pos), "`%s` takes no `late accept`", word).because("what has left stays as it is").
		fix("`late drop`, or `late to x`").replace(c.clauseSpan(cl), " late drop")
}

func writeGrouping(b *strings.Builder, g plan.Grouping, out []plan.Column, names []string) {
	for _, a := range g.Added {
		b.WriteString("  adds " + a.Name + " = ")
		writeExpr(b, a.Expr, names)
		b.WriteString("\n")
	}
	if len(g.Group) > 0 {
		b.WriteString("  group " + keyNames(out, g.Group) + "\n")
	}
}

func writeTop(b *strings.Builder, st *plan.Stage, names []string) {
	t, out := st.Top, st.Out.Columns
	fmt.Fprintf(b, "top %d ties %v", t.N, t.Ties)
	switch {
	case t.Update:
		b.WriteString(" update")
	case t.Window.Kind != 0:
		b.WriteString(" " + windowCanonical(t.Window))
	default:
		fmt.Fprintf(b, " window (%s, %s)", out[t.Start].Name, out[t.End].Name)
	}
	if t.Rank {
		b.WriteString(" rank " + out[len(out)-1].Name)
	}
	b.WriteString("\n")
	for _, o := range t.Order {
		b.WriteString("  by ")
		writeExpr(b, o.Expr, names)
		if o.Desc {
			b.WriteString(" desc")
		}
		b.WriteString("\n")
	}
	writeGrouping(b, t.Grouping, out, names)
}

// dedup checks `dedup by .. within D keep first`.
func (c *checker) dedup(f *flow, st *syntax.Stage) {
	clauses := c.clauses(st, "by", "within", "state", "keep", "late")
	d := &plan.Dedup{}
	good := true
	if cl := clauses["keep"]; cl != nil && cl.Mode == "last" {
		d.Last = true
		for _, w := range []string{"within", "state"} {
			if x := clauses[w]; x != nil && x.Mode != "forever" {
				at := span{int(x.Pos), int(x.End)}
				c.notBuilt("dedup", "`keep last` with `"+strings.TrimSpace(w+" "+x.Mode)+"`", at, "a row of a table that goes after a while").
					fix("`state forever`, or keep the first").replace(at, "state forever")
				d.Last = false
			}
		}
		good = d.Last
	}
	if clauses["by"] == nil {
		c.err("E0445", c.wordSpan(st.Pos), "`%s` needs `by`", st.Word).because("it says which rows are repetitions of each other").
			fix("name what tells rows apart: `dedup by id within 24h`")
		good = false
	}
	span, idle, ok := c.keeps(st, clauses["within"], clauses["state"], "within 24h", "a key that came once would be remembered for good")
	d.Within, d.Idle, good = span, idle, good && ok
	g, ok := c.grouping(f, clauses["by"], "dedup")
	d.Grouping, good = g, good && ok
	if cl := clauses["late"]; cl != nil {
		c.rowsLate(f, cl, "dedup")
	}
	cols := columnsWith(f.cols, g)
	if f.unknown || !good || !c.affordable(f, st, len(cols)) {
		f.unknown = true
		return
	}
	if d.Last {
		f.stream = plan.StreamTable
		f.updates = &updating{why: "`dedup` keeps the last row of each key", at: c.wordSpan(st.Pos)}
	}
	f.pushMerged(plan.Stage{
		Kind: plan.StageDedup, Word: "dedup", Pos: c.src.pos(int(st.Pos)), Dedup: d,
		Out: plan.Schema{Columns: cols}, OutKey: g.Group, Shuffle: regroups(f, g.Group),
	})
	f.lost = nil
}

// keeps reads how long a stage keeps what it has for a key: `within D` from the first row on, `state ttl D`
// from the last, `state forever` (zero). One of them has to be there; usual is offered.
func (c *checker) keeps(st *syntax.Stage, within, keep *syntax.Clause, usual, why string) (d time.Duration, idle, ok bool) {
	switch {
	case within != nil && keep != nil:
		c.err("E0402", c.wordSpan(keep.Pos), "`%s` takes `within` or `state`, not both", st.Word).because("each says when a key is forgotten").
			fix("leave one of them out").replace(c.clauseSpan(keep), "")
	case within != nil:
		if within.To != nil || within.From == nil {
			c.err("E0402", c.wordSpan(within.Pos), "`within` of `%s` is one span", st.Word).because("it counts from the row before").fix("`within 24h`").
				replace(span{int(within.Pos), int(within.End)}, "within 24h")
			return 0, false, false
		}
		n, good := c.durationValue(within.From)
		return time.Duration(n), false, good && c.aboveZero(within, n, "within 24h")
	case keep == nil:
		c.err("E0207", c.wordSpan(st.Pos), "this stage would keep state forever").because("%s", why).
			fix("add `%s`, or `state ttl 7d`, or say `state forever` if that is meant", usual).
			replace(span{int(st.Pos) + len(st.Word), int(st.Pos) + len(st.Word)}, " "+usual)
	case keep.Mode == "forever":
		return 0, false, true
	case keep.Mode == "ttl":
		n, good := c.durationValue(keep.Duration)
		return time.Duration(n), true, good && c.aboveZero(keep, n, "state ttl 7d")
	default:
		c.err("E0402", c.wordSpan(keep.Pos), "`%s` takes no `state max`", st.Word).because("only `match` has runs").
			fix("`state ttl 7d`").replace(span{int(keep.Pos), int(keep.End)}, "state ttl 7d")
	}
	return 0, false, false
}

func (c *checker) aboveZero(cl *syntax.Clause, n int64, usual string) bool {
	if n > 0 {
		return true
	}
	at := span{int(cl.Pos), int(cl.End)}
	c.err("E0404", at, "`%s` needs a span above zero", cl.Word).because("nothing would be remembered").fix("`%s`", usual).replace(at, usual)
	return false
}
