package flight

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/runtime/codec"
	"github.com/headrace/headrace/server/broker"
)

const (
	getBytes = 4 << 20     // records that are read at a time, over all partitions of a call
	getWait  = time.Second // how long a read waits for new records before it looks whether the call has ended
)

// A batchMeta is what a batch of rows says about itself.
type batchMeta struct {
	Partition int32 `json:"partition"`
	First     int64 `json:"first"` // offsets of the first and of the last row; with a filter there are gaps between
	Last      int64 `json:"last"`
	Next      int64 `json:"next"` // where reading goes on
	// Watermark is the event time before which no row is expected any more, if the partition has said one so far.
	Watermark *int64 `json:"watermark,omitempty"`
}

// DoGet sends the rows of a ticket's range. gRPC's flow control is the back-pressure: a batch is read when the one before it
// has been taken.
func (s *Server) DoGet(t *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	ctx, cancel := s.until(stream.Context())
	defer cancel()
	r, spans, err := s.fromTicket(ctx, t.GetTicket())
	if err != nil {
		return err
	}
	schema := r.schema.Arrow()
	g := &getter{s: s, r: r, schema: schema, out: flight.NewRecordWriter(stream, ipc.WithSchema(schema), ipc.WithAllocator(memory.DefaultAllocator))}
	defer g.close()
	for _, x := range spans {
		d, err := r.delivery()
		if err != nil {
			return err
		}
		g.parts = append(g.parts, &part{span: x, delivery: d})
	}
	if err := g.run(ctx); err != nil {
		return err
	}
	return g.out.Close() // writes the schema if there was no row
}

// A getter is one DoGet.
type getter struct {
	s      *Server
	r      *reading
	schema *arrow.Schema
	parts  []*part
	out    *flight.Writer
}

type part struct {
	span
	delivery *runtime.Delivery
}

func (g *getter) close() {
	for _, p := range g.parts {
		p.delivery.Close()
	}
}

// run reads until every range has come to its end.
func (g *getter) run(ctx context.Context) error {
	var session broker.FetchSession
	for ctx.Err() == nil {
		req := session.Begin(1, getBytes)
		req.Columns, req.Deadline = true, time.Now().Add(getWait)
		var asked []*part
		for _, p := range g.parts {
			if p.next < p.to {
				req.Add(broker.FetchPart{Topic: g.r.stored, Partition: p.partition, Offset: p.next, MaxBytes: getBytes, Epoch: -1})
				asked = append(asked, p)
			}
		}
		if len(asked) == 0 {
			return nil
		}
		g.s.broker.Fetch(ctx, req)
		err := g.deliver(req, asked)
		session.Done(req)
		req.Release()
		if err != nil {
			return err
		}
	}
	if g.r.follow {
		select {
		case <-g.s.down:
			return broker.Errorf(broker.NotReady, "the server is stopping")
		default:
		}
	}
	return ctx.Err()
}

func (g *getter) deliver(req *broker.FetchRequest, asked []*part) error {
	for i, p := range asked {
		part := &req.Parts[i]
		if part.Err != nil {
			return part.Err
		}
		next, err := p.delivery.Deliver(part.Batches, p.partition, p.next, p.to, func(d runtime.Delivered) error {
			defer d.Rows.Release()
			return g.send(p.partition, d)
		})
		p.next = next
		if errors.Is(err, record.ErrCorrupt) || errors.Is(err, codec.ErrNotFlushed) {
			return broker.Errorf(broker.RottenRecords, "partition %d of topic %q at offset %d: %w", p.partition, g.r.stored.Name, next, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *getter) send(partition int32, d runtime.Delivered) error {
	meta := batchMeta{Partition: partition, First: d.Rows.Offsets[0], Last: d.Rows.Offsets[d.Rows.Rows-1], Next: d.Next}
	if d.Marked {
		meta.Watermark = &d.Watermark
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	return g.s.write(g.out, g.schema, d.Rows, text)
}

// write sends rows with their metadata.
func (s *Server) write(out *flight.Writer, schema *arrow.Schema, rows *operators.Batch, meta []byte) error {
	columns := make([]arrow.Array, len(rows.Columns))
	bytes := 0
	for i, c := range rows.Columns {
		plain := operators.Plain(memory.DefaultAllocator, c)
		columns[i] = retyped(plain, schema.Field(i).Type)
		plain.Release()
	}
	rec := array.NewRecord(schema, columns, int64(rows.Rows))
	for _, c := range columns {
		for _, b := range c.Data().Buffers() {
			if b != nil {
				bytes += b.Len()
			}
		}
		c.Release()
	}
	defer rec.Release()
	if err := out.WriteWithAppMetadata(rec, meta); err != nil {
		return err
	}
	s.metrics.BatchesOut.Add(1)
	s.metrics.RowsOut.Add(uint64(rows.Rows))
	s.metrics.BytesOut.Add(uint64(bytes))
	return nil
}

// retyped is arr as type t, which differs from its own in the names of nested fields at most. The caller owns the result and
// keeps arr.
func retyped(arr arrow.Array, t arrow.DataType) arrow.Array {
	if arrow.TypeEqual(arr.DataType(), t) {
		arr.Retain()
		return arr
	}
	d := retypedData(arr.Data(), t)
	defer d.Release()
	return array.MakeFromData(d)
}

func retypedData(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	nested, ok := t.(arrow.NestedType)
	children := make([]arrow.ArrayData, len(d.Children()))
	for i, c := range d.Children() {
		children[i] = c
		if ok && i < len(nested.Fields()) {
			children[i] = retypedData(c, nested.Fields()[i].Type)
			defer children[i].Release()
		}
	}
	return array.NewData(t, d.Len(), d.Buffers(), children, d.NullN(), d.Offset())
}
