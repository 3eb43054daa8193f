package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/replication"
)

// backlogReport is what Backlog adds to a Report, whose latencies are those beside the reader.
type backlogReport struct {
	Quiet              *quiet  `json:"quiet,omitempty"`                    // the phases without a reader
	MeanRatio          float64 `json:"mean_ratio,omitempty"`               // with the reader to without
	P99Ratio           float64 `json:"p99_ratio,omitempty"`                //
	BacklogBytesPerSec float64 `json:"backlog_bytes_per_second,omitempty"` // that the reader got
	BacklogReadPauses  int64   `json:"backlog_read_pauses,omitempty"`      // times the server let the writers go first
}

// quiet is publish latency.
type quiet struct {
	MeanMs float64 `json:"mean_ms"`
	P50Ms  float64 `json:"p50_ms"`
	P99Ms  float64 `json:"p99_ms"`
	P999Ms float64 `json:"p999_ms"`
	MaxMs  float64 `json:"max_ms"`
}

func (r *Report) backlogText(line func(name, format string, args ...any)) {
	q := r.Quiet
	if q == nil {
		return
	}
	line("without a reader", "mean %.3f  p50 %.3f  p99 %.3f  p99.9 %.3f  max %.3f ms", q.MeanMs, q.P50Ms, q.P99Ms, q.P999Ms, q.MaxMs)
	line("ratio", "mean %.2f  p99 %.2f", r.MeanRatio, r.P99Ratio)
	line("catch-up reader", "%.0f MB/s, paused %d times", r.BacklogBytesPerSec/1e6, r.BacklogReadPauses)
}

// backlogPhase is how long each phase with and without a reader takes. They take turns, so that what else the machine
// does meets both.
const backlogPhase = time.Second

// Backlog measures what a consumer that catches up does to producers: publish latency at a fixed rate, open loop, in
// phases with and without a native reader that reads history over and over at full speed. Defaults: 20,000 records of
// 1 KiB a second for 10 s, 512 MiB of history in another topic.
func Backlog(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("backlog", true); err != nil {
		return nil, err
	}
	o.Size, o.Rate, o.Seconds, o.Partitions = cmp.Or(o.Size, 1024), cmp.Or(o.Rate, 20_000), cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	o.Bytes = cmp.Or(o.Bytes, 512<<20)
	t, err := openWith(ctx, o, replication.NodeOptions{CacheBytes: replayCache})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "backlog", RecordBytes: o.Size, Rate: o.Rate, Partitions: o.Partitions}
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	old, err := t.topic(ctx, "bench-history", o.Partitions)
	if err != nil {
		return nil, err
	}
	if _, err := fill(ctx, t, old, o); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-backlog", o.Partitions)
	if err != nil {
		return nil, err
	}
	k, err := client.Kafka(t.kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	o.say("backlog: %d records/s of %d B for %d s, every other second beside a reader of %d MiB of history", o.Rate, o.Size, o.Seconds, o.Bytes>>20)

	cpu, began := cpuSeconds(), time.Now()
	paused := t.srv.Node().Store().Metrics().ReadPauses
	load := newOffered(k, o)
	bytes, reading := int64(0), time.Duration(0)
	if err := load.phase(ctx, backlogPhase, nil); err != nil { // to warm up
		return nil, err
	}
	with, without := histogram(), histogram()
	for i := range max(2, o.Seconds) {
		if i%2 == 0 {
			if err := load.phase(ctx, backlogPhase, without); err != nil {
				return nil, err
			}
			continue
		}
		stop, end := context.WithCancel(ctx)
		var wg sync.WaitGroup
		var failed error
		started := time.Now()
		wg.Go(func() {
			for stop.Err() == nil && failed == nil {
				var n int64
				n, failed = catchUp(stop, t, old)
				bytes += n
			}
		})
		err := load.phase(ctx, backlogPhase, with)
		reading += time.Since(started)
		end()
		wg.Wait()
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
	}
	if err := load.flush(ctx); err != nil {
		return nil, err
	}
	r.Seconds, r.CPUSeconds = time.Since(began).Seconds(), cpuSeconds()-cpu
	if load.left > 0 {
		r.RateReached = float64(load.sent) / load.took.Seconds()
	}
	base := Report{}
	base.latencies(without)
	r.latencies(with)
	r.Quiet = &quiet{base.MeanMs, base.P50Ms, base.P99Ms, base.P999Ms, base.MaxMs}
	r.MeanRatio, r.P99Ratio = r.MeanMs/max(base.MeanMs, 1e-3), r.P99Ms/max(base.P99Ms, 1e-3)
	r.BacklogBytesPerSec = float64(bytes) / reading.Seconds()
	r.BacklogReadPauses = t.srv.Node().Store().Metrics().ReadPauses - paused
	r.Messages = with.TotalCount() + without.TotalCount()
	r.MessagesPerSecond = float64(r.Messages) / r.Seconds
	r.BytesPerSecond = r.MessagesPerSecond * float64(o.Size)
	r.RSSBytes = rss(0)
	return r, nil
}

// catchUp reads a topic from its start to its end, or until ctx ends, and returns the bytes of the values.
func catchUp(ctx context.Context, t *target, topic string) (bytes int64, err error) {
	r, err := client.NewReader(ctx, t.kafka, client.ReaderOptions{Topic: topic, End: client.Latest})
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return 0, err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return bytes, nil
		}
		if err != nil {
			return bytes, err
		}
		for b.Next() {
			bytes += int64(len(b.Record().Value))
		}
		if err := b.Err(); err != nil {
			return bytes, err
		}
	}
}

// offered publishes records at a fixed rate, open loop.
type offered struct {
	k     *kgo.Client
	rate  int
	value []byte
	// Over all phases: records offered, those that were not since the time was over, and the time.
	sent, left int64
	took       time.Duration
	mu         struct {
		sync.Mutex
		refused error
	}
}

func newOffered(k *kgo.Client, o Options) *offered {
	return &offered{k: k, rate: o.Rate, value: payload(o.Size)}
}

// phase offers records for d and waits for them; latencies from the moment each was due go to h, nil for none.
func (l *offered) phase(ctx context.Context, d time.Duration, h *hdrhistogram.Histogram) error {
	total := int(d.Seconds() * float64(l.rate))
	start := time.Now()
	due := func(i int) time.Time { return start.Add(time.Duration(int64(i) * int64(time.Second) / int64(l.rate))) }
	i, end := 0, start.Add(d+grace)
	for i < total && time.Now().Before(end) {
		now := time.Now()
		for i < total && !due(i).After(now) && (i%lateEvery != 0 || time.Now().Before(end)) {
			at := due(i)
			l.k.Produce(ctx, &kgo.Record{Value: l.value}, func(_ *kgo.Record, err error) {
				us := time.Since(at).Microseconds()
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.mu.refused = cmp.Or(l.mu.refused, err); h != nil && err == nil {
					_ = h.RecordValue(max(us, 1))
				}
			})
			i++
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if i < total {
			if wait := time.Until(due(i)); wait > 0 {
				ts := unix.NsecToTimespec(int64(max(wait, tick)))
				_ = unix.Nanosleep(&ts, nil)
			}
		}
	}
	l.sent, l.left, l.took = l.sent+int64(i), l.left+int64(total-i), l.took+time.Since(start)
	return l.flush(ctx)
}

func (l *offered) flush(ctx context.Context) error {
	if err := l.k.Flush(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.refused != nil {
		return fmt.Errorf("bench: a record was refused: %w", l.mu.refused)
	}
	return nil
}
