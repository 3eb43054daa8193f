package log

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/uuid"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
)

// Open opens or makes a store. It brings the files in line with Pebble: what a crash has taken from them
// since the last checkpoint is written again from the log. After that Applied says what the store holds, and
// the caller applies the entries that follow.
//
// Errors: ErrAheadOfLog; *CorruptError; what the file system says.
func Open(o Options) (*Store, error) {
	s := newStore(o)
	o = s.opts
	if err := fsx.MkdirAll(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	c, err := readManifest(o.FS, s.path(manifestName))
	if err != nil {
		return nil, err
	}
	err = fsx.Survive(func() error {
		if err := s.openDB(); err != nil {
			return err
		}
		if err := s.poisonedErr(); err != nil {
			return err // and nobody waits for it any more
		}
		if err := s.recover(c); err != nil {
			s.w.closeFiles()
			s.handles.close()
			return errors.Join(err, s.closeDB())
		}
		return nil
	}, s.kvGone, s.poisoned)
	if err != nil {
		return nil, err
	}
	if o.Manual {
		if err := s.findOrphans(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return s, nil
	}
	s.compactor.running <- struct{}{} // until tidy is over
	s.done.Add(3)
	go s.run()
	go s.tidy()
	go s.runCompactor()
	return s, nil
}

// newStore is a store with nothing in it and nothing open.
func newStore(o Options) *Store {
	o = o.withDefaults()
	if o.offline {
		o.FS = fsx.Unlocked(o.FS) // a database that was given up keeps its lock
	}
	s := &Store{
		opts: o, dropped: map[PartitionID]droppedAt{}, settings: map[PartitionSettings]*PartitionSettings{},
		maxProducers: o.maxProducers, token: make(chan struct{}, 1), kicks: make(chan struct{}, 1), closed: make(chan struct{}),
		poisoned: make(chan struct{}), keySeeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
	}
	s.compactor.running = make(chan struct{}, 1)
	s.compactor.states, s.compactor.failed = map[PartitionID]*compactState{}, map[PartitionID]int64{}
	s.parts.m, s.tasks.m = map[PartitionID]*Partition{}, map[TaskID]*TaskState{}
	s.groups.cur, s.groups.active = newGeneration(), map[string]int64{}
	s.pending.tasks = map[TaskID]struct{}{}
	s.handles = &handleCache{s: s}
	s.handles.mu.m = map[string]*handle{}
	s.life.idle.L = &s.life.mu
	s.w = writer{
		s: s, mixed: map[uint64]mixedFile{}, moved: map[PartitionID]int64{}, logReader: entryReader{log: o.Log},
		dirty: dirtyFiles{s: s, m: map[string]fsx.File{}, dirs: map[string]bool{}},
	}
	return s
}

// recover loads the rows and repairs the files. c is the last checkpoint.
func (s *Store) recover(c point) error {
	if err := s.load(c); err != nil {
		return err
	}
	if err := s.repair(c.index); err != nil {
		var bad *CorruptError
		if errors.As(err, &bad) {
			err = s.corrupt(bad)
		}
		return err
	}
	if err := s.remakeMixed(); err != nil {
		return err
	}
	return s.findMixedOrphans()
}

// load reads the rows. c is the last checkpoint.
func (s *Store) load(c point) error {
	s.w.checkpoint.Store(&c)
	a, err := s.loadApplied()
	if err != nil {
		return err
	}
	at := point{a.index, a.term}
	s.applied.Store(&at)
	s.written.Store(a.index)
	s.pending.index, s.pending.term = a.index, a.term
	s.now, s.producers.clock = a.now, a.clock
	s.w.term, s.w.now, s.w.clock, s.w.mixedNow = a.term, a.now, a.clock, a.mixed
	if c.index > a.index {
		return s.corrupt(&CorruptError{Path: "kv", Position: -1, Err: fmt.Errorf("%w: rows at index %d, checkpoint at %d", ErrCorrupt, a.index, c.index)})
	}
	if err := s.checkLog(at); err != nil {
		return err
	}
	for _, load := range []func() error{s.loadPartitions, s.loadSegments, s.loadProducers, s.loadTasks, s.loadGroups, s.loadDropped, s.loadMixedFiles} {
		if err := load(); err != nil {
			return err
		}
	}
	return nil
}

// remakeMixed makes the mixed file that is written, if a crash has taken it. Recovery has written it again if anything in
// it is needed; where everything has moved on, nobody has.
func (s *Store) remakeMixed() error {
	w := &s.w
	if s.applied.Load().index > w.checkpoint.Load().index {
		// It may have been made since the checkpoint, by a process that did not come to sync its name. Whether or not
		// something in it is looked at by repair, what comes next is written there.
		w.dirty.dirs[mixedDir], w.dirty.dirs["."] = true, true
	}
	m := w.mixed[w.mixedNow]
	if m.size == 0 || m.live > 0 {
		return nil
	}
	path := s.mixedPath(w.mixedNow)
	if _, err := s.opts.FS.Stat(s.path(path)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	_, err := w.dirty.open(path, true)
	return err
}

// checkLog holds the applied index against the log: what the store has applied must be there, unless it is
// so old that the log has let go of it.
func (s *Store) checkLog(a point) error {
	if s.opts.Log == nil || a.index == 0 || s.opts.offline {
		return nil
	}
	first, last := s.opts.Log.Bounds()
	switch {
	case last == 0 && a == *s.w.checkpoint.Load():
		return nil // nothing is wanted of an empty log
	case a.index > last:
		return fmt.Errorf("%w: applied %d, the log ends at %d", ErrAheadOfLog, a.index, last)
	case a.index+1 < first:
		return fmt.Errorf("log: the store has applied %d and its log begins at %d: entries are missing", a.index, first)
	case a.index < first:
		return nil
	}
	term, _, err := s.opts.Log.ReadEntry(a.index)
	if err != nil {
		return fmt.Errorf("entry %d: %w", a.index, err)
	}
	if term != a.term {
		return fmt.Errorf("%w: applied %d of term %d, the log has term %d there", ErrAheadOfLog, a.index, a.term, term)
	}
	return nil
}

func (s *Store) loadApplied() (a appliedRow, err error) {
	v, closer, err := s.db.Get([]byte{rowApplied})
	if errors.Is(err, pebble.ErrNotFound) {
		return a, nil
	}
	if err != nil {
		return a, s.kvError(err)
	}
	a, err = decodeApplied(v)
	return a, s.kvError(errors.Join(err, closer.Close()))
}

// eachRow calls f for the rows of a kind, with the key after its kind.
func (s *Store) eachRow(kind byte, keySize int, f func(key, value []byte) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		return s.kvError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		k := it.Key()[1:]
		err := fmt.Errorf("%w: kind %q: key of %d bytes", errRow, kind, len(k))
		if len(k) == keySize {
			err = f(k, it.Value())
		}
		if err != nil {
			_ = it.Close()
			return s.kvError(err)
		}
	}
	return s.kvError(it.Close())
}

func (s *Store) loadPartitions() error {
	runs, err := s.mixedRows()
	if err != nil {
		return s.kvError(err)
	}
	err = s.eachRow(rowPartition, partitionSz, func(k, v []byte) error {
		r, err := decodePartition(v)
		if err == nil {
			err = addRuns(runs, getPartition(k), &r)
		}
		if err != nil {
			return err
		}
		p := &Partition{id: getPartition(k), st: s, metaIndex: r.metaIndex, lastAppend: r.lastAppend}
		p.settings.Store(s.shareSettings(r.settings))
		p.start.Store(r.start)
		p.end.Store(r.end)
		p.tail.placed = r.end
		if r.end > 0 {
			p.layout.Store(&layout{mixStart: r.mixStart, written: r.end, mixBytes: r.mixBytes, mixRuns: r.mixRuns, mixOldest: r.mixOldest})
		}
		s.addPartition(p)
		return nil
	})
	return s.kvError(errors.Join(err, runs.Close()))
}

// mixedRows iterates over the rows of runs in the mixed segment.
func (s *Store) mixedRows() (*pebble.Iterator, error) {
	return s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowMixed}, UpperBound: []byte{rowMixed + 1}})
}

// addRuns brings a partition's row up to the last round. A round that has done nothing for a partition but add a run to
// those that it had writes no row of the partition, with many of them a third of all rows. Whoever writes the row for
// another reason has the runs in it; whoever joins runs must write it, so that a run begins where a row ends.
func addRuns(runs *pebble.Iterator, id PartitionID, r *partitionRow) error {
	if r.mixRuns == 0 {
		return nil
	}
	prefix := partitionKey(rowMixed, id)
	for ok := runs.SeekGE(offsetKey(rowMixed, id, r.end)); ok && bytes.HasPrefix(runs.Key(), prefix); ok = runs.Next() {
		_, block, err := decodeMixed(runs.Value())
		if err != nil {
			return err
		}
		h, err := segment.ParseHead(block)
		if err != nil {
			return fmt.Errorf("%w: %w", errRow, err)
		}
		if h.First != r.end {
			return fmt.Errorf("%w: kind %q: a run of %s at %d, the one before ends at %d", errRow, rowMixed, id, h.First, r.end)
		}
		r.end, r.lastAppend = h.Last+1, h.AppendTime
		r.mixRuns, r.mixBytes = r.mixRuns+1, r.mixBytes+h.Bytes
	}
	return runs.Error()
}

// partitionRow is the row of a partition as of the last round. Token held.
func (s *Store) partitionRow(id PartitionID) (r partitionRow, err error) {
	v, closer, err := s.db.Get(partitionKey(rowPartition, id))
	if err != nil {
		return r, s.kvError(err)
	}
	r, err = decodePartition(v)
	if err = errors.Join(err, closer.Close()); err != nil {
		return r, s.kvError(err)
	}
	runs, err := s.mixedRows()
	if err != nil {
		return r, s.kvError(err)
	}
	err = addRuns(runs, id, &r)
	return r, s.kvError(errors.Join(err, runs.Close()))
}

func (s *Store) loadSegments() error {
	return s.eachRow(rowSegment, partitionSz+8, func(k, v []byte) error {
		id := getPartition(k)
		seg, err := decodeSegment(getI64(k[partitionSz:]), v)
		if err != nil {
			return err
		}
		p := s.parts.m[id]
		l := p.layoutOrNil(p != nil)
		if l == nil {
			return fmt.Errorf("%w: segment %d of unknown partition %s", errRow, seg.base, id)
		}
		l.segs = append(l.segs, seg) // nobody reads yet
		return nil
	})
}

func (s *Store) loadProducers() error {
	var all []*producer
	err := s.eachRow(rowProducer, partitionSz+8, func(k, v []byte) error {
		r, err := decodeProducer(getI64(k[partitionSz:]), v)
		if err != nil {
			return err
		}
		id := getPartition(k)
		if r.p = s.parts.m[id]; r.p == nil {
			return fmt.Errorf("%w: producer of unknown partition %s", errRow, id)
		}
		if r.p.producers == nil {
			r.p.producers = map[int64]*producer{}
		}
		r.p.producers[r.id] = r
		all = append(all, r)
		return nil
	})
	slices.SortFunc(all, func(a, b *producer) int { return cmp.Compare(a.touched, b.touched) })
	for _, r := range all {
		s.producers.push(r)
	}
	return err
}

func (s *Store) loadTasks() error {
	return s.eachRow(rowTask, 16, func(k, v []byte) error {
		t, err := decodeTask(v)
		s.tasks.m[TaskID(k)] = &t
		return err
	})
}

func (s *Store) loadGroups() error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{rowActive}, UpperBound: []byte{rowActive + 1}})
	if err != nil {
		return s.kvError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		at, err := decodeActive(it.Value())
		if err != nil {
			_ = it.Close()
			return s.kvError(err)
		}
		s.groups.active[string(it.Key()[1:])] = at
	}
	return s.kvError(it.Close())
}

func (s *Store) loadDropped() error {
	return s.eachRow(rowDropped, partitionSz, func(k, v []byte) error {
		d, err := decodeDropped(v)
		s.dropped[getPartition(k)] = d
		return err
	})
}

func (s *Store) loadMixedFiles() error {
	return s.eachRow(rowMixedFile, 8, func(k, v []byte) error {
		m, err := decodeMixedFile(v)
		s.w.mixed[binary.BigEndian.Uint64(k)] = m
		return err
	})
}

// repair verifies what rounds after the checkpoint have written, and writes again what is not there.
func (s *Store) repair(checkpoint uint64) error {
	r := repairer{s: s, checkpoint: checkpoint, log: entryReader{log: s.opts.Log}}
	err := s.eachRow(rowPlaced, 8+partitionSz+2, func(k, v []byte) error {
		row, err := decodePlaced(v)
		if err != nil {
			return err
		}
		p := s.parts.m[getPartition(k[8:])]
		l := p.layoutOrNil(p != nil)
		if l == nil {
			return nil // dropped since
		}
		// The runs that moved here may still have rows: they go in one batch with this one.
		s.w.moved[p.id] = l.mixStart
		if binary.BigEndian.Uint64(k) <= checkpoint {
			return nil // a crash came before it was dropped
		}
		return r.tolerate(p, r.own(p, l, &row))
	})
	if err != nil {
		return err
	}
	return s.eachRow(rowRuns, 8, func(k, v []byte) error {
		done := binary.BigEndian.Uint64(k) <= checkpoint // a crash came before it was dropped
		return eachPlacedRun(v, func(id PartitionID, base int64) error {
			p := s.parts.m[id]
			l := p.layoutOrNil(p != nil)
			if done || l == nil {
				return nil
			}
			return r.tolerate(p, r.mixed(p, l, base))
		})
	})
}

type repairer struct {
	s          *Store
	checkpoint uint64
	log        entryReader
}

// tolerate makes a failure a warning where the store is opened to be repaired: who repairs it finds it.
func (r *repairer) tolerate(p *Partition, err error) error {
	if err != nil && r.s.opts.offline {
		r.s.opts.Logger.Warn("not written again", "partition", p.id.String(), "err", err)
		return nil
	}
	return err
}

func (r *repairer) own(p *Partition, l *layout, row *placedRow) error {
	i := slices.IndexFunc(l.segs, func(x segmentInfo) bool { return x.base == row.base })
	if i < 0 || l.segs[i].generation > 0 {
		return nil // the log start has passed it, or compaction has replaced it and synced what is there now
	}
	var refs []segment.Ref
	var prev uint32
	for b := row.blocks; len(b) > 0; {
		h, more, err := segment.DecodeBlock(b, refs)
		if err != nil {
			return fmt.Errorf("%w: %w", errRow, err)
		}
		if len(refs) == 0 {
			prev = h.Prev
		}
		refs, b = more, b[h.Size:]
	}
	if len(refs) == 0 {
		return fmt.Errorf("%w: a placed row without batches", errRow)
	}
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: row.base}
	if err := r.file(p, l, r.s.logPath(p.id, &l.segs[i]), seed, refs, prev); err != nil {
		return err
	}
	return r.index(p, r.s.indexPath(p.id, &l.segs[i]), row)
}

// index makes the blocks of a placed row be in the index file, and be written by the next sync: see file.
func (r *repairer) index(p *Partition, path string, row *placedRow) error {
	f, err := r.open(p, path, row.indexPos, row.base)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(row.blocks, row.indexPos); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func (r *repairer) mixed(p *Partition, l *layout, base int64) error {
	if base < l.mixStart {
		return nil // it has moved
	}
	v, closer, err := r.s.db.Get(offsetKey(rowMixed, p.id, base))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil // the log start has passed it
	}
	if err != nil {
		return err
	}
	defer func() { _ = closer.Close() }()
	file, block, err := decodeMixed(v)
	if err != nil {
		return err
	}
	_, refs, err := segment.DecodeBlock(block, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errRow, err)
	}
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(file)}
	return r.file(p, l, r.s.mixedPath(file), seed, refs, 0)
}

// open opens a file that is to be synced with the next checkpoint, and makes it if nothing of it was synced.
func (r *repairer) open(p *Partition, path string, pos, offset int64) (fsx.File, error) {
	d := &r.s.w.dirty
	f, err := d.open(path, false)
	if errors.Is(err, os.ErrNotExist) {
		if pos > 0 && !r.made(path) && !r.s.opts.offline {
			return nil, &CorruptError{Path: path, Partition: p.id, Offset: offset, Position: 0, Err: err}
		}
		f, err = d.open(path, true)
	}
	if err != nil {
		return nil, err
	}
	// It may have been made since the checkpoint: its directories are not known to be synced.
	for dir := r.s.opts.FS.PathDir(path); dir != "." && dir != "/"; dir = r.s.opts.FS.PathDir(dir) {
		d.dirs[dir] = true
	}
	d.dirs["."] = true
	return f, nil
}

// made reports that a mixed file may be missing although the first batch wanted of it is not its first: the
// ones before have moved on. Only batches after the checkpoint are ever written again.
func (r *repairer) made(path string) bool { return r.s.opts.FS.PathDir(path) == mixedDir }

// file makes the batches of refs be in a file, and be written by the next sync. It goes through them in pieces of about a
// megabyte.
//
// What reads well is written again, too. The process before may have met a sync that failed, after which the system holds
// the pages and believes that they are on the disk: no sync would ever write them again.
func (r *repairer) file(p *Partition, l *layout, path string, seed segment.Seed, refs []segment.Ref, prev uint32) error {
	f, err := r.open(p, path, refs[0].Pos, refs[0].Base)
	if err != nil {
		return err
	}
	for len(refs) > 0 {
		n, size := 0, int64(0)
		for n < len(refs) && (n == 0 || size+int64(refs[n].Size) <= chunkBytes) {
			if refs[n].Size > MaxBatchBytes {
				return fmt.Errorf("%w: batch of %d bytes", errRow, refs[n].Size)
			}
			size += int64(refs[n].Size)
			n++
		}
		b := make([]byte, size)
		have, err := f.ReadAt(b, refs[0].Pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for i := range refs[:n] {
			ref := &refs[i]
			at := ref.Pos - refs[0].Pos
			if at < 0 || at > size-int64(ref.Size) {
				return fmt.Errorf("%w: a batch at %d of a run at %d", errRow, ref.Pos, refs[0].Pos)
			}
			end := at + int64(ref.Size)
			if int64(have) < end || seed.Verify(b[at:end], ref, prev) != nil {
				data, err := r.original(p, l, ref)
				if err != nil {
					return err
				}
				if err := seed.Verify(data, ref, prev); err != nil {
					return &CorruptError{Path: path, Partition: p.id, Offset: ref.Base, Position: ref.Pos, Err: fmt.Errorf("its original: %w", err)}
				}
				copy(b[at:end], data)
				r.s.metrics.repaired.Add(1)
			}
			prev = ref.Link
		}
		if _, err := f.WriteAround(b, refs[0].Pos); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		refs = refs[n:]
	}
	return nil
}

// original fetches a batch as it is to be in its file: from the log, or from where it lay in the mixed
// segment at the checkpoint.
func (r *repairer) original(p *Partition, l *layout, ref *segment.Ref) ([]byte, error) {
	if ref.Index > r.checkpoint {
		data, err := r.log.at(ref.Index, ref.EntryPos, ref.Size)
		if err != nil {
			return nil, fmt.Errorf("partition %s offset %d is lost: %w", p.id, ref.Base, err)
		}
		data = bytes.Clone(data)
		if len(data) < record.HeaderSize {
			return nil, fmt.Errorf("%w: batch of %d bytes", errRow, len(data))
		}
		record.SetBase(data, ref.Base, int32(ref.Term))
		return data, nil
	}
	var found []byte
	err := r.s.eachRun(r.s.db, p.id, ref.Base, func(_ int64, file uint64, h segment.Head, block []byte) (bool, error) {
		if h.First > ref.Base || h.Last < ref.Last {
			return false, nil
		}
		got, _, err := r.s.readRun(nil, p, file, block, ref.Base, int(ref.Size), nil)
		if len(got.out) > 0 && got.out[0].Base == ref.Base {
			found, err = got.out[0].Data, nil
		}
		return false, err
	})
	if err == nil && found == nil {
		err = &CorruptError{Path: r.s.partitionDir(p.id), Partition: p.id, Offset: ref.Base, Position: ref.Pos, Err: fmt.Errorf("%w: a synced batch is gone", ErrCorrupt)}
	}
	return found, err
}

// findMixedOrphans notes files of the mixed segment for removal that a crash has left.
func (s *Store) findMixedOrphans() error {
	names, err := list(s.opts.FS, s.path(mixedDir))
	if err != nil {
		return err
	}
	for _, name := range names {
		n, _, index, ok := segment.ParseName(name)
		if _, known := s.w.mixed[uint64(n)]; ok && !index && !known && uint64(n) < s.w.mixedNow {
			// The segment that its batches moved to may not be synced: after the next checkpoint. A larger
			// number is of a lost round; it is used again.
			s.w.mixGone = append(s.w.mixGone, uint64(n))
		}
	}
	return nil
}

// orphanPause is the pause of findOrphans after each partition with files of its own: a start with very many has
// more urgent work.
const orphanPause = time.Millisecond

// tidy runs findOrphans beside everything else but compaction, whose new files no row names yet.
func (s *Store) tidy() {
	defer s.done.Done()
	defer func() { <-s.compactor.running }()
	if err := s.use(s.findOrphans); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
		s.opts.Logger.Warn("files that a crash may have left are looked for again at the next start", "err", err)
	}
}

// findOrphans notes files of partitions for removal that a crash has left: those of rounds that Pebble does not know,
// and those that were about to be removed. Files that nothing explains stay, and are named in the log.
//
// It lists a directory for each partition with files of its own, which a start must not wait for. Nothing depends on
// it: who makes a file makes it empty. It holds the writer's token while it looks at a partition.
func (s *Store) findOrphans() error {
	fs := s.opts.FS
	topics, err := list(fs, s.path(topicsDir))
	if err != nil {
		return err
	}
	for _, topic := range topics {
		u, err := uuid.Parse(topic)
		if err != nil {
			continue
		}
		indexes, err := list(fs, s.path(s.topicDir(TopicID(u))))
		if err != nil {
			return err
		}
		for _, text := range indexes {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 0 {
				continue
			}
			if err := s.lockWriter(context.Background()); err != nil {
				return err
			}
			err = s.findPartitionOrphans(PartitionID{TopicID(u), int32(n)})
			s.unlockWriter()
			if err != nil {
				return err
			}
			if s.opts.Manual {
				continue
			}
			select {
			case <-s.closed:
				return ErrClosed
			case <-time.After(orphanPause):
			}
		}
	}
	return nil
}

// findPartitionOrphans is findOrphans for one partition. Token held.
func (s *Store) findPartitionOrphans(id PartitionID) error {
	p, ok := s.Partition(id)
	if !ok {
		s.applyMu.Lock()
		_, dropped := s.dropped[id]
		dropped = dropped && s.parts.m[id] == nil
		s.applyMu.Unlock()
		if dropped {
			s.w.queueRemoval(s.partitionDir(id))
		}
		return nil // opened and written after Pebble's index: it comes again
	}
	names, err := list(s.opts.FS, s.path(s.partitionDir(id)))
	if err != nil {
		return err
	}
	var l layout
	if x := p.layout.Load(); x != nil {
		l = *x
	}
	for _, name := range names {
		base, generation, _, ok := segment.ParseName(name)
		switch {
		case s.w.dirty.m[s.opts.FS.PathJoin(s.partitionDir(id), name)] != nil:
			// Of a round that is tried again.
		case !ok || slices.ContainsFunc(l.segs, func(x segmentInfo) bool { return x.base == base && x.generation == generation }):
		case base >= l.mixStart || generation > 0 || slices.ContainsFunc(l.segs, func(x segmentInfo) bool {
			return x.generation > 0 && x.base <= base && base < x.end
		}):
			// Of a lost round or of a lost swap of compaction, whose successor may use the name again: while nobody writes
			// or compacts. Or what a swap has replaced, whose rows are durable.
			if err := s.removeFile(s.opts.FS.PathJoin(s.partitionDir(id), name)); err != nil {
				return err
			}
		case base < p.start.Load():
			s.w.queueRemoval(s.opts.FS.PathJoin(s.partitionDir(id), name))
		default:
			s.opts.Logger.Warn("unexplained file", "path", s.opts.FS.PathJoin(s.partitionDir(id), name))
		}
	}
	return nil
}

// list lists a directory that may not be there.
func list(fs fsx.FS, dir string) ([]string, error) {
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}
