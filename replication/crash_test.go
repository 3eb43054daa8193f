package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/crash"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
)

// A told is a mark in the recording of a node: what its callers had been told.
type told struct {
	serial   int
	running  bool // it was open: the next start is not after a clean stop
	cluster  string
	proposed [2]int // records of the two partitions, and those acknowledged
	acked    [2]int
	offset   int64           // acknowledged, of a group
	topics   map[string]bool // acknowledged: created, or deleted
	asked    map[string]bool // proposed and not acknowledged
}

func (a told) String() string { return fmt.Sprint(a.serial) }

// A teller changes what callers were told and marks it in the recording.
type teller struct {
	mu   sync.Mutex
	now  told
	disk *fsx.Recorder
}

func (x *teller) tell(change func(a *told)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a := x.now
	a.serial++
	a.topics, a.asked = maps.Clone(a.topics), maps.Clone(a.asked)
	change(&a)
	x.now = a
	x.disk.Mark(a)
}

func crashNodeOptions(fs fsx.FS) NodeOptions {
	o := nodeOptions(fs)
	o.Data.WALSegmentBytes, o.Meta.WALSegmentBytes = 256<<10, 256<<10
	o.CacheBytes, o.SegmentBytes = 16<<10, 16<<10
	return o
}

func crashValue(i int) string { return fmt.Sprintf("%d %s", i, strings.Repeat("v", i*37%900)) }

// playNode runs a node on a recorded disk: records in two partitions, topics that come and go, offsets of a group,
// checkpoints of both shards, and a clean stop and start in the middle.
func playNode(t *testing.T, seed uint64) *fsx.Recording {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 21))
	disk := fsx.Record(fsx.NewMem())
	x := &teller{disk: disk, now: told{topics: map[string]bool{}, asked: map[string]bool{}}}
	x.tell(func(*told) {})
	topic := func(n *Node, name string, there bool) {
		x.tell(func(a *told) {
			a.asked[name] = true
		})
		if there {
			must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: name, Partitions: 2}))
		} else {
			must(t, n.Meta().DeleteTopic(t.Context(), name))
		}
		x.tell(func(a *told) {
			delete(a.asked, name)
			a.topics[name] = there
		})
	}
	for life := range 2 {
		n := openNode(t, crashNodeOptions(disk))
		x.tell(func(a *told) { a.running, a.cluster = true, n.ClusterID() })
		if life == 0 {
			topic(n, "base", true)
		}
		var wg sync.WaitGroup
		for p := range 2 {
			id := partition(t, n, "base", int32(p))
			wg.Go(func() {
				for range 12 {
					i := 0
					x.tell(func(a *told) { i = a.proposed[p]; a.proposed[p]++ })
					if r := produce(context.Background(), n, id, crashValue(i)); r.Err != nil {
						t.Error(r.Err)
						return
					}
					x.tell(func(a *told) { a.acked[p]++ })
				}
			})
		}
		for i := range 8 {
			name := fmt.Sprintf("t%d-%d", life, i)
			switch rng.IntN(5) {
			case 0, 1:
				topic(n, name, true)
				if rng.IntN(2) == 0 {
					topic(n, name, false)
				}
			case 2:
				u := new(log.Unit)
				at := int64(life*8 + i + 1)
				u.Offsets("g", []log.GroupOffset{{Partition: partition(t, n, "base", 0), Offset: at}})
				must(t, n.Data().Do(t.Context(), u).Err)
				x.tell(func(a *told) { a.offset = at })
			case 3:
				must(t, n.Data().Checkpoint(t.Context()))
			case 4:
				must(t, n.MetaShard().Checkpoint(t.Context()))
			}
		}
		wg.Wait()
		x.tell(func(a *told) { a.running = false })
		must(t, n.Close())
	}
	return disk.Recording()
}

// recoverNode opens what a crash has left of a node and checks it.
func recoverNode(fs fsx.FS, mark any) (saw string, err error) {
	a := mark.(told)
	n, err := OpenNode(crashNodeOptions(fs))
	if err != nil {
		return "", err
	}
	saw, err = a.check(n)
	if a.running && !n.Unclean() {
		err = errors.Join(err, errors.New("a crash is not noticed"))
	}
	return saw, errors.Join(err, n.abandon()) // leaves the mark of an open directory
}

func (a told) check(n *Node) (saw string, err error) {
	if a.cluster != "" && n.ClusterID() != a.cluster {
		return "", fmt.Errorf("cluster %s, it was %s", n.ClusterID(), a.cluster)
	}
	for name, there := range a.topics {
		if top, ok := n.Meta().Catalog().Topic(name); !a.asked[name] && (ok != there || ok && !top.Opened) {
			return "", fmt.Errorf("topic %s: there %v, want %v", name, ok, there)
		}
	}
	base, ok := n.Meta().Catalog().Topic("base")
	if !ok {
		return "no topic", nil
	}
	for p := range 2 {
		part, ok := n.Store().Partition(log.PartitionID{Topic: base.ID, Index: int32(p)})
		if !ok {
			return "", fmt.Errorf("partition %d is not there", p)
		}
		got, err := readValues(part)
		if err != nil {
			return "", err
		}
		if len(got) < a.acked[p] || len(got) > a.proposed[p] {
			return "", fmt.Errorf("partition %d: %d records, %d acknowledged of %d proposed", p, len(got), a.acked[p], a.proposed[p])
		}
		slices.SortFunc(got, func(a, b string) int { return number(a) - number(b) })
		for i, v := range got {
			if v != crashValue(i) {
				return "", fmt.Errorf("partition %d: record %d is %.20q", p, i, v)
			}
		}
		saw += fmt.Sprint(len(got), " ")
	}
	offsets, err := n.Store().GroupOffsets("g")
	if err != nil {
		return "", err
	}
	at := int64(0)
	if len(offsets) > 0 {
		at = offsets[0].Offset
	}
	if at < a.offset {
		return "", fmt.Errorf("group offset %d, acknowledged %d", at, a.offset)
	}
	return saw + fmt.Sprint(at, len(n.Store().Partitions())), nil
}

func number(v string) int {
	s, _, _ := strings.Cut(v, " ")
	i, _ := strconv.Atoi(s)
	return i
}

func readValues(p *log.Partition) (out []string, err error) {
	r := new(record.Reader)
	for at := p.LogStart(); at < p.LogEnd(); {
		batches, err := p.Read(at, 1<<20, nil)
		if err != nil {
			return out, err
		}
		for _, b := range batches {
			if err := r.Reset(b.Data); err != nil {
				return out, err
			}
			if b.Base != at {
				return out, fmt.Errorf("offset %d where %d is expected", b.Base, at)
			}
			for r.Next() {
				out = append(out, string(r.Record().Value))
			}
			at = b.Last + 1
		}
	}
	return out, nil
}

// TestEveryCrashStateOfANodeRecovers looks at what crashes can leave of a whole node at any place of its life.
func TestEveryCrashStateOfANodeRecovers(t *testing.T) {
	x := &crash.Explorer{
		Images: fsx.ImageOptions{Random: 3, Every: 20, PerPlace: 3, Tears: 2},
		Inside: fsx.ImageOptions{Random: 1, Every: 25, PerPlace: 2, Tears: 1},
		Deep:   8, Limit: 200,
	}
	perSeed := 100
	switch {
	case crash.Long():
		x.Limit, perSeed = 3500, 500
		x.Images = fsx.ImageOptions{Random: 32, Every: 4, PerPlace: 4, Tears: 4}
	case testing.Short():
		x.Limit = 30
	case raceEnabled:
		x.Limit = 150
	}
	goal := x.Limit
	seed, one := crash.Seed()
	for begun := time.Now(); x.Count().States < goal; seed++ {
		rec := playNode(t, seed)
		x.Recover = recoverNode
		x.Images.Seed, x.Inside.Seed = seed, seed
		x.Limit = min(goal, x.Count().States+perSeed)
		x.Images.Every = max(1, rec.Len()*x.Images.PerPlace/2/perSeed)
		if err := x.Explore(rec); err != nil {
			t.Fatalf("%v\nreplay with HEADRACE_SEED=%d", err, seed)
		}
		t.Logf("seed %d: %d operations, %+v so far, %v", seed, rec.Len(), x.Count(), time.Since(begun).Round(time.Second))
		if one {
			break
		}
	}
	n := x.Count()
	if !one && n.States < goal {
		t.Errorf("%+v of %d: the test has lost its teeth", n, goal)
	}
}
