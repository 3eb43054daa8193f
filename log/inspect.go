package log

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
	"github.com/headrace/headrace/log/wal"
)

// A StoreReport is what Inspect found of a store. Nothing on the disk was changed.
type StoreReport struct {
	Verdict    wal.Verdict       `json:"verdict"`
	Applied    uint64            `json:"applied"`    // raft index that the rows are the state of
	Term       uint64            `json:"term"`       // raft term of that entry
	Checkpoint uint64            `json:"checkpoint"` // raft index up to which everything is synced
	Rows       map[string]int64  `json:"rows"`
	Groups     int               `json:"groups"`
	Partitions []PartitionReport `json:"partitions"`
	Faults     []FileFault       `json:"faults"`
	Batches    int64             `json:"batches"` // that were verified
}

// A PartitionReport is one partition.
type PartitionReport struct {
	ID         PartitionID     `json:"id"`
	Start      int64           `json:"start"`
	End        int64           `json:"end"`
	Producers  int             `json:"producers"`
	Segments   []SegmentReport `json:"segments"`
	MixedRuns  int             `json:"mixed_runs"`
	MixedBytes int64           `json:"mixed_bytes"`
	Batches    int64           `json:"batches"` // that were verified
	Records    int64           `json:"records"`
}

// A SegmentReport is one segment of a partition.
type SegmentReport struct {
	Path        string      `json:"path"` // of the log file, relative to the store
	Base        int64       `json:"base"`
	End         int64       `json:"end"`
	LogBytes    int64       `json:"log_bytes"`
	IndexBytes  int64       `json:"index_bytes"`
	FirstAppend time.Time   `json:"first_append"`
	LastAppend  time.Time   `json:"last_append"`
	Verdict     wal.Verdict `json:"verdict"`
}

// A FileFault is a place in a file of the store that is not what was written.
type FileFault struct {
	Path      string      `json:"path"` // relative to the store
	Verdict   wal.Verdict `json:"verdict"`
	Position  int64       `json:"position"` // byte in the file, -1 if unknown
	Bytes     int64       `json:"bytes"`
	Partition PartitionID `json:"partition"`
	First     int64       `json:"first"` // offsets that it concerns; Last is below First if none
	Last      int64       `json:"last"`
	Reason    string      `json:"reason"`
}

// A StoredBatch is one batch as a store holds it.
type StoredBatch struct {
	Partition PartitionID
	Path      string
	Ref       segment.Ref
	Header    record.Header
	Data      []byte // valid during the call
}

// InspectOptions say what to look at.
type InspectOptions struct {
	// Only chooses the partitions; nil: all.
	Only func(PartitionID) bool
	// Verify reads every batch. Without it files are looked at from outside only.
	Verify bool
	// Batch gets every sound batch in order of its partition, with Verify. nil: nobody.
	Batch func(StoredBatch) error
	// Group gets every committed offset. nil: nobody.
	Group func(group string, o GroupOffset) error
}

// A callbackError is one of the caller's own.
type callbackError struct{ error }

func (e callbackError) Unwrap() error { return e.error }

// Inspect reads the store in o.Dir and says what it is, without changing anything. Of o it needs FS and Dir. The store
// must not be open anywhere.
//
// Errors: the file system's, and those of the callbacks. Damage is no error.
func Inspect(o Options, io InspectOptions) (*StoreReport, error) {
	o.Manual, o.readOnly, o.offline = true, true, true
	s := newStore(o)
	in := inspector{s: s, o: io, rep: &StoreReport{Verdict: wal.Clean, Rows: map[string]int64{}}}
	c, err := readManifest(s.opts.FS, s.path(manifestName))
	switch {
	case errors.Is(err, ErrCorrupt):
		in.fault(FileFault{Path: manifestName, Verdict: wal.Rotten, Last: -1, Reason: err.Error()})
	case err != nil:
		return nil, err
	}
	in.rep.Checkpoint = c.index
	if _, err := s.opts.FS.Stat(s.path("kv")); errors.Is(err, os.ErrNotExist) {
		if c.index > 0 {
			in.fault(FileFault{Path: "kv", Verdict: wal.Rotten, Position: -1, Last: -1, Reason: "the rows are missing"})
		}
		return in.rep, nil
	}
	err = fsx.Survive(func() error {
		if err := s.openDB(); err != nil {
			return err
		}
		err := in.run(c)
		s.handles.close()
		return errors.Join(err, s.closeDB())
	}, s.kvGone, s.poisoned)
	var own callbackError
	if errors.As(err, &own) {
		return in.rep, own.error
	}
	if err != nil && kvDamage(err) {
		in.fault(FileFault{Path: "kv", Verdict: wal.Rotten, Position: -1, Last: -1, Reason: err.Error()})
		err = nil
	}
	return in.rep, err
}

type inspector struct {
	s      *Store
	o      InspectOptions
	rep    *StoreReport
	placed map[string]int64 // by log file, and by mixed run: the first offset that no checkpoint covers
}

func (in *inspector) fault(f FileFault) {
	in.rep.Faults = append(in.rep.Faults, f)
	if f.Verdict == wal.Rotten || in.rep.Verdict == wal.Clean {
		in.rep.Verdict = f.Verdict
	}
}

func (in *inspector) run(c point) error {
	s := in.s
	if err := in.countRows(); err != nil {
		return err
	}
	if err := s.load(c); err != nil {
		return err
	}
	in.rep.Applied, in.rep.Term = s.Applied()
	if err := in.findPlaced(c.index); err != nil {
		return err
	}
	for _, id := range s.Partitions() {
		p, _ := s.Partition(id)
		if in.o.Only != nil && !in.o.Only(id) {
			continue
		}
		if err := in.partition(p); err != nil {
			return err
		}
	}
	return nil
}

// countRows reads every row, so that every block of every table is checked.
func (in *inspector) countRows() error {
	it, err := in.s.db.NewIter(nil)
	if err != nil {
		return err
	}
	group := ""
	for ok := it.First(); ok; ok = it.Next() {
		k := it.Key()
		v, err := it.ValueAndErr()
		if err != nil {
			_ = it.Close()
			return err
		}
		in.rep.Rows[rowNames[k[0]]]++
		if k[0] != rowGroup {
			continue
		}
		name, prefix, err := parseGroupKey(k)
		if err == nil && (name != group || in.rep.Groups == 0) {
			group = name
			in.rep.Groups++
		}
		if err == nil && in.o.Group != nil {
			var o GroupOffset
			if o, err = decodeGroupRow(k[len(prefix):], v); err == nil && (in.o.Only == nil || in.o.Only(o.Partition)) {
				if err = in.o.Group(name, o); err != nil {
					err = callbackError{err}
				}
			}
		}
		if err != nil {
			_ = it.Close()
			return err
		}
	}
	return it.Close()
}

var rowNames = map[byte]string{
	rowApplied: "applied", rowDropped: "dropped", rowMixedFile: "mixed files", rowGroup: "group offsets", rowState: "state",
	rowPlaced: "placed", rowMixed: "mixed runs", rowPartition: "partitions", rowProducer: "producers", rowSegment: "segments",
	rowTask: "tasks", rowRuns: "placed runs", rowCompact: "compaction", rowActive: "groups",
}

// findPlaced notes what was written since the checkpoint: a crash may have taken it, and the next start writes it again.
func (in *inspector) findPlaced(checkpoint uint64) error {
	in.placed = map[string]int64{}
	note := func(path string, first int64) {
		if have, ok := in.placed[path]; !ok || first < have {
			in.placed[path] = first
		}
	}
	err := in.s.eachRow(rowRuns, 8, func(k, v []byte) error {
		return eachPlacedRun(v, func(id PartitionID, base int64) error {
			if binary.BigEndian.Uint64(k) > checkpoint {
				note(fmt.Sprintf("%s@%d", id, base), base)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return in.s.eachRow(rowPlaced, 8+partitionSz+2, func(k, v []byte) error {
		row, err := decodePlaced(v)
		if err != nil || binary.BigEndian.Uint64(k) <= checkpoint {
			return err
		}
		h, err := segment.ParseHead(row.blocks)
		if err != nil {
			return fmt.Errorf("%w: %w", errRow, err)
		}
		note(fmt.Sprintf("%s#%d", getPartition(k[8:]), row.base), h.First)
		return nil
	})
}

// none is a file that is missing: it has no byte.
var none = bytes.NewReader(nil)

// reader opens a file for reading; one that is missing reads as empty.
func (s *Store) reader(path string) (r io.ReaderAt, done func(), missing bool, err error) {
	f, err := s.opts.FS.OpenFile(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return none, func() {}, true, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	return f, func() { _ = f.Close() }, false, nil // read only
}

func (s *Store) fileSize(path string) (int64, error) {
	info, err := s.opts.FS.Stat(s.path(path))
	if errors.Is(err, os.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (in *inspector) partition(p *Partition) error {
	s := in.s
	rep := PartitionReport{ID: p.id, Start: p.LogStart(), End: p.LogEnd(), Producers: len(p.producers)}
	if l := p.layout.Load(); l != nil {
		rep.MixedRuns, rep.MixedBytes = l.mixRuns, l.mixBytes
		for i := range l.segs {
			seg, err := in.segment(p, &l.segs[i], &rep)
			if err != nil {
				return err
			}
			rep.Segments = append(rep.Segments, seg)
		}
		if l.mixRuns > 0 && in.o.Verify {
			err := s.eachRun(s.db, p.id, l.mixStart, func(base int64, file uint64, _ segment.Head, block []byte) (bool, error) {
				return true, in.mixedRun(p, base, file, block, &rep)
			})
			if err != nil {
				return err
			}
		}
	}
	in.rep.Partitions = append(in.rep.Partitions, rep)
	return nil
}

func extentOf(seg *segmentInfo) segment.Extent {
	return segment.Extent{First: seg.base, End: seg.end, LogBytes: seg.logBytes, IndexBytes: seg.indexBytes, Link: seg.link}
}

func (in *inspector) segment(p *Partition, seg *segmentInfo, rep *PartitionReport) (SegmentReport, error) {
	s := in.s
	path, index := s.logPath(p.id, seg), s.indexPath(p.id, seg)
	out := SegmentReport{
		Path: path, Base: seg.base, End: seg.end, LogBytes: seg.logBytes, IndexBytes: seg.indexBytes, Verdict: wal.Clean,
		FirstAppend: time.Unix(0, seg.firstAppend).UTC(), LastAppend: time.Unix(0, seg.lastAppend).UTC(),
	}
	var faults []segment.Fault
	var failed error
	visit := func(r *segment.Ref, batch []byte) {
		if failed == nil {
			failed = in.batch(p, path, r, batch, rep)
		}
	}
	if in.o.Verify {
		var err error
		if faults, err = s.verifySegment(p, seg, 0, visit, nil); err != nil {
			return out, err
		}
	} else {
		for _, f := range []struct {
			path  string
			want  int64
			index bool
		}{{path, seg.logBytes, false}, {index, seg.indexBytes, true}} {
			if n, err := s.fileSize(f.path); err != nil {
				return out, err
			} else if n < f.want {
				faults = append(faults, segment.Fault{
					Index: f.index, Pos: max(n, 0), Bytes: f.want - max(n, 0), First: seg.base, Last: seg.end - 1,
					Err: fmt.Errorf("%w: the file has %d bytes instead of %d", ErrCorrupt, max(n, 0), f.want),
				})
			}
		}
	}
	from, ok := in.placed[fmt.Sprintf("%s#%d", p.id, seg.base)]
	for _, f := range faults {
		v := wal.Rotten
		if ok && f.First >= from {
			v = wal.Torn
		}
		if out.Verdict != wal.Rotten {
			out.Verdict = v
		}
		at := path
		if f.Index {
			at = index
		}
		in.fault(FileFault{Path: at, Verdict: v, Position: f.Pos, Bytes: f.Bytes, Partition: p.id, First: f.First, Last: f.Last, Reason: f.Err.Error()})
	}
	return out, failed
}

// verifySegment reads a segment from the block that holds an offset on. See segment.Verify.
func (s *Store) verifySegment(p *Partition, seg *segmentInfo, from int64, visit func(*segment.Ref, []byte), pause func(int64) error) ([]segment.Fault, error) {
	index, done, _, err := s.reader(s.indexPath(p.id, seg))
	if err != nil {
		return nil, err
	}
	defer done()
	log, done2, _, err := s.reader(s.logPath(p.id, seg))
	if err != nil {
		return nil, err
	}
	defer done2()
	return segment.Verify(seedOf(p.id, seg.base), index, log, extentOf(seg), from, visit, pause)
}

func seedOf(id PartitionID, base int64) segment.Seed {
	return segment.Seed{Topic: id.Topic, Partition: id.Index, Segment: base}
}

// verifyRun reads one run of the mixed segment.
func (s *Store) verifyRun(p *Partition, file uint64, block []byte, visit func(*segment.Ref, []byte), pause func(int64) error) ([]segment.Fault, error) {
	f, done, _, err := s.reader(s.mixedPath(file))
	if err != nil {
		return nil, err
	}
	defer done()
	return segment.VerifyBlock(seedOf(p.id, segment.MixedSegment(file)), f, block, visit, pause)
}

func (in *inspector) mixedRun(p *Partition, base int64, file uint64, block []byte, rep *PartitionReport) error {
	path := in.s.mixedPath(file)
	var failed error
	faults, err := in.s.verifyRun(p, file, block, func(r *segment.Ref, batch []byte) {
		if failed == nil {
			failed = in.batch(p, path, r, batch, rep)
		}
	}, nil)
	if err != nil {
		if errors.Is(err, segment.ErrCorrupt) {
			in.fault(FileFault{Path: "kv", Verdict: wal.Rotten, Position: -1, Partition: p.id, First: base, Last: base - 1, Reason: err.Error()})
			return failed
		}
		return err
	}
	_, fresh := in.placed[fmt.Sprintf("%s@%d", p.id, base)]
	for _, f := range faults {
		v := wal.Rotten
		if fresh {
			v = wal.Torn
		}
		in.fault(FileFault{Path: path, Verdict: v, Position: f.Pos, Bytes: f.Bytes, Partition: p.id, First: f.First, Last: f.Last, Reason: f.Err.Error()})
	}
	return failed
}

func (in *inspector) batch(p *Partition, path string, r *segment.Ref, batch []byte, rep *PartitionReport) error {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return err // it was verified
	}
	rep.Batches++
	rep.Records += int64(h.Count)
	in.rep.Batches++
	if in.o.Batch == nil {
		return nil
	}
	if err := in.o.Batch(StoredBatch{Partition: p.id, Path: path, Ref: *r, Header: h, Data: batch}); err != nil {
		return callbackError{err}
	}
	return nil
}

// RepairOptions say what a repair may do.
type RepairOptions struct {
	// GiveUp allows that records are lost: their offsets become empty batches.
	GiveUp bool
	// Suffix is what the old files are renamed with.
	Suffix string
}

// A Repair is something that was repaired.
type Repair struct {
	Path    string // of the file that was made anew, relative to the store
	Old     string // what it was renamed or copied to, "" if it was missing
	What    string
	Lost    []LostRange
	Guessed int // batches whose append time is that of the batch before
}

// A LostRange is offsets whose records are gone.
type LostRange struct {
	Partition   PartitionID
	First, Last int64
}

// RepairStore opens the store in o.Dir, brings its files in line with its rows as a start would, takes a checkpoint, and
// makes the segments anew that are damaged: an index from its log file, batches from the shard's log in o.Log as far as
// it still holds them. What nobody holds is an error around segment.ErrLost that says which offsets, unless
// RepairOptions.GiveUp. The old files are renamed, never removed; of a mixed
// file, whose sound parts stay in use, a copy is kept.
//
// It may be repeated, also after a crash in the middle. The store must not be open anywhere.
func RepairStore(ctx context.Context, o Options, ro RepairOptions) (done []Repair, at CheckpointInfo, err error) {
	o.Manual, o.offline = true, true
	s, err := Open(o)
	if err != nil {
		return nil, at, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if at, err = s.Checkpoint(ctx); err != nil {
		return nil, at, err
	}
	r := restorer{s: s, o: ro, log: entryReader{log: o.Log}}
	var lost []error
	for _, id := range s.Partitions() {
		p, _ := s.Partition(id)
		l := p.layout.Load()
		if l == nil {
			continue
		}
		for i := range l.segs {
			if err := r.segment(p, &l.segs[i]); errors.Is(err, segment.ErrLost) {
				lost = append(lost, err)
			} else if err != nil {
				return r.done, at, err
			}
		}
		if err := r.mixed(p, l); errors.Is(err, segment.ErrLost) {
			lost = append(lost, err)
		} else if err != nil {
			return r.done, at, err
		}
	}
	if err := r.finish(ctx); err != nil {
		return r.done, at, err
	}
	return r.done, at, errors.Join(lost...)
}

// Describe shows an operation in one line, for people.
func Describe(op Op) string {
	switch op.Kind {
	case OpAppend:
		p, b := op.Append()
		h, err := record.ParseHeader(b)
		if err != nil {
			return fmt.Sprintf("append %s: %v", p, err)
		}
		s := fmt.Sprintf("append %s: %d records, %d B, crc %08x", p, h.Count, len(b), h.CRC)
		if h.ProducerID >= 0 {
			s += fmt.Sprintf(", producer %d epoch %d sequence %d", h.ProducerID, h.ProducerEpoch, h.BaseSequence)
		}
		return s
	case OpOffsets:
		group, offsets := op.Offsets()
		s := fmt.Sprintf("offsets of group %q:", group)
		for _, o := range offsets {
			s += fmt.Sprintf(" %s=%d", o.Partition, o.Offset)
		}
		return s
	case OpProgress:
		p := op.Progress()
		return fmt.Sprintf("progress of task %s: epoch %d step %d, W %d", p.Task, p.Epoch, p.Step, p.W)
	case OpState:
		task, key, value := op.State()
		if value == nil {
			return fmt.Sprintf("state of task %s: delete %x", task, key)
		}
		return fmt.Sprintf("state of task %s: set %x, %d B", task, key, len(value))
	case OpTaskOpen, OpTaskDrop:
		return fmt.Sprintf("%s %s", op.Kind, op.Task())
	case OpPartitionOpen, OpPartitionSettings, OpPartitionDrop:
		p, _, index := op.Partition()
		return fmt.Sprintf("%s %s, metadata index %d", op.Kind, p, index)
	case OpLogStart:
		p, at := op.LogStart()
		return fmt.Sprintf("log-start %s = %d", p, at)
	case OpCommand:
		return fmt.Sprintf("command %.200q", op.Body)
	case OpGroupExpire:
		group, idle := op.GroupExpire()
		return fmt.Sprintf("group-expire %q, idle for %v", group, time.Duration(idle))
	case OpGroupDrop:
		return fmt.Sprintf("group-drop %q", op.Group())
	}
	return fmt.Sprintf("%s, %d B", op.Kind, len(op.Body))
}
