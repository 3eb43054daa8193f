package window

import (
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// timers find the groups whose end may have come. A group is put where its end lies when it is made; if
// its end has moved on when its timer rings, it is put there again, so that a row that moves an end costs
// nothing. Timers far ahead lie in buckets, those of the buckets that have begun in a heap.
type timers struct {
	width   int64 // of a bucket
	current int64 // buckets up to this one have begun
	buckets map[int64][]state.Pos
	order   alarms // the buckets there are, by number
	near    alarms
	spare   [][]state.Pos
	held    int // timers set
}

// An alarm is a timer in the heap.
type alarm struct {
	at  int64
	pos state.Pos
}

func newTimers(width int64) timers {
	t := timers{width: max(width, 1)}
	t.reset()
	return t
}

func (t *timers) reset() {
	t.current, t.held = operators.MinEventTime, 0
	t.buckets = map[int64][]state.Pos{}
	t.order, t.near = t.order[:0], t.near[:0]
}

// set has pos ring when the watermark reaches at.
func (t *timers) set(at int64, pos state.Pos) {
	t.held++
	n := at / t.width // rounds to zero: the buckets beside it are one
	if n <= t.current {
		t.near.push(alarm{at, pos})
		return
	}
	list, ok := t.buckets[n]
	if !ok {
		t.order.push(alarm{at: n})
		if k := len(t.spare); k > 0 {
			list, t.spare = t.spare[k-1][:0], t.spare[:k-1]
		}
	}
	t.buckets[n] = append(list, pos)
}

// ring takes away the timers that lie at or before w, one after the other. end gives the end of a group as
// it is now, false if there is no such group any more. Timers of groups that end later are set again. f may
// set timers after w.
func (t *timers) ring(w int64, end func(state.Pos) (int64, bool), f func(state.Pos)) {
	for len(t.order) > 0 && t.order[0].at <= w/t.width {
		n := t.order.pop().at
		list := t.buckets[n]
		delete(t.buckets, n)
		t.current = max(t.current, n)
		t.held -= len(list)
		for _, p := range list {
			if at, ok := end(p); ok {
				t.set(at, p)
			}
		}
		if len(t.spare) < maxSpareBuckets {
			t.spare = append(t.spare, list)
		}
	}
	for len(t.near) > 0 && t.near[0].at <= w {
		a := t.near.pop()
		t.held--
		switch at, ok := end(a.pos); {
		case !ok:
		case at > w:
			t.set(at, a.pos)
		default:
			f(a.pos)
		}
	}
}

const maxSpareBuckets = 16

// alarms is a heap, the earliest first.
type alarms []alarm

func (h *alarms) push(a alarm) {
	q := append(*h, a)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if q[up].at <= a.at {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = a
	*h = q
}

func (h *alarms) pop() alarm {
	q := *h
	top, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	*h = q
	if len(q) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(q) {
			break
		}
		if down+1 < len(q) && q[down+1].at < q[down].at {
			down++
		}
		if last.at <= q[down].at {
			break
		}
		q[i] = q[down]
		i = down
	}
	q[i] = last
	return top
}
