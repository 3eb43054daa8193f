// Package bench measures a server end to end: ingest, publish latency, pipelines, many partitions,
// recovery. A figure comes with what bounds it: the disk's own sync time, memory, processor time.
//
// The client runs on the same machine as the server; without an address the server runs inside this
// process, in a temporary directory. Latency is measured open loop, from the moment a record was due,
// so that a stall counts for every record that it delays.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

// A Report is what a benchmark prints, as text or JSON. Fields that a benchmark does not measure are
// zero.
type Report struct {
	Name string `json:"name"`

	MessagesPerSecond         float64 `json:"messages_per_second"`
	BytesPerSecond            float64 `json:"bytes_per_second"`
	MeanMs                    float64 `json:"mean_ms"` // publish latency
	P50Ms                     float64 `json:"p50_ms"`
	P99Ms                     float64 `json:"p99_ms"`
	P999Ms                    float64 `json:"p999_ms"`
	MaxMs                     float64 `json:"max_ms"`
	DiskSyncMs                float64 `json:"disk_sync_ms"`                  // median fdatasync of 64 KiB into a written file, same directory, before the run
	FreshMemoryBytesPerSecond float64 `json:"fresh_memory_bytes_per_second"` // memory that the system hands out for the first time
	RSSBytes                  int64   `json:"rss_bytes"`
	CPUSeconds                float64 `json:"cpu_seconds"` // of client and server together, where they share the process

	Seconds           float64 `json:"seconds"`
	Messages          int64   `json:"messages"`
	RowsPerSecondCore float64 `json:"rows_per_second_per_core,omitempty"`
	StartMs           float64 `json:"start_ms,omitempty"` // from the start of the process to ready
	Topics            int     `json:"topics,omitempty"`
	Partitions        int     `json:"partitions,omitempty"`
	RecordBytes       int     `json:"record_bytes,omitempty"`
	Rate              int     `json:"rate,omitempty"` // offered, records a second
	// RateReached is what was offered indeed, if the client or the server could not keep up: records a second. The
	// records that it lacks were never sent, and have no latency here.
	RateReached float64 `json:"rate_reached,omitempty"`

	replayReport
	nexmarkReport
	backlogReport
	diskReport
	columnsReport

	Timeline []float64 `json:"timeline_ms,omitempty"` // worst latency of each slice of the run

	Client      string `json:"client,omitempty"`      // kgo or native
	Connections int    `json:"connections,omitempty"` // publishers, each with a connection of its own
	Durability  string `json:"durability,omitempty"`  // of the topic, if it was asked for

	ServerCPUSeconds float64   `json:"server_cpu_seconds,omitempty"` // of a server of its own, as it says itself
	TimelineP50      []float64 `json:"timeline_p50_ms,omitempty"`
	TimelineP99      []float64 `json:"timeline_p99_ms,omitempty"`
	SliceSeconds     float64   `json:"slice_seconds,omitempty"` // of the timelines
	WarmSeconds      float64   `json:"warm_seconds,omitempty"`  // before the measurement, not part of it

	// What the server did meanwhile, if it runs inside.
	Segments    int64 `json:"segments,omitempty"`     // segment files begun
	WALSegments int64 `json:"wal_segments,omitempty"` // segments of the write-ahead log begun
	Checkpoints int64 `json:"checkpoints,omitempty"`
	Removed     int64 `json:"files_removed,omitempty"` // segment files that retention removed

	PeerMessagesPerSecond float64 `json:"peer_messages_per_second,omitempty"` // franz-go into an in-memory Kafka double

	Many *ManyPartitions `json:"many_partitions,omitempty"`
}

// Options of all benchmarks. Zero values take the defaults that each states.
type Options struct {
	Server string // Kafka address; "" runs a server inside
	HTTP   string
	Dir    string // where the inner server's directory is made; "" is the system's temporary directory

	Size       int
	Rate       int
	Seconds    int
	Partitions int
	Topics     int
	Active     int           // partitions that take records, of Active
	turns      int           // of Active
	rest       time.Duration // of Idle
	Rows       int
	Bytes      int64     // of replay: to fill the topic with
	Cold       bool      // of replay: from the disk
	Out        io.Writer // progress, for people

	// Of nexmark.
	Query     string // its name; "" is q0
	Events    int64
	Format    string // json or arrow; "" is json
	EventRate int64  // events a second of event time

	// Of ingest and latency.
	Client      string // kgo or native; "" is kgo, of replay native
	Durability  string // of the topic; "" is the server's default
	Connections int    // publishers; 0 is 1
	Compare     bool   // measure franz-go into an in-memory Kafka double too
	One         bool   // one record at a time; without Rate

	// Of ingest.
	Columns      bool  // rows in columns; Rate is rows a second, 0: as many as can be
	WithPipeline bool  // with Columns: a pipeline reads meanwhile
	RetainBytes  int64 // with Columns: what the topic keeps

	// Keep leaves on Server what the benchmark has made there.
	Keep bool
}

func (o Options) say(format string, args ...any) {
	if o.Out != nil {
		fmt.Fprintf(o.Out, format+"\n", args...)
	}
}

// A target is the server under test.
type target struct {
	kafka, http string
	dir         string
	srv         *server.Server

	// What was made on a server that is not the benchmark's own, and is removed from it.
	keep            bool
	topics, modules []string
	out             func(format string, args ...any)
}

// open starts or finds the server.
func open(ctx context.Context, o Options) (*target, error) {
	return openWith(ctx, o, replication.NodeOptions{})
}

// openWith is open with options for the node of an inner server. A server elsewhere that does not answer within some
// seconds is a *client.ConnectError.
func openWith(ctx context.Context, o Options, node replication.NodeOptions) (*target, error) {
	if o.Server != "" {
		t := &target{kafka: o.Server, http: o.HTTP, dir: os.TempDir(), keep: o.Keep, out: o.say}
		return t, t.reach(ctx)
	}
	dir, err := os.MkdirTemp(o.Dir, "headrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s, err := server.Start(server.Options{Data: filepath.Join(dir, "data"), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", Node: node})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), os.RemoveAll(dir))
	}
	return &target{kafka: s.KafkaAddr(), http: s.HTTPAddr(), dir: dir, srv: s}, nil
}

// reach asks both fronts for a sign of life.
func (t *target) reach(ctx context.Context) error {
	k, err := client.Kafka(t.kafka)
	if err != nil {
		return err
	}
	defer k.Close()
	if err := client.Reach(ctx, k); err != nil {
		return err
	}
	_, err = t.api().Status(ctx)
	return err
}

func (t *target) close() error {
	if t.srv == nil {
		return t.remove()
	}
	return errors.Join(t.srv.Close(), os.RemoveAll(t.dir))
}

// removeWithin is how long the removal of what was made may take. It does not end with the run: an interrupt is one
// more reason to remove it.
const removeWithin = 20 * time.Second

// remove deletes from somebody else's server what the benchmark has made there, and says what it cannot.
func (t *target) remove() error {
	if t.keep {
		if len(t.topics) > 0 {
			t.out("kept: %s", strings.Join(append(slices.Clone(t.modules), t.topics...), ", "))
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeWithin)
	defer cancel()
	var errs []error
	gone := func(what, name string, err error) {
		var e *client.Error
		if err != nil && !(errors.As(err, &e) && e.Status == http.StatusNotFound) { // it was never made
			errs = append(errs, fmt.Errorf("bench: %s %s stays on the server: %w", what, name, err))
		}
	}
	for _, name := range t.modules {
		gone("module", name, t.api().Delete(ctx, name))
	}
	for _, name := range t.topics {
		gone("topic", name, t.api().DeleteTopic(ctx, name))
	}
	return errors.Join(errs...)
}

func (t *target) api() *client.API { return client.NewAPI(t.http) }

// topic makes a fresh topic.
func (t *target) topic(ctx context.Context, name string, partitions int) (string, error) {
	return t.topicWith(ctx, name, partitions, nil)
}

// topicWith makes a fresh topic with settings.
func (t *target) topicWith(ctx context.Context, name string, partitions int, configs map[string]string) (string, error) {
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	t.topics = append(t.topics, name) // also when the answer does not come
	_, err := t.api().CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: int32(partitions), Configs: configs})
	return name, err
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// cpuSeconds is the processor time of this process.
func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// rss is the resident memory of a process, pid 0: this one.
func rss(pid int) int64 {
	who := "self"
	if pid != 0 {
		who = strconv.Itoa(pid)
	}
	raw, err := os.ReadFile("/proc/" + who + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// latencies fills the latency fields from a histogram of microseconds.
func (r *Report) latencies(h *hdrhistogram.Histogram) {
	at := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1e3 }
	r.MeanMs, r.P50Ms, r.P99Ms, r.P999Ms, r.MaxMs = h.Mean()/1e3, at(50), at(99), at(99.9), float64(h.Max())/1e3
}

func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600_000_000, 3) }

// Text renders a report for people.
func (r *Report) Text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	b.WriteString(r.Name + "\n")
	if r.MessagesPerSecond > 0 {
		line("throughput", "%.0f records/s, %.1f MB/s", r.MessagesPerSecond, r.BytesPerSecond/1e6)
	}
	if r.RowsPerSecondCore > 0 {
		line("per core", "%.0f rows/s", r.RowsPerSecondCore)
	}
	if r.MaxMs > 0 {
		line(r.latencyOf(), "mean %.3f  p50 %.3f  p99 %.3f  p99.9 %.3f  max %.3f ms", r.MeanMs, r.P50Ms, r.P99Ms, r.P999Ms, r.MaxMs)
	}
	if r.RateReached > 0 {
		line("rate not reached", "%.0f of %d records/s: the records that were not sent have no latency", r.RateReached, r.Rate)
	}
	if r.Name == "recovery" {
		line("acknowledged", "%d records before the kill, all there after it", r.Messages)
	}
	if r.StartMs > 0 {
		line("ready after", "%.0f ms", r.StartMs)
	}
	r.nexmarkReport.text(line)
	r.columnsReport.text(line)
	r.replayText(line)
	r.backlogText(line)
	if r.DiskSyncMs > 0 {
		line("disk sync", "%.3f ms (64 KiB, median)", r.DiskSyncMs)
	}
	r.diskReport.text(line)
	if r.FreshMemoryBytesPerSecond > 0 {
		line("fresh memory", "%.1f GB/s (the first touch of 64 MiB)", r.FreshMemoryBytesPerSecond/1e9)
	}
	if r.RSSBytes > 0 {
		line("resident memory", "%.0f MiB", float64(r.RSSBytes)/(1<<20))
	}
	switch {
	case r.ServerCPUSeconds > 0:
		line("processor time", "%.2f s client, %.2f s server, in %.2f s", r.CPUSeconds, r.ServerCPUSeconds, r.Seconds)
	case r.CPUSeconds > 0:
		line("processor time", "%.2f s in %.2f s, client and server", r.CPUSeconds, r.Seconds)
	}
	if r.PeerMessagesPerSecond > 0 {
		line("peer", "%.0f records/s: franz-go into an in-memory Kafka double; this is %.2f times as much", r.PeerMessagesPerSecond, r.MessagesPerSecond/r.PeerMessagesPerSecond)
	}
	if r.Name == "latency" {
		line("measured", "%d records; the %.0f s before, to warm up, are left out", r.Messages, r.WarmSeconds)
	}
	if r.Segments+r.WALSegments+r.Checkpoints+r.Removed > 0 {
		line("meanwhile", "%d segment rolls, %d log segments, %d checkpoints, %d segment files removed by retention", r.Segments, r.WALSegments, r.Checkpoints, r.Removed)
	}
	r.Many.text(&b)
	b.WriteString(r.plot())
	return b.String()
}
