package client

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Message is a record to produce.
type Message struct {
	Key   []byte // nil: none
	Value []byte // nil: null
	// Headers are kept in order.
	Headers []Header
	// Timestamp is kept to the millisecond. Zero: now, to a few milliseconds while records come fast.
	Timestamp time.Time
	// Tag is handed to the callback and not sent: a number by which the caller knows the record again.
	Tag uint64
}

// A Header is a name and bytes beside a record's value.
type Header struct {
	Key   string
	Value []byte // nil: null
}

// An Ack is the end of one record.
type Ack struct {
	Partition int32
	// Offset is the record's in its partition; -1 with an Err, or if the server only knows that it has the record.
	Offset int64
	Tag    uint64
	// Err is nil if the record is in the log, durable as its topic demands. Otherwise it is a *ProduceError.
	Err error
}

// A Writer produces to one topic of its Producer, or to one of its partitions. It needs no closing. Its methods may be
// called from any goroutine; records of one goroutine and partition keep their order.
type Writer struct {
	t     *topicState
	fixed int32 // partition; -1: by key
}

// Partitions is the number of the topic's partitions when the first Writer to it was made.
func (w *Writer) Partitions() int32 { return int32(len(w.t.parts)) }

// Partition returns a Writer to one partition, whatever the key.
func (w *Writer) Partition(i int32) (*Writer, error) {
	if i < 0 || i >= w.Partitions() {
		return nil, fmt.Errorf("client: topic %s has no partition %d; their number is %d", w.t.name, i, w.Partitions())
	}
	return &Writer{t: w.t, fixed: i}, nil
}

// Produce hands a record over and returns. Its bytes are copied before that, so the caller may reuse them. It blocks
// while the producer's buffer is full.
//
// If it returns nil, done is called once, unless it is nil: with the record's offset when it is durable, or with an
// error. Calls of done come one at a time, in order inside a partition, from a goroutine of the producer, which does
// nothing else meanwhile: done must not block, and must not call Produce, ProduceSync, Flush or Close; TryProduce is
// allowed. If Produce returns an error, the record was not accepted and done is not called.
//
// Records with a key go to the partition of Kafka's own hash of it; those without to one partition after the other, a
// batch each.
//
// Errors: that of ctx while waiting for room, ErrRecordTooLarge, ErrProducerClosed.
func (w *Writer) Produce(ctx context.Context, m Message, done func(Ack)) error {
	for {
		err := w.produce(&m, done)
		if err != ErrBufferFull { //nolint:errorlint // produce returns it as it is
			return err
		}
		if err := w.t.p.waitRoom(ctx); err != nil {
			return err
		}
	}
}

// TryProduce is Produce that returns ErrBufferFull instead of waiting for room.
func (w *Writer) TryProduce(m Message, done func(Ack)) error { return w.produce(&m, done) }

// ProduceSync produces a record and waits for its end. The error is that of Produce or of the Ack; when ctx ends
// first, it is a *ProduceError of unknown outcome, and the record may still be sent.
func (w *Writer) ProduceSync(ctx context.Context, m Message) (Ack, error) {
	s := syncWaits.Get().(*syncWait) //nolint:errcheck // the pool holds nothing else
	if err := w.Produce(ctx, m, s.done); err != nil {
		syncWaits.Put(s)
		return Ack{Partition: -1, Offset: -1, Tag: m.Tag, Err: err}, err
	}
	select {
	case a := <-s.ch:
		syncWaits.Put(s)
		return a, a.Err
	case <-ctx.Done(): // s belongs to the callback now
		err := &ProduceError{Topic: w.t.name, Partition: -1, Unknown: true, Err: ctx.Err()}
		return Ack{Partition: -1, Offset: -1, Tag: m.Tag, Err: err}, err
	}
}

// A syncWait takes one Ack over a channel. Its callback is made once.
type syncWait struct {
	ch   chan Ack
	done func(Ack)
}

var syncWaits = sync.Pool{New: func() any {
	s := &syncWait{ch: make(chan Ack, 1)}
	s.done = func(a Ack) { s.ch <- a }
	return s
}}

// produce finds the partition and appends. The error is ErrBufferFull, ErrRecordTooLarge or ErrProducerClosed.
func (w *Writer) produce(m *Message, done func(Ack)) error {
	t := w.t
	if t.p.closed.Load() {
		return ErrProducerClosed
	}
	if w.fixed >= 0 {
		_, err := t.parts[w.fixed].append(m, done, true)
		return err
	}
	n := uint32(len(t.parts))
	if m.Key != nil || n == 1 {
		i := uint32(0)
		if n > 1 {
			i = keyPartition(m.Key, n)
		}
		_, err := t.parts[i].append(m, done, true)
		return err
	}
	// Without a key: stay with a partition until its batch has left.
	i := t.sticky.Load()
	if ok, err := t.parts[i%n].append(m, done, false); ok || err != nil {
		return err
	}
	t.sticky.CompareAndSwap(i, i+1)
	_, err := t.parts[(i+1)%n].append(m, done, true)
	return err
}

// keyPartition is where Kafka's default partitioner puts a key.
func keyPartition(key []byte, n uint32) uint32 { return (murmur2(key) & 0x7fffffff) % n }

// murmur2 is Austin Appleby's MurmurHash2 with the seed that Kafka uses.
func murmur2(b []byte) uint32 {
	const (
		m    = 0x5bd1e995
		seed = 0x9747b28c
	)
	h := seed ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
