package log

import (
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A tail is the newest batches of a partition: those that are in memory, or not yet in a file, or both.
//
// Apply and the segment writer change it, and hold its lock for that. Readers take no lock at all, because one that
// loses its processor while it holds a lock would make Apply wait, and with it every publish of the shard. They see a
// consistent list for this reason: a row is written once, before n counts it, and never changes but for the pointer to
// its bytes, which is atomic and goes to nil when the batch leaves memory. Who has loaded the pointer keeps the bytes.
// A list that is full is replaced by a copy of its live rows; a reader of the old one sees a past state of the log.
type tail struct {
	list atomic.Pointer[tailList] // nil: nothing

	mu      sync.Mutex // of Apply and the segment writer
	evicted int        // rows from head on without bytes; under mu
	placed  int64      // batches below are in files; under mu
}

// tailList is rows[head:n], adjacent batches up to the log end.
type tailList struct {
	head, n atomic.Int32
	rows    []tailRow
}

// A tailRow is one batch of a tail.
type tailRow struct {
	base, last   int64
	index        uint64
	appendTime   int64
	maxTimestamp int64
	epoch, unit  int32
	entryPos     uint32
	size         int32
	data         atomic.Pointer[byte] // the first of size bytes, nil once the batch has left memory
}

// batch is the row as its readers know it. Data is nil if the bytes have left memory.
func (r *tailRow) batch() tailBatch {
	b := tailBatch{
		Batch: Batch{
			Base: r.base, Last: r.last, Epoch: r.epoch, Unit: r.unit, Index: r.index, AppendTime: r.appendTime,
			MaxTimestamp: r.maxTimestamp,
		},
		entryPos: r.entryPos, size: r.size,
	}
	if p := r.data.Load(); p != nil {
		b.Data = unsafe.Slice(p, int(r.size))
	}
	return b
}

// minTailRows is the size of the first list.
const minTailRows = 4

// A firstList is a list with its rows.
type firstList struct {
	tailList
	room [minTailRows]tailRow
}

// live is the rows that there are now. They may be used without a lock.
func (t *tail) live() []tailRow {
	l := t.list.Load()
	if l == nil {
		return nil
	}
	head := l.head.Load() // before n, which is never below it
	return l.rows[head:l.n.Load()]
}

// from is the live rows from the one that holds offset on.
func (t *tail) from(offset int64) []tailRow {
	rows := t.live()
	return rows[sort.Search(len(rows), func(i int) bool { return rows[i].last >= offset }):]
}

// push adds a batch. Apply goroutine.
func (t *tail) push(b *tailBatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.list.Load()
	if l == nil || int(l.n.Load()) == len(l.rows) {
		l = t.grow(l)
	}
	n := l.n.Load()
	r := &l.rows[n]
	r.base, r.last, r.index, r.appendTime, r.maxTimestamp = b.Base, b.Last, b.Index, b.AppendTime, b.MaxTimestamp
	r.epoch, r.unit, r.entryPos, r.size = b.Epoch, b.Unit, b.entryPos, b.size
	r.data.Store(unsafe.SliceData(b.Data))
	l.n.Store(n + 1)
}

// grow replaces a full list by one with room for as many rows again as are live. mu is held.
func (t *tail) grow(old *tailList) *tailList {
	live := t.live()
	var l *tailList
	if 2*len(live) <= minTailRows {
		first := &firstList{} // one piece of memory: with many partitions nearly every look at it is a cache miss
		l = &first.tailList
		l.rows = first.room[:]
	} else {
		l = &tailList{rows: make([]tailRow, 2*len(live))}
	}
	for i := range live {
		from, to := &live[i], &l.rows[i]
		to.base, to.last, to.index, to.appendTime, to.maxTimestamp = from.base, from.last, from.index, from.appendTime, from.maxTimestamp
		to.epoch, to.unit, to.entryPos, to.size = from.epoch, from.unit, from.entryPos, from.size
		to.data.Store(from.data.Load())
	}
	l.n.Store(int32(len(live)))
	t.list.Store(l)
	return l
}

// evict lets go of the bytes of every batch up to a raft index. Apply goroutine.
func (t *tail) evict(index uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := t.live()
	for i := t.evicted; i < len(rows) && rows[i].index <= index; i++ {
		rows[i].data.Store(nil)
		t.evicted++
	}
	t.trim()
}

// evictPlaced lets go of the bytes of the batches below end that are in files.
func (t *tail) evictPlaced(end int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := t.live()
	for i := t.evicted; i < len(rows) && rows[i].last < min(end, t.placed); i++ {
		rows[i].data.Store(nil)
		t.evicted++
	}
	t.trim()
}

// setPlaced notes that the batches below end are in files. Segment writer.
func (t *tail) setPlaced(end int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.placed = end
	t.trim()
}

// trim drops the rows that are neither in memory nor needed to find their bytes. mu is held.
func (t *tail) trim() {
	l := t.list.Load()
	if l == nil {
		return
	}
	head := int(l.head.Load())
	gone := l.rows[head : head+t.evicted]
	k := sort.Search(len(gone), func(i int) bool { return gone[i].last >= t.placed })
	t.evicted -= k
	if head+k == int(l.n.Load()) {
		t.list.Store(nil)
		return
	}
	l.head.Store(int32(head + k))
}
