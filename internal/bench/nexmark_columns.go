package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/internal/nexmark"
)

// nexmarkColumns are those of the topic nexmark, fields named as in the events.
var nexmarkColumns = []client.Column{
	{Name: "person", Type: "{id: int64, name: string, emailAddress: string, creditCard: string, city: string, state: string, dateTime: time, extra: string}?"},
	{Name: "auction", Type: "{id: int64, itemName: string, description: string, initialBid: int64, reserve: int64, dateTime: time, expires: time, seller: int64, category: int64, extra: string}?"},
	{Name: "bid", Type: "{auction: int64, bidder: int64, price: int64, channel: string, url: string, dateTime: time, extra: string}?"},
}

// fillNexmarkColumns is fillNexmark for a topic of format arrow: a frame to each partition in turn.
func fillNexmarkColumns(ctx context.Context, t *target, topic string, g *nexmark.Generator, o Options) (err error) {
	schema, err := client.ColumnsSchema(nexmarkColumns...)
	if err != nil {
		return err
	}
	p, err := client.NewProducer(t.kafka, client.ProducerOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	in, err := p.Ingest(ctx, topic, schema, client.IngestOptions{FrameRows: nexmarkFrame})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed error
	acked := func(a client.FrameAck) {
		if a.Err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = a.Err
		}
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	var e nexmark.Event
	for k := range o.Events {
		g.At(k, &e)
		addEvent(b, &e)
		if (k+1)%nexmarkFrame == 0 || k+1 == o.Events {
			rec := b.NewRecord()
			err := in.Write(ctx, rec, acked)
			rec.Release()
			if err != nil {
				return err
			}
		}
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	if failed != nil {
		return fmt.Errorf("bench: %w", failed)
	}
	return nil
}

// nexmarkFrame is the events of a frame.
const nexmarkFrame = 2048

// addEvent appends one event to the columns: two of its three structs are null.
func addEvent(b *array.RecordBuilder, e *nexmark.Event) {
	fields := func(column int) func(v any) {
		s := b.Field(column).(*array.StructBuilder)
		s.Append(true)
		i := 0
		return func(v any) {
			switch f := s.FieldBuilder(i).(type) {
			case *array.Int64Builder:
				f.Append(v.(int64))
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(v.(int64) * 1e6))
			case *array.StringBuilder:
				f.BinaryBuilder.Append(v.([]byte))
			}
			i++
		}
	}
	for i := range 3 {
		if i != int(e.Kind) {
			b.Field(i).(*array.StructBuilder).AppendNull()
		}
	}
	add := fields(int(e.Kind))
	switch e.Kind {
	case nexmark.KindPerson:
		p := &e.Person
		add(p.ID)
		for _, v := range [][]byte{p.Name, p.Email, p.CreditCard, p.City, p.State} {
			add(v)
		}
		add(p.Time)
		add(p.Extra)
	case nexmark.KindAuction:
		a := &e.Auction
		add(a.ID)
		add(a.ItemName)
		add(a.Description)
		for _, v := range []int64{a.InitialBid, a.Reserve, a.Time, a.Expires, a.Seller, a.Category} {
			add(v)
		}
		add(a.Extra)
	case nexmark.KindBid:
		x := &e.Bid
		for _, v := range []int64{x.Auction, x.Bidder, x.Price} {
			add(v)
		}
		add(x.Channel)
		add(x.URL)
		add(x.Time)
		add(x.Extra)
	}
}
