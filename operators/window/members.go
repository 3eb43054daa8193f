package window

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// A keeper is an accumulator that keeps rows of its own for a group, its members, so that a step writes
// those that changed and not all of them. Members lie in the subtable of the group table that has the
// slot's number; the key of a member is the position of its group in four bytes and then its item, bytes
// that order as what they stand for.
type keeper interface {
	// memberCells is the number of cells of a member.
	memberCells() int
	// saveMember encodes a member but for its item; loadMember decodes it for the group at g.
	saveMember(dst []byte, members *state.Table, m state.Pos) []byte
	loadMember(b []byte, groups *state.Table, g state.Pos, cell int, members *state.Table, m state.Pos) error
}

// A chainKeeper links the members of a group from the accumulator's first cell on.
type chainKeeper interface {
	keeper
	// moveMember copies what belongs to a member and lies outside of its cells to its new place.
	moveMember(old *state.Table, from state.Pos, members *state.Table, to state.Pos)
	// movedMembers tells the group whose cells begin at at that its members have moved.
	movedMembers(groups *state.Table, at int)
}

const ownerBytes = 4 // of a member's key

func memberKey(dst []byte, g state.Pos) []byte { return binary.BigEndian.AppendUint32(dst, g) }

func ownerOf(key []byte) state.Pos { return binary.BigEndian.Uint32(key) }

// maxMemberBytes is how much of a long value an item holds; its hash stands for the rest.
const maxMemberBytes = 1 << 10

// appendItem appends the value of a row so that equal values, and no others, are equal bytes; those of
// words, decimals and short texts order like the values. With same, -0 is 0.
func appendItem(dst []byte, shape shape, c *column, row int32, same bool) []byte {
	switch shape {
	case shapeWord:
		w := c.words[row]
		if same && w == -1 && c.t.Kind.Float() {
			w = 0
		}
		return appendWordBytes(dst, w)
	case shapeDec:
		return appendDec(dst, operators.Int128(c.decs[row]))
	}
	v := c.bytes(row)
	if len(v) > maxMemberBytes {
		sum := sha256.Sum256(v)
		return append(append(dst, v[:maxMemberBytes]...), sum[:]...)
	}
	return append(dst, v...)
}

// maxKept bounds how many values list, set and top_k keep.
const maxKept = 10_000

// newCollection makes what gives the values themselves.
func newCollection(s Slot, slot int) (accumulator, error) {
	if s.Func == "join" {
		if s.ArgType.Kind != scalar.KindString || s.ParamType.Kind != scalar.KindString {
			return nil, fmt.Errorf("%w: no aggregate join of %s", ErrOptions, s.ArgType)
		}
		return &sequence{slot: slot, t: s.ArgType, shape: shapeBlob, join: true, sep: s.Param.S}, nil
	}
	if s.ParamType.Kind != scalar.KindInt64 || s.Param.I < 1 || s.Param.I > maxKept {
		return nil, fmt.Errorf("%w: %s keeps 1 to %d values", ErrOptions, s.Func, maxKept)
	}
	keep := int(s.Param.I)
	if s.Func == "list" {
		return &sequence{slot: slot, t: s.ArgType, shape: shapeOf(s.ArgType), keep: keep}, nil
	}
	g := newBag(s, slot)
	g.keep, g.once, g.top = keep, s.Func == "set", s.Func == "top_k"
	return g, nil
}

// distinct counts distinct values; -0 and 0 are one, as are all NaNs. Cell: the count. The members are
// the values seen.
type distinct struct {
	slot  int
	shape shape
}

func (distinct) cells() int       { return 1 }
func (distinct) memberCells() int { return 0 }

func (d distinct) update(u *update) {
	a, seen := u.agg, u.t.Sub(d.slot, 0)
	arena := u.t.Arena()
	for rows, pos := u.rows, u.pos; len(rows) > 0; {
		n := min(len(rows), probeRows)
		k := &a.items
		k.begin()
		for i, row := range rows[:n] {
			if !u.col.isNull(row) {
				k.buf = appendItem(memberKey(k.buf, pos[i]), d.shape, u.col, row, true)
				k.end(int32(i))
			}
		}
		seen.Probe(k.hashes, k.order, k.guess)
		for j, i := range k.rows {
			if _, fresh := seen.InsertAt(k.guess[j], k.hashes[j], k.key(j)); fresh {
				arena[int(pos[i])+u.cell]++
			}
		}
		rows, pos = rows[n:], pos[n:]
	}
}

// items are the member keys of up to probeRows rows, looked up together so that their cache misses
// overlap.
type items struct {
	buf    []byte
	ends   []int
	rows   []int32 // places of the rows
	hashes []uint32
	order  []int32 // 0, 1, ..
	guess  []state.Pos
}

func (k *items) begin() {
	k.buf, k.ends, k.rows, k.hashes, k.order = k.buf[:0], k.ends[:0], k.rows[:0], k.hashes[:0], k.order[:0]
	k.guess = grown(k.guess, probeRows)
}

// end ends the key that was appended to buf.
func (k *items) end(row int32) {
	from := 0
	if n := len(k.ends); n > 0 {
		from = k.ends[n-1]
	}
	k.order = append(k.order, int32(len(k.rows)))
	k.ends, k.rows = append(k.ends, len(k.buf)), append(k.rows, row)
	k.hashes = append(k.hashes, state.Hash(k.buf[from:]))
}

func (k *items) key(i int) []byte {
	if i == 0 {
		return k.buf[:k.ends[0]]
	}
	return k.buf[k.ends[i-1]:k.ends[i]]
}

// A chain runs through the members of a group: it begins in a cell of the group and goes on in the first
// cell of each member.

func chainMember(groups *state.Table, head int, members *state.Table, m state.Pos) {
	h := &groups.Arena()[head]
	members.Cells(m)[0] = *h
	*h = uint64(m)
}

// chained appends the members of the chain that begins in cell head to dst.
func chained(dst []state.Pos, head uint64, members *state.Table) []state.Pos {
	for m := state.Pos(head); m != 0; m = state.Pos(members.Cells(m)[0]) {
		dst = append(dst, m)
	}
	return dst
}

// dropMembers removes members that a chain no longer holds.
func dropMembers(list []state.Pos, members *state.Table) {
	for _, m := range list {
		members.Remove(m)
	}
}

// A memberRun is changed members of one group and slot.
type memberRun struct {
	owner state.Pos
	slot  int
	from  int
	to    int
}

type memberChange struct {
	m    state.Pos
	dead bool
}

// memberChanges calls put for every member of a group table that changed, in key order: by the length of
// the group's name, its name, slot and item. prefix is what comes before these in a key.
func (a *Aggregate) memberChanges(t *state.Table, prefix []byte, put func(key, value []byte)) {
	runs, list := a.runs[:0], a.changed[:0]
	for slot, members := range t.Subs() {
		if members == nil {
			continue
		}
		members.Changed(func(m state.Pos, dead bool) {
			owner := ownerOf(members.Key(m))
			if n := len(runs); n == 0 || runs[n-1].owner != owner || runs[n-1].slot != slot {
				runs = append(runs, memberRun{owner, slot, len(list), len(list)})
			}
			list = append(list, memberChange{m, dead})
			runs[len(runs)-1].to++
		})
	}
	a.runs, a.changed = runs, list
	slices.SortFunc(runs, func(x, y memberRun) int {
		if x.owner != y.owner {
			n, o := t.Key(x.owner), t.Key(y.owner)
			if len(n) != len(o) {
				return len(n) - len(o)
			}
			return bytes.Compare(n, o)
		}
		return x.slot - y.slot
	})
	key := append([]byte(nil), prefix...)
	for _, r := range runs {
		name := t.Key(r.owner)
		key = binary.BigEndian.AppendUint32(key[:len(prefix)], uint32(len(name)))
		key = binary.BigEndian.AppendUint16(append(key, name...), uint16(r.slot))
		n := len(key)
		members, k := t.Subs()[r.slot], a.slots[r.slot].acc.(keeper)
		for _, c := range list[r.from:r.to] {
			key = append(key[:n], members.Key(c.m)[ownerBytes:]...)
			if c.dead {
				put(key, nil)
				continue
			}
			a.save = k.saveMember(append(a.save[:0], rowVersion), members, c.m)
			put(key, a.save)
		}
	}
	a.compactMembers(t)
}

// compactMembers gives back the room of members that are gone.
func (a *Aggregate) compactMembers(t *state.Table) {
	for slot, members := range t.Subs() {
		if members == nil || !members.Spent() {
			continue
		}
		mover, ok := a.slots[slot].acc.(chainKeeper)
		if !ok {
			continue // nothing of it goes before its window does
		}
		head, seen := a.slots[slot].cell, map[state.Pos]bool{}
		members.Compact(func(old *state.Table, from, to state.Pos) {
			owner := ownerOf(members.Key(to))
			at := int(owner) + head
			if !seen[owner] {
				seen[owner] = true
				t.Arena()[at] = 0
			}
			mover.moveMember(old, from, members, to)
			chainMember(t, at, members, to)
		})
		for owner := range seen {
			mover.movedMembers(t, int(owner)+head)
		}
	}
}

// restoreMember gives back a member: what follows the window in its key, and its value.
func (a *Aggregate) restoreMember(t *state.Table, key, value []byte) error {
	if len(key) < 4 {
		return fmt.Errorf("%w: a member is cut short", ErrState)
	}
	n := uint64(binary.BigEndian.Uint32(key))
	if n+6 > uint64(len(key)) {
		return fmt.Errorf("%w: a member is cut short", ErrState)
	}
	name, rest := key[4:4+n], key[4+n:]
	slot, item := int(binary.BigEndian.Uint16(rest)), rest[2:]
	if slot >= len(a.slots) {
		return fmt.Errorf("%w: a member of slot %d", ErrState, slot)
	}
	s := &a.slots[slot]
	k, ok := s.acc.(keeper)
	if !ok {
		return fmt.Errorf("%w: a member of %s", ErrState, s.Func)
	}
	g, ok := t.Find(state.Hash(name), name)
	if !ok {
		if g == 0 { // its group has left: only its name is needed until the member goes too
			g, _ = t.Upsert(state.Hash(name), name)
			t.Remove(g)
		}
	}
	members := t.Sub(slot, k.memberCells())
	a.member = append(memberKey(a.member[:0], g), item...)
	m, fresh := members.Upsert(state.Hash(a.member), a.member)
	members.MarkSaved(m)
	if !fresh {
		return fmt.Errorf("%w: a member twice", ErrState)
	}
	if err := k.loadMember(value, t, g, s.cell, members, m); err != nil {
		members.Remove(m)
		return err
	}
	return nil
}

// memberRows counts over all slots of a group table: the members, those that the store has, those that changed.
func memberRows(t *state.Table) (rows, saved, dirty int) {
	for _, m := range t.Subs() {
		if m != nil {
			rows += m.Len()
			saved += m.Saved()
			dirty += m.Dirty()
		}
	}
	return rows, saved, dirty
}

// removeMembers kills up to n members of the groups of a window that is over (n < 0: all); false means
// that some are left.
func removeMembers(t *state.Table, n int) bool {
	for _, m := range t.Subs() {
		if m == nil {
			continue
		}
		before := m.Len()
		if !m.RemoveSome(n) {
			return false
		}
		n -= before - m.Len()
	}
	return true
}

func (distinct) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	return count{}.finish(t, c, b)
}

func (distinct) save(dst []byte, t *state.Table, c []uint64) []byte { return count{}.save(dst, t, c) }

func (distinct) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	return count{}.load(b, t, p, cell)
}

func (distinct) saveMember(dst []byte, _ *state.Table, _ state.Pos) []byte { return dst }

func (distinct) loadMember(b []byte, _ *state.Table, _ state.Pos, _ int, _ *state.Table, _ state.Pos) error {
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes of a distinct value", ErrState, len(b))
	}
	return nil
}
