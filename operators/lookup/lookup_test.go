package lookup_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/lookup"
	"github.com/headrace/headrace/operators/rows"
)

func open(t *testing.T, alloc memory.Allocator) *lookup.Lookup {
	t.Helper()
	l, err := lookup.New(lookup.Options{
		Key: operators.Columns{0}, KeyTypes: []scalar.Type{scalar.TypeString.Null()}, Left: true, Alloc: alloc,
		Row: []scalar.Field{{Name: "k", Type: scalar.TypeString}, {Name: "v", Type: scalar.TypeInt64.Null()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// batch makes rows of a string and a number; "" and negative numbers are null.
func batch(alloc memory.Allocator, keys []string, values []int64) *operators.Batch {
	k, v := array.NewStringBuilder(alloc), array.NewInt64Builder(alloc)
	defer k.Release()
	defer v.Release()
	b := &operators.Batch{Rows: len(keys), Time: make([]int64, len(keys))}
	for i, key := range keys {
		if key == "" {
			k.AppendNull()
		} else {
			k.Append(key)
		}
		if values[i] < 0 {
			v.AppendNull()
		} else {
			v.Append(values[i])
		}
		b.Key = append(b.Key, []byte(key))
	}
	b.Columns = []arrow.Array{k.NewArray(), v.NewArray()}
	return b
}

// An emitter writes down what leaves.
type emitter struct{ lines []string }

func (e *emitter) Emit(b *operators.Batch) {
	defer b.Release()
	s := b.Columns[2].(*array.Struct)
	for i := range b.Rows {
		line := "null"
		if s.IsValid(i) {
			line = s.Field(0).(*array.String).Value(i) + "=null"
			if v := s.Field(1).(*array.Int64); v.IsValid(i) {
				line = fmt.Sprintf("%s=%d", s.Field(0).(*array.String).Value(i), v.Value(i))
			}
		}
		e.lines = append(e.lines, line)
	}
}
func (e *emitter) Late(*operators.Batch, []int)                {}
func (e *emitter) Fail(*operators.Batch, []operators.RowError) {}

// Changes and rows in any order find what a map finds, and so does a lookup that is restored from what was
// saved, whatever came and went between two saves.
func TestALookupIsAMap(t *testing.T) {
	long := string(make([]byte, 5000)) // its name is a hash
	names := []string{"a", "b", "c", long + "1", long + "2"}
	for seed := range uint64(100) {
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		rng := rand.New(rand.NewPCG(seed, 3))
		l, model, saved := open(t, alloc), map[string]int64{}, map[string]string{}
		for range 60 {
			switch rng.IntN(6) {
			case 0, 1:
				var keys []string
				var values []int64
				var ops []operators.Op
				for range 1 + rng.IntN(6) {
					k, v, op := names[rng.IntN(len(names))], rng.Int64N(20)-1, operators.OpInsert
					if rng.IntN(3) == 0 {
						op = operators.OpDelete
						delete(model, k)
					} else {
						model[k] = v
					}
					keys, values, ops = append(keys, k), append(values, v), append(ops, op)
				}
				b := batch(alloc, keys, values)
				b.Ops = ops
				l.Change(b)
				b.Release()
			case 2:
				l.Changes(func(k, v []byte) {
					if v == nil {
						delete(saved, string(k))
					} else {
						saved[string(k)] = string(v)
					}
				})
				if l.ChangedBytes() != 0 || len(saved) != len(model) || l.StateRows() != int64(len(model)) {
					t.Fatalf("seed %d: %d rows are saved and %d counted, of %d", seed, len(saved), l.StateRows(), len(model))
				}
				if rng.IntN(2) == 0 {
					l.Close()
					l = open(t, alloc)
					for k, v := range saved {
						if err := l.Restore([]byte(k), []byte(v)); err != nil {
							t.Fatal(err)
						}
					}
				}
			default:
				var keys, want []string
				for range rng.IntN(8) {
					k := append(names, "", "z")[rng.IntN(len(names)+2)]
					v, ok := model[k]
					switch {
					case !ok:
						want = append(want, "null")
					case v < 0:
						want = append(want, k+"=null")
					default:
						want = append(want, fmt.Sprintf("%s=%d", k, v))
					}
					keys = append(keys, k)
				}
				var e emitter
				l.Process(batch(alloc, keys, make([]int64, len(keys))), &e)
				if fmt.Sprint(e.lines) != fmt.Sprint(want) {
					t.Fatalf("seed %d: found %.300q, want %.300q", seed, e.lines, want)
				}
			}
		}
		l.Close()
		alloc.AssertSize(t, 0)
	}
}

// What was not saved by a lookup is refused.
func FuzzRestore(f *testing.F) {
	f.Add([]byte("ka"), []byte("\x01\x01\x01a\x00"))
	f.Add([]byte("h"), []byte{1})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		l, err := lookup.New(lookup.Options{
			Key: operators.Columns{0}, KeyTypes: []scalar.Type{scalar.TypeString},
			Row: []scalar.Field{{Name: "k", Type: scalar.TypeString}, {Name: "v", Type: scalar.TypeInt64.Null()}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Restore(key, value); err != nil {
			if !errors.Is(err, rows.ErrState) {
				t.Fatalf("untyped error: %v", err)
			}
			return
		}
		var e emitter
		if len(key) > 1 && key[0] == 'k' {
			l.Process(batch(memory.DefaultAllocator, []string{string(key[1:])}, []int64{1}), &e)
		}
	})
}
