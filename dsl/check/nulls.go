package check

import (
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

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
			f := w.err("E0113", x.n, "`%s` needs bools, this is %s", n.Operator, TypeString(x.t.typ())).
				because("a condition is true or false").fix("%s", boolFix(x.t, w.text(x.n)))
			w.compareWithZero(f, x.n, x.t.typ())
			if n.Operator == "||" && l.typ().Kind == scalar.KindString {
				at := w.c.nodeSpan(n)
				text := w.c.src.slice(w.c.outerSpan(n.Left)) + " + " + w.c.src.slice(w.c.outerSpan(n.Right))
				w.c.found[len(w.c.found)-1].because("`||` is `or`; texts are joined by `+`").fix("`%s`", oneLine(text)).replace(at, text)
			}
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

// compareWithZero makes a column that is a number a condition; larger expressions would need parentheses, and
// null a decision.
func (w *walk) compareWithZero(f *finding, n ast.Node, t scalar.Type) {
	if id, ok := n.(*ast.IdentifierNode); ok && t.Kind.Numeric() && !t.Nullable {
		f.replace(w.c.nodeSpan(n), id.Value+" != 0")
	}
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
		f := w.err("E0113", n, "%s needs a bool, this is %s", what, TypeString(typ)).
			because("a condition is true or false").fix("%s", boolFix(t, w.text(n)))
		w.compareWithZero(f, n, typ)
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
	if _, let := n.(*ast.VariableDeclaratorNode); let || strings.HasPrefix(w.c.src.slice(at), "if ") {
		at, culprit, cn = w.c.outerSpan(n), "it", nil // it stands in parentheses, and its names are its own
	}
	if _, let := cn.(*ast.VariableDeclaratorNode); let || cn != nil && strings.HasPrefix(w.text(cn), "if ") {
		culprit, cn = "it", nil
	}
	if culprit != "it" {
		culprit = "`" + culprit + "`"
	}
	text := w.c.src.slice(at)
	f := w.c.err("E0112", at, "%s needs a bool, this is bool? because %s may be null", what, culprit)
	if what == "`?:`" {
		f.because("when the condition is null, neither branch is right")
	} else {
		f.because("a row whose condition is null is neither kept nor refused")
	}
	if cn == nil {
		if strings.HasPrefix(text, "(") && w.c.outerSpan(n) == at && w.c.nodeSpan(n) != at {
			f.fix("say what null means: `%s ?? false`", oneLine(text)).replace(at, "("+text+" ?? false)")
			return
		}
		f.fix("say what null means: `(%s) ?? false`", text).replace(at, "(("+text+") ?? false)")
		return
	}
	ct := w.typeOf(cn, s)
	cs := w.c.nodeSpan(cn)
	culprit = strings.Trim(culprit, "`")
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
