package log

import (
	"testing"

	"github.com/headrace/headrace/internal/fsx"
)

// TestOnlyReadersAndCompactionsAreAside: what the writer or a checkpoint waits for is not.
func TestOnlyReadersAndCompactionsAreAside(t *testing.T) {
	s, err := Open(Options{FS: fsx.NewMem(), Dir: "d", Manual: true})
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	own, compacted := &segmentInfo{base: 7}, &segmentInfo{base: 7, generation: 2}
	for _, c := range []struct {
		op   fsx.Op
		path string
		want bool
	}{
		{fsx.OpRead, s.logPath(id, own), true},
		{fsx.OpRead, s.indexPath(id, own), true},
		{fsx.OpRead, s.mixedPath(3), true},
		{fsx.OpWrite, s.logPath(id, own), false},
		{fsx.OpSync, s.indexPath(id, own), false},
		{fsx.OpSync, s.mixedPath(3), false},
		{fsx.OpOpen, s.logPath(id, own), false},
		{fsx.OpCreate, s.logPath(id, compacted), true},
		{fsx.OpWrite, s.indexPath(id, compacted), true},
		{fsx.OpSync, s.logPath(id, compacted), true},
		{fsx.OpTruncate, s.logPath(id, compacted), false}, // by the writer, when it is removed
		{fsx.OpRemove, s.logPath(id, compacted), false},
		{fsx.OpSyncDir, s.partitionDir(id), false},
		{fsx.OpRead, "kv/000012.sst", false},
		{fsx.OpSync, "kv/000012.log", false},
		{fsx.OpRename, manifestName, false},
	} {
		if got := s.Aside(c.op, s.path(c.path)); got != c.want {
			t.Errorf("%v %s: aside %v", c.op, c.path, got)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
