package bench

import (
	"os"
	"testing"
	"time"
)

func TestTheDiskAloneIsMeasuredFromTheDueTime(t *testing.T) {
	dir, h := t.TempDir(), histogram()
	if err := diskAlone(t.Context(), dir, 1000, 100, 300*time.Millisecond, h); err != nil {
		t.Fatal(err)
	}
	// Every record that was due and synced within the span counts, those of the last sync may not.
	if n := h.TotalCount(); n < 1 || n > 300 {
		t.Errorf("%d records of the 300 that were due", n)
	}
	if h.Max() < h.Min() || h.Min() < 1 {
		t.Errorf("latencies from %d to %d µs", h.Min(), h.Max())
	}
	rate, err := diskStream(dir)
	if err != nil || rate <= 0 {
		t.Errorf("%f bytes a second, %v", rate, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
