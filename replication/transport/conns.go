package transport

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A conns is a stream layer that knows its open connections, so that all of them can be cut at once: the
// library keeps those of pipelines and of peers to itself.
type conns struct {
	raft.StreamLayer
	mu struct {
		sync.Mutex
		open   map[net.Conn]struct{}
		closed bool
	}
}

// keep remembers c until it is closed, or closes it if the layer is closed already.
func (l *conns) keep(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	closed := l.mu.closed
	if !closed {
		l.mu.open[c] = struct{}{}
	}
	l.mu.Unlock()
	if closed {
		_ = c.Close()
		return nil, ErrCut
	}
	return &tracked{Conn: c, layer: l}, nil
}

func (l *conns) Accept() (net.Conn, error) { return l.keep(l.StreamLayer.Accept()) }

func (l *conns) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	l.mu.Lock()
	closed := l.mu.closed
	l.mu.Unlock()
	if closed {
		return nil, ErrCut
	}
	return l.keep(l.StreamLayer.Dial(address, timeout))
}

// closeAll closes every connection, and from now on each new one.
func (l *conns) closeAll() {
	l.mu.Lock()
	l.mu.closed = true
	open := l.mu.open
	l.mu.open = nil
	l.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
}

type tracked struct {
	net.Conn
	layer *conns
}

func (c *tracked) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.mu.open, c.Conn)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
