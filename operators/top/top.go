// Package top is the best rows of each group: when a window closes, its first N rows in a given order
// leave, group by group.
//
// A window is one of event time, or the one that the rows say themselves by two of their columns, as
// those of a windowed aggregate do. Rows that are equal in the order stand by (event time, partition,
// offset), so that the best rows of a window do not depend on how rows were interleaved; with Ties, all
// rows that are equal to the N-th leave, too. A row counts in each window that is still open by the row's
// own watermark, and is late when none is.
//
// With Update it is a table of the best rows so far instead, one row for each group and rank.
//
// Of each group the best N rows are kept, in order, and nothing else; with Ties those equal to the N-th,
// too, however many they are. A Top belongs to one goroutine.
package top

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/rows"
)

const (
	maxWindowsPerRow = 10_000                    // bounds Size / Every
	maxSize          = 50 * 365 * 24 * time.Hour // keeps window arithmetic far from the ends of time
	chunkRows        = 4096                      // of one emitted batch, about
)

// MaxRows bounds Options.N.
const MaxRows = 10_000

// ErrOptions is returned for options that no checked plan has.
var ErrOptions = errors.New("top: invalid options")

// Options describe a Top. What leaves are the columns of the rows, then window_start and window_end if
// Size is not zero, then the rank if asked for: from 1, and the same for equal rows with Ties.
type Options struct {
	Rows  rows.Shape
	N     int
	Ties  bool
	Order []Order
	Rank  bool

	// Update makes a table of the best rows so far, by group and rank, instead: after each step the ranks
	// that have another row leave. There is no window, Rank is set and Ties is not.
	Update bool

	// Size and Every are a window of event time; Every zero is a tumbling one. Without Size, Start and End
	// are the columns, times that are never null, with the window of a row.
	Size, Every time.Duration
	Start, End  int

	// EmitRows bounds the rows that leave in one Advance to about as many; More tells that some are left.
	// Zero: no bound.
	EmitRows int
}

// An Order is one column of the order of rows. Null comes last, whatever the direction.
type Order struct {
	Column int
	Desc   bool
}

// A Top is the operator. It is operators.Stateful.
type Top struct {
	o       Options
	every   int64
	places  rows.Places
	windows []*window // by end and start
	changes rows.ChangeSet
	build   *rows.Builder
	w       operators.EventTime
	touched []*group // Update: with ranks that have another row since the last Advance

	late []int
	sort []byte
	name []byte
	wins []span
}

// A span is a window.
type span struct{ start, end int64 }

func (s span) compare(t span) int {
	switch {
	case s.end != t.end:
		if s.end < t.end {
			return -1
		}
		return 1
	case s.start != t.start:
		if s.start < t.start {
			return -1
		}
		return 1
	}
	return 0
}

type window struct {
	span
	index  map[string]*group
	groups []*group // in the order in which they came; sorted when the window leaves
	sorted bool
}

// A group is the best rows of a window, in order.
type group struct {
	name []byte // encoded key, after a byte that tells the null key apart
	rows []*entry
	from int  // Update: the ranks from here on have other rows
	list bool // it is in Top.touched
}

// An entry is a row with its place in the order: sort is what the order says, without what breaks ties.
type entry struct {
	rows.Row
	sort []byte
}

var _ operators.Stateful = (*Top)(nil)

// New makes a Top without state. Errors: ErrOptions.
func New(o Options) (*Top, error) {
	if o.Every == 0 {
		o.Every = o.Size
	}
	switch {
	case o.N < 1 || o.N > MaxRows:
		return nil, fmt.Errorf("%w: %d rows", ErrOptions, o.N)
	case o.Size < 0 || o.Size > maxSize || o.Every < 0 || o.Every > o.Size:
		return nil, fmt.Errorf("%w: window of %v every %v", ErrOptions, o.Size, o.Every)
	case o.Size > 0 && o.Size/o.Every > maxWindowsPerRow:
		return nil, fmt.Errorf("%w: each row would count in %d windows", ErrOptions, o.Size/o.Every)
	case o.Update && (o.Size > 0 || o.Ties || !o.Rank):
		return nil, fmt.Errorf("%w: a table by rank", ErrOptions)
	case len(o.Order) == 0 || o.EmitRows < 0:
		return nil, fmt.Errorf("%w: incomplete", ErrOptions)
	}
	return &Top{o: o, every: int64(o.Every), build: o.Rows.NewBuilder(), w: operators.MinEventTime}, nil
}

// Process implements operators.Operator.
func (t *Top) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	full, errs := t.o.Rows.Full(b)
	defer full.Release()
	groups, errs := t.o.Rows.Groups(full, errs)
	t.late = t.late[:0]
	var bad []operators.RowError
	rest := errs
	for i := range full.Rows {
		place := t.places.Of(full, i)
		if len(rest) > 0 && rest[0].Row == i {
			bad, rest = append(bad, rest[0]), rest[1:]
			continue
		}
		if !t.windowsOf(full, i) {
			bad = append(bad, operators.RowError{Row: i, Code: scalar.CodeTimeRange, Expr: "window"})
			continue
		}
		if len(t.wins) == 0 {
			t.late = append(t.late, i)
			continue
		}
		t.sort = t.sort[:0]
		for _, o := range t.o.Order {
			t.sort = rows.AppendSort(t.sort, full.Columns[o.Column], t.o.Rows.Types[o.Column], i, o.Desc)
		}
		for _, w := range t.wins {
			t.take(full, i, place, groups[i], w)
		}
	}
	if len(t.late) > 0 {
		out.Late(b, t.late)
	}
	if len(bad) > 0 {
		out.Fail(b, bad)
	}
}

// windowsOf finds the windows of a row that are open by its own watermark; false: they are out of the
// range of times.
func (t *Top) windowsOf(b *operators.Batch, i int) bool {
	t.wins = t.wins[:0]
	behind := operators.MinEventTime
	if b.Behind != nil {
		behind = b.Behind[i]
	}
	if t.o.Update {
		t.wins = append(t.wins, span{0, operators.MaxEventTime})
		return true
	}
	if t.o.Size == 0 {
		w := span{timeAt(b.Columns[t.o.Start], i), timeAt(b.Columns[t.o.End], i)}
		if w.end == operators.MinEventTime {
			return false
		}
		if w.end > behind {
			t.wins = append(t.wins, w)
		}
		return true
	}
	ts, size := b.Time[i], int64(t.o.Size)
	if ts < operators.MinEventTime+2*size || ts > operators.MaxEventTime-2*size {
		return false
	}
	for start := (scalar.FloorDiv(ts-size, t.every) + 1) * t.every; start <= ts; start += t.every {
		if start+size > behind {
			t.wins = append(t.wins, span{start, start + size})
		}
	}
	return true
}

func timeAt(c arrow.Array, i int) int64 { return int64(c.(*array.Timestamp).Value(i)) }

// take offers a row to a group.
func (t *Top) take(full *operators.Batch, i int, place rows.Place, key []byte, at span) {
	w := t.window(at)
	t.name = t.name[:0]
	if key == nil {
		t.name = append(t.name, 0)
	} else {
		t.name = append(append(t.name, 1), key...)
	}
	g := w.index[string(t.name)]
	if g == nil {
		g = &group{name: bytes.Clone(t.name)}
		w.add(g)
	}
	e := entry{sort: t.sort}
	e.Place = place
	n := t.o.N
	if len(g.rows) >= n {
		last := g.rows[n-1]
		if c := bytes.Compare(t.sort, last.sort); c > 0 || c == 0 && !t.o.Ties && !e.before(last) {
			return
		}
	}
	kept := &entry{Row: *t.o.Rows.NewRow(full, i, place, key), sort: bytes.Clone(t.sort)}
	kept.Key = stateKey(at, g.name, kept.sort, place)
	t.changes.Add(&kept.Kept)
	first := g.insert(kept)
	t.evict(g)
	if t.o.Update {
		if g.from = min(g.from, first); !g.list {
			g.from, g.list = first, true
			t.touched = append(t.touched, g)
		}
	}
}

func (e *entry) before(f *entry) bool {
	if c := bytes.Compare(e.sort, f.sort); c != 0 {
		return c < 0
	}
	return e.Place.Compare(f.Place) < 0
}

func (g *group) insert(e *entry) (at int) {
	at, _ = slices.BinarySearchFunc(g.rows, e, func(x, y *entry) int {
		if x.before(y) {
			return -1
		}
		return 1
	})
	g.rows = slices.Insert(g.rows, at, e)
	return at
}

// evict takes out what is no longer among the best.
func (t *Top) evict(g *group) {
	for n := len(g.rows); n > t.o.N; n-- {
		last := g.rows[n-1]
		if t.o.Ties && bytes.Equal(last.sort, g.rows[t.o.N-1].sort) {
			return
		}
		t.changes.Remove(&last.Kept)
		g.rows[n-1] = nil
		g.rows = g.rows[:n-1]
	}
}

func (t *Top) window(at span) *window {
	i, ok := slices.BinarySearchFunc(t.windows, at, func(w *window, s span) int { return w.compare(s) })
	if !ok {
		t.windows = slices.Insert(t.windows, i, &window{span: at, index: map[string]*group{}})
	}
	return t.windows[i]
}

func (w *window) add(g *group) {
	w.index[string(g.name)] = g
	w.groups, w.sorted = append(w.groups, g), false
}

// Advance implements operators.Operator. With Options.EmitRows it may leave groups behind: More tells, and
// the next Advance goes on there. What has left is gone from the state, so that a step may end in between.
func (t *Top) Advance(w operators.EventTime, out operators.Emitter) {
	t.w = max(t.w, w)
	if t.o.Update {
		t.Settle(out)
		return
	}
	left := t.o.EmitRows
	var ranks []int64
	var starts, ends []int64
	flush := func() {
		if t.build.Rows() == 0 {
			return
		}
		var extra []arrow.Array
		if t.o.Size > 0 {
			extra = append(extra, t.column(starts, scalar.TypeTime), t.column(ends, scalar.TypeTime))
		}
		if t.o.Rank {
			extra = append(extra, t.column(ranks, scalar.TypeInt64))
		}
		ranks, starts, ends = ranks[:0], starts[:0], ends[:0]
		out.Emit(t.build.Batch(extra...))
	}
	for len(t.windows) > 0 && t.windows[0].end <= t.w {
		win := t.windows[0]
		if !win.sorted {
			slices.SortFunc(win.groups, func(a, b *group) int { return bytes.Compare(a.name, b.name) })
			win.sorted = true
		}
		for len(win.groups) > 0 {
			if t.o.EmitRows > 0 && left <= 0 {
				flush()
				return
			}
			g := win.groups[0]
			win.groups[0] = nil
			win.groups = win.groups[1:]
			delete(win.index, string(g.name))
			rank := int64(0)
			for i, e := range g.rows {
				if rank = int64(i + 1); t.o.Ties && i > 0 && bytes.Equal(e.sort, g.rows[i-1].sort) {
					rank = ranks[len(ranks)-1]
				}
				t.build.Add(&e.Row, win.end-1)
				ranks, starts, ends = append(ranks, rank), append(starts, win.start), append(ends, win.end)
				t.changes.Remove(&e.Kept)
			}
			left -= len(g.rows)
			if t.build.Rows() >= chunkRows {
				flush()
			}
		}
		t.windows[0] = nil
		t.windows = t.windows[1:]
	}
	flush()
}

// Settle gives away the ranks that have another row. Advance does so, too; a step that ends before it has come
// to this stage must call Settle before Changes, which does not say what has yet to leave.
func (t *Top) Settle(out operators.Emitter) {
	slices.SortFunc(t.touched, func(a, b *group) int { return bytes.Compare(a.name, b.name) })
	var ranks []int64
	flush := func() {
		if len(ranks) == 0 {
			return
		}
		b := t.build.Batch(t.column(ranks, scalar.TypeInt64))
		ranks = ranks[:0]
		var columns []arrow.Array
		var types []scalar.Type
		for _, c := range t.o.Rows.Group {
			columns, types = append(columns, b.Columns[c]), append(types, t.o.Rows.Types[c])
		}
		columns, types = append(columns, b.Columns[len(b.Columns)-1]), append(types, scalar.TypeInt64)
		b.Key, _ = operators.EncodeKeys(columns, types, b.Rows, nil, nil) // of columns that were encoded before
		out.Emit(b)
	}
	for _, g := range t.touched {
		for i, e := range g.rows[g.from:] {
			t.build.Add(&e.Row, e.Place.Time)
			ranks = append(ranks, int64(g.from+i+1))
		}
		g.list = false
		if len(ranks) >= chunkRows {
			flush()
		}
	}
	flush()
	clear(t.touched)
	t.touched = t.touched[:0]
}

func (t *Top) column(values []int64, typ scalar.Type) arrow.Array {
	b := array.NewBuilder(t.o.Rows.Allocator(), operators.ArrowType(typ))
	defer b.Release()
	b.Reserve(len(values))
	for _, v := range values {
		operators.AppendValue(b, typ, scalar.Value{Kind: typ.Kind, I: v})
	}
	return b.NewArray()
}

// More says whether windows have closed whose rows have not all left, because of Options.EmitRows.
func (t *Top) More() bool { return !t.o.Update && len(t.windows) > 0 && t.windows[0].end <= t.w }

// Close implements operators.Operator.
func (t *Top) Close() { t.build.Release() }

// StateBytes implements operators.Stateful.
func (t *Top) StateBytes() int64 { return t.changes.Bytes() }

// StateRows implements operators.Stateful.
func (t *Top) StateRows() int64 { return t.changes.Rows() }

// ChangedRows is about how many rows the next Changes gives.
func (t *Top) ChangedRows() int { return t.changes.Changed() }

// Changes implements operators.Stateful.
func (t *Top) Changes(put func(key, value []byte)) { t.changes.Flush(put) }

// A state row is
//
//	key  't' end(8) start(8) length(4) name  sort  place(24)     value  rows.Row
//
// big-endian, times with the sign bit flipped. The name is a byte, 0 for the null key and else 1, and the
// encoded key.
const (
	rowTop    = 't'
	rowHead   = 1 + 8 + 8 + 4
	placeSize = 24
)

func stateKey(at span, name, sort []byte, place rows.Place) []byte {
	k := make([]byte, 0, rowHead+len(name)+len(sort)+placeSize)
	k = rows.AppendTime(rows.AppendTime(append(k, rowTop), at.end), at.start)
	k = binary.BigEndian.AppendUint32(k, uint32(len(name)))
	return place.Append(append(append(k, name...), sort...))
}

// Restore implements operators.Stateful. Errors: rows.ErrState.
func (t *Top) Restore(key, value []byte) error {
	if len(key) < rowHead+placeSize || key[0] != rowTop {
		return fmt.Errorf("%w: key", rows.ErrState)
	}
	n := binary.BigEndian.Uint32(key[17:])
	if n < 1 || uint64(n) > uint64(len(key)-rowHead-placeSize) {
		return fmt.Errorf("%w: key", rows.ErrState)
	}
	r, err := t.o.Rows.Restore(key, value)
	if err != nil {
		return err
	}
	e := &entry{Row: *r}
	at := span{end: rows.ReadTime(e.Key[1:]), start: rows.ReadTime(e.Key[9:])}
	e.sort = e.Key[rowHead+int(n) : len(key)-placeSize]
	w, name := t.window(at), e.Key[rowHead:rowHead+int(n)]
	g := w.index[string(name)]
	if g == nil {
		g = &group{name: name}
		w.add(g)
	}
	g.insert(e)
	t.changes.Restored(&e.Kept)
	t.places.Restored(e.Place)
	return nil
}
