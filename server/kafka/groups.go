package kafka

import (
	"context"
	"slices"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/group"
)

// maxGroupID bounds a group's name.
const maxGroupID = 1 << 10

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func findCoordinator(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.FindCoordinatorRequest)
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	s := c.srv
	host, port := s.advertised()
	answer := func(key string) kmsg.FindCoordinatorResponseCoordinator {
		k := kmsg.NewFindCoordinatorResponseCoordinator()
		k.Key, k.NodeID, k.Port = key, -1, -1
		var err error
		switch {
		case req.CoordinatorType == 1:
			err = broker.Errorf(broker.NoTransactions, "transactional.id %q", printable(key))
			s.log.Warn("kafka.transactional", "conn", c.id, "client", c.describe(), "err", err)
		case req.CoordinatorType != 0:
			err = broker.Errorf(broker.BadRequest, "coordinator type %d is not known", req.CoordinatorType)
		case key == "" || len(key) > maxGroupID:
			k.ErrorCode = kerr.InvalidGroupID.Code
			return k
		}
		if err != nil {
			k.ErrorCode, k.ErrorMessage = errorCode(err), errorMessage(err)
			return k
		}
		k.NodeID, k.Host, k.Port = s.broker.NodeID(), host, port
		return k
	}
	if req.Version >= 4 {
		for _, key := range req.CoordinatorKeys {
			resp.Coordinators = append(resp.Coordinators, answer(key))
		}
		return resp
	}
	k := answer(req.CoordinatorKey)
	resp.ErrorCode, resp.ErrorMessage, resp.NodeID, resp.Host, resp.Port = k.ErrorCode, k.ErrorMessage, k.NodeID, k.Host, k.Port
	return resp
}

func joinGroup(ctx context.Context, c *conn, r kmsg.Request, clientID string) kmsg.Response {
	req := r.(*kmsg.JoinGroupRequest)
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	in := group.JoinRequest{
		MemberID: req.MemberID, Instance: str(req.InstanceID), ClientID: printable(clientID), Host: c.host,
		SessionTimeout:   time.Duration(req.SessionTimeoutMillis) * time.Millisecond,
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		ProtocolType:     req.ProtocolType,
		RequireMemberID:  req.Version >= 4,
		SkipAssignment:   req.Version >= 9,
	}
	if req.Version < 1 {
		in.RebalanceTimeout = in.SessionTimeout
	}
	for _, p := range req.Protocols {
		in.Protocols = append(in.Protocols, group.Protocol{Name: p.Name, Metadata: slices.Clone(p.Metadata)})
	}
	var out group.JoinResponse
	if len(req.Group) > maxGroupID {
		out = group.JoinResponse{Code: group.InvalidGroupID, Generation: -1}
	} else {
		out = c.srv.groups.Join(ctx, req.Group, in)
	}
	resp.ErrorCode, resp.Generation, resp.LeaderID, resp.MemberID = int16(out.Code), out.Generation, out.Leader, out.MemberID
	resp.ProtocolType, resp.SkipAssignment = optional(out.ProtocolType), out.Skip
	resp.Protocol = optional(out.Protocol)
	if resp.Protocol == nil && req.Version < 7 {
		resp.Protocol = new(string) // not nullable yet
	}
	resp.Members = []kmsg.JoinGroupResponseMember{}
	for _, m := range out.Members {
		j := kmsg.NewJoinGroupResponseMember()
		j.MemberID, j.InstanceID, j.ProtocolMetadata = m.ID, optional(m.Instance), m.Metadata
		resp.Members = append(resp.Members, j)
	}
	return resp
}

func syncGroup(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.SyncGroupRequest)
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	in := group.SyncRequest{
		Member:       group.Member{MemberID: req.MemberID, Instance: str(req.InstanceID), Generation: req.Generation},
		ProtocolType: str(req.ProtocolType), Protocol: str(req.Protocol),
	}
	for _, a := range req.GroupAssignment {
		in.Assignments = append(in.Assignments, group.Assignment{MemberID: a.MemberID, Assignment: slices.Clone(a.MemberAssignment)})
	}
	out := c.srv.groups.Sync(ctx, req.Group, in)
	resp.ErrorCode, resp.MemberAssignment = int16(out.Code), out.Assignment
	resp.ProtocolType, resp.Protocol = optional(out.ProtocolType), optional(out.Protocol)
	if resp.MemberAssignment == nil {
		resp.MemberAssignment = []byte{}
	}
	return resp
}

func heartbeat(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.HeartbeatRequest)
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	resp.ErrorCode = int16(c.srv.groups.Heartbeat(ctx, req.Group,
		group.Member{MemberID: req.MemberID, Instance: str(req.InstanceID), Generation: req.Generation}))
	return resp
}

func leaveGroup(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.LeaveGroupRequest)
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	if req.Group == "" {
		resp.ErrorCode = kerr.InvalidGroupID.Code
		return resp
	}
	if req.Version < 3 {
		resp.ErrorCode = int16(c.srv.groups.Leave(ctx, req.Group, []group.Leaver{{MemberID: req.MemberID}})[0])
		return resp
	}
	leavers := make([]group.Leaver, len(req.Members))
	for i, m := range req.Members {
		leavers[i] = group.Leaver{MemberID: m.MemberID, Instance: str(m.InstanceID)}
	}
	for i, code := range c.srv.groups.Leave(ctx, req.Group, leavers) {
		m := kmsg.NewLeaveGroupResponseMember()
		m.MemberID, m.InstanceID, m.ErrorCode = req.Members[i].MemberID, req.Members[i].InstanceID, int16(code)
		resp.Members = append(resp.Members, m)
	}
	return resp
}

func offsetCommit(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.OffsetCommitRequest)
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	member := group.Member{MemberID: req.MemberID, Instance: str(req.InstanceID), Generation: req.Generation}
	if req.Version < 1 {
		member = group.Member{Generation: -1}
	}
	var code int16
	if len(req.Group) > maxGroupID {
		code = kerr.InvalidGroupID.Code
	} else {
		code = int16(c.srv.groups.Commit(ctx, req.Group, member))
	}
	var commits []broker.OffsetCommit
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			if req.Version < 6 {
				p.LeaderEpoch = -1
			}
			commits = append(commits, broker.OffsetCommit{
				Topic: t.Topic, Partition: p.Partition, Offset: p.Offset, LeaderEpoch: p.LeaderEpoch, Metadata: str(p.Metadata),
			})
		}
	}
	errs := make([]error, len(commits))
	if code == 0 {
		errs = c.srv.broker.CommitOffsets(ctx, req.Group, commits)
	}
	k := 0
	for i := range req.Topics {
		out := kmsg.NewOffsetCommitResponseTopic()
		out.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			p := kmsg.NewOffsetCommitResponseTopicPartition()
			p.Partition, p.ErrorCode = req.Topics[i].Partitions[j].Partition, code
			if code == 0 {
				p.ErrorCode = commitCode(errs[k])
			}
			k++
			out.Partitions = append(out.Partitions, p)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// commitCode is the wire code of a failed commit: clients retry coordinator errors, not storage ones.
func commitCode(err error) int16 {
	if err == nil {
		return 0
	}
	switch broker.AsError(err).Code {
	case broker.Busy, broker.NotReady, broker.StorageFailed, broker.OutcomeUnknown, broker.Timeout:
		return kerr.CoordinatorNotAvailable.Code
	case broker.BatchTooLarge:
		return kerr.OffsetMetadataTooLarge.Code
	}
	return errorCode(err)
}

// committed is one stored offset as a response has it.
type committed struct {
	partition, epoch int32
	offset           int64
	metadata         string
	code             int16
}

// fetchOffsets reads a group's offsets: of the wanted partitions, or of all when topics is nil. The
// result is per topic, in request order (or by name).
func (s *Server) fetchOffsets(name string, topics []string, parts [][]int32, all bool) (names []string, out [][]committed, err error) {
	stored, err := s.broker.FetchOffsets(name)
	if err != nil {
		return nil, nil, err
	}
	if all {
		for t, ps := range stored {
			names = append(names, t)
			_ = ps
		}
		sort.Strings(names)
		for _, t := range names {
			var cs []committed
			for p, o := range stored[t] {
				cs = append(cs, committed{p, o.LeaderEpoch, o.Offset, o.Metadata, 0})
			}
			slices.SortFunc(cs, func(a, b committed) int { return int(a.partition) - int(b.partition) })
			out = append(out, cs)
		}
		return names, out, nil
	}
	for i, t := range topics {
		cs := make([]committed, 0, len(parts[i]))
		for _, p := range parts[i] {
			if o, ok := stored[t][p]; ok {
				cs = append(cs, committed{p, o.LeaderEpoch, o.Offset, o.Metadata, 0})
			} else {
				cs = append(cs, committed{partition: p, epoch: -1, offset: -1})
			}
		}
		out = append(out, cs)
	}
	return topics, out, nil
}

func offsetFetch(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.OffsetFetchRequest)
	resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
	if req.Version >= 8 {
		for i := range req.Groups {
			resp.Groups = append(resp.Groups, c.srv.offsetFetchGroup(&req.Groups[i]))
		}
		return resp
	}
	var topics []string
	var parts [][]int32
	for _, t := range req.Topics {
		topics, parts = append(topics, t.Topic), append(parts, t.Partitions)
	}
	names, found, err := c.srv.fetchOffsets(req.Group, topics, parts, req.Topics == nil && req.Version >= 2)
	if err != nil {
		resp.ErrorCode = commitCode(err)
		return resp
	}
	for i, name := range names {
		t := kmsg.NewOffsetFetchResponseTopic()
		t.Topic = name
		for _, o := range found[i] {
			p := kmsg.NewOffsetFetchResponseTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = o.partition, o.offset, o.epoch, &o.metadata, o.code
			t.Partitions = append(t.Partitions, p)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func (s *Server) offsetFetchGroup(g *kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	out := kmsg.NewOffsetFetchResponseGroup()
	out.Group = g.Group
	var topics []string
	var parts [][]int32
	for _, t := range g.Topics {
		topics, parts = append(topics, t.Topic), append(parts, t.Partitions)
	}
	names, found, err := s.fetchOffsets(g.Group, topics, parts, g.Topics == nil)
	if err != nil {
		out.ErrorCode = commitCode(err)
		return out
	}
	for i, name := range names {
		t := kmsg.NewOffsetFetchResponseGroupTopic()
		t.Topic = name
		for _, o := range found[i] {
			p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode = o.partition, o.offset, o.epoch, &o.metadata, o.code
			t.Partitions = append(t.Partitions, p)
		}
		out.Topics = append(out.Topics, t)
	}
	return out
}

func describeGroups(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DescribeGroupsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	for _, name := range req.Groups {
		g := kmsg.NewDescribeGroupsResponseGroup()
		g.Group, g.AuthorizedOperations, g.State = name, noOperations, "Dead"
		d, ok := c.srv.groups.Describe(name)
		switch {
		case ok:
			g.State, g.ProtocolType, g.Protocol = d.State.String(), d.ProtocolType, d.Protocol
		case c.srv.broker.HasGroup(name):
			g.State = group.Empty.String()
		case req.Version >= 6:
			err := broker.Errorf(broker.UnknownGroup, "group %q does not exist", printable(name))
			g.ErrorCode, g.ErrorMessage = errorCode(err), errorMessage(err)
		}
		for _, m := range d.Members {
			gm := kmsg.NewDescribeGroupsResponseGroupMember()
			gm.MemberID, gm.InstanceID, gm.ClientID, gm.ClientHost = m.ID, optional(m.Instance), m.ClientID, "/"+m.Host
			gm.ProtocolMetadata, gm.MemberAssignment = m.Metadata, m.Assignment
			g.Members = append(g.Members, gm)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

func listGroups(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.ListGroupsRequest)
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	stored, err := c.srv.broker.GroupNames()
	if err != nil {
		resp.ErrorCode = commitCode(err)
		return resp
	}
	names := append(c.srv.groups.List(), stored...)
	sort.Strings(names)
	for _, name := range slices.Compact(names) {
		g := kmsg.NewListGroupsResponseGroup()
		g.Group, g.GroupState, g.GroupType = name, group.Empty.String(), "classic"
		if d, ok := c.srv.groups.Describe(name); ok {
			g.ProtocolType, g.GroupState = d.ProtocolType, d.State.String()
		}
		if len(req.StatesFilter) > 0 && !slices.Contains(req.StatesFilter, g.GroupState) ||
			len(req.TypesFilter) > 0 && !slices.Contains(req.TypesFilter, g.GroupType) {
			continue
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

func deleteGroups(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DeleteGroupsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
	for _, name := range req.Groups {
		g := kmsg.NewDeleteGroupsResponseGroup()
		g.Group = name
		if d, ok := c.srv.groups.Describe(name); ok && len(d.Members) > 0 {
			g.ErrorCode = kerr.NonEmptyGroup.Code
		} else {
			g.ErrorCode = commitCode(c.srv.broker.DeleteGroup(ctx, name))
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

func offsetDelete(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.OffsetDeleteRequest)
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	if d, ok := c.srv.groups.Describe(req.Group); ok && len(d.Members) > 0 {
		resp.ErrorCode = kerr.NonEmptyGroup.Code // which topics the members read is opaque
		return resp
	}
	if !c.srv.broker.HasGroup(req.Group) {
		resp.ErrorCode = kerr.GroupIDNotFound.Code
		return resp
	}
	var commits []broker.OffsetCommit
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			commits = append(commits, broker.OffsetCommit{Topic: t.Topic, Partition: p.Partition, Offset: -1, LeaderEpoch: -1})
		}
	}
	errs := c.srv.broker.CommitOffsets(ctx, req.Group, commits)
	k := 0
	for _, t := range req.Topics {
		out := kmsg.NewOffsetDeleteResponseTopic()
		out.Topic = t.Topic
		for _, p := range t.Partitions {
			o := kmsg.NewOffsetDeleteResponseTopicPartition()
			o.Partition, o.ErrorCode = p.Partition, commitCode(errs[k])
			k++
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}
