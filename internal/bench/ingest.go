package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

// The clients that ingest and latency can measure with.
const (
	ClientKgo    = "kgo"    // franz-go, as any Kafka client
	ClientNative = "native" // our own, client.Producer
)

func (o *Options) publishDefaults() {
	o.Client, o.Connections = cmp.Or(o.Client, ClientKgo), cmp.Or(o.Connections, 1)
}

// configs are the settings of the topic under test.
func (o *Options) configs() map[string]string {
	if o.Durability == "" {
		return nil
	}
	return map[string]string{"durability": o.Durability}
}

// A publisher sends records as fast as its client takes them.
type publisher struct {
	send  func(ctx context.Context) error // one more record; blocks while the client's buffer is full
	acked *atomic.Int64                   // durable; may lag by some records until flush
	flush func(context.Context) error
	close func()
}

// newPublisher makes a publisher of o.Client for value.
func newPublisher(ctx context.Context, kafka, topic string, o Options, value []byte) (*publisher, error) {
	p := &publisher{acked: &atomic.Int64{}}
	var failed atomic.Pointer[error]
	fail := func(err error) {
		err = fmt.Errorf("bench: a record was refused: %w", err)
		failed.CompareAndSwap(nil, &err)
	}
	failure := func() error {
		if e := failed.Load(); e != nil {
			return *e
		}
		return nil
	}
	if o.Client == ClientNative {
		producer, err := client.NewProducer(kafka, client.ProducerOptions{})
		if err != nil {
			return nil, err
		}
		p.close = func() {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_ = producer.Close(ended)
		}
		w, err := producer.Writer(ctx, topic)
		if err != nil {
			p.close()
			return nil, err
		}
		n := int64(0) // callbacks come one at a time
		done := func(a client.Ack) {
			if a.Err != nil {
				fail(a.Err)
				return
			}
			if n++; n&255 == 0 {
				p.acked.Store(n)
			}
		}
		p.send = func(ctx context.Context) error {
			if failed.Load() != nil {
				return failure()
			}
			return w.Produce(ctx, client.Message{Value: value}, done)
		}
		p.flush = func(ctx context.Context) error {
			if err := producer.Flush(ctx); err != nil {
				return err
			}
			p.acked.Store(n)
			return failure()
		}
		return p, nil
	}
	k, err := client.Kafka(kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	records := sync.Pool{New: func() any { return &kgo.Record{} }}
	finished := func(rec *kgo.Record, err error) {
		if err != nil {
			fail(err)
		} else {
			p.acked.Add(1)
		}
		*rec = kgo.Record{}
		records.Put(rec)
	}
	p.send = func(ctx context.Context) error {
		if failed.Load() != nil {
			return failure()
		}
		rec := records.Get().(*kgo.Record) //nolint:errcheck // the pool holds nothing else
		rec.Value = value
		k.Produce(ctx, rec, finished)
		return ctx.Err()
	}
	p.flush = func(ctx context.Context) error {
		if err := k.Flush(ctx); err != nil {
			return err
		}
		return failure()
	}
	p.close = k.Close
	return p, nil
}

// Ingest saturates the server with durable records: idempotent, acks=all, a callback for each. Defaults: records of
// 100 B from one franz-go client, 10 s, 1 partition. The first second warms up and is not counted.
func Ingest(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("ingest", false); err != nil {
		return nil, err
	}
	if o.Columns {
		return columns(ctx, o)
	}
	if o.WithPipeline || o.RetainBytes > 0 {
		return nil, optionErrorf("--with-pipeline and --retain-bytes go with --columns")
	}
	o.Size, o.Seconds, o.Partitions = cmp.Or(o.Size, 100), cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	o.publishDefaults()
	r := &Report{Name: "ingest", RecordBytes: o.Size, Partitions: o.Partitions, Client: o.Client, Connections: o.Connections, Durability: o.Durability, WarmSeconds: 1}
	if o.Compare {
		if r.PeerMessagesPerSecond, err = double(ctx, o); err != nil {
			return nil, err
		}
	}
	t, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	if o.Server == "" {
		if r.DiskBytesPerSecond, err = diskStream(t.dir); err != nil {
			return nil, err
		}
	}
	topic, err := t.topicWith(ctx, "bench-ingest", o.Partitions, o.configs())
	if err != nil {
		return nil, err
	}
	o.say("ingest: %d B records from %d %s client(s) into %d partition(s) for %d s", o.Size, o.Connections, o.Client, o.Partitions, o.Seconds)
	if err := saturate(ctx, t, topic, o, r); err != nil {
		return nil, err
	}
	r.RSSBytes = t.rss()
	return r, nil
}

// saturate sends for a second and then for o.Seconds, which it measures.
func saturate(ctx context.Context, t *target, topic string, o Options, r *Report) error {
	value := payload(o.Size)
	var pubs []*publisher
	defer func() {
		for _, p := range pubs {
			p.close()
		}
	}()
	for range o.Connections {
		p, err := newPublisher(ctx, t.kafka, topic, o, value)
		if err != nil {
			return err
		}
		pubs = append(pubs, p)
	}
	acked := func() (n int64) {
		for _, p := range pubs {
			n += p.acked.Load()
		}
		return n
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, len(pubs))
	var ended atomic.Bool
	for i, p := range pubs {
		wg.Go(func() {
			for !ended.Load() {
				if errs[i] = p.send(run); errs[i] != nil {
					return
				}
			}
		})
	}
	wait(ctx, time.Second)
	began, from, cpu, server := time.Now(), acked(), cpuSeconds(), t.serverCPU()
	wait(ctx, time.Duration(o.Seconds)*time.Second)
	took, n := time.Since(began), acked()-from
	r.CPUSeconds = cpuSeconds() - cpu
	if server > 0 {
		r.ServerCPUSeconds = t.serverCPU() - server
	}
	ended.Store(true)
	if ctx.Err() != nil {
		stop()
	}
	wg.Wait()
	for i, p := range pubs {
		if ctx.Err() == nil {
			errs[i] = errors.Join(errs[i], p.flush(ctx))
		}
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	r.Seconds, r.Messages = took.Seconds(), n
	r.MessagesPerSecond = float64(n) / took.Seconds()
	r.BytesPerSecond = r.MessagesPerSecond * float64(o.Size)
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// serverCPU is the processor time of a server of its own; 0 for one inside, and if it does not say.
func (t *target) serverCPU() float64 { return t.metric("process_cpu_seconds_total") }

// rss is the resident memory of the server, with that of the client if it runs inside; 0 if it does not say.
func (t *target) rss() int64 {
	if t.srv != nil {
		return rss(0)
	}
	return int64(t.metric("process_resident_memory_bytes"))
}

// metric is a figure of a server of its own, as its metrics say; 0 for one inside, and if it does not say.
func (t *target) metric(name string) float64 {
	if t.srv != nil || t.http == "" {
		return 0
	}
	address := t.http
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	resp, err := http.Get(address + "/metrics") //nolint:noctx // a figure that may be missing
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), name+" "); ok {
			f, _ := strconv.ParseFloat(v, 64)
			return f
		}
	}
	return 0
}
