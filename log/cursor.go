package log

import (
	"sync"
	"time"

	"github.com/headrace/headrace/log/segment"
)

// A Cursor reads one partition forward for one reader. It is Partition.Read for whoever reads much: it remembers
// where the reader is, so that the disk can be asked for what comes next before it is needed, and it reads into
// memory that is lent instead of made. It holds no file and no buffer between two reads.
//
//	c := p.Cursor()
//	var loan log.Loan
//	batches, err := c.Read(from, 1<<20, batches[:0], &loan)
//	… write them …
//	loan.Return()
//
// One goroutine at a time may use it. Any number of cursors read a partition.
type Cursor struct {
	p    *Partition
	next int64 // offset after the last batch that was read from a file

	// At the last read of a file.
	applied uint64        // raft index; 0: there was none
	bytes   int64         // of entries applied
	took    time.Duration // the read

	ahead struct {
		path string // of the file that was last read
		end  int64  // byte in it up to which the disk was asked
		cold bool   // the last read waited for the disk
	}

	// Names of the segment that was last read, which would otherwise be made for every read.
	names struct {
		base       int64
		generation uint32
		log, index string
	}

	// Of the read under way.
	loan *Loan
	mem  *readMemory
}

// readMemory is what a read needs beside the batches.
type readMemory struct {
	refs   []segment.Ref
	blocks []byte
}

// maxReadMemory bounds what is kept for the next read: the index of some ten thousand batches.
const maxReadMemory = 1 << 20

var readMemories = sync.Pool{New: func() any { return new(readMemory) }}

// Cursor returns a cursor of the partition.
func (p *Partition) Cursor() *Cursor { return &Cursor{p: p, next: -1} }

// paths returns the paths of a segment's file and index. A nil cursor makes them.
func (c *Cursor) paths(s *Store, id PartitionID, seg *segmentInfo) (log, index string) {
	if c == nil {
		return s.logPath(id, seg), s.indexPath(id, seg)
	}
	if n := &c.names; n.log == "" || n.base != seg.base || n.generation != seg.generation {
		n.base, n.generation, n.log, n.index = seg.base, seg.generation, s.logPath(id, seg), s.indexPath(id, seg)
	}
	return c.names.log, c.names.index
}

// Partition is the partition that the cursor reads.
func (c *Cursor) Partition() *Partition { return c.p }

// Read is Partition.Read, but for the memory: batches from files lie in memory that loan holds, adjacent ones side by
// side, and are valid until it is returned. With a nil loan they are the caller's for good.
//
// It blocks for the disk, and for a moment when entries are being applied meanwhile: see Options.ReadPause.
func (c *Cursor) Read(from int64, maxBytes int, buf []Batch, loan *Loan) ([]Batch, error) {
	c.loan = loan
	c.mem, _ = readMemories.Get().(*readMemory)
	had := len(buf)
	buf, err := c.p.read(c, from, maxBytes, buf)
	if n := len(buf); n > had && buf[n-1].Stored {
		c.next = buf[n-1].Last + 1
	}
	if cap(c.mem.refs)*int(refSize) <= maxReadMemory && cap(c.mem.blocks) <= maxReadMemory {
		readMemories.Put(c.mem)
	}
	c.loan, c.mem = nil, nil
	return buf, err
}

// refSize is what one batch takes in a readMemory.
const refSize = 72

// room is memory for n bytes of batches. A nil cursor makes it.
func (c *Cursor) room(n int64) []byte {
	if c == nil {
		return make([]byte, n)
	}
	return c.loan.take(int(n))
}

// memory is scratch memory for the index. A nil cursor makes it.
func (c *Cursor) memory() *readMemory {
	if c == nil {
		return new(readMemory)
	}
	return c.mem
}

// Read-ahead. The system reads ahead of a sequential reader by itself, but little, and only as long as no other reader
// shares the open file. So a cursor whose last read was slower than memory asks for readAheadBytes more, again whenever
// half of them are used up. What is in memory already is not asked for: looking is not free.
const (
	readAheadBytes = 8 << 20
	coldNsPerKiB   = 500 // 2 GB/s: slower is the disk
)

// read reads b at pos of a file with size bytes, and has the disk go on where a sequential reader will.
func (c *Cursor) read(h *handle, b []byte, pos, size, from int64) (int, error) {
	if c == nil {
		return h.f.ReadAt(b, pos)
	}
	begun := time.Now()
	n, err := h.f.ReadAt(b, pos)
	end := pos + int64(n)
	a := &c.ahead
	if a.path != h.path {
		a.path, a.end, a.cold = h.path, 0, false
	}
	c.took = time.Since(begun)
	a.cold = int64(c.took) > int64(n)*coldNsPerKiB>>10 || a.cold && a.end > end
	if a.cold && from == c.next && a.end-end < readAheadBytes/2 && end < size {
		at := max(end, a.end)
		until := min(end+readAheadBytes, size)
		if at < until {
			_ = h.f.Prefetch(at, until-at) // a hint
			c.p.st.metrics.readAheads.Add(1)
		}
		a.end = until
	}
	return n, err
}

// A historyPace shares the disk and the processors between the write path and those who read history: while entries
// are applied, all file reads take turns.
type historyPace struct {
	mu   sync.Mutex // held for a few instructions
	next time.Time  // when the next read may begin
}

// reserve takes a turn that lasts for d and returns when it begins.
func (h *historyPace) reserve(now time.Time, d time.Duration) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.next
	if at.Before(now) {
		at = now
	}
	h.next = at.Add(d)
	return at
}

// turn is how long others wait for a read of n bytes by a reader whose last read took took, and while which applied
// bytes were written: see Options.ReadPause. 0: it need not wait either.
func turn(n int, took time.Duration, applied int64, pause time.Duration) time.Duration {
	if applied == 0 || 2*applied >= int64(n) {
		return 0 // nobody writes, or so much that the reader hardly gains
	}
	return took + max(took, pause*time.Duration(n)>>20)
}

// wait lets the write path go first: if entries were applied since the cursor last read a file, it waits for its turn.
func (c *Cursor) wait(n int) {
	if c == nil {
		return
	}
	s := c.p.st
	before, bytes := c.applied, c.bytes
	c.applied, c.bytes = s.applied.Load().index, s.metrics.entryBytes.Load()
	if before == 0 || s.opts.ReadPause < 0 || s.opts.Manual {
		return
	}
	d := turn(n, c.took, c.bytes-bytes, s.opts.ReadPause)
	if d == 0 {
		return
	}
	now := time.Now()
	if wait := s.history.reserve(now, d).Sub(now); wait > 0 {
		s.metrics.readPauses.Add(1)
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.closed:
		}
	}
}
