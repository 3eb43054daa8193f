package window

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// A bag holds the values of a group with how often each came, for quantiles, set and top_k. Its members are
// the values. Those that are bounded keep the best: set the n least different ones, top_k the k greatest.
// They take twice as many before they drop the others, so that dropping costs little.
//
// Cells: the chain, how many members there are, the member that was the last of the best when others were
// dropped (a worse one cannot matter any more), zero if none were. Cells of a member: next, how often, and
// for texts the text if it is longer than an item.
type bag struct {
	slot  int
	t     scalar.Type
	shape shape
	keep  int  // zero: all
	once  bool // set: how often does not matter
	top   bool // the greatest are the best
}

func newBag(s Slot, slot int) *bag {
	return &bag{slot: slot, t: s.ArgType, shape: shapeOf(s.ArgType)}
}

func (*bag) cells() int { return 3 }

func (g *bag) memberCells() int {
	if g.shape == shapeBlob {
		return 4
	}
	return 2
}

func (g *bag) update(u *update) {
	a, members := u.agg, u.t.Sub(g.slot, g.memberCells())
	for rows, pos := u.rows, u.pos; len(rows) > 0; {
		n := min(len(rows), probeRows)
		k := &a.items
		k.begin()
		for i, row := range rows[:n] {
			if !u.col.isNull(row) {
				k.buf = appendItem(memberKey(k.buf, pos[i]), g.shape, u.col, row, g.once)
				k.end(int32(i))
			}
		}
		members.Probe(k.hashes, k.order, k.guess)
		for j, i := range k.rows {
			at := int(pos[i]) + u.cell
			key := k.key(j)
			c := u.t.Arena()[at : at+3]
			if g.keep > 0 && c[2] != 0 && g.order(key, u.col, rows[i], members, state.Pos(c[2])) >= 0 {
				continue
			}
			m, fresh := members.InsertAt(k.guess[j], k.hashes[j], key)
			cells := members.Cells(m)
			switch {
			case fresh:
				cells[1] = 1
				if g.long(len(key) - ownerBytes) {
					members.SetBlob(cells[2:], u.col.bytes(rows[i]))
				}
				chainMember(u.t, at, members, m)
				if c[1]++; g.keep > 0 && int(c[1]) > g.most() {
					g.drop(u.t, at, members)
				}
			case g.once || g.keep > 0 && cells[1] >= uint64(g.keep):
			default:
				cells[1]++
				members.Touch(m)
			}
		}
		rows, pos = rows[n:], pos[n:]
	}
}

// most is how many members a group takes before it drops some.
func (g *bag) most() int { return 2*g.keep + 16 }

// long says whether an item of n bytes stands for a longer text.
func (g *bag) long(n int) bool { return g.shape == shapeBlob && n > maxMemberBytes }

// order compares a value, as a member's key and as it is, to a member: below zero if it is better.
func (g *bag) order(key []byte, c *column, row int32, members *state.Table, m state.Pos) int {
	item := key[ownerBytes:]
	if g.long(len(item)) {
		item = c.bytes(row)
	}
	return g.sign() * bytes.Compare(item, g.text(members, m))
}

func (g *bag) sign() int {
	if g.top {
		return -1
	}
	return 1
}

// text is the bytes by which a member is ordered.
func (g *bag) text(members *state.Table, m state.Pos) []byte {
	item := members.Key(m)[ownerBytes:]
	if g.long(len(item)) {
		return members.Blob(members.Cells(m)[2:])
	}
	return item
}

// best is the members of a group, the best first, of the table's chain that begins with head.
func (g *bag) best(members *state.Table, head uint64) []state.Pos {
	list := chained(nil, head, members)
	slices.SortFunc(list, func(x, y state.Pos) int { return g.sign() * bytes.Compare(g.text(members, x), g.text(members, y)) })
	return list
}

// kept is how many of the members, the best first, matter.
func (g *bag) kept(list []state.Pos, members *state.Table) int {
	values := uint64(0)
	for i, m := range list {
		if g.keep > 0 && values >= uint64(g.keep) {
			return i
		}
		if g.once {
			values++
		} else {
			values += members.Cells(m)[1]
		}
	}
	return len(list)
}

// drop keeps the best members of the group whose cells begin at at.
func (g *bag) drop(groups *state.Table, at int, members *state.Table) {
	c := groups.Arena()[at : at+3]
	list := g.best(members, c[0])
	n := g.kept(list, members)
	dropMembers(list[n:], members)
	c[0], c[1], c[2] = 0, uint64(n), uint64(list[n-1])
	for _, m := range list[:n] {
		chainMember(groups, at, members, m)
	}
}

// append appends the value of a member to a builder of the argument's type.
func (g *bag) append(b array.Builder, members *state.Table, m state.Pos) {
	text := g.text(members, m)
	switch g.shape {
	case shapeWord:
		appendWord(b, g.t, readWordBytes(text))
	case shapeDec:
		b.(*array.Decimal128Builder).Append(operators.Decimal128(readDec(text)))
	default:
		if err := appendBlob(b, g.t, text); err != nil {
			panic(err) // loadMember has checked it
		}
	}
}

// finish gives a list: of set the values by order, of top_k the greatest first.
func (g *bag) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	members := t.Subs()[g.slot]
	lb := b.(*array.ListBuilder)
	list := g.best(members, c[0])
	list = list[:g.kept(list, members)]
	if g.shape == shapeBlob && !fitsText(len(list), func(i int) int { return len(g.text(members, list[i])) }) {
		return scalar.CodeLimit
	}
	lb.Append(true)
	left := g.keep
	for _, m := range list {
		n := 1
		if !g.once {
			n = min(left, int(members.Cells(m)[1]))
		}
		for range n {
			g.append(lb.ValueBuilder(), members, m)
		}
		left -= n
	}
	return scalar.CodeNone
}

// fitsText says whether n texts together are no longer than one text may be.
func fitsText(n int, size func(i int) int) bool {
	total := 0
	for i := range n {
		total += size(i)
	}
	return total <= scalar.MaxTextBytes
}

func (*bag) save(dst []byte, _ *state.Table, _ []uint64) []byte { return append(dst, 'm') }

func (*bag) load(b []byte, _ *state.Table, _ state.Pos, _ int) ([]byte, error) {
	r := reader{b: b}
	r.tag('m')
	return r.rest("values")
}

func (g *bag) saveMember(dst []byte, members *state.Table, m state.Pos) []byte {
	c := members.Cells(m)
	dst = binary.AppendUvarint(dst, c[1])
	if g.long(len(members.Key(m)) - ownerBytes) {
		dst = append(dst, members.Blob(c[2:])...)
	}
	return dst
}

func (g *bag) loadMember(b []byte, groups *state.Table, p state.Pos, cell int, members *state.Table, m state.Pos) error {
	n, k := binary.Uvarint(b)
	item := members.Key(m)[ownerBytes:]
	width := map[shape]int{shapeWord: 8, shapeDec: 16}[g.shape]
	long := g.long(len(item))
	if k <= 0 || n == 0 || !long && len(b) > k || width > 0 && len(item) != width {
		return fmt.Errorf("%w: a value of %d bytes", ErrState, len(item))
	}
	c := members.Cells(m)
	c[1] = n
	if long {
		members.SetBlob(c[2:], b[k:])
	}
	at := int(p) + cell
	chainMember(groups, at, members, m)
	groups.Arena()[at+1]++
	return nil
}

func (g *bag) moveMember(old *state.Table, from state.Pos, members *state.Table, to state.Pos) {
	if g.long(len(members.Key(to)) - ownerBytes) {
		c := members.Cells(to)
		c[2], c[3] = 0, 0
		members.SetBlob(c[2:], old.Blob(old.Cells(from)[2:]))
	}
}

func (*bag) movedMembers(groups *state.Table, at int) { groups.Arena()[at+2] = 0 }
