package log

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// TestATrickleIsRetainedByTime: a partition so thin that its runs are merged again and again must still lose what is
// old: merging must not tie it to what is new.
func TestATrickleIsRetainedByTime(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1, ThinBytes: 1 << 20, mergeRuns: 16})
	id := PartitionID{TopicID{1}, 0}
	const retention = 80 * time.Minute // runs grow up to a tenth of an hour
	feed(t, s, openUnit(PartitionSettings{RetentionMs: retention.Milliseconds(), RetentionBytes: -1}, id))
	p, _ := s.Partition(id)
	mostRuns := 0
	for minute := range int64(600) {
		now := time.Duration(minute) * time.Minute
		index, _ := s.Applied()
		r := s.Apply(index+1, 1, EncodeEntry(nil, int64(now), []*Unit{appendUnit(id, 10)}))
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
		if minute%5 != 4 {
			continue
		}
		if _, err := s.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		mostRuns = max(mostRuns, p.layout.Load().mixRuns)
		got, err := s.RetentionCandidates(now.Milliseconds())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range got {
			u := new(Unit)
			u.LogStart(c.Partition, c.Offset)
			index, _ := s.Applied()
			s.Apply(index+1, 1, EncodeEntry(nil, int64(now), []*Unit{u}))
		}
		if age := now - time.Duration(p.LogStart())*time.Minute; age > retention+25*time.Minute {
			t.Fatalf("minute %d: the oldest record is %v old", minute, age)
		}
		if p.LogEnd()-p.LogStart() < min(minute, int64(retention/time.Minute)) {
			t.Fatalf("minute %d: %d records are left", minute, p.LogEnd()-p.LogStart())
		}
	}
	if mostRuns > 24 {
		t.Errorf("up to %d runs after a checkpoint", mostRuns)
	}
	s.trimCache()
	for at := p.LogStart(); at < p.LogEnd(); {
		b, err := p.Read(at, 1<<20, nil)
		if err != nil || len(b) == 0 {
			t.Fatalf("at %d: %d batches, %v", at, len(b), err)
		}
		at = b[len(b)-1].Last + 1
	}
}

// TestAReaderGetsItsRecordsWhileTheyAreSwept: between a reader's look at the index and its read of the file, the runs
// may move to another file and the old one be emptied. It looks again.
func TestAReaderGetsItsRecordsWhileTheyAreSwept(t *testing.T) {
	for _, why := range []string{"garbage", "many runs"} {
		t.Run(why, func(t *testing.T) {
			var during func()
			mem := fsx.NewMem()
			fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
				if f := during; f != nil && op == fsx.OpRead && strings.Contains(name, "mixed") {
					during = nil
					f()
				}
				return nil
			})
			s := openTest(t, Options{FS: fs, CacheBytes: 1, SegmentBytes: 2 << 10, ThinBytes: 8 << 10, mergeRuns: 6})
			thin, other := PartitionID{TopicID{1}, 0}, PartitionID{TopicID{1}, 1}
			feed(t, s, openUnit(keepAll, thin, other))
			step := func() {
				if _, err := s.Step(); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				feed(t, s, appendUnit(thin, 200))
				if why == "garbage" {
					feed(t, s, appendUnit(other, 3000))
				}
				step()
			}
			s.trimCache()
			sweep := func() {
				if why == "garbage" {
					// The other partition moves out and leaves a hole.
					feed(t, s, appendUnit(other, 6000))
					step()
				} else {
					for range 6 {
						feed(t, s, appendUnit(thin, 20))
						step()
					}
				}
				for range 3 {
					feed(t, s, appendUnit(other, 10))
					if _, err := s.Checkpoint(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := mem.Stat("store/" + s.mixedPath(1)); err == nil {
					t.Error("nothing was swept")
				}
			}
			during = sweep
			p, _ := s.Partition(thin)
			for at := int64(0); at < 2; at++ {
				b, err := p.Read(at, 1, nil)
				if err != nil || len(b) != 1 || b[0].Base != at {
					t.Fatalf("at %d: %d batches, %v", at, len(b), err)
				}
			}
			if during != nil || s.Metrics().Corrupt != 0 {
				t.Errorf("swept %v, %d corrupt", during == nil, s.Metrics().Corrupt)
			}
		})
	}
}

// TestADroppedPartitionTakesItsGroupOffsetsAlong, those in files, those in memory and those that come late.
func TestADroppedPartitionTakesItsGroupOffsetsAlong(t *testing.T) {
	mem := fsx.NewMem()
	o := Options{FS: mem}
	s, err := Open(testOptions(o))
	if err != nil {
		t.Fatal(err)
	}
	kept, gone := PartitionID{TopicID{1}, 0}, PartitionID{TopicID{2}, 0}
	feed(t, s, openUnit(keepAll, kept, gone))
	commit := func(group string, ids ...PartitionID) *Unit {
		u := new(Unit)
		for _, id := range ids {
			u.Offsets(group, []GroupOffset{{Partition: id, Offset: 7, LeaderEpoch: -1}})
		}
		return u
	}
	feed(t, s, commit("written", kept, gone), commit("only", gone))
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	feed(t, s, commit("waiting", kept, gone))
	drop := new(Unit)
	drop.PartitionDrop(gone, 2)
	feed(t, s, drop, commit("late", kept, gone))
	check := func(when string) {
		t.Helper()
		if names, err := s.Groups(); err != nil || fmt.Sprint(names) != "[late waiting written]" {
			t.Errorf("%s: groups %v, %v", when, names, err)
		}
		for _, group := range []string{"written", "waiting", "late"} {
			if got, err := s.GroupOffsets(group); err != nil || len(got) != 1 || got[0].Partition != kept {
				t.Errorf("%s: group %s has %v, %v", when, group, got, err)
			}
		}
	}
	check("in memory")
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	check("in files")
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	check("after a restart")
	feed(t, s, commit("late", gone))
	check("after a late commit")
}

// TestDroppedPartitionsAreNotRememberedForEver: topics that come and go leave nothing behind after a week.
func TestDroppedPartitionsAreNotRememberedForEver(t *testing.T) {
	mem := fsx.NewMem()
	s := openTest(t, Options{FS: mem})
	index := uint64(0)
	for day := range 40 {
		var units []*Unit
		for i := range 500 {
			id := PartitionID{TopicID{byte(day), byte(i), byte(i >> 8)}, 0}
			drop := new(Unit)
			drop.PartitionDrop(id, 2)
			units = append(units, openUnit(keepAll, id), drop)
		}
		index++
		at := int64(day) * int64(24*time.Hour)
		s.Apply(index, 1, EncodeEntry(nil, at, units))
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	if err := s.eachRow(rowDropped, partitionSz, func(k, _ []byte) error {
		rows++
		if _, ok := s.dropped[getPartition(k)]; !ok {
			return fmt.Errorf("row of %s, which is forgotten", getPartition(k))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if rows != len(s.dropped) || rows > 12_000 || rows < 7*500 {
		t.Errorf("%d rows, %d in memory of 20,000 dropped", rows, len(s.dropped))
	}
}
