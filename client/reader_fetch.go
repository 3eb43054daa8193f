package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

// Versions of the requests: old enough for any server since Kafka 2.3, and without tagged fields.
const (
	readerFetchVersion    = 11
	readerOffsetsVersion  = 4
	readerMetadataVersion = 7
)

// Bounds of an answer: what is asked for, and what is accepted, since one batch may be larger than what was asked for.
const (
	answerBytes    = 8 << 20
	maxAnswerBytes = 64 << 20
)

// A readPart is one partition being read.
type readPart struct {
	number int32
	end    int64 // offset to stop at
	found  bool  // end was found in the log, not named by the caller: there is nothing to wait for in front of it

	// Of the lane or manager that has the partition.
	failing  time.Time // since when no answer has come; zero: one has
	refusing time.Time // since when answers are refusals; zero: the last was none
	rotten   int       // of these, in a row, because the server finds the records corrupt

	mu   sync.Mutex
	next int64  // offset to ask for
	life uint64 // changes when next goes back: answers of an older life do not count
	bad  int    // corrupt answers in a row
	idle bool   // asked for up to end: no connection has it
}

func (p *readPart) good() {
	p.mu.Lock()
	p.bad = 0
	p.mu.Unlock()
}

// An answer is one Fetch response. Its parts alias buf.
type answer struct {
	buf   []byte
	parts []answerPart
}

type answerPart struct {
	part          *readPart
	life          uint64
	at            int64 // first offset that is wanted of data
	data          []byte
	highWatermark int64
	final         bool  // nothing comes behind data
	wrong         error // data must not be looked at
}

// A readerConn is one connection that carries one request at a time.
type readerConn struct {
	nc          net.Conn
	correlation int32
	out         []byte
	in          [4]byte
}

func dialReader(ctx context.Context, address string) (*readerConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		if op := (*net.OpError)(nil); errors.As(err, &op) {
			err = op.Err
		}
		return nil, &ConnectError{address, err}
	}
	return &readerConn{nc: nc}, nil
}

// send writes a request.
func (c *readerConn) send(req kmsg.Request) error {
	c.correlation++
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("headrace"))
	c.out = f.AppendRequest(c.out[:0], req, c.correlation)
	if err := c.nc.SetWriteDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, err := c.nc.Write(c.out)
	return err
}

// receive reads the answer to the last request into buf, which it grows, and returns the body.
func (c *readerConn) receive(buf []byte, wait time.Duration) (body, grown []byte, err error) {
	if err := c.nc.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, buf, err
	}
	if _, err := io.ReadFull(c.nc, c.in[:]); err != nil {
		return nil, buf, err
	}
	n := int(int32(binary.BigEndian.Uint32(c.in[:])))
	if n < 4 || n > maxAnswerBytes {
		return nil, buf, fmt.Errorf("an answer of %d bytes", n)
	}
	buf = buf[:0]
	for len(buf) < n { // memory grows with what arrives
		if len(buf) == cap(buf) {
			fresh := make([]byte, len(buf), min(n, max(2*cap(buf), 1<<20+4096)))
			copy(fresh, buf)
			buf = fresh
		}
		from := len(buf)
		buf = buf[:min(n, cap(buf))]
		if _, err := io.ReadFull(c.nc, buf[from:]); err != nil {
			return nil, buf[:0], err
		}
	}
	if got := int32(binary.BigEndian.Uint32(buf)); got != c.correlation {
		return nil, buf, fmt.Errorf("an answer to request %d instead of %d", got, c.correlation)
	}
	return buf[4:], buf, nil
}

// ask sends a request that is not a Fetch and decodes the answer.
func (c *readerConn) ask(req kmsg.Request) (kmsg.Response, error) {
	if err := c.send(req); err != nil {
		return nil, err
	}
	body, _, err := c.receive(nil, 30*time.Second)
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	return resp, nil
}

// leaders asks the seeds, one after the other, who leads the topic's partitions.
func (r *Reader) leaders(ctx context.Context) (map[int32]string, error) {
	var last error
	for _, seed := range r.seeds {
		found, err := r.leadersFrom(ctx, seed)
		if err == nil {
			return found, nil
		}
		last = err
	}
	return nil, last
}

func (r *Reader) leadersFrom(ctx context.Context, seed string) (map[int32]string, error) {
	c, err := dialReader(ctx, seed)
	if err != nil {
		return nil, err
	}
	defer c.nc.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.nc.Close() })
	defer stop()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = readerMetadataVersion
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(r.o.Topic)
	req.Topics = append(req.Topics, topic)
	resp, err := c.ask(req)
	if err != nil {
		return nil, &ConnectError{seed, err}
	}
	m, ok := resp.(*kmsg.MetadataResponse)
	if !ok || len(m.Topics) != 1 || m.Topics[0].Topic == nil || *m.Topics[0].Topic != r.o.Topic {
		return nil, &ConnectError{seed, errors.New("the metadata is not that of the topic")}
	}
	t := &m.Topics[0]
	if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
		return nil, r.refused(err, -1, -1)
	}
	brokers := map[int32]string{}
	for _, b := range m.Brokers {
		brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	out := map[int32]string{}
	for _, p := range t.Partitions {
		out[p.Partition] = brokers[p.Leader] // "": nobody leads it now
	}
	return out, nil
}

// refused is the error of a code that the server gave.
func (r *Reader) refused(err error, partition int32, offset int64) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		where := r.o.Topic
		if partition >= 0 {
			where = fmt.Sprintf("%s[%d]", where, partition)
		}
		return fmt.Errorf("%w: %s", ErrUnknownTopic, where)
	}
	return &ReadError{Topic: r.o.Topic, Partition: partition, Offset: offset, Err: err}
}

// resolve finds the partitions with their first and last offsets.
func (r *Reader) resolve(ctx context.Context) (parts []*readPart, err error) {
	leaders, err := r.leaders(ctx)
	if err != nil {
		return nil, err
	}
	numbers := r.o.Partitions
	if numbers == nil {
		for n := range leaders {
			numbers = append(numbers, n)
		}
	}
	groups := map[string][]*readPart{}
	seen := make(map[int32]bool, len(numbers))
	for _, n := range numbers {
		address, ok := leaders[n]
		if !ok {
			return nil, fmt.Errorf("%w: %s[%d]", ErrUnknownTopic, r.o.Topic, n)
		}
		if seen[n] {
			return nil, fmt.Errorf("client: ReaderOptions.Partitions has partition %d twice", n)
		}
		seen[n] = true
		p := &readPart{number: n, end: math.MaxInt64}
		parts = append(parts, p)
		groups[address] = append(groups[address], p)
	}
	for address, group := range groups {
		if err := r.bounds(ctx, address, group); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// bounds asks a broker where partitions begin and end.
func (r *Reader) bounds(ctx context.Context, address string, parts []*readPart) error {
	c, err := dialReader(ctx, address)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.nc.Close() })
	defer stop()
	start := r.o.Start
	if start.kind == noPosition {
		start = Earliest
	}
	from, err := r.list(c, address, parts, start)
	if err != nil {
		return err
	}
	var to map[int32]int64
	if r.o.End.kind != noPosition {
		if to, err = r.list(c, address, parts, r.o.End); err != nil {
			return err
		}
	}
	for _, p := range parts {
		p.next = from[p.number]
		if o, ok := r.o.Offsets[p.number]; ok {
			p.next = o
		}
		if to != nil {
			p.end, p.found = to[p.number], r.o.End.kind != atOffset
		}
	}
	return nil
}

// list resolves a position in partitions that one broker leads.
func (r *Reader) list(c *readerConn, address string, parts []*readPart, at Position) (map[int32]int64, error) {
	out := make(map[int32]int64, len(parts))
	stamp := at.value
	switch at.kind {
	case atOffset:
		for _, p := range parts {
			out[p.number] = at.value
		}
		return out, nil
	case atEarliest:
		stamp = -2
	case atLatest:
		stamp = -1
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = readerOffsetsVersion, -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = r.o.Topic
	for _, p := range parts {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = p.number, stamp, -1
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	resp, err := c.ask(req)
	if err != nil {
		return nil, &ConnectError{address, err}
	}
	none := false // a time after all records
	for _, t := range resp.(*kmsg.ListOffsetsResponse).Topics {
		if t.Topic != r.o.Topic {
			return nil, &ConnectError{address, fmt.Errorf("offsets of topic %q", t.Topic)}
		}
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, r.refused(err, p.Partition, -1)
			}
			if p.Offset < 0 && at.kind != atTime {
				return nil, &ConnectError{address, fmt.Errorf("partition %d has offset %d", p.Partition, p.Offset)}
			}
			out[p.Partition] = p.Offset
			none = none || p.Offset < 0
		}
	}
	for _, p := range parts {
		if _, ok := out[p.number]; !ok {
			return nil, &ConnectError{address, fmt.Errorf("the offsets of partition %d are missing", p.number)}
		}
	}
	if none && at.kind == atTime {
		ends, err := r.list(c, address, parts, Latest)
		if err != nil {
			return nil, err
		}
		for n := range out {
			if out[n] < 0 {
				out[n] = ends[n]
			}
		}
	}
	return out, nil
}

// manage gives partitions that have no connection one to their leader, until the reader is closed or fails.
func (r *Reader) manage() {
	const longest = time.Second
	var pause time.Duration      // before a broker is asked again
	var since, reached time.Time // first failure in a row; last success
	for {
		var parts []*readPart
		select {
		case parts = <-r.moved:
		case <-r.failed:
			return
		case <-r.ctx.Done():
			return
		}
		if time.Since(reached) > 5*longest {
			pause = 0
		}
		for retry := true; retry; {
			if pause > 0 {
				select {
				case <-time.After(pause):
				case <-r.failed:
					return
				case <-r.ctx.Done():
					return
				}
			}
			leaders, err := r.leaders(r.ctx)
			switch {
			case r.ctx.Err() != nil:
				return
			case errors.Is(err, ErrUnknownTopic):
				r.fail(err)
				return
			case err == nil:
				r.connect(parts, leaders)
				since, reached, retry = time.Time{}, time.Now(), false
				pause = min(max(2*pause, 20*time.Millisecond), longest)
			default:
				if since.IsZero() {
					since = time.Now()
				}
				if time.Since(since) > r.o.RetryFor {
					r.fail(err)
					return
				}
				pause = min(max(2*pause, 20*time.Millisecond), longest)
			}
		}
	}
}

// connect starts the lanes of partitions, spread over the leaders' connections.
func (r *Reader) connect(parts []*readPart, leaders map[int32]string) {
	groups := map[string][]*readPart{}
	for _, p := range parts {
		groups[leaders[p.number]] = append(groups[leaders[p.number]], p)
	}
	for address, group := range groups {
		if address == "" { // until somebody leads them
			if err := r.failing(group, strings.Join(r.seeds, ","), fmt.Errorf("nobody leads partition %d", group[0].number)); err != nil {
				r.fail(err)
				return
			}
			r.moved <- group
			continue
		}
		n := min(r.o.Connections, len(group))
		for i := range n {
			l := &lane{r: r, address: address}
			for k := i; k < len(group); k += n {
				l.parts = append(l.parts, group[k])
			}
			r.wg.Go(l.run)
		}
	}
}

// A lane reads some partitions over one connection, one request at a time: the next one leaves as soon as the answer is
// here and before it is handed on, so that server and reader work at the same time.
type lane struct {
	r       *Reader
	address string
	parts   []*readPart
	asked   []askedPart // in the order of the request
	got     []fetched   // of the present answer
	sent    time.Time
	turn    int
	reqs    kmsg.FetchRequest
}

type askedPart struct {
	part     *readPart
	next     int64
	life     uint64
	answered bool
	done     bool // read to its end: the lane has no more to do with it
}

// A fetched is the answer for one partition.
type fetched struct {
	asked       *askedPart
	code        int16
	high, start int64
	data        []byte
}

// run reads until the partitions are read to their ends, the reader ends, or the connection fails, when the partitions
// go back to the manager.
func (l *lane) run() {
	err := l.read()
	if len(l.parts) > 0 && l.r.ctx.Err() == nil {
		if err != nil {
			l.r.o.Logger.Warn("reader reconnects", "topic", l.r.o.Topic, "broker", l.address, "err", err)
			if err := l.r.failing(l.parts, l.address, err); err != nil {
				l.r.fail(err)
			}
		}
		l.r.moved <- l.parts
	}
}

// failing notes that partitions have had no answer, and why. The error is final: they have had none for too long.
func (r *Reader) failing(parts []*readPart, address string, why error) error {
	now := time.Now()
	for _, p := range parts {
		if p.failing.IsZero() {
			p.failing = now
		}
		if now.Sub(p.failing) > r.o.RetryFor {
			if c := (*ConnectError)(nil); errors.As(why, &c) {
				return c
			}
			return &ConnectError{address, why}
		}
	}
	return nil
}

// refused notes that a partition was refused with a code that may pass. The error is final: it has not passed for too
// long, or the server has read the records again and finds them corrupt still.
func (l *lane) refused(p *readPart, at int64, code error) error {
	now := time.Now()
	if p.refusing.IsZero() {
		p.refusing = now
	}
	if p.rotten++; !errors.Is(code, kerr.CorruptMessage) {
		p.rotten = 0
	}
	l.r.o.Logger.Warn("reader is refused", "topic", l.r.o.Topic, "partition", p.number, "offset", at, "broker", l.address, "since", now.Sub(p.refusing), "err", code)
	if p.rotten > maxCorrupt || now.Sub(p.refusing) > l.r.o.RetryFor {
		return l.r.refused(code, p.number, at)
	}
	return nil
}

func (l *lane) read() error {
	r := l.r
	c, err := dialReader(r.ctx, l.address)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	stop := context.AfterFunc(r.ctx, func() { _ = c.nc.Close() })
	defer stop()
	if err := l.request(c); err != nil {
		return err
	}
	for {
		var buf []byte
		select {
		case buf = <-r.bufs:
		default:
		}
		body, buf, err := c.receive(buf, r.o.MaxWait+30*time.Second)
		if err != nil {
			return err
		}
		if r.o.Fetched != nil {
			r.o.Fetched(time.Since(l.sent), len(buf))
		}
		a := &answer{buf: buf}
		move, err := l.parse(a, body)
		if err != nil {
			return err
		}
		if len(l.parts) > 0 && !move {
			if err := l.request(c); err != nil {
				move = true // what is here is good
			}
		}
		if len(a.parts) == 0 {
			r.recycle(a)
		} else {
			select {
			case r.answers <- a: // also beside a partition that has failed
			default:
				select {
				case r.answers <- a:
				case <-r.failed:
					return nil
				case <-r.ctx.Done():
					return nil
				}
			}
		}
		if move || len(l.parts) == 0 {
			return nil
		}
	}
}

// request asks for what comes next of every partition of the lane.
func (l *lane) request(c *readerConn) error {
	l.compose()
	return c.send(&l.reqs)
}

// compose makes the next request, another partition first each time.
func (l *lane) compose() {
	r := l.r
	req := &l.reqs
	if len(req.Topics) == 0 {
		*req = kmsg.NewFetchRequest()
		req.Version, req.ReplicaID, req.SessionEpoch = readerFetchVersion, -1, -1
		req.MaxWaitMillis, req.MinBytes, req.MaxBytes = int32(min(r.o.MaxWait.Milliseconds(), math.MaxInt32)), 1, answerBytes
		t := kmsg.NewFetchRequestTopic()
		t.Topic = r.o.Topic
		req.Topics = append(req.Topics, t)
	}
	t := &req.Topics[0]
	t.Partitions, l.asked = t.Partitions[:0], l.asked[:0]
	for i := range l.parts {
		p := l.parts[(i+l.turn)%len(l.parts)]
		p.mu.Lock()
		asked := askedPart{part: p, next: p.next, life: p.life}
		p.mu.Unlock()
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch = p.number, asked.next, int32(min(r.o.FetchBytes, answerBytes)), -1
		t.Partitions = append(t.Partitions, rp)
		l.asked = append(l.asked, asked)
	}
	l.turn++
	l.sent = time.Now()
}

// parse takes an answer apart. move says that the partitions need another connection; an error that the answer makes no
// sense, and then nothing of it is taken: a position must not move over records that nobody gets.
func (l *lane) parse(a *answer, body []byte) (move bool, err error) {
	if err := l.decode(body); err != nil {
		return false, err
	}
	for i := range l.got { // before a partition can be another lane's
		l.got[i].asked.part.failing = time.Time{}
	}
	for i := range l.got {
		moved, err := l.take(a, &l.got[i])
		if err != nil {
			l.r.fail(err)
			return true, nil
		}
		move = move || moved
	}
	clear(l.got)
	l.leave()
	return move, nil
}

// decode splits an answer into got, whose data alias body. Each partition must have been asked for, and come once.
func (l *lane) decode(body []byte) error {
	l.got = l.got[:0]
	for i := range l.asked {
		l.asked[i].answered = false
	}
	b := kbin.Reader{Src: body}
	b.Int32() // throttle
	code := b.Int16()
	b.Int32() // session
	if err := kerr.ErrorForCode(code); b.Ok() && err != nil {
		return err
	}
	for topics := b.ArrayLen(); topics > 0 && b.Ok(); topics-- {
		name := b.UnsafeString()
		if b.Ok() && name != l.r.o.Topic {
			return fmt.Errorf("an answer about topic %q", name)
		}
		for parts := b.ArrayLen(); parts > 0 && b.Ok(); parts-- {
			var f fetched
			number := b.Int32()
			f.code, f.high = b.Int16(), b.Int64()
			b.Int64() // last stable offset
			f.start = b.Int64()
			if n := b.ArrayLen(); n > 0 {
				b.Span(16 * int(n)) // aborted transactions
			}
			b.Int32() // preferred replica
			f.data = b.NullableBytes()
			if !b.Ok() {
				break
			}
			if f.asked = l.find(number); f.asked == nil || f.asked.answered {
				return fmt.Errorf("an answer about partition %d", number)
			}
			if f.code == 0 && f.high < 0 {
				return fmt.Errorf("partition %d has log end %d", number, f.high)
			}
			f.asked.answered = true
			l.got = append(l.got, f)
		}
	}
	if err := b.Complete(); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if len(b.Src) > 0 {
		return fmt.Errorf("an answer with %d bytes behind it", len(b.Src))
	}
	return nil
}

func (l *lane) find(number int32) *askedPart {
	for i := range l.asked {
		if l.asked[i].part.number == number {
			return &l.asked[i]
		}
	}
	return nil
}

// leave lets go of the partitions that this answer has read to their end. Who gets such a one again, because a batch of
// it was corrupt, gets it from Next: so it is the answer that says which they are, and not readPart.idle, which Next may
// have changed already.
func (l *lane) leave() {
	keep := l.parts[:0]
	for _, p := range l.parts {
		if q := l.find(p.number); q == nil || !q.done {
			keep = append(keep, p)
		}
	}
	clear(l.parts[len(keep):])
	l.parts = keep
}

// take judges the answer for one partition and moves its position. The error is final for the reader.
func (l *lane) take(a *answer, f *fetched) (move bool, err error) {
	r, asked, p := l.r, f.asked, f.asked.part
	switch err := kerr.ErrorForCode(f.code); {
	case err == nil:
	case errors.Is(err, kerr.OffsetOutOfRange):
		if !r.o.SkipLost || f.start <= asked.next || f.start > f.high {
			return false, &OffsetRangeError{Topic: r.o.Topic, Partition: p.number, Offset: asked.next, LogStart: f.start, LogEnd: f.high}
		}
		r.skip(p, asked, f.start)
		return false, nil
	case kerr.IsRetriable(err) && !errors.Is(err, kerr.UnknownTopicOrPartition):
		return true, l.refused(p, asked.next, err)
	default:
		return false, r.refused(err, p.number, asked.next)
	}
	p.refusing, p.rotten = time.Time{}, 0
	next, whole, wrong := extent(f.data, asked.next, f.high)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != asked.life {
		return false, nil // it has gone back meanwhile
	}
	p.next = next
	// The log end may lie before the end that was meant: that of a view is a bound until it was looked at.
	final := next >= p.end || len(f.data) == 0 && p.found && f.high <= next
	p.idle, asked.done = final, final
	if whole > 0 || final {
		a.parts = append(a.parts, answerPart{part: p, life: asked.life, at: asked.next, data: f.data[:whole], highWatermark: f.high, final: final, wrong: wrong})
	}
	return false, nil
}

// extent finds how far the whole batches of an answer go that was asked for from offset at on; a server may cut the last
// one. Of what is no batch, Next finds the place, and asks again.
//
// Base offsets are outside the checksum, so they are held against what an answer can have: batches in order, below the
// high watermark, and something new. If they are wrong, nothing of the answer is good.
func extent(data []byte, at, high int64) (next int64, whole int, wrong error) {
	next = at
	last := int64(-1) // offset before which no batch can begin any more
	for whole < len(data) {
		h, err := record.ParseHeader(data[whole:])
		if errors.Is(err, record.ErrShort) || err == nil && h.Size() > len(data)-whole {
			break
		}
		if err != nil {
			return next, len(data), nil
		}
		if end := h.LastOffset(); h.BaseOffset <= last || end >= high {
			return at, len(data), fmt.Errorf("offsets %d to %d come behind %d, and the log end is %d", h.BaseOffset, end, last, high)
		}
		whole += h.Size()
		last = h.LastOffset()
		next = max(next, last+1)
	}
	switch {
	case len(data) > 0 && whole == 0:
		return next, len(data), nil // less than one batch
	case len(data) > 0 && next == at:
		return at, len(data), fmt.Errorf("%d bytes hold nothing from the offset on", len(data))
	}
	return next, whole, nil
}

// skip goes on at the log start.
func (r *Reader) skip(p *readPart, asked *askedPart, start int64) {
	p.mu.Lock()
	moved := p.life == asked.life
	if moved {
		p.next = min(start, p.end)
	}
	p.mu.Unlock()
	if moved {
		r.mu.Lock()
		r.mu.skipped += min(start, p.end) - asked.next
		r.mu.Unlock()
	}
}
