package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
)

// TaskState says what a task is doing.
type TaskState string

// The states of a pipeline.
const (
	StateStarting TaskState = "starting"
	StateRunning  TaskState = "running"
	StateStopped  TaskState = "stopped"
	StatePaused   TaskState = "paused" // too many rows fail, or records are gone that it had yet to read
	StateFailed   TaskState = "failed" // it cannot go on; the reason says why
)

// A task is the running instance of a pipeline on one shard.
type task struct {
	id     log.TaskID
	pl     *plan.Pipeline
	shard  replication.Proposer
	store  *log.Store
	source []log.PartitionID
	tables []log.PartitionID  // of the plan's tables, one after the other
	outs   func() sideOutputs // fresh, empty outputs
	opts   Options
	logger *slog.Logger

	cancel context.CancelFunc
	done   chan struct{}
	status atomic.Pointer[taskStatus]
	resume chan struct{}
	// passLost: who resumed the task knows that records are gone; the next life goes on behind them.
	passLost bool
	// What a row taken, a row that a window gave away and a state row cost in bytes, as the last life has
	// learned it.
	rowCost, emitBytes, changeBytes float64
	// tooLarge counts the units refused as too large since the last one that committed. When it does not
	// help to know the costs, shrink halves, once for each, what a step may hold.
	tooLarge int
	shrink   uint
	// markers says which task writes time marks into an idle source: log.TopicID to log.TaskID.
	markers *sync.Map
}

// A taskStatus is an immutable picture of a task after a step.
type taskStatus struct {
	state      TaskState
	reason     string
	step       uint64
	w          operators.EventTime
	watermarks []operators.EventTime
	next       []int64
	tables     []log.Cut
	counters   Counters
	stateBytes int64
	stateRows  int64
	since      time.Time
}

// errRebuild asks for a new life from the store: the outcome of a step is not known, or somebody else
// has opened the task.
var errRebuild = errors.New("runtime: rebuild the task from the store")

// errTooLarge asks for a new life with smaller steps.
var errTooLarge = errors.New("runtime: a step is too large for the log")

// maxShrink leaves one row a step.
const maxShrink = 24

// run lives until ctx ends: it opens the task, steps, and rebuilds from the store when it must.
func (t *task) run(ctx context.Context) {
	defer close(t.done)
	const first = 10 * time.Millisecond
	backoff := first
	for ctx.Err() == nil {
		began := time.Now()
		err := t.safeLife(ctx)
		if time.Since(began) > 10*time.Second {
			backoff = first
		}
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errPaused):
			t.logger.Warn("pipeline paused", "pipeline", t.pl.Name, "reason", err)
			select { // one that was meant for an earlier pause
			case <-t.resume:
			default:
			}
			t.setState(StatePaused, err.Error())
			select {
			case <-t.resume:
				var lost *lostError
				t.passLost = errors.As(err, &lost)
			case <-ctx.Done():
			}
			continue
		case errors.Is(err, errTooLarge) && t.shrink < maxShrink:
			if t.tooLarge++; t.tooLarge > 2 {
				t.shrink += 2
			}
			t.logger.Warn("pipeline takes smaller steps", "pipeline", t.pl.Name, "reason", err)
			continue
		case errors.Is(err, errRebuild):
			t.logger.Warn("pipeline rebuilds from the store", "pipeline", t.pl.Name, "reason", err)
		default:
			t.logger.Error("pipeline failed", "pipeline", t.pl.Name, "error", err)
			t.setState(StateFailed, err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 5*time.Second)
	}
	t.setState(StateStopped, "")
}

// safeLife is life, except that a panic, which is a fault of an operator or of this package, fails the
// pipeline and not the log beside it.
func (t *task) safeLife(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.logger.Error("pipeline panicked", "pipeline", t.pl.Name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("runtime: pipeline %s: internal error: %v", t.pl.Name, p)
		}
	}()
	return t.life(ctx)
}

func (t *task) setState(s TaskState, reason string) {
	next := taskStatus{since: time.Now()}
	if old := t.status.Load(); old != nil {
		next = *old
		if old.state != s {
			next.since = time.Now()
		}
	}
	next.state, next.reason = s, reason
	t.status.Store(&next)
}

// A life is one opening of a task: an epoch, with its memory.
type life struct {
	*task
	epoch   uint64
	step    uint64
	from    []log.Cut
	chain   *chain
	inputs  *inputs
	parts   []*log.Partition
	results chan replication.Result
	tables  *tableInputs          // nil without lookups
	started uint64                // raft index at which the pipeline started
	flying  []*taskStatus         // of the steps proposed and not yet answered, in order
	marked  []operators.EventTime // last time mark written to each output partition
	markAt  time.Time
	limit   errorLimit
	cost    float64 // bytes of output and state for one row, from the rows so far

	stepBytes, outputBytes, batchRows, emitRows int
}

func (t *task) life(ctx context.Context) error {
	l := &life{
		task: t, results: make(chan replication.Result, maxFlying+1),
		stepBytes: smaller(t.opts.StepBytes, t.shrink), outputBytes: smaller(t.opts.OutputBytes, t.shrink),
		batchRows: smaller(t.opts.BatchRows, t.shrink), emitRows: smaller(min(emitRows, t.opts.BatchRows), t.shrink),
	}
	if t.emitBytes > 0 {
		l.emitRows = min(l.emitRows, max(1, int(float64(l.outputBytes)/t.emitBytes)))
	}
	l.cost = max(float64(l.outputBytes)/firstRows, t.rowCost, 1)
	t.setState(StateStarting, "")
	if err := l.open(ctx); err != nil {
		return err
	}
	defer l.close()
	idler := newIdler(l)
	t.setState(StateRunning, "")
	return l.loop(ctx, idler)
}

const (
	emitRows  = 4096 // what a window emits at once; the chain asks for more while the step has room
	firstRows = 512  // taken at once before the cost of a row is known
)

func smaller(n int, shrink uint) int { return max(1, n>>shrink) }

// open begins an epoch and restores progress and state from the store.
func (l *life) open(ctx context.Context) error {
	var u log.Unit
	u.TaskOpen(l.id)
	res := l.shard.Do(ctx, &u)
	if res.Outcome != replication.Yes {
		return fmt.Errorf("%w: open task: %w", errRebuild, resultError(res))
	}
	l.epoch = res.Index
	store := l.store
	for _, id := range l.source {
		p, ok := store.Partition(id)
		if !ok {
			return fmt.Errorf("%w (partition %s)", errSource, id)
		}
		l.parts = append(l.parts, p)
	}
	st, _ := store.Task(l.id)
	l.step = st.Step
	outs := l.outs()
	outs.source = l.source
	c, err := newChain(l.pl, outs, l.emitRows, l.opts.Allocator)
	if err != nil {
		return err
	}
	l.chain = c
	c.changeBytes = max(c.changeBytes, l.changeBytes)
	l.marked = make([]operators.EventTime, len(outs.main.partitions))
	for i, id := range outs.main.partitions {
		if l.marked[i], err = lastMark(store, id); err != nil {
			c.close()
			return err
		}
	}
	ids := append(slices.Clone(l.source), l.task.tables...)
	from := make([]int64, len(ids))
	for i, id := range ids {
		p, ok := store.Partition(id)
		if !ok {
			c.close()
			return fmt.Errorf("%w (partition %s)", errTable, id)
		}
		from[i] = p.LogStart()
	}
	l.started = l.epoch
	if st.Step > 0 {
		if err := l.resumeAt(&st.Progress, ids, from); err != nil {
			c.close()
			return err
		}
	}
	l.from = make([]log.Cut, len(ids))
	for i, id := range ids {
		l.from[i] = log.Cut{Partition: id, Offset: from[i]}
	}
	if err := store.TaskRows(l.id, c.restore); err != nil {
		c.close()
		return fmt.Errorf("runtime: restore state of %s: %w", l.pl.Name, err)
	}
	c.unfinished = c.waiting()
	if c.w == operators.MaxEventTime {
		c.advance(l.outputBytes) // everything has left: this only closes what is over for later rows
	}
	l.inputs, err = newInputs(l.pl.Source, l.pl.Needed, readsKey(l.pl), l.parts, from, l.passLost, l.batchRows, l.opts.Allocator)
	if err != nil {
		c.close()
		return err
	}
	if err := l.openTables(from[len(l.parts):]); err != nil {
		l.inputs.close()
		c.close()
		return err
	}
	l.passLost = false
	l.publish(l.picture())
	return nil
}

// lastMark is the time mark at the end of a partition, MinEventTime if something else is there.
func lastMark(store *log.Store, id log.PartitionID) (operators.EventTime, error) {
	p, ok := store.Partition(id)
	if !ok || p.LogEnd() <= p.LogStart() {
		return operators.MinEventTime, nil
	}
	batches, err := p.Read(p.LogEnd()-1, 1, nil)
	switch {
	case errors.Is(err, log.ErrOffsetRange): // retention was faster
	case err != nil:
		return 0, fmt.Errorf("runtime: read the last time mark of %s: %w", id, err)
	default:
		if w, _, mark := controlBatch(batches[len(batches)-1].Data); mark {
			return w, nil
		}
	}
	return operators.MinEventTime, nil
}

// resumeAt puts the chain and the cut where a step left them.
func (l *life) resumeAt(p *log.Progress, ids []log.PartitionID, from []int64) (err error) {
	c := l.chain
	at := make(map[log.PartitionID]int, len(ids))
	for i, id := range ids {
		at[id] = i
	}
	inputs := make([]*inputState, len(p.To))
	for i, cut := range p.To {
		k, ok := at[cut.Partition]
		if !ok {
			return fmt.Errorf("%w (it had partition %s)", errSource, cut.Partition)
		}
		from[k] = cut.Offset
		if k >= len(c.inputs) { // of a table: it holds no watermark back
			inputs[i] = &inputState{}
			continue
		}
		inputs[i] = &c.inputs[k]
		inputs[i].watermark = p.Watermarks[i]
	}
	c.w = p.W
	if c.onAppend {
		c.frontier = c.w
	}
	l.started, err = parseExtra(p.Extra, &c.counters, inputs)
	return err
}

// errSource says that a source partition is gone.
var errSource = errors.New("runtime: the source topic was deleted or made anew; apply the module again to compute the pipeline from its beginning")

// close gives everything back. Steps in flight are not waited for: whoever opens the task next is behind
// them in the log.
func (l *life) close() {
	l.markers.CompareAndDelete(l.source[0].Topic, l.id)
	l.inputs.close()
	if l.tables != nil {
		l.tables.in.close()
	}
	l.chain.close()
}

func resultError(r replication.Result) error {
	switch {
	case r.Err != nil:
		return r.Err
	case r.Result.Err != nil:
		return r.Result.Err
	}
	return errors.New("outcome unknown")
}

// maxFlying steps may wait for their commit while the next is computed.
const maxFlying = 4

// loop steps until ctx ends or a step does not commit.
func (l *life) loop(ctx context.Context, idler *idler) error {
	for {
		if err := l.collect(len(l.flying) >= maxFlying); err != nil {
			return err
		}
		if err := l.limit.err(l.pl.Name); err != nil {
			for len(l.flying) > 0 {
				if err := l.collect(true); err != nil {
					return err
				}
			}
			return err
		}
		pending, err := l.fill()
		if err != nil {
			return err
		}
		if err := idler.markSources(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if pending || l.chain.unfinished || l.chain.watermark() != l.chain.w || l.marksDue() || l.appendDue() {
			did, err := l.oneStep(ctx)
			if err != nil {
				return err
			}
			if did {
				continue
			}
		}
		if err := idler.idle(ctx); err != nil {
			return err
		}
	}
}

// notFilled is what follows when the inputs cannot be read. Where records are gone the pipeline pauses: whoever lets it go
// on knows that its output lacks them. Before the first step there is nothing to lack: the beginning is where the log starts.
func (l *life) notFilled(err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return err
	}
	if l.step == 0 {
		return fmt.Errorf("%w: %w", errRebuild, lost)
	}
	return l.lost(l.pl.Source.Name, lost)
}

func (l *life) lost(topic string, lost *lostError) error {
	return fmt.Errorf("%w: %s: %s: %w, by retention or by a request to delete records; resume the pipeline to go on after them, or delete it and apply its module to compute it from what is left",
		errPaused, l.pl.Name, topic, lost)
}

// collect takes the answers of earlier steps. With block it waits for one.
func (l *life) collect(block bool) error {
	for len(l.flying) > 0 {
		var r replication.Result
		if block {
			r = <-l.results
			block = false
		} else {
			select {
			case r = <-l.results:
			default:
				return nil
			}
		}
		if err := l.answered(r); err != nil {
			return err
		}
	}
	return nil
}

// answered takes the answer of the oldest step in flight.
func (l *life) answered(r replication.Result) error {
	switch {
	case r.Outcome == replication.Yes:
		l.tooLarge = 0
		l.publish(l.flying[0])
		l.flying = append(l.flying[:0], l.flying[1:]...)
		return nil
	case errors.Is(r.Err, log.ErrTooLarge):
		return fmt.Errorf("%w: %w", errTooLarge, r.Err)
	}
	return fmt.Errorf("%w: step: %w", errRebuild, resultError(r))
}

// oneStep runs pending items through the chain and proposes what came out as one unit. It answers false,
// and proposes nothing, if there was nothing to do.
func (l *life) oneStep(ctx context.Context) (did bool, err error) {
	c := l.chain
	to := append([]log.Cut(nil), l.from...)
	horizon, waits := l.horizon()
	if l.tables != nil {
		did = l.takeInOrder(horizon, to)
	}
	for _, p := range l.inputs.parts {
		for l.tables == nil && len(p.pending) > 0 && !c.unfinished && c.used() < l.outputBytes && p.pending[0].appended <= horizon && !l.limit.reached {
			to[p.index].Offset = l.takeItem(p)
			did = true
		}
	}
	if waits {
		l.taken(horizon)
	}
	if c.sink.refused != nil {
		return false, fmt.Errorf("%w: %s: a row failed, and its module says `fail`: %s; mend the source or the module, then resume", errPaused, l.pl.Name, c.sink.refused)
	}
	before := c.w
	c.advance(l.outputBytes)
	if c.sink.refused != nil {
		return false, fmt.Errorf("%w: %s: a group failed, and its module says `fail`: %s; mend the module, then resume", errPaused, l.pl.Name, c.sink.refused)
	}
	if !did && c.used() == 0 && c.w == before && !l.marksDue() {
		return false, nil
	}
	u, estimate := &log.Unit{}, c.used()
	u.Grow(estimate + estimate/8 + 4096)
	states := c.inputs
	for range l.task.tables {
		states = append(states[:len(states):len(states)], inputState{watermark: operators.MaxEventTime})
	}
	watermarks := make([]int64, len(states))
	for i := range states {
		watermarks[i] = states[i].watermark
	}
	l.step++
	u.Progress(log.Progress{
		Task: l.id, Epoch: l.epoch, Step: l.step, From: l.from, To: to,
		Watermarks: watermarks, W: c.w, Extra: appendExtra(nil, &c.counters, states, l.started),
	})
	written := append([]bool(nil), c.sink.main.written...)
	c.sink.take(u)
	c.changes(u, l.id)
	if real := float64(u.Size()) / float64(max(estimate, 4096)); real > 1 {
		l.cost *= real
	}
	l.rowCost, l.emitBytes, l.changeBytes = l.cost, c.emitBytes, c.changeBytes
	l.writeMarks(u, written)
	results := l.results // has room for every step in flight, so that done never blocks
	err = l.shard.ProposeWait(ctx, u, func(r replication.Result) { results <- r })
	switch {
	case errors.Is(err, replication.ErrTooLarge):
		return false, fmt.Errorf("%w: %w", errTooLarge, err)
	case err != nil:
		return false, fmt.Errorf("%w: propose: %w", errRebuild, err)
	}
	l.from = to
	l.flying = append(l.flying, l.picture())
	return true, nil
}

// takeItem gives the next item of a partition to the chain, or as many of its rows as the step has room
// for, and answers the offset after what it took.
func (l *life) takeItem(p *input) (next int64) {
	c, it := l.chain, &p.pending[0]
	if it.isMark {
		c.mark(p.index, it.mark)
	}
	c.counters.Skipped += it.skipped
	it.skipped = 0
	rows, invalid, next := it.rows, it.invalid, it.next
	it.rows, it.invalid = nil, nil
	before := c.used()
	if room := max(1, int(float64(l.outputBytes-before)/l.cost)); rows != nil && room < rows.Rows {
		first, rest := rows.Slice(0, room), rows.Slice(room, rows.Rows)
		rows.Release()
		next = rest.Offsets[0]
		it.trim(next)
		k := sort.Search(len(invalid), func(i int) bool { return invalid[i].Offset >= next })
		it.rows, it.invalid = rest, invalid[k:]
		rows, invalid = first, invalid[:k]
	} else {
		p.pop()
	}
	if rows == nil && len(invalid) == 0 {
		return next
	}
	sp := c.take(p.index, rows, invalid)
	if sp.rows > 0 {
		cost := float64(c.used()-before) / float64(sp.rows)
		l.cost = max(cost, 0.8*l.cost, 1)
	}
	if len(sp.bad) > 0 {
		l.limit.last = c.sink.lastBad
	}
	l.limit.rows(sp.at, sp.rows, sp.bad)
	return next
}

// horizon is the append time up to which rows may be taken: without windows on append time, any. With
// them it is the append time that every partition has reached, so that a window holds the same rows
// however the partitions are read. waits says that there is something for which append time may pass.
func (l *life) horizon() (h operators.EventTime, waits bool) {
	if !l.chain.onAppend {
		return operators.MaxEventTime, false
	}
	h = operators.MaxEventTime
	now := l.store.AppendTime() // before the log ends: what is appended later is not older
	_, rows := l.chain.stateSize()
	waits = rows > 0
	for i, p := range l.inputs.parts {
		switch n := len(p.pending); {
		case n > 0:
			h, waits = min(h, p.pending[n-1].appended), true
		case p.read >= p.part.LogEnd():
			h = min(h, max(now, l.chain.inputs[i].appended))
		default:
			h = min(h, l.chain.inputs[i].appended)
		}
	}
	return h, waits
}

// taken moves the frontier of append time to h, or as far as what is still pending allows: an item that reaches
// past the horizon, or that did not fit into the step, begins below it.
func (l *life) taken(h operators.EventTime) {
	for _, p := range l.inputs.parts {
		if len(p.pending) > 0 {
			h = min(h, p.pending[0].begins())
		}
	}
	l.chain.frontier = max(l.chain.frontier, h)
}

// appendDue says whether time alone may close a window on append time.
func (l *life) appendDue() bool {
	if !l.chain.onAppend {
		return false
	}
	_, rows := l.chain.stateSize()
	return rows > 0 && time.Since(l.markAt) >= markEvery
}

// markEvery is how long a quiet output partition may lag behind the watermark.
const markEvery = time.Second

func (l *life) marksDue() bool {
	if l.chain.w == operators.MinEventTime || time.Since(l.markAt) < markEvery {
		return false
	}
	for _, m := range l.marked {
		if m < l.chain.w {
			return true
		}
	}
	return false
}

// writeMarks tells readers of the derived topic how far event time has come.
func (l *life) writeMarks(u *log.Unit, written []bool) {
	w := l.chain.w
	if w == operators.MinEventTime {
		return
	}
	due := l.marksDue() || w == operators.MaxEventTime
	for i, id := range l.chain.sink.main.partitions {
		if l.marked[i] < w && (due || written[i]) {
			u.Append(id, record.TimeMark(w, max(0, floorDiv(w, 1e6))))
			l.marked[i] = w
		}
	}
	if due {
		l.markAt = time.Now()
	}
}

// picture is the status after the step that was computed last.
func (l *life) picture() *taskStatus {
	c := l.chain
	s := &taskStatus{step: l.step, w: c.w, counters: c.counters.clone()}
	for i := range c.inputs {
		s.watermarks = append(s.watermarks, c.inputs[i].watermark)
		s.next = append(s.next, l.from[i].Offset)
	}
	s.tables = append(s.tables, l.from[len(c.inputs):]...)
	s.stateBytes, s.stateRows = c.stateSize()
	return s
}

// publish makes a picture of a committed step the task's status.
func (l *life) publish(s *taskStatus) {
	s.state, s.since = StateRunning, time.Now()
	if old := l.status.Load(); old != nil {
		s.state, s.reason, s.since = old.state, old.reason, old.since
	}
	l.status.Store(s)
}

// Options tune an Engine. The zero value works.
type Options struct {
	// StepBytes of source batches are read for one step, about; default 4 MiB. It trades latency of
	// the steps under load against their cost; output does not depend on it.
	StepBytes int
	// OutputBytes ends a step early; default 2 MiB.
	OutputBytes int
	// BatchRows bounds a columnar batch; default 8192.
	BatchRows int
	// Workers decode source partitions at the same time; default GOMAXPROCS.
	Workers int
	// DefaultPartitions of a declared topic that names none; default 1.
	DefaultPartitions int
	// ViewScanBytes bounds what one fetch of a view reads; default 8 MiB.
	ViewScanBytes int
	Allocator     memory.Allocator
	Logger        *slog.Logger
	// Now is the wall clock, for time marks of idle partitions; default time.Now.
	Now func() time.Time
}
