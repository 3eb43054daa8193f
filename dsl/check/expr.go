package check

import (
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// maxNodes bounds one typed expression after functions and variables were put in place.
const maxNodes = 4000

// maxVisits bounds the work of checking one expression. The parser bounds what is written; this bounds
// functions that call functions.
const maxVisits = 50_000

// A typed is a checked subexpression. A nil e means that it was reported; whatever contains it stays
// silent.
type typed struct {
	e *plan.Expr
	// lit is the text of a number literal (with its sign): it can still become any number type, a
	// decimal exactly.
	lit string
	// path names a place that narrowing can track: a column, a field of one, a metadata column.
	path string
	// chain says that the value is nullable only because an earlier `?.` of the same chain may stop.
	chain bool
}

var failed = typed{}

func (t typed) ok() bool { return t.e != nil }

func (t typed) typ() scalar.Type { return t.e.Type }

// A scope is what the names of an expression mean.
type scope struct {
	cols    []plan.Column
	where   string // what has the columns, for E0104
	unknown bool   // the columns are not known: names pass silently
	meta    metaScope
	vars    *variable
	elems   *element // enclosing closures, innermost first
	depth   int      // number of enclosing closures
	facts   *fact    // what is known not to be null
	agg     *aggScope
	inAgg   string                // the aggregate whose argument this is
	pending map[string]syntax.Pos // names that the same `set` makes
	pure    bool                  // a constant or a function: no columns at all
	fn      string                // the function whose body this is
}

// metaScope says which metadata columns a place has.
type metaScope uint8

const (
	metaAll  metaScope = iota
	metaTime           // after an aggregate: only the event time
	metaNone
)

// A variable is bound by `let` or is a parameter of a function.
type variable struct {
	name  string
	value typed
	depth int // closures around its binding
	next  *variable
}

// An element is the `#` of a closure.
type element struct {
	typ  scalar.Type
	acc  *scalar.Type // `#acc` of reduce
	next *element
}

func topicScope(t *plan.Topic) *scope {
	return &scope{cols: t.Schema.Columns, where: "topic `" + t.Ident + "`"}
}

// expression checks one slice and returns it typed, or nil after a report.
func (c *checker) expression(x *syntax.Expr, s *scope) *plan.Expr {
	t := c.exprTyped(x, s)
	return t.e
}

func (c *checker) exprTyped(x *syntax.Expr, s *scope) typed {
	if x == nil || x.Node == nil {
		return failed // the parser has reported it
	}
	budget := maxVisits
	w := &walk{c: c, durations: x.Durations, budget: &budget}
	c.lint(x.Node, nil)
	t := w.check(x.Node, s)
	if !t.ok() {
		return failed
	}
	if w.tooLarge(x.Node, t.e) {
		return failed
	}
	if cost := expr.Cost(t.e); cost > expr.MaxCost {
		w.err("E0137", x.Node, "this expression costs about %d calls a row, %d are allowed", cost, expr.MaxCost).
			because("closures inside closures multiply").
			fix("split it with `set`, or make the inner list smaller first")
		return failed
	}
	text := strings.TrimSpace(x.Text)
	setText(t.e, text, map[*plan.Expr]bool{})
	return t
}

func setText(e *plan.Expr, text string, seen map[*plan.Expr]bool) {
	if seen[e] {
		return
	}
	seen[e] = true
	if e.Text == "" {
		e.Text = text
	}
	for _, a := range e.Args {
		setText(a, text, seen)
	}
}

// countNodes counts the nodes of a tree, up to limit.
func countNodes(e *plan.Expr, limit int) int {
	n := 1
	for _, a := range e.Args {
		if n >= limit {
			return n
		}
		n += countNodes(a, limit-n)
	}
	return n
}

// tooLarge reports a value that would make too many nodes. Variables and parameters are put in place as
// shared nodes, so every walk over a tree comes after this check.
func (w *walk) tooLarge(n ast.Node, e *plan.Expr) bool {
	if countNodes(e, maxNodes+1) <= maxNodes {
		return false
	}
	w.err("E0137", n, "this expression has more than %d parts", maxNodes).
		because("the cost of a row must be bounded").
		fix("split it with `set` into named columns")
	return true
}

// A walk checks the nodes of one slice.
type walk struct {
	c         *checker
	durations map[string]syntax.Duration
	budget    *int // visits left; shared with the functions that are put in place
	over      bool
}

// check gives n its type. It reports what is wrong, once, and then returns failed.
func (w *walk) check(n ast.Node, s *scope) typed {
	if *w.budget--; *w.budget < 0 {
		if !w.over {
			w.over = true
			w.err("E0137", n, "this expression does too much").
				because("the functions in it, put in their places, have more than %d parts", maxNodes).
				fix("split it with `set` into named columns")
		}
		return failed
	}
	switch n := n.(type) {
	case *ast.NilNode:
		return typed{e: w.constant(n, scalar.TypeNull, scalar.Null)}
	case *ast.BoolNode:
		return typed{e: w.constant(n, scalar.TypeBool, scalar.Bool(n.Value))}
	case *ast.IntegerNode:
		return w.integer(n)
	case *ast.FloatNode:
		return typed{e: w.constant(n, scalar.TypeFloat64, scalar.Float(n.Value)), lit: w.numberText(n)}
	case *ast.StringNode:
		return typed{e: w.constant(n, scalar.TypeString, scalar.String(n.Value))}
	case *ast.BytesNode:
		return typed{e: w.constant(n, scalar.TypeBytes, scalar.Bytes(string(n.Value)))}
	case *ast.IdentifierNode:
		return w.identifier(n, s)
	case *ast.UnaryNode:
		return w.unary(n, s)
	case *ast.BinaryNode:
		return w.binary(n, s)
	case *ast.ChainNode:
		t := w.check(n.Node, s)
		t.chain = false
		return t
	case *ast.MemberNode:
		return w.member(n, s)
	case *ast.SliceNode:
		return w.slice(n, s)
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			return w.call(n, id.Value, w.c.ownSpan(id), n.Arguments, s, false)
		}
		w.err("E0035", n, "this calls a method, and the language has only functions").
			because("values have no methods").fix("write `f(x)` instead of `x.f()`")
		return failed
	case *ast.BuiltinNode:
		return w.call(n, n.Name, w.c.ownSpan(n), n.Arguments, s, true)
	case *ast.ConditionalNode:
		return w.conditional(n, s)
	case *ast.PointerNode:
		return w.pointer(n, s)
	case *ast.VariableDeclaratorNode:
		v := w.check(n.Value, s)
		if v.ok() && w.tooLarge(n, v.e) {
			return failed
		}
		inner := *s
		if v.path == "" {
			v.path = w.c.freshPath()
		}
		inner.vars = &variable{name: n.Name, value: v, depth: s.depth, next: s.vars}
		return w.check(n.Expr, &inner)
	case *ast.ArrayNode:
		return w.list(n, s)
	case *ast.MapNode:
		return w.mapLiteral(n, s)
	case *ast.PredicateNode:
		w.err("E0133", n, "a closure stands only in a list function").because("it is applied to the elements of a list").
			fix("use it inside filter, map, any, all, none, one, find, count, sum or reduce")
		return failed
	case *ast.SequenceNode:
		w.err("E0033", n, "`;` gives the last of several values, and the language has no such sequence").because("an expression has one value").
			fix("keep only the last part")
		return failed
	}
	w.err("E0136", n, "this form of expression has no meaning here").because("the language has no such form").fix("write it with operators and functions")
	return failed
}

func (w *walk) identifier(n *ast.IdentifierNode, s *scope) typed {
	name := n.Value
	if strings.HasPrefix(name, "$") {
		if d, ok := w.durations[name]; ok {
			if d.Const == "" {
				return typed{e: w.constant(n, scalar.TypeDuration, scalar.Duration(d.Nanos))}
			}
			name = d.Const
		} else {
			w.err("E0034", n, "`%s` starts with $", name).because("names of columns do not").fix("leave the $ out")
			return failed
		}
	}
	for v := s.vars; v != nil; v = v.next {
		if v.name == name {
			t := v.value
			if !t.ok() {
				return failed
			}
			if s.depth > v.depth {
				t.e = shiftElems(t.e, s.depth-v.depth, 0)
			}
			if t.typ().Nullable && s.facts.holds(t.path) {
				e := *t.e
				e.Type.Nullable = false
				t.e = &e
			}
			return t
		}
	}
	if s.agg != nil {
		return w.aggName(n, name, s)
	}
	if !s.pure {
		if i := columnIndex(s.cols, name); i >= 0 {
			t := s.cols[i].Type
			path := name
			if s.facts.holds(path) {
				t.Nullable = false
			}
			return typed{e: &plan.Expr{Op: plan.ExprColumn, Type: t, Column: i, Pos: w.pos(n)}, path: path}
		}
	}
	if sym := w.c.symbols[name]; sym != nil && (sym.kind == symConst || sym.kind == symParam) {
		w.c.resolveConst(sym)
		if sym.value == nil {
			return failed
		}
		e := *sym.value.expr
		e.Pos = w.pos(n)
		e.Text = ""
		return typed{e: &e, lit: sym.value.lit}
	}
	if s.unknown {
		return failed
	}
	if name == "record" {
		w.err("E0121", n, "`record` alone is not a value").
			because("it stands for the row's metadata").
			fix("name a part: record.time, .append_time, .key, .headers, .topic, .partition or .offset")
		return failed
	}
	w.unknownName(n, name, s)
	return failed
}

func (w *walk) unknownName(n ast.Node, name string, s *scope) {
	at := w.c.nodeSpan(n)
	if p, ok := s.pending[name]; ok {
		f := w.c.err("E0104", at, "`%s` is made by this same `set`", name).
			because("all of a `set` see the columns before it")
		w.c.splitSet(f, p)
		return
	}
	if s.fn != "" {
		f := w.c.err("E0104", at, "fn `%s` has no parameter `%s`", s.fn, name)
		var names []string
		for v := s.vars; v != nil; v = v.next {
			names = append(names, v.name)
		}
		f.because("a function sees its parameters and constants, not columns")
		if m := w.c.nearest(name, names); m != "" {
			f.replace(at, m)
		} else {
			f.fix("add a parameter, and pass the column to it")
		}
		return
	}
	if s.pure {
		f := w.c.err("E0130", at, "`%s` is not a constant", name).because("only constants, literals and functions of them have a value before any row")
		var names []string
		for _, o := range w.c.order {
			if o.kind == symConst || o.kind == symParam {
				names = append(names, o.name)
			}
		}
		if m := w.c.nearest(name, names); m != "" {
			f.replace(at, m)
		} else {
			f.fix("declare it: `const %s = ..`", name)
		}
		return
	}
	f := w.c.unknownColumn(name, at, w.visible(s), s.where)
	if alias, ok := map[string]string{"null": "nil", "NULL": "nil", "None": "nil", "True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}[name]; ok {
		f.d.Edit = nil
		f.because("the language writes `%s`", alias).replace(at, alias)
		f.d.Fix = "`" + alias + "`"
	} else if alias, ok := metaAliases[name]; ok {
		if f.d.Edit == nil && s.meta == metaAll {
			f.d.Fix = ""
			f.because("the record of a row has it")
			f.replace(at, alias)
		}
	}
}

// metaAliases are names that people try for what a row's record has.
var metaAliases = map[string]string{
	"event_time": "record.time", "_time": "record.time", "rowtime": "record.time", "timestamp": "record.time", "_timestamp": "record.time",
	"append_time": "record.append_time", "ingestion_time": "record.append_time", "key": "record.key", "_key": "record.key",
	"offset": "record.offset", "_offset": "record.offset", "partition": "record.partition", "_partition": "record.partition", "topic": "record.topic", "headers": "record.headers",
}

// visible is the columns and the constants that a name could have meant.
func (w *walk) visible(s *scope) []plan.Column {
	cols := append([]plan.Column(nil), s.cols...)
	for v := s.vars; v != nil; v = v.next {
		cols = append(cols, plan.Column{Name: v.name})
	}
	return cols
}

// shiftElems rewrites the `#` of enclosing closures for an expression that moves by levels deeper.
func shiftElems(e *plan.Expr, by, inside int) *plan.Expr {
	if e.Op == plan.ExprElem && e.Depth >= inside {
		out := *e
		out.Depth += by
		return &out
	}
	if len(e.Args) == 0 {
		return e
	}
	if e.Op == plan.ExprLambda {
		inside++
	}
	var args []*plan.Expr
	for i, a := range e.Args {
		b := shiftElems(a, by, inside)
		if b != a && args == nil {
			args = append([]*plan.Expr(nil), e.Args...)
		}
		if args != nil {
			args[i] = b
		}
	}
	if args == nil {
		return e
	}
	out := *e
	out.Args = args
	return &out
}
