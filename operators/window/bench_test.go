package window

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

const benchRows = 8192

// The columns of benchmark rows: the key, then an argument of each type.
var benchTypes = []scalar.Type{scalar.TypeString, scalar.TypeInt64, scalar.TypeFloat64, scalar.DecimalType(18, 2), scalar.TypeString, scalar.TypeBool}

// benchBatches are batches of rows whose keys are drawn from n, and whose arguments from 10,000 values.
// With dict the keys are a dictionary that each batch brings along.
func benchBatches(count, n int, dict bool) []*operators.Batch {
	r := rand.New(rand.NewPCG(1, 1))
	out := make([]*operators.Batch, count)
	for i := range out {
		builders := make([]array.Builder, len(benchTypes))
		for c, t := range benchTypes {
			builders[c] = array.NewBuilder(memory.DefaultAllocator, operators.ArrowType(t))
			if c == 0 && dict {
				builders[c] = array.NewDictionaryBuilder(memory.DefaultAllocator, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String})
			}
		}
		offsets := make([]int64, benchRows)
		for j := range benchRows {
			key, v := fmt.Sprintf("user-%06d", r.IntN(n)), int64(r.IntN(10_000))
			if d, ok := builders[0].(*array.BinaryDictionaryBuilder); ok {
				if err := d.AppendString(key); err != nil {
					panic(err)
				}
			} else {
				builders[0].(*array.StringBuilder).Append(key)
			}
			operators.AppendValue(builders[1], benchTypes[1], scalar.Int(v))
			operators.AppendValue(builders[2], benchTypes[2], scalar.Float(float64(v)/7))
			operators.AppendValue(builders[3], benchTypes[3], scalar.Decimal(scalar.Int128Of(v)))
			operators.AppendValue(builders[4], benchTypes[4], scalar.String(fmt.Sprintf("value-%d", v)))
			operators.AppendValue(builders[5], benchTypes[5], scalar.Bool(v&1 == 0))
			offsets[j] = int64(i*benchRows + j)
		}
		columns := make([]arrow.Array, len(builders))
		for c, b := range builders {
			columns[c] = b.NewArray()
		}
		out[i] = operators.NewBatch(columns, make([]int64, benchRows))
		out[i].Behind, out[i].Offsets = make([]int64, benchRows), offsets
	}
	return out
}

// pump feeds batches for as long as the benchmark runs; a window closes every 200.
func pump(b *testing.B, a *Aggregate, batches []*operators.Batch) {
	s := drain{}
	i, w := 0, int64(0)
	for b.Loop() {
		in := batches[i%len(batches)]
		for j := range in.Time {
			in.Time[j] = w + int64(j)
			in.Behind[j] = w
		}
		in.Retain()
		a.Process(in, &s)
		if i++; i%200 == 0 {
			w += int64(time.Minute)
			a.Advance(w, &s)
			a.Changes(func(_, _ []byte) {})
		}
	}
	b.ReportMetric(float64(b.N*benchRows)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

// Each function beside count and sum, over 1,000 groups.
func BenchmarkFunctions(b *testing.B) {
	batches := benchBatches(64, 1000, false)
	list := func(t scalar.Type) scalar.Type { return scalar.ListType(t).Null() }
	f64, i64 := scalar.TypeFloat64, scalar.TypeInt64
	type fn struct {
		f     string
		col   int
		out   scalar.Type
		param scalar.Value
		pt    scalar.Type
		by    int
	}
	half, ten := scalar.Float(0.5), scalar.Int(10)
	for _, x := range []fn{
		{f: "count", col: -1, out: i64},
		{f: "sum", col: 1, out: i64.Null()},
		{f: "sum", col: 2, out: f64.Null()},
		{f: "sum", col: 3, out: scalar.DecimalType(38, 2).Null()},
		{f: "any_value", col: 1, out: i64.Null()},
		{f: "bool_and", col: 5, out: scalar.TypeBool.Null()},
		{f: "var_pop", col: 1, out: f64.Null()},
		{f: "var_pop", col: 2, out: f64.Null()},
		{f: "var_pop", col: 3, out: f64.Null()},
		{f: "arg_max", col: 4, out: scalar.TypeString.Null(), by: 1},
		{f: "count_distinct", col: 1, out: i64},
		{f: "count_distinct", col: 4, out: i64},
		{f: "approx_distinct", col: 1, out: i64},
		{f: "approx_distinct", col: 4, out: i64},
		{f: "median", col: 2, out: f64.Null()},
		{f: "approx_quantile", col: 2, out: f64.Null(), param: half, pt: f64},
		{f: "list", col: 1, out: list(i64), param: ten, pt: i64},
		{f: "set", col: 1, out: list(i64), param: ten, pt: i64},
		{f: "top_k", col: 1, out: list(i64), param: ten, pt: i64},
		{f: "join", col: 4, out: scalar.TypeString.Null(), param: scalar.String(","), pt: scalar.TypeString},
	} {
		s := Slot{Func: x.f, Type: x.out, Param: x.param, ParamType: x.pt}
		of := "rows"
		if x.col >= 0 {
			s.Arg, s.ArgType = operators.Columns{x.col, x.by}, benchTypes[x.col]
			of = s.ArgType.Kind.String()
		}
		if x.by > 0 {
			s.ByColumn, s.ByType = 1, benchTypes[x.by]
		}
		b.Run(fmt.Sprintf("%s/%s", x.f, of), func(b *testing.B) {
			a, err := NewAggregate(Options{
				By: operators.Columns{0}, ByTypes: benchTypes[:1], ByNames: []string{"user"}, Slots: []Slot{s}, Results: operators.Columns{3}, Size: time.Minute,
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			pump(b, a, batches)
		})
	}
}

// BenchmarkKeys counts rows by a string key, as text and as a dictionary, beside a Go map of the same keys.
func BenchmarkKeys(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		for _, dict := range []bool{false, true} {
			of := "text"
			if dict {
				of = "dictionary"
			}
			batches := benchBatches(64, n, dict)
			b.Run(fmt.Sprintf("keys=%d/%s", n, of), func(b *testing.B) {
				a, err := NewAggregate(Options{
					By: operators.Columns{0}, ByTypes: benchTypes[:1], ByNames: []string{"user"}, Slots: []Slot{{Func: "count", Type: scalar.TypeInt64}},
					Results: operators.Columns{3}, Size: time.Minute,
				})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				pump(b, a, batches)
			})
		}
		batches := benchBatches(64, n, false)
		b.Run(fmt.Sprintf("keys=%d/gomap", n), func(b *testing.B) {
			counts, i := map[string]int64{}, 0
			for b.Loop() {
				keys := batches[i%len(batches)].Columns[0].(*array.String)
				for j := range benchRows {
					counts[keys.Value(j)]++
				}
				if i++; i%200 == 0 {
					clear(counts)
				}
			}
			b.ReportMetric(float64(b.N*benchRows)/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}
