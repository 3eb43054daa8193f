package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server/broker"
)

// copyBelow is the batch size under which a batch is copied into the response instead of referred to:
// a vector entry costs the kernel more than copying this much.
const copyBelow = 4 << 10

// maxFetchWait bounds a long poll whatever the client asks for, so that a connection whose client has
// gone is noticed.
const maxFetchWait = 30 * time.Second

// fetch answers a Fetch request. It waits until min_bytes are there, max_wait has passed, an answer
// cannot get better by waiting, or the server stops.
func (c *conn) fetch(ctx context.Context, log *slog.Logger, req request, start time.Time) error {
	kreq := &kmsg.FetchRequest{Version: req.version}
	m := c.srv.metrics.api(keyFetch)
	if err := kreq.ReadFrom(req.body); err != nil {
		m.Errors.Add(1)
		return &FrameError{Key: req.key, Length: int64(len(req.body)), Reason: fmt.Sprintf("version %d: %v", req.version, err)}
	}
	c.frames.done()
	place, err := c.out.reserve()
	if err != nil {
		return err
	}
	f := fetching{srv: c.srv, session: &c.fetches, req: req, kreq: kreq}
	if code := sessionCode(kreq); code != 0 {
		place.send(nil, f.refuse(code))
		return nil
	}
	fr := f.plan()
	wait := time.Duration(max(kreq.MaxWaitMillis, 0)) * time.Millisecond
	fr.Deadline = start.Add(min(wait, maxFetchWait))
	c.srv.broker.Fetch(ctx, fr)
	bufs, bytes := f.assemble(fr)
	c.fetches.Done(fr)
	c.srv.metrics.BytesOut.Add(uint64(bytes))
	m.Seconds.observe(time.Since(start)) // first: who has the answer finds it counted
	place.send(fr.Release, bufs...)
	return nil
}

// sessionCode judges the fetch session that a request names. There are no sessions here: the answer
// carries session id 0, and who comes with an id of an older life is sent back to a full fetch.
func sessionCode(r *kmsg.FetchRequest) int16 {
	switch {
	case r.Version < 7 || r.SessionEpoch == -1:
		return 0
	case r.SessionID != 0:
		return kerr.FetchSessionIDNotFound.Code
	case r.SessionEpoch != 0:
		return kerr.InvalidFetchSessionEpoch.Code
	}
	return 0
}

// fetching is one Fetch request and its answer.
type fetching struct {
	srv     *Server
	session *broker.FetchSession
	req     request
	kreq    *kmsg.FetchRequest
}

// refuse is a response that is only an error.
func (f *fetching) refuse(code int16) []byte {
	resp := f.kreq.ResponseKind().(*kmsg.FetchResponse)
	resp.SetVersion(f.req.version)
	resp.ErrorCode = code
	return encode(f.req, resp)
}

// plan lists the partitions in request order.
func (f *fetching) plan() *broker.FetchRequest {
	fr := f.session.Begin(int(max(f.kreq.MinBytes, 0)), int(max(f.kreq.MaxBytes, 1)))
	for i := range f.kreq.Topics {
		t := &f.kreq.Topics[i]
		topic, known := f.srv.broker.Topic(t.Topic)
		for j := range t.Partitions {
			p := &t.Partitions[j]
			part := broker.FetchPart{
				Topic: topic, Partition: p.Partition, Offset: p.FetchOffset, Epoch: -1,
				MaxBytes: int(max(p.PartitionMaxBytes, 1)),
			}
			if f.req.version >= 9 {
				part.Epoch = p.CurrentLeaderEpoch
			}
			if !known {
				part.Err = broker.Errorf(broker.UnknownTopic, "topic %q does not exist", printable(t.Topic))
			}
			fr.Add(part)
		}
	}
	return fr
}

// assemble makes the response: pieces of one growing buffer, and between them the log's own bytes.
// kmsg's encoder is the oracle of this in tests.
func (f *fetching) assemble(fr *broker.FetchRequest) (bufs [][]byte, recordBytes int) {
	v, flexible := f.req.version, f.req.version >= 12
	size, cuts := 64, 0
	for i := range fr.Parts {
		size += 64
		for batches := fr.Parts[i].Batches; len(batches) > 0; {
			data, rest := batches[0].Data, batches[1:]
			if batches[0].Stored {
				data, rest = nextRun(batches)
			}
			if len(data) < copyBelow {
				size += len(data)
			} else {
				size += record.HeaderSize
				cuts++
			}
			batches = rest
		}
	}
	for i := range f.kreq.Topics {
		size += len(f.kreq.Topics[i].Topic) + 16
	}
	w := splicer{buf: make([]byte, 0, size), cuts: make([]splice, 0, cuts)}
	w.buf = appendHeader(w.buf, f.req)
	w.buf = kbin.AppendInt32(w.buf, 0) // throttle
	if v >= 7 {
		w.buf = kbin.AppendInt16(w.buf, 0)
		w.buf = kbin.AppendInt32(w.buf, 0) // no session
	}
	w.buf = appendArrayLen(w.buf, len(f.kreq.Topics), flexible)
	k := 0
	for i := range f.kreq.Topics {
		t := &f.kreq.Topics[i]
		w.buf = appendString(w.buf, t.Topic, flexible)
		w.buf = appendArrayLen(w.buf, len(t.Partitions), flexible)
		for range t.Partitions {
			recordBytes += f.assemblePart(&w, &fr.Parts[k])
			k++
		}
		if flexible {
			w.buf = append(w.buf, 0)
		}
	}
	if flexible {
		w.buf = append(w.buf, 0)
	}
	return w.finish(), recordBytes
}

func (f *fetching) assemblePart(w *splicer, p *broker.FetchPart) int {
	v, flexible := f.req.version, f.req.version >= 12
	code, end, start := errorCode(p.Err), p.LogEnd, p.LogStart
	batches, n := p.Batches, 0
	for i := range batches {
		n += len(batches[i].Data)
		if h, err := record.ParseHeader(batches[i].Data); v < 10 && code == 0 && err == nil && h.Codec() == record.Zstd {
			code = kerr.UnsupportedCompressionType.Code
		}
	}
	if code != 0 {
		batches, n = nil, 0
		if code != kerr.OffsetOutOfRange.Code {
			end, start = -1, -1
		}
	}
	w.buf = kbin.AppendInt32(w.buf, p.Partition)
	w.buf = kbin.AppendInt16(w.buf, code)
	w.buf = kbin.AppendInt64(w.buf, end) // high watermark
	w.buf = kbin.AppendInt64(w.buf, end) // last stable offset: no transactions
	if v >= 5 {
		w.buf = kbin.AppendInt64(w.buf, start)
	}
	w.buf = appendArrayLen(w.buf, 0, flexible) // aborted transactions
	if v >= 11 {
		w.buf = kbin.AppendInt32(w.buf, -1) // preferred read replica
	}
	if flexible {
		w.buf = kbin.AppendUvarint(w.buf, uint32(n)+1)
	} else {
		w.buf = kbin.AppendInt32(w.buf, int32(n))
	}
	for len(batches) > 0 {
		if batches[0].Stored {
			var run []byte
			run, batches = nextRun(batches)
			w.data(run)
			continue
		}
		h := batches[0].Header()
		w.buf = append(w.buf, h[:]...)
		w.data(batches[0].Data[record.HeaderSize:])
		batches = batches[1:]
	}
	if flexible {
		w.buf = append(w.buf, 0)
	}
	return n
}

// A splicer builds a response of own bytes and foreign ones. The buffer must not move once a piece of
// it has been cut, so a piece is cut by length and sliced out at the end.
type splicer struct {
	buf  []byte
	cuts []splice
}

type splice struct {
	at   int // bytes of buf before data
	data []byte
}

func (w *splicer) data(b []byte) {
	if len(b) < copyBelow {
		w.buf = append(w.buf, b...)
		return
	}
	w.cuts = append(w.cuts, splice{len(w.buf), b})
}

// nextRun takes the stored batches off that lie side by side in memory, as those do that came from one read of a
// file: a thousand small batches are sent like one large one, uncopied. batches begins with a stored one.
func nextRun(batches []log.Batch) (run []byte, rest []log.Batch) {
	run, rest = batches[0].Data, batches[1:]
	for len(rest) > 0 && rest[0].Stored && follows(run, rest[0].Data) {
		run, rest = run[:len(run)+len(rest[0].Data)], rest[1:]
	}
	return run, rest
}

// follows reports that b lies in memory directly behind a, and that a may be grown over it.
func follows(a, b []byte) bool {
	return cap(a)-len(a) >= len(b) && len(b) > 0 && &a[:len(a)+1][len(a)] == &b[0]
}

// finish patches the frame's length and returns the pieces in order.
func (w *splicer) finish() [][]byte {
	total := len(w.buf)
	for _, s := range w.cuts {
		total += len(s.data)
	}
	binary.BigEndian.PutUint32(w.buf, uint32(total-4))
	out := make([][]byte, 0, 2*len(w.cuts)+1)
	from := 0
	for _, s := range w.cuts {
		out = append(out, w.buf[from:s.at], s.data)
		from = s.at
	}
	return append(out, w.buf[from:])
}
