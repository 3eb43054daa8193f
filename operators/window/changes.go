package window

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// Changes makes a changelog of a table, for aggregates that take rows back (Options.Retract): it keeps
// the row of each key and gives, for one that is replaced or deleted, a delete with its columns. A row that
// does not change gives nothing. Of the rows of one batch the inserts leave first, then the deletes.
//
// It is operators.Stateful; its rows are
//
//	key  key of the row after 1, or 0 for the null key      value  version(1) event time(8) columns
type Changes struct {
	operators.Counters
	types []scalar.Type
	alloc memory.Allocator
	rows  *state.Table

	sel     []int32
	old     []oldRow
	key     []byte
	columns []*column
	value   []byte
	save    []byte
}

// An oldRow is a row to take back: its columns, encoded, and its event time.
type oldRow struct {
	value []byte
	ts    int64
}

// Cells: event time, then the blob of the columns.
const changesCells = 3

var _ operators.Stateful = (*Changes)(nil)

// NewChanges makes a Changes over rows with columns of the given types, without state. alloc nil is the Go
// heap.
func NewChanges(types []scalar.Type, alloc memory.Allocator) *Changes {
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	return &Changes{types: types, alloc: alloc, rows: state.NewTable(changesCells)}
}

// Process implements operators.Operator.
func (c *Changes) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	c.In.Add(int64(b.Rows))
	c.sel, c.old = c.sel[:0], c.old[:0]
	plain := make([]arrow.Array, len(b.Columns))
	c.columns = c.columns[:0]
	for i, col := range b.Columns {
		var k *column
		if col != nil {
			plain[i] = operators.Plain(c.alloc, col)
			defer plain[i].Release()
			k = newColumn(plain[i], c.types[i])
		}
		c.columns = append(c.columns, k)
	}
	for i := range b.Rows {
		c.row(b, i)
	}
	c.Out.Add(int64(len(c.sel) + len(c.old)))
	if len(c.sel) > 0 {
		rows := b.Select(c.alloc, c.sel)
		rows.Ops = nil
		out.Emit(rows)
	}
	if len(c.old) > 0 {
		out.Emit(c.deletes())
	}
}

// row takes one row of a table.
func (c *Changes) row(b *operators.Batch, i int) {
	c.key = append(c.key[:0], 0)
	if k := b.Key[i]; k != nil {
		c.key[0] = 1
		c.key = append(c.key, k...)
	}
	hash := state.Hash(c.key)
	p, there := c.rows.Find(hash, c.key)
	var old oldRow
	if there {
		cells := c.rows.Cells(p)
		old = oldRow{c.rows.Blob(cells[1:3]), int64(cells[0])}
	}
	if b.Deletes(i) {
		if there {
			c.takeBack(old)
			c.rows.Remove(p)
		}
		return
	}
	c.encode(int32(i))
	final := b.Ops != nil && b.Ops[i] == operators.OpFinal
	same := there && old.ts == b.Time[i] && bytes.Equal(old.value, c.value)
	if !same {
		if there {
			c.takeBack(old)
		}
		c.sel = append(c.sel, int32(i))
	}
	switch {
	case final && there:
		c.rows.Remove(p)
	case final || same:
	default:
		p, _ := c.rows.Upsert(hash, c.key)
		cells := c.rows.Cells(p)
		cells[0] = uint64(b.Time[i])
		c.rows.SetBlob(cells[1:3], c.value)
	}
}

func (c *Changes) takeBack(old oldRow) {
	old.value = append([]byte(nil), old.value...) // the next row may overwrite it
	c.old = append(c.old, old)
}

// encode sets c.value to the columns of a row: for each a tag and the value, as appendValue does. A column
// that no one needs is null.
func (c *Changes) encode(row int32) {
	c.value = c.value[:0]
	for i, k := range c.columns {
		if k == nil || k.isNull(row) {
			c.value = append(c.value, 0)
			continue
		}
		switch shapeOf(c.types[i]) {
		case shapeWord:
			c.value = appendWordBytes(append(c.value, 1), k.words[row])
		case shapeDec:
			c.value = appendDec(append(c.value, 1), operators.Int128(k.decs[row]))
		default:
			blob := k.bytes(row)
			if !k.nested {
				c.value = binary.AppendUvarint(append(c.value, 1), uint64(len(blob)))
			}
			c.value = append(c.value, blob...)
		}
	}
}

// deletes is the batch of the rows that are taken back.
func (c *Changes) deletes() *operators.Batch {
	builders := make([]array.Builder, len(c.types))
	for i, t := range c.types {
		builders[i] = array.NewBuilder(c.alloc, operators.ArrowType(t))
	}
	times := make([]int64, len(c.old))
	for i, old := range c.old {
		times[i] = old.ts
		rest := old.value
		for k, t := range c.types {
			v, r, err := readValue(rest, t)
			if err != nil {
				panic(err) // Restore has checked what came from outside
			}
			operators.AppendValue(builders[k], t, v)
			rest = r
		}
	}
	columns := make([]arrow.Array, len(builders))
	for i, b := range builders {
		columns[i] = b.NewArray()
		b.Release()
	}
	b := operators.NewBatch(columns, times)
	b.Partition = -1
	b.Ops = make([]operators.Op, b.Rows)
	for i := range b.Ops {
		b.Ops[i] = operators.OpDelete
	}
	return b
}

// Advance implements operators.Operator.
func (c *Changes) Advance(operators.EventTime, operators.Emitter) {}

// Close implements operators.Operator.
func (c *Changes) Close() {}

// Changes implements operators.Stateful.
func (c *Changes) Changes(put func(key, value []byte)) {
	c.rows.Changed(func(p state.Pos, dead bool) {
		if dead {
			put(c.rows.Key(p), nil)
			return
		}
		c.save = c.encoded(c.save[:0], p)
		put(c.rows.Key(p), c.save)
	})
	if c.rows.Used() < 2*c.rows.Len()+minGarbage {
		return
	}
	old := c.rows
	c.rows = state.NewTable(changesCells)
	for _, p := range old.Sorted(nil) {
		cells := old.Cells(p)
		c.restore(old.Key(p), int64(cells[0]), old.Blob(cells[1:3]))
	}
}

func (c *Changes) encoded(dst []byte, p state.Pos) []byte {
	cells := c.rows.Cells(p)
	dst = appendWordBytes(append(dst, rowVersion), int64(cells[0]))
	return append(dst, c.rows.Blob(cells[1:3])...)
}

func (c *Changes) restore(key []byte, ts int64, value []byte) {
	p, _ := c.rows.Upsert(state.Hash(key), key)
	cells := c.rows.Cells(p)
	cells[0] = uint64(ts)
	c.rows.SetBlob(cells[1:3], value)
	c.rows.MarkSaved(p)
}

// Restore implements operators.Stateful. Errors: ErrState.
func (c *Changes) Restore(key, value []byte) error {
	if len(key) == 0 || len(value) < 9 || value[0] != rowVersion {
		return fmt.Errorf("%w: a kept row", ErrState)
	}
	rest := value[9:]
	for _, t := range c.types {
		var err error
		if _, rest, err = readValue(rest, t); err != nil {
			return err
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes follow a kept row", ErrState, len(rest))
	}
	c.restore(key, readWordBytes(value[1:]), value[9:])
	return nil
}

// StateBytes implements operators.Stateful.
func (c *Changes) StateBytes() int64 { return c.rows.Bytes() }

// StateRows implements operators.Stateful.
func (c *Changes) StateRows() int64 { return int64(c.rows.Len()) }

// ChangedRows is about how many rows the next Changes gives.
func (c *Changes) ChangedRows() int { return c.rows.Dirty() }
