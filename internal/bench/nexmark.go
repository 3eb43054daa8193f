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
	line("query", "%s over %d events", r.Query, r.Events)
	line("throughput", "%.0f events/s, %.0f events/s and core", r.EventsPerSecond, r.EventsPerSecondCore)
	line("output", "%d rows, SHA-256 %s", r.OutputRows, r.OutputSHA256)
	line("before", "%.0f events/s made and written", r.FillEventsPerSecond)
}

// Nexmark measures one query of Nexmark, seed 1, over events that lie in the log: from the moment the module is applied until
// the pipeline has read the declared end. Defaults: q0 over 1,000,000 events of 10,000 a second of event time in 2 partitions.
// The result is written to a derived topic like any other.
func Nexmark(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("nexmark", false); err != nil {
		return nil, err
	}
	o.Events, o.Partitions = cmp.Or(o.Events, 1_000_000), cmp.Or(o.Partitions, 2)
	o.EventRate, o.Query = cmp.Or(o.EventRate, 10_000), cmp.Or(o.Query, "q0")
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
	r.Query, r.Events = o.Query, o.Events
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-nexmark", o.Partitions)
	if err != nil {
		return nil, err
	}
	o.say("nexmark: %d events into %d partition(s)", o.Events, o.Partitions)
	began := time.Now()
	if err := fillNexmark(ctx, t, topic, o); err != nil {
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
	name := strings.ReplaceAll(topic, "-", "_")
	text = strings.Replace(text, "topic nexmark {", fmt.Sprintf("topic nexmark as %q {", topic), 1)
	text = strings.Replace(text, "with format json,", fmt.Sprintf("with format json, partitions %d,", o.Partitions), 1)
	text = strings.Replace(text, " "+o.Query+" = ", fmt.Sprintf(" %s as %q = ", o.Query, topic+"."+o.Query), 1)
	cpu, server, began := cpuSeconds(), t.serverCPU(), time.Now()
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
	r.OutputRows, r.OutputSHA256, err = hashOutput(ctx, t, topic+"."+o.Query, strings.Contains(text, "table "+o.Query))
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
func fillNexmark(ctx context.Context, t *target, topic string, o Options) error {
	g, err := nexmark.New(nexmark.Config{Rate: o.EventRate}, nil)
	if err != nil {
		return err
	}
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
