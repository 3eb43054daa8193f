package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

const (
	maxSegmentBytes = 1 << 30
	minSegmentBytes = 16 * blockSize
	// stableRoom is how many bytes of stable values a segment of ordinary size can carry.
	stableRoom = 64 << 10
)

// Options say where a log lies and what it may use. The zero value of every field but FS and Dir works.
type Options struct {
	// FS holds the log; nil means the disk.
	FS fsx.FS
	// Dir is the log's own directory. It is created. Only one WAL at a time may have it open.
	Dir string
	// SegmentBytes is the size of new segments; default 64 MiB. Larger ones are switched and recycled less often.
	// A multiple of 4 KiB.
	SegmentBytes int64
	// ReadySegments is how many prepared segments wait; default 2. One more covers bursts while segments are made.
	ReadySegments int
	// AheadSegments is how many more are made while the log is young and the disk has plenty of room; default 2,
	// negative: none. Making a segment costs as many writes as the log itself, beside it: what is ready before the
	// load comes does not disturb it, and later the released ones go round. With Inline there are none.
	AheadSegments int
	// SpareSegments is how many released segments are kept to be used again; default 16, at least ReadySegments. What
	// is released beyond that is removed, and has to be made anew when the log next grows.
	SpareSegments int
	// MaxGroupBytes bounds one write, and with it the largest entry; default 16 MiB, less in small segments. It is
	// also the size of the buffer outside the Go heap.
	MaxGroupBytes int64
	// CacheBytes bounds the newest entries kept in memory for Read; default 64 MiB, negative: none. They are kept by
	// reference to the caller's bytes.
	CacheBytes int64
	// SyncedIndex is an index up to which entries are known to have been synced, as by a checkpoint that was made of
	// them: recovery reports rot rather than cut one of them off. 0: unknown.
	SyncedIndex uint64
	// Direct writes past the page cache (O_DIRECT, O_DSYNC) where the file system can, instead of write and sync.
	Direct bool
	// SyncWithin is how soon what AppendUnsynced wrote is synced when nothing else syncs it; default 5 ms. The sync
	// itself comes on top. With Inline there is no goroutine for it: SyncTo does it.
	SyncWithin time.Duration
	// Inline runs upkeep inside the calls that need it instead of in a goroutine. For tests and tools.
	Inline bool
	// Pace is the pause between steps of upkeep that load the disk; default 5 ms. Without a goroutine there is none.
	Pace time.Duration
	// LogID is the random number that marks a new log's groups; 0: drawn.
	LogID uint64
	// Now is a monotonic clock in ns, for WriteStarted and Metrics; nil: the machine's.
	Now func() int64
	// Logger gets what an operator should know; nil: nothing is logged.
	Logger *slog.Logger
	// Events are called on changes worth reacting to.
	Events Events
}

// Events are called by the goroutine that writes and must not block.
type Events struct {
	// Poisoned: the log takes no more changes, and why. Called once.
	Poisoned func(error)
	// Synced: a group of so many bytes is on the disk; write and sync took so many ns.
	Synced func(bytes, ns int64)
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = fsx.Disk()
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 64 << 20
	}
	if o.ReadySegments == 0 {
		o.ReadySegments = 2
	}
	if o.SpareSegments == 0 {
		o.SpareSegments = 16
	}
	switch {
	case o.AheadSegments < 0 || o.Inline:
		o.AheadSegments = 0
	case o.AheadSegments == 0:
		o.AheadSegments = 2
	}
	o.SpareSegments = max(o.SpareSegments, o.ReadySegments+o.AheadSegments)
	if o.MaxGroupBytes == 0 {
		o.MaxGroupBytes = min(16<<20, o.SegmentBytes-o.openRoom())
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.SyncWithin <= 0 {
		o.SyncWithin = 5 * time.Millisecond
	}
	if o.Pace == 0 {
		o.Pace = 5 * time.Millisecond
	}
	if o.Now == nil {
		start := time.Now()
		o.Now = func() int64 { return int64(time.Since(start)) }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("wal: no directory given")
	case o.SegmentBytes < minSegmentBytes || o.SegmentBytes > maxSegmentBytes || o.SegmentBytes%blockSize != 0:
		return fmt.Errorf("wal: segment size %d is not a multiple of %d between %d and %d", o.SegmentBytes, blockSize, minSegmentBytes, maxSegmentBytes)
	case o.MaxGroupBytes%blockSize != 0 || o.MaxGroupBytes < 2*blockSize || o.MaxGroupBytes > o.SegmentBytes-o.openRoom():
		return fmt.Errorf("wal: group size %d is not a multiple of %d between %d and %d", o.MaxGroupBytes, blockSize, 2*blockSize, o.SegmentBytes-o.openRoom())
	case o.ReadySegments < 1 || o.SpareSegments > 1<<10:
		return fmt.Errorf("wal: %d ready and %d spare segments", o.ReadySegments, o.SpareSegments)
	}
	return nil
}

// maxStable bounds the bytes of all stable values with their frames.
func (o Options) maxStable() int64 { return min(stableRoom, o.SegmentBytes/8) }

// openRoom is what the group that opens a segment may take.
func (o Options) openRoom() int64 { return align(headerSize + openSize + o.maxStable()) }
