package log

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/wal"
)

// image is what a crash has left, and what had been acknowledged by then.
type image struct {
	fs     *fsx.Mem
	acked  uint64 // entries up to here were synced before the crash
	begun  uint64 // entries up to here may be there
	config string
}

// crasher takes images of a memory disk at random file operations.
type crasher struct {
	mem          *fsx.Mem
	acked, begun atomic.Uint64

	mu     sync.Mutex
	r      *rand.Rand
	every  int // one in so many operations
	limit  int
	images []image
}

func newCrasher(mem *fsx.Mem, seed uint64, every, limit int) (*crasher, fsx.FS) {
	c := &crasher{mem: mem, r: rand.New(rand.NewPCG(seed, 99)), every: every, limit: limit}
	return c, fsx.Inject(mem, c.before)
}

func (c *crasher) before(op fsx.Op, _ string) error {
	switch op {
	case fsx.OpRead, fsx.OpStat, fsx.OpList, fsx.OpOpen, fsx.OpLock:
		return nil // nothing changes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.images) >= c.limit || c.r.IntN(c.every) != 0 {
		return nil
	}
	pct := []int{0, 50, 100}[c.r.IntN(3)]
	im := image{config: fmt.Sprintf("before %s, %d%% unsynced", op, pct)}
	// What is acknowledged is read first and what has begun last: in between both may grow.
	im.acked = c.acked.Load()
	im.fs = c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: pct, RNG: rand.New(rand.NewPCG(c.r.Uint64(), 0))})
	im.begun = c.begun.Load()
	c.images = append(c.images, im)
	return nil
}

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

// history is one run: its entries, the results and, at some of them, copies of nothing: models are made anew.
type history struct {
	entries [][]byte // by index, [0] empty
	results [][]modelResult
}

const crashTerm = 3

func (h *history) modelAt(index uint64) *model {
	m := newModel()
	for i := uint64(1); i <= index; i++ {
		e, _ := DecodeEntry(h.entries[i])
		m.apply(i, crashTerm, e)
	}
	return m
}

// play runs a random history on a crashing disk.
func play(t *testing.T, seed uint64, entries int, every, limit int) (*history, []image) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	mem := fsx.NewMem()
	c, fs := newCrasher(mem, seed, every, limit)
	x, err := openWorld(fs, seed)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel()
	g := newGenerator(r, m)
	h := &history{entries: [][]byte{nil}, results: [][]modelResult{nil}}
	for index := uint64(1); index <= uint64(entries); index++ {
		data := g.entry()
		e, err := DecodeEntry(data)
		if err != nil {
			t.Fatal(err)
		}
		want := m.apply(index, crashTerm, e)
		c.mu.Lock()
		h.entries, h.results = append(h.entries, data), append(h.results, want)
		c.mu.Unlock()
		c.begun.Store(index)
		if err := x.w.Append([]wal.Entry{{Index: index, Term: crashTerm, Data: data}}); err != nil {
			t.Fatal(err)
		}
		c.acked.Store(index)
		if err := compareResults(x.s.Apply(index, crashTerm, data), want); err != nil {
			t.Fatalf("seed %d entry %d: %v", seed, index, err)
		}
		if r.IntN(6) == 0 {
			if _, err := x.s.Step(); err != nil {
				t.Fatalf("seed %d entry %d: step: %v", seed, index, err)
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
	if err := m.compare(x.s); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if err := x.close(); err != nil {
		t.Fatal(err)
	}
	return h, c.images
}

// recoverImage opens what a crash has left and checks everything that was promised. With deeper it also
// takes images during the recovery.
func recoverImage(h *history, im image, seed uint64, deeper int) (more []image, err error) {
	c, fs := newCrasher(im.fs, seed, 12, deeper)
	c.acked.Store(im.acked)
	c.begun.Store(im.begun)
	x, err := openWorld(fs, seed)
	if err != nil {
		return nil, err
	}
	last := x.w.LastIndex()
	a, _ := x.s.Applied()
	if last < im.acked || last > im.begun || a > last {
		return nil, errors.Join(fmt.Errorf("log ends at %d, store at %d; acknowledged %d, begun %d", last, a, im.acked, im.begun), x.close())
	}
	if err := x.catchUp(h.results); err != nil {
		return nil, errors.Join(err, x.close())
	}
	m := h.modelAt(last)
	if err := m.compare(x.s); err != nil {
		return nil, errors.Join(fmt.Errorf("recovered at %d, log to %d: %w", a, last, err), x.close())
	}
	if err := x.close(); err != nil {
		return nil, err
	}
	more = c.images
	// A second recovery changes nothing that can be seen.
	if x, err = openWorld(im.fs, seed); err != nil {
		return nil, fmt.Errorf("second recovery: %w", err)
	}
	if seed%2 == 0 {
		if _, err := x.s.Checkpoint(context.Background()); err != nil {
			return nil, errors.Join(err, x.close())
		}
	}
	err = x.catchUp(h.results)
	if err == nil && x.w.LastIndex() != last {
		err = fmt.Errorf("log ends at %d, before at %d", x.w.LastIndex(), last)
	}
	if err == nil {
		err = m.compare(x.s)
	}
	if err != nil {
		err = fmt.Errorf("second recovery: %w", err)
	}
	return more, errors.Join(err, x.close())
}

func TestCrashLosesNothingAcknowledged(t *testing.T) {
	runs, perRun, least := 14, 62, int64(1000)
	switch {
	case testing.Short():
		runs, least = 3, 0
	case raceEnabled: // with the 1,600 of log/wal still over 2,000
		runs, perRun, least = 9, 46, 500
	}
	var states, deep atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{}, 2)
	for seed := range uint64(runs) {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			h, images := play(t, seed, 120, 10, perRun)
			todo := slices.Clone(images)
			depth := len(todo)
			for i := 0; i < len(todo); i++ {
				deeper := 0
				if i < depth && i%3 == 0 {
					deeper = 1
				}
				more, err := recoverImage(h, todo[i], seed*1000+uint64(i), deeper)
				if err != nil {
					t.Errorf("seed %d image %d (%s, acked %d): %v", seed, i, todo[i].config, todo[i].acked, err)
					return
				}
				todo[i].fs = nil
				todo = append(todo, more...)
				deep.Add(int64(len(more)))
				states.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d states, %d of them after a crash inside recovery", states.Load(), deep.Load())
	if n := states.Load(); !t.Failed() && n < least {
		t.Errorf("only %d crash states", n)
	}
}
