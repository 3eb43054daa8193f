package rows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// ErrState is returned by Restore for a row that was not written by the same stage.
var ErrState = errors.New("rows: state row not understood")

// AppendCell appends one cell: a tag, 0 for null and 1 else, then words and the halves of decimals
// little-endian, and strings, lists and maps after their length.
func AppendCell(dst []byte, arr arrow.Array, t scalar.Type, row int) []byte {
	if operators.IsNull(arr, row) {
		return append(dst, 0)
	}
	switch a := arr.(type) {
	case *array.Int64:
		return binary.LittleEndian.AppendUint64(append(dst, 1), uint64(a.Value(row)))
	case *array.Timestamp:
		return binary.LittleEndian.AppendUint64(append(dst, 1), uint64(a.Value(row)))
	case *array.Float64:
		return binary.LittleEndian.AppendUint64(append(dst, 1), math.Float64bits(a.Value(row)))
	case *array.String:
		v := a.Value(row)
		return append(binary.AppendUvarint(append(dst, 1), uint64(len(v))), v...)
	}
	return appendValue(dst, t, operators.ValueAt(arr, t, row))
}

func appendValue(dst []byte, t scalar.Type, v scalar.Value) []byte {
	if v.IsNull() {
		return append(dst, 0)
	}
	dst = append(dst, 1)
	switch t.Kind {
	case scalar.KindDecimal:
		dst = binary.LittleEndian.AppendUint64(dst, v.D.Lo)
		return binary.LittleEndian.AppendUint64(dst, uint64(v.D.Hi))
	case scalar.KindString, scalar.KindBytes:
		return append(binary.AppendUvarint(dst, uint64(len(v.S))), v.S...)
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
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v.F))
	}
	return binary.LittleEndian.AppendUint64(dst, uint64(v.I))
}

var errShort = fmt.Errorf("%w: cut short", ErrState)

// readValue decodes what appendValue encoded. Strings are copies.
func readValue(b []byte, t scalar.Type) (v scalar.Value, rest []byte, err error) {
	if len(b) == 0 || b[0] > 1 {
		return v, nil, errShort
	}
	if b[0] == 0 {
		return scalar.Null, b[1:], nil
	}
	b = b[1:]
	v.Kind = t.Kind
	switch t.Kind {
	case scalar.KindDecimal:
		if len(b) < 16 {
			return v, nil, errShort
		}
		v.D = scalar.Int128{Lo: binary.LittleEndian.Uint64(b), Hi: int64(binary.LittleEndian.Uint64(b[8:]))}
		return v, b[16:], nil
	case scalar.KindString, scalar.KindBytes:
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return v, nil, errShort
		}
		v.S = string(b[k : k+int(n)])
		return v, b[k+int(n):], nil
	case scalar.KindList, scalar.KindMap:
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) { // an element takes a byte at least
			return v, nil, errShort
		}
		b = b[k:]
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
	w := binary.LittleEndian.Uint64(b)
	switch t.Kind {
	case scalar.KindFloat64:
		v.F = math.Float64frombits(w)
	case scalar.KindFloat32:
		v.F = math.Float64frombits(w)
	default:
		v.I = int64(w)
	}
	return v, b[8:], nil
}

// ReadInto appends the cell at the beginning of b to a builder of type t.
func ReadInto(to array.Builder, t scalar.Type, b []byte) (rest []byte, err error) {
	if len(b) > 0 && b[0] == 1 {
		switch to := to.(type) {
		case *array.Int64Builder:
			if len(b) < 9 {
				return nil, errShort
			}
			to.Append(int64(binary.LittleEndian.Uint64(b[1:])))
			return b[9:], nil
		case *array.TimestampBuilder:
			if len(b) < 9 {
				return nil, errShort
			}
			to.Append(arrow.Timestamp(binary.LittleEndian.Uint64(b[1:])))
			return b[9:], nil
		case *array.StringBuilder:
			n, k := binary.Uvarint(b[1:])
			if k <= 0 || n > uint64(len(b)-1-k) {
				return nil, errShort
			}
			to.BinaryBuilder.Append(b[1+k : 1+k+int(n)])
			return b[1+k+int(n):], nil
		}
	}
	v, rest, err := readValue(b, t)
	if err != nil {
		return nil, err
	}
	operators.AppendValue(to, t, v)
	return rest, nil
}

// Check says whether b is the cells of a row of the given types.
func Check(b []byte, types []scalar.Type) error {
	var err error
	for _, t := range types {
		if _, b, err = readValue(b, t); err != nil {
			return err
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes follow a row", ErrState, len(b))
	}
	return nil
}

// AppendSort appends bytes of a cell that order like its value, ascending or descending. Null comes last
// either way, and NaN before it; -0 comes before 0.
func AppendSort(dst []byte, arr arrow.Array, t scalar.Type, row int, desc bool) []byte {
	if operators.IsNull(arr, row) {
		return append(dst, 2)
	}
	v := operators.ValueAt(arr, t, row)
	if v.Kind.Float() && v.F != v.F {
		return append(dst, 1)
	}
	dst = append(dst, 0)
	from := len(dst)
	switch k := t.Kind; {
	case k == scalar.KindDecimal:
		dst = binary.BigEndian.AppendUint64(dst, uint64(v.D.Hi)^1<<63)
		dst = binary.BigEndian.AppendUint64(dst, v.D.Lo)
	case k == scalar.KindString || k == scalar.KindBytes:
		for i := range len(v.S) {
			if dst = append(dst, v.S[i]); v.S[i] == 0 {
				dst = append(dst, 255)
			}
		}
		dst = append(dst, 0, 1)
	case k.Float():
		w := math.Float64bits(v.F)
		if w>>63 != 0 {
			w = ^w
		} else {
			w |= 1 << 63
		}
		dst = binary.BigEndian.AppendUint64(dst, w)
	case k == scalar.KindUint64:
		dst = binary.BigEndian.AppendUint64(dst, uint64(v.I))
	default:
		dst = binary.BigEndian.AppendUint64(dst, uint64(v.I)^1<<63)
	}
	if desc {
		for i := from; i < len(dst); i++ {
			dst[i] = ^dst[i]
		}
	}
	return dst
}
