package window

import (
	"math"
	"slices"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A pair is a row in one of its windows.
type pair struct {
	start int64
	row   int32
}

// ends says whether a span that ends at end has ended at watermark w. Every span is half-open, so this
// is the one test.
func ends(end, w int64) bool { return end <= w }

// judge sorts the rows of b: into a.rows if some window takes them, into a.late if none is open any
// more, into a.errs if their windows lie beyond the range of times.
func (a *Aggregate) judge(b *operators.Batch) {
	a.rows, a.late, a.errs = a.rows[:0], a.late[:0], a.errs[:0]
	if a.o.Unwindowed {
		for i, ts := range b.Time[:b.Rows] {
			if a.o.TTL > 0 && b.Behind != nil && ts < math.MaxInt64-int64(a.o.TTL) && ends(ts+int64(a.o.TTL), b.Behind[i]) {
				a.late = append(a.late, i)
				continue
			}
			a.rows = append(a.rows, int32(i))
		}
		return
	}
	reach := 2 * (a.size + int64(a.o.Accept))
	low, high := operators.MinEventTime+reach, operators.MaxEventTime-reach
	times := a.times(b)
	a.span = a.spanOf(b, times)
	if !a.span.behind && a.span.lo >= low && a.span.hi <= high { // as nearly always: every row counts
		for len(a.all) < len(times) {
			a.all = append(a.all, int32(len(a.all)))
		}
		a.rows = append(a.rows, a.all[:len(times)]...)
		return
	}
	a.span.lo, a.span.hi = operators.MaxEventTime, operators.MinEventTime // of the rows that count
	for i, ts := range times {
		switch {
		case ts < low || ts > high:
			a.errs = append(a.errs, operators.RowError{Row: i, Code: scalar.CodeTimeRange, Expr: "window"})
		case a.isLate(b, i, ts):
			a.late = append(a.late, i)
		default:
			a.span.lo, a.span.hi = min(a.span.lo, ts), max(a.span.hi, ts)
			a.rows = append(a.rows, int32(i))
		}
	}
}

// A span is the least and the largest time of the rows of a batch, and whether some row is behind.
type span struct {
	lo, hi int64
	behind bool
}

func (a *Aggregate) spanOf(b *operators.Batch, times []int64) span {
	s := span{lo: operators.MaxEventTime, hi: operators.MinEventTime}
	for _, ts := range times {
		s.lo, s.hi = min(s.lo, ts), max(s.hi, ts)
	}
	switch {
	case a.o.OnAppend:
		s.behind = s.lo < a.closed
	case b.Behind != nil:
		behind := b.Behind[:len(times)]
		for i, ts := range times {
			if ts < behind[i] {
				s.behind = true
				break
			}
		}
	}
	return s
}

// times are the times by which rows fall into windows.
func (a *Aggregate) times(b *operators.Batch) []int64 {
	if a.shifted != nil {
		return a.shifted
	}
	if a.o.OnAppend && b.AppendTime != nil { // rows that were merged before have none
		return b.AppendTime[:b.Rows]
	}
	return b.Time[:b.Rows]
}

// behind is the watermark by which row i is judged.
func (a *Aggregate) behind(b *operators.Batch, i int) int64 {
	switch {
	case a.o.OnAppend:
		return a.closed
	case b.Behind == nil:
		return operators.MinEventTime
	}
	return b.Behind[i]
}

// isLate says whether even the last window that holds ts had ended before row i came.
func (a *Aggregate) isLate(b *operators.Batch, i int, ts int64) bool {
	w := a.behind(b, i)
	return ts < w && a.over(a.lastStart(ts), w)
}

// lastStart is the start of the last window that holds ts.
func (a *Aggregate) lastStart(ts int64) int64 {
	if a.o.Calendar != nil {
		start, _ := a.o.Calendar.Span(ts)
		return start
	}
	return scalar.FloorDiv(ts, a.every) * a.every
}

// endOf is the end of the window that starts at start.
func (a *Aggregate) endOf(start int64) int64 {
	if a.o.Calendar != nil {
		_, end := a.o.Calendar.Span(start)
		return end
	}
	return start + a.size
}

// firstStart is the start of the first window that holds ts: the least multiple of every above
// ts - size.
func (a *Aggregate) firstStart(ts int64) int64 {
	if a.o.Calendar != nil {
		return a.lastStart(ts)
	}
	return (scalar.FloorDiv(ts-a.size, a.every) + 1) * a.every
}

// fold adds a.rows to their windows, one window after the other, rows in order within each.
func (a *Aggregate) fold(b *operators.Batch) {
	if len(a.rows) == 0 {
		return
	}
	if a.o.Unwindowed {
		a.foldAll(b)
		return
	}
	times := a.times(b)
	first, last := a.firstStart(a.span.lo), a.lastStart(a.span.hi)
	if first == last && !a.span.behind {
		a.in = append(a.in[:0], a.rows...)
		a.foldInto(b, first)
		return
	}
	perRow := uint64(a.size/a.every) + 1
	if spread := uint64(last-first)/uint64(a.every) + 1; a.o.Calendar == nil && spread <= 4*perRow+4 {
		// Few windows: look through the rows once for each.
		for start := first; start <= last; start += a.every {
			a.in = a.in[:0]
			end := start + a.size
			for _, row := range a.rows {
				if ts := times[row]; start <= ts && ts < end && !a.over(start, a.behind(b, int(row))) {
					a.in = append(a.in, row)
				}
			}
			a.foldInto(b, start)
		}
		return
	}
	// Rows far apart: sort the (window, row) pairs. A bounded part at a time, in row order, so that a
	// window still meets its rows in order.
	const maxPairs = 1 << 18
	a.pairs = a.pairs[:0]
	for _, row := range a.rows {
		ts, w := times[row], a.behind(b, int(row))
		for start := a.firstStart(ts); start <= ts; start += a.every {
			if !a.over(start, w) {
				a.pairs = append(a.pairs, pair{start, row})
			}
		}
		if len(a.pairs) >= maxPairs {
			a.foldPairs(b)
		}
	}
	a.foldPairs(b)
}

func (a *Aggregate) foldPairs(b *operators.Batch) {
	slices.SortStableFunc(a.pairs, func(x, y pair) int {
		switch {
		case x.start < y.start:
			return -1
		case x.start > y.start:
			return 1
		}
		return 0
	})
	for i := 0; i < len(a.pairs); {
		start := a.pairs[i].start
		a.in = a.in[:0]
		for ; i < len(a.pairs) && a.pairs[i].start == start; i++ {
			a.in = append(a.in, a.pairs[i].row)
		}
		a.foldInto(b, start)
	}
	a.pairs = a.pairs[:0]
}

func sortByRow(errs []operators.RowError) {
	slices.SortStableFunc(errs, func(x, y operators.RowError) int { return x.Row - y.Row })
}
