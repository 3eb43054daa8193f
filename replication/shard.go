package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication/raftlog"
	"github.com/headrace/headrace/replication/transport"
)

// ShardOptions say how to open a shard. Dir, Machine and ID are required.
type ShardOptions struct {
	// Name is the shard's name in messages.
	Name string
	// Dir holds the shard: wal/ and checkpoint/ are this package's, the rest the machine's.
	Dir string
	// FS is the file system. Nil: the disk. The shard watches what goes through it; for the machine's operations to
	// count too, both must be given the same fsx.WatchFS.
	FS fsx.FS
	// Logger gets state changes. Nil: none.
	Logger *slog.Logger
	// Now is the clock that stamps append times. Nil: time.Now.
	Now func() time.Time

	// Machine opens the state machine, which may read entries from w until its Close returns.
	Machine func(w *wal.WAL) (StateMachine, error)

	// ID is the disk's random id and NodeID the node's number: together the member's address.
	ID     string
	NodeID int32
	// Bootstrap allows an empty shard to be made a group with this disk as its only voter. Without it a shard
	// that holds nothing is ErrEmptyShard.
	Bootstrap bool
	// Join allows an empty shard to wait until the leader of its group adds it.
	Join bool
	// Hub connects the members of the group. Nil: one that nobody else is on.
	Hub *transport.Hub

	// WALDirect writes the log past the page cache, each group durable with its write, where the file system can.
	// It keeps appends apart from other writes of the system at the price of slower ones on most disks.
	WALDirect bool

	WALSegmentBytes  int64 // 0: 64 MiB
	WALReadySegments int   // 0: the log's default
	WALAheadSegments int   // 0: the log's default, negative: none
	WALCacheBytes    int64 // 0: the log's default

	// MaxInflightBytes bounds the bytes that wait and those in flight; more is ErrBusy. 0: 64 MiB.
	MaxInflightBytes int64
	// MaxBacklogBytes is the Backlog of the machine above which units with records or state are ErrBusy; others
	// from a quarter more on. 0: 256 MiB.
	MaxBacklogBytes int64
	// MaxEntryBytes bounds one entry. 0: log.MaxEntryBytes.
	MaxEntryBytes int

	// A checkpoint is taken when CheckpointBytes were appended since the last one (0: 256 MiB) or the log finds
	// no space for another segment, or after
	// CheckpointEvery if anything changed (0: 1 minute). Negative switches a rule off.
	CheckpointBytes int64
	CheckpointEvery time.Duration
	// TrailingBytes is how much of the log, as it lies on the disk, is kept behind a checkpoint for members that follow. 0: 1 GiB
	// when there are any, 16 MiB when the group has one member.
	TrailingBytes int64

	// Full says why the disk is to take no records for now, nil: it may. Nil: it always may. It must not block.
	Full func() error
	// SmallDisk says that the disk as a whole is too small, for the errors of a full one; "": it is not.
	SmallDisk string

	// StallAfter is how long a disk operation may take before the shard is marked stalled (0: 2 s), PoisonAfter before
	// the shard is given up (0: 30 s; a write of the log 2 s where there is another voter, who can take over).
	StallAfter, PoisonAfter time.Duration
	// CloseTimeout bounds how long Close waits for what is in flight, and for a write that does not return.
	// 0: 10 s.
	CloseTimeout time.Duration

	// Leading is called when this member starts or stops leading. It must not block.
	Leading func(term uint64, leading bool)
	// Failed is called once when the shard goes down. It must not block.
	Failed func(error)
}

func (o ShardOptions) withDefaults() ShardOptions {
	if o.FS == nil {
		o.FS = fsx.Disk()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name != "" {
		o.Logger = o.Logger.With("shard", o.Name)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Hub == nil {
		o.Hub = transport.NewHub()
	}
	def(&o.WALSegmentBytes, defaultWALSegmentBytes)
	def(&o.MaxInflightBytes, 64<<20)
	def(&o.MaxBacklogBytes, 256<<20)
	def(&o.MaxEntryBytes, log.MaxEntryBytes)
	def(&o.CheckpointBytes, 256<<20)
	def(&o.CheckpointEvery, time.Minute)
	def(&o.StallAfter, 2*time.Second)
	def(&o.CloseTimeout, 10*time.Second)
	// A group never spans segments of the log, and has a header.
	o.MaxEntryBytes = min(o.MaxEntryBytes, int(o.WALSegmentBytes/4))
	return o
}

const defaultWALSegmentBytes = 64 << 20

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Timing of the group on a local network.
const (
	heartbeatTimeout   = 300 * time.Millisecond
	electionTimeout    = 300 * time.Millisecond
	leaseTimeout       = 250 * time.Millisecond
	commitTimeout      = 5 * time.Millisecond
	rpcTimeout         = 3 * time.Second
	maxAppendEntries   = 8
	keepEntries        = 64 // entries kept behind a checkpoint whatever their size
	keepAlone          = 4  // and by a group of one member, which nobody follows
	defaultTrailing    = 1 << 30
	singleTrailing     = 16 << 20
	poisonAfter        = 30 * time.Second
	clusterPoisonAfter = 2 * time.Second
)

// A Shard is this member of one replicated log and the state machine that it feeds. Its methods may be called
// from any goroutine.
type Shard struct {
	o       ShardOptions
	wal     *wal.WAL
	log     *raftlog.Log
	snaps   *raftlog.Snapshots
	machine StateMachine
	trans   *transport.Transport
	raft    *raft.Raft
	running atomic.Pointer[raft.Raft] // raft, for goroutines that it starts itself
	core    *core
	disk    *fsx.WatchFS
	trouble func() error                      // what keeps the machine from writing, nil: nothing
	aside   func(op fsx.Op, name string) bool // whether an operation of the machine's keeps nobody but readers and compactions

	ctx    context.Context // of the shard's goroutines and checkpoints
	cancel context.CancelFunc
	wg     sync.WaitGroup
	turn   chan struct{} // one token: somebody packs
	kick   chan struct{} // the packer has something to do
	solo   atomic.Bool   // this member is all of its group, as far as is applied; false until that is known
	notify chan bool     // raft's leadership changes
	due    chan struct{} // a checkpoint is due by bytes
	asked  chan chan error

	stopOnce  sync.Once
	stopping  raft.Future   // raft's shutdown
	down      chan struct{} // closed when the shard failed
	failure   atomic.Pointer[error]
	stalled   atomic.Bool           // as it was last logged
	pressed   atomic.Pointer[error] // what has kept records out for longer than StallAfter
	closeOnce sync.Once
	closeErr  error

	checkpointBytes atomic.Int64 // raftlog.Bytes at the last checkpoint
	checkpointIndex atomic.Uint64
	recovery        wal.Recovery
	waiters         sync.Pool // *waiter
}

// OpenShard opens the shard under o.Dir, or creates it with o.Bootstrap. It returns before the member leads;
// see WaitLeader.
func OpenShard(o ShardOptions) (*Shard, error) {
	o = o.withDefaults()
	if o.Dir == "" || o.Machine == nil || o.ID == "" {
		return nil, errors.New("replication: ShardOptions need Dir, Machine and ID")
	}
	s := &Shard{
		o: o, turn: make(chan struct{}, 1), kick: make(chan struct{}, 1), notify: make(chan bool, 64), due: make(chan struct{}, 1),
		asked: make(chan chan error), down: make(chan struct{}),
	}
	if s.disk, _ = o.FS.(*fsx.WatchFS); s.disk == nil {
		s.disk = fsx.Watch(o.FS, nil)
		s.o.FS = s.disk
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.waiters.New = func() any { return newWaiter() }
	if err := s.open(); err != nil {
		s.cancel()
		return nil, fmt.Errorf("replication: open shard %s: %w", o.Name, err)
	}
	return s, nil
}

func (s *Shard) open() (err error) {
	o := s.o
	join := o.FS.PathJoin
	if err := fsx.MkdirAll(o.FS, o.Dir); err != nil {
		return err
	}
	if s.snaps, err = raftlog.OpenSnapshots(o.FS, join(o.Dir, "checkpoint")); err != nil {
		return err
	}
	newest, _ := s.snaps.Newest()
	s.wal, s.recovery, err = wal.Open(wal.Options{
		FS: o.FS, Dir: join(o.Dir, "wal"), SegmentBytes: o.WALSegmentBytes, ReadySegments: o.WALReadySegments,
		AheadSegments: o.WALAheadSegments,
		CacheBytes:    o.WALCacheBytes, SyncedIndex: newest.Index, Direct: o.WALDirect, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.wal.Close())
		}
	}()
	if s.machine, err = o.Machine(s.wal); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.machine.Close())
		}
	}()
	s.trouble = func() error { return nil }
	if m, ok := s.machine.(interface{ Err() error }); ok {
		s.trouble = m.Err
	}
	s.aside = func(fsx.Op, string) bool { return false }
	if m, ok := s.machine.(interface {
		Aside(op fsx.Op, name string) bool
	}); ok {
		s.aside = m.Aside
	}
	last, err := s.check()
	if err != nil {
		return err
	}
	s.core = newCore(o.MaxInflightBytes, o.MaxEntryBytes, last)
	s.log = raftlog.New(raftlog.Options{
		WAL: s.wal, Failed: s.fail, Appended: s.appended,
		Listed: func() uint64 {
			m, _ := s.snaps.Newest()
			return m.Index
		},
		Applied: func() uint64 {
			index, _ := s.machine.Applied()
			return index
		},
	})
	return s.start()
}

// check compares the machine with the log and the newest checkpoint, and returns the append time of the last
// entry.
func (s *Shard) check() (lastAppend int64, err error) {
	applied, term := s.machine.Applied()
	if m, ok := s.machine.(interface{ AppendTime() int64 }); ok {
		lastAppend = m.AppendTime()
	}
	m, have := s.snaps.Newest()
	first, last := s.wal.FirstIndex(), s.wal.LastIndex()
	switch {
	case have && m.Machine > applied:
		return 0, fmt.Errorf("%w: checkpoint %d, the rows in %s are of %d", ErrStoreBehind, m.Machine, s.o.Dir, applied)
	case applied > max(last, m.Index):
		return 0, fmt.Errorf("%w: applied %d, last entry %d", log.ErrAheadOfLog, applied, max(last, m.Index))
	case last != 0 && first > m.Index+1:
		return 0, fmt.Errorf("%w: checkpoint %d, first entry %d", ErrEmptyShard, m.Index, first)
	}
	if applied >= first && applied <= last && first != 0 {
		e, err := s.wal.Read(applied)
		if err != nil {
			return 0, fmt.Errorf("read the applied entry %d: %w", applied, err)
		}
		if e.Term != term {
			return 0, fmt.Errorf("%w: entry %d has term %d, applied with term %d", log.ErrAheadOfLog, applied, e.Term, term)
		}
	}
	for i := last; i >= first && i > 0 && last-i < keepEntries; i-- {
		e, err := s.wal.Read(i)
		if err != nil {
			return 0, fmt.Errorf("read entry %d: %w", i, err)
		}
		if raft.LogType(e.Type) != raft.LogCommand {
			continue
		}
		if d, err := log.DecodeEntry(e.Data); err == nil {
			return max(lastAppend, d.AppendTime), nil
		}
	}
	return lastAppend, nil
}

// address is the server address of a member: its disk on a node, resolved when it is dialled.
func address(id string, node int32) raft.ServerAddress {
	return raft.ServerAddress(fmt.Sprintf("%s@%d", id, node))
}

func (s *Shard) config() *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(s.o.ID)
	// Lowering the timeout again wakes the follower loop at once, which is how a single voter gets round
	// waiting for a leader that cannot exist.
	c.HeartbeatTimeout = heartbeatTimeout + time.Millisecond
	c.ElectionTimeout = electionTimeout + time.Millisecond
	c.LeaderLeaseTimeout = leaseTimeout
	c.CommitTimeout = commitTimeout
	c.MaxAppendEntries = maxAppendEntries
	c.BatchApplyCh = true // more than are ever between the packer and their append: handing over never waits
	c.ShutdownOnRemove = false
	c.SnapshotInterval = 1000 * time.Hour // never: the checkpointer decides
	c.SnapshotThreshold = 1 << 62
	c.TrailingLogs = 1 << 62
	c.NoSnapshotRestoreOnStart = true
	c.NoLegacyTelemetry = true
	c.NotifyCh = s.notify
	c.Logger = raftlog.Logger(s.o.Logger)
	return c
}

func (s *Shard) reloadable(trailing uint64) raft.ReloadableConfig {
	return raft.ReloadableConfig{
		TrailingLogs: trailing, SnapshotInterval: 1000 * time.Hour, SnapshotThreshold: 1 << 62,
		HeartbeatTimeout: heartbeatTimeout, ElectionTimeout: electionTimeout,
	}
}

func (s *Shard) start() (err error) {
	me := address(s.o.ID, s.o.NodeID)
	stream, err := s.o.Hub.Listen(me)
	if err != nil {
		return err
	}
	s.trans = transport.New(transport.Options{
		Stream: stream, Timeout: rpcTimeout, Logger: raftlog.Logger(s.o.Logger), LocalID: raft.ServerID(s.o.ID),
		Storing: s.log.Storing, Term: s.log.Term, LastIndex: s.wal.LastIndex,
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.trans.Close())
		}
	}()
	if err := s.bootstrap(me); err != nil {
		return err
	}
	if err := s.newRaft(); err != nil {
		return err
	}
	// An entry that was appended before and is applied after this is counted twice, which the core forgives.
	s.solo.Store(s.alone())
	s.log.Started()
	if m, ok := s.snaps.Newest(); ok {
		s.checkpointIndex.Store(m.Machine)
	}
	for _, run := range []func(){s.follow, s.pack, s.watch, s.checkpoints} {
		s.wg.Go(run)
	}
	if s.solo.Load() {
		return s.raft.ReloadConfig(s.reloadable(1 << 62))
	}
	return nil
}

// alone reports whether this member is all of its group.
func (s *Shard) alone() bool { return s.sole(s.raft.GetConfiguration().Configuration()) }

func (s *Shard) sole(c raft.Configuration) bool {
	return len(c.Servers) == 1 && c.Servers[0].ID == raft.ServerID(s.o.ID) && c.Servers[0].Suffrage == raft.Voter
}

// reconfigured is called by the apply goroutine with the group as it is from now on.
func (s *Shard) reconfigured(c raft.Configuration) {
	sole := s.sole(c)
	if was := s.solo.Swap(sole); was && !sole && s.core.appended(maxAppending) {
		// The appends that returned before are counted here, for nobody else will; those that are under way are counted
		// twice, which the core forgives.
		s.wake()
	}
}

// poisonAfter is how long a write of the log may take before the shard is given up.
func (s *Shard) poisonAfter() time.Duration {
	if s.o.PoisonAfter > 0 || s.alone() {
		return s.behindAfter()
	}
	return clusterPoisonAfter
}

// behindAfter is the same for what stands behind the log. No answer waits for it, so there is no hurry to have another
// voter take over.
func (s *Shard) behindAfter() time.Duration {
	if s.o.PoisonAfter > 0 {
		return s.o.PoisonAfter
	}
	return poisonAfter
}

// bootstrap makes an empty shard a group of this member. It can be repeated: what counts is the first entry,
// which is written last.
func (s *Shard) bootstrap(me raft.ServerAddress) error {
	_, have := s.snaps.Newest()
	if have || s.wal.LastIndex() != 0 {
		return nil
	}
	switch {
	case s.o.Bootstrap:
	case s.o.Join:
		return nil
	default:
		return ErrEmptyShard
	}
	term := max(1, s.log.Term())
	if err := s.log.SetUint64([]byte("CurrentTerm"), term); err != nil {
		return err
	}
	servers := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(s.o.ID), Address: me}}}
	return s.log.StoreLog(&raft.Log{
		Index: 1, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(servers), AppendedAt: s.o.Now(),
	})
}

// newRaft starts raft. NewRaft panics when an entry cannot be read.
func (s *Shard) newRaft() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("start raft: %v", p)
		}
	}()
	if s.raft, err = raft.NewRaft(s.config(), &fsm{s}, s.log, s.log, s.snaps, s.trans); err != nil {
		return err
	}
	s.running.Store(s.raft)
	if s.Err() != nil { // failed before it was known here
		s.shutdown()
	}
	return nil
}

// appended is called by raft's main goroutine when n commands are synced. The next entry may go, except in a group of
// one: what it appends is committed at once, and raft's main goroutine, which chooses at random between a commit to
// carry out and an entry to append, would let every other answer wait for the next sync. There fsm.ApplyBatch says when.
func (s *Shard) appended(commands int, _ int) {
	if !s.solo.Load() && s.core.appended(commands) {
		s.wake()
	}
	if s.log.Bytes()-s.checkpointBytes.Load() >= s.o.CheckpointBytes {
		s.checkpointDue()
	}
}

func (s *Shard) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// pack is the proposer goroutine: it packs what waits when the append before it has returned.
func (s *Shard) pack() {
	for {
		select {
		case <-s.kick:
		case <-s.ctx.Done():
			return
		}
		s.turn <- struct{}{}
		s.packWaiting()
		<-s.turn
	}
}

// packNow is for whoever proposes while nothing is in flight: at rest there is no goroutine to wake.
func (s *Shard) packNow() {
	select {
	case s.turn <- struct{}{}:
		s.packWaiting()
		<-s.turn
	default:
		s.wake() // whoever packs may be past the new unit
	}
}

func (s *Shard) nowNS() int64 { return s.o.Now().UnixNano() }

// packWaiting hands entries to raft, in order. The caller has the turn.
func (s *Shard) packWaiting() {
	for {
		f := s.core.pack(s.nowNS)
		if f == nil || !s.core.launch(f) {
			return
		}
		// The future is not waited for: applied entries are answered by the apply goroutine, and the
		// others when leadership is lost. See core.
		entry := raft.Log{Data: f.data}
		if f.semi {
			entry.Extensions = raftlog.SemiSync
		}
		s.raft.ApplyLog(entry, 0)
	}
}

// Propose implements Proposer.
func (s *Shard) Propose(u *log.Unit, done func(Result)) error {
	if err := s.room(u.Appends(), u.Size()); err != nil {
		return err
	}
	pack, err := s.core.add(proposal{unit: u, done: done, size: u.Size()})
	if pack {
		s.packNow()
	}
	return err
}

// room says whether the disk and the machine have room for a unit.
//
// Records and state stop first: when writing behind the log fails, when the machine's backlog has reached its bound,
// or when the log can make no more segments and has no more than one segment beyond what is in flight. What is
// left serves the others (offsets, metadata, deletes, task opens, log starts), which are small and few, up to a
// reserve for raft's own: votes and terms.
func (s *Shard) room(appends bool, size int) error {
	if s.Err() != nil {
		return nil // the core says why
	}
	backlog, bound := s.machine.Backlog(), s.o.MaxBacklogBytes
	trouble := s.trouble()
	if !appends {
		bound, trouble = bound+bound/4, nil
	}
	switch {
	case errors.Is(trouble, log.ErrPoisoned):
		return nil // the shard is going down for it
	case trouble == nil && appends && s.o.Full != nil:
		trouble = s.o.Full()
	}
	switch {
	case trouble != nil:
		return &noRoomError{trouble, s.o.SmallDisk}
	case backlog > bound:
		return errBacklog
	}
	left, full := s.wal.Room()
	if left == math.MaxInt64 || errors.Is(full, wal.ErrPoisoned) {
		return nil
	}
	reserve := s.o.WALSegmentBytes / 16
	if appends && full != nil {
		reserve = s.o.WALSegmentBytes
	}
	waiting, inFlight := s.core.held()
	switch {
	case left >= reserve+waiting+inFlight+int64(size)+groupBytes:
		return nil
	case full == nil:
		return errNoSegment // they are being made; what is in flight fits those that are there
	}
	s.checkpointDue()
	return &noRoomError{full, s.o.SmallDisk}
}

// Why room has none for now. Both are ErrBusy.
var (
	errBacklog   = fmt.Errorf("%w: what was applied waits for the disk", ErrBusy)
	errNoSegment = fmt.Errorf("%w: the log waits for a segment", ErrBusy)
)

// groupBytes is more than what one entry takes in the log besides its bytes.
const groupBytes = 8 << 10

// checkpointDue has the checkpointer look whether a checkpoint is due by bytes, or would give the log room.
func (s *Shard) checkpointDue() {
	if s.o.CheckpointBytes <= 0 {
		return
	}
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// NoRoom returns why units with records or state are refused for want of room on the disk, an ErrNoRoom, or nil.
func (s *Shard) NoRoom() error {
	if err := s.room(true, 0); errors.Is(err, ErrNoRoom) {
		return err
	}
	return nil
}

// How often a waiting proposal looks again at what nobody announces: the machine's backlog and the disk.
const (
	roomPoll    = 2 * time.Millisecond
	maxRoomPoll = 50 * time.Millisecond
)

// ProposeWait implements Proposer.
func (s *Shard) ProposeWait(ctx context.Context, u *log.Unit, done func(Result)) error {
	err := s.Propose(u, done)
	if !errors.Is(err, ErrBusy) {
		return err
	}
	poll := roomPoll
	timer := time.NewTimer(poll)
	defer timer.Stop()
	for {
		room := s.core.waitRoom()
		if err := s.Propose(u, done); !errors.Is(err, ErrBusy) {
			return err
		} else if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
		timer.Reset(poll)
		select {
		case <-room:
		case <-timer.C:
			poll = min(2*poll, maxRoomPoll)
		case <-ctx.Done(): // looks once more, for the reason
		}
	}
}

// A waiter takes one result over a channel.
type waiter struct {
	ch   chan Result
	done func(Result)
}

func newWaiter() *waiter {
	w := &waiter{ch: make(chan Result, 1)}
	w.done = func(r Result) { w.ch <- r }
	return w
}

// Do implements Proposer.
func (s *Shard) Do(ctx context.Context, u *log.Unit) Result {
	w := s.waiters.Get().(*waiter) //nolint:errcheck // the pool holds nothing else
	if err := s.ProposeWait(ctx, u, w.done); err != nil {
		s.waiters.Put(w)
		return no(err)
	}
	select {
	case r := <-w.ch:
		s.waiters.Put(w)
		return r
	case <-ctx.Done():
		return unknown(ctx.Err())
	}
}

// Leader implements Proposer.
func (s *Shard) Leader() (term uint64, ok bool) { return s.core.leader() }

// WaitLeader returns when this member leads and has applied everything committed before, or with the error
// that prevents it.
func (s *Shard) WaitLeader(ctx context.Context) error {
	for {
		changed := s.core.waitRoom()
		if _, ok := s.Leader(); ok {
			return nil
		}
		if err := s.Err(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-s.down:
		case <-s.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("replication: wait for leadership of shard %s: %w", s.o.Name, ctx.Err())
		}
	}
}

// Err returns why the shard is down, or nil.
func (s *Shard) Err() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// Applied returns the index and raft term of the last entry that the machine has applied.
func (s *Shard) Applied() (index, term uint64) { return s.machine.Applied() }

// A ShardState is a moment of a shard, for people and metrics.
type ShardState struct {
	Name            string
	Leader          bool
	Term            uint64 // raft term
	Voters          int
	LastIndex       uint64        // last entry in the log
	Applied         uint64        // last entry the machine has applied
	CheckpointIndex uint64        // what the newest checkpoint holds
	WaitingBytes    int64         // of units not yet packed
	InflightBytes   int64         // of units packed and not answered
	BacklogBytes    int64         // of the machine
	AppendedBytes   int64         // to the log since the start
	OldestWrite     time.Duration // age of the oldest disk operation in flight that the shard depends on, 0 if there is none
	OldestName      string        // what it is
	Stalled         bool          // one takes longer than StallAfter
	NoRoom          error         // why records are refused for want of room on the disk
	Pressed         error         // why records have been refused as ErrBusy for longer than StallAfter, without a failure
	Err             error         // why the shard is down
	WAL             wal.Metrics
}

// State returns the shard's present state.
func (s *Shard) State() ShardState {
	st := ShardState{
		Name: s.o.Name, Term: s.raft.CurrentTerm(), LastIndex: s.wal.LastIndex(),
		CheckpointIndex: s.checkpointIndex.Load(), BacklogBytes: s.machine.Backlog(),
		AppendedBytes: s.log.Bytes(), NoRoom: s.NoRoom(), Err: s.Err(), WAL: s.wal.Metrics(),
	}
	st.OldestName, st.OldestWrite = s.oldest()
	st.Stalled = st.OldestWrite >= s.o.StallAfter
	if p := s.pressed.Load(); p != nil {
		st.Pressed = *p
	}
	_, st.Leader = s.core.leader()
	st.Applied, _ = s.machine.Applied()
	st.WaitingBytes, st.InflightBytes = s.core.held()
	for _, srv := range s.raft.GetConfiguration().Configuration().Servers {
		if srv.Suffrage == raft.Voter {
			st.Voters++
		}
	}
	return st
}

// Close finishes what is in flight, takes a checkpoint if anything changed, and stops. It is bounded by
// CloseTimeout twice; a shard whose disk does not return is left behind with an error.
func (s *Shard) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Shard) close() error {
	s.core.refuse(ErrClosed)
	deadline := time.NewTimer(s.o.CloseTimeout)
	defer deadline.Stop()
	_, leading := s.core.leader()
drain:
	for leading && s.Err() == nil && !s.core.idle() {
		room := s.core.waitRoom()
		if s.core.idle() {
			break
		}
		select {
		case <-room:
		case <-s.down:
		case <-deadline.C:
			break drain
		}
	}
	if applied, _ := s.machine.Applied(); leading && s.Err() == nil && applied > s.checkpointIndex.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), s.o.CloseTimeout)
		if err := s.Checkpoint(ctx); err != nil {
			s.o.Logger.Warn("no checkpoint at close; the next start replays more", "error", err)
		}
		cancel()
	}
	s.cancel()
	stopped := make(chan error, 1)
	go func() { // left behind only by a disk that does not return, and until it does
		err := s.shutdown().Error()
		s.wg.Wait()
		err = errors.Join(err, s.trans.Close())
		s.core.lost(ErrClosed)
		stopped <- errors.Join(err, s.machine.Close(), s.wal.Close())
	}()
	hung := time.NewTimer(s.o.CloseTimeout)
	defer hung.Stop()
	select {
	case err := <-stopped:
		return err
	case <-hung.C:
		s.core.lost(ErrClosed)
		s.trans.Cut()
		return fmt.Errorf("replication: close shard %s: %w", s.o.Name, ErrStalled)
	}
}
