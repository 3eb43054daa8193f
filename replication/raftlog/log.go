package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/log/wal"
)

// Sentinel errors. A failed log returns what failed it, wrapped in ErrFailed.
var (
	ErrFailed  = errors.New("raftlog: log failed")
	ErrGap     = errors.New("raftlog: entry leaves a gap")
	ErrApplied = errors.New("raftlog: suffix reaches below the applied index")
	ErrMiddle  = errors.New("raftlog: range is neither a prefix nor a suffix")
)

// A WAL is what the adapter needs of a write-ahead log. *wal.WAL is one.
type WAL interface {
	Append(entries []wal.Entry) error
	AppendUnsynced(entries []wal.Entry) error
	Read(index uint64) (wal.Entry, error)
	FirstIndex() uint64
	LastIndex() uint64
	TruncateFront(index uint64) error
	TruncateBack(index uint64) error
	SetStable(key string, value []byte) error
	Stable(key string) ([]byte, bool)
	Reset(index uint64) error
	Poison(err error)
	Poisoned() error
}

// Options of a Log. WAL is required.
type Options struct {
	WAL WAL

	// Listed returns the index of the newest listed snapshot, 0 when there is none. A gap in the log is
	// legal right after it. Nil means never.
	Listed func() uint64

	// Applied returns the index that the state machine has applied. Nil means 0.
	Applied func() uint64

	// Failed is called once, by the goroutine that met the failure and before the failure is returned to
	// raft: it starts the shutdown of the group. It must not block and must not wait for raft.
	Failed func(error)

	// Appended is called by raft's main goroutine when entries are synced, with the number of commands
	// among them and the bytes of all payloads. It must not block.
	Appended func(commands, bytes int)
}

// A Log is raft's log store and stable store over one write-ahead log.
type Log struct {
	o Options

	storing    atomic.Int64  // start of the StoreLogs that runs, ns since base, 0 when none runs
	base       time.Time     // of storing
	term       atomic.Uint64 // CurrentTerm as last stored
	bytes      atomic.Int64  // appended since open, as they lie in the log
	failed     atomic.Pointer[error]
	started    atomic.Bool // raft's goroutines run: a read that fails must not return
	entries    []wal.Entry // scratch of StoreLogs
	partial    uint64      // first index of an append that was given up with nothing counted, 0: none
	voteTerm   uint64      // LastVoteTerm given by raft and not yet written
	voteHeld   bool
	trailing   trailing
	failedOnce sync.Once
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
	_ raft.StableStore       = (*Log)(nil)
)

// New returns the adapter over o.WAL.
func New(o Options) *Log {
	l := &Log{o: o, base: time.Now().Add(-time.Second)}
	l.trailing.init(o.WAL.LastIndex())
	l.term.Store(l.storedTerm())
	return l
}

// Started says that raft's goroutines run from now on: a read that fails ends the goroutine that wanted it
// instead of returning an error, which raft would turn into a panic.
func (l *Log) Started() { l.started.Store(true) }

// IsMonotonic tells raft that gaps are not tolerated.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex returns the first kept index, 0 when the log is empty.
func (l *Log) FirstIndex() (uint64, error) { return l.o.WAL.FirstIndex(), nil }

// LastIndex returns the last index, 0 when the log is empty.
func (l *Log) LastIndex() (uint64, error) { return l.o.WAL.LastIndex(), nil }

// Term returns the current term as last stored. Any goroutine may call it.
func (l *Log) Term() uint64 { return l.term.Load() }

// Storing returns how long the StoreLogs that runs has been running.
func (l *Log) Storing() (time.Duration, bool) {
	at := l.storing.Load()
	if at == 0 {
		return 0, false
	}
	return time.Since(l.base) - time.Duration(at), true
}

// Bytes returns the bytes appended since the log was opened, as they lie in it: a small append takes a block.
func (l *Log) Bytes() int64 { return l.bytes.Load() }

// Trailing returns how many of the newest entries take about the last n bytes of the log, as far as they were
// appended since the log was opened.
func (l *Log) Trailing(n int64) uint64 { return l.trailing.entries(n) }

// Failed returns what failed the log, or nil.
func (l *Log) Failed() error {
	if p := l.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Fail poisons the write-ahead log and tells the owner. The first error stays. Any goroutine may call it.
func (l *Log) Fail(err error) error {
	if l.failed.Load() == nil {
		e := fmt.Errorf("%w: %w", ErrFailed, err)
		l.failed.CompareAndSwap(nil, &e)
	}
	l.failedOnce.Do(func() {
		l.o.WAL.Poison(err)
		if l.o.Failed != nil {
			l.o.Failed(l.Failed())
		}
	})
	return l.Failed()
}

// GetLog reads the entry at index into out. A missing one is raft.ErrLogNotFound.
func (l *Log) GetLog(index uint64, out *raft.Log) error {
	e, err := l.o.WAL.Read(index)
	if err != nil {
		if errors.Is(err, wal.ErrNotFound) {
			return raft.ErrLogNotFound
		}
		err = l.Fail(fmt.Errorf("read entry %d: %w", index, err))
		if l.started.Load() {
			// raft.processLogs panics on an error. The group is going down already; the goroutine ends
			// here, and its deferred calls answer whoever waits.
			goruntime.Goexit()
		}
		return err
	}
	*out = raft.Log{
		Index: e.Index, Term: e.Term, Type: raft.LogType(e.Type),
		Data: e.Data, Extensions: e.Extensions, AppendedAt: time.Unix(0, e.AppendedAt),
	}
	return nil
}

// StoreLog appends one entry.
func (l *Log) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// SemiSync, as the extensions of a command, says that it may be acknowledged once a majority has it in memory that
// outlives the process. It travels with the entry, so every member does the same. Nobody may change its bytes.
var SemiSync = []byte{1}

// mayWait reports whether every entry may be synced later.
func mayWait(logs []*raft.Log) bool {
	for _, e := range logs {
		if e.Type != raft.LogCommand || !bytes.Equal(e.Extensions, SemiSync) {
			return false
		}
	}
	return true
}

// StoreLogs appends entries and returns when they are synced, or written if all are SemiSync. Their bytes are kept by
// reference.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	if err := l.Failed(); err != nil {
		return err
	}
	if err := l.admit(logs); err != nil {
		return err
	}
	size := l.convert(logs)
	l.storing.Store(max(1, int64(time.Since(l.base))))
	write := l.o.WAL.Append
	if mayWait(logs) {
		write = l.o.WAL.AppendUnsynced
	}
	err := write(l.entries)
	l.storing.Store(0)
	clear(l.entries)
	switch {
	case transient(err):
		// Nothing is wrong with what is stored. A prefix of the entries may be: raft has not counted it, and
		// the next ones go over it.
		l.partial = logs[0].Index
		return fmt.Errorf("raftlog: append entry %d: %w", logs[0].Index, err)
	case err != nil:
		return l.Fail(fmt.Errorf("append entry %d: %w", logs[0].Index, err))
	}
	if err := l.Failed(); err != nil {
		return err // poisoned while the kernel held the write: what it says now comes too late
	}
	l.partial = 0
	taken := occupied(len(logs), size)
	l.trailing.add(logs[len(logs)-1].Index, taken)
	l.bytes.Add(taken)
	if l.o.Appended != nil {
		commands := 0
		for _, e := range logs {
			if e.Type == raft.LogCommand {
				commands++
			}
		}
		l.o.Appended(commands, size)
	}
	return nil
}

// logBlock is what every append to the log is rounded up to, and entryFrame about what an entry takes besides its payload.
const (
	logBlock   = 4 << 10
	entryFrame = 64
)

// occupied is about what an append takes in the log: what small appends cost there is not their payload.
func occupied(entries, payload int) int64 {
	return (int64(payload+(entries+1)*entryFrame) + logBlock - 1) / logBlock * logBlock
}

// transient reports whether err leaves the log whole: nothing was written, and the call may be repeated. A full
// disk ends by itself.
func transient(err error) bool {
	return errors.Is(err, wal.ErrNoSegment) || errors.Is(err, wal.ErrTooLarge)
}

// admit checks that logs follow the log without a gap, and resets the log when they follow a snapshot.
func (l *Log) admit(logs []*raft.Log) error {
	first, last := logs[0].Index, l.o.WAL.LastIndex()
	for i, e := range logs {
		if e.Index != first+uint64(i) {
			return fmt.Errorf("%w: %d stands after %d", ErrGap, e.Index, first+uint64(i)-1)
		}
	}
	switch {
	case last == 0 || first == last+1, l.partial != 0 && first == l.partial:
		return nil
	case first <= last:
		return fmt.Errorf("%w: entry %d is stored already, the log ends at %d", ErrGap, first, last)
	}
	if l.o.Listed == nil || l.o.Listed()+1 != first {
		return fmt.Errorf("%w: %d after %d and no snapshot in between", ErrGap, first, last)
	}
	if err := l.o.WAL.Reset(first); err != nil {
		return l.Fail(fmt.Errorf("reset to %d: %w", first, err))
	}
	l.trailing.init(first - 1)
	return nil
}

// convert fills l.entries with logs and returns the bytes of their payloads.
func (l *Log) convert(logs []*raft.Log) (size int) {
	l.entries = l.entries[:0]
	for _, e := range logs {
		var at int64
		if !e.AppendedAt.IsZero() {
			at = e.AppendedAt.UnixNano()
		}
		size += len(e.Data) + len(e.Extensions)
		l.entries = append(l.entries, wal.Entry{
			Index: e.Index, Term: e.Term, Type: uint8(e.Type), AppendedAt: at,
			Extensions: e.Extensions, Data: e.Data,
		})
	}
	return size
}

// DeleteRange drops the entries from lo to hi, both included: a prefix, a suffix or everything.
func (l *Log) DeleteRange(lo, hi uint64) error {
	if err := l.Failed(); err != nil {
		return err
	}
	first, last := l.o.WAL.FirstIndex(), l.o.WAL.LastIndex()
	if last == 0 || hi < first || lo > last {
		return nil
	}
	switch {
	case lo <= first && hi >= last:
		if err := l.o.WAL.Reset(last + 1); err != nil {
			return l.Fail(fmt.Errorf("drop all entries up to %d: %w", last, err))
		}
		l.trailing.init(last)
		return nil
	case lo <= first:
		if err := l.o.WAL.TruncateFront(hi + 1); err != nil {
			return fmt.Errorf("raftlog: release entries up to %d: %w", hi, err)
		}
		return nil
	case hi >= last:
		if l.o.Applied != nil && lo <= l.o.Applied() {
			return l.Fail(fmt.Errorf("%w: delete from %d, applied %d", ErrApplied, lo, l.o.Applied()))
		}
		if err := l.o.WAL.TruncateBack(lo); err != nil {
			return l.Fail(fmt.Errorf("drop entries from %d: %w", lo, err))
		}
		l.trailing.init(lo - 1)
		return nil
	}
	return fmt.Errorf("%w: %d to %d of %d to %d", ErrMiddle, lo, hi, first, last)
}

// Keys of raft's stable store, and ours in the write-ahead log.
var (
	keyCurrentTerm  = []byte("CurrentTerm")
	keyLastVoteTerm = []byte("LastVoteTerm")
	keyLastVoteCand = []byte("LastVoteCand")
)

const (
	stableTerm = "term" // 8 bytes big-endian
	stableVote = "vote" // term, 8 bytes big-endian, and the candidate's address
)

func (l *Log) vote() (term uint64, candidate []byte) {
	v, ok := l.o.WAL.Stable(stableVote)
	if !ok || len(v) < 8 {
		return 0, nil
	}
	return binary.BigEndian.Uint64(v), v[8:]
}

// storedTerm is the highest term that the disk knows of. A current term that could not be written while the
// disk was full may be older than the vote or the entries that came after it.
func (l *Log) storedTerm() uint64 {
	term, _ := l.vote()
	if v, ok := l.o.WAL.Stable(stableTerm); ok && len(v) == 8 {
		term = max(term, binary.BigEndian.Uint64(v))
	}
	if last := l.o.WAL.LastIndex(); last != 0 {
		if e, err := l.o.WAL.Read(last); err == nil {
			term = max(term, e.Term)
		}
	}
	return term
}

// Set writes a stable value, synced. The candidate of a vote is written together with the term held.
func (l *Log) Set(key, value []byte) error {
	if err := l.Failed(); err != nil {
		return err
	}
	name := string(key)
	if name == string(keyLastVoteCand) {
		term, _ := l.vote()
		if l.voteHeld {
			term = l.voteTerm
		}
		value = append(binary.BigEndian.AppendUint64(nil, term), value...)
		name = stableVote
	}
	if err := l.o.WAL.SetStable(name, value); transient(err) {
		return fmt.Errorf("raftlog: write stable value %s: %w", name, err)
	} else if err != nil {
		return l.Fail(fmt.Errorf("write stable value %s: %w", name, err))
	}
	if name == stableVote {
		l.voteHeld = false
	}
	return nil
}

// Get reads a stable value; a missing one is empty.
func (l *Log) Get(key []byte) ([]byte, error) {
	if string(key) == string(keyLastVoteCand) {
		_, candidate := l.vote()
		return candidate, nil
	}
	v, _ := l.o.WAL.Stable(string(key))
	return v, nil
}

// SetUint64 writes a stable number, synced. LastVoteTerm is only held until Set of LastVoteCand. On a failed
// log CurrentTerm is accepted and not written: raft panics on an error, and no vote is granted in that term
// because Set and StoreLogs fail.
func (l *Log) SetUint64(key []byte, value uint64) error {
	switch string(key) {
	case string(keyLastVoteTerm):
		if err := l.Failed(); err != nil {
			return err
		}
		l.voteTerm, l.voteHeld = value, true
		return nil
	case string(keyCurrentTerm):
		if l.Failed() != nil {
			return nil
		}
		if err := l.o.WAL.SetStable(stableTerm, binary.BigEndian.AppendUint64(nil, value)); transient(err) {
			return nil // the vote that would follow fails too
		} else if err != nil {
			l.Fail(fmt.Errorf("write the current term: %w", err)) //nolint:errcheck // see above
			return nil
		}
		l.term.Store(value)
		return nil
	}
	return l.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// GetUint64 reads a stable number; a missing one is 0.
func (l *Log) GetUint64(key []byte) (uint64, error) {
	name := string(key)
	switch name {
	case string(keyLastVoteTerm):
		term, _ := l.vote()
		return term, nil
	case string(keyCurrentTerm):
		return l.term.Load(), nil
	}
	v, ok := l.o.WAL.Stable(name)
	if !ok || len(v) != 8 {
		return 0, nil
	}
	return binary.BigEndian.Uint64(v), nil
}
