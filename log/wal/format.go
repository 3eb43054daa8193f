package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/headrace/headrace/internal/fsx"
)

// blockSize is what groups are aligned and padded to.
const blockSize = fsx.PageSize

const (
	groupMagic    = 0x4c575248 // "HRWL"
	formatVersion = 1
	headerSize    = 72
	frameSize     = 8  // checksum and length
	entrySize     = 40 // an entry's frame without extensions and data
	indexSize     = 24 // frame of a record that holds one index
	openSize      = 40
	stableSize    = 16 // a stable value's frame without key and value
	closedSize    = 16
)

// Kinds of records.
const (
	kindEntry    = 1 // an entry
	kindTruncate = 2 // entries from this index on are dropped
	kindFront    = 3 // entries below this index are no longer needed
	kindReset    = 4 // the log is empty; this index comes next
	kindStable   = 5 // a stable value
	kindOpen     = 6 // a segment begins here
	kindClosed   = 7 // the log was closed in order
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errBadRecord is a record that passed its checksum and makes no sense: written by a program we do not understand.
var errBadRecord = errors.New("malformed record")

func align(n int64) int64 { return (n + blockSize - 1) &^ (blockSize - 1) }

// A groupHeader opens a group. Its own checksum, which covers everything in it, is the link that the next group
// repeats.
type groupHeader struct {
	logID      uint64 // random, per log: a group of another log, or one inside a record, is never taken for ours
	segment    uint64 // sequence of the segment: what a recycled file held before is not ours
	number     uint64 // counts up over the whole log
	synced     uint64 // number of the last group that was known to be synced when this one was written
	firstIndex uint64 // of the first entry in the group; 0: none
	block      uint32 // position of the group in the segment, in blocks
	length     uint32 // bytes of the records
	records    uint32
	prev       uint32 // checksum of the header of the group before
	payloadCRC uint32 // over the first 8 bytes of every record, which hold the record's own checksum
	crc        uint32 // over the bytes before it
}

func (h groupHeader) size() int64 { return align(headerSize + int64(h.length)) }

// put writes the header and returns its checksum.
func (h groupHeader) put(b []byte) uint32 {
	b = b[:headerSize]
	binary.LittleEndian.PutUint32(b[0:], groupMagic)
	binary.LittleEndian.PutUint32(b[4:], formatVersion)
	binary.LittleEndian.PutUint64(b[8:], h.logID)
	binary.LittleEndian.PutUint64(b[16:], h.segment)
	binary.LittleEndian.PutUint64(b[24:], h.number)
	binary.LittleEndian.PutUint64(b[32:], h.synced)
	binary.LittleEndian.PutUint64(b[40:], h.firstIndex)
	binary.LittleEndian.PutUint32(b[48:], h.block)
	binary.LittleEndian.PutUint32(b[52:], h.length)
	binary.LittleEndian.PutUint32(b[56:], h.records)
	binary.LittleEndian.PutUint32(b[60:], h.prev)
	binary.LittleEndian.PutUint32(b[64:], h.payloadCRC)
	crc := crc32.Checksum(b[:68], castagnoli)
	binary.LittleEndian.PutUint32(b[68:], crc)
	return crc
}

// parseHeader reads a header and reports whether it is one: magic, version and checksum fit.
func parseHeader(b []byte) (groupHeader, bool) {
	if len(b) < headerSize || binary.LittleEndian.Uint32(b) != groupMagic {
		return groupHeader{}, false
	}
	b = b[:headerSize]
	h := groupHeader{
		logID:      binary.LittleEndian.Uint64(b[8:]),
		segment:    binary.LittleEndian.Uint64(b[16:]),
		number:     binary.LittleEndian.Uint64(b[24:]),
		synced:     binary.LittleEndian.Uint64(b[32:]),
		firstIndex: binary.LittleEndian.Uint64(b[40:]),
		block:      binary.LittleEndian.Uint32(b[48:]),
		length:     binary.LittleEndian.Uint32(b[52:]),
		records:    binary.LittleEndian.Uint32(b[56:]),
		prev:       binary.LittleEndian.Uint32(b[60:]),
		payloadCRC: binary.LittleEndian.Uint32(b[64:]),
		crc:        binary.LittleEndian.Uint32(b[68:]),
	}
	return h, crc32.Checksum(b[:68], castagnoli) == h.crc && binary.LittleEndian.Uint32(b[4:]) == formatVersion
}

// A group is one being built in memory that is written as it is.
type group struct {
	buf     []byte // page-aligned, outside the Go heap
	n       int    // bytes used, header included
	records uint32
	first   uint64
	crc     uint32
	locs    []loc // of its entries, relative to the start of the group
}

// A loc is where an entry's frame lies: position and size in bytes.
type loc struct{ pos, size uint32 }

func (g *group) reset() {
	g.n, g.records, g.first, g.crc = headerSize, 0, 0, 0
	g.locs = g.locs[:0]
}

// frame begins a record of size bytes and returns its memory. The caller fills everything after the first 8 bytes,
// then calls seal.
func (g *group) frame(size int, kind byte) []byte {
	b := g.buf[g.n : g.n+size : g.n+size]
	binary.LittleEndian.PutUint32(b[4:], uint32(size-frameSize))
	binary.LittleEndian.PutUint64(b[8:], uint64(kind))
	return b
}

// seal ends the record b, whose checksum from byte 4 on is crc.
func (g *group) seal(b []byte, crc uint32) {
	binary.LittleEndian.PutUint32(b, crc)
	g.crc = crc32.Update(g.crc, castagnoli, b[:frameSize])
	g.n += len(b)
	g.records++
}

func (g *group) sealSmall(b []byte) { g.seal(b, crc32.Checksum(b[4:], castagnoli)) }

func (g *group) index(kind byte, index uint64) {
	b := g.frame(indexSize, kind)
	binary.LittleEndian.PutUint64(b[16:], index)
	g.sealSmall(b)
}

func (g *group) open(next, front uint64, segmentBytes int64) {
	b := g.frame(openSize, kindOpen)
	binary.LittleEndian.PutUint64(b[16:], next)
	binary.LittleEndian.PutUint64(b[24:], front)
	binary.LittleEndian.PutUint64(b[32:], uint64(segmentBytes))
	g.sealSmall(b)
}

func (g *group) closed() { g.sealSmall(g.frame(closedSize, kindClosed)) }

func (g *group) unsetStable(key string) {
	b := g.frame(stableSize+len(key), kindStable)
	b[9] = 1
	binary.LittleEndian.PutUint16(b[10:], uint16(len(key)))
	copy(b[stableSize:], key)
	g.sealSmall(b)
}

func (g *group) stable(key string, value []byte) {
	b := g.frame(stableSize+len(key)+len(value), kindStable)
	binary.LittleEndian.PutUint16(b[10:], uint16(len(key)))
	copy(b[stableSize:], key)
	copy(b[stableSize+len(key):], value)
	g.sealSmall(b)
}

func entryBytes(e *Entry) int { return entrySize + len(e.Extensions) + len(e.Data) }

func (g *group) entry(e *Entry) {
	b := g.frame(entryBytes(e), kindEntry)
	b[9] = e.Type
	binary.LittleEndian.PutUint32(b[12:], uint32(len(e.Extensions)))
	binary.LittleEndian.PutUint64(b[16:], e.Index)
	binary.LittleEndian.PutUint64(b[24:], e.Term)
	binary.LittleEndian.PutUint64(b[32:], uint64(e.AppendedAt))
	crc := crc32.Checksum(b[4:entrySize], castagnoli)
	if len(e.Extensions) > 0 {
		crc = copyAndSum(b[entrySize:], e.Extensions, crc)
	}
	crc = copyAndSum(b[entrySize+len(e.Extensions):], e.Data, crc)
	if g.first == 0 {
		g.first = e.Index
	}
	g.locs = append(g.locs, loc{uint32(g.n), uint32(len(b))})
	g.seal(b, crc)
}

// copyAndSum copies src to dst and continues a checksum over it, in pieces that are still in the cache when they are
// summed.
func copyAndSum(dst, src []byte, crc uint32) uint32 {
	const piece = 16 << 10
	for len(src) > piece {
		copy(dst, src[:piece])
		crc = crc32.Update(crc, castagnoli, dst[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	copy(dst, src)
	return crc32.Update(crc, castagnoli, dst[:len(src)])
}

// finish completes the header, pads with zeros, and returns the bytes to write and the new link of the chain.
func (g *group) finish(h groupHeader) (b []byte, link uint32) {
	h.firstIndex, h.length, h.records, h.payloadCRC = g.first, uint32(g.n-headerSize), g.records, g.crc
	b = g.buf[:h.size()]
	clear(b[g.n:])
	return b, h.put(b)
}

// A recordView is one record, its slices aliasing the bytes it was parsed from.
type recordView struct {
	kind         byte
	index        uint64 // of an entry, truncate, front or reset; next of open
	front        uint64
	segmentBytes int64
	entry        Entry
	key, value   []byte
	removed      bool // of a stable value
	pos, size    int  // of the frame in the payload
}

// stableValue is a copy of the value, nil if the record removes it.
func (r recordView) stableValue() []byte {
	if r.removed {
		return nil
	}
	return append([]byte{}, r.value...)
}

// frameLen is the size of the frame at the start of b, whose length was verified.
func frameLen(b []byte) int { return frameSize + int(binary.LittleEndian.Uint32(b[4:])) }

// walkRecords calls f for each record of a group's payload, after its checksum was verified. It returns a reason when
// the checksums do not fit, and an error when a record that fits makes no sense or f returned one.
func walkRecords(h groupHeader, payload []byte, f func(recordView) error) (bad string, err error) {
	var sum uint32
	p, count := 0, uint32(0)
	// All checksums first: a group applies as a whole or not at all.
	for p < len(payload) {
		rest := payload[p:]
		if len(rest) < frameSize {
			return "record frame", nil
		}
		n := int64(binary.LittleEndian.Uint32(rest[4:]))
		if n > int64(len(rest)-frameSize) {
			return "record length", nil
		}
		size := frameSize + int(n)
		if crc32.Checksum(rest[4:size], castagnoli) != binary.LittleEndian.Uint32(rest) {
			return "record checksum", nil
		}
		sum = crc32.Update(sum, castagnoli, rest[:frameSize])
		p += size
		count++
	}
	if count != h.records || sum != h.payloadCRC {
		return "group checksum", nil
	}
	for p = 0; p < len(payload); {
		size := frameLen(payload[p:])
		r, err := parseRecord(payload[p : p+size : p+size])
		if err != nil {
			return "", err
		}
		r.pos, r.size = p, size
		if err := f(r); err != nil {
			return "", err
		}
		p += size
	}
	return "", nil
}

// parseRecord takes a frame apart whose checksum was verified.
func parseRecord(b []byte) (recordView, error) {
	if len(b) < 16 {
		return recordView{}, errBadRecord
	}
	r := recordView{kind: b[8]}
	want := 0
	switch r.kind {
	case kindEntry:
		e, err := parseEntry(b)
		r.entry, r.index = e, e.Index
		return r, err
	case kindTruncate, kindFront, kindReset:
		want = indexSize
	case kindOpen:
		want = openSize
	case kindClosed:
		want = closedSize
	case kindStable:
		n := int(binary.LittleEndian.Uint16(b[10:]))
		if n > len(b)-stableSize {
			return r, errBadRecord
		}
		r.key, r.value, r.removed = b[stableSize:stableSize+n], b[stableSize+n:], b[9] == 1
		return r, nil
	default:
		return r, fmt.Errorf("%w: kind %d", errBadRecord, r.kind)
	}
	if len(b) != want {
		return r, errBadRecord
	}
	if want >= indexSize {
		r.index = binary.LittleEndian.Uint64(b[16:])
		if r.index > maxIndex {
			return r, errBadRecord
		}
	}
	if r.kind == kindOpen {
		r.front = binary.LittleEndian.Uint64(b[24:])
		size := binary.LittleEndian.Uint64(b[32:])
		if r.front > maxIndex || size > maxSegmentBytes {
			return r, errBadRecord
		}
		r.segmentBytes = int64(size)
	}
	return r, nil
}

// maxIndex leaves room for sums of indexes.
const maxIndex = math.MaxInt64

// parseEntry takes an entry's frame apart. The entry's slices alias b.
func parseEntry(b []byte) (Entry, error) {
	if len(b) < entrySize || b[8] != kindEntry {
		return Entry{}, errBadRecord
	}
	ext := int64(binary.LittleEndian.Uint32(b[12:]))
	if ext > int64(len(b)-entrySize) {
		return Entry{}, errBadRecord
	}
	e := Entry{
		Index:      binary.LittleEndian.Uint64(b[16:]),
		Term:       binary.LittleEndian.Uint64(b[24:]),
		Type:       b[9],
		AppendedAt: int64(binary.LittleEndian.Uint64(b[32:])),
	}
	if e.Index == 0 || e.Index > maxIndex {
		return Entry{}, errBadRecord
	}
	if ext > 0 {
		e.Extensions = b[entrySize : entrySize+ext : entrySize+ext]
	}
	e.Data = b[entrySize+ext:]
	return e, nil
}

// verifyEntry checks a frame that was read alone and takes it apart.
func verifyEntry(b []byte) (Entry, string) {
	switch {
	case len(b) < entrySize, int64(binary.LittleEndian.Uint32(b[4:])) != int64(len(b)-frameSize):
		return Entry{}, "record length"
	case crc32.Checksum(b[4:], castagnoli) != binary.LittleEndian.Uint32(b):
		return Entry{}, "record checksum"
	}
	e, err := parseEntry(b)
	if err != nil {
		return Entry{}, err.Error()
	}
	return e, ""
}

// A walker reads the groups of one segment in order.
type walker struct {
	r       io.ReaderAt
	size    int64 // of the segment
	segment uint64
	logID   uint64 // 0: take that of the first group
	next    uint64 // number of the next group; 0: take that of the first group
	chain   uint32
	pos     int64 // where the next group should be

	win    []byte // bytes read from winPos on
	winPos int64
}

// windowBytes is how much a walker reads at once, unless a group is larger.
const windowBytes = 1 << 20

// bytesAt returns n bytes at pos, which must lie inside the segment. They are valid until the next call.
func (w *walker) bytesAt(pos, n int64) ([]byte, error) {
	if pos < w.winPos || pos+n > w.winPos+int64(len(w.win)) {
		want := min(max(n, windowBytes), w.size-pos)
		if int64(cap(w.win)) < want {
			w.win = make([]byte, want)
		}
		w.win, w.winPos = w.win[:want], pos
		if k, err := w.r.ReadAt(w.win, pos); k < len(w.win) {
			w.win = w.win[:0]
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	at := pos - w.winPos
	return w.win[at : at+n : at+n], nil
}

// group verifies the group at the walker's position and calls f for its records. A group that is not there, or not
// whole, gives a reason; the walker then stays where it is.
func (w *walker) group(f func(recordView) error) (h groupHeader, bad string, err error) {
	if w.pos+blockSize > w.size {
		return h, "end of segment", nil
	}
	b, err := w.bytesAt(w.pos, blockSize)
	if err != nil {
		return h, "", err
	}
	h, ok := parseHeader(b)
	switch {
	case !ok:
		return h, "no group header", nil
	case h.segment != w.segment || int64(h.block)*blockSize != w.pos || w.logID != 0 && h.logID != w.logID:
		return h, "group of another place", nil
	case w.next != 0 && (h.number != w.next || h.prev != w.chain) || h.number == 0 || h.synced >= h.number:
		return h, "group out of order", nil
	case h.size() > w.size-w.pos:
		return h, "group length", nil
	}
	b, err = w.bytesAt(w.pos, headerSize+int64(h.length))
	if err != nil {
		return h, "", err
	}
	bad, err = walkRecords(h, b[headerSize:], f)
	if err != nil || bad != "" {
		return h, bad, err
	}
	w.logID, w.next, w.chain = h.logID, h.number+1, h.crc
	w.pos += h.size()
	return h, "", nil
}

// proof looks from pos on for a group of this segment whose header says that group number was synced.
func (w *walker) proof(pos int64, number uint64) (groupHeader, bool, error) {
	for pos = align(pos); pos+blockSize <= w.size; pos += blockSize {
		b, err := w.bytesAt(pos, blockSize)
		if err != nil {
			return groupHeader{}, false, err
		}
		h, ok := parseHeader(b)
		if ok && h.segment == w.segment && int64(h.block)*blockSize == pos && (w.logID == 0 || h.logID == w.logID) && h.synced >= number {
			return h, true, nil
		}
	}
	return groupHeader{}, false, nil
}
