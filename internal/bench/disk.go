package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/internal/fsx"
)

// A diskReport is what the disk alone does under the same load: no server can be better than it.
type diskReport struct {
	// Latency of records that one goroutine writes and syncs at the same rate, all that are due at once, without a
	// client, a network or a server.
	DiskMeanMs float64 `json:"disk_mean_ms,omitempty"`
	DiskP50Ms  float64 `json:"disk_p50_ms,omitempty"`
	DiskP99Ms  float64 `json:"disk_p99_ms,omitempty"`
	DiskP999Ms float64 `json:"disk_p999_ms,omitempty"`
	DiskMaxMs  float64 `json:"disk_max_ms,omitempty"`
	// Bytes a second of 1 MiB writes into a written file, each synced.
	DiskBytesPerSecond float64 `json:"disk_bytes_per_second,omitempty"`
}

func (d *diskReport) text(line func(name, format string, args ...any)) {
	if d.DiskMaxMs > 0 {
		line("disk alone", "mean %.3f  p50 %.3f  p99 %.3f  p99.9 %.3f  max %.3f ms (the same rate, written and synced by one loop, before and after)",
			d.DiskMeanMs, d.DiskP50Ms, d.DiskP99Ms, d.DiskP999Ms, d.DiskMaxMs)
	}
	if d.DiskBytesPerSecond > 0 {
		line("disk alone", "%.1f MB/s (1 MiB at a time, each synced); what is ingested is written twice", d.DiskBytesPerSecond/1e6)
	}
}

// latencies fills the latency fields from a histogram of microseconds.
func (d *diskReport) latencies(h *hdrhistogram.Histogram) {
	at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e3 }
	d.DiskMeanMs, d.DiskP50Ms, d.DiskP99Ms, d.DiskP999Ms, d.DiskMaxMs = h.Mean()/1e3, at(50), at(99), at(99.9), float64(h.Max())/1e3
}

// diskSync is the median time of writing 64 KiB into a written file and syncing it.
func diskSync(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	const chunk, chunks = 64 << 10, 64
	buf := make([]byte, chunk)
	for range chunks {
		if _, err := f.Write(buf); err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	var took []time.Duration
	for i := range 200 {
		began := time.Now()
		if _, err := f.WriteAt(buf, int64(i%chunks)*chunk); err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return ms(took[len(took)/2]), nil
}

// surroundings fills in what the figures of a run have to be seen beside.
func (r *Report) surroundings(dir string) (err error) {
	if r.DiskSyncMs, err = diskSync(dir); err != nil {
		return err
	}
	r.FreshMemoryBytesPerSecond, err = freshMemory()
	return err
}

// freshMemory measures the first touch of 64 MiB, in bytes a second. A virtual machine whose host lends memory page by
// page is many times slower than one that has it: whatever takes new memory, the page cache first of all, is slow with it.
func freshMemory() (float64, error) {
	const size = 64 << 20
	b, err := fsx.Aligned(size)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	began := time.Now()
	for i := 0; i < size; i += fsx.PageSize {
		b[i] = 1
	}
	took := time.Since(began)
	if err := fsx.Free(b); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	return size / took.Seconds(), nil
}

// A scratch is a written file of the benchmark's own, gone when it is closed.
type scratch struct{ *os.File }

const scratchBytes = 64 << 20

func newScratch(dir string) (scratch, error) {
	f, err := os.CreateTemp(dir, "disk-")
	if err != nil {
		return scratch{}, fmt.Errorf("bench: %w", err)
	}
	s := scratch{f}
	buf := make([]byte, 1<<20)
	for range scratchBytes / len(buf) {
		if _, err := f.Write(buf); err != nil {
			return scratch{}, errors.Join(fmt.Errorf("bench: %w", err), s.close())
		}
	}
	if err := f.Sync(); err != nil {
		return scratch{}, errors.Join(fmt.Errorf("bench: %w", err), s.close())
	}
	return s, nil
}

func (s scratch) close() error { return errors.Join(s.Close(), os.Remove(s.Name())) }

// put writes b at pos and syncs it.
func (s scratch) put(b []byte, pos int64) error {
	if _, err := s.WriteAt(b, pos); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if err := unix.Fdatasync(int(s.Fd())); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// diskStream measures synced writes of 1 MiB, in bytes a second.
func diskStream(dir string) (rate float64, err error) {
	s, err := newScratch(dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	buf := make([]byte, 1<<20)
	began := time.Now()
	n := int64(0)
	for ; n < 4*scratchBytes && time.Since(began) < 2*time.Second; n += int64(len(buf)) {
		if err := s.put(buf, n%scratchBytes); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// diskAlone adds to h the latencies (microseconds) that records of size bytes would have, rate of them a second for
// the time span, if nothing but the disk took time: open loop, each from the moment it was due.
func diskAlone(ctx context.Context, dir string, rate, size int, span time.Duration, h *hdrhistogram.Histogram) (err error) {
	s, err := newScratch(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	const page, most = 4 << 10, 8 << 20
	buf := make([]byte, most)
	gap := time.Second / time.Duration(rate)
	start, pos, done := time.Now(), int64(0), 0
	for ctx.Err() == nil {
		now := time.Since(start)
		if now >= span {
			return nil
		}
		due := min(int(now/gap), done+most/size)
		if due == done {
			ts := unix.NsecToTimespec(int64(max(gap, tick)))
			_ = unix.Nanosleep(&ts, nil)
			continue
		}
		n := ((due-done)*size + page - 1) / page * page
		if pos+int64(n) > scratchBytes {
			pos = 0
		}
		if err := s.put(buf[:n], pos); err != nil {
			return err
		}
		pos += int64(n)
		for now = time.Since(start); done < due; done++ {
			_ = h.RecordValue(max(1, (now - time.Duration(done+1)*gap).Microseconds())) // beyond ten minutes: not a latency
		}
	}
	return ctx.Err()
}
