package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/internal/leak"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(m.Run()) // what it leaves behind ends with it
	}
	leak.Main(m)
}

// childEnv is set in a test process that a test has started for what cannot be undone.
const childEnv = "HEADRACE_TEST_CHILD"

func openLed(t testing.TB, o ShardOptions) *Shard {
	t.Helper()
	s, err := OpenShard(o)
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.WaitLeader(ctx); err != nil {
		t.Fatal(err, s.Close())
	}
	return s
}

// eventually waits for what another goroutine is about to do.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// A single voter need not wait for a leader that cannot exist: a heartbeat timeout alone is at least 300 ms. The
// best of a few starts counts, for the machine may be busy.
func TestASingleVoterLeadsAtOnce(t *testing.T) {
	fs := fsx.NewMem()
	best := time.Hour
	for range 5 {
		begun := time.Now()
		s := openLed(t, ledgerShard(fs, "s", nil))
		best = min(best, time.Since(begun))
		st := s.State()
		if !st.Leader || st.Voters != 1 || st.Term == 0 || st.Err != nil {
			t.Errorf("state %+v", st)
		}
		must(t, s.Close())
	}
	if best > 200*time.Millisecond {
		t.Errorf("leader after %v", best)
	}
}

func TestUnitsAreJudgedAlone(t *testing.T) {
	var l *ledger
	s := openLed(t, ledgerShard(fsx.NewMem(), "s", &l))
	defer s.Close() //nolint:errcheck // checked elsewhere
	var wg sync.WaitGroup
	var got [100]Result
	for i := range got {
		u := line("a%d", i)
		if i%3 == 0 {
			u = line("no%d", i)
		}
		wg.Add(1)
		must(t, s.Propose(u, func(r Result) { got[i] = r; wg.Done() }))
	}
	wg.Wait()
	last := uint64(0)
	for i, r := range got {
		want := Yes
		if i%3 == 0 {
			want = No
		}
		if r.Outcome != want || (want == No) != errors.Is(r.Err, errRefused) || r.Index < last || r.AppendTime == 0 {
			t.Errorf("unit %d: %+v", i, r)
		}
		last = r.Index
	}
	if n := len(l.all()); n != 66 {
		t.Errorf("%d lines", n)
	}
}

// Restart after restart, with checkpoints in between: everything is there once, the log lets go of what a
// checkpoint holds, and its segments are used again.
func TestCheckpointsReleaseTheLogAcrossRestarts(t *testing.T) {
	fs := fsx.NewMem()
	var l *ledger
	want := 0
	text := strings.Repeat("x", 2000)
	for run := range 6 {
		s := openLed(t, ledgerShard(fs, "s", &l))
		for range 400 {
			if r := s.Do(t.Context(), line("%d %s", want, text)); r.Err != nil {
				t.Fatal(r.Err)
			}
			want++
			if want%250 == 0 {
				must(t, s.Checkpoint(t.Context()))
			}
		}
		st := s.State()
		if first := s.wal.FirstIndex(); st.LastIndex-first > 400 {
			t.Errorf("run %d: entries %d to %d are kept, checkpoint at %d", run, first, st.LastIndex, st.CheckpointIndex)
		}
		if st.WAL.Segments > 8 {
			t.Errorf("run %d: %d segments", run, st.WAL.Segments)
		}
		must(t, s.Close())
		got := l.all()
		if len(got) != want {
			t.Fatalf("run %d: %d lines, want %d", run, len(got), want)
		}
		for i, g := range got {
			if !strings.HasPrefix(g, fmt.Sprintf("%d ", i)) {
				t.Fatalf("run %d: line %d is %.20s", run, i, g)
			}
		}
	}
}

// A close without failure leaves a checkpoint, so the next start replays nothing.
func TestACleanStartReplaysNothing(t *testing.T) {
	fs := fsx.NewMem()
	s := openLed(t, ledgerShard(fs, "s", nil))
	for i := range 50 {
		s.Do(t.Context(), line("%d", i))
	}
	must(t, s.Close())
	if err := s.Propose(line("x"), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("propose to a closed shard: %v", err)
	}
	var l *ledger
	applied := 0
	o := ledgerShard(fs, "s", &l)
	open := o.Machine
	o.Machine = func(w *wal.WAL) (StateMachine, error) {
		m, err := open(w)
		l.onApply = func(uint64) { applied++ }
		return m, err
	}
	s = openLed(t, o)
	if applied != 1 { // the empty entry of the new leader
		t.Errorf("%d entries applied at start", applied)
	}
	must(t, s.Close())
}

// Kill the machine at any moment: what was acknowledged is there, in order, once; what was refused is not.
func TestAcknowledgedUnitsSurviveEveryCrash(t *testing.T) {
	const states = 220
	taken := 0
	for seed := uint64(0); taken < states; seed++ {
		rng := rand.New(rand.NewPCG(seed, 11))
		fs := fsx.NewMem()
		s := openLed(t, ledgerShard(fs, "s", nil))
		var mu sync.Mutex
		var acked []string
		proposed := map[string]bool{}
		var clones []*fsx.Mem
		var ackedAt []int
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for p := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					name := fmt.Sprintf("%d/%d %s", p, i, strings.Repeat("y", i%900))
					if i%10 == 9 {
						s.Do(context.Background(), line("no%s", name))
						continue
					}
					mu.Lock()
					proposed[name] = true
					mu.Unlock()
					if r := s.Do(context.Background(), line("%s", name)); r.Outcome == Yes {
						mu.Lock()
						acked = append(acked, name)
						mu.Unlock()
					}
				}
			})
		}
		for range 20 {
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Microsecond)
			if rng.IntN(4) == 0 {
				go s.Checkpoint(context.Background()) //nolint:errcheck // it may meet the close
			}
			mu.Lock()
			n := len(acked)
			mu.Unlock()
			ackedAt = append(ackedAt, n)
			clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 30, 100}[rng.IntN(3)], RNG: rng}))
		}
		close(stop)
		wg.Wait()
		must(t, s.Close())
		for i, clone := range clones {
			taken++
			var l *ledger
			r := openLed(t, ledgerShard(clone, "s", &l))
			checkLines(t, fmt.Sprintf("seed %d clone %d", seed, i), l.all(), acked[:ackedAt[i]], proposed)
			if res := r.Do(t.Context(), line("after")); res.Err != nil {
				t.Fatalf("seed %d clone %d: %v", seed, i, res.Err)
			}
			must(t, r.Close())
		}
	}
}

func checkLines(t *testing.T, what string, got, acked []string, proposed map[string]bool) {
	t.Helper()
	at := map[string]int{}
	next := map[byte]int{}
	for i, g := range got {
		if !proposed[g] {
			t.Fatalf("%s: line %d %.20q was never proposed", what, i, g)
		}
		if _, twice := at[g]; twice {
			t.Fatalf("%s: line %.20q is there twice", what, g)
		}
		at[g] = i
		// One proposer waits for each answer, so its lines are in order and without a hole.
		var p, n int
		if _, err := fmt.Sscanf(g, "%d/%d", &p, &n); err != nil {
			t.Fatal(err)
		}
		want := next[byte(p)]
		if want%10 == 9 {
			want++
		}
		if n != want {
			t.Fatalf("%s: proposer %d has line %d where %d comes next", what, p, n, want)
		}
		next[byte(p)] = n + 1
	}
	for _, a := range acked {
		if _, ok := at[a]; !ok {
			t.Fatalf("%s: acknowledged line %.20q is lost (%d of %d lines)", what, a, len(got), len(acked))
		}
	}
}

// A failed sync is final: what flies is unknown, what comes later a definite no, and the process lives, although
// the disk works again.
func TestAFailedSyncTakesTheShardDownAndNothingElse(t *testing.T) {
	mem := fsx.NewMem()
	var broken atomic.Bool
	fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
		if broken.Load() && (op == fsx.OpSync || op == fsx.OpWrite) && strings.Contains(name, "wal") {
			return errors.New("input/output error")
		}
		return nil
	})
	failed := make(chan error, 1)
	o := ledgerShard(fs, "s", nil)
	o.Failed = func(err error) { failed <- err }
	s := openLed(t, o)
	var acked []string
	for i := range 20 {
		name := fmt.Sprintf("0/%d", i)
		if i%10 == 9 {
			continue
		}
		if r := s.Do(t.Context(), line("%s", name)); r.Err != nil {
			t.Fatal(r.Err)
		}
		acked = append(acked, name)
	}
	broken.Store(true)
	if r := s.Do(t.Context(), line("0/20")); r.Outcome != Unknown || !errors.Is(r.Err, ErrUnknown) {
		t.Errorf("in flight: %+v", r)
	}
	broken.Store(false)
	if err := <-failed; !errors.Is(err, ErrFailed) {
		t.Errorf("told %v", err)
	}
	if r := s.Do(t.Context(), line("x")); r.Outcome != No || !errors.Is(r.Err, ErrFailed) {
		t.Errorf("later: %+v", r)
	}
	if err := s.WaitLeader(t.Context()); !errors.Is(err, ErrFailed) {
		t.Errorf("wait for leadership: %v", err)
	}
	if err := s.Checkpoint(t.Context()); !errors.Is(err, ErrFailed) {
		t.Errorf("checkpoint: %v", err)
	}
	if _, ok := s.Leader(); ok || s.State().Err == nil {
		t.Errorf("state %+v", s.State())
	}
	_ = s.Close()
	var l *ledger
	r := openLed(t, ledgerShard(mem, "s", &l))
	got := l.all()
	if len(got) < len(acked) || !slices.Equal(got[:len(acked)], acked) || len(got) > len(acked)+1 {
		t.Errorf("after the restart: %v", got)
	}
	must(t, r.Close())
}

// A write that hangs is marked, then given up; waiters are answered although the writer still hangs.
func TestAHungDiskIsMarkedAndGivenUp(t *testing.T) {
	var hang atomic.Bool
	release := make(chan struct{})
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		if hang.Load() && (op == fsx.OpWrite || op == fsx.OpSync) && strings.Contains(name, "wal") {
			<-release
		}
		return nil
	})
	o := ledgerShard(fs, "s", nil)
	o.StallAfter, o.PoisonAfter, o.CloseTimeout = 20*time.Millisecond, 400*time.Millisecond, 100*time.Millisecond
	s := openLed(t, o)
	hang.Store(true)
	flying := make(chan Result, 1)
	must(t, s.Propose(line("a"), func(r Result) { flying <- r }))
	eventually(t, "stalled", func() bool { return s.State().Stalled })
	select {
	case r := <-flying:
		t.Errorf("answered while only stalled: %+v", r)
	default:
	}
	waiting := make(chan Result, 1)
	must(t, s.Propose(line("b"), func(r Result) { waiting <- r }))
	if r := <-flying; r.Outcome != Unknown {
		t.Errorf("flying: %+v", r)
	}
	if r := <-waiting; r.Outcome != No || !errors.Is(r.Err, ErrFailed) {
		t.Errorf("waiting: %+v", r)
	}
	if err := s.Err(); !errors.Is(err, ErrStalled) {
		t.Errorf("failed with %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrStalled) {
		t.Errorf("close while the disk hangs: %v", err)
	}
	close(release)
	ended := make(chan error, 1)
	go func() { ended <- s.shutdown().Error() }() // raft calls itself a follower once more on its way out
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("raft's goroutines do not end")
	}
}

// A stall that ends in time is only a mark.
func TestAStallThatEndsIsForgotten(t *testing.T) {
	var hang atomic.Bool
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		if op == fsx.OpSync && strings.Contains(name, "wal") && hang.Load() {
			time.Sleep(60 * time.Millisecond)
			hang.Store(false)
		}
		return nil
	})
	o := ledgerShard(fs, "s", nil)
	o.StallAfter = 10 * time.Millisecond
	s := openLed(t, o)
	hang.Store(true)
	must(t, s.Propose(line("a"), func(Result) {}))
	eventually(t, "stalled", func() bool { return s.State().Stalled })
	eventually(t, "no longer stalled", func() bool { return !s.State().Stalled })
	if r := s.Do(t.Context(), line("b")); r.Err != nil {
		t.Error(r.Err)
	}
	must(t, s.Close())
}

// Raft panics when a committed entry cannot be read. The shard goes down instead, with the process alive.
func TestAnUnreadableCommittedEntryTakesOnlyTheShardDown(t *testing.T) {
	mem := fsx.NewMem()
	s := openLed(t, ledgerShard(mem, "s", nil))
	for i := range 1500 { // more than raft hands to the apply goroutine ahead of it
		s.Do(t.Context(), line("%d", i))
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	must(t, s.Close())
	var broken atomic.Bool
	fs := fsx.Inject(clone, func(op fsx.Op, name string) error {
		if op == fsx.OpRead && broken.Load() && strings.Contains(name, "wal") {
			return errors.New("input/output error")
		}
		return nil
	})
	var l *ledger
	o := ledgerShard(fs, "s", &l)
	o.WALCacheBytes = -1
	open := o.Machine
	o.Machine = func(w *wal.WAL) (StateMachine, error) {
		m, err := open(w)
		l.onApply = func(uint64) { broken.Store(true) }
		return m, err
	}
	s, err := OpenShard(o)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.WaitLeader(ctx); !errors.Is(err, ErrFailed) {
		t.Errorf("leads: %v", err)
	}
	_ = s.Close()
}

// A full disk refuses units while there is still room for votes, so that leadership stays and no outcome is unknown;
// it is over when there is room again, without a restart.
func TestAFullDiskRecoversWithoutARestart(t *testing.T) {
	var full atomic.Bool
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		if full.Load() && (op == fsx.OpCreate || op == fsx.OpPreallocate || op == fsx.OpTruncate) && strings.Contains(name, "wal") {
			return syscall.ENOSPC
		}
		return nil
	})
	var l *ledger
	s := openLed(t, ledgerShard(fs, "s", &l))
	term, _ := s.Leader()
	eventually(t, "segments are ready", func() bool { return s.State().WAL.Ready >= 2 })
	full.Store(true)
	text := strings.Repeat("f", 20<<10)
	do := func(u *log.Unit) Result {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return s.Do(ctx, u)
	}
	yes := 0
	for ; yes < 200; yes++ {
		r := do(line("%d %s", yes, text))
		if r.Outcome == Yes {
			continue
		}
		if r.Outcome != No || !errors.Is(r.Err, ErrNoRoom) || !errors.Is(r.Err, ErrBusy) || !errors.Is(r.Err, syscall.ENOSPC) {
			t.Fatalf("refused after %d: %+v", yes, r)
		}
		break
	}
	if yes < 20 || yes == 200 || s.Err() != nil {
		t.Fatalf("refused after %d, shard %v", yes, s.Err())
	}
	if at, ok := s.Leader(); !ok || at != term || s.State().NoRoom == nil {
		t.Errorf("leads %v in term %d, before %d; state %v", ok, at, term, s.State().NoRoom)
	}
	full.Store(false)
	eventually(t, "units are taken again", func() bool { return do(line("again %s", text)).Outcome == Yes })
	eventually(t, "there is room", func() bool { return s.State().NoRoom == nil })
	if n := len(l.all()); n != yes+1 {
		t.Errorf("%d lines, %d acknowledged", n, yes+1)
	}
	must(t, s.Close())
}

func TestBackPressureComesFromBytesAndFromTheMachine(t *testing.T) {
	var l *ledger
	o := ledgerShard(fsx.NewMem(), "s", &l)
	o.MaxInflightBytes, o.MaxBacklogBytes = 64<<10, 1000
	s := openLed(t, o)
	l.backlog.Store(2000)
	if err := s.Propose(line("x"), nil); !errors.Is(err, ErrBusy) {
		t.Errorf("backlog: %v", err)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		l.backlog.Store(0)
	}()
	if r := s.Do(t.Context(), line("waits")); r.Outcome != Yes {
		t.Errorf("waiting for the backlog: %+v", r)
	}
	l.mu.Lock() // Apply stands still
	busy := 0
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Add(1)
		err := s.Propose(line("%d %s", i, strings.Repeat("b", 10<<10)), func(Result) { wg.Done() })
		if errors.Is(err, ErrBusy) {
			busy++
			wg.Done()
		}
	}
	if busy != 14 {
		t.Errorf("%d of 20 units of 10 KiB refused at 64 KiB in flight", busy)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if r := s.Do(ctx, line("late %s", strings.Repeat("b", 10<<10))); r.Outcome != No || !errors.Is(r.Err, ErrBusy) {
		t.Errorf("no room until the deadline: %+v", r)
	}
	l.mu.Unlock()
	wg.Wait()
	must(t, s.Close())
}

// The caller that stops waiting does not know, and the unit may happen.
func TestADeadlineMakesTheOutcomeUnknown(t *testing.T) {
	var l *ledger
	s := openLed(t, ledgerShard(fsx.NewMem(), "s", &l))
	l.mu.Lock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r := s.Do(ctx, line("a"))
	l.mu.Unlock()
	if r.Outcome != Unknown || !errors.Is(r.Err, ErrUnknown) || !errors.Is(r.Err, context.DeadlineExceeded) {
		t.Errorf("%+v", r)
	}
	eventually(t, "it happens", func() bool { return len(l.all()) == 1 })
	must(t, s.Close())
}

// A log without its store's entries, a store without its log and a checkpoint without its store are refused.
func TestMismatchedPartsDoNotStart(t *testing.T) {
	build := func() *fsx.Mem {
		fs := fsx.NewMem()
		o := ledgerShard(fs, "s", nil)
		o.TrailingBytes = 1 << 20 // all of it
		s := openLed(t, o)
		for i := range 10 {
			s.Do(t.Context(), line("%d", i))
		}
		must(t, s.Checkpoint(t.Context()))
		for i := range 10 {
			s.Do(t.Context(), line("%d", i))
		}
		must(t, s.Close())
		return fs
	}
	for name, c := range map[string]struct {
		remove []string
		want   error
	}{
		"log lost":                {[]string{"s/wal", "s/checkpoint"}, log.ErrAheadOfLog},
		"store lost":              {[]string{"s/machine"}, ErrStoreBehind},
		"everything lost":         {[]string{"s"}, ErrEmptyShard},
		"checkpoint missing":      {[]string{"s/checkpoint"}, nil},
		"log and machine missing": {[]string{"s/wal", "s/machine"}, wal.ErrCorrupt},
	} {
		fs := build()
		for _, r := range c.remove {
			must(t, fs.RemoveAll(r))
		}
		o := ledgerShard(fs, "s", nil)
		o.Bootstrap = false
		s, err := OpenShard(o)
		if c.want == nil {
			must(t, err)
			must(t, s.Close())
			continue
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestABootstrapThatCrashedIsRepeated(t *testing.T) {
	for n := 0; ; n++ {
		mem := fsx.NewMem()
		count, crashed := 0, false
		var mu sync.Mutex
		fs := fsx.Inject(mem, func(fsx.Op, string) error {
			mu.Lock()
			defer mu.Unlock()
			if count++; count > n {
				crashed = true
				return errors.New("crash")
			}
			return nil
		})
		s, err := OpenShard(ledgerShard(fs, "s", nil))
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err = s.WaitLeader(ctx)
			cancel()
			_ = s.Close()
		}
		mu.Lock()
		over := !crashed || err == nil
		mu.Unlock()
		clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: (n % 3) * 50, RNG: rand.New(rand.NewPCG(uint64(n), 5))})
		r := openLed(t, ledgerShard(clone, "s", nil))
		if res := r.Do(t.Context(), line("x")); res.Err != nil {
			t.Fatalf("crash at operation %d: %v", n, res.Err)
		}
		must(t, r.Close())
		if over {
			return
		}
	}
}

// Checkpoints come by bytes and by time, and not when nothing changed.
func TestCheckpointsComeByBytesAndByTime(t *testing.T) {
	o := ledgerShard(fsx.NewMem(), "s", nil)
	o.CheckpointBytes = 100 << 10
	s := openLed(t, o)
	for i := range 30 {
		s.Do(t.Context(), line("%d %s", i, strings.Repeat("c", 10<<10)))
	}
	eventually(t, "a checkpoint by bytes", func() bool { return s.State().CheckpointIndex > 10 })
	must(t, s.Close())

	o = ledgerShard(fsx.NewMem(), "s", nil)
	o.CheckpointEvery = 5 * time.Millisecond
	s = openLed(t, o)
	s.Do(t.Context(), line("a"))
	eventually(t, "a checkpoint by time", func() bool {
		at, _ := s.Applied()
		return s.State().CheckpointIndex == at
	})
	m, _ := s.snaps.Newest()
	time.Sleep(30 * time.Millisecond)
	if again, _ := s.snaps.Newest(); again.Index != m.Index {
		t.Errorf("a checkpoint at %d although nothing changed since %d", again.Index, m.Index)
	}
	must(t, s.Close())
}

// raft panics unless there is one answer per command and configuration.
func TestApplyBatchAnswersConfigurationsToo(t *testing.T) {
	s := openLed(t, ledgerShard(fsx.NewMem(), "s", nil))
	defer s.Close() //nolint:errcheck // checked elsewhere
	f := &fsm{s}
	alone := raft.EncodeConfiguration(s.raft.GetConfiguration().Configuration())
	got := f.ApplyBatch([]*raft.Log{{Type: raft.LogConfiguration, Index: 1, Data: alone}, {Type: raft.LogCommand, Index: 1, Data: log.EncodeEntry(nil, 1, nil)}})
	if len(got) != 2 {
		t.Errorf("%d answers", len(got))
	}
	if err := f.Restore(nopReader{}); !errors.Is(err, errRestore) {
		t.Errorf("restore: %v", err)
	}
}

type nopReader struct{}

func (nopReader) Read([]byte) (int, error) { return 0, errors.New("nothing") }
func (nopReader) Close() error             { return nil }
