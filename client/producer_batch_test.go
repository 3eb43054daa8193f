package client

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

// emptyBatch is a batch of a partition that nobody sends.
func emptyBatch(size int) *batch {
	b := &batch{class: len(sizeClasses), buf: make([]byte, batchHeaderBytes, size)}
	b.reset(&partition{t: &topicState{name: "t"}}, time.Now())
	return b
}

func (b *batch) put(m Message, ms int64) bool {
	body, whole := b.measure(&m, ms)
	if len(b.buf)+whole > cap(b.buf) {
		return false
	}
	before := len(b.buf)
	b.add(&m, ms, body, whole, nil)
	if len(b.buf)-before != whole {
		panic(fmt.Sprintf("%d bytes, measured %d", len(b.buf)-before, whole))
	}
	return true
}

func randomMessage(r *rand.Rand) (Message, int64) {
	bytesOf := func(n int) []byte {
		switch r.IntN(5) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	m := Message{Key: bytesOf(100), Value: bytesOf([]int{2, 70, 300, 20_000}[r.IntN(4)])}
	for range r.IntN(4) * r.IntN(2) {
		m.Headers = append(m.Headers, Header{Key: string(bytesOf(80)), Value: bytesOf(100)})
	}
	return m, []int64{1_700_000_000_000, 1_700_000_000_000 + r.Int64N(1000), r.Int64(), -5}[r.IntN(4)]
}

// check compares a sealed batch with what went into it, as the server's checks and franz-go's decoders see it.
func checkBatch(t *testing.T, b *batch, want []Message, times []int64) {
	t.Helper()
	if _, err := record.Verify(b.buf); err != nil {
		t.Fatal(err)
	}
	if err := record.VerifyRecords(b.buf); err != nil {
		t.Fatal(err)
	}
	var rb kmsg.RecordBatch
	if err := rb.ReadFrom(b.buf); err != nil {
		t.Fatal(err)
	}
	if rb.ProducerID != b.ident.id || rb.ProducerEpoch != b.ident.epoch || rb.FirstSequence != b.sequence || int(rb.NumRecords) != len(want) || rb.Magic != 2 || rb.Attributes != 0 {
		t.Fatalf("header %+v", rb)
	}
	largest := times[0]
	rest := rb.Records
	for i, m := range want {
		size, n := readVarint(rest)
		var kr kmsg.Record
		if err := kr.ReadFrom(rest[:n+int(size)]); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		rest = rest[n+int(size):]
		largest = max(largest, times[i])
		if rb.FirstTimestamp+kr.TimestampDelta64 != times[i] || int(kr.OffsetDelta) != i || len(kr.Headers) != len(m.Headers) ||
			!bytes.Equal(kr.Key, m.Key) || !bytes.Equal(kr.Value, m.Value) || (kr.Key == nil) != (m.Key == nil) || (kr.Value == nil) != (m.Value == nil) {
			t.Fatalf("record %d is %+v, want %+v at %d", i, kr, m, times[i])
		}
		for k, h := range m.Headers {
			if kr.Headers[k].Key != h.Key || !bytes.Equal(kr.Headers[k].Value, h.Value) || (kr.Headers[k].Value == nil) != (h.Value == nil) {
				t.Fatalf("record %d header %d is %+v, want %+v", i, k, kr.Headers[k], h)
			}
		}
	}
	if len(rest) != 0 || rb.MaxTimestamp != largest {
		t.Fatalf("%d bytes are left, largest time %d, want %d", len(rest), rb.MaxTimestamp, largest)
	}
}

func TestBatchesAreWhatOthersDecode(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := emptyBatch(1 + 200_000)
		var want []Message
		var times []int64
		for range 1 + r.IntN(300) {
			m, ms := randomMessage(r)
			if !b.put(m, ms) {
				break
			}
			want, times = append(want, m), append(times, ms)
		}
		b.seal(identity{id: r.Int64(), epoch: int16(r.IntN(1 << 15)), ok: true}, int32(r.Uint32()>>1))
		checkBatch(t, b, want, times)
		if len(want) < 2 {
			continue
		}
		other := emptyBatch(1 + 200_000)
		b.split(other)
		b.seal(b.ident, b.sequence)
		keep := b.count()
		other.seal(b.ident, nextSequence(b.sequence, keep))
		checkBatch(t, b, want[:keep], times[:keep])
		checkBatch(t, other, want[keep:], times[keep:])
	}
}

func FuzzBatch(f *testing.F) {
	f.Add([]byte("k"), []byte("v"), "h", []byte("x"), int64(5), uint8(3))
	f.Add([]byte(nil), bytes.Repeat([]byte("v"), 9000), "", []byte(nil), int64(-1), uint8(200))
	f.Fuzz(func(t *testing.T, key, value []byte, header string, hv []byte, ms int64, count uint8) {
		b := emptyBatch(4 << 20)
		var want []Message
		var times []int64
		for i := range int(count)%64 + 1 {
			m := Message{Key: key, Value: value}
			if i%2 == 1 {
				m.Headers = []Header{{header, hv}}
			}
			at := ms ^ int64(i)
			if b.put(m, at) {
				want, times = append(want, m), append(times, at)
			}
		}
		if len(want) == 0 {
			return
		}
		b.seal(identity{id: 7, epoch: 1, ok: true}, 9)
		checkBatch(t, b, want, times)
	})
}

func TestKeysGoWhereKafkaPutsThem(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 2000 {
		key := make([]byte, r.IntN(40))
		for i := range key {
			key[i] = byte(r.Uint32())
		}
		n := 1 + r.IntN(50)
		want := kgo.StickyKeyPartitioner(nil).ForTopic("t").Partition(&kgo.Record{Key: key}, n)
		if got := keyPartition(key, uint32(n)); int(got) != want {
			t.Fatalf("key %x of %d partitions: %d, Kafka says %d", key, n, got, want)
		}
	}
}

func TestSequencesWrapToZero(t *testing.T) {
	if got := nextSequence(1<<31-2, 5); got != 3 {
		t.Errorf("got %d", got)
	}
	if got := nextSequence(1<<31-1, 1); got != 0 {
		t.Errorf("got %d", got)
	}
}

// Appending a record allocates nothing.
func TestARecordAllocatesNothing(t *testing.T) {
	p := &Producer{o: ProducerOptions{}.withDefaults()}
	pt := &partition{t: &topicState{p: p, name: "t"}}
	pt.t.limit.Store(int64(p.o.BatchBytes))
	b := &batch{class: len(sizeClasses), buf: make([]byte, batchHeaderBytes, p.o.BatchBytes), done: make([]produced, 0, batchRecords)}
	b.reset(pt, time.Now())
	pt.mu.open = b
	w := &Writer{t: pt.t}
	pt.t.parts = []*partition{pt}
	value, done := make([]byte, 100), func(Ack) {}
	if n := testing.AllocsPerRun(5000, func() {
		if err := w.Produce(t.Context(), Message{Value: value}, done); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a record", n)
	}
}
