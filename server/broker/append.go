package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/replication"
)

// How long an append waits before it is refused: while too many bytes are in flight, which passes by itself, and while
// the disk takes no records, which a checkpoint may end and otherwise somebody must. A client learns of the latter well
// within its own time for a request.
const (
	busyWait = 30 * time.Second
	roomWait = time.Second
)

// An Appended is the answer to one batch.
type Appended struct {
	Err              error // an *Error
	Offset           int64 // of the first record; the original one for a duplicate
	LogStart         int64
	AppendTimeMillis int64 // the records' timestamp if the topic stamps them, else -1
	Records, Bytes   int
	Duplicate        bool
}

// unitPool keeps units whose memory can be used again once their proposal is answered.
type unitPool struct{ p sync.Pool }

func (u *unitPool) get() *log.Unit {
	if v, ok := u.p.Get().(*log.Unit); ok {
		return v
	}
	return &log.Unit{}
}

// maxPooledUnit keeps rare huge batches from staying in memory.
const maxPooledUnit = 2 << 20

func (u *unitPool) put(v *log.Unit) {
	if v.Size() <= maxPooledUnit {
		v.Reset()
		u.p.Put(v)
	}
}

// Append checks a record batch and proposes it as a unit of its own. With borrowed, batch must not change until
// done is called; otherwise it is copied before Append returns. If the error is nil, done is called once,
// possibly before Append returns and possibly by the
// shard's apply goroutine: it must not block. Append waits while too many bytes are in flight, so one
// caller's batches are proposed in the order of its calls.
func (b *Broker) Append(ctx context.Context, t *Topic, partition int32, batch []byte, borrowed bool, done func(Appended)) error {
	if err := b.mayWrite(t, partition); err != nil {
		return err
	}
	h, err := b.checkBatch(t, batch)
	if err != nil {
		return err
	}
	if len(t.Schema) > 0 && !h.Columnar() {
		if batch, h, err = b.toColumns(t, batch, h); err != nil {
			return err
		}
		borrowed = borrowed || h.Columnar() // memory of its own
	}
	stamp := int64(-1)
	if t.Settings.AppendTimestamps {
		stamp = b.opts.Now().UnixMilli()
		batch, borrowed = stamped(batch, h, stamp), true
	}
	id := log.PartitionID{Topic: t.ID, Index: partition}
	p, ok := b.store.Partition(id)
	if !ok {
		return Errorf(UnknownPartition, "partition %d of topic %q is not open yet", partition, t.Name)
	}
	u := b.units.get()
	u.SemiSync = t.SemiSync
	if borrowed {
		u.AppendRef(id, batch)
	} else {
		u.Append(id, batch)
	}
	count, size := int(h.Count), len(batch)
	name := t.Name
	answer := func(r replication.Result) {
		b.units.put(u)
		if r.Err != nil {
			done(Appended{Err: proposalError(r.Err), Offset: -1, LogStart: -1, AppendTimeMillis: -1})
			return
		}
		if !r.Duplicate {
			b.topics.appended(name, count, size)
		}
		done(Appended{
			Offset: r.Offsets[0], LogStart: p.LogStart(), AppendTimeMillis: stamp, Records: count, Bytes: size,
			Duplicate: r.Duplicate,
		})
	}
	if err := b.propose(ctx, u, answer); err != nil {
		b.units.put(u)
		return proposalError(err)
	}
	return nil
}

// propose proposes a unit with records, and waits up to busyWait while the log is busy and up to roomWait while the disk
// takes no records. Soon after somebody has waited in vain for the disk nobody waits for it, so that the batches of one
// request do not add up their waits.
func (b *Broker) propose(ctx context.Context, u *log.Unit, done func(replication.Result)) error {
	err := b.data.Propose(u, done)
	if errors.Is(err, replication.ErrNoRoom) && time.Now().UnixNano()-b.noRoom.Load() < int64(roomWait) {
		return err
	}
	for waited := time.Duration(0); errors.Is(err, replication.ErrBusy) && waited < busyWait && ctx.Err() == nil; waited += roomWait {
		short, cancel := context.WithTimeout(ctx, roomWait)
		err = b.data.ProposeWait(short, u, done)
		cancel()
		if errors.Is(err, replication.ErrNoRoom) {
			b.noRoom.Store(time.Now().UnixNano())
			break
		}
	}
	return err
}

// mayWrite refuses topics that are not for producers.
func (b *Broker) mayWrite(t *Topic, partition int32) error {
	switch {
	case t.Kind == View:
		return Errorf(TopicIsView, "%q is a view of %q", t.Name, t.View.Source())
	case t.Kind == Derived:
		return Errorf(TopicIsDerived, "topic %q is written by %s", t.Name, t.Owner)
	case partition < 0 || partition >= t.Partitions:
		return Errorf(UnknownPartition, "topic %q has %s, no partition %d", t.Name, partitionsOf(t), partition)
	case !t.Ready:
		return Errorf(UnknownTopic, "topic %q is being opened", t.Name)
	}
	return nil
}

// checkBatch judges a batch from outside: lengths and checksum first, then what it claims to be, then
// the frames of its records, decompressed if need be. What is stored can be read: a batch whose records
// are garbage would stop every reader behind it.
func (b *Broker) checkBatch(t *Topic, batch []byte) (record.Header, error) {
	limit := int(t.Settings.MaxBatchBytes)
	if limit <= 0 || limit > log.MaxBatchBytes {
		limit = log.MaxBatchBytes
	}
	if len(batch) == 0 {
		return record.Header{}, Errorf(InvalidBatch, "no record batch for topic %q", t.Name)
	}
	if len(batch) > limit {
		return record.Header{}, Errorf(BatchTooLarge, "a batch of %d bytes for topic %q, whose max.message.bytes is %d", len(batch), t.Name, limit)
	}
	h, err := record.Verify(batch)
	switch {
	case errors.Is(err, record.ErrCodec):
		return h, Errorf(BadCompression, "codec %d for topic %q", h.Codec(), t.Name)
	case errors.Is(err, record.ErrMagic):
		return h, Errorf(InvalidBatch, "a message of format %d for topic %q: %w", h.Magic, t.Name, err)
	case err != nil && len(batch) > h.Size() && h.Magic == record.Magic && h.Length > 0:
		return h, Errorf(InvalidBatch, "%d bytes after the one record batch for topic %q: %w", len(batch)-h.Size(), t.Name, err)
	case err != nil:
		return h, Errorf(CorruptBatch, "a batch for topic %q: %w", t.Name, err)
	case h.Control():
		return h, Errorf(InvalidBatch, "a control batch for topic %q", t.Name)
	case h.Transactional():
		return h, Errorf(NoTransactions, "a transactional batch for topic %q", t.Name)
	case h.ProducerID >= 0 && (h.ProducerEpoch < 0 || h.BaseSequence < 0):
		return h, Errorf(InvalidBatch, "producer %d with epoch %d and sequence %d", h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	}
	if h.Columnar() {
		return h, b.checkColumns(t, batch, h)
	}
	if err := checkRecords(batch, h, t.Settings.Compact); errors.Is(err, errNoKey) {
		return h, Errorf(KeyMissing, "topic %q keeps the latest record of each key (cleanup.policy=compact): %w", t.Name, err)
	} else if err != nil {
		return h, Errorf(InvalidBatch, "the records of a batch for topic %q: %w", t.Name, err)
	}
	return h, nil
}

// readers keeps the buffers that compressed batches are checked in.
var readers = sync.Pool{New: func() any { return &record.Reader{} }}

var errNoKey = errors.New("has no key")

// checkRecords walks the records of a batch that has passed record.Verify. With keyed each must have a key.
func checkRecords(batch []byte, h record.Header, keyed bool) error {
	if err := record.VerifyRecords(batch); err != nil || h.Codec() == record.None && !keyed {
		return err
	}
	r := readers.Get().(*record.Reader)
	defer readers.Put(r)
	if err := r.Reset(batch); err != nil {
		return err
	}
	n := int32(0)
	for r.Next() {
		if delta := r.Record().Offset - h.BaseOffset; delta != int64(n) {
			return fmt.Errorf("record %d has offset delta %d", n, delta)
		}
		if keyed && r.Record().Key == nil {
			return fmt.Errorf("record %d of the batch %w", n, errNoKey)
		}
		n++
	}
	if err := r.Err(); err != nil {
		return err
	}
	if n != h.Count {
		return fmt.Errorf("%d records, the header says %d", n, h.Count)
	}
	return nil
}

// stamped is a copy of batch whose records have one timestamp, as for message.timestamp.type=LogAppendTime.
func stamped(batch []byte, h record.Header, ms int64) []byte {
	c := make([]byte, len(batch))
	copy(c, batch)
	h.Attributes |= record.AttrLogAppendTime
	h.MaxTimestamp = ms
	record.PutHeader(c, h)
	record.Seal(c)
	return c
}

// EndTopic appends a time mark of +inf to every partition: the declared end of the topic's event time.
// Records that come later are late for every window. It is one unit: all partitions or none.
func (b *Broker) EndTopic(ctx context.Context, t *Topic) error {
	if err := b.mayWrite(t, 0); err != nil {
		return err
	}
	u := &log.Unit{}
	mark := markTimeMark(b.opts.Now())
	for i := range t.Partitions {
		u.Append(log.PartitionID{Topic: t.ID, Index: i}, mark)
	}
	done := make(chan replication.Result, 1)
	if err := b.propose(ctx, u, func(r replication.Result) { done <- r }); err != nil {
		return proposalError(err)
	}
	select {
	case r := <-done:
		if r.Err != nil {
			return proposalError(r.Err)
		}
		return nil
	case <-ctx.Done():
		return Errorf(OutcomeUnknown, "the end of topic %q: %w", t.Name, ctx.Err())
	}
}
