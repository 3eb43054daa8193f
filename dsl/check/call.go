package check

import (
	"sort"
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// removedFunctions are expr's built-ins that the language does not have, with what to use instead.
var removedFunctions = map[string]struct{ why, fix string }{
	"get":        {"its type is only known at run time", "`a.b`, `m[\"k\"]` or `xs[0]`"},
	"type":       {"every value has one type, known before anything runs", "declare what you expect"},
	"fromJSON":   {"its type is only known at run time", "`json(s, \"path\", \"type\")`"},
	"toJSON":     {"the language writes snake_case here", "`to_json(x)`"},
	"date":       {"it would guess the layout", "`parse_time(s, \"yyyy-MM-dd\")` or `date_of(t)`"},
	"duration":   {"durations are written as literals", "`10s`, `1h30m`"},
	"timezone":   {"zones are named where they are used", "`hour(t, \"Europe/Berlin\")`"},
	"rand":       {"a replay would give another value", "`hash64(record.topic, record.partition, record.offset)` tells rows apart"},
	"random":     {"a replay would give another value", "`hash64(record.topic, record.partition, record.offset)` tells rows apart"},
	"uuid":       {"a replay would give another value", "`hash64(record.topic, record.partition, record.offset)` tells rows apart"},
	"row_number": {"only `over` numbers the rows of a key; rows are told apart by their place", "`record.offset`, or `over by k state forever set n = row_number()`"},
	"lag":        {"the row before is seen by `prev(x)` in `over`", "`over by k state forever set before = prev(x)`"},
	"lead":       {"a stream does not know the next row", "a window that holds both rows: `first(x)`, `last(x)`"},
	"groupBy":    {"groups are made by stages", "`agg .. by ..`"},
	"toPairs":    {"its type is only known at run time", "`keys(m)` and `values(m)`"},
	"fromPairs":  {"its type is only known at run time", "a map literal `{\"a\": 1}`"},
}

// foreignFunctions are names from elsewhere.
var foreignFunctions = map[string]string{
	"if": "a ? b : c", "iff": "a ? b : c", "iif": "a ? b : c", "case": "a ? b : c", "ifnull": "a ?? b", "nvl": "a ?? b",
	"isnull": "is_null(x)", "isNull": "is_null(x)", "nullif": "null_if(x, y)", "NULLIF": "null_if(x, y)",
	"concat_ws": "join(xs, sep)", "substring": "substr(s, from, n)", "length": "len(x)", "strlen": "len(x)", "size": "len(x)",
	"toLower": "lower(s)", "toUpper": "upper(s)", "to_string": "string(x)", "to_int": "int(x)", "to_float": "float(x)",
	"decimal": "dec(x, p, s)", "date_trunc": "trunc_to(t, \"hour\")", "bin": "trunc(t, 5m)", "to_timestamp": "parse_time(s, layout)",
	"regexp_extract": "extract(s, re, group)", "regexp_like": "s matches re", "like": "s contains t", "startswith": "s startsWith t",
	"format": "fmt(t, layout)", "date_format": "fmt(t, layout)", "extract_year": "year(t)", "avg_over": "avg(x)",
	"time": "from_epoch(n, \"ms\")` or `parse_time(s, layout)", "timestamp": "from_epoch(n, \"ms\")` or `parse_time(s, layout)", "average": "avg(x)",
	"mean_over": "avg(x)", "nunique": "count_distinct(x)", "approx_count_distinct": "approx_distinct(x)", "strpos": "indexOf(s, t)", "position": "indexOf(s, t)",
	"instr": "indexOf(s, t)", "left": "substr(s, 0, n)", "right": "substr(s, -n)", "split_part": "part(s, sep, i)", "ucase": "upper(s)", "lcase": "lower(s)",
	"regexp_replace": "replace(s, a, b)", "greatest": "max(a, b)", "least": "min(a, b)", "exists": "any(xs, # > 1)", "unix_timestamp": "epoch(t, \"s\")",
	"from_unixtime": "from_epoch(n, \"s\")", "strftime": "fmt(t, layout)", "to_date": "date_of(parse_time(s, layout))", "datediff": "t - u", "concat_str": "a + b",
	"toString": "string(x)", "parseInt": "int(s)", "parse_int": "int(s)", "str": "string(x)", "length_utf8": "len(x)", "floor_div": "div(a, b)", "dayofweek": "weekday(t)",
	"stddev": "stddev_samp(x)", "stdev": "stddev_samp(x)", "variance": "var_samp(x)", "every": "bool_and(x)", "percentile": "quantile(x, 0.95)",
	"percentile_cont": "quantile(x, 0.95)", "approx_percentile": "approx_quantile(x, 0.95)", "array_agg": "list(x, 100)", "collect_list": "list(x, 100)",
	"make_list": "list(x, 100)", "collect_set": "set(x, 100)", "make_set": "set(x, 100)", "string_agg": "join(x, \", \")", "listagg": "join(x, \", \")",
	"group_concat": "join(x, \", \")", "max_by": "arg_max(x, y)", "min_by": "arg_min(x, y)", "argmax": "arg_max(x, y)", "argmin": "arg_min(x, y)",
	"current_timestamp": "record.append_time", "modulo": "mod(a, b)", "power": "pow(a, b)", "ceiling": "ceil(x)",
}

// closureFunctions take a predicate as second argument.
var closureFunctions = map[string]bool{
	"filter": true, "map": true, "any": true, "all": true, "none": true, "one": true, "find": true, "findIndex": true,
	"findLast": true, "findLastIndex": true, "count": true, "sum": true, "reduce": true, "sortBy": true,
}

// call is `f(..)`. builtin says that expr's parser knows the name; `::f` then means the same.
func (w *walk) call(n ast.Node, name string, at span, nodes []ast.Node, s *scope, builtin bool) typed {
	if s.agg != nil && !builtin {
		if a, ok := aggregates[name]; ok {
			return w.aggregate(n, name, a, at, nodes, s)
		}
		if _, ok := overFunctions[name]; ok && s.agg.over != nil {
			return w.overCall(n, name, nodes, s)
		}
		if name == "mean" {
			w.c.err("E0128", at, "the mean of rows is `avg`").
				because("`mean` takes one list").replace(at, "avg")
			return failed
		}
	}
	if s.agg != nil && builtin && name == "mean" && w.c.src.slice(span{at.start - 2, at.start}) != "::" {
		w.c.err("E0128", at, "the mean of rows is `avg`").
			because("`mean` takes one list").replace(at, "avg")
		return failed
	}
	if name == "now" {
		f := w.c.err("E0120", w.c.nodeSpan(n), "there is no `now()`").
			because("a replay would see another time, and give another answer")
		if s.agg == nil && s.meta == metaAll && !s.pure {
			f.replace(w.c.nodeSpan(n), "record.append_time")
		} else {
			f.fix("`record.append_time` is when the log took the row")
		}
		return failed
	}
	if r, ok := removedFunctions[name]; ok {
		w.c.err("E0123", at, "there is no `%s(..)`", name).because("%s", r.why).fix("%s", r.fix)
		return failed
	}
	if sym := w.c.symbols[name]; sym != nil && sym.kind == symFunc && !builtin {
		return w.userCall(n, sym, at, nodes, s)
	}
	if s.inAgg != "" && !builtin {
		if _, ok := aggregates[name]; ok && !w.listCall(name, nodes, s) {
			w.c.err("E0127", w.c.nodeSpan(n), "`%s` inside `%s`: an aggregate cannot hold another", name, s.inAgg).
				because("both would fold the same rows").fix("aggregate in two stages, or take the inner one out")
			return failed
		}
	}
	if closureFunctions[name] && len(nodes) >= 2 {
		if _, ok := nodes[1].(*ast.PredicateNode); ok {
			return w.closureCall(n, name, at, nodes, s)
		}
	}
	if name == "coalesce" {
		return w.coalesceCall(n, at, nodes, s)
	}
	if _, agg := aggregates[name]; agg && !scalar.Callable(name) {
		w.notAggregate(name, at, nodes)
		for _, a := range nodes {
			w.typeOf(a, s)
		}
		return failed
	}
	if !scalar.Callable(name) && s.agg != nil {
		w.unknownFunction(name, at, s)
		return failed
	}
	list := make([]typed, len(nodes))
	good := true
	for i, a := range nodes {
		if p, ok := a.(*ast.PredicateNode); ok {
			w.err("E0133", p, "`%s` takes no closure", name).because("only list functions look at elements").fix("pass a value")
			return failed
		}
		list[i] = w.check(a, s)
		good = good && list[i].ok()
	}
	if !scalar.Callable(name) {
		w.unknownFunction(name, at, s)
		return failed
	}
	if !good {
		return failed
	}
	return w.resolved(n, name, at, nodes, list)
}

// resolved finds the overload of a named function.
func (w *walk) resolved(n ast.Node, name string, at span, nodes []ast.Node, list []typed) typed {
	w.adaptAll(list)
	f, err := scalar.Resolve(name, args(list...))
	if err != nil {
		if _, agg := aggregates[name]; agg && len(list) > 0 && len(list) < 2 && list[0].typ().Kind != scalar.KindList {
			w.notAggregate(name, at, nodes)
			return failed
		}
		w.resolveError(n, name, at, nodes, list, err)
		return failed
	}
	return w.apply2(n, f, list)
}

func (w *walk) notAggregate(name string, at span, nodes []ast.Node) {
	arg := ".."
	if len(nodes) == 1 {
		arg = oneLine(w.text(nodes[0]))
	}
	w.c.err("E0125", at, "`%s` is an aggregate, and this place sees one row", name).
		because("aggregates fold the rows of a group").
		fix("add a stage before: `|> agg x = %s(%s) by .. window tumble(1m)`", name, arg)
}

// adaptAll gives number literals the type of a decimal or uint64 among the arguments.
func (w *walk) adaptAll(list []typed) {
	for i := range list {
		if list[i].lit != "" {
			continue
		}
		if k := list[i].typ().Kind; k == scalar.KindDecimal || k == scalar.KindUint64 {
			for j := range list {
				// Only neighbours that are floats need it: whole numbers are taken exactly anyway,
				// and many of them are positions or precisions.
				if list[j].lit != "" && (list[j].typ().Kind.Float() || k == scalar.KindUint64 && len(list) == 2 && i == 0) {
					list[j] = w.adapt(list[j], list[i])
				}
			}
			return
		}
	}
}

func (w *walk) unknownFunction(name string, at span, s *scope) {
	f := w.c.err("E0105", at, "there is no function `%s`", name).because("it is neither built in nor declared in this module")
	if columnIndex(s.cols, name) >= 0 {
		f.because("`%s` is a column", name).fix("an operator may be missing before the parenthesis")
		return
	}
	if _, ok := overFunctions[name]; ok {
		f.because("only `over` has it: it looks at the rows of a key").fix("`over by k state forever set y = %s(..)`", name)
		return
	}
	alt, ok := foreignFunctions[name]
	if !ok {
		alt, ok = foreignFunctions[strings.ToLower(name)]
	}
	if ok {
		f.because("it is written otherwise here").fix("`%s`", alt)
		// A function of one argument only changes its name.
		if to, arg, _ := strings.Cut(alt, "("); (arg == "x)" || arg == "s)") && (s.agg != nil || scalar.Callable(to)) {
			f.replace(at, to)
		}
		return
	}
	names := scalar.Names()
	if s.agg != nil {
		for n := range aggregates {
			names = append(names, n)
		}
	}
	for _, o := range w.c.order {
		if o.kind == symFunc {
			names = append(names, o.name)
		}
	}
	sort.Strings(names)
	if m := w.c.nearest(name, names); m != "" {
		f.because("did you mean `%s`?", m).replace(at, m)
		return
	}
	var foreign []string
	for n := range foreignFunctions {
		foreign = append(foreign, n)
	}
	sort.Strings(foreign)
	if m := w.c.nearest(name, foreign); m != "" {
		f.because("did you mean `%s`?", m).fix("`%s`", foreignFunctions[m])
		return
	}
	f.fix("the built-in functions are in docs/language.md; your own are declared with `fn`")
}

// resolveError words a call without an overload.
func (w *walk) resolveError(n ast.Node, name string, at span, nodes []ast.Node, list []typed, err error) {
	re, ok := err.(*scalar.ResolveError)
	if !ok {
		w.c.err("E0111", at, "`%s` cannot be used like this", name).because("%s", err.Error()).fix("check its arguments")
		return
	}
	if re.Arg >= 0 && re.Arg < len(nodes) {
		at = w.c.nodeSpan(nodes[re.Arg])
	} else if n != nil && len(nodes) > 0 {
		at = w.c.nodeSpan(n)
	}
	code := "E0111"
	if strings.Contains(re.Reason, "constant") {
		code = "E0119"
	}
	ts := make([]string, len(list))
	for i, t := range list {
		ts[i] = TypeString(t.typ())
	}
	var f *finding
	if len(nodes) == 0 && len(list) > 0 {
		f = w.c.err(code, at, "`%s` does not take %s", operatorWord(name), strings.Join(ts, ", "))
	} else {
		f = w.c.err(code, at, "`%s(%s)` cannot be called like this", name, strings.Join(ts, ", "))
	}
	f.because("%s", re.Reason)
	switch {
	case re.Suggestion != "":
		f.fix("%s", re.Suggestion)
	case re.Arg >= 0 && re.Arg < len(list) && list[re.Arg].e.Op == plan.ExprConst:
		f.fix("write another constant")
	case re.Arg >= 0 && re.Arg < len(list) && list[re.Arg].typ().Kind == scalar.KindString && len(nodes) == 0:
		f.fix("cast the text first: `int(..)`, `float(..)` or `dec(.., 18, 2)`")
	case re.Arg >= 0 && re.Arg < len(list) && list[re.Arg].typ().Kind == scalar.KindString:
		f.fix("cast it: `int(%s)`, `float(%s)` or `dec(%s, 18, 2)`", w.c.src.slice(at), w.c.src.slice(at), w.c.src.slice(at))
	case re.Arg >= 0:
		f.fix("cast it, or use another column")
	default:
		f.fix("check the number and the types of the arguments")
	}
}

// operatorWord is how a user writes the operator.
func operatorWord(name string) string {
	for op, f := range binaryOps {
		if f == name && op != "**" {
			return op
		}
	}
	switch name {
	case "neg":
		return "-"
	case "pos":
		return "+"
	case "index":
		return "[ ]"
	case "slice":
		return "[ : ]"
	}
	return name
}

// coalesceCall is `coalesce(a, b, ..)`: `a ?? b ?? ..`.
func (w *walk) coalesceCall(n ast.Node, at span, nodes []ast.Node, s *scope) typed {
	if len(nodes) == 0 {
		w.c.err("E0111", at, "`coalesce` needs at least one argument").because("it gives the first one that is not nil").fix("`coalesce(a, b)`")
		return failed
	}
	list := make([]typed, len(nodes))
	good := true
	for i, a := range nodes {
		list[i] = w.check(a, s)
		good = good && list[i].ok()
	}
	if !good {
		return failed
	}
	out := list[len(list)-1]
	for i := len(list) - 2; i >= 0; i-- {
		if !list[i].typ().Nullable {
			out = list[i]
			continue
		}
		if out = w.coalesced(n, list[i], out, "the arguments of `coalesce`"); !out.ok() {
			return failed
		}
	}
	return out
}

// closureCall is a list function with a predicate.
func (w *walk) closureCall(n ast.Node, name string, at span, nodes []ast.Node, s *scope) typed {
	list := w.check(nodes[0], s)
	if !list.ok() {
		return failed
	}
	t := list.typ()
	if t.Kind != scalar.KindList || t.Elem == nil {
		f := w.err("E0111", nodes[0], "`%s` works on a list, this is %s", name, TypeString(t)).because("it looks at the elements one by one")
		switch name {
		case "filter":
			f.fix("rows are filtered with `|> where`")
		case "count", "sum":
			f.fix("rows are aggregated with `|> agg x = %s(..) where ..`", name)
		default:
			f.fix("use a list column")
		}
		return failed
	}
	if !scalar.Callable(name) {
		w.c.notBuilt("closure-"+name, "`"+name+"`", at, "").fix("use filter, map, any, all, none, one, find or count")
		return failed
	}
	inner := *s
	inner.depth++
	inner.elems = &element{typ: *t.Elem, next: s.elems}
	call := []scalar.Arg{{Type: t}, {}}
	ex := []*plan.Expr{list.e, nil}
	var acc typed
	if name == "reduce" {
		start := *t.Elem
		if len(nodes) > 2 {
			if acc = w.check(nodes[2], s); !acc.ok() {
				return failed
			}
			start = acc.typ()
		}
		inner.elems.acc = &start
	}
	body := w.check(nodes[1].(*ast.PredicateNode).Node, &inner)
	if !body.ok() {
		return failed
	}
	bt := body.typ()
	call[1].Lambda = &bt
	ex[1] = &plan.Expr{Op: plan.ExprLambda, Type: bt, Args: []*plan.Expr{body.e}, Pos: w.pos(nodes[1])}
	for i, extra := range nodes[2:] {
		a := acc
		if i > 0 || name != "reduce" {
			a = w.check(extra, s)
		}
		if !a.ok() {
			return failed
		}
		call = append(call, args(a)...)
		ex = append(ex, a.e)
	}
	f, err := scalar.Resolve(name, call)
	if err != nil {
		re, _ := err.(*scalar.ResolveError)
		reason, fix := err.Error(), ""
		if re != nil {
			reason, fix = re.Reason, re.Suggestion
		}
		if bt.Kind == scalar.KindBool && bt.Nullable {
			w.err("E0112", nodes[1], "`%s` needs a bool, this is bool?", name).
				because("an element whose condition is null is neither in nor out").
				fix("`(%s) ?? false`", w.text(nodes[1])).replace(w.c.nodeSpan(nodes[1]), "(("+w.text(nodes[1])+") ?? false)")
			return failed
		}
		f := w.err("E0111", nodes[1], "`%s` cannot use this closure", name).because("%s", reason)
		if fix != "" {
			f.fix("%s", fix)
		} else {
			f.fix("check the closure")
		}
		return failed
	}
	e := &plan.Expr{Op: plan.ExprCall, Type: f.Result, Func: name, Args: ex, Pos: w.pos(n)}
	for i := range ex {
		if i == 1 {
			if i < len(f.Args) && !f.Args[1].Same(bt) && f.Args[1].Kind != scalar.KindInvalid {
				b, ok := w.cast(nodes[1], body.e, f.Args[1])
				if !ok {
					return failed
				}
				ex[1] = &plan.Expr{Op: plan.ExprLambda, Type: b.Type, Args: []*plan.Expr{b}, Pos: ex[1].Pos}
			}
			continue
		}
		if i < len(f.Args) {
			a, ok := w.cast(n, ex[i], f.Args[i])
			if !ok {
				return failed
			}
			ex[i] = a
		}
	}
	return typed{e: e}
}
