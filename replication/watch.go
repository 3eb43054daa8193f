package replication

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// watch looks at what the disk does, and at the machine. It does not depend on the goroutines that work: those may hang
// in the kernel.
func (s *Shard) watch() {
	tick := time.NewTicker(max(s.o.StallAfter/20, time.Millisecond))
	defer tick.Stop()
	begun, dog := time.Now(), &watchdog{stallAfter: s.o.StallAfter}
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
		j := dog.look(s.sight(time.Since(begun)))
		s.report(j)
		if j.giveUp != nil {
			s.log.Fail(j.giveUp) //nolint:errcheck // it comes back through fail
			return
		}
	}
}

// sight is a look for the watchdog.
func (s *Shard) sight(now time.Duration) sight {
	x := sight{
		now: now, write: s.wal.InFlight(), ops: s.disk.Pending(s.o.StallAfter, nil), aside: s.aside,
		poisonAfter: s.poisonAfter(), behindAfter: s.behindAfter(),
	}
	if s.machine.Backlog() > s.o.MaxBacklogBytes {
		x.pressed = "what was applied waits for the disk, and none of it gets there"
		if m, ok := s.machine.(interface{ Written() uint64 }); ok {
			x.step = int64(m.Written())
		}
		return x
	}
	m := s.wal.Metrics()
	if m.Ready > 0 {
		return x
	}
	// A unit of the largest size: smaller ones may go on for a while.
	if err := s.room(true, s.o.MaxEntryBytes); errors.Is(err, errNoSegment) {
		x.pressed, x.step = "the log waits for a segment, and none gets ready", m.Created+m.Recycled
	}
	return x
}

// report makes a judgement known.
func (s *Shard) report(j judgement) {
	for _, op := range j.note {
		s.o.Logger.Warn("disk operation behind readers or a compaction does not return", "operation", op.String(), "since", op.Age)
	}
	var pressed *error
	if j.pressed != nil {
		pressed = &j.pressed
	}
	switch was := s.pressed.Swap(pressed); {
	case was == nil && pressed != nil:
		s.o.Logger.Warn("records are refused", "error", j.pressed)
	case was != nil && pressed == nil:
		s.o.Logger.Info("records are taken again")
	}
	stalled := j.stalledBy != ""
	switch was := s.stalled.Swap(stalled); {
	case stalled && !was:
		s.o.Logger.Warn("disk operation does not return", "operation", j.stalledBy, "since", j.age)
	case was && !stalled:
		s.o.Logger.Info("disk operation returned")
	}
}

// oldest is the operation that the shard has waited for longest, as its name and age: those aside do not count. "", 0:
// there is none in flight.
func (s *Shard) oldest() (string, time.Duration) {
	j := (&watchdog{}).look(sight{
		write: s.wal.InFlight(), ops: s.disk.Pending(0, nil), aside: s.aside, poisonAfter: math.MaxInt64, behindAfter: math.MaxInt64,
	})
	return j.stalledBy, j.age
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
