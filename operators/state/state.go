// Package state is keyed state in memory: open-addressing hash tables over arenas that hold no Go
// pointers, one table for each window, with a record of which keys were touched.
//
// An entry is a run of 64-bit words (the cells, whose meaning belongs to the operator) followed by the
// key bytes. It is named by its position, which stays valid until the table is cleared. Cells that need
// more room (strings, per-partition sums) allocate from the same arena, or from the table's heap.
//
// The collector never looks inside: a table of a hundred million keys costs it nothing. Nothing is ever
// iterated in table order; whoever needs an order sorts (Sorted, Changed). The hash has a fixed seed, so
// a run is repeatable.
//
// One goroutine uses a table or a set of windows at a time.
//
//	arena, in words:
//
//	  header            cells               key
//	+------------------+---+---+-- .. --+---+-------------------+
//	| flags 32 len 32  | 0 | 1 |        |n-1| bytes, zero filled|
//	+------------------+---+---+-- .. --+---+-------------------+
//	  position
//
//	slots: hash 32 | position 32 (0: free)
package state

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unsafe"
)

// Flags in the header of an entry.
const (
	flagDirty uint64 = 1 << (32 + iota) // touched since the last Changed
	flagSaved                           // the store holds a row for it
	flagDead                            // removed; its row in the store is still to be deleted
)

const (
	lenMask   = 1<<32 - 1
	minSlots  = 64
	arenaPad  = 1 // position 0 means free, so the arena begins with an unused word
	wordBytes = 8
)

// A Pos names an entry of a table.
type Pos = uint32

// A Table maps keys to cells.
type Table struct {
	cells int
	slots []uint64 // a power of two
	mask  uint32
	used  int // entries ever inserted, dead ones included
	live  int
	arena []uint64
	heap  []byte // blobs
	dirty []Pos  // every entry with flagDirty, in the order of touching
	saved int    // entries with flagSaved
	sort  []sortKey
	sweep int // slots before it hold dead entries only, for RemoveSome
	subs  []*Table

	touched uint64 // keeps Probe's loads from being optimized away
}

type sortKey struct {
	prefix uint64
	pos    Pos
}

// NewTable makes an empty table whose entries have the given number of cells.
func NewTable(cells int) *Table {
	t := &Table{cells: cells}
	t.Clear()
	return t
}

// The constants of the hash. They are part of saved state (Hash64): never change them.
const (
	k0 = 0xa0761d6478bd642f
	k1 = 0xe7037ed1a0b428db
	k2 = 0x8ebc6af09c88c6e3
)

// Hash is the hash of a key, the same in every run.
func Hash(key []byte) uint32 {
	h := fold(key)
	return uint32(h ^ h>>32)
}

// Hash64 is a hash of 64 well-mixed bits, the same in every run and version: sketches save it.
func Hash64(key []byte) uint64 { return mix(fold(key)^k2, k1) }

// HashWord is Hash64 of one word.
func HashWord(w uint64) uint64 { return mix(mix(w^k0, k1)^k2, k1^w) }

func fold(key []byte) uint64 {
	n := len(key)
	h := uint64(n) ^ k2
	for len(key) > 16 {
		h = mix(binary.LittleEndian.Uint64(key)^k0^h, binary.LittleEndian.Uint64(key[8:])^k1)
		key = key[16:]
	}
	var a, b uint64
	switch n = len(key); {
	case n >= 8:
		a, b = binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[n-8:])
	case n >= 4:
		a, b = uint64(binary.LittleEndian.Uint32(key)), uint64(binary.LittleEndian.Uint32(key[n-4:]))
	case n > 0:
		a = uint64(key[0])<<16 | uint64(key[n>>1])<<8 | uint64(key[n-1])
	}
	return mix(a^k1^h, b^k0)
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Len is the number of live entries.
func (t *Table) Len() int { return t.live }

// Bytes is the memory that the table and its subtables hold.
func (t *Table) Bytes() int64 {
	n := int64(cap(t.slots))*8 + int64(cap(t.arena))*8 + int64(cap(t.heap)) + int64(cap(t.dirty))*4 + int64(cap(t.sort))*16
	for _, s := range t.subs {
		if s != nil {
			n += s.Bytes()
		}
	}
	return n
}

// Sub is subtable i, for rows that belong to the entries of t; it is made, with entries of the given
// number of cells, if there is none. Clear clears subtables too; nothing else looks at them.
func (t *Table) Sub(i, cells int) *Table {
	for len(t.subs) <= i {
		t.subs = append(t.subs, nil)
	}
	if t.subs[i] == nil {
		t.subs[i] = NewTable(cells)
	}
	return t.subs[i]
}

// Subs are the subtables by number, nil where none was made.
func (t *Table) Subs() []*Table { return t.subs }

// Spent says whether entries that are gone take more room than those that are left.
func (t *Table) Spent() bool { return t.used > 1024 && t.used > 2*t.live }

// Compact forgets what is gone: it moves every entry to memory of its own and tells its new place. It
// follows Changed: everything left is as the store has it. Blobs do not move by themselves: cells of
// entry p in the old table are still there during the call of moved.
func (t *Table) Compact(moved func(old *Table, from, to Pos)) {
	old := *t
	t.slots, t.arena, t.heap, t.dirty = nil, nil, nil, nil
	t.used = old.live
	t.Clear()
	for _, s := range old.slots {
		p := Pos(s)
		if s == 0 || old.arena[p]&flagDead != 0 {
			continue
		}
		to, _ := t.Upsert(uint32(s>>32), old.Key(p))
		copy(t.Cells(to), old.Cells(p))
		t.MarkSaved(to)
		moved(&old, p, to)
	}
}

// Clear empties the table and keeps its memory, except what is far more than it needed.
func (t *Table) Clear() {
	want := minSlots
	for want < 2*t.used {
		want *= 2
	}
	if len(t.slots) < minSlots || len(t.slots) > 4*want {
		t.slots = make([]uint64, want)
	} else {
		clear(t.slots)
	}
	if cap(t.arena) > 1<<12 && cap(t.arena) > 4*len(t.arena) {
		t.arena = make([]uint64, 0, 2*len(t.arena))
	}
	if cap(t.heap) > 1<<12 && cap(t.heap) > 4*len(t.heap) {
		t.heap = nil
	}
	t.mask = uint32(len(t.slots) - 1)
	t.arena = append(t.arena[:0], 0)
	t.heap = t.heap[:0]
	t.dirty = t.dirty[:0]
	t.sort = nil
	t.used, t.live, t.saved, t.sweep = 0, 0, 0, 0
	for _, s := range t.subs {
		if s != nil {
			s.Clear()
		}
	}
}

// Cells are the cells of an entry. The slice is valid until the next Upsert or Alloc.
func (t *Table) Cells(p Pos) []uint64 {
	from := int(p) + 1
	return t.arena[from : from+t.cells : from+t.cells]
}

// Arena is the words of the table: the cells of entry p begin at p + 1. It is for loops over many
// entries, and valid until the next Upsert or Alloc.
func (t *Table) Arena() []uint64 { return t.arena }

// Key is the key of an entry. The slice is valid until the table is cleared or, if sooner, grows; it is
// not to be written.
func (t *Table) Key(p Pos) []byte {
	n := int(t.arena[p] & lenMask)
	if n == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&t.arena[int(p)+1+t.cells])), n)
}

// Find looks a key up.
func (t *Table) Find(hash uint32, key []byte) (Pos, bool) {
	for i := hash & t.mask; ; i = (i + 1) & t.mask {
		s := t.slots[i]
		if s == 0 {
			return 0, false
		}
		if uint32(s>>32) == hash {
			if p := Pos(s); t.is(p, key) {
				return p, t.arena[p]&flagDead == 0
			}
		}
	}
}

func (t *Table) is(p Pos, key []byte) bool {
	n := int(t.arena[p] & lenMask)
	if n != len(key) {
		return false
	}
	if n == 0 {
		return true
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(&t.arena[int(p)+1+t.cells])), n)) == string(key)
}

// Upsert finds or inserts a key and marks it as touched. A new entry has zero cells.
func (t *Table) Upsert(hash uint32, key []byte) (p Pos, fresh bool) {
	i := hash & t.mask
	for {
		s := t.slots[i]
		if s == 0 {
			break
		}
		if uint32(s>>32) == hash {
			if p := Pos(s); t.is(p, key) {
				return p, t.touch(p)
			}
		}
		i = (i + 1) & t.mask
	}
	if 2*t.used >= len(t.slots) {
		t.grow()
		for i = hash & t.mask; t.slots[i] != 0; i = (i + 1) & t.mask {
		}
	}
	p = t.Alloc(1 + t.cells + (len(key)+wordBytes-1)/wordBytes)
	t.arena[p] = uint64(len(key)) | flagDirty
	if len(key) > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&t.arena[int(p)+1+t.cells])), len(key)), key)
	}
	t.slots[i] = uint64(hash)<<32 | uint64(p)
	t.used++
	t.live++
	t.dirty = append(t.dirty, p)
	return p, true
}

// Probe guesses the entry of each row from its hash alone, zero if there is none, and touches it: a loop
// this small keeps many cache misses in flight, where one Upsert after the other would wait for each.
func (t *Table) Probe(hashes []uint32, rows []int32, pos []Pos) {
	pos = pos[:len(rows)]
	slots, mask := t.slots, t.mask
	for i, row := range rows {
		hash := hashes[row]
		j := hash & mask
		s := slots[j]
		for s != 0 && uint32(s>>32) != hash {
			j = (j + 1) & mask
			s = slots[j]
		}
		pos[i] = Pos(s)
	}
	sum := uint64(0)
	for _, p := range pos {
		sum += t.arena[p]
	}
	t.touched = sum
}

// UpsertAt is Upsert with the guess of Probe.
func (t *Table) UpsertAt(guess Pos, hash uint32, key []byte) Pos {
	if guess != 0 && t.arena[guess]&(flagDirty|flagDead) == flagDirty && t.is(guess, key) {
		return guess
	}
	p, _ := t.Upsert(hash, key)
	return p
}

// InsertAt finds or inserts a key, with the guess of Probe. An entry that is there is not touched.
func (t *Table) InsertAt(guess Pos, hash uint32, key []byte) (p Pos, fresh bool) {
	if guess != 0 && t.arena[guess]&flagDead == 0 && t.is(guess, key) {
		return guess, false
	}
	if p, ok := t.Find(hash, key); ok {
		return p, false
	}
	return t.Upsert(hash, key)
}

// Touch marks an entry as changed.
func (t *Table) Touch(p Pos) { t.touch(p) }

// touch marks an entry as changed and revives a dead one, which is then as good as new.
func (t *Table) touch(p Pos) (fresh bool) {
	h := t.arena[p]
	if h&(flagDirty|flagDead) == flagDirty {
		return false
	}
	if h&flagDead != 0 {
		h &^= flagDead
		clear(t.Cells(p))
		t.live++
		fresh = true
	}
	if h&flagDirty == 0 {
		t.dirty = append(t.dirty, p)
	}
	t.arena[p] = h | flagDirty
	return fresh
}

func (t *Table) grow() {
	old := t.slots
	t.slots = make([]uint64, 2*len(old))
	t.mask = uint32(len(t.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := uint32(s>>32) & t.mask
		for t.slots[i] != 0 {
			i = (i + 1) & t.mask
		}
		t.slots[i] = s
	}
}

// Alloc takes zeroed words from the arena. They live until the table is cleared.
//
// It panics beyond 2^32 words (32 GiB) in one table.
func (t *Table) Alloc(words int) Pos {
	p := len(t.arena)
	if uint64(p)+uint64(words) > 1<<32 {
		panic("state: a table exceeds 32 GiB")
	}
	if p+words > cap(t.arena) {
		t.arena = slices.Grow(t.arena, max(words, p))
	}
	t.arena = t.arena[:p+words]
	clear(t.arena[p:])
	return Pos(p)
}

// Remove kills an entry: Find no longer sees it, and Changed reports its deletion if the store has it.
func (t *Table) Remove(p Pos) {
	h := t.arena[p]
	if h&flagDead != 0 {
		return
	}
	t.live--
	if h&(flagSaved|flagDirty) == flagSaved {
		t.dirty = append(t.dirty, p)
		h |= flagDirty
	}
	t.arena[p] = h | flagDead
}

// RemoveAll kills every entry.
func (t *Table) RemoveAll() {
	for _, s := range t.slots {
		if s != 0 {
			t.Remove(Pos(s))
		}
	}
}

// RemoveSome kills up to n entries; nothing is inserted any more until the table is cleared. It answers
// whether all are dead.
func (t *Table) RemoveSome(n int) (done bool) {
	for ; t.live > 0 && t.sweep < len(t.slots); t.sweep++ {
		s := t.slots[t.sweep]
		if s == 0 || t.arena[Pos(s)]&flagDead != 0 {
			continue
		}
		if n == 0 {
			return false
		}
		t.Remove(Pos(s))
		n--
	}
	return true
}

// MarkSaved says that the store holds the entry as it is now: for what is restored from there.
func (t *Table) MarkSaved(p Pos) {
	h := t.arena[p]
	if h&flagSaved == 0 {
		t.saved++
	}
	t.arena[p] = h&^flagDirty | flagSaved
	if n := len(t.dirty); n > 0 && t.dirty[n-1] == p {
		t.dirty = t.dirty[:n-1]
	}
}

// Saved is the number of entries that the store holds, dead ones included.
func (t *Table) Saved() int { return t.saved }

// Dirty is about how many entries the next call of Changed reports.
func (t *Table) Dirty() int { return len(t.dirty) }

// Sorted is every live entry by ascending key. The slice is valid until the next call of Sorted or
// Changed.
func (t *Table) Sorted(dst []Pos) []Pos {
	t.sort = t.sort[:0]
	for _, s := range t.slots {
		if p := Pos(s); s != 0 && t.arena[p]&flagDead == 0 {
			t.sort = append(t.sort, sortKey{t.prefix(p), p})
		}
	}
	return t.order(dst)
}

// Changed calls f for each entry touched or removed since the last call, by ascending key, and forgets
// them. Removed entries are reported with dead true, and only if the store holds them.
func (t *Table) Changed(f func(p Pos, dead bool)) {
	if len(t.dirty) == 0 {
		return
	}
	t.sort = t.sort[:0]
	for _, p := range t.dirty {
		h := t.arena[p]
		if h&(flagDead|flagSaved) == flagDead {
			t.arena[p] = h &^ flagDirty
			continue // came and went unseen
		}
		t.sort = append(t.sort, sortKey{t.prefix(p), p})
	}
	t.dirty = t.dirty[:0]
	slices.SortFunc(t.sort, t.compare)
	for _, k := range t.sort {
		h := t.arena[k.pos] &^ flagDirty
		if dead := h&flagDead != 0; dead {
			h &^= flagSaved
			t.saved--
			t.arena[k.pos] = h
			f(k.pos, true)
			continue
		}
		if h&flagSaved == 0 {
			t.saved++
		}
		t.arena[k.pos] = h | flagSaved
		f(k.pos, false)
	}
}

func (t *Table) order(dst []Pos) []Pos {
	slices.SortFunc(t.sort, t.compare)
	for _, k := range t.sort {
		dst = append(dst, k.pos)
	}
	return dst
}

// prefix is the first eight bytes of the key, so that most comparisons need not look at it.
func (t *Table) prefix(p Pos) uint64 {
	if t.arena[p]&lenMask == 0 {
		return 0
	}
	return bits.ReverseBytes64(little(t.arena[int(p)+1+t.cells])) // zero filled
}

// little reads a word of the arena as its bytes in memory, lowest first.
func little(w uint64) uint64 {
	if nativeLittle {
		return w
	}
	return bits.ReverseBytes64(w)
}

var nativeLittle = func() bool {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	return b[0] == 1
}()

func (t *Table) compare(a, b sortKey) int {
	switch {
	case a.prefix < b.prefix:
		return -1
	case a.prefix > b.prefix:
		return 1
	}
	return bytes.Compare(t.Key(a.pos), t.Key(b.pos))
}

// SetBlob puts b into the blob at cells[0:2], over the old bytes if they have room. A blob is two cells,
// a place in the heap and room 32 | length 32; zero cells are an empty blob. Replaced room is lost until
// the table is cleared; it at least doubles each time, so no blob wastes more than it holds.
func (t *Table) SetBlob(cells []uint64, b []byte) {
	place, room := int(cells[0]), int(cells[1]>>32)
	if len(b) > room {
		room = max(16, 1<<bits.Len(uint(len(b)-1)))
		place = len(t.heap)
		t.heap = append(t.heap, make([]byte, room)...)
	}
	copy(t.heap[place:place+len(b)], b)
	cells[0], cells[1] = uint64(place), uint64(room)<<32|uint64(len(b))
}

// Blob is the bytes of the blob at cells[0:2], valid until the next SetBlob.
func (t *Table) Blob(cells []uint64) []byte {
	place, n := int(cells[0]), int(cells[1]&lenMask)
	return t.heap[place : place+n : place+n]
}
