package scalar

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// Closures of list functions are called with (element, index, accumulator).

// closureOf checks that argument i is a closure with a body of type want (KindInvalid: any).
func closureOf(name string, args []Arg, i int, want Kind) (Type, error) {
	l := args[i].Lambda
	if l == nil {
		return Type{}, fail(name, i, fmt.Sprintf("argument %d must be a closure", i+1), "write `{# > 1}`")
	}
	if want != KindInvalid && l.Kind != want && l.Kind != KindNull {
		return Type{}, fail(name, i, fmt.Sprintf("the closure must give %s, not %s", Type{Kind: want}, l), "")
	}
	return *l, nil
}

func listArg(name string, args []Arg, i int) (Type, error) {
	if i >= len(args) || args[i].Lambda != nil || args[i].Type.Kind != KindList {
		if i >= len(args) {
			return Type{}, fail(name, -1, "takes a list", "")
		}
		return Type{}, wrongType(name, i, args[i], "a list")
	}
	return args[i].Type, nil
}

// each calls the closure for every element. Null elements are passed on.
func each(list []Value, fn func([]Value) (Value, Code), visit func(i int, r Value) bool) Code {
	args := make([]Value, 3)
	for i, e := range list {
		args[0], args[1], args[2] = e, Int(int64(i)), Null
		r, c := fn(args)
		if c != CodeNone {
			return c
		}
		if !visit(i, r) {
			break
		}
	}
	return CodeNone
}

func isTrue(v Value) bool { return !v.IsNull() && v.I != 0 }

// withPredicate makes the functions of (list, closure to bool); a null answer counts as false.
func withPredicate(result func(list Type) Type, eval func(list []Value, fn func([]Value) (Value, Code)) (Value, Code)) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 2, 2); err != nil {
			return nil, err
		}
		t, err := listArg(name, args, 0)
		if err != nil {
			return nil, err
		}
		b, err := closureOf(name, args, 1, KindBool)
		if err != nil {
			return nil, err
		}
		return &Func{Args: []Type{t, b}, Result: result(t), Eval: func(v []Value) (Value, Code) {
			return eval(v[0].L, v[1].Fn)
		}}, nil
	}
}

func sameList(t Type) Type   { return t.NonNull() }
func elemOrNull(t Type) Type { return t.Elem.Null() }
func boolResult(Type) Type   { return TypeBool }
func intNull(Type) Type      { return TypeInt64.Null() }
func intType(Type) Type      { return TypeInt64 }

func evalFilter(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
	out := make([]Value, 0, len(l))
	c := each(l, fn, func(i int, r Value) bool {
		if isTrue(r) {
			out = append(out, l[i])
		}
		return true
	})
	if c != CodeNone {
		return Null, c
	}
	return Value{Kind: KindList, L: out}, CodeNone
}

func countTrue(l []Value, fn func([]Value) (Value, Code), limit int) (int, Code) {
	n := 0
	c := each(l, fn, func(_ int, r Value) bool {
		n += btoi(isTrue(r))
		return limit == 0 || n < limit
	})
	return n, c
}

func evalCountBy(test func(n, all int) bool, limit int) func([]Value, func([]Value) (Value, Code)) (Value, Code) {
	return func(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
		n, c := countTrue(l, fn, limit)
		if c != CodeNone {
			return Null, c
		}
		return Bool(test(n, len(l))), CodeNone
	}
}

func evalAll(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
	all := true
	c := each(l, fn, func(_ int, r Value) bool {
		all = isTrue(r)
		return all
	})
	if c != CodeNone {
		return Null, c
	}
	return Bool(all), CodeNone
}

func evalFind(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
	i, c := findIndex(l, fn)
	if c != CodeNone || i < 0 {
		return Null, c
	}
	return l[i], CodeNone
}

func evalFindIndex(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
	i, c := findIndex(l, fn)
	if c != CodeNone || i < 0 {
		return Null, c
	}
	return Int(int64(i)), CodeNone
}

func findIndex(l []Value, fn func([]Value) (Value, Code)) (int, Code) {
	at := -1
	c := each(l, fn, func(i int, r Value) bool {
		if isTrue(r) {
			at = i
		}
		return at < 0
	})
	return at, c
}

func resolveCount(name string, args []Arg) (*Func, error) {
	if len(args) == 1 {
		t, err := listArg(name, args, 0)
		if err != nil {
			return nil, err
		}
		if t.Elem.Kind != KindBool {
			return nil, wrongType(name, 0, args[0], "a list of bool, or a list with a closure")
		}
		return &Func{Args: []Type{t}, Result: TypeInt64, Eval: func(v []Value) (Value, Code) {
			n := int64(0)
			for _, e := range v[0].L {
				n += int64(btoi(isTrue(e)))
			}
			return Int(n), CodeNone
		}}, nil
	}
	return withPredicate(intType, func(l []Value, fn func([]Value) (Value, Code)) (Value, Code) {
		n, c := countTrue(l, fn, 0)
		return Int(int64(n)), c
	})(name, args)
}

func resolveMap(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	b, err := closureOf(name, args, 1, KindInvalid)
	if err != nil {
		return nil, err
	}
	return &Func{Args: []Type{t, b}, Result: ListType(b), Eval: func(v []Value) (Value, Code) {
		l, c := mapList(v[0].L, v[1].Fn)
		return Value{Kind: KindList, L: l}, c
	}}, nil
}

func mapList(l []Value, fn func([]Value) (Value, Code)) ([]Value, Code) {
	out := make([]Value, len(l))
	c := each(l, fn, func(i int, r Value) bool {
		out[i] = r
		return true
	})
	return out, c
}

// resolveReduce makes reduce(list, closure, init): the closure sees #acc, which starts as init.
func resolveReduce(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 3, 3); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	b, err := closureOf(name, args, 1, KindInvalid)
	if err != nil {
		return nil, err
	}
	r, same := Common(b, args[2].Type)
	if !same {
		return nil, fail(name, 2, fmt.Sprintf("the closure gives %s, the start is %s", b, args[2].Type), "")
	}
	return &Func{Args: []Type{t, b, args[2].Type}, Result: r, NullSafe: true, Eval: func(v []Value) (Value, Code) {
		if v[0].IsNull() {
			return Null, CodeNone
		}
		acc := v[2]
		a := make([]Value, 3)
		for i, e := range v[0].L {
			a[0], a[1], a[2] = e, Int(int64(i)), acc
			x, c := v[1].Fn(a)
			if c != CodeNone {
				return Null, c
			}
			acc = x
		}
		return acc, CodeNone
	}}, nil
}

// fold makes sum, mean and median of a list of numbers, or of what a closure makes of each element.
// Null elements are skipped; an empty list gives 0 for sum, else null.
func fold(pick func(name string, elem Type) (Type, func([]Value) (Value, Code), error)) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 1, 2); err != nil {
			return nil, err
		}
		t, err := listArg(name, args, 0)
		if err != nil {
			return nil, err
		}
		f := &Func{Args: []Type{t}}
		elem := *t.Elem
		if len(args) == 2 {
			if elem, err = closureOf(name, args, 1, KindInvalid); err != nil {
				return nil, err
			}
			f.Args = append(f.Args, elem)
		}
		r, eval, err := pick(name, elem)
		if err != nil {
			return nil, err
		}
		f.Result = r
		f.Eval = func(v []Value) (Value, Code) {
			l := v[0].L
			if len(v) == 2 {
				var c Code
				if l, c = mapList(l, v[1].Fn); c != CodeNone {
					return Null, c
				}
			}
			return eval(l)
		}
		return f, nil
	}
}

func notNumbers(name string, t Type) error {
	return fail(name, 0, fmt.Sprintf("takes a list of numbers, not of %s", t), "")
}

// sumInts adds in 128 bits.
func sumInts(l []Value) (s Int128, n int64) {
	for _, e := range l {
		if e.IsNull() {
			continue
		}
		n++
		x := Int128Of(e.I)
		if e.Kind == KindUint64 {
			x = Uint128Of(uint64(e.I))
		}
		s, _ = s.Add(x) // at most MaxInt64 elements of 64 bits: always fits
	}
	return s, n
}

func pickSum(name string, t Type) (Type, func([]Value) (Value, Code), error) {
	switch k := t.Kind; {
	case k == KindUint64:
		return TypeUint64, func(l []Value) (Value, Code) {
			s, _ := sumInts(l)
			u, ok := s.Uint64()
			if !ok {
				return Null, CodeOverflow
			}
			return Uint(u), CodeNone
		}, nil
	case k.Integer() || k == KindDuration:
		rk := KindInt64
		if k == KindDuration {
			rk = k
		}
		return Type{Kind: rk}, func(l []Value) (Value, Code) {
			s, _ := sumInts(l)
			i, ok := s.Int64()
			if !ok {
				return Null, CodeOverflow
			}
			return Value{Kind: rk, I: i}, CodeNone
		}, nil
	case k.Float():
		return TypeFloat64, func(l []Value) (Value, Code) {
			s := 0.0
			for _, e := range l {
				if !e.IsNull() {
					s += e.F
				}
			}
			return Float(s), CodeNone
		}, nil
	case k == KindDecimal:
		return DecimalType(MaxPrecision, t.Scale), func(l []Value) (Value, Code) {
			s, c := sumDecimals(l)
			if c != CodeNone {
				return Null, c
			}
			return Decimal(s), CodeNone
		}, nil
	}
	return Type{}, nil, notNumbers(name, t)
}

func sumDecimals(l []Value) (s Int128, c Code) {
	for _, e := range l {
		if !e.IsNull() {
			if s, c = DecimalAdd(s, e.D, MaxPrecision); c != CodeNone {
				return s, c
			}
		}
	}
	return s, CodeNone
}

func countNonNull(l []Value) (n int64) {
	for _, e := range l {
		n += int64(btoi(!e.IsNull()))
	}
	return n
}

func pickMean(name string, t Type) (Type, func([]Value) (Value, Code), error) {
	switch k := t.Kind; {
	case k.Integer():
		return TypeFloat64.Null(), func(l []Value) (Value, Code) {
			s, n := sumInts(l)
			if n == 0 {
				return Null, CodeNone
			}
			return Float(DecimalToFloat(s, 0) / float64(n)), CodeNone
		}, nil
	case k.Float():
		return TypeFloat64.Null(), func(l []Value) (Value, Code) {
			n := countNonNull(l)
			if n == 0 {
				return Null, CodeNone
			}
			s := 0.0
			for _, e := range l {
				if !e.IsNull() {
					s += e.F
				}
			}
			return Float(s / float64(n)), CodeNone
		}, nil
	case k == KindDecimal:
		scale := max(t.Scale, 6)
		return DecimalType(MaxPrecision, scale).Null(), func(l []Value) (Value, Code) {
			n := countNonNull(l)
			if n == 0 {
				return Null, CodeNone
			}
			s, c := sumDecimals(l)
			if c != CodeNone {
				return Null, c
			}
			d, c := DecimalDiv(s, Int128Of(n), scale-t.Scale, MaxPrecision)
			if c != CodeNone {
				return Null, c
			}
			return Decimal(d), CodeNone
		}, nil
	}
	return Type{}, nil, notNumbers(name, t)
}

func pickMedian(name string, t Type) (Type, func([]Value) (Value, Code), error) {
	_, mean, err := pickMean(name, t)
	if err != nil {
		return Type{}, nil, err
	}
	r, _, _ := pickMean(name, t)
	return r, func(l []Value) (Value, Code) {
		s := make([]Value, 0, len(l))
		for _, e := range l {
			if !e.IsNull() {
				s = append(s, e)
			}
		}
		slices.SortStableFunc(s, Compare)
		if len(s) == 0 {
			return Null, CodeNone
		}
		return mean(s[(len(s)-1)/2 : len(s)/2+1])
	}, nil
}

func resolveLen(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	f := &Func{Args: []Type{t}, Result: TypeInt64}
	switch {
	case args[0].Lambda != nil:
	case t.Kind == KindString:
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(utf8.RuneCountInString(v[0].S))), CodeNone }
		return f, nil
	case t.Kind == KindBytes:
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(len(v[0].S))), CodeNone }
		return f, nil
	case t.Kind == KindList || t.Kind == KindMap:
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(len(v[0].L))), CodeNone }
		return f, nil
	}
	return nil, wrongType(name, 0, args[0], "a string, bytes, a list or a map")
}

// element is l[i], from the end if i is negative; outside it is null.
func element(l []Value, i int64) Value {
	if i < 0 {
		i += int64(len(l))
	}
	if i < 0 || i >= int64(len(l)) {
		return Null
	}
	return l[i]
}

// resolveIndex makes xs[i] and m[k]; both are T?.
func resolveIndex(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil {
		return nil, wrongType(name, 0, args[0], "a list or a map")
	}
	switch t.Kind {
	case KindList:
		it, err := param(name, args, 1, 'i')
		if err != nil {
			return nil, err
		}
		return &Func{Args: []Type{t, it}, Result: t.Elem.Null(), Eval: func(v []Value) (Value, Code) {
			return element(v[0].L, v[1].I), CodeNone
		}}, nil
	case KindMap:
		kt, err := mapKey(name, args, t)
		if err != nil {
			return nil, err
		}
		return &Func{Args: []Type{t, kt}, Result: t.Elem.Null(), Eval: func(v []Value) (Value, Code) {
			r, _ := v[0].Lookup(v[1])
			return r, CodeNone
		}}, nil
	case KindString:
		return nil, fail(name, 0, "a string has no elements", "use `substr(s, i, 1)`")
	}
	return nil, wrongType(name, 0, args[0], "a list or a map")
}

// mapKey is the type that argument 1 must have to be looked up in a map of type t.
func mapKey(name string, args []Arg, t Type) (Type, error) {
	k, same := Common(*t.Key, args[1].Type)
	if args[1].Lambda != nil || !same || !k.NonNull().Same(t.Key.NonNull()) {
		return Type{}, fail(name, 1, fmt.Sprintf("the key must be %s, not %s", t.Key, args[1].Type), "")
	}
	return t.Key.NonNull().OrNull(args[1].Type.Nullable), nil
}

func resolveContainsKey(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil || t.Kind != KindMap {
		return nil, wrongType(name, 0, args[0], "a map")
	}
	kt, err := mapKey(name, args, t)
	if err != nil {
		return nil, err
	}
	return &Func{Args: []Type{t, kt}, Result: TypeBool, Eval: func(v []Value) (Value, Code) {
		_, found := v[0].Lookup(v[1])
		return Bool(found), CodeNone
	}}, nil
}

// resolveSlice makes x[from:to] on lists and strings (in characters); a missing bound is the literal
// nil.
func resolveSlice(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 3); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil || t.Kind != KindList && t.Kind != KindString {
		return nil, wrongType(name, 0, args[0], "a list or a string")
	}
	f := &Func{Args: []Type{t}, Result: t, NullSafe: true}
	bound := false
	for i := 1; i < len(args); i++ {
		if args[i].Type.Kind == KindNull {
			f.Args = append(f.Args, args[i].Type)
			continue
		}
		bt, err := param(name, args, i, 'i')
		if err != nil {
			return nil, err
		}
		f.Args = append(f.Args, bt)
		bound = bound || bt.Nullable
	}
	f.Result.Nullable = t.Nullable || bound
	literal := make([]bool, len(args))
	for i := range args {
		literal[i] = args[i].Type.Kind == KindNull
	}
	f.Eval = func(v []Value) (Value, Code) {
		if v[0].IsNull() {
			return Null, CodeNone
		}
		n := int64(len(v[0].L))
		if t.Kind == KindString {
			n = int64(utf8.RuneCountInString(v[0].S))
		}
		from, to := int64(0), n
		for i := 1; i < len(v); i++ {
			switch {
			case literal[i]:
			case v[i].IsNull():
				return Null, CodeNone
			case i == 1:
				from = v[i].I
			default:
				to = v[i].I
			}
		}
		from, to = span(from, to, n)
		if t.Kind == KindString {
			i := byteAt(v[0].S, from)
			return String(v[0].S[i : i+byteAt(v[0].S[i:], to-from)]), CodeNone
		}
		return Value{Kind: KindList, L: v[0].L[from:to]}, CodeNone
	}
	return f, nil
}

// evalRange makes a..b, both ends included.
func evalRange(v []Value) (Value, Code) {
	a, b := v[0].I, v[1].I
	if b < a {
		return List(), CodeNone
	}
	if d, ok := SubInt64(b, a); !ok || d >= MaxElements {
		return Null, CodeLimit
	}
	l := make([]Value, 0, b-a+1)
	for i := a; ; i++ {
		l = append(l, Int(i))
		if i == b {
			return Value{Kind: KindList, L: l}, CodeNone
		}
	}
}

func listFunc(params string, result func(Type) Type, eval evalFn) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 1+len(params), 1+len(params)); err != nil {
			return nil, err
		}
		t, err := listArg(name, args, 0)
		if err != nil {
			return nil, err
		}
		f := &Func{Args: []Type{t}, Result: result(t), Eval: eval}
		for i := range params {
			pt, err := param(name, args, i+1, params[i])
			if err != nil {
				return nil, err
			}
			f.Args = append(f.Args, pt)
		}
		return f, nil
	}
}

func evalReverse(v []Value) (Value, Code) {
	l := slices.Clone(v[0].L)
	slices.Reverse(l)
	return Value{Kind: KindList, L: l}, CodeNone
}

func evalTake(v []Value) (Value, Code) {
	n := min(max(v[1].I, 0), int64(len(v[0].L)))
	return Value{Kind: KindList, L: v[0].L[:n]}, CodeNone
}

// evalUniq keeps the first of equal elements.
func evalUniq(v []Value) (Value, Code) {
	l := v[0].L
	order := make([]int, len(l))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return Compare(l[a], l[b]) })
	keep := make([]bool, len(l))
	for i, at := range order {
		keep[at] = i == 0 || Compare(l[order[i-1]], l[at]) != 0
	}
	out := make([]Value, 0, len(l))
	for i, e := range l {
		if keep[i] {
			out = append(out, e)
		}
	}
	return Value{Kind: KindList, L: out}, CodeNone
}

// orderArg reads the optional last argument "asc" or "desc".
func orderArg(name string, args []Arg, i int) (desc bool, err error) {
	if i >= len(args) {
		return false, nil
	}
	switch s, _ := constString(args[i]); s {
	case "asc":
		return false, nil
	case "desc":
		return true, nil
	}
	return false, fail(name, i, "the order must be `\"asc\"` or `\"desc\"`", "")
}

func sortIndexes(keys []Value, desc bool) []int {
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if desc {
			a, b = b, a
		}
		return Compare(keys[a], keys[b])
	})
	return order
}

func resolveSort(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 2); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	desc, err := orderArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{t}, Result: t.NonNull()}
	if len(args) == 2 {
		f.Args = append(f.Args, TypeString)
	}
	f.Eval = func(v []Value) (Value, Code) { return permute(v[0].L, sortIndexes(v[0].L, desc)), CodeNone }
	return f, nil
}

func permute(l []Value, order []int) Value {
	out := make([]Value, len(l))
	for i, at := range order {
		out[i] = l[at]
	}
	return Value{Kind: KindList, L: out}
}

func resolveSortBy(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 3); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	b, err := closureOf(name, args, 1, KindInvalid)
	if err != nil {
		return nil, err
	}
	desc, err := orderArg(name, args, 2)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{t, b}, Result: t.NonNull()}
	if len(args) == 3 {
		f.Args = append(f.Args, TypeString)
	}
	f.Eval = func(v []Value) (Value, Code) {
		keys, c := mapList(v[0].L, v[1].Fn)
		if c != CodeNone {
			return Null, c
		}
		return permute(v[0].L, sortIndexes(keys, desc)), CodeNone
	}
	return f, nil
}

func resolveConcat(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, -1); err != nil {
		return nil, err
	}
	t, err := commonOf(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Result: t.NonNull()}
	for _, a := range args {
		f.Args = append(f.Args, t.NonNull().OrNull(a.Type.Nullable))
	}
	switch t.Kind {
	case KindString, KindBytes:
		k := t.Kind
		f.Eval = func(v []Value) (Value, Code) {
			r, c := concatStrings(v)
			if c == CodeNone {
				r.Kind = k
			}
			return r, c
		}
		return f, nil
	case KindList:
		f.Eval = func(v []Value) (Value, Code) {
			n := 0
			for _, x := range v {
				n += len(x.L)
			}
			if n > MaxElements {
				return Null, CodeLimit
			}
			l := make([]Value, 0, n)
			for _, x := range v {
				l = append(l, x.L...)
			}
			return Value{Kind: KindList, L: l}, CodeNone
		}
		return f, nil
	}
	return nil, wrongType(name, 0, args[0], "a list or a string")
}

func resolveFlatten(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	if t.Elem.Kind != KindList {
		return nil, wrongType(name, 0, args[0], "a list of lists")
	}
	return &Func{Args: []Type{t}, Result: t.Elem.NonNull(), Eval: func(v []Value) (Value, Code) {
		var l []Value
		for _, x := range v[0].L {
			if len(l)+len(x.L) > MaxElements {
				return Null, CodeLimit
			}
			l = append(l, x.L...)
		}
		return Value{Kind: KindList, L: l}, CodeNone
	}}, nil
}

func mapFunc(result func(Type) Type, eval evalFn) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 1, 1); err != nil {
			return nil, err
		}
		if args[0].Lambda != nil || args[0].Type.Kind != KindMap {
			return nil, wrongType(name, 0, args[0], "a map")
		}
		return &Func{Args: []Type{args[0].Type}, Result: result(args[0].Type), Eval: eval}, nil
	}
}

// resolveListOf makes a list of values known only with the row: [a, b].
func resolveListOf(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, MaxElements); err != nil {
		return nil, err
	}
	t, err := commonOf(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Result: ListType(t), NullSafe: true}
	for _, a := range args {
		f.Args = append(f.Args, t.NonNull().OrNull(a.Type.Nullable))
	}
	f.Eval = func(v []Value) (Value, Code) { return List(slices.Clone(v)...), CodeNone }
	return f, nil
}
