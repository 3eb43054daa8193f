package log

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/headrace/headrace/log/record"
)

// A Batch is one record batch in its partition.
type Batch struct {
	Base, Last   int64 // first and last offset
	Epoch        int32 // leader epoch: the raft term of its entry
	Unit         int32 // with Index and the order in the unit: the shard order
	Index        uint64
	AppendTime   int64 // ns since 1970
	MaxTimestamp int64 // ms
	// Data is the whole batch. It must not be changed. Its header may still hold the base offset and the
	// leader epoch that the producer wrote: bytes that leave take them from Header or AppendTo.
	Data []byte
}

// Header is the batch's header with base offset and leader epoch filled in.
func (b Batch) Header() [record.HeaderSize]byte {
	h := [record.HeaderSize]byte(b.Data)
	record.SetBase(h[:], b.Base, b.Epoch)
	return h
}

// AppendTo appends the batch as it is sent and stored.
func (b Batch) AppendTo(dst []byte) []byte {
	n := len(dst)
	dst = append(dst, b.Data...)
	record.SetBase(dst[n:], b.Base, b.Epoch)
	return dst
}

// tailBatch is a batch that is in memory, or not yet in a segment, or both.
type tailBatch struct {
	Batch
	entryPos uint32 // byte in the entry
	size     int32  // bytes; Data is nil once it has left memory
}

// A Partition is one partition of the store. Its methods may be called by any goroutine.
//
// An idle partition is this struct and nothing else.
type Partition struct {
	id   PartitionID
	st   *Store
	slot int32 // in Store.parts.list, under its lock

	start, end atomic.Int64
	settings   atomic.Pointer[PartitionSettings]
	layout     atomic.Pointer[layout] // changed by the writer only; nil: nothing is in files

	// Of the Apply goroutine, under applyMu.
	metaIndex  uint64 // metadata index of the settings
	lastAppend int64  // append time of the last batch, ns
	producers  map[int64]*producer
	dirty      bool // in the pending round

	mu struct {
		sync.Mutex
		tail    []tailBatch // adjacent batches up to the log end
		head    int         // tail[:head] is gone
		evicted int         // tail[head:head+evicted] has no Data
		placed  int64       // batches below are in files
		waiters []waiting
		dropped bool
	}
}

// ID is the partition's name.
func (p *Partition) ID() PartitionID { return p.id }

// LogStart is the first offset that is kept.
func (p *Partition) LogStart() int64 { return p.start.Load() }

// LogEnd is the offset that the next record gets. Everything below is committed.
func (p *Partition) LogEnd() int64 { return p.end.Load() }

// Settings are the topic's settings that are in force.
func (p *Partition) Settings() PartitionSettings { return *p.settings.Load() }

// Dropped reports that the partition has been dropped from the store.
func (p *Partition) Dropped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.dropped
}

// push adds a batch at the log end and wakes readers. Apply goroutine.
func (p *Partition) push(b *tailBatch) {
	p.mu.Lock()
	m := &p.mu
	if m.head > 0 && len(m.tail) == cap(m.tail) && m.head >= len(m.tail)/2 {
		n := copy(m.tail, m.tail[m.head:])
		clear(m.tail[n:])
		m.tail, m.head = m.tail[:n], 0
	}
	m.tail = append(m.tail, *b)
	p.end.Store(b.Last + 1)
	p.wakeLocked()
	p.mu.Unlock()
}

// evict lets go of the bytes of every batch up to a raft index.
func (p *Partition) evict(index uint64) {
	p.mu.Lock()
	m := &p.mu
	for i := m.head + m.evicted; i < len(m.tail) && m.tail[i].Index <= index; i++ {
		m.tail[i].Data = nil
		m.evicted++
	}
	p.trimLocked()
	p.mu.Unlock()
}

// evictPlaced lets go of the bytes of the batches below end that are in files.
func (p *Partition) evictPlaced(end int64) {
	p.mu.Lock()
	m := &p.mu
	for i := m.head + m.evicted; i < len(m.tail) && m.tail[i].Last < min(end, m.placed); i++ {
		m.tail[i].Data = nil
		m.evicted++
	}
	p.trimLocked()
	p.mu.Unlock()
}

// setPlaced notes that the batches below end are in files.
func (p *Partition) setPlaced(end int64) {
	p.mu.Lock()
	p.mu.placed = end
	p.trimLocked()
	p.mu.Unlock()
}

// trimLocked drops batches that are neither in memory nor needed to find their bytes.
func (p *Partition) trimLocked() {
	m := &p.mu
	for m.evicted > 0 && m.tail[m.head].Last < m.placed {
		m.tail[m.head] = tailBatch{}
		m.head++
		m.evicted--
	}
	if m.head == len(m.tail) {
		m.tail, m.head = nil, 0
	}
}

// find returns where in mu.tail the batch at from is, or len(mu.tail). mu is held.
func (p *Partition) find(from int64) int {
	t := p.mu.tail[p.mu.head:]
	return p.mu.head + sort.Search(len(t), func(i int) bool { return t[i].Last >= from })
}

// fromTail appends batches from offset on that the tail still knows. known is false if the tail begins
// above from; evicted is the batch at from if its bytes have left memory.
func (p *Partition) fromTail(from int64, maxBytes int, buf []Batch) (out []Batch, evicted tailBatch, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.mu.tail[p.mu.head:]
	if len(t) == 0 || from < t[0].Base {
		return buf, tailBatch{}, false
	}
	i := sort.Search(len(t), func(i int) bool { return t[i].Last >= from })
	if i < len(t) && t[i].Data == nil {
		return buf, t[i], true
	}
	for n := 0; i < len(t) && t[i].Data != nil; i++ {
		if n += int(t[i].size); n > maxBytes && n > int(t[i].size) {
			break
		}
		buf = append(buf, t[i].Batch)
	}
	return buf, tailBatch{}, true
}

// Read appends batches to buf, beginning with the one that holds the record at from, until maxBytes are
// passed or a border between memory and files is reached. At least one batch comes if from is below the log
// end, whatever its size, and none if from is the log end. The first batch may begin before from.
//
// Batches from memory are shared with the log; those from files are in memory of their own and were checked
// against their checksum and their place in the chain. It blocks only for the disk.
//
// Errors: *OffsetRangeError; *CorruptError, with the good batches before it; ErrClosed.
func (p *Partition) Read(from int64, maxBytes int, buf []Batch) ([]Batch, error) {
	for range 8 {
		if start, end := p.start.Load(), p.end.Load(); from < start || from > end {
			return buf, &OffsetRangeError{Partition: p.id, Offset: from, Start: start, End: end}
		} else if from == end {
			return buf, nil
		}
		out, gone, known := p.fromTail(from, maxBytes, buf)
		switch {
		case gone.size > 0:
			// Not in memory. It may be in a file by now, which is the better place to look.
			if l := p.layout.Load(); l == nil || from >= l.written {
				out, retry, err := p.st.readEvicted(p, from, maxBytes, buf)
				if !retry {
					return out, err
				}
				continue
			}
		case known:
			if len(out) > len(buf) {
				p.st.metrics.tailReads.Add(1)
				return out, nil
			}
			continue // from was the log end a moment ago
		}
		out, retry, err := p.st.readFiles(p, from, maxBytes, buf)
		if !retry {
			return out, err
		}
	}
	if p.Dropped() {
		return buf, fmt.Errorf("%w: %s", ErrUnknownPartition, p.id)
	}
	return buf, &CorruptError{Path: p.st.missing(p, from), Partition: p.id, Offset: from, Position: -1, Err: fmt.Errorf("%w: no file holds the offset", ErrCorrupt)}
}
