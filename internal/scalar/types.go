// Package scalar is the meaning of values: the types of the language, single values, and the
// reference function of every operator and built-in, one row at a time.
//
// It decides what an expression means. The column kernels of operators/vector must agree with it bit
// for bit, and the expression VM of dsl/expr calls it. It knows no columns, no syntax and no log.
// Everything here is pure: no clock, no randomness, no environment.
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
