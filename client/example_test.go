package client_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace/headrace/client"
)

// A producer sends records and is called back when they are durable.
func ExampleProducer() {
	// In place of a server: a double that speaks its protocol. A node listens on 127.0.0.1:9092.
	double, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "clicks"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer double.Close()
	ctx := context.Background()

	p, err := client.NewProducer(strings.Join(double.ListenAddrs(), ","), client.ProducerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	clicks, err := p.Writer(ctx, "clicks")
	if err != nil {
		fmt.Println(err)
		return
	}

	// One record, waited for.
	ack, err := clicks.ProduceSync(ctx, client.Message{Key: []byte("ann"), Value: []byte(`{"page":"/"}`)})
	fmt.Println("offset", ack.Offset, err)

	// Many, with a callback for each.
	var durable atomic.Int64
	done := func(a client.Ack) {
		if a.Err == nil {
			durable.Add(1)
		}
	}
	for i := range 1000 {
		m := client.Message{Value: fmt.Appendf(nil, `{"page":"/%d"}`, i), Tag: uint64(i)}
		if err := clicks.Produce(ctx, m, done); err != nil {
			fmt.Println(err)
			return
		}
	}
	if err := p.Close(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(durable.Load(), "durable")
	// Output:
	// offset 0 <nil>
	// 1000 durable
}
