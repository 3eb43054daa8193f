package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/headrace/headrace/log/record"
)

// BlockBytes is how many bytes of log a block of the index covers at least, unless its write ends before.
const BlockBytes = 16 << 10

// HeadBytes is the size of a block without its batches.
const HeadBytes = 12 + 8 + 8 + 8 + 4 + 4 + 8 + 8 + 4

// minRefBytes is the least that one batch takes in a block.
const minRefBytes = 8 + 4

const (
	blockMagic   = 0x6842 // "hB"
	blockVersion = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrCorrupt is bytes that are no block, or a batch that is not the one its index names.
var ErrCorrupt = errors.New("segment: corrupt")

// A Ref names one batch: what it is, where it lies and where it came from.
type Ref struct {
	Base, Last   int64 // first and last offset
	Pos          int64 // byte in the log file
	Size         int32 // bytes
	Unit         int32 // unit number in the entry
	Index        uint64
	Term         uint64
	EntryPos     uint32 // byte in the entry
	Link         uint32 // chain up to this batch
	AppendTime   int64  // ns since 1970
	MaxTimestamp int64  // ms
}

// A Head is the fixed part of a block.
type Head struct {
	First, Last  int64 // first and last offset
	Pos          int64 // byte in the log file
	Bytes        int64 // bytes of log
	Count        int   // batches
	MaxTimestamp int64 // ms, the largest
	AppendTime   int64 // ns, the largest
	Prev         uint32
	Size         int // bytes of the whole block
}

// AppendBlock appends a block of refs to dst. refs are adjacent in offsets and positions; prev is the link
// before the first.
func AppendBlock(dst []byte, refs []Ref, prev uint32) []byte {
	start := len(dst)
	h := Head{First: refs[0].Base, Last: refs[len(refs)-1].Last, Pos: refs[0].Pos, MaxTimestamp: refs[0].MaxTimestamp}
	for i := range refs {
		h.Bytes += int64(refs[i].Size)
		h.MaxTimestamp = max(h.MaxTimestamp, refs[i].MaxTimestamp)
		h.AppendTime = max(h.AppendTime, refs[i].AppendTime)
	}
	be := binary.BigEndian
	dst = be.AppendUint16(dst, blockMagic)
	dst = append(dst, blockVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	dst = be.AppendUint64(dst, uint64(h.First))
	dst = be.AppendUint64(dst, uint64(h.Last))
	dst = be.AppendUint64(dst, uint64(h.Pos))
	dst = be.AppendUint32(dst, uint32(h.Bytes))
	dst = be.AppendUint32(dst, uint32(len(refs)))
	dst = be.AppendUint64(dst, uint64(h.MaxTimestamp))
	dst = be.AppendUint64(dst, uint64(h.AppendTime))
	dst = be.AppendUint32(dst, prev)
	var last Ref
	for i := range refs {
		r := &refs[i]
		dst = binary.AppendUvarint(dst, uint64(r.Last-r.Base))
		dst = binary.AppendUvarint(dst, uint64(r.Size))
		dst = binary.AppendUvarint(dst, r.Index-last.Index)
		dst = binary.AppendUvarint(dst, uint64(r.Unit))
		dst = binary.AppendUvarint(dst, uint64(r.EntryPos))
		dst = binary.AppendVarint(dst, r.AppendTime-last.AppendTime)
		dst = binary.AppendVarint(dst, r.MaxTimestamp-last.MaxTimestamp)
		dst = binary.AppendVarint(dst, int64(r.Term-last.Term))
		dst = be.AppendUint32(dst, r.Link)
		last = *r
	}
	be.PutUint32(dst[start+4:], uint32(len(dst)-start))
	be.PutUint32(dst[start+8:], crc32.Checksum(dst[start+12:], castagnoli))
	return dst
}

// ParseHead reads the fixed part of the block at the start of b, without its checksum. b may end before the
// block does.
func ParseHead(b []byte) (Head, error) {
	if len(b) < HeadBytes {
		return Head{}, fmt.Errorf("%w: index block of %d bytes", ErrCorrupt, len(b))
	}
	be := binary.BigEndian
	if be.Uint16(b) != blockMagic || b[2] != blockVersion || b[3] != 0 {
		return Head{}, fmt.Errorf("%w: no index block", ErrCorrupt)
	}
	h := Head{
		First: int64(be.Uint64(b[12:])), Last: int64(be.Uint64(b[20:])), Pos: int64(be.Uint64(b[28:])),
		Bytes: int64(be.Uint32(b[36:])), Count: int(be.Uint32(b[40:])),
		MaxTimestamp: int64(be.Uint64(b[44:])), AppendTime: int64(be.Uint64(b[52:])), Prev: be.Uint32(b[60:]),
	}
	size := be.Uint32(b[4:])
	h.Size = int(size)
	if size > 1<<30 || h.Count < 1 || h.Count > (h.Size-HeadBytes)/minRefBytes || h.First < 0 || h.Last < h.First || h.Pos < 0 {
		return Head{}, fmt.Errorf("%w: index block of %d bytes with %d batches", ErrCorrupt, size, h.Count)
	}
	return h, nil
}

// DecodeBlock checks the block at the start of b and appends its batches to refs.
func DecodeBlock(b []byte, refs []Ref) (Head, []Ref, error) {
	h, err := ParseHead(b)
	if err != nil {
		return h, refs, err
	}
	if h.Size > len(b) {
		return h, refs, fmt.Errorf("%w: index block cut short", ErrCorrupt)
	}
	b = b[:h.Size]
	if crc32.Checksum(b[12:], castagnoli) != binary.BigEndian.Uint32(b[8:]) {
		return h, refs, fmt.Errorf("%w: index block checksum", ErrCorrupt)
	}
	b = b[HeadBytes:]
	ok := true
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			ok, b = false, nil
			return 0
		}
		b = b[n:]
		return v
	}
	varint := func() int64 {
		u := uvarint()
		return int64(u>>1) ^ -int64(u&1)
	}
	refs = slices.Grow(refs, h.Count)
	last := Ref{Last: h.First - 1, Pos: h.Pos}
	for range h.Count {
		r := Ref{Base: last.Last + 1, Pos: last.Pos + int64(last.Size)}
		r.Last = r.Base + int64(uvarint())
		r.Size = int32(uvarint())
		r.Index = last.Index + uvarint()
		r.Unit = int32(uvarint())
		r.EntryPos = uint32(uvarint())
		r.AppendTime = last.AppendTime + varint()
		r.MaxTimestamp = last.MaxTimestamp + varint()
		r.Term = last.Term + uint64(varint())
		if !ok || len(b) < 4 || r.Last < r.Base || r.Size < record.HeaderSize {
			return h, refs, fmt.Errorf("%w: index block batches", ErrCorrupt)
		}
		r.Link = binary.BigEndian.Uint32(b)
		b = b[4:]
		refs = append(refs, r)
		last = r
	}
	if len(b) != 0 || last.Last != h.Last || last.Pos+int64(last.Size) != h.Pos+h.Bytes {
		return h, refs, fmt.Errorf("%w: index block sums", ErrCorrupt)
	}
	return h, refs, nil
}

// A Seed is where a chain belongs.
type Seed struct {
	Topic     [16]byte
	Partition int32
	Segment   int64 // base offset of the segment; of a mixed segment its number with the sign bit set
}

// MixedSegment is the Segment of a seed for a mixed file.
func MixedSegment(number uint64) int64 { return int64(number | 1<<63) }

const linkBytes = 16 + 4 + 8 + record.HeaderSize + 4

// linkBuf holds the bytes under a link: they escape to the checksum, and there is one link per batch.
var linkBuf = sync.Pool{New: func() any { return new([linkBytes]byte) }}

// Link continues a chain with the batch whose header as written is hdr; the first link of a chain has prev 0.
func (s Seed) Link(prev uint32, hdr []byte) uint32 {
	b := linkBuf.Get().(*[linkBytes]byte)
	copy(b[:], s.Topic[:])
	binary.BigEndian.PutUint32(b[16:], uint32(s.Partition))
	binary.BigEndian.PutUint64(b[20:], uint64(s.Segment))
	copy(b[28:], hdr[:record.HeaderSize])
	binary.BigEndian.PutUint32(b[28+record.HeaderSize:], prev)
	link := crc32.Checksum(b[:], castagnoli)
	linkBuf.Put(b)
	return link
}

// Verify checks that batch is the one that r names: its checksum, offsets, size and link.
func (s Seed) Verify(batch []byte, r *Ref, prev uint32) error {
	h, err := record.Verify(batch)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	switch {
	case h.BaseOffset != r.Base:
		return fmt.Errorf("%w: base offset %d where the index says %d", ErrCorrupt, h.BaseOffset, r.Base)
	case h.LastOffset() != r.Last:
		return fmt.Errorf("%w: last offset %d where the index says %d", ErrCorrupt, h.LastOffset(), r.Last)
	case s.Link(prev, batch) != r.Link:
		return fmt.Errorf("%w: the batch at offset %d does not continue the chain", ErrCorrupt, r.Base)
	}
	return nil
}
