package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Publisher sends records to one topic with a Producer and keeps account of them: idempotent, in order, each
// acknowledged when it is durable. It may be used by several goroutines.
type Publisher struct {
	p         *Producer
	topic     string
	partition int32
	mu        struct {
		sync.Mutex
		w                   *Writer // nil: made by the first Publish
		sent, acked, failed int64
		bytes               int64
		acknowledged        time.Time               // the last one
		err                 error                   // first refusal
		latency             *hdrhistogram.Histogram // µs, of one record in sampleEvery
	}
}

const sampleEvery = 64

// ErrPartly says that some records were refused; PublishStats has the numbers.
var ErrPartly = errors.New("client: not all records were acknowledged")

// A RefusedError is ErrPartly with the first refusal.
type RefusedError struct{ First error }

func (e *RefusedError) Error() string        { return ErrPartly.Error() + ": " + e.First.Error() }
func (e *RefusedError) Unwrap() error        { return e.First }
func (e *RefusedError) Is(target error) bool { return target == ErrPartly }

// PublishStats account for the records of a Publisher.
type PublishStats struct {
	Sent, Acknowledged, Failed int64
	Bytes                      int64         // keys and values sent
	P50, P99, Max              time.Duration // publish latency of a sample; zero without one
	// LastAcknowledged is when that was; zero for never.
	LastAcknowledged time.Time
	// Trouble is why a record that is still to be acknowledged was not taken at its last attempt, or nil.
	Trouble error
}

// AnyPartition has a Publisher choose partitions by key.
const AnyPartition = -1

// NewPublisher makes a publisher to a partition of a topic, or AnyPartition. It connects when it is first used.
func NewPublisher(seeds, topic string, partition int32, o ProducerOptions) (*Publisher, error) {
	producer, err := NewProducer(seeds, o)
	if err != nil {
		return nil, err
	}
	p := &Publisher{p: producer, topic: topic, partition: partition}
	p.mu.latency = hdrhistogram.New(1, 300_000_000, 3)
	return p, nil
}

// writer makes the writer when it is first needed.
func (p *Publisher) writer(ctx context.Context) (*Writer, error) {
	p.mu.Lock()
	w := p.mu.w
	p.mu.Unlock()
	if w != nil {
		return w, nil
	}
	w, err := p.p.Writer(ctx, p.topic)
	if err == nil && p.partition != AnyPartition {
		w, err = w.Partition(p.partition)
	}
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.w = w
	return w, nil
}

// Publish hands one record over; its bytes are copied. It blocks while the producer's buffer is full.
//
// Errors: a *RefusedError with the first refusal of an earlier record, or what Producer.Writer and Writer.Produce say, in
// which case this record was not accepted and is not counted.
func (p *Publisher) Publish(ctx context.Context, m Message) error {
	w, err := p.writer(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if err := p.mu.err; err != nil {
		p.mu.Unlock()
		return &RefusedError{err}
	}
	p.mu.sent++
	p.mu.bytes += int64(len(m.Key) + len(m.Value))
	sample := p.mu.sent%sampleEvery == 1
	p.mu.Unlock()
	m.Tag = 0
	var began time.Time
	if sample {
		began = time.Now()
	}
	err = w.Produce(ctx, m, func(a Ack) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if a.Err != nil {
			p.mu.failed++
			if p.mu.err == nil {
				p.mu.err = a.Err
			}
			return
		}
		p.mu.acked++
		p.mu.acknowledged = time.Now()
		if sample {
			_ = p.mu.latency.RecordValue(max(1, time.Since(began).Microseconds())) // out of range: not sampled
		}
	})
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.sent--
		p.mu.bytes -= int64(len(m.Key) + len(m.Value))
	}
	return err
}

// Flush waits until every record is acknowledged or refused. The error is a *RefusedError, or
// that of ctx.
func (p *Publisher) Flush(ctx context.Context) (PublishStats, error) {
	err := p.p.Flush(ctx)
	s := p.Stats()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.mu.err != nil {
		err = &RefusedError{p.mu.err}
	}
	return s, err
}

// Stats are the numbers so far.
func (p *Publisher) Stats() PublishStats {
	trouble := p.p.Stats().Trouble
	p.mu.Lock()
	defer p.mu.Unlock()
	at := func(q float64) time.Duration {
		return time.Duration(p.mu.latency.ValueAtQuantile(q)) * time.Microsecond
	}
	return PublishStats{
		Sent: p.mu.sent, Acknowledged: p.mu.acked, Failed: p.mu.failed, Bytes: p.mu.bytes,
		P50: at(50), P99: at(99), Max: time.Duration(p.mu.latency.Max()) * time.Microsecond,
		LastAcknowledged: p.mu.acknowledged, Trouble: trouble,
	}
}

// Reach says whether the server answers, like the function.
func (p *Publisher) Reach(ctx context.Context) error { return p.p.Reach(ctx) }

// Close ends the publisher. What was not flushed is given up.
func (p *Publisher) Close() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.p.Close(ended) // that of the context
}
