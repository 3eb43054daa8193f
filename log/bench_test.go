package log

import (
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
)

// benchBatch is a batch of n records of 100 bytes.
func benchBatch(n int) []byte {
	b := record.NewBuilder()
	v := make([]byte, 100)
	for i := range n {
		v[0] = byte(i)
		b.Append(int64(i), nil, v, nil)
	}
	return b.Finish()
}

func openBench(b *testing.B, fs fsx.FS, parts int) (*Store, []PartitionID) {
	b.Helper()
	s, err := Open(Options{FS: fs, Dir: b.TempDir(), CacheBytes: 64 << 20, Manual: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	var u Unit
	ids := make([]PartitionID, parts)
	for i := range ids {
		ids[i] = PartitionID{TopicID{1}, int32(i)}
		u.PartitionOpen(ids[i], PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
	}
	s.Apply(1, 1, EncodeEntry(nil, 1e15, []*Unit{&u}))
	return s, ids
}

// BenchmarkApply runs Apply and, whenever 64 MiB wait, a writer round to memory. apply-ns is Apply alone. The clock does
// not stand still for the rounds: Apply is so much faster that the benchmark would write for an hour.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name                  string
		records, units, parts int
	}{
		{"batch=1MiB/units=1/partitions=1", 9500, 1, 1},
		{"batch=64KiB/units=16/partitions=16", 600, 16, 16},
		{"batch=1record/units=1/partitions=1", 1, 1, 1},
		{"batch=1record/units=1000/partitions=100", 1, 1000, 100},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, ids := openBench(b, fsx.NewMem(), c.parts)
			batch := benchBatch(c.records)
			units := make([]*Unit, c.units)
			for i := range units {
				units[i] = new(Unit)
				units[i].Append(ids[i%len(ids)], batch)
			}
			// Entries are built outside: encoding belongs to the proposer. They may share memory here,
			// because nobody changes them.
			data := EncodeEntry(nil, 1e15, units)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			index, applying := uint64(1), time.Duration(0)
			for b.Loop() {
				index++
				begun := time.Now()
				results := s.Apply(index, 1, data)
				applying += time.Since(begun)
				for _, r := range results {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
				}
				if s.Backlog() > 64<<20 {
					writeAndForget(b, s, ids, index)
				}
			}
			b.ReportMetric(float64(applying.Nanoseconds())/float64(b.N), "apply-ns")
			b.ReportMetric(float64(b.N*c.units*c.records)/applying.Seconds(), "records/s")
		})
	}
}

// writeAndForget carries out a round, raises the log starts and takes a checkpoint, so that the disk, which may be
// memory, stays small: the files of the mixed segment go with the checkpoint after the one that emptied them.
func writeAndForget(b *testing.B, s *Store, ids []PartitionID, index uint64) {
	if err := s.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, id := range ids {
		p, _ := s.Partition(id)
		p.start.Store(p.end.Load())
		s.markDirty(p)
	}
	s.pending.index, s.pending.term = index, 1
	if _, err := s.Step(); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Checkpoint(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRound measures the writer: 32 MiB of waiting batches to files on the disk.
func BenchmarkRound(b *testing.B) {
	for _, c := range []struct {
		name           string
		records, parts int
	}{
		{"batch=1MiB/partitions=1", 9500, 1},
		{"batch=10KiB/partitions=16", 95, 16},
		{"batch=10KiB/partitions=1000", 95, 1000},
		{"batch=1record/partitions=16", 1, 16},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, ids := openBench(b, fsx.Disk(), c.parts)
			batch := benchBatch(c.records)
			var units []*Unit
			for i := 0; i*len(batch) < 1<<20-len(batch)/2; i++ {
				u := new(Unit)
				u.Append(ids[i%len(ids)], batch)
				units = append(units, u)
			}
			data := EncodeEntry(nil, 1e15, units)
			b.SetBytes(32 * int64(len(data)))
			index := uint64(1)
			for b.Loop() {
				b.StopTimer()
				for range 32 {
					index++
					s.Apply(index, 1, data)
				}
				b.StartTimer()
				if _, err := s.Step(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				writeAndForget(b, s, ids, index)
				b.StartTimer()
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, from := range []string{"tail", "segment", "mixed"} {
		for _, records := range []int{1, 100, 9500} {
			if from == "mixed" && records > 100 {
				continue
			}
			b.Run(fmt.Sprintf("from=%s/records=%d", from, records), func(b *testing.B) {
				s, ids := openBench(b, fsx.Disk(), 1)
				batch := benchBatch(records)
				total := 16 << 20
				if from == "mixed" {
					total = 1<<20 - 100
				}
				for i := 0; i*len(batch) < total-len(batch); i++ {
					var u Unit
					u.Append(ids[0], batch)
					s.Apply(uint64(i+2), 1, EncodeEntry(nil, 1e15, []*Unit{&u}))
				}
				if from != "tail" {
					if err := s.Flush(b.Context()); err != nil {
						b.Fatal(err)
					}
					s.applyMu.Lock()
					s.opts.CacheBytes = 0
					s.trimCache()
					s.applyMu.Unlock()
				}
				p, _ := s.Partition(ids[0])
				b.ReportAllocs()
				var buf []Batch
				at, n := int64(0), 0
				for b.Loop() {
					var err error
					if buf, err = p.Read(at, 1<<20, buf[:0]); err != nil {
						b.Fatal(err)
					}
					for i := range buf {
						n += len(buf[i].Data)
					}
					if at = buf[len(buf)-1].Last + 1; at >= p.LogEnd() {
						at = 0
					}
				}
				b.SetBytes(int64(n / b.N))
			})
		}
	}
}
