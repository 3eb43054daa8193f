package log

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// eachStored calls f for the batches of a segment from the one at from on, in order and checked against checksum and
// chain. data is valid during the call. It returns false, without an error, when f has.
//
// It reads with files of its own, ahead by a megabyte, and keeps none of the caches for readers busy.
func (s *Store) eachStored(id PartitionID, seg *segmentInfo, from int64, f func(data []byte, r *segment.Ref) (more bool, err error)) (bool, error) {
	fs := s.opts.FS
	logPath, indexPath := s.logPath(id, seg), s.indexPath(id, seg)
	x, err := fs.OpenFile(s.path(indexPath))
	if err != nil {
		return false, s.storedError(id, indexPath, from, -1, err)
	}
	defer func() { _ = x.Close() }()
	l, err := fs.OpenFile(s.path(logPath))
	if err != nil {
		return false, s.storedError(id, logPath, from, -1, err)
	}
	defer func() { _ = l.Close() }()
	marks, err := new(segment.Index).Marks(x, seg.indexBytes)
	if err != nil {
		return false, s.storedError(id, indexPath, from, -1, err)
	}
	seed := segment.Seed{Topic: id.Topic, Partition: id.Index, Segment: seg.base}
	var refs []segment.Ref
	var buf []byte
	next, link := seg.base, uint32(0)
	first := max(0, segment.Find(marks, from))
	for i := first; i < len(marks); {
		select {
		case <-s.closed:
			return false, ErrClosed
		default:
		}
		j := i + 1
		for j < len(marks) && marks[j].Pos-marks[i].Pos < chunkBytes {
			j++
		}
		var prev uint32
		if refs, prev, err = segment.ReadBlocks(x, marks[i:j], refs[:0]); err != nil {
			return false, s.storedError(id, indexPath, marks[i].First, -1, err)
		}
		if i > first || i == 0 {
			if prev != link || refs[0].Base != next {
				return false, s.storedError(id, indexPath, refs[0].Base, marks[i].IndexPos, fmt.Errorf("%w: block does not continue the chain", segment.ErrCorrupt))
			}
		}
		last := &refs[len(refs)-1]
		next, link = last.Last+1, last.Link
		size := last.Pos + int64(last.Size) - refs[0].Pos
		if size < 0 || last.Pos+int64(last.Size) > seg.logBytes {
			return false, s.storedError(id, indexPath, refs[0].Base, marks[i].IndexPos, fmt.Errorf("%w: batches beyond the end", segment.ErrCorrupt))
		}
		if int64(cap(buf)) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if n, err := l.ReadAt(buf, refs[0].Pos); err != nil && int64(n) < size {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: the file ends early", segment.ErrCorrupt)
			}
			return false, s.storedError(id, logPath, refs[0].Base, refs[0].Pos+int64(n), err)
		}
		for k := range refs {
			r := &refs[k]
			at := r.Pos - refs[0].Pos
			data := buf[at : at+int64(r.Size) : at+int64(r.Size)]
			if err := seed.Verify(data, r, prev); err != nil {
				return false, s.storedError(id, logPath, r.Base, r.Pos, err)
			}
			prev = r.Link
			if r.Last < from {
				continue
			}
			if more, err := f(data, r); err != nil || !more {
				return false, err
			}
		}
		i = j
	}
	if next != seg.end || link != seg.link {
		return false, s.storedError(id, indexPath, next, seg.indexBytes, fmt.Errorf("%w: the index ends at offset %d, the segment at %d", segment.ErrCorrupt, next, seg.end))
	}
	return true, nil
}

// storedError makes bytes that make no sense, or are not there, a *CorruptError.
func (s *Store) storedError(id PartitionID, path string, offset, position int64, err error) error {
	if isDamage(err) {
		return &CorruptError{Path: path, Partition: id, Offset: offset, Position: position, Err: err}
	}
	return fmt.Errorf("read %s: %w", path, err)
}

// A compactedSegment is a segment file being written by a pass, with its index. Offsets stay dense: where records have
// gone, one batch without records stands for all that are adjacent.
type compactedSegment struct {
	s     *Store
	id    PartitionID
	seg   segmentInfo
	seed  segment.Seed
	files [2]fsx.File // log, index

	buf     []byte // of the log, not yet written
	logPos  int64  // where buf goes
	refs    []segment.Ref
	refSize int64
	prev    uint32 // link before refs
	index   []byte

	// A time mark waits until something stays behind it: a later mark says all that it says.
	before, after gap
	held          []byte
	heldRef       segment.Ref
	lost          bool // a record has gone
}

// A gap is offsets whose records have gone, and what the index says of the last of them.
type gap struct {
	base int64
	last segment.Ref
	open bool
}

func (g *gap) add(base int64, r *segment.Ref) {
	if !g.open {
		g.open, g.base = true, base
	}
	g.last = *r
}

// newCompacted makes the files of a segment.
func (s *Store) newCompacted(id PartitionID, seg segmentInfo) (*compactedSegment, error) {
	o := &compactedSegment{s: s, id: id, seg: seg, seed: segment.Seed{Topic: id.Topic, Partition: id.Index, Segment: seg.base}}
	for i, path := range o.paths() {
		f, err := s.opts.FS.CreateFile(s.path(path))
		if err != nil {
			o.discard()
			return nil, fmt.Errorf("create %s: %w", path, err)
		}
		o.files[i] = f
	}
	return o, nil
}

func (o *compactedSegment) paths() [2]string {
	return [...]string{o.s.logPath(o.id, &o.seg), o.s.indexPath(o.id, &o.seg)}
}

// discard removes the files.
func (o *compactedSegment) discard() {
	o.closeFiles()
	for _, path := range o.paths() {
		if err := o.s.removeFile(path); err != nil {
			o.s.opts.Logger.Warn("file not removed", "path", path, "err", err) // it is found again at the next start
		}
	}
}

func (o *compactedSegment) closeFiles() {
	for i, f := range o.files {
		if f != nil {
			_ = f.Close() // synced, or to be removed
		}
		o.files[i] = nil
	}
}

// add takes the next batch of the source and what becomes of it.
func (o *compactedSegment) add(f fate, data []byte, r *segment.Ref) error {
	switch f {
	case goes:
		o.lost = o.lost || len(data) > emptyBatchBytes
		if o.held != nil {
			o.after.add(r.Base, r)
		} else {
			o.before.add(r.Base, r)
		}
		return nil
	case mark:
		if o.held != nil {
			o.lost = true
			o.before.add(o.heldRef.Base, r) // up to here: the gaps around the held one meet
			o.before.last = o.heldRef
			if o.after.open {
				o.before.last = o.after.last
			}
			o.after = gap{}
		}
		o.held, o.heldRef = append([]byte(nil), data...), *r
		return nil
	}
	o.lost = o.lost || f == shrunk
	if err := o.settle(); err != nil {
		return err
	}
	return o.put(data, r)
}

// settle writes the gaps and the time mark that wait.
func (o *compactedSegment) settle() error {
	if err := o.fill(&o.before); err != nil {
		return err
	}
	if o.held != nil {
		if err := o.put(o.held, &o.heldRef); err != nil {
			return err
		}
		o.held = nil
	}
	return o.fill(&o.after)
}

// emptyBatchBytes is the size of a batch without records.
const emptyBatchBytes = record.HeaderSize

// maxGap is how many offsets one batch can stand for.
const maxGap = 1 << 31

func (o *compactedSegment) fill(g *gap) error {
	if !g.open {
		return nil
	}
	g.open = false
	for base := g.base; base <= g.last.Last; base += maxGap {
		r := g.last
		r.Base, r.Last = base, min(g.last.Last, base+maxGap-1)
		r.MaxTimestamp = -1
		if err := o.put(emptyBatch(r.Base, r.Last, int32(r.Term)), &r); err != nil {
			return err
		}
	}
	return nil
}

// put writes a batch.
func (o *compactedSegment) put(data []byte, r *segment.Ref) error {
	ref := *r
	ref.Size, ref.Pos = int32(len(data)), o.seg.logBytes
	if h, err := record.ParseHeader(data); err == nil {
		ref.MaxTimestamp = h.MaxTimestamp
	}
	if o.seg.logBytes == 0 {
		o.seg.firstAppend, o.seg.maxTime = ref.AppendTime, ref.MaxTimestamp
	}
	o.seg.lastAppend = max(o.seg.lastAppend, ref.AppendTime)
	o.seg.link = o.seed.Link(o.seg.link, data)
	ref.Link = o.seg.link
	o.refs = append(o.refs, ref)
	o.refSize += int64(ref.Size)
	o.seg.logBytes += int64(ref.Size)
	o.seg.end = ref.Last + 1
	o.seg.maxTime = max(o.seg.maxTime, ref.MaxTimestamp)
	o.buf = append(o.buf, data...)
	if o.refSize >= segment.BlockBytes {
		o.closeBlock()
	}
	if len(o.buf) >= chunkBytes {
		return o.flush()
	}
	return nil
}

func (o *compactedSegment) closeBlock() {
	if len(o.refs) == 0 {
		return
	}
	o.index = segment.AppendBlock(o.index, o.refs, o.prev)
	o.prev = o.refs[len(o.refs)-1].Link
	o.refs, o.refSize = o.refs[:0], 0
}

func (o *compactedSegment) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	n := int64(len(o.buf))
	if _, err := o.files[0].WriteAround(o.buf, o.logPos); err != nil {
		return fmt.Errorf("write %s: %w", o.paths()[0], err)
	}
	o.logPos += n
	o.buf = o.buf[:0]
	return o.s.pauseCompaction(n)
}

// finish writes what waits and makes the segment durable.
func (o *compactedSegment) finish() error {
	if err := o.settle(); err != nil {
		return err
	}
	o.closeBlock()
	if err := o.flush(); err != nil {
		return err
	}
	if _, err := o.files[1].WriteAt(o.index, 0); err != nil {
		return fmt.Errorf("write %s: %w", o.paths()[1], err)
	}
	o.seg.indexBytes = int64(len(o.index))
	for i, f := range o.files {
		// A failed sync is not tried again: the files are removed.
		if err := f.SyncData(); err != nil {
			return fmt.Errorf("sync %s: %w", o.paths()[i], err)
		}
	}
	o.closeFiles()
	// The directories above may be new as well: the checkpoint has not come yet that would sync them.
	for dir := o.s.partitionDir(o.id); ; dir = o.s.opts.FS.PathDir(dir) {
		if err := o.s.opts.FS.SyncDir(o.s.path(dir)); err != nil {
			return fmt.Errorf("sync directory %s: %w", dir, err)
		}
		if dir == "." {
			return nil
		}
	}
}

// pauseCompaction makes the pause of Options.WritePause after n bytes, so that the syncs of the log do not queue behind
// a pass. ErrClosed if the store is closed meanwhile.
func (s *Store) pauseCompaction(n int64) error {
	var wait <-chan time.Time
	if !s.opts.Manual && s.opts.WritePause > 0 {
		t := time.NewTimer(time.Duration(n) * s.opts.WritePause / chunkBytes)
		defer t.Stop()
		wait = t.C
	} else {
		done := make(chan time.Time)
		close(done)
		wait = done
	}
	select {
	case <-s.closed:
		return ErrClosed
	case <-wait:
		return nil
	}
}
