package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

// ManyPartitions is what the benchmark of many partitions reports beside the common figures.
type ManyPartitions struct {
	Runs   []ActiveRun   `json:"runs,omitempty"`
	Ratios []ActiveRatio `json:"ratios,omitempty"`
	Idle   *IdleReport   `json:"idle,omitempty"`
}

// An IdleReport is what partitions cost that are there and do nothing. Memory is the server's resident memory.
type IdleReport struct {
	Topics          int     `json:"topics"`
	TopicPartitions int     `json:"topic_partitions"`
	CreateMs        float64 `json:"create_ms"`
	CreatedRSS      int64   `json:"created_rss_bytes"`  // after they were made
	StopMs          float64 `json:"stop_ms"`            // a clean stop
	StartMs         float64 `json:"start_ms"`           // after it: from the start of the process to ready
	IdleRSS         int64   `json:"idle_rss_bytes"`     // a few seconds later
	IdleCPU         float64 `json:"idle_cpu"`           // cores, over some seconds
	MetadataMs      float64 `json:"metadata_ms"`        // a client asks for all topics
	MetadataRSS     int64   `json:"metadata_rss_bytes"` // after ten of these
	KillStartMs     float64 `json:"kill_start_ms"`      // after kill -9
	KillRSS         int64   `json:"kill_rss_bytes"`
}

// Idle measures what mostly idle partitions cost: making them, memory, processor time at rest, what a client that asks
// for all topics waits, and the start after a clean stop and after kill -9. Defaults: 100 topics of 1,000 partitions.
func Idle(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("partitions", true); err != nil {
		return nil, err
	}
	o.Topics, o.Partitions = cmp.Or(o.Topics, 100), cmp.Or(o.Partitions, 1000)
	rest := cmp.Or(o.rest, 3*time.Second)
	dir, err := os.MkdirTemp(o.Dir, "headrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data := filepath.Join(dir, "data")
	x := &IdleReport{Topics: o.Topics, TopicPartitions: o.Partitions}
	r := &Report{Name: "partitions", Topics: o.Topics, Partitions: o.Topics * o.Partitions, Many: &ManyPartitions{Idle: x}}
	if err := r.surroundings(dir); err != nil {
		return nil, err
	}
	p, err := startProcess(ctx, data)
	if err != nil {
		return nil, err
	}
	o.say("partitions: %d topics of %d partitions", o.Topics, o.Partitions)
	began := time.Now()
	if err := createAll(ctx, p.kafka, o); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	x.CreateMs, x.CreatedRSS = ms(time.Since(began)), rss(p.cmd.Process.Pid)
	o.say("created in %.1f s", x.CreateMs/1e3)
	stopping := time.Now()
	if err := p.stop(); err != nil {
		return nil, err
	}
	x.StopMs = ms(time.Since(stopping))
	if p, err = startProcess(ctx, data); err != nil {
		return nil, err
	}
	x.StartMs = ms(p.ready)
	time.Sleep(rest)
	cpu, at := processCPU(p.cmd.Process.Pid), time.Now()
	time.Sleep(2 * rest)
	x.IdleCPU, x.IdleRSS = (processCPU(p.cmd.Process.Pid)-cpu)/time.Since(at).Seconds(), rss(p.cmd.Process.Pid)
	if x.MetadataMs, err = askMetadata(ctx, p.kafka, o.Topics); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	x.MetadataRSS = rss(p.cmd.Process.Pid)
	if err := p.kill(); err != nil {
		return nil, err
	}
	if p, err = startProcess(ctx, data); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	x.KillStartMs = ms(p.ready)
	time.Sleep(rest)
	x.KillRSS = rss(p.cmd.Process.Pid)
	r.StartMs, r.RSSBytes, r.Seconds = x.StartMs, x.IdleRSS, time.Since(began).Seconds()
	return r, nil
}

// createAll creates topics, many in a request.
func createAll(ctx context.Context, seeds string, o Options) error {
	k, err := client.Kafka(seeds)
	if err != nil {
		return err
	}
	defer k.Close()
	perRequest := max(1, min(500, 5000/o.Partitions))
	for from := 0; from < o.Topics; from += perRequest {
		var names []string
		for i := from; i < min(from+perRequest, o.Topics); i++ {
			names = append(names, fmt.Sprintf("bench-topic-%06d", i))
		}
		if err := client.CreateTopics(ctx, k, int32(o.Partitions), names...); err != nil {
			return fmt.Errorf("bench: create topics: %w", err)
		}
	}
	return nil
}

// askMetadata is how long a client waits that asks for all topics, ms: the median of ten.
func askMetadata(ctx context.Context, seeds string, topics int) (float64, error) {
	k, err := client.Kafka(seeds, kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return 0, err
	}
	defer k.Close()
	var took []float64
	for range 10 {
		began := time.Now()
		n, err := client.CountTopics(ctx, k)
		if err != nil {
			return 0, fmt.Errorf("bench: metadata: %w", err)
		}
		if n != topics {
			return 0, fmt.Errorf("bench: metadata names %d topics of %d", n, topics)
		}
		took = append(took, ms(time.Since(began)))
	}
	return medianOf(took), nil
}

func (m *ManyPartitions) text(b *strings.Builder) {
	if m == nil {
		return
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "%-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	for _, r := range m.Runs {
		line(fmt.Sprintf("%d x %d B", r.Partitions, r.RecordBytes), "%.0f records/s, %.1f MB/s, server %.2f and client %.2f ms of processor time a MiB, server %.0f MiB", r.MessagesPerSecond, r.BytesPerSecond/1e6, r.ServerCPUMs, r.ClientCPUMs, mib(r.RSSBytes))
	}
	for _, r := range m.Ratios {
		line(fmt.Sprintf("%d to %d, %d B", r.Many, r.Few, r.RecordBytes), "%.1f %% of the throughput; per server core %.1f %%", 100*r.Throughput, 100*r.ServerCPU)
	}
	if x := m.Idle; x != nil {
		line("idle partitions", "%d topics of %d", x.Topics, x.TopicPartitions)
		line("created", "in %.1f s, then %.0f MiB", x.CreateMs/1e3, mib(x.CreatedRSS))
		line("stopped", "in %.1f s", x.StopMs/1e3)
		line("started", "in %.2f s; idle %.0f MiB, %.3f cores", x.StartMs/1e3, mib(x.IdleRSS), x.IdleCPU)
		line("metadata of all", "%.1f ms; after ten %.0f MiB", x.MetadataMs, mib(x.MetadataRSS))
		line("started after kill -9", "in %.2f s; %.0f MiB", x.KillStartMs/1e3, mib(x.KillRSS))
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }
