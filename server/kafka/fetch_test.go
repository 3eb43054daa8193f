package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server/broker"
)

// ask is a Fetch request of one topic: partition to offset.
func ask(topic string, wait time.Duration, minBytes int32, offsets ...int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 11, int32(wait.Milliseconds()), minBytes, 50<<20
	t := kmsg.NewFetchRequestTopic()
	t.Topic = topic
	for p, o := range offsets {
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.FetchOffset, part.PartitionMaxBytes, part.CurrentLeaderEpoch = int32(p), o, 1<<20, -1
		t.Partitions = append(t.Partitions, part)
	}
	req.Topics = append(req.Topics, t)
	return req
}

func (r *raw) fetch(req *kmsg.FetchRequest) []kmsg.FetchResponseTopicPartition {
	r.t.Helper()
	return r.do(req).(*kmsg.FetchResponse).Topics[0].Partitions
}

func TestLongPollWaitsForMinBytesOrMaxWait(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 3, nil)
	r, w := f.raw(t), f.raw(t)

	begin := time.Now()
	parts := r.fetch(ask("t", 100*time.Millisecond, 1, 0, 0, 0))
	if d := time.Since(begin); d < 100*time.Millisecond || len(parts) != 3 || len(parts[0].RecordBatches) != 0 {
		t.Errorf("an empty topic answered after %v", d)
	}

	// A record in any of the partitions wakes it.
	id := r.send(ask("t", 15*time.Second, 1, 0, 0, 0))
	time.Sleep(30 * time.Millisecond)
	begin = time.Now()
	w.do(rawProduce(-1, "t", 2, batch("hello")))
	req := ask("t", 0, 1)
	parts = r.receive(req, id).(*kmsg.FetchResponse).Topics[0].Partitions
	if d := time.Since(begin); d > 5*time.Second || len(parts[2].RecordBatches) == 0 || parts[2].HighWatermark != 1 {
		t.Errorf("after %v: %d bytes, high watermark %d", d, len(parts[2].RecordBatches), parts[2].HighWatermark)
	}

	// More bytes than there are: it waits for the second batch, and brings both.
	need := int32(len(batch("hello")) + 1)
	id = r.send(ask("t", 15*time.Second, need, 0, 0, 0))
	time.Sleep(30 * time.Millisecond)
	w.do(rawProduce(-1, "t", 1, batch("world")))
	parts = r.receive(req, id).(*kmsg.FetchResponse).Topics[0].Partitions
	if len(parts[1].RecordBatches) == 0 || len(parts[2].RecordBatches) == 0 {
		t.Errorf("bytes: %d and %d", len(parts[1].RecordBatches), len(parts[2].RecordBatches))
	}

	// An error anywhere is answered at once.
	begin = time.Now()
	parts = r.fetch(ask("t", 15*time.Second, 1, 99, 0, 1))
	if parts[0].ErrorCode != kerr.OffsetOutOfRange.Code || time.Since(begin) > 5*time.Second {
		t.Errorf("code %d after %v", parts[0].ErrorCode, time.Since(begin))
	}
}

func TestFetchGivesAtLeastOneBatchWhateverTheLimits(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 2, nil)
	w := f.raw(t)
	big := string(bytes.Repeat([]byte("x"), 10_000))
	for p := range int32(2) {
		for range 3 {
			w.do(rawProduce(-1, "t", p, batch(big, big)))
		}
	}
	size := len(batch(big, big))
	req := ask("t", 0, 1, 0, 0)
	req.MaxBytes = 1
	for i := range req.Topics[0].Partitions {
		req.Topics[0].Partitions[i].PartitionMaxBytes = 1
	}
	parts := f.raw(t).fetch(req)
	if len(parts[0].RecordBatches) != size || len(parts[1].RecordBatches) != 0 {
		t.Errorf("%d and %d bytes, want %d and 0", len(parts[0].RecordBatches), len(parts[1].RecordBatches), size)
	}
	// A batch may begin before the offset that was asked for.
	parts = f.raw(t).fetch(ask("t", 0, 1, 3, 6))
	h, err := record.ParseHeader(parts[0].RecordBatches)
	if err != nil || h.BaseOffset != 2 || len(parts[0].RecordBatches) != 2*size || len(parts[1].RecordBatches) != 0 {
		t.Errorf("base offset %d, %d bytes, %v", h.BaseOffset, len(parts[0].RecordBatches), err)
	}
}

func TestFetchChecksLeaderEpochs(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	f.raw(t).do(rawProduce(-1, "t", 0, batch("a")))
	now := f.broker.LeaderEpoch()
	for epoch, want := range map[int32]int16{-1: 0, now: 0, now - 1: kerr.FencedLeaderEpoch.Code, now + 1: kerr.UnknownLeaderEpoch.Code} {
		req := ask("t", 0, 1, 0)
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = epoch
		if got := f.raw(t).fetch(req)[0].ErrorCode; got != want {
			t.Errorf("epoch %d of %d: %d, want %d", epoch, now, got, want)
		}
	}
}

func TestZstdNeedsFetchTen(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	produce(t, f.client(kgo.ProducerBatchCompression(kgo.ZstdCompression())), &kgo.Record{Topic: "t", Value: bytes.Repeat([]byte("x"), 1000)})
	req := ask("t", 0, 1, 0)
	if p := f.raw(t).fetch(req)[0]; p.ErrorCode != 0 {
		t.Errorf("version 11: %d", p.ErrorCode)
	}
	req.Version = 9
	if p := f.raw(t).fetch(req)[0]; p.ErrorCode != kerr.UnsupportedCompressionType.Code || len(p.RecordBatches) != 0 {
		t.Errorf("version 9: %d", p.ErrorCode)
	}
}

func TestListOffsetsAndEpochs(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	c := f.client()
	for i, ts := range []int64{100, 300, 200, 400} {
		produce(t, c, &kgo.Record{Topic: "t", Value: fmt.Append(nil, i), Timestamp: time.UnixMilli(ts)})
		if i == 1 {
			c.Close()
			f.restart()
			c = f.client()
		}
	}
	list := func(ts int64) (int64, int64, int16) {
		req := kmsg.NewPtrListOffsetsRequest()
		req.Version, req.ReplicaID = 7, -1
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = "t"
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Timestamp, rp.CurrentLeaderEpoch = ts, -1
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		p := f.raw(t).do(req).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
		return p.Offset, p.Timestamp, p.ErrorCode
	}
	for _, c := range []struct{ ask, offset, ts int64 }{
		{-2, 0, -1}, {-1, 4, -1}, {-3, 3, 400}, {0, 0, 100}, {100, 0, 100}, {101, 1, 300}, {250, 1, 300}, {301, 3, 400}, {400, 3, 400}, {401, -1, -1},
	} {
		if o, ts, code := list(c.ask); o != c.offset || ts != c.ts || code != 0 {
			t.Errorf("timestamp %d: offset %d time %d code %d, want %d %d", c.ask, o, ts, code, c.offset, c.ts)
		}
	}
	if _, _, code := list(-4); code != kerr.UnsupportedVersion.Code {
		t.Errorf("-4: %d", code)
	}

	// Epochs: two records were written under the first leader, two under the second.
	epochEnd := func(epoch int32) (int32, int64) {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		req.Version, req.ReplicaID = 4, -1
		rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
		rt.Topic = "t"
		rp := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		rp.LeaderEpoch, rp.CurrentLeaderEpoch = epoch, -1
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		p := f.raw(t).do(req).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
		return p.LeaderEpoch, p.EndOffset
	}
	now := f.broker.LeaderEpoch()
	if e, o := epochEnd(now); e != now || o != 4 {
		t.Errorf("epoch %d ends at %d (%d)", now, o, e)
	}
	first := f.raw(t).fetch(ask("t", 0, 1, 0))[0].RecordBatches
	h, err := record.ParseHeader(first)
	if err != nil || h.LeaderEpoch >= now {
		t.Fatalf("the first batch has epoch %d, now %d: %v", h.LeaderEpoch, now, err)
	}
	if e, o := epochEnd(h.LeaderEpoch); e != h.LeaderEpoch || o != 2 {
		t.Errorf("epoch %d ends at %d (%d)", h.LeaderEpoch, o, e)
	}
	if e, o := epochEnd(now + 1); e != -1 || o != -1 {
		t.Errorf("epoch %d: %d %d", now+1, e, o)
	}
}

func TestDeleteRecordsRaisesTheLogStart(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, nil)
	c := f.client()
	for i := range 10 {
		produce(t, c, &kgo.Record{Topic: "t", Value: fmt.Append(nil, i)})
	}
	adm := f.admin()
	del := func(at int64) (int64, error) {
		var os kadm.Offsets
		os.AddOffset("t", 0, at, -1)
		rs, err := adm.DeleteRecords(f.ctx(), os)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := rs.Lookup("t", 0)
		return r.LowWatermark, r.Err
	}
	if low, err := del(4); low != 4 || err != nil {
		t.Errorf("%d %v", low, err)
	}
	if low, err := del(2); low != 4 || err != nil {
		t.Errorf("below the start: %d %v", low, err)
	}
	if _, err := del(11); !errors.Is(err, kerr.OffsetOutOfRange) {
		t.Errorf("above the end: %v", err)
	}
	if p := f.raw(t).fetch(ask("t", 0, 1, 3))[0]; p.ErrorCode != kerr.OffsetOutOfRange.Code || p.LogStartOffset != 4 || p.HighWatermark != 10 {
		t.Errorf("%+v", p)
	}
	if low, err := del(-1); low != 10 || err != nil {
		t.Errorf("all: %d %v", low, err)
	}
}

// engine is embedded for the methods that the test does not need.
type engine interface{ broker.Pipelines }

// evenView shows the records of "src" whose offset is even; a record a batch, as the tests produce.
type evenView struct {
	b *broker.Broker
	engine
	mu    sync.Mutex
	scans int
}

func (v *evenView) Name() string      { return "even" }
func (v *evenView) Source() string    { return "src" }
func (v *evenView) Partitions() int32 { return 2 }
func (v *evenView) View(name string) (broker.SourcedView, bool) {
	return v, name == "even"
}
func (v *evenView) Views() []broker.SourcedView { return []broker.SourcedView{v} }
func (v *evenView) Readers(topic string) []string {
	if topic == "src" {
		return []string{"m/even"}
	}
	return nil
}

func (v *evenView) SourcePartition(i int32) *log.Partition {
	t, _ := v.b.Topic("src")
	return v.b.StorePartition(t.ID, i)
}

func (v *evenView) Latest(_ context.Context, p int32) (int64, error) {
	end := v.SourcePartition(p).LogEnd()
	if end > 0 && end%2 == 0 {
		end--
	}
	return end, nil
}

func (v *evenView) Fetch(ctx context.Context, p int32, from int64, maxBytes int) (broker.ViewFetch, error) {
	v.mu.Lock()
	v.scans++
	v.mu.Unlock()
	src := v.SourcePartition(p)
	batches, err := src.Read(from, 1<<20, nil)
	if err != nil {
		return broker.ViewFetch{}, err
	}
	f := broker.ViewFetch{LogStart: src.LogStart(), Scanned: from}
	f.LogEnd, _ = v.Latest(ctx, p)
	for _, b := range batches {
		f.Scanned = b.Last + 1
		if b.Base%2 == 0 {
			f.Batches = append(f.Batches, b.AppendTo(nil))
		}
	}
	return f, nil
}

func TestAViewLooksLikeATopicThatNobodyMayWrite(t *testing.T) {
	v := &evenView{}
	f := start(t, frontOptions{views: v})
	v.b = f.broker
	f.create("src", 2, nil)
	w := f.raw(t)
	for i := range 7 {
		w.do(rawProduce(-1, "src", 0, batch(fmt.Sprint(i))))
	}
	var got []string
	for _, r := range consume(t, f.client(kgo.ConsumeTopics("even")), 4) {
		got = append(got, fmt.Sprintf("%d=%s", r.Offset, r.Value))
	}
	if fmt.Sprint(got) != "[0=0 2=2 4=4 6=6]" {
		t.Errorf("got %v", got)
	}
	// A fetch parks until the source has a row that passes; one that does not pass wakes nobody.
	r := f.raw(t)
	id := r.send(ask("even", 15*time.Second, 1, 7, 0))
	time.Sleep(20 * time.Millisecond)
	w.do(rawProduce(-1, "src", 0, batch("7")))
	w.do(rawProduce(-1, "src", 0, batch("8")))
	p := r.receive(ask("even", 0, 1), id).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if h, err := record.ParseHeader(p.RecordBatches); err != nil || h.BaseOffset != 8 || p.HighWatermark != 9 {
		t.Errorf("base %d high watermark %d %v", h.BaseOffset, p.HighWatermark, err)
	}
	v.mu.Lock()
	if v.scans > 50 {
		t.Errorf("%d scans: somebody spins", v.scans)
	}
	v.mu.Unlock()

	if p := w.do(rawProduce(-1, "even", 0, batch("x"))).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != kerr.PolicyViolation.Code {
		t.Errorf("produce to a view: %d", p.ErrorCode)
	}
	adm := f.admin()
	if _, err := adm.DeleteTopic(f.ctx(), "even"); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("delete of a view: %v", err)
	}
	if _, err := adm.DeleteTopic(f.ctx(), "src"); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("delete of a view's source: %v", err)
	}
	ends, err := adm.ListEndOffsets(f.ctx(), "even")
	if o, _ := ends.Lookup("even", 0); err != nil || o.Offset != 9 {
		t.Errorf("end %d %v", o.Offset, err)
	}
	td, err := adm.ListTopics(f.ctx())
	if err != nil || !td.Has("even") || len(td["even"].Partitions) != 2 || td["even"].ID == [16]byte{} {
		t.Errorf("topics %v %v", td, err)
	}
	// Offsets of a group can be committed for it.
	var os kadm.Offsets
	os.AddOffset("even", 0, 8, -1)
	if err := adm.CommitAllOffsets(f.ctx(), "g", os); err != nil {
		t.Fatal(err)
	}
	back, err := adm.FetchOffsets(f.ctx(), "g")
	if o, ok := back.Lookup("even", 0); err != nil || !ok || o.At != 8 {
		t.Errorf("committed %v %v", back, err)
	}
}
