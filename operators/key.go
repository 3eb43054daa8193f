package operators

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
)

// EncodeKey appends the encoded key of one row to dst: the bytes of the record key, by which rows are
// partitioned and ordered. One string or bytes column is its raw bytes, any other single column its
// JSON text, several a JSON array; no columns, or a null single column, is the null key. Negative zero
// counts as zero. A NaN or infinity, which has no JSON text, makes the key null too: use EncodeKeys
// where it can be reported.
func EncodeKey(columns []arrow.Array, types []scalar.Type, row int, dst []byte) (key []byte, null bool) {
	key, null, code := appendKey(dst, columns, types, row)
	return key, null || code != scalar.CodeNone
}

func appendKey(dst []byte, columns []arrow.Array, types []scalar.Type, row int) (key []byte, null bool, code scalar.Code) {
	switch len(columns) {
	case 0:
		return dst, true, scalar.CodeNone
	case 1:
		c := columns[0]
		if IsNull(c, row) {
			return dst, true, scalar.CodeNone
		}
		switch a := c.(type) {
		case *array.String:
			return append(dst, a.Value(row)...), false, scalar.CodeNone
		case *array.Binary:
			return append(dst, a.Value(row)...), false, scalar.CodeNone
		}
		if k := types[0].Kind; k == scalar.KindString || k == scalar.KindBytes {
			return append(dst, ValueAt(c, types[0], row).S...), false, scalar.CodeNone
		}
		dst, code = appendKeyJSON(dst, c, types[0], row)
		return dst, false, code
	}
	dst = append(dst, '[')
	for i, c := range columns {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, code = appendKeyJSON(dst, c, types[i], row); code != scalar.CodeNone {
			return dst, false, code
		}
	}
	return append(dst, ']'), false, scalar.CodeNone
}

// appendKeyJSON is the JSON text of a cell with -0 as 0.
func appendKeyJSON(dst []byte, c arrow.Array, t scalar.Type, row int) ([]byte, scalar.Code) {
	switch a := c.(type) {
	case *array.Float64:
		if a.Value(row) == 0 && a.IsValid(row) {
			return append(dst, '0'), scalar.CodeNone
		}
	case *array.Float32:
		if a.Value(row) == 0 && a.IsValid(row) {
			return append(dst, '0'), scalar.CodeNone
		}
	}
	return AppendJSON(dst, c, t, row)
}

// EncodeKeys encodes the keys of rows [0, n) into one new piece of memory. Rows in failed are left out;
// the errors of these and of the rows whose key has no written form are appended to errs, by row.
func EncodeKeys(columns []arrow.Array, types []scalar.Type, n int, failed, errs []RowError) ([][]byte, []RowError) {
	keys := make([][]byte, n)
	ends := make([]int, n)
	buf := make([]byte, 0, 16*n)
	for row := range n {
		if len(failed) > 0 && failed[0].Row == row {
			errs = append(errs, failed[0])
			failed = failed[1:]
			ends[row] = -1
			continue
		}
		start := len(buf)
		key, null, code := appendKey(buf, columns, types, row)
		switch {
		case code != scalar.CodeNone:
			errs = append(errs, RowError{Row: row, Code: code, Expr: "key"})
			ends[row] = -1
			buf = key[:start]
		case null:
			ends[row] = -1
			buf = key[:start]
		default:
			buf = key
			ends[row] = len(buf)
		}
	}
	start := 0
	for row, end := range ends {
		if end >= 0 {
			keys[row] = buf[start:end:end]
			start = end
		}
	}
	return keys, errs
}

// Partition is the partition of a key among n: Kafka's default partitioner, murmur2 of the key bytes.
func Partition(key []byte, n int) int32 {
	return int32(int(Murmur2(key)&0x7fffffff) % n)
}

// Murmur2 is the hash of Kafka's default partitioner.
func Murmur2(b []byte) uint32 {
	const (
		seed uint32 = 0x9747b28c
		m    uint32 = 0x5bd1e995
	)
	h := seed ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := (uint32(b[3])<<24 | uint32(b[2])<<16 | uint32(b[1])<<8 | uint32(b[0])) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
