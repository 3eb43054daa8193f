package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A tableSink keeps the last row of each key, without the times.
type tableSink struct {
	t     *testing.T
	types []scalar.Type
	rows  map[string]string
	next  operators.Operator // nil: the end
	to    *tableSink
}

func (s *tableSink) Emit(b *operators.Batch) {
	if s.next != nil {
		s.next.Process(b, s.to)
		return
	}
	defer b.Release()
	for i := range b.Rows {
		if b.Deletes(i) {
			delete(s.rows, string(b.Key[i]))
			continue
		}
		line := ""
		for c, arr := range b.Columns {
			text, _ := scalar.AppendJSON(nil, operators.ValueAt(arr, s.types[c], i), s.types[c])
			line += " " + string(text)
		}
		s.rows[string(b.Key[i])] = line
	}
}

func (s *tableSink) Late(*operators.Batch, []int) { s.t.Error("a row is late") }
func (s *tableSink) Fail(_ *operators.Batch, errs []operators.RowError) {
	s.t.Errorf("rows fail: %v", errs)
}

// reopen moves the state of an operator to a fresh one, over what an earlier save has left.
func reopen(t *testing.T, store map[string][]byte, from, to operators.Stateful) {
	t.Helper()
	from.Changes(func(k, v []byte) {
		if v == nil {
			delete(store, string(k))
			return
		}
		store[string(k)] = slices.Clone(v)
	})
	if to == nil {
		return
	}
	from.Close()
	keys := make([]string, 0, len(store))
	for k := range store {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := to.Restore([]byte(k), store[k]); err != nil {
			t.Fatal(err)
		}
	}
	if to.StateRows() != int64(len(store)) {
		t.Fatalf("%d rows of state, %d in the store", to.StateRows(), len(store))
	}
}

// An aggregate over a table is that of its rows now, whatever was replaced, deleted and restarted on the way.
func TestAnAggregateOverATableIsThatOfItsRows(t *testing.T) {
	types := []scalar.Type{scalar.TypeString, scalar.TypeInt64.Null(), scalar.TypeString.Null(), scalar.DecimalType(20, 3)}
	col := func(f string, c int, out scalar.Type) Slot {
		return Slot{Func: f, Arg: operators.Columns{c}, ArgType: types[c], Type: out, Text: f}
	}
	slots := []Slot{
		{Func: "count", Type: scalar.TypeInt64, Text: "count()"},
		col("count", 1, scalar.TypeInt64), col("sum", 1, types[1]), col("min", 1, types[1]), col("max", 1, types[1]),
		col("count_distinct", 2, scalar.TypeInt64), col("min", 2, types[2]), col("max", 2, types[2]), col("sum", 3, scalar.DecimalType(38, 3).Null()), col("max", 3, types[3].Null()),
	}
	out := []scalar.Type{types[0]}
	results := operators.Columns{}
	for i, s := range slots {
		out = append(out, s.Type)
		results = append(results, 1+i)
	}
	out = append(out, scalar.TypeInt64, scalar.TypeBool)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		open := func() (*Changes, *Aggregate) {
			a, err := NewAggregate(Options{
				By: operators.Columns{0}, ByTypes: types[:1], ByNames: []string{"k"}, Slots: slots, Results: results,
				Unwindowed: true, Emit: EmitUpdate, Retract: true, Marks: true, EmitRows: r.IntN(3), Alloc: alloc,
			})
			if err != nil {
				t.Fatal(err)
			}
			return NewChanges(types, alloc), a
		}
		changes, agg := open()
		end := &tableSink{t: t, types: out, rows: map[string]string{}}
		kept, groups := map[string][]byte{}, map[string][]byte{}
		table := map[string][]scalar.Value{}
		for range 40 {
			var rows []row
			b := []operators.Op{}
			var keys [][]byte
			for range 1 + r.IntN(30) {
				key := fmt.Sprint(r.IntN(25))
				keys = append(keys, []byte(key))
				v := []scalar.Value{scalar.String(string(rune('a' + r.IntN(4)))), scalar.Int(int64(r.IntN(9) - 4)), scalar.String(fmt.Sprint(r.IntN(4))), scalar.Decimal(scalar.Int128Of(int64(r.IntN(999) - 500)))}
				if r.IntN(4) == 0 {
					v[1], v[2] = scalar.Null, scalar.Null
				}
				rows = append(rows, row{values: v, ts: int64(r.IntN(9))})
				if r.IntN(4) == 0 {
					b = append(b, operators.OpDelete)
					delete(table, key)
					continue
				}
				b = append(b, operators.OpInsert)
				table[key] = v
			}
			batch := makeBatch(alloc, types, rows)
			batch.Key, batch.Ops = keys, b
			changes.Process(batch, &tableSink{t: t, next: agg, to: end})
			if r.IntN(2) == 0 {
				agg.Advance(int64(r.IntN(100)), end)
			}
			switch r.IntN(4) {
			case 0: // a restart, with groups that have yet to leave
				c, a := open()
				reopen(t, kept, changes, c)
				reopen(t, groups, agg, a)
				changes, agg = c, a
			case 1: // a step
				reopen(t, kept, changes, nil)
				reopen(t, groups, agg, nil)
			}
		}
		for agg.Advance(100, end); agg.More(); {
			agg.Advance(100, end)
		}
		want := naiveGroups(table, slots, types)
		if fmt.Sprint(end.rows) != fmt.Sprint(want) {
			t.Errorf("seed %d:\n got  %v\n want %v", seed, end.rows, want)
		}
		if n := int64(len(table)); changes.StateRows() != n {
			t.Errorf("seed %d: %d rows are kept of %d", seed, changes.StateRows(), n)
		}
		changes.Close()
		agg.Close()
		alloc.AssertSize(t, 0)
	}
}

// naiveGroups folds the rows of a table group by group.
func naiveGroups(table map[string][]scalar.Value, slots []Slot, types []scalar.Type) map[string]string {
	out := map[string]string{}
	members := map[string][][]scalar.Value{}
	for _, v := range table {
		members[v[0].S] = append(members[v[0].S], v)
	}
	for g, rows := range members {
		line := fmt.Sprintf(" %q", g)
		for _, s := range slots {
			var values []scalar.Value
			for _, r := range rows {
				if s.Arg == nil {
					values = append(values, scalar.Int(1))
				} else if v := r[s.Arg.(operators.Columns)[0]]; !v.IsNull() {
					values = append(values, v)
				}
			}
			slices.SortFunc(values, scalar.Compare)
			v := scalar.Null
			switch {
			case s.Func == "count":
				v = scalar.Int(int64(len(values)))
			case s.Func == "count_distinct":
				v = scalar.Int(int64(len(slices.CompactFunc(values, func(a, b scalar.Value) bool { return scalar.Compare(a, b) == 0 }))))
			case len(values) == 0:
			case s.Func == "min":
				v = values[0]
			case s.Func == "max":
				v = values[len(values)-1]
			case s.ArgType.Kind == scalar.KindDecimal:
				sum := scalar.Int128{}
				for _, x := range values {
					sum, _ = sum.Add(x.D)
				}
				v = scalar.Decimal(sum)
			default:
				sum := int64(0)
				for _, x := range values {
					sum += x.I
				}
				v = scalar.Int(sum)
			}
			text, _ := scalar.AppendJSON(nil, v, s.Type)
			line += " " + string(text)
		}
		out[g] = fmt.Sprintf("%s %d false", line, len(rows))
	}
	return out
}
