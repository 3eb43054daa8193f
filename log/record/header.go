package record

import (
	"encoding/binary"
	"hash/crc32"
)

// HeaderSize is the number of bytes before the records of a batch.
const HeaderSize = 61

// Magic is the message format of this package.
const Magic = 2

// Positions of the header's fields.
const (
	posBaseOffset      = 0
	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21 // the checksum covers from here to the end
	posLastOffsetDelta = 23
	posFirstTimestamp  = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posCount           = 57
)

// prefixSize is base offset plus length: the bytes that Header.Length does not count.
const prefixSize = 12

// Attribute bits.
const (
	AttrCodec         int16 = 0x07
	AttrLogAppendTime int16 = 1 << 3
	AttrTransactional int16 = 1 << 4
	AttrControl       int16 = 1 << 5
	AttrDeleteHorizon int16 = 1 << 6
	AttrColumnar      int16 = 1 << 8
)

// minRecordSize is the smallest framed record: length, attributes, two deltas, null key, null value, no headers.
const minRecordSize = 7

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Codec is the compression of a batch's records.
type Codec uint8

// The codecs, by their attribute bits.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

// String is the codec's name in configuration files.
func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return "unknown"
}

// A Header is the fixed part of a batch.
type Header struct {
	BaseOffset      int64
	Length          int32 // bytes after this field
	LeaderEpoch     int32
	Magic           int8
	CRC             uint32 // CRC-32C of everything from Attributes on
	Attributes      int16
	LastOffsetDelta int32
	FirstTimestamp  int64 // ms; record timestamps are deltas to it
	MaxTimestamp    int64 // ms
	ProducerID      int64 // -1: none
	ProducerEpoch   int16
	BaseSequence    int32
	Count           int32 // records
}

// Size is the number of bytes of the whole batch.
func (h Header) Size() int { return prefixSize + int(h.Length) }

// Codec is the compression of the records.
func (h Header) Codec() Codec { return Codec(h.Attributes & AttrCodec) }

// LogAppendTime reports that MaxTimestamp, stamped by the leader, is the time of every record.
func (h Header) LogAppendTime() bool { return h.Attributes&AttrLogAppendTime != 0 }

// Transactional reports that the batch belongs to a transaction.
func (h Header) Transactional() bool { return h.Attributes&AttrTransactional != 0 }

// Control reports that the batch holds markers for readers of the log, not records of a user.
func (h Header) Control() bool { return h.Attributes&AttrControl != 0 }

// Columnar reports that the payload is one Arrow record batch instead of rows.
func (h Header) Columnar() bool { return h.Attributes&AttrColumnar != 0 }

// LastOffset is the offset of the last record, or of the last record that was once there.
func (h Header) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// ParseHeader reads the header at the start of b and checks that its lengths are plausible. It looks at neither
// the records nor the checksum, and b may end before the batch does.
//
// Errors: ErrShort when b has less than HeaderSize bytes, ErrMagic, ErrCorrupt.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	b = b[:HeaderSize]
	h := Header{
		BaseOffset:      int64(binary.BigEndian.Uint64(b[posBaseOffset:])),
		Length:          int32(binary.BigEndian.Uint32(b[posLength:])),
		LeaderEpoch:     int32(binary.BigEndian.Uint32(b[posLeaderEpoch:])),
		Magic:           int8(b[posMagic]),
		CRC:             binary.BigEndian.Uint32(b[posCRC:]),
		Attributes:      int16(binary.BigEndian.Uint16(b[posAttributes:])),
		LastOffsetDelta: int32(binary.BigEndian.Uint32(b[posLastOffsetDelta:])),
		FirstTimestamp:  int64(binary.BigEndian.Uint64(b[posFirstTimestamp:])),
		MaxTimestamp:    int64(binary.BigEndian.Uint64(b[posMaxTimestamp:])),
		ProducerID:      int64(binary.BigEndian.Uint64(b[posProducerID:])),
		ProducerEpoch:   int16(binary.BigEndian.Uint16(b[posProducerEpoch:])),
		BaseSequence:    int32(binary.BigEndian.Uint32(b[posBaseSequence:])),
		Count:           int32(binary.BigEndian.Uint32(b[posCount:])),
	}
	if h.Magic != Magic {
		return h, ErrMagic
	}
	if h.Length < HeaderSize-prefixSize {
		return h, corrupt("length %d is below the header's", h.Length)
	}
	return h, nil
}

// PutHeader writes h to the first HeaderSize bytes of b, which must be there.
func PutHeader(b []byte, h Header) {
	b = b[:HeaderSize]
	binary.BigEndian.PutUint64(b[posBaseOffset:], uint64(h.BaseOffset))
	binary.BigEndian.PutUint32(b[posLength:], uint32(h.Length))
	binary.BigEndian.PutUint32(b[posLeaderEpoch:], uint32(h.LeaderEpoch))
	b[posMagic] = byte(h.Magic)
	binary.BigEndian.PutUint32(b[posCRC:], h.CRC)
	binary.BigEndian.PutUint16(b[posAttributes:], uint16(h.Attributes))
	binary.BigEndian.PutUint32(b[posLastOffsetDelta:], uint32(h.LastOffsetDelta))
	binary.BigEndian.PutUint64(b[posFirstTimestamp:], uint64(h.FirstTimestamp))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(h.MaxTimestamp))
	binary.BigEndian.PutUint64(b[posProducerID:], uint64(h.ProducerID))
	binary.BigEndian.PutUint16(b[posProducerEpoch:], uint16(h.ProducerEpoch))
	binary.BigEndian.PutUint32(b[posBaseSequence:], uint32(h.BaseSequence))
	binary.BigEndian.PutUint32(b[posCount:], uint32(h.Count))
}

// Seal writes the length and the checksum of the batch that fills b, after which b is valid if its other fields
// are. b must hold at least HeaderSize bytes.
func Seal(b []byte) {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-prefixSize))
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttributes:], castagnoli))
}

// SetBase patches the base offset and the leader epoch, which lie outside the checksum, in a batch or in the
// copy of its header.
func SetBase(hdr []byte, base int64, epoch int32) {
	binary.BigEndian.PutUint64(hdr[posBaseOffset:], uint64(base))
	binary.BigEndian.PutUint32(hdr[posLeaderEpoch:], uint32(epoch))
}

// Next splits the first batch off b by its length. The two parts alias b.
//
// Errors: ErrShort when b ends before the batch does, ErrMagic, ErrCorrupt.
func Next(b []byte) (batch, rest []byte, err error) {
	h, err := ParseHeader(b)
	if err != nil {
		return nil, b, err
	}
	if h.Size() > len(b) {
		return nil, b, ErrShort
	}
	return b[:h.Size():h.Size()], b[h.Size():], nil
}

// Verify checks that b is exactly one batch whose bounds hold and whose checksum matches, in one pass over the
// bytes. It does not look into the records: see VerifyRecords.
//
// Errors: ErrShort, ErrMagic, ErrChecksum, ErrCodec, ErrCorrupt.
func Verify(b []byte) (Header, error) {
	h, err := ParseHeader(b)
	switch {
	case err != nil:
		return h, err
	case h.Size() > len(b):
		return h, ErrShort
	case h.Size() < len(b):
		return h, corrupt("%d bytes follow the batch", len(b)-h.Size())
	case h.Codec() > Zstd:
		return h, ErrCodec
	}
	if err := h.checkCounts(len(b) - HeaderSize); err != nil {
		return h, err
	}
	if crc32.Checksum(b[posAttributes:], castagnoli) != h.CRC {
		return h, ErrChecksum
	}
	return h, nil
}

// checkCounts judges what can be known of the counts when the payload has n bytes.
func (h Header) checkCounts(n int) error {
	switch {
	case h.Count < 0:
		return corrupt("record count %d", h.Count)
	case h.LastOffsetDelta < 0 && !(h.LastOffsetDelta == -1 && h.Count == 0):
		return corrupt("last offset delta %d", h.LastOffsetDelta)
	case int64(h.Count) > int64(h.LastOffsetDelta)+1:
		return corrupt("%d records do not fit last offset delta %d", h.Count, h.LastOffsetDelta)
	case h.Codec() == None && !h.Columnar() && int64(h.Count)*minRecordSize > int64(n):
		return corrupt("%d records do not fit %d bytes", h.Count, n)
	case h.BaseOffset > 1<<63-1-int64(max(h.LastOffsetDelta, 0)):
		return corrupt("base offset %d overflows", h.BaseOffset)
	}
	return nil
}

// VerifyRecords checks what a producer framed: at least one record, offset deltas that count up from zero to the
// header's last one, and, unless the batch is compressed or columnar, every length inside every record. b must
// have passed Verify. Compressed records are checked by whoever decompresses them.
//
// Errors: ErrCorrupt.
func VerifyRecords(b []byte) error {
	h, err := ParseHeader(b)
	if err != nil {
		return err
	}
	if h.Count < 1 || h.LastOffsetDelta != h.Count-1 {
		return corrupt("%d records with last offset delta %d", h.Count, h.LastOffsetDelta)
	}
	if h.Codec() != None || h.Columnar() {
		return nil
	}
	p := b[HeaderSize:]
	var f frame
	for i := int32(0); i < h.Count; i++ {
		n := plainRecord(p, i)
		if n > 0 {
			p = p[n:]
			continue
		}
		n = f.parse(p)
		if n < 0 {
			return corrupt("record %d of %d", i, h.Count)
		}
		if f.offsetDelta != i {
			return corrupt("record %d has offset delta %d", i, f.offsetDelta)
		}
		if !f.skipHeaders() {
			return corrupt("headers of record %d", i)
		}
		p = p[n:]
	}
	if len(p) != 0 {
		return corrupt("%d bytes follow the last record", len(p))
	}
	return nil
}

// plainRecord is the size of the record at the start of p if it is well-formed, has the offset delta and no headers,
// and has lengths of at most three bytes. Otherwise it is 0, and says nothing: frame.parse decides. What nearly all
// records are is checked at the speed of memory, in one pass without calls.
func plainRecord(p []byte, delta int32) int {
	// Every read of a length below looks at three bytes: what is nearer to the end is for frame.parse.
	if len(p) < 16 {
		return 0
	}
	u, n := uint32(p[0]), 1
	if u >= 0x80 {
		u, n = u&0x7f|uint32(p[1])<<7, 2
		if u >= 0x80<<7 {
			u, n = u&0x3fff|uint32(p[2])<<14, 3
		}
	}
	size := n + int(u>>1)
	if u&1 != 0 || u >= 0x80<<14 || size > len(p) || size-n < minRecordSize-1 {
		return 0
	}
	r := p[:size]
	for n++; p[n] >= 0x80; n++ { // attributes, then the time delta
		if n >= 10 {
			return 0
		}
	}
	n++
	if n+3 > len(p) {
		return 0
	}
	u = uint32(p[n])
	n++
	if u >= 0x80 {
		u = u&0x7f | uint32(p[n])<<7
		n++
		if u >= 0x80<<7 {
			u = u&0x3fff | uint32(p[n])<<14
			n++
		}
	}
	if u != uint32(delta)<<1 || u >= 0x80<<14 {
		return 0
	}
	for range 2 { // key and value
		if n+3 > len(p) {
			return 0
		}
		u = uint32(p[n])
		if u == 1 { // null
			n++
			continue
		}
		n++
		if u >= 0x80 {
			u = u&0x7f | uint32(p[n])<<7
			n++
			if u >= 0x80<<7 {
				u = u&0x3fff | uint32(p[n])<<14
				n++
			}
		}
		if u&1 != 0 || u >= 0x80<<14 {
			return 0
		}
		n += int(u >> 1)
	}
	if n != size-1 || r[n] != 0 {
		return 0
	}
	return size
}
