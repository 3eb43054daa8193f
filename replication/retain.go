package replication

import (
	"context"
	"math"
	"time"

	"github.com/headrace/headrace/log"
)

// Retention moves log starts by logged operations. The store says what the settings of the partitions allow; this file
// holds that against what consumers still need:
//
//   - tasks of pipelines, from the progress in the store, and what SetRetentionFloor adds: those that have not begun;
//   - consumer groups, of topics whose settings say so: their committed offsets.
//
// The caps of a topic bound that. What a cap takes from a task is counted, logged and told to NodeOptions.RetentionCut.

// A RetentionCut is a range of records that a cap let retention take although a task had yet to read it.
type RetentionCut struct {
	Partition log.PartitionID
	Task      log.TaskID
	From, To  int64 // offsets From to To-1 are gone
}

// RetentionMetrics are counters since the node was opened.
type RetentionMetrics struct {
	Raised      int64 // log starts raised
	CutRecords  int64 // offsets that a cap took although a task had yet to read them
	HeldRecords int64 // offsets that the last pass would have dropped and consumers need
}

// retention proposes the log starts that the store's retention asks for, now and then and when settings have changed.
func (n *Node) retention() {
	tick := time.NewTicker(n.o.RetentionEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.retain:
		case <-tick.C:
		}
		if _, ok := n.data.Leader(); !ok {
			continue
		}
		n.retainPass()
	}
}

// retainPass looks at all partitions, some at a time.
func (n *Node) retainPass() {
	held := int64(0)
	for from := 0; ; {
		if from = n.proposeLogStarts(from, &held); from == 0 || n.ctx.Err() != nil {
			break
		}
	}
	n.retained.held.Store(held)
}

// retainSoon has retention look without waiting for its time.
func (n *Node) retainSoon() {
	select {
	case n.retain <- struct{}{}:
	default:
	}
}

// maxLogStarts bounds the log starts in one unit: 64 KiB.
const maxLogStarts = 1500

// proposeLogStarts proposes what the store would let go of from a place on and nobody needs, one unit for all, and adds to
// held what somebody does need. It waits for the answer and returns where to go on, 0 at the end.
func (n *Node) proposeLogStarts(from int, held *int64) (next int) {
	candidates, next, err := n.store.NextRetention(n.o.Now().UnixMilli(), from, maxLogStarts)
	if err != nil {
		n.o.Logger.Warn("retention", "error", err)
		return 0
	}
	if len(candidates) == 0 {
		return next
	}
	kept := map[log.PartitionID]bool{}
	for _, c := range candidates {
		if p, ok := n.store.Partition(c.Partition); ok && p.Settings().KeepForGroups {
			kept[c.Partition] = true
		}
	}
	needs, err := n.needs(kept)
	if err != nil {
		n.o.Logger.Warn("retention", "error", err)
		return 0
	}
	u, raised := new(log.Unit), int64(0)
	var cuts []RetentionCut
	for _, c := range candidates {
		p, ok := n.store.Partition(c.Partition)
		if !ok {
			continue
		}
		start := p.LogStart()
		to := needs.allow(c, p.Settings())
		*held += c.Offset - max(to, start)
		if to <= start {
			continue
		}
		u.LogStart(c.Partition, to)
		raised++
		for _, t := range needs.tasks[c.Partition] {
			if t.offset < to {
				cuts = append(cuts, RetentionCut{Partition: c.Partition, Task: t.task, From: max(t.offset, start), To: to})
			}
		}
	}
	if u.Empty() {
		return next
	}
	ctx, cancel := context.WithTimeout(n.ctx, 10*time.Second)
	defer cancel()
	if r := n.data.Do(ctx, u); r.Err != nil {
		if n.ctx.Err() == nil {
			n.o.Logger.Debug("log starts", "error", r.Err)
		}
		return 0 // the rest comes next time
	}
	n.retained.raised.Add(raised)
	for _, c := range cuts {
		n.retained.cut.Add(c.To - c.From)
		n.o.Logger.Warn("a cap of retention took records that a pipeline had yet to read",
			"partition", c.Partition.String(), "task", c.Task.String(), "from", c.From, "to", c.To)
		if f := n.o.RetentionCut; f != nil {
			f(c)
		}
	}
	return next
}

// taskNeed is the first offset that a task has yet to read.
type taskNeed struct {
	task   log.TaskID
	offset int64
}

// needs is what consumers need of the partitions of one pass.
type needs struct {
	tasks  map[log.PartitionID][]taskNeed
	floor  map[log.PartitionID]int64 // of pipelines that have not begun
	groups map[log.PartitionID]int64 // the lowest committed offset
}

// needs collects what consumers need. kept are the partitions that are kept for groups.
func (n *Node) needs(kept map[log.PartitionID]bool) (needs, error) {
	x := needs{tasks: map[log.PartitionID][]taskNeed{}}
	for _, id := range n.store.Tasks() {
		t, ok := n.store.Task(id)
		if !ok {
			continue
		}
		for _, c := range t.Progress.To {
			x.tasks[c.Partition] = append(x.tasks[c.Partition], taskNeed{id, c.Offset})
		}
	}
	if f := n.floor.Load(); f != nil {
		x.floor = (*f)()
	}
	if len(kept) == 0 {
		return x, nil
	}
	x.groups = map[log.PartitionID]int64{}
	source := func(t log.TopicID) log.TopicID { return t }
	if f := n.sources.Load(); f != nil {
		source = *f
	}
	err := n.store.EachGroupOffset(func(_ string, o log.GroupOffset) {
		id := o.Partition
		if id.Topic = source(id.Topic); !kept[id] {
			return
		}
		if at, ok := x.groups[id]; !ok || o.Offset < at {
			x.groups[id] = o.Offset
		}
	})
	return x, err
}

// allow is how far the log start of a candidate may go. A pure decision.
func (x *needs) allow(c log.LogStart, set log.PartitionSettings) int64 {
	floor := int64(math.MaxInt64)
	if !set.IgnorePipelines {
		for _, t := range x.tasks[c.Partition] {
			floor = min(floor, t.offset)
		}
		if at, ok := x.floor[c.Partition]; ok {
			floor = min(floor, at)
		}
	}
	if at, ok := x.groups[c.Partition]; ok && set.KeepForGroups {
		floor = min(floor, at)
	}
	return min(c.Offset, max(floor, c.Cap))
}

// SetRetentionFloor makes retention keep, besides what the store's tasks have yet to read, the records from floor's answer
// on. It is asked at most once a pass, by the node's own goroutine, and must not block.
func (n *Node) SetRetentionFloor(floor func() map[log.PartitionID]int64) { n.floor.Store(&floor) }

// SetGroupSource tells retention which topic holds the records of one that groups commit offsets for: of a view its source,
// of others themselves. It must not block.
func (n *Node) SetGroupSource(source func(log.TopicID) log.TopicID) { n.sources.Store(&source) }

// Retention returns the counters of retention.
func (n *Node) Retention() RetentionMetrics {
	return RetentionMetrics{Raised: n.retained.raised.Load(), CutRecords: n.retained.cut.Load(), HeldRecords: n.retained.held.Load()}
}

// A RetentionPreview is about what settings would delete now.
type RetentionPreview struct {
	Records int64 `json:"records"` // offsets
	Bytes   int64 `json:"bytes"`
	Held    int64 `json:"held"` // offsets that would go too if no consumer needed them
}

// PreviewRetention tells what other settings would delete of a topic's partitions. Records that are not in files yet do
// not count. It may read from the disk.
func (n *Node) PreviewRetention(t *Topic, set log.PartitionSettings) (out RetentionPreview, err error) {
	now := n.o.Now().UnixMilli()
	var candidates []log.LogStart
	kept := map[log.PartitionID]bool{}
	for i := range t.Partitions {
		c, err := n.store.RetentionUnder(log.PartitionID{Topic: t.ID, Index: i}, set, now)
		if err != nil {
			return out, err
		}
		candidates = append(candidates, c)
		if set.KeepForGroups {
			kept[c.Partition] = true
		}
	}
	needs, err := n.needs(kept)
	if err != nil {
		return out, err
	}
	for _, c := range candidates {
		p, ok := n.store.Partition(c.Partition)
		if !ok {
			continue
		}
		start := p.LogStart()
		to := max(needs.allow(c, set), start)
		out.Records += to - start
		out.Held += c.Offset - to
		if to > start {
			out.Bytes += p.BytesBelow(to)
		}
	}
	return out, nil
}
