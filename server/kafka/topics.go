package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/broker"
)

// noOperations is what authorized-operations fields hold when they were not computed.
const noOperations = -2147483648

// rf1 is the replica list of a single node.
func (s *Server) replicas() []int32 { return []int32{s.broker.NodeID()} }

func metadata(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.MetadataRequest)
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	s := c.srv
	id := s.broker.ClusterID()
	host, port := s.advertised()
	resp.ClusterID, resp.ControllerID = &id, s.broker.NodeID()
	resp.AuthorizedOperations = noOperations
	resp.Brokers = []kmsg.MetadataResponseBroker{{NodeID: s.broker.NodeID(), Host: host, Port: port}}
	d := describer{s: s, epoch: s.broker.LeaderEpoch()}
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		topics := s.broker.Topics()
		resp.Topics = make([]kmsg.MetadataResponseTopic, 0, len(topics))
		for _, t := range topics {
			resp.Topics = append(resp.Topics, d.topic(t))
		}
		return resp
	}
	for i := range req.Topics {
		resp.Topics = append(resp.Topics, d.find(ctx, req, &req.Topics[i]))
	}
	return resp
}

// A describer describes topics in one answer. On a single node all partitions of a number look alike, so all topics
// share one list of them: a client that asks for 100,000 partitions costs the bytes of its answer.
type describer struct {
	s     *Server
	epoch int32
	parts []kmsg.MetadataResponseTopicPartition
}

// find answers one topic of a Metadata request, creating it if both sides allow that.
func (d *describer) find(ctx context.Context, req *kmsg.MetadataRequest, t *kmsg.MetadataRequestTopic) kmsg.MetadataResponseTopic {
	s := d.s
	out := kmsg.NewMetadataResponseTopic()
	if t.Topic == nil || req.Version >= 10 && *t.Topic == "" && t.TopicID != [16]byte{} {
		topic, ok := s.broker.TopicByID(t.TopicID)
		if !ok {
			out.TopicID, out.ErrorCode = t.TopicID, kerr.UnknownTopicID.Code
			return out
		}
		return d.topic(topic)
	}
	if topic, ok := s.broker.Topic(*t.Topic); ok {
		return d.topic(topic)
	}
	out.Topic = t.Topic
	err := error(broker.Errorf(broker.UnknownTopic, "topic %q does not exist", printable(*t.Topic)))
	if e := broker.CheckTopicName(*t.Topic); e != nil {
		err = e
	} else if s.opts.AutoCreate && (req.AllowAutoTopicCreation || req.Version < 4) {
		topic, cerr := s.broker.AutoCreate(ctx, *t.Topic)
		if cerr == nil {
			return d.topic(topic)
		}
		err = cerr
	}
	out.ErrorCode = errorCode(err)
	return out
}

func (d *describer) topic(t *broker.Topic) kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.AuthorizedOperations = &t.Name, t.ID, noOperations
	if !t.Ready {
		out.ErrorCode = kerr.LeaderNotAvailable.Code
		return out
	}
	n := int(t.Partitions)
	if n > len(d.parts) {
		replicas := d.s.replicas()
		d.parts = make([]kmsg.MetadataResponseTopicPartition, n)
		for i := range d.parts {
			p := &d.parts[i]
			p.Default()
			p.Partition, p.Leader, p.LeaderEpoch = int32(i), d.s.broker.NodeID(), d.epoch
			p.Replicas, p.ISR, p.OfflineReplicas = replicas, replicas, []int32{}
		}
	}
	out.Partitions = d.parts[:n:n]
	return out
}

func createTopics(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.CreateTopicsRequest)
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	ctx, cancel := timeoutOf(ctx, req.TimeoutMillis)
	defer cancel()
	specs := make([]broker.TopicSpec, len(req.Topics))
	errs := make([]error, len(req.Topics))
	names := map[string]int{}
	for i := range req.Topics {
		names[req.Topics[i].Topic]++
	}
	for i := range req.Topics {
		t := &req.Topics[i]
		specs[i], errs[i] = topicSpec(t)
		if names[t.Topic] > 1 {
			errs[i] = broker.Errorf(broker.BadRequest, "topic %q is named twice in the request", printable(t.Topic))
		}
	}
	created := c.srv.broker.CreateTopics(ctx, specs, errs, req.ValidateOnly)
	for i := range created {
		t := kmsg.NewCreateTopicsResponseTopic()
		t.Topic, t.ErrorCode, t.ErrorMessage = req.Topics[i].Topic, errorCode(created[i].Err), errorMessage(created[i].Err)
		if created[i].Err == nil {
			t.TopicID, t.NumPartitions, t.ReplicationFactor = created[i].Topic.ID, created[i].Topic.Partitions, 1
			entries := broker.DescribeConfigs(created[i].Topic)
			for i := range entries {
				e := &entries[i]
				cfg := kmsg.NewCreateTopicsResponseTopicConfig()
				cfg.Name, cfg.Value, cfg.ReadOnly, cfg.Source = e.Name, &e.Value, e.ReadOnly, int8(configSource(e))
				t.Configs = append(t.Configs, cfg)
			}
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// topicSpec reads one wanted topic. -1 stands for the server's defaults (KIP-464).
func topicSpec(t *kmsg.CreateTopicsRequestTopic) (broker.TopicSpec, error) {
	spec := broker.TopicSpec{Name: t.Topic, Partitions: t.NumPartitions, Configs: map[string]string{}}
	if len(t.ReplicaAssignment) > 0 {
		if t.NumPartitions != -1 || t.ReplicationFactor != -1 {
			return spec, broker.Errorf(broker.BadRequest, "a replica assignment excludes partition count and replication factor")
		}
		spec.Partitions = int32(len(t.ReplicaAssignment))
		for _, a := range t.ReplicaAssignment {
			if len(a.Replicas) != 1 || a.Replicas[0] != 1 || a.Partition < 0 || a.Partition >= spec.Partitions {
				return spec, broker.Errorf(broker.InvalidReplication, "the replica assignment must name node 1 once for each partition")
			}
		}
	} else if t.ReplicationFactor != 1 && t.ReplicationFactor != -1 {
		return spec, broker.Errorf(broker.InvalidReplication, "replication factor %d with one node", t.ReplicationFactor)
	}
	if spec.Partitions == -1 {
		spec.Partitions = 0 // the default
	} else if spec.Partitions <= 0 {
		return spec, broker.Errorf(broker.InvalidPartitions, "topic %q cannot have %d partitions", printable(t.Topic), t.NumPartitions)
	}
	for _, cfg := range t.Configs {
		if cfg.Value != nil {
			spec.Configs[cfg.Name] = *cfg.Value
		}
	}
	return spec, nil
}

// timeoutOf bounds a request by the time its client gives it.
func timeoutOf(ctx context.Context, millis int32) (context.Context, context.CancelFunc) {
	d := time.Duration(millis) * time.Millisecond
	if d <= 0 || d > time.Minute {
		d = time.Minute
	}
	return context.WithTimeout(ctx, d)
}

func deleteTopics(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DeleteTopicsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteTopicsResponse)
	ctx, cancel := timeoutOf(ctx, req.TimeoutMillis)
	defer cancel()
	one := func(name *string, id [16]byte) {
		t := kmsg.NewDeleteTopicsResponseTopic()
		t.Topic, t.TopicID = name, id
		var err error
		if name == nil {
			topic, ok := c.srv.broker.TopicByID(id)
			if !ok {
				t.ErrorCode = kerr.UnknownTopicID.Code
				resp.Topics = append(resp.Topics, t)
				return
			}
			t.Topic = &topic.Name
		} else if topic, ok := c.srv.broker.Topic(*name); ok {
			t.TopicID = topic.ID
		}
		err = c.srv.broker.DeleteTopic(ctx, *t.Topic)
		t.ErrorCode, t.ErrorMessage = errorCode(err), errorMessage(err)
		resp.Topics = append(resp.Topics, t)
	}
	for i := range req.TopicNames {
		one(&req.TopicNames[i], [16]byte{})
	}
	for i := range req.Topics {
		one(req.Topics[i].Topic, req.Topics[i].TopicID)
	}
	return resp
}

func createPartitions(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.CreatePartitionsRequest)
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	for i := range req.Topics {
		t := kmsg.NewCreatePartitionsResponseTopic()
		t.Topic = req.Topics[i].Topic
		err := error(broker.Errorf(broker.NoNewPartitions, "topic %q keeps its partitions", printable(t.Topic)))
		if _, ok := c.srv.broker.Topic(t.Topic); !ok {
			err = broker.Errorf(broker.UnknownTopic, "topic %q does not exist", printable(t.Topic))
		}
		t.ErrorCode, t.ErrorMessage = errorCode(err), errorMessage(err)
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func describeCluster(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DescribeClusterRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	s := c.srv
	host, port := s.advertised()
	resp.EndpointType = 1
	if req.Version >= 1 && req.EndpointType != 1 {
		resp.EndpointType = req.EndpointType
		resp.ErrorCode = kerr.UnsupportedEndpointType.Code
		return resp
	}
	resp.ClusterID, resp.ControllerID, resp.ClusterAuthorizedOperations = s.broker.ClusterID(), s.broker.NodeID(), noOperations
	b := kmsg.NewDescribeClusterResponseBroker()
	b.NodeID, b.Host, b.Port = s.broker.NodeID(), host, port
	resp.Brokers = append(resp.Brokers, b)
	return resp
}
