package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/server/kafka"
)

func produce(t *testing.T, c *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consume reads n records.
func consume(t *testing.T, c *kgo.Client, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fs := c.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		out = append(out, fs.Records()...)
	}
	return out
}

func TestRecordsComeBackAsTheyWereSent(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 3, nil)
	for _, codec := range []struct {
		name string
		c    kgo.CompressionCodec
	}{{"none", kgo.NoCompression()}, {"gzip", kgo.GzipCompression()}, {"snappy", kgo.SnappyCompression()}, {"lz4", kgo.Lz4Compression()}, {"zstd", kgo.ZstdCompression()}} {
		t.Run(codec.name, func(t *testing.T) {
			c := f.client(kgo.ProducerBatchCompression(codec.c), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			var sent []*kgo.Record
			for i := range 300 {
				r := &kgo.Record{Topic: "t", Partition: int32(i % 3), Key: fmt.Appendf(nil, "k%d", i), Value: bytes.Repeat([]byte("v"), i)}
				if i%7 == 0 {
					r.Key, r.Value = nil, nil
				}
				r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte{byte(i)}}}
				sent = append(sent, r)
			}
			before, err := f.admin().ListEndOffsets(f.ctx(), "t")
			if err != nil {
				t.Fatal(err)
			}
			produce(t, c, sent...)
			from := map[int32]kgo.Offset{}
			before.Each(func(o kadm.ListedOffset) { from[o.Partition] = kgo.NewOffset().At(o.Offset) })
			got := consume(t, f.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": from})), len(sent))
			byPlace := map[[2]int64]*kgo.Record{}
			for _, r := range got {
				byPlace[[2]int64{int64(r.Partition), r.Offset}] = r
			}
			for _, s := range sent {
				g := byPlace[[2]int64{int64(s.Partition), s.Offset}]
				if g == nil || !bytes.Equal(g.Key, s.Key) || !bytes.Equal(g.Value, s.Value) || g.Timestamp.UnixMilli() != s.Timestamp.UnixMilli() ||
					len(g.Headers) != 1 || !bytes.Equal(g.Headers[0].Value, s.Headers[0].Value) || (g.Value == nil) != (s.Value == nil) {
					t.Fatalf("partition %d offset %d: sent %v, got %v", s.Partition, s.Offset, s, g)
				}
			}
		})
	}
}

func TestAcksZeroAndOne(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	for k, acks := range []kgo.Acks{kgo.NoAck(), kgo.LeaderAck()} {
		// What is not acknowledged may still be on its way; another connection would overtake it.
		consume(t, f.client(kgo.ConsumeTopics("t")), 50*k)
		c := f.client(kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite())
		for i := range 50 {
			produce(t, c, &kgo.Record{Topic: "t", Value: fmt.Append(nil, i)})
		}
		if err := c.Flush(f.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	got := consume(t, f.client(kgo.ConsumeTopics("t")), 100)
	for i, r := range got {
		if string(r.Value) != fmt.Sprint(i%50) {
			t.Fatalf("record %d is %q", i, r.Value)
		}
	}
}

func TestProduceErrorsAreClear(t *testing.T) {
	f := start(t, frontOptions{})
	size := "2000"
	f.create("small", 1, map[string]*string{"max.message.bytes": &size})
	c := f.client(kgo.DisableIdempotentWrite(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RecordRetries(0), kgo.UnknownTopicRetries(0), kgo.ProducerBatchCompression(kgo.NoCompression()))
	err := c.ProduceSync(f.ctx(), &kgo.Record{Topic: "small", Value: make([]byte, 3000)}).FirstErr()
	if !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := c.ProduceSync(f.ctx(), &kgo.Record{Topic: "nobody", Value: nil}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("unknown topic: %v", err)
	}
	if err := c.ProduceSync(f.ctx(), &kgo.Record{Topic: "../x", Value: nil}).FirstErr(); !errors.Is(err, kerr.InvalidTopicException) {
		t.Errorf("a path as a name: %v", err)
	}
	produce(t, c, &kgo.Record{Topic: "small", Value: make([]byte, 100)})
}

func TestLogAppendTimeIsStamped(t *testing.T) {
	f := start(t, frontOptions{})
	kind := "LogAppendTime"
	f.create("t", 1, map[string]*string{"message.timestamp.type": &kind})
	before := time.Now().Truncate(time.Millisecond)
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression()} {
		produce(t, f.client(kgo.ProducerBatchCompression(codec)), &kgo.Record{Topic: "t", Value: bytes.Repeat([]byte("x"), 500), Timestamp: time.Unix(5, 0)})
	}
	for _, r := range consume(t, f.client(kgo.ConsumeTopics("t")), 2) {
		if r.Timestamp.Before(before) || r.Attrs.TimestampType() != 1 {
			t.Errorf("timestamp %v, type %d", r.Timestamp, r.Attrs.TimestampType())
		}
	}
}

// TestIdempotentProducerSurvivesRestarts: every record once, in order.
func TestIdempotentProducerSurvivesRestarts(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	addr := f.addr
	c := f.client(kgo.RecordRetries(50), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }))
	for i := range 200 {
		produce(t, c, &kgo.Record{Topic: "t", Value: fmt.Append(nil, i)})
		if i == 100 {
			f.restart()
			c.UpdateSeedBrokers(f.addr)
			if f.addr == addr {
				t.Fatal("the same port")
			}
		}
	}
	got := consume(t, f.client(kgo.ConsumeTopics("t")), 200)
	for i, r := range got {
		if string(r.Value) != fmt.Sprint(i) || r.Offset != int64(i) {
			t.Fatalf("record %d is %q at offset %d", i, r.Value, r.Offset)
		}
	}
}

func TestAutoCreateNeedsBothSides(t *testing.T) {
	f := start(t, frontOptions{})
	c := f.client(kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0))
	if err := c.ProduceSync(f.ctx(), &kgo.Record{Topic: "t", Value: nil}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("the server does not allow it: %v", err)
	}
	g := start(t, frontOptions{kafka: kafka.Options{AutoCreate: true}})
	if err := g.client(kgo.UnknownTopicRetries(0)).ProduceSync(g.ctx(), &kgo.Record{Topic: "t", Value: nil}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("the client does not ask for it: %v", err)
	}
	produce(t, g.client(kgo.AllowAutoTopicCreation()), &kgo.Record{Topic: "t", Value: []byte("x")})
}

func TestTransactionsAreRefusedClearly(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	c := f.client(kgo.TransactionalID("tx"))
	err := c.BeginTransaction()
	if err == nil {
		err = c.ProduceSync(f.ctx(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr()
	}
	if !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		t.Errorf("got %v", err)
	}
	if log := f.logs.String(); !strings.Contains(log, "E1022") {
		t.Errorf("the log does not say why: %s", log)
	}
}
