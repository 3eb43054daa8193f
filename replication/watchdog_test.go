package replication

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

func TestTheWatchdogJudgesWhatItSees(t *testing.T) {
	const s = time.Second
	op := func(id uint64, name string, age time.Duration) fsx.Pending {
		return fsx.Pending{ID: id, Op: fsx.OpSync, Name: name, Age: age}
	}
	w := &watchdog{stallAfter: 2 * s}
	now := time.Duration(0)
	look := func(x sight) judgement {
		x.now, x.poisonAfter, x.behindAfter = now, 4*s, 30*s
		x.aside = func(_ fsx.Op, name string) bool { return strings.HasPrefix(name, "history") }
		return w.look(x)
	}
	for _, c := range []struct {
		name      string
		sight     sight
		stalledBy string
		age       time.Duration
		gone      bool
		notes     int
	}{
		{name: "nothing"},
		{name: "a write", sight: sight{write: s}},
		{name: "a slow write", sight: sight{write: 2 * s}, stalledBy: "write of the log", age: 2 * s},
		{name: "a hung write", sight: sight{write: 4 * s}, stalledBy: "write of the log", age: 4 * s, gone: true},
		{name: "a sync behind the log", sight: sight{ops: []fsx.Pending{op(1, "a", 29*s)}}, stalledBy: "sync a", age: 29 * s},
		{name: "a hung one", sight: sight{ops: []fsx.Pending{op(1, "a", 30*s)}}, stalledBy: "sync a", age: 30 * s, gone: true},
		{name: "the oldest one names", sight: sight{write: 2 * s, ops: []fsx.Pending{op(1, "a", 3*s), op(2, "b", 2*s)}}, stalledBy: "sync a", age: 3 * s},
		{name: "young ones", sight: sight{ops: []fsx.Pending{op(1, "a", s)}}},
		{name: "one aside is noted", sight: sight{ops: []fsx.Pending{op(3, "history a", 100*s)}}, notes: 1},
		{name: "and that once", sight: sight{ops: []fsx.Pending{op(3, "history a", 101*s), op(4, "history b", 2*s)}}, notes: 1},
		{name: "and hides nothing", sight: sight{ops: []fsx.Pending{op(3, "history a", 102*s), op(5, "c", 2*s)}}, stalledBy: "sync c", age: 2 * s},
	} {
		j := look(c.sight)
		if j.stalledBy != c.stalledBy || j.age != c.age || len(j.note) != c.notes || (j.giveUp != nil) != c.gone || j.pressed != nil {
			t.Errorf("%s: %+v", c.name, j)
		}
		if c.gone && (!errors.Is(j.giveUp, ErrStalled) || !strings.Contains(j.giveUp.Error(), c.stalledBy)) {
			t.Errorf("%s: given up with %v", c.name, j.giveUp)
		}
	}
	for _, c := range []struct {
		at      time.Duration
		pressed string
		step    int64
		want    bool
	}{
		{10 * s, "backlog", 1, false},
		{11 * s, "backlog", 2, false}, // some of it is written
		{13*s - 1, "backlog", 2, false},
		{13 * s, "backlog", 2, true},
		{14 * s, "backlog", 3, false},
		{16 * s, "segments", 3, false}, // something else
		{18 * s, "segments", 3, true},
		{19 * s, "", 3, false},
		{40 * s, "", 3, false},
	} {
		now = c.at
		j := look(sight{pressed: c.pressed, step: c.step})
		if (j.pressed != nil) != c.want || c.want && (!errors.Is(j.pressed, ErrBusy) || !strings.Contains(j.pressed.Error(), c.pressed)) {
			t.Errorf("at %v: %v", c.at, j.pressed)
		}
	}
}

// A trap holds the operations that match until it is opened.
type trap struct {
	match  atomic.Pointer[func(op fsx.Op, name string) bool]
	held   chan string   // what is held
	opened chan struct{} // closed by open
}

func newTrap() *trap { return &trap{held: make(chan string, 100), opened: make(chan struct{})} }

func (x *trap) set(match func(op fsx.Op, name string) bool) { x.match.Store(&match) }

func (x *trap) open() {
	x.match.Store(nil)
	close(x.opened)
}

func (x *trap) before(op fsx.Op, name string) error {
	if m := x.match.Load(); m != nil && (*m)(op, name) {
		x.held <- op.String() + " " + name
		<-x.opened
	}
	return nil
}

// hungSteps are the disk operations that stand behind the log of a shard, each of which may hang.
func hungSteps() map[string]func(op fsx.Op, name string) bool {
	is := func(want fsx.Op, part string) func(fsx.Op, string) bool {
		return func(op fsx.Op, name string) bool { return op == want && strings.Contains(name, part) }
	}
	return map[string]func(op fsx.Op, name string) bool{
		"rename of a segment of the log":    is(fsx.OpRename, "data-0/wal"),
		"creation of a segment of the log":  is(fsx.OpCreate, "data-0/wal/prepare.tmp"),
		"zeros of a segment of the log":     is(fsx.OpWrite, "data-0/wal/prepare.tmp"),
		"space of a segment of the log":     is(fsx.OpPreallocate, "data-0/wal/prepare.tmp"),
		"sync of the log's directory":       is(fsx.OpSyncDir, "data-0/wal"),
		"sync of a mixed file":              is(fsx.OpSync, "data-0/store/mixed/"),
		"write of a mixed file":             is(fsx.OpWrite, "data-0/store/mixed/"),
		"sync of the rows":                  is(fsx.OpSync, "data-0/store/kv/"),
		"manifest of the store":             is(fsx.OpRename, "data-0/store/checkpoint"),
		"manifest of the shard":             is(fsx.OpSync, "data-0/checkpoint/"),
		"sync of the rows of the metadata":  is(fsx.OpSync, "meta/rows/"),
		"creation of a log of the metadata": is(fsx.OpCreate, "meta/wal/prepare.tmp"),
	}
}

// checkpointBoth waits for a second at most, for the disk may hang.
func checkpointBoth(ctx context.Context, n *Node) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = n.Data().Checkpoint(ctx)
	_ = n.MetaShard().Checkpoint(ctx)
}

// Whatever hangs behind the log is seen by its name and age, is over when it returns, and takes the shard down when it
// does not. The clock of the disk is the test's.
func TestADiskThatHangsBehindTheLogIsSeen(t *testing.T) {
	for name, match := range hungSteps() {
		for _, returns := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " returns", false: " hangs"}[returns], func(t *testing.T) {
				t.Parallel()
				x := newTrap()
				var clock atomic.Int64
				o := nodeOptions(fsx.Inject(fsx.NewMem(), x.before))
				o.monotonic = clock.Load
				for _, s := range []*ShardOptions{&o.Data, &o.Meta} {
					s.WALSegmentBytes, s.WALAheadSegments = 256<<10, -1
				}
				n := openNode(t, o)
				shard := n.Data()
				if strings.Contains(name, "metadata") {
					shard = n.MetaShard()
				}
				must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "t"}))
				id := partition(t, n, "t", 0)
				x.set(match)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan struct{})
				go func() { // work until something hangs, and beyond
					defer close(ended)
					for ctx.Err() == nil {
						produce(ctx, n, id, strings.Repeat("x", 20<<10))
						_ = n.Meta().CreateTopic(ctx, TopicSpec{Name: "t"})
						u := new(log.Unit)
						u.Command([]byte(strings.Repeat("?", 20<<10)))
						n.MetaShard().Do(ctx, u)
						checkpointBoth(ctx, n)
					}
				}()
				what := <-x.held
				if why := n.Ready(); len(why) > 0 {
					t.Errorf("not ready before the clock moves: %q", why)
				}
				clock.Add(int64(3 * time.Second))
				// What else was in flight when the clock moved is old too, and returns.
				eventually(t, "stalled by "+what, func() bool {
					s := shard.State()
					return s.Stalled && s.OldestName == what && s.OldestWrite >= 3*time.Second
				})
				if why := strings.Join(n.Ready(), "\n"); !strings.Contains(why, ErrStalled.Error()) || !strings.Contains(why, what) {
					t.Errorf("not ready for %q", why)
				}
				eventually(t, "the stall is logged", shard.stalled.Load)
				if returns {
					x.open()
					eventually(t, "ready again", func() bool { return len(n.Ready()) == 0 })
					eventually(t, "the end is logged", func() bool { return !shard.stalled.Load() })
					if r := produce(t.Context(), n, id, "more"); r.Err != nil {
						t.Error(r.Err)
					}
				} else {
					clock.Add(int64(26 * time.Second))
					if err := shard.Err(); err != nil {
						t.Errorf("given up after 29 s: %v", err)
					}
					clock.Add(int64(time.Second))
					<-shard.down
					if err := shard.Err(); !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), what) {
						t.Errorf("down with %v", err)
					}
				}
				cancel()
				if !returns {
					x.open() // or nothing could be closed
				}
				<-ended
				if err := n.Close(); returns && err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A reader of history, and a compaction, keep nobody else: what they wait for is not the shard's trouble.
func TestAReadThatHangsIsOnlyNoted(t *testing.T) {
	x := newTrap()
	var clock atomic.Int64
	o := nodeOptions(fsx.Inject(fsx.NewMem(), x.before))
	o.monotonic, o.CacheBytes = clock.Load, 1
	n := openNode(t, o)
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "t"}))
	id := partition(t, n, "t", 0)
	for range 4 {
		if r := produce(t.Context(), n, id, strings.Repeat("x", 50<<10)); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	must(t, n.Store().Flush(t.Context()))
	x.set(func(op fsx.Op, name string) bool { return op == fsx.OpRead && strings.Contains(name, "store/mixed") })
	read := make(chan []string, 1)
	go func() { read <- values(t, n, id) }()
	<-x.held
	clock.Add(int64(20 * time.Second))
	eventually(t, "what else was in flight has returned", func() bool {
		return len(n.Data().disk.Pending(0, nil)) == 1 && len(n.meta.disk.Pending(0, nil)) == 0
	})
	eventually(t, "nothing is stalled, the node is ready", func() bool { return !n.Data().State().Stalled && len(n.Ready()) == 0 })
	j := (&watchdog{stallAfter: time.Second}).look(n.Data().sight(0))
	if len(j.note) != 1 || j.stalledBy != "" || j.giveUp != nil {
		t.Errorf("judged %+v", j)
	}
	x.open()
	if got := <-read; len(got) != 4 {
		t.Errorf("read %d records", len(got))
	}
	must(t, n.Close())
}

// A backlog at its bound of which nothing is written, and a log that waits for a segment, are told by Ready.
func TestRecordsThatNobodyTakesAreAnObstacle(t *testing.T) {
	t.Run("backlog", func(t *testing.T) {
		var l *ledger
		o := ledgerShard(fsx.NewMem(), "s", &l)
		o.StallAfter = 20 * time.Millisecond
		s := openLed(t, o)
		n := &Node{data: s, meta: s}
		if why := n.Ready(); len(why) > 0 {
			t.Errorf("not ready for %q", why)
		}
		l.backlog.Store(math.MaxInt64)
		eventually(t, "the backlog is told", func() bool {
			return errors.Is(s.State().Pressed, ErrBusy) && strings.Contains(strings.Join(n.Ready(), "\n"), "waits for the disk")
		})
		l.backlog.Store(0)
		eventually(t, "it is over", func() bool { return s.State().Pressed == nil && len(n.Ready()) == 0 })
		must(t, s.Close())
	})
	t.Run("segments", func(t *testing.T) {
		x := newTrap()
		var clock atomic.Int64
		o := ledgerShard(fsx.Watch(fsx.Inject(fsx.NewMem(), x.before), clock.Load), "s", nil)
		o.StallAfter, o.WALAheadSegments = 20*time.Millisecond, -1
		s := openLed(t, o)
		n := &Node{data: s, meta: s}
		eventually(t, "segments are ready", func() bool { return s.State().WAL.Ready >= 2 })
		x.set(func(op fsx.Op, name string) bool { return op == fsx.OpCreate && strings.Contains(name, "wal") })
		eventually(t, "the want of segments is told", func() bool {
			for s.Propose(line("%s", strings.Repeat("f", 20<<10)), func(Result) {}) == nil { // until the log is full
			}
			return errors.Is(s.State().Pressed, ErrBusy) && strings.Contains(strings.Join(n.Ready(), "\n"), "waits for a segment")
		})
		if s.State().Stalled {
			t.Error("stalled, though the disk's clock stands still")
		}
		x.open()
		eventually(t, "it is over", func() bool { return s.State().Pressed == nil && len(n.Ready()) == 0 })
		if r := s.Do(t.Context(), line("b")); r.Err != nil {
			t.Error(r.Err)
		}
		must(t, s.Close())
	})
}
