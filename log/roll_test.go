package log

import (
	"math"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// segmentsOf are the segments that the files of a partition have. Entries are a second apart, see feed.
func segmentsOf(t *testing.T, s *Store, id PartitionID) []segmentInfo {
	t.Helper()
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	p, _ := s.Partition(id)
	return p.layout.Load().segs
}

func TestSegmentsRollBySettingsThatChange(t *testing.T) {
	s := openTest(t, Options{SegmentBytes: 1 << 20})
	id := PartitionID{Topic: TopicID{1}}
	set := PartitionSettings{RetentionMs: -1, RetentionBytes: -1}
	feed(t, s, openUnit(set, id))
	write := func(n int) {
		t.Helper()
		for range n {
			feed(t, s, appendUnit(id, 1000))
		}
	}
	meta := uint64(1)
	change := func() {
		t.Helper()
		meta++
		u := new(Unit)
		u.PartitionSettings(id, set, meta)
		feed(t, s, u)
	}
	write(20)
	if segs := segmentsOf(t, s, id); len(segs) != 1 || segs[0].logBytes < 20_000 {
		t.Fatalf("one segment for all: %+v", segs)
	}
	// By size: what is there stays as it is, the next batch begins another segment.
	set.SegmentBytes = 5000
	change()
	write(20)
	segs := segmentsOf(t, s, id)
	if len(segs) < 5 {
		t.Fatalf("%d segments", len(segs))
	}
	for _, x := range segs[1:] {
		if x.logBytes > set.SegmentBytes || x.base == 0 {
			t.Errorf("a segment of %d bytes", x.logBytes)
		}
	}
	// By age.
	before := len(segs)
	set.SegmentBytes, set.SegmentMs = 0, 5000
	change()
	write(30)
	segs = segmentsOf(t, s, id)
	if got := len(segs) - before; got < 4 || got > 7 {
		t.Errorf("%d segments in 30 s of 5 s each", got)
	}
	for _, x := range segs[before:] {
		if age := time.Duration(x.lastAppend - x.firstAppend); age > 5*time.Second {
			t.Errorf("a segment of %v", age)
		}
	}
	// A setting below what gets a partition a file at all is that.
	before = len(segs)
	set.SegmentBytes, set.SegmentMs = 14, math.MaxInt64
	change()
	write(12)
	if segs = segmentsOf(t, s, id); len(segs)-before > 6 {
		t.Errorf("%d segments for 12 batches", len(segs)-before)
	}
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// With a shorter retention the next batch closes a segment that is older, so that it can be dropped.
func TestAShorterRetentionReachesWhatIsThere(t *testing.T) {
	s := openTest(t, Options{SegmentBytes: 1 << 20})
	id := PartitionID{Topic: TopicID{1}}
	set := PartitionSettings{RetentionMs: math.MaxInt64, RetentionBytes: -1}
	feed(t, s, openUnit(set, id))
	for range 100 {
		feed(t, s, appendUnit(id, 1000))
	}
	segmentsOf(t, s, id)
	now := func() int64 { index, _ := s.Applied(); return int64(index) * 1000 }
	if c, err := s.RetentionCandidates(now() + 1<<50); err != nil || len(c) != 0 {
		t.Errorf("nearly for ever: %v %v", c, err)
	}
	if c, err := s.RetentionUnder(id, PartitionSettings{RetentionMs: 1000, RetentionBytes: -1}, now()+10_000); err != nil || c.Offset != 100 || c.Cap != 0 {
		t.Errorf("%+v %v", c, err)
	}
	set.RetentionMs, set.MaxRetentionMs = 1000, 60_000
	u := new(Unit)
	u.PartitionSettings(id, set, 2)
	feed(t, s, u, appendUnit(id, 1000))
	segmentsOf(t, s, id)
	c, err := s.RetentionCandidates(now() + 1500)
	if err != nil || len(c) != 1 || c[0].Offset != 101 || c[0].Cap != 0 {
		t.Errorf("%+v %v", c, err)
	}
	c, err = s.RetentionCandidates(now() + 61_000)
	if err != nil || len(c) != 1 || c[0].Offset != 101 || c[0].Cap != 101 {
		t.Errorf("%+v %v", c, err)
	}
	p, _ := s.Partition(id)
	if all, half := p.BytesBelow(101), p.BytesBelow(50); all != p.Bytes() || half < all/3 || half > all*2/3 {
		t.Errorf("bytes below 50: %d, all %d of %d", half, all, p.Bytes())
	}
}

// Small topics have no files of their own; retention by size works on their runs.
func TestRetentionBySizeOfASmallTopic(t *testing.T) {
	s := openTest(t, Options{ThinBytes: 1 << 20, mergeRuns: 64})
	id := PartitionID{Topic: TopicID{1}}
	feed(t, s, openUnit(PartitionSettings{RetentionMs: -1, RetentionBytes: 3000}, id))
	for range 10 {
		feed(t, s, appendUnit(id, 1000))
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := s.Partition(id)
	if l := p.layout.Load(); len(l.segs) != 0 || l.mixRuns != 10 {
		t.Fatalf("%+v", l)
	}
	run := p.Bytes() / 10
	c, err := s.RetentionCandidates(0)
	if want := 10 - (3000+run-1)/run; err != nil || len(c) != 1 || c[0].Offset != want {
		t.Fatalf("%+v %v, want %d", c, err, want)
	}
	u := new(Unit)
	u.LogStart(id, c[0].Offset)
	feed(t, s, u)
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	if c, err := s.RetentionCandidates(0); err != nil || len(c) != 0 {
		t.Errorf("again: %+v %v", c, err)
	}
	if got := p.Bytes(); got < 3000 || got > 3000+run {
		t.Errorf("%d bytes are left", got)
	}
}

// A segment that is complete takes no more of the disk than it holds.
func TestACompleteSegmentGivesBackWhatItDidNotNeed(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(testOptions(Options{FS: fsx.Disk(), Dir: dir, SegmentBytes: 18 << 20, CacheBytes: 1}))
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{7}, 0}
	feed(t, s, openUnit(PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, id))
	for range 40 {
		feed(t, s, appendUnit(id, 1<<20))
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "topics", "*", "*", "*.log"))
	if err != nil || len(names) < 3 {
		t.Fatalf("%d segments, %v", len(names), err)
	}
	slices.Sort(names)
	for _, name := range names[:len(names)-1] {
		var st syscall.Stat_t
		if err := syscall.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		if took := st.Blocks * 512; took > st.Size+64<<10 {
			t.Errorf("%s holds %d bytes and takes %d", filepath.Base(name), st.Size, took)
		}
	}
}
