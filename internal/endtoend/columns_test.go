package endtoend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/server"
)

// readings is the Arrow schema of a topic { ts: time, id: int64, name: string?, x: float64 }.
var readings = arrow.NewSchema([]arrow.Field{
	{Name: "ts", Type: arrow.FixedWidthTypes.Timestamp_ns},
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "x", Type: arrow.PrimitiveTypes.Float64},
}, nil)

const readingsModule = `topic readings { ts: time, id: int64, name: string?, x: float64 } with key (name), format arrow, time ts, partitions 3
topic odd = from readings |> where id % 2 == 1 |> select id, ts, name with format arrow`

func reading(alloc memory.Allocator, from, n int64) arrow.Record {
	b := array.NewRecordBuilder(alloc, readings)
	defer b.Release()
	for id := from; id < from+n; id++ {
		b.Field(0).(*array.TimestampBuilder).Append(arrow.Timestamp(1_700_000_000_000_000_000 + id))
		b.Field(1).(*array.Int64Builder).Append(id)
		if id%5 == 0 {
			b.Field(2).AppendNull()
		} else {
			b.Field(2).(*array.StringBuilder).Append(fmt.Sprint("n", id%7))
		}
		b.Field(3).(*array.Float64Builder).Append(float64(id) / 4)
	}
	return b.NewRecord()
}

// A frames counts what was acknowledged.
type frames struct {
	mu   sync.Mutex
	rows map[int32]map[int64]int // partition, first offset: rows
	errs []error
}

func (f *frames) done(a client.FrameAck) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Err != nil {
		f.errs = append(f.errs, a.Err)
		return
	}
	if f.rows[a.Partition] == nil {
		f.rows[a.Partition] = map[int64]int{}
	}
	f.rows[a.Partition][a.Offset] += a.Rows
}

// Columns come in once, through connections that are cut in the middle of frames, and are there for a client that reads
// rows and for a pipeline; every record's rows keep their order in a partition.
func TestAnIngestIsExactlyOnceThroughCutConnections(t *testing.T) {
	var address atomic.Value
	cut := newCutter(t, 5, 400<<10, func() string { return address.Load().(string) })
	o := brokerOptions(fsx.NewMem())
	o.Advertised, o.NoEngine = cut.ln.Addr().String(), false
	s := startBroker(t, o)
	address.Store(s.KafkaAddr())
	if _, err := client.NewAPI(s.HTTPAddr()).Apply(t.Context(), "m", readingsModule, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	const rows = 60_000
	for _, key := range [][]string{nil, {"name"}} {
		p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{BatchBytes: 20_000})
		in, err := p.Ingest(t.Context(), "readings", readings, client.IngestOptions{Key: key, FrameRows: 500, Time: "ts"})
		if err != nil {
			t.Fatal(err)
		}
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		got := &frames{rows: map[int32]map[int64]int{}}
		for id := int64(0); id < rows; id += 1500 {
			rec := reading(alloc, id, 1500)
			if err := in.Write(t.Context(), rec, got.done); err != nil {
				t.Fatal(err)
			}
			rec.Release()
		}
		alloc.AssertSize(t, 0)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, part := range got.rows {
			for _, k := range part {
				n += k
			}
		}
		if n != rows || len(got.errs) > 0 {
			t.Fatalf("%d rows are acknowledged, %v", n, got.errs)
		}
	}
	if cut.cuts.Load() < 3 {
		t.Errorf("only %d connections were cut", cut.cuts.Load())
	}
	cut.every.Store(0)
	c, err := client.Kafka(s.KafkaAddr(), kgo.ConsumeTopics("readings", "odd"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen, byKey := map[string]int{}, map[string]map[int32]bool{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n := 0; n < 3*rows; {
		fs := c.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("after %d records: %v", n, err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			n++
			seen[r.Topic+string(r.Value)]++
			if r.Topic == "readings" && r.Timestamp.UnixMilli() != 1_700_000_000_000 {
				t.Errorf("timestamp %v", r.Timestamp)
			}
			if byKey[string(r.Key)] == nil {
				byKey[string(r.Key)] = map[int32]bool{}
			}
			byKey[string(r.Key)][r.Partition] = true
		})
	}
	for _, id := range []int64{0, 1, 499, 500, 59_999} {
		name := `null`
		if id%5 != 0 {
			name = fmt.Sprintf(`"n%d"`, id%7)
		}
		v := fmt.Sprintf(`readings{"ts":"%s","id":%d,"name":%s,"x":%v}`, time.Unix(0, 1_700_000_000_000_000_000+id).UTC().Format(time.RFC3339Nano), id, name, float64(id)/4)
		if seen[v] != 2 {
			t.Errorf("%s was read %d times", v, seen[v])
		}
	}
	for v, n := range seen {
		if n != 2 {
			t.Fatalf("%s was read %d times", v, n)
		}
	}
}

// What cannot be sent is refused before it is, and what the server refuses comes back with its words.
func TestAnIngestSaysWhatIsRefused(t *testing.T) {
	o := brokerOptions(fsx.NewMem())
	o.NoEngine = false
	s := startBroker(t, o)
	if _, err := client.NewAPI(s.HTTPAddr()).Apply(t.Context(), "m", readingsModule, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{})
	other := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	for _, bad := range []*arrow.Schema{
		arrow.NewSchema(nil, nil),
		arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.FixedWidthTypes.MonthInterval}}, nil),
	} {
		if _, err := p.Ingest(t.Context(), "readings", bad, client.IngestOptions{}); !errors.Is(err, client.ErrColumns) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := p.Ingest(t.Context(), "readings", other, client.IngestOptions{Key: []string{"no"}}); !errors.Is(err, client.ErrColumns) {
		t.Error(err)
	}
	in, err := p.Ingest(t.Context(), "readings", other, client.IngestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rec := reading(memory.DefaultAllocator, 0, 3)
	if err := in.Write(t.Context(), rec, nil); !errors.Is(err, client.ErrColumns) {
		t.Errorf("a record of other columns: %v", err)
	}
	if err := in.WriteColumns(t.Context(), nil, []string{"x"}); !errors.Is(err, client.ErrColumns) {
		t.Errorf("strings for int64: %v", err)
	}
	got := &frames{rows: map[int32]map[int64]int{}}
	if err := in.WriteColumns(t.Context(), got.done, []int64{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wire *client.WireError
	if len(got.errs) != 1 || !errors.Is(got.errs[0], kerr.InvalidRecord) || !errors.As(got.errs[0], &wire) || wire.Code != "E1018" {
		t.Errorf("another schema: %v", got.errs)
	}
	// The next ones are numbered again, and go.
	in, err = p.Ingest(t.Context(), "readings", readings, client.IngestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got.errs = nil
	text := client.Text{Offsets: []int32{0, 1, 1}, Bytes: []byte("a")}
	if err := in.WriteColumns(t.Context(), got.done, []int64{1, 2}, []int64{1, 2}, text, []float64{0, 1}); err != nil {
		t.Fatal(err)
	}
	if err := in.WriteColumns(t.Context(), got.done, []int64{1, 2}, []int64{1}, text, []float64{0, 1}); !errors.Is(err, client.ErrColumns) {
		t.Errorf("columns of two lengths: %v", err)
	}
	for _, bad := range []client.Text{{}, {Offsets: []int32{0, 2, 1}, Bytes: []byte("ab")}, {Offsets: []int32{0, 1, 3}, Bytes: []byte("ab")}, {Offsets: []int32{-1, 0, 1}, Bytes: []byte("ab")}} {
		if err := in.WriteColumns(t.Context(), got.done, []int64{1, 2}, []int64{1, 2}, bad, []float64{0, 1}); !errors.Is(err, client.ErrColumns) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if err := p.Flush(t.Context()); err != nil || len(got.errs) > 0 {
		t.Errorf("%v %v", err, got.errs)
	}
}

// Columns go from slices to a topic of format arrow.
func ExampleIngest() {
	dir, err := os.MkdirTemp("", "ingest-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	s, err := server.Start(server.Options{Data: dir, KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	ctx := context.Background()
	module := "topic sales { ts: time, user: string, amount: float64 } with format arrow, time ts"
	if _, err := client.NewAPI(s.HTTPAddr()).Apply(ctx, "shop", module, client.ApplyOptions{}); err != nil {
		fmt.Println(err)
		return
	}

	p, err := client.NewProducer(s.KafkaAddr(), client.ProducerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	sales, err := p.Ingest(ctx, "sales", arrow.NewSchema([]arrow.Field{
		{Name: "ts", Type: arrow.FixedWidthTypes.Timestamp_ns},
		{Name: "user", Type: arrow.BinaryTypes.String},
		{Name: "amount", Type: arrow.PrimitiveTypes.Float64},
	}, nil), client.IngestOptions{Time: "ts"})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now().UnixNano()
	err = sales.WriteColumns(ctx, func(a client.FrameAck) {
		fmt.Println(a.Rows, "rows durable from offset", a.Offset, a.Err)
	}, []int64{now, now + 1, now + 2}, []string{"ann", "bob", "ann"}, []float64{9.5, 20, 3.25})
	if err != nil {
		fmt.Println(err)
	}
	if err := p.Close(ctx); err != nil { // waits for all
		fmt.Println(err)
	}
	// Output:
	// 3 rows durable from offset 0 <nil>
}
