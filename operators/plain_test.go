package operators

import (
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
)

func TestDictionariesReadAsTheirValues(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	for _, words := range [][]string{{"a", "b", "a", "c"}, {"a", "", "-", "a"}} {
		typ := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
		b := array.NewDictionaryBuilder(alloc, typ).(*array.BinaryDictionaryBuilder)
		for _, w := range words {
			if w == "-" {
				b.AppendNull()
			} else if err := b.AppendString(w); err != nil {
				t.Fatal(err)
			}
		}
		arr := b.NewArray()
		b.Release()
		plain := Plain(alloc, arr)
		again := Plain(alloc, plain)
		gathered := Gather(alloc, arr, []int32{3, 2, 0})
		at := func(a arrow.Array, i int) scalar.Value { return ValueAt(a, scalar.TypeString.Null(), i) }
		for i, w := range words {
			want := scalar.String(w)
			if w == "-" {
				want = scalar.Null
			}
			if !scalar.Identical(at(plain, i), want) || !scalar.Identical(at(again, i), want) {
				t.Errorf("row %d of %q is %v", i, words, at(plain, i))
			}
			if _, ok := plain.(*array.String); !ok {
				t.Errorf("plain is a %T", plain)
			}
		}
		for i, row := range []int{3, 2, 0} {
			if !scalar.Identical(at(gathered, i), at(plain, row)) {
				t.Errorf("gathered row %d is %v", i, at(gathered, i))
			}
		}
		for _, a := range []arrow.Array{arr, plain, again, gathered} {
			a.Release()
		}
	}
}
