package columnar

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

var dictionaryType = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}

// Column makes an array of column i, which the caller owns. It points into the payload and takes no memory from
// an allocator. A payload from outside must have passed Check, or the array may panic where it is read.
func (f *Frame) Column(i int) arrow.Array {
	d := f.data(f.roots[i])
	defer d.Release()
	return array.MakeFromData(d)
}

// Times are the event times of the rows, ns, in the payload's memory; nil if the payload has none.
func (f *Frame) Times() []int64 { return f.extra(flagTimes) }

// Behind are the watermarks of the rows' partition before them, ns, in the payload's memory; nil if the payload
// has none.
func (f *Frame) Behind() []int64 { return f.extra(flagBehind) }

func (f *Frame) extra(flag uint32) []int64 {
	if f.flags&flag == 0 || f.rows == 0 {
		return nil
	}
	i := len(f.schema.columns)
	if flag == flagBehind && f.flags&flagTimes != 0 {
		i++
	}
	return lanes[int64](f.bytes(f.parts[f.roots[i]].data))
}

func (f *Frame) mem(s span) *memory.Buffer {
	return memory.NewBufferBytes(f.bytes(s))
}

func (f *Frame) data(i int) arrow.ArrayData {
	p := &f.parts[i]
	var valid *memory.Buffer
	if p.nulls > 0 {
		valid = f.mem(p.valid)
	}
	if p.dict {
		dict := f.data(i + 1)
		defer dict.Release()
		return array.NewDataWithDictionary(dictionaryType, p.n, []*memory.Buffer{valid, f.mem(p.data)}, p.nulls, 0, dict.(*array.Data))
	}
	t := operators.ArrowType(*p.t)
	bufs := []*memory.Buffer{valid}
	var children []arrow.ArrayData
	switch p.t.Kind {
	case scalar.KindString, scalar.KindBytes:
		bufs = append(bufs, f.mem(p.offsets), f.mem(p.data))
	case scalar.KindList:
		bufs = append(bufs, f.mem(p.offsets))
		children = append(children, f.data(i+1))
	case scalar.KindMap:
		bufs = append(bufs, f.mem(p.offsets))
		pair := []arrow.ArrayData{f.data(i + 1), f.data(f.parts[i+1].next)}
		entries := array.NewData(t.(*arrow.MapType).Elem(), f.parts[i+1].n, []*memory.Buffer{nil}, pair, 0, 0)
		for _, c := range pair {
			c.Release()
		}
		children = append(children, entries)
	case scalar.KindStruct:
		at := i + 1
		for range p.t.Fields {
			children = append(children, f.data(at))
			at = f.parts[at].next
		}
	default:
		bufs = append(bufs, f.mem(p.data))
	}
	d := array.NewData(t, p.n, bufs, children, p.nulls, 0)
	for _, c := range children {
		c.Release()
	}
	return d
}
