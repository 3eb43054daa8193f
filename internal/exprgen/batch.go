package exprgen

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

// Batch draws a batch of the schema: columns with nulls, some of them slices of longer arrays, strings
// sometimes dictionary-encoded. The rows come back too. The caller releases the batch.
func (g *Gen) Batch(alloc memory.Allocator, rows int) (*operators.Batch, [][]scalar.Value) {
	values := make([][]scalar.Value, rows)
	for i := range values {
		values[i] = make([]scalar.Value, len(g.Schema))
	}
	nulls := pick(g, []int{0, 10, 50, 100})
	columns := make([]arrow.Array, len(g.Schema))
	for c, t := range g.Schema {
		// A few distinct values make runs, dictionaries and equal comparisons.
		few := make([]scalar.Value, 4)
		for i := range few {
			few[i] = g.Value(t, nulls)
		}
		draw := func() scalar.Value {
			if g.chance(50) {
				return pick(g, few)
			}
			return g.Value(t, nulls)
		}
		before, after := 0, 0
		if g.chance(40) {
			before, after = g.R.IntN(11), g.R.IntN(5)
		}
		dict := t.Kind == scalar.KindString && g.chance(50)
		var b array.Builder
		if dict {
			b = array.NewBuilder(alloc, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String})
			draw = func() scalar.Value { return pick(g, few) }
		} else {
			b = array.NewBuilder(alloc, operators.ArrowType(t))
		}
		for i := -before; i < rows+after; i++ {
			v := draw()
			if i >= 0 && i < rows {
				values[i][c] = v
			}
			switch d, isDict := b.(*array.BinaryDictionaryBuilder); {
			case isDict && v.IsNull():
				d.AppendNull()
			case isDict:
				if err := d.AppendString(v.S); err != nil {
					panic(err)
				}
			default:
				operators.AppendValue(b, t, v)
			}
		}
		arr := b.NewArray()
		b.Release()
		columns[c] = array.NewSlice(arr, int64(before), int64(before+rows))
		arr.Release()
	}
	times := make([]operators.EventTime, rows)
	batch := operators.NewBatch(columns, times)
	batch.Partition = 3
	batch.Offsets, batch.AppendTime, batch.Key = make([]int64, rows), make([]operators.EventTime, rows), make([][]byte, rows)
	for i := range rows {
		times[i] = g.Value(scalar.TypeTime, 0).I
		batch.Offsets[i] = int64(i * 3)
		batch.AppendTime[i] = times[i] + 1
		if g.chance(80) {
			batch.Key[i] = []byte(g.text())
		}
	}
	return batch, values
}

// A Row is one row to evaluate against.
type Row struct {
	Batch  *operators.Batch
	Index  int
	Values []scalar.Value
}

// Meta is a metadata column of the row.
func (r Row) Meta(m int) scalar.Value {
	switch m {
	case vector.MetaTime:
		return scalar.Time(r.Batch.Time[r.Index])
	case vector.MetaAppendTime:
		return scalar.Time(r.Batch.AppendTime[r.Index])
	case vector.MetaOffset:
		return scalar.Int(r.Batch.Offsets[r.Index])
	case vector.MetaPartition:
		return scalar.Int(int64(r.Batch.Partition))
	case vector.MetaKey:
		if k := r.Batch.Key[r.Index]; k != nil {
			return scalar.Bytes(string(k))
		}
	}
	return scalar.Null
}

// Eval is the meaning of an expression in one row: its value or the first error in the order of
// evaluation. It is as plain as can be, and slow.
func Eval(e *vector.Expr, row Row, lets []scalar.Value) (scalar.Value, scalar.Code) {
	switch e.Op {
	case vector.OpColumn:
		return row.Values[e.Column], scalar.CodeNone
	case vector.OpMeta:
		return row.Meta(e.Meta), scalar.CodeNone
	case vector.OpConst:
		return e.Value, scalar.CodeNone
	case vector.OpVar:
		return lets[len(lets)-1-e.Depth], scalar.CodeNone
	case vector.OpAnd, vector.OpOr:
		decides := e.Op == vector.OpOr
		a, c := Eval(e.Args[0], row, lets)
		if c != scalar.CodeNone || !a.IsNull() && a.Bool() == decides {
			return a, c
		}
		b, c := Eval(e.Args[1], row, lets)
		if c != scalar.CodeNone || !b.IsNull() && b.Bool() == decides || !a.IsNull() {
			return b, c
		}
		return scalar.Null, scalar.CodeNone
	case vector.OpCond:
		a, c := Eval(e.Args[0], row, lets)
		switch {
		case c != scalar.CodeNone:
			return scalar.Null, c
		case !a.IsNull() && a.Bool():
			return Eval(e.Args[1], row, lets)
		}
		return Eval(e.Args[2], row, lets)
	case vector.OpCoalesce:
		a, c := Eval(e.Args[0], row, lets)
		if c != scalar.CodeNone || !a.IsNull() {
			return a, c
		}
		return Eval(e.Args[1], row, lets)
	case vector.OpField:
		a, c := Eval(e.Args[0], row, lets)
		if c != scalar.CodeNone || a.IsNull() {
			return scalar.Null, c
		}
		return a.L[e.Field], scalar.CodeNone
	case vector.OpLet:
		a, c := Eval(e.Args[0], row, lets)
		if c != scalar.CodeNone {
			return scalar.Null, c
		}
		return Eval(e.Args[1], row, append(lets[:len(lets):len(lets)], a))
	}
	args := make([]scalar.Value, len(e.Args))
	types := make([]scalar.Arg, len(e.Args))
	for i, a := range e.Args {
		v, c := Eval(a, row, lets)
		if c != scalar.CodeNone {
			return scalar.Null, c
		}
		args[i] = v
		types[i].Type = a.Type
		if a.Op == vector.OpConst {
			types[i].Const = &a.Value
		}
	}
	f := resolved(e, types)
	return f.Call(args)
}

// cache holds the functions of call nodes, which tests evaluate many times.
var cache = map[*vector.Expr]*scalar.Func{}

func resolved(e *vector.Expr, args []scalar.Arg) *scalar.Func {
	if f := cache[e]; f != nil {
		return f
	}
	f, err := scalar.Resolve(e.Func, args)
	if err != nil {
		panic("exprgen: " + err.Error())
	}
	if len(cache) > 10000 {
		clear(cache)
	}
	cache[e] = f
	return f
}

// String writes an expression for a failure message.
func String(e *vector.Expr) string {
	names := map[vector.Op]string{
		vector.OpColumn: "column", vector.OpMeta: "meta", vector.OpAnd: "and", vector.OpOr: "or", vector.OpCond: "cond",
		vector.OpCoalesce: "coalesce", vector.OpField: "field", vector.OpLet: "let", vector.OpVar: "var",
	}
	var b []byte
	var walk func(e *vector.Expr)
	walk = func(e *vector.Expr) {
		switch e.Op {
		case vector.OpConst:
			b, _ = scalar.AppendJSON(b, e.Value, e.Type)
		case vector.OpCall:
			b = append(b, e.Func...)
		case vector.OpColumn:
			b = append(b, 'c', byte('0'+e.Column/10), byte('0'+e.Column%10))
		case vector.OpField:
			b = append(b, '.', byte('0'+e.Field))
		default:
			b = append(b, names[e.Op]...)
		}
		b = append(b, ':')
		b = append(b, e.Type.String()...)
		if len(e.Args) > 0 {
			b = append(b, '(')
			for i, a := range e.Args {
				if i > 0 {
					b = append(b, ", "...)
				}
				walk(a)
			}
			b = append(b, ')')
		}
	}
	walk(e)
	return string(b)
}
