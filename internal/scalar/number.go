package scalar

import (
	"fmt"
	"math"
)

// rounding makes abs, ceil, floor and round (half away from zero) for one number.
func resolveAbs(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	f := &Func{Args: []Type{t}}
	switch k := t.Kind; {
	case args[0].Lambda != nil:
	case k == KindUint64:
		f.Result, f.Eval = TypeUint64, func(v []Value) (Value, Code) { return v[0], CodeNone }
		return f, nil
	case k.Integer() || k == KindDuration:
		rk := KindInt64
		if k == KindDuration {
			rk = k
		}
		f.Result = Type{Kind: rk}
		f.Eval = func(v []Value) (Value, Code) {
			if v[0].I == math.MinInt64 {
				return Null, CodeOverflow
			}
			return Value{Kind: rk, I: abs64(v[0].I)}, CodeNone
		}
		return f, nil
	case k.Float():
		f.Args[0] = TypeFloat64.OrNull(t.Nullable)
		f.Result, f.Eval = TypeFloat64, func(v []Value) (Value, Code) { return Float(math.Abs(v[0].F)), CodeNone }
		return f, nil
	case k == KindDecimal:
		f.Result, f.Eval = t.NonNull(), func(v []Value) (Value, Code) { return Decimal(v[0].D.abs()), CodeNone }
		return f, nil
	}
	return nil, wrongType(name, 0, args[0], "a number or a duration")
}

type roundMode uint8

const (
	roundFloor roundMode = iota
	roundCeil
	roundHalfAway
)

// roundDecimal drops digits, to an unscaled integer of the coarser scale.
func roundDecimal(d Int128, drop int32, m roundMode) Int128 {
	if drop <= 0 {
		return d
	}
	unit := pow10[drop]
	q, r := d.QuoRem(unit)
	switch {
	case r.IsZero():
	case m == roundFloor && d.Hi < 0:
		q, _ = q.Sub(Int128{0, 1})
	case m == roundCeil && d.Hi >= 0:
		q, _ = q.Add(Int128{0, 1})
	case m == roundHalfAway:
		q = adjust(q, r, unit, d.Hi < 0, true)
	}
	return q
}

func resolveRound(m roundMode, float func(float64) float64) resolver {
	return func(name string, args []Arg) (*Func, error) {
		hi := 1
		if m == roundHalfAway {
			hi = 2
		}
		if err := arity(name, args, 1, hi); err != nil {
			return nil, err
		}
		digits := int64(0)
		if len(args) == 2 {
			var isConst bool
			if digits, isConst = constInt(args[1]); !isConst || digits < 0 || digits > 22 {
				return nil, fail(name, 1, "the number of digits must be a constant from 0 to 22", "")
			}
		}
		t := args[0].Type
		f := &Func{Args: []Type{t}}
		if len(args) == 2 {
			f.Args = append(f.Args, args[1].Type)
		}
		switch k := t.Kind; {
		case args[0].Lambda != nil:
		case k.Integer():
			f.Result = t.NonNull()
			f.Eval = func(v []Value) (Value, Code) { return v[0], CodeNone }
			return f, nil
		case k.Float():
			f.Args[0] = TypeFloat64.OrNull(t.Nullable)
			f.Result = TypeFloat64
			scale := math.Pow10(int(digits))
			f.Eval = func(v []Value) (Value, Code) {
				if digits == 0 {
					return Float(float(v[0].F)), CodeNone
				}
				x := float64(v[0].F * scale)
				if math.IsInf(x, 0) || math.IsNaN(x) || math.Abs(x) >= 1<<53 {
					return Float(v[0].F), CodeNone // it has no digits to drop
				}
				return Float(float(x) / scale), CodeNone
			}
			return f, nil
		case k == KindDecimal:
			drop := t.Scale - int32(digits)
			r := t.NonNull()
			if drop > 0 {
				// Rounding may carry into one more digit.
				r = DecimalType(min(max(t.Precision-drop, 0)+1+min(int32(digits), 0), MaxPrecision), int32(digits))
				r.Precision = max(r.Precision, r.Scale, 1)
			}
			f.Result = r
			f.Eval = func(v []Value) (Value, Code) { return Decimal(roundDecimal(v[0].D, drop, m)), CodeNone }
			return f, nil
		}
		return nil, wrongType(name, 0, args[0], "a number")
	}
}

// resolveExtreme makes min and max: of two or more arguments, or of a list.
func resolveExtreme(sign int) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if len(args) == 1 && args[0].Lambda == nil && args[0].Type.Kind == KindList {
			e := *args[0].Type.Elem
			if !sortable(e.Kind) {
				return nil, wrongType(name, 0, args[0], "a list of values with an order")
			}
			return &Func{Args: []Type{args[0].Type}, Result: e.Null(), Eval: func(v []Value) (Value, Code) {
				best := Null
				for _, x := range v[0].L {
					if !x.IsNull() && (best.IsNull() || Compare(x, best) == sign) {
						best = x
					}
				}
				return best, CodeNone
			}}, nil
		}
		if err := arity(name, args, 2, -1); err != nil {
			return nil, err
		}
		t, err := commonOf(name, args)
		if err != nil {
			return nil, err
		}
		if !sortable(t.Kind) {
			return nil, wrongType(name, 0, args[0], "a number, a string or a time")
		}
		f := &Func{Result: t.NonNull()}
		for _, a := range args {
			f.Args = append(f.Args, t.NonNull().OrNull(a.Type.Nullable))
		}
		f.Eval = func(v []Value) (Value, Code) {
			best := v[0]
			for _, x := range v[1:] {
				if Compare(x, best) == sign {
					best = x
				}
			}
			return best, CodeNone
		}
		return f, nil
	}
}

func sortable(k Kind) bool {
	return k.Numeric() || k == KindString || k == KindBytes || k == KindTime || k == KindDuration || k == KindDate || k == KindBool
}

// commonOf is the type that all arguments widen to; number literals beside decimals are taken exactly.
func commonOf(name string, args []Arg) (Type, error) {
	decimals := false
	for _, a := range args {
		decimals = decimals || a.Lambda == nil && a.Type.Kind == KindDecimal
	}
	t := TypeNull
	for i, a := range args {
		if a.Lambda != nil {
			return Type{}, wrongType(name, i, a, "a value")
		}
		at := a.Type
		if decimals && at.Kind.Numeric() {
			if d, ok := decimalOperand(a, at); ok {
				at = d
			}
		}
		c, ok := Common(t, at)
		if !ok {
			return Type{}, fail(name, i, fmt.Sprintf("%s and %s have no common type", t.NonNull(), at), "convert one of them")
		}
		if i == 0 {
			c = at // Common with the literal null would make it nullable
		}
		t = c
	}
	return t, nil
}

func resolveSign(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	f := &Func{Args: []Type{t}, Result: TypeInt64}
	switch k := t.Kind; {
	case args[0].Lambda != nil:
	case k.Unsigned():
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(btoi(v[0].I != 0))), CodeNone }
		return f, nil
	case k.Integer() || k == KindDuration:
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(btoi(v[0].I > 0) - btoi(v[0].I < 0))), CodeNone }
		return f, nil
	case k.Float():
		f.Eval = func(v []Value) (Value, Code) {
			if v[0].F != v[0].F {
				return Null, CodeNotFinite
			}
			return Int(int64(btoi(v[0].F > 0) - btoi(v[0].F < 0))), CodeNone
		}
		return f, nil
	case k == KindDecimal:
		f.Eval = func(v []Value) (Value, Code) { return Int(int64(v[0].D.Sign())), CodeNone }
		return f, nil
	}
	return nil, wrongType(name, 0, args[0], "a number or a duration")
}

func floatFunc(op func(float64) float64) resolver {
	return sig("f", TypeFloat64, func(v []Value) (Value, Code) { return Float(op(v[0].F)), CodeNone })
}

// earthRadius is the mean radius of the earth in metres.
const earthRadius = 6371008.8

// geoDistance is the great-circle distance by the haversine formula.
func geoDistance(v []Value) (Value, Code) {
	const rad = math.Pi / 180
	lat1, lon1, lat2, lon2 := float64(v[0].F*rad), float64(v[1].F*rad), float64(v[2].F*rad), float64(v[3].F*rad)
	s1, s2 := math.Sin((lat2-lat1)/2), math.Sin((lon2-lon1)/2)
	cosines := float64(math.Cos(lat1) * math.Cos(lat2))
	h := float64(s1*s1) + float64(float64(s2*s2)*cosines)
	return Float(float64(2*earthRadius) * math.Asin(math.Sqrt(min(h, 1)))), CodeNone
}

// bitOp makes a bit operation on two integers of one signedness.
func bitOp(op func(a, b int64) int64) resolver { return wrapping(op) }

func resolveBitNot(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	if args[0].Lambda != nil || !args[0].Type.Kind.Integer() {
		return nil, wrongType(name, 0, args[0], "an integer")
	}
	k := KindInt64
	if args[0].Type.Kind == KindUint64 {
		k = KindUint64
	}
	return &Func{
		Args: []Type{args[0].Type}, Result: Type{Kind: k},
		Eval: func(v []Value) (Value, Code) { return Value{Kind: k, I: ^v[0].I}, CodeNone },
	}, nil
}

// shift makes bitshl and bitshr: bits that leave are gone; a negative count is an error. A right shift
// of a signed number keeps its sign.
func shift(left bool) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 2, 2); err != nil {
			return nil, err
		}
		for i := range args {
			if args[i].Lambda != nil || !args[i].Type.Kind.Integer() {
				return nil, wrongType(name, i, args[i], "an integer")
			}
		}
		k := KindInt64
		if args[0].Type.Kind == KindUint64 {
			k = KindUint64
		}
		countUnsigned := args[1].Type.Kind == KindUint64
		return &Func{Args: []Type{args[0].Type, args[1].Type}, Result: Type{Kind: k}, Eval: func(v []Value) (Value, Code) {
			n := v[1].I
			if n < 0 {
				if !countUnsigned {
					return Null, CodeOverflow
				}
				n = 64
			}
			r := Value{Kind: k}
			switch {
			case left:
				r.I = v[0].I << uint64(n)
			case k == KindUint64:
				r.I = int64(uint64(v[0].I) >> uint64(n))
			default:
				r.I = v[0].I >> uint64(n)
			}
			return r, CodeNone
		}}, nil
	}
}
