package syntax

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"
)

// Dump prints the tree of a module without positions, one statement or stage a line, as s-expressions. It
// is for tests and for people: two modules with the same dump mean the same.
func Dump(m *Module) string {
	d := dumper{}
	for _, s := range m.Statements {
		d.statement(s)
	}
	return d.b.String()
}

type dumper struct{ b strings.Builder }

func (d *dumper) f(format string, args ...any) { fmt.Fprintf(&d.b, format, args...) }

func dumpName(n *Name) string {
	if n == nil {
		return "-"
	}
	if n.Quoted {
		return strconv.Quote(n.Text)
	}
	return n.Text
}

func (d *dumper) statement(s Statement) {
	switch s := s.(type) {
	case *TopicDecl:
		word := "topic"
		if s.Table {
			word = "table"
		}
		d.f("(%s %s", word, s.Name.Text)
		if s.As != nil {
			d.f(" (as %s)", dumpName(s.As))
		}
		if s.Schema != nil {
			d.f("\n  ")
			d.typ(*s.Schema)
		}
		d.pipeline(s.Pipeline)
		d.options(s.Options)
	case *StreamDecl:
		d.f("(stream %s", s.Name.Text)
		d.pipeline(s.Pipeline)
	case *ViewDecl:
		d.f("(view %s", s.Name.Text)
		if s.As != nil {
			d.f(" (as %s)", dumpName(s.As))
		}
		d.pipeline(s.Pipeline)
		d.options(s.Options)
	case *PipelineStmt:
		d.f("(pipeline")
		d.pipeline(s.Pipeline)
	case *ConstDecl:
		d.f("(const %s ", s.Name.Text)
		d.expr(&s.Value)
	case *ParamDecl:
		d.f("(param %s ", s.Name.Text)
		d.typ(s.Type)
		if s.Default != nil {
			d.f(" ")
			d.expr(s.Default)
		}
	case *FuncDecl:
		d.f("(fn %s (", s.Name.Text)
		for i, p := range s.Params {
			if i > 0 {
				d.f(" ")
			}
			d.f("%s:", p.Name.Text)
			d.typ(p.Type)
		}
		d.f(") ")
		d.typ(s.Result)
		d.f(" ")
		if s.Body != nil {
			d.expr(s.Body)
		} else {
			d.f("(wasm %q)", s.Wasm)
		}
	case *TypeDecl:
		d.f("(type %s\n  ", s.Name.Text)
		d.typ(s.Type)
	case *TestDecl:
		d.f("(test %q", s.Title)
		for _, t := range s.Steps {
			d.f("\n  (%s", t.Word)
			if t.None {
				d.f(" none")
			}
			d.f(" %s", dumpName(&t.Topic))
			if t.Word == "advance" {
				d.f(" %q", t.At)
			}
			d.assigns(t.Fields)
			d.f(")")
		}
	}
	d.f(")\n")
}

func (d *dumper) typ(t TypeExpr) {
	if t.Struct {
		d.f("{")
		for i, f := range t.Fields {
			if i > 0 {
				d.f(" ")
			}
			d.f("%s:", f.Name.Text)
			d.typ(f.Type)
			if f.Input != "" {
				d.f("(as %q)", f.Input)
			}
		}
		d.f("}")
	} else {
		d.f("%s", t.Name)
		for _, n := range t.Ints {
			d.f("/%s", dumpInt(&n))
		}
		for _, s := range t.Strings {
			d.f("/%q", s)
		}
		if len(t.Elems) > 0 {
			d.f("<")
			for i, e := range t.Elems {
				if i > 0 {
					d.f(" ")
				}
				d.typ(e)
			}
			d.f(">")
		}
	}
	if t.Nullable {
		d.f("?")
	}
}

func dumpInt(n *Int) string {
	if n.Const != "" {
		return n.Const
	}
	return strconv.FormatInt(n.Value, 10)
}

func dumpDur(v *Duration) string {
	switch {
	case v == nil:
		return "-"
	case v.Negative:
		return "-" + v.Const
	case v.Const != "":
		return v.Const
	}
	return strconv.FormatInt(v.Nanos, 10) + "ns"
}

func (d *dumper) options(opts []Option) {
	for _, o := range opts {
		d.f("\n  (with %s", o.Word)
		for _, n := range o.Names {
			d.f(" %s", n.Text)
		}
		if o.String != "" {
			d.f(" %q", o.String)
		}
		if o.Duration != nil {
			d.f(" %s", dumpDur(o.Duration))
		}
		if o.Int != nil {
			d.f(" %s", dumpInt(o.Int))
		}
		if o.TimeExpr != nil {
			d.f(" ")
			d.expr(o.TimeExpr)
		}
		if o.TimeAppend {
			d.f(" append")
		}
		for _, s := range o.Spans {
			d.f(" (%s %s)", s.Word, dumpDur(&s.Duration))
		}
		if o.Action != "" {
			d.f(" %s", o.Action)
		}
		if o.Target != nil {
			d.f(" %s", dumpName(o.Target))
		}
		d.emit(o.Emit)
		d.f(")")
	}
}

func (d *dumper) emit(e *Emit) {
	if e != nil {
		d.f(" %s", e.Word)
		if e.Every != nil {
			d.f(" %s", dumpDur(e.Every))
		}
	}
}

func (d *dumper) pipeline(p *Pipeline) {
	if p == nil {
		return
	}
	d.f("\n  (from %s", dumpName(&p.Source))
	if p.Alias != nil {
		d.f(" (as %s)", p.Alias.Text)
	}
	d.f(")")
	for _, s := range p.Stages {
		d.stage(s)
	}
}

func (d *dumper) stage(s *Stage) {
	d.f("\n  (%s", s.Word)
	if s.Kind != "" {
		d.f(" %s", s.Kind)
	}
	if s.Left {
		d.f(" left")
	}
	if s.N != nil {
		d.f(" %s", dumpInt(s.N))
	}
	if s.Ties {
		d.f(" ties")
	}
	if s.Source != nil {
		d.f(" %s", dumpName(s.Source))
	}
	if s.Expr != nil {
		d.f(" ")
		d.expr(s.Expr)
	}
	if s.As != nil {
		d.f(" (as %s)", s.As.Text)
	}
	if s.Index != nil {
		d.f(" (index %s)", s.Index.Text)
	}
	d.assigns(s.Assigns)
	d.items(s.Items)
	for _, n := range s.Names {
		d.f(" %s", dumpName(&n))
	}
	for _, r := range s.Renames {
		d.f(" (%s %s)", r[0].Text, r[1].Text)
	}
	for i := range s.Keys {
		d.f(" ")
		d.expr(&s.Keys[i])
	}
	for _, r := range s.Targets {
		d.f(" (to %s", dumpName(&r.To))
		if r.When != nil {
			d.f(" ")
			d.expr(r.When)
		}
		d.f(")")
	}
	if s.Fail {
		d.f(" fail")
	}
	for _, o := range s.Orders {
		d.f(" (order ")
		d.expr(&o.Value)
		if o.Desc {
			d.f(" desc")
		}
		d.f(")")
	}
	d.clauses(s.Clauses)
	if m := s.Match; m != nil {
		d.match(m)
	}
	d.f(")")
}

func (d *dumper) assigns(as []Assign) {
	for i := range as {
		d.f(" (= %s ", as[i].Name.Text)
		d.expr(&as[i].Value)
		if as[i].Filter != nil {
			d.f(" (where ")
			d.expr(as[i].Filter)
			d.f(")")
		}
		d.f(")")
	}
}

func (d *dumper) items(items []Item) {
	for _, it := range items {
		switch {
		case it.Star:
			d.f(" *")
		case it.Of != nil:
			d.f(" %s.*", it.Of.Text)
		case it.Name != nil:
			d.f(" (= %s ", it.Name.Text)
			d.expr(it.Value)
			d.f(")")
		default:
			d.f(" ")
			d.expr(it.Value)
		}
	}
}

func (d *dumper) clauses(cs []Clause) {
	for _, c := range cs {
		d.f(" (:%s", c.Word)
		d.items(c.Items)
		if c.PerWindow {
			d.f(" window")
		}
		if w := c.Window; w != nil {
			d.f(" (%s", w.Word)
			if w.Size != nil {
				d.f(" %s", dumpDur(w.Size))
			}
			if w.Every != nil {
				d.f(" %s", dumpDur(w.Every))
			}
			if w.Int != nil {
				d.f(" %s", dumpInt(w.Int))
			}
			if w.Unit != "" {
				d.f(" %s %q", w.Unit, w.Zone)
			}
			d.f(")")
		}
		if c.OnAppend {
			d.f(" on-append")
		}
		d.emit(c.Emit)
		if c.Mode != "" {
			d.f(" %s", c.Mode)
		}
		for _, v := range []*Duration{c.From, c.To, c.Duration} {
			if v != nil {
				d.f(" %s", dumpDur(v))
			}
		}
		for i := range c.Exprs {
			d.f(" ")
			d.expr(&c.Exprs[i])
		}
		if c.Int != nil {
			d.f(" %s", dumpInt(c.Int))
		}
		if c.Before {
			d.f(" before")
		}
		if c.Name != nil {
			d.f(" %s", c.Name.Text)
		}
		if c.Target != nil {
			d.f(" %s", dumpName(c.Target))
		}
		d.f(")")
	}
}

func (d *dumper) match(m *Match) {
	if len(m.By) > 0 {
		d.f(" (:by")
		d.items(m.By)
		d.f(")")
	}
	d.f(" (:within %s", dumpDur(m.Within))
	if m.Forever {
		d.f(" forever")
	}
	d.f(")")
	if m.Order != "" {
		d.f(" (:order %s)", m.Order)
	}
	d.f("\n    (pattern ")
	d.pattern(m.Pattern)
	d.f(")\n    (define")
	d.assigns(m.Define)
	d.f(")")
	if len(m.Unless) > 0 {
		d.f(" (:unless")
		for _, n := range m.Unless {
			d.f(" %s", n.Text)
		}
		d.f(")")
	}
	if m.Skip != "" {
		d.f(" (:skip %s %s)", m.Skip, dumpName(m.SkipTo))
	}
	if m.TimeoutTo != nil {
		d.f(" (:timeout %s)", dumpName(m.TimeoutTo))
	}
	if m.Rows != "" {
		d.f(" (:rows %s)", m.Rows)
	}
	d.clauses(m.Clauses)
	d.f("\n    (select")
	d.items(m.Select)
	d.f(")")
}

func (d *dumper) pattern(p *Pattern) {
	if p == nil {
		d.f("-")
		return
	}
	for i, s := range p.Alternatives {
		if i > 0 {
			d.f(" | ")
		}
		for j, e := range s.Elems {
			if j > 0 {
				l := s.Links[j-1]
				d.f(" %s", l.Word)
				if l.Gap != nil {
					d.f("[%s]", dumpDur(l.Gap))
				}
				d.f(" ")
			}
			d.elem(e)
		}
	}
}

func (d *dumper) elem(e PatternElem) {
	if e.Not {
		d.f("not ")
	}
	switch {
	case e.Name != nil:
		d.f("%s", e.Name.Text)
	case e.Group != nil:
		d.f("(")
		d.pattern(e.Group)
		d.f(")")
	default:
		d.f("all(")
		for i, n := range e.All {
			if i > 0 {
				d.f(" ")
			}
			d.f("%s", n.Text)
		}
		d.f(")")
	}
	if q := e.Quant; q != nil {
		d.f("{%d,%d%s", q.Min, q.Max, q.Link)
		if q.Lazy {
			d.f(" lazy")
		}
		if q.Each {
			d.f(" each")
		}
		if q.Until != nil {
			d.f(" until %s", q.Until.Text)
		}
		d.f("}")
	}
	if e.For != nil {
		d.f(" for %s", dumpDur(e.For))
	}
}

func (d *dumper) expr(e *Expr) {
	if e == nil || e.Node == nil {
		d.f("?")
		return
	}
	d.node(e.Node, e)
}

// node prints a tree of expr-lang. Its own String rewrites spelling; this shows the shape.
func (d *dumper) node(n ast.Node, e *Expr) {
	list := func(head string, nodes ...ast.Node) {
		d.f("(%s", head)
		for _, n := range nodes {
			d.f(" ")
			d.node(n, e)
		}
		d.f(")")
	}
	switch n := n.(type) {
	case nil:
		d.f("-")
	case *ast.NilNode:
		d.f("nil")
	case *ast.IdentifierNode:
		if v, ok := e.Durations[n.Value]; ok {
			d.f("%s", dumpDur(&v))
			return
		}
		d.f("%s", n.Value)
	case *ast.IntegerNode:
		d.f("%d", n.Value)
	case *ast.FloatNode:
		d.f("%g", n.Value)
	case *ast.BoolNode:
		d.f("%t", n.Value)
	case *ast.StringNode:
		d.f("%q", n.Value)
	case *ast.BytesNode:
		d.f("b%q", n.Value)
	case *ast.UnaryNode:
		list(n.Operator, n.Node)
	case *ast.BinaryNode:
		list(n.Operator, n.Left, n.Right)
	case *ast.ChainNode:
		list("chain", n.Node)
	case *ast.MemberNode:
		head := "."
		if n.Optional {
			head = "?."
		}
		list(head, n.Node, n.Property)
	case *ast.SliceNode:
		list("slice", n.Node, n.From, n.To)
	case *ast.CallNode:
		list("call", append([]ast.Node{n.Callee}, n.Arguments...)...)
	case *ast.BuiltinNode:
		list("builtin "+n.Name, n.Arguments...)
	case *ast.PredicateNode:
		list("each", n.Node)
	case *ast.PointerNode:
		d.f("#%s", n.Name)
	case *ast.ConditionalNode:
		list("if", n.Cond, n.Exp1, n.Exp2)
	case *ast.VariableDeclaratorNode:
		list("let "+n.Name, n.Value, n.Expr)
	case *ast.SequenceNode:
		list("seq", n.Nodes...)
	case *ast.ArrayNode:
		list("array", n.Nodes...)
	case *ast.MapNode:
		list("map", n.Pairs...)
	case *ast.PairNode:
		list("pair", n.Key, n.Value)
	default:
		d.f("(%T)", n)
	}
}
