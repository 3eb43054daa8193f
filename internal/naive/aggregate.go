package naive

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A group is the rows of one key in one window.
type group struct {
	start, end int64
	by         []scalar.Value
	key        []byte
	rows       []*folded

	// Of a session of one partition, and of the sessions that became one.
	low   int64
	sums  map[int]float64 // by slot: sums of floats, in the order in which the language adds
	parts []*group
}

// A folded row is a row with the arguments of the aggregates, by slot. Where the slot's filter does not hold, taken
// is false.
type folded struct {
	*row
	args  []scalar.Value
	by    []scalar.Value // of arg_min and arg_max
	taken []bool
}

// aggregate folds each group once all rows are there.
func (p *pipeline) aggregate(st *plan.Stage, rows []*row) ([]*row, error) {
	agg := st.Agg
	groups := map[string]*group{}
	sessions := map[string][]*group{}
	keys := make([]int, len(agg.By))
	schema := plan.Schema{}
	for i, b := range agg.By {
		keys[i] = i
		schema.Columns = append(schema.Columns, plan.Column{Name: b.Name, Type: b.Expr.Type})
	}
	for _, r := range rows {
		var spans [][2]int64
		var code scalar.Code
		var late bool
		if agg.Window.Kind != plan.WindowSession {
			spans, code, late = spansOf(agg, r)
		}
		switch {
		case code != 0:
			p.lose(r, code.String())
			continue
		case late:
			p.lose(r, "late")
			continue
		}
		f, by, code := p.fold(agg, r)
		if code != 0 {
			p.lose(r, code.String())
			continue
		}
		key, _, code := encodeKey(by, keys, schema)
		if code != 0 {
			p.lose(r, code.String())
			continue
		}
		name := fmt.Sprintf("%q", key)
		for _, b := range by {
			name += fmt.Sprint(b.IsNull())
		}
		if agg.Window.Kind == plan.WindowSession && !p.join(sessions, name, &group{by: by, key: key}, f, int64(agg.Window.Size)) {
			p.lose(r, "late")
			continue
		}
		for _, s := range spans {
			id := fmt.Sprintf("%d %d %s", s[0], s[1], name)
			g := groups[id]
			if g == nil {
				g = &group{start: s[0], end: s[1], by: by, key: key}
				groups[id] = g
			}
			g.rows = append(g.rows, f)
		}
	}
	var all []*group
	for _, name := range sortedKeys(sessions) {
		all = append(all, whole(sessions[name])...)
	}
	for _, id := range sortedKeys(groups) {
		all = append(all, groups[id])
	}
	slices.SortStableFunc(all, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.end, b.end), slices.Compare(a.key, b.key), cmp.Compare(a.start, b.start))
	})
	var out []*row
	for _, g := range all {
		r, code := p.result(agg, g)
		if code != 0 {
			p.lose(&row{partition: -1, key: g.key}, code.String())
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

// fold evaluates what the aggregate needs of a row.
func (p *pipeline) fold(agg *plan.Aggregate, r *row) (f *folded, by []scalar.Value, code scalar.Code) {
	f = &folded{row: r, args: make([]scalar.Value, len(agg.Slots)), by: make([]scalar.Value, len(agg.Slots)), taken: make([]bool, len(agg.Slots))}
	for _, b := range agg.By {
		v, c := p.eval(b.Expr, r)
		if c != 0 {
			return nil, nil, c
		}
		if v.Kind.Float() {
			if v.F-v.F != 0 {
				return nil, nil, scalar.CodeNotFinite
			}
			if v.F == 0 {
				v.F = 0
			}
		}
		by = append(by, v)
	}
	for i, s := range agg.Slots {
		f.taken[i] = true
		if s.Filter != nil {
			v, c := p.eval(s.Filter, r)
			if c != 0 {
				return nil, nil, c
			}
			f.taken[i] = v.Bool()
		}
		if s.Arg == nil || !f.taken[i] {
			continue
		}
		v, c := p.eval(s.Arg, r)
		if c != 0 {
			return nil, nil, c
		}
		f.args[i], f.taken[i] = v, !v.IsNull()
		if s.By != nil {
			if f.by[i], c = p.eval(s.By, r); c != 0 {
				return nil, nil, c
			}
			f.taken[i] = f.taken[i] && !f.by[i].IsNull()
		}
	}
	return f, by, 0
}

// spansOf lists the windows that take a row; late: all that would have are closed.
func spansOf(agg *plan.Aggregate, r *row) (spans [][2]int64, code scalar.Code, late bool) {
	at, behind := r.time, r.behind
	if agg.OnAppend {
		at, behind = r.appendTime, Never
	}
	size, every := int64(agg.Window.Size), int64(agg.Window.Every)
	if agg.Window.Kind == plan.WindowCalendar {
		c, err := scalar.NewCalendar(agg.Window.Unit, agg.Window.Zone)
		if err != nil {
			panic("naive: " + err.Error())
		}
		start, end := c.Span(at)
		return [][2]int64{{start, end}}, 0, end <= behind
	}
	if agg.Window.Kind == plan.WindowCumulate {
		start := scalar.FloorDiv(at, size) * size
		for end := start + every; end <= start+size; end += every {
			if end > at && end > behind {
				spans = append(spans, [2]int64{start, end})
			}
		}
		return spans, 0, len(spans) == 0
	}
	if at > math.MaxInt64-2*size || at < math.MinInt64+2*size {
		return nil, scalar.CodeTimeRange, false
	}
	for start := scalar.FloorDiv(at, every) * every; start+size > at; start -= every {
		if start+size > behind {
			spans = append(spans, [2]int64{start, start + size})
		}
	}
	return spans, 0, len(spans) == 0
}

// join puts a row into the sessions of its key and partition. It answers false if the row is late.
func (p *pipeline) join(sessions map[string][]*group, name string, fresh *group, f *folded, gap int64) bool {
	*fresh = group{by: fresh.by, key: fresh.key, start: f.time, end: f.time + gap, low: max(f.time, f.behind), sums: map[int]float64{}}
	var apart, joined []*group
	for _, s := range sessions[name] {
		if s.rows[0].partition == f.partition && s.end > max(f.time, f.behind) && s.start < f.time+gap {
			joined = append(joined, s)
		} else {
			apart = append(apart, s)
		}
	}
	if len(joined) == 0 && f.time+gap <= f.behind {
		return false
	}
	seen := map[int]bool{}
	add := func(slot int, v float64) {
		if !seen[slot] {
			seen[slot], fresh.sums[slot] = true, v
			return
		}
		fresh.sums[slot] += v
	}
	for len(joined) > 0 {
		slices.SortFunc(joined, func(a, b *group) int { return cmp.Compare(a.low, b.low) })
		for _, s := range joined {
			fresh.start, fresh.end, fresh.low = min(fresh.start, s.start), max(fresh.end, s.end), min(fresh.low, s.low)
			fresh.rows = append(fresh.rows, s.rows...)
			for slot, v := range s.sums {
				add(slot, v)
			}
		}
		// The session may reach others of its partition by now.
		joined = nil
		apart = slices.DeleteFunc(apart, func(s *group) bool {
			reached := s.rows[0].partition == f.partition && s.low < fresh.end && fresh.low < s.end
			if reached {
				joined = append(joined, s)
			}
			return reached
		})
	}
	fresh.rows = append(fresh.rows, f)
	for slot, v := range f.args {
		if f.taken[slot] {
			add(slot, v.F)
		}
	}
	sessions[name] = append(apart, fresh)
	return true
}

// whole joins the sessions of a key whose covers [low, end) overlap, whatever their partitions.
func whole(sessions []*group) (out []*group) {
	slices.SortFunc(sessions, func(a, b *group) int { return cmp.Compare(a.low, b.low) })
	for _, s := range sessions {
		n := len(out)
		if n == 0 || s.low >= out[n-1].end {
			out = append(out, &group{start: s.start, end: s.end, by: s.by, key: s.key, rows: slices.Clone(s.rows), parts: []*group{s}})
			continue
		}
		g := out[n-1]
		g.start, g.end = min(g.start, s.start), max(g.end, s.end)
		g.rows, g.parts = append(g.rows, s.rows...), append(g.parts, s)
	}
	for _, g := range out {
		slices.SortStableFunc(g.parts, func(a, b *group) int { return cmp.Compare(a.rows[0].partition, b.rows[0].partition) })
	}
	return out
}

// result is the row that a group gives.
func (p *pipeline) result(agg *plan.Aggregate, g *group) (*row, scalar.Code) {
	values := append(slices.Clone(g.by), scalar.Time(g.start), scalar.Time(g.end))
	for i := range agg.Slots {
		v, code := p.slot(agg.Window, g, &agg.Slots[i], i)
		if code != 0 {
			return nil, code
		}
		values = append(values, v)
	}
	in := &row{values: values, partition: -1, offset: -1, time: g.end - 1, behind: Never, key: g.key, keyNull: len(agg.By) == 0 || len(agg.By) == 1 && g.by[0].IsNull()}
	out := *in
	out.values = slices.Clone(values[:len(agg.By)+2])
	for _, n := range agg.Results {
		v, code := p.eval(n.Expr, in)
		if code != 0 {
			return nil, code
		}
		out.values = append(out.values, v)
	}
	return &out, 0
}

// slot folds one aggregate over the rows of the group.
func (p *pipeline) slot(w plan.Window, g *group, s *plan.AggCall, i int) (scalar.Value, scalar.Code) {
	var rows []*folded
	for _, r := range g.rows {
		if r.taken[i] {
			rows = append(rows, r)
		}
	}
	switch s.Func {
	case "count":
		return scalar.Int(int64(len(rows))), 0
	case "count_distinct":
		var seen []scalar.Value
		for _, r := range rows {
			v := r.args[i]
			if v.F == 0 {
				v.F = 0
			}
			seen = append(seen, v)
		}
		slices.SortFunc(seen, scalar.Compare)
		return scalar.Int(int64(len(slices.CompactFunc(seen, func(a, b scalar.Value) bool { return scalar.Compare(a, b) == 0 })))), 0
	}
	if len(rows) == 0 {
		return scalar.Null, 0
	}
	switch s.Func {
	case "min", "max":
		best := rows[0].args[i]
		for _, r := range rows {
			if c := scalar.Compare(r.args[i], best); c < 0 && s.Func == "min" || c > 0 && s.Func == "max" {
				best = r.args[i]
			}
		}
		return best, 0
	case "sum", "avg":
		return sum(w, g, s, i, rows)
	}
	return p.ordered(s, i, rows)
}

// sum adds exactly, and floats in the order that the language promises: each source partition for itself in offset
// order (slice by slice where windows share slices), then the partitions in their order.
func sum(w plan.Window, g *group, s *plan.AggCall, i int, rows []*folded) (scalar.Value, scalar.Code) {
	if s.Arg.Type.Kind.Float() {
		slice := func(*folded) int64 { return 0 }
		if every := int64(w.Every); w.Kind == plan.WindowCumulate {
			// A row that is behind lies in the first slice that is open.
			slice = func(r *folded) int64 { return scalar.FloorDiv(max(r.time, r.behind), every) }
		}
		slices.SortStableFunc(rows, func(a, b *folded) int {
			return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(slice(a), slice(b)), cmp.Compare(a.offset, b.offset))
		})
		var parts []float64
		var of []int // partition of each part
		for k, r := range rows {
			if k == 0 || rows[k-1].partition != r.partition || slice(rows[k-1]) != slice(r) {
				parts, of = append(parts, r.args[i].F), append(of, r.partition)
				continue
			}
			parts[len(parts)-1] += r.args[i].F
		}
		if g.parts != nil {
			parts = nil
			last := -1
			for _, x := range g.parts {
				v, ok := x.sums[i]
				switch at := x.rows[0].partition; {
				case !ok:
				case at == last:
					parts[len(parts)-1] += v
				default:
					parts, last = append(parts, v), at
				}
			}
		}
		for k := 1; k < len(of) && g.parts == nil; { // slices of one partition first
			if of[k] != of[k-1] {
				k++
				continue
			}
			parts[k-1] += parts[k]
			parts, of = slices.Delete(parts, k, k+1), slices.Delete(of, k, k+1)
		}
		total := parts[0]
		for _, part := range parts[1:] {
			total += part
		}
		if s.Func == "avg" {
			total /= float64(len(rows))
		}
		if s.Type.Kind == scalar.KindFloat32 {
			return scalar.Float32(float32(total)), 0
		}
		return scalar.Float(total), 0
	}
	total := new(big.Int)
	scale := int32(0)
	for _, r := range rows {
		v := r.args[i]
		switch {
		case v.Kind == scalar.KindDecimal:
			total.Add(total, v.D.Big())
			scale = s.Arg.Type.Scale
		case v.Kind.Unsigned():
			total.Add(total, new(big.Int).SetUint64(v.Uint()))
		default:
			total.Add(total, big.NewInt(v.I))
		}
	}
	mean := new(big.Rat).SetFrac(total, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil))
	if s.Func == "avg" {
		mean.Quo(mean, new(big.Rat).SetInt64(int64(len(rows))))
	}
	switch k := s.Type.Kind; {
	case k.Float():
		f, _ := mean.Float64()
		return scalar.Value{Kind: k, F: f}, 0
	case k == scalar.KindDecimal:
		d, code := scalar.ParseDecimalAs(halfEven(mean, int(s.Type.Scale)), s.Type.Precision, s.Type.Scale)
		return scalar.Decimal(d), code
	default:
		n, ok := scalar.ParseInt(mean.Num().String(), k)
		if k == scalar.KindDuration || k == scalar.KindTime {
			n, ok = mean.Num().Int64(), mean.Num().IsInt64()
		}
		if !ok {
			return scalar.Null, scalar.CodeOverflow
		}
		return scalar.IntOf(k, n), 0
	}
}

// halfEven is a number with the given digits after the point, a tie to the even one.
func halfEven(r *big.Rat, scale int) string {
	scaled := new(big.Rat).Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)))
	q, m := new(big.Int).DivMod(scaled.Num(), scaled.Denom(), new(big.Int)) // floor
	if c := new(big.Int).Lsh(m, 1).Cmp(scaled.Denom()); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetFrac(q, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)).FloatString(scale)
}
