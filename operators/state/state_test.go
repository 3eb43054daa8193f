package state

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

// model is a table as a map.
type model struct {
	live  map[string]uint64
	saved map[string]uint64 // what the store holds
}

func TestTableBehavesAsAMapWhoseChangesRebuildIt(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	table := NewTable(2)
	m := model{live: map[string]uint64{}, saved: map[string]uint64{}}
	key := func() string {
		return strings.Repeat("k", r.IntN(20)) + fmt.Sprint(r.IntN(300))
	}
	for step := range 40_000 {
		switch k := key(); r.IntN(20) {
		case 0:
			p, ok := table.Find(Hash([]byte(k)), []byte(k))
			if _, want := m.live[k]; ok != want {
				t.Fatalf("step %d: find %q is %v, want %v", step, k, ok, want)
			}
			if ok {
				table.Remove(p)
				delete(m.live, k)
			}
		case 1:
			if r.IntN(50) == 0 {
				table.Clear()
				m.live, m.saved = map[string]uint64{}, map[string]uint64{}
				continue
			}
			last := ""
			table.Changed(func(p Pos, dead bool) {
				k := string(table.Key(p))
				if last != "" && k <= last {
					t.Fatalf("step %d: change %q after %q", step, k, last)
				}
				last = k
				if dead {
					if _, ok := m.saved[k]; !ok {
						t.Fatalf("step %d: deletes %q, which was never saved", step, k)
					}
					delete(m.saved, k)
					return
				}
				m.saved[k] = table.Cells(p)[1]
			})
			if len(m.saved) != len(m.live) || table.Saved() != len(m.saved) {
				t.Fatalf("step %d: %d rows saved (%d counted), %d live", step, len(m.saved), table.Saved(), len(m.live))
			}
			for k, v := range m.live {
				if m.saved[k] != v {
					t.Fatalf("step %d: %q saved as %d, is %d", step, k, m.saved[k], v)
				}
			}
		default:
			hash := Hash([]byte(k))
			var p Pos
			if r.IntN(2) == 0 {
				var guess [1]Pos
				table.Probe([]uint32{0, hash}, []int32{1}, guess[:])
				p = table.UpsertAt(guess[0], hash, []byte(k))
			} else {
				var fresh bool
				p, fresh = table.Upsert(hash, []byte(k))
				if _, had := m.live[k]; fresh == had {
					t.Fatalf("step %d: fresh %v for %q", step, fresh, k)
				}
			}
			table.Cells(p)[1] += uint64(step)
			m.live[k] += uint64(step)
		}
		if table.Len() != len(m.live) {
			t.Fatalf("step %d: %d entries, want %d", step, table.Len(), len(m.live))
		}
	}
	want := make([]string, 0, len(m.live))
	for k := range m.live {
		want = append(want, k)
	}
	sort.Strings(want)
	var got []string
	for _, p := range table.Sorted(nil) {
		got = append(got, string(table.Key(p)))
		if table.Cells(p)[1] != m.live[got[len(got)-1]] {
			t.Fatalf("value of %q", got[len(got)-1])
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("sorted keys %q, want %q", got, want)
	}
}

func TestKeysSortByBytes(t *testing.T) {
	table := NewTable(1)
	keys := []string{"", "\x00", "\x00\x00", "a", "a\x00", "ab", "abcdefgh", "abcdefgh\x00", "abcdefghi", "abcdefgz", "b", "\xff"}
	for _, i := range rand.Perm(len(keys)) {
		table.Upsert(Hash([]byte(keys[i])), []byte(keys[i]))
	}
	var got []string
	for _, p := range table.Sorted(nil) {
		got = append(got, string(table.Key(p)))
	}
	if !slices.Equal(got, keys) {
		t.Errorf("got %q", got)
	}
}

func TestRestoredEntriesAreNoChanges(t *testing.T) {
	table := NewTable(1)
	p, _ := table.Upsert(Hash([]byte("a")), []byte("a"))
	table.MarkSaved(p)
	table.Changed(func(Pos, bool) { t.Error("a restored entry counts as changed") })
	table.Upsert(Hash([]byte("a")), []byte("a"))
	n := 0
	table.Changed(func(Pos, bool) { n++ })
	table.RemoveAll()
	dead := 0
	table.Changed(func(_ Pos, d bool) {
		if d {
			dead++
		}
	})
	if n != 1 || dead != 1 || table.Saved() != 0 {
		t.Errorf("%d changes, %d deletions, %d saved", n, dead, table.Saved())
	}
}

func TestBlobsGrowInPlaceUntilTheirRoomEnds(t *testing.T) {
	table := NewTable(4)
	p, _ := table.Upsert(1, []byte("k"))
	q, _ := table.Upsert(2, []byte("l"))
	long := bytes.Repeat([]byte("x"), 100)
	for n := range 100 {
		table.SetBlob(table.Cells(p)[:2], long[:n])
		table.SetBlob(table.Cells(q)[2:], []byte("other"))
		if got := table.Blob(table.Cells(p)[:2]); len(got) != n {
			t.Fatalf("length %d, want %d", len(got), n)
		}
	}
	if string(table.Blob(table.Cells(q)[2:])) != "other" {
		t.Error("a neighbour was overwritten")
	}
	if len(table.heap) > 16+16+32+64+128 {
		t.Errorf("the heap grew to %d bytes", len(table.heap))
	}
}

func TestWindowsRecycleTheirTables(t *testing.T) {
	w := NewWindows(3)
	for round := range 5 {
		for start := range int64(3) {
			table := w.Get(-start)
			if table.Len() != 0 {
				t.Fatal("a recycled table is not empty")
			}
			for i := range 1000 {
				k := fmt.Append(nil, i)
				if p, fresh := table.Upsert(Hash(k), k); !fresh || table.Cells(p)[2] != 0 {
					t.Fatal("a recycled entry is not zero")
				} else {
					table.Cells(p)[2] = 7
				}
			}
		}
		if s, _ := w.At(0); s != -2 || w.Len() != 3 || w.Rows() != 3000 || w.Find(-1) == nil || w.Find(5) != nil {
			t.Fatal("windows are not in order of their starts")
		}
		before := w.Bytes()
		w.Drop(func(int64, *Table) bool { return true })
		if round > 0 && w.Bytes() != before {
			t.Fatalf("round %d: memory went from %d to %d", round, before, w.Bytes())
		}
	}
}

func FuzzHashAndFind(f *testing.F) {
	f.Add([]byte("a"), []byte("b"))
	f.Add([]byte("0123456789abcdef0"), []byte("0123456789abcdef1"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		table := NewTable(0)
		p, _ := table.Upsert(Hash(a), a)
		q, fresh := table.Upsert(Hash(b), b)
		if fresh == bytes.Equal(a, b) || !bytes.Equal(table.Key(p), a) || !bytes.Equal(table.Key(q), b) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

func BenchmarkUpsert(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = fmt.Appendf(nil, "user-%07d", i)
			}
			table := NewTable(3)
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i = i*6364136223846793005 + 1442695040888963407
				k := keys[(i>>33)%uint64(n)]
				p, _ := table.Upsert(Hash(k), k)
				table.Cells(p)[0]++
			}
		})
	}
}

// A table compacted at random, with members that come and go, is the table of what is left.
func TestCompactingForgetsOnlyWhatIsGone(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	table, want := NewTable(1), map[string]uint64{}
	for range 300 {
		for range 200 {
			key := fmt.Sprint(r.IntN(5000))
			switch h := Hash([]byte(key)); r.IntN(3) {
			case 0:
				if p, ok := table.Find(h, []byte(key)); ok {
					table.Remove(p)
					delete(want, key)
				}
			default:
				guess := []Pos{0}
				table.Probe([]uint32{h}, []int32{0}, guess)
				p, fresh := table.InsertAt(guess[0], h, []byte(key))
				if _, had := want[key]; had == fresh {
					t.Fatalf("%s: fresh %v", key, fresh)
				}
				if fresh {
					table.Cells(p)[0] = r.Uint64()
					want[key] = table.Cells(p)[0]
				}
			}
		}
		table.Changed(func(Pos, bool) {})
		if table.Spent() || r.IntN(20) == 0 {
			table.Compact(func(old *Table, from, to Pos) {
				if string(old.Key(from)) != string(table.Key(to)) || old.Cells(from)[0] != table.Cells(to)[0] {
					t.Fatal("an entry changed on its way")
				}
			})
			if table.Dirty() != 0 || table.Saved() != len(want) {
				t.Fatalf("%d dirty, %d saved of %d", table.Dirty(), table.Saved(), len(want))
			}
		}
		if table.Len() != len(want) {
			t.Fatalf("%d entries, want %d", table.Len(), len(want))
		}
	}
	for key, v := range want {
		if p, ok := table.Find(Hash([]byte(key)), []byte(key)); !ok || table.Cells(p)[0] != v {
			t.Fatalf("%s is lost", key)
		}
	}
	if b := table.Bytes(); b > 1<<20 {
		t.Errorf("%d B for %d entries", b, len(want))
	}
	for !table.RemoveSome(7) {
		table.Changed(func(_ Pos, dead bool) {
			if !dead {
				t.Fatal("a removed entry is reported as there")
			}
		})
	}
	table.Changed(func(Pos, bool) {})
	if table.Len() != 0 || table.Saved() != 0 {
		t.Errorf("%d live and %d saved entries are left", table.Len(), table.Saved())
	}
}
