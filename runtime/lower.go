package runtime

import (
	"fmt"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

// A lowering turns the plan's expressions into column programs over one input schema.
type lowering struct {
	alloc memory.Allocator
	input []scalar.Type
	// columns stand for the columns that expressions read, where these are computed from the input; nil: they are the input.
	columns []*vector.Expr
}

// program compiles a list of expressions.
func (l lowering) program(exprs []*plan.Expr) (*vector.Program, error) {
	lowered := make([]*vector.Expr, len(exprs))
	for i, e := range exprs {
		x, err := l.lower(e)
		if err != nil {
			return nil, fmt.Errorf("runtime: lower `%s`: %w", e.Text, err)
		}
		lowered[i] = x
	}
	return vector.NewProgram(l.alloc, lowered, l.input)
}

var vectorOps = map[plan.ExprOp]vector.Op{
	plan.ExprColumn:   vector.OpColumn,
	plan.ExprMeta:     vector.OpMeta,
	plan.ExprConst:    vector.OpConst,
	plan.ExprCall:     vector.OpCall,
	plan.ExprAnd:      vector.OpAnd,
	plan.ExprOr:       vector.OpOr,
	plan.ExprCond:     vector.OpCond,
	plan.ExprCoalesce: vector.OpCoalesce,
	plan.ExprField:    vector.OpField,
	plan.ExprLet:      vector.OpLet,
	plan.ExprVar:      vector.OpVar,
}

var vectorMeta = map[plan.Meta]int{
	plan.MetaTime:       vector.MetaTime,
	plan.MetaAppendTime: vector.MetaAppendTime,
	plan.MetaKey:        vector.MetaKey,
	plan.MetaTopic:      vector.MetaTopic,
	plan.MetaPartition:  vector.MetaPartition,
	plan.MetaOffset:     vector.MetaOffset,
}

// lower maps a node to its column form. A call with a closure has none: the whole subtree becomes a
// row-by-row fallback, run by the expression VM.
func (l lowering) lower(e *plan.Expr) (*vector.Expr, error) {
	if needsRows(e) {
		if l.columns != nil {
			e = l.overInput(e)
		}
		return l.fallback(e)
	}
	if e.Op == plan.ExprColumn && l.columns != nil {
		return l.columns[e.Column], nil
	}
	op, ok := vectorOps[e.Op]
	if !ok {
		return nil, fmt.Errorf("no column form for node %d", e.Op)
	}
	x := &vector.Expr{Op: op, Type: e.Type, Column: e.Column, Meta: vectorMeta[e.Meta], Value: e.Value, Func: e.Func, Field: e.Field, Depth: e.Depth, Text: e.Text}
	for _, a := range e.Args {
		y, err := l.lower(a)
		if err != nil {
			return nil, err
		}
		x.Args = append(x.Args, y)
	}
	return x, nil
}

// needsRows says whether the node itself takes a closure, or is metadata that columns do not carry.
func needsRows(e *plan.Expr) bool {
	switch e.Op {
	case plan.ExprLambda, plan.ExprElem:
		return true
	case plan.ExprMeta:
		_, ok := vectorMeta[e.Meta]
		return !ok
	case plan.ExprCall:
		for _, a := range e.Args {
			if a.Op == plan.ExprLambda {
				return true
			}
		}
	}
	return false
}

func (l lowering) fallback(e *plan.Expr) (*vector.Expr, error) {
	prog, err := expr.Compile(e)
	if err != nil {
		return nil, err
	}
	row := &batchRow{types: l.input}
	return &vector.Expr{Op: vector.OpFallback, Type: e.Type, Text: e.Text, Reason: "closure", Fallback: func(b *operators.Batch, i int) (scalar.Value, scalar.Code) {
		row.batch, row.row = b, i
		return prog.Eval(row)
	}}, nil
}

// A batchRow shows one row of a columnar batch to the expression VM.
type batchRow struct {
	batch *operators.Batch
	types []scalar.Type
	row   int
}

// Column implements expr.Row.
func (r *batchRow) Column(i int) scalar.Value {
	return operators.ValueAt(r.batch.Columns[i], r.types[i], r.row)
}

// Meta implements expr.Row.
func (r *batchRow) Meta(m plan.Meta) scalar.Value {
	b, i := r.batch, r.row
	switch m {
	case plan.MetaTime:
		return scalar.Time(b.Time[i])
	case plan.MetaAppendTime:
		if b.AppendTime != nil {
			return scalar.Time(b.AppendTime[i])
		}
	case plan.MetaKey:
		if b.Key != nil && b.Key[i] != nil {
			return scalar.Bytes(string(b.Key[i]))
		}
	case plan.MetaTopic:
		if b.Origin != nil {
			return scalar.String(b.Origin(i).Topic)
		}
	case plan.MetaPartition:
		return scalar.IntOf(scalar.KindInt32, int64(b.Partition))
	case plan.MetaOffset:
		if b.Offsets != nil {
			return scalar.Int(b.Offsets[i])
		}
	case plan.MetaHeaders:
	}
	return scalar.Null
}

// types lists the column types of a schema.
func types(s plan.Schema) []scalar.Type {
	out := make([]scalar.Type, len(s.Columns))
	for i, c := range s.Columns {
		out[i] = c.Type
	}
	return out
}
