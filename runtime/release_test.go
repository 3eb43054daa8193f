package runtime

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/headrace/headrace/operators"
)

// rowsOfSources makes rows of several partitions with the release times that their prefixes give.
func rowsOfSources(rng *rand.Rand, sources, n int) [][]heldRow {
	out := make([][]heldRow, sources)
	for p := range out {
		w, base := operators.MinEventTime, int64(1000)
		for i := range n {
			base += int64(rng.IntN(5))
			row := heldRow{source: int32(p), offset: int64(i), partition: int32(rng.IntN(3)), time: base - int64(rng.IntN(40))}
			row.at = row.time
			if row.time < w {
				row.late, row.lateness, row.at = true, w, w
			}
			switch rng.IntN(4) {
			case 0:
			case 1:
				row.key, row.value = []byte{}, []byte{}
			default:
				row.key, row.value = []byte{byte(i)}, []byte{byte(p), byte(i)}
			}
			w = max(w, row.time-10)
			out[p] = append(out[p], row)
			for n := rng.IntN(3); n > 0 && rng.IntN(5) == 0; n-- { // an explode made several of one record
				row.place++
				out[p] = append(out[p], row)
			}
		}
	}
	return out
}

func TestHeldRowsLeaveInOneOrderHoweverTheyCome(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		sources := rowsOfSources(rng, 3, 60)
		var want []heldRow
		for _, rows := range sources {
			want = append(want, rows...)
		}
		slices.SortFunc(want, func(a, b heldRow) int {
			switch {
			case a.before(&b):
				return -1
			case b.before(&a):
				return 1
			}
			return 0
		})
		for range 3 {
			got := interleaved(t, rng, sources)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: the order depends on how rows came", seed)
			}
		}
	}
}

// interleaved releases rows as the watermark allows, with a restart now and then.
func interleaved(t *testing.T, rng *rand.Rand, sources [][]heldRow) (got []heldRow) {
	r := &releaser{}
	store := map[string][]byte{}
	next := make([]int, len(sources))
	w := make([]int64, len(sources))
	for p := range w {
		w[p] = operators.MinEventTime
	}
	save := func() {
		r.changes(func(k, v []byte) {
			if v == nil {
				if _, ok := store[string(k)]; !ok {
					t.Fatal("a row is deleted that was never put")
				}
				delete(store, string(k))
				return
			}
			store[string(k)] = slices.Clone(v)
		})
		if len(store) != r.rows.Len() {
			t.Fatalf("%d rows are stored, %d held", len(store), r.rows.Len())
		}
	}
	low := func() int64 { return slices.Min(w) }
	for done := false; !done; {
		p := rng.IntN(len(sources))
		for range rng.IntN(20) {
			if next[p] == len(sources[p]) {
				w[p] = math.MaxInt64
				break
			}
			row := sources[p][next[p]]
			next[p]++
			w[p] = max(w[p], row.time-10)
			r.hold(row)
		}
		limit := rng.IntN(10)
		r.release(low(), func(row *heldRow) bool {
			got = append(got, *row)
			limit--
			return limit > 0
		})
		if rng.IntN(3) == 0 {
			save()
			if rng.IntN(3) == 0 {
				bytes := r.bytes
				r = &releaser{}
				for k, v := range store {
					if err := r.restore([]byte(k), v); err != nil {
						t.Fatal(err)
					}
				}
				if r.bytes != bytes {
					t.Fatalf("%d bytes held after a restart, %d before", r.bytes, bytes)
				}
			}
		}
		done = low() == math.MaxInt64 && r.rows.Len() == 0
	}
	return got
}

func TestHeldRowsAreReadBackAsTheyWere(t *testing.T) {
	rows := []heldRow{
		{at: math.MinInt64, source: 0, offset: 0, time: math.MinInt64},
		{at: math.MaxInt64, source: math.MaxInt32, offset: math.MaxInt64, partition: 9, time: -1, late: true, lateness: math.MaxInt64, key: []byte{}, value: []byte("v")},
		{at: -5, source: 1, offset: 7, partition: 1, time: -5, key: []byte("k")},
		{at: -5, source: 1, offset: 7, place: 2, partition: 1, time: -5, key: []byte("k")},
		{at: -5, source: 1, offset: 8, partition: 1, time: -5, key: []byte("k")},
	}
	var keys []string
	for _, row := range rows {
		k := row.heldPlace().stateKey(nil)
		keys = append(keys, string(k))
		r := &releaser{}
		if err := r.restore(k, row.stateValue()); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.rows[0], row) {
			t.Errorf("got %+v, want %+v", r.rows[0], row)
		}
	}
	if keys[0] > keys[2] || keys[2] > keys[3] || keys[3] > keys[4] || keys[4] > keys[1] {
		t.Error("state keys do not sort like release times")
	}
}

func FuzzHeldRow(f *testing.F) {
	row := heldRow{at: 5, time: 6, late: true, lateness: 7, key: []byte("k"), value: []byte("v")}
	f.Add(row.heldPlace().stateKey(nil), row.stateValue())
	row.place = 3
	f.Add(row.heldPlace().stateKey(nil), row.stateValue())
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r := &releaser{}
		if r.restore(key, value) != nil {
			return
		}
		got := r.rows[0]
		again := &releaser{}
		if err := again.restore(got.heldPlace().stateKey(nil), got.stateValue()); err != nil || !reflect.DeepEqual(again.rows[0], got) {
			t.Fatalf("%+v becomes %+v, %v", got, again.rows[0], err)
		}
	})
}

func TestTheErrorLimitCountsRowsInARowAndInAMinute(t *testing.T) {
	all := func(n int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = i
		}
		return out
	}
	var e errorLimit
	for i := range 9 {
		e.rows(int64(i), 100, all(100))
	}
	if e.reached {
		t.Error("after 900 rows in a row")
	}
	e.rows(9, 100, all(100))
	if !e.reached {
		t.Error("1,000 rows in a row are no reason")
	}
	e = errorLimit{}
	for i := range 100 {
		e.rows(int64(i), 100, all(100)[:10]) // a tenth is not more than a tenth
	}
	if e.reached {
		t.Error("at a tenth")
	}
	e.rows(100, 100, all(100)[50:70])
	if !e.reached {
		t.Error("above a tenth of a minute's rows")
	}
	e = errorLimit{}
	for i := range int64(100) { // one row in two, but few in a minute
		e.rows(i*failedMinute, 500, all(500)[:250])
	}
	if e.reached {
		t.Error("fewer than 1,000 rows in a minute")
	}
	e = errorLimit{}
	e.rows(0, 20_000, all(999))
	e.rows(0, 1, all(1))
	if e.reached {
		t.Error("a good row lies between 999 and 1 failed ones")
	}
}
