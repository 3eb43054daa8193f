package log

// tailBatchOverhead is what a batch in the tail costs beside the bytes of its entry.
const tailBatchOverhead = 120

// cacheItem is one batch of the tail cache. The first item of an entry carries the bytes of the whole entry,
// because a batch keeps its entry in memory.
type cacheItem struct {
	p     *Partition
	index uint64
	bytes int64
}

// tailCache is the order in which batches leave memory: entry by entry, oldest first. Letting go of whole
// entries is what makes the budget honest. It belongs to the Apply goroutine.
type tailCache struct {
	items []cacheItem
	head  int
	bytes int64
}

func (c *tailCache) push(x cacheItem) {
	if c.head > 0 && len(c.items) == cap(c.items) && c.head >= len(c.items)/2 {
		n := copy(c.items, c.items[c.head:])
		clear(c.items[n:])
		c.items, c.head = c.items[:n], 0
	}
	c.items = append(c.items, x)
	c.bytes += x.bytes
}

// trimCache lets go of the oldest entries until the cache is within its budget. A batch that is not in a
// file yet is then read from the log that feeds the store; without such a log it stays.
func (s *Store) trimCache() {
	c := &s.cache
	for c.bytes > s.opts.CacheBytes && c.head < len(c.items) {
		index := c.items[c.head].index
		if index > s.written.Load() {
			s.kick()
			if s.opts.Log == nil {
				return
			}
		}
		// The tails of an entry's batches are seldom in the processor's caches. Touched before the first is locked, they
		// come together.
		touched := int32(0)
		for i := c.head; i < len(c.items) && c.items[i].index == index; i++ {
			if l := c.items[i].p.tail.list.Load(); l != nil {
				if n := int(l.head.Load()); n < len(l.rows) {
					touched += l.rows[n].size
				}
			}
		}
		s.scratch.touched += int64(touched)
		for c.head < len(c.items) && c.items[c.head].index == index {
			x := c.items[c.head]
			c.items[c.head] = cacheItem{}
			c.head++
			c.bytes -= x.bytes
			x.p.tail.evict(index)
		}
		s.metrics.evicted.Add(1)
	}
	s.metrics.cacheBytes.Store(c.bytes)
}
