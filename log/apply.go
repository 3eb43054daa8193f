package log

import (
	"fmt"
	"slices"
	"time"

	"github.com/headrace/headrace/log/record"
)

// dropMemory is how long (of append time) a dropped partition is remembered, so that a late open of it does
// not bring it back.
const dropMemory = 7 * 24 * time.Hour

// A Result is what became of one unit.
type Result struct {
	// Err is nil if the unit applies, else a *RejectError: the unit has no effect on any replica.
	Err error
	// Offsets holds the base offset of each OpAppend in order. It is valid until the next Apply only in the
	// sense that nobody writes to it: it may be kept.
	Offsets []int64
	// LastOffset is the last offset of the last OpAppend, -1 without one.
	LastOffset int64
	// AppendTime is the append time of the entry, ns since 1970. For a duplicate it is that of this entry,
	// not of the original.
	AppendTime int64
	// Duplicate: every batch of the unit was one that its producer had sent before; Offsets are the
	// original ones and nothing was appended.
	Duplicate bool
	// Index is the raft index of the entry.
	Index uint64
}

// planned is what judging found out about one OpAppend.
type planned struct {
	p          *Partition
	delta      int32 // last offset delta
	id         int64 // producer, -1 for none
	epoch      int16
	first, end int32 // sequences
	maxTime    int64
	dup        bool
	dupBase    int64
	dupLast    int64
}

type producerKey struct {
	p  *Partition
	id int64
}

type judged struct {
	epoch int16
	last  int32
}

// judging is the scratch memory of one unit's verdict. It belongs to the Apply goroutine.
type judging struct {
	appends   []planned
	producers map[producerKey]judged // batches of this unit, only while it has several
	progress  Progress
	opStep    bool
	state     bool // holds OpState
	stateTask TaskID
	drops     bool // holds a drop
	data      bool // holds what cannot stand beside a drop
}

// Apply applies one committed entry and returns one Result per unit, in order. One goroutine calls it, with
// rising indexes. It keeps entry, which nobody may change. It never waits for the disk and depends on
// nothing but the entries before, so every replica comes to the same results.
//
// An entry at or below the index that the store had applied when it was opened (or has applied since) is
// skipped: the results are nil. So are those of bytes that are no entry; the store is poisoned then.
func (s *Store) Apply(index, term uint64, entry []byte) []Result {
	if index <= s.applied.Load().index {
		return nil
	}
	e, err := DecodeEntry(entry)
	if err != nil {
		s.poison(fmt.Errorf("entry %d: %w", index, err))
		return nil
	}
	s.applyMu.Lock()
	now := max(e.AppendTime, s.now)
	s.now = now
	results := make([]Result, e.Count)
	a := applying{s: s, index: index, term: term, now: now, entry: entry, offsets: s.scratch.offsets[:0]}
	s.look(&e)
	rest := e.body
	for i := range results {
		var u UnitView
		at := len(entry) - len(rest) + unitHeader
		u, rest = nextUnit(rest)
		if p := s.scratch.ahead[i].p; p != nil && !p.dropped.Load() {
			s.lastPart = p
		}
		results[i] = a.unit(int32(i), u.body, at)
	}
	s.scratch.offsets = a.offsets
	clear(s.scratch.ahead) // a dropped partition does not stay in memory for it
	if len(a.offsets) > 0 {
		// One allocation for the offsets of all units.
		kept := append([]int64(nil), a.offsets...)
		for i := range results {
			n := len(results[i].Offsets)
			results[i].Offsets, kept = kept[:n:n], kept[n:]
		}
	}
	s.expireProducers(now)
	s.pending.index, s.pending.term = index, term
	s.pending.bytes += int64(len(entry))
	s.applied.Store(&point{index, term})
	s.backlog.Add(int64(len(entry)))
	due := s.pending.bytes >= s.dueBytes()
	s.trimCache()
	s.applyMu.Unlock()

	s.metrics.entries.Add(1)
	s.metrics.entryBytes.Add(int64(len(entry)))
	s.metrics.units.Add(int64(e.Count))
	if due {
		s.kick()
	}
	return results
}

// ahead is what look has found for a unit.
type ahead struct {
	p        *Partition // of the first batch, nil if it is unknown
	id       int64      // producer of that batch
	producer *producer
}

// look finds the partition of the first batch of each unit, and touches what judging and appending it will read. With
// thousands of active partitions nothing of that is in the processor's caches: a unit at a time, the misses of one come
// one behind the other; here those of many units are under way together. It decides nothing.
func (s *Store) look(e *Entry) {
	all := s.scratch.ahead[:0]
	for rest := e.body; len(rest) > 0; {
		var u UnitView
		u, rest = nextUnit(rest)
		x := ahead{id: -1}
		if len(u.body) > opHeader+partitionSz+record.HeaderSize && OpKind(u.body[0]) == OpAppend {
			body := u.body[opHeader:]
			x.p = s.parts.m[getPartition(body)]
			if h, err := record.ParseHeader(body[partitionSz:]); err == nil {
				x.id = h.ProducerID
			}
		}
		all = append(all, x)
	}
	s.scratch.ahead = all
	sum := int64(0)
	for i := range all {
		if x := &all[i]; x.p != nil {
			sum += x.p.lastAppend
			x.producer = x.p.producers[x.id]
		}
	}
	for i := range all {
		x := &all[i]
		if r := x.producer; r != nil {
			at := s.producers.links[r.node]
			sum += int64(r.batches[ProducerBatches-1].first) + int64(s.producers.links[at.prev].next+s.producers.links[at.next].prev)
		}
		if x.p == nil {
			continue
		}
		if l := x.p.tail.list.Load(); l != nil {
			if n := int(l.n.Load()); n < len(l.rows) {
				sum += l.rows[n].base
			}
		}
	}
	s.scratch.touched = sum
}

// dueBytes is how much makes a round now. A run of a thin partition costs four or five rows whatever its size, so many
// partitions that grow gather longer, up to what memory holds well. applyMu is held.
func (s *Store) dueBytes() int64 {
	o := &s.opts
	worthIt := int64(len(s.pending.parts)) * o.ThinBytes / mergeRuns
	return max(o.RoundBytes, min(worthIt, 4*o.RoundBytes, o.CacheBytes/2))
}

// applying is one Apply.
type applying struct {
	s           *Store
	index, term uint64
	now         int64
	entry       []byte
	offsets     []int64
	cached      bool // the entry is in the tail cache
}

// unit judges and applies one unit, whose operations begin at byte at of the entry.
func (a *applying) unit(n int32, body []byte, at int) Result {
	res := Result{LastOffset: -1, AppendTime: a.now, Index: a.index}
	if err := a.s.judge(a.now, body); err != nil {
		a.s.metrics.rejected.Add(1)
		res.Err = err
		return res
	}
	start, dups := len(a.offsets), 0
	appends := a.s.scratch.judging.appends
	k := 0
	for rest := body; len(rest) > 0; {
		var op Op
		pos := at + len(body) - len(rest) + opHeader + partitionSz
		op, rest = nextOp(rest)
		if op.Kind == OpAppend {
			pl := &appends[k]
			k++
			base, last := pl.dupBase, pl.dupLast
			if pl.dup {
				dups++
			} else {
				base, last = a.append(n, pl, op.Body[partitionSz:], pos)
			}
			a.offsets = append(a.offsets, base)
			res.LastOffset = last
			continue
		}
		a.mutate(op)
	}
	res.Offsets = a.offsets[start:len(a.offsets):len(a.offsets)]
	res.Duplicate = dups > 0 && dups == k
	return res
}

// judge decides about a unit and changes nothing but the scratch memory.
func (s *Store) judge(now int64, body []byte) error {
	j := &s.scratch.judging
	j.appends, j.opStep, j.state, j.drops, j.data = j.appends[:0], false, false, false, false
	if len(j.producers) > 0 {
		clear(j.producers)
	}
	for rest := body; len(rest) > 0; {
		var op Op
		op, rest = nextOp(rest)
		if err := s.judgeOp(j, now, op); err != nil {
			return err
		}
	}
	switch {
	case j.drops && j.data:
		return &RejectError{Reason: ErrBadUnit, Detail: "a drop beside other operations"}
	case j.state && (!j.opStep || j.progress.Task != j.stateTask):
		return &RejectError{Reason: ErrFenced, Detail: "state without progress of its task"}
	}
	return nil
}

func (s *Store) judgeOp(j *judging, now int64, op Op) error {
	switch op.Kind {
	case OpAppend:
		j.data = true
		return s.judgeAppend(j, now, op.Body)
	case OpProgress:
		j.data = true
		return s.judgeProgress(j, op)
	case OpState:
		j.data = true
		task, key, _ := op.State()
		switch {
		case j.state && task != j.stateTask:
			return &RejectError{Reason: ErrBadUnit, Detail: "state of two tasks"}
		case len(key) > MaxStateKeyBytes:
			return &RejectError{Reason: ErrTooLarge, Detail: fmt.Sprintf("state key of %d bytes", len(key))}
		}
		j.state, j.stateTask = true, task
	case OpTaskDrop, OpPartitionDrop:
		j.drops = true
	case OpPartitionSettings:
		id, _, _ := op.Partition()
		if s.parts.m[id] == nil {
			return &RejectError{Reason: ErrUnknownPartition, Partition: id}
		}
		j.data = true
	case OpLogStart:
		j.data = true
		id, offset := op.LogStart()
		p := s.parts.m[id]
		if p == nil {
			return &RejectError{Reason: ErrUnknownPartition, Partition: id}
		}
		if end := p.end.Load(); offset < 0 || offset > end {
			return &RejectError{Reason: ErrOffsetRange, Partition: id, Detail: fmt.Sprintf("log start %d, log end %d", offset, end)}
		}
	case OpCommand:
		return &RejectError{Reason: ErrBadUnit, Detail: "a metadata command"}
	}
	return nil
}

func (s *Store) judgeAppend(j *judging, now int64, body []byte) error {
	id := getPartition(body)
	p := s.lastPart
	if p == nil || p.id != id {
		if p = s.parts.m[id]; p == nil {
			return &RejectError{Reason: ErrUnknownPartition, Partition: id}
		}
		s.lastPart = p
	}
	batch := body[partitionSz:]
	h, err := record.ParseHeader(batch)
	if err != nil || h.Size() != len(batch) || h.LastOffsetDelta < 0 {
		return &RejectError{Reason: ErrBadBatch, Partition: id, Detail: fmt.Sprintf("%d bytes", len(batch))}
	}
	limit := MaxBatchBytes
	if m := p.settings.Load().MaxBatchBytes; m > 0 {
		limit = min(limit, int(m))
	}
	if len(batch) > limit {
		return &RejectError{Reason: ErrTooLarge, Partition: id, Detail: fmt.Sprintf("batch of %d bytes, limit %d", len(batch), limit)}
	}
	if len(j.appends) == 1 {
		j.note(&j.appends[0])
	}
	pl := planned{p: p, delta: h.LastOffsetDelta, id: h.ProducerID, maxTime: h.MaxTimestamp}
	if h.ProducerID >= 0 {
		pl.epoch, pl.first = h.ProducerEpoch, h.BaseSequence
		pl.end = addSequence(h.BaseSequence, h.LastOffsetDelta)
		if err := s.judgeSequence(j, now, &pl); err != nil {
			return err
		}
	}
	j.appends = append(j.appends, pl)
	return nil
}

func (s *Store) judgeSequence(j *judging, now int64, pl *planned) error {
	reject := func(err error) error {
		return &RejectError{Reason: err, Partition: pl.p.id, Detail: fmt.Sprintf("producer %d epoch %d sequence %d", pl.id, pl.epoch, pl.first)}
	}
	if pl.first < 0 || pl.epoch < 0 {
		return reject(ErrSequence)
	}
	if earlier, ok := j.producers[producerKey{pl.p, pl.id}]; ok {
		if earlier.epoch != pl.epoch || addSequence(earlier.last, 1) != pl.first {
			return reject(ErrSequence)
		}
	} else {
		dup, err := checkSequence(pl.p.producers[pl.id], now, pl.epoch, pl.first, pl.end)
		if err != nil {
			return reject(err)
		}
		if dup != nil {
			pl.dup, pl.dupBase, pl.dupLast = true, dup.base, dup.end
			return nil
		}
	}
	if len(j.appends) > 0 {
		j.note(pl)
	}
	return nil
}

// note remembers the last sequence of a producer for what follows in the unit. The first batch of a unit is only noted
// once there is a second.
func (j *judging) note(pl *planned) {
	if pl.id < 0 || pl.dup {
		return
	}
	if j.producers == nil {
		j.producers = make(map[producerKey]judged)
	}
	j.producers[producerKey{pl.p, pl.id}] = judged{pl.epoch, pl.end}
}

func (s *Store) judgeProgress(j *judging, op Op) error {
	if j.opStep {
		return &RejectError{Reason: ErrBadUnit, Detail: "two progresses"}
	}
	j.opStep, j.progress = true, op.Progress()
	pr := &j.progress
	t := s.tasks.m[pr.Task]
	switch {
	case t == nil:
		return &RejectError{Reason: ErrUnknownTask, Detail: pr.Task.String()}
	case pr.Epoch != t.Epoch:
		return &RejectError{Reason: ErrFenced, Detail: fmt.Sprintf("task epoch %d, now %d", pr.Epoch, t.Epoch)}
	case pr.Step != t.Step+1:
		return &RejectError{Reason: ErrFenced, Detail: fmt.Sprintf("step %d after %d", pr.Step, t.Step)}
	case len(pr.From) != len(pr.To) || (len(pr.Watermarks) != 0 && len(pr.Watermarks) != len(pr.To)):
		return &RejectError{Reason: ErrBadUnit, Detail: "cuts of different lengths"}
	}
	if err := sameCut(t.Progress.To, pr.From); err != nil {
		return err
	}
	for i := range pr.To {
		from, to := pr.From[i], pr.To[i]
		if from.Partition != to.Partition || to.Offset < from.Offset {
			return &RejectError{Reason: ErrBadUnit, Partition: to.Partition, Detail: "a cut that goes back"}
		}
		if p := s.parts.m[to.Partition]; p != nil && to.Offset > p.end.Load() {
			return &RejectError{Reason: ErrOffsetRange, Partition: to.Partition, Detail: fmt.Sprintf("cut at %d, log end %d", to.Offset, p.end.Load())}
		}
	}
	return nil
}

// sameCut checks that from begins where stored ended. Partitions that were not stored may join.
func sameCut(stored, from []Cut) error {
	for i, c := range stored {
		if i < len(from) && from[i] == c {
			continue
		}
		found := false
		for _, f := range from {
			if f.Partition == c.Partition {
				found = f.Offset == c.Offset
				break
			}
		}
		if !found {
			return &RejectError{Reason: ErrFenced, Partition: c.Partition, Detail: fmt.Sprintf("the step does not begin at %d", c.Offset)}
		}
	}
	return nil
}

// append hands an accepted batch to its partition.
func (a *applying) append(unit int32, pl *planned, batch []byte, pos int) (base, last int64) {
	s, p := a.s, pl.p
	base = p.end.Load()
	last = base + int64(pl.delta)
	if pl.id >= 0 {
		s.touchProducer(p, pl.id, pl.epoch, a.now, sequenceRange{first: pl.first, last: pl.end, base: base, end: last})
	}
	p.lastAppend = a.now
	if !p.dirty {
		p.dirty = true
		s.pending.parts = append(s.pending.parts, p)
	}
	item := cacheItem{p: p, index: a.index, bytes: tailBatchOverhead}
	if !a.cached {
		// The whole entry stays in memory while one of its batches does.
		a.cached = true
		item.bytes += int64(len(a.entry))
	}
	s.cache.push(item)
	p.push(&tailBatch{
		Batch: Batch{
			Base: base, Last: last, Epoch: int32(a.term), Unit: unit, Index: a.index, AppendTime: a.now,
			MaxTimestamp: pl.maxTime, Data: batch,
		},
		entryPos: uint32(pos), size: int32(len(batch)),
	})
	return base, last
}

// mutate applies one operation of an accepted unit, other than OpAppend.
func (a *applying) mutate(op Op) {
	s := a.s
	switch op.Kind {
	case OpOffsets:
		group, offsets := op.Offsets()
		s.groups.commit(group, slices.DeleteFunc(offsets, func(o GroupOffset) bool { return a.remembers(o.Partition) }), a.now)
	case OpGroupDrop:
		s.groups.drop(op.Group())
	case OpGroupExpire:
		group, idle := op.GroupExpire()
		s.groups.expire(group, idle, a.now)
	case OpProgress:
		pr := s.scratch.judging.progress
		pr.Extra = append([]byte(nil), pr.Extra...) // do not keep the entry for it
		s.setTask(pr.Task, TaskState{Epoch: pr.Epoch, Step: pr.Step, Progress: pr})
	case OpState:
		task, key, value := op.State()
		s.pending.state = append(s.pending.state, stateOp{task: task, key: key, value: value, kind: stateKind(value)})
	case OpTaskOpen:
		task := op.Task()
		t := TaskState{Epoch: a.index}
		if old := s.tasks.m[task]; old != nil {
			t.Step, t.Progress = old.Step, old.Progress
		}
		s.setTask(task, t)
	case OpTaskDrop:
		s.dropTask(op.Task())
	case OpPartitionOpen:
		id, set, meta := op.Partition()
		a.openPartition(id, set, meta)
	case OpPartitionSettings:
		id, set, meta := op.Partition()
		// Judged before the unit: a drop cannot stand beside it, so it is there.
		if p := s.parts.m[id]; meta > p.metaIndex {
			p.metaIndex = meta
			p.settings.Store(s.shareSettings(set))
			s.markDirty(p)
		}
	case OpPartitionDrop:
		id, _, meta := op.Partition()
		a.dropPartition(id, meta)
	case OpLogStart:
		id, offset := op.LogStart()
		if p := s.parts.m[id]; offset > p.start.Load() {
			p.start.Store(offset)
			s.markDirty(p)
		}
	}
}

// markDirty puts a partition of which something else than its batches has changed into the pending round.
func (s *Store) markDirty(p *Partition) {
	p.changed = true
	if !p.dirty {
		p.dirty = true
		s.pending.parts = append(s.pending.parts, p)
	}
}

func (a *applying) openPartition(id PartitionID, set PartitionSettings, meta uint64) {
	s := a.s
	if p := s.parts.m[id]; p != nil {
		if meta > p.metaIndex {
			p.metaIndex = meta
			p.settings.Store(s.shareSettings(set))
			s.markDirty(p)
		}
		return
	}
	if a.remembers(id) {
		return // topic UUIDs do not come again: a late open
	}
	if _, ok := s.dropped[id]; ok {
		s.undrop(id)
	}
	p := &Partition{id: id, st: s, metaIndex: meta, lastAppend: a.now}
	p.settings.Store(s.shareSettings(set))
	s.addPartition(p)
	s.markDirty(p)
}

// remembers reports that a partition was dropped not too long ago.
func (a *applying) remembers(id PartitionID) bool {
	d, ok := a.s.dropped[id]
	return ok && a.now-d.at < int64(dropMemory)
}

func (s *Store) undrop(id PartitionID) {
	delete(s.dropped, id)
	s.pending.undrops = append(s.pending.undrops, id)
}

// forgetDrops lets go of dropped partitions that are not remembered any longer, once there are many. When it does so
// changes nothing that Apply decides.
func (a *applying) forgetDrops() {
	s := a.s
	if len(s.dropped) < s.dropsKept*2+1024 {
		return
	}
	for id := range s.dropped {
		if !a.remembers(id) {
			s.undrop(id)
		}
	}
	s.dropsKept = len(s.dropped)
}

// dropPartition forgets a partition, and what groups have committed for it. Unknown ones are remembered as dropped too: the open may come late.
func (a *applying) dropPartition(id PartitionID, meta uint64) {
	s := a.s
	p := s.parts.m[id]
	if p != nil && meta < p.metaIndex {
		return // an old drop of what has been opened since
	}
	a.forgetDrops()
	s.groups.dropPartition(id)
	s.dropped[id] = droppedAt{metaIndex: max(meta, s.dropped[id].metaIndex), at: a.now}
	s.pending.drops = append(s.pending.drops, drop{id: id, p: p, droppedAt: s.dropped[id]})
	if p == nil {
		return
	}
	s.leaving = append(s.leaving, leaving{p, a.index})
	for _, r := range p.producers {
		s.producers.remove(r)
		r.gone, r.dirty = true, true // the rows go by range
	}
	p.producers = nil
	s.removePartition(p)
	if s.lastPart == p {
		s.lastPart = nil
	}
	p.dropped.Store(true)
	p.wake()
}
