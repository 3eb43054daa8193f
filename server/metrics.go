package server

import (
	nethttp "net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/kafka"
)

// metricsHandler serves /metrics from a registry of this server alone: several may run in one process.
// Everything is read when it is scraped; nothing on the path of a record knows Prometheus.
func (s *Server) metricsHandler() nethttp.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{s})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// A collector reads the counters of a Server. Units are base units.
type collector struct{ s *Server }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("headrace_"+name, help, labels, nil)
}

var (
	descReady       = desc("ready", "1 when /readyz is 200.")
	descStart       = desc("start", "1 for how the run before this one ended: first, clean, crash, power or unknown.", "kind")
	descReserve     = desc("reserve_bytes", "Bytes kept for a start on a full disk, and bytes that should be.", "state")
	descConns       = desc("kafka_connections", "Open Kafka connections.")
	descAccepted    = desc("kafka_connections_accepted_total", "Kafka connections accepted.")
	descRejected    = desc("kafka_connections_rejected_total", "Kafka connections closed because there were too many.")
	descPanics      = desc("kafka_panics_total", "Requests that met a bug; each closed its connection.")
	descRequests    = desc("kafka_requests_total", "Kafka requests handled.", "api")
	descReqErrors   = desc("kafka_request_errors_total", "Kafka requests refused before they were handled.", "api")
	descReqSeconds  = desc("kafka_request_seconds", "Time from a parsed request to its encoded response, waits included.", "api")
	descPublish     = desc("publish_seconds", "Time from a parsed produce request to its last committed batch.")
	descProduceErrs = desc("produce_errors_total", "Partitions of produce requests that were refused.")

	descFlightConns    = desc("flight_connections", "Open Flight connections.")
	descFlightAccepted = desc("flight_connections_accepted_total", "Flight connections accepted.")
	descFlightRejected = desc("flight_connections_rejected_total", "Flight connections closed because there were too many.")
	descFlightCalls    = desc("flight_calls_total", "Flight calls that have ended.")
	descFlightErrors   = desc("flight_call_errors_total", "Flight calls that have ended with an error.")
	descFlightPanics   = desc("flight_panics_total", "Flight calls that met a bug.")
	descFlightRows     = desc("flight_rows_total", "Rows of Flight calls.", "direction")
	descFlightBatches  = desc("flight_batches_total", "Record batches of Flight calls.", "direction")
	descFlightBytes    = desc("flight_bytes_total", "Bytes of the columns of Flight calls.", "direction")

	descTopicRecords = desc("topic_records_in_total", "Records appended by clients.", "topic")
	descTopicBytesIn = desc("topic_bytes_in_total", "Record batch bytes appended by clients.", "topic")
	descTopicBatches = desc("topic_batches_in_total", "Record batches appended by clients.", "topic")
	descTopicBytes   = desc("topic_bytes_out_total", "Record batch bytes delivered.", "topic")

	descTopics     = desc("topics", "Topics.")
	descPartitions = desc("partitions", "Partitions of all topics.")
	descGroups     = desc("groups_active", "Consumer groups with members.")

	descShardLeader   = desc("shard_leader", "1 when this node leads the shard.", "shard")
	descShardTerm     = desc("shard_raft_term", "Raft term.", "shard")
	descShardApplied  = desc("shard_applied_index", "Raft index of the last applied entry.", "shard")
	descShardCheck    = desc("shard_checkpoint_index", "Raft index that the newest checkpoint holds.", "shard")
	descShardWaiting  = desc("shard_waiting_bytes", "Bytes of units that wait to be packed.", "shard")
	descShardInflight = desc("shard_inflight_bytes", "Bytes of units that are packed and not answered.", "shard")
	descShardBacklog  = desc("shard_backlog_bytes", "Bytes applied and not yet written behind the log.", "shard")
	descShardAge      = desc("shard_oldest_write_seconds", "Age of the oldest disk operation in flight that the shard depends on, 0 if there is none.", "shard")
	descShardDown     = desc("shard_down", "1 when the shard is down until the next start.", "shard")
	descShardStalled  = desc("shard_stalled", "1 when a disk operation takes too long.", "shard")
	descWALSyncs      = desc("wal_groups_total", "Groups written and synced.", "shard")
	descWALEntries    = desc("wal_entries_total", "Entries written.", "shard")
	descWALBytes      = desc("wal_bytes_total", "Bytes written, padding included.", "shard")
	descWALSeconds    = desc("wal_write_seconds_total", "Time spent writing and syncing groups.", "shard")
	descWALMax        = desc("wal_write_seconds_max", "The longest write and sync of a group since the start.", "shard")
	descWALUnsynced   = desc("wal_unsynced_groups_total", "Groups of semi-sync topics alone, written without a sync of their own.", "shard")
	descWALMemory     = desc("wal_append_memory_bytes", "Memory that groups are built in, by whether it is locked.", "shard", "locked")
	descWALReady      = desc("wal_segments_ready", "Segments prepared for appends.", "shard")
	descWALWaits      = desc("wal_segment_waits_total", "Rotations that found no prepared segment.", "shard")

	descStoreUnits    = desc("store_units_total", "Units applied.")
	descStoreRejected = desc("store_units_rejected_total", "Units that Apply rejected.")
	descStorePlaced   = desc("store_placed_bytes_total", "Batch bytes written behind the log.", "to")
	descStoreReads    = desc("store_reads_total", "Reads of partitions, by where they were answered.", "from")
	descStoreCache    = desc("store_tail_cache_bytes", "Bytes in the tail cache.")
	descCompactions   = desc("store_compactions_total", "Compaction passes.", "result")
	descCompactBytes  = desc("store_compaction_bytes_total", "Bytes of log that compaction has read for rewriting and left.", "direction")
	descCompactDirty  = desc("store_compaction_dirty_bytes", "Bytes of compacted topics that no pass has seen.")
	descStoreCorrupt  = desc("store_corrupt_total", "Times that wrong bytes were met on disk; a client that asks again meets them again.")
	descStoreRot      = desc("store_rotten_places", "Places where wrong bytes were met on disk since the start, 64 at most.")

	descRetained = desc("retention_log_starts_raised_total", "Log starts that retention raised.")
	descHeld     = desc("retention_held_records", "Offsets that retention would have dropped in its last pass and consumers need.")
	descCut      = desc("retention_cut_records_total", "Offsets that a cap of retention took although a pipeline had yet to read them.")

	descPipeRunning = desc("pipeline_running", "1 when the pipeline runs.", "pipeline")
	descPipeRows    = desc("pipeline_rows_total", "Rows of a pipeline, by what became of them.", "pipeline", "kind")
	descPipeLag     = desc("pipeline_lag_records", "Source records that are not part of a step yet.", "pipeline")
	descPipeState   = desc("pipeline_state_bytes", "Bytes of operator state.", "pipeline")
	descPipeKeys    = desc("pipeline_state_rows", "Rows of operator state.", "pipeline")
)

// Describe implements prometheus.Collector. Sending nothing makes it unchecked: which series there are
// depends on topics and pipelines.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	s := c.s
	ready := len(s.broker.Ready()) == 0 && !s.down.Load() && (s.engine == nil || len(s.engine.NotReady()) == 0)
	gauge(descReady, one(ready))
	for _, kind := range replication.StartKinds {
		gauge(descStart, one(kind == s.node.Startup().Kind), string(kind))
	}
	have, want := s.node.Reserve()
	gauge(descReserve, float64(have), "held")
	gauge(descReserve, float64(want), "wanted")
	c.kafka(out, gauge, count)
	if c.s.flight != nil {
		c.flight(gauge, count)
	}
	c.topics(gauge, count)
	c.shards(gauge, count)
	if s.engine != nil {
		c.pipelines(gauge, count)
	}
}

type emit func(d *prometheus.Desc, v float64, labels ...string)

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c collector) kafka(out chan<- prometheus.Metric, gauge, count emit) {
	m := c.s.kafka.Metrics()
	gauge(descConns, float64(m.Connections.Load()))
	count(descAccepted, float64(m.Accepted.Load()))
	count(descRejected, float64(m.Rejected.Load()))
	count(descPanics, float64(m.Panics.Load()))
	count(descProduceErrs, float64(m.ProduceErrors.Load()))
	m.Each(func(key int16, a *kafka.APIMetrics) {
		n := a.Requests.Load()
		if errs := a.Errors.Load(); n+errs == 0 {
			return
		}
		api := kmsg.NameForKey(key)
		count(descRequests, float64(n), api)
		count(descReqErrors, float64(a.Errors.Load()), api)
		out <- histogram(descReqSeconds, &a.Seconds, api)
	})
	out <- histogram(descPublish, &m.API(0).Seconds)
}

func (c collector) flight(gauge, count emit) {
	m := c.s.flight.Metrics()
	gauge(descFlightConns, float64(m.Connections.Load()))
	count(descFlightAccepted, float64(m.Accepted.Load()))
	count(descFlightRejected, float64(m.Rejected.Load()))
	count(descFlightCalls, float64(m.Calls.Load()))
	count(descFlightErrors, float64(m.Errors.Load()))
	count(descFlightPanics, float64(m.Panics.Load()))
	count(descFlightRows, float64(m.RowsIn.Load()), "in")
	count(descFlightRows, float64(m.RowsOut.Load()), "out")
	count(descFlightBatches, float64(m.BatchesIn.Load()), "in")
	count(descFlightBatches, float64(m.BatchesOut.Load()), "out")
	count(descFlightBytes, float64(m.BytesIn.Load()), "in")
	count(descFlightBytes, float64(m.BytesOut.Load()), "out")
}

// histogram turns a front's histogram into Prometheus's cumulative form.
func histogram(d *prometheus.Desc, h *kafka.Histogram, labels ...string) prometheus.Metric {
	counts, sum := h.Snapshot()
	buckets := make(map[float64]uint64, len(counts))
	total := uint64(0)
	for i, bound := range kafka.LatencyBounds() {
		total += counts[i]
		buckets[bound] = total
	}
	total += counts[len(counts)-1]
	return prometheus.MustNewConstHistogram(d, total, sum, buckets, labels...)
}

func (c collector) topics(gauge, count emit) {
	c.s.broker.TopicMetrics().Each(func(name string, t *broker.TopicCounters) {
		count(descTopicRecords, float64(t.RecordsIn.Load()), name)
		count(descTopicBytesIn, float64(t.BytesIn.Load()), name)
		count(descTopicBatches, float64(t.BatchesIn.Load()), name)
		count(descTopicBytes, float64(t.BytesOut.Load()), name)
	})
	cat := c.s.node.Meta().Catalog()
	gauge(descTopics, float64(cat.TopicCount()))
	gauge(descPartitions, float64(cat.PartitionCount()))
	gauge(descGroups, float64(len(c.s.groups.List())))
}

func (c collector) shards(gauge, count emit) {
	for _, st := range c.s.node.Shards() {
		gauge(descShardLeader, one(st.Leader), st.Name)
		gauge(descShardTerm, float64(st.Term), st.Name)
		gauge(descShardApplied, float64(st.Applied), st.Name)
		gauge(descShardCheck, float64(st.CheckpointIndex), st.Name)
		gauge(descShardWaiting, float64(st.WaitingBytes), st.Name)
		gauge(descShardInflight, float64(st.InflightBytes), st.Name)
		gauge(descShardBacklog, float64(st.BacklogBytes), st.Name)
		gauge(descShardStalled, one(st.Stalled), st.Name)
		gauge(descShardAge, st.OldestWrite.Seconds(), st.Name)
		gauge(descShardDown, one(st.Err != nil), st.Name)
		count(descWALSyncs, float64(st.WAL.Groups), st.Name)
		count(descWALEntries, float64(st.WAL.Entries), st.Name)
		count(descWALBytes, float64(st.WAL.Bytes), st.Name)
		count(descWALSeconds, float64(st.WAL.WriteNs)/1e9, st.Name)
		gauge(descWALMax, float64(st.WAL.MaxWriteNs)/1e9, st.Name)
		count(descWALUnsynced, float64(st.WAL.Unsynced), st.Name)
		gauge(descWALMemory, float64(st.WAL.Locked), st.Name, "true")
		gauge(descWALMemory, float64(st.WAL.AppendMemory-st.WAL.Locked), st.Name, "false")
		gauge(descWALReady, float64(st.WAL.Ready), st.Name)
		count(descWALWaits, float64(st.WAL.Waits), st.Name)
	}
	m := c.s.node.Store().Metrics()
	count(descStoreUnits, float64(m.Units))
	count(descStoreRejected, float64(m.Rejected))
	count(descStorePlaced, float64(m.PlacedBytes), "segment")
	count(descStorePlaced, float64(m.MixedBytes), "mixed")
	count(descStoreReads, float64(m.TailReads), "tail")
	count(descStoreReads, float64(m.FileReads), "file")
	count(descStoreReads, float64(m.LogReads), "log")
	gauge(descStoreCache, float64(m.CacheBytes))
	count(descCompactions, float64(m.Compactions), "done")
	count(descCompactions, float64(m.CompactionsFailed), "failed")
	count(descCompactBytes, float64(m.CompactedIn), "in")
	count(descCompactBytes, float64(m.CompactedOut), "out")
	gauge(descCompactDirty, float64(m.DirtyBytes))
	count(descStoreCorrupt, float64(m.Corrupt))
	gauge(descStoreRot, float64(len(c.s.node.Store().Rot())))
	r := c.s.node.Retention()
	count(descRetained, float64(r.Raised))
	gauge(descHeld, float64(r.HeldRecords))
	count(descCut, float64(r.CutRecords))
}

func (c collector) pipelines(gauge, count emit) {
	for _, p := range c.s.engine.Stats() {
		gauge(descPipeRunning, one(p.Running), p.Name)
		for _, k := range []struct {
			kind string
			n    int64
		}{{"in", p.In}, {"out", p.Out}, {"filtered", p.Filtered}, {"late", p.Late}, {"invalid", p.Invalid}, {"failed", p.Failed}} {
			count(descPipeRows, float64(k.n), p.Name, k.kind)
		}
		gauge(descPipeLag, float64(p.LagRecords), p.Name)
		gauge(descPipeState, float64(p.StateBytes), p.Name)
		gauge(descPipeKeys, float64(p.StateRows), p.Name)
	}
}
