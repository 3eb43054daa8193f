package scalar

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A Value is one value. Its Kind is that of its type, or KindNull; the zero Value is null too. The
// scale of a decimal, the fields of a struct and the like are in the Type that goes with it.
//
// Values are immutable: copying one shares its slices.
type Value struct {
	Kind Kind
	I    int64                            // integers (unsigned: the bits of a uint64), bool 0 or 1, time, duration, date
	F    float64                          // floats; a float32 is exact in it
	S    string                           // string, bytes
	D    Int128                           // decimal, unscaled
	L    []Value                          // list elements, struct fields, map values in the order of Keys
	Keys []Value                          // map keys, ascending by Compare, distinct
	Fn   func(args []Value) (Value, Code) `json:"-"` // closures only: called with (element, index, accumulator)
}

// Null is the null value.
var Null = Value{Kind: KindNull}

// Bool makes a bool.
func Bool(b bool) Value {
	if b {
		return Value{Kind: KindBool, I: 1}
	}
	return Value{Kind: KindBool}
}

// Int makes an int64.
func Int(i int64) Value { return Value{Kind: KindInt64, I: i} }

// IntOf makes an integer of kind k; for unsigned kinds i holds the bits.
func IntOf(k Kind, i int64) Value { return Value{Kind: k, I: i} }

// Uint makes a uint64.
func Uint(u uint64) Value { return Value{Kind: KindUint64, I: int64(u)} }

// Float makes a float64.
func Float(f float64) Value { return Value{Kind: KindFloat64, F: f} }

// Float32 makes a float32.
func Float32(f float32) Value { return Value{Kind: KindFloat32, F: float64(f)} }

// Decimal makes a decimal from its unscaled digits.
func Decimal(d Int128) Value { return Value{Kind: KindDecimal, D: d} }

// String makes a string.
func String(s string) Value { return Value{Kind: KindString, S: s} }

// Bytes makes bytes.
func Bytes(s string) Value { return Value{Kind: KindBytes, S: s} }

// Time makes a time from nanoseconds since 1970, UTC.
func Time(ns int64) Value { return Value{Kind: KindTime, I: ns} }

// Duration makes a duration from nanoseconds.
func Duration(ns int64) Value { return Value{Kind: KindDuration, I: ns} }

// Date makes a date from days since 1970.
func Date(days int64) Value { return Value{Kind: KindDate, I: days} }

// List makes a list; it keeps elems.
func List(elems ...Value) Value { return Value{Kind: KindList, L: elems} }

// Struct makes a struct from its fields in order; it keeps fields.
func Struct(fields ...Value) Value { return Value{Kind: KindStruct, L: fields} }

// Map makes a map from parallel keys and values: it sorts by key, and the last of equal keys wins.
func Map(keys, values []Value) Value {
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return Compare(keys[a], keys[b]) })
	m := Value{Kind: KindMap, Keys: make([]Value, 0, len(keys)), L: make([]Value, 0, len(keys))}
	for _, i := range order {
		if n := len(m.Keys); n > 0 && Compare(m.Keys[n-1], keys[i]) == 0 {
			m.L[n-1] = values[i]
			continue
		}
		m.Keys = append(m.Keys, keys[i])
		m.L = append(m.L, values[i])
	}
	return m
}

// IsNull says whether v is null.
func (v Value) IsNull() bool { return v.Kind <= KindNull }

// Bool is the value of a non-null bool.
func (v Value) Bool() bool { return v.I != 0 }

// Uint is the value of a non-null unsigned integer.
func (v Value) Uint() uint64 { return uint64(v.I) }

// Lookup finds a key in a map; a missing one is null.
func (v Value) Lookup(key Value) (Value, bool) {
	i, ok := slices.BinarySearchFunc(v.Keys, key, Compare)
	if !ok {
		return Null, false
	}
	return v.L[i], true
}

// Compare is a total order over the values of one type, for keys and sorting: null first; false before
// true; floats by value with -0 before 0 and NaN last (all NaNs equal); strings and bytes by their
// bytes; lists element by element, the shorter first; structs field by field; maps as their sorted
// (key, value) lists. Values of different kinds are ordered by kind. Unlike the operator `==`, it finds
// two nulls equal.
func Compare(a, b Value) int {
	if a.IsNull() || b.IsNull() {
		return cmp.Compare(btoi(!a.IsNull()), btoi(!b.IsNull()))
	}
	if a.Kind != b.Kind {
		return cmp.Compare(a.Kind, b.Kind)
	}
	switch k := a.Kind; {
	case k.Unsigned():
		return cmp.Compare(uint64(a.I), uint64(b.I))
	case k.Float():
		return CompareFloat(a.F, b.F)
	case k == KindDecimal:
		return a.D.Cmp(b.D)
	case k == KindString || k == KindBytes:
		return strings.Compare(a.S, b.S)
	case k == KindList || k == KindStruct:
		return slices.CompareFunc(a.L, b.L, Compare)
	case k == KindMap:
		for i := range min(len(a.Keys), len(b.Keys)) {
			if c := Compare(a.Keys[i], b.Keys[i]); c != 0 {
				return c
			}
			if c := Compare(a.L[i], b.L[i]); c != 0 {
				return c
			}
		}
		return cmp.Compare(len(a.Keys), len(b.Keys))
	}
	return cmp.Compare(a.I, b.I)
}

// CompareFloat is the order of floats in Compare.
func CompareFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == b:
		if a == 0 {
			return cmp.Compare(btoi(!math.Signbit(a)), btoi(!math.Signbit(b)))
		}
		return 0
	}
	return cmp.Compare(btoi(a != a), btoi(b != b))
}

// Identical says whether a and b are the same value bit for bit, which is what tests want: NaN is
// identical to NaN and -0 is not 0.
func Identical(a, b Value) bool { return Compare(a, b) == 0 }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
