package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func options(fs fsx.FS) server.Options {
	return server.Options{
		Data: "/data", FS: fs, KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0",
		Node: replication.NodeOptions{Data: replication.ShardOptions{WALSegmentBytes: 8 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20}},
	}
}

func start(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func call(t *testing.T, s *server.Server, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func client(t *testing.T, s *server.Server, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.KafkaAddr()), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAddressesBeyondThisMachineNeedInsecure(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		o := options(fsx.NewMem())
		o.KafkaAddr = addr
		if s, err := server.Start(o); !errors.Is(err, server.ErrInsecure) {
			t.Errorf("kafka on %s: %v", addr, err)
			if s != nil {
				_ = s.Close()
			}
		}
		o = options(fsx.NewMem())
		o.HTTPAddr = addr
		if s, err := server.Start(o); !errors.Is(err, server.ErrInsecure) {
			t.Errorf("http on %s: %v", addr, err)
			if s != nil {
				_ = s.Close()
			}
		}
	}
	o, logs := options(fsx.NewMem()), &buffer{}
	o.KafkaAddr, o.Insecure, o.Logger = "0.0.0.0:0", true, slog.New(slog.NewTextHandler(logs, nil))
	start(t, o)
	if !strings.Contains(logs.String(), "server.advertised") {
		t.Errorf("an advertised address that nobody can reach is not warned of: %s", logs)
	}
}

func TestAPortInUseIsNoticedBeforeTheLogIsOpened(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	o := options(fsx.NewMem())
	o.HTTPAddr = ln.Addr().String()
	if _, err := server.Start(o); err == nil || !strings.Contains(err.Error(), "listen") {
		t.Errorf("got %v", err)
	}
}

func TestStartAndCloseLeaveNothingRunning(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(), goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
	s, err := server.Start(options(fsx.NewMem()))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := call(t, s, "GET", "/readyz?verbose", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error("twice:", err)
	}
}

func TestTheLogSaysWhereClientsConnect(t *testing.T) {
	logs := &buffer{}
	o := options(fsx.NewMem())
	o.Logger, o.Advertised = slog.New(slog.NewTextHandler(logs, nil)), "broker.example:9999"
	s := start(t, o)
	if s.Advertised() != "broker.example:9999" || !strings.Contains(logs.String(), "advertised=broker.example:9999") || !strings.Contains(logs.String(), s.KafkaAddr()) {
		t.Errorf("%s %s", s.Advertised(), logs)
	}
}

func TestAServerWithoutPipelinesServesTopics(t *testing.T) {
	o := options(fsx.NewMem())
	o.NoEngine, o.HTTPAddr = true, "127.0.0.1:0"
	s := start(t, o)
	if status, body := call(t, s, "GET", "/api/v1/modules", ""); status != 503 || !strings.Contains(body, "E1068") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "POST", "/api/v1/topics", `{"name":"t"}`); status != 201 {
		t.Errorf("%d %s", status, body)
	}
	if err := client(t, s).ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: []byte("x")}).FirstErr(); err != nil {
		t.Error(err)
	}
	if status, body := call(t, s, "GET", "/readyz", ""); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/metrics", ""); status != 200 || !strings.Contains(body, "headrace_ready 1") {
		t.Errorf("%d", status)
	}
	o = options(fsx.NewMem())
	o.HTTPAddr = "-"
	if s := start(t, o); s.HTTPAddr() != "" {
		t.Errorf("http on %s", s.HTTPAddr())
	}
}

const module = `
topic orders {
  order_id: string,
  customer: string,
  amount: float64,
} with key (order_id), format json

topic big = from orders
  |> where amount > 100
  |> select order_id, customer, amount

view wanted = from orders
  |> where amount > 100
  |> select order_id, amount
`

// TestAModuleRunsFromEndToEnd goes through both fronts: apply, produce, read what is derived.
func TestAModuleRunsFromEndToEnd(t *testing.T) {
	fs := fsx.NewMem()
	s := start(t, options(fs))
	if status, body := call(t, s, "PUT", "/api/v1/modules/shop?dry_run", "x = nothing |> where usr == 1"); status != 422 || !strings.Contains(body, `"line":1`) {
		t.Errorf("a text that does not compile: %d %s", status, body)
	}
	if status, body := call(t, s, "PUT", "/api/v1/modules/shop", module); status != 200 || !strings.Contains(body, `"name":"shop"`) {
		t.Fatalf("apply: %d %s", status, body)
	}
	c := client(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 20 {
		r := &kgo.Record{Topic: "orders", Key: fmt.Appendf(nil, "o%d", i), Value: fmt.Appendf(nil, `{"order_id":"o%d","customer":"c%d","amount":%d}`, i, i%3, i*20)}
		if err := c.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for _, topic := range []string{"big", "wanted"} {
		got := 0
		consumer := client(t, s, kgo.ConsumeTopics(topic))
		for got < 14 {
			fs := consumer.PollFetches(ctx)
			if err := fs.Err(); err != nil {
				t.Fatal(topic, err)
			}
			for _, r := range fs.Records() {
				var row struct{ Amount float64 }
				if err := json.Unmarshal(r.Value, &row); err != nil || row.Amount <= 100 {
					t.Errorf("%s: %s %v", topic, r.Value, err)
				}
				got++
			}
		}
		if got != 14 {
			t.Errorf("%s: %d records", topic, got)
		}
	}
	// What a pipeline writes and what a view shows are for reading only.
	for _, topic := range []string{"big", "wanted"} {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("{}")}).FirstErr(); !errors.Is(err, kerr.PolicyViolation) {
			t.Errorf("produce to %s: %v", topic, err)
		}
	}
	if _, err := kadm.NewClient(c).DeleteTopic(ctx, "orders"); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("delete of a source: %v", err)
	}
	if status, body := call(t, s, "GET", "/api/v1/pipelines/shop/big", ""); status != 200 || !strings.Contains(body, `"state":"running"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/api/v1/topics/wanted", ""); status != 200 || !strings.Contains(body, `"kind":"view"`) {
		t.Errorf("%d %s", status, body)
	}
	status, metrics := call(t, s, "GET", "/metrics", "")
	for _, want := range []string{
		"headrace_ready 1", `headrace_topic_records_in_total{topic="orders"} 20`, "headrace_publish_seconds_count 2", `headrace_pipeline_running{pipeline="shop/big"} 1`,
		`headrace_pipeline_rows_total{kind="in",pipeline="shop/big"} 20`, `headrace_shard_leader{shard="data-0"} 1`, "headrace_wal_groups_total", "process_start_time_seconds",
		`headrace_kafka_request_seconds_bucket{api="Produce",le="5e-05"}`,
	} {
		if status != 200 || !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	// Everything is there after a restart.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, options(fs))
	if status, body := call(t, s, "GET", "/api/v1/modules/shop", ""); status != 200 || !strings.Contains(body, `"state":"running"`) {
		t.Errorf("after a restart: %d %s", status, body)
	}
	if status, body := call(t, s, "DELETE", "/api/v1/modules/shop", ""); status != 200 {
		t.Errorf("delete: %d %s", status, body)
	}
	if status, _ := call(t, s, "GET", "/api/v1/topics/big", ""); status != 404 {
		t.Errorf("a derived topic outlives its module: %d", status)
	}
}
