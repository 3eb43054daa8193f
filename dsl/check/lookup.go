package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// lookup checks `lookup [left] TABLE as t on EXPR latest`.
func (c *checker) lookup(f *flow, st *syntax.Stage) {
	clauses := c.clauses(st, "latest", "as")
	if st.Source == nil || st.As == nil {
		f.unknown = true
		return
	}
	good := c.lookupTime(st, clauses)
	g := c.from(*st.Source)
	if g.unknown || f.unknown {
		f.unknown = true
		return
	}
	table := g.source
	if !table.Table || len(g.stages) > 0 {
		c.err("E0451", c.nameSpan(*st.Source), "`lookup` reads a table, and `%s` is none", st.Source.Text).
			because("only a table has one row for each key, the latest").
			fix("name a table: `table x { .. } with key (..)`, or `table x = from ..`")
		f.unknown = true
		return
	}
	row := scalar.StructType()
	for _, col := range table.Schema.Columns {
		row.Fields = append(row.Fields, scalar.Field{Name: col.Name, Type: col.Type})
	}
	if !c.addedNames(f, []syntax.Name{*st.As}, "lookup") || !c.affordable(f, st, len(f.cols)+1) {
		f.unknown = true
		return
	}
	joined := func(t scalar.Type) []plan.Column {
		return append(append([]plan.Column(nil), f.cols...), plan.Column{Name: st.As.Text, Input: st.As.Text, Type: t, Members: memberColumns(t)})
	}
	s := f.scope()
	s.cols, s.where = joined(row), "the row with `"+st.As.Text+"`"
	on := c.expression(st.Expr, s)
	if on == nil {
		f.unknown = true
		return
	}
	l := &plan.Lookup{Table: table, Left: st.Left, Text: oneLine(st.Expr.Text)}
	if !c.lookupOn(l, st, on, len(f.cols)) || !good {
		f.unknown = true
		return
	}
	where := f.where
	f.push(plan.Stage{
		Kind: plan.StageLookup, Word: "lookup", Pos: c.src.pos(int(st.Pos)), Lookup: l,
		Out: plan.Schema{Columns: joined(row.OrNull(st.Left))}, OutKey: f.key,
	})
	f.where = where
	f.stateful = true
}

// lookupTime judges which version of a row is meant.
func (c *checker) lookupTime(st *syntax.Stage, clauses map[string]*syntax.Clause) bool {
	if cl := clauses["as"]; cl != nil {
		c.notBuilt("lookup", "`lookup .. as of`", span{int(cl.Pos), int(cl.End)}, "the row as it was at a time").
			fix("`latest`: the row as it is when the left one comes").replace(span{int(cl.Pos), int(cl.End)}, "latest")
		return false
	}
	if clauses["latest"] == nil && st.Expr != nil && st.Expr.Node != nil {
		end := int(st.Expr.End)
		c.err("E0453", c.wordSpan(st.Pos), "`lookup` does not say which version of a row it finds").
			because("a row of a table changes, and the left row may be older").
			fix("`latest`: the row as it is when the left one comes").replace(span{end, end}, " latest")
		return false
	}
	return true
}

// lookupOn takes the condition apart: an equality for each column of the table's key, and the rest. The
// row of the table is column alias.
func (c *checker) lookupOn(l *plan.Lookup, st *syntax.Stage, on *plan.Expr, alias int) bool {
	at := exprSpan(st.Expr)
	table := l.Table
	if on.Type.Kind != scalar.KindBool {
		c.err("E0112", at, "`on` needs a bool, this is %s", TypeString(on.Type)).
			because("it says which rows belong together").fix("compare the key: `%s.%s == ..`", st.As.Text, table.Schema.Columns[table.Key[0]].Name)
		return false
	}
	l.Key = make([]*plan.Expr, len(table.Key))
	var rest []*plan.Expr
	for _, e := range conjuncts(on, nil) {
		if k, with := c.keyEquality(st.Expr, e, table, alias); with != nil && l.Key[k] == nil {
			l.Key[k] = with
		} else {
			rest = append(rest, e)
		}
	}
	for k, col := range table.Key {
		if l.Key[k] != nil {
			continue
		}
		name, t := table.Schema.Columns[col].Name, TypeString(table.Schema.Columns[col].Type)
		c.err("E0452", at, "`on` does not say what `%s.%s` equals", st.As.Text, name).
			because("a row of `%s` is found by its whole key, %s: each column by itself on one side of `==`, and a value of its type that is made of the left row on the other", table.Ident, keyNames(table.Schema.Columns, table.Key)).
			fix("`%s.%s == x`, where x is %s, joined to the other conditions with `and`", st.As.Text, name, strings.TrimSuffix(t, "?"))
		return false
	}
	for _, e := range rest {
		if e.Type.Nullable {
			c.err("E0112", at, "`on` needs a bool, and a part of this is bool?").
				because("it may be null: only what is compared with the key of the table may be").
				fix("say what null means: `(.. ?? false)`")
			return false
		}
		if l.On == nil {
			l.On = e
		} else {
			l.On = &plan.Expr{Op: plan.ExprAnd, Type: scalar.TypeBool, Args: []*plan.Expr{l.On, e}, Text: on.Text, Pos: on.Pos}
		}
	}
	return true
}

// conjuncts appends the parts that `and` joins.
func conjuncts(e *plan.Expr, dst []*plan.Expr) []*plan.Expr {
	if e.Op != plan.ExprAnd {
		return append(dst, e)
	}
	for _, a := range e.Args {
		dst = conjuncts(a, dst)
	}
	return dst
}

// keyEquality is the part of the key that e compares with a value of its type made of the left row, or one that widens to
// it; with is nil if it does not.
func (c *checker) keyEquality(x *syntax.Expr, e *plan.Expr, table *plan.Topic, alias int) (k int, with *plan.Expr) {
	if e.Op != plan.ExprCall || e.Func != "eq" || len(e.Args) != 2 {
		return 0, nil
	}
	for i, col := range e.Args {
		y := e.Args[1-i]
		if col.Op != plan.ExprField || col.Args[0].Op != plan.ExprColumn || col.Args[0].Column != alias || reads(y, alias) {
			continue
		}
		k := slices.Index(table.Key, col.Field)
		if k < 0 {
			continue
		}
		t := table.Schema.Columns[col.Field].Type
		if common, ok := scalar.Common(t, y.Type); !ok || !common.Same(t) {
			continue
		}
		w := &walk{c: c, budget: new(int)}
		if y, ok := w.cast(x.Node, y, t); ok {
			setText(y, strings.TrimSpace(x.Text), map[*plan.Expr]bool{})
			return k, y
		}
	}
	return 0, nil
}

// reads says whether e reads a column.
func reads(e *plan.Expr, column int) bool {
	if e.Op == plan.ExprColumn && e.Column == column {
		return true
	}
	for _, a := range e.Args {
		if reads(a, column) {
			return true
		}
	}
	return false
}

func writeLookup(b *strings.Builder, st *plan.Stage, names []string) {
	l, out := st.Lookup, st.Out.Columns
	t := l.Table
	fmt.Fprintf(b, "lookup left %v table %q as %s format %d derived %v key %s\n", l.Left, t.Name, out[len(out)-1].Name, t.Format, t.Derived, keyNames(t.Schema.Columns, t.Key))
	if t.Pattern != "" {
		fmt.Fprintf(b, "  pattern %q\n", t.Pattern)
	}
	for _, col := range t.Schema.Columns {
		b.WriteString("  ")
		writeColumn(b, col)
	}
	fmt.Fprintf(b, "  time append %v future %d", t.Time.Append, t.Time.Future) // what comes from the future is invalid
	if t.Time.Expr != nil {
		b.WriteString(" ")
		writeExpr(b, t.Time.Expr, columnNames(t.Schema.Columns))
	}
	b.WriteString("\n")
	for k, e := range l.Key {
		b.WriteString("  " + t.Schema.Columns[t.Key[k]].Name + " = ")
		writeExpr(b, e, names)
		b.WriteString("\n")
	}
	if l.On != nil {
		b.WriteString("  on ")
		writeExpr(b, l.On, columnNames(out))
		b.WriteString("\n")
	}
}
