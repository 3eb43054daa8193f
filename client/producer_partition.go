package client

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// A partition is the way of one partition's records: callers append to its open batch, under a lock of its own; what
// has left the open batch waits in order in full, then queue, then flies, under the producer's delivery lock.
//
// After anything but success the partition settles: nothing is sent until everything that flies has come back, so that
// what has to be repeated goes first, in order, with the sequence it had. If a batch is given up, those after it are
// numbered again: with the same identity where the server cannot have taken anything of what failed, otherwise with a
// new one, and then a batch whose fate is unknown must not be sent again.
type partition struct {
	t     *topicState
	index int32

	mu struct {
		sync.Mutex
		open   *batch   // being filled, never empty
		full   []*batch // left open because nothing more fitted, oldest first
		size   int      // class of the last batch: the next one will be like it
		serial uint64
		closed error // append is refused
	}

	// The rest is under the delivery lock.
	queue  []*batch // waiting to be sent, oldest first
	flying []*batch // under way, oldest first
	link   *link    // to the leader; nil: not known

	ident    identity
	sequence int32 // of the next batch that is numbered for the first time
	settling bool
	anew     int8      // how the queue is numbered when it has settled: one of the below
	anewFrom uint64    // with numbersAgain: serial of the first batch that is numbered again
	after    time.Time // no attempt before
	tries    int       // without success

	readyFull, readyOpen bool // listed in the link
	troubled             bool // listed in the producer
}

// How a partition numbers its queue again.
const (
	numbersStay  int8 = iota
	numbersAgain      // from the serial anewFrom on, which gets sequence: nothing of it is in the log
	newIdentity       // something may be in the log
)

// append adds a record to the open batch. With join it opens one if there is none, else it does so only if the record
// before went to this partition's. It reports false when it did not.
//
// Errors: ErrBufferFull, ErrRecordTooLarge, ErrProducerClosed.
func (pt *partition) append(m *Message, done func(Ack), join bool) (ok bool, err error) {
	p := pt.t.p
	tick := p.ticks.Load()
	limit := int(pt.t.limit.Load())
	var fresh *batch // made without the lock
	for {
		pt.mu.Lock()
		if pt.mu.closed != nil {
			err := pt.mu.closed
			pt.mu.Unlock()
			if fresh != nil {
				p.giveBack(fresh)
			}
			return false, err
		}
		b := pt.mu.open
		if b != nil {
			ms := b.stamp(m, tick)
			body, whole := b.measure(m, ms)
			if len(b.buf)+whole <= cap(b.buf) && len(b.buf)+whole <= limit && len(b.done) < batchRecords {
				b.add(m, ms, body, whole, done)
				pt.mu.Unlock()
				if fresh != nil {
					p.giveBack(fresh)
				}
				return true, nil
			}
			if cap(b.buf) < min(limit, p.classBytes(b.class+1)) && len(b.done) < batchRecords {
				// A larger buffer, if there is room for one; otherwise the batch leaves as it is.
				if pt.grow(b, len(b.buf)+whole) {
					pt.mu.Unlock()
					continue
				}
			}
			pt.mu.full = append(pt.mu.full, b)
			pt.mu.open = nil
			pt.mu.size = len(sizeClasses)
			pt.mu.Unlock()
			p.readyFull(pt)
			continue
		}
		if !join {
			pt.mu.Unlock()
			return false, nil
		}
		if fresh == nil {
			size := pt.mu.size
			pt.mu.Unlock()
			if fresh, err = p.openBatch(pt, m, size, limit); err != nil {
				return false, err
			}
			continue
		}
		ms := fresh.stamp(m, tick)
		body, whole := fresh.measure(m, ms)
		fresh.add(m, ms, body, whole, done)
		fresh.serial, fresh.width = pt.mu.serial, 2*batchRecords // as often as it can be halved
		pt.mu.serial += fresh.width
		pt.mu.open = fresh
		pt.mu.Unlock()
		p.readyOpen(pt)
		return true, nil
	}
}

// stamp is the timestamp of a record, ms.
func (b *batch) stamp(m *Message, tick uint32) int64 {
	if m.Timestamp.IsZero() {
		return b.clock.now(tick)
	}
	return m.Timestamp.UnixMilli()
}

// grow moves the open batch to a larger buffer that holds n bytes, if there is room. The partition's lock is held; the
// delivery lock, which comes before it, is not needed.
func (pt *partition) grow(b *batch, n int) bool {
	p := pt.t.p
	class := max(p.classFor(n), b.class+1)
	if class > len(sizeClasses) {
		return false
	}
	more := p.classBytes(class) - cap(b.buf)
	if more <= 0 || !p.reserve(int64(more)) {
		return false
	}
	b.buf = append(make([]byte, 0, p.classBytes(class)), b.buf...)
	b.class = class
	return true
}

// openBatch reserves and makes a batch that m fits, of the size class of the one before if there is room.
func (p *Producer) openBatch(pt *partition, m *Message, size, limit int) (*batch, error) {
	// A first record has no deltas; those of one that joins a batch of 65,536 are longer.
	need := batchHeaderBytes + recordBytes(m, 0, 0) + 5
	if need > limit || need > p.o.BatchBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrRecordTooLarge, need, min(limit, p.o.BatchBytes))
	}
	class := p.classFor(need)
	for c := max(size, class); c >= class; c-- {
		if p.reserve(int64(p.classBytes(c))) {
			return p.newBatch(pt, c), nil
		}
	}
	return nil, ErrBufferFull
}

// giveBack recycles a batch that was not needed.
func (p *Producer) giveBack(b *batch) {
	p.mu.Lock()
	p.unreserve(b)
	p.recycle(b)
	p.mu.Unlock()
}

// blocked says whether nothing of the partition may be sent now. The delivery lock is held from here on.
func (pt *partition) blocked(now time.Time) bool {
	return pt.link == nil || !pt.ident.ok || pt.settling && len(pt.flying) > 0 || now.Before(pt.after)
}

// collect moves what callers have filled to the queue, and the open batch too if partial and nothing is before it. It
// says whether the open batch stays.
func (pt *partition) collect(partial bool) (open bool) {
	pt.mu.Lock()
	if len(pt.mu.full) > 0 {
		pt.queue = append(pt.queue, pt.mu.full...)
		clear(pt.mu.full)
		pt.mu.full = pt.mu.full[:0]
	}
	if partial && len(pt.queue) == 0 && pt.mu.open != nil {
		pt.mu.size = pt.mu.open.class
		if pt.mu.size > 0 && len(pt.mu.open.buf) <= pt.t.p.classBytes(pt.mu.size-1) {
			pt.mu.size--
		}
		pt.queue = append(pt.queue, pt.mu.open)
		pt.mu.open = nil
	}
	open = pt.mu.open != nil
	pt.mu.Unlock()
	return open
}

// next takes the batch to send now, numbered and sealed; nil: none. An open batch is taken only if partial. It says what
// else there is. The caller has asked blocked.
func (pt *partition) next(partial bool) (b *batch, full, open bool) {
	pt.settle()
	if !pt.ident.ok {
		return nil, false, false
	}
	open = pt.collect(partial)
	if len(pt.queue) == 0 {
		return nil, false, open
	}
	b = pt.queue[0]
	pt.queue[0] = nil
	pt.queue = pt.queue[1:]
	if !b.numbered {
		b.seal(pt.ident, pt.sequence)
		pt.sequence = nextSequence(pt.sequence, b.count())
	}
	pt.flying = append(pt.flying, b)
	return b, len(pt.queue) > 0, open
}

// settle ends settling once nothing flies, and numbers the queue again if need be.
func (pt *partition) settle() {
	if !pt.settling || len(pt.flying) > 0 {
		return
	}
	pt.settling = false
	switch pt.anew {
	case numbersStay:
		return
	case newIdentity:
		pt.ident.ok = false // asked for by the keeper
		pt.queue = slices.DeleteFunc(pt.queue, func(b *batch) bool {
			if b.unknown {
				pt.giveUp(b, b.failure)
			}
			return b.unknown
		})
		pt.sequence = 0
	}
	for _, b := range pt.queue {
		// With the identity kept, none of these is in the log: the server takes no sequence without the one before.
		if pt.anew == newIdentity || b.serial >= pt.anewFrom {
			b.numbered, b.unknown = false, false
		}
	}
	pt.anew = numbersStay
}

// giveUp ends a batch with an error. Whoever calls it runs Producer.deliver later.
func (pt *partition) giveUp(b *batch, cause error) {
	b.err = &ProduceError{Topic: pt.t.name, Partition: pt.index, Unknown: b.unknown, Err: cause}
	pt.t.p.mu.finished = append(pt.t.p.mu.finished, b)
}

// drop gives up a batch and decides how those after it are numbered.
func (pt *partition) drop(b *batch, cause error) {
	pt.settling = true
	switch {
	case !b.numbered:
	case b.unknown:
		pt.anew = newIdentity
	default:
		pt.again(b)
	}
	pt.giveUp(b, cause)
}

// again has what follows b in the queue numbered from b's sequence on, b included if it is there.
func (pt *partition) again(b *batch) {
	if pt.anew == numbersStay || pt.anew == numbersAgain && b.serial < pt.anewFrom {
		pt.anew, pt.anewFrom, pt.sequence = numbersAgain, b.serial, b.sequence
	}
}

// requeue puts a batch back to its place.
func (pt *partition) requeue(b *batch) {
	i := 0
	for i < len(pt.queue) && pt.queue[i].serial < b.serial {
		i++
	}
	pt.queue = slices.Insert(pt.queue, i, b)
	pt.settling = true
}

// unflown removes a batch from those that fly.
func (pt *partition) unflown(b *batch) {
	if i := slices.Index(pt.flying, b); i >= 0 {
		pt.flying = slices.Delete(pt.flying, i, i+1)
	}
}

// oldest reports whether no batch before b waits or flies.
func (pt *partition) oldest(b *batch) bool {
	return (len(pt.queue) == 0 || pt.queue[0].serial > b.serial) && (len(pt.flying) == 0 || pt.flying[0].serial > b.serial)
}

// lost says that the connection on which b flew is gone: the server may have it.
func (pt *partition) lost(b *batch, cause error) {
	pt.unflown(b)
	b.unknown, b.failure = true, cause
	pt.requeue(b)
}

// Pauses between attempts.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
	// unknownTopicTries is how often a topic that the server does not know is tried, over some seconds: it may be
	// about to be opened.
	unknownTopicTries = 7
)

func pause(tries int) time.Duration { return min(firstPause<<min(tries, 10), lastPause) }

// answered acts on the server's answer for b, which flew.
func (pt *partition) answered(b *batch, now time.Time, offset int64, code int16, message *string) {
	pt.unflown(b)
	p := pt.t.p
	v := judge(code, message)
	if v == taken {
		b.offset = offset
		if code != 0 {
			b.offset = -1
		}
		pt.tries = 0
		p.mu.finished = append(p.mu.finished, b)
		return
	}
	err := wireError(code, message)
	first := pt.oldest(b)
	// A batch behind one that has just been given up is out of order because of that.
	explained := !first || pt.anew != numbersStay
	if v != outOfOrder || b.failure == nil {
		b.failure = err
	}
	switch v {
	case refused:
		pt.drop(b, err)
		return
	case tooLarge:
		pt.shrink(b, err)
		return
	case outOfOrder, forgotten:
		if !explained {
			// The server has lost sight of this producer. Of an attempt whose answer did not come nobody knows.
			if b.unknown {
				pt.drop(b, err)
				return
			}
			pt.anew = newIdentity
		}
	case unsure:
		b.unknown = true
	case retryLater:
		p.mu.wantMeta = true
	case retry, taken:
	}
	pt.requeue(b)
	if !first {
		return
	}
	pt.tries++
	pt.after = now.Add(pause(pt.tries))
	if v == retryLater && code == codeUnknownTopic && pt.tries > unknownTopicTries && !b.unknown {
		pt.queue = pt.queue[1:]
		pt.drop(b, err)
		pt.after = now
	}
}

const codeUnknownTopic = 3

// shrink halves a batch that the topic does not admit, and lets later ones be smaller.
func (pt *partition) shrink(b *batch, err error) {
	if b.count() == 1 || b.unknown || b.rows > 0 {
		pt.drop(b, err)
		return
	}
	p := pt.t.p
	limit := pt.t.limit.Load()
	pt.t.limit.CompareAndSwap(limit, max(min(limit, int64(len(b.buf)/2)), 1024))
	// The half takes a buffer of its own beyond the bound: it is given back soon.
	class := p.classFor(len(b.buf))
	other := &batch{class: class, buf: make([]byte, batchHeaderBytes, p.classBytes(class))}
	other.reset(pt, b.born)
	p.buffered.Add(int64(cap(other.buf)))
	pt.again(b)
	b.split(other)
	other.flushes = append(other.flushes, b.flushes...)
	for _, f := range b.flushes {
		f.left.Add(1)
	}
	pt.requeue(b)
	pt.queue = slices.Insert(pt.queue, slices.Index(pt.queue, b)+1, other)
}

// expire gives up what waits for longer than allowed.
func (pt *partition) expire(now time.Time, limit time.Duration) {
	if len(pt.flying) > 0 {
		return // the answers come, or the connection is given up
	}
	pt.collect(true)
	for len(pt.queue) > 0 && now.Sub(pt.queue[0].born) > limit {
		b := pt.queue[0]
		pt.queue = pt.queue[1:]
		cause := ErrDeliveryTimeout
		if b.failure != nil {
			cause = fmt.Errorf("%w: %w", ErrDeliveryTimeout, b.failure)
		}
		pt.drop(b, cause)
	}
}

// abandon gives up everything and refuses more.
func (pt *partition) abandon(cause error) {
	pt.mu.Lock()
	pt.mu.closed = cause
	pt.mu.Unlock()
	pt.collect(true)
	for _, b := range pt.flying {
		b.unknown = true
		pt.giveUp(b, cause)
	}
	for _, b := range pt.queue {
		pt.giveUp(b, cause)
	}
	pt.flying, pt.queue = nil, nil
	pt.collect(true)
	for _, b := range pt.queue {
		pt.giveUp(b, cause)
	}
	pt.queue = nil
}
