package kafka

import (
	"context"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/broker"
)

func describeConfigs(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DescribeConfigsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for i := range req.Resources {
		rs := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = rs.ResourceType, rs.ResourceName
		entries, err := c.srv.configsOf(rs.ResourceType, rs.ResourceName)
		if err != nil {
			out.ErrorCode, out.ErrorMessage = errorCode(err), errorMessage(err)
		}
		for i := range entries {
			e := &entries[i]
			if rs.ConfigNames != nil && !slices.Contains(rs.ConfigNames, e.Name) {
				continue
			}
			cfg := kmsg.NewDescribeConfigsResponseResourceConfig()
			cfg.Name, cfg.Value, cfg.ReadOnly, cfg.IsDefault = e.Name, &e.Value, e.ReadOnly, e.Default
			cfg.Source, cfg.ConfigType = configSource(e), configType(e)
			if req.IncludeSynonyms {
				// The values that there are, the one in force first.
				if e.Value != e.Fallback || !e.Default {
					cfg.ConfigSynonyms = append(cfg.ConfigSynonyms, synonym(e.Name, e.Value, cfg.Source))
				}
				cfg.ConfigSynonyms = append(cfg.ConfigSynonyms, synonym(e.Name, e.Fallback, kmsg.ConfigSourceDefaultConfig))
			}
			if req.IncludeDocumentation {
				cfg.Documentation = &e.Doc
			}
			out.Configs = append(out.Configs, cfg)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func synonym(name, value string, source kmsg.ConfigSource) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
	s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
	s.Name, s.Value, s.Source = name, &value, source
	return s
}

// configsOf lists the settings of one resource.
func (s *Server) configsOf(kind kmsg.ConfigResourceType, name string) ([]broker.ConfigEntry, error) {
	switch kind {
	case kmsg.ConfigResourceTypeTopic:
		t, ok := s.broker.Topic(name)
		if !ok {
			return nil, broker.Errorf(broker.UnknownTopic, "topic %q does not exist", printable(name))
		}
		return broker.DescribeConfigs(t), nil
	case kmsg.ConfigResourceTypeBroker:
		if err := s.isThisNode(name); err != nil {
			return nil, err
		}
		return s.broker.NodeConfigs(s.opts.AutoCreate), nil
	}
	return nil, noConfigs(kind)
}

func noConfigs(kind kmsg.ConfigResourceType) error {
	return broker.Errorf(broker.BadRequest, "resource type %v has no settings here", kind)
}

// isThisNode judges the name of a broker resource; "" is all brokers.
func (s *Server) isThisNode(name string) error {
	if name != "" && name != strconv.Itoa(int(s.broker.NodeID())) {
		return broker.Errorf(broker.BadRequest, "there is no node %q", printable(name))
	}
	return nil
}

func configSource(e *broker.ConfigEntry) kmsg.ConfigSource {
	switch {
	case e.Default:
		return kmsg.ConfigSourceDefaultConfig
	case e.Source == "node":
		return kmsg.ConfigSourceStaticBrokerConfig
	}
	return kmsg.ConfigSourceDynamicTopicConfig
}

func configType(e *broker.ConfigEntry) kmsg.ConfigType {
	switch e.Type {
	case "int":
		return kmsg.ConfigTypeInt
	case "long":
		return kmsg.ConfigTypeLong
	case "double":
		return kmsg.ConfigTypeDouble
	case "boolean":
		return kmsg.ConfigTypeBoolean
	case "list":
		return kmsg.ConfigTypeList
	}
	return kmsg.ConfigTypeString
}

// alterConfigs replaces all settings of each resource: those that the request does not name become the default.
func alterConfigs(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.AlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	count := map[resource]int{}
	for i := range req.Resources {
		count[resource{req.Resources[i].ResourceType, req.Resources[i].ResourceName}]++
	}
	for i := range req.Resources {
		rs := &req.Resources[i]
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = rs.ResourceType, rs.ResourceName
		a := broker.Alteration{Replace: true, DryRun: req.ValidateOnly}
		for _, cfg := range rs.Configs {
			ch := broker.ConfigChange{Name: cfg.Name, Op: broker.DeleteConfig}
			if cfg.Value != nil {
				ch.Op, ch.Value = broker.SetConfig, *cfg.Value
			}
			a.Changes = append(a.Changes, ch)
		}
		at := resource{rs.ResourceType, rs.ResourceName}
		if err := c.srv.alter(ctx, at, count[at], a); err != nil {
			out.ErrorCode, out.ErrorMessage = errorCode(err), errorMessage(err)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// incrementalAlterConfigs changes the settings that the request names and leaves the others.
func incrementalAlterConfigs(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.IncrementalAlterConfigsRequest)
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	count := map[resource]int{}
	for i := range req.Resources {
		count[resource{req.Resources[i].ResourceType, req.Resources[i].ResourceName}]++
	}
	for i := range req.Resources {
		rs := &req.Resources[i]
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = rs.ResourceType, rs.ResourceName
		a, err := alteration(rs)
		a.DryRun = req.ValidateOnly
		at := resource{rs.ResourceType, rs.ResourceName}
		if err == nil {
			err = c.srv.alter(ctx, at, count[at], a)
		}
		if err != nil {
			out.ErrorCode, out.ErrorMessage = errorCode(err), errorMessage(err)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// alteration reads the changes of one resource.
func alteration(rs *kmsg.IncrementalAlterConfigsRequestResource) (a broker.Alteration, err error) {
	for _, cfg := range rs.Configs {
		ch := broker.ConfigChange{Name: cfg.Name}
		switch cfg.Op {
		case kmsg.IncrementalAlterConfigOpSet:
			ch.Op = broker.SetConfig
		case kmsg.IncrementalAlterConfigOpDelete:
			ch.Op = broker.DeleteConfig
		case kmsg.IncrementalAlterConfigOpAppend:
			ch.Op = broker.AppendConfig
		case kmsg.IncrementalAlterConfigOpSubtract:
			ch.Op = broker.SubtractConfig
		default:
			return a, broker.Errorf(broker.BadRequest, "operation %d on the setting %q is not known", int8(cfg.Op), printable(cfg.Name))
		}
		switch {
		case cfg.Value != nil:
			ch.Value = *cfg.Value
		case ch.Op != broker.DeleteConfig:
			return a, broker.Errorf(broker.BadRequest, "the setting %q has no value", printable(cfg.Name))
		}
		a.Changes = append(a.Changes, ch)
	}
	return a, nil
}

// A resource is what has settings.
type resource struct {
	kind kmsg.ConfigResourceType
	name string
}

// alter changes the settings of one resource, which a request must name once.
func (s *Server) alter(ctx context.Context, at resource, times int, a broker.Alteration) error {
	if times > 1 {
		return broker.Errorf(broker.BadRequest, "%q is named twice in the request", printable(at.name))
	}
	switch at.kind {
	case kmsg.ConfigResourceTypeTopic:
		// No timeout in the request: clients give up after their own.
		ctx, cancel := timeoutOf(ctx, 0)
		defer cancel()
		_, err := s.broker.AlterTopic(ctx, at.name, a)
		return err
	case kmsg.ConfigResourceTypeBroker:
		if err := s.isThisNode(at.name); err != nil {
			return err
		}
		return s.broker.AlterNode(s.opts.AutoCreate, a.Changes)
	}
	return noConfigs(at.kind)
}

// describeLogDirs tells what the partitions take on the disk. A view takes nothing and is left out.
func describeLogDirs(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DescribeLogDirsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	b := c.srv.broker
	dir := kmsg.NewDescribeLogDirsResponseDir()
	at := b.LogDir()
	dir.Dir, dir.TotalBytes, dir.UsableBytes = at.Path, at.Total, at.Usable
	add := func(t *broker.Topic, partitions []int32) {
		out := kmsg.NewDescribeLogDirsResponseDirTopic()
		out.Topic = t.Name
		for _, p := range partitions {
			size, err := b.PartitionBytes(t, p)
			if err != nil {
				continue // it is not here
			}
			o := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
			o.Partition, o.Size = p, size
			out.Partitions = append(out.Partitions, o)
		}
		if len(out.Partitions) > 0 {
			dir.Topics = append(dir.Topics, out)
		}
	}
	if req.Topics == nil {
		for _, t := range b.Topics() {
			if t.Kind != broker.View {
				add(t, allPartitions(t))
			}
		}
	}
	for i := range req.Topics {
		if t, ok := b.Topic(req.Topics[i].Topic); ok && t.Kind != broker.View {
			// What is asked is bounded by the frame, what is answered by what there is: each partition once.
			partitions := slices.Clone(req.Topics[i].Partitions)
			slices.Sort(partitions)
			add(t, slices.Compact(partitions))
		}
	}
	resp.Dirs = append(resp.Dirs, dir)
	return resp
}

func allPartitions(t *broker.Topic) []int32 {
	out := make([]int32, t.Partitions)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}
