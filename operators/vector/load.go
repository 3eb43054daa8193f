package vector

import (
	"fmt"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

func valueAt(arr arrow.Array, t scalar.Type, row int) scalar.Value {
	return operators.ValueAt(arr, t, row)
}

// as64 sees int64 lanes as another type of 64 bits, or back.
func as64[T, U any](s []U) []T {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&s[0])), len(s))
}

func widen[T int8 | int16 | int32 | uint8 | uint16 | uint32 | arrow.Date32](o *vec, from []T) {
	o.i = sized(&o.ibuf, len(from))
	for i, x := range from {
		o.i[i] = int64(x)
	}
}

// load makes o show a column. Columns of 64 bits, and strings, are not copied.
//
// An error means that the array is not of a type that holds t.
func (o *vec) load(arr arrow.Array, t scalar.Type) error {
	o.form, o.n = formOf(t), arr.Len()
	o.valid, o.errs, o.sharedValid, o.sharedErrs, o.whole = nil, nil, false, false, false
	if arr.NullN() > 0 {
		o.loadValid(arr)
	}
	mismatch := false
	switch a := arr.(type) {
	case *array.Int64:
		mismatch = t.Kind != scalar.KindInt64
		o.i = a.Int64Values()
	case *array.Timestamp:
		mismatch = t.Kind != scalar.KindTime || a.DataType().(*arrow.TimestampType).Unit != arrow.Nanosecond
		o.i = as64[int64](a.TimestampValues())
	case *array.Duration:
		mismatch = t.Kind != scalar.KindDuration || a.DataType().(*arrow.DurationType).Unit != arrow.Nanosecond
		o.i = as64[int64](a.DurationValues())
	case *array.Uint64:
		mismatch = t.Kind != scalar.KindUint64
		o.i = as64[int64](a.Uint64Values())
	case *array.Int8:
		mismatch = t.Kind != scalar.KindInt8
		widen(o, a.Int8Values())
	case *array.Int16:
		mismatch = t.Kind != scalar.KindInt16
		widen(o, a.Int16Values())
	case *array.Int32:
		mismatch = t.Kind != scalar.KindInt32
		widen(o, a.Int32Values())
	case *array.Uint8:
		mismatch = t.Kind != scalar.KindUint8
		widen(o, a.Uint8Values())
	case *array.Uint16:
		mismatch = t.Kind != scalar.KindUint16
		widen(o, a.Uint16Values())
	case *array.Uint32:
		mismatch = t.Kind != scalar.KindUint32
		widen(o, a.Uint32Values())
	case *array.Date32:
		mismatch = t.Kind != scalar.KindDate
		widen(o, a.Date32Values())
	case *array.Float64:
		mismatch = t.Kind != scalar.KindFloat64
		o.f = a.Float64Values()
	case *array.Float32:
		mismatch = t.Kind != scalar.KindFloat32
		o.f = sized(&o.fbuf, a.Len())
		for i, x := range a.Float32Values() {
			o.f[i] = float64(x)
		}
	case *array.Boolean:
		mismatch = t.Kind != scalar.KindBool
		o.b = sized(&o.bbuf, a.Len())
		unpackBits(o.b, buffer(arr, 1), arr.Data().Offset())
	case *array.Decimal128:
		dt := a.DataType().(*arrow.Decimal128Type)
		mismatch = t.Kind != scalar.KindDecimal || dt.Scale != t.Scale || dt.Precision != t.Precision
		o.d = sized(&o.dbuf, a.Len())
		for i, x := range a.Values() {
			o.d[i] = scalar.Int128{Hi: x.HighBits(), Lo: x.LowBits()}
		}
	case *array.String:
		mismatch = t.Kind != scalar.KindString
		o.loadText(arr)
	case *array.Binary:
		mismatch = t.Kind != scalar.KindBytes
		o.loadText(arr)
	case *array.Dictionary:
		if o.form != formText {
			mismatch = true
			break
		}
		return o.loadDictionary(a, t)
	case *array.Struct:
		mismatch = t.Kind != scalar.KindStruct || a.NumField() != len(t.Fields)
		o.form, o.arr = formStruct, arr
	case *array.Null:
		o.begin(o.form, arr.Len())
		o.valid = sized(&o.validbuf, arr.Len())
		clear(o.valid)
	default:
		if t.Kind != scalar.KindList && t.Kind != scalar.KindMap {
			mismatch = true
			break
		}
		o.v = sized(&o.vbuf, arr.Len())
		for i := range o.v {
			o.v[i] = valueAt(arr, t, i)
		}
	}
	if mismatch {
		return fmt.Errorf("vector: a column of %s was given as %s", t, arr.DataType())
	}
	return nil
}

// buffer gives the bytes of a buffer of an array, or nil.
func buffer(arr arrow.Array, i int) []byte {
	if b := arr.Data().Buffers()[i]; b != nil {
		return b.Bytes()
	}
	return nil
}

func (o *vec) loadValid(arr arrow.Array) {
	o.valid = sized(&o.validbuf, arr.Len())
	if bits := arr.NullBitmapBytes(); len(bits) > 0 {
		unpackBits(o.valid, bits, arr.Data().Offset())
		return
	}
	for i := range o.valid {
		o.valid[i] = arr.IsValid(i)
	}
}

// unpackBits spreads the bits from offset on over dst.
func unpackBits(dst []bool, bits []byte, offset int) {
	i := 0
	for ; i < len(dst) && (offset+i)%8 != 0; i++ {
		dst[i] = bits[(offset+i)/8]>>((offset+i)%8)&1 != 0
	}
	for ; i+8 <= len(dst); i += 8 {
		b := bits[(offset+i)/8]
		d := dst[i : i+8 : i+8]
		d[0], d[1], d[2], d[3] = b&1 != 0, b&2 != 0, b&4 != 0, b&8 != 0
		d[4], d[5], d[6], d[7] = b&16 != 0, b&32 != 0, b&64 != 0, b&128 != 0
	}
	for ; i < len(dst); i++ {
		dst[i] = bits[(offset+i)/8]>>((offset+i)%8)&1 != 0
	}
}

func textOf(arr arrow.Array) text {
	off, n := arr.Data().Offset(), arr.Len()
	offsets := arrow.Int32Traits.CastFromBytes(buffer(arr, 1))
	if len(offsets) < off+n+1 { // an empty array may have no offsets
		return text{off: make([]int32, n+1)}
	}
	return text{off: offsets[off : off+n+1], data: buffer(arr, 2)}
}

func (o *vec) loadText(arr arrow.Array) { o.s = textOf(arr) }

// loadDictionary keeps the dictionary beside the strings, so that functions of one string can be
// computed once a value.
func (o *vec) loadDictionary(a *array.Dictionary, t scalar.Type) error {
	values := a.Dictionary()
	var dict vec
	if err := dict.load(values, t); err != nil {
		return err
	}
	if dict.form != formText || dict.s.str != nil {
		return fmt.Errorf("vector: a column of %s was given as %s", t, a.DataType())
	}
	d := make([]string, max(values.Len(), 1)) // null rows have code 0
	nulls := false
	for i := range values.Len() {
		if dict.isValid(int32(i)) {
			d[i] = dict.s.at(int32(i))
		} else {
			nulls = true
		}
	}
	codes := sized(&o.codebuf, a.Len())
	if indices, is32 := a.Indices().(*array.Int32); is32 && o.valid == nil {
		copy(codes, indices.Int32Values())
	} else {
		for i := range codes {
			codes[i] = 0
			if a.IsValid(i) {
				codes[i] = int32(a.GetValueIndex(i))
			}
		}
	}
	if nulls {
		for i, c := range codes {
			if o.isValid(int32(i)) && !dict.isValid(c) {
				o.setNull(int32(i))
			}
		}
	}
	for _, c := range codes {
		if uint32(c) >= uint32(len(d)) {
			return fmt.Errorf("vector: code %d in a dictionary of %d", c, len(d))
		}
	}
	o.s = text{codes: codes, dict: d}
	return nil
}
