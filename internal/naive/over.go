package naive

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// over looks back over all rows of a key for each of them.
func (p *pipeline) over(st *plan.Stage, rows []*row) (out []*row) {
	o := st.Over
	slots := &plan.Aggregate{Slots: o.Slots}
	type waiting struct {
		from, full *row
		folded     *folded
		name       string
	}
	var all []waiting
	for _, r := range rows {
		full := *r
		full.values = slices.Clone(r.values)
		bad := scalar.Code(0)
		for _, a := range o.Added {
			v, code := p.eval(a.Expr, r)
			bad = cmp.Or(bad, code)
			full.values = append(full.values, v)
		}
		f, _, code := p.fold(slots, r)
		bad = cmp.Or(bad, code)
		key, null, code := encodeKey(full.values, o.Group, st.Out)
		switch bad = cmp.Or(bad, code); {
		case bad != 0:
			p.lose(r, bad.String())
			continue
		case r.time < r.behind:
			p.lose(r, "late")
			continue
		}
		full.key, full.keyNull = key, null
		all = append(all, waiting{r, &full, f, fmt.Sprintf("%v %s", null, key)})
	}
	slices.SortStableFunc(all, func(a, b waiting) int { return a.from.before(b.from) })
	span := int64(o.TTL)
	if span == 0 && !o.Forever {
		span = int64(o.Range)
	}
	keys := map[string][]*folded{}
	for i, x := range all {
		x.full.partition, x.full.offset, x.full.behind = -1, int64(i), Never
		x.folded.row = x.full
		mine := keys[x.name]
		if n := len(mine); n > 0 && span > 0 && x.full.time-mine[n-1].time >= span {
			mine = nil
		}
		mine = append(mine, x.folded)
		keys[x.name] = mine
		g := &group{}
		rank := int64(1)
		for k, f := range mine {
			back := len(mine) - 1 - k
			if o.Before && back >= 1 && back <= o.Rows || !o.Before && back < o.Rows || o.Range > 0 && f.time > x.full.time-int64(o.Range) {
				g.rows = append(g.rows, f)
			}
			if f.time < x.full.time {
				rank++
			}
		}
		bad := scalar.Code(0)
		for k := range o.Slots {
			v, code := scalar.Null, scalar.Code(0)
			switch s := &o.Slots[k]; s.Func {
			case "row_number":
				v = scalar.Int(int64(len(mine)))
			case "rank":
				v = scalar.Int(rank)
			case "prev":
				if at := len(mine) - 1 - int(s.Param.Value.I); at >= 0 {
					v = mine[at].args[k]
				}
			default:
				v, code = p.slot(plan.Window{}, g, s, k)
			}
			bad = cmp.Or(bad, code)
			x.full.values = append(x.full.values, v)
		}
		if bad != 0 {
			p.lose(x.from, bad.String())
			continue
		}
		out = append(out, x.full)
	}
	return out
}
