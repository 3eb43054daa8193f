package log

import (
	"hash/maphash"
	"math/bits"
)

// An offsetMap holds the last offset of each key, in one slice without pointers, within a budget of bytes.
//
// It does not hold the keys but 128 bits of each: two hashes with seeds that are drawn when the store is opened, so
// nobody can choose keys that meet. Among the two million keys of the default budget two that differ meet with a
// probability of 2^-87; the older of them would be lost.
type offsetMap struct {
	seeds [2]maphash.Seed
	slots []offsetSlot
	used  int
	limit int // of used: beyond it the map counts as full
}

type offsetSlot struct {
	key  keyHash
	next int64 // offset plus one; 0: free
}

type keyHash [2]uint64

const offsetSlotBytes = 24

// newOffsetMap makes a map for about keys keys that takes at most budget bytes.
func newOffsetMap(seeds [2]maphash.Seed, keys, budget int64) *offsetMap {
	m := &offsetMap{seeds: seeds}
	m.grow(max(16, min(keys+keys/3+1, budget/offsetSlotBytes)))
	return m
}

func (m *offsetMap) grow(slots int64) {
	old := m.slots
	m.slots = make([]offsetSlot, slots)
	m.limit = int(slots - slots/4)
	for i := range old {
		if old[i].next != 0 {
			*m.slot(old[i].key) = old[i]
		}
	}
}

func (m *offsetMap) hash(key []byte) keyHash {
	return keyHash{maphash.Bytes(m.seeds[0], key), maphash.Bytes(m.seeds[1], key)}
}

// slot is where a key is or would be. There is always a free one.
func (m *offsetMap) slot(k keyHash) *offsetSlot {
	hi, _ := bits.Mul64(k[0], uint64(len(m.slots)))
	for i := hi; ; {
		if s := &m.slots[i]; s.next == 0 || s.key == k {
			return s
		}
		if i++; i == uint64(len(m.slots)) {
			i = 0
		}
	}
}

// put notes that the key has a record at offset, above all before. It returns false, and changes nothing, if the map
// is full.
func (m *offsetMap) put(k keyHash, offset int64) bool {
	s := m.slot(k)
	if s.next == 0 {
		if m.used >= m.limit {
			return false
		}
		m.used++
		s.key = k
	}
	s.next = offset + 1
	return true
}

// last is the largest offset that was put for the key, -1 if there is none.
func (m *offsetMap) last(key []byte) int64 { return m.slot(m.hash(key)).next - 1 }
