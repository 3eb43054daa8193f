package window

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// ErrState is returned by Restore for a row that this aggregate did not write.
var ErrState = errors.New("window: state row not understood")

// State rows. All integers are big-endian; a window start has its sign bit flipped, so that rows of a
// window lie together and windows lie in order.
//
//	group   key   'g' start(8) name          value  version(1) slots(uvarint) slot...
//	member  key   'm' start(8) length(4) name slot(2) item    value  version(1) what its accumulator adds
//	tick    key   't'                value  version(1) tick(8)
//
// Where groups leave more than once, a group ends with rows(uvarint) event time(8) flags(1). Without a
// window the start is zero.
//
// A slot begins with a byte that names its accumulator; the shapes of values are named too.
const (
	rowGroup   = 'g'
	rowMember  = 'm'
	rowTick    = 't'
	rowVersion = 1
	rowPrefix  = 9
)

// Changes implements operators.Stateful.
func (a *Aggregate) Changes(put func(key, value []byte)) {
	var key []byte
	for i := range a.groups.Len() {
		start, t := a.groups.At(i)
		t.Changed(func(p state.Pos, dead bool) {
			key = append(appendPrefix(key[:0], rowGroup, start), t.Key(p)...)
			if dead {
				put(key, nil)
				return
			}
			a.save = a.saveGroup(a.save[:0], t, p)
			put(key, a.save)
		})
	}
	for i := range a.groups.Len() {
		start, t := a.groups.At(i)
		a.memberChanges(t, appendPrefix(nil, rowMember, start), put)
	}
	if a.tickMoved {
		put([]byte{rowTick}, appendWordBytes([]byte{rowVersion}, a.tick))
		a.tickMoved = false
	}
	if a.o.Unwindowed {
		a.compact()
		return
	}
	a.drop()
}

// saveGroup encodes a group.
func (a *Aggregate) saveGroup(dst []byte, t *state.Table, p state.Pos) []byte {
	dst = binary.AppendUvarint(append(dst, rowVersion), uint64(len(a.slots)))
	for si := range a.slots {
		s := &a.slots[si]
		at := int(p) + s.cell
		dst = s.acc.save(dst, t, t.Arena()[at:at+s.acc.cells()])
	}
	if a.touched != nil {
		dst = a.saveTail(dst, t, p)
	}
	return dst
}

func appendPrefix(dst []byte, kind byte, start int64) []byte {
	return appendWordBytes(append(dst, kind), start)
}

// Restore implements operators.Stateful. Errors: ErrState.
func (a *Aggregate) Restore(key, value []byte) error {
	if len(key) == 1 && key[0] == rowTick && len(value) == 9 && value[0] == rowVersion && a.o.Emit == EmitEvery {
		a.tick = readWordBytes(value[1:])
		return nil
	}
	if len(key) < rowPrefix || len(value) == 0 {
		return fmt.Errorf("%w: cut short", ErrState)
	}
	if value[0] != rowVersion {
		return fmt.Errorf("%w: version %d", ErrState, value[0])
	}
	start, name := readWordBytes(key[1:]), key[rowPrefix:]
	if a.o.Unwindowed {
		if start != 0 {
			return fmt.Errorf("%w: there are no windows", ErrState)
		}
	} else if start < operators.MinEventTime+a.size || start > operators.MaxEventTime-a.size || a.lastStart(start) != start {
		return fmt.Errorf("%w: no window starts at %d", ErrState, start)
	}
	switch key[0] {
	case rowMember:
		return a.restoreMember(a.groups.Get(start), name, value[1:])
	case rowGroup:
		return a.restoreGroup(start, name, value[1:])
	}
	return fmt.Errorf("%w: kind %q", ErrState, key[0])
}

func (a *Aggregate) restoreGroup(start int64, name, value []byte) error {
	if err := a.keys.check(name); err != nil {
		return err
	}
	n, k := binary.Uvarint(value)
	if k <= 0 || n != uint64(len(a.slots)) {
		return fmt.Errorf("%w: %d slots, the aggregate has %d", ErrState, n, len(a.slots))
	}
	value = value[k:]
	t := a.groups.Get(start)
	p, fresh := t.Upsert(state.Hash(name), name)
	t.MarkSaved(p)
	if !fresh {
		return fmt.Errorf("%w: a group twice", ErrState)
	}
	for i := range a.slots {
		s := &a.slots[i]
		rest, err := s.acc.load(value, t, p, s.cell)
		if err != nil {
			t.Remove(p)
			return err
		}
		value = rest
	}
	if a.touched != nil {
		rest, err := a.loadTail(value, t, p, start)
		if err != nil {
			t.Remove(p)
			return err
		}
		value = rest
	}
	if len(value) > 0 {
		t.Remove(p)
		return fmt.Errorf("%w: %d bytes follow the last slot", ErrState, len(value))
	}
	a.n.groups.Add(1)
	return nil
}
