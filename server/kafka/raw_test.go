package kafka_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server/kafka"
)

// raw is a connection that sends what it likes.
type raw struct {
	t    *testing.T
	nc   net.Conn
	next int32
}

func (f *front) raw(t *testing.T) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &raw{t: t, nc: nc}
}

// send writes a request and returns its correlation id.
func (r *raw) send(req kmsg.Request) int32 {
	r.t.Helper()
	r.next++
	if _, err := r.nc.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req, r.next)); err != nil {
		r.t.Fatal(err)
	}
	return r.next
}

// frame reads one response frame: correlation id and the rest.
func (r *raw) frame() (int32, []byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r.nc, head[:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	_, err := io.ReadFull(r.nc, body)
	return int32(binary.BigEndian.Uint32(head[4:])), body, err
}

// receive reads the response to req.
func (r *raw) receive(req kmsg.Request, correlation int32) kmsg.Response {
	r.t.Helper()
	got, body, err := r.frame()
	if err != nil {
		r.t.Fatal(err)
	}
	if got != correlation {
		r.t.Fatalf("the answer to %d came for %d", got, correlation)
	}
	if req.IsFlexible() && req.Key() != 18 {
		body = body[1:]
	}
	resp := req.ResponseKind()
	if err := resp.ReadFrom(body); err != nil {
		r.t.Fatalf("%T version %d: %v", resp, req.GetVersion(), err)
	}
	return resp
}

func (r *raw) do(req kmsg.Request) kmsg.Response {
	r.t.Helper()
	return r.receive(req, r.send(req))
}

// closed expects the server to close the connection without an answer.
func (r *raw) closed() {
	r.t.Helper()
	if _, body, err := r.frame(); err == nil {
		r.t.Fatalf("an answer of %d bytes instead of a closed connection", len(body))
	} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
		r.t.Fatal("the connection stays open")
	}
}

// logged waits for a line in the log.
func (f *front) logged(t *testing.T, want ...string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		log := f.logs.String()
		missing := ""
		for _, w := range want {
			if !strings.Contains(log, w) {
				missing = w
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the log does not hold %q:\n%s", missing, log)
		}
	}
}

func TestHostileFramesCloseTheConnectionAndSayWhy(t *testing.T) {
	f := start(t, frontOptions{})
	for _, c := range []struct {
		name  string
		bytes []byte
		log   string
	}{
		{"100 MiB length", []byte{0x06, 0x40, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1}, "frame of 104857600 bytes"},
		{"2 GiB length", []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1}, "frame of 2147483647 bytes"},
		{"negative length", []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 7}, "frame of -1 bytes"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), "refused"},
		{"TLS", []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03}, "refused"},
		{"unknown api key", frame(99, 0, nil), "kafka.unknown_api"},
		{"a SASL handshake", frame(17, 1, []byte{0, 5, 'P', 'L', 'A', 'I', 'N'}), "name=SASLHandshake"},
		{"produce version 2", frame(0, 2, []byte{0, 1, 0, 0, 0, 1, 0, 0, 0, 0}), "Kafka 0.11 or later"},
		{"fetch version 13", frame(1, 13, nil), "kafka.version"},
		{"metadata that ends early", frame(3, 1, []byte{0, 0, 0, 9, 0, 50, 'x'}), "kafka.frame"},
		{"produce with a billion topics", frame(0, 3, []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0x3b, 0x9a, 0xca, 0}), "malformed"},
		{"client id longer than the frame", append([]byte{0, 0, 0, 10}, 0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff), "cut short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := f.raw(t)
			if _, err := r.nc.Write(c.bytes); err != nil {
				t.Fatal(err)
			}
			r.closed()
			f.logged(t, c.log)
		})
	}
	if strings.Contains(f.logs.String(), "kafka.panic") {
		t.Errorf("panics: %s", f.logs.String())
	}
	if resp := f.raw(t).do(kmsg.NewPtrMetadataRequest()).(*kmsg.MetadataResponse); len(resp.Brokers) != 1 {
		t.Error("the server does not serve any more")
	}
}

// frame is a request with no client id.
func frame(key, version int16, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(10+len(body)))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	return append(append(b, 0, 0, 0, 1, 0xff, 0xff), body...)
}

func TestApiVersionsAnswersAnyVersion(t *testing.T) {
	f := start(t, frontOptions{})
	for _, version := range []int16{5, 99, 32767} {
		r := f.raw(t)
		// A future version's body is unknown; the header may be of any form.
		if _, err := r.nc.Write(frame(18, version, []byte{1, 2, 3})); err != nil {
			t.Fatal(err)
		}
		_, body, err := r.frame()
		if err != nil {
			t.Fatal(err)
		}
		resp := &kmsg.ApiVersionsResponse{}
		if err := resp.ReadFrom(body); err != nil {
			t.Fatal(err)
		}
		if resp.ErrorCode != kerr.UnsupportedVersion.Code || len(resp.ApiKeys) != 1 || resp.ApiKeys[0].MaxVersion != 4 {
			t.Errorf("version %d: %+v", version, resp)
		}
		// The connection goes on, as clients rely on.
		req := kmsg.NewPtrApiVersionsRequest()
		req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "raw", "1"
		if resp := r.do(req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != 0 || len(resp.ApiKeys) < 20 {
			t.Errorf("after that: %+v", resp)
		}
	}
	bad := kmsg.NewPtrApiVersionsRequest()
	bad.Version, bad.ClientSoftwareName, bad.ClientSoftwareVersion = 3, "-evil\n", "1"
	if resp := f.raw(t).do(bad).(*kmsg.ApiVersionsResponse); resp.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("a client name with a line break: %d", resp.ErrorCode)
	}
}

// TestEveryVersionAnswersInItsOwnFormat sends an empty request of every version of every API.
func TestEveryVersionAnswersInItsOwnFormat(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	for key := int16(0); key < 100; key++ {
		first, last, ok := kafka.Served(key)
		if !ok {
			continue
		}
		for v := first; v <= last; v++ {
			req := kmsg.RequestForKey(key)
			if d, ok := req.(interface{ Default() }); ok {
				d.Default()
			}
			req.SetVersion(v)
			switch q := req.(type) {
			case *kmsg.ProduceRequest:
				q.Acks = 1
			case *kmsg.ApiVersionsRequest:
				q.ClientSoftwareName, q.ClientSoftwareVersion = "raw", "1"
			}
			f.raw(t).do(req)
		}
	}
}

func rawProduce(acks int16, topic string, partition int32, batches ...[]byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, acks, 5000
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, bytes.Join(batches, nil)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func batch(values ...string) []byte {
	b := record.NewBuilder()
	for _, v := range values {
		b.Append(1, nil, []byte(v), nil)
	}
	return b.Finish()
}

func sequenced(id int64, epoch int16, seq int32, values ...string) []byte {
	b := record.NewBuilder()
	b.SetProducer(id, epoch, seq)
	for _, v := range values {
		b.Append(1, nil, []byte(v), nil)
	}
	return b.Finish()
}

// compressed is a good batch under a codec.
func compressed(c record.Codec, values ...string) []byte {
	b := record.NewBuilder()
	b.SetCodec(c)
	for _, v := range values {
		b.Append(1, nil, []byte(v), nil)
	}
	return b.Finish()
}

// compressedGarbage decompresses well into what is no record.
func compressedGarbage(t *testing.T) []byte {
	t.Helper()
	b := bytes.Clone(batch("a", "b")[:record.HeaderSize])
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write([]byte("these are no records")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b = append(b, z.Bytes()...)
	b[22] |= byte(record.Gzip)
	record.Seal(b)
	return b
}

func TestBadBatchesAreRefusedOneByOne(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 2, nil)
	good := batch("a", "b")
	change := func(f func(b []byte), seal bool) []byte {
		b := bytes.Clone(good)
		f(b)
		if seal {
			record.Seal(b)
		}
		return b
	}
	r := f.raw(t)
	for _, c := range []struct {
		name  string
		topic string
		part  int32
		batch []byte
		want  error
	}{
		{"good", "t", 0, good, nil},
		{"bad CRC", "t", 0, change(func(b []byte) { b[len(b)-1] ^= 1 }, false), kerr.CorruptMessage},
		{"cut", "t", 0, good[:len(good)-1], kerr.CorruptMessage},
		{"only a header's start", "t", 0, good[:20], kerr.CorruptMessage},
		{"nothing", "t", 0, nil, kerr.InvalidRecord},
		{"two batches", "t", 0, append(bytes.Clone(good), good...), kerr.InvalidRecord},
		{"magic 1", "t", 0, change(func(b []byte) { b[16] = 1 }, false), kerr.InvalidRecord},
		{"control", "t", 0, change(func(b []byte) { b[22] |= 0x20 }, true), kerr.InvalidRecord},
		{"a time mark", "t", 0, record.TimeMark(1<<62, 1), kerr.InvalidRecord},
		{"transactional", "t", 0, change(func(b []byte) { b[22] |= 0x10 }, true), kerr.TransactionalIDAuthorizationFailed},
		{"codec 7", "t", 0, change(func(b []byte) { b[22] |= 7 }, true), kerr.UnsupportedCompressionType},
		{"garbage under a good checksum", "t", 0, change(func(b []byte) { copy(b[record.HeaderSize:], "\xff\xff\xff\xff\xff\xff") }, true), kerr.InvalidRecord},
		{"a record longer than the batch", "t", 0, change(func(b []byte) { b[record.HeaderSize] = 0x7e }, true), kerr.InvalidRecord},
		{"uncompressed records under a codec", "t", 0, change(func(b []byte) { b[22] |= byte(record.LZ4) }, true), kerr.InvalidRecord},
		{"compressed garbage", "t", 0, compressedGarbage(t), kerr.InvalidRecord},
		{"compressed", "t", 0, compressed(record.Zstd, "a", "b"), nil},
		{"count lies", "t", 0, change(func(b []byte) { b[60] = 200 }, true), kerr.CorruptMessage},
		{"no such partition", "t", 2, good, kerr.UnknownTopicOrPartition},
		{"negative partition", "t", -1, good, kerr.UnknownTopicOrPartition},
		{"no such topic", "u", 0, good, kerr.UnknownTopicOrPartition},
		{"a path", "../x", 0, good, kerr.UnknownTopicOrPartition},
		{"negative sequence", "t", 0, sequenced(5, 0, -3, "x"), kerr.InvalidRecord},
		{"good again", "t", 1, good, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			p := r.do(rawProduce(-1, c.topic, c.part, c.batch)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
			if err := kerr.ErrorForCode(p.ErrorCode); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if (p.ErrorMessage == nil) != (c.want == nil) {
				t.Errorf("message %v", p.ErrorMessage)
			}
		})
	}
	r.t = t
	if p := r.do(rawProduce(2, "t", 0, good)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("acks=2: %d", p.ErrorCode)
	}
}

func TestDuplicatesAreAnsweredWithTheirOffset(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	r := f.raw(t)
	send := func(b []byte) (int64, error) {
		p := r.do(rawProduce(-1, "t", 0, b)).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		return p.BaseOffset, kerr.ErrorForCode(p.ErrorCode)
	}
	expect := func(what string, b []byte, offset int64, want error) {
		t.Helper()
		got, err := send(b)
		if !errors.Is(err, want) || err == nil && got != offset {
			t.Errorf("%s: offset %d, %v; want %d, %v", what, got, err, offset, want)
		}
	}
	expect("first", sequenced(7, 0, 0, "a", "b"), 0, nil)
	expect("first again", sequenced(7, 0, 0, "a", "b"), 0, nil)
	expect("second", sequenced(7, 0, 2, "c"), 2, nil)
	expect("first, late", sequenced(7, 0, 0, "a", "b"), 0, nil)
	expect("a gap", sequenced(7, 0, 9, "x"), 0, kerr.OutOfOrderSequenceNumber)
	expect("a new epoch", sequenced(7, 1, 0, "d"), 3, nil)
	expect("the old epoch", sequenced(7, 0, 3, "x"), 0, kerr.InvalidProducerEpoch)
	expect("an unknown producer in the middle", sequenced(8, 0, 5, "x"), 0, kerr.UnknownProducerID)
	f.restart()
	r = f.raw(t)
	expect("after a restart", sequenced(7, 1, 0, "d"), 3, nil)
	expect("the next", sequenced(7, 1, 1, "e"), 4, nil)
}

// TestPipelinedProduceIsAnsweredInOrder sends many requests without waiting, Metadata among them.
func TestPipelinedProduceIsAnsweredInOrder(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	r := f.raw(t)
	var reqs []kmsg.Request
	seq := int32(0)
	for i := range 300 {
		var req kmsg.Request = rawProduce(-1, "t", 0, sequenced(7, 0, seq, fmt.Sprint(i)))
		switch {
		case i%10 == 3:
			req = kmsg.NewPtrMetadataRequest()
		default:
			seq++
		}
		reqs = append(reqs, req)
		r.send(req)
	}
	offset := int64(0)
	for i, req := range reqs {
		switch resp := r.receive(req, int32(i+1)).(type) {
		case *kmsg.ProduceResponse:
			if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != offset {
				t.Fatalf("request %d: offset %d, code %d; want %d", i, p.BaseOffset, p.ErrorCode, offset)
			}
			offset++
		case *kmsg.MetadataResponse:
		}
	}
}

func TestAcksZeroIsSilentAndClosesOnRefusal(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	r := f.raw(t)
	r.send(rawProduce(0, "t", 0, batch("a")))
	r.do(kmsg.NewPtrMetadataRequest()) // the next answer is this one's
	r.send(rawProduce(0, "nobody", 0, batch("a")))
	r.closed()
	f.logged(t, "kafka.produce_refused", "E1001")
}

func TestConnectionsAreBounded(t *testing.T) {
	f := start(t, frontOptions{kafka: kafka.Options{MaxConnections: 2}})
	a, b := f.raw(t), f.raw(t)
	a.do(kmsg.NewPtrMetadataRequest())
	b.do(kmsg.NewPtrMetadataRequest())
	f.raw(t).closed()
	f.logged(t, "kafka.too_many_connections")
	_ = a.nc.Close()
	for end := time.Now().Add(time.Minute); f.srv.Metrics().Connections.Load() > 1 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	f.raw(t).do(kmsg.NewPtrMetadataRequest())
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	f := start(t, frontOptions{kafka: kafka.Options{IdleTimeout: 30 * time.Millisecond, StallTimeout: 30 * time.Millisecond}})
	f.raw(t).closed()
	r := f.raw(t)
	if _, err := r.nc.Write([]byte{0, 0, 0, 100, 0}); err != nil {
		t.Fatal(err)
	}
	r.closed()
}

func TestCloseLeavesNoConnectionBehind(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	r := f.raw(t)
	r.do(kmsg.NewPtrMetadataRequest())
	parked := f.raw(t)
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes = 11, 20_000, 1, 1<<20
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = -1, 1<<20
	rt.Partitions = append(rt.Partitions, rp)
	fetch.Topics = append(fetch.Topics, rt)
	parked.send(fetch)
	time.Sleep(20 * time.Millisecond)
	begin := time.Now()
	f.close()
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("closing took %v with a parked fetch", d)
	}
	r.closed()
}
