package broker

import (
	"context"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
)

// MaxUnitBytes bounds the batches of one AppendUnit: an entry of the log holds them all.
const MaxUnitBytes = log.MaxBatchBytes

// A PartitionBatch is one record batch of an AppendUnit.
type PartitionBatch struct {
	Partition int32
	Data      []byte // must not change until the append is answered
	Records   int    // set by AppendUnit
}

// AppendUnit checks record batches without a producer, as Append does, and proposes them as one unit: all are stored or none is.
// If the error is nil, done is called once with the offset of the first record of each, or with an error; what Append says of
// done holds.
func (b *Broker) AppendUnit(ctx context.Context, t *Topic, batches []PartitionBatch, done func(offsets []int64, err error)) error {
	u := &log.Unit{SemiSync: t.SemiSync}
	total := 0
	for i := range batches {
		p := &batches[i]
		if err := b.mayWrite(t, p.Partition); err != nil {
			return err
		}
		h, err := b.checkBatch(t, p.Data)
		if err != nil {
			return err
		}
		data := p.Data
		if len(t.Schema) > 0 && !h.Columnar() {
			if data, h, err = b.toColumns(t, data, h); err != nil {
				return err
			}
		}
		if t.Settings.AppendTimestamps {
			data = stamped(data, h, b.opts.Now().UnixMilli())
		}
		id := log.PartitionID{Topic: t.ID, Index: p.Partition}
		if _, ok := b.store.Partition(id); !ok {
			return Errorf(UnknownPartition, "partition %d of topic %q is not open yet", p.Partition, t.Name)
		}
		if total += len(data); total > MaxUnitBytes {
			return Errorf(BatchTooLarge, "rows of more than %d bytes for topic %q at once", MaxUnitBytes, t.Name)
		}
		p.Records = int(h.Count)
		if len(batches) == 1 {
			u.AppendRef(id, data)
		} else {
			u.Append(id, data)
		}
	}
	name := t.Name
	err := b.propose(ctx, u, func(r replication.Result) {
		if r.Err != nil {
			done(nil, proposalError(r.Err))
			return
		}
		for _, p := range batches {
			b.topics.appended(name, p.Records, len(p.Data))
		}
		done(r.Offsets, nil)
	})
	if err != nil {
		return proposalError(err)
	}
	return nil
}

// MayWrite says why clients must not append to a topic, if so.
func (b *Broker) MayWrite(t *Topic) error { return b.mayWrite(t, 0) }

// Declared is a topic as the language sees it, and the view over it if t is a view; t of the answer is the topic that is stored.
//
// Errors: UnknownTopic for a view whose source is gone.
func (b *Broker) Declared(t *Topic) (stored *Topic, topic *plan.Topic, view *plan.View, err error) {
	if t.Kind == View {
		v, ok := t.View.(interface{ Plan() *plan.View })
		if !ok {
			return nil, nil, nil, Errorf(TopicIsView, "%q is a view that cannot be read in columns", t.Name)
		}
		view = v.Plan()
		if stored, ok = b.Topic(t.View.Source()); !ok || stored.Kind == View {
			return nil, nil, nil, Errorf(UnknownTopic, "topic %q, which view %q reads, does not exist", t.View.Source(), t.Name)
		}
		return stored, view.Source, view, nil
	}
	return t, runtime.TopicOf(t.Name, t.Schema, t.Partitions, t.Kind == Derived && t.Owner != ""), nil, nil
}
