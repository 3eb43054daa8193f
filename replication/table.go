package replication

import (
	"iter"
	"slices"
	"sort"
)

// A table is an immutable sorted map. put and del return a changed copy that shares all but two small slices
// with the one before: a list of leaves of at most maxLeaf entries. With n entries a change copies n/64
// pointers and one leaf, so 10,000 creations one after another copy 30 MB in all rather than 800.
//
// The zero value is empty. Tables are safe for concurrent use.
type table[K, V any] struct {
	compare func(K, K) int
	leaves  [][]pair[K, V] // none empty, sorted
	n       int
}

type pair[K, V any] struct {
	key   K
	value V
}

const maxLeaf = 128

func newTable[K, V any](compare func(K, K) int) table[K, V] {
	return table[K, V]{compare: compare}
}

// find returns the leaf where k is or belongs, its place there, and whether it is there.
func (t table[K, V]) find(k K) (leaf, at int, ok bool) {
	leaf = sort.Search(len(t.leaves), func(i int) bool { return t.compare(t.leaves[i][0].key, k) > 0 }) - 1
	if leaf < 0 {
		return 0, 0, false
	}
	at, ok = slices.BinarySearchFunc(t.leaves[leaf], k, func(p pair[K, V], k K) int { return t.compare(p.key, k) })
	return leaf, at, ok
}

func (t table[K, V]) get(k K) (v V, ok bool) {
	leaf, at, ok := t.find(k)
	if !ok {
		return v, false
	}
	return t.leaves[leaf][at].value, true
}

func (t table[K, V]) len() int { return t.n }

func (t table[K, V]) put(k K, v V) table[K, V] {
	if len(t.leaves) == 0 {
		t.leaves, t.n = [][]pair[K, V]{{{k, v}}}, 1
		return t
	}
	i, at, ok := t.find(k)
	old := t.leaves[i]
	if ok {
		leaf := slices.Clone(old)
		leaf[at].value = v
		t.leaves = slices.Clone(t.leaves)
		t.leaves[i] = leaf
		return t
	}
	t.n++
	leaf := make([]pair[K, V], 0, len(old)+1)
	leaf = append(append(append(leaf, old[:at]...), pair[K, V]{k, v}), old[at:]...)
	if len(leaf) <= maxLeaf {
		t.leaves = slices.Clone(t.leaves)
		t.leaves[i] = leaf
		return t
	}
	// Names often come in order: then the left half stays full if the split is at the end.
	cut := len(leaf) / 2
	if at == len(old) && i == len(t.leaves)-1 {
		cut = len(leaf) - 1
	}
	leaves := make([][]pair[K, V], 0, len(t.leaves)+1)
	leaves = append(append(append(leaves, t.leaves[:i]...), leaf[:cut:cut], leaf[cut:]), t.leaves[i+1:]...)
	t.leaves = leaves
	return t
}

func (t table[K, V]) del(k K) table[K, V] {
	i, at, ok := t.find(k)
	if !ok {
		return t
	}
	t.n--
	if len(t.leaves[i]) == 1 {
		t.leaves = slices.Delete(slices.Clone(t.leaves), i, i+1)
		return t
	}
	leaf := slices.Delete(slices.Clone(t.leaves[i]), at, at+1)
	t.leaves = slices.Clone(t.leaves)
	t.leaves[i] = leaf
	return t
}

// all walks the entries in order.
func (t table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, leaf := range t.leaves {
			for _, p := range leaf {
				if !yield(p.key, p.value) {
					return
				}
			}
		}
	}
}

// values returns the values in order of their keys.
func (t table[K, V]) values() []V {
	out := make([]V, 0, t.n)
	for _, v := range t.all() {
		out = append(out, v)
	}
	return out
}
