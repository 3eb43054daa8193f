package replication

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication/raftlog"
)

// A watchedMachine tells when it applies.
type watchedMachine struct {
	StateMachine
	apply func()
}

func (m watchedMachine) Apply(uint64, uint64, []byte) []log.Result {
	m.apply()
	return make([]log.Result, 1)
}

// Which of the two that a group can wait for lets the next entry go: in a group of one that the entry before is applied,
// but before it is answered; in a larger group that the append of the entry before has returned.
func TestWhatLetsTheNextEntryGo(t *testing.T) {
	for _, solo := range []bool{true, false} {
		w, _, err := wal.Open(wal.Options{FS: fsx.NewMem(), Dir: "w", SegmentBytes: 256 << 10})
		must(t, err)
		s := &Shard{core: leadingCore(t, 64<<20), kick: make(chan struct{}, 1), log: raftlog.New(raftlog.Options{WAL: w})}
		s.o.CheckpointBytes = 1 << 40
		s.solo.Store(solo)
		kicked := func() bool {
			select {
			case <-s.kick:
				return true
			default:
				return false
			}
		}
		answered := false
		if !add(t, s.core, 10, func(Result) { answered = true }) {
			t.Fatal("an idle shard does not pack")
		}
		first := s.core.pack(at(1))
		s.core.launch(first)
		if add(t, s.core, 10, nil) || s.core.pack(at(2)) != nil {
			t.Fatal("packed while the append of the one before runs")
		}
		s.appended(1, 10)
		second := s.core.pack(at(3))
		if got := kicked(); got == solo || (second != nil) == solo {
			t.Errorf("solo %v: with the end of the append the packer is woken: %v, packs: %v", solo, got, second != nil)
		}
		if second != nil {
			s.core.launch(second)
			add(t, s.core, 10, nil)
		}
		s.machine = watchedMachine{apply: func() {
			second := s.core.pack(at(4))
			if got := kicked(); got != solo || (second != nil) != solo {
				t.Errorf("solo %v: when the entry is applied the packer is woken: %v, packs: %v", solo, got, second != nil)
			}
			if answered {
				t.Error("answered before it is applied")
			}
		}}
		(&fsm{s}).ApplyBatch([]*raft.Log{{Type: raft.LogCommand, Index: 2, Data: first.data}})
		if !answered {
			t.Errorf("solo %v: applied and not answered", solo)
		}
		must(t, w.Close())
	}
}

// A group that has grown packs like a larger one, and what was appended before does not hold up what comes.
func TestAGroupThatGrowsPacksLikeALargerOne(t *testing.T) {
	w, _, err := wal.Open(wal.Options{FS: fsx.NewMem(), Dir: "w", SegmentBytes: 256 << 10})
	must(t, err)
	s := &Shard{core: leadingCore(t, 64<<20), kick: make(chan struct{}, 1), log: raftlog.New(raftlog.Options{WAL: w})}
	s.o.ID, s.o.CheckpointBytes = "disk", 1<<40
	s.machine = watchedMachine{apply: func() {}}
	config := func(ids ...string) *raft.Log {
		var c raft.Configuration
		for _, id := range ids {
			c.Servers = append(c.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
		}
		return &raft.Log{Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(c)}
	}
	f := &fsm{s}
	if f.ApplyBatch([]*raft.Log{config("disk")}); !s.solo.Load() {
		t.Fatal("a group of one is not known as one")
	}
	add(t, s.core, 10, nil)
	first := s.core.pack(at(1))
	s.core.launch(first)
	add(t, s.core, 10, nil)
	s.appended(1, 10)
	if s.core.pack(at(2)) != nil {
		t.Fatal("a group of one packs when the append has returned")
	}
	f.ApplyBatch([]*raft.Log{config("disk", "b", "c")})
	second := s.core.pack(at(3))
	if s.solo.Load() || second == nil {
		t.Fatalf("solo %v, the next entry is %v", s.solo.Load(), second)
	}
	s.core.launch(second)
	add(t, s.core, 10, nil)
	f.ApplyBatch([]*raft.Log{{Type: raft.LogCommand, Data: first.data}, {Type: raft.LogCommand, Data: nil}})
	if s.core.pack(at(4)) != nil {
		t.Error("packed while the append of the one before runs")
	}
	if s.appended(1, 10); s.core.pack(at(5)) == nil {
		t.Error("a larger group does not pack when the append has returned")
	}
	if f.ApplyBatch([]*raft.Log{config("b")}); s.solo.Load() {
		t.Error("a group of another member alone is taken for ours")
	}
	must(t, w.Close())
}

// A gate holds syncs of a log back, once it is armed, until it lets them pass one by one.
type gate struct {
	mu    sync.Mutex
	armed bool
	came  chan struct{} // a sync waits
	pass  chan struct{} // and goes on
}

func newGate() *gate { return &gate{came: make(chan struct{}, 1024), pass: make(chan struct{})} }

func (g *gate) before(op fsx.Op, name string) error {
	g.mu.Lock()
	armed := g.armed && op == fsx.OpSync && strings.Contains(name, "wal")
	g.mu.Unlock()
	if armed {
		g.came <- struct{}{}
		<-g.pass
	}
	return nil
}

func (g *gate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = true
}

// open lets everything pass from now on.
func (g *gate) open() {
	g.mu.Lock()
	armed := g.armed
	g.armed = false
	g.mu.Unlock()
	if armed {
		close(g.pass)
	}
}

// within waits for what must come although the disk does nothing.
func within[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("never: %s", what)
	}
	return v
}

// settled waits until the log has made its segments ahead: from then on only appends sync.
func settled(t testing.TB, s *Shard) {
	t.Helper()
	eventually(t, "segments ahead", func() bool { return s.wal.Metrics().Ready >= 2 })
}

// In a group of one an answer never waits for the sync of the entry after it. Raft chooses at random between an entry to
// append and a commit to carry out, so it is asked some times.
func TestAnAnswerDoesNotWaitForTheSyncOfTheNextEntry(t *testing.T) {
	g := newGate()
	o := ledgerShard(fsx.Inject(fsx.NewMem(), g.before), "s", nil)
	o.WALReadySegments, o.WALAheadSegments, o.StallAfter, o.PoisonAfter = 2, -1, time.Hour, time.Hour
	s := openLed(t, o)
	defer func() { must(t, s.Close()) }()
	defer g.open()
	settled(t, s)
	g.arm()
	answers := make(chan Result, 1)
	must(t, s.Propose(line("0"), func(r Result) { answers <- r }))
	for i := range 30 {
		within(t, g.came, "the sync of the entry")
		next := make(chan Result, 1)
		must(t, s.Propose(line("%d", i+1), func(r Result) { next <- r })) // waits: the append before it runs
		g.pass <- struct{}{}
		if r := within(t, answers, "the answer, while the sync of the next entry waits"); r.Outcome != Yes {
			t.Fatalf("line %d: %+v", i, r)
		}
		answers = next
	}
	g.open()
	if r := within(t, answers, "the last answer"); r.Outcome != Yes {
		t.Errorf("the last line: %+v", r)
	}
}

// In a group of three the next entry is packed and synced by the leader while the one before waits for the followers,
// whose disks do nothing. A machine that others use may stand still for longer than the leader's lease, so one of three
// groups has to show it; if the entry waited for the one before none could.
func TestALargerGroupPacksWhenTheAppendHasReturned(t *testing.T) {
	for i := range 3 {
		if packsAhead(t) {
			return
		}
		t.Logf("group %d: the leader has lost its place", i)
	}
	t.Error("no entry is packed before the one before it is applied")
}

func packsAhead(t *testing.T) bool {
	gates := []*gate{newGate(), newGate(), newGate()}
	ms := groupOn(t, func(i int, o *ShardOptions) {
		o.FS = fsx.Inject(o.FS, gates[i].before)
		o.WALReadySegments, o.WALAheadSegments, o.StallAfter, o.PoisonAfter = 2, -1, time.Hour, time.Hour
	})
	defer func() {
		for _, g := range gates {
			g.open()
		}
	}()
	for _, m := range ms {
		settled(t, m.shard)
	}
	s := ms[0].shard
	eventually(t, "a group of three", func() bool { return !s.solo.Load() })
	term, _ := s.Leader()
	for _, g := range gates {
		g.arm()
	}
	answers := make(chan Result, 2)
	for i := range 2 { // the second waits while the append of the first runs
		if err := s.Propose(line("%d", i), func(r Result) { answers <- r }); err != nil {
			return false
		}
		if i == 0 {
			within(t, gates[0].came, "the leader's sync of the first entry")
		}
	}
	gates[0].pass <- struct{}{}
	select {
	case <-gates[0].came: // the second entry, although the first has no majority
	case <-answers: // unknown: not the leader any more
		return false
	case <-time.After(time.Minute):
		return false
	}
	select {
	case r := <-answers:
		t.Errorf("answered without a majority: %+v", r)
	default:
	}
	now, ok := s.Leader()
	return ok && now == term
}
