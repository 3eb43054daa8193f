package wal

import (
	"errors"
	"fmt"
)

// Errors of this package; all may come wrapped.
var (
	// ErrNotFound: the log holds no entry with this index.
	ErrNotFound = errors.New("wal: no such entry")
	// ErrPoisoned: a write or sync has failed or was given up on. Only opening the log again helps.
	ErrPoisoned = errors.New("wal: poisoned")
	// ErrTooLarge: an entry does not fit a group, or stable values outgrew their room. Nothing was written.
	ErrTooLarge = errors.New("wal: too large")
	// ErrGap: the first index of an Append lies above the last index + 1, or its indexes are not consecutive.
	// Nothing was written.
	ErrGap = errors.New("wal: gap in indexes")
	// ErrNoSegment: no segment is ready and none could be made, as on a full disk. Append may have written a prefix of
	// its entries, as LastIndex says; what is left may be appended again. Every other call has written nothing and may
	// be repeated.
	ErrNoSegment = errors.New("wal: no segment ready")
	// ErrCorrupt is what every CorruptError is.
	ErrCorrupt = errors.New("wal: corrupt")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("wal: closed")
)

// A CorruptError says where bytes that had been synced are no longer what was written. It is ErrCorrupt.
type CorruptError struct {
	Segment  uint64 `json:"segment"`  // sequence of the segment
	Position int64  `json:"position"` // byte in the segment file
	Group    uint64 `json:"group"`    // number of the group that should be there; 0: unknown
	Reason   string `json:"reason"`
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("wal: segment %d corrupt at byte %d (group %d): %s", e.Segment, e.Position, e.Group, e.Reason)
}

// Is makes a CorruptError an ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
