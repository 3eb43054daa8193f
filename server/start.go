package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/flight"
	"github.com/headrace/headrace/server/group"
	"github.com/headrace/headrace/server/http"
	"github.com/headrace/headrace/server/kafka"
)

// ErrInsecure refuses to listen for other machines: there is neither TLS nor authentication yet.
var ErrInsecure = errors.New("server: listening beyond this machine is insecure")

// ErrAddress refuses what is no host:port.
var ErrAddress = errors.New("server: not an address")

// A ListenError says that an address cannot be listened on.
type ListenError struct {
	Addr string
	Err  error
}

func (e *ListenError) Error() string { return fmt.Sprintf("server: listen on %s: %v", e.Addr, e.Err) }

// Unwrap returns what the system says.
func (e *ListenError) Unwrap() error { return e.Err }

// Options of Start. Data is required.
type Options struct {
	Data   string       // the data directory
	FS     fsx.FS       // nil: the disk
	Logger *slog.Logger // nil: none
	Now    func() time.Time

	KafkaAddr string // host:port; "" is 127.0.0.1:9092, port 0 picks one
	HTTPAddr  string // "" is 127.0.0.1:8090, "-" is no HTTP
	// FlightAddr is that of the Arrow Flight front, "" is none.
	FlightAddr string
	// Advertised is the host:port that Kafka clients are told to use; "" is the listener's own address.
	// A port of 0 is the listener's.
	Advertised string
	// Insecure allows addresses beyond this machine, and any Host in HTTP requests.
	Insecure bool

	AutoCreateTopics  bool  // by a client's metadata request, if the client allows it
	DefaultPartitions int32 // of topics that do not say; default 1
	// OffsetsRetention is how long a consumer group's offsets stay after its last member has left and its last commit; 0:
	// DefaultOffsetsRetention, negative: for ever.
	OffsetsRetention  time.Duration
	GroupInitialDelay time.Duration // how long an empty group's first rebalance waits for more members; default 0

	// Memory is the budget for records that are held in memory, in bytes; 0: DefaultMemory. Parts of it go to what Node
	// does not set. See docs/operations.md.
	Memory int64
	// Node holds further options of the log; Dir, FS, Logger and Now are set by Start.
	Node replication.NodeOptions
	// Kafka and Group hold further options of the fronts.
	Kafka  kafka.Options
	Flight flight.Options
	Group  group.Options
	// Engine holds options of the pipelines.
	Engine EngineOptions
	// NoEngine runs without pipelines.
	NoEngine bool

	Version string // shown in the status
}

// A Server is a running broker process. Its methods may be called from any goroutine.
type Server struct {
	opts   Options
	log    *slog.Logger
	node   *replication.Node
	engine *engine // nil: none
	broker *broker.Broker
	groups *group.Coordinator
	kafka  *kafka.Server
	flight *flight.Server // nil: none
	web    *nethttp.Server

	kafkaLn, httpLn, flightLn net.Listener       // httpLn and flightLn may be nil
	stopFronts                context.CancelFunc // of Kafka and Flight
	wg                        sync.WaitGroup
	started                   bool        // Start has succeeded
	down                      atomic.Bool // stopping: not ready
	failed                    chan error

	closeOnce sync.Once
	closeErr  error
}

// Start opens everything and returns when requests are served. The listeners are bound before the log is
// opened, so that a port in use is noticed at once.
//
// Errors: ErrAddress, ErrInsecure, a *ListenError, those of replication.OpenNode and of the pipelines.
func Start(o Options) (*Server, error) {
	if o.Data == "" {
		return nil, errors.New("server: Options.Data is empty")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.KafkaAddr == "" {
		o.KafkaAddr = "127.0.0.1:9092"
	}
	if o.HTTPAddr == "" {
		o.HTTPAddr = "127.0.0.1:8090"
	}
	if o.OffsetsRetention == 0 {
		o.OffsetsRetention = DefaultOffsetsRetention
	}
	if err := o.share(); err != nil {
		return nil, err
	}
	s := &Server{opts: o, log: o.Logger, failed: make(chan error, 3)}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// lookupTimeout bounds how long the start waits for the address of a host name.
const lookupTimeout = 10 * time.Second

// listen binds a TCP address after judging it.
func (s *Server) listen(addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrAddress, addr, err)
	}
	if host != "" && net.ParseIP(host) == nil {
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		_, err := net.DefaultResolver.LookupHost(ctx, host)
		cancel()
		if err != nil {
			return nil, &ListenError{addr, systemError(err)}
		}
	}
	if !s.opts.Insecure && !loopback(host) {
		return nil, fmt.Errorf("%w: %s (there is no TLS and no authentication; use a loopback address, or allow it with --insecure)", ErrInsecure, addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &ListenError{addr, systemError(err)}
	}
	return ln, nil
}

// systemError leaves out of an error what a ListenError says itself.
func systemError(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}

// loopback says whether a host is this machine and nobody else can reach it.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (s *Server) open() error {
	o := &s.opts
	var err error
	if s.kafkaLn, err = s.listen(o.KafkaAddr); err != nil {
		return err
	}
	if o.HTTPAddr != "-" {
		if s.httpLn, err = s.listen(o.HTTPAddr); err != nil {
			return err
		}
	}
	if o.FlightAddr != "" {
		if s.flightLn, err = s.listen(o.FlightAddr); err != nil {
			return err
		}
	}
	no := o.Node
	no.Dir, no.FS, no.Logger, no.Now = o.Data, o.FS, o.Logger, o.Now
	if s.node, err = replication.OpenNode(no); err != nil {
		return fmt.Errorf("server: open the log: %w", err)
	}
	var pipelines broker.Pipelines
	if !o.NoEngine {
		if s.engine, err = startEngine(s.node, o); err != nil {
			return err
		}
		pipelines = s.engine
	}
	s.broker = broker.New(broker.Options{
		Node: s.node, Pipelines: pipelines, DefaultPartitions: o.DefaultPartitions, Logger: o.Logger, Now: o.Now,
		OffsetsRetention: o.OffsetsRetention,
	})
	s.node.SetGroupSource(s.broker.RecordsOf)
	g := o.Group
	if g.InitialDelay == 0 {
		g.InitialDelay = o.GroupInitialDelay
	}
	s.groups = group.New(g)
	return s.serve(pipelines)
}

func (s *Server) serve(pipelines broker.Pipelines) error {
	o := &s.opts
	k := o.Kafka
	k.Logger, k.Advertised, k.AutoCreate = o.Logger, o.Advertised, o.AutoCreateTopics
	s.kafka = kafka.New(s.broker, s.groups, k)
	if err := s.kafka.Advertise(s.kafkaLn.Addr()); err != nil {
		return fmt.Errorf("%w: %q, to advertise: %w", ErrAddress, o.Advertised, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopFronts = cancel
	s.wg.Go(func() { s.expireGroups(ctx) })
	s.wg.Go(func() {
		if err := s.kafka.Serve(ctx, s.kafkaLn); err != nil {
			s.fail(fmt.Errorf("server: kafka: %w", err))
		}
	})
	if s.flightLn != nil {
		f := o.Flight
		f.Logger, f.Pipelines = o.Logger, pipelines
		s.flight = flight.New(s.broker, f)
		s.wg.Go(func() {
			if err := s.flight.Serve(ctx, s.flightLn); err != nil {
				s.fail(fmt.Errorf("server: flight: %w", err))
			}
		})
	}
	advertised := s.kafka.Advertised()
	if s.httpLn != nil {
		s.web = &nethttp.Server{
			Handler: http.Handler(http.Options{
				Broker: s.broker, Pipelines: pipelines, Logger: o.Logger, Metrics: s.metricsHandler(), Ready: s.notReady,
				KafkaAddr: advertised, Version: o.Version, AnyHost: o.Insecure,
			}),
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 5 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
			ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
		}
		s.wg.Go(func() {
			if err := s.web.Serve(s.httpLn); !errors.Is(err, nethttp.ErrServerClosed) {
				s.fail(fmt.Errorf("server: http: %w", err))
			}
		})
	}
	attrs := []any{"kafka", s.KafkaAddr(), "advertised", advertised, "cluster", s.node.ClusterID(), "node", s.node.NodeID()}
	if s.httpLn != nil {
		attrs = append(attrs, "http", "http://"+s.HTTPAddr())
	}
	if s.flightLn != nil {
		attrs = append(attrs, "flight", "grpc://"+s.FlightAddr())
	}
	s.started = true
	s.log.Info("server.started", attrs...)
	if host, _, err := net.SplitHostPort(advertised); err == nil && net.ParseIP(host).IsUnspecified() {
		s.log.Warn("server.advertised", "address", advertised, "fix", "clients cannot connect to it; set the advertised address to one that they can reach")
	}
	return nil
}

// fail reports that a front ended by itself.
func (s *Server) fail(err error) {
	s.log.Error("server.failed", "err", err)
	select {
	case s.failed <- err:
	default:
	}
}

// Failed receives when a front ends by itself; the process should then stop.
func (s *Server) Failed() <-chan error { return s.failed }

// notReady is the server's part of /readyz.
func (s *Server) notReady() map[string][]string {
	var listeners []string
	if s.down.Load() {
		listeners = append(listeners, "the server is stopping")
	}
	return map[string][]string{"listeners": listeners}
}

// KafkaAddr is the address that the Kafka front listens on.
func (s *Server) KafkaAddr() string { return s.kafkaLn.Addr().String() }

// HTTPAddr is the address that the HTTP front listens on, "" without one.
func (s *Server) HTTPAddr() string {
	if s.httpLn == nil {
		return ""
	}
	return s.httpLn.Addr().String()
}

// FlightAddr is the address that the Arrow Flight front listens on, "" without one.
func (s *Server) FlightAddr() string {
	if s.flightLn == nil {
		return ""
	}
	return s.flightLn.Addr().String()
}

// Advertised is the address that Kafka clients are told to use.
func (s *Server) Advertised() string { return s.kafka.Advertised() }

// Node is the log, for what runs in the same process.
func (s *Server) Node() *replication.Node { return s.node }

// Broker is what the fronts share.
func (s *Server) Broker() *broker.Broker { return s.broker }

// Groups are the consumer groups.
func (s *Server) Groups() *group.Coordinator { return s.groups }

// Close stops the server: first nothing new comes in and what is outstanding is answered, then the
// pipelines stop, then the log is closed. It returns when everything has ended.
func (s *Server) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.down.Store(true)
	var errs []error
	if s.groups != nil {
		s.groups.Close() // parked joins would hold their connections
	}
	switch {
	case s.stopFronts != nil:
		s.stopFronts()
	case s.kafkaLn != nil:
		errs = append(errs, s.kafkaLn.Close())
	}
	if s.flight == nil && s.flightLn != nil {
		errs = append(errs, s.flightLn.Close())
	}
	switch {
	case s.web != nil:
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := s.web.Shutdown(ctx); err != nil {
			errs = append(errs, s.web.Close())
		}
		cancel()
	case s.httpLn != nil:
		errs = append(errs, s.httpLn.Close())
	}
	s.wg.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	if s.node != nil {
		errs = append(errs, s.node.Close())
	}
	err := errors.Join(errs...)
	if !s.started {
		return err // Start says it
	}
	if err != nil {
		s.log.Error("server.stopped", "err", err)
	} else {
		s.log.Info("server.stopped")
	}
	return err
}
