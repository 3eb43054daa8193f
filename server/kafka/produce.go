package kafka

import (
	"context"
	"encoding/binary"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"

	"github.com/headrace/headrace/server/broker"
)

// maxProducePartitions bounds the partitions of one request; each is at least 6 bytes of it.
const maxProducePartitions = 100_000

// produceParse is a Produce request in place: names and records are bytes of the frame. It is reused.
type produceParse struct {
	acks          int16
	timeoutMillis int32
	transactional bool
	topics        []produceTopic
	parts         []producePart // of all topics, in request order
}

type produceTopic struct {
	name        []byte
	first, last int // [first, last) of parts
}

type producePart struct {
	partition int32
	records   []byte // nil: null
}

// parse reads the body of a request of version 3 to 12. kmsg is its oracle in tests.
func (p *produceParse) parse(body []byte, version int16) bool {
	p.topics, p.parts = p.topics[:0], p.parts[:0]
	flexible := version >= 9
	b := kbin.Reader{Src: body}
	arrayLen, skipTags := b.ArrayLen, func() {}
	if flexible {
		arrayLen, skipTags = b.CompactArrayLen, func() { skipTagged(&b) }
		p.transactional = b.UnsafeCompactNullableString() != nil
	} else {
		p.transactional = b.UnsafeNullableString() != nil
	}
	p.acks, p.timeoutMillis = b.Int16(), b.Int32()
	topics := arrayLen()
	for range topics {
		if !b.Ok() {
			return false
		}
		t := produceTopic{first: len(p.parts)}
		if flexible {
			n := int(b.Uvarint()) - 1
			if n < 0 {
				return false
			}
			t.name = b.Span(n)
		} else {
			n := int(b.Int16())
			if n < 0 {
				return false
			}
			t.name = b.Span(n)
		}
		parts := arrayLen()
		if int(parts) > maxProducePartitions-len(p.parts) {
			return false
		}
		for range parts {
			if !b.Ok() {
				return false
			}
			var q producePart
			q.partition = b.Int32()
			if flexible {
				q.records = b.CompactNullableBytes()
			} else {
				q.records = b.NullableBytes()
			}
			skipTags()
			p.parts = append(p.parts, q)
		}
		skipTags()
		t.last = len(p.parts)
		p.topics = append(p.topics, t)
	}
	skipTags()
	return b.Ok() && len(b.Src) == 0
}

// skipTagged skips tagged fields: a count, then tag, length, bytes of each.
func skipTagged(b *kbin.Reader) {
	n := b.Uvarint()
	for ; n > 0 && b.Ok(); n-- {
		b.Uvarint()
		b.Span(int(b.Uvarint()))
	}
}

// A producing is one Produce request on its way: results fill up in any order, and the one that fills
// the last place sends the response. It holds the frame until then, since its batches are copied into an
// entry of the log and nowhere before; names are copied.
type producing struct {
	frame   *frameBuffer // nil: the batches were copied
	srv     *Server
	req     request
	place   *place // nil for acks=0
	start   time.Time
	left    atomic.Int32
	topics  []producedTopic
	results []broker.Appended
	parts   []int32
}

type producedTopic struct {
	name  string
	parts int
}

// produce validates and proposes every partition's batch and returns while they are being committed.
func (c *conn) produce(ctx context.Context, log *slog.Logger, req request, start time.Time) error {
	p := &c.parsed
	m := c.srv.metrics.api(keyProduce)
	if !p.parse(req.body, req.version) {
		m.Errors.Add(1)
		return &FrameError{Key: req.key, Length: int64(len(req.body)), Reason: "the produce request is malformed"}
	}
	w := &producing{srv: c.srv, req: req, start: start}
	w.req.clientID, w.req.body = "", nil
	w.results = make([]broker.Appended, len(p.parts))
	w.parts = make([]int32, len(p.parts))
	w.topics = make([]producedTopic, len(p.topics))
	if p.acks != 0 {
		var err error
		if w.place, err = c.out.reserve(); err != nil {
			return err
		}
	}
	refuse := c.srv.refuseProduce(p)
	w.frame = c.frames.take()
	borrowed := w.frame != nil
	w.left.Store(int32(len(p.parts)) + 1)
	refused := false
	for i, t := range p.topics {
		topic, known := c.srv.broker.TopicBytes(t.name)
		if known {
			w.topics[i] = producedTopic{topic.Name, t.last - t.first}
		} else {
			w.topics[i] = producedTopic{string(t.name), t.last - t.first}
		}
		for k := t.first; k < t.last; k++ {
			part := &p.parts[k]
			w.parts[k] = part.partition
			res := &w.results[k]
			switch {
			case refuse != nil:
				res.Err = refuse
			case !known:
				res.Err = broker.Errorf(broker.UnknownTopic, "topic %q does not exist", printable(string(t.name)))
			default:
				if err := c.srv.broker.Append(ctx, topic, part.partition, part.records, borrowed, func(a broker.Appended) {
					*res = a
					w.finished()
				}); err == nil {
					continue
				} else {
					res.Err = err
				}
			}
			refused = true
			w.left.Add(-1)
		}
	}
	acks := p.acks
	w.finished()
	if acks == 0 && refused {
		// Nothing can be answered; closing makes the client look again, as a Kafka broker does.
		log.Warn("kafka.produce_refused", "acks", 0, "err", w.firstError(), "client", c.describe())
		return errRefused
	}
	return nil
}

// refuseProduce judges what concerns the whole request.
func (s *Server) refuseProduce(p *produceParse) *broker.Error {
	switch {
	case p.transactional:
		return broker.Errorf(broker.NoTransactions, "transactions are not supported")
	case p.acks < -1 || p.acks > 1:
		return broker.Errorf(broker.BadRequest, "acks=%d is none of -1, 0, 1", p.acks)
	}
	return nil
}

// firstError is for acks=0, whose refusals are set before produce returns.
func (w *producing) firstError() error {
	for i := range w.results {
		if w.results[i].Err != nil {
			return w.results[i].Err
		}
	}
	return nil
}

// finished counts one result. The last one sends; it may run in the shard's apply goroutine, so it
// only encodes and hands over.
func (w *producing) finished() {
	if w.left.Add(-1) != 0 {
		return
	}
	w.frame.release()
	w.srv.metrics.produced(w.results, time.Since(w.start))
	if w.place == nil {
		return
	}
	w.place.complete(w.encode())
}

// encode makes the response frame.
func (w *producing) encode() []byte {
	v := w.req.version
	flexible := v >= 9
	size := 64
	for _, t := range w.topics {
		size += len(t.name) + 8 + t.parts*36
	}
	buf := appendHeader(make([]byte, 0, size), w.req)
	buf = appendArrayLen(buf, len(w.topics), flexible)
	k := 0
	for _, t := range w.topics {
		buf = appendString(buf, t.name, flexible)
		buf = appendArrayLen(buf, t.parts, flexible)
		for range t.parts {
			res := &w.results[k]
			base, start := res.Offset, res.LogStart
			if res.Err != nil {
				base, start = -1, -1
			}
			buf = kbin.AppendInt32(buf, w.parts[k])
			buf = kbin.AppendInt16(buf, errorCode(res.Err))
			buf = kbin.AppendInt64(buf, base)
			buf = kbin.AppendInt64(buf, res.AppendTimeMillis)
			if v >= 5 {
				buf = kbin.AppendInt64(buf, start)
			}
			if v >= 8 {
				buf = appendArrayLen(buf, 0, flexible) // no per-record errors
				buf = appendNullableString(buf, errorMessage(res.Err), flexible)
			}
			if flexible {
				buf = append(buf, 0)
			}
			k++
		}
		if flexible {
			buf = append(buf, 0)
		}
	}
	buf = kbin.AppendInt32(buf, 0) // throttle
	if flexible {
		buf = append(buf, 0)
	}
	binary.BigEndian.PutUint32(buf, uint32(len(buf)-4))
	return buf
}

func appendArrayLen(dst []byte, n int, flexible bool) []byte {
	if flexible {
		return kbin.AppendCompactArrayLen(dst, n)
	}
	return kbin.AppendArrayLen(dst, n)
}

func appendString(dst []byte, s string, flexible bool) []byte {
	if flexible {
		return kbin.AppendCompactString(dst, s)
	}
	return kbin.AppendString(dst, s)
}

func appendNullableString(dst []byte, s *string, flexible bool) []byte {
	if flexible {
		return kbin.AppendCompactNullableString(dst, s)
	}
	return kbin.AppendNullableString(dst, s)
}
