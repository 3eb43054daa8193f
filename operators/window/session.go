package window

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// Sessions is the aggregate over session windows: a row joins a session of its key if it comes less than the
// gap (Options.Size) after one of its rows or before one, and a session is [first, last+gap). It is
// operators.Stateful.
//
// Each source partition makes sessions of its own from its rows alone, in offset order. A row belongs to
// those that end after both its time and its partition's watermark before it (Batch.Behind) and that begin
// less than the gap after it; if they are several they become one, and if there is none it begins one,
// unless its own span had ended too: then it is late. So the verdict and the session depend on the prefix of
// one partition.
//
// What leaves joins the sessions of a key across partitions. A session covers [low, end): low is the least,
// over its rows, of the later of the row's time and its partition's watermark. Sessions whose covers overlap
// are one; it leaves when its end, the latest of theirs, is at or before the pipeline's watermark W. No
// later row can change it: such a row is covered from W on at the earliest, as its partition's watermark is
// not below W. So what leaves does not depend on how the partitions were interleaved.
//
// Integers and decimals sum exactly. The float sum of a partition's session is that of its rows in offset
// order, where a row that joins several sessions adds the later ones' sums, in order, to the first one's
// before its own value; the sums of the sessions that leave together are added in order of partition, then
// low.
type Sessions struct {
	*Aggregate
	gap    int64
	t      *state.Table // sessions by name, partition and born
	own    int          // place of a session's own cells in an entry, from the header
	values *memberSet   // of count_distinct
	heads  heads
	timers timers
	round  uint64 // of collect

	// What has ended and not left yet, in order, from next on. The sessions of each are in parts.
	due       []dueSession
	next      int
	parts     []state.Pos
	collected operators.EventTime // due has what ends at or before

	spare   int // dead sessions that are not worth compacting
	from    int // the rows of Aggregate.in from here on are not folded yet
	chain   []state.Pos
	matches []state.Pos
	name    []byte
	guess   []state.Pos
	touched uint64 // keeps loads from being optimized away
}

// The cells of a session, after those of the accumulators. A session lies in a chain with the others of its
// key; bar, in the newest one, is at or above the ends of the others of its partition.
const (
	cellFirst   = iota // least time of a row
	cellEnd            // largest time + gap
	cellLow            // see Sessions
	cellBar            //
	cellLinks          // newer 32 | older 32
	cellPart           // partition + 2
	cellRound          // of collect that has seen it, 0 at first; queued: it is in due
	cellMembers        // chain of values of count_distinct
	ownCells
)

const (
	queued = 1<<64 - 1
	noBar  = 1 << 63 // MinEventTime
)

// What follows the name in the key of a session: partition + 2 in four bytes, and born, the time of the row
// that began it, in eight. Two sessions of a name and a partition never have the same: as long as one lives,
// a row of its born time joins it or is late.
const sessionSuffix = 12

// A dueSession has ended.
type dueSession struct {
	end      int64
	key      []byte // encoded
	from, to int    // in parts
}

// heads finds the newest session of a key: open addressing, hash 32 | position 32. A position may be of a
// session that is gone, whose key has none then.
type heads struct {
	slots []uint64
	mask  uint32
	used  int
}

var _ operators.Stateful = (*Sessions)(nil)

// NewSessions makes an aggregate over sessions without state. Options.Size is the gap; Every is not used.
// Errors: ErrOptions.
func NewSessions(o Options) (*Sessions, error) {
	o.Every = 0
	a, err := NewAggregate(o)
	if err != nil {
		return nil, err
	}
	s := &Sessions{Aggregate: a, gap: a.size, values: newMemberSet(), timers: newTimers(a.size / 8), collected: operators.MinEventTime, spare: compactRows}
	s.own = 1
	for i := range a.slots {
		s.own += a.slots[i].acc.cells()
	}
	for i := range a.slots {
		sl := &a.slots[i]
		if d, ok := sl.acc.(distinct); ok {
			sl.acc = distinctIn{d, s.values, s.own + cellMembers}
		}
		if _, ok := sl.acc.(joiner); !ok {
			a.emit.close()
			return nil, fmt.Errorf("%w: %s cannot be joined", ErrOptions, sl.Func)
		}
	}
	s.t = state.NewTable(s.own - 1 + ownCells)
	s.heads.reset()
	return s, nil
}

// cells are the session's own cells, valid until the table grows.
func (s *Sessions) cells(p state.Pos) []uint64 {
	at := int(p) + s.own
	return s.t.Arena()[at : at+ownCells : at+ownCells]
}

func (s *Sessions) nameOf(p state.Pos) []byte {
	k := s.t.Key(p)
	return k[:len(k)-sessionSuffix]
}

// Process implements operators.Operator.
func (s *Sessions) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	a := s.Aggregate
	a.n.in.Add(int64(b.Rows))
	a.rows, a.late, a.errs = a.rows[:0], a.late[:0], a.errs[:0]
	low, high := operators.MinEventTime+2*s.gap, operators.MaxEventTime-2*s.gap
	for i, ts := range a.times(b) {
		if ts < low || ts > high {
			a.errs = append(a.errs, operators.RowError{Row: i, Code: scalar.CodeTimeRange, Expr: "window"})
			continue
		}
		a.rows = append(a.rows, int32(i))
	}
	if len(a.rows) > 0 {
		by := a.evaluate(b)
		defer a.forget(by)
	}
	if len(a.errs) > 0 {
		a.dropFailed(b, out)
	}
	s.assign(b)
	a.n.folded.Add(int64(len(a.rows) - len(a.late)))
	if len(a.late) > 0 {
		a.n.late.Add(int64(len(a.late)))
		out.Late(b, a.late)
	}
}

// assign finds the session of each row and folds the rows.
func (s *Sessions) assign(b *operators.Batch) {
	a := s.Aggregate
	a.in, a.pos, s.from = a.in[:0], a.pos[:0], 0
	times, part := a.times(b), uint64(b.Partition+2)
	for rows := a.rows; len(rows) > 0; {
		n := min(len(rows), probeRows)
		s.probe(rows[:n])
		for i, row := range rows[:n] {
			ts := times[row]
			u := max(ts, a.behind(b, int(row)))
			name := a.keys.nameAt(row)
			p := s.guess[i]
			if p == 0 || !s.isHead(p, name) {
				p = s.heads.find(s, a.hashes[row], name)
			}
			if p != 0 && !s.t.Live(p) {
				p = 0
			}
			if p != 0 {
				c := s.cells(p)
				if c[cellPart] == part && u >= int64(c[cellBar]) {
					switch end := int64(c[cellEnd]); {
					case u < end && int64(c[cellFirst]) < ts+s.gap: // the newest session, and no other
						c[cellFirst] = uint64(min(int64(c[cellFirst]), ts))
						c[cellEnd] = uint64(max(end, ts+s.gap))
						c[cellLow] = uint64(min(int64(c[cellLow]), u))
						s.t.Touch(p)
						a.in, a.pos = append(a.in, row), append(a.pos, p)
						continue
					case u >= end && u < ts+s.gap: // after all of its partition
						a.in, a.pos = append(a.in, row), append(a.pos, s.open(a.hashes[row], name, p, part, ts, u, max(int64(c[cellBar]), end)))
						continue
					}
				}
			}
			if p = s.place(b, row, p, part, ts, u); p == 0 {
				a.late = append(a.late, int(row))
				continue
			}
			a.in, a.pos = append(a.in, row), append(a.pos, p)
		}
		rows = rows[n:]
	}
	s.fold(b)
}

// probe guesses the newest session of each row's key from its hash, so that the cache misses of many rows are
// under way at once.
func (s *Sessions) probe(rows []int32) {
	s.guess = grown(s.guess, len(rows))
	slots, mask, hashes := s.heads.slots, s.heads.mask, s.hashes
	for i, row := range rows {
		hash := hashes[row]
		j := hash & mask
		v := slots[j]
		for v != 0 && uint32(v>>32) != hash {
			j = (j + 1) & mask
			v = slots[j]
		}
		s.guess[i] = state.Pos(v)
	}
	arena, sum := s.t.Arena(), uint64(0)
	for _, p := range s.guess {
		if p != 0 {
			sum += arena[int(p)+s.own]
		}
	}
	s.touched = sum
}

// isHead says whether p is the newest session of a key, and lives.
func (s *Sessions) isHead(p state.Pos, name []byte) bool {
	return s.t.Live(p) && s.t.Arena()[int(p)+s.own+cellLinks]>>32 == 0 && string(s.nameOf(p)) == string(name)
}

// place finds the session of a row that is not simply the next of its key, making one if there is none; 0: the
// row is late. head is the newest session of the key, or 0.
func (s *Sessions) place(b *operators.Batch, row int32, head state.Pos, part uint64, ts, u int64) state.Pos {
	s.matches = s.matches[:0]
	for p := head; p != 0; {
		c := s.cells(p)
		if c[cellPart] == part && int64(c[cellEnd]) > u && int64(c[cellFirst]) < ts+s.gap {
			s.matches = append(s.matches, p)
		}
		p = state.Pos(c[cellLinks])
	}
	hash, name := s.hashes[row], s.keys.nameAt(row)
	if len(s.matches) == 0 {
		if ends(ts+s.gap, u) {
			return 0
		}
		return s.open(hash, name, head, part, ts, u, s.barOf(head, part, 0))
	}
	s.byLow(s.matches)
	p := s.matches[0]
	if len(s.matches) > 1 {
		s.fold(b) // rows in hand may belong to the ones that go
		for _, q := range s.matches[1:] {
			s.absorb(p, q)
		}
	}
	c := s.cells(p)
	c[cellFirst] = uint64(min(int64(c[cellFirst]), ts))
	c[cellEnd] = uint64(max(int64(c[cellEnd]), ts+s.gap))
	c[cellLow] = uint64(min(int64(c[cellLow]), u))
	s.t.Touch(p)
	s.swallow(b, p)
	s.toFront(hash, name, p)
	return p
}

// swallow joins to p every other session of its partition that its cover overlaps by now.
func (s *Sessions) swallow(b *operators.Batch, p state.Pos) {
	for again := true; again; {
		again = false
		s.matches = s.matches[:0]
		low, end, part := int64(s.cells(p)[cellLow]), int64(s.cells(p)[cellEnd]), s.cells(p)[cellPart]
		s.around(p, func(q state.Pos) {
			if c := s.cells(q); q != p && c[cellPart] == part && int64(c[cellLow]) < end && low < int64(c[cellEnd]) {
				s.matches = append(s.matches, q)
			}
		})
		s.byLow(s.matches)
		for _, q := range s.matches {
			s.fold(b)
			s.absorb(p, q)
			again = true
		}
	}
}

// around calls f for each session of the chain that p is in.
func (s *Sessions) around(p state.Pos, f func(state.Pos)) {
	for newer := p; newer != 0; newer = state.Pos(s.cells(p)[cellLinks] >> 32) {
		p = newer
	}
	for p != 0 {
		older := state.Pos(s.cells(p)[cellLinks])
		f(p)
		p = older
	}
}

func (s *Sessions) byLow(list []state.Pos) {
	slices.SortFunc(list, func(p, q state.Pos) int { return compareInts(int64(s.cells(p)[cellLow]), int64(s.cells(q)[cellLow])) })
}

func compareInts(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// barOf is the latest end of the sessions of a partition in the chain from head on, except p.
func (s *Sessions) barOf(head state.Pos, part uint64, p state.Pos) int64 {
	bar := operators.MinEventTime
	for q := head; q != 0; {
		c := s.cells(q)
		if q != p && c[cellPart] == part {
			bar = max(bar, int64(c[cellEnd]))
		}
		q = state.Pos(c[cellLinks])
	}
	return bar
}

// open begins a session before head, the newest one of its key or 0.
func (s *Sessions) open(hash uint32, name []byte, head state.Pos, part uint64, ts, u, bar int64) state.Pos {
	s.name = binary.BigEndian.AppendUint32(append(s.name[:0], name...), uint32(part))
	s.name = appendWordBytes(s.name, ts)
	p, fresh := s.t.Upsert(state.Hash(s.name), s.name)
	if !fresh {
		panic("window: two sessions begin with rows of one time")
	}
	s.n.groups.Add(1)
	c := s.cells(p)
	c[cellFirst], c[cellEnd], c[cellLow], c[cellBar], c[cellPart] = uint64(ts), uint64(ts+s.gap), uint64(u), uint64(bar), part
	if head != 0 {
		c[cellLinks] = uint64(head)
		h := s.cells(head)
		h[cellLinks] |= uint64(p) << 32
	}
	s.heads.set(s, hash, name, p)
	s.timers.set(ts+s.gap, p)
	return p
}

// unlink takes a session out of its chain.
func (s *Sessions) unlink(p state.Pos) {
	c := s.cells(p)
	newer, older := state.Pos(c[cellLinks]>>32), state.Pos(c[cellLinks])
	c[cellLinks] = 0
	if older != 0 {
		o := s.cells(older)
		o[cellLinks] = uint64(newer)<<32 | o[cellLinks]&(1<<32-1)
	}
	switch {
	case newer != 0:
		n := s.cells(newer)
		n[cellLinks] = n[cellLinks]&^(1<<32-1) | uint64(older)
	case older != 0:
		o := s.cells(older)
		o[cellBar] = uint64(s.barOf(older, o[cellPart], older))
		name := s.nameOf(older)
		s.heads.set(s, state.Hash(name), name, older)
	}
}

// toFront makes p the newest session of its chain.
func (s *Sessions) toFront(hash uint32, name []byte, p state.Pos) {
	head := s.heads.find(s, hash, name)
	if head != p {
		s.unlink(p)
		head = s.heads.find(s, hash, name)
		s.cells(p)[cellLinks] = uint64(head)
		s.cells(head)[cellLinks] |= uint64(p) << 32
		s.heads.set(s, hash, name, p)
	}
	c := s.cells(p)
	c[cellBar] = uint64(s.barOf(p, c[cellPart], p))
}

// absorb adds session q to p and removes it.
func (s *Sessions) absorb(p, q state.Pos) {
	for i := range s.slots {
		sl := &s.slots[i]
		sl.acc.(joiner).join(s.t, p, s.t, q, sl.cell)
	}
	c, d := s.cells(p), s.cells(q)
	c[cellFirst] = uint64(min(int64(c[cellFirst]), int64(d[cellFirst])))
	c[cellEnd] = uint64(max(int64(c[cellEnd]), int64(d[cellEnd])))
	c[cellLow] = uint64(min(int64(c[cellLow]), int64(d[cellLow])))
	s.t.Touch(p)
	s.remove(q)
	s.n.groups.Add(-1)
}

func (s *Sessions) remove(p state.Pos) {
	s.unlink(p)
	s.values.remove(s.t, p, s.own+cellMembers)
	s.t.Remove(p)
}

// fold gives the rows that have been placed to the accumulators.
func (s *Sessions) fold(b *operators.Batch) {
	a := s.Aggregate
	in, pos := a.in, a.pos
	if s.from < len(in) {
		a.in, a.pos = in[s.from:], pos[s.from:]
		a.accumulate(b, s.t, 0)
		a.in, a.pos = in, pos
	}
	s.from = len(in)
}

// Advance implements operators.Operator. See Aggregate.Advance about Options.EmitRows.
func (s *Sessions) Advance(w operators.EventTime, out operators.Emitter) {
	e := &s.emit
	if s.o.OnAppend {
		if w != operators.MaxEventTime {
			w = s.appended
		}
		s.closed = max(s.closed, w)
	}
	e.w = max(e.w, w)
	left := s.o.EmitRows
	for {
		for s.next < len(s.due) {
			if s.o.EmitRows > 0 && left == 0 {
				e.flush(out)
				return
			}
			left--
			s.leave(&s.due[s.next])
			s.next++
			if e.rows >= chunkRows {
				e.flush(out)
			}
		}
		s.due, s.next, s.parts = s.due[:0], 0, s.parts[:0]
		if s.collected >= e.w {
			break
		}
		s.collect(e.w)
	}
	e.flush(out)
}

// More says whether sessions have ended whose rows have not all left, because of Options.EmitRows.
func (s *Sessions) More() bool { return s.next < len(s.due) || s.collected < s.emit.w }

// collect puts what ends at or before w into due, in the order in which it leaves.
func (s *Sessions) collect(w operators.EventTime) {
	s.collected = w
	s.round++
	s.timers.ring(w, func(p state.Pos) (int64, bool) {
		return int64(s.cells(p)[cellEnd]), s.t.Live(p) && s.cells(p)[cellRound] != queued
	}, func(p state.Pos) {
		c := s.cells(p)
		switch {
		case c[cellRound] == s.round: // it waits for another one of its key
			s.timers.set(w+1, p)
			return
		case c[cellLinks] == 0:
			c[cellRound] = queued
			s.parts = append(s.parts, p)
			s.due = append(s.due, dueSession{end: int64(c[cellEnd]), from: len(s.parts) - 1, to: len(s.parts)})
			return
		}
		s.sweep(p, w)
		if s.cells(p)[cellRound] != queued {
			s.timers.set(w+1, p)
		}
	})
	s.encodeKeys()
	slices.SortFunc(s.due, func(x, y dueSession) int {
		if c := compareInts(x.end, y.end); c != 0 {
			return c
		}
		return compareKeys(x.key, y.key)
	})
}

// sweep joins the sessions of a chain whose covers overlap, and queues what ends at or before w.
func (s *Sessions) sweep(p state.Pos, w int64) {
	s.chain = s.chain[:0]
	s.around(p, func(q state.Pos) {
		if s.cells(q)[cellRound] != queued {
			s.chain = append(s.chain, q)
			s.cells(q)[cellRound] = s.round
		}
	})
	s.byLow(s.chain)
	for i := 0; i < len(s.chain); {
		end := int64(s.cells(s.chain[i])[cellEnd])
		k := i + 1
		for ; k < len(s.chain) && int64(s.cells(s.chain[k])[cellLow]) < end; k++ {
			end = max(end, int64(s.cells(s.chain[k])[cellEnd]))
		}
		if ends(end, w) {
			from := len(s.parts)
			s.parts = append(s.parts, s.chain[i:k]...)
			for _, q := range s.parts[from:] {
				s.cells(q)[cellRound] = queued
			}
			s.due = append(s.due, dueSession{end: end, from: from, to: len(s.parts)})
		}
		i = k
	}
}

// encodeKeys sets the encoded keys of due.
func (s *Sessions) encodeKeys() {
	names := make([][]byte, len(s.due))
	for i := range names {
		names[i] = s.nameOf(s.parts[s.due[i].from])
	}
	for i, key := range s.encodedKeys(names) {
		s.due[i].key = key
	}
}

// leave moves what has ended from the state to the batch that is being built.
func (s *Sessions) leave(d *dueSession) {
	e, list := &s.emit, s.parts[d.from:d.to]
	slices.SortStableFunc(list, func(p, q state.Pos) int { // by low already
		return compareInts(int64(s.cells(p)[cellPart]), int64(s.cells(q)[cellPart]))
	})
	p := list[0]
	for _, q := range list[1:] {
		s.absorb(p, q)
	}
	e.add(s.t, p, s.nameOf(p), d.key, int64(s.cells(p)[cellFirst]), d.end)
	s.remove(p)
}

// add appends a group to the batch being built.
func (e *emission) add(t *state.Table, p state.Pos, name, key []byte, start, end int64) {
	a := e.agg
	mustDecode(a.keys, name, e.by)
	e.starts.Append(arrow.Timestamp(start))
	e.ends.Append(arrow.Timestamp(end))
	e.times = append(e.times, end-1)
	e.chunk = append(e.chunk, key)
	arena := t.Arena()
	for si := range a.slots {
		s := &a.slots[si]
		at, n := int(p)+s.cell, s.acc.cells()
		if code := s.acc.finish(t, arena[at:at+n:at+n], e.slots[si]); code != scalar.CodeNone {
			e.slots[si].AppendNull()
			e.errs = append(e.errs, operators.RowError{Row: e.rows, Code: code, Expr: s.Text})
		}
	}
	e.rows++
}

// Rows of state:
//
//	session  's' name partition(4) born(8)          value  version(1) first(8) end(8) low(8) slots(uvarint) slot...
//	value    'v' length(4) session slot(2) value    value  version(1)
const (
	rowSession = 's'
	rowValue   = 'v'
)

var memberValue = []byte{rowVersion}

// Changes implements operators.Stateful.
func (s *Sessions) Changes(put func(key, value []byte)) {
	key := s.name[:0]
	s.t.Changed(func(p state.Pos, dead bool) {
		key = append(append(key[:0], rowSession), s.t.Key(p)...)
		if dead {
			put(key, nil)
			return
		}
		s.save = s.appendSession(s.save[:0], p)
		put(key, s.save)
	})
	s.values.t.Changed(func(v state.Pos, dead bool) {
		key = append(append(key[:0], rowValue), s.values.t.Key(v)...)
		if dead {
			put(key, nil)
			return
		}
		put(key, memberValue)
	})
	s.name = key
	if s.t.Used() > 2*s.t.Len()+s.spare || s.values.t.Used() > 2*s.values.t.Len()+s.spare {
		s.compact()
	}
}

func (s *Sessions) appendSession(v []byte, p state.Pos) []byte {
	c := s.cells(p)
	v = append(v, rowVersion)
	for _, w := range []uint64{c[cellFirst], c[cellEnd], c[cellLow]} {
		v = appendWordBytes(v, int64(w))
	}
	v = binary.AppendUvarint(v, uint64(len(s.slots)))
	for i := range s.slots {
		sl := &s.slots[i]
		at := int(p) + sl.cell
		v = sl.acc.save(v, s.t, s.t.Arena()[at:at+sl.acc.cells()])
	}
	return v
}

// Restore implements operators.Stateful. Errors: ErrState.
func (s *Sessions) Restore(key, value []byte) error {
	if len(key) == 0 || len(value) == 0 {
		return fmt.Errorf("%w: cut short", ErrState)
	}
	if value[0] != rowVersion {
		return fmt.Errorf("%w: version %d", ErrState, value[0])
	}
	switch key[0] {
	case rowSession:
		return s.restoreSession(key[1:], value[1:])
	case rowValue:
		group, ok := s.values.group(key[1:])
		if !ok {
			return fmt.Errorf("%w: cut short", ErrState)
		}
		p, ok := s.t.Find(state.Hash(group), group)
		if !ok {
			return fmt.Errorf("%w: a value without its session", ErrState)
		}
		v, fresh := s.values.t.Upsert(state.Hash(key[1:]), key[1:])
		s.values.t.MarkSaved(v)
		if fresh {
			s.values.link(s.t, p, s.own+cellMembers, v)
		}
		return nil
	}
	return fmt.Errorf("%w: kind %q", ErrState, key[0])
}

func (s *Sessions) restoreSession(key, value []byte) error {
	if len(key) < sessionSuffix {
		return fmt.Errorf("%w: cut short", ErrState)
	}
	name, suffix := key[:len(key)-sessionSuffix], key[len(key)-sessionSuffix:]
	if err := s.keys.check(name); err != nil {
		return err
	}
	r := reader{b: value}
	first, end, low := int64(r.word()^1<<63), int64(r.word()^1<<63), int64(r.word()^1<<63)
	n := r.uvarint()
	switch {
	case r.bad || n != uint64(len(s.slots)):
		return fmt.Errorf("%w: %d slots, the aggregate has %d", ErrState, n, len(s.slots))
	case first < operators.MinEventTime+s.gap || first >= end || low < first || low >= end || end > operators.MaxEventTime-s.gap:
		return fmt.Errorf("%w: no session is %d to %d", ErrState, first, end)
	}
	hash := state.Hash(key)
	if _, ok := s.t.Find(hash, key); ok {
		return fmt.Errorf("%w: a session twice", ErrState)
	}
	p, _ := s.t.Upsert(hash, key)
	s.t.MarkSaved(p)
	rest := r.b
	for i := range s.slots {
		var err error
		if rest, err = s.slots[i].acc.load(rest, s.t, p, s.slots[i].cell); err != nil {
			s.t.Remove(p)
			return err
		}
	}
	if len(rest) > 0 {
		s.t.Remove(p)
		return fmt.Errorf("%w: %d bytes follow the last slot", ErrState, len(rest))
	}
	c := s.cells(p)
	c[cellFirst], c[cellEnd], c[cellLow], c[cellBar] = uint64(first), uint64(end), uint64(low), noBar
	c[cellPart] = uint64(binary.BigEndian.Uint32(suffix))
	nameHash := state.Hash(name)
	if head := s.heads.find(s, nameHash, name); head != 0 && s.t.Live(head) {
		h := s.cells(head)
		if bar := max(int64(h[cellBar]), int64(h[cellEnd])); int64(h[cellEnd]) < end {
			c[cellBar], c[cellLinks] = uint64(bar), uint64(head)
			h[cellLinks] |= uint64(p) << 32
			s.heads.set(s, nameHash, name, p)
		} else {
			h[cellBar] = uint64(max(int64(h[cellBar]), end))
			older := state.Pos(h[cellLinks])
			c[cellLinks] = uint64(head)<<32 | uint64(older)
			h[cellLinks] = uint64(p)
			if older != 0 {
				o := s.cells(older)
				o[cellLinks] = uint64(p)<<32 | o[cellLinks]&(1<<32-1)
			}
		}
	} else {
		s.heads.set(s, nameHash, name, p)
	}
	s.timers.set(end, p)
	s.n.groups.Add(1)
	return nil
}

// compactRows is how many dead sessions are not worth compacting.
const compactRows = 4096

// compact moves what lives to new tables, as a restart would. It follows Changes, so that nothing is lost.
func (s *Sessions) compact() {
	old, values, groups := s.t, s.values.t, s.n.groups.Load()
	s.t, s.values.t = state.NewTable(s.own-1+ownCells), state.NewTable(1)
	s.heads.reset()
	s.timers.reset()
	s.due, s.next, s.parts, s.collected = s.due[:0], 0, s.parts[:0], operators.MinEventTime
	now := s.t
	var key []byte
	for _, p := range old.Sorted(nil) {
		s.t = old
		s.save = s.appendSession(s.save[:0], p)
		s.t = now
		if err := s.restoreSession(old.Key(p), s.save[1:]); err != nil {
			panic(err)
		}
	}
	for _, v := range values.Sorted(nil) {
		key = append(append(key[:0], rowValue), values.Key(v)...)
		if err := s.Restore(key, memberValue); err != nil {
			panic(err)
		}
	}
	s.n.groups.Store(groups)
}

// StateBytes implements operators.Stateful.
func (s *Sessions) StateBytes() int64 {
	return s.t.Bytes() + s.values.t.Bytes() + int64(cap(s.heads.slots))*8 + int64(s.timers.held)*12
}

// StateRows implements operators.Stateful: sessions of a partition, and values of count_distinct.
func (s *Sessions) StateRows() int64 { return int64(s.t.Len() + s.values.t.Len()) }

// ChangedRows is about how many rows the next Changes gives.
func (s *Sessions) ChangedRows() int { return s.t.Dirty() + s.values.t.Dirty() }

func (h *heads) reset() { *h = heads{slots: make([]uint64, 64), mask: 63} }

// find is the session in the slot of a key, 0 if there is no slot.
func (h *heads) find(s *Sessions, hash uint32, name []byte) state.Pos {
	for i := hash & h.mask; ; i = (i + 1) & h.mask {
		v := h.slots[i]
		if v == 0 || uint32(v>>32) == hash && string(s.nameOf(state.Pos(v))) == string(name) {
			return state.Pos(v)
		}
	}
}

// set puts a session into the slot of its key.
func (h *heads) set(s *Sessions, hash uint32, name []byte, p state.Pos) {
	i := hash & h.mask
	for ; h.slots[i] != 0; i = (i + 1) & h.mask {
		if v := h.slots[i]; uint32(v>>32) == hash && string(s.nameOf(state.Pos(v))) == string(name) {
			h.slots[i] = uint64(hash)<<32 | uint64(p)
			return
		}
	}
	if 2*h.used >= len(h.slots) {
		h.grow()
		for i = hash & h.mask; h.slots[i] != 0; i = (i + 1) & h.mask {
		}
	}
	h.used++
	h.slots[i] = uint64(hash)<<32 | uint64(p)
}

func (h *heads) grow() {
	old := h.slots
	h.slots = make([]uint64, 2*len(old))
	h.mask = uint32(len(h.slots) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		i := uint32(v>>32) & h.mask
		for h.slots[i] != 0 {
			i = (i + 1) & h.mask
		}
		h.slots[i] = v
	}
}
