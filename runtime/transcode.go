package runtime

import (
	"reflect"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime/codec"
)

// transcodedBatch is about the size at which a batch of transcoded rows is cut.
const transcodedBatch = 512 << 10

// A Transcoder gives the columnar batches of a topic to readers that know rows only: records with the row in the
// topic's JSON as value, its encoded key, and its event time as timestamp. It belongs to one goroutine at a time.
type Transcoder struct {
	rows    *codec.Rows
	clock   eventClock
	builder *record.Builder
	headers []record.KV
}

// NewTranscoder makes a transcoder of a topic of format arrow. The error is a codec.ErrTopic.
func NewTranscoder(t *plan.Topic) (*Transcoder, error) {
	x := &Transcoder{builder: record.NewBuilder()}
	var err error
	if x.rows, err = codec.NewRows(t); err != nil {
		return nil, err
	}
	return x, x.clock.init(t, memory.DefaultAllocator)
}

// Rows appends to out the rows of a columnar batch at and after offset from as row batches, until these have maxBytes or
// the batch ends. Offsets and leader epoch stay; the first row is given whatever its size. A row that has no written form
// has a null value.
//
// Errors: those of codec.Rows.Open.
func (x *Transcoder) Rows(b *log.Batch, from int64, maxBytes int, out []log.Batch) ([]log.Batch, error) {
	if err := x.rows.Open(b.Data); err != nil {
		return out, err
	}
	rows := x.rows.Batch()
	h, times := x.rows.Header(), rows.Time
	if times == nil && x.clock.program != nil {
		bad := x.clock.stamp(rows) // rows without an event time have the batch's timestamp
		times = append([]int64(nil), rows.Time...)
		for _, r := range bad {
			times[r.row] = h.MaxTimestamp * 1e6
		}
		rows.Time = nil
	}
	total := 0
	for row := int(max(from-b.Base, 0)); row < rows.Rows && total < maxBytes; {
		base := b.Base + int64(row)
		x.builder.Reset()
		x.builder.SetBase(base, b.Epoch)
		for row < rows.Rows && (x.builder.Len() == 0 || total+x.builder.Size() < maxBytes && x.builder.Size() < transcodedBatch) {
			ts := h.MaxTimestamp
			if times != nil {
				ts = floorDiv(times[row], 1e6)
			}
			key, value, code := x.rows.Row(row)
			if code != 0 {
				value = nil
			}
			x.headers = x.rows.Headers(x.headers[:0], row)
			x.builder.Append(ts, key, value, x.headers)
			row++
		}
		n := x.builder.Len()
		data := x.builder.Finish()
		hdr, err := record.ParseHeader(data)
		if err != nil {
			return out, err
		}
		total += len(data)
		out = append(out, log.Batch{
			Base: base, Last: base + int64(n) - 1, Epoch: b.Epoch, Unit: b.Unit, Index: b.Index,
			AppendTime: b.AppendTime, MaxTimestamp: hdr.MaxTimestamp, Data: data,
		})
	}
	return out, nil
}

// readsKey says whether any expression below v, a plan or a part of one, reads record.key.
func readsKey(v any) bool {
	seen := map[uintptr]bool{}
	var walk func(v reflect.Value) bool
	walk = func(v reflect.Value) bool {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() || seen[v.Pointer()] {
				return false
			}
			seen[v.Pointer()] = true
			if e, ok := v.Interface().(*plan.Expr); ok && e.Op == plan.ExprMeta && e.Meta == plan.MetaKey {
				return true
			}
			return walk(v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				if walk(v.Index(i)) {
					return true
				}
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() && walk(v.Field(i)) {
					return true
				}
			}
		}
		return false
	}
	return walk(reflect.ValueOf(v))
}
