package kafka_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime/codec"
	"github.com/headrace/headrace/server/kafka"
)

const paymentsModule = `topic payments {
  ts: time, user: string, amount: decimal(12,2), country: string?, items: list<{sku: string as "id", n: int32}>,
} with key (user), format arrow, time ts`

// declare gives a topic the schema that a module declares for it, and returns that of its columns.
func (f *front) declare(module string) *columnar.Schema {
	f.t.Helper()
	m, err := dsl.Compile("m.hr", module, dsl.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	raw, err := json.Marshal(m.Topics[0])
	if err != nil {
		f.t.Fatal(err)
	}
	text := json.RawMessage(raw)
	err = f.node.Meta().AlterTopic(f.ctx(), m.Topics[0].Name, func(*replication.Topic) (replication.TopicPatch, error) {
		return replication.TopicPatch{Schema: &text}, nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	s, err := codec.ColumnarSchema(m.Topics[0])
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// payments are rows in columns, from JSON that Arrow's own reader takes.
func payments(t testing.TB, s *columnar.Schema, from, n int) []byte {
	t.Helper()
	var lines strings.Builder
	lines.WriteByte('[')
	for i := from; i < from+n; i++ {
		country := `"DE"`
		if i%3 == 0 {
			country = "null"
		}
		if i > from {
			lines.WriteByte(',')
		}
		fmt.Fprintf(&lines, `{"ts":"2024-05-06 07:08:%02d.123456789","user":"u%d","amount":"%d.50","country":%s,"items":[{"id":"a\"b","n":%d}]}`, i%60, i, i, country, i)
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s.Arrow(), strings.NewReader(lines.String()+"]"))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	return columnarBatch(t, s, rec.Columns())
}

func columnarBatch(t testing.TB, s *columnar.Schema, columns []arrow.Array) []byte {
	t.Helper()
	e := columnar.NewEncoder(s)
	n := columns[0].Len()
	if _, err := e.Plan(columns, 0, n, nil, nil); err != nil {
		t.Fatal(err)
	}
	b := e.Append(make([]byte, record.HeaderSize))
	record.PutHeader(b, record.Header{
		Magic: record.Magic, Attributes: record.AttrColumnar, LastOffsetDelta: int32(n - 1), Count: int32(n),
		FirstTimestamp: 1_700_000_000_000, MaxTimestamp: 1_700_000_000_000, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	})
	record.Seal(b)
	return b
}

// produceBatch produces one batch as it is.
func (r *raw) produceBatch(topic string, batch []byte) kmsg.ProduceResponseTopicPartition {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return r.do(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
}

// A Kafka client reads columns as rows, from any offset, and writes rows that become columns.
func TestColumnsAreRowsForKafkaClients(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("payments", 1, nil)
	s := f.declare(paymentsModule)
	r := f.raw(t)
	for i := range 3 {
		if p := r.produceBatch("payments", payments(t, s, 4*i, 4)); p.ErrorCode != 0 || p.BaseOffset != int64(4*i) {
			t.Fatalf("batch %d: %+v", i, p)
		}
	}
	rows := []*kgo.Record{
		{Topic: "payments", Value: []byte(`{"items":[],"user":"ann","ts":"2024-05-06T00:00:00Z","amount":7}`), Key: []byte("ignored")},
		{Topic: "payments", Value: []byte(`{"items":[{"n":1,"id":"x"}],"user":"bob","ts":"2024-05-06T00:00:01Z","amount":7.25,"country":"FR"}`)},
	}
	produce(t, f.client(), rows...)
	if rows[1].Offset != 13 {
		t.Errorf("rows came to offset %d", rows[1].Offset)
	}
	consumer := func(from int64, opts ...kgo.Opt) *kgo.Client {
		return f.client(append(opts, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"payments": {0: kgo.NewOffset().At(from)}}))...)
	}
	var out strings.Builder
	all := consume(t, consumer(0), 14)
	for _, rec := range all {
		fmt.Fprintf(&out, "%d %s %s %s\n", rec.Offset, rec.Timestamp.UTC().Format("2006-01-02T15:04:05.000"), rec.Key, rec.Value)
	}
	golden.Check(t, "testdata/columns.txt", out.String())
	for from := range int64(14) {
		got := consume(t, consumer(from, kgo.FetchMaxPartitionBytes(200)), int(14-from))
		for i, rec := range got {
			want := all[int(from)+i]
			if rec.Offset != want.Offset || string(rec.Value) != string(want.Value) || !rec.Timestamp.Equal(want.Timestamp) {
				t.Fatalf("from %d: offset %d is %s", from, rec.Offset, rec.Value)
			}
		}
	}
	var lines []string
	for _, rec := range all {
		lines = append(lines, string(rec.Value))
	}
	if got := kcat(t, "", "-b", f.addr, "-C", "-t", "payments", "-o", "beginning", "-e", "-q"); strings.TrimSpace(got) != strings.Join(lines, "\n") {
		t.Errorf("kcat reads\n%s", got)
	}
	// Nothing but columns is stored.
	for at := int64(0); at < 14; {
		part := f.partition("payments")
		batches, err := part.Read(at, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			if !codec.Columnar(b.Data) {
				t.Errorf("offset %d holds records", b.Base)
			}
			at = b.Last + 1
		}
	}
	f.restart()
	if again := consume(t, consumer(0), 14); string(again[13].Value) != string(all[13].Value) {
		t.Errorf("after a restart: %s", again[13].Value)
	}
}

// What does not fit is refused with a code that no client retries, and nothing of it is stored.
func TestColumnsThatDoNotFitAreRefused(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("payments", 1, nil)
	f.create("rows", 1, nil)
	s := f.declare(paymentsModule)
	r := f.raw(t)
	good := payments(t, s, 0, 4)
	edit := func(change func(b []byte)) []byte {
		b := append([]byte(nil), good...)
		change(b)
		record.Seal(b)
		return b
	}
	other, err := columnar.NewSchema([]columnar.Column{{Name: "n", Type: s.Columns()[0].Type}})
	if err != nil {
		t.Fatal(err)
	}
	ts := array.NewTimestampBuilder(memory.DefaultAllocator, other.Arrow().Field(0).Type.(*arrow.TimestampType))
	ts.Append(1)
	for _, c := range []struct {
		name, topic string
		batch       []byte
		want        string
	}{
		{"another schema", "payments", columnarBatch(t, other, []arrow.Array{ts.NewArray()}), "E1018"},
		{"a topic of rows", "rows", good, "E1014"},
		{"cut", "payments", edit(func(b []byte) { b[record.HeaderSize+8]++ }), "E1014"},
		{"count", "payments", edit(func(b []byte) {
			h, _ := record.ParseHeader(b)
			h.Count, h.LastOffsetDelta = 3, 2
			record.PutHeader(b, h)
		}), "E1014"},
		{"offsets", "payments", edit(func(b []byte) {
			h, _ := record.ParseHeader(b)
			h.LastOffsetDelta = 9
			record.PutHeader(b, h)
		}), "E1014"},
		{"codec", "payments", edit(func(b []byte) { b[22] |= 1 }), "E1014"},
		{"no payload", "payments", edit(func(b []byte) { clear(b[record.HeaderSize:]) }), "E1018"},
	} {
		p := r.produceBatch(c.topic, c.batch)
		if !errors.Is(kerr.ErrorForCode(p.ErrorCode), kerr.InvalidRecord) || p.ErrorMessage == nil || !strings.HasPrefix(*p.ErrorMessage, c.want) {
			t.Errorf("%s: %d %v", c.name, p.ErrorCode, p.ErrorMessage)
		}
	}
	b := record.NewBuilder()
	b.Append(1, nil, []byte(`{"items":[],"user":"ann","ts":"2024-05-06T00:00:00Z","amount":7}`), nil)
	b.Append(1, nil, []byte(`{"items":[],"user":null,"ts":"2024-05-06T00:00:00Z","amount":7}`), nil)
	if p := r.produceBatch("payments", b.Finish()); p.ErrorMessage == nil || !strings.HasPrefix(*p.ErrorMessage, "E1019") || !strings.Contains(*p.ErrorMessage, "record 1") || !strings.Contains(*p.ErrorMessage, "user") {
		t.Errorf("a record that is no row: %+v", p)
	}
	if end := f.partition("payments").LogEnd(); end != 0 {
		t.Errorf("%d rows are stored", end)
	}
	if err := f.alter("payments", "cleanup.policy=compact"); !errors.Is(err, kerr.InvalidConfig) {
		t.Errorf("compaction of columns: %v", err)
	}
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "x", "1"
	resp := r.do(req).(*kmsg.ApiVersionsResponse)
	if len(resp.SupportedFeatures) != 1 || resp.SupportedFeatures[0].Name != kafka.FeatureColumns {
		t.Errorf("features: %+v", resp.SupportedFeatures)
	}
}

// partition is partition 0 of a topic.
func (f *front) partition(topic string) *log.Partition {
	f.t.Helper()
	row, ok := f.node.Meta().Catalog().Topic(topic)
	if !ok {
		f.t.Fatalf("no topic %s", topic)
	}
	p, ok := f.node.Store().Partition(log.PartitionID{Topic: row.ID})
	if !ok {
		f.t.Fatalf("topic %s has no partition", topic)
	}
	return p
}
