// Package transport carries raft's messages between the members of a shard's group.
//
// A Transport embeds hashicorp's NetworkTransport and changes three things:
//
//   - Heartbeats take the ordinary way. The library hands them to a handler that runs beside raft's main
//     loop and may change the term there, while the main loop is appending entries of another one; logs can
//     then diverge. Here SetHeartbeatHandler does nothing.
//   - A slow sync must not unseat a leader: while this member's StoreLogs runs, the Transport itself
//     answers a heartbeat of the current term with success. Nothing else changes by that answer. After
//     MaxStoring, or for any other term, the heartbeat waits for the main loop like every other message.
//   - Cut stops it for good: nothing is answered or sent any more. A member with a broken disk is cut.
//
// It must embed *NetworkTransport rather than hold it: raft asks the transport for RequestPreVote, and
// switches pre-votes off without a word when it is missing.
//
// A StreamLayer moves the bytes. Hub is one that stays inside the process.
package transport

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// ErrCut is the answer of a transport that was cut.
var ErrCut = errors.New("transport: cut")

// ErrInstallSnapshot is the answer to a peer that sends its checkpoint as a stream.
var ErrInstallSnapshot = errors.New("transport: checkpoints are not received as a stream")

// MaxStoring is how long a running StoreLogs excuses the main loop from heartbeats.
const MaxStoring = 2 * time.Second

// recheck is how often heartbeats that wait for the main loop are looked at again: one may have come in just
// before StoreLogs began.
const recheck = 50 * time.Millisecond

// maxWaiting bounds the messages that wait for the main loop. A peer has one message in flight per
// connection, so this bounds connections; what exceeds it is refused.
const maxWaiting = 1024

// Options of a Transport. Stream is required.
type Options struct {
	Stream  raft.StreamLayer
	Timeout time.Duration // of one message; 0: 3 s
	Logger  hclog.Logger  // nil: none

	// Storing returns how long the StoreLogs that runs has been running. Nil: none ever runs.
	Storing func() (time.Duration, bool)
	// Term returns the current term as last stored, LastIndex the last stored index.
	Term      func() uint64
	LastIndex func() uint64
	// LocalID is the id of this member, put into answers.
	LocalID raft.ServerID
}

// A Transport is raft's transport of one member of one group.
type Transport struct {
	*raft.NetworkTransport

	o    Options
	out  chan raft.RPC // to raft's main loop
	stop chan struct{}
	done chan struct{}
	once sync.Once
	cut  atomic.Bool
	conn *conns
}

var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

// New starts a transport over o.Stream, which it owns from now on. Close ends its goroutines.
func New(o Options) *Transport {
	if o.Timeout <= 0 {
		o.Timeout = 3 * time.Second
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	c := &conns{StreamLayer: o.Stream}
	c.mu.open = make(map[net.Conn]struct{})
	t := &Transport{
		conn: c,
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: c, MaxPool: 3, MaxRPCsInFlight: 2, Timeout: o.Timeout, Logger: o.Logger,
		}),
		o: o, out: make(chan raft.RPC), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go t.forward()
	return t
}

// SetHeartbeatHandler does nothing: heartbeats reach raft through Consumer, like all messages.
func (t *Transport) SetHeartbeatHandler(func(raft.RPC)) {}

// Consumer is where raft's main loop takes messages from.
func (t *Transport) Consumer() <-chan raft.RPC { return t.out }

// Cut stops answering and sending, at once and for good. Any goroutine may call it; it does not wait.
func (t *Transport) Cut() {
	if !t.cut.Swap(true) {
		t.conn.closeAll()
	}
}

// Close ends the transport and waits for its forwarder.
func (t *Transport) Close() error {
	err := t.NetworkTransport.Close()
	t.conn.closeAll()
	t.once.Do(func() { close(t.stop) })
	<-t.done
	return err
}

// forward moves messages to the main loop in order, and answers what need not or must not wait for it.
func (t *Transport) forward() {
	defer close(t.done)
	var waiting []raft.RPC
	defer func() {
		for _, rpc := range waiting {
			rpc.Respond(nil, ErrCut)
		}
	}()
	in := t.NetworkTransport.Consumer()
	tick := time.NewTicker(recheck)
	tick.Stop()
	defer tick.Stop()
	for {
		var out chan raft.RPC
		var head raft.RPC
		if len(waiting) > 0 {
			out, head = t.out, waiting[0]
		}
		select {
		case rpc := <-in:
			switch {
			case t.answer(rpc):
			case len(waiting) >= maxWaiting:
				rpc.Respond(nil, ErrCut)
			default:
				if waiting = append(waiting, rpc); len(waiting) == 1 {
					tick.Reset(recheck)
				}
			}
		case out <- head:
			if waiting = waiting[1:]; len(waiting) == 0 {
				waiting = nil
				tick.Stop()
			}
		case <-tick.C:
			kept := waiting[:0]
			for _, rpc := range waiting {
				if !t.answer(rpc) {
					kept = append(kept, rpc)
				}
			}
			if waiting = kept; len(waiting) == 0 {
				tick.Stop()
			}
		case <-t.stop:
			return
		}
	}
}

// answer answers rpc if the main loop need not see it.
func (t *Transport) answer(rpc raft.RPC) bool {
	if t.cut.Load() {
		refuse(rpc, ErrCut)
		return true
	}
	switch c := rpc.Command.(type) {
	case *raft.InstallSnapshotRequest:
		refuse(rpc, ErrInstallSnapshot)
		return true
	case *raft.AppendEntriesRequest:
		if !heartbeat(c) || t.o.Storing == nil {
			return false
		}
		if since, running := t.o.Storing(); !running || since >= MaxStoring || c.Term != t.o.Term() {
			return false
		}
		rpc.Respond(&raft.AppendEntriesResponse{
			RPCHeader: raft.RPCHeader{
				ProtocolVersion: raft.ProtocolVersionMax,
				ID:              []byte(t.o.LocalID), Addr: []byte(t.LocalAddr()),
			},
			Term: c.Term, LastLog: t.o.LastIndex(), Success: true,
		}, nil)
		return true
	}
	return false
}

// refuse answers rpc with err. What follows a snapshot request on its connection is read away first, or the
// peer would never come to read the answer; that waits for the peer and not for us.
func refuse(rpc raft.RPC, err error) {
	if rpc.Reader == nil {
		rpc.Respond(nil, err)
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, rpc.Reader)
		rpc.Respond(nil, err)
	}()
}

// heartbeat recognises the library's heartbeats: they name a leader and a term and nothing else.
func heartbeat(a *raft.AppendEntriesRequest) bool {
	//lint:ignore SA1019 members of older protocol versions name themselves here, and the library looks at both
	return a.Term != 0 && (len(a.Addr) > 0 || len(a.Leader) > 0) &&
		a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}
