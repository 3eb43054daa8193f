package naive

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// explode makes a row of each element of a list.
func (p *pipeline) explode(st *plan.Stage, rows []*row) (out []*row) {
	for _, r := range rows {
		list, code := p.eval(st.Explode.List, r)
		if code != 0 {
			p.lose(r, code.String())
			continue
		}
		add := func(elem, place scalar.Value, nth int) {
			next := *r
			next.nth = nth
			next.values = append(slices.Clone(r.values), elem)
			if st.Explode.Index {
				next.values = append(next.values, place)
			}
			out = append(out, &next)
		}
		for i, elem := range list.L {
			add(elem, scalar.Int(int64(i)), i)
		}
		if len(list.L) == 0 && st.Explode.Left {
			add(scalar.Null, scalar.Null, 0)
		}
	}
	return out
}

// top gives the best rows of each group of each window.
func (p *pipeline) top(st *plan.Stage, rows []*row) ([]*row, error) {
	t := st.Top
	type ranked struct {
		*row
		order []scalar.Value
	}
	type best struct {
		start, end int64
		name       string
		rows       []ranked
	}
	groups := map[string]*best{}
	for _, r := range rows {
		full := *r
		full.values = slices.Clone(r.values)
		bad := scalar.Code(0)
		for _, a := range t.Added {
			v, code := p.eval(a.Expr, r)
			bad = cmp.Or(bad, code)
			full.values = append(full.values, v)
		}
		x := ranked{row: &full}
		for _, o := range t.Order {
			v, code := p.eval(o.Expr, r)
			bad = cmp.Or(bad, code)
			x.order = append(x.order, v)
		}
		key, null, code := encodeKey(full.values, t.Group, st.Out)
		if bad = cmp.Or(bad, code); bad != 0 {
			p.lose(r, bad.String())
			continue
		}
		name := fmt.Sprintf("1%s", key)
		if null {
			name = "0"
		}
		full.key, full.keyNull = key, null
		var spans [][2]int64
		if t.Window.Kind == 0 {
			if end := full.values[t.End].I; end > r.behind {
				spans = append(spans, [2]int64{full.values[t.Start].I, end})
			}
		} else {
			size, every := int64(t.Window.Size), int64(t.Window.Every)
			if every == 0 {
				every = size
			}
			if r.time > math.MaxInt64-2*size || r.time < math.MinInt64+2*size {
				p.lose(r, scalar.CodeTimeRange.String())
				continue
			}
			for start := scalar.FloorDiv(r.time, every) * every; start+size > r.time; start -= every {
				if start+size > r.behind {
					spans = append(spans, [2]int64{start, start + size})
				}
			}
		}
		if len(spans) == 0 {
			p.lose(r, "late")
			continue
		}
		for _, s := range spans {
			id := fmt.Sprintf("%d %d %s", s[0], s[1], name)
			if groups[id] == nil {
				groups[id] = &best{start: s[0], end: s[1], name: name}
			}
			groups[id].rows = append(groups[id].rows, x)
		}
	}
	better := func(a, b ranked) int {
		for i, o := range t.Order {
			x, y := a.order[i], b.order[i]
			c := scalar.Compare(x, y)
			switch {
			case x.IsNull() || y.IsNull():
				c = -c // null comes last, whatever the direction
			case o.Desc:
				c = -c
			}
			if x.Kind.Float() && x.F == 0 && y.F == 0 && !y.IsNull() {
				c = 0
			}
			if c != 0 {
				return c
			}
		}
		return 0
	}
	var all []*best
	for _, id := range sortedKeys(groups) {
		all = append(all, groups[id])
	}
	slices.SortStableFunc(all, func(a, b *best) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.start, b.start), cmp.Compare(a.name, b.name))
	})
	var out []*row
	for _, g := range all {
		slices.SortStableFunc(g.rows, func(a, b ranked) int { return cmp.Or(better(a, b), a.before(b.row)) })
		rank := 0
		for i, x := range g.rows {
			if i == 0 || !t.Ties || better(g.rows[i-1], x) != 0 {
				rank = i + 1
			}
			if i >= t.N && !(t.Ties && better(g.rows[t.N-1], x) == 0) {
				break
			}
			next := *x.row
			next.partition, next.offset, next.time, next.behind = -1, int64(len(out)), g.end-1, Never
			if t.Window.Kind != 0 {
				next.values = append(next.values, scalar.Time(g.start), scalar.Time(g.end))
			}
			if t.Rank {
				next.values = append(next.values, scalar.Int(int64(rank)))
			}
			out = append(out, &next)
		}
	}
	return out, nil
}
