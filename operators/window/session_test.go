package window

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A naiveSession is a session of one partition, with its rows in the order in which its sums add them up: a
// session that joined it is one term.
type naiveSession struct {
	by               []scalar.Value
	key              string
	partition        int32
	first, end, low  int64
	terms            []any // row or []any
	rows             []row
	joined, reported bool
}

// naiveSessions are sessions as their definition reads.
func (sc *scenario) naiveSessions() (lines, late, fails []string) {
	gap := int64(sc.size)
	var all []*naiveSession
	for _, part := range sc.rows {
		var mine []*naiveSession
		for _, r := range part {
			at, behind := r.ts, r.behind
			if sc.append {
				at, behind = r.appended, operators.MinEventTime
			}
			if at > math.MaxInt64/2 || at < math.MinInt64/2 {
				fails = append(fails, fmt.Sprintf("E0605 window: row %d/%d", r.partition, r.offset))
				continue
			}
			by, key, ok := sc.keyOf(r)
			if !ok {
				fails = append(fails, fmt.Sprintf("E0606 by: row %d/%d", r.partition, r.offset))
				continue
			}
			u := max(at, behind)
			fresh := &naiveSession{by: by, key: key, partition: r.partition, first: at, end: at + gap, low: u}
			var found []*naiveSession
			for _, s := range mine {
				if !s.joined && s.key == key && s.end > u && s.first < at+gap {
					found = append(found, s)
				}
			}
			if len(found) == 0 && at+gap <= behind {
				late = append(late, fmt.Sprintf("%d/%d", r.partition, r.offset))
				continue
			}
			slices.SortFunc(found, func(a, b *naiveSession) int { return cmp.Compare(a.low, b.low) })
			s := fresh
			if len(found) > 0 {
				s = found[0]
				for _, x := range found[1:] {
					s.take(x)
				}
				s.first, s.end, s.low = min(s.first, at), max(s.end, at+gap), min(s.low, u)
			} else {
				mine = append(mine, s)
			}
			s.terms, s.rows = append(s.terms, r), append(s.rows, r)
			for again := true; again; { // what its cover has come to overlap
				again = false
				slices.SortFunc(mine, func(a, b *naiveSession) int { return cmp.Compare(a.low, b.low) })
				for _, x := range mine {
					if x != s && !x.joined && x.key == key && x.low < s.end && s.low < x.end {
						s.take(x)
						again = true
					}
				}
			}
		}
		for _, s := range mine {
			if !s.joined {
				all = append(all, s)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *naiveSession) int { return cmp.Compare(a.low, b.low) })
	var groups []*group
	for i, s := range all {
		if s.reported {
			continue
		}
		parts, end := []*naiveSession{s}, s.end
		for _, x := range all[i+1:] {
			if x.key == s.key && x.low < end {
				parts, end, x.reported = append(parts, x), max(end, x.end), true
			}
		}
		slices.SortStableFunc(parts, func(a, b *naiveSession) int { return cmp.Compare(a.partition, b.partition) })
		g := &group{start: math.MaxInt64, end: end, by: s.by, key: sc.encodeKey(s.by)}
		for _, x := range parts {
			g.start, g.rows = min(g.start, x.first), append(g.rows, x.rows...)
		}
		g.sums = func(takes func(row) bool, value func(row) float64) (sums []float64) {
			last := int32(-1)
			for _, x := range parts {
				switch sum, any := termSum(x.terms, takes, value); {
				case !any:
					continue
				case x.partition == last:
					sums[len(sums)-1] += sum
				default:
					sums = append(sums, sum)
				}
				last = x.partition
			}
			return sums
		}
		groups = append(groups, g)
	}
	lines, lost := sc.results(groups)
	return lines, late, append(fails, lost...)
}

func (s *naiveSession) take(x *naiveSession) {
	x.joined = true
	s.terms, s.rows = append(s.terms, x.terms), append(s.rows, x.rows...)
	s.first, s.end, s.low = min(s.first, x.first), max(s.end, x.end), min(s.low, x.low)
}

func termSum(terms []any, takes func(row) bool, value func(row) float64) (sum float64, any bool) {
	for _, t := range terms {
		v, ok := 0.0, false
		switch t := t.(type) {
		case row:
			if ok = takes(t); ok {
				v = value(t)
			}
		case []interface{}:
			v, ok = termSum(t, takes, value)
		}
		switch {
		case !ok:
		case any:
			sum += v
		default:
			sum, any = v, true
		}
	}
	return sum, any
}

func TestSessionsEqualTheirDefinitionForAnyStepsAndRestarts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	joins, lates := 0, 0
	for i := range scenarios(12) {
		r := rand.New(rand.NewPCG(seed, i))
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		sc := randomScenario(r)
		sc.size, sc.every = time.Duration(1+r.IntN(40)), gapOnly
		sc.slots = forSessions(sc.slots)
		lines, late, fails := sc.naiveSessions()
		joins, lates = joins+len(lines), lates+len(late)
		sc.compare(t, r, alloc, lines, late, fails)
		if t.Failed() {
			t.Fatalf("scenario %d: by %v, gap %d, lag %d, append %v", i, sc.by, sc.size, sc.lag, sc.append)
		}
	}
	if joins < 500 || lates < 3 {
		t.Errorf("only %d sessions and %d late rows", joins, lates)
	}
}

func TestStoriesOfSessions(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	const sec = int64(time.Second)
	o := Options{Size: 10 * time.Second, Every: gapOnly}
	var all string

	st := newStory(t, alloc, "A row joins a session if it comes less than the gap after its last row; the session ends the gap after that.", o)
	st.row("a", 1, 0, 0, 0)
	st.row("a", 2, 9, 0, 0)
	st.row("a", 4, 19, 0, 0)
	st.row("b", 8, 5, 0, 0)
	st.advance(29*sec - 1)
	st.advance(29 * sec)
	all += st.end()

	st = newStory(t, alloc, "A row that fills the gap makes one session of two, also after a restart.", o)
	st.row("a", 1, 0, 0, 0)
	st.row("a", 2, 15, 0, 0)
	st.restart()
	st.row("a", 4, 8, 0, 0)
	st.restart()
	all += st.end()

	st = newStory(t, alloc, "A row is late when its own span has ended by its partition's watermark and it falls into no session that has not.", o)
	st.row("a", 1, 20, 0, 0)
	st.row("a", 2, 9, 20, 0)
	st.row("a", 4, 11, 20, 0)
	st.row("b", 8, 10, 20, 0)
	st.row("b", 16, 11, 20, 0)
	all += st.end()

	st = newStory(t, alloc, "A row whose own span has ended still counts in a session that has not.", o)
	st.row("a", 1, 0, 0, 0)
	st.row("a", 2, 9, 0, 0)
	st.row("a", 4, 18, 0, 0)
	st.row("a", 8, 2, 20, 0)
	all += st.end()

	st = newStory(t, alloc, "A session that has ended for a partition takes none of its rows, whether it has left or not.", o)
	st.row("a", 1, 0, 0, 0)
	st.row("a", 2, 5, 11, 0)
	all += st.end()

	st = newStory(t, alloc, "Sessions on append time end by append time.", Options{Size: 10 * time.Second, Every: gapOnly, OnAppend: true})
	st.row("a", 1, 1000, 2000, 3)
	st.row("a", 2, 5, 2000, 12)
	st.a.ObserveAppend(22 * sec)
	st.advance(0)
	all += st.end()

	st = newStory(t, alloc, "A bounded emission goes on where it stopped, also after a restart.", Options{Size: 10 * time.Second, Every: gapOnly, EmitRows: 2})
	for i, k := range []string{"d", "b", "a", "c", "e"} {
		st.row(k, int64(i), 7, 0, 0)
	}
	st.advance(20 * sec)
	st.restart()
	st.advance(20 * sec)
	st.restart()
	all += st.end()

	golden.Check(t, "testdata/sessions.txt", all)
}

func FuzzRestoreSession(f *testing.F) {
	sc := &scenario{by: []int{colTag, colList}, size: 20, every: gapOnly, slots: forSessions(testSlots()), rows: [][]row{{{ts: 5, values: randomValues(rand.New(rand.NewPCG(2, 2)), true)}}}}
	a, err := newMachine(sc.options(nil))
	if err != nil {
		f.Fatal(err)
	}
	a.Process(makeBatch(memory.DefaultAllocator, rowTypes, sc.rows[0]), &drain{})
	a.Changes(func(key, value []byte) { f.Add(slices.Clone(key), slices.Clone(value)) })
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a, err := newMachine(sc.options(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if err := a.Restore(key, value); err != nil && !errors.Is(err, ErrState) {
			t.Fatalf("untyped error: %v", err)
		}
		a.Advance(operators.MaxEventTime, &drain{})
	})
}

// BenchmarkSession counts by an int64 key in order of time, as a step of a pipeline would: rows, a watermark,
// the changes.
func BenchmarkSession(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			const batch = 8192
			r := rand.New(rand.NewPCG(1, 1))
			batches := make([]*operators.Batch, 64)
			for i := range batches {
				kb := array.NewInt64Builder(memory.DefaultAllocator)
				for range batch {
					kb.Append(int64(r.IntN(n)))
				}
				batches[i] = operators.NewBatch([]arrow.Array{kb.NewArray()}, make([]int64, batch))
				batches[i].Behind, batches[i].Offsets = make([]int64, batch), make([]int64, batch)
			}
			a, err := NewSessions(Options{
				By: operators.Columns{0}, ByTypes: []scalar.Type{scalar.TypeInt64}, ByNames: []string{"bidder"},
				Slots:   []Slot{{Func: "count", Type: scalar.TypeInt64}},
				Results: operators.Columns{3}, Size: 10 * time.Second,
			})
			if err != nil {
				b.Fatal(err)
			}
			s := drain{}
			b.ReportAllocs()
			const lag = 4 * int64(time.Second)
			step := 10 * int64(time.Second) / int64(n) / 4 // a key comes every 2.5 s, about: sessions of some rows
			now, i := int64(0), 0
			for b.Loop() {
				in := batches[i%len(batches)]
				for j := range in.Time {
					in.Behind[j] = now - lag
					now += step
					in.Time[j] = now
				}
				in.Retain()
				a.Process(in, &s)
				if i++; i%8 == 0 { // a step
					a.Advance(now-lag, &s)
					a.Changes(func(key, value []byte) {})
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds()/1e6, "Mrows/s")
			b.ReportMetric(float64(b.N*batch)/float64(max(s.rows, 1)), "rows/session")
		})
	}
}
