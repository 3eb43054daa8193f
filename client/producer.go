package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ProducerOptions of NewProducer. The zero value works.
type ProducerOptions struct {
	// BatchBytes bounds a record batch, and so a record; at most 7 MiB. 0: 1,000,000, which the default
	// max.message.bytes of a topic admits. A topic that admits less gets smaller ones by itself.
	BatchBytes int
	// MaxBufferedBytes bounds what waits to be acknowledged, as bytes of batch buffers; Produce blocks while they
	// are used up. Callbacks and the batches kept for reuse come on top: at most as much again. At least four times
	// BatchBytes. 0: 32 MiB.
	MaxBufferedBytes int64
	// DeliveryTimeout is how long a record may take until it is acknowledged, attempts and pauses included, before
	// it is given up. 0: 2 minutes.
	DeliveryTimeout time.Duration
	// RequestTimeout is how long the server may take for an answer before the connection counts as lost. The server
	// holds a request back for up to 30 seconds while its disk is behind. 0: 45 seconds.
	RequestTimeout time.Duration
	// Logger gets lost connections and what is given up. Nil: none.
	Logger *slog.Logger
}

func (o ProducerOptions) withDefaults() ProducerOptions {
	o.BatchBytes = cmp.Or(o.BatchBytes, 1_000_000)
	o.BatchBytes = min(max(o.BatchBytes, 1024), 7<<20)
	o.MaxBufferedBytes = max(cmp.Or(o.MaxBufferedBytes, 32<<20), 4*int64(o.BatchBytes))
	o.DeliveryTimeout = cmp.Or(o.DeliveryTimeout, 2*time.Minute)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 45*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Producer sends records over the Kafka protocol, with as little work for each as there can be: Produce copies the
// record into a batch, and one pass over the batch calls back when the server has it durable. It is idempotent:
// whatever happens to connections and servers, a record is in the log once, and the records of a partition are there in
// the order of the calls.
//
// There is no linger. A record leaves at once when nothing is under way to its broker; while a request is, records
// gather in batches of up to ProducerOptions.BatchBytes, of which up to five may be under way. So latency is lowest
// at low load, and batches are largest at high load, without a timer. There is one connection to each broker.
//
// Its methods may be called from any goroutine.
type Producer struct {
	o     ProducerOptions
	admin *kgo.Client // asks for metadata and identities

	buffered atomic.Int64  // bytes of buffers in use
	ticks    atomic.Uint32 // of the keeper, for batchClock
	parked   atomic.Bool   // the keeper sleeps
	closed   atomic.Bool
	ctx      context.Context
	cancel   context.CancelFunc
	once     sync.Once // of Close
	ended    chan struct{}
	wg       sync.WaitGroup
	kick     chan struct{} // for the keeper

	// mu is the delivery lock: everything about batches that have left partition.open, once for each batch and never
	// for each record. It comes before partition.mu.
	mu struct {
		sync.Mutex
		topics     map[string]*topicState
		links      map[int32]*link // by broker
		ident      identity        // for new partitions
		troubled   []*partition    // waiting for a pause to end, an identity or a leader
		wantMeta   bool
		finished   []*batch // to be called back, in order
		spare      []*batch
		delivering bool
		current    *batch // being called back
		room       chan struct{}
		roomWanted bool
		free       [len(sizeClasses) + 1][]*batch
		stats      ProducerStats // but for Buffered and Trouble
	}
}

// ProducerStats count since the Producer was made.
type ProducerStats struct {
	Acknowledged, Failed int64 // records
	Batches, Requests    int64 // sent, each attempt
	Bytes                int64 // of acknowledged batches
	Buffered             int64 // bytes of buffers of records that have not ended
	Err                  error // the first failure of a record, or nil
	// Trouble is why a batch that is still to be acknowledged was not taken at its last attempt, or nil. It is sent
	// again, for as long as ProducerOptions.DeliveryTimeout allows.
	Trouble error
}

// An identity is what the server knows a producer by.
type identity struct {
	id    int64
	epoch int16
	ok    bool
}

// A topicState is what is shared by the Writers of one topic.
type topicState struct {
	p      *Producer
	name   string
	parts  []*partition
	limit  atomic.Int64 // of a batch, bytes
	sticky atomic.Uint32
}

// NewProducer makes a producer for a server: seeds are "host:port", several with commas. It connects when the first
// Writer is made.
func NewProducer(seeds string, o ProducerOptions) (*Producer, error) {
	admin, err := Kafka(seeds)
	if err != nil {
		return nil, err
	}
	p := &Producer{o: o.withDefaults(), admin: admin, kick: make(chan struct{}, 1), ended: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.mu.topics, p.mu.links, p.mu.room = map[string]*topicState{}, map[int32]*link{}, make(chan struct{})
	p.wg.Go(p.keep)
	return p, nil
}

// Reach says whether the server answers, like the function.
func (p *Producer) Reach(ctx context.Context) error { return Reach(ctx, p.admin) }

// Stats are the numbers so far. A record counts before its callback is called, so whoever has heard of its end, by the
// callback, ProduceSync or Flush, finds it in all of them.
func (p *Producer) Stats() ProducerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.stats
	s.Buffered, s.Trouble = p.buffered.Load(), p.waiting()
	return s
}

// waiting is ProducerStats.Trouble. The delivery lock is held.
func (p *Producer) waiting() error {
	for _, t := range p.mu.topics {
		for _, pt := range t.parts {
			for _, of := range [][]*batch{pt.flying, pt.queue} {
				for _, b := range of {
					if b.failure != nil {
						return b.failure
					}
				}
			}
		}
	}
	return nil
}

// Flush waits until every record that was accepted before is acknowledged or given up and its callback has returned.
// Records are on their way without it.
//
// Errors: that of ctx.
func (p *Producer) Flush(ctx context.Context) error {
	f := &flush{done: make(chan struct{})}
	f.left.Store(1)
	p.mu.Lock()
	for _, t := range p.mu.topics {
		for _, pt := range t.parts {
			pt.mu.Lock()
			f.wait(pt.mu.open)
			f.wait(pt.mu.full...)
			pt.mu.Unlock()
			f.wait(pt.queue...)
			f.wait(pt.flying...)
		}
	}
	f.wait(p.mu.finished...)
	f.wait(p.mu.current)
	p.mu.Unlock()
	f.finished()
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A flush waits for batches.
type flush struct {
	left atomic.Int64
	done chan struct{}
}

func (f *flush) wait(batches ...*batch) {
	for _, b := range batches {
		if b != nil {
			f.left.Add(1)
			b.flushes = append(b.flushes, f)
		}
	}
}

func (f *flush) finished() {
	if f.left.Add(-1) == 0 {
		close(f.done)
	}
}

// Close ends the producer. It refuses new records, wakes those who wait for room, and waits until ctx ends for what was
// accepted. What is left then is given up with ErrProducerClosed, as unknown if it was under way. Every callback has
// returned when Close does, and no goroutine is left. It must not be called from a callback.
//
// Errors: that of ctx if records were given up.
func (p *Producer) Close(ctx context.Context) error {
	first := false
	p.once.Do(func() { first = true })
	if !first {
		<-p.ended
		return nil
	}
	p.closed.Store(true)
	p.mu.Lock()
	p.wakeRoom()
	p.mu.Unlock()
	err := p.Flush(ctx)
	p.cancel()
	p.mu.Lock()
	for _, l := range p.mu.links {
		l.close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	p.mu.Lock()
	for _, t := range p.mu.topics {
		for _, pt := range t.parts {
			pt.abandon(ErrProducerClosed)
		}
	}
	p.mu.Unlock()
	p.deliver()
	p.admin.Close()
	close(p.ended)
	return err
}

// Writer makes a writer to a topic, which must exist. It asks the server for the topic's partitions, once for each topic.
//
// Errors: a *ConnectError, Kafka's error of the topic (package kerr), that of ctx, ErrProducerClosed.
func (p *Producer) Writer(ctx context.Context, topic string) (*Writer, error) {
	if p.closed.Load() {
		return nil, ErrProducerClosed
	}
	p.mu.Lock()
	t := p.mu.topics[topic]
	p.mu.Unlock()
	if t == nil {
		var err error
		if t, err = p.openTopic(ctx, topic); err != nil {
			return nil, fmt.Errorf("client: topic %s: %w", topic, err)
		}
	}
	return &Writer{t: t, fixed: -1}, nil
}

// reserve takes n bytes of the buffer, if they are there.
func (p *Producer) reserve(n int64) bool {
	if p.buffered.Add(n) <= p.o.MaxBufferedBytes {
		return true
	}
	p.buffered.Add(-n)
	return false
}

// waitRoom returns when there may be room in the buffer.
func (p *Producer) waitRoom(ctx context.Context) error {
	p.mu.Lock()
	if p.closed.Load() {
		p.mu.Unlock()
		return ErrProducerClosed
	}
	if p.buffered.Load() <= p.o.MaxBufferedBytes/4*3 {
		p.mu.Unlock()
		return nil
	}
	room := p.mu.room
	p.mu.roomWanted = true
	p.mu.Unlock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wakeRoom wakes who waits for room. The delivery lock is held.
func (p *Producer) wakeRoom() {
	if p.mu.roomWanted {
		close(p.mu.room)
		p.mu.room = make(chan struct{})
		p.mu.roomWanted = false
	}
}

// sizeClasses are the capacities of batch buffers below that of a full batch: a batch that stays small costs little,
// and one that grows is copied twice.
var sizeClasses = [...]int{4 << 10, 64 << 10}

func (p *Producer) classBytes(class int) int {
	if class < len(sizeClasses) {
		return min(sizeClasses[class], p.o.BatchBytes)
	}
	return p.o.BatchBytes
}

// classFor is the smallest class that holds n bytes.
func (p *Producer) classFor(n int) int {
	for c := range sizeClasses {
		if n <= p.classBytes(c) {
			return c
		}
	}
	return len(sizeClasses)
}

// maxFree bounds the unused buffers of a class.
const maxFree = 8

// newBatch returns an empty batch whose buffer has been reserved. The delivery lock is not held.
func (p *Producer) newBatch(pt *partition, class int) *batch {
	var b *batch
	p.mu.Lock()
	if n := len(p.mu.free[class]); n > 0 {
		b = p.mu.free[class][n-1]
		p.mu.free[class] = p.mu.free[class][:n-1]
	}
	p.mu.Unlock()
	if b == nil {
		b = &batch{class: class, buf: make([]byte, batchHeaderBytes, p.classBytes(class))}
	}
	b.reset(pt, time.Now())
	return b
}

// unreserve gives up a batch's part of the buffer. The delivery lock is held.
func (p *Producer) unreserve(b *batch) {
	p.buffered.Add(-int64(cap(b.buf)))
	if p.mu.roomWanted && p.buffered.Load() <= p.o.MaxBufferedBytes/4*3 {
		p.wakeRoom()
	}
}

// recycle keeps a batch whose part of the buffer was given up for reuse. The delivery lock is held.
func (p *Producer) recycle(b *batch) {
	if len(p.mu.free[b.class]) < maxFree && cap(b.buf) == p.classBytes(b.class) {
		clear(b.done)
		b.done = b.done[:0]
		b.part = nil
		p.mu.free[b.class] = append(p.mu.free[b.class], b)
	}
}

// deliver calls back for what is finished. One goroutine at a time does it, so callbacks never run beside each other
// and come in the order of each partition; the others leave their batches to it.
func (p *Producer) deliver() {
	p.mu.Lock()
	if p.mu.delivering {
		p.mu.Unlock()
		return
	}
	p.mu.delivering = true
	for len(p.mu.finished) > 0 {
		b := p.mu.finished[0]
		p.mu.finished[0] = nil
		p.mu.finished = p.mu.finished[1:]
		p.mu.current = b
		p.count(b)
		p.mu.Unlock()
		b.finish()
		if b.err != nil {
			p.o.Logger.Warn("records given up", "topic", b.part.t.name, "partition", b.part.index, "records", b.count(), "err", b.err)
		}
		p.mu.Lock()
		p.mu.current = nil
		for _, f := range b.flushes {
			f.finished()
		}
		p.recycle(b)
	}
	p.mu.finished = nil
	p.mu.delivering = false
	p.mu.Unlock()
}

// count takes the end of a batch into the numbers, before any of its callbacks: whoever has heard of a record finds it
// in Stats. The batch gives up its part of the buffer. The delivery lock is held.
func (p *Producer) count(b *batch) {
	s, n := &p.mu.stats, int64(b.count())
	if b.err == nil {
		s.Acknowledged += n
		s.Bytes += int64(len(b.buf))
	} else {
		s.Failed += n
		s.Err = cmp.Or(s.Err, b.err)
	}
	p.unreserve(b)
}
