package check

import (
	"regexp"
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

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
		w.err("E0136", n, "there is no operator `%s`", n.Operator).because("the language has operators of its own").fix("see the list of operators")
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
	container := func(k scalar.Kind) bool { return k == scalar.KindList || k == scalar.KindMap || k == scalar.KindStruct }
	switch {
	case b != nil && op == "+" && lk == scalar.KindList:
		x := w.text(b.Right)
		if rk != scalar.KindList {
			x = "[" + x + "]"
		}
		f.because("lists are joined by a function").fix("`concat(%s, %s)`", w.text(b.Left), x)
	case b != nil && op == "+" && (lk == scalar.KindString && container(rk) || rk == scalar.KindString && container(lk)):
		x := b.Right
		if rk == scalar.KindString {
			x = b.Left
		}
		at := w.c.nodeSpan(x)
		f.because("texts are joined with texts").replace(at, "to_json("+w.c.src.slice(at)+")")
	case b != nil && (lk == scalar.KindTime || lk == scalar.KindDuration) && rk == scalar.KindString && r.e.Op == plan.ExprConst && durationLike(r.e.Value.S):
		f.because("a duration stands without quotes").replace(w.c.nodeSpan(b.Right), r.e.Value.S)
	case b != nil && isComparison(op) && (lk == scalar.KindBytes && rk == scalar.KindString || lk == scalar.KindString && rk == scalar.KindBytes):
		x := b.Left
		if rk == scalar.KindBytes {
			x = b.Right
		}
		at := w.c.nodeSpan(x)
		f.replace(at, "string("+w.c.src.slice(at)+")")
	case b != nil && op == "+" && lk != rk && (lk == scalar.KindString || rk == scalar.KindString) && lk != scalar.KindBytes && rk != scalar.KindBytes:
		x := b.Left
		if lk == scalar.KindString {
			x = b.Right
		}
		at := w.c.nodeSpan(x)
		f.because("texts are joined with texts").replace(at, "string("+w.c.src.slice(at)+")")
	case re != nil && re.Suggestion != "" && !isComparison(op):
		f.because("%s", re.Reason).fix("%s", re.Suggestion)
	case b != nil && lk == scalar.KindString && rk.Numeric() && r.lit != "":
		at := w.c.nodeSpan(b.Right)
		f.replace(at, "\""+strings.Trim(w.c.src.slice(at), "\"")+"\"")
	case b != nil && rk == scalar.KindString && lk.Numeric() && l.lit != "":
		at := w.c.nodeSpan(b.Left)
		f.replace(at, "\""+strings.Trim(w.c.src.slice(at), "\"")+"\"")
	case b != nil && lk.Numeric() && r.e.Op == plan.ExprConst && rk == scalar.KindString && numberLike(r.e.Value.S):
		f.replace(w.c.nodeSpan(b.Right), r.e.Value.S)
	case b != nil && op == "contains" && lk == scalar.KindList:
		f.because("`contains` looks into a text").replace(w.c.nodeSpan(b), w.c.src.slice(w.c.outerSpan(b.Right))+" in "+w.c.src.slice(w.c.outerSpan(b.Left)))
	case b != nil && lk == scalar.KindTime && rk == scalar.KindString:
		at := w.c.nodeSpan(b.Right)
		text := "parse_time(" + w.c.src.slice(at) + ", \"yyyy-MM-dd\")"
		if r.e.Op == plan.ExprConst && strings.ContainsAny(r.e.Value.S, "T:") {
			text = "parse_time(" + w.c.src.slice(at) + ", \"yyyy-MM-dd" + r.e.Value.S[min(10, len(r.e.Value.S)):min(11, len(r.e.Value.S))] + "HH:mm:ss\")"
		}
		f.replace(at, text)
	case b != nil && lk == scalar.KindTime && rk.Integer() && isComparison(op):
		at, unit := w.c.nodeSpan(b.Right), "s"
		if r.e.Op == plan.ExprConst && r.e.Value.I > 100_000_000_000 {
			unit = "ms"
		}
		f.replace(at, "from_epoch("+w.c.src.slice(at)+", \""+unit+"\")")
	case b != nil && isComparison(op) && lk.Integer() && rk == scalar.KindDuration:
		f.fix("`%s * 1s`, if it counts seconds", w.text(b.Left)).replace(w.c.nodeSpan(b.Left), w.c.src.slice(w.c.outerSpan(b.Left))+" * 1s")
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

var durationPattern = regexp.MustCompile(`^([0-9]+(ns|us|ms|s|m|h|d|w))+$`)

// durationLike says whether a text is a duration as the language writes it.
func durationLike(s string) bool { return len(s) <= 20 && durationPattern.MatchString(s) }

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
	if alwaysByZero(f, e.Args) {
		w.err(scalar.CodeDivisionByZero.String(), n, "this divides by zero in every row").
			because("the right side is 0").fix("use another divisor")
		return failed
	}
	return w.fold(n, e)
}

// alwaysByZero says whether a division has the constant 0 on its right, and fails for it.
func alwaysByZero(f *scalar.Func, args []*plan.Expr) bool {
	switch f.Name {
	case "div_op", "mod_op", "div", "mod":
	default:
		return false
	}
	if len(args) != 2 || args[0].Op == plan.ExprConst || args[1].Op != plan.ExprConst || args[1].Value.IsNull() {
		return false
	}
	one := scalar.Int(1)
	switch k := args[0].Type.Kind; {
	case k.Float():
		one = scalar.Float(1)
	case k == scalar.KindDecimal:
		one = scalar.Decimal(scalar.Int128Of(1))
	case k == scalar.KindDuration:
		one = scalar.Duration(1)
	case k == scalar.KindUint64:
		one = scalar.Uint(1)
	case !k.Integer():
		return false
	}
	_, code := f.Call([]scalar.Value{one, args[1].Value})
	return code == scalar.CodeDivisionByZero
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
		f := w.err(code, n, "%s have different types: %s and %s", what, TypeString(lt), TypeString(rt)).because("one column has one type")
		switch plain := func(t scalar.Type) bool {
			return t.Kind.Numeric() || t.Kind == scalar.KindBool || t.Kind == scalar.KindTime
		}; {
		case plain(lt) && rt.Kind == scalar.KindString:
			f.fix("make it a text: `string(..)` around the %s", TypeString(lt.NonNull()))
		case plain(rt) && lt.Kind == scalar.KindString:
			f.fix("make it a text: `string(..)` around the %s", TypeString(rt.NonNull()))
		default:
			f.fix("cast one side to the type of the other")
		}
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
