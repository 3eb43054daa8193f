package server

import (
	"errors"
	"testing"
)

func TestTheMemoryBudgetIsShared(t *testing.T) {
	if d := DefaultMemory(); d < MinMemory || d > 1<<30 {
		t.Errorf("by default the budget is %d", d)
	}
	o := Options{Memory: 512 << 20}
	o.Node.Data.MaxInflightBytes = 7
	if err := o.share(); err != nil {
		t.Fatal(err)
	}
	n := &o.Node
	got := [4]int64{n.CacheBytes, n.Data.MaxBacklogBytes, n.Data.MaxInflightBytes, n.Data.WALCacheBytes}
	if want := [4]int64{128 << 20, 128 << 20, 7, 32 << 20}; got != want {
		t.Errorf("shares %d, want %d", got, want)
	}
	if _, err := Start(Options{Data: t.TempDir(), Memory: MinMemory - 1}); !errors.Is(err, ErrMemory) {
		t.Errorf("a budget below the least: %v", err)
	}
}
