package client

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

// A scriptedBroker answers a reader's requests as a test says. It leads topic t.
type scriptedBroker struct {
	t        *testing.T
	ln       net.Listener
	wg       sync.WaitGroup
	metadata func(*kmsg.MetadataResponse)
	offsets  func(*kmsg.ListOffsetsResponse)
	fetch    func(*kmsg.FetchRequest) []byte // body of the answer; nil: the connection ends
}

// newScriptedBroker makes one of a topic whose partitions, 0 and 1, hold offsets 0 to 9 without a record.
func newScriptedBroker(t *testing.T) *scriptedBroker {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &scriptedBroker{t: t, ln: ln, metadata: func(*kmsg.MetadataResponse) {}, offsets: func(*kmsg.ListOffsetsResponse) {}}
	var conns sync.Map
	b.wg.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Store(nc, nil)
			b.wg.Go(func() { b.serve(nc) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		conns.Range(func(nc, _ any) bool { return nc.(net.Conn).Close() == nil || true })
		b.wg.Wait()
	})
	return b
}

func (b *scriptedBroker) serve(nc net.Conn) {
	defer nc.Close()
	for {
		var head [4]byte
		if _, err := io.ReadFull(nc, head[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(nc, frame); err != nil {
			return
		}
		req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(frame)))
		req.SetVersion(int16(binary.BigEndian.Uint16(frame[2:])))
		if err := req.ReadFrom(frame[10+len("headrace"):]); err != nil {
			b.t.Errorf("request: %v", err)
			return
		}
		body := b.answer(req)
		if body == nil {
			return
		}
		out := binary.BigEndian.AppendUint32(nil, uint32(4+len(body)))
		if _, err := nc.Write(append(append(out, frame[4:8]...), body...)); err != nil {
			return
		}
	}
}

func (b *scriptedBroker) answer(req kmsg.Request) []byte {
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	switch resp := resp.(type) {
	case *kmsg.MetadataResponse:
		host, port, _ := net.SplitHostPort(b.ln.Addr().String())
		n, _ := strconv.Atoi(port)
		resp.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: host, Port: int32(n)}}
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr("t")
		for p := range int32(2) {
			part := kmsg.NewMetadataResponseTopicPartition()
			part.Partition, part.Leader = p, 1
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
		b.metadata(resp)
	case *kmsg.ListOffsetsResponse:
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = "t"
		for _, q := range req.(*kmsg.ListOffsetsRequest).Topics[0].Partitions {
			part := kmsg.NewListOffsetsResponseTopicPartition()
			part.Partition, part.Offset = q.Partition, 0
			if q.Timestamp == -1 {
				part.Offset = 10
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		resp.Topics = append(resp.Topics, topic)
		b.offsets(resp)
	case *kmsg.FetchResponse:
		return b.fetch(req.(*kmsg.FetchRequest))
	}
	return resp.AppendTo(nil)
}

func TestAReaderIsNotMadeFromAnswersThatMakeNoSense(t *testing.T) {
	for _, c := range []struct {
		name     string
		metadata func(*kmsg.MetadataResponse)
		offsets  func(*kmsg.ListOffsetsResponse)
		options  ReaderOptions
		is       error // nil: a *ConnectError
	}{
		{name: "no topic", metadata: func(m *kmsg.MetadataResponse) { m.Topics = nil }},
		{name: "another topic", metadata: func(m *kmsg.MetadataResponse) { m.Topics[0].Topic = kmsg.StringPtr("u") }},
		{name: "an unknown topic", metadata: func(m *kmsg.MetadataResponse) { m.Topics[0].ErrorCode = kerr.UnknownTopicOrPartition.Code }, is: ErrUnknownTopic},
		{name: "a forbidden topic", metadata: func(m *kmsg.MetadataResponse) { m.Topics[0].ErrorCode = kerr.TopicAuthorizationFailed.Code }, is: kerr.TopicAuthorizationFailed},
		{name: "a partition that is not there", options: ReaderOptions{Partitions: []int32{0, 2}}, is: ErrUnknownTopic},
		{name: "a partition's offset left out", offsets: func(l *kmsg.ListOffsetsResponse) { l.Topics[0].Partitions = l.Topics[0].Partitions[:1] }},
		{name: "offsets of a partition of nobody", offsets: func(l *kmsg.ListOffsetsResponse) { l.Topics[0].Partitions[1].Partition = 7 }},
		{name: "offsets of another topic", offsets: func(l *kmsg.ListOffsetsResponse) { l.Topics[0].Topic = "u" }},
		{name: "a negative log end", offsets: func(l *kmsg.ListOffsetsResponse) { l.Topics[0].Partitions[1].Offset = -1 }},
		{name: "a partition without a leader's answer", offsets: func(l *kmsg.ListOffsetsResponse) {
			l.Topics[0].Partitions[1].ErrorCode = kerr.NotLeaderForPartition.Code
		}, is: kerr.NotLeaderForPartition},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newScriptedBroker(t)
			if c.metadata != nil {
				b.metadata = c.metadata
			}
			if c.offsets != nil {
				b.offsets = c.offsets
			}
			c.options.Topic, c.options.End = "t", Latest
			r, err := NewReader(t.Context(), b.ln.Addr().String(), c.options)
			if err == nil {
				r.Close()
			}
			connect := (*ConnectError)(nil)
			if c.is != nil && !errors.Is(err, c.is) || c.is == nil && !errors.As(err, &connect) {
				t.Errorf("got %v", err)
			}
		})
	}
	b := newScriptedBroker(t)
	if _, err := NewReader(t.Context(), b.ln.Addr().String(), ReaderOptions{Topic: "t", Partitions: []int32{1, 0, 1}}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a partition named twice: %v", err)
	}
}

// A time after all records is the log end.
func TestATimeAfterAllRecordsIsTheLogEnd(t *testing.T) {
	b := newScriptedBroker(t)
	b.offsets = func(l *kmsg.ListOffsetsResponse) {
		for i := range l.Topics[0].Partitions {
			if p := &l.Topics[0].Partitions[i]; p.Offset == 0 {
				p.Offset = -1
			}
		}
	}
	r, err := NewReader(t.Context(), b.ln.Addr().String(), ReaderOptions{Topic: "t", Start: AtTime(time.Now()), End: Latest})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(t.Context()); err != io.EOF { //nolint:errorlint // Next promises it as it is
		t.Error(err)
	}
}

// A damaged or lost answer is asked for again over a new connection: the records come once.
func TestAReaderGoesOnAfterAnswersThatMakeNoSense(t *testing.T) {
	b := newScriptedBroker(t)
	var mu sync.Mutex
	tries := map[int32]int{}
	b.fetch = func(req *kmsg.FetchRequest) []byte {
		var parts []kmsg.FetchResponseTopicPartition
		mu.Lock()
		defer mu.Unlock()
		try := 0
		for _, q := range req.Topics[0].Partitions {
			tries[q.Partition]++
			try = tries[q.Partition]
			p := fetchPart(q.Partition, 10, nil)
			if q.FetchOffset < 10 {
				p.RecordBatches = batchAt(q.FetchOffset, record.None, strings.Split(strings.Repeat("x", 10-int(q.FetchOffset)), "")...)
			}
			parts = append(parts, p)
		}
		switch try {
		case 1:
			return nil
		case 2:
			return fetchAnswer(append(parts, parts[0])...)
		case 3:
			return fetchAnswer(parts...)[:50]
		}
		return fetchAnswer(parts...)
	}
	r, err := NewReader(t.Context(), b.ln.Addr().String(), ReaderOptions{Topic: "t", End: Latest})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := map[int32]int64{}
	for {
		batch, err := r.Next(t.Context())
		if err == io.EOF { //nolint:errorlint // likewise
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for batch.Next() {
			if o := batch.Record().Offset; o != next[batch.Partition] {
				t.Fatalf("partition %d: offset %d, want %d", batch.Partition, o, next[batch.Partition])
			}
			next[batch.Partition]++
		}
	}
	if next[0] != 10 || next[1] != 10 {
		t.Errorf("read up to %v", next)
	}
}

// A broker that can be asked for its partitions and never answers a Fetch is given up.
func TestAReaderGivesUpABrokerThatNeverAnswers(t *testing.T) {
	for name, fetch := range map[string]func(*kmsg.FetchRequest) []byte{
		"a connection that ends":     func(*kmsg.FetchRequest) []byte { return nil },
		"answers that make no sense": func(*kmsg.FetchRequest) []byte { return []byte{0, 0, 0} },
		"a refusal of the whole":     func(*kmsg.FetchRequest) []byte { return hostile16(fetchAnswer(), 4, kerr.UnsupportedVersion.Code) },
		"records of another topic":   func(*kmsg.FetchRequest) []byte { b := fetchAnswer(); b[16] = 'x'; return b },
	} {
		t.Run(name, func(t *testing.T) {
			b := newScriptedBroker(t)
			b.fetch = fetch
			r, l := oneLane(0, 10)
			r.ctx, r.cancel = context.WithCancel(t.Context())
			l.address = b.ln.Addr().String()
			if l.run(); r.err() != nil || l.parts[0].failing.IsZero() {
				t.Fatalf("after the first failure, at %v: %v", l.parts[0].failing, r.err())
			}
			l.parts[0].failing = time.Now().Add(-2 * r.o.RetryFor)
			l.run()
			e := (*ConnectError)(nil)
			if err := r.err(); !errors.As(err, &e) || e.Err == nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// An answer ends a row of failures.
func TestAnAnswerIsASignOfLife(t *testing.T) {
	_, l := oneLane(0, 10)
	l.parts[0].failing = time.Now()
	if _, err := l.parse(&answer{}, fetchAnswer(fetchPart(0, 10, nil))); err != nil || !l.parts[0].failing.IsZero() {
		t.Error(err, l.parts[0].failing)
	}
}

// What a connection may carry as one answer.
func TestFramesOfAnswers(t *testing.T) {
	big := make([]byte, 3<<20)
	for _, c := range []struct {
		name  string
		bytes []byte
		want  int // bytes of the body; -1: an error
	}{
		{"an answer", append([]byte{0, 0, 0, 7, 0, 0, 0, 1}, 1, 2, 3), 3},
		{"an empty one", []byte{0, 0, 0, 4, 0, 0, 0, 1}, 0},
		{"a large one", append(binary.BigEndian.AppendUint32(nil, uint32(len(big)+4)), append([]byte{0, 0, 0, 1}, big...)...), len(big)},
		{"one that ends early", []byte{0, 0, 0, 9, 0, 0, 0, 1, 5}, -1},
		{"a length that ends early", []byte{0, 0}, -1},
		{"less than a correlation id", []byte{0, 0, 0, 3, 0, 0, 1}, -1},
		{"a negative length", binary.BigEndian.AppendUint32(nil, math.MaxUint32), -1},
		{"two billion bytes", append(binary.BigEndian.AppendUint32(nil, math.MaxInt32), 0, 0, 0, 1), -1},
		{"an answer to something else", []byte{0, 0, 0, 4, 0, 0, 0, 2}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, there := net.Pipe()
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = there.Write(c.bytes) // the reader may end first
				_ = there.Close()
			})
			conn := &readerConn{nc: here, correlation: 1}
			body, grown, err := conn.receive(nil, time.Minute)
			_ = here.Close()
			wg.Wait()
			if c.want < 0 {
				if err == nil || cap(grown) > 2<<20 {
					t.Errorf("error %v, %d bytes of memory", err, cap(grown))
				}
				return
			}
			if err != nil || len(body) != c.want {
				t.Errorf("%d bytes, %v, want %d", len(body), err, c.want)
			}
		})
	}
}
