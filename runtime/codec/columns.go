package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
)

// ErrNotFlushed is a columnar batch for a Decoder that holds rows: each is a batch of its own.
var ErrNotFlushed = errors.New("codec: rows wait for Flush")

// Columnar reports whether a record batch holds columns. Bytes that are no batch do not.
func Columnar(batch []byte) bool {
	h, err := record.ParseHeader(batch)
	return err == nil && h.Columnar()
}

// ColumnarSchema is the schema of a topic's columnar batches: its columns by the names that its records have.
//
// Errors: ErrTopic.
func ColumnarSchema(t *plan.Topic) (*columnar.Schema, error) {
	cols := make([]columnar.Column, len(t.Schema.Columns))
	for i, c := range t.Schema.Columns {
		cols[i] = columnar.Column{Name: inputName(c), Type: inputType(c)}
	}
	s, err := columnar.NewSchema(cols)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTopic, t.Name, err)
	}
	return s, nil
}

// inputType is a column's type with the fields of its structs named as records have them.
func inputType(c plan.Column) scalar.Type {
	t := c.Type
	switch t.Kind {
	case scalar.KindList, scalar.KindMap:
		e := inputType(plan.Column{Type: *t.Elem, Members: c.Members})
		t.Elem = &e
	case scalar.KindStruct:
		fields := make([]scalar.Field, len(t.Fields))
		for i, f := range t.Fields {
			m := plan.Column{Name: f.Name}
			if i < len(c.Members) {
				m = c.Members[i]
			}
			m.Type = f.Type
			fields[i] = scalar.Field{Name: inputName(m), Type: inputType(m)}
		}
		t.Fields = fields
	}
	return t
}

// columnsIn is what a Decoder needs for columnar batches.
type columnsIn struct {
	topic  *plan.Topic
	schema *columnar.Schema
	needed []bool // nil: all
	keys   bool   // Key is wanted
	frame  columnar.Frame
	batch  *operators.Batch // taken by Flush
	zeros  []int64          // event times of rows that get theirs later
}

// WantKeys makes the decoder encode the key of each row of a columnar batch, which costs time and only a plan that
// asks for record.key needs. Records bring theirs along.
func (d *Decoder) WantKeys() {
	if d.cols != nil {
		d.cols.keys = true
	}
}

// appendColumns takes a columnar batch: its arrays point into data.
func (d *Decoder) appendColumns(h record.Header, base, appendTime int64, data []byte, from int64) error {
	c := d.cols
	if c == nil {
		return fmt.Errorf("codec: batch at offset %d: %w", base, record.ErrColumnar)
	}
	if d.rows > 0 || c.batch != nil {
		return ErrNotFlushed
	}
	f := &c.frame
	if err := openColumns(f, c.schema, h, data); err != nil {
		return fmt.Errorf("codec: batch at offset %d: %w", base, err)
	}
	n := f.Rows()
	skip := int(min(max(from-base, 0), int64(n)))
	if skip == n {
		return nil
	}
	columns := make([]arrow.Array, len(c.schema.Columns()))
	for i := range columns {
		if c.needed == nil || c.needed[i] {
			columns[i] = f.Column(i)
		}
	}
	b := operators.NewBatch(columns, c.times(f, d.byRecord, h, n))
	b.Partition = d.partition
	if behind := f.Behind(); behind != nil {
		b.Behind = append([]int64(nil), behind...) // which its reader raises in place
	}
	perRow := make([]int64, 2*n)
	b.Offsets, b.AppendTime = perRow[:n:n], perRow[n:]
	for i := range b.Offsets {
		b.Offsets[i], b.AppendTime[i] = base+int64(i), appendTime
	}
	if c.keys {
		b.Key = c.encodeKeys(f)
	}
	rows := &columnRows{topic: c.topic, schema: c.schema, data: data}
	partition, name, ms := d.partition, d.topic, h.MaxTimestamp
	b.Origin = func(row int) operators.Origin {
		o := operators.Origin{Topic: name, Partition: partition, Offset: base + int64(row), Timestamp: ms}
		o.Key, o.Value = rows.at(row, &o.Timestamp)
		return o
	}
	if skip > 0 {
		whole := b
		b = whole.Slice(skip, n)
		whole.Release()
	}
	c.batch, d.rows = b, n-skip
	return nil
}

// openColumns takes the payload of a columnar batch apart, whose values were checked when it came in.
func openColumns(f *columnar.Frame, s *columnar.Schema, h record.Header, data []byte) error {
	if h.Size() != len(data) || h.Codec() != record.None {
		return fmt.Errorf("%w: %d bytes of columns with codec %d", record.ErrCorrupt, len(data), h.Codec())
	}
	if err := f.Open(s, data[record.HeaderSize:]); err != nil {
		return err
	}
	if f.Rows() != int(h.Count) || h.LastOffsetDelta != h.Count-1 {
		return fmt.Errorf("%w: %d rows in a batch of %d records", record.ErrCorrupt, f.Rows(), h.Count)
	}
	return nil
}

// CheckColumns judges a columnar batch from outside, which must have passed record.Verify: its payload is of the
// schema and every value is one that a column may hold.
//
// Errors: record.ErrCorrupt, columnar.ErrOtherSchema, columnar.ErrPayload.
func CheckColumns(f *columnar.Frame, s *columnar.Schema, h record.Header, data []byte) error {
	if err := openColumns(f, s, h, data); err != nil {
		return err
	}
	return f.Check()
}

// times are the event times of a batch's rows. They are not written to.
func (c *columnsIn) times(f *columnar.Frame, byRecord bool, h record.Header, n int) []int64 {
	if t := f.Times(); t != nil {
		return t
	}
	if !byRecord { // the topic's expression tells, later
		if len(c.zeros) < n {
			c.zeros = make([]int64, n)
		}
		return c.zeros[:n:n]
	}
	out := make([]int64, n)
	ts := eventTime(h.MaxTimestamp)
	for i := range out {
		out[i] = ts
	}
	return out
}

func (c *columnsIn) encodeKeys(f *columnar.Frame) [][]byte {
	cols := make([]arrow.Array, len(c.topic.Key))
	for i, k := range c.topic.Key {
		cols[i] = f.Column(k)
	}
	keys, _ := operators.EncodeKeys(cols, keyTypes(c.topic), f.Rows(), nil, nil) // floats are no keys
	for _, a := range cols {
		a.Release()
	}
	return keys
}

func keyTypes(t *plan.Topic) []scalar.Type {
	out := make([]scalar.Type, len(t.Key))
	for i, k := range t.Key {
		out[i] = t.Schema.Columns[k].Type
	}
	return out
}

// columnRows gives single rows of a columnar batch as records, for side topics. It does nothing until it is asked.
type columnRows struct {
	topic  *plan.Topic
	schema *columnar.Schema
	data   []byte

	mu   sync.Mutex
	rows *Rows
}

// at is key and value of a row; its timestamp too, if the batch has one for each.
func (r *columnRows) at(row int, ms *int64) (key, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		rows, err := NewRows(r.topic)
		if err != nil || rows.Open(r.data) != nil {
			return nil, nil // it was decoded with the same schema
		}
		r.rows = rows
	}
	if t := r.rows.batch.Time; t != nil {
		*ms = scalar.FloorDiv(t[row], 1e6)
	}
	key, value, _ = r.rows.Row(row)
	return append([]byte(nil), key...), append([]byte{}, value...)
}

// Rows reads columnar batches as records: what a client that knows no columns gets. Value is the row in the
// topic's JSON, key its encoded key. It belongs to one goroutine at a time.
type Rows struct {
	topic  *plan.Topic
	schema *columnar.Schema
	enc    *Encoder
	types  []scalar.Type
	frame  columnar.Frame
	batch  *operators.Batch // its columns belong to the garbage collector
	header record.Header
	keys   []arrow.Array
	key    []byte
	value  []byte
}

// NewRows makes a reader of a topic's columnar batches. Errors: ErrTopic.
func NewRows(t *plan.Topic) (*Rows, error) {
	s, err := ColumnarSchema(t)
	if err != nil {
		return nil, err
	}
	enc, err := NewEncoder(t)
	if err != nil {
		return nil, err
	}
	return &Rows{topic: t, schema: s, enc: enc, types: keyTypes(t), keys: make([]arrow.Array, len(t.Key))}, nil
}

// Open starts on a batch, which the Rows keep until the next.
//
// Errors: those of record.ParseHeader, columnar.ErrOtherSchema, columnar.ErrPayload.
func (r *Rows) Open(batch []byte) error {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return err
	}
	if err := openColumns(&r.frame, r.schema, h, batch); err != nil {
		return err
	}
	columns := make([]arrow.Array, len(r.schema.Columns()))
	for i := range columns {
		columns[i] = r.frame.Column(i)
	}
	for i, k := range r.topic.Key {
		r.keys[i] = columns[k]
	}
	r.header = h
	r.batch = &operators.Batch{Columns: columns, Rows: r.frame.Rows(), Time: r.frame.Times(), Behind: r.frame.Behind()}
	return nil
}

// Batch is the opened batch; its Time is nil unless the batch brings event times along. It must not be released.
func (r *Rows) Batch() *operators.Batch { return r.batch }

// Header is the header of the opened batch.
func (r *Rows) Header() record.Header { return r.header }

// Row gives key and value of one row, valid until the next call. A nil key is null.
func (r *Rows) Row(row int) (key, value []byte, code scalar.Code) {
	r.key = r.key[:0]
	null := true
	if len(r.keys) > 0 {
		r.key, null = operators.EncodeKey(r.keys, r.types, row, r.key)
	}
	if !null {
		if key = r.key; key == nil {
			key = []byte{}
		}
	}
	r.value, code = r.enc.Encode(r.value[:0], r.batch, row)
	return key, r.value, code
}

// Headers of a row of a derived topic, appended to dst: what event time and lateness a record timestamp cannot say.
func (r *Rows) Headers(dst []record.KV, row int) []record.KV {
	if t := r.batch.Time; t != nil && t[row]%1e6 != 0 {
		dst = append(dst, record.KV{Key: headerTime, Value: binary.BigEndian.AppendUint64(nil, uint64(t[row]))})
	}
	if b := r.batch.Behind; b != nil && r.batch.Time != nil && b[row] > r.batch.Time[row] {
		dst = append(dst, record.KV{Key: headerLate, Value: binary.BigEndian.AppendUint64(nil, uint64(b[row]))})
	}
	return dst
}

// Columns makes columnar batches of record batches whose values are JSON. It belongs to one goroutine at a time.
type Columns struct {
	dec   *Decoder
	enc   *columnar.Encoder
	times bool // the rows' event times are those of their records
}

// NewColumns makes a converter for a topic of format arrow. Errors: ErrTopic.
func NewColumns(t *plan.Topic) (*Columns, error) {
	dec, err := NewDecoder(t, nil, nil)
	if err != nil {
		return nil, err
	}
	if dec.cols == nil {
		return nil, fmt.Errorf("%w: %s has no columns", ErrTopic, t.Name)
	}
	return &Columns{dec: dec, enc: columnar.NewEncoder(dec.cols.schema), times: dec.byRecord}, nil
}

// A RowError is the first record of a batch that is no row of its topic.
type RowError struct {
	Index  int // in the batch
	Code   scalar.Code
	Detail string
}

func (e *RowError) Error() string {
	return fmt.Sprintf("record %d of the batch: %s: %s", e.Index, e.Code, e.Detail)
}

// Convert makes a columnar batch of the records of a batch: all of them, with the same offsets, producer and
// timestamps. Keys and headers, but for those of derived topics, go: the key is in the columns.
//
// Errors: *RowError, those of record.Reader, columnar.ErrTooLarge.
func (c *Columns) Convert(batch []byte) ([]byte, error) {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return nil, err
	}
	if h.Count > columnar.MaxRows {
		return nil, columnar.ErrTooLarge
	}
	err = c.dec.Append(0, 0, batch, 0)
	rows, invalid := c.dec.Flush()
	if rows != nil {
		defer rows.Release()
	}
	switch {
	case err != nil:
		return nil, err
	case len(invalid) > 0:
		return nil, &RowError{Index: int(invalid[0].Offset), Code: invalid[0].Code, Detail: invalid[0].Detail}
	case rows == nil || rows.Rows != int(h.LastOffsetDelta)+1:
		return nil, fmt.Errorf("%w: offsets without records", record.ErrCorrupt)
	}
	var times []int64
	if c.times {
		times = rows.Time
	}
	size, err := c.enc.Plan(rows.Columns, 0, rows.Rows, times, rows.Behind)
	if err != nil {
		return nil, err
	}
	out := make([]byte, record.HeaderSize, record.HeaderSize+size)
	h.Attributes = h.Attributes&^record.AttrCodec | record.AttrColumnar
	h.BaseOffset = 0
	record.PutHeader(out, h)
	out = c.enc.Append(out)
	record.Seal(out)
	return out, nil
}

// Encode makes a columnar batch of rows [from, to) of columns, which are those of the topic. times are the rows' event times
// and behind, of a row that is behind, the watermark before it, else operators.MinEventTime; nil: no row is.
//
// Errors: columnar.ErrTooLarge if it would have more than maxBytes, columnar.ErrColumn.
func (c *Columns) Encode(columns []arrow.Array, from, to int, times, behind []int64, maxBytes int) ([]byte, error) {
	first, last := times[from], times[from]
	for _, t := range times[from:to] {
		last = max(last, t)
	}
	if !c.times {
		times = nil
	}
	size, err := c.enc.Plan(columns, from, to, times, behind)
	if err != nil {
		return nil, err
	}
	if record.HeaderSize+size > maxBytes {
		return nil, columnar.ErrTooLarge
	}
	out := make([]byte, record.HeaderSize, record.HeaderSize+size)
	n := int32(to - from)
	record.PutHeader(out, record.Header{
		Magic: record.Magic, Attributes: record.AttrColumnar, LastOffsetDelta: n - 1, Count: n,
		FirstTimestamp: scalar.FloorDiv(first, 1e6), MaxTimestamp: scalar.FloorDiv(last, 1e6),
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	})
	out = c.enc.Append(out)
	record.Seal(out)
	return out, nil
}

// release gives up a columnar batch that was not flushed.
func (c *columnsIn) release() {
	if c.batch != nil {
		c.batch.Release()
		c.batch = nil
	}
}
