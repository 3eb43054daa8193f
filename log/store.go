package log

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
)

// An EntryLog is the log that feeds the store, as far as the store reads it: for batches that have left
// memory before they were in a file, and for recovery. It must hold every entry after the last checkpoint.
// Its methods may be called by any goroutine.
type EntryLog interface {
	// ReadEntry returns the raft term and the bytes of an entry as they were given to Apply.
	ReadEntry(index uint64) (term uint64, data []byte, err error)
	// Bounds returns the first and the last raft index held, 0 and 0 if there is none.
	Bounds() (first, last uint64)
	// SyncTo returns when the entries up to index would survive a power cut.
	SyncTo(index uint64) error
}

// Options of a Store. Zero values mean the defaults.
type Options struct {
	// FS is where the files are.
	FS fsx.FS
	// Dir is the store's directory. It is made if it does not exist.
	Dir string
	// Log is the log that feeds the store. Without one, batches stay in memory until they are in files
	// whatever CacheBytes says, and a crash can lose what the last checkpoint did not cover.
	Log EntryLog
	// CacheBytes is the budget of the tail cache (256 MiB).
	CacheBytes int64
	// SegmentBytes is the size at which a segment file is closed (256 MiB).
	SegmentBytes int64
	// RoundBytes is how many applied bytes wait before the writer begins a round (16 MiB); up to four times as many if
	// they belong to many partitions, so that each adds a run worth its rows. The proposer's limit on Backlog must be
	// well above that.
	RoundBytes int64
	// RoundDelay is how long applied bytes wait at most before the writer begins a round (5 s).
	RoundDelay time.Duration
	// WritePause is the pause of the writer after each MiB, so that the syncs of the log beside it do not queue behind
	// a round's writes (4 ms, which allows 250 MB/s; negative: none). It makes none when the round and as much again
	// wait, twice RoundBytes at least, or somebody waits for the writer.
	WritePause time.Duration
	// ReadPause is what readers of history wait for each MiB that they read from files, all together, while entries are
	// being applied, so that a backlog that is read does not show in the latency of a publish (10 ms, which allows
	// 100 MB/s; negative: none). They wait as long as the read before took if that is more, 50 ms at most: half of a slow
	// disk is theirs. Without writers they do not wait, nor does a reader that the writers would leave behind, and none
	// waits longer than 2 s.
	ReadPause time.Duration
	// ThinBytes is how much a partition gathers in the mixed segment before it gets a file (1 MiB).
	ThinBytes int64
	// RetryDelay is the pause after a failed write behind the log (500 ms).
	RetryDelay time.Duration
	// MemTableBytes and BlockCacheBytes bound Pebble's memory (16 MiB and 8 MiB).
	MemTableBytes, BlockCacheBytes int64
	// CompactionBytes bounds the map of keys of a compaction, which is made when a pass begins and is as large as the
	// number of records asks for (64 MiB, for two million keys). Where more keys are dirty, a pass takes several rounds.
	CompactionBytes int64
	// MaxOpenFiles bounds the files that readers and the writer each hold open (256).
	MaxOpenFiles int
	// Manual starts no goroutine: the caller runs Step. For tests.
	Manual bool
	// Logger gets state changes. nil: none.
	Logger *slog.Logger
	// Events are told about state changes.
	Events Events

	readOnly bool // Pebble is opened for reading only
	offline  bool // the store is opened to be repaired: its log may be damaged, and files may be missing

	maxProducers int // MaxProducers, smaller in tests
	mergeRuns    int // mergeRuns, smaller in tests
	sweepRuns    int // sweepRuns, smaller in tests
}

// Events are called by the goroutine that met the event, with no lock held, and must not block.
type Events struct {
	// Degraded is called when writing behind the log begins to fail, with nil when it works again.
	Degraded func(error)
	// Poisoned is called once.
	Poisoned func(error)
	// Corrupt is called for bytes on disk that were found to be wrong.
	Corrupt func(*CorruptError)
}

func (o Options) withDefaults() Options {
	def := func(v *int64, d int64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.CacheBytes, 256<<20)
	def(&o.SegmentBytes, 256<<20)
	def(&o.RoundBytes, 16<<20)
	def(&o.ThinBytes, 1<<20)
	def(&o.MemTableBytes, 16<<20)
	def(&o.BlockCacheBytes, 8<<20)
	def(&o.CompactionBytes, 64<<20)
	def((*int64)(&o.RoundDelay), int64(5*time.Second))
	def((*int64)(&o.RetryDelay), int64(500*time.Millisecond))
	if o.WritePause == 0 {
		o.WritePause = 4 * time.Millisecond
	}
	if o.ReadPause == 0 {
		o.ReadPause = 10 * time.Millisecond
	}
	if o.FS == nil {
		o.FS = fsx.Disk()
	}
	if o.MaxOpenFiles <= 0 {
		o.MaxOpenFiles = 256
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.maxProducers <= 0 {
		o.maxProducers = MaxProducers
	}
	if o.sweepRuns <= 0 {
		o.sweepRuns = sweepRuns
	}
	if o.mergeRuns <= 0 {
		o.mergeRuns = mergeRuns
	}
	return o
}

// point is a place in the shard's log.
type point struct{ index, term uint64 }

type droppedAt struct {
	metaIndex uint64
	at        int64 // append time, ns
}

type drop struct {
	id PartitionID
	p  *Partition // nil: it was not here
	droppedAt
}

// A Store is the applied state of one shard on one replica. See the package comment for who may call what.
type Store struct {
	opts Options
	db   *pebble.DB
	kvfs *fsx.PatientFS
	// kvFatal: Pebble met an error that it does not survive, and cannot be closed.
	kvFatal atomic.Bool

	applyMu sync.Mutex // held by Apply for one entry, and by whoever needs the state between two
	applied atomic.Pointer[point]
	written atomic.Uint64 // raft index that Pebble holds
	backlog atomic.Int64  // bytes of entries after written

	// Changed by the Apply goroutine, which reads them without the lock.
	parts struct {
		sync.RWMutex
		m    map[PartitionID]*Partition
		list []*Partition // the same, in no order; each knows its slot
	}
	tasks struct {
		sync.RWMutex
		m map[TaskID]*TaskState
	}
	groups groups

	// Of the Apply goroutine, under applyMu.
	now          int64 // append time of the last entry, ns
	producers    producerList
	maxProducers int
	dropped      map[PartitionID]droppedAt
	dropsKept    int // len(dropped) after the old ones were last let go
	settings     map[PartitionSettings]*PartitionSettings
	lastPart     *Partition
	cache        tailCache
	pending      pending
	scratch      struct {
		judging judging
		offsets []int64
		ahead   []ahead
		touched int64 // keeps loads that only fill caches from being optimized away
	}

	// The writer: whoever holds the token. See round.go.
	token   chan struct{}
	wanting atomic.Int32 // who waits for the token
	w       writer

	compactor compactor
	keySeeds  [2]maphash.Seed

	handles *handleCache
	history historyPace
	indexes indexCache

	failure struct {
		sync.Mutex
		troubles [troubleCount]error // what fails and is tried again
		poisoned error
	}
	failed   atomic.Bool   // failure holds something
	poisoned chan struct{} // closed with failure.poisoned
	metrics  metrics
	rot      rotList

	kicks  chan struct{}
	closed chan struct{}
	close  sync.Once
	life   lifetime

	// Files and directories to remove, found again at the next start.
	removals struct {
		sync.Mutex
		held  []string // once Pebble is flushed
		paths []string // now
	}
	leaving []leaving  // partitions that were dropped and whose files are not in removals yet; under applyMu
	making  sync.Mutex // held by makeRoom
	done    sync.WaitGroup
}

// Applied returns the raft index and term of the last applied entry, as it is in memory.
func (s *Store) Applied() (index, term uint64) {
	p := s.applied.Load()
	return p.index, p.term
}

// Durable returns the raft index that the last checkpoint made durable: entries up to it are not needed any
// more.
func (s *Store) Durable() uint64 { return s.w.checkpoint.Load().index }

// Written returns the raft index that the files and Pebble hold, durable or not.
func (s *Store) Written() uint64 { return s.written.Load() }

// Backlog is the number of bytes of entries that were applied and are not yet in files. The proposer limits
// it; Apply never waits for it.
func (s *Store) Backlog() int64 { return s.backlog.Load() }

// Partition returns a partition by name.
func (s *Store) Partition(id PartitionID) (*Partition, bool) {
	s.parts.RLock()
	p, ok := s.parts.m[id]
	s.parts.RUnlock()
	return p, ok
}

// addPartition makes a partition known. Apply goroutine, or nobody else is there yet.
func (s *Store) addPartition(p *Partition) {
	s.parts.Lock()
	defer s.parts.Unlock()
	p.slot = int32(len(s.parts.list))
	s.parts.m[p.id] = p
	s.parts.list = append(s.parts.list, p)
}

// removePartition forgets a partition: the last one of the list takes its slot. Apply goroutine.
func (s *Store) removePartition(p *Partition) {
	s.parts.Lock()
	defer s.parts.Unlock()
	delete(s.parts.m, p.id)
	last := len(s.parts.list) - 1
	moved := s.parts.list[last]
	s.parts.list[p.slot], moved.slot = moved, p.slot
	s.parts.list[last] = nil
	s.parts.list = s.parts.list[:last]
}

// somePartitions appends up to cap(buf) partitions from a slot on, for walks that must not copy, sort or lock all of
// them at once. One that is dropped meanwhile may let the walk miss another, never see one twice.
func (s *Store) somePartitions(slot int, buf []*Partition) []*Partition {
	s.parts.RLock()
	defer s.parts.RUnlock()
	if slot >= len(s.parts.list) {
		return buf[:0]
	}
	return append(buf[:0], s.parts.list[slot:min(len(s.parts.list), slot+cap(buf))]...)
}

// walkChunk is how many partitions a walk looks at between two locks.
const walkChunk = 1024

// Partitions returns the names of all partitions, sorted.
func (s *Store) Partitions() []PartitionID {
	s.parts.RLock()
	ids := make([]PartitionID, 0, len(s.parts.m))
	for id := range s.parts.m {
		ids = append(ids, id)
	}
	s.parts.RUnlock()
	slices.SortFunc(ids, PartitionID.Compare)
	return ids
}

// Ends fills ends with the log ends of parts as they were after one applied entry, whose raft index it
// returns: a cut through the shard. It waits for an Apply that is under way.
func (s *Store) Ends(parts []*Partition, ends []int64) (index uint64) {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	for i, p := range parts {
		ends[i] = p.end.Load()
	}
	return s.applied.Load().index
}

// AppendTime is the append time of the last applied entry, ns since 1970, 0 before the first.
func (s *Store) AppendTime() int64 {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	return s.now
}

// Err is nil while the store works, ErrDegraded while writing behind the log fails, ErrPoisoned after it can
// never succeed again. The error says why.
func (s *Store) Err() error {
	if !s.failed.Load() {
		return nil
	}
	s.failure.Lock()
	defer s.failure.Unlock()
	if s.failure.poisoned != nil {
		return s.failure.poisoned
	}
	return s.degradedLocked()
}

// What may be in the way of writing behind the log.
const (
	troubleRound = iota // a writer round fails
	troubleKV           // Pebble waits for space
	troubleCount
)

// degradedLocked is the first trouble there is. failure is locked.
func (s *Store) degradedLocked() error {
	for _, err := range s.failure.troubles {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) poisonedErr() error {
	s.failure.Lock()
	defer s.failure.Unlock()
	return s.failure.poisoned
}

func (s *Store) poison(err error) {
	s.failure.Lock()
	first := s.failure.poisoned == nil
	if first {
		s.failure.poisoned = fmt.Errorf("%w: %w", ErrPoisoned, err)
		err = s.failure.poisoned
		s.failed.Store(true)
		close(s.poisoned)
	}
	s.failure.Unlock()
	if !first {
		return
	}
	s.opts.Logger.Error("store poisoned", "dir", s.opts.Dir, "err", err)
	if f := s.opts.Events.Poisoned; f != nil {
		f(err)
	}
}

// setDegraded notes what came of a write behind the log; nil ends that trouble.
func (s *Store) setDegraded(trouble int, err error) {
	if err == nil && !s.failed.Load() {
		return
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	s.failure.Lock()
	was := s.degradedLocked()
	s.failure.troubles[trouble] = err
	err = s.degradedLocked()
	s.failed.Store(err != nil || s.failure.poisoned != nil)
	s.failure.Unlock()
	if (was == nil) == (err == nil) {
		return
	}
	if err != nil {
		s.opts.Logger.Warn("store degraded", "dir", s.opts.Dir, "err", err)
	} else {
		s.opts.Logger.Info("store writes again", "dir", s.opts.Dir)
	}
	if f := s.opts.Events.Degraded; f != nil {
		f(err)
	}
}

// corrupt reports a finding once it leaves the store.
func (s *Store) corrupt(err *CorruptError) error {
	s.metrics.corrupt.Add(1)
	if s.rot.add(err) {
		s.opts.Logger.Error("corrupt bytes", "dir", s.opts.Dir, "err", err)
	}
	if f := s.opts.Events.Corrupt; f != nil {
		f(err)
	}
	return err
}

// maxRot bounds how many places of rot a store remembers. Of what comes behind them only counters and callers know.
const maxRot = 64

// A rotList is where rot was met. Clients ask again, so each place is met many times.
type rotList struct {
	mu     sync.Mutex
	places []*CorruptError // immutable
}

// add reports whether the place is new, and there was room for it.
func (l *rotList) add(err *CorruptError) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.places {
		if p.Path == err.Path && p.Partition == err.Partition && p.Offset == err.Offset {
			return false
		}
	}
	if len(l.places) == maxRot {
		return false
	}
	l.places = append(l.places, err)
	return true
}

// Rot returns the places where bytes were found that are not what was written, since the store was opened, the first 64 of
// them in the order in which they were met. They are shared: nobody may change them.
func (s *Store) Rot() []*CorruptError {
	s.rot.mu.Lock()
	defer s.rot.mu.Unlock()
	return slices.Clone(s.rot.places)
}

func (s *Store) shareSettings(set PartitionSettings) *PartitionSettings {
	if p, ok := s.settings[set]; ok {
		return p
	}
	if len(s.settings) >= 1024 {
		clear(s.settings)
	}
	p := &set
	s.settings[set] = p
	return p
}

// lifetime counts who uses the files and Pebble, so that Close can wait for them.
type lifetime struct {
	mu    sync.Mutex
	idle  sync.Cond // on mu
	users int
	ended bool
}

// end refuses new users and waits for those that are left.
func (l *lifetime) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for l.users > 0 {
		l.idle.Wait()
	}
}

// use keeps the store's files and Pebble open during do. ErrClosed if they are not open any more.
func (s *Store) use(do func() error) error {
	l := &s.life
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return ErrClosed
	}
	l.users++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		if l.users--; l.users == 0 {
			l.idle.Broadcast()
		}
		l.mu.Unlock()
	}()
	return do()
}

// kick makes the writer goroutine look for work.
func (s *Store) kick() {
	select {
	case s.kicks <- struct{}{}:
	default:
	}
}

// lockWriter takes the writer's token, unless the store is closed or poisoned.
func (s *Store) lockWriter(ctx context.Context) error {
	s.wanting.Add(1)
	defer s.wanting.Add(-1)
	select {
	case s.token <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return ErrClosed
	}
	select {
	case <-s.closed:
		s.unlockWriter()
		return ErrClosed
	default:
	}
	if err := s.poisonedErr(); err != nil {
		s.unlockWriter()
		return err
	}
	return nil
}

func (s *Store) unlockWriter() { <-s.token }

// pace makes the pause of Options.WritePause. Token held.
func (s *Store) pace() {
	if s.opts.Manual || s.opts.WritePause < 0 || s.wanting.Load() > 0 || s.backlog.Load() > 2*max(s.opts.RoundBytes, s.w.roundBytes) {
		return
	}
	t := time.NewTimer(s.opts.WritePause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.closed:
	}
}

// Flush writes everything that was applied before the call to files and Pebble. Nothing is synced.
//
// It works in the caller's goroutine and waits for the disk. Errors: ErrDegraded, after which the writer goes
// on trying; ErrPoisoned; ErrClosed; the context's, only while waiting for another round.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.lockWriter(ctx); err != nil {
		return err
	}
	defer s.unlockWriter()
	return s.catchUp()
}

// Step runs one writer round if something waits and reports whether it did. For tests with Options.Manual.
func (s *Store) Step() (bool, error) {
	if err := s.lockWriter(context.Background()); err != nil {
		return false, err
	}
	defer s.unlockWriter()
	done, err := s.runRound()
	s.removeQueued()
	return done, err
}

// run is the writer goroutine.
func (s *Store) run() {
	defer s.done.Done()
	timer := time.NewTimer(s.opts.RoundDelay)
	defer timer.Stop()
	for {
		select {
		case <-s.closed:
			return
		case <-s.kicks:
		case <-timer.C:
		}
		delay := s.opts.RoundDelay
		if err := s.Flush(context.Background()); errors.Is(err, ErrDegraded) {
			delay = s.opts.RetryDelay
			select {
			case <-s.closed:
				return
			case <-time.After(delay):
			}
			s.kick()
		}
		s.removeQueued()
		timer.Reset(delay)
	}
}

// Close stops the writer and closes the files. It writes nothing: what was applied after the last round is
// in the log. The partitions answer ErrClosed where they would need a file.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		close(s.closed)
		s.kvfs.Hurry()
		s.token <- struct{}{} // the round in flight has ended; nobody gets the token again
		s.done.Wait()
		s.life.end() // readers in flight have ended
		s.w.closeFiles()
		s.handles.close()
		if s.kvFatal.Load() || s.kvfs.Broken() {
			// Pebble's goroutines may never answer again.
			return
		}
		err = s.closeDB()
	})
	return err
}

type metrics struct {
	entries, units, rejected             atomic.Int64
	rounds, placedBytes, mixedBytes      atomic.Int64
	moved, checkpoints, evicted          atomic.Int64
	tailReads, fileReads, logReads       atomic.Int64
	readAheads, readPauses, entryBytes   atomic.Int64
	corrupt, segments, removed, repaired atomic.Int64
	cacheBytes, lastRound, lastCheckpnt  atomic.Int64
	compactions, compactFailed           atomic.Int64
	compactedIn, compactedOut, dirty     atomic.Int64
}

// Metrics are counters since the store was opened, and present sizes.
type Metrics struct {
	Entries, Units, Rejected       int64
	Rounds                         int64 // writer rounds
	PlacedBytes                    int64 // bytes of batches written to segments of their own
	MixedBytes                     int64 // bytes of batches written to the mixed segment
	MovedBytes                     int64 // of PlacedBytes: moved out of the mixed segment
	Checkpoints                    int64
	TailReads, FileReads, LogReads int64 // reads answered from memory, files, the log
	ReadAheads, ReadPauses         int64 // times the disk was asked ahead of a cursor, and a cursor let the writers go first
	Evicted                        int64 // entries that left the tail cache
	Corrupt                        int64 // wrong bytes found
	SegmentsMade, FilesRemoved     int64
	Repaired                       int64 // batches that recovery wrote again
	CacheBytes, BacklogBytes       int64
	Compactions, CompactionsFailed int64 // passes that ended, and that did not
	CompactedIn, CompactedOut      int64 // bytes of log that passes have read, and left
	DirtyBytes                     int64 // bytes of compacted topics that no pass has seen, when it last looked
	CompactionError                string
	Partitions, Producers          int
	RoundTime, CheckpointTime      time.Duration // of the last one
	Pebble                         *pebble.Metrics
}

// Metrics returns a snapshot. It waits for an Apply that is under way.
func (s *Store) Metrics() Metrics {
	m := &s.metrics
	out := Metrics{
		Entries: m.entries.Load(), Units: m.units.Load(), Rejected: m.rejected.Load(), Rounds: m.rounds.Load(),
		PlacedBytes: m.placedBytes.Load(), MixedBytes: m.mixedBytes.Load(), MovedBytes: m.moved.Load(),
		Checkpoints: m.checkpoints.Load(), TailReads: m.tailReads.Load(), ReadAheads: m.readAheads.Load(), ReadPauses: m.readPauses.Load(), FileReads: m.fileReads.Load(),
		LogReads: m.logReads.Load(), Evicted: m.evicted.Load(), Corrupt: m.corrupt.Load(),
		SegmentsMade: m.segments.Load(), FilesRemoved: m.removed.Load(), Repaired: m.repaired.Load(), CacheBytes: m.cacheBytes.Load(),
		BacklogBytes: s.backlog.Load(), RoundTime: time.Duration(m.lastRound.Load()),
		CheckpointTime: time.Duration(m.lastCheckpnt.Load()), Compactions: m.compactions.Load(),
		CompactionsFailed: m.compactFailed.Load(), CompactedIn: m.compactedIn.Load(), CompactedOut: m.compactedOut.Load(),
		DirtyBytes: m.dirty.Load(), CompactionError: s.CompactionError(),
	}
	s.applyMu.Lock()
	out.Partitions, out.Producers = len(s.parts.m), s.producers.count
	s.applyMu.Unlock()
	_ = s.use(func() error {
		out.Pebble = s.db.Metrics()
		return nil
	}) // closed: nil
	return out
}
