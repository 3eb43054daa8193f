package runtime

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
)

// An idler is where a task waits while its sources have nothing new. Time passes there: quiet output
// partitions get their time marks, and idle source partitions get marks that let the watermark go on.
type idler struct {
	l      *life
	looked int64   // when markSources last looked, ns
	quiet  []int64 // since when a partition has been without news, ns
	ends   []int64 // log end then
}

func newIdler(l *life) *idler {
	d := &idler{l: l, quiet: make([]int64, len(l.parts)), ends: make([]int64, len(l.parts)), looked: math.MinInt64}
	for i, p := range l.parts {
		d.ends[i], d.quiet[i] = p.LogEnd(), l.opts.Now().UnixNano()
	}
	return d
}

// period is how often idle source partitions are looked for, 0 if never.
func (d *idler) period() time.Duration {
	if idle := d.l.pl.Source.Time.Idle; idle > 0 && !d.l.pl.Source.Derived {
		return max(idle/4, time.Millisecond)
	}
	return 0
}

// tick is how often a waiting task looks at the time, when it has a reason to.
func (d *idler) tick() time.Duration {
	tick := time.Duration(math.MaxInt64)
	if d.l.chain.w != operators.MinEventTime {
		for _, m := range d.l.marked {
			if m < d.l.chain.w {
				tick = markEvery
			}
		}
	}
	if _, rows := d.l.chain.stateSize(); d.l.chain.onAppend && rows > 0 {
		tick = markEvery
	}
	if p := d.period(); p > 0 {
		tick = min(tick, max(p, 10*time.Millisecond))
	}
	return tick
}

// idle waits for new records, for an answer to a step, for time to pass, or for the end of ctx.
func (d *idler) idle(ctx context.Context) error {
	l := d.l
	w := l.store.NewWaiter()
	defer w.Cancel()
	for i, p := range l.parts {
		if w.Watch(p, l.inputs.parts[i].read) { // there is something already
			return nil
		}
	}
	if l.tables != nil && (l.tables.watch(w) || l.ahead()) {
		return nil
	}
	var timer <-chan time.Time
	if tick := d.tick(); tick < math.MaxInt64 {
		t := time.NewTimer(tick)
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-w.C():
	case r := <-l.results:
		return l.answered(r)
	case <-timer:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// markSources appends time marks to source partitions that have been idle. A mark is data: it is
// written once and a replay reads it. One task per topic writes them.
//
// The mark of a partition with rows is its largest event time, plus the time since its last row was
// appended, minus the delay. A partition that never had a row gets the smallest watermark of the others.
func (d *idler) markSources(ctx context.Context) error {
	l := d.l
	period := d.period()
	if period == 0 {
		return nil
	}
	now := l.opts.Now().UnixNano()
	if d.looked != math.MinInt64 && now-d.looked < int64(period) && now >= d.looked {
		return nil
	}
	d.looked = now
	if by, _ := l.markers.LoadOrStore(l.source[0].Topic, l.id); by != l.id {
		return nil
	}
	idle := make([]bool, len(l.parts))
	marks := make([]operators.EventTime, len(l.parts)) // W_p after this round
	for i, p := range l.inputs.parts {
		in := &l.chain.inputs[i]
		marks[i] = in.watermark
		end, since := p.part.LogEnd(), in.appended // known exactly, if there was a row
		if p.read < end || len(p.pending) > 0 {
			d.ends[i], d.quiet[i] = end, now
			continue
		}
		if since == operators.MinEventTime {
			if end != d.ends[i] {
				d.ends[i], d.quiet[i] = end, now
			}
			since = d.quiet[i]
		}
		if now-since < int64(l.pl.Source.Time.Idle) || in.watermark == operators.MaxEventTime {
			continue
		}
		idle[i] = true
		marks[i] = max(marks[i], d.markOf(i, now))
	}
	least := operators.MaxEventTime // of the partitions with rows
	for i, m := range marks {
		if l.chain.inputs[i].maxTime != operators.MinEventTime {
			least = min(least, m)
		}
	}
	var u log.Unit
	for i, m := range marks {
		in, worth := &l.chain.inputs[i], int64(l.pl.Source.Time.Idle)/2 // a mark for less would only fill the log
		if in.maxTime == operators.MinEventTime {
			m, worth = least, 0
		}
		if idle[i] && m > in.watermark && m != operators.MaxEventTime && minus(m, worth) >= in.watermark {
			u.Append(l.source[i], record.TimeMark(m, max(0, now/1e6)))
		}
	}
	if u.Empty() {
		return nil
	}
	if r := l.shard.Do(ctx, &u); r.Outcome == replication.No && ctx.Err() == nil {
		return fmt.Errorf("%w: mark idle partitions of %s: %w", errRebuild, l.pl.Source.Name, resultError(r))
	}
	return nil
}

// markOf is the time mark for an idle partition that had rows, MinEventTime for none.
func (d *idler) markOf(i int, now int64) operators.EventTime {
	in, spec := &d.l.chain.inputs[i], d.l.pl.Source.Time
	passed := now - in.appended
	if in.maxTime == operators.MinEventTime || passed < 0 || in.maxTime > operators.MaxEventTime-passed {
		return operators.MinEventTime
	}
	delay := spec.Delay
	if delay == 0 {
		delay = spec.Lag
	}
	return minus(in.maxTime+passed, int64(delay))
}
