package scalar

import (
	"cmp"
	"fmt"
	"math"
)

// CompareIntUint compares exactly.
func CompareIntUint(a int64, b uint64) int {
	if a < 0 {
		return -1
	}
	return cmp.Compare(uint64(a), b)
}

// CompareIntFloat compares the exact values; b must not be NaN.
func CompareIntFloat(a int64, b float64) int {
	switch {
	case b >= 1<<63:
		return -1
	case b < -1<<63:
		return 1
	}
	t := math.Trunc(b)
	if c := cmp.Compare(a, int64(t)); c != 0 {
		return c
	}
	return cmp.Compare(t, b)
}

// CompareUintFloat compares the exact values; b must not be NaN.
func CompareUintFloat(a uint64, b float64) int {
	switch {
	case b >= 1<<64:
		return -1
	case b < 0:
		return 1
	}
	t := math.Trunc(b)
	// A float from 2^63 on is an integer; shift it into the range of int64 for the conversion.
	var u uint64
	if t >= 1<<63 {
		u = uint64(int64(t-1<<63)) + 1<<63
	} else {
		u = uint64(int64(t))
	}
	if c := cmp.Compare(a, u); c != 0 {
		return c
	}
	return cmp.Compare(t, b)
}

// unordered is the answer of a comparer when a NaN takes part: no relation but `!=` holds.
const unordered = 2

// A comparer is -1, 0, 1 or unordered.
type comparer func(a, b Value) int

// comparerOf finds the exact comparison of two operand types and the types they are widened to. It
// reports whether the order (not only equality) has a meaning.
func comparerOf(name string, args []Arg) (c comparer, a, b Type, ordered bool, err error) {
	a, b = args[0].Type, args[1].Type
	for i := range args[:2] {
		if args[i].Lambda != nil {
			return nil, a, b, false, wrongType(name, i, args[i], "a value")
		}
	}
	if a.Kind == KindNull {
		a = b.Null()
	}
	if b.Kind == KindNull {
		b = a.Null()
	}
	ak, bk := a.Kind, b.Kind
	switch {
	case ak.Integer() && bk.Integer():
		return intComparer(ak, bk), a, b, true, nil
	case ak == KindDecimal && bk.Numeric() || bk == KindDecimal && ak.Numeric():
		da, ok1 := decimalOperand(args[0], a)
		db, ok2 := decimalOperand(args[1], b)
		if !ok1 || !ok2 {
			break
		}
		return func(x, y Value) int { return DecimalCompare(x.D, da.Scale, y.D, db.Scale) }, da, db, true, nil
	case ak.Float() && bk.Float():
		return func(x, y Value) int { return floatCompare(x.F, y.F) }, a, b, true, nil
	case ak.Integer() && bk.Float():
		return intFloatComparer(ak), a, b, true, nil
	case ak.Float() && bk.Integer():
		c := intFloatComparer(bk)
		return func(x, y Value) int {
			r := c(y, x)
			if r == unordered {
				return r
			}
			return -r
		}, a, b, true, nil
	case ak != bk:
	case ak == KindBool:
		return Compare, a, b, false, nil
	case ak == KindString, ak == KindBytes, ak == KindTime, ak == KindDuration, ak == KindDate:
		return Compare, a, b, true, nil
	case a.Same(b):
		return Compare, a, b, false, nil
	}
	return nil, a, b, false, fail(name, -1, fmt.Sprintf("no comparison between %s and %s", a, b), compareFix(a, b))
}

func compareFix(a, b Type) string {
	has := func(x, y Kind) bool { return a.Kind == x && b.Kind == y || a.Kind == y && b.Kind == x }
	switch {
	case has(KindString, KindTime):
		return "read the text with `parse_time(s, layout)`"
	case has(KindDate, KindTime):
		return "compare with `date_of(t)`"
	case has(KindString, KindBytes):
		return "convert one side with `string(..)` or `bytes(..)`"
	case has(KindDecimal, KindFloat64), has(KindDecimal, KindFloat32):
		return "convert one side with `dec(.., p, s)` or `float(..)`"
	case a.Kind == KindString && b.Kind.Numeric(), b.Kind == KindString && a.Kind.Numeric():
		return "convert the text with `int(..)`, `float(..)` or `dec(.., p, s)`"
	}
	return ""
}

func intComparer(a, b Kind) comparer {
	switch {
	case a != KindUint64 && b != KindUint64:
		return func(x, y Value) int { return cmp.Compare(x.I, y.I) }
	case a.Unsigned() && b.Unsigned():
		return func(x, y Value) int { return cmp.Compare(uint64(x.I), uint64(y.I)) }
	case a.Unsigned():
		return func(x, y Value) int { return -CompareIntUint(y.I, uint64(x.I)) }
	}
	return func(x, y Value) int { return CompareIntUint(x.I, uint64(y.I)) }
}

func intFloatComparer(k Kind) comparer {
	if k == KindUint64 {
		return func(x, y Value) int {
			if y.F != y.F {
				return unordered
			}
			return CompareUintFloat(uint64(x.I), y.F)
		}
	}
	return func(x, y Value) int {
		if y.F != y.F {
			return unordered
		}
		return CompareIntFloat(x.I, y.F)
	}
}

func floatCompare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == b:
		return 0
	}
	return unordered
}

// A relation is a comparison operator.
type relation struct {
	ordered bool
	holds   func(c int) bool
}

var relations = map[string]relation{
	"eq": {false, func(c int) bool { return c == 0 }},
	"ne": {false, func(c int) bool { return c != 0 }},
	"lt": {true, func(c int) bool { return c == -1 }},
	"le": {true, func(c int) bool { return c == -1 || c == 0 }},
	"gt": {true, func(c int) bool { return c == 1 }},
	"ge": {true, func(c int) bool { return c == 1 || c == 0 }},
}

func resolveCompare(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	rel := relations[name]
	an, bn := args[0].Type.Kind == KindNull, args[1].Type.Kind == KindNull
	if (an || bn) && !rel.ordered {
		// A comparison with the literal nil asks for nullness.
		i := btoi(an)
		want := name == "eq"
		return &Func{
			Args: []Type{args[0].Type, args[1].Type}, Result: TypeBool, NullSafe: true,
			Eval: func(v []Value) (Value, Code) { return Bool(v[i].IsNull() == want), CodeNone },
		}, nil
	}
	c, a, b, ordered, err := comparerOf(name, args)
	if err != nil {
		return nil, err
	}
	if rel.ordered && !ordered {
		return nil, fail(name, -1, fmt.Sprintf("%s has no order, only == and !=", a.NonNull()), "")
	}
	holds := rel.holds
	return &Func{Args: []Type{a, b}, Result: TypeBool, Eval: func(v []Value) (Value, Code) {
		return Bool(holds(normalize(c(v[0], v[1])))), CodeNone
	}}, nil
}

// normalize maps any comparison result to -1, 0, 1 or unordered.
func normalize(c int) int { return max(c, -1) }

func resolveNot(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t, err := typed(name, args, 0, KindBool, "a bool")
	if err != nil {
		return nil, err
	}
	return &Func{Args: []Type{t}, Result: TypeBool, Eval: func(v []Value) (Value, Code) { return Bool(v[0].I == 0), CodeNone }}, nil
}

// resolveIn makes `in` and `not in` for lists and map keys. As `x == a or x == b ..` it is null when
// no element is equal and one is null.
func resolveIn(negate bool) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 2, 2); err != nil {
			return nil, err
		}
		t := args[1].Type
		if args[1].Lambda != nil {
			return nil, wrongType(name, 1, args[1], "a list or a map")
		}
		var elem Type
		switch t.Kind {
		case KindList:
			elem = *t.Elem
		case KindMap:
			elem = *t.Key
		default:
			suggestion := ""
			if t.Kind == KindString {
				suggestion = "use `contains`"
			}
			return nil, fail(name, 1, fmt.Sprintf("the right side must be a list or a map, not %s", t), suggestion)
		}
		if elem.Kind == KindNull { // an empty list
			elem = args[0].Type
		}
		pair := []Arg{args[0], {Type: elem}}
		c, x, y, _, err := comparerOf(name, pair)
		if err == nil && y.Kind != elem.Kind || err != nil && args[1].Const != nil && args[0].Type.Kind == KindDecimal {
			return resolveInDecimal(name, args, negate)
		}
		if err != nil {
			return nil, err
		}
		f := &Func{Args: []Type{x, t}, Result: TypeBool.OrNull(elem.Nullable && t.Kind == KindList)}
		f.Eval = inEval(c, negate)
		return f, nil
	}
}

func inEval(c comparer, negate bool) evalFn {
	return func(v []Value) (Value, Code) {
		list := v[1].L
		if v[1].Kind == KindMap {
			list = v[1].Keys
		}
		null := false
		for _, e := range list {
			if e.IsNull() {
				null = true
			} else if c(v[0], e) == 0 {
				return Bool(!negate), CodeNone
			}
		}
		if null {
			return Null, CodeNone
		}
		return Bool(negate), CodeNone
	}
}

// resolveInDecimal compares a decimal with the number literals of a constant list, or integers with
// decimals: each side keeps its values and is scaled at the comparison.
func resolveInDecimal(name string, args []Arg, negate bool) (*Func, error) {
	t := args[1].Type
	xt, xok := decimalOperand(args[0], args[0].Type)
	elem := t.Elem
	if t.Kind == KindMap {
		elem = t.Key
	}
	if !xok {
		return nil, fail(name, -1, fmt.Sprintf("no comparison between %s and %s", args[0].Type, *elem), compareFix(args[0].Type, *elem))
	}
	var scaleOf func(v Value) (Int128, int32, bool)
	switch {
	case elem.Kind == KindDecimal:
		scaleOf = func(v Value) (Int128, int32, bool) { return v.D, elem.Scale, true }
	case elem.Kind == KindUint64:
		scaleOf = func(v Value) (Int128, int32, bool) { return Uint128Of(uint64(v.I)), 0, true }
	case elem.Kind.Integer():
		scaleOf = func(v Value) (Int128, int32, bool) { return Int128Of(v.I), 0, true }
	case elem.Kind.Float() && args[1].Const != nil:
		scaleOf = func(v Value) (Int128, int32, bool) {
			lt, ok := decimalOfFloatLiteral(v.F)
			if !ok {
				return Int128{}, 0, false
			}
			d, c := DecimalFromFloat(v.F, MaxPrecision, lt.Scale)
			return d, lt.Scale, c == CodeNone
		}
	default:
		return nil, fail(name, -1, fmt.Sprintf("no comparison between %s and %s", args[0].Type, *elem), compareFix(args[0].Type, *elem))
	}
	c := func(x, y Value) int {
		d, s, ok := scaleOf(y)
		if !ok {
			return unordered
		}
		return DecimalCompare(x.D, xt.Scale, d, s)
	}
	return &Func{
		Args: []Type{xt.OrNull(args[0].Type.Nullable), t}, Result: TypeBool.OrNull(elem.Nullable && t.Kind == KindList),
		Eval: inEval(c, negate),
	}, nil
}
