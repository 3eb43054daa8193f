package log

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// Compaction keeps the latest record of each key of a partition whose topic asks for it. It is local to a replica: the
// shard's log knows nothing of it, and replicas may be at different points.
//
// A pass takes what is in files, from the log start to a border: the log's end in files, or the first batch that is
// younger than MinCompactionLagMs. What lies in the mixed segment moves to a segment file first, and the file that the
// writer would continue is left to it no longer. Then
//
//	keys      the part that no pass has seen is read, and the last offset of each key noted in an offsetMap. When the map
//	          is full, the border is where it got to, and another round follows.
//	segments  every segment below the border is read again, some adjacent small ones together, and written to a new file
//	          without the records that a later one of their key replaces (cleaner). The file is synced.
//	swap      one Pebble batch, under the writer's token, puts the new file in the place of the old ones.
//
// Offsets do not change. A batch that loses nothing is copied byte for byte; one that loses some records is encoded
// again; adjacent ones that lose all become one batch without records, so offsets stay dense for every reader and for the
// index. Readers that look at an old file find the new one when it goes.
//
// A new file has the base offset of the first that it replaces and a generation above: no name is ever used for two
// contents. The old files are removed when the rows that name the new one are durable; until then a crash goes back to
// the old ones, and at the next start whatever file no row names is removed. Placed rows of batches that were compacted
// do not count any more: a segment of a generation above 0 was synced before its row.
//
// A tombstone (null value) stays for DeleteRetentionMs after the first pass that has met it, so that a reader that
// follows learns of the deletion; when that was is kept in Pebble (compactState). Records without key, control batches
// that are not time marks, columns and batches of transactions stay. So does everything in a segment that has rotted: the
// pass stops, says so, and changes nothing from there on.
//
// One pass runs at a time in a store, in the compactor's goroutine or that of who calls Compact. It takes the writer's
// token only to move what is in the mixed segment and to swap.

// Bounds of the compactor.
const (
	// compactInterval is how often the compactor looks for work.
	compactInterval = 15 * time.Second
	// minDirtyBytes is the least that is worth a pass before it has become as old as a segment may.
	minDirtyBytes = 64 << 10
)

// A Compaction is what a pass has done.
type Compaction struct {
	Partition PartitionID
	// End is the offset below which every key has one record now.
	End int64
	// BytesIn and BytesOut are bytes of log: read for rewriting, and written.
	BytesIn, BytesOut int64
	// Rounds is how many times the map of keys was filled.
	Rounds int
	// Keys is the number of keys that had records no pass had seen.
	Keys int64
}

// compactor is the state of compaction; what is in mu is for the metrics.
type compactor struct {
	running chan struct{} // a token: one pass at a time
	states  map[PartitionID]*compactState
	failed  map[PartitionID]int64 // ms since 1970: not tried again before

	// The writer begins a new segment where it would continue this one. It is set under the writer's token.
	sealed atomic.Pointer[sealedSegment]

	read    int64    // bytes since the last pause
	swapped []string // replaced files; they go when the rows that name their successors are durable

	mu struct {
		sync.Mutex
		lastErr string
	}
}

type sealedSegment struct {
	id   PartitionID
	base int64
}

// holds reports that a pass reads a segment that the writer would continue.
func (c *compactor) holds(id PartitionID, base int64) bool {
	x := c.sealed.Load()
	return x != nil && *x == sealedSegment{id, base}
}

// compactRetry is how long a partition whose pass has failed is left alone.
const compactRetry = 5 * time.Minute

// ErrNotCompacted: the partition's settings do not ask for compaction.
var ErrNotCompacted = errors.New("log: not a compacted partition")

// errSwapped: what a pass has read is not there any more.
var errSwapped = errors.New("log: segments changed during compaction")

// runCompactor is the compactor's goroutine.
func (s *Store) runCompactor() {
	defer s.done.Done()
	t := time.NewTicker(compactInterval)
	defer t.Stop()
	for {
		select {
		case <-s.closed:
			return
		case now := <-t.C:
			s.compactDue(now.UnixMilli())
		}
	}
}

// compactDue compacts every partition that is due at now (ms since 1970), the dirtiest first.
func (s *Store) compactDue(now int64) {
	if s.Err() != nil {
		return // the disk is full or gone: the writer goes first
	}
	for _, id := range s.duePartitions(now) {
		_, err := s.compact(context.Background(), id, now, false)
		switch {
		case err == nil:
		case errors.Is(err, ErrClosed), errors.Is(err, ErrPoisoned):
			return
		case errors.Is(err, errSwapped), errors.Is(err, ErrUnknownPartition), errors.Is(err, ErrNotCompacted):
			// Retention, a drop or a change of the settings was faster.
		default:
			s.opts.Logger.Warn("compaction failed", "partition", id.String(), "err", err)
		}
	}
}

// dirt is how much of a partition's bytes no pass has seen.
type dirt struct {
	id          PartitionID
	dirty       int64
	total       int64
	oldest      int64 // append time of the first dirty batch, ms; 0: none
	tombstoneAt int64 // ms; when the next tombstone may go, MaxInt64: none
	last        int64 // ms; last pass
}

// due reports whether a pass is worth its work at now (ms since 1970).
func (d *dirt) due(set *PartitionSettings, now int64) bool {
	age := now - d.oldest
	switch {
	case d.tombstoneAt <= now && now-d.last >= set.deleteRetentionMs()/8:
		return true
	case d.dirty == 0:
		return false
	case set.MaxCompactionLagMs > 0 && age > set.MaxCompactionLagMs:
		return true
	case d.dirty < minDirtyBytes && age <= set.segmentMs():
		return false
	}
	return float64(d.dirty) >= float64(d.total)*float64(set.minDirtyPPM())/1e6
}

// dirtOf measures a partition. Compaction's token held.
func (s *Store) dirtOf(p *Partition, now int64) (d dirt, err error) {
	d = dirt{id: p.id, tombstoneAt: math.MaxInt64}
	l := p.layout.Load()
	if l == nil {
		return d, nil
	}
	st, err := s.compactStateOf(p.id)
	if err != nil {
		return d, err
	}
	set := p.Settings()
	d.last = st.last
	young := now - set.MinCompactionLagMs
	add := func(dirty bool, bytes, append int64) {
		d.total += bytes
		ms := append / int64(time.Millisecond)
		if dirty && (set.MinCompactionLagMs <= 0 || ms <= young) {
			d.dirty += bytes
			if d.oldest == 0 {
				d.oldest = max(1, ms)
			}
		}
	}
	for i := range l.segs {
		seg := &l.segs[i]
		add(seg.end > st.end, seg.logBytes, seg.firstAppend)
	}
	if l.mixRuns > 0 {
		add(l.written > st.end, l.mixBytes, l.mixOldest)
	}
	for _, m := range st.marks {
		if m.end > p.LogStart() {
			d.tombstoneAt = addMs(m.seen, set.deleteRetentionMs())
			break
		}
	}
	return d, nil
}

// addMs is a+b, or the largest time.
func addMs(a, b int64) int64 {
	if b > math.MaxInt64-max(a, 0) {
		return math.MaxInt64
	}
	return a + b
}

// duePartitions are the partitions whose pass is due, the dirtiest first. It also lets go of what it knew of partitions
// that are gone, and counts what is dirty.
func (s *Store) duePartitions(now int64) []PartitionID {
	c := &s.compactor
	select {
	case c.running <- struct{}{}:
	default:
		return nil // somebody else's pass
	}
	defer func() { <-c.running }()
	var due []dirt
	var dirty int64
	seen := make(map[PartitionID]bool)
	for _, p := range s.compacted() {
		id := p.id
		seen[id] = true
		d, err := s.dirtOf(p, now)
		if err != nil {
			s.opts.Logger.Warn("compaction state not read", "partition", id.String(), "err", err)
			continue
		}
		dirty += d.dirty
		if now >= c.failed[id] && d.due(p.settings.Load(), now) {
			due = append(due, d)
		}
	}
	for id := range c.states {
		if !seen[id] {
			delete(c.states, id)
			delete(c.failed, id)
		}
	}
	s.metrics.dirty.Store(dirty)
	slices.SortStableFunc(due, func(a, b dirt) int {
		return cmpRatio(b.dirty, b.total) - cmpRatio(a.dirty, a.total)
	})
	ids := make([]PartitionID, len(due))
	for i := range due {
		ids[i] = due[i].id
	}
	return ids
}

// compacted are the partitions whose settings ask for compaction.
func (s *Store) compacted() (out []*Partition) {
	s.parts.RLock()
	defer s.parts.RUnlock()
	for _, p := range s.parts.m {
		if p.settings.Load().Compact {
			out = append(out, p)
		}
	}
	return out
}

// cmpRatio is a share in thousandths.
func cmpRatio(part, total int64) int { return int(1000 * float64(part) / float64(max(1, total))) }

// Compact compacts one partition now, however dirty it is. What was applied before the call and is in files by then is
// taken, as far as MinCompactionLagMs allows. It works in the caller's goroutine and waits for a pass that is under way.
//
// Errors: ErrUnknownPartition; ErrNotCompacted; *CorruptError if a segment has rotted, which then stays as it is; ErrDegraded, ErrPoisoned
// and ErrClosed; the context's, while waiting.
func (s *Store) Compact(ctx context.Context, id PartitionID) (Compaction, error) {
	return s.compact(ctx, id, time.Now().UnixMilli(), true)
}

func (s *Store) compact(ctx context.Context, id PartitionID, now int64, flush bool) (done Compaction, err error) {
	c := &s.compactor
	select {
	case c.running <- struct{}{}:
	case <-s.closed:
		return done, ErrClosed
	case <-ctx.Done():
		return done, ctx.Err()
	}
	defer func() { <-c.running }()
	if flush {
		if err := s.Flush(ctx); err != nil {
			return done, err
		}
	}
	p, ok := s.Partition(id)
	switch {
	case !ok:
		return done, fmt.Errorf("%w: %s", ErrUnknownPartition, id)
	case !p.settings.Load().Compact:
		return done, fmt.Errorf("%w: %s", ErrNotCompacted, id)
	}
	begun := time.Now()
	err = s.use(func() error {
		done, err = s.pass(ctx, p, now)
		return err
	})
	s.metrics.compactedIn.Add(done.BytesIn)
	s.metrics.compactedOut.Add(done.BytesOut)
	var bad *CorruptError
	switch {
	case err == nil:
		s.metrics.compactions.Add(1)
		s.noteCompaction(nil)
		delete(c.failed, id)
		s.opts.Logger.Debug("partition compacted", "partition", id.String(), "end", done.End, "bytes", done.BytesIn,
			"left", done.BytesOut, "keys", done.Keys, "rounds", done.Rounds, "took", time.Since(begun))
	case errors.Is(err, ErrClosed), errors.Is(err, errSwapped), errors.Is(err, ErrNotCompacted), p.Dropped():
	case errors.As(err, &bad):
		err = s.corrupt(bad)
		fallthrough
	default:
		s.metrics.compactFailed.Add(1)
		c.failed[id] = now + int64(compactRetry/time.Millisecond)
		s.noteCompaction(fmt.Errorf("partition %s: %w", id, err))
	}
	return done, err
}

func (s *Store) noteCompaction(err error) {
	s.compactor.mu.Lock()
	defer s.compactor.mu.Unlock()
	s.compactor.mu.lastErr = ""
	if err != nil {
		s.compactor.mu.lastErr = err.Error()
	}
}

// CompactionError says why the last pass failed, "" if it did not.
func (s *Store) CompactionError() string {
	s.compactor.mu.Lock()
	defer s.compactor.mu.Unlock()
	return s.compactor.mu.lastErr
}

// compactStateOf returns what is known of a partition, from memory or Pebble. Compaction's token held.
func (s *Store) compactStateOf(id PartitionID) (*compactState, error) {
	if st := s.compactor.states[id]; st != nil {
		return st, nil
	}
	st := new(compactState)
	v, closer, err := s.db.Get(partitionKey(rowCompact, id))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
	case err != nil:
		return nil, s.kvError(err)
	default:
		*st, err = decodeCompact(v)
		if err = errors.Join(err, closer.Close()); err != nil {
			return nil, s.kvError(err)
		}
	}
	s.compactor.states[id] = st
	return st, nil
}

// pass runs rounds until everything below the border is compacted.
func (s *Store) pass(ctx context.Context, p *Partition, now int64) (done Compaction, err error) {
	done.Partition = p.id
	set := p.Settings()
	border, err := s.gather(ctx, p, &set, now)
	if err != nil {
		return done, err
	}
	defer s.compactor.sealed.Store(nil)
	for {
		end, err := s.compactRound(ctx, p, &set, border, now, &done)
		if err != nil {
			return done, err
		}
		done.Rounds++
		done.End = end
		p.tail.evictPlaced(end) // or readers would go on to see what is gone while it is in memory
		if end >= border {
			return done, nil
		}
	}
}

// gather moves what lies in the mixed segment to a segment file and takes the last file from the writer. It returns the
// offset below which all is in files of this pass.
func (s *Store) gather(ctx context.Context, p *Partition, set *PartitionSettings, now int64) (border int64, err error) {
	if err := s.lockWriter(ctx); err != nil {
		return 0, err
	}
	defer s.unlockWriter()
	l := p.layout.Load()
	if l == nil || p.Dropped() {
		return 0, nil
	}
	if l.mixRuns > 0 && (set.MinCompactionLagMs <= 0 || l.mixOldest/int64(time.Millisecond) <= now-set.MinCompactionLagMs) {
		if err := s.w.moveOut(p); err != nil {
			return 0, err
		}
		l = p.layout.Load()
	}
	if len(l.segs) == 0 {
		return 0, nil
	}
	last := &l.segs[len(l.segs)-1]
	s.compactor.sealed.Store(&sealedSegment{p.id, last.base})
	return last.end, nil
}

// compactRound fills the map once and rewrites what is below where it got to. It returns that offset.
func (s *Store) compactRound(ctx context.Context, p *Partition, set *PartitionSettings, border, now int64, done *Compaction) (end int64, err error) {
	st, err := s.compactStateOf(p.id)
	if err != nil {
		return 0, err
	}
	l := p.layout.Load()
	if l == nil || len(l.segs) == 0 {
		return border, nil
	}
	start := max(st.end, p.LogStart())
	marks := slices.DeleteFunc(slices.Clone(st.marks), func(m tombstoneMark) bool { return m.end <= p.LogStart() })
	expired := len(marks) > 0 && addMs(marks[0].seen, set.deleteRetentionMs()) <= now
	if start >= border && !expired {
		return border, nil
	}
	keys, end, err := s.mapKeys(p, l, start, border, set, now)
	if err != nil {
		return 0, err
	}
	done.Keys += int64(keys.used)
	end = max(end, start)
	if end <= st.end && !expired {
		return border, nil // all of it is too young
	}
	next := compactState{end: max(end, st.end), last: now, marks: marks}
	for i := range next.marks {
		next.marks[i].count = 0
	}
	fresh := tombstoneMark{end: next.end, first: now, seen: now}
	c := cleaner{latest: keys, fresh: &fresh, end: next.end, gone: now - set.deleteRetentionMs()}
	c.state = &compactState{end: st.end, marks: next.marks}
	groups := compactGroups(l.segs, next.end, s.segmentBytes(*set), groupAge(set))
	for i, group := range groups {
		var last *compactState
		out, err := s.rewrite(p, group, &c, done)
		if err != nil {
			return 0, err
		}
		if i == len(groups)-1 {
			next.addMark(fresh)
			last = &next
		}
		if err := s.swap(ctx, p, group, out, last); err != nil {
			if out != nil {
				out.discard()
			}
			return 0, err
		}
		if err := s.removeSwapped(ctx); err != nil {
			return 0, err
		}
	}
	if end < border && end <= start {
		return border, nil // the rest is too young
	}
	return end, nil
}

// mapKeys notes the last offset of each key in [from, border). It stops where the map is full, or records are too young,
// and returns that offset.
func (s *Store) mapKeys(p *Partition, l *layout, from, border int64, set *PartitionSettings, now int64) (m *offsetMap, end int64, err error) {
	m = newOffsetMap(s.keySeeds, border-from, s.opts.CompactionBytes)
	end = from
	young := int64(math.MaxInt64)
	if set.MinCompactionLagMs > 0 {
		young = (now - min(now, set.MinCompactionLagMs)) * int64(time.Millisecond)
	}
	type keyed struct {
		key    keyHash
		offset int64
	}
	var r record.Reader
	var batch []keyed
	for i := range l.segs {
		seg := &l.segs[i]
		if seg.end <= from || seg.base >= border {
			continue
		}
		more, err := s.eachStored(p.id, seg, from, func(data []byte, ref *segment.Ref) (bool, error) {
			if ref.AppendTime > young || ref.Base >= border {
				return false, nil
			}
			batch = batch[:0]
			h, err := record.ParseHeader(data)
			if err == nil && !h.Control() && readKeys(&r, data, func(rec *record.Record) {
				batch = append(batch, keyed{m.hash(rec.Key), rec.Offset})
			}) {
				for k := range batch {
					for !m.put(batch[k].key, batch[k].offset) {
						if end > from {
							return false, nil // what was put of the batch is true all the same
						}
						m.grow(2 * int64(len(m.slots))) // one batch must fit
					}
				}
			}
			end = ref.Last + 1
			return true, s.breathe(int64(len(data)))
		})
		if err != nil {
			return nil, 0, err
		}
		if !more {
			return m, end, nil
		}
	}
	return m, end, nil
}

// breathe counts bytes that were read and pauses now and then. Compaction's token held.
func (s *Store) breathe(n int64) error {
	// Reading is cheaper than writing for those who share the disk: a quarter of the pause.
	c := &s.compactor
	if c.read += n; c.read < 4*chunkBytes {
		return nil
	}
	c.read = 0
	return s.pauseCompaction(chunkBytes)
}

// groupAge is how much append time a segment may span after compaction, ns. With retention by time what is new must not
// keep what is old.
func groupAge(set *PartitionSettings) int64 {
	if set.RetentionMs <= 0 {
		return math.MaxInt64
	}
	return int64(rollAge(*set))
}

// compactGroups divides the segments below end into those that become one.
func compactGroups(segs []segmentInfo, end, most, age int64) (groups [][]segmentInfo) {
	begin, bytes := 0, int64(0)
	n := 0
	for n < len(segs) && segs[n].base < end {
		n++
	}
	for i := range segs[:n] {
		if i > begin && (bytes+segs[i].logBytes > most || segs[i].lastAppend-segs[begin].firstAppend > age) {
			groups = append(groups, segs[begin:i])
			begin, bytes = i, 0
		}
		bytes += segs[i].logBytes
	}
	if begin < n {
		groups = append(groups, segs[begin:n])
	}
	return groups
}

// rewrite makes one segment of a group. nil: nothing would change.
func (s *Store) rewrite(p *Partition, group []segmentInfo, c *cleaner, done *Compaction) (*compactedSegment, error) {
	last := &group[len(group)-1]
	seg := segmentInfo{base: group[0].base, end: group[0].base}
	for i := range group {
		seg.generation = max(seg.generation, group[i].generation+1)
	}
	out, err := s.newCompacted(p.id, seg)
	if err != nil {
		return nil, err
	}
	for i := range group {
		_, err := s.eachStored(p.id, &group[i], group[i].base, func(data []byte, r *segment.Ref) (bool, error) {
			f, small := c.judge(data)
			if f == shrunk {
				data = small
			}
			if err := out.add(f, data, r); err != nil {
				return false, err
			}
			return true, s.breathe(int64(r.Size))
		})
		if err != nil {
			out.discard()
			return nil, s.whileReading(p, &group[i], err)
		}
		done.BytesIn += group[i].logBytes
	}
	if len(group) == 1 && !out.lost {
		out.discard()
		done.BytesOut += group[0].logBytes
		return nil, nil
	}
	if err := out.finish(); err != nil {
		out.discard()
		return nil, err
	}
	if out.seg.end != last.end {
		out.discard()
		return nil, fmt.Errorf("log: compaction of %s ends at offset %d instead of %d", p.id, out.seg.end, last.end)
	}
	done.BytesOut += out.seg.logBytes
	return out, nil
}

// whileReading says that a source was taken away, if it was.
func (s *Store) whileReading(p *Partition, seg *segmentInfo, err error) error {
	if isDamage(err) && (p.Dropped() || seg.end <= p.LogStart() || indexOfSegment(p.layout.Load(), seg) < 0) {
		return errSwapped
	}
	return err
}

func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, segment.ErrCorrupt) || errors.Is(err, record.ErrCorrupt) || errors.Is(err, os.ErrNotExist)
}

// indexOfSegment is where in a layout a segment is, with its content. -1: not.
func indexOfSegment(l *layout, seg *segmentInfo) int {
	if l == nil {
		return -1
	}
	return slices.IndexFunc(l.segs, func(x segmentInfo) bool { return x == *seg })
}

// swap puts a segment in the place of a group, and notes what compaction knows now. Both may be nil.
func (s *Store) swap(ctx context.Context, p *Partition, group []segmentInfo, out *compactedSegment, st *compactState) error {
	if out == nil && st == nil {
		return nil
	}
	if err := s.lockWriter(ctx); err != nil {
		return err
	}
	defer s.unlockWriter()
	if !p.settings.Load().Compact {
		return fmt.Errorf("%w: %s, any more", ErrNotCompacted, p.id)
	}
	l := p.layout.Load()
	at := indexOfSegment(l, &group[0])
	if p.Dropped() || at < 0 || indexOfSegment(l, &group[len(group)-1]) != at+len(group)-1 {
		return errSwapped
	}
	w := &s.w
	w.batch = s.db.NewBatch()
	defer func() { _ = w.batch.Close() }()
	var old []string
	if out != nil {
		next := *l
		next.segs = slices.Concat(l.segs[:at], []segmentInfo{out.seg}, l.segs[at+len(group):])
		for i := range group {
			w.del(offsetKey(rowSegment, p.id, group[i].base))
			old = append(old, s.logPath(p.id, &group[i]), s.indexPath(p.id, &group[i]))
		}
		w.set(offsetKey(rowSegment, p.id, out.seg.base), out.seg.encode(nil))
		l = &next
	}
	if st != nil {
		w.set(partitionKey(rowCompact, p.id), st.encode(nil))
	}
	if err := s.db.Apply(w.batch, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	p.layout.Store(l)
	if st != nil {
		s.compactor.states[p.id] = st
	}
	if len(old) == 0 {
		return nil
	}
	s.metrics.segments.Add(1)
	s.compactor.swapped = append(s.compactor.swapped, old...)
	return nil
}

// removeSwapped makes the rows durable that name new files, and removes the old ones. Where that does not succeed, the
// next pass or the next start does it. Compaction's token held.
func (s *Store) removeSwapped(ctx context.Context) error {
	c := &s.compactor
	if len(c.swapped) == 0 {
		return nil
	}
	if err := s.flushDB(ctx); err != nil {
		return err
	}
	if err := s.lockWriter(ctx); err != nil {
		return err
	}
	for _, path := range c.swapped {
		s.w.queueRemoval(path)
	}
	s.unlockWriter()
	c.swapped = nil
	s.removeQueued()
	return nil
}

// movedPart is the number of the first placed row of moveOut: the round of the same index may have some.
const movedPart = 1 << 15

// moveOut moves what a partition has in the mixed segment to a file of its own. Token held.
func (w *writer) moveOut(p *Partition) error {
	s := w.s
	w.begin()
	defer func() { _ = w.batch.Close() }()
	l := *p.layout.Load()
	row, err := s.partitionRow(p.id)
	if err != nil {
		return err
	}
	runs, err := w.storedRuns(p, &l)
	if err != nil {
		return err
	}
	r := &round{index: s.written.Load(), term: w.term}
	rp := &roundPart{p: p, start: row.start, end: l.written, settings: row.settings}
	if err := w.placeRuns(r, rp, &l, runs, movedPart); err != nil {
		return err
	}
	row.mixStart, row.mixBytes, row.mixRuns, row.mixOldest = l.mixStart, 0, 0, 0
	w.row = row.encode(w.row[:0])
	w.set(partitionKey(rowPartition, p.id), w.row)
	w.layouts = append(w.layouts, placedLayout{p: p, l: &l})
	w.mixedRows()
	if err := s.db.Apply(w.batch, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	w.publish()
	for id, below := range w.newMove {
		w.moved[id] = below
	}
	s.metrics.placedBytes.Add(w.placedN)
	s.metrics.moved.Add(w.movedN)
	return nil
}

// movedSince reports that what held an offset in l is elsewhere in now: the batch has moved out of the mixed segment, or
// compaction has replaced its segment.
func (l *layout) movedSince(now *layout, offset int64) bool {
	if now == l || now == nil {
		return false
	}
	if offset >= l.mixStart {
		return true
	}
	i := slices.IndexFunc(l.segs, func(x segmentInfo) bool { return x.end > offset })
	return i >= 0 && !now.names(&l.segs[i])
}

// names reports that a layout has the files of a segment, which may have grown.
func (l *layout) names(seg *segmentInfo) bool {
	return l != nil && slices.ContainsFunc(l.segs, func(x segmentInfo) bool { return x.base == seg.base && x.generation == seg.generation })
}
