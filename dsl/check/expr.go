package check

import (
	"strings"
	"unicode/utf8"

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
	topic   bool // record.* is the topic's own record
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

// A fact says that the value at path is not null.
type fact struct {
	path string
	next *fact
}

func (f *fact) holds(path string) bool {
	for ; f != nil; f = f.next {
		if f.path == path {
			return true
		}
	}
	return false
}

func (f *fact) with(paths []string) *fact {
	for _, p := range paths {
		f = &fact{p, f}
	}
	return f
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
	calls     []string // functions being put in place
}

func (w *walk) pos(n ast.Node) plan.Pos { return w.c.src.pos(w.c.nodeSpan(n).start) }

func (w *walk) err(code string, n ast.Node, format string, args ...any) *finding {
	return w.c.err(code, w.c.nodeSpan(n), format, args...)
}

// ownSpan is the token that the tree gives as the place of n.
func (c *checker) ownSpan(n ast.Node) span {
	l := n.Location()
	return span{c.src.byteOf(l.From), c.src.byteOf(max(l.To, l.From))}
}

// nodeSpan is the text of n without the parentheses around it.
func (c *checker) nodeSpan(n ast.Node) span {
	own := c.ownSpan(n)
	join := func(s span, nodes ...ast.Node) span {
		for _, m := range nodes {
			if m == nil {
				continue
			}
			o := c.outerSpan(m)
			s.start, s.end = min(s.start, o.start), max(s.end, o.end)
		}
		return s
	}
	call := func(s span) span {
		if i := c.skipSpace(own.end); i < len(c.src.text) && c.src.text[i] == '(' {
			s.end = max(s.end, c.closing(i))
		}
		return s
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		return join(own, n.Node)
	case *ast.BinaryNode:
		return join(own, n.Left, n.Right)
	case *ast.ChainNode:
		return c.nodeSpan(n.Node)
	case *ast.MemberNode:
		s := join(own, n.Node)
		if own.start < len(c.src.text) && c.src.text[own.start] == '[' {
			s.end = c.closing(own.start)
		}
		return s
	case *ast.SliceNode:
		s := join(own, n.Node)
		s.end = max(s.end, c.closing(own.start))
		return s
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			own = c.ownSpan(id)
		}
		s := call(own)
		if len(n.Arguments) > 0 { // a | f(b)
			s = join(s, n.Arguments[0])
		}
		return s
	case *ast.BuiltinNode:
		s := call(own)
		if len(n.Arguments) > 0 {
			s = join(s, n.Arguments[0])
		}
		return s
	case *ast.ConditionalNode:
		return join(c.outerSpan(n.Cond), n.Exp1, n.Exp2)
	case *ast.VariableDeclaratorNode:
		return join(own, n.Value, n.Expr)
	case *ast.ArrayNode, *ast.MapNode:
		return span{own.start, c.closing(own.start)}
	case *ast.PredicateNode:
		return c.nodeSpan(n.Node)
	case *ast.PairNode:
		return join(c.nodeSpan(n.Key), n.Value)
	}
	return own
}

// outerSpan is nodeSpan with the parentheses around it.
func (c *checker) outerSpan(n ast.Node) span {
	s := c.nodeSpan(n)
	for {
		i := s.start
		for i > 0 && (c.src.text[i-1] == ' ' || c.src.text[i-1] == '\n' || c.src.text[i-1] == '\t') {
			i--
		}
		j := c.skipSpace(s.end)
		if i == 0 || c.src.text[i-1] != '(' || j >= len(c.src.text) || c.src.text[j] != ')' {
			return s
		}
		// `f(x)` is a call, not parentheses around x.
		if k := i - 1; k > 0 && (isWordByte(c.src.text[k-1]) || c.src.text[k-1] == ')' || c.src.text[k-1] == ']') {
			w := c.src.slice(c.lastWordBefore(k))
			switch w {
			case "and", "or", "not", "in", "where", "by", "contains", "matches", "startsWith", "endsWith", "on", "when", "else":
			default:
				return s
			}
		}
		s = span{i - 1, j + 1}
	}
}

func (w *walk) text(n ast.Node) string { return w.c.src.slice(w.c.nodeSpan(n)) }

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
		w.err("E0133", n, "a closure stands only in a list function").
			fix("use it inside filter, map, any, all, none, one, find, count, sum or reduce")
		return failed
	case *ast.SequenceNode:
		w.err("E0033", n, "`;` gives the last of several values, and the language has no such sequence").
			fix("keep only the last part")
		return failed
	}
	w.err("E0136", n, "this form of expression has no meaning here").fix("write it with operators and functions")
	return failed
}

func (w *walk) constant(n ast.Node, t scalar.Type, v scalar.Value) *plan.Expr {
	return &plan.Expr{Op: plan.ExprConst, Type: t, Value: v, Pos: w.pos(n)}
}

// numberText is the literal as written, digits only.
func (w *walk) numberText(n ast.Node) string {
	return strings.ReplaceAll(w.c.src.slice(w.c.ownSpan(n)), "_", "")
}

func (w *walk) integer(n *ast.IntegerNode) typed {
	text := w.numberText(n)
	if !isDecimalText(text) {
		text = itoa(n.Value) // hex, octal, binary, or the smallest integer with its sign
	}
	return typed{e: w.constant(n, scalar.TypeInt64, scalar.Int(int64(n.Value))), lit: text}
}

func isDecimalText(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
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
	} else if name == "event_time" || name == "append_time" || name == "_time" || name == "rowtime" {
		if f.d.Edit == nil && s.meta == metaAll {
			alias := "record.time"
			if name == "append_time" {
				alias = "record.append_time"
			}
			f.d.Fix = ""
			f.replace(at, alias)
		}
	}
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

func (w *walk) unary(n *ast.UnaryNode, s *scope) typed {
	if n.Operator == "not" || n.Operator == "!" {
		if in, ok := n.Node.(*ast.BinaryNode); ok && in.Operator == "in" && n.Operator == "not" {
			return w.in(in, "not_in", s)
		}
		t := w.check(n.Node, s)
		if !t.ok() {
			return failed
		}
		if k := t.typ().Kind; k != scalar.KindBool && k != scalar.KindNull {
			w.err("E0113", n.Node, "`not` needs a bool, this is %s", TypeString(t.typ())).
				because("only a condition can be negated").fix("compare it: `not (%s == ..)`", w.text(n.Node))
			return failed
		}
		return w.apply(n, "not", []typed{t})
	}
	t := w.check(n.Node, s)
	if !t.ok() {
		return failed
	}
	name := "neg"
	if n.Operator == "+" {
		name = "pos"
	}
	lit := ""
	if t.lit != "" && !strings.HasPrefix(t.lit, "-") {
		lit = t.lit
		if n.Operator == "-" {
			lit = "-" + lit
		}
	}
	r := w.apply(n, name, []typed{t})
	if r.ok() && r.e.Op == plan.ExprConst {
		r.lit = lit
	}
	return r
}

var binaryOps = map[string]string{
	"+": "add", "-": "sub", "*": "mul", "/": "div_op", "%": "mod_op", "**": "pow_op", "^": "pow_op",
	"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
	"in": "in", "contains": "contains", "startsWith": "startsWith", "endsWith": "endsWith",
	"matches": "matches", "..": "range",
}

func isComparison(op string) bool {
	switch op {
	case "==", "!=", "<", "<=", ">", ">=":
		return true
	}
	return false
}

func (w *walk) binary(n *ast.BinaryNode, s *scope) typed {
	switch n.Operator {
	case "and", "&&", "or", "||":
		return w.logic(n, s)
	case "??":
		return w.coalesce(n, s)
	case "in":
		return w.in(n, "in", s)
	}
	if isComparison(n.Operator) {
		if x := nilSide(n); x != nil && (n.Operator == "==" || n.Operator == "!=") {
			return w.nilTest(n, x, s)
		}
		if not := looseNot(w.c, n); not != nil {
			inner := w.check(not.Node, s)
			if inner.ok() && inner.typ().Kind != scalar.KindBool {
				at := span{w.c.ownSpan(not).start, w.c.nodeSpan(n).end}
				w.c.err("E0113", w.c.nodeSpan(not), "`not` needs a bool, `%s` is %s", w.text(not.Node), TypeString(inner.typ())).
					because("`not` binds tighter than `%s`", n.Operator).
					replace(at, "not ("+w.c.src.slice(span{w.c.outerSpan(not.Node).start, at.end})+")")
				return failed
			}
		}
	}
	l := w.check(n.Left, s)
	r := w.check(n.Right, s)
	if !l.ok() || !r.ok() {
		return failed
	}
	name, ok := binaryOps[n.Operator]
	if !ok {
		w.err("E0136", n, "there is no operator `%s`", n.Operator).fix("see the list of operators")
		return failed
	}
	if l.typ().Kind == scalar.KindNull || r.typ().Kind == scalar.KindNull {
		w.err("E0118", n, "`%s` with nil is always nil", n.Operator).
			because("null in, null out").fix("test with `== nil`, or leave the nil out")
		return failed
	}
	return w.operator(n, n.Operator, name, l, r)
}

// nilSide gives the other side of a comparison with the literal nil.
func nilSide(n *ast.BinaryNode) ast.Node {
	if _, ok := n.Right.(*ast.NilNode); ok {
		return n.Left
	}
	if _, ok := n.Left.(*ast.NilNode); ok {
		return n.Right
	}
	return nil
}

// looseNot finds `not x` as the unparenthesized left side of a comparison.
func looseNot(c *checker, n *ast.BinaryNode) *ast.UnaryNode {
	u, ok := n.Left.(*ast.UnaryNode)
	if !ok || u.Operator != "not" && u.Operator != "!" || !isComparison(n.Operator) {
		return nil
	}
	if c.outerSpan(u) != c.nodeSpan(u) {
		return nil
	}
	return u
}

// nilTest is `x == nil` and `x != nil`.
func (w *walk) nilTest(n *ast.BinaryNode, x ast.Node, s *scope) typed {
	t := w.check(x, s)
	if !t.ok() {
		return failed
	}
	if !t.typ().Nullable {
		if s.facts == nil || !s.facts.holds(t.path) {
			w.err("W0142", n, "`%s` is never nil", w.text(x)).
				because("its type is %s", TypeString(t.typ())).fix("leave the test out")
		}
		return typed{e: w.constant(n, scalar.TypeBool, scalar.Bool(n.Operator == "!="))}
	}
	if t.typ().Kind == scalar.KindNull {
		return typed{e: w.constant(n, scalar.TypeBool, scalar.Bool(n.Operator == "=="))}
	}
	r := w.apply(n, "is_null", []typed{t})
	if n.Operator == "!=" && r.ok() {
		r = w.apply(n, "not", []typed{r})
	}
	return r
}

// operator resolves a binary operator after giving number literals the type of their neighbour.
func (w *walk) operator(n ast.Node, op, name string, l, r typed) typed {
	l, r = w.adapt(l, r), w.adapt(r, l)
	lt, rt := l.typ(), r.typ()
	if lt.Kind == scalar.KindDecimal && rt.Kind.Float() || rt.Kind == scalar.KindDecimal && lt.Kind.Float() {
		w.decimalFloat(n, op, l, r)
		return failed
	}
	f, err := scalar.Resolve(name, args(l, r))
	if err != nil {
		w.operatorError(n, op, l, r, err)
		return failed
	}
	return w.apply2(n, f, []typed{l, r})
}

func (w *walk) decimalFloat(n ast.Node, op string, l, r typed) {
	b, _ := n.(*ast.BinaryNode)
	f := w.err("E0114", n, "a decimal does not go with a float: %s %s %s", TypeString(l.typ()), op, TypeString(r.typ())).
		because("the float is already rounded, so the result would only look exact")
	if b == nil {
		f.fix("cast the float: `dec(x, 18, 6)`, or the decimal: `float(x)`")
		return
	}
	x, d := b.Left, r
	if r.typ().Kind.Float() {
		x, d = b.Right, l
	}
	at := w.c.nodeSpan(x)
	f.replace(at, "dec("+w.c.src.slice(at)+", 18, "+itoa(int(max(d.typ().Scale, 6)))+")")
}

// operatorError words a failed overload of an operator.
func (w *walk) operatorError(n ast.Node, op string, l, r typed, err error) {
	lt, rt := TypeString(l.typ()), TypeString(r.typ())
	re, _ := err.(*scalar.ResolveError)
	if re != nil && strings.Contains(re.Reason, "constant") {
		f := w.err("E0119", n, "the right side of `%s` must be a constant", op).because("%s", re.Reason)
		if re.Suggestion == "" {
			re.Suggestion = "write it as a literal"
		}
		f.fix("%s", re.Suggestion)
		return
	}
	if re != nil && op == "matches" && l.typ().Kind == scalar.KindString && r.typ().Kind == scalar.KindString {
		w.err("E0612", n, "the right side of `matches` is not a pattern").because("%s", re.Reason).
			fix("a backslash escapes what is meant as it is: `\\(`")
		return
	}
	verb := "`" + op + "` does not go with"
	if isComparison(op) {
		verb = "cannot compare"
	}
	f := w.err("E0110", n, "%s %s and %s", verb, lt, rt)
	if isComparison(op) {
		f.because("`%s` is %s, `%s` is %s", w.sideText(n, true), lt, w.sideText(n, false), rt)
	}
	b, _ := n.(*ast.BinaryNode)
	lk, rk := l.typ().Kind, r.typ().Kind
	switch {
	case re != nil && re.Suggestion != "" && !isComparison(op):
		f.because("%s", re.Reason).fix("%s", re.Suggestion)
	case b != nil && op == "+" && (lk == scalar.KindString || rk == scalar.KindString):
		x := b.Left
		if lk == scalar.KindString {
			x = b.Right
		}
		at := w.c.nodeSpan(x)
		f.because("texts are joined with texts").replace(at, "string("+w.c.src.slice(at)+")")
	case b != nil && lk == scalar.KindString && rk.Numeric() && r.lit != "":
		at := w.c.nodeSpan(b.Right)
		f.replace(at, "\""+strings.Trim(w.c.src.slice(at), "\"")+"\"")
	case b != nil && rk == scalar.KindString && lk.Numeric() && l.lit != "":
		at := w.c.nodeSpan(b.Left)
		f.replace(at, "\""+strings.Trim(w.c.src.slice(at), "\"")+"\"")
	case b != nil && lk.Numeric() && r.e.Op == plan.ExprConst && rk == scalar.KindString && numberLike(r.e.Value.S):
		f.replace(w.c.nodeSpan(b.Right), r.e.Value.S)
	case b != nil && lk == scalar.KindTime && rk == scalar.KindString:
		at := w.c.nodeSpan(b.Right)
		f.fix("`parse_time(%s, \"yyyy-MM-dd\")`", w.c.src.slice(at))
	case lk == scalar.KindTime && rk.Numeric() || rk == scalar.KindTime && lk.Numeric():
		f.fix("times go with durations, such as `10s`; a number becomes a time with `from_epoch(n, \"ms\")`")
	case lk == scalar.KindDuration && rk.Numeric() || rk == scalar.KindDuration && lk.Numeric():
		f.fix("write the unit: `10s`, `5m`")
	case isComparison(op) && lk.Integer() && rk.Integer():
		f.fix("cast one of them")
	default:
		if re != nil && !isComparison(op) {
			f.because("%s", re.Reason)
		}
		if re != nil && re.Suggestion != "" {
			f.fix("%s", re.Suggestion)
		} else {
			f.fix("cast one side to the type of the other")
		}
	}
}

func numberLike(s string) bool {
	if s == "" || len(s) > 18 {
		return false
	}
	return isDecimalText(strings.TrimPrefix(s, "-"))
}

func (w *walk) sideText(n ast.Node, left bool) string {
	if b, ok := n.(*ast.BinaryNode); ok {
		if left {
			return w.text(b.Left)
		}
		return w.text(b.Right)
	}
	return w.text(n)
}

// adapt gives a number literal the type of its neighbour: a decimal exactly from its text, a uint64
// from a literal that is not negative, float32 beside a float32.
func (w *walk) adapt(t, beside typed) typed {
	if t.lit == "" || beside.lit != "" {
		return t
	}
	switch k := beside.typ().Kind; {
	case k == scalar.KindDecimal:
		if d, ok := decimalLiteral(t.lit); ok {
			d.Pos = t.e.Pos
			return typed{e: d}
		}
	case k == scalar.KindUint64 && t.typ().Kind == scalar.KindInt64 && t.e.Value.I >= 0:
		e := *t.e
		e.Type, e.Value = scalar.TypeUint64, scalar.Uint(uint64(t.e.Value.I))
		return typed{e: &e}
	}
	return t
}

// decimalLiteral reads a number literal as a decimal with just the digits that it has.
func decimalLiteral(text string) (*plan.Expr, bool) {
	neg := strings.HasPrefix(text, "-")
	digits := strings.TrimPrefix(text, "-")
	exp := 0
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		x := digits[i+1:]
		digits = digits[:i]
		xneg := strings.HasPrefix(x, "-")
		x = strings.TrimLeft(x, "+-")
		if len(x) == 0 || len(x) > 3 || !isDecimalText(x) {
			return nil, false
		}
		for _, ch := range x {
			exp = exp*10 + int(ch-'0')
		}
		if xneg {
			exp = -exp
		}
	}
	whole, frac, _ := strings.Cut(digits, ".")
	scale := len(frac) - exp
	all := whole + frac
	for scale < 0 {
		all += "0"
		scale++
		if len(all) > 80 {
			return nil, false
		}
	}
	all = strings.TrimLeft(all, "0")
	if scale > scalar.MaxPrecision || len(all) > scalar.MaxPrecision || all != "" && !isDecimalText(all) {
		return nil, false
	}
	prec := max(len(all), scale, 1)
	v, ok := parseInt128(all, neg)
	if !ok {
		return nil, false
	}
	return &plan.Expr{Op: plan.ExprConst, Type: scalar.DecimalType(int32(prec), int32(scale)), Value: scalar.Decimal(v)}, true
}

func args(list ...typed) []scalar.Arg {
	out := make([]scalar.Arg, len(list))
	for i, t := range list {
		out[i].Type = t.e.Type
		if t.e.Op == plan.ExprConst {
			v := t.e.Value
			out[i].Const = &v
		}
	}
	return out
}

// apply resolves an operator that its operands are known to fit, and reports if they do not.
func (w *walk) apply(n ast.Node, name string, list []typed) typed {
	f, err := scalar.Resolve(name, args(list...))
	if err != nil {
		w.resolveError(n, name, w.c.nodeSpan(n), nil, list, err)
		return failed
	}
	return w.apply2(n, f, list)
}

// apply2 builds the call with its widening casts, folded if all of it is constant.
func (w *walk) apply2(n ast.Node, f *scalar.Func, list []typed) typed {
	e := &plan.Expr{Op: plan.ExprCall, Type: f.Result, Func: f.Name, Pos: w.pos(n)}
	for i, t := range list {
		a := t.e
		if i < len(f.Args) && t.e.Op != plan.ExprLambda {
			var ok bool
			if a, ok = w.cast(n, a, f.Args[i]); !ok {
				return failed
			}
		}
		e.Args = append(e.Args, a)
	}
	return w.fold(n, e)
}

// cast widens e to t; nullability stays e's.
func (w *walk) cast(n ast.Node, e *plan.Expr, t scalar.Type) (*plan.Expr, bool) {
	if e.Type.Same(t) {
		return e, true
	}
	t.Nullable = e.Type.Nullable
	if e.Type.Kind == scalar.KindNull {
		t.Nullable = true
		return &plan.Expr{Op: plan.ExprConst, Type: t, Value: scalar.Null, Pos: e.Pos, Text: e.Text}, true
	}
	name, consts, ok := scalar.CastName(t)
	if !ok {
		w.err("E0110", n, "%s does not widen to %s", TypeString(e.Type), TypeString(t)).
			because("lists, maps and structs are not converted").fix("make both sides alike")
		return nil, false
	}
	call := &plan.Expr{Op: plan.ExprCall, Type: t, Func: name, Args: []*plan.Expr{e}, Pos: e.Pos, Text: e.Text}
	for _, v := range consts {
		call.Args = append(call.Args, &plan.Expr{Op: plan.ExprConst, Type: scalar.TypeInt64, Value: v, Pos: e.Pos})
	}
	r := w.fold(n, call)
	return r.e, r.ok()
}

// fold evaluates a call whose arguments are all constants, with the reference functions.
func (w *walk) fold(n ast.Node, e *plan.Expr) typed {
	for _, a := range e.Args {
		if a.Op != plan.ExprConst {
			return typed{e: e}
		}
	}
	f, err := scalar.Resolve(e.Func, argsOf(e.Args))
	if err != nil {
		return typed{e: e}
	}
	vals := make([]scalar.Value, len(e.Args))
	for i, a := range e.Args {
		vals[i] = a.Value
	}
	v, code := f.Call(vals)
	if code != scalar.CodeNone {
		w.err(code.String(), n, "this constant fails: %s", code.Message()).
			because("it has the same value for every row").fix("%s", code.Fix())
		return failed
	}
	t := e.Type
	if !v.IsNull() {
		t.Nullable = false
	} else {
		t.Nullable = true
	}
	return typed{e: &plan.Expr{Op: plan.ExprConst, Type: t, Value: v, Pos: e.Pos, Text: e.Text}}
}

func argsOf(list []*plan.Expr) []scalar.Arg {
	ts := make([]typed, len(list))
	for i, e := range list {
		ts[i] = typed{e: e}
	}
	return args(ts...)
}

// logic is `and` and `or` with narrowing of the right side.
func (w *walk) logic(n *ast.BinaryNode, s *scope) typed {
	or := n.Operator == "or" || n.Operator == "||"
	l := w.check(n.Left, s)
	inner := *s
	inner.facts = s.facts.with(w.implied(n.Left, !or, s))
	r := w.check(n.Right, &inner)
	if !l.ok() || !r.ok() {
		return failed
	}
	for _, x := range []struct {
		t typed
		n ast.Node
	}{{l, n.Left}, {r, n.Right}} {
		if k := x.t.typ().Kind; k != scalar.KindBool && k != scalar.KindNull {
			w.err("E0113", x.n, "`%s` needs bools, this is %s", n.Operator, TypeString(x.t.typ())).
				because("a condition is true or false").fix("%s", boolFix(x.t, w.text(x.n)))
			return failed
		}
	}
	op := plan.ExprAnd
	if or {
		op = plan.ExprOr
	}
	if l.e.Op == plan.ExprConst && !l.e.Value.IsNull() {
		if l.e.Value.Bool() == or {
			return typed{e: l.e}
		}
		return typed{e: r.e}
	}
	t := scalar.TypeBool
	t.Nullable = l.typ().Nullable || r.typ().Nullable
	le, _ := w.cast(n, l.e, scalar.TypeBool)
	re, _ := w.cast(n, r.e, scalar.TypeBool)
	return typed{e: &plan.Expr{Op: op, Type: t, Args: []*plan.Expr{le, re}, Pos: w.pos(n)}}
}

func boolFix(t typed, text string) string {
	switch k := t.typ().Kind; {
	case k.Numeric():
		return "`" + text + " != 0`"
	case k == scalar.KindString:
		return "`" + text + " != \"\"`"
	case t.typ().Nullable:
		return "`" + text + " != nil`"
	}
	return "compare it with something"
}

// implied gives the paths that are not null when n is outcome.
func (w *walk) implied(n ast.Node, outcome bool, s *scope) []string {
	switch n := n.(type) {
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return w.implied(n.Node, !outcome, s)
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "and", "&&", "or", "||":
			l, r := w.implied(n.Left, outcome, s), w.implied(n.Right, outcome, s)
			if outcome == (n.Operator == "and" || n.Operator == "&&") {
				return append(l, r...)
			}
			var both []string
			for _, p := range l {
				for _, q := range r {
					if p == q {
						both = append(both, p)
					}
				}
			}
			return both
		case "==", "!=":
			if x := nilSide(n); x != nil && outcome == (n.Operator == "!=") {
				return w.paths(x, s)
			}
		}
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok && id.Value == "is_null" && len(n.Arguments) == 1 && !outcome {
			return w.paths(n.Arguments[0], s)
		}
	}
	return nil
}

// paths gives the path of n and of everything that must be there for n to be there.
func (w *walk) paths(n ast.Node, s *scope) []string {
	p := w.path(n, s)
	if p == "" {
		return nil
	}
	out := []string{p}
	for i := len(p) - 1; i > 0; i-- {
		if p[i] == '.' && p[:i] != "record" {
			out = append(out, p[:i])
		}
	}
	return out
}

func (w *walk) path(n ast.Node, s *scope) string {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		for v := s.vars; v != nil; v = v.next {
			if v.name == n.Value {
				return v.value.path
			}
		}
		return n.Value
	case *ast.ChainNode:
		return w.path(n.Node, s)
	case *ast.MemberNode:
		if p, ok := n.Property.(*ast.StringNode); ok {
			if base := w.path(n.Node, s); base != "" {
				return base + "." + p.Value
			}
		}
	}
	return ""
}

func (w *walk) coalesce(n *ast.BinaryNode, s *scope) typed {
	l, r := w.check(n.Left, s), w.check(n.Right, s)
	if !l.ok() || !r.ok() {
		return failed
	}
	if !l.typ().Nullable {
		w.err("W0142", n.Left, "`%s` is never nil, so the right side of `??` is never used", w.text(n.Left)).
			because("its type is %s", TypeString(l.typ())).fix("leave `?? ..` out").
			replace(span{w.c.outerSpan(n.Left).end, w.c.outerSpan(n.Right).end}, "")
		return l
	}
	return w.coalesced(n, l, r, "the sides of `??`")
}

func (w *walk) coalesced(n ast.Node, l, r typed, what string) typed {
	l, r, t, ok := w.unify(n, l, r, what)
	if !ok {
		return failed
	}
	if l.e.Op == plan.ExprConst {
		if l.e.Value.IsNull() {
			return r
		}
		return l
	}
	t.Nullable = r.typ().Nullable
	return typed{e: &plan.Expr{Op: plan.ExprCoalesce, Type: t, Args: []*plan.Expr{l.e, r.e}, Pos: w.pos(n)}}
}

// unify widens two values to their common type and reports if they have none.
func (w *walk) unify(n ast.Node, l, r typed, what string) (typed, typed, scalar.Type, bool) {
	l, r = w.adapt(l, r), w.adapt(r, l)
	lt, rt := l.typ(), r.typ()
	t, ok := scalar.Common(lt, rt)
	if !ok {
		code := "E0116"
		if lt.Kind == scalar.KindDecimal && rt.Kind.Float() || rt.Kind == scalar.KindDecimal && lt.Kind.Float() {
			code = "E0114"
		}
		w.err(code, n, "%s have different types: %s and %s", what, TypeString(lt), TypeString(rt)).
			because("one column has one type").fix("cast one side to the type of the other")
		return l, r, t, false
	}
	le, ok1 := w.cast(n, l.e, t)
	re, ok2 := w.cast(n, r.e, t)
	if !ok1 || !ok2 {
		return l, r, t, false
	}
	l.e, r.e = le, re
	return l, r, t, true
}

func (w *walk) conditional(n *ast.ConditionalNode, s *scope) typed {
	cond := w.check(n.Cond, s)
	yes, no := *s, *s
	yes.facts = s.facts.with(w.implied(n.Cond, true, s))
	no.facts = s.facts.with(w.implied(n.Cond, false, s))
	a, b := w.check(n.Exp1, &yes), w.check(n.Exp2, &no)
	if cond.ok() && !w.condition(n.Cond, cond, "`?:`", s) {
		cond = failed
	}
	if !cond.ok() || !a.ok() || !b.ok() {
		return failed
	}
	if a.lit != "" && b.lit != "" && a.typ().Kind == b.typ().Kind && cond.e.Op != plan.ExprConst {
		// two literals of a kind stay what they are
		return typed{e: &plan.Expr{Op: plan.ExprCond, Type: a.typ(), Args: []*plan.Expr{cond.e, a.e, b.e}, Pos: w.pos(n)}}
	}
	a, b, t, ok := w.unify(n, a, b, "the branches")
	if !ok {
		return failed
	}
	if cond.e.Op == plan.ExprConst {
		if cond.e.Value.Bool() {
			return typed{e: a.e}
		}
		return typed{e: b.e}
	}
	t.Nullable = a.typ().Nullable || b.typ().Nullable
	return typed{e: &plan.Expr{Op: plan.ExprCond, Type: t, Args: []*plan.Expr{cond.e, a.e, b.e}, Pos: w.pos(n)}}
}

// condition requires a bool that is never null.
func (w *walk) condition(n ast.Node, t typed, what string, s *scope) bool {
	typ := t.typ()
	switch {
	case typ.Kind != scalar.KindBool:
		w.err("E0113", n, "%s needs a bool, this is %s", what, TypeString(typ)).
			because("a condition is true or false").fix("%s", boolFix(t, w.text(n)))
		return false
	case typ.Nullable:
		w.nullableCondition(n, what, s)
		return false
	}
	return true
}

// nullableCondition is E0112: it names what may be null and offers both ways out.
func (w *walk) nullableCondition(n ast.Node, what string, s *scope) {
	at := w.c.nodeSpan(n)
	culprit, cn := w.nullSource(n, s)
	text := w.c.src.slice(at)
	f := w.c.err("E0112", at, "%s needs a bool, this is bool? because `%s` may be null", what, culprit)
	if what == "`?:`" {
		f.because("when the condition is null, neither branch is right")
	} else {
		f.because("a row whose condition is null is neither kept nor refused")
	}
	if cn == nil {
		f.fix("say what null means: `(%s) ?? false`", text).replace(at, "(("+text+") ?? false)")
		return
	}
	ct := w.typeOf(cn, s)
	cs := w.c.nodeSpan(cn)
	guard := culprit + " != nil and " + parenthesized(n, text)
	if def := zeroText(ct); def != "" {
		repl := culprit + " ?? " + def
		if o := w.c.outerSpan(cn); at != cs && o == cs && !(cs.start > 0 && w.c.src.text[cs.start-1] == '(' && cs.end < len(w.c.src.text) && w.c.src.text[cs.end] == ')') {
			repl = "(" + repl + ")"
		}
		edited := w.c.src.text[at.start:cs.start] + repl + w.c.src.text[cs.end:at.end]
		f.fix("`%s`   or   `%s`", oneLine(edited), oneLine(guard))
	} else {
		f.fix("`%s`", oneLine(guard))
	}
	if w.path(cn, s) != "" {
		f.replace(at, guard)
	} else {
		f.replace(at, "(("+text+") ?? false)")
	}
}

// parenthesized wraps what binds looser than `and`.
func parenthesized(n ast.Node, text string) string {
	switch n := n.(type) {
	case *ast.ConditionalNode:
		return "(" + text + ")"
	case *ast.BinaryNode:
		if n.Operator == "or" || n.Operator == "||" {
			return "(" + text + ")"
		}
	}
	return text
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// zeroText is a stand-in for null, as text.
func zeroText(t scalar.Type) string {
	switch k := t.Kind; {
	case k.Numeric():
		return "0"
	case k == scalar.KindString:
		return `""`
	case k == scalar.KindBool:
		return "false"
	}
	return ""
}

// nullSource finds the leaf that makes a condition nullable.
func (w *walk) nullSource(n ast.Node, s *scope) (string, ast.Node) {
	var children []ast.Node
	switch n := n.(type) {
	case *ast.IdentifierNode, *ast.ChainNode:
		if t := w.typeOf(n, s); t.Nullable {
			return w.text(n), n
		}
		return "", nil
	case *ast.MemberNode:
		if t := w.typeOf(n, s); t.Nullable {
			return w.text(n), n
		}
		return "", nil
	case *ast.UnaryNode:
		children = []ast.Node{n.Node}
	case *ast.BinaryNode:
		if nilSide(n) != nil {
			return "", nil // a test for nil is never null
		}
		if n.Operator == "??" {
			children = []ast.Node{n.Right}
			break
		}
		if l, ln := w.nullSource(n.Left, s); ln != nil {
			return l, ln
		}
		inner := *s
		inner.facts = s.facts.with(w.implied(n.Left, n.Operator == "and" || n.Operator == "&&", s))
		return w.nullSource(n.Right, &inner)
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok && id.Value == "is_null" {
			return "", nil
		}
		children = n.Arguments
	case *ast.BuiltinNode:
		children = n.Arguments
	case *ast.ConditionalNode:
		children = []ast.Node{n.Exp1, n.Exp2}
	}
	for _, ch := range children {
		if _, closure := ch.(*ast.PredicateNode); closure {
			continue
		}
		if t, cn := w.nullSource(ch, s); cn != nil {
			return t, cn
		}
	}
	if t := w.typeOf(n, s); t.Nullable {
		if utf8.RuneCountInString(w.text(n)) > 60 {
			return "it", nil
		}
		return oneLine(w.text(n)), n
	}
	return "it", nil
}

// typeOf checks n again without reporting.
func (w *walk) typeOf(n ast.Node, s *scope) scalar.Type {
	mark, budget, over := len(w.c.found), w.budget, w.over
	quick := 2 * maxNodes
	w.budget, w.over = &quick, false
	t := w.check(n, s)
	w.c.found, w.budget, w.over = w.c.found[:mark], budget, over
	if !t.ok() {
		return scalar.Type{}
	}
	return t.typ()
}

// freshPath names a value that narrowing can track and that has no name of its own.
func (c *checker) freshPath() string {
	c.paths++
	return "$" + itoa(c.paths)
}
