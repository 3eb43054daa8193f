package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

var quiet = slog.New(slog.DiscardHandler)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A metaWorld is the metadata over a deterministic shard, with a placer that opens whatever it is told.
type metaWorld struct {
	fs      *fsx.Mem
	shard   *MemShard
	machine *metaMachine
	md      *Metadata
}

func newMetaWorld(t testing.TB) *metaWorld {
	t.Helper()
	w := &metaWorld{fs: fsx.NewMem()}
	m, err := openMeta(w.fs, "rows", quiet)
	must(t, err)
	w.machine = m
	w.shard = NewMemShard(m, MemOptions{Auto: true})
	w.md = newMetadata(w.shard, m, func() time.Time { return time.UnixMilli(1700000000000) }, nil)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var opened []*Topic
			for _, p := range latest(m.takeWork()) {
				if p.topic != nil {
					opened = append(opened, p.topic)
					continue
				}
				_, _ = w.md.do(context.Background(), cmdPurge, purge{IDs: []log.TopicID{p.dropped.ID}})
			}
			if len(opened) > 0 {
				m.opened(opened)
			}
			select {
			case <-m.mu.waked:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		must(t, m.Close())
	})
	return w
}

func TestTopicsAreCreatedChangedAndDeleted(t *testing.T) {
	w := newMetaWorld(t)
	ctx := t.Context()
	must(t, w.md.CreateTopic(ctx, TopicSpec{Name: "clicks", Partitions: 3, Owner: "web/clicks", Configs: map[string]string{"a": "b"}}))
	top, ok := w.md.Catalog().Topic("clicks")
	if !ok || !top.Opened || top.Partitions != 3 || top.Owner != "web/clicks" || top.CreatedAt != 1700000000000 || top.Settings != DefaultSettings() {
		t.Fatalf("topic %+v", top)
	}
	if by, ok := w.md.Catalog().TopicByID(top.ID); !ok || by != top {
		t.Error("not found by id")
	}
	if err := w.md.CreateTopic(ctx, TopicSpec{Name: "clicks"}); !errors.Is(err, ErrTopicExists) {
		t.Errorf("created twice: %v", err)
	}
	n := int32(5)
	set := DefaultSettings()
	set.RetentionMs = 1000
	must(t, w.md.SetTopic(ctx, "clicks", TopicPatch{Partitions: &n, Settings: &set}))
	now, _ := w.md.Catalog().Topic("clicks")
	if now.Partitions != 5 || now.Settings.RetentionMs != 1000 || now.ID != top.ID || now.Index <= top.Index || now.Configs["a"] != "b" || !now.Opened {
		t.Errorf("changed topic %+v", now)
	}
	if top.Partitions != 3 {
		t.Error("the old row changed")
	}
	n = 4
	if err := w.md.SetTopic(ctx, "clicks", TopicPatch{Partitions: &n}); !errors.Is(err, ErrInvalidTopic) {
		t.Errorf("fewer partitions: %v", err)
	}
	if err := w.md.SetTopic(ctx, "none", TopicPatch{}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("change of an unknown topic: %v", err)
	}
	must(t, w.md.DeleteTopic(ctx, "clicks"))
	if err := w.md.DeleteTopic(ctx, "clicks"); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("deleted twice: %v", err)
	}
	must(t, w.md.CreateTopic(ctx, TopicSpec{Name: "clicks"}))
	again, _ := w.md.Catalog().Topic("clicks")
	if again.ID == top.ID {
		t.Error("a new topic has the id of the deleted one")
	}
	if got := w.md.Catalog().PartitionCount(); got != 1 {
		t.Errorf("%d partitions counted", got)
	}
}

func TestNamesAndLimitsAreDefiniteNos(t *testing.T) {
	w := newMetaWorld(t)
	for _, name := range []string{"", ".", "..", "a/b", "a b", "ä", "a\x00", strings.Repeat("x", 201), "../x"} {
		if err := w.md.CreateTopic(t.Context(), TopicSpec{Name: name}); !errors.Is(err, ErrInvalidName) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	must(t, w.md.CreateTopic(t.Context(), TopicSpec{Name: strings.Repeat("x", 200)}))
	errs := w.md.CreateTopics(t.Context(), []TopicSpec{
		{Name: "many", Partitions: MaxTopicPartitions + 1}, {Name: "minus", Partitions: -1}, {Name: "full", Partitions: MaxTopicPartitions}, {Name: "a/b"}, {Name: "full"},
	})
	for i, want := range []error{ErrLimit, ErrLimit, nil, ErrInvalidName, ErrTopicExists} {
		if !errors.Is(errs[i], want) {
			t.Errorf("topic %d: %v, want %v", i, errs[i], want)
		}
	}
	var specs []TopicSpec
	for i := range MaxPartitions / MaxTopicPartitions {
		specs = append(specs, TopicSpec{Name: fmt.Sprintf("t%d", i), Partitions: MaxTopicPartitions})
	}
	errs = w.md.CreateTopics(t.Context(), specs)
	if err := errs[len(errs)-1]; !errors.Is(err, ErrLimit) {
		t.Errorf("over the limit of all partitions: %v", err)
	}
	if err := w.md.CreateTopic(t.Context(), TopicSpec{Name: "big", Schema: []byte(`"` + strings.Repeat("s", MaxRowBytes) + `"`)}); !errors.Is(err, ErrLimit) {
		t.Errorf("row over the limit: %v", err)
	}
}

func TestModulesHaveVersionsAndConflicts(t *testing.T) {
	w := newMetaWorld(t)
	ctx := t.Context()
	put := func(text string, expect int64) (int64, error) {
		return w.md.PutModule(ctx, ModuleRow{Name: "web", Text: text, State: "running", Params: map[string]string{"p": "1"}, Pipelines: []PipelineRow{{Name: "hot", Task: log.TaskID{1}}}}, expect)
	}
	if _, err := put("x", 1); !errors.Is(err, ErrVersionConflict) {
		t.Errorf("first put with a version: %v", err)
	}
	v, err := put("one", 0)
	if err != nil || v != 1 {
		t.Fatalf("version %d, %v", v, err)
	}
	if _, err := put("two", 0); !errors.Is(err, ErrVersionConflict) {
		t.Errorf("put over an unknown version: %v", err)
	}
	if v, err = put("two", 1); err != nil || v != 2 {
		t.Fatalf("version %d, %v", v, err)
	}
	if v, err = put("three", -1); err != nil || v != 3 {
		t.Fatalf("version %d, %v", v, err)
	}
	m, ok := w.md.Catalog().Module("web")
	if !ok || m.Text != "three" || m.Version != 3 || m.Pipelines[0].Task != (log.TaskID{1}) || len(w.md.Catalog().Modules()) != 1 {
		t.Errorf("module %+v", m)
	}
	if err := w.md.DeleteModule(ctx, "web", 2); !errors.Is(err, ErrVersionConflict) {
		t.Errorf("delete of an old version: %v", err)
	}
	must(t, w.md.DeleteModule(ctx, "web", 3))
	if err := w.md.DeleteModule(ctx, "web", -1); !errors.Is(err, ErrUnknownModule) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := w.md.PutModule(ctx, ModuleRow{Name: "a b"}, 0); !errors.Is(err, ErrInvalidName) {
		t.Errorf("name: %v", err)
	}
}

func TestProducerIDsAreUniqueAcrossRestarts(t *testing.T) {
	w := newMetaWorld(t)
	seen := map[int64]bool{}
	for _, md := range []*Metadata{w.md, newMetadata(w.shard, w.machine, time.Now, nil)} {
		for range 1500 {
			id, err := md.ProducerID(t.Context())
			must(t, err)
			if seen[id] || id < firstProducerID {
				t.Fatalf("id %d", id)
			}
			seen[id] = true
		}
	}
}

func TestSchemasHaveVersionsAndIDs(t *testing.T) {
	w := newMetaWorld(t)
	a, err := w.md.PutSchema(t.Context(), "s", "one")
	must(t, err)
	same, err := w.md.PutSchema(t.Context(), "s", "one")
	must(t, err)
	b, err := w.md.PutSchema(t.Context(), "s", "two")
	must(t, err)
	c, err := w.md.PutSchema(t.Context(), "r", "one")
	must(t, err)
	if a.ID != 1 || same != a || b.ID != 2 || b.Version != 2 || c.ID != 3 || c.Version != 1 {
		t.Errorf("%+v %+v %+v %+v", a, same, b, c)
	}
	if got, ok := w.md.Catalog().SchemaByID(2); !ok || got != b || len(w.md.Catalog().Schemas("s")) != 2 {
		t.Errorf("catalogue: %+v", got)
	}
}

func TestWatchersWakeOnEveryChange(t *testing.T) {
	w := newMetaWorld(t)
	ch := w.md.Watch()
	select {
	case <-ch:
		t.Fatal("woken without a change")
	default:
	}
	_, err := w.md.PutSchema(t.Context(), "s", "one")
	must(t, err)
	<-ch
}

// dump is the whole catalogue, comparable. Opened marks are local and left out.
func dump(c *Catalog) map[string]any {
	d := map[string]any{"index": c.Index, "producer": c.producer, "schema": c.schema, "partitions": c.partitions}
	for name, t := range c.topics.all() {
		row := *t
		row.Opened = false
		d["t/"+name] = row
	}
	for name, m := range c.modules.all() {
		d["m/"+name] = *m
	}
	for id, x := range c.tombstones.all() {
		d["x/"+id.String()] = x
	}
	for id, n := range c.nodes.all() {
		d[fmt.Sprint("n/", id)] = n
	}
	for id, s := range c.schemaIDs.all() {
		d[fmt.Sprint("s/", id)] = s
	}
	return d
}

// Random commands, with checkpoints and crashes in between: the rows after a crash are the catalogue as it was
// after some entry, at least the last checkpoint's, and replaying the log from there gives the same catalogue.
func TestTheRowsAreAPrefixOfTheLogAndReplayRestoresTheRest(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		fs := fsx.NewMem()
		m, err := openMeta(fs, "rows", quiet)
		must(t, err)
		s := NewMemShard(m, MemOptions{Auto: true})
		ctx := context.Background()
		checkpoint := uint64(0)
		for step := range 150 {
			name := fmt.Sprintf("n%d", rng.IntN(12))
			var u *log.Unit
			switch rng.IntN(9) {
			case 0, 1, 2:
				u, _, err = createUnit(&TopicSpec{Name: name, Partitions: int32(rng.IntN(4))}, int64(step))
			case 3:
				u, err = command(cmdDeleteTopic, deleteTopic{Name: name})
			case 4:
				owner := fmt.Sprint("o", step)
				u, err = command(cmdSetTopic, setTopic{Name: name, Patch: TopicPatch{Owner: &owner}})
			case 5:
				u, err = command(cmdPutModule, putModule{Module: ModuleRow{Name: name, Text: fmt.Sprint(step)}, Expect: -1})
			case 6:
				u, err = command(cmdDeleteModule, deleteModule{Name: name, Expect: -1})
			case 7:
				u, err = command(cmdProducerBlock, struct{}{})
			case 8:
				u, err = command(cmdPutSchema, SchemaRow{Name: name, Text: fmt.Sprint(step)})
			}
			must(t, err)
			s.Do(ctx, u)
			if rng.IntN(20) == 0 {
				info, err := m.Checkpoint(ctx)
				must(t, err)
				checkpoint = info.Index
			}
			if rng.IntN(12) != 0 {
				continue
			}
			clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
			r, err := openMeta(clone, "rows", quiet)
			if err != nil {
				t.Fatalf("seed %d step %d: reopen: %v", seed, step, err)
			}
			if at, _ := r.Applied(); at < checkpoint {
				t.Fatalf("seed %d step %d: applied %d, checkpoint %d", seed, step, at, checkpoint)
			}
			s.Replay(r)
			if got, want := dump(r.catalog.Load()), dump(m.catalog.Load()); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d step %d:\n got %v\nwant %v", seed, step, got, want)
			}
			must(t, r.Close())
		}
		must(t, m.Close())
	}
}

// Bytes that are no metadata command are a definite no, for a unit alone.
func TestNonsenseCommandsAreRefusedAlone(t *testing.T) {
	w := newMetaWorld(t)
	empty, odd, two, app := new(log.Unit), new(log.Unit), new(log.Unit), new(log.Unit)
	empty.Command(nil)
	odd.Command([]byte("\xffxx"))
	two.Command([]byte("\x06{}"))
	two.Command([]byte("\x06{}"))
	app.LogStart(log.PartitionID{}, 3)
	for i, u := range []*log.Unit{empty, odd, two, app} {
		if r := w.shard.Do(t.Context(), u); r.Outcome != No || !errors.Is(r.Err, log.ErrBadUnit) {
			t.Errorf("unit %d: %+v", i, r)
		}
	}
	for kind := range commandKind(12) {
		u := new(log.Unit)
		u.Command([]byte{byte(kind), '{'})
		if r := w.shard.Do(t.Context(), u); kind != cmdProducerBlock && r.Outcome != No {
			t.Errorf("kind %d: %+v", kind, r)
		}
	}
	must(t, w.md.CreateTopic(t.Context(), TopicSpec{Name: "fine"}))
}

// A disk that takes no rows does not stop the metadata, and no checkpoint claims what is not there. When it is
// back, so are the checkpoints.
func TestRowsThatCannotBeWrittenLeaveTheMetadataServing(t *testing.T) {
	for _, op := range []fsx.Op{fsx.OpCreate, fsx.OpWrite, fsx.OpSync} {
		var broken atomic.Bool
		fs := fsx.Inject(fsx.NewMem(), func(o fsx.Op, name string) error {
			if broken.Load() && o == op && strings.HasSuffix(name, ".sst") {
				return errors.New("input/output error")
			}
			return nil
		})
		m, err := openMeta(fs, "rows", quiet)
		must(t, err)
		s := NewMemShard(m, MemOptions{Auto: true})
		put := func(i int) {
			u, _, err := createUnit(&TopicSpec{Name: fmt.Sprint("t", i)}, 1)
			must(t, err)
			must(t, s.Do(t.Context(), u).Err)
		}
		put(1)
		broken.Store(true)
		put(2)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := m.Checkpoint(ctx); err == nil {
			t.Errorf("%v fails: a checkpoint all the same", op)
		}
		cancel()
		put(3)
		broken.Store(false)
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		if info, err := m.Checkpoint(ctx); err != nil || info.Index != m.catalog.Load().Index {
			t.Errorf("%v failed before: %+v, %v", op, info, err)
		}
		cancel()
		must(t, m.Close())
	}
}

// 10,000 topics one after another must not copy the catalogue each time.
func BenchmarkApplyCreateTopic(b *testing.B) {
	m, err := openMeta(fsx.NewMem(), "rows", quiet)
	must(b, err)
	defer m.Close() //nolint:errcheck // a benchmark
	var entries [][]byte
	for i := range 10_000 {
		u, _, err := createUnit(&TopicSpec{Name: fmt.Sprintf("topic-%06d", i)}, 1)
		must(b, err)
		entries = append(entries, log.EncodeEntry(nil, 1, []*log.Unit{u}))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m.Apply(uint64(i+1), 1, entries[i%len(entries)])
		i++
	}
}
