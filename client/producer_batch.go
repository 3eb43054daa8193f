package client

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"time"
)

// The record batch of the Kafka protocol, magic 2: 61 bytes of header, then the records, each a zigzag-varint length
// and that many bytes. All integers of the header are big endian.
//
//	 0 base offset i64       21 attributes i16 ──┐ the checksum    43 producer id i64
//	 8 length i32            23 last delta i32   │ covers all      51 producer epoch i16
//	12 leader epoch i32      27 first time i64   │ from here on    53 base sequence i32
//	16 magic i8 = 2          35 max time i64     ▼                 57 records i32
//	17 CRC-32C u32
const (
	batchHeaderBytes = 61
	// batchRecords bounds the records of a batch, and with them the memory for callbacks.
	batchRecords = 1 << 16
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A produced is what a batch remembers of one record.
type produced struct {
	done func(Ack)
	tag  uint64
}

// A batch is records of one partition on their way. It is filled under its partition's lock; from when it has left
// partition.open it belongs to the producer's delivery lock.
type batch struct {
	part  *partition
	class int    // of buf, in sizeClasses
	buf   []byte // header and records; its capacity is what the batch costs of the buffer
	done  []produced

	rows   int            // of a frame of columns, which has no records; 0: it holds records
	framed func(FrameAck) // may be nil

	first, last int64 // ms; first and largest timestamp
	clock       batchClock
	born        time.Time // when it was opened
	serial      uint64    // place among the batches of the partition
	width       uint64    // serials from serial on that are the batch's own, for its halves if it is split

	numbered bool     // holds identity and sequence, sealed
	ident    identity // of the last sealing
	sequence int32
	unknown  bool  // an attempt may have reached the log
	failure  error // the last refusal

	offset  int64 // of the first record, once acknowledged; -1: not told
	err     error // why it was given up
	flushes []*flush
}

// A batchClock stamps records without a call of the clock for each: while it does not move it is asked for every 16th
// record only, and again whenever the producer's ticks have moved on.
type batchClock struct {
	ms     int64
	tick   uint32
	stride int
	left   int
}

func (c *batchClock) now(tick uint32) int64 {
	if c.left > 0 && c.tick == tick {
		c.left--
		return c.ms
	}
	ms := time.Now().UnixMilli()
	if ms == c.ms {
		c.stride = min(2*c.stride+1, 16)
	} else {
		c.stride = 0
	}
	c.ms, c.tick, c.left = ms, tick, c.stride
	return ms
}

// reset makes the batch empty for a partition.
func (b *batch) reset(part *partition, born time.Time) {
	clear(b.done)
	*b = batch{part: part, class: b.class, buf: b.buf[:batchHeaderBytes], done: b.done[:0], born: born, offset: -1, flushes: b.flushes[:0]}
}

// count is the number of records, or of rows.
func (b *batch) count() int { return max(len(b.done), b.rows) }

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func varintBytes(v int64) int { return (bits.Len64(zigzag(v)|1) + 6) / 7 }
func nullableBytes(v []byte) int { // length and bytes
	if v == nil {
		return 1
	}
	return varintBytes(int64(len(v))) + len(v)
}

// recordBytes is the body of a record with the given deltas: what its length field counts.
func recordBytes(m *Message, offsetDelta, timeDelta int64) int {
	n := 1 + varintBytes(timeDelta) + varintBytes(offsetDelta) + nullableBytes(m.Key) + nullableBytes(m.Value)
	n += varintBytes(int64(len(m.Headers)))
	for i := range m.Headers {
		h := &m.Headers[i]
		n += varintBytes(int64(len(h.Key))) + len(h.Key) + nullableBytes(h.Value)
	}
	return n
}

// measure says how long the record's body would be as the batch's next one, and all of it with the length field.
func (b *batch) measure(m *Message, ms int64) (body, whole int) {
	delta := int64(0)
	if len(b.done) > 0 {
		delta = ms - b.first
	}
	body = recordBytes(m, int64(len(b.done)), delta)
	return body, body + varintBytes(int64(body))
}

// add appends a record that was measured. The capacity of buf must hold it.
func (b *batch) add(m *Message, ms int64, body, whole int, done func(Ack)) {
	if len(b.done) == 0 {
		b.first, b.last = ms, ms
	}
	b.last = max(b.last, ms)
	n := len(b.buf)
	buf := b.buf[:n+whole]
	n = putVarint(buf, n, int64(body))
	buf[n] = 0
	n = putVarint(buf, n+1, ms-b.first)
	n = putVarint(buf, n, int64(len(b.done)))
	n = putNullable(buf, n, m.Key)
	n = putNullable(buf, n, m.Value)
	n = putVarint(buf, n, int64(len(m.Headers)))
	for i := range m.Headers {
		h := &m.Headers[i]
		n = putVarint(buf, n, int64(len(h.Key)))
		n += copy(buf[n:], h.Key)
		n = putNullable(buf, n, h.Value)
	}
	b.buf = buf
	b.done = append(b.done, produced{done, m.Tag})
}

func putVarint(b []byte, n int, v int64) int {
	u := zigzag(v)
	for u >= 0x80 {
		b[n] = byte(u) | 0x80
		u >>= 7
		n++
	}
	b[n] = byte(u)
	return n + 1
}

func putNullable(b []byte, n int, v []byte) int {
	if v == nil {
		b[n] = 1 // the varint of -1
		return n + 1
	}
	n = putVarint(b, n, int64(len(v)))
	return n + copy(b[n:], v)
}

// seal writes the header for a producer's identity and the sequence of the first record.
func (b *batch) seal(id identity, sequence int32) {
	b.numbered, b.ident, b.sequence = true, id, sequence
	h := b.buf[:batchHeaderBytes]
	count := uint32(b.count())
	binary.BigEndian.PutUint64(h[0:], 0)
	binary.BigEndian.PutUint32(h[8:], uint32(len(b.buf)-12))
	binary.BigEndian.PutUint32(h[12:], 0xffffffff) // the leader's to set
	h[16] = 2
	binary.BigEndian.PutUint16(h[21:], b.attributes())
	binary.BigEndian.PutUint32(h[23:], count-1)
	binary.BigEndian.PutUint64(h[27:], uint64(b.first))
	binary.BigEndian.PutUint64(h[35:], uint64(b.last))
	binary.BigEndian.PutUint64(h[43:], uint64(id.id))
	binary.BigEndian.PutUint16(h[51:], uint16(id.epoch))
	binary.BigEndian.PutUint32(h[53:], uint32(sequence))
	binary.BigEndian.PutUint32(h[57:], count)
	binary.BigEndian.PutUint32(h[17:], crc32.Checksum(b.buf[21:], castagnoli))
}

// nextSequence is the sequence after n records from seq on; it wraps to 0 after the largest int32.
func nextSequence(seq int32, n int) int32 { return int32((int64(seq) + int64(n)) & 0x7fffffff) }

// split moves the second half of the records to a new batch, for a topic whose limit is lower than ours. Both want
// sealing again. size is that of other's buffer, which must hold the half.
func (b *batch) split(other *batch) {
	keep := (len(b.done) + 1) / 2
	old, records := b.buf, b.buf[batchHeaderBytes:]
	n := batchHeaderBytes
	done := b.done
	b.last = b.first
	first := b.first
	for i := range done {
		size, k := readVarint(records)
		rec := records[k : k+int(size)]
		records = records[k+int(size):]
		delta, k := readVarint(rec[1:])
		_, j := readVarint(rec[1+k:])
		rest := rec[1+k+j:] // key, value, headers
		ms := first + delta
		if i < keep {
			n += len(rec) + varintBytes(size)
			b.last = max(b.last, ms)
			continue
		}
		if i == keep {
			b.buf = old[:n]
			other.first, other.last = ms, ms
		}
		other.last = max(other.last, ms)
		delta, at := ms-other.first, int64(i-keep)
		body := int64(1 + varintBytes(delta) + varintBytes(at) + len(rest))
		other.buf = binary.AppendVarint(other.buf, body)
		other.buf = append(other.buf, 0)
		other.buf = binary.AppendVarint(other.buf, delta)
		other.buf = binary.AppendVarint(other.buf, at)
		other.buf = append(other.buf, rest...)
	}
	other.done = append(other.done, done[keep:]...)
	clear(done[keep:])
	b.done = done[:keep]
	other.part, other.born, other.failure = b.part, b.born, b.failure
	b.width /= 2
	other.serial, other.width = b.serial+b.width, b.width
	b.numbered, other.numbered = false, false
}

func readVarint(b []byte) (int64, int) { return binary.Varint(b) }

// finish calls what waits for the records, in order.
func (b *batch) finish() {
	if b.rows > 0 {
		b.finishFrame()
		return
	}
	a := Ack{Partition: b.part.index, Offset: -1, Err: b.err}
	for i := range b.done {
		d := &b.done[i]
		if d.done == nil {
			continue
		}
		if b.err == nil && b.offset >= 0 {
			a.Offset = b.offset + int64(i)
		}
		a.Tag = d.tag
		d.done(a)
	}
}
