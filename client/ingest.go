package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
)

// featureColumns is how a server says, in ApiVersions, that it takes columnar batches.
const featureColumns = "headrace.columns"

// columnarBit is the attribute of a record batch that holds columns.
const columnarBit = 1 << 8

var (
	// ErrNoColumns is a server that takes no columns.
	ErrNoColumns = errors.New("client: the server takes no columns")
	// ErrColumns is columns that are not those of an Ingest, or that no topic can have.
	ErrColumns = errors.New("client: unusable columns")
)

// IngestOptions of Producer.Ingest. The zero value works.
type IngestOptions struct {
	// FrameRows bounds the rows of a frame, which is one record batch; so does ProducerOptions.BatchBytes. Frames that
	// are larger cost less for each row, and smaller ones are acknowledged earlier. 0: 16,384; at most 65,536.
	FrameRows int
	// Key names the columns by whose encoded values rows go to partitions, as Kafka's own hash does for records with a
	// key; it should be the key of the topic. None: one partition after the other, a frame each.
	Key []string
	// Time names a column of times that are the records' timestamps too: by them records are found by time, and kept or
	// deleted. "": the time of the call.
	Time string
}

// A FrameAck is the end of one frame.
type FrameAck struct {
	Partition int32
	// Offset is that of the frame's first row; the others follow. -1 with an Err, or if the server only knows that it has
	// the rows.
	Offset int64
	Rows   int
	// Err is nil if the rows are in the log, durable as the topic demands. Otherwise it is a *ProduceError.
	Err error
}

// An Ingest sends columns to a topic of format arrow, over the connections of its Producer and within its buffer. It is
// idempotent like the Producer: whatever happens to connections and servers, a row is in the log once. It needs no
// closing: Producer.Flush waits for its rows, and Producer.Close ends it.
//
// Rows are copied once, into frames, before Write returns. Frames of one goroutine and partition keep their order. Its
// methods may be called from any goroutine.
type Ingest struct {
	t       *topicState
	schema  *columnar.Schema
	arrow   *arrow.Schema
	o       IngestOptions
	key     []int
	keyType []scalar.Type
	time    int // column, -1: none
	turn    atomic.Uint32
	encoder sync.Pool // *columnar.Encoder
}

// Ingest makes an Ingest to a topic, which must exist and have exactly the columns of schema: names, types, nullability
// and order. Timestamps of any unit are times, dictionaries of strings are strings. A server that has other columns for the
// topic refuses the first frame (E1018).
//
// Errors: ErrColumns, ErrNoColumns, and those of Writer.
func (p *Producer) Ingest(ctx context.Context, topic string, schema *arrow.Schema, o IngestOptions) (*Ingest, error) {
	s, err := columnar.FromArrow(schema)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrColumns, err)
	}
	if o.FrameRows <= 0 {
		o.FrameRows = 16 << 10
	}
	o.FrameRows = min(o.FrameRows, batchRecords)
	in := &Ingest{schema: s, arrow: schema, o: o, time: -1}
	column := func(name string) (int, error) {
		for i, c := range s.Columns() {
			if c.Name == name {
				return i, nil
			}
		}
		return -1, fmt.Errorf("%w: there is no column %q", ErrColumns, name)
	}
	for _, name := range o.Key {
		i, err := column(name)
		if err != nil {
			return nil, err
		}
		in.key, in.keyType = append(in.key, i), append(in.keyType, s.Columns()[i].Type)
	}
	if o.Time != "" {
		if in.time, err = column(o.Time); err != nil {
			return nil, err
		}
		if t, ok := schema.Field(in.time).Type.(*arrow.TimestampType); !ok || t.Unit != arrow.Nanosecond {
			return nil, fmt.Errorf("%w: column %q is %s, not a time in nanoseconds", ErrColumns, o.Time, schema.Field(in.time).Type)
		}
	}
	w, err := p.Writer(ctx, topic)
	if err != nil {
		return nil, err
	}
	in.t = w.t
	in.turn.Store(w.t.sticky.Load())
	in.encoder.New = func() any { return columnar.NewEncoder(s) }
	return in, p.takesColumns(ctx)
}

// takesColumns asks the server for the feature.
func (p *Producer) takesColumns(ctx context.Context) error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, producerID, "1"
	resp, err := req.RequestWith(ctx, p.admin)
	if err != nil {
		return fmt.Errorf("client: ask for features: %w", err)
	}
	for _, f := range resp.SupportedFeatures {
		if f.Name == featureColumns && f.MinVersion <= columnar.Version && f.MaxVersion >= columnar.Version {
			return nil
		}
	}
	return ErrNoColumns
}

// Partitions is the number of the topic's partitions when the first Writer or Ingest to it was made.
func (in *Ingest) Partitions() int32 { return int32(len(in.t.parts)) }

// Write hands the rows of a record over and returns: they are copied, so rec may be released. It blocks while the
// producer's buffer is full.
//
// done is called once for each frame that the rows were cut into, unless it is nil: with the offset of the frame's first
// row when it is durable, or with an error. What Writer.Produce says of its callback holds. If Write returns an error, the
// rows that were not yet in frames are not accepted, and done is called for the frames before it.
//
// Errors: ErrColumns, that of ctx while waiting for room, ErrRecordTooLarge for a single row, ErrProducerClosed.
func (in *Ingest) Write(ctx context.Context, rec arrow.Record, done func(FrameAck)) error {
	if !rec.Schema().Equal(in.arrow) {
		return fmt.Errorf("%w: a record of other columns:\n%s", ErrColumns, rec.Schema())
	}
	return in.write(ctx, rec.Columns(), int(rec.NumRows()), done)
}

// A Text is a column of strings or bytes: value i is Bytes[Offsets[i]:Offsets[i+1]].
type Text struct {
	Offsets []int32 // one more than rows, not falling
	Bytes   []byte
}

// WriteColumns is Write for slices in place of a record, without nulls: []bool, []int8 to []uint64, []float32, []float64 for
// columns of that type, []int64 for times, durations (ns), []int32 for dates (days since 1970), []string or Text for strings and
// bytes; an arrow.Array for anything else. All have the same length.
func (in *Ingest) WriteColumns(ctx context.Context, done func(FrameAck), columns ...any) error {
	if len(columns) != len(in.schema.Columns()) {
		return fmt.Errorf("%w: %d columns instead of %d", ErrColumns, len(columns), len(in.schema.Columns()))
	}
	arrays := make([]arrow.Array, len(columns))
	defer func() {
		for _, a := range arrays {
			if a != nil {
				a.Release()
			}
		}
	}()
	for i, v := range columns {
		a, err := arrayOf(in.arrow.Field(i).Type, v)
		if err != nil {
			return fmt.Errorf("%w (column %s)", err, in.schema.Columns()[i].Name)
		}
		if arrays[i] = a; a.Len() != arrays[0].Len() {
			return fmt.Errorf("%w: column %s has %d rows, the first one %d", ErrColumns, in.schema.Columns()[i].Name, a.Len(), arrays[0].Len())
		}
	}
	return in.write(ctx, arrays, arrays[0].Len(), done)
}

func (in *Ingest) write(ctx context.Context, columns []arrow.Array, rows int, done func(FrameAck)) error {
	e := in.encoder.Get().(*columnar.Encoder) //nolint:errcheck // the pool holds nothing else
	defer in.encoder.Put(e)
	if len(in.key) == 0 || len(in.t.parts) == 1 {
		for from := 0; from < rows; {
			n, err := in.frame(ctx, e, in.turn.Add(1)%uint32(len(in.t.parts)), columns, from, rows, done)
			if err != nil {
				return err
			}
			from += n
		}
		return nil
	}
	keyed := make([]arrow.Array, len(in.key))
	for i, k := range in.key {
		keyed[i] = columns[k]
	}
	keys, bad := operators.EncodeKeys(keyed, in.keyType, rows, nil, nil)
	if len(bad) > 0 {
		return fmt.Errorf("%w: row %d has a key without a written form", ErrColumns, bad[0].Row)
	}
	sel := make([][]int32, len(in.t.parts))
	for row, k := range keys {
		i := uint32(0) // a null key
		if k != nil {
			i = keyPartition(k, uint32(len(in.t.parts)))
		}
		sel[i] = append(sel[i], int32(row))
	}
	for i, list := range sel {
		if len(list) == 0 {
			continue
		}
		if err := in.writeRows(ctx, e, uint32(i), columns, list, done); err != nil {
			return err
		}
	}
	return nil
}

// writeRows sends the rows of list to a partition.
func (in *Ingest) writeRows(ctx context.Context, e *columnar.Encoder, part uint32, columns []arrow.Array, list []int32, done func(FrameAck)) error {
	own := make([]arrow.Array, len(columns))
	for i, c := range columns {
		own[i] = operators.Gather(memory.DefaultAllocator, c, list)
		defer own[i].Release()
	}
	for from := 0; from < len(list); {
		n, err := in.frame(ctx, e, part, own, from, len(list), done)
		if err != nil {
			return err
		}
		from += n
	}
	return nil
}

// frame sends rows from from on, before to, as many as one frame holds, and says how many they were.
func (in *Ingest) frame(ctx context.Context, e *columnar.Encoder, part uint32, columns []arrow.Array, from, to int, done func(FrameAck)) (int, error) {
	p := in.t.p
	limit := min(int(in.t.limit.Load()), p.o.BatchBytes)
	n, size := min(to-from, in.o.FrameRows), 0
	for {
		var err error
		if size, err = e.Plan(columns, from, from+n, nil, nil); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrColumns, err)
		}
		if size += batchHeaderBytes; size <= limit {
			break
		}
		if n == 1 {
			return 0, fmt.Errorf("%w: %d bytes, at most %d", ErrRecordTooLarge, size, limit)
		}
		n = max(1, min(n-1, int(int64(n)*int64(limit)/int64(size)*15/16)))
	}
	class := p.classFor(size)
	for !p.reserve(int64(p.classBytes(class))) {
		if err := p.waitRoom(ctx); err != nil {
			return 0, err
		}
	}
	if p.closed.Load() {
		p.buffered.Add(-int64(p.classBytes(class)))
		return 0, ErrProducerClosed
	}
	b := p.newBatch(in.t.parts[part], class)
	b.buf = e.Append(b.buf)
	b.rows, b.framed = n, done
	b.first, b.last = in.stamps(columns, from, from+n)
	if err := in.t.parts[part].appendFrame(b); err != nil {
		p.giveBack(b)
		return 0, err
	}
	return n, nil
}

// stamps are the first and the largest timestamp of rows, ms.
func (in *Ingest) stamps(columns []arrow.Array, from, to int) (first, last int64) {
	if in.time < 0 {
		now := time.Now().UnixMilli()
		return now, now
	}
	ts, ok := columns[in.time].(*array.Timestamp)
	if !ok || ts.NullN() > 0 {
		now := time.Now().UnixMilli()
		return now, now
	}
	values := ts.TimestampValues()[from:to]
	largest := values[0]
	for _, v := range values {
		largest = max(largest, v)
	}
	return scalar.FloorDiv(int64(values[0]), 1e6), scalar.FloorDiv(int64(largest), 1e6)
}

// appendFrame queues a batch of columns behind what is there.
func (pt *partition) appendFrame(b *batch) error {
	pt.mu.Lock()
	if err := pt.mu.closed; err != nil {
		pt.mu.Unlock()
		return err
	}
	if pt.mu.open != nil {
		pt.mu.full = append(pt.mu.full, pt.mu.open)
		pt.mu.open = nil
	}
	b.serial, b.width = pt.mu.serial, 2*batchRecords
	pt.mu.serial += b.width
	pt.mu.full = append(pt.mu.full, b)
	pt.mu.Unlock()
	pt.t.p.readyFull(pt)
	return nil
}

// arrayOf sees a slice as an array; strings and bools are copied.
func arrayOf(t arrow.DataType, v any) (arrow.Array, error) {
	fixed := func(n int, raw []byte) (arrow.Array, error) {
		w, ok := t.(arrow.FixedWidthDataType)
		if !ok || n > 0 && w.BitWidth()/8*n != len(raw) || t.ID() == arrow.DICTIONARY {
			return nil, fmt.Errorf("%w: %T for %s", ErrColumns, v, t)
		}
		d := array.NewData(t, n, []*memory.Buffer{nil, memory.NewBufferBytes(raw)}, nil, 0, 0)
		defer d.Release()
		return array.MakeFromData(d), nil
	}
	wrong := fmt.Errorf("%w: %T for %s", ErrColumns, v, t)
	is := func(ids ...arrow.Type) bool {
		for _, id := range ids {
			if t.ID() == id {
				return true
			}
		}
		return false
	}
	switch s := v.(type) {
	case arrow.Array:
		s.Retain()
		return s, nil
	case []int8:
		if is(arrow.INT8) {
			return fixed(len(s), arrow.Int8Traits.CastToBytes(s))
		}
	case []int16:
		if is(arrow.INT16) {
			return fixed(len(s), arrow.Int16Traits.CastToBytes(s))
		}
	case []int32:
		if is(arrow.INT32, arrow.DATE32) {
			return fixed(len(s), arrow.Int32Traits.CastToBytes(s))
		}
	case []int64:
		if is(arrow.INT64, arrow.TIMESTAMP, arrow.DURATION) {
			return fixed(len(s), arrow.Int64Traits.CastToBytes(s))
		}
	case []uint8:
		if is(arrow.UINT8) {
			return fixed(len(s), s)
		}
	case []uint16:
		if is(arrow.UINT16) {
			return fixed(len(s), arrow.Uint16Traits.CastToBytes(s))
		}
	case []uint32:
		if is(arrow.UINT32) {
			return fixed(len(s), arrow.Uint32Traits.CastToBytes(s))
		}
	case []uint64:
		if is(arrow.UINT64) {
			return fixed(len(s), arrow.Uint64Traits.CastToBytes(s))
		}
	case []float32:
		if is(arrow.FLOAT32) {
			return fixed(len(s), arrow.Float32Traits.CastToBytes(s))
		}
	case []float64:
		if is(arrow.FLOAT64) {
			return fixed(len(s), arrow.Float64Traits.CastToBytes(s))
		}
	case []bool:
		if is(arrow.BOOL) {
			b := array.NewBooleanBuilder(memory.DefaultAllocator)
			defer b.Release()
			b.AppendValues(s, nil)
			return b.NewArray(), nil
		}
	case []string:
		if is(arrow.STRING, arrow.BINARY) {
			text := Text{Offsets: make([]int32, 1, len(s)+1)}
			for _, x := range s {
				text.Bytes = append(text.Bytes, x...)
				if len(text.Bytes) > 1<<30 {
					return nil, fmt.Errorf("%w: more than 1 GiB of text", ErrColumns)
				}
				text.Offsets = append(text.Offsets, int32(len(text.Bytes)))
			}
			return text.array(t)
		}
	case Text:
		if is(arrow.STRING, arrow.BINARY) {
			return s.array(t)
		}
	}
	return nil, wrong
}

func (t Text) array(dt arrow.DataType) (arrow.Array, error) {
	if len(t.Offsets) == 0 {
		return nil, fmt.Errorf("%w: a text without offsets", ErrColumns)
	}
	last := t.Offsets[0]
	if last < 0 {
		return nil, fmt.Errorf("%w: the first offset is %d", ErrColumns, last)
	}
	for _, o := range t.Offsets {
		if o < last {
			return nil, fmt.Errorf("%w: offset %d after %d", ErrColumns, o, last)
		}
		last = o
	}
	if int(last) > len(t.Bytes) {
		return nil, fmt.Errorf("%w: offset %d in %d bytes", ErrColumns, last, len(t.Bytes))
	}
	d := array.NewData(dt, len(t.Offsets)-1, []*memory.Buffer{
		nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(t.Offsets)), memory.NewBufferBytes(t.Bytes),
	}, nil, 0, 0)
	defer d.Release()
	return array.MakeFromData(d), nil
}

// attributes of the batch's header.
func (b *batch) attributes() uint16 {
	if b.rows > 0 {
		return columnarBit
	}
	return 0
}

// finishFrame calls what waits for a frame.
func (b *batch) finishFrame() {
	if b.framed == nil {
		return
	}
	a := FrameAck{Partition: b.part.index, Offset: -1, Rows: b.rows, Err: b.err}
	if b.err == nil {
		a.Offset = b.offset
	}
	b.framed(a)
}

// A Column is a name and a type of the language, such as "int64", "decimal(12,2)?" or "list<string>".
type Column struct{ Name, Type string }

// ColumnsSchema is the Arrow schema of columns. The error is ErrColumns.
func ColumnsSchema(columns ...Column) (*arrow.Schema, error) {
	cols := make([]columnar.Column, len(columns))
	for i, c := range columns {
		t, ok := scalar.ParseType(c.Type)
		if !ok {
			return nil, fmt.Errorf("%w: column %s has no type %q", ErrColumns, c.Name, c.Type)
		}
		cols[i] = columnar.Column{Name: c.Name, Type: t}
	}
	s, err := columnar.NewSchema(cols)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrColumns, err)
	}
	return s.Arrow(), nil
}
