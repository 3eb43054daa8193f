package operators

import (
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/decimal128"

	"github.com/headrace/headrace/internal/scalar"
)

// timestampNs is the Arrow type of a time.
var timestampNs = &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}

// ArrowType is the Arrow type of the columns of type t. Nullability is a matter of the fields of
// nested types; a column's own is not part of its Arrow type.
//
// It panics on KindInvalid: no checked plan has such a column.
func ArrowType(t scalar.Type) arrow.DataType {
	switch t.Kind {
	case scalar.KindNull:
		return arrow.Null
	case scalar.KindBool:
		return arrow.FixedWidthTypes.Boolean
	case scalar.KindInt8:
		return arrow.PrimitiveTypes.Int8
	case scalar.KindInt16:
		return arrow.PrimitiveTypes.Int16
	case scalar.KindInt32:
		return arrow.PrimitiveTypes.Int32
	case scalar.KindInt64:
		return arrow.PrimitiveTypes.Int64
	case scalar.KindUint8:
		return arrow.PrimitiveTypes.Uint8
	case scalar.KindUint16:
		return arrow.PrimitiveTypes.Uint16
	case scalar.KindUint32:
		return arrow.PrimitiveTypes.Uint32
	case scalar.KindUint64:
		return arrow.PrimitiveTypes.Uint64
	case scalar.KindFloat32:
		return arrow.PrimitiveTypes.Float32
	case scalar.KindFloat64:
		return arrow.PrimitiveTypes.Float64
	case scalar.KindDecimal:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case scalar.KindString:
		return arrow.BinaryTypes.String
	case scalar.KindBytes:
		return arrow.BinaryTypes.Binary
	case scalar.KindTime:
		return timestampNs
	case scalar.KindDuration:
		return arrow.FixedWidthTypes.Duration_ns
	case scalar.KindDate:
		return arrow.FixedWidthTypes.Date32
	case scalar.KindList:
		return arrow.ListOfField(arrow.Field{Name: "item", Type: ArrowType(*t.Elem), Nullable: t.Elem.Nullable})
	case scalar.KindMap:
		m := arrow.MapOf(ArrowType(*t.Key), ArrowType(*t.Elem))
		m.SetItemNullable(t.Elem.Nullable)
		return m
	case scalar.KindStruct:
		fields := make([]arrow.Field, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = arrow.Field{Name: f.Name, Type: ArrowType(f.Type), Nullable: f.Type.Nullable}
		}
		return arrow.StructOf(fields...)
	}
	panic(fmt.Sprintf("operators: no arrow type for %s", t))
}

// ValueAt reads one cell of a column of type t. Strings and bytes share the memory of arr: they are
// valid until it is released.
//
// Dictionary arrays are read through.
func ValueAt(arr arrow.Array, t scalar.Type, row int) scalar.Value {
	if arr.IsNull(row) {
		return scalar.Null
	}
	switch a := arr.(type) {
	case *array.Boolean:
		return scalar.Bool(a.Value(row))
	case *array.Int8:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Int16:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Int32:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Int64:
		return scalar.IntOf(t.Kind, a.Value(row))
	case *array.Uint8:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Uint16:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Uint32:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Uint64:
		return scalar.IntOf(t.Kind, int64(a.Value(row)))
	case *array.Float32:
		return scalar.Float32(a.Value(row))
	case *array.Float64:
		return scalar.Float(a.Value(row))
	case *array.Decimal128:
		return scalar.Decimal(Int128(a.Value(row)))
	case *array.String:
		return scalar.String(a.Value(row))
	case *array.Binary:
		return scalar.Bytes(a.ValueString(row))
	case *array.Timestamp:
		return scalar.Time(int64(a.Value(row)))
	case *array.Duration:
		return scalar.Duration(int64(a.Value(row)))
	case *array.Date32:
		return scalar.Date(int64(a.Value(row)))
	case *array.Dictionary:
		return ValueAt(a.Dictionary(), t, a.GetValueIndex(row))
	case *array.Map:
		from, to := a.ValueOffsets(row)
		keys, values := make([]scalar.Value, 0, to-from), make([]scalar.Value, 0, to-from)
		for i := from; i < to; i++ {
			keys = append(keys, ValueAt(a.Keys(), *t.Key, int(i)))
			values = append(values, ValueAt(a.Items(), *t.Elem, int(i)))
		}
		return scalar.Map(keys, values)
	case *array.List:
		from, to := a.ValueOffsets(row)
		elems := make([]scalar.Value, 0, to-from)
		for i := from; i < to; i++ {
			elems = append(elems, ValueAt(a.ListValues(), *t.Elem, int(i)))
		}
		return scalar.List(elems...)
	case *array.Struct:
		fields := make([]scalar.Value, a.NumField())
		for i := range fields {
			fields[i] = ValueAt(a.Field(i), t.Fields[i].Type, row)
		}
		return scalar.Struct(fields...)
	}
	panic(fmt.Sprintf("operators: cannot read %s from %T", t, arr))
}

// AppendValue appends one cell to a builder of ArrowType(t). The value's memory is copied.
func AppendValue(b array.Builder, t scalar.Type, v scalar.Value) {
	if v.IsNull() {
		AppendNull(b)
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v.I != 0)
	case *array.Int8Builder:
		b.Append(int8(v.I))
	case *array.Int16Builder:
		b.Append(int16(v.I))
	case *array.Int32Builder:
		b.Append(int32(v.I))
	case *array.Int64Builder:
		b.Append(v.I)
	case *array.Uint8Builder:
		b.Append(uint8(v.I))
	case *array.Uint16Builder:
		b.Append(uint16(v.I))
	case *array.Uint32Builder:
		b.Append(uint32(v.I))
	case *array.Uint64Builder:
		b.Append(uint64(v.I))
	case *array.Float32Builder:
		b.Append(float32(v.F))
	case *array.Float64Builder:
		b.Append(v.F)
	case *array.Decimal128Builder:
		b.Append(Decimal128(v.D))
	case *array.StringBuilder:
		b.Append(v.S)
	case *array.BinaryBuilder:
		b.AppendString(v.S)
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.I))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(v.I))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.I))
	case *array.MapBuilder:
		b.Append(true)
		for i := range v.Keys {
			AppendValue(b.KeyBuilder(), *t.Key, v.Keys[i])
			AppendValue(b.ItemBuilder(), *t.Elem, v.L[i])
		}
	case *array.ListBuilder:
		b.Append(true)
		for _, e := range v.L {
			AppendValue(b.ValueBuilder(), *t.Elem, e)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, f := range v.L {
			AppendValue(b.FieldBuilder(i), t.Fields[i].Type, f)
		}
	default:
		panic(fmt.Sprintf("operators: cannot append %s to %T", t, b))
	}
}

// AppendNull appends a null of whatever the builder makes, nulls in every nested field included.
func AppendNull(b array.Builder) { b.AppendNull() }

// Int128 converts Arrow's decimal digits to ours.
func Int128(n decimal128.Num) scalar.Int128 {
	return scalar.Int128{Hi: n.HighBits(), Lo: n.LowBits()}
}

// Decimal128 converts our decimal digits to Arrow's.
func Decimal128(d scalar.Int128) decimal128.Num { return decimal128.New(d.Hi, d.Lo) }

// IsNull says whether the cell is null; a nil array (a column that no one needs) is all null.
func IsNull(arr arrow.Array, row int) bool { return arr == nil || arr.IsNull(row) }
