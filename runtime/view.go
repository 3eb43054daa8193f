package runtime

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime/codec"
)

// A View is a stateless pipeline evaluated while records are delivered. It looks like a topic: its
// offsets are its source's, with gaps where no row passes, as in a compacted topic. It stores nothing.
//
// For each partition the view remembers how far it has looked and where nothing matches, so that a
// consumer that polls does not evaluate the same rows again. The memory is bounded and may be lost.
type View struct {
	Module string

	view   *plan.View
	parts  []*log.Partition
	opts   Options
	states []viewPartition
	pool   sync.Pool // *viewChain
	failed failures
}

// A viewPartition is what is known of one partition.
type viewPartition struct {
	mu        sync.Mutex
	scanned   int64       // S: everything below has been looked at once, from the mark on
	lastMatch int64       // M: highest source offset that passed, -1: none known
	known     bool        // scanned and lastMatch hold
	empty     []viewRange // known to hold no row that passes, ascending, disjoint
	judged    int64       // failures below are counted, or are not any more
}

type viewRange struct{ from, to int64 }

const (
	maxViewRanges  = 1024
	viewFetchBytes = 256 << 10 // output of one fetch, about
	viewMarkBytes  = 8 << 20   // read backwards after a start, at most
	viewReadBytes  = 1 << 20
	maxMarkSpan    = 64 << 10 // offsets
)

func newView(module string, v *plan.View, parts []*log.Partition, opts Options) (*View, error) {
	w := &View{Module: module, view: v, parts: parts, opts: opts, states: make([]viewPartition, len(parts))}
	for i := range w.states {
		w.states[i].lastMatch = -1
	}
	c, err := w.newChain() // a plan that cannot run is refused now, not at the first fetch
	if err != nil {
		return nil, err
	}
	w.pool.Put(c)
	return w, nil
}

// Topic is the view as readers see it.
func (v *View) Topic() *plan.Topic { return v.view.Topic }

// Source is the topic that the view reads.
func (v *View) Source() *plan.Topic { return v.view.Source }

// Partitions is the number of partitions, that of the source.
func (v *View) Partitions() int { return len(v.parts) }

// SourcePartition gives the partition behind one of the view's, for waiting on new records.
func (v *View) SourcePartition(i int32) *log.Partition { return v.parts[i] }

// Failures counts the rows that a stage could not evaluate; they are left out.
func (v *View) Failures() (n int64, last string) { return v.failed.get() }

type failures struct {
	mu   sync.Mutex
	n    int64
	last string
}

func (f *failures) add(n int64, last string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n += n
	f.last = last
}

func (f *failures) get() (int64, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n, f.last
}

// A viewChain is one evaluation at a time of a view.
type viewChain struct {
	decoder *codec.Decoder
	clock   eventClock
	ops     []operators.Operator
	words   []string
	encoder *codec.Encoder
	key     []int
	types   []scalar.Type
	builder *record.Builder

	view    *View
	rows    int
	value   []byte
	headers []record.KV
	base    int64

	// Failed rows of the batch at or above judged, for counting each but once.
	judged   int64
	failed   int64
	lastFail string
}

// fail notes a row that is left out.
func (c *viewChain) fail(offset int64, why string) {
	if offset >= c.judged {
		c.failed++
		c.lastFail = fmt.Sprintf("offset %d: %s", offset, why)
	}
}

func (v *View) newChain() (*viewChain, error) {
	alloc := v.opts.Allocator
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	c := &viewChain{view: v, builder: record.NewBuilder(), key: v.view.Topic.Key, types: types(v.view.Topic.Schema)}
	var err error
	if c.decoder, err = codec.NewDecoder(v.view.Source, v.view.Needed, alloc); err != nil {
		return nil, fmt.Errorf("runtime: decoder of view %s: %w", v.view.Name, err)
	}
	if readsKey(v.view) {
		c.decoder.WantKeys()
	}
	if c.encoder, err = codec.NewEncoder(v.view.Topic); err != nil {
		return nil, fmt.Errorf("runtime: encoder of view %s: %w", v.view.Name, err)
	}
	if err := c.clock.init(v.view.Source, alloc); err != nil {
		return nil, err
	}
	if c.ops, err = buildStages(v.view.Source, v.view.Stages, stageOptions{}, alloc); err != nil {
		return nil, err
	}
	for i := range v.view.Stages {
		c.words = append(c.words, v.view.Stages[i].Word)
	}
	return c, nil
}

// look evaluates the rows of one source batch at or after offset from, and counts those that fail, each
// once. It answers the batch to deliver, nil if no row passes, and the offset of the last row that passed.
func (v *View) look(c *viewChain, b *log.Batch, partition int32, from int64) (out []byte, last int64) {
	st := &v.states[partition]
	st.mu.Lock()
	c.judged = st.judged
	st.mu.Unlock()
	c.failed = 0
	out, last = c.eval(b, partition, from)
	st.mu.Lock()
	fresh := st.judged == c.judged // nobody else has counted meanwhile
	st.judged = max(st.judged, b.Last+1)
	st.mu.Unlock()
	if fresh && c.failed > 0 {
		v.failed.add(c.failed, c.lastFail)
	}
	return out, last
}

// eval runs the rows of one source batch at or after offset from through the stages. What cannot be read
// is left out like a row that fails.
func (c *viewChain) eval(b *log.Batch, partition int32, from int64) (out []byte, last int64) {
	if _, control, _ := controlBatch(b.Data); control {
		return nil, -1
	}
	c.decoder.SetPartition(partition)
	broken := c.decoder.Append(b.Base, b.AppendTime, b.Data, from)
	rows, invalid := c.decoder.Flush()
	for i := range invalid {
		c.fail(invalid[i].Offset, invalid[i].Detail)
	}
	if broken != nil {
		c.fail(b.Last, broken.Error())
	}
	if rows == nil {
		return nil, -1
	}
	bad := c.clock.stamp(rows)
	if t := c.view.view.Source; t.Table && !t.Derived {
		bad = withWrongKeys(bad, rows, t)
	}
	if len(bad) > 0 {
		for _, r := range bad {
			c.fail(rows.Offsets[r.row], r.detail)
		}
		good := rows.Select(c.view.opts.Allocator, rowsExcept(rows.Rows, bad))
		rows.Release()
		rows = good
	}
	c.builder.Reset()
	c.rows, c.base, last = 0, b.Base, -1
	viewStage{chain: c, at: 0, last: &last}.Emit(rows)
	if c.rows == 0 {
		return nil, -1
	}
	c.builder.SetBase(b.Base, b.Epoch)
	c.builder.SetLastOffsetDelta(int32(b.Last - b.Base))
	return c.builder.Finish(), last
}

// viewStage is the Emitter before stage at.
type viewStage struct {
	chain *viewChain
	at    int
	last  *int64
}

// Emit implements operators.Emitter.
func (s viewStage) Emit(b *operators.Batch) {
	if s.at < len(s.chain.ops) {
		s.chain.ops[s.at].Process(b, viewStage{s.chain, s.at + 1, s.last})
		return
	}
	defer b.Release()
	c := s.chain
	keys, bad := b.Key, []operators.RowError(nil)
	if !c.view.view.Topic.Table {
		keys, bad = encodeKeys(b, c.key, c.types)
	}
	for i := range b.Rows {
		var value []byte
		var code scalar.Code
		if !b.Deletes(i) {
			value, code = c.encoder.Encode(c.value[:0], b, i)
			c.value = value[:0]
		}
		var key []byte
		if keys != nil {
			key = keys[i]
		}
		if len(bad) > 0 && bad[0].Row == i {
			code, bad = bad[0].Code, bad[1:]
		}
		if code != 0 {
			c.fail(b.Offsets[i], code.String())
			continue
		}
		ms := floorDiv(b.Time[i], 1e6)
		c.headers = c.headers[:0]
		if ms*1e6 != b.Time[i] {
			c.headers = append(c.headers, record.KV{Key: headerTime, Value: int64Bytes(b.Time[i])})
		}
		c.builder.AppendAt(int32(b.Offsets[i]-c.base), ms, key, value, c.headers)
		c.rows++
		*s.last = b.Offsets[i]
	}
}

// Late implements operators.Emitter; stages without state call nothing late.
func (s viewStage) Late(*operators.Batch, []int) {}

// Fail implements operators.Emitter.
func (s viewStage) Fail(b *operators.Batch, errs []operators.RowError) {
	for _, e := range errs {
		s.chain.fail(b.Offsets[e.Row], e.Code.String()+" in `"+e.Expr+"`")
	}
}

// A ViewFetch is the answer to one fetch.
type ViewFetch struct {
	Batches  [][]byte // whole record batches, fresh memory, each with at least one record
	LogStart int64
	LogEnd   int64 // as consumers see it: after the last match once everything was looked at
	// Source is the offset up to which the source was looked at; waiting for more records means
	// waiting for the source's log end to pass it.
	Source int64
}

// Fetch delivers rows at and after offset from. It reads source batches until about maxBytes of output,
// Options.ViewScanBytes of source, or the end of ctx; it does not wait for new records.
//
// Errors: *log.OffsetRangeError (an ErrOffsetRange) when from lies outside the source.
func (v *View) Fetch(ctx context.Context, partition int32, from int64, maxBytes int) (ViewFetch, error) {
	p, st := v.parts[partition], &v.states[partition]
	f := ViewFetch{LogStart: p.LogStart()}
	if maxBytes <= 0 || maxBytes > viewFetchBytes {
		maxBytes = viewFetchBytes
	}
	c, err := v.take()
	if err != nil {
		return f, err
	}
	defer v.pool.Put(c)
	if end := p.LogEnd(); from < f.LogStart || from > end {
		return f, &log.OffsetRangeError{Partition: p.ID(), Offset: from, Start: f.LogStart, End: end}
	}
	at, read, bytes := st.skip(from), 0, 0
	var batches []log.Batch
scan:
	for bytes < maxBytes && read < v.opts.ViewScanBytes && ctx.Err() == nil && at < p.LogEnd() {
		batches, err = p.Read(at, viewReadBytes, batches[:0])
		if len(batches) == 0 && err != nil && len(f.Batches) > 0 {
			break // the log start has moved past us, or rot begins here: the next fetch is told
		}
		if len(batches) == 0 && err != nil {
			return f, fmt.Errorf("runtime: view %s: %w", v.view.Name, err)
		}
		for i := range batches {
			b := &batches[i]
			out, last := v.look(c, b, partition, at)
			st.note(max(at, b.Base), b.Last+1, last, out != nil)
			at = b.Last + 1
			read += len(b.Data)
			if out == nil {
				continue
			}
			f.Batches = append(f.Batches, out)
			bytes += len(out)
			if bytes >= maxBytes {
				break scan
			}
		}
	}
	f.Source = at
	if at >= p.LogEnd() {
		if err := v.mark(ctx, partition); err != nil {
			return f, err
		}
	}
	f.LogStart = p.LogStart()
	f.LogEnd = st.end(f.LogStart, p.LogEnd(), from)
	return f, nil
}

func (v *View) take() (*viewChain, error) {
	if c, ok := v.pool.Get().(*viewChain); ok {
		return c, nil
	}
	return v.newChain()
}

// skip moves an offset past a range that is known to be empty.
func (s *viewPartition) skip(at int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := sort.Search(len(s.empty), func(i int) bool { return s.empty[i].to > at })
	if i < len(s.empty) && s.empty[i].from <= at {
		return s.empty[i].to
	}
	return at
}

// note records that [from, to) was looked at, and what was found.
func (s *viewPartition) note(from, to, last int64, matched bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if matched {
		s.lastMatch = max(s.lastMatch, last)
	}
	if s.known && from <= s.scanned {
		s.scanned = max(s.scanned, to)
	}
	if matched {
		return
	}
	i := sort.Search(len(s.empty), func(i int) bool { return s.empty[i].to >= from })
	if i < len(s.empty) && s.empty[i].from <= from {
		s.empty[i].to = max(s.empty[i].to, to)
	} else {
		s.empty = append(s.empty, viewRange{})
		copy(s.empty[i+1:], s.empty[i:])
		s.empty[i] = viewRange{from, to}
	}
	for i+1 < len(s.empty) && s.empty[i+1].from <= s.empty[i].to { // join with the next
		s.empty[i].to = max(s.empty[i].to, s.empty[i+1].to)
		s.empty = append(s.empty[:i+1], s.empty[i+2:]...)
	}
	if len(s.empty) > maxViewRanges { // forget the oldest: it costs a scan, nothing else
		s.empty = append(s.empty[:0], s.empty[1:]...)
	}
}

// end is the log end that consumers see: after the last match once everything up to the source's end
// has been looked at, else the source's end. It is never below the log start, nor below what this reader
// asks for.
func (s *viewPartition) end(start, sourceEnd, from int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && s.scanned >= sourceEnd {
		return max(s.lastMatch+1, start, from)
	}
	return sourceEnd
}

// Latest is the log end as consumers see it. It scans the new end of the source until ctx ends.
func (v *View) Latest(ctx context.Context, partition int32) (int64, error) {
	p, st := v.parts[partition], &v.states[partition]
	if err := v.mark(ctx, partition); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		st.mu.Lock()
		known, scanned := st.known, st.scanned
		st.mu.Unlock()
		if !known || scanned >= p.LogEnd() {
			break
		}
		f, err := v.Fetch(ctx, partition, max(scanned, p.LogStart()), viewFetchBytes)
		if errors.Is(err, log.ErrOffsetRange) {
			break
		}
		if err != nil {
			return 0, err
		}
		if f.Source <= scanned {
			break
		}
	}
	return st.end(p.LogStart(), p.LogEnd(), 0), nil
}

// mark finds the last match of a partition after a start, reading backwards at most viewMarkBytes.
func (v *View) mark(ctx context.Context, partition int32) error {
	p, st := v.parts[partition], &v.states[partition]
	st.mu.Lock()
	known := st.known
	st.mu.Unlock()
	if known {
		return nil
	}
	c, err := v.take()
	if err != nil {
		return err
	}
	defer v.pool.Put(c)
	end, start := p.LogEnd(), p.LogStart()
	// Everything from hi on holds no match. If the last one is not found, hi stands for it.
	hi, last, read := end, int64(-1), 0
	var batches []log.Batch
	for span := int64(512); hi > start && last < 0; span = min(2*span, maxMarkSpan) {
		if ctx.Err() != nil {
			return nil // not known yet; the next to ask goes on
		}
		if read >= viewMarkBytes {
			break
		}
		lo, whole := max(start, hi-span), true
		for at := lo; at < hi; {
			if whole = read < viewMarkBytes; !whole {
				break
			}
			batches, err = p.Read(at, viewReadBytes, batches[:0])
			if errors.Is(err, log.ErrOffsetRange) {
				return nil // the log start has moved: the next to ask begins anew
			}
			if err != nil {
				return fmt.Errorf("runtime: view %s: %w", v.view.Name, err)
			}
			for i := range batches {
				b := &batches[i]
				if b.Base >= hi {
					break
				}
				read += len(b.Data)
				c.judged = math.MaxInt64 // failures are counted by those who deliver
				if out, l := c.eval(b, partition, at); out != nil {
					last = max(last, l)
				}
				at = b.Last + 1
			}
		}
		if !whole {
			last = -1 // what was found is not known to be the last
			break
		}
		if last < 0 {
			hi = lo
		}
	}
	if last < 0 {
		last = hi - 1
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.known {
		st.known, st.scanned, st.lastMatch = true, end, max(last, st.lastMatch)
	}
	return nil
}
