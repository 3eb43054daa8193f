package broker

import (
	"sync"
	"sync/atomic"
)

// MaxTopicSeries is how many topics are counted one by one; the others share one row. It bounds what a
// scrape returns.
const MaxTopicSeries = 1000

// OtherTopics is the name of the shared row. No topic can have it.
const OtherTopics = "(other)"

// TopicCounters counts one topic. Fields are atomics.
type TopicCounters struct {
	RecordsIn, BytesIn, BatchesIn, BytesOut atomic.Uint64
}

// TopicMetrics counts per topic, for the first MaxTopicSeries topics that are used.
type TopicMetrics struct {
	rows  sync.Map // name to *TopicCounters
	count atomic.Int64
	other TopicCounters
}

func (m *TopicMetrics) row(name string) *TopicCounters {
	if v, ok := m.rows.Load(name); ok {
		return v.(*TopicCounters)
	}
	if m.count.Load() >= MaxTopicSeries {
		return &m.other
	}
	v, loaded := m.rows.LoadOrStore(name, &TopicCounters{})
	if !loaded {
		m.count.Add(1)
	}
	return v.(*TopicCounters)
}

func (m *TopicMetrics) appended(name string, records, bytes int) {
	r := m.row(name)
	r.RecordsIn.Add(uint64(records))
	r.BytesIn.Add(uint64(bytes))
	r.BatchesIn.Add(1)
}

func (m *TopicMetrics) fetched(name string, bytes int) {
	m.row(name).BytesOut.Add(uint64(bytes))
}

// Each calls f for every counted topic and for OtherTopics if it was used.
func (m *TopicMetrics) Each(f func(name string, c *TopicCounters)) {
	m.rows.Range(func(k, v any) bool {
		f(k.(string), v.(*TopicCounters))
		return true
	})
	if m.other.BatchesIn.Load()+m.other.BytesOut.Load() > 0 {
		f(OtherTopics, &m.other)
	}
}

// TopicMetrics returns the live counters.
func (b *Broker) TopicMetrics() *TopicMetrics { return &b.topics }
