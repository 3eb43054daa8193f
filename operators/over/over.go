// Package over gives each row values over the rows of its key before it and including it: those of a
// frame, which is the last N rows or the last D of event time, and its place among all of them.
//
// Rows of a key stand in the order (event time, partition, offset). A row is held until the watermark has
// passed it, and leaves then, with its event time; it is in the frames of those that follow. A row that is
// behind would change what has left, so it is late.
//
// Every frame is folded anew, in order. So a value depends on the rows of its frame alone, floats included,
// whatever the batches, steps and restarts; and the work for a row grows with its frame.
//
// Of each key the columns that frames look at are kept, for as many rows as one of the rows to come may
// look at, and at least for the last one. An Over belongs to one goroutine.
package over

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/rows"
)

// MaxRows bounds Options.N and Slot.Back.
const MaxRows = 10_000

const chunkRows = 4096 // of one emitted batch, at most

// ErrOptions is returned for options that no checked plan has.
var ErrOptions = errors.New("over: invalid options")

// Options describe an Over. What leaves are the columns of the rows without the hidden ones, then one
// column a slot.
type Options struct {
	Rows  rows.Shape
	Frame []int // the columns of the rows, all of them kept, that slots look at
	Slots []Slot

	// A frame is the last N rows, the row itself included; with Before the N rows before it. Or it is the
	// rows of the last Range of event time: (t - Range, t]. Both zero: no slot is a Fold.
	N      int
	Before bool
	Range  time.Duration

	// A key is forgotten when no row of it has come for Idle. Zero: never, but that one with a Range goes
	// when its last row has left the frame, unless Forever.
	Idle    time.Duration
	Forever bool
	Single  bool // all rows come from one partition

	// EmitRows bounds the rows that leave, and those that are forgotten, in one Advance; More tells that
	// some are left. Zero: no bound.
	EmitRows int
}

// A Kind is what a slot gives.
type Kind uint8

// The kinds of slots. RowNumber is the row's number in its key, from 1; Rank is 1 and the number of rows
// of the key with an earlier event time.
const (
	KindFold Kind = iota + 1
	KindPrev
	KindRowNumber
	KindRank
)

// A Slot is one value of each row.
type Slot struct {
	Kind   Kind
	Fold   Folder // KindFold
	Column int    // KindPrev: index into Options.Frame
	Back   int    // KindPrev: so many rows before, at least 1
	Type   scalar.Type
	Text   string // as written, for errors
}

// A Folder folds rows that stand side by side.
type Folder interface {
	// Read takes up a batch of the columns of Options.Frame. It stays alive until the next Read.
	Read(b *operators.Batch)
	// Over appends what rows from to to-1 give, or returns a code and appends nothing.
	Over(from, to int, dst array.Builder) scalar.Code
}

// An Over is the operator. It is operators.Stateful.
type Over struct {
	o      Options
	span   int64 // after which a key is forgotten; 0: never
	keep   int   // rows of a key that are kept, whatever their time
	types  []scalar.Type
	places rows.Places
	held   *rows.Buffer
	keys   map[string]*key
	timers timers
	change rows.ChangeSet
	w      operators.EventTime
	build  *rows.Builder
	taken  []*rows.Row // what is in build

	name    []byte
	late    []int
	touched []*key
	frames  []frame
	times   []int64
}

// A key is the rows of a key that are kept, in order.
type key struct {
	name  []byte // encoded key, after a byte that tells the null key apart
	rows  []*entry
	due   operators.EventTime // when a timer looks at it
	fresh bool                // rows of the chunk are of this key
	start int                 // where its rows begin in the chunk's columns
}

// An entry is what is kept of a row.
type entry struct {
	rows.Kept
	place        rows.Place
	number, rank int64
	data         []byte // the columns of the frame
}

// A frame is where a row of a chunk stands in the chunk's columns, and which rows of them it looks at.
type frame struct {
	k            *key
	e            *entry
	at, from, to int
	first        int // of its generation
}

var _ operators.Stateful = (*Over)(nil)

// New makes an Over without state. Errors: ErrOptions.
func New(o Options) (*Over, error) {
	if o.N < 0 || o.N > MaxRows || o.Range < 0 || o.Idle < 0 || o.N > 0 && o.Range > 0 || o.Before && o.N == 0 || o.EmitRows < 0 {
		return nil, fmt.Errorf("%w: %d rows, range %v", ErrOptions, o.N, o.Range)
	}
	v := &Over{o: o, span: int64(o.Idle), w: operators.MinEventTime, keys: map[string]*key{}, keep: max(1, o.N-1)}
	if o.Before {
		v.keep = o.N
	}
	if o.Idle == 0 && !o.Forever {
		v.span = int64(o.Range)
	}
	for _, c := range o.Frame {
		if c < 0 || c >= o.Rows.Kept {
			return nil, fmt.Errorf("%w: column %d", ErrOptions, c)
		}
		v.types = append(v.types, o.Rows.Types[c])
	}
	for _, s := range o.Slots {
		switch {
		case s.Kind == KindFold && (s.Fold == nil || o.N == 0 && o.Range == 0),
			s.Kind == KindPrev && (s.Back < 1 || s.Back > MaxRows || s.Column >= len(o.Frame)),
			s.Kind < KindFold || s.Kind > KindRank:
			return nil, fmt.Errorf("%w: %s", ErrOptions, s.Text)
		}
		v.keep = max(v.keep, s.Back)
	}
	v.held, v.build = rows.NewBuffer(&v.o.Rows, o.Single), v.o.Rows.NewBuilder()
	return v, nil
}

// Process implements operators.Operator.
func (v *Over) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	full, errs := v.o.Rows.Full(b)
	defer full.Release()
	groups, errs := v.o.Rows.Groups(full, errs)
	if len(errs) > 0 {
		out.Fail(b, errs)
	}
	v.late = v.late[:0]
	for i := range full.Rows {
		place := v.places.Of(full, i)
		switch {
		case len(errs) > 0 && errs[0].Row == i:
			errs = errs[1:]
		case full.Behind != nil && full.Time[i] < full.Behind[i]:
			v.late = append(v.late, i)
		default:
			v.held.Hold(v.o.Rows.NewRow(full, i, place, groups[i]))
		}
	}
	if len(v.late) > 0 {
		out.Late(b, v.late)
	}
}

// Held is the number of rows that wait for the watermark.
func (v *Over) Held() int64 { return int64(v.held.Len()) }

// Advance implements operators.Operator. With Options.EmitRows it may leave rows behind: More tells, and
// the next Advance goes on there.
func (v *Over) Advance(w operators.EventTime, out operators.Emitter) {
	v.w = max(v.w, w)
	left := math.MaxInt
	if v.o.EmitRows > 0 {
		left = v.o.EmitRows
	}
	for ; left > 0; left-- {
		r := v.held.Next(v.w)
		if r == nil {
			break
		}
		v.build.Add(r, r.Place.Time)
		if v.taken = append(v.taken, r); len(v.taken) == chunkRows {
			v.flush(out)
		}
	}
	v.flush(out)
	if !v.held.Ready(v.w) {
		v.expire(left)
	}
}

// flush gives away the rows of a chunk with their values.
func (v *Over) flush(out operators.Emitter) {
	n := len(v.taken)
	if n == 0 {
		return
	}
	b := v.build.Batch()
	defer b.Release()
	v.remember(b)
	kept := v.gather()
	columns := slices.Clone(b.Columns[:len(b.Columns)-v.o.Rows.Hidden])
	for _, c := range columns {
		c.Retain()
	}
	values, errs := v.values(kept)
	kept.Release()
	for _, k := range v.touched {
		v.trim(k)
		v.watch(k)
	}
	clear(v.taken)
	clear(v.touched)
	clear(v.frames)
	v.taken, v.touched, v.frames = v.taken[:0], v.touched[:0], v.frames[:0]

	with := b.With(append(columns, values...))
	if len(errs) == 0 {
		out.Emit(with)
		return
	}
	defer with.Release()
	out.Fail(with, errs)
	good := make([]int32, 0, n)
	for i := range n {
		if len(errs) > 0 && errs[0].Row == i {
			errs = errs[1:]
			continue
		}
		good = append(good, int32(i))
	}
	if len(good) > 0 {
		out.Emit(with.Select(v.o.Rows.Allocator(), good))
	}
}

// remember appends the rows of a chunk to those of their keys.
func (v *Over) remember(b *operators.Batch) {
	for i, r := range v.taken {
		k := v.key(r.Group)
		if !k.fresh {
			k.fresh = true
			v.touched = append(v.touched, k)
		}
		e := &entry{place: r.Place, number: 1, rank: 1}
		if len(k.rows) > 0 {
			if last := k.rows[len(k.rows)-1]; !v.over(last, e.place.Time) {
				if e.number, e.rank = last.number+1, last.rank; last.place.Time != e.place.Time {
					e.rank = e.number
				}
			}
		}
		e.Key = stateKey(k.name, e.place)
		e.Value = binary.BigEndian.AppendUint64(append(make([]byte, 0, head+9*len(v.types)), entryVersion), uint64(e.number))
		e.Value = binary.BigEndian.AppendUint64(e.Value, uint64(e.rank))
		for j, c := range v.o.Frame {
			e.Value = rows.AppendCell(e.Value, b.Columns[c], v.types[j], i)
		}
		e.data = e.Value[head:]
		v.change.Add(&e.Kept)
		v.frames = append(v.frames, frame{k: k, e: e, at: len(k.rows)})
		k.rows = append(k.rows, e)
	}
}

// key finds a key, or makes it.
func (v *Over) key(group []byte) *key {
	if v.name = v.name[:0]; group == nil {
		v.name = append(v.name, 0)
	} else {
		v.name = append(append(v.name, 1), group...)
	}
	return v.named(v.name)
}

func (v *Over) named(name []byte) *key {
	k := v.keys[string(name)]
	if k == nil {
		k = &key{name: bytes.Clone(name)}
		v.keys[string(k.name)] = k
	}
	return k
}

// over says whether a key whose last row is e is forgotten at t.
func (v *Over) over(e *entry, t operators.EventTime) bool {
	return v.span > 0 && plus(e.place.Time, v.span) <= t
}

// plus is t + d, not above the last event time.
func plus(t, d int64) int64 {
	if t > math.MaxInt64-d {
		return math.MaxInt64
	}
	return t + d
}

// gather makes columns of the rows of the keys that were touched, key by key, and finds the frames of the
// chunk's rows in them.
func (v *Over) gather() *operators.Batch {
	builders := make([]array.Builder, len(v.types))
	for i, t := range v.types {
		builders[i] = array.NewBuilder(v.o.Rows.Allocator(), operators.ArrowType(t))
		defer builders[i].Release()
	}
	v.times = v.times[:0]
	for _, k := range v.touched {
		k.start = len(v.times)
		for _, e := range k.rows {
			data := e.data
			for i, t := range v.types {
				var err error
				if data, err = rows.ReadInto(builders[i], t, data); err != nil {
					panic(err) // what we wrote, or checked when it was restored
				}
			}
			v.times = append(v.times, e.place.Time)
		}
	}
	columns := make([]arrow.Array, len(builders))
	for i, b := range builders {
		columns[i] = b.NewArray()
	}
	for i := range v.frames {
		f := &v.frames[i]
		f.first = f.k.start + f.at - int(min(f.e.number-1, int64(f.at)))
		f.at += f.k.start
		f.from, f.to = f.first, f.at+1
		switch {
		case v.o.Before:
			f.from, f.to = max(f.first, f.at-v.o.N), f.at
		case v.o.N > 0:
			f.from = max(f.first, f.at+1-v.o.N)
		case v.o.Range > 0:
			f.from += v.leftOf(v.times[f.first:f.at], f.e.place.Time)
		}
	}
	kept := operators.NewBatch(columns, v.times)
	kept.Partition = -1
	return kept
}

// leftOf is how many of times, ascending, are no longer in the range of a row at t.
func (v *Over) leftOf(times []int64, t int64) int {
	n, _ := slices.BinarySearchFunc(times, t, func(x, t int64) int {
		if plus(x, int64(v.o.Range)) <= t {
			return -1
		}
		return 1
	})
	return n
}

// values makes a column of each slot. errs are the rows without one, each once, ascending.
func (v *Over) values(kept *operators.Batch) (columns []arrow.Array, errs []operators.RowError) {
	failed := make(map[int]bool)
	for i := range v.o.Slots {
		s := &v.o.Slots[i]
		b := array.NewBuilder(v.o.Rows.Allocator(), operators.ArrowType(s.Type))
		b.Reserve(len(v.frames))
		if s.Kind == KindFold {
			s.Fold.Read(kept)
		}
		for row, f := range v.frames {
			switch s.Kind {
			case KindRowNumber:
				operators.AppendValue(b, s.Type, scalar.Int(f.e.number))
			case KindRank:
				operators.AppendValue(b, s.Type, scalar.Int(f.e.rank))
			case KindPrev:
				if at := f.at - s.Back; at >= f.first {
					operators.AppendValue(b, s.Type, operators.ValueAt(kept.Columns[s.Column], s.Type, at))
				} else {
					b.AppendNull()
				}
			case KindFold:
				if code := s.Fold.Over(f.from, f.to, b); code != scalar.CodeNone {
					b.AppendNull()
					if !failed[row] {
						failed[row] = true
						errs = append(errs, operators.RowError{Row: row, Code: code, Expr: s.Text})
					}
				}
			}
		}
		columns = append(columns, b.NewArray())
		b.Release()
	}
	slices.SortFunc(errs, func(x, y operators.RowError) int { return x.Row - y.Row })
	return columns, errs
}

// trim forgets the rows of a key that no row to come looks at.
func (v *Over) trim(k *key) {
	n := len(k.rows)
	last := k.rows[n-1]
	gone := n - int(min(last.number, int64(n))) // of generations before
	for gone < n-v.keep && (v.o.Range == 0 || plus(k.rows[gone].place.Time, int64(v.o.Range)) <= last.place.Time) {
		gone++
	}
	v.drop(k, gone)
	k.fresh = false
}

// drop forgets the first n rows of a key.
func (v *Over) drop(k *key, n int) {
	for _, e := range k.rows[:n] {
		v.change.Remove(&e.Kept)
	}
	k.rows = slices.Delete(k.rows, 0, n)
}

// timers are the keys that are forgotten one day, the next one first. A key is in it once; when its turn
// comes too early it is put back.
type timers []*key

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(*key)) }
func (t *timers) Pop() any {
	old := *t
	n := len(old) - 1
	x := old[n]
	old[n] = nil
	*t = old[:n]
	return x
}

// watch puts a key among the timers, if it is not there.
func (v *Over) watch(k *key) {
	if v.span > 0 && k.due == 0 {
		k.due = v.end(k)
		heap.Push(&v.timers, k)
	}
}

// end is when a key is forgotten, unless another row comes; zero stands for none, so it is never zero.
func (v *Over) end(k *key) operators.EventTime {
	at := plus(k.rows[len(k.rows)-1].place.Time, v.span)
	if at == 0 {
		return 1
	}
	return at
}

// expire forgets keys whose time has come, about n rows.
func (v *Over) expire(n int) {
	for n > 0 && len(v.timers) > 0 && v.timers[0].due <= v.w {
		k := v.timers[0]
		if end := v.end(k); end > v.w {
			k.due = end
			heap.Fix(&v.timers, 0)
			continue
		}
		gone := min(n, len(k.rows))
		n -= gone
		if gone < len(k.rows) {
			v.drop(k, gone)
			return
		}
		v.drop(k, gone)
		heap.Pop(&v.timers)
		delete(v.keys, string(k.name))
	}
}

// More says whether rows can leave that have not, or keys be forgotten, because of Options.EmitRows.
func (v *Over) More() bool {
	return v.held.Ready(v.w) || len(v.timers) > 0 && v.timers[0].due <= v.w
}

// Close implements operators.Operator.
func (v *Over) Close() { v.build.Release() }

const keyBytes = 160 // of a key beside its name and rows, about

// StateBytes implements operators.Stateful.
func (v *Over) StateBytes() int64 {
	return v.held.Bytes() + v.change.Bytes() + int64(len(v.keys))*keyBytes
}

// StateRows implements operators.Stateful: rows that wait, and rows that frames look at.
func (v *Over) StateRows() int64 { return int64(v.held.Len()) + v.change.Rows() }

// ChangedRows is about how many rows the next Changes gives.
func (v *Over) ChangedRows() int { return v.held.Changed() + v.change.Changed() }

// Changes implements operators.Stateful.
func (v *Over) Changes(put func(key, value []byte)) {
	v.change.Flush(put) // 'f' comes before 'h'
	v.held.Flush(put)
}

// State rows are held rows, and
//
//	key  'f' length(4) name  place(24)     value  version(1) number(8) rank(8)  columns
//
// big-endian; the columns are as those of rows.Row. The name is a byte, 0 for the null key and else 1, and
// the encoded key.
const (
	rowFrame     = 'f'
	rowHead      = 1 + 4
	entryVersion = 1
	head         = 1 + 8 + 8
)

func stateKey(name []byte, place rows.Place) []byte {
	k := make([]byte, 0, rowHead+len(name)+rows.PlaceBytes)
	k = binary.BigEndian.AppendUint32(append(k, rowFrame), uint32(len(name)))
	return place.Append(append(k, name...))
}

// Restore implements operators.Stateful. Errors: rows.ErrState.
func (v *Over) Restore(stored, value []byte) error {
	if len(stored) > 0 && stored[0] == rows.HeldRow {
		r, err := v.held.Restore(stored, value)
		if err != nil {
			return err
		}
		v.places.Restored(r.Place)
		return nil
	}
	if len(stored) < rowHead+1+rows.PlaceBytes || stored[0] != rowFrame ||
		uint64(binary.BigEndian.Uint32(stored[1:])) != uint64(len(stored)-rowHead-rows.PlaceBytes) {
		return fmt.Errorf("%w: key of a frame", rows.ErrState)
	}
	if len(value) < head || value[0] != entryVersion {
		return fmt.Errorf("%w: row of a frame", rows.ErrState)
	}
	e := &entry{}
	e.Key, e.Value = bytes.Clone(stored), bytes.Clone(value)
	name, place := e.Key[rowHead:len(e.Key)-rows.PlaceBytes], e.Key[len(e.Key)-rows.PlaceBytes:]
	e.place, e.data = rows.ReadPlace(place), e.Value[head:]
	e.number, e.rank = int64(binary.BigEndian.Uint64(value[1:])), int64(binary.BigEndian.Uint64(value[9:]))
	if e.number < 1 || e.rank < 1 || e.rank > e.number || e.number == math.MaxInt64 {
		return fmt.Errorf("%w: number of a row", rows.ErrState)
	}
	if err := rows.Check(e.data, v.types); err != nil {
		return err
	}
	k := v.named(name)
	at, _ := slices.BinarySearchFunc(k.rows, e.place, func(x *entry, p rows.Place) int { return x.place.Compare(p) })
	k.rows = slices.Insert(k.rows, at, e)
	v.change.Restored(&e.Kept)
	v.places.Restored(e.place)
	v.watch(k)
	return nil
}
