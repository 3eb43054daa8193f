package vector

import (
	"math"
	"regexp"
	"strings"

	"github.com/headrace/headrace/internal/scalar"
)

// pick finds the kernel of a call whose arguments are those of fn. It leaves the node alone and says
// false if there is none.
func (n *node) pick(name string) bool {
	if !n.nullSafe {
		for _, a := range n.args {
			if a.konst && a.value.IsNull() {
				n.onlyLive, n.run = true, func(*vec, []*vec, *selection) {} // always null
				return true
			}
		}
	}
	for _, a := range n.args {
		if a.typ.Kind == scalar.KindNull && !a.konst {
			return false
		}
	}
	switch name {
	case "add", "sub", "mul", "div_op", "mod_op", "div", "mod", "neg", "wrap_add", "wrap_mul", "bitand", "bitor", "bitxor", "abs":
		n.run = n.arithmetic(name)
	case "eq", "ne", "lt", "le", "gt", "ge":
		n.run = n.comparison(name)
	case "not":
		n.run = func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.b[i] = !a[0].b[i]
			}
		}
	case "in", "not_in":
		n.run = n.membership(name == "not_in")
	case "is_null":
		n.run = nullTest(true)
	case "null_if":
		n.run = n.nullIf()
	case "coalesce":
		n.run = n.firstOf()
	case "unwrap":
		return n.unwrap()
	case "index":
		n.run = n.index()
	case "min", "max":
		n.run = n.extreme(name == "max")
	case "floor", "ceil", "round", "sqrt", "is_nan":
		n.run = n.rounding(name)
	case "hour", "minute", "second", "day", "month", "year", "weekday", "day_of_year", "date_of", "trunc", "epoch", "from_epoch", "fmt":
		n.run = n.timeKernel(name)
	case "contains", "startsWith", "endsWith", "hasPrefix", "hasSuffix", "matches", "lower", "upper", "len", "byte_len",
		"part", "extract", "trimPrefix", "trimSuffix", "trim", "concat", "substr":
		n.run = n.textKernel(name)
	default:
		if strings.HasPrefix(name, "cast_") {
			n.run = n.cast()
			break
		}
		switch name {
		case "int", "float", "string", "dec", "bytes", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "u64", "float32", "float64":
			n.run = n.cast()
		}
	}
	return n.run != nil
}

// firstOf is coalesce of arguments that were all evaluated.
func (n *node) firstOf() kernel {
	if n.form == formAny {
		return nil
	}
	types := make([]scalar.Type, len(n.args))
	for i, a := range n.args {
		if types[i] = a.typ; a.typ.Kind == scalar.KindNull {
			return nil
		}
	}
	return func(o *vec, a []*vec, s *selection) {
		for _, i := range s.rows {
			if o.failed(i) {
				continue
			}
			v := scalar.Null
			for j := range a {
				if a[j].isValid(i) {
					v = a[j].get(&types[j], i)
					break
				}
			}
			o.set(i, v)
		}
	}
}

// nullTest is `x == nil`, or with want false `x != nil`.
func nullTest(want bool) kernel { return nullTestOf(0, want) }

func nullTestOf(arg int, want bool) kernel {
	return func(o *vec, a []*vec, s *selection) {
		valid := a[arg].valid
		if valid == nil {
			for _, i := range s.rows {
				o.b[i] = !want
			}
			return
		}
		for _, i := range s.rows {
			o.b[i] = valid[i] != want
		}
	}
}

func (n *node) nullIf() kernel {
	eq := n.relationOf("eq")
	if eq == nil || n.form == formAny {
		return nil
	}
	var equal vec
	t := n.args[0].typ
	return func(o *vec, a []*vec, s *selection) {
		equal.begin(formBool, s.n)
		equal.strict(a, s)
		live := selection{n: s.n, rows: s.rows, dense: s.dense}
		if equal.valid != nil || equal.errs != nil {
			live = selection{n: s.n}
			for _, i := range s.rows {
				if equal.alive(i) {
					live.rows = append(live.rows, i)
				}
			}
		}
		eq(&equal, a, &live)
		for _, i := range s.rows {
			switch {
			case o.failed(i):
			case !a[0].isValid(i), equal.alive(i) && equal.b[i]:
				o.setNull(i)
			default:
				o.set(i, a[0].get(&t, i))
			}
		}
	}
}

// unwrap shares the struct; a null one fails.
func (n *node) unwrap() bool {
	if n.args[0].form != formStruct {
		return false
	}
	n.form = formStruct
	n.run = func(o *vec, a []*vec, s *selection) {
		in := a[0]
		o.form, o.arr, o.v = in.form, in.arr, in.v
		if in.valid == nil {
			return
		}
		for _, i := range s.rows {
			if !in.valid[i] {
				o.fail(i, scalar.CodeNullStruct)
			}
		}
	}
	return true
}

// index looks up a column in a constant map, or counts in a list.
func (n *node) index() kernel {
	m := n.args[0]
	if !m.konst || m.typ.Kind != scalar.KindMap || m.value.IsNull() || n.form == formAny {
		return nil
	}
	switch n.args[1].form {
	case formText:
		at := make(map[string]scalar.Value, len(m.value.Keys))
		for i, k := range m.value.Keys {
			at[k.S] = m.value.L[i]
		}
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := at[a[1].s.at(i)]
				if !ok {
					v = scalar.Null
				}
				o.set(i, v)
			}
		}
	case formInt:
		at := make(map[int64]scalar.Value, len(m.value.Keys))
		for i, k := range m.value.Keys {
			at[k.I] = m.value.L[i]
		}
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := at[a[1].i[i]]
				if !ok {
					v = scalar.Null
				}
				o.set(i, v)
			}
		}
	}
	return nil
}

// membership is `in` over a constant list or the keys of a constant map, by a hash set.
func (n *node) membership(negate bool) kernel {
	x, l := n.args[0], n.args[1]
	if !l.konst || l.value.IsNull() {
		return nil
	}
	elems, elem := l.value.L, l.typ.Elem
	if l.typ.Kind == scalar.KindMap {
		elems, elem = l.value.Keys, l.typ.Key
	}
	hasNull := false
	for _, e := range elems {
		hasNull = hasNull || e.IsNull()
	}
	miss := func(o *vec, i int32) {
		if hasNull {
			o.setNull(i)
		}
		o.b[i] = negate
	}
	switch {
	case x.form == formText && x.typ.Kind == elem.Kind:
		set := make(map[string]struct{}, len(elems))
		for _, e := range elems {
			if !e.IsNull() {
				set[e.S] = struct{}{}
			}
		}
		few := make([]string, 0, len(set))
		for _, e := range elems {
			if !e.IsNull() {
				few = append(few, e.S)
			}
		}
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v := a[0].s.at(i)
				hit := false
				if len(few) <= 8 {
					for _, e := range few {
						if e == v {
							hit = true
							break
						}
					}
				} else {
					_, hit = set[v]
				}
				if hit {
					o.b[i] = !negate
				} else {
					miss(o, i)
				}
			}
		}
	case x.form == formInt && (x.typ.Kind == elem.Kind ||
		x.typ.Kind.Integer() && elem.Kind.Integer() && (x.typ.Kind == scalar.KindUint64) == (elem.Kind == scalar.KindUint64)):
		set := make(map[int64]struct{}, len(elems))
		for _, e := range elems {
			if !e.IsNull() {
				set[e.I] = struct{}{}
			}
		}
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				if _, hit := set[a[0].i[i]]; hit {
					o.b[i] = !negate
				} else {
					miss(o, i)
				}
			}
		}
	}
	return nil
}

// extreme is min or max of two or more columns, in the order of scalar.Compare.
func (n *node) extreme(largest bool) kernel {
	if len(n.args) < 2 {
		return nil
	}
	uns := n.typ.Kind.Unsigned()
	switch n.form {
	case formInt:
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				best := a[0].i[i]
				for _, x := range a[1:] {
					v := x.i[i]
					less := v < best
					if uns {
						less = uint64(v) < uint64(best)
					}
					if v != best && less != largest {
						best = v
					}
				}
				o.i[i] = best
			}
		}
	case formFloat:
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				best := a[0].f[i]
				for _, x := range a[1:] {
					if c := scalar.CompareFloat(x.f[i], best); c != 0 && c > 0 == largest {
						best = x.f[i]
					}
				}
				o.f[i] = best
			}
		}
	case formDecimal:
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				best := a[0].d[i]
				for _, x := range a[1:] {
					if c := x.d[i].Cmp(best); c != 0 && c > 0 == largest {
						best = x.d[i]
					}
				}
				o.d[i] = best
			}
		}
	}
	return nil
}

func (n *node) rounding(name string) kernel {
	a := n.args[0]
	if name == "is_nan" {
		if a.form != formFloat {
			return nil
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.b[i] = a[0].f[i] != a[0].f[i]
			}
		}
	}
	if len(n.args) != 1 {
		return nil
	}
	switch {
	case a.form == formInt && n.form == formInt && name != "sqrt":
		return func(o *vec, a []*vec, s *selection) { copyLanes(o.i, a[0].i, s) }
	case a.form != formFloat:
		return nil
	}
	op := map[string]func(float64) float64{"floor": math.Floor, "ceil": math.Ceil, "round": math.Round, "sqrt": math.Sqrt}[name]
	return func(o *vec, a []*vec, s *selection) {
		for _, i := range s.rows {
			o.f[i] = op(a[0].f[i])
		}
	}
}

func copyLanes[T any](dst, src []T, s *selection) {
	if s.dense {
		copy(dst, src[:s.n])
		return
	}
	for _, i := range s.rows {
		dst[i] = src[i]
	}
}

// constPattern is the pattern of argument i; scalar.Resolve has compiled it once already.
func (n *node) constPattern(i int) *regexp.Regexp {
	p, ok := n.constText(i)
	if !ok {
		return nil
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return nil
	}
	return re
}
