package log

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
)

// A producer that is forgotten and comes again within a round has two rows of one key, the first of which is a delete.
func TestRowsOfOneKeyStayInTheOrderOfApply(t *testing.T) {
	r := &round{}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		id := PartitionID{Topic: TopicID{byte(rng.IntN(3)), byte(rng.IntN(2))}, Index: int32(rng.IntN(3))}
		r.parts = append(r.parts, roundPart{p: &Partition{id: id}})
		r.producers = append(r.producers, producerRow{id, producer{id: rng.Int64N(4)}})
	}
	r.sort()
	key := func(kind byte, at int32) string {
		if kind == rowPartition {
			return string(partitionKey(kind, r.parts[at].p.id))
		}
		x := &r.producers[at]
		return string(appendI64(partitionKey(kind, x.id), x.r.id))
	}
	for kind, order := range map[byte][]rowOrder{rowPartition: r.partOrder, rowProducer: r.producerOrder} {
		seen := map[int32]bool{}
		for i, o := range order {
			seen[o.at] = true
			if i == 0 {
				continue
			}
			before := order[i-1]
			if a, b := key(kind, before.at), key(kind, o.at); a > b || a == b && before.at > o.at {
				t.Fatalf("kind %q: row %d (%+v) behind %+v", kind, i, o, before)
			}
		}
		if len(seen) != 1000 {
			t.Fatalf("kind %q: %d rows of 1000", kind, len(seen))
		}
	}
}

// TestAPartitionThatOnlyGathersRunsIsWholeWithoutItsRow: rounds that add a run write no row of the partition, a start
// finds its end all the same, and a run that is missing in between is damage and not a shorter partition.
func TestAPartitionThatOnlyGathersRunsIsWholeWithoutItsRow(t *testing.T) {
	o := Options{FS: fsx.NewMem(), Dir: "s", Manual: true}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	id, other := PartitionID{TopicID{1}, 0}, PartitionID{TopicID{1}, 1}
	feed(t, s, openUnit(keepAll, id, other))
	stored := func() partitionRow {
		t.Helper()
		v, closer, err := s.db.Get(partitionKey(rowPartition, id))
		if err != nil {
			t.Fatal(err)
		}
		defer closer.Close()
		r, err := decodePartition(v)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	grow := func() {
		t.Helper()
		feed(t, s, appendUnit(id, 100), appendUnit(other, 100), appendUnit(id, 100))
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		grow()
	}
	p, _ := s.Partition(id)
	if r := stored(); r.end != 2 || r.mixRuns != 1 || p.LogEnd() != 8 {
		t.Fatalf("after four rounds the row ends at %d with %d runs, the log at %d", r.end, r.mixRuns, p.LogEnd())
	}
	// Whatever else changes has the row written, and runs after it go on from there.
	set := keepAll
	set.MaxBatchBytes = 1 << 20
	u := new(Unit)
	u.PartitionSettings(id, set, 9)
	feed(t, s, u)
	grow()
	if r := stored(); r.end != 10 || r.mixRuns != 5 || r.settings != set {
		t.Fatalf("with new settings the row ends at %d with %d runs and %+v", r.end, r.mixRuns, r.settings)
	}
	grow()
	grow()
	want, lastAppend := *p.layout.Load(), p.lastAppend
	reopen := func() error {
		if err := s.flushDB(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var err error
		s, err = Open(o)
		return err
	}
	if err := reopen(); err != nil {
		t.Fatal(err)
	}
	p, _ = s.Partition(id)
	got := *p.layout.Load()
	got.segs, want.segs = nil, nil
	if r := stored(); r.end != 10 || p.LogEnd() != 14 || p.lastAppend != lastAppend || got.mixRuns != want.mixRuns ||
		got.mixBytes != want.mixBytes || got.mixStart != want.mixStart || got.mixOldest != want.mixOldest || got.written != 14 {
		t.Fatalf("row to %d, after a start log end %d, last append %v, %+v; before %v, %+v", r.end, p.LogEnd(), time.Duration(p.lastAppend), got, time.Duration(lastAppend), want)
	}
	if err := s.db.Delete(offsetKey(rowMixed, id, 10), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if err := reopen(); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("without a run in between: %v", err)
	}
}
