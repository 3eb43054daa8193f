package record

import (
	"fmt"
)

// A KV is one header of a record.
type KV struct {
	Key   string
	Value []byte // nil: null
}

// A Record is one message. Its byte slices alias the batch or the Reader's buffer.
type Record struct {
	Offset    int64
	Timestamp int64  // ms
	Key       []byte // nil: null
	Value     []byte // nil: null
	// Headers are filled in by Reader.Headers only: most readers do not look at them.
	Headers []KV
}

// A Reader walks the records of one batch after the other. The zero value is ready for Reset. It allocates
// nothing per record, and nothing per batch once its buffer has grown to the largest decompressed one.
//
//	r.Reset(batch)
//	for r.Next() {
//		rec := r.Record()
//	}
//	err := r.Err()
type Reader struct {
	h    Header
	rest []byte // records not yet walked
	left int32  // records not yet walked
	last int32  // offset delta of the record before
	cur  frame
	rec  Record
	err  error
	buf  []byte // decompressed records; reused
}

// Reset starts on a batch, which must hold exactly one and must have passed Verify if it came from outside: Reset
// does not check the checksum. Compressed records are decompressed into the Reader's own memory, at most
// MaxDecompressed bytes and at most maxRatio times what came in. The Reader keeps batch until the next Reset.
//
// Errors: ErrCorrupt, ErrMagic, ErrCodec, ErrTooLarge, ErrColumnar. After an error Next returns false.
func (r *Reader) Reset(batch []byte) error {
	r.rest, r.left, r.last, r.rec, r.cur = nil, 0, -1, Record{}, frame{}
	h, err := ParseHeader(batch)
	switch {
	case err != nil:
	case h.Size() > len(batch):
		err = ErrShort
	case h.Size() < len(batch):
		err = corrupt("%d bytes follow the batch", len(batch)-h.Size())
	case h.Columnar():
		err = ErrColumnar
	default:
		err = h.checkCounts(len(batch) - HeaderSize)
	}
	r.h, r.err = h, err
	if err != nil {
		return err
	}
	r.rest = batch[HeaderSize:]
	if c := h.Codec(); c != None {
		r.buf, err = decompress(r.buf[:0], r.rest, c)
		if err != nil {
			r.rest, r.err = nil, err
			return err
		}
		r.rest = r.buf
		if int64(h.Count)*minRecordSize > int64(len(r.buf)) {
			r.rest, r.err = nil, corrupt("%d records do not fit %d bytes", h.Count, len(r.buf))
			return r.err
		}
	}
	r.left = h.Count
	return nil
}

// Header is the header of the batch given to Reset.
func (r *Reader) Header() Header { return r.h }

// Next moves to the next record and reports whether there is one. It returns false at the end and at the first
// record that is not well-formed; Err tells which.
func (r *Reader) Next() bool {
	if r.left == 0 {
		if len(r.rest) != 0 && r.err == nil {
			r.err = corrupt("%d bytes follow the last record", len(r.rest))
			r.rest = nil
		}
		return false
	}
	n := r.cur.parse(r.rest)
	if n < 0 {
		return r.fail("record framing")
	}
	if r.cur.offsetDelta <= r.last || r.cur.offsetDelta > r.h.LastOffsetDelta {
		return r.fail("offset deltas out of order")
	}
	if h := r.cur.headers; (len(h) != 1 || h[0] != 0) && !r.cur.skipHeaders() {
		return r.fail("headers")
	}
	r.last = r.cur.offsetDelta
	r.rest = r.rest[n:]
	r.left--
	r.rec.Offset = r.h.BaseOffset + int64(r.cur.offsetDelta)
	if r.h.LogAppendTime() {
		r.rec.Timestamp = r.h.MaxTimestamp
	} else {
		r.rec.Timestamp = r.h.FirstTimestamp + r.cur.timestampDelta
	}
	r.rec.Key, r.rec.Value = r.cur.key, r.cur.value
	r.rec.Headers = r.rec.Headers[:0]
	return true
}

func (r *Reader) fail(reason string) bool {
	r.err = fmt.Errorf("%w: %s at record %d of %d", ErrCorrupt, reason, r.h.Count-r.left, r.h.Count)
	r.left, r.rest = 0, nil
	return false
}

// Record is the record that Next moved to. It and its bytes are valid until the next call of Next or Reset.
func (r *Reader) Record() *Record { return &r.rec }

// Headers parses the headers of the current record, sets Record().Headers and returns them. The slice is valid
// until the next call of Next; keys are copied, values alias the batch. It must follow a Next that returned true.
func (r *Reader) Headers() []KV {
	r.rec.Headers = r.cur.appendHeaders(r.rec.Headers[:0])
	return r.rec.Headers
}

// HeaderBytes is the current record's header section as it lies in the batch, beginning with the count, for a
// caller that copies it unchanged into another batch.
func (r *Reader) HeaderBytes() []byte { return r.cur.headers }

// Err is the error that ended the walk, or nil.
func (r *Reader) Err() error { return r.err }

// A frame is one record taken apart. Its slices alias the bytes given to parse.
type frame struct {
	timestampDelta int64
	offsetDelta    int32
	key, value     []byte
	headers        []byte // count and headers, not yet parsed
}

// parse reads the record at the start of b and returns its size, or -1 if it is not well-formed. Headers are
// left for skipHeaders or appendHeaders.
func (f *frame) parse(b []byte) int {
	length, n := varint(b)
	if n <= 0 || length < minRecordSize-1 || length > int64(len(b)-n) {
		return -1
	}
	size := n + int(length)
	p := b[n:size:size]
	p = p[1:] // attributes: unused
	ts, n := varint(p)
	if n <= 0 {
		return -1
	}
	p = p[n:]
	delta, n := varint(p)
	if n <= 0 || delta < 0 || delta > 1<<31-1 {
		return -1
	}
	p = p[n:]
	f.timestampDelta, f.offsetDelta = ts, int32(delta)
	var ok bool
	if f.key, p, ok = nullableBytes(p); !ok {
		return -1
	}
	if f.value, p, ok = nullableBytes(p); !ok {
		return -1
	}
	if len(p) == 0 {
		return -1
	}
	f.headers = p
	return size
}

// skipHeaders reports whether the headers fill the rest of the record exactly.
func (f *frame) skipHeaders() bool {
	p := f.headers
	count, n := varint(p)
	if n <= 0 || count < 0 || count > int64(len(p)/2) {
		return false
	}
	p = p[n:]
	for ; count > 0; count-- {
		var key []byte
		var ok bool
		if key, p, ok = nullableBytes(p); !ok || key == nil {
			return false
		}
		if _, p, ok = nullableBytes(p); !ok {
			return false
		}
	}
	return len(p) == 0
}

// appendHeaders parses headers that skipHeaders has accepted.
func (f *frame) appendHeaders(dst []KV) []KV {
	p := f.headers
	count, n := varint(p)
	p = p[n:]
	for ; count > 0; count-- {
		var key, value []byte
		key, p, _ = nullableBytes(p)
		value, p, _ = nullableBytes(p)
		dst = append(dst, KV{Key: string(key), Value: value})
	}
	return dst
}

// nullableBytes reads a length (-1: null) and as many bytes.
func nullableBytes(p []byte) (b, rest []byte, ok bool) {
	length, n := varint(p)
	end := n + int(length)
	if n > 0 && length >= 0 && length <= int64(len(p)-n) {
		return p[n:end:end], p[end:], true
	}
	if n <= 0 || length != -1 {
		return nil, nil, false
	}
	return nil, p[n:], true
}

// varint reads a zigzag varint: n is its size, 0 if p ends before it, below 0 if it overflows. Lengths and deltas of
// one to three bytes, which is nearly all, are taken without a loop.
func varint(p []byte) (v int64, n int) {
	if len(p) < 3 {
		return varintSlow(p)
	}
	u := uint64(p[0])
	if u < 0x80 {
		return int64(u>>1) ^ -int64(u&1), 1
	}
	u = u&0x7f | uint64(p[1])<<7
	if p[1] < 0x80 {
		return int64(u>>1) ^ -int64(u&1), 2
	}
	u = u&0x3fff | uint64(p[2])<<14
	if p[2] < 0x80 {
		return int64(u>>1) ^ -int64(u&1), 3
	}
	return varintSlow(p)
}

func varintSlow(p []byte) (v int64, n int) {
	var u uint64
	for i, c := range p {
		if i == 9 && c > 1 || i > 9 {
			return 0, -1
		}
		u |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return int64(u>>1) ^ -int64(u&1), i + 1
		}
	}
	return 0, 0
}
