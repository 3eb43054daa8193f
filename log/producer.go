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
	node    int32  // in the store's list
	batches [ProducerBatches]sequenceRange
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

// producerList is the store's producers in the order of their last batches. The links are apart from the producers: a
// touch changes those of two others, which are chosen at random as far as the processor's caches are concerned.
type producerList struct {
	of    []*producer    // by node
	links []producerLink // by node; a ring, in which 0 stands between the newest and the oldest
	free  int32          // a chain of nodes without producers, by next
	count int
	clock uint64 // number of touches so far
}

type producerLink struct{ prev, next int32 }

// oldest is the producer that has been silent longest, nil if there is none.
func (l *producerList) oldest() *producer {
	if l.count == 0 {
		return nil
	}
	return l.of[l.links[0].next]
}

func (l *producerList) remove(r *producer) {
	l.unlink(r.node)
	l.of[r.node] = nil
	l.links[r.node].next = l.free
	l.free, r.node = r.node, 0
	l.count--
}

// push adds a producer as the newest.
func (l *producerList) push(r *producer) {
	if len(l.links) == 0 {
		l.of, l.links = append(l.of, nil), append(l.links, producerLink{})
	}
	if r.node = l.free; r.node != 0 {
		l.free = l.links[r.node].next
	} else {
		r.node = int32(len(l.links))
		l.of, l.links = append(l.of, nil), append(l.links, producerLink{})
	}
	l.of[r.node] = r
	l.link(r.node)
	l.count++
}

// touch makes a producer of the list the newest.
func (l *producerList) touch(r *producer) {
	if l.links[0].prev != r.node {
		l.unlink(r.node)
		l.link(r.node)
	}
}

func (l *producerList) unlink(n int32) {
	x := l.links[n]
	l.links[x.prev].next, l.links[x.next].prev = x.next, x.prev
}

func (l *producerList) link(n int32) {
	last := l.links[0].prev
	l.links[n] = producerLink{prev: last}
	l.links[last].next, l.links[0].prev = n, n
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
	} else {
		s.producers.touch(r)
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
		r := s.producers.oldest()
		if r == nil || now-r.seen <= int64(ProducerExpiry) {
			break
		}
		s.forgetProducer(r)
	}
	for s.producers.count > s.maxProducers {
		s.forgetProducer(s.producers.oldest())
	}
}
