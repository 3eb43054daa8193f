package window

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/bitutil"
	"github.com/apache/arrow/go/v15/arrow/decimal128"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A shape is how values of a type are held in cells.
type shape uint8

const (
	shapeWord shape = iota // one cell: an int64 that orders like the value
	shapeDec               // two cells: the digits of a decimal
	shapeBlob              // two cells: a blob; strings and bytes as they are, other values encoded
)

func shapeOf(t scalar.Type) shape {
	switch t.Kind {
	case scalar.KindDecimal:
		return shapeDec
	case scalar.KindString, scalar.KindBytes, scalar.KindList, scalar.KindMap, scalar.KindStruct:
		return shapeBlob
	}
	return shapeWord
}

// cells is the number of cells of a shape.
func (s shape) cells() int {
	if s == shapeWord {
		return 1
	}
	return 2
}

// A column reads the values of one array, by shape. It belongs to one batch.
type column struct {
	t       scalar.Type
	arr     arrow.Array
	words   []int64 // shapeWord
	decs    []decimal128.Num
	offsets []int32 // strings and bytes
	data    []byte
	nested  bool // shapeBlob, but no string or bytes
	scratch []byte
	valid   []byte // bitmap, or nil if no value is null
	shift   int    // bit of row 0
}

func newColumn(arr arrow.Array, t scalar.Type) *column {
	c := &column{t: t, arr: arr}
	if arr.NullN() > 0 {
		c.valid, c.shift = arr.NullBitmapBytes(), arr.Data().Offset()
	}
	if arr.DataType().ID() == arrow.NULL {
		c.valid = make([]byte, bitutil.BytesForBits(int64(arr.Len())))
		c.words = make([]int64, arr.Len())
		return c
	}
	switch a := arr.(type) {
	case *array.Decimal128:
		c.decs = a.Values()
	case *array.String:
		c.offsets, c.data = bytesOf(a.Data())
	case *array.Binary:
		c.offsets, c.data = bytesOf(a.Data())
	case *array.List, *array.Map, *array.Struct:
		c.nested = true
	default:
		c.words = wordsOf(arr)
	}
	return c
}

// isNull says whether row is null.
func (c *column) isNull(row int32) bool {
	return c.valid != nil && !bitutil.BitIsSet(c.valid, c.shift+int(row))
}

// bytes is the blob of a row, valid until the next call.
func (c *column) bytes(row int32) []byte {
	if c.nested {
		c.scratch = appendValue(c.scratch[:0], c.t, operators.ValueAt(c.arr, c.t, int(row)))
		return c.scratch
	}
	if len(c.offsets) == 0 {
		return nil
	}
	return c.data[c.offsets[row]:c.offsets[row+1]]
}

// bytesOf is the offsets from row 0 on, and the data, of strings or bytes.
func bytesOf(d arrow.ArrayData) (offsets []int32, data []byte) {
	bufs := d.Buffers()
	if d.Len() == 0 || bufs[1] == nil {
		return nil, nil
	}
	offsets = arrow.Int32Traits.CastFromBytes(bufs[1].Bytes())[d.Offset():]
	if bufs[2] != nil {
		data = bufs[2].Bytes()
	}
	return offsets, data
}

// wordsOf maps fixed-width values to int64 so that the order stays. Null rows are undefined.
func wordsOf(arr arrow.Array) []int64 {
	switch a := arr.(type) {
	case *array.Int64:
		return a.Int64Values()
	case *array.Timestamp:
		return arrow.Int64Traits.CastFromBytes(arrow.TimestampTraits.CastToBytes(a.TimestampValues()))
	case *array.Duration:
		return arrow.Int64Traits.CastFromBytes(arrow.DurationTraits.CastToBytes(a.DurationValues()))
	case *array.Uint64:
		return widen(a.Uint64Values(), func(v uint64) int64 { return int64(v ^ 1<<63) })
	case *array.Float64:
		return widen(a.Float64Values(), floatWord)
	case *array.Float32:
		return widen(a.Float32Values(), func(v float32) int64 { return floatWord(float64(v)) })
	case *array.Int32:
		return widen(a.Int32Values(), func(v int32) int64 { return int64(v) })
	case *array.Date32:
		return widen(a.Date32Values(), func(v arrow.Date32) int64 { return int64(v) })
	case *array.Int16:
		return widen(a.Int16Values(), func(v int16) int64 { return int64(v) })
	case *array.Int8:
		return widen(a.Int8Values(), func(v int8) int64 { return int64(v) })
	case *array.Uint32:
		return widen(a.Uint32Values(), func(v uint32) int64 { return int64(v) })
	case *array.Uint16:
		return widen(a.Uint16Values(), func(v uint16) int64 { return int64(v) })
	case *array.Uint8:
		return widen(a.Uint8Values(), func(v uint8) int64 { return int64(v) })
	case *array.Boolean:
		w := make([]int64, a.Len())
		for i := range w {
			if a.Value(i) {
				w[i] = 1
			}
		}
		return w
	}
	panic(fmt.Sprintf("window: no words of %s", arr.DataType()))
}

func widen[T any](vs []T, f func(T) int64) []int64 {
	w := make([]int64, len(vs))
	for i, v := range vs {
		w[i] = f(v)
	}
	return w
}

// floatWord orders floats as scalar.Compare does: -0 before 0, NaN (all one) last.
func floatWord(f float64) int64 {
	if f != f {
		return math.MaxInt64
	}
	i := int64(math.Float64bits(f))
	return i ^ int64(uint64(i>>63)>>1)
}

func wordFloat(w int64) float64 {
	if w == math.MaxInt64 {
		return math.NaN()
	}
	return math.Float64frombits(uint64(w ^ int64(uint64(w>>63)>>1)))
}

// wordValue is the value of a word of type t.
func wordValue(t scalar.Type, w int64) scalar.Value {
	switch k := t.Kind; k {
	case scalar.KindFloat64:
		return scalar.Float(wordFloat(w))
	case scalar.KindFloat32:
		return scalar.Float32(float32(wordFloat(w)))
	case scalar.KindUint64:
		return scalar.IntOf(k, int64(uint64(w)^1<<63))
	default:
		return scalar.Value{Kind: k, I: w}
	}
}

// appendWord appends a word to a builder of type t.
func appendWord(b array.Builder, t scalar.Type, w int64) {
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(w)
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(w))
	case *array.Float64Builder:
		b.Append(wordFloat(w))
	default:
		operators.AppendValue(b, t, wordValue(t, w))
	}
}

// appendBlob appends a blob to a builder of type t.
func appendBlob(b array.Builder, t scalar.Type, blob []byte) error {
	switch b := b.(type) {
	case *array.StringBuilder:
		b.BinaryBuilder.Append(blob)
	case *array.BinaryBuilder:
		b.Append(blob)
	default:
		v, rest, err := readValue(blob, t)
		if err != nil || len(rest) > 0 {
			return fmt.Errorf("%w: a value of type %s", ErrState, t)
		}
		operators.AppendValue(b, t, v)
	}
	return nil
}

// appendValue encodes a value of any type: a tag (0 null, 1 not), then words and digits big-endian with
// the sign bit flipped, and strings, lists and maps after their length.
func appendValue(dst []byte, t scalar.Type, v scalar.Value) []byte {
	if v.IsNull() {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch t.Kind {
	case scalar.KindDecimal:
		return appendDec(dst, v.D)
	case scalar.KindString, scalar.KindBytes:
		dst = binary.AppendUvarint(dst, uint64(len(v.S)))
		return append(dst, v.S...)
	case scalar.KindList:
		dst = binary.AppendUvarint(dst, uint64(len(v.L)))
		for _, e := range v.L {
			dst = appendValue(dst, *t.Elem, e)
		}
		return dst
	case scalar.KindMap:
		dst = binary.AppendUvarint(dst, uint64(len(v.L)))
		for i, e := range v.L {
			dst = appendValue(dst, *t.Key, v.Keys[i])
			dst = appendValue(dst, *t.Elem, e)
		}
		return dst
	case scalar.KindStruct:
		for i, f := range t.Fields {
			dst = appendValue(dst, f.Type, v.L[i])
		}
		return dst
	case scalar.KindFloat32, scalar.KindFloat64:
		return appendWordBytes(dst, floatWord(v.F))
	case scalar.KindUint64:
		return appendWordBytes(dst, int64(uint64(v.I)^1<<63))
	}
	return appendWordBytes(dst, v.I)
}

var errShort = fmt.Errorf("%w: a value is cut short", ErrState)

// readValue decodes what appendValue encoded.
func readValue(b []byte, t scalar.Type) (v scalar.Value, rest []byte, err error) {
	if len(b) == 0 {
		return v, nil, errShort
	}
	tag := b[0]
	b = b[1:]
	if tag == 0 {
		return scalar.Null, b, nil
	}
	switch t.Kind {
	case scalar.KindDecimal:
		if len(b) < 16 {
			return v, nil, errShort
		}
		return scalar.Decimal(readDec(b)), b[16:], nil
	case scalar.KindString, scalar.KindBytes:
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return v, nil, errShort
		}
		return scalar.Value{Kind: t.Kind, S: string(b[k : k+int(n)])}, b[k+int(n):], nil
	case scalar.KindList, scalar.KindMap:
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return v, nil, errShort
		}
		b = b[k:]
		v.Kind = t.Kind
		for range n {
			var e scalar.Value
			if t.Kind == scalar.KindMap {
				if e, b, err = readValue(b, *t.Key); err != nil {
					return v, nil, err
				}
				v.Keys = append(v.Keys, e)
			}
			if e, b, err = readValue(b, *t.Elem); err != nil {
				return v, nil, err
			}
			v.L = append(v.L, e)
		}
		return v, b, nil
	case scalar.KindStruct:
		v.Kind = t.Kind
		for _, f := range t.Fields {
			var e scalar.Value
			if e, b, err = readValue(b, f.Type); err != nil {
				return v, nil, err
			}
			v.L = append(v.L, e)
		}
		return v, b, nil
	}
	if len(b) < 8 {
		return v, nil, errShort
	}
	return wordValue(t, readWordBytes(b)), b[8:], nil
}

func appendWordBytes(dst []byte, w int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(w)^1<<63)
}

func readWordBytes(b []byte) int64 { return int64(binary.BigEndian.Uint64(b) ^ 1<<63) }

func appendDec(dst []byte, d scalar.Int128) []byte {
	return binary.BigEndian.AppendUint64(appendWordBytes(dst, d.Hi), d.Lo)
}

func readDec(b []byte) scalar.Int128 {
	return scalar.Int128{Hi: readWordBytes(b), Lo: binary.BigEndian.Uint64(b[8:])}
}
