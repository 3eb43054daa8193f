package client

import (
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka makes a Kafka client for a server: seeds are "host:port", several with commas. Options come
// after the defaults, so they win.
func Kafka(seeds string, opts ...kgo.Opt) (*kgo.Client, error) {
	all := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(seeds, ",")...),
		kgo.ClientID("headrace"),
		kgo.RetryTimeout(30 * time.Second),
		kgo.DialTimeout(5 * time.Second),
	}
	c, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// ProducerOpts are the options of an idempotent producer of uncompressed batches up to 1 MiB: what is
// acknowledged is durable, in order, once.
func ProducerOpts() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(1_000_000),
		kgo.MaxBufferedRecords(200_000),
		kgo.MaxBufferedBytes(256 << 20),
		kgo.ProducerLinger(0),
		kgo.RecordDeliveryTimeout(2 * time.Minute),
	}
}
