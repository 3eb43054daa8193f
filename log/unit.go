package log

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Sizes that every shard keeps to. A write-ahead log with small segments needs smaller ones, which the
// proposer enforces; the store accepts what is within these.
const (
	// MaxEntryBytes is the largest encoded entry.
	MaxEntryBytes = 8 << 20
	// MaxBatchBytes is the largest record batch.
	MaxBatchBytes = 7 << 20
	// MaxStateKeyBytes is the longest key of a state row; Pebble keeps keys in memory while it searches.
	MaxStateKeyBytes = 64 << 10
)

// A TopicID is the random UUID of a topic. A topic that is deleted and created again has another one.
type TopicID [16]byte

// String is the ID in the usual form with dashes.
func (t TopicID) String() string { return uuidString(t) }

// A TaskID names a pipeline's running instance on a shard.
type TaskID [16]byte

// String is the ID in the usual form with dashes.
func (t TaskID) String() string { return uuidString(t) }

func uuidString(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// A PartitionID names one partition of a topic.
type PartitionID struct {
	Topic TopicID `json:"topic"`
	Index int32   `json:"index"`
}

// String is topic/index.
func (p PartitionID) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Index) }

// Compare orders partitions by topic, then by index.
func (p PartitionID) Compare(q PartitionID) int {
	if c := bytes.Compare(p.Topic[:], q.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(p.Index, q.Index)
}

// OpKind says what an operation does.
type OpKind uint8

// The operations. Their numbers are on disk.
const (
	OpAppend            OpKind = 1  // a record batch to a partition
	OpOffsets           OpKind = 2  // committed offsets of a consumer group
	OpProgress          OpKind = 3  // one step of a task: fenced by epoch, step and cut
	OpState             OpKind = 4  // one state row of a task, set or deleted
	OpTaskOpen          OpKind = 5  // a new epoch of a task: the raft index of this entry
	OpTaskDrop          OpKind = 6  // forget a task with its rows
	OpPartitionOpen     OpKind = 7  // create a partition
	OpPartitionSettings OpKind = 8  // change the settings of a partition
	OpPartitionDrop     OpKind = 9  // forget a partition with its records
	OpLogStart          OpKind = 10 // raise the log start of a partition
	OpCommand           OpKind = 11 // opaque bytes of the metadata machine; the store rejects it
	OpGroupDrop         OpKind = 12 // forget a consumer group
	OpGroupExpire       OpKind = 13 // forget a consumer group that has not committed anything for a while
)

var opNames = [...]string{
	"", "append", "offsets", "progress", "state", "task-open", "task-drop", "partition-open",
	"partition-settings", "partition-drop", "log-start", "command", "group-drop", "group-expire",
}

// String is the name that FORMAT.md uses.
func (k OpKind) String() string {
	if k >= OpAppend && k <= OpGroupExpire {
		return opNames[k]
	}
	return fmt.Sprintf("op-%d", uint8(k))
}

// A GroupOffset is what a consumer group has committed for one partition. Offset -1 deletes it.
type GroupOffset struct {
	Partition   PartitionID
	Offset      int64
	LeaderEpoch int32 // raft term the consumer has seen, -1 if unknown
	Metadata    string
	CommittedAt int64 // ms since 1970
}

// A Cut is a place in one partition: the offset of the next record to read.
type Cut struct {
	Partition PartitionID
	Offset    int64
}

// Progress is one step of a task: it moves the task's inputs from one cut to the next.
//
// Apply accepts it only if Epoch is the task's epoch, Step is its last step + 1 and From holds every
// partition of its last To at the same offset (From may hold more: partitions that have joined). To lists
// the partitions of From in the same order, none before its From and none past the log end.
type Progress struct {
	Task        TaskID
	Epoch, Step uint64
	From, To    []Cut
	Watermarks  []int64 // W_p after the step, ns of event time, parallel to To (or empty)
	W           int64   // the task's watermark after the step, ns of event time
	Extra       []byte  // the runtime's own: emission cursor and the like
}

// A Unit is a list of operations that apply together or not at all. Methods append encoded operations; every
// argument is copied before they return. The zero value is an empty unit. A Unit is used by one goroutine.
//
// Operations are judged against the store as it was before the unit; only the sequences of a producer look
// at the unit's earlier batches. State needs a Progress of the same task in the unit.
type Unit struct {
	b       []byte // unitHeader bytes of room, then operations
	ref     []byte // the end of the last operation, kept by reference
	step    bool   // holds a Progress
	appends bool   // holds an Append or a State

	// SemiSync lets a shard answer before the unit is synced, once a majority has it in memory that outlives the
	// process. It is not part of the encoding. A unit with progress is always synced.
	SemiSync bool
}

// Kinds of units, on disk.
const (
	unitPlain uint8 = 0
	unitStep  uint8 = 1 // holds a progress
)

const (
	unitHeader  = 5  // length u32, kind u8
	opHeader    = 5  // kind u8, length u32
	partitionSz = 20 // topic, index
	cutSz       = partitionSz + 8
	offsetMin   = partitionSz + 8 + 4 + 8 + 4
)

func (u *Unit) op(k OpKind, size int) {
	if u.b == nil {
		u.b = make([]byte, unitHeader, unitHeader+opHeader+size)
	}
	if u.ref != nil {
		u.b = append(u.b, u.ref...)
		u.ref = nil
	}
	u.b = append(u.b, byte(k))
	u.b = binary.BigEndian.AppendUint32(u.b, uint32(size))
}

// Grow makes room for about n bytes of operations, so that a large unit is not copied while it grows.
func (u *Unit) Grow(n int) {
	if u.b == nil {
		u.b = make([]byte, unitHeader, unitHeader+max(n, 0))
		return
	}
	u.b = slices.Grow(u.b, max(n, 0))
}

func appendPartition(b []byte, p PartitionID) []byte {
	b = append(b, p.Topic[:]...)
	return binary.BigEndian.AppendUint32(b, uint32(p.Index))
}

func appendI64(b []byte, v int64) []byte  { return binary.BigEndian.AppendUint64(b, uint64(v)) }
func appendU64(b []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(b, v) }
func appendU32(b []byte, v int) []byte    { return binary.BigEndian.AppendUint32(b, uint32(v)) }

// Append adds a record batch, one whole v2 batch whose checksum the caller has verified. Its base offset is
// assigned by Apply and its leader epoch is the raft term of the entry.
func (u *Unit) Append(p PartitionID, batch []byte) {
	u.appends = true
	u.op(OpAppend, partitionSz+len(batch))
	u.b = appendPartition(u.b, p)
	u.b = append(u.b, batch...)
}

// AppendRef is Append that copies batch into the entry only, not into the unit before: batch must not change until the
// unit is answered or Reset.
func (u *Unit) AppendRef(p PartitionID, batch []byte) {
	u.appends = true
	if u.b == nil { // the batch needs no room
		u.b = make([]byte, unitHeader, unitHeader+opHeader+partitionSz)
	}
	u.op(OpAppend, partitionSz+len(batch))
	u.b = appendPartition(u.b, p)
	u.ref = batch
}

// Offsets commits offsets of a consumer group. Without offsets it only says that the group is in use, which keeps it from
// expiring.
func (u *Unit) Offsets(group string, o []GroupOffset) {
	size := 4 + len(group) + 4
	for i := range o {
		size += offsetMin + len(o[i].Metadata)
	}
	u.op(OpOffsets, size)
	u.b = append(appendU32(u.b, len(group)), group...)
	u.b = appendU32(u.b, len(o))
	for i := range o {
		u.b = appendPartition(u.b, o[i].Partition)
		u.b = appendI64(u.b, o[i].Offset)
		u.b = binary.BigEndian.AppendUint32(u.b, uint32(o[i].LeaderEpoch))
		u.b = appendI64(u.b, o[i].CommittedAt)
		u.b = append(appendU32(u.b, len(o[i].Metadata)), o[i].Metadata...)
	}
}

// GroupDrop forgets a consumer group and all its offsets.
func (u *Unit) GroupDrop(group string) {
	u.op(OpGroupDrop, len(group))
	u.b = append(u.b, group...)
}

// GroupExpire forgets a consumer group and all its offsets if, by append time, its last Offsets was longer than idle ago;
// otherwise it changes nothing. Both are a yes.
func (u *Unit) GroupExpire(group string, idle time.Duration) {
	u.op(OpGroupExpire, 8+len(group))
	u.b = append(appendI64(u.b, int64(idle)), group...)
}

// Progress makes the unit a step of p.Task.
func (u *Unit) Progress(p Progress) {
	u.step = true
	u.op(OpProgress, progressSize(&p))
	u.b = appendProgress(u.b, &p)
}

func progressSize(p *Progress) int {
	return 16 + 8 + 8 + 4 + len(p.From)*cutSz + 4 + len(p.To)*cutSz + 4 + len(p.Watermarks)*8 + 8 + len(p.Extra)
}

func appendProgress(b []byte, p *Progress) []byte {
	b = append(b, p.Task[:]...)
	b = appendU64(b, p.Epoch)
	b = appendU64(b, p.Step)
	for _, cuts := range [2][]Cut{p.From, p.To} {
		b = appendU32(b, len(cuts))
		for i := range cuts {
			b = appendPartition(b, cuts[i].Partition)
			b = appendI64(b, cuts[i].Offset)
		}
	}
	b = appendU32(b, len(p.Watermarks))
	for _, w := range p.Watermarks {
		b = appendI64(b, w)
	}
	b = appendI64(b, p.W)
	return append(b, p.Extra...)
}

// State sets a state row of a task, or deletes it if value is nil. An empty value that is not nil is kept.
func (u *Unit) State(task TaskID, key, value []byte) {
	u.appends = true
	u.op(OpState, 16+1+4+len(key)+len(value))
	u.b = append(u.b, task[:]...)
	if value == nil {
		u.b = append(u.b, 0)
	} else {
		u.b = append(u.b, 1)
	}
	u.b = append(appendU32(u.b, len(key)), key...)
	u.b = append(u.b, value...)
}

// TaskOpen begins a new epoch of a task, whose number is the raft index of the entry (Result.Index). The
// task's progress and state stay.
func (u *Unit) TaskOpen(task TaskID) {
	u.op(OpTaskOpen, 16)
	u.b = append(u.b, task[:]...)
}

// TaskDrop forgets a task, its progress and its state rows.
func (u *Unit) TaskDrop(task TaskID) {
	u.op(OpTaskDrop, 16)
	u.b = append(u.b, task[:]...)
}

func (u *Unit) partition(k OpKind, p PartitionID, metaIndex uint64, s *PartitionSettings) {
	size := partitionSz + 8
	if s != nil {
		size += settingsSize(*s)
	}
	u.op(k, size)
	u.b = appendPartition(u.b, p)
	u.b = appendU64(u.b, metaIndex)
	if s != nil {
		u.b = appendSettings(u.b, *s)
	}
}

// PartitionOpen creates a partition. metaIndex is the metadata index of the decision: an open that is not
// newer than what the store has seen of this partition changes nothing and is a yes.
func (u *Unit) PartitionOpen(p PartitionID, s PartitionSettings, metaIndex uint64) {
	u.partition(OpPartitionOpen, p, metaIndex, &s)
}

// PartitionSettings changes the settings of a partition, unless newer ones are in force.
func (u *Unit) PartitionSettings(p PartitionID, s PartitionSettings, metaIndex uint64) {
	u.partition(OpPartitionSettings, p, metaIndex, &s)
}

// PartitionDrop forgets a partition for good, and what groups have committed for it: a late open of it, or a late
// commit, changes nothing.
func (u *Unit) PartitionDrop(p PartitionID, metaIndex uint64) {
	u.partition(OpPartitionDrop, p, metaIndex, nil)
}

// LogStart raises the log start of a partition to offset; a smaller one than the present changes nothing.
func (u *Unit) LogStart(p PartitionID, offset int64) {
	u.op(OpLogStart, partitionSz+8)
	u.b = appendPartition(u.b, p)
	u.b = appendI64(u.b, offset)
}

// Command adds opaque bytes for the metadata machine.
func (u *Unit) Command(data []byte) {
	u.op(OpCommand, len(data))
	u.b = append(u.b, data...)
}

// Size is the number of bytes that the unit adds to an entry.
func (u *Unit) Size() int { return max(len(u.b), unitHeader) + len(u.ref) }

// Appends reports whether the unit holds records or state: what fills a disk. The others commit offsets, open, drop
// and retain.
func (u *Unit) Appends() bool { return u.appends }

// Step reports whether the unit advances a task.
func (u *Unit) Step() bool { return u.step }

// Empty reports whether the unit holds no operation.
func (u *Unit) Empty() bool { return len(u.b) <= unitHeader }

// Reset empties the unit and keeps its own memory. Entries hold copies, so they are not touched.
func (u *Unit) Reset() {
	if u.b != nil {
		u.b = u.b[:unitHeader]
	}
	u.ref, u.step, u.appends, u.SemiSync = nil, false, false, false
}
