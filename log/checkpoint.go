package log

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/segment"
)

// CheckpointInfo is what a checkpoint has made durable: the store as it was after this entry.
type CheckpointInfo struct {
	Index, Term uint64
}

// Checkpoint writes and syncs everything that was applied before the call. When it returns without an error,
// the log may let go of the entries up to Index.
//
// It works in the caller's goroutine; rounds of the writer wait meanwhile, Apply and readers do not.
// On a full disk it waits for space until ctx ends.
// Errors: those of Flush; ErrPoisoned if a sync failed; the context's.
func (s *Store) Checkpoint(ctx context.Context) (CheckpointInfo, error) {
	if err := s.lockWriter(ctx); err != nil {
		return CheckpointInfo{}, err
	}
	defer s.unlockWriter()
	begun := time.Now()
	if err := s.catchUp(); err != nil {
		return CheckpointInfo{}, err
	}
	w := &s.w
	at := point{s.written.Load(), w.term}
	if at == *w.checkpoint.Load() && len(w.dirty.order) == 0 && len(w.dirty.dirs) == 0 {
		return CheckpointInfo{at.index, at.term}, nil
	}
	if err := w.checkpointAt(ctx, at); err != nil {
		return CheckpointInfo{}, fmt.Errorf("checkpoint at %d: %w", at.index, err)
	}
	s.metrics.checkpoints.Add(1)
	s.metrics.lastCheckpnt.Store(int64(time.Since(begun)))
	if s.opts.Manual {
		s.removeQueued()
	}
	return CheckpointInfo{at.index, at.term}, nil
}

func (w *writer) checkpointAt(ctx context.Context, at point) error {
	s := w.s
	if err := w.sweepMixed(); errors.Is(err, syscall.ENOSPC) && !errors.Is(err, ErrPoisoned) {
		// It only saves space later. The checkpoint lets the log give some back now.
		s.opts.Logger.Warn("mixed segment not swept", "err", err)
		w.dirty.discardUnder(s.mixedPath(w.mixNow))
		_, _ = s.empty(s.mixedPath(w.mixNow)) // the next sweep makes it anew
	} else if err != nil {
		return err
	}
	if err := w.dirty.sync(); err != nil {
		return err
	}
	if err := s.flushDB(ctx); err != nil {
		return err
	}
	if err := s.writeManifest(at); err != nil {
		return err
	}
	w.checkpoint.Store(&at)

	// From here on it is tidying up, which the next checkpoint does again if a crash undoes it.
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	for _, kind := range []byte{rowPlaced, rowRuns} {
		_ = b.DeleteRange(numberKey(kind, 0), numberKey(kind, at.index+1), nil) // in memory: cannot fail
	}
	for id, below := range w.moved {
		_ = b.DeleteRange(offsetKey(rowMixed, id, 0), offsetKey(rowMixed, id, below), nil)
	}
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	clear(w.moved)
	for _, n := range w.mixGone {
		w.queueRemoval(s.mixedPath(n))
	}
	w.mixGone = nil
	s.kick()
	return nil
}

// sweepMixed copies what is still needed out of mixed files that are mostly garbage, and makes one run of
// those of partitions that have many. The copies are synced before a row points to them, so recovery never
// has to know of them.
func (w *writer) sweepMixed() error {
	s := w.s
	victims := w.mixedVictims()
	parts := w.toSweep(len(victims) > 0)
	if len(parts) == 0 {
		return nil
	}
	w.newMix, w.layouts = map[uint64]mixedFile{}, w.layouts[:0]
	w.mixNow, w.mixBuf, w.mixPos = w.mixedNow+1, w.mixBuf[:0], 0
	w.batch = s.db.NewBatch()
	defer func() { _ = w.batch.Close() }()
	for _, p := range parts {
		err := w.sweepPartition(p, victims)
		if errors.Is(err, ErrCorrupt) {
			// What has rotted stays where it is: readers name it.
			s.opts.Logger.Error("mixed segment not swept", "partition", p.id.String(), "err", err)
			continue
		}
		if err != nil {
			return fmt.Errorf("sweep mixed segment: partition %s: %w", p.id, err)
		}
	}
	if err := w.flushMixed(); err != nil {
		return err
	}
	if len(w.newMix) == 0 {
		return nil
	}
	if err := w.dirty.sync(); err != nil {
		return err
	}
	w.set([]byte{rowApplied}, appliedRow{s.written.Load(), w.term, w.now, w.clock, w.mixNow}.encode())
	w.mixedRows()
	if err := s.db.Apply(w.batch, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	w.publish()
	return nil
}

// sweepRuns and sweepBytes bound what one checkpoint looks at and copies: rounds wait for it. The next one goes on
// behind.
const (
	sweepRuns  = 32 << 10
	sweepBytes = 64 << 20
)

// toSweep chooses the partitions that a checkpoint sweeps: all that have runs if there are victims, else those whose
// many runs are worth merging.
func (w *writer) toSweep(victims bool) (out []*Partition) {
	s := w.s
	begin, at := w.sweepFrom, w.sweepFrom
	runs, size := 0, int64(0)
	chunk := make([]*Partition, 0, walkChunk)
	var chosen map[*Partition]bool // those before the walk has begun again at 0: a drop may move them there
	for {
		chunk = s.somePartitions(at, chunk)
		if chosen != nil {
			chunk = chunk[:min(len(chunk), max(0, begin-at))]
		}
		if len(chunk) == 0 {
			if chosen != nil || begin == 0 {
				w.sweepFrom = 0
				return out
			}
			at, chosen = 0, make(map[*Partition]bool, len(out))
			for _, p := range out {
				chosen[p] = true
			}
			continue
		}
		for _, p := range chunk {
			at++
			l := p.layout.Load()
			if l == nil || l.mixRuns == 0 || !victims && !s.manyRuns(l) || chosen[p] {
				continue
			}
			out = append(out, p)
			// Finding a partition's rows costs about as much as reading four runs.
			if runs, size = runs+4+l.mixRuns, size+l.mixBytes; runs > s.opts.sweepRuns || size > sweepBytes {
				w.sweepFrom = at
				return out
			}
		}
	}
}

// manyRuns says that the runs of a partition are worth merging: many and small. Of a partition that grows fast they are
// larger, and soon move to a file anyway.
func (s *Store) manyRuns(l *layout) bool {
	return l.mixRuns > s.opts.mergeRuns && l.mixBytes < int64(l.mixRuns)*(4<<10)
}

// mixedVictims returns the mixed files that are not worth their space, if all of them together waste enough.
func (w *writer) mixedVictims() map[uint64]bool {
	var size, live int64
	victims := map[uint64]bool{}
	for n, m := range w.mixed {
		if n == w.mixedNow {
			continue
		}
		size, live = size+m.size, live+m.live
		if m.live < m.size/2 {
			victims[n] = true
		}
	}
	if size-live < max(live, w.s.opts.SegmentBytes/4) {
		return nil
	}
	return victims
}

// sweptRun is a run to copy: with its row's key and its bytes.
type sweptRun struct {
	runBatches
	base int64
	file uint64
	size int64
}

// last is the append time of the run's last batch, ns.
func (r *sweptRun) last() int64 { return r.refs[len(r.refs)-1].AppendTime }

// sweepPartition copies the runs of a partition that must leave their files. It reads all before it writes
// any, so that a run that cannot be read leaves the partition as it is.
func (w *writer) sweepPartition(p *Partition, victims map[uint64]bool) error {
	l := *p.layout.Load()
	merge := w.s.manyRuns(&l)
	var runs []sweptRun
	err := w.eachRun(p.id, l.mixStart, func(base int64, file uint64, h segment.Head, block []byte) (bool, error) {
		if !merge && !victims[file] {
			return true, nil
		}
		got, again, err := w.s.readRun(nil, p, file, block, 0, int(h.Bytes), nil)
		runs = append(runs, sweptRun{got, base, file, h.Bytes})
		return true, errors.Join(err, errIf(again, "mixed file is missing"))
	})
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return nil
	}
	m := w.mixFile(w.mixNow)
	seed := segment.Seed{Topic: p.id.Topic, Partition: p.id.Index, Segment: segment.MixedSegment(w.mixNow)}
	groups := [][]sweptRun{runs}
	if merge {
		groups = mergeGroups(runs, p.Settings(), w.s.opts.mergeRuns)
		l.mixRuns, l.mixOldest = len(groups), groups[0][len(groups[0])-1].last()
	} else {
		groups = groups[:0]
		for i := range runs {
			groups = append(groups, runs[i:i+1])
		}
	}
	for _, group := range groups {
		if len(group) == 1 && !victims[group[0].file] {
			continue // nothing to merge it with, and no need to move it
		}
		var refs []segment.Ref
		link := uint32(0)
		for i := range group {
			r := &group[i]
			for k, ref := range r.refs {
				n := len(w.mixBuf)
				w.mixBuf = r.out[k].AppendTo(w.mixBuf)
				link = seed.Link(link, w.mixBuf[n:])
				ref.Pos, ref.Link = m.size, link
				m.size += int64(ref.Size)
				refs = append(refs, ref)
			}
			m.live += r.size
			old := w.mixFile(r.file)
			old.live -= r.size
			w.newMix[r.file] = old
			if i > 0 {
				w.del(offsetKey(rowMixed, p.id, r.base))
			}
		}
		w.set(offsetKey(rowMixed, p.id, group[0].base), appendMixed(nil, w.mixNow, segment.AppendBlock(nil, refs, 0)))
		w.newMix[w.mixNow] = m
	}
	if merge {
		if err := w.rewriteMixRow(p, &l); err != nil {
			return err
		}
	}
	// A new layout also where nothing in it has changed: it tells readers under way to look again.
	w.layouts = append(w.layouts, placedLayout{p: p, l: &l})
	if len(w.mixBuf) >= chunkBytes {
		return w.flushMixed()
	}
	return nil
}

// mergeGroups divides the runs of a partition into those that become one. With retention by time a run must not grow
// older than a segment would, or what is new in it keeps what is old; unless that would leave more than most, because
// somebody holds retention up.
func mergeGroups(runs []sweptRun, set PartitionSettings, most int) (groups [][]sweptRun) {
	age := int64(math.MaxInt64)
	if set.RetentionMs > 0 {
		age = int64(rollAge(set))
	}
	begin := 0
	for i := range runs {
		if i > begin && runs[i].last()-runs[begin].refs[0].AppendTime > age {
			groups = append(groups, runs[begin:i])
			begin = i
		}
	}
	if groups = append(groups, runs[begin:]); len(groups) > most {
		return [][]sweptRun{runs}
	}
	return groups
}

// rewriteMixRow changes what a partition's row says of its runs and leaves the rest as of the last round.
func (w *writer) rewriteMixRow(p *Partition, l *layout) error {
	row, err := w.s.partitionRow(p.id)
	if err != nil {
		return err
	}
	row.mixRuns, row.mixOldest = l.mixRuns, l.mixOldest
	w.row = row.encode(w.row[:0])
	w.set(partitionKey(rowPartition, p.id), w.row)
	return nil
}

func errIf(bad bool, text string) error {
	if bad {
		return fmt.Errorf("%w: %s", ErrCorrupt, text)
	}
	return nil
}

func (p *Partition) layoutOrNil(ok bool) *layout {
	if !ok {
		return nil
	}
	return p.layout.Load()
}

// The manifest names the last checkpoint.
//
//	manifest = magic "HRCP" | version u8 | 0 u8[3] | index u64 | term u64 | crc u32 of what is before
const (
	manifestName  = "checkpoint"
	manifestBytes = 4 + 4 + 8 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeManifest(at point) []byte {
	b := append(make([]byte, 0, manifestBytes), "HRCP\x01\x00\x00\x00"...)
	b = appendU64(appendU64(b, at.index), at.term)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeManifest(b []byte) (point, error) {
	if len(b) != manifestBytes || string(b[:8]) != "HRCP\x01\x00\x00\x00" ||
		crc32.Checksum(b[:24], castagnoli) != binary.BigEndian.Uint32(b[24:]) {
		return point{}, fmt.Errorf("%w: manifest", ErrCorrupt)
	}
	return point{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, nil
}

func (s *Store) writeManifest(at point) error {
	fs, temp := s.opts.FS, s.path(manifestName+".tmp")
	f, err := fs.CreateFile(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(encodeManifest(at), 0)
	if err == nil {
		if err = f.Sync(); err != nil {
			// The file is thrown away and made anew, so this sync may be tried again.
			err = fmt.Errorf("sync manifest: %w", err)
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := fs.Rename(temp, s.path(manifestName)); err != nil {
		return err
	}
	if err := fs.SyncDir(s.opts.Dir); err != nil {
		s.poison(err)
		return fmt.Errorf("%w: sync directory: %w", ErrPoisoned, err)
	}
	return nil
}

func readManifest(fs fsx.FS, path string) (point, error) {
	f, err := fs.OpenFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return point{}, nil
	}
	if err != nil {
		return point{}, err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, manifestBytes+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return point{}, err
	}
	at, err := decodeManifest(b[:n])
	if err != nil {
		return at, &CorruptError{Path: manifestName, Position: 0, Err: err}
	}
	return at, nil
}
