package kafka_test

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A request is counted when its answer leaves: whoever has the answer finds it in the numbers.
func TestARequestCountsBeforeItsAnswerLeaves(t *testing.T) {
	const ours = 1 << 20 // correlation ids from here on
	var mu sync.Mutex
	keys := map[int32]int16{}
	seen := map[int16]uint64{} // by API, when its answer was about to leave
	f := start(t, frontOptions{write: func(f *front, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		if len(b) < 8 {
			return
		}
		key, ok := keys[int32(binary.BigEndian.Uint32(b[4:]))]
		if !ok {
			return
		}
		m := f.srv.Metrics().API(key)
		counts, _ := m.Seconds.Snapshot()
		n := uint64(0)
		for _, c := range counts {
			n += c
		}
		seen[key] = min(n, m.Requests.Load())
	}})
	f.create("t", 1, nil)
	fetch := kmsg.NewPtrFetchRequest()
	fetch.Version, fetch.MinBytes, fetch.MaxBytes, fetch.SessionEpoch = 11, 1, 1<<20, -1
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = "t"
	part := kmsg.NewFetchRequestTopicPartition()
	part.PartitionMaxBytes, part.CurrentLeaderEpoch = 1<<20, -1
	topic.Partitions = append(topic.Partitions, part)
	fetch.Topics = append(fetch.Topics, topic)
	heartbeat := kmsg.NewPtrHeartbeatRequest() // an answer that nobody else asks for
	r := f.raw(t)
	r.next = ours
	for _, req := range []kmsg.Request{rawProduce(-1, "t", 0, batch("a", "b")), fetch, heartbeat} {
		mu.Lock()
		keys[r.next+1] = req.Key()
		mu.Unlock()
		r.do(req)
		mu.Lock()
		if got := seen[req.Key()]; got != 1 {
			t.Errorf("%s: %d requests were counted when the answer left, want 1", kmsg.NameForKey(req.Key()), got)
		}
		mu.Unlock()
	}
	if m := f.srv.Metrics(); m.RecordsIn.Load() != 2 || m.BatchesIn.Load() != 1 || m.BytesOut.Load() == 0 {
		t.Errorf("%d records in %d batches in, %d bytes out", m.RecordsIn.Load(), m.BatchesIn.Load(), m.BytesOut.Load())
	}
}
