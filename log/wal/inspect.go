package wal

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/headrace/headrace/internal/fsx"
)

// A Verdict is what is to be thought of a file or a log.
type Verdict string

// The verdicts, from good to bad.
const (
	Clean  Verdict = "clean"
	Torn   Verdict = "torn"   // it ends in a write that was not finished: opening the log cuts it off, and nothing acknowledged is lost
	Rotten Verdict = "rotten" // bytes that had been synced are no longer what was written
)

// A Report is what Inspect found of a log. Nothing on the disk was changed.
type Report struct {
	Fresh   bool              `json:"fresh"`  // there is no log
	Closed  bool              `json:"closed"` // it was closed in order
	LogID   uint64            `json:"log_id"` // random, one per log
	First   uint64            `json:"first"`  // entries that are in the log, 0 and 0 if there are none
	Last    uint64            `json:"last"`
	Groups  int               `json:"groups"`
	Stable  map[string][]byte `json:"stable"`
	Files   []FileReport      `json:"files"` // by name
	Verdict Verdict           `json:"verdict"`
	Cut     *Cut              `json:"cut"` // where it is torn
	Rot     *CorruptError     `json:"rot"` // where it is rotten
}

// A FileReport is what was found of one file.
type FileReport struct {
	Name     string  `json:"name"`
	Sequence uint64  `json:"sequence"`
	Bytes    int64   `json:"bytes"`
	Use      string  `json:"use"` // "log"; "ready": prepared for use; "worthless": a leftover that is removed at the next start
	Groups   int     `json:"groups"`
	First    uint64  `json:"first"` // entries in it, released ones included; 0 and 0 if there are none
	Last     uint64  `json:"last"`
	End      int64   `json:"end"` // byte after the last sound group
	Verdict  Verdict `json:"verdict"`
	Position int64   `json:"position"` // of what is torn or rotten, in bytes
	Reason   string  `json:"reason"`
}

// A Group is one group of a log, in the order of the log.
type Group struct {
	Segment  uint64
	Position int64 // byte in the segment file
	Bytes    int64 // padding included
	Number   uint64
	Synced   uint64 // number of the last group known to be synced when this one was written
	// Gap says that groups before this one cannot be read.
	Gap     bool
	Records []Record
}

// A Record is one record of a group.
type Record struct {
	Kind    string // entry, truncate, front, reset, stable, open, closed
	Index   uint64 // of an entry, truncate, front or reset; the next one of open
	Front   uint64 // of open
	Entry   Entry  // of an entry
	Key     string // of a stable value
	Value   []byte
	Removed bool // of a stable value
	at, end int64
}

var kindNames = [...]string{"", "entry", "truncate", "front", "reset", "stable", "open", "closed"}

// Inspect reads the log in o.Dir as Open would and says what it is, without changing anything. Of o it needs FS and Dir,
// and uses SyncedIndex. visit gets every group that can be read, those behind damage included; its slices are valid during
// the call. nil: nobody. The log must not be open anywhere.
//
// Errors: the disk's, and those of visit. Damage is no error.
func Inspect(o Options, visit func(Group) error) (*Report, error) {
	w := &WAL{o: o.withDefaults()}
	w.mu.state = newState()
	files, err := w.list()
	defer func() {
		for _, s := range files {
			s.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	sizes := make([]int64, len(files))
	for i, s := range files {
		sizes[i] = s.size
	}
	r := recovery{w: w, files: files}
	rep := &Report{Verdict: Clean}
	var rot *CorruptError
	if err := r.read(); errors.As(err, &rot) {
		rep.Verdict, rep.Rot = Rotten, rot
	} else if err != nil {
		return nil, err
	}
	rep.Fresh, rep.Closed, rep.LogID, rep.Groups = r.live == 0 && rot == nil, r.rec.Clean, r.walk.logID, r.rec.Groups
	rep.First, rep.Last = w.bounds()
	rep.Stable = maps.Clone(w.mu.stable)
	for k, v := range rep.Stable {
		rep.Stable[k] = slices.Clone(v)
	}
	if cut := r.cut(); rot == nil && cut != nil {
		rep.Verdict, rep.Cut = Torn, cut
	}
	for i, s := range files {
		f := FileReport{Name: segmentName(s.seq), Sequence: s.seq, Bytes: sizes[i], Use: "log", Verdict: Clean}
		if i >= r.live {
			f.Use = "ready"
		}
		switch {
		case rep.Cut != nil && rep.Cut.Segment == s.seq:
			f.Verdict, f.Position, f.Reason = Torn, rep.Cut.Position, rep.Cut.Reason
		case rot != nil && rot.Segment == s.seq:
			f.Use, f.Verdict, f.Position, f.Reason = "log", Rotten, rot.Position, rot.Reason
		}
		rep.Files = append(rep.Files, f)
	}
	for _, name := range w.mu.drops {
		rep.Files = append(rep.Files, FileReport{Name: name, Use: "worthless", Verdict: Clean})
	}
	err = scan(files, r.walk.logID, func(g Group) error {
		i, _ := slices.BinarySearchFunc(rep.Files[:len(files)], g.Segment, func(f FileReport, seq uint64) int { return int(f.Sequence) - int(seq) })
		f := &rep.Files[i]
		f.Groups++
		f.End = g.Position + g.Bytes
		for k := range g.Records {
			if x := &g.Records[k]; x.Kind == "entry" {
				if f.First == 0 {
					f.First = x.Index
				}
				f.Last = x.Index
			}
		}
		if visit == nil {
			return nil
		}
		return visit(g)
	})
	return rep, err
}

// cut is the torn group at the end, if it is recognised as one.
func (r *recovery) cut() *Cut {
	switch r.bad {
	case "", "no group header", "end of segment", "group of another place":
		return nil
	}
	if r.live == 0 {
		return nil
	}
	return &Cut{Segment: r.files[r.live-1].seq, Position: r.end, Group: r.walk.next, Reason: r.bad}
}

// scan calls f for every sound group of every file. Behind damage it goes on with the next group that is whole.
func scan(files []*segment, logID uint64, f func(Group) error) error {
	gap := false
	last := uint64(0)
	for _, s := range files {
		w := walker{r: s.file, size: s.size, segment: s.seq, logID: logID}
		for w.pos+blockSize <= w.size {
			g := Group{Segment: s.seq, Position: w.pos, Gap: gap}
			h, bad, err := w.group(func(rec recordView) error {
				g.Records = append(g.Records, exportRecord(rec, g.Position))
				return nil
			})
			if err != nil && isDisk(err) {
				return fmt.Errorf("wal: read segment %d at %d: %w", s.seq, w.pos, err)
			}
			if err != nil || bad != "" || h.number <= last {
				// Not ours, not whole, or of an older use of the file that happens to stand here.
				w.pos, w.next = g.Position+blockSize, 0
				gap = gap || last > 0
				continue
			}
			g.Gap = last > 0 && h.number != last+1
			g.Number, g.Synced, g.Bytes = h.number, h.synced, h.size()
			last, gap = h.number, false
			if logID == 0 {
				logID = h.logID
			}
			if err := f(g); err != nil {
				return err
			}
		}
	}
	return nil
}

func exportRecord(r recordView, group int64) Record {
	x := Record{Index: r.index, Front: r.front, Entry: r.entry, Key: string(r.key), Value: r.value, Removed: r.removed}
	if int(r.kind) < len(kindNames) {
		x.Kind = kindNames[r.kind]
	}
	x.at = group + headerSize + int64(r.pos)
	x.end = x.at + int64(r.size)
	return x
}

// A Salvage reads the entries of a log that can still be read, wherever in it the damage is. Entries that were released
// and not yet overwritten are among them. One goroutine may use it.
type Salvage struct {
	Stable map[string][]byte // the last value of each

	files []*segment
	m     map[uint64]salvaged
	last  uint64
	gap   bool   // groups were missing
	after uint64 // last entry behind the last missing group, 0: none
	seg   uint64 // of the last group
}

type salvaged struct {
	seg *segment
	loc loc
}

// OpenSalvage reads the log in o.Dir. Of o it needs FS and Dir. It changes nothing; the caller closes it.
func OpenSalvage(o Options) (*Salvage, error) {
	w := &WAL{o: o.withDefaults()}
	w.mu.state = newState()
	files, err := w.list()
	s := &Salvage{Stable: map[string][]byte{}, files: files, m: map[uint64]salvaged{}}
	if err == nil {
		err = scan(files, 0, s.take)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Salvage) take(g Group) error {
	i, _ := slices.BinarySearchFunc(s.files, g.Segment, func(f *segment, seq uint64) int { return int(f.seq) - int(seq) })
	s.seg = g.Segment
	if g.Gap {
		s.gap, s.after = true, 0
	}
	for k := range g.Records {
		switch r := &g.Records[k]; r.Kind {
		case "entry":
			s.dropFrom(r.Index)
			s.m[r.Index] = salvaged{s.files[i], loc{uint32(r.at), uint32(r.end - r.at)}}
			s.last = r.Index
			if s.gap {
				s.after = r.Index
			}
		case "truncate":
			s.dropFrom(r.Index)
		case "reset":
			clear(s.m)
			s.last = r.Index - 1
		case "stable":
			if r.Removed {
				delete(s.Stable, r.Key)
			} else {
				s.Stable[r.Key] = slices.Clone(r.Value)
			}
		}
	}
	return nil
}

// dropFrom forgets the entries from index on.
func (s *Salvage) dropFrom(index uint64) {
	for ; s.last >= index && s.last > 0; s.last-- {
		delete(s.m, s.last)
	}
}

// Last is the index of the last entry that can be read, 0 if none can.
func (s *Salvage) Last() uint64 { return s.last }

// Follows is the last entry behind what cannot be read, 0 if there is none: what is missing lies before it.
func (s *Salvage) Follows() uint64 {
	if s.seg != 0 && len(s.files) > 0 && s.files[len(s.files)-1].seq > s.seg {
		if _, ok := slices.BinarySearchFunc(s.files, s.seg+1, func(f *segment, seq uint64) int { return int(f.seq) - int(seq) }); !ok {
			return 0 // the next segment is gone
		}
	}
	return s.after
}

// Has reports whether an entry can be read.
func (s *Salvage) Has(index uint64) bool {
	_, ok := s.m[index]
	return ok
}

// Read returns an entry, verified. Errors: ErrNotFound, the disk's, a CorruptError.
func (s *Salvage) Read(index uint64) (Entry, error) {
	x, ok := s.m[index]
	if !ok {
		return Entry{}, ErrNotFound
	}
	return readEntry(x.seg, index, x.loc)
}

// ReadEntry returns the term and the data of an entry.
func (s *Salvage) ReadEntry(index uint64) (term uint64, data []byte, err error) {
	e, err := s.Read(index)
	return e.Term, e.Data, err
}

// Bounds are those of all entries that can be read; there may be gaps between them.
func (s *Salvage) Bounds() (first, last uint64) {
	for i := range s.m {
		if first == 0 || i < first {
			first = i
		}
	}
	return first, s.last
}

// SyncTo does nothing: what can be read is on the disk.
func (s *Salvage) SyncTo(uint64) error { return nil }

// Close closes the files.
func (s *Salvage) Close() {
	for _, f := range s.files {
		f.close()
	}
}

// Write makes a log in dir, which must not exist, of these entries, and closes it. Its next entry is next; entries has
// those before, consecutive. It is how a log is made anew beside the old one.
func Write(fs fsx.FS, dir string, segmentBytes int64, stable map[string][]byte, next uint64, entries func(yield func(Entry) error) error) error {
	if names, err := fs.List(dir); err == nil && len(names) > 0 {
		for _, name := range names { // of an attempt that did not end
			if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
				return fmt.Errorf("wal: %w", err)
			}
		}
	}
	w, _, err := Open(Options{FS: fs, Dir: dir, SegmentBytes: segmentBytes, Inline: true, CacheBytes: -1})
	if err != nil {
		return err
	}
	first := true
	err = entries(func(e Entry) error {
		if first && e.Index > 1 {
			if err := w.Reset(e.Index); err != nil {
				return err
			}
		}
		first = false
		return w.Append([]Entry{e})
	})
	if err == nil && first && next > 1 {
		err = w.Reset(next)
	}
	for _, k := range slices.Sorted(maps.Keys(stable)) {
		if err == nil {
			err = w.SetStable(k, stable[k])
		}
	}
	if err == nil && !first && w.LastIndex()+1 != next {
		err = fmt.Errorf("%w: the new log ends at %d, not %d", ErrGap, w.LastIndex(), next-1)
	}
	return errors.Join(err, w.Close())
}
