package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
)

func nodeOptions(fs fsx.FS) NodeOptions {
	return NodeOptions{
		Dir: "node", FS: fs, Logger: quiet, RetentionEvery: -1,
		Data: ShardOptions{WALSegmentBytes: 512 << 10, CheckpointBytes: -1, CheckpointEvery: -1, TrailingBytes: 1},
		Meta: ShardOptions{WALSegmentBytes: 512 << 10, CheckpointBytes: -1, CheckpointEvery: -1, TrailingBytes: 1},
	}
}

func openNode(t testing.TB, o NodeOptions) *Node {
	t.Helper()
	n, err := OpenNode(o)
	must(t, err)
	return n
}

func batchOf(values ...string) []byte {
	b := record.NewBuilder()
	for _, v := range values {
		b.Append(1700000000000, nil, []byte(v), nil)
	}
	return b.Finish()
}

func produce(ctx context.Context, n *Node, id log.PartitionID, values ...string) Result {
	u := new(log.Unit)
	u.Append(id, batchOf(values...))
	return n.Data().Do(ctx, u)
}

// values reads a partition from start to end.
func values(t testing.TB, n *Node, id log.PartitionID) []string {
	t.Helper()
	p, ok := n.Store().Partition(id)
	if !ok {
		t.Fatalf("partition %s is not there", id)
	}
	var out []string
	r := new(record.Reader)
	for at := p.LogStart(); at < p.LogEnd(); {
		batches, err := p.Read(at, 1<<20, nil)
		must(t, err)
		for _, b := range batches {
			must(t, r.Reset(b.Data))
			for r.Next() {
				out = append(out, string(r.Record().Value))
			}
			must(t, r.Err())
			at = b.Last + 1
		}
	}
	return out
}

func partition(t testing.TB, n *Node, topic string, index int32) log.PartitionID {
	t.Helper()
	top, ok := n.Meta().Catalog().Topic(topic)
	if !ok {
		t.Fatalf("no topic %s", topic)
	}
	return log.PartitionID{Topic: top.ID, Index: index}
}

func TestANodeStartsServesAndStartsAgain(t *testing.T) {
	fs := fsx.NewMem()
	n := openNode(t, nodeOptions(fs))
	if n.Unclean() || n.NodeID() != 1 || n.ClusterID() == "" || n.Epoch() != 1 || len(n.Ready()) != 0 {
		t.Errorf("unclean %v, node %d of %q, epoch %d, ready %v", n.Unclean(), n.NodeID(), n.ClusterID(), n.Epoch(), n.Ready())
	}
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "clicks", Partitions: 2}))
	for i := range 10 {
		r := produce(t.Context(), n, partition(t, n, "clicks", int32(i%2)), fmt.Sprint(i))
		if r.Err != nil || r.Offsets[0] != int64(i/2) {
			t.Fatalf("produce %d: %+v", i, r)
		}
	}
	if r := produce(t.Context(), n, log.PartitionID{Index: 7}, "x"); r.Outcome != No || !errors.Is(r.Err, log.ErrUnknownPartition) {
		t.Errorf("unknown partition: %+v", r)
	}
	cluster := n.ClusterID()
	must(t, n.Close())
	must(t, n.Close())
	n = openNode(t, nodeOptions(fs))
	if n.Unclean() || n.ClusterID() != cluster || n.Epoch() != 2 {
		t.Errorf("unclean %v, same cluster %v, epoch %d", n.Unclean(), n.ClusterID() == cluster, n.Epoch())
	}
	if got := values(t, n, partition(t, n, "clicks", 1)); !slices.Equal(got, []string{"1", "3", "5", "7", "9"}) {
		t.Errorf("values %v", got)
	}
	must(t, n.Close())
}

func TestADirectoryHasOneNode(t *testing.T) {
	fs := fsx.NewMem()
	n := openNode(t, nodeOptions(fs))
	if _, err := OpenNode(nodeOptions(fs)); err == nil {
		t.Error("two nodes in one directory")
	}
	must(t, n.Close())
}

// A directory that lost its identity or its shards is not taken for a new one.
func TestALostPartIsNotANewNode(t *testing.T) {
	for _, c := range []struct {
		remove string
		want   error
	}{
		{"node/identity", ErrIdentity}, {"node/meta", ErrEmptyShard}, {"node/data-0", ErrEmptyShard},
	} {
		fs := fsx.NewMem()
		must(t, openNode(t, nodeOptions(fs)).Close())
		must(t, fs.RemoveAll(c.remove))
		if _, err := OpenNode(nodeOptions(fs)); !errors.Is(err, c.want) {
			t.Errorf("without %s: %v", c.remove, err)
		}
	}
	fs := fsx.NewMem()
	must(t, openNode(t, nodeOptions(fs)).Close())
	f, err := fs.OpenFile("node/identity")
	must(t, err)
	_, err = f.WriteAt([]byte("x"), 3)
	must(t, err)
	must(t, f.Close())
	if _, err := OpenNode(nodeOptions(fs)); !errors.Is(err, ErrIdentity) {
		t.Errorf("damaged identity: %v", err)
	}
}

func FuzzDecodeIdentity(f *testing.F) {
	b, err := identity{Version: 1, ClusterID: "c", DiskID: "d"}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(binary.BigEndian.AppendUint32([]byte("{}\n"), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := decodeIdentity(b); err == nil && id.DiskID == "" {
			t.Error("an identity without a disk")
		} else if err != nil && !errors.Is(err, ErrIdentity) {
			t.Errorf("untyped error %v", err)
		}
	})
}

func TestTopicsFollowIntoTheDataShard(t *testing.T) {
	fs := fsx.NewMem()
	n := openNode(t, nodeOptions(fs))
	ctx := t.Context()
	must(t, n.Meta().CreateTopic(ctx, TopicSpec{Name: "a", Partitions: 2}))
	id := partition(t, n, "a", 0)
	two, set := int32(3), DefaultSettings()
	set.RetentionMs = 77
	must(t, n.Meta().SetTopic(ctx, "a", TopicPatch{Partitions: &two, Settings: &set}))
	for i := range int32(3) {
		p, ok := n.Store().Partition(partition(t, n, "a", i))
		if !ok || p.Settings().RetentionMs != 77 {
			t.Errorf("partition %d: %v", i, ok)
		}
	}
	must(t, n.Meta().DeleteTopic(ctx, "a"))
	if _, ok := n.Store().Partition(id); ok {
		t.Error("partition of a deleted topic")
	}
	// Created and deleted while the placer is busy: nothing is left behind.
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := fmt.Sprint("t", i)
			if err := n.Meta().CreateTopic(ctx, TopicSpec{Name: name, Partitions: 3}); err != nil {
				t.Error(err)
			}
			if err := n.Meta().DeleteTopic(ctx, name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if left := n.Store().Partitions(); len(left) != 0 {
		t.Errorf("%d partitions without a topic", len(left))
	}
	must(t, n.Close())
}

// A crash between the metadata and the data shard is healed at the next start; partitions that the catalogue
// never knew are left alone, for only a tombstone deletes data.
func TestAStartHealsWhatACrashLeftBetweenTheShards(t *testing.T) {
	fs := fsx.NewMem()
	n := openNode(t, nodeOptions(fs))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "kept"}))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "gone"}))
	gone := partition(t, n, "gone", 0)
	stranger := log.PartitionID{Topic: log.TopicID{9}, Index: 4}
	u := new(log.Unit)
	u.PartitionOpen(stranger, DefaultSettings(), 1)
	if r := n.Data().Do(t.Context(), u); r.Err != nil {
		t.Fatal(r.Err)
	}
	n.cancel() // the placer stops: what follows reaches the metadata only
	n.wg.Wait()
	c, _, err := createUnit(&TopicSpec{Name: "new", Partitions: 3}, 1)
	must(t, err)
	d, err := command(cmdDeleteTopic, deleteTopic{Name: "gone"})
	must(t, err)
	owner := "x"
	set := DefaultSettings()
	set.Compact = true
	s, err := command(cmdSetTopic, setTopic{Name: "kept", Patch: TopicPatch{Owner: &owner, Settings: &set}})
	must(t, err)
	for _, u := range []*log.Unit{c, d, s} {
		if r := n.meta.Do(context.Background(), u); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if _, ok := n.Store().Partition(gone); !ok {
		t.Fatal("the placer still runs")
	}
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	must(t, n.Close())
	n = openNode(t, nodeOptions(clone))
	if !n.Unclean() {
		t.Error("a crash is not noticed")
	}
	for i := range int32(3) {
		if _, ok := n.Store().Partition(partition(t, n, "new", i)); !ok {
			t.Errorf("partition %d of a topic in the metadata is not open", i)
		}
	}
	if top, _ := n.Meta().Catalog().Topic("new"); !top.Opened {
		t.Error("not marked open")
	}
	if _, ok := n.Store().Partition(gone); ok {
		t.Error("the partition of a deleted topic is there")
	}
	if p, _ := n.Store().Partition(partition(t, n, "kept", 0)); !p.Settings().Compact {
		t.Error("settings did not follow")
	}
	if _, ok := n.Store().Partition(stranger); !ok {
		t.Error("data without a tombstone was deleted")
	}
	must(t, n.Close())
}

// Kill the node at any moment, with topics coming and going: acknowledged topics and records are there.
func TestANodeSurvivesCrashesAtAnyMoment(t *testing.T) {
	states := 60
	if testing.Short() {
		states = 10
	}
	for seed := uint64(0); states > 0; seed++ {
		rng := rand.New(rand.NewPCG(seed, 21))
		fs := fsx.NewMem()
		n := openNode(t, nodeOptions(fs))
		must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "base", Partitions: 2}))
		var mu sync.Mutex
		acked := [2][]string{}
		var topics []string
		var stop atomic.Bool
		var wg sync.WaitGroup
		for p := range 2 {
			id := partition(t, n, "base", int32(p))
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					v := fmt.Sprintf("%d %s", i, strings.Repeat("v", i%700))
					if r := produce(context.Background(), n, id, v); r.Outcome == Yes {
						mu.Lock()
						acked[p] = append(acked[p], v)
						mu.Unlock()
					}
				}
			})
		}
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				name := fmt.Sprint("t", i)
				if n.Meta().CreateTopic(context.Background(), TopicSpec{Name: name}) == nil {
					mu.Lock()
					topics = append(topics, name)
					mu.Unlock()
				}
			}
		})
		type state struct {
			fs     *fsx.Mem
			acked  [2]int
			topics int
		}
		var clones []state
		for range 6 {
			time.Sleep(time.Duration(rng.IntN(6000)) * time.Microsecond)
			if rng.IntN(3) == 0 {
				must(t, n.Data().Checkpoint(context.Background()))
			}
			if rng.IntN(3) == 0 {
				must(t, n.MetaShard().Checkpoint(context.Background()))
			}
			mu.Lock()
			s := state{acked: [2]int{len(acked[0]), len(acked[1])}, topics: len(topics)}
			mu.Unlock()
			s.fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 30, 100}[rng.IntN(3)], RNG: rng})
			clones = append(clones, s)
		}
		stop.Store(true)
		wg.Wait()
		must(t, n.Close())
		for i, s := range clones {
			states--
			r, err := OpenNode(nodeOptions(s.fs))
			if err != nil {
				t.Fatalf("seed %d clone %d: %v", seed, i, err)
			}
			for p := range 2 {
				got := values(t, r, partition(t, r, "base", int32(p)))
				for j, v := range got {
					if !strings.HasPrefix(v, fmt.Sprintf("%d ", j)) {
						t.Fatalf("seed %d clone %d: value %d of partition %d is %.12q", seed, i, j, p, v)
					}
				}
				if len(got) < s.acked[p] {
					t.Fatalf("seed %d clone %d: %d values, %d acknowledged", seed, i, len(got), s.acked[p])
				}
			}
			for _, name := range topics[:s.topics] {
				if top, ok := r.Meta().Catalog().Topic(name); !ok || !top.Opened {
					t.Fatalf("seed %d clone %d: topic %s is lost", seed, i, name)
				}
			}
			must(t, r.Close())
		}
	}
}

// The time to serve grows with the log since the last checkpoint only, and that is bounded: 256 MiB by default.
func TestRecoveryTakesSeconds(t *testing.T) {
	fs := fsx.NewMem()
	o := nodeOptions(fs)
	o.Data.WALSegmentBytes = 8 << 20
	n := openNode(t, o)
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a", Partitions: 4}))
	batch := batchOf(strings.Repeat("r", 64<<10))
	const batches = 512 // 32 MiB
	var wg sync.WaitGroup
	for i := range batches {
		u := new(log.Unit)
		u.Append(partition(t, n, "a", int32(i%4)), batch)
		wg.Add(1)
		must(t, n.Data().ProposeWait(t.Context(), u, func(r Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			wg.Done()
		}))
	}
	wg.Wait()
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	must(t, n.Close())
	o.FS = clone
	begun := cpu()
	n = openNode(t, o)
	took := cpu() - begun
	t.Logf("%d MiB of log replayed in %v of processor time", batches*64>>10, took)
	if took > 5*time.Second {
		t.Errorf("recovery took %v", took)
	}
	total := int64(0)
	for i := range int32(4) {
		p, _ := n.Store().Partition(partition(t, n, "a", i))
		total += p.LogEnd()
	}
	if total != batches {
		t.Errorf("%d batches after recovery", total)
	}
	must(t, n.Close())
}

// The data shard's disk fails: the node is not ready and says why, the metadata goes on, and the stop is
// not a clean one.
func TestAFailedDataDiskLeavesTheMetadataServing(t *testing.T) {
	var broken atomic.Bool
	mem := fsx.NewMem()
	fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
		if broken.Load() && op == fsx.OpSync && strings.Contains(name, "data-0/wal") {
			return errors.New("input/output error")
		}
		return nil
	})
	n := openNode(t, nodeOptions(fs))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a"}))
	id := partition(t, n, "a", 0)
	broken.Store(true)
	if r := produce(t.Context(), n, id, "x"); r.Outcome != Unknown {
		t.Errorf("produce: %+v", r)
	}
	if why := n.Ready(); len(why) == 0 || !strings.Contains(why[0], "data-0") {
		t.Errorf("ready: %v", why)
	}
	if _, err := n.Meta().ProducerID(t.Context()); err != nil {
		t.Errorf("metadata: %v", err)
	}
	if err := n.Close(); err == nil {
		t.Error("a clean stop of a failed node")
	}
	n = openNode(t, nodeOptions(mem))
	if !n.Unclean() {
		t.Error("the failure is forgotten")
	}
	must(t, n.Close())
}

// Ten thousand topics take seconds to create and are there at once at the next start.
func TestTenThousandTopics(t *testing.T) {
	if testing.Short() {
		t.Skip("creates 10,000 topics")
	}
	fs := fsx.NewMem()
	o := nodeOptions(fs)
	o.Meta.WALSegmentBytes, o.Data.WALSegmentBytes = 8<<20, 8<<20
	n := openNode(t, o)
	specs := make([]TopicSpec, 10_000)
	for i := range specs {
		specs[i].Name = fmt.Sprintf("topic-%05d", i)
	}
	begun := cpu()
	for i, err := range n.Meta().CreateTopics(t.Context(), specs) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	created := cpu() - begun
	clone := fs.CrashClone(vfs.CrashCloneCfg{})
	must(t, n.Close())
	for name, fs := range map[string]*fsx.Mem{"clean": fs, "after a crash": clone} {
		o.FS = fs
		begun = cpu()
		n = openNode(t, o)
		t.Logf("created in %v, %s start in %v, of processor time", created, name, cpu()-begun)
		if got := len(n.Store().Partitions()); got != len(specs) || n.Meta().Catalog().TopicCount() != len(specs) {
			t.Errorf("%d partitions, %d topics", got, n.Meta().Catalog().TopicCount())
		}
		if took := cpu() - begun; took > 6*time.Second {
			t.Errorf("%s start took %v", name, took)
		}
		must(t, n.Close())
	}
}
