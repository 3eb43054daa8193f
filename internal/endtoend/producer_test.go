package endtoend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

// A cutter forwards TCP connections to a server and cuts them now and then, in the middle of what they carry.
type cutter struct {
	ln     net.Listener
	to     func() string
	random *rand.Rand
	every  atomic.Int64 // bytes of a connection until it is cut, on average; 0: never
	hold   atomic.Bool
	cuts   atomic.Int64
	wg     sync.WaitGroup
	mu     struct {
		sync.Mutex
		closed bool
		conns  map[net.Conn]struct{}
	}
}

func newCutter(t *testing.T, seed uint64, every int64, to func() string) *cutter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, to: to, random: rand.New(rand.NewPCG(seed, 3))}
	c.every.Store(every)
	c.mu.conns = map[net.Conn]struct{}{}
	c.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			c.serve(in)
		}
	})
	t.Cleanup(c.close)
	return c
}

func (c *cutter) close() {
	_ = c.ln.Close()
	c.mu.Lock()
	c.mu.closed = true
	for conn := range c.mu.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// keep notes a connection that close has to end, and says whether it may live.
func (c *cutter) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		_ = conn.Close()
		return false
	}
	c.mu.conns[conn] = struct{}{}
	return true
}

func (c *cutter) serve(in net.Conn) {
	out, err := net.Dial("tcp", c.to())
	if err != nil {
		_ = in.Close()
		return
	}
	if !c.keep(in) || !c.keep(out) {
		_ = out.Close()
		return
	}
	left := int64(1) << 60
	if every := c.every.Load(); every > 0 {
		left = c.random.Int64N(2 * every)
	}
	var budget atomic.Int64
	budget.Store(left)
	var pair sync.WaitGroup
	forward := func(dst, src net.Conn) {
		defer pair.Done()
		buf := make([]byte, 32<<10)
		for {
			for c.hold.Load() {
				time.Sleep(time.Millisecond)
				c.mu.Lock()
				closed := c.mu.closed
				c.mu.Unlock()
				if closed {
					break
				}
			}
			n, err := src.Read(buf)
			if before := budget.Add(-int64(n)) + int64(n); before < int64(n) {
				n = int(max(before, 0))
				c.cuts.Add(1)
				err = io.ErrClosedPipe
			}
			if n > 0 {
				if _, werr := dst.Write(buf[:n]); werr != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = src.Close()
		_ = dst.Close()
	}
	pair.Add(2)
	c.wg.Go(func() { forward(out, in) })
	c.wg.Go(func() { forward(in, out) })
	c.wg.Go(func() {
		pair.Wait()
		c.mu.Lock()
		delete(c.mu.conns, in)
		delete(c.mu.conns, out)
		c.mu.Unlock()
	})
}

func brokerOptions(fs fsx.FS) server.Options {
	return server.Options{
		Data: "/data", FS: fs, KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", NoEngine: true,
		Node: replication.NodeOptions{Data: replication.ShardOptions{WALSegmentBytes: 8 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20}},
	}
}

func startBroker(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func makeTopic(t *testing.T, s *server.Server, name string, partitions int32, configs map[string]string) {
	t.Helper()
	if _, err := client.NewAPI(s.HTTPAddr()).CreateTopic(t.Context(), client.TopicSpec{Name: name, Partitions: partitions, Configs: configs}); err != nil {
		t.Fatal(err)
	}
}

func newProducer(t *testing.T, seeds string, o client.ProducerOptions) *client.Producer {
	t.Helper()
	p, err := client.NewProducer(seeds, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNow(p) })
	return p
}

func closeNow(p *client.Producer) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

func newWriter(t *testing.T, p *client.Producer, topic string) *client.Writer {
	t.Helper()
	w, err := p.Writer(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A ledger is what callbacks said of the records of some goroutines, by tag.
type ledger struct {
	t  *testing.T
	mu sync.Mutex
	m  map[uint64]client.Ack
}

func (l *ledger) done(a client.Ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.m[a.Tag]; ok {
		l.t.Errorf("record %d is answered twice", a.Tag)
	}
	l.m[a.Tag] = a
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.m)
}

// check reads the topic and compares: every acknowledged record is where the callback said, nothing is there twice or
// was a definite no, and the records of a goroutine (the upper half of the tag) are in order in each partition.
func (l *ledger) check(s *server.Server, topic string) (acked int) {
	l.t.Helper()
	type place struct {
		partition int32
		offset    int64
	}
	found := map[uint64]place{}
	type stream struct {
		partition int32
		goroutine uint64
	}
	last := map[stream]uint64{}
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	if err := client.ReadAll(ctx, s.KafkaAddr(), topic, func(r *kgo.Record) error {
		var tag uint64
		if _, err := fmt.Sscanf(string(r.Value[:20]), "%d", &tag); err != nil {
			return err
		}
		if before, ok := found[tag]; ok {
			l.t.Errorf("record %d is at %v and at %d/%d", tag, before, r.Partition, r.Offset)
		}
		found[tag] = place{r.Partition, r.Offset}
		key := stream{r.Partition, tag >> 32}
		if before, ok := last[key]; ok && before > tag {
			l.t.Errorf("record %d stands behind %d in partition %d", tag, before, r.Partition)
		}
		last[key] = tag
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	for tag, a := range l.m {
		at, there := found[tag]
		switch {
		case a.Err == nil:
			acked++
			if !there || at.partition != a.Partition || a.Offset >= 0 && at.offset != a.Offset {
				l.t.Errorf("record %d was acknowledged at %d/%d, is at %v (%v)", tag, a.Partition, a.Offset, at, there)
			}
		case !errors.Is(a.Err, client.ErrUnknownOutcome) && there:
			l.t.Errorf("record %d was refused (%v) and is at %v", tag, a.Err, at)
		}
	}
	for tag := range found {
		if _, ok := l.m[tag]; !ok {
			l.t.Errorf("record %d is in the log and was never answered", tag)
		}
	}
	return acked
}

// produceFrom sends records from several goroutines, with and without keys, until stop is closed or each has sent n.
func produceFrom(t *testing.T, w *client.Writer, l *ledger, goroutines, n int, pace time.Duration, stop <-chan struct{}) (sent int) {
	t.Helper()
	var wg sync.WaitGroup
	var total atomic.Int64
	for g := range goroutines {
		wg.Go(func() {
			pad := strings.Repeat("p", 180)
			for i := range n {
				select {
				case <-stop:
					return
				default:
				}
				tag := uint64(g)<<32 | uint64(i)
				m := client.Message{Value: fmt.Appendf(nil, "%020d%s", tag, pad[:i%180]), Tag: tag}
				if g%2 == 0 {
					m.Key = fmt.Appendf(nil, "k%d", i%7)
				}
				if err := w.Produce(t.Context(), m, l.done); err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
				total.Add(1)
				if pace > 0 && i%50 == 0 {
					time.Sleep(pace)
				}
			}
		})
	}
	wg.Wait()
	return int(total.Load())
}

func TestAProducerIsExactlyOnceThroughCutConnections(t *testing.T) {
	var address atomic.Value
	c := newCutter(t, 11, 60<<10, func() string { return address.Load().(string) })
	o := brokerOptions(fsx.NewMem())
	o.Advertised = c.ln.Addr().String()
	s := startBroker(t, o)
	address.Store(s.KafkaAddr())
	makeTopic(t, s, "t", 3, nil)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{BatchBytes: 16 << 10})
	l := &ledger{t: t, m: map[uint64]client.Ack{}}
	sent := produceFrom(t, newWriter(t, p, "t"), l, 4, 2500, 0, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatalf("%v; %d of %d answered, %d cuts, %+v", err, l.len(), sent, c.cuts.Load(), p.Stats())
	}
	c.every.Store(0) // for whoever reads
	if acked := l.check(s, "t"); acked != sent || sent != 10_000 {
		t.Errorf("%d of %d acknowledged", acked, sent)
	}
	if c.cuts.Load() < 5 {
		t.Errorf("only %d connections were cut", c.cuts.Load())
	}
	if n := p.Stats().Buffered; n != 0 {
		t.Errorf("%d bytes stay buffered", n)
	}
}

// The server goes and comes back under load; records wait meanwhile.
func TestAProducerGoesThroughRestarts(t *testing.T) {
	fs := fsx.NewMem()
	o := brokerOptions(fs)
	s := startBroker(t, o)
	o.KafkaAddr = s.KafkaAddr()
	makeTopic(t, s, "t", 2, nil)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{BatchBytes: 64 << 10})
	l := &ledger{t: t, m: map[uint64]client.Ack{}}
	w, stop := newWriter(t, p, "t"), make(chan struct{})
	var sent int
	var wg sync.WaitGroup
	wg.Go(func() { sent = produceFrom(t, w, l, 3, 1<<30, time.Millisecond, stop) })
	for range 2 {
		for before := l.len(); l.len() < before+500; {
			time.Sleep(2 * time.Millisecond)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond)
		s = startBroker(t, o)
	}
	for before := l.len(); l.len() < before+500; {
		time.Sleep(2 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if acked := l.check(s, "t"); acked != sent {
		t.Errorf("%d of %d acknowledged", acked, sent)
	}
}

func TestAProducerSaysWhatIsRefused(t *testing.T) {
	s := startBroker(t, brokerOptions(fsx.NewMem()))
	makeTopic(t, s, "small", 1, map[string]string{"max.message.bytes": "2000"})
	makeTopic(t, s, "gone", 1, nil)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{BatchBytes: 64 << 10})
	if _, err := p.Writer(t.Context(), "nothing"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a topic that does not exist: %v", err)
	}
	w := newWriter(t, p, "small")
	if _, err := w.Partition(1); err == nil {
		t.Error("a partition that does not exist")
	}
	if _, err := w.ProduceSync(t.Context(), client.Message{Value: make([]byte, 70<<10)}); !errors.Is(err, client.ErrRecordTooLarge) {
		t.Errorf("a record above BatchBytes: %v", err)
	}
	// The topic's limit is learnt from its refusal: batches are halved until they fit, in order.
	l := &ledger{t: t, m: map[uint64]client.Ack{}}
	sent := produceFrom(t, w, l, 2, 400, 0, nil)
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if acked := l.check(s, "small"); acked != sent {
		t.Errorf("%d of %d acknowledged", acked, sent)
	}
	_, err := w.ProduceSync(t.Context(), client.Message{Value: make([]byte, 1800)})
	if err != nil && !errors.Is(err, client.ErrRecordTooLarge) {
		t.Errorf("a record that fits: %v", err)
	}
	gone := newWriter(t, p, "gone")
	if a, err := gone.ProduceSync(t.Context(), client.Message{Value: []byte("x")}); err != nil || a.Offset != 0 {
		t.Errorf("%+v %v", a, err)
	}
	if err := client.NewAPI(s.HTTPAddr()).DeleteTopic(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := gone.ProduceSync(t.Context(), client.Message{Value: []byte("x")}); !errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("a deleted topic: %v", err)
	}
	if p.Stats().Err == nil || p.Stats().Failed == 0 {
		t.Errorf("the failure is not counted: %+v", p.Stats())
	}
}

// A full disk is waited for, and what did not get in before the delivery timeout is a definite no.
func TestAProducerWaitsForAFullDisk(t *testing.T) {
	var full atomic.Bool
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		if full.Load() && (op == fsx.OpCreate || op == fsx.OpPreallocate || op == fsx.OpLink || op == fsx.OpMkdir || op == fsx.OpWrite && !strings.Contains(name, "/wal/")) {
			return syscall.ENOSPC
		}
		return nil
	})
	o := brokerOptions(fs)
	o.Node.Data.WALSegmentBytes, o.Node.Data.MaxInflightBytes, o.Node.SegmentBytes, o.Node.CacheBytes = 1<<20, 256<<10, 256<<10, 64<<10
	s := startBroker(t, o)
	makeTopic(t, s, "t", 1, nil)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{BatchBytes: 8 << 10})
	brief := newProducer(t, s.KafkaAddr(), client.ProducerOptions{DeliveryTimeout: 200 * time.Millisecond})
	l := &ledger{t: t, m: map[uint64]client.Ack{}}
	w, stop := newWriter(t, p, "t"), make(chan struct{})
	var sent int
	var wg sync.WaitGroup
	wg.Go(func() { sent = produceFrom(t, w, l, 2, 1<<30, time.Millisecond, stop) })
	b := newWriter(t, brief, "t")
	full.Store(true)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		_, err := b.ProduceSync(t.Context(), client.Message{Value: fmt.Appendf(nil, "%020d", uint64(9)<<32)})
		if errors.Is(err, kerr.KafkaStorageError) {
			if errors.Is(err, client.ErrUnknownOutcome) || !errors.Is(err, client.ErrDeliveryTimeout) || !strings.Contains(err.Error(), "E1035") {
				t.Errorf("a full disk: %v", err)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the disk is not full: %v", err)
		}
		if err == nil {
			break // the log had room for all that was sent until now
		}
	}
	full.Store(false)
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if failed := p.Stats().Failed; failed != 0 {
		t.Errorf("%d of %d failed: %v", failed, sent, p.Stats().Err)
	}
}

// A server that does not answer fills the buffer, which is bounded; Close gives up what is left, and each record is
// answered once.
func TestAProducerIsBoundedAndEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(), goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
	var address atomic.Value
	c := newCutter(t, 1, 0, func() string { return address.Load().(string) })
	defer c.close()
	fs := fsx.NewMem()
	o := brokerOptions(fs)
	o.Advertised = c.ln.Addr().String()
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	address.Store(s.KafkaAddr())
	makeTopic(t, s, "t", 2, nil)
	const bound = 256 << 10
	p, err := client.NewProducer(s.KafkaAddr(), client.ProducerOptions{BatchBytes: 16 << 10, MaxBufferedBytes: bound})
	if err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, p, "t")
	if _, err := w.ProduceSync(t.Context(), client.Message{Value: fmt.Appendf(nil, "%020d", uint64(8)<<32)}); err != nil {
		t.Fatal(err)
	}
	c.hold.Store(true)
	l := &ledger{t: t, m: map[uint64]client.Ack{}}
	l.m[uint64(8)<<32] = client.Ack{Partition: -1, Offset: -1, Err: client.ErrUnknownOutcome}
	accepted := uint64(0)
	for {
		err := w.TryProduce(client.Message{Value: fmt.Appendf(nil, "%020d%0100d", accepted, 0), Tag: accepted}, l.done)
		if errors.Is(err, client.ErrBufferFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted++
		if n := p.Stats().Buffered; n > bound {
			t.Fatalf("%d bytes are buffered", n)
		}
	}
	if accepted < 500 || accepted > bound/100 {
		t.Errorf("%d records fill the buffer", accepted)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Produce(short, client.Message{Value: []byte("x")}, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a full buffer: %v", err)
	}
	if _, err := w.ProduceSync(short, client.Message{Value: []byte("x")}); err == nil {
		t.Error("a record fits a full buffer")
	}
	blocked := make(chan error, 4)
	for range 4 {
		go func() { blocked <- w.Produce(context.Background(), client.Message{Value: make([]byte, 15<<10)}, nil) }()
	}
	time.Sleep(20 * time.Millisecond)
	if err := p.Close(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close gave up without an error: %v", err)
	}
	for range 4 {
		if err := <-blocked; !errors.Is(err, client.ErrProducerClosed) && err != nil {
			t.Errorf("a caller that waits when the producer ends: %v", err)
		}
	}
	if n := l.len(); n != int(accepted)+1 {
		t.Errorf("%d of %d records are answered", n, accepted+1)
	}
	if err := w.Produce(t.Context(), client.Message{}, nil); !errors.Is(err, client.ErrProducerClosed) {
		t.Errorf("after Close: %v", err)
	}
	c.hold.Store(false)
	c.close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = server.Start(brokerOptions(fs)); err != nil {
		t.Fatal(err)
	}
	l.check(s, "t")
}

// Flush and Close beside callers that go on: every accepted record is answered once, and Close leaves nothing behind.
func TestAProducerClosesUnderLoad(t *testing.T) {
	s := startBroker(t, brokerOptions(fsx.NewMem()))
	makeTopic(t, s, "t", 2, nil)
	for _, patience := range []time.Duration{0, time.Minute} {
		p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{MaxBufferedBytes: 1 << 20, BatchBytes: 32 << 10})
		w := newWriter(t, p, "t")
		var accepted, answered, failed atomic.Int64
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					err := w.Produce(t.Context(), client.Message{Value: []byte("value")}, func(a client.Ack) {
						answered.Add(1)
						if a.Err != nil {
							failed.Add(1)
						}
					})
					if err != nil {
						if !errors.Is(err, client.ErrProducerClosed) {
							t.Error(err)
						}
						return
					}
					accepted.Add(1)
				}
			})
		}
		for accepted.Load() < 2000 {
			time.Sleep(time.Millisecond)
			if err := p.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := p.Close(ctx)
		cancel()
		wg.Wait()
		if accepted.Load() != answered.Load() {
			t.Errorf("%d accepted, %d answered", accepted.Load(), answered.Load())
		}
		// A caller that was in the middle of its call may still come too late.
		if patience > 0 && (err != nil || failed.Load() > 3) {
			t.Errorf("a patient Close: %v, %d failed", err, failed.Load())
		}
	}
}

func TestAProducerKeepsWhatARecordHas(t *testing.T) {
	s := startBroker(t, brokerOptions(fsx.NewMem()))
	makeTopic(t, s, "t", 3, nil)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{})
	w := newWriter(t, p, "t")
	at := time.UnixMilli(1_700_000_000_123)
	fixed, err := w.Partition(2)
	if err != nil {
		t.Fatal(err)
	}
	value := []byte("value")
	a, err := fixed.ProduceSync(t.Context(), client.Message{Key: []byte("key"), Value: value, Timestamp: at, Tag: 5, Headers: []client.Header{{Key: "h", Value: []byte("x")}, {Key: "n"}}})
	if err != nil || a.Partition != 2 || a.Tag != 5 {
		t.Fatalf("%+v %v", a, err)
	}
	copy(value, "other")
	before := time.Now().Add(-time.Millisecond)
	keyed, err := w.ProduceSync(t.Context(), client.Message{Key: []byte("key")})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := client.ReadAll(t.Context(), s.KafkaAddr(), "t", func(r *kgo.Record) error {
		n++
		switch {
		case r.Value != nil:
			if string(r.Key) != "key" || string(r.Value) != "value" || !r.Timestamp.Equal(at) || r.Partition != 2 || r.Offset != a.Offset ||
				len(r.Headers) != 2 || r.Headers[0].Key != "h" || string(r.Headers[0].Value) != "x" || r.Headers[1].Value != nil {
				t.Errorf("%+v", r)
			}
		case r.Partition != keyed.Partition || r.Timestamp.Before(before.Truncate(time.Millisecond)) || r.Timestamp.After(time.Now()):
			t.Errorf("%+v", r)
		}
		return nil
	}); err != nil || n != 2 {
		t.Errorf("%d records: %v", n, err)
	}
	if a, err := client.NewProducer("127.0.0.1:1", client.ProducerOptions{}); err == nil {
		defer closeNow(a)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var connect *client.ConnectError
		if _, err := a.Writer(ctx, "t"); !errors.As(err, &connect) {
			t.Errorf("no server: %v", err)
		}
	}
}
