package wal

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// An Entry is one numbered piece of the log. Type, Term, AppendedAt and the bytes mean nothing to the log.
type Entry struct {
	Index, Term uint64
	Type        uint8
	AppendedAt  int64 // ns since 1970
	Extensions  []byte
	Data        []byte
}

// A WAL is an open log. See the package comment for which methods wait for which.
type WAL struct {
	o Options

	// turn holds one token; whoever has it may write. A channel rather than a mutex, because it is held across
	// writes and syncs.
	turn chan struct{}

	// Owned by whoever holds the turn.
	group     group  // being built
	opening   group  // opens segments
	logID     uint64 // marks the groups
	number    uint64 // of the last group written
	chain     uint32 // its checksum
	pos       int64  // where the next group goes in cur
	cur       *segment
	locked    int64  // bytes of group.buf that stay in memory
	sentFront uint64 // front that the last group with a front record said

	mu struct {
		sync.Mutex
		*state
		ring        ring
		syncedFront uint64     // front of the last synced group that says one: segments below may go
		settled     bool       // a group was synced after the one that opened the last segment
		written     syncPoint  // the last group
		pos         int64      // where the next group goes in the last segment
		cutting     uint64     // index of a truncation in flight, 0: none
		ready       []*segment // by sequence, following the last of segments
		nextSeq     uint64     // of the next ready segment
		drops       []string   // files to remove
		shed        bool       // ready segments beyond ReadySegments are to go
		noAhead     bool       // no segments are made ahead of need any longer
		upkeepErr   error      // why the last upkeep stopped, nil if it did all there was
		upkeeps     uint64     // how many have ended
		upkeepAt    int64      // Now when the last one ended
		changed     chan struct{}
		closed      bool
	}

	poison       atomic.Pointer[error]
	poisoned     chan struct{} // closed by Poison
	writeStarted atomic.Int64  // Now+1 at the start of the write in flight; 0: none
	syncStarted  atomic.Int64  // and of the sync in flight of what was written unsynced
	synced       atomic.Uint64 // number of the last group that is known to be synced
	syncedIndex  atomic.Uint64 // and the last entry
	syncTurn     chan struct{} // one token: a sync of the last segment in progress
	unsynced     chan struct{} // a poke: something was written unsynced
	direct       atomic.Bool   // segments are written past the page cache
	short        atomic.Bool   // the last upkeep failed, or fewer than ReadySegments are ready

	upkeepTurn chan struct{} // one token: upkeep in progress
	poke       chan struct{}
	stop       chan struct{}
	done       sync.WaitGroup

	c counters
}

// counters are added to per group.
type counters struct {
	groups, entries, entryBytes, bytes atomic.Int64
	writeNs, maxWriteNs                atomic.Int64
	unsynced, syncs                    atomic.Int64
	rotations, waits                   atomic.Int64
	created, recycled, dropped         atomic.Int64
	cacheHits, cacheMisses, readBytes  atomic.Int64
	upkeepNG                           atomic.Int64
}

// Metrics are counts since Open, and sizes now.
type Metrics struct {
	Groups, Entries int64 // written
	EntryBytes      int64 // of data and extensions
	Bytes           int64 // to the disk, padding included
	Unsynced        int64 // of the groups, written without a sync of their own
	Syncs           int64 // made for such groups
	WriteNs         int64 // sum over groups, write and sync
	MaxWriteNs      int64
	Rotations       int64 // segments begun
	Waits           int64 // rotations that found no segment ready
	Created         int64 // segments made from nothing
	Recycled        int64 // segments used again
	Dropped         int64 // segments removed
	CacheHits       int64 // reads from memory
	CacheMisses     int64 // reads from the disk
	ReadBytes       int64 // from the disk
	UpkeepErrors    int64

	AppendMemory, Locked int64 // bytes outside the Go heap, and how many of them are locked in memory
	Direct               bool  // writes go past the page cache

	Segments, Ready int
	CacheBytes      int64
	First, Last     uint64
}

// Metrics returns a snapshot.
func (w *WAL) Metrics() Metrics {
	m := Metrics{
		Groups: w.c.groups.Load(), Entries: w.c.entries.Load(), EntryBytes: w.c.entryBytes.Load(), Bytes: w.c.bytes.Load(),
		WriteNs: w.c.writeNs.Load(), MaxWriteNs: w.c.maxWriteNs.Load(), Unsynced: w.c.unsynced.Load(), Syncs: w.c.syncs.Load(), Rotations: w.c.rotations.Load(), Waits: w.c.waits.Load(),
		Created: w.c.created.Load(), Recycled: w.c.recycled.Load(), Dropped: w.c.dropped.Load(),
		CacheHits: w.c.cacheHits.Load(), CacheMisses: w.c.cacheMisses.Load(), ReadBytes: w.c.readBytes.Load(),
		UpkeepErrors: w.c.upkeepNG.Load(), AppendMemory: w.o.MaxGroupBytes, Locked: w.locked, Direct: w.direct.Load(),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m.Segments, m.Ready, m.CacheBytes = len(w.mu.segments), len(w.mu.ready), w.mu.ring.bytes
	m.First, m.Last = w.bounds()
	return m
}

// FirstIndex is the index of the oldest entry, 0 if there is none.
func (w *WAL) FirstIndex() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, _ := w.bounds()
	return first
}

// LastIndex is the index of the newest entry, 0 if there is none.
func (w *WAL) LastIndex() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, last := w.bounds()
	return last
}

// bounds is called with mu held.
func (w *WAL) bounds() (first, last uint64) {
	if w.mu.empty() {
		return 0, 0
	}
	return w.mu.front, w.mu.last
}

// Stable returns a stable value, which the caller owns, and whether it was ever set.
func (w *WAL) Stable(key string) ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.mu.stable[key]
	if !ok {
		return nil, false
	}
	return append([]byte{}, v...), true
}

// retryNs is how long Room waits before it has a failed upkeep tried again.
const retryNs = int64(100 * time.Millisecond)

// Room returns how many bytes of groups the log can still take, at least, if no further segment is made:
// math.MaxInt64 while ReadySegments are ready, else what is left of the segment in use and of those that are. The error
// is ErrNoSegment, and says what upkeep failed of, if its last attempt failed, as on a full disk; nil if segments are
// being made. Room has a failed attempt repeated, so that it recovers by itself. Work that would not fit should be
// refused, and on an error in time, so that the rest serves what must go on.
//
// It costs one atomic load while all is well.
func (w *WAL) Room() (bytes int64, err error) {
	if err := w.Poisoned(); err != nil {
		return 0, err
	}
	if !w.short.Load() {
		return math.MaxInt64, nil
	}
	w.mu.Lock()
	err, at := w.mu.upkeepErr, w.mu.upkeepAt
	enough := len(w.mu.ready) >= w.o.ReadySegments
	if n := len(w.mu.segments); n > 0 {
		bytes = max(0, w.mu.segments[n-1].size-w.mu.pos)
	}
	for _, s := range w.mu.ready {
		bytes += max(0, s.size-w.o.openRoom())
	}
	w.mu.Unlock()
	switch {
	case err == nil && enough:
		return math.MaxInt64, nil
	case err == nil:
		return bytes, nil
	}
	if w.o.Now()-at >= retryNs {
		w.pokeUpkeep()
	}
	return bytes, fmt.Errorf("%w: %w", ErrNoSegment, err)
}

// Shed gives back the ready segments beyond ReadySegments, for a disk that is full. Upkeep does it, later.
func (w *WAL) Shed() {
	w.mu.Lock()
	shed := len(w.mu.ready) > w.o.ReadySegments
	w.mu.shed = shed
	w.mu.Unlock()
	if shed {
		w.pokeUpkeep()
	}
}

// SuffixIndex returns the lowest index from which on the entries take at most about n bytes in the log, last+1 if
// even the last one takes more. 0: the log is empty.
func (w *WAL) SuffixIndex(n int64) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.empty() {
		return 0
	}
	return w.mu.suffixIndex(n)
}

// WriteStarted returns when the write or sync in flight began, by Options.Now, and whether there is one. A watchdog
// compares it with the clock.
func (w *WAL) WriteStarted() (ns int64, ok bool) {
	at, sync := w.writeStarted.Load(), w.syncStarted.Load()
	if at == 0 || sync != 0 && sync < at {
		at = sync
	}
	return at - 1, at != 0
}

// InFlight is how long the write in flight has taken so far, 0 if there is none.
func (w *WAL) InFlight() time.Duration {
	at, ok := w.WriteStarted()
	if !ok {
		return 0
	}
	return time.Duration(w.o.Now() - at)
}

// Poison makes the log refuse every later change with ErrPoisoned and err. A write in flight then returns ErrPoisoned
// even if the disk did it. The first call counts.
func (w *WAL) Poison(err error) {
	err = fmt.Errorf("%w: %w", ErrPoisoned, err)
	if !w.poison.CompareAndSwap(nil, &err) {
		return
	}
	close(w.poisoned)
	w.o.Logger.Error("write-ahead log poisoned", "dir", w.o.Dir, "err", err)
	w.mu.Lock()
	w.broadcast()
	w.mu.Unlock()
	if w.o.Events.Poisoned != nil {
		w.o.Events.Poisoned(err)
	}
}

// Poisoned returns why the log takes no changes, or nil. The error is ErrPoisoned.
func (w *WAL) Poisoned() error {
	if p := w.poison.Load(); p != nil {
		return *p
	}
	return nil
}

// broadcast wakes those who wait for a change of mu. It is called with mu held.
func (w *WAL) broadcast() {
	close(w.mu.changed)
	w.mu.changed = make(chan struct{})
}

// begin takes the turn. On an error it was not taken. It does not wait for a hung write that was given up on.
func (w *WAL) begin() error {
	select {
	case w.turn <- struct{}{}:
	case <-w.poisoned:
		return w.Poisoned()
	}
	err := w.Poisoned()
	w.mu.Lock()
	if w.mu.closed {
		err = ErrClosed
	}
	w.mu.Unlock()
	if err != nil {
		<-w.turn
	}
	return err
}

func (w *WAL) end() { <-w.turn }

// Close waits for the write in flight, marks the log as closed in order, stops upkeep and gives everything back. Every
// later call fails with ErrClosed. A poisoned log is closed without the mark. If the disk hangs, so does Close.
func (w *WAL) Close() error {
	w.turn <- struct{}{}
	defer w.end()
	w.mu.Lock()
	closed := w.mu.closed
	w.mu.Unlock()
	if closed {
		return nil
	}
	var err error
	if w.Poisoned() == nil && w.pos+blockSize <= w.cur.size {
		w.startGroup()
		w.group.closed()
		err = w.commit(nil, true)
	}
	if err == nil && w.Poisoned() == nil {
		err = w.syncWritten() // the segment had no room for the mark
	}
	w.mu.Lock()
	w.mu.closed = true
	w.broadcast()
	w.mu.Unlock()
	close(w.stop)
	w.done.Wait()
	w.upkeepTurn <- struct{}{} // an Upkeep of the caller's has ended
	segments := w.unread()
	for _, s := range segments {
		s.close()
	}
	<-w.upkeepTurn
	w.freeBuffers()
	return err
}

// unread waits for the reads and syncs in flight and returns all segments, which nobody uses any longer.
func (w *WAL) unread() []*segment {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.ring.clear()
	segments := append(w.mu.segments, w.mu.ready...)
	for slices.ContainsFunc(segments, func(s *segment) bool { return s.refs > 0 }) {
		changed := w.mu.changed
		w.mu.Unlock()
		<-changed
		w.mu.Lock()
	}
	return segments
}

// unref ends the use of a segment. It is called with mu held.
func (w *WAL) unref(s *segment) {
	if s.refs--; s.refs > 0 {
		return
	}
	if w.mu.closed {
		w.broadcast()
	} else if len(w.mu.segments) > 1 && s == w.mu.segments[0] {
		w.pokeUpkeep()
	}
}

func (w *WAL) freeBuffers() {
	_ = fsx.Free(w.group.buf)
	_ = fsx.Free(w.opening.buf)
	w.group.buf, w.opening.buf = nil, nil
}
