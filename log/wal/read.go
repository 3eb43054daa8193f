package wal

import (
	"errors"
	"fmt"
	"io"
)

// Read returns the entry with this index, from memory or from its segment, where its checksum is verified. It runs
// beside Append and does not wait for it. The entry's bytes must not be changed: they may be shared.
//
// Errors: ErrNotFound, a CorruptError, ErrClosed, or the disk's.
func (w *WAL) Read(index uint64) (Entry, error) {
	w.mu.Lock()
	if w.mu.closed {
		w.mu.Unlock()
		return Entry{}, ErrClosed
	}
	seg, l, ok := w.mu.find(index)
	if !ok {
		w.mu.Unlock()
		return Entry{}, ErrNotFound
	}
	if e, ok := w.mu.ring.get(index); ok {
		w.mu.Unlock()
		w.c.cacheHits.Add(1)
		return e, nil
	}
	seg.refs++ // keeps the segment from being recycled under the read
	w.mu.Unlock()

	e, err := readEntry(seg, index, l)
	w.c.cacheMisses.Add(1)
	w.c.readBytes.Add(int64(l.size))

	w.mu.Lock()
	w.unref(seg)
	closed := w.mu.closed
	w.mu.Unlock()
	if err != nil && closed {
		err = ErrClosed
	}
	return e, err
}

func readEntry(seg *segment, index uint64, l loc) (Entry, error) {
	b := make([]byte, l.size)
	n, err := seg.file.ReadAt(b, int64(l.pos))
	if n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Entry{}, fmt.Errorf("wal: read entry %d: %w", index, err)
	}
	e, bad := verifyEntry(b)
	if bad == "" && e.Index != index {
		bad = fmt.Sprintf("holds entry %d instead of %d", e.Index, index)
	}
	if bad != "" {
		return Entry{}, &CorruptError{Segment: seg.seq, Position: int64(l.pos), Reason: bad}
	}
	return e, nil
}
