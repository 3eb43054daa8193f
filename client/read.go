package client

import (
	"context"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Offsets are one offset per partition.
type Offsets map[int32]int64

// CreateTopics creates topics in one request. The first refusal is the error.
func CreateTopics(ctx context.Context, k *kgo.Client, partitions int32, names ...string) error {
	adm := kadm.NewClient(k)
	adm.SetTimeoutMillis(60_000)
	resp, err := adm.CreateTopics(ctx, partitions, -1, nil, names...)
	if err != nil {
		return err
	}
	return resp.Error()
}

// CountTopics asks the server for all topics with all their partitions and returns how many topics there are.
func CountTopics(ctx context.Context, k *kgo.Client) (int, error) {
	m, err := kadm.NewClient(k).Metadata(ctx)
	return len(m.Topics), err
}

// Bounds lists the log start and log end of every partition of a topic or view.
func Bounds(ctx context.Context, k *kgo.Client, topic string) (starts, ends Offsets, err error) {
	adm := kadm.NewClient(k)
	s, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	e, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	if starts, err = offsetsOf(s); err != nil {
		return nil, nil, err
	}
	ends, err = offsetsOf(e)
	return starts, ends, err
}

// OffsetsAt lists the offset of the first record at or after a time, milliseconds since 1970, of every
// partition; the log end where there is none.
func OffsetsAt(ctx context.Context, k *kgo.Client, topic string, ms int64) (Offsets, error) {
	l, err := kadm.NewClient(k).ListOffsetsAfterMilli(ctx, ms, topic)
	if err != nil {
		return nil, err
	}
	return offsetsOf(l)
}

// Committed lists what a group has committed of a topic.
func Committed(ctx context.Context, k *kgo.Client, group, topic string) (Offsets, error) {
	l, err := kadm.NewClient(k).FetchOffsetsForTopics(ctx, group, topic)
	if err == nil {
		err = l.Error()
	}
	if err != nil {
		return nil, err
	}
	out := Offsets{}
	l.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			out[o.Partition] = o.At
		}
	})
	return out, nil
}

func offsetsOf(l kadm.ListedOffsets) (Offsets, error) {
	out := Offsets{}
	var failed error
	l.Each(func(o kadm.ListedOffset) {
		out[o.Partition] = o.Offset
		if o.Err != nil && failed == nil {
			failed = &ReadError{Topic: o.Topic, Partition: o.Partition, Offset: -1, Err: o.Err}
		}
	})
	if failed != nil {
		return nil, failed
	}
	return out, nil
}

// A Span is what is left to read of a topic, up to an offset in every partition. Time marks and gaps
// count as read when something after them comes, or when the log end turns out to lie before them.
type Span struct {
	topic string
	at    Offsets // next offset to read
	end   Offsets
}

// NewSpan is the records of [from, to). A partition without an entry in to is not part of it.
func NewSpan(topic string, from, to Offsets) *Span {
	s := &Span{topic: topic, at: Offsets{}, end: Offsets{}}
	for p, end := range to {
		if from[p] < end {
			s.at[p], s.end[p] = from[p], end
		}
	}
	return s
}

// Done reports whether nothing is left.
func (s *Span) Done() bool { return len(s.end) == 0 }

// Partitions are where a client is to begin.
func (s *Span) Partitions() map[string]map[int32]kgo.Offset {
	parts := make(map[int32]kgo.Offset, len(s.at))
	for p, at := range s.at {
		parts[p] = kgo.NewOffset().At(at)
	}
	return map[string]map[int32]kgo.Offset{s.topic: parts}
}

// Take notes that a record was read, and reports whether it belongs to the span and is data.
func (s *Span) Take(r *kgo.Record) bool {
	end, ok := s.end[r.Partition]
	if !ok {
		return false
	}
	if r.Offset+1 >= end {
		delete(s.end, r.Partition)
	} else {
		s.at[r.Partition] = r.Offset + 1
	}
	return r.Offset < end && !r.Attrs.IsControl()
}

// Refresh asks for the log ends again: the end of a view is a bound until its source was looked at.
func (s *Span) Refresh(ctx context.Context, k *kgo.Client) error {
	_, ends, err := Bounds(ctx, k, s.topic)
	if err != nil {
		return err
	}
	for p := range maps.Clone(s.end) {
		if now, ok := ends[p]; !ok || now <= s.at[p] {
			delete(s.end, p)
		} else {
			s.end[p] = min(s.end[p], now)
		}
	}
	return nil
}

// quietRead is how long a read up to known offsets waits before it asks for the log ends again.
const quietRead = 500 * time.Millisecond

// ReadRange gives the records of [from, to) to each, in offset order inside a partition. The record is
// the callee's. An error of each ends the reading and is returned. Records that the server does not give end it too, behind
// those before them: with a *ReadError, see Patience.
func ReadRange(ctx context.Context, seeds, topic string, from, to Offsets, each func(*kgo.Record) error) error {
	span := NewSpan(topic, from, to)
	if span.Done() {
		return nil
	}
	patience := NewPatience(from)
	k, err := Kafka(seeds, kgo.KeepControlRecords(), kgo.KeepRetryableFetchErrors(), kgo.FetchMaxWait(quietRead), kgo.ConsumePartitions(span.Partitions()))
	if err != nil {
		return err
	}
	defer k.Close()
	for !span.Done() {
		within, cancel := context.WithTimeout(ctx, quietRead)
		fetches := k.PollFetches(within)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			if err := patience.Judge(ctx, fetches); err != nil {
				return err
			}
			if err := span.Refresh(ctx, k); err != nil {
				return err
			}
			continue
		}
		var failed error
		fetches.EachRecord(func(r *kgo.Record) {
			if failed == nil && span.Take(r) {
				failed = each(r)
			}
		})
		if failed != nil {
			return failed
		}
		if span.Done() {
			return nil
		}
		if err := patience.Judge(ctx, fetches); err != nil {
			return err
		}
	}
	return nil
}

// ReadAll gives every record of a topic or view up to its present end to each, in offset order inside
// a partition.
func ReadAll(ctx context.Context, seeds, topic string, each func(*kgo.Record) error) error {
	k, err := Kafka(seeds)
	if err != nil {
		return err
	}
	defer k.Close()
	starts, ends, err := Bounds(ctx, k, topic)
	if err != nil {
		return err
	}
	return ReadRange(ctx, seeds, topic, starts, ends, each)
}
