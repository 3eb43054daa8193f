package replication

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication/transport"
)

// A member is one of a group in this process. The group runs the code of a single node.
type member struct {
	fs     *fsx.Mem
	o      ShardOptions
	ledger *ledger
	shard  *Shard
	slow   atomic.Int64 // ns that a sync of the log takes
}

func newMember(t *testing.T, hub *transport.Hub, i int, adjust func(i int, o *ShardOptions)) *member {
	t.Helper()
	m := &member{fs: fsx.NewMem()}
	fs := fsx.Inject(m.fs, func(op fsx.Op, name string) error {
		if op == fsx.OpSync && strings.Contains(name, "wal") {
			time.Sleep(time.Duration(m.slow.Load()))
		}
		return nil
	})
	m.o = ledgerShard(fs, "s", &m.ledger)
	m.o.Name, m.o.ID, m.o.NodeID, m.o.Hub = fmt.Sprint("member-", i), fmt.Sprint("disk-", i), int32(i), hub
	m.o.Bootstrap, m.o.Join = i == 1, i != 1
	if adjust != nil {
		adjust(i-1, &m.o)
	}
	m.open(t)
	return m
}

func (m *member) open(t *testing.T) {
	t.Helper()
	s, err := OpenShard(m.o)
	must(t, err)
	m.shard = s
}

// group starts three members, all voters, the first one leading.
func group(t *testing.T) []*member {
	t.Helper()
	return groupOn(t, nil)
}

// groupOn is a group whose members' options are adjusted, counted from 0.
func groupOn(t *testing.T, adjust func(i int, o *ShardOptions)) []*member {
	t.Helper()
	hub := transport.NewHub()
	var ms []*member
	for i := range 3 {
		ms = append(ms, newMember(t, hub, i+1, adjust))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, ms[0].shard.WaitLeader(ctx))
	for _, m := range ms[1:] {
		must(t, ms[0].shard.raft.AddVoter(raft.ServerID(m.o.ID), address(m.o.ID, m.o.NodeID), 0, 5*time.Second).Error())
	}
	t.Cleanup(func() {
		for _, m := range ms {
			_ = m.shard.Close()
		}
	})
	return ms
}

// leader waits for one of ms that leads.
func leader(t *testing.T, ms []*member) *member {
	t.Helper()
	var found *member
	eventually(t, "a leader", func() bool {
		for _, m := range ms {
			if _, ok := m.shard.Leader(); ok {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// The leader goes without a word: what was acknowledged is on the next one, and the old one follows it when
// it is back.
func TestThreeMembersKeepWhatTheyAcknowledged(t *testing.T) {
	ms := group(t)
	var acked []string
	propose := func(m *member, n int) {
		for range n {
			text := fmt.Sprint(len(acked))
			if r := m.shard.Do(t.Context(), line("%s", text)); r.Outcome != Yes {
				t.Fatalf("line %s: %+v", text, r)
			}
			acked = append(acked, text)
		}
	}
	propose(ms[0], 100)
	if r := ms[1].shard.Do(t.Context(), line("x")); r.Outcome != No {
		t.Errorf("a follower takes a unit: %+v", r)
	}
	ms[0].shard.trans.Cut()
	flying := make(chan Result, 1)
	must(t, ms[0].shard.Propose(line("cut off"), func(r Result) { flying <- r }))
	if r := <-flying; r.Outcome != Unknown {
		t.Errorf("a unit of a leader that was cut off: %+v", r)
	}
	next := leader(t, ms[1:])
	if got := next.ledger.all(); !slices.Equal(got, acked) && !slices.Equal(got, append(slices.Clone(acked), "cut off")) {
		t.Fatalf("the new leader has %d of %d lines", len(got), len(acked))
	}
	propose(next, 100)
	_ = ms[0].shard.Close()
	ms[0].open(t)
	propose(leader(t, ms), 50)
	eventually(t, "all members are equal", func() bool {
		a, b, c := ms[0].ledger.all(), ms[1].ledger.all(), ms[2].ledger.all()
		return len(a) >= len(acked) && slices.Equal(a, b) && slices.Equal(b, c)
	})
}

// Both followers sync slower than any timeout, so their main loops answer no heartbeat in time. The leader
// stays, because their transports answer for them. A machine that others use may stand still for longer than the
// leader's lease, so one of three groups has to show it; without those answers none can.
func TestSlowFollowersDoNotUnseatTheLeader(t *testing.T) {
	for i := range 3 {
		err := slowFollowers(t)
		if err == nil {
			return
		}
		t.Logf("group %d: %v", i, err)
	}
	t.Error("slow followers unseat the leader")
}

func slowFollowers(t *testing.T) error {
	ms := group(t)
	defer func() {
		for _, m := range ms {
			m.slow.Store(0)
		}
	}()
	term, _ := ms[0].shard.Leader()
	for _, m := range ms[1:] {
		m.slow.Store(int64(2 * heartbeatTimeout))
	}
	for i := range 3 {
		if r := ms[0].shard.Do(t.Context(), line("%d", i)); r.Outcome != Yes {
			return fmt.Errorf("line %d: %w", i, r.Err)
		}
	}
	if now, ok := ms[0].shard.Leader(); !ok || now != term {
		return fmt.Errorf("leads in term %d (%v), was %d", now, ok, term)
	}
	return nil
}
