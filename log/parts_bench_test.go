package log

import (
	"fmt"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
)

// BenchmarkActivePartitions is everything that the store does for an append, over many partitions that all grow at
// the same pace: Apply, writer rounds to files on the disk, a checkpoint every 256 MiB. An operation is an entry of
// 1 MiB. cpu-ms is processor time of an operation, with what Pebble does in the background.
//
// Give it a fixed number of operations: go test ./log -run '^$' -bench ActivePartitions -benchtime 512x
func BenchmarkActivePartitions(b *testing.B) {
	for _, size := range []int{1 << 10, 4 << 10} {
		for _, parts := range []int{1, 10, 100, 1000, 10_000} {
			b.Run(fmt.Sprintf("batch=%dKiB/partitions=%d", size>>10, parts), func(b *testing.B) {
				s, ids := openBench(b, fsx.Disk(), parts)
				rb := record.NewBuilder()
				v := make([]byte, 1<<10-80) // one batch has the records of 1 KiB that make its size
				for range size >> 10 {
					rb.Append(1, nil, v, nil)
				}
				batch := rb.Finish()
				index, next := uint64(1), 0
				var rounds, applying, checkpoints time.Duration
				begun := cpu()
				b.SetBytes(1 << 20)
				b.ReportAllocs()
				for b.Loop() {
					units := make([]*Unit, 0, 1<<20/size)
					for range cap(units) {
						u := new(Unit)
						u.Append(ids[next], batch)
						units = append(units, u)
						next = (next + 1) % len(ids)
					}
					index++
					data := EncodeEntry(nil, 1e15, units)
					at := time.Now()
					s.Apply(index, 1, data)
					applying += time.Since(at)
					select {
					case <-s.kicks:
						at = time.Now()
						if _, err := s.Step(); err != nil {
							b.Fatal(err)
						}
						rounds += time.Since(at)
					default:
					}
					if index%256 == 0 {
						at = time.Now()
						if _, err := s.Checkpoint(b.Context()); err != nil {
							b.Fatal(err)
						}
						checkpoints += time.Since(at)
					}
				}
				n := float64(b.N)
				ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 / n }
				b.ReportMetric(ms(cpu()-begun), "cpu-ms/op")
				b.ReportMetric(ms(applying), "apply-ms/op")
				b.ReportMetric(ms(rounds), "round-ms/op")
				b.ReportMetric(ms(checkpoints), "checkpoint-ms/op")
			})
		}
	}
}
