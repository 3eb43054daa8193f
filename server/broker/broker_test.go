package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
)

func TestCodesAreComplete(t *testing.T) {
	last := ""
	for _, c := range Codes() {
		if c.Title == "" || c.Why == "" || c.Fix == "" || c.Status < 400 || c.Status > 599 {
			t.Errorf("%+v", c)
		}
		if c.Code <= last {
			t.Errorf("%s after %s", c.Code, last)
		}
		last = c.Code
	}
	e := AsError(fmt.Errorf("outer: %w", Errorf(UnknownTopic, "topic %q: %w", "x", errors.ErrUnsupported)))
	if e.Code != UnknownTopic || !errors.Is(e, errors.ErrUnsupported) || e.Error() != `E1001 topic "x": unsupported operation` {
		t.Errorf("%v", e)
	}
	if AsError(errors.New("odd")).Code != Internal {
		t.Error("an unknown error is not Internal")
	}
}

func TestTopicNames(t *testing.T) {
	for _, good := range []string{"a", "A.b_c-9", "...", strings.Repeat("x", MaxTopicName)} {
		if err := CheckTopicName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "../x", "a/b", `a\b`, "a b", "a\x00", "ü", "a\n", strings.Repeat("x", MaxTopicName+1)} {
		if CheckTopicName(bad) == nil {
			t.Errorf("%q is allowed", bad)
		}
	}
	for bad, says := range map[string]string{
		"ünï": `has the character "ü"`, "a\n": `has the character "\n"`, "a\xff": "has the byte 0xff",
		strings.Repeat("x", 79) + "ünï": strings.Repeat("x", 79) + `…" has the character "ü"`, // cut between characters
	} {
		if err := CheckTopicName(bad); err == nil || !strings.Contains(err.Message, says) {
			t.Errorf("%q: %v, want %s", bad, err, says)
		}
	}
	if again := viewID("a"); again == viewID("b") || again != viewID("a") {
		t.Error("a view's id is not a function of its name")
	}
}

func TestConfigsBecomeSettings(t *testing.T) {
	for _, c := range []struct {
		configs map[string]string
		want    log.PartitionSettings
	}{
		{nil, log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1, MaxBatchBytes: 1048588}},
		{map[string]string{"retention.ms": "5", "retention.bytes": "7", "max.message.bytes": "2048"}, log.PartitionSettings{RetentionMs: 5, RetentionBytes: 7, MaxBatchBytes: 2048}},
		{map[string]string{"cleanup.policy": "compact", "retention.ms": "5"}, log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1, MaxBatchBytes: 1048588, Compact: true}},
		{map[string]string{"cleanup.policy": "compact, delete", "retention.ms": "5"}, log.PartitionSettings{RetentionMs: 5, RetentionBytes: -1, MaxBatchBytes: 1048588, Compact: true}},
		{map[string]string{"cleanup.policy": "compact", "segment.bytes": "2097152", "segment.ms": "1000", "delete.retention.ms": "0", "min.compaction.lag.ms": "5", "max.compaction.lag.ms": "6", "min.cleanable.dirty.ratio": "0.25"}, log.PartitionSettings{
			RetentionMs: -1, RetentionBytes: -1, MaxBatchBytes: 1048588, Compact: true, SegmentBytes: 2 << 20, SegmentMs: 1000,
			DeleteRetentionMs: -1, MinCompactionLagMs: 5, MaxCompactionLagMs: 6, MinDirtyPPM: 250_000,
		}},
		{map[string]string{"message.timestamp.type": "LogAppendTime"}, log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1, MaxBatchBytes: 1048588, AppendTimestamps: true}},
	} {
		if got, err := ParseConfigs(c.configs); err != nil || got != c.want {
			t.Errorf("%v: %+v %v", c.configs, got, err)
		}
	}
	for name, value := range map[string]string{
		"nonsense": "1", "retention.ms": "-2", "max.message.bytes": "8388608", "cleanup.policy": "", "preallocate": "yes", "min.cleanable.dirty.ratio": "2",
		"compression.type": "rar", "retention.bytes": "1e3", "segment.bytes": "1048575",
	} {
		if _, err := ParseConfigs(map[string]string{name: value}); AsError(err).Code != InvalidConfig {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	for _, configs := range []map[string]string{{"min.cleanable.dirty.ratio": "NaN"}, {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "6"}} {
		if _, err := ParseConfigs(configs); AsError(err).Code != InvalidConfig {
			t.Errorf("%v: %v", configs, err)
		}
	}
	for name, c := range topicConfigs {
		if err := c.check(name, c.def); err != nil && c.def != "" {
			t.Errorf("the default of %s is not valid: %v", name, err)
		}
	}
	entries := DescribeConfigs(&Topic{Configs: map[string]string{"retention.ms": "5"}})
	for i, e := range entries {
		if i > 0 && e.Name <= entries[i-1].Name || e.Doc == "" {
			t.Errorf("%+v", e)
		}
		if (e.Source == "topic") != (e.Name == "retention.ms") {
			t.Errorf("%+v", e)
		}
	}
}

func TestTopicSeriesAreBounded(t *testing.T) {
	var m TopicMetrics
	for i := range MaxTopicSeries + 50 {
		m.appended(fmt.Sprint("t", i), 1, 10)
	}
	rows, other := 0, uint64(0)
	m.Each(func(name string, c *TopicCounters) {
		rows++
		if name == OtherTopics {
			other = c.RecordsIn.Load()
		}
	})
	if rows != MaxTopicSeries+1 || other != 50 {
		t.Errorf("%d rows, %d records in the shared one", rows, other)
	}
}

func TestDurabilityIsATopicSetting(t *testing.T) {
	for value, ok := range map[string]bool{"sync": true, "semi-sync": true, "async": true, "": false, "fast": false, "SYNC": false} {
		if _, err := ParseConfigs(map[string]string{"durability": value}); (err == nil) != ok {
			t.Errorf("durability=%q: %v", value, err)
		}
	}
	for value, semi := range map[string]bool{"sync": false, "semi-sync": true, "async": false} {
		if got := fromRow(&replication.Topic{Configs: map[string]string{"durability": value}}); got.SemiSync != semi {
			t.Errorf("durability=%s: semi-sync %v", value, got.SemiSync)
		}
	}
}
