package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

const liveModule = `topic ticks { n: int64 }

view even = from ticks |> where n % 2 == 0
`

const (
	liveTicks = 1000
	livePause = time.Millisecond
)

// live sends a record every millisecond, while a consumer reads a view of them, and shows how long a
// record takes until it is durable and until it is delivered.
func (d *demo) live() error {
	d.say("\na record every millisecond, and a consumer of a view of them")
	if _, err := d.api.Apply(d.ctx, "live", liveModule, client.ApplyOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(d.ctx, 30*time.Second)
	defer cancel()
	sent := make(chan [liveTicks]time.Time, 1)
	type delivery struct {
		at   [liveTicks]time.Time
		n    int
		want bool // every second record, in order
		err  error
	}
	got := make(chan delivery, 1)
	reader, err := client.Kafka(d.srv.KafkaAddr(), kgo.ConsumeTopics("even"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer reader.Close()
	go func() {
		g := delivery{want: true}
		for g.n < liveTicks/2 && g.err == nil {
			fetches := reader.PollFetches(ctx)
			now := time.Now()
			if g.err = fetches.Err(); g.err != nil {
				break
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if r.Offset < liveTicks {
					g.at[r.Offset] = now
				}
				g.want = g.want && r.Offset == int64(2*g.n) && string(r.Value) == fmt.Sprintf(`{"n":%d}`, 2*g.n)
				g.n++
			})
		}
		got <- g
	}()
	durable := hdrhistogram.New(1, 60_000_000, 3)
	go func() { sent <- d.ticks(ctx, durable) }()
	at, g := <-sent, <-got
	if g.err != nil {
		return fmt.Errorf("read view even: %w", g.err)
	}
	delivered := hdrhistogram.New(1, 60_000_000, 3)
	for i := 0; i < liveTicks; i += 2 {
		_ = delivered.RecordValue(max(1, g.at[i].Sub(at[i]).Microseconds())) // a minute at most, by ctx
	}
	d.say("durable after p50 %.2f ms, p99 %.2f ms; delivered by the view after p50 %.2f ms, p99 %.2f ms",
		quantile(durable, 50), quantile(durable, 99), quantile(delivered, 50), quantile(delivered, 99))
	d.check(g.want && g.n == liveTicks/2, "view even: %d of %d records, every second one in order", g.n, liveTicks)
	return nil
}

// quantile is a quantile in milliseconds.
func quantile(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / 1e3
}

// ticks sends the records and answers when each was sent; durable gets the time until each was
// acknowledged.
func (d *demo) ticks(ctx context.Context, durable *hdrhistogram.Histogram) (at [liveTicks]time.Time) {
	k, err := client.Kafka(d.srv.KafkaAddr(), append(client.ProducerOpts(), kgo.DefaultProduceTopic("ticks"))...)
	if err != nil {
		return at
	}
	defer k.Close()
	tick := time.NewTicker(livePause)
	defer tick.Stop()
	for i := range at {
		<-tick.C
		at[i] = time.Now()
		k.Produce(ctx, &kgo.Record{Value: []byte(`{"n":` + strconv.Itoa(i) + `}`)}, func(_ *kgo.Record, err error) {
			if err == nil { // the callbacks of a client come one at a time
				_ = durable.RecordValue(max(1, time.Since(at[i]).Microseconds())) // out of range only when ctx has ended
			}
		})
	}
	_ = k.Flush(ctx) // the reader misses what was not sent
	return at
}
