// Package rows is what stages that keep whole rows have in common: rows as bytes, the order of rows, the
// change set of what a stage keeps, and a buffer that gives rows away once the watermark has passed them.
//
// A kept row is its own state row: the key and value that the store has are the bytes in memory. Nothing
// is ever iterated in map order. One goroutine uses a stage's rows.
package rows

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A Shape is what the rows of a stage look like: the columns of its input and those that it computes for
// each row when it comes.
type Shape struct {
	Types  []scalar.Type // of the input, then of Added
	Names  []string
	Added  operators.Evaluator // nil: none
	Group  []int               // the columns that rows are grouped by
	Kept   int                 // so many columns are kept and leave; those after them are for the stage's eyes
	Hidden int                 // so many of the last columns that are kept are no part of the row as JSON
	Topic  string              // of the source, for the origin of rows
	Alloc  memory.Allocator    // nil: the Go heap
}

// Allocator is Alloc or the Go heap.
func (s *Shape) Allocator() memory.Allocator {
	if s.Alloc == nil {
		return memory.DefaultAllocator
	}
	return s.Alloc
}

// Full is the batch with the added columns, and errs the rows that have none, ascending. The caller
// releases full and keeps b.
func (s *Shape) Full(b *operators.Batch) (full *operators.Batch, errs []operators.RowError) {
	columns := make([]arrow.Array, len(b.Columns), len(s.Types))
	for i, c := range b.Columns {
		if c != nil {
			c.Retain()
			columns[i] = c
		}
	}
	if s.Added != nil {
		r, err := s.Added.Eval(b, nil)
		if err != nil {
			panic("rows: evaluate: " + err.Error())
		}
		for _, c := range r.Columns {
			columns = append(columns, operators.Plain(s.Allocator(), c))
			c.Release()
		}
		errs = r.Errors
	}
	return b.With(columns), errs
}

// Groups encodes the group of each row of a full batch. errs, ascending, are left out and come back with
// the rows whose group has no written form.
func (s *Shape) Groups(full *operators.Batch, errs []operators.RowError) ([][]byte, []operators.RowError) {
	columns, types := make([]arrow.Array, len(s.Group)), make([]scalar.Type, len(s.Group))
	for i, c := range s.Group {
		columns[i], types[i] = full.Columns[c], s.Types[c]
	}
	keys, errs := operators.EncodeKeys(columns, types, full.Rows, errs, nil)
	for i, k := range keys {
		if len(k) > maxGroupBytes && !slices.ContainsFunc(errs, func(e operators.RowError) bool { return e.Row == i }) {
			errs = append(errs, operators.RowError{Row: i, Code: scalar.CodeLimit, Expr: "by"})
			slices.SortStableFunc(errs, func(x, y operators.RowError) int { return x.Row - y.Row })
		}
	}
	return keys, errs
}

// maxGroupBytes bounds the encoded key of a group, which is part of the key of a state row.
const maxGroupBytes = 32 << 10

// A Place is where a row stands in the order of its source: (event time, partition, offset, place). Rows
// that were merged before have partition -1, and as offset their number.
type Place struct {
	Time      operators.EventTime
	Partition int32
	Offset    int64
	Nth       uint32 // among the rows that an explode made of one record
}

// Compare orders places.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Time, q.Time), cmp.Compare(p.Partition, q.Partition), cmp.Compare(p.Offset, q.Offset), cmp.Compare(p.Nth, q.Nth))
}

// PlaceBytes is the length of an encoded place.
const PlaceBytes = 24

// Append appends the place so that the bytes order like places.
func (p Place) Append(dst []byte) []byte {
	dst = AppendTime(dst, p.Time)
	dst = binary.BigEndian.AppendUint32(dst, uint32(p.Partition)^1<<31)
	dst = AppendTime(dst, p.Offset)
	return binary.BigEndian.AppendUint32(dst, p.Nth)
}

// ReadPlace decodes what Append wrote; b has at least PlaceBytes.
func ReadPlace(b []byte) Place {
	return Place{
		Time: ReadTime(b), Partition: int32(binary.BigEndian.Uint32(b[8:]) ^ 1<<31),
		Offset: ReadTime(b[12:]), Nth: binary.BigEndian.Uint32(b[20:]),
	}
}

// AppendTime appends a time so that the bytes order like times.
func AppendTime(dst []byte, t int64) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(t)^1<<63)
}

// ReadTime decodes what AppendTime wrote.
func ReadTime(b []byte) int64 { return int64(binary.BigEndian.Uint64(b) ^ 1<<63) }

// Places gives the rows of batches their places, one after the other.
type Places struct {
	known     bool
	partition int32
	offset    int64
	nth       uint32
	merged    int64 // number of the next row that was merged before
}

// Of is the place of row i of b. Each row is asked for once, in order.
func (p *Places) Of(b *operators.Batch, i int) Place {
	if b.Offsets == nil {
		p.merged++
		return Place{Time: b.Time[i], Partition: -1, Offset: p.merged - 1}
	}
	if o := b.Offsets[i]; p.known && p.partition == b.Partition && p.offset == o {
		p.nth++
	} else {
		p.known, p.partition, p.offset, p.nth = true, b.Partition, o, 0
	}
	return Place{Time: b.Time[i], Partition: b.Partition, Offset: b.Offsets[i], Nth: p.nth}
}

// Restored tells a place that the store has: rows that come now are behind it.
func (p *Places) Restored(q Place) {
	if q.Partition < 0 {
		p.merged = max(p.merged, q.Offset+1)
	}
}

// A Kept is a row that a stage keeps, as the store has it.
type Kept struct {
	Key, Value    []byte
	listed, saved bool
	gone          bool
}

const keptBytes = 96 // of a Kept beside its bytes, about

// A ChangeSet is the rows of a stage that came, changed or went since the last Flush, and the size of all.
type ChangeSet struct {
	listed []*Kept
	bytes  int64
	rows   int64
}

// Add notes a new row.
func (c *ChangeSet) Add(k *Kept) {
	c.grow(k, 1)
	c.list(k)
}

// Restored notes a row that the store has.
func (c *ChangeSet) Restored(k *Kept) {
	k.saved = true
	c.grow(k, 1)
}

// Set changes the value of a row.
func (c *ChangeSet) Set(k *Kept, value []byte) {
	c.bytes += int64(len(value) - len(k.Value))
	k.Value = value
	c.list(k)
}

// Remove notes that a row is gone.
func (c *ChangeSet) Remove(k *Kept) {
	k.gone = true
	c.grow(k, -1)
	if k.saved {
		c.list(k)
	}
}

func (c *ChangeSet) grow(k *Kept, by int64) {
	c.bytes += by * int64(len(k.Key)+len(k.Value)+keptBytes)
	c.rows += by
}

func (c *ChangeSet) list(k *Kept) {
	if !k.listed {
		k.listed = true
		c.listed = append(c.listed, k)
	}
}

// Changed is about how many rows the next Flush gives.
func (c *ChangeSet) Changed() int { return len(c.listed) }

// Bytes is the memory of the rows that are kept, roughly.
func (c *ChangeSet) Bytes() int64 { return c.bytes }

// Rows is the number of rows that are kept.
func (c *ChangeSet) Rows() int64 { return c.rows }

// Flush gives what changed, in key order, and forgets it. A row that came and went leaves no trace.
func (c *ChangeSet) Flush(put func(key, value []byte)) {
	slices.SortFunc(c.listed, func(a, b *Kept) int { return bytes.Compare(a.Key, b.Key) })
	for _, k := range c.listed {
		k.listed = false
		switch {
		case !k.gone:
			k.saved = true
			put(k.Key, k.Value)
		case k.saved:
			k.saved = false
			put(k.Key, nil)
		}
	}
	clear(c.listed)
	c.listed = c.listed[:0]
}

// A Row is a row in memory: its place, its group and its columns.
type Row struct {
	Kept
	Place  Place
	Behind operators.EventTime // W_p if the row is behind, else MinEventTime
	Group  []byte              // encoded; nil is the null key
	record []byte              // key of the record, nil if it has none
	origin []byte              // value of the record, of rows that are behind only
	data   []byte              // the columns
}

// Late says whether the row is behind.
func (r *Row) Late() bool { return r.Place.Time < r.Behind }

// At is where the row stands: its event time, or the watermark that it is behind.
func (r *Row) At() operators.EventTime { return max(r.Place.Time, r.Behind) }

const (
	rowVersion = 1
	hasGroup   = 1
	hasRecord  = 2
	hasOrigin  = 4
)

// NewRow makes a row of row i of a full batch. Its Value is: version, flags, place, W_p, and with their
// lengths group, key of the record, value of the record, then the columns. The Key is the caller's.
func (s *Shape) NewRow(full *operators.Batch, i int, place Place, group []byte) *Row {
	r := &Row{Place: place, Behind: operators.MinEventTime}
	if full.Behind != nil && full.Time[i] < full.Behind[i] {
		r.Behind = full.Behind[i]
	}
	var o operators.Origin
	if full.Origin != nil {
		o = full.Origin(i)
	}
	if !r.Late() {
		o.Value = nil
	}
	flags := byte(0)
	for at, p := range [][]byte{group, o.Key, o.Value} {
		if p != nil {
			flags |= 1 << at
		}
	}
	v := make([]byte, 0, 64+len(group)+len(o.Key)+len(o.Value)+12*len(s.Types))
	v = place.Append(append(v, rowVersion, flags))
	v = AppendTime(v, r.Behind)
	for _, p := range [][]byte{group, o.Key, o.Value} {
		v = append(binary.AppendUvarint(v, uint64(len(p))), p...)
	}
	for c, t := range s.Types[:s.Kept] {
		v = AppendCell(v, full.Columns[c], t, i)
	}
	if err := r.parse(v); err != nil {
		panic(err) // we wrote it
	}
	return r
}

// parse takes a value apart; the row keeps it.
func (r *Row) parse(v []byte) error {
	if len(v) < 2+PlaceBytes+8 || v[0] != rowVersion {
		return fmt.Errorf("%w: version or length", ErrState)
	}
	flags, b := v[1], v[2:]
	r.Value, r.Place, r.Behind = v, ReadPlace(b), ReadTime(b[PlaceBytes:])
	b = b[PlaceBytes+8:]
	for at, to := range []*[]byte{&r.Group, &r.record, &r.origin} {
		n, k := binary.Uvarint(b)
		if k <= 0 || n > uint64(len(b)-k) {
			return errShort
		}
		if *to = nil; flags&(1<<at) != 0 {
			*to = b[k : k+int(n) : k+int(n)]
		}
		b = b[k+int(n):]
	}
	r.data = b
	return nil
}

// Restore makes a row of what the store has; key and value are copied. Errors: ErrState.
func (s *Shape) Restore(key, value []byte) (*Row, error) {
	r := &Row{}
	r.Key = bytes.Clone(key)
	if err := r.parse(bytes.Clone(value)); err != nil {
		return nil, err
	}
	if err := Check(r.data, s.Types[:s.Kept]); err != nil {
		return nil, err
	}
	return r, nil
}

// A Builder makes batches of rows.
type Builder struct {
	s        *Shape
	builders []array.Builder
	rows     []*Row
	times    []operators.EventTime
}

// NewBuilder makes an empty Builder.
func (s *Shape) NewBuilder() *Builder {
	b := &Builder{s: s}
	for _, t := range s.Types[:s.Kept] {
		b.builders = append(b.builders, array.NewBuilder(s.Allocator(), operators.ArrowType(t)))
	}
	return b
}

// Release gives the memory back.
func (b *Builder) Release() {
	for _, c := range b.builders {
		c.Release()
	}
	b.builders = nil
}

// Rows is the number of rows since the last Batch.
func (b *Builder) Rows() int { return len(b.rows) }

// Add appends a row with the event time that it leaves with.
func (b *Builder) Add(r *Row, at operators.EventTime) {
	data, err := r.data, error(nil)
	for i, t := range b.s.Types[:b.s.Kept] {
		if data, err = ReadInto(b.builders[i], t, data); err != nil {
			panic(err) // what we wrote, or checked when it was restored
		}
	}
	b.rows, b.times = append(b.rows, r), append(b.times, at)
}

// Behind is W_p of each row since the last Batch.
func (b *Builder) Behind() []operators.EventTime {
	out := make([]operators.EventTime, len(b.rows))
	for i, r := range b.rows {
		out[i] = r.Behind
	}
	return out
}

// Batch is the rows that were added, merged: Partition is -1, Key the group. A row's Origin has the
// partition, offset and key of its record; the value is that of the record if the row is behind, else a
// JSON object of the columns. The columns of extra, which it takes over, follow those of the rows.
func (b *Builder) Batch(extra ...arrow.Array) *operators.Batch {
	columns := make([]arrow.Array, 0, len(b.builders)+len(extra))
	for _, c := range b.builders {
		columns = append(columns, c.NewArray())
	}
	kept := slices.Clone(columns[:len(columns)-b.s.Hidden])
	for _, c := range kept {
		c.Retain()
	}
	out := operators.NewBatch(append(columns, extra...), b.times)
	out.Partition = -1
	rows, times, s := b.rows, b.times, b.s
	out.Key = make([][]byte, len(rows))
	for i, r := range rows {
		out.Key[i] = r.Group
	}
	out.Origin = func(i int) operators.Origin {
		r := rows[i]
		o := operators.Origin{Partition: -1, Offset: -1, Timestamp: scalar.FloorDiv(times[i], 1e6), Key: r.record, Value: r.origin}
		if r.Place.Partition >= 0 {
			o.Topic, o.Partition, o.Offset = s.Topic, r.Place.Partition, r.Place.Offset
		}
		if o.Value == nil {
			o.Value = s.json(kept, i)
		}
		return o
	}
	out.OnRelease(func() {
		for _, c := range kept {
			c.Release()
		}
	})
	b.rows, b.times = nil, nil
	return out
}

func (s *Shape) json(columns []arrow.Array, row int) []byte {
	v := []byte{'{'}
	for i, c := range columns {
		if i > 0 {
			v = append(v, ',')
		}
		v = append(operators.AppendJSONString(v, s.Names[i]), ':')
		var code scalar.Code
		if v, code = operators.AppendJSON(v, c, s.Types[i], row); code != scalar.CodeNone {
			v = append(v, "null"...)
		}
	}
	return append(v, '}')
}
