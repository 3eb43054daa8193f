//go:build !race

package kafka_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

// What a produce request of one batch may allocate from its frame to its answer, in the whole process: the entry that the
// batch is copied into, what raft makes for an entry, and what each stage keeps of it. Nothing of it is per record.
const (
	produceAllocs     = 56      // 44 as measured, and what happens now and then
	produceOverhead   = 8 << 10 // bytes besides the copy of the batch in its entry
	allocationRecords = 1000
)

// produced is what one request of one batch with so many records costs.
func produced(t testing.TB, records int) (allocs, bytes float64, batch int) {
	f := start(t, frontOptions{disk: true, wal: 8 << 20}) // a disk in memory would count as ours
	f.create("t", 1, nil)
	b := record.NewBuilder()
	for range records {
		b.Append(1_700_000_000_000, nil, make([]byte, 100), nil)
	}
	data := b.Finish()
	req := rawProduce(-1, "t", 0, data)
	req.SetVersion(9)
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req, 7)
	nc, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(time.Minute))
	answer := make([]byte, 4<<10)
	again := func(n int) {
		for range n {
			if _, err := nc.Write(frame); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(nc, answer[:4]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(nc, answer[:binary.BigEndian.Uint32(answer)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	again(20) // topics, buffers and pools come to be
	const n = 60
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	again(n)
	goruntime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n, float64(after.TotalAlloc-before.TotalAlloc) / n, len(data)
}

// A batch costs the same number of allocations whatever it holds, and one copy of its bytes.
func TestProduceAllocatesPerBatchAndNotPerRecord(t *testing.T) {
	few, _, _ := produced(t, 10)
	many, bytes, size := produced(t, allocationRecords)
	t.Logf("%.1f allocations for a batch of 10 records, %.1f for one of %d; %.0f bytes for a batch of %d", few, many, allocationRecords, bytes, size)
	if many > few+10 {
		t.Errorf("%.1f allocations for 10 records, %.1f for %d", few, many, allocationRecords)
	}
	if many > produceAllocs {
		t.Errorf("%.1f allocations for a batch, at most %d are allowed", many, produceAllocs)
	}
	if bytes > 1.25*float64(size)+produceOverhead {
		t.Errorf("%.0f bytes for a batch of %d: it is copied more than once", bytes, size)
	}
}

// BenchmarkProduceRequest is the same as figures: one request of one batch at a time.
func BenchmarkProduceRequest(b *testing.B) {
	for _, records := range []int{1, 10, allocationRecords} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			for b.Loop() {
				allocs, bytes, size := produced(b, records)
				b.ReportMetric(allocs, "allocs/batch")
				b.ReportMetric(bytes/float64(size), "copies/batch")
				if allocs > produceAllocs {
					b.Fatalf("%.1f allocations for a batch, at most %d are allowed", allocs, produceAllocs)
				}
			}
		})
	}
}
