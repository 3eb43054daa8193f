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
}

// A folded row is a row with the arguments of the aggregates, by slot. Where the slot's filter does not hold, taken
// is false.
type folded struct {
	*row
	args  []scalar.Value
	taken []bool
}

// aggregate folds each group once all rows are there.
func (p *pipeline) aggregate(st *plan.Stage, rows []*row) ([]*row, error) {
	agg := st.Agg
	groups := map[string]*group{}
	keys := make([]int, len(agg.By))
	schema := plan.Schema{}
	for i, b := range agg.By {
		keys[i] = i
		schema.Columns = append(schema.Columns, plan.Column{Name: b.Name, Type: b.Expr.Type})
	}
	for _, r := range rows {
		spans, code, late := spansOf(agg, r)
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
	f = &folded{row: r, args: make([]scalar.Value, len(agg.Slots)), taken: make([]bool, len(agg.Slots))}
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

// result is the row that a group gives.
func (p *pipeline) result(agg *plan.Aggregate, g *group) (*row, scalar.Code) {
	values := append(slices.Clone(g.by), scalar.Time(g.start), scalar.Time(g.end))
	for i := range agg.Slots {
		v, code := g.slot(&agg.Slots[i], i)
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
func (g *group) slot(s *plan.AggCall, i int) (scalar.Value, scalar.Code) {
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
	case "first", "last":
		slices.SortStableFunc(rows, func(a, b *folded) int { return a.before(b.row) })
		if s.Func == "last" {
			return rows[len(rows)-1].args[i], 0
		}
		return rows[0].args[i], 0
	case "sum", "avg":
		return sum(s, i, rows)
	}
	panic("naive: no naive form of " + s.Func)
}

// sum adds exactly, and floats in the order that the language promises: each source partition for itself in offset
// order, then the partitions in their order.
func sum(s *plan.AggCall, i int, rows []*folded) (scalar.Value, scalar.Code) {
	if s.Arg.Type.Kind.Float() {
		slices.SortStableFunc(rows, func(a, b *folded) int {
			return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
		})
		var parts []float64
		for k, r := range rows {
			if k == 0 || rows[k-1].partition != r.partition {
				parts = append(parts, r.args[i].F)
				continue
			}
			parts[len(parts)-1] += r.args[i].F
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
