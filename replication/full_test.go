package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
)

// A smallDisk is a memory disk that can be full: whatever would need space then fails, except writes over bytes that
// have their place, in the log's segments. Emptying and removing files of records gives space back.
type smallDisk struct {
	fsx.FS
	mem     *fsx.Mem
	full    atomic.Bool
	emptied atomic.Int64 // files of records that were cut or removed while it was full
	enough  int64        // so many of those make room
	refused atomic.Int64
}

func newSmallDisk() *smallDisk {
	d := &smallDisk{mem: fsx.NewMem()}
	d.FS = fsx.Inject(d.mem, d.before)
	return d
}

func (d *smallDisk) before(op fsx.Op, name string) error {
	if !d.full.Load() {
		return nil
	}
	switch op {
	case fsx.OpTruncate, fsx.OpRemove:
		if strings.Contains(name, "/topics/") && d.enough > 0 && d.emptied.Add(1) >= d.enough {
			d.full.Store(false)
		}
		return nil
	case fsx.OpCreate, fsx.OpPreallocate, fsx.OpLink, fsx.OpMkdir:
	case fsx.OpWrite:
		if strings.Contains(name, "/wal/") {
			return nil // making a segment fails before its first write
		}
	default:
		return nil
	}
	d.refused.Add(1)
	return syscall.ENOSPC
}

// powerCut loses everything that was not synced.
var powerCut = vfs.CrashCloneCfg{}

func fullOptions(fs fsx.FS) NodeOptions {
	o := nodeOptions(fs)
	o.Data.MaxInflightBytes = 64 << 10
	o.Data.WALSegmentBytes = 1 << 20
	o.SegmentBytes = 256 << 10
	o.CacheBytes = 64 << 10
	return o
}

// afterUpkeep waits for the log's upkeep when a segment was begun since before. Segments are so small here that many
// are filled before its goroutine has run once; of ordinary ones it is done with the next before one is half full.
func afterUpkeep(t *testing.T, s *Shard, before wal.Metrics) {
	t.Helper()
	if s.State().WAL.Rotations == before.Rotations {
		return
	}
	eventually(t, "upkeep", func() bool {
		m := s.State().WAL
		return m.Ready >= 2 || m.UpkeepErrors > before.UpkeepErrors
	})
}

// fill produces batches to a partition until one is refused for want of room, and returns those acknowledged and the
// refusal.
func fill(t *testing.T, n *Node, id log.PartitionID, prefix string) (acked []string, refusal error) {
	t.Helper()
	pad := strings.Repeat("f", 30<<10)
	for i := range 1000 {
		value := fmt.Sprintf("%s %d %s", prefix, i, pad)
		before := n.Data().State().WAL
		u := new(log.Unit)
		u.Append(id, batchOf(value))
		answer := make(chan Result, 1)
		err := n.Data().Propose(u, func(r Result) { answer <- r })
		for ; errors.Is(err, ErrBusy) && !errors.Is(err, ErrNoRoom); err = n.Data().Propose(u, func(r Result) { answer <- r }) {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return acked, err
		}
		must(t, (<-answer).Err)
		acked = append(acked, value)
		afterUpkeep(t, n.Data(), before)
	}
	t.Fatal("the disk is full and a thousand records were taken")
	return nil, nil
}

// checkFull holds what a node with a full disk must do.
func checkFull(t *testing.T, n *Node, id log.PartitionID, acked []string, refusal error) {
	t.Helper()
	if !errors.Is(refusal, ErrNoRoom) || !errors.Is(refusal, ErrBusy) || !errors.Is(refusal, syscall.ENOSPC) {
		t.Errorf("refusal: %v", refusal)
	}
	if why := strings.Join(n.Ready(), "; "); !strings.Contains(why, "shard data-0") || !strings.Contains(why, "no space left on device") {
		t.Errorf("ready: %v", why)
	}
	if st := n.Data().State(); st.NoRoom == nil || !st.Leader || st.Err != nil {
		t.Errorf("state: %v, leader %v, %v", st.NoRoom, st.Leader, st.Err)
	}
	// Readers go on.
	if got := values(t, n, id); len(got) < len(acked) || strings.Join(got[:len(acked)], "") != strings.Join(acked, "") {
		t.Errorf("%d values read, %d acknowledged", len(got), len(acked))
	}
	// So do offsets and tasks.
	for i := range 50 {
		u := new(log.Unit)
		u.Offsets("group", []log.GroupOffset{{Partition: id, Offset: int64(i), LeaderEpoch: -1}})
		if i == 0 {
			u.TaskOpen(log.TaskID{1})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if r := n.Data().Do(ctx, u); r.Outcome != Yes {
			t.Fatalf("offset %d on a full disk: %v", i, r.Err)
		}
		cancel()
	}
	if got, err := n.Store().GroupOffsets("group"); err != nil || len(got) != 1 || got[0].Offset != 49 {
		t.Errorf("offsets: %v, %v", got, err)
	}
	// And metadata.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := n.Meta().CreateTopic(ctx, TopicSpec{Name: "made-on-a-full-disk"}); err != nil {
		t.Errorf("create a topic: %v", err)
	}
}

// again produces one record as soon as it is taken.
func again(t *testing.T, n *Node, id log.PartitionID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := produce(ctx, n, id, "again"); r.Outcome != Yes {
		t.Fatalf("records are not taken again: %v", r.Err)
	}
}

// A full disk refuses records and says why; reads, offsets, tasks and metadata go on; when somebody makes room, so do
// records, without a restart. Nothing acknowledged is lost, then or after a kill.
func TestAFullDiskStopsRecordsAndNothingElse(t *testing.T) {
	d := newSmallDisk()
	n := openNode(t, fullOptions(d))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a"}))
	id := partition(t, n, "a", 0)
	var acked []string
	for round := range 2 {
		eventually(t, "the log has its ready segments", func() bool { return n.Data().State().WAL.Ready >= 2 })
		d.full.Store(true)
		before := d.refused.Load()
		more, refusal := fill(t, n, id, fmt.Sprint("round ", round))
		acked = append(acked, more...)
		if round == 0 {
			checkFull(t, n, id, acked, refusal)
		}
		if d.refused.Load() == before {
			t.Fatal("the disk refused nothing")
		}
		d.full.Store(false)
		again(t, n, id)
		acked = append(acked, "again")
		eventually(t, "the node is ready", func() bool { return len(n.Ready()) == 0 })
	}
	must(t, n.Data().Checkpoint(t.Context()))
	crashed := d.mem.CrashClone(powerCut)
	must(t, n.Close())
	for _, fs := range []fsx.FS{d.mem, crashed} {
		n = openNode(t, fullOptions(fs))
		if got := values(t, n, id); strings.Join(got, "") != strings.Join(acked, "") {
			t.Errorf("%d values after the restart, %d acknowledged", len(got), len(acked))
		}
		must(t, n.Close())
	}
}

// Deleting a topic is how its owner makes room: the writer, which may not get to the deletion for want of space, gets
// that of the deleted files. A kill at any moment of it does no harm.
func TestDeletingATopicMakesRoomOnAFullDisk(t *testing.T) {
	d := newSmallDisk()
	n := openNode(t, fullOptions(d))
	for _, name := range []string{"keep", "delete"} {
		must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: name}))
	}
	keep, gone := partition(t, n, "keep", 0), partition(t, n, "delete", 0)
	var acked []string
	pad := strings.Repeat("p", 30<<10)
	for i := range 60 {
		value := fmt.Sprint(i, pad)
		must(t, produce(t.Context(), n, gone, value).Err)
		must(t, produce(t.Context(), n, keep, value).Err)
		acked = append(acked, value)
	}
	must(t, n.Data().Checkpoint(t.Context()))
	for i := range 20 { // in files, and not in a checkpoint
		value := fmt.Sprint("late ", i, pad)
		must(t, produce(t.Context(), n, gone, value).Err)
		must(t, produce(t.Context(), n, keep, value).Err)
		acked = append(acked, value)
	}
	must(t, n.Store().Flush(t.Context()))
	// What is reserved is made beside the appends: it is there unless the disk fills up under full load.
	eventually(t, "the log has its ready segments", func() bool { return n.Data().State().WAL.Ready >= 2 })
	d.enough = 4
	d.full.Store(true)
	more, refusal := fill(t, n, keep, "more")
	acked = append(acked, more...)
	if err := n.Store().Flush(t.Context()); !errors.Is(err, log.ErrDegraded) {
		t.Errorf("flush on a full disk: %v", err)
	}
	checkFull(t, n, keep, acked, refusal)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var images []*fsx.Mem
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			mu.Lock()
			if len(images) < 12 {
				images = append(images, d.mem.CrashClone(powerCut))
			}
			mu.Unlock()
		}
	})
	must(t, n.Meta().DeleteTopic(ctx, "delete"))
	again(t, n, keep)
	acked = append(acked, "again")
	if d.full.Load() || d.emptied.Load() < d.enough {
		t.Errorf("the disk is full %v, %d files emptied", d.full.Load(), d.emptied.Load())
	}
	must(t, n.Data().Checkpoint(ctx))
	close(stop)
	wg.Wait()
	images = append(images, d.mem.CrashClone(powerCut))
	must(t, n.Close())
	for i, fs := range images {
		n = openNode(t, fullOptions(fs))
		got := values(t, n, keep)
		least := len(acked)
		if i < len(images)-1 {
			least-- // the last one may not have been there
		}
		if len(got) < least || len(got) > len(acked) || strings.Join(got, "") != strings.Join(acked[:len(got)], "") {
			t.Errorf("image %d: %d values after the restart, %d acknowledged", i, len(got), len(acked))
		}
		must(t, n.Close())
	}
}

// A disk with space for a few segments of the log is no full disk: a checkpoint gives the log its room back, although
// nothing is appended meanwhile.
func TestALogWithoutSpaceToGrowGoesOnWithCheckpoints(t *testing.T) {
	mem := fsx.NewMem()
	fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
		if op == fsx.OpPreallocate && strings.Contains(name, "wal") {
			if names, err := mem.List("s/wal"); err != nil || len(names) > 4 { // the one being made is one
				return syscall.ENOSPC
			}
		}
		return nil
	})
	o := ledgerShard(fs, "s", nil)
	o.CheckpointBytes = 1 << 40
	s := openLed(t, o)
	text := strings.Repeat("f", 20<<10)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for i := range 80 { // seven segments
		before := s.State().WAL
		if r := s.Do(ctx, line("%d %s", i, text)); r.Outcome != Yes {
			t.Fatalf("unit %d: %v", i, r.Err)
		}
		afterUpkeep(t, s, before)
	}
	if m := s.State().WAL; m.Created > 4 || m.Recycled == 0 {
		t.Errorf("%d segments made, %d used again", m.Created, m.Recycled)
	}
	must(t, s.Close())
}

// A node that cannot start on a full disk says so soon, and starts when there is room.
func TestAStartOnAFullDiskEndsWithAReason(t *testing.T) {
	d := newSmallDisk()
	n := openNode(t, fullOptions(d))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a"}))
	id := partition(t, n, "a", 0)
	must(t, produce(t.Context(), n, id, "x").Err)
	d.full.Store(true)
	_, _ = fill(t, n, id, "y")
	want := values(t, n, id)
	crashed := d.mem.CrashClone(powerCut)
	d.full.Store(false)
	must(t, n.Close())

	again := &smallDisk{mem: crashed}
	again.FS = fsx.Inject(crashed, again.before)
	again.full.Store(true)
	o := fullOptions(again)
	o.OpenTimeout = time.Second
	begun := time.Now()
	if _, err := OpenNode(o); err == nil || !errors.Is(err, syscall.ENOSPC) && !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("a start on a full disk: %v", err)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	again.full.Store(false)
	n = openNode(t, o)
	if got := values(t, n, id); strings.Join(got, "") != strings.Join(want, "") {
		t.Errorf("%d values, before %d", len(got), len(want))
	}
	must(t, n.Close())
}
