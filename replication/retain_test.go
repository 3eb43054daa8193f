package replication

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
)

// A retainWorld is a node whose clock stands still and whose retention looks when it is told to.
type retainWorld struct {
	*Node
	t    *testing.T
	fs   *fsx.Mem
	now  atomic.Int64 // ms
	cuts []RetentionCut
	id   log.PartitionID // the one partition of topic a
}

func newRetainWorld(t *testing.T, set log.PartitionSettings) *retainWorld {
	w := &retainWorld{t: t, fs: fsx.NewMem()}
	w.now.Store(1_700_000_000_000)
	w.open()
	must(t, w.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a", Settings: &set}))
	w.id = partition(t, w.Node, "a", 0)
	return w
}

func (w *retainWorld) open() {
	o := nodeOptions(w.fs)
	o.RetentionEvery = -1
	o.Now = func() time.Time { return time.UnixMilli(w.now.Load()) }
	o.RetentionCut = func(c RetentionCut) { w.cuts = append(w.cuts, c) }
	w.Node = openNode(w.t, o)
	w.t.Cleanup(func() { _ = w.Node.Close() })
}

func (w *retainWorld) reopen() {
	must(w.t, w.Node.Close())
	w.open()
}

// put appends batches of one record, a second apart, each a run of its own in the files.
func (w *retainWorld) put(n int) {
	w.t.Helper()
	for range n {
		w.now.Add(1000)
		must(w.t, produce(w.t.Context(), w.Node, w.id, "value").Err)
		must(w.t, w.Store().Flush(w.t.Context()))
	}
}

func (w *retainWorld) do(f func(u *log.Unit)) Result {
	w.t.Helper()
	u := new(log.Unit)
	f(u)
	r := w.Data().Do(w.t.Context(), u)
	must(w.t, r.Err)
	return r
}

// reads makes a task that has read up to an offset.
func (w *retainWorld) reads(task log.TaskID, offset int64) {
	w.t.Helper()
	st, _ := w.Store().Task(task)
	from := int64(0)
	if len(st.Progress.To) > 0 {
		from = st.Progress.To[0].Offset
	}
	epoch := w.do(func(u *log.Unit) { u.TaskOpen(task) }).Index
	w.do(func(u *log.Unit) {
		u.Progress(log.Progress{Task: task, Epoch: epoch, Step: st.Step + 1, From: []log.Cut{{Partition: w.id, Offset: from}}, To: []log.Cut{{Partition: w.id, Offset: offset}}})
	})
}

func (w *retainWorld) commits(group string, topic log.TopicID, offset int64) {
	w.t.Helper()
	w.do(func(u *log.Unit) {
		u.Offsets(group, []log.GroupOffset{{Partition: log.PartitionID{Topic: topic}, Offset: offset}})
	})
}

func (w *retainWorld) start(want int64) {
	w.t.Helper()
	w.retainPass()
	must(w.t, w.Store().Flush(w.t.Context()))
	p, _ := w.Store().Partition(w.id)
	if got := p.LogStart(); got != want {
		w.t.Errorf("log start %d, want %d", got, want)
	}
}

func (w *retainWorld) set(set log.PartitionSettings) {
	w.t.Helper()
	must(w.t, w.Meta().SetTopic(w.t.Context(), "a", TopicPatch{Settings: &set}))
}

func oneRecord(ts int64) []byte {
	b := record.NewBuilder()
	b.Append(ts, nil, []byte("value"), nil)
	return b.Finish()
}

func keep(ms int64) log.PartitionSettings {
	s := DefaultSettings()
	s.RetentionMs = ms
	return s
}

func TestRetentionHoldsAndCaps(t *testing.T) {
	w := newRetainWorld(t, keep(5000))
	w.put(10) // offset 0 is 9 s old, offset 9 new
	task := log.TaskID{1}
	w.reads(task, 2)
	w.start(2) // by age it would be 4
	if m := w.Retention(); m.HeldRecords != 2 || m.CutRecords != 0 {
		t.Errorf("%+v", m)
	}
	w.reads(task, 3)
	w.start(3)
	w.reopen()
	w.start(3)

	// A pipeline that has not begun needs everything.
	floor := map[log.PartitionID]int64{w.id: 0}
	w.SetRetentionFloor(func() map[log.PartitionID]int64 { return floor })
	w.reads(task, 10)
	w.start(3)
	floor = nil
	w.start(4)

	// A cap bounds what is held back, and says so.
	w.put(10) // offset 19 is new; older than 5 s: up to 14
	w.start(10)
	set := keep(5000)
	set.MaxRetentionMs = 7000
	w.set(set)
	w.start(12)
	want := RetentionCut{Partition: w.id, Task: task, From: 10, To: 12}
	if len(w.cuts) != 1 || w.cuts[0] != want || w.Retention().CutRecords != 2 {
		t.Errorf("cuts %+v, %+v", w.cuts, w.Retention())
	}
	w.start(12)
	if len(w.cuts) != 1 {
		t.Error("told twice")
	}
	// A cap never takes what retention itself would keep.
	set = keep(60_000)
	set.MaxRetentionMs, set.MaxRetentionBytes = 1, 1
	w.set(set)
	w.start(12)
	// By bytes: every run has the same size.
	p, _ := w.Store().Partition(w.id)
	run := p.Bytes() / 8
	set = keep(0)
	set.MaxRetentionBytes = 3 * run
	w.set(set)
	w.start(17)
	// Nobody is asked.
	set = keep(1500)
	set.IgnorePipelines = true
	w.set(set)
	w.start(18)
}

func TestRetentionKeepsForGroupsThatATopicNames(t *testing.T) {
	w := newRetainWorld(t, keep(5000))
	w.put(10)
	w.commits("readers", w.id.Topic, 1)
	w.commits("ahead", w.id.Topic, 9)
	view := log.TopicID{0xee}
	w.SetGroupSource(func(id log.TopicID) log.TopicID {
		if id == view {
			return w.id.Topic
		}
		return id
	})
	set := keep(5000)
	set.KeepForGroups = true
	w.set(set)
	top, _ := w.Meta().Catalog().Topic("a")
	if p, err := w.PreviewRetention(top, set); err != nil || p.Records != 1 || p.Held != 3 || p.Bytes <= 0 {
		t.Errorf("preview %+v %v", p, err)
	}
	w.start(1)
	w.commits("readers", w.id.Topic, 9)
	w.commits("of the view", view, 2)
	w.start(2)
	w.do(func(u *log.Unit) { u.GroupDrop("of the view") })
	w.start(4)
	// Without the setting, as in Kafka, groups hold nothing.
	w.put(10)
	w.start(9)
	w.set(keep(5000))
	if p, err := w.PreviewRetention(top, keep(0)); err != nil || p.Records != 10 || p.Held != 0 {
		t.Errorf("preview %+v %v", p, err)
	}
	w.start(14)
	if len(w.cuts) != 0 {
		t.Errorf("groups are no tasks: %+v", w.cuts)
	}
}

// Age is that of the append: what a producer writes into its timestamps neither keeps nor deletes.
func TestRetentionDoesNotBelieveTimestamps(t *testing.T) {
	for _, ts := range []int64{0, math.MaxInt64 / 4} {
		w := newRetainWorld(t, keep(5000))
		for range 10 {
			w.now.Add(1000)
			w.do(func(u *log.Unit) { u.Append(w.id, oneRecord(ts)) })
			must(t, w.Store().Flush(t.Context()))
		}
		w.start(4)
	}
}

// Settings are in force when SetTopic returns, and the last one in the log wins, however many change them at once.
func TestAlterationsAtOnceAreAllKept(t *testing.T) {
	w := newRetainWorld(t, DefaultSettings())
	var wg sync.WaitGroup
	const writers, rounds = 8, 5
	for i := range writers {
		wg.Go(func() {
			for k := range rounds {
				err := w.Meta().AlterTopic(t.Context(), "a", func(row *Topic) (TopicPatch, error) {
					configs := map[string]string{}
					for k, v := range row.Configs {
						configs[k] = v
					}
					configs[fmt.Sprintf("%d.%d", i, k)] = "x"
					set := row.Settings
					set.RetentionMs = int64(len(configs))
					return TopicPatch{Configs: configs, Settings: &set}, nil
				})
				if err != nil {
					t.Error(err)
				}
				if p, _ := w.Store().Partition(w.id); p.Settings().RetentionMs < 1 {
					t.Error("answered before the partition follows")
				}
			}
		})
	}
	wg.Wait()
	check := func() {
		t.Helper()
		row, _ := w.Meta().Catalog().Topic("a")
		p, _ := w.Store().Partition(w.id)
		if len(row.Configs) != writers*rounds || p.Settings() != row.Settings || row.Settings.RetentionMs != writers*rounds {
			t.Errorf("%d settings, partition %+v, topic %+v", len(row.Configs), p.Settings(), row.Settings)
		}
	}
	check()
	w.reopen()
	check()
	stop := errors.New("stop")
	if err := w.Meta().AlterTopic(t.Context(), "a", func(*Topic) (TopicPatch, error) { return TopicPatch{}, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if err := w.Meta().AlterTopic(t.Context(), "b", func(*Topic) (TopicPatch, error) { return TopicPatch{}, nil }); !errors.Is(err, ErrUnknownTopic) {
		t.Error(err)
	}
	if err := w.Meta().SetTopic(t.Context(), "a", TopicPatch{Expect: 1}); !errors.Is(err, ErrVersionConflict) {
		t.Error(err)
	}
	must(t, w.Meta().SetTopic(t.Context(), "a", TopicPatch{Configs: map[string]string{}}))
	if row, _ := w.Meta().Catalog().Topic("a"); len(row.Configs) != 0 {
		t.Errorf("settings are left: %v", row.Configs)
	}
}
