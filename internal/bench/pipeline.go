package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/headrace/headrace/client"
)

const pipelineModule = `topic %[1]s {
  ts: time("ms"), user: string, amount: float64, country: string, qty: int64,
} with key (user), format json, partitions %[2]d, time ts lag 1s

topic %[1]s_sums = from %[1]s
  |> where amount > 100 and country != "US"
  |> agg n = count(), total = sum(qty), top = max(amount)
     by country
     window tumble(10s)
`

// Pipeline measures a stored pipeline that catches up with a topic: JSON rows of about 200 B through a
// filter and a tumbling window into a derived topic. Defaults: 2,000,000 rows in 2 partitions. Rows are
// ingested before the clock starts; the figure for a core is rows by the processor time of the server's
// process while it catches up.
func Pipeline(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("pipeline", false); err != nil {
		return nil, err
	}
	o.Rows, o.Partitions = cmp.Or(o.Rows, 2_000_000), cmp.Or(o.Partitions, 2)
	t, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r := &Report{Name: "pipeline", Partitions: o.Partitions, Messages: int64(o.Rows)}
	if err := r.surroundings(t.dir); err != nil {
		return nil, err
	}
	topic, err := t.topic(ctx, "bench-rows", o.Partitions)
	if err != nil {
		return nil, err
	}
	o.say("pipeline: %d JSON rows into %d partition(s)", o.Rows, o.Partitions)
	bytes, err := fillRows(ctx, t, topic, o)
	if err != nil {
		return nil, err
	}
	if err := t.api().EndTopic(ctx, topic); err != nil {
		return nil, err
	}
	ident := "rows" + strconv.FormatInt(time.Now().UnixNano(), 36)
	text := fmt.Sprintf(pipelineModule, ident, o.Partitions)
	text = "topic " + ident + ` as "` + topic + `"` + text[len("topic "+ident):]
	cpu, server, began := cpuSeconds(), t.serverCPU(), time.Now()
	t.modules = append(t.modules, ident)
	if _, err := t.api().Apply(ctx, ident, text, client.ApplyOptions{}); err != nil {
		return nil, err
	}
	name := ident + "/" + ident + "_sums"
	if err := t.untilEnd(ctx, name, int64(o.Rows)); err != nil {
		return nil, err
	}
	took := time.Since(began)
	r.CPUSeconds, r.Seconds = cpuSeconds()-cpu, took.Seconds()
	r.MessagesPerSecond = float64(o.Rows) / took.Seconds()
	r.BytesPerSecond = float64(bytes) / took.Seconds()
	worked := r.CPUSeconds
	if t.srv == nil { // this process has only asked how far it is
		worked = 0
		if server > 0 {
			r.ServerCPUSeconds = t.serverCPU() - server
			worked = r.ServerCPUSeconds
		}
	}
	if worked > 0 {
		r.RowsPerSecondCore = float64(o.Rows) / worked
	}
	r.RecordBytes = int(bytes / int64(o.Rows))
	r.RSSBytes = t.rss()
	return r, nil
}

// fillRows writes JSON rows of ten fields, of which the pipeline needs four.
func fillRows(ctx context.Context, t *target, topic string, o Options) (int64, error) {
	p, err := client.NewPublisher(t.kafka, topic, client.AnyPartition, client.ProducerOptions{})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	countries := []string{"US", "DE", "FR", "JP", "BR", "IN", "CN", "GB", "NL", "SE"}
	start := time.Now().Add(-time.Duration(o.Rows) * 100 * time.Microsecond).UnixMilli()
	seed := uint64(1)
	for i := range o.Rows {
		seed = seed*6364136223846793005 + 1442695040888963407
		x := seed >> 33
		user := "user-" + strconv.FormatUint(x%100_000, 10)
		v := make([]byte, 0, 224)
		v = append(v, `{"ts":`...)
		v = strconv.AppendInt(v, start+int64(i)/10, 10)
		v = append(v, `,"user":"`...)
		v = append(v, user...)
		v = append(v, `","amount":`...)
		v = strconv.AppendFloat(v, float64(x%100_000)/100, 'f', 2, 64)
		v = append(v, `,"country":"`...)
		v = append(v, countries[(x>>8)%10]...)
		v = append(v, `","qty":`...)
		v = strconv.AppendUint(v, x%10, 10)
		v = append(v, `,"session":"0f3a-11be-77","page":"/shop/item/4711","agent":"Mozilla/5.0","ok":true,"note":"none so far"}`...)
		if err := p.Publish(ctx, client.Message{Key: []byte(user), Value: v}); err != nil {
			return 0, err
		}
	}
	s, err := p.Flush(ctx)
	return s.Bytes, err
}
