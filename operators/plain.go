package operators

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
)

// Plain is arr without dictionary encoding, for code that reads buffers. The caller owns the result and
// keeps arr.
func Plain(alloc memory.Allocator, arr arrow.Array) arrow.Array {
	d, ok := arr.(*array.Dictionary)
	if !ok {
		arr.Retain()
		return arr
	}
	sel := make([]int32, d.Len())
	var nulls []int
	for i := range sel {
		// The code of a row that was not evaluated may be anything.
		code := d.GetValueIndex(i)
		if d.IsNull(i) || uint(code) >= uint(d.Dictionary().Len()) {
			nulls = append(nulls, i)
			continue
		}
		sel[i] = int32(code)
	}
	if len(nulls) == 0 {
		return Gather(alloc, d.Dictionary(), sel)
	}
	b := array.NewBuilder(alloc, d.Dictionary().DataType())
	defer b.Release()
	switch dict := d.Dictionary().(type) {
	case *array.String:
		for i, row := range sel {
			if len(nulls) > 0 && nulls[0] == i {
				nulls = nulls[1:]
				b.AppendNull()
				continue
			}
			b.(*array.StringBuilder).Append(dict.Value(int(row)))
		}
	case *array.Binary:
		for i, row := range sel {
			if len(nulls) > 0 && nulls[0] == i {
				nulls = nulls[1:]
				b.AppendNull()
				continue
			}
			b.(*array.BinaryBuilder).Append(dict.Value(int(row)))
		}
	default:
		panic("operators: a dictionary of " + dict.DataType().String())
	}
	return b.NewArray()
}
