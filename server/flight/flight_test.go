package flight_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
	"github.com/headrace/headrace/server/broker"
)

const modules = `topic trades { ts: time, user: string, amount: float64, country: string?, qty: int32 } with key (user), format arrow, partitions 3
topic clicks { user: string, n: int64 } with key (user), partitions 2
topic lines { n: int64, words: list<string>, at: {x: int32 as "ex", y: int32?}, price: decimal(12,2)? } with format json
view many = from clicks |> where n >= 5 |> select user, n, twice = n * 2
topic sums = from clicks |> where n > 0 |> select user, n
`

// A front is a whole server in this process and a client of its Flight front.
type front struct {
	t  testing.TB
	fs fsx.FS
	s  *server.Server
	c  flight.Client
}

func start(t testing.TB) *front {
	t.Helper()
	f := &front{t: t, fs: fsx.NewMem()}
	f.open()
	t.Cleanup(f.close)
	f.do("apply", map[string]any{"module": "m", "text": modules})
	return f
}

func (f *front) open() {
	f.t.Helper()
	s, err := server.Start(server.Options{
		Data: "/data", FS: f.fs, KafkaAddr: "127.0.0.1:0", HTTPAddr: "-", FlightAddr: "127.0.0.1:0",
		Node: replication.NodeOptions{Data: replication.ShardOptions{WALSegmentBytes: 32 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.s = s
	if f.c, err = flight.NewClientWithMiddleware(s.FlightAddr(), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		f.t.Fatal(err)
	}
}

func (f *front) close() {
	if err := f.c.Close(); err != nil {
		f.t.Error(err)
	}
	if err := f.s.Close(); err != nil {
		f.t.Error(err)
	}
}

// try runs an action and answers the JSON of its results.
func (f *front) try(name string, body any) ([]string, error) {
	f.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		f.t.Fatal(err)
	}
	stream, err := f.c.DoAction(f.t.Context(), &flight.Action{Type: name, Body: text})
	if err != nil {
		return nil, err
	}
	var out []string
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, string(r.Body))
	}
}

func (f *front) do(name string, body any) []string {
	f.t.Helper()
	out, err := f.try(name, body)
	if err != nil {
		f.t.Fatal(name, err)
	}
	return out
}

func topicPath(name string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"topic", name}}
}

func cmd(text string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(text)}
}

func (f *front) schema(d *flight.FlightDescriptor) *arrow.Schema {
	f.t.Helper()
	r, err := f.c.GetSchema(f.t.Context(), d)
	if err != nil {
		f.t.Fatal(err)
	}
	s, err := flight.DeserializeSchema(r.Schema, memory.DefaultAllocator)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func rows(t testing.TB, s *arrow.Schema, text string) arrow.Record {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

type putAnswer struct {
	ID          any
	Partition   int32
	First, Last int64
	More        int
	Next        int64
	Watermark   *int64
	Rows        int
	Failed      int64
	Why         string
}

// put writes batches with the ids 1, 2, .. and answers what the server says.
func (f *front) put(d *flight.FlightDescriptor, batches ...arrow.Record) ([]putAnswer, error) {
	f.t.Helper()
	stream, err := f.c.DoPut(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	w := flight.NewRecordWriter(stream, ipc.WithSchema(batches[0].Schema()))
	w.SetFlightDescriptor(d)
	for i, b := range batches {
		if err := w.WriteWithAppMetadata(b, []byte(fmt.Sprint(i+1))); err != nil && !errors.Is(err, io.EOF) {
			f.t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		f.t.Fatal(err)
	}
	var out []putAnswer
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		var a putAnswer
		if err := json.Unmarshal(r.AppMetadata, &a); err != nil {
			f.t.Fatal(err)
		}
		out = append(out, a)
	}
}

func (f *front) mustPut(d *flight.FlightDescriptor, batches ...arrow.Record) []putAnswer {
	f.t.Helper()
	out, err := f.put(d, batches...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// A read is what a ticket gave: the rows as JSON, and what the batches say.
type read struct {
	rows  []string
	metas []putAnswer
}

func (f *front) read(ctx context.Context, ticket []byte) (read, error) {
	var out read
	stream, err := f.c.DoGet(ctx, &flight.Ticket{Ticket: ticket})
	if err != nil {
		return out, err
	}
	rd, err := flight.NewRecordReader(stream)
	if err != nil {
		return out, err
	}
	defer rd.Release()
	for rd.Next() {
		var m putAnswer
		if err := json.Unmarshal(rd.LatestAppMetadata(), &m); err != nil {
			return out, err
		}
		out.metas = append(out.metas, m)
		text, err := rd.Record().MarshalJSON()
		if err != nil {
			return out, err
		}
		out.rows = append(out.rows, jsonRows(text)...)
	}
	return out, rd.Err()
}

// jsonRows splits an array of JSON objects.
func jsonRows(text []byte) []string {
	var list []json.RawMessage
	if json.Unmarshal(text, &list) != nil {
		return []string{"not JSON: " + string(text)}
	}
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = string(r)
	}
	return out
}

func (f *front) mustRead(ticket string) read {
	f.t.Helper()
	r, err := f.read(f.t.Context(), []byte(ticket))
	if err != nil {
		f.t.Fatal(ticket, err)
	}
	return r
}

func refusedWith(t *testing.T, what string, err error, code codes.Code, text ...string) {
	t.Helper()
	st, ok := status.FromError(err)
	if err == nil || !ok || st.Code() != code {
		t.Errorf("%s: %v, want %s", what, err, code)
		return
	}
	for _, s := range text {
		if !strings.Contains(st.Message(), s) {
			t.Errorf("%s: %q does not say %q", what, st.Message(), s)
		}
	}
}

func TestFlightsListTopicsAndViewsWithTheirSchemas(t *testing.T) {
	f := start(t)
	f.do("create-topic", map[string]any{"name": "raw", "partitions": 2})
	stream, err := f.c.ListFlights(t.Context(), &flight.Criteria{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		info, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := flight.DeserializeSchema(info.Schema, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		if name := info.FlightDescriptor.Path[1]; !s.Equal(f.schema(topicPath(name))) {
			t.Errorf("GetSchema of %s differs", name)
		}
		line := info.FlightDescriptor.Path[1] + ":"
		for _, c := range s.Fields() {
			null := ""
			if c.Nullable {
				null = "?"
			}
			line += fmt.Sprintf(" %s %s%s", c.Name, c.Type, null)
		}
		got = append(got, line)
	}
	want := []string{
		"clicks: user utf8 n int64",
		"clicks_invalid: key binary? value binary?",
		"lines: n int64 words list<item: utf8> at struct<ex: int32, y: int32> price decimal(12, 2)?",
		"many: user utf8 n int64 twice int64",
		"raw: key binary? value binary?",
		"sums: user utf8 n int64",
		"sums_errors: key binary? value binary?",
		"trades: ts timestamp[ns, tz=UTC] user utf8 amount float64 country utf8? qty int32",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
	if out := f.do("list-topics", nil); len(out) != len(want) || !strings.Contains(out[3], `"view"`) {
		t.Errorf("list-topics: %s", out)
	}
}

// What a put acknowledges is what a get answers, also after a restart: columns, rows of JSON, and bytes.
func TestRowsComeBackAsTheyWerePut(t *testing.T) {
	f := start(t)
	f.do("create-topic", map[string]any{"name": "raw", "partitions": 1})
	for topic, batches := range map[string][]string{
		"trades": {
			`[{"ts":"2024-05-06 07:08:09.123456789","user":"ann","amount":1.5,"country":null,"qty":1},{"ts":"2024-05-06 07:08:10","user":"bob","amount":2,"country":"DE","qty":2}]`,
			`[{"ts":"2024-05-06 07:08:11","user":"ann","amount":3,"country":"FR","qty":3}]`,
		},
		"lines": {`[{"n":1,"words":["a","b\""],"at":{"ex":1,"y":null},"price":"1.50"},{"n":2,"words":[],"at":{"ex":2,"y":3},"price":null}]`},
		"raw":   {`[{"key":"YQ==","value":"Yg=="},{"key":null,"value":null},{"key":"","value":""}]`},
	} {
		s := f.schema(topicPath(topic))
		var recs []arrow.Record
		var want []string
		for _, b := range batches {
			recs = append(recs, rows(t, s, b))
			text, err := recs[len(recs)-1].MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, jsonRows(text)...)
		}
		count := int64(0)
		for _, a := range f.mustPut(topicPath(topic), recs...) {
			count += a.Last - a.First + 1
		}
		if count != int64(len(want)) {
			t.Errorf("%s: %d rows acknowledged of %d", topic, count, len(want))
		}
		slices.Sort(want)
		for again := range 2 {
			got := f.mustRead(`{"topic":"` + topic + `"}`)
			slices.Sort(got.rows)
			if strings.Join(got.rows, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s (%d): got\n%s\nwant\n%s", topic, again, strings.Join(got.rows, "\n"), strings.Join(want, "\n"))
			}
			if again == 0 {
				f.close()
				f.open()
			}
		}
	}
}

// Any range of any partition gives exactly its offsets, whatever the batches are in which they were written; the ranges of a
// flight's endpoints together are the topic.
func TestRangesAreExact(t *testing.T) {
	f := start(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for topic, partitions := range map[string]int{"trades": 3, "clicks": 2} {
		s := f.schema(topicPath(topic))
		model := map[int32][]string{}
		var recs []arrow.Record
		n := 0
		for range 12 {
			var lines []string
			for range 1 + rng.IntN(40) {
				line := fmt.Sprintf(`{"user":"u%d","n":%d}`, rng.IntN(9), n)
				if topic == "trades" {
					line = fmt.Sprintf(`{"ts":"2024-05-06 07:08:09","user":"u%d","amount":%d.5,"country":"DE","qty":%d}`, rng.IntN(9), n, n)
				}
				lines = append(lines, line)
				n++
			}
			recs = append(recs, rows(t, s, "["+strings.Join(lines, ",")+"]"))
		}
		answers := f.mustPut(topicPath(topic), recs...)
		// The model: the rows of each partition, in order.
		for i, rec := range recs {
			text, err := rec.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			parts := map[int32]int64{}
			for _, a := range answers {
				if a.ID == float64(i+1) {
					parts[a.Partition] = a.First
				}
			}
			for _, row := range jsonRows(text) {
				var r struct{ User string }
				if err := json.Unmarshal([]byte(row), &r); err != nil {
					t.Fatal(err)
				}
				p := operators.Partition([]byte(r.User), partitions)
				if first, ok := parts[p]; !ok || first > int64(len(model[p])) {
					t.Fatalf("%s: batch %d was answered with %v, and has a row for partition %d", topic, i+1, parts, p)
				}
				model[p] = append(model[p], row)
			}
		}
		info, err := f.c.GetFlightInfo(t.Context(), topicPath(topic))
		if err != nil {
			t.Fatal(err)
		}
		if info.TotalRecords != int64(n) || len(info.Endpoint) != partitions {
			t.Errorf("%s: %d records in %d endpoints", topic, info.TotalRecords, len(info.Endpoint))
		}
		for p, e := range info.Endpoint {
			got := f.mustRead(string(e.Ticket.Ticket))
			if strings.Join(got.rows, "\n") != strings.Join(model[int32(p)], "\n") {
				t.Errorf("%s[%d]: endpoint gives %d rows, want %d", topic, p, len(got.rows), len(model[int32(p)]))
			}
		}
		for range 60 {
			p := int32(rng.IntN(partitions))
			all := model[p]
			from := rng.IntN(len(all) + 1)
			to := from + rng.IntN(len(all)+1-from)
			got := f.mustRead(fmt.Sprintf(`{"topic":%q,"partitions":[%d],"from":%d,"to":%d}`, topic, p, from, to))
			if strings.Join(got.rows, "\n") != strings.Join(all[from:to], "\n") {
				t.Fatalf("%s[%d] %d to %d: got\n%s\nwant\n%s", topic, p, from, to, strings.Join(got.rows, "\n"), strings.Join(all[from:to], "\n"))
			}
			at := int64(from)
			for _, m := range got.metas {
				if m.Partition != p || m.First != at || m.Last < m.First || m.Next != m.Last+1 {
					t.Fatalf("%s[%d] %d to %d: a batch says %+v at %d", topic, p, from, to, m, at)
				}
				at = m.Next
			}
			if at != int64(to) {
				t.Fatalf("%s[%d] %d to %d: the batches end at %d", topic, p, from, to, at)
			}
		}
	}
}

func TestFollowGivesWhatComes(t *testing.T) {
	f := start(t)
	s := f.schema(topicPath("clicks"))
	f.mustPut(topicPath("clicks"), rows(t, s, `[{"user":"a","n":1}]`))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := f.c.DoGet(ctx, &flight.Ticket{Ticket: []byte(`{"topic":"clicks","follow":true,"where":"n != 2"}`)})
	if err != nil {
		t.Fatal(err)
	}
	rd, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Release()
	for i := range 5 {
		if i > 0 {
			f.mustPut(topicPath("clicks"), rows(t, s, fmt.Sprintf(`[{"user":"a","n":2},{"user":"a","n":%d}]`, 10+i)))
		}
		if !rd.Next() {
			t.Fatal(rd.Err())
		}
		want := int64(1)
		if i > 0 {
			want = int64(10 + i)
		}
		if n := rd.Record().Column(1).(*array.Int64).Value(0); rd.Record().NumRows() != 1 || n != want {
			t.Fatalf("row %d: %v", i, rd.Record())
		}
	}
	cancel()
	if rd.Next() || status.Code(rd.Err()) != codes.Canceled {
		t.Errorf("after the client has gone: %v", rd.Err())
	}
	// One that nobody ends ends with the server: front.close would hang.
	if _, err := f.c.DoGet(t.Context(), &flight.Ticket{Ticket: []byte(`{"topic":"clicks","follow":true}`)}); err != nil {
		t.Fatal(err)
	}
}

func TestExpressionsAndViewsAreEvaluatedInDelivery(t *testing.T) {
	f := start(t)
	s := f.schema(topicPath("clicks"))
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf(`{"user":"u%d","n":%d}`, i%3, i))
	}
	f.mustPut(cmd(`{"topic":"clicks","partition":1}`), rows(t, s, "["+strings.Join(lines, ",")+"]"))
	for ticket, want := range map[string]string{
		`{"topic":"clicks","where":"n >= 18"}`:                                                      `{"n":18,"user":"u0"} {"n":19,"user":"u1"}`,
		`{"topic":"clicks","where":"n >= 18","select":"user"}`:                                      `{"user":"u0"} {"user":"u1"}`,
		`{"topic":"clicks","from":17,"partitions":[1],"where":"n != 18","select":"double = 2 * n"}`: `{"double":34} {"double":38}`,
		`{"topic":"clicks","where":"n > 100"}`:                                                      ``,
		`{"topic":"clicks","where":"user == \"u2\" and n > 10","select":"record.offset as at, n"}`:  ``,
		`{"topic":"many","partitions":[1],"from":17}`:                                               `{"n":17,"twice":34,"user":"u2"} {"n":18,"twice":36,"user":"u0"} {"n":19,"twice":38,"user":"u1"}`,
	} {
		r, err := f.read(t.Context(), []byte(ticket))
		if strings.Contains(ticket, "record.offset as") {
			refusedWith(t, ticket, err, codes.InvalidArgument, "E1067", "E0")
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", ticket, err)
		}
		if got := strings.Join(r.rows, " "); got != want {
			t.Errorf("%s: got %s", ticket, got)
		}
	}
	r := f.mustRead(`{"topic":"clicks","where":"n % 9 == 5"}`)
	if len(r.metas) != 1 || r.metas[0].First != 5 || r.metas[0].Last != 14 || r.metas[0].Next != 20 {
		t.Errorf("offsets of a filtered batch: %+v", r.metas)
	}
	for ticket, text := range map[string]string{
		`{"topic":"clicks","where":"nn > 1"}`:                         "`nn`",
		`{"topic":"clicks","where":"n > 1 |> explode user"}`:          "E",
		`{"topic":"clicks","where":"n > 1\ntopic x {a: int64}"}`:      "only a filter",
		`{"topic":"clicks","where":"n > 1 |> agg x = count()"}`:       "E",
		`{"topic":"clicks","where":"n > 1\nview w = from delivered"}`: "only a filter",
	} {
		_, err := f.read(t.Context(), []byte(ticket))
		refusedWith(t, ticket, err, codes.InvalidArgument, "E10", text)
	}
	_, err := f.read(t.Context(), []byte(`{"topic":"many","where":"n > 1"}`))
	refusedWith(t, "a filter over a view", err, codes.Unimplemented, "not built")
}

func TestExchangeAnswersEachBatch(t *testing.T) {
	f := start(t)
	stream, err := f.c.DoExchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	w := flight.NewRecordWriter(stream, ipc.WithSchema(s))
	w.SetFlightDescriptor(cmd(`{"where":"a == nil or a > 1","select":"s, b = 10 / a"}`))
	var rd *flight.Reader
	for i, c := range []struct{ in, out, meta string }{
		{`[{"a":1,"s":"x"},{"a":2,"s":null},{"a":5,"s":"z"}]`, `[{"s":null,"b":5},{"s":"z","b":2}]`, `{"id":"b0","rows":3}`},
		{`[{"a":0,"s":"x"}]`, `[]`, `{"id":"b1","rows":1}`},
		{`[]`, `[]`, `{"id":"b2","rows":0}`},
		{`[{"a":null,"s":"n"}]`, `[{"s":"n","b":null}]`, `{"id":"b3","rows":1}`},
	} {
		if err := w.WriteWithAppMetadata(rows(t, s, c.in), []byte(fmt.Sprintf("b%d", i))); err != nil {
			t.Fatal(err)
		}
		if rd == nil {
			if rd, err = flight.NewRecordReader(stream); err != nil {
				t.Fatal(err)
			}
			defer rd.Release()
		}
		if !rd.Next() {
			t.Fatal(i, rd.Err())
		}
		want := rows(t, rd.Schema(), c.out)
		if !array.RecordEqual(rd.Record(), want) || string(rd.LatestAppMetadata()) != c.meta {
			t.Errorf("batch %d: %v %s", i, rd.Record(), rd.LatestAppMetadata())
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if rd.Next() || rd.Err() != nil {
		t.Errorf("at the end: %v", rd.Err())
	}
}

func TestWhatIsRefusedSaysWhyAndStoresNothing(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	for text, code := range map[string]codes.Code{
		`{"topic":"nothing"}`:                     codes.NotFound,
		`{"topic":"clicks","partitions":[7]}`:     codes.NotFound,
		`{"topic":"clicks","from":9}`:             codes.OutOfRange,
		`{"topic":"clicks","from":-1}`:            codes.InvalidArgument,
		`{"topic":"clicks","from":"tomorrow"}`:    codes.InvalidArgument,
		`{"topic":"clicks","form":1}`:             codes.InvalidArgument,
		`{"topic":"clicks"} x`:                    codes.InvalidArgument,
		`{"topic":"clicks","follow":true,"to":0}`: codes.InvalidArgument,
		`{`:                        codes.InvalidArgument,
		`{"topic":"clicks"`:        codes.InvalidArgument,
		"HRF\x01 and so on":        codes.InvalidArgument,
		``:                         codes.InvalidArgument,
		strings.Repeat("x", 1<<20): codes.InvalidArgument,
	} {
		_, err := f.read(ctx, []byte(text))
		refusedWith(t, fmt.Sprintf("%.60q", text), err, code, "E10")
	}
	for _, d := range []*flight.FlightDescriptor{{}, {Type: flight.DescriptorPATH, Path: []string{"clicks"}}, {Type: flight.DescriptorPATH, Path: []string{"pipeline", "clicks"}}} {
		_, err := f.c.GetFlightInfo(ctx, d)
		refusedWith(t, d.String(), err, codes.InvalidArgument, "E1060")
	}
	// A ticket is changed, or outlives its topic.
	f.do("create-topic", map[string]any{"name": "raw"})
	info, err := f.c.GetFlightInfo(ctx, topicPath("raw"))
	if err != nil {
		t.Fatal(err)
	}
	ticket := info.Endpoint[0].Ticket.Ticket
	for i := range ticket {
		b := slices.Clone(ticket)
		b[i] ^= 1
		_, err := f.read(ctx, b)
		refusedWith(t, fmt.Sprintf("byte %d of a ticket", i), err, codes.InvalidArgument, "E1060")
	}
	f.do("delete-topic", map[string]any{"name": "raw"})
	f.do("create-topic", map[string]any{"name": "raw"})
	_, err = f.read(ctx, ticket)
	refusedWith(t, "an old ticket", err, codes.NotFound, "E1001", "created again")

	clicks := f.schema(topicPath("clicks"))
	field := func(name string, t arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: t, Nullable: true}
	}
	of := func(fields ...arrow.Field) arrow.Record {
		s := arrow.NewSchema(fields, nil)
		return rows(t, s, "[]")
	}
	str, i64 := arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64
	nullable := arrow.NewSchema([]arrow.Field{field("user", str), field("n", i64)}, nil)
	for _, c := range []struct {
		what string
		d    *flight.FlightDescriptor
		rec  arrow.Record
		code codes.Code
		text string
	}{
		{"another name", topicPath("clicks"), of(field("usr", str), field("n", i64)), codes.InvalidArgument, `E1018 topic "clicks": column 1 is "user", not "usr"`},
		{"another type", topicPath("clicks"), of(field("user", str), field("n", arrow.PrimitiveTypes.Int32)), codes.InvalidArgument, `E1018 topic "clicks": column "n" is int64, not int32`},
		{"one missing", topicPath("clicks"), of(field("user", str)), codes.InvalidArgument, `E1018 topic "clicks": column 2, "n", is missing`},
		{"one too many", topicPath("clicks"), of(field("user", str), field("n", i64), field("x", i64)), codes.InvalidArgument, `E1018 topic "clicks": column 3, "x", is one too many`},
		{"a type without a place", topicPath("clicks"), of(field("user", str), field("n", arrow.FixedWidthTypes.Float16)), codes.InvalidArgument, "E1018"},
		{"a null where there are none", topicPath("clicks"), rows(t, nullable, `[{"user":"a","n":1},{"user":null,"n":2}]`), codes.InvalidArgument, "E1014"},
		{"a derived topic", topicPath("sums"), rows(t, clicks, `[{"user":"a","n":1}]`), codes.PermissionDenied, "E1008"},
		{"a view", topicPath("many"), rows(t, clicks, `[{"user":"a","n":1}]`), codes.PermissionDenied, "E1009"},
		{"no topic", topicPath("none"), rows(t, clicks, `[{"user":"a","n":1}]`), codes.NotFound, "E1001"},
		{"no partition", cmd(`{"topic":"clicks","partition":2}`), rows(t, clicks, `[{"user":"a","n":1}]`), codes.NotFound, "E1002"},
		{"too much for one row", topicPath("clicks"), rows(t, clicks, `[{"user":"`+strings.Repeat("x", 2<<20)+`","n":1}]`), codes.InvalidArgument, "E1013"},
		{"no descriptor", nil, rows(t, clicks, `[{"user":"a","n":1}]`), codes.InvalidArgument, "E1060"},
	} {
		out, err := f.put(c.d, c.rec)
		refusedWith(t, c.what, err, c.code, c.text)
		if len(out) > 0 {
			t.Errorf("%s: acknowledged with %+v", c.what, out)
		}
	}
	if r := f.mustRead(`{"topic":"clicks"}`); len(r.rows) != 0 {
		t.Errorf("rows are stored: %s", r.rows)
	}
	for name, body := range map[string]any{"nothing": nil, "apply": map[string]any{"module": "x", "txt": ""}, "create-topic": map[string]any{"name": "a b"}, "stop": map[string]any{"name": "no"}, "delete-topic": map[string]any{"name": "clicks"}} {
		if out, err := f.try(name, body); err == nil || !strings.Contains(err.Error(), "E10") {
			t.Errorf("%s: %v %v", name, out, err)
		}
	}
	_, err = f.try("apply", map[string]any{"module": "x", "text": "topic a = from clicks |> where nn > 1"})
	refusedWith(t, "a module that does not compile", err, codes.InvalidArgument, "E1067", "`nn`")
	f.do("stop", map[string]any{"name": "m"})
}

// A batch that is larger than the topic's record batches is several of them, acknowledged as one range; one that no entry of the
// log holds is refused whole.
func TestBatchesAreStoredWhole(t *testing.T) {
	f := start(t)
	for _, topic := range []string{"trades", "clicks"} {
		s := f.schema(topicPath(topic))
		big := func(n, size int) arrow.Record {
			var lines []string
			for i := range n {
				text := strings.Repeat("x", size)
				if topic == "trades" {
					lines = append(lines, fmt.Sprintf(`{"ts":"2024-05-06 07:08:09","user":"u","amount":%d,"country":%q,"qty":1}`, i, text))
				} else {
					lines = append(lines, fmt.Sprintf(`{"user":%q,"n":%d}`, text, i))
				}
			}
			return rows(t, s, "["+strings.Join(lines, ",")+"]")
		}
		out := f.mustPut(topicPath(topic), big(60, 50_000))
		if len(out) != 1 || out[0].First != 0 || out[0].Last != 59 {
			t.Errorf("%s: %+v", topic, out)
		}
		out, err := f.put(topicPath(topic), big(1, 10), big(200, 50_000))
		refusedWith(t, topic, err, codes.InvalidArgument, "E1013")
		if len(out) != 1 {
			t.Errorf("%s: the batch before is answered with %+v", topic, out)
		}
		if r := f.mustRead(`{"topic":"` + topic + `"}`); len(r.rows) != 61 || len(r.metas) < 3 {
			t.Errorf("%s: %d rows in %d batches", topic, len(r.rows), len(r.metas))
		}
	}
}

func TestTimeMarksAreWatermarks(t *testing.T) {
	f := start(t)
	s := f.schema(topicPath("clicks"))
	put := func(n int) {
		f.mustPut(cmd(`{"topic":"clicks","partition":0}`), rows(t, s, fmt.Sprintf(`[{"user":"a","n":%d}]`, n)))
	}
	put(1)
	topic, _ := f.s.Broker().Topic("clicks")
	if err := f.s.Broker().EndTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	put(2)
	r := f.mustRead(`{"topic":"clicks","partitions":[0]}`)
	if len(r.metas) != 2 || r.metas[0].Watermark != nil || r.metas[1].Watermark == nil || *r.metas[1].Watermark != math.MaxInt64 || r.metas[1].First != 2 {
		t.Errorf("%+v", r.metas)
	}
	// Records that are no rows are left out, and cost no one else anything.
	b := record.NewBuilder()
	b.Append(1, nil, []byte(`{"user":"x"}`), nil)
	b.Append(1, nil, []byte(`{"user":"x","n":3}`), nil)
	done := make(chan broker.Appended, 1)
	if err := f.s.Broker().Append(t.Context(), topic, 0, b.Finish(), false, func(a broker.Appended) { done <- a }); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.Err != nil {
		t.Fatal(a.Err)
	}
	if r := f.mustRead(`{"topic":"clicks","partitions":[0],"from":3}`); strings.Join(r.rows, " ") != `{"n":3,"user":"x"}` || r.metas[0].First != 4 {
		t.Errorf("%+v", r)
	}
}
