package check

import (
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// boolExpr checks a condition that must never be null.
func (c *checker) boolExpr(x *syntax.Expr, s *scope, what string) *plan.Expr {
	t := c.exprTyped(x, s)
	if !t.ok() {
		return nil
	}
	budget := maxVisits
	w := &walk{c: c, durations: x.Durations, budget: &budget}
	if !w.condition(x.Node, t, what, s) {
		return nil
	}
	return t.e
}

func (c *checker) where(f *flow, st *syntax.Stage) {
	s := f.scope()
	e := c.boolExpr(st.Expr, s, "`where`")
	if st.Expr == nil || st.Expr.Node == nil {
		return
	}
	w := &walk{c: c}
	implied := w.implied(st.Expr.Node, true, s)
	cols := append([]plan.Column(nil), f.cols...)
	for _, p := range implied {
		if i := columnIndex(cols, p); i >= 0 {
			cols[i].Type.Nullable = false
		} else if strings.Contains(p, ".") {
			f.facts = f.facts.with([]string{p})
		}
	}
	if e == nil {
		f.cols = cols
		return
	}
	if !c.affordable(f, st, len(cols)) {
		return
	}
	where := f.where
	f.push(plan.Stage{
		Kind: plan.StageFilter, Word: "where", Pos: c.src.pos(int(st.Pos)), Filter: e,
		Out: plan.Schema{Columns: cols}, OutKey: f.key,
	})
	f.where = where
}

// passthrough is the expression of column i.
func passthrough(cols []plan.Column, i int, pos plan.Pos) *plan.Expr {
	return &plan.Expr{Op: plan.ExprColumn, Type: cols[i].Type, Column: i, Text: cols[i].Name, Pos: pos}
}

func column(name string, e *plan.Expr) plan.Column {
	return plan.Column{Name: name, Input: name, Type: e.Type, Members: memberColumns(e.Type)}
}

// project pushes a stage that makes its columns one by one. The key follows its columns.
func (c *checker) project(f *flow, st *syntax.Stage, out []plan.NamedExpr, at func(column string) span) {
	if !c.affordable(f, st, len(out)) {
		return
	}
	cols := make([]plan.Column, len(out))
	for i, o := range out {
		cols[i] = column(o.Name, o.Expr)
	}
	var key []int
	lost := f.lost
	if lost == nil {
		for _, k := range f.key {
			found := -1
			for i, o := range out {
				if o.Expr.Op == plan.ExprColumn && o.Expr.Column == k && (found < 0 || o.Name == f.cols[k].Name) {
					found = i
				}
			}
			if found < 0 {
				lost = &lostKey{column: f.cols[k].Name, at: at(f.cols[k].Name), word: st.Word, insert: int(st.End)}
				break
			}
			key = append(key, found)
		}
		if lost != nil {
			key = nil
		}
	}
	f.facts = keptFacts(f, out)
	f.border.follow(out, st.Word, at(f.border.name))
	f.push(plan.Stage{
		Kind: plan.StageProject, Word: st.Word, Pos: c.src.pos(int(st.Pos)), Project: out,
		Out: plan.Schema{Columns: cols}, OutKey: key,
	})
	f.lost = lost
}

// The bounds of what a module makes: columns of one row, and columns of all stages together.
const (
	maxColumns      = 1000
	maxStageColumns = 200_000
)

// affordable counts the columns that a stage makes, and reports once when they are too many.
func (c *checker) affordable(f *flow, st *syntax.Stage, columns int) bool {
	c.columns += columns
	switch {
	case columns > maxColumns:
		c.err("E0139", c.wordSpan(st.Pos), "a row has at most %d columns, this would have %d", maxColumns, columns).
			because("the work for a row must be bounded").fix("select the columns that are used")
	case c.columns > maxStageColumns:
		if c.columns-columns <= maxStageColumns {
			c.err("E0139", c.wordSpan(st.Pos), "the stages of this module have more than %d columns together", maxStageColumns).
				because("the work of a module must be bounded").fix("split the module, or select the columns that are used")
		}
	default:
		return true
	}
	f.unknown = true
	return false
}

// keptFacts are those about metadata and about columns that pass unchanged.
func keptFacts(f *flow, out []plan.NamedExpr) *fact {
	var kept *fact
	for p := f.facts; p != nil; p = p.next {
		root, _, _ := strings.Cut(p.path, ".")
		ok := root == "record"
		for _, o := range out {
			ok = ok || o.Name == root && o.Expr.Op == plan.ExprColumn && f.cols[o.Expr.Column].Name == root
		}
		if ok {
			kept = kept.with([]string{p.path})
		}
	}
	return kept
}

func (c *checker) set(f *flow, st *syntax.Stage) {
	s := f.scope()
	s.pending = map[string]syntax.Pos{}
	var out []plan.NamedExpr
	for i := range f.cols {
		out = append(out, plan.NamedExpr{Name: f.cols[i].Name, Expr: passthrough(f.cols, i, c.src.pos(int(st.Pos)))})
	}
	seen := map[string]bool{}
	at := map[string]span{}
	good := true
	for i := range st.Assigns {
		a := &st.Assigns[i]
		name := a.Name.Text
		if seen[name] {
			c.err("E0108", c.nameSpan(a.Name), "`%s` is set twice", name).because("all of a `set` happens at once, so neither would be last").fix("keep one of them, or use a second `set`")
			good = false
			continue
		}
		seen[name] = true
		at[name] = c.nameSpan(a.Name)
		e := c.expression(&a.Value, s)
		s.pending[name] = a.Name.Pos
		if e == nil {
			good = false
			continue
		}
		if !c.storable(e, name, exprSpan(&a.Value)) {
			good = false
			continue
		}
		if j := columnIndex(f.cols, name); j >= 0 {
			out[j].Expr = e
		} else {
			out = append(out, plan.NamedExpr{Name: name, Expr: e})
		}
	}
	if f.unknown || !good {
		f.unknown = true
		return
	}
	c.project(f, st, out, func(col string) span {
		if p, ok := at[col]; ok {
			return p
		}
		return c.wordSpan(st.Pos)
	})
}

// splitSet offers to start a new `set` where the name is used.
func (c *checker) splitSet(f *finding, _ syntax.Pos) {
	i := f.at.start
	// Back to the comma that begins the assignment.
	depth := 0
	t := c.src.text
	for i > 0 {
		i--
		switch t[i] {
		case ')', ']', '}':
			depth++
		case '(', '[', '{':
			depth--
		case '"', '\'', '`', '/':
			f.fix("use a second `set`: `|> set a = .. |> set b = a + 1`")
			return
		case ',':
			if depth == 0 {
				f.fix("use a second `set`: put `|> set` in the place of the comma").replace(span{i, i + 1}, " |> set")
				return
			}
		}
	}
	f.fix("use a second `set`")
}

// storable requires that an expression can be a column.
func (c *checker) storable(e *plan.Expr, name string, at span) bool {
	if e.Type.Kind == scalar.KindNull {
		c.err("E0118", at, "column `%s` would always be nil", name).because("nil alone has no type").fix("leave the column out")
		return false
	}
	return true
}

func (c *checker) itemSpan(it *syntax.Item) span {
	s := span{int(it.Pos), int(it.Pos) + 1}
	if it.Name != nil {
		s.start = min(s.start, int(it.Name.Pos))
		s.end = c.nameSpan(*it.Name).end
	}
	if it.Value != nil {
		s.end = max(s.end, int(it.Value.End))
	}
	if it.Of != nil {
		s = c.nameSpan(*it.Of)
		s.end += 2
	}
	return s
}

// namedItem checks `[name =] EXPR`; without a name it takes that of the column or field.
func (c *checker) namedItem(it *syntax.Item, s *scope, what string) (plan.NamedExpr, bool) {
	if it.Star || it.Of != nil {
		c.err("E0434", c.itemSpan(it), "%s takes columns one by one", what).because("a later change of the input must not change what is meant").fix("name the columns")
		return plan.NamedExpr{}, false
	}
	e := c.expression(it.Value, s)
	if e == nil {
		return plan.NamedExpr{}, false
	}
	name := ""
	if it.Name != nil {
		name = it.Name.Text
	} else if name = c.impliedName(it.Value); name == "" {
		c.err("E0432", exprSpan(it.Value), "this column needs a name").
			because("it is computed, and every column has a name").
			fix("`name = %s`", oneLine(it.Value.Text)).
			replace(span{int(it.Value.Pos), int(it.Value.Pos)}, freeName(s.cols)+" = ")
		return plan.NamedExpr{}, false
	}
	if !c.storable(e, name, exprSpan(it.Value)) {
		return plan.NamedExpr{}, false
	}
	return plan.NamedExpr{Name: name, Expr: e}, true
}

// freeName is a name that no column has.
func freeName(cols []plan.Column) string {
	for i := 1; ; i++ {
		if n := "column_" + itoa(i); columnIndex(cols, n) < 0 {
			return n
		}
	}
}

func (c *checker) selectStage(f *flow, st *syntax.Stage) {
	s := f.scope()
	var out []plan.NamedExpr
	seen := map[string]bool{}
	good := true
	add := func(n plan.NamedExpr, at span) {
		if seen[n.Name] {
			x := c.err("E0108", at, "there are two columns `%s`", n.Name).because("later stages find a column by its name")
			x.fix("give one of them another name: `%s_2 = ..`", n.Name)
			good = false
			return
		}
		seen[n.Name] = true
		out = append(out, n)
	}
	for i := range st.Items {
		it := &st.Items[i]
		at := c.itemSpan(it)
		pos := c.src.pos(at.start)
		switch {
		case it.Star:
			for j := range f.cols {
				add(plan.NamedExpr{Name: f.cols[j].Name, Expr: passthrough(f.cols, j, pos)}, at)
			}
		case it.Of != nil:
			fields, ok := c.allFields(f, *it.Of, "select")
			good = good && ok
			for _, n := range fields {
				add(n, at)
			}
		default:
			n, ok := c.namedItem(it, s, "`select`")
			if !ok {
				good = false
				continue
			}
			add(n, at)
		}
	}
	if f.unknown || !good {
		f.unknown = true
		return
	}
	c.project(f, st, out, func(string) span { return c.wordSpan(st.Pos) })
}

// allFields is `x.*`, or `unwrap x`.
func (c *checker) allFields(f *flow, n syntax.Name, word string) ([]plan.NamedExpr, bool) {
	if f.unknown {
		return nil, false
	}
	i := columnIndex(f.cols, n.Text)
	if i < 0 {
		if sym := c.symbols[n.Text]; sym != nil && sym.kind.readable() && word == "select" {
			c.err("E0104", c.nameSpan(n), "columns are written without the name of their %s", sym.kind).
				because("a pipeline reads one stream of rows").fix("`*`").
				replace(span{c.nameSpan(n).start, c.closingStar(c.nameSpan(n).end)}, "*")
			return nil, false
		}
		c.unknownColumn(n.Text, c.nameSpan(n), f.cols, f.where)
		return nil, false
	}
	t := f.cols[i].Type
	if t.Kind != scalar.KindStruct {
		if word == "unwrap" {
			c.err("E0132", c.nameSpan(n), "`unwrap` needs a struct, `%s` is %s", n.Text, TypeString(t)).
				because("only a struct has fields").fix("name a column that is a struct")
			return nil, false
		}
		c.err("E0132", c.nameSpan(n), "`%s.*` needs a struct, `%s` is %s", n.Text, n.Text, TypeString(t)).
			because("only a struct has fields").fix("`%s`", n.Text).
			replace(span{c.nameSpan(n).start, c.closingStar(c.nameSpan(n).end)}, n.Text)
		return nil, false
	}
	pos := c.src.pos(int(n.Pos))
	var out []plan.NamedExpr
	for j, fd := range t.Fields {
		out = append(out, plan.NamedExpr{Name: fd.Name, Expr: &plan.Expr{
			Op: plan.ExprField, Type: fd.Type.OrNull(t.Nullable), Field: j,
			Args: []*plan.Expr{passthrough(f.cols, i, pos)}, Text: n.Text + "." + fd.Name, Pos: pos,
		}})
	}
	return out, true
}

// closingStar is the offset after `.*`.
func (c *checker) closingStar(i int) int {
	if j := strings.IndexByte(c.src.text[i:], '*'); j >= 0 {
		return i + j + 1
	}
	return i
}

func (c *checker) drop(f *flow, st *syntax.Stage) {
	gone := map[string]span{}
	good := true
	for _, n := range st.Names {
		if f.unknown {
			return
		}
		if columnIndex(f.cols, n.Text) < 0 {
			c.unknownColumn(n.Text, c.nameSpan(n), f.cols, f.where)
			good = false
		}
		gone[n.Text] = c.nameSpan(n)
	}
	if f.unknown || !good {
		f.unknown = true
		return
	}
	var out []plan.NamedExpr
	for i := range f.cols {
		if _, dropped := gone[f.cols[i].Name]; !dropped {
			out = append(out, plan.NamedExpr{Name: f.cols[i].Name, Expr: passthrough(f.cols, i, c.src.pos(int(st.Pos)))})
		}
	}
	if len(out) == 0 {
		c.err("E0440", c.wordSpan(st.Pos), "nothing is left of the row").because("every column is dropped").fix("keep at least one")
		f.unknown = true
		return
	}
	c.project(f, st, out, func(col string) span {
		if at, ok := gone[col]; ok {
			return at
		}
		return c.wordSpan(st.Pos)
	})
}

func (c *checker) rename(f *flow, st *syntax.Stage) {
	if f.unknown {
		return
	}
	names := make([]string, len(f.cols))
	for i := range f.cols {
		names[i] = f.cols[i].Name
	}
	good := true
	for _, r := range st.Renames {
		i := columnIndex(f.cols, r[1].Text)
		if i < 0 {
			x := c.unknownColumn(r[1].Text, c.nameSpan(r[1]), f.cols, f.where)
			if columnIndex(f.cols, r[0].Text) >= 0 {
				x.d.Edit, x.d.Fix = nil, ""
				x.because("the new name comes first").fix("`rename %s = %s`", r[1].Text, r[0].Text).
					replace(span{c.nameSpan(r[0]).start, c.nameSpan(r[1]).end}, r[1].Text+" = "+r[0].Text)
			}
			good = false
			continue
		}
		names[i] = r[0].Text
	}
	seen := map[string]bool{}
	for _, r := range st.Renames {
		n := 0
		for _, m := range names {
			if m == r[0].Text {
				n++
			}
		}
		if n > 1 && !seen[r[0].Text] {
			seen[r[0].Text] = true
			c.err("E0108", c.nameSpan(r[0]), "there would be two columns `%s`", r[0].Text).because("later stages find a column by its name").fix("drop the other first, or choose another name")
			good = false
		}
	}
	if !good {
		f.unknown = true
		return
	}
	var out []plan.NamedExpr
	for i := range f.cols {
		out = append(out, plan.NamedExpr{Name: names[i], Expr: passthrough(f.cols, i, c.src.pos(int(st.Pos)))})
	}
	c.project(f, st, out, func(string) span { return c.wordSpan(st.Pos) })
}

// unwrap replaces the row by the fields of a struct column.
func (c *checker) unwrap(f *flow, st *syntax.Stage) {
	if f.unknown || len(st.Names) == 0 {
		return
	}
	n := st.Names[0]
	out, ok := c.allFields(f, n, "unwrap")
	if !ok {
		f.unknown = true
		return
	}
	for i := range out {
		field := out[i].Expr
		inner := field.Args[0]
		if !inner.Type.Nullable {
			continue
		}
		// A null struct is a row error.
		u, err := scalar.Resolve("unwrap", argsOf(field.Args))
		if err != nil {
			c.err("E0132", c.nameSpan(n), "`%s` cannot be unwrapped", n.Text).because("%s", err.Error()).fix("keep it as it is")
			f.unknown = true
			return
		}
		field.Args = []*plan.Expr{{Op: plan.ExprCall, Func: "unwrap", Type: u.Result, Args: []*plan.Expr{inner}, Text: field.Text, Pos: field.Pos}}
		field.Type = u.Result.Fields[field.Field].Type
	}
	c.project(f, st, out, func(string) span { return c.nameSpan(n) })
}

// keyStage is `key (a, b)`.
func (c *checker) keyStage(f *flow, st *syntax.Stage) {
	var key []int
	for i := range st.Keys {
		x := &st.Keys[i]
		e := c.expression(x, f.scope())
		if e == nil {
			f.unknown = true
			continue
		}
		at := exprSpan(x)
		if e.Op != plan.ExprColumn {
			name := "key_" + itoa(i+1)
			rest := span{int(st.Pos), int(st.End)}
			text := c.src.slice(rest)
			edited := text[:at.start-rest.start] + name + text[at.end-rest.start:]
			c.err("E0433", at, "a key is made of columns").
				because("the key's columns are part of the row, so that readers can see them").
				fix("name it first: `set %s = %s |> key (%s)`", name, oneLine(x.Text), name).
				replace(rest, "set "+name+" = "+strings.TrimSpace(x.Text)+" |> "+edited)
			f.unknown = true
			continue
		}
		if why := keyable(e.Type); why != "" {
			c.err("E0406", at, "`%s` cannot be part of the key: it is %s", c.src.slice(at), TypeString(e.Type)).because("%s", why).
				fix("use another column")
			f.unknown = true
			continue
		}
		if slices.Contains(key, e.Column) {
			c.err("E0108", at, "`%s` is twice in the key", c.src.slice(at)).because("the second one would tell no rows apart").fix("name it once")
			f.unknown = true
			continue
		}
		key = append(key, e.Column)
	}
	if f.unknown {
		f.lost = nil
		return
	}
	c.rekey(f, "key", c.src.pos(int(st.Pos)), key)
}

// rekey pushes a key stage.
func (c *checker) rekey(f *flow, word string, pos plan.Pos, key []int) {
	same := f.lost == nil && len(key) == len(f.key)
	for i := range key {
		same = same && key[i] == f.key[i]
	}
	where := f.where
	f.push(plan.Stage{
		Kind: plan.StageKey, Word: word, Pos: pos, Out: plan.Schema{Columns: f.cols}, OutKey: key,
		Shuffle: !same && len(key) > 0, // rows without a key stay in their partition
	})
	f.where = where
	f.lost, f.border = nil, borderColumn{}
}

// impliedName is the name that an expression gives its column: a column keeps its name, a field has its
// own.
func (c *checker) impliedName(x *syntax.Expr) string {
	n := x.Node
	for {
		switch m := n.(type) {
		case *ast.ChainNode:
			n = m.Node
			continue
		case *ast.IdentifierNode:
			return m.Value
		case *ast.MemberNode:
			p, ok := m.Property.(*ast.StringNode)
			if own := c.ownSpan(m); ok && c.src.slice(span{own.start, own.start + 1}) != "[" {
				return p.Value
			}
		}
		return ""
	}
}
