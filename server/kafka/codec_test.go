package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"reflect"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server/broker"
)

// testBatch is a record batch of n records of about size bytes each.
func testBatch(n, size int) []byte {
	b := record.NewBuilder()
	for i := range n {
		b.Append(int64(1_700_000_000_000+i), fmt.Appendf(nil, "key-%d", i), bytes.Repeat([]byte{'v'}, size), nil)
	}
	return b.Finish()
}

// header is a request header as a client writes it.
func requestFrame(req kmsg.Request, correlation int32) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, correlation)[4:]
}

func produceRequest(version int16) *kmsg.ProduceRequest {
	r := kmsg.NewPtrProduceRequest()
	r.Version, r.Acks = version, -1
	for _, name := range []string{"a", "a-longer-topic-name", "b"} {
		t := kmsg.NewProduceRequestTopic()
		t.Topic = name
		for p := range int32(3) {
			q := kmsg.NewProduceRequestTopicPartition()
			q.Partition, q.Records = p, testBatch(int(p)+1, 10)
			if p == 2 {
				q.Records = nil
			}
			t.Partitions = append(t.Partitions, q)
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

// agree compares the hand-written parser with kmsg's.
func agree(t *testing.T, p *produceParse, r *kmsg.ProduceRequest) {
	t.Helper()
	if p.acks != r.Acks || p.timeoutMillis != r.TimeoutMillis || p.transactional != (r.TransactionID != nil) {
		t.Fatalf("acks %d timeout %d transactional %v, kmsg has %+v", p.acks, p.timeoutMillis, p.transactional, r)
	}
	if len(p.topics) != len(r.Topics) {
		t.Fatalf("%d topics, kmsg has %d", len(p.topics), len(r.Topics))
	}
	for i, topic := range p.topics {
		want := r.Topics[i]
		if string(topic.name) != want.Topic || topic.last-topic.first != len(want.Partitions) {
			t.Fatalf("topic %d is %q with %d partitions, kmsg has %q with %d", i, topic.name, topic.last-topic.first, want.Topic, len(want.Partitions))
		}
		for k, part := range p.parts[topic.first:topic.last] {
			w := want.Partitions[k]
			if part.partition != w.Partition || !bytes.Equal(part.records, w.Records) || (part.records == nil) != (w.Records == nil) {
				t.Fatalf("topic %q part %d differs from kmsg's", topic.name, k)
			}
		}
	}
}

func TestProduceParserAgreesWithKmsg(t *testing.T) {
	for version := int16(3); version <= 12; version++ {
		r := produceRequest(version)
		body := r.AppendTo(nil)
		var p produceParse
		if !p.parse(body, version) {
			t.Fatalf("version %d: refused", version)
		}
		agree(t, &p, r)
		for cut := range body {
			if p.parse(body[:cut], version) {
				t.Fatalf("version %d: accepted after %d of %d bytes", version, cut, len(body))
			}
		}
	}
}

func FuzzProduceParse(f *testing.F) {
	for version := int16(3); version <= 11; version++ {
		f.Add(produceRequest(version).AppendTo(nil), version)
	}
	f.Fuzz(func(t *testing.T, body []byte, version int16) {
		version = 3 + (version&0x7fff)%9
		var p produceParse
		ok := p.parse(body, version)
		r := kmsg.NewPtrProduceRequest()
		r.Version = version
		if err := r.ReadFrom(body); ok && err == nil {
			agree(t, &p, r)
		}
	})
}

// FuzzRequest feeds every API of every version with arbitrary bodies: no panic.
func FuzzRequest(f *testing.F) {
	for _, a := range apis {
		if a == nil {
			continue
		}
		for v := a.accept; v <= a.max; v++ {
			req := kmsg.RequestForKey(a.key)
			req.SetVersion(v)
			f.Add(requestFrame(req, 1))
		}
	}
	f.Add(requestFrame(produceRequest(9), 1))
	f.Fuzz(func(t *testing.T, frame []byte) {
		req, err := parseHeader(frame)
		if err != nil {
			return
		}
		a := apiFor(req.key)
		if a == nil || req.version < a.accept || req.version > a.max {
			return
		}
		if a.key == keyProduce {
			var p produceParse
			p.parse(req.body, req.version)
			return
		}
		kreq := kmsg.RequestForKey(req.key)
		kreq.SetVersion(req.version)
		if kreq.ReadFrom(req.body) != nil {
			return
		}
		body := kreq.AppendTo(nil)
		again := kmsg.RequestForKey(req.key)
		again.SetVersion(req.version)
		if err := again.ReadFrom(body); err != nil {
			t.Fatalf("key %d version %d: what was read does not read again: %v", req.key, req.version, err)
		}
	})
}

func TestRequestHeaders(t *testing.T) {
	for _, a := range apis {
		if a == nil {
			continue
		}
		for v := a.accept; v <= a.max; v++ {
			req := kmsg.RequestForKey(a.key)
			req.SetVersion(v)
			got, err := parseHeader(requestFrame(req, 77))
			if err != nil {
				t.Fatalf("key %d version %d: %v", a.key, v, err)
			}
			if got.key != a.key || got.version != v || got.correlation != 77 || got.clientID != "test" || !bytes.Equal(got.body, req.AppendTo(nil)) {
				t.Errorf("key %d version %d: header %+v", a.key, v, got)
			}
		}
	}
}

func TestProduceResponseIsKmsgsByteForByte(t *testing.T) {
	for version := int16(3); version <= 11; version++ {
		w := &producing{req: request{key: keyProduce, version: version, correlation: 5}}
		want := kmsg.NewPtrProduceResponse()
		want.Version = version
		refused := broker.Errorf(broker.TopicIsDerived, "topic %q is written by m/p", "b")
		for _, name := range []string{"a", "b"} {
			w.topics = append(w.topics, producedTopic{name, 2})
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic = name
			for p := range int32(2) {
				part := kmsg.NewProduceResponseTopicPartition()
				part.Partition = p
				res := broker.Appended{Offset: int64(100 + p), LogStart: 7, AppendTimeMillis: -1}
				part.BaseOffset, part.LogStartOffset, part.LogAppendTime = int64(100+p), 7, -1
				if name == "b" && p == 1 {
					res = broker.Appended{Err: refused, AppendTimeMillis: -1}
					part.BaseOffset, part.LogStartOffset = -1, -1
					part.ErrorCode, part.ErrorMessage = kerr.PolicyViolation.Code, errorMessage(refused)
				}
				w.parts, w.results = append(w.parts, p), append(w.results, res)
				topic.Partitions = append(topic.Partitions, part)
			}
			want.Topics = append(want.Topics, topic)
		}
		if got := w.encode(); !bytes.Equal(got, encode(w.req, want)) {
			t.Errorf("version %d:\n got %x\nwant %x", version, got, encode(w.req, want))
		}
	}
}

func TestFetchResponseIsKmsgsByteForByte(t *testing.T) {
	small, big := testBatch(3, 20), testBatch(100, 200)
	for version := int16(4); version <= 12; version++ {
		f := &fetching{srv: &Server{}, req: request{key: keyFetch, version: version, correlation: 9}, kreq: &kmsg.FetchRequest{Version: version}}
		fr := &broker.FetchRequest{}
		want := kmsg.NewPtrFetchResponse()
		want.Version = version
		for _, name := range []string{"t", "u"} {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic = name
			topic := kmsg.NewFetchResponseTopic()
			topic.Topic = name
			for p := range int32(3) {
				rt.Partitions = append(rt.Partitions, kmsg.FetchRequestTopicPartition{Partition: p})
				part := broker.FetchPart{Partition: p, LogStart: 3, LogEnd: 1000}
				out := kmsg.NewFetchResponseTopicPartition()
				out.Partition, out.HighWatermark, out.LastStableOffset, out.LogStartOffset, out.PreferredReadReplica = p, 1000, 1000, 3, -1
				out.AbortedTransactions, out.RecordBatches = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}, []byte{}
				switch p {
				case 0:
					base := int64(40)
					for _, data := range [][]byte{small, big, small, big, big} {
						b := log.Batch{Base: base, Epoch: 12, Data: data}
						part.Batches = append(part.Batches, b)
						out.RecordBatches = b.AppendTo(out.RecordBatches)
						base += 100
					}
				case 1: // from a file: side by side, but for the last
					var file []byte
					for i := range int64(4) {
						file = log.Batch{Base: 40 + 100*i, Epoch: 12, Data: small}.AppendTo(file)
					}
					for at := 0; at < len(file); at += len(small) {
						part.Batches = append(part.Batches, log.Batch{Data: file[at : at+len(small)], Stored: true})
					}
					alone := log.Batch{Base: 440, Epoch: 12, Data: big}.AppendTo(nil)
					part.Batches = append(part.Batches, log.Batch{Data: alone, Stored: true})
					out.RecordBatches = append(file, alone...)
				case 2:
					part.Err = broker.Errorf(broker.UnknownPartition, "no partition")
					out.ErrorCode, out.HighWatermark, out.LastStableOffset, out.LogStartOffset = kerr.UnknownTopicOrPartition.Code, -1, -1, -1
				}
				fr.Parts = append(fr.Parts, part)
				topic.Partitions = append(topic.Partitions, out)
			}
			f.kreq.Topics = append(f.kreq.Topics, rt)
			want.Topics = append(want.Topics, topic)
		}
		bufs, n := f.assemble(fr)
		got := bytes.Join(bufs, nil)
		if !bytes.Equal(got, encode(f.req, want)) {
			t.Errorf("version %d: the response differs from kmsg's", version)
		}
		if n != 2*(6*len(small)+4*len(big)) {
			t.Errorf("version %d: %d bytes of batches", version, n)
		}
		if len(bufs) != 2*4*2+1 {
			t.Errorf("version %d: %d pieces; small batches should be copied and big ones referred to", version, len(bufs))
		}
	}
}

func TestFetchSessionsAreRefusedByTheBook(t *testing.T) {
	for _, c := range []struct {
		id, epoch int32
		want      int16
	}{
		{0, 0, 0},
		{0, -1, 0},
		{5, -1, 0},
		{5, 0, kerr.FetchSessionIDNotFound.Code},
		{5, 3, kerr.FetchSessionIDNotFound.Code},
		{0, 1, kerr.InvalidFetchSessionEpoch.Code},
	} {
		if got := sessionCode(&kmsg.FetchRequest{Version: 11, SessionID: c.id, SessionEpoch: c.epoch}); got != c.want {
			t.Errorf("session %d epoch %d: %d, want %d", c.id, c.epoch, got, c.want)
		}
	}
	if sessionCode(&kmsg.FetchRequest{Version: 6, SessionID: 5}) != 0 {
		t.Error("version 6 has no sessions")
	}
}

// TestEveryCodeHasAWireCode keeps the retriable ones retriable: clients retry on nothing else.
func TestEveryCodeHasAWireCode(t *testing.T) {
	retriable := map[broker.Code]bool{
		broker.UnknownTopic: true, broker.UnknownPartition: true, broker.CorruptBatch: true, broker.OutcomeUnknown: true,
		broker.Busy: true, broker.NotReady: true, broker.StorageFailed: true, broker.NoRoom: true, broker.RottenRecords: true, broker.Timeout: true, broker.NoEngine: true,
	}
	for code, k := range wireCodes {
		if k.Retriable != retriable[code] {
			t.Errorf("%s is %s, retriable %v", code, k.Message, k.Retriable)
		}
		if code.Info().Title == "" {
			t.Errorf("%s is not in the table", code)
		}
	}
	for _, info := range broker.Codes() {
		var n broker.Code
		if _, err := fmt.Sscanf(info.Code, "E%d", &n); err != nil {
			t.Fatal(err)
		}
		if n < broker.BadRequest && wireCodes[n] == nil {
			t.Errorf("%s has no wire code", n)
		}
	}
	if errorCode(errors.New("odd")) != kerr.UnknownServerError.Code {
		t.Error("an unknown error is not UNKNOWN_SERVER_ERROR")
	}
	var none *broker.Error
	if errorCode(none) != 0 || errorMessage(none) != nil {
		t.Error("a nil *broker.Error is an error")
	}
}

func TestHistogramBuckets(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{0, 1, 50 * time.Microsecond, 50*time.Microsecond + 1, 100 * time.Microsecond, time.Second, time.Hour} {
		h.observe(d)
	}
	counts, sum := h.Snapshot()
	if counts[0] != 3 || counts[1] != 2 || counts[latencySteps] != 1 {
		t.Errorf("counts %v", counts)
	}
	if sum < 3600 || sum > 3602 {
		t.Errorf("sum %v", sum)
	}
	for i, bound := range LatencyBounds() {
		var g Histogram
		g.observe(time.Duration(bound * 1e9))
		if c, _ := g.Snapshot(); c[i] != 1 {
			t.Errorf("%v s does not count in bucket %d", bound, i)
		}
	}
}

// TestOutboxKeepsRequestOrder completes places out of order.
func TestOutboxKeepsRequestOrder(t *testing.T) {
	client, srv := net.Pipe()
	var s Server
	o := newOutbox(srv, 4, time.Second, &s.wg)
	var places []*place
	for range 4 {
		p, err := o.reserve()
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p)
	}
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		if p, err := o.reserve(); err == nil { // waits for room
			p.send(nil, []byte{4})
		}
	}()
	for _, i := range []int{2, 1, 3, 0} {
		places[i].complete([]byte{byte(i)})
	}
	got := make([]byte, 5)
	for i := range got {
		if _, err := client.Read(got[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, []byte{0, 1, 2, 3, 4}) {
		t.Errorf("order %v", got)
	}
	<-blocked
	s.wg.Wait()
	o.fail(net.ErrClosed)
	if _, err := o.reserve(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reserve after the end: %v", err)
	}
}

// trickle is a connection that delivers n bytes at a time.
type trickle struct {
	net.Conn
	b []byte
	n int
}

func (c *trickle) SetReadDeadline(time.Time) error { return nil }
func (c *trickle) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, net.ErrClosed
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}

func TestFrameReaderSplitsFramesHoweverTheyArrive(t *testing.T) {
	sizes := []int{8, 100, 4092, 4093, 5000, 70_000, 300_000, 8, 9}
	var stream []byte
	for i, n := range sizes {
		stream = binary.BigEndian.AppendUint32(stream, uint32(n))
		stream = append(stream, bytes.Repeat([]byte{byte(i)}, n)...)
	}
	for _, step := range []int{1, 3, 1000, 4096, 1 << 20} {
		b := newBudget(1 << 20)
		f := frameReader{
			ctx: t.Context(), nc: &trickle{b: stream, n: step}, budget: b, limit: func(int16) int64 { return 1 << 20 },
			idle: time.Second, stall: time.Second, small: make([]byte, smallFrame),
		}
		for i, n := range sizes {
			frame, err := f.next()
			if err != nil {
				t.Fatalf("step %d frame %d: %v", step, i, err)
			}
			if !bytes.Equal(frame, bytes.Repeat([]byte{byte(i)}, n)) {
				t.Fatalf("step %d frame %d differs", step, i)
			}
		}
		f.done()
		if b.mu.free != 1<<20 {
			t.Errorf("step %d: %d bytes of the budget are free at the end", step, b.mu.free)
		}
	}
}

func TestFrameLengthIsJudgedBeforeMemoryIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		length uint32
		key    uint16
	}{
		"negative": {0xffffffff, 0}, "zero": {0, 0}, "too short": {7, 3}, "100 MiB of Produce": {100 << 20, 0}, "5 MiB of Metadata": {5 << 20, 3}, "an HTTP request": {0x47455420, 0x2f20},
	} {
		t.Run(name, func(t *testing.T) {
			stream := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, c.length), c.key)
			s := New(nil, nil, Options{})
			f := frameReader{ctx: t.Context(), nc: &trickle{b: stream, n: 100}, budget: s.budget, limit: s.frameLimit, small: make([]byte, smallFrame)}
			_, err := f.next()
			var fe *FrameError
			if !errors.As(err, &fe) || !errors.Is(err, errFrame) {
				t.Fatalf("got %v", err)
			}
			if s.budget.mu.free != s.opts.MemoryBytes {
				t.Error("memory was taken")
			}
		})
	}
	// A lying length field reserves no more than twice what has arrived, beyond a first step.
	s := New(nil, nil, Options{})
	stream := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, 60<<20), 0)
	stream = append(stream, make([]byte, 200<<10)...)
	f := frameReader{ctx: t.Context(), nc: &trickle{b: stream, n: 10 << 10}, budget: s.budget, limit: s.frameLimit, small: make([]byte, smallFrame)}
	if _, err := f.next(); err == nil {
		t.Fatal("a frame that never came")
	}
	if held := s.opts.MemoryBytes - s.budget.mu.free; held > maxPooled {
		t.Errorf("%d bytes are held for 200 KiB", held)
	}
	f.done()
}

func TestAdvertisedVersionsAreThoseOfTheDesign(t *testing.T) {
	want := map[int16][2]int16{
		0: {0, 11}, 1: {4, 12}, 2: {0, 7}, 3: {0, 12}, 8: {0, 8}, 9: {0, 8}, 10: {0, 4}, 11: {0, 9}, 12: {0, 4}, 13: {0, 5},
		14: {0, 5}, 15: {0, 6}, 16: {0, 5}, 18: {0, 4}, 19: {0, 7}, 20: {0, 6}, 21: {0, 2}, 22: {0, 4}, 23: {0, 4}, 32: {0, 4}, 33: {0, 2}, 35: {0, 4},
		37: {0, 3}, 42: {0, 2}, 44: {0, 1}, 47: {0, 0}, 60: {0, 1},
	}
	got := map[int16][2]int16{}
	for _, a := range apis {
		if a != nil {
			got[a.key] = [2]int16{a.min, a.max}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}
