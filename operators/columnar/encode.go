package columnar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/bitutil"

	"github.com/headrace/headrace/internal/scalar"
)

// maxPayload bounds what an Encoder makes; the log takes far less.
const maxPayload = 1 << 30

var (
	// ErrColumn is an array that is not of its column's type, or holds what the column cannot.
	ErrColumn = errors.New("columnar: an array does not fit its column")
	// ErrTooLarge is rows that no payload holds at once.
	ErrTooLarge = errors.New("columnar: too many bytes for one payload")
)

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrColumn, fmt.Sprintf(format, args...))
}

// What a piece does with its source.
type pieceOp uint8

const (
	opCopy    pieceOp = iota // bytes as they are
	opZero                   // zero bytes
	opBits                   // bits from bit at on
	opOffsets                // n+1 offsets from the at-th on, less base
	opWide                   // the same of 8 bytes each
	opScale                  // int64 values from the at-th on, times mul
	opIndex                  // dictionary indexes of width bytes from the at-th on, as 4 bytes
)

// A piece is one buffer to write.
type piece struct {
	op    pieceOp
	size  int // bytes written
	src   []byte
	valid []byte // opIndex: where the indexes of nulls are not to be read
	at, n int
	base  int64 // opOffsets, opWide: subtracted; opScale: the factor; opIndex: bytes of one
}

// An Encoder writes payloads of one schema: Plan looks at the rows and says how many bytes they take, Append
// writes them, which copies each column once. Its memory is reused.
type Encoder struct {
	schema *Schema
	rows   int
	flags  uint32
	parts  []byte
	pieces []piece
	size   int
}

// NewEncoder makes an encoder.
func NewEncoder(s *Schema) *Encoder { return &Encoder{schema: s} }

// Schema is what the encoder writes.
func (e *Encoder) Schema() *Schema { return e.schema }

// Plan prepares rows [from, to) of columns, one for each of the schema, and answers the size of their payload.
// times and behind are the rows' event times and watermarks, ns, as long as the columns; nil: none. The arrays
// and slices must stay as they are until Append. A nil column is all null.
//
// A column may come in any form that FromArrow takes for its type; names of struct fields are not compared. Dictionaries larger than the rows are written
// out.
//
// Errors: ErrColumn, ErrTooLarge.
func (e *Encoder) Plan(columns []arrow.Array, from, to int, times, behind []int64) (size int, err error) {
	if len(columns) != len(e.schema.columns) {
		return 0, unfit("%d columns instead of %d", len(columns), len(e.schema.columns))
	}
	if !littleEndian {
		return 0, unfit("columns are written on little-endian machines only")
	}
	if to-from > MaxRows {
		return 0, ErrTooLarge
	}
	e.rows, e.flags, e.parts, e.pieces = to-from, 0, e.parts[:0], e.pieces[:0]
	for i, c := range columns {
		col := &e.schema.columns[i]
		switch {
		case c == nil && !col.Type.Nullable:
			err = unfit("there is none, and it has no nulls")
		case c == nil:
			e.nulls(&col.Type, e.rows)
		case from < 0 || from > to || to > c.Len():
			err = unfit("rows %d to %d of %d", from, to, c.Len())
		default:
			err = e.part(&col.Type, c.Data(), c.Data().Offset()+from, e.rows, nil)
		}
		if err != nil {
			return 0, fmt.Errorf("%w (column %s)", err, col.Name)
		}
	}
	for i, extra := range [][]int64{times, behind} {
		if extra == nil {
			continue
		}
		if to > len(extra) {
			return 0, unfit("%d event times for row %d", len(extra), to)
		}
		e.flags |= 1 << i
		e.describe(e.rows, 0, plain)
		e.zero(0)
		e.copy(arrow.Int64Traits.CastToBytes(extra[from:to]))
	}
	e.size = align(headSize + len(e.parts) + 4*len(e.pieces))
	for i := range e.pieces {
		if e.size += align(e.pieces[i].size); e.size > maxPayload {
			return 0, ErrTooLarge
		}
	}
	e.size += PrefixSize
	return e.size, nil
}

func (e *Encoder) describe(n, nulls int, encoding uint32) {
	e.parts = binary.LittleEndian.AppendUint32(e.parts, uint32(n))
	e.parts = binary.LittleEndian.AppendUint32(e.parts, uint32(nulls))
	e.parts = binary.LittleEndian.AppendUint32(e.parts, encoding)
}

func (e *Encoder) copy(b []byte) {
	e.pieces = append(e.pieces, piece{op: opCopy, size: len(b), src: b})
}
func (e *Encoder) zero(n int) { e.pieces = append(e.pieces, piece{op: opZero, size: n}) }

func (e *Encoder) bits(b []byte, at, n int) {
	if at%8 == 0 && n%8 == 0 {
		e.copy(b[at/8 : (at+n)/8])
		return
	}
	e.pieces = append(e.pieces, piece{op: opBits, size: (n + 7) / 8, src: b, at: at, n: n})
}

// A mask is the validity of a struct over the rows of its fields.
type mask struct {
	bits []byte
	at   int
}

func buffer(d arrow.ArrayData, i int) []byte {
	if bufs := d.Buffers(); i < len(bufs) && bufs[i] != nil {
		return bufs[i].Bytes()
	}
	return nil
}

// part plans values [at, at+n) of d, counted in its buffers. parent is the struct that they are a field of, or
// nil.
func (e *Encoder) part(t *scalar.Type, d arrow.ArrayData, at, n int, parent *mask) error {
	id := d.DataType().ID()
	if id == arrow.NULL {
		if !t.Nullable && n > 0 {
			return unfit("nulls where there are none")
		}
		e.nulls(t, n)
		return nil
	}
	valid, nulls := buffer(d, 0), 0
	if valid != nil && d.NullN() != 0 {
		nulls = n - bitutil.CountSetBits(valid, at, n)
	}
	if nulls > 0 && !t.Nullable {
		for i := range n {
			if !bitutil.BitIsSet(valid, at+i) && (parent == nil || bitutil.BitIsSet(parent.bits, parent.at+i)) {
				return unfit("row %d is null, and %s has no nulls", i, t)
			}
		}
	}
	if id == arrow.DICTIONARY {
		return e.dictionary(t, d, at, n, nulls)
	}
	e.describe(n, nulls, plain)
	if nulls > 0 {
		e.bits(valid, at, n)
	} else {
		e.zero(0)
	}
	switch t.Kind {
	case scalar.KindString, scalar.KindBytes:
		return e.text(t, d, at, n)
	case scalar.KindList, scalar.KindMap:
		if t.Kind == scalar.KindList && id != arrow.LIST || t.Kind == scalar.KindMap && id != arrow.MAP {
			return mismatch(t, d)
		}
		lo, hi, err := e.offsets(d, at, n)
		if err != nil {
			return err
		}
		c := d.Children()[0]
		if t.Kind == scalar.KindList {
			return e.part(t.Elem, c, c.Offset()+lo, hi-lo, nil)
		}
		// The entries are a struct without nulls.
		k, v := c.Children()[0], c.Children()[1]
		if err := e.part(t.Key, k, k.Offset()+c.Offset()+lo, hi-lo, nil); err != nil {
			return fmt.Errorf("%w (keys)", err)
		}
		return e.part(t.Elem, v, v.Offset()+c.Offset()+lo, hi-lo, nil)
	case scalar.KindStruct:
		st, ok := d.DataType().(*arrow.StructType)
		if !ok || st.NumFields() != len(t.Fields) {
			return mismatch(t, d)
		}
		var m *mask
		if nulls > 0 {
			m = &mask{valid, at}
		}
		for i := range t.Fields {
			c := d.Children()[i]
			if err := e.part(&t.Fields[i].Type, c, c.Offset()+at, n, m); err != nil {
				return fmt.Errorf("%w (field %s)", err, t.Fields[i].Name)
			}
		}
		return nil
	}
	return e.fixed(t, d, at, n, nulls)
}

func mismatch(t *scalar.Type, d arrow.ArrayData) error {
	return unfit("%s is not %s", d.DataType(), t.NonNull())
}

func (e *Encoder) fixed(t *scalar.Type, d arrow.ArrayData, at, n, nulls int) error {
	data := buffer(d, 1)
	switch dt := d.DataType().(type) {
	case *arrow.TimestampType:
		if t.Kind != scalar.KindTime {
			return mismatch(t, d)
		}
		if mul := int64(dt.Unit.Multiplier()); mul != 1 {
			return e.scaled(d, at, n, nulls, mul)
		}
	case *arrow.DurationType:
		if t.Kind != scalar.KindDuration || dt.Unit != arrow.Nanosecond {
			return mismatch(t, d)
		}
	case *arrow.Decimal128Type:
		if t.Kind != scalar.KindDecimal || dt.Precision != t.Precision || dt.Scale != t.Scale {
			return mismatch(t, d)
		}
	default:
		if kinds[dt.ID()] != t.Kind {
			return mismatch(t, d)
		}
	}
	if n == 0 {
		e.zero(0)
		return nil
	}
	if t.Kind == scalar.KindBool {
		e.bits(data, at, n)
		return nil
	}
	w := scalar.Width(t.Kind)
	e.copy(data[at*w : (at+n)*w])
	return nil
}

// scaled plans times of a coarser unit.
func (e *Encoder) scaled(d arrow.ArrayData, at, n, nulls int, mul int64) error {
	src := arrow.Int64Traits.CastFromBytes(buffer(d, 1))
	limit := math.MaxInt64 / mul
	valid := buffer(d, 0)
	for i, v := range src[at : at+n] {
		if (v > limit || v < -limit) && (nulls == 0 || bitutil.BitIsSet(valid, at+i)) {
			return unfit("the time of row %d is outside the years 1677 to 2262", i)
		}
	}
	e.pieces = append(e.pieces, piece{op: opScale, size: 8 * n, src: buffer(d, 1), at: at, n: n, base: mul})
	return nil
}

// offsets plans those of n lists or texts and answers the range of what they hold.
func (e *Encoder) offsets(d arrow.ArrayData, at, n int) (lo, hi int, err error) {
	src := buffer(d, 1)
	if n == 0 {
		e.zero(4)
		return 0, 0, nil
	}
	if id := d.DataType().ID(); id == arrow.LARGE_STRING || id == arrow.LARGE_BINARY {
		o := arrow.Int64Traits.CastFromBytes(src)
		lo, hi = int(o[at]), int(o[at+n])
		e.pieces = append(e.pieces, piece{op: opWide, size: 4 * (n + 1), src: src, at: at, n: n, base: int64(lo)})
	} else {
		o := arrow.Int32Traits.CastFromBytes(src)
		lo, hi = int(o[at]), int(o[at+n])
		if lo == 0 {
			e.copy(src[4*at : 4*(at+n+1)])
		} else {
			e.pieces = append(e.pieces, piece{op: opOffsets, size: 4 * (n + 1), src: src, at: at, n: n, base: int64(lo)})
		}
	}
	if hi-lo > maxPayload {
		return 0, 0, ErrTooLarge
	}
	return lo, hi, nil
}

func (e *Encoder) text(t *scalar.Type, d arrow.ArrayData, at, n int) error {
	if kinds[d.DataType().ID()] != t.Kind {
		return mismatch(t, d)
	}
	lo, hi, err := e.offsets(d, at, n)
	if err == nil {
		e.copy(buffer(d, 2)[lo:hi])
	}
	return err
}

// dictionary plans strings by their indexes, or the strings themselves where that is shorter or the dictionary
// has nulls.
func (e *Encoder) dictionary(t *scalar.Type, d arrow.ArrayData, at, n, nulls int) error {
	dt := d.DataType().(*arrow.DictionaryType) //nolint:errcheck // it is one
	if t.Kind != scalar.KindString || dt.ValueType.ID() != arrow.STRING {
		return mismatch(t, d)
	}
	dict := d.Dictionary()
	if dict.Len() > n || dict.NullN() != 0 {
		return e.writtenOut(t, d, at, n)
	}
	w := dt.IndexType.(arrow.FixedWidthDataType).Bytes() //nolint:errcheck // indexes are integers
	e.describe(n, nulls, dictionary)
	index := piece{op: opIndex, size: 4 * n, src: buffer(d, 1), at: at, n: n, base: int64(w)}
	if nulls > 0 {
		e.bits(buffer(d, 0), at, n)
		index.valid = buffer(d, 0)
	} else {
		e.zero(0)
	}
	if nulls == 0 && w == 4 {
		e.copy(index.src[4*at : 4*(at+n)])
	} else {
		e.pieces = append(e.pieces, index)
	}
	e.describe(dict.Len(), 0, plain)
	e.zero(0)
	return e.text(t, dict, dict.Offset(), dict.Len())
}

// writtenOut plans a dictionary array as the strings that it stands for.
func (e *Encoder) writtenOut(t *scalar.Type, d arrow.ArrayData, at, n int) error {
	sub := array.NewSliceData(d, int64(at-d.Offset()), int64(at-d.Offset()+n))
	defer sub.Release()
	arr := array.NewDictionaryData(sub)
	defer arr.Release()
	words := array.NewStringData(d.Dictionary())
	defer words.Release()
	valid := make([]byte, (n+7)/8)
	offsets := make([]byte, 4, 4*(n+1))
	var text []byte
	nulls := 0
	for i := range n {
		if k := 0; arr.IsValid(i) {
			if k = arr.GetValueIndex(i); words.IsValid(k) {
				text = append(text, words.Value(k)...)
				bitutil.SetBit(valid, i)
			} else {
				nulls++
			}
		} else {
			nulls++
		}
		if len(text) > maxPayload {
			return ErrTooLarge
		}
		offsets = binary.LittleEndian.AppendUint32(offsets, uint32(len(text)))
	}
	if nulls > 0 && !t.Nullable {
		return unfit("%d rows are null, and %s has no nulls", nulls, t)
	}
	e.describe(n, nulls, plain)
	if nulls == 0 {
		valid = nil
	}
	e.copy(valid)
	e.copy(offsets)
	e.copy(text)
	return nil
}

// nulls plans n nulls.
func (e *Encoder) nulls(t *scalar.Type, n int) {
	e.describe(n, n, plain)
	e.zero((n + 7) / 8)
	switch t.Kind {
	case scalar.KindString, scalar.KindBytes:
		e.zero(4 * (n + 1))
		e.zero(0)
	case scalar.KindList:
		e.zero(4 * (n + 1))
		e.none(t.Elem)
	case scalar.KindMap:
		e.zero(4 * (n + 1))
		e.none(t.Key)
		e.none(t.Elem)
	case scalar.KindStruct:
		for i := range t.Fields {
			e.nulls(&t.Fields[i].Type, n)
		}
	default:
		e.zero(dataBytes(t.Kind, n))
	}
}

// none plans a part without values.
func (e *Encoder) none(t *scalar.Type) { e.nulls(t, 0) }

// Append writes the payload that was planned to the end of dst.
func (e *Encoder) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, e.schema.id)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.size-PrefixSize))
	dst = append(dst, Version, 0, 0, 0)
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.rows))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.parts)/partSize))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.pieces)))
	dst = binary.LittleEndian.AppendUint32(dst, e.flags)
	dst = append(dst, e.parts...)
	for i := range e.pieces {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.pieces[i].size))
	}
	dst = pad(dst, start)
	for i := range e.pieces {
		dst = e.pieces[i].append(dst)
		dst = pad(dst, start)
	}
	clear(e.pieces) // lets go of the arrays
	e.pieces = e.pieces[:0]
	return dst
}

var zeros [alignment]byte

// pad fills dst up to the next boundary, counted from start.
func pad(dst []byte, start int) []byte {
	n := len(dst) - start
	return append(dst, zeros[:align(n)-n]...)
}

func (p *piece) append(dst []byte) []byte {
	if p.op == opCopy {
		return append(dst, p.src...)
	}
	from := len(dst)
	for len(dst)-from < p.size {
		dst = append(dst, zeros[:min(alignment, p.size-(len(dst)-from))]...)
	}
	out := dst[from:]
	switch p.op {
	case opBits:
		bitutil.CopyBitmap(p.src, p.at, p.n, out, 0)
	case opOffsets:
		o, base := lanes[int32](out), int32(p.base)
		for i, v := range lanes[int32](p.src)[p.at : p.at+p.n+1] {
			o[i] = v - base
		}
	case opWide:
		o := lanes[int32](out)
		for i, v := range lanes[int64](p.src)[p.at : p.at+p.n+1] {
			o[i] = int32(v - p.base)
		}
	case opScale:
		o := lanes[int64](out)
		for i, v := range lanes[int64](p.src)[p.at : p.at+p.n] {
			o[i] = v * p.base
		}
	case opIndex:
		o := lanes[int32](out)
		for i := range o {
			if p.valid == nil || bitutil.BitIsSet(p.valid, p.at+i) {
				o[i] = p.index(p.at + i)
			}
		}
	case opCopy, opZero:
	}
	return dst
}

// index reads one dictionary index.
func (p *piece) index(i int) int32 {
	switch p.base {
	case 1:
		return int32(p.src[i])
	case 2:
		return int32(binary.LittleEndian.Uint16(p.src[2*i:]))
	case 4:
		return int32(binary.LittleEndian.Uint32(p.src[4*i:]))
	}
	return int32(binary.LittleEndian.Uint64(p.src[8*i:]))
}
