package vector_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

// batchOf makes a batch from rows of values.
func batchOf(alloc memory.Allocator, types []scalar.Type, rows ...[]scalar.Value) *operators.Batch {
	columns := make([]arrow.Array, len(types))
	for c, t := range types {
		b := array.NewBuilder(alloc, operators.ArrowType(t))
		for _, r := range rows {
			operators.AppendValue(b, t, r[c])
		}
		columns[c] = b.NewArray()
		b.Release()
	}
	return operators.NewBatch(columns, make([]operators.EventTime, len(rows)))
}

func column(i int, t scalar.Type) *vector.Expr {
	return &vector.Expr{Op: vector.OpColumn, Column: i, Type: t}
}

// show evaluates and writes each row's columns, or its error.
func show(t *testing.T, p *vector.Program, b *operators.Batch, sel []int32) []string {
	t.Helper()
	r, err := p.Eval(b, sel)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	lines := make([]string, b.Rows)
	for i := range lines {
		var cells []string
		for c, typ := range p.Types() {
			text, _ := scalar.AppendJSON(nil, operators.ValueAt(r.Columns[c], typ, i), typ)
			cells = append(cells, string(text))
		}
		lines[i] = strings.Join(cells, " ")
	}
	for _, e := range r.Errors {
		lines[e.Row] = e.Code.String() + " in " + e.Expr
	}
	return lines
}

func want(t *testing.T, got []string, lines ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(lines, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

var two = []scalar.Type{scalar.TypeInt64, scalar.TypeInt64}

// `b != 0 and a / b > 1` raises nothing where b is 0.
func TestAGuardKeepsItsRightSideFromFailing(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	b := batchOf(alloc, two, []scalar.Value{scalar.Int(6), scalar.Int(2)}, []scalar.Value{scalar.Int(6), scalar.Int(0)}, []scalar.Value{scalar.Int(1), scalar.Int(2)})
	defer b.Release()
	ratio := call("div_op", column(0, two[0]), column(1, two[1]))
	guarded := and(call("ne", column(1, two[1]), num(0)), call("gt", ratio, flt(1)))
	guarded.Text = "guarded"
	bare := call("gt", ratio, flt(1))
	bare.Text = "bare"
	p, err := vector.NewProgram(alloc, []*vector.Expr{guarded}, two)
	if err != nil {
		t.Fatal(err)
	}
	want(t, show(t, p, b, nil), "true", "false", "false")
	// The same node, shared with an expression that does fail.
	p, err = vector.NewProgram(alloc, []*vector.Expr{guarded, bare}, two)
	if err != nil {
		t.Fatal(err)
	}
	want(t, show(t, p, b, nil), "true true", "E0602 in bare", "false false")
	sel, errs, err := p.Select(b, nil, nil)
	if err != nil || len(errs) != 0 || len(sel) != 1 || sel[0] != 0 {
		t.Errorf("selected %v %v %v", sel, errs, err)
	}
}

// One branch may use what the other one is: `c ? x : x + 1`.
func TestBranchesThatShareAPartKeepTheirRows(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	types := []scalar.Type{scalar.TypeBool, scalar.TypeInt64.Null(), scalar.TypeInt64}
	b := batchOf(alloc, types,
		[]scalar.Value{scalar.Bool(true), scalar.Null, scalar.Int(1)}, []scalar.Value{scalar.Bool(false), scalar.Null, scalar.Int(2)},
		[]scalar.Value{scalar.Bool(true), scalar.Int(5), scalar.Int(3)}, []scalar.Value{scalar.Bool(false), scalar.Int(9223372036854775800), scalar.Int(4)})
	defer b.Release()
	x := call("add", column(1, types[1]), column(2, types[2]))
	e := &vector.Expr{Op: vector.OpCond, Type: scalar.TypeInt64.Null(), Text: "e", Args: []*vector.Expr{column(0, types[0]), x, call("add", x, num(1))}}
	p, err := vector.NewProgram(alloc, []*vector.Expr{e}, types)
	if err != nil {
		t.Fatal(err)
	}
	want(t, show(t, p, b, nil), "null", "null", "8", "9223372036854775805")
}

func TestAFallbackIsCalledForSelectedRowsOnly(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	b := batchOf(alloc, two, []scalar.Value{scalar.Int(1), scalar.Int(2)}, []scalar.Value{scalar.Int(3), scalar.Int(4)}, []scalar.Value{scalar.Int(5), scalar.Int(6)})
	defer b.Release()
	var calls []int
	f := &vector.Expr{Op: vector.OpFallback, Type: scalar.TypeString.Null(), Text: "f", Reason: "closure", Fallback: func(_ *operators.Batch, row int) (scalar.Value, scalar.Code) {
		calls = append(calls, row)
		if row == 2 {
			return scalar.Null, scalar.CodeLimit
		}
		return scalar.String("x"), scalar.CodeNone
	}}
	p, err := vector.NewProgram(alloc, []*vector.Expr{f, call("len", f), call("add", column(0, two[0]), num(1))}, two)
	if err != nil {
		t.Fatal(err)
	}
	got := show(t, p, b, []int32{0, 2})
	want(t, []string{got[0], got[2]}, `"x" 1 2`, "E0607 in f")
	if len(calls) != 2*2 { // a fallback is never known to be the same as another
		t.Errorf("called for rows %v", calls)
	}
	if k := p.Kernel(0); k != "row by row: fallback (closure)" {
		t.Errorf("kernel %q", k)
	}
	if k := p.Kernel(2); k != "kernel" {
		t.Errorf("kernel %q", k)
	}
	if !strings.HasPrefix(p.Explain(), "f: row by row: fallback (closure)\n") {
		t.Errorf("explain %q", p.Explain())
	}
}

func TestUnwrapFailsNullStructsAndSharesTheirFields(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	inner := scalar.StructType(scalar.Field{Name: "a", Type: scalar.TypeInt64}, scalar.Field{Name: "s", Type: scalar.TypeString.Null()}).Null()
	types := []scalar.Type{inner}
	b := batchOf(alloc, types, []scalar.Value{scalar.Struct(scalar.Int(1), scalar.String("x"))}, []scalar.Value{scalar.Null}, []scalar.Value{scalar.Struct(scalar.Int(2), scalar.Null)})
	defer b.Release()
	u := call("unwrap", column(0, inner))
	p, err := vector.NewProgram(alloc, []*vector.Expr{
		{Op: vector.OpField, Field: 0, Type: scalar.TypeInt64, Text: "a", Args: []*vector.Expr{u}},
		{Op: vector.OpField, Field: 1, Type: scalar.TypeString.Null(), Text: "s", Args: []*vector.Expr{u}},
		{Op: vector.OpField, Field: 0, Type: scalar.TypeInt64.Null(), Text: "c.a", Args: []*vector.Expr{column(0, inner)}},
		u,
	}, types)
	if err != nil {
		t.Fatal(err)
	}
	want(t, show(t, p, b, nil), `1 "x" 1 {"a":1,"s":"x"}`, "E0613 in a", `2 null 2 {"a":2,"s":null}`)
	if k := p.Explain(); strings.Contains(k, "row by row") {
		t.Error(k)
	}
}

func TestAColumnThatDoesNotFitIsAnError(t *testing.T) {
	alloc := memory.NewGoAllocator()
	p, err := vector.NewProgram(alloc, []*vector.Expr{call("add", column(0, two[0]), column(1, two[1]))}, two)
	if err != nil {
		t.Fatal(err)
	}
	good := batchOf(alloc, two, []scalar.Value{scalar.Int(1), scalar.Int(2)})
	wrong := batchOf(alloc, []scalar.Type{scalar.TypeString, scalar.TypeInt64}, []scalar.Value{scalar.String("1"), scalar.Int(2)})
	missing := batchOf(alloc, two, []scalar.Value{scalar.Int(1), scalar.Int(2)})
	missing.Columns[1] = nil
	narrow := batchOf(alloc, two[:1], []scalar.Value{scalar.Int(1)})
	short := batchOf(alloc, two, []scalar.Value{scalar.Int(1), scalar.Int(2)})
	short.Rows = 2
	for name, b := range map[string]*operators.Batch{"wrong": wrong, "missing": missing, "narrow": narrow, "short": short} {
		if _, err := p.Eval(b, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := p.Eval(good, []int32{1}); err == nil {
		t.Error("a row past the end was selected")
	}
	want(t, show(t, p, good, nil), "3") // the program is still good
}

func TestTreesThatNoCheckerMakesAreRefused(t *testing.T) {
	for name, e := range map[string]*vector.Expr{
		"nil":          nil,
		"column":       column(7, scalar.TypeInt64),
		"function":     {Op: vector.OpCall, Func: "nonsense"},
		"uncast":       {Op: vector.OpCall, Func: "add", Type: scalar.TypeFloat64, Args: []*vector.Expr{column(0, two[0]), flt(1)}},
		"var":          {Op: vector.OpVar, Type: scalar.TypeInt64},
		"let":          {Op: vector.OpLet, Type: scalar.TypeInt64},
		"and":          {Op: vector.OpAnd, Type: scalar.TypeBool, Args: []*vector.Expr{num(1), num(2)}},
		"one and":      {Op: vector.OpAnd, Type: scalar.TypeBool, Args: []*vector.Expr{konst(scalar.TypeBool, scalar.Bool(true))}},
		"cond":         {Op: vector.OpCond, Type: scalar.TypeInt64, Args: []*vector.Expr{num(1), num(1), num(2)}},
		"branch":       {Op: vector.OpCond, Type: scalar.TypeInt64, Args: []*vector.Expr{konst(scalar.TypeBool, scalar.Bool(true)), num(1), str("x")}},
		"field":        {Op: vector.OpField, Type: scalar.TypeInt64, Args: []*vector.Expr{num(1)}},
		"headers":      {Op: vector.OpMeta, Meta: vector.MetaHeaders, Type: scalar.TypeInt64},
		"meta type":    {Op: vector.OpMeta, Meta: vector.MetaTime, Type: scalar.TypeString},
		"op":           {Op: 99},
		"nil argument": {Op: vector.OpCall, Func: "not", Args: []*vector.Expr{nil}},
	} {
		if _, err := vector.NewProgram(nil, []*vector.Expr{e}, two); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A steady stream of batches allocates only what the results hold.
func TestScratchMemoryIsReused(t *testing.T) {
	batch := benchBatch()
	cond := and(call("gt", col(0), num(100)), call("ne", call("lower", col(1)), str("us")))
	p := program(t, cond)
	var dst []int32
	n := testing.AllocsPerRun(20, func() { dst, _, _ = p.Select(batch, nil, dst[:0]) })
	if n > 2 {
		t.Errorf("%v allocations a batch", n)
	}
	if len(dst) == 0 || len(dst) == batch.Rows {
		t.Errorf("%d rows selected", len(dst))
	}
}

// What is folded in here was no constant for the checker: it must fail by row, not refuse to compile.
func TestFoldingDoesNotChangeWhatACallMeans(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	types := []scalar.Type{scalar.TypeTime}
	b := batchOf(alloc, types, []scalar.Value{scalar.Time(90e9)})
	defer b.Release()
	dur := func(ns int64) *vector.Expr { return konst(scalar.TypeDuration, scalar.Duration(ns)) }
	zero := call("trunc", column(0, types[0]), call("sub", dur(5), dur(5)))
	zero.Text = "zero"
	minute := call("trunc", column(0, types[0]), call("mul", dur(20e9), num(3)))
	zone := call("hour", column(0, types[0]), call("concat", str("Mars/"), str("Base")))
	zone.Text = "zone"
	for _, test := range []struct {
		e    *vector.Expr
		want string
	}{{zero, "E0602 in zero"}, {minute, `"1970-01-01T00:01:00Z"`}, {zone, "E0612 in zone"}} {
		p, err := vector.NewProgram(alloc, []*vector.Expr{test.e}, types)
		if err != nil {
			t.Fatal(err)
		}
		want(t, show(t, p, b, nil), test.want)
	}
}
