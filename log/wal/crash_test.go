package wal

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/headrace/headrace/internal/fsx"
)

var (
	crashSeed   = flag.Uint64("wal.seed", 1, "first seed of the crash test")
	crashStates = flag.Int("wal.states", 2500, "crash states that the crash test looks at")
)

// A model is what the log must hold: the version of each entry, the stable values, and the lowest index that may be
// missing.
type model struct {
	first, last uint64
	versions    map[uint64]uint64
	stable      map[string]string
}

func (m model) clone() model {
	m.versions, m.stable = maps.Clone(m.versions), maps.Clone(m.stable)
	return m
}

func (m model) append(first uint64, n int, version uint64) model {
	m = m.clone()
	if m.first == 0 || m.first > m.last {
		m.first = first
	}
	for i := range uint64(n) {
		m.versions[first+i] = version
	}
	m.last = first + uint64(n) - 1
	return m
}

// matches reports how the log differs from the model, "" if it does not. The log may still hold entries below first,
// and then they must be right, too.
func (m model) matches(t testing.TB, w *WAL, exactFirst bool) string {
	first, last := w.FirstIndex(), w.LastIndex()
	if m.first > m.last || m.last == 0 {
		switch {
		case first == 0:
		case exactFirst || last != m.last:
			return fmt.Sprintf("holds %d..%d, want none up to %d", first, last, m.last)
		}
	} else if last != m.last || first == 0 || first > m.first || exactFirst && first != m.first {
		return fmt.Sprintf("holds %d..%d, want %d..%d", first, last, m.first, m.last)
	}
	for i := first; i <= last && i > 0; i++ {
		e, err := w.Read(i)
		if err != nil {
			t.Fatalf("read %d of %d..%d: %v", i, first, last, err)
		}
		if v := versionOf(t, i, e); v != m.versions[i] {
			return fmt.Sprintf("entry %d has version %d, want %d", i, v, m.versions[i])
		}
	}
	got := map[string]string{}
	for _, k := range stableKeys {
		if v, ok := w.Stable(k); ok {
			got[k] = string(v)
		}
	}
	if !maps.Equal(got, m.stable) {
		return fmt.Sprintf("stable values %v, want %v", got, m.stable)
	}
	return ""
}

var stableKeys = []string{"term", "vote", "other"}

// A crasher drives a log with random operations and looks at what crashes would leave of it.
type crasher struct {
	t      *testing.T
	rng    *rand.Rand
	disk   *fsx.Mem
	w      *WAL
	now    model
	may    []model // what else a crash during the operation in flight may leave
	loose  []model // and what it may leave because now is not synced
	states int
	armed  bool
	direct bool // writes past the page cache
	torn   int
}

func (c *crasher) options(fs fsx.FS) Options {
	o := testOptions(fs)
	o.SegmentBytes = 128 << 10
	o.MaxGroupBytes = 48 << 10
	o.CacheBytes = 40 << 10
	o.SpareSegments = 3
	o.LogID, o.Direct = 0, c.direct
	return o
}

// hooked is the disk that looks at a crash before some of its changes.
func (c *crasher) hooked() fsx.FS {
	return fsx.Inject(c.disk, func(op fsx.Op, _ string) error {
		switch op {
		case fsx.OpRead, fsx.OpList, fsx.OpStat, fsx.OpOpen, fsx.OpPreallocate:
		default:
			if c.armed && c.rng.IntN(6) == 0 {
				c.armed = false
				c.look(c.disk)
				c.armed = true
			}
		}
		return nil
	})
}

func (c *crasher) clone(m *fsx.Mem) *fsx.Mem {
	return m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * c.rng.IntN(3), RNG: c.rng})
}

// look checks the states that a crash of m right now may leave.
func (c *crasher) look(m *fsx.Mem) {
	crashed := c.clone(m)

	// A crash while recovering, looked at below: recovery of a recovery.
	var inner []*fsx.Mem
	scratch := crashed.CrashClone(vfs.CrashCloneCfg{})
	w := c.recover(fsx.Inject(scratch, func(op fsx.Op, _ string) error {
		switch op {
		case fsx.OpWrite, fsx.OpSync, fsx.OpSyncDir, fsx.OpRename, fsx.OpCreate, fsx.OpTruncate, fsx.OpRemove:
			if c.rng.IntN(4) == 0 && len(inner) < 1 {
				inner = append(inner, c.clone(scratch))
			}
		}
		return nil
	}))
	c.check(w)

	// A second recovery finds the bytes that the first one left, and changes none of them.
	after := snapshot(c.t, scratch)
	again := scratch.CrashClone(vfs.CrashCloneCfg{})
	w2 := c.recover(again)
	c.check(w2)
	if got := snapshot(c.t, again); got != after {
		c.t.Fatalf("state %d: a second recovery changed the log from\n%s to\n%s", c.states, after, got)
	}
	// The recovered log works.
	if c.rng.IntN(4) == 0 {
		next := w2.LastIndex() + 1
		must(c.t, w2.Append(entries(next, 3, 1<<40, 100)))
		w3 := c.recover(again.CrashClone(vfs.CrashCloneCfg{}))
		if w3.LastIndex() != next+2 {
			c.t.Fatalf("state %d: an append after the recovery is lost", c.states)
		}
		c.discard(w3)
	}
	c.discard(w2)
	c.discard(w)
	for _, m := range inner {
		w := c.recover(m)
		c.check(w)
		c.discard(w)
	}
}

func (c *crasher) recover(fs fsx.FS) *WAL {
	c.states++
	w, rec, err := Open(c.options(fs))
	if err != nil {
		c.t.Fatalf("state %d: %v\nwant %d..%d\n%s", c.states, err, c.now.first, c.now.last, c.disk)
	}
	if rec.Cut != nil {
		c.torn++
	}
	return w
}

// discard gives back what a log holds without writing anything.
func (c *crasher) discard(w *WAL) {
	w.Poison(errors.New("crashed"))
	must(c.t, w.Close())
}

// check returns which of the models that a crash may leave the log is.
func (c *crasher) check(w *WAL) model {
	why := []string{}
	for _, m := range slices.Concat([]model{c.now}, c.may, c.loose) {
		reason := m.matches(c.t, w, false)
		if reason == "" {
			return m
		}
		why = append(why, reason)
	}
	c.t.Fatalf("state %d: the log is none of what it may be: %q", c.states, why)
	return model{}
}

// during runs one operation that ends synced, which moves the model to after, through any of between.
func (c *crasher) during(between []model, after model, op func() error) {
	c.unsynced(between, after, op)
	c.loose = nil
}

// unsynced is during for an operation after which a crash may still leave what was there before, back to the last
// synced one.
func (c *crasher) unsynced(between []model, after model, op func() error) {
	c.may = append(between, after)
	if err := op(); err != nil {
		c.t.Fatal(err)
	}
	c.loose = slices.Concat(c.loose, []model{c.now}, between)
	c.now, c.may = after, nil
	if reason := c.now.matches(c.t, c.w, true); reason != "" && c.rng.IntN(8) == 0 {
		c.t.Fatal(reason)
	}
}

func (c *crasher) step(version uint64) {
	m := c.now
	switch p := c.rng.IntN(100); {
	case p < 70:
		first := m.last + 1
		if p < 12 && m.last >= m.first && m.first > 0 {
			first = m.last - c.rng.Uint64N(min(m.last-m.first+1, 20)) // drops what is there
		}
		n := 1 + c.rng.IntN(8)
		if m.last == 0 {
			first = 1 + c.rng.Uint64N(50)
		}
		var batch []Entry
		var between []model
		for i := range n {
			size := c.rng.IntN(300)
			if c.rng.IntN(10) == 0 {
				size = c.rng.IntN(20_000)
			}
			batch = append(batch, entry(first+uint64(i), version, size))
			between = append(between, m.append(first, i+1, version)) // several groups: a prefix may be there
		}
		if c.rng.IntN(3) == 0 && first == m.last+1 {
			c.unsynced(between, between[n-1], func() error { return c.w.AppendUnsynced(batch) })
			return
		}
		if c.rng.IntN(8) == 0 && m.last > 0 {
			c.during(nil, m, func() error { return c.w.SyncTo(m.last) })
		}
		c.during(between, between[n-1], func() error { return c.w.Append(batch) })
	case p < 76:
		if m.last < m.first || m.last == 0 {
			return
		}
		index := m.last + 1 - c.rng.Uint64N(min(m.last-m.first+1, 10))
		after := m.clone()
		after.last = index - 1
		end := c.during
		if index > m.last {
			end = c.unsynced // nothing to do
		}
		end(nil, after, func() error { return c.w.TruncateBack(index) })
	case p < 84:
		if m.last < m.first || m.last == 0 {
			return
		}
		index := m.first + c.rng.Uint64N(m.last-m.first+2)
		after := m.clone()
		after.first = index
		c.unsynced(nil, after, func() error { return c.w.TruncateFront(index) })
	case p < 92:
		key, value := stableKeys[c.rng.IntN(len(stableKeys))], fmt.Sprint(version)
		after := m.clone()
		after.stable[key] = value
		c.during(nil, after, func() error { return c.w.SetStable(key, []byte(value)) })
	case p < 93:
		index := m.last + 1 + c.rng.Uint64N(100)
		after := model{first: index, last: index - 1, versions: map[uint64]uint64{}, stable: m.stable}
		c.during(nil, after, func() error { return c.w.Reset(index) })
	case p < 97:
		c.unsynced(nil, m, c.w.Upkeep)
	default: // close or crash, and go on with what is there
		if c.rng.IntN(2) == 0 {
			must(c.t, c.w.Close())
			c.loose = nil
		} else {
			c.discard(c.w)
		}
		c.disk = c.clone(c.disk)
		w, _, err := Open(c.options(c.hooked()))
		must(c.t, err)
		c.w = w
		c.now = c.check(w).clone()
		c.loose = nil // recovery has synced what it found
		if f := w.FirstIndex(); f != 0 {
			c.now.first = f
		}
	}
}

// TestEveryCrashStateRecovers looks at crashes before random changes of the disk: everything acknowledged is there,
// nothing is invented, recovering again changes nothing, and a crash while recovering does no harm.
func TestEveryCrashStateRecovers(t *testing.T) {
	total, torn, want := 0, 0, *crashStates
	if raceEnabled { // with the 500 of the store still over 2,000
		want = want * 16 / 25
	}
	for seed := *crashSeed; total < want; seed++ {
		c := &crasher{
			t: t, rng: rand.New(rand.NewPCG(seed, 7)), disk: fsx.NewMem(),
			now: model{versions: map[uint64]uint64{}, stable: map[string]string{}},
		}
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			c.t = t
			c.armed, c.direct = true, seed%4 == 3
			w, _, err := Open(c.options(c.hooked()))
			must(t, err)
			c.w = w
			for i := range 100 {
				c.step(uint64(i + 1))
			}
			c.armed = false
			c.discard(c.w)
		})
		if !ok {
			t.Fatalf("replay with -wal.seed=%d -wal.states=1", seed)
		}
		total += c.states
		torn += c.torn
	}
	if torn == 0 {
		t.Error("no state had a torn group")
	}
	t.Logf("%d states, %d with a torn group", total, torn)
	if total < want {
		t.Errorf("only %d crash states, want %d", total, want)
	}
}

// damageLog makes a log of a few segments whose last group is proven by a mark of an ordered close.
func damageLog(t testing.TB) *fsx.Mem {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	next := uint64(1)
	for i := range 25 {
		n := 1 + i%4
		must(t, w.Append(entries(next, n, 1, 100+i*200)))
		next += uint64(n)
		if i%5 == 0 {
			must(t, w.SetStable("k", []byte(fmt.Sprint(i))))
		}
		if i == 15 {
			must(t, w.Append(entries(next, 3, 1, 60_000)))
			next += 3
		}
	}
	must(t, w.Close())
	return m
}

// TestAFlippedBitIsNeverCutOffOrServed flips bits all over the synced part of a log. Damage that matters is reported
// with its place; the rest (padding, unused bytes) leaves the log as it was.
func TestAFlippedBitIsNeverCutOffOrServed(t *testing.T) {
	m := damageLog(t)
	w, rec := mustOpen(t, testOptions(m.CrashClone(vfs.CrashCloneCfg{})))
	last := w.LastIndex()
	must(t, w.Close())
	if !rec.Clean || rec.Segments < 2 {
		t.Fatalf("%+v", rec)
	}
	rng := rand.New(rand.NewPCG(3, 3))
	found, harmless, flips := 0, 0, 200
	if raceEnabled {
		flips = 30
	}
	for seq := uint64(1); seq <= uint64(rec.Segments); seq++ {
		whole := readFile(t, m, segmentName(seq))
		end := usedBytes(whole)
		if seq == uint64(rec.Segments) {
			end -= blockSize // the mark of the close has nothing behind it that proves it
		}
		positions := map[int]bool{}
		for range flips {
			positions[rng.IntN(end)] = true
		}
		for at := 0; at < end; at += blockSize {
			if bytes.HasPrefix(whole[at:], []byte("HRWL")) {
				step := 5
				if raceEnabled {
					step = 25
				}
				for i := rng.IntN(step); i < headerSize+20; i += step {
					positions[at+i] = true
				}
			}
		}
		for _, pos := range slices.Sorted(maps.Keys(positions)) {
			damaged := m.CrashClone(vfs.CrashCloneCfg{})
			f, err := damaged.OpenFile("wal/" + segmentName(seq))
			must(t, err)
			_, err = f.WriteAt([]byte{whole[pos] ^ 1<<rng.IntN(8)}, int64(pos))
			must(t, err)
			before := snapshot(t, damaged)
			w, _, err := Open(testOptions(damaged))
			var ce *CorruptError
			switch {
			case err == nil:
				harmless++
				checkRange(t, w, 1, last, 1)
				if v, _ := w.Stable("k"); string(v) != "20" {
					t.Fatalf("segment %d byte %d: stable value %q", seq, pos, v)
				}
				w.Poison(errors.New("done"))
				must(t, w.Close())
			case !errors.As(err, &ce) || !errors.Is(err, ErrCorrupt):
				t.Fatalf("segment %d byte %d: %v", seq, pos, err)
			case ce.Segment != seq || ce.Position > int64(pos) || ce.Position < int64(pos)-200<<10:
				t.Fatalf("segment %d byte %d reported as %v", seq, pos, err)
			case snapshot(t, damaged) != before:
				t.Fatal("a damaged log was changed")
			default:
				found++
			}
		}
	}
	t.Logf("%d found, %d harmless", found, harmless)
	if found < flips {
		t.Fatal("too few found")
	}
}

// usedBytes is where the last group of a segment ends.
func usedBytes(b []byte) int {
	end := 0
	for at := 0; at < len(b); at += blockSize {
		if h, ok := parseHeader(b[at:]); ok {
			end = at + int(h.size())
		}
	}
	return end
}

func TestDamageOnTheDiskIsFoundByRead(t *testing.T) {
	m := fsx.NewMem()
	o := testOptions(m)
	o.CacheBytes = -1
	w, _ := mustOpen(t, o)
	must(t, w.Append(entries(1, 3, 1, 1000)))
	_, l, _ := w.mu.find(2)
	f, err := m.OpenFile("wal/" + segmentName(1))
	must(t, err)
	_, err = f.WriteAt([]byte("?"), int64(l.pos)+200)
	must(t, err)
	var ce *CorruptError
	if _, err := w.Read(2); !errors.As(err, &ce) || ce.Position != int64(l.pos) {
		t.Fatal(err)
	}
	if _, err := w.Read(3); err != nil {
		t.Fatal(err)
	}
}

func TestAMissingFileIsNoticed(t *testing.T) {
	build := func() (*fsx.Mem, int) {
		m := fsx.NewMem()
		w, _ := mustOpen(t, testOptions(m))
		must(t, w.Append(entries(1, 1000, 1, 1000)))
		n := w.Metrics().Segments
		must(t, w.Upkeep()) // ready segments follow the last one
		must(t, w.Close())
		return m, n
	}
	_, n := build()
	for seq := 1; seq <= n; seq++ {
		m, _ := build()
		must(t, m.Remove("wal/"+segmentName(uint64(seq))))
		if _, _, err := Open(testOptions(m)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("segment %d of %d: %v", seq, n, err)
		}
	}
	m, _ := build()
	f, err := m.OpenFile("wal/" + segmentName(2))
	must(t, err)
	must(t, f.Truncate(testSegment/2))
	if _, _, err := Open(testOptions(m)); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestACheckpointProvesThatTheTailWasSynced(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 10, 1, 100)))
	must(t, w.Append(entries(11, 10, 1, 100)))
	f, err := m.OpenFile("wal/" + segmentName(1))
	must(t, err)
	_, l, _ := w.mu.find(15)
	_, err = f.WriteAt([]byte("?"), int64(l.pos)+60)
	must(t, err)
	o := testOptions(m)
	o.SyncedIndex = 15
	var ce *CorruptError
	if _, _, err := Open(o); !errors.As(err, &ce) || ce.Segment != 1 {
		t.Fatal(err)
	}
	o.SyncedIndex = 10
	w, rec := mustOpen(t, o)
	if rec.Cut == nil || w.LastIndex() != 10 {
		t.Fatalf("%+v", rec)
	}
}

func TestALogInsideARecordIsNotTakenForTheLog(t *testing.T) {
	// A record that carries the bytes of another log, at the same place: after a torn write nothing in it may count
	// as a proof.
	other := fsx.NewMem()
	o := testOptions(other)
	o.LogID = 99
	w, _ := mustOpen(t, o)
	for i := range uint64(20) {
		must(t, w.Append(entries(i+1, 1, 1, 1000)))
	}
	evil := readFile(t, other, segmentName(1))[2*blockSize : 20*blockSize]

	m := fsx.NewMem()
	w, _ = mustOpen(t, testOptions(m))
	lead := blockSize - headerSize - entrySize
	must(t, w.Append([]Entry{{Index: 1, Term: 1, Data: append(make([]byte, lead), evil...)}}))
	_, l, _ := w.mu.find(1)
	f, err := m.OpenFile("wal/" + segmentName(1))
	must(t, err)
	_, err = f.WriteAt([]byte("?"), int64(l.pos)+50)
	must(t, err)
	w, rec := mustOpen(t, testOptions(m))
	if rec.Cut == nil || w.LastIndex() != 0 {
		t.Fatalf("%+v", rec)
	}
}
