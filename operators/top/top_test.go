package top_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/rowtest"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/rows"
	"github.com/headrace/headrace/operators/top"
)

var (
	types = []scalar.Type{scalar.TypeString.Null(), scalar.TypeInt64.Null(), scalar.TypeFloat64, scalar.TypeTime, scalar.TypeTime}
	names = []string{"group", "n", "x", "window_start", "window_end"}
)

// A setting is one way to ask for the best rows.
type setting struct {
	top.Options
	grouped, byRow bool
}

func settingOf(rng *rand.Rand) setting {
	s := setting{grouped: rng.IntN(2) == 0, byRow: rng.IntN(3) == 0}
	s.N, s.Ties, s.Rank = 1+rng.IntN(4), rng.IntN(2) == 0, rng.IntN(2) == 0
	s.Order = []top.Order{{Column: 1, Desc: rng.IntN(2) == 0}, {Column: 2, Desc: rng.IntN(2) == 0}}[:1+rng.IntN(2)]
	s.Rows = rows.Shape{Types: types, Names: names, Kept: len(types), Topic: "src"}
	if s.grouped {
		s.Rows.Group = []int{0}
	}
	if s.byRow {
		s.Start, s.End = 3, 4
	} else {
		s.Every = time.Duration(3 + rng.IntN(10))
		s.Size = s.Every * time.Duration(1+rng.IntN(3))
	}
	s.EmitRows = rng.IntN(5)
	return s
}

func (s setting) out() []scalar.Type {
	out := slices.Clone(types)
	if !s.byRow {
		out = append(out, scalar.TypeTime, scalar.TypeTime)
	}
	if s.Rank {
		out = append(out, scalar.TypeInt64)
	}
	return out
}

// naive sorts all rows of each (window, group).
func naive(s setting, all []rowtest.Row) (out []string) {
	type place struct {
		start, end int64
		group      string
	}
	groups := map[place][]*rowtest.Row{}
	for i := range all {
		r := &all[i]
		var wins [][2]int64
		if s.byRow {
			wins = append(wins, [2]int64{r.Values[3].I, r.Values[4].I})
		} else {
			for start := int64(-1000); start <= r.Time; start++ {
				if start%int64(s.Every) == 0 && r.Time < start+int64(s.Size) {
					wins = append(wins, [2]int64{start, start + int64(s.Size)})
				}
			}
		}
		for _, w := range wins {
			g := "-" // sorts before the others, as the null key does
			if s.grouped && !r.Values[0].IsNull() {
				g = "=" + r.Values[0].S
			}
			if w[1] > r.Behind {
				p := place{w[0], w[1], g}
				groups[p] = append(groups[p], r)
			}
		}
	}
	var places []place
	for p := range groups {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b place) int {
		switch {
		case a.end != b.end:
			return int(a.end - b.end)
		case a.start != b.start:
			return int(a.start - b.start)
		case a.group < b.group:
			return -1
		}
		return 1
	})
	compare := func(a, b *rowtest.Row) int {
		for _, o := range s.Order {
			x, y := a.Values[o.Column], b.Values[o.Column]
			switch {
			case x.IsNull() && y.IsNull():
				continue
			case x.IsNull():
				return 1
			case y.IsNull():
				return -1
			}
			nx, ny := x.F != x.F, y.F != y.F
			c := scalar.Compare(x, y)
			if o.Desc && nx == ny {
				c = -c
			}
			if c != 0 {
				return c
			}
		}
		return 0
	}
	for _, p := range places {
		rows := groups[p]
		slices.SortStableFunc(rows, func(a, b *rowtest.Row) int {
			if c := compare(a, b); c != 0 {
				return c
			}
			a, b = &rowtest.Row{Time: a.Time, Behind: math.MinInt64, Partition: a.Partition, Offset: a.Offset}, &rowtest.Row{Time: b.Time, Behind: math.MinInt64, Partition: b.Partition, Offset: b.Offset}
			return rowtest.Before(a, b)
		})
		rank := 0
		for i, r := range rows {
			if i == 0 || !s.Ties || compare(rows[i-1], r) != 0 {
				rank = i + 1
			}
			if rank > s.N {
				break
			}
			values := slices.Clone(r.Values)
			if !s.byRow {
				values = append(values, scalar.Time(p.start), scalar.Time(p.end))
			}
			if s.Rank {
				values = append(values, scalar.Int(int64(rank)))
			}
			var key []byte
			if p.group != "-" {
				key = []byte(p.group[1:])
			}
			out = append(out, rowtest.Line(p.end-1, key, values, s.out()))
		}
	}
	return out
}

func TestTheBestRowsOfAWindowAreThoseOfASort(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 5))
		s := settingOf(rng)
		lag := rng.Int64N(12)
		data := rowtest.Random(rng, 1+rng.IntN(3), 60, lag, rng.Int64N(20), func() []scalar.Value {
			g, n := scalar.String([]string{"a", "b", "", "\"c"}[rng.IntN(4)]), scalar.Int(rng.Int64N(6))
			if rng.IntN(8) == 0 {
				g = scalar.Null
			}
			if rng.IntN(8) == 0 {
				n = scalar.Null
			}
			return []scalar.Value{g, n, scalar.Float([]float64{1, math.Copysign(0, -1), 0, -1e9, math.Inf(1)}[rng.IntN(4)]), scalar.Time(0), scalar.Time(0)}
		})
		var all []rowtest.Row
		for p := range data {
			for i := range data[p] {
				r := &data[p][i]
				start := scalar.FloorDiv(r.Time, 9) * 9
				r.Values[3], r.Values[4] = scalar.Time(start), scalar.Time(start+9)
				all = append(all, *r)
			}
		}
		want := naive(s, all)
		o := rowtest.Options{Types: types, Out: s.out(), Lag: lag, New: func(alloc memory.Allocator) operators.Stateful {
			opts := s.Options
			opts.Rows.Alloc = alloc
			op, err := top.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			return op
		}}
		for range 3 {
			got := rowtest.Do(t, rng, o, data)
			if !slices.Equal(got.Out, want) {
				i := 0
				for i < len(got.Out) && i < len(want) && got.Out[i] == want[i] {
					i++
				}
				t.Fatalf("seed %d, %+v: %d rows, want %d; from row %d:\n%.300s\n%.300s", seed, s, len(got.Out), len(want), i, fmt.Sprint(got.Out[i:]), fmt.Sprint(want[i:]))
			}
		}
		rowtest.Garble(t, rng, o, data)
	}
}

func TestATableHasTheBestRowsSoFar(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 6))
		lag := rng.Int64N(12)
		s := top.Options{
			Rows: rows.Shape{Types: types[:3], Names: names[:3], Kept: 3, Group: []int{0}, Topic: "src"},
			N:    1 + rng.IntN(5), Order: []top.Order{{Column: 1, Desc: rng.IntN(2) == 0}}, Rank: true, Update: true, EmitRows: 2,
		}
		data := rowtest.Random(rng, 1+rng.IntN(3), 60, lag, rng.Int64N(20), func() []scalar.Value {
			return []scalar.Value{scalar.String([]string{"a", "b", ""}[rng.IntN(3)]), scalar.Int(rng.Int64N(9)), scalar.Float(rng.Float64())}
		})
		groups := map[string][]*rowtest.Row{}
		for p := range data {
			for i := range data[p] {
				r := &data[p][i]
				groups[r.Values[0].S] = append(groups[r.Values[0].S], r)
			}
		}
		out := append(slices.Clone(types[:3]), scalar.TypeInt64)
		want := map[string]string{}
		for g, list := range groups {
			slices.SortStableFunc(list, func(a, b *rowtest.Row) int {
				if c := int(a.Values[1].I - b.Values[1].I); c != 0 {
					if s.Order[0].Desc {
						return -c
					}
					return c
				}
				x := rows.Place{Time: a.Time, Partition: a.Partition, Offset: a.Offset}
				return x.Compare(rows.Place{Time: b.Time, Partition: b.Partition, Offset: b.Offset})
			})
			for i, r := range list[:min(len(list), s.N)] {
				key := fmt.Sprintf("[%q,%d]", g, i+1)
				want[key] = rowtest.Line(r.Time, []byte(key), append(slices.Clone(r.Values), scalar.Int(int64(i+1))), out)
			}
		}
		o := rowtest.Options{Types: types[:3], Out: out, Lag: lag, New: func(alloc memory.Allocator) operators.Stateful {
			opts := s
			opts.Rows.Alloc = alloc
			op, err := top.New(opts)
			if err != nil {
				t.Fatal(err)
			}
			return op
		}, Step: true}
		for range 3 {
			got, table := rowtest.Do(t, rng, o, data), map[string]string{}
			for i, key := range got.Keys {
				table[key] = got.Out[i]
			}
			if !maps.Equal(table, want) {
				t.Fatalf("seed %d:\n%v\n%v", seed, table, want)
			}
		}
		rowtest.Garble(t, rng, o, data)
	}
}

func BenchmarkTop(b *testing.B) {
	const n = 4096
	rng := rand.New(rand.NewPCG(1, 1))
	var batch []rowtest.Row
	for i := range n {
		batch = append(batch, rowtest.Row{Time: int64(i), Behind: math.MinInt64, Offset: int64(i), Values: []scalar.Value{
			scalar.String(fmt.Sprint("g", rng.IntN(500))), scalar.Int(rng.Int64()), scalar.Float(1), scalar.Time(0), scalar.Time(10),
		}})
	}
	alloc := memory.NewGoAllocator()
	op, err := top.New(top.Options{
		Rows: rows.Shape{Types: types, Names: names, Kept: len(types), Group: []int{0}}, N: 3, Order: []top.Order{{Column: 1, Desc: true}}, Size: time.Hour,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer op.Close()
	in := rowtest.Batch(alloc, types, batch, false)
	b.ReportAllocs()
	for b.Loop() {
		in.Retain()
		op.Process(in, nil)
		op.Changes(func(k, v []byte) {})
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}
