package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// maxInflight is how many requests may be under way to a broker: an idempotent producer's last five batches are
	// what a server knows again.
	maxInflight = 5
	// partialInflight is how many may be under way for batches that are not full to be sent.
	partialInflight = 1
	// requestBytes is what a request gathers of several partitions, unless one batch is more.
	requestBytes = 2 << 20
	// inlineBytes is what a caller of Produce writes by itself to a connection that is idle: no other goroutine has
	// to wake up for it.
	inlineBytes = 32 << 10
	// maxResponse bounds an answer.
	maxResponse = 16 << 20
	// produceVersion is the version of the Produce requests: the first flexible one, and the format of record
	// batches since.
	produceVersion = 9
	producerID     = "headrace" // the client id
)

// A link is the connection to one broker. Its goroutine dials and writes; another reads while it is connected.
type link struct {
	p    *Producer
	node int32
	kick chan struct{}

	// Under the delivery lock.
	address   string
	wire      *wire      // nil: not connected
	cause     error      // why the last connection was lost
	flying    []*request // oldest first
	full      []*partition
	open      []*partition
	writing   bool
	closed    bool
	requested int32 // correlation id of the last request
	pauses    int   // dials without success

	again []*partition // scratch of next

	// Of the one that writes.
	scratch []byte
	cuts    []int
	bufs    net.Buffers
}

// A wire is one TCP connection of a link.
type wire struct {
	nc      net.Conn
	in      *bufio.Reader
	written chan struct{} // a write has returned
}

// A request is one Produce request under way.
type request struct {
	correlation int32
	batches     []*batch
	sent        time.Time
	written     bool // the write has returned
}

// linkTo finds or makes the link to a broker. The delivery lock is held.
func (p *Producer) linkTo(node int32, address string) *link {
	l := p.mu.links[node]
	if l == nil {
		l = &link{p: p, node: node, kick: make(chan struct{}, 1)}
		p.mu.links[node] = l
		p.wg.Go(l.run)
	}
	l.address = address
	l.wake()
	return l
}

func (l *link) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// close cuts the connection for good. The delivery lock is held; the producer's context has ended.
func (l *link) close() {
	l.closed = true
	if l.wire != nil {
		_ = l.wire.nc.Close()
	}
}

// run keeps the link connected and writes what Produce does not write by itself.
func (l *link) run() {
	for {
		select {
		case <-l.kick:
		case <-l.p.ctx.Done():
			return
		}
		if l.connect() {
			l.pump(false)
		}
	}
}

// connect dials if there is no connection. After a failure it waits, and says false.
func (l *link) connect() bool {
	p := l.p
	p.mu.Lock()
	connected, address, pauses := l.wire != nil, l.address, l.pauses
	writing := len(l.flying) > 0 // on the lost connection: takeBack will wake us
	p.mu.Unlock()
	if connected || writing {
		return connected
	}
	w, err := dial(p.ctx, address)
	p.mu.Lock()
	if err == nil && l.closed {
		p.mu.Unlock()
		_ = w.nc.Close()
		return false
	}
	if err == nil {
		l.wire, l.pauses = w, 0
		p.wg.Go(func() { l.read(w) })
		p.mu.Unlock()
		return true
	}
	l.pauses++
	p.mu.wantMeta = true // the leader may be another one
	p.mu.Unlock()
	p.wake()
	if p.ctx.Err() == nil && pauses == 0 {
		p.o.Logger.Warn("broker not reached", "broker", l.node, "address", address, "err", err)
	}
	select {
	case <-time.After(pause(pauses)):
	case <-p.ctx.Done():
		return false
	}
	l.wake()
	return false
}

// dial connects and makes sure that the server takes our requests.
func dial(ctx context.Context, address string) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	w := &wire{nc: nc, in: bufio.NewReaderSize(nc, 16<<10), written: make(chan struct{}, 1)}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	err = w.hello()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return w, nil
}

// hello asks which versions are served.
func (w *wire) hello() error {
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, producerID, "1"
	if _, err := w.nc.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(producerID)).AppendRequest(nil, req, 0)); err != nil {
		return err
	}
	_, body, err := w.frame(nil)
	if err != nil {
		return err
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = 3
	if len(body) >= 2 && int16(binary.BigEndian.Uint16(body)) == kerr.UnsupportedVersion.Code {
		resp.Version = 0
	}
	if err := resp.ReadFrom(body); err != nil {
		return fmt.Errorf("client: the answer is not a Kafka server's: %w", err)
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == 0 && k.MinVersion <= produceVersion && k.MaxVersion >= produceVersion {
			return nil
		}
	}
	return fmt.Errorf("client: the server does not take Produce requests of version %d", produceVersion)
}

// frame reads one response: correlation id and the rest, in buf if it fits.
func (w *wire) frame(buf []byte) (correlation int32, body []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(w.in, head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(int32(binary.BigEndian.Uint32(head[:]))) - 4
	if n < 0 || n > maxResponse {
		return 0, nil, fmt.Errorf("client: an answer of %d bytes", n+4)
	}
	if int64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	_, err = io.ReadFull(w.in, buf[:n])
	return int32(binary.BigEndian.Uint32(head[4:])), buf[:n], err
}

// readyFull says that a partition has batches that left the open one.
func (p *Producer) readyFull(pt *partition) {
	p.mu.Lock()
	l := pt.link
	p.list(pt, true)
	p.mu.Unlock()
	if l != nil {
		l.wake()
	}
}

// readyOpen says that a partition has opened a batch. If its connection is idle, the caller writes it; if it is not, an
// answer or the end of the present write will see it.
func (p *Producer) readyOpen(pt *partition) {
	p.mu.Lock()
	p.list(pt, false)
	l := pt.link
	lost := l != nil && l.wire == nil
	idle := l != nil && !lost && !l.writing && len(l.flying) < partialInflight
	p.mu.Unlock()
	switch {
	case lost:
		l.wake()
	case idle:
		l.pump(true)
	}
	if p.parked.Load() {
		p.wake()
	}
}

// list puts a partition on its link's lists, or among those in trouble if it cannot send now. The delivery lock is
// held.
func (p *Producer) list(pt *partition, full bool) {
	l := pt.link
	switch {
	case l == nil:
		p.trouble(pt)
	case full && !pt.readyFull:
		pt.readyFull = true
		l.full = append(l.full, pt)
	case !full && !pt.readyOpen:
		pt.readyOpen = true
		l.open = append(l.open, pt)
	}
}

// trouble has the keeper look after a partition. The delivery lock is held.
func (p *Producer) trouble(pt *partition) {
	if !pt.troubled {
		pt.troubled = true
		p.mu.troubled = append(p.mu.troubled, pt)
		p.wake()
	}
}

// pump writes what may be written. One goroutine at a time does; what others add meanwhile it finds. With inline it
// writes one small request and leaves the rest to the link's goroutine.
func (l *link) pump(inline bool) {
	p := l.p
	p.mu.Lock()
	if l.writing || l.closed {
		p.mu.Unlock()
		return
	}
	l.writing = true
	p.wg.Add(1) // Close waits for a caller that writes
	defer p.wg.Done()
	size, before := requestBytes, len(p.mu.finished)
	if inline {
		size = inlineBytes
	}
	for l.wire != nil {
		w := l.wire
		req := l.next(size)
		if req == nil {
			break
		}
		p.mu.Unlock()
		err := l.write(w, req)
		p.mu.Lock()
		req.written = true
		w.wrote()
		if err != nil {
			l.broken(w, err)
		}
		if inline {
			break
		}
	}
	more := inline && (len(l.full) > 0 || len(l.open) > 0 && len(l.flying) < partialInflight)
	l.writing = false
	if l.wire == nil {
		l.takeBack()
	}
	ended := len(p.mu.finished) > before // given up here: a caller of Produce must not call back
	p.mu.Unlock()
	if more {
		l.wake()
	}
	if ended {
		p.wake()
	}
}

// next gathers a request of about size bytes, nil: nothing may be sent. It takes one batch of a partition, and the
// partitions in turn. The delivery lock is held.
func (l *link) next(size int) *request {
	if len(l.flying) >= maxInflight {
		return nil
	}
	req := &request{sent: time.Now()}
	partial := len(l.flying) < partialInflight
	left := l.gather(req, l.full, true, partial, size)
	l.full = append(left, l.again...)
	if partial {
		left = l.gather(req, l.open, false, true, size)
		l.open = append(left, l.again...)
	}
	clear(l.again[:cap(l.again)])
	if len(req.batches) == 0 {
		return nil
	}
	l.requested++
	req.correlation = l.requested
	l.flying = append(l.flying, req)
	l.p.mu.stats.Requests++
	l.p.mu.stats.Batches += int64(len(req.batches))
	return req
}

// gather takes batches of the partitions of a list until there are size bytes. It returns the partitions that it did
// not come to, and puts those that belong at the end of the same list again into l.again.
func (l *link) gather(req *request, list []*partition, full, partial bool, size int) (left []*partition) {
	l.again = l.again[:0]
	n, got := 0, 0
	for _, b := range req.batches {
		got += len(b.buf)
	}
	for ; n < len(list) && got < size; n++ {
		pt := list[n]
		if full {
			pt.readyFull = false
		} else {
			pt.readyOpen = false
		}
		switch {
		case pt.link != l:
			l.p.list(pt, true)
			continue
		case pt.blocked(req.sent):
			l.p.trouble(pt)
			continue
		}
		b, moreFull, moreOpen := pt.next(partial)
		if b != nil {
			req.batches = append(req.batches, b)
			got += len(b.buf)
		}
		switch {
		case !pt.ident.ok:
			l.p.trouble(pt)
		case moreFull && !pt.readyFull:
			pt.readyFull = true
			if full {
				l.again = append(l.again, pt)
			} else {
				l.full = append(l.full, pt)
			}
		case moreOpen && !pt.readyOpen:
			pt.readyOpen = true
			if full {
				l.open = append(l.open, pt)
			} else {
				l.again = append(l.again, pt)
			}
		}
	}
	left = append(list[:0], list[n:]...)
	clear(list[len(left):])
	return left
}

// write sends a request: its own bytes from scratch, the batches from where they are.
func (l *link) write(w *wire, req *request) error {
	slices.SortStableFunc(req.batches, func(a, b *batch) int { return strings.Compare(a.part.t.name, b.part.t.name) })
	out, cuts := append(l.scratch[:0], 0, 0, 0, 0, 0, 0, 0, produceVersion), l.cuts[:0]
	out = binary.BigEndian.AppendUint32(out, uint32(req.correlation))
	out = append(out, 0, byte(len(producerID)))
	out = append(out, producerID...)
	out = append(out, 0, 0, 0xff, 0xff) // no tags; no transaction, acks=all
	out = binary.BigEndian.AppendUint32(out, serverWait)
	topics := 0
	for i, b := range req.batches {
		if i == 0 || b.part.t != req.batches[i-1].part.t {
			topics++
		}
	}
	out = binary.AppendUvarint(out, uint64(topics)+1)
	size := 0
	for i, b := range req.batches {
		if i == 0 || b.part.t != req.batches[i-1].part.t {
			if i > 0 {
				out = append(out, 0)
			}
			n := 1
			for n < len(req.batches)-i && req.batches[i+n].part.t == b.part.t {
				n++
			}
			out = binary.AppendUvarint(out, uint64(len(b.part.t.name))+1)
			out = append(out, b.part.t.name...)
			out = binary.AppendUvarint(out, uint64(n)+1)
		}
		out = binary.BigEndian.AppendUint32(out, uint32(b.part.index))
		out = binary.AppendUvarint(out, uint64(len(b.buf))+1)
		cuts = append(cuts, len(out))
		size += len(b.buf)
		out = append(out, 0)
	}
	out = append(out, 0, 0)
	l.scratch, l.cuts = out, cuts
	binary.BigEndian.PutUint32(out, uint32(len(out)+size-4))
	bufs, at := l.bufs[:0], 0
	for i, b := range req.batches {
		bufs = append(bufs, out[at:cuts[i]], b.buf)
		at = cuts[i]
	}
	bufs = append(bufs, out[at:])
	l.bufs = bufs
	if err := w.nc.SetWriteDeadline(time.Now().Add(l.p.o.RequestTimeout)); err != nil {
		return err
	}
	_, err := bufs.WriteTo(w.nc)
	clear(l.bufs)
	return err
}

// serverWait is what a request tells the server that it may take, ms.
const serverWait = 30_000

// wrote wakes the reader if it waits for the end of a write.
func (w *wire) wrote() {
	select {
	case w.written <- struct{}{}:
	default:
	}
}

// broken says that a connection is of no use any more. The delivery lock is held.
func (l *link) broken(w *wire, err error) {
	if l.wire != w {
		return
	}
	l.wire, l.cause = nil, err
	_ = w.nc.Close()
	w.wrote()
	if !l.closed {
		l.p.o.Logger.Warn("connection lost", "broker", l.node, "address", l.address, "err", err)
	}
	if !l.writing { // else the writer does it, which still reads the batches
		l.takeBack()
	}
}

// takeBack puts what was under way on a lost connection back to the queues. The delivery lock is held.
func (l *link) takeBack() {
	for _, req := range l.flying {
		for _, b := range req.batches {
			b.part.lost(b, l.cause)
			l.p.list(b.part, true)
		}
	}
	l.flying = nil
	l.wake()
}

// read takes the answers of a connection until it ends.
func (l *link) read(w *wire) {
	p := l.p
	var buf []byte
	for {
		correlation, body, err := w.frame(buf)
		if err == nil {
			buf = body[:0]
			err = l.respond(w, correlation, body)
		}
		if err != nil {
			p.mu.Lock()
			l.broken(w, err)
			p.mu.Unlock()
			p.deliver()
			return
		}
		l.pump(true)
		p.deliver()
	}
}

// respond takes one answer apart.
func (l *link) respond(w *wire, correlation int32, body []byte) error {
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = produceVersion
	if len(body) == 0 || body[0] != 0 {
		return errors.New("client: an answer with a header that is not Kafka's")
	}
	if err := resp.ReadFrom(body[1:]); err != nil {
		return fmt.Errorf("client: read an answer: %w", err)
	}
	p := l.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for l.wire == w && len(l.flying) > 0 && !l.flying[0].written {
		p.mu.Unlock() // the server is faster than the return of the write, whose bytes are still being read
		<-w.written
		p.mu.Lock()
	}
	if l.wire != w {
		return net.ErrClosed
	}
	if len(l.flying) == 0 || l.flying[0].correlation != correlation {
		return fmt.Errorf("client: an answer to request %d, which was not the next", correlation)
	}
	req := l.flying[0]
	l.flying[0] = nil
	l.flying = l.flying[1:]
	now := time.Now()
	k := 0
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			a := &t.Partitions[j]
			b := req.take(t.Topic, a.Partition, k)
			if b == nil {
				continue
			}
			k++
			pt := b.part
			pt.answered(b, now, a.BaseOffset, a.ErrorCode, a.ErrorMessage)
			if pt.settling {
				p.list(pt, true)
			}
		}
	}
	for _, b := range req.batches { // without an answer
		if b != nil {
			b.part.lost(b, errors.New("client: the server's answer leaves out a partition"))
			p.list(b.part, true)
		}
	}
	return nil
}

// take removes the batch of a partition from the request; k is where to look first.
func (r *request) take(topic string, index int32, k int) *batch {
	for i := range r.batches {
		at := (k + i) % len(r.batches)
		if b := r.batches[at]; b != nil && b.part.index == index && b.part.t.name == topic {
			r.batches[at] = nil
			return b
		}
	}
	return nil
}
