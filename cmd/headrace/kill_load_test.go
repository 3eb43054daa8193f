package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A promise is what a lane's producer may expect of the log.
type promise int

const (
	exactlyOnce promise = iota // idempotent, acks=all: every number once, in order
	latestByKey                // the same, in a topic that keeps at least the latest record of each key
	atLeastOnce                // acks=1 without idempotence: every acknowledged number, some twice
	atMostOnce                 // acks=0: what is there is right
)

// laneKeys is how many keys a lane has; record n has key n % laneKeys.
const laneKeys = 64

// A lane is what one producer writes to one partition: records numbered from 0. The number says what the record must
// be, so a lane is checked in constant memory however long it is.
type lane struct {
	name      string // of the producer, and of its life: a topic that was deleted and created again has another lane
	topic     string
	partition int32
	promise   promise
	size      int // of a value about, bytes

	sent   atomic.Int64 // the next number
	acked  atomic.Int64 // what is below is acknowledged
	at     atomic.Int64 // offset of the last acknowledged record
	failed atomic.Int64 // records that were refused for good
}

var noise = func() []byte {
	b := make([]byte, 64<<10)
	rng := rand.New(rand.NewPCG(5, 5))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

// value is record n of the lane: it names its place, so that a record can be recognized wherever it turns up.
func (l *lane) value(n int64) []byte {
	b := fmt.Appendf(nil, "%s %s/%d %d|", l.name, l.topic, l.partition, n)
	size := l.size/2 + int(n*7919)%l.size
	from := int(n*104729) % (len(noise) / 2)
	return append(b, noise[from:from+min(size, len(noise)/2)]...)
}

func (l *lane) key(n int64) []byte { return fmt.Appendf(nil, "k%d", n%laneKeys) }

// number is the name of the lane and the number that a value claims.
func number(value []byte) (name string, n int64, err error) {
	head, _, ok := bytes.Cut(value[:min(len(value), 100)], []byte("|"))
	if !ok {
		return "", 0, fmt.Errorf("no head: %q", head)
	}
	var at string
	_, err = fmt.Sscan(string(head), &name, &at, &n)
	return name, n, err
}

// A ledger counts what was asked of the server and what became of it, and keeps the last of it for a failure's message.
type ledger struct {
	mu    sync.Mutex
	n     map[string]int
	lines []string
	begun time.Time
}

func (l *ledger) note(op, outcome string, detail any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n[op+" "+outcome]++
	if detail != nil {
		l.lines = append(l.lines[max(0, len(l.lines)-200):], fmt.Sprintf("%9.3fs %s %s: %v", time.Since(l.begun).Seconds(), op, outcome, detail))
	}
}

func (l *ledger) counts() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for k, n := range l.n {
		out = append(out, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (l *ledger) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n[what]
}

// A topicState is what is known of a topic that comes and goes.
type topicState int

const (
	absent topicState = iota
	present
	unsure // an operation on it has an unknown outcome
)

// A load is everything that clients do to the server beside the pipelines.
type load struct {
	t     *testing.T
	v     *victim
	disk  *smallDisk
	ops   *ledger
	admin *kadm.Client

	direct *kgo.Client // admin's

	stop chan struct{}
	wg   sync.WaitGroup
	fail sync.Once
	err  error // the first record that was not acknowledged; read after wg

	mu        sync.Mutex // held while topics change, and while the topics and the lanes are compared
	lanes     map[string]*lane
	topics    map[string]topicState
	committed struct{ tried, acked int64 }

	slowest time.Duration // restart, on a full disk perhaps
}

// story is what happened last, for a failure.
func (l *load) story() string {
	l.ops.mu.Lock()
	defer l.ops.mu.Unlock()
	return strings.Join(l.ops.lines, "\n") + "\n" + l.v.log.tail()
}

func (l *load) client(opts ...kgo.Opt) *kgo.Client {
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(l.v.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.ProducerBatchMaxBytes(96 << 10),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.UnknownTopicRetries(-1), kgo.DialTimeout(2 * time.Second), kgo.MetadataMinAge(20 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.MaxBufferedRecords(512),
		kgo.ProducerOnDataLossDetected(func(topic string, p int32) { l.broken(fmt.Errorf("the server forgot a producer of %s/%d", topic, p)) }),
	}, opts...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

func (l *load) broken(err error) { l.fail.Do(func() { l.err = err }) }

// startLoad begins: thin and thick topics whose records go as fast as they come, a compacted one, each level of
// acknowledgement, topics that are created, flooded and deleted, offset commits, and a disk that is full now and then.
func startLoad(ctx context.Context, t *testing.T, v *victim, disk *smallDisk, seed uint64) *load {
	l := &load{
		t: t, v: v, disk: disk, ops: &ledger{n: map[string]int{}, begun: time.Now()}, stop: make(chan struct{}),
		lanes: map[string]*lane{}, topics: map[string]topicState{},
	}
	ac := l.client(kgo.RequestRetries(2))
	t.Cleanup(ac.Close)
	l.admin, l.direct = kadm.NewClient(ac), ac
	set := func(kv ...string) map[string]*string {
		m := map[string]*string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = &kv[i+1]
		}
		return m
	}
	plain := []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck())}
	none := []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.NoAck())}
	for _, x := range []struct {
		topic      string
		partitions int32
		configs    map[string]*string
		producers  int
		promise    promise
		size       int
		pause      time.Duration // between rounds of one record a partition
		opts       []kgo.Opt
	}{
		{"thin", 12, set("retention.bytes", "262144"), 1, exactlyOnce, 100, 4 * time.Millisecond, nil},
		{"thick", 2, set("retention.bytes", "8388608"), 2, exactlyOnce, 8 << 10, 8 * time.Millisecond, nil},
		{"table", 2, set("cleanup.policy", "compact"), 1, latestByKey, 200, 20 * time.Millisecond, nil},
		{"acks1", 1, set("retention.bytes", "1048576"), 1, atLeastOnce, 300, 3 * time.Millisecond, plain},
		{"acks0", 1, set("retention.bytes", "1048576"), 1, atMostOnce, 300, 3 * time.Millisecond, none},
	} {
		until(ctx, t, "create "+x.topic, v, func() error {
			_, err := l.admin.CreateTopic(ctx, x.partitions, 1, x.configs, x.topic)
			if errors.Is(err, kerr.TopicAlreadyExists) {
				return nil
			}
			return err
		})
		for i := range x.producers {
			var lanes []*lane
			for p := range x.partitions {
				ln := &lane{name: fmt.Sprintf("%s-%d", x.topic, i), topic: x.topic, partition: p, promise: x.promise, size: x.size}
				l.lanes[laneID(ln)] = ln
				lanes = append(lanes, ln)
			}
			c := l.client(x.opts...)
			t.Cleanup(c.Close)
			l.wg.Go(func() {
				l.write(ctx, c, lanes, x.pause, l.stop, 1<<60)
				if err := c.Flush(ctx); err != nil {
					l.broken(fmt.Errorf("flush %s: %w", x.topic, err))
				}
			})
		}
	}
	l.wg.Go(func() { l.flood(ctx, rand.New(rand.NewPCG(seed, 2))) })
	l.wg.Go(func() { l.churn(ctx, rand.New(rand.NewPCG(seed, 3))) })
	l.wg.Go(func() { l.commit(ctx) })
	if disk.root != nil {
		l.wg.Go(func() { l.ballast(rand.New(rand.NewPCG(seed, 4))) })
	}
	return l
}

func laneID(l *lane) string { return fmt.Sprintf("%s %s/%d", l.name, l.topic, l.partition) }

// pause waits, and says whether the load goes on.
func (l *load) pause(d time.Duration) bool {
	select {
	case <-l.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// write appends to the lanes in turn until stop is closed or about most bytes are sent.
func (l *load) write(ctx context.Context, c *kgo.Client, lanes []*lane, pause time.Duration, stop <-chan struct{}, most int) {
	for sent := 0; sent < most && ctx.Err() == nil; {
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
		for _, ln := range lanes {
			n := ln.sent.Add(1) - 1
			r := &kgo.Record{Topic: ln.topic, Partition: ln.partition, Key: ln.key(n), Value: ln.value(n)}
			sent += len(r.Value)
			c.Produce(ctx, r, func(r *kgo.Record, err error) {
				switch {
				case err != nil:
					ln.failed.Add(1)
					l.ops.note("produce", "fail", fmt.Sprintf("%s %d: %v", laneID(ln), n, err))
				case ln.promise == atMostOnce:
					l.ops.note("produce", "sent", nil)
				default:
					l.ops.note("produce", "ok", nil)
					if n != ln.acked.Load() && ln.failed.Load() == 0 {
						l.broken(fmt.Errorf("%s: number %d is acknowledged after %d", laneID(ln), n, ln.acked.Load()))
					}
					if before := ln.at.Swap(r.Offset); n > 0 && r.Offset <= before && ln.promise != atLeastOnce && ln.failed.Load() == 0 {
						l.broken(fmt.Errorf("%s: number %d has offset %d, the one before %d", laneID(ln), n, r.Offset, before))
					}
					ln.acked.Store(n + 1)
				}
			})
		}
	}
}

// create and remove do one operation on a topic and note what is known of it afterwards. l.mu is held.
func (l *load) create(ctx context.Context, topic string, partitions int32) (fresh bool) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	before := l.topics[topic]
	l.topics[topic] = unsure
	_, err := l.admin.CreateTopic(ctx, partitions, 1, nil, topic)
	switch {
	case err == nil:
		l.topics[topic] = present
		l.ops.note("create", "ok", topic)
		return before == absent
	case errors.Is(err, kerr.TopicAlreadyExists): // the first try of this request or of the one before
		l.topics[topic] = present
		l.ops.note("create", "exists", topic)
	default:
		l.ops.note("create", "unknown", fmt.Sprintf("%s: %v", topic, err))
	}
	return false
}

func (l *load) remove(ctx context.Context, topic string) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	l.topics[topic] = unsure
	_, err := l.admin.DeleteTopic(ctx, topic)
	switch {
	case err == nil || errors.Is(err, kerr.UnknownTopicOrPartition):
		l.topics[topic] = absent
		l.ops.note("delete", "ok", topic)
	default:
		l.ops.note("delete", "unknown", fmt.Sprintf("%s: %v", topic, err))
	}
}

// churn creates and deletes topics that nobody writes to.
func (l *load) churn(ctx context.Context, rng *rand.Rand) {
	for l.pause(time.Duration(rng.IntN(60)) * time.Millisecond) {
		topic := fmt.Sprintf("churn%d", rng.IntN(6))
		l.mu.Lock()
		if l.topics[topic] == present || rng.IntN(2) == 0 {
			l.remove(ctx, topic)
		} else {
			l.create(ctx, topic, int32(1+rng.IntN(3)))
		}
		l.mu.Unlock()
	}
}

// flood creates topics without retention, writes to each faster than anything frees space, and deletes it.
func (l *load) flood(ctx context.Context, rng *rand.Rand) {
	for life := 0; l.pause(time.Duration(rng.IntN(200)) * time.Millisecond); life++ {
		topic := fmt.Sprintf("flood%d", life%3)
		l.mu.Lock()
		fresh := l.create(ctx, topic, 1)
		ok := l.topics[topic] == present
		ln := &lane{name: fmt.Sprintf("flood-%d", life), topic: topic, promise: exactlyOnce, size: 24 << 10}
		if ok && fresh {
			short, cancel := context.WithTimeout(ctx, time.Second)
			if ends, err := l.admin.ListEndOffsets(short, topic); err == nil {
				if o, found := ends.Lookup(topic, 0); found && o.Err == nil && o.Offset != 0 {
					l.broken(fmt.Errorf("topic %s is new and ends at %d", topic, o.Offset))
				}
			}
			cancel()
			l.lanes[laneID(ln)] = ln
		}
		l.mu.Unlock()
		if ok && fresh {
			c := l.client(kgo.MaxBufferedRecords(128))
			stop := make(chan struct{})
			timer := time.AfterFunc(time.Duration(200+rng.IntN(1500))*time.Millisecond, func() { close(stop) })
			most := 48 << 20
			if l.disk.root == nil {
				most = 4 << 20
			}
			l.write(ctx, c, []*lane{ln}, 0, stop, most)
			l.pause(time.Duration(rng.IntN(300)) * time.Millisecond)
			timer.Stop()
			l.mu.Lock()
			delete(l.lanes, laneID(ln)) // from now on its records may go
			l.mu.Unlock()
			c.Close()
		}
		for ok := true; ok; ok = l.pause(20 * time.Millisecond) {
			l.mu.Lock()
			l.remove(ctx, topic)
			gone := l.topics[topic] == absent
			l.mu.Unlock()
			if gone {
				break
			}
		}
	}
}

// commit commits rising offsets of a group.
func (l *load) commit(ctx context.Context) {
	for l.pause(15 * time.Millisecond) {
		l.mu.Lock()
		l.committed.tried++
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		commits := kadm.Offsets{}
		commits.AddOffset("thin", 0, l.committed.tried, -1)
		commits.AddOffset("thick", 1, l.committed.tried, -1)
		if err := l.admin.CommitAllOffsets(short, "readers", commits); err != nil {
			l.ops.note("commit", "unknown", fmt.Sprintf("%d: %v", l.committed.tried, err))
		} else {
			l.ops.note("commit", "ok", nil)
			l.committed.acked = l.committed.tried
		}
		cancel()
		l.mu.Unlock()
	}
}

// ballast leaves little or no space on the disk at random times.
func (l *load) ballast(rng *rand.Rand) {
	for l.pause(time.Duration(300+rng.IntN(1500)) * time.Millisecond) {
		keep := int64(rng.IntN(4)) << 20
		if err := l.disk.fill(keep); err != nil {
			l.ops.note("fill", "fail", err)
		} else {
			l.ops.note("fill", "ok", fmt.Sprintf("%d MiB are left", l.disk.free()>>20))
		}
		l.pause(time.Duration(200+rng.IntN(1500)) * time.Millisecond)
		if l.disk.free() < 1<<20 {
			l.ops.note("disk", "full", nil)
		}
		l.disk.empty()
		l.ops.note("fill", "end", fmt.Sprintf("%d MiB are free", l.disk.free()>>20))
	}
}

// compare holds what was acknowledged by now against the server.
func (l *load) compare(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.compareTopics(ctx); err != nil {
		return err
	}
	if l.committed.acked > 0 {
		got, err := l.admin.FetchOffsets(ctx, "readers")
		if err != nil {
			return fmt.Errorf("fetch offsets: %w: %w", errTryAgain, err)
		}
		for _, at := range []int64{got.Offsets()["thin"][0].At, got.Offsets()["thick"][1].At} {
			if at < l.committed.acked || at > l.committed.tried {
				return fmt.Errorf("the group is at %d; %d was acknowledged, %d the last that was tried", at, l.committed.acked, l.committed.tried)
			}
		}
	}
	return l.compareRecords(ctx)
}

// errTryAgain marks what says nothing about the log.
var errTryAgain = errors.New("the server does not answer")

func (l *load) compareTopics(ctx context.Context) error {
	got, err := l.list(ctx)
	if err != nil {
		return fmt.Errorf("list topics: %w: %w", errTryAgain, err)
	}
	for name := range got {
		_, known := l.topics[name]
		if !known && (strings.HasPrefix(name, "churn") || strings.HasPrefix(name, "flood")) {
			return fmt.Errorf("topic %s was never created", name)
		}
	}
	for name, state := range l.topics {
		switch here := got[name]; {
		case state == present && !here:
			return fmt.Errorf("topic %s was created and is missing", name)
		case state == absent && here:
			return fmt.Errorf("topic %s was deleted and is there", name)
		}
	}
	return nil
}

// list asks for the topics; the client's own cache would not do.
func (l *load) list(ctx context.Context) (map[string]bool, error) {
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, l.direct)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, t := range resp.Topics {
		if t.Topic != nil && t.ErrorCode == 0 {
			out[*t.Topic] = true
		}
	}
	return out, nil
}

type topicPartition struct {
	topic     string
	partition int32
}

// A reading is what compareRecords knows of a partition.
type reading struct {
	start, end int64 // at the beginning
	next       int64
	risen      int64 // the log start is at least there now: records between were skipped
}

// A cursor is what compareRecords has seen of a lane.
type cursor struct {
	seen   bool
	next   int64
	latest [laneKeys]int64 // by key, -1: none
	acked  int64           // before the reading began
	at     int64
}

// compareRecords reads every lane from its partition's log start to its end.
func (l *load) compareRecords(ctx context.Context) error {
	parts := map[topicPartition]*reading{}
	cursors := map[string]*cursor{}
	var topics []string
	for id, ln := range l.lanes {
		c := &cursor{at: ln.at.Load(), acked: ln.acked.Load()}
		for i := range c.latest {
			c.latest[i] = -1
		}
		cursors[id] = c
		parts[topicPartition{ln.topic, ln.partition}] = &reading{}
		if !slices.Contains(topics, ln.topic) {
			topics = append(topics, ln.topic)
		}
	}
	starts, ends, err := l.bounds(ctx, topics)
	if err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{}
	left := map[topicPartition]bool{}
	for tp, r := range parts {
		s, _ := starts.Lookup(tp.topic, tp.partition)
		e, _ := ends.Lookup(tp.topic, tp.partition)
		r.start, r.end, r.next = s.Offset, e.Offset, s.Offset
		if r.end > r.start {
			if from[tp.topic] == nil {
				from[tp.topic] = map[int32]kgo.Offset{}
			}
			from[tp.topic][tp.partition] = kgo.NewOffset().At(r.start)
			left[tp] = true
		}
	}
	if len(left) > 0 {
		if err := l.read(ctx, from, left, parts, cursors); err != nil {
			return err
		}
	}
	if starts, _, err = l.bounds(ctx, topics); err != nil {
		return err
	}
	for tp, r := range parts {
		if s, _ := starts.Lookup(tp.topic, tp.partition); s.Offset < r.risen {
			return fmt.Errorf("%s/%d: no records below %d, but the log begins at %d", tp.topic, tp.partition, r.risen, s.Offset)
		}
	}
	for id, ln := range l.lanes {
		c, r := cursors[id], parts[topicPartition{ln.topic, ln.partition}]
		if c.acked == 0 || ln.promise == atMostOnce || ln.failed.Load() > 0 || c.at < max(r.start, r.risen) {
			continue // nothing was promised, or it is too old to be kept
		}
		if ln.promise != latestByKey && c.next < c.acked {
			return fmt.Errorf("%s: %d records are acknowledged, the last at offset %d, and the log [%d, %d) ends with number %d", id, c.acked, c.at, r.start, r.end, c.next-1)
		}
		for k := int64(0); ln.promise == latestByKey && k < min(laneKeys, c.acked); k++ {
			if last := c.acked - 1 - (c.acked-1-k)%laneKeys; c.latest[k] < last {
				return fmt.Errorf("%s: key k%d has record %d, and %d is acknowledged", id, k, c.latest[k], last)
			}
		}
	}
	return nil
}

func (l *load) bounds(ctx context.Context, topics []string) (starts, ends kadm.ListedOffsets, err error) {
	if starts, err = l.admin.ListStartOffsets(ctx, topics...); err == nil {
		ends, err = l.admin.ListEndOffsets(ctx, topics...)
	}
	if err = errors.Join(err, starts.Error(), ends.Error()); err != nil {
		err = fmt.Errorf("offsets: %w: %w", errTryAgain, err)
	}
	return starts, ends, err
}

func (l *load) read(ctx context.Context, from map[string]map[int32]kgo.Offset, left map[topicPartition]bool, parts map[topicPartition]*reading, cursors map[string]*cursor) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(l.v.kafka), kgo.ConsumePartitions(from), kgo.FetchMaxBytes(8<<20), kgo.FetchMaxPartitionBytes(2<<20), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer c.Close()
	for quiet := 0; len(left) > 0; {
		short, cancel := context.WithTimeout(ctx, time.Second)
		fs := c.PollFetches(short)
		cancel()
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read: %w: %w", errTryAgain, err)
		}
		if fs.NumRecords() == 0 {
			if quiet++; quiet > 30 {
				return fmt.Errorf("no records of %v come, with %d partitions to read: %w", slices.Collect(mapKeys(left)), len(left), fs.Err())
			}
			continue
		}
		quiet = 0
		var bad error
		fs.EachRecord(func(r *kgo.Record) {
			tp := topicPartition{r.Topic, r.Partition}
			if bad == nil && left[tp] {
				bad = l.judge(r, parts[tp], cursors)
			}
			if r.Offset >= parts[tp].end-1 {
				delete(left, tp)
			}
		})
		if bad != nil {
			return bad
		}
	}
	return nil
}

func mapKeys(m map[topicPartition]bool) func(yield func(topicPartition) bool) {
	return func(yield func(topicPartition) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// judge holds one record against its lane.
func (l *load) judge(r *kgo.Record, p *reading, cursors map[string]*cursor) error {
	place := fmt.Sprintf("%s/%d offset %d", r.Topic, r.Partition, r.Offset)
	name, n, err := number(r.Value)
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	id := fmt.Sprintf("%s %s/%d", name, r.Topic, r.Partition)
	ln, c := l.lanes[id], cursors[id]
	if ln == nil {
		return fmt.Errorf("%s: a record of %q, which does not write here", place, name)
	}
	if n >= ln.sent.Load() || !bytes.Equal(r.Value, ln.value(n)) || !bytes.Equal(r.Key, ln.key(n)) {
		return fmt.Errorf("%s: number %d of %s was sent as something else, or never", place, n, id)
	}
	if r.Offset != p.next && ln.promise != latestByKey {
		if r.Offset < p.next {
			return fmt.Errorf("%s comes after offset %d", place, p.next-1)
		}
		p.risen = r.Offset // retention moved on while we read
		for other, oc := range cursors {
			if x := l.lanes[other]; x.topic == r.Topic && x.partition == r.Partition {
				oc.seen = false
			}
		}
	}
	p.next = r.Offset + 1
	begun := p.start == 0 && p.risen == 0 // from the first record that was ever there
	switch {
	case ln.promise == atMostOnce || ln.failed.Load() > 0:
	case ln.promise == latestByKey:
		if c.seen && n < c.next {
			return fmt.Errorf("%s: number %d of %s comes after %d", place, n, id, c.next-1)
		}
		c.latest[n%laneKeys] = n
	case !c.seen && begun && n != 0:
		return fmt.Errorf("%s: %s begins with number %d", place, id, n)
	case c.seen && n != c.next && (ln.promise == exactlyOnce || n > c.next):
		return fmt.Errorf("%s: number %d of %s comes after %d", place, n, id, c.next-1)
	}
	c.next, c.seen = max(c.next, n+1), true
	return nil
}

// end stops the load, lets it finish and compares a last time: now everything that was sent is acknowledged.
func (l *load) end(ctx context.Context) error {
	close(l.stop)
	l.disk.empty()
	l.wg.Wait()
	if l.err != nil {
		return l.err
	}
	for id, ln := range l.lanes {
		if ln.promise <= latestByKey && (ln.failed.Load() > 0 || ln.acked.Load() != ln.sent.Load()) {
			return fmt.Errorf("%s: of %d records %d are acknowledged and %d refused", id, ln.sent.Load(), ln.acked.Load(), ln.failed.Load())
		}
		if ln.acked.Load() == 0 && ln.promise != atMostOnce {
			return fmt.Errorf("%s: nothing was ever acknowledged", id)
		}
	}
	return l.compare(ctx)
}
