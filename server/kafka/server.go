package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/group"
)

// Options of the front. The zero value works.
type Options struct {
	Logger *slog.Logger // nil: slog.Default

	// Advertised is the host:port that clients are told to connect to; a port of 0, or "", is the
	// listener's own.
	Advertised string
	// AutoCreate lets a Metadata request create a topic that does not exist, if the client allows it.
	AutoCreate bool

	MaxFrameBytes   int64         // longest Produce request; default 64 MiB. Memory is taken as bytes arrive
	MaxRequestBytes int64         // longest request of any other API; default 4 MiB
	MemoryBytes     int64         // frames being read, over all connections; default 512 MiB
	MaxConnections  int           // default 10,000; further ones are closed at once
	MaxInflight     int           // responses outstanding on a connection before reading stops; default 64
	IdleTimeout     time.Duration // between requests; default 10 min
	StallTimeout    time.Duration // inside a frame without progress; default 30 s
	WriteTimeout    time.Duration // default 30 s
	DrainTimeout    time.Duration // for outstanding responses at the end; default 2 s
}

func (o Options) withDefaults() Options {
	def := func(p *time.Duration, d time.Duration) {
		if *p == 0 {
			*p = d
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxFrameBytes == 0 {
		o.MaxFrameBytes = 64 << 20
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 4 << 20
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 512 << 20
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 10_000
	}
	if o.MaxInflight == 0 {
		o.MaxInflight = 64
	}
	def(&o.IdleTimeout, 10*time.Minute)
	def(&o.StallTimeout, 30*time.Second)
	def(&o.WriteTimeout, 30*time.Second)
	def(&o.DrainTimeout, 2*time.Second)
	return o
}

// A Server is the Kafka front over one broker.
type Server struct {
	broker  *broker.Broker
	groups  *group.Coordinator
	opts    Options
	log     *slog.Logger
	budget  *budget
	metrics Metrics
	connIDs atomic.Uint64
	wg      sync.WaitGroup // connections and writers

	mu struct {
		sync.Mutex
		conns map[*conn]struct{}
		host  string
		port  int32
	}
}

// New makes a front. It owns neither the broker nor the coordinator.
func New(b *broker.Broker, g *group.Coordinator, o Options) *Server {
	o = o.withDefaults()
	s := &Server{broker: b, groups: g, opts: o, log: o.Logger, budget: newBudget(o.MemoryBytes)}
	s.mu.conns = map[*conn]struct{}{}
	return s
}

// Metrics returns the live counters.
func (s *Server) Metrics() *Metrics { return &s.metrics }

// frameLimit is the longest frame of an API.
func (s *Server) frameLimit(key int16) int64 {
	if key == keyProduce {
		return s.opts.MaxFrameBytes
	}
	return s.opts.MaxRequestBytes
}

// advertised is where clients are told to connect.
func (s *Server) advertised() (host string, port int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.host, s.mu.port
}

// Advertise sets the advertised address from Options.Advertised and the listener's own. Serve calls it.
func (s *Server) Advertise(ln net.Addr) error {
	host, port := "", 0
	if h, p, err := net.SplitHostPort(ln.String()); err == nil {
		host = h
		port, _ = strconv.Atoi(p)
	}
	if s.opts.Advertised != "" {
		h, p, err := net.SplitHostPort(s.opts.Advertised)
		if err != nil {
			return err
		}
		host = h
		if n, err := strconv.ParseUint(p, 10, 16); err != nil {
			return err
		} else if n != 0 {
			port = int(n)
		}
	}
	s.mu.Lock()
	s.mu.host, s.mu.port = host, int32(port)
	s.mu.Unlock()
	return nil
}

// Serve accepts connections until ctx ends, then stops reading requests, lets outstanding responses
// leave, closes every connection and returns nil. It closes ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	if err := s.Advertise(ln.Addr()); err != nil {
		_ = ln.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for pause := time.Millisecond; ; {
		nc, err := ln.Accept()
		if err == nil {
			pause = time.Millisecond
			s.start(ctx, nc)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			break
		}
		// Out of file descriptors, most likely: the connections that are there go on.
		s.log.Error("kafka.accept", "err", err)
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
			continue
		case <-ctx.Done():
		}
		break
	}
	_ = ln.Close()
	cancel()
	s.shutdown()
	return nil
}

// start runs a connection, unless there are too many.
func (s *Server) start(ctx context.Context, nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
	}
	s.metrics.Accepted.Add(1)
	c := s.newConn(ctx, nc)
	s.mu.Lock()
	full := len(s.mu.conns) >= s.opts.MaxConnections
	if !full {
		s.mu.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if full {
		s.metrics.Rejected.Add(1)
		s.log.Warn("kafka.too_many_connections", "remote", c.remote, "limit", s.opts.MaxConnections)
		_ = nc.Close()
		return
	}
	s.metrics.Connections.Add(1)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		c.serve(ctx)
		s.mu.Lock()
		delete(s.mu.conns, c)
		s.mu.Unlock()
		s.metrics.Connections.Add(-1)
	}()
}

// shutdown waits for the connections to finish by themselves and then closes what is left.
func (s *Server) shutdown() {
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(s.opts.DrainTimeout + time.Second):
	}
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.out.fail(net.ErrClosed)
	}
	<-done
}

// Advertised is where clients are told to connect, as host:port.
func (s *Server) Advertised() string {
	host, port := s.advertised()
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}
