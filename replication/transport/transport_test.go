package transport

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

type pair struct {
	hub    *Hub
	leader *Transport
	member *Transport
	since  atomic.Int64 // of the member's StoreLogs, -1: none
	term   atomic.Uint64
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{hub: NewHub()}
	p.since.Store(-1)
	p.term.Store(7)
	open := func(addr string, o Options) *Transport {
		s, err := p.hub.Listen(raft.ServerAddress(addr))
		if err != nil {
			t.Fatal(err)
		}
		o.Stream, o.Timeout = s, time.Minute // a busy machine is no fault
		tr := New(o)
		t.Cleanup(func() { _ = tr.Close() })
		return tr
	}
	p.leader = open("leader@1", Options{})
	p.member = open("member@2", Options{
		LocalID:   "member",
		Storing:   func() (time.Duration, bool) { d := p.since.Load(); return time.Duration(d), d >= 0 },
		Term:      p.term.Load,
		LastIndex: func() uint64 { return 42 },
	})
	return p
}

// beat sends a heartbeat and returns what comes back.
func (p *pair) beat(term uint64) chan error {
	out := make(chan error, 1)
	go func() {
		var resp raft.AppendEntriesResponse
		err := p.leader.AppendEntries("member", "member@2", &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("leader"), Addr: []byte("leader@1")}, Term: term,
		}, &resp)
		if err == nil && (!resp.Success || resp.Term != term || resp.LastLog != 42) {
			err = errors.New("answer is not a success of this term")
		}
		out <- err
	}()
	return out
}

// The library's handler changes the term beside the main loop. Ours is never called: a heartbeat comes through
// Consumer like every message.
func TestHeartbeatsGoThroughTheMainLoop(t *testing.T) {
	p := newPair(t)
	p.member.SetHeartbeatHandler(func(raft.RPC) { t.Error("the heartbeat took the fast path") })
	answer := p.beat(9)
	select {
	case rpc := <-p.member.Consumer():
		a := rpc.Command.(*raft.AppendEntriesRequest)
		if a.Term != 9 {
			t.Errorf("term %d", a.Term)
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 9, LastLog: 42, Success: true}, nil)
	case <-time.After(time.Minute):
		t.Fatal("no heartbeat at the main loop")
	}
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
}

// While StoreLogs runs the main loop answers nobody; a heartbeat of the current term is answered for it.
func TestASlowSyncDoesNotUnseatALeader(t *testing.T) {
	p := newPair(t)
	p.since.Store(int64(100 * time.Millisecond))
	if err := <-p.beat(7); err != nil {
		t.Fatalf("heartbeat during a sync: %v", err)
	}
	// One that came in just before the sync began is found again.
	p.since.Store(-1)
	answer := p.beat(7)
	select {
	case err := <-answer:
		t.Fatalf("answered without the main loop: %v", err)
	case <-time.After(2 * recheck):
	}
	p.since.Store(0)
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
}

// Another term, a sync that hangs, or anything that is no heartbeat waits for the main loop.
func TestOnlyHeartbeatsOfTheTermAreAnsweredDuringASync(t *testing.T) {
	for name, c := range map[string]struct {
		since time.Duration
		req   *raft.AppendEntriesRequest
	}{
		"other term": {0, &raft.AppendEntriesRequest{Term: 8}},
		"hung":       {MaxStoring, &raft.AppendEntriesRequest{Term: 7}},
		"entries":    {0, &raft.AppendEntriesRequest{Term: 7, Entries: []*raft.Log{{Index: 1}}}},
		"commit":     {0, &raft.AppendEntriesRequest{Term: 7, LeaderCommitIndex: 3}},
		"previous":   {0, &raft.AppendEntriesRequest{Term: 7, PrevLogEntry: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.since.Store(int64(c.since))
			c.req.RPCHeader = raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("leader@1")}
			done := make(chan error, 1)
			go func() {
				done <- p.leader.AppendEntries("member", "member@2", c.req, &raft.AppendEntriesResponse{})
			}()
			select {
			case rpc := <-p.member.Consumer():
				rpc.Respond(&raft.AppendEntriesResponse{}, nil)
			case <-time.After(time.Minute):
				t.Error("did not reach the main loop")
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A cut transport answers nobody and sends nothing; votes included.
func TestACutTransportIsSilent(t *testing.T) {
	p := newPair(t)
	p.member.Cut()
	if err := <-p.beat(7); err == nil {
		t.Error("a cut member answers")
	}
	err := p.member.RequestVote("leader", "leader@1", &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
	if !errors.Is(err, ErrCut) {
		t.Errorf("a cut member asks for votes: %v", err)
	}
	if _, err := p.member.AppendEntriesPipeline("leader", "leader@1"); !errors.Is(err, ErrCut) {
		t.Errorf("a cut member replicates: %v", err)
	}
}

// A pipeline that was open before goes silent too: a leader with a broken disk must not go on replicating.
func TestACutEndsOpenPipelines(t *testing.T) {
	p := newPair(t)
	pipe, err := p.member.AppendEntriesPipeline("leader", "leader@1")
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close() //nolint:errcheck // it is cut
	req := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("member@2")}, Term: 7, PrevLogEntry: 1}
	if _, err := pipe.AppendEntries(req, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	rpc := <-p.leader.Consumer()
	rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
	if err := (<-pipe.Consumer()).Error(); err != nil {
		t.Fatal(err)
	}
	p.member.Cut()
	if _, err := pipe.AppendEntries(req, &raft.AppendEntriesResponse{}); err == nil {
		t.Error("a cut pipeline takes entries")
	}
}

// Raft switches pre-votes off for a transport that only wraps the network transport.
func TestPreVoteIsSupported(t *testing.T) {
	p := newPair(t)
	if _, ok := raft.Transport(p.member).(raft.WithPreVote); !ok {
		t.Fatal("the transport has no RequestPreVote")
	}
	done := make(chan error, 1)
	go func() {
		done <- p.leader.RequestPreVote("member", "member@2", &raft.RequestPreVoteRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3}, Term: 8,
		}, &raft.RequestPreVoteResponse{})
	}()
	rpc := <-p.member.Consumer()
	if _, ok := rpc.Command.(*raft.RequestPreVoteRequest); !ok {
		t.Errorf("got %T", rpc.Command)
	}
	rpc.Respond(&raft.RequestPreVoteResponse{}, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAddressesAreUsedOnce(t *testing.T) {
	h := NewHub()
	l, err := h.Listen("a@1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Listen("a@1"); err == nil {
		t.Error("two members share an address")
	}
	if _, err := l.Dial("b@2", time.Second); !errors.Is(err, ErrUnreachable) {
		t.Errorf("dial nobody: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Listen("a@1"); err != nil {
		t.Errorf("a closed address stays taken: %v", err)
	}
}
