package replication

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headrace/headrace/log"
)

// retryPlacement is how long the placer waits before it tries again what the data shard did not take.
const retryPlacement = 50 * time.Millisecond

// place carries topics from the metadata into the data shard: it opens partitions that are missing there,
// passes changed settings on and drops what was deleted. Every operation carries the metadata index of its
// decision and may be repeated. At start all topics and tombstones are looked at, which heals a crash in
// between. first is closed when all of these are placed.
//
// A partition of the store that the catalogue does not know is left alone: only a tombstone deletes data.
func (n *Node) place(first chan struct{}) {
	work := n.machine.takeWork()
	for {
		retry := n.placeAll(latest(work))
		if len(retry) == 0 && first != nil {
			close(first)
			first = nil
		}
		var again <-chan time.Time
		if len(retry) > 0 {
			again = time.After(retryPlacement)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-n.machine.mu.waked:
		case <-again:
		}
		work = append(retry, n.machine.takeWork()...)
	}
}

// latest leaves only the last word on every topic: of a topic that was created and deleted in one go, only the
// deletion may reach the data shard.
func latest(work []placement) []placement {
	last := make(map[log.TopicID]int, len(work))
	id := func(p placement) log.TopicID {
		if p.topic != nil {
			return p.topic.ID
		}
		return p.dropped.ID
	}
	for i, p := range work {
		if j, ok := last[id(p)]; ok {
			if work[j].dropped != nil {
				continue
			}
			work[i].unsure = p.unsure || work[j].unsure
		}
		last[id(p)] = i
	}
	out := work[:0]
	for i, p := range work {
		if last[id(p)] == i {
			out = append(out, p)
		}
	}
	return out
}

// placeAll places work and returns what has to be tried again.
func (n *Node) placeAll(work []placement) (retry []placement) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var opened []*Topic
	var dropped []log.TopicID
	finished := func(p placement, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !ok:
			p.unsure = true
			retry = append(retry, p)
		case p.topic != nil:
			opened = append(opened, p.topic)
		default:
			dropped = append(dropped, p.dropped.ID)
		}
	}
	for _, p := range work {
		u := n.placementUnit(p)
		if u.Empty() {
			finished(p, true)
			continue
		}
		wg.Add(1)
		err := n.data.ProposeWait(n.ctx, u, func(r Result) {
			if r.Outcome == No {
				n.o.Logger.Debug("placement refused", "error", r.Err)
			}
			finished(p, r.Outcome == Yes)
			wg.Done()
		})
		if err != nil {
			finished(p, false)
			wg.Done()
		}
	}
	wg.Wait()
	if len(opened) > 0 {
		n.machine.opened(opened)
		n.retainSoon()
	}
	if len(dropped) > 0 {
		n.purge(dropped)
	}
	return retry
}

// placementUnit returns the operations that the store still needs for p.
func (n *Node) placementUnit(p placement) *log.Unit {
	u := new(log.Unit)
	if x := p.dropped; x != nil {
		for i := range x.Partitions {
			id := log.PartitionID{Topic: x.ID, Index: i}
			if _, ok := n.store.Partition(id); ok {
				u.PartitionDrop(id, x.Index)
			}
		}
		return u
	}
	t := p.topic
	for i := range t.Partitions {
		id := log.PartitionID{Topic: t.ID, Index: i}
		switch part, ok := n.store.Partition(id); {
		case !ok:
			u.PartitionOpen(id, t.Settings, t.Index)
		case p.unsure || part.Settings() != t.Settings:
			u.PartitionSettings(id, t.Settings, t.Index)
		}
	}
	return u
}

// maxPurge bounds the tombstones in one command.
const maxPurge = 1000

// purge takes tombstones out of the catalogue whose partitions are dropped. What fails is tried again at the
// next start.
func (n *Node) purge(ids []log.TopicID) {
	for len(ids) > 0 {
		k := min(len(ids), maxPurge)
		ctx, cancel := context.WithTimeout(n.ctx, 10*time.Second)
		_, err := n.metadata.do(ctx, cmdPurge, purge{IDs: ids[:k]})
		cancel()
		if err != nil {
			if n.ctx.Err() == nil && !errors.Is(err, ErrFailed) {
				n.o.Logger.Warn("tombstones stay until the next start", "error", err)
			}
			return
		}
		ids = ids[k:]
	}
}
