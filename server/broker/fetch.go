package broker

import (
	"context"
	"errors"
	"time"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
)

// A FetchRequest asks for record batches of many partitions at once, in the order of Parts.
type FetchRequest struct {
	MinBytes, MaxBytes int
	Columns            bool      // leave columnar batches as they are; otherwise they come as rows
	Deadline           time.Time // wait until then for MinBytes
	Parts              []FetchPart

	session *FetchSession // nil: none
	first   int           // number of the part that is read first
	loan    log.Loan      // memory under Batches
	held    int           // bytes counted as being sent
	broker  *Broker
}

// A FetchPart asks for one partition and holds the answer. A part whose Err is set beforehand is
// answered as it is.
type FetchPart struct {
	Topic     *Topic
	Partition int32
	Offset    int64
	MaxBytes  int
	Epoch     int32 // leader epoch that the client believes in, -1: none

	Err              error
	LogStart, LogEnd int64
	Batches          []log.Batch // shared with the log: must not be changed; valid until Release

	source  *log.Partition
	scanned int64 // more comes when source grows beyond it
	inited  bool
}

// Release says that the answer has been sent: Batches are not valid any more.
func (r *FetchRequest) Release() {
	if r.broker != nil {
		r.broker.letGo(r)
	}
}

// lowFetchBytes is how much a fetch answers when too many answers are being sent.
const lowFetchBytes = 128 << 10

// Fetch fills in the answers. It returns when MinBytes are there, when a part cannot be answered with
// records, at the deadline, or when ctx ends. The first part that has records gets at least one batch,
// whatever its size; which part is first changes from fetch to fetch of a session.
//
// Answers that their clients do not take bound the memory of all: beyond Options.FetchMemory fetches become small, and
// beyond twice as much they get no records.
func (b *Broker) Fetch(ctx context.Context, r *FetchRequest) {
	r.broker = b
	if r.session != nil {
		r.first = r.session.first(len(r.Parts))
	}
	if b.fetchLimit(r) == 0 {
		b.awaitRoom(ctx.Done(), r)
	}
	total, failed := b.readAll(ctx, r)
	if limit := b.fetchLimit(r); !failed && limit > 0 && total < min(r.MinBytes, limit) {
		b.await(ctx, r, min(r.MinBytes, limit))
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		if n := batchBytes(p.Batches); n > 0 {
			b.topics.fetched(p.Topic.Name, n)
		}
	}
}

// await reads again whenever a watched partition grows.
func (b *Broker) await(ctx context.Context, r *FetchRequest, minBytes int) {
	timeout := time.Until(r.Deadline)
	if timeout <= 0 {
		return
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	w := b.store.NewWaiter()
	defer w.Cancel()
	for {
		ready := false
		for i := range r.Parts {
			p := &r.Parts[i]
			if p.source == nil {
				continue
			}
			if w.Watch(p.source, p.scanned) {
				ready = true
				break
			}
		}
		if !ready {
			select {
			case <-w.C():
			case <-timer.C:
				return
			case <-ctx.Done():
				return
			}
		}
		if total, failed := b.readAll(ctx, r); failed || total >= minBytes || ctx.Err() != nil || !time.Now().Before(r.Deadline) {
			return
		}
		w.Reset()
	}
}

// readAll reads every part once. failed says that waiting cannot make the answer better.
func (b *Broker) readAll(ctx context.Context, r *FetchRequest) (total int, failed bool) {
	b.letGo(r) // of the read before
	// Reads of history wait for their turns, part after part. Once there are records to answer with, they wait no longer
	// than the client does.
	history, patient, cancel := false, ctx, context.CancelFunc(nil)
	defer func() {
		if cancel != nil {
			cancel()
		}
	}()
	order(r.Parts, r.first, func(p *FetchPart) {
		if !p.inited {
			p.inited = true
			if p.Err == nil {
				b.open(p)
			}
		}
		p.Batches = p.Batches[:0]
		if p.Err != nil {
			failed = true
			return
		}
		limit := b.fetchLimit(r)
		room := min(limit-total, p.MaxBytes)
		if room <= 0 && total > 0 || limit == 0 {
			return // LogStart and LogEnd of the first pass are good enough
		}
		if history && cancel == nil {
			patient, cancel = context.WithDeadline(ctx, r.Deadline)
		}
		b.read(ctx, patient, r, p, max(room, 1))
		if p.Err != nil {
			failed = true
			return
		}
		if n := batchBytes(p.Batches); total > 0 && n > room && len(p.Batches) == 1 {
			p.Batches, p.scanned = p.Batches[:0], p.Offset // too large to be second
		} else {
			b.hold(r, n)
			total += n
			history = history || n > 0 && p.Batches[0].Stored
		}
	})
	return total, failed
}

func batchBytes(batches []log.Batch) int {
	n := 0
	for i := range batches {
		n += len(batches[i].Data)
	}
	return n
}

// open finds the partition behind a part.
func (b *Broker) open(p *FetchPart) {
	p.LogStart, p.LogEnd = -1, -1
	if err := b.CheckEpoch(p.Epoch); err != nil {
		p.Err = err
		return
	}
	source, err := b.partition(p.Topic, p.Partition)
	if err != nil {
		p.Err = err
		return
	}
	p.source, p.scanned = source, p.Offset
	p.LogStart, p.LogEnd = source.LogStart(), source.LogEnd()
}

// read fills in one part. patient is how long a turn to read history is waited for.
func (b *Broker) read(ctx, patient context.Context, r *FetchRequest, p *FetchPart, maxBytes int) {
	if p.Topic.Kind == View {
		b.readView(ctx, p, maxBytes)
		return
	}
	var batches []log.Batch
	var err error
	if r.session != nil {
		batches, err = r.session.cursor(p.source).Read(patient, p.Offset, maxBytes, p.Batches[:0], &r.loan)
	} else {
		batches, err = p.source.Read(p.Offset, maxBytes, p.Batches[:0])
	}
	p.Batches = batches
	p.LogStart, p.LogEnd = p.source.LogStart(), p.source.LogEnd()
	p.scanned = p.Offset
	if n := len(batches); n > 0 {
		p.scanned = max(p.LogEnd, batches[n-1].Last+1)
	}
	if r.session != nil && patient.Err() != nil && errors.Is(err, patient.Err()) {
		return // no turn in time: the next fetch asks again
	}
	if err != nil && (len(batches) == 0 || errors.Is(err, log.ErrOffsetRange)) {
		p.Batches = p.Batches[:0]
		p.Err = b.readError(err)
	}
	if !r.Columns && len(p.Topic.Schema) > 0 {
		b.transcode(p, maxBytes)
	}
}

func (b *Broker) readView(ctx context.Context, p *FetchPart, maxBytes int) {
	f, err := p.Topic.View.Fetch(ctx, p.Partition, p.Offset, maxBytes)
	p.Batches = p.Batches[:0]
	if err != nil {
		if ctx.Err() == nil || errors.Is(err, log.ErrOffsetRange) {
			p.Err = b.readError(err)
		}
		return
	}
	// A consumer must never see an end below where it has read to.
	p.LogStart, p.LogEnd, p.scanned = f.LogStart, max(f.LogEnd, p.Offset), max(f.Scanned, p.Offset)
	for _, data := range f.Batches {
		h, err := record.ParseHeader(data)
		if err != nil {
			p.Err = b.readError(err)
			return
		}
		p.Batches = append(p.Batches, log.Batch{Base: h.BaseOffset, Last: h.LastOffset(), Epoch: h.LeaderEpoch, MaxTimestamp: h.MaxTimestamp, Data: data})
	}
	if n := len(p.Batches); n > 0 {
		p.LogEnd = max(p.LogEnd, p.Batches[n-1].Last+1)
	}
}
