package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/segment"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication/raftlog"
)

// ErrInUse means that another process has the data directory open.
var ErrInUse = errors.New("replication: the data directory is in use")

// ErrRotten means that a node cannot be opened because files of its directory are missing, or not what was written.
var ErrRotten = errors.New("replication: the data directory is rotten")

// rotten reports that an error of opening a node is of what lies in the directory, not of the disk or the options.
func rotten(err error) bool {
	for _, is := range []error{
		wal.ErrCorrupt, log.ErrCorrupt, log.ErrAheadOfLog, pebble.ErrCorruption, errMetaRow, raftlog.ErrManifest, ErrStoreBehind, ErrEmptyShard, os.ErrNotExist,
	} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// ErrNoData means that a directory is no data directory.
var ErrNoData = errors.New("replication: no data directory")

// inUse says who holds the lock that could not be taken. That its file could not be opened is another matter.
func inUse(fs fsx.FS, dir string, err error) error {
	if path := (*os.PathError)(nil); errors.As(err, &path) && !errors.Is(err, syscall.EAGAIN) {
		return fmt.Errorf("replication: open the lock: %w", err)
	}
	who := "by another process"
	if b, e := readFile(fs, fs.PathJoin(dir, openMark)); e == nil {
		if m, e := decodeMark(b); e == nil {
			who = fmt.Sprintf("by process %d since %s", m.PID, m.Since.Format("2006-01-02 15:04:05 MST"))
		}
	}
	return fmt.Errorf("%w: %s is open %s: %w", ErrInUse, dir, who, err)
}

// A DirReport is what Inspect found of a data directory. Nothing on the disk was changed.
type DirReport struct {
	Dir       string        `json:"dir"`
	Verdict   wal.Verdict   `json:"verdict"`
	ClusterID string        `json:"cluster_id"`
	NodeID    int32         `json:"node_id"`
	DiskID    string        `json:"disk_id"`
	Mark      *OpenMark     `json:"mark"` // of a run that did not end in order, nil if there is none
	Shards    []ShardReport `json:"shards"`
	Topics    []TopicName   `json:"topics"`
	Faults    []Fault       `json:"faults"` // of all files, the shards' included
}

// A TopicName gives the directories of a topic their name.
type TopicName struct {
	Name       string      `json:"name"`
	ID         log.TopicID `json:"id"`
	Partitions int32       `json:"partitions"`
}

// A ShardReport is one shard.
type ShardReport struct {
	Name       string            `json:"name"`
	Verdict    wal.Verdict       `json:"verdict"`
	WAL        *wal.Report       `json:"wal"`
	Checkpoint *raftlog.Manifest `json:"checkpoint"` // the newest one, nil if there is none
	Store      *log.StoreReport  `json:"store"`      // of the data shard
	Applied    uint64            `json:"applied"`    // of the metadata shard: raft index of its rows
}

// A Fault is a place in a file that is not what was written.
type Fault struct {
	File      string           `json:"file"` // relative to the data directory
	Verdict   wal.Verdict      `json:"verdict"`
	Position  int64            `json:"position"` // byte, -1 if unknown
	Bytes     int64            `json:"bytes"`    // 0: unknown
	Partition *log.PartitionID `json:"partition"`
	First     int64            `json:"first"` // offsets that it concerns; Last is below First if none
	Last      int64            `json:"last"`
	Reason    string           `json:"reason"`
}

// InspectOptions say what to look at.
type InspectOptions struct {
	Dir string
	FS  fsx.FS // nil: the disk
	// Topic limits batches to one topic, and Partition to one partition; "" and -1: all.
	Topic     string
	Partition int32
	// Batch and Group get what the store holds, Entries what the logs hold. nil: nobody.
	Batch   func(log.StoredBatch) error
	Offsets func(group string, o log.GroupOffset) error
	Entries func(shard string, g wal.Group) error
	// Quick looks at files from outside and reads no batch.
	Quick bool
}

// offline holds the lock of a data directory that no server has open.
type offline struct {
	fs   fsx.FS
	dir  string
	id   identity
	lock io.Closer
}

func openOffline(fs fsx.FS, dir string) (*offline, error) {
	if fs == nil {
		fs = fsx.Disk()
	}
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && !contains(names, identityFile) && !contains(names, dataDir) {
		return nil, fmt.Errorf("%w: %s", ErrNoData, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("replication: list %s: %w", dir, err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, lockFile))
	if err != nil {
		return nil, inUse(fs, dir, err)
	}
	return &offline{fs: fs, dir: dir, lock: lock}, nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// Inspect reads a data directory that no server has open and says what it is.
//
// Errors: ErrInUse, ErrNoData, ErrUnknownTopic, ErrUnknownPartition, the file system's and those of the callbacks. Damage is no error.
func Inspect(o InspectOptions) (rep *DirReport, err error) {
	d, err := openOffline(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.lock.Close()) }()
	return d.inspect(o)
}

func (d *offline) inspect(o InspectOptions) (*DirReport, error) {
	fs := d.fs
	rep := &DirReport{Dir: d.dir, Verdict: wal.Clean}
	b, err := readFile(fs, fs.PathJoin(d.dir, identityFile))
	if err == nil {
		d.id, err = decodeIdentity(b)
	}
	if err != nil {
		rep.add(Fault{File: identityFile, Verdict: wal.Rotten, Last: -1, Reason: err.Error()})
	}
	rep.ClusterID, rep.NodeID, rep.DiskID = d.id.ClusterID, d.id.NodeID, d.id.DiskID
	if b, err := readFile(fs, fs.PathJoin(d.dir, openMark)); err == nil {
		m, err := decodeMark(b)
		rep.Mark = &m
		if err != nil {
			rep.add(Fault{File: openMark, Verdict: wal.Torn, Last: -1, Reason: err.Error()})
		}
	}
	catalog, err := d.metadata(rep, o)
	if err != nil {
		return nil, err
	}
	only, err := selection(catalog, o)
	if err != nil {
		return nil, err
	}
	sh, err := d.shard(rep, dataDir, o)
	if err != nil {
		return nil, err
	}
	sh.Store, err = log.Inspect(log.Options{FS: fs, Dir: fs.PathJoin(d.dir, dataDir, "store")}, log.InspectOptions{
		Only: only, Verify: !o.Quick, Batch: o.Batch, Group: o.Offsets,
	})
	if err != nil {
		return nil, err
	}
	for _, f := range sh.Store.Faults {
		x := Fault{
			File: fs.PathJoin(dataDir, "store", f.Path), Verdict: f.Verdict, Position: f.Position, Bytes: f.Bytes, First: f.First, Last: f.Last, Reason: f.Reason,
		}
		if f.Partition != (log.PartitionID{}) {
			x.Partition = &f.Partition
		}
		rep.add(x)
	}
	if c := sh.Checkpoint; c != nil && sh.Store.Verdict != wal.Rotten && sh.Store.Applied < c.Machine {
		sh.Store.Verdict = wal.Rotten
		rep.add(Fault{File: fs.PathJoin(dataDir, "store", "kv"), Verdict: wal.Rotten, Position: -1, Last: -1, Reason: staleRows(sh.Store.Applied, c.Machine).Error()})
	}
	sh.Verdict = worse(sh.Verdict, sh.Store.Verdict)
	rep.Shards = append(rep.Shards, *sh)
	return rep, nil
}

func worse(a, b wal.Verdict) wal.Verdict {
	if a == wal.Rotten || b == wal.Clean {
		return a
	}
	return b
}

func (r *DirReport) add(f Fault) {
	r.Faults = append(r.Faults, f)
	r.Verdict = worse(r.Verdict, f.Verdict)
}

// selection says which partitions are asked for.
func selection(c *Catalog, o InspectOptions) (func(log.PartitionID) bool, error) {
	var topic *Topic
	if o.Topic != "" {
		var ok bool
		if c == nil {
			return nil, fmt.Errorf("%w: the metadata cannot be read, so nothing has a name", ErrUnknownTopic)
		}
		if topic, ok = c.Topic(o.Topic); !ok {
			return nil, fmt.Errorf("%w: %s", ErrUnknownTopic, o.Topic)
		}
	}
	if o.Partition >= 0 && c != nil {
		most := int32(0)
		for _, t := range c.Topics() {
			if topic == nil || t.ID == topic.ID {
				most = max(most, t.Partitions)
			}
		}
		if o.Partition >= most {
			of := "any topic"
			if topic != nil {
				of = "topic " + topic.Name
			}
			return nil, fmt.Errorf("%w: %d of %s, whose number of partitions is %d", ErrUnknownPartition, o.Partition, of, most)
		}
	}
	return func(id log.PartitionID) bool {
		return (topic == nil || id.Topic == topic.ID) && (o.Partition < 0 || id.Index == o.Partition)
	}, nil
}

// shard reads the parts of a shard that are this package's: the log and the checkpoints.
func (d *offline) shard(rep *DirReport, name string, o InspectOptions) (*ShardReport, error) {
	fs := d.fs
	sh := &ShardReport{Name: name, Verdict: wal.Clean}
	newest, bad, err := readManifests(fs, fs.PathJoin(d.dir, name, "checkpoint"))
	if err != nil {
		return nil, err
	}
	for _, b := range bad {
		rep.add(Fault{File: fs.PathJoin(name, "checkpoint", b.name), Verdict: wal.Rotten, Last: -1, Reason: b.err.Error()})
		sh.Verdict = wal.Rotten
	}
	var synced uint64
	if newest != nil {
		sh.Checkpoint, synced = newest, newest.Index
	}
	if _, err := fs.Stat(fs.PathJoin(d.dir, name, "wal")); errors.Is(err, os.ErrNotExist) {
		sh.WAL = &wal.Report{Verdict: wal.Rotten}
		sh.Verdict = wal.Rotten
		rep.add(Fault{File: fs.PathJoin(name, "wal"), Verdict: wal.Rotten, Position: -1, Last: -1, Reason: "the write-ahead log is missing"})
		return sh, nil
	}
	var visit func(wal.Group) error
	if o.Entries != nil {
		visit = func(g wal.Group) error { return o.Entries(name, g) }
	}
	if sh.WAL, err = wal.Inspect(wal.Options{FS: fs, Dir: fs.PathJoin(d.dir, name, "wal"), SyncedIndex: synced}, visit); err != nil {
		return nil, err
	}
	for _, f := range sh.WAL.Files {
		if f.Verdict != wal.Clean {
			rep.add(Fault{File: fs.PathJoin(name, "wal", f.Name), Verdict: f.Verdict, Position: f.Position, Last: -1, Reason: f.Reason})
		}
	}
	if rot := sh.WAL.Rot; rot != nil && (len(sh.WAL.Files) == 0 || !hasRot(sh.WAL.Files)) {
		rep.add(Fault{File: fs.PathJoin(name, "wal"), Verdict: wal.Rotten, Position: -1, Last: -1, Reason: rot.Error()})
	}
	sh.Verdict = worse(sh.Verdict, sh.WAL.Verdict)
	return sh, nil
}

func hasRot(files []wal.FileReport) bool {
	for _, f := range files {
		if f.Verdict == wal.Rotten {
			return true
		}
	}
	return false
}

type badFile struct {
	name string
	err  error
}

// readManifests reads the manifests of a shard: the newest sound one, and those that are damaged.
func readManifests(fs fsx.FS, dir string) (newest *raftlog.Manifest, bad []badFile, err error) {
	names, err := fs.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("replication: list %s: %w", dir, err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".manifest") {
			continue
		}
		b, err := readFile(fs, fs.PathJoin(dir, name))
		if err != nil {
			return nil, nil, fmt.Errorf("replication: read %s: %w", name, err)
		}
		m, err := raftlog.DecodeManifest(b)
		if err != nil {
			bad = append(bad, badFile{name, err})
		} else if newest == nil || m.Index > newest.Index {
			newest = &m
		}
	}
	return newest, bad, nil
}

// metadata reads the metadata shard. The catalogue is nil if its rows cannot be read.
func (d *offline) metadata(rep *DirReport, o InspectOptions) (*Catalog, error) {
	sh, err := d.shard(rep, metaDir, o)
	if err != nil {
		return nil, err
	}
	rows := d.fs.PathJoin(d.dir, metaDir, "rows")
	c, err := readCatalog(d.fs, rows)
	switch {
	case errors.Is(err, os.ErrNotExist) && sh.Checkpoint == nil:
		err, c = nil, newCatalog()
	case err == nil && sh.Checkpoint != nil && c.Index < sh.Checkpoint.Machine:
		err = staleRows(c.Index, sh.Checkpoint.Machine)
	}
	if err != nil {
		sh.Verdict = wal.Rotten
		rep.add(Fault{File: d.fs.PathJoin(metaDir, "rows"), Verdict: wal.Rotten, Position: -1, Last: -1, Reason: err.Error()})
		c = nil
	}
	if c != nil {
		sh.Applied = c.Index
		for _, t := range c.Topics() {
			rep.Topics = append(rep.Topics, TopicName{t.Name, t.ID, t.Partitions})
		}
	}
	rep.Shards = append(rep.Shards, *sh)
	return c, nil
}

func staleRows(index, checkpoint uint64) error {
	return fmt.Errorf("%w: the rows are of entry %d, the checkpoint of %d", log.ErrCorrupt, index, checkpoint)
}

// readCatalog reads the rows of the metadata and changes nothing.
func readCatalog(fs fsx.FS, dir string) (*Catalog, error) {
	if _, err := fs.Stat(dir); err != nil {
		return nil, err
	}
	var c *Catalog
	m := &metaMachine{log: discard, gaveUp: make(chan struct{})}
	err := fsx.Survive(func() error {
		db, err := pebble.Open(dir, &pebble.Options{
			FS: fsx.Unlocked(fs), DisableWAL: true, ReadOnly: true, FormatMajorVersion: pebble.FormatNewest, Logger: pebbleLogger{m},
		})
		if err != nil {
			return err
		}
		c, _, err = load(db)
		return errors.Join(err, db.Close())
	}, m.Err, m.gaveUp)
	return c, err
}

var discard = slog.New(slog.DiscardHandler)

// RepairOptions say what a repair may do.
type RepairOptions struct {
	Dir string
	FS  fsx.FS // nil: the disk
	// AcceptLoss allows a repair that loses records. Without it such a repair is ErrLoss, and says what it would lose.
	AcceptLoss bool
	// Suffix is what old files are renamed with; "": .bad
	Suffix string
}

// ErrLoss means that a repair would lose acknowledged records, and was not allowed to.
var ErrLoss = errors.New("replication: the repair would lose acknowledged records")

// ErrNoRepair means that there is no way to repair what is damaged.
var ErrNoRepair = errors.New("replication: the damage cannot be repaired")

// A RepairReport is what a repair has done, in order, and what is lost.
type RepairReport struct {
	Steps []string
	Lost  []string
}

// Repair repairs a data directory that no server has open, of a node that is alone in its cluster: damaged files are made
// anew out of what the others say and renamed, never removed. A repair that cannot do without losing acknowledged records
// does nothing of the kind, unless it is allowed to; then Lost says exactly what. It may be repeated, also after a crash
// in the middle.
//
// Errors: ErrInUse, ErrNoData, ErrLoss, ErrNoRepair, the file system's.
func Repair(ctx context.Context, o RepairOptions) (rep *RepairReport, err error) {
	d, err := openOffline(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.lock.Close()) }()
	if o.Suffix == "" {
		o.Suffix = ".bad"
	}
	rep = &RepairReport{}
	b, err := readFile(d.fs, d.fs.PathJoin(d.dir, identityFile))
	if err == nil {
		d.id, err = decodeIdentity(b)
	}
	if err != nil {
		return rep, fmt.Errorf("%w: nobody else knows the identity of the disk: %w", ErrNoRepair, err)
	}
	for _, name := range []string{metaDir, dataDir} {
		r := repairShard{d: d, o: o, rep: rep, name: name, dir: d.fs.PathJoin(d.dir, name)}
		if err := r.run(ctx); err != nil {
			return rep, fmt.Errorf("shard %s: %w", name, err)
		}
	}
	return rep, nil
}

// A repairShard repairs one shard.
type repairShard struct {
	d    *offline
	o    RepairOptions
	rep  *RepairReport
	name string
	dir  string

	newest *raftlog.Manifest
	bad    []badFile
	wal    *wal.Report
	save   *wal.Salvage
}

func (r *repairShard) path(names ...string) string {
	return r.d.fs.PathJoin(append([]string{r.dir}, names...)...)
}

func (r *repairShard) step(format string, args ...any) {
	r.rep.Steps = append(r.rep.Steps, r.name+": "+fmt.Sprintf(format, args...))
}

func (r *repairShard) run(ctx context.Context) (err error) {
	fs := r.d.fs
	if r.newest, r.bad, err = readManifests(fs, r.path("checkpoint")); err != nil {
		return err
	}
	synced := uint64(0)
	if r.newest != nil {
		synced = r.newest.Index
		if c := raft.DecodeConfiguration(r.newest.Configuration); len(c.Servers) > 1 {
			return fmt.Errorf("%w here: the shard has other members, which hold what is lost; start with an empty directory and let it fetch", ErrNoRepair)
		}
	}
	if _, err := fs.Stat(r.path("wal")); errors.Is(err, os.ErrNotExist) {
		if _, err := fs.Stat(r.path("wal.new")); err == nil { // of an attempt that ended between two renames
			if err := r.rename("wal.new", "wal"); err != nil {
				return err
			}
		}
	}
	if err := fsx.MkdirAll(fs, r.path("wal")); err != nil {
		return err
	}
	wo := wal.Options{FS: fs, Dir: r.path("wal"), SyncedIndex: synced}
	if r.wal, err = wal.Inspect(wo, nil); err != nil {
		return err
	}
	if r.save, err = wal.OpenSalvage(wo); err != nil {
		return err
	}
	defer r.save.Close()
	at, err := r.machine(ctx)
	switch {
	case errors.Is(err, segment.ErrLost):
		return fmt.Errorf("%w: %w", ErrLoss, err)
	case err != nil && damaged(err):
		return r.replay(err)
	case err != nil:
		return err
	}
	if r.wal.Rot == nil && len(r.bad) == 0 && !(r.wal.Fresh && at.Index > 0) {
		return nil
	}
	if r.wal.Rot == nil && !r.wal.Fresh && r.newest == nil && at.Index == 0 {
		// Nothing was applied yet: the log says it all.
		return r.dropManifests()
	}
	return r.relog(at)
}

// damaged reports that a machine's rows make no sense.
func damaged(err error) bool {
	var errno syscall.Errno
	disk := errors.As(err, &errno) && errno != syscall.ENOENT
	return !disk && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// machine opens the state machine, repairs its files and takes a checkpoint.
func (r *repairShard) machine(ctx context.Context) (log.CheckpointInfo, error) {
	fs := r.d.fs
	if r.name == metaDir {
		m, err := openMeta(fsx.Unlocked(fs), r.path("rows"), discard)
		if err != nil {
			return log.CheckpointInfo{}, err
		}
		at, err := m.Checkpoint(ctx)
		if err = errors.Join(err, m.Close()); err == nil && r.newest != nil && at.Index < r.newest.Machine {
			err = staleRows(at.Index, r.newest.Machine)
		}
		return at, err
	}
	done, at, err := log.RepairStore(ctx, log.Options{FS: fs, Dir: r.path("store"), Log: r.save, Logger: discard}, log.RepairOptions{
		GiveUp: r.o.AcceptLoss, Suffix: r.o.Suffix,
	})
	for _, x := range done {
		text := fmt.Sprintf("%s: %s", x.Path, x.What)
		if x.Old != "" {
			text += "; the old file is " + x.Old
		}
		if x.Guessed > 0 {
			text += fmt.Sprintf("; %d batches have the append time of the one before", x.Guessed)
		}
		r.step("%s", text)
		for _, l := range x.Lost {
			r.rep.Lost = append(r.rep.Lost, fmt.Sprintf("partition %s: offsets %d to %d", l.Partition, l.First, l.Last))
		}
	}
	if err == nil && r.newest != nil && at.Index < r.newest.Machine {
		err = staleRows(at.Index, r.newest.Machine)
	}
	return at, err
}

// replay puts a machine whose rows are damaged aside: the next start makes them anew from the log, which must still hold
// every entry since the first.
func (r *repairShard) replay(cause error) error {
	last := r.save.Last()
	whole := last > 0
	for i := uint64(1); whole && i <= last; i++ {
		whole = r.save.Has(i)
	}
	if !whole || r.wal.Rot != nil {
		return fmt.Errorf("%w: the rows of the shard (%w) hold what no other file does (committed offsets, producers, state of pipelines), "+
			"and its log does not reach back to the first entry; restore a backup of the directory, or start with an empty one", ErrNoRepair, cause)
	}
	rows := "store"
	if r.name == metaDir {
		rows = "rows"
	}
	if err := r.putAside(rows); err != nil {
		return err
	}
	if err := r.writeLog(0, last); err != nil {
		return err
	}
	// Manifests last: as long as one is there a start without rows refuses.
	if err := r.dropManifests(); err != nil {
		return err
	}
	r.step("%s made anew: the next start reads the log from its first entry to %d; the old one is %s%s", rows, last, rows, r.o.Suffix)
	return nil
}

// relog makes the log anew behind a checkpoint at which the machine is sound.
func (r *repairShard) relog(at log.CheckpointInfo) error {
	keep := at.Index
	for r.save.Has(keep + 1) {
		keep++
	}
	lost, err := r.lost(at.Index, keep)
	if err != nil {
		return err
	}
	if len(lost) > 0 && !r.o.AcceptLoss {
		return fmt.Errorf("%w: %s", ErrLoss, strings.Join(lost, "; "))
	}
	if at.Index == 0 && keep == 0 {
		return fmt.Errorf("%w: neither the log nor a checkpoint holds anything", ErrNoRepair)
	}
	r.rep.Lost = append(r.rep.Lost, lost...)
	if at.Index > 0 {
		if err := r.writeManifest(at); err != nil {
			return err
		}
	}
	if err := r.writeLog(at.Index, keep); err != nil {
		return err
	}
	r.step("write-ahead log made anew: checkpoint at entry %d, entries to %d; the old one is wal%s", at.Index, keep, r.o.Suffix)
	return nil
}

// lost says what is gone when the log ends with entry keep.
func (r *repairShard) lost(applied, keep uint64) ([]string, error) {
	last := r.save.Last()
	if last <= keep && (r.wal.Rot == nil && !r.wal.Fresh || r.coveredBy(applied)) {
		return nil, nil
	}
	type sum struct {
		batches int
		records int64
	}
	parts, other := map[log.PartitionID]*sum{}, 0
	var order []log.PartitionID
	readable := uint64(0)
	for i := keep + 1; i <= last; i++ {
		e, err := r.save.Read(i)
		if err != nil {
			continue
		}
		readable++
		d, err := log.DecodeEntry(e.Data)
		if err != nil {
			continue
		}
		for _, u := range d.Units() {
			for op := range u.Ops() {
				if op.Kind != log.OpAppend {
					other++
					continue
				}
				p, b := op.Append()
				s := parts[p]
				if s == nil {
					s = &sum{}
					parts[p] = s
					order = append(order, p)
				}
				s.batches++
				s.records += log.BatchRecords(b)
			}
		}
	}
	text := fmt.Sprintf("shard %s: every entry from %d on, up to %d (%d of them can be read and not be applied: those before are missing)", r.name, keep+1, last, readable)
	if last <= keep {
		text = fmt.Sprintf("shard %s: every entry from %d on, if there was one: none can be read", r.name, keep+1)
	}
	out := []string{text}
	for _, p := range order {
		out = append(out, fmt.Sprintf("partition %s: %d records in %d batches at its end", p, parts[p].records, parts[p].batches))
	}
	if other > 0 {
		out = append(out, fmt.Sprintf("%d other operations (offsets, state, progress, settings)", other))
	}
	return out, nil
}

// coveredBy reports that entries follow the damage, all at or below what the machine has applied.
func (r *repairShard) coveredBy(applied uint64) bool {
	follows := r.save.Follows()
	return follows > 0 && follows <= applied
}

func (r *repairShard) writeManifest(at log.CheckpointInfo) error {
	if err := r.dropManifests(); err != nil {
		return err
	}
	snaps, err := raftlog.OpenSnapshots(r.d.fs, r.path("checkpoint"))
	if err != nil {
		return err
	}
	me := raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(r.d.id.DiskID), Address: address(r.d.id.DiskID, r.d.id.NodeID)}
	sink, err := snaps.Create(1, at.Index, at.Term, raft.Configuration{Servers: []raft.Server{me}}, 1, nil)
	if err != nil {
		return err
	}
	sink.(*raftlog.Sink).Local(at.Index)
	return sink.Close()
}

func (r *repairShard) dropManifests() error {
	names, err := r.d.fs.List(r.path("checkpoint"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".manifest") {
			if err := r.d.fs.Rename(r.path("checkpoint", name), r.path("checkpoint", name+r.o.Suffix)); err != nil {
				return err
			}
		}
	}
	return r.d.fs.SyncDir(r.path("checkpoint"))
}

// writeLog makes a log of the entries after from, up to to, and puts it in the place of the old one.
func (r *repairShard) writeLog(from, to uint64) error {
	size := int64(64 << 20)
	for _, f := range r.wal.Files {
		if f.Bytes > 0 && f.Use != "worthless" {
			size = f.Bytes
			break
		}
	}
	err := wal.Write(r.d.fs, r.path("wal.new"), size, r.save.Stable, to+1, func(yield func(wal.Entry) error) error {
		for i := from + 1; i <= to; i++ {
			e, err := r.save.Read(i)
			if err != nil {
				return err
			}
			if err := yield(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := r.putAside("wal"); err != nil {
		return err
	}
	return r.rename("wal.new", "wal")
}

// putAside renames a directory, to a name that nothing has.
func (r *repairShard) putAside(name string) error {
	to := name + r.o.Suffix
	for i := 2; ; i++ {
		if _, err := r.d.fs.Stat(r.path(to)); errors.Is(err, os.ErrNotExist) {
			break
		}
		to = fmt.Sprintf("%s%s%d", name, r.o.Suffix, i)
	}
	if err := r.rename(name, to); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (r *repairShard) rename(from, to string) error {
	if err := r.d.fs.Rename(r.path(from), r.path(to)); err != nil {
		return fmt.Errorf("replication: rename %s: %w", from, err)
	}
	return r.d.fs.SyncDir(r.dir)
}
