package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// kept runs one slot over rows of one group and gives what leaves; between batches the state is saved and,
// now and then, restored.
type kept struct {
	t    *testing.T
	o    Options
	a    *Aggregate
	disk store
	next int64
}

func newKept(t *testing.T, s Slot) *kept {
	s.Arg = operators.Columns{0}
	o := Options{Slots: []Slot{s}, Results: operators.Columns{2}, Size: time.Hour}
	k := &kept{t: t, o: o, disk: store{}}
	k.a = k.disk.restore(t, o).(*Aggregate)
	return k
}

// feed gives rows in one batch and saves; it answers how many state rows that wrote.
func (k *kept) feed(values ...scalar.Value) int {
	rows := make([]row, len(values))
	for i, v := range values {
		rows[i] = row{values: []scalar.Value{v}, ts: k.next, offset: k.next}
		k.next++
	}
	k.a.Process(makeBatch(memory.DefaultAllocator, []scalar.Type{k.o.Slots[0].ArgType}, rows), &drain{})
	return k.save()
}

func (k *kept) save() int {
	n := 0
	k.a.Changes(func(key, value []byte) {
		n++
		if value == nil {
			delete(k.disk, string(key))
		} else {
			k.disk[string(key)] = string(value)
		}
	})
	return n
}

func (k *kept) restart() {
	k.a.Close()
	k.a = k.disk.restore(k.t, k.o).(*Aggregate)
}

func (k *kept) end() scalar.Value {
	out := &keep{t: k.o.Slots[0].Type}
	k.a.Advance(operators.MaxEventTime, out)
	k.save()
	if len(k.disk) != 0 || k.a.groups.Len() != 0 {
		k.t.Errorf("%d state rows and %d windows are left", len(k.disk), k.a.groups.Len())
	}
	k.a.Close()
	return out.v
}

func ints(f string, k int64) Slot {
	return Slot{Func: f, ArgType: scalar.TypeInt64, Type: scalar.ListType(scalar.TypeInt64).Null(), Param: scalar.Int(k), ParamType: scalar.TypeInt64}
}

// What is kept of a group does not grow with its rows, in whichever order they come: neither rows in the
// store nor memory.
func TestBoundedAggregatesKeepABoundedState(t *testing.T) {
	const rows, k = 20_000, 50
	for _, f := range []string{"top_k", "set", "list"} {
		for order, value := range map[string]func(i int64) int64{
			"ascending": func(i int64) int64 { return i }, "descending": func(i int64) int64 { return rows - i },
			"shuffled": func(i int64) int64 { return i * 7919 % rows }, "few": func(i int64) int64 { return i % 3 },
		} {
			a := newKept(t, ints(f, k))
			var all, batch []scalar.Value
			most := int64(0)
			for i := range int64(rows) {
				batch = append(batch, scalar.Int(value(i)))
				if len(batch) == 500 {
					all = append(all, batch...)
					a.feed(batch...)
					batch = nil
					if i%10_000 == 9999 {
						a.restart()
					}
					most = max(most, a.a.StateRows())
					if b := a.a.StateBytes(); b > 512<<10 {
						t.Fatalf("%s of %s values takes %d B", f, order, b)
					}
				}
			}
			if most > 2*k+18 {
				t.Errorf("%s of %s values keeps %d state rows", f, order, most)
			}
			want := slices.Clone(all)
			if f != "list" {
				slices.SortFunc(want, scalar.Compare)
			}
			if f == "top_k" {
				slices.Reverse(want)
			}
			if f == "set" {
				want = slices.CompactFunc(want, func(a, b scalar.Value) bool { return a.I == b.I })
			}
			want = want[:min(len(want), k)]
			if got := a.end(); !scalar.Identical(got, scalar.List(want...)) {
				t.Errorf("%s of %s values: %v, want %v", f, order, got.L, want)
			}
		}
	}
}

// A hot group with many different values writes those that are new.
func TestAStepWritesTheMembersThatChanged(t *testing.T) {
	for _, f := range []string{"count_distinct", "median"} {
		s := Slot{Func: f, ArgType: scalar.TypeInt64, Type: scalar.TypeInt64}
		if f == "median" {
			s.Type = scalar.TypeFloat64.Null()
		}
		a := newKept(t, s)
		values := make([]scalar.Value, 100_000)
		for i := range values {
			values[i] = scalar.Int(int64(i))
		}
		if n := a.feed(values...); n != len(values)+1 {
			t.Errorf("%s: the first step writes %d rows", f, n)
		}
		a.restart()
		if n := a.feed(scalar.Int(5), scalar.Int(-1), scalar.Int(-2), scalar.Int(-1)); n > 4 {
			t.Errorf("%s: four rows write %d state rows", f, n)
		}
		a.end()
	}
}

// Members go with their window a few at a time, so that a step stays small, and a restart goes on there.
func TestMembersLeaveInParts(t *testing.T) {
	a := newKept(t, Slot{Func: "count_distinct", ArgType: scalar.TypeInt64, Type: scalar.TypeInt64})
	a.o.EmitRows = 100
	a.restart()
	values := make([]scalar.Value, 1000)
	for i := range values {
		values[i] = scalar.Int(int64(i))
	}
	a.feed(values...)
	out := &keep{t: scalar.TypeInt64}
	for steps := 1; ; steps++ {
		a.a.Advance(operators.MaxEventTime, out)
		more := a.a.More()
		if n := a.save(); n > 101 {
			t.Fatalf("a step writes %d state rows", n)
		}
		if !more {
			if steps < 10 || len(a.disk) != 0 {
				t.Errorf("%d rows are left after %d steps", len(a.disk), steps)
			}
			break
		}
		a.restart()
	}
	a.a.Close()
	if out.v.I != 1000 {
		t.Errorf("counted %d", out.v.I)
	}
}

func TestJoinedTextsAreBounded(t *testing.T) {
	slot := Slot{Func: "join", ArgType: scalar.TypeString, Type: scalar.TypeString.Null(), Param: scalar.String(","), ParamType: scalar.TypeString, Text: "join(s)"}
	half := scalar.String(strings.Repeat("x", scalar.MaxTextBytes/2-1))
	a := newKept(t, slot)
	a.feed(half, half, scalar.String(""))
	a.restart()
	if got := a.end(); len(got.S) != scalar.MaxTextBytes {
		t.Errorf("joined %d bytes", len(got.S))
	}
	for name, values := range map[string][]scalar.Value{
		"bytes": {half, half, scalar.String("x")}, "texts": slices.Repeat([]scalar.Value{scalar.String("")}, scalar.MaxElements+1),
	} {
		s := slot
		if name == "texts" {
			s.Param.S = ""
		}
		a = newKept(t, s)
		a.feed(values...)
		a.restart()
		a.feed(scalar.String("y"))
		if n := a.a.StateRows(); n != 1 {
			t.Errorf("%d rows of a group that has too many %s", n, name)
		}
		out := &sink{types: []scalar.Type{scalar.TypeTime, scalar.TypeTime, slot.Type}}
		a.a.Advance(operators.MaxEventTime, out)
		if len(out.lines) != 0 || len(out.fails) != 1 || !strings.HasPrefix(out.fails[0], "E0607") {
			t.Errorf("too many %s: %v %v", name, out.lines, out.fails)
		}
		a.a.Close()
	}
}

// Long texts are told apart by their hash, ordered by all of their bytes, and come back whole.
func TestLongTextsStayWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	same := strings.Repeat("long", maxMemberBytes)
	var values []scalar.Value
	for i := range 40 {
		values = append(values, scalar.String(same+fmt.Sprint(i%20)), scalar.String(same[:maxMemberBytes+i%2]))
	}
	r.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	for _, f := range []string{"top_k", "set", "list", "count_distinct"} {
		s := Slot{Func: f, ArgType: scalar.TypeString, Type: scalar.ListType(scalar.TypeString).Null(), Param: scalar.Int(5), ParamType: scalar.TypeInt64}
		want := slices.Clone(values)
		switch f {
		case "top_k":
			slices.SortFunc(want, scalar.Compare)
			slices.Reverse(want)
		case "set":
			slices.SortFunc(want, scalar.Compare)
			want = slices.CompactFunc(want, scalar.Identical)
		case "count_distinct":
			s.Type = scalar.TypeInt64
		}
		a := newKept(t, s)
		a.feed(values[:50]...)
		a.restart()
		a.feed(values[50:]...)
		a.restart()
		got := a.end()
		if f == "count_distinct" {
			if got.I != 22 {
				t.Errorf("%d different texts", got.I)
			}
			continue
		}
		if !scalar.Identical(got, scalar.List(want[:5]...)) {
			t.Errorf("%s differs", f)
		}
	}
}
