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
	// Stored batches come from a file: base offset and leader epoch are filled in, and Data can leave as it is.
	Stored bool
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
	changed    bool // in the pending round, by more than batches

	tail tail

	// Who waits for records. Apply takes the lock only when somebody does, which watched tells, and whoever watches
	// holds it for no more than a change of the list.
	watched atomic.Int32
	dropped atomic.Bool
	waiters struct {
		sync.Mutex
		list []waiting
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
func (p *Partition) Dropped() bool { return p.dropped.Load() }

// push adds a batch at the log end and wakes readers. Apply goroutine.
func (p *Partition) push(b *tailBatch) {
	p.tail.push(b)
	p.end.Store(b.Last + 1)
	p.wake()
}

// fromTail appends batches of [from, end) that the tail still knows. known is false if the tail begins
// above from; evicted is the batch at from if its bytes have left memory. The tail may already hold a batch
// that is not yet below the log end: delivered, it would take its reader past the log end, where the next
// read is refused.
func (p *Partition) fromTail(from, end int64, maxBytes int, buf []Batch) (out []Batch, evicted tailBatch, known bool) {
	rows := p.tail.live()
	if len(rows) == 0 || from < rows[0].base {
		return buf, tailBatch{}, false
	}
	rows = rows[sort.Search(len(rows), func(i int) bool { return rows[i].last >= from }):]
	for i, n := 0, 0; i < len(rows); i++ {
		if rows[i].last >= end {
			break
		}
		b := rows[i].batch()
		if b.Data == nil {
			if i == 0 {
				return buf, b, true
			}
			break
		}
		if n += int(b.size); n > maxBytes && i > 0 {
			break
		}
		buf = append(buf, b.Batch)
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
//
// Who reads on and on had better use a Cursor.
func (p *Partition) Read(from int64, maxBytes int, buf []Batch) ([]Batch, error) {
	return p.read(nil, from, maxBytes, buf)
}

func (p *Partition) read(c *Cursor, from int64, maxBytes int, buf []Batch) ([]Batch, error) {
	for range 8 {
		start, end := p.start.Load(), p.end.Load()
		switch {
		case from < start || from > end:
			return buf, &OffsetRangeError{Partition: p.id, Offset: from, Start: start, End: end}
		case from == end:
			return buf, nil
		}
		out, gone, known := p.fromTail(from, end, maxBytes, buf)
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
		out, retry, err := p.st.readFiles(c, p, from, maxBytes, buf)
		if !retry {
			return out, err
		}
	}
	if p.Dropped() {
		return buf, fmt.Errorf("%w: %s", ErrUnknownPartition, p.id)
	}
	return buf, p.st.corrupt(&CorruptError{Path: p.st.missing(p, from), Partition: p.id, Offset: from, Position: -1, Err: fmt.Errorf("%w: no file holds the offset", ErrCorrupt)})
}
