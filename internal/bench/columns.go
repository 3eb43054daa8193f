package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/client"
)

// columnsReport is what ingest --columns adds to a report.
type columnsReport struct {
	RowsPerSecond         float64 `json:"rows_per_second,omitempty"`
	RSSPeakBytes          int64   `json:"rss_peak_bytes,omitempty"` // the largest of once a second
	PipelineRowsPerSecond float64 `json:"pipeline_rows_per_second,omitempty"`
	PipelineKeptPerSecond float64 `json:"pipeline_aggregated_rows_per_second,omitempty"`
	PipelineLagRows       int64   `json:"pipeline_lag_rows,omitempty"`    // when the last row was acknowledged
	PipelineEndSeconds    float64 `json:"pipeline_end_seconds,omitempty"` // from then until it had read all
}

func (r *columnsReport) text(line func(name, format string, args ...any)) {
	if r.RSSPeakBytes > 0 {
		line("resident at most", "%.0f MiB", float64(r.RSSPeakBytes)/(1<<20))
	}
	if r.PipelineRowsPerSecond > 0 {
		line("pipeline", "%.0f rows/s read, %.0f rows/s aggregated, %d rows behind at the end, all read %.2f s later",
			r.PipelineRowsPerSecond, r.PipelineKeptPerSecond, r.PipelineLagRows, r.PipelineEndSeconds)
	}
}

const columnsModule = `topic %[1]s as %[2]q {
  ts: time, user: string, amount: float64, country: string, qty: int32,
} with format arrow, partitions %[3]d, time ts lag 1s
`

// columnsPipeline keeps a tenth of the rows and aggregates it.
const columnsPipeline = `
topic %[1]s_sums = from %[1]s
  |> where amount >= 900
  |> agg n = count(), total = sum(qty), top = max(amount)
     by country
     window tumble(1s)
`

// columnsRowBytes is a row as its columns hold it: 8 + (4+13) + 8 + (4+2) + 4.
const columnsRowBytes = 43

// Columns saturates the server with rows in columns, or offers o.Rate rows a second. Defaults: 10 s, 1 partition, a topic
// that keeps 5 GiB. The first second is not counted.
func columns(ctx context.Context, o Options) (rep *Report, err error) {
	o.Seconds, o.Partitions = cmp.Or(o.Seconds, 10), cmp.Or(o.Partitions, 1)
	o.RetainBytes, o.Connections = cmp.Or(o.RetainBytes, 5<<30), cmp.Or(o.Connections, 1)
	r := &Report{
		Name: "ingest", RecordBytes: columnsRowBytes, Partitions: o.Partitions, Client: ClientNative, Connections: o.Connections,
		Durability: o.Durability, Rate: o.Rate, WarmSeconds: 1,
	}
	t, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	if o.Server == "" {
		if r.DiskBytesPerSecond, err = diskStream(t.dir); err != nil {
			return nil, err
		}
	}
	configs := map[string]string{"retention.bytes": strconv.FormatInt(max(o.RetainBytes/int64(o.Partitions), 1<<20), 10)}
	if o.Durability != "" {
		configs["durability"] = o.Durability
	}
	topic, err := t.topicWith(ctx, "bench-columns", o.Partitions, configs)
	if err != nil {
		return nil, err
	}
	ident := "columns" + strconv.FormatInt(time.Now().UnixNano(), 36)
	text := fmt.Sprintf(columnsModule, ident, topic, o.Partitions)
	if o.WithPipeline {
		text += fmt.Sprintf(columnsPipeline, ident)
	}
	t.modules = append(t.modules, ident)
	if _, err := t.api().Apply(ctx, ident, text, client.ApplyOptions{}); err != nil {
		return nil, err
	}
	o.say("ingest: rows of %d B in columns from %d client(s) into %d partition(s) for %d s", columnsRowBytes, o.Connections, o.Partitions, o.Seconds)
	if err := sendColumns(ctx, t, topic, ident, o, r); err != nil {
		return nil, err
	}
	r.RSSBytes = t.rss()
	return r, nil
}

// sendColumns sends for a second and then for o.Seconds, which it measures.
func sendColumns(ctx context.Context, t *target, topic, ident string, o Options, r *Report) error {
	var acked, failed atomic.Int64
	run, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	errs := make([]error, o.Connections)
	var ended atomic.Bool
	var producers []*client.Producer
	defer func() {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		for _, p := range producers {
			_ = p.Close(gone)
		}
	}()
	done := func(a client.FrameAck) {
		if a.Err != nil {
			failed.Add(int64(a.Rows))
			return
		}
		acked.Add(int64(a.Rows))
	}
	schema, err := client.ColumnsSchema(columnsOf...)
	if err != nil {
		return err
	}
	for i := range o.Connections {
		p, err := client.NewProducer(t.kafka, client.ProducerOptions{})
		if err != nil {
			return err
		}
		producers = append(producers, p)
		in, err := p.Ingest(ctx, topic, schema, client.IngestOptions{FrameRows: columnsFrame})
		if err != nil {
			return err
		}
		rows := newRowSource(uint64(i))
		rate := float64(o.Rate) / float64(o.Connections)
		wg.Go(func() {
			began, sent := time.Now(), 0.0
			for !ended.Load() {
				if rate > 0 {
					if ahead := time.Duration(sent/rate*1e9) - time.Since(began); ahead > 0 {
						wait(run, ahead)
					}
				}
				if errs[i] = rows.send(run, in, done); errs[i] != nil {
					return
				}
				sent += columnsFrame
			}
		})
	}
	wait(ctx, time.Second)
	began, from, cpu, server := time.Now(), acked.Load(), cpuSeconds(), t.serverCPU()
	for time.Since(began) < time.Duration(o.Seconds)*time.Second && ctx.Err() == nil {
		wait(ctx, min(time.Second, time.Duration(o.Seconds)*time.Second-time.Since(began)))
		r.RSSPeakBytes = max(r.RSSPeakBytes, t.rss())
	}
	took, n := time.Since(began), acked.Load()-from
	r.CPUSeconds = cpuSeconds() - cpu
	if server > 0 {
		r.ServerCPUSeconds = t.serverCPU() - server
	}
	ended.Store(true)
	if ctx.Err() != nil {
		stop()
	}
	wg.Wait()
	for i, p := range producers {
		if ctx.Err() == nil {
			errs[i] = errors.Join(errs[i], p.Flush(ctx))
		}
		if err := p.Stats().Err; err != nil {
			errs[i] = errors.Join(errs[i], err)
		}
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	if failed.Load() > 0 {
		return fmt.Errorf("bench: %d rows were refused", failed.Load())
	}
	r.Seconds, r.Messages = took.Seconds(), n
	r.RowsPerSecond = float64(n) / took.Seconds()
	r.MessagesPerSecond = r.RowsPerSecond
	r.BytesPerSecond = r.RowsPerSecond * columnsRowBytes
	if o.WithPipeline {
		return endPipeline(ctx, t, ident+"/"+ident+"_sums", acked.Load(), time.Since(began)+time.Second, r)
	}
	return nil
}

// endPipeline waits until the pipeline has read all rows.
func endPipeline(ctx context.Context, t *target, name string, rows int64, ran time.Duration, r *Report) error {
	began := time.Now()
	for first := true; ; first = false {
		p, err := t.api().Pipeline(ctx, name)
		if err != nil {
			return err
		}
		if p.State != "running" && p.State != "starting" {
			return fmt.Errorf("bench: the pipeline is %s: %s", p.State, p.Reason)
		}
		if first {
			r.PipelineLagRows = rows - p.Counters.In
			r.PipelineRowsPerSecond = float64(p.Counters.In) / ran.Seconds()
			for _, s := range p.Counters.Stages {
				if s.Stage == "where" {
					r.PipelineKeptPerSecond = float64(s.Out) / ran.Seconds()
				}
			}
		}
		if p.Counters.In+p.Counters.Skipped >= rows {
			if p.Counters.Skipped+p.Counters.Invalid+p.Counters.Failed > 0 {
				return fmt.Errorf("bench: of %d rows the pipeline passed over %d; %d were invalid, %d failed", rows, p.Counters.Skipped, p.Counters.Invalid, p.Counters.Failed)
			}
			r.PipelineEndSeconds = time.Since(began).Seconds()
			return nil
		}
		wait(ctx, 5*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
