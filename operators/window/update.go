package window

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// Groups that leave more than once.
//
// Where groups are upserted (Options.Emit is not EmitClose, there is no window, or closed windows go on
// taking rows) each has a tail behind its slots: the rows in it, the largest event time of them, and
// whether it has changed since it left last. Changed groups of a window are listed; Advance gives them
// away, one row a group however many rows it took, in the order (window end, encoded key). What a step
// could not give away stays marked in the state, so a restart goes on with it.
//
// How often a group leaves depends on how the input was cut into steps; the last row of a key does not.

// Emit says when groups leave.
type Emit uint8

// The modes. EmitClose: when the window closes. EmitUpdate: at each Advance, the groups that have changed.
// EmitEvery: likewise, when the watermark has passed a multiple of Options.Tick.
const (
	EmitClose Emit = iota
	EmitUpdate
	EmitEvery
)

// Cells of the tail.
const (
	tailRows  = iota // in the group
	tailTime         // largest event time
	tailFlags        // of those below
	tailRun          // state ttl: the run of rows that folded into it last
	tailCells
)

const (
	tailBegun   = 1 << iota // tailTime holds
	tailPending             // changed since it left last
	tailShown               // a row of it has left, and no delete since
	tailKnown   = 1<<iota - 1
)

// A queue is what Advance gives away of a window.
type queue uint8

const (
	queueNone    queue = iota
	queueTouched       // the changed groups; they stay
	queueOver          // every group; they go
	queueGone          // every group goes, without a row
)

// kept says whether groups leave more than once.
func (o *Options) kept() bool { return o.Unwindowed || o.Emit != EmitClose || o.Accept > 0 }

// over says whether a window takes no rows any more at watermark w.
func (a *Aggregate) over(start, w int64) bool {
	return !a.o.Unwindowed && ends(a.endOf(start)+int64(a.o.Accept), w)
}

// tailOf are the tail cells of a group.
func (a *Aggregate) tailOf(t *state.Table, p state.Pos) []uint64 {
	at := int(p) + a.tail
	return t.Arena()[at : at+tailCells : at+tailCells]
}

// note counts the rows of a.in in the tails of their groups, which are at a.pos.
func (a *Aggregate) note(b *operators.Batch, t *state.Table, start int64) {
	a.emit.requeue(a)
	arena := t.Arena()
	one := uint64(1)
	if a.taking {
		one = math.MaxUint64
	}
	for i, row := range a.in {
		p := a.pos[i]
		c := arena[int(p)+a.tail : int(p)+a.tail+tailCells]
		c[tailRows] += one
		if ts := b.Time[row]; c[tailFlags]&tailBegun == 0 || ts > int64(c[tailTime]) {
			c[tailTime] = uint64(ts)
		}
		if c[tailFlags]&tailBegun == 0 && a.o.TTL > 0 {
			a.deadlines.set(a.deadline(c), p)
		}
		if c[tailFlags]&tailPending == 0 {
			a.touched[start] = append(a.touched[start], p)
		}
		c[tailFlags] |= tailBegun | tailPending
	}
}

// deadline is when a group dies by Options.TTL.
func (a *Aggregate) deadline(c []uint64) int64 {
	if ts := int64(c[tailTime]); ts < math.MaxInt64-int64(a.o.TTL) {
		return ts + int64(a.o.TTL)
	}
	return math.MaxInt64
}

// foldAll adds a.rows to the groups that have no window.
func (a *Aggregate) foldAll(b *operators.Batch) {
	switch {
	case a.o.TTL > 0:
		a.foldGenerations(b)
	case b.Ops == nil:
		a.in = append(a.in[:0], a.rows...)
		a.foldInto(b, 0)
	default:
		// What comes before what goes, so that a value is never there less than no time.
		for _, taking := range []bool{false, true} {
			a.in = a.in[:0]
			for _, row := range a.rows {
				if b.Deletes(int(row)) == taking {
					a.in = append(a.in, row)
				}
			}
			a.taking = taking
			a.foldInto(b, 0)
		}
		a.taking = false
	}
}

// foldGenerations is foldAll under a ttl: a row at or after the deadline of its group begins a new
// generation, whether or not the watermark has told so. Rows are folded in runs in which no group begins
// one after it took rows.
func (a *Aggregate) foldGenerations(b *operators.Batch) {
	t := a.groups.Get(0)
	a.pos = grown(a.pos, len(a.rows))
	a.in = a.in[:0]
	a.run++
	for _, row := range a.rows {
		var at [1]state.Pos
		a.keys.upsert(t, a.hashes, []int32{row}, at[:])
		c := a.tailOf(t, at[0])
		now := max(b.Time[row], a.behind(b, int(row)))
		if c[tailFlags]&tailBegun != 0 && a.deadline(c) <= now {
			if c[tailRun] == a.run {
				a.foldInto(b, 0)
				a.in = a.in[:0]
				a.run++
				c = a.tailOf(t, at[0])
			}
			a.forgetRows(t, at[0])
			c[tailRows], c[tailTime] = 0, uint64(b.Time[row])
		}
		c[tailRun] = a.run
		if c[tailFlags]&tailBegun != 0 { // the next row is judged by it before note sees this one
			c[tailTime] = uint64(max(int64(c[tailTime]), b.Time[row]))
		} else {
			c[tailTime] = uint64(b.Time[row])
			c[tailFlags] |= tailBegun
			a.deadlines.set(a.deadline(c), at[0])
			a.n.groups.Add(1)
		}
		a.in = append(a.in, row)
	}
	a.foldInto(b, 0)
}

// forgetRows empties the slots of a group.
func (a *Aggregate) forgetRows(t *state.Table, p state.Pos) {
	for i := range a.slots {
		s := &a.slots[i]
		c := t.Arena()[int(p)+s.cell:][:s.acc.cells()]
		if k, ok := s.acc.(chainKeeper); ok {
			members := t.Sub(i, k.memberCells())
			dropMembers(chained(nil, c[0], members), members)
		}
		clear(c)
	}
}

// remove takes a group out of the state.
func (a *Aggregate) remove(t *state.Table, p state.Pos) {
	if a.o.Unwindowed {
		a.forgetRows(t, p)
	}
	t.Remove(p)
}

// ring lists the groups whose deadline the watermark has reached.
func (a *Aggregate) ring() {
	t := a.groups.Get(0)
	end := func(p state.Pos) (int64, bool) {
		if !t.Live(p) {
			return 0, false
		}
		return a.deadline(a.tailOf(t, p)), true
	}
	a.deadlines.ring(a.emit.w, end, func(p state.Pos) { a.expired = append(a.expired, p) })
}

// leaving says what is to be given away of a window at the watermark.
func (a *Aggregate) leaving(start int64) queue {
	touched := len(a.touched[start]) > 0
	switch {
	case a.o.Unwindowed || !a.over(start, a.emit.w):
		if touched && (a.o.Emit == EmitUpdate || a.o.Emit == EmitEvery && a.ticked || a.o.Emit == EmitClose && ends(a.endOf(start), a.emit.w)) {
			return queueTouched
		}
		return queueNone
	case a.o.Emit == EmitClose && touched:
		return queueTouched
	case a.o.Emit == EmitClose:
		return queueGone
	}
	return queueOver
}

// advanceKept is Advance where groups leave more than once.
func (a *Aggregate) advanceKept(out operators.Emitter) {
	e := &a.emit
	if tick := int64(a.o.Tick); a.o.Emit == EmitEvery && !a.ticked {
		n := scalar.FloorDiv(e.w, tick)
		a.ticked = e.w == operators.MaxEventTime || n > a.tick && e.w != operators.MinEventTime
		if a.ticked && n > a.tick {
			a.tick, a.tickMoved = n, true
		}
	}
	left := a.o.EmitRows
	if left == 0 {
		left = math.MaxInt
	}
	if a.o.TTL > 0 {
		if a.ring(); !a.advanceExpired(&left, out) {
			e.flush(out)
			return
		}
	}
	for i := 0; i < a.groups.Len(); i++ {
		start, t := a.groups.At(i)
		for {
			q := a.leaving(start)
			if !e.queued(start) {
				if q == queueNone || q != queueTouched && t.Len() == 0 {
					break
				}
				e.enqueue(a, start, t, q)
			}
			n := min(len(e.order)-e.next, chunkRows-e.rows, left)
			if n == 0 {
				e.flush(out)
				return
			}
			left -= n
			e.takeKept(t, n)
			if e.rows >= chunkRows {
				e.flush(out)
			}
		}
		if a.over(start, e.w) {
			if rows, _, _ := memberRows(t); rows > left {
				removeMembers(t, left)
				e.flush(out)
				return
			}
			removeMembers(t, -1)
		}
	}
	a.ticked = false
	e.open = false
	e.flush(out)
	a.drop()
}

// advanceExpired gives deletes of the expired groups away, and answers whether all have left.
func (a *Aggregate) advanceExpired(left *int, out operators.Emitter) bool {
	if len(a.expired) == 0 {
		return true
	}
	e, t := &a.emit, a.groups.Get(0)
	e.requeue(a)
	e.start, e.order, e.next = 0, append(e.order[:0], a.expired...), 0
	e.arrange(t)
	for e.next < len(e.order) {
		n := min(len(e.order)-e.next, chunkRows-e.rows, *left)
		if n == 0 {
			break
		}
		*left -= n
		e.takeExpired(t, n)
		if e.rows >= chunkRows {
			e.flush(out)
		}
	}
	a.expired = append(a.expired[:0], e.order[e.next:]...)
	e.open = false
	if len(a.expired) == 0 {
		gone := a.touched[0][:0]
		for _, p := range a.touched[0] {
			if t.Live(p) {
				gone = append(gone, p)
			}
		}
		a.touched[0] = gone
		return true
	}
	return false
}

// moreKept is More where groups leave more than once.
func (a *Aggregate) moreKept() bool {
	e := &a.emit
	if e.open && e.next < len(e.order) || len(a.expired) > 0 {
		return true
	}
	for i := range a.groups.Len() {
		start, t := a.groups.At(i)
		switch q := a.leaving(start); {
		case q == queueNone:
		case q == queueTouched || t.Len() > 0:
			return true
		default:
			if rows, _, _ := memberRows(t); rows > 0 {
				return true
			}
		}
	}
	return false
}

// queued says whether groups of a window are in order already. What was to leave still is.
func (e *emission) queued(start int64) bool {
	if e.open && e.start == start && e.next < len(e.order) {
		return true
	}
	e.requeue(e.agg)
	return false
}

// enqueue puts the groups of a queue in the order in which they leave.
func (e *emission) enqueue(a *Aggregate, start int64, t *state.Table, q queue) {
	e.open, e.start, e.next, e.what = true, start, 0, q
	if q == queueTouched {
		e.order = append(e.order[:0], a.touched[start]...)
		delete(a.touched, start)
	} else {
		e.order = t.Sorted(e.order[:0])
		delete(a.touched, start)
	}
	e.arrange(t)
}

// requeue puts groups that were to leave back among the changed ones, because others join them.
func (e *emission) requeue(a *Aggregate) {
	if e.open && e.what == queueTouched && e.next < len(e.order) {
		a.touched[e.start] = append(a.touched[e.start], e.order[e.next:]...)
	}
	e.open = false
}

// takeKept moves the next n groups of the queue to the batch being built.
func (e *emission) takeKept(t *state.Table, n int) {
	a := e.agg
	part := e.order[e.next : e.next+n]
	from := e.next
	e.next += n
	for i, p := range part {
		c := a.tailOf(t, p)
		shown := c[tailFlags]&tailShown != 0
		op := operators.OpInsert
		switch {
		case e.what == queueGone:
			a.remove(t, p)
			continue
		case e.what == queueOver:
			op = operators.OpFinal
		case c[tailRows] == 0: // all of its rows were taken back
			if op = operators.OpDelete; !shown {
				a.remove(t, p)
				continue
			}
		}
		e.addKept(t, p, from+i, op, int64(c[tailTime]))
		switch op {
		case operators.OpInsert:
			c[tailFlags] = c[tailFlags]&^tailPending | tailShown
			t.Touch(p)
		default:
			a.remove(t, p)
		}
	}
}

// takeExpired moves deletes of the next n groups to the batch being built, if rows of them have left.
func (e *emission) takeExpired(t *state.Table, n int) {
	a := e.agg
	for i, p := range e.order[e.next : e.next+n] {
		if !t.Live(p) {
			continue
		}
		c := a.tailOf(t, p)
		if at := a.deadline(c); at > e.w { // rows have come since
			a.deadlines.set(at, p)
			continue
		}
		if c[tailFlags]&tailShown != 0 {
			e.addKept(t, p, e.next+i, operators.OpDelete, a.deadline(c)-1)
		}
		a.remove(t, p)
	}
	e.next += n
}

// addKept appends a row for group p, the i-th in order.
func (e *emission) addKept(t *state.Table, p state.Pos, i int, op operators.Op, ts int64) {
	a, k := e.agg, e.agg.keys
	mustDecode(k, t.Key(p), e.by)
	if !a.o.Unwindowed {
		end := a.endOf(e.start)
		ts = end - 1
		e.starts.Append(arrow.Timestamp(e.start))
		e.ends.Append(arrow.Timestamp(end))
	}
	e.times = append(e.times, ts)
	e.ops = append(e.ops, op)
	e.revs.Append(int64(a.tailOf(t, p)[tailRows]))
	e.finals.Append(op == operators.OpFinal)
	var key []byte
	switch {
	case len(k.types) == 0:
		key = []byte{}
	case k.raw:
		key = e.keep(t.Key(p))
	default:
		key = e.keys[i]
	}
	e.chunk = append(e.chunk, key)
	for si := range a.slots {
		s := &a.slots[si]
		if op == operators.OpDelete {
			e.slots[si].AppendNull()
			continue
		}
		at := int(p) + s.cell
		if code := s.acc.finish(t, t.Arena()[at:at+s.acc.cells():at+s.acc.cells()], e.slots[si]); code != scalar.CodeNone {
			e.slots[si].AppendNull()
			e.errs = append(e.errs, operators.RowError{Row: e.rows, Code: code, Expr: s.Text})
		}
	}
	e.rows++
}

// flushKept turns what was taken into a batch of upserts and deletes. A group whose result fails is
// reported, and leaves as a delete: the row that left before is no longer true.
func (e *emission) flushKept(out operators.Emitter) {
	a := e.agg
	nby := len(e.by)
	columns := make([]arrow.Array, 0, nby+2+len(e.slots))
	for _, b := range e.by {
		columns = append(columns, b.NewArray())
	}
	head := nby
	if !a.o.Unwindowed {
		columns = append(columns, e.starts.NewArray(), e.ends.NewArray())
		head += 2
	}
	for _, b := range e.slots {
		columns = append(columns, b.NewArray())
	}
	marks := []arrow.Array{e.revs.NewArray(), e.finals.NewArray()}
	row := operators.NewBatch(columns, e.times)
	row.Partition, row.Key, row.Ops = -1, e.chunk, e.ops
	if !a.o.Unwindowed {
		row.Key, _ = operators.EncodeKeys(columns[:nby+1], append(slices.Clone(a.o.ByTypes), scalar.TypeTime), row.Rows, nil, nil)
	}
	row.Origin = originOf(columns[:head], a.o.ByTypes, a.o.ByNames, e.times, row.Key)
	kept := retain(columns[:head])
	row.OnRelease(func() {
		for _, c := range kept {
			c.Release()
		}
	})
	errs := e.errs
	e.times, e.chunk, e.errs, e.ops, e.rows = nil, nil, nil, nil, 0
	slices.SortStableFunc(errs, func(x, y operators.RowError) int { return x.Row - y.Row })
	errs = slices.CompactFunc(errs, func(x, y operators.RowError) bool { return x.Row == y.Row })
	sel := []int32{}
	for _, i := range without(row.Rows, errs) {
		if !row.Deletes(int(i)) {
			sel = append(sel, i)
		}
	}
	if len(sel) == row.Rows {
		sel = nil
	}
	r, err := a.o.Results.Eval(row, sel)
	if err != nil {
		panic("window: evaluate results: " + err.Error())
	}
	if len(r.Errors) > 0 {
		errs = append(errs, r.Errors...)
		sortByRow(errs)
	}
	defer row.Release()
	all := append(retain(columns[:head]), r.Columns...)
	if a.o.Marks {
		all = append(all, marks...)
	} else {
		marks[0].Release()
		marks[1].Release()
	}
	done := row.With(all)
	if len(errs) > 0 {
		done.Ops = slices.Clone(row.Ops)
		for _, e := range errs {
			done.Ops[e.Row] = operators.OpDelete
		}
		a.n.resultsFailed.Add(int64(len(errs)))
		out.Fail(row, errs)
	}
	if !slices.ContainsFunc(done.Ops, func(op operators.Op) bool { return op != operators.OpInsert }) {
		done.Ops = nil
	}
	a.n.out.Add(int64(row.Rows))
	out.Emit(done)
}

// arrange sorts the groups in order by their encoded keys.
func (e *emission) arrange(t *state.Table) {
	k := e.agg.keys
	slices.SortFunc(e.order, func(p, q state.Pos) int { return bytes.Compare(t.Key(p), t.Key(q)) })
	e.sortKeys(k, t)
}

// saveTail encodes the tail of a group after its slots: rows, event time, flags.
func (a *Aggregate) saveTail(dst []byte, t *state.Table, p state.Pos) []byte {
	c := a.tailOf(t, p)
	dst = binary.AppendUvarint(dst, c[tailRows])
	dst = appendWordBytes(dst, int64(c[tailTime]))
	return append(dst, byte(c[tailFlags]))
}

// loadTail decodes what saveTail encoded.
func (a *Aggregate) loadTail(b []byte, t *state.Table, p state.Pos, start int64) (rest []byte, err error) {
	r := reader{b: b}
	rows, ts, flags := r.uvarint(), r.word(), r.take(1)
	if r.bad || flags[0]&^tailKnown != 0 {
		return nil, fmt.Errorf("%w: the tail of a group", ErrState)
	}
	c := a.tailOf(t, p)
	c[tailRows], c[tailTime], c[tailFlags], c[tailRun] = rows, ts^1<<63, uint64(flags[0]), 0
	if c[tailFlags]&tailPending != 0 {
		a.touched[start] = append(a.touched[start], p)
	}
	if a.o.TTL > 0 && c[tailFlags]&tailBegun != 0 {
		a.deadlines.set(a.deadline(c), p)
	}
	return r.rest("tail")
}

// minGarbage is how many dead entries a table without end may have before it is made anew.
const minGarbage = 4096

// compact makes the table of groups without end anew when most of its entries are dead, which a table that
// is never cleared would keep. All entries have just been reported to the store.
func (a *Aggregate) compact() {
	t := a.groups.Get(0)
	if t.Used() < 2*t.Len()+minGarbage {
		return
	}
	a.groups = state.NewWindows(a.cells)
	a.emit.open, a.expired = false, a.expired[:0]
	clear(a.touched)
	a.deadlines = newTimers(int64(a.o.TTL))
	held := a.n.groups.Load()
	var key, row []byte
	for _, p := range t.Sorted(nil) {
		row = a.saveGroup(row[:0], t, p)
		mustRestore(a.restoreGroup(0, t.Key(p), row[1:]))
	}
	a.n.groups.Store(held)
	to := a.groups.Get(0)
	for slot, members := range t.Subs() {
		if members == nil {
			continue
		}
		k := a.slots[slot].acc.(keeper)
		for _, m := range members.Sorted(nil) {
			name, item := t.Key(ownerOf(members.Key(m))), members.Key(m)[ownerBytes:]
			key = binary.BigEndian.AppendUint32(key[:0], uint32(len(name)))
			key = binary.BigEndian.AppendUint16(append(key, name...), uint16(slot))
			row = k.saveMember(row[:0], members, m)
			mustRestore(a.restoreMember(to, append(key, item...), row))
		}
	}
}

func mustRestore(err error) {
	if err != nil {
		panic(err) // it was encoded a moment ago
	}
}
