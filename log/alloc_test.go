package log

import (
	"testing"

	"github.com/headrace/headrace/internal/fsx"
)

// applyAllocs bounds what Apply allocates for an entry of one batch: its results, the decoded operations, the batch in the
// tail cache.
const applyAllocs = 8

// Apply never looks at a record, so an entry costs the same whatever its batch holds.
func TestApplyAllocatesPerBatchAndNotPerRecord(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	measure := func(records int) float64 {
		s, err := Open(Options{FS: fsx.NewMem(), Dir: "s", CacheBytes: 64 << 20, Manual: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		id := PartitionID{TopicID{1}, 0}
		var open, u Unit
		open.PartitionOpen(id, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
		s.Apply(1, 1, EncodeEntry(nil, 1e15, []*Unit{&open}))
		u.Append(id, benchBatch(records))
		data := EncodeEntry(nil, 1e15, []*Unit{&u})
		index := uint64(1)
		return testing.AllocsPerRun(200, func() {
			index++
			if r := s.Apply(index, 1, data); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
		})
	}
	few, many := measure(10), measure(1000)
	t.Logf("%v allocations for a batch of 10 records, %v for one of 1000", few, many)
	if many > few || many > applyAllocs {
		t.Errorf("%v allocations for a batch of 10 records, %v for one of 1000, at most %d", few, many, applyAllocs)
	}
}
