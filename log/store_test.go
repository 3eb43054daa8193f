package log

import (
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
)

// openTest opens a store of small sizes in memory, stepped by the test.
func openTest(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(testOptions(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testOptions(o Options) Options {
	if o.FS == nil {
		o.FS = fsx.NewMem()
	}
	if o.Dir == "" {
		o.Dir = "store"
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 10
	}
	if o.ThinBytes == 0 {
		o.ThinBytes = 3000
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 256 << 10
	}
	if o.BlockCacheBytes == 0 {
		o.BlockCacheBytes = 256 << 10
	}
	if o.mergeRuns == 0 {
		o.mergeRuns = 3
	}
	o.Manual = true
	return o
}

// feed applies units as one entry each and fails the test on a rejection.
func feed(t testing.TB, s *Store, units ...*Unit) []Result {
	t.Helper()
	var out []Result
	for _, u := range units {
		index, _ := s.Applied()
		r := s.Apply(index+1, 1, EncodeEntry(nil, int64(index+1)*1e9, []*Unit{u}))
		if len(r) != 1 || r[0].Err != nil {
			t.Fatalf("entry %d: %+v", index+1, r)
		}
		out = append(out, r[0])
	}
	return out
}

func openUnit(set PartitionSettings, ids ...PartitionID) *Unit {
	u := new(Unit)
	for _, id := range ids {
		u.PartitionOpen(id, set, 1)
	}
	return u
}

func appendUnit(id PartitionID, size int) *Unit {
	b := record.NewBuilder()
	b.Append(5, nil, make([]byte, size), nil)
	u := new(Unit)
	u.Append(id, b.Finish())
	return u
}

var keepAll = PartitionSettings{RetentionMs: -1, RetentionBytes: -1}

func TestAWaiterOverManyPartitionsWakesOnceAndLeavesNothing(t *testing.T) {
	s := openTest(t, Options{})
	var ids []PartitionID
	for i := range 1000 {
		ids = append(ids, PartitionID{TopicID{1}, int32(i)})
	}
	feed(t, s, openUnit(keepAll, ids...))
	w := s.NewWaiter()
	for _, id := range ids {
		p, _ := s.Partition(id)
		if w.Watch(p, 0) || w.Watch(p, 2) {
			t.Fatal("an empty partition has records")
		}
	}
	feed(t, s, appendUnit(ids[700], 10), appendUnit(ids[700], 10), appendUnit(ids[3], 10))
	select {
	case <-w.C():
	default:
		t.Fatal("not woken")
	}
	select {
	case <-w.C():
		t.Fatal("woken twice")
	default:
	}
	p, _ := s.Partition(ids[700])
	if !w.Watch(p, 1) || w.Watch(p, 2) {
		t.Fatal("Watch does not see the log end")
	}
	feed(t, s, func() *Unit { u := new(Unit); u.PartitionDrop(ids[700], 5); return u }())
	select {
	case <-w.C():
	default:
		t.Fatal("a drop does not wake")
	}
	w.Cancel()
	w.Cancel()
	for _, id := range ids {
		if p, ok := s.Partition(id); ok && len(p.waiters.list) != 0 {
			t.Fatalf("%s keeps a canceled waiter", id)
		}
	}
	if p, _ := s.Partition(ids[1]); !w.Watch(p, 0) || len(p.waiters.list) != 0 {
		t.Fatal("a canceled waiter watches")
	}
}

func TestConcurrentReadersSeeDenseOffsets(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 4 << 10})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id))
	p, _ := s.Partition(id)
	const total = 600
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			w := s.NewWaiter()
			defer w.Cancel()
			var buf []Batch
			for at := int64(0); at < total; {
				if !w.Watch(p, at) {
					<-w.C()
					continue
				}
				var err error
				if buf, err = p.Read(at, 3000, buf[:0]); err != nil {
					t.Error(err)
					return
				}
				for _, b := range buf {
					if b.Base != at {
						t.Errorf("offset %d after %d", b.Base, at)
						return
					}
					at = b.Last + 1
				}
			}
		})
	}
	for i := range total {
		feed(t, s, appendUnit(id, 100))
		if i%40 == 0 {
			if _, err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if i%200 == 100 {
			if _, err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	wg.Wait()
}

func TestRetentionDropsWholeSegmentsAndRemovesTheirFiles(t *testing.T) {
	mem := fsx.NewMem()
	s := openTest(t, Options{FS: mem, CacheBytes: 1})
	own, thin := PartitionID{TopicID{1}, 0}, PartitionID{TopicID{2}, 0}
	feed(t, s, openUnit(PartitionSettings{RetentionMs: 50_000, RetentionBytes: -1}, own, thin))
	for i := range 100 {
		feed(t, s, appendUnit(own, 900))
		if i%40 == 0 {
			feed(t, s, appendUnit(thin, 100))
		}
		if i%10 == 9 {
			if _, err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := len(files(t, mem, "store/topics", func(string) bool { return true }))
	if got, err := s.RetentionCandidates(40_000); err != nil || len(got) != 0 {
		t.Fatalf("too early: %v %v", got, err)
	}
	got, err := s.RetentionCandidates(120_000)
	if err != nil || len(got) != 2 || got[0].Offset < 40 || got[0].Offset > 75 || got[1].Offset != 2 {
		t.Fatalf("%v %v", got, err)
	}
	u := new(Unit)
	for _, c := range got {
		u.LogStart(c.Partition, c.Offset)
	}
	feed(t, s, u)
	p, _ := s.Partition(own)
	if _, err := p.Read(0, 1, nil); !errors.Is(err, ErrOffsetRange) {
		t.Fatalf("read below the log start: %v", err)
	}
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	after := len(files(t, mem, "store/topics", func(string) bool { return true }))
	if b, err := p.Read(got[0].Offset, 1, nil); err != nil || len(b) != 1 || after >= before-4 {
		t.Fatalf("%d batches, %v; %d files before, %d after", len(b), err, before, after)
	}
	if again, err := s.RetentionCandidates(120_000); err != nil || len(again) != 0 {
		t.Fatalf("nothing new, yet %v %v", again, err)
	}
	// Everything may go by time, and what comes then goes on.
	feed(t, s, func() *Unit { u := new(Unit); u.LogStart(own, p.LogEnd()); return u }(), appendUnit(own, 100))
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trimCache()
	if b, err := p.Read(p.LogStart(), 1, nil); err != nil || len(b) != 1 || b[0].Base != 100 {
		t.Fatalf("%v %v", b, err)
	}
}

func TestRetentionBySizeKeepsTheLastBytes(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(PartitionSettings{RetentionMs: -1, RetentionBytes: 40_000}, id))
	for range 100 {
		feed(t, s, appendUnit(id, 900))
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.RetentionCandidates(1 << 50)
	if err != nil || len(got) != 1 || got[0].Offset < 30 || got[0].Offset > 60 {
		t.Fatalf("%v %v", got, err)
	}
}

func TestTheMixedSegmentIsSweptOfGarbage(t *testing.T) {
	mem := fsx.NewMem()
	s := openTest(t, Options{FS: mem, CacheBytes: 1, SegmentBytes: 4 << 10})
	m := map[PartitionID]int{}
	var ids []PartitionID
	for i := range 8 {
		ids = append(ids, PartitionID{TopicID{1}, int32(i)})
	}
	feed(t, s, openUnit(keepAll, ids...))
	for round := range 40 {
		for i, id := range ids {
			// The first stays thin, the others move out now and then and leave holes.
			if i > 0 || round%10 == 0 {
				feed(t, s, appendUnit(id, 200))
				m[id]++
			}
		}
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
		if round%5 == 4 {
			if _, err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var size int64
	for _, n := range files(t, mem, "store/mixed", func(string) bool { return true }) {
		size += n
	}
	if size > 40<<10 {
		t.Errorf("the mixed segment has grown to %d bytes", size)
	}
	s.trimCache()
	for id, n := range m {
		p, _ := s.Partition(id)
		got, at := 0, int64(0)
		for at < p.LogEnd() {
			b, err := p.Read(at, 1000, nil)
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			got += len(b)
			at = b[len(b)-1].Last + 1
		}
		if got != n {
			t.Errorf("%s: %d of %d batches", id, got, n)
		}
	}
}

func TestCloseEndsTheWriterAndReaders(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := Open(Options{FS: fsx.NewMem(), Dir: "store", CacheBytes: 1, RoundDelay: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id), appendUnit(id, 100), appendUnit(id, 100))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.applyMu.Lock()
	s.trimCache()
	s.applyMu.Unlock()
	p, _ := s.Partition(id)
	if b, err := p.Read(1, 1, nil); err != nil || len(b) != 1 {
		t.Fatalf("%v %v", b, err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Read(0, 1, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("read after close: %v", err)
	}
	if _, err := s.Checkpoint(t.Context()); !errors.Is(err, ErrClosed) {
		t.Fatalf("checkpoint after close: %v", err)
	}
	if _, err := s.GroupOffsets("g"); !errors.Is(err, ErrClosed) {
		t.Fatalf("group offsets after close: %v", err)
	}
}

func TestApplySkipsWhatItHasApplied(t *testing.T) {
	s := openTest(t, Options{})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id), appendUnit(id, 10))
	if r := s.Apply(2, 1, EncodeEntry(nil, 1, []*Unit{appendUnit(id, 10)})); r != nil {
		t.Fatalf("%+v", r)
	}
	p, _ := s.Partition(id)
	if index := s.Ends([]*Partition{p}, make([]int64, 1)); index != 2 || p.LogEnd() != 1 {
		t.Fatalf("index %d, log end %d", index, p.LogEnd())
	}
	if r := s.Apply(3, 1, []byte("no entry")); r != nil || !errors.Is(s.Err(), ErrPoisoned) || !errors.Is(s.Err(), ErrBadEntry) {
		t.Fatalf("%v %v", r, s.Err())
	}
}

func producerUnit(id PartitionID, producer int64, epoch int16, seq int32) *Unit {
	b := record.NewBuilder()
	b.SetProducer(producer, epoch, seq)
	b.Append(5, nil, []byte("v"), nil)
	u := new(Unit)
	u.Append(id, b.Finish())
	return u
}

func TestTheProducerSilentLongestIsForgottenAlsoAfterARestart(t *testing.T) {
	mem := fsx.NewMem()
	o := testOptions(Options{FS: mem})
	o.maxProducers = 3
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id))
	for producer := range int64(3) {
		feed(t, s, producerUnit(id, producer, 0, 0))
	}
	feed(t, s, producerUnit(id, 0, 0, 1))
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	feed(t, s, producerUnit(id, 3, 0, 0)) // pushes producer 1 out
	if r := feed(t, s, producerUnit(id, 0, 0, 1)); !r[0].Duplicate || r[0].Offsets[0] != 3 {
		t.Fatalf("%+v", r)
	}
	index, _ := s.Applied()
	r := s.Apply(index+1, 1, EncodeEntry(nil, 1, []*Unit{producerUnit(id, 1, 0, 1), producerUnit(id, 2, 0, 1)}))
	if !errors.Is(r[0].Err, ErrUnknownProducer) || !errors.Is(r[0].Err, ErrSequence) || r[1].Err != nil {
		t.Fatalf("%+v", r)
	}
}

func TestBatchesOfOneProducerInAUnitFollowEachOther(t *testing.T) {
	s := openTest(t, Options{})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id))
	both := func(a, b *Unit) *Unit {
		u := new(Unit)
		for _, x := range []*Unit{a, b} {
			e, _ := DecodeEntry(EncodeEntry(nil, 0, []*Unit{x}))
			for _, v := range e.Units() {
				for op := range v.Ops() {
					u.Append(op.Append())
				}
			}
		}
		return u
	}
	if r := feed(t, s, both(producerUnit(id, 1, 0, 0), producerUnit(id, 1, 0, 1))); r[0].Offsets[1] != 1 {
		t.Fatalf("%+v", r)
	}
	p, _ := s.Partition(id)
	r := s.Apply(9, 1, EncodeEntry(nil, 1, []*Unit{both(producerUnit(id, 1, 0, 2), producerUnit(id, 1, 0, 4))}))
	if !errors.Is(r[0].Err, ErrSequence) || p.LogEnd() != 2 || p.producers[1].lastSequence() != 1 {
		t.Fatalf("a rejected unit left something: %+v, log end %d", r, p.LogEnd())
	}
	// Sequences wrap after the largest int32.
	if got := addSequence(1<<31-1, 1); got != 0 {
		t.Fatal(got)
	}
}

// A batch is in the tail before it is below the log end. A reader that got it would ask next for an offset above the
// log end, be refused, and reset.
func TestNothingIsReadBeforeItIsBelowTheLogEnd(t *testing.T) {
	s := openTest(t, Options{})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id), appendUnit(id, 10), appendUnit(id, 20))
	p, _ := s.Partition(id)
	p.end.Store(1) // the second batch's push is between its two writes
	for from, want := range []int64{1, 1} {
		batches, err := p.Read(int64(from), 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(from)
		for _, b := range batches {
			next = b.Last + 1
		}
		if next != want {
			t.Errorf("a reader at %d goes on at %d; the log end is %d", from, next, p.LogEnd())
		}
	}
	if at, _, ok, err := p.OffsetForTime(5); err != nil || !ok || at != 0 {
		t.Errorf("offset %d for the time, %v, %v", at, ok, err)
	}
	p.end.Store(2)
	if batches, err := p.Read(0, 1<<20, nil); err != nil || len(batches) != 2 {
		t.Errorf("%d batches, %v", len(batches), err)
	}
}
