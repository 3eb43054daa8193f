package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/headrace/headrace/log/record"
)

// An Extent is what is known of a segment from elsewhere.
type Extent struct {
	First, End           int64 // first offset, and the one after the last
	LogBytes, IndexBytes int64
	Link                 uint32 // chain up to the last batch
}

// A Fault is a range of a segment whose bytes are not what was written.
type Fault struct {
	Index       bool  // of the index file, otherwise of the log file
	Pos, Bytes  int64 // in that file
	First, Last int64 // offsets that it concerns
	Err         error
}

// pieceBytes is how much of a log file is read at once, unless a batch is larger.
const pieceBytes = 1 << 20

// Verify reads a segment from the block that holds the offset from on: every block of the index, every batch, every link
// between them, and that both end where they should. visit gets each sound batch, valid during the call; nil: nobody.
// pause is called after each read of the log; nil: nobody. err is the disk's, or that of pause: what it has not read is
// not judged.
func Verify(seed Seed, index, log io.ReaderAt, x Extent, from int64, visit func(r *Ref, batch []byte), pause func(bytes int64) error) (faults []Fault, err error) {
	blocks, faults, err := readIndex(index, x)
	if err != nil {
		return faults, err
	}
	var refs []Ref
	for _, b := range blocks {
		if b.head.Last < from {
			continue
		}
		var h Head
		if h, refs, err = DecodeBlock(b.bytes, refs[:0]); err != nil {
			return faults, err // it was decoded before
		}
		more, err := verifyRefs(seed, log, refs, h.Prev, visit, pause)
		faults = append(faults, more...)
		if err != nil {
			return faults, err
		}
	}
	return faults, nil
}

// A block is one of an index, intact.
type block struct {
	head  Head
	pos   int64
	bytes []byte
	link  uint32 // after its last batch
}

// readIndex reads the intact blocks of an index and names what lies between them.
func readIndex(index io.ReaderAt, x Extent) (blocks []block, faults []Fault, err error) {
	b := make([]byte, x.IndexBytes)
	n, err := index.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("read index: %w", err)
	}
	b = b[:n]
	next, prev, pos := x.First, uint32(0), int64(0) // of the log: what should come
	bad := int64(-1)                                // where the damage begins that is being passed over
	var why error
	var refs []Ref
	end := func(at, before int64) {
		if bad >= 0 {
			faults = append(faults, Fault{Index: true, Pos: bad, Bytes: at - bad, First: next, Last: before - 1, Err: why})
		}
		bad = -1
	}
	for at := int64(0); at < x.IndexBytes; {
		var h Head
		err := error(fmt.Errorf("%w: the index ends at byte %d of %d", ErrCorrupt, n, x.IndexBytes))
		if at < int64(n) {
			h, refs, err = DecodeBlock(b[at:], refs[:0])
		}
		switch {
		case err != nil:
		case bad < 0 && (h.First != next || h.Pos != pos || h.Prev != prev):
			err = fmt.Errorf("%w: a block does not continue the chain", ErrCorrupt)
		case h.First < next || h.Pos < pos || h.Last >= x.End || h.Pos+h.Bytes > x.LogBytes:
			err = fmt.Errorf("%w: a block of other offsets", ErrCorrupt)
		}
		if err != nil {
			if bad < 0 {
				bad, why = at, err
			}
			skip := -1
			if at+1 < int64(n) {
				skip = bytes.Index(b[at+1:], []byte{blockMagic >> 8, blockMagic & 0xff, blockVersion, 0})
			}
			if skip < 0 {
				break
			}
			at += 1 + int64(skip)
			continue
		}
		end(at, h.First)
		link := refs[len(refs)-1].Link
		blocks = append(blocks, block{head: h, pos: at, bytes: b[at : at+int64(h.Size)], link: link})
		next, prev, pos = h.Last+1, link, h.Pos+h.Bytes
		at += int64(h.Size)
	}
	end(x.IndexBytes, x.End)
	if len(faults) == 0 && (next != x.End || pos != x.LogBytes || prev != x.Link) {
		faults = append(faults, Fault{Index: true, Pos: x.IndexBytes, First: next, Last: x.End - 1, Err: fmt.Errorf("%w: the index ends elsewhere than the segment", ErrCorrupt)})
	}
	return blocks, faults, nil
}

// verifyRefs reads the batches of one run of adjacent refs. Adjacent bad batches make one fault.
func verifyRefs(seed Seed, log io.ReaderAt, refs []Ref, prev uint32, visit func(*Ref, []byte), pause func(int64) error) (faults []Fault, err error) {
	for len(refs) > 0 {
		n, size := 0, int64(0)
		for n < len(refs) && (n == 0 || size+int64(refs[n].Size) <= pieceBytes) {
			size += int64(refs[n].Size)
			n++
		}
		b := make([]byte, size)
		have, err := log.ReadAt(b, refs[0].Pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return faults, fmt.Errorf("read log at byte %d: %w", refs[0].Pos, err)
		}
		for i := range refs[:n] {
			r := &refs[i]
			at := r.Pos - refs[0].Pos
			end := at + int64(r.Size)
			err := error(fmt.Errorf("%w: the file ends early", ErrCorrupt))
			if end <= int64(have) {
				err = seed.Verify(b[at:end], r, prev)
			}
			prev = r.Link
			if err == nil {
				if visit != nil {
					visit(r, b[at:end])
				}
				continue
			}
			if k := len(faults) - 1; k >= 0 && faults[k].Pos+faults[k].Bytes == r.Pos {
				faults[k].Bytes, faults[k].Last = faults[k].Bytes+int64(r.Size), r.Last
				continue
			}
			faults = append(faults, Fault{Pos: r.Pos, Bytes: int64(r.Size), First: r.Base, Last: r.Last, Err: err})
		}
		refs = refs[n:]
		if pause != nil {
			if err := pause(size); err != nil {
				return faults, err
			}
		}
	}
	return faults, nil
}

// VerifyBlock reads the batches of one block, as of a run in a mixed segment.
func VerifyBlock(seed Seed, log io.ReaderAt, b []byte, visit func(r *Ref, batch []byte), pause func(bytes int64) error) (faults []Fault, err error) {
	h, refs, err := DecodeBlock(b, nil)
	if err != nil {
		return nil, err
	}
	return verifyRefs(seed, log, refs, h.Prev, visit, pause)
}

// A Rebuilt segment is its files made anew.
type Rebuilt struct {
	Log     []byte // nil: the log file is as it should be
	Index   []byte
	Extent  Extent
	Guessed int     // batches whose place in the shard's log is not known any more: they have that of the one before
	Lost    []Range // offsets of batches that nobody has; empty batches stand in their place
}

// A Range is offsets, both included.
type Range struct{ First, Last int64 }

// ErrLost is why a segment cannot be made anew: batches are gone, and it was not allowed to give them up.
var ErrLost = errors.New("segment: batches are lost")

// Sources are where Rebuild finds what a segment does not hold any more.
type Sources struct {
	// Original returns the batch that r names as it was written, nil if it is nowhere. nil: nowhere.
	Original func(r *Ref) []byte
	// Whence returns where in the shard's log a batch came from: the fields Index, Unit, EntryPos and AppendTime. nil:
	// nobody knows.
	Whence func(batch []byte) (Ref, bool)
	// GiveUp allows that batches are lost.
	GiveUp bool
}

// Rebuild makes a segment anew out of what is left of it. Batches come from the log file where they are sound, otherwise
// from their original. A batch that nobody has is ErrLost, unless it is given up: then its offsets become an empty batch.
// Without damage to the log file the new index is proven by the chain: it must end in the link that is known from
// elsewhere.
//
// The whole segment is held in memory.
func Rebuild(seed Seed, index, log io.ReaderAt, x Extent, from Sources) (*Rebuilt, error) {
	blocks, _, err := readIndex(index, x)
	if err != nil {
		return nil, err
	}
	b := make([]byte, x.LogBytes)
	n, err := log.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read log: %w", err)
	}
	m := maker{seed: seed, b: b[:n], x: x, from: from, next: x.First}
	for i := range blocks {
		if err := m.until(blocks[i].head.First, blocks[i].head.Pos); err != nil {
			return nil, err
		}
		if err := m.block(&blocks[i]); err != nil {
			return nil, err
		}
	}
	if err := m.until(x.End, x.LogBytes); err != nil {
		return nil, err
	}
	m.closeBlock()
	out := &Rebuilt{Index: m.index, Guessed: m.guessed, Lost: m.lost, Extent: Extent{
		First: x.First, End: x.End, LogBytes: int64(len(m.log)), IndexBytes: int64(len(m.index)), Link: m.link,
	}}
	if len(m.lost) == 0 && m.link != x.Link {
		return nil, fmt.Errorf("%w: the chain of the log file does not end as it should", ErrCorrupt)
	}
	if !bytes.Equal(m.log, b) {
		out.Log = m.log
	}
	return out, nil
}

// A maker writes a segment anew, batch by batch.
type maker struct {
	seed Seed
	b    []byte // the old log file
	x    Extent
	from Sources

	log, index []byte
	link       uint32
	next, pos  int64 // offset and byte of the old log file that come next
	last       Ref   // the last one written
	refs       []Ref // of the block under way
	prev       uint32
	bytes      int64
	guessed    int
	lost       []Range
}

// block writes the batches of an intact block.
func (m *maker) block(k *block) error {
	_, refs, err := DecodeBlock(k.bytes, nil)
	if err != nil {
		return err
	}
	prev := k.head.Prev
	for i := range refs {
		r := &refs[i]
		var batch []byte
		if end := r.Pos + int64(r.Size); end <= int64(len(m.b)) && m.seed.Verify(m.b[r.Pos:end], r, prev) == nil {
			batch = m.b[r.Pos:end]
		} else if have := m.original(r); have != nil && m.seed.Verify(have, r, prev) == nil {
			batch = have
		} else if err := m.giveUpTo(r.Last + 1); err != nil {
			return err
		}
		if batch != nil {
			m.add(batch, *r)
		}
		prev, m.next, m.pos = r.Link, r.Last+1, r.Pos+int64(r.Size)
	}
	m.closeBlock()
	return nil
}

func (m *maker) original(r *Ref) []byte {
	if m.from.Original == nil {
		return nil
	}
	return m.from.Original(r)
}

// until writes the batches up to an offset, which begins at a byte, without an index.
func (m *maker) until(offset, pos int64) error {
	for m.next < offset {
		batch := m.parse(pos)
		if batch == nil {
			if err := m.giveUpTo(offset); err != nil {
				return err
			}
			break
		}
		h, err := record.ParseHeader(batch)
		if err != nil {
			return err // it was parsed before
		}
		ref, known := Ref{Index: m.last.Index, Unit: m.last.Unit, AppendTime: m.last.AppendTime}, false
		if m.from.Whence != nil {
			if r, ok := m.from.Whence(batch); ok && r.Index >= m.last.Index {
				ref, known = r, true
			}
		}
		if !known {
			m.guessed++
		}
		ref.Base, ref.Last, ref.Size, ref.Term, ref.MaxTimestamp = h.BaseOffset, h.LastOffset(), int32(len(batch)), uint64(h.LeaderEpoch), h.MaxTimestamp
		m.add(batch, ref)
		m.next, m.pos = h.LastOffset()+1, m.pos+int64(len(batch))
	}
	m.pos = pos
	return nil
}

// parse returns the sound batch at the place in the old file that comes next, nil if there is none.
func (m *maker) parse(end int64) []byte {
	end = min(end, int64(len(m.b)))
	if m.pos+record.HeaderSize > end {
		return nil
	}
	b := m.b[m.pos:end]
	n := 12 + int64(int32(binary.BigEndian.Uint32(b[8:])))
	if n < record.HeaderSize || n > int64(len(b)) {
		return nil
	}
	h, err := record.Verify(b[:n])
	if err != nil || h.BaseOffset != m.next || h.LastOffset() < m.next || h.LastOffset() >= m.x.End {
		return nil
	}
	return b[:n]
}

// giveUpTo writes an empty batch for the offsets that come next, up to an offset.
func (m *maker) giveUpTo(offset int64) error {
	if !m.from.GiveUp {
		return fmt.Errorf("%w: offsets %d to %d", ErrLost, m.next, offset-1)
	}
	b := EmptyBatch(m.next, offset-1, int32(m.last.Term))
	m.add(b, Ref{
		Base: m.next, Last: offset - 1, Size: int32(len(b)), Term: m.last.Term, Index: m.last.Index, Unit: m.last.Unit,
		AppendTime: m.last.AppendTime, MaxTimestamp: m.last.MaxTimestamp,
	})
	if k := len(m.lost) - 1; k >= 0 && m.lost[k].Last+1 == m.next {
		m.lost[k].Last = offset - 1
	} else {
		m.lost = append(m.lost, Range{m.next, offset - 1})
	}
	m.next = offset
	return nil
}

// EmptyBatch is a record batch that covers offsets and holds no record.
func EmptyBatch(first, last int64, epoch int32) []byte {
	b := make([]byte, record.HeaderSize)
	record.PutHeader(b, record.Header{
		BaseOffset: first, Length: record.HeaderSize - 12, LeaderEpoch: epoch, Magic: record.Magic, LastOffsetDelta: int32(last - first),
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	})
	record.Seal(b)
	return b
}

func (m *maker) add(batch []byte, r Ref) {
	if len(m.refs) == 0 {
		m.prev = m.link
	}
	r.Pos = int64(len(m.log))
	m.link = m.seed.Link(m.link, batch)
	r.Link = m.link
	m.log = append(m.log, batch...)
	m.refs = append(m.refs, r)
	m.last = r
	if m.bytes += int64(len(batch)); m.bytes >= BlockBytes {
		m.closeBlock()
	}
}

func (m *maker) closeBlock() {
	if len(m.refs) > 0 {
		m.index = AppendBlock(m.index, m.refs, m.prev)
		m.refs, m.bytes = m.refs[:0], 0
	}
}
