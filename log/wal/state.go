package wal

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sort"

	"github.com/headrace/headrace/internal/fsx"
)

// A segment is one file of the log. seq, size and file are set once; the rest is guarded by WAL.mu.
type segment struct {
	seq  uint64
	size int64
	file fsx.File // for reading, and for writing unless the log writes directly
	out  fsx.File // for writing
	open uint64   // number of the group that opened it

	base uint64 // index of locs[0]
	locs []loc  // the entries in it that are still in the log
	refs int    // reads in flight
}

func (s *segment) close() {
	if s.out != nil && s.out != s.file {
		_ = s.out.Close()
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.out, s.file = nil, nil
}

// A state is what the records of a log add up to. Recovery and appends build it with the same methods. Entries
// front..last are in the log; it is empty when last is front-1.
type state struct {
	front, last uint64
	stable      map[string][]byte
	segments    []*segment // by sequence; the last one is written to
}

func newState() *state { return &state{front: 1, stable: map[string][]byte{}} }

func (s *state) empty() bool { return s.last < s.front }

// find returns the segment that holds an entry, and where.
func (s *state) find(index uint64) (*segment, loc, bool) {
	if index < s.front || index > s.last {
		return nil, loc{}, false
	}
	for i := len(s.segments) - 1; i >= 0; i-- {
		seg := s.segments[i]
		if n := uint64(len(seg.locs)); n > 0 && index >= seg.base && index-seg.base < n {
			return seg, seg.locs[index-seg.base], true
		}
	}
	return nil, loc{}, false
}

// whole reports whether every entry of the log can be found.
func (s *state) whole() bool {
	next := s.front
	for _, seg := range s.segments {
		if n := uint64(len(seg.locs)); n > 0 && seg.base <= next {
			next = max(next, seg.base+n)
		}
	}
	return next > s.last
}

// suffixIndex is WAL.SuffixIndex of a log that is not empty.
func (s *state) suffixIndex(n int64) uint64 {
	index := s.last + 1
	for i := len(s.segments) - 1; i >= 0; i-- {
		seg := s.segments[i]
		if len(seg.locs) == 0 {
			continue
		}
		tail := seg.locs[len(seg.locs)-1]
		end := int64(tail.pos) + int64(tail.size)
		k := sort.Search(len(seg.locs), func(k int) bool { return end-int64(seg.locs[k].pos) <= n })
		if k < len(seg.locs) {
			index = seg.base + uint64(k)
		}
		if k > 0 {
			break
		}
		n -= end - int64(seg.locs[0].pos)
	}
	return max(index, s.front)
}

func (s *state) addEntry(seg *segment, index uint64, l loc) error {
	if index != s.last+1 {
		return fmt.Errorf("entry %d follows %d", index, s.last)
	}
	if len(seg.locs) == 0 {
		seg.base = index
	}
	seg.locs = append(seg.locs, l)
	s.last = index
	return nil
}

func (s *state) truncateBack(index uint64) {
	index = max(index, s.front)
	if index > s.last {
		return
	}
	for _, seg := range s.segments {
		switch n := uint64(len(seg.locs)); {
		case n == 0 || seg.base+n <= index:
		case seg.base >= index:
			seg.locs = seg.locs[:0]
		default:
			seg.locs = seg.locs[:index-seg.base]
		}
	}
	s.last = index - 1
}

func (s *state) truncateFront(index uint64) {
	s.front = max(s.front, index)
	s.last = max(s.last, s.front-1)
}

func (s *state) reset(index uint64) {
	for _, seg := range s.segments {
		seg.locs = seg.locs[:0]
	}
	s.front, s.last = index, index-1
}

func (s *state) setStable(key string, value []byte) {
	if value == nil {
		delete(s.stable, key)
		return
	}
	s.stable[key] = value
}

// stableKeys are the keys in a fixed order, so that equal logs have equal bytes.
func (s *state) stableKeys() []string { return slices.Sorted(maps.Keys(s.stable)) }

func stableBytes(key string, value []byte) int64 { return int64(stableSize + len(key) + len(value)) }

// A ring holds the newest entries by reference, bounded in bytes. It always holds a suffix of the log.
type ring struct {
	buf   []Entry // length a power of two
	head  int     // position of the oldest
	n     int
	base  uint64 // index of the oldest
	bytes int64
	limit int64
}

// entryOverhead is what an entry costs in the ring besides its bytes.
const entryOverhead = 88

func entryCost(e *Entry) int64 { return int64(len(e.Data)+len(e.Extensions)) + entryOverhead }

func (r *ring) at(i int) *Entry { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring) get(index uint64) (Entry, bool) {
	if r.n == 0 || index < r.base || index-r.base >= uint64(r.n) {
		return Entry{}, false
	}
	return *r.at(int(index - r.base)), true
}

// push adds the entry that follows the newest one; any other index empties the ring first.
func (r *ring) push(e *Entry) {
	if r.limit <= 0 {
		return
	}
	if r.n > 0 && e.Index != r.base+uint64(r.n) {
		r.clear()
	}
	cost := entryCost(e)
	for r.n > 0 && r.bytes+cost > r.limit {
		r.popFront()
	}
	if cost > r.limit {
		return
	}
	if r.n == len(r.buf) {
		r.grow()
	}
	if r.n == 0 {
		r.base = e.Index
	}
	r.n++
	*r.at(r.n - 1) = *e
	r.bytes += cost
}

func (r *ring) grow() {
	buf := make([]Entry, max(64, 1<<bits.Len(uint(len(r.buf)))))
	for i := range r.n {
		buf[i] = *r.at(i)
	}
	r.buf, r.head = buf, 0
}

func (r *ring) popFront() {
	e := r.at(0)
	r.bytes -= entryCost(e)
	*e = Entry{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	r.base++
}

func (r *ring) truncateFront(index uint64) {
	for r.n > 0 && r.base < index {
		r.popFront()
	}
}

func (r *ring) truncateBack(index uint64) {
	for r.n > 0 && r.base+uint64(r.n) > index {
		e := r.at(r.n - 1)
		r.bytes -= entryCost(e)
		*e = Entry{}
		r.n--
	}
}

func (r *ring) clear() { r.truncateBack(0) }
