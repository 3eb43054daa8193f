package client

import (
	"context"
	"errors"
	"fmt"
	"net"
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
		kgo.RetryTimeout(10 * time.Second),
		kgo.DialTimeout(dialTimeout),
	}
	c, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}

// Reach asks the server for a sign of life. It answers within a few seconds, with a *ConnectError if
// there is none; other calls of a Kafka client try for longer, since servers restart.
func Reach(ctx context.Context, k *kgo.Client) error {
	within, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	err := k.Ping(within)
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer in %v that a Kafka server would give", dialTimeout)
	}
	seeds, _ := k.OptValue(kgo.SeedBrokers).([]string)
	return &ConnectError{strings.Join(seeds, ","), err}
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
