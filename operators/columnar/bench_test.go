package columnar_test

import (
	"bytes"
	"hash/crc32"
	"strconv"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/columnar"
)

const benchRows = 8192

// benchColumns are rows of 43 B: ts, user, amount, country, qty.
func benchColumns(tb testing.TB) (*columnar.Schema, []arrow.Array) {
	s, err := columnar.NewSchema([]columnar.Column{
		{Name: "ts", Type: scalar.TypeTime},
		{Name: "user", Type: scalar.TypeString},
		{Name: "amount", Type: scalar.TypeFloat64},
		{Name: "country", Type: scalar.TypeString},
		{Name: "qty", Type: scalar.TypeInt32},
	})
	if err != nil {
		tb.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, s.Arrow())
	x := uint64(1)
	for i := range benchRows {
		x = x*6364136223846793005 + 1442695040888963407
		r := x >> 33
		b.Field(0).(*array.TimestampBuilder).Append(arrow.Timestamp(1_700_000_000_000_000_000 + i*1000))
		b.Field(1).(*array.StringBuilder).Append("user-" + strconv.FormatUint(100_000+r%100_000, 10))
		b.Field(2).(*array.Float64Builder).Append(float64(r%100_000) / 100)
		b.Field(3).(*array.StringBuilder).Append([]string{"US", "DE", "FR", "JP"}[r>>8%4])
		b.Field(4).(*array.Int32Builder).Append(int32(r % 10))
	}
	return s, b.NewRecord().Columns()
}

// BenchmarkPayload compares the format with Arrow's IPC messages, as the library writes and reads them, and with
// one checksum over the bytes.
func BenchmarkPayload(b *testing.B) {
	s, columns := benchColumns(b)
	e := columnar.NewEncoder(s)
	if _, err := e.Plan(columns, 0, benchRows, nil, nil); err != nil {
		b.Fatal(err)
	}
	payload := e.Append(nil)
	per := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchRows, "ns/row")
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
	}
	b.Run("frame/write", func(b *testing.B) {
		var buf []byte
		for b.Loop() {
			if _, err := e.Plan(columns, 0, benchRows, nil, nil); err != nil {
				b.Fatal(err)
			}
			buf = e.Append(buf[:0])
		}
		per(b)
	})
	var f columnar.Frame
	b.Run("frame/open", func(b *testing.B) {
		for b.Loop() {
			if err := f.Open(s, payload); err != nil {
				b.Fatal(err)
			}
		}
		per(b)
	})
	b.Run("frame/open+columns", func(b *testing.B) {
		for b.Loop() {
			if err := f.Open(s, payload); err != nil {
				b.Fatal(err)
			}
			for i := range columns {
				f.Column(i).Release()
			}
		}
		per(b)
	})
	b.Run("frame/check", func(b *testing.B) {
		for b.Loop() {
			if err := f.Check(); err != nil {
				b.Fatal(err)
			}
		}
		per(b)
	})
	b.Run("crc", func(b *testing.B) {
		t := crc32.MakeTable(crc32.Castagnoli)
		for b.Loop() {
			crc32.Checksum(payload, t)
		}
		per(b)
	})
	rec := array.NewRecord(s.Arrow(), columns, benchRows)
	var msg bytes.Buffer
	write := func() {
		msg.Reset()
		w := ipc.NewWriter(&msg, ipc.WithSchema(s.Arrow()))
		if err := w.Write(rec); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("ipc/write", func(b *testing.B) {
		for b.Loop() {
			write()
		}
		per(b)
	})
	write()
	b.Run("ipc/read", func(b *testing.B) {
		for b.Loop() {
			r, err := ipc.NewReader(bytes.NewReader(msg.Bytes()))
			if err != nil || !r.Next() {
				b.Fatal(err)
			}
			r.Release()
		}
		per(b)
	})
}
