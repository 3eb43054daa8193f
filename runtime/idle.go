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
	quiet  []int64 // since when a partition has been without news, ns; 0: it has news
	ends   []int64 // log end then
}

func newIdler(l *life) *idler {
	return &idler{l: l, quiet: make([]int64, len(l.parts)), ends: make([]int64, len(l.parts)), looked: math.MinInt64}
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
	var u log.Unit
	for i, p := range l.inputs.parts {
		end := p.part.LogEnd()
		if end != d.ends[i] || p.read < end || len(p.pending) > 0 || d.quiet[i] == 0 {
			d.ends[i], d.quiet[i] = end, now
			continue
		}
		in := &l.chain.inputs[i]
		since := d.quiet[i]
		if in.appended != operators.MinEventTime {
			since = max(in.appended, 0) // known exactly
		}
		if now-since < int64(l.pl.Source.Time.Idle) || in.watermark == operators.MaxEventTime {
			continue
		}
		mark := d.markOf(i, now)
		if mark > in.watermark && mark != operators.MaxEventTime {
			u.Append(l.source[i], record.TimeMark(mark, max(0, now/1e6)))
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

// markOf is the time mark for an idle partition, MinEventTime for none.
func (d *idler) markOf(i int, now int64) operators.EventTime {
	inputs, spec := d.l.chain.inputs, d.l.pl.Source.Time
	in := &inputs[i]
	if in.maxTime != operators.MinEventTime {
		delay := spec.Delay
		if delay == 0 {
			delay = spec.Lag
		}
		passed := now - in.appended
		if passed < 0 || in.maxTime > operators.MaxEventTime-passed {
			return operators.MinEventTime
		}
		return minus(in.maxTime+passed, int64(delay))
	}
	mark := operators.MaxEventTime
	for k := range inputs {
		if inputs[k].maxTime != operators.MinEventTime {
			mark = min(mark, inputs[k].watermark)
		}
	}
	if mark == operators.MaxEventTime {
		return operators.MinEventTime
	}
	return mark
}
