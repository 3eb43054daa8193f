package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/headrace/headrace/log/record"
)

// A Reader reads the records of a topic's partitions, forward, as fast as they come: it asks for more before what it
// has is used up, and hands out batches whose records lie in the answer's own memory.
//
//	r, err := client.NewReader(ctx, seeds, client.ReaderOptions{Topic: "clicks", End: client.Latest})
//	defer r.Close()
//	for {
//		b, err := r.Next(ctx)
//		if err == io.EOF { break } // everything up to End was read
//		if err != nil { … }
//		for b.Next() {
//			rec := b.Record() // its bytes are valid until the next call of r.Next
//		}
//		if err := b.Err(); err != nil { … }
//	}
//
// Batches of one partition come in order; those of several partitions in any. Every batch is held against its
// checksum. A connection that is lost is made again, and reading goes on where it was: no record is skipped, and none
// comes twice.
//
// One goroutine uses a Reader; Close may be called by any.
type Reader struct {
	o      ReaderOptions
	seeds  []string
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	answers chan *answer     // prefetched
	moved   chan []*readPart // partitions that need a connection
	failed  chan struct{}    // closed with mu.err
	bufs    chan []byte      // of answers that were used up

	mu struct {
		sync.Mutex
		err     error
		skipped int64
	}

	// Of the goroutine that calls Next.
	left  int // partitions that are not read to their end
	cur   *answer
	batch RecordBatch
}

// ReaderOptions of a Reader. Topic is required.
type ReaderOptions struct {
	Topic string
	// Partitions to read; nil: all that the topic has.
	Partitions []int32
	// Start is where reading begins; the zero value is the log start. Offsets has the say for the partitions in it.
	Start   Position
	Offsets Offsets
	// End is where reading ends: Next then answers io.EOF. The zero value has no end. Latest is the log end as it is
	// when the reader is made.
	End Position
	// SkipLost goes on at the log start if records were removed before they were read, and counts them; without it
	// that is an *OffsetRangeError.
	SkipLost bool
	// FetchBytes is how much is asked of one partition at once (1 MiB).
	FetchBytes int
	// Prefetch is how many answers may wait for Next (2). Memory: Connections and Prefetch times FetchBytes for each
	// partition, at most 8 MiB an answer unless one batch is larger.
	Prefetch int
	// Connections is how many connections share the partitions of one broker (2).
	Connections int
	// MaxWait is how long the server waits for records where there are none (500 ms).
	MaxWait time.Duration
	// RetryFor is how long the reader tries to get an answer of a broker before Next answers a *ConnectError, and how long
	// a partition may be refused with codes that can pass before Next answers a *ReadError (30 s).
	RetryFor time.Duration
	Logger   *slog.Logger // nil: none
	// Fetched is called after each answer with the time since it was asked for and its size, by several goroutines.
	// It must not block. nil: nobody is told.
	Fetched func(took time.Duration, bytes int)
}

func (o ReaderOptions) withDefaults() ReaderOptions {
	def := func(p *int, d int) {
		if *p <= 0 {
			*p = d
		}
	}
	def(&o.FetchBytes, 1<<20)
	def(&o.Prefetch, 2)
	def(&o.Connections, 2)
	if o.MaxWait <= 0 {
		o.MaxWait = 500 * time.Millisecond
	}
	if o.RetryFor <= 0 {
		o.RetryFor = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Position is a place in every partition. The zero value is none: the log start as a Start, no end as an End.
type Position struct {
	kind  positionKind
	value int64
}

type positionKind uint8

const (
	noPosition positionKind = iota
	atEarliest
	atLatest
	atOffset
	atTime
)

// Earliest is the log start, Latest the log end.
var (
	Earliest = Position{kind: atEarliest}
	Latest   = Position{kind: atLatest}
)

// AtOffset is the same offset in every partition.
func AtOffset(offset int64) Position { return Position{kind: atOffset, value: offset} }

// AtTime is the first record whose timestamp is not before t, the log end where there is none.
func AtTime(t time.Time) Position { return Position{kind: atTime, value: t.UnixMilli()} }

// Errors of a Reader.
var (
	ErrReaderClosed = errors.New("client: the reader is closed")
	ErrOffsetRange  = errors.New("client: offset out of range")
	ErrCorruptBatch = errors.New("client: corrupt batch")
	ErrUnknownTopic = errors.New("client: unknown topic or partition")
)

// An OffsetRangeError says that records which were to be read are not there any more, or not yet. It is an
// ErrOffsetRange.
type OffsetRangeError struct {
	Topic            string
	Partition        int32
	Offset           int64 // that was asked for
	LogStart, LogEnd int64
}

func (e *OffsetRangeError) Error() string {
	return fmt.Sprintf("%v: %s[%d]: %d is not in [%d, %d]", ErrOffsetRange, e.Topic, e.Partition, e.Offset, e.LogStart, e.LogEnd)
}

// Is reports that the error is ErrOffsetRange.
func (e *OffsetRangeError) Is(target error) bool { return target == ErrOffsetRange }

// A CorruptBatchError says that the server keeps sending bytes that are no batch. It is an ErrCorruptBatch.
type CorruptBatchError struct {
	Topic     string
	Partition int32
	Offset    int64 // of the batch, or where it should be
	Err       error
}

func (e *CorruptBatchError) Error() string {
	return fmt.Sprintf("%v: %s[%d] at offset %d: %v", ErrCorruptBatch, e.Topic, e.Partition, e.Offset, e.Err)
}

// A ReadError says that a server refuses records with an error code, and that asking again has not helped. It wraps
// the code, a *kerr.Error: CORRUPT_MESSAGE means that the bytes on the server's disk are not what was written.
type ReadError struct {
	Topic     string
	Partition int32 // -1: all of the topic
	Offset    int64 // of the first record that was not given, -1: none is meant
	Err       error
}

func (e *ReadError) Error() string {
	where := e.Topic
	if e.Partition >= 0 {
		where = fmt.Sprintf("%s[%d]", where, e.Partition)
	}
	if e.Offset >= 0 {
		where = fmt.Sprintf("%s at offset %d", where, e.Offset)
	}
	return fmt.Sprintf("client: read %s: %v", where, e.Err)
}

// Unwrap returns the code.
func (e *ReadError) Unwrap() error { return e.Err }

// Is reports that the error is ErrCorruptBatch.
func (e *CorruptBatchError) Is(target error) bool { return target == ErrCorruptBatch }

// Unwrap returns what was found.
func (e *CorruptBatchError) Unwrap() error { return e.Err }

// NewReader makes a reader and finds out where its partitions begin and end. seeds are "host:port", several with
// commas. Errors: *ConnectError, ErrUnknownTopic, *ReadError.
func NewReader(ctx context.Context, seeds string, o ReaderOptions) (*Reader, error) {
	o = o.withDefaults()
	if o.Topic == "" {
		return nil, errors.New("client: ReaderOptions.Topic is empty")
	}
	r := &Reader{o: o, seeds: strings.Split(seeds, ",")}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	within, stop := context.WithTimeout(ctx, o.RetryFor)
	parts, err := r.resolve(within)
	stop()
	if err != nil {
		r.cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	r.answers = make(chan *answer, o.Prefetch)
	r.moved = make(chan []*readPart, len(parts)+1)
	r.failed = make(chan struct{})
	r.bufs = make(chan []byte, o.Prefetch+2*o.Connections)
	var open []*readPart
	for _, p := range parts {
		if p.next < p.end {
			open = append(open, p)
		}
	}
	r.left = len(open)
	if r.left > 0 {
		r.moved <- open
		r.wg.Go(r.manage)
	}
	return r, nil
}

// Close ends the reader. Batches that it has handed out must not be used any more.
func (r *Reader) Close() {
	r.fail(ErrReaderClosed)
	r.cancel()
	r.wg.Wait()
}

// Skipped is how many offsets were gone before they could be read; see ReaderOptions.SkipLost.
func (r *Reader) Skipped() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.skipped
}

// fail makes Next answer err, once what was fetched before is used up. The first error stays.
func (r *Reader) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.err == nil {
		r.mu.err = err
		if r.failed != nil {
			close(r.failed)
		}
	}
}

func (r *Reader) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.err
}

// A RecordBatch is one record batch and the walk over its records. It and everything in it is valid until the next call
// of Reader.Next.
type RecordBatch struct {
	Partition int32
	// HighWatermark is the log end of the partition when the batch was fetched.
	HighWatermark int64

	rr       record.Reader
	from, to int64 // offsets of the records to hand out: [from, to)
	clip     bool  // some are outside
}

// Header is the batch's header.
func (b *RecordBatch) Header() record.Header { return b.rr.Header() }

// Next moves to the next record and reports whether there is one. It allocates nothing.
func (b *RecordBatch) Next() bool {
	if !b.clip {
		return b.rr.Next()
	}
	for b.rr.Next() {
		if o := b.rr.Record().Offset; o >= b.to {
			return false
		} else if o >= b.from {
			return true
		}
	}
	return false
}

// Record is the record that Next moved to, without its headers; see Headers.
func (b *RecordBatch) Record() *record.Record { return b.rr.Record() }

// Headers parses the headers of the current record.
func (b *RecordBatch) Headers() []record.KV { return b.rr.Headers() }

// Err is why Next ended early, or nil.
func (b *RecordBatch) Err() error { return b.rr.Err() }

// Next returns the next batch of any partition. It waits until there is one, ctx ends or the reader fails. At the end of
// all partitions, which they have if ReaderOptions.End is set, the error is io.EOF.
//
// Time marks, and other control batches, are not handed out.
//
// Errors: io.EOF; *OffsetRangeError; *CorruptBatchError; *ReadError; *ConnectError; ErrUnknownTopic; ErrReaderClosed;
// ctx's. All but the last are final, and come behind the records that were fetched before.
func (r *Reader) Next(ctx context.Context) (*RecordBatch, error) {
	for {
		if r.cur != nil {
			if b := r.advance(); b != nil {
				return b, nil
			}
			r.recycle(r.cur)
			r.cur = nil
		}
		if r.left == 0 {
			if err := r.err(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
		select { // what is here goes first
		case r.cur = <-r.answers:
			continue
		default:
		}
		select {
		case r.cur = <-r.answers:
		case <-r.failed:
			return nil, r.err()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// advance moves to the next batch of the current answer, nil if there is none left.
func (r *Reader) advance() *RecordBatch {
	for len(r.cur.parts) > 0 {
		a := &r.cur.parts[0]
		if r.stale(a) {
			r.cur.parts = r.cur.parts[1:]
			continue
		}
		if a.wrong != nil {
			r.again(a.part, a.at, a.wrong)
			continue // it is stale now
		}
		for len(a.data) > 0 {
			batch, rest, err := record.Next(a.data)
			var h record.Header
			if err == nil {
				h, err = record.Verify(batch)
			}
			if err != nil {
				r.again(a.part, a.at, err)
				break // the rest is stale now
			}
			a.data = rest
			at := a.at
			a.at = max(at, h.LastOffset()+1)
			if h.Control() || h.LastOffset() < at || h.BaseOffset >= a.part.end {
				continue
			}
			if err := r.batch.rr.Reset(batch); err != nil {
				r.again(a.part, at, err)
				break
			}
			b := &r.batch
			b.Partition, b.HighWatermark, b.from, b.to = a.part.number, a.highWatermark, at, a.part.end
			b.clip = h.BaseOffset < at || h.LastOffset() >= b.to
			return b
		}
		if !r.stale(a) {
			a.part.good()
			if a.final {
				r.left--
			}
		}
		r.cur.parts = r.cur.parts[1:]
	}
	return nil
}

// stale reports that the partition was asked again from an offset before this answer.
func (r *Reader) stale(a *answerPart) bool {
	a.part.mu.Lock()
	defer a.part.mu.Unlock()
	return a.part.life != a.life
}

// maxCorrupt is how often a batch is asked for again, that is corrupt or that the server finds corrupt, before it is an
// error.
const maxCorrupt = 2

// again asks for a batch once more that did not arrive as it was sent.
func (r *Reader) again(p *readPart, at int64, cause error) {
	p.mu.Lock()
	p.life++
	p.next = at
	p.bad++
	bad, idle := p.bad, p.idle
	p.idle = false
	p.mu.Unlock()
	if bad > maxCorrupt {
		r.fail(&CorruptBatchError{Topic: r.o.Topic, Partition: p.number, Offset: at, Err: cause})
		return
	}
	r.o.Logger.Warn("corrupt batch, fetched again", "topic", r.o.Topic, "partition", p.number, "offset", at, "err", cause)
	if idle {
		r.moved <- []*readPart{p} // there is room: it is in no other list
	}
}

// recycle gives an answer's memory to the next one.
func (r *Reader) recycle(a *answer) {
	select {
	case r.bufs <- a.buf[:0]:
	default:
	}
}
