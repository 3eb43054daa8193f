package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/leak"
	"github.com/headrace/headrace/server"
)

// TestMain is also the server of its own that some benchmarks start: `serve --data D --kafka K --http H`.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil { // of the servers; else each ends a second late
		panic(err)
	}
	leak.Main(m)
}

func serve(args []string) error {
	flags := map[string]string{}
	for i := 0; i+1 < len(args); i += 2 {
		flags[args[i]] = args[i+1]
	}
	s, err := server.Start(server.Options{Data: flags["--data"], KafkaAddr: flags["--kafka"], HTTPAddr: flags["--http"]})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	return s.Close()
}

// TestEveryBenchmarkMeasures runs each for a moment and looks at what it reports.
func TestEveryBenchmarkMeasures(t *testing.T) {
	for _, c := range []struct {
		name     string
		run      func(context.Context, Options) (*Report, error)
		options  Options
		positive []string
	}{
		{"ingest", Ingest, Options{Seconds: 1}, []string{"messages_per_second", "bytes_per_second", "cpu_seconds"}},
		{"latency", Latency, Options{Seconds: 1, Rate: 500, Size: 100, Client: ClientNative}, []string{"messages_per_second", "mean_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms"}},
		{"ingest", Ingest, Options{Seconds: 1, Client: ClientNative, Connections: 2, Partitions: 2, Compare: true}, []string{"messages_per_second", "peer_messages_per_second"}},
		{"latency", Latency, Options{Seconds: 1, One: true}, []string{"messages_per_second", "mean_ms", "max_ms", "messages"}},
		{"replay", Replay, Options{Seconds: 1, Bytes: 2 << 20, Partitions: 2}, []string{"messages_per_second", "mean_ms", "fetches", "disk_read_bytes_per_second"}},
		{"replay", Replay, Options{Bytes: 2 << 20, Client: ClientKgo, Cold: true}, []string{"messages_per_second", "p99_ms"}},
		{"backlog", Backlog, Options{Seconds: 2, Rate: 500, Bytes: 2 << 20}, []string{"mean_ms", "mean_ratio", "p99_ratio", "backlog_bytes_per_second"}},
		{"pipeline", Pipeline, Options{Rows: 20_000}, []string{"messages_per_second", "bytes_per_second", "rows_per_second_per_core"}},
		{"partitions", Partitions, Options{Topics: 20, Partitions: 10}, []string{"start_ms"}},
		{"partitions", Active, Options{Active: 20, Seconds: 1, Size: 100, turns: 1}, []string{"messages_per_second", "bytes_per_second", "many_partitions"}},
		{"partitions", Idle, Options{Topics: 3, Partitions: 5, rest: 50 * time.Millisecond}, []string{"start_ms", "many_partitions"}},
		{"recovery", Recovery, Options{Seconds: 1}, []string{"start_ms", "messages"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they measure for a second each, and nobody looks at how much
			c.options.Dir = t.TempDir()
			r, err := c.run(t.Context(), c.options)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]any{}
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			for _, key := range strings.Fields("messages_per_second bytes_per_second mean_ms p50_ms p99_ms p999_ms max_ms disk_sync_ms rss_bytes cpu_seconds") {
				if _, ok := got[key]; !ok {
					t.Errorf("no %s in %s", key, raw)
				}
			}
			for _, key := range append(c.positive, "disk_sync_ms", "rss_bytes") {
				if _, ok := got[key].(map[string]any); ok {
					continue // figures of its own
				}
				if v, ok := got[key].(float64); !ok || v <= 0 {
					t.Errorf("%s is %v in %s", key, got[key], raw)
				}
			}
			if text := r.Text(); !strings.HasPrefix(text, c.name+"\n") || !strings.Contains(text, "disk sync") {
				t.Errorf("the text is %q", text)
			}
			left, err := os.ReadDir(c.options.Dir)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestAHundredThousandIdlePartitions holds what a node promises of them. It takes a minute.
func TestAHundredThousandIdlePartitions(t *testing.T) {
	if os.Getenv("HEADRACE_LONG") == "" {
		t.Skip("set HEADRACE_LONG=1")
	}
	for _, o := range []Options{{Topics: 100, Partitions: 1000}, {Topics: 10_000, Partitions: 10}} {
		o.Dir = t.TempDir()
		r, err := Idle(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(r.Text())
		x := r.Many.Idle
		if worst := max(x.CreatedRSS, x.IdleRSS, x.MetadataRSS, x.KillRSS); worst > 1<<30 {
			t.Errorf("%d MiB resident", worst>>20)
		}
		if x.StartMs > 10_000 || x.KillStartMs > 10_000 {
			t.Errorf("ready after %.0f and %.0f ms", x.StartMs, x.KillStartMs)
		}
	}
}

func TestABenchmarkEndsWithItsContext(t *testing.T) {
	for _, run := range []func(context.Context, Options) (*Report, error){Ingest, Latency, Replay, Backlog, Pipeline, Partitions, Active, Idle, Recovery} {
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err := run(ctx, Options{Dir: dir, Seconds: 60}); err == nil {
			t.Errorf("%s reports without having measured", r.Name)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// A plot is read from the left, over a scale of milliseconds.
func TestPlotShowsTheLatencyOverTime(t *testing.T) {
	r := &Report{Timeline: []float64{1, 16, 0, 2}, TimelineP99: []float64{0.5, 4, 0, 1}, TimelineP50: []float64{0.25, 0.25, 0, 0.25}, SliceSeconds: 0.5}
	want := `latency over time, ms (. p50, + p99, # max; a column is 0.5 s)
       16 | #
          |
          |
     5.15 |
          | +
          |   #
     1.66 |
          |#  +
          |
    0.533 |+
          |
     0.25 |.. .
          +----
`
	if got := r.plot(); got != want {
		t.Errorf("got\n%s", got)
	}
	for _, none := range []*Report{{}, {Timeline: []float64{1}}, {Timeline: []float64{0, 0}, TimelineP99: []float64{0, 0}, TimelineP50: []float64{0, 0}}} {
		if none.plot() != "" {
			t.Errorf("a plot of nothing: %q", none.plot())
		}
	}
}

func TestBenchmarksRefuseWhatTheyCannotMeasure(t *testing.T) {
	for _, o := range []Options{{Client: "other"}, {Connections: -1}, {Connections: 5000}} {
		for _, run := range []func(context.Context, Options) (*Report, error){Ingest, Latency} {
			if _, err := run(t.Context(), o); err == nil {
				t.Errorf("%+v is accepted", o)
			}
		}
	}
	if _, err := Latency(t.Context(), Options{One: true, Connections: 2}); err == nil {
		t.Error("one record at a time over two connections is accepted")
	}
	dir := t.TempDir()
	if _, err := Ingest(t.Context(), Options{Dir: dir, Durability: "sometimes"}); err == nil || !strings.Contains(err.Error(), "durability") {
		t.Errorf("a durability that the server does not know: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
