package runtime

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"math"

	"github.com/headrace/headrace/operators"
)

// Rows that change partition without a window.
//
// When a stateless pipeline re-keys its rows, rows of several source partitions meet in one derived
// partition, and the order in which they arrived there would depend on how the sources interleaved. A
// releaser makes the order a function of the data: each row gets a release time
//
//	r = max(event time, W_p before the row)
//
// and leaves, in the order (r, source partition, source offset, place among the rows of the offset), once the pipeline's watermark W is
// above r. No row with a smaller place can come later: W is the minimum of the W_p, and a later row of
// partition p has r >= W_p >= W. Held rows are keyed state, so a restart keeps them. After a declared end
// nothing says when a partition has given all, so rows that come later leave as they come.
type releaser struct {
	rows    heldRows
	added   []heldRow // since the last changes
	removed []heldRow
	bytes   int64
	changed int // bytes of the changes, about
}

// A heldRow is an encoded output record that waits.
type heldRow struct {
	at        int64 // r
	source    int32
	offset    int64
	place     uint32 // among the rows that an explode made of one record
	partition int32  // derived partition
	time      int64  // event time, ns
	late      bool
	lateness  int64 // W_p, when late
	key       []byte
	value     []byte
}

func (a *heldRow) before(b *heldRow) bool {
	switch {
	case a.at != b.at:
		return a.at < b.at
	case a.source != b.source:
		return a.source < b.source
	case a.offset != b.offset:
		return a.offset < b.offset
	}
	return a.place < b.place
}

type heldRows []heldRow

func (h heldRows) Len() int           { return len(h) }
func (h heldRows) Less(i, j int) bool { return h[i].before(&h[j]) }
func (h heldRows) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heldRows) Push(x any)        { *h = append(*h, x.(heldRow)) }
func (h *heldRows) Pop() any {
	old := *h
	n := len(old) - 1
	x := old[n]
	old[n] = heldRow{}
	*h = old[:n]
	return x
}

// hold takes a row. It keeps key and value.
func (r *releaser) hold(row heldRow) {
	heap.Push(&r.rows, row)
	r.added = append(r.added, row)
	r.bytes += row.size()
	r.changed += int(row.size())
}

func (h *heldRow) size() int64 { return int64(len(h.key)+len(h.value)) + 96 }

// release gives the rows below w away in order, until give answers false.
func (r *releaser) release(w operators.EventTime, give func(*heldRow) bool) {
	for len(r.rows) > 0 && (r.rows[0].at < w || w == operators.MaxEventTime) {
		row := heap.Pop(&r.rows).(heldRow)
		r.removed = append(r.removed, row)
		r.bytes -= row.size()
		r.changed += 64
		if !give(&row) {
			return
		}
	}
}

// ready says whether a row could leave at w.
func (r *releaser) ready(w operators.EventTime) bool {
	return len(r.rows) > 0 && (r.rows[0].at < w || w == operators.MaxEventTime)
}

// changes writes what changed since the last call as keyed state. A row that came and went inside one
// step leaves no trace.
func (r *releaser) changes(put func(key, value []byte)) {
	gone := make(map[heldPlace]bool, len(r.removed))
	for i := range r.removed {
		gone[r.removed[i].heldPlace()] = true
	}
	fresh := make(map[heldPlace]bool, len(r.added))
	var key []byte
	for i := range r.added {
		k := r.added[i].heldPlace()
		fresh[k] = true
		if !gone[k] {
			key = k.stateKey(key[:0])
			put(key, r.added[i].stateValue())
		}
	}
	for i := range r.removed {
		k := r.removed[i].heldPlace()
		if !fresh[k] {
			key = k.stateKey(key[:0])
			put(key, nil)
		}
	}
	clear(r.added)
	clear(r.removed)
	r.added, r.removed, r.changed = r.added[:0], r.removed[:0], 0
}

// A heldPlace names a held row.
type heldPlace struct {
	at, offset int64
	source     int32
	place      uint32
}

func (h *heldRow) heldPlace() heldPlace { return heldPlace{h.at, h.offset, h.source, h.place} }

// stateKey sorts like before: 8 bytes r with the sign flipped, 4 bytes partition, 8 bytes offset, and 4
// bytes place unless it is the first, all big-endian.
func (h heldPlace) stateKey(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.at)^(1<<63))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.source))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.offset))
	if h.place > 0 {
		dst = binary.BigEndian.AppendUint32(dst, h.place)
	}
	return dst
}

const (
	heldVersion = 1
	heldLate    = 1
	heldKey     = 2
	heldValue   = 4
)

// stateValue is: version, flags, varint partition, varint event time, varint W_p, uvarint length and
// bytes of key and value.
func (h *heldRow) stateValue() []byte {
	var flags byte
	if h.late {
		flags |= heldLate
	}
	if h.key != nil {
		flags |= heldKey
	}
	if h.value != nil {
		flags |= heldValue
	}
	b := make([]byte, 0, len(h.key)+len(h.value)+40)
	b = append(b, heldVersion, flags)
	b = binary.AppendVarint(b, int64(h.partition))
	b = binary.AppendVarint(b, h.time)
	b = binary.AppendVarint(b, h.lateness)
	b = append(binary.AppendUvarint(b, uint64(len(h.key))), h.key...)
	return append(binary.AppendUvarint(b, uint64(len(h.value))), h.value...)
}

var errHeldRow = errors.New("runtime: malformed held row in the state of a pipeline")

// restore gives back a row that changes once put.
func (r *releaser) restore(key, value []byte) error {
	if len(key) != 20 && len(key) != 24 || len(value) < 2 || value[0] != heldVersion {
		return errHeldRow
	}
	row := heldRow{
		at:     int64(binary.BigEndian.Uint64(key[0:]) ^ (1 << 63)),
		source: int32(binary.BigEndian.Uint32(key[8:])),
		offset: int64(binary.BigEndian.Uint64(key[12:])),
		late:   value[1]&heldLate != 0,
	}
	if len(key) == 24 {
		row.place = binary.BigEndian.Uint32(key[20:])
	}
	flags, b := value[1], value[2:]
	var partition int64
	for _, to := range []*int64{&partition, &row.time, &row.lateness} {
		v, n := binary.Varint(b)
		if n <= 0 {
			return errHeldRow
		}
		*to, b = v, b[n:]
	}
	if partition < 0 || partition > math.MaxInt32 {
		return errHeldRow
	}
	row.partition = int32(partition)
	for _, to := range []*[]byte{&row.key, &row.value} {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(len(b)-n) {
			return errHeldRow
		}
		*to = append([]byte{}, b[n:n+int(v)]...)
		b = b[n+int(v):]
	}
	if len(b) != 0 {
		return errHeldRow
	}
	if flags&heldKey == 0 {
		row.key = nil
	}
	if flags&heldValue == 0 {
		row.value = nil
	}
	heap.Push(&r.rows, row)
	r.bytes += row.size()
	return nil
}
