package replication

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/headrace/headrace/log"
)

func unitOf(n int) *log.Unit {
	u := new(log.Unit)
	u.Command(make([]byte, n))
	return u
}

// leadingCore returns a core that leads in term 1, with nothing in flight.
func leadingCore(t testing.TB, maxBytes int64) *core {
	t.Helper()
	c := newCore(maxBytes, log.MaxEntryBytes, 0)
	f := c.elected(1, 1)
	if !c.launch(f) {
		t.Fatal("the announcing entry was not launched")
	}
	c.appended(1)
	if !c.applied(f.data, nil) {
		t.Fatal("leadership not announced")
	}
	return c
}

func add(t testing.TB, c *core, n int, done func(Result)) bool {
	t.Helper()
	if done == nil {
		done = func(Result) {}
	}
	u := unitOf(n)
	pack, err := c.add(proposal{unit: u, done: done, size: u.Size()})
	if err != nil {
		t.Fatal(err)
	}
	return pack
}

// At rest an entry holds what there is; while an append runs nothing is packed, unless a full entry waits.
func TestPackingIsNaturalBatching(t *testing.T) {
	c := leadingCore(t, 64<<20)
	if !add(t, c, 100, nil) {
		t.Fatal("an idle shard does not pack at once")
	}
	a := c.pack(at(10))
	if a == nil || len(a.props) != 1 || !c.launch(a) {
		t.Fatalf("first entry %+v", a)
	}
	for range 50 {
		if add(t, c, 1000, nil) {
			t.Fatal("a small entry is packed while an append runs")
		}
	}
	if c.pack(at(11)) != nil {
		t.Fatal("packed while an append runs")
	}
	if !c.appended(1) {
		t.Fatal("the end of the append does not wake the packer")
	}
	b := c.pack(at(12))
	if b == nil || len(b.props) != 50 {
		t.Fatalf("what came in during the append is not one entry: %v", b)
	}
	c.launch(b)
	// A second one may be on its way when it would be full anyway, a third may not.
	for range 30 {
		add(t, c, 100<<10, nil)
	}
	full := c.pack(at(13))
	if full == nil || full.bytes > saturatedEntryBytes || full.bytes < saturatedEntryBytes-110<<10 {
		t.Fatalf("saturated entry %v", full)
	}
	if c.pack(at(14)) != nil {
		t.Fatal("three entries between packer and append")
	}
}

// Whatever waits, an entry fits the log, which takes less than packing would like where its segments are small.
func TestEntriesFitTheLog(t *testing.T) {
	const most = 100 << 10
	c := leadingCore(t, 64<<20)
	c.maxEntryBytes = most
	for range 100 {
		add(t, c, 30<<10, nil)
	}
	for packed := 0; packed < 100; {
		f := c.pack(at(1))
		if f == nil || !c.launch(f) {
			t.Fatalf("nothing is packed after %d units", packed)
		}
		if len(f.data) > most {
			t.Fatalf("an entry of %d bytes, the log takes %d", len(f.data), most)
		}
		packed += len(f.props)
		c.appended(1)
	}
}

func TestAppendTimesNeverFall(t *testing.T) {
	c := newCore(1<<20, log.MaxEntryBytes, 500)
	f := c.elected(1, 100)
	c.launch(f)
	c.appended(1)
	c.applied(f.data, nil)
	last := int64(500)
	for _, now := range []int64{90, 600, 599, 1, 700} {
		add(t, c, 10, nil)
		f := c.pack(at(now))
		c.launch(f)
		e, err := log.DecodeEntry(f.data)
		if err != nil {
			t.Fatal(err)
		}
		if e.AppendTime < last || e.AppendTime < now {
			t.Fatalf("append time %d after %d at %d", e.AppendTime, last, now)
		}
		last = e.AppendTime
		c.appended(1)
		c.applied(f.data, []log.Result{{}})
	}
}

func TestBytesInFlightAreBounded(t *testing.T) {
	c := leadingCore(t, 1000)
	add(t, c, 5000, nil) // one unit is always taken
	_, err := c.add(proposal{unit: unitOf(10), size: 10, done: func(Result) {}})
	if !errors.Is(err, ErrBusy) {
		t.Fatalf("second unit: %v", err)
	}
	room := c.waitRoom()
	f := c.pack(at(1))
	c.launch(f)
	c.appended(1)
	c.applied(f.data, []log.Result{{}})
	select {
	case <-room:
	default:
		t.Fatal("released bytes wake nobody")
	}
	add(t, c, 10, nil)
	u := unitOf(log.MaxEntryBytes)
	if _, err := c.add(proposal{unit: u, size: u.Size()}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("unit over the limit: %v", err)
	}
}

// Losing leadership makes flights unknown and what was never handed over a definite no. A new leader that
// has not applied everything takes nothing.
func TestLostLeadershipAnswersByWhatMayHaveHappened(t *testing.T) {
	c := leadingCore(t, 1<<20)
	got := map[string]Result{}
	note := func(name string) func(Result) {
		return func(r Result) {
			if _, twice := got[name]; twice {
				t.Errorf("%s answered twice", name)
			}
			got[name] = r
		}
	}
	add(t, c, 10, note("flying"))
	f := c.pack(at(1))
	c.launch(f)
	add(t, c, 10, note("waiting"))
	c.lost(nil)
	if r := got["flying"]; r.Outcome != Unknown || !errors.Is(r.Err, ErrUnknown) {
		t.Errorf("flying: %+v", r)
	}
	if r := got["waiting"]; r.Outcome != No || !errors.Is(r.Err, ErrNotLeader) {
		t.Errorf("waiting: %+v", r)
	}
	if c.applied(f.data, []log.Result{{}}) {
		t.Error("a late apply announces leadership")
	}
	e := c.elected(2, 5)
	c.launch(e)
	if _, err := c.add(proposal{unit: unitOf(1), size: 6}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("before everything is applied: %v", err)
	}
	if !c.applied(e.data, nil) {
		t.Error("leadership not announced")
	}
	if term, ok := c.leader(); !ok || term != 2 {
		t.Errorf("leader in term %d: %v", term, ok)
	}
	c.lost(ErrFailed)
	if _, err := c.add(proposal{unit: unitOf(1), size: 6}); !errors.Is(err, ErrFailed) {
		t.Errorf("after a failure: %v", err)
	}
}

// Whatever happens, each proposal gets exactly one answer, a yes only when applied, a no only when never
// handed over, and counted bytes return to zero.
func TestEveryProposalGetsOneTrueAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCore(1<<20, log.MaxEntryBytes, 0)
		var submitted []*flight // at the group, in order
		applied := map[int]bool{}
		handed := map[int]bool{}
		answers := map[int][]Result{}
		of := map[*flight][]int{}
		var queue []int
		id := 0
		term := uint64(0)
		take := func(f *flight) {
			n := len(f.props)
			of[f], queue = queue[:n:n], queue[n:]
		}
		drop := func() { queue = nil }
		ops := rapid.SliceOfN(rapid.SampledFrom([]string{
			"add", "add", "add", "big", "pack", "pack", "appended", "apply", "apply", "lost", "elect", "skip",
		}), 1, 120).Draw(t, "ops")
		for _, op := range ops {
			switch op {
			case "add", "big":
				n := 10
				if op == "big" {
					n = 200 << 10
				}
				me := id
				u := unitOf(n)
				if _, err := c.add(proposal{unit: u, size: u.Size(), done: func(r Result) {
					answers[me] = append(answers[me], r)
				}}); err == nil {
					queue = append(queue, me)
					id++
				}
			case "pack":
				if f := c.pack(at(1)); f != nil {
					take(f)
					if c.launch(f) {
						submitted = append(submitted, f)
						for _, i := range of[f] {
							handed[i] = true
						}
					}
				}
			case "appended":
				c.appended(1)
			case "apply", "skip":
				if len(submitted) == 0 {
					continue
				}
				f := submitted[0]
				submitted = submitted[1:]
				if op == "skip" { // the group refused it
					continue
				}
				for _, i := range of[f] {
					applied[i] = true
				}
				results := make([]log.Result, len(f.props))
				c.applied(f.data, results)
			case "lost":
				c.lost(nil)
				drop()
			case "elect":
				c.lost(nil)
				drop()
				term++
				if f := c.elected(term, 1); c.launch(f) {
					submitted = append(submitted, f)
				}
			}
		}
		c.lost(ErrClosed)
		for i := range id {
			a := answers[i]
			if len(a) != 1 {
				t.Fatalf("proposal %d has %d answers", i, len(a))
			}
			switch a[0].Outcome {
			case Yes:
				if !applied[i] {
					t.Fatalf("proposal %d: yes, never applied", i)
				}
			case No:
				if handed[i] {
					t.Fatalf("proposal %d: no, but the group has it", i)
				}
			}
		}
		if w, f := c.held(); w != 0 || f != 0 {
			t.Fatalf("%d bytes wait and %d fly at the end", w, f)
		}
	})
}

func TestOutcomesHaveNames(t *testing.T) {
	if got := fmt.Sprint(Yes, No, Unknown, Outcome(9)); got != "yes no unknown outcome-9" {
		t.Error(got)
	}
}

// at is a clock that stands.
func at(ns int64) func() int64 { return func() int64 { return ns } }

func TestNoUnitIsStampedWithATimeBeforeItWasProposed(t *testing.T) {
	c := leadingCore(t, 64<<20)
	add(t, c, 10, nil)
	// The clock is read when the entry's units are known, so that a unit that comes in late is not dated back.
	looked := false
	f := c.pack(func() int64 {
		looked = true
		if n := len(c.mu.waiting) - c.mu.head; n != 0 {
			t.Errorf("the clock was read while %d units were still to be taken", n)
		}
		return 7
	})
	if f == nil || !looked {
		t.Fatalf("flight %v, clock read %v", f, looked)
	}
}
