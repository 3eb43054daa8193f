package state

import "slices"

// maxSpare bounds the emptied tables that a set of windows keeps for the next windows.
const maxSpare = 4

// Windows is a set of tables by window start.
type Windows struct {
	cells  int
	starts []int64 // ascending
	tables []*Table
	spare  []*Table
	last   int // index of the window found last
}

// NewWindows makes an empty set whose tables have entries of the given number of cells.
func NewWindows(cells int) *Windows { return &Windows{cells: cells} }

// Get is the table of the window that starts at start; it is made if there is none.
func (w *Windows) Get(start int64) *Table {
	if w.last < len(w.starts) && w.starts[w.last] == start {
		return w.tables[w.last]
	}
	i, ok := slices.BinarySearch(w.starts, start)
	if !ok {
		w.starts = slices.Insert(w.starts, i, start)
		w.tables = slices.Insert(w.tables, i, w.take())
	}
	w.last = i
	return w.tables[i]
}

// Find is the table of a window, or nil.
func (w *Windows) Find(start int64) *Table {
	if i, ok := slices.BinarySearch(w.starts, start); ok {
		return w.tables[i]
	}
	return nil
}

func (w *Windows) take() *Table {
	if n := len(w.spare); n > 0 {
		t := w.spare[n-1]
		w.spare = w.spare[:n-1]
		return t
	}
	return NewTable(w.cells)
}

// Len is the number of windows.
func (w *Windows) Len() int { return len(w.starts) }

// At is the i-th window by start.
func (w *Windows) At(i int) (start int64, t *Table) { return w.starts[i], w.tables[i] }

// Drop forgets the windows for which done holds and recycles their tables.
func (w *Windows) Drop(done func(start int64, t *Table) bool) {
	n := 0
	for i, t := range w.tables {
		if !done(w.starts[i], t) {
			w.starts[n], w.tables[n] = w.starts[i], t
			n++
			continue
		}
		if len(w.spare) < maxSpare {
			t.Clear()
			w.spare = append(w.spare, t)
		}
	}
	clear(w.tables[n:])
	w.starts, w.tables = w.starts[:n], w.tables[:n]
	w.last = 0
}

// Bytes is the memory held, spare tables included.
func (w *Windows) Bytes() int64 {
	n := int64(cap(w.starts)) * 16
	for _, t := range w.tables {
		n += t.Bytes()
	}
	for _, t := range w.spare {
		n += t.Bytes()
	}
	return n
}

// Dirty is about how many entries have changed since their tables' last Changed.
func (w *Windows) Dirty() int {
	n := 0
	for _, t := range w.tables {
		n += t.Dirty()
	}
	return n
}

// Rows is the number of live entries.
func (w *Windows) Rows() int64 {
	n := int64(0)
	for _, t := range w.tables {
		n += int64(t.Len())
	}
	return n
}
