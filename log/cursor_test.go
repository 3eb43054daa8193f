package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// loaded fills a partition with batches of records until there are total bytes, moves them to files, and empties the
// tail cache if evict is set.
func loaded(t testing.TB, o Options, records, total int, evict bool) (*Store, *Partition) {
	t.Helper()
	o.Manual = true
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	id := PartitionID{TopicID{1}, 0}
	var open Unit
	open.PartitionOpen(id, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
	s.Apply(1, 1, EncodeEntry(nil, 1e15, []*Unit{&open}))
	batch := benchBatch(records)
	for i := 0; i*len(batch) < total; i++ {
		var u Unit
		u.Append(id, batch)
		s.Apply(uint64(i+2), 1, EncodeEntry(nil, 1e15, []*Unit{&u}))
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if evict {
		s.applyMu.Lock()
		s.opts.CacheBytes = 0
		s.trimCache()
		s.applyMu.Unlock()
	}
	p, _ := s.Partition(id)
	return s, p
}

// TestACursorReadsWhatAPartitionReads reads the same log both ways, with every border between memory and files.
func TestACursorReadsWhatAPartitionReads(t *testing.T) {
	for _, evict := range []bool{false, true} {
		for _, total := range []int{20 << 10, 3 << 20} { // in the mixed segment, and in one of its own
			t.Run(fmt.Sprintf("evict=%v/bytes=%d", evict, total), func(t *testing.T) {
				s, p := loaded(t, Options{FS: fsx.NewMem(), Dir: "d", SegmentBytes: 1 << 20}, 7, total, evict)
				c := p.Cursor()
				var loan Loan
				var buf []Batch
				for at := int64(0); at < p.LogEnd(); {
					want, err := p.Read(at, 50_000, nil)
					if err != nil {
						t.Fatal(err)
					}
					if buf, err = c.Read(t.Context(), at, 50_000, buf[:0], &loan); err != nil {
						t.Fatal(err)
					}
					if len(buf) != len(want) {
						t.Fatalf("at %d: %d batches, want %d", at, len(buf), len(want))
					}
					for i := range buf {
						if buf[i].Base != want[i].Base || buf[i].Stored != want[i].Stored || !bytes.Equal(buf[i].AppendTo(nil), want[i].AppendTo(nil)) {
							t.Fatalf("batch %d at %d differs", i, at)
						}
						if buf[i].Stored && !bytes.Equal(buf[i].Data, buf[i].AppendTo(nil)) {
							t.Fatalf("batch %d at %d is stored and not as it is sent", i, at)
						}
					}
					if evict != (loan.Bytes() > 0) {
						t.Fatalf("%d bytes lent", loan.Bytes())
					}
					loan.Return()
					at = buf[len(buf)-1].Last + 1
				}
				if _, err := c.Read(t.Context(), p.LogEnd()+1, 1, nil, &loan); !errors.Is(err, ErrOffsetRange) {
					t.Error(err)
				}
				if got := s.Metrics().FileReads > 0; got != evict {
					t.Errorf("file reads: %v", got)
				}
			})
		}
	}
}

// TestBytesOnLoanStayUntilTheyAreReturned reads with one loan while others read and return theirs.
func TestBytesOnLoanStayUntilTheyAreReturned(t *testing.T) {
	_, p := loaded(t, Options{FS: fsx.NewMem(), Dir: "d"}, 7, 2<<20, true)
	var mine, other Loan
	kept, err := p.Cursor().Read(t.Context(), 0, 300_000, nil, &mine)
	if err != nil {
		t.Fatal(err)
	}
	want := make([][]byte, len(kept))
	for i := range kept {
		want[i] = bytes.Clone(kept[i].Data)
	}
	c := p.Cursor()
	for at := int64(0); at < p.LogEnd(); {
		b, err := c.Read(t.Context(), at, 300_000, nil, &other)
		if err != nil {
			t.Fatal(err)
		}
		at = b[len(b)-1].Last + 1
		other.Return()
	}
	for i := range kept {
		if !bytes.Equal(kept[i].Data, want[i]) {
			t.Fatalf("batch %d has changed under its reader", i)
		}
	}
	mine.Return()
	if mine.Bytes() != 0 {
		t.Error("lent after the return")
	}
	big := mine.take(9 << 20) // more than any buffer
	if len(big) != 9<<20 || mine.Bytes() != 0 {
		t.Errorf("%d bytes, %d lent", len(big), mine.Bytes())
	}
}

// TestAReadAllocatesNothingPerRecord compares batches of 10 records with batches of 1,000.
func TestAReadAllocatesNothingPerRecord(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's pools forget at random")
	}
	for _, evict := range []bool{false, true} {
		var allocs [2]float64
		for i, records := range []int{10, 1000} {
			_, p := loaded(t, Options{FS: fsx.NewMem(), Dir: "d"}, records, 2<<20, evict)
			c := p.Cursor()
			var loan Loan
			var buf []Batch
			at, batches := int64(0), 0
			per := testing.AllocsPerRun(100, func() {
				var err error
				if buf, err = c.Read(t.Context(), at, 256<<10, buf[:0], &loan); err != nil {
					t.Fatal(err)
				}
				loan.Return()
				batches = len(buf)
				if at = buf[len(buf)-1].Last + 1; at == p.LogEnd() {
					at = 0
				}
			})
			allocs[i] = per
			if per > 16 {
				t.Errorf("evict=%v: a read of %d batches of %d records allocates %v times", evict, batches, records, per)
			}
		}
		if allocs[1] > allocs[0]+1 {
			t.Errorf("evict=%v: %v allocations with batches of 10 records, %v with 1,000", evict, allocs[0], allocs[1])
		}
	}
}

func TestReadersOfHistoryShareWhatTheWritersLeave(t *testing.T) {
	const pause = 4 * time.Millisecond
	for _, c := range []struct {
		name    string
		n       int
		took    time.Duration
		applied int64
		want    time.Duration
	}{
		{"nobody writes", 1 << 20, time.Second, 0, 0},
		{"somebody writes", 1 << 20, time.Millisecond, 100, pause + time.Millisecond},
		{"a small read", 1 << 19, 0, 100, pause / 2},
		{"a slow disk", 1 << 20, 10 * pause, 100, 20 * pause},
		{"a disk that stalled", 1 << 20, time.Second, 100, 2 * maxTook},
		{"the writers are as fast", 1 << 20, time.Millisecond, 1 << 19, 0},
	} {
		if got := turn(c.n, c.took, c.applied, pause); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// leaves is when a reader was let go, and with what.
type leaves struct {
	reader int
	at     time.Duration
	err    error
}

// queue has readers wait for turns that last for d each, one after the other, and returns how they left. change is called
// when all wait.
func queue(h *historyPace, readers int, d time.Duration, ctx func(reader int) context.Context, closed chan struct{}, change func()) []leaves {
	var mu sync.Mutex
	var out []leaves
	begun := time.Now()
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			_, err := h.wait(ctx(i), closed, d)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, leaves{i, time.Since(begun), err})
		})
		synctest.Wait() // in this order
	}
	change()
	wg.Wait()
	return out
}

func TestReadersOfHistoryTakeTurns(t *testing.T) {
	patient := func(int) context.Context { return context.Background() }
	t.Run("one after the other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var h historyPace
			// After a stall of a second, which all readers met.
			d := turn(1<<20, time.Second, 1, 4*time.Millisecond)
			for i, x := range queue(&h, 20, d, patient, nil, func() {}) {
				if x.reader != i || x.at != time.Duration(i)*2*maxTook || x.err != nil {
					t.Errorf("number %d: %+v", i, x)
				}
			}
			time.Sleep(time.Second)
			if waited, err := h.wait(t.Context(), nil, d); waited || err != nil {
				t.Errorf("a turn that nobody takes is waited for: %v, %v", waited, err)
			}
			if waited, err := h.wait(t.Context(), nil, d); !waited || err != nil {
				t.Errorf("a turn that was not used was kept: %v, %v", waited, err)
			}
		})
	})
	t.Run("those that leave give their turns back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var h historyPace
			ctx, cancel := context.WithCancel(t.Context())
			got := queue(&h, 12, 100*time.Millisecond, func(reader int) context.Context {
				if reader > 0 && reader < 11 { // the first of the queue among them
					return ctx
				}
				return t.Context()
			}, nil, cancel)
			if len(got) != 12 || got[11].reader != 11 || got[11].at != 100*time.Millisecond || got[11].err != nil {
				t.Errorf("the last one: %+v", got)
			}
			for _, x := range got[1:11] {
				if x.at != 0 || !errors.Is(x.err, context.Canceled) {
					t.Errorf("left: %+v", x)
				}
			}
			if len(h.mu.queue) != 0 {
				t.Errorf("%d still wait", len(h.mu.queue))
			}
		})
	})
	t.Run("nobody waits for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var h historyPace
			got := queue(&h, 1000, 100*time.Millisecond, patient, nil, func() {})
			inTurn := int(maxHistoryWait / (100 * time.Millisecond))
			for i, x := range got {
				if want := min(time.Duration(i)*100*time.Millisecond, maxHistoryWait); x.at != want || x.err != nil || i < inTurn && x.reader != i {
					t.Fatalf("number %d: %+v, want after %v", i, x, want)
				}
			}
			if len(h.mu.queue) != 0 {
				t.Errorf("%d still wait", len(h.mu.queue))
			}
		})
	})
	t.Run("a store that closes lets all go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var h historyPace
			closed := make(chan struct{})
			for _, x := range queue(&h, 5, time.Second, patient, closed, func() { close(closed) }) {
				if x.at != 0 || x.err != nil {
					t.Errorf("%+v", x)
				}
			}
		})
	})
}

// TestAWaitForATurnEndsWithItsRequest: the reader is where it was, and no turn is kept for it.
func TestAWaitForATurnEndsWithItsRequest(t *testing.T) {
	s, p := loaded(t, Options{FS: fsx.NewMem(), Dir: "d"}, 7, 1<<20, true)
	s.opts.Manual = false // nothing runs, but pauses are made
	c := p.Cursor()
	var loan Loan
	first, err := c.Read(t.Context(), 0, 1<<10, nil, &loan)
	if err != nil {
		t.Fatal(err)
	}
	var u Unit
	u.TaskOpen(TaskID{1})
	index, _ := s.Applied()
	s.Apply(index+1, 1, EncodeEntry(nil, 1e15, []*Unit{&u}))
	s.history.mu.next = time.Now().Add(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	at := first[len(first)-1].Last + 1
	for range 2 {
		if got, err := c.Read(ctx, at, 1<<20, nil, &loan); !errors.Is(err, context.Canceled) || len(got) != 0 {
			t.Errorf("%d batches, %v", len(got), err)
		}
	}
	if len(s.history.mu.queue) != 0 {
		t.Errorf("%d still wait", len(s.history.mu.queue))
	}
	if n := s.Metrics().ReadPauses; n != 2 {
		t.Errorf("%d waits", n)
	}
	s.history.mu.next = time.Time{}
	if got, err := c.Read(ctx, at, 1<<10, nil, &loan); err != nil || got[0].Base != at {
		t.Errorf("in turn: %v", err) // a read is not cut short
	}
	loan.Return()
	s.opts.Manual = true
}

// slowReads makes every read of a segment file take as long as a disk.
func slowReads(fs fsx.FS) fsx.FS {
	return fsx.Inject(fs, func(op fsx.Op, name string) error {
		if op == fsx.OpRead && strings.HasSuffix(name, ".log") {
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
}

// TestACursorAsksTheDiskAheadWhenItWaits: but not for a reader that jumps.
func TestACursorAsksTheDiskAheadWhenItWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		jump bool
		want bool
	}{
		{"in order", false, true},
		{"at random", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p := loaded(t, Options{FS: slowReads(fsx.NewMem()), Dir: "d"}, 100, 1<<20, true)
			cur := p.Cursor()
			var loan Loan
			at := int64(0)
			for range 8 {
				b, err := cur.Read(t.Context(), at, 64<<10, nil, &loan)
				if err != nil {
					t.Fatal(err)
				}
				loan.Return()
				at = b[len(b)-1].Last + 1
				if c.jump {
					at = (at + 3777) % p.LogEnd()
				}
			}
			got := s.Metrics().ReadAheads
			if c.want != (got > 0) || c.want && got > 4 {
				t.Errorf("asked %d times", got)
			}
		})
	}
}
