package log

import (
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

// TestTheWriterPausesUnlessSomebodyWaits: a round's writes must not be one burst beside the log's syncs, and must not
// keep a checkpoint waiting.
func TestTheWriterPausesUnlessSomebodyWaits(t *testing.T) {
	const pause, chunks = 30 * time.Millisecond, 5
	s, err := Open(Options{FS: fsx.NewMem(), Dir: "store", WritePause: pause, RoundDelay: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	var u Unit
	u.PartitionOpen(id, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
	s.Apply(1, 1, EncodeEntry(nil, 1, []*Unit{&u}))
	u.Reset()
	u.Append(id, benchBatch(12_000)) // more than 1 MiB
	var units []*Unit
	for range chunks {
		units = append(units, &u)
	}
	data := EncodeEntry(nil, 1, units)
	begun := time.Now()
	s.Apply(2, 1, data)
	for s.Written() < 2 {
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(begun); took < (chunks-1)*pause {
		t.Errorf("a round of %d chunks took %v", chunks, took)
	}
	// Whoever waits is let in after the pause under way.
	waits := s.opts.WritePause
	s.Apply(3, 1, data)
	time.Sleep(2 * time.Millisecond)
	begun = time.Now()
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("a checkpoint in a round waited %v, the round's pauses are %v", time.Since(begun), chunks*waits)
	if s.Durable() != 3 {
		t.Errorf("durable %d", s.Durable())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
