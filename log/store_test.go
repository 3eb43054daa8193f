package log

import (
	"testing"

	"github.com/headrace/headrace/internal/fsx"
)

// openTest opens a store of small sizes in memory, stepped by the test.
func openTest(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(testOptions(o))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testOptions(o Options) Options {
	if o.FS == nil {
		o.FS = fsx.NewMem()
	}
	if o.Dir == "" {
		o.Dir = "store"
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 10
	}
	if o.ThinBytes == 0 {
		o.ThinBytes = 3000
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 256 << 10
	}
	if o.BlockCacheBytes == 0 {
		o.BlockCacheBytes = 256 << 10
	}
	o.Manual = true
	return o
}
