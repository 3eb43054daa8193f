package kafka_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/log"
)

// compact compacts partition 0 of a topic now.
func (f *front) compact(topic string) {
	f.t.Helper()
	t, ok := f.broker.Topic(topic)
	if !ok {
		f.t.Fatalf("no topic %s", topic)
	}
	if _, err := f.node.Store().Compact(f.ctx(), log.PartitionID{Topic: t.ID}); err != nil {
		f.t.Fatal(err)
	}
}

// A consumer that reads a compacted topic from its beginning gets one record of each key, at the offset that it always
// had, and no tombstone whose time is over.
func TestACompactedTopicGivesTheLatestOfEachKey(t *testing.T) {
	f := start(t, frontOptions{})
	policy, none := "compact", "0"
	f.create("t", 1, map[string]*string{"cleanup.policy": &policy, "delete.retention.ms": &none})
	codecs := []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}
	type place struct {
		value  string
		offset int64
	}
	want := map[string]place{}
	for round := range 10 {
		c := f.client(kgo.ProducerBatchCompression(codecs[round%len(codecs)]))
		var sent []*kgo.Record
		for i := range 40 {
			r := &kgo.Record{Topic: "t", Key: fmt.Appendf(nil, "k%d", (i*(round+1))%60), Value: []byte(strings.Repeat("v", i) + fmt.Sprint(round))}
			if i == round {
				r.Value = nil
			}
			sent = append(sent, r)
		}
		produce(t, c, sent...)
		for _, r := range sent {
			if want[string(r.Key)] = (place{string(r.Value), r.Offset}); r.Value == nil {
				delete(want, string(r.Key))
			}
		}
		if round%3 == 2 {
			f.compact("t")
		}
	}
	last := &kgo.Record{Topic: "t", Key: []byte("last"), Value: []byte("l")}
	produce(t, f.client(), last)
	want["last"] = place{"l", last.Offset}
	for range 2 {
		f.compact("t") // the first meets the last tombstones, the second lets them go
		last = &kgo.Record{Topic: "t", Key: []byte("last"), Value: []byte("l")}
		produce(t, f.client(), last)
		want["last"] = place{"l", last.Offset}
	}
	f.compact("t")
	f.restart()
	got := map[string]place{}
	records := consume(t, f.client(kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())), len(want))
	for _, r := range records {
		if r.Value == nil {
			t.Errorf("the tombstone of %s at offset %d is still there", r.Key, r.Offset)
		}
		got[string(r.Key)] = place{string(r.Value), r.Offset}
	}
	if len(records) != len(want) || !maps.Equal(got, want) {
		t.Fatalf("%d records of %d keys, want %d keys\n%v\n%v", len(records), len(got), len(want), got, want)
	}
	// One that continues in the middle of what is gone goes on with what is above.
	if r := consume(t, f.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().At(1)}})), 1)[0]; r.Offset != records[0].Offset {
		t.Errorf("offset %d, want %d", r.Offset, records[0].Offset)
	}
	ends, err := f.admin().ListEndOffsets(f.ctx(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if end, ok := ends.Lookup("t", 0); !ok || end.Offset != last.Offset+1 {
		t.Errorf("end %+v", end)
	}
}

func TestACompactedTopicTakesNoRecordWithoutKey(t *testing.T) {
	f := start(t, frontOptions{})
	policy := "compact,delete"
	f.create("t", 1, map[string]*string{"cleanup.policy": &policy})
	for _, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.ZstdCompression()} {
		c := f.client(kgo.RecordRetries(0), kgo.DisableIdempotentWrite(), kgo.ProducerBatchCompression(codec))
		err := c.ProduceSync(f.ctx(), &kgo.Record{Topic: "t", Value: []byte(strings.Repeat("v", 500))}).FirstErr()
		if !errors.Is(err, kerr.InvalidRecord) {
			t.Errorf("%v", err)
		}
		produce(t, c, &kgo.Record{Topic: "t", Key: []byte{}, Value: []byte("an empty key is a key")})
	}
}
