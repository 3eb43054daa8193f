package log

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/headrace/headrace/internal/crash"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/wal"
)

// noContext is for calls that wait for nobody.
var noContext = context.Background()

// promised is a mark in a recording: entries up to acked were synced, those up to begun may be there.
type promised struct{ acked, begun uint64 }

// world is a log and a store on one disk.
type world struct {
	w *wal.WAL
	s *Store
}

func openWorld(fs fsx.FS, seed uint64) (*world, error) {
	w, _, err := wal.Open(wal.Options{FS: fs, Dir: "wal", SegmentBytes: 64 << 10, ReadySegments: 1, Inline: true, CacheBytes: 4 << 10, LogID: seed + 1})
	if err != nil {
		return nil, fmt.Errorf("wal: %w", err)
	}
	s, err := Open(testOptions(Options{FS: fs, Log: FromWAL(w), CacheBytes: 3 << 10}))
	if err != nil {
		_ = w.Close()
		return nil, err
	}
	return &world{w, s}, nil
}

func (x *world) close() error { return errors.Join(x.s.Close(), x.w.Close()) }

// catchUp applies what the log holds after the store's index and holds the results against the model's.
func (x *world) catchUp(results [][]modelResult) error {
	for a, _ := x.s.Applied(); a < x.w.LastIndex(); {
		a++
		e, err := x.w.Read(a)
		if err != nil {
			return fmt.Errorf("entry %d: %w", a, err)
		}
		if err := compareResults(x.s.Apply(a, e.Term, e.Data), results[a]); err != nil {
			return fmt.Errorf("entry %d applied again: %w", a, err)
		}
	}
	return nil
}

// history is one run: its entries and the results. Models are made of them anew.
type history struct {
	seed    uint64
	entries [][]byte // by index, [0] empty
	results [][]modelResult

	mu     sync.Mutex
	models map[uint64]*model
}

const crashTerm = 3

func (h *history) modelAt(index uint64) *model {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.models[index]; m != nil {
		return m
	}
	m := newModel()
	for i := uint64(1); i <= index; i++ {
		e, _ := DecodeEntry(h.entries[i])
		m.apply(i, crashTerm, e)
	}
	h.models[index] = m
	return m
}

// play runs a random history on a recorded disk: several producers, partitions that are thin and thick, rolls,
// retention, drops, group offsets, tasks, rounds, checkpoints, and a log that is cut behind them.
func play(t *testing.T, seed uint64, entries int) (*history, *fsx.Recording) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	disk := fsx.Record(fsx.NewMem())
	disk.Mark(promised{})
	x, err := openWorld(disk, seed)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel()
	g := newGenerator(r, m)
	h := &history{seed: seed, entries: [][]byte{nil}, results: [][]modelResult{nil}, models: map[uint64]*model{}}
	for index := uint64(1); index <= uint64(entries); index++ {
		data := g.entry()
		if r.IntN(25) == 0 {
			data = retentionEntry(t, x.s, g)
		}
		e, err := DecodeEntry(data)
		if err != nil {
			t.Fatal(err)
		}
		want := m.apply(index, crashTerm, e)
		h.entries, h.results = append(h.entries, data), append(h.results, want)
		disk.Mark(promised{index - 1, index})
		if err := x.w.Append([]wal.Entry{{Index: index, Term: crashTerm, Data: data}}); err != nil {
			t.Fatal(err)
		}
		disk.Mark(promised{index, index})
		if err := compareResults(x.s.Apply(index, crashTerm, data), want); err != nil {
			t.Fatalf("seed %d entry %d: %v", seed, index, err)
		}
		if r.IntN(6) == 0 {
			if _, err := x.s.Step(); err != nil {
				t.Fatalf("seed %d entry %d: step: %v", seed, index, err)
			}
			// As Pebble does by itself when its memory is full: the rows are durable and the files are not.
			if r.IntN(3) == 0 {
				if err := x.s.flushDB(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r.IntN(25) == 0 {
			info, err := x.s.Checkpoint(t.Context())
			if err != nil {
				t.Fatalf("seed %d entry %d: checkpoint: %v", seed, index, err)
			}
			if keep := r.Uint64N(4); info.Index > keep {
				if err := x.w.TruncateFront(info.Index + 1 - keep); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r.IntN(40) == 0 {
			if err := m.compare(x.s); err != nil {
				t.Fatalf("seed %d after entry %d: %v", seed, index, err)
			}
		}
	}
	if err := errors.Join(m.compare(x.s), checkPlacement(x.s)); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if err := x.close(); err != nil {
		t.Fatal(err)
	}
	return h, disk.Recording()
}

// retentionEntry proposes what retention allows.
func retentionEntry(t *testing.T, s *Store, g *generator) []byte {
	t.Helper()
	starts, err := s.RetentionCandidates(g.time / 1e6)
	if err != nil {
		t.Fatal(err)
	}
	u := new(Unit)
	for _, c := range starts {
		if g.r.IntN(3) == 0 { // some must grow thick
			u.LogStart(c.Partition, c.Offset)
		}
	}
	return EncodeEntry(nil, g.time, []*Unit{u})
}

// recover opens what a crash has left and checks everything that was promised. It saw the index of the last entry: all
// else is a function of it, and was held against the model.
func (h *history) recover(fs fsx.FS, mark any) (saw string, err error) {
	x, err := openWorld(fs, h.seed)
	if err != nil {
		return "", err
	}
	last := x.w.LastIndex()
	saw = fmt.Sprint(last)
	if err = h.check(x, mark.(promised)); err == nil && last%3 == 0 {
		_, err = x.s.Checkpoint(noContext)
	}
	if last%2 == 0 {
		x.w.Poison(errors.New("crashed")) // no mark of an ordered close
	}
	return saw, errors.Join(err, x.close())
}

func (h *history) check(x *world, p promised) error {
	last := x.w.LastIndex()
	a, _ := x.s.Applied()
	if last < p.acked || last > p.begun || a > last {
		return fmt.Errorf("log ends at %d, store at %d; acknowledged %d, begun %d", last, a, p.acked, p.begun)
	}
	if err := x.catchUp(h.results); err != nil {
		return err
	}
	if err := checkPlacement(x.s); err != nil {
		return fmt.Errorf("recovered at %d, log to %d: placement: %w", a, last, err)
	}
	if last%4 > 0 {
		x.s.trimCache() // what is read comes from files
	}
	if err := h.modelAt(last).compare(x.s); err != nil {
		return fmt.Errorf("recovered at %d, log to %d: %w", a, last, err)
	}
	return nil
}

func TestCrashLosesNothingAcknowledged(t *testing.T) {
	x := &crash.Explorer{
		Images: fsx.ImageOptions{Random: 3, Every: 6, PerPlace: 5, Tears: 3},
		Inside: fsx.ImageOptions{Random: 1, Every: 12, PerPlace: 2, Tears: 1},
		Deep:   8, Limit: 350,
	}
	perSeed := 90
	switch {
	case crash.Long():
		x.Limit, perSeed = 22_000, 1500
		x.Images = fsx.ImageOptions{Random: 32, Every: 2, PerPlace: 10, Tears: 8}
	case testing.Short():
		x.Limit = 150
	case raceEnabled: // a state costs twelve of the log alone
		x.Limit = 250
	}
	goal := x.Limit
	seed, one := crash.Seed()
	for ; x.Count().States < goal; seed++ {
		h, rec := play(t, seed, 120)
		x.Recover = h.recover
		x.Images.Seed, x.Inside.Seed = seed, seed
		if x.Limit = min(goal, x.Count().States+perSeed); one {
			x.Limit = 0
		}
		// Not all from the beginning of the run.
		x.Images.Every = max(1, rec.Len()*x.Images.PerPlace/2/perSeed)
		if err := x.Explore(rec); err != nil {
			t.Fatalf("%v\nreplay with HEADRACE_SEED=%d", err, seed)
		}
		if one {
			break
		}
	}
	n := x.Count()
	t.Logf("%d states, %d of them left by a crash inside a recovery", n.States, n.Deep)
	if !one && (n.Deep == 0 || n.States < goal) {
		t.Errorf("%+v of %d: the test has lost its teeth", n, goal)
	}
}
