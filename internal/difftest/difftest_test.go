// Package difftest holds the tests that compare the two ways of evaluating an expression: the machine of
// dsl/expr, row by row, and the kernels of operators/vector. Neither may import the other.
package difftest

import (
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/exprgen"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the differential test; 0 draws one")

var ops = map[vector.Op]plan.ExprOp{
	vector.OpColumn: plan.ExprColumn, vector.OpMeta: plan.ExprMeta, vector.OpConst: plan.ExprConst, vector.OpCall: plan.ExprCall,
	vector.OpAnd: plan.ExprAnd, vector.OpOr: plan.ExprOr, vector.OpCond: plan.ExprCond, vector.OpCoalesce: plan.ExprCoalesce,
	vector.OpField: plan.ExprField, vector.OpLet: plan.ExprLet, vector.OpVar: plan.ExprVar,
}

var metas = map[int]plan.Meta{
	vector.MetaTime: plan.MetaTime, vector.MetaAppendTime: plan.MetaAppendTime, vector.MetaKey: plan.MetaKey,
	vector.MetaHeaders: plan.MetaHeaders, vector.MetaTopic: plan.MetaTopic, vector.MetaPartition: plan.MetaPartition, vector.MetaOffset: plan.MetaOffset,
}

func toPlan(e *vector.Expr) *plan.Expr {
	p := &plan.Expr{
		Op: ops[e.Op], Type: e.Type, Column: e.Column, Meta: metas[e.Meta], Value: e.Value, Func: e.Func, Field: e.Field, Depth: e.Depth, Text: e.Text,
	}
	for _, a := range e.Args {
		p.Args = append(p.Args, toPlan(a))
	}
	return p
}

// A row is what the machine reads.
type row struct{ exprgen.Row }

func (r row) Column(i int) scalar.Value { return r.Values[i] }

func (r row) Meta(m plan.Meta) scalar.Value {
	for v, p := range metas {
		if p == m {
			return r.Row.Meta(v)
		}
	}
	return scalar.Null
}

func differ(t *testing.T, seed uint64) (compared int) {
	g := exprgen.New(seed)
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	exprs := g.Exprs(12, 60)
	kernels, err := vector.NewProgram(alloc, exprs, g.Schema)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	b, values := g.Batch(alloc, 120)
	defer b.Release()
	res, err := kernels.Eval(b, nil)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	defer res.Release()
	programs := make([]*expr.Program, len(exprs))
	for x, e := range exprs {
		if programs[x], err = expr.Compile(toPlan(e)); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, exprgen.String(e))
		}
	}
	errs := res.Errors
	for i := range b.Rows {
		r := row{exprgen.Row{Batch: b, Index: i, Values: values[i]}}
		first := scalar.CodeNone
		got := scalar.CodeNone
		if len(errs) > 0 && errs[0].Row == i {
			got, errs = errs[0].Code, errs[1:]
		}
		for x, p := range programs {
			want, code := p.Eval(r)
			compared++
			if code != scalar.CodeNone {
				if first == scalar.CodeNone {
					first = code
				}
				continue
			}
			if v := operators.ValueAt(res.Columns[x], kernels.Types()[x], i); !scalar.Identical(v, want) {
				t.Fatalf("seed %d, row %d: kernel %+v, machine %+v\n%s", seed, i, v, want, exprgen.String(exprs[x]))
			}
		}
		if got != first {
			t.Fatalf("seed %d, row %d: kernels fail with %v, the machine with %v", seed, i, got, first)
		}
	}
	return compared
}

// The kernels and the machine give the same values, nulls and errors.
func TestKernelsAgreeWithTheMachine(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d (-seed to repeat)", seed)
	want := 200_000
	if testing.Short() {
		want = 20_000
	}
	n, programs := 0, uint64(0)
	for ; n < want && !t.Failed(); programs++ {
		n += differ(t, seed+programs)
	}
	t.Logf("%d values of %d programs compared", n, programs)
}

func FuzzKernelsAgreeWithTheMachine(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { differ(t, seed) })
}
