package vector_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/exprgen"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the differential test; 0 draws one")

// differ evaluates random expressions over random batches both ways and fails on the first difference.
// It returns how many values were compared.
func differ(t *testing.T, seed uint64) (compared int) {
	g := exprgen.New(seed)
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	exprs := g.Exprs(1+g.R.IntN(5), 5+g.R.IntN(60))
	p, err := vector.NewProgram(alloc, exprs, g.Schema)
	if err != nil {
		for _, e := range exprs {
			t.Log(exprgen.String(e))
		}
		t.Fatalf("seed %d: %v", seed, err)
	}
	for range 3 { // one program over several batches: scratch memory must not leak from one to the next
		rows := []int{0, 1, 7, 64, 100, 200}[g.R.IntN(6)]
		b, values := g.Batch(alloc, rows)
		sel := selection(g, rows)
		res, err := p.Eval(b, sel)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if sel == nil {
			sel = all(rows)
		}
		errs := res.Errors
		for _, i := range sel {
			row := exprgen.Row{Batch: b, Index: int(i), Values: values[i]}
			want, wantExpr := scalar.CodeNone, -1
			vals := make([]scalar.Value, len(exprs))
			codes := make([]scalar.Code, len(exprs))
			for x, e := range exprs {
				vals[x], codes[x] = exprgen.Eval(e, row, nil)
				compared++
				if codes[x] != scalar.CodeNone && wantExpr < 0 {
					want, wantExpr = codes[x], x
				}
			}
			got := scalar.CodeNone
			if len(errs) > 0 && errs[0].Row == int(i) {
				got = errs[0].Code
				errs = errs[1:]
			}
			if got != want {
				x := max(wantExpr, 0)
				t.Fatalf("seed %d, row %d: error %v, want %v\n%s\n%+v", seed, i, got, want, exprgen.String(exprs[x]), values[i])
			}
			for x, e := range exprs {
				if codes[x] != scalar.CodeNone {
					continue
				}
				v := operators.ValueAt(res.Columns[x], p.Types()[x], int(i))
				if !scalar.Identical(v, vals[x]) {
					t.Fatalf("seed %d, row %d: %+v, want %+v\n%s\n%+v", seed, i, v, vals[x], exprgen.String(e), values[i])
				}
				if v.IsNull() && !e.Type.Nullable {
					t.Fatalf("seed %d, row %d: null of type %s\n%s", seed, i, e.Type, exprgen.String(e))
				}
			}
		}
		if len(errs) > 0 {
			t.Fatalf("seed %d: errors in rows that were not selected or out of order: %v", seed, errs)
		}
		res.Release()
		b.Release()
	}
	return compared + differSelect(t, g, seed, alloc)
}

// differSelect does the same for a condition.
func differSelect(t *testing.T, g *exprgen.Gen, seed uint64, alloc memory.Allocator) (compared int) {
	cond := g.Condition(25)
	p, err := vector.NewProgram(alloc, []*vector.Expr{cond}, g.Schema)
	if err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, exprgen.String(cond))
	}
	rows := []int{1, 13, 100}[g.R.IntN(3)]
	b, values := g.Batch(alloc, rows)
	defer b.Release()
	sel := selection(g, rows)
	got, errs, err := p.Select(b, sel, nil)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if sel == nil {
		sel = all(rows)
	}
	for _, i := range sel {
		v, code := exprgen.Eval(cond, exprgen.Row{Batch: b, Index: int(i), Values: values[i]}, nil)
		compared++
		gotCode := scalar.CodeNone
		if len(errs) > 0 && errs[0].Row == int(i) {
			gotCode = errs[0].Code
			errs = errs[1:]
		}
		in := len(got) > 0 && got[0] == i
		if in {
			got = got[1:]
		}
		if gotCode != code || in != (code == scalar.CodeNone && !v.IsNull() && v.Bool()) {
			t.Fatalf("seed %d, row %d: selected %v with %v, want %+v with %v\n%s", seed, i, in, gotCode, v, code, exprgen.String(cond))
		}
	}
	if len(got) > 0 || len(errs) > 0 {
		t.Fatalf("seed %d: rows %v and errors %v are too much", seed, got, errs)
	}
	return compared
}

func selection(g *exprgen.Gen, rows int) []int32 {
	if g.R.IntN(2) == 0 {
		return nil
	}
	sel := []int32{}
	keep := g.R.IntN(101)
	for i := range rows {
		if g.R.IntN(100) < keep {
			sel = append(sel, int32(i))
		}
	}
	return sel
}

func all(rows int) []int32 {
	sel := make([]int32, rows)
	for i := range sel {
		sel[i] = int32(i)
	}
	return sel
}

// Kernels and reference functions give the same values, nulls and errors.
func TestKernelsAgreeWithReferenceFunctions(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	if *seedFlag != 0 {
		differ(t, seed)
	}
	want := 200_000
	if testing.Short() {
		want = 20_000
	}
	start, n, programs := time.Now(), 0, 0
	for ; n < want && !t.Failed(); programs++ {
		n += differ(t, seed+uint64(programs))
	}
	t.Logf("%d values of %d programs compared in %v", n, programs, time.Since(start).Round(time.Millisecond))
}

func FuzzKernelsAgreeWithReferenceFunctions(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { differ(t, seed) })
}
