package kafka_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/server/kafka"
)

var benchRecords = flag.Int("bench-records", 2_000_000, "records of BenchmarkProduce and BenchmarkConsume")

// BenchmarkProduce is one franz-go producer with its defaults against a broker on a real disk: every
// acknowledgement is synced. Client and server share the machine.
func BenchmarkProduce(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			f := start(b, frontOptions{disk: true})
			f.create("t", 1, nil)
			c := f.client(kgo.DefaultProduceTopic("t"), kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchCompression(kgo.NoCompression()),
				kgo.ProducerBatchMaxBytes(1_000_000), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			value := make([]byte, size)
			for b.Loop() {
				begin := time.Now()
				var failed atomic.Pointer[error]
				var wg sync.WaitGroup
				wg.Add(*benchRecords)
				done := func(_ *kgo.Record, err error) {
					if err != nil {
						failed.Store(&err)
					}
					wg.Done()
				}
				for range *benchRecords {
					c.Produce(context.Background(), &kgo.Record{Value: value}, done)
				}
				wg.Wait()
				if err := failed.Load(); err != nil {
					b.Fatal(*err)
				}
				d := time.Since(begin)
				b.ReportMetric(float64(*benchRecords)/d.Seconds(), "records/s")
				b.ReportMetric(float64(*benchRecords*size)/d.Seconds()/1e6, "MB/s")
			}
			_ = kafka.LatencyBounds
		})
	}
}

// BenchmarkConsume reads the same records from the tail and from files.
func BenchmarkConsume(b *testing.B) {
	f := start(b, frontOptions{disk: true})
	f.create("t", 1, nil)
	p := f.client(kgo.DefaultProduceTopic("t"), kgo.MaxBufferedRecords(200_000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := make([]byte, 100)
	for range *benchRecords {
		p.Produce(context.Background(), &kgo.Record{Value: value}, nil)
	}
	if err := p.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		begin := time.Now()
		c := f.client(kgo.ConsumeTopics("t"), kgo.FetchMaxPartitionBytes(4<<20))
		for n := 0; n < *benchRecords; {
			fs := c.PollFetches(context.Background())
			if err := fs.Err(); err != nil {
				b.Fatal(err)
			}
			n += fs.NumRecords()
		}
		c.Close()
		b.ReportMetric(float64(*benchRecords)/time.Since(begin).Seconds(), "records/s")
	}
}
