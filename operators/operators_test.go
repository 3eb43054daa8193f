package operators

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
)

// everyType holds each kind, plain, nullable and nested.
func everyType() []scalar.Type {
	base := []scalar.Type{
		scalar.TypeBool, scalar.TypeInt8, scalar.TypeInt16, scalar.TypeInt32, scalar.TypeInt64,
		scalar.TypeUint8, scalar.TypeUint16, scalar.TypeUint32, scalar.TypeUint64,
		scalar.TypeFloat32, scalar.TypeFloat64, scalar.DecimalType(38, 7), scalar.TypeString,
		scalar.TypeBytes, scalar.TypeTime, scalar.TypeDuration, scalar.TypeDate,
	}
	all := base
	for _, t := range base {
		all = append(all, t.Null(), scalar.ListType(t.Null()).Null())
	}
	nested := scalar.StructType(
		scalar.Field{Name: "a", Type: scalar.TypeInt64.Null()},
		scalar.Field{Name: "b", Type: scalar.ListType(scalar.TypeString)},
	)
	return append(all, nested, nested.Null(), scalar.ListType(nested.Null()), scalar.MapType(scalar.TypeString, scalar.TypeInt64.Null()).Null())
}

// randomValue makes a value of type t, extremes included.
func randomValue(r *rand.Rand, t scalar.Type) scalar.Value {
	if t.Nullable && r.IntN(4) == 0 {
		return scalar.Null
	}
	pick := func(vs ...int64) int64 { return vs[r.IntN(len(vs))] }
	switch k := t.Kind; k {
	case scalar.KindBool:
		return scalar.Bool(r.IntN(2) == 0)
	case scalar.KindInt8:
		return scalar.IntOf(k, pick(-128, 127, 0, int64(r.IntN(100))))
	case scalar.KindInt16:
		return scalar.IntOf(k, pick(-1<<15, 1<<15-1, 0, int64(r.IntN(100))))
	case scalar.KindInt32:
		return scalar.IntOf(k, pick(-1<<31, 1<<31-1, 0, int64(r.IntN(100))))
	case scalar.KindInt64:
		return scalar.IntOf(k, pick(math.MinInt64, math.MaxInt64, 0, int64(r.IntN(100))))
	case scalar.KindUint8:
		return scalar.IntOf(k, pick(0, 255, 7))
	case scalar.KindUint16:
		return scalar.IntOf(k, pick(0, 65535, 7))
	case scalar.KindUint32:
		return scalar.IntOf(k, pick(0, math.MaxUint32, 7))
	case scalar.KindUint64:
		return scalar.IntOf(k, pick(0, -1, 7))
	case scalar.KindFloat32:
		return scalar.Float32([]float32{0, 1.5, -3e38, 0.1, float32(r.NormFloat64())}[r.IntN(5)])
	case scalar.KindFloat64:
		return scalar.Float([]float64{0, math.Copysign(0, -1), 1e300, 0.1, 1e-7, r.NormFloat64()}[r.IntN(6)])
	case scalar.KindDecimal:
		d := scalar.Int128{Hi: r.Int64() >> 2, Lo: r.Uint64()}
		return scalar.Decimal([]scalar.Int128{d, d.Neg(), {}, scalar.Int128Of(r.Int64())}[r.IntN(4)])
	case scalar.KindString:
		return scalar.String([]string{"", "a", "grüße", "\"\\\n\x01", strings.Repeat("x", r.IntN(30))}[r.IntN(5)])
	case scalar.KindBytes:
		return scalar.Bytes(string([]byte{0, 255, byte(r.Uint32())}[:r.IntN(4)]))
	case scalar.KindTime:
		return scalar.Time(pick(0, math.MinInt64, math.MaxInt64, r.Int64N(2e18), 1.7e18))
	case scalar.KindDuration:
		return scalar.Duration(pick(0, math.MinInt64, 1, 5400e9))
	case scalar.KindDate:
		return scalar.Date(pick(0, -1000, 20000))
	case scalar.KindList:
		elems := make([]scalar.Value, r.IntN(4))
		for i := range elems {
			elems[i] = randomValue(r, *t.Elem)
		}
		return scalar.List(elems...)
	case scalar.KindMap:
		n := r.IntN(3)
		keys, values := make([]scalar.Value, n), make([]scalar.Value, n)
		for i := range keys {
			keys[i], values[i] = randomValue(r, *t.Key), randomValue(r, *t.Elem)
		}
		return scalar.Map(keys, values)
	case scalar.KindStruct:
		fields := make([]scalar.Value, len(t.Fields))
		for i, f := range t.Fields {
			fields[i] = randomValue(r, f.Type)
		}
		return scalar.Struct(fields...)
	}
	panic(t.String())
}

func build(alloc memory.Allocator, t scalar.Type, values []scalar.Value) arrow.Array {
	b := array.NewBuilder(alloc, ArrowType(t))
	defer b.Release()
	for _, v := range values {
		AppendValue(b, t, v)
	}
	return b.NewArray()
}

func TestEveryValueSurvivesItsColumnSlicedAndGathered(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range everyType() {
		values := make([]scalar.Value, 40)
		for i := range values {
			values[i] = randomValue(r, typ)
		}
		arr := build(alloc, typ, values)
		slice := array.NewSlice(arr, 7, 33)
		sel := make([]int32, 20)
		for i := range sel {
			sel[i] = int32(r.IntN(26))
		}
		gathered, none := Gather(alloc, slice, sel), Gather(alloc, slice, nil)
		for i, row := range sel {
			want := values[7+row]
			got := ValueAt(gathered, typ, i)
			if !scalar.Identical(got, want) {
				t.Fatalf("%s: row %d: got %v, want %v", typ, i, got, want)
			}
			wantJSON, code1 := scalar.AppendJSON(nil, want, typ)
			gotJSON, code2 := AppendJSON(nil, slice, typ, int(row))
			if !bytes.Equal(gotJSON, wantJSON) || code1 != code2 {
				t.Fatalf("%s: JSON %s, want %s", typ, gotJSON, wantJSON)
			}
			wantText, _ := scalar.AppendText(nil, want, typ)
			if gotText, _ := AppendText(nil, slice, typ, int(row)); !bytes.Equal(gotText, wantText) {
				t.Fatalf("%s: text %s, want %s", typ, gotText, wantText)
			}
		}
		if none.Len() != 0 {
			t.Fatalf("%s: gathering nothing gave %d rows", typ, none.Len())
		}
		for _, a := range []arrow.Array{arr, slice, gathered, none} {
			a.Release()
		}
	}
}

// sink collects what a stage gives away, as text.
type sink struct {
	types []scalar.Type
	out   strings.Builder
	rows  int
	fails []string
}

func (s *sink) Emit(b *Batch) {
	defer b.Release()
	s.rows += b.Rows
	for i := range b.Rows {
		fmt.Fprintf(&s.out, "@%d key=%q offset=%d ", b.Time[i], b.Key[i], b.Offsets[i])
		for c, arr := range b.Columns {
			j, _ := AppendJSON(nil, arr, s.types[c], i)
			fmt.Fprintf(&s.out, " %s", j)
		}
		fmt.Fprintf(&s.out, " from %s\n", b.Origin(i).Value)
	}
}

func (s *sink) Late(*Batch, []int) {}

func (s *sink) Fail(b *Batch, errs []RowError) {
	for _, e := range errs {
		s.fails = append(s.fails, fmt.Sprintf("offset %d: %s in %s, from %s", b.Offsets[e.Row], e.Code, e.Expr, b.Origin(e.Row).Value))
	}
}

// failing is an Evaluator that fails every row whose first column is a multiple of n.
type failing struct {
	Evaluator
	n int64
}

func (f failing) Eval(b *Batch, sel []int32) (*Result, error) {
	r, err := f.Evaluator.Eval(b, sel)
	for i := range b.Rows {
		if b.Columns[0].(*array.Int64).Value(i)%f.n == 0 {
			r.Errors = append(r.Errors, RowError{Row: i, Code: scalar.CodeOverflow, Expr: "n + 1"})
		}
	}
	return r, err
}

func testBatch(alloc memory.Allocator, n int) *Batch {
	var nums, names, flags []scalar.Value
	times := make([]EventTime, n)
	for i := range n {
		nums = append(nums, scalar.Int(int64(i)))
		names = append(names, scalar.String(string(rune('a'+i%3))))
		flags = append(flags, scalar.Bool(i%2 == 0))
		times[i] = int64(100 + i)
	}
	b := NewBatch([]arrow.Array{
		build(alloc, scalar.TypeInt64, nums),
		build(alloc, scalar.TypeString.Null(), names),
		build(alloc, scalar.TypeBool, flags),
	}, times)
	b.Key = make([][]byte, n)
	for i := range n {
		b.Offsets = append(b.Offsets, int64(1000+i))
		b.Behind = append(b.Behind, MinEventTime)
		b.AppendTime = append(b.AppendTime, int64(i))
	}
	b.Origin = func(row int) Origin { return Origin{Value: fmt.Appendf(nil, "v%d", row)} }
	return b
}

func TestStatelessStagesKeepWhatARowCarries(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	var story strings.Builder
	types := []scalar.Type{scalar.TypeInt64, scalar.TypeString.Null(), scalar.TypeBool}
	stage := func(title string, op Operator, out []scalar.Type) {
		s := &sink{types: out}
		released := 0
		b := testBatch(alloc, 7)
		b.OnRelease(func() { released++ })
		op.Process(b, s)
		op.Advance(MaxEventTime, s)
		op.Close()
		if released != 1 {
			t.Errorf("%s: the source was released %d times", title, released)
		}
		c := op.(Counting).Counts()
		if c.In != c.Out+c.Filtered+c.Late+c.Failed || c.Out != int64(s.rows) {
			t.Errorf("%s: counters do not add up: %+v", title, c)
		}
		fmt.Fprintf(&story, "# %s\n----\n%s", title, s.out.String())
		for _, f := range s.fails {
			fmt.Fprintln(&story, "failed", f)
		}
		fmt.Fprintf(&story, "%+v\n\n", c)
	}
	stage("A filter gathers the rows whose condition holds.", NewFilter(Columns{2}, alloc), types)
	stage("A row whose condition fails is neither passed nor filtered.", NewFilter(failing{Columns{2}, 4}, alloc), types)
	stage("A projection replaces the columns and keeps everything else.", NewProject(Columns{1, 0}, []scalar.Type{types[1], types[0]}, alloc), []scalar.Type{types[1], types[0]})
	stage("A projection leaves failed rows out.", NewProject(failing{Columns{1}, 3}, types[1:2], alloc), types[1:2])
	stage("One string column is its own key.", NewKey(Columns{1}, types[1:2], alloc), types)
	stage("Several columns make a JSON array.", NewKey(failing{Columns{1, 0}, 5}, types[1:2:2], alloc).withTypes(types[1], types[0]), types)
	golden.Check(t, "testdata/stateless.txt", story.String())
}

func (k *Key) withTypes(types ...scalar.Type) *Key { k.types = types; return k }

func TestBatchesShareUntilTheLastRelease(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	freed := false
	b := testBatch(alloc, 5)
	b.OnRelease(func() { freed = true })
	s := b.Slice(1, 4)
	g := s.Select(alloc, []int32{2, 0})
	w := g.With(nil)
	b.Retain()
	b.Release()
	b.Release()
	s.Release()
	if got := string(g.Origin(0).Value) + string(w.Origin(1).Value); got != "v3v1" {
		t.Errorf("origins through slice and select: %s", got)
	}
	if g.Time[0] != 103 || g.Offsets[1] != 1001 || s.Rows != 3 || g.Columns[0].(*array.Int64).Value(0) != 3 {
		t.Errorf("rows through slice and select: %v %v", g.Time, g.Offsets)
	}
	g.Release()
	if freed {
		t.Error("freed while a derived batch lives")
	}
	w.Release()
	if !freed {
		t.Error("not freed by the last release")
	}
}

func TestEncodedKeys(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	nan := math.NaN()
	cases := []struct {
		types  []scalar.Type
		values []scalar.Value
		want   string // "-" null, "!" failed
	}{
		{nil, nil, "-"},
		{[]scalar.Type{scalar.TypeString}, []scalar.Value{scalar.String(`a"b`)}, `a"b`},
		{[]scalar.Type{scalar.TypeString.Null()}, []scalar.Value{scalar.Null}, "-"},
		{[]scalar.Type{scalar.TypeString}, []scalar.Value{scalar.String("")}, ""},
		{[]scalar.Type{scalar.TypeBytes}, []scalar.Value{scalar.Bytes("\x00\xff")}, "\x00\xff"},
		{[]scalar.Type{scalar.TypeInt64}, []scalar.Value{scalar.Int(-5)}, "-5"},
		{[]scalar.Type{scalar.TypeTime}, []scalar.Value{scalar.Time(1)}, `"1970-01-01T00:00:00.000000001Z"`},
		{[]scalar.Type{scalar.TypeFloat64}, []scalar.Value{scalar.Float(math.Copysign(0, -1))}, "0"},
		{[]scalar.Type{scalar.TypeFloat64}, []scalar.Value{scalar.Float(nan)}, "!"},
		{[]scalar.Type{scalar.DecimalType(5, 2)}, []scalar.Value{scalar.Decimal(scalar.Int128Of(-150))}, "-1.50"},
		{
			[]scalar.Type{scalar.TypeString, scalar.TypeInt64.Null(), scalar.TypeBytes},
			[]scalar.Value{scalar.String("é\n"), scalar.Null, scalar.Bytes("hi")},
			`["é\n",null,"aGk="]`,
		},
	}
	for _, c := range cases {
		var columns []arrow.Array
		for i, typ := range c.types {
			columns = append(columns, build(alloc, typ, []scalar.Value{c.values[i]}))
		}
		keys, errs := EncodeKeys(columns, c.types, 1, nil, nil)
		got := string(keys[0])
		switch {
		case len(errs) > 0:
			got = "!"
		case keys[0] == nil:
			got = "-"
		}
		if got != c.want {
			t.Errorf("%v: key %q, want %q", c.types, got, c.want)
		}
		if one, null := EncodeKey(columns, c.types, 0, nil); null != (keys[0] == nil) || !null && !bytes.Equal(one, keys[0]) {
			t.Errorf("%v: EncodeKey gives %q %v", c.types, one, null)
		}
		for _, col := range columns {
			col.Release()
		}
	}
}

// The values are those of Kafka's own test of its partitioner.
func TestMurmur2IsKafkas(t *testing.T) {
	for text, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(Murmur2([]byte(text))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", text, got, want)
		}
	}
	if p := Partition([]byte("21"), 7); p < 0 || p > 6 {
		t.Errorf("partition %d", p)
	}
}
