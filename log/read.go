package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
	"github.com/headrace/headrace/log/wal"
)

// maxFileRead bounds one read of a file, unless a single batch is larger.
const maxFileRead = 1 << 20

// readEvicted reads batches that are neither in memory nor in a file, from the log.
func (s *Store) readEvicted(p *Partition, from int64, maxBytes int, buf []Batch) ([]Batch, bool, error) {
	var want []tailBatch
	rows := p.tail.from(from)
	for i, n := 0, 0; i < len(rows) && len(want) < collectBatches; i++ {
		b := rows[i].batch()
		if n += int(b.size); b.Data != nil || n > min(maxBytes, maxFileRead) && len(want) > 0 {
			break
		}
		want = append(want, b)
	}
	r := entryReader{log: s.opts.Log}
	for i := range want {
		data, err := r.read(&want[i])
		if err != nil {
			if i > 0 {
				break
			}
			// A round may have placed the batch, and the log let go of it, in between.
			if l := p.layout.Load(); l != nil && from < l.written {
				return buf, true, nil
			}
			if errors.Is(err, wal.ErrCorrupt) || errors.Is(err, ErrCorrupt) {
				return buf, false, s.corrupt(&CorruptError{Path: "../wal", Partition: p.id, Offset: from, Position: -1, Err: err})
			}
			return buf, false, fmt.Errorf("read %s at offset %d: %w", p.id, from, err)
		}
		b := want[i].Batch
		b.Data = data
		buf = append(buf, b)
	}
	s.metrics.logReads.Add(1)
	return buf, len(want) == 0, nil
}

// readFiles reads batches from files. retry asks the caller to look again: what it knew has changed.
func (s *Store) readFiles(c *Cursor, p *Partition, from int64, maxBytes int, buf []Batch) (out []Batch, retry bool, err error) {
	var l *layout
	err = s.use(func() error {
		l = p.layout.Load()
		switch {
		case l == nil || from >= l.written:
			out, retry = buf, true
		case from >= l.mixStart:
			out, retry, err = s.readMixed(c, p, from, min(maxBytes, maxFileRead), buf)
		default:
			out, retry, err = s.readOwn(c, p, l, from, min(maxBytes, maxFileRead), buf)
		}
		return err
	})
	if errors.Is(err, ErrClosed) {
		return buf, false, err
	}
	if c != nil && c.ctx.Err() != nil && errors.Is(err, c.ctx.Err()) {
		return out, false, err
	}
	if err != nil || retry {
		// A file may have gone with the log start or with the partition, or its batches have moved.
		moved := l != nil && l.movedSince(p.layout.Load(), from)
		if l != nil && (moved || from < p.start.Load() || p.Dropped()) {
			return buf, true, nil
		}
	}
	s.metrics.fileReads.Add(1)
	var bad *CorruptError
	if errors.As(err, &bad) {
		err = s.corrupt(bad)
	}
	return out, retry, err
}

// runBatches is batches of a file with what the index says of them.
type runBatches struct {
	refs []segment.Ref
	out  []Batch
}

func (s *Store) readMixed(c *Cursor, p *Partition, from int64, maxBytes int, buf []Batch) (out []Batch, retry bool, err error) {
	out, retry = buf, true
	n := 0
	err = s.eachRun(s.db, p.id, from, func(_ int64, file uint64, h segment.Head, block []byte) (bool, error) {
		if len(out) == len(buf) && h.First > from {
			return false, nil // it has moved
		}
		got, again, err := s.readRun(c, p, file, block, max(from, h.First), maxBytes-n, out)
		if again {
			return false, nil
		}
		if err != nil {
			out = got.out // the good ones before
			return false, err
		}
		for _, b := range got.out[len(out):] {
			n += len(b.Data)
		}
		out, retry = got.out, false
		return n < maxBytes && out[len(out)-1].Last == h.Last, nil
	})
	return out, retry && err == nil, err
}

// missing names what should hold an offset and does not: the mixed file that a row says, or the partition's directory.
func (s *Store) missing(p *Partition, offset int64) string {
	path := s.partitionDir(p.id)
	_ = s.use(func() error { // closed: as good as it gets
		return s.eachRun(s.db, p.id, offset, func(_ int64, file uint64, h segment.Head, _ []byte) (bool, error) {
			if h.First <= offset {
				path = s.mixedPath(file)
			}
			return false, nil
		})
	})
	return path
}

// readRun reads batches of one run of the mixed segment, from the one at from on.
func (s *Store) readRun(c *Cursor, p *Partition, file uint64, block []byte, from int64, maxBytes int, buf []Batch) (got runBatches, again bool, err error) {
	got.out = buf
	path := s.mixedPath(file)
	m := c.memory()
	h0, refs, err := segment.DecodeBlock(block, m.refs[:0])
	if err != nil {
		return got, false, &CorruptError{Path: "kv", Partition: p.id, Offset: from, Position: -1, Err: err}
	}
	m.refs = refs
	h, err := s.handles.open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return got, true, nil // moved and removed since the row was read, or lost
		}
		return got, false, err
	}
	defer s.handles.release(h)
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(file)}
	return s.readRefs(c, p, h, seed, refs, 0, h0.Pos+h0.Bytes, from, maxBytes, buf)
}

func (s *Store) readOwn(c *Cursor, p *Partition, l *layout, from int64, maxBytes int, buf []Batch) (out []Batch, retry bool, err error) {
	k := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].end > from })
	if k == len(l.segs) || l.segs[k].base > from {
		return buf, true, nil
	}
	seg := &l.segs[k]
	refs, prev, err := s.segmentRefs(c, p, seg, from, maxBytes)
	if err != nil {
		return buf, false, err
	}
	path, _ := c.paths(s, p.id, seg)
	h, err := s.handles.open(path)
	if err != nil {
		return buf, false, s.fileError(p, path, from, err)
	}
	defer s.handles.release(h)
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: seg.base}
	got, _, err := s.readRefs(c, p, h, seed, refs, prev, seg.logBytes, from, maxBytes, buf)
	return got.out, false, err
}

// segmentRefs reads the blocks of a segment's index that name the batch at from and what follows within
// maxBytes of log.
func (s *Store) segmentRefs(c *Cursor, p *Partition, seg *segmentInfo, from int64, maxBytes int) (refs []segment.Ref, prev uint32, err error) {
	_, path := c.paths(s, p.id, seg)
	h, err := s.handles.open(path)
	if err != nil {
		return nil, 0, s.fileError(p, path, from, err)
	}
	defer s.handles.release(h)
	marks, err := s.indexes.get(path).Marks(h.f, seg.indexBytes)
	if err == nil {
		i := segment.Find(marks, from)
		if i < 0 {
			return nil, 0, &CorruptError{Path: path, Partition: p.id, Offset: from, Position: 0, Err: fmt.Errorf("%w: the index begins above", ErrCorrupt)}
		}
		j := i + 1
		for j < len(marks) && marks[j].Pos-marks[i].Pos < int64(maxBytes) {
			j++
		}
		m := c.memory()
		m.refs, m.blocks, prev, err = segment.ReadBlocksInto(h.f, marks[i:j], m.refs[:0], m.blocks)
		refs = m.refs
	}
	return refs, prev, s.fileError(p, path, from, err)
}

// fileError makes a missing file, or bytes that make no sense, a *CorruptError. nil stays nil.
func (s *Store) fileError(p *Partition, path string, from int64, err error) error {
	if errors.Is(err, segment.ErrCorrupt) || errors.Is(err, os.ErrNotExist) {
		return &CorruptError{Path: path, Partition: p.id, Offset: from, Position: -1, Err: err}
	}
	return err
}

// readRefs reads and checks the batches of refs from the one at from on, in one read of the file. More follows in the
// file up to byte end.
func (s *Store) readRefs(c *Cursor, p *Partition, h *handle, seed segment.Seed, refs []segment.Ref, prev uint32, end, from int64, maxBytes int, buf []Batch) (got runBatches, again bool, err error) {
	got.out = buf
	i := sort.Search(len(refs), func(i int) bool { return refs[i].Last >= from })
	if i == len(refs) {
		return got, false, &CorruptError{Path: h.path, Partition: p.id, Offset: from, Position: -1, Err: fmt.Errorf("%w: the index ends below", ErrCorrupt)}
	}
	if i > 0 {
		prev = refs[i-1].Link
	}
	refs = refs[i:]
	size, n := int64(0), 0
	for n < len(refs) && (n == 0 || size+int64(refs[n].Size) <= int64(maxBytes)) {
		if refs[n].Size > MaxBatchBytes {
			return got, false, &CorruptError{Path: h.path, Partition: p.id, Offset: refs[n].Base, Position: refs[n].Pos, Err: fmt.Errorf("%w: batch of %d bytes", ErrCorrupt, refs[n].Size)}
		}
		size += int64(refs[n].Size)
		n++
	}
	refs = refs[:n]
	if err := c.wait(int(size)); err != nil {
		return got, false, err
	}
	b := c.room(size)
	got.out = slices.Grow(got.out, n)
	have, err := c.read(h, b, refs[0].Pos, end, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return got, false, fmt.Errorf("read %s: %w", h.path, err)
	}
	for i := range refs {
		r := &refs[i]
		at := r.Pos - refs[0].Pos
		data := b[at : at+int64(r.Size) : at+int64(r.Size)]
		if c != nil {
			data = b[at : at+int64(r.Size)] // whoever sends it sees that the next one follows
		}
		if int64(have) < at+int64(r.Size) {
			err = fmt.Errorf("%w: the file ends early", ErrCorrupt)
		} else {
			err = seed.Verify(data, r, prev)
		}
		if err != nil {
			got.refs = refs[:i]
			return got, false, &CorruptError{Path: h.path, Partition: p.id, Offset: r.Base, Position: r.Pos, Err: err}
		}
		prev = r.Link
		got.out = append(got.out, Batch{
			Base: r.Base, Last: r.Last, Epoch: int32(r.Term), Unit: r.Unit, Index: r.Index, AppendTime: r.AppendTime,
			MaxTimestamp: r.MaxTimestamp, Data: data, Stored: true,
		})
	}
	got.refs = refs
	return got, false, nil
}

// OffsetForTime returns the first record whose timestamp (ms) is at or above ms, with its timestamp. ok is
// false if there is none. It may read from the disk. In a columnar batch it answers with the batch's first
// record.
func (p *Partition) OffsetForTime(ms int64) (offset, timestamp int64, ok bool, err error) {
	from := p.start.Load()
	var buf []Batch
	for range 1 << 20 { // each turn goes at least one batch on; almost always the first finds it
		at, found, err := p.st.batchForTime(p, from, ms)
		if err != nil || !found {
			return 0, 0, false, err
		}
		if buf, err = p.Read(at, 1, buf[:0]); err != nil || len(buf) == 0 {
			if errors.Is(err, ErrOffsetRange) && p.start.Load() > at {
				from = p.start.Load()
				continue
			}
			return 0, 0, false, err
		}
		if o, ts, ok := recordForTime(&buf[0], max(at, from), ms); ok {
			return o, ts, true, nil
		}
		from = buf[0].Last + 1
	}
	return 0, 0, false, nil
}

// recordForTime looks into one batch.
func recordForTime(b *Batch, from, ms int64) (offset, timestamp int64, ok bool) {
	h, err := record.ParseHeader(b.Data)
	if err != nil {
		return 0, 0, false
	}
	if h.Control() {
		return 0, 0, false
	}
	var r record.Reader
	if err := r.Reset(b.Data); err == nil {
		for r.Next() {
			rec := r.Record()
			if o := rec.Offset - h.BaseOffset + b.Base; o >= from && rec.Timestamp >= ms {
				return o, rec.Timestamp, true
			}
		}
		if r.Err() == nil {
			return 0, 0, false
		}
	}
	// Columns, or records that only their producer understands.
	return max(b.Base, from), b.MaxTimestamp, b.MaxTimestamp >= ms
}

// batchForTime returns an offset of the first batch at or above from whose largest timestamp is not below ms.
func (s *Store) batchForTime(p *Partition, from, ms int64) (at int64, found bool, err error) {
	err = s.use(func() error {
		l := p.layout.Load()
		if l == nil {
			return nil
		}
		for i := range l.segs {
			seg := &l.segs[i]
			if seg.end <= from || seg.maxTime < ms {
				continue
			}
			if at, found, err = s.timeInSegment(p, seg, from, ms); err != nil && !p.layout.Load().names(seg) {
				return errSwapped
			}
			if found || err != nil {
				return err
			}
		}
		if l.mixRuns == 0 {
			return nil
		}
		return s.eachRun(s.db, p.id, max(from, l.mixStart), func(_ int64, _ uint64, h segment.Head, block []byte) (bool, error) {
			if h.MaxTimestamp < ms {
				return true, nil
			}
			_, refs, err := segment.DecodeBlock(block, nil)
			if err != nil {
				return false, &CorruptError{Path: "kv", Partition: p.id, Offset: h.First, Position: -1, Err: err}
			}
			at, found = timeInRefs(refs, from, ms)
			return !found, nil
		})
	})
	if err != nil {
		if p.start.Load() > from || p.Dropped() {
			return p.start.Load(), true, nil // Read says what is the matter
		}
		if errors.Is(err, errSwapped) {
			return s.batchForTime(p, from, ms)
		}
		var bad *CorruptError
		if errors.As(err, &bad) {
			err = s.corrupt(bad)
		}
		return 0, false, err
	}
	if found {
		return at, true, nil
	}
	rows := p.tail.from(from)
	for i := range rows {
		if b := &rows[i]; b.maxTimestamp >= ms {
			return max(b.base, from), true, nil
		}
	}
	return 0, false, nil
}

func (s *Store) timeInSegment(p *Partition, seg *segmentInfo, from, ms int64) (at int64, found bool, err error) {
	path := s.indexPath(p.id, seg)
	h, err := s.handles.open(path)
	if err != nil {
		return 0, false, s.fileError(p, path, from, err)
	}
	defer s.handles.release(h)
	marks, err := s.indexes.get(path).Marks(h.f, seg.indexBytes)
	if err != nil {
		return 0, false, s.fileError(p, path, from, err)
	}
	for i := max(0, segment.Find(marks, from)); i < len(marks); i++ {
		if marks[i].MaxTimestamp < ms {
			continue
		}
		refs, _, err := segment.ReadBlocks(h.f, marks[i:i+1], nil)
		if err != nil {
			return 0, false, s.fileError(p, path, from, err)
		}
		if at, found = timeInRefs(refs, from, ms); found {
			return at, true, nil
		}
	}
	return 0, false, nil
}

func timeInRefs(refs []segment.Ref, from, ms int64) (at int64, found bool) {
	for i := range refs {
		if refs[i].Last >= from && refs[i].MaxTimestamp >= ms {
			return max(refs[i].Base, from), true
		}
	}
	return 0, false
}
