package bench

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/nexmark"
)

// nexmarkReport is what Nexmark measures.
type nexmarkReport struct {
	Query               string  `json:"query,omitempty"`
	Format              string  `json:"format,omitempty"` // of the topic of events, and of what is no table
	Events              int64   `json:"events,omitempty"`
	EventsPerSecond     float64 `json:"events_per_second,omitempty"`
	EventsPerSecondCore float64 `json:"events_per_second_per_core,omitempty"`
	OutputRows          int64   `json:"output_rows,omitempty"`
	// OutputSHA256 is the hash of the derived values as lines in the order of their bytes, of a table of the latest value
	// of each key. It depends on the events alone.
	OutputSHA256 string `json:"output_sha256,omitempty"`
	// FillEventsPerSecond is how fast the events were made and written before the clock started.
	FillEventsPerSecond float64 `json:"fill_events_per_second,omitempty"`
}

func (r *nexmarkReport) text(line func(name, format string, args ...any)) {
	if r.Events == 0 {
		return
	}
	line("query", "%s over %d events, %s", r.Query, r.Events, r.Format)
	line("throughput", "%.0f events/s, %.0f events/s and core", r.EventsPerSecond, r.EventsPerSecondCore)
	line("output", "%d rows, SHA-256 %s", r.OutputRows, r.OutputSHA256)
	line("before", "%.0f events/s made and written", r.FillEventsPerSecond)
}

// Nexmark measures one query of Nexmark, seed 1, over events that lie in the log: from the moment the module is applied until
// the pipeline has read the declared end. Defaults: q0 over 1,000,000 events of 10,000 a second of event time in 2 partitions, as
// JSON. The result is written to a derived topic like any other.
func Nexmark(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("nexmark", false); err != nil {
		return nil, err
	}
	o.Events, o.Partitions = cmp.Or(o.Events, 1_000_000), cmp.Or(o.Partitions, 2)
	o.EventRate, o.Query, o.Format = cmp.Or(o.EventRate, 10_000), cmp.Or(o.Query, "q0"), cmp.Or(o.Format, "json")
	if o.Format != "json" && o.Format != "arrow" {
		return nil, optionErrorf("--format %s: want json or arrow", o.Format)
	}
	text, err := nexmark.Module(o.Query)
	if err != nil {
		return nil, optionErrorf("--query %s: want one of %s", o.Query, nexmark.Names())
	}
	t, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "nexmark", Partitions: o.Partitions}
	r.Query, r.Events, r.Format = o.Query, o.Events, o.Format
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-nexmark", o.Partitions)
	if err != nil {
		return nil, err
	}
	name := strings.ReplaceAll(topic, "-", "_")
	text = strings.Replace(text, "topic nexmark {", fmt.Sprintf("topic nexmark as %q {", topic), 1)
	text = strings.Replace(text, "with format json,", fmt.Sprintf("with format %s, partitions %d,", o.Format, o.Partitions), 1)
	o.say("nexmark: %d events into %d partition(s)", o.Events, o.Partitions)
	g, err := nexmark.New(nexmark.Config{Rate: o.EventRate}, nil)
	if err != nil {
		return nil, err
	}
	fill := fillNexmark
	if o.Format == "arrow" { // the topic must have its columns before rows come
		source, _, _ := strings.Cut(text, "stream person")
		t.modules = append(t.modules, name)
		if _, err := t.api().Apply(ctx, name, source, client.ApplyOptions{}); err != nil {
			return nil, err
		}
		fill = fillNexmarkColumns
	}
	began := time.Now()
	if err := fill(ctx, t, topic, g, o); err != nil {
		return nil, err
	}
	r.FillEventsPerSecond = float64(o.Events) / time.Since(began).Seconds()
	if err := t.api().EndTopic(ctx, topic); err != nil {
		return nil, err
	}
	if strings.Contains(text, "table side ") {
		side, err := fillSide(ctx, t)
		if err != nil {
			return nil, err
		}
		text = strings.Replace(text, "table side {", fmt.Sprintf("table side as %q {", side), 1)
	}
	text = strings.Replace(text, " "+o.Query+" = ", fmt.Sprintf(" %s as %q = ", o.Query, topic+"."+o.Query), 1)
	table := strings.Contains(text, "table "+o.Query)
	if o.Format == "arrow" && !table {
		text = strings.TrimRight(text, "\n") + " with format arrow\n"
	}
	cpu, server := cpuSeconds(), t.serverCPU()
	began = time.Now()
	t.modules = append(t.modules, name)
	if _, err := t.api().Apply(ctx, name, text, client.ApplyOptions{}); err != nil {
		return nil, err
	}
	if err := t.untilEnd(ctx, name+"/"+o.Query, o.Events); err != nil {
		return nil, err
	}
	took := time.Since(began)
	r.CPUSeconds, r.Seconds = cpuSeconds()-cpu, took.Seconds()
	worked := r.CPUSeconds
	if t.srv == nil { // this process has only asked how far it is
		r.ServerCPUSeconds = t.serverCPU() - server
		worked = r.ServerCPUSeconds
	}
	r.EventsPerSecond = float64(o.Events) / took.Seconds()
	if worked > 0 {
		r.EventsPerSecondCore = float64(o.Events) / worked
	}
	r.RSSBytes = t.rss()
	r.OutputRows, r.OutputSHA256, err = hashOutput(ctx, t, topic+"."+o.Query, table)
	return r, err
}

// untilEnd waits until a pipeline has read the declared end of its source.
func (t *target) untilEnd(ctx context.Context, name string, rows int64) error {
	for {
		p, err := t.api().Pipeline(ctx, name)
		if err != nil {
			return err
		}
		if p.Watermark == "+inf" {
			if p.Counters.In != rows || p.Counters.Failed+p.Counters.Invalid > 0 {
				return fmt.Errorf("bench: the pipeline read %d of %d rows, %d failed", p.Counters.In, rows, p.Counters.Failed+p.Counters.Invalid)
			}
			return nil
		}
		if p.State != "running" && p.State != "starting" {
			return fmt.Errorf("bench: the pipeline is %s: %s", p.State, p.Reason)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// fillNexmark writes event k to partition k mod n, so that each partition is in the order of time.
func fillNexmark(ctx context.Context, t *target, topic string, g *nexmark.Generator, o Options) (err error) {
	parts := make([]*client.Publisher, o.Partitions)
	for i := range parts {
		if parts[i], err = client.NewPublisher(t.kafka, topic, int32(i), client.ProducerOptions{}); err != nil {
			return err
		}
		defer parts[i].Close()
	}
	var e nexmark.Event
	var value []byte
	for k := range o.Events {
		g.At(k, &e)
		value = nexmark.AppendJSON(value[:0], &e)
		if err := parts[int(k)%len(parts)].Publish(ctx, client.Message{Value: value}); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if _, err := p.Flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// fillSide writes the table of q13: the keys 0 to 9999, each with its text as value.
func fillSide(ctx context.Context, t *target) (topic string, err error) {
	if topic, err = t.topic(ctx, "bench-side", 1); err != nil {
		return "", err
	}
	p, err := client.NewPublisher(t.kafka, topic, 0, client.ProducerOptions{})
	if err != nil {
		return "", err
	}
	defer p.Close()
	for k := range 10_000 {
		if err := p.Publish(ctx, client.Message{Key: fmt.Append(nil, k), Value: fmt.Appendf(nil, "%d,%d", k, k)}); err != nil {
			return "", err
		}
	}
	_, err = p.Flush(ctx)
	return topic, err
}

// hashOutput reads a derived topic back.
func hashOutput(ctx context.Context, t *target, topic string, table bool) (rows int64, sum string, err error) {
	var lines []string
	latest := map[string]string{}
	err = client.ReadAll(ctx, t.kafka, topic, func(r *kgo.Record) error {
		switch {
		case !table:
			lines = append(lines, string(r.Value))
		case r.Value == nil:
			delete(latest, string(r.Key))
		default:
			latest[string(r.Key)] = string(r.Value)
		}
		return nil
	})
	if err != nil {
		return 0, "", err
	}
	for _, v := range latest {
		lines = append(lines, v)
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, l := range lines {
		_, _ = h.Write([]byte(l + "\n")) // a hash takes everything
	}
	return int64(len(lines)), hex.EncodeToString(h.Sum(nil)), nil
}
