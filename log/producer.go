package log

import (
	"time"
)

// Bounds of what the store remembers of producers. They are part of what Apply decides, so every replica
// must use the same.
const (
	// ProducerExpiry is how long a producer is remembered after its last batch, in append time.
	ProducerExpiry = 24 * time.Hour
	// MaxProducers is how many (partition, producer) pairs a store remembers; beyond, the one that has been
	// silent longest is forgotten. Fifty services that publish by key into 10,000 partitions are as many; each pair
	// takes about 300 bytes of memory.
	MaxProducers = 500_000
	// ProducerBatches is how many last batches of a producer are recognized when they come again.
	ProducerBatches = 5
	// expirePerEntry bounds the work that expiry adds to one Apply.
	expirePerEntry = 64
)

// A sequenceRange is one remembered batch of a producer.
type sequenceRange struct {
	first, last int32
	base, end   int64 // first and last offset
}

// A producer is what one partition remembers of one idempotent producer.
type producer struct {
	id      int64
	p       *Partition
	epoch   int16
	n       int8   // batches used
	seen    int64  // append time of the last batch, ns
	touched uint64 // number of the touch in the store: the order of forgetting
	dirty   bool   // in the store's list of rows to write
	gone    bool   // forgotten; a pointer in the list of rows to write means delete
	batches [ProducerBatches]sequenceRange

	prev, next *producer // by touched
}

func (r *producer) lastSequence() int32 { return r.batches[r.n-1].last }

func (r *producer) push(b sequenceRange) {
	if r.n == ProducerBatches {
		copy(r.batches[:], r.batches[1:])
		r.n--
	}
	r.batches[r.n] = b
	r.n++
}

// addSequence is Kafka's arithmetic: sequences wrap to 0 after the largest int32.
func addSequence(seq int32, n int32) int32 {
	return int32((int64(seq) + int64(n)) & 0x7fffffff)
}

// checkSequence judges a batch of a producer of which the partition knows r (nil: nothing). It returns the
// remembered batch if this is a duplicate.
func checkSequence(r *producer, now int64, epoch int16, first, last int32) (dup *sequenceRange, err error) {
	switch {
	case r == nil || r.n == 0 || now-r.seen > int64(ProducerExpiry):
		if first != 0 {
			return nil, ErrUnknownProducer
		}
		return nil, nil
	case epoch < r.epoch:
		return nil, ErrProducerFenced
	case epoch > r.epoch:
		if first != 0 {
			return nil, ErrSequence
		}
		return nil, nil
	}
	for i := range r.batches[:r.n] {
		if b := &r.batches[i]; b.first == first && b.last == last {
			return b, nil
		}
	}
	if first != addSequence(r.lastSequence(), 1) {
		return nil, ErrSequence
	}
	return nil, nil
}

// producerList is the store's producers in the order of their last batches.
type producerList struct {
	oldest, newest *producer
	count          int
	clock          uint64 // number of touches so far
}

func (l *producerList) remove(r *producer) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.oldest = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.newest = r.prev
	}
	r.prev, r.next = nil, nil
	l.count--
}

func (l *producerList) push(r *producer) {
	r.prev, r.next = l.newest, nil
	if l.newest != nil {
		l.newest.next = r
	} else {
		l.oldest = r
	}
	l.newest = r
	l.count++
}

// touchProducer notes an accepted batch.
func (s *Store) touchProducer(p *Partition, id int64, epoch int16, now int64, b sequenceRange) {
	r := p.producers[id]
	if r == nil {
		r = &producer{id: id, p: p}
		if p.producers == nil {
			p.producers = make(map[int64]*producer)
		}
		p.producers[id] = r
		s.producers.push(r)
	} else if s.producers.newest != r {
		s.producers.remove(r)
		s.producers.push(r)
	}
	if r.epoch != epoch || now-r.seen > int64(ProducerExpiry) {
		r.epoch, r.n = epoch, 0
	}
	r.push(b)
	s.producers.clock++
	r.seen, r.touched = now, s.producers.clock
	if !r.dirty {
		r.dirty = true
		s.pending.producers = append(s.pending.producers, r)
	}
}

// forgetProducer drops one producer and lets the writer delete its row.
func (s *Store) forgetProducer(r *producer) {
	s.producers.remove(r)
	delete(r.p.producers, r.id)
	if len(r.p.producers) == 0 {
		r.p.producers = nil
	}
	r.gone = true
	if !r.dirty {
		r.dirty = true
		s.pending.producers = append(s.pending.producers, r)
	}
}

// expireProducers forgets the producers that are too old or too many. It depends only on what was applied.
func (s *Store) expireProducers(now int64) {
	for range expirePerEntry {
		r := s.producers.oldest
		if r == nil || now-r.seen <= int64(ProducerExpiry) {
			break
		}
		s.forgetProducer(r)
	}
	for s.producers.count > s.maxProducers {
		s.forgetProducer(s.producers.oldest)
	}
}
