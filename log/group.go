package log

import (
	"maps"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// groups is the committed offsets that Pebble does not hold yet, over those that it does: a changing
// generation and, while a writer round is under way, the one that it writes.
type groups struct {
	mu            sync.Mutex
	cur, flushing generation
	// active is the append time, ns, of the last OpOffsets of every group that has one in the log's memory. Apply decides
	// by it whether a group has expired.
	active map[string]int64
}

// generation is the changes of the groups between two rounds.
type generation struct {
	gone   map[PartitionID]bool // dropped partitions: what was committed for them before is gone
	groups map[string]*groupChange
}

func newGeneration() generation { return generation{groups: map[string]*groupChange{}} }

type groupChange struct {
	dropped bool                        // what was before is gone
	active  int64                       // append time of the last commit, ns; 0: none
	offsets map[PartitionID]GroupOffset // offset -1: deleted
}

func (g generation) change(group string) *groupChange {
	c := g.groups[group]
	if c == nil {
		c = &groupChange{offsets: map[PartitionID]GroupOffset{}}
		g.groups[group] = c
	}
	return c
}

// commit notes what a group commits at now, ns of append time. Without offsets it only says that the group is in use.
func (g *groups) commit(group string, offsets []GroupOffset, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active[group] = now
	c := g.cur.change(group)
	c.active = now
	for _, o := range offsets {
		c.offsets[o.Partition] = o
	}
}

func (g *groups) drop(group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(group)
}

func (g *groups) dropLocked(group string) {
	delete(g.active, group)
	g.cur.groups[group] = &groupChange{dropped: true, offsets: map[PartitionID]GroupOffset{}}
}

// expire drops a group that has not committed anything for longer than idle ns of append time.
func (g *groups) expire(group string, idle, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.active[group]; ok && now-at > idle {
		g.dropLocked(group)
	}
}

// dropPartition forgets what every group has committed for a partition.
func (g *groups) dropPartition(id PartitionID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cur.gone == nil {
		g.cur.gone = map[PartitionID]bool{}
	}
	g.cur.gone[id] = true
	for _, c := range g.cur.groups {
		delete(c.offsets, id)
	}
}

// cut begins a new generation and returns the one to write. The one before was written.
func (g *groups) cut() generation {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flushing, g.cur = g.cur, newGeneration()
	return g.flushing
}

// flushed notes that Pebble holds the generation that was cut.
func (g *groups) flushed() {
	g.mu.Lock()
	g.flushing = generation{}
	g.mu.Unlock()
}

// GroupActive returns the append time, ns since 1970, of a group's last OpOffsets.
func (s *Store) GroupActive(group string) (at int64, ok bool) {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	at, ok = s.groups.active[group]
	return at, ok
}

// IdleGroups returns the groups whose last OpOffsets has an append time before the given one (ns since 1970), sorted.
func (s *Store) IdleGroups(before int64) []string {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	var out []string
	for name, at := range s.groups.active {
		if at < before {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// EachGroupOffset calls f for every committed offset of every group, in no order. It may read from the disk, and holds
// no lock while f runs.
func (s *Store) EachGroupOffset(f func(group string, o GroupOffset)) error {
	return s.use(func() error {
		s.groups.mu.Lock()
		snap := s.db.NewSnapshot()
		layers := []generation{s.groups.flushing.clone(), s.groups.cur.clone()} // older first
		s.groups.mu.Unlock()
		defer snap.Close()
		hidden := func(group string, id PartitionID, from int) bool {
			for _, g := range layers[from:] {
				if c := g.groups[group]; g.gone[id] || c != nil && (c.dropped || hasOffset(c, id)) {
					return true
				}
			}
			return false
		}
		it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte{rowGroup}, UpperBound: []byte{rowGroup + 1}})
		if err != nil {
			return s.kvError(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			name, prefix, err := parseGroupKey(it.Key())
			var o GroupOffset
			if err == nil {
				o, err = decodeGroupRow(it.Key()[len(prefix):], it.Value())
			}
			if err != nil {
				_ = it.Close()
				return s.kvError(err)
			}
			if !hidden(name, o.Partition, 0) {
				f(name, o)
			}
		}
		if err := it.Close(); err != nil {
			return s.kvError(err)
		}
		for i, g := range layers {
			for name, c := range g.groups {
				for id, o := range c.offsets {
					if o.Offset >= 0 && !hidden(name, id, i+1) {
						f(name, o)
					}
				}
			}
		}
		return nil
	})
}

func hasOffset(c *groupChange, id PartitionID) bool {
	_, ok := c.offsets[id]
	return ok
}

func (g generation) clone() generation {
	c := generation{gone: maps.Clone(g.gone), groups: make(map[string]*groupChange, len(g.groups))}
	for name, x := range g.groups {
		y := *x
		y.offsets = maps.Clone(x.offsets)
		c.groups[name] = &y
	}
	return c
}

// GroupOffsets returns what a group has committed, sorted by partition. It may read from the disk.
func (s *Store) GroupOffsets(group string) (out []GroupOffset, err error) {
	err = s.use(func() error {
		out, err = s.groupOffsets(group)
		return err
	})
	return out, err
}

func (s *Store) groupOffsets(group string) ([]GroupOffset, error) {
	type change struct {
		groupChange
		gone map[PartitionID]bool
	}
	// The snapshot is taken while the generations stand still: what they lack, it has.
	s.groups.mu.Lock()
	snap := s.db.NewSnapshot()
	var changes []change
	for _, g := range []generation{s.groups.flushing, s.groups.cur} {
		x := change{gone: maps.Clone(g.gone)}
		if c := g.groups[group]; c != nil {
			x.dropped, x.offsets = c.dropped, maps.Clone(c.offsets)
		}
		changes = append(changes, x)
	}
	s.groups.mu.Unlock()
	defer snap.Close()

	found := map[PartitionID]GroupOffset{}
	prefix := groupKey(group)
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyEnd(prefix)})
	if err != nil {
		return nil, s.kvError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		o, err := decodeGroupRow(it.Key()[len(prefix):], it.Value())
		if err != nil {
			_ = it.Close()
			return nil, s.kvError(err)
		}
		found[o.Partition] = o
	}
	if err := it.Close(); err != nil {
		return nil, s.kvError(err)
	}
	for _, c := range changes {
		if c.dropped {
			clear(found)
		}
		for id := range c.gone {
			delete(found, id)
		}
		maps.Copy(found, c.offsets)
	}
	out := make([]GroupOffset, 0, len(found))
	for _, o := range found {
		if o.Offset >= 0 {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b GroupOffset) int { return a.Partition.Compare(b.Partition) })
	return out, nil
}

// Groups returns the names of the groups that have committed something, sorted. It may read from the disk.
func (s *Store) Groups() (out []string, err error) {
	err = s.use(func() error {
		out, err = s.groupNames()
		return err
	})
	return out, err
}

func (s *Store) groupNames() ([]string, error) {
	names := map[string]bool{}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowGroup}, UpperBound: []byte{rowGroup + 1}})
	if err != nil {
		return nil, s.kvError(err)
	}
	for ok := it.First(); ok; {
		name, prefix, err := parseGroupKey(it.Key())
		if err != nil {
			_ = it.Close()
			return nil, s.kvError(err)
		}
		names[name] = true
		ok = it.SeekGE(keyEnd(prefix))
	}
	if err := it.Close(); err != nil {
		return nil, s.kvError(err)
	}
	s.groups.mu.Lock()
	for _, g := range []generation{s.groups.flushing, s.groups.cur} {
		for name := range g.groups {
			names[name] = true
		}
	}
	s.groups.mu.Unlock()
	var out []string
	for name := range names {
		// A name may stand for offsets that are deleted.
		o, err := s.groupOffsets(name)
		if err != nil {
			return nil, err
		}
		if len(o) > 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}
