package broker

import (
	"context"
	"errors"
	"math"
	"sort"
	"time"

	"github.com/headrace/headrace/log"
)

// latestScan is how long asking for a view's end may look at new source records.
const latestScan = time.Second

// Bounds returns the log start and log end of a partition. For the end of a view it looks at the newest
// source records, if latest is asked for.
func (b *Broker) Bounds(ctx context.Context, t *Topic, partition int32, latest bool) (start, end int64, err error) {
	p, err := b.partition(t, partition)
	if err != nil {
		return -1, -1, err
	}
	start, end = p.LogStart(), p.LogEnd()
	if t.Kind == View && latest {
		ctx, cancel := context.WithTimeout(ctx, latestScan)
		defer cancel()
		if end, err = t.View.Latest(ctx, partition); err != nil {
			return -1, -1, b.readError(err)
		}
		end = max(end, start)
	}
	return start, end, nil
}

// OffsetForTime finds the first record whose timestamp is at or after ms. Offset -1: there is none. Of a
// view it is the source's answer: reading from there meets the first row that passes.
func (b *Broker) OffsetForTime(_ context.Context, t *Topic, partition int32, ms int64) (offset, ts int64, err error) {
	p, err := b.partition(t, partition)
	if err != nil {
		return -1, -1, err
	}
	offset, ts, ok, err := p.OffsetForTime(ms)
	switch {
	case err != nil:
		return -1, -1, b.readError(err)
	case !ok:
		return -1, -1, nil
	}
	return offset, ts, nil
}

// MaxTimestamp finds the record with the largest timestamp, or offset -1 in an empty partition. Whether
// there is a record at or after a time is monotone in the time, so it searches the times.
func (b *Broker) MaxTimestamp(ctx context.Context, t *Topic, partition int32) (offset, ts int64, err error) {
	offset, ts, err = b.OffsetForTime(ctx, t, partition, 0)
	if err != nil || offset < 0 {
		return -1, -1, err
	}
	lo, hi := ts, int64(math.MaxInt64) // a record at or after lo exists; none is known at hi
	for lo < hi-1 {
		mid := lo + (hi-lo)/2
		o, found, err := b.OffsetForTime(ctx, t, partition, mid)
		if err != nil {
			return -1, -1, err
		}
		if o < 0 {
			hi = mid
			continue
		}
		lo, offset, ts = max(mid, found), o, found
	}
	return offset, ts, nil
}

// EpochEnd answers where a leader epoch ended: the largest epoch at or below the asked one that has
// records, and the offset after its last. (-1, -1): the epoch is not known. Epochs never fall along a
// partition, so it searches the offsets.
func (b *Broker) EpochEnd(t *Topic, partition, epoch int32) (at int32, end int64, err error) {
	p, err := b.partition(t, partition)
	if err != nil {
		return -1, -1, err
	}
	now := b.LeaderEpoch()
	switch {
	case now < 0:
		return -1, -1, Errorf(NotReady, "the shard has no leader")
	case epoch < 0 || epoch > now:
		return -1, -1, nil
	case epoch == now:
		return epoch, p.LogEnd(), nil
	}
	var buf []log.Batch
	epochAt := func(offset int64) int32 {
		if err != nil {
			return math.MaxInt32
		}
		buf, err = p.Read(offset, 1, buf[:0])
		if errors.Is(err, log.ErrCorrupt) {
			// Whoever asks wants to know whether its records are still there, and retries until it does: an end that is
			// too far on costs nothing, and it meets the rot when it reads.
			err = nil
			return epoch
		}
		if err != nil || len(buf) == 0 {
			return math.MaxInt32
		}
		return buf[0].Epoch
	}
	start, logEnd := p.LogStart(), p.LogEnd()
	n := sort.Search(int(logEnd-start), func(i int) bool { return epochAt(start+int64(i)) > epoch })
	if err != nil {
		return -1, -1, b.readError(err)
	}
	end = start + int64(n)
	if end == start {
		return epoch, start, nil
	}
	at = epochAt(end - 1)
	if err != nil {
		return -1, -1, b.readError(err)
	}
	return at, end, nil
}

// DeleteRecords raises the log start to offset; -1 is the log end. It returns the log start.
func (b *Broker) DeleteRecords(ctx context.Context, t *Topic, partition int32, offset int64) (int64, error) {
	if t.Kind == View {
		return -1, Errorf(TopicIsView, "%q is a view of %q", t.Name, t.View.Source())
	}
	p, err := b.partition(t, partition)
	if err != nil {
		return -1, err
	}
	if offset == -1 {
		offset = p.LogEnd()
	}
	if offset < 0 || offset > p.LogEnd() {
		return -1, Errorf(OffsetOutOfRange, "offset %d of partition %d of topic %q, which has %d to %d", offset, partition, t.Name, p.LogStart(), p.LogEnd())
	}
	if offset <= p.LogStart() {
		return p.LogStart(), nil
	}
	u := &log.Unit{}
	u.LogStart(p.ID(), offset)
	if r := b.data.Do(ctx, u); r.Err != nil {
		return -1, proposalError(r.Err)
	}
	return p.LogStart(), nil
}

// MaxOffsetMetadata bounds what a consumer stores beside an offset.
const MaxOffsetMetadata = 4 << 10

// An OffsetCommit is one offset of a group; -1 forgets it.
type OffsetCommit struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Metadata    string
}

// CommitOffsets stores the offsets of a group in one unit and returns an error for each.
func (b *Broker) CommitOffsets(ctx context.Context, group string, commits []OffsetCommit) []error {
	errs := make([]error, len(commits))
	now := b.opts.Now().UnixMilli()
	var offsets []log.GroupOffset
	var at []int
	var last *Topic
	for i := range commits {
		c := &commits[i]
		if last == nil || last.Name != c.Topic {
			t, ok := b.Topic(c.Topic)
			if !ok {
				errs[i] = Errorf(UnknownTopic, "topic %q does not exist", clip(c.Topic))
				continue
			}
			last = t
		}
		if c.Partition < 0 || c.Partition >= last.Partitions {
			errs[i] = Errorf(UnknownPartition, "topic %q has no partition %d", last.Name, c.Partition)
			continue
		}
		if len(c.Metadata) > MaxOffsetMetadata {
			errs[i] = Errorf(BatchTooLarge, "offset metadata of %d bytes", len(c.Metadata))
			continue
		}
		offsets = append(offsets, log.GroupOffset{
			Partition: log.PartitionID{Topic: last.ID, Index: c.Partition}, Offset: max(c.Offset, -1),
			LeaderEpoch: c.LeaderEpoch, Metadata: c.Metadata, CommittedAt: now,
		})
		at = append(at, i)
	}
	if len(offsets) == 0 {
		return errs
	}
	u := &log.Unit{}
	u.Offsets(group, offsets)
	if r := b.data.Do(ctx, u); r.Err != nil {
		for _, i := range at {
			errs[i] = proposalError(r.Err)
		}
	}
	return errs
}

// RecordsOf is the topic that holds the records of one that groups commit offsets for: of a view its source, of a stored
// topic itself.
func (b *Broker) RecordsOf(id log.TopicID) log.TopicID {
	c := b.meta.Catalog()
	if _, ok := c.TopicByID(id); ok || b.opts.Pipelines == nil {
		return id
	}
	for _, v := range b.opts.Pipelines.Views() {
		if viewID(v.Name()) == id {
			if t, ok := c.Topic(v.Source()); ok {
				return t.ID
			}
		}
	}
	return id
}

// FetchOffsets returns what a group has committed, by topic and partition. Topics that are gone are left
// out.
func (b *Broker) FetchOffsets(group string) (map[string]map[int32]log.GroupOffset, error) {
	offsets, err := b.store.GroupOffsets(group)
	if err != nil {
		return nil, b.readError(err)
	}
	out := map[string]map[int32]log.GroupOffset{}
	names := map[log.TopicID]string{}
	for _, o := range offsets {
		name, ok := names[o.Partition.Topic]
		if !ok {
			if t, found := b.TopicByID(o.Partition.Topic); found {
				name = t.Name
			}
			names[o.Partition.Topic] = name
		}
		if name == "" {
			continue
		}
		if out[name] == nil {
			out[name] = map[int32]log.GroupOffset{}
		}
		out[name][o.Partition.Index] = o
	}
	return out, nil
}

// HasGroup says whether a group has committed offsets.
func (b *Broker) HasGroup(group string) bool {
	offsets, err := b.store.GroupOffsets(group)
	return err == nil && len(offsets) > 0
}

// GroupNames lists the groups with committed offsets.
func (b *Broker) GroupNames() ([]string, error) {
	names, err := b.store.Groups()
	if err != nil {
		return nil, b.readError(err)
	}
	return names, nil
}

// DeleteGroup forgets a group's offsets.
func (b *Broker) DeleteGroup(ctx context.Context, group string) error {
	if !b.HasGroup(group) {
		return Errorf(UnknownGroup, "group %q does not exist", clip(group))
	}
	u := &log.Unit{}
	u.GroupDrop(group)
	if r := b.data.Do(ctx, u); r.Err != nil {
		return proposalError(r.Err)
	}
	return nil
}
