package window

import "github.com/headrace/headrace/operators/state"

// An inner is a small hash table of one group inside the arena: words that are not 0, each with
// width-1 further words. It is named by two cells: its place, and slots 32 | used 32; zero cells are an
// empty one. Room that it outgrows is lost until the arena is cleared; it doubles each time, so no more
// is lost than held.
type inner struct{ width int }

func innerUsed(c []uint64) int  { return int(uint32(c[1])) }
func innerSlots(c []uint64) int { return int(c[1] >> 32) }

// find gives the place of key, which it adds if it is missing. The arena may move.
func (n inner) find(t *state.Table, at int, key uint64) (place int, fresh bool) {
	arena := t.Arena()
	c := arena[at : at+2 : at+2]
	slots := innerSlots(c)
	if slots > 0 {
		if p := n.probe(arena, c, key); arena[p] == key {
			return p, false
		}
	}
	if used := innerUsed(c); 4*(used+1) > 3*slots {
		n.grow(t, at, max(8, 2*slots))
		arena = t.Arena()
		c = arena[at : at+2 : at+2]
	}
	p := n.probe(arena, c, key)
	arena[p] = key
	c[1]++
	return p, true
}

// probe is the place of key, or the free place where it belongs.
func (n inner) probe(arena, c []uint64, key uint64) int {
	from, mask := int(c[0]), innerSlots(c)-1
	for i := int(state.HashWord(key)) & mask; ; i = (i + 1) & mask {
		p := from + i*n.width
		if arena[p] == 0 || arena[p] == key {
			return p
		}
	}
}

func (n inner) grow(t *state.Table, at, slots int) {
	place := t.Alloc(slots * n.width)
	arena := t.Arena()
	old := []uint64{arena[at], arena[at+1]}
	c := arena[at : at+2 : at+2]
	c[0], c[1] = uint64(place), uint64(slots)<<32|uint64(innerUsed(old))
	n.each(arena, old, func(e []uint64) { copy(arena[n.probe(arena, c, e[0]):], e) })
}

// each calls f for every entry, in no order that means anything.
func (n inner) each(arena, c []uint64, f func(entry []uint64)) {
	for i := range innerSlots(c) {
		p := int(c[0]) + i*n.width
		if arena[p] != 0 {
			f(arena[p : p+n.width])
		}
	}
}

// clear empties it and keeps its room.
func (n inner) clear(arena, c []uint64) {
	from := int(c[0])
	clear(arena[from : from+innerSlots(c)*n.width])
	c[1] &^= 1<<32 - 1
}
