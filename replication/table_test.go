package replication

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A table is a map, and its older versions stay as they were.
func TestTableIsASortedMapWhoseVersionsAreImmutable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable[int, int](cmp.Compare[int])
		model := map[int]int{}
		type version struct {
			tab   table[int, int]
			model map[int]int
		}
		var kept []version
		steps := rapid.IntRange(1, 600).Draw(t, "steps")
		span := rapid.SampledFrom([]int{5, 300, 100_000}).Draw(t, "span")
		ordered := rapid.Bool().Draw(t, "ordered")
		for i := range steps {
			k := i
			if !ordered {
				k = rapid.IntRange(0, span).Draw(t, "key")
			}
			if rapid.IntRange(0, 3).Draw(t, "op") == 0 {
				tab = tab.del(k)
				delete(model, k)
			} else {
				tab = tab.put(k, i)
				model[k] = i
			}
			if i%97 == 0 {
				m := map[int]int{}
				for k, v := range model {
					m[k] = v
				}
				kept = append(kept, version{tab, m})
			}
		}
		kept = append(kept, version{tab, model})
		for _, v := range kept {
			if v.tab.len() != len(v.model) {
				t.Fatalf("length %d, model %d", v.tab.len(), len(v.model))
			}
			var keys []int
			for k, got := range v.tab.all() {
				if want, ok := v.model[k]; !ok || got != want {
					t.Fatalf("key %d: %d, model %d %v", k, got, want, ok)
				}
				keys = append(keys, k)
			}
			if !slices.IsSorted(keys) || len(keys) != len(v.model) {
				t.Fatalf("walk gives %v", keys)
			}
			for k, want := range v.model {
				if got, ok := v.tab.get(k); !ok || got != want {
					t.Fatalf("get %d: %d %v, want %d", k, got, ok, want)
				}
			}
		}
	})
}
