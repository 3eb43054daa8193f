package flight

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/server/broker"
)

// sent keeps what a writer sends.
type sent struct{ list []*flight.FlightData }

func (s *sent) Send(m *flight.FlightData) error {
	s.list = append(s.list, &flight.FlightData{DataHeader: append([]byte(nil), m.DataHeader...), DataBody: append([]byte(nil), m.DataBody...), AppMetadata: m.AppMetadata})
	return nil
}

// everyType has a column of each type that a topic can have.
var everyType = arrow.NewSchema([]arrow.Field{
	{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "i8", Type: arrow.PrimitiveTypes.Int8},
	{Name: "u64", Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
	{Name: "f", Type: arrow.PrimitiveTypes.Float64},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "raw", Type: arrow.BinaryTypes.Binary},
	{Name: "big", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	{Name: "ts", Type: &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}},
	{Name: "d", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
	{Name: "dec", Type: &arrow.Decimal128Type{Precision: 12, Scale: 2}, Nullable: true},
	{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	{Name: "st", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, arrow.Field{Name: "y", Type: arrow.BinaryTypes.String}), Nullable: true},
	{Name: "dict", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
}, nil)

// stream is the messages of two batches: a schema, a dictionary and a record batch, and so on.
func stream(t testing.TB, opts ...ipc.Option) []*flight.FlightData {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, everyType, strings.NewReader(`[
		{"b":true,"i8":1,"u64":null,"f":1.5,"s":"abc","raw":"YQ==","big":"long","ts":"2024-05-06 07:08:09","d":"2024-05-06","dec":"1.50","list":["a",null],"st":{"x":1,"y":"z"},"dict":"one"},
		{"b":null,"i8":2,"u64":7,"f":2,"s":null,"raw":"","big":null,"ts":"2024-05-06 07:08:10","d":null,"dec":null,"list":null,"st":null,"dict":null},
		{"b":false,"i8":3,"u64":8,"f":3,"s":"","raw":"Yg==","big":"","ts":"2024-05-06 07:08:11","d":"1970-01-01","dec":"-2.00","list":[],"st":{"x":null,"y":""},"dict":"two"}]`))
	if err != nil {
		t.Fatal(err)
	}
	var out sent
	w := flight.NewRecordWriter(&out, append(opts, ipc.WithSchema(everyType))...)
	for range 2 {
		if err := w.WriteWithAppMetadata(rec, []byte("1")); err != nil {
			t.Fatal(err)
		}
	}
	return out.list
}

// take reads a stream as DoPut and DoExchange do, up to the columns that are stored. It answers the rows; any error is one that a
// client is told.
func take(t testing.TB, messages []*flight.FlightData) (rows int, err error) {
	t.Helper()
	s := &Server{}
	at := 0
	in, err := s.newIncoming(func() (*flight.FlightData, error) {
		if at == len(messages) {
			return nil, io.EOF
		}
		at++
		return messages[at-1], nil
	})
	defer in.release()
	if err != nil {
		return 0, told(t, err)
	}
	schema, err := columnar.FromArrow(in.rd.Schema())
	if err != nil {
		return 0, nil //nolint:nilerr // the schema is read, and is none of a topic
	}
	w := &writer{stored: &broker.Topic{Name: "x"}, schema: schema, payload: columnar.NewEncoder(schema)}
	for {
		rec, err := in.next()
		if err != nil {
			return rows, told(t, err)
		}
		if rec == nil {
			return rows, nil
		}
		columns, err := w.check(rec.Columns(), 0, int(rec.NumRows())) // without the net below: measure must be enough
		if err != nil {
			return rows, told(t, err)
		}
		for i, c := range columns {
			if c.Len() != int(rec.NumRows()) {
				t.Fatalf("column %d has %d rows of %d", i, c.Len(), rec.NumRows())
			}
			for row := range c.Len() {
				_ = operators.ValueAt(c, schema.Columns()[i].Type, row)
			}
		}
		releaseAll(columns)
		rows += int(rec.NumRows())
	}
}

func told(t testing.TB, err error) error {
	t.Helper()
	var e *broker.Error
	if !errors.Is(err, io.EOF) && !errors.As(err, &e) {
		t.Fatalf("not an error for a client: %v", err)
	}
	return err
}

func TestStreamsOfEveryTypeAreRead(t *testing.T) {
	for name, opts := range map[string][]ipc.Option{"plain": nil, "zstd": {ipc.WithZstd()}, "lz4": {ipc.WithLZ4()}, "deltas": {ipc.WithDictionaryDeltas(true)}} {
		if rows, err := take(t, stream(t, opts...)); err != nil || rows != 6 {
			t.Errorf("%s: %d rows, %v", name, rows, err)
		}
	}
}

// Arrow's reader would follow a schema that refers to itself until the stack of the process ends.
func TestASchemaThatRefersToItselfIsRefused(t *testing.T) {
	messages := stream(t)
	b := messages[0].DataHeader
	message := flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
	var schema flatbuffers.Table
	message.Union(&schema, flatbuffers.UOffsetT(message.Offset(slotHeader)))
	fields := schema.Vector(flatbuffers.UOffsetT(schema.Offset(slotFields)))
	patched := 0
	for i := range everyType.NumFields() {
		f := flatbuffers.Table{Bytes: b, Pos: schema.Indirect(fields + flatbuffers.UOffsetT(4*i))}
		if at := flatbuffers.UOffsetT(f.Offset(slotChildren)); at != 0 && f.VectorLen(at) > 0 {
			e := f.Vector(at)
			binary.LittleEndian.PutUint32(b[e:], uint32(f.Pos)-uint32(e))
			patched++
		}
	}
	if patched != 2 {
		t.Fatalf("%d fields have parts", patched)
	}
	if _, err := take(t, messages); err == nil || !strings.Contains(err.Error(), "nested") {
		t.Errorf("%v", err)
	}
}

// A buffer says how long it is when decompressed: nobody makes memory of that size.
func TestLengthsOfBuffersAreNotTrusted(t *testing.T) {
	messages := stream(t, ipc.WithZstd())
	last := messages[len(messages)-1]
	for at := 0; at+8 <= len(last.DataBody); at += 8 {
		b := append([]byte(nil), last.DataBody...)
		binary.LittleEndian.PutUint64(b[at:], 1<<40)
		messages[len(messages)-1] = &flight.FlightData{DataHeader: last.DataHeader, DataBody: b}
		_, _ = take(t, messages) // it returns, with whatever error
	}
}

// Any change of a byte or two in a stream is an error or other rows, and nothing else.
func TestDamagedStreamsAreErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	refused := 0
	for _, opts := range [][]ipc.Option{nil, {ipc.WithLZ4()}} {
		messages := stream(t, opts...)
		for range 6000 {
			own := append([]*flight.FlightData(nil), messages...)
			i := rng.IntN(len(own))
			m := &flight.FlightData{DataHeader: append([]byte(nil), own[i].DataHeader...), DataBody: append([]byte(nil), own[i].DataBody...)}
			own[i] = m
			for range 1 + rng.IntN(3) {
				b := m.DataHeader
				if len(m.DataBody) > 0 && rng.IntN(2) == 0 {
					b = m.DataBody
				}
				b[rng.IntN(len(b))] = []byte{0, 1, 0x7f, 0x80, 0xff, byte(rng.Uint32())}[rng.IntN(6)]
			}
			if _, err := take(t, own); err != nil {
				refused++
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d of the damaged streams were refused", refused)
	}
}

// FuzzStream feeds messages as they may come from anybody: no panic, no endless memory, typed errors only.
func FuzzStream(f *testing.F) {
	for _, opts := range [][]ipc.Option{nil, {ipc.WithZstd()}, {ipc.WithLZ4()}} {
		m := stream(f, opts...)
		f.Add(m[0].DataHeader, m[1].DataHeader, m[1].DataBody, m[2].DataHeader, m[2].DataBody)
	}
	f.Fuzz(func(t *testing.T, schema, header1, body1, header2, body2 []byte) {
		_, _ = take(t, []*flight.FlightData{{DataHeader: schema}, {DataHeader: header1, DataBody: body1}, {DataHeader: header2, DataBody: body2}})
	})
}

// FuzzTicket feeds tickets and commands: what is taken for a ticket is one that this server would have made.
func FuzzTicket(f *testing.F) {
	r := &reading{name: "clicks", stored: &broker.Topic{ID: [16]byte{1, 2, 3}}, where: "n > 1", follow: true}
	f.Add(appendTicket(nil, r, span{partition: 3, next: 5, to: 9}))
	f.Add([]byte(`{"topic":"clicks","from":"2024-05-06T07:08:09Z","to":5,"partitions":[0,1]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseCommand(b)
		c, id, x, err := parseTicket(b)
		if err != nil {
			return
		}
		again := appendTicket(nil, &reading{name: c.Topic, where: c.Where, cols: c.Select, follow: c.Follow, stored: &broker.Topic{ID: id}}, x)
		if string(again) != string(b) {
			t.Errorf("%x is read as %+v, which is written as %x", b, c, again)
		}
	})
}
