package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/headrace/headrace/internal/leak"
	"github.com/headrace/headrace/log/wal"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A fakeWAL keeps entries in a map. Everything in it is durable; fail makes an operation fail.
type fakeWAL struct {
	mu          sync.Mutex
	entries     map[uint64]wal.Entry
	first, last uint64
	stable      map[string][]byte
	writes      []string
	fail        func(op string) error
	poisoned    error
}

func newFakeWAL() *fakeWAL {
	return &fakeWAL{entries: map[uint64]wal.Entry{}, stable: map[string][]byte{}}
}

func (w *fakeWAL) op(format string, args ...any) error {
	s := fmt.Sprintf(format, args...)
	if w.fail != nil {
		if err := w.fail(s); err != nil {
			return err
		}
	}
	w.writes = append(w.writes, s)
	return nil
}

func (w *fakeWAL) Append(es []wal.Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("append %d+%d", es[0].Index, len(es)); err != nil {
		return err
	}
	for i := es[0].Index; i <= w.last; i++ {
		delete(w.entries, i)
	}
	for _, e := range es {
		w.entries[e.Index] = e
	}
	if w.first == 0 {
		w.first = es[0].Index
	}
	w.last = es[len(es)-1].Index
	return nil
}

func (w *fakeWAL) AppendUnsynced(es []wal.Entry) error {
	if err := w.op("unsynced %d+%d", es[0].Index, len(es)); err != nil {
		return err
	}
	return w.Append(es)
}

func (w *fakeWAL) Read(i uint64) (wal.Entry, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		if err := w.fail(fmt.Sprintf("read %d", i)); err != nil {
			return wal.Entry{}, err
		}
	}
	e, ok := w.entries[i]
	if !ok {
		return e, fmt.Errorf("entry %d: %w", i, wal.ErrNotFound)
	}
	return e, nil
}

func (w *fakeWAL) FirstIndex() uint64 { w.mu.Lock(); defer w.mu.Unlock(); return w.first }
func (w *fakeWAL) LastIndex() uint64  { w.mu.Lock(); defer w.mu.Unlock(); return w.last }

func (w *fakeWAL) TruncateFront(i uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("front %d", i); err != nil {
		return err
	}
	for ; w.first < i && w.first <= w.last; w.first++ {
		delete(w.entries, w.first)
	}
	return nil
}

func (w *fakeWAL) TruncateBack(i uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("back %d", i); err != nil {
		return err
	}
	for ; w.last >= i; w.last-- {
		delete(w.entries, w.last)
	}
	return nil
}

func (w *fakeWAL) Reset(i uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("reset %d", i); err != nil {
		return err
	}
	w.entries, w.first, w.last = map[uint64]wal.Entry{}, 0, 0
	return nil
}

func (w *fakeWAL) SetStable(k string, v []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("stable %s", k); err != nil {
		return err
	}
	w.stable[k] = bytes.Clone(v)
	return nil
}

func (w *fakeWAL) Stable(k string) ([]byte, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.stable[k]
	return v, ok
}

func (w *fakeWAL) Poison(err error) { w.mu.Lock(); w.poisoned = err; w.mu.Unlock() }
func (w *fakeWAL) Poisoned() error  { w.mu.Lock(); defer w.mu.Unlock(); return w.poisoned }

// crash returns what a crash leaves: everything written.
func (w *fakeWAL) crash() *fakeWAL {
	c := newFakeWAL()
	c.entries, c.stable = maps.Clone(w.entries), maps.Clone(w.stable)
	c.first, c.last = w.first, w.last
	return c
}

func entry(i, term uint64) *raft.Log {
	return &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: []byte{byte(i)}}
}

func entries(from, to, term uint64) (out []*raft.Log) {
	for i := from; i <= to; i++ {
		out = append(out, entry(i, term))
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A vote of the new term for the old candidate, or the reverse, lets a server vote twice. A crash at any
// write leaves the old vote or the new one.
func TestAVoteIsOneRecord(t *testing.T) {
	for crashAt := range 4 {
		w := newFakeWAL()
		l := New(Options{WAL: w})
		must(t, l.SetUint64([]byte("LastVoteTerm"), 3))
		must(t, l.Set([]byte("LastVoteCand"), []byte("a@1")))
		n := len(w.writes)
		w.fail = func(string) error {
			if len(w.writes) >= n+crashAt {
				return errors.New("crash")
			}
			return nil
		}
		if l.SetUint64([]byte("LastVoteTerm"), 4) == nil {
			_ = l.Set([]byte("LastVoteCand"), []byte("b@2"))
		}
		r := New(Options{WAL: w.crash()})
		term, err := r.GetUint64([]byte("LastVoteTerm"))
		must(t, err)
		cand, err := r.Get([]byte("LastVoteCand"))
		must(t, err)
		if got := fmt.Sprintf("%d %s", term, cand); got != "3 a@1" && got != "4 b@2" {
			t.Errorf("crash before write %d leaves the vote %s", crashAt, got)
		}
	}
}

func TestVoteTermAloneIsNotWritten(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w})
	must(t, l.SetUint64([]byte("LastVoteTerm"), 9))
	if len(w.writes) != 0 {
		t.Errorf("wrote %v", w.writes)
	}
	if term, _ := l.GetUint64([]byte("LastVoteTerm")); term != 0 {
		t.Errorf("a vote term without its candidate is visible: %d", term)
	}
}

// The term on disk may be older than the vote or the entries when the disk was full in between.
func TestTheCurrentTermIsNeverBelowVoteAndEntries(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w})
	must(t, l.SetUint64([]byte("CurrentTerm"), 2))
	must(t, l.StoreLogs(entries(1, 2, 5)))
	if term, _ := New(Options{WAL: w.crash()}).GetUint64([]byte("CurrentTerm")); term != 5 {
		t.Errorf("term %d after an entry of term 5", term)
	}
	must(t, l.SetUint64([]byte("LastVoteTerm"), 7))
	must(t, l.Set([]byte("LastVoteCand"), []byte("x@1")))
	if term, _ := New(Options{WAL: w.crash()}).GetUint64([]byte("CurrentTerm")); term != 7 {
		t.Errorf("term %d after a vote in term 7", term)
	}
}

// After a failure no vote and no entry is accepted, and the current term in silence: raft panics otherwise.
func TestAFailedLogGrantsNothingAndNeverPanicsRaft(t *testing.T) {
	w := newFakeWAL()
	calls := 0
	broken := errors.New("input/output error")
	var l *Log
	l = New(Options{WAL: w, Failed: func(err error) {
		calls++
		if !errors.Is(err, broken) || !errors.Is(err, ErrFailed) {
			t.Errorf("failed with %v", err)
		}
		if l.Failed() == nil {
			t.Error("told before it is failed")
		}
	}})
	must(t, l.SetUint64([]byte("CurrentTerm"), 1))
	must(t, l.StoreLogs(entries(1, 3, 1)))
	w.fail = func(op string) error { return broken }
	if err := l.StoreLogs(entries(4, 4, 1)); !errors.Is(err, broken) {
		t.Fatalf("append: %v", err)
	}
	w.fail = nil // the disk comes back: too late
	n := len(w.writes)
	must(t, l.SetUint64([]byte("CurrentTerm"), 2))
	if err := l.SetUint64([]byte("LastVoteTerm"), 2); err == nil {
		t.Error("a vote is accepted")
	}
	if err := l.Set([]byte("LastVoteCand"), []byte("b")); err == nil {
		t.Error("a vote is granted")
	}
	if err := l.StoreLogs(entries(4, 4, 2)); err == nil {
		t.Error("an append is accepted")
	}
	if err := l.DeleteRange(2, 3); err == nil {
		t.Error("a delete is accepted")
	}
	if len(w.writes) != n || calls != 1 || w.Poisoned() == nil {
		t.Errorf("%d writes after the failure, %d calls, poisoned %v", len(w.writes)-n, calls, w.Poisoned())
	}
	if l.Term() != 1 {
		t.Errorf("term %d is announced as stored", l.Term())
	}
}

// raft compares with ==.
func TestAMissingEntryIsRaftsOwnError(t *testing.T) {
	l := New(Options{WAL: newFakeWAL()})
	if err := l.GetLog(1, new(raft.Log)); err != raft.ErrLogNotFound { //nolint:errorlint // this is the point
		t.Errorf("got %v", err)
	}
	if l.Failed() != nil {
		t.Error("a missing entry fails the log")
	}
}

// raft.processLogs panics on an error. The group is told to shut down first, and the goroutine ends with its
// deferred calls made.
func TestAnUnreadableEntryEndsTheReaderAfterTheShutdown(t *testing.T) {
	w := newFakeWAL()
	told := false
	l := New(Options{WAL: w, Failed: func(error) { told = true }})
	must(t, l.StoreLogs(entries(1, 1, 1)))
	w.fail = func(op string) error {
		if op == "read 1" {
			return errors.New("input/output error")
		}
		return nil
	}
	if New(Options{WAL: w}).GetLog(1, new(raft.Log)) == nil {
		t.Error("before raft runs the error is returned")
	}
	l.Started()
	returned, deferred := false, make(chan struct{})
	go func() {
		defer close(deferred)
		_ = l.GetLog(1, new(raft.Log))
		returned = true
	}()
	<-deferred
	if returned || !told {
		t.Errorf("returned %v, told %v", returned, told)
	}
}

func TestEntriesComeBackWhole(t *testing.T) {
	l := New(Options{WAL: newFakeWAL()})
	at := time.Unix(12, 345)
	in := &raft.Log{Index: 5, Term: 3, Type: raft.LogConfiguration, Data: []byte("d"), Extensions: []byte("e"), AppendedAt: at}
	must(t, l.StoreLog(in))
	var out raft.Log
	must(t, l.GetLog(5, &out))
	if out.Index != 5 || out.Term != 3 || out.Type != in.Type || string(out.Data) != "d" ||
		string(out.Extensions) != "e" || !out.AppendedAt.Equal(at) {
		t.Errorf("got %+v", out)
	}
}

func TestGapsAreLegalOnlyBehindASnapshot(t *testing.T) {
	w := newFakeWAL()
	listed := uint64(0)
	l := New(Options{WAL: w, Listed: func() uint64 { return listed }})
	must(t, l.StoreLogs(entries(7, 9, 1))) // an empty log takes any first index
	if err := l.StoreLogs(entries(12, 12, 1)); !errors.Is(err, ErrGap) {
		t.Fatalf("gap: %v", err)
	}
	listed = 20
	if err := l.StoreLogs(entries(20, 20, 1)); !errors.Is(err, ErrGap) {
		t.Fatalf("not right behind the snapshot: %v", err)
	}
	must(t, l.StoreLogs(entries(21, 22, 2)))
	if f, _ := l.FirstIndex(); f != 21 {
		t.Errorf("first index %d after the gap", f)
	}
	if err := l.StoreLogs(entries(22, 23, 2)); !errors.Is(err, ErrGap) {
		t.Errorf("stored again: %v", err)
	}
	if err := l.StoreLogs([]*raft.Log{entry(23, 2), entry(25, 2)}); !errors.Is(err, ErrGap) {
		t.Errorf("gap inside: %v", err)
	}
	if l.Failed() != nil {
		t.Errorf("refusals fail the log: %v", l.Failed())
	}
}

// Deleting acknowledged entries stops the shard.
func TestASuffixIsDeletedOnlyAboveTheAppliedIndex(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w, Applied: func() uint64 { return 4 }})
	must(t, l.StoreLogs(entries(1, 9, 1)))
	must(t, l.DeleteRange(8, 9))
	if last, _ := l.LastIndex(); last != 7 {
		t.Fatalf("last %d", last)
	}
	must(t, l.DeleteRange(1, 2))
	if first, _ := l.FirstIndex(); first != 3 {
		t.Fatalf("first %d", first)
	}
	must(t, l.DeleteRange(1, 2))
	must(t, l.DeleteRange(50, 60))
	if err := l.DeleteRange(4, 5); !errors.Is(err, ErrMiddle) {
		t.Fatalf("middle: %v", err)
	}
	if err := l.DeleteRange(4, 7); !errors.Is(err, ErrApplied) || l.Failed() == nil {
		t.Fatalf("at the applied index: %v", err)
	}
}

func TestDeletingEverythingKeepsTheNextIndex(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w})
	must(t, l.StoreLogs(entries(1, 9, 1)))
	must(t, l.DeleteRange(1, 9))
	if got := w.writes[len(w.writes)-1]; got != "reset 10" {
		t.Errorf("last write %s", got)
	}
	must(t, l.StoreLogs(entries(10, 10, 1)))
}

// A full disk refuses entries without failing the log, and what a part of them left behind is written over.
func TestAFullDiskIsNotAFailure(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w})
	must(t, l.StoreLogs(entries(1, 2, 1)))
	w.fail = func(string) error { return fmt.Errorf("append: %w", wal.ErrNoSegment) }
	if err := l.StoreLogs(entries(3, 6, 1)); !errors.Is(err, wal.ErrNoSegment) || l.Failed() != nil {
		t.Fatalf("%v, failed %v", err, l.Failed())
	}
	must(t, l.SetUint64([]byte("CurrentTerm"), 2)) // raft panics otherwise
	if err := l.Set([]byte("LastVoteCand"), []byte("a")); err == nil {
		t.Error("a vote is granted that was not written")
	}
	w.fail = nil
	must(t, w.Append([]wal.Entry{{Index: 3, Term: 1}, {Index: 4, Term: 1}})) // the part that was written
	must(t, l.StoreLogs(entries(3, 3, 3)))
	var e raft.Log
	must(t, l.GetLog(3, &e))
	if last, _ := l.LastIndex(); last != 3 || e.Term != 3 {
		t.Errorf("log ends at %d with term %d", last, e.Term)
	}
}

func TestStoringIsVisibleWhileItRuns(t *testing.T) {
	w := newFakeWAL()
	l := New(Options{WAL: w})
	if _, running := l.Storing(); running {
		t.Error("running at rest")
	}
	w.fail = func(string) error {
		if _, running := l.Storing(); !running {
			t.Error("not running inside an append")
		}
		return nil
	}
	must(t, l.StoreLogs(entries(1, 1, 1)))
	if _, running := l.Storing(); running {
		t.Error("running afterwards")
	}
}

func TestAppendedCountsCommandsAndBytes(t *testing.T) {
	var commands, size int
	l := New(Options{WAL: newFakeWAL(), Appended: func(c, b int) { commands += c; size += b }})
	es := entries(1, 4, 1)
	es[2].Type = raft.LogNoop
	must(t, l.StoreLogs(es))
	if commands != 3 || size != 4 || l.Bytes() != logBlock {
		t.Errorf("%d commands, %d bytes, %d", commands, size, l.Bytes())
	}
}

// What a small append takes in the log is a block: a log of tiny entries is let go by what it takes, not by its payload.
func TestTinyEntriesAreNotKeptForTheirPayload(t *testing.T) {
	l := New(Options{WAL: newFakeWAL()})
	for i := range uint64(1000) {
		must(t, l.StoreLogs(entries(i+1, i+1, 1)))
	}
	if l.Bytes() != 1000*logBlock {
		t.Errorf("%d bytes", l.Bytes())
	}
	if k, most := l.Trailing(1<<20), uint64((1<<20)/logBlock); k > most || k < most/2 {
		t.Errorf("%d entries trail, %d would take a MiB", k, most)
	}
}

// The number of trailing entries stands for about the bytes that were asked for.
func TestTrailingEntriesFollowBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr trailing
		start := rapid.Uint64Range(0, 1000).Draw(t, "start")
		tr.init(start)
		sizes := rapid.SliceOfN(rapid.Int64Range(0, 3<<20), 0, 300).Draw(t, "sizes")
		for i, n := range sizes {
			tr.add(start+uint64(i)+1, n)
		}
		want := rapid.Int64Range(0, 200<<20).Draw(t, "bytes")
		k := tr.entries(want)
		if k > uint64(len(sizes)) {
			t.Fatalf("%d trailing of %d entries", k, len(sizes))
		}
		var held int64
		for _, n := range sizes[uint64(len(sizes))-k:] {
			held += n
		}
		if held > want+trailingStep && held > want+4<<20 {
			t.Fatalf("%d entries hold %d bytes, asked for %d", k, held, want)
		}
		var total int64
		for _, n := range sizes {
			total += n
		}
		if held < min(want, total)-8<<20 {
			t.Fatalf("%d entries hold only %d bytes, asked for %d of %d", k, held, want, total)
		}
	})
}

func TestOtherStableValuesAreKept(t *testing.T) {
	l := New(Options{WAL: newFakeWAL()})
	must(t, l.SetUint64([]byte("n"), 77))
	must(t, l.Set([]byte("s"), []byte("v")))
	n, _ := l.GetUint64([]byte("n"))
	s, _ := l.Get([]byte("s"))
	none, err := l.Get([]byte("missing"))
	if n != 77 || string(s) != "v" || len(none) != 0 || err != nil {
		t.Errorf("%d %s %q %v", n, s, none, err)
	}
}
