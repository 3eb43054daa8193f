package kafka

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/server/broker"
)

// latencySteps are the bounds of a Histogram: 50 µs doubled, up to 26 s, and what is above.
const latencySteps = 20

// LatencyBounds returns the upper bounds of a Histogram's buckets in seconds, without the last.
func LatencyBounds() []float64 {
	out := make([]float64, latencySteps)
	b := 50e-6
	for i := range out {
		out[i] = b
		b *= 2
	}
	return out
}

// A Histogram counts durations in buckets that double from 50 µs. It has no lock.
type Histogram struct {
	counts [latencySteps + 1]atomic.Uint64
	nanos  atomic.Uint64
}

func (h *Histogram) observe(d time.Duration) {
	d = max(d, 0)
	i := bits.Len64(uint64((d - 1) / (50 * time.Microsecond)))
	if d == 0 {
		i = 0
	}
	h.counts[min(i, latencySteps)].Add(1)
	h.nanos.Add(uint64(d))
}

// Snapshot returns the count per bucket (the last is what is above the bounds) and the sum in seconds.
func (h *Histogram) Snapshot() (counts []uint64, sum float64) {
	counts = make([]uint64, latencySteps+1)
	for i := range counts {
		counts[i] = h.counts[i].Load()
	}
	return counts, float64(h.nanos.Load()) / 1e9
}

// APIMetrics counts one API's requests. Seconds is the handling time, waits included; for Produce
// it is the publish latency, from the parsed frame to the committed batch.
type APIMetrics struct {
	Requests, Errors atomic.Uint64
	Seconds          Histogram
}

// Metrics counts what the front does. Fields are atomics; any goroutine may read them.
type Metrics struct {
	Connections        atomic.Int64 // open now
	Accepted, Rejected atomic.Uint64
	Panics             atomic.Uint64
	BytesIn, BytesOut  atomic.Uint64 // record batch bytes
	BatchesIn          atomic.Uint64
	RecordsIn          atomic.Uint64
	ProduceErrors      atomic.Uint64 // partitions
	perAPI             [64]APIMetrics
}

func (m *Metrics) api(key int16) *APIMetrics { return &m.perAPI[key] }

// Each calls f for every served API.
func (m *Metrics) Each(f func(key int16, a *APIMetrics)) {
	for _, a := range apis {
		if a != nil {
			f(a.key, m.api(a.key))
		}
	}
}

// produced counts a finished Produce request.
func (m *Metrics) produced(results []broker.Appended, d time.Duration) {
	var bytes, records, failed uint64
	for i := range results {
		if results[i].Err != nil {
			failed++
			continue
		}
		bytes += uint64(results[i].Bytes)
		records += uint64(results[i].Records)
	}
	m.BytesIn.Add(bytes)
	m.RecordsIn.Add(records)
	m.BatchesIn.Add(uint64(len(results)) - failed)
	if failed > 0 {
		m.ProduceErrors.Add(failed)
	}
	m.api(keyProduce).Seconds.observe(d)
}

// API returns the counters of one API.
func (m *Metrics) API(key int16) *APIMetrics { return m.api(key) }
