package window

import (
	"bytes"
	"encoding/binary"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// argBest is arg_min and arg_max: the value of the row with the least or greatest key; of equal keys
// that of the first row by (event time, partition, offset). Rows without key or without value are left
// out. Cells: partition + 2 or zero if there is no value, event time, offset, the key by its shape, the
// value by its shape.
type argBest struct {
	t, by         scalar.Type
	shape, byForm shape
	max           bool
}

func newArgBest(s Slot) accumulator {
	return argBest{t: s.ArgType, by: s.ByType, shape: shapeOf(s.ArgType), byForm: shapeOf(s.ByType), max: s.Func == "arg_max"}
}

func (a argBest) cells() int { return 3 + a.byForm.cells() + a.shape.cells() }

func (a argBest) update(u *update) {
	arena := u.t.Arena()
	part := uint64(u.b.Partition + 2)
	n := a.byForm.cells()
	for i, row := range u.rows {
		if u.col.isNull(row) || u.by.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+a.cells()]
		offset := int64(0)
		if u.b.Offsets != nil {
			offset = u.b.Offsets[row]
		}
		ts := u.b.Time[row]
		if c[0] != 0 {
			cmp := u.by.compare(row, u.t, c[3:])
			if a.max {
				cmp = -cmp
			}
			if cmp > 0 || cmp == 0 && !(edge{}).beats(ts, part, offset, c) {
				continue
			}
		}
		c[0], c[1], c[2] = part, uint64(ts), uint64(offset)
		u.by.put(row, u.t, c[3:])
		u.col.put(row, u.t, c[3+n:])
	}
}

func (a argBest) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	return finishShape(a.shape, a.t, t, c[3+a.byForm.cells():], b)
}

func (a argBest) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'a'), c[0])
	if c[0] == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint64(dst, c[1])
	dst = binary.BigEndian.AppendUint64(dst, c[2])
	dst = saveShape(dst, a.byForm, t, c[3:])
	return saveShape(dst, a.shape, t, c[3+a.byForm.cells():])
}

func (a argBest) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('a')
	if part := r.uvarint(); part != 0 {
		c := t.Arena()[int(p)+cell:]
		c[0], c[1], c[2] = part, r.word(), r.word()
		r.shape(a.byForm, a.by, t, c[3:])
		r.shape(a.shape, a.t, t, c[3+a.byForm.cells():])
	}
	return r.rest("arg_min or arg_max")
}

// put stores the value of a row in cells of its shape.
func (c *column) put(row int32, t *state.Table, cells []uint64) {
	switch shapeOf(c.t) {
	case shapeWord:
		cells[0] = uint64(c.words[row])
	case shapeDec:
		d := operators.Int128(c.decs[row])
		cells[0], cells[1] = d.Lo, uint64(d.Hi)
	default:
		t.SetBlob(cells, c.bytes(row))
	}
}

// compare orders the value of a row against a stored one. Values with parts have no order here.
func (c *column) compare(row int32, t *state.Table, cells []uint64) int {
	switch shapeOf(c.t) {
	case shapeWord:
		switch w := c.words[row]; {
		case w < int64(cells[0]):
			return -1
		case w > int64(cells[0]):
			return 1
		}
		return 0
	case shapeDec:
		return operators.Int128(c.decs[row]).Cmp(scalar.Int128{Hi: int64(cells[1]), Lo: cells[0]})
	}
	return bytes.Compare(c.bytes(row), t.Blob(cells))
}
