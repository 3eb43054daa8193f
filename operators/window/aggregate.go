// Package window is the windowed aggregate: rows fold into groups, one for each (window, key), and a
// group leaves as one row when its window closes.
//
// Windows are aligned to 1970 UTC and half-open, [start, start+Size), with starts at the multiples of
// Every. A row counts in each window that holds it and is still open by the row's own watermark
// (Batch.Behind); it is late when none is. Whether a row is late never depends on the pipeline's
// watermark, which only says when groups leave; so the verdict is the same for any batch size, order of
// partitions and restart.
//
// A hopping window is not cut into panes that its windows share: a row that is behind counts in some of
// its windows and not in others, and float sums and `first` depend on the order of rows, which panes
// would change. Each window has its own groups, and a row costs one update a window.
//
// Results are exact: integers sum in 128 bits and decimals in 192, checked when the group leaves; float
// sums are kept for each source partition and added in partition order; first and last go by (event
// time, partition, offset). So a group's row depends on its rows alone, not on how they were
// interleaved, as long as each partition keeps its order.
//
// A group that cannot leave (a sum that overflows, a result expression that fails) goes to Emitter.Fail
// with a batch of its own: Partition is -1, Key is the encoded key, and Origin gives the key and, as
// value, a JSON object of the by columns, window_start and window_end. Emitted batches have the same
// Origin, so that later stages can report their rows too.
//
// An Aggregate belongs to one goroutine, but for its counters.
package window

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

const (
	maxWindowsPerRow = 10_000                    // bounds Size / Every
	maxSize          = 50 * 365 * 24 * time.Hour // keeps window arithmetic far from the ends of time
)

// ErrOptions is returned for options that no checked plan has.
var ErrOptions = errors.New("window: invalid options")

// Options describe an aggregate.
type Options struct {
	// By gives the key columns, in order. A null is a key like any other. Nil: one group a window.
	By      operators.Evaluator
	ByTypes []scalar.Type
	ByNames []string // for the Origin of what leaves

	Slots []Slot
	// Results are evaluated over a synthetic row: the by columns, window_start, window_end (times),
	// one column for each slot. What leaves is the by columns, window_start, window_end, the results.
	Results operators.Evaluator

	Size  time.Duration
	Every time.Duration // zero: Size, a tumbling window
	// Calendar, if not nil, gives the windows; Size and Every are not used. It belongs to the operator.
	Calendar *scalar.Calendar
	// OnAppend puts rows into windows of append time. Such windows close when ObserveAppend has told an
	// append time at or past their end, at the next Advance; Advance's own watermark closes them only
	// when it is MaxEventTime.
	OnAppend bool

	// Unwindowed: groups have no window and never end; Size and Every are zero, no row has window_start
	// and window_end, and Emit is not EmitClose.
	Unwindowed bool
	Emit       Emit
	Tick       time.Duration // EmitEvery: of event time
	// Accept is how long a closed window goes on taking rows. With EmitClose a group leaves again when it
	// does; in the other modes it is final when this time has passed.
	Accept time.Duration
	// TTL, without a window: a group dies when the watermark is so far past its last row, and leaves a
	// delete. Rows of a group come from one source partition.
	TTL     time.Duration
	Retract bool // without a window: rows may be deletes, which take the rows back that came before
	// Marks adds two columns to what leaves, unless Emit is EmitClose: the rows in the group, and
	// whether it is final.
	Marks bool

	// EmitRows bounds the rows that leave in one Advance, so that a step stays small; More tells that
	// some are left. Zero: no bound.
	EmitRows int
	Alloc    memory.Allocator // nil: the Go heap
}

// A Slot is one accumulator.
type Slot struct {
	Func string // a name of the language, such as sum
	// Arg computes the argument as its column Column; nil with count only: rows are counted. Slots
	// that share an Evaluator value and a filter share the evaluation.
	Arg     operators.Evaluator
	Column  int
	ArgType scalar.Type
	// The second argument of arg_min and arg_max is column ByColumn of Arg.
	ByColumn int
	ByType   scalar.Type
	// Param is the constant of functions that take one, such as the q of a quantile.
	Param     scalar.Value
	ParamType scalar.Type
	// Filter computes a bool as its first column; rows where it is not true are left out, before Arg
	// is evaluated. Nil: all rows.
	Filter operators.Evaluator
	Type   scalar.Type // of the result
	Text   string      // as written, for errors
}

// Stats are an aggregate's counters. In = Folded + Late + Failed, and Groups = Out + ResultsFailed +
// the groups still held (those restored count in Groups).
type Stats struct {
	In, Folded, Late, Failed   int64 // input rows
	Groups, Out, ResultsFailed int64 // groups opened or restored, emitted, failed when they left
}

type counters struct {
	in, folded, late, failed, groups, out, resultsFailed atomic.Int64
}

// An Aggregate is the operator. It is operators.Stateful.
type Aggregate struct {
	o           Options
	size, every int64
	alloc       memory.Allocator
	slots       []slot
	filters     []filter
	args        []argument
	keys        *groupKeys
	groups      *state.Windows
	appended    int64   // below it, every row on append time has come
	closed      int64   // append time up to which windows have closed
	shifted     []int64 // not nil: the times by which rows fall into windows
	emit        emission
	n           counters

	// Groups that leave more than once.
	tail      int                   // first of the tail cells, counted from the header
	cells     int                   // of a group
	touched   map[int64][]state.Pos // changed groups by window, not in e.order
	tick      int64                 // EmitEvery: the last tick was at tick * Tick
	ticked    bool                  // a tick is being emitted
	tickMoved bool                  // since the last Changes
	deadlines timers
	expired   []state.Pos
	run       uint64
	taking    bool // foldInto takes rows back

	// Scratch of Process, by row of the batch or by row of a window.
	rows   []int32
	all    []int32 // 0, 1, ..
	span   span
	late   []int
	errs   []operators.RowError
	bad    []bool
	hashes []uint32
	in     []int32
	pos    []state.Pos
	fin    []int32
	fpos   []state.Pos
	pairs  []pair
	save   []byte
	member []byte
	items  items

	// Scratch of Changes.
	runs    []memberRun
	changed []memberChange
}

// A slot is a Slot with its accumulator and its place among the cells of a group.
type slot struct {
	Slot
	acc    accumulator
	cell   int
	arg    int // index in Aggregate.args, or -1
	filter int // index in Aggregate.filters, or -1
}

// A filter is a distinct Filter with its verdicts on the current batch.
type filter struct {
	eval operators.Evaluator
	pass []bool
	rows []int32
}

// An argument is a distinct (Arg, Filter) with its values on the current batch.
type argument struct {
	eval   operators.Evaluator
	filter int
	result *operators.Result
	plain  []arrow.Array
	cols   map[int]*column
}

var _ operators.Stateful = (*Aggregate)(nil)

// NewAggregate makes an aggregate without state. Errors: ErrOptions.
func NewAggregate(o Options) (*Aggregate, error) {
	if o.Unwindowed {
		return newUnwindowed(o)
	}
	if o.Calendar != nil {
		o.Size, o.Every = time.Duration(scalar.MaxCalendarSpan), 0
	}
	if o.Every == 0 {
		o.Every = o.Size
	}
	if o.Alloc == nil {
		o.Alloc = memory.DefaultAllocator
	}
	if o.By == nil {
		o.By, o.ByTypes, o.ByNames = operators.Columns(nil), nil, nil
	}
	switch {
	case o.Size <= 0 || o.Every <= 0:
		return nil, fmt.Errorf("%w: window of %v every %v", ErrOptions, o.Size, o.Every)
	case o.Size > maxSize:
		return nil, fmt.Errorf("%w: a window of %v is longer than %v", ErrOptions, o.Size, maxSize)
	case o.Every > o.Size:
		return nil, fmt.Errorf("%w: a window of %v every %v leaves gaps", ErrOptions, o.Size, o.Every)
	case o.Size/o.Every > maxWindowsPerRow:
		return nil, fmt.Errorf("%w: each row would count in %d windows, at most %d are allowed", ErrOptions, o.Size/o.Every, maxWindowsPerRow)
	case o.Results == nil || len(o.ByNames) != len(o.ByTypes) || o.EmitRows < 0:
		return nil, fmt.Errorf("%w: incomplete", ErrOptions)
	case o.Accept < 0 || o.Accept > maxSize || o.Emit == EmitEvery && o.Tick <= 0 || o.TTL != 0 || o.Retract:
		return nil, fmt.Errorf("%w: emission", ErrOptions)
	}
	return build(o)
}

// newUnwindowed is NewAggregate without a window.
func newUnwindowed(o Options) (*Aggregate, error) {
	if o.Alloc == nil {
		o.Alloc = memory.DefaultAllocator
	}
	if o.By == nil {
		o.By, o.ByTypes, o.ByNames = operators.Columns(nil), nil, nil
	}
	switch {
	case o.Size != 0 || o.Every != 0 || o.OnAppend || o.Accept != 0 || o.Emit == EmitClose || o.Emit == EmitEvery && o.Tick <= 0:
		return nil, fmt.Errorf("%w: without a window", ErrOptions)
	case o.TTL < 0 || o.TTL > maxSize || o.TTL > 0 && o.Retract:
		return nil, fmt.Errorf("%w: ttl", ErrOptions)
	case o.Results == nil || len(o.ByNames) != len(o.ByTypes) || o.EmitRows < 0:
		return nil, fmt.Errorf("%w: incomplete", ErrOptions)
	}
	return build(o)
}

func build(o Options) (*Aggregate, error) {
	a := &Aggregate{o: o, size: int64(o.Size), every: int64(o.Every), alloc: o.Alloc, appended: operators.MinEventTime, closed: operators.MinEventTime}
	cells := 0
	for i, s := range o.Slots {
		acc, err := newAccumulator(s, i)
		if err != nil {
			return nil, err
		}
		if o.Unwindowed {
			if acc, err = a.endless(acc, s, i); err != nil {
				return nil, err
			}
		}
		sl := slot{Slot: s, acc: acc, cell: cells + 1, arg: -1, filter: -1}
		cells += acc.cells()
		if s.Filter != nil {
			sl.filter = a.filterOf(s.Filter)
		}
		if s.Arg != nil {
			sl.arg = a.argOf(s.Arg, sl.filter)
		}
		a.slots = append(a.slots, sl)
	}
	a.keys = newGroupKeys(o.ByTypes)
	a.tail = cells + 1
	if o.kept() {
		cells += tailCells
		a.touched = map[int64][]state.Pos{}
		a.deadlines = newTimers(int64(o.TTL))
		a.tick = math.MinInt64
	}
	a.cells = cells
	a.groups = state.NewWindows(cells)
	a.emit.init(a)
	return a, nil
}

func (a *Aggregate) filterOf(e operators.Evaluator) int {
	for i, f := range a.filters {
		if same(f.eval, e) {
			return i
		}
	}
	a.filters = append(a.filters, filter{eval: e, rows: []int32{}}) // a nil selection would mean all rows
	return len(a.filters) - 1
}

func (a *Aggregate) argOf(e operators.Evaluator, filter int) int {
	for i, g := range a.args {
		if g.filter == filter && same(g.eval, e) {
			return i
		}
	}
	a.args = append(a.args, argument{eval: e, filter: filter, cols: map[int]*column{}})
	return len(a.args) - 1
}

// same compares evaluators that may be of an incomparable type.
func same(x, y operators.Evaluator) bool {
	if _, ok := x.(operators.Columns); ok {
		return false
	}
	if _, ok := y.(operators.Columns); ok {
		return false
	}
	return x == y
}

// Stats is a reading of the counters; any goroutine may call it.
func (a *Aggregate) Stats() Stats {
	return Stats{
		In: a.n.in.Load(), Folded: a.n.folded.Load(), Late: a.n.late.Load(), Failed: a.n.failed.Load(),
		Groups: a.n.groups.Load(), Out: a.n.out.Load(), ResultsFailed: a.n.resultsFailed.Load(),
	}
}

// Counts implements operators.Counting. Rows folded into windows are in none of the other counts.
func (a *Aggregate) Counts() operators.Counts {
	s := a.Stats()
	return operators.Counts{In: s.In, Out: s.Out, Late: s.Late, Failed: s.Failed + s.ResultsFailed}
}

// Process implements operators.Operator.
func (a *Aggregate) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	a.n.in.Add(int64(b.Rows))
	a.keys.byCode = true
	a.judge(b)
	a.take(b, out)
}

// take gives away the late rows and folds the others.
func (a *Aggregate) take(b *operators.Batch, out operators.Emitter) {
	if len(a.late) > 0 {
		a.n.late.Add(int64(len(a.late)))
		out.Late(b, a.late)
	}
	if len(a.rows) > 0 {
		by := a.evaluate(b)
		defer a.forget(by)
	}
	if len(a.errs) > 0 {
		a.dropFailed(b, out)
	}
	a.n.folded.Add(int64(len(a.rows)))
	a.fold(b)
}

// evaluate computes keys, filters and arguments of the rows of a.rows and notes the rows that fail.
func (a *Aggregate) evaluate(b *operators.Batch) *operators.Result {
	sel := a.rows
	if len(sel) == b.Rows {
		sel = nil
	}
	by := a.eval(a.o.By, b, sel)
	a.hashes = grown(a.hashes, b.Rows)
	if d := a.keys.dictionary(by.Columns, b.Rows); d != nil {
		a.errs = a.keys.encodeCodes(d, a.rows, a.errs)
	} else {
		for i, c := range by.Columns {
			by.Columns[i] = operators.Plain(a.alloc, c)
			c.Release()
		}
		a.errs = a.keys.encode(by.Columns, a.rows, b.Rows, a.hashes, a.errs)
	}
	for i := range a.filters {
		f := &a.filters[i]
		r := a.eval(f.eval, b, sel)
		f.pass, f.rows = grown(f.pass, b.Rows), f.rows[:0]
		verdict := r.Columns[0].(*array.Boolean)
		for _, row := range a.rows {
			f.pass[row] = verdict.Value(int(row)) && verdict.IsValid(int(row))
			if f.pass[row] {
				f.rows = append(f.rows, row)
			}
		}
		// A failed row's verdict is undefined.
		for _, e := range r.Errors {
			f.pass[e.Row] = false
		}
		r.Release()
	}
	for i := range a.args {
		g := &a.args[i]
		s := sel
		if g.filter >= 0 {
			s = a.filters[g.filter].rows
			if len(s) == b.Rows {
				s = nil
			}
		}
		g.result = a.eval(g.eval, b, s)
	}
	for i := range a.slots {
		s := &a.slots[i]
		if s.arg < 0 {
			continue
		}
		g := &a.args[s.arg]
		g.read(a.alloc, s.Column, s.ArgType)
		if s.ByType.Kind != scalar.KindInvalid {
			g.read(a.alloc, s.ByColumn, s.ByType)
		}
	}
	a.boundKept()
	return by
}

// read makes column c of the result readable.
func (g *argument) read(alloc memory.Allocator, c int, t scalar.Type) {
	if g.cols[c] == nil {
		p := operators.Plain(alloc, g.result.Columns[c])
		g.plain = append(g.plain, p)
		g.cols[c] = newColumn(p, t)
	}
}

// eval evaluates and collects the errors.
func (a *Aggregate) eval(e operators.Evaluator, b *operators.Batch, sel []int32) *operators.Result {
	r, err := e.Eval(b, sel)
	if err != nil {
		panic("window: evaluate: " + err.Error())
	}
	a.errs = append(a.errs, r.Errors...)
	return r
}

// forget releases what evaluate made.
func (a *Aggregate) forget(by *operators.Result) {
	by.Release()
	for i := range a.args {
		g := &a.args[i]
		g.result.Release()
		for _, p := range g.plain {
			p.Release()
		}
		g.result, g.plain = nil, g.plain[:0]
		clear(g.cols)
	}
}

// dropFailed reports the failed rows, each with its first error, and takes them out of a.rows.
func (a *Aggregate) dropFailed(b *operators.Batch, out operators.Emitter) {
	a.bad = grown(a.bad, b.Rows)
	clear(a.bad)
	first := make([]operators.RowError, 0, len(a.errs))
	for _, e := range a.errs {
		if !a.bad[e.Row] {
			a.bad[e.Row] = true
			first = append(first, e)
		}
	}
	sortByRow(first)
	rest := a.rows[:0]
	for _, row := range a.rows {
		if !a.bad[row] {
			rest = append(rest, row)
		}
	}
	a.rows = rest
	a.n.failed.Add(int64(len(first)))
	first = slices.DeleteFunc(first, func(e operators.RowError) bool { return b.Deletes(e.Row) }) // it failed when it came
	if len(first) > 0 {
		out.Fail(b, first)
	}
}

// foldInto adds the rows of a.in to the window that starts at start.
func (a *Aggregate) foldInto(b *operators.Batch, start int64) {
	if len(a.in) == 0 {
		return
	}
	t := a.groups.Get(start)
	a.pos = grown(a.pos, len(a.in))
	before := t.Len()
	a.keys.upsert(t, a.hashes, a.in, a.pos)
	a.n.groups.Add(int64(t.Len() - before))
	a.accumulate(b, t, start)
	if a.touched != nil {
		a.note(b, t, start)
	}
}

// endless is an accumulator for groups that do not end and may have rows taken back.
func (a *Aggregate) endless(acc accumulator, s Slot, i int) (accumulator, error) {
	v := values{t: s.ArgType, slot: i, shape: shapeOf(s.ArgType)}
	if _, ok := acc.(distinct); ok {
		return v, nil
	}
	if !a.o.Retract {
		return acc, nil
	}
	if x, ok := acc.(extreme); ok {
		if v.kind = valuesMin; x.max {
			v.kind = valuesMax
		}
		return v, nil
	}
	if _, ok := acc.(retractor); !ok || !Retracts(s.Func, s.ArgType) {
		return nil, fmt.Errorf("%w: %s of %s cannot take rows back", ErrOptions, s.Func, s.ArgType)
	}
	return acc, nil
}

// accumulate gives the rows of a.in to the accumulators of their groups, which are at a.pos in t.
func (a *Aggregate) accumulate(b *operators.Batch, t *state.Table, start int64) {
	for i := range a.slots {
		s := &a.slots[i]
		u := update{t: t, b: b, rows: a.in, pos: a.pos, cell: s.cell, start: start, agg: a}
		if s.filter >= 0 {
			pass := a.filters[s.filter].pass
			a.fin, a.fpos = a.fin[:0], a.fpos[:0]
			for i, row := range a.in {
				if pass[row] {
					a.fin = append(a.fin, row)
					a.fpos = append(a.fpos, a.pos[i])
				}
			}
			u.rows, u.pos = a.fin, a.fpos
		}
		if s.arg >= 0 {
			u.col = a.args[s.arg].cols[s.Column]
			if s.ByType.Kind != scalar.KindInvalid {
				u.by = a.args[s.arg].cols[s.ByColumn]
			}
		}
		if a.taking {
			s.acc.(retractor).retract(&u)
			continue
		}
		s.acc.update(&u)
	}
}

// StateBytes implements operators.Stateful.
func (a *Aggregate) StateBytes() int64 { return a.groups.Bytes() }

// StateRows implements operators.Stateful: groups and their members.
func (a *Aggregate) StateRows() int64 {
	n := a.groups.Rows()
	for i := range a.groups.Len() {
		_, t := a.groups.At(i)
		rows, _, _ := memberRows(t)
		n += int64(rows)
	}
	return n
}

// ChangedRows is about how many rows the next Changes gives, so that a step can end before it is too large.
func (a *Aggregate) ChangedRows() int {
	n := a.groups.Dirty()
	for i := range a.groups.Len() {
		_, t := a.groups.At(i)
		_, _, dirty := memberRows(t)
		n += dirty
	}
	return n
}

// Close implements operators.Operator.
func (a *Aggregate) Close() { a.emit.close() }

// grown is s with length n; what it holds is undefined.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n+n/4)[:n]
	}
	return s[:n]
}
