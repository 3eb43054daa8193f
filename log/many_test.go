package log

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// scaled is n, or with HEADRACE_LONG what a node is built for.
func scaled(n, long int) int {
	if os.Getenv("HEADRACE_LONG") != "" {
		return long
	}
	if raceEnabled {
		return n / 4 // the race detector costs that much
	}
	return n
}

// descriptors is how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func manyIDs(n int) []PartitionID {
	ids := make([]PartitionID, n)
	for i := range ids {
		ids[i] = PartitionID{TopicID{byte(i / 1000), 1}, int32(i % 1000)}
	}
	return ids
}

// openMany opens partitions, a thousand in an entry.
func openMany(t *testing.T, s *Store, ids []PartitionID, set PartitionSettings) {
	t.Helper()
	for some := range slices.Chunk(ids, 1000) {
		feed(t, s, openUnit(set, some...))
	}
}

// TestThousandsOfActivePartitions writes at random to partitions that nearly all get files of their own, over
// restarts, and reads everything back. However many files there are, few are open.
func TestThousandsOfActivePartitions(t *testing.T) {
	// Files on the disk are synced one by one, which takes its time.
	t.Run("disk", func(t *testing.T) { activePartitions(t, fsx.Disk(), t.TempDir(), scaled(200, 10_000)) })
	t.Run("memory", func(t *testing.T) { activePartitions(t, fsx.NewMem(), "store", scaled(3000, 20_000)) })
}

func activePartitions(t *testing.T, fs fsx.FS, dir string, n int) {
	const seed, maxOpen = 1, 32
	r := rand.New(rand.NewPCG(seed, 2))
	o := Options{
		FS: fs, Dir: dir, Manual: true, MaxOpenFiles: maxOpen, ThinBytes: 2 << 10, RoundBytes: 256 << 10,
		CacheBytes: 256 << 10, mergeRuns: 4,
	}
	before := descriptors(t)
	fewOpen := func() {
		t.Helper()
		// Readers' and the writer's files, Pebble's tables, its directory locks and logs.
		if open := descriptors(t) - before; open > 2*maxOpen+128+16 {
			t.Fatalf("%d files are open", open)
		}
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ids := manyIDs(n)
	openMany(t, s, ids, keepAll)
	want := make([][]byte, n) // the values of each partition, one behind the other
	b := record.NewBuilder()
	for step := range 12 {
		units := make([]*Unit, n)
		for i := range units {
			k := r.IntN(n)
			b.Reset()
			for range 1 + r.IntN(3) {
				v := fmt.Appendf(make([]byte, 0, 600), "%d/%d:", k, step)
				v = v[:len(v)+r.IntN(500)]
				b.Append(1, nil, v, nil)
				want[k] = append(want[k], v...)
			}
			units[i] = new(Unit)
			units[i].Append(ids[k], slices.Clone(b.Finish()))
		}
		index, _ := s.Applied()
		for _, res := range s.Apply(index+1, 1, EncodeEntry(nil, int64(index+1)*1e9, units)) {
			if res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if step%4 == 3 {
			if _, err := s.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if s, err = Open(o); err != nil {
				t.Fatal(err)
			}
		}
		fewOpen()
	}
	own := 0
	for k, id := range ids {
		p, _ := s.Partition(id)
		if l := p.layout.Load(); l != nil && len(l.segs) > 0 {
			own++
		}
		var got []byte
		for at := int64(0); at < p.LogEnd(); {
			batches, err := p.Read(at, 1<<20, nil)
			if err != nil {
				t.Fatalf("%s at %d: %v", id, at, err)
			}
			for i := range batches {
				var rr record.Reader
				if err := rr.Reset(batches[i].Data); err != nil {
					t.Fatal(err)
				}
				for rr.Next() {
					got = append(got, rr.Record().Value...)
				}
				at = batches[i].Last + 1
			}
		}
		if !bytes.Equal(got, want[k]) {
			t.Fatalf("%s: %d bytes of values, want %d", id, len(got), len(want[k]))
		}
	}
	fewOpen()
	if own < n/2 {
		t.Errorf("only %d of %d partitions have files: the test tests too little", own, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left := descriptors(t) - before; left > 0 {
		t.Errorf("%d files are still open", left)
	}
}

// TestAnIdlePartitionIsSmall counts heap bytes of partitions that never took a record, and of such that did.
func TestAnIdlePartitionIsSmall(t *testing.T) {
	n := scaled(20_000, 100_000)
	s := openTest(t, Options{MemTableBytes: 1 << 20, ThinBytes: 1 << 20})
	ids := manyIDs(n)
	measure := func(what string, most int64, do func()) {
		t.Helper()
		before := heap()
		do()
		if _, err := s.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.applyMu.Lock()
		s.opts.CacheBytes = 0
		s.trimCache()
		s.applyMu.Unlock()
		// The disk is memory here and Pebble keeps a table and a memtable: 400 bytes a partition, at most.
		if each := (heap() - before) / int64(n); each > most {
			t.Errorf("%s: %d bytes a partition, want at most %d", what, each, most)
		} else {
			t.Logf("%s: %d bytes a partition", what, each)
		}
	}
	measure("empty", 1024, func() { openMany(t, s, ids, keepAll) })
	b := record.NewBuilder()
	b.Append(1, nil, make([]byte, 10), nil)
	batch := b.Finish()
	measure("written and idle again", 1024, func() {
		for some := range slices.Chunk(ids, 5000) {
			units := make([]*Unit, len(some))
			for i, id := range some {
				units[i] = new(Unit)
				units[i].Append(id, batch)
			}
			index, _ := s.Applied()
			s.Apply(index+1, 1, EncodeEntry(nil, int64(index+1)*1e9, units))
		}
	})
}

// TestRipePartitionsMoveAFewAtATime: partitions that grow alike all reach the size of a file in one round, which must
// not move all of them.
func TestRipePartitionsMoveAFewAtATime(t *testing.T) {
	const n, batch, round = 200, 500, 20_000
	s := openTest(t, Options{ThinBytes: 3 * batch, RoundBytes: round})
	ids := manyIDs(n)
	openMany(t, s, ids, keepAll)
	last, most := int64(0), int64(0)
	for range 12 {
		for _, id := range ids {
			feed(t, s, appendUnit(id, batch))
		}
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
		moved := s.Metrics().MovedBytes
		most, last = max(most, moved-last), moved
	}
	// Twice what a round brings (n batches and their overhead), and the last partition entirely.
	if limit := int64(2*n*(batch+150) + 12*(batch+100)); most > limit {
		t.Errorf("a round moved %d bytes, want at most %d", most, limit)
	}
	if last < n*batch {
		t.Errorf("%d bytes moved in all: they starve", last)
	}
	for _, id := range ids {
		p, _ := s.Partition(id)
		if got, err := p.Read(0, 1, nil); err != nil || len(got) != 1 {
			t.Fatalf("%s: %d batches, %v", id, len(got), err)
		}
	}
}

// TestASweepGoesOnWhereTheLastEnded: checkpoints that may not look at everything look at everything in turn.
func TestASweepGoesOnWhereTheLastEnded(t *testing.T) {
	const n = 50
	s := openTest(t, Options{ThinBytes: 1 << 20, mergeRuns: 4, sweepRuns: 100})
	ids := manyIDs(n)
	openMany(t, s, ids, keepAll)
	for range 8 {
		for _, id := range ids {
			feed(t, s, appendUnit(id, 10))
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	unmerged := func() (left int) {
		for _, id := range ids {
			p, _ := s.Partition(id)
			if p.layout.Load().mixRuns > 4 {
				left++
			}
		}
		return left
	}
	before := unmerged()
	for i := 0; before > 0; i++ {
		feed(t, s, openUnit(keepAll, PartitionID{TopicID{9}, int32(i)})) // or the checkpoint has nothing to do
		if _, err := s.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := unmerged()
		if merged := before - now; merged == 0 || merged > 10 {
			t.Fatalf("checkpoint %d merged the runs of %d partitions, %d are left", i, merged, now)
		}
		before = now
	}
	for _, id := range ids {
		p, _ := s.Partition(id)
		if got, err := p.Read(0, 1<<20, nil); err != nil || len(got) != 8 {
			t.Fatalf("%s: %d batches, %v", id, len(got), err)
		}
	}
}

// TestRetentionGoesThroughPartitionsInPieces names each candidate once.
func TestRetentionGoesThroughPartitionsInPieces(t *testing.T) {
	s := openTest(t, Options{})
	ids := manyIDs(100)
	openMany(t, s, ids, PartitionSettings{RetentionMs: 1, RetentionBytes: -1})
	for _, id := range ids[:70] {
		feed(t, s, appendUnit(id, 10))
	}
	feed(t, s, openUnit(keepAll, PartitionID{TopicID{9}, 0}))
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := map[PartitionID]bool{}
	calls := 0
	for from := 0; ; calls++ {
		some, next, err := s.NextRetention(1e9, from, 16)
		if err != nil || len(some) > 16 || calls > 10 {
			t.Fatalf("call %d: %d candidates, %v", calls, len(some), err)
		}
		for _, c := range some {
			if seen[c.Partition] || c.Offset != 1 {
				t.Errorf("%+v comes again", c)
			}
			seen[c.Partition] = true
		}
		if from = next; from == 0 {
			break
		}
	}
	if len(seen) != 70 || calls != 4 {
		t.Errorf("%d candidates in %d calls, want 70 in 4", len(seen), calls+1)
	}
}

// TestLeftoversGoBesideTheStart: a start does not look into the directories of partitions, and yet what a crash has
// left there goes.
func TestLeftoversGoBesideTheStart(t *testing.T) {
	o := Options{FS: fsx.Disk(), Dir: t.TempDir(), ThinBytes: 100, Manual: true}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(keepAll, id), appendUnit(id, 1000))
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := s.path(s.partitionDir(id))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(dir, segment.LogName(77, 0))
	if err := os.WriteFile(orphan, []byte("of a lost round"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Manual = false
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(orphan); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the leftover stays")
		}
	}
	p, _ := s.Partition(id)
	if got, err := p.Read(0, 1, nil); err != nil || len(got) != 1 {
		t.Fatalf("%d batches, %v", len(got), err)
	}
}
