package kafka

import (
	"net"
	"sync"
	"time"
)

// An outbox holds a connection's responses in request order and writes those that are ready.
//
// The reader reserves a place for each request in order; any goroutine may complete a place, once. A
// place that is completed while it is the oldest starts the writer, which drains every ready place and
// ends, so an idle connection has no writing goroutine. The queue is bounded: reserve blocks the
// reader, and with it the client, when too many responses are outstanding.
type outbox struct {
	nc      net.Conn
	timeout time.Duration // of one write
	limit   int           // places
	wg      *sync.WaitGroup

	mu struct {
		sync.Mutex
		queue   []*place // oldest first
		bytes   int      // of responses that are ready and not written
		writing bool
		err     error // the connection is gone
	}
	room  sync.Cond // signalled when the queue shrinks or err is set
	spare net.Buffers
}

// A place is one request's response to come.
type place struct {
	box   *outbox
	ready bool
	bufs  [][]byte // nothing to send when empty (acks=0)
	after func()   // called once the bytes are written or dropped; may be nil
}

func newOutbox(nc net.Conn, limit int, timeout time.Duration, wg *sync.WaitGroup) *outbox {
	o := &outbox{nc: nc, limit: limit, timeout: timeout, wg: wg}
	o.room.L = &o.mu
	return o
}

// maxOutboxBytes is how many bytes of responses may wait to be written before reading stops. A client that asks and
// does not take holds that much, and one response more.
const maxOutboxBytes = 16 << 20

// reserve takes the next place. It blocks while limit places or maxOutboxBytes are outstanding and returns the
// write error when the connection is gone.
func (o *outbox) reserve() (*place, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (len(o.mu.queue) >= o.limit || o.mu.bytes >= maxOutboxBytes) && o.mu.err == nil {
		o.room.Wait()
	}
	if o.mu.err != nil {
		return nil, o.mu.err
	}
	p := &place{box: o}
	o.mu.queue = append(o.mu.queue, p)
	return p, nil
}

// complete fills the place from a goroutine that must not block: writing happens elsewhere.
func (p *place) complete(bufs ...[]byte) {
	if p.fill(bufs, nil) {
		go p.box.drain()
	}
}

// send fills the place and, when it is the oldest, writes in the caller.
func (p *place) send(after func(), bufs ...[]byte) {
	if p.fill(bufs, after) {
		p.box.drain()
	}
}

// fill reports whether the caller has to run drain.
func (p *place) fill(bufs [][]byte, after func()) bool {
	o := p.box
	o.mu.Lock()
	defer o.mu.Unlock()
	p.bufs, p.after, p.ready = bufs, after, true
	for _, b := range bufs {
		o.mu.bytes += len(b)
	}
	if o.mu.writing || o.mu.queue[0] != p {
		return false
	}
	o.mu.writing = true
	o.wg.Add(1)
	return true
}

// drain writes ready places from the front until none is left. One goroutine at a time runs it.
func (o *outbox) drain() {
	defer o.wg.Done()
	var after []func()
	wrote := 0
	for {
		bufs := o.spare[:0]
		after = after[:0]
		o.mu.Lock()
		o.mu.bytes -= wrote
		wrote = 0
		n := 0
		for n < len(o.mu.queue) && o.mu.queue[n].ready {
			p := o.mu.queue[n]
			bufs = append(bufs, p.bufs...)
			for _, b := range p.bufs {
				wrote += len(b)
			}
			if p.after != nil {
				after = append(after, p.after)
			}
			o.mu.queue[n] = nil
			n++
		}
		if n == 0 {
			o.mu.writing = false
			o.room.Broadcast()
			o.mu.Unlock()
			return
		}
		if n == len(o.mu.queue) {
			o.mu.queue = o.mu.queue[:0]
		} else {
			o.mu.queue = o.mu.queue[n:]
		}
		err := o.mu.err
		o.room.Broadcast()
		o.mu.Unlock()

		if err == nil && len(bufs) > 0 {
			o.spare = bufs
			err = o.nc.SetWriteDeadline(time.Now().Add(o.timeout))
			if err == nil {
				_, err = bufs.WriteTo(o.nc)
			}
			clear(o.spare[:cap(o.spare)])
			if err != nil {
				o.fail(err)
			}
		}
		for _, f := range after {
			f()
		}
	}
}

// fail marks the connection as gone: reserve returns err, and what completes later is dropped.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	if o.mu.err == nil {
		o.mu.err = err
	}
	o.room.Broadcast()
	o.mu.Unlock()
	_ = o.nc.Close() // wakes the reader
}

// outstanding is how many responses are not written yet.
func (o *outbox) outstanding() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.queue)
}
