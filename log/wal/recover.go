package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headrace/headrace/internal/fsx"
)

// A Recovery says what Open found.
type Recovery struct {
	Fresh    bool // there was no log
	Clean    bool // the log had been closed in order
	Segments int  // with groups
	Groups   int
	Entries  int   // read, those that were dropped later included
	Bytes    int64 // of groups
	First    uint64
	Last     uint64
	// Cut is the torn group at the end, if one was recognised. A write that left no trace of its header is not.
	Cut *Cut
}

// A Cut says where a log was cut and why.
type Cut struct {
	Segment  uint64 `json:"segment"`
	Position int64  `json:"position"`
	Group    uint64 `json:"group"`
	Reason   string `json:"reason"`
}

// Open opens the log in o.Dir, or makes one. It reads and verifies everything in it. The caller closes it.
//
// Errors: a CorruptError when entries or values that had been synced are damaged or missing, and nothing is changed
// then; otherwise the disk's. A read error is never taken for a torn write.
func Open(o Options) (*WAL, Recovery, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, Recovery{}, err
	}
	w := &WAL{
		o: o, turn: make(chan struct{}, 1), upkeepTurn: make(chan struct{}, 1), poke: make(chan struct{}, 1), stop: make(chan struct{}),
		poisoned: make(chan struct{}), syncTurn: make(chan struct{}, 1), unsynced: make(chan struct{}, 1),
	}
	w.mu.state = newState()
	w.mu.ring.limit = o.CacheBytes
	w.short.Store(true)
	w.direct.Store(o.Direct)
	w.mu.changed = make(chan struct{})
	rec, err := w.open()
	if err != nil {
		for _, s := range append(w.mu.segments, w.mu.ready...) {
			s.close()
		}
		w.freeBuffers()
		return nil, rec, err
	}
	if !o.Inline {
		w.done.Go(w.run)
		w.done.Go(w.runSync)
		w.pokeUpkeep()
	}
	return w, rec, nil
}

func (w *WAL) open() (Recovery, error) {
	if err := w.allocate(); err != nil {
		return Recovery{}, err
	}
	if err := fsx.MkdirAll(w.o.FS, w.o.Dir); err != nil {
		return Recovery{}, fmt.Errorf("wal: %w", err)
	}
	files, err := w.list()
	if err != nil {
		return Recovery{}, err
	}
	w.mu.ready = files // so that they are closed on an error
	r := recovery{w: w, files: files}
	if err := r.run(); err != nil {
		return r.rec, err
	}
	r.rec.First, r.rec.Last = w.bounds()
	w.report(r.rec)
	return r.rec, nil
}

// allocate takes the memory outside the Go heap that groups are built in.
func (w *WAL) allocate() error {
	var err error
	if w.group.buf, err = fsx.Aligned(int(w.o.MaxGroupBytes)); err != nil {
		return err
	}
	if w.opening.buf, err = fsx.Aligned(int(w.o.openRoom())); err != nil {
		return err
	}
	w.lock()
	return nil
}

// lock keeps as much of the append memory from being paged out as the limit allows. The front of it is what matters:
// small groups use nothing else.
func (w *WAL) lock() {
	var first error
	for n := len(w.group.buf); n >= minLockBytes; n /= 2 {
		err := fsx.Lock(w.group.buf[:align(int64(n))])
		if err == nil {
			w.locked = align(int64(n))
			break
		}
		if first == nil {
			first = err
		}
	}
	if first != nil {
		w.o.Logger.Warn("append memory of the write-ahead log is not all locked: raise the limit on locked memory (ulimit -l) for steady latency under memory pressure",
			"dir", w.o.Dir, "locked", w.locked, "of", len(w.group.buf), "err", first)
	}
}

// minLockBytes is the least that is worth locking.
const minLockBytes = 64 << 10

// list opens the segment files, sorted by sequence, and notes what is to be removed.
func (w *WAL) list() ([]*segment, error) {
	names, err := w.o.FS.List(w.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("wal: list directory: %w", err)
	}
	slices.Sort(names)
	var files []*segment
	for _, name := range names {
		if name == prepareName || strings.HasPrefix(name, dropPrefix) {
			w.mu.drops = append(w.mu.drops, name)
			continue
		}
		seq, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		f, err := w.o.FS.OpenFile(w.path(name))
		if err != nil {
			return files, fmt.Errorf("wal: open segment: %w", err)
		}
		s := &segment{seq: seq, file: f, out: f}
		files = append(files, s)
		fi, err := f.Stat()
		if err != nil {
			return files, fmt.Errorf("wal: open segment: %w", err)
		}
		s.size = fi.Size() &^ (blockSize - 1)
	}
	return files, nil
}

func (w *WAL) report(rec Recovery) {
	switch {
	case rec.Fresh:
		w.o.Logger.Info("write-ahead log made", "dir", w.o.Dir, "append_memory", len(w.group.buf), "locked", w.locked, "direct", w.direct.Load())
	case rec.Cut != nil:
		w.o.Logger.Warn("write-ahead log ended in a torn write, which was cut off", "dir", w.o.Dir, "segment", rec.Cut.Segment,
			"position", rec.Cut.Position, "group", rec.Cut.Group, "reason", rec.Cut.Reason, "last", rec.Last)
	default:
		w.o.Logger.Info("write-ahead log opened", "dir", w.o.Dir, "first", rec.First, "last", rec.Last, "groups", rec.Groups,
			"bytes", rec.Bytes, "clean", rec.Clean, "append_memory", len(w.group.buf), "locked", w.locked, "direct", w.direct.Load())
	}
}

// A recovery reads the files of a log and fills in its WAL.
type recovery struct {
	w     *WAL
	rec   Recovery
	files []*segment
	walk  walker
	live  int // files[:live] begin with a group

	end    int64  // where the groups of files[live-1] end
	bad    string // what is there instead of a group
	tail   []place
	opened bool // the first record of the current file was seen
}

// A place is a group that nothing proves to have been synced.
type place struct {
	segment *segment
	pos     int64
	size    int64
	number  uint64
}

func (r *recovery) run() error {
	if err := r.read(); err != nil {
		return err
	}
	if r.live == 0 {
		return r.fresh()
	}
	if err := r.settle(); err != nil {
		return err
	}
	return r.install()
}

// read reads what there is and judges it. It changes nothing on the disk.
func (r *recovery) read() error {
	for i := 1; i < len(r.files); i++ {
		if r.files[i].seq != r.files[i-1].seq+1 {
			return &CorruptError{Segment: r.files[i-1].seq + 1, Reason: "the segment's file is missing"}
		}
	}
	if err := r.readAll(); err != nil {
		return err
	}
	return r.judge()
}

// readAll reads groups until there are no more.
func (r *recovery) readAll() error {
	for _, s := range r.files {
		r.opened = false
		whole, err := r.readSegment(s)
		if err != nil || !whole {
			return err
		}
	}
	return nil
}

// readSegment reads the groups of one file. It reports false if the file does not begin with the next group.
func (r *recovery) readSegment(s *segment) (bool, error) {
	r.aim(s)
	for groups := 0; ; groups++ {
		pos := r.walk.pos
		closed := false
		h, bad, err := r.walk.group(func(rec recordView) error {
			closed = rec.kind == kindClosed
			return r.apply(s, pos, rec)
		})
		switch {
		case err != nil && isDisk(err):
			return false, fmt.Errorf("wal: read segment %d at %d: %w", s.seq, pos, err)
		case err != nil:
			return false, &CorruptError{Segment: s.seq, Position: pos, Group: h.number, Reason: err.Error()}
		case bad != "" && groups == 0:
			if r.live == 0 {
				r.bad = bad
			}
			return false, nil
		case bad != "":
			r.end, r.bad = pos, bad
			return true, nil
		}
		if groups == 0 {
			s.open = h.number
			r.live++
		}
		r.rec.Clean = closed
		r.rec.Groups++
		r.rec.Bytes += h.size()
		r.tail = append(slices.DeleteFunc(r.tail, func(p place) bool { return p.number <= h.synced }), place{s, pos, h.size(), h.number})
	}
}

// aim points the walker at a file.
func (r *recovery) aim(s *segment) {
	r.walk.r, r.walk.size, r.walk.segment, r.walk.pos = s.file, s.size, s.seq, 0
	r.walk.win = r.walk.win[:0]
}

// A stateError is a record that does not follow from those before it.
type stateError struct{ error }

// isDisk tells a failed read from records that make no sense.
func isDisk(err error) bool {
	var s stateError
	return !errors.As(err, &s) && !errors.Is(err, errBadRecord)
}

// apply carries out one record of a verified group.
func (r *recovery) apply(s *segment, pos int64, rec recordView) error {
	st := r.w.mu.state
	if !r.opened && rec.kind != kindOpen {
		return stateError{fmt.Errorf("segment begins with a record of kind %d", rec.kind)}
	}
	switch rec.kind {
	case kindOpen:
		return r.applyOpen(s, rec)
	case kindEntry:
		r.rec.Entries++
		if err := st.addEntry(s, rec.index, loc{uint32(pos) + headerSize + uint32(rec.pos), uint32(rec.size)}); err != nil {
			return stateError{err}
		}
	case kindTruncate:
		st.truncateBack(rec.index)
	case kindFront:
		if rec.index > st.last+1 {
			return stateError{fmt.Errorf("front %d after entry %d", rec.index, st.last)}
		}
		st.truncateFront(rec.index)
	case kindReset:
		if rec.index == 0 {
			return stateError{fmt.Errorf("reset to 0")}
		}
		st.reset(rec.index)
	case kindStable:
		st.setStable(string(rec.key), rec.stableValue())
	}
	return nil
}

func (r *recovery) applyOpen(s *segment, rec recordView) error {
	st := r.w.mu.state
	switch {
	case r.opened:
		return stateError{fmt.Errorf("segment begins twice")}
	case rec.front == 0 || rec.front > rec.index:
		return stateError{fmt.Errorf("segment begins with front %d, next %d", rec.front, rec.index)}
	case s.size < rec.segmentBytes:
		return stateError{fmt.Errorf("file has %d bytes instead of %d", s.size, rec.segmentBytes)}
	case len(st.segments) > 0 && rec.index != st.last+1:
		return stateError{fmt.Errorf("segment begins with next %d after entry %d", rec.index, st.last)}
	}
	if len(st.segments) == 0 {
		st.front, st.last = rec.front, rec.index-1
	}
	s.size = rec.segmentBytes
	clear(st.stable)
	st.segments = append(st.segments, s)
	r.opened = true
	return nil
}

// judge decides whether what stopped the reading is the end of the log or damage to what had been synced.
func (r *recovery) judge() error {
	number := max(r.walk.next, 1) // of the group that is missing
	at := &CorruptError{Group: r.walk.next, Reason: r.bad}
	if r.live > 0 {
		last := r.files[r.live-1]
		at.Segment, at.Position = last.seq, r.end
		r.aim(last)
		if h, found, err := r.walk.proof(r.end, number); err != nil || found {
			return r.proven(at, last, h, err)
		}
	}
	for i := r.live; i < len(r.files); i++ {
		s := r.files[i]
		r.aim(s)
		if i > r.live {
			r.walk.size = min(r.walk.size, blockSize) // cannot have been begun before the one ahead of it
		}
		h, found, err := r.walk.proof(0, number)
		if err != nil || found {
			if found && (h.block != 0 || r.live == 0) {
				at.Segment, at.Position = r.files[r.live].seq, 0 // it was begun, and its beginning is gone
			}
			return r.proven(at, s, h, err)
		}
		h, ok := r.firstHeader(s)
		switch {
		case !ok:
		case r.live == 0 && h.segment != s.seq:
			return &CorruptError{Segment: s.seq, Reason: "only recycled segments are left of a log"}
		case r.live > 0 && h.segment == s.seq && h.logID != r.walk.logID:
			return &CorruptError{Segment: s.seq, Reason: "the segment belongs to another log"}
		}
	}
	st := r.w.mu.state
	switch {
	case r.w.o.SyncedIndex > st.last:
		at.Reason = fmt.Sprintf("entries up to %d had been synced, the log ends at %d: %s", r.w.o.SyncedIndex, st.last, r.bad)
		return at
	case r.live > 0 && !st.whole():
		return &CorruptError{Segment: r.files[0].seq, Reason: fmt.Sprintf("entries from %d on are missing before this segment", st.front)}
	}
	return nil
}

// proven completes the report of damage.
func (r *recovery) proven(at *CorruptError, s *segment, h groupHeader, err error) error {
	if err != nil {
		return fmt.Errorf("wal: read segment %d: %w", s.seq, err)
	}
	at.Reason = fmt.Sprintf("%s, but group %d at byte %d of segment %d says that group %d was synced",
		at.Reason, h.number, int64(h.block)*blockSize, h.segment, h.synced)
	return at
}

// firstHeader reads the header at the start of a file, whatever segment it is of.
func (r *recovery) firstHeader(s *segment) (groupHeader, bool) {
	if s.size < blockSize {
		return groupHeader{}, false
	}
	b, err := r.walk.bytesAt(0, blockSize)
	if err != nil {
		return groupHeader{}, false
	}
	return parseHeader(b)
}

// settle writes the groups that nothing proves to be on the disk once more, as they are, and syncs them. The page
// cache may hold what a failed sync left off the disk, and a sync alone would not bring it there.
func (r *recovery) settle() error {
	for _, p := range r.tail {
		buf := r.w.group.buf
		for done := int64(0); done < p.size; done += int64(len(buf)) {
			buf = buf[:min(int64(len(buf)), p.size-done)]
			if n, err := p.segment.file.ReadAt(buf, p.pos+done); n < len(buf) {
				return fmt.Errorf("wal: read segment %d: %w", p.segment.seq, err)
			}
			if _, err := p.segment.file.WriteAt(buf, p.pos+done); err != nil {
				return fmt.Errorf("wal: write segment %d: %w", p.segment.seq, err)
			}
		}
		if err := p.segment.file.SyncData(); err != nil {
			return fmt.Errorf("wal: sync segment %d: %w", p.segment.seq, err)
		}
	}
	return r.w.syncDir()
}

// install makes the WAL ready for appends behind the last group.
func (r *recovery) install() error {
	w := r.w
	w.logID, w.number, w.chain = r.walk.logID, r.walk.next-1, r.walk.chain
	w.cur, w.pos = r.files[r.live-1], r.end
	w.mu.syncedFront, w.sentFront = w.mu.front, w.mu.front
	w.mu.settled, w.mu.pos = w.number > w.cur.open, w.pos
	w.mu.written = syncPoint{w.number, w.mu.last, w.mu.front}
	w.synced.Store(w.number)
	w.syncedIndex.Store(w.mu.last)
	w.mu.ready = nil
	w.mu.nextSeq = w.cur.seq + 1
	r.rec.Segments = r.live
	switch r.bad {
	case "no group header", "end of segment", "group of another place":
	default:
		r.rec.Cut = &Cut{Segment: w.cur.seq, Position: r.end, Group: w.number + 1, Reason: r.bad}
	}
	return r.installReady(r.files[r.live:])
}

// installReady takes over the segments that were prepared and not begun. From the first of another size on they are
// removed.
func (r *recovery) installReady(files []*segment) error {
	w := r.w
	fits := true
	for i, s := range files {
		fits = fits && s.size == w.o.SegmentBytes
		if fits {
			w.mu.ready = append(w.mu.ready, s)
			w.mu.nextSeq = s.seq + 1
			continue
		}
		if err := w.drop(s); err != nil {
			for _, s := range files[i:] {
				s.close()
			}
			return err
		}
	}
	for _, s := range append(slices.Clone(w.mu.segments), w.mu.ready...) {
		if err := w.openOut(s); err != nil {
			return err
		}
	}
	return nil
}

// fresh begins a new log.
func (r *recovery) fresh() error {
	w := r.w
	r.rec.Fresh = true
	if w.logID = w.o.LogID; w.logID == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:])
		w.logID = binary.LittleEndian.Uint64(b[:]) | 1
	}
	w.mu.syncedFront, w.sentFront = 1, 1
	w.mu.ready = nil
	w.mu.nextSeq = 1
	if len(r.files) > 0 {
		w.mu.nextSeq = r.files[0].seq
	}
	if err := r.installReady(r.files); err != nil {
		return err
	}
	if len(w.mu.ready) == 0 {
		if err := w.create(w.mu.nextSeq); err != nil {
			return err
		}
	}
	if err := w.syncDir(); err != nil {
		return err
	}
	return w.rotate()
}
