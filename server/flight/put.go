package flight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/runtime/codec"
	"github.com/headrace/headrace/server/broker"
)

// maxIDBytes bounds the id of a batch.
const maxIDBytes = 1 << 10

// A putMeta is the answer to a batch: one for each partition that its rows went to.
type putMeta struct {
	ID        json.RawMessage `json:"id,omitempty"` // as the client gave it
	Partition int32           `json:"partition"`
	First     int64           `json:"first"`
	Last      int64           `json:"last"`
	More      int             `json:"more,omitempty"` // answers to the same batch that follow
}

// DoPut appends the record batches of a stream to a topic: each is stored as a whole or not at all, in the order of the stream,
// and answered when it is durable. At most Options.Window of them, and Options.WindowBytes, are on the way; then the stream is
// not read on. The first one that is refused ends the call, after the answers to those before it.
func (s *Server) DoPut(stream flight.FlightService_DoPutServer) error {
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
	w, err := s.newWriter(in)
	if err != nil {
		return err
	}
	a := newAnswers(ctx, s.opts, stream.Send)
	err = s.put(ctx, in, w, a)
	return errors.Join(a.finish(), err) // what was appended before an error is answered
}

func (s *Server) put(ctx context.Context, in *incoming, w *writer, a *answers) error {
	for {
		rec, err := in.next()
		if err != nil || rec == nil {
			return err
		}
		id, err := batchID(in.meta)
		if err != nil {
			return err
		}
		if rec.NumRows() == 0 {
			continue
		}
		batches, err := w.encode(rec)
		if err != nil {
			return err
		}
		if err := a.room(in.size); err != nil {
			return err
		}
		done := a.add(id, batches, in.size)
		if err := s.broker.AppendUnit(ctx, w.stored, batches, done); err != nil {
			done(nil, err)
			return nil // finish says it
		}
		s.metrics.BatchesIn.Add(1)
		s.metrics.RowsIn.Add(uint64(rec.NumRows()))
	}
}

// batchID is the id of a batch: JSON as it is, other text as a string; nil: none.
func batchID(meta []byte) (json.RawMessage, error) {
	switch {
	case len(meta) == 0:
		return nil, nil
	case len(meta) > maxIDBytes || !utf8.Valid(meta):
		return nil, broker.Errorf(broker.BadRequest, "the app_metadata of a batch, its id, is not UTF-8 of at most %d bytes", maxIDBytes)
	case json.Valid(meta):
		return append(json.RawMessage(nil), meta...), nil
	}
	return json.Marshal(string(meta))
}

// answers sends the answers to batches in their order.
type answers struct {
	ctx     context.Context
	cancel  context.CancelFunc
	queue   chan *pending
	freed   chan struct{} // tokens: something was answered
	limit   int
	sent    chan struct{} // closed when the sender has ended
	err     error         // of the first refused batch or of sending; read after sent is closed
	closing sync.Once

	mu struct {
		sync.Mutex
		bytes int
	}
}

// A pending is a batch that is on its way.
type pending struct {
	id      json.RawMessage
	batches []broker.PartitionBatch
	size    int
	done    chan struct{}
	offsets []int64
	err     error
}

func newAnswers(ctx context.Context, o Options, send func(*flight.PutResult) error) *answers {
	a := &answers{queue: make(chan *pending, o.Window), freed: make(chan struct{}, 1), limit: o.WindowBytes, sent: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	go a.run(send)
	return a
}

// run waits for one batch after the other.
func (a *answers) run(send func(*flight.PutResult) error) {
	defer close(a.sent)
	gone := false // the client takes no answers
	for p := range a.queue {
		<-p.done // the log answers every proposal
		err := p.err
		if err == nil && !gone { // batches behind a refused one may be stored: they are answered too
			err = p.answer(send)
			gone = err != nil
		}
		if err != nil {
			a.cancel()
			if a.err == nil {
				a.err = err
			}
		}
		a.mu.Lock()
		a.mu.bytes -= p.size
		a.mu.Unlock()
		select {
		case a.freed <- struct{}{}:
		default:
		}
	}
}

// answer sends an answer for each partition. The record batches of a partition follow each other, as do their offsets.
func (p *pending) answer(send func(*flight.PutResult) error) error {
	var metas []putMeta
	for i, b := range p.batches {
		last := p.offsets[i] + int64(b.Records) - 1
		if n := len(metas); n > 0 && metas[n-1].Partition == b.Partition {
			metas[n-1].Last = last
			continue
		}
		metas = append(metas, putMeta{ID: p.id, Partition: b.Partition, First: p.offsets[i], Last: last})
	}
	for i := range metas {
		metas[i].More = len(metas) - 1 - i
		text, err := json.Marshal(metas[i])
		if err != nil {
			return err
		}
		if err := send(&flight.PutResult{AppMetadata: text}); err != nil {
			return err
		}
	}
	return nil
}

// room waits until a batch of so many bytes fits the window. One that is larger than the window goes alone.
func (a *answers) room(size int) error {
	for {
		a.mu.Lock()
		fits := a.mu.bytes == 0 || a.mu.bytes+size <= a.limit
		if fits {
			a.mu.bytes += size
		}
		a.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-a.freed:
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
	}
}

// add queues a batch and answers what is to be called when it is in the log, or is not.
func (a *answers) add(id json.RawMessage, batches []broker.PartitionBatch, size int) func([]int64, error) {
	p := &pending{id: id, batches: batches, size: size, done: make(chan struct{})}
	a.queue <- p // full: the window; run empties it
	return func(offsets []int64, err error) {
		p.offsets, p.err = offsets, err
		close(p.done)
	}
}

// finish waits for all answers, and says what went wrong.
func (a *answers) finish() error {
	a.closing.Do(func() { close(a.queue) })
	<-a.sent
	a.cancel()
	return a.err
}

// A writer makes record batches of columns. It belongs to one goroutine.
type writer struct {
	stored  *broker.Topic
	topic   *plan.Topic
	schema  *columnar.Schema
	columns bool   // the topic stores columns
	one     *int32 // the one partition; nil: by key, or in turn
	turn    int32
	key     []int
	types   []scalar.Type // of the key
	limit   int           // bytes of a record batch
	now     func() int64

	payload *columnar.Encoder
	frame   columnar.Frame
	rows    *codec.Encoder // nil with columns
	builder *record.Builder
	value   []byte
}

// newWriter finds the topic of a stream and compares its schema.
func (s *Server) newWriter(in *incoming) (*writer, error) {
	c, err := fromDescriptor(in.first)
	if err != nil {
		return nil, err
	}
	if c.Where != "" || c.Select != "" || c.Follow || c.Partitions != nil || c.From.kind != boundDefault || c.To.kind != boundDefault {
		return nil, badCommand("a put takes a topic and a partition, nothing else")
	}
	t, ok := s.broker.Topic(c.Topic)
	if !ok {
		return nil, broker.Errorf(broker.UnknownTopic, "topic %q does not exist", clip(c.Topic))
	}
	if err := s.broker.MayWrite(t); err != nil {
		return nil, err
	}
	stored, topic, _, err := s.broker.Declared(t)
	if err != nil {
		return nil, err
	}
	if len(topic.Schema.Columns) == 0 {
		raw := *topic
		raw.Schema, topic = codec.RawSchema(), &raw
	}
	w := &writer{stored: stored, topic: topic, columns: topic.Format == plan.FormatArrow, one: c.Partition, key: topic.Key, limit: int(stored.Settings.MaxBatchBytes), now: func() int64 { return time.Now().UnixMilli() }}
	if w.limit <= 0 || w.limit > log.MaxBatchBytes {
		w.limit = log.MaxBatchBytes
	}
	if w.one != nil && (*w.one < 0 || *w.one >= stored.Partitions) {
		return nil, broker.Errorf(broker.UnknownPartition, "topic %q has %d partitions, no partition %d", stored.Name, stored.Partitions, *w.one)
	}
	if w.schema, err = codec.ColumnarSchema(topic); err != nil {
		return nil, &broker.Error{Code: broker.BadRequest, Message: err.Error(), Fix: "Write with a Kafka client.", Err: err}
	}
	if !w.columns {
		if w.rows, err = codec.NewEncoder(topic); err != nil {
			return nil, &broker.Error{Code: broker.BadRequest, Message: fmt.Sprintf("topic %q takes no columns: its format cannot be written", stored.Name), Fix: "Write with a Kafka client.", Err: err}
		}
		w.builder = record.NewBuilder()
	}
	if err := sameColumns(stored.Name, w.schema, in.rd.Schema()); err != nil {
		return nil, err
	}
	for _, k := range w.key {
		w.types = append(w.types, topic.Schema.Columns[k].Type)
	}
	w.payload = columnar.NewEncoder(w.schema)
	return w, nil
}

// sameColumns compares the columns of a stream with a topic's, by name and type.
func sameColumns(name string, want *columnar.Schema, have *arrow.Schema) error {
	refuse := func(format string, args ...any) error {
		e := broker.Errorf(broker.OtherSchema, "topic %q: "+format, append([]any{name}, args...)...)
		e.Why = "The topic's columns are, by name and type: " + want.String()
		e.Fix = "Send the columns that GetSchema answers, in that order."
		return e
	}
	s, err := columnar.FromArrow(have)
	if err != nil {
		return refuse("the columns of the stream cannot be stored: %w", err)
	}
	ws, hs := want.Columns(), s.Columns()
	for i := range max(len(ws), len(hs)) {
		switch {
		case i >= len(hs):
			return refuse("column %d, %q, is missing", i+1, ws[i].Name)
		case i >= len(ws):
			return refuse("column %d, %q, is one too many", i+1, clip(hs[i].Name))
		case ws[i].Name != hs[i].Name:
			return refuse("column %d is %q, not %q", i+1, ws[i].Name, clip(hs[i].Name))
		}
		if w, h := ws[i].Type, hs[i].Type; bare(w).String() != bare(h).String() {
			return refuse("column %q is %s, not %s", ws[i].Name, w, clip(h.String()))
		}
	}
	return nil
}

// bare is t without a word about nulls: most clients call every column nullable, so nulls are looked for in the rows.
func bare(t scalar.Type) scalar.Type {
	t.Nullable = false
	if t.Elem != nil {
		e := bare(*t.Elem)
		t.Elem = &e
	}
	if t.Fields != nil {
		fields := make([]scalar.Field, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = scalar.Field{Name: f.Name, Type: bare(f.Type)}
		}
		t.Fields = fields
	}
	return t
}

// encode makes record batches of the rows of a record: for one partition, in turn, or by the rows' key.
func (w *writer) encode(rec arrow.Record) (out []broker.PartitionBatch, err error) {
	defer w.caught(&err)
	columns, n := rec.Columns(), int(rec.NumRows())
	parts := w.stored.Partitions
	if w.one == nil && len(w.key) > 0 && parts > 1 {
		return w.byKey(columns, n)
	}
	p := int32(0)
	if w.one != nil {
		p = *w.one
	} else if parts > 1 {
		p, w.turn = w.turn, (w.turn+1)%parts
	}
	return w.cut(nil, p, columns, n)
}

// byKey sends each row to the partition of its key, as a Kafka client would.
func (w *writer) byKey(columns []arrow.Array, n int) (out []broker.PartitionBatch, err error) {
	// The key is encoded from checked columns.
	checked, err := w.check(columns, 0, n)
	if err != nil {
		return nil, err
	}
	defer releaseAll(checked)
	keys, err := w.keys(checked, n)
	if err != nil {
		return nil, err
	}
	sel := make([][]int32, w.stored.Partitions)
	for row, k := range keys {
		p := int32(0) // a null key
		if k != nil {
			p = operators.Partition(k, len(sel))
		}
		sel[p] = append(sel[p], int32(row))
	}
	for p, list := range sel {
		if len(list) == 0 {
			continue
		}
		own := make([]arrow.Array, len(checked))
		for i, c := range checked {
			own[i] = operators.Gather(memory.DefaultAllocator, c, list)
		}
		out, err = w.cut(out, int32(p), own, len(list))
		releaseAll(own)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (w *writer) keys(columns []arrow.Array, n int) ([][]byte, error) {
	own := make([]arrow.Array, len(w.key))
	for i, k := range w.key {
		own[i] = columns[k]
	}
	keys, bad := operators.EncodeKeys(own, w.types, n, nil, nil)
	if len(bad) > 0 {
		return nil, broker.Errorf(broker.InvalidBatch, "row %d for topic %q has a key without a written form", bad[0].Row, w.stored.Name)
	}
	return keys, nil
}

func releaseAll(columns []arrow.Array) {
	for _, c := range columns {
		c.Release()
	}
}

// plan is the size of rows [from, to) as a payload.
func (w *writer) plan(columns []arrow.Array, from, to int) (int, error) {
	size, err := w.payload.Plan(columns, from, to, nil, nil)
	switch {
	case errors.Is(err, columnar.ErrTooLarge):
		return 0, broker.Errorf(broker.BatchTooLarge, "%d rows for topic %q: %w", to-from, w.stored.Name, err)
	case err != nil:
		return 0, broker.Errorf(broker.InvalidBatch, "a record batch for topic %q: %w", w.stored.Name, err)
	}
	return size, nil
}

// check is rows [from, to) in columns of the topic's own types, every value of which has been judged.
func (w *writer) check(columns []arrow.Array, from, to int) ([]arrow.Array, error) {
	size, err := w.plan(columns, from, to)
	if err != nil {
		return nil, err
	}
	payload := w.payload.Append(make([]byte, 0, size))
	if err = w.frame.Open(w.schema, payload); err == nil {
		err = w.frame.Check()
	}
	if err != nil {
		return nil, broker.Errorf(broker.InvalidBatch, "a record batch for topic %q: %w", w.stored.Name, err)
	}
	out := make([]arrow.Array, len(columns))
	for i := range out {
		out[i] = w.frame.Column(i)
	}
	return out, nil
}

// checked is check of a whole record, whatever is in it.
func (w *writer) checked(columns []arrow.Array, n int) (out []arrow.Array, err error) {
	defer w.caught(&err)
	return w.check(columns, 0, n)
}

// caught turns a panic into a refusal: measure has left something out.
func (w *writer) caught(err *error) {
	if v := recover(); v != nil {
		*err = broker.Errorf(broker.InvalidBatch, "a record batch for topic %q cannot be read: %v", w.stored.Name, v)
	}
}

// cut appends record batches of n rows, each within the topic's limit.
func (w *writer) cut(out []broker.PartitionBatch, p int32, columns []arrow.Array, n int) ([]broker.PartitionBatch, error) {
	if w.columns {
		return w.cutColumns(out, p, columns, n)
	}
	checked, err := w.check(columns, 0, n)
	if err != nil {
		return nil, err
	}
	defer releaseAll(checked)
	return w.cutRows(out, p, checked, n)
}

func (w *writer) cutColumns(out []broker.PartitionBatch, p int32, columns []arrow.Array, n int) ([]broker.PartitionBatch, error) {
	for from := 0; from < n; {
		rows := n - from
		size := 0
		for {
			var err error
			if size, err = w.plan(columns, from, from+rows); err != nil {
				return nil, err
			}
			if size += record.HeaderSize; size <= w.limit {
				break
			}
			if rows == 1 {
				return nil, broker.Errorf(broker.BatchTooLarge, "a row of %d bytes for topic %q, whose max.message.bytes is %d", size, w.stored.Name, w.limit)
			}
			rows = max(1, min(rows-1, int(int64(rows)*int64(w.limit)/int64(size)*15/16)))
		}
		data := w.payload.Append(append(make([]byte, 0, size), make([]byte, record.HeaderSize)...))
		ms := w.now()
		record.PutHeader(data, record.Header{
			Magic: record.Magic, Attributes: record.AttrColumnar, LastOffsetDelta: int32(rows - 1), Count: int32(rows),
			FirstTimestamp: ms, MaxTimestamp: ms, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
		})
		record.Seal(data)
		out = append(out, broker.PartitionBatch{Partition: p, Data: data})
		from += rows
	}
	return out, nil
}

// cutRows writes rows as records in the topic's format.
func (w *writer) cutRows(out []broker.PartitionBatch, p int32, columns []arrow.Array, n int) ([]broker.PartitionBatch, error) {
	b := &operators.Batch{Columns: columns, Rows: n}
	var keys [][]byte
	var err error
	if len(w.key) > 0 {
		if keys, err = w.keys(columns, n); err != nil {
			return nil, err
		}
	}
	raw := w.topic.Format == plan.FormatRaw
	w.builder.Reset()
	finish := func() {
		if w.builder.Len() > 0 {
			out = append(out, broker.PartitionBatch{Partition: p, Data: w.builder.Finish()})
		}
	}
	ms := w.now()
	for row := range n {
		value, code := w.rows.Encode(w.value[:0], b, row)
		if code != scalar.CodeNone {
			return nil, broker.Errorf(broker.InvalidBatch, "row %d for topic %q has no written form: %s", row, w.stored.Name, code)
		}
		if value != nil {
			w.value = value[:0]
		}
		var key []byte
		switch {
		case raw:
			key, value = rawCell(columns[0], row), rawCell(columns[1], row)
		case keys != nil:
			key = keys[row]
		}
		const overhead = 64 // lengths and deltas of a record
		if w.builder.Len() > 0 && w.builder.Size()+len(key)+len(value)+overhead > w.limit {
			finish()
		}
		w.builder.Append(ms, key, value, nil)
	}
	finish()
	return out, nil
}

// rawCell is a cell of bytes, nil for null.
func rawCell(arr arrow.Array, row int) []byte {
	if operators.IsNull(arr, row) {
		return nil
	}
	return append([]byte{}, operators.ValueAt(arr, scalar.TypeBytes, row).S...)
}
