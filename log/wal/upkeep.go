package wal

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

const (
	segmentSuffix = ".wal"
	segmentDigits = 20
	prepareName   = "prepare.tmp" // a segment being filled with zeros
	dropPrefix    = "drop-"       // a segment being removed

	fillBytes   = 1 << 20   // one write of zeros
	settleBytes = 8 << 20   // how much is written or cut between pauses: more stalls other syncs
	gentleBytes = 256 << 10 // and how much is written when there is time: 2 MiB pieces made the p99 of appends beside them 6 ms, these 2.6
)

var zeros [fillBytes]byte

var errStopped = errors.New("stopped")

func segmentName(seq uint64) string { return fmt.Sprintf("%0*d%s", segmentDigits, seq, segmentSuffix) }

// parseSegmentName is the inverse of segmentName.
func parseSegmentName(name string) (seq uint64, ok bool) {
	digits, found := strings.CutSuffix(name, segmentSuffix)
	if !found || len(digits) != segmentDigits {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	return seq, err == nil && seq > 0 && seq <= maxIndex
}

// TruncateFront says that the entries below index are no longer needed. They are gone from the log at once; the
// record of it rides with the next group that is written, after which upkeep takes their segments back. Until then a
// crash brings them back. An index beyond the last one empties the log. No disk is touched here.
//
// It never fails; the error is for interfaces that want one.
func (w *WAL) TruncateFront(index uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	index = min(index, w.mu.last+1)
	if w.mu.cutting != 0 {
		index = min(index, w.mu.cutting) // a truncation in flight would leave a gap
	}
	if index <= w.mu.front {
		return nil
	}
	w.mu.truncateFront(index)
	w.mu.ring.truncateFront(index)
	return nil
}

func (w *WAL) pokeUpkeep() {
	select {
	case w.poke <- struct{}{}:
	default: // a poke is waiting already
	}
}

// run is the upkeep goroutine.
func (w *WAL) run() {
	said := ""
	for {
		select {
		case <-w.stop:
			return
		case <-w.poke:
		}
		err := w.Upkeep()
		switch {
		case err == nil:
			said = ""
		case errors.Is(err, errStopped) || err.Error() == said:
		default:
			said = err.Error()
			w.o.Logger.Warn("write-ahead log upkeep", "dir", w.o.Dir, "err", err)
		}
	}
}

// Upkeep does all the upkeep there is: it takes back released segments, prepares ready ones, and removes surplus
// ones. The goroutine calls it; with Options.Inline, tests and tools do.
func (w *WAL) Upkeep() error {
	w.upkeepTurn <- struct{}{}
	defer func() { <-w.upkeepTurn }()
	var err error
	for more := true; more && err == nil; {
		more, err = w.upkeepStep()
	}
	if err != nil && !errors.Is(err, errStopped) {
		w.c.upkeepNG.Add(1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.upkeepErr = err
	w.short.Store(err != nil || len(w.mu.ready) < w.o.ReadySegments)
	w.mu.upkeeps++
	w.mu.upkeepAt = w.o.Now()
	w.broadcast()
	return err
}

// A job is one piece of upkeep.
type job struct {
	kind    int
	segment *segment // to recycle, drop or shed; no longer in the log, or no longer ready
	seq     uint64   // of the ready segment to make
	name    string   // file to remove
}

const (
	jobNone = iota
	jobRecycle
	jobDrop
	jobShed
	jobCreate
	jobAhead
	jobRemove
)

// nextJob decides what to do next. It is called with mu held and takes a released segment out of the log.
func (w *WAL) nextJob() job {
	if len(w.mu.segments) > 1 && w.mu.settled {
		s := w.mu.segments[0]
		n := uint64(len(s.locs))
		if s.refs == 0 && (n == 0 || s.base+n <= w.mu.syncedFront) {
			w.mu.segments = append([]*segment(nil), w.mu.segments[1:]...)
			if len(w.mu.ready) < w.o.SpareSegments && s.size == w.o.SegmentBytes {
				return job{kind: jobRecycle, segment: s, seq: w.mu.nextSeq}
			}
			return job{kind: jobDrop, segment: s}
		}
	}
	if w.mu.shed && len(w.mu.ready) > w.o.ReadySegments {
		n := len(w.mu.ready) - 1
		s := w.mu.ready[n]
		w.mu.ready, w.mu.nextSeq = w.mu.ready[:n:n], s.seq
		return job{kind: jobShed, segment: s}
	}
	w.mu.shed = false
	// What is removed may be the space that the next segment wants.
	if len(w.mu.drops) > 0 && (w.mu.upkeepErr != nil || len(w.mu.ready) >= w.o.ReadySegments) {
		return job{kind: jobRemove, name: w.mu.drops[0]}
	}
	if len(w.mu.ready) < w.o.ReadySegments {
		return job{kind: jobCreate, seq: w.mu.nextSeq}
	}
	if len(w.mu.ready) < w.o.ReadySegments+w.o.AheadSegments && !w.mu.noAhead {
		return job{kind: jobAhead, seq: w.mu.nextSeq}
	}
	return job{}
}

// plenty is how many segments must fit what is free on the disk for one to be made ahead of need.
const plenty = 64

// ahead makes a segment that nobody needs yet. It is not tried again after it once was not possible.
func (w *WAL) ahead(seq uint64) error {
	usage, err := w.o.FS.GetDiskUsage(w.o.Dir)
	if err == nil && usage.AvailBytes/plenty >= uint64(w.o.SegmentBytes) {
		if err = w.create(seq); err == nil || errors.Is(err, errStopped) {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.noAhead = true
	return nil
}

func (w *WAL) upkeepStep() (more bool, err error) {
	w.mu.Lock()
	if w.mu.closed || w.Poisoned() != nil {
		w.mu.Unlock()
		return false, nil
	}
	j := w.nextJob()
	w.mu.Unlock()
	switch j.kind {
	case jobNone:
		return false, nil
	case jobAhead:
		err = w.ahead(j.seq)
	case jobRecycle:
		err = w.recycle(j.segment, j.seq)
	case jobDrop:
		if err = w.drop(j.segment); err != nil {
			w.putBack(j.segment)
		}
	case jobShed:
		if err = w.drop(j.segment); err != nil {
			w.addReady(j.segment)
		}
	case jobCreate:
		err = w.create(j.seq)
	case jobRemove:
		err = w.remove(j.name)
	}
	return err == nil, err
}

func (w *WAL) path(name string) string { return w.o.FS.PathJoin(w.o.Dir, name) }

// rename moves a file within the directory, durably. After a failed directory sync nobody knows which name holds, so
// that poisons the log.
func (w *WAL) rename(from, to string) error {
	if err := w.o.FS.Rename(w.path(from), w.path(to)); err != nil {
		return fmt.Errorf("wal: rename %s to %s: %w", from, to, err)
	}
	return w.syncDir()
}

func (w *WAL) syncDir() error {
	if err := w.o.FS.SyncDir(w.o.Dir); err != nil {
		err = fmt.Errorf("wal: sync directory: %w", err)
		w.Poison(err)
		return err
	}
	return nil
}

// putBack undoes nextJob after an operation that did not happen.
func (w *WAL) putBack(s *segment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.segments = append([]*segment{s}, w.mu.segments...)
}

// recycle makes a released segment a ready one: a new name is all it takes, for what it holds bears an old sequence.
func (w *WAL) recycle(s *segment, seq uint64) error {
	if err := w.rename(segmentName(s.seq), segmentName(seq)); err != nil {
		w.putBack(s)
		return err
	}
	w.c.recycled.Add(1)
	w.addReady(&segment{seq: seq, size: s.size, file: s.file, out: s.out})
	return nil
}

func (w *WAL) addReady(s *segment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.ready = append(w.mu.ready, s)
	w.mu.nextSeq = s.seq + 1
	w.broadcast()
}

// drop takes a surplus segment out of the log's files; remove does the slow part.
func (w *WAL) drop(s *segment) error {
	name := dropPrefix + segmentName(s.seq)
	if err := w.rename(segmentName(s.seq), name); err != nil {
		return err
	}
	s.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.drops = append(w.mu.drops, name)
	return nil
}

// remove cuts a file down in steps before it removes it: giving back a large file's space in one go stalls the syncs
// of everybody else.
func (w *WAL) remove(name string) error {
	f, err := w.o.FS.OpenFile(w.path(name))
	if err != nil {
		return fmt.Errorf("wal: remove: %w", err)
	}
	fi, err := f.Stat()
	for size := int64(0); err == nil; {
		if size == 0 {
			size = fi.Size()
		}
		if size = max(0, size-settleBytes); size == 0 {
			break
		}
		if err = f.Truncate(size); err == nil {
			err = w.pause()
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = w.o.FS.Remove(w.path(name))
	}
	if err != nil {
		return fmt.Errorf("wal: remove: %w", err)
	}
	w.c.dropped.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.drops = w.mu.drops[1:]
	return nil
}

// create prepares a segment: space taken, zeros written and synced, then the name.
func (w *WAL) create(seq uint64) error {
	f, err := w.o.FS.CreateFile(w.path(prepareName))
	if err != nil {
		return fmt.Errorf("wal: create segment: %w", err)
	}
	w.mu.Lock() // what a crash has left of another one is this one now
	w.mu.drops = slices.DeleteFunc(w.mu.drops, func(name string) bool { return name == prepareName })
	w.mu.Unlock()
	if err = w.fill(f, w.o.SegmentBytes); err != nil {
		_ = f.Truncate(0) // a full disk needs the space now
		_ = f.Close()
		_ = w.o.FS.Remove(w.path(prepareName))
		return fmt.Errorf("wal: create segment: %w", err)
	}
	s := &segment{seq: seq, size: w.o.SegmentBytes, file: f, out: f}
	if err := w.rename(prepareName, segmentName(seq)); err != nil {
		s.close()
		return err
	}
	if err := w.openOut(s); err != nil {
		s.close()
		return err
	}
	w.c.created.Add(1)
	w.addReady(s)
	return nil
}

// openOut opens the handle that writes past the page cache, if that is wanted and possible.
func (w *WAL) openOut(s *segment) error {
	if !w.direct.Load() {
		return nil
	}
	f, err := w.o.FS.OpenDirect(w.path(segmentName(s.seq)))
	if errors.Is(err, errors.ErrUnsupported) {
		w.o.Logger.Warn("direct writes are not supported, write and sync is used", "dir", w.o.Dir)
		w.direct.Store(false)
		return nil
	}
	if err != nil {
		return fmt.Errorf("wal: open segment: %w", err)
	}
	s.out = f
	return nil
}

func (w *WAL) fill(f fsx.File, size int64) error {
	if err := f.Preallocate(0, size); err != nil {
		return err
	}
	pending := int64(0)
	for at := int64(0); at < size; {
		n := min(fillBytes, w.fillStep(), size-at)
		if _, err := f.WriteAt(zeros[:n], at); err != nil {
			return err
		}
		if err := f.WriteBack(at, n); err != nil {
			return err
		}
		at += n
		if pending += n; at == size || pending < w.fillStep() {
			continue
		}
		pending = 0
		if err := f.SyncData(); err != nil {
			return err
		}
		if err := w.pause(); err != nil {
			return err
		}
	}
	return f.Sync()
}

// fillStep is how many zeros are written between pauses: few while a segment is ready, since appends sync beside it
// and would queue behind them; more when the next append that needs a segment would have to wait for this one.
func (w *WAL) fillStep() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.ready) > 0 {
		return gentleBytes
	}
	return settleBytes
}

// pause lets others use the disk. It ends early, with an error, when the log is being closed.
func (w *WAL) pause() error {
	if w.o.Inline {
		return nil
	}
	t := time.NewTimer(w.o.Pace)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-w.stop:
		return errStopped
	}
}
