package replication

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/wal"
)

// benchShard opens a shard on the disk under $HEADRACE_BENCH_DIR or the temporary directory. With
// $HEADRACE_BENCH_SYNC the disk is memory whose syncs take that long, as a blocked thread: a machine that others
// use has no disk worth measuring.
func benchShard(b *testing.B, machine string) (*Shard, log.PartitionID) {
	b.Helper()
	dir, err := os.MkdirTemp(os.Getenv("HEADRACE_BENCH_DIR"), "bench")
	must(b, err)
	fs := fsx.Disk()
	if d, err := time.ParseDuration(os.Getenv("HEADRACE_BENCH_SYNC")); err == nil {
		fs = fsx.Inject(fsx.NewMem(), func(op fsx.Op, _ string) error {
			if op == fsx.OpSync {
				ts := syscall.NsecToTimespec(d.Nanoseconds())
				_ = syscall.Nanosleep(&ts, nil)
			}
			return nil
		})
	}
	s, err := OpenShard(ShardOptions{
		Name: "bench", Dir: dir, FS: fs, ID: "disk", NodeID: 1, Bootstrap: true, Logger: quiet,
		Machine: func(w *wal.WAL) (StateMachine, error) {
			if machine == "nothing" {
				return &nothing{}, nil
			}
			return log.Open(log.Options{FS: fs, Dir: dir + "/store", Log: log.FromWAL(w), Logger: quiet})
		},
	})
	must(b, err)
	must(b, s.WaitLeader(context.Background()))
	b.Cleanup(func() {
		must(b, s.Close())
		must(b, os.RemoveAll(dir))
	})
	id := log.PartitionID{Topic: log.TopicID{1}}
	u := new(log.Unit)
	u.PartitionOpen(id, DefaultSettings(), 1)
	must(b, s.Do(context.Background(), u).Err)
	return s, id
}

func batchOfSize(records, bytes int) []byte {
	b := record.NewBuilder()
	v := make([]byte, bytes)
	for i := range v {
		v[i] = byte(i*7 + i>>3)
	}
	for range records {
		b.Append(1700000000000, nil, v, nil)
	}
	return b.Finish()
}

// Latency of an open loop: proposals at a fixed rate, whatever the answers do.
func BenchmarkProposeAtRate(b *testing.B) {
	for _, machine := range []string{"nothing", "store"} {
		for _, rate := range []int{1_000, 20_000} {
			b.Run(fmt.Sprintf("machine=%s/rate=%d/bytes=1024", machine, rate), func(b *testing.B) {
				s, id := benchShard(b, machine)
				batch := batchOfSize(1, 1024-70)
				n := max(b.N, rate*3)
				took := make([]time.Duration, n)
				var wg sync.WaitGroup
				var bad atomic.Int64
				wg.Add(n)
				b.ResetTimer()
				begun := time.Now()
				for i := 0; i < n; {
					due := min(n, int(time.Since(begun).Seconds()*float64(rate))+1)
					for ; i < due; i++ {
						u := new(log.Unit)
						u.Append(id, batch)
						at, k := time.Now(), i
						if err := s.Propose(u, func(r Result) {
							took[k] = time.Since(at)
							if r.Err != nil {
								bad.Add(1)
							}
							wg.Done()
						}); err != nil {
							bad.Add(1)
							wg.Done()
						}
					}
					time.Sleep(50 * time.Microsecond)
				}
				wg.Wait()
				b.StopTimer()
				if bad.Load() != 0 {
					b.Fatalf("%d of %d failed", bad.Load(), n)
				}
				slices.Sort(took)
				sum := time.Duration(0)
				for _, d := range took {
					sum += d
				}
				us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
				m := s.State().WAL
				b.ReportMetric(us(sum/time.Duration(n)), "mean-µs")
				b.ReportMetric(us(took[n/2]), "p50-µs")
				b.ReportMetric(us(took[n*99/100]), "p99-µs")
				b.ReportMetric(us(took[n*999/1000]), "p999-µs")
				b.ReportMetric(us(took[n-1]), "max-µs")
				b.ReportMetric(float64(m.WriteNs)/1e3/float64(m.Groups), "sync-µs")
				b.ReportMetric(float64(n)/float64(m.Entries), "units/entry")
			})
		}
	}
}

// Throughput with as much in flight as the shard takes.
func BenchmarkProposeSaturated(b *testing.B) {
	for _, machine := range []string{"nothing", "store"} {
		for _, c := range []struct{ records, bytes int }{{1, 1024}, {100, 100}, {1000, 100}} {
			b.Run(fmt.Sprintf("machine=%s/records=%d/bytes=%d", machine, c.records, c.bytes), func(b *testing.B) {
				s, id := benchShard(b, machine)
				batch := batchOfSize(c.records, c.bytes)
				var failed atomic.Int64
				var wg sync.WaitGroup
				done := func(r Result) {
					if r.Err != nil {
						failed.Add(1)
					}
					wg.Done()
				}
				b.SetBytes(int64(len(batch)))
				b.ReportAllocs()
				n := 0
				begun := time.Now()
				for b.Loop() {
					u := new(log.Unit)
					u.Append(id, batch)
					wg.Add(1)
					if err := s.ProposeWait(context.Background(), u, done); err != nil {
						b.Fatal(err)
					}
					n++
				}
				wg.Wait()
				took := time.Since(begun)
				if failed.Load() > 0 {
					b.Fatal(errors.New("units failed"))
				}
				b.ReportMetric(float64(n*c.records)/took.Seconds(), "records/s")
				b.ReportMetric(float64(n)/float64(s.State().WAL.Entries), "units/entry")
			})
		}
	}
}

// One caller that waits for each answer: the hand-offs and one sync.
func BenchmarkDo(b *testing.B) {
	for _, machine := range []string{"nothing", "store"} {
		b.Run("machine="+machine, func(b *testing.B) {
			s, id := benchShard(b, machine)
			batch := batchOfSize(1, 100)
			b.ReportAllocs()
			for b.Loop() {
				u := new(log.Unit)
				u.Append(id, batch)
				if r := s.Do(context.Background(), u); r.Err != nil {
					b.Fatal(r.Err)
				}
			}
			m := s.State().WAL
			b.ReportMetric(float64(m.WriteNs)/1e3/float64(m.Groups), "sync-µs")
		})
	}
}
