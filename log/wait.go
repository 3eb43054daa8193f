package log

import (
	"slices"
	"sync"
	"sync/atomic"
)

// A Waiter wakes one goroutine when any of the partitions that it watches has grown. Make one with
// Store.NewWaiter and end it with Cancel, or its partitions keep it.
//
//	w := store.NewWaiter()
//	defer w.Cancel()
//	for _, p := range parts {
//		if w.Watch(p, from[p]) { … p has records already … }
//	}
//	select { case <-w.C(): … read again … ; case <-deadline: }
//
// Watching is for once: a partition that has woken the waiter is not watched any longer. Watch may be called
// from one goroutine at a time; Cancel from any.
type Waiter struct {
	c        chan struct{}
	canceled atomic.Bool
	mu       struct {
		sync.Mutex
		parts []*Partition
	}
}

type waiting struct {
	w    *Waiter
	from int64
}

// NewWaiter returns a waiter that watches nothing.
func (s *Store) NewWaiter() *Waiter { return &Waiter{c: make(chan struct{}, 1)} }

// C receives after a watched partition got a record at or above the offset it is watched from, or was
// dropped. One value may stand for many partitions.
func (w *Waiter) C() <-chan struct{} { return w.c }

func (w *Waiter) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Watch watches p for records at or above from. It returns true, and watches nothing, if there are some
// already or if p was dropped.
func (w *Waiter) Watch(p *Partition, from int64) bool {
	w.mu.Lock()
	if w.canceled.Load() {
		w.mu.Unlock()
		return true
	}
	// Registered before it is watched: a Cancel in between finds the partition and takes the lock after us.
	if n := len(w.mu.parts); n == 0 || w.mu.parts[n-1] != p {
		w.mu.parts = append(w.mu.parts, p)
	}
	w.mu.Unlock()

	p.waiters.Lock()
	defer p.waiters.Unlock()
	// Counted before the log end is looked at: Apply moves the end before it looks at the count, so that one of the
	// two sees the other.
	p.watched.Add(1)
	if p.end.Load() > from || p.dropped.Load() || w.canceled.Load() {
		p.watched.Add(-1)
		return true
	}
	for i := range p.waiters.list {
		if x := &p.waiters.list[i]; x.w == w {
			p.watched.Add(-1)
			x.from = min(x.from, from)
			return false
		}
	}
	p.waiters.list = append(p.waiters.list, waiting{w, from})
	return false
}

// Reset stops watching everything and takes a pending wake-up back, so that the waiter can be used again.
func (w *Waiter) Reset() {
	w.unwatch()
	select {
	case <-w.c:
	default:
	}
}

// Cancel stops watching everything for good. It may be called more than once.
func (w *Waiter) Cancel() {
	w.canceled.Store(true)
	w.unwatch()
}

func (w *Waiter) unwatch() {
	w.mu.Lock()
	parts := w.mu.parts
	w.mu.parts = nil
	w.mu.Unlock()
	for _, p := range parts {
		p.waiters.Lock()
		n := len(p.waiters.list)
		p.waiters.list = slices.DeleteFunc(p.waiters.list, func(x waiting) bool { return x.w == w })
		p.watched.Add(int32(len(p.waiters.list) - n))
		if len(p.waiters.list) == 0 {
			p.waiters.list = nil
		}
		p.waiters.Unlock()
	}
}

// wake wakes the waiters that the partition has something for. Apply goroutine.
func (p *Partition) wake() {
	if p.watched.Load() == 0 {
		return
	}
	p.waiters.Lock()
	defer p.waiters.Unlock()
	end, keep := p.end.Load(), p.waiters.list[:0]
	for _, x := range p.waiters.list {
		if x.from < end || p.dropped.Load() {
			x.w.wake()
		} else {
			keep = append(keep, x)
		}
	}
	p.watched.Add(int32(len(keep) - len(p.waiters.list)))
	clear(p.waiters.list[len(keep):])
	p.waiters.list = keep
}
