package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server"
)

// fullDisk is a memory disk that, while full, refuses whatever would need space; writes into the log's segments have
// theirs.
func fullDisk() (fs fsx.FS, full *atomic.Bool) {
	full = &atomic.Bool{}
	return fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		switch op {
		case fsx.OpCreate, fsx.OpPreallocate, fsx.OpLink, fsx.OpMkdir:
		case fsx.OpWrite:
			if strings.Contains(name, "/wal/") {
				return nil
			}
		default:
			return nil
		}
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}), full
}

// numbers reads the numbers at the beginning of n values of a topic's only partition.
func numbers(t *testing.T, s *server.Server, topic string, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := client(t, s, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	out := map[string]int{}
	for total := 0; total < n; {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", total, n, err)
		}
		for _, r := range f.Records() {
			number, _, _ := strings.Cut(string(r.Value), " ")
			out[number]++
			total++
		}
	}
	return out
}

// produceDirectly sends one record in one request, without a client's retries, and returns the answer.
func produceDirectly(ctx context.Context, t *testing.T, c *kgo.Client, topic string, batch []byte, partitions int) []kmsg.ProduceResponseTopicPartition {
	t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 10_000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	for i := range partitions {
		rp := kmsg.NewProduceRequestTopicPartition()
		rp.Partition, rp.Records = int32(i), batch
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	kresp, err := c.Broker(1).Request(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	resp, ok := kresp.(*kmsg.ProduceResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != partitions {
		t.Fatalf("%#v", kresp)
	}
	return resp.Topics[0].Partitions
}

// A disk that becomes full under a producer: clients get an error that says so and that they may retry, in time; reads,
// commits and deletes go on; with room again so do records, without a restart, and nothing acknowledged is missing.
func TestAFullDiskIsSaidToClientsAndPasses(t *testing.T) {
	fs, full := fullDisk()
	o := options(fs)
	o.Node.Data.WALSegmentBytes, o.Node.Data.MaxInflightBytes = 1<<20, 256<<10
	o.Node.SegmentBytes, o.Node.CacheBytes = 256<<10, 64<<10
	s := start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	admin := kadm.NewClient(client(t, s))
	for name, partitions := range map[string]int32{"orders": 1, "wide": 16, "gone": 1} {
		if _, err := admin.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := client(t, s).ProduceSync(ctx, &kgo.Record{Topic: "gone", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}

	// The writer goes on through all of it; its records are refused for good only after many tries.
	pad := strings.Repeat("p", 20<<10)
	writer := client(t, s, kgo.DefaultProduceTopic("orders"), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(16))
	var acked atomic.Int64
	var mu sync.Mutex
	var failures []error
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			writer.Produce(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d %s", i, pad)}, func(_ *kgo.Record, err error) {
				if err != nil {
					mu.Lock()
					failures = append(failures, err)
					mu.Unlock()
					return
				}
				acked.Add(1)
			})
		}
	}()
	within(t, "the writer writes", func() bool { return acked.Load() > 20 })
	full.Store(true)
	var why string
	within(t, "the server is not ready", func() bool {
		status, body := call(t, s, "GET", "/readyz", "")
		why = body
		return status == 503
	})
	if !strings.Contains(why, "no space left on device") {
		t.Errorf("readyz: %s", why)
	}

	// One client that does not try forever, and the protocol's own answer for many partitions at once.
	begun := time.Now()
	brief := client(t, s, kgo.DefaultProduceTopic("orders"), kgo.RecordRetries(1))
	if err := brief.ProduceSync(ctx, kgo.StringRecord("brief")).FirstErr(); !errors.Is(err, kerr.KafkaStorageError) || !kerr.IsRetriable(err) {
		t.Errorf("a producer on a full disk: %v", err)
	}
	for i, p := range produceDirectly(ctx, t, brief, "wide", smallBatch(), 16) {
		if p.ErrorCode != kerr.KafkaStorageError.Code || p.ErrorMessage == nil || !strings.Contains(*p.ErrorMessage, "E1035") || !strings.Contains(*p.ErrorMessage, "no space left on device") {
			t.Errorf("partition %d: %d %v", i, p.ErrorCode, p.ErrorMessage)
		}
	}
	status, body := call(t, s, "POST", "/api/v1/topics/orders/end", "")
	var said struct{ Code, Message, Why, Fix string }
	if err := json.Unmarshal([]byte(body), &said); err != nil || status != 503 || said.Code != "E1035" || !strings.Contains(said.Message, "no space left") || said.Fix == "" {
		t.Errorf("the end of a topic on a full disk: %d %s", status, body)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the refusals took %v", took)
	}

	// Readers, commits and deletes go on.
	before := int(acked.Load())
	numbers(t, s, "orders", before)
	if status, body := call(t, s, "GET", "/api/v1/topics/orders/records?limit=1", ""); status != 200 || !strings.Contains(body, `"offset":0`) {
		t.Errorf("records: %d %s", status, body)
	}
	commits := kadm.Offsets{}
	commits.AddOffset("orders", 0, 7, -1)
	if err := admin.CommitAllOffsets(ctx, "readers", commits); err != nil {
		t.Errorf("commit: %v", err)
	}
	if got, err := admin.FetchOffsets(ctx, "readers"); err != nil || got.Offsets()["orders"][0].At != 7 {
		t.Errorf("committed: %v %v", got, err)
	}
	if _, err := admin.DeleteTopic(ctx, "gone"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if status, body := call(t, s, "DELETE", "/api/v1/topics/wide", ""); status != 200 {
		t.Errorf("delete: %d %s", status, body)
	}
	if status, body := call(t, s, "GET", "/livez", ""); status != 200 {
		t.Errorf("livez: %d %s", status, body)
	}

	full.Store(false)
	within(t, "records are acknowledged again", func() bool { return int(acked.Load()) > before+20 })
	within(t, "the server is ready", func() bool {
		status, _ := call(t, s, "GET", "/readyz", "")
		return status == 200
	})
	close(stop)
	<-stopped
	if err := writer.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if len(failures) > 0 {
		t.Errorf("%d records of a patient writer were refused: %v", len(failures), failures[0])
	}
	total := int(acked.Load())
	check := func(when string) {
		t.Helper()
		got := numbers(t, s, "orders", total)
		for i := range total {
			if n := got[fmt.Sprint(i)]; n != 1 {
				t.Fatalf("%s record %d is there %d times", when, i, n)
			}
		}
	}
	check("with room again")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, o)
	check("after a restart")
}

// smallBatch is a batch of one record.
func smallBatch() []byte {
	b := record.NewBuilder()
	b.Append(time.Now().UnixMilli(), nil, []byte("x"), nil)
	return b.Finish()
}

// within waits for something that must come soon.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 seconds", what)
		}
	}
}
