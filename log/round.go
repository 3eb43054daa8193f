package log

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/log/segment"
)

// layout is what the files of a partition hold. It is immutable.
type layout struct {
	segs      []segmentInfo // own files, in order
	mixStart  int64         // the mixed segment holds the offsets from here to written
	written   int64         // offset after the last placed batch
	mixBytes  int64
	mixRuns   int
	mixOldest int64 // append time of the last batch of the oldest run, ns
}

// A partition that trickles leaves many short runs in the mixed segment. A checkpoint makes one of them when
// they are more than mergeRuns; if none comes, the partition gets a file at maxMixedRuns.
const (
	mergeRuns    = 64
	maxMixedRuns = 4096
)

// chunkBytes is the size of the writer's writes: 1 MiB writes are several times faster than 4 KiB ones.
const chunkBytes = 1 << 20

// preallocateBytes is the step in which segment files get their space.
const preallocateBytes = 16 << 20

// collectBatches bounds how long one look at a tail is used.
const collectBatches = 2048

// pending is what has changed since the last round was cut. It is under applyMu.
type pending struct {
	index, term uint64
	bytes       int64
	parts       []*Partition
	drops       []drop
	undrops     []PartitionID
	producers   []*producer
	tasks       map[TaskID]struct{}
	state       []stateOp
}

// round is one writer round: everything up to one raft index. It is cut once and carried out as often as it
// takes; the second attempt writes the same bytes to the same places.
type round struct {
	index, term uint64
	now         int64
	clock       uint64
	bytes       int64
	parts       []roundPart
	drops       []drop
	undrops     []PartitionID
	producers   []producerRow
	tasks       []taskRow
	state       []stateOp
	groups      generation

	// The order of the rows of parts and producers, see sort.
	partOrder, producerOrder []rowOrder
}

// rowOrder is the key of a row as numbers that compare alike, and where what it is made of is in its slice.
type rowOrder struct {
	partition uint64 // rank of the topic in the round, index of the partition
	producer  int64
	at        int32
}

type roundPart struct {
	p          *Partition
	start, end int64
	lastAppend int64
	metaIndex  uint64
	settings   PartitionSettings
	changed    bool // more than its batches
}

type producerRow struct {
	id PartitionID
	r  producer
}

type taskRow struct {
	id TaskID
	t  *TaskState // nil: dropped
}

// writer is the state of the writer; it belongs to whoever holds the token.
type writer struct {
	s          *Store
	cur        *round // cut and not yet carried out
	dirty      dirtyFiles
	mixed      map[uint64]mixedFile
	mixedNow   uint64                // number of the mixed file that is written
	moved      map[PartitionID]int64 // mixed rows below this offset go after the next checkpoint
	term       uint64                // of what is written, with now and clock: the applied row
	now        int64
	clock      uint64
	mixGone    []uint64 // mixed files to remove after the next checkpoint
	checkpoint atomic.Pointer[point]
	buf        []byte // bytes on their way to a file
	unpaced    int    // bytes written since the last pause
	roundBytes int64  // of the entries of the round under way
	sweepFrom  int    // slot of the partition that the next sweep begins with
	logReader  entryReader

	// Of the attempt under way.
	batch   *pebble.Batch
	layouts []placedLayout // of a round: of its partitions in the order of their keys
	newMix  map[uint64]mixedFile
	mixNow  uint64
	mixBuf  []byte
	mixPos  int64 // where mixBuf goes
	newMove map[PartitionID]int64
	remove  []string
	placedN int64
	mixedN  int64
	movedN  int64
	// Scratch memory of one row: rows are copied into the batch.
	row, key, block []byte
	runs            []byte // the runs row of the attempt
	batchBytes      int    // of the last attempt
	refs            []segment.Ref
	one             tailBatch // of eachWaiting
}

type placedLayout struct {
	p *Partition
	l *layout

	grown bool // by one run and nothing else: the run's row says it all
}

// cut takes what is pending out and copies what Apply may change. nil: nothing waits.
func (s *Store) cut() *round {
	s.applyMu.Lock()
	defer s.applyMu.Unlock()
	pe := &s.pending
	if pe.index <= s.written.Load() {
		return nil
	}
	s.leaving = slices.DeleteFunc(s.leaving, func(x leaving) bool { return x.index <= s.written.Load() })
	r := &round{
		index: pe.index, term: pe.term, now: s.now, clock: s.producers.clock, bytes: pe.bytes,
		drops: pe.drops, state: pe.state, groups: s.groups.cut(),
	}
	for _, id := range pe.undrops {
		if _, again := s.dropped[id]; !again {
			r.undrops = append(r.undrops, id)
		}
	}
	r.parts = make([]roundPart, 0, len(pe.parts))
	for _, p := range pe.parts {
		changed := p.changed
		p.dirty, p.changed = false, false
		if s.parts.m[p.id] != p {
			continue // dropped since
		}
		r.parts = append(r.parts, roundPart{p, p.start.Load(), p.end.Load(), p.lastAppend, p.metaIndex, *p.settings.Load(), changed})
	}
	r.producers = make([]producerRow, len(pe.producers))
	for i, x := range pe.producers {
		x.dirty = false
		r.producers[i] = producerRow{x.p.id, *x}
	}
	for id := range pe.tasks {
		r.tasks = append(r.tasks, taskRow{id, s.tasks.m[id]})
	}
	*pe = pending{index: pe.index, term: pe.term, parts: pe.parts[:0], producers: pe.producers[:0], tasks: map[TaskID]struct{}{}}
	if cap(pe.parts) > 4096 {
		pe.parts = nil
	}
	if cap(pe.producers) > 4096 {
		pe.producers = nil
	}
	return r
}

// sort finds the order of the keys of parts and producers. Pebble takes rows in the order of their keys, kind by kind,
// at a fraction of the price of a random order: the neighbours of each are those of the one before. Of a producer that
// was forgotten and came again there are two rows, a delete and a set, which stay in the order of Apply.
func (r *round) sort() {
	rank := r.topics()
	r.partOrder, r.producerOrder = make([]rowOrder, len(r.parts)), make([]rowOrder, len(r.producers))
	for i := range r.parts {
		id := r.parts[i].p.id
		r.partOrder[i] = rowOrder{partition: rank[id.Topic]<<32 | uint64(id.Index), at: int32(i)}
	}
	for i := range r.producers {
		x := &r.producers[i]
		r.producerOrder[i] = rowOrder{rank[x.id.Topic]<<32 | uint64(x.id.Index), x.r.id, int32(i)}
	}
	slices.SortFunc(r.partOrder, rowOrder.compare)
	slices.SortFunc(r.producerOrder, rowOrder.compare)
}

// topics is the topics of the round with their ranks.
func (r *round) topics() map[TopicID]uint64 {
	rank := map[TopicID]uint64{}
	for i := range r.parts {
		rank[r.parts[i].p.id.Topic] = 0
	}
	for i := range r.producers {
		rank[r.producers[i].id.Topic] = 0
	}
	topics := slices.SortedFunc(maps.Keys(rank), func(a, b TopicID) int { return bytes.Compare(a[:], b[:]) })
	for i, t := range topics {
		rank[t] = uint64(i)
	}
	return rank
}

func (a rowOrder) compare(b rowOrder) int {
	if a.partition != b.partition {
		return cmp.Compare(a.partition, b.partition)
	}
	return cmp.Or(cmp.Compare(a.producer, b.producer), cmp.Compare(a.at, b.at))
}

// catchUp carries out rounds until everything applied before the call is written. Token held.
func (s *Store) catchUp() error {
	goal := s.applied.Load().index
	for s.written.Load() < goal {
		if _, err := s.runRound(); err != nil {
			return err
		}
	}
	return nil
}

// runRound carries out one round, if something waits. Token held.
func (s *Store) runRound() (bool, error) {
	w := &s.w
	if w.cur == nil {
		if w.cur = s.cut(); w.cur == nil {
			return false, nil
		}
		w.cur.sort()
	}
	begun := time.Now()
	if s.opts.Log != nil {
		// What the log can still forget must not be in files, or the store would be ahead of its log.
		if err := s.opts.Log.SyncTo(w.cur.index); err != nil {
			return false, fmt.Errorf("sync the log up to %d: %w", w.cur.index, err)
		}
	}
	w.roundBytes = w.cur.bytes
	if err := w.carryOut(w.cur); err != nil {
		if perr := s.poisonedErr(); perr != nil {
			return false, perr
		}
		s.setDegraded(troubleRound, err)
		if errors.Is(err, syscall.ENOSPC) {
			s.makeRoom()
		}
		return false, fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	s.setDegraded(troubleRound, nil)
	w.cur = nil
	s.metrics.rounds.Add(1)
	s.metrics.lastRound.Store(int64(time.Since(begun)))
	s.removals.Lock()
	held := s.removals.held
	s.removals.Unlock()
	if len(held) > 0 {
		// The rows that speak of these files must be gone for good before they are.
		if err := s.flushDB(context.Background()); err != nil {
			return true, err
		}
		for _, path := range held {
			w.queueRemoval(path)
		}
		s.removals.Lock()
		s.removals.held = nil
		s.removals.Unlock()
	}
	return true, nil
}

// begin makes the writer ready for an attempt. The caller closes the batch.
func (w *writer) begin() {
	w.batch = w.s.db.NewBatchWithSize(w.batchBytes + w.batchBytes/4)
	w.layouts, w.remove = w.layouts[:0], nil
	w.runs = append(w.runs[:0], rowVersion)
	w.newMix, w.newMove = map[uint64]mixedFile{}, map[PartitionID]int64{}
	w.mixNow, w.mixBuf = w.mixedNow, w.mixBuf[:0]
	w.placedN, w.mixedN, w.movedN = 0, 0, 0
	w.mixPos = w.mixed[w.mixNow].size
}

// carryOut writes a round's batches to files and its rows to Pebble, and only then lets anybody see it.
func (w *writer) carryOut(r *round) error {
	s := w.s
	w.begin()
	defer func() { _ = w.batch.Close() }()

	for _, d := range r.drops {
		if err := w.dropRows(d); err != nil {
			return err
		}
	}
	for _, id := range r.undrops {
		w.del(partitionKey(rowDropped, id))
	}
	if err := w.dropOffsets(r.groups.gone); err != nil {
		return err
	}
	for i := range r.partOrder {
		rp := &r.parts[r.partOrder[i].at]
		if err := w.placePartition(r, rp); err != nil {
			return fmt.Errorf("partition %s: %w", rp.p.id, err)
		}
	}
	if err := w.flushMixed(); err != nil {
		return err
	}
	w.rows(r)
	w.batchBytes = w.batch.Len()
	if err := s.db.Apply(w.batch, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}

	w.publish()
	for id, below := range w.newMove {
		w.moved[id] = below
	}
	s.removals.Lock()
	s.removals.held = append(s.removals.held, w.remove...)
	s.removals.Unlock()
	w.term, w.now, w.clock = r.term, r.now, r.clock
	s.groups.flushed()
	s.written.Store(r.index)
	s.backlog.Add(-r.bytes)
	s.metrics.placedBytes.Add(w.placedN)
	s.metrics.mixedBytes.Add(w.mixedN)
	s.metrics.moved.Add(w.movedN)
	if cap(w.buf) > 4*chunkBytes {
		w.buf = nil
	}
	if cap(w.mixBuf) > 4*chunkBytes {
		w.mixBuf = nil
	}
	return nil
}

// publish lets readers see the layouts that Pebble now holds, and keeps the writer's account of mixed files.
func (w *writer) publish() {
	for _, x := range w.layouts {
		if x.l.written > 0 { // else it has nothing in files, and needs no memory to say so
			x.p.layout.Store(x.l)
			x.p.tail.setPlaced(x.l.written)
		}
	}
	for n, m := range w.newMix {
		w.mixed[n] = m
		if m.live <= 0 && n != w.mixNow {
			delete(w.mixed, n)
			// Recovery may need it until the segments that its batches have moved to are synced.
			w.mixGone = append(w.mixGone, n)
		}
	}
	w.mixedNow = w.mixNow
}

// wrote counts bytes given to the disk and pauses after each chunk.
func (w *writer) wrote(n int) {
	if w.unpaced += n; w.unpaced >= chunkBytes {
		w.unpaced = 0
		w.s.pace()
	}
}

// Batch operations in memory do not fail; Apply reports what is wrong with a batch.
func (w *writer) set(key, value []byte) { _ = w.batch.Set(key, value, nil) }
func (w *writer) del(key []byte)        { _ = w.batch.Delete(key, nil) }
func (w *writer) delRange(prefix []byte) {
	_ = w.batch.DeleteRange(prefix, keyEnd(prefix), nil)
}

// rows adds everything but placements in a partition's own files to the batch.
func (w *writer) rows(r *round) {
	for i := range r.partOrder {
		if w.layouts[i].grown {
			continue
		}
		rp, l := &r.parts[r.partOrder[i].at], w.layouts[i].l
		row := partitionRow{
			metaIndex: rp.metaIndex, settings: rp.settings, start: rp.start, end: rp.end, lastAppend: rp.lastAppend,
			mixStart: l.mixStart, mixBytes: l.mixBytes, mixRuns: l.mixRuns, mixOldest: l.mixOldest,
		}
		w.row = row.encode(w.row[:0])
		w.key = appendPartition(append(w.key[:0], rowPartition), rp.p.id)
		w.set(w.key, w.row)
	}
	if len(w.runs) > 1 {
		w.set(numberKey(rowRuns, r.index), w.runs)
	}
	for i := range r.producerOrder {
		x := &r.producers[r.producerOrder[i].at]
		w.key = appendI64(appendPartition(append(w.key[:0], rowProducer), x.id), x.r.id)
		if x.r.gone {
			w.del(w.key)
		} else {
			w.row = x.r.encode(w.row[:0])
			w.set(w.key, w.row)
		}
	}
	for _, t := range r.tasks {
		if t.t == nil {
			w.del(taskKey(t.id))
		} else {
			w.set(taskKey(t.id), t.t.encode(t.id))
		}
	}
	for i := range r.state {
		op := &r.state[i]
		switch op.kind {
		case stateSet:
			w.set(stateKey(op.task, op.key), op.value)
		case stateDelete:
			w.del(stateKey(op.task, op.key))
		case stateDrop:
			w.delRange(stateKey(op.task, nil))
		}
	}
	for name, c := range r.groups.groups {
		prefix := groupKey(name)
		if c.dropped {
			w.delRange(prefix)
			w.del(activeKey(name))
		}
		if c.active > 0 {
			w.set(activeKey(name), encodeActive(c.active))
		}
		for id, o := range c.offsets {
			key := appendPartition(append(w.key[:0], prefix...), id)
			w.key = key
			if o.Offset < 0 {
				w.del(key)
			} else {
				w.row = encodeGroupRow(w.row[:0], &o)
				w.set(key, w.row)
			}
		}
	}
	w.mixedRows()
	w.set([]byte{rowApplied}, appliedRow{r.index, r.term, r.now, r.clock, w.mixNow}.encode())
}

// mixedRows adds the rows of the mixed files that have changed.
func (w *writer) mixedRows() {
	for n, m := range w.newMix {
		if m.live <= 0 && n != w.mixNow {
			w.del(numberKey(rowMixedFile, n))
		} else {
			w.set(numberKey(rowMixedFile, n), m.encode())
		}
	}
}

// mixFile returns what this attempt knows of a mixed file.
func (w *writer) mixFile(n uint64) mixedFile {
	if m, ok := w.newMix[n]; ok {
		return m
	}
	return w.mixed[n]
}

// dropRows removes a partition's rows and notes its files for removal.
func (w *writer) dropRows(d drop) error {
	w.set(partitionKey(rowDropped, d.id), d.encode())
	if d.p == nil {
		return nil
	}
	w.remove = append(w.remove, w.s.partitionDir(d.id))
	w.del(partitionKey(rowPartition, d.id))
	l := d.p.layout.Load()
	if l == nil {
		return nil // no batch was ever written: it has no other rows
	}
	if err := w.eachRun(d.id, l.mixStart, func(base int64, file uint64, h segment.Head, _ []byte) (bool, error) {
		m := w.mixFile(file)
		m.live -= h.Bytes
		w.newMix[file] = m
		return true, nil
	}); err != nil {
		return err
	}
	for _, kind := range []byte{rowSegment, rowMixed, rowProducer, rowCompact} {
		w.delRange(partitionKey(kind, d.id))
	}
	return nil
}

// dropOffsets removes what groups have committed for partitions that are gone. The rows are ordered by group, so it
// looks at all of them, once for all partitions of a round.
func (w *writer) dropOffsets(gone map[PartitionID]bool) error {
	if len(gone) == 0 {
		return nil
	}
	it, err := w.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowGroup}, UpperBound: []byte{rowGroup + 1}})
	if err != nil {
		return w.s.kvError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		if k := it.Key(); len(k) > partitionSz && gone[getPartition(k[len(k)-partitionSz:])] {
			w.del(k)
		}
	}
	return w.s.kvError(it.Close())
}

func (w *writer) eachRun(id PartitionID, from int64, f func(base int64, file uint64, h segment.Head, block []byte) (bool, error)) error {
	return w.s.eachRun(w.s.db, id, from, f)
}

// eachRun calls f for the runs of a partition in the mixed segment that end at or after from, in order,
// until it returns false. block is valid during the call. Below a layout's mixStart there may be rows of runs
// that have moved out.
func (s *Store) eachRun(db pebble.Reader, id PartitionID, from int64, f func(base int64, file uint64, h segment.Head, block []byte) (bool, error)) error {
	prefix := partitionKey(rowMixed, id)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyEnd(prefix)})
	if err != nil {
		return s.kvError(err)
	}
	ok := it.SeekLT(offsetKey(rowMixed, id, from+1)) || it.First()
	for ; ok; ok = it.Next() {
		key := it.Key()[len(prefix):]
		if len(key) != 8 {
			return s.kvError(errors.Join(fmt.Errorf("%w: kind %q: key of %d bytes", errRow, rowMixed, len(it.Key())), it.Close()))
		}
		base := getI64(key)
		file, block, err := decodeMixed(it.Value())
		var h segment.Head
		if err == nil {
			h, err = segment.ParseHead(block)
		}
		if err != nil {
			_ = it.Close()
			return s.kvError(fmt.Errorf("%w: %w", errRow, err))
		}
		if h.Last < from {
			continue
		}
		if more, err := f(base, file, h, block); err != nil || !more {
			_ = it.Close()
			return err
		}
	}
	return s.kvError(it.Close())
}

// placePartition writes what a partition has waiting, and drops what the log start has passed.
func (w *writer) placePartition(r *round, rp *roundPart) error {
	p := rp.p
	l := layout{}
	if old := p.layout.Load(); old != nil {
		l = *old
	}
	before := l
	if err := w.retain(&l, rp); err != nil {
		return err
	}
	// A partition that only gathers runs needs no row of its own for each: see addRuns.
	grown := !rp.changed && l.mixRuns > 0 && l.mixRuns == before.mixRuns && len(l.segs) == len(before.segs)
	if l.written < rp.end {
		bytes, err := w.waiting(p, l.written, rp.end)
		if err != nil {
			return err
		}
		if own := l.mixBytes+bytes >= w.s.opts.ThinBytes || l.mixRuns >= maxMixedRuns; own && (bytes >= w.s.opts.ThinBytes || w.mayMove(r)) {
			grown = false
			err = w.placeOwn(r, rp, &l)
		} else {
			err = w.placeMixed(rp, &l)
		}
		if err != nil {
			return err
		}
	}
	w.layouts = append(w.layouts, placedLayout{p, &l, grown})
	return nil
}

// mayMove bounds what one round moves out of the mixed segment: twice what it brings, a megabyte at least for each MiB
// that a round has at least. Partitions that grow alike are all ripe in the same round, and ten thousand of them would
// keep the writer from everything else for a minute; those that have to wait go on in the mixed segment.
func (w *writer) mayMove(r *round) bool {
	return w.movedN < max(2*r.bytes, w.s.opts.RoundBytes)
}

// waiting is how many bytes of batches in [from, end) wait; it stops counting when they are many.
func (w *writer) waiting(p *Partition, from, end int64) (bytes int64, err error) {
	rows := p.tail.from(from)
	for i := 0; i < len(rows) && rows[i].base < end && bytes < w.s.opts.ThinBytes; i++ {
		bytes += int64(rows[i].size)
	}
	return bytes, nil
}

// eachWaiting calls f for the batches in [from, end) with their bytes, wherever those are.
func (w *writer) eachWaiting(p *Partition, from, end int64, f func(b *tailBatch) error) error {
	defer func() { w.one = tailBatch{} }() // it keeps its entry in memory
	for from < end {
		rows := p.tail.from(from) // not for longer than collectBatches: an old list keeps its batches in memory
		if len(rows) == 0 {
			return fmt.Errorf("offset %d waits nowhere", from)
		}
		b := &w.one
		for i := range rows[:min(len(rows), collectBatches)] {
			if *b = rows[i].batch(); b.Base >= end {
				return nil
			}
			if b.Data == nil {
				var err error
				if b.Data, err = w.logReader.read(b); err != nil {
					return err
				}
			}
			if err := f(b); err != nil {
				return err
			}
			from = b.Last + 1
		}
	}
	return nil
}

// retain drops the segments and runs that the log start has passed. The active segment may go as well.
func (w *writer) retain(l *layout, rp *roundPart) error {
	p, start := rp.p, rp.start
	k := 0
	for k < len(l.segs) && l.segs[k].end <= start {
		w.del(offsetKey(rowSegment, p.id, l.segs[k].base))
		w.remove = append(w.remove, w.s.logPath(p.id, &l.segs[k]), w.s.indexPath(p.id, &l.segs[k]))
		k++
	}
	if k > 0 {
		l.segs = append([]segmentInfo(nil), l.segs[k:]...)
	}
	if l.mixRuns == 0 || start <= l.mixStart {
		return nil
	}
	oldest, runs, bytes := int64(0), 0, int64(0)
	err := w.eachRun(p.id, l.mixStart, func(base int64, file uint64, h segment.Head, _ []byte) (bool, error) {
		if h.Last >= start {
			oldest = h.AppendTime
			return false, nil
		}
		m := w.mixFile(file)
		m.live -= h.Bytes
		w.newMix[file] = m
		runs, bytes = runs+1, bytes+h.Bytes
		l.mixStart = h.Last + 1
		w.del(offsetKey(rowMixed, p.id, base))
		return true, nil
	})
	l.mixRuns, l.mixBytes = l.mixRuns-runs, l.mixBytes-bytes
	if l.mixOldest = oldest; l.mixRuns == 0 {
		l.mixOldest, l.mixBytes = 0, 0
	}
	return err
}

// placeMixed adds one run with all that waits to the mixed segment.
func (w *writer) placeMixed(rp *roundPart, l *layout) error {
	p := rp.p
	m := w.mixFile(w.mixNow)
	if w.mixNow == 0 || m.size >= w.s.opts.SegmentBytes {
		if err := w.flushMixed(); err != nil {
			return err
		}
		w.mixNow++
		w.mixPos = 0
		m = mixedFile{}
	}
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(w.mixNow)}
	w.refs = w.refs[:0]
	link := uint32(0)
	err := w.eachWaiting(p, l.written, rp.end, func(b *tailBatch) error {
		n := len(w.mixBuf)
		w.mixBuf = b.AppendTo(w.mixBuf)
		link = seed.Link(link, w.mixBuf[n:])
		w.refs = append(w.refs, refOf(b, m.size, link))
		m.size += int64(b.size)
		return nil
	})
	if err != nil {
		return err
	}
	w.block = segment.AppendBlock(w.block[:0], w.refs, 0)
	h, err := segment.ParseHead(w.block)
	if err != nil {
		return err
	}
	m.live += h.Bytes
	w.newMix[w.mixNow] = m
	w.mixedN += h.Bytes
	w.key = appendI64(appendPartition(append(w.key[:0], rowMixed), p.id), h.First)
	w.row = appendMixed(w.row[:0], w.mixNow, w.block)
	w.set(w.key, w.row)
	w.runs = appendRun(w.runs, p.id, h.First)
	if l.mixRuns == 0 {
		l.mixStart, l.mixOldest = h.First, h.AppendTime
	}
	l.mixRuns++
	l.mixBytes += h.Bytes
	l.written = rp.end
	if len(w.mixBuf) >= chunkBytes {
		return w.flushMixed()
	}
	return nil
}

func refOf(b *tailBatch, pos int64, link uint32) segment.Ref {
	return segment.Ref{
		Base: b.Base, Last: b.Last, Pos: pos, Size: b.size, Unit: b.Unit, Index: b.Index, Term: uint64(b.Epoch),
		EntryPos: b.entryPos, Link: link, AppendTime: b.AppendTime, MaxTimestamp: b.MaxTimestamp,
	}
}

// flushMixed writes what waits for the mixed file.
func (w *writer) flushMixed() error {
	if len(w.mixBuf) == 0 {
		return nil
	}
	path := w.s.mixedPath(w.mixNow)
	f, err := w.dirty.open(path, w.mixPos == 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteAround(w.mixBuf, w.mixPos); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	w.mixPos += int64(len(w.mixBuf))
	w.wrote(len(w.mixBuf))
	w.mixBuf = w.mixBuf[:0]
	return nil
}

// placeOwn writes what waits to the partition's own segment, behind what it had in the mixed segment.
func (w *writer) placeOwn(r *round, rp *roundPart, l *layout) error {
	p := rp.p
	runs, err := w.storedRuns(p, l)
	if errors.Is(err, ErrCorrupt) {
		// What has rotted stays where it is: readers name it. The rest goes on in the mixed segment.
		_ = w.s.corrupt(&CorruptError{Path: mixedDir, Partition: p.id, Offset: l.mixStart, Position: -1, Err: err})
		return w.placeMixed(rp, l)
	}
	if err != nil {
		return err
	}
	return w.placeRuns(r, rp, l, runs, 0)
}

// storedRuns reads what a partition has in the mixed segment.
func (w *writer) storedRuns(p *Partition, l *layout) (runs []sweptRun, err error) {
	if l.mixRuns == 0 {
		return nil, nil
	}
	err = w.eachRun(p.id, l.mixStart, func(base int64, file uint64, h segment.Head, block []byte) (bool, error) {
		got, again, err := w.s.readRun(nil, p, file, block, 0, int(h.Bytes), nil)
		runs = append(runs, sweptRun{got, base, file, h.Bytes})
		return true, errors.Join(err, errIf(again, "mixed file is missing"))
	})
	return runs, err
}

// placeRuns writes the runs, and behind them what waits, to the partition's own segment. part is the number of the first
// placed row.
func (w *writer) placeRuns(r *round, rp *roundPart, l *layout, runs []sweptRun, part int) error {
	p := rp.p
	o := ownWriter{w: w, r: r, rp: rp, l: l, part: part}
	o.resume()
	if len(runs) > 0 {
		for _, run := range runs {
			for i := range run.out {
				b := tailBatch{Batch: run.out[i], entryPos: run.refs[i].EntryPos, size: run.refs[i].Size}
				if err := o.add(&b); err != nil {
					return err
				}
				w.movedN += int64(b.size)
			}
		}
		for i := range runs {
			m := w.mixFile(runs[i].file)
			m.live -= runs[i].size
			w.newMix[runs[i].file] = m
		}
		// Recovery may need the runs until the segment is synced: their rows go after the next checkpoint.
		w.newMove[p.id] = l.written
		l.mixRuns, l.mixBytes, l.mixOldest = 0, 0, 0
	}
	if err := w.eachWaiting(p, l.written, rp.end, o.add); err != nil {
		return err
	}
	if err := o.finish(); err != nil {
		return err
	}
	l.mixStart, l.written = rp.end, rp.end
	return nil
}

// ownWriter writes batches to a partition's own segments.
type ownWriter struct {
	w    *writer
	r    *round
	rp   *roundPart
	l    *layout
	part int // placed rows so far

	open     bool
	seg      segmentInfo
	seed     segment.Seed
	fresh    bool // the files are to be made
	logPos   int64
	indexPos int64
	prev     uint32 // link before refs
	refs     []segment.Ref
	refBytes int64
	blocks   []byte
	copied   bool // l.segs is ours
}

// resume continues the last segment, if there is one.
func (o *ownWriter) resume() {
	o.w.buf = o.w.buf[:0]
	if n := len(o.l.segs); n > 0 && o.l.segs[n-1].generation == 0 && !o.w.s.compactor.holds(o.rp.p.id, o.l.segs[n-1].base) {
		o.begin(o.l.segs[n-1], false)
	}
}

func (o *ownWriter) begin(seg segmentInfo, fresh bool) {
	id := o.rp.p.id
	o.open, o.seg, o.fresh = true, seg, fresh
	o.seed = segment.Seed{Topic: id.Topic, Partition: id.Index, Segment: seg.base}
	o.logPos, o.indexPos, o.prev = seg.logBytes, seg.indexBytes, seg.link
	o.refs, o.refBytes, o.blocks = o.refs[:0], 0, o.blocks[:0]
}

// rollAge is how long (append time) a segment grows before another begins, so that retention by time finds
// something to drop.
func rollAge(set PartitionSettings) time.Duration {
	age := time.Duration(min(set.segmentMs(), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	if set.RetentionMs > 0 {
		age = min(age, max(time.Minute, time.Duration(min(set.RetentionMs, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond/8))
	}
	return age
}

// segmentBytes is the size at which a segment of a partition is closed. A setting below ThinBytes would make a file for
// what no partition gets one for.
func (s *Store) segmentBytes(set PartitionSettings) int64 {
	if set.SegmentBytes <= 0 {
		return s.opts.SegmentBytes
	}
	return max(set.SegmentBytes, s.opts.ThinBytes)
}

func (o *ownWriter) add(b *tailBatch) error {
	if o.open && o.seg.logBytes > 0 && (o.seg.logBytes+int64(b.size) > o.w.s.segmentBytes(o.rp.settings) ||
		b.AppendTime-o.seg.firstAppend > int64(rollAge(o.rp.settings))) {
		if err := o.finish(); err != nil {
			return err
		}
		o.giveBack()
	}
	if !o.open {
		o.begin(segmentInfo{base: b.Base, end: b.Base, firstAppend: b.AppendTime, maxTime: b.MaxTimestamp}, true)
	}
	n := len(o.w.buf)
	o.w.buf = b.AppendTo(o.w.buf)
	o.seg.link = o.seed.Link(o.seg.link, o.w.buf[n:])
	o.refs = append(o.refs, refOf(b, o.seg.logBytes, o.seg.link))
	o.refBytes += int64(b.size)
	o.seg.logBytes += int64(b.size)
	o.seg.end = b.Last + 1
	o.seg.maxTime = max(o.seg.maxTime, b.MaxTimestamp)
	o.seg.lastAppend = max(o.seg.lastAppend, b.AppendTime)
	if o.refBytes >= segment.BlockBytes {
		o.closeBlock()
	}
	if len(o.w.buf) >= chunkBytes {
		return o.flush()
	}
	return nil
}

func (o *ownWriter) closeBlock() {
	if len(o.refs) == 0 {
		return
	}
	o.blocks = segment.AppendBlock(o.blocks, o.refs, o.prev)
	o.prev = o.refs[len(o.refs)-1].Link
	o.refs, o.refBytes = o.refs[:0], 0
}

func (o *ownWriter) flush() error {
	w, id := o.w, o.rp.p.id
	if len(w.buf) == 0 {
		return nil
	}
	path := w.s.logPath(id, &o.seg)
	f, err := w.dirty.open(path, o.fresh && o.logPos == 0)
	if err != nil {
		return err
	}
	if end := o.logPos + int64(len(w.buf)); o.logPos/preallocateBytes != end/preallocateBytes && !w.s.failed.Load() {
		// It only saves time later; a full disk shows in the write, and has no space for it.
		_ = f.Preallocate(end/preallocateBytes*preallocateBytes, preallocateBytes)
	}
	if _, err := f.WriteAround(w.buf, o.logPos); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	o.logPos += int64(len(w.buf))
	w.placedN += int64(len(w.buf))
	w.wrote(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// giveBack frees what a segment that is complete got in advance. A failure costs space only.
func (o *ownWriter) giveBack() {
	if o.seg.logBytes < preallocateBytes {
		return
	}
	if f, err := o.w.dirty.open(o.w.s.logPath(o.rp.p.id, &o.seg), false); err == nil {
		_ = f.Truncate(o.seg.logBytes)
	}
}

// finish writes the rest of the open segment, its index and its rows.
func (o *ownWriter) finish() error {
	if !o.open {
		return nil
	}
	o.open = false
	o.closeBlock()
	if len(o.blocks) == 0 {
		return nil
	}
	if err := o.flush(); err != nil {
		return err
	}
	w, id := o.w, o.rp.p.id
	path := w.s.indexPath(id, &o.seg)
	f, err := w.dirty.open(path, o.fresh)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(o.blocks, o.indexPos); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	o.seg.indexBytes = o.indexPos + int64(len(o.blocks))
	w.key = appendPlacedKey(w.key[:0], o.r.index, id, o.part)
	w.row = (&placedRow{base: o.seg.base, indexPos: o.indexPos, blocks: o.blocks}).encode(w.row[:0])
	w.set(w.key, w.row)
	o.part++
	w.row = o.seg.encode(w.row[:0])
	w.set(offsetKey(rowSegment, id, o.seg.base), w.row)
	if !o.copied {
		o.l.segs, o.copied = append(make([]segmentInfo, 0, len(o.l.segs)+1), o.l.segs...), true
	}
	if n := len(o.l.segs); n > 0 && o.l.segs[n-1].base == o.seg.base {
		o.l.segs[n-1] = o.seg
	} else {
		o.l.segs = append(o.l.segs, o.seg)
		w.s.metrics.segments.Add(1)
	}
	return nil
}

func (w *writer) closeFiles() { w.dirty.close() }

// entryReader reads batches that have left memory, through the log. It keeps the last entry, as batches come
// in the order of entries. It belongs to one goroutine.
type entryReader struct {
	log   EntryLog
	index uint64
	data  []byte
}

func (r *entryReader) read(b *tailBatch) ([]byte, error) {
	return r.at(b.Index, b.entryPos, b.size)
}

func (r *entryReader) at(index uint64, pos uint32, size int32) ([]byte, error) {
	if r.log == nil {
		return nil, errors.New("no log to read entries from")
	}
	if r.index != index || r.data == nil {
		_, data, err := r.log.ReadEntry(index)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", index, err)
		}
		r.index, r.data = index, data
	}
	end := int64(pos) + int64(size)
	if size < 0 || end > int64(len(r.data)) {
		return nil, fmt.Errorf("entry %d: %w: %d bytes, a batch ends at %d", index, ErrCorrupt, len(r.data), end)
	}
	return r.data[pos:end:end], nil
}
