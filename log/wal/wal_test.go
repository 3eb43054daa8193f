package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/headrace/headrace/internal/fsx"
)

const testSegment = 256 << 10

func testOptions(fs fsx.FS) Options {
	return Options{FS: fs, Dir: "wal", SegmentBytes: testSegment, Inline: true, LogID: 0x1122334455667788}
}

func mustOpen(t testing.TB, o Options) (*WAL, Recovery) {
	t.Helper()
	w, rec, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return w, rec
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// payload makes bytes that say which entry they are of, in which version, and whether they are whole.
func payload(index, version uint64, size int) []byte {
	b := make([]byte, 20+size)
	binary.LittleEndian.PutUint64(b[4:], index)
	binary.LittleEndian.PutUint64(b[12:], version)
	x := index*0x9e3779b97f4a7c15 + version
	for i := 20; i < len(b); i++ {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// parseEntryOfTest checks an entry made by entry and returns its version.
func parseEntryOfTest(index uint64, e Entry) (version uint64, err error) {
	if e.Index != index || len(e.Data) < 20 || binary.LittleEndian.Uint64(e.Data[4:]) != index ||
		crc32.Checksum(e.Data[4:], castagnoli) != binary.LittleEndian.Uint32(e.Data) {
		return 0, fmt.Errorf("entry %d holds something else: index %d, %d bytes", index, e.Index, len(e.Data))
	}
	v := binary.LittleEndian.Uint64(e.Data[12:])
	if e.Term != v || e.AppendedAt != int64(index) || e.Type != uint8(index) || string(e.Extensions) != extensions(index) {
		return 0, fmt.Errorf("entry %d: fields %d %d %d %q", index, e.Term, e.AppendedAt, e.Type, e.Extensions)
	}
	return v, nil
}

// versionOf is parseEntryOfTest for tests that end with a wrong entry.
func versionOf(t testing.TB, index uint64, e Entry) uint64 {
	t.Helper()
	v, err := parseEntryOfTest(index, e)
	must(t, err)
	return v
}

func extensions(index uint64) string { return strings.Repeat("x", int(index%3)) }

func entry(index, version uint64, size int) Entry {
	return Entry{
		Index: index, Term: version, Type: uint8(index), AppendedAt: int64(index), Extensions: []byte(extensions(index)),
		Data: payload(index, version, size),
	}
}

func entries(first uint64, n int, version uint64, size int) []Entry {
	out := make([]Entry, n)
	for i := range out {
		out[i] = entry(first+uint64(i), version, size)
	}
	return out
}

func checkRange(t testing.TB, w *WAL, first, last, version uint64) {
	t.Helper()
	if f, l := w.FirstIndex(), w.LastIndex(); f != first || l != last {
		t.Fatalf("log holds %d..%d, want %d..%d", f, l, first, last)
	}
	if first == 0 {
		return
	}
	for i := first; i <= last; i++ {
		e, err := w.Read(i)
		must(t, err)
		if v := versionOf(t, i, e); version != 0 && v != version {
			t.Fatalf("entry %d has version %d, want %d", i, v, version)
		}
	}
	for _, i := range []uint64{first - 1, last + 1} {
		if _, err := w.Read(i); !errors.Is(err, ErrNotFound) {
			t.Fatalf("read %d: %v", i, err)
		}
	}
}

func crashed(m *fsx.Mem, percent int) *fsx.Mem {
	return m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(9, 9))})
}

func TestEntriesAreThereAfterAnyCrash(t *testing.T) {
	m := fsx.NewMem()
	w, rec := mustOpen(t, testOptions(m))
	if !rec.Fresh {
		t.Fatal("not fresh")
	}
	for i := range 200 {
		must(t, w.Append(entries(uint64(10*i+1), 10, 1, 500)))
	}
	checkRange(t, w, 1, 2000, 1)
	if s := w.Metrics().Segments; s < 4 {
		t.Fatalf("%d segments", s)
	}
	w2, rec := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, w2, 1, 2000, 1)
	if rec.Clean || rec.Cut != nil || rec.Last != 2000 {
		t.Fatalf("%+v", rec)
	}
	must(t, w.Close())
	w3, rec := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, w3, 1, 2000, 1)
	if !rec.Clean {
		t.Fatalf("%+v", rec)
	}
	must(t, w3.Append(entries(2001, 1, 1, 5)))
	must(t, w3.Close())
	if err := w3.Append(entries(2002, 1, 1, 5)); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestAnIndexBelowTheLastDropsEverythingFromItOn(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 300, 1, 2000)))
	must(t, w.Append(entries(100, 50, 2, 10)))
	check := func(w *WAL) {
		t.Helper()
		if l := w.LastIndex(); l != 149 {
			t.Fatalf("last %d", l)
		}
		for i := uint64(1); i < 150; i++ {
			e, err := w.Read(i)
			must(t, err)
			if v, want := versionOf(t, i, e), uint64(1+i/100); v != want {
				t.Fatalf("entry %d: version %d", i, v)
			}
		}
	}
	check(w)
	w, _ = mustOpen(t, testOptions(crashed(m, 0)))
	check(w)
	must(t, w.TruncateBack(120))
	must(t, w.TruncateBack(500))
	if l := w.LastIndex(); l != 119 {
		t.Fatal(l)
	}
	must(t, w.TruncateBack(1))
	checkRange(t, w, 0, 0, 0)
	must(t, w.Append(entries(1, 5, 3, 1)))
	checkRange(t, w, 1, 5, 3)
}

func TestGapsAreRefusedAndWriteNothing(t *testing.T) {
	w, _ := mustOpen(t, testOptions(fsx.NewMem()))
	must(t, w.Append(entries(7, 3, 1, 1))) // an empty log takes any index
	groups := w.Metrics().Groups
	skip := entries(10, 3, 1, 1)
	skip[2].Index++
	for _, bad := range [][]Entry{entries(11, 1, 1, 1), skip, entries(0, 1, 1, 1)} {
		if err := w.Append(bad); !errors.Is(err, ErrGap) {
			t.Fatal(err)
		}
	}
	if err := w.Append(entries(10, 1, 1, testSegment)); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if w.Metrics().Groups != groups {
		t.Fatal("something was written")
	}
	must(t, w.Append(nil))
	checkRange(t, w, 7, 9, 1)
}

func TestResetMakesAnyIndexNext(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 1000, 1, 1000)))
	must(t, w.Reset(5000))
	checkRange(t, w, 0, 0, 0)
	must(t, w.Append(entries(5000, 10, 2, 10)))
	must(t, w.Upkeep())
	if s := w.Metrics().Segments; s != 1 {
		t.Fatalf("%d segments are kept", s)
	}
	w, _ = mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, w, 5000, 5009, 2)
}

func TestStableValuesOutliveEverySegment(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.SetStable("vote", []byte("a")))
	must(t, w.SetStables([]Stable{{"term", []byte("7")}, {"empty", []byte{}}, {"gone", []byte("x")}}))
	must(t, w.SetStable("gone", nil))
	next := uint64(1)
	for range 20 {
		must(t, w.Append(entries(next, 100, 1, 1000)))
		next += 100
		must(t, w.TruncateFront(next))
	}
	must(t, w.Upkeep())
	mt := w.Metrics()
	if mt.Recycled < 3 || mt.Segments > 3 {
		t.Fatalf("%+v", mt)
	}
	w, _ = mustOpen(t, testOptions(crashed(m, 0)))
	for key, want := range map[string]string{"vote": "a", "term": "7", "empty": ""} {
		if v, ok := w.Stable(key); !ok || string(v) != want {
			t.Errorf("%s: %q %v", key, v, ok)
		}
	}
	if _, ok := w.Stable("gone"); ok {
		t.Error("gone is back")
	}
	if err := w.SetStable("big", make([]byte, testSegment/8)); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
}

func TestTruncateFrontReleasesOnlyAfterASyncedRecord(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 1000, 1, 1000)))
	segments := w.Metrics().Segments
	must(t, w.TruncateFront(900))
	checkRange(t, w, 900, 1000, 1)
	must(t, w.Upkeep())
	if got := w.Metrics().Segments; got != segments {
		t.Fatalf("%d segments of %d: released without a record", got, segments)
	}
	if w2, _ := mustOpen(t, testOptions(crashed(m, 0))); w2.FirstIndex() != 1 {
		t.Fatal(w2.FirstIndex())
	}
	must(t, w.Append(entries(1001, 1, 1, 10)))
	must(t, w.Upkeep())
	if got := w.Metrics().Segments; got >= segments-1 {
		t.Fatalf("%d segments of %d", got, segments)
	}
	w2, _ := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, w2, 900, 1001, 1)
	must(t, w.TruncateFront(1<<40))
	checkRange(t, w, 0, 0, 0)
	must(t, w.Append(entries(1002, 1, 1, 10)))
	checkRange(t, w, 1002, 1002, 1)
}

func TestSurplusSegmentsAreRemovedInSteps(t *testing.T) {
	m := fsx.NewMem()
	truncates, removes := 0, 0
	o := testOptions(fsx.Inject(m, func(op fsx.Op, name string) error {
		switch op {
		case fsx.OpTruncate:
			truncates++
		case fsx.OpRemove:
			removes++
		}
		return nil
	}))
	o.SegmentBytes, o.SpareSegments = 20<<20, 2
	w, _ := mustOpen(t, o)
	must(t, w.Append(entries(1, 70, 1, 1<<20)))
	must(t, w.TruncateFront(70))
	must(t, w.Append(entries(71, 1, 1, 10)))
	must(t, w.Upkeep())
	if mt := w.Metrics(); mt.Segments > 2 || mt.Ready != 2 || mt.Dropped == 0 || int(mt.Dropped) != removes {
		t.Fatalf("%+v, %d removes", mt, removes)
	}
	if truncates < 2*removes {
		t.Fatalf("%d truncations for %d removals", truncates, removes)
	}
	names, _ := m.List("wal")
	if len(names) > 4 {
		t.Fatal(names)
	}
}

func TestAnEntryOf8MiBFitsTheDefaults(t *testing.T) {
	o := Options{FS: fsx.NewMem(), Dir: "wal", Inline: true, ReadySegments: 1}
	w, _ := mustOpen(t, o)
	big := make([]byte, 8<<20)
	for i := range uint64(10) {
		must(t, w.Append([]Entry{{Index: 2*i + 1, Data: big}, {Index: 2*i + 2, Data: big}}))
	}
	e, err := w.Read(1)
	if err != nil || len(e.Data) != len(big) {
		t.Fatal(err)
	}
	must(t, w.Close())
}

func TestAFailedWriteOrSyncPoisonsTheLogForGood(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpWrite, fsx.OpSync} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			t.Run(fmt.Sprint(op, " ", cause), func(t *testing.T) {
				m := fsx.NewMem()
				failing := false
				o := testOptions(fsx.Inject(m, func(o fsx.Op, _ string) error {
					if failing && o == op {
						return cause
					}
					return nil
				}))
				var told error
				o.Events.Poisoned = func(err error) { told = err }
				w, _ := mustOpen(t, o)
				must(t, w.Append(entries(1, 10, 1, 100)))
				must(t, w.SetStable("k", []byte("v")))
				failing = true
				if err := w.Append(entries(11, 10, 1, 100)); !errors.Is(err, ErrPoisoned) || !errors.Is(err, cause) {
					t.Fatal(err)
				}
				failing = false
				for _, err := range []error{
					w.Append(entries(11, 1, 1, 1)), w.TruncateBack(3), w.SetStable("k", nil), w.Reset(4), w.Poisoned(), told,
				} {
					if !errors.Is(err, ErrPoisoned) {
						t.Fatal(err)
					}
				}
				checkRange(t, w, 1, 10, 1)
				must(t, w.Close())
				w, _ = mustOpen(t, testOptions(crashed(m, 0)))
				checkRange(t, w, 1, 10, 1)
			})
		}
	}
}

func TestAfterAFailedSyncRecoveryWritesTheTailOnceMore(t *testing.T) {
	// The page cache shows what a failed sync left off the disk. Whoever reopens the log on the same machine sees it,
	// and must not build on it without writing it.
	m := fsx.NewMem()
	failing := false
	w, _ := mustOpen(t, testOptions(fsx.Inject(m, func(o fsx.Op, _ string) error {
		if failing && o == fsx.OpSync {
			return syscall.EIO
		}
		return nil
	})))
	must(t, w.Append(entries(1, 10, 1, 100)))
	failing = true
	if err := w.Append(entries(11, 10, 1, 100)); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	writes := 0
	same := fsx.Inject(m, func(o fsx.Op, _ string) error {
		if o == fsx.OpWrite {
			writes++
		}
		return nil
	})
	w2, rec := mustOpen(t, testOptions(same))
	if rec.Last != 20 || writes == 0 {
		t.Fatalf("%+v, %d writes", rec, writes)
	}
	w3, _ := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, w3, 1, w2.LastIndex(), 1)
}

func TestAFullDiskRefusesAndRecoversWithoutAReopen(t *testing.T) {
	m := fsx.NewMem()
	full := false
	w, _ := mustOpen(t, testOptions(fsx.Inject(m, func(op fsx.Op, _ string) error {
		if full && op == fsx.OpPreallocate {
			return syscall.ENOSPC
		}
		return nil
	})))
	if room, err := w.Room(); room == 0 || room > testSegment || err != nil {
		t.Fatal("before any upkeep", room, err)
	}
	must(t, w.Upkeep())
	if room, err := w.Room(); room != math.MaxInt64 || err != nil {
		t.Fatal(room, err)
	}
	full = true
	last, left := uint64(0), int64(math.MaxInt64)
	for {
		room, cause := w.Room()
		if room > left || cause != nil && (!errors.Is(cause, ErrNoSegment) || !errors.Is(cause, syscall.ENOSPC)) {
			t.Fatalf("room for %d after %d: %v", room, left, cause)
		}
		left = room
		err := w.Append(entries(last+1, 1, 1, 20_000))
		if err != nil && room >= 24<<10 {
			t.Fatalf("room for %d, and an entry of 20,000 bytes got %v", room, err)
		}
		if err != nil {
			if !errors.Is(err, ErrNoSegment) || !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			break
		}
		if last++; last > 1000 {
			t.Fatal("never full")
		}
	}
	checkRange(t, w, 1, last, 1)
	if room, err := w.Room(); room >= 24<<10 || !errors.Is(err, ErrNoSegment) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(room, err)
	}
	full = false
	must(t, w.Append(entries(last+1, 20, 1, 20_000)))
	checkRange(t, w, 1, last+20, 1)
	must(t, w.Upkeep())
	if room, err := w.Room(); room != math.MaxInt64 || err != nil {
		t.Fatal(room, err)
	}
	names, _ := m.List("wal")
	for _, n := range names {
		if n == prepareName {
			t.Fatal("the unfinished segment was left")
		}
	}
}

// A full disk gets back what the log can do without: removed segments first, then spare ones.
func TestAFullDiskGetsSpareSegmentsBack(t *testing.T) {
	m := fsx.NewMem()
	o := testOptions(m)
	o.ReadySegments, o.SpareSegments = 1, 8
	w, _ := mustOpen(t, o)
	must(t, w.Append(entries(1, 80, 1, 20_000)))
	must(t, w.TruncateFront(80))
	must(t, w.Append(entries(81, 1, 1, 10)))
	must(t, w.Upkeep())
	before := w.Metrics()
	if before.Ready < 4 {
		t.Fatalf("%d ready", before.Ready)
	}
	w.Shed()
	must(t, w.Upkeep())
	after := w.Metrics()
	if after.Ready != 1 || after.Dropped-before.Dropped != int64(before.Ready-1) {
		t.Fatalf("%d ready, %d dropped", after.Ready, after.Dropped-before.Dropped)
	}
	must(t, w.Append(entries(82, 40, 1, 20_000)))
	checkRange(t, w, 80, 121, 1)
	must(t, w.Close())
	w, _ = mustOpen(t, testOptions(crashed(m, 0)))
	if w.LastIndex() != 121 {
		t.Fatal(w.LastIndex())
	}
}

func TestAReadErrorIsNotATornWrite(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 10, 1, 100)))
	before := snapshot(t, m)
	_, _, err := Open(testOptions(fsx.Inject(m, func(op fsx.Op, _ string) error {
		if op == fsx.OpRead {
			return syscall.EIO
		}
		return nil
	})))
	if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) || snapshot(t, m) != before {
		t.Fatal(err)
	}
}

func TestPoisonDuringAWriteMakesItsResultUnknown(t *testing.T) {
	m := fsx.NewMem()
	var w *WAL
	hung := false
	w, _ = mustOpen(t, testOptions(fsx.Inject(m, func(op fsx.Op, _ string) error {
		if hung && op == fsx.OpSync {
			if _, ok := w.WriteStarted(); !ok {
				t.Error("the write in flight is not seen")
			}
			w.Poison(errors.New("gave up"))
			hung = false
		}
		return nil
	})))
	must(t, w.Append(entries(1, 1, 1, 1)))
	hung = true
	if err := w.Append(entries(2, 1, 1, 1)); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	if _, ok := w.WriteStarted(); ok || w.LastIndex() != 1 {
		t.Fatal("published")
	}
}

func TestTheBackgroundKeepsUpWhileReadersRead(t *testing.T) {
	m := fsx.NewMem()
	o := testOptions(m)
	o.Inline, o.Pace, o.CacheBytes = false, time.Microsecond, 64<<10
	w, _ := mustOpen(t, o)
	stop := make(chan struct{})
	done := make(chan error, 2)
	for range 2 {
		go func() {
			for i := uint64(1); ; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				first, last := w.FirstIndex(), w.LastIndex()
				if first == 0 {
					continue
				}
				index := first + i*7919%(last-first+1)
				e, err := w.Read(index)
				if errors.Is(err, ErrNotFound) {
					continue // truncated meanwhile
				}
				if err == nil && (e.Index != index || !bytes.Equal(e.Data, payload(index, e.Term, len(e.Data)-20))) {
					err = fmt.Errorf("entry %d is wrong", index)
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
	}
	next := uint64(1)
	for i := range 400 {
		must(t, w.Append(entries(next, 10, uint64(i), 1000)))
		next += 10
		if i%10 == 9 {
			must(t, w.TruncateFront(next-300))
		}
		if i%50 == 49 {
			must(t, w.TruncateBack(next-5))
			next -= 5
		}
	}
	close(stop)
	for range 2 {
		must(t, <-done)
	}
	must(t, w.Close())
	if mt := w.Metrics(); mt.Recycled < 5 {
		t.Fatalf("%+v", mt)
	}
}

func TestSuffixIndexCountsBytesFromTheEnd(t *testing.T) {
	w, _ := mustOpen(t, testOptions(fsx.NewMem()))
	if w.SuffixIndex(1<<30) != 0 {
		t.Fatal("empty")
	}
	must(t, w.Append(entries(1, 1000, 1, 1000)))
	must(t, w.TruncateFront(10))
	for n, want := range map[int64][2]uint64{0: {1001, 1001}, 1 << 30: {10, 10}, 50_000: {950, 955}, 500_000: {520, 540}} {
		if got := w.SuffixIndex(n); got < want[0] || got > want[1] {
			t.Errorf("%d bytes: %d", n, got)
		}
	}
}

func TestAHungWriteDoesNotHoldUpThoseWhoComeAfterThePoison(t *testing.T) {
	m := fsx.NewMem()
	hang, hung := make(chan struct{}), make(chan struct{})
	armed := false
	w, _ := mustOpen(t, testOptions(fsx.Inject(m, func(op fsx.Op, _ string) error {
		if armed && op == fsx.OpSync {
			armed = false
			close(hung)
			<-hang
		}
		return nil
	})))
	armed = true
	done := make(chan error)
	go func() { done <- w.Append(entries(1, 1, 1, 1)) }()
	<-hung
	waiting := make(chan error)
	go func() { waiting <- w.SetStable("k", []byte("v")) }()
	w.Poison(errors.New("2 s without progress"))
	if err := <-waiting; !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	close(hang)
	if err := <-done; !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	must(t, w.Close())
}

func TestRealDisk(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			o := Options{Dir: t.TempDir(), SegmentBytes: 1 << 20, Direct: direct, Pace: time.Microsecond, CacheBytes: -1}
			w, _ := mustOpen(t, o)
			for i := range uint64(40) {
				must(t, w.Append(entries(10*i+1, 10, 1, 10_000)))
				if i == 20 {
					must(t, w.TruncateFront(101))
				}
			}
			checkRange(t, w, 101, 400, 1)
			must(t, w.SetStable("k", []byte("v")))
			must(t, w.Close())
			w, rec := mustOpen(t, o)
			if !rec.Clean {
				t.Fatalf("%+v", rec)
			}
			checkRange(t, w, 101, 400, 1)
			if v, _ := w.Stable("k"); string(v) != "v" {
				t.Fatal(v)
			}
			must(t, w.Close())
		})
	}
}

func TestAppendAllocatesNothingPerEntry(t *testing.T) {
	o := Options{FS: fsx.NewMem(), Dir: "wal", SegmentBytes: 64 << 20, Inline: true, ReadySegments: 1, CacheBytes: 1 << 20}
	o.FS = nullFS{o.FS}
	w, _ := mustOpen(t, o)
	batch := make([]Entry, 1000)
	next := uint64(1)
	data := make([]byte, 100)
	allocs := testing.AllocsPerRun(50, func() {
		for i := range batch {
			batch[i] = Entry{Index: next, Data: data}
			next++
		}
		must(t, w.Append(batch))
	})
	if allocs > 20 {
		t.Fatalf("%v allocations for %d entries", allocs, len(batch))
	}
	must(t, w.Close())
}

// snapshot renders every byte of the log's directory.
func snapshot(t testing.TB, fs fsx.FS) string {
	t.Helper()
	names, err := fs.List("wal")
	must(t, err)
	var out strings.Builder
	buf := make([]byte, 16<<10)
	for _, n := range names {
		f, err := fs.Open("wal/" + n)
		must(t, err)
		sum := crc32.New(castagnoli)
		size, err := io.CopyBuffer(sum, struct{ io.Reader }{f}, buf) // thousands of logs are looked at: no file in memory
		must(t, err)
		must(t, f.Close())
		fmt.Fprintf(&out, "%s %d %08x\n", n, size, sum.Sum32())
	}
	return out.String()
}

func readFile(t testing.TB, fs fsx.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open("wal/" + name)
	must(t, err)
	defer f.Close()
	fi, err := f.Stat()
	must(t, err)
	b := make([]byte, fi.Size())
	if len(b) > 0 {
		_, err = f.ReadAt(b, 0)
		must(t, err)
	}
	return b
}

func TestUnsyncedEntriesOutliveTheProcessAndAreSyncedSoon(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 3, 1, 100)))
	must(t, w.AppendUnsynced(entries(4, 3, 1, 100)))
	checkRange(t, w, 1, 6, 1)
	lost, _ := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, lost, 1, 3, 1) // a power cut
	kept, _ := mustOpen(t, testOptions(crashed(m, 100)))
	checkRange(t, kept, 1, 6, 1) // the death of the process

	must(t, w.SyncTo(5)) // syncs all there is
	synced, _ := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, synced, 1, 6, 1)

	must(t, w.AppendUnsynced(entries(7, 1, 1, 100)))
	must(t, w.SetStable("term", []byte("2"))) // so does any synced write
	synced, _ = mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, synced, 1, 7, 1)
	if got := w.Metrics(); got.Unsynced != 2 || got.Syncs != 1 {
		t.Errorf("%d groups unsynced, %d syncs for them", got.Unsynced, got.Syncs)
	}
	must(t, w.AppendUnsynced(entries(8, 1, 1, 100)))
	must(t, w.Close()) // and so does the end
	synced, rec := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, synced, 1, 8, 1)
	if !rec.Clean {
		t.Error("not closed in order")
	}
}

func TestTheGoroutineSyncsWhatIsUnsynced(t *testing.T) {
	m := fsx.NewMem()
	o := testOptions(m)
	o.Inline, o.SyncWithin = false, time.Millisecond
	w, _ := mustOpen(t, o)
	for i := range uint64(20) {
		must(t, w.AppendUnsynced(entries(i+1, 1, 1, 100)))
		for w.syncedIndex.Load() <= i {
			time.Sleep(100 * time.Microsecond)
		}
		again, _ := mustOpen(t, testOptions(crashed(m, 0)))
		checkRange(t, again, 1, i+1, 1)
	}
	must(t, w.Close())
}

func TestSegmentsAreNotTakenBackByAnUnsyncedRecord(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	next := uint64(1)
	for w.Metrics().Segments < 3 {
		must(t, w.AppendUnsynced(entries(next, 4, 1, 4000)))
		next += 4
	}
	must(t, w.TruncateFront(next))
	must(t, w.AppendUnsynced(entries(next, 1, 1, 10)))
	must(t, w.Upkeep())
	if got := w.Metrics(); got.Segments != 3 {
		t.Fatalf("%d of 3 segments are left", got.Segments)
	}
	again, _ := mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, again, 1, again.LastIndex(), 1)
	must(t, w.SyncTo(next))
	must(t, w.Upkeep())
	if got := w.Metrics(); got.Segments != 1 {
		t.Errorf("%d segments are left, want 1", got.Segments)
	}
	again, _ = mustOpen(t, testOptions(crashed(m, 0)))
	checkRange(t, again, next, next, 1)
}

// The kernel tells one of two syncs that a page was not written. Neither may pass.
func TestAFailedSyncOfUnsyncedEntriesPoisons(t *testing.T) {
	m := fsx.NewMem()
	fail := false
	boom := errors.New("boom")
	w, _ := mustOpen(t, testOptions(fsx.Inject(m, func(op fsx.Op, _ string) error {
		if fail && op == fsx.OpSync {
			fail = false
			return boom
		}
		return nil
	})))
	must(t, w.AppendUnsynced(entries(1, 1, 1, 100)))
	fail = true
	if err := w.SyncTo(1); !errors.Is(err, ErrPoisoned) || !errors.Is(err, boom) {
		t.Fatalf("SyncTo: %v", err)
	}
	for _, err := range []error{w.SyncTo(1), w.Append(entries(2, 1, 1, 1)), w.AppendUnsynced(entries(2, 1, 1, 1))} {
		if !errors.Is(err, ErrPoisoned) {
			t.Errorf("after a failed sync: %v", err)
		}
	}
}

func TestSegmentsAreMadeAheadWhileThereIsPlentyOfRoom(t *testing.T) {
	for _, c := range []struct {
		free uint64
		want int
	}{{1 << 40, 4}, {plenty * testSegment, 4}, {plenty*testSegment - 1, 2}} {
		o := testOptions(roomy{fsx.NewMem(), c.free})
		o.Inline, o.Pace = false, time.Microsecond
		w, _ := mustOpen(t, o)
		for deadline := time.Now().Add(time.Minute); w.Metrics().Ready < c.want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("with %d bytes free %d segments are ready, want %d", c.free, w.Metrics().Ready, c.want)
			}
		}
		must(t, w.Upkeep())
		if got := w.Metrics().Ready; got != c.want {
			t.Errorf("with %d bytes free %d segments are ready, want %d", c.free, got, c.want)
		}
		must(t, w.Close())
	}
}

// A roomy disk has so many bytes free, whatever is on it.
type roomy struct {
	fsx.FS
	free uint64
}

func (r roomy) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: r.free, TotalBytes: 1 << 50}, nil
}
