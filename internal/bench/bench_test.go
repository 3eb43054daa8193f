package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
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
		{"ingest", Ingest, Options{Seconds: 1, Columns: true}, []string{"rows_per_second", "bytes_per_second"}},
		{"ingest", Ingest, Options{Seconds: 1, Columns: true, WithPipeline: true, Rate: 200_000, Partitions: 2, RetainBytes: 8 << 20}, []string{"rows_per_second", "pipeline_rows_per_second", "pipeline_aggregated_rows_per_second"}},
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
	type run = func(context.Context, Options) (*Report, error)
	all := []run{Ingest, Latency, Replay, Backlog, Pipeline, Partitions, Active, Idle, Recovery}
	for _, c := range []struct {
		o    Options
		runs []run
	}{
		{Options{Size: -1}, all},
		{Options{Size: MaxRecordBytes + 1}, all},
		{Options{Rate: -5}, all},
		{Options{Rate: 1 << 30}, all},
		{Options{Seconds: -1}, all},
		{Options{Partitions: -2}, all},
		{Options{Topics: -1}, all},
		{Options{Active: -1}, all},
		{Options{Rows: -1}, all},
		{Options{Bytes: -1}, all},
		{Options{Connections: -1}, all},
		{Options{Connections: 5000}, all},
		{Options{Client: "other"}, all},
		{Options{Keep: true}, all},
		{Options{Server: "127.0.0.1:1"}, []run{Backlog, Partitions, Active, Idle, Recovery}},
		{Options{Server: "127.0.0.1:1", Cold: true}, []run{Replay}},
		{Options{One: true, Connections: 2}, []run{Latency}},
		{Options{One: true, Rate: 10}, []run{Latency}},
	} {
		c.o.Dir = t.TempDir()
		for i, run := range c.runs {
			var bad *OptionError
			if _, err := run(t.Context(), c.o); !errors.As(err, &bad) {
				t.Errorf("benchmark %d with %+v: %v", i, c.o, err)
			}
		}
		if left, err := os.ReadDir(c.o.Dir); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	dir := t.TempDir()
	if _, err := Ingest(t.Context(), Options{Dir: dir, Durability: "sometimes"}); err == nil || !strings.Contains(err.Error(), "durability") {
		t.Errorf("a durability that the server does not know: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A server that does not answer is said to be so, rather than waited for.
func TestAServerThatIsNotThereIsAnError(t *testing.T) {
	for i, run := range []func(context.Context, Options) (*Report, error){Ingest, Latency, Replay, Pipeline} {
		var gone *client.ConnectError
		if _, err := run(t.Context(), Options{Server: "127.0.0.1:1", HTTP: "127.0.0.1:1"}); !errors.As(err, &gone) {
			t.Errorf("benchmark %d: %v", i, err)
		}
	}
}

// A rate that no machine reaches ends all the same, and is said not to have been reached.
func TestARateThatCannotBeReachedEnds(t *testing.T) {
	for name, run := range map[string]func(context.Context, Options) (*Report, error){"latency": Latency, "backlog": Backlog} {
		r, err := run(t.Context(), Options{Dir: t.TempDir(), Rate: 100_000_000, Seconds: 1, Size: 1, Bytes: 1 << 20, Client: ClientNative})
		if err != nil {
			t.Fatal(name, err)
		}
		if r.RateReached <= 0 || r.RateReached >= 100_000_000 || !strings.Contains(r.Text(), "rate not reached") {
			t.Errorf("%s: reached %f\n%s", name, r.RateReached, r.Text())
		}
	}
}

// A server that is not the benchmark's own is left as it was, unless it is told to keep what was made.
func TestASomebodysServerIsLeftAsItWas(t *testing.T) {
	s, err := server.Start(server.Options{Data: t.TempDir(), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	api := client.NewAPI(s.HTTPAddr())
	left := func() (n int) {
		topics, err := api.Topics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		modules, err := api.Modules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(topics) + len(modules)
	}
	if _, err := api.CreateTopic(t.Context(), client.TopicSpec{Name: "bench-of-somebody", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	o := Options{Server: s.KafkaAddr(), HTTP: s.HTTPAddr(), Seconds: 1, Rate: 100, Rows: 1000, Bytes: 1 << 20, Client: ClientNative}
	for i, run := range []func(context.Context, Options) (*Report, error){Ingest, Latency, Replay, Pipeline} {
		if _, err := run(t.Context(), o); err != nil {
			t.Fatal(i, err)
		}
		if n := left(); n != 1 {
			t.Errorf("benchmark %d leaves %d topics and modules", i, n-1)
		}
	}
	// Interrupted while its rows are under way: the first progress line comes when the topic is there.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := o
	stopped.Out = cancelling{cancel}
	if _, err := Pipeline(ctx, stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run: %v", err)
	}
	if n := left(); n != 1 {
		t.Errorf("an interrupted run leaves %d topics and modules", n-1)
	}
	o.Keep = true
	if _, err := Pipeline(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if n := left(); n <= 2 {
		t.Errorf("with Keep %d topics and modules stay", n-1)
	}
}

// cancelling ends a run at its first line.
type cancelling struct{ cancel context.CancelFunc }

func (c cancelling) Write(p []byte) (int, error) {
	c.cancel()
	return len(p), nil
}

func TestNexmarkRunsAQuery(t *testing.T) {
	r, err := Nexmark(t.Context(), Options{Query: "q2", Events: 10_000, EventRate: 1000, Partitions: 3, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Nexmark(t.Context(), Options{Query: "q2", Events: 10_000, EventRate: 1000, Partitions: 1, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if r.OutputRows == 0 || r.OutputRows != again.OutputRows || r.OutputSHA256 != again.OutputSHA256 || r.EventsPerSecond <= 0 || r.EventsPerSecondCore <= 0 {
		t.Errorf("3 partitions: %+v; 1: %+v", r.nexmarkReport, again.nexmarkReport)
	}
	var bad *OptionError
	if _, err := Nexmark(t.Context(), Options{Query: "q99"}); !errors.As(err, &bad) || !strings.Contains(err.Error(), "q0") {
		t.Errorf("q99: %v", err)
	}
}
