package log

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
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
					if buf, err = c.Read(at, 50_000, buf[:0], &loan); err != nil {
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
				if _, err := c.Read(p.LogEnd()+1, 1, nil, &loan); !errors.Is(err, ErrOffsetRange) {
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
	kept, err := p.Cursor().Read(0, 300_000, nil, &mine)
	if err != nil {
		t.Fatal(err)
	}
	want := make([][]byte, len(kept))
	for i := range kept {
		want[i] = bytes.Clone(kept[i].Data)
	}
	c := p.Cursor()
	for at := int64(0); at < p.LogEnd(); {
		b, err := c.Read(at, 300_000, nil, &other)
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
				if buf, err = c.Read(at, 256<<10, buf[:0], &loan); err != nil {
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
		{"the writers are as fast", 1 << 20, time.Millisecond, 1 << 19, 0},
	} {
		if got := turn(c.n, c.took, c.applied, pause); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	var h historyPace
	now := time.Unix(100, 0)
	for i, want := range []time.Duration{0, pause, 2 * pause, 3 * pause} {
		if at := h.reserve(now, pause); at.Sub(now) != want {
			t.Errorf("reader %d begins after %v, want %v", i, at.Sub(now), want)
		}
	}
	if at := h.reserve(now.Add(time.Second), pause); at.Sub(now) != time.Second {
		t.Errorf("a turn that was not used is gone: %v", at.Sub(now))
	}
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
				b, err := cur.Read(at, 64<<10, nil, &loan)
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
