package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
)

// EntryHeaderBytes is what an entry adds to the sizes of its units.
const EntryHeaderBytes = 1 + 8 + 4

const entryVersion = 1

// ErrBadEntry is a sequence of bytes that is no entry of this version.
var ErrBadEntry = errors.New("log: bad entry")

// EncodeEntry appends an entry of the given units to dst. appendTime (ns since 1970) is the leader's clock;
// the proposer never lets it fall.
func EncodeEntry(dst []byte, appendTime int64, units []*Unit) []byte {
	size := EntryHeaderBytes
	for _, u := range units {
		size += u.Size()
	}
	dst = slices.Grow(dst, size)
	dst = append(dst, entryVersion)
	dst = appendI64(dst, appendTime)
	dst = appendU32(dst, len(units))
	for _, u := range units {
		dst = appendU32(dst, u.Size()-4)
		kind := unitPlain
		if u.step {
			kind = unitStep
		}
		dst = append(dst, kind)
		if len(u.b) > unitHeader {
			dst = append(dst, u.b[unitHeader:]...)
		}
		dst = append(dst, u.ref...)
	}
	return dst
}

// An Entry is a decoded view of an entry's bytes; it holds on to them and copies nothing.
type Entry struct {
	AppendTime int64 // ns since 1970
	Count      int   // units
	body       []byte
}

// A UnitView is one unit of an entry.
type UnitView struct {
	Step bool // holds a progress
	body []byte
}

// An Op is one operation of a unit. The methods that take it apart may only be called for its kind; what
// they return points into the entry where it is a slice.
type Op struct {
	Kind OpKind
	Body []byte
}

// DecodeEntry checks the structure of a whole entry, every length and count, so that walking it cannot fail.
// It does not look into record batches. It allocates nothing. Errors are ErrBadEntry.
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) < EntryHeaderBytes {
		return Entry{}, fmt.Errorf("%w: %d bytes", ErrBadEntry, len(b))
	}
	if b[0] != entryVersion {
		return Entry{}, fmt.Errorf("%w: version %d", ErrBadEntry, b[0])
	}
	e := Entry{AppendTime: int64(binary.BigEndian.Uint64(b[1:])), body: b[EntryHeaderBytes:]}
	count := binary.BigEndian.Uint32(b[9:])
	if uint64(count)*unitHeader > uint64(len(e.body)) {
		return Entry{}, fmt.Errorf("%w: %d units in %d bytes", ErrBadEntry, count, len(b))
	}
	e.Count = int(count)
	rest := e.body
	for i := range e.Count {
		if len(rest) < unitHeader {
			return Entry{}, fmt.Errorf("%w: unit %d cut short", ErrBadEntry, i)
		}
		n := binary.BigEndian.Uint32(rest)
		if n < 1 || uint64(n) > uint64(len(rest)-4) {
			return Entry{}, fmt.Errorf("%w: unit %d of %d bytes, %d left", ErrBadEntry, i, n, len(rest)-4)
		}
		if err := checkUnit(rest[4], rest[unitHeader:4+n]); err != nil {
			return Entry{}, fmt.Errorf("%w: unit %d: %w", ErrBadEntry, i, err)
		}
		rest = rest[4+n:]
	}
	if len(rest) != 0 {
		return Entry{}, fmt.Errorf("%w: %d bytes after the last unit", ErrBadEntry, len(rest))
	}
	return e, nil
}

func checkUnit(kind uint8, b []byte) error {
	step := false
	for len(b) > 0 {
		if len(b) < opHeader {
			return errors.New("operation cut short")
		}
		k, n := OpKind(b[0]), binary.BigEndian.Uint32(b[1:])
		if uint64(n) > uint64(len(b)-opHeader) {
			return fmt.Errorf("%s of %d bytes, %d left", k, n, len(b)-opHeader)
		}
		if !validOp(k, b[opHeader:opHeader+n]) {
			return fmt.Errorf("malformed %s", k)
		}
		step = step || k == OpProgress
		b = b[opHeader+n:]
	}
	want := unitPlain
	if step {
		want = unitStep
	}
	if kind != want {
		return fmt.Errorf("kind %d, operations say %d", kind, want)
	}
	return nil
}

// validOp reports whether b has exactly the bytes that an operation of kind k needs.
func validOp(k OpKind, b []byte) bool {
	switch k {
	case OpAppend:
		return len(b) >= partitionSz
	case OpOffsets:
		return validOffsets(b)
	case OpProgress:
		return validProgress(b)
	case OpState:
		if len(b) < 16+1+4 || b[16] > 1 {
			return false
		}
		n, room := uint64(binary.BigEndian.Uint32(b[17:])), uint64(len(b)-21)
		return n == room || (n < room && b[16] == 1)
	case OpTaskOpen, OpTaskDrop:
		return len(b) == 16
	case OpPartitionOpen, OpPartitionSettings:
		return len(b) >= partitionSz+8 && validSettings(b[partitionSz+8:])
	case OpPartitionDrop, OpLogStart:
		return len(b) == partitionSz+8
	case OpGroupExpire:
		return len(b) >= 8 && getI64(b) >= 0
	case OpCommand, OpGroupDrop:
		return true
	}
	return false
}

func validOffsets(b []byte) bool {
	_, b, ok := cutBytes(b)
	if !ok || len(b) < 4 {
		return false
	}
	count := binary.BigEndian.Uint32(b)
	b = b[4:]
	if uint64(count)*offsetMin > uint64(len(b)) {
		return false
	}
	for range count {
		if len(b) < offsetMin {
			return false
		}
		if _, b, ok = cutBytes(b[offsetMin-4:]); !ok {
			return false
		}
	}
	return len(b) == 0
}

func validProgress(b []byte) bool {
	if len(b) < 32 {
		return false
	}
	b = b[32:]
	for _, size := range [3]uint64{cutSz, cutSz, 8} {
		if len(b) < 4 {
			return false
		}
		n := uint64(binary.BigEndian.Uint32(b)) * size
		if n > uint64(len(b)-4) {
			return false
		}
		b = b[4+n:]
	}
	return len(b) >= 8
}

// cutBytes takes a u32 length and that many bytes off b.
func cutBytes(b []byte) (head, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n : 4+n], b[4+n:], true
}

// Units walks the units in order.
func (e Entry) Units() iter.Seq2[int, UnitView] {
	return func(yield func(int, UnitView) bool) {
		rest := e.body
		for i := range e.Count {
			var u UnitView
			u, rest = nextUnit(rest)
			if !yield(i, u) {
				return
			}
		}
	}
}

func nextUnit(b []byte) (UnitView, []byte) {
	n := binary.BigEndian.Uint32(b)
	return UnitView{Step: b[4] == unitStep, body: b[unitHeader : 4+n]}, b[4+n:]
}

// Ops walks the operations in order.
func (u UnitView) Ops() iter.Seq[Op] {
	return func(yield func(Op) bool) {
		for rest := u.body; len(rest) > 0; {
			var op Op
			op, rest = nextOp(rest)
			if !yield(op) {
				return
			}
		}
	}
}

// nextOp takes one operation off a checked unit body. The capacity of its bytes ends with them.
func nextOp(b []byte) (Op, []byte) {
	n := opHeader + binary.BigEndian.Uint32(b[1:])
	return Op{Kind: OpKind(b[0]), Body: b[opHeader:n:n]}, b[n:]
}

func getPartition(b []byte) PartitionID {
	return PartitionID{Topic: TopicID(b[:16]), Index: int32(binary.BigEndian.Uint32(b[16:]))}
}

func getI64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

// Append takes an OpAppend apart. batch points into the entry.
func (o Op) Append() (p PartitionID, batch []byte) {
	return getPartition(o.Body), o.Body[partitionSz:]
}

// GroupExpire takes an OpGroupExpire apart; idle is ns of append time.
func (o Op) GroupExpire() (group string, idle int64) { return string(o.Body[8:]), getI64(o.Body) }

// Group is the group name of an OpOffsets or OpGroupDrop.
func (o Op) Group() string {
	if o.Kind == OpGroupDrop {
		return string(o.Body)
	}
	g, _, _ := cutBytes(o.Body)
	return string(g)
}

// Offsets takes an OpOffsets apart.
func (o Op) Offsets() (group string, offsets []GroupOffset) {
	g, b, _ := cutBytes(o.Body)
	offsets = make([]GroupOffset, binary.BigEndian.Uint32(b))
	b = b[4:]
	for i := range offsets {
		v := &offsets[i]
		v.Partition = getPartition(b)
		v.Offset = getI64(b[20:])
		v.LeaderEpoch = int32(binary.BigEndian.Uint32(b[28:]))
		v.CommittedAt = getI64(b[32:])
		var meta []byte
		meta, b, _ = cutBytes(b[40:])
		v.Metadata = string(meta)
	}
	return string(g), offsets
}

// Progress takes an OpProgress apart; Extra points into the entry.
func (o Op) Progress() Progress { return getProgress(o.Body) }

func getProgress(b []byte) Progress {
	p := Progress{Task: TaskID(b[:16]), Epoch: binary.BigEndian.Uint64(b[16:]), Step: binary.BigEndian.Uint64(b[24:])}
	b = b[32:]
	for _, dst := range [2]*[]Cut{&p.From, &p.To} {
		n := int(binary.BigEndian.Uint32(b))
		b = b[4:]
		if n > 0 {
			*dst = make([]Cut, n)
		}
		for i := range *dst {
			(*dst)[i] = Cut{Partition: getPartition(b), Offset: getI64(b[partitionSz:])}
			b = b[cutSz:]
		}
	}
	n := int(binary.BigEndian.Uint32(b))
	b = b[4:]
	if n > 0 {
		p.Watermarks = make([]int64, n)
	}
	for i := range p.Watermarks {
		p.Watermarks[i] = getI64(b[i*8:])
	}
	b = b[n*8:]
	p.W = getI64(b)
	if len(b) > 8 {
		p.Extra = b[8:]
	}
	return p
}

// State takes an OpState apart; value is nil for a delete.
func (o Op) State() (task TaskID, key, value []byte) {
	key, value, _ = cutBytes(o.Body[17:])
	if o.Body[16] == 0 {
		return TaskID(o.Body[:16]), key, nil
	}
	if value == nil {
		value = []byte{}
	}
	return TaskID(o.Body[:16]), key, value
}

// Task is the task of an OpTaskOpen, OpTaskDrop, OpState or OpProgress.
func (o Op) Task() TaskID { return TaskID(o.Body[:16]) }

// Partition takes an OpPartitionOpen, OpPartitionSettings or OpPartitionDrop apart; a drop has no settings.
func (o Op) Partition() (p PartitionID, s PartitionSettings, metaIndex uint64) {
	if o.Kind != OpPartitionDrop {
		s, _ = getSettings(o.Body[partitionSz+8:])
	}
	return getPartition(o.Body), s, binary.BigEndian.Uint64(o.Body[partitionSz:])
}

// LogStart takes an OpLogStart apart.
func (o Op) LogStart() (p PartitionID, offset int64) {
	return getPartition(o.Body), getI64(o.Body[partitionSz:])
}
