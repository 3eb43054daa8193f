package replication

import (
	"fmt"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// A watchdog judges what a shard's disk does, from what Shard.watch has seen. It has no clock and touches nothing.
//
// Whatever stands behind the log stops the shard in the end, wherever it hangs: the log's segments run out, or the
// backlog of the machine grows to its bound. So every operation counts, except those aside, which only their reader or
// a compaction waits for: they are reported and nothing else.
type watchdog struct {
	stallAfter time.Duration

	noted   uint64 // the youngest operation aside that was reported
	pressed string // what has kept records out since pressedAt, "": nothing
	step    int64  // of the progress then
	at      time.Duration
}

// A sight is one look at a shard.
type sight struct {
	now     time.Duration // any monotonic clock
	write   time.Duration // age of the log's write in flight, 0: none
	ops     []fsx.Pending // the operations in flight, oldest first
	aside   func(op fsx.Op, name string) bool
	pressed string // what records wait for although nothing has failed, "": nothing
	step    int64  // changes when the disk gets on with that

	poisonAfter, behindAfter time.Duration // limits of the log's write, and of what stands behind it
}

// A judgement is what follows from a sight.
type judgement struct {
	stalledBy string        // the operation that stalls the shard, "": none
	age       time.Duration // its age
	giveUp    error         // why the shard is to be given up
	pressed   error         // what has kept records out for too long, nil: nothing
	note      []fsx.Pending // operations aside to report, each once
}

func (w *watchdog) look(s sight) (j judgement) {
	if s.write > 0 {
		j.stalledBy, j.age = "write of the log", s.write
	}
	behind := time.Duration(0)
	for _, op := range s.ops {
		if op.Age < w.stallAfter {
			break
		}
		if s.aside(op.Op, op.Name) {
			if op.ID > w.noted {
				w.noted = op.ID
				j.note = append(j.note, op)
			}
			continue
		}
		if behind == 0 {
			behind = op.Age
			j.stalledBy, j.age = op.String(), max(j.age, op.Age)
		}
	}
	switch {
	case j.age < w.stallAfter:
		j.stalledBy, j.age = "", 0
	case s.write >= s.poisonAfter, behind >= s.behindAfter:
		j.giveUp = fmt.Errorf("%w: %s for %s", ErrStalled, j.stalledBy, j.age.Round(time.Millisecond))
	}
	if s.pressed != w.pressed || s.step != w.step {
		w.pressed, w.step, w.at = s.pressed, s.step, s.now
	}
	if lasts := s.now - w.at; w.pressed != "" && lasts >= w.stallAfter {
		j.pressed = fmt.Errorf("%w for %s: %s", ErrBusy, lasts.Round(100*time.Millisecond), w.pressed)
	}
	return j
}
