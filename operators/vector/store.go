package vector

import (
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// maxColumnBytes is the most text that one output column holds; rows beyond it fail.
const maxColumnBytes = 1 << 30

func newBuffer(alloc memory.Allocator, bytes int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(bytes)
	return b
}

// store makes an Arrow array of all lanes of o. Rows outside s, null or failed are null in it. fail is
// told of rows that do not fit.
func (o *vec) store(alloc memory.Allocator, t scalar.Type, s *selection, fail func(i int32, c scalar.Code)) arrow.Array {
	dt := operators.ArrowType(t)
	n := s.n
	if o.form == formAny || o.form == formStruct || t.Kind == scalar.KindNull {
		return o.build(alloc, t, dt, s)
	}
	var values, extra *memory.Buffer
	switch o.form {
	case formInt:
		values = storeInts(alloc, t.Kind, o.i, n)
	case formFloat:
		if t.Kind == scalar.KindFloat32 {
			values = newBuffer(alloc, 4*n)
			dst := arrow.Float32Traits.CastFromBytes(values.Bytes())
			for i := range dst {
				dst[i] = float32(o.f[i])
			}
		} else {
			values = newBuffer(alloc, 8*n)
			copy(arrow.Float64Traits.CastFromBytes(values.Bytes()), o.f)
		}
	case formBool:
		values = newBuffer(alloc, (n+7)/8)
		packBits(values.Bytes(), o.b[:n])
	case formDecimal:
		values = newBuffer(alloc, 16*n)
		dst := arrow.Decimal128Traits.CastFromBytes(values.Bytes())
		for i := range dst {
			dst[i] = operators.Decimal128(o.d[i])
		}
	case formText:
		values, extra = o.storeText(alloc, s, fail)
	}
	bitmap, nulls := o.bitmap(alloc, s)
	buffers := []*memory.Buffer{bitmap, values}
	if extra != nil {
		buffers = append(buffers, extra)
	}
	data := array.NewData(dt, n, buffers, nil, nulls, 0)
	for _, b := range buffers {
		if b != nil {
			b.Release()
		}
	}
	arr := array.MakeFromData(data)
	data.Release()
	return arr
}

func narrow[T int8 | int16 | int32 | uint8 | uint16 | uint32](dst []T, from []int64) {
	for i := range dst {
		dst[i] = T(from[i])
	}
}

func storeInts(alloc memory.Allocator, k scalar.Kind, from []int64, n int) *memory.Buffer {
	var b *memory.Buffer
	switch k {
	case scalar.KindInt8, scalar.KindUint8:
		b = newBuffer(alloc, n)
		narrow(b.Bytes(), from)
	case scalar.KindInt16, scalar.KindUint16:
		b = newBuffer(alloc, 2*n)
		narrow(arrow.Int16Traits.CastFromBytes(b.Bytes()), from)
	case scalar.KindInt32, scalar.KindUint32, scalar.KindDate:
		b = newBuffer(alloc, 4*n)
		narrow(arrow.Int32Traits.CastFromBytes(b.Bytes()), from)
	default:
		b = newBuffer(alloc, 8*n)
		copy(arrow.Int64Traits.CastFromBytes(b.Bytes()), from)
	}
	return b
}

// packBits is the inverse of unpackBits, from bit 0 on.
func packBits(dst []byte, from []bool) {
	i := 0
	for ; i+8 <= len(from); i += 8 {
		s := from[i : i+8 : i+8]
		dst[i/8] = bit(s[0]) | bit(s[1])<<1 | bit(s[2])<<2 | bit(s[3])<<3 | bit(s[4])<<4 | bit(s[5])<<5 | bit(s[6])<<6 | bit(s[7])<<7
	}
	if i < len(from) {
		var b byte
		for j, x := range from[i:] {
			b |= bit(x) << j
		}
		dst[i/8] = b
	}
}

func bit(b bool) byte {
	var x byte
	if b {
		x = 1
	}
	return x
}

// bitmap makes the validity of an output column; nil if every row is valid.
func (o *vec) bitmap(alloc memory.Allocator, s *selection) (*memory.Buffer, int) {
	if o.valid == nil && o.errs == nil && s.dense {
		return nil, 0
	}
	b := newBuffer(alloc, (s.n+7)/8)
	dst := b.Bytes()
	if s.dense && o.errs == nil {
		packBits(dst, o.valid[:s.n])
		nulls := 0
		for _, v := range o.valid[:s.n] {
			nulls += int(1 - bit(v))
		}
		return b, nulls
	}
	clear(dst)
	nulls := s.n
	for _, i := range s.rows {
		if o.alive(i) {
			dst[i/8] |= 1 << (i % 8)
			nulls--
		}
	}
	return b, nulls
}

func (o *vec) storeText(alloc memory.Allocator, s *selection, fail func(i int32, c scalar.Code)) (offsets, data *memory.Buffer) {
	offsets = newBuffer(alloc, 4*(s.n+1))
	off := arrow.Int32Traits.CastFromBytes(offsets.Bytes())
	total := 0
	next := 0
	for _, i := range s.rows {
		for ; next <= int(i); next++ {
			off[next] = int32(total)
		}
		if !o.alive(i) {
			continue
		}
		n := len(o.s.at(i))
		if total+n > maxColumnBytes || total+n > math.MaxInt32 {
			o.fail(i, scalar.CodeLimit)
			fail(i, scalar.CodeLimit)
			continue
		}
		total += n
	}
	for ; next <= s.n; next++ {
		off[next] = int32(total)
	}
	data = newBuffer(alloc, total)
	dst := data.Bytes()
	for _, i := range s.rows {
		if from, to := off[i], off[i+1]; from < to {
			copy(dst[from:to], o.s.at(i))
		}
	}
	return offsets, data
}

// build makes an array value by value.
func (o *vec) build(alloc memory.Allocator, t scalar.Type, dt arrow.DataType, s *selection) arrow.Array {
	b := array.NewBuilder(alloc, dt)
	defer b.Release()
	b.Reserve(s.n)
	next := int32(0)
	for _, i := range s.rows {
		for ; next < i; next++ {
			operators.AppendNull(b)
		}
		next++
		if !o.alive(i) {
			operators.AppendNull(b)
			continue
		}
		operators.AppendValue(b, t, o.get(&t, i))
	}
	for ; int(next) < s.n; next++ {
		operators.AppendNull(b)
	}
	return b.NewArray()
}
