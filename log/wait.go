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
	// Registered before it is watched: a Cancel in between finds the partition and takes p.mu after us.
	if n := len(w.mu.parts); n == 0 || w.mu.parts[n-1] != p {
		w.mu.parts = append(w.mu.parts, p)
	}
	w.mu.Unlock()

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end.Load() > from || p.mu.dropped || w.canceled.Load() {
		return true
	}
	for i := range p.mu.waiters {
		if p.mu.waiters[i].w == w {
			p.mu.waiters[i].from = min(p.mu.waiters[i].from, from)
			return false
		}
	}
	p.mu.waiters = append(p.mu.waiters, waiting{w, from})
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
		p.mu.Lock()
		p.mu.waiters = slices.DeleteFunc(p.mu.waiters, func(x waiting) bool { return x.w == w })
		if len(p.mu.waiters) == 0 {
			p.mu.waiters = nil
		}
		p.mu.Unlock()
	}
}

// wakeLocked wakes the waiters that the partition has something for. p.mu is held.
func (p *Partition) wakeLocked() {
	if len(p.mu.waiters) == 0 {
		return
	}
	end, keep := p.end.Load(), p.mu.waiters[:0]
	for _, x := range p.mu.waiters {
		if x.from < end || p.mu.dropped {
			x.w.wake()
		} else {
			keep = append(keep, x)
		}
	}
	clear(p.mu.waiters[len(keep):])
	p.mu.waiters = keep
}
