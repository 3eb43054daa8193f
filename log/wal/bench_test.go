package wal

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// nullFS writes and syncs nothing, so that what is left is our own work.
type nullFS struct{ fsx.FS }

func (n nullFS) CreateFile(name string) (fsx.File, error) {
	f, err := n.FS.CreateFile(name)
	return nullFile{f}, err
}

type nullFile struct{ fsx.File }

func (nullFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nullFile) SyncData() error                        { return nil }
func (nullFile) Sync() error                            { return nil }

// BenchmarkAppend appends one entry per group, to the real disk, to memory, and to a disk that does nothing.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 8 << 20} {
		for _, where := range []string{"disk", "direct", "mem", "null"} {
			b.Run(fmt.Sprintf("bytes=%d/fs=%s", size, where), func(b *testing.B) {
				o := Options{FS: fsx.Disk(), Dir: b.TempDir(), Direct: where == "direct", CacheBytes: -1, AheadSegments: -1}
				switch where {
				case "mem":
					o.FS, o.Dir = fsx.NewMem(), "wal"
				case "null":
					o.FS, o.Dir = nullFS{fsx.NewMem()}, "wal"
				}
				w, _, err := Open(o)
				if err != nil {
					b.Fatal(err)
				}
				if err := w.Upkeep(); err != nil { // not beside the measurement
					b.Fatal(err)
				}
				data := make([]byte, size)
				batch := make([]Entry, 1)
				took := make([]time.Duration, 0, 1<<20)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				index := uint64(1)
				for b.Loop() {
					batch[0] = Entry{Index: index, Data: data}
					start := time.Now()
					if err := w.Append(batch); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(start))
					_ = w.TruncateFront(index)
					index++
				}
				b.StopTimer()
				slices.Sort(took)
				for name, at := range map[string]float64{"p50-us": 0.5, "p99-us": 0.99, "max-us": 1} {
					b.ReportMetric(float64(took[int(at*float64(len(took)-1))].Nanoseconds())/1e3, name)
				}
				b.ReportMetric(float64(w.Metrics().Waits), "waits")
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// BenchmarkAppendSmall packs many small entries into a group: what an entry costs.
func BenchmarkAppendSmall(b *testing.B) {
	w, _, err := Open(Options{FS: nullFS{fsx.NewMem()}, Dir: "wal", CacheBytes: 8 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	data := make([]byte, 100)
	batch := make([]Entry, 1000)
	index := uint64(1)
	b.SetBytes(int64(len(batch) * len(data)))
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			batch[i] = Entry{Index: index, Data: data}
			index++
		}
		if err := w.Append(batch); err != nil {
			b.Fatal(err)
		}
		_ = w.TruncateFront(index - 1)
	}
}
