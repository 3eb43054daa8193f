package window

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/state"
)

// A joiner is an accumulator that can add a group to another one. Windows that meet after their rows were
// folded (sessions, the slices of cumulate) need it of every accumulator.
type joiner interface {
	// join adds group q of src to group p of dst; src may be dst. What q holds stays. cell is the
	// accumulator's first cell, counted from the header.
	join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int)
}

func (count) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	dst.Arena()[int(p)+cell] += src.Arena()[int(q)+cell]
}

func (sumInt) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	var carry uint64
	d[0] += s[0]
	d[1], carry = bits.Add64(d[1], s[1], 0)
	d[2] += s[2] + carry
}

func (sumDec) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	var carry uint64
	d[0] += s[0]
	d[1], carry = bits.Add64(d[1], s[1], 0)
	d[2], carry = bits.Add64(d[2], s[2], carry)
	d[3] += s[3] + carry
}

// join adds the sum of each partition to that of the same one.
func (f sumFloat) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	at, from := int(p)+cell, int(q)+cell
	n := src.Arena()[from]
	if n == 0 {
		return
	}
	dst.Arena()[at] += n
	for l := from + 1; ; {
		part, sum, next := src.Arena()[l], src.Arena()[l+1], src.Arena()[l+2]
		if d := dst.Arena(); d[at+1] == 0 {
			d[at+1], d[at+2] = part, sum
		} else {
			f.chain(dst, at+1, part, math.Float64frombits(sum))
		}
		if next == 0 {
			return
		}
		l = int(next)
	}
}

func (e extreme) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	if s[0] == 0 {
		return
	}
	if cmp := e.order(src, s[1:], dst, d[1:]); d[0] == 0 || cmp != 0 && (cmp > 0) == e.max {
		d[0] = 1
		copyShape(e.shape, dst, d[1:], src, s[1:])
	}
}

// order compares two values in cells.
func (e extreme) order(x *state.Table, a []uint64, y *state.Table, b []uint64) int {
	if e.shape != shapeBlob || e.t.Kind == scalar.KindString || e.t.Kind == scalar.KindBytes {
		return compareShape(e.shape, x, a, y, b)
	}
	v, w := x.Blob(a), y.Blob(b)
	if len(v) == 0 || len(w) == 0 {
		return 0
	}
	left, _, _ := readValue(v, e.t)
	right, _, _ := readValue(w, e.t)
	return scalar.Compare(left, right)
}

func (e edge) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	if s[0] == 0 || d[0] != 0 && !e.beats(int64(s[1]), s[0], int64(s[2]), d) {
		return
	}
	copy(d[:3], s[:3])
	copyShape(e.shape, dst, d[3:], src, s[3:])
}

func copyShape(s shape, dst *state.Table, d []uint64, src *state.Table, c []uint64) {
	switch s {
	case shapeWord:
		d[0] = c[0]
	case shapeDec:
		d[0], d[1] = c[0], c[1]
	default:
		dst.SetBlob(d, src.Blob(c))
	}
}

// A memberSet holds the distinct values of groups that can be joined: the values of a group are a chain
// that begins in a cell of the group. A value's key is the length of its group's key in four bytes, that
// key, the slot in two bytes and the value; its cell is the next one of the chain.
type memberSet struct {
	t   *state.Table
	buf []byte
}

func newMemberSet() *memberSet { return &memberSet{t: state.NewTable(1)} }

// add notes a value of group p and says whether it is new. head is the cell where the chain begins.
func (m *memberSet) add(groups *state.Table, p state.Pos, head int, slot uint16, value []byte) bool {
	name := groups.Key(p)
	b := binary.BigEndian.AppendUint32(m.buf[:0], uint32(len(name)))
	b = binary.BigEndian.AppendUint16(append(b, name...), slot)
	m.buf = append(b, value...)
	hash := state.Hash(m.buf)
	if _, ok := m.t.Find(hash, m.buf); ok {
		return false
	}
	v, _ := m.t.Upsert(hash, m.buf)
	m.link(groups, p, head, v)
	return true
}

func (m *memberSet) link(groups *state.Table, p state.Pos, head int, v state.Pos) {
	h := &groups.Arena()[int(p)+head]
	m.t.Cells(v)[0] = *h
	*h = uint64(v)
}

// each calls f with the slot and the value of every member of group p.
func (m *memberSet) each(groups *state.Table, p state.Pos, head int, f func(v state.Pos, slot uint16, value []byte)) {
	skip := 4 + len(groups.Key(p))
	for v := state.Pos(groups.Arena()[int(p)+head]); v != 0; {
		next := state.Pos(m.t.Cells(v)[0])
		key := m.t.Key(v)[skip:]
		f(v, binary.BigEndian.Uint16(key), key[2:])
		v = next
	}
}

// remove forgets the values of group p.
func (m *memberSet) remove(groups *state.Table, p state.Pos, head int) {
	for v := state.Pos(groups.Arena()[int(p)+head]); v != 0; {
		next := state.Pos(m.t.Cells(v)[0])
		m.t.Remove(v)
		v = next
	}
	groups.Arena()[int(p)+head] = 0
}

// group is the key of the group that a value belongs to; false if there is none in the bytes.
func (m *memberSet) group(key []byte) ([]byte, bool) {
	if len(key) < 4 {
		return nil, false
	}
	n := uint64(binary.BigEndian.Uint32(key))
	if n+6 > uint64(len(key)) {
		return nil, false
	}
	return key[4 : 4+n], true
}

// distinctIn is distinct over a memberSet. Cell: the count.
type distinctIn struct {
	distinct
	set  *memberSet
	head int // cell of the group where the chain of its values begins
}

func (d distinctIn) update(u *update) {
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		v := appendItem(u.agg.member[:0], d.shape, u.col, row, true)
		u.agg.member = v
		if d.set.add(u.t, u.pos[i], d.head, uint16(d.slot), v) {
			u.t.Arena()[int(u.pos[i])+u.cell]++
		}
	}
}

func (d distinctIn) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d.set.each(src, q, d.head, func(_ state.Pos, slot uint16, value []byte) {
		if int(slot) == d.slot && d.set.add(dst, p, d.head, slot, value) {
			dst.Arena()[int(p)+cell]++
		}
	})
}
