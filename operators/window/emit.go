package window

import (
	"slices"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// chunkRows bounds the rows of one emitted batch.
const chunkRows = 4096

// An emission is the state of closing windows: what has closed, the window that is leaving, and the
// batch that is being built.
type emission struct {
	agg  *Aggregate
	w    operators.EventTime // windows that end at or before w close
	open bool                // start, order, keys and next describe a window that is leaving
	// The groups of the window that starts at start, in the order in which they leave, from next on.
	// keys holds their encoded keys if the names do not order like them.
	start int64
	order []state.Pos
	keys  [][]byte
	next  int

	by     []array.Builder
	starts *array.TimestampBuilder
	ends   *array.TimestampBuilder
	slots  []array.Builder
	times  []int64
	chunk  [][]byte // encoded keys of the rows being built
	errs   []operators.RowError
	keyBuf []byte
	rows   int

	// Of groups that leave more than once.
	what   queue // that order is
	revs   *array.Int64Builder
	finals *array.BooleanBuilder
	ops    []operators.Op
}

func (e *emission) init(a *Aggregate) {
	e.agg, e.w = a, operators.MinEventTime
	timeType := operators.ArrowType(scalar.TypeTime)
	for _, t := range a.o.ByTypes {
		e.by = append(e.by, array.NewBuilder(a.alloc, operators.ArrowType(t)))
	}
	e.starts = array.NewBuilder(a.alloc, timeType).(*array.TimestampBuilder)
	e.ends = array.NewBuilder(a.alloc, timeType).(*array.TimestampBuilder)
	e.revs, e.finals = array.NewInt64Builder(a.alloc), array.NewBooleanBuilder(a.alloc)
	for _, s := range a.slots {
		e.slots = append(e.slots, array.NewBuilder(a.alloc, operators.ArrowType(s.Type)))
	}
}

func (e *emission) close() {
	for _, b := range e.by {
		b.Release()
	}
	for _, b := range e.slots {
		b.Release()
	}
	e.starts.Release()
	e.ends.Release()
	e.revs.Release()
	e.finals.Release()
	e.by, e.slots = nil, nil
}

// ObserveAppend tells that every row appended before ts has come: windows on append time that end at or
// before it close at the next Advance. Rows alone close none: those of another partition may be older.
func (a *Aggregate) ObserveAppend(ts operators.EventTime) { a.appended = max(a.appended, ts) }

// Advance implements operators.Operator. With Options.EmitRows it may leave rows behind: More tells, and
// the next Advance, with the same watermark or a higher one, goes on where this one stopped. What has
// left is gone from the state, so that a step may end in between: an aggregate restored from there goes
// on at the same row.
func (a *Aggregate) Advance(w operators.EventTime, out operators.Emitter) {
	e := &a.emit
	if a.o.OnAppend {
		if w != operators.MaxEventTime {
			w = a.appended
		}
		a.closed = max(a.closed, w)
	}
	e.w = max(e.w, w)
	if a.touched != nil {
		a.advanceKept(out)
		return
	}
	left := a.o.EmitRows
	for i := 0; i < a.groups.Len(); i++ {
		start, t := a.groups.At(i)
		if !ends(a.endOf(start), e.w) {
			break
		}
		for t.Len() > 0 {
			if a.o.EmitRows > 0 && left == 0 {
				e.flush(out)
				return
			}
			if !e.open || e.start != start || e.next >= len(e.order) {
				e.begin(start, t)
			}
			n := min(len(e.order)-e.next, chunkRows-e.rows)
			if a.o.EmitRows > 0 {
				n = min(n, left)
				left -= n
			}
			e.take(t, n)
			if e.rows >= chunkRows {
				e.flush(out)
			}
		}
		if !a.forgetMembers(t, &left) {
			e.flush(out)
			return
		}
		e.open = false
	}
	e.flush(out)
	a.drop()
}

// More says whether windows have closed whose rows and state have not all left, because of Options.EmitRows.
func (a *Aggregate) More() bool {
	if a.touched != nil {
		return a.moreKept()
	}
	for i := range a.groups.Len() {
		start, t := a.groups.At(i)
		if !ends(a.endOf(start), a.emit.w) {
			return false
		}
		if rows, _, _ := memberRows(t); t.Len() > 0 || rows > 0 {
			return true
		}
	}
	return false
}

// forgetMembers removes the members of a window whose groups have left, as many as Options.EmitRows allows;
// left counts down. It answers whether all are gone.
func (a *Aggregate) forgetMembers(t *state.Table, left *int) bool {
	rows, _, _ := memberRows(t)
	switch {
	case a.o.EmitRows == 0:
		return removeMembers(t, -1)
	case rows > *left:
		removeMembers(t, *left)
		*left = 0
		return false
	}
	*left -= rows
	return removeMembers(t, rows)
}

// drop recycles the windows that are over and of which the store holds nothing more.
func (a *Aggregate) drop() {
	over := func(start int64, t *state.Table) bool {
		rows, saved, _ := memberRows(t)
		return a.over(start, a.emit.w) && t.Len() == 0 && t.Saved() == 0 && rows+saved == 0
	}
	a.groups.Drop(over)
}

// begin puts the groups of a window into the order in which they leave: that of encoded keys.
func (e *emission) begin(start int64, t *state.Table) {
	e.open, e.start, e.next = true, start, 0
	e.order = t.Sorted(e.order[:0])
	e.sortKeys(e.agg.keys, t)
}

// sortKeys puts groups that are in the order of their names into that of their encoded keys.
func (e *emission) sortKeys(k *groupKeys, t *state.Table) {
	e.keys = e.keys[:0]
	if k.sortedByName() {
		return
	}
	// Decode the names to columns, encode these as keys, and sort by them.
	for from := 0; from < len(e.order); from += chunkRows {
		part := e.order[from:min(from+chunkRows, len(e.order))]
		builders := make([]array.Builder, len(k.types))
		for i, typ := range k.types {
			builders[i] = array.NewBuilder(e.agg.alloc, operators.ArrowType(typ))
		}
		for _, p := range part {
			mustDecode(k, t.Key(p), builders)
		}
		columns := make([]arrow.Array, len(builders))
		for i, b := range builders {
			columns[i] = b.NewArray()
			b.Release()
		}
		keys, _ := operators.EncodeKeys(columns, k.types, len(part), nil, nil)
		e.keys = append(e.keys, keys...)
		for _, c := range columns {
			c.Release()
		}
	}
	perm := make([]int, len(e.order))
	for i := range perm {
		perm[i] = i
	}
	slices.SortStableFunc(perm, func(x, y int) int { return compareKeys(e.keys[x], e.keys[y]) })
	order, keys := make([]state.Pos, len(perm)), make([][]byte, len(perm))
	for i, from := range perm {
		order[i], keys[i] = e.order[from], e.keys[from]
	}
	e.order, e.keys = order, keys
}

func mustDecode(k *groupKeys, name []byte, builders []array.Builder) {
	if err := k.decode(name, builders); err != nil {
		panic(err) // Restore has checked the names that came from outside
	}
}

// take moves the next n groups from the state to the batch being built.
func (e *emission) take(t *state.Table, n int) {
	a, k := e.agg, e.agg.keys
	part := e.order[e.next : e.next+n]
	end := a.endOf(e.start)
	for i, p := range part {
		name := t.Key(p)
		mustDecode(k, name, e.by)
		e.starts.Append(arrow.Timestamp(e.start))
		e.ends.Append(arrow.Timestamp(end))
		e.times = append(e.times, end-1)
		var key []byte
		switch {
		case len(k.types) == 0:
		case k.raw:
			key = e.keep(name)
		default:
			key = e.keys[e.next+i]
		}
		e.chunk = append(e.chunk, key)
	}
	arena := t.Arena()
	for si := range a.slots {
		s := &a.slots[si]
		b, cells := e.slots[si], s.acc.cells()
		for i, p := range part {
			at := int(p) + s.cell
			if code := s.acc.finish(t, arena[at:at+cells:at+cells], b); code != scalar.CodeNone {
				b.AppendNull()
				e.errs = append(e.errs, operators.RowError{Row: e.rows + i, Code: code, Expr: s.Text})
			}
		}
	}
	for _, p := range part {
		t.Remove(p)
	}
	e.next += n
	e.rows += n
}

// keep copies a key to memory that the batch will hold.
func (e *emission) keep(key []byte) []byte {
	if e.keyBuf == nil || len(key) > cap(e.keyBuf)-len(e.keyBuf) { // an empty key is not nil
		e.keyBuf = make([]byte, 0, max(len(key), 64<<10))
	}
	from := len(e.keyBuf)
	e.keyBuf = append(e.keyBuf, key...)
	return e.keyBuf[from:len(e.keyBuf):len(e.keyBuf)]
}

// flush turns what was taken into a batch, evaluates the results over it and hands both on.
func (e *emission) flush(out operators.Emitter) {
	if e.rows == 0 {
		return
	}
	a := e.agg
	if a.touched != nil {
		e.flushKept(out)
		return
	}
	nby := len(e.by)
	columns := make([]arrow.Array, 0, nby+2+len(e.slots))
	for _, b := range e.by {
		columns = append(columns, b.NewArray())
	}
	columns = append(columns, e.starts.NewArray(), e.ends.NewArray())
	for _, b := range e.slots {
		columns = append(columns, b.NewArray())
	}
	row := operators.NewBatch(columns, e.times)
	row.Partition, row.Key = -1, e.chunk
	row.Origin = originOf(columns[:nby+2], a.o.ByTypes, a.o.ByNames, e.times, e.chunk)
	kept := retain(columns[:nby+2])
	row.OnRelease(func() {
		for _, c := range kept {
			c.Release()
		}
	})
	errs := e.errs
	e.times, e.chunk, e.errs, e.rows = nil, nil, nil, 0

	slices.SortStableFunc(errs, func(x, y operators.RowError) int { return x.Row - y.Row })
	errs = slices.CompactFunc(errs, func(x, y operators.RowError) bool { return x.Row == y.Row })
	var sel []int32
	if len(errs) > 0 {
		sel = without(row.Rows, errs)
	}
	var results []arrow.Array
	if len(errs) < row.Rows {
		r, err := a.o.Results.Eval(row, sel)
		if err != nil {
			panic("window: evaluate results: " + err.Error())
		}
		if len(r.Errors) > 0 {
			errs = append(errs, r.Errors...)
			sortByRow(errs)
			sel = without(row.Rows, errs)
		}
		results = r.Columns
	}
	defer row.Release()
	done := row.With(append(retain(columns[:nby+2]), results...))
	defer done.Release()
	if len(errs) > 0 {
		a.n.resultsFailed.Add(int64(len(errs)))
		out.Fail(row, errs)
	}
	a.n.out.Add(int64(row.Rows - len(errs)))
	switch {
	case len(errs) == 0:
		done.Retain()
		out.Emit(done)
	case len(sel) > 0:
		out.Emit(done.Select(a.alloc, sel))
	}
}

func retain(columns []arrow.Array) []arrow.Array {
	kept := make([]arrow.Array, len(columns))
	for i, c := range columns {
		c.Retain()
		kept[i] = c
	}
	return kept
}

// without is the rows of [0, n) that have no error; errs ascend by row.
func without(n int, errs []operators.RowError) []int32 {
	sel := make([]int32, 0, n-len(errs))
	for i := range n {
		if len(errs) > 0 && errs[0].Row == i {
			errs = errs[1:]
			continue
		}
		sel = append(sel, int32(i))
	}
	return sel
}

// originOf makes the Origin of rows that have left: the encoded key and, as value, a JSON object of the
// by columns, window_start and window_end.
func originOf(columns []arrow.Array, types []scalar.Type, names []string, times []int64, keys [][]byte) func(int) operators.Origin {
	return func(row int) operators.Origin {
		value := []byte{'{'}
		for i, c := range columns {
			name, t := "window_start", scalar.TypeTime
			switch {
			case i < len(types):
				name, t = names[i], types[i]
			case i > len(types):
				name = "window_end"
			}
			if i > 0 {
				value = append(value, ',')
			}
			value = operators.AppendJSONString(value, name)
			value = append(value, ':')
			value, _ = operators.AppendJSON(value, c, t, row)
		}
		return operators.Origin{
			Partition: -1, Offset: -1, Timestamp: scalar.FloorDiv(times[row], 1e6),
			Key: keys[row], Value: append(value, '}'),
		}
	}
}
