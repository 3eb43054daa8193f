package window

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A Fold gives for any rows side by side what an aggregate gives for a window of them, whatever it folded
// before.
func TestAFoldIsAnAggregateOfItsRows(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 31))
	var rows []row
	for i := range int64(60) {
		rows = append(rows, row{values: randomValues(rng, false), ts: i / 2, offset: i + 1, behind: math.MinInt64})
	}
	b := makeBatch(memory.DefaultAllocator, rowTypes, rows)
	defer b.Release()
	for _, s := range testSlots() {
		if s.Filter != nil {
			continue
		}
		own := s
		if s.Arg != nil {
			columns := s.Arg.(operators.Columns)
			if own.Column = columns[s.Column]; s.ByType.Kind != scalar.KindInvalid {
				own.ByColumn = columns[s.ByColumn]
			}
		}
		f, err := NewFold(own)
		if err != nil {
			t.Fatal(err)
		}
		f.Read(b)
		for range 20 {
			from := rng.IntN(len(rows))
			to := from + rng.IntN(len(rows)-from+1)
			dst := array.NewBuilder(memory.DefaultAllocator, operators.ArrowType(s.Type))
			if code := f.Over(from, to, dst); code != scalar.CodeNone {
				t.Fatalf("%s of rows %d to %d: %v", s.Text, from, to, code)
			}
			got := dst.NewArray()
			dst.Release()
			if got.Len() != 1 {
				t.Fatalf("%s gives %d values", s.Text, got.Len())
			}
			v := operators.ValueAt(got, s.Type, 0)
			got.Release()
			if from == to {
				if want := s.Func == "count" || s.Func == "count_distinct" || s.Func == "approx_distinct"; v.IsNull() == want || want && v.I != 0 {
					t.Errorf("%s of no rows is %+v", s.Text, v)
				}
				continue
			}
			if want := foldAll(t, s, rowTypes, rows[from:to]); scalar.Compare(v, want) != 0 {
				t.Errorf("%s of rows %d to %d is %+v, want %+v", s.Text, from, to, v, want)
			}
		}
	}
}
