package operators

import (
	"strconv"
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
)

// AppendJSON appends the JSON text of one cell, as scalar.AppendJSON writes it, without making a value
// for the common types. A nil array is null.
//
// Errors: scalar.CodeNotFinite; dst is then returned as it came.
func AppendJSON(dst []byte, arr arrow.Array, t scalar.Type, row int) ([]byte, scalar.Code) {
	if arr == nil || arr.IsNull(row) {
		return append(dst, "null"...), scalar.CodeNone
	}
	switch a := arr.(type) {
	case *array.Int64:
		return strconv.AppendInt(dst, a.Value(row), 10), scalar.CodeNone
	case *array.String:
		return AppendJSONString(dst, a.Value(row)), scalar.CodeNone
	case *array.Timestamp:
		dst = append(dst, '"')
		dst = scalar.AppendTime(dst, int64(a.Value(row)))
		return append(dst, '"'), scalar.CodeNone
	case *array.Decimal128:
		return scalar.AppendDecimal(dst, Int128(a.Value(row)), t.Scale), scalar.CodeNone
	case *array.Boolean:
		return strconv.AppendBool(dst, a.Value(row)), scalar.CodeNone
	case *array.Int32:
		return strconv.AppendInt(dst, int64(a.Value(row)), 10), scalar.CodeNone
	case *array.Uint64:
		return strconv.AppendUint(dst, a.Value(row), 10), scalar.CodeNone
	}
	return scalar.AppendJSON(dst, ValueAt(arr, t, row), t)
}

// AppendText appends one cell as scalar.AppendText writes it: the field of a CSV line before quoting.
// A nil array is null, which is empty.
func AppendText(dst []byte, arr arrow.Array, t scalar.Type, row int) ([]byte, scalar.Code) {
	if arr == nil || arr.IsNull(row) {
		return dst, scalar.CodeNone
	}
	switch a := arr.(type) {
	case *array.String:
		return append(dst, a.Value(row)...), scalar.CodeNone
	case *array.Timestamp:
		return scalar.AppendTime(dst, int64(a.Value(row))), scalar.CodeNone
	case *array.Int64, *array.Decimal128, *array.Boolean, *array.Int32, *array.Uint64:
		return AppendJSON(dst, arr, t, row)
	}
	return scalar.AppendText(dst, ValueAt(arr, t, row), t)
}

// AppendJSONString is scalar.AppendJSONString with a fast path for text that needs no escapes.
func AppendJSONString(dst []byte, s string) []byte {
	if !plain(s) {
		return scalar.AppendJSONString(dst, s)
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// plain says whether s is printable ASCII without quotes and backslashes. It looks at eight bytes at a
// time.
func plain(s string) bool {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	p := unsafe.Slice(unsafe.StringData(s), len(s))
	for len(p) >= 8 {
		w := uint64(p[0]) | uint64(p[1])<<8 | uint64(p[2])<<16 | uint64(p[3])<<24 |
			uint64(p[4])<<32 | uint64(p[5])<<40 | uint64(p[6])<<48 | uint64(p[7])<<56
		q, b := w^ones*'"', w^ones*'\\'
		if (w|(w-ones*0x20)|((q-ones)&^q)|((b-ones)&^b))&tops != 0 {
			return false
		}
		p = p[8:]
	}
	for _, c := range p {
		if c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
