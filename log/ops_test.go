package log

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/crash"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/wal"
)

// A modelRun does random operations on a log and a store, and the same on the model.
type modelRun struct {
	seed  uint64
	r     *rand.Rand
	disk  *fsx.Mem
	x     *world
	m     *model
	g     *generator
	h     *history
	index uint64 // of the newest entry
	front uint64 // of the oldest that the log is to keep
	done  map[string]int
}

// An operation is one kind of what a modelRun does.
type operation struct {
	name   string
	weight int
	do     func(x *modelRun) error
}

var operations = []operation{
	{"entry", 60, func(x *modelRun) error { return x.apply(x.g.entry()) }},
	{"settings", 5, (*modelRun).settings},
	{"retention", 4, (*modelRun).retention},
	{"log start", 4, (*modelRun).logStart},
	{"read", 40, (*modelRun).read},
	{"time", 15, (*modelRun).time},
	{"round", 8, func(x *modelRun) error {
		_, err := x.x.s.Step()
		return err
	}},
	{"checkpoint", 3, (*modelRun).checkpoint},
	{"evict", 4, (*modelRun).evict},
	{"crash", 2, (*modelRun).crash},
	{"reopen", 2, (*modelRun).reopen},
	{"compare", 4, func(x *modelRun) error { return x.m.compare(x.x.s) }},
	{"placement", 2, func(x *modelRun) error { return checkPlacement(x.x.s) }},
}

func (x *modelRun) apply(data []byte) error {
	e, err := DecodeEntry(data)
	if err != nil {
		return err
	}
	x.index++
	want := x.m.apply(x.index, crashTerm, e)
	x.h.results = append(x.h.results, want)
	if err := x.x.w.Append([]wal.Entry{{Index: x.index, Term: crashTerm, Data: data}}); err != nil {
		return err
	}
	return compareResults(x.x.s.Apply(x.index, crashTerm, data), want)
}

func (x *modelRun) unit(u *Unit) error { return x.apply(EncodeEntry(nil, x.g.time, []*Unit{u})) }

// partition picks one that is there.
func (x *modelRun) partition() (PartitionID, *modelPart, *Partition) {
	ids := x.x.s.Partitions()
	if len(ids) == 0 {
		return PartitionID{}, nil, nil
	}
	id := ids[x.r.IntN(len(ids))]
	p, _ := x.x.s.Partition(id)
	return id, x.m.parts[id], p
}

func (x *modelRun) settings() error {
	id, mp, _ := x.partition()
	if mp == nil {
		return nil
	}
	set := PartitionSettings{
		RetentionMs: x.r.Int64N(5000) - 1, RetentionBytes: x.r.Int64N(20_000) - 1, MaxBatchBytes: int32(2000 + x.r.IntN(4000)),
		Compact: x.r.IntN(2) == 0, SegmentBytes: x.r.Int64N(3) * 4096, SegmentMs: x.r.Int64N(3) * 2000,
	}
	x.g.meta++
	u := new(Unit)
	u.PartitionSettings(id, set, x.g.meta)
	return x.unit(u)
}

func (x *modelRun) retention() error {
	starts, err := x.x.s.RetentionCandidates(x.g.time / 1e6)
	if err != nil {
		return err
	}
	u := new(Unit)
	for _, c := range starts {
		mp := x.m.parts[c.Partition]
		if mp == nil || c.Offset <= mp.start || c.Offset > mp.end {
			return fmt.Errorf("retention of %s proposes %d", c.Partition, c.Offset)
		}
		u.LogStart(c.Partition, c.Offset)
	}
	return x.unit(u)
}

func (x *modelRun) logStart() error {
	id, mp, _ := x.partition()
	if mp == nil {
		return nil
	}
	u := new(Unit)
	u.LogStart(id, mp.start+x.r.Int64N((mp.end-mp.start)/4+1))
	return x.unit(u)
}

func (x *modelRun) read() error {
	_, mp, p := x.partition()
	if mp == nil {
		return nil
	}
	from := mp.start + x.r.Int64N(mp.end-mp.start+1)
	if x.r.IntN(10) == 0 {
		from = x.r.Int64N(mp.end + 3)
	}
	most := x.r.IntN(3000)
	got, err := p.Read(from, most, nil)
	switch {
	case from < mp.start || from > mp.end:
		if !errors.Is(err, ErrOffsetRange) {
			return fmt.Errorf("read at %d of [%d, %d): %w", from, mp.start, mp.end, err)
		}
		return nil
	case err != nil:
		return err
	case (len(got) == 0) != (from == mp.end):
		return fmt.Errorf("read at %d of [%d, %d): %d batches", from, mp.start, mp.end, len(got))
	}
	i := slices.IndexFunc(mp.batches, func(b Batch) bool { return b.Last >= from })
	size := 0
	for k, b := range got {
		w := &mp.batches[i+k]
		if b.Base != w.Base || b.Last != w.Last || b.Index != w.Index || !bytes.Equal(b.AppendTo(nil), w.Data) {
			return fmt.Errorf("read at %d: batch [%d, %d], model [%d, %d]", from, b.Base, b.Last, w.Base, w.Last)
		}
		if size > most {
			return fmt.Errorf("read at %d goes on after %d bytes, %d were wanted", from, size, most)
		}
		size += len(w.Data)
	}
	return nil
}

func (x *modelRun) time() error {
	_, mp, p := x.partition()
	if mp == nil {
		return nil
	}
	return mp.compareTimeAt(p, 995+x.r.Int64N(110))
}

func (x *modelRun) checkpoint() error {
	info, err := x.x.s.Checkpoint(noContext)
	if err != nil {
		return err
	}
	if keep := x.r.Uint64N(4); info.Index > keep {
		x.front = info.Index + 1 - keep
		return x.x.w.TruncateFront(x.front)
	}
	return nil
}

// evict has everything read from files from here on.
func (x *modelRun) evict() error {
	if err := x.x.s.Flush(noContext); err != nil {
		return err
	}
	was := x.x.s.opts.CacheBytes
	x.x.s.opts.CacheBytes = 0
	x.x.s.trimCache()
	x.x.s.opts.CacheBytes = was
	return nil
}

func (x *modelRun) crash() error {
	left := x.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[x.r.IntN(3)], RNG: x.r})
	x.x.w.Poison(errors.New("crashed"))
	if err := x.x.close(); err != nil {
		return err
	}
	return x.open(left)
}

func (x *modelRun) reopen() error {
	if err := x.x.close(); err != nil {
		return err
	}
	return x.open(x.disk)
}

func (x *modelRun) open(disk *fsx.Mem) (err error) {
	x.disk = disk
	if x.x, err = openWorld(disk, x.seed); err != nil {
		return err
	}
	// A log of which everything was released may have got round to it, and is empty.
	if last := x.x.w.LastIndex(); last != x.index && (last != 0 || x.front <= x.index) {
		return fmt.Errorf("the log ends at %d, %d was acknowledged", last, x.index)
	}
	return x.x.catchUp(x.h.results)
}

func (x *modelRun) step() (name string, err error) {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := x.r.IntN(total)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			x.done[o.name]++
			return o.name, o.do(x)
		}
	}
	return "", nil
}

// TestALogAndItsModelStayTheSame does random operations on a log and its store: entries of all kinds, settings, reads
// and lookups anywhere, retention, rounds, checkpoints, crashes and starts, and holds each against the model.
func TestALogAndItsModelStayTheSame(t *testing.T) {
	seeds, steps := uint64(4), 400
	if crash.Long() {
		seeds, steps = 100, 2000
	}
	first, one := crash.Seed()
	if one {
		seeds = 1
	}
	done := map[string]int{}
	for seed := first; seed < first+seeds; seed++ {
		r := rand.New(rand.NewPCG(seed, 11))
		x := &modelRun{seed: seed, r: r, disk: fsx.NewMem(), m: newModel(), h: &history{results: [][]modelResult{nil}}, done: done}
		x.g = newGenerator(r, x.m)
		fail := func(step int, name string, err error) {
			t.Fatalf("step %d, %s: %v\nreplay with HEADRACE_SEED=%d", step, name, err, seed)
		}
		if err := x.open(x.disk); err != nil {
			fail(0, "open", err)
		}
		for step := range steps {
			if name, err := x.step(); err != nil {
				fail(step, name, err)
			}
		}
		if err := errors.Join(x.m.compare(x.x.s), checkPlacement(x.x.s), x.x.close()); err != nil {
			fail(steps, "end", err)
		}
	}
	t.Log(done)
	for _, o := range operations {
		if done[o.name] == 0 && !one {
			t.Errorf("no %s: the test has lost its teeth", o.name)
		}
	}
}
