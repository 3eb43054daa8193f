package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/log"
)

// follow takes raft's leadership changes. A new leader hands an empty entry to the group, and leads when it
// has applied it, or a reader would meet an end below an acknowledged offset.
func (s *Shard) follow() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case leads := <-s.notify:
			s.core.lost(nil)
			if !leads {
				s.o.Logger.Info("leadership lost")
				s.announce(0, false)
				continue
			}
			term := s.raft.CurrentTerm()
			f := s.core.elected(term, s.o.Now().UnixNano())
			if !s.core.launch(f) {
				continue
			}
			s.raft.ApplyLog(raft.Log{Data: f.data}, 0)
		}
	}
}

func (s *Shard) announce(term uint64, leading bool) {
	if s.o.Leading != nil {
		s.o.Leading(term, leading)
	}
}

// fail takes the shard down: nothing is sent or answered any more, raft shuts down, what is in flight becomes
// unknown. The goroutine that met the failure calls it, which may be raft's own, so it waits for nothing.
func (s *Shard) fail(err error) {
	e := fmt.Errorf("%w: %w", ErrFailed, err)
	if !s.failure.CompareAndSwap(nil, &e) {
		return
	}
	if s.trans != nil {
		s.trans.Cut()
	}
	s.shutdown()
	close(s.down)
	s.core.lost(e)
	s.announce(0, false)
	s.o.Logger.Error("shard is down until the next start", "error", err)
	if s.o.Failed != nil {
		s.o.Failed(e)
	}
}

// shutdown begins raft's shutdown. Only the first of raft's own futures waits for its goroutines.
func (s *Shard) shutdown() raft.Future {
	r := s.running.Load()
	if r == nil {
		return nil // newRaft looks again
	}
	s.stopOnce.Do(func() { s.stopping = r.Shutdown() })
	return s.stopping
}

// watch looks at the write in flight, and at the machine. It does not depend on the goroutine that writes: that one may hang in
// the kernel.
func (s *Shard) watch() {
	tick := time.NewTicker(max(s.o.StallAfter/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.down:
			return
		case <-tick.C:
		}
		if err := s.trouble(); errors.Is(err, log.ErrPoisoned) {
			// What is acknowledged from here on would never reach a file.
			s.log.Fail(err) //nolint:errcheck // it comes back through fail
			return
		}
		if err := s.wal.Poisoned(); err != nil {
			// By a sync that no append waited for.
			s.log.Fail(err) //nolint:errcheck // it comes back through fail
			return
		}
		age := s.wal.InFlight()
		stalled := age >= s.o.StallAfter
		if stalled != s.stalled.Swap(stalled) {
			if stalled {
				s.o.Logger.Warn("disk write does not return", "since", age)
			} else {
				s.o.Logger.Info("disk write returned")
			}
		}
		if stalled && age >= s.poisonAfter() {
			s.log.Fail(fmt.Errorf("%w for %s", ErrStalled, age.Round(time.Millisecond))) //nolint:errcheck // it comes back through fail
			return
		}
	}
}

// checkpoints takes checkpoints: by bytes, by time when something changed, and when asked. One at a time.
func (s *Shard) checkpoints() {
	var every <-chan time.Time
	if s.o.CheckpointEvery > 0 {
		t := time.NewTicker(s.o.CheckpointEvery)
		defer t.Stop()
		every = t.C
	}
	var forRoom time.Time // of the last checkpoint that was to give the log room
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.down:
			// Those who ask are told by Checkpoint itself.
			return
		case reply := <-s.asked:
			reply <- s.checkpoint()
		case <-s.due:
			switch {
			case s.log.Bytes()-s.checkpointBytes.Load() >= s.o.CheckpointBytes:
				s.checkpointOrLog()
			case s.o.Now().Sub(forRoom).Abs() >= checkpointForRoom && s.logIsShort():
				s.checkpointOrLog()
				forRoom = s.o.Now()
			}
		case <-every:
			if applied, _ := s.machine.Applied(); applied > s.checkpointIndex.Load() {
				s.checkpointOrLog()
			}
		}
	}
}

func (s *Shard) checkpointOrLog() {
	if err := s.checkpoint(); err != nil && s.ctx.Err() == nil && s.Err() == nil {
		s.o.Logger.Warn("checkpoint", "error", err)
	}
}

// checkpointForRoom is the pause between checkpoints that are to give the log room: on a full disk they may not.
const checkpointForRoom = time.Second

// logIsShort reports that the log finds no space for another segment.
func (s *Shard) logIsShort() bool {
	_, err := s.wal.Room()
	return err != nil
}

// checkpoint has raft take a snapshot, which is the machine's checkpoint, and lets the log go behind it.
func (s *Shard) checkpoint() error {
	bytes := s.log.Bytes()
	keep, least := s.o.TrailingBytes, uint64(keepEntries)
	if s.alone() {
		least = keepAlone
		def(&keep, singleTrailing)
	}
	def(&keep, defaultTrailing)
	// All fields are replaced, so all are given.
	if err := s.raft.ReloadConfig(s.reloadable(max(least, s.log.Trailing(keep)))); err != nil {
		return fmt.Errorf("replication: set trailing entries: %w", err)
	}
	err := s.raft.Snapshot().Error()
	switch {
	case errors.Is(err, raft.ErrNothingNewToSnapshot):
		return nil
	case err != nil:
		return fmt.Errorf("replication: checkpoint of shard %s: %w", s.o.Name, err)
	}
	s.checkpointBytes.Store(bytes)
	if m, ok := s.snaps.Newest(); ok {
		s.checkpointIndex.Store(m.Machine)
	}
	if !s.logIsShort() {
		return nil
	}
	// What was released is taken back with the next entry; on a full disk there may be none before it is.
	if err := s.wal.Release(); err != nil {
		return fmt.Errorf("replication: release the log of shard %s: %w", s.o.Name, err)
	}
	return nil
}

// Checkpoint makes everything applied durable in the machine and releases the log behind it.
func (s *Shard) Checkpoint(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case s.asked <- reply:
	case <-s.down:
		return s.Err()
	case <-s.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
