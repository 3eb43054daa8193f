package operators

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/bitutil"
	"github.com/apache/arrow/go/v15/arrow/memory"
)

// Gather is the rows of arr named by sel, in that order, in new memory.
//
// It panics when the gathered strings of one column would pass 2 GiB, which batches of the engine never
// come near.
func Gather(alloc memory.Allocator, arr arrow.Array, sel []int32) arrow.Array {
	d := gatherData(alloc, arr, sel)
	defer d.Release()
	return array.MakeFromData(d)
}

func gatherData(alloc memory.Allocator, arr arrow.Array, sel []int32) arrow.ArrayData {
	n := len(sel)
	in := arr.Data()
	if arr.DataType().ID() == arrow.NULL {
		return array.NewData(arrow.Null, n, []*memory.Buffer{nil}, nil, n, 0)
	}
	valid, nulls := gatherValidity(alloc, arr, sel)
	bufs := []*memory.Buffer{valid}
	var children []arrow.ArrayData
	switch a := arr.(type) {
	case *array.Boolean:
		out := newBuffer(alloc, int(bitutil.BytesForBits(int64(n))))
		memory.Set(out.Bytes(), 0)
		for i, row := range sel {
			if a.Value(int(row)) {
				bitutil.SetBit(out.Bytes(), i)
			}
		}
		bufs = append(bufs, out)
	case *array.String:
		bufs = append(bufs, gatherBytes(alloc, in, sel)...)
	case *array.Binary:
		bufs = append(bufs, gatherBytes(alloc, in, sel)...)
	case *array.Struct:
		for i := range a.NumField() {
			children = append(children, gatherData(alloc, a.Field(i), sel))
		}
	case array.ListLike:
		offsets, rows := gatherLists(alloc, a, sel)
		bufs = append(bufs, offsets)
		children = append(children, gatherData(alloc, a.ListValues(), rows))
	case *array.Dictionary:
		bufs = append(bufs, gatherFixed(alloc, in, sel, a.Indices().DataType().(arrow.FixedWidthDataType).BitWidth()/8))
		out := array.NewDataWithDictionary(arr.DataType(), n, bufs, nulls, 0, in.Dictionary().(*array.Data))
		releaseBuffers(bufs)
		return out
	default:
		fixed, ok := arr.DataType().(arrow.FixedWidthDataType)
		if !ok {
			panic(fmt.Sprintf("operators: cannot gather %s", arr.DataType()))
		}
		bufs = append(bufs, gatherFixed(alloc, in, sel, fixed.BitWidth()/8))
	}
	out := array.NewData(arr.DataType(), n, bufs, children, nulls, 0)
	releaseBuffers(bufs)
	for _, c := range children {
		c.Release()
	}
	return out
}

func newBuffer(alloc memory.Allocator, n int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(n)
	return b
}

func releaseBuffers(bufs []*memory.Buffer) {
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
}

func gatherValidity(alloc memory.Allocator, arr arrow.Array, sel []int32) (*memory.Buffer, int) {
	bits := arr.NullBitmapBytes()
	if arr.NullN() == 0 || len(bits) == 0 {
		return nil, 0
	}
	off, nulls := arr.Data().Offset(), 0
	b := newBuffer(alloc, int(bitutil.BytesForBits(int64(len(sel)))))
	out := b.Bytes()
	memory.Set(out, 0)
	for i, row := range sel {
		if bitutil.BitIsSet(bits, off+int(row)) {
			bitutil.SetBit(out, i)
		} else {
			nulls++
		}
	}
	if nulls == 0 {
		b.Release()
		return nil, 0
	}
	return b, nulls
}

func gatherFixed(alloc memory.Allocator, in arrow.ArrayData, sel []int32, width int) *memory.Buffer {
	b := newBuffer(alloc, len(sel)*width)
	out := b.Bytes()
	if len(sel) == 0 {
		return b
	}
	from := in.Buffers()[1].Bytes()[in.Offset()*width:]
	switch width {
	case 8:
		gatherInto(arrow.Int64Traits.CastFromBytes(out), arrow.Int64Traits.CastFromBytes(from), sel)
	case 4:
		gatherInto(arrow.Int32Traits.CastFromBytes(out), arrow.Int32Traits.CastFromBytes(from), sel)
	default:
		for i, row := range sel {
			copy(out[i*width:(i+1)*width], from[int(row)*width:])
		}
	}
	return b
}

func gatherInto[T any](out, from []T, sel []int32) {
	out = out[:len(sel)]
	for i, row := range sel {
		out[i] = from[row]
	}
}

// gatherBytes makes the offsets and data buffers of strings and bytes.
func gatherBytes(alloc memory.Allocator, in arrow.ArrayData, sel []int32) []*memory.Buffer {
	var from []int32
	var data []byte
	if bufs := in.Buffers(); bufs[1] != nil && bufs[1].Len() > 0 {
		from = arrow.Int32Traits.CastFromBytes(bufs[1].Bytes())[in.Offset():]
		if bufs[2] != nil {
			data = bufs[2].Bytes()
		}
	}
	total := 0
	for _, row := range sel {
		total += int(from[row+1] - from[row])
	}
	if total > math.MaxInt32 {
		panic("operators: a gathered column exceeds 2 GiB")
	}
	offsets, values := newBuffer(alloc, (len(sel)+1)*4), newBuffer(alloc, total)
	to, out := arrow.Int32Traits.CastFromBytes(offsets.Bytes()), values.Bytes()
	pos := 0
	to[0] = 0
	for i, row := range sel {
		pos += copy(out[pos:], data[from[row]:from[row+1]])
		to[i+1] = int32(pos)
	}
	return []*memory.Buffer{offsets, values}
}

// gatherLists makes the offsets of the gathered lists and names the child rows that they hold.
func gatherLists(alloc memory.Allocator, a array.ListLike, sel []int32) (*memory.Buffer, []int32) {
	b := newBuffer(alloc, (len(sel)+1)*4)
	out := b.Bytes()
	rows := make([]int32, 0, len(sel))
	binary.NativeEndian.PutUint32(out, 0)
	for i, row := range sel {
		if a.IsValid(int(row)) {
			from, to := a.ValueOffsets(int(row))
			for r := from; r < to; r++ {
				rows = append(rows, int32(r))
			}
		}
		binary.NativeEndian.PutUint32(out[4*(i+1):], uint32(len(rows)))
	}
	return b, rows
}
