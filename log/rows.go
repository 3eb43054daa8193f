package log

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Kinds of Pebble rows: the first byte of a key. FORMAT.md draws keys and values; every value begins with
// rowVersion.
const (
	rowApplied   = 'a' // what the rows are the state of
	rowCompact   = 'c' // topic, index: what compaction knows of a partition
	rowDropped   = 'd' // topic, index: a partition that must not come back
	rowMixedFile = 'f' // number: a file of the mixed segment
	rowGroup     = 'g' // group, topic, index: a committed offset
	rowActive    = 'h' // group: when it last committed
	rowState     = 'k' // task, key: a state row
	rowPlaced    = 'l' // raft index, topic, index, number: what a round wrote to a partition's own files
	rowMixed     = 'm' // topic, index, base offset: a run of batches in the mixed segment
	rowPartition = 'p' // topic, index
	rowProducer  = 'q' // topic, index, producer id
	rowRuns      = 'r' // raft index: what a round wrote to the mixed segment
	rowSegment   = 's' // topic, index, base offset: a segment file
	rowTask      = 't' // task
)

const rowVersion = 2

var errRow = errors.New("malformed row")

// keyEnd is the first key after all that begin with prefix.
func keyEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// partitionKey orders partitions by topic and index; indexes are not negative.
func partitionKey(kind byte, id PartitionID) []byte {
	return appendPartition(append(make([]byte, 0, 32), kind), id)
}

func offsetKey(kind byte, id PartitionID, v int64) []byte {
	return appendI64(partitionKey(kind, id), v)
}

func appendPlacedKey(b []byte, index uint64, id PartitionID, n int) []byte {
	b = appendU64(append(b, rowPlaced), index)
	return binary.BigEndian.AppendUint16(appendPartition(b, id), uint16(n))
}

func numberKey(kind byte, n uint64) []byte { return appendU64([]byte{kind}, n) }

func taskKey(t TaskID) []byte { return append([]byte{rowTask}, t[:]...) }

func stateKey(t TaskID, key []byte) []byte {
	b := append(make([]byte, 0, 17+len(key)), rowState)
	return append(append(b, t[:]...), key...)
}

// groupKey is the prefix of a group's rows: its length first, so that no name is the prefix of another.
func groupKey(group string) []byte {
	b := append(make([]byte, 0, 5+len(group)+partitionSz), rowGroup)
	return append(appendU32(b, len(group)), group...)
}

func parseGroupKey(key []byte) (group string, prefix []byte, err error) {
	if len(key) < 1 {
		return "", nil, errRow
	}
	g, _, ok := cutBytes(key[1:])
	if !ok {
		return "", nil, errRow
	}
	return string(g), append([]byte(nil), key[:5+len(g)]...), nil
}

// fields reads fixed-size fields of a row; after the first that is missing it gives zeros.
type fields struct {
	b  []byte
	ok bool
}

func readRow(v []byte) fields {
	if len(v) < 1 || v[0] != rowVersion {
		return fields{}
	}
	return fields{v[1:], true}
}

func (f *fields) take(n int) []byte {
	if !f.ok || len(f.b) < n {
		f.ok = false
		return make([]byte, n)
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) u64() uint64 { return binary.BigEndian.Uint64(f.take(8)) }
func (f *fields) i64() int64  { return int64(f.u64()) }
func (f *fields) u32() uint32 { return binary.BigEndian.Uint32(f.take(4)) }
func (f *fields) u8() byte    { return f.take(1)[0] }

// uvarint reads a number in the fewest bytes that hold it.
func (f *fields) uvarint() uint64 {
	v, n := binary.Uvarint(f.b)
	if !f.ok || n <= 0 || n > 1 && f.b[n-1] == 0 {
		f.ok = false
		return 0
	}
	f.b = f.b[n:]
	return v
}

// varint reads a zigzag number.
func (f *fields) varint() int64 {
	u := f.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// i32 reads a zigzag number of 32 bits, which is counted from another.
func (f *fields) i32(from int64) int32 {
	v := from + f.varint()
	if v != int64(int32(v)) {
		f.ok = false
	}
	return int32(v)
}

func (f *fields) settings() PartitionSettings {
	s, n := getSettings(f.b)
	if f.take(n); !f.ok || n == 0 {
		f.ok = false
	}
	return s
}

// end is the error of a row that must be over.
func (f *fields) end(kind byte) error {
	if !f.ok || len(f.b) != 0 {
		return fmt.Errorf("%w: kind %q", errRow, kind)
	}
	return nil
}

// appliedRow says what the rows are the state of.
type appliedRow struct {
	index, term uint64
	now         int64  // append time of that entry, ns
	clock       uint64 // touches of producers
	mixed       uint64 // number of the mixed file that is written
}

func (r appliedRow) encode() []byte {
	b := appendU64([]byte{rowVersion}, r.index)
	b = appendU64(b, r.term)
	b = appendI64(b, r.now)
	return appendU64(appendU64(b, r.clock), r.mixed)
}

func decodeApplied(v []byte) (appliedRow, error) {
	f := readRow(v)
	r := appliedRow{f.u64(), f.u64(), f.i64(), f.u64(), f.u64()}
	return r, f.end(rowApplied)
}

// partitionRow is a partition; layout without its segments.
type partitionRow struct {
	metaIndex  uint64
	settings   PartitionSettings
	start, end int64
	lastAppend int64
	mixStart   int64
	mixBytes   int64
	mixRuns    int
	mixOldest  int64
}

func (r *partitionRow) encode(b []byte) []byte {
	b = binary.AppendUvarint(append(b, rowVersion), r.metaIndex)
	b = appendSettings(b, r.settings)
	for _, v := range [...]int64{r.start, r.end, r.mixStart, r.mixBytes, int64(r.mixRuns)} {
		b = binary.AppendVarint(b, v)
	}
	return appendI64(appendI64(b, r.lastAppend), r.mixOldest)
}

func decodePartition(v []byte) (partitionRow, error) {
	f := readRow(v)
	r := partitionRow{metaIndex: f.uvarint(), settings: f.settings()}
	r.start, r.end = f.varint(), f.varint()
	r.mixStart, r.mixBytes, r.mixRuns = f.varint(), f.varint(), int(f.varint())
	r.lastAppend, r.mixOldest = f.i64(), f.i64()
	return r, f.end(rowPartition)
}

// segmentInfo is one segment file of a partition.
type segmentInfo struct {
	base        int64 // first offset
	end         int64 // offset after the last
	logBytes    int64
	indexBytes  int64
	link        uint32 // chain up to the last batch
	maxTime     int64  // largest record timestamp, ms
	firstAppend int64  // append time of the first batch, ns
	lastAppend  int64  // append time of the last batch, ns
	generation  uint32 // in the names of the files: how often compaction has replaced them
}

func (r *segmentInfo) encode(b []byte) []byte {
	b = append(b, rowVersion)
	for _, v := range [...]int64{r.end, r.logBytes, r.indexBytes, r.maxTime, r.firstAppend, r.lastAppend} {
		b = appendI64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, r.link)
	if r.generation > 0 {
		b = binary.BigEndian.AppendUint32(b, r.generation)
	}
	return b
}

func decodeSegment(base int64, v []byte) (segmentInfo, error) {
	f := readRow(v)
	r := segmentInfo{base: base, end: f.i64(), logBytes: f.i64(), indexBytes: f.i64(), maxTime: f.i64(), firstAppend: f.i64(), lastAppend: f.i64(), link: f.u32()}
	if f.ok && len(f.b) > 0 {
		if r.generation = f.u32(); r.generation == 0 {
			f.ok = false // one value, one encoding
		}
	}
	return r, f.end(rowSegment)
}

func (c *compactState) encode(b []byte) []byte {
	b = appendI64(appendI64(append(b, rowVersion), c.end), c.last)
	for _, m := range c.marks {
		b = appendI64(appendI64(appendI64(appendI64(b, m.end), m.first), m.seen), m.count)
	}
	return b
}

func decodeCompact(v []byte) (compactState, error) {
	f := readRow(v)
	c := compactState{end: f.i64(), last: f.i64()}
	for f.ok && len(f.b) > 0 && len(c.marks) < maxTombstoneMarks {
		c.marks = append(c.marks, tombstoneMark{f.i64(), f.i64(), f.i64(), f.i64()})
	}
	return c, f.end(rowCompact)
}

// A mixed run's row is the file's number and one index block.
func appendMixed(b []byte, file uint64, block []byte) []byte {
	return append(appendU64(append(b, rowVersion), file), block...)
}

func decodeMixed(v []byte) (file uint64, block []byte, err error) {
	f := readRow(v)
	file = f.u64()
	if !f.ok {
		return 0, nil, fmt.Errorf("%w: kind %q", errRow, rowMixed)
	}
	return file, f.b, nil
}

// mixedFile is one file of the mixed segment.
type mixedFile struct {
	size int64 // bytes written
	live int64 // bytes of runs that are still needed
}

func (m mixedFile) encode() []byte { return appendI64(appendI64([]byte{rowVersion}, m.size), m.live) }

func decodeMixedFile(v []byte) (mixedFile, error) {
	f := readRow(v)
	m := mixedFile{f.i64(), f.i64()}
	return m, f.end(rowMixedFile)
}

// placedRow says what a round wrote to files of a partition that are not synced before the next checkpoint.
type placedRow struct {
	base     int64 // of the segment
	indexPos int64 // where blocks begin in the index file
	blocks   []byte
}

func (r *placedRow) encode(b []byte) []byte {
	b = appendI64(appendI64(append(b, rowVersion), r.base), r.indexPos)
	return append(b, r.blocks...)
}

func decodePlaced(v []byte) (placedRow, error) {
	f := readRow(v)
	r := placedRow{base: f.i64(), indexPos: f.i64()}
	if !f.ok {
		return r, fmt.Errorf("%w: kind %q", errRow, rowPlaced)
	}
	r.blocks = f.b
	return r, nil
}

// runSz is the size of a run in a runs row, which names the runs that a round wrote to a mixed file that is not synced
// before the next checkpoint. It is one row a round and not one a run: with many partitions the rows are what a round
// costs.
const runSz = partitionSz + 8

func appendRun(b []byte, id PartitionID, base int64) []byte {
	return appendI64(appendPartition(b, id), base)
}

// eachPlacedRun calls f for the runs of a runs row until it fails.
func eachPlacedRun(v []byte, f func(id PartitionID, base int64) error) error {
	r := readRow(v)
	if !r.ok || len(r.b) == 0 || len(r.b)%runSz != 0 {
		return fmt.Errorf("%w: kind %q", errRow, rowRuns)
	}
	for b := r.b; len(b) > 0; b = b[runSz:] {
		if err := f(getPartition(b), getI64(b[partitionSz:])); err != nil {
			return err
		}
	}
	return nil
}

// A producer's row is small, because with many partitions there is about one for each batch: its batches are told as
// differences, which are a byte or two.
func (r *producer) encode(b []byte) []byte {
	b = append(b, rowVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(r.epoch))
	b = appendI64(b, r.seen)
	b = binary.AppendUvarint(b, r.touched)
	b = append(b, byte(r.n))
	before := sequenceRange{last: -1}
	for _, s := range r.batches[:r.n] {
		b = binary.AppendVarint(b, int64(s.first)-int64(before.last)-1)
		b = binary.AppendVarint(b, int64(s.last)-int64(s.first))
		b = binary.AppendVarint(b, s.base-before.end)
		b = binary.AppendVarint(b, s.end-s.base)
		before = s
	}
	return b
}

func decodeProducer(id int64, v []byte) (*producer, error) {
	f := readRow(v)
	r := &producer{id: id, epoch: int16(binary.BigEndian.Uint16(f.take(2))), seen: f.i64(), touched: f.uvarint(), n: int8(f.u8())}
	if r.n < 0 || r.n > ProducerBatches {
		return nil, fmt.Errorf("%w: kind %q", errRow, rowProducer)
	}
	before := sequenceRange{last: -1}
	for i := range r.batches[:r.n] {
		s := sequenceRange{first: f.i32(int64(before.last) + 1)}
		s.last = f.i32(int64(s.first))
		s.base = before.end + f.varint()
		s.end = s.base + f.varint()
		r.batches[i], before = s, s
	}
	return r, f.end(rowProducer)
}

func encodeGroupRow(b []byte, o *GroupOffset) []byte {
	b = appendI64(append(b, rowVersion), o.Offset)
	b = binary.BigEndian.AppendUint32(b, uint32(o.LeaderEpoch))
	b = appendI64(b, o.CommittedAt)
	return append(b, o.Metadata...)
}

func encodeActive(at int64) []byte { return appendI64([]byte{rowVersion}, at) }

func decodeActive(v []byte) (at int64, err error) {
	f := readRow(v)
	at = f.i64()
	return at, f.end(rowActive)
}

func activeKey(group string) []byte {
	return append(append(make([]byte, 0, 1+len(group)), rowActive), group...)
}

func decodeGroupRow(id, v []byte) (GroupOffset, error) {
	f := readRow(v)
	o := GroupOffset{Offset: f.i64(), LeaderEpoch: int32(f.u32()), CommittedAt: f.i64(), Metadata: string(f.b)}
	if !f.ok || len(id) != partitionSz {
		return o, fmt.Errorf("%w: kind %q", errRow, rowGroup)
	}
	o.Partition = getPartition(id)
	return o, nil
}

func (t *TaskState) encode(id TaskID) []byte {
	b := appendU64(appendU64([]byte{rowVersion}, t.Epoch), t.Step)
	if t.Step == 0 {
		return b
	}
	p := t.Progress
	p.Task = id
	return appendProgress(b, &p)
}

func decodeTask(v []byte) (TaskState, error) {
	f := readRow(v)
	t := TaskState{Epoch: f.u64(), Step: f.u64()}
	if f.ok && t.Step > 0 {
		if !validProgress(f.b) {
			return t, fmt.Errorf("%w: kind %q", errRow, rowTask)
		}
		t.Progress = getProgress(append([]byte(nil), f.b...))
		return t, nil
	}
	return t, f.end(rowTask)
}

func (d droppedAt) encode() []byte {
	return appendI64(appendU64([]byte{rowVersion}, d.metaIndex), d.at)
}

func decodeDropped(v []byte) (droppedAt, error) {
	f := readRow(v)
	d := droppedAt{f.u64(), f.i64()}
	return d, f.end(rowDropped)
}
