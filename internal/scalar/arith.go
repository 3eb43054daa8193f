package scalar

import (
	"fmt"
	"math"
	"math/bits"
)

// AddInt64 is a + b and whether it did not overflow.
func AddInt64(a, b int64) (int64, bool) {
	r := a + b
	return r, (a^r)&(b^r) >= 0
}

// SubInt64 is a - b and whether it did not overflow.
func SubInt64(a, b int64) (int64, bool) {
	r := a - b
	return r, (a^b)&(a^r) >= 0
}

// MulInt64 is a * b and whether it did not overflow.
func MulInt64(a, b int64) (int64, bool) {
	r := a * b
	if (a|b)>>31 == 0 { // both in [0, 2^31)
		return r, true
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	// Signed high word from the unsigned one.
	shi := int64(hi) - (a>>63)&b - (b>>63)&a
	return r, shi == int64(lo)>>63
}

// class is the arithmetic that a pair of operands is done in.
type class uint8

const (
	classNone class = iota
	classInt        // int64
	classUint       // uint64
	classFloat
	classDecimal
)

// numericPair finds the arithmetic of two operands and the types they are widened to. Integers of any
// width stay as they are: their values are the same int64 (or the same bits, for uint64).
func numericPair(name string, args []Arg) (class, Type, Type, error) {
	a, b := args[0], args[1]
	at, bt := a.Type, b.Type
	if at.Kind == KindNull {
		at = bt.Null()
	}
	if bt.Kind == KindNull {
		bt = at.Null()
	}
	for i, t := range []Type{at, bt} {
		if args[i].Lambda != nil || !t.Kind.Numeric() {
			return classNone, at, bt, wrongType(name, i, args[i], "a number")
		}
	}
	ak, bk := at.Kind, bt.Kind
	switch {
	case ak.Integer() && bk.Integer():
		if ak != KindUint64 && bk != KindUint64 {
			return classInt, at, bt, nil
		}
		if mixes(a, bk) || mixes(b, ak) {
			return classNone, at, bt, fail(name, -1, fmt.Sprintf("no arithmetic between %s and %s", at, bt),
				"convert one side with `int(..)` or `uint64(..)`")
		}
		return classUint, at, bt, nil
	case ak == KindDecimal || bk == KindDecimal:
		da, ok1 := decimalOperand(a, at)
		db, ok2 := decimalOperand(b, bt)
		if !ok1 || !ok2 {
			return classNone, at, bt, fail(name, -1, fmt.Sprintf("no arithmetic between %s and %s: a float is not exact", at, bt),
				"convert one side with `dec(.., p, s)` or `float(..)`")
		}
		return classDecimal, da, db, nil
	}
	return classFloat, TypeFloat64.OrNull(at.Nullable), TypeFloat64.OrNull(bt.Nullable), nil
}

// mixes says whether operand a, beside a uint64 or smaller, is a signed integer that may be negative.
func mixes(a Arg, other Kind) bool {
	if !a.Type.Kind.Signed() || other != KindUint64 {
		return false
	}
	c, ok := constInt(a)
	return !ok || c < 0
}

// decimalOperand is the type of an operand beside a decimal: number literals are taken exactly.
func decimalOperand(a Arg, t Type) (Type, bool) {
	switch {
	case t.Kind == KindDecimal:
		return t, true
	case t.Kind.Integer():
		if a.Const != nil && a.Const.Kind.Integer() {
			d := Int128Of(a.Const.I)
			if a.Const.Kind == KindUint64 {
				d = Uint128Of(uint64(a.Const.I))
			}
			return DecimalType(d.Digits(), 0), true
		}
		return t.asDecimal(), true
	case t.Kind.Float() && a.Const != nil && a.Const.Kind.Float():
		return decimalOfFloatLiteral(a.Const.F)
	}
	return Type{}, false
}

func capDecimal(name string, p, s int32) (Type, error) {
	if s > MaxPrecision {
		return Type{}, fail(name, -1, fmt.Sprintf("the result would have %d digits after the point; %d is the most", s, MaxPrecision),
			"round an operand first: `dec(x, 38, 6)`")
	}
	return DecimalType(min(max(p, s, 1), MaxPrecision), s), nil
}

func sumType(name string, a, b Type) (Type, error) {
	s := max(a.Scale, b.Scale)
	return capDecimal(name, max(a.Precision-a.Scale, b.Precision-b.Scale)+s+1, s)
}

// intEval lifts a checked integer operation.
func intEval(k Kind, op func(a, b int64) (int64, bool), c Code) evalFn {
	return func(v []Value) (Value, Code) {
		r, ok := op(v[0].I, v[1].I)
		if !ok {
			return Null, c
		}
		return Value{Kind: k, I: r}, CodeNone
	}
}

func addUint(a, b int64) (int64, bool) {
	r, c := bits.Add64(uint64(a), uint64(b), 0)
	return int64(r), c == 0
}

func subUint(a, b int64) (int64, bool) {
	r, c := bits.Sub64(uint64(a), uint64(b), 0)
	return int64(r), c == 0
}

func mulUint(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0
}

func resolveAdd(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	a, b := args[0].Type, args[1].Type
	switch {
	case a.Kind == KindString && b.Kind == KindString:
		return &Func{Args: []Type{a, b}, Result: TypeString, Eval: concatStrings}, nil
	case a.Kind == KindTime && b.Kind == KindDuration, a.Kind == KindDuration && b.Kind == KindTime:
		return &Func{Args: []Type{a, b}, Result: TypeTime, Eval: intEval(KindTime, AddInt64, CodeTimeRange)}, nil
	case a.Kind == KindDuration && b.Kind == KindDuration:
		return &Func{Args: []Type{a, b}, Result: TypeDuration, Eval: intEval(KindDuration, AddInt64, CodeOverflow)}, nil
	case a.Kind == KindString || b.Kind == KindString:
		i := btoi(a.Kind == KindString)
		if k := args[i].Type.Kind; k != KindNull && k != KindList && k != KindMap && k != KindStruct && args[i].Lambda == nil {
			return nil, fail(name, i, fmt.Sprintf("a string and %s do not add", args[i].Type), "convert it with `string(..)`")
		}
	case a.Kind == KindDate && b.Kind == KindDuration, a.Kind == KindDuration && b.Kind == KindDate:
		return nil, fail(name, -1, "a date and a duration do not add", "add to the time and take `date_of(..)`")
	}
	cl, x, y, err := numericPair(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{x, y}}
	switch cl {
	case classInt:
		f.Result, f.Eval = TypeInt64, intEval(KindInt64, AddInt64, CodeOverflow)
	case classUint:
		f.Result, f.Eval = TypeUint64, intEval(KindUint64, addUint, CodeOverflow)
	case classFloat:
		f.Result, f.Eval = TypeFloat64, func(v []Value) (Value, Code) { return Float(v[0].F + v[1].F), CodeNone }
	case classDecimal:
		return decimalSum(name, f, x, y, DecimalAdd)
	}
	return f, nil
}

func decimalSum(name string, f *Func, x, y Type, op func(a, b Int128, p int32) (Int128, Code)) (*Func, error) {
	r, err := sumType(name, x, y)
	if err != nil {
		return nil, err
	}
	f.Result = r
	f.Eval = func(v []Value) (Value, Code) {
		a, ok1 := v[0].D.Mul(pow10[r.Scale-x.Scale])
		b, ok2 := v[1].D.Mul(pow10[r.Scale-y.Scale])
		if !ok1 || !ok2 {
			return Null, CodeDecimalOverflow
		}
		d, c := op(a, b, r.Precision)
		if c != CodeNone {
			return Null, c
		}
		return Decimal(d), CodeNone
	}
	return f, nil
}

func resolveSub(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	a, b := args[0].Type, args[1].Type
	switch {
	case a.Kind == KindTime && b.Kind == KindDuration:
		return &Func{Args: []Type{a, b}, Result: TypeTime, Eval: intEval(KindTime, SubInt64, CodeTimeRange)}, nil
	case a.Kind == KindTime && b.Kind == KindTime, a.Kind == KindDuration && b.Kind == KindDuration:
		return &Func{Args: []Type{a, b}, Result: TypeDuration, Eval: intEval(KindDuration, SubInt64, CodeOverflow)}, nil
	}
	cl, x, y, err := numericPair(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{x, y}}
	switch cl {
	case classInt:
		f.Result, f.Eval = TypeInt64, intEval(KindInt64, SubInt64, CodeOverflow)
	case classUint:
		f.Result, f.Eval = TypeUint64, intEval(KindUint64, subUint, CodeOverflow)
	case classFloat:
		f.Result, f.Eval = TypeFloat64, func(v []Value) (Value, Code) { return Float(v[0].F - v[1].F), CodeNone }
	case classDecimal:
		return decimalSum(name, f, x, y, DecimalSub)
	}
	return f, nil
}

// durationScalar recognizes D * n and n * D.
func durationScalar(args []Arg) bool {
	a, b := args[0].Type.Kind, args[1].Type.Kind
	return a == KindDuration && b.Integer() && b != KindUint64 || b == KindDuration && a.Integer() && a != KindUint64
}

func resolveMul(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	if durationScalar(args) {
		return &Func{
			Args: []Type{args[0].Type, args[1].Type}, Result: TypeDuration,
			Eval: intEval(KindDuration, MulInt64, CodeOverflow),
		}, nil
	}
	cl, x, y, err := numericPair(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{x, y}}
	switch cl {
	case classInt:
		f.Result, f.Eval = TypeInt64, intEval(KindInt64, MulInt64, CodeOverflow)
	case classUint:
		f.Result, f.Eval = TypeUint64, intEval(KindUint64, mulUint, CodeOverflow)
	case classFloat:
		f.Result = TypeFloat64
		f.Eval = func(v []Value) (Value, Code) { return Float(float64(v[0].F * v[1].F)), CodeNone }
	case classDecimal:
		if f.Result, err = capDecimal(name, x.Precision+y.Precision, x.Scale+y.Scale); err != nil {
			return nil, err
		}
		p := f.Result.Precision
		f.Eval = func(v []Value) (Value, Code) {
			d, c := DecimalMul(v[0].D, v[1].D, p)
			if c != CodeNone {
				return Null, c
			}
			return Decimal(d), CodeNone
		}
	}
	return f, nil
}

// resolveDivOp is `/`: a float for integers (an integer divisor 0 is an error), exact for decimals.
func resolveDivOp(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	a, b := args[0].Type, args[1].Type
	switch {
	case a.Kind == KindDuration && b.Kind == KindDuration:
		return &Func{Args: []Type{a, b}, Result: TypeFloat64, Eval: func(v []Value) (Value, Code) {
			if v[1].I == 0 {
				return Null, CodeDivisionByZero
			}
			return Float(float64(v[0].I) / float64(v[1].I)), CodeNone
		}}, nil
	case a.Kind == KindDuration && b.Kind.Integer() && b.Kind != KindUint64:
		return &Func{Args: []Type{a, b}, Result: TypeDuration, Eval: divEval(KindDuration, false)}, nil
	}
	cl, x, y, err := numericPair(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{x, y}, Result: TypeFloat64}
	switch cl {
	case classInt:
		f.Eval = func(v []Value) (Value, Code) {
			if v[1].I == 0 {
				return Null, CodeDivisionByZero
			}
			return Float(float64(v[0].I) / float64(v[1].I)), CodeNone
		}
	case classUint:
		f.Eval = func(v []Value) (Value, Code) {
			if v[1].I == 0 {
				return Null, CodeDivisionByZero
			}
			return Float(float64(uint64(v[0].I)) / float64(uint64(v[1].I))), CodeNone
		}
	case classFloat:
		if b.Kind.Integer() { // an integer zero stays an error beside a float
			f.Args[1] = b
			f.Eval = func(v []Value) (Value, Code) {
				if v[1].I == 0 {
					return Null, CodeDivisionByZero
				}
				return Float(v[0].F / intToFloat(v[1])), CodeNone
			}
			break
		}
		f.Eval = func(v []Value) (Value, Code) { return Float(v[0].F / v[1].F), CodeNone }
	case classDecimal:
		s := max(x.Scale, y.Scale, 6)
		r, err := capDecimal(name, x.Precision-x.Scale+y.Scale+s, s)
		if err != nil {
			return nil, err
		}
		f.Result = r
		f.Eval = func(v []Value) (Value, Code) {
			d, c := DecimalDiv(v[0].D, v[1].D, s-x.Scale+y.Scale, r.Precision)
			if c != CodeNone {
				return Null, c
			}
			return Decimal(d), CodeNone
		}
	}
	return f, nil
}

// divEval is truncated integer division, or its remainder.
func divEval(k Kind, rem bool) evalFn {
	return func(v []Value) (Value, Code) {
		a, b := v[0].I, v[1].I
		switch {
		case b == 0:
			return Null, CodeDivisionByZero
		case b == -1 && rem:
			return Value{Kind: k}, CodeNone
		case b == -1 && a == math.MinInt64:
			return Null, CodeOverflow
		case rem:
			return Value{Kind: k, I: a % b}, CodeNone
		}
		return Value{Kind: k, I: a / b}, CodeNone
	}
}

func divUintEval(rem bool) evalFn {
	return func(v []Value) (Value, Code) {
		a, b := uint64(v[0].I), uint64(v[1].I)
		if b == 0 {
			return Null, CodeDivisionByZero
		}
		if rem {
			return Uint(a % b), CodeNone
		}
		return Uint(a / b), CodeNone
	}
}

// resolveIntDiv makes `div`, `mod` and `%`: truncated toward zero, the remainder has the sign of the
// dividend.
func resolveIntDiv(rem, operator bool) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 2, 2); err != nil {
			return nil, err
		}
		a, b := args[0].Type, args[1].Type
		if a.Kind == KindDuration && b.Kind == KindDuration {
			k := KindInt64
			if rem {
				k = KindDuration
			}
			return &Func{Args: []Type{a, b}, Result: Type{Kind: k}, Eval: divEval(k, rem)}, nil
		}
		if a.Kind == KindDuration && b.Kind.Integer() && b.Kind != KindUint64 && !rem {
			return &Func{Args: []Type{a, b}, Result: TypeDuration, Eval: divEval(KindDuration, false)}, nil
		}
		cl, x, y, err := numericPair(name, args)
		if err != nil {
			return nil, err
		}
		f := &Func{Args: []Type{x, y}}
		switch {
		case cl == classInt:
			f.Result, f.Eval = TypeInt64, divEval(KindInt64, rem)
		case cl == classUint:
			f.Result, f.Eval = TypeUint64, divUintEval(rem)
		case cl == classFloat && operator:
			f.Result = TypeFloat64
			f.Eval = func(v []Value) (Value, Code) { return Float(math.Mod(v[0].F, v[1].F)), CodeNone }
			if b.Kind.Integer() {
				f.Args[1] = b
				f.Eval = func(v []Value) (Value, Code) {
					if v[1].I == 0 {
						return Null, CodeDivisionByZero
					}
					return Float(math.Mod(v[0].F, intToFloat(v[1]))), CodeNone
				}
			}
		case cl == classDecimal && rem:
			s := max(x.Scale, y.Scale)
			r, err := capDecimal(name, max(x.Precision-x.Scale, y.Precision-y.Scale)+s, s)
			if err != nil {
				return nil, err
			}
			f.Result = r
			f.Eval = func(v []Value) (Value, Code) {
				d, c := decimalMod(v[0].D, x.Scale, v[1].D, y.Scale, r.Precision)
				if c != CodeNone {
					return Null, c
				}
				return Decimal(d), CodeNone
			}
		default:
			return nil, fail(name, -1, fmt.Sprintf("is for integers, not %s and %s", a, b), "use `/`, then `floor(..)`")
		}
		return f, nil
	}
}

func resolveNeg(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	f := &Func{Args: []Type{t}}
	switch {
	case args[0].Lambda != nil:
	case t.Kind == KindUint64:
		return nil, fail(name, 0, "a uint64 has no negative", "convert it with `int(..)`")
	case t.Kind.Integer():
		f.Result, f.Eval = TypeInt64, negEval(KindInt64)
		return f, nil
	case t.Kind == KindDuration:
		f.Result, f.Eval = TypeDuration, negEval(KindDuration)
		return f, nil
	case t.Kind.Float():
		f.Args[0] = TypeFloat64.OrNull(t.Nullable)
		f.Result, f.Eval = TypeFloat64, func(v []Value) (Value, Code) { return Float(-v[0].F), CodeNone }
		return f, nil
	case t.Kind == KindDecimal:
		f.Result, f.Eval = t.NonNull(), func(v []Value) (Value, Code) { return Decimal(v[0].D.Neg()), CodeNone }
		return f, nil
	}
	return nil, wrongType(name, 0, args[0], "a number or a duration")
}

func negEval(k Kind) evalFn {
	return func(v []Value) (Value, Code) {
		if v[0].I == math.MinInt64 {
			return Null, CodeOverflow
		}
		return Value{Kind: k, I: -v[0].I}, CodeNone
	}
}

func resolvePos(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil || !t.Kind.Numeric() && t.Kind != KindDuration {
		return nil, wrongType(name, 0, args[0], "a number or a duration")
	}
	return &Func{Args: []Type{t}, Result: t.NonNull(), Eval: func(v []Value) (Value, Code) { return v[0], CodeNone }}, nil
}

func wrapping(op func(a, b int64) int64) resolver {
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, 2, 2); err != nil {
			return nil, err
		}
		cl, x, y, err := numericPair(name, args)
		if err != nil {
			return nil, err
		}
		k := KindInt64
		switch cl {
		case classInt:
		case classUint:
			k = KindUint64
		default:
			return nil, fail(name, -1, fmt.Sprintf("is for integers, not %s and %s", args[0].Type, args[1].Type), "")
		}
		return &Func{Args: []Type{x, y}, Result: Type{Kind: k}, Eval: func(v []Value) (Value, Code) {
			return Value{Kind: k, I: op(v[0].I, v[1].I)}, CodeNone
		}}, nil
	}
}

// intToFloat is the nearest float64 of an integer value of any kind.
func intToFloat(v Value) float64 {
	if v.Kind == KindUint64 {
		return float64(uint64(v.I))
	}
	return float64(v.I)
}
