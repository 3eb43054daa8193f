package broker

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
)

// A ConfigEntry is one setting as shown to a user.
type ConfigEntry struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Fallback string `json:"default_value"` // what it is when nobody sets it
	Type     string `json:"type"`          // string, int, long, double, boolean, list
	Default  bool   `json:"default"`
	Source   string `json:"source"` // default, topic, node
	ReadOnly bool   `json:"read_only"`
	Honoured bool   `json:"honoured"` // false: accepted and shown, without effect
	Doc      string `json:"doc"`
}

// A topicConfig is a known setting of a topic. Tools of the Kafka world set and read many that have no
// meaning here; they are kept, so that what was set is what is shown.
type topicConfig struct {
	typ, def string
	min, max int64    // of int and long
	oneOf    []string // of string and list
	honoured bool
	doc      string
}

const (
	week    = "604800000"
	maxLong = math.MaxInt64
	maxInt  = math.MaxInt32
)

var topicConfigs = map[string]topicConfig{
	"cleanup.policy":                          {typ: "list", def: "delete", oneOf: []string{"delete", "compact"}, honoured: true, doc: "delete drops old records by time and size; compact keeps the latest record of each key."},
	"retention.ms":                            {typ: "long", def: "-1", min: -1, max: maxLong, honoured: true, doc: "Records are kept at least this long after their append; -1 is for ever."},
	"retention.bytes":                         {typ: "long", def: "-1", min: -1, max: maxLong, honoured: true, doc: "At least this many of a partition's last bytes are kept; -1 is no limit by size."},
	"max.message.bytes":                       {typ: "int", def: strconv.Itoa(replication.DefaultMaxBatchBytes), min: 1024, max: log.MaxBatchBytes, honoured: true, doc: "The largest accepted record batch."},
	"message.timestamp.type":                  {typ: "string", def: "CreateTime", oneOf: []string{"CreateTime", "LogAppendTime"}, honoured: true, doc: "Whether a record's timestamp is the producer's or the time of its append."},
	"compression.type":                        {typ: "string", def: "producer", oneOf: []string{"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}, doc: "Batches are kept as the producer sent them."},
	"compression.gzip.level":                  {typ: "int", def: "-1", min: -1, max: 9},
	"compression.lz4.level":                   {typ: "int", def: "9", min: 1, max: 17},
	"compression.zstd.level":                  {typ: "int", def: "3", min: -131072, max: 22},
	"delete.retention.ms":                     {typ: "long", def: "86400000", min: 0, max: maxLong, honoured: true, doc: "Of a compacted topic: how long a tombstone is kept after compaction has first met it."},
	"durability":                              {typ: "string", def: "sync", oneOf: []string{"sync", "semi-sync", "async"}, honoured: true, doc: "What an acknowledgement means: sync, on the disks of a majority; semi-sync, in the memory of a majority's operating systems and on the disk 10 ms later; async, on the leader's disk."},
	"file.delete.delay.ms":                    {typ: "long", def: "60000", min: 0, max: maxLong},
	"flush.messages":                          {typ: "long", def: "9223372036854775807", min: 1, max: maxLong, doc: "Every acknowledged record is synced whatever this says."},
	"flush.ms":                                {typ: "long", def: "9223372036854775807", min: 0, max: maxLong, doc: "Every acknowledged record is synced whatever this says."},
	"follower.replication.throttled.replicas": {typ: "list", def: ""},
	"headrace.retention.consumers":            {typ: "list", def: "pipelines", oneOf: []string{"pipelines", "groups", "none"}, honoured: true, doc: "Whose unread records are kept, whatever retention.ms and retention.bytes say: pipelines, groups (what they have committed), both, or none."},
	"headrace.retention.max.bytes":            {typ: "long", def: "-1", min: -1, max: maxLong, honoured: true, doc: "Consumers hold back no more than about this many of a partition's last bytes; -1 is no cap."},
	"headrace.retention.max.ms":               {typ: "long", def: "-1", min: -1, max: maxLong, honoured: true, doc: "Consumers hold back nothing that was appended longer ago; -1 is no cap."},
	"index.interval.bytes":                    {typ: "int", def: "4096", min: 0, max: maxInt},
	"leader.replication.throttled.replicas":   {typ: "list", def: ""},
	"local.retention.bytes":                   {typ: "long", def: "-2", min: -2, max: maxLong},
	"local.retention.ms":                      {typ: "long", def: "-2", min: -2, max: maxLong},
	"max.compaction.lag.ms":                   {typ: "long", def: "9223372036854775807", min: 1, max: maxLong, honoured: true, doc: "A record that compaction has not met for this long makes its partition due whatever min.cleanable.dirty.ratio says."},
	"message.downconversion.enable":           {typ: "boolean", def: "false"},
	"message.format.version":                  {typ: "string", def: "3.0-IV1"},
	"message.timestamp.after.max.ms":          {typ: "long", def: "9223372036854775807", min: 0, max: maxLong},
	"message.timestamp.before.max.ms":         {typ: "long", def: "9223372036854775807", min: 0, max: maxLong},
	"message.timestamp.difference.max.ms":     {typ: "long", def: "9223372036854775807", min: 0, max: maxLong},
	"min.cleanable.dirty.ratio":               {typ: "double", def: "0.5", honoured: true, doc: "The share of a partition's bytes that compaction has not met yet from which on it works."},
	"min.compaction.lag.ms":                   {typ: "long", def: "0", min: 0, max: maxLong, honoured: true, doc: "Compaction leaves records alone for this long after their append."},
	"min.insync.replicas":                     {typ: "int", def: "1", min: 1, max: maxInt, doc: "Acknowledged means synced on a majority of the shard whatever this says."},
	"preallocate":                             {typ: "boolean", def: "false"},
	"remote.log.copy.disable":                 {typ: "boolean", def: "false"},
	"remote.log.delete.on.disable":            {typ: "boolean", def: "false"},
	"remote.storage.enable":                   {typ: "boolean", def: "false"},
	"segment.bytes":                           {typ: "int", def: "268435456", min: 1 << 20, max: maxInt, honoured: true, doc: "The size at which a segment file is closed."},
	"segment.index.bytes":                     {typ: "int", def: "10485760", min: 4, max: maxInt},
	"segment.jitter.ms":                       {typ: "long", def: "0", min: 0, max: maxLong},
	"segment.ms":                              {typ: "long", def: week, min: 1, max: maxLong, honoured: true, doc: "The age at which a segment file is closed: retention and compaction take closed ones."},
	"unclean.leader.election.enable":          {typ: "boolean", def: "false"},
}

// ParseConfigs checks the settings of a topic and returns what the log needs to know of them.
func ParseConfigs(configs map[string]string) (log.PartitionSettings, error) {
	names := make([]string, 0, len(configs))
	for name := range configs {
		names = append(names, name)
	}
	sort.Strings(names) // which of two errors is told must not depend on map order
	for _, name := range names {
		c, ok := topicConfigs[name]
		if !ok {
			return log.PartitionSettings{}, Errorf(InvalidConfig, "%q is no setting of a topic", clip(name))
		}
		if err := c.check(name, configs[name]); err != nil {
			return log.PartitionSettings{}, err
		}
	}
	get := func(name string) string {
		if v, ok := configs[name]; ok {
			return v
		}
		return topicConfigs[name].def
	}
	num := func(name string) int64 {
		n, _ := strconv.ParseInt(get(name), 10, 64)
		return n
	}
	s := log.PartitionSettings{
		RetentionMs: num("retention.ms"), RetentionBytes: num("retention.bytes"),
		MaxBatchBytes: int32(num("max.message.bytes")), AppendTimestamps: get("message.timestamp.type") == "LogAppendTime",
	}
	own := func(name string) int64 { // 0: not said
		if _, ok := configs[name]; !ok {
			return 0
		}
		return num(name)
	}
	s.SegmentBytes, s.SegmentMs = own("segment.bytes"), own("segment.ms")
	s.MinCompactionLagMs, s.MaxCompactionLagMs = own("min.compaction.lag.ms"), own("max.compaction.lag.ms")
	if s.MaxCompactionLagMs > 0 && s.MaxCompactionLagMs < s.MinCompactionLagMs {
		return s, Errorf(InvalidConfig, "max.compaction.lag.ms=%d is below min.compaction.lag.ms=%d", s.MaxCompactionLagMs, s.MinCompactionLagMs)
	}
	if _, ok := configs["delete.retention.ms"]; ok {
		s.DeleteRetentionMs = cmp.Or(num("delete.retention.ms"), -1)
	}
	if v, ok := configs["min.cleanable.dirty.ratio"]; ok {
		f, _ := strconv.ParseFloat(v, 64)
		s.MinDirtyPPM = cmp.Or(int32(math.Round(f*1e6)), -1)
	}
	// A cap of 0 is the smallest that there is: 0 stands for none in the log.
	capped := func(name string) int64 {
		switch n := num(name); {
		case n < 0:
			return 0
		default:
			return max(1, n)
		}
	}
	s.MaxRetentionMs, s.MaxRetentionBytes = capped("headrace.retention.max.ms"), capped("headrace.retention.max.bytes")
	keep := splitList(get("headrace.retention.consumers"))
	if slices.Contains(keep, "none") && len(keep) > 1 {
		return s, Errorf(InvalidConfig, "headrace.retention.consumers=%q: none stands alone", clip(get("headrace.retention.consumers")))
	}
	s.KeepForGroups, s.IgnorePipelines = slices.Contains(keep, "groups"), !slices.Contains(keep, "pipelines")
	deletes := false
	for _, p := range splitList(get("cleanup.policy")) {
		s.Compact = s.Compact || p == "compact"
		deletes = deletes || p == "delete"
	}
	if !deletes {
		s.RetentionMs, s.RetentionBytes = -1, -1
	}
	return s, nil
}

func (c topicConfig) check(name, value string) error {
	bad := func(want string) error {
		return Errorf(InvalidConfig, "%s=%q: want %s", name, clip(value), want)
	}
	switch c.typ {
	case "int", "long":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < c.min || n > c.max {
			return bad("a number from " + strconv.FormatInt(c.min, 10) + " to " + strconv.FormatInt(c.max, 10))
		}
	case "double":
		if f, err := strconv.ParseFloat(value, 64); err != nil || !(f >= 0 && f <= 1) { // also no NaN
			return bad("a number from 0 to 1")
		}
	case "boolean":
		if value != "true" && value != "false" {
			return bad("true or false")
		}
	default:
		if len(value) > 1<<10 {
			return bad("at most 1024 bytes")
		}
		if c.oneOf == nil {
			return nil
		}
		values := []string{value}
		if c.typ == "list" {
			values = splitList(value)
		}
		for _, v := range values {
			if !slices.Contains(c.oneOf, v) {
				return bad("one of " + strings.Join(c.oneOf, ", "))
			}
		}
		if len(values) == 0 {
			return bad("one of " + strings.Join(c.oneOf, ", "))
		}
	}
	return nil
}

// DescribeConfigs lists every setting of a topic, by name.
func DescribeConfigs(t *Topic) []ConfigEntry {
	out := make([]ConfigEntry, 0, len(topicConfigs))
	for name, c := range topicConfigs {
		e := ConfigEntry{Name: name, Value: c.def, Fallback: c.def, Type: c.typ, Default: true, Source: "default", Honoured: c.honoured, Doc: c.doc}
		e.ReadOnly = t.Kind == View || t.Kind == Derived && slices.Contains(fixedOfDerived, name)
		if v, ok := t.Configs[name]; ok {
			e.Value, e.Default, e.Source = v, false, "topic"
		}
		if e.Doc == "" {
			e.Doc = "Kept and shown for tools; without effect."
		}
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// NodeConfigs lists what tools ask a Kafka broker for. All of it is read only.
func (b *Broker) NodeConfigs(autoCreate bool) []ConfigEntry {
	out := []ConfigEntry{
		{Name: "auto.create.topics.enable", Value: strconv.FormatBool(autoCreate), Type: "boolean", Honoured: true, Doc: "Whether a client's metadata request creates a topic."},
		{Name: "broker.id", Value: strconv.Itoa(int(b.NodeID())), Type: "int", Honoured: true, Doc: "The node's number."},
		{Name: "default.replication.factor", Value: "1", Type: "int", Honoured: true, Doc: "Replicas of a new topic."},
		{Name: "log.cleanup.policy", Value: "delete", Type: "list", Honoured: true, Doc: "The default of cleanup.policy."},
		{Name: "log.message.timestamp.type", Value: "CreateTime", Type: "string", Honoured: true, Doc: "The default of message.timestamp.type."},
		{Name: "log.retention.bytes", Value: "-1", Type: "long", Honoured: true, Doc: "The default of retention.bytes."},
		{Name: "log.retention.ms", Value: "-1", Type: "long", Honoured: true, Doc: "The default of retention.ms."},
		{Name: "message.max.bytes", Value: topicConfigs["max.message.bytes"].def, Type: "int", Honoured: true, Doc: "The default of max.message.bytes."},
		{Name: "min.insync.replicas", Value: "1", Type: "int", Honoured: true, Doc: "A majority of a shard's voters is always needed."},
		{Name: "num.partitions", Value: strconv.Itoa(int(b.opts.DefaultPartitions)), Type: "int", Honoured: true, Doc: "Partitions of a new topic that does not say."},
		{Name: "offsets.retention.minutes", Value: retentionMinutes(b.opts.OffsetsRetention), Type: "int", Honoured: true, Doc: "How long a consumer group's offsets stay after its last member has left and its last commit; -1 is for ever."},
		{Name: "unclean.leader.election.enable", Value: "false", Type: "boolean", Honoured: true, Doc: "Never: an acknowledged record is not lost."},
	}
	for i := range out {
		out[i].ReadOnly, out[i].Default, out[i].Source, out[i].Fallback = true, true, "node", out[i].Value
	}
	return out
}

func retentionMinutes(d time.Duration) string {
	if d < 0 {
		return "-1"
	}
	return strconv.FormatInt(int64((d+time.Minute-1)/time.Minute), 10)
}
