package expr_test

import (
	"fmt"
	"math"
	"math/rand"
	"testing"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A row is columns and a count of the reads of each.
type row struct {
	values []scalar.Value
	reads  []int
}

func newRow(values ...scalar.Value) *row {
	return &row{values: values, reads: make([]int, len(values))}
}

func (r *row) Column(i int) scalar.Value {
	r.reads[i]++
	return r.values[i]
}

func (r *row) Meta(m plan.Meta) scalar.Value { return scalar.Int(int64(m)) }

func null(t scalar.Type) scalar.Type {
	t.Nullable = true
	return t
}

func col(i int, t scalar.Type) *plan.Expr { return &plan.Expr{Op: plan.ExprColumn, Column: i, Type: t} }

func val(v scalar.Value, t scalar.Type) *plan.Expr {
	return &plan.Expr{Op: plan.ExprConst, Value: v, Type: t}
}

func num(i int64) *plan.Expr { return val(scalar.Int(i), scalar.TypeInt64) }

func op(o plan.ExprOp, t scalar.Type, args ...*plan.Expr) *plan.Expr {
	return &plan.Expr{Op: o, Type: t, Args: args}
}

// call makes a resolved call, with the widening casts that the checker would insert.
func call(name string, args ...*plan.Expr) *plan.Expr {
	e := &plan.Expr{Op: plan.ExprCall, Func: name, Args: args}
	f, err := scalar.Resolve(name, expr.ArgsOf(e))
	if err != nil {
		panic(err)
	}
	for i, a := range args {
		if i < len(f.Args) && a.Op != plan.ExprLambda && a.Type.Kind != f.Args[i].Kind {
			args[i] = call("cast_"+f.Args[i].Kind.String(), a)
		}
	}
	e.Type = f.Result
	return e
}

func eval(t *testing.T, e *plan.Expr, r *row) (scalar.Value, scalar.Code) {
	t.Helper()
	p, err := expr.Compile(e)
	if err != nil {
		t.Fatal(err)
	}
	return p.Eval(r)
}

func want(t *testing.T, what string, v scalar.Value, code scalar.Code, wantV scalar.Value, wantCode scalar.Code) {
	t.Helper()
	if code != wantCode || !scalar.Identical(v, wantV) {
		t.Errorf("%s = %s, %s; want %s, %s", what, show(v), code, show(wantV), wantCode)
	}
}

func show(v scalar.Value) string {
	if v.IsNull() {
		return "null"
	}
	return fmt.Sprintf("%v %d %g %q %v", v.Kind, v.I, v.F, v.S, v.L)
}

func TestKleeneTables(t *testing.T) {
	T, F, N := scalar.Bool(true), scalar.Bool(false), scalar.Null
	b := null(scalar.TypeBool)
	and := op(plan.ExprAnd, b, col(0, b), col(1, b))
	or := op(plan.ExprOr, b, col(0, b), col(1, b))
	for _, c := range []struct{ l, r, and, or scalar.Value }{
		{T, T, T, T},
		{T, F, F, T},
		{T, N, N, T},
		{F, T, F, T},
		{F, F, F, F},
		{F, N, F, N},
		{N, T, N, T},
		{N, F, F, N},
		{N, N, N, N},
	} {
		name := show(c.l) + " with " + show(c.r)
		r := newRow(c.l, c.r)
		v, code := eval(t, and, r)
		want(t, "and "+name, v, code, c.and, 0)
		if decided := scalar.Identical(c.l, F); (r.reads[1] == 0) != decided {
			t.Errorf("and %s read its right side %d times", name, r.reads[1])
		}
		r = newRow(c.l, c.r)
		v, code = eval(t, or, r)
		want(t, "or "+name, v, code, c.or, 0)
		if decided := scalar.Identical(c.l, T); (r.reads[1] == 0) != decided {
			t.Errorf("or %s read its right side %d times", name, r.reads[1])
		}
	}
}

func TestGuardedDivisionRaisesNothing(t *testing.T) {
	i := scalar.TypeInt64
	// b != 0 and a / b > 1
	guarded := op(plan.ExprAnd, scalar.TypeBool,
		call("ne", col(1, i), num(0)),
		call("gt", call("div_op", col(0, i), col(1, i)), num(1)))
	v, code := eval(t, guarded, newRow(scalar.Int(6), scalar.Int(0)))
	want(t, "6/0 guarded", v, code, scalar.Bool(false), 0)
	v, code = eval(t, guarded, newRow(scalar.Int(6), scalar.Int(3)))
	want(t, "6/3 guarded", v, code, scalar.Bool(true), 0)

	bare := call("gt", call("div_op", col(0, i), col(1, i)), num(1))
	v, code = eval(t, bare, newRow(scalar.Int(6), scalar.Int(0)))
	want(t, "6/0", v, code, scalar.Null, scalar.CodeDivisionByZero)

	cond := op(plan.ExprCond, null(scalar.TypeFloat64),
		call("ne", col(1, i), num(0)), call("div_op", col(0, i), col(1, i)), val(scalar.Null, null(scalar.TypeFloat64)))
	v, code = eval(t, cond, newRow(scalar.Int(6), scalar.Int(0)))
	want(t, "6/0 in ?:", v, code, scalar.Null, 0)
}

func TestTheFirstErrorInOrderIsReported(t *testing.T) {
	i := scalar.TypeInt64
	overflow := call("add", col(0, i), num(1))
	division := call("mod_op", col(0, i), col(1, i))
	r := newRow(scalar.Int(math.MaxInt64), scalar.Int(0))
	v, code := eval(t, call("sub", overflow, division), r)
	want(t, "overflow - division", v, code, scalar.Null, scalar.CodeOverflow)
	v, code = eval(t, call("sub", division, overflow), r)
	want(t, "division - overflow", v, code, scalar.Null, scalar.CodeDivisionByZero)
	// An error on the left of `and` is not hidden by the right side, whatever it is.
	v, code = eval(t, op(plan.ExprAnd, scalar.TypeBool, call("gt", overflow, num(0)), val(scalar.Bool(false), scalar.TypeBool)), r)
	want(t, "overflow > 0 and false", v, code, scalar.Null, scalar.CodeOverflow)
	v, code = eval(t, op(plan.ExprCoalesce, i, overflow, num(1)), r)
	want(t, "overflow ?? 1", v, code, scalar.Null, scalar.CodeOverflow)
}

func TestAProgramForgetsTheRowBefore(t *testing.T) {
	i := null(scalar.TypeInt64)
	p, err := expr.Compile(op(plan.ExprCoalesce, scalar.TypeInt64, call("add", col(0, i), num(1)), num(7)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in, out scalar.Value
		code    scalar.Code
	}{
		{scalar.Int(1), scalar.Int(2), 0},
		{scalar.Int(math.MaxInt64), scalar.Null, scalar.CodeOverflow},
		{scalar.Null, scalar.Int(7), 0},
		{scalar.Int(2), scalar.Int(3), 0},
	} {
		v, code := p.Eval(newRow(c.in))
		want(t, show(c.in), v, code, c.out, c.code)
	}
}

func TestArithmeticIsTheReferenceNotGo(t *testing.T) {
	i, f := scalar.TypeInt64, scalar.TypeFloat64
	big := scalar.Int(1<<53 + 1)
	dec := func(p, s int32) scalar.Type { return scalar.Type{Kind: scalar.KindDecimal, Precision: p, Scale: s} }
	cents := func(n int64) scalar.Value { return scalar.Decimal(scalar.Int128Of(n)) }
	for _, c := range []struct {
		name string
		e    *plan.Expr
		out  scalar.Value
		code scalar.Code
	}{
		{"max + 1", call("add", val(scalar.Int(math.MaxInt64), i), num(1)), scalar.Null, scalar.CodeOverflow},
		{"min - 1", call("sub", val(scalar.Int(math.MinInt64), i), num(1)), scalar.Null, scalar.CodeOverflow},
		{"-min", call("neg", val(scalar.Int(math.MinInt64), i)), scalar.Null, scalar.CodeOverflow},
		{"2^53+1 == 2^53 float", call("eq", val(big, i), val(scalar.Float(1<<53), f)), scalar.Bool(false), 0},
		{"2^53+1 > 2^53 float", call("gt", val(big, i), val(scalar.Float(1<<53), f)), scalar.Bool(true), 0},
		{"NaN == NaN", call("eq", val(scalar.Float(math.NaN()), f), val(scalar.Float(math.NaN()), f)), scalar.Bool(false), 0},
		{"null + 1", call("add", val(scalar.Null, null(i)), num(1)), scalar.Null, 0},
		{"1.50 + 0.125", call("add", val(cents(150), dec(12, 2)), val(cents(125), dec(12, 3))), cents(1625), 0},
		{"1.5 * 0.02", call("mul", val(cents(15), dec(12, 1)), val(cents(2), dec(12, 2))), cents(30), 0},
		{"decimal 1.00 == int 1", call("eq", val(cents(100), dec(12, 2)), num(1)), scalar.Bool(true), 0},
	} {
		v, code := eval(t, c.e, newRow())
		want(t, c.name, v, code, c.out, c.code)
		v, code, ok := expr.Fold(c.e)
		if !ok {
			t.Errorf("%s does not fold", c.name)
		}
		want(t, c.name+" folded", v, code, c.out, c.code)
	}
}

func lambda(body *plan.Expr) *plan.Expr { return op(plan.ExprLambda, body.Type, body) }

func elem(depth, field int) *plan.Expr {
	return &plan.Expr{Op: plan.ExprElem, Depth: depth, Field: field, Type: scalar.TypeInt64}
}

func ints(n ...int64) scalar.Value {
	v := scalar.Value{Kind: scalar.KindList}
	for _, i := range n {
		v.L = append(v.L, scalar.Int(i))
	}
	return v
}

func listType() scalar.Type {
	i := scalar.TypeInt64
	return scalar.Type{Kind: scalar.KindList, Elem: &i}
}

func TestClosures(t *testing.T) {
	list := col(0, listType())
	r := newRow(ints(1, 2, 3, 4), scalar.Int(2))
	v, code := eval(t, call("filter", list, lambda(call("gt", elem(0, plan.ElemValue), col(1, scalar.TypeInt64)))), r)
	want(t, "filter(xs, # > y)", v, code, ints(3, 4), 0)
	v, code = eval(t, call("map", list, lambda(call("mul", elem(0, plan.ElemValue), elem(0, plan.ElemIndex)))), r)
	want(t, "map(xs, # * #index)", v, code, ints(0, 2, 6, 12), 0)
	// map(xs, sum(map(xs, # * outer #)))
	inner := call("map", list, lambda(call("mul", elem(0, plan.ElemValue), elem(1, plan.ElemValue))))
	v, code = eval(t, call("map", list, lambda(call("sum", inner))), r)
	want(t, "nested map", v, code, ints(10, 20, 30, 40), 0)
	// An error inside a closure is the row's error.
	v, code = eval(t, call("map", list, lambda(call("mod_op", num(10), call("sub", elem(0, plan.ElemValue), num(3))))), r)
	want(t, "map(xs, 10 % (# - 3))", v, code, scalar.Null, scalar.CodeDivisionByZero)
	v, code = eval(t, call("any", list, lambda(call("eq", elem(0, plan.ElemValue), num(3)))), r)
	want(t, "any(xs, # == 3)", v, code, scalar.Bool(true), 0)
	v, code = eval(t, call("reduce", list, lambda(call("add", elem(0, plan.ElemAcc), elem(0, plan.ElemValue))), num(100)), r)
	want(t, "reduce(xs, #acc + #, 100)", v, code, scalar.Int(110), 0)
}

func TestLetBindsOnceAndNests(t *testing.T) {
	i := scalar.TypeInt64
	v0 := &plan.Expr{Op: plan.ExprVar, Type: i}
	v1 := &plan.Expr{Op: plan.ExprVar, Type: i, Depth: 1}
	// let x = c0 + 1; let y = x * 2; x + y + x
	e := op(plan.ExprLet, i, call("add", col(0, i), num(1)),
		op(plan.ExprLet, i, call("mul", v0, num(2)), call("add", call("add", v1, v0), v1)))
	r := newRow(scalar.Int(4))
	v, code := eval(t, e, r)
	want(t, "let", v, code, scalar.Int(20), 0)
	if r.reads[0] != 1 {
		t.Errorf("the bound expression ran %d times", r.reads[0])
	}
	// A variable is visible inside a closure.
	in := op(plan.ExprLet, listType(), call("add", col(1, i), num(0)),
		call("map", col(0, listType()), lambda(call("add", elem(0, plan.ElemValue), v0))))
	v, code = eval(t, in, newRow(ints(1, 2), scalar.Int(10)))
	want(t, "let around map", v, code, ints(11, 12), 0)
}

func TestFieldOfANullStructIsNull(t *testing.T) {
	s := scalar.Type{Kind: scalar.KindStruct, Nullable: true, Fields: []scalar.Field{{Name: "a", Type: scalar.TypeInt64}, {Name: "b", Type: scalar.TypeInt64}}}
	e := &plan.Expr{Op: plan.ExprField, Field: 1, Type: null(scalar.TypeInt64), Args: []*plan.Expr{col(0, s)}}
	v, code := eval(t, e, newRow(scalar.Struct(scalar.Int(1), scalar.Int(2))))
	want(t, "s.b", v, code, scalar.Int(2), 0)
	v, code = eval(t, e, newRow(scalar.Null))
	want(t, "null.b", v, code, scalar.Null, 0)
}

func TestFoldRefusesWhatReadsARow(t *testing.T) {
	i := scalar.TypeInt64
	for name, e := range map[string]*plan.Expr{
		"a column":             call("add", col(0, i), num(1)),
		"metadata":             {Op: plan.ExprMeta, Meta: plan.MetaOffset, Type: i},
		"an element":           elem(0, 0),
		"a free variable":      {Op: plan.ExprVar, Type: i},
		"a free outer closure": lambda(elem(1, 0)),
	} {
		if _, _, ok := expr.Fold(e); ok {
			t.Errorf("%s folds", name)
		}
	}
	v, code, ok := expr.Fold(call("map", val(ints(1, 2), listType()), lambda(call("add", elem(0, 0), num(1)))))
	if !ok {
		t.Fatal("a constant closure does not fold")
	}
	want(t, "map folded", v, code, ints(2, 3), 0)
}

func TestCompileRefusesWhatTheCheckerNeverMakes(t *testing.T) {
	for name, e := range map[string]*plan.Expr{
		"an unknown function": {Op: plan.ExprCall, Func: "now"},
		"an unknown node":     {Op: 99},
		"half an and":         {Op: plan.ExprAnd, Args: []*plan.Expr{num(1)}},
		"a free variable":     {Op: plan.ExprVar},
		"a free element":      {Op: plan.ExprElem},
		"a nil argument":      {Op: plan.ExprField, Args: []*plan.Expr{nil}},
		"half a let":          {Op: plan.ExprLet},
	} {
		if _, err := expr.Compile(e); err == nil {
			t.Errorf("%s compiles", name)
		}
	}
}

func TestCostCountsClosuresOften(t *testing.T) {
	list := col(0, listType())
	cheap := call("add", num(1), num(2))
	once := call("map", list, lambda(call("add", elem(0, 0), num(1))))
	twice := call("map", list, lambda(call("sum", call("map", list, lambda(elem(1, 0))))))
	if a, b, c := expr.Cost(cheap), expr.Cost(once), expr.Cost(twice); a != 3 || b <= 50*a || c <= 20*b {
		t.Errorf("costs %d, %d, %d", a, b, c)
	}
	shared := num(1)
	for range 100 {
		shared = call("add", shared, shared)
	}
	if c := expr.Cost(shared); c != math.MaxInt32 {
		t.Errorf("the cost of 2^100 additions is %d", c)
	}
	deep := elem(0, 0)
	for range 20 {
		deep = call("sum", call("map", list, lambda(deep)))
	}
	if c := expr.Cost(deep); c != math.MaxInt32 {
		t.Errorf("cost %d does not saturate", c)
	}
}

// TestProgramsAgreeWithATreeWalk compares random expressions with the plainest interpreter there is.
func TestProgramsAgreeWithATreeWalk(t *testing.T) {
	rng := rand.New(rand.NewSource(7))
	values := []scalar.Value{
		scalar.Null, scalar.Int(0), scalar.Int(1), scalar.Int(-1), scalar.Int(3), scalar.Int(math.MaxInt64), scalar.Int(math.MinInt64),
	}
	for n := range 2000 {
		e := randomInt(rng, 5)
		if n%2 == 0 {
			e = randomBool(rng, 5)
		}
		p, err := expr.Compile(e)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			r := newRow(values[rng.Intn(len(values))], values[rng.Intn(len(values))], values[rng.Intn(len(values))])
			v, code := p.Eval(r)
			w, wcode := walk(e, r)
			if wcode != 0 {
				w = scalar.Null
			}
			if code != wcode || !scalar.Identical(v, w) {
				t.Fatalf("expression %d on %v: %s %s, tree walk says %s %s", n, r.values, show(v), code, show(w), wcode)
			}
		}
	}
}

func randomInt(rng *rand.Rand, depth int) *plan.Expr {
	i := null(scalar.TypeInt64)
	if depth == 0 || rng.Intn(8) == 0 {
		if rng.Intn(3) == 0 {
			return num(int64(rng.Intn(5) - 2))
		}
		return col(rng.Intn(3), i)
	}
	switch rng.Intn(7) {
	case 0:
		return op(plan.ExprCond, i, op(plan.ExprCoalesce, scalar.TypeBool, randomBool(rng, depth-1), val(scalar.Bool(false), scalar.TypeBool)),
			randomInt(rng, depth-1), randomInt(rng, depth-1))
	case 1:
		return op(plan.ExprCoalesce, i, randomInt(rng, depth-1), randomInt(rng, depth-1))
	case 2:
		return call("neg", randomInt(rng, depth-1))
	}
	name := []string{"add", "sub", "mul", "mod_op"}[rng.Intn(4)]
	return call(name, randomInt(rng, depth-1), randomInt(rng, depth-1))
}

func randomBool(rng *rand.Rand, depth int) *plan.Expr {
	b := null(scalar.TypeBool)
	if depth == 0 {
		return val([]scalar.Value{scalar.Null, scalar.Bool(true), scalar.Bool(false)}[rng.Intn(3)], b)
	}
	switch rng.Intn(5) {
	case 0:
		return op(plan.ExprAnd, b, randomBool(rng, depth-1), randomBool(rng, depth-1))
	case 1:
		return op(plan.ExprOr, b, randomBool(rng, depth-1), randomBool(rng, depth-1))
	case 2:
		return call("not", randomBool(rng, depth-1))
	}
	name := []string{"eq", "ne", "lt", "ge"}[rng.Intn(4)]
	return call(name, randomInt(rng, depth-1), randomInt(rng, depth-1))
}

func walk(e *plan.Expr, r *row) (scalar.Value, scalar.Code) {
	switch e.Op {
	case plan.ExprConst:
		return e.Value, 0
	case plan.ExprColumn:
		return r.values[e.Column], 0
	case plan.ExprAnd, plan.ExprOr:
		decides := e.Op == plan.ExprOr
		l, code := walk(e.Args[0], r)
		if code != 0 || !l.IsNull() && l.Bool() == decides {
			return l, code
		}
		v, code := walk(e.Args[1], r)
		if code != 0 || !v.IsNull() && v.Bool() == decides {
			return v, code
		}
		if l.IsNull() {
			return l, 0
		}
		return v, 0
	case plan.ExprCond:
		c, code := walk(e.Args[0], r)
		if code != 0 {
			return c, code
		}
		if c.Bool() {
			return walk(e.Args[1], r)
		}
		return walk(e.Args[2], r)
	case plan.ExprCoalesce:
		l, code := walk(e.Args[0], r)
		if code != 0 || !l.IsNull() {
			return l, code
		}
		return walk(e.Args[1], r)
	}
	var args []scalar.Value
	for _, a := range e.Args {
		v, code := walk(a, r)
		if code != 0 {
			return v, code
		}
		args = append(args, v)
	}
	f, err := scalar.Resolve(e.Func, expr.ArgsOf(e))
	if err != nil {
		panic(err)
	}
	return f.Call(args)
}

func BenchmarkEval(b *testing.B) {
	i := scalar.TypeInt64
	p, err := expr.Compile(op(plan.ExprAnd, scalar.TypeBool,
		call("ne", col(1, i), num(0)), call("gt", call("add", call("mul", col(0, i), num(3)), col(1, i)), num(1))))
	if err != nil {
		b.Fatal(err)
	}
	r := newRow(scalar.Int(6), scalar.Int(3))
	b.ReportAllocs()
	for b.Loop() {
		p.Eval(r)
	}
}
