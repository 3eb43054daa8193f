package check

import (
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// metaColumns are the metadata columns of `record`.
var metaColumns = map[string]struct {
	meta plan.Meta
	typ  scalar.Type
}{
	"time":        {plan.MetaTime, scalar.TypeTime},
	"append_time": {plan.MetaAppendTime, scalar.TypeTime},
	"key":         {plan.MetaKey, scalar.TypeBytes.Null()},
	"headers":     {plan.MetaHeaders, scalar.MapType(scalar.TypeString, scalar.TypeBytes.Null())},
	"topic":       {plan.MetaTopic, scalar.TypeString},
	"partition":   {plan.MetaPartition, scalar.TypeInt32},
	"offset":      {plan.MetaOffset, scalar.TypeInt64},
}

var metaNames = []string{"time", "append_time", "key", "headers", "topic", "partition", "offset"}

// member is `a.b`, `a?.b`, `a[i]` and `{..}[k]`.
func (w *walk) member(n *ast.MemberNode, s *scope) typed {
	own := w.c.ownSpan(n)
	bracket := own.start < len(w.c.src.text) && w.c.src.text[own.start] == '['
	if !bracket {
		if id, ok := n.Node.(*ast.IdentifierNode); ok && id.Value == "record" && w.isMeta(s) {
			return w.metadata(n, s)
		}
	}
	if !bracket && w.qualified(n, s) {
		return failed
	}
	base := w.check(n.Node, s)
	if bracket {
		idx := w.check(n.Property, s)
		if !base.ok() || !idx.ok() {
			return failed
		}
		return w.index(n, base, idx)
	}
	if !base.ok() {
		return failed
	}
	p, ok := n.Property.(*ast.StringNode)
	if !ok {
		w.err("E0132", n, "a field is named by a word").because("fields are known before the rows are").fix("write `a.b`")
		return failed
	}
	return w.field(n, base, p, s)
}

// qualified reports `t.id`, a column with the name of its topic.
func (w *walk) qualified(n *ast.MemberNode, s *scope) bool {
	id, ok := n.Node.(*ast.IdentifierNode)
	p, ok2 := n.Property.(*ast.StringNode)
	if !ok || !ok2 || s.pure || s.agg != nil || columnIndex(s.cols, id.Value) >= 0 || columnIndex(s.cols, p.Value) < 0 {
		return false
	}
	for v := s.vars; v != nil; v = v.next {
		if v.name == id.Value {
			return false
		}
	}
	if sym := w.c.symbols[id.Value]; sym == nil || !sym.kind.readable() {
		return false
	}
	w.err("E0104", n, "columns are written without the name of their %s", w.c.symbols[id.Value].kind).
		because("a pipeline reads one stream of rows").replace(w.c.nodeSpan(n), p.Value)
	return true
}

// isMeta says whether `record` means the metadata: no column or variable hides it.
func (w *walk) isMeta(s *scope) bool {
	for v := s.vars; v != nil; v = v.next {
		if v.name == "record" {
			return false
		}
	}
	if s.pure {
		return true
	}
	return columnIndex(s.cols, "record") < 0
}

func (w *walk) metadata(n *ast.MemberNode, s *scope) typed {
	p, _ := n.Property.(*ast.StringNode)
	if p == nil {
		return failed
	}
	row, ok := metaColumns[p.Value]
	if !ok {
		f := w.c.err("E0121", w.c.ownSpan(p), "there is no metadata column `record.%s`", p.Value).because("`record` holds what the log knows of a row, and no fields of its value")
		if m := w.c.nearest(p.Value, metaNames); m != "" {
			f.replace(w.c.ownSpan(p), m)
		} else {
			f.fix("metadata columns are time, append_time, key, headers, topic, partition and offset")
		}
		return failed
	}
	if s.fn != "" {
		w.err("E0121", n, "there is no `record.%s` in a function", p.Value).
			because("a function sees its parameters, not rows").fix("pass it as an argument")
		return failed
	}
	if s.pure {
		w.err("E0130", n, "`record.%s` is not a constant", p.Value).because("it belongs to a row").fix("use it in a stage")
		return failed
	}
	if s.agg != nil || s.meta == metaTime && p.Value != "time" || s.meta == metaNone {
		f := w.err("E0121", n, "there is no `record.%s` here", p.Value).
			because("a row that an aggregate made comes from many records")
		if s.agg != nil {
			f.fix("`first(record.%s)` or `last(record.%s)`", p.Value, p.Value).replace(w.c.nodeSpan(n), "last(record."+p.Value+")")
		} else {
			f.fix("aggregate it, such as `agg x = last(record.%s)`", p.Value)
		}
		return failed
	}
	path := "record." + p.Value
	t := row.typ
	if s.facts.holds(path) {
		t.Nullable = false
	}
	return typed{e: &plan.Expr{Op: plan.ExprMeta, Type: t, Meta: row.meta, Pos: w.pos(n)}, path: path}
}

// field is `base.name`, through a null with `?.`.
func (w *walk) field(n *ast.MemberNode, base typed, p *ast.StringNode, s *scope) typed {
	t := base.typ()
	ps := w.c.ownSpan(p)
	if t.Kind == scalar.KindMap {
		w.c.err("E0132", ps, "`.%s` names a field, and this is %s", p.Value, TypeString(t)).
			because("the keys of a map are only known at run time").
			fix("`%s[\"%s\"]`", w.text(n.Node), p.Value).
			replace(span{w.c.outerSpan(n.Node).end, ps.end}, "[\""+p.Value+"\"]")
		return failed
	}
	if t.Kind != scalar.KindStruct {
		f := w.c.err("E0132", ps, "%s has no fields", TypeString(t)).because("`%s` is %s", w.text(n.Node), TypeString(t))
		if scalar.Callable(p.Value) {
			f.fix("`%s(%s)`", p.Value, w.text(n.Node)).replace(w.c.nodeSpan(n), p.Value+"("+w.c.src.slice(w.c.outerSpan(n.Node))+")")
		} else if t.Kind == scalar.KindList {
			f.fix("take one element: `%s[0]?.%s`, or `map(%s, .%s)`", w.text(n.Node), p.Value, w.text(n.Node), p.Value)
		} else {
			f.fix("use the value itself")
		}
		return failed
	}
	i := t.FieldIndex(p.Value)
	if i < 0 {
		names := make([]string, len(t.Fields))
		for j, f := range t.Fields {
			names[j] = f.Name
		}
		f := w.c.err("E0104", ps, "`%s` has no field `%s`", w.text(n.Node), p.Value)
		if m := w.c.nearest(p.Value, names); m != "" {
			f.because("did you mean `%s`?", m).replace(ps, m)
		} else {
			f.because("its fields are %s", quoteList(names)).fix("use one of its fields")
		}
		return failed
	}
	chain := base.chain
	if t.Nullable && !base.chain {
		if !n.Optional {
			dot := w.dotBefore(ps.start)
			f := w.c.err("E0117", w.c.nodeSpan(n), "`%s` may be nil, so it may have no field `%s`", w.text(n.Node), p.Value).
				because("its type is nullable")
			if base.path != "" {
				f.fix("`%s?.%s`, or keep only the rows that have it: `|> where %s != nil`", w.text(n.Node), p.Value, w.text(n.Node))
			} else {
				f.fix("`%s?.%s`", w.text(n.Node), p.Value)
			}
			if dot >= 0 {
				f.replace(span{dot, dot + 1}, "?.")
			}
			return failed
		}
		chain = true
	}
	ft := t.Fields[i].Type
	path := ""
	if base.path != "" {
		path = base.path + "." + p.Value
	}
	out := ft.OrNull(t.Nullable)
	if path != "" && s.facts.holds(path) && !t.Nullable {
		out.Nullable = false
	}
	return typed{
		e:     &plan.Expr{Op: plan.ExprField, Type: out, Field: i, Args: []*plan.Expr{base.e}, Pos: w.pos(n)},
		path:  path,
		chain: chain && !ft.Nullable,
	}
}

// dotBefore finds the `.` before a field name.
func (w *walk) dotBefore(i int) int {
	t := w.c.src.text
	for i--; i >= 0; i-- {
		switch t[i] {
		case ' ', '\t', '\n', '\r':
		case '.':
			return i
		default:
			return -1
		}
	}
	return -1
}

// index is `list[i]` and `map[k]`.
func (w *walk) index(n *ast.MemberNode, base, idx typed) typed {
	t := base.typ()
	switch t.Kind {
	case scalar.KindList, scalar.KindMap:
	case scalar.KindStruct:
		if idx.e.Op == plan.ExprConst && idx.typ().Kind == scalar.KindString {
			w.err("E0132", n, "a field of a struct is named by a word").because("each field has a type of its own, known before the rows are").
				replace(span{w.c.outerSpan(n.Node).end, w.c.nodeSpan(n).end}, "."+idx.e.Value.S)
			return failed
		}
		w.err("E0132", n, "a struct has no elements").because("its fields have different types").fix("name a field: `a.b`")
		return failed
	default:
		f := w.err("E0132", n, "%s has no elements", TypeString(t)).because("brackets take an element out of a list or a map")
		if t.Kind == scalar.KindString {
			f.fix("`substr(%s, %s, 1)`", w.text(n.Node), w.text(n.Property))
		} else {
			f.fix("use the value itself")
		}
		return failed
	}
	if t.Key != nil && t.Key.Kind == scalar.KindDecimal {
		idx = w.adapt(idx, typed{e: &plan.Expr{Type: *t.Key}})
	}
	f, err := scalar.Resolve("index", args(base, idx))
	if err != nil {
		w.resolveError(n, "index", w.c.nodeSpan(n.Property), nil, []typed{base, idx}, err)
		return failed
	}
	return w.apply2(n, f, []typed{base, idx})
}

func (w *walk) slice(n *ast.SliceNode, s *scope) typed {
	base := w.check(n.Node, s)
	list := []typed{base}
	good := base.ok()
	for _, b := range []ast.Node{n.From, n.To} {
		if b == nil {
			list = append(list, typed{e: &plan.Expr{Op: plan.ExprConst, Type: scalar.TypeNull, Value: scalar.Null, Pos: w.pos(n)}})
			continue
		}
		t := w.check(b, s)
		good = good && t.ok()
		list = append(list, t)
	}
	if !good {
		return failed
	}
	return w.apply(n, "slice", list)
}

// list is `[a, b]`.
func (w *walk) list(n *ast.ArrayNode, s *scope) typed {
	elems, t, ok := w.elements(n, n.Nodes, s, "the elements of a list")
	if !ok {
		return failed
	}
	if len(elems) == 0 {
		w.err("E0118", n, "an empty list has no element type").because("the type of a list comes from its elements").fix("leave it out")
		return failed
	}
	vals := make([]scalar.Value, len(elems))
	for i, e := range elems {
		if e.e.Op != plan.ExprConst {
			return w.apply(n, "list_of", elems)
		}
		vals[i] = e.e.Value
	}
	return typed{e: w.constant(n, scalar.ListType(t), scalar.List(vals...))}
}

// elements checks values and widens them to one type.
func (w *walk) elements(n ast.Node, nodes []ast.Node, s *scope, what string) ([]typed, scalar.Type, bool) {
	var out []typed
	good := true
	for _, m := range nodes {
		t := w.check(m, s)
		good = good && t.ok()
		out = append(out, t)
	}
	if !good || len(out) == 0 {
		return nil, scalar.Type{}, good
	}
	var dec *typed
	for i := range out {
		if out[i].typ().Kind == scalar.KindDecimal {
			dec = &out[i]
		}
	}
	t := scalar.Type{}
	for i := range out {
		if dec != nil {
			out[i] = w.adapt(out[i], *dec)
		}
		if i == 0 {
			t = out[0].typ()
			continue
		}
		common, ok := scalar.Common(t, out[i].typ())
		if !ok {
			w.err("E0116", nodes[i], "%s have different types: %s and %s", what, TypeString(t), TypeString(out[i].typ())).
				because("all of them need one type").fix("write them alike")
			return nil, t, false
		}
		t = common
	}
	for i := range out {
		e, ok := w.cast(nodes[i], out[i].e, t)
		if !ok {
			return nil, t, false
		}
		out[i] = typed{e: e}
	}
	return out, t, true
}

// mapLiteral is `{"a": 1}`: keys and values are constants.
func (w *walk) mapLiteral(n *ast.MapNode, s *scope) typed {
	var keys, values []ast.Node
	for _, p := range n.Pairs {
		pair, ok := p.(*ast.PairNode)
		if !ok {
			return failed
		}
		keys, values = append(keys, pair.Key), append(values, pair.Value)
	}
	if len(keys) == 0 {
		w.err("E0118", n, "an empty map has no type").because("the type of a map comes from its values").fix("leave it out")
		return failed
	}
	var ks []typed
	for _, k := range keys {
		t := w.mapKey(k, s)
		if !t.ok() {
			return failed
		}
		if t.e.Op != plan.ExprConst || t.typ().Nullable {
			w.err("E0119", k, "the key of a map literal must be a constant").
				because("such a map is made once, before any row").fix("use `a ? b : c`, or a `lookup` table")
			return failed
		}
		if len(ks) > 0 {
			if ks[0].typ().Kind != t.typ().Kind {
				w.err("E0116", k, "the keys of a map have different types: %s and %s", TypeString(ks[0].typ()), TypeString(t.typ())).
					because("all of them need one type").fix("write them alike")
				return failed
			}
			for i, other := range ks {
				if scalar.Compare(other.e.Value, t.e.Value) == 0 {
					w.err("E0108", k, "the map has this key twice").
						because("the first is in line %d", w.c.src.line(w.c.nodeSpan(keys[i]).start)).fix("leave one of them out")
					return failed
				}
			}
		}
		ks = append(ks, t)
	}
	vs, vt, ok := w.elements(n, values, s, "the values of a map")
	if !ok {
		return failed
	}
	kv, vv := make([]scalar.Value, len(ks)), make([]scalar.Value, len(vs))
	for i := range ks {
		if vs[i].e.Op != plan.ExprConst {
			w.err("E0119", values[i], "the value of a map literal must be a constant").
				because("such a map is made once, before any row").fix("use `a ? b : c`, or a `lookup` table")
			return failed
		}
		kv[i], vv[i] = ks[i].e.Value, vs[i].e.Value
	}
	return typed{e: w.constant(n, scalar.MapType(ks[0].typ(), vt), scalar.Map(kv, vv))}
}

// mapKey is a key of a map literal: expr's parser gives names, strings and numbers alike as strings.
func (w *walk) mapKey(k ast.Node, s *scope) typed {
	if str, ok := k.(*ast.StringNode); ok {
		at := w.c.ownSpan(k)
		if raw := w.c.src.slice(at); raw != "" && (raw[0] >= '0' && raw[0] <= '9' || raw[0] == '.') {
			lit := strings.ReplaceAll(raw, "_", "")
			if isDecimalText(lit) && len(lit) < 19 {
				v := int64(0)
				for _, ch := range lit {
					v = v*10 + int64(ch-'0')
				}
				return typed{e: w.constant(k, scalar.TypeInt64, scalar.Int(v))}
			}
			w.err("E0119", k, "`%s` cannot be the key of a map", raw).because("keys are strings or whole numbers").fix("write it as a string")
			return failed
		}
		return typed{e: w.constant(k, scalar.TypeString, scalar.String(str.Value))}
	}
	return w.check(k, s)
}

// in is `x in [..]`, `x in {..}` and `x in list`.
func (w *walk) in(n *ast.BinaryNode, name string, s *scope) typed {
	if arr, ok := n.Right.(*ast.ArrayNode); ok {
		return w.inList(n, name, arr, s)
	}
	l, r := w.check(n.Left, s), w.check(n.Right, s)
	if !l.ok() || !r.ok() {
		return failed
	}
	if l.typ().Kind == scalar.KindNull {
		w.err("E0118", n, "nil is in no list").because("nil is equal to nothing, not even to nil").fix("test with `== nil`")
		return failed
	}
	if k := r.typ().Kind; k != scalar.KindList && k != scalar.KindMap {
		f := w.err("E0110", n.Right, "`in` needs a list or a map on its right, this is %s", TypeString(r.typ())).because("it looks for a value among several")
		switch k {
		case scalar.KindString:
			f.replace(w.c.nodeSpan(n), w.text(n.Right)+" contains "+w.text(n.Left))
		default:
			f.fix("`%s == %s`", w.text(n.Left), w.text(n.Right))
		}
		return failed
	}
	return w.operator(n, "in", name, l, r)
}

// inList is membership in a list that is written out. Elements that are not constant become
// comparisons.
func (w *walk) inList(n *ast.BinaryNode, name string, arr *ast.ArrayNode, s *scope) typed {
	l := w.check(n.Left, s)
	var elems []typed
	good := l.ok()
	constant := true
	for _, m := range arr.Nodes {
		e := w.check(m, s)
		good = good && e.ok()
		if e.ok() {
			constant = constant && e.e.Op == plan.ExprConst
		}
		elems = append(elems, e)
	}
	if !good {
		return failed
	}
	if len(elems) == 0 {
		w.err("W0142", n, "nothing is in an empty list").because("the condition is false for every row").fix("leave it out")
		return typed{e: w.constant(n, scalar.TypeBool, scalar.Bool(name == "not_in"))}
	}
	if l.typ().Kind == scalar.KindNull {
		w.err("E0118", n, "nil is in no list").because("nil is equal to nothing, not even to nil").fix("test with `== nil`")
		return failed
	}
	if constant {
		all := true
		t := l.typ().NonNull()
		for i := range elems {
			elems[i] = w.adapt(elems[i], l)
			c, ok := scalar.Common(t, elems[i].typ())
			if !ok {
				f := w.err("E0110", arr.Nodes[i], "cannot compare %s and %s", TypeString(l.typ()), TypeString(elems[i].typ())).
					because("`%s` is %s", w.text(n.Left), TypeString(l.typ()))
				at := w.c.nodeSpan(arr.Nodes[i])
				switch {
				case l.typ().Kind == scalar.KindString && elems[i].lit != "":
					f.replace(at, "\""+elems[i].lit+"\"")
				case l.typ().Kind.Numeric() && elems[i].typ().Kind == scalar.KindString && numberLike(elems[i].e.Value.S):
					f.replace(at, elems[i].e.Value.S)
				default:
					f.fix("write the elements as %s", TypeString(l.typ()))
				}
				all = false
				continue
			}
			t = c
		}
		if !all {
			return failed
		}
		vals := make([]scalar.Value, len(elems))
		for i := range elems {
			e, ok := w.cast(arr.Nodes[i], elems[i].e, t)
			if !ok {
				return failed
			}
			vals[i] = e.Value
		}
		list := typed{e: w.constant(arr, scalar.ListType(t), scalar.List(vals...))}
		return w.operator(n, "in", name, l, list)
	}
	var out typed
	for i := range elems {
		eq := w.operator(n, "==", "eq", l, elems[i])
		if !eq.ok() {
			return failed
		}
		if i == 0 {
			out = eq
			continue
		}
		t := scalar.TypeBool
		t.Nullable = out.typ().Nullable || eq.typ().Nullable
		out = typed{e: &plan.Expr{Op: plan.ExprOr, Type: t, Args: []*plan.Expr{out.e, eq.e}, Pos: w.pos(n)}}
	}
	if name == "not_in" {
		return w.apply(n, "not", []typed{out})
	}
	return out
}

// pointer is `#` and the dot of `.field` in a closure.
func (w *walk) pointer(n *ast.PointerNode, s *scope) typed {
	if s.elems == nil {
		w.err("E0133", n, "`#` is the element of a list function, and there is none around it").because("it means nothing outside a closure").
			fix("for example `any(items, # > 1)`")
		return failed
	}
	switch n.Name {
	case "":
		return typed{e: &plan.Expr{Op: plan.ExprElem, Type: s.elems.typ, Pos: w.pos(n)}}
	case "index":
		return typed{e: &plan.Expr{Op: plan.ExprElem, Type: scalar.TypeInt64, Field: plan.ElemIndex, Pos: w.pos(n)}}
	case "acc":
		if s.elems.acc != nil {
			return typed{e: &plan.Expr{Op: plan.ExprElem, Type: *s.elems.acc, Field: plan.ElemAcc, Pos: w.pos(n)}}
		}
		w.err("E0133", n, "`#acc` stands only in `reduce`").because("no other function carries a value from element to element").fix("use `reduce(list, #acc + #, 0)`")
		return failed
	}
	w.err("E0133", n, "there is no `#%s`", n.Name).because("a closure has only the names that its function gives it").fix("`#` is the element, `#index` its number, `#acc` the value so far in reduce")
	return failed
}
