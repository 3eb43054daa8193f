package check

import (
	"strings"
	"time"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// An aggregateKind says how many arguments an aggregate takes.
type aggregateKind struct{ min, max int }

// aggregates are the functions that fold the rows of a group.
var aggregates = map[string]aggregateKind{
	"count": {0, 1}, "sum": {1, 1}, "min": {1, 1}, "max": {1, 1}, "avg": {1, 1}, "count_distinct": {1, 1}, "approx_distinct": {1, 1},
	"first": {1, 1}, "last": {1, 1}, "any_value": {1, 1}, "arg_min": {2, 2}, "arg_max": {2, 2}, "bool_and": {1, 1}, "bool_or": {1, 1},
	"stddev_pop": {1, 1}, "stddev_samp": {1, 1}, "var_pop": {1, 1}, "var_samp": {1, 1},
	"median": {1, 1}, "quantile": {2, 2}, "approx_quantile": {2, 2},
	"list": {2, 2}, "set": {2, 2}, "top_k": {2, 2}, "join": {2, 2},
}

const (
	windowStart = "window_start"
	windowEnd   = "window_end"
)

// An aggScope is the right side of `agg`: names are the by columns and the window, calls of aggregates
// look at the input rows and become slots.
type aggScope struct {
	in     *scope
	by     []plan.NamedExpr
	slots  []plan.AggCall
	keys   map[string]int // canonical text of a slot to its place
	filter *plan.Expr     // of the assignment being checked

	windowed bool       // the row has window_start and window_end
	retract  bool       // rows may be taken back
	over     *overScope // of `over .. set` instead
}

// columns is the synthetic row that results see.
func (a *aggScope) columns() []plan.Column {
	if a.over != nil {
		return a.over.cols
	}
	var cols []plan.Column
	for _, b := range a.by {
		cols = append(cols, plan.Column{Name: b.Name, Type: b.Expr.Type})
	}
	if !a.windowed {
		return cols
	}
	return append(cols, plan.Column{Name: windowStart, Type: scalar.TypeTime}, plan.Column{Name: windowEnd, Type: scalar.TypeTime})
}

// aggName is a bare name on the right side of `agg`.
func (w *walk) aggName(n ast.Node, name string, s *scope) typed {
	cols := s.agg.columns()
	if i := columnIndex(cols, name); i >= 0 {
		t := cols[i].Type
		if s.facts.holds(name) {
			t.Nullable = false
		}
		return typed{e: &plan.Expr{Op: plan.ExprColumn, Type: t, Column: i, Pos: w.pos(n)}, path: name}
	}
	if sym := w.c.symbols[name]; sym != nil && (sym.kind == symConst || sym.kind == symParam) && columnIndex(s.agg.in.cols, name) < 0 {
		plain := *s
		plain.agg, plain.pure, plain.cols = nil, true, nil
		return w.identifier(n.(*ast.IdentifierNode), &plain)
	}
	if s.agg.in.unknown {
		return failed
	}
	if columnIndex(s.agg.in.cols, name) >= 0 {
		at := w.c.nodeSpan(n)
		w.c.err("E0126", at, "`%s` has a value for each row, and `agg` gives one row for a group", name).
			because("it is not one of the `by` columns").
			fix("fold it, such as `last(%s)` or `max(%s)`, or add it to `by`", name, name).
			replace(at, "last("+name+")")
		return failed
	}
	w.c.unknownColumn(name, w.c.nodeSpan(n), append(cols, s.agg.in.cols...), s.agg.in.where)
	return failed
}

// rowValue says whether a node mentions a column that only rows have.
func (w *walk) rowValue(n ast.Node, s *scope) bool {
	found, folded := false, map[ast.Node]bool{}
	visit(n, func(m ast.Node) {
		if call, ok := m.(*ast.CallNode); ok {
			if id, ok := call.Callee.(*ast.IdentifierNode); ok && isAggregate(id.Value) {
				for _, a := range call.Arguments {
					visit(a, func(x ast.Node) { folded[x] = true })
				}
			}
		}
		if id, ok := m.(*ast.IdentifierNode); ok && !folded[m] {
			found = found || columnIndex(s.agg.columns(), id.Value) < 0 && columnIndex(s.agg.in.cols, id.Value) >= 0
		}
	})
	return found
}

func isAggregate(name string) bool {
	_, ok := aggregates[name]
	return ok
}

// listCall says whether a function with the name of an aggregate is meant as the function of a list, or
// of several numbers.
func (w *walk) listCall(name string, nodes []ast.Node, s *scope) bool {
	if len(nodes) == 0 {
		return false
	}
	if (name == "min" || name == "max") && len(nodes) > 1 {
		return true
	}
	k := w.typeOf(nodes[0], s).Kind
	return k == scalar.KindList || k == scalar.KindInvalid
}

// aggregate makes a slot of a call.
func (w *walk) aggregate(n ast.Node, name string, kind aggregateKind, at span, nodes []ast.Node, s *scope) typed {
	a := s.agg
	if len(nodes) > 0 && scalar.Callable(name) && (name == "min" || name == "max") && len(nodes) > 1 {
		w.c.err("E0128", w.c.nodeSpan(n), "`%s(a, b)` is the aggregate `%s`, which takes one value a row", name, name).
			because("on the right side of `agg` the names of aggregates mean aggregates").
			fix("`::%s(..)` is the larger or smaller of several values", name)
		f := w.c.found[len(w.c.found)-1]
		f.replace(at, "::"+name)
		for _, x := range nodes {
			if w.rowValue(x, s) { // of each row: the larger one is then folded
				whole := w.c.nodeSpan(n)
				text := name + "(::" + w.c.src.slice(whole) + ")"
				f.fix("`%s` folds the %s of each row", oneLine(text), map[string]string{"max": "larger", "min": "smaller"}[name]).replace(whole, text)
				break
			}
		}
		return failed
	}
	if len(nodes) < kind.min || len(nodes) > kind.max {
		f := w.c.err("E0111", w.c.nodeSpan(n), "the aggregate `%s` takes %s, not %d", name, argCount(kind), len(nodes))
		why, form := aggregateForm(name)
		f.because("%s", why).fix("%s", form)
		return failed
	}
	in := *a.in
	in.inAgg = name
	in.depth, in.elems, in.vars = 0, nil, nil
	if s.depth > 0 {
		w.c.err("E0127", w.c.nodeSpan(n), "an aggregate cannot stand inside a closure").
			because("a closure sees elements of a list, not rows").fix("take the aggregate out of it")
		return failed
	}
	call := plan.AggCall{Func: name, Filter: a.filter}
	if len(nodes) > 0 {
		if _, closure := nodes[0].(*ast.PredicateNode); closure {
			return failed
		}
		arg := w.check(nodes[0], &in)
		if !arg.ok() {
			return failed
		}
		if !w.aggregateArg(&call, arg, nodes[0]) || len(nodes) == 2 && !w.secondArg(&call, nodes[1], &in) {
			return failed
		}
	} else {
		call.Type = scalar.TypeInt64
	}
	for i, x := range []*plan.Expr{call.Arg, call.By, call.Param} {
		if x == nil {
			continue
		}
		if w.tooLarge(n, x) {
			return failed
		}
		setText(x, w.text(nodes[min(i, 1)]), map[*plan.Expr]bool{})
	}
	if a.retract && (call.Arg != nil && !retracts(name, call.Arg.Type) || call.Arg == nil && name != "count") {
		x := w.c.err("E0420", w.c.nodeSpan(n), "`%s` cannot take a row back", name)
		if call.Arg != nil && call.Arg.Type.Kind.Float() {
			x.because("what is left of a sum of floats after taking one away depends on the order").
				fix("make it a decimal: `%s(dec(%s, 18, 6))`", name, w.text(nodes[0]))
		} else {
			x.because("the rows are those of a table, and one that is replaced goes").
				fix("use count, sum, avg, min, max or count_distinct")
		}
		return failed
	}
	if a.over != nil && a.over.before && !strings.HasPrefix(name, "count") && name != "approx_distinct" {
		call.Type.Nullable = true
	}
	return w.slot(n, call, a)
}

// slot is the column with what a call gives. Equal calls share one.
func (w *walk) slot(n ast.Node, call plan.AggCall, a *aggScope) typed {
	key := canonicalSlot(call)
	i, ok := a.keys[key]
	if !ok {
		i = len(a.slots)
		a.slots = append(a.slots, call)
		a.keys[key] = i
	}
	return typed{
		e:    &plan.Expr{Op: plan.ExprColumn, Type: call.Type, Column: len(a.columns()) + i, Pos: w.pos(n)},
		path: "$slot" + itoa(i),
	}
}

func argCount(k aggregateKind) string {
	switch {
	case k.max == 0:
		return "no argument"
	case k.min == 0:
		return "at most one argument"
	case k.min == 2:
		return "two arguments"
	}
	return "one argument"
}

// aggregateArg types a slot: what its argument is widened to, and what it gives. A group without a
// value gives null, so a filter or a nullable argument makes the result nullable.
func (w *walk) aggregateArg(call *plan.AggCall, arg typed, n ast.Node) bool {
	t := arg.typ()
	null := t.Nullable || call.Filter != nil
	if t.Kind == scalar.KindNull {
		w.err("E0118", n, "`%s(nil)` folds nothing", call.Func).because("nil is skipped in every row").fix("give it a column")
		return false
	}
	bad := func(want string) bool {
		f := w.err("E0111", n, "the aggregate `%s` needs %s, this is %s", call.Func, want, TypeString(t)).because("it works on the values themselves, and these are of another kind")
		switch {
		case want == "single values":
			f.because("values with parts are not compared as a whole").fix("give it one of the parts")
		case t.Kind == scalar.KindString:
			f.because("a text is not read as a number by itself").fix("cast it: `int(%s)`", w.text(n))
		case t.Kind == scalar.KindBool:
			f.because("true and false are no numbers").fix("count the rows where it holds: `count() where %s`", w.text(n))
		case t.Kind == scalar.KindList || t.Kind == scalar.KindMap || t.Kind == scalar.KindStruct:
			f.fix("give it one of the parts")
		default:
			f.fix("give it a number")
		}
		return false
	}
	call.Arg = arg.e
	widen := scalar.Type{}
	switch call.Func {
	case "count", "count_distinct", "approx_distinct":
		call.Type = scalar.TypeInt64
		if call.Func != "count" && (t.Kind == scalar.KindMap || t.Kind == scalar.KindList || t.Kind == scalar.KindStruct) {
			f := w.err("E0111", n, "`%s` needs a single value, this is %s", call.Func, TypeString(t)).because("values with parts are not compared as a whole")
			f.fix("count one of its parts")
			return false
		}
		return true
	case "sum":
		switch {
		case t.Kind.Signed():
			widen, call.Type = scalar.TypeInt64, scalar.TypeInt64
		case t.Kind.Unsigned():
			widen, call.Type = scalar.TypeUint64, scalar.TypeUint64
		case t.Kind.Float():
			widen, call.Type = scalar.TypeFloat64, scalar.TypeFloat64
		case t.Kind == scalar.KindDecimal:
			widen, call.Type = t, scalar.DecimalType(scalar.MaxPrecision, t.Scale)
		case t.Kind == scalar.KindDuration:
			widen, call.Type = t, scalar.TypeDuration
		default:
			return bad("a number or a duration")
		}
	case "avg":
		call.Type = scalar.TypeFloat64
		switch {
		case t.Kind.Signed():
			widen = scalar.TypeInt64
		case t.Kind.Unsigned():
			widen = scalar.TypeUint64
		case t.Kind.Float():
			widen = scalar.TypeFloat64
		case t.Kind == scalar.KindDecimal:
			s := max(t.Scale, 6)
			widen, call.Type = t, scalar.DecimalType(min(t.Precision-t.Scale+s, scalar.MaxPrecision), s)
		default:
			return bad("a number")
		}
	case "min", "max":
		switch t.Kind {
		case scalar.KindList, scalar.KindMap, scalar.KindStruct, scalar.KindBool:
			return bad("a value with an order")
		}
		widen, call.Type = t, t.NonNull()
	case "median", "quantile":
		call.Type = scalar.TypeFloat64
		switch {
		case t.Kind.Signed():
			widen = scalar.TypeInt64
		case t.Kind.Unsigned():
			widen = scalar.TypeUint64
		case t.Kind.Float():
			widen = scalar.TypeFloat64
		case t.Kind == scalar.KindDecimal:
			s := max(t.Scale, 6)
			widen, call.Type = t, scalar.DecimalType(min(t.Precision-t.Scale+s, scalar.MaxPrecision), s)
		case t.Kind == scalar.KindDuration:
			widen, call.Type = t, scalar.TypeDuration
		default:
			return bad("a number or a duration")
		}
	case "list", "set", "top_k":
		switch t.Kind {
		case scalar.KindList, scalar.KindMap, scalar.KindStruct:
			if call.Func != "list" {
				return bad("single values")
			}
		case scalar.KindBool:
			if call.Func == "top_k" {
				return bad("a value with an order")
			}
		}
		widen, call.Type = t, scalar.ListType(t.NonNull())
	case "join":
		if t.Kind != scalar.KindString {
			f := w.err("E0111", n, "the aggregate `join` needs a string, this is %s", TypeString(t)).because("it puts texts one after the other")
			if t.Kind == scalar.KindList {
				f.fix("the texts of a list are joined by the function: `first(::join(%s, \",\"))`", w.text(n))
			} else {
				f.fix("make a text of it: `string(%s)`", w.text(n))
			}
			return false
		}
		widen, call.Type = t, scalar.TypeString
	case "bool_and", "bool_or":
		if t.Kind != scalar.KindBool {
			w.err("E0113", n, "the aggregate `%s` needs a bool, this is %s", call.Func, TypeString(t)).
				because("it says whether a condition holds in every row, or in any").
				fix("compare the value with something: `%s(%s == ..)`", call.Func, w.text(n))
			return false
		}
		widen, call.Type = t, scalar.TypeBool
	case "var_pop", "var_samp", "stddev_pop", "stddev_samp":
		null = null || call.Func == "var_samp" || call.Func == "stddev_samp" // of one value
		call.Type = scalar.TypeFloat64
		switch {
		case t.Kind.Signed():
			widen = scalar.TypeInt64
		case t.Kind.Unsigned():
			widen = scalar.TypeUint64
		case t.Kind.Float():
			widen = scalar.TypeFloat64
		case t.Kind == scalar.KindDecimal:
			widen = t
		default:
			return bad("a number")
		}
	case "approx_quantile":
		if !t.Kind.Numeric() {
			return bad("a number")
		}
		widen, call.Type = scalar.TypeFloat64, scalar.TypeFloat64
	default: // first, last, any_value, arg_min, arg_max
		widen, call.Type = t, t.NonNull()
	}
	e, ok := w.cast(n, arg.e, widen)
	call.Arg = e
	call.Type.Nullable = null
	return ok
}

// aggregateStage checks `agg .. by .. window ..`.
func (c *checker) aggregateStage(f *flow, st *syntax.Stage) {
	clauses := c.clauses(st, "by", "window", "emit", "state", "late")
	stage := plan.Stage{Kind: plan.StageAggregate, Word: "agg", Pos: c.src.pos(int(st.Pos))}
	agg := &plan.Aggregate{}
	good := c.aggWindow(f, st, clauses, agg)
	good = c.aggMode(f, st, clauses, agg) && good

	in := f.scope()
	a := &aggScope{in: in, keys: map[string]int{}, windowed: clauses["window"] != nil, retract: agg.Retract}
	outer := &scope{agg: a, where: in.where, meta: metaNone}
	if cl := clauses["by"]; cl != nil {
		for i := range cl.Items {
			if b, ok := c.namedItem(&cl.Items[i], in, "`by`"); ok {
				if why := keyable(b.Expr.Type); why != "" {
					at := exprSpan(cl.Items[i].Value)
					x := c.err("E0406", at, "rows cannot be grouped by %s", TypeString(b.Expr.Type)).because("%s", why)
					if b.Expr.Type.Kind.Float() {
						x.fix("make it a decimal or a string: `by %s = dec(%s, 18, 6)`", b.Name, c.src.slice(at)).
							replace(c.itemSpan(&cl.Items[i]), b.Name+" = dec("+c.src.slice(at)+", 18, 6)")
					} else {
						x.fix("group by one of its parts")
					}
					good = false
					continue
				}
				a.by = append(a.by, b)
			} else {
				good = false
			}
		}
	}
	agg.By = a.by
	names := map[string]span{}
	made := map[string]string{}
	if a.windowed {
		made[windowStart], made[windowEnd] = "it is the border of the row's window", "it is the border of the row's window"
	}
	if agg.Marks() {
		made[revColumn], made[finalColumn] = "it says how many rows the group has", "it says whether the row is the last of its window"
	}
	if agg.TTL > 0 && good && !f.unknown {
		cl := clauses["state"]
		good = c.onePartition(f, span{int(cl.Pos), int(cl.End)}, a.by)
	}
	for i, b := range a.by {
		at := span{b.Expr.Pos.Offset, b.Expr.Pos.Offset + 1}
		if cl := clauses["by"]; cl != nil && i < len(cl.Items) {
			at = c.itemSpan(&cl.Items[i])
		}
		good = c.freshName(b.Name, at, names, made) && good
	}
	for i := range st.Assigns {
		as := &st.Assigns[i]
		good = c.freshName(as.Name.Text, c.nameSpan(as.Name), names, made) && good
		a.filter = nil
		a.in = in
		if as.Filter != nil {
			fe := c.boolExpr(as.Filter, in, "`where`")
			if fe == nil {
				good = false
			} else {
				a.filter = fe
				narrowed := *in
				w := &walk{c: c}
				narrowed.facts = in.facts.with(w.implied(as.Filter.Node, true, in))
				a.in = &narrowed
			}
		}
		e := c.expression(&as.Value, outer)
		if e == nil {
			good = false
			continue
		}
		if e.Type.Kind == scalar.KindNull {
			c.err("E0118", exprSpan(&as.Value), "column `%s` would always be nil", as.Name.Text).because("nil alone has no type").fix("leave it out")
			good = false
			continue
		}
		agg.Results = append(agg.Results, plan.NamedExpr{Name: as.Name.Text, Expr: e})
	}
	agg.Slots = a.slots
	good = c.joinable(f, st, clauses, agg) && good
	if f.unknown || !good {
		f.unknown = true
		return
	}
	cols := a.columns()
	for _, r := range agg.Results {
		cols = append(cols, plan.Column{Name: r.Name, Type: r.Expr.Type})
	}
	if agg.Marks() {
		cols = append(cols, plan.Column{Name: revColumn, Type: scalar.TypeInt64}, plan.Column{Name: finalColumn, Type: scalar.TypeBool})
	}
	for i := range cols {
		cols[i].Input = cols[i].Name
	}
	stage.Agg = agg
	stage.Out = plan.Schema{Columns: cols}
	stage.Shuffle = !c.sameKey(f, agg.By)
	key := make([]int, len(agg.By))
	for i := range key {
		key[i] = i
	}
	if a.windowed && f.stream != plan.StreamAppend {
		key = append(key, len(agg.By)) // window_start
	}
	stage.OutKey = key
	f.push(stage)
	f.lost = nil
	f.border = borderColumn{is: f.stream == plan.StreamAppend && a.windowed, column: len(agg.By), name: windowStart}
	if agg.Window.Kind == plan.WindowCumulate { // windows that begin together
		f.border.column, f.border.name = len(agg.By)+1, windowEnd
	}
	f.stateful = true
	f.judges = f.judges || a.windowed || agg.TTL > 0
	f.meta = metaTime
	f.facts = nil
}

// sameKey says whether `by` is the key that the rows already have.
func (c *checker) sameKey(f *flow, by []plan.NamedExpr) bool {
	if f.lost != nil || len(by) != len(f.key) || len(by) == 0 {
		return false
	}
	for i, b := range by {
		if b.Expr.Op != plan.ExprColumn || b.Expr.Column != f.key[i] {
			return false
		}
	}
	return true
}

// freshName reports a column that an aggregate already has, or makes itself.
func (c *checker) freshName(name string, at span, names map[string]span, made map[string]string) bool {
	if why := made[name]; why != "" {
		c.err("E0108", at, "`agg` makes `%s` itself", name).because("%s", why).fix("use another name")
		return false
	}
	if _, taken := names[name]; taken {
		c.err("E0108", at, "there are two columns `%s`", name).because("later stages find a column by its name").fix("give one of them another name")
		return false
	}
	names[name] = at
	return true
}

// aggWindow reads the window; an aggregate without one would make a table.
func (c *checker) aggWindow(f *flow, st *syntax.Stage, clauses map[string]*syntax.Clause, agg *plan.Aggregate) bool {
	cl := clauses["window"]
	if cl == nil {
		return true // groups that do not end
	}
	if cl.Window == nil {
		return false // the parser has reported it
	}
	w := cl.Window
	at := span{int(w.Pos), int(w.End)}
	switch w.Word {
	case "tumble", "hop":
	default:
		return c.otherWindow(f, cl, agg)
	}
	size, ok := c.durationValue(w.Size)
	if !ok {
		return false
	}
	every := size
	if w.Word == "hop" {
		if every, ok = c.durationValue(w.Every); !ok {
			return false
		}
	}
	if size <= 0 || every <= 0 {
		c.err("E0208", at, "a window needs a length above zero").because("it would hold no row").fix("`%s`", fixWindow(w.Word))
		return false
	}
	if every > size {
		c.err("E0208", at, "a window of %s every %s leaves gaps", durationText(size), durationText(every)).
			because("rows between two windows would be in none").
			fix("make the step at most the length: `hop(%s every %s)`", durationText(every), durationText(size)).
			replace(at, "hop("+durationText(every)+" every "+durationText(size)+")")
		return false
	}
	if size/every > maxHops {
		c.err("E0208", at, "each row would be in %d windows", size/every).
			because("every one of them is kept and counted; %d is the most", maxHops).
			fix("use a larger step")
		return false
	}
	agg.Window = plan.Window{Kind: plan.WindowTumble, Size: time.Duration(size), Every: time.Duration(every)}
	if w.Word == "hop" {
		agg.Window.Kind = plan.WindowHop
	}
	return c.windowOnAppend(f, cl, agg)
}

// maxHops bounds the windows that one row is in.
const maxHops = 10_000

func fixWindow(word string) string {
	if word == "hop" {
		return "hop(1m every 10s)"
	}
	return "tumble(1m)"
}

func durationText(ns int64) string { return string(scalar.AppendDuration(nil, ns)) }
