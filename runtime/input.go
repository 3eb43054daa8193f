package runtime

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime/codec"
)

// An item is the next piece of a source partition, decoded: rows with the records that could not be
// decoded among them, or a time mark.
type item struct {
	rows    *operators.Batch // nil if there are none
	invalid []codec.Invalid
	mark    operators.EventTime
	isMark  bool
	next    int64 // offset after the item
	// appended is the append time of the item's last record.
	appended operators.EventTime
	skipped  int64       // offsets before the item that were gone before they were read
	marks    []orderMark // of the batches in the item, if the input is ordered
}

// begins is the append time of the item's first record.
func (it *item) begins() operators.EventTime {
	at := it.appended
	if it.rows != nil {
		at = min(at, it.rows.AppendTime[0])
	}
	if len(it.invalid) > 0 {
		at = min(at, it.invalid[0].AppendTime)
	}
	return at
}

func (it *item) release() {
	if it.rows != nil {
		it.rows.Release()
		it.rows = nil
	}
}

// An input reads one source partition.
type input struct {
	index   int
	part    *log.Partition
	decoder *codec.Decoder
	read    int64  // next offset to read
	pending []item // decoded, not yet part of a step
	batches []log.Batch
	broken  []codec.Invalid // batches that are none, since the last flush
	skipped int64           // since the last item

	// ordered inputs know where their items stand in shard order. started is the raft index up to which
	// everything comes first.
	ordered bool
	started uint64
	marks   []orderMark // since the last item
	last    order       // of the last batch read
	edge    order       // everything before it has been read
}

// pop drops the first pending item, which was taken.
func (p *input) pop() {
	p.pending[0] = item{}
	if p.pending = p.pending[1:]; len(p.pending) == 0 {
		p.pending = nil
	}
}

// inputs are the source partitions of one task.
type inputs struct {
	parts     []*input
	batchRows int   // rows of one columnar batch, at most
	gone      error // what a partition that is no longer there means
}

// A lostError says that records were deleted before they were read.
type lostError struct {
	partition int32
	from, to  int64 // offsets from to to-1 are gone
}

func (e *lostError) Error() string {
	return fmt.Sprintf("offsets %d to %d of partition %d were deleted before they were read", e.from, e.to-1, e.partition)
}

// newInputs begins to read parts at from. keys says that record.key is read. With pass, what is gone there is passed over and counted; what goes later is a
// *lostError.
func newInputs(t *plan.Topic, needed []bool, keys bool, parts []*log.Partition, from []int64, pass bool, batchRows int, alloc memory.Allocator) (*inputs, error) {
	in := &inputs{batchRows: batchRows, gone: errSource}
	for i, p := range parts {
		d, err := codec.NewDecoder(t, needed, alloc)
		if err != nil {
			return nil, fmt.Errorf("runtime: decoder of %s: %w", t.Name, err)
		}
		d.SetPartition(int32(i))
		if keys {
			d.WantKeys()
		}
		x := &input{index: i, part: p, decoder: d, read: from[i]}
		if pass {
			x.passOver()
		}
		in.parts = append(in.parts, x)
	}
	return in, nil
}

// fill reads and decodes up to about budget bytes of source batches, shared out over the partitions
// that have any, with up to workers partitions at a time. It answers whether anything is pending.
func (in *inputs) fill(budget, workers int) (bool, error) {
	var ready []*input
	pending := false
	for _, p := range in.parts {
		if len(p.pending) > 0 {
			pending = true
			continue
		}
		if p.part.LogEnd() > p.read || p.part.LogStart() > p.read {
			ready = append(ready, p)
		}
		if p.part.Dropped() {
			return false, fmt.Errorf("%w (partition %d)", in.gone, p.index)
		}
	}
	if len(ready) == 0 {
		return pending, nil
	}
	share := max(budget/len(ready), min(budget, 64<<10))
	if workers <= 1 || len(ready) == 1 {
		for _, p := range ready {
			if err := p.fill(share, in.batchRows); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(ready))
		slot = make(chan struct{}, workers)
	)
	for i, p := range ready {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			errs[i] = p.fill(share, in.batchRows)
		})
	}
	wg.Wait()
	return true, errors.Join(errs...)
}

// passOver goes on at the log start if it has passed the place to read at.
func (p *input) passOver() {
	start := p.part.LogStart()
	if start <= p.read {
		return
	}
	p.skipped += start - p.read
	p.read = start
	if p.part.LogEnd() <= start { // nothing is left to carry the news
		p.pending = append(p.pending, item{next: start, skipped: p.skipped, appended: operators.MinEventTime, marks: []orderMark{{next: start}}})
		p.skipped = 0
	}
}

// fill decodes the next batches of one partition into pending. *lostError: they are gone.
func (p *input) fill(budget, batchRows int) error {
	var err error
	p.batches, err = p.part.Read(p.read, budget, p.batches[:0])
	if start := p.part.LogStart(); errors.Is(err, log.ErrOffsetRange) && start > p.read {
		return &lostError{p.part.ID().Index, p.read, start}
	}
	if err != nil && len(p.batches) == 0 { // otherwise what is in front of the damage goes first
		return fmt.Errorf("runtime: read partition %d at offset %d: %w", p.index, p.read, err)
	}
	appended, from, known := operators.MinEventTime, p.read, len(p.pending)
	for i := range p.batches {
		b := &p.batches[i]
		if w, control, ok := controlBatch(b.Data); control {
			p.flush(p.read, appended)
			p.note(b)
			it := item{next: b.Last + 1, appended: b.AppendTime, skipped: p.skipped, marks: p.noted()}
			p.skipped = 0
			if ok {
				it.mark, it.isMark = w, true
			}
			p.pending = append(p.pending, it)
			p.read, appended = b.Last+1, b.AppendTime
			continue
		}
		columns := codec.Columnar(b.Data)
		if columns {
			p.flush(p.read, appended)
		}
		if err := p.decoder.Append(b.Base, b.AppendTime, b.Data, p.read); err != nil {
			p.broken = append(p.broken, brokenBatch(b, err))
		}
		p.note(b)
		p.read, appended = b.Last+1, b.AppendTime
		if columns && p.decoder.Rows() > batchRows {
			p.flushSlices(appended, batchRows)
		} else if columns || p.decoder.Rows() >= batchRows || len(p.broken) > 0 {
			p.flush(p.read, appended)
		}
	}
	p.flush(p.read, appended)
	if n := len(p.pending); p.read > from && (n == known || p.pending[n-1].next < p.read) {
		// Compaction has left no record at the end of what was read: the next step says that it was seen.
		p.pending = append(p.pending, item{next: p.read, skipped: p.skipped, appended: appended, marks: p.noted()})
		p.skipped = 0
	}
	clear(p.batches)
	return nil
}

// controlBatch says whether a batch holds no rows, and whether it is a time mark.
func controlBatch(b []byte) (w operators.EventTime, control, mark bool) {
	h, err := record.ParseHeader(b)
	if err != nil || !h.Control() {
		return 0, false, false
	}
	w, mark = record.ParseTimeMark(b)
	return w, true, mark
}

// brokenBatch stands for the records of a batch from the one that could not be read on: the log takes
// batches as they are, so one may hold anything. Its value is the whole batch.
func brokenBatch(b *log.Batch, err error) codec.Invalid {
	return codec.Invalid{
		Offset: b.Last, Timestamp: max(0, b.MaxTimestamp), AppendTime: b.AppendTime, Value: b.Data,
		Code: scalar.CodeUnparsable, Detail: "record batch: " + err.Error(),
	}
}

// flush ends the current columnar batch.
func (p *input) flush(next int64, appended operators.EventTime) {
	rows, invalid := p.decoder.Flush()
	invalid = append(invalid, p.broken...)
	p.broken = p.broken[:0]
	if rows == nil && len(invalid) == 0 {
		return
	}
	p.pending = append(p.pending, item{rows: rows, invalid: invalid, next: next, appended: appended, skipped: p.skipped, marks: p.noted()})
	p.skipped = 0
}

// flushSlices ends a columnar batch of more than batchRows rows, as several.
func (p *input) flushSlices(appended operators.EventTime, batchRows int) {
	rows, _ := p.decoder.Flush()
	defer rows.Release()
	for from := 0; from < rows.Rows; from += batchRows {
		to := min(from+batchRows, rows.Rows)
		it := item{rows: rows.Slice(from, to), next: rows.Offsets[to-1] + 1, appended: appended, skipped: p.skipped, marks: slices.Clone(p.marks)}
		it.end()
		p.pending = append(p.pending, it)
		p.skipped = 0
	}
	p.marks = nil
}

// close releases what was decoded and not used.
func (in *inputs) close() {
	for _, p := range in.parts {
		for i := range p.pending {
			p.pending[i].release()
		}
		p.pending = nil
		p.decoder.Close()
	}
}
