package check

import (
	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// aggregateForm says why an aggregate takes the arguments that it takes, and shows a call.
func aggregateForm(name string) (why, form string) {
	switch name {
	case "arg_min":
		return "it gives the x of the row with the least y", "`arg_min(x, y)`"
	case "arg_max":
		return "it gives the x of the row with the greatest y", "`arg_max(x, y)`"
	case "list":
		return "a group keeps the first values only, and needs to know how many", "`list(x, 100)`"
	case "set":
		return "a group keeps the least values only, and needs to know how many", "`set(x, 100)`"
	case "top_k":
		return "it needs to know how many of the greatest values", "`top_k(x, 10)`"
	case "join":
		return "it needs to know what stands between the texts", "`join(x, \", \")`"
	case "quantile", "approx_quantile":
		return "it needs to know which quantile, 0 to 1", "`" + name + "(x, 0.95)`"
	}
	return "it folds one value a row", "`" + name + "(x)`"
}

// secondArg types the second argument: what arg_min compares, or a constant.
func (w *walk) secondArg(call *plan.AggCall, n ast.Node, in *scope) bool {
	if p, ok := n.(*ast.PredicateNode); ok {
		w.err("E0133", p, "`%s` takes no closure", call.Func).because("only list functions look at elements").fix("pass a value")
		return false
	}
	arg := w.check(n, in)
	if !arg.ok() {
		return false
	}
	switch call.Func {
	case "arg_min", "arg_max":
		return w.comparedArg(call, arg, n)
	}
	t := arg.typ()
	_, form := aggregateForm(call.Func)
	if arg.e.Op != plan.ExprConst || arg.e.Value.IsNull() {
		w.err("E0119", n, "the second argument of `%s` must be a constant", call.Func).
			because("what a group keeps is known before any row comes").
			fix("a literal, a const or a param: %s", form)
		return false
	}
	call.Param = arg.e
	switch call.Func {
	case "list", "set", "top_k":
		return w.countArg(call, t, n, form)
	case "join":
		if t.Kind != scalar.KindString {
			w.err("E0111", n, "the second argument of `join` is a string, this is %s", TypeString(t)).
				because("it stands between the texts").fix("%s", form)
			return false
		}
		return true
	}
	return w.quantileArg(call, t, n, form)
}

// maxKept bounds the values that list, set and top_k keep of a group.
const maxKept = 10_000

// countArg checks how many values are kept.
func (w *walk) countArg(call *plan.AggCall, t scalar.Type, n ast.Node, form string) bool {
	if !t.Kind.Integer() {
		w.err("E0111", n, "the second argument of `%s` is a whole number, this is %s", call.Func, TypeString(t)).
			because("it says how many values a group keeps").fix("%s", form)
		return false
	}
	v, code := scalar.Cast(call.Param.Value, t, scalar.TypeInt64)
	if code != scalar.CodeNone || v.I < 1 || v.I > maxKept {
		w.err("E0404", n, "`%s` keeps 1 to %d values of a group, not %s", call.Func, maxKept, w.text(n)).
			because("what a group keeps is bounded").fix("%s", form)
		return false
	}
	e := *call.Param
	e.Type, e.Value = scalar.TypeInt64, v
	call.Param = &e
	return true
}

// comparedArg is the y of arg_min(x, y).
func (w *walk) comparedArg(call *plan.AggCall, y typed, n ast.Node) bool {
	t := y.typ()
	switch t.Kind {
	case scalar.KindNull:
		w.err("E0118", n, "`%s(x, nil)` compares nothing", call.Func).because("rows whose y is nil are skipped").fix("give it a column")
		return false
	case scalar.KindList, scalar.KindMap, scalar.KindStruct, scalar.KindBool:
		w.err("E0111", n, "`%s` needs something with an order to compare, this is %s", call.Func, TypeString(t)).
			because("it looks for the row where it is least or greatest").fix("compare a number, a time or a text")
		return false
	}
	call.By = y.e
	call.Type.Nullable = call.Type.Nullable || t.Nullable
	return true
}

// quantileArg checks the q of a quantile.
func (w *walk) quantileArg(call *plan.AggCall, t scalar.Type, n ast.Node, form string) bool {
	v := call.Param.Value
	switch {
	case !t.Kind.Numeric():
		w.err("E0111", n, "the second argument of `%s` is a number, this is %s", call.Func, TypeString(t)).
			because("it says which quantile: 0.5 is the middle").fix("%s", form)
		return false
	case !between0and1(v, t):
		w.err("E0404", n, "`%s` takes a quantile from 0 to 1, this is %s", call.Func, w.text(n)).
			because("it is the part of the values that lie below: 0.5 is the middle, 0.95 leaves 5 %% above").fix("%s", form)
		return false
	}
	return true
}

func between0and1(v scalar.Value, t scalar.Type) bool {
	f, code := scalar.Cast(v, t, scalar.TypeFloat64)
	return code == scalar.CodeNone && f.F >= 0 && f.F <= 1
}
