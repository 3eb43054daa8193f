package replication

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/headrace/headrace/log"
)

// Limits of packing, in bytes of an encoded entry.
const (
	saturatedEntryBytes = 1 << 20   // an entry's size while more than that waits
	restEntryBytes      = 256 << 10 // and while less waits

	// maxAppending is how many entries may be between the packer and the end of their append.
	maxAppending = 2
)

// A proposal is a unit on its way.
type proposal struct {
	unit *log.Unit
	done func(Result)
	size int
}

// A flight is an entry that was handed to the group and not yet answered.
type flight struct {
	data  []byte
	props []proposal
	bytes int64
	whole bool // props is all of its array
	semi  bool // every unit may be answered before it is synced
	// announce is set on the empty entry by which a new leader finds out that it has applied everything
	// before it.
	announce bool
	term     uint64
}

// A core decides what is packed when, and which proposal gets which answer. It starts no goroutine and
// reads no clock. Its methods may be called from any goroutine unless they say otherwise; none blocks, and
// callbacks are made without its lock.
//
// Why answers are right: a flight is registered, in the order in which entries reach the group, while the
// core believes to lead. If the group applies it, the apply goroutine finds it by the identity of its bytes.
// If the group refuses or forgets it, then leadership was lost at some point after it was believed, the
// notice of that loss is still to come, and it answers the flight with unknown. A flight that is passed over
// because a later one was applied gets unknown at that moment.
type core struct {
	maxBytes      int64 // waiting and in flight
	maxEntryBytes int

	mu struct {
		sync.Mutex
		waiting      []proposal // from head on
		head         int
		waitingBytes int64
		flights      []*flight
		flightBytes  int64
		appending    int    // entries handed to the group whose append has not returned
		believed     bool   // the group says that we lead
		leading      bool   // and everything before is applied
		term         uint64 // of leading
		refusal      error  // why new units are refused for good; nil while they are not
		last         int64  // append time stamped last
		spares       [][]proposal
		room         chan struct{}
		roomWanted   bool
	}
}

func newCore(maxBytes int64, maxEntryBytes int, lastAppendTime int64) *core {
	c := &core{maxBytes: maxBytes, maxEntryBytes: maxEntryBytes}
	c.mu.last = lastAppendTime
	c.mu.room = make(chan struct{})
	return c
}

// add queues p. pack says that the packer has something to do now.
func (c *core) add(p proposal) (pack bool, err error) {
	if log.EntryHeaderBytes+p.size > c.maxEntryBytes {
		return false, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, p.size, c.maxEntryBytes-log.EntryHeaderBytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.refusal != nil:
		return false, c.mu.refusal
	case !c.mu.leading:
		return false, ErrNotLeader
	}
	if held := c.mu.waitingBytes + c.mu.flightBytes; held > 0 && held+int64(p.size) > c.maxBytes {
		return false, ErrBusy
	}
	c.mu.waiting = append(c.mu.waiting, p)
	c.mu.waitingBytes += int64(p.size)
	return c.mayPack(), nil
}

// mayPack says whether pack would return a flight. The lock is held.
func (c *core) mayPack() bool {
	if !c.mu.leading || c.mu.waitingBytes == 0 {
		return false
	}
	switch c.mu.appending {
	case 0:
		return true
	case maxAppending:
		return false
	}
	// An entry that would be full anyway need not wait for the append before it: packing overlaps the sync.
	// A smaller one waits, or what comes in during the sync would have to wait for two.
	return c.mu.waitingBytes >= c.target()
}

// target is the size of the next entry, which never exceeds what the log takes. The lock is held.
func (c *core) target() int64 {
	if c.mu.waitingBytes >= saturatedEntryBytes {
		return min(saturatedEntryBytes, int64(c.maxEntryBytes))
	}
	return min(restEntryBytes, int64(c.maxEntryBytes))
}

// pack takes the next entry off the queue, encodes it with the append time that the clock now (ns) gives, or
// the one before if that was later, and registers its flight. Nil: nothing to do. One goroutine at a time.
func (c *core) pack(now func() int64) *flight {
	c.mu.Lock()
	if !c.mayPack() {
		c.mu.Unlock()
		return nil
	}
	target := c.target()
	f := &flight{}
	size := int64(log.EntryHeaderBytes)
	end := c.mu.head
	for end < len(c.mu.waiting) {
		n := int64(c.mu.waiting[end].size)
		if end > c.mu.head && size+n > target {
			break
		}
		size += n
		f.bytes += n
		end++
	}
	f.props = c.mu.waiting[c.mu.head:end]
	switch {
	case end == len(c.mu.waiting):
		f.whole = c.mu.head == 0
		c.mu.waiting, c.mu.head = c.spare(), 0
	case end > 1024 && end > len(c.mu.waiting)/2:
		c.mu.waiting, c.mu.head = append(c.spare(), c.mu.waiting[end:]...), 0
	default:
		c.mu.head = end
	}
	c.mu.waitingBytes -= f.bytes
	c.mu.last = max(c.mu.last, now()) // after the last unit came in: none is stamped with a time before it was proposed
	stamp := c.mu.last
	c.mu.flightBytes += f.bytes
	c.mu.appending++
	c.mu.Unlock()

	units := make([]*log.Unit, len(f.props))
	f.semi = true
	for i := range f.props {
		units[i] = f.props[i].unit
		f.semi = f.semi && units[i].SemiSync && !units[i].Step()
	}
	f.data = log.EncodeEntry(make([]byte, 0, size), stamp, units)
	return f
}

// launch registers a packed flight, and says false if leadership was lost since it was packed: then it has
// been answered with a definite no and must not be handed to the group.
func (c *core) launch(f *flight) bool {
	c.mu.Lock()
	if c.mu.believed {
		c.mu.flights = append(c.mu.flights, f)
		c.mu.Unlock()
		return true
	}
	err := c.mu.refusal
	if err == nil {
		err = ErrNotLeader
	}
	c.mu.flightBytes -= f.bytes
	c.release(true)
	c.mu.Unlock()
	answer(f, no(err))
	return false
}

func answer(f *flight, r Result) {
	for i := range f.props {
		f.props[i].done(r)
	}
}

// appended says that n entries were appended. pack says that the packer has something to do now.
func (c *core) appended(n int) (pack bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.appending = max(0, c.mu.appending-n)
	return c.mayPack()
}

// applied answers the flight whose bytes are data, if there is one. It says whether leadership begins with
// this entry. Only the apply goroutine calls it.
func (c *core) applied(data []byte, results []log.Result) (leads bool) {
	at := unsafe.SliceData(data)
	var passed []*flight
	var f *flight
	c.mu.Lock()
	if len(results) > 0 {
		c.mu.last = max(c.mu.last, results[0].AppendTime)
	}
	for i, g := range c.mu.flights {
		if unsafe.SliceData(g.data) != at {
			continue
		}
		f = g
		passed = append(passed, c.mu.flights[:i]...)
		left := copy(c.mu.flights, c.mu.flights[i+1:])
		clear(c.mu.flights[left:])
		c.mu.flights = c.mu.flights[:left]
		break
	}
	if f == nil {
		c.mu.Unlock()
		return false
	}
	for _, g := range passed {
		c.mu.flightBytes -= g.bytes
	}
	c.mu.flightBytes -= f.bytes
	if f.announce && c.mu.believed && c.mu.refusal == nil {
		c.mu.leading, c.mu.term, leads = true, f.term, true
	}
	c.release(leads)
	c.mu.Unlock()
	for _, g := range passed {
		answer(g, unknown(ErrNotLeader))
	}
	for i := range f.props {
		if i < len(results) {
			f.props[i].done(judged(results[i]))
		} else {
			f.props[i].done(unknown(fmt.Errorf("%d results for %d units", len(results), len(f.props))))
		}
	}
	c.recycle(f)
	return leads
}

// spare returns an empty queue, with memory of an answered flight if there is some. The lock is held.
func (c *core) spare() []proposal {
	n := len(c.mu.spares)
	if n == 0 {
		return nil
	}
	s := c.mu.spares[n-1]
	c.mu.spares = c.mu.spares[:n-1]
	return s
}

// recycle keeps the memory of an answered flight's proposals for the queue, unless it is large, or shared
// with a queue that went on behind it.
func (c *core) recycle(f *flight) {
	if !f.whole || cap(f.props) == 0 || cap(f.props) > 4096 {
		return
	}
	clear(f.props)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.spares) < 4 {
		c.mu.spares = append(c.mu.spares, f.props[:0])
	}
}

// release wakes those who wait: always when leadership has changed or nothing is held any more, and for room only
// once a quarter of it is free. Waking everybody for each answered entry would be most of the work under overload.
// The lock is held.
func (c *core) release(always bool) {
	held := c.mu.waitingBytes + c.mu.flightBytes
	if c.mu.roomWanted && (always || held == 0 || held <= c.maxBytes/4*3) {
		close(c.mu.room)
		c.mu.room = make(chan struct{})
		c.mu.roomWanted = false
	}
}

// waitRoom returns a channel that is closed when there is room again, nothing is held, or leadership changes. There
// may be room already: look after the call.
func (c *core) waitRoom() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.roomWanted = true
	return c.mu.room
}

// elected says that the group elected us in term. It returns the flight of an empty entry to hand to the
// group: when it is applied, leadership is announced.
func (c *core) elected(term uint64, now int64) *flight {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.believed = true
	c.mu.last = max(c.mu.last, now)
	f := &flight{announce: true, term: term, data: log.EncodeEntry(nil, c.mu.last, nil)}
	c.mu.appending++
	return f
}

// lost says that leadership is gone: what is in flight becomes unknown, what waits a definite no. A refusal
// that is not nil is for good.
func (c *core) lost(refusal error) {
	c.mu.Lock()
	c.mu.believed, c.mu.leading = false, false
	if c.mu.refusal == nil {
		c.mu.refusal = refusal
	}
	flights, waiting := c.mu.flights, c.mu.waiting[c.mu.head:]
	c.mu.flights, c.mu.waiting, c.mu.head = nil, nil, 0
	c.mu.waitingBytes, c.mu.appending = 0, 0
	for _, f := range flights {
		c.mu.flightBytes -= f.bytes
	}
	reason := c.mu.refusal
	if reason == nil {
		reason = ErrNotLeader
	}
	c.release(true)
	c.mu.Unlock()
	for _, f := range flights {
		answer(f, unknown(reason))
	}
	for i := range waiting {
		waiting[i].done(no(reason))
	}
}

// refuse makes add return err from now on; what waits and flies goes on.
func (c *core) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.refusal == nil {
		c.mu.refusal = err
	}
}

func (c *core) leader() (term uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.term, c.mu.leading
}

// held returns the bytes that wait and those in flight.
func (c *core) held() (waiting, inFlight int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.waitingBytes, c.mu.flightBytes
}

// idle reports whether nothing waits and nothing flies.
func (c *core) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.waitingBytes == 0 && len(c.mu.flights) == 0 && c.mu.flightBytes == 0
}
