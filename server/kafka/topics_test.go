package kafka_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/kafka"
)

func TestTopicsAreCreatedDescribedAndDeleted(t *testing.T) {
	f := start(t, frontOptions{kafka: kafka.Options{Advertised: "broker.example:0"}})
	r := f.raw(t) // the advertised name leads nowhere from here
	day := "86400000"
	create := func(name string, partitions int32, rf int16, validate bool, configs map[string]string) kmsg.CreateTopicsResponseTopic {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version, req.ValidateOnly = 7, validate
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, rf
		for k, v := range configs {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = k, kmsg.StringPtr(v)
			rt.Configs = append(rt.Configs, c)
		}
		req.Topics = append(req.Topics, rt)
		return r.do(req).(*kmsg.CreateTopicsResponse).Topics[0]
	}
	for _, c := range []struct {
		name       string
		partitions int32
		rf         int16
		configs    map[string]string
		want       error
	}{
		{"ok", 3, 1, map[string]string{"retention.ms": day}, nil},
		{"defaults", -1, -1, nil, nil},
		{"ok", 1, 1, nil, kerr.TopicAlreadyExists},
		{"none", 0, 1, nil, kerr.InvalidPartitions},
		{"many", 10_001, 1, nil, kerr.InvalidPartitions},
		{"rf3", 1, 3, nil, kerr.InvalidReplicationFactor},
		{"odd", 1, 1, map[string]string{"nonsense": "1"}, kerr.InvalidConfig},
		{"badvalue", 1, 1, map[string]string{"retention.ms": "soon"}, kerr.InvalidConfig},
		{"badpolicy", 1, 1, map[string]string{"cleanup.policy": "shred"}, kerr.InvalidConfig},
		{"", 1, 1, nil, kerr.InvalidTopicException},
		{"..", 1, 1, nil, kerr.InvalidTopicException},
		{"../x", 1, 1, nil, kerr.InvalidTopicException},
		{"a b", 1, 1, nil, kerr.InvalidTopicException},
		{"nul\x00", 1, 1, nil, kerr.InvalidTopicException},
		{string(make([]byte, 300)), 1, 1, nil, kerr.InvalidTopicException},
	} {
		got := create(c.name, c.partitions, c.rf, false, c.configs)
		if err := kerr.ErrorForCode(got.ErrorCode); !errors.Is(err, c.want) {
			t.Errorf("%.20q: %v, want %v", c.name, err, c.want)
		}
		if c.want == nil && (got.TopicID == [16]byte{} || got.NumPartitions < 1 || got.ReplicationFactor != 1 || len(got.Configs) < 30) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if got := create("later", 2, 1, true, nil); got.ErrorCode != 0 || got.NumPartitions != 2 {
		t.Errorf("validate only: %+v", got)
	}

	meta := func(names ...string) *kmsg.MetadataResponse {
		req := kmsg.NewPtrMetadataRequest()
		req.Version = 12
		for _, n := range names {
			rt := kmsg.NewMetadataRequestTopic()
			rt.Topic = kmsg.StringPtr(n)
			req.Topics = append(req.Topics, rt)
		}
		if names != nil && len(names) == 0 {
			req.Topics = []kmsg.MetadataRequestTopic{}
		}
		return r.do(req).(*kmsg.MetadataResponse)
	}
	all := meta()
	if len(all.Topics) != 2 || len(all.Brokers) != 1 || all.Brokers[0].Host != "broker.example" || all.Brokers[0].Port == 0 || all.ClusterID == nil || all.ControllerID != 1 {
		t.Errorf("metadata: %+v", all)
	}
	if none := meta([]string{}...); len(none.Topics) != 2 {
		t.Log("an empty variadic is nil in Go")
	}
	req := kmsg.NewPtrMetadataRequest()
	req.Version, req.Topics = 12, []kmsg.MetadataRequestTopic{}
	if none := r.do(req).(*kmsg.MetadataResponse); len(none.Topics) != 0 {
		t.Errorf("an empty list of topics is no topics: %+v", none.Topics)
	}
	one := meta("ok", "../x", "nobody")
	if one.Topics[0].ErrorCode != 0 || len(one.Topics[0].Partitions) != 3 || one.Topics[0].Partitions[2].Leader != 1 ||
		one.Topics[1].ErrorCode != kerr.InvalidTopicException.Code || one.Topics[2].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("metadata: %+v", one.Topics)
	}
	byID := kmsg.NewPtrMetadataRequest()
	byID.Version = 12
	rt := kmsg.NewMetadataRequestTopic()
	rt.TopicID = one.Topics[0].TopicID
	byID.Topics = append(byID.Topics, rt)
	if got := r.do(byID).(*kmsg.MetadataResponse).Topics[0]; got.Topic == nil || *got.Topic != "ok" {
		t.Errorf("by id: %+v", got)
	}

	del := kmsg.NewPtrDeleteTopicsRequest()
	del.Version = 6
	del.Topics = []kmsg.DeleteTopicsRequestTopic{{TopicID: one.Topics[0].TopicID}, {Topic: kmsg.StringPtr("nobody")}}
	gone := r.do(del).(*kmsg.DeleteTopicsResponse).Topics
	if gone[0].ErrorCode != 0 || *gone[0].Topic != "ok" || gone[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("deleted: %+v", gone)
	}
	if left := meta(); len(left.Topics) != 1 {
		t.Errorf("%d topics are left", len(left.Topics))
	}
	if p := r.do(rawProduce(-1, "ok", 0, batch("x"))).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("produce to a deleted topic: %d", p.ErrorCode)
	}
}

func TestConfigsAreShownWithTheirSource(t *testing.T) {
	f := start(t, frontOptions{})
	compact, size := "compact", "4096"
	f.create("t", 1, map[string]*string{"cleanup.policy": &compact, "max.message.bytes": &size, "segment.ms": kmsg.StringPtr("1000")})
	adm := f.admin()
	rcs, err := adm.DescribeTopicConfigs(f.ctx(), "t", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	rc, _ := rcs.On("t", nil)
	values := map[string]string{}
	for _, c := range rc.Configs {
		values[c.Key] = fmt.Sprintf("%s %s", c.MaybeValue(), c.Source)
	}
	for k, want := range map[string]string{
		"cleanup.policy": "compact DYNAMIC_TOPIC_CONFIG", "max.message.bytes": "4096 DYNAMIC_TOPIC_CONFIG", "segment.ms": "1000 DYNAMIC_TOPIC_CONFIG",
		"retention.ms": "-1 DEFAULT_CONFIG",
	} {
		if values[k] != want {
			t.Errorf("%s is %q, want %q", k, values[k], want)
		}
	}
	if rc, _ := rcs.On("nobody", nil); !errors.Is(rc.Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("nobody: %v", rc.Err)
	}
	bcs, err := adm.DescribeBrokerConfigs(f.ctx(), 1)
	if err != nil || len(bcs) != 1 || len(bcs[0].Configs) < 5 {
		t.Errorf("broker: %v %v", bcs, err)
	}
	if rs, err := adm.UpdatePartitions(f.ctx(), 5, "t"); err != nil || !errors.Is(rs["t"].Err, kerr.PolicyViolation) {
		t.Errorf("more partitions: %v %v", rs, err)
	}
	md, err := adm.BrokerMetadata(f.ctx())
	if err != nil || md.Cluster == "" || len(md.Brokers) != 1 {
		t.Errorf("cluster: %+v %v", md, err)
	}
}
