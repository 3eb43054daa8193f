// Package scalar is the meaning of values: the types of the language, single values, and the
// reference function of every operator and built-in, one row at a time.
//
// It decides what an expression means. The column kernels of operators/vector must agree with it bit
// for bit, and the expression VM of dsl/expr calls it. It knows no columns, no syntax and no log.
// Everything here is pure: no clock, no randomness, no environment; the time zone database is built in.
// Values and resolved functions may be used by any number of goroutines.
//
// Resolve finds a function by name and argument types. The operators are functions too: add sub mul
// div_op mod_op pow_op neg pos not, eq ne lt le gt ge, in not_in, contains startsWith endsWith matches,
// index slice range list_of member unwrap; Callable tells them from what users write. and, or, ?: and ??
// are not functions: they are lazy, and belong to whoever evaluates.
//
// Casts are functions that convert their first argument: cast_int64 cast_float32 cast_string .. for
// implicit widening, int float string dec .. (and try_ forms, which give null) as users write them.
// cast_decimal and dec take precision and scale as two constant arguments. CastName gives the call for
// a target type.
//
// What a user meets most:
//
//   - Integers are computed in 64 bits and checked; uint64 meets other integers only as constants that
//     are not negative. `/` of integers is a float. div, mod and % truncate toward zero.
//   - Decimals are exact; + and - take the larger scale, * adds them, / gives max(s1, s2, 6) and rounds
//     half-even. Number literals beside a decimal are read exactly. A decimal and a float do not mix.
//   - Comparisons are exact across int64, uint64 and floats; NaN equals nothing.
//   - Null in, null out, except where a function says otherwise (Func.NullSafe).
//   - Positions in strings count characters, from 0, and from the end if negative.
//   - Weekdays count from Monday, 1, to Sunday, 7. `round` goes half away from zero.
//
// pow, ln, log10, exp and geo_distance are as exact as Go's math package, whose last bit may differ
// between processor families.
package scalar

// A Kind is the outermost constructor of a Type.
type Kind uint8

// The kinds of the language. KindNull is the type of the literal nil alone.
const (
	KindInvalid Kind = iota
	KindNull
	KindBool
	KindInt8
	KindInt16
	KindInt32
	KindInt64
	KindUint8
	KindUint16
	KindUint32
	KindUint64
	KindFloat32
	KindFloat64
	KindDecimal
	KindString
	KindBytes
	KindTime     // int64 nanoseconds since 1970, UTC
	KindDuration // int64 nanoseconds
	KindDate     // int32 days since 1970
	KindList
	KindMap
	KindStruct
)

// A Type is a type of the language. Types are values: copy them, compare them with Equal.
type Type struct {
	Kind      Kind
	Nullable  bool
	Precision int32   // KindDecimal: 1 to 38
	Scale     int32   // KindDecimal: 0 to Precision
	Elem      *Type   // KindList: the element; KindMap: the value
	Key       *Type   // KindMap
	Fields    []Field // KindStruct, in order
}

// A Field is one member of a struct type, or one column of a schema.
type Field struct {
	Name string
	Type Type
}
