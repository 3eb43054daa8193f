package dsl_test

import (
	"fmt"
	"math"
	"math/rand"
	"testing"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A row of random values that its schema allows.
type row []scalar.Value

func (r row) Column(i int) scalar.Value {
	if r[i].Kind == missing {
		panic("a column is read that the plan does not need")
	}
	return r[i]
}

// missing marks the columns that a plan says it does not read.
const missing = scalar.Kind(200)

func (r row) Meta(m plan.Meta) scalar.Value {
	switch m {
	case plan.MetaTime, plan.MetaAppendTime:
		return scalar.Time(1_700_000_000_000_000_000)
	case plan.MetaKey:
		return scalar.Null
	case plan.MetaHeaders:
		return scalar.Map([]scalar.Value{scalar.String("a")}, []scalar.Value{scalar.Bytes("x")})
	case plan.MetaTopic:
		return scalar.String("t")
	case plan.MetaPartition:
		return scalar.IntOf(scalar.KindInt32, 3)
	}
	return scalar.Int(7)
}

func random(r *rand.Rand, t scalar.Type) scalar.Value {
	if t.Nullable && r.Intn(3) == 0 {
		return scalar.Null
	}
	ints := []int64{0, 1, -1, 2, 7, 18, 100, math.MaxInt8, math.MinInt8}
	i := ints[r.Intn(len(ints))]
	switch k := t.Kind; {
	case k == scalar.KindBool:
		return scalar.Bool(r.Intn(2) == 0)
	case k.Signed():
		return scalar.IntOf(k, i)
	case k.Unsigned():
		return scalar.IntOf(k, max(i, 0))
	case k == scalar.KindFloat64:
		return scalar.Float([]float64{0, 1.5, -2, math.NaN(), math.Inf(1), 1e300}[r.Intn(6)])
	case k == scalar.KindFloat32:
		return scalar.Float32(1.5)
	case k == scalar.KindDecimal:
		return scalar.Decimal(scalar.Int128Of(i))
	case k == scalar.KindString:
		return scalar.String([]string{"", "a", "10", "é", "pay", "http://x/y/z?channel_id=3"}[r.Intn(6)])
	case k == scalar.KindBytes:
		return scalar.Bytes("ab")
	case k == scalar.KindTime:
		return scalar.Time(i * 1_000_000_000)
	case k == scalar.KindDuration:
		return scalar.Duration(i * 1_000_000)
	case k == scalar.KindDate:
		return scalar.Date(i)
	case k == scalar.KindList:
		l := make([]scalar.Value, r.Intn(4))
		for j := range l {
			l[j] = random(r, *t.Elem)
		}
		return scalar.List(l...)
	case k == scalar.KindMap:
		return scalar.Map([]scalar.Value{random(r, t.Key.NonNull())}, []scalar.Value{random(r, *t.Elem)})
	case k == scalar.KindStruct:
		f := make([]scalar.Value, len(t.Fields))
		for j := range f {
			f[j] = random(r, t.Fields[j].Type)
		}
		return scalar.Struct(f...)
	}
	panic(fmt.Sprintf("no random %s", t))
}

// fits says whether v is a value of type t.
func fits(v scalar.Value, t scalar.Type) bool {
	if v.IsNull() {
		return t.Nullable
	}
	if v.Kind != t.Kind {
		return false
	}
	switch t.Kind {
	case scalar.KindList:
		for _, e := range v.L {
			if !fits(e, *t.Elem) {
				return false
			}
		}
	case scalar.KindStruct:
		for i, e := range v.L {
			if !fits(e, t.Fields[i].Type) {
				return false
			}
		}
	case scalar.KindDecimal:
		return v.D.Digits() <= t.Precision
	}
	return true
}

// A runner evaluates the expressions of pipelines row by row and holds their types against the values.
type runner struct {
	t        testing.TB
	r        *rand.Rand
	text     string
	programs map[*plan.Expr]*expr.Program
	ran      int
}

func (x *runner) eval(e *plan.Expr, in row) (scalar.Value, bool) {
	if x.programs[e] == nil {
		prog, err := expr.Compile(e)
		if err != nil {
			x.t.Fatalf("%q does not compile: %v\n%s", e.Text, err, x.text)
		}
		x.programs[e] = prog
	}
	v, code := x.programs[e].Eval(in)
	if code != scalar.CodeNone {
		return v, false
	}
	x.ran++
	if v.Kind != missing && !fits(v, e.Type) {
		x.t.Fatalf("%q gives %+v, which is no %s\nrow %+v\n%s", e.Text, v, e.Type, in, x.text)
	}
	return v, true
}

// row sends one random row through the stages of p.
func (x *runner) row(p *plan.Pipeline) {
	in := make(row, len(p.Source.Schema.Columns))
	for i, c := range p.Source.Schema.Columns {
		in[i] = random(x.r, c.Type)
		if !p.Needed[i] {
			in[i] = scalar.Value{Kind: missing}
		}
	}
	if e := p.Source.Time.Expr; e != nil {
		x.eval(e, in)
	}
	for i := range p.Stages {
		st := &p.Stages[i]
		ok := true
		switch st.Kind {
		case plan.StageFilter:
			v, good := x.eval(st.Filter, in)
			ok = good && v.Bool()
		case plan.StageProject:
			in, ok = x.all(st.Project, in)
		case plan.StageAggregate:
			in, ok = x.aggregate(st.Agg, in)
		case plan.StageExplode:
			_, ok = x.eval(st.Explode.List, in)
			in = x.added(st, in)
		case plan.StageDedup:
			_, ok = x.all(st.Dedup.Added, in)
			in = x.added(st, in)
		case plan.StageOver:
			_, ok = x.all(st.Over.Added, in)
			for _, s := range st.Over.Slots {
				for _, e := range []*plan.Expr{s.Arg, s.By} {
					if e != nil {
						x.eval(e, in)
					}
				}
			}
			in = x.added(st, in)
		case plan.StageLookup:
			for k, e := range st.Lookup.Key {
				v, good := x.eval(e, in)
				ok = ok && good
				if c := st.Lookup.Table.Schema.Columns[st.Lookup.Table.Key[k]]; good && v.Kind != missing && !fits(v, c.Type.Null()) {
					x.t.Fatalf("key column %s is looked up with %+v, which is no %s\n%s", c.Name, v, c.Type, x.text)
				}
			}
			in = x.added(st, in)
			if on, t := st.Lookup.On, st.Out.Columns[len(in)-1].Type; on != nil {
				t.Nullable = false
				joined := append(in[:len(in)-1:len(in)-1], random(x.r, t))
				x.eval(on, joined)
			}
		case plan.StageTop:
			_, ok = x.all(st.Top.Added, in)
			for _, o := range st.Top.Order {
				x.eval(o.Expr, in)
			}
			in = x.added(st, in)
		}
		if !ok {
			return
		}
		if len(in) != len(st.Out.Columns) {
			x.t.Fatalf("stage %d of %s has %d columns, %d are announced\n%s", i, p.Name, len(in), len(st.Out.Columns), x.text)
		}
		for j, c := range st.Out.Columns {
			if in[j].Kind != missing && !fits(in[j], c.Type) {
				x.t.Fatalf("column %s after stage %d of %s is %+v, which is no %s\n%s", c.Name, i, p.Name, in[j], c.Type, x.text)
			}
		}
	}
	for j, c := range p.Output.Schema.Columns {
		if in[j].Kind == missing {
			x.t.Fatalf("column %s of %s is written and was never read\n%s", c.Name, p.Name, x.text)
		}
	}
}

// added is a row with random values of the columns that a stage adds.
func (x *runner) added(st *plan.Stage, in row) row {
	out := append(row(nil), in...)
	for _, c := range st.Out.Columns[len(in):] {
		out = append(out, random(x.r, c.Type))
	}
	return out
}

func (x *runner) all(list []plan.NamedExpr, in row) (row, bool) {
	out := make(row, len(list))
	for j, n := range list {
		v, ok := x.eval(n.Expr, in)
		if !ok {
			return nil, false
		}
		out[j] = v
	}
	return out, true
}

// aggregate makes a row of results from random slots.
func (x *runner) aggregate(a *plan.Aggregate, in row) (row, bool) {
	out, ok := x.all(a.By, in)
	if !ok {
		return nil, false
	}
	if a.Window.Kind != 0 {
		out = append(out, scalar.Time(0), scalar.Time(60_000_000_000))
	}
	by := len(out)
	for _, s := range a.Slots {
		counted := true
		if s.Filter != nil {
			v, ok := x.eval(s.Filter, in)
			counted = ok && v.Bool()
		}
		for _, e := range []*plan.Expr{s.Arg, s.By} {
			if e != nil && counted {
				x.eval(e, in)
			}
		}
		out = append(out, random(x.r, s.Type))
	}
	results, ok := x.all(a.Results, out)
	if a.Marks() {
		results = append(results, scalar.Int(1), scalar.Bool(false))
	}
	return append(out[:by:by], results...), ok
}

// Every expression of every golden plan runs on rows of its schema, and gives what its type says.
func TestTypesTellTheTruth(t *testing.T) {
	x := &runner{t: t, r: rand.New(rand.NewSource(2)), programs: map[*plan.Expr]*expr.Program{}}
	for _, text := range seeds(t) {
		m, _ := compile(text)
		if m == nil {
			continue
		}
		x.text = text
		for _, p := range m.Pipelines {
			for n := 0; n < 40; n++ {
				x.row(p)
			}
		}
	}
	if x.ran < 10_000 {
		t.Errorf("only %d expressions ran", x.ran)
	}
}
