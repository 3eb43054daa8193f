package broker

import (
	"time"

	"github.com/headrace/headrace/log"
)

// A FetchSession is what one reader keeps from fetch to fetch: a cursor for each partition that it reads, whose turn
// it is, and memory for the next request. It holds no bytes of records between two fetches. The zero value is ready;
// one goroutine at a time uses it.
type FetchSession struct {
	cursors map[*log.Partition]*log.Cursor
	parts   []FetchPart
	turn    int
}

// maxCursors bounds the cursors of a session, a few hundred bytes each. Beyond, all are forgotten, and with them
// nothing but what was known about the disk.
const maxCursors = 1024

// Begin returns a request with no parts yet, for Add. It takes the session until Done.
func (s *FetchSession) Begin(minBytes, maxBytes int) *FetchRequest {
	return &FetchRequest{MinBytes: minBytes, MaxBytes: maxBytes, Parts: s.parts[:0], session: s}
}

// Add adds a part.
func (r *FetchRequest) Add(p FetchPart) {
	n := len(r.Parts)
	if n < cap(r.Parts) {
		p.Batches = r.Parts[:n+1][n].Batches[:0]
	}
	r.Parts = append(r.Parts, p)
}

// maxKeptBatches bounds the memory that a session keeps for the batches of the next fetch, a hundred bytes each.
const maxKeptBatches = 4096

// Done ends the use of a request: its bytes have been put together, though not sent. See Release.
func (s *FetchSession) Done(r *FetchRequest) {
	kept := 0
	for i := range r.Parts {
		p := &r.Parts[i]
		batches := p.Batches
		clear(batches)
		if kept += cap(batches); kept > maxKeptBatches {
			batches = nil
		}
		*p = FetchPart{Batches: batches[:0]}
	}
	if s.parts = r.Parts[:0]; cap(s.parts) > maxCursors {
		s.parts = nil
	}
}

// cursor is the session's cursor of a partition.
func (s *FetchSession) cursor(p *log.Partition) *log.Cursor {
	if c := s.cursors[p]; c != nil {
		return c
	}
	if len(s.cursors) >= maxCursors || s.cursors == nil {
		s.cursors = make(map[*log.Partition]*log.Cursor)
	}
	c := p.Cursor()
	s.cursors[p] = c
	return c
}

// first is the part that a fetch reads first: another one each time, so that the parts at the end have their turn when
// those before fill the answer.
func (s *FetchSession) first(parts int) int {
	if parts == 0 {
		return 0
	}
	s.turn++
	return (s.turn - 1) % parts
}

// fetchLimit is how many bytes an answer may have while so much is being sent already: everything, little, or nothing.
func (b *Broker) fetchLimit(r *FetchRequest) int {
	limit := min(r.MaxBytes, b.opts.FetchBytes)
	switch held := b.fetching.Load(); {
	case held > 2*int64(b.opts.FetchMemory):
		return 0
	case held > int64(b.opts.FetchMemory):
		return min(limit, lowFetchBytes)
	}
	return limit
}

// sendPoll is how often a fetch that found no memory looks again, and sendWait how long it does so at least: its client
// would only ask again.
const sendPoll, sendWait = 5 * time.Millisecond, 50 * time.Millisecond

// awaitRoom waits until answers that are being sent have left, or until the deadline.
func (b *Broker) awaitRoom(done <-chan struct{}, r *FetchRequest) {
	end := time.Now().Add(sendWait)
	if r.Deadline.After(end) {
		end = r.Deadline
	}
	tick := time.NewTicker(sendPoll)
	defer tick.Stop()
	for b.fetchLimit(r) == 0 && time.Now().Before(end) {
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// hold counts bytes of the answer as being sent, until Release.
func (b *Broker) hold(r *FetchRequest, n int) {
	r.held += n
	b.fetching.Add(int64(n))
}

// letGo takes everything back that the answer holds.
func (b *Broker) letGo(r *FetchRequest) {
	b.fetching.Add(-int64(r.held))
	r.held = 0
	r.loan.Return()
}

// order calls do for the parts, beginning with first.
func order(parts []FetchPart, first int, do func(p *FetchPart)) {
	for i := range parts[first:] {
		do(&parts[first+i])
	}
	for i := range parts[:first] {
		do(&parts[i])
	}
}
