package wal

import (
	"fmt"
	"time"
)

// A syncPoint is a place in the sequence of groups: everything up to it is synced together.
type syncPoint struct {
	number uint64 // of the group
	last   uint64 // last entry after it
	front  uint64 // that the last group with a front record said
}

// SyncTo returns when the entries up to index are synced. It syncs them itself when nobody else has; appends go on
// meanwhile, except that those which sync wait for it. An index beyond the last entry means the last one.
//
// Errors: ErrPoisoned, ErrClosed.
func (w *WAL) SyncTo(index uint64) error {
	if w.syncedIndex.Load() >= index {
		return nil
	}
	return w.syncWritten()
}

// syncWritten syncs the groups that were written before the call.
//
// One sync at a time, whoever makes it: the kernel tells only one of two concurrent syncs of a file that a page could
// not be written, so the other one would pass for good. Here the one that is told poisons the log before it gives up
// the turn, and the next one, which is told nothing, looks.
func (w *WAL) syncWritten() error {
	if w.syncedGroup() {
		return w.Poisoned()
	}
	select {
	case w.syncTurn <- struct{}{}:
	case <-w.poisoned:
		return w.Poisoned()
	}
	defer func() { <-w.syncTurn }()

	w.mu.Lock()
	p := w.mu.written
	done := p.number <= w.synced.Load()
	if w.mu.closed && !done {
		w.mu.Unlock()
		return ErrClosed
	}
	s := w.mu.segments[len(w.mu.segments)-1] // holds all that is unsynced: see rotate
	s.refs++                                 // keeps it from being recycled or closed under the sync
	w.mu.Unlock()
	var err error
	if !done {
		start := w.o.Now()
		w.syncStarted.Store(start + 1)
		err = s.file.SyncData()
		w.syncStarted.Store(0)
		w.c.syncs.Add(1)
	}
	if err != nil {
		w.Poison(fmt.Errorf("sync segment %d: %w", s.seq, err))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unref(s)
	if err := w.Poisoned(); err != nil {
		return err
	}
	w.noteSynced(p)
	return nil
}

func (w *WAL) syncedGroup() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.written.number <= w.synced.Load()
}

// noteSynced says that everything up to p is synced. What a truncation dropped meanwhile was synced by it, with a later
// number. It is called with mu held.
func (w *WAL) noteSynced(p syncPoint) {
	if p.number <= w.synced.Load() {
		return
	}
	w.synced.Store(p.number)
	w.syncedIndex.Store(p.last)
	releases := p.front != w.mu.syncedFront
	w.mu.syncedFront = p.front
	if releases || !w.mu.settled {
		w.mu.settled = p.number > w.mu.segments[len(w.mu.segments)-1].open
		w.pokeUpkeep()
	}
}

func (w *WAL) pokeSync() {
	select {
	case w.unsynced <- struct{}{}:
	default: // a poke is waiting already
	}
}

// runSync is the goroutine that syncs what was written unsynced.
func (w *WAL) runSync() {
	for {
		select {
		case <-w.stop:
			return
		case <-w.unsynced:
		}
		select {
		case <-w.stop:
			return
		case <-time.After(w.o.SyncWithin):
		}
		_ = w.syncWritten() // a failure poisons the log
	}
}
