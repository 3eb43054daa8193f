package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
)

// doubleSeconds bounds the peer's run: it keeps everything in memory.
const doubleSeconds = 2

// double measures franz-go into an in-memory Kafka double of its authors, in this process: what the client and a
// server without a disk come to on this machine.
func double(ctx context.Context, o Options) (messagesPerSecond float64, err error) {
	const topic = "bench"
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(o.Partitions), topic))
	if err != nil {
		return 0, fmt.Errorf("bench: start the Kafka double: %w", err)
	}
	defer cluster.Close()
	o.say("peer: franz-go into an in-memory Kafka double for %d s", doubleSeconds)
	o.Client, o.Seconds = ClientKgo, doubleSeconds
	var r Report
	if err := saturate(ctx, &target{kafka: strings.Join(cluster.ListenAddrs(), ",")}, topic, o, &r); err != nil {
		return 0, err
	}
	return r.MessagesPerSecond, nil
}
