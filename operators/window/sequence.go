package window

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/state"
)

// A sequence holds values in the order of their rows, for list and join. Its members are the values; an
// item is event time, partition, offset and, for rows that have these in common, the number of the value
// in the group. list keeps the first ones, as a bag does; join fails the group when the text gets too long,
// and keeps nothing more of it.
//
// Cells: the chain, members, the last of the first ones or zero, values so far, bytes of them. Cells of a
// member: next, the value by its shape.
type sequence struct {
	slot  int
	t     scalar.Type
	shape shape
	keep  int // zero: all
	join  bool
	sep   string
}

const (
	sequenceItem = 8 + 4 + 8 + 8
	overflowed   = 1<<64 - 1 // in the cell of bytes
)

func (*sequence) cells() int { return 5 }

func (s *sequence) memberCells() int { return 1 + s.shape.cells() }

func (s *sequence) update(u *update) {
	a, members := u.agg, u.t.Sub(s.slot, s.memberCells())
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := u.t.Arena()[at : at+5]
		c[3]++
		offset := int64(0)
		if u.b.Offsets != nil {
			offset = u.b.Offsets[row]
		}
		key := appendWordBytes(memberKey(a.member[:0], u.pos[i]), u.b.Time[row])
		key = binary.BigEndian.AppendUint32(key, uint32(u.b.Partition+2))
		key = binary.BigEndian.AppendUint64(appendWordBytes(key, offset), c[3])
		a.member = key
		if c[2] != 0 && bytes.Compare(key, members.Key(state.Pos(c[2]))) > 0 {
			continue
		}
		if s.join && !s.room(u, i, row, members) {
			continue
		}
		m, _ := members.Upsert(state.Hash(key), key)
		u.col.put(row, members, members.Cells(m)[1:])
		chainMember(u.t, at, members, m)
		if c[1]++; s.keep > 0 && int(c[1]) > 2*s.keep+16 {
			s.drop(u.t, at, members)
		}
	}
}

// room counts the bytes that row i adds to a joined text and says whether it is still short enough.
func (s *sequence) room(u *update, i int, row int32, members *state.Table) bool {
	at := int(u.pos[i]) + u.cell
	c := u.t.Arena()[at : at+5]
	if c[4] == overflowed {
		return false
	}
	n := len(u.col.bytes(row))
	if c[1] > 0 {
		n += len(s.sep)
	}
	c[4] += uint64(n)
	if c[4] <= scalar.MaxTextBytes && c[1] < scalar.MaxElements {
		return true
	}
	dropMembers(chained(nil, c[0], members), members)
	c[0], c[1], c[4] = 0, 0, overflowed
	return false
}

func (s *sequence) inOrder(members *state.Table, head uint64) []state.Pos {
	list := chained(nil, head, members)
	slices.SortFunc(list, func(x, y state.Pos) int { return bytes.Compare(members.Key(x), members.Key(y)) })
	return list
}

func (s *sequence) drop(groups *state.Table, at int, members *state.Table) {
	c := groups.Arena()[at : at+5]
	list := s.inOrder(members, c[0])
	dropMembers(list[s.keep:], members)
	c[0], c[1], c[2] = 0, uint64(s.keep), uint64(list[s.keep-1])
	for _, m := range list[:s.keep] {
		chainMember(groups, at, members, m)
	}
}

func (s *sequence) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[4] == overflowed {
		return scalar.CodeLimit
	}
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	members := t.Subs()[s.slot]
	list := s.inOrder(members, c[0])
	if s.join {
		text := make([]byte, 0, c[4])
		for i, m := range list {
			if i > 0 {
				text = append(text, s.sep...)
			}
			text = append(text, members.Blob(members.Cells(m)[1:])...)
		}
		b.(*array.StringBuilder).BinaryBuilder.Append(text)
		return scalar.CodeNone
	}
	list = list[:min(len(list), s.keep)]
	if s.shape == shapeBlob && !fitsText(len(list), func(i int) int { return len(members.Blob(members.Cells(list[i])[1:])) }) {
		return scalar.CodeLimit
	}
	lb := b.(*array.ListBuilder)
	lb.Append(true)
	for _, m := range list {
		finishShape(s.shape, s.t, members, members.Cells(m)[1:], lb.ValueBuilder())
	}
	return scalar.CodeNone
}

func (s *sequence) save(dst []byte, _ *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 's'), c[3])
	if c[4] == overflowed {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func (s *sequence) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('s')
	c := t.Arena()[int(p)+cell:]
	c[3] = r.uvarint()
	if r.flag() {
		c[4] = overflowed
	}
	return r.rest("sequence")
}

func (s *sequence) saveMember(dst []byte, members *state.Table, m state.Pos) []byte {
	return saveShape(dst, s.shape, members, members.Cells(m)[1:])
}

func (s *sequence) loadMember(b []byte, groups *state.Table, p state.Pos, cell int, members *state.Table, m state.Pos) error {
	if n := len(members.Key(m)) - ownerBytes; n != sequenceItem {
		return fmt.Errorf("%w: a place of %d bytes", ErrState, n)
	}
	r := reader{b: b}
	r.shape(s.shape, s.t, members, members.Cells(m)[1:])
	rest, err := r.rest("value")
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes follow a value", ErrState, len(rest))
	}
	at := int(p) + cell
	c := groups.Arena()[at : at+5]
	if s.join && c[4] != overflowed {
		if c[1] > 0 {
			c[4] += uint64(len(s.sep))
		}
		c[4] += uint64(len(members.Blob(members.Cells(m)[1:])))
	}
	c[1]++
	chainMember(groups, at, members, m)
	return nil
}

func (s *sequence) moveMember(old *state.Table, from state.Pos, members *state.Table, to state.Pos) {
	if s.shape == shapeBlob {
		c := members.Cells(to)[1:]
		c[0], c[1] = 0, 0
		members.SetBlob(c, old.Blob(old.Cells(from)[1:]))
	}
}

func (*sequence) movedMembers(groups *state.Table, at int) { groups.Arena()[at+2] = 0 }
