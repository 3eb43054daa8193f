package flight

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/server/broker"
)

// An exchangeMeta is what the answer to a batch says about it.
type exchangeMeta struct {
	ID     json.RawMessage `json:"id,omitempty"` // as the client gave it
	Rows   int             `json:"rows"`         // of the batch that came
	Failed int64           `json:"failed,omitempty"`
	Why    string          `json:"why,omitempty"` // of the last row that failed
}

// DoExchange answers each batch of rows with one of the rows that an expression makes of them: the filter and columns of the
// descriptor's command, over the columns of the stream. Nothing is stored.
func (s *Server) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	ctx, cancel := s.until(stream.Context())
	defer cancel()
	in, err := s.newIncoming(stream.Recv)
	if errors.Is(err, io.EOF) {
		return nil
	}
	defer in.release()
	if err != nil {
		return err
	}
	x, err := newExchange(in)
	if err != nil {
		return err
	}
	defer x.delivery.Close()
	schema := x.delivery.Schema().Arrow()
	out := flight.NewRecordWriter(stream, ipc.WithSchema(schema), ipc.WithAllocator(memory.DefaultAllocator))
	for ctx.Err() == nil {
		rec, err := in.next()
		if err != nil {
			return err
		}
		if rec == nil {
			return out.Close()
		}
		rows, meta, err := x.eval(rec, in.meta)
		if err != nil {
			return err
		}
		s.metrics.BatchesIn.Add(1)
		s.metrics.RowsIn.Add(uint64(rec.NumRows()))
		err = s.write(out, schema, rows, meta)
		rows.Release()
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// exchangeTopic is what the rows of an exchange come from, in the language's errors.
const exchangeTopic = "input"

// An exchange evaluates one stream.
type exchange struct {
	w        *writer
	delivery *runtime.Delivery
	at       int64 // rows that have come
}

func newExchange(in *incoming) (*exchange, error) {
	c, err := fromDescriptor(in.first)
	if err != nil {
		return nil, err
	}
	if c.Topic != "" || c.Follow || c.Partitions != nil || c.Partition != nil || c.From.kind != boundDefault || c.To.kind != boundDefault {
		return nil, badCommand(`an exchange takes {"where": .., "select": ..}, nothing else`)
	}
	schema, err := columnar.FromArrow(in.rd.Schema())
	if err != nil {
		return nil, &broker.Error{Code: broker.OtherSchema, Message: "the columns of the stream are not those of the language: " + err.Error(), Fix: "Cast the column that the message names.", Err: err}
	}
	topic := &plan.Topic{Ident: exchangeTopic, Name: exchangeTopic, Format: plan.FormatArrow, Partitions: 1}
	for _, col := range schema.Columns() {
		topic.Schema.Columns = append(topic.Schema.Columns, plan.Column{Name: col.Name, Input: col.Name, Type: col.Type})
	}
	view, err := runtime.CompileDelivery(topic, c.Where, c.Select)
	if err != nil {
		return nil, err
	}
	d, err := runtime.NewDelivery(topic, view, memory.DefaultAllocator)
	if err != nil {
		return nil, &broker.Error{Code: broker.BadRequest, Message: err.Error(), Fix: "Select fewer or other columns.", Err: err}
	}
	w := &writer{stored: &broker.Topic{Name: exchangeTopic}, schema: schema, payload: columnar.NewEncoder(schema)}
	return &exchange{w: w, delivery: d}, nil
}

// eval is the rows that a batch becomes, which the caller releases, and what to say about them.
func (x *exchange) eval(rec arrow.Record, id []byte) (*operators.Batch, []byte, error) {
	n := int(rec.NumRows())
	meta := exchangeMeta{Rows: n}
	var err error
	if meta.ID, err = batchID(id); err != nil {
		return nil, nil, err
	}
	columns, err := x.w.checked(rec.Columns(), n)
	if err != nil {
		return nil, nil, err
	}
	b := operators.NewBatch(columns, make([]int64, n))
	b.Offsets, b.AppendTime = make([]int64, n), make([]int64, n)
	for i := range b.Offsets {
		b.Offsets[i] = x.at + int64(i)
	}
	b.Key = make([][]byte, n)
	b.Origin = func(int) operators.Origin { return operators.Origin{} }
	x.at += int64(n)
	before, _ := x.delivery.Failures()
	parts := x.delivery.Eval(b)
	if after, why := x.delivery.Failures(); after > before {
		meta.Failed, meta.Why = after-before, why
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, err
	}
	switch len(parts) {
	case 0:
		return emptyRows(x.delivery.Schema()), text, nil
	case 1:
		return parts[0], text, nil
	}
	for _, p := range parts { // stages without state make at most one batch of one
		p.Release()
	}
	return nil, nil, broker.Errorf(broker.Internal, "%d batches of one", len(parts))
}

// emptyRows is a batch of no rows.
func emptyRows(s *columnar.Schema) *operators.Batch {
	columns := make([]arrow.Array, len(s.Columns()))
	for i, c := range s.Columns() {
		b := array.NewBuilder(memory.DefaultAllocator, operators.ArrowType(c.Type))
		columns[i] = b.NewArray()
		b.Release()
	}
	return operators.NewBatch(columns, nil)
}
