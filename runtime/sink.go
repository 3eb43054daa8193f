package runtime

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime/codec"
)

// Headers that the engine writes.
const (
	headerTime      = "hr-time" // event time, int64 ns big-endian, when the record timestamp loses some of it
	headerLate      = "hr-late" // W_p before a row that is behind, int64 ns big-endian
	headerCode      = "hr-code" // row error code
	headerExpr      = "hr-expr" // what failed: an expression, or the column and reason
	headerTopic     = "hr-topic"
	headerPartition = "hr-partition"
	headerOffset    = "hr-offset"
	headerPipeline  = "hr-pipeline"
	headerStage     = "hr-stage"
	headerCut       = "hr-cut" // bytes of the original value, of which the beginning is here
)

// maxOutputBatch splits what a step writes to one partition.
const maxOutputBatch = 1<<20 - 64<<10

// maxOutputRecord is the longest key and value of one derived record; a longer one is a row error.
const maxOutputRecord = maxOutputBatch - 4096

// An output collects the records that one step writes to one topic.
type output struct {
	name       string
	partitions []log.PartitionID
	builders   []*record.Builder
	full       [][][]byte // batches already cut, by partition
	written    []bool     // rows since the last take
	maxBatch   int        // bytes of the largest batch that the topic takes

	// Of format arrow.
	columns  *codec.Columns
	rowBytes int // of the fixed-width columns of a row
}

func newOutput(name string, partitions []log.PartitionID, maxBatch int) *output {
	return &output{
		name: name, partitions: partitions, maxBatch: maxBatch, builders: make([]*record.Builder, len(partitions)),
		full: make([][][]byte, len(partitions)), written: make([]bool, len(partitions)),
	}
}

// append adds a record and answers the bytes it took. The slices are copied.
func (o *output) append(partition int32, ts int64, key, value []byte, headers []record.KV) int {
	b := o.builders[partition]
	if b == nil {
		b = record.NewBuilder()
		o.builders[partition] = b
	}
	size := max(len(key)+len(value)+32, o.rowBytes)
	for i := range headers {
		size += len(headers[i].Key) + len(headers[i].Value) + 8
	}
	if b.Len() > 0 && (b.Size()+size > min(maxOutputBatch, o.maxBatch) || (b.Len()+1)*o.rowBytes > maxOutputBatch) {
		o.full[partition] = append(o.full[partition], o.finish(b))
		b.Reset()
	}
	b.Append(ts, key, value, headers)
	o.written[partition] = true
	return size
}

// useColumns makes the output write columnar batches.
func (o *output) useColumns(t *plan.Topic) error {
	var err error
	o.columns, err = codec.NewColumns(t)
	for _, c := range t.Schema.Columns {
		o.rowBytes += 1 + scalar.Width(c.Type.Kind)
	}
	return err
}

// finish ends a batch. Rows that have no columnar form (a date after the year 9999) stay records, which readers of the
// topic take too.
func (o *output) finish(b *record.Builder) []byte {
	batch := b.Finish()
	if o.columns == nil {
		return batch
	}
	if columns, err := o.columns.Convert(batch); err == nil && len(columns) <= o.maxBatch {
		return columns
	}
	return batch
}

// take moves the batches into a unit, by partition.
func (o *output) take(u *log.Unit) {
	for i, id := range o.partitions {
		for _, batch := range o.full[i] {
			u.Append(id, batch)
		}
		o.full[i] = nil
		if b := o.builders[i]; b != nil && b.Len() > 0 {
			u.Append(id, o.finish(b))
			b.Reset()
		}
		o.written[i] = false
	}
}

// A sink is the end of a chain: it encodes rows for the derived topic, and original records for the
// side topics.
type sink struct {
	pipeline string
	main     *output
	late     *output // nil: dropped
	invalid  *output
	errors   *output

	encoder  *codec.Encoder
	key      []int // key columns
	types    []scalar.Type
	keepPart bool // rows stay in their source partition
	flat     bool // the columns are single values
	alloc    memory.Allocator
	keyed    bool      // rows are those of a table or changelog: they have their keys, and may be deletes
	release  *releaser // or wait for the watermark
	last     lastHeld  // the row that was held last
	counters *Counters
	bytes    int // encoded since the last take

	// refuse says which kinds of rows stop the pipeline, and refused which row has.
	refuse  refusal
	refused *badRow
	lastBad badRow

	collecting bool
	aside      []asideRow // rows for side topics, since collect
	arena      []byte     // what they point into

	value   []byte
	headers []record.KV
	words   [2][8]byte // values of headers
}

type lastHeld struct {
	known  bool
	source int32
	offset int64
	place  uint32
}

// A refusal says which kinds of rows stop a pipeline.
type refusal struct{ late, invalid, errors bool }

func refusals(pl *plan.Pipeline) refusal {
	return refusal{late: pl.Late.Action == plan.SideFail, invalid: pl.Invalid.Action == plan.SideFail, errors: pl.Errors.Action == plan.SideFail}
}

// An asideRow is a source record on its way to a side topic.
type asideRow struct {
	to        *output
	partition int32
	offset    int64 // in the source
	failed    bool  // rather than late
	timestamp int64
	key       []byte
	value     []byte
	headers   []record.KV
}

// write encodes the rows of a batch for the derived topic. It owns b.
func (s *sink) write(b *operators.Batch, stage string) {
	defer b.Release()
	if s.writeColumns(b) {
		return
	}
	keys, keyErrs := b.Key, []operators.RowError(nil)
	if !s.keyed {
		keys, keyErrs = encodeKeys(b, s.key, s.types)
	}
	var errs []operators.RowError
	for i := range b.Rows {
		if len(keyErrs) > 0 && keyErrs[0].Row == i {
			errs = append(errs, keyErrs[0])
			keyErrs = keyErrs[1:]
			continue
		}
		var value []byte
		var code scalar.Code
		if !b.Deletes(i) {
			value, code = s.encoder.Encode(s.value[:0], b, i)
			s.value = value[:0]
		}
		var key []byte
		if keys != nil {
			key = keys[i]
		}
		if code == 0 && len(key)+len(value) > maxOutputRecord {
			code = scalar.CodeLimit
		}
		if code != 0 {
			errs = append(errs, operators.RowError{Row: i, Code: code, Expr: "encode " + s.main.name})
			if !s.keyed || len(key) > maxOutputRecord {
				continue
			}
			value = nil // the row before it is replaced
			s.counters.Out--
		}
		row := heldRow{partition: s.partition(b, i, key), time: b.Time[i], key: key, value: value}
		if b.Behind != nil && b.Time[i] < b.Behind[i] {
			row.late, row.lateness = true, b.Behind[i]
		}
		if s.release == nil || b.Partition < 0 {
			s.emit(&row)
			continue
		}
		row.source, row.offset, row.at = b.Partition, b.Offsets[i], b.Time[i]
		row.place = s.placeOf(row.source, row.offset)
		if row.late {
			row.at = row.lateness
		}
		if key != nil {
			row.key = append([]byte{}, key...)
		}
		if value != nil {
			row.value = append([]byte{}, value...)
		}
		s.release.hold(row)
		s.counters.Held++
	}
	if len(errs) > 0 {
		s.counters.Unwritten += int64(len(errs))
		s.fail(b, errs, stage)
	}
}

// placeOf is the place of the next row among those of its record, which come one after the other.
func (s *sink) placeOf(source int32, offset int64) uint32 {
	if l := &s.last; l.known && l.source == source && l.offset == offset {
		l.place++
	} else {
		*l = lastHeld{known: true, source: source, offset: offset}
	}
	return s.last.place
}

// encodeKeys encodes the record keys of a batch: nil without key columns, a nil key for null.
func encodeKeys(b *operators.Batch, key []int, types []scalar.Type) ([][]byte, []operators.RowError) {
	if len(key) == 0 {
		return nil, nil
	}
	columns := make([]arrow.Array, len(key))
	for i, c := range key {
		columns[i] = b.Columns[c]
	}
	return operators.EncodeKeys(columns, pickTypes(types, key), b.Rows, nil, nil)
}

// partition chooses the derived partition. Rows whose key did not change stay where they are; others
// go by Kafka's hash of the key, so that any client finds the partition of a key.
func (s *sink) partition(b *operators.Batch, row int, key []byte) int32 {
	n := len(s.main.partitions)
	switch {
	case b.Partition >= 0 && (s.keepPart || key == nil):
		return b.Partition % int32(n)
	case key == nil:
		return 0
	}
	return operators.Partition(key, n)
}

// emit writes a record of the derived topic.
func (s *sink) emit(r *heldRow) {
	ms := floorDiv(r.time, 1e6)
	s.headers = s.headers[:0]
	if ms*1e6 != r.time {
		binary.BigEndian.PutUint64(s.words[0][:], uint64(r.time))
		s.headers = append(s.headers, record.KV{Key: headerTime, Value: s.words[0][:]})
	}
	if r.late {
		binary.BigEndian.PutUint64(s.words[1][:], uint64(r.lateness))
		s.headers = append(s.headers, record.KV{Key: headerLate, Value: s.words[1][:]})
	}
	s.counters.Out++
	s.bytes += s.main.append(r.partition, ms, r.key, r.value, s.headers)
}

func int64Bytes(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// collect begins to keep rows for side topics back, until give.
func (s *sink) collect() { s.collecting = true }

// give writes what was kept back since collect, in offset order, and answers the offsets of the rows that
// failed, ascending.
func (s *sink) give() (failed []int64) {
	s.collecting = false
	if len(s.aside) == 0 {
		return nil
	}
	slices.SortStableFunc(s.aside, func(a, b asideRow) int { return cmp.Compare(a.offset, b.offset) })
	for i := range s.aside {
		r := &s.aside[i]
		if n := len(failed); r.failed && (n == 0 || failed[n-1] != r.offset) { // once for all rows of a record
			failed = append(failed, r.offset)
		}
		if r.to != nil {
			s.bytes += r.to.append(r.partition, r.timestamp, r.key, r.value, r.headers)
		}
	}
	clear(s.aside)
	s.aside, s.arena = s.aside[:0], nil
	return failed
}

// side writes the source record of a row to a side topic, with headers that say why. to is nil for rows
// that are dropped.
func (s *sink) side(to *output, failed bool, o operators.Origin, extra ...record.KV) {
	r := asideRow{to: to, failed: failed, offset: o.Offset, timestamp: o.Timestamp}
	if to != nil {
		r.headers = append(extra,
			record.KV{Key: headerTopic, Value: []byte(o.Topic)},
			record.KV{Key: headerPartition, Value: strconv.AppendInt(nil, int64(o.Partition), 10)},
			record.KV{Key: headerOffset, Value: strconv.AppendInt(nil, o.Offset, 10)},
			record.KV{Key: headerPipeline, Value: []byte(s.pipeline)},
		)
		r.key, r.value = o.Key, o.Value
		// A record that the log took once may have become too long by its headers.
		if room := to.maxBatch - 4096 - len(r.key); len(r.value) > max(room, 0) {
			r.headers = append(r.headers, record.KV{Key: headerCut, Value: strconv.AppendInt(nil, int64(len(r.value)), 10)})
			r.key, r.value = r.key[:min(len(r.key), to.maxBatch-4096)], r.value[:max(room, 0)]
		}
		if o.Partition >= 0 {
			r.partition = o.Partition % int32(len(to.partitions))
		}
	}
	if s.collecting {
		r.key, r.value = s.keep(r.key), s.keep(r.value) // they live as long as their batch
		s.aside = append(s.aside, r)
		return
	}
	if to != nil {
		s.bytes += to.append(r.partition, r.timestamp, r.key, r.value, r.headers)
	}
}

// keep copies bytes for as long as aside holds them; nil stays nil.
func (s *sink) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	if s.arena == nil || len(b) > cap(s.arena)-len(s.arena) {
		s.arena = make([]byte, 0, max(len(b), 16<<10))
	}
	from := len(s.arena)
	s.arena = append(s.arena, b...)
	return s.arena[from:len(s.arena):len(s.arena)]
}

// bad notes a row that failed; with stop it stops the pipeline before its step.
func (s *sink) bad(stop bool, o *operators.Origin, code, what string) {
	s.lastBad = badRow{topic: o.Topic, partition: o.Partition, offset: o.Offset, code: code, what: what}
	if stop && s.refused == nil {
		r := s.lastBad
		s.refused = &r
	}
}

// giveLate sends rows that a stage had closed for to the late topic.
func (s *sink) giveLate(b *operators.Batch, rows []int, stage string) {
	s.counters.Late += int64(len(rows))
	if b.Origin == nil || s.late == nil && !s.refuse.late {
		return
	}
	for _, i := range rows {
		o := b.Origin(i)
		if s.refuse.late {
			s.bad(true, &o, "late", "for `"+stage+"`")
		}
		w := operators.MinEventTime
		if b.Behind != nil {
			w = b.Behind[i]
		}
		s.side(s.late, false, o, record.KV{Key: headerLate, Value: int64Bytes(w)}, record.KV{Key: headerStage, Value: []byte(stage)})
	}
}

// fail sends rows that failed in a stage to the errors topic. A group that failed when its window closed
// has no source record: its key, and its columns as far as they are known, stand in. Failed groups are in
// the order of windows, and failed rows in that of offsets, but where one comes between the others
// depends on how the source partitions came.
func (s *sink) fail(b *operators.Batch, errs []operators.RowError, stage string) {
	s.counters.Failed += int64(len(errs))
	for _, e := range errs {
		var o operators.Origin
		if b.Origin != nil {
			o = b.Origin(e.Row)
		} else {
			o = operators.Origin{Partition: -1, Offset: -1, Timestamp: floorDiv(b.Time[e.Row], 1e6)}
			if b.Key != nil {
				o.Key = b.Key[e.Row]
			}
		}
		if o.Topic == "" {
			o.Topic = s.main.name
		}
		code := e.Code.String()
		s.bad(s.refuse.errors, &o, code, e.Expr)
		s.side(s.errors, true, o,
			record.KV{Key: headerCode, Value: []byte(code)},
			record.KV{Key: headerExpr, Value: []byte(e.Expr)},
			record.KV{Key: headerStage, Value: []byte(stage)})
	}
}

// giveInvalid sends a record that failed before the first stage to the invalid topic.
func (s *sink) giveInvalid(o operators.Origin, code scalar.Code, detail string) {
	s.counters.Invalid++
	s.bad(s.refuse.invalid, &o, code.String(), detail)
	s.side(s.invalid, true, o,
		record.KV{Key: headerCode, Value: []byte(code.String())},
		record.KV{Key: headerExpr, Value: []byte(detail)})
}

// take moves everything that was written into a unit: the derived topic, then late, invalid, errors.
func (s *sink) take(u *log.Unit) {
	for _, o := range s.outputs() {
		o.take(u)
	}
	s.bytes = 0
}

// outputs lists the distinct topics that the sink writes; side topics may share one.
func (s *sink) outputs() []*output {
	var out []*output
	for _, o := range []*output{s.main, s.late, s.invalid, s.errors} {
		if o == nil {
			continue
		}
		seen := false
		for _, p := range out {
			seen = seen || p == o
		}
		if !seen {
			out = append(out, o)
		}
	}
	return out
}

// keepsPartition says whether no stage of a pipeline moves rows between partitions.
func keepsPartition(pl *plan.Pipeline) bool {
	for i := range pl.Stages {
		if pl.Stages[i].Shuffle {
			return false
		}
	}
	return true
}

// typeOf is the type of the rows that leave the last stage.
func typeOf(pl *plan.Pipeline) plan.StreamType {
	switch {
	case len(pl.Stages) > 0:
		return pl.Stages[len(pl.Stages)-1].Type
	case pl.Source.Table:
		return plan.StreamTable
	}
	return plan.StreamAppend
}

// merges says whether a stage brings rows of several partitions into one order.
func merges(pl *plan.Pipeline) bool {
	for i := range pl.Stages {
		switch pl.Stages[i].Kind {
		case plan.StageAggregate, plan.StageTop, plan.StageDedup, plan.StageOver:
			return true
		}
	}
	return false
}
