// Package dedup lets the first row of each key pass and drops its repetitions, or makes a table of the last
// row of each key.
//
// Which row is first goes by (event time, partition, offset), so a row is held until the watermark has
// passed it, and then judged in that order: whatever the batches, steps and the order of partitions, the
// same rows pass. With a single partition whose rows come in order, none waits.
//
// A row is a repetition if a row of its key that passed is less than Within before it. A row that is
// behind is judged where it stands, at its W_p: next to one that passed and is still remembered it is a
// repetition, too; otherwise nobody knows any more whether it is one, and it is late.
//
// What is remembered is the event time of each key, in tables by time, which are dropped as a whole when
// the last of their keys is over. A Dedup belongs to one goroutine.
package dedup

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/rows"
	"github.com/headrace/headrace/operators/state"
)

// ErrOptions is returned for options that no checked plan has.
var ErrOptions = errors.New("dedup: invalid options")

const (
	chunkRows = 4096 // of one emitted batch, at most
	parts     = 4    // tables for the time that a key is remembered
)

// Options describe a Dedup. What leaves are the columns of the rows that are kept.
type Options struct {
	Rows rows.Shape
	// Within is how long after a row that passed others of its key are repetitions. With Idle it counts
	// from the last row of the key that came instead. Zero: for ever.
	Within time.Duration
	Idle   bool
	Single bool // all rows come from one partition
	// Last makes a table of the last row of each key instead, by (event time, partition, offset): each
	// row that is later than those before leaves when it comes, and takes their place. Within is zero.
	Last bool

	// EmitRows bounds the rows that are judged, and the keys that are forgotten, in one Advance; More tells
	// that some are left. Zero: no bound.
	EmitRows int
}

// A Dedup is the operator. It is operators.Stateful.
type Dedup struct {
	o      Options
	span   int64 // Within
	width  int64 // of a table
	places rows.Places
	held   *rows.Buffer
	seen   *state.Windows // one cell: the time that Within counts from
	w      operators.EventTime
	build  *rows.Builder // of rows that pass
	gone   *rows.Builder // of late rows

	forget []state.Pos // keys of the oldest table that are to go
	name   []byte
	save   []byte
}

var _ operators.Stateful = (*Dedup)(nil)

// New makes a Dedup without state. Errors: ErrOptions.
func New(o Options) (*Dedup, error) {
	if o.Within < 0 || o.Last && o.Within > 0 || o.Idle && o.Within == 0 || o.EmitRows < 0 {
		return nil, fmt.Errorf("%w: within %v", ErrOptions, o.Within)
	}
	d := &Dedup{o: o, span: int64(o.Within), w: operators.MinEventTime, seen: state.NewWindows(1)}
	d.width = max(1, (d.span+parts-1)/parts)
	if o.Last {
		d.seen = state.NewWindows(lastCells)
	}
	d.held = rows.NewBuffer(&d.o.Rows, o.Single)
	d.build, d.gone = d.o.Rows.NewBuilder(), d.o.Rows.NewBuilder()
	return d, nil
}

// Process implements operators.Operator.
func (d *Dedup) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	full, errs := d.o.Rows.Full(b)
	defer full.Release()
	groups, errs := d.o.Rows.Groups(full, errs)
	if len(errs) > 0 {
		out.Fail(b, errs)
	}
	for i := range full.Rows {
		place := d.places.Of(full, i)
		if len(errs) > 0 && errs[0].Row == i {
			errs = errs[1:]
			continue
		}
		r := d.o.Rows.NewRow(full, i, place, groups[i])
		if !d.o.Last {
			d.held.Hold(r)
			continue
		}
		if d.judge(r); d.build.Rows() == chunkRows {
			d.flush(out)
		}
	}
	d.flush(out)
}

// Held is the number of rows that wait for the watermark.
func (d *Dedup) Held() int64 { return int64(d.held.Len()) }

// Advance implements operators.Operator. With Options.EmitRows it may leave rows behind: More tells, and
// the next Advance goes on there.
func (d *Dedup) Advance(w operators.EventTime, out operators.Emitter) {
	d.w = max(d.w, w)
	left := math.MaxInt
	if d.o.EmitRows > 0 {
		left = d.o.EmitRows
	}
	for ; left > 0; left-- {
		r := d.held.Next(d.w)
		if r == nil {
			break
		}
		d.judge(r)
		if d.build.Rows() == chunkRows || d.gone.Rows() == chunkRows {
			d.flush(out)
		}
	}
	d.flush(out)
	if !d.held.Ready(d.w) {
		d.expire(left)
	}
}

// flush gives away what was judged.
func (d *Dedup) flush(out operators.Emitter) {
	if n := d.gone.Rows(); n > 0 {
		behind := d.gone.Behind()
		late := d.gone.Batch()
		late.Behind = behind
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		out.Late(late, all)
		late.Release()
	}
	if d.build.Rows() > 0 {
		out.Emit(d.build.Batch())
	}
}

// judge decides about the row whose turn it is.
func (d *Dedup) judge(r *rows.Row) {
	d.name = d.name[:0]
	if r.Group == nil {
		d.name = append(d.name, 0)
	} else {
		d.name = append(append(d.name, 1), r.Group...)
	}
	hash := state.Hash(d.name)
	if d.o.Last {
		d.replace(r, hash)
		return
	}
	ts := r.Place.Time
	t, p, since := d.find(hash, r.At())
	switch {
	case t != nil && (d.span == 0 || since-ts < d.span):
		if d.o.Idle && !r.Late() && ts > since {
			if to := d.table(ts); to != t {
				t.Remove(p)
				t = to
			}
			d.remember(t, hash, ts)
		}
	case r.Late():
		d.gone.Add(r, ts)
	default:
		d.remember(d.table(ts), hash, ts)
		d.build.Add(r, ts)
	}
}

// lastCells are the time, partition, offset and number of the last row of a key.
const lastCells = 4

// replace lets a row pass that is the last of its key so far.
func (d *Dedup) replace(r *rows.Row, hash uint32) {
	t := d.seen.Get(0)
	if p, ok := t.Find(hash, d.name); ok && r.Place.Compare(placeOf(t.Cells(p))) < 0 {
		return
	}
	p, _ := t.Upsert(hash, d.name)
	setPlace(t.Cells(p), r.Place)
	d.build.Add(r, r.Place.Time)
}

func placeOf(c []uint64) rows.Place {
	return rows.Place{Time: int64(c[0]), Partition: int32(c[1]), Offset: int64(c[2]), Nth: uint32(c[3])}
}

func setPlace(c []uint64, p rows.Place) {
	c[0], c[1], c[2], c[3] = uint64(p.Time), uint64(p.Partition), uint64(p.Offset), uint64(p.Nth)
}

// find looks for the key in d.name among those that are remembered at a time.
func (d *Dedup) find(hash uint32, at operators.EventTime) (*state.Table, state.Pos, int64) {
	if d.span == 0 {
		if t := d.seen.Find(0); t != nil {
			if p, ok := t.Find(hash, d.name); ok {
				return t, p, int64(t.Cells(p)[0])
			}
		}
		return nil, 0, 0
	}
	// What began after at - span is remembered; nothing began after at.
	for i := d.seen.Len() - 1; i >= 0; i-- {
		start, t := d.seen.At(i)
		if plus(start+d.width-1, d.span) <= at {
			break
		}
		if p, ok := t.Find(hash, d.name); ok {
			if since := int64(t.Cells(p)[0]); plus(since, d.span) > at {
				return t, p, since
			}
		}
	}
	return nil, 0, 0
}

// table is the one for keys that are remembered from ts on.
func (d *Dedup) table(ts operators.EventTime) *state.Table {
	if d.span == 0 {
		return d.seen.Get(0)
	}
	return d.seen.Get(d.start(ts))
}

func (d *Dedup) start(ts int64) int64 {
	return max(scalar.FloorDiv(ts, d.width), math.MinInt64/d.width) * d.width
}

func (d *Dedup) remember(t *state.Table, hash uint32, ts operators.EventTime) {
	p, _ := t.Upsert(hash, d.name)
	t.Cells(p)[0] = uint64(ts)
}

// plus is t + d, not above the last event time.
func plus(t, d int64) int64 {
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// over says whether no key of the table that starts at start is remembered any more.
func (d *Dedup) over(start int64) bool {
	return d.span > 0 && plus(start+d.width-1, d.span) <= d.w
}

// expire forgets up to n keys that are over.
func (d *Dedup) expire(n int) {
	for i := 0; i < d.seen.Len() && n > 0; i++ {
		start, t := d.seen.At(i)
		if !d.over(start) {
			break
		}
		d.forget = t.Sorted(d.forget[:0])
		k := min(n, len(d.forget))
		for _, p := range d.forget[:k] {
			t.Remove(p)
		}
		n -= k
	}
	d.drop()
}

// drop recycles the tables that are over and of which the store holds nothing more.
func (d *Dedup) drop() {
	d.seen.Drop(func(start int64, t *state.Table) bool { return d.over(start) && t.Len() == 0 && t.Saved() == 0 })
}

// More says whether rows can leave that have not, or keys be forgotten, because of Options.EmitRows.
func (d *Dedup) More() bool {
	if d.held.Ready(d.w) {
		return true
	}
	for i := range d.seen.Len() {
		start, t := d.seen.At(i)
		if !d.over(start) {
			return false
		}
		if t.Len() > 0 {
			return true
		}
	}
	return false
}

// Close implements operators.Operator.
func (d *Dedup) Close() {
	d.build.Release()
	d.gone.Release()
}

// StateBytes implements operators.Stateful.
func (d *Dedup) StateBytes() int64 { return d.held.Bytes() + d.seen.Bytes() }

// StateRows implements operators.Stateful: rows that wait, and keys.
func (d *Dedup) StateRows() int64 { return int64(d.held.Len()) + d.seen.Rows() }

// ChangedRows is about how many rows the next Changes gives.
func (d *Dedup) ChangedRows() int { return d.held.Changed() + d.seen.Dirty() }

// State rows are held rows, and
//
//	key  's' start(8) name     value  version(1) time(8), or with Last the place(24) of the row
//
// big-endian with the sign bit flipped. The name is a byte, 0 for the null key and else 1, and the encoded
// key.
const (
	rowSeen     = 's'
	seenVersion = 1
)

// Changes implements operators.Stateful.
func (d *Dedup) Changes(put func(key, value []byte)) {
	d.held.Flush(put)
	for i := range d.seen.Len() {
		start, t := d.seen.At(i)
		t.Changed(func(p state.Pos, dead bool) {
			d.save = append(rows.AppendTime(append(d.save[:0], rowSeen), start), t.Key(p)...)
			if dead {
				put(d.save, nil)
				return
			}
			n := len(d.save)
			d.save = append(d.save, seenVersion)
			if d.o.Last {
				d.save = placeOf(t.Cells(p)).Append(d.save)
			} else {
				d.save = rows.AppendTime(d.save, int64(t.Cells(p)[0]))
			}
			put(d.save[:n:n], d.save[n:])
		})
	}
	d.drop()
}

// Restore implements operators.Stateful. Errors: rows.ErrState.
func (d *Dedup) Restore(key, value []byte) error {
	if len(key) > 0 && key[0] == rows.HeldRow {
		r, err := d.held.Restore(key, value)
		if err != nil {
			return err
		}
		d.places.Restored(r.Place)
		return nil
	}
	size := 9
	if d.o.Last {
		size = 1 + rows.PlaceBytes
	}
	if len(key) < 10 || key[0] != rowSeen || len(value) != size || value[0] != seenVersion {
		return fmt.Errorf("%w: key of a dedup", rows.ErrState)
	}
	start, since := rows.ReadTime(key[1:]), rows.ReadTime(value[1:])
	if d.span == 0 && start != 0 || d.span > 0 && start != d.start(since) {
		return fmt.Errorf("%w: a key in the wrong table", rows.ErrState)
	}
	t := d.seen.Get(start)
	p, _ := t.Upsert(state.Hash(key[9:]), key[9:])
	if d.o.Last {
		place := rows.ReadPlace(value[1:])
		setPlace(t.Cells(p), place)
		d.places.Restored(place)
	} else {
		t.Cells(p)[0] = uint64(since)
	}
	t.MarkSaved(p)
	return nil
}
