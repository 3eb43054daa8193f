package kafka_test

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/group"
	"github.com/headrace/headrace/server/kafka"
)

// A front is a whole broker in this process: a node on a disk in memory, and the Kafka front on a
// loopback port.
type front struct {
	t      testing.TB
	fs     fsx.FS
	opts   frontOptions
	node   *replication.Node
	broker *broker.Broker
	groups *group.Coordinator
	srv    *kafka.Server
	addr   string
	logs   *logBuffer
	stop   func()
}

type frontOptions struct {
	kafka kafka.Options
	views broker.Pipelines
	disk  bool                     // a directory instead of memory
	write func(f *front, b []byte) // called before bytes are written to a connection
	wal   int64                    // size of the log's segments, bytes; 0: the default on a disk, 32 MiB in memory
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}

func start(t testing.TB, o frontOptions) *front {
	t.Helper()
	f := &front{t: t, fs: fsx.NewMem(), opts: o, logs: &logBuffer{}}
	if o.disk {
		f.fs = fsx.Disk()
	}
	f.open()
	t.Cleanup(func() { f.close() })
	return f
}

func (f *front) open() {
	f.t.Helper()
	dir := "/data"
	if f.opts.disk {
		dir = f.t.TempDir()
	}
	var err error
	f.node, err = replication.OpenNode(replication.NodeOptions{
		Dir: dir, FS: f.fs, Data: replication.ShardOptions{WALSegmentBytes: f.walBytes()}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.broker = broker.New(broker.Options{Node: f.node, Pipelines: f.opts.views})
	f.groups = group.New(group.Options{MinSession: 100 * time.Millisecond})
	k := f.opts.kafka
	k.Logger = slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.srv = kafka.New(f.broker, f.groups, k)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	if f.opts.write != nil {
		ln = watchedListener{ln, f}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.srv.Serve(ctx, ln) }()
	f.stop = func() {
		cancel()
		f.groups.Close()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
		if err := f.node.Close(); err != nil {
			f.t.Error(err)
		}
	}
}

// A watchedListener tells frontOptions.write what its connections are about to send.
type watchedListener struct {
	net.Listener
	f *front
}

func (l watchedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return watchedConn{nc, l.f}, nil
}

type watchedConn struct {
	net.Conn
	f *front
}

func (c watchedConn) Write(b []byte) (int, error) {
	c.f.opts.write(c.f, b)
	return c.Conn.Write(b)
}

func (f *front) walBytes() int64 {
	if f.opts.disk || f.opts.wal != 0 {
		return f.opts.wal
	}
	return 32 << 20
}

func (f *front) close() {
	if f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// restart closes the broker and opens it again on the same disk.
func (f *front) restart() {
	f.t.Helper()
	f.close()
	f.open()
}

func (f *front) client(opts ...kgo.Opt) *kgo.Client {
	f.t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(f.addr), kgo.RequestRetries(3), kgo.MetadataMinAge(50 * time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond })}, opts...)...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

func (f *front) admin() *kadm.Client { return kadm.NewClient(f.client()) }

func (f *front) create(name string, partitions int32, configs map[string]*string) {
	f.t.Helper()
	r, err := f.admin().CreateTopic(f.ctx(), partitions, -1, configs, name)
	if err != nil || r.Err != nil {
		f.t.Fatal(err, r.Err, r.ErrMessage)
	}
}

func (f *front) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}
