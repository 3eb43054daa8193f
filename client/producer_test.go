package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

func serverOptions(fs fsx.FS, kafkaAddr string) server.Options {
	return server.Options{
		Data: "/data", FS: fs, KafkaAddr: kafkaAddr, HTTPAddr: "127.0.0.1:0", NoEngine: true,
		Node: replication.NodeOptions{Data: replication.ShardOptions{WALSegmentBytes: 8 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20}},
	}
}

func startServer(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func createTopic(t *testing.T, s *server.Server, name string, partitions int32) {
	t.Helper()
	if _, err := client.NewAPI(s.HTTPAddr()).CreateTopic(t.Context(), client.TopicSpec{Name: name, Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
}

func newProducer(t *testing.T, seeds string, o client.ProducerOptions) *client.Producer {
	t.Helper()
	p, err := client.NewProducer(seeds, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = p.Close(ctx)
	})
	return p
}

func writer(t *testing.T, p *client.Producer, topic string) *client.Writer {
	t.Helper()
	w, err := p.Writer(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestAProducerSmoke(t *testing.T) {
	s := startServer(t, serverOptions(fsx.NewMem(), "127.0.0.1:0"))
	createTopic(t, s, "t", 1)
	p := newProducer(t, s.KafkaAddr(), client.ProducerOptions{})
	w := writer(t, p, "t")
	a, err := w.ProduceSync(t.Context(), client.Message{Value: []byte("hello")})
	if err != nil || a.Offset != 0 {
		t.Fatal(a, err)
	}
	var mu sync.Mutex
	n := 0
	for i := range 200000 {
		if err := w.Produce(t.Context(), client.Message{Value: fmt.Appendf(nil, "v%d", i), Tag: uint64(i)}, func(a client.Ack) {
			mu.Lock()
			defer mu.Unlock()
			if a.Err != nil || a.Offset != int64(a.Tag)+1 {
				t.Error(a)
			}
			n++
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Println(n, p.Stats())
}
