package log

import (
	"errors"
	"math"
	"os"
	"slices"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/segment"
)

// A LogStart is a proposal to raise a log start.
type LogStart struct {
	Partition PartitionID
	// Offset is what retention by time and size would raise it to. It is up to the caller to keep more for consumers, but
	// nothing below Cap, which the caps of the settings allow: PartitionSettings.MaxRetentionMs and MaxRetentionBytes.
	// Cap is never above Offset, and not above the present log start when there is no cap.
	Offset, Cap int64
}

// RetentionCandidates returns the log starts that the settings of the partitions would allow at now (ms since
// 1970). It changes nothing: the leader proposes them as OpLogStart, after it has held them against what
// consumers still need. Whole segments and runs are dropped, only such that are in files, and the last bytes
// of a partition only by time. Age is that of the append; the timestamps in records do not count. It may read
// from the disk.
func (s *Store) RetentionCandidates(now int64) ([]LogStart, error) {
	out, _, err := s.NextRetention(now, 0, math.MaxInt)
	slices.SortFunc(out, func(a, b LogStart) int { return a.Partition.Compare(b.Partition) })
	return out, err
}

// NextRetention is RetentionCandidates for some of the partitions: it begins at a place, 0 at first, and ends behind at
// most limit candidates. It returns the place to go on from, 0 after the last partition. An idle partition costs it a
// few loads from memory.
func (s *Store) NextRetention(now int64, from, limit int) (out []LogStart, next int, err error) {
	err = s.use(func() error {
		chunk := make([]*Partition, 0, walkChunk)
		for {
			chunk = s.somePartitions(from, chunk)
			if len(chunk) == 0 {
				next = 0
				return nil
			}
			for _, p := range chunk {
				from++
				c, err := s.candidate(p, p.settings.Load(), now)
				if err != nil {
					return err
				}
				if c.Offset <= p.LogStart() {
					continue
				}
				if out = append(out, c); len(out) >= limit {
					next = from
					return nil
				}
			}
		}
	})
	return out, next, err
}

// RetentionUnder returns the log start that a partition would get under other settings at now, ms since 1970.
func (s *Store) RetentionUnder(id PartitionID, set PartitionSettings, now int64) (c LogStart, err error) {
	p, ok := s.Partition(id)
	if !ok {
		return c, &RejectError{Reason: ErrUnknownPartition, Partition: id}
	}
	err = s.use(func() error {
		c, err = s.candidate(p, &set, now)
		return err
	})
	c.Offset = max(c.Offset, p.LogStart())
	return c, err
}

func (s *Store) candidate(p *Partition, set *PartitionSettings, now int64) (c LogStart, err error) {
	c.Partition = p.id
	l := p.layout.Load()
	if l == nil || set.RetentionMs < 0 && set.RetentionBytes < 0 {
		return c, nil
	}
	if c.Offset, err = s.beyond(p, l, keeping{set.RetentionMs, set.RetentionBytes}, now); err != nil || c.Offset <= p.LogStart() {
		return c, err
	}
	if limit := (keeping{orNone(set.MaxRetentionMs), orNone(set.MaxRetentionBytes)}); limit != (keeping{-1, -1}) {
		c.Cap, err = s.beyond(p, l, limit, now)
		c.Cap = min(c.Cap, c.Offset)
	}
	return c, err
}

// orNone makes 0, which is no cap, -1, which is no limit.
func orNone(limit int64) int64 {
	if limit <= 0 {
		return -1
	}
	return limit
}

// keeping is how much of a partition is kept: records up to an age, and at least the last bytes; -1: no limit.
type keeping struct{ ms, bytes int64 }

// old reports whether a batch of that append time, ns, is too old at now, ms.
func (k keeping) old(append, now int64) bool {
	return k.ms >= 0 && now-append/int64(time.Millisecond) > k.ms
}

// beyond returns the offset up to which whole segments and runs are more than k.
func (s *Store) beyond(p *Partition, l *layout, k keeping, now int64) (offset int64, err error) {
	size := l.mixBytes
	for i := range l.segs {
		size += l.segs[i].logBytes
	}
	more := func(lastAppend, bytes int64) bool {
		if !k.old(lastAppend, now) && (k.bytes < 0 || size-bytes < k.bytes) {
			return false
		}
		size -= bytes
		return true
	}
	for i := range l.segs {
		if !more(l.segs[i].lastAppend, l.segs[i].logBytes) {
			return offset, nil
		}
		offset = l.segs[i].end
	}
	if l.mixRuns == 0 || !k.old(l.mixOldest, now) && (k.bytes < 0 || size <= k.bytes) {
		return offset, nil
	}
	err = s.eachRun(s.db, p.id, l.mixStart, func(_ int64, _ uint64, h segment.Head, _ []byte) (bool, error) {
		if !more(h.AppendTime, h.Bytes) {
			return false, nil
		}
		offset = h.Last + 1
		return true, nil
	})
	return offset, err
}

// Bytes is about how many bytes of record batches the partition holds.
func (p *Partition) Bytes() int64 {
	size, written := int64(0), int64(0)
	if l := p.layout.Load(); l != nil {
		size, written = l.mixBytes, l.written
		for i := range l.segs {
			size += l.segs[i].logBytes
		}
	}
	rows := p.tail.from(written)
	for i := range rows {
		size += int64(rows[i].size)
	}
	return size
}

// BytesBelow is about how many bytes of record batches lie below an offset; it counts in proportion where a segment or the
// mixed segment holds more than that.
func (p *Partition) BytesBelow(offset int64) int64 {
	l := p.layout.Load()
	if l == nil {
		return 0
	}
	part := func(from, end, bytes int64) int64 {
		switch from = max(from, p.LogStart()); {
		case offset <= from || end <= from:
			return 0
		case offset >= end:
			return bytes
		}
		return int64(float64(bytes) * float64(offset-from) / float64(end-from))
	}
	n := part(l.mixStart, l.written, l.mixBytes)
	for i := range l.segs {
		n += part(l.segs[i].base, l.segs[i].end, l.segs[i].logBytes)
	}
	return n
}

// Removing a large file at once stalls the syncs of others for tens of milliseconds; shrinking it in steps
// with pauses does not.
const (
	truncateStep  = 8 << 20
	truncatePause = 5 * time.Millisecond
)

// queueRemoval lets the file or directory at path be removed. Token held.
func (w *writer) queueRemoval(path string) {
	w.dirty.discardUnder(path)
	w.s.removals.Lock()
	w.s.removals.paths = append(w.s.removals.paths, path)
	w.s.removals.Unlock()
}

// removeQueued removes what waits, in any goroutine.
func (s *Store) removeQueued() {
	for {
		select {
		case <-s.closed:
			return
		default:
		}
		s.removals.Lock()
		if len(s.removals.paths) == 0 {
			s.removals.paths = nil
			s.removals.Unlock()
			return
		}
		path := s.removals.paths[0]
		s.removals.paths = s.removals.paths[1:]
		s.removals.Unlock()
		if err := s.use(func() error { return s.remove(path) }); err != nil && !errors.Is(err, ErrClosed) {
			// It is found again at the next start.
			s.opts.Logger.Warn("file not removed", "path", path, "err", err)
		}
	}
}

// A leaving partition was dropped by an entry that the files do not hold yet.
type leaving struct {
	p     *Partition
	index uint64
}

// makeRoom empties files on a full disk that only wait for the writer to forget them: of partitions that were dropped,
// of segments that the log start has passed, and what is queued for removal. The writer may need their space to get
// there. Any goroutine may call it.
//
// It is safe before their rows are gone: what dropped them is committed, so after a crash it is applied before anybody
// reads, and recovery looks only at batches placed since the last checkpoint, which it writes again from the log.
func (s *Store) makeRoom() {
	if !s.making.TryLock() {
		return
	}
	defer s.making.Unlock()
	var paths []string
	segments := func(p *Partition, below int64) {
		l := p.layout.Load()
		for i := 0; l != nil && i < len(l.segs) && l.segs[i].end <= below; i++ {
			paths = append(paths, s.logPath(p.id, &l.segs[i]))
		}
	}
	s.applyMu.Lock()
	for _, x := range s.leaving {
		segments(x.p, math.MaxInt64)
	}
	for _, p := range s.parts.m {
		segments(p, p.start.Load())
	}
	s.applyMu.Unlock()
	s.removals.Lock()
	queued := slices.Concat(s.removals.held, s.removals.paths)
	s.removals.Unlock()
	freed := int64(0)
	err := s.use(func() error {
		for _, path := range queued {
			if _, _, _, ok := segment.ParseName(s.opts.FS.PathBase(path)); ok {
				paths = append(paths, path)
				continue
			}
			names, _ := s.opts.FS.List(s.path(path)) // gone: none
			for _, name := range names {
				paths = append(paths, s.opts.FS.PathJoin(path, name))
			}
		}
		for _, path := range paths {
			n, err := s.empty(path)
			if freed += n; err != nil {
				return err
			}
		}
		return nil
	})
	if freed > 0 || err != nil && !errors.Is(err, ErrClosed) {
		s.opts.Logger.Info("space of removed records is given back early", "bytes", freed, "err", err)
	}
}

// empty takes the bytes of a file, if it is there.
func (s *Store) empty(path string) (freed int64, err error) {
	info, err := s.opts.FS.Stat(s.path(path))
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	f, err := s.opts.FS.OpenFile(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if err = s.shrink(f); err == nil {
		err = f.Truncate(0)
	}
	return info.Size(), errors.Join(err, f.Close())
}

func (s *Store) remove(path string) error {
	fs := s.opts.FS
	info, err := fs.Stat(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return s.removeFile(path)
	}
	names, err := fs.List(s.path(path))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.removeFile(fs.PathJoin(path, name)); err != nil {
			return err
		}
	}
	if err := fs.Remove(s.path(path)); err != nil {
		return err
	}
	// The topic's directory goes with its last partition.
	dir := fs.PathDir(path)
	if names, err := fs.List(s.path(dir)); err == nil && len(names) == 0 && dir != topicsDir {
		_ = fs.Remove(s.path(dir)) // another partition may have come in between
	}
	return nil
}

func (s *Store) removeFile(path string) error {
	s.handles.forget(path)
	s.indexes.forget(path)
	f, err := s.opts.FS.OpenFile(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Readers may have the file open: what is left of it would stay as long as they do.
	if err = s.shrink(f); err == nil {
		err = f.Truncate(0)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	s.metrics.removed.Add(1)
	return s.opts.FS.Remove(s.path(path))
}

func (s *Store) shrink(f fsx.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for size := info.Size() - truncateStep; size > 0; size -= truncateStep {
		if err := f.Truncate(size); err != nil {
			return err
		}
		if s.opts.Manual {
			continue
		}
		select {
		case <-s.closed:
			return ErrClosed
		case <-time.After(truncatePause):
		}
	}
	return nil
}
