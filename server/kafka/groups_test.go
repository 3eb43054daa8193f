package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/server/group"
)

// A member is a consumer of a group that counts what it gets.
type member struct {
	c    *kgo.Client
	mu   sync.Mutex
	got  map[string]int
	have map[int32]bool
	stop context.CancelFunc
	done chan struct{}
}

func (f *front) member(t *testing.T, topic string, opts ...kgo.Opt) *member {
	t.Helper()
	m := &member{got: map[string]int{}, have: map[int32]bool{}, done: make(chan struct{})}
	change := func(add bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for _, p := range parts[topic] {
				if m.have[p] = add; !add {
					delete(m.have, p)
				}
			}
		}
	}
	m.c = f.client(append([]kgo.Opt{
		kgo.ConsumerGroup("g"), kgo.ConsumeTopics(topic), kgo.HeartbeatInterval(50 * time.Millisecond), kgo.SessionTimeout(5 * time.Second),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
		kgo.AutoCommitInterval(100 * time.Millisecond), kgo.AutoCommitMarks(), kgo.BlockRebalanceOnPoll(), kgo.FetchMaxWait(300 * time.Millisecond),
	}, opts...)...)
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	t.Cleanup(cancel)
	go func() {
		defer close(m.done)
		for ctx.Err() == nil {
			fs := m.c.PollFetches(ctx)
			if fs.IsClientClosed() {
				return
			}
			m.mu.Lock()
			fs.EachRecord(func(r *kgo.Record) { m.got[string(r.Value)]++ })
			m.mu.Unlock()
			m.c.MarkCommitRecords(fs.Records()...)
			m.c.AllowRebalance()
		}
	}()
	return m
}

// leave ends a member as a well-behaved program does.
func (m *member) leave(t *testing.T) {
	t.Helper()
	m.stop()
	<-m.done
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := m.c.CommitMarkedOffsets(ctx); err != nil {
		t.Errorf("commit: %v", err)
	}
	m.c.Close()
}

func (m *member) partitions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.have)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not happen: %s", what)
		}
	}
}

func TestTwoMembersShareAndARestartKeepsOffsets(t *testing.T) {
	for name, balancer := range map[string]kgo.GroupBalancer{"eager": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()} {
		t.Run(name, func(t *testing.T) {
			f := start(t, frontOptions{})
			f.create("t", 6, nil)
			w := f.client(kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
			sent := 0
			send := func(n int) {
				for range n {
					produce(t, w, &kgo.Record{Value: fmt.Append(nil, sent)})
					sent++
				}
			}
			a := f.member(t, "t", kgo.Balancers(balancer))
			eventually(t, "the first member gets everything", func() bool { return a.partitions() == 6 })
			send(60)
			b := f.member(t, "t", kgo.Balancers(balancer))
			eventually(t, "both share", func() bool { return a.partitions() == 3 && b.partitions() == 3 })
			send(60)
			count := func() int {
				all := map[string]bool{}
				for _, m := range []*member{a, b} {
					m.mu.Lock()
					for v := range m.got {
						all[v] = true
					}
					m.mu.Unlock()
				}
				return len(all)
			}
			eventually(t, "everything was delivered", func() bool { return count() == sent })

			// The coordinator forgets members with a restart, never offsets.
			w.Close()
			f.restart()
			for _, m := range []*member{a, b} {
				m.c.UpdateSeedBrokers(f.addr)
			}
			w = f.client(kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
			send(30)
			eventually(t, "both share again", func() bool {
				d, ok := f.groups.Describe("g")
				return ok && d.State == group.Stable && len(d.Members) == 2 && a.partitions() == 3 && b.partitions() == 3 && count() == sent
			})

			b.leave(t)
			eventually(t, "the rest gets everything", func() bool { return a.partitions() == 6 })
			send(30)
			eventually(t, "everything was delivered", func() bool { return count() == sent })
			a.leave(t)

			got := map[string]int{}
			for _, m := range []*member{a, b} {
				for v, n := range m.got {
					got[v] += n
				}
			}
			if len(got) != sent {
				t.Errorf("%d of %d records were delivered", len(got), sent)
			}
			lags, err := f.admin().Lag(f.ctx(), "g")
			if l := lags["g"]; err != nil || l.Lag.Total() != 0 || l.State != "Empty" {
				t.Errorf("lag %d state %s %v", l.Lag.Total(), l.State, err)
			}
		})
	}
}

func TestAStaticMemberComesBackWithoutARebalance(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 4, nil)
	a := f.member(t, "t", kgo.InstanceID("one"), kgo.SessionTimeout(time.Second))
	b := f.member(t, "t", kgo.InstanceID("two"), kgo.SessionTimeout(time.Second))
	eventually(t, "both share", func() bool { return a.partitions() == 2 && b.partitions() == 2 })
	before, _ := f.groups.Describe("g")
	b.stop()
	<-b.done
	b.c.CloseAllowingRebalance()
	b = f.member(t, "t", kgo.InstanceID("two"), kgo.SessionTimeout(time.Second))
	eventually(t, "it is back", func() bool { return b.partitions() == 2 })
	after, _ := f.groups.Describe("g")
	if before.Generation != after.Generation || len(after.Members) != 2 {
		t.Errorf("generation %d, then %d with %d members", before.Generation, after.Generation, len(after.Members))
	}
	a.leave(t)
	b.leave(t)
}

func TestGroupAdministration(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 2, nil)
	adm := f.admin()
	var os kadm.Offsets
	os.Add(kadm.Offset{Topic: "t", Partition: 0, At: 5, LeaderEpoch: 1, Metadata: "hello"})
	os.Add(kadm.Offset{Topic: "t", Partition: 1, At: 7, LeaderEpoch: -1})
	if err := adm.CommitAllOffsets(f.ctx(), "idle", os); err != nil {
		t.Fatal(err)
	}
	m := f.member(t, "t")
	eventually(t, "the group is stable", func() bool { return m.partitions() == 2 })

	groups, err := adm.ListGroups(f.ctx())
	if err != nil || len(groups) != 2 || groups["g"].State != "Stable" || groups["idle"].State != "Empty" || groups["g"].ProtocolType != "consumer" {
		t.Errorf("groups %v %v", groups, err)
	}
	d, err := adm.DescribeGroups(f.ctx(), "g", "idle", "nobody")
	if err != nil || d["g"].State != "Stable" || len(d["g"].Members) != 1 || d["g"].Members[0].ClientHost != "/127.0.0.1" || d["idle"].State != "Empty" || d["nobody"].State != "Dead" {
		t.Errorf("described %+v %v", d, err)
	}
	dg := d["g"]
	if ps := dg.AssignedPartitions(); len(ps["t"]) != 2 {
		t.Errorf("assigned %v", ps)
	}
	got, err := adm.FetchOffsets(f.ctx(), "idle")
	o, _ := got.Lookup("t", 0)
	if err != nil || o.At != 5 || o.Metadata != "hello" || o.LeaderEpoch != 1 {
		t.Errorf("offsets %+v %v", got, err)
	}
	// A group with members takes no commits from outside, and is not deleted.
	if err := adm.CommitAllOffsets(f.ctx(), "g", os); !errors.Is(err, kerr.UnknownMemberID) {
		t.Errorf("a commit from outside: %v", err)
	}
	del, err := adm.DeleteGroups(f.ctx(), "g", "idle", "nobody")
	if err != nil || !errors.Is(del["g"].Err, kerr.NonEmptyGroup) || del["idle"].Err != nil || !errors.Is(del["nobody"].Err, kerr.GroupIDNotFound) {
		t.Errorf("deleted %v %v", del, err)
	}
	if got, err := adm.FetchOffsets(f.ctx(), "idle"); err != nil || len(got) != 0 {
		t.Errorf("offsets of a deleted group: %v %v", got, err)
	}
	m.leave(t)
	eventually(t, "the group is empty", func() bool { _, ok := f.groups.Describe("g"); return !ok })
	if err := adm.CommitAllOffsets(f.ctx(), "g", os); err != nil {
		t.Fatal(err)
	}
	rs, err := adm.DeleteOffsets(f.ctx(), "g", kadm.TopicsSet{"t": {0: {}}})
	if err != nil || rs["t"][0] != nil {
		t.Errorf("delete offsets: %v %v", rs, err)
	}
	got, err = adm.FetchOffsets(f.ctx(), "g")
	if _, ok := got.Lookup("t", 0); err != nil || ok {
		t.Errorf("a deleted offset is there: %v %v", got, err)
	}
	if o, ok := got.Lookup("t", 1); !ok || o.At != 7 {
		t.Errorf("the other offset: %v", o)
	}
}
