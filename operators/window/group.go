package window

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// groupKeys turns by columns into the bytes that name a group in memory and in the store, and back. A
// single column of strings or bytes that are never null is its own name; otherwise each column is
// encoded as appendValue does, with -0 as 0.
type groupKeys struct {
	types  []scalar.Type
	raw    bool
	cols   []*column
	buf    []byte
	from   []int // by row: the name is buf[from:to]
	to     []int
	json   []byte
	dict   dictKeys
	byCode bool // rows are found with upsert only, so that a dictionary need not be spread out
}

func newGroupKeys(types []scalar.Type) *groupKeys {
	k := &groupKeys{types: types}
	if len(types) == 1 && !types[0].Nullable {
		k.raw = types[0].Kind == scalar.KindString || types[0].Kind == scalar.KindBytes
	}
	return k
}

// maxNameBytes bounds the name of a group, which is part of the key of a state row.
const maxNameBytes = 32 << 10

// encode names and hashes the groups of the given rows. Rows whose key has no written form, because of
// a NaN or infinity, or is longer than maxNameBytes, are appended to errs.
func (k *groupKeys) encode(columns []arrow.Array, rows []int32, n int, hashes []uint32, errs []operators.RowError) []operators.RowError {
	k.cols = k.cols[:0]
	for i, c := range columns {
		k.cols = append(k.cols, newColumn(c, k.types[i]))
	}
	if k.raw {
		c := k.cols[0]
		for _, row := range rows {
			name := c.bytes(row)
			if len(name) > maxNameBytes {
				errs = append(errs, operators.RowError{Row: int(row), Code: scalar.CodeLimit, Expr: "by"})
			}
			hashes[row] = state.Hash(name)
		}
		return errs
	}
	k.from, k.to = grown(k.from, n), grown(k.to, n)
	k.buf = k.buf[:0]
	for _, row := range rows {
		start := len(k.buf)
		ok := true
		for _, c := range k.cols {
			ok = k.append(c, row) && ok
		}
		switch {
		case !ok:
			errs = append(errs, operators.RowError{Row: int(row), Code: scalar.CodeNotFinite, Expr: "by"})
		case len(k.buf)-start > maxNameBytes:
			errs = append(errs, operators.RowError{Row: int(row), Code: scalar.CodeLimit, Expr: "by"})
		}
		k.from[row], k.to[row] = start, len(k.buf)
		hashes[row] = state.Hash(k.buf[start:])
	}
	return errs
}

// append encodes one cell; false means that it has no written form.
func (k *groupKeys) append(c *column, row int32) bool {
	if c.isNull(row) {
		k.buf = append(k.buf, 0)
		return true
	}
	switch shapeOf(c.t) {
	case shapeWord:
		w := c.words[row]
		if c.t.Kind.Float() {
			f := wordFloat(w)
			if f == 0 {
				w = 0
			}
			if f-f != 0 {
				return false
			}
		}
		k.buf = appendWordBytes(append(k.buf, 1), w)
	case shapeDec:
		k.buf = appendDec(append(k.buf, 1), operators.Int128(c.decs[row]))
	default:
		b := c.bytes(row)
		if c.nested {
			k.buf = append(k.buf, b...)
			var code scalar.Code
			k.json, code = operators.AppendJSON(k.json[:0], c.arr, c.t, int(row))
			return code == scalar.CodeNone
		}
		k.buf = binary.AppendUvarint(append(k.buf, 1), uint64(len(b)))
		k.buf = append(k.buf, b...)
	}
	return true
}

// probeRows is how many rows are looked up at a time: their entries stay in the nearest cache.
const probeRows = 256

// upsert finds the groups of rows in t, in that order.
func (k *groupKeys) upsert(t *state.Table, hashes []uint32, rows []int32, pos []state.Pos) {
	if k.dict.codes != nil {
		k.upsertCodes(t, rows, pos)
		return
	}
	k.upsertRows(t, hashes, rows, pos)
}

func (k *groupKeys) upsertRows(t *state.Table, hashes []uint32, rows []int32, pos []state.Pos) {
	for len(rows) > 0 {
		n := min(len(rows), probeRows)
		part, at := rows[:n], pos[:n]
		t.Probe(hashes, part, at)
		if k.raw && len(k.cols[0].offsets) > 0 {
			offsets, data := k.cols[0].offsets, k.cols[0].data
			for i, row := range part {
				at[i] = t.UpsertAt(at[i], hashes[row], data[offsets[row]:offsets[row+1]])
			}
		} else {
			for i, row := range part {
				at[i] = t.UpsertAt(at[i], hashes[row], k.name(row))
			}
		}
		rows, pos = rows[n:], pos[n:]
	}
}

// nameAt is the name of a row's group, valid until the next encode.
func (k *groupKeys) nameAt(row int32) []byte {
	if k.raw {
		return k.cols[0].bytes(row)
	}
	return k.name(row)
}

// name is the name of a row's group.
func (k *groupKeys) name(row int32) []byte { return k.buf[k.from[row]:k.to[row]] }

// decode appends the by values of a group to the builders.
func (k *groupKeys) decode(name []byte, builders []array.Builder) error {
	if k.raw {
		return appendBlob(builders[0], k.types[0], name)
	}
	for i, t := range k.types {
		v, rest, err := readValue(name, t)
		if err != nil {
			return err
		}
		operators.AppendValue(builders[i], t, v)
		name = rest
	}
	if len(name) > 0 {
		return fmt.Errorf("%w: %d bytes follow a key", ErrState, len(name))
	}
	return nil
}

// check says whether decode would understand a name.
func (k *groupKeys) check(name []byte) error {
	if k.raw {
		return nil
	}
	for _, t := range k.types {
		_, rest, err := readValue(name, t)
		if err != nil {
			return err
		}
		name = rest
	}
	if len(name) > 0 {
		return fmt.Errorf("%w: %d bytes follow a key", ErrState, len(name))
	}
	return nil
}

// sortedByName says whether the order of names is the order of encoded keys.
func (k *groupKeys) sortedByName() bool { return k.raw || len(k.types) == 0 }

// compareKeys orders encoded keys by their bytes, the null key first.
func compareKeys(a, b []byte) int {
	if a == nil || b == nil {
		switch {
		case a == nil && b == nil:
			return 0
		case a == nil:
			return -1
		}
		return 1
	}
	return bytes.Compare(a, b)
}
