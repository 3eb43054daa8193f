package record

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// A Builder makes batches. It is reused: Finish leaves it empty with its memory and its producer and codec
// settings kept. The zero value is ready and makes uncompressed batches without a producer.
type Builder struct {
	buf       []byte // records, after room for the header
	count     int32
	next      int32 // lowest offset delta that the next record may have
	lastDelta int32 // of the batch, if setLast
	setLast   bool
	first     int64 // ms
	max       int64 // ms
	attr      int16

	producerID    int64 // plus one, so that the zero value means none
	producerEpoch int16
	baseSequence  int32
	base          int64
	epoch         int32
	codec         Codec
}

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder { return &Builder{} }

// Reset drops what was appended. Producer, codec and base settings stay.
func (b *Builder) Reset() {
	b.buf = b.buf[:0]
	b.count, b.next, b.lastDelta, b.setLast = 0, 0, 0, false
	b.first, b.max, b.attr = 0, 0, 0
}

// SetProducer makes the following batches carry an idempotent producer's id, epoch and the sequence of their first
// record. An id of -1 means none.
func (b *Builder) SetProducer(id int64, epoch int16, seq int32) {
	b.producerID, b.producerEpoch, b.baseSequence = id+1, epoch, seq
}

// SetCodec makes Finish compress. An unknown codec counts as None.
func (b *Builder) SetCodec(c Codec) {
	if c > Zstd {
		c = None
	}
	b.codec = c
}

// SetBase sets the base offset and leader epoch of the following batches. Both are zero otherwise; whoever stores
// the batch patches them.
func (b *Builder) SetBase(base int64, epoch int32) { b.base, b.epoch = base, epoch }

// SetControl makes the batch being built a control batch.
func (b *Builder) SetControl() { b.attr |= AttrControl }

// SetTransactional makes the batch being built part of a transaction.
func (b *Builder) SetTransactional() { b.attr |= AttrTransactional }

// SetLastOffsetDelta sets the offset delta that the batch ends at, for batches whose last records were filtered
// out. It has no effect when a later record is appended.
func (b *Builder) SetLastOffsetDelta(delta int32) { b.lastDelta, b.setLast = delta, true }

// Append adds a record with the next offset delta. ts is in ms; a nil key or value is null. All bytes are copied.
func (b *Builder) Append(ts int64, key, value []byte, headers []KV) {
	b.AppendAt(b.next, ts, key, value, headers)
}

// AppendAt adds a record with an explicit offset delta, which must be above that of the record before; a lower one
// is raised to the next free delta, so that the batch is always in order.
func (b *Builder) AppendAt(delta int32, ts int64, key, value []byte, headers []KV) {
	size := varintLen(int64(len(headers)))
	for i := range headers {
		h := &headers[i]
		size += varintLen(int64(len(h.Key))) + len(h.Key) + nullableLen(h.Value)
	}
	delta, tsDelta := b.begin(delta, ts)
	b.frame(delta, tsDelta, key, value, size)
	b.buf = appendVarint(b.buf, int64(len(headers)))
	for i := range headers {
		h := &headers[i]
		b.buf = appendVarint(b.buf, int64(len(h.Key)))
		b.buf = append(b.buf, h.Key...)
		b.buf = appendNullable(b.buf, h.Value)
	}
}

// AppendRaw is AppendAt with a header section taken unchanged from Reader.HeaderBytes.
func (b *Builder) AppendRaw(delta int32, ts int64, key, value, headers []byte) {
	delta, tsDelta := b.begin(delta, ts)
	if len(headers) == 0 {
		headers = noHeaders
	}
	b.frame(delta, tsDelta, key, value, len(headers))
	b.buf = append(b.buf, headers...)
}

var noHeaders = []byte{0}

// begin counts a record and returns its deltas.
func (b *Builder) begin(delta int32, ts int64) (int32, int64) {
	if len(b.buf) == 0 {
		b.buf = slices.Grow(b.buf, 512)[:HeaderSize]
	}
	if b.count == 0 {
		b.first, b.max = ts, ts
	}
	b.max = max(b.max, ts)
	delta = max(delta, b.next)
	b.count++
	b.next = delta + 1
	return delta, ts - b.first
}

// frame writes everything of a record up to its headers, which will take headerSize bytes.
func (b *Builder) frame(delta int32, tsDelta int64, key, value []byte, headerSize int) {
	length := 1 + varintLen(tsDelta) + varintLen(int64(delta)) + nullableLen(key) + nullableLen(value) + headerSize
	n := len(b.buf)
	buf := slices.Grow(b.buf, binary.MaxVarintLen64+length)
	buf = buf[:cap(buf)]
	n += putVarint(buf[n:], int64(length))
	buf[n] = 0
	n++
	n += putVarint(buf[n:], tsDelta)
	n += putVarint(buf[n:], int64(delta))
	n += putNullable(buf[n:], key)
	n += putNullable(buf[n:], value)
	b.buf = buf[:n]
}

// Len is the number of records appended.
func (b *Builder) Len() int { return int(b.count) }

// Size is the number of bytes that Finish would return without compression.
func (b *Builder) Size() int { return max(HeaderSize, len(b.buf)) }

// Finish returns the batch, sealed, in fresh memory that the caller owns, and leaves the Builder empty. A batch
// without records is valid if SetLastOffsetDelta was called: it stands for offsets whose records are gone.
func (b *Builder) Finish() []byte {
	if len(b.buf) == 0 {
		b.buf = slices.Grow(b.buf, HeaderSize)[:HeaderSize]
	}
	last := b.next - 1
	if b.setLast {
		last = max(last, b.lastDelta)
	}
	h := Header{
		BaseOffset: b.base, LeaderEpoch: b.epoch, Magic: Magic,
		Attributes: b.attr, LastOffsetDelta: last,
		FirstTimestamp: b.first, MaxTimestamp: b.max,
		ProducerID: b.producerID - 1, ProducerEpoch: b.producerEpoch, BaseSequence: b.baseSequence,
		Count: b.count,
	}
	if h.ProducerID < 0 {
		h.ProducerID, h.ProducerEpoch, h.BaseSequence = -1, -1, -1
	}
	var out []byte
	if b.codec != None && b.count > 0 {
		packed, err := compress(make([]byte, HeaderSize, HeaderSize+len(b.buf)/2), b.buf[HeaderSize:], b.codec)
		if err == nil {
			out = packed
			h.Attributes |= int16(b.codec)
		}
	}
	if out == nil {
		out = append([]byte(nil), b.buf...) // unlike make and copy, clears nothing first
	}
	PutHeader(out, h)
	Seal(out)
	b.Reset()
	return out
}

func appendNullable(dst, v []byte) []byte {
	if v == nil {
		return append(dst, 1) // varint of -1
	}
	dst = appendVarint(dst, int64(len(v)))
	return append(dst, v...)
}

func nullableLen(v []byte) int {
	if v == nil {
		return 1
	}
	return varintLen(int64(len(v))) + len(v)
}

// putNullable writes what appendNullable appends, into b.
func putNullable(b, v []byte) int {
	if v == nil {
		b[0] = 1
		return 1
	}
	n := putVarint(b, int64(len(v)))
	return n + copy(b[n:], v)
}

func putVarint(b []byte, v int64) int {
	u := zigzag(v)
	if u < 0x80 {
		b[0] = byte(u)
		return 1
	}
	n := 0
	for ; u >= 0x80; n++ {
		b[n] = byte(u) | 0x80
		u >>= 7
	}
	b[n] = byte(u)
	return n + 1
}

func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

func appendVarint(dst []byte, v int64) []byte {
	u := zigzag(v)
	for u >= 0x80 {
		dst = append(dst, byte(u)|0x80)
		u >>= 7
	}
	return append(dst, byte(u))
}

func varintLen(v int64) int { return (bits.Len64(zigzag(v)|1) + 6) / 7 }
