package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/headrace/headrace/log"
)

// Sentinel errors of proposals and shards.
var (
	// ErrBusy refuses a unit because too many bytes wait: a definite no, worth a retry.
	ErrBusy = errors.New("replication: too many bytes in flight")
	// ErrNoRoom refuses a unit with records or state because the disk takes none, as when it is full: a definite no,
	// and an ErrBusy, worth a retry once there is room. Its error says what fails. Other units go on for as long as
	// what is reserved for them lasts.
	ErrNoRoom = errors.New("replication: the disk takes no records")
	// ErrNotLeader refuses a unit because this member does not lead, or not yet: a definite no.
	ErrNotLeader = errors.New("replication: not the leader")
	// ErrUnknown is the error of an unknown outcome: leadership or the disk was lost while the unit was in
	// flight, or the caller stopped waiting. The unit may have happened.
	ErrUnknown = errors.New("replication: outcome unknown")
	// ErrClosed refuses a unit because the shard is closed: a definite no.
	ErrClosed = errors.New("replication: shard closed")
	// ErrFailed refuses a unit because the shard is down until the next start: a definite no.
	ErrFailed = errors.New("replication: shard failed")
	// ErrTooLarge refuses a unit that exceeds the limit of an entry: a definite no.
	ErrTooLarge = errors.New("replication: unit too large")

	// ErrStalled is why a shard with a disk operation that does not return is not ready.
	ErrStalled = errors.New("replication: disk operation stalled")
	// ErrStoreBehind means that the state machine is older than the newest checkpoint.
	ErrStoreBehind = errors.New("replication: store is older than its checkpoint")
	// ErrEmptyShard means that a shard that existed before has neither entries nor a checkpoint.
	ErrEmptyShard = errors.New("replication: shard has lost its log")
)

// A noRoomError is ErrNoRoom and ErrBusy, with what the disk says.
type noRoomError struct {
	cause error
	small string // that the disk is too small altogether, or ""
}

func (e *noRoomError) Error() string {
	s := ErrNoRoom.Error() + ": " + e.cause.Error()
	if e.small != "" {
		s += "; " + e.small
	}
	return s
}

// Is reports that the error is ErrNoRoom, and so an ErrBusy.
func (e *noRoomError) Is(target error) bool { return target == ErrNoRoom || target == ErrBusy }

// Unwrap returns the cause.
func (e *noRoomError) Unwrap() error { return e.cause }

// An Outcome is how a unit ended.
type Outcome uint8

// The outcomes.
const (
	Unknown Outcome = iota // it may have happened
	No                     // it has no effect on any replica, now or later
	Yes                    // it is committed and applied
)

// String is the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Yes:
		return "yes"
	case No:
		return "no"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("outcome-%d", uint8(o))
}

// A Result is the answer to one unit.
type Result struct {
	Outcome    Outcome
	log.Result       // what Apply said; zero unless the unit was applied
	Err        error // nil if and only if Outcome is Yes
}

func no(err error) Result { return Result{Outcome: No, Err: err} }
func unknown(err error) Result {
	return Result{Outcome: Unknown, Err: fmt.Errorf("%w: %w", ErrUnknown, err)}
}

// judged is the result of a unit that was applied.
func judged(r log.Result) Result {
	if r.Err != nil {
		return Result{Outcome: No, Result: r, Err: r.Err}
	}
	return Result{Outcome: Yes, Result: r}
}

// A StateMachine applies committed entries. *log.Store is one, and so is the metadata machine.
type StateMachine interface {
	// Apply applies one entry and returns a result per unit. It is called by one goroutine, in index order,
	// and must not block. The entry's bytes are immutable and may be kept. An entry at or below Applied is
	// skipped and has no results.
	Apply(index, term uint64, entry []byte) []log.Result
	// Applied returns the index and raft term of the last applied entry.
	Applied() (index, term uint64)
	// Checkpoint makes everything applied so far durable, and returns the index up to which the log is no
	// longer needed. It runs beside Apply.
	Checkpoint(ctx context.Context) (log.CheckpointInfo, error)
	// Backlog returns the bytes that were accepted and are not yet on their way to the disk.
	Backlog() int64
	// Close releases the machine. Apply is not called any more.
	Close() error
}

// A Proposer takes units for one shard. Shard and MemShard implement it.
type Proposer interface {
	// Propose hands u to the shard, which owns it until done was called. done is called exactly once if the
	// error is nil and never otherwise; applied units are answered in apply order, by the goroutine that
	// applies, so done must not block. It does not wait. Errors are definite nos: ErrBusy when the bytes in
	// flight exceed their bound, ErrNoRoom, ErrNotLeader, ErrFailed, ErrClosed, ErrTooLarge.
	Propose(u *log.Unit, done func(Result)) error
	// ProposeWait is Propose that waits for room instead of returning ErrBusy. When ctx ends it returns the last
	// reason, and the context's.
	ProposeWait(ctx context.Context, u *log.Unit, done func(Result)) error
	// Do proposes u and waits for its result. When ctx ends first the outcome is Unknown.
	Do(ctx context.Context, u *log.Unit) Result
	// Leader returns the raft term in which this member leads and has applied everything committed before.
	Leader() (term uint64, ok bool)
}

var (
	_ Proposer = (*Shard)(nil)
	_ Proposer = (*MemShard)(nil)
)
