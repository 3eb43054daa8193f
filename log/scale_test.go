package log

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
)

// heap is what lives on the Go heap, in bytes.
func heap() int64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestThinPartitionsAreCheap opens 10,000 topics and one topic of 1,000 partitions, writes to all of them,
// and counts what that costs.
func TestThinPartitionsAreCheap(t *testing.T) {
	before := heap()
	var syncs, creates atomic.Int64
	fs := fsx.Inject(fsx.Disk(), func(op fsx.Op, _ string) error {
		switch op {
		case fsx.OpSync, fsx.OpSyncDir:
			syncs.Add(1)
		case fsx.OpCreate:
			creates.Add(1)
		}
		return nil
	})
	o := Options{FS: fs, Dir: t.TempDir(), Manual: true}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var ids []PartitionID
	for i := range 10_000 {
		ids = append(ids, PartitionID{Topic: TopicID{1, byte(i >> 8), byte(i)}})
	}
	for i := range 1000 {
		ids = append(ids, PartitionID{TopicID{2}, int32(i)})
	}
	begun, index := cpu(), uint64(0)
	for len(ids) > int(index)*500 {
		var u Unit
		for _, id := range ids[index*500 : min(len(ids), int(index+1)*500)] {
			u.PartitionOpen(id, PartitionSettings{RetentionMs: 1, RetentionBytes: -1}, index)
		}
		index++
		if r := s.Apply(index, 1, EncodeEntry(nil, 1, []*Unit{&u})); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	opened := cpu() - begun
	b := record.NewBuilder()
	b.Append(1, nil, make([]byte, 100), nil)
	batch := b.Finish()
	for range 3 {
		units := make([]*Unit, len(ids))
		for i, id := range ids {
			units[i] = new(Unit)
			units[i].Append(id, batch)
		}
		index++
		s.Apply(index, 1, EncodeEntry(nil, 1, units))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	syncs.Store(0)
	creates.Store(0)
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Entries in the tail cache aside.
	s.opts.CacheBytes = 0
	s.trimCache()
	live := heap() - before
	t.Logf("opened in %v of processor time; %d MiB live; checkpoint: %d syncs, %d files made", opened, live>>20, syncs.Load(), creates.Load())
	if opened > 2*time.Second || live > 100<<20 || syncs.Load() > 40 || creates.Load() > 20 {
		t.Error("thin partitions cost too much")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	begun = cpu()
	if s, err = Open(o); err != nil {
		t.Fatal(err)
	}
	opened = cpu() - begun
	t.Logf("opened again in %v of processor time; %d MiB live", opened, (heap()-before)>>20)
	if opened > 2*time.Second {
		t.Error("opening takes too long")
	}
	for _, id := range ids[9990:10010] {
		p, _ := s.Partition(id)
		if got, err := p.Read(0, 1<<20, nil); err != nil || len(got) != 3 {
			t.Fatalf("%s: %d batches, %v", id, len(got), err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
