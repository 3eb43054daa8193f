package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/replication"
)

// tick is the shortest sleep of the generator. Records that fall due meanwhile are sent together, and wait for it in
// their latency; shorter sleeps cost the two cores more than they give.
const tick = 100 * time.Microsecond

// timeSlices is how many points the latency over time has at most.
const timeSlices = 60

// latencyOptions makes an inner server roll its segments several times in the run, whatever its length, so that rolls,
// retention and checkpoints are part of what is measured: with the defaults a run of a minute would see one or two.
func latencyOptions(o Options) (node replication.NodeOptions, configs map[string]string) {
	configs = o.configs()
	if o.Server != "" {
		return node, configs
	}
	rate := float64(o.Rate) / float64(o.Partitions)
	if o.One {
		rate = 2000
	}
	total := int64(min(rate*float64(o.Seconds)*float64(o.Size), 1<<50))
	segment := min(max(total/16, 1<<20), 256<<20)
	node.SegmentBytes, node.RetentionEvery = segment, 2*time.Second
	node.Data.CheckpointBytes = min(max(total/8, 4<<20), 256<<20)
	if configs == nil {
		configs = map[string]string{}
	}
	configs["retention.bytes"] = strconv.FormatInt(4*segment, 10)
	return node, configs
}

// Latency offers records at a fixed rate and measures each from the moment it was due until it is acknowledged durable.
// Defaults: 20,000 a second of 1 KiB for 10 s from one franz-go client into 1 partition. With One a record is sent when
// the one before is acknowledged. The first second is not counted.
func Latency(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("latency", false); err != nil {
		return nil, err
	}
	switch {
	case o.One && o.Rate > 0:
		return nil, optionErrorf("--one and --rate exclude each other: one record at a time has no rate")
	case o.One && o.Connections > 1:
		return nil, optionErrorf("--one sends one record at a time, over one connection: --connections %d does not go with it", o.Connections)
	}
	o.Size, o.Seconds, o.Partitions = cmp.Or(o.Size, 1024), cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	o.Rate = cmp.Or(o.Rate, 20_000)
	o.publishDefaults()
	node, configs := latencyOptions(o)
	t, err := openWith(ctx, o, node)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "latency", RecordBytes: o.Size, Rate: o.Rate, Partitions: o.Partitions, Client: o.Client, Connections: o.Connections, Durability: o.Durability, WarmSeconds: 1}
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topicWith(ctx, "bench-latency", o.Partitions, configs)
	if err != nil {
		return nil, err
	}
	m := &timing{o: o, offered: time.Duration(o.Seconds+1) * time.Second, whole: histogram()}
	for range m.slices() {
		m.over = append(m.over, hdrhistogram.New(1, 600_000_000, 2))
	}
	disk, span := histogram(), min(3*time.Second, time.Duration(o.Seconds)*time.Second/5)
	alone := func() error {
		if o.One || o.Server != "" {
			return nil // the disk of a server elsewhere is not known
		}
		return diskAlone(ctx, t.dir, o.Rate, o.Size, span, disk)
	}
	if err := alone(); err != nil {
		return nil, err
	}
	before := t.counters()
	m.cpu, m.server = cpuSeconds(), t.serverCPU()
	if o.One {
		r.Rate = 0
		o.say("latency: one record of %d B at a time for %d s, %s client", o.Size, o.Seconds, o.Client)
		err = m.one(ctx, t, topic)
	} else {
		o.say("latency: %d records/s of %d B for %d s from %d %s client(s), open loop", o.Rate, o.Size, o.Seconds, o.Connections, o.Client)
		err = m.open(ctx, t, topic)
	}
	if err != nil {
		return nil, err
	}
	if m.refused != nil {
		return nil, fmt.Errorf("bench: a record was refused: %w", m.refused)
	}
	m.report(t, r)
	r.since(before, t.counters())
	if err := alone(); err != nil {
		return nil, err
	}
	if disk.TotalCount() > 0 {
		r.diskReport.latencies(disk)
	}
	r.RSSBytes = t.rss()
	return r, nil
}

// A timing collects the latencies of a run. Records are known by when they were due, after the start of the run.
type timing struct {
	o           Options
	start       time.Time
	offered     time.Duration // warm-up included
	took        time.Duration
	cpu, server float64

	mu      sync.Mutex
	whole   *hdrhistogram.Histogram   // µs
	over    []*hdrhistogram.Histogram // of each slice
	sent    int64
	reached float64 // records a second, if they were fewer than were due
	refused error
}

const warm = time.Second

// lateEvery is after how many records the generator looks whether its time is over.
const lateEvery = 64

func (m *timing) slices() int { return min(timeSlices, 10*m.o.Seconds) }

// note takes a record that was due at and is acknowledged at now, both after the start.
func (m *timing) note(due, now time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil:
		m.refused = cmp.Or(m.refused, err)
	case due >= warm:
		us := max((now - due).Microseconds(), 1)
		_ = m.whole.RecordValue(us) // beyond ten minutes it is not a latency any more
		k := int((due - warm) * time.Duration(len(m.over)) / (m.offered - warm))
		_ = m.over[min(k, len(m.over)-1)].RecordValue(us)
	}
}

// A sender sends value and calls m.note when it is acknowledged.
type sender struct {
	send  func(due time.Duration) error
	sync  func() error // sends and waits
	flush func(context.Context) error
	close func()
}

func (m *timing) sender(ctx context.Context, t *target, topic string, value []byte) (*sender, error) {
	if m.o.Client == ClientNative {
		p, err := client.NewProducer(t.kafka, client.ProducerOptions{})
		if err != nil {
			return nil, err
		}
		end := func() {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_ = p.Close(ended)
		}
		w, err := p.Writer(ctx, topic)
		if err != nil {
			end()
			return nil, err
		}
		done := func(a client.Ack) { m.note(time.Duration(a.Tag), time.Since(m.start), a.Err) }
		return &sender{
			send: func(due time.Duration) error {
				return w.Produce(ctx, client.Message{Value: value, Tag: uint64(due)}, done)
			},
			sync: func() error {
				_, err := w.ProduceSync(ctx, client.Message{Value: value})
				return err
			},
			flush: p.Flush, close: end,
		}, nil
	}
	k, err := client.Kafka(t.kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return nil, err
	}
	return &sender{
		send: func(due time.Duration) error {
			k.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) { m.note(due, time.Since(m.start), err) })
			return ctx.Err()
		},
		sync:  func() error { return k.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr() },
		flush: k.Flush, close: k.Close,
	}, nil
}

// grace is how long after the time for them records may still be sent that are due. What was not sent by then is not: a
// rate that cannot be reached would have the run last for ever.
const grace = time.Second

// open offers records at the rate, the senders in turn.
func (m *timing) open(ctx context.Context, t *target, topic string) error {
	value := payload(m.o.Size)
	var senders []*sender
	defer func() {
		for _, s := range senders {
			s.close()
		}
	}()
	for range m.o.Connections {
		s, err := m.sender(ctx, t, topic, value)
		if err != nil {
			return err
		}
		senders = append(senders, s)
	}
	total, late := m.o.Rate*(m.o.Seconds+1), false
	due := func(i int) time.Duration { return time.Duration(int64(i) * int64(time.Second) / int64(m.o.Rate)) }
	m.start = time.Now().Add(10 * time.Millisecond)
	for i := 0; i < total && !late; m.sent = int64(i) {
		for now := time.Since(m.start); i < total && due(i) <= now; i++ {
			if err := senders[i%len(senders)].send(due(i)); err != nil {
				return err
			}
			if i%lateEvery == 0 && time.Since(m.start) > m.offered+grace {
				i, late = i+1, true
				break
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if i < total && !late { // time.Sleep is too coarse on an idle machine
			if wait := due(i) - time.Since(m.start); wait > 0 {
				ts := unix.NsecToTimespec(int64(max(wait, tick)))
				_ = unix.Nanosleep(&ts, nil)
			}
		}
	}
	if late {
		m.reached = float64(m.sent) / time.Since(m.start).Seconds()
	}
	for _, s := range senders {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	m.took = time.Since(m.start)
	return nil
}

// one sends a record when the one before is acknowledged.
func (m *timing) one(ctx context.Context, t *target, topic string) error {
	s, err := m.sender(ctx, t, topic, payload(m.o.Size))
	if err != nil {
		return err
	}
	defer s.close()
	m.start = time.Now()
	for due := time.Duration(0); due < m.offered; {
		if err := s.sync(); err != nil {
			return fmt.Errorf("bench: a record was refused: %w", err)
		}
		now := time.Since(m.start)
		m.note(due, now, nil)
		due = now
		m.sent++
	}
	m.took = time.Since(m.start)
	return nil
}

// report fills in what was measured.
func (m *timing) report(t *target, r *Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Seconds = m.took.Seconds()
	r.CPUSeconds = cpuSeconds() - m.cpu
	if m.server > 0 {
		r.ServerCPUSeconds = t.serverCPU() - m.server
	}
	r.latencies(m.whole)
	r.RateReached = m.reached
	for _, h := range m.over {
		r.Timeline = append(r.Timeline, float64(h.Max())/1e3)
		r.TimelineP50 = append(r.TimelineP50, float64(h.ValueAtQuantile(50))/1e3)
		r.TimelineP99 = append(r.TimelineP99, float64(h.ValueAtQuantile(99))/1e3)
	}
	r.SliceSeconds = float64(m.o.Seconds) / float64(len(m.over))
	r.Messages = m.whole.TotalCount()
	r.MessagesPerSecond = float64(m.sent) / r.Seconds
	r.BytesPerSecond = r.MessagesPerSecond * float64(m.o.Size)
}

// counters are what an inner server has done so far.
type counters struct{ segments, walSegments, checkpoints, removed int64 }

func (t *target) counters() (c counters) {
	if t.srv == nil {
		return c
	}
	m := t.srv.Node().Store().Metrics()
	c.segments, c.checkpoints, c.removed = m.SegmentsMade, m.Checkpoints, m.FilesRemoved
	for _, s := range t.srv.Node().Shards() {
		c.walSegments += s.WAL.Rotations
	}
	return c
}

// since fills in what the server did between two moments.
func (r *Report) since(a, b counters) {
	r.Segments, r.WALSegments = b.segments-a.segments, b.walSegments-a.walSegments
	r.Checkpoints, r.Removed = b.checkpoints-a.checkpoints, b.removed-a.removed
}
