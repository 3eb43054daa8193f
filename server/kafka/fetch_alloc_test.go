package kafka

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
)

// A fetchLoop is the server's side of one connection that reads a topic over and over: everything between the decoded
// request and the socket.
type fetchLoop struct {
	broker *broker.Broker
	conn   *conn
	kreq   *kmsg.FetchRequest
	end    int64
	bytes  int // of one answer
	count  int // of answers
}

// newFetchLoop fills a topic with count batches of records of 100 B. With cold everything is in files.
func newFetchLoop(tb testing.TB, records, count int, cold bool) *fetchLoop {
	tb.Helper()
	o := replication.NodeOptions{
		Dir: "/data", FS: fsx.NewMem(), Data: replication.ShardOptions{WALSegmentBytes: 32 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20},
	}
	if cold {
		o.CacheBytes = 1
	}
	node, err := replication.OpenNode(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := node.Close(); err != nil {
			tb.Error(err)
		}
	})
	b := broker.New(broker.Options{Node: node})
	created := b.CreateTopics(tb.Context(), []broker.TopicSpec{{Name: "t"}}, nil, false)[0]
	if created.Err != nil {
		tb.Fatal(created.Err)
	}
	id := log.PartitionID{Topic: created.Topic.ID}
	for range count {
		var u log.Unit
		u.Append(id, testBatch(records, 100))
		if r := node.Data().Do(tb.Context(), &u); r.Err != nil {
			tb.Fatal(r.Err)
		}
	}
	if err := node.Store().Flush(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	// One entry more, whose Apply lets go of what is in files by now.
	var u log.Unit
	u.Append(id, testBatch(records, 100))
	if r := node.Data().Do(tb.Context(), &u); r.Err != nil {
		tb.Fatal(r.Err)
	}
	kreq := kmsg.NewPtrFetchRequest()
	kreq.Version, kreq.MaxBytes = 12, 64<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic = "t"
	p := kmsg.NewFetchRequestTopicPartition()
	p.PartitionMaxBytes = 1 << 20
	t.Partitions = append(t.Partitions, p)
	kreq.Topics = append(kreq.Topics, t)
	return &fetchLoop{broker: b, conn: &conn{srv: &Server{broker: b}}, kreq: kreq, end: int64(records * count)}
}

// next answers one request and gives the memory back, as the outbox does.
func (l *fetchLoop) next(tb testing.TB) {
	f := fetching{srv: l.conn.srv, session: &l.conn.fetches, req: request{key: keyFetch, version: 12}, kreq: l.kreq}
	fr := f.plan()
	l.broker.Fetch(tb.Context(), fr)
	part := &fr.Parts[0]
	if part.Err != nil || len(part.Batches) == 0 {
		tb.Fatalf("%d batches at offset %d: %v", len(part.Batches), part.Offset, part.Err)
	}
	at := &l.kreq.Topics[0].Partitions[0].FetchOffset
	if *at = part.Batches[len(part.Batches)-1].Last + 1; *at >= l.end {
		*at = 0
	}
	_, n := f.assemble(fr)
	l.conn.fetches.Done(fr)
	fr.Release()
	l.bytes += n
	l.count++
}

// TestAFetchAllocatesNothingPerRecord compares batches of 10 records with batches of 1,000, as many of them.
func TestAFetchAllocatesNothingPerRecord(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's pools forget at random")
	}
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprintf("files=%v", cold), func(t *testing.T) {
			few, many := newFetchLoop(t, 10, 16, cold), newFetchLoop(t, 1000, 16, cold)
			of := func(l *fetchLoop) float64 {
				l.kreq.Topics[0].Partitions[0].PartitionMaxBytes = int32(4 * len(testBatch(int(l.end)/16, 100)))
				l.next(t)
				return testing.AllocsPerRun(200, func() { l.next(t) })
			}
			a, b := of(few), of(many)
			if b > a+2 || b > 40 {
				t.Errorf("a fetch of 4 batches allocates %v times with 10 records each, %v times with 1,000", a, b)
			}
		})
	}
}

// BenchmarkFetch is the server's work for one fetch of about 1 MiB, without the socket.
func BenchmarkFetch(b *testing.B) {
	for _, cold := range []bool{false, true} {
		var allocs [2]float64
		for i, records := range []int{10, 1000} {
			b.Run(fmt.Sprintf("files=%v/records=%d", cold, records), func(b *testing.B) {
				l := newFetchLoop(b, records, 3<<20/(records*107), cold)
				b.ReportAllocs()
				l.next(b)
				per := testing.AllocsPerRun(20, func() { l.next(b) })
				batches := float64(l.bytes) / float64(l.count) / float64(len(testBatch(records, 100)))
				allocs[i] = per / batches
				l.bytes, l.count = 0, 0
				for b.Loop() {
					l.next(b)
				}
				b.SetBytes(int64(l.bytes / l.count))
				b.ReportMetric(allocs[i], "allocs/batch")
				if per > 40+batches/4 {
					b.Fatalf("a fetch of %.0f batches of %d records allocates %v times", batches, records, per)
				}
			})
		}
	}
}
