package window

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// dictKeys is the state of groupKeys for a batch whose only key column is a dictionary: each value is named,
// hashed and looked up once, and rows go by their codes.
type dictKeys struct {
	codes  []int32 // by row; the number of values stands for null
	buf    []int32
	all    []int32 // 0, 1, ..: the values as rows
	hashes []uint32
	errs   []operators.RowError
	at     []state.Pos // by code, of the window being filled
	first  []int32     // its codes, in the order in which they came
	found  []state.Pos
}

// dictionary is the key column if it is the only one and a dictionary with no more values than the batch
// has rows; else rows go by their text.
func (k *groupKeys) dictionary(columns []arrow.Array, rows int) *array.Dictionary {
	k.dict.codes = nil
	if len(columns) != 1 || !k.byCode {
		return nil
	}
	d, ok := columns[0].(*array.Dictionary)
	if !ok || d.Dictionary().Len() > rows {
		return nil
	}
	return d
}

// encodeCodes is encode by the values of a dictionary.
func (k *groupKeys) encodeCodes(d *array.Dictionary, rows []int32, errs []operators.RowError) []operators.RowError {
	c := &k.dict
	values := d.Dictionary().Len()
	for len(c.all) <= values {
		c.all = append(c.all, int32(len(c.all)))
	}
	c.hashes = grown(c.hashes, values+1)
	c.errs = k.encode([]arrow.Array{d.Dictionary()}, c.all[:values], values+1, c.hashes, c.errs[:0])
	if !k.raw { // the name of null
		from := len(k.buf)
		k.buf = append(k.buf, 0)
		k.from[values], k.to[values] = from, len(k.buf)
		c.hashes[values] = state.Hash(k.buf[from:])
	}
	codes, ok := d.Indices().(*array.Int32)
	if ok && d.NullN() == 0 {
		c.codes = codes.Int32Values()
	} else {
		c.buf = grown(c.buf, d.Len())
		for _, row := range rows {
			if d.IsNull(int(row)) {
				c.buf[row] = int32(values)
			} else {
				c.buf[row] = int32(d.GetValueIndex(int(row)))
			}
		}
		c.codes = c.buf
	}
	if len(c.errs) > 0 {
		bad := map[int32]operators.RowError{}
		for _, e := range c.errs {
			bad[int32(e.Row)] = e
		}
		for _, row := range rows {
			if e, ok := bad[c.codes[row]]; ok {
				e.Row = int(row)
				errs = append(errs, e)
			}
		}
	}
	return errs
}

// upsertCodes finds the groups of rows in t.
func (k *groupKeys) upsertCodes(t *state.Table, rows []int32, pos []state.Pos) {
	c := &k.dict
	codes := c.codes
	c.at = grown(c.at, len(c.hashes))
	at := c.at
	clear(at)
	c.first = c.first[:0]
	for _, row := range rows {
		if code := codes[row]; at[code] == 0 {
			at[code] = 1
			c.first = append(c.first, code)
		}
	}
	c.found = grown(c.found, len(c.first))
	k.upsertRows(t, c.hashes, c.first, c.found)
	for i, code := range c.first {
		at[code] = c.found[i]
	}
	pos = pos[:len(rows)]
	for i, row := range rows {
		pos[i] = at[codes[row]]
	}
}
