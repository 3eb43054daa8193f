// Package lookup finds for each row the row of a table that has its key.
//
// The operator keeps the table: Change brings its rows, in the order in which the log has them, and
// Process joins each row with what the table holds at that moment. Which changes come before which rows
// is the caller's to say. The table's rows are the operator's state.
//
// Rows leave in the order in which they came, with their event time. A Lookup belongs to one goroutine.
package lookup

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/rows"
)

// ErrOptions is returned for options that no checked plan has.
var ErrOptions = errors.New("lookup: invalid options")

// Options describe a Lookup. What leaves are the columns of the row and a struct with those of the table.
type Options struct {
	Key      operators.Evaluator // over the row: a value for each column of the table's key
	KeyTypes []scalar.Type
	Row      []scalar.Field     // the columns of the table
	On       operators.Selector // over what leaves: what else must hold; nil: nothing
	Left     bool               // a row without partner stays, with a null struct
	Alloc    memory.Allocator   // nil: the Go heap
}

// A Lookup is the operator. It is operators.Stateful.
type Lookup struct {
	o       Options
	types   []scalar.Type
	alloc   memory.Allocator
	table   map[string]*rows.Kept // by name; never iterated
	changes rows.ChangeSet
	dead    []*rows.Kept // removed since the last Changes: in table, without a value
	changed int          // bytes of the rows that changed since the last Changes
	name    []byte
	value   []byte
	found   []*rows.Kept
	at      []int32 // place in found of each row of a batch, or absent, or failed
	sel     []int32
}

var _ operators.Stateful = (*Lookup)(nil)

const (
	absent = -1
	failed = -2
)

// New makes a Lookup in an empty table. Errors: ErrOptions.
func New(o Options) (*Lookup, error) {
	if o.Key == nil || len(o.KeyTypes) == 0 || len(o.Row) == 0 {
		return nil, fmt.Errorf("%w: no key or no columns", ErrOptions)
	}
	l := &Lookup{o: o, alloc: o.Alloc, table: map[string]*rows.Kept{}}
	if l.alloc == nil {
		l.alloc = memory.DefaultAllocator
	}
	for _, f := range o.Row {
		l.types = append(l.types, f.Type)
	}
	return l, nil
}

// A name is the key of a state row: a byte and the encoded key, or the hash of one that is long.
const (
	nameKey      = 'k'
	nameHash     = 'h'
	maxNameBytes = 4 << 10
)

func appendName(dst, key []byte) []byte {
	if len(key) <= maxNameBytes {
		return append(append(dst, nameKey), key...)
	}
	h := sha256.Sum256(key)
	return append(append(dst, nameHash), h[:]...)
}

const valueVersion = 1

// Change takes rows of the table: an insert takes the place of the row with its key, a delete says that
// there is none. b stays the caller's; its columns are those of Options.Row.
func (l *Lookup) Change(b *operators.Batch) {
	for i := range b.Rows {
		if b.Key == nil || b.Key[i] == nil {
			continue // takes the place of none
		}
		l.name = appendName(l.name[:0], b.Key[i])
		k := l.table[string(l.name)]
		if b.Deletes(i) {
			if k != nil && k.Value != nil {
				l.changes.Remove(k)
				l.changed += len(k.Key)
				k.Value = nil
				l.dead = append(l.dead, k)
			}
			continue
		}
		l.value = rows.AppendCells(append(l.value[:0], valueVersion), b.Columns, l.types, i)
		switch {
		case k == nil:
			k = &rows.Kept{Key: bytes.Clone(l.name), Value: bytes.Clone(l.value)}
			l.table[string(l.name)] = k
			l.changes.Add(k)
		case k.Value == nil:
			l.changes.Back(k, bytes.Clone(l.value))
		case bytes.Equal(k.Value, l.value):
			continue
		default:
			l.changes.Set(k, bytes.Clone(l.value))
		}
		l.changed += len(k.Key) + len(k.Value)
	}
}

// Process implements operators.Operator.
func (l *Lookup) Process(b *operators.Batch, out operators.Emitter) {
	defer b.Release()
	if b.Rows == 0 {
		return
	}
	l.find(b, out)
	rights := l.rights()
	defer rights.Release()
	if l.o.On != nil && len(l.found) > 0 {
		l.judge(b, rights, out)
	}
	l.sel = l.sel[:0]
	right := make([]int32, 0, b.Rows)
	for row, at := range l.at {
		if at >= 0 || at == absent && l.o.Left {
			l.sel, right = append(l.sel, int32(row)), append(right, at)
		}
	}
	if len(l.sel) == 0 {
		return
	}
	left := b
	if len(l.sel) < b.Rows {
		left = b.Select(l.alloc, l.sel)
		defer left.Release()
	}
	out.Emit(left.With(append(retained(left.Columns), operators.GatherOrNull(l.alloc, rights, rights.DataType(), right))))
}

// find sets found and at.
func (l *Lookup) find(b *operators.Batch, out operators.Emitter) {
	r, err := l.o.Key.Eval(b, nil)
	if err != nil {
		panic("lookup: evaluate: " + err.Error())
	}
	defer r.Release()
	keys, errs := operators.EncodeKeys(r.Columns, l.o.KeyTypes, b.Rows, r.Errors, nil)
	if len(errs) > 0 {
		out.Fail(b, errs)
	}
	l.at = l.at[:0]
	clear(l.found)
	l.found = l.found[:0]
	for row := range b.Rows {
		at := int32(absent)
		switch {
		case len(errs) > 0 && errs[0].Row == row:
			errs, at = errs[1:], failed
		case keys[row] != nil && !anyNull(r.Columns, row):
			l.name = appendName(l.name[:0], keys[row])
			if k := l.table[string(l.name)]; k != nil && k.Value != nil {
				at = int32(len(l.found))
				l.found = append(l.found, k)
			}
		}
		l.at = append(l.at, at)
	}
}

func anyNull(columns []arrow.Array, row int) bool {
	for _, c := range columns {
		if operators.IsNull(c, row) {
			return true
		}
	}
	return false
}

// rights is the column of the rows found.
func (l *Lookup) rights() arrow.Array {
	sb := array.NewStructBuilder(l.alloc, operators.ArrowType(scalar.StructType(l.o.Row...)).(*arrow.StructType))
	defer sb.Release()
	fields := make([]array.Builder, len(l.types))
	for i := range fields {
		fields[i] = sb.FieldBuilder(i)
	}
	for _, k := range l.found {
		sb.Append(true)
		if err := rows.ReadCells(fields, l.types, k.Value[1:]); err != nil {
			panic(err) // we wrote it, or checked it
		}
	}
	return sb.NewArray()
}

// judge takes the partners away that do not fulfil the rest of the condition.
func (l *Lookup) judge(b *operators.Batch, rights arrow.Array, out operators.Emitter) {
	l.sel = l.sel[:0]
	for row, at := range l.at {
		if at >= 0 {
			l.sel = append(l.sel, int32(row))
		}
	}
	left := b.Select(l.alloc, l.sel)
	defer left.Release()
	rights.Retain()
	joined := left.With(append(retained(left.Columns), rights))
	defer joined.Release()
	keep, errs, err := l.o.On.Select(joined, nil, nil)
	if err != nil {
		panic("lookup: select: " + err.Error())
	}
	lost := make([]operators.RowError, len(errs))
	for i, row := range l.sel {
		switch {
		case len(keep) > 0 && keep[0] == int32(i):
			keep = keep[1:]
		case len(errs) > 0 && errs[0].Row == i:
			lost[len(lost)-len(errs)] = operators.RowError{Row: int(row), Code: errs[0].Code, Expr: errs[0].Expr}
			errs, l.at[row] = errs[1:], failed
		default:
			l.at[row] = absent
		}
	}
	if len(lost) > 0 {
		out.Fail(b, lost)
	}
}

func retained(columns []arrow.Array) []arrow.Array {
	out := make([]arrow.Array, len(columns), len(columns)+1)
	for i, c := range columns {
		if c != nil {
			c.Retain()
			out[i] = c
		}
	}
	return out
}

// Advance implements operators.Operator.
func (l *Lookup) Advance(operators.EventTime, operators.Emitter) {}

// Close implements operators.Operator.
func (l *Lookup) Close() {}

// StateBytes implements operators.Stateful.
func (l *Lookup) StateBytes() int64 { return l.changes.Bytes() }

// StateRows implements operators.Stateful: the rows of the table.
func (l *Lookup) StateRows() int64 { return l.changes.Rows() }

// ChangedBytes is about how many bytes the next Changes gives.
func (l *Lookup) ChangedBytes() int { return l.changed + 32*l.changes.Changed() }

// Changes implements operators.Stateful. A state row is a row of the table: its name, and a version byte
// with its columns.
func (l *Lookup) Changes(put func(key, value []byte)) {
	l.changes.Flush(put)
	l.changed = 0
	for _, k := range l.dead {
		if k.Value == nil {
			delete(l.table, string(k.Key))
		}
	}
	clear(l.dead)
	l.dead = l.dead[:0]
}

// Restore implements operators.Stateful. Errors: rows.ErrState.
func (l *Lookup) Restore(key, value []byte) error {
	if len(key) == 0 || key[0] != nameKey && (key[0] != nameHash || len(key) != 1+sha256.Size) || len(value) == 0 || value[0] != valueVersion {
		return fmt.Errorf("%w: row of a table", rows.ErrState)
	}
	if err := rows.Check(value[1:], l.types); err != nil {
		return err
	}
	k := &rows.Kept{Key: bytes.Clone(key), Value: bytes.Clone(value)}
	if l.table[string(key)] != nil {
		return fmt.Errorf("%w: a row of a table comes twice", rows.ErrState)
	}
	l.table[string(key)] = k
	l.changes.Restored(k)
	return nil
}
