// Package demo runs the main job on real data, start to end, in one process: a server on free ports in
// a temporary directory, modules, records, derived topics, a view. It checks every answer against
// computed ones and counts the checks.
package demo

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/examples"
	"github.com/headrace/headrace/server"
)

// Options of Run.
type Options struct {
	Out  io.Writer
	Stay bool   // keep the server running until ctx ends
	Dir  string // data directory; "" is a temporary one, removed at the end
	// Seed shuffles the second part; 0 is 1.
	Seed uint64
	// Parts runs only these of flights, shuffled, retail and live; none is all.
	Parts []string
}

// ErrChecks is returned when an answer was not the expected one.
var ErrChecks = errors.New("demo: checks failed")

type demo struct {
	Options
	ctx    context.Context
	srv    *server.Server
	api    *client.API
	checks int
	failed int
}

// Run runs the demo. Its last line is "demo ok: N checks passed".
func Run(ctx context.Context, o Options) (err error) {
	d := &demo{Options: o, ctx: ctx}
	if d.Seed == 0 {
		d.Seed = 1
	}
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "headrace-demo-"); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if d.srv, err = server.Start(server.Options{Data: filepath.Join(dir, "data"), KafkaAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0"}); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, d.srv.Close()) }()
	d.api = client.NewAPI(d.srv.HTTPAddr())
	d.say("a node of its own: kafka %s, http http://%s\n", d.srv.KafkaAddr(), d.srv.HTTPAddr())
	for _, part := range []struct {
		name string
		run  func() error
	}{{"flights", d.flights}, {"shuffled", d.shuffled}, {"retail", d.retail}, {"live", d.live}} {
		if len(o.Parts) > 0 && !slices.Contains(o.Parts, part.name) {
			continue
		}
		if err := part.run(); err != nil {
			return fmt.Errorf("demo: %s: %w", part.name, err)
		}
	}
	if o.Stay {
		d.next()
	} else {
		d.say("\n`make demo STAY=1` keeps the node, with commands to try")
	}
	if d.failed > 0 {
		fmt.Fprintf(d.Out, "demo failed: %d of %d checks\n", d.failed, d.checks)
		return ErrChecks
	}
	if o.Stay {
		fmt.Fprintf(d.Out, "%d checks passed; Ctrl-C ends the node\n", d.checks)
		<-ctx.Done()
	}
	fmt.Fprintf(d.Out, "demo ok: %d checks passed\n", d.checks)
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

func (d *demo) check(ok bool, format string, args ...any) {
	d.checks++
	mark := "ok  "
	if !ok {
		d.failed++
		mark = "FAIL"
	}
	fmt.Fprintf(d.Out, "  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// apply applies an example module and prints it.
func (d *demo) apply(file string, show bool) error {
	text, err := examples.Files.ReadFile(file)
	if err != nil {
		return err
	}
	if show {
		d.say("%s:\n\n%s\n", file, strings.TrimRight(indent(string(text)), "\n"))
	}
	r, err := d.api.Apply(d.ctx, strings.TrimSuffix(path.Base(file), ".hr"), string(text), client.ApplyOptions{File: file})
	if err != nil {
		return err
	}
	for _, c := range r.Plan {
		d.say("applied %s: %s", c.Pipeline, c.Why)
	}
	return nil
}

func indent(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// rows reads a gzipped CSV of the examples.
func rows(file string) (header []string, data [][]string, err error) {
	raw, err := examples.Files.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	in := io.Reader(bytes.NewReader(raw))
	if strings.HasSuffix(file, ".gz") {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		in = bufio.NewReaderSize(z, 1<<20)
	}
	all, err := csv.NewReader(in).ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return all[0], all[1:], nil
}

// ingest sends rows to a topic, shows what the pipelines make of them meanwhile, and declares the end.
func (d *demo) ingest(topic string, header []string, data [][]string, watch func() string) error {
	t, err := d.api.Topic(d.ctx, topic)
	if err != nil {
		return err
	}
	schema, err := client.ParseSchema(t.Schema)
	if err != nil {
		return err
	}
	enc, err := client.NewRowEncoder(schema, header)
	if err != nil {
		return err
	}
	p, err := client.NewPublisher(d.srv.KafkaAddr(), topic, client.AnyPartition, client.ProducerOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	began, shown := time.Now(), time.Now()
	for i, row := range data {
		key, value := enc.Encode(row)
		if err := p.Publish(d.ctx, client.Message{Key: key, Value: value}); err != nil {
			return err
		}
		if i%1000 == 999 && time.Since(shown) > 250*time.Millisecond {
			shown = time.Now()
			d.say("  %9s rows in   %s", commas(int64(i+1)), watch())
		}
	}
	s, err := p.Flush(d.ctx)
	if err != nil {
		return err
	}
	took := time.Since(began)
	d.say("  %9s rows in   %s", commas(s.Acknowledged), watch())
	d.say("%s rows, %s, in %.2f s: %s rows/s, each durable when acknowledged",
		commas(s.Acknowledged), size(s.Bytes), took.Seconds(), commas(int64(float64(s.Acknowledged)/took.Seconds())))
	if err := d.api.EndTopic(d.ctx, topic); err != nil {
		return err
	}
	d.check(s.Acknowledged == int64(len(data)), "rows in: %s acknowledged, %s in the file", commas(s.Acknowledged), commas(int64(len(data))))
	return nil
}

// settle waits until a pipeline has read its source to the declared end.
func (d *demo) settle(pipeline string) (client.Pipeline, error) {
	deadline := time.Now().Add(60 * time.Second)
	for {
		p, err := d.api.Pipeline(d.ctx, pipeline)
		if err != nil {
			return p, err
		}
		if p.Watermark == "+inf" && p.Lag == 0 {
			return p, nil
		}
		if p.State != "running" && p.State != "starting" || time.Now().After(deadline) {
			return p, fmt.Errorf("pipeline %s is %s (%s) at watermark %s with %d records to go", pipeline, p.State, p.Reason, p.Watermark, p.Lag)
		}
		select {
		case <-d.ctx.Done():
			return p, d.ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// read consumes a topic to its present end.
func (d *demo) read(topic string, each func(*kgo.Record) error) error {
	return client.ReadAll(d.ctx, d.srv.KafkaAddr(), topic, each)
}

// flights: traffic and delay per hub and hour, and a view of the badly delayed.
func (d *demo) flights() error {
	if err := d.apply("flights/flights.hr", true); err != nil {
		return err
	}
	header, data, err := rows("data/flights_2001-01-01_14.csv.gz")
	if err != nil {
		return err
	}
	watch := func() string {
		out := "?"
		if p, err := d.api.Pipeline(d.ctx, "flights/hub_hours"); err == nil {
			out = fmt.Sprintf("%s windows closed, event time %s", commas(p.Counters.Out), p.Watermark)
		}
		return "hub_hours: " + out
	}
	if err := d.ingest("flights", header, data, watch); err != nil {
		return err
	}
	p, err := d.settle("flights/hub_hours")
	if err != nil {
		return err
	}
	d.check(p.Counters.In == int64(len(data)), "pipeline flights/hub_hours read %s rows", commas(p.Counters.In))
	if err := d.hubs(); err != nil {
		return err
	}
	want, err := expectedCount("data/expected/flights.json", "delay_ge_60")
	if err != nil {
		return err
	}
	n, wrong := 0, 0
	err = d.read("delayed", func(r *kgo.Record) error {
		var row struct{ Delay int64 }
		if err := json.Unmarshal(r.Value, &row); err != nil {
			return err
		}
		n++
		if row.Delay < 60 {
			wrong++
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.check(int64(n) == want && wrong == 0, "view delayed: %s rows with delay >= 60, %s expected", commas(int64(n)), commas(want))
	return nil
}

func expectedCount(file, field string) (int64, error) {
	raw, err := examples.Files.ReadFile(file)
	if err != nil {
		return 0, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &all); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return strconv.ParseInt(string(all[field]), 10, 64)
}

type hubHour struct {
	Origin      string    `json:"origin"`
	WindowStart time.Time `json:"window_start"`
	N           int64     `json:"n"`
	SumDelay    int64     `json:"sum_delay"`
	MaxDelay    int64     `json:"max_delay"`
	MeanDelay   float64   `json:"mean_delay"`
}

// hubs compares the hub table row by row.
func (d *demo) hubs() error {
	header, expected, err := rows("data/expected/flights_tumble1h_hubs.csv")
	if err != nil {
		return err
	}
	col := index(header)
	got := map[string]hubHour{}
	var some []string
	err = d.read("hub_hours", func(r *kgo.Record) error {
		var h hubHour
		if err := json.Unmarshal(r.Value, &h); err != nil {
			return fmt.Errorf("hub_hours %d/%d: %w", r.Partition, r.Offset, err)
		}
		k := h.WindowStart.Format(time.RFC3339) + " " + h.Origin
		if _, twice := got[k]; twice {
			return fmt.Errorf("hub_hours has %s twice", k)
		}
		got[k] = h
		if len(some) < 3 && h.Origin == "ORD" && h.N > 40 {
			some = append(some, string(r.Value))
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.say("some of hub_hours:\n%s", indent(strings.Join(some, "\n")))
	equal, mean := 0, 0
	for _, e := range expected {
		h, ok := got[e[col["window_start"]]+" "+e[col["origin"]]]
		if ok && same(h.N, e[col["n"]]) && same(h.SumDelay, e[col["sum_delay"]]) && same(h.MaxDelay, e[col["max_delay"]]) {
			equal++
		}
		if ok && h.MeanDelay == float64(h.SumDelay)/float64(h.N) {
			mean++
		}
	}
	d.check(len(got) == len(expected), "hub_hours: %s rows, %s expected", commas(int64(len(got))), commas(int64(len(expected))))
	d.check(equal == len(expected), "hub_hours: %d of %d rows equal in n, sum_delay and max_delay", equal, len(expected))
	d.check(mean == len(expected), "hub_hours: %d of %d means equal sum / n", mean, len(expected))
	return nil
}

func index(header []string) map[string]int {
	m := map[string]int{}
	for i, h := range header {
		m[h] = i
	}
	return m
}

func same(got int64, want string) bool { return strconv.FormatInt(got, 10) == want }

// shuffled: the same rows out of order. Every row is either in the table or late, and the late ones are
// those that a naive count over the source topic finds.
func (d *demo) shuffled() error {
	d.say("\nthe same flights, shuffled inside blocks of 2 h, with a lag of 30 m")
	if err := d.apply("flights/shuffled.hr", false); err != nil {
		return err
	}
	header, data, err := rows("data/flights_2001-01-01_14.csv.gz")
	if err != nil {
		return err
	}
	if err := shuffle(data, index(header)["date"], 2*time.Hour, d.Seed); err != nil {
		return err
	}
	watch := func() string {
		p, err := d.api.Pipeline(d.ctx, "shuffled/origin_hours")
		if err != nil {
			return "?"
		}
		return fmt.Sprintf("origin_hours: %s windows closed, %s rows late", commas(p.Counters.Out), commas(p.Counters.Late))
	}
	if err := d.ingest("flights_shuffled", header, data, watch); err != nil {
		return err
	}
	p, err := d.settle("shuffled/origin_hours")
	if err != nil {
		return err
	}
	naive, err := d.naiveLate("flights_shuffled", time.Hour, 30*time.Minute)
	if err != nil {
		return err
	}
	inTable, late := int64(0), int64(0)
	err = d.read("origin_hours", func(r *kgo.Record) error {
		var row struct{ N int64 }
		err := json.Unmarshal(r.Value, &row)
		inTable += row.N
		return err
	})
	if err != nil {
		return err
	}
	if err := d.read("flights_shuffled_late", func(*kgo.Record) error { late++; return nil }); err != nil {
		return err
	}
	d.check(inTable+late == int64(len(data)), "every row is accounted for: %s in origin_hours + %s late = %s", commas(inTable), commas(late), commas(int64(len(data))))
	d.check(late == naive && p.Counters.Late == naive, "late rows: %s in the topic, %s counted by the pipeline, %s by a naive count", commas(late), commas(p.Counters.Late), commas(naive))
	d.check(late > 0, "there are late rows at all: %s", commas(late))
	return nil
}

// shuffle mixes rows inside blocks of event time.
func shuffle(data [][]string, date int, block time.Duration, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 2001))
	from := 0
	var current int64
	for i := 0; i <= len(data); i++ {
		b := int64(-1)
		if i < len(data) {
			t, err := time.Parse(time.RFC3339, data[i][date])
			if err != nil {
				return err
			}
			b = t.UnixNano() / int64(block)
		}
		if b != current {
			part := data[from:i]
			r.Shuffle(len(part), func(x, y int) { part[x], part[y] = part[y], part[x] })
			from, current = i, b
		}
	}
	return nil
}

// naiveLate counts the rows whose window had ended by the largest event time of their partition so far
// less the lag. It knows nothing of the engine.
func (d *demo) naiveLate(topic string, window, lag time.Duration) (int64, error) {
	type seen struct {
		largest time.Time
		any     bool
	}
	parts := map[int32]*seen{}
	late := int64(0)
	err := d.read(topic, func(r *kgo.Record) error {
		var row struct{ Date time.Time }
		if err := json.Unmarshal(r.Value, &row); err != nil {
			return err
		}
		p := parts[r.Partition]
		if p == nil {
			p = &seen{}
			parts[r.Partition] = p
		}
		end := row.Date.Truncate(window).Add(window)
		if p.any && !end.After(p.largest.Add(-lag)) {
			late++
		}
		if !p.any || row.Date.After(p.largest) {
			p.largest, p.any = row.Date, true
		}
		return nil
	})
	return late, err
}

// retail: lines, revenue and distinct invoices per country and day.
func (d *demo) retail() error {
	d.say("\na shop: lines, revenue and invoices per country and day")
	if err := d.apply("retail/retail.hr", false); err != nil {
		return err
	}
	header, data, err := rows("data/online_retail_2011-05.csv.gz")
	if err != nil {
		return err
	}
	watch := func() string {
		p, err := d.api.Pipeline(d.ctx, "retail/country_days")
		if err != nil {
			return "?"
		}
		return fmt.Sprintf("country_days: %s windows closed", commas(p.Counters.Out))
	}
	if err := d.ingest("lines", header, data, watch); err != nil {
		return err
	}
	p, err := d.settle("retail/country_days")
	if err != nil {
		return err
	}
	d.check(p.Counters.In == int64(len(data)) && p.Counters.Invalid+p.Counters.Failed+p.Counters.Late == 0,
		"pipeline retail/country_days read %s rows, %d failed, %d late", commas(p.Counters.In), p.Counters.Invalid+p.Counters.Failed, p.Counters.Late)
	head, expected, err := rows("data/expected/retail_tumble1d_country.csv")
	if err != nil {
		return err
	}
	col := index(head)
	type countryDay struct {
		Country     string      `json:"country"`
		WindowStart time.Time   `json:"window_start"`
		Lines       int64       `json:"lines"`
		Revenue     json.Number `json:"revenue"`
		Invoices    int64       `json:"invoices"`
	}
	got := map[string]countryDay{}
	err = d.read("country_days", func(r *kgo.Record) error {
		var c countryDay
		if err := json.Unmarshal(r.Value, &c); err != nil {
			return err
		}
		got[c.WindowStart.Format(time.DateOnly)+" "+c.Country] = c
		return nil
	})
	if err != nil {
		return err
	}
	equal := 0
	for _, e := range expected {
		c, ok := got[e[col["day"]]+" "+e[col["country"]]]
		if ok && same(c.Lines, e[col["lines"]]) && same(c.Invoices, e[col["invoices"]]) && milli(string(c.Revenue)) == e[col["revenue_milli"]] {
			equal++
		}
	}
	d.check(len(got) == len(expected), "country_days: %d rows, %d expected", len(got), len(expected))
	d.check(equal == len(expected), "country_days: %d of %d rows equal in lines, revenue and invoices", equal, len(expected))
	return nil
}

// milli turns a decimal text with up to three fraction digits into thousandths.
func milli(s string) string {
	whole, frac, _ := strings.Cut(s, ".")
	frac = (frac + "000")[:3]
	n, err := strconv.ParseInt(strings.TrimPrefix(whole, "-")+frac, 10, 64)
	if err != nil {
		return s
	}
	if strings.HasPrefix(whole, "-") {
		n = -n
	}
	return strconv.FormatInt(n, 10)
}

// next prints what to try.
func (d *demo) next() {
	k, h := d.srv.KafkaAddr(), d.srv.HTTPAddr()
	d.say("\nthe node stays; try")
	for _, line := range []string{
		fmt.Sprintf("kcat -b %s -t hub_hours -C -e -o beginning", k),
		fmt.Sprintf("kcat -b %s -t delayed -C -e -o beginning | head", k),
		fmt.Sprintf("curl -s 'http://%s/api/v1/topics/hub_hours/records?partition=0&limit=3'", h),
		fmt.Sprintf("curl -s http://%s/api/v1/pipelines", h),
		fmt.Sprintf("bin/headrace consume hub_hours -n 5 --server %s --http %s", k, h),
		fmt.Sprintf("bin/headrace pipeline describe flights/hub_hours --server %s --http %s", k, h),
	} {
		d.say("  %s", line)
	}
}

func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	var out []string
	for len(s) > 3 {
		out = append(out, s[len(s)-3:])
		s = s[:len(s)-3]
	}
	out = append(out, s)
	slices.Reverse(out)
	return strings.Join(out, ",")
}

func size(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
