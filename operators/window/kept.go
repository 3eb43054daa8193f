package window

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// A retractor is an accumulator that can take rows back: retract undoes what update did for the same rows.
type retractor interface {
	retract(u *update)
}

// Retracts says whether the aggregate function f of values of type t can take rows back, as it must over a
// table. Float sums cannot: what was added is not what is left after taking it away.
func Retracts(f string, t scalar.Type) bool {
	switch f {
	case "count", "count_distinct", "min", "max":
		return true
	case "sum", "avg":
		return !t.Kind.Float()
	}
	return false
}

func (count) retract(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col == nil || !u.col.isNull(row) {
			arena[int(u.pos[i])+u.cell]--
		}
	}
}

func (s sumInt) retract(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		c := arena[int(u.pos[i])+u.cell:]
		v := scalar.Int128{Lo: uint64(u.col.words[row]), Hi: u.col.words[row] >> 63}
		if s.in.Kind == scalar.KindUint64 {
			v = scalar.Int128{Lo: v.Lo ^ 1<<63}
		}
		w := wide{c[1], c[2], uint64(int64(c[2]) >> 63)}.add(v.Neg())
		c[0]--
		c[1], c[2] = w[0], w[1]
	}
}

func (s sumDec) retract(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		c := arena[int(u.pos[i])+u.cell:]
		w := wide{c[1], c[2], c[3]}.add(operators.Int128(u.col.decs[row]).Neg())
		c[0]--
		c[1], c[2], c[3] = w[0], w[1], w[2]
	}
}

// values keeps the values of a group, each with how often it is there, for aggregates of groups that do
// not end: the number of distinct ones, or the least or largest while rows may be taken back. Cells: the
// chain of the values, which are members, their number, and the least or largest if it is known.
type values struct {
	t     scalar.Type
	slot  int
	shape shape
	kind  valuesKind
}

type valuesKind uint8

const (
	valuesCount valuesKind = iota
	valuesMin
	valuesMax
)

// Cells of a group.
const (
	valuesHead = iota
	valuesLen
	valuesBest
	valuesCells
)

// Cells of a member.
const (
	memberNext = iota
	memberPrev
	memberTimes
	memberCells
)

// maxKeptBytes bounds a value of min or max that is kept as part of the key of a state row.
const maxKeptBytes = 16 << 10

var _ chainKeeper = values{}

func (values) cells() int       { return valuesCells }
func (values) memberCells() int { return memberCells }

// key names a value of the group at g.
func (v values) key(dst []byte, g state.Pos, c *column, row int32) []byte {
	dst = memberKey(dst, g)
	if v.kind != valuesCount && v.shape == shapeBlob {
		return append(dst, c.bytes(row)...) // all of it: it is given back
	}
	return appendItem(dst, v.shape, c, row, v.kind == valuesCount)
}

func (v values) update(u *update) {
	members := u.t.Sub(v.slot, memberCells)
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		m := v.key(u.agg.member[:0], u.pos[i], u.col, row)
		u.agg.member = m
		p, fresh := members.Upsert(state.Hash(m), m)
		members.Cells(p)[memberTimes]++
		if fresh {
			v.link(u.t, int(u.pos[i])+u.cell, members, p)
		}
	}
}

// boundKept notes the rows whose values are too long to be kept.
func (a *Aggregate) boundKept() {
	for i := range a.slots {
		s := &a.slots[i]
		v, ok := s.acc.(values)
		if !ok || v.kind == valuesCount || v.shape != shapeBlob {
			continue
		}
		c, rows := a.args[s.arg].cols[s.Column], a.rows
		if s.filter >= 0 {
			rows = a.filters[s.filter].rows
		}
		for _, row := range rows {
			if !c.isNull(row) && len(c.bytes(row)) > maxKeptBytes {
				a.errs = append(a.errs, operators.RowError{Row: int(row), Code: scalar.CodeLimit, Expr: s.Text})
			}
		}
	}
}

// link puts a new member into the chain of the group whose cells begin at at.
func (v values) link(groups *state.Table, at int, members *state.Table, p state.Pos) {
	c := groups.Arena()[at : at+valuesCells]
	members.Cells(p)[memberPrev] = 0
	if head := c[valuesHead]; head != 0 {
		members.Cells(state.Pos(head))[memberPrev] = uint64(p)
	}
	chainMember(groups, at, members, p)
	c[valuesLen]++
	if best := c[valuesBest]; c[valuesLen] == 1 || best != 0 && v.better(members, p, state.Pos(best)) {
		c[valuesBest] = uint64(p)
	}
}

// better says whether member p is to be given rather than q.
func (v values) better(members *state.Table, p, q state.Pos) bool {
	cmp := bytes.Compare(members.Key(p)[ownerBytes:], members.Key(q)[ownerBytes:])
	return v.kind == valuesMin && cmp < 0 || v.kind == valuesMax && cmp > 0
}

func (v values) retract(u *update) {
	members := u.t.Sub(v.slot, memberCells)
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		m := v.key(u.agg.member[:0], u.pos[i], u.col, row)
		u.agg.member = m
		p, ok := members.Find(state.Hash(m), m)
		if !ok {
			continue
		}
		members.Touch(p)
		cells := members.Cells(p)
		if cells[memberTimes]--; cells[memberTimes] > 0 {
			continue
		}
		c := u.t.Arena()[int(u.pos[i])+u.cell:]
		next, prev := cells[memberNext], cells[memberPrev]
		if prev == 0 {
			c[valuesHead] = next
		} else {
			members.Cells(state.Pos(prev))[memberNext] = next
		}
		if next != 0 {
			members.Cells(state.Pos(next))[memberPrev] = prev
		}
		c[valuesLen]--
		if c[valuesBest] == uint64(p) {
			c[valuesBest] = 0
		}
		members.Remove(p)
	}
}

func (v values) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if v.kind == valuesCount {
		b.(*array.Int64Builder).Append(int64(c[valuesLen]))
		return scalar.CodeNone
	}
	if c[valuesLen] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	members := t.Sub(v.slot, memberCells)
	if c[valuesBest] == 0 {
		best := c[valuesHead]
		for p := best; p != 0; p = members.Cells(state.Pos(p))[memberNext] {
			if v.better(members, state.Pos(p), state.Pos(best)) {
				best = p
			}
		}
		c[valuesBest] = best
	}
	value := members.Key(state.Pos(c[valuesBest]))[ownerBytes:]
	switch v.shape {
	case shapeWord:
		appendWord(b, v.t, readWordBytes(value))
	case shapeDec:
		b.(*array.Decimal128Builder).Append(operators.Decimal128(readDec(value)))
	default:
		if err := appendBlob(b, v.t, value); err != nil {
			panic(err) // strings and bytes only
		}
	}
	return scalar.CodeNone
}

func (values) save(dst []byte, _ *state.Table, _ []uint64) []byte { return append(dst, 'v') }

func (values) load(b []byte, _ *state.Table, _ state.Pos, _ int) ([]byte, error) {
	r := reader{b: b}
	r.tag('v')
	return r.rest("kept values")
}

// saveMember encodes how often a value is there.
func (values) saveMember(dst []byte, members *state.Table, m state.Pos) []byte {
	return binary.AppendUvarint(dst, members.Cells(m)[memberTimes])
}

func (v values) loadMember(b []byte, groups *state.Table, g state.Pos, cell int, members *state.Table, m state.Pos) error {
	r := reader{b: b}
	times := r.uvarint()
	size := len(members.Key(m)) - ownerBytes
	if r.bad || times == 0 || len(r.b) > 0 || v.shape == shapeWord && size != 8 || v.shape == shapeDec && size != 16 {
		return fmt.Errorf("%w: a kept value", ErrState)
	}
	members.Cells(m)[memberTimes] = times
	v.link(groups, int(g)+cell, members, m)
	return nil
}

func (values) moveMember(*state.Table, state.Pos, *state.Table, state.Pos) {}

// movedMembers puts the chain of a group whose members have moved right again.
func (v values) movedMembers(groups *state.Table, at int) {
	c, members := groups.Arena()[at:at+valuesCells], groups.Sub(v.slot, memberCells)
	prev := uint64(0)
	for p := c[valuesHead]; p != 0; p = members.Cells(state.Pos(p))[memberNext] {
		members.Cells(state.Pos(p))[memberPrev] = prev
		prev = p
	}
	c[valuesBest] = 0
}
