package replication

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

// What every Proposer does, over raft and in memory.
func TestProposers(t *testing.T) {
	open := map[string]func(t *testing.T) (Proposer, *ledger){
		"raft": func(t *testing.T) (Proposer, *ledger) {
			var l *ledger
			s := openLed(t, ledgerShard(fsx.NewMem(), "s", &l))
			t.Cleanup(func() { must(t, s.Close()) })
			return s, l
		},
		"memory": func(t *testing.T) (Proposer, *ledger) {
			l := &ledger{}
			return NewMemShard(l, MemOptions{Auto: true}), l
		},
	}
	for name, open := range open {
		t.Run(name, func(t *testing.T) {
			p, l := open(t)
			if term, ok := p.Leader(); !ok || term == 0 {
				t.Fatalf("leads %v in term %d", ok, term)
			}
			r := p.Do(t.Context(), line("one"))
			if r.Outcome != Yes || r.Err != nil || r.Index == 0 || r.AppendTime == 0 {
				t.Errorf("yes: %+v", r)
			}
			if r := p.Do(t.Context(), line("no")); r.Outcome != No || !errors.Is(r.Err, errRefused) {
				t.Errorf("no: %+v", r)
			}
			big := line("%s", strings.Repeat("x", log.MaxEntryBytes))
			if err := p.Propose(big, nil); !errors.Is(err, ErrTooLarge) {
				t.Errorf("too large: %v", err)
			}
			if r := p.Do(t.Context(), big); r.Outcome != No || !errors.Is(r.Err, ErrTooLarge) {
				t.Errorf("too large: %+v", r)
			}
			// Answers come in the order in which units of one goroutine were proposed.
			var mu sync.Mutex
			var order []int
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Add(1)
				must(t, p.ProposeWait(t.Context(), line("%d", i), func(r Result) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					if r.Err != nil {
						t.Error(r.Err)
					}
					wg.Done()
				}))
			}
			wg.Wait()
			if !slices.IsSorted(order) || len(order) != 300 || len(l.all()) != 301 {
				t.Errorf("%d answers, sorted %v, %d lines", len(order), slices.IsSorted(order), len(l.all()))
			}
		})
	}
}

// Leadership comes and goes, appended entries are kept or lost: a yes is in the machine, a no is not, an
// unknown may be, each at most once, and a machine that replays the log is equal.
func TestMemShardOutcomesAreTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := func(ops []int) (*MemShard, *ledger, map[string]Outcome, []int64) {
			l := &ledger{}
			s := NewMemShard(l, MemOptions{})
			got := map[string]Outcome{}
			var times []int64
			for i, op := range ops {
				switch op {
				case 0, 1, 2, 3:
					name := fmt.Sprint(i)
					_ = s.Propose(line("%s", name), func(r Result) {
						got[name] = r.Outcome
						times = append(times, r.AppendTime)
					})
				case 4, 5:
					s.Pack()
				case 6, 7:
					s.Commit()
				case 8:
					s.Lose(0)
				case 9:
					s.Lose(1)
				case 10, 11:
					if _, ok := s.Leader(); !ok {
						s.Lead()
					}
				}
			}
			s.Lose(0)
			s.Lead()
			s.Step()
			return s, l, got, times
		}
		ops := rapid.SliceOfN(rapid.IntRange(0, 11), 1, 100).Draw(t, "ops")
		s, l, got, times := run(ops)
		there := map[string]int{}
		for _, x := range l.all() {
			there[x]++
		}
		for name, o := range got {
			n := there[name]
			if n > 1 || o == Yes && n != 1 || o == No && n != 0 {
				t.Fatalf("%s: %v, %d times in the machine", name, o, n)
			}
		}
		replayed := &ledger{}
		s.Replay(replayed)
		if !slices.Equal(replayed.all(), l.all()) {
			t.Fatalf("replay gives %v, was %v", replayed.all(), l.all())
		}
		_, l2, got2, times2 := run(ops)
		if !slices.Equal(l2.all(), l.all()) || !reflect.DeepEqual(got, got2) || !slices.Equal(times, times2) {
			t.Fatal("the same calls give another result")
		}
	})
}

func TestMemShardStepsFromCallbacks(t *testing.T) {
	l := &ledger{}
	s := NewMemShard(l, MemOptions{Auto: true})
	n := 0
	var again func(Result)
	again = func(Result) {
		if n++; n < 50 {
			must(t, s.Propose(line("%d", n), again))
		}
	}
	must(t, s.Propose(line("0"), again))
	if len(l.all()) != 50 {
		t.Errorf("%d lines", len(l.all()))
	}
	s.Lose(0)
	if r := s.Do(context.Background(), line("x")); r.Outcome != No {
		t.Errorf("without leadership: %+v", r)
	}
	if s.String() == "" {
		t.Error("no name")
	}
}
