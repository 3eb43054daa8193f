package columnar_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/exprgen"
	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
)

// schemaOf names the columns of a generator's schema.
func schemaOf(t testing.TB, types []scalar.Type) *columnar.Schema {
	t.Helper()
	cols := make([]columnar.Column, len(types))
	for i, ty := range types {
		cols[i] = columnar.Column{Name: fmt.Sprintf("c%d", i), Type: ty}
	}
	s, err := columnar.NewSchema(cols)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// good says whether a value is one that Check lets through.
func good(v scalar.Value, t scalar.Type) bool {
	if v.IsNull() {
		return true
	}
	switch t.Kind {
	case scalar.KindFloat32, scalar.KindFloat64:
		return !math.IsNaN(v.F) && !math.IsInf(v.F, 0)
	case scalar.KindString:
		return utf8.ValidString(v.S)
	case scalar.KindList:
		for _, e := range v.L {
			if !good(e, *t.Elem) {
				return false
			}
		}
	case scalar.KindMap:
		for i := range v.L {
			if !good(v.Keys[i], *t.Key) || !good(v.L[i], *t.Elem) {
				return false
			}
		}
	case scalar.KindStruct:
		for i, e := range v.L {
			if !good(e, t.Fields[i].Type) {
				return false
			}
		}
	}
	return true
}

// text is a value in a form in which equal ones, NaN included, are equal.
func text(v scalar.Value) string { return fmt.Sprintf("%#v", v) }

func values(f *columnar.Frame, types []scalar.Type) [][]scalar.Value {
	out := make([][]scalar.Value, f.Rows())
	for i := range out {
		out[i] = make([]scalar.Value, len(types))
	}
	for c, t := range types {
		arr := f.Column(c)
		for i := range out {
			out[i][c] = operators.ValueAt(arr, t, i)
		}
		arr.Release()
	}
	return out
}

// Random batches, with slices of longer arrays, nulls and dictionaries, come back as they were, and Check refuses
// exactly those that hold what no column may.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		g := exprgen.New(seed)
		s := schemaOf(t, g.Schema)
		rows := g.R.IntN(40)
		b, want := g.Batch(alloc, rows)
		from := g.R.IntN(rows + 1)
		to := from + g.R.IntN(rows-from+1)
		e := columnar.NewEncoder(s)
		var times, behind []int64
		if g.R.IntN(2) == 0 {
			times = b.Time
		}
		if g.R.IntN(2) == 0 {
			behind = b.Offsets
		}
		size, err := e.Plan(b.Columns, from, to, times, behind)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		payload := e.Append([]byte("before"))[6:]
		b.Release()
		alloc.AssertSize(t, 0)
		if len(payload) != size {
			t.Fatalf("seed %d: %d bytes, %d were planned", seed, len(payload), size)
		}
		if id, ok := columnar.SchemaID(payload); !ok || id != s.ID() {
			t.Fatalf("seed %d: schema %x", seed, id)
		}
		var f columnar.Frame
		if err := f.Open(s, payload); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ok, badColumn := true, ""
		for c, ty := range g.Schema {
			for i := from; i < to && ok; i++ {
				if !good(want[i][c], ty) {
					ok, badColumn = false, fmt.Sprintf("c%d", c)
				}
			}
		}
		// A slice of a dictionary array brings the words of the others along.
		switch err := f.Check(); {
		case err == nil && !ok:
			t.Fatalf("seed %d: column %s passes", seed, badColumn)
		case err != nil && !errors.Is(err, columnar.ErrPayload):
			t.Fatalf("seed %d: %v", seed, err)
		case err != nil && ok && !strings.Contains(err.Error(), "UTF-8"):
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := values(&f, g.Schema)
		if len(got) != to-from {
			t.Fatalf("seed %d: %d rows of %d", seed, len(got), to-from)
		}
		for i := range got {
			for c := range g.Schema {
				if text(got[i][c]) != text(want[from+i][c]) {
					t.Fatalf("seed %d: row %d column %d (%s): %s, was %s", seed, from+i, c, g.Schema[c], text(got[i][c]), text(want[from+i][c]))
				}
			}
			if times != nil && f.Times()[i] != times[from+i] || behind != nil && f.Behind()[i] != behind[from+i] {
				t.Fatalf("seed %d: event time of row %d", seed, from+i)
			}
		}
		if (times == nil) != (f.Times() == nil) && to > from {
			t.Fatalf("seed %d: event times come and go", seed)
		}
		// What was read can be written again.
		again := make([]arrow.Array, len(g.Schema))
		for c := range again {
			again[c] = f.Column(c)
		}
		if _, err := e.Plan(again, 0, f.Rows(), f.Times(), f.Behind()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var f2 columnar.Frame
		if err := f2.Open(s, e.Append(nil)); err != nil {
			t.Fatalf("seed %d: again: %v", seed, err)
		}
		if fmt.Sprintf("%#v", values(&f2, g.Schema)) != fmt.Sprintf("%#v", got) {
			t.Fatalf("seed %d: the second copy differs", seed)
		}
	}
}

// smallPayload is one row group of a schema with every shape of part.
func smallPayload(t testing.TB) (*columnar.Schema, []byte) {
	t.Helper()
	types := []scalar.Type{
		scalar.TypeInt32, scalar.TypeBool.Null(), scalar.TypeString, scalar.TypeString.Null(),
		scalar.ListType(scalar.TypeInt64.Null()), scalar.MapType(scalar.TypeString, scalar.TypeFloat64),
		scalar.StructType(scalar.Field{Name: "x", Type: scalar.TypeDate}, scalar.Field{Name: "y", Type: scalar.DecimalType(5, 2)}).Null(),
	}
	rows := [][]scalar.Value{
		{scalar.IntOf(scalar.KindInt32, 7), scalar.Bool(true), scalar.String("ab"), scalar.String("DE"), scalar.List(scalar.Int(1), scalar.Null), scalar.Map([]scalar.Value{scalar.String("k")}, []scalar.Value{scalar.Float(0.5)}), scalar.Struct(scalar.Date(1), scalar.Decimal(scalar.Int128Of(-12345)))},
		{scalar.IntOf(scalar.KindInt32, -1), scalar.Null, scalar.String(""), scalar.Null, scalar.List(), scalar.Map(nil, nil), scalar.Null},
		{scalar.IntOf(scalar.KindInt32, 0), scalar.Bool(false), scalar.String("ü"), scalar.String("DE"), scalar.List(scalar.Int(-2)), scalar.Map([]scalar.Value{scalar.String("a"), scalar.String("b")}, []scalar.Value{scalar.Float(1), scalar.Float(2)}), scalar.Struct(scalar.Date(0), scalar.Decimal(scalar.Int128Of(1)))},
	}
	s := schemaOf(t, types)
	columns := make([]arrow.Array, len(types))
	for c, ty := range types {
		dt := operators.ArrowType(ty)
		if c == 3 {
			dt = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
		}
		b := array.NewBuilder(memory.DefaultAllocator, dt)
		for _, row := range rows {
			switch d, ok := b.(*array.BinaryDictionaryBuilder); {
			case ok && row[c].IsNull():
				d.AppendNull()
			case ok:
				if err := d.AppendString(row[c].S); err != nil {
					t.Fatal(err)
				}
			default:
				operators.AppendValue(b, ty, row[c])
			}
		}
		columns[c] = b.NewArray()
	}
	e := columnar.NewEncoder(s)
	if _, err := e.Plan(columns, 0, len(rows), []int64{5, 6, 7}, nil); err != nil {
		t.Fatal(err)
	}
	return s, e.Append(nil)
}

// TestFormat pins the drawing of FORMAT.md.
func TestFormat(t *testing.T) {
	s, payload := smallPayload(t)
	golden.Check(t, "testdata/payload.txt", fmt.Sprintf("# schema %016x\n%s\n\n# three rows of it, with event times\n%s", s.ID(), s, hex.Dump(payload)))
}

// Each broken payload is refused with a sentence that says what and where.
func TestRefuses(t *testing.T) {
	s, payload := smallPayload(t)
	if err := new(columnar.Frame).Open(s, payload); err != nil {
		t.Fatal(err)
	}
	other := schemaOf(t, []scalar.Type{scalar.TypeInt64})
	if err := new(columnar.Frame).Open(other, payload); !errors.Is(err, columnar.ErrOtherSchema) {
		t.Errorf("another schema: %v", err)
	}
	for n := range len(payload) {
		if err := new(columnar.Frame).Open(s, payload[:n]); err == nil {
			t.Errorf("cut to %d bytes it is taken", n)
		}
	}
	if err := new(columnar.Frame).Open(s, append(payload, 0)); !errors.Is(err, columnar.ErrPayload) {
		t.Errorf("with a byte more: %v", err)
	}

	build := func(ty scalar.Type, vals ...scalar.Value) (*columnar.Schema, []byte) {
		s := schemaOf(t, []scalar.Type{ty})
		b := array.NewBuilder(memory.DefaultAllocator, operators.ArrowType(ty))
		for _, v := range vals {
			operators.AppendValue(b, ty, v)
		}
		e := columnar.NewEncoder(s)
		if _, err := e.Plan([]arrow.Array{b.NewArray()}, 0, len(vals), nil, nil); err != nil {
			t.Fatal(err)
		}
		return s, e.Append(nil)
	}
	// Positions of the first column's buffers behind the tables: validity is empty, so data or offsets come first.
	const first = columnar.PrefixSize + 64
	cases := []struct {
		name string
		ty   scalar.Type
		vals []scalar.Value
		edit func([]byte)
		want string
	}{
		{"NaN", scalar.TypeFloat64, []scalar.Value{scalar.Float(1), scalar.Float(math.NaN())}, nil, "row 1 is not finite (column c0)"},
		{"infinite", scalar.TypeFloat32, []scalar.Value{scalar.Float32(float32(math.Inf(-1)))}, nil, "row 0 is not finite"},
		{"text", scalar.TypeString, []scalar.Value{scalar.String("ok"), scalar.String("\xff")}, nil, "row 1 is not UTF-8"},
		{"half a rune", scalar.TypeString, []scalar.Value{scalar.String("ü"), scalar.String("x")}, func(b []byte) { b[first+4] = 1 }, "row 1 is not UTF-8"},
		{"falling offsets", scalar.TypeBytes, []scalar.Value{scalar.Bytes("a"), scalar.Bytes("b")}, func(b []byte) { b[first+4] = 9 }, "offsets fall at row 1"},
		{"negative offset", scalar.TypeBytes, []scalar.Value{scalar.Bytes("a"), scalar.Bytes("b")}, func(b []byte) { b[first+7] = 0x80 }, "offsets fall at row 0"},
		{"first offset", scalar.TypeBytes, []scalar.Value{scalar.Bytes("a")}, func(b []byte) { b[first] = 1 }, "offsets fall at row 0"},
		{"date", scalar.TypeDate, []scalar.Value{scalar.Date(0), scalar.Date(4_000_000)}, nil, "row 1 is outside the years"},
		{"digits", scalar.DecimalType(3, 1), []scalar.Value{scalar.Decimal(scalar.Int128Of(-999)), scalar.Decimal(scalar.Int128Of(-1000))}, nil, "row 1 has too many digits for decimal(3,1)"},
	}
	for _, c := range cases {
		s, b := build(c.ty, c.vals...)
		if c.edit != nil {
			c.edit(b)
		}
		var f columnar.Frame
		err := f.Open(s, b)
		if err == nil {
			err = f.Check()
		}
		if err == nil || !errors.Is(err, columnar.ErrPayload) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A struct that is null may have fields that are, although they have no nulls of their own; others may not.
func TestNullsOfFields(t *testing.T) {
	ty := scalar.StructType(scalar.Field{Name: "x", Type: scalar.TypeInt64}).Null()
	s := schemaOf(t, []scalar.Type{ty})
	x := array.NewInt64Builder(memory.DefaultAllocator)
	x.AppendValues([]int64{1, 0, 3}, []bool{true, false, true})
	field := x.NewArray()
	make := func(valid byte, nulls int) arrow.Array {
		d := array.NewData(operators.ArrowType(ty), 3, []*memory.Buffer{memory.NewBufferBytes([]byte{valid})}, []arrow.ArrayData{field.Data()}, nulls, 0)
		return array.MakeFromData(d)
	}
	e := columnar.NewEncoder(s)
	if _, err := e.Plan([]arrow.Array{make(0b101, 1)}, 0, 3, nil, nil); err != nil {
		t.Error(err)
	}
	payload := e.Append(nil)
	var f columnar.Frame
	if err := errors.Join(f.Open(s, payload), f.Check()); err != nil {
		t.Error(err)
	}
	if _, err := e.Plan([]arrow.Array{make(0b011, 1)}, 0, 3, nil, nil); !errors.Is(err, columnar.ErrColumn) {
		t.Errorf("a null field of a struct that is there: %v", err)
	}
	payload[columnar.PrefixSize+64] = 0b011 // the struct's validity is the first buffer
	if err := f.Open(s, payload); err != nil {
		t.Fatal(err)
	}
	if err := f.Check(); err == nil {
		t.Error("the reader takes a null field of a struct that is there")
	}
}

// Arrow forms that are not the column's own are converted or refused, never misread.
func TestOtherForms(t *testing.T) {
	alloc := memory.DefaultAllocator
	timeSchema := schemaOf(t, []scalar.Type{scalar.TypeTime})
	ms := array.NewTimestampBuilder(alloc, &arrow.TimestampType{Unit: arrow.Millisecond})
	ms.AppendValues([]arrow.Timestamp{1, -2}, nil)
	e := columnar.NewEncoder(timeSchema)
	if _, err := e.Plan([]arrow.Array{ms.NewArray()}, 0, 2, nil, nil); err != nil {
		t.Fatal(err)
	}
	var f columnar.Frame
	if err := f.Open(timeSchema, e.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if got := f.Column(0).(*array.Timestamp).TimestampValues(); got[0] != 1e6 || got[1] != -2e6 {
		t.Errorf("milliseconds became %v", got)
	}
	ms.AppendValues([]arrow.Timestamp{math.MaxInt64 / 1000}, nil)
	if _, err := e.Plan([]arrow.Array{ms.NewArray()}, 0, 1, nil, nil); !errors.Is(err, columnar.ErrColumn) {
		t.Errorf("a time out of range: %v", err)
	}

	words := schemaOf(t, []scalar.Type{scalar.TypeString.Null()})
	e = columnar.NewEncoder(words)
	large := array.NewLargeStringBuilder(alloc)
	large.AppendValues([]string{"x", "yy", "z"}, []bool{true, true, false})
	dict := array.NewDictionaryBuilder(alloc, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint16, ValueType: arrow.BinaryTypes.String}).(*array.BinaryDictionaryBuilder)
	for _, w := range []string{"q", "x", "yy"} {
		if err := dict.AppendString(w); err != nil {
			t.Fatal(err)
		}
	}
	dict.AppendNull()
	for _, arr := range []arrow.Array{large.NewArray(), array.NewSlice(dict.NewArray(), 1, 4)} {
		if _, err := e.Plan([]arrow.Array{arr}, 1, 3, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := f.Open(words, e.Append(nil)); err != nil {
			t.Fatal(err)
		}
		got := values(&f, []scalar.Type{scalar.TypeString.Null()})
		if len(got) != 2 || got[0][0].S != "yy" || !got[1][0].IsNull() {
			t.Errorf("%s became %v", arr.DataType(), got)
		}
	}
	ints := array.NewInt64Builder(alloc)
	ints.Append(1)
	one := ints.NewArray()
	for _, ty := range []scalar.Type{scalar.TypeUint64, scalar.TypeTime, scalar.TypeFloat64, scalar.TypeString, scalar.TypeInt32, scalar.ListType(scalar.TypeInt64), scalar.StructType()} {
		if _, err := columnar.NewEncoder(schemaOf(t, []scalar.Type{ty})).Plan([]arrow.Array{one}, 0, 1, nil, nil); !errors.Is(err, columnar.ErrColumn) {
			t.Errorf("int64 for %s: %v", ty, err)
		}
	}
	if _, err := columnar.NewEncoder(timeSchema).Plan([]arrow.Array{nil}, 0, 1, nil, nil); !errors.Is(err, columnar.ErrColumn) {
		t.Errorf("no column where there are no nulls: %v", err)
	}
}

// Every schema survives the way over Arrow's; its id depends on names, types and order.
func TestSchemas(t *testing.T) {
	ids := map[uint64]string{}
	for seed := range uint64(50) {
		s := schemaOf(t, exprgen.New(seed).Schema)
		back, err := columnar.FromArrow(s.Arrow())
		if err != nil || back.ID() != s.ID() || back.String() != s.String() {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, s, back)
		}
		if was, ok := ids[s.ID()]; ok && was != s.String() {
			t.Fatalf("one id for\n%s\nand\n%s", was, s)
		}
		ids[s.ID()] = s.String()
	}
	names := func(names ...string) uint64 {
		var cols []columnar.Column
		for _, n := range names {
			cols = append(cols, columnar.Column{Name: n, Type: scalar.TypeInt64})
		}
		s, err := columnar.NewSchema(cols)
		if err != nil {
			t.Fatal(err)
		}
		return s.ID()
	}
	if names("a", "b") == names("b", "a") || names("a", "b") == names("a\" int64\n\"b") {
		t.Error("schemas of other names have one id")
	}
	for _, cols := range [][]columnar.Column{nil, {{"a", scalar.TypeNull}}, {{"a", scalar.DecimalType(39, 0)}}, {{"a", scalar.MapType(scalar.TypeString.Null(), scalar.TypeBool)}}} {
		if _, err := columnar.NewSchema(cols); !errors.Is(err, columnar.ErrSchema) {
			t.Errorf("%v: %v", cols, err)
		}
	}
}

// FuzzOpen feeds bytes and mutations of good payloads to the reader: whatever passes Open and Check can be read,
// written again, and is then the same.
func FuzzOpen(f *testing.F) {
	s, payload := smallPayload(f)
	f.Add(payload)
	schemas := []*columnar.Schema{s}
	for seed := range uint64(4) {
		g := exprgen.New(seed)
		b, _ := g.Batch(memory.DefaultAllocator, 5+int(seed))
		s := schemaOf(f, g.Schema)
		schemas = append(schemas, s)
		e := columnar.NewEncoder(s)
		if _, err := e.Plan(b.Columns, 0, b.Rows, b.Time, b.Offsets); err != nil {
			f.Fatal(err)
		}
		f.Add(e.Append(nil))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, s := range schemas {
			var fr columnar.Frame
			if err := fr.Open(s, data); err != nil {
				if !errors.Is(err, columnar.ErrPayload) && !errors.Is(err, columnar.ErrOtherSchema) {
					t.Fatal(err)
				}
				continue
			}
			if err := fr.Check(); err != nil {
				if !errors.Is(err, columnar.ErrPayload) {
					t.Fatal(err)
				}
				continue
			}
			types := make([]scalar.Type, len(s.Columns()))
			cols := make([]arrow.Array, len(types))
			for i, c := range s.Columns() {
				types[i], cols[i] = c.Type, fr.Column(i)
			}
			got := values(&fr, types)
			e := columnar.NewEncoder(s)
			if _, err := e.Plan(cols, 0, fr.Rows(), fr.Times(), fr.Behind()); err != nil {
				t.Fatal(err)
			}
			var again columnar.Frame
			if err := again.Open(s, e.Append(nil)); err != nil {
				t.Fatal(err)
			}
			if err := again.Check(); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%#v", values(&again, types)) != fmt.Sprintf("%#v", got) {
				t.Fatal("the second copy differs")
			}
		}
	})
}
