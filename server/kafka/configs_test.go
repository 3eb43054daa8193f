package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// setting describes one setting of a topic: "value source".
func (f *front) setting(topic, name string) string {
	f.t.Helper()
	rcs, err := f.admin().DescribeTopicConfigs(f.ctx(), topic)
	if err != nil {
		f.t.Fatal(err)
	}
	rc, err := rcs.On(topic, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range rc.Configs {
		if c.Key == name {
			return c.MaybeValue() + " " + c.Source.String()
		}
	}
	return "none"
}

// alter changes settings incrementally: "name=value", "-name" for the default, "name+=value", "name-=value".
func (f *front) alter(topic string, changes ...string) error {
	f.t.Helper()
	rs, err := f.admin().AlterTopicConfigs(f.ctx(), alterations(changes...), topic)
	if err != nil {
		f.t.Fatal(err)
	}
	return rs[0].Err
}

func alterations(changes ...string) (out []kadm.AlterConfig) {
	for _, c := range changes {
		a := kadm.AlterConfig{Op: kadm.SetConfig}
		name, value, _ := strings.Cut(c, "=")
		switch {
		case strings.HasPrefix(c, "-"):
			a.Op, a.Name = kadm.DeleteConfig, c[1:]
		case strings.HasSuffix(name, "+"):
			a.Op, a.Name, a.Value = kadm.AppendConfig, name[:len(name)-1], &value
		case strings.HasSuffix(name, "-"):
			a.Op, a.Name, a.Value = kadm.SubtractConfig, name[:len(name)-1], &value
		default:
			a.Name, a.Value = name, &value
		}
		out = append(out, a)
	}
	return out
}

func TestSettingsAreChangedWhileTheTopicIsInUse(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 2, map[string]*string{"segment.ms": kmsg.StringPtr("1000")})
	cl := f.client(kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytes(4000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	big := func() error {
		return cl.ProduceSync(f.ctx(), kgo.SliceRecord(make([]byte, 2000))).FirstErr()
	}
	if err := big(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change, name, want string
		err                error
	}{
		{"max.message.bytes=1500", "max.message.bytes", "1500 DYNAMIC_TOPIC_CONFIG", nil},
		{"retention.ms=86400000", "retention.ms", "86400000 DYNAMIC_TOPIC_CONFIG", nil},
		{"retention.ms=soon", "retention.ms", "86400000 DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"retention.ms=-2", "retention.ms", "86400000 DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"nonsense=1", "nonsense", "none", kerr.InvalidConfig},
		{"-nonsense", "nonsense", "none", kerr.InvalidConfig},
		{"cleanup.policy+=compact", "cleanup.policy", "delete,compact DYNAMIC_TOPIC_CONFIG", nil},
		{"cleanup.policy+=compact", "cleanup.policy", "delete,compact DYNAMIC_TOPIC_CONFIG", nil},
		{"cleanup.policy-=delete", "cleanup.policy", "compact DYNAMIC_TOPIC_CONFIG", nil},
		{"cleanup.policy-=compact", "cleanup.policy", "compact DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"cleanup.policy+=shred", "cleanup.policy", "compact DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"retention.ms+=1", "retention.ms", "86400000 DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"-cleanup.policy", "cleanup.policy", "delete DEFAULT_CONFIG", nil},
		{"-cleanup.policy", "cleanup.policy", "delete DEFAULT_CONFIG", nil},
		{"headrace.retention.consumers+=groups", "headrace.retention.consumers", "pipelines,groups DYNAMIC_TOPIC_CONFIG", nil},
		{"headrace.retention.consumers+=none", "headrace.retention.consumers", "pipelines,groups DYNAMIC_TOPIC_CONFIG", kerr.InvalidConfig},
		{"message.timestamp.type=LogAppendTime", "message.timestamp.type", "LogAppendTime DYNAMIC_TOPIC_CONFIG", nil},
		{"min.cleanable.dirty.ratio=1.5", "min.cleanable.dirty.ratio", "0.5 DEFAULT_CONFIG", kerr.InvalidConfig},
		{"segment.bytes=1048576", "segment.bytes", "1048576 DYNAMIC_TOPIC_CONFIG", nil},
		{"min.insync.replicas=2", "min.insync.replicas", "2 DYNAMIC_TOPIC_CONFIG", nil},
	} {
		if err := f.alter("t", c.change); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.change, err, c.err)
		}
		if got := f.setting("t", c.name); got != c.want {
			t.Errorf("after %s: %s is %q, want %q", c.change, c.name, got, c.want)
		}
	}
	if err := big(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a batch above the new limit: %v", err)
	}
	if err := f.alter("nobody", "retention.ms=1"); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("unknown topic: %v", err)
	}
	if err := f.alter("t", "retention.ms=1", "retention.ms=2"); !errors.Is(err, kerr.InvalidRequest) {
		t.Errorf("named twice: %v", err)
	}
	// One bad change of several changes nothing.
	if err := f.alter("t", "retention.ms=7", "retention.bytes=x"); !errors.Is(err, kerr.InvalidConfig) || f.setting("t", "retention.ms") != "86400000 DYNAMIC_TOPIC_CONFIG" {
		t.Errorf("half a change: %v, %s", err, f.setting("t", "retention.ms"))
	}
	rs, err := f.admin().ValidateAlterTopicConfigs(f.ctx(), alterations("retention.ms=5"), "t")
	if err != nil || rs[0].Err != nil || f.setting("t", "retention.ms") != "86400000 DYNAMIC_TOPIC_CONFIG" {
		t.Errorf("only validated: %v %v", rs, err)
	}
	f.restart()
	for name, want := range map[string]string{
		"max.message.bytes": "1500 DYNAMIC_TOPIC_CONFIG", "segment.ms": "1000 DYNAMIC_TOPIC_CONFIG", "cleanup.policy": "delete DEFAULT_CONFIG",
		"headrace.retention.consumers": "pipelines,groups DYNAMIC_TOPIC_CONFIG",
	} {
		if got := f.setting("t", name); got != want {
			t.Errorf("after a restart: %s is %q, want %q", name, got, want)
		}
	}
	if r, _ := f.broker.Topic("t"); r.Settings.MaxBatchBytes != 1500 || !r.Settings.KeepForGroups || !r.Settings.AppendTimestamps || r.Settings.SegmentBytes != 1<<20 {
		t.Errorf("the log has %+v", r.Settings)
	}
	// The older request says all settings: the others become the default.
	rs, err = f.admin().AlterTopicConfigsState(f.ctx(), alterations("retention.bytes=4096"), "t")
	if err != nil || rs[0].Err != nil {
		t.Fatal(rs, err)
	}
	for name, want := range map[string]string{"retention.bytes": "4096 DYNAMIC_TOPIC_CONFIG", "max.message.bytes": "1048588 DEFAULT_CONFIG", "segment.ms": "604800000 DEFAULT_CONFIG"} {
		if got := f.setting("t", name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestSettingsChangedAtOnceAreAllKept(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 3, nil)
	names := []string{"retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "max.message.bytes", "delete.retention.ms"}
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			for k := range 5 {
				if err := f.alter("t", fmt.Sprintf("%s=%d", name, 2_000_000+100*i+k)); err != nil {
					t.Error(name, err)
				}
			}
		})
	}
	wg.Wait()
	for i, name := range names {
		if got, want := f.setting("t", name), fmt.Sprintf("%d DYNAMIC_TOPIC_CONFIG", 2_000_000+100*i+4); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestSettingsOfANodeAreReadOnly(t *testing.T) {
	f := start(t, frontOptions{})
	one := "1"
	set := func(name string) error {
		rs, err := f.admin().AlterBrokerConfigs(f.ctx(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &one}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return rs[0].Err
	}
	if err := set("log.retention.ms"); !errors.Is(err, kerr.InvalidConfig) || !strings.Contains(err.Error(), "INVALID_CONFIG") {
		t.Errorf("%v", err)
	}
	if err := set("nonsense"); !errors.Is(err, kerr.InvalidConfig) {
		t.Errorf("%v", err)
	}
	r := f.raw(t)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	for _, x := range []struct {
		kind kmsg.ConfigResourceType
		name string
		op   kmsg.IncrementalAlterConfigOp
		null bool
	}{
		{kmsg.ConfigResourceTypeBroker, "7", 0, false},
		{kmsg.ConfigResourceTypeBrokerLogger, "1", 0, false},
		{kmsg.ConfigResourceTypeTopic, "a", 9, false},
		{kmsg.ConfigResourceTypeTopic, "b", 0, true},
		{kmsg.ConfigResourceTypeTopic, "c", 0, false},
		{kmsg.ConfigResourceTypeTopic, "c", 0, false},
	} {
		rs := kmsg.NewIncrementalAlterConfigsRequestResource()
		rs.ResourceType, rs.ResourceName = x.kind, x.name
		cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		cfg.Name, cfg.Op = "retention.ms", x.op
		if !x.null {
			cfg.Value = &one
		}
		rs.Configs = append(rs.Configs, cfg)
		req.Resources = append(req.Resources, rs)
	}
	for i, rs := range r.do(req).(*kmsg.IncrementalAlterConfigsResponse).Resources {
		if rs.ErrorCode != kerr.InvalidRequest.Code || rs.ErrorMessage == nil {
			t.Errorf("resource %d: %+v", i, rs)
		}
	}
}

func TestDescriptionsHaveDefaultsAndDocumentation(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 1, map[string]*string{"retention.ms": kmsg.StringPtr("5")})
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms, req.IncludeDocumentation = 4, true, true
	rs := kmsg.NewDescribeConfigsRequestResource()
	rs.ResourceType, rs.ResourceName = kmsg.ConfigResourceTypeTopic, "t"
	req.Resources = append(req.Resources, rs)
	got := map[string]string{}
	for _, c := range f.raw(t).do(req).(*kmsg.DescribeConfigsResponse).Resources[0].Configs {
		if c.Documentation == nil || *c.Documentation == "" || c.ConfigType == 0 || c.ReadOnly {
			t.Errorf("%s: %+v", c.Name, c)
		}
		s := ""
		for _, y := range c.ConfigSynonyms {
			s += fmt.Sprintf("%s %s;", *y.Value, y.Source)
		}
		got[c.Name] = s
	}
	if got["retention.ms"] != "5 DYNAMIC_TOPIC_CONFIG;-1 DEFAULT_CONFIG;" || got["retention.bytes"] != "-1 DEFAULT_CONFIG;" {
		t.Errorf("synonyms %q", got)
	}
}

func TestLogDirsTellSizes(t *testing.T) {
	f := start(t, frontOptions{})
	f.create("t", 2, nil)
	f.create("empty", 1, nil)
	cl := f.client(kgo.DefaultProduceTopic("t"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	size := func(topic string, p int32) int64 {
		t.Helper()
		dirs, err := f.admin().DescribeAllLogDirs(f.ctx(), nil)
		if err != nil || len(dirs) != 1 || len(dirs[1]) != 1 {
			t.Fatal(dirs, err)
		}
		for _, d := range dirs[1] {
			if d.Err != nil || d.Dir == "" {
				t.Errorf("%+v", d)
			}
			x, ok := d.Topics.Lookup(topic, p)
			if !ok {
				return -1
			}
			return x.Size
		}
		return -2
	}
	before := int64(0)
	for range 3 {
		if err := cl.ProduceSync(f.ctx(), &kgo.Record{Value: make([]byte, 5000)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		now := size("t", 0)
		if now < before+5000 || now > before+6000 {
			t.Errorf("size %d after %d", now, before)
		}
		if err := f.node.Store().Flush(f.ctx()); err != nil {
			t.Fatal(err)
		}
		if in := size("t", 0); in != now {
			t.Errorf("in files it is %d, in memory %d", in, now)
		}
		before = now
	}
	if a, b, c := size("t", 1), size("empty", 0), size("t", 2); a != 0 || b != 0 || c != -1 {
		t.Errorf("sizes %d %d %d", a, b, c)
	}
	f.restart()
	if now := size("t", 0); now != before {
		t.Errorf("size %d after a restart, %d before", now, before)
	}
	req := kmsg.NewPtrDescribeLogDirsRequest()
	req.Version = 4
	rt := kmsg.NewDescribeLogDirsRequestTopic()
	rt.Topic, rt.Partitions = "t", []int32{0, 0, 1, 9, -1}
	none := kmsg.NewDescribeLogDirsRequestTopic()
	none.Topic = "nobody"
	req.Topics = append(req.Topics, rt, none)
	resp := f.raw(t).do(req).(*kmsg.DescribeLogDirsResponse)
	d := resp.Dirs[0]
	if len(d.Topics) != 1 || len(d.Topics[0].Partitions) != 2 || d.TotalBytes <= 0 || d.UsableBytes <= 0 || d.Topics[0].Partitions[0].OffsetLag != 0 {
		t.Errorf("%+v", resp)
	}
}
