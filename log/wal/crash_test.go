package wal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/crash"
	"github.com/headrace/headrace/internal/fsx"
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

// read returns what a log holds.
func read(w *WAL) (m model, err error) {
	m = model{first: w.FirstIndex(), last: w.LastIndex(), versions: map[uint64]uint64{}, stable: map[string]string{}}
	for i := m.first; i <= m.last && i > 0; i++ {
		e, err := w.Read(i)
		if err != nil {
			return m, fmt.Errorf("read %d of %d..%d: %w", i, m.first, m.last, err)
		}
		if m.versions[i], err = parseEntryOfTest(i, e); err != nil {
			return m, err
		}
	}
	for _, k := range stableKeys {
		if v, ok := w.Stable(k); ok {
			m.stable[k] = string(v)
		}
	}
	return m, nil
}

// differs reports how a log that holds got differs from the model, "" if it does not. The log may still hold entries
// below first, and then they must be right, too.
func (m model) differs(got model, exactFirst bool) string {
	if m.first > m.last || m.last == 0 {
		switch {
		case got.first == 0:
		case exactFirst || got.last != m.last:
			return fmt.Sprintf("holds %d..%d, want none up to %d", got.first, got.last, m.last)
		}
	} else if got.last != m.last || got.first == 0 || got.first > m.first || exactFirst && got.first != m.first {
		return fmt.Sprintf("holds %d..%d, want %d..%d", got.first, got.last, m.first, m.last)
	}
	for i, v := range got.versions {
		if v != m.versions[i] {
			return fmt.Sprintf("entry %d has version %d, want %d", i, v, m.versions[i])
		}
	}
	if !maps.Equal(got.stable, m.stable) {
		return fmt.Sprintf("stable values %v, want %v", got.stable, m.stable)
	}
	return ""
}

var stableKeys = []string{"term", "vote", "other"}

// An allowed is a mark in a recording: what the log may be if it crashes from here on.
type allowed struct {
	step   int
	done   bool
	models []model
}

func (a allowed) String() string { return fmt.Sprint(a.step, a.done) }

// check returns which of the models the log is.
func (a allowed) check(got model) (model, error) {
	var why []string
	for _, m := range a.models {
		reason := m.differs(got, false)
		if reason == "" {
			return m, nil
		}
		why = append(why, reason)
	}
	return model{}, fmt.Errorf("after step %v the log is none of what it may be: %q", a, why)
}

// A crasher drives a log with random operations on a disk that is recorded.
type crasher struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	disk  *fsx.Mem
	r     *fsx.Recorder
	w     *WAL
	now   model
	loose []model // what else a crash may leave, because now is not synced
	steps int
	x     *crash.Explorer
}

func crashOptions(fs fsx.FS, seed uint64) Options {
	o := testOptions(fs)
	o.SegmentBytes = 128 << 10
	o.MaxGroupBytes = 48 << 10
	o.CacheBytes = 40 << 10
	o.SpareSegments = 3
	o.LogID = seed + 1
	o.Direct = seed%4 == 3
	return o
}

// recoverLog is what an Explorer recovers a log with.
func recoverLog(fs fsx.FS, mark any, seed uint64, torn *atomic.Int64) (saw string, err error) {
	w, rec, err := Open(crashOptions(fs, seed))
	if err != nil {
		return "", err
	}
	if rec.Cut != nil {
		torn.Add(1)
	}
	got, err := read(w)
	if err == nil {
		_, err = mark.(allowed).check(got)
	}
	err = errors.Join(err, w.Upkeep()) // recovery leaves it what changes files
	saw = fmt.Sprintf("%d..%d %v %v", got.first, got.last, got.versions, got.stable)
	if err = errors.Join(err, discard(w)); err != nil {
		return saw, err
	}
	if m, ok := fs.(*fsx.Mem); ok && got.last%4 == 0 {
		err = appendBehind(m.CrashClone(vfs.CrashCloneCfg{}), got.last, seed)
	}
	return saw, err
}

// appendBehind proves that a recovered log works: an append goes behind what is there, and stays.
func appendBehind(m *fsx.Mem, last, seed uint64) error {
	w, _, err := Open(crashOptions(m, seed))
	if err != nil {
		return err
	}
	if err := errors.Join(w.Append(entries(last+1, 3, 1<<40, 100)), discard(w)); err != nil {
		return err
	}
	if w, _, err = Open(crashOptions(m.CrashClone(vfs.CrashCloneCfg{}), seed)); err != nil {
		return err
	}
	if w.LastIndex() != last+3 {
		err = errors.New("an append after the recovery is lost")
	}
	return errors.Join(err, discard(w))
}

// discard gives back what a log holds without writing anything.
func discard(w *WAL) error {
	w.Poison(errors.New("crashed"))
	return w.Close()
}

// start opens the log on a disk and records what is done to it from here on.
func (c *crasher) start(disk *fsx.Mem) {
	c.disk, c.r = disk, fsx.Record(disk)
	may := allowed{c.steps, true, append([]model{c.now}, c.loose...)}
	c.r.Mark(may)
	w, _, err := Open(crashOptions(c.r, c.seed))
	must(c.t, err)
	c.w = w
	got, err := read(w)
	must(c.t, err)
	m, err := may.check(got)
	must(c.t, err)
	// Recovery has synced what it found.
	c.now, c.loose = m.clone(), nil
	if got.first != 0 {
		c.now.first = got.first
	}
	c.r.Mark(allowed{c.steps, true, []model{c.now}})
}

// explore looks at the crashes of what was recorded.
func (c *crasher) explore() {
	if err := c.x.Explore(c.r.Recording()); err != nil {
		c.t.Fatalf("%v\nreplay with HEADRACE_SEED=%d", err, c.seed)
	}
}

// during runs one operation that ends synced, which moves the model to after, through any of between.
func (c *crasher) during(between []model, after model, op func() error) {
	c.do(between, after, true, op)
}

// unsynced is during for an operation after which a crash may still leave what was there before, back to the last
// synced one.
func (c *crasher) unsynced(between []model, after model, op func() error) {
	c.do(between, after, false, op)
}

func (c *crasher) do(between []model, after model, synced bool, op func() error) {
	c.steps++
	c.r.Mark(allowed{c.steps, false, slices.Concat([]model{c.now, after}, between, c.loose)})
	if err := op(); err != nil {
		c.t.Fatal(err)
	}
	if synced {
		c.loose = nil
	} else {
		c.loose = slices.Concat(c.loose, []model{c.now}, between)
	}
	c.r.Mark(allowed{c.steps, true, append([]model{after}, c.loose...)})
	c.now = after
	if c.rng.IntN(8) > 0 || c.closed() {
		return
	}
	got, err := read(c.w)
	must(c.t, err)
	if reason := c.now.differs(got, true); reason != "" {
		c.t.Fatal(reason)
	}
}

func (c *crasher) closed() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.mu.closed
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
		c.unsynced(nil, after, func() error {
			err := c.w.TruncateFront(index)
			if err == nil && c.rng.IntN(2) == 0 {
				err = c.w.Upkeep() // as its goroutine does at any time
			}
			return err
		})
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
			c.during(nil, m, c.w.Close)
		} else {
			must(c.t, discard(c.w))
		}
		c.explore()
		c.start(c.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * c.rng.IntN(3), RNG: c.rng}))
	}
}

// TestEveryCrashStateRecovers looks at what crashes can leave at any place of a random workload: everything
// acknowledged is there, nothing is invented, recovering again changes nothing, and a crash while recovering does no
// harm.
func TestEveryCrashStateRecovers(t *testing.T) {
	var torn atomic.Int64
	x := &crash.Explorer{
		Images: fsx.ImageOptions{Random: 4, Every: 2, PerPlace: 8, Tears: 6},
		Inside: fsx.ImageOptions{Random: 1, Every: 2, PerPlace: 3, Tears: 1},
		Deep:   8, Limit: 2600, Exact: true,
	}
	if crash.Long() {
		x.Limit = 25_000
		x.Images = fsx.ImageOptions{Random: 32, PerPlace: 24, Tears: 16}
	}
	seed, one := crash.Seed()
	for ; !x.Full(); seed++ {
		c := &crasher{
			t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), x: x,
			now: model{versions: map[uint64]uint64{}, stable: map[string]string{}},
		}
		x.Images.Seed, x.Inside.Seed = seed, seed
		x.Recover = func(fs fsx.FS, mark any) (string, error) { return recoverLog(fs, mark, seed, &torn) }
		c.start(fsx.NewMem())
		for i := range 100 {
			c.step(uint64(i + 1))
		}
		must(t, discard(c.w))
		c.explore()
		if one {
			break
		}
	}
	n := x.Count()
	t.Logf("%d states, %d of them left by a crash inside a recovery, %d recoveries cut a torn group", n.States, n.Deep, torn.Load())
	if one {
		return
	}
	if torn.Load() == 0 || n.Deep == 0 || n.States < x.Limit {
		t.Errorf("%+v of %d, %d torn: the test has lost its teeth", n, x.Limit, torn.Load())
	}
}

// A crash while a segment is made leaves it half made; the next start makes it anew, and upkeep has nothing to stumble
// over.
func TestAHalfMadeSegmentIsMadeAnew(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 1, 1, 100)))
	must(t, discard(w))
	f, err := m.CreateFile("wal/" + prepareName)
	must(t, err)
	_, err = f.WriteAt(make([]byte, testSegment/2), 0)
	must(t, err)
	must(t, f.Close())
	w, _ = mustOpen(t, testOptions(m))
	must(t, w.Upkeep())
	if room, err := w.Room(); room != math.MaxInt64 || err != nil {
		t.Fatal(room, err)
	}
	for i := range uint64(20) { // some segments
		must(t, w.Append(entries(2+i, 1, 1, testSegment/3)))
	}
	must(t, w.Close())
}

// Of two unsynced groups a crash can lose the first and keep the second. What is appended after the recovery has the
// number of the lost one, and then the old second one follows it, with the right number and in the right place.
func TestAGroupOfALostBranchIsNotTakenForTheNextOne(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	must(t, w.AppendUnsynced(entries(1, 1, 1, 100)))
	must(t, w.AppendUnsynced(entries(2, 1, 1, 100)))
	_, l, _ := w.mu.find(1)
	must(t, discard(w))
	f, err := m.OpenFile("wal/" + segmentName(1))
	must(t, err)
	_, err = f.WriteAt(make([]byte, blockSize), int64(l.pos)&^(blockSize-1))
	must(t, err)
	must(t, f.Close())
	w, _ = mustOpen(t, testOptions(m))
	must(t, w.Append(entries(1, 1, 2, 100)))
	must(t, discard(w))
	w, _ = mustOpen(t, testOptions(m))
	checkRange(t, w, 1, 1, 2)
	must(t, w.Close())
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
