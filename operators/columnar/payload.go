package columnar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/headrace/headrace/internal/scalar"
)

// Sizes and positions of FORMAT.md.
const (
	// PrefixSize is the number of bytes before the frame.
	PrefixSize = 16
	// Version is the format that this package writes and reads.
	Version = 1
	// MaxRows bounds the rows of a payload, whose memory a reader takes for each although a column of one bit does
	// not.
	MaxRows = 1 << 20

	headSize  = 16
	partSize  = 12
	alignment = 64
)

// Bits of the frame's flags.
const (
	flagTimes  = 1 << 0 // event time of each row, ns
	flagBehind = 1 << 1 // watermark of the row's partition before it, ns
	flagsKnown = flagTimes | flagBehind
)

// Encodings of a part.
const (
	plain      = 0
	dictionary = 1 // strings as indexes into the part that follows
)

var (
	// ErrPayload is bytes that are no payload, or that hold values which a column of the schema cannot have.
	ErrPayload = errors.New("columnar: malformed payload")
	// ErrOtherSchema is a payload of another schema.
	ErrOtherSchema = errors.New("columnar: the payload has another schema")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrPayload, fmt.Sprintf(format, args...))
}

// littleEndian says whether this machine's numbers lie in memory as the format has them.
var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// SchemaID is the schema that a payload names. ok is false if there is none.
func SchemaID(payload []byte) (id uint64, ok bool) {
	if len(payload) < PrefixSize {
		return 0, false
	}
	return binary.LittleEndian.Uint64(payload), true
}

// A span is bytes of the frame.
type span struct{ at, n int }

// A part is one column or a nested part of one, as the tables of a frame describe it.
type part struct {
	t       *scalar.Type
	n       int // values
	nulls   int
	dict    bool
	valid   span // empty: no nulls
	offsets span // strings, bytes, lists, maps
	data    span // values; of a dictionary-encoded string its indexes
	next    int  // index of the part after this one and its nested parts
}

// A Frame is a payload taken apart. It points into the payload, as do the arrays made of it; the payload must
// not change as long as any of them is used. The zero value is ready for Open, which may be called again and
// again.
type Frame struct {
	schema *Schema
	b      []byte // the frame
	rows   int
	flags  uint32
	parts  []part
	roots  []int // of the columns, then times and behind if they are there

	// While opening.
	table   []byte // of parts, what is left
	lengths []byte // of buffers, what is left
	at      int    // position of the next buffer
}

var int64Type = scalar.TypeInt64

// Open takes a payload of schema s apart. Every length of the tables is checked: no part reaches outside the
// payload, and all agree with each other and with the number of rows. What lies inside the buffers is left to
// Check, but for the last offset of each list, which its elements must agree with. The Frame keeps payload.
//
// Errors: ErrOtherSchema, ErrPayload.
func (f *Frame) Open(s *Schema, payload []byte) error {
	*f = Frame{schema: s, parts: f.parts[:0], roots: f.roots[:0]}
	if !littleEndian {
		return malformed("columns are read on little-endian machines only")
	}
	if len(payload) < PrefixSize+headSize {
		return malformed("%d bytes", len(payload))
	}
	if id := binary.LittleEndian.Uint64(payload); id != s.id {
		return fmt.Errorf("%w: %016x instead of %016x", ErrOtherSchema, id, s.id)
	}
	if v := payload[12]; v != Version || payload[13]|payload[14]|payload[15] != 0 {
		return malformed("version %d; this is version %d", v, Version)
	}
	f.b = payload[PrefixSize:len(payload):len(payload)]
	if n := binary.LittleEndian.Uint32(payload[8:]); int64(n) != int64(len(f.b)) {
		return malformed("a frame of %d bytes that says %d", len(f.b), n)
	}
	rows, parts := binary.LittleEndian.Uint32(f.b), binary.LittleEndian.Uint32(f.b[4:])
	buffers := binary.LittleEndian.Uint32(f.b[8:])
	f.flags = binary.LittleEndian.Uint32(f.b[12:])
	end := headSize + partSize*int64(parts) + 4*int64(buffers)
	switch {
	case rows > MaxRows:
		return malformed("%d rows; %d are possible", rows, MaxRows)
	case f.flags&^flagsKnown != 0:
		return malformed("flags %#x", f.flags)
	case end > int64(len(f.b)):
		return malformed("tables of %d parts and %d buffers in %d bytes", parts, buffers, len(f.b))
	}
	f.rows = int(rows)
	f.table, f.lengths = f.b[headSize:headSize+partSize*int(parts)], f.b[headSize+partSize*int(parts):end]
	f.at = align(int(end))
	for i := range s.columns {
		if err := f.root(&s.columns[i].Type, s.columns[i].Name); err != nil {
			return err
		}
	}
	for _, flag := range [...]uint32{flagTimes, flagBehind} {
		if f.flags&flag == 0 {
			continue
		}
		if err := f.root(&int64Type, "event time"); err != nil {
			return err
		}
	}
	switch {
	case len(f.table) > 0 || len(f.lengths) > 0:
		return malformed("%d parts and %d buffers more than the schema has", len(f.table)/partSize, len(f.lengths)/4)
	case f.at != align(len(f.b)) || f.at-len(f.b) >= alignment:
		return malformed("buffers end at %d in a frame of %d bytes", f.at, len(f.b))
	}
	return nil
}

func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

func (f *Frame) root(t *scalar.Type, name string) error {
	f.roots = append(f.roots, len(f.parts))
	if err := f.open(t, f.rows, t.Nullable); err != nil {
		return fmt.Errorf("%w (column %s)", err, name)
	}
	return nil
}

// buffer takes the next buffer, which must have n bytes, or any number if n is below 0.
func (f *Frame) buffer(n int) (span, error) {
	if len(f.lengths) < 4 {
		return span{}, malformed("a buffer is missing")
	}
	have := int(binary.LittleEndian.Uint32(f.lengths))
	f.lengths = f.lengths[4:]
	switch {
	case n >= 0 && have != n:
		return span{}, malformed("a buffer of %d bytes instead of %d", have, n)
	case have > 0 && (f.at > len(f.b) || have > len(f.b)-f.at):
		return span{}, malformed("a buffer of %d bytes at %d of %d", have, f.at, len(f.b))
	}
	s := span{f.at, have}
	f.at += align(have)
	return s, nil
}

// open takes one part with what is nested in it. It has n values, nulls among them only if mayNull.
func (f *Frame) open(t *scalar.Type, n int, mayNull bool) error {
	if len(f.table) < partSize {
		return malformed("a part is missing")
	}
	count, nulls := binary.LittleEndian.Uint32(f.table), binary.LittleEndian.Uint32(f.table[4:])
	encoding := binary.LittleEndian.Uint32(f.table[8:])
	f.table = f.table[partSize:]
	switch {
	case int64(count) != int64(n):
		return malformed("%d values instead of %d", count, n)
	case int64(nulls) > int64(n):
		return malformed("%d nulls in %d values", nulls, n)
	case nulls > 0 && !mayNull:
		return malformed("%d nulls where there are none", nulls)
	case encoding == dictionary && t.Kind != scalar.KindString || encoding > dictionary:
		return malformed("encoding %d of %s", encoding, t)
	}
	i := len(f.parts)
	f.parts = append(f.parts, part{t: t, n: n, nulls: int(nulls), dict: encoding == dictionary})
	p := part{t: t, n: n, nulls: int(nulls), dict: encoding == dictionary}
	bits := 0
	if nulls > 0 {
		bits = (n + 7) / 8
	}
	var err error
	if p.valid, err = f.buffer(bits); err != nil {
		return err
	}
	switch {
	case p.dict:
		if p.data, err = f.buffer(4 * n); err != nil {
			return err
		}
		if len(f.table) < partSize {
			return malformed("the dictionary is missing")
		}
		size := int(binary.LittleEndian.Uint32(f.table))
		if size > 1<<31-2 {
			return malformed("a dictionary of %d", size)
		}
		if binary.LittleEndian.Uint32(f.table[8:]) != plain {
			return malformed("a dictionary of a dictionary")
		}
		err = f.open(t, size, false)
	case t.Kind == scalar.KindString || t.Kind == scalar.KindBytes:
		if p.offsets, err = f.buffer(4 * (n + 1)); err != nil {
			return err
		}
		if p.data, err = f.buffer(-1); err == nil && int(f.lastOffset(p.offsets)) != p.data.n {
			err = malformed("%d bytes of text, the offsets end at %d", p.data.n, f.lastOffset(p.offsets))
		}
	case t.Kind == scalar.KindList || t.Kind == scalar.KindMap:
		if p.offsets, err = f.buffer(4 * (n + 1)); err != nil {
			return err
		}
		elems := int(f.lastOffset(p.offsets))
		if elems < 0 || elems > 8*len(f.b) { // nothing has less than a bit, but a struct without fields
			return malformed("the offsets end at %d", elems)
		}
		if t.Kind == scalar.KindMap {
			if err = f.open(t.Key, elems, false); err != nil {
				return err
			}
		}
		err = f.open(t.Elem, elems, t.Elem.Nullable)
	case t.Kind == scalar.KindStruct:
		for k := range t.Fields {
			// A field without nulls has some where the struct itself is null.
			if err = f.open(&t.Fields[k].Type, n, t.Fields[k].Type.Nullable || nulls > 0); err != nil {
				return err
			}
		}
	default:
		p.data, err = f.buffer(dataBytes(t.Kind, n))
	}
	if err != nil {
		return err
	}
	p.next = len(f.parts)
	f.parts[i] = p
	return nil
}

// dataBytes is the size of the values of a fixed-width kind.
func dataBytes(k scalar.Kind, n int) int {
	if k == scalar.KindBool {
		return (n + 7) / 8
	}
	return n * scalar.Width(k)
}

func (f *Frame) lastOffset(s span) int32 {
	return int32(binary.LittleEndian.Uint32(f.b[s.at+s.n-4:]))
}

// Rows is the number of rows.
func (f *Frame) Rows() int { return f.rows }

// Schema is what Open was given.
func (f *Frame) Schema() *Schema { return f.schema }

func (f *Frame) bytes(s span) []byte {
	if s.n == 0 {
		return nil
	}
	return f.b[s.at : s.at+s.n : s.at+s.n]
}

// lanes sees the bytes of a buffer as numbers. The address need not be a multiple of their size: a payload lies
// in a log entry where it lies.
func lanes[T any](b []byte) []T {
	var zero T
	n := len(b) / int(unsafe.Sizeof(zero))
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}
