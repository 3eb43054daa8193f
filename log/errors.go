package log

import (
	"errors"
	"fmt"

	"github.com/headrace/headrace/log/segment"
)

// Why Apply rejects a unit. A Result.Err is a *RejectError around one of these; the unit has no effect on any
// replica.
var (
	// ErrUnknownPartition: the shard has no such partition, or no longer.
	ErrUnknownPartition = errors.New("log: unknown partition")
	// ErrSequence: the batch does not follow the producer's last one and is none of its last five.
	ErrSequence = errors.New("log: out of order sequence")
	// ErrUnknownProducer: a producer that this partition does not know (any more) must begin at sequence 0.
	// It is an ErrSequence.
	ErrUnknownProducer = fmt.Errorf("%w: unknown producer", ErrSequence)
	// ErrProducerFenced: a newer epoch of the producer has written here.
	ErrProducerFenced = errors.New("log: producer fenced")
	// ErrFenced: a step of another task epoch, or not the next step, or from another cut.
	ErrFenced = errors.New("log: step fenced")
	// ErrUnknownTask: the task was never opened here, or was dropped.
	ErrUnknownTask = errors.New("log: unknown task")
	// ErrTooLarge: a batch over the topic's limit, or a state key over MaxStateKeyBytes.
	ErrTooLarge = errors.New("log: too large")
	// ErrOffsetRange: an offset outside of what the partition holds. Reads return an *OffsetRangeError.
	ErrOffsetRange = errors.New("log: offset out of range")
	// ErrBadUnit: operations that make no sense together or are not for a store.
	ErrBadUnit = errors.New("log: bad unit")
	// ErrBadBatch: bytes that are not one record batch.
	ErrBadBatch = errors.New("log: bad record batch")
)

// States of a store.
var (
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("log: closed")
	// ErrCorrupt: bytes on disk are not what was written. The error is a *CorruptError where a file is meant.
	ErrCorrupt = errors.New("log: corrupt")
	// ErrAheadOfLog: the store has applied what its log does not hold, or holds with another raft term. It
	// must be replaced by a copy from a peer.
	ErrAheadOfLog = errors.New("log: the store is ahead of its log")
	// ErrDegraded: writing behind the log does not succeed and is being retried, usually because the disk is
	// full. Reads work. The state ends by itself.
	ErrDegraded = errors.New("log: degraded")
	// ErrPoisoned: a sync has failed, or Pebble has met an error that it does not survive. Final until the
	// store is opened again.
	ErrPoisoned = errors.New("log: poisoned")
)

// A RejectError says why Apply rejected a unit.
type RejectError struct {
	Reason    error       // one of the sentinels
	Partition PartitionID // zero if no partition is meant
	Detail    string
}

func (e *RejectError) Error() string {
	s := e.Reason.Error()
	if e.Partition != (PartitionID{}) {
		s += ": " + e.Partition.String()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the sentinel.
func (e *RejectError) Unwrap() error { return e.Reason }

// An OffsetRangeError says which offsets there are. It is ErrOffsetRange.
type OffsetRangeError struct {
	Partition  PartitionID
	Offset     int64 // asked for
	Start, End int64 // log start and log end
}

func (e *OffsetRangeError) Error() string {
	return fmt.Sprintf("%v: %s: %d is not in [%d, %d]", ErrOffsetRange, e.Partition, e.Offset, e.Start, e.End)
}

// Is reports that the error is ErrOffsetRange.
func (e *OffsetRangeError) Is(target error) bool { return target == ErrOffsetRange }

// A CorruptError says where bytes on disk stopped making sense. It is ErrCorrupt.
type CorruptError struct {
	Path      string // file, relative to the store
	Partition PartitionID
	Offset    int64 // first offset that cannot be read
	Position  int64 // byte in the file, -1 if unknown
	Err       error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("log: %s corrupt at byte %d (partition %s, offset %d): %v", e.Path, e.Position, e.Partition, e.Offset, e.Err)
}

// Is reports that the error is ErrCorrupt.
func (e *CorruptError) Is(target error) bool {
	return target == ErrCorrupt || target == segment.ErrCorrupt
}

// Unwrap returns what was found.
func (e *CorruptError) Unwrap() error { return e.Err }
