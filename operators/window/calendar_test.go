package window

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// Days of a zone around the change of its clock, with rows that are behind, steps and restarts.
func TestCalendarDaysEqualTheirDefinition(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range scenarios(6) {
		r := rand.New(rand.NewPCG(seed, i))
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		sc := randomScenario(r)
		sc.zone = []string{"Europe/Berlin", "America/New_York", "Asia/Kolkata"}[r.IntN(3)]
		loc, err := scalar.Zone(sc.zone)
		if err != nil {
			t.Fatal(err)
		}
		sc.day = func(at int64) [2]int64 {
			y, m, d := time.Unix(0, at).In(loc).Date()
			return [2]int64{time.Date(y, m, d, 0, 0, 0, 0, loc).UnixNano(), time.Date(y, m, d+1, 0, 0, 0, 0, loc).UnixNano()}
		}
		base := time.Date(2024, []time.Month{3, 10}[r.IntN(2)], 26, 0, 0, 0, 0, time.UTC).UnixNano()
		scale := int64(20 * time.Minute)
		for _, rows := range sc.rows {
			for k := range rows {
				for _, at := range []*int64{&rows[k].ts, &rows[k].behind, &rows[k].appended} {
					if *at != operators.MinEventTime && *at != operators.MaxEventTime {
						*at = base + *at*scale
					}
				}
			}
		}
		lines, late, fails := sc.naive()
		sc.compare(t, r, alloc, lines, late, fails)
		if t.Failed() {
			t.Fatalf("scenario %d in %s", i, sc.zone)
		}
	}
}
