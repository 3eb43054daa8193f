package window

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

func TestCumulateEqualsItsDefinitionForAnyStepsAndRestarts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range scenarios(10) {
		r := rand.New(rand.NewPCG(seed, i))
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		sc := randomScenario(r)
		every := 5 + r.IntN(15)
		sc.size, sc.every = time.Duration(every*(1+r.IntN(6))), time.Duration(-every)
		sc.slots = forSessions(sc.slots)
		lines, late, fails := sc.naive()
		sc.compare(t, r, alloc, lines, late, fails)
		if t.Failed() {
			t.Fatalf("scenario %d: by %v, window %d every %d, append %v", i, sc.by, sc.size, every, sc.append)
		}
	}
}

// slicedSums are the float sums of the partitions: those of the slices that hold the later of time and watermark, in
// order.
func (sc *scenario) slicedSums(rows []row) func(takes func(row) bool, value func(row) float64) []float64 {
	return func(takes func(row) bool, value func(row) float64) (sums []float64) {
		for p := range int32(len(sc.rows)) {
			bySlice := map[int64]float64{}
			var order []int64
			for _, r := range rows {
				if r.partition != p || !takes(r) {
					continue
				}
				u := r.appended
				if !sc.append {
					u = max(r.ts, r.behind)
				}
				s := scalar.FloorDiv(u, int64(-sc.every))
				if sum, ok := bySlice[s]; ok {
					bySlice[s] = sum + value(r)
				} else {
					bySlice[s], order = value(r), append(order, s)
				}
			}
			slices.Sort(order)
			for i, s := range order {
				if i == 0 {
					sums = append(sums, bySlice[s])
				} else {
					sums[len(sums)-1] += bySlice[s]
				}
			}
		}
		return sums
	}
}

func TestStoriesOfCumulate(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	const sec = int64(time.Second)
	var all string

	st := newStory(t, alloc, "A window grows by its step until its end; every group leaves at each of them.", Options{Size: 15 * time.Second, Every: -5 * time.Second})
	st.row("a", 1, 2, 0, 0)
	st.row("b", 2, 7, 0, 0)
	st.row("a", 4, 16, 0, 0)
	st.advance(5 * sec)
	st.restart()
	st.advance(15 * sec)
	all += st.end()

	st = newStory(t, alloc, "A row that is behind counts in the windows that end after its partition's watermark.", Options{Size: 15 * time.Second, Every: -5 * time.Second})
	st.row("a", 1, 2, 0, 0)
	st.row("a", 2, 3, 5, 0)
	st.row("a", 4, 14, 15, 0)
	all += st.end()

	st = newStory(t, alloc, "A bounded emission goes on where it stopped, also after a restart.", Options{Size: 10 * time.Second, Every: -5 * time.Second, EmitRows: 2})
	for i, k := range []string{"d", "b", "a"} {
		st.row(k, int64(i), 1, 0, 0)
	}
	st.advance(20 * sec)
	st.restart()
	st.advance(20 * sec)
	st.restart()
	st.advance(20 * sec)
	all += st.end()

	golden.Check(t, "testdata/cumulate.txt", all)
}

func TestCumulateRefusesStepsThatDoNotFit(t *testing.T) {
	for _, every := range []time.Duration{0, 7 * time.Second, 20 * time.Second} {
		if _, err := NewCumulate(Options{Results: operators.Columns{}, Size: 10 * time.Second, Every: every}); !errors.Is(err, ErrOptions) {
			t.Error(fmt.Sprint(every), err)
		}
	}
}
