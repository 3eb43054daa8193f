package broker

import (
	"encoding/json"
	"errors"
	"sync"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/runtime/codec"
)

// columnsOf is what is needed of a topic of format arrow. Its pools hold what belongs to one goroutine at a time.
type columnsOf struct {
	raw         json.RawMessage // the declaration that it was made of
	topic       *plan.Topic     // nil: the topic has another format
	schema      *columnar.Schema
	frames      sync.Pool // *columnar.Frame
	converters  sync.Pool // *codec.Columns
	transcoders sync.Pool // *runtime.Transcoder
}

// maxColumnsKnown bounds the topics whose declarations are kept parsed.
const maxColumnsKnown = 4096

// columnsKnown keeps declarations parsed, by topic.
type columnsKnown struct {
	mu sync.RWMutex
	by map[log.TopicID]*columnsOf
}

var noColumns = &columnsOf{}

// columns finds what t's declaration says. It is made once for each declaration.
func (b *Broker) columns(t *Topic) *columnsOf {
	if len(t.Schema) == 0 {
		return noColumns
	}
	k := &b.columnsKnown
	k.mu.RLock()
	c := k.by[t.ID]
	k.mu.RUnlock()
	if c != nil && same(c.raw, t.Schema) {
		return c
	}
	c = newColumns(t)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by == nil || len(k.by) >= maxColumnsKnown {
		k.by = map[log.TopicID]*columnsOf{}
	}
	k.by[t.ID] = c
	return c
}

// same says whether two declarations are the same bytes in memory: the catalogue keeps those of a topic until they change.
func same(a, b json.RawMessage) bool { return len(a) == len(b) && &a[0] == &b[0] }

func newColumns(t *Topic) *columnsOf {
	c := &columnsOf{raw: t.Schema}
	topic := &plan.Topic{}
	if json.Unmarshal(t.Schema, topic) != nil || topic.Format != plan.FormatArrow {
		return c
	}
	s, err := codec.ColumnarSchema(topic)
	if err != nil {
		return c
	}
	topic.Name = t.Name
	c.topic, c.schema = topic, s
	return c
}

// Columns is the schema of a topic's columnar batches; nil if it has none: its format is another one.
func (b *Broker) Columns(t *Topic) *columnar.Schema { return b.columns(t).schema }

// take gives one of a pool, or a new one.
func take[T any](p *sync.Pool, make func() (T, error)) (T, error) {
	if v, ok := p.Get().(T); ok {
		return v, nil
	}
	return make()
}

// checkColumns judges a columnar batch that has passed record.Verify.
func (b *Broker) checkColumns(t *Topic, batch []byte, h record.Header) error {
	c := b.columns(t)
	switch {
	case c.schema == nil:
		return Errorf(InvalidBatch, "a columnar batch for topic %q, which is not of format arrow", t.Name)
	case t.Settings.Compact:
		return Errorf(InvalidBatch, "a columnar batch for topic %q, which is compacted", t.Name)
	}
	f, _ := c.frames.Get().(*columnar.Frame)
	if f == nil {
		f = &columnar.Frame{}
	}
	err := codec.CheckColumns(f, c.schema, h, batch)
	c.frames.Put(f)
	if errors.Is(err, columnar.ErrOtherSchema) {
		e := Errorf(OtherSchema, "a columnar batch for topic %q: %w", t.Name, err)
		e.Why = "The topic's columns are, by name and type: " + c.schema.String()
		return e
	}
	if err != nil {
		return Errorf(InvalidBatch, "a columnar batch for topic %q: %w", t.Name, err)
	}
	return nil
}

// toColumns makes a columnar batch of JSON records that have passed checkBatch. A topic of another format gets its batch
// back.
func (b *Broker) toColumns(t *Topic, batch []byte, h record.Header) ([]byte, record.Header, error) {
	c := b.columns(t)
	if c.schema == nil || t.Settings.Compact {
		return batch, h, nil
	}
	conv, err := take(&c.converters, func() (*codec.Columns, error) { return codec.NewColumns(c.topic) })
	if err != nil {
		return nil, h, Errorf(Internal, "topic %q: %w", t.Name, err)
	}
	defer c.converters.Put(conv)
	out, err := conv.Convert(batch)
	var bad *codec.RowError
	switch {
	case errors.As(err, &bad):
		return nil, h, Errorf(NotARow, "topic %q: %w", t.Name, bad)
	case err != nil:
		return nil, h, Errorf(InvalidBatch, "the records of a batch for topic %q: %w", t.Name, err)
	case len(out) > log.MaxBatchBytes:
		return nil, h, Errorf(BatchTooLarge, "a batch for topic %q takes %d bytes in columns, at most %d", t.Name, len(out), log.MaxBatchBytes)
	}
	if h, err = record.ParseHeader(out); err != nil {
		return nil, h, Errorf(Internal, "topic %q: %w", t.Name, err)
	}
	return out, h, nil
}

// transcode replaces the columnar batches of a part by row batches, of about maxBytes in all: what is left comes with the
// next fetch.
func (b *Broker) transcode(p *FetchPart, maxBytes int) {
	c := b.columns(p.Topic)
	if c.schema == nil {
		return
	}
	first := 0
	for first < len(p.Batches) && !codec.Columnar(p.Batches[first].Data) {
		first++
	}
	if first == len(p.Batches) {
		return
	}
	x, err := take(&c.transcoders, func() (*runtime.Transcoder, error) { return runtime.NewTranscoder(c.topic) })
	if err != nil {
		p.Batches, p.Err = p.Batches[:0], Errorf(Internal, "topic %q: %w", p.Topic.Name, err)
		return
	}
	defer c.transcoders.Put(x)
	stored := append([]log.Batch(nil), p.Batches...)
	out := p.Batches[:0]
	total := 0
	for i := range stored {
		if total >= maxBytes {
			break
		}
		if !codec.Columnar(stored[i].Data) {
			out = append(out, stored[i])
			total += len(stored[i].Data)
			continue
		}
		n := len(out)
		if out, err = x.Rows(&stored[i], p.Offset, maxBytes-total, out); err != nil {
			if len(out) == 0 {
				p.Err = Errorf(RottenRecords, "offsets %d to %d of partition %d of topic %q: %w", stored[i].Base, stored[i].Last, p.Partition, p.Topic.Name, err)
			}
			break
		}
		for _, row := range out[n:] {
			total += len(row.Data)
		}
	}
	p.Batches = out
}
