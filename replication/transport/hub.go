package transport

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// ErrUnreachable is the answer of a Hub when nobody listens at an address.
var ErrUnreachable = errors.New("transport: unreachable")

// A Hub connects stream layers within one process: the one of a node that is its own cluster, and those of
// tests. It is safe for concurrent use.
type Hub struct {
	mu struct {
		sync.Mutex
		layers map[raft.ServerAddress]*layer
	}
}

// NewHub returns a hub that nobody listens on.
func NewHub() *Hub {
	h := &Hub{}
	h.mu.layers = make(map[raft.ServerAddress]*layer)
	return h
}

// Listen returns the stream layer of address, which must be free.
func (h *Hub) Listen(address raft.ServerAddress) (raft.StreamLayer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.layers[address] != nil {
		return nil, fmt.Errorf("transport: address %s is in use", address)
	}
	l := &layer{hub: h, address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
	h.mu.layers[address] = l
	return l, nil
}

type layer struct {
	hub     *Hub
	address raft.ServerAddress
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *layer) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.hub.mu.Lock()
		delete(l.hub.mu.layers, l.address)
		l.hub.mu.Unlock()
	})
	return nil
}

func (l *layer) Addr() net.Addr { return addr(l.address) }

func (l *layer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	l.hub.mu.Lock()
	to := l.hub.mu.layers[address]
	l.hub.mu.Unlock()
	if to == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnreachable, address)
	}
	ours, theirs := net.Pipe()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case to.conns <- theirs:
		return ours, nil
	case <-to.closed:
	case <-l.closed:
	case <-timer.C:
	}
	_ = ours.Close()
	_ = theirs.Close()
	return nil, fmt.Errorf("%w: %s", ErrUnreachable, address)
}

type addr string

func (a addr) Network() string { return "hub" }
func (a addr) String() string  { return string(a) }
