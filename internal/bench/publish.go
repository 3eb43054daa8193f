package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/client"
)

// payload is size bytes that differ from record to record only by what the log adds.
func payload(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz012345"[(i*7+i/32)%32]
	}
	return b
}

// Ingest saturates the server through the Kafka front with franz-go: idempotent, acks=all, durable.
// Defaults: records of 100 B, 10 s, 1 partition. The first second warms up and is not counted.
func Ingest(ctx context.Context, o Options) (rep *Report, err error) {
	o.Size, o.Seconds, o.Partitions = cmp.Or(o.Size, 100), cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	t, err := open(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "ingest", RecordBytes: o.Size, Partitions: o.Partitions}
	if r.DiskSyncMs, err = diskSync(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-ingest", o.Partitions)
	if err != nil {
		return nil, err
	}
	k, err := client.Kafka(t.kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	o.say("ingest: %d B records into %d partition(s) for %d s", o.Size, o.Partitions, o.Seconds)
	var acked atomic.Int64
	var mu sync.Mutex
	var refused error
	value := payload(o.Size)
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			mu.Lock()
			refused = cmp.Or(refused, err)
			mu.Unlock()
			return
		}
		acked.Add(1)
	}
	records := sync.Pool{New: func() any { return &kgo.Record{} }}
	finished := func(rec *kgo.Record, err error) {
		done(rec, err)
		*rec = kgo.Record{}
		records.Put(rec)
	}
	warm := time.Now().Add(time.Second)
	var began, end time.Time
	var cpu float64
	var from int64
	for n := 0; ; n++ {
		if n&1023 == 0 {
			now := time.Now()
			if began.IsZero() && now.After(warm) {
				began, end, cpu, from = now, now.Add(time.Duration(o.Seconds)*time.Second), cpuSeconds(), acked.Load()
			}
			if !began.IsZero() && now.After(end) || ctx.Err() != nil {
				break
			}
		}
		rec := records.Get().(*kgo.Record)
		rec.Value = value
		k.Produce(ctx, rec, finished)
	}
	n := acked.Load() - from
	took := time.Since(began)
	r.CPUSeconds = cpuSeconds() - cpu
	if err := k.Flush(ctx); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, fmt.Errorf("bench: a record was refused: %w", refused)
	}
	r.Seconds, r.Messages = took.Seconds(), n
	r.MessagesPerSecond = float64(n) / took.Seconds()
	r.BytesPerSecond = r.MessagesPerSecond * float64(o.Size)
	r.RSSBytes = rss(0)
	return r, nil
}

// tick is the shortest sleep of the generator. Records that fall due meanwhile are sent together, and wait for it in
// their latency; shorter sleeps cost the two cores more than they give.
const tick = 300 * time.Microsecond

// Latency offers records at a fixed rate and measures each from the moment it was due until it is
// acknowledged durable. Defaults: 20,000 a second of 1 KiB for 10 s into 1 partition. The first second
// is not counted.
func Latency(ctx context.Context, o Options) (rep *Report, err error) {
	o.Size, o.Rate, o.Seconds, o.Partitions = cmp.Or(o.Size, 1024), cmp.Or(o.Rate, 20_000), cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	t, err := open(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "latency", RecordBytes: o.Size, Rate: o.Rate, Partitions: o.Partitions}
	if r.DiskSyncMs, err = diskSync(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-latency", o.Partitions)
	if err != nil {
		return nil, err
	}
	k, err := client.Kafka(t.kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	o.say("latency: %d records/s of %d B for %d s, open loop", o.Rate, o.Size, o.Seconds)

	const slices = 60
	total := o.Rate * (o.Seconds + 1)
	warm := o.Rate
	var mu sync.Mutex
	hist := histogram()
	worst := make([]float64, slices)
	var refused error
	value := payload(o.Size)
	start := time.Now().Add(10 * time.Millisecond)
	due := func(i int) time.Time { return start.Add(time.Duration(int64(i) * int64(time.Second) / int64(o.Rate))) }
	cpu := cpuSeconds()
	for i := 0; i < total; {
		now := time.Now()
		for i < total && !due(i).After(now) {
			at, n := due(i), i
			k.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				us := time.Since(at).Microseconds()
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					refused = cmp.Or(refused, err)
				case n >= warm:
					_ = hist.RecordValue(max(us, 1)) // beyond ten minutes it is not a latency any more
					k := (n - warm) * slices / (total - warm)
					worst[k] = max(worst[k], float64(us)/1e3)
				}
			})
			i++
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i < total { // time.Sleep is too coarse on an idle machine
			if wait := time.Until(due(i)); wait > 0 {
				ts := unix.NsecToTimespec(int64(max(wait, tick)))
				_ = unix.Nanosleep(&ts, nil)
			}
		}
	}
	if err := k.Flush(ctx); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(start).Seconds()
	r.CPUSeconds = cpuSeconds() - cpu
	mu.Lock()
	defer mu.Unlock()
	if refused != nil {
		return nil, fmt.Errorf("bench: a record was refused: %w", refused)
	}
	r.latencies(hist)
	r.Timeline = worst
	r.Messages = hist.TotalCount()
	r.MessagesPerSecond = float64(total) / r.Seconds
	r.BytesPerSecond = r.MessagesPerSecond * float64(o.Size)
	r.RSSBytes = rss(0)
	return r, nil
}
