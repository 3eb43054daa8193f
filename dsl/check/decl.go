package check

import (
	"fmt"
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// A constant is the value of a const or param.
type constant struct {
	expr *plan.Expr // an ExprConst
	lit  string     // number literal text, see typed
}

// A function is a checked `fn`.
type function struct {
	params []scalar.Type
	result scalar.Type
}

// resolveConst evaluates a const or param, once; constants may use each other in any order.
func (c *checker) resolveConst(s *symbol) {
	switch s.state {
	case done:
		return
	case running:
		c.err("E0135", s.at, "%s `%s` is made from itself", s.kind, s.name).
			because("its value would never be known").fix("give it a value of its own")
		return
	}
	s.state = running
	defer func() { s.state = done }()
	switch d := s.stmt.(type) {
	case *syntax.ConstDecl:
		s.value = c.constantOf(&d.Value, "const `"+s.name+"`")
	case *syntax.ParamDecl:
		s.value = c.paramValue(s, d)
	}
}

// constantOf requires that an expression has one value for all rows.
func (c *checker) constantOf(x *syntax.Expr, what string) *constant {
	t := c.exprTyped(x, &scope{pure: true, where: what})
	if !t.ok() {
		return nil
	}
	if t.e.Op != plan.ExprConst {
		c.err("E0130", exprSpan(x), "%s is not a constant", what).
			because("it cannot be computed before any row").fix("use literals and functions of them")
		return nil
	}
	if t.typ().Kind == scalar.KindNull {
		c.err("E0118", exprSpan(x), "nil alone has no type").because("nil may stand for a value of any type").fix("give it a value")
		return nil
	}
	return &constant{expr: t.e, lit: t.lit}
}

// paramValue takes the value given from outside, or the default.
func (c *checker) paramValue(s *symbol, d *syntax.ParamDecl) *constant {
	col, ok := c.column(&d.Type)
	if !ok {
		return nil
	}
	var def *constant
	if d.Default != nil {
		if def = c.constantOf(d.Default, "the default of `"+s.name+"`"); def == nil {
			return nil
		}
		w := &walk{c: c, durations: d.Default.Durations, budget: new(int)}
		t := typed{e: def.expr, lit: def.lit}
		if col.Type.Kind == scalar.KindDecimal || col.Type.Kind == scalar.KindUint64 {
			t = w.adapt(t, typed{e: &plan.Expr{Type: col.Type}})
		}
		common, ok := scalar.Common(col.Type, t.typ())
		if lit := t.lit != "" && t.typ().Kind == scalar.KindInt64 && col.Type.Kind.Integer(); !lit && (!ok || !common.Same(col.Type)) {
			c.err("E0110", exprSpan(d.Default), "the default of `%s` is %s, not %s", s.name, TypeString(t.typ()), TypeString(col.Type)).
				because("the param was declared as %s", TypeString(col.Type)).fix("change the type or the default")
			return nil
		}
		if v, good := paramText(col.Type, constText(t.e)); good && t.typ().Kind != col.Type.Kind {
			def = &constant{expr: &plan.Expr{Op: plan.ExprConst, Type: col.Type.NonNull(), Value: v, Pos: t.e.Pos, Text: t.e.Text}}
		} else if e, good := w.cast(d.Default.Node, t.e, col.Type); good {
			def = &constant{expr: e}
		} else {
			return nil
		}
	}
	text, given := c.opts.Params[s.name]
	if !given {
		if def == nil {
			c.err("E0138", s.at, "param `%s` has no value", s.name).
				because("it has no default, and none was given").
				fix("`apply -p %s=..`, or a default: `param %s: %s = ..`", s.name, s.name, TypeString(col.Type))
		}
		return def
	}
	v, good := paramText(col.Type, text)
	if !good {
		c.err("E0138", s.at, "param `%s` cannot be %q", s.name, text).
			because("it is declared as %s", TypeString(col.Type)).fix("give a value of that type")
		return nil
	}
	return &constant{expr: &plan.Expr{Op: plan.ExprConst, Type: col.Type.NonNull(), Value: v, Pos: c.src.pos(s.at.start), Text: s.name}}
}

func constText(e *plan.Expr) string {
	t := e.Type.NonNull()
	b, code := scalar.AppendText(nil, e.Value, t)
	if code != scalar.CodeNone {
		return ""
	}
	return string(b)
}

// paramText reads a value of type t.
func paramText(t scalar.Type, text string) (scalar.Value, bool) {
	text = strings.TrimSpace(text)
	switch k := t.Kind; {
	case k == scalar.KindString:
		return scalar.String(text), true
	case k == scalar.KindBool:
		switch text {
		case "true":
			return scalar.Bool(true), true
		case "false":
			return scalar.Bool(false), true
		}
	case k == scalar.KindTime:
		ns, code := scalar.ParseTime(text)
		return scalar.Time(ns), code == scalar.CodeNone
	case k == scalar.KindDate:
		d, code := scalar.ParseDate(text)
		return scalar.Date(d), code == scalar.CodeNone
	case k == scalar.KindDuration:
		ns, code := scalar.ParseDuration(text)
		return scalar.Duration(ns), code == scalar.CodeNone
	case k == scalar.KindDecimal:
		d, code := scalar.ParseDecimalAs(text, t.Precision, t.Scale)
		return scalar.Decimal(d), code == scalar.CodeNone
	case k.Integer():
		return integerText(k, text)
	case k == scalar.KindFloat64:
		return floatText(text)
	}
	return scalar.Null, false
}

// resolveFunc checks a function once by itself, with its parameters as unknown values.
func (c *checker) resolveFunc(s *symbol) {
	if s.state != untouched {
		return
	}
	s.state = done
	d := s.stmt.(*syntax.FuncDecl)
	if d.Body == nil {
		c.notBuilt("wasm", "a function of WebAssembly", s.at, "code from outside the language").
			fix("write its body as an expression")
		return
	}
	f := &function{}
	ok := true
	seen := map[string]bool{}
	var vars *variable
	for i := range d.Params {
		p := &d.Params[i]
		col, good := c.column(&p.Type)
		ok = ok && good
		if seen[p.Name.Text] {
			c.err("E0108", c.nameSpan(p.Name), "`%s` has two parameters `%s`", s.name, p.Name.Text).because("the body could not tell them apart").fix("rename one of them")
			ok = false
		}
		seen[p.Name.Text] = true
		f.params = append(f.params, col.Type)
		vars = &variable{name: p.Name.Text, next: vars, value: typed{
			e: &plan.Expr{Op: plan.ExprVar, Type: col.Type, Depth: i, Pos: c.src.pos(int(p.Name.Pos))}, path: c.freshPath(),
		}}
	}
	col, good := c.column(&d.Result)
	f.result = col.Type
	if !ok || !good {
		return
	}
	if _, is := aggregates[s.name]; is || scalar.Callable(s.name) || removedFunctions[s.name].why != "" {
		c.err("E0102", s.at, "`%s` is a built-in function", s.name).
			because("a call could mean either").fix("give yours another name")
		return
	}
	s.fn = f
	if c.callsItself(s, d.Body.Node, map[string]bool{}) {
		c.err("E0135", s.at, "fn `%s` calls itself", s.name).
			because("a function is put in the place of its call, which would never end").
			fix("write it without recursion")
		s.fn = nil
		return
	}
	t := c.exprTyped(d.Body, &scope{vars: vars, meta: metaNone, where: "fn `" + s.name + "`", pure: true, fn: s.name})
	if !t.ok() {
		s.fn = nil
		return
	}
	if _, ok := c.widens(d.Body, t, f.result); !ok {
		fix := castFix(oneLine(d.Body.Text), t.typ(), f.result) + ", or declare the result as " + TypeString(t.typ())
		if c.sameButNull(t.typ(), f.result) {
			fix = "declare the result as `" + TypeString(f.result) + "?`, or give a value for null with `??`"
		}
		c.err("E0110", exprSpan(d.Body), "fn `%s` gives %s, not %s", s.name, TypeString(t.typ()), TypeString(f.result)).
			because("the declaration says %s", TypeString(f.result)).fix("%s", fix)
		s.fn = nil
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// castFix is the cast of an expression to a type, in words if there is none.
func castFix(text string, from, to scalar.Type) string {
	switch k := to.Kind; {
	case k == scalar.KindDecimal:
		return fmt.Sprintf("`dec(%s, %d, %d)`", text, to.Precision, to.Scale)
	case k == scalar.KindInt64 && (from.Kind.Numeric() || from.Kind == scalar.KindString):
		return "`int(" + text + ")`"
	case k == scalar.KindFloat64 && (from.Kind.Numeric() || from.Kind == scalar.KindString):
		return "`float(" + text + ")`"
	case k == scalar.KindString || k.Numeric() && (from.Kind.Numeric() || from.Kind == scalar.KindString):
		return "`" + k.String() + "(" + text + ")`"
	case k == scalar.KindTime && from.Kind == scalar.KindString:
		return "`parse_time(" + text + ", \"yyyy-MM-dd\")`"
	}
	return "give it " + TypeString(to)
}

func (c *checker) sameButNull(a, b scalar.Type) bool { return a.Same(b) && a.Nullable && !b.Nullable }

// widens says whether t can become the type to without being asked.
func (c *checker) widens(x *syntax.Expr, t typed, to scalar.Type) (typed, bool) {
	w := &walk{c: c, budget: new(int)}
	t = w.adapt(t, typed{e: &plan.Expr{Type: to}})
	if t.typ().Nullable && !to.Nullable {
		return t, false
	}
	common, ok := scalar.Common(to, t.typ())
	if !ok || !common.Same(to) {
		return t, false
	}
	e, ok := w.cast(x.Node, t.e, to)
	t.e = e
	return t, ok
}

// callsItself follows the calls of a body.
func (c *checker) callsItself(s *symbol, n ast.Node, seen map[string]bool) bool {
	found := false
	visit(n, func(m ast.Node) {
		call, ok := m.(*ast.CallNode)
		if !ok || found {
			return
		}
		id, ok := call.Callee.(*ast.IdentifierNode)
		if !ok {
			return
		}
		if id.Value == s.name {
			found = true
			return
		}
		if o := c.symbols[id.Value]; o != nil && o.kind == symFunc && !seen[id.Value] {
			seen[id.Value] = true
			if d := o.stmt.(*syntax.FuncDecl); d.Body != nil && d.Body.Node != nil && c.callsItself(s, d.Body.Node, seen) {
				found = true
			}
		}
	})
	return found
}

// userCall puts the body of a function in the place of its call.
func (w *walk) userCall(n ast.Node, sym *symbol, at span, nodes []ast.Node, s *scope) typed {
	w.c.resolveFunc(sym)
	list := make([]typed, len(nodes))
	good := true
	for i, a := range nodes {
		list[i] = w.check(a, s)
		good = good && list[i].ok()
	}
	if sym.fn == nil || !good {
		return failed
	}
	d := sym.stmt.(*syntax.FuncDecl)
	if len(nodes) != len(d.Params) {
		w.c.err("E0111", w.c.nodeSpan(n), "`%s` takes %d %s, not %d", sym.name, len(d.Params), plural(len(d.Params), "argument"), len(nodes)).
			because("it is declared in line %d", w.c.src.line(sym.at.start)).fix("give one value for each parameter")
		return failed
	}
	var vars *variable
	for i := range d.Params {
		to := sym.fn.params[i]
		t := w.adapt(list[i], typed{e: &plan.Expr{Type: to}})
		common, ok := scalar.Common(to, t.typ())
		null := t.typ().Nullable && !to.Nullable
		if !ok || !common.Same(to) || null {
			f := w.err("E0111", nodes[i], "`%s` needs %s for `%s`, this is %s", sym.name, TypeString(to), d.Params[i].Name.Text, TypeString(t.typ()))
			if ok && null {
				f.because("the parameter does not take null").fix("give a value for null with `??`, or declare it as `%s?`", TypeString(to))
			} else {
				f.because("it is declared in line %d", w.c.src.line(sym.at.start)).fix("%s", castFix(oneLine(w.text(nodes[i])), t.typ(), to))
			}
			return failed
		}
		e, ok := w.cast(nodes[i], t.e, to)
		if !ok || w.tooLarge(nodes[i], e) {
			return failed
		}
		vars = &variable{name: d.Params[i].Name.Text, value: typed{e: e, path: w.c.freshPath()}, depth: 0, next: vars}
	}
	for v := vars; v != nil; v = v.next {
		v.depth = s.depth
	}
	inner := &walk{c: w.c, durations: d.Body.Durations, budget: w.budget, over: w.over}
	mark := len(w.c.found)
	t := inner.check(d.Body.Node, &scope{vars: vars, pure: true, meta: metaNone, depth: s.depth, where: "fn `" + sym.name + "`", fn: sym.name})
	if !t.ok() {
		// What fails with these arguments only (a constant) belongs to the call.
		if len(w.c.found) > mark {
			d := w.c.found[mark].d
			w.c.found = w.c.found[:mark]
			w.err(d.Code, n, "%s in `%s`", d.Message, sym.name).because("%s", d.Reason).fix("%s", d.Fix)
		}
		return failed
	}
	w.c.found = w.c.found[:mark] // warnings were given at the declaration
	e, ok := w.cast(n, w.adapt(t, typed{e: &plan.Expr{Type: sym.fn.result}}).e, sym.fn.result)
	if !ok {
		return failed
	}
	return typed{e: e}
}

// visit calls f for n and everything below it.
func visit(n ast.Node, f func(ast.Node)) {
	if n == nil {
		return
	}
	f(n)
	list := func(nodes []ast.Node) {
		for _, m := range nodes {
			visit(m, f)
		}
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		visit(n.Node, f)
	case *ast.BinaryNode:
		visit(n.Left, f)
		visit(n.Right, f)
	case *ast.ChainNode:
		visit(n.Node, f)
	case *ast.MemberNode:
		visit(n.Node, f)
		visit(n.Property, f)
	case *ast.SliceNode:
		visit(n.Node, f)
		visit(n.From, f)
		visit(n.To, f)
	case *ast.CallNode:
		visit(n.Callee, f)
		list(n.Arguments)
	case *ast.BuiltinNode:
		list(n.Arguments)
	case *ast.PredicateNode:
		visit(n.Node, f)
	case *ast.ConditionalNode:
		visit(n.Cond, f)
		visit(n.Exp1, f)
		visit(n.Exp2, f)
	case *ast.VariableDeclaratorNode:
		visit(n.Value, f)
		visit(n.Expr, f)
	case *ast.SequenceNode:
		list(n.Nodes)
	case *ast.ArrayNode:
		list(n.Nodes)
	case *ast.MapNode:
		list(n.Pairs)
	case *ast.PairNode:
		visit(n.Key, f)
		visit(n.Value, f)
	}
}
