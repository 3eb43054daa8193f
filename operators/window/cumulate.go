package window

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// Cumulate is the aggregate over windows that grow: [k*Size, k*Size + i*Every) for i from 1 to Size/Every. It is
// operators.Stateful.
//
// A row counts in the windows that hold its time and end after its partition's watermark before it: in those that end
// after u, the later of the two. So it is folded once, into the slice [.., +Every) that holds u, and it is late when u is
// not in its period [k*Size, (k+1)*Size). When the watermark passes the end of a slice, its groups are joined to those of
// the period so far (the base), and every group of the base leaves. A group of the base knows up to which slice it
// holds, so that an emission goes on where it stopped.
//
// The float sums of a partition are those of its slices, added in order.
type Cumulate struct {
	*Aggregate            // the slices
	base       *Aggregate // the periods so far
	size       int64
	every      int64
	upto       int             // the cell of a group of the base with the slices that it holds
	done       map[int64]int64 // by period: slices that have left whole
	shift      []int64

	// The window that is leaving: slice `slice` of the period at start, items from next on. members are the values
	// of count_distinct of the slice by slot, in the order of their groups.
	open         bool
	start, slice int64
	items        []cumulated
	next         int
	members      [][]state.Pos
}

// A cumulated is a group that is to leave: its places in the base and the slice, 0 where it is not.
type cumulated struct {
	base, slice state.Pos
	key         []byte // encoded
}

var _ operators.Stateful = (*Cumulate)(nil)

// NewCumulate makes an aggregate over growing windows without state. Options.Size is a multiple of Options.Every.
// Errors: ErrOptions.
func NewCumulate(o Options) (*Cumulate, error) {
	if o.Every <= 0 || o.Size%o.Every != 0 || o.Size/o.Every > maxWindowsPerRow || o.Size > maxSize {
		return nil, fmt.Errorf("%w: a window of %v that grows every %v", ErrOptions, o.Size, o.Every)
	}
	c := &Cumulate{size: int64(o.Size), every: int64(o.Every), done: map[int64]int64{}}
	small, large := o, o
	small.Size, large.Every = o.Every, o.Size
	large.Slots = append(slices.Clone(o.Slots), Slot{Func: uptoFunc, Type: scalar.TypeInt64})
	var err error
	if c.Aggregate, err = NewAggregate(small); err != nil {
		return nil, err
	}
	if c.base, err = NewAggregate(large); err != nil {
		c.Aggregate.Close()
		return nil, err
	}
	c.upto = c.base.slots[len(o.Slots)].cell
	c.members = make([][]state.Pos, len(o.Slots))
	for i := range c.slots {
		s := &c.slots[i]
		if d, ok := s.acc.(distinct); ok {
			s.acc = distinctSlice{d, c}
			c.base.slots[i].acc = s.acc
		}
		if _, ok := s.acc.(joiner); !ok {
			c.Close()
			return nil, fmt.Errorf("%w: %s cannot be joined", ErrOptions, s.Func)
		}
	}
	return c, nil
}

// Process implements operators.Operator.
func (c *Cumulate) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	a := c.Aggregate
	a.n.in.Add(int64(b.Rows))
	a.rows, a.late, a.errs = a.rows[:0], a.late[:0], a.errs[:0]
	low, high := operators.MinEventTime+2*c.size, operators.MaxEventTime-2*c.size
	c.shift = grown(c.shift, b.Rows)
	a.span = span{lo: operators.MaxEventTime, hi: operators.MinEventTime}
	for i, ts := range a.times(b) {
		u := max(ts, a.behind(b, i))
		c.shift[i] = u
		switch {
		case ts < low || ts > high:
			a.errs = append(a.errs, operators.RowError{Row: i, Code: scalar.CodeTimeRange, Expr: "window"})
		case ends(c.period(ts)+c.size, u):
			a.late = append(a.late, i)
		default:
			a.span.lo, a.span.hi = min(a.span.lo, u), max(a.span.hi, u)
			a.rows = append(a.rows, int32(i))
		}
	}
	a.keys.byCode = true
	a.shifted = c.shift
	a.take(b, out)
	a.shifted = nil
}

func (c *Cumulate) period(ts int64) int64 { return scalar.FloorDiv(ts, c.size) * c.size }

// Advance implements operators.Operator. See Aggregate.Advance about Options.EmitRows.
func (c *Cumulate) Advance(w operators.EventTime, out operators.Emitter) {
	e := &c.emit
	if c.o.OnAppend {
		if w != operators.MaxEventTime {
			w = c.appended
		}
		c.closed = max(c.closed, w)
	}
	e.w = max(e.w, w)
	c.base.emit.w = e.w
	left := c.o.EmitRows
	for {
		start, slice, ok := c.nextWindow()
		if !ok {
			break
		}
		if !c.open || c.start != start || c.slice != slice {
			c.begin(start, slice)
		}
		for ; c.next < len(c.items); c.next++ {
			if c.o.EmitRows > 0 && left == 0 {
				e.flush(out)
				return
			}
			left--
			c.leave(&c.items[c.next])
			if e.rows >= chunkRows {
				e.flush(out)
			}
		}
		c.open = false
		if c.done[start] = slice; slice == c.size/c.every {
			if t := c.base.groups.Find(start); t != nil && !c.base.forgetMembers(t, &left) {
				e.flush(out)
				return
			}
			delete(c.done, start)
		}
	}
	e.flush(out)
	c.Aggregate.drop()
	c.base.drop()
}

// More says whether windows have closed whose rows and state have not all left, because of Options.EmitRows.
func (c *Cumulate) More() bool {
	_, _, ok := c.nextWindow()
	return ok
}

// nextWindow is the first window that has ended and has something to give or to forget; false if there is none.
func (c *Cumulate) nextWindow() (start, slice int64, ok bool) {
	at, some := int64(0), false
	for i := 0; i < c.groups.Len() && !some; i++ {
		var t *state.Table
		at, t = c.groups.At(i)
		some = t.Len() > 0
	}
	if some {
		start = c.period(at)
		slice, ok = (at-start)/c.every+1, true
	}
	for i := range c.base.groups.Len() {
		p, t := c.base.groups.At(i)
		rows, _, _ := memberRows(t)
		if t.Len() == 0 && rows == 0 {
			continue
		}
		switch next := min(c.held(p, t)+1, c.size/c.every); {
		case !ok || p < start:
			start, slice, ok = p, next, true
		case p == start:
			slice = min(slice, next) // a slice may have left in part
		}
		break
	}
	return start, slice, ok && ends(start+slice*c.every, c.emit.w)
}

// held is up to which slice all groups of the base hold.
func (c *Cumulate) held(start int64, t *state.Table) int64 {
	if n, ok := c.done[start]; ok {
		return n
	}
	n := c.size / c.every
	for _, p := range t.Sorted(nil) {
		n = min(n, int64(t.Arena()[int(p)+c.upto]))
	}
	c.done[start] = n
	return n
}

// begin lists the groups of a window in the order in which they leave.
func (c *Cumulate) begin(start, slice int64) {
	c.open, c.start, c.slice, c.next = true, start, slice, 0
	c.items = c.items[:0]
	base, part := c.base.groups.Find(start), c.groups.Find(start+(slice-1)*c.every)
	if base != nil {
		for _, p := range base.Sorted(nil) {
			if int64(base.Arena()[int(p)+c.upto]) >= slice {
				continue
			}
			it := cumulated{base: p}
			if part != nil {
				if q, ok := part.Find(state.Hash(base.Key(p)), base.Key(p)); ok {
					it.slice = q
				}
			}
			c.items = append(c.items, it)
		}
	}
	if part != nil {
		for _, q := range part.Sorted(nil) {
			name := part.Key(q)
			if base != nil {
				if _, ok := base.Find(state.Hash(name), name); ok {
					continue
				}
			}
			c.items = append(c.items, cumulated{slice: q})
		}
		for i := range c.slots {
			if _, ok := c.slots[i].acc.(distinctSlice); ok {
				c.members[i] = part.Sub(i, 0).Sorted(c.members[i][:0])
			}
		}
	}
	names := make([][]byte, len(c.items))
	for i, it := range c.items {
		if names[i] = nil; it.base != 0 {
			names[i] = base.Key(it.base)
		} else {
			names[i] = part.Key(it.slice)
		}
	}
	for i, key := range c.encodedKeys(names) {
		c.items[i].key = key
	}
	slices.SortStableFunc(c.items, func(x, y cumulated) int { return compareKeys(x.key, y.key) })
}

// encodedKeys are the encoded keys of groups, in memory of their own.
func (a *Aggregate) encodedKeys(names [][]byte) [][]byte {
	k := a.keys
	keys := make([][]byte, 0, len(names))
	for from := 0; from < len(names); from += chunkRows {
		part := names[from:min(from+chunkRows, len(names))]
		switch {
		case len(k.types) == 0:
			keys = append(keys, make([][]byte, len(part))...)
			continue
		case k.raw:
			for _, n := range part {
				keys = append(keys, a.emit.keep(n))
			}
			continue
		}
		builders := make([]array.Builder, len(k.types))
		for i, typ := range k.types {
			builders[i] = array.NewBuilder(a.alloc, operators.ArrowType(typ))
		}
		for _, n := range part {
			mustDecode(k, n, builders)
		}
		columns := make([]arrow.Array, len(builders))
		for i, b := range builders {
			columns[i] = b.NewArray()
			b.Release()
		}
		more, _ := operators.EncodeKeys(columns, k.types, len(part), nil, nil)
		keys = append(keys, more...)
		for _, col := range columns {
			col.Release()
		}
	}
	return keys
}

// leave joins what the slice has of a group to the base, and moves the group to the batch that is being built.
func (c *Cumulate) leave(it *cumulated) {
	base := c.base.groups.Get(c.start)
	p := it.base
	part := c.groups.Find(c.start + (c.slice-1)*c.every)
	if p == 0 {
		name := part.Key(it.slice)
		p, _ = base.Upsert(state.Hash(name), name)
	} else {
		base.Touch(p)
		if it.slice != 0 {
			c.n.groups.Add(-1)
		}
	}
	if it.slice != 0 {
		for i := range c.slots {
			s := &c.slots[i]
			s.acc.(joiner).join(base, p, part, it.slice, s.cell)
		}
		part.Remove(it.slice)
	}
	base.Arena()[int(p)+c.upto] = uint64(c.slice)
	c.emit.add(base, p, base.Key(p), it.key, c.start, c.start+c.slice*c.every)
	if c.slice == c.size/c.every {
		base.Remove(p)
	} else {
		c.n.groups.Add(1) // it leaves again
	}
}

// distinctSlice is distinct whose values move from a slice to the base.
type distinctSlice struct {
	distinct
	c *Cumulate
}

func (d distinctSlice) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	list, from, to := d.c.members[d.slot], src.Sub(d.slot, 0), dst.Sub(d.slot, 0)
	var key []byte
	for i := sort.Search(len(list), func(i int) bool { return ownerOf(from.Key(list[i])) >= q }); i < len(list) && ownerOf(from.Key(list[i])) == q; i++ {
		key = append(memberKey(key[:0], p), from.Key(list[i])[ownerBytes:]...)
		hash := state.Hash(key)
		if _, ok := to.Find(hash, key); !ok {
			to.Upsert(hash, key)
			dst.Arena()[int(p)+cell]++
		}
		from.Remove(list[i])
	}
}

// uptoFunc is the hidden slot of the base.
const uptoFunc = "$upto"

// upto is up to which slice a group holds. Cell: the number.
type upto struct{}

func (upto) cells() int     { return 1 }
func (upto) update(*update) {}

func (upto) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	b.(*array.Int64Builder).Append(int64(c[0]))
	return scalar.CodeNone
}

func (upto) save(dst []byte, _ *state.Table, c []uint64) []byte {
	return binary.AppendUvarint(append(dst, 'u'), c[0])
}

func (upto) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('u')
	if n := r.uvarint(); n > maxWindowsPerRow {
		r.bad = true
	} else {
		t.Arena()[int(p)+cell] = n
	}
	return r.rest("slices")
}

// Rows of state are those of the two aggregates after a byte: 'a' for the base, 'b' for the slices.
const (
	rowBase  = 'a'
	rowSlice = 'b'
)

// Changes implements operators.Stateful.
func (c *Cumulate) Changes(put func(key, value []byte)) {
	var key []byte
	after := func(kind byte) func(k, v []byte) {
		return func(k, v []byte) {
			key = append(append(key[:0], kind), k...)
			put(key, v)
		}
	}
	c.base.Changes(after(rowBase))
	c.Aggregate.Changes(after(rowSlice))
}

// Restore implements operators.Stateful. Errors: ErrState.
func (c *Cumulate) Restore(key, value []byte) error {
	switch {
	case len(key) > 0 && key[0] == rowBase:
		n := c.base.n.groups.Load()
		err := c.base.Restore(key[1:], value)
		c.n.groups.Add(c.base.n.groups.Load() - n)
		return err
	case len(key) > 0 && key[0] == rowSlice:
		return c.Aggregate.Restore(key[1:], value)
	}
	return fmt.Errorf("%w: cut short", ErrState)
}

// StateBytes implements operators.Stateful.
func (c *Cumulate) StateBytes() int64 { return c.Aggregate.StateBytes() + c.base.StateBytes() }

// StateRows implements operators.Stateful.
func (c *Cumulate) StateRows() int64 { return c.Aggregate.StateRows() + c.base.StateRows() }

// ChangedRows is about how many rows the next Changes gives.
func (c *Cumulate) ChangedRows() int { return c.Aggregate.ChangedRows() + c.base.ChangedRows() }

// Close implements operators.Operator.
func (c *Cumulate) Close() {
	c.Aggregate.Close()
	c.base.Close()
}
