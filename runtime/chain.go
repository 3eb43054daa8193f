package runtime

import (
	"fmt"
	"math"
	"time"

	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/lookup"
	"github.com/headrace/headrace/operators/vector"
	"github.com/headrace/headrace/operators/window"
	"github.com/headrace/headrace/runtime/codec"
)

// A chain is the operators of one pipeline with their state, from decoded rows to encoded output. It
// has no I/O and no clock: rows, marks and watermarks in, a unit's operations out. One goroutine.
type chain struct {
	pl       *plan.Pipeline
	alloc    memory.Allocator
	clock    eventClock
	inputs   []inputState // by source partition
	stages   []*stageRun
	tables   []*tableRun // those that lookups read
	sink     *sink
	counters Counters
	w        operators.EventTime // the pipeline's watermark that the stages have seen

	// Windows on append time. The watermark of a chain that has some is frontier: the append time below
	// which every row has been taken.
	onAppend bool
	frontier operators.EventTime

	// unfinished: what the stages have to give away did not all fit into the last step. No rows are taken
	// until it has left.
	unfinished bool

	// Bytes of one changed state row, and of one row that a window gave away, from the steps so far.
	changeBytes, emitBytes float64
}

// inputState is the time state of one source partition: a pure function of the prefix read.
type inputState struct {
	watermark operators.EventTime // W_p
	maxTime   operators.EventTime // largest event time of a row, MinEventTime before the first
	appended  operators.EventTime // append time of the last row
}

// A stageRun is one operator with its place in the chain. It is the operator's Emitter.
type stageRun struct {
	word     string
	op       operators.Operator
	next     *stageRun // nil: the sink
	chain    *chain
	counters *StageCounters
	closing  bool // Advance runs: what fails now are groups, not rows

	// fused runs the stage and those after it without state at once.
	fused *operators.Fused
	parts []*stageRun // the stages that fused runs
}

// Emit implements operators.Emitter.
func (s *stageRun) Emit(b *operators.Batch) {
	s.counters.Out += int64(b.Rows)
	s.chain.into(s.next, b, s.word)
}

// Late implements operators.Emitter.
func (s *stageRun) Late(b *operators.Batch, rows []int) {
	s.counters.Late += int64(len(rows))
	s.chain.sink.giveLate(b, rows, s.word)
}

// Fail implements operators.Emitter.
func (s *stageRun) Fail(b *operators.Batch, errs []operators.RowError) {
	if s.closing {
		s.counters.Lost += int64(len(errs))
	} else {
		s.counters.Failed += int64(len(errs))
	}
	s.chain.sink.fail(b, errs, s.word)
}

// into hands a batch to a stage, or to the sink.
func (c *chain) into(s *stageRun, b *operators.Batch, from string) {
	if s == nil {
		c.sink.write(b, from)
		return
	}
	if s.fused != nil {
		c.intoFused(s, b)
		return
	}
	n := s.counters
	n.In += int64(b.Rows)
	rows, before, failed := int64(b.Rows), n.Out+n.Failed+n.Late, n.Failed
	s.op.Process(b, s)
	rest := rows - (n.Out + n.Failed + n.Late - before)
	if s.account() {
		return
	}
	switch s.op.(type) {
	case *operators.Filter, *lookup.Lookup:
		n.Filtered += rest
	case *operators.TableFilter, *operators.TableProject:
		n.Deleted -= rest
	case *operators.Explode:
		n.Folded += rows - (n.Failed - failed)
	case *window.Changes:
		n.Folded += rows
	case operators.Stateful:
		n.Folded += rest
	}
}

// intoFused hands a batch to a run of stages at once. It owns b.
func (c *chain) intoFused(s *stageRun, b *operators.Batch) {
	defer b.Release()
	out, counts := s.fused.Run(b)
	last := s
	for i, n := range counts {
		last = s.parts[i]
		last.counters.In += int64(n.In)
		last.counters.Out += int64(n.Out)
		last.counters.Filtered += int64(n.In - n.Out - len(n.Errors))
		if len(n.Errors) > 0 {
			last.Fail(b, n.Errors)
		}
	}
	if out != nil {
		c.into(last.next, out, last.word)
	}
}

// newChain builds the operators of a pipeline without state. A window gives away up to emitRows rows at
// a time.
func newChain(pl *plan.Pipeline, outs sideOutputs, emitRows int, alloc memory.Allocator) (*chain, error) {
	c := &chain{pl: pl, alloc: alloc, w: operators.MinEventTime, frontier: operators.MinEventTime, changeBytes: 128}
	c.inputs = make([]inputState, len(outs.source))
	for i := range c.inputs {
		c.inputs[i] = unseen()
	}
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	enc, err := codec.NewEncoder(pl.Output)
	if err != nil {
		return nil, fmt.Errorf("runtime: encoder of %s: %w", pl.Output.Name, err)
	}
	if pl.Output.Format == plan.FormatArrow {
		if err := outs.main.useColumns(pl.Output); err != nil {
			return nil, fmt.Errorf("runtime: columns of %s: %w", pl.Output.Name, err)
		}
	}
	c.sink = &sink{
		pipeline: pl.Name, main: outs.main, late: outs.late, invalid: outs.invalid, errors: outs.errors,
		encoder: enc, key: pl.Output.Key, types: types(pl.Output.Schema), counters: &c.counters,
		refuse:   refusals(pl),
		flat:     flat(pl.Output),
		alloc:    alloc,
		keepPart: keepsPartition(pl) && len(outs.main.partitions) == len(outs.source),
		keyed:    typeOf(pl) != plan.StreamAppend,
	}
	if !c.sink.keepPart && !merges(pl) && len(outs.source) > 1 && !c.sink.keyed {
		c.sink.release = &releaser{}
	}
	if err := c.clock.init(pl.Source, alloc); err != nil {
		return nil, err
	}
	ops, err := buildStages(pl.Source, pl.Stages, stageOptions{emitRows: emitRows, single: len(outs.source) == 1}, alloc)
	if err != nil {
		return nil, err
	}
	if err := c.openTables(ops); err != nil {
		for _, op := range ops {
			op.Close()
		}
		return nil, err
	}
	for i := range pl.Stages {
		c.onAppend = c.onAppend || pl.Stages[i].Agg != nil && pl.Stages[i].Agg.OnAppend
	}
	c.counters.Stages = make([]StageCounters, len(ops))
	for i, op := range ops {
		c.counters.Stages[i].Stage = pl.Stages[i].Word
		c.stages = append(c.stages, &stageRun{word: pl.Stages[i].Word, op: op, chain: c, counters: &c.counters.Stages[i]})
		if i > 0 {
			c.stages[i-1].next = c.stages[i]
		}
	}
	input := types(pl.Source.Schema)
	for i := 0; i < len(pl.Stages); {
		f, n, err := fuse(lowering{alloc: alloc, input: input}, pl.Stages[i:])
		if err != nil {
			c.close()
			return nil, fmt.Errorf("runtime: stages from %d: %w", i+1, err)
		}
		if f != nil {
			c.stages[i].fused, c.stages[i].parts = f, c.stages[i:i+n]
		}
		i += max(n, 1)
		input = types(pl.Stages[i-1].Out)
	}
	return c, nil
}

// sideOutputs are the topics of a chain, resolved to partitions.
type sideOutputs struct {
	source                      []log.PartitionID
	main, late, invalid, errors *output
}

// buildStages makes the operators of a list of stages over an input schema.
func buildStages(source *plan.Topic, stages []plan.Stage, o stageOptions, alloc memory.Allocator) ([]operators.Operator, error) {
	var ops []operators.Operator
	input := source.Schema
	o.topic = source.Name
	for i := range stages {
		st := &stages[i]
		op, err := buildStage(input, st, o, alloc)
		if err != nil {
			for _, o := range ops {
				o.Close()
			}
			return nil, fmt.Errorf("runtime: stage %d (%s): %w", i+1, st.Word, err)
		}
		ops = append(ops, op)
		input = st.Out
	}
	return ops, nil
}

func buildStage(input plan.Schema, st *plan.Stage, o stageOptions, alloc memory.Allocator) (operators.Operator, error) {
	low := lowering{alloc: alloc, input: types(input)}
	switch st.Kind {
	case plan.StageFilter:
		p, err := low.program([]*plan.Expr{st.Filter})
		if err != nil {
			return nil, err
		}
		if st.Type != plan.StreamAppend {
			return operators.NewTableFilter(p), nil
		}
		return operators.NewFilter(p, alloc), nil
	case plan.StageProject:
		p, err := low.program(exprsOf(st.Project))
		if err != nil {
			return nil, err
		}
		if st.Type != plan.StreamAppend {
			return operators.NewTableProject(p), nil
		}
		return operators.NewProject(p, types(st.Out), alloc), nil
	case plan.StageKey:
		return operators.NewKey(operators.Columns(st.OutKey), pickTypes(types(input), st.OutKey), alloc), nil
	case plan.StageExplode:
		return buildExplode(low, st, alloc)
	case plan.StageDedup:
		return buildDedup(low, input, st, o, alloc)
	case plan.StageOver:
		return buildOver(low, input, st, o, alloc)
	case plan.StageLookup:
		return buildLookup(low, st, alloc)
	case plan.StageTop:
		return buildTop(low, input, st, o, alloc)
	case plan.StageChanges:
		return window.NewChanges(types(st.Out), alloc), nil
	case plan.StageAggregate:
		return buildAggregate(low, st, o.emitRows, alloc)
	}
	return nil, fmt.Errorf("unknown kind %d", st.Kind)
}

func exprsOf(named []plan.NamedExpr) []*plan.Expr {
	out := make([]*plan.Expr, len(named))
	for i := range named {
		out[i] = named[i].Expr
	}
	return out
}

func typesOf(exprs []*plan.Expr) []scalar.Type {
	out := make([]scalar.Type, len(exprs))
	for i, e := range exprs {
		out[i] = e.Type
	}
	return out
}

func pickTypes(all []scalar.Type, at []int) []scalar.Type {
	out := make([]scalar.Type, len(at))
	for i, c := range at {
		out[i] = all[c]
	}
	return out
}

// An eventClock gives the rows of a source their event time.
type eventClock struct {
	program *vector.Program // over the source's columns; nil: the record's own time
	append  bool
	derived bool // the watermark comes from the writer's time marks, not from the rows
	lag     int64
	future  int64
	text    string
}

func (ec *eventClock) init(t *plan.Topic, alloc memory.Allocator) error {
	ec.append, ec.lag, ec.future = t.Time.Append, int64(t.Time.Lag), int64(t.Time.Future)
	ec.derived = t.Derived
	if ec.future == 0 {
		ec.future = int64(time.Minute)
	}
	if t.Time.Expr == nil {
		return nil
	}
	p, err := lowering{alloc: alloc, input: types(t.Schema)}.program([]*plan.Expr{t.Time.Expr})
	if err != nil {
		return err
	}
	ec.program, ec.text = p, t.Time.Expr.Text
	return nil
}

// An invalidRow is a row without a usable event time.
type invalidRow struct {
	row    int
	code   scalar.Code
	detail string
}

// stamp sets the event time of each row, as a slice of its own, and lists the rows that have none.
func (ec *eventClock) stamp(b *operators.Batch) []invalidRow {
	var bad []invalidRow
	switch {
	case ec.append:
		b.Time = append([]int64(nil), b.AppendTime...)
	case ec.program != nil:
		r, err := ec.program.Eval(b, nil) // of a delete too: it has the record's time, whatever this gives
		if err != nil {
			panic("runtime: event time: " + err.Error()) // program and schema come from one plan
		}
		defer r.Release()
		col := r.Columns[0].(*array.Timestamp)
		times := make([]int64, b.Rows)
		errs := r.Errors
		for i := range times {
			switch {
			case b.Deletes(i):
				if times[i] = b.Time[i]; len(errs) > 0 && errs[0].Row == i {
					errs = errs[1:]
				}
			case len(errs) > 0 && errs[0].Row == i:
				bad = append(bad, invalidRow{i, errs[0].Code, "event time " + ec.text})
				errs = errs[1:]
			case col.IsNull(i):
				bad = append(bad, invalidRow{i, scalar.CodeNull, "event time " + ec.text + " is null"})
			default:
				times[i] = int64(col.Value(i))
			}
		}
		b.Time = times
	}
	if ec.append || ec.derived || b.AppendTime == nil {
		return bad
	}
	var all []invalidRow
	for i := range b.Rows {
		if len(bad) > 0 && bad[0].row == i {
			all = append(all, bad[0])
			bad = bad[1:]
			continue
		}
		if limit := b.AppendTime[i]; limit < math.MaxInt64-ec.future && b.Time[i] > limit+ec.future {
			all = append(all, invalidRow{i, scalar.CodeFuture, fmt.Sprintf("event time %s is more than %s after the append time",
				time.Unix(0, b.Time[i]).UTC().Format(time.RFC3339Nano), time.Duration(ec.future))})
		}
	}
	return all
}

// A span is how many rows of one source partition were taken at once, and which of them failed.
type span struct {
	at   operators.EventTime // append time of the first
	rows int
	bad  []int // positions, ascending
}

// take takes rows of source partition p with the records among them that could not be decoded, in
// offset order. It owns b, which may be nil. Rows for side topics leave in offset order, whatever the
// stage that gave them up, so that the order does not depend on how rows were cut into batches.
func (c *chain) take(p int, b *operators.Batch, invalid []codec.Invalid) span {
	var offsets []int64
	sp := span{rows: len(invalid)}
	if b != nil {
		offsets = b.Offsets
		sp.rows += b.Rows
		sp.at = b.AppendTime[0]
	} else if len(invalid) > 0 {
		sp.at = invalid[0].AppendTime
	}
	c.sink.collect()
	for i := range invalid {
		v := &invalid[i]
		c.counters.In++
		c.sink.giveInvalid(operators.Origin{
			Topic: c.pl.Source.Name, Partition: int32(p), Offset: v.Offset, Timestamp: v.Timestamp, Key: v.Key, Value: v.Value,
		}, v.Code, v.Detail)
		c.inputs[p].appended = max(c.inputs[p].appended, v.AppendTime)
	}
	if b != nil {
		c.rows(p, b)
	}
	failed := c.sink.give()
	if len(failed) > 0 {
		sp.bad = positions(failed, offsets, invalid)
	}
	return sp
}

// positions finds ascending offsets among those of rows and invalid records, both ascending.
func positions(bad, rows []int64, invalid []codec.Invalid) []int {
	var out []int
	i, k := 0, 0
	for _, o := range bad {
		for i < len(rows) && rows[i] < o {
			i++
		}
		for k < len(invalid) && invalid[k].Offset < o {
			k++
		}
		out = append(out, i+k)
	}
	return out
}

// rows takes decoded rows of source partition p, in offset order. It owns b.
func (c *chain) rows(p int, b *operators.Batch) {
	c.counters.In += int64(b.Rows)
	bad := c.clock.stamp(b)
	if t := c.pl.Source; t.Table && !t.Derived {
		bad = withWrongKeys(bad, b, t)
	}
	in := &c.inputs[p]
	// In a derived topic a row that was behind there says so; elsewhere such a header means nothing.
	behind := b.Behind
	if behind == nil || !c.clock.derived {
		behind = make([]operators.EventTime, b.Rows)
		for i := range behind {
			behind[i] = operators.MinEventTime
		}
	}
	rest, w, top := bad, in.watermark, in.maxTime
	for i, ts := range b.Time {
		if len(rest) > 0 && rest[0].row == i {
			rest = rest[1:]
			continue
		}
		behind[i] = max(behind[i], w)
		if ts > top {
			top = ts
			if !c.clock.derived {
				w = max(w, minus(ts, c.clock.lag))
			}
		}
	}
	in.watermark, in.maxTime = w, top
	in.appended = max(in.appended, b.AppendTime[b.Rows-1])
	b.Behind = behind
	if len(bad) > 0 {
		for _, r := range bad {
			c.sink.giveInvalid(b.Origin(r.row), r.code, r.detail)
		}
		good := b.Select(c.alloc, rowsExcept(b.Rows, bad))
		b.Release()
		b = good
	}
	if b.Rows == 0 {
		b.Release()
		return
	}
	c.into(c.first(), b, "")
}

func (c *chain) first() *stageRun {
	if len(c.stages) == 0 {
		return nil
	}
	return c.stages[0]
}

func rowsExcept(n int, bad []invalidRow) []int32 {
	sel := make([]int32, 0, n-len(bad))
	for i := range n {
		if len(bad) > 0 && bad[0].row == i {
			bad = bad[1:]
			continue
		}
		sel = append(sel, int32(i))
	}
	return sel
}

// minus is t - d, not below the first event time.
func minus(t, d int64) int64 {
	if t < math.MinInt64+d {
		return math.MinInt64
	}
	return t - d
}

// mark takes a time mark of source partition p.
func (c *chain) mark(p int, w operators.EventTime) {
	in := &c.inputs[p]
	in.watermark = max(in.watermark, w)
}

// watermark is the minimum over all source partitions; with windows on append time it is how far the
// append time has come, or the end if all partitions have ended.
func (c *chain) watermark() operators.EventTime {
	w := operators.MaxEventTime
	for i := range c.inputs {
		w = min(w, c.inputs[i].watermark)
	}
	if c.onAppend && w != operators.MaxEventTime {
		return max(c.frontier, c.w)
	}
	return max(w, c.w)
}

// advance lets the stages see the watermark, as far as limit bytes of output and state allow. It answers
// whether everything that the watermark closes has been emitted; if not, the next step goes on from there.
func (c *chain) advance(limit int) (done bool) {
	defer func() { c.unfinished = !done }()
	defer c.settle()
	w := c.watermark()
	for _, s := range c.stages {
		for {
			if a, ok := s.op.(interface{ ObserveAppend(operators.EventTime) }); ok && c.onAppend {
				a.ObserveAppend(c.frontier)
			}
			before, left := c.used(), s.counters.Out
			s.closing = true
			s.op.Advance(w, s)
			s.closing = false
			s.account()
			if n := s.counters.Out - left; n > 0 {
				c.emitBytes = max(float64(c.used()-before)/float64(n), 0.9*c.emitBytes)
			}
			more, ok := s.op.(interface{ More() bool })
			if !ok || !more.More() {
				break
			}
			if c.used() >= limit {
				return false
			}
		}
	}
	if r := c.sink.release; r != nil {
		r.release(w, func(row *heldRow) bool {
			c.counters.Held--
			c.sink.emit(row)
			return c.used() < limit
		})
		if r.ready(w) {
			return false
		}
	}
	c.w = w
	return true
}

// waiting says whether stages have something to give away, as they may after a restart.
func (c *chain) waiting() bool {
	for _, s := range c.stages {
		if m, ok := s.op.(interface{ More() bool }); ok && m.More() {
			return true
		}
	}
	return false
}

// used is about how many bytes the step would have if it ended now.
func (c *chain) used() int {
	rows := 0
	bytes := 0
	for _, s := range c.stages {
		switch a := s.op.(type) {
		case *lookup.Lookup:
			bytes += a.ChangedBytes()
		case interface{ ChangedRows() int }:
			rows += a.ChangedRows()
		}
	}
	n := bytes + c.sink.bytes + int(float64(rows)*c.changeBytes)
	if c.sink.release != nil {
		n += c.sink.release.changed
	}
	return n
}

// State keys carry the stage, so that several stateful stages share a task: one byte, 255 for held rows.
const heldStage = 255

// changes writes the state changes since the last call into a unit.
func (c *chain) changes(u *log.Unit, task log.TaskID) {
	var key []byte
	rows, bytes := 0, 0
	put := func(stage byte) func(k, v []byte) {
		return func(k, v []byte) {
			key = append(append(key[:0], stage), k...)
			u.State(task, key, v)
			rows++
			bytes += len(k) + len(v) + 28 // and what frames it
		}
	}
	for i, s := range c.stages {
		if st, ok := s.op.(operators.Stateful); ok {
			st.Changes(put(byte(i)))
		}
	}
	if rows > 0 {
		c.changeBytes = max(float64(bytes)/float64(rows), 0.9*c.changeBytes)
	}
	if c.sink.release != nil {
		c.sink.release.changes(put(heldStage))
	}
}

// restore gives one state row back.
func (c *chain) restore(key, value []byte) error {
	if len(key) == 0 {
		return fmt.Errorf("runtime: empty state key")
	}
	stage, key := key[0], key[1:]
	if stage == heldStage && c.sink.release != nil {
		return c.sink.release.restore(key, value)
	}
	if int(stage) < len(c.stages) {
		if st, ok := c.stages[stage].op.(operators.Stateful); ok {
			return st.Restore(key, value)
		}
	}
	return fmt.Errorf("runtime: state of stage %d, which keeps none", stage)
}

// stateSize is the memory and the number of keyed rows held.
func (c *chain) stateSize() (bytes, rows int64) {
	for _, s := range c.stages {
		if st, ok := s.op.(operators.Stateful); ok {
			bytes += st.StateBytes()
			rows += st.StateRows()
		}
	}
	if r := c.sink.release; r != nil {
		bytes += r.bytes
		rows += int64(r.rows.Len())
	}
	return bytes, rows
}

func (c *chain) close() {
	for _, s := range c.stages {
		s.op.Close()
	}
}

// emissions are the modes of the plan as the operator has them: `emit changes` is `emit update` until an
// aggregate takes its rows, behind a StageChanges.
var emissions = map[plan.Emit]window.Emit{
	plan.EmitClose: window.EmitClose, plan.EmitUpdate: window.EmitUpdate, plan.EmitEvery: window.EmitEvery, plan.EmitChanges: window.EmitUpdate,
}

// buildAggregate makes the window aggregate of a stage. Accumulators with the same filter share one
// program for their arguments, so that common parts are computed once.
func buildAggregate(low lowering, st *plan.Stage, emitRows int, alloc memory.Allocator) (operators.Operator, error) {
	agg := st.Agg
	o := window.Options{
		Size: agg.Window.Size, Every: agg.Window.Every, OnAppend: agg.OnAppend, EmitRows: emitRows, Alloc: alloc,
		Unwindowed: agg.Window.Kind == 0, Emit: emissions[agg.Emit], Tick: agg.Every, Accept: agg.Accept, TTL: agg.TTL,
		Retract: agg.Retract, Marks: agg.Marks(),
		Slots: make([]window.Slot, len(agg.Slots)),
	}
	if len(agg.By) > 0 {
		by, err := low.program(exprsOf(agg.By))
		if err != nil {
			return nil, err
		}
		o.By, o.ByTypes = by, typesOf(exprsOf(agg.By))
		for i := range agg.By {
			o.ByNames = append(o.ByNames, agg.By[i].Name)
		}
	}
	shared := map[string][]int{} // filter text -> slots
	var order []string
	for i := range agg.Slots {
		s := &agg.Slots[i]
		text := ""
		if s.Filter != nil {
			text = "where " + s.Filter.Text
		}
		if shared[text] == nil {
			order = append(order, text)
		}
		shared[text] = append(shared[text], i)
		o.Slots[i] = window.Slot{Func: s.Func, Type: s.Type, Text: s.Func}
		if s.Arg != nil {
			o.Slots[i].ArgType = s.Arg.Type
			o.Slots[i].Text = s.Text()
		}
		if s.By != nil {
			o.Slots[i].ByType = s.By.Type
		}
		if s.Param != nil {
			o.Slots[i].Param, o.Slots[i].ParamType = s.Param.Value, s.Param.Type
		}
	}
	for _, text := range order {
		var args []*plan.Expr
		for _, i := range shared[text] {
			if a := agg.Slots[i].Arg; a != nil {
				o.Slots[i].Column = len(args)
				args = append(args, a)
			}
			if y := agg.Slots[i].By; y != nil {
				o.Slots[i].ByColumn = len(args)
				args = append(args, y)
			}
		}
		var arg, filter operators.Evaluator
		if len(args) > 0 {
			p, err := low.program(args)
			if err != nil {
				return nil, err
			}
			arg = p
		}
		if f := agg.Slots[shared[text][0]].Filter; f != nil {
			p, err := low.program([]*plan.Expr{f})
			if err != nil {
				return nil, err
			}
			filter = p
		}
		for _, i := range shared[text] {
			o.Slots[i].Filter = filter
			if agg.Slots[i].Arg != nil {
				o.Slots[i].Arg = arg
			}
		}
	}
	// The synthetic row: by columns, window_start, window_end if there is a window, one column a slot.
	row := typesOf(exprsOf(agg.By))
	if !o.Unwindowed {
		row = append(row, scalar.TypeTime, scalar.TypeTime)
	}
	for i := range agg.Slots {
		row = append(row, agg.Slots[i].Type)
	}
	results, err := lowering{alloc: alloc, input: row}.program(exprsOf(agg.Results))
	if err != nil {
		return nil, err
	}
	o.Results = results
	return openWindow(agg.Window, o)
}

// openWindow makes the operator of a kind of windows.
func openWindow(w plan.Window, o window.Options) (operators.Operator, error) {
	switch w.Kind {
	case 0, plan.WindowTumble, plan.WindowHop: // 0: groups without a window
		return window.NewAggregate(o)
	case plan.WindowSession:
		return window.NewSessions(o)
	case plan.WindowCumulate:
		return window.NewCumulate(o)
	case plan.WindowCalendar:
		var err error
		if o.Calendar, err = scalar.NewCalendar(w.Unit, w.Zone); err != nil {
			return nil, err
		}
		return window.NewAggregate(o)
	}
	return nil, fmt.Errorf("unknown window %d", w.Kind)
}
