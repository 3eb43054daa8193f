package log

import (
	"fmt"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// checkPlacement holds everything that only says where records are (indexes, layouts, the account of the mixed
// segment) against the records in the files themselves: it must be what one would make of them anew.
func checkPlacement(s *Store) error {
	if err := s.Flush(noContext); err != nil {
		return err
	}
	live := map[uint64]int64{}
	for _, id := range s.Partitions() {
		p, _ := s.Partition(id)
		l := p.layout.Load()
		if l == nil {
			if p.LogEnd() > 0 {
				return fmt.Errorf("partition %s has no layout", id)
			}
			continue
		}
		if l.written != p.LogEnd() {
			return fmt.Errorf("partition %s: written to %d, log end %d", id, l.written, p.LogEnd())
		}
		next := int64(-1)
		for i := range l.segs {
			if l.segs[i].base < next {
				return fmt.Errorf("partition %s: segment %d begins below %d", id, l.segs[i].base, next)
			}
			if err := checkSegment(s, p, &l.segs[i]); err != nil {
				return fmt.Errorf("partition %s segment %d: %w", id, l.segs[i].base, err)
			}
			next = l.segs[i].end
		}
		runs, bytes, oldest := 0, int64(0), int64(0)
		err := s.eachRun(s.db, id, l.mixStart, func(base int64, file uint64, h segment.Head, block []byte) (bool, error) {
			if runs == 0 {
				oldest = h.AppendTime
			}
			runs++
			bytes += h.Bytes
			live[file] += h.Bytes
			_, again, err := s.readRun(nil, p, file, block, 0, int(h.Bytes), nil)
			return err == nil && !again, errIf(err == nil && again, "mixed file is missing")
		})
		if err != nil {
			return err
		}
		if runs != l.mixRuns || bytes != l.mixBytes || oldest != l.mixOldest {
			return fmt.Errorf("partition %s: %d runs of %d bytes, oldest %d; the layout says %d, %d, %d", id, runs, bytes, oldest, l.mixRuns, l.mixBytes, l.mixOldest)
		}
	}
	for n, m := range s.w.mixed {
		if m.live != live[n] || m.live > m.size {
			return fmt.Errorf("mixed file %d: %d bytes live of %d, runs say %d", n, m.live, m.size, live[n])
		}
		delete(live, n)
	}
	if len(live) > 0 {
		return fmt.Errorf("runs in mixed files that nobody knows: %v", live)
	}
	return nil
}

// checkSegment makes the index and the row of a segment anew from its batches.
func checkSegment(s *Store, p *Partition, seg *segmentInfo) error {
	data, err := s.handles.open(s.logPath(p.id, seg))
	if err != nil {
		return err
	}
	defer s.handles.release(data)
	index, err := s.handles.open(s.indexPath(p.id, seg))
	if err != nil {
		return err
	}
	defer s.handles.release(index)
	var x segment.Index
	marks, err := x.Marks(index.f, seg.indexBytes)
	if err != nil {
		return err
	}
	refs, _, err := segment.ReadBlocks(index.f, marks, nil)
	if err != nil {
		return err
	}
	b := make([]byte, seg.logBytes)
	if n, err := data.f.ReadAt(b, 0); int64(n) < seg.logBytes {
		return err
	}
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: seg.base}
	made := segmentInfo{base: seg.base, end: seg.base, logBytes: seg.logBytes, indexBytes: seg.indexBytes, generation: seg.generation}
	at := int64(0)
	for i := range refs {
		ref := &refs[i]
		if ref.Pos != at || ref.Base < made.end {
			return fmt.Errorf("batch %d at byte %d in the index, %d and at least %d by the file", ref.Base, ref.Pos, at, made.end)
		}
		h, err := record.ParseHeader(b[at:])
		if err != nil {
			return err
		}
		end := at + int64(h.Size())
		if h.BaseOffset != ref.Base || h.BaseOffset+int64(h.LastOffsetDelta) != ref.Last || h.MaxTimestamp != ref.MaxTimestamp || end != at+int64(ref.Size) {
			return fmt.Errorf("batch %+v in the index as %+v", h, *ref)
		}
		made.link = seed.Link(made.link, b[at:end])
		if made.link != ref.Link {
			return fmt.Errorf("batch %d: link %x in the index, %x by the file", ref.Base, ref.Link, made.link)
		}
		if i == 0 {
			made.firstAppend, made.maxTime = ref.AppendTime, ref.MaxTimestamp
		}
		made.lastAppend, made.maxTime = max(made.lastAppend, ref.AppendTime), max(made.maxTime, ref.MaxTimestamp)
		made.end, at = ref.Last+1, end
	}
	if at != seg.logBytes || made != *seg {
		return fmt.Errorf("row %+v, by the file %+v with %d bytes", *seg, made, at)
	}
	return nil
}
