package rows

import (
	"container/heap"
	"fmt"

	"github.com/headrace/headrace/operators"
)

// A Buffer holds rows until the watermark has passed them and gives them away in the order (r, partition,
// offset, place in the record), where r is the event time of a row, or W_p if the row is behind. No row
// with a smaller place can come later: the watermark W is the minimum of the W_p, and a later row of
// partition p has r >= W_p >= W. So the order depends on the rows of each partition alone, whatever the
// batches, steps and restarts. With a single partition rows with r = W can leave, too: what comes later
// has a larger offset.
//
// After a declared end nothing says when a partition has given all, so rows that come later leave as they
// come.
type Buffer struct {
	shape   *Shape
	single  bool
	rows    held
	changes ChangeSet
}

type held []*Row

func (h held) Len() int { return len(h) }
func (h held) Less(i, j int) bool {
	x, y := h[i].Place, h[j].Place
	x.Time, y.Time = h[i].At(), h[j].At()
	return x.Compare(y) < 0
}
func (h held) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *held) Push(x any)   { *h = append(*h, x.(*Row)) }
func (h *held) Pop() any {
	old := *h
	n := len(old) - 1
	x := old[n]
	old[n] = nil
	*h = old[:n]
	return x
}

// NewBuffer makes an empty buffer. single says that all rows come from one partition.
func NewBuffer(s *Shape, single bool) *Buffer { return &Buffer{shape: s, single: single} }

// HeldRow is the first byte of the state keys of held rows.
const HeldRow = 'h'

// Hold takes a row.
func (b *Buffer) Hold(r *Row) {
	p := r.Place
	p.Time = r.At()
	r.Key = p.Append(append(make([]byte, 0, 1+PlaceBytes), HeldRow))
	b.changes.Add(&r.Kept)
	heap.Push(&b.rows, r)
}

// Restore gives back a row that Flush once gave. Errors: ErrState.
func (b *Buffer) Restore(key, value []byte) (*Row, error) {
	if len(key) != 1+PlaceBytes || key[0] != HeldRow {
		return nil, fmt.Errorf("%w: key of a held row", ErrState)
	}
	r, err := b.shape.Restore(key, value)
	if err != nil {
		return nil, err
	}
	b.changes.Restored(&r.Kept)
	heap.Push(&b.rows, r)
	return r, nil
}

// Ready says whether a row can leave at watermark w.
func (b *Buffer) Ready(w operators.EventTime) bool {
	if len(b.rows) == 0 {
		return false
	}
	at := b.rows[0].At()
	return at < w || b.single && at == w || w == operators.MaxEventTime
}

// Next takes the next row that can leave at watermark w; nil: there is none.
func (b *Buffer) Next(w operators.EventTime) *Row {
	if !b.Ready(w) {
		return nil
	}
	r := heap.Pop(&b.rows).(*Row)
	b.changes.Remove(&r.Kept)
	return r
}

// Len is the number of rows held.
func (b *Buffer) Len() int { return len(b.rows) }

// Changed is about how many rows the next Flush gives.
func (b *Buffer) Changed() int { return b.changes.Changed() }

// Bytes is the memory of the rows held, roughly.
func (b *Buffer) Bytes() int64 { return b.changes.Bytes() }

// Flush gives what changed since the last call, in key order, and forgets it.
func (b *Buffer) Flush(put func(key, value []byte)) { b.changes.Flush(put) }
