package difftest

import (
	"slices"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/exprgen"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

// A run of stages computed as one leaves the same rows, values and errors as each of them alone.
func TestStepsAgreeWithTheirStages(t *testing.T) {
	failed, left := 0, 0
	for seed := uint64(1); seed <= 300; seed++ {
		g := exprgen.New(seed)
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		exprs := g.Exprs(8, 40)
		out := exprs[4:]
		steps := []vector.Step{{Project: exprs[:2]}, {Filter: g.Condition(20)}, {Project: exprs[2:]}, {Filter: g.Condition(20)}}
		steps = steps[g.R.IntN(3):]
		s, err := vector.NewSteps(alloc, steps, out, g.Schema)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for range 3 {
			b, _ := g.Batch(alloc, 1+g.R.IntN(120))
			got, err := s.Steps(b)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			rows := make([]int32, b.Rows)
			for i := range rows {
				rows[i] = int32(i)
			}
			for i, st := range steps {
				next, errs := stage(t, alloc, st, b, rows, g.Schema)
				if w := got.Steps[i]; w.In != len(rows) || w.Out != len(next) || !slices.Equal(w.Errors, errs) {
					t.Fatalf("seed %d: step %d took %d rows of %d, errors %v; alone %d of %d, errors %v", seed, i, w.Out, w.In, w.Errors, len(next), len(rows), errs)
				}
				rows = next
				failed += len(errs)
			}
			left += len(rows)
			if n := len(rows); n != len(got.Rows) && !(got.Rows == nil && (n == b.Rows && got.Columns != nil || n == 0)) || got.Rows != nil && n > 0 && !slices.Equal(got.Rows, rows) {
				t.Fatalf("seed %d: rows %v are left, want %v", seed, got.Rows, rows)
			}
			if len(rows) > 0 {
				p, err := vector.NewProgram(alloc, out, g.Schema)
				if err != nil {
					t.Fatal(err)
				}
				want, err := p.Eval(b, rows)
				if err != nil {
					t.Fatal(err)
				}
				for c, typ := range p.Types() {
					for k, i := range rows {
						x, y := operators.ValueAt(got.Columns[c], typ, k), operators.ValueAt(want.Columns[c], typ, int(i))
						if x.Kind != y.Kind || scalar.Compare(x, y) != 0 {
							t.Fatalf("seed %d: row %d column %d is %v, alone %v\n%s", seed, i, c, x, y, exprgen.String(out[c]))
						}
					}
					got.Columns[c].Release()
				}
				want.Release()
			}
			b.Release()
		}
		alloc.AssertSize(t, 0)
	}
	if failed < 1000 || left < 1000 {
		t.Errorf("%d rows have failed and %d are left: the test says little", failed, left)
	}
}

// stage runs one step alone over some rows.
func stage(t *testing.T, alloc memory.Allocator, st vector.Step, b *operators.Batch, rows []int32, schema []scalar.Type) ([]int32, []operators.RowError) {
	t.Helper()
	if len(rows) == 0 {
		return nil, nil
	}
	exprs := st.Project
	if st.Filter != nil {
		exprs = []*vector.Expr{st.Filter}
	}
	p, err := vector.NewProgram(alloc, exprs, schema)
	if err != nil {
		t.Fatal(err)
	}
	if st.Filter != nil {
		next, errs, err := p.Select(b, rows, nil)
		if err != nil {
			t.Fatal(err)
		}
		return next, errs
	}
	r, err := p.Eval(b, rows)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	var next []int32
	errs := r.Errors
	for _, i := range rows {
		if len(errs) > 0 && errs[0].Row == int(i) {
			errs = errs[1:]
			continue
		}
		next = append(next, i)
	}
	return next, r.Errors
}
