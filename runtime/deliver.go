package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"sort"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/runtime/codec"
)

// TopicOf is a stored topic as the language sees it: what its declaration says, or key and value as bytes if it has none.
func TopicOf(name string, declaration json.RawMessage, partitions int32, derived bool) *plan.Topic {
	t := &plan.Topic{}
	if len(declaration) == 0 || json.Unmarshal(declaration, t) != nil {
		t = rawTopic()
	}
	t.Ident, t.Name, t.Partitions, t.Derived = name, name, int(partitions), derived
	return t
}

// ErrNotDelivered is text that is more than a filter and a list of columns.
var ErrNotDelivered = errors.New("runtime: only a filter and columns are evaluated in delivery")

// catalogOf is a catalogue of one topic.
type catalogOf struct{ topic *plan.Topic }

// Topic implements dsl.Catalog.
func (c catalogOf) Topic(name string) (*plan.Topic, bool) { return c.topic, name == c.topic.Name }

// CompileDelivery is the view over a topic that a filter and a list of columns make, in the words of `where` and
// `select`; an empty text leaves its stage out.
//
// It is for NewDelivery, with t as the source. Errors: *dsl.Errors, ErrNotDelivered.
func CompileDelivery(t *plan.Topic, where, columns string) (*plan.View, error) {
	rows := *t
	rows.Key, rows.Table = nil, false // what is delivered is nobody's topic: it needs no key
	name := "delivered"
	if t.Name == name {
		name = "delivery"
	}
	text := fmt.Sprintf("view %s = from %q", name, t.Name)
	if where != "" {
		text += "\n  |> where " + where
	}
	if columns != "" {
		text += "\n  |> select " + columns
	}
	m, err := dsl.Compile("request", text+"\n", dsl.Options{Name: "request", Catalog: catalogOf{&rows}})
	if err != nil {
		return nil, err
	}
	if len(m.Views) != 1 || len(m.Pipelines) > 0 || len(m.Topics) > 0 {
		return nil, ErrNotDelivered
	}
	for _, st := range m.Views[0].Stages {
		if st.Kind != plan.StageFilter && st.Kind != plan.StageProject {
			return nil, fmt.Errorf("%w, not %s", ErrNotDelivered, st.Word)
		}
	}
	return m.Views[0], nil
}

// Plan is what the view does.
func (v *View) Plan() *plan.View { return v.view }

const (
	deliveredRows  = 16 << 10 // rows of one batch of a topic of rows, about
	deliveredBytes = 1 << 20  // bytes of the records that are made one batch of, about; longer columnar batches are cut
)

// A Delivery gives the stored batches of a topic, or of a view over it, as columns. Columnar batches are not copied. It belongs
// to one goroutine at a time.
type Delivery struct {
	source  *plan.Topic
	schema  *columnar.Schema
	alloc   memory.Allocator
	decoder *codec.Decoder
	clock   eventClock
	timed   bool // rows need their event time
	ops     []operators.Operator

	mark   operators.EventTime // of the last time mark
	marked bool
	failed int64
	why    string
}

// A Delivered is rows of one partition.
type Delivered struct {
	Rows *operators.Batch // the receiver's; its columns point into the stored batches
	// Next is the offset behind what was looked at for these rows: reading goes on there.
	Next int64
	// Watermark is that of the last time mark that was read, ns; Marked says whether there was one.
	Watermark operators.EventTime
	Marked    bool
}

// NewDelivery makes a Delivery of a topic; with a view over it, of its rows. alloc nil is the Go heap.
//
// Errors: codec.ErrTopic and those of a plan that cannot run.
func NewDelivery(source *plan.Topic, v *plan.View, alloc memory.Allocator) (*Delivery, error) {
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	if len(source.Schema.Columns) == 0 && source.Format == plan.FormatRaw {
		raw := *source
		raw.Schema, source = codec.RawSchema(), &raw
	}
	d := &Delivery{source: source, alloc: alloc}
	var needed []bool
	out := source
	if v != nil {
		needed = v.Needed
		named := *v.Topic
		named.Schema.Columns = make([]plan.Column, len(v.Topic.Schema.Columns))
		for i, c := range v.Topic.Schema.Columns {
			named.Schema.Columns[i] = plan.Column{Name: c.Name, Type: c.Type}
		}
		out = &named
	}
	var err error
	if d.schema, err = codec.ColumnarSchema(out); err != nil {
		return nil, err
	}
	if d.decoder, err = codec.NewDecoder(source, needed, alloc); err != nil {
		return nil, err
	}
	if v == nil {
		return d, nil
	}
	if readsKey(v) {
		d.decoder.WantKeys()
	}
	if err := d.clock.init(source, alloc); err != nil {
		return nil, err
	}
	d.timed = true
	d.ops, err = buildStages(source, v.Stages, stageOptions{}, alloc)
	return d, err
}

// Schema is the columns that come out.
func (d *Delivery) Schema() *columnar.Schema { return d.schema }

// Failures counts the rows that were left out as no row of the topic, or as one that a stage could not evaluate, and says
// why for the last one.
func (d *Delivery) Failures() (n int64, last string) { return d.failed, d.why }

// Close releases what the Delivery holds.
func (d *Delivery) Close() {
	d.decoder.Close()
	for _, op := range d.ops {
		op.Close()
	}
}

// Deliver calls emit for the rows of batches, which lie in one partition one after the other, at offsets in [from, to). It
// answers the offset behind what was looked at. Deletes of a table are left out, control batches are taken as marks.
//
// Errors: those of emit, and of codec.Decoder.Append.
func (d *Delivery) Deliver(batches []log.Batch, partition int32, from, to int64, emit func(Delivered) error) (next int64, err error) {
	d.decoder.SetPartition(partition)
	next = from
	bytes := 0
	for i := range batches {
		b := &batches[i]
		if b.Base >= to {
			break
		}
		if b.Last < from {
			continue
		}
		if w, control, mark := controlBatch(b.Data); control {
			if err := d.flush(next, to, 0, emit); err != nil {
				return next, err
			}
			if mark {
				d.mark, d.marked = w, true
			}
			next, bytes = b.Last+1, 0
			continue
		}
		columns := codec.Columnar(b.Data)
		if columns || bytes >= deliveredBytes || d.decoder.Rows() >= deliveredRows {
			if err := d.flush(next, to, 0, emit); err != nil {
				return next, err
			}
			bytes = 0
		}
		if err := d.decoder.Append(b.Base, b.AppendTime, b.Data, from); err != nil {
			return next, err
		}
		bytes += len(b.Data)
		next = min(b.Last+1, to)
		if columns {
			if err := d.flush(next, to, len(b.Data), emit); err != nil {
				return next, err
			}
			bytes = 0
		}
	}
	return next, d.flush(next, to, 0, emit)
}

// flush emits what was decoded. bytes is the size of the one batch that it came from, or 0.
func (d *Delivery) flush(next, to int64, bytes int, emit func(Delivered) error) error {
	rows, invalid := d.decoder.Flush()
	for i := range invalid {
		if invalid[i].Offset < to {
			d.fail(invalid[i].Offset, invalid[i].Detail)
		}
	}
	if rows == nil {
		return nil
	}
	if n := sort.Search(rows.Rows, func(i int) bool { return rows.Offsets[i] >= to }); n < rows.Rows {
		whole := rows
		rows = whole.Slice(0, n)
		whole.Release()
	}
	pieces := 1 + bytes/(2*deliveredBytes)
	size := max(1, (rows.Rows+pieces-1)/pieces)
	defer rows.Release()
	for at := 0; at < rows.Rows; at += size {
		end := min(at+size, rows.Rows)
		piece := rows.Slice(at, end)
		behind := next
		if end < rows.Rows {
			behind = rows.Offsets[end]
		}
		for _, b := range d.Eval(piece) {
			if err := emit(Delivered{Rows: b, Next: behind, Watermark: d.mark, Marked: d.marked}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Eval runs rows of the source, which it takes over, through the stages. The batches that it answers are the caller's.
func (d *Delivery) Eval(rows *operators.Batch) []*operators.Batch {
	rows = d.live(rows)
	if rows.Rows == 0 {
		rows.Release()
		return nil
	}
	if len(d.ops) == 0 {
		return []*operators.Batch{rows}
	}
	var out []*operators.Batch
	deliveryStage{d, 0, &out}.Emit(rows)
	return out
}

// live leaves out deletes and, where stages may ask for it, rows without an event time.
func (d *Delivery) live(rows *operators.Batch) *operators.Batch {
	var bad []invalidRow
	if d.timed {
		bad = d.clock.stamp(rows)
	}
	if rows.Ops == nil && len(bad) == 0 {
		return rows
	}
	return d.present(rows, bad)
}

// present is rows, which it takes over, without deletes and those of bad.
func (d *Delivery) present(rows *operators.Batch, bad []invalidRow) *operators.Batch {
	sel := make([]int32, 0, rows.Rows)
	for i := range rows.Rows {
		if len(bad) > 0 && bad[0].row == i {
			d.fail(rows.Offsets[i], bad[0].detail)
			bad = bad[1:]
			continue
		}
		if !rows.Deletes(i) {
			sel = append(sel, int32(i))
		}
	}
	good := rows.Select(d.alloc, sel)
	rows.Release()
	return good
}

func (d *Delivery) fail(offset int64, why string) {
	d.failed++
	d.why = fmt.Sprintf("offset %d: %s", offset, why)
}

// deliveryStage is the Emitter before stage at.
type deliveryStage struct {
	d   *Delivery
	at  int
	out *[]*operators.Batch
}

// Emit implements operators.Emitter.
func (s deliveryStage) Emit(b *operators.Batch) {
	if s.at < len(s.d.ops) {
		s.d.ops[s.at].Process(b, deliveryStage{s.d, s.at + 1, s.out})
		return
	}
	if b.Ops != nil { // a filter of a table has made deletes of what does not pass
		b = s.d.present(b, nil)
	}
	if b.Rows == 0 {
		b.Release()
		return
	}
	*s.out = append(*s.out, b)
}

// Late implements operators.Emitter; stages without state call nothing late.
func (s deliveryStage) Late(*operators.Batch, []int) {}

// Fail implements operators.Emitter.
func (s deliveryStage) Fail(b *operators.Batch, errs []operators.RowError) {
	for _, e := range errs {
		s.d.fail(b.Offsets[e.Row], e.Code.String()+" in `"+e.Expr+"`")
	}
}
