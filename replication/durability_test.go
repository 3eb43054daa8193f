package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

// What a semi-sync unit is answered with survives the process at once, and a power cut as soon as it is synced. A
// power cut before that leaves a prefix, and no file that knows more than the log.
func TestSemiSyncUnitsAreAnsweredBeforeTheyAreSynced(t *testing.T) {
	disk := fsx.NewMem()
	o := nodeOptions(disk)
	n := openNode(t, o)
	ctx := context.Background()
	must(t, n.Meta().CreateTopic(ctx, TopicSpec{Name: "t"}))
	id := partition(t, n, "t", 0)
	var want []string
	unsynced, rng := 0, rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		v := fmt.Sprint("v", i)
		u := new(log.Unit)
		u.Append(id, batchOf(v))
		u.SemiSync = i%10 != 9
		if r := n.Data().Do(ctx, u); r.Err != nil {
			t.Fatal(r.Err)
		}
		want = append(want, v)
		if i%20 == 13 {
			// The writer behind the log must not be ahead of it.
			must(t, n.Store().Flush(ctx))
		}
		for _, percent := range []int{0, 50, 100} {
			if i%7 != 0 {
				continue
			}
			copied := nodeOptions(disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
			m := openNode(t, copied)
			got := values(t, m, id)
			must(t, m.Close())
			if len(got) < len(want) {
				unsynced++
			}
			last := i // the last synced one
			for last >= 0 && last%10 != 9 {
				last--
			}
			if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || len(got) < last+1 {
				t.Fatalf("after %d records, %d of them synced, a crash that keeps %d %% left %d: %q", len(want), last+1, percent, len(got), got)
			}
			if percent == 100 && len(got) != len(want) {
				t.Fatalf("the death of the process lost %d of %d records", len(want)-len(got), len(want))
			}
		}
	}
	if unsynced == 0 {
		t.Error("every unit was synced when it was answered")
	}
	time.Sleep(20 * time.Millisecond) // longer than SyncWithin
	m := openNode(t, nodeOptions(disk.CrashClone(vfs.CrashCloneCfg{})))
	if got := values(t, m, id); !slices.Equal(got, want) {
		t.Errorf("a while later a power cut leaves %d of %d records", len(got), len(want))
	}
	must(t, m.Close())
	must(t, n.Close())
}

func TestAnEntryWaitsForTheDiskIfAnyOfItsUnitsDoes(t *testing.T) {
	semi := func(u *log.Unit) *log.Unit { u.SemiSync = true; return u }
	step := semi(new(log.Unit))
	step.Progress(log.Progress{Task: log.TaskID{1}, Epoch: 1, Step: 1})
	for _, c := range []struct {
		units []*log.Unit
		want  bool
	}{
		{[]*log.Unit{semi(unitOf(10))}, true},
		{[]*log.Unit{semi(unitOf(10)), semi(unitOf(10))}, true},
		{[]*log.Unit{semi(unitOf(10)), unitOf(10)}, false},
		{[]*log.Unit{unitOf(10)}, false},
		{[]*log.Unit{step}, false},
	} {
		core := leadingCore(t, 64<<20)
		for _, u := range c.units {
			if _, err := core.add(proposal{unit: u, size: u.Size(), done: func(Result) {}}); err != nil {
				t.Fatal(err)
			}
		}
		if f := core.pack(at(1)); f == nil || f.semi != c.want {
			t.Errorf("%d units: semi %v, want %v", len(c.units), f.semi, c.want)
		}
	}
}
