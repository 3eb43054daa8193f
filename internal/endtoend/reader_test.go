package endtoend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/server"
)

// A broker is a whole server on a disk in memory, which may be restarted on the same port.
type brokerRig struct {
	t    testing.TB
	opts server.Options
	srv  *server.Server
}

func newBroker(t testing.TB, adjust func(*server.Options)) *brokerRig {
	t.Helper()
	o := server.Options{Data: "/data", FS: fsx.NewMem(), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", NoEngine: true}
	o.Node.Data.WALSegmentBytes, o.Node.Meta.WALSegmentBytes = 16<<20, 4<<20
	if adjust != nil {
		adjust(&o)
	}
	b := &brokerRig{t: t, opts: o}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *brokerRig) start() {
	b.t.Helper()
	var err error
	if b.srv, err = server.Start(b.opts); err != nil {
		b.t.Fatal(err)
	}
	b.opts.KafkaAddr = b.srv.KafkaAddr()
}

func (b *brokerRig) stop() {
	if b.srv == nil {
		return
	}
	if err := b.srv.Close(); err != nil {
		b.t.Error(err)
	}
	b.srv = nil
}

func (b *brokerRig) addr() string { return b.srv.KafkaAddr() }

func (b *brokerRig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *brokerRig) create(topic string, partitions int32) {
	b.t.Helper()
	k := b.kgo()
	if err := client.CreateTopics(b.ctx(), k, partitions, topic); err != nil {
		b.t.Fatal(err)
	}
}

func (b *brokerRig) kgo(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	k, err := client.Kafka(b.addr(), append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(k.Close)
	return k
}

func (b *brokerRig) reader(o client.ReaderOptions) *client.Reader {
	b.t.Helper()
	r, err := client.NewReader(b.ctx(), b.addr(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(r.Close)
	return r
}

// readRow is a record as a comparable value.
func readRow(partition int32, offset, ts int64, key, value []byte, headers string) string {
	return fmt.Sprintf("%d/%d @%d %q(%v)=%q(%v) %s", partition, offset, ts, key, key == nil, value, value == nil, headers)
}

// readAll reads to the end and returns the records of each partition, in order.
func readAll(t testing.TB, ctx context.Context, r *client.Reader) map[int32][]string {
	t.Helper()
	out := map[int32][]string{}
	for {
		b, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("after %d records: %v", count(out), err)
		}
		for b.Next() {
			rec := b.Record()
			headers := ""
			for _, h := range b.Headers() {
				headers += fmt.Sprintf("%s:%q ", h.Key, h.Value)
			}
			out[b.Partition] = append(out[b.Partition], readRow(b.Partition, rec.Offset, rec.Timestamp, rec.Key, rec.Value, headers))
		}
		if err := b.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func count(m map[int32][]string) (n int) {
	for _, rows := range m {
		n += len(rows)
	}
	return n
}

// viaKgo reads n records with franz-go.
func viaKgo(t testing.TB, b *brokerRig, topic string, n int) map[int32][]string {
	t.Helper()
	out := map[int32][]string{}
	k := b.kgo(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for count(out) < n {
		fs := k.PollFetches(b.ctx())
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			headers := ""
			for _, h := range r.Headers {
				headers += fmt.Sprintf("%s:%q ", h.Key, h.Value)
			}
			out[r.Partition] = append(out[r.Partition], readRow(r.Partition, r.Offset, r.Timestamp.UnixMilli(), r.Key, r.Value, headers))
		})
	}
	return out
}

// TestAReaderReadsWhatKgoReads writes random records with every codec and reads them with both, whole and from the
// middle, with answers of all sizes, from memory and from files.
func TestAReaderReadsWhatKgoReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, cache := range []int64{0, 1} {
		b := newBroker(t, func(o *server.Options) { o.Node.CacheBytes = cache })
		b.create("t", 3)
		const total = 3000
		sent := 0
		for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
			k := b.kgo(kgo.ProducerBatchCompression(codec), kgo.DefaultProduceTopic("t"))
			for range total / 5 {
				r := &kgo.Record{Partition: rnd.Int32N(3), Timestamp: time.UnixMilli(1_700_000_000_000 + rnd.Int64N(1000))}
				if rnd.IntN(3) > 0 {
					r.Key = fmt.Append(nil, "k", rnd.IntN(100))
				}
				if rnd.IntN(10) > 0 {
					r.Value = bytes.Repeat([]byte{byte('a' + rnd.IntN(26))}, rnd.IntN(400))
				}
				for range rnd.IntN(3) {
					r.Headers = append(r.Headers, kgo.RecordHeader{Key: "h", Value: fmt.Append(nil, rnd.IntN(9))})
				}
				k.Produce(b.ctx(), r, func(_ *kgo.Record, err error) {
					if err != nil {
						t.Error(err)
					}
				})
				if sent++; sent%100 == 0 { // several batches
					if err := k.Flush(b.ctx()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := k.Flush(b.ctx()); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.srv.Node().Store().Flush(b.ctx()); err != nil {
			t.Fatal(err)
		}
		want := viaKgo(t, b, "t", total)
		for range 4 {
			o := client.ReaderOptions{
				Topic: "t", End: client.Latest, FetchBytes: 1 + rnd.IntN(100_000), Connections: 1 + rnd.IntN(3), Prefetch: 1 + rnd.IntN(3),
			}
			if got := readAll(t, b.ctx(), b.reader(o)); !equal(got, want) {
				t.Fatalf("seed %d: %+v: %d records differ from kgo's %d", seed, o, count(got), count(want))
			}
			from, to := rnd.IntN(500), 500+rnd.IntN(300)
			o.Start, o.End = client.AtOffset(int64(from)), client.AtOffset(int64(to))
			o.Partitions = []int32{2, 0}
			middle := map[int32][]string{0: want[0][from:to], 2: want[2][from:to]}
			if got := readAll(t, b.ctx(), b.reader(o)); !equal(got, middle) {
				t.Fatalf("seed %d: [%d, %d): %d records, want %d", seed, from, to, count(got), count(middle))
			}
		}
	}
}

func equal(a, b map[int32][]string) bool {
	if len(a) != len(b) {
		return false
	}
	for p := range a {
		if !slices.Equal(a[p], b[p]) {
			return false
		}
	}
	return true
}

// write appends n numbered records to a partition, ten in a batch.
func (b *brokerRig) write(topic string, partition int32, n int) {
	b.t.Helper()
	k := b.kgo(kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0))
	for i := range n {
		k.Produce(b.ctx(), &kgo.Record{Partition: partition, Value: fmt.Append(nil, "value ", i), Timestamp: time.UnixMilli(int64(1000 + i))}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.t.Error(err)
			}
		})
		if i%10 == 9 {
			if err := k.Flush(b.ctx()); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	if err := k.Flush(b.ctx()); err != nil {
		b.t.Fatal(err)
	}
}

// TestAReaderSurvivesARestart: every record comes once, in order.
func TestAReaderSurvivesARestart(t *testing.T) {
	b := newBroker(t, nil)
	b.create("t", 2)
	b.write("t", 0, 300)
	b.write("t", 1, 300)
	r := b.reader(client.ReaderOptions{Topic: "t", End: client.AtOffset(600), FetchBytes: 1000, MaxWait: 50 * time.Millisecond})
	next := map[int32]int64{}
	for n := 0; ; {
		batch, err := r.Next(b.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for batch.Next() {
			if o := batch.Record().Offset; o != next[batch.Partition] {
				t.Fatalf("offset %d of partition %d, want %d", o, batch.Partition, next[batch.Partition])
			}
			next[batch.Partition]++
			if n++; n == 200 {
				b.stop()
				b.start()
				b.write("t", 0, 300)
				b.write("t", 1, 300)
			}
		}
	}
	if next[0] != 600 || next[1] != 600 {
		t.Errorf("read up to %v", next)
	}
}

// TestAReaderSaysWhatRetentionTook, or goes on and counts it.
func TestAReaderSaysWhatRetentionTook(t *testing.T) {
	b := newBroker(t, nil)
	b.create("t", 1)
	b.write("t", 0, 100)
	topic, _ := b.srv.Broker().Topic("t")
	var u log.Unit
	u.LogStart(log.PartitionID{Topic: topic.ID}, 40)
	if res := b.srv.Node().Data().Do(b.ctx(), &u); res.Err != nil {
		t.Fatal(res.Err)
	}
	o := client.ReaderOptions{Topic: "t", Offsets: client.Offsets{0: 7}, End: client.Latest}
	_, err := b.reader(o).Next(b.ctx())
	var gone *client.OffsetRangeError
	if !errors.As(err, &gone) || !errors.Is(err, client.ErrOffsetRange) || gone.Offset != 7 || gone.LogStart != 40 || gone.LogEnd != 100 {
		t.Errorf("%v", err)
	}
	o.SkipLost = true
	r := b.reader(o)
	if got := readAll(t, b.ctx(), r)[0]; len(got) != 60 || r.Skipped() != 33 {
		t.Errorf("%d records, %d skipped", len(got), r.Skipped())
	}
	o.Offsets[0] = 101 // beyond the end: nothing was lost
	o.End = client.Position{}
	if _, err := b.reader(o).Next(b.ctx()); !errors.Is(err, client.ErrOffsetRange) {
		t.Errorf("%v", err)
	}
}

// A tamperer stands between client and server and changes a byte in answers of more than 1,000 bytes, as often as it is
// told to.
func tamperer(t *testing.T, to func() string, times int32) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int32
	left.Store(times)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to())
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			wg.Go(func() {
				_, _ = io.Copy(out, struct{ io.Reader }{in}) // a splice would keep its pipe
				_ = out.Close()
			})
			wg.Go(func() {
				defer in.Close()
				for {
					head := make([]byte, 4)
					if _, err := io.ReadFull(out, head); err != nil {
						return
					}
					body := make([]byte, binary.BigEndian.Uint32(head))
					if _, err := io.ReadFull(out, body); err != nil {
						return
					}
					if len(body) > 1000 && left.Add(-1) >= 0 {
						body[150] ^= 0x20 // in the first batch
					}
					if _, err := in.Write(append(head, body...)); err != nil {
						return
					}
				}
			})
		}
	})
	return ln.Addr().String()
}

func TestAReaderNeverHandsOutACorruptBatch(t *testing.T) {
	for _, c := range []struct {
		name  string
		times int32
		fails bool
	}{{"once", 1, false}, {"always", 1 << 30, true}} {
		t.Run(c.name, func(t *testing.T) {
			var at atomic.Value // the broker's address, once it has one
			proxy := tamperer(t, func() string { to, _ := at.Load().(string); return to }, c.times)
			b := newBroker(t, func(o *server.Options) { o.Advertised = proxy })
			at.Store(b.addr())
			b.create("t", 1)
			b.write("t", 0, 100)
			r, err := client.NewReader(b.ctx(), proxy, client.ReaderOptions{Topic: "t", End: client.Latest})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			n := int64(0)
			for {
				batch, err := r.Next(b.ctx())
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					if !c.fails || !errors.Is(err, client.ErrCorruptBatch) {
						t.Fatal(err)
					}
					return
				}
				for batch.Next() {
					if rec := batch.Record(); rec.Offset != n || string(rec.Value) != fmt.Sprint("value ", n) {
						t.Fatalf("record %d: %d %q", n, rec.Offset, rec.Value)
					}
					n++
				}
			}
			if c.fails || n != 100 {
				t.Errorf("%d records", n)
			}
		})
	}
}

func TestAReaderWaitsAtTheLogEnd(t *testing.T) {
	b := newBroker(t, nil)
	b.create("t", 1)
	r := b.reader(client.ReaderOptions{Topic: "t", MaxWait: 20 * time.Millisecond})
	short, cancel := context.WithTimeout(b.ctx(), 60*time.Millisecond)
	defer cancel()
	if _, err := r.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	b.write("t", 0, 10)
	batch, err := r.Next(b.ctx())
	if err != nil || !batch.Next() || string(batch.Record().Value) != "value 0" || batch.HighWatermark < 1 {
		t.Errorf("%v", err)
	}
	go r.Close()
	for err == nil {
		_, err = r.Next(b.ctx())
	}
	if !errors.Is(err, client.ErrReaderClosed) {
		t.Errorf("%v", err)
	}
}

func TestAReaderFindsItsPlaces(t *testing.T) {
	b := newBroker(t, nil)
	b.create("t", 2)
	b.write("t", 0, 50) // times 1000 to 1049 ms
	for _, c := range []struct {
		name string
		o    client.ReaderOptions
		want int
	}{
		{"all", client.ReaderOptions{}, 50},
		{"from a time", client.ReaderOptions{Start: client.AtTime(time.UnixMilli(1020))}, 30},
		{"from after all records", client.ReaderOptions{Start: client.AtTime(time.UnixMilli(5000))}, 0},
		{"to a time", client.ReaderOptions{End: client.AtTime(time.UnixMilli(1015))}, 15},
		{"from the end", client.ReaderOptions{Start: client.Latest}, 0},
		{"one partition", client.ReaderOptions{Partitions: []int32{1}}, 0},
	} {
		c.o.Topic = "t"
		if c.o.End == (client.Position{}) {
			c.o.End = client.Latest
		}
		if got := count(readAll(t, b.ctx(), b.reader(c.o))); got != c.want {
			t.Errorf("%s: %d records, want %d", c.name, got, c.want)
		}
	}
	if _, err := client.NewReader(b.ctx(), b.addr(), client.ReaderOptions{Topic: "absent"}); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("%v", err)
	}
	if _, err := client.NewReader(b.ctx(), b.addr(), client.ReaderOptions{Topic: "t", Partitions: []int32{9}}); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("%v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_ = ln.Close()
	var unreached *client.ConnectError
	if _, err := client.NewReader(b.ctx(), addr, client.ReaderOptions{Topic: "t"}); !errors.As(err, &unreached) {
		t.Errorf("%v", err)
	}
}
