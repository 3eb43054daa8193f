package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Publisher sends records to one topic and keeps account of them: idempotent, in order, each
// acknowledged when it is durable. It may be used by several goroutines.
type Publisher struct {
	k  *kgo.Client
	mu struct {
		sync.Mutex
		sent, acked, failed int64
		bytes               int64
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
}

// NewPublisher makes a publisher. Options come after ProducerOpts, so they win.
func NewPublisher(seeds, topic string, opts ...kgo.Opt) (*Publisher, error) {
	k, err := Kafka(seeds, append(append(ProducerOpts(), kgo.DefaultProduceTopic(topic)), opts...)...)
	if err != nil {
		return nil, err
	}
	p := &Publisher{k: k}
	p.mu.latency = hdrhistogram.New(1, 300_000_000, 3)
	return p, nil
}

// Publish hands one record over. It blocks while the client's buffer is full, and answers the first
// refusal of an earlier record. The record and its bytes belong to the publisher until Flush.
func (p *Publisher) Publish(ctx context.Context, r *kgo.Record) error {
	p.mu.Lock()
	if p.mu.err != nil {
		err := p.mu.err
		p.mu.Unlock()
		return &RefusedError{err}
	}
	p.mu.sent++
	p.mu.bytes += int64(len(r.Key) + len(r.Value))
	sample := p.mu.sent%sampleEvery == 1
	p.mu.Unlock()
	var began time.Time
	if sample {
		began = time.Now()
	}
	p.k.Produce(ctx, r, func(_ *kgo.Record, err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.mu.failed++
			if p.mu.err == nil {
				p.mu.err = err
			}
			return
		}
		p.mu.acked++
		if !began.IsZero() {
			_ = p.mu.latency.RecordValue(max(1, time.Since(began).Microseconds())) // out of range: not sampled
		}
	})
	return nil
}

// Flush waits until every record is acknowledged or refused. The error is a *RefusedError, or
// that of ctx.
func (p *Publisher) Flush(ctx context.Context) (PublishStats, error) {
	err := p.k.Flush(ctx)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	at := func(q float64) time.Duration {
		return time.Duration(p.mu.latency.ValueAtQuantile(q)) * time.Microsecond
	}
	return PublishStats{
		Sent: p.mu.sent, Acknowledged: p.mu.acked, Failed: p.mu.failed, Bytes: p.mu.bytes,
		P50: at(50), P99: at(99), Max: time.Duration(p.mu.latency.Max()) * time.Microsecond,
	}
}

// Reach says whether the server answers, like the function.
func (p *Publisher) Reach(ctx context.Context) error { return Reach(ctx, p.k) }

// Close ends the publisher. What was not flushed is given up.
func (p *Publisher) Close() { p.k.Close() }
