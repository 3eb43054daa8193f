package log

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
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
// Errors: those of Flush; ErrPoisoned if a sync failed.
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
	if err := w.checkpointAt(at); err != nil {
		return CheckpointInfo{}, fmt.Errorf("checkpoint at %d: %w", at.index, err)
	}
	s.metrics.checkpoints.Add(1)
	s.metrics.lastCheckpnt.Store(int64(time.Since(begun)))
	if s.opts.Manual {
		s.removeQueued()
	}
	return CheckpointInfo{at.index, at.term}, nil
}

func (w *writer) checkpointAt(at point) error {
	s := w.s
	if err := w.sweepMixed(); err != nil {
		return err
	}
	if err := w.dirty.sync(); err != nil {
		return err
	}
	if err := s.db.Flush(); err != nil {
		return s.kvError(err)
	}
	if err := s.writeManifest(at); err != nil {
		return err
	}
	w.checkpoint.Store(&at)

	// From here on it is tidying up, which the next checkpoint does again if a crash undoes it.
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	_ = b.DeleteRange(numberKey(rowPlaced, 0), numberKey(rowPlaced, at.index+1), nil) // in memory: cannot fail
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

// sweepMixed copies what is still needed out of mixed files that are mostly garbage. The copies are synced
// before a row points to them, so recovery never has to know of them.
func (w *writer) sweepMixed() error {
	s := w.s
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
	if len(victims) == 0 || size-live < max(live, s.opts.SegmentBytes/4) {
		return nil
	}
	w.newMix = map[uint64]mixedFile{}
	w.mixNow, w.mixBuf, w.mixPos = w.mixedNow+1, w.mixBuf[:0], 0
	m := mixedFile{}
	b := s.db.NewBatch()
	defer func() { _ = b.Close() }()
	for _, id := range s.Partitions() {
		p, ok := s.Partition(id)
		l := p.layoutOrNil(ok)
		if l == nil || l.mixRuns == 0 {
			continue
		}
		err := w.eachRun(id, l.mixStart, func(base int64, file uint64, h segment.Head, block []byte) (bool, error) {
			if !victims[file] {
				return true, nil
			}
			got, again, err := s.readRun(p, file, block, 0, int(h.Bytes), nil)
			if err != nil || again {
				return false, errors.Join(err, errIf(again, "mixed file is missing"))
			}
			seed := segment.Seed{Topic: id.Topic, Partition: id.Index, Segment: segment.MixedSegment(w.mixNow)}
			link := uint32(0)
			for i := range got.refs {
				n := len(w.mixBuf)
				w.mixBuf = got.out[i].AppendTo(w.mixBuf)
				link = seed.Link(link, w.mixBuf[n:])
				got.refs[i].Pos, got.refs[i].Link = m.size, link
				m.size += int64(got.refs[i].Size)
			}
			_ = b.Set(offsetKey(rowMixed, id, base), encodeMixed(w.mixNow, segment.AppendBlock(nil, got.refs, 0)), nil)
			m.live += h.Bytes
			old := w.mixFile(file)
			old.live -= h.Bytes
			w.newMix[file] = old
			if len(w.mixBuf) >= chunkBytes {
				return true, w.flushMixed()
			}
			return true, nil
		})
		if err != nil {
			return fmt.Errorf("sweep mixed segment: partition %s: %w", id, err)
		}
	}
	if err := w.flushMixed(); err != nil {
		return err
	}
	if err := w.dirty.sync(); err != nil {
		return err
	}
	w.newMix[w.mixNow] = m
	next := appliedRow{s.written.Load(), w.term, w.now, w.clock, w.mixNow}
	_ = b.Set([]byte{rowApplied}, next.encode(), nil)
	for n, f := range w.newMix {
		if f.live <= 0 && n != w.mixNow {
			_ = b.Delete(numberKey(rowMixedFile, n), nil)
		} else {
			_ = b.Set(numberKey(rowMixedFile, n), f.encode(), nil)
		}
	}
	if err := s.db.Apply(b, pebble.NoSync); err != nil {
		return fmt.Errorf("pebble: %w", err)
	}
	for n, f := range w.newMix {
		w.mixed[n] = f
		if f.live <= 0 && n != w.mixNow {
			delete(w.mixed, n)
			w.mixGone = append(w.mixGone, n)
		}
	}
	w.mixedNow = w.mixNow
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
