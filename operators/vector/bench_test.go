package vector_test

import (
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/vector"
)

const benchRows = 8192

// benchSchema: amount int64, country string, price float64, total decimal(12,2), ts time, dict string.
var benchSchema = []scalar.Type{
	scalar.TypeInt64, scalar.TypeString, scalar.TypeFloat64, scalar.DecimalType(12, 2), scalar.TypeTime, scalar.TypeString,
}

func benchBatch() *operators.Batch {
	countries := []string{"US", "DE", "FR", "CN", "BR", "US", "IN", "Apple"}
	alloc := memory.DefaultAllocator
	builders := make([]array.Builder, len(benchSchema))
	for i, t := range benchSchema {
		builders[i] = array.NewBuilder(alloc, operators.ArrowType(t))
	}
	builders[5] = array.NewBuilder(alloc, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String})
	x := uint64(1)
	for range benchRows {
		x = x*6364136223846793005 + 1442695040888963407
		r := int64(x >> 33)
		c := countries[r>>3%8]
		operators.AppendValue(builders[0], benchSchema[0], scalar.Int(r%200))
		operators.AppendValue(builders[1], benchSchema[1], scalar.String(c))
		operators.AppendValue(builders[2], benchSchema[2], scalar.Float(float64(r%1000)/7))
		operators.AppendValue(builders[3], benchSchema[3], scalar.Decimal(scalar.Int128Of(r%1000000)))
		operators.AppendValue(builders[4], benchSchema[4], scalar.Time(1_700_000_000_000_000_000+r*1000))
		if err := builders[5].(*array.BinaryDictionaryBuilder).AppendString(c); err != nil {
			panic(err)
		}
	}
	columns := make([]arrow.Array, len(builders))
	for i, b := range builders {
		columns[i] = b.NewArray()
	}
	return operators.NewBatch(columns, make([]operators.EventTime, benchRows))
}

func col(i int) *vector.Expr {
	return &vector.Expr{Op: vector.OpColumn, Column: i, Type: benchSchema[i]}
}

func konst(t scalar.Type, v scalar.Value) *vector.Expr {
	return &vector.Expr{Op: vector.OpConst, Type: t, Value: v}
}

func num(i int64) *vector.Expr   { return konst(scalar.TypeInt64, scalar.Int(i)) }
func str(s string) *vector.Expr  { return konst(scalar.TypeString, scalar.String(s)) }
func flt(f float64) *vector.Expr { return konst(scalar.TypeFloat64, scalar.Float(f)) }

// call types a call whose arguments need no cast.
func call(name string, args ...*vector.Expr) *vector.Expr {
	list := make([]scalar.Arg, len(args))
	for i, a := range args {
		list[i].Type = a.Type
		if a.Op == vector.OpConst {
			list[i].Const = &a.Value
		}
	}
	f, err := scalar.Resolve(name, list)
	if err != nil {
		panic(err)
	}
	return &vector.Expr{Op: vector.OpCall, Func: name, Type: f.Result, Args: args}
}

func and(a, b *vector.Expr) *vector.Expr {
	return &vector.Expr{Op: vector.OpAnd, Type: scalar.TypeBool.OrNull(a.Type.Nullable || b.Type.Nullable), Args: []*vector.Expr{a, b}}
}

func program(tb testing.TB, exprs ...*vector.Expr) *vector.Program {
	p, err := vector.NewProgram(nil, exprs, benchSchema)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func perRow(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchRows, "ns/row")
}

func BenchmarkFilter(b *testing.B) {
	batch := benchBatch()
	filters := map[string]*vector.Expr{
		"int":         call("gt", col(0), num(100)),
		"int-string":  and(call("gt", col(0), num(100)), call("ne", col(1), str("US"))),
		"int-dict":    and(call("gt", col(0), num(100)), call("ne", col(5), str("US"))),
		"decimal":     call("gt", col(3), konst(scalar.DecimalType(3, 0), scalar.Decimal(scalar.Int128Of(100)))),
		"in":          call("in", col(1), konst(scalar.ListType(scalar.TypeString), scalar.List(scalar.String("DE"), scalar.String("FR"), scalar.String("IN")))),
		"lower-dict":  call("eq", call("lower", col(5)), str("apple")),
		"hour":        call("ge", call("hour", col(4)), num(8)),
		"string-part": call("contains", col(1), str("pp")),
	}
	for name, cond := range filters {
		b.Run("select="+name, func(b *testing.B) {
			p := program(b, cond)
			var dst []int32
			b.ReportAllocs()
			for b.Loop() {
				dst, _, _ = p.Select(batch, nil, dst[:0])
			}
			perRow(b)
		})
	}
	b.Run("eval=int-string", func(b *testing.B) {
		p := program(b, filters["int-string"])
		b.ReportAllocs()
		for b.Loop() {
			r, _ := p.Eval(batch, nil)
			r.Release()
		}
		perRow(b)
	})
}

func BenchmarkArithmetic(b *testing.B) {
	batch := benchBatch()
	rate := konst(scalar.DecimalType(3, 3), scalar.Decimal(scalar.Int128Of(908)))
	exprs := map[string]*vector.Expr{
		"int":     call("add", call("mul", col(0), num(3)), num(1)),
		"float":   call("add", call("mul", col(2), flt(0.908)), flt(1)),
		"decimal": call("mul", col(3), rate),
		"div":     call("div", col(0), num(7)),
		"trunc":   call("trunc", col(4), konst(scalar.TypeDuration, scalar.Duration(60_000_000_000))),
		"fmt":     call("fmt", col(4), str("yyyy-MM-dd")),
		"lower":   call("lower", col(1)),
	}
	for name, e := range exprs {
		b.Run(name, func(b *testing.B) {
			p := program(b, e)
			b.ReportAllocs()
			for b.Loop() {
				r, err := p.Eval(batch, nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
			perRow(b)
		})
	}
}
