package scalar

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// CastName is the call that converts a value to t: a function and, for decimals, the two constants that
// follow the value. Only scalar kinds have one.
func CastName(t Type) (name string, consts []Value, ok bool) {
	switch t.Kind {
	case KindInvalid, KindNull, KindList, KindMap, KindStruct:
		return "", nil, false
	case KindDecimal:
		return "cast_decimal", []Value{Int(int64(t.Precision)), Int(int64(t.Scale))}, true
	}
	return "cast_" + t.Kind.String(), nil, true
}

// Cast converts one value; it is what a constant of another type needs.
func Cast(v Value, from, to Type) (Value, Code) {
	if v.IsNull() || from.Same(to) {
		return v, CodeNone
	}
	name, consts, ok := CastName(to)
	if !ok {
		return Null, CodeBadCast
	}
	args := []Arg{{Type: from}}
	vals := []Value{v}
	for i := range consts {
		args = append(args, Arg{Type: TypeInt64, Const: &consts[i]})
		vals = append(vals, consts[i])
	}
	f, err := resolveCastTo(to.Kind, false)(name, args)
	if err != nil {
		return Null, CodeBadCast
	}
	return f.Call(vals)
}

// CheckInt says whether the int64 i (the bits of a uint64, if from is unsigned) is a value of kind to.
func CheckInt(i int64, from, to Kind) bool {
	if from == KindUint64 && i < 0 {
		return to == KindUint64
	}
	switch to {
	case KindInt8:
		return i == int64(int8(i))
	case KindInt16:
		return i == int64(int16(i))
	case KindInt32:
		return i == int64(int32(i))
	case KindUint8:
		return i == int64(uint8(i))
	case KindUint16:
		return i == int64(uint16(i))
	case KindUint32:
		return i == int64(uint32(i))
	case KindUint64:
		return i >= 0
	}
	return true
}

// FloatToInt truncates f toward zero into kind to.
func FloatToInt(f float64, to Kind) (int64, bool) {
	f = math.Trunc(f)
	if to == KindUint64 {
		switch {
		case !(f >= 0 && f < 1<<64):
			return 0, false
		case f >= 1<<63:
			return int64(uint64(int64(f-1<<63)) + 1<<63), true
		}
		return int64(f), true
	}
	if !(f >= -1<<63 && f < 1<<63) {
		return 0, false
	}
	i := int64(f)
	return i, CheckInt(i, KindInt64, to)
}

// DecimalToInt truncates toward zero into kind to.
func DecimalToInt(d Int128, scale int32, to Kind) (int64, bool) {
	q, _ := d.QuoRem(pow10[scale])
	if to == KindUint64 {
		u, ok := q.Uint64()
		return int64(u), ok
	}
	i, ok := q.Int64()
	return i, ok && CheckInt(i, KindInt64, to)
}

func castErr(name string, from Type, to Kind, suggestion string) error {
	return fail(name, 0, fmt.Sprintf("no cast from %s to %s", from, to), suggestion)
}

// resolveCastTo makes the cast to kind k. A decimal takes its precision and scale from two constants.
func resolveCastTo(k Kind, user bool) resolver {
	return func(name string, args []Arg) (*Func, error) {
		hi := 1
		if k == KindDecimal {
			hi = 3
		}
		if err := arity(name, args, 1, hi); err != nil {
			return nil, err
		}
		from := args[0].Type
		if args[0].Lambda != nil {
			return nil, wrongType(name, 0, args[0], "a value")
		}
		f := &Func{Args: []Type{from}, Result: Type{Kind: k}}
		for i := 1; i < len(args); i++ {
			f.Args = append(f.Args, args[i].Type)
		}
		if k == KindDecimal {
			t, err := castDecimalType(name, args)
			if err != nil {
				return nil, err
			}
			f.Result = t
		}
		eval, suggestion := caster(from, f.Result, user)
		if eval == nil {
			return nil, castErr(name, from, k, suggestion)
		}
		f.Eval = eval
		return f, nil
	}
}

func castDecimalType(name string, args []Arg) (Type, error) {
	if len(args) > 1 {
		p, ok1 := constInt(args[1])
		s, ok2 := int64(0), true
		if len(args) > 2 {
			s, ok2 = constInt(args[2])
		}
		if !ok1 || !ok2 || p < 1 || p > MaxPrecision || s < 0 || s > p {
			return Type{}, fail(name, 1, "precision and scale must be constants, 1 to 38 digits and a scale up to that", "`dec(x, 38, 6)`")
		}
		return DecimalType(int32(p), int32(s)), nil
	}
	a := args[0]
	switch t := a.Type; {
	case t.Kind == KindDecimal || t.Kind.Integer():
		d, _ := decimalOperand(a, t)
		return d.NonNull(), nil
	case t.Kind == KindNull:
		return DecimalType(1, 0), nil
	case t.Kind == KindString && a.Const != nil && a.Const.Kind == KindString:
		_, p, s, ok := ParseDecimal(a.Const.S)
		if !ok {
			return Type{}, fail(name, 0, fmt.Sprintf("%q is not a decimal of at most 38 digits", a.Const.S), "")
		}
		return DecimalType(p, s), nil
	case t.Kind.Float() && a.Const != nil && a.Const.Kind.Float():
		if d, ok := decimalOfFloatLiteral(a.Const.F); ok {
			return d, nil
		}
		return Type{}, fail(name, 0, "the number has no decimal of at most 38 digits", "")
	}
	return Type{}, fail(name, -1, fmt.Sprintf("needs precision and scale for %s", a.Type), "`dec(x, 38, 6)`")
}

// caster finds the conversion of one value, or a suggestion if there is none.
func caster(from, to Type, user bool) (evalFn, string) {
	fk, tk := from.Kind, to.Kind
	if fk == KindNull {
		return func([]Value) (Value, Code) { return Null, CodeNone }, ""
	}
	if from.Same(to) {
		return func(v []Value) (Value, Code) { return v[0], CodeNone }, ""
	}
	switch {
	case tk.Integer():
		return intCaster(from, tk)
	case tk.Float():
		return floatCaster(from, tk)
	case tk == KindDecimal:
		return decimalCaster(from, to)
	case tk == KindString:
		switch fk {
		case KindBytes:
			return func(v []Value) (Value, Code) {
				if !utf8.ValidString(v[0].S) {
					return Null, CodeBadCast
				}
				return String(v[0].S), CodeNone
			}, ""
		case KindFloat32, KindFloat64:
			return func(v []Value) (Value, Code) { return String(floatText(v[0].F, fk)), CodeNone }, ""
		case KindList, KindMap, KindStruct:
			return nil, "use `to_json(x)`"
		}
		return func(v []Value) (Value, Code) {
			b, c := AppendText(nil, v[0], from)
			return Value{Kind: KindString, S: string(b)}, c
		}, ""
	case tk == KindBool:
		switch {
		case fk == KindString:
			return func(v []Value) (Value, Code) {
				switch v[0].S {
				case "true":
					return Bool(true), CodeNone
				case "false":
					return Bool(false), CodeNone
				}
				return Null, CodeBadCast
			}, ""
		case fk.Integer():
			return func(v []Value) (Value, Code) {
				if v[0].I != 0 && v[0].I != 1 {
					return Null, CodeBadCast
				}
				return Bool(v[0].I == 1), CodeNone
			}, ""
		}
		return nil, "write a comparison"
	case tk == KindBytes && fk == KindString:
		return func(v []Value) (Value, Code) { return Bytes(v[0].S), CodeNone }, ""
	case user:
		return nil, ""
	case fk == KindString && tk == KindTime:
		return parseCaster(KindTime, ParseTime), ""
	case fk == KindString && tk == KindDate:
		return parseCaster(KindDate, ParseDate), ""
	case fk == KindString && tk == KindDuration:
		return parseCaster(KindDuration, ParseDuration), ""
	}
	return nil, ""
}

func parseCaster(k Kind, parse func(string) (int64, Code)) evalFn {
	return func(v []Value) (Value, Code) {
		i, c := parse(v[0].S)
		if c != CodeNone {
			return Null, c
		}
		return Value{Kind: k, I: i}, CodeNone
	}
}

func intResult(k Kind, i int64, ok bool) (Value, Code) {
	if !ok {
		return Null, CodeBadCast
	}
	return Value{Kind: k, I: i}, CodeNone
}

func intCaster(from Type, k Kind) (evalFn, string) {
	switch fk := from.Kind; {
	case fk.Integer():
		return func(v []Value) (Value, Code) { return intResult(k, v[0].I, CheckInt(v[0].I, fk, k)) }, ""
	case fk.Float():
		return func(v []Value) (Value, Code) {
			i, ok := FloatToInt(v[0].F, k)
			return intResult(k, i, ok)
		}, ""
	case fk == KindDecimal:
		return func(v []Value) (Value, Code) {
			i, ok := DecimalToInt(v[0].D, from.Scale, k)
			return intResult(k, i, ok)
		}, ""
	case fk == KindString:
		return func(v []Value) (Value, Code) {
			i, ok := ParseInt(v[0].S, k)
			return intResult(k, i, ok)
		}, ""
	case fk == KindBool:
		return nil, "write `b ? 1 : 0`"
	case fk == KindTime:
		return nil, "use `epoch(t, \"ms\")`"
	case fk == KindDuration:
		return nil, "divide it: `div(d, 1ms)`"
	}
	return nil, ""
}

// ParseInt reads a decimal integer, with an optional sign, of kind k; for unsigned kinds it gives the
// bits.
func ParseInt(s string, k Kind) (int64, bool) {
	if strings.Contains(s, "_") {
		return 0, false
	}
	if k == KindUint64 {
		u, err := strconv.ParseUint(strings.TrimPrefix(s, "+"), 10, 64)
		return int64(u), err == nil && !strings.HasPrefix(s, "++")
	}
	i, err := strconv.ParseInt(s, 10, 64)
	return i, err == nil && CheckInt(i, KindInt64, k)
}

// ParseFloat reads a decimal floating-point number, or NaN, Infinity, -Infinity. Numbers out of range
// are refused.
func ParseFloat(s string, k Kind) (float64, bool) {
	switch s {
	case "NaN":
		return math.NaN(), true
	case "Infinity", "+Infinity":
		return math.Inf(1), true
	case "-Infinity":
		return math.Inf(-1), true
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && c != '.' && c != '-' && c != '+' && c != 'e' && c != 'E' {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(s, floatBits(k))
	return f, err == nil
}

// floatText is the text of any float; those without a number are NaN, Infinity and -Infinity.
func floatText(f float64, k Kind) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return string(appendFloat(nil, f, floatBits(k)))
}

func floatCaster(from Type, k Kind) (evalFn, string) {
	narrow := func(f float64) (Value, Code) {
		if k == KindFloat32 {
			g := float64(float32(f))
			if math.IsInf(g, 0) && !math.IsInf(f, 0) {
				return Null, CodeBadCast
			}
			f = g
		}
		return Value{Kind: k, F: f}, CodeNone
	}
	switch fk := from.Kind; {
	case fk.Integer():
		// Straight to the target: by way of float64 a float32 would be rounded twice.
		return func(v []Value) (Value, Code) {
			switch {
			case k == KindFloat32 && v[0].Kind == KindUint64:
				return Float32(float32(uint64(v[0].I))), CodeNone
			case k == KindFloat32:
				return Float32(float32(v[0].I)), CodeNone
			}
			return Float(intToFloat(v[0])), CodeNone
		}, ""
	case fk.Float():
		return func(v []Value) (Value, Code) { return narrow(v[0].F) }, ""
	case fk == KindDecimal:
		return func(v []Value) (Value, Code) {
			if k == KindFloat32 {
				f, ok := ParseFloat(string(AppendDecimal(nil, v[0].D, from.Scale)), k)
				if !ok {
					return Null, CodeBadCast
				}
				return Value{Kind: k, F: f}, CodeNone
			}
			return Float(DecimalToFloat(v[0].D, from.Scale)), CodeNone
		}, ""
	case fk == KindString:
		return func(v []Value) (Value, Code) {
			f, ok := ParseFloat(v[0].S, k)
			if !ok {
				return Null, CodeBadCast
			}
			return Value{Kind: k, F: f}, CodeNone
		}, ""
	case fk == KindDuration:
		return nil, "divide it: `d / 1s`"
	case fk == KindTime:
		return nil, "use `epoch(t, \"ms\")`"
	}
	return nil, ""
}

func decimalCaster(from, to Type) (evalFn, string) {
	result := func(d Int128, c Code) (Value, Code) {
		if c != CodeNone {
			return Null, c
		}
		return Decimal(d), CodeNone
	}
	p, s := to.Precision, to.Scale
	switch fk := from.Kind; {
	case fk == KindDecimal:
		return func(v []Value) (Value, Code) { return result(DecimalRescale(v[0].D, from.Scale, s, p)) }, ""
	case fk == KindUint64:
		return func(v []Value) (Value, Code) { return result(DecimalRescale(Uint128Of(uint64(v[0].I)), 0, s, p)) }, ""
	case fk.Integer():
		return func(v []Value) (Value, Code) { return result(DecimalRescale(Int128Of(v[0].I), 0, s, p)) }, ""
	case fk == KindFloat32:
		return func(v []Value) (Value, Code) {
			if math.IsNaN(v[0].F) || math.IsInf(v[0].F, 0) {
				return Null, CodeBadCast
			}
			return result(ParseDecimalAs(strconv.FormatFloat(v[0].F, 'e', -1, 32), p, s))
		}, ""
	case fk == KindFloat64:
		return func(v []Value) (Value, Code) { return result(DecimalFromFloat(v[0].F, p, s)) }, ""
	case fk == KindString:
		return func(v []Value) (Value, Code) { return result(ParseDecimalAs(v[0].S, p, s)) }, ""
	}
	return nil, ""
}

// try makes the `try_` form: a failed cast is null.
func try(r resolver) resolver {
	return func(name string, args []Arg) (*Func, error) {
		f, err := r(name, args)
		if err != nil {
			return nil, err
		}
		eval := f.Eval
		f.Result.Nullable = true
		f.Eval = func(v []Value) (Value, Code) {
			r, c := eval(v)
			if c != CodeNone {
				return Null, CodeNone
			}
			return r, CodeNone
		}
		return f, nil
	}
}
