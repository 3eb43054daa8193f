package log

import (
	"context"
	"slices"
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
//	batches, err := c.Read(ctx, from, 1<<20, batches[:0], &loan)
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
	ctx  context.Context
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
// It blocks for the disk, and for a moment when entries are being applied meanwhile: see Options.ReadPause. That moment,
// and nothing else, ends with ctx; its error comes after the batches that were read before.
func (c *Cursor) Read(ctx context.Context, from int64, maxBytes int, buf []Batch, loan *Loan) ([]Batch, error) {
	c.ctx, c.loan = ctx, loan
	c.mem, _ = readMemories.Get().(*readMemory)
	had := len(buf)
	buf, err := c.p.read(c, from, maxBytes, buf)
	if n := len(buf); n > had && buf[n-1].Stored {
		c.next = buf[n-1].Last + 1
	}
	if cap(c.mem.refs)*int(refSize) <= maxReadMemory && cap(c.mem.blocks) <= maxReadMemory {
		readMemories.Put(c.mem)
	}
	c.ctx, c.loan, c.mem = nil, nil, nil
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
// are applied, all file reads take turns. How long a turn lasts is set when it begins, so a reader that goes away while
// it waits takes nothing from those behind it.
type historyPace struct {
	mu struct {
		sync.Mutex
		next  time.Time       // when the next turn may begin
		queue []chan struct{} // of those who wait, in order; a token says that its owner is the first
	}
}

const (
	// maxTook is what a read counts for at most. A stall of the disk slows every reader's read once; counted in full, all
	// of them would wait for the sum of it.
	maxTook = 50 * time.Millisecond
	// maxHistoryWait is how long a read waits for its turn: then it goes ahead without one. So many readers that it
	// comes to that are more than what ReadPause leaves them serves in the time that their clients wait.
	maxHistoryWait = 2 * time.Second
)

// wait returns when a turn that lasts for d begins, or after maxHistoryWait, and whether it had to wait; with ctx's
// error if ctx ends before; or when closed is closed.
func (h *historyPace) wait(ctx context.Context, closed <-chan struct{}, d time.Duration) (waited bool, err error) {
	me, next := h.enter(d)
	if me == nil {
		return false, nil
	}
	limit, turn := time.After(maxHistoryWait), (<-chan time.Time)(nil)
	if !next.IsZero() {
		turn = time.After(time.Until(next))
	}
	for {
		select {
		case <-me: // those before have begun
			turn = time.After(time.Until(h.begins()))
			continue
		case <-turn:
		case <-limit:
			d = 0
		case <-closed:
			d = 0
		case <-ctx.Done():
			d, err = 0, ctx.Err()
		}
		h.leave(me, d)
		return true, err
	}
}

// enter begins a turn if it is free, and returns nil. Else it returns a place in the queue, and for the first one when its
// turn begins.
func (h *historyPace) enter(d time.Duration) (me chan struct{}, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if len(h.mu.queue) == 0 && !now.Before(h.mu.next) {
		h.mu.next = now.Add(d)
		return nil, next
	}
	me = make(chan struct{}, 1)
	if h.mu.queue = append(h.mu.queue, me); len(h.mu.queue) == 1 {
		next = h.mu.next
	}
	return me, next
}

// begins is when the first of the queue may begin. It does not change while there is one.
func (h *historyPace) begins() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.next
}

// leave takes a place out of the queue, for a turn that lasts for d, 0: for none.
func (h *historyPace) leave(me chan struct{}, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d > 0 {
		h.mu.next = time.Now().Add(d)
	}
	i := slices.Index(h.mu.queue, me)
	h.mu.queue = slices.Delete(h.mu.queue, i, i+1)
	if i == 0 && len(h.mu.queue) > 0 {
		h.mu.queue[0] <- struct{}{}
	}
}

// turn is how long others wait for a read of n bytes by a reader whose last read took took, and while which applied
// bytes were written: see Options.ReadPause. 0: it need not wait either.
func turn(n int, took time.Duration, applied int64, pause time.Duration) time.Duration {
	if applied == 0 || 2*applied >= int64(n) {
		return 0 // nobody writes, or so much that the reader hardly gains
	}
	took = min(took, maxTook)
	return took + max(took, pause*time.Duration(n)>>20)
}

// wait lets the write path go first: if entries were applied since the cursor last read a file, it waits for its turn.
// The error is that of the read's context, which ended before.
func (c *Cursor) wait(n int) error {
	if c == nil {
		return nil
	}
	s := c.p.st
	before, bytes := c.applied, c.bytes
	c.applied, c.bytes = s.applied.Load().index, s.metrics.entryBytes.Load()
	if before == 0 || s.opts.ReadPause < 0 || s.opts.Manual {
		return nil
	}
	d := turn(n, c.took, c.bytes-bytes, s.opts.ReadPause)
	if d == 0 {
		return nil
	}
	waited, err := s.history.wait(c.ctx, s.closed, d)
	if waited {
		s.metrics.readPauses.Add(1)
	}
	if err != nil {
		c.applied, c.bytes = before, bytes // not read: the next try waits as well
	}
	return err
}
