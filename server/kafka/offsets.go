package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/broker"
)

// Timestamps of ListOffsets that are not times.
const (
	askLatest   = -1
	askEarliest = -2
	askMaxTime  = -3
)

// checkEpoch judges the leader epoch that a client believes in; -1 is none.
func (s *Server) checkEpoch(epoch int32) int16 {
	return errorCode(s.broker.CheckEpoch(epoch))
}

func listOffsets(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.ListOffsetsRequest)
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.NewListOffsetsResponseTopic()
		out.Topic = rt.Topic
		for j := range rt.Partitions {
			p := &rt.Partitions[j]
			o := kmsg.NewListOffsetsResponseTopicPartition()
			o.Partition, o.Timestamp, o.Offset, o.LeaderEpoch = p.Partition, -1, -1, -1
			if req.Version < 4 {
				p.CurrentLeaderEpoch = -1
			}
			c.srv.listOffset(ctx, req, rt.Topic, p, &o)
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func (s *Server) listOffset(ctx context.Context, req *kmsg.ListOffsetsRequest, topic string, p *kmsg.ListOffsetsRequestTopicPartition, o *kmsg.ListOffsetsResponseTopicPartition) {
	if code := s.checkEpoch(p.CurrentLeaderEpoch); code != 0 {
		o.ErrorCode = code
		return
	}
	t, ok := s.broker.Topic(topic)
	if !ok {
		o.ErrorCode = kerr.UnknownTopicOrPartition.Code
		return
	}
	var offset, ts int64 = -1, -1
	var err error
	switch p.Timestamp {
	case askLatest:
		_, offset, err = s.broker.Bounds(ctx, t, p.Partition, true)
	case askEarliest:
		offset, _, err = s.broker.Bounds(ctx, t, p.Partition, false)
	case askMaxTime:
		offset, ts, err = s.broker.MaxTimestamp(ctx, t, p.Partition)
	default:
		if p.Timestamp < 0 {
			o.ErrorCode = kerr.UnsupportedVersion.Code // the meanings of later versions
			return
		}
		offset, ts, err = s.broker.OffsetForTime(ctx, t, p.Partition, p.Timestamp)
	}
	if o.ErrorCode = errorCode(err); err != nil {
		return
	}
	if req.Version == 0 {
		if offset >= 0 && p.MaxNumOffsets > 0 {
			o.OldStyleOffsets = []int64{offset}
		}
		return
	}
	o.Offset, o.Timestamp = offset, ts
	if offset >= 0 {
		o.LeaderEpoch = s.broker.LeaderEpoch()
	}
}

func offsetForLeaderEpoch(_ context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.OffsetForLeaderEpochRequest)
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	s := c.srv
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.NewOffsetForLeaderEpochResponseTopic()
		out.Topic = rt.Topic
		for j := range rt.Partitions {
			p := &rt.Partitions[j]
			o := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			o.Partition, o.LeaderEpoch, o.EndOffset = p.Partition, -1, -1
			if req.Version < 2 {
				p.CurrentLeaderEpoch = -1
			}
			t, ok := s.broker.Topic(rt.Topic)
			switch {
			case !ok:
				o.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case s.checkEpoch(p.CurrentLeaderEpoch) != 0:
				o.ErrorCode = s.checkEpoch(p.CurrentLeaderEpoch)
			default:
				epoch, end, err := s.broker.EpochEnd(t, p.Partition, p.LeaderEpoch)
				if o.ErrorCode = errorCode(err); err == nil {
					o.LeaderEpoch, o.EndOffset = epoch, end
				}
			}
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

func deleteRecords(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.DeleteRecordsRequest)
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	ctx, cancel := timeoutOf(ctx, req.TimeoutMillis)
	defer cancel()
	for i := range req.Topics {
		rt := &req.Topics[i]
		out := kmsg.NewDeleteRecordsResponseTopic()
		out.Topic = rt.Topic
		for j := range rt.Partitions {
			p := &rt.Partitions[j]
			o := kmsg.NewDeleteRecordsResponseTopicPartition()
			o.Partition, o.LowWatermark = p.Partition, -1
			t, ok := c.srv.broker.Topic(rt.Topic)
			if !ok {
				o.ErrorCode = kerr.UnknownTopicOrPartition.Code
			} else if start, err := c.srv.broker.DeleteRecords(ctx, t, p.Partition, p.Offset); err != nil {
				o.ErrorCode = errorCode(err)
			} else {
				o.LowWatermark = start
			}
			out.Partitions = append(out.Partitions, o)
		}
		resp.Topics = append(resp.Topics, out)
	}
	return resp
}

// initProducerID gives out ids for idempotence. A client that renews its epoch (KIP-360) gets a new id
// with epoch 0 instead: no record of the old one can be in flight under the new.
func initProducerID(ctx context.Context, c *conn, r kmsg.Request, _ string) kmsg.Response {
	req := r.(*kmsg.InitProducerIDRequest)
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil {
		err := broker.Errorf(broker.NoTransactions, "transactional.id %q", printable(*req.TransactionalID))
		c.srv.log.Warn("kafka.transactional", "conn", c.id, "client", c.describe(), "err", err)
		resp.ErrorCode = errorCode(err)
		return resp
	}
	id, err := c.srv.broker.ProducerID(ctx)
	if resp.ErrorCode = errorCode(err); err == nil {
		resp.ProducerID, resp.ProducerEpoch = id, 0
	}
	return resp
}
