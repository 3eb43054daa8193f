package flight

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow/go/v15/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/headrace/headrace/server/broker"
)

// MaxMessageBytes bounds one message of a client: a record batch with its metadata.
const MaxMessageBytes = 16 << 20

// Options of the front. The zero value works.
type Options struct {
	Logger *slog.Logger // nil: none
	// Pipelines is the engine that applies modules; nil: none.
	Pipelines broker.Pipelines

	MaxConnections int           // default 1,000; further ones are closed at once
	MaxStreams     int           // calls at a time on a connection; default 128
	Window         int           // batches of a DoPut that are not acknowledged, before reading stops; default 32
	WindowBytes    int           // and their bytes; default 32 MiB
	DrainTimeout   time.Duration // for calls at the end; default 2 s
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, x := range []struct {
		p   *int
		def int
	}{{&o.MaxConnections, 1000}, {&o.MaxStreams, 128}, {&o.Window, 32}, {&o.WindowBytes, 32 << 20}} {
		if *x.p <= 0 {
			*x.p = x.def
		}
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = 2 * time.Second
	}
	return o
}

// Metrics counts what the front does. Fields are atomics.
type Metrics struct {
	Connections        atomic.Int64 // open now
	Accepted, Rejected atomic.Uint64
	Calls, Errors      atomic.Uint64
	Panics             atomic.Uint64
	RowsIn, RowsOut    atomic.Uint64
	BatchesIn          atomic.Uint64
	BatchesOut         atomic.Uint64
	BytesIn, BytesOut  atomic.Uint64 // of Arrow bodies
}

// A Server is the front over one broker.
type Server struct {
	flight.BaseFlightServer
	broker  *broker.Broker
	opts    Options
	log     *slog.Logger
	metrics Metrics
	grpc    *grpc.Server
	down    chan struct{} // closed when Serve ends: endless calls end too
	once    sync.Once
}

// New makes a front. It does not own the broker.
func New(b *broker.Broker, o Options) *Server {
	s := &Server{broker: b, opts: o.withDefaults(), down: make(chan struct{})}
	s.log = s.opts.Logger
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(s.opts.MaxStreams)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.ChainUnaryInterceptor(s.unary),
		grpc.ChainStreamInterceptor(s.stream),
	)
	flight.RegisterFlightServiceServer(s.grpc, s)
	return s
}

// Metrics returns the live counters.
func (s *Server) Metrics() *Metrics { return &s.metrics }

// Serve accepts connections until ctx ends; then it ends endless calls, lets the others finish within Options.DrainTimeout and
// returns nil. It closes ln, and may be called once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.stop()
	})
	err := s.grpc.Serve(&listener{Listener: ln, s: s})
	if !stop() {
		<-ended
		return nil
	}
	s.stop()
	return err
}

func (s *Server) stop() {
	s.once.Do(func() { close(s.down) })
	late := time.AfterFunc(s.opts.DrainTimeout, s.grpc.Stop)
	defer late.Stop()
	s.grpc.GracefulStop()
}

// A listener counts connections and closes those beyond the limit.
type listener struct {
	net.Listener
	s *Server
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		m := &l.s.metrics
		m.Accepted.Add(1)
		if m.Connections.Add(1) <= int64(l.s.opts.MaxConnections) {
			return &conn{Conn: nc, m: m}, nil
		}
		m.Connections.Add(-1)
		m.Rejected.Add(1)
		l.s.log.Warn("flight.too_many_connections", "remote", nc.RemoteAddr().String(), "limit", l.s.opts.MaxConnections)
		_ = nc.Close()
	}
}

type conn struct {
	net.Conn
	m    *Metrics
	once sync.Once
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { c.m.Connections.Add(-1) })
	return c.Conn.Close()
}

// unary turns errors into statuses and keeps a bug in one call.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = s.finish(ctx, info.FullMethod, recover(), err) }()
	return next(ctx, req)
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() { err = s.finish(stream.Context(), info.FullMethod, recover(), err) }()
	return next(srv, stream)
}

// finish is the status of a call that has ended. bug is what it panicked with, or nil.
func (s *Server) finish(ctx context.Context, method string, bug any, err error) error {
	s.metrics.Calls.Add(1)
	if bug != nil {
		s.metrics.Panics.Add(1)
		s.log.Error("flight.panic", "method", method, "panic", fmt.Sprint(bug), "stack", string(debug.Stack()))
		err = broker.Errorf(broker.Internal, "the call met a bug")
	}
	if err == nil {
		return nil
	}
	s.metrics.Errors.Add(1)
	return statusOf(ctx, err)
}

// until is a context of a call that ends with the server too.
func (s *Server) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.down:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
