package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
)

// Directories of the shards in a data directory.
const (
	metaDir = "meta"
	dataDir = "data-0"
)

// StoreDir is where the data shard's store is in a data directory.
const StoreDir = dataDir + "/store"

// NodeOptions say how to open a node. Dir is required.
type NodeOptions struct {
	Dir    string
	FS     fsx.FS       // nil: the disk
	Logger *slog.Logger // nil: none
	Now    func() time.Time

	// Data and Meta override options of the shards; what OpenNode sets itself is ignored. Zero values are
	// the shard's defaults, except that the metadata shard has 8 MiB log segments and checkpoints every
	// 32 MiB.
	Data, Meta ShardOptions

	// CacheBytes is the data store's tail cache, SegmentBytes the size of its segment files. 0: its defaults.
	CacheBytes   int64
	SegmentBytes int64

	// BootID names the present boot of the machine, so that a start can tell a process that died from a machine that
	// did. "": the system's.
	BootID string

	// ReserveBytes is how much space is kept for a start on a full disk. 0: 16 MiB, or a 32nd of a smaller disk.
	// Negative: none.
	ReserveBytes int64

	// RetentionEvery is how often log starts are looked at. 0: 5 s. Negative: never.
	RetentionEvery time.Duration
	// RetentionCut is told what a cap of retention took from a task. The retention goroutine calls it; it must not block.
	RetentionCut func(RetentionCut)

	// OpenTimeout bounds how long OpenNode waits, once both logs are read, until this node leads its shards and the
	// catalogue is in place. A full disk can keep it waiting. 0: 2 minutes.
	OpenTimeout time.Duration

	monotonic func() int64 // ns, of disk operations. nil: the machine's
}

func (o NodeOptions) withDefaults() NodeOptions {
	if o.FS == nil {
		o.FS = fsx.Disk()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.BootID == "" {
		o.BootID = fsx.BootID()
	}
	def(&o.Meta.WALSegmentBytes, 8<<20)
	def(&o.Meta.WALAheadSegments, -1)
	def(&o.Meta.CheckpointBytes, 32<<20)
	def(&o.Meta.MaxEntryBytes, 2<<20)
	def(&o.Meta.WALCacheBytes, 4<<20)
	def(&o.RetentionEvery, 5*time.Second)
	def(&o.OpenTimeout, 2*time.Minute)
	return o
}

// A Node is the shards of one data directory, and what keeps them in step. Its methods may be called from
// any goroutine.
type Node struct {
	o        NodeOptions
	id       identity
	epoch    int64
	startup  Startup
	lock     io.Closer
	reserve  *reserve
	metadata *Metadata
	machine  *metaMachine
	meta     *Shard
	data     *Shard
	store    *log.Store

	// Of retention. See retain.go.
	floor    atomic.Pointer[func() map[log.PartitionID]int64]
	sources  atomic.Pointer[func(log.TopicID) log.TopicID]
	retain   chan struct{} // capacity 1: look now
	retained struct{ raised, cut, held atomic.Int64 }

	ctx       context.Context // of the node's goroutines
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// OpenNode opens the node under o.Dir, or creates it when the directory is empty. It returns when this node
// leads both shards, has applied what they hold, and every partition of the catalogue is open. When that takes long it
// logs what it waits for; after OpenTimeout it gives up with that.
//
// Errors: ErrInUse, ErrRotten, ErrIdentity, the file system's.
func OpenNode(o NodeOptions) (*Node, error) {
	o = o.withDefaults()
	if o.Dir == "" {
		return nil, errors.New("replication: NodeOptions need Dir")
	}
	n, err := attempt(o)
	var left *fsx.LeftBehindError
	if errors.Is(err, syscall.ENOSPC) && n.reserve.release() > 0 && !errors.As(err, &left) {
		n, err = attempt(o) // otherwise the next process finds the space
	}
	switch {
	case err == nil:
		return n, nil
	case n.id.Formatted && rotten(err): // a new directory is not rotten where it cannot be made
		err = fmt.Errorf("%w: %w", ErrRotten, err)
	}
	return nil, fmt.Errorf("replication: open node in %s: %w", o.Dir, err)
}

// attempt is one attempt to open a node. With an error the node is closed, and its reserve is what there is of it.
func attempt(o NodeOptions) (*Node, error) {
	n := &Node{o: o, retain: make(chan struct{}, 1)}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(); err != nil {
		return n, errors.Join(err, n.abandon())
	}
	return n, nil
}

func (n *Node) open() error {
	fs := n.o.FS
	if err := fsx.MkdirAll(fs, n.o.Dir); err != nil {
		return err
	}
	var err error
	if n.lock, err = fs.Lock(fs.PathJoin(n.o.Dir, lockFile)); err != nil {
		return inUse(fs, n.o.Dir, err)
	}
	if n.reserve, err = openReserve(fs, n.o.Dir, n.o.ReserveBytes, n.o.Logger); err != nil {
		return err
	}
	if n.reserve.needed() {
		n.reserve.release()
	}
	if n.id, err = loadIdentity(fs, n.o.Dir, n.o.Now()); err != nil {
		return err
	}
	mark := OpenMark{BootID: n.o.BootID, Since: n.o.Now().UTC(), PID: os.Getpid()}
	if n.startup, err = markOpen(fs, n.o.Dir, mark); err != nil {
		return err
	}
	n.startup.report(n.o.Logger)
	if err := n.openShards(); err != nil {
		return err
	}
	if !n.id.Formatted {
		id := n.id
		id.Formatted = true
		if err := id.save(fs, n.o.Dir); err != nil {
			return err
		}
		n.id = id
	}
	first := make(chan struct{})
	return n.patiently("its registration and the placement of its topics", func(ctx context.Context) error {
		n.epoch, err = n.metadata.register(ctx, NodeRow{ID: n.id.NodeID, Disk: n.id.DiskID, StartedAt: n.o.Now().UnixMilli()})
		if err != nil {
			return fmt.Errorf("register: %w", err)
		}
		mark.Epoch = n.epoch
		if err := mark.save(fs, n.o.Dir); err != nil {
			// The mark that is there says the same but for its epoch, or is of an older start: an unclean one all the same.
			n.o.Logger.Warn("the open mark does not name this start", "error", err)
		}
		n.wg.Go(func() { n.place(first) })
		if n.o.RetentionEvery > 0 {
			n.wg.Go(n.retention)
		}
		select {
		case <-first:
			return nil
		case <-n.data.down:
			return n.data.Err()
		case <-n.meta.down:
			return n.meta.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// patiently runs a part of the start that waits for both shards: it says now and then what is in the way, and gives up
// with that after OpenTimeout.
func (n *Node) patiently(what string, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(n.ctx, n.o.OpenTimeout)
	defer cancel()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(n.o.OpenTimeout/24, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				n.o.Logger.Warn("the node still waits for "+what, "reasons", n.obstacles())
			}
		}
	})
	err := do(ctx)
	close(done)
	wg.Wait()
	if err != nil && ctx.Err() != nil && n.ctx.Err() == nil {
		err = fmt.Errorf("gave up after %v waiting for %s: %w: %s", n.o.OpenTimeout, what, err, strings.Join(n.obstacles(), "; "))
	}
	return err
}

// openShards opens both shards at once: each waits for its own syncs.
func (n *Node) openShards() error {
	var metaErr, dataErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		o := n.shard(n.o.Meta, metaDir)
		o.Machine = func(*wal.WAL) (StateMachine, error) {
			m, err := openMeta(o.FS, o.FS.PathJoin(o.Dir, "rows"), o.Logger)
			n.machine = m
			return m, err
		}
		n.meta, metaErr = OpenShard(o)
	})
	wg.Go(func() {
		o := n.shard(n.o.Data, dataDir)
		o.Full, o.SmallDisk = n.reserve.Err, n.smallDisk()
		o.Machine = func(w *wal.WAL) (StateMachine, error) {
			s, err := log.Open(log.Options{
				FS: o.FS, Dir: o.FS.PathJoin(o.Dir, "store"), Log: log.FromWAL(w), CacheBytes: n.o.CacheBytes,
				SegmentBytes: n.o.SegmentBytes, Logger: o.Logger,
				Events: log.Events{Degraded: func(err error) {
					if errors.Is(err, syscall.ENOSPC) {
						w.Shed() // the log keeps spare segments; the store needs their space
					}
				}},
			})
			n.store = s
			return s, err
		}
		n.data, dataErr = OpenShard(o)
	})
	wg.Wait()
	if err := errors.Join(metaErr, dataErr); err != nil {
		return err
	}
	n.wg.Go(n.keepReserve)
	err := n.patiently("leadership of its shards", func(ctx context.Context) error {
		return errors.Join(n.meta.WaitLeader(ctx), n.data.WaitLeader(ctx))
	})
	if err != nil {
		return err
	}
	n.metadata = newMetadata(n.meta, n.machine, n.o.Now, n.ctx.Done())
	return nil
}

func (n *Node) shard(o ShardOptions, dir string) ShardOptions {
	o.Name, o.Dir = dir, n.o.FS.PathJoin(n.o.Dir, dir)
	o.FS, o.Logger, o.Now = fsx.Watch(n.o.FS, n.o.monotonic), n.o.Logger, n.o.Now // one of its own: a shard answers for its own disk operations
	o.ID, o.NodeID, o.Bootstrap = n.id.DiskID, n.id.NodeID, !n.id.Formatted
	return o
}

// abandon closes what open has opened. The open mark stays: nothing says that the start was clean.
func (n *Node) abandon() error {
	n.cancel()
	var errs []error
	n.wg.Wait()
	for _, s := range []*Shard{n.data, n.meta} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if n.lock != nil {
		errs = append(errs, n.lock.Close())
	}
	return errors.Join(errs...)
}

// Close stops the node: what is in flight is finished, the shards take a checkpoint, and the mark of an
// unclean stop is removed if all went well.
func (n *Node) Close() error {
	n.closeOnce.Do(func() {
		n.cancel()
		n.wg.Wait()
		var dataErr error
		var wg sync.WaitGroup
		wg.Go(func() { dataErr = n.data.Close() })
		err := errors.Join(n.meta.Close(), n.failure())
		wg.Wait()
		if err = errors.Join(err, dataErr); err == nil {
			err = clearOpen(n.o.FS, n.o.Dir)
		}
		n.closeErr = errors.Join(err, n.lock.Close())
	})
	return n.closeErr
}

// failure is why the node did not stop cleanly although its shards closed.
func (n *Node) failure() error {
	return errors.Join(n.meta.Err(), n.data.Err())
}

// Meta returns the metadata.
func (n *Node) Meta() *Metadata { return n.metadata }

// MetaShard returns the metadata shard.
func (n *Node) MetaShard() *Shard { return n.meta }

// Data returns the data shard.
func (n *Node) Data() *Shard { return n.data }

// Store returns the data shard's store.
func (n *Node) Store() *log.Store { return n.store }

// Dir returns the data directory, FS what it is on.
func (n *Node) Dir() string { return n.o.Dir }

// FS returns the file system of the data directory.
func (n *Node) FS() fsx.FS { return n.o.FS }

// ClusterID returns the random id of the cluster.
func (n *Node) ClusterID() string { return n.id.ClusterID }

// NodeID returns the node's number in the cluster.
func (n *Node) NodeID() int32 { return n.id.NodeID }

// Epoch returns the node epoch: one more at every start.
func (n *Node) Epoch() int64 { return n.epoch }

// Startup says how the run before this one ended.
func (n *Node) Startup() Startup { return n.startup }

// Unclean says that the run before this one did not stop cleanly.
func (n *Node) Unclean() bool { return n.startup.Kind.unclean() }

// Reserve returns how many bytes are kept for a start on a full disk, and how many should be.
func (n *Node) Reserve() (have, want int64) { return n.reserve.sizes() }

// Shards returns the state of every shard of the node.
func (n *Node) Shards() []ShardState { return []ShardState{n.meta.State(), n.data.State()} }

// Ready returns the reasons why the node cannot serve everything, none when it can. A node whose disk is full is not
// ready, and serves all but records.
func (n *Node) Ready() []string { return n.obstacles() }

// obstacles is Ready, as far as the node is open.
func (n *Node) obstacles() []string {
	var why []string
	say := func(what string, err error) {
		why = append(why, fmt.Sprintf("%s: %v", what, err))
	}
	for _, shard := range []*Shard{n.meta, n.data} {
		if shard == nil {
			continue
		}
		s := shard.State()
		what := "shard " + s.Name
		switch {
		case s.Err != nil:
			say(what, s.Err)
			continue
		case !s.Leader:
			why = append(why, what+": no leader")
		case s.Stalled:
			say(what, fmt.Errorf("%w: %s for %s", ErrStalled, s.OldestName, s.OldestWrite.Round(100*time.Millisecond)))
		}
		switch {
		case s.NoRoom != nil:
			say(what, s.NoRoom)
		case s.Pressed != nil:
			say(what, s.Pressed)
		}
	}
	if n.store != nil && (n.data == nil || n.data.NoRoom() == nil) {
		if err := n.store.Err(); err != nil {
			say("store", err)
		}
	}
	if n.machine != nil {
		if err := n.machine.trouble(); err != nil {
			say("metadata", err)
		}
	}
	return why
}
