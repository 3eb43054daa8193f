// Package codec turns record batches into columns and rows into record values.
//
// A Decoder reads the records of one source partition into the columns that a plan needs; the others
// are never built. A record that does not fit its topic (not in the format, a field of the wrong type or
// out of range, a null in a column that has none) never disturbs its neighbours: it is set aside with a
// code and a sentence that names the column.
//
// JSON: one object a record. Members are matched by exact name, in any order; unknown ones are skipped,
// but what is skipped must be JSON too; of equal names the last wins. Integers are digits without
// fraction or exponent; decimals are read exactly from their text and may not have more digits after the
// point than the column; nesting is bounded by maxDepth. Text that is no UTF-8 is refused where a column
// would hold it.
//
// CSV: one line a record, fields in schema order, quoted as encoding/csv does. An empty field is null, or
// "" in a string column that has no nulls; a quoted empty field is always "". Lists, maps and structs are
// JSON in a field.
//
// Lines: the value is the one column. Regex: a column is the text of the group with its name, read as a CSV field is; a group
// that took no part, or is empty in a column that is no string, is null.
//
// Raw: the columns key and value.
//
// Of a table, a record without value is a delete: a row whose columns hold nothing. A record that does not
// fit is set aside and, as the row before it is replaced, a delete of its key too. A record without key
// does not fit.
//
// Arrow: columnar batches, whose columns are taken as they lie in memory; records are JSON.
//
// A Decoder and an Encoder belong to one goroutine at a time.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"regexp"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
)

// ErrTopic is returned for a topic that no decoder or encoder can be made for.
var ErrTopic = errors.New("codec: unusable topic")

// Headers of derived records.
const (
	headerTime = "hr-time" // event time, int64 ns big-endian, where the record timestamp loses some of it
	headerLate = "hr-late" // the watermark before a row that is behind, int64 ns big-endian
)

// arenaBytes is the least memory taken at a time for records that came compressed.
const arenaBytes = 64 << 10

// An Invalid is a record that could not be decoded. Its bytes are kept as long as anyone holds them.
type Invalid struct {
	Offset     int64
	Timestamp  int64 // record timestamp, ms
	AppendTime int64 // ns
	Key        []byte
	Value      []byte
	Code       scalar.Code
	Detail     string // one sentence that names the column
}

// A Decoder collects the records of batches into one columnar batch.
type Decoder struct {
	topic     string
	format    plan.Format
	alloc     memory.Allocator
	columns   []*column // by schema column; nil if not needed
	byRecord  bool      // the event time is the record timestamp
	table     bool
	parse     parser
	root      *object
	line      csvLine
	cols      *columnsIn // of format arrow
	regex     *regexp.Regexp
	groups    []int // of each column
	partition int32
	reader    record.Reader

	rows       int
	hint       int // rows of the last batch
	times      []int64
	behind     []int64 // nil until a row was behind
	offsets    []int64
	timestamps []int64
	appended   []int64
	keys       [][]byte
	values     [][]byte
	ops        []operators.Op // nil until a row was a delete
	arena      []byte
	invalid    []Invalid
}

// NewDecoder makes a decoder of the topic's records. needed says which columns of the schema to build;
// nil: all. A topic without schema has the columns key and value, both bytes?. alloc nil is the Go heap.
//
// Errors: ErrTopic.
func NewDecoder(t *plan.Topic, needed []bool, alloc memory.Allocator) (*Decoder, error) {
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	schema := t.Schema.Columns
	if len(schema) == 0 && t.Format == plan.FormatRaw {
		schema = RawSchema().Columns
	}
	if needed != nil && len(needed) != len(schema) {
		return nil, fmt.Errorf("%w: %s has %d columns, %d are marked", ErrTopic, t.Name, len(schema), len(needed))
	}
	d := &Decoder{
		topic: t.Name, format: t.Format, alloc: alloc, columns: make([]*column, len(schema)),
		byRecord: t.Time.Expr == nil && !t.Time.Append, table: t.Table,
	}
	for i, c := range schema {
		if needed != nil && !needed[i] {
			continue
		}
		col, err := newColumn(c, c.Name)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrTopic, t.Name, err)
		}
		if t.Format == plan.FormatRaw && (c.Name != "key" && c.Name != "value" || col.kind != scalar.KindBytes) {
			return nil, fmt.Errorf("%w: %s: column %s of a topic without format", ErrTopic, t.Name, c.Name)
		}
		d.columns[i] = col
	}
	switch t.Format {
	case plan.FormatRaw, plan.FormatCSV:
	case plan.FormatLines:
		if len(schema) != 1 {
			return nil, fmt.Errorf("%w: %s holds lines and has %d columns", ErrTopic, t.Name, len(schema))
		}
	case plan.FormatRegex:
		if err := d.compile(t); err != nil {
			return nil, err
		}
	case plan.FormatJSON, plan.FormatArrow:
		names := make([]string, len(schema))
		for i, c := range schema {
			names[i] = inputName(c)
		}
		d.root = newObject(names, d.columns)
		if t.Format == plan.FormatArrow {
			s, err := ColumnarSchema(t)
			if err != nil {
				return nil, err
			}
			d.cols = &columnsIn{topic: t, schema: s, needed: needed}
		}
	default:
		return nil, fmt.Errorf("%w: %s has format %d", ErrTopic, t.Name, t.Format)
	}
	return d, nil
}

// RawSchema is the schema of a topic that has none: key and value as bytes.
func RawSchema() plan.Schema {
	t := scalar.TypeBytes.Null()
	return plan.Schema{Columns: []plan.Column{{Name: "key", Input: "key", Type: t}, {Name: "value", Input: "value", Type: t}}}
}

func inputName(c plan.Column) string {
	if c.Input != "" {
		return c.Input
	}
	return c.Name
}

// SetPartition sets the source partition of the batches that Flush makes.
func (d *Decoder) SetPartition(p int32) { d.partition = p }

// Rows is the number of rows that Flush would give.
func (d *Decoder) Rows() int { return d.rows }

// Close releases what the decoder holds. It is not used afterwards.
func (d *Decoder) Close() { d.reset() }

// Append decodes the records of one record batch whose offset is at least from. base is the offset of
// the batch's first record and appendTime its append time, ns; what the header says of the offset is not
// looked at. Control batches hold no rows. The decoder keeps data, which must not change, until the
// batch that it makes of it is released. A columnar batch becomes a batch of its own: it may be appended only
// directly after Flush, and Flush must follow.
//
// Errors: those of record.Reader, for bytes that are no record batch; ErrNotFlushed, columnar.ErrOtherSchema and
// columnar.ErrPayload for columns. Records that do not fit the topic are no error; Flush gives them.
func (d *Decoder) Append(base, appendTime int64, data []byte, from int64) error {
	if h, err := record.ParseHeader(data); err == nil && h.Columnar() && !h.Control() {
		return d.appendColumns(h, base, appendTime, data, from)
	}
	if d.cols != nil && d.cols.batch != nil {
		return ErrNotFlushed
	}
	if err := d.reader.Reset(data); err != nil {
		return fmt.Errorf("codec: batch at offset %d: %w", base, err)
	}
	h := d.reader.Header()
	if h.Control() {
		return nil
	}
	shift, packed := base-h.BaseOffset, h.Codec() != record.None
	for d.reader.Next() {
		rec := d.reader.Record()
		offset := rec.Offset + shift
		if offset < from {
			continue
		}
		d.record(rec, offset, appendTime, packed)
	}
	if err := d.reader.Err(); err != nil {
		return fmt.Errorf("codec: batch at offset %d: %w", base, err)
	}
	return nil
}

// record decodes one record into a row or an Invalid.
func (d *Decoder) record(rec *record.Record, offset, appendTime int64, packed bool) {
	key, value := rec.Key, rec.Value
	if packed { // the reader's own memory, which the next batch overwrites
		key, value = d.keep(key), d.keep(value)
	}
	ts, behind := eventTime(rec.Timestamp), operators.MinEventTime
	late := false
	if len(d.reader.HeaderBytes()) > 1 {
		for _, kv := range d.reader.Headers() {
			if len(kv.Value) != 8 {
				continue
			}
			switch kv.Key {
			case headerTime:
				ts = int64(binary.BigEndian.Uint64(kv.Value))
			case headerLate:
				late, behind = true, int64(binary.BigEndian.Uint64(kv.Value))
			}
		}
	}
	d.parse.ok()
	if d.table && value == nil && key != nil && d.checkTime(rec.Timestamp) {
		d.delete()
		d.row(ts, behind, late, offset, appendTime, rec.Timestamp, key, value)
		return
	}
	if !d.fits(key, value, rec.Timestamp) {
		for _, c := range d.columns {
			if c != nil {
				c.truncate(d.rows)
			}
		}
		d.invalid = append(d.invalid, Invalid{
			Offset: offset, Timestamp: rec.Timestamp, AppendTime: appendTime, Key: key, Value: value,
			Code: d.parse.code, Detail: d.parse.detail,
		})
		if d.table && key != nil { // the row before it is replaced
			d.delete()
			d.row(ts, behind, late, offset, appendTime, rec.Timestamp, key, value)
		}
		return
	}
	d.row(ts, behind, late, offset, appendTime, rec.Timestamp, key, value)
}

// fits decodes a record into the columns, if it can be.
func (d *Decoder) fits(key, value []byte, timestamp int64) bool {
	if d.table && key == nil {
		return d.parse.fail(scalar.CodeNull, "a record of a table needs a key")
	}
	return d.decode(key, value) && (!d.byRecord || d.checkTime(timestamp))
}

// delete fills the columns of a row that is a delete.
func (d *Decoder) delete() {
	for _, c := range d.columns {
		if c != nil {
			c.appendNull()
		}
	}
	if d.ops == nil {
		d.ops = make([]operators.Op, d.rows, max(d.rows+1, d.hint))
	}
	d.ops = append(d.ops, operators.OpDelete)
}

// row notes everything of a row but its columns, which are there.
func (d *Decoder) row(ts, behind int64, late bool, offset, appendTime, timestamp int64, key, value []byte) {
	if late && d.behind == nil {
		d.behind = make([]int64, d.rows, max(d.rows+1, d.hint))
		for i := range d.behind {
			d.behind[i] = operators.MinEventTime
		}
	}
	if d.times == nil {
		n := max(d.hint, 64)
		d.times, d.offsets, d.appended = make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
		d.timestamps, d.keys, d.values = make([]int64, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
	}
	d.rows++
	if d.ops != nil && len(d.ops) < d.rows {
		d.ops = append(d.ops, operators.OpInsert)
	}
	if d.behind != nil {
		d.behind = append(d.behind, behind)
	}
	d.times = append(d.times, ts)
	d.offsets = append(d.offsets, offset)
	d.appended = append(d.appended, appendTime)
	d.timestamps = append(d.timestamps, timestamp)
	d.keys = append(d.keys, key)
	d.values = append(d.values, value)
}

// eventTime is a record timestamp as an event time; one out of range becomes the nearest.
func eventTime(ms int64) int64 {
	switch {
	case ms > math.MaxInt64/1_000_000:
		return math.MaxInt64
	case ms < math.MinInt64/1_000_000:
		return math.MinInt64
	}
	return ms * 1e6
}

func (d *Decoder) checkTime(ms int64) bool {
	if ms > math.MaxInt64/1_000_000 || ms < math.MinInt64/1_000_000 {
		return d.parse.fail(scalar.CodeTimeRange, "record timestamp %d ms is out of range", ms)
	}
	return true
}

func (d *Decoder) decode(key, value []byte) bool {
	switch d.format {
	case plan.FormatRaw:
		for i, c := range d.columns {
			switch {
			case c == nil:
			case i == 0 && c.name == "key":
				c.appendBytesOrNull(key)
			default:
				c.appendBytesOrNull(value)
			}
		}
		return true
	case plan.FormatCSV:
		return d.decodeCSV(value)
	case plan.FormatLines:
		return d.decodeLine(value)
	case plan.FormatRegex:
		return d.decodeRegex(value)
	}
	return d.parse.record(d.root, value)
}

// keep copies bytes to memory that the batch will hold; nil stays nil.
func (d *Decoder) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	if d.arena == nil || len(b) > cap(d.arena)-len(d.arena) {
		d.arena = make([]byte, 0, max(len(b), arenaBytes))
	}
	from := len(d.arena)
	d.arena = append(d.arena, b...)
	return d.arena[from:len(d.arena):len(d.arena)]
}

// Flush gives the rows decoded since the last Flush, nil if there are none, and the records that could
// not be. Both belong to the caller.
//
// The event time of a row is that of its hr-time header, else its record timestamp. Behind is nil unless
// a row came with an hr-late header: then it holds that watermark, or MinEventTime.
func (d *Decoder) Flush() (*operators.Batch, []Invalid) {
	invalid := d.invalid
	d.invalid = nil
	if d.cols != nil && d.cols.batch != nil {
		b := d.cols.batch
		d.cols.batch, d.rows = nil, 0
		return b, invalid
	}
	if d.rows == 0 {
		d.reset()
		return nil, invalid
	}
	columns := make([]arrow.Array, len(d.columns))
	for i, c := range d.columns {
		if c == nil {
			continue
		}
		data := c.build(d.alloc)
		columns[i] = array.MakeFromData(data)
		data.Release()
	}
	b := operators.NewBatch(columns, d.times)
	b.Partition, b.Behind, b.Offsets, b.AppendTime, b.Key, b.Ops = d.partition, d.behind, d.offsets, d.appended, d.keys, d.ops
	topic, partition, offsets, timestamps, keys, values := d.topic, d.partition, d.offsets, d.timestamps, d.keys, d.values
	b.Origin = func(row int) operators.Origin {
		return operators.Origin{
			Topic: topic, Partition: partition, Offset: offsets[row], Timestamp: timestamps[row],
			Key: keys[row], Value: values[row],
		}
	}
	d.hint = d.rows
	d.reset()
	return b, invalid
}

// reset forgets the rows; the columns keep their scratch memory.
func (d *Decoder) reset() {
	if d.cols != nil {
		d.cols.release()
	}
	for _, c := range d.columns {
		if c != nil {
			c.truncate(0)
		}
	}
	d.rows = 0
	d.times, d.behind, d.offsets, d.timestamps, d.appended = nil, nil, nil, nil, nil
	d.keys, d.values, d.ops, d.arena, d.invalid = nil, nil, nil, nil, nil
}
