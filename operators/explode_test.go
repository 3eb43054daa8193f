package operators

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
)

// rowsSeen writes down the rows that leave.
type rowsSeen struct {
	types []scalar.Type
	lines []string
	most  int
}

func (s *rowsSeen) Emit(b *Batch) {
	defer b.Release()
	s.most = max(s.most, b.Rows)
	for i := range b.Rows {
		line := fmt.Sprintf("@%d %d/%d behind %d key %q origin %d", b.Time[i], b.Partition, b.Offsets[i], b.Behind[i], b.Key[i], b.Origin(i).Offset)
		for c, arr := range b.Columns {
			if c == 1 { // long lists in each of their rows would take minutes
				from, to := arr.(array.ListLike).ValueOffsets(i)
				line += fmt.Sprintf(" of %d", to-from)
				continue
			}
			text, _ := AppendJSON(nil, arr, s.types[c], i)
			line += " " + string(text)
		}
		s.lines = append(s.lines, line)
	}
}

func (s *rowsSeen) Late(*Batch, []int)      {}
func (s *rowsSeen) Fail(*Batch, []RowError) {}

func TestExplodeMakesARowOfEachElement(t *testing.T) {
	elems := []scalar.Type{
		scalar.TypeInt64, scalar.TypeString.Null(), scalar.DecimalType(20, 2).Null(), scalar.ListType(scalar.TypeInt64).Null(),
		scalar.StructType(scalar.Field{Name: "a", Type: scalar.TypeInt64.Null()}, scalar.Field{Name: "b", Type: scalar.TypeString}).Null(),
		scalar.MapType(scalar.TypeString, scalar.TypeBool),
	}
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		elem := elems[rng.IntN(len(elems))]
		o := ExplodeOptions{Elem: elem, Left: rng.IntN(2) == 0, Index: rng.IntN(2) == 0}
		list := scalar.ListType(elem).Null()
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		o.Alloc = alloc
		var ids, lists []scalar.Value
		n := rng.IntN(30)
		b := NewBatch(nil, make([]EventTime, n))
		b.Partition = int32(rng.IntN(3))
		for i := range n {
			ids, lists = append(ids, scalar.Int(rng.Int64N(100))), append(lists, randomValue(rng, list))
			if i == 3 && seed%20 == 0 { // more than a batch of one row
				for range 9000 {
					lists[i] = scalar.List(append(lists[i].L, randomValue(rng, elem))...)
				}
			}
			b.Time[i] = rng.Int64N(1000)
			b.Behind, b.Offsets = append(b.Behind, rng.Int64N(1000)), append(b.Offsets, int64(2*i))
			b.Key = append(b.Key, fmt.Append(nil, "k", i))
		}
		b.Origin = func(i int) Origin { return Origin{Offset: int64(2 * i)} }
		b.Columns = []arrow.Array{build(alloc, scalar.TypeInt64, ids), build(alloc, list, lists), nil}

		want := rowsSeen{}
		for i := range n {
			head := fmt.Sprintf("@%d %d/%d behind %d key %q origin %d", b.Time[i], b.Partition, 2*i, b.Behind[i], b.Key[i], 2*i)
			id, _ := scalar.AppendJSON(nil, ids[i], scalar.TypeInt64)
			head += fmt.Sprintf(" %s of %d null", id, len(lists[i].L))
			row := func(v scalar.Value, place string) {
				text, _ := scalar.AppendJSON(nil, v, elem)
				line := head + " " + string(text)
				if o.Index {
					line += " " + place
				}
				want.lines = append(want.lines, line)
			}
			for k, v := range lists[i].L {
				row(v, fmt.Sprint(k))
			}
			if len(lists[i].L) == 0 && o.Left {
				row(scalar.Null, "null")
			}
		}
		got := rowsSeen{types: []scalar.Type{scalar.TypeInt64, list, scalar.TypeInt64, elem.Null(), scalar.TypeInt64.Null()}}
		x := NewExplode(Columns{1}, o)
		if rng.IntN(3) == 0 && n > 3 { // a slice of a batch
			first, rest := b.Slice(0, 2), b.Slice(2, n)
			b.Release()
			x.Process(first, &got)
			x.Process(rest, &got)
		} else {
			x.Process(b, &got)
		}
		if !slices.Equal(got.lines, want.lines) {
			t.Fatalf("seed %d: %s, left %v: %d rows, want %d:\n%.500s\n%.500s", seed, elem, o.Left, len(got.lines), len(want.lines), fmt.Sprint(got.lines), fmt.Sprint(want.lines))
		}
		if got.most > maxExplodeRows {
			t.Errorf("seed %d: a batch of %d rows", seed, got.most)
		}
		if c := x.Counts(); c.In != int64(n) || c.Out != int64(len(want.lines)) {
			t.Errorf("seed %d: %+v", seed, c)
		}
		alloc.AssertSize(t, 0)
	}
}

func BenchmarkExplode(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	const rows = 4096
	var ids, lists []scalar.Value
	for range rows {
		ids = append(ids, scalar.Int(rng.Int64()))
		lists = append(lists, scalar.List(scalar.String("one"), scalar.String("two"), scalar.String("three")))
	}
	alloc := memory.NewGoAllocator()
	batch := NewBatch([]arrow.Array{build(alloc, scalar.TypeInt64, ids), build(alloc, scalar.ListType(scalar.TypeString), lists)}, make([]EventTime, rows))
	x := NewExplode(Columns{1}, ExplodeOptions{Elem: scalar.TypeString})
	b.ReportAllocs()
	for b.Loop() {
		batch.Retain()
		x.Process(batch, releasing{})
	}
	b.ReportMetric(3*rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

type releasing struct{}

func (releasing) Emit(b *Batch)           { b.Release() }
func (releasing) Late(*Batch, []int)      {}
func (releasing) Fail(*Batch, []RowError) {}
