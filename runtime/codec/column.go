package codec

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/bitutil"
	"github.com/apache/arrow/go/v15/arrow/decimal128"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A column collects the values of one column, or of a nested part of one, in scratch memory that it
// keeps; build copies them to an Arrow array. A column can be cut back: a record that fails half way,
// and a member that comes twice, are undone like that.
type column struct {
	name   string // as people know it: "person.name", "items[]"
	kind   scalar.Kind
	t      scalar.Type
	null   bool
	layout timeLayout

	n       int
	nulls   []int32 // rows that are null, ascending
	words   []int64 // fixed-width values, floats as bits, decimals as (low, high)
	offsets []int32 // strings, bytes, lists and maps: ends
	data    []byte
	fields  *object   // KindStruct
	elems   []*column // KindList: the element; KindMap: key and value; KindStruct: the fields
}

// A timeLayout says how a time is written.
type timeLayout struct {
	unit   int64 // ns of one, for integers since 1970; 0: text
	layout *scalar.Layout
	zone   *time.Location
	text   string
}

func newColumn(c plan.Column, name string) (*column, error) {
	col := &column{name: name, kind: c.Type.Kind, t: c.Type, null: c.Type.Nullable}
	child := func(i int, t scalar.Type, fallback string) plan.Column {
		m := plan.Column{Name: fallback}
		if i < len(c.Members) {
			m = c.Members[i]
		}
		m.Type = t
		return m
	}
	add := func(m plan.Column, name string) error {
		e, err := newColumn(m, name)
		col.elems = append(col.elems, e)
		return err
	}
	switch c.Type.Kind {
	case scalar.KindInvalid, scalar.KindNull:
		return nil, fmt.Errorf("column %s has no type", name)
	case scalar.KindTime:
		l, err := newTimeLayout(c)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
		col.layout = l
	case scalar.KindList:
		// The members of a list are those of its element.
		return col, add(plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone}, name+"[]")
	case scalar.KindMap:
		if k := c.Type.Key.Kind; k == scalar.KindList || k == scalar.KindMap || k == scalar.KindStruct {
			return nil, fmt.Errorf("column %s: a map by %s", name, c.Type.Key)
		}
		if err := add(plan.Column{Type: *c.Type.Key}, name+" (key)"); err != nil {
			return nil, err
		}
		return col, add(plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone}, name+"[]")
	case scalar.KindStruct:
		names := make([]string, len(c.Type.Fields))
		for i, f := range c.Type.Fields {
			m := child(i, f.Type, f.Name)
			names[i] = inputName(m)
			if err := add(m, name+"."+f.Name); err != nil {
				return nil, err
			}
		}
		col.fields = newObject(names, col.elems)
	}
	return col, nil
}

func newTimeLayout(c plan.Column) (timeLayout, error) {
	l := timeLayout{text: c.TimeLayout, unit: scalar.EpochUnit(c.TimeLayout)}
	if c.TimeLayout == "" || l.unit != 0 {
		return l, nil
	}
	var err error
	if l.layout, err = scalar.ParseLayout(c.TimeLayout); err != nil {
		return l, err
	}
	l.zone, err = scalar.Zone(c.TimeZone)
	return l, err
}

func (c *column) appendWord(w int64) {
	c.words = append(c.words, w)
	c.n++
}

func (c *column) appendDec(d scalar.Int128) {
	c.words = append(c.words, int64(d.Lo), d.Hi)
	c.n++
}

func (c *column) appendBytes(b []byte) bool {
	if len(c.data)+len(b) > math.MaxInt32 {
		return false
	}
	c.data = append(c.data, b...)
	c.endBytes()
	return true
}

// endBytes ends the value whose bytes were appended to data.
func (c *column) endBytes() {
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.n++
}

func (c *column) appendBytesOrNull(b []byte) {
	if b == nil || !c.appendBytes(b) {
		c.appendNull()
	}
}

// appendNull appends a null, whatever the column allows: nested parts of a null need it.
func (c *column) appendNull() {
	c.nulls = append(c.nulls, int32(c.n))
	switch c.kind {
	case scalar.KindString, scalar.KindBytes:
		c.offsets = append(c.offsets, int32(len(c.data)))
	case scalar.KindList, scalar.KindMap:
		c.offsets = append(c.offsets, int32(c.elems[0].n))
	case scalar.KindStruct:
		for _, e := range c.elems {
			e.appendNull()
		}
	case scalar.KindDecimal:
		c.words = append(c.words, 0, 0)
	default:
		c.words = append(c.words, 0)
	}
	c.n++
}

// truncate cuts the column back to n values. Parts of a value that was not finished go too.
func (c *column) truncate(n int) {
	c.n = n
	for len(c.nulls) > 0 && int(c.nulls[len(c.nulls)-1]) >= n {
		c.nulls = c.nulls[:len(c.nulls)-1]
	}
	end := func() int {
		c.offsets = c.offsets[:n]
		if n == 0 {
			return 0
		}
		return int(c.offsets[n-1])
	}
	switch c.kind {
	case scalar.KindString, scalar.KindBytes:
		c.data = c.data[:end()]
	case scalar.KindList, scalar.KindMap:
		m := end()
		for _, e := range c.elems {
			e.truncate(m)
		}
	case scalar.KindStruct:
		for _, e := range c.elems {
			e.truncate(n)
		}
	case scalar.KindDecimal:
		c.words = c.words[:2*n]
	default:
		c.words = c.words[:n]
	}
}

// build copies the values to an array. The caller owns the result; the column stays as it is.
func (c *column) build(alloc memory.Allocator) arrow.ArrayData {
	bufs := make([]*memory.Buffer, 1, 3)
	if len(c.nulls) > 0 {
		b := newBuffer(alloc, int(bitutil.BytesForBits(int64(c.n))))
		bits := b.Bytes()
		memory.Set(bits, 0xff)
		for _, row := range c.nulls {
			bitutil.ClearBit(bits, int(row))
		}
		bufs[0] = b
	}
	var children []arrow.ArrayData
	switch c.kind {
	case scalar.KindString, scalar.KindBytes:
		data := newBuffer(alloc, len(c.data))
		copy(data.Bytes(), c.data)
		bufs = append(bufs, c.buildOffsets(alloc), data)
	case scalar.KindList:
		bufs = append(bufs, c.buildOffsets(alloc))
		children = append(children, c.elems[0].build(alloc))
	case scalar.KindMap:
		bufs = append(bufs, c.buildOffsets(alloc))
		parts := []arrow.ArrayData{c.elems[0].build(alloc), c.elems[1].build(alloc)}
		entries := operators.ArrowType(c.t).(*arrow.MapType).Elem()
		children = append(children, array.NewData(entries, c.elems[0].n, []*memory.Buffer{nil}, parts, 0, 0))
		for _, p := range parts {
			p.Release()
		}
	case scalar.KindStruct:
		for _, e := range c.elems {
			children = append(children, e.build(alloc))
		}
	default:
		bufs = append(bufs, c.buildWords(alloc))
	}
	out := array.NewData(operators.ArrowType(c.t), c.n, bufs, children, len(c.nulls), 0)
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
	for _, ch := range children {
		ch.Release()
	}
	return out
}

func newBuffer(alloc memory.Allocator, n int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(n)
	return b
}

func (c *column) buildOffsets(alloc memory.Allocator) *memory.Buffer {
	b := newBuffer(alloc, 4*(c.n+1))
	out := arrow.Int32Traits.CastFromBytes(b.Bytes())
	out[0] = 0
	copy(out[1:], c.offsets)
	return b
}

func (c *column) buildWords(alloc memory.Allocator) *memory.Buffer {
	switch c.kind {
	case scalar.KindBool:
		b := newBuffer(alloc, int(bitutil.BytesForBits(int64(c.n))))
		memory.Set(b.Bytes(), 0)
		for i, w := range c.words {
			if w != 0 {
				bitutil.SetBit(b.Bytes(), i)
			}
		}
		return b
	case scalar.KindInt8, scalar.KindUint8:
		b := newBuffer(alloc, c.n)
		narrow(arrow.Int8Traits.CastFromBytes(b.Bytes()), c.words)
		return b
	case scalar.KindInt16, scalar.KindUint16:
		b := newBuffer(alloc, 2*c.n)
		narrow(arrow.Int16Traits.CastFromBytes(b.Bytes()), c.words)
		return b
	case scalar.KindInt32, scalar.KindUint32, scalar.KindDate:
		b := newBuffer(alloc, 4*c.n)
		narrow(arrow.Int32Traits.CastFromBytes(b.Bytes()), c.words)
		return b
	case scalar.KindFloat32:
		b := newBuffer(alloc, 4*c.n)
		out := arrow.Float32Traits.CastFromBytes(b.Bytes())
		for i, w := range c.words {
			out[i] = float32(math.Float64frombits(uint64(w)))
		}
		return b
	case scalar.KindDecimal:
		b := newBuffer(alloc, 16*c.n)
		out := arrow.Decimal128Traits.CastFromBytes(b.Bytes())
		for i := range out {
			out[i] = decimal128.New(c.words[2*i+1], uint64(c.words[2*i]))
		}
		return b
	}
	b := newBuffer(alloc, 8*c.n)
	copy(arrow.Int64Traits.CastFromBytes(b.Bytes()), c.words)
	return b
}

func narrow[T int8 | int16 | int32](out []T, words []int64) {
	for i, w := range words {
		out[i] = T(w)
	}
}

// A guess is what the k-th member of the last objects was: its name as it stood, and the field it meant.
type guess struct {
	text  []byte // with quotes
	field int    // -1: unknown
}

// maxGuesses bounds the members whose order is remembered.
const maxGuesses = 64

// An object reads JSON objects into columns: the members of a record, or of a struct. It remembers the
// order in which members came, because producers keep to one.
type object struct {
	names  []string
	index  map[string]int
	fields []*column // nil: not needed
	need   []int     // fields that are
	seen   []uint64  // by field: the serial of the object that had it last
	serial uint64
	order  []guess
}

func newObject(names []string, fields []*column) *object {
	o := &object{names: names, index: make(map[string]int, len(names)), fields: fields, seen: make([]uint64, len(names))}
	for i, n := range names {
		o.index[n] = i
		if fields[i] != nil {
			o.need = append(o.need, i)
		}
	}
	return o
}

// learn remembers that member k was written as text.
func (o *object) learn(k int, text []byte, field int) {
	if k >= maxGuesses || len(text) > 256 {
		return
	}
	for len(o.order) <= k {
		o.order = append(o.order, guess{field: -1})
	}
	o.order[k] = guess{text: slices.Clone(text), field: field}
}
