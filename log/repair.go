package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// A restorer makes damaged files of a store anew.
type restorer struct {
	s    *Store
	o    RepairOptions
	log  entryReader
	done []Repair

	mixFile uint64 // number of the mixed file under way, 0: none
	mixBuf  []byte
	mixOld  map[uint64]int64 // bytes of runs that have left other files
	batch   *pebble.Batch    // their rows
}

// original fetches the batch that r names from the shard's log, nil if it is not there.
func (r *restorer) original(ref *segment.Ref) []byte {
	data, err := r.log.at(ref.Index, ref.EntryPos, ref.Size)
	if err != nil || len(data) < record.HeaderSize {
		return nil
	}
	data = bytes.Clone(data)
	record.SetBase(data, ref.Base, int32(ref.Term))
	return data
}

// whence finds where batches of a partition came from, as far as the shard's log still says.
func (r *restorer) whence(id PartitionID) func([]byte) (segment.Ref, bool) {
	var known map[string]segment.Ref
	return func(batch []byte) (segment.Ref, bool) {
		if known == nil {
			known = r.appends(id)
		}
		ref, ok := known[string(batch[16:record.HeaderSize])]
		return ref, ok
	}
}

// appends maps the fixed part of the headers of a partition's batches in the shard's log to where they are. Of equal
// ones, which nobody can tell apart, it knows none.
func (r *restorer) appends(id PartitionID) map[string]segment.Ref {
	known, twice := map[string]segment.Ref{}, map[string]bool{}
	if r.s.opts.Log == nil {
		return known
	}
	first, last := r.s.opts.Log.Bounds()
	for i := first; i != 0 && i <= last; i++ {
		_, data, err := r.s.opts.Log.ReadEntry(i)
		if err != nil {
			continue
		}
		e, err := DecodeEntry(data)
		if err != nil {
			continue
		}
		at := EntryHeaderBytes
		for n, u := range e.Units() {
			at += unitHeader
			for op := range u.Ops() {
				pos := at + opHeader + partitionSz
				at += opHeader + len(op.Body)
				if op.Kind != OpAppend {
					continue
				}
				p, b := op.Append()
				if p != id || len(b) < record.HeaderSize {
					continue
				}
				key := string(b[16:record.HeaderSize])
				if _, ok := known[key]; ok {
					twice[key] = true
				}
				known[key] = segment.Ref{Index: i, Unit: int32(n), EntryPos: uint32(pos), AppendTime: e.AppendTime}
			}
		}
	}
	for key := range twice {
		delete(known, key)
	}
	return known
}

func (r *restorer) segment(p *Partition, seg *segmentInfo) error {
	s := r.s
	faults, err := s.verifySegment(p, seg, 0, nil, nil)
	if err != nil || len(faults) == 0 {
		return err
	}
	logPath, indexPath := s.logPath(p.id, seg), s.indexPath(p.id, seg)
	index, done, _, err := s.reader(indexPath)
	if err != nil {
		return err
	}
	defer done()
	log, done2, _, err := s.reader(logPath)
	if err != nil {
		return err
	}
	defer done2()
	out, err := segment.Rebuild(seedOf(p.id, seg.base), index, log, extentOf(seg), segment.Sources{
		Original: r.original, Whence: r.whence(p.id), GiveUp: r.o.GiveUp,
	})
	if err != nil {
		return fmt.Errorf("partition %s, %s: %w", p.id, logPath, err)
	}
	fix := Repair{Path: logPath, What: "records restored from the shard's log", Guessed: out.Guessed}
	for _, x := range out.Lost {
		fix.Lost = append(fix.Lost, LostRange{p.id, x.First, x.Last})
		fix.What = "records given up: their offsets are empty"
	}
	if out.Log != nil {
		if fix.Old, err = r.replace(logPath, out.Log); err != nil {
			return err
		}
		r.done = append(r.done, fix)
		fix = Repair{}
	}
	old, err := r.replace(indexPath, out.Index)
	if err != nil {
		return err
	}
	r.done = append(r.done, Repair{Path: indexPath, Old: old, What: "index made anew from the records", Guessed: fix.Guessed})
	row := *seg
	row.logBytes, row.indexBytes, row.link = out.Extent.LogBytes, out.Extent.IndexBytes, out.Extent.Link
	if err := s.db.Set(offsetKey(rowSegment, p.id, seg.base), row.encode(nil), pebble.NoSync); err != nil {
		return s.kvError(err)
	}
	return nil
}

// replace writes a file aside, syncs it, moves the old one out of the way and takes its name.
func (r *restorer) replace(path string, b []byte) (old string, err error) {
	s := r.s
	fs := s.opts.FS
	aside := path + ".new"
	f, err := fs.CreateFile(s.path(aside))
	if err != nil {
		return "", err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("write %s: %w", aside, err)
	}
	old = path + r.o.Suffix
	s.handles.forget(path)
	s.indexes.forget(path)
	if err := fs.Rename(s.path(path), s.path(old)); errors.Is(err, os.ErrNotExist) {
		old = ""
	} else if err != nil {
		return "", err
	}
	if err := fs.Rename(s.path(aside), s.path(path)); err != nil {
		return old, err
	}
	return old, fs.SyncDir(s.path(fs.PathDir(path)))
}

// mixed copies the runs of a partition that are damaged to a new mixed file, with what is left of them.
func (r *restorer) mixed(p *Partition, l *layout) error {
	if l.mixRuns == 0 {
		return nil
	}
	var lost []error
	err := r.s.eachRun(r.s.db, p.id, l.mixStart, func(base int64, file uint64, h segment.Head, block []byte) (bool, error) {
		err := r.run(p, base, file, h, block)
		if errors.Is(err, segment.ErrLost) {
			lost = append(lost, err)
			err = nil
		}
		return true, err
	})
	return errors.Join(append(lost, err)...)
}

func (r *restorer) run(p *Partition, base int64, file uint64, h segment.Head, block []byte) error {
	s := r.s
	sound := map[int64][]byte{}
	faults, err := s.verifyRun(p, file, block, func(ref *segment.Ref, b []byte) { sound[ref.Base] = bytes.Clone(b) }, nil)
	if err != nil || len(faults) == 0 {
		return err
	}
	_, refs, err := segment.DecodeBlock(block, nil)
	if err != nil {
		return err
	}
	fix := Repair{Path: s.mixedPath(file), What: "records restored from the shard's log"}
	if r.mixFile == 0 {
		r.mixFile, r.mixOld, r.batch = s.w.mixedNow+1, map[uint64]int64{}, s.db.NewBatch()
	}
	from := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(file)}
	to := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(r.mixFile)}
	var out []segment.Ref
	var buf []byte
	prev, link := uint32(0), uint32(0)
	for i := range refs {
		ref := refs[i]
		b := sound[ref.Base]
		if b == nil {
			if b = r.original(&ref); b != nil && from.Verify(b, &ref, prev) != nil {
				b = nil
			}
		}
		if b == nil {
			if !r.o.GiveUp {
				return fmt.Errorf("partition %s, %s: %w: offsets %d to %d", p.id, s.mixedPath(file), segment.ErrLost, ref.Base, ref.Last)
			}
			b = segment.EmptyBatch(ref.Base, ref.Last, int32(ref.Term))
			fix.What = "records given up: their offsets are empty"
			fix.Lost = append(fix.Lost, LostRange{p.id, ref.Base, ref.Last})
		}
		prev = ref.Link
		link = to.Link(link, b)
		ref.Pos, ref.Size, ref.Link = int64(len(r.mixBuf)+len(buf)), int32(len(b)), link
		buf = append(buf, b...)
		out = append(out, ref)
	}
	r.mixBuf = append(r.mixBuf, buf...)
	r.mixOld[file] += h.Bytes
	_ = r.batch.Set(offsetKey(rowMixed, p.id, base), appendMixed(nil, r.mixFile, segment.AppendBlock(nil, out, 0)), nil) // in memory
	r.done = append(r.done, fix)
	return nil
}

// keep copies a mixed file to the name of an old one: its other runs are still in it.
func (r *restorer) keep(path string) (old string, err error) {
	s := r.s
	fs := s.opts.FS
	old = path + r.o.Suffix
	from, err := fs.Open(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer from.Close() //nolint:errcheck // read only
	aside := path + ".new"
	to, err := fs.CreateFile(s.path(aside))
	if err != nil {
		return "", err
	}
	if _, err = io.Copy(to, from); err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return "", fmt.Errorf("copy %s to %s: %w", path, aside, err)
	}
	return old, fs.Rename(s.path(aside), s.path(old)) // finish syncs the directory
}

// finish makes the new mixed file and all rows durable.
func (r *restorer) finish(ctx context.Context) error {
	s := r.s
	if r.mixFile != 0 {
		for _, number := range slices.Sorted(maps.Keys(r.mixOld)) {
			damaged := s.mixedPath(number)
			old, err := r.keep(damaged)
			if err != nil {
				return err
			}
			for i := range r.done {
				if r.done[i].Path == damaged {
					r.done[i].Old = old
				}
			}
		}
		path := s.mixedPath(r.mixFile)
		f, err := s.opts.FS.CreateFile(s.path(path))
		if err != nil {
			return err
		}
		if _, err = f.WriteAt(r.mixBuf, 0); err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close(), s.opts.FS.SyncDir(s.path(mixedDir))); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		n := int64(len(r.mixBuf))
		_ = r.batch.Set(numberKey(rowMixedFile, r.mixFile), mixedFile{size: n, live: n}.encode(), nil)
		for _, old := range slices.Sorted(maps.Keys(r.mixOld)) {
			m := s.w.mixed[old]
			m.live -= r.mixOld[old]
			_ = r.batch.Set(numberKey(rowMixedFile, old), m.encode(), nil)
		}
		w := &s.w
		_ = r.batch.Set([]byte{rowApplied}, appliedRow{s.written.Load(), w.term, w.now, w.clock, r.mixFile}.encode(), nil)
		if err := s.db.Apply(r.batch, pebble.NoSync); err != nil {
			return s.kvError(err)
		}
		r.mixFile = 0
	}
	if len(r.done) == 0 {
		return nil
	}
	return s.flushDB(ctx)
}

// kvDamage reports that an error is of rows that make no sense, rather than the disk's.
func kvDamage(err error) bool {
	var errno syscall.Errno
	disk := errors.As(err, &errno) && errno != syscall.ENOENT
	return !disk && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// BatchRecords is how many records the header of a batch promises, 0 if it is none.
func BatchRecords(b []byte) int64 {
	h, err := record.ParseHeader(b)
	if err != nil {
		return 0
	}
	return int64(max(h.Count, 0))
}
