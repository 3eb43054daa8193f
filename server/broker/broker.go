// Package broker is what the fronts share: topics, produce, fetch and offsets over one node and its
// pipelines, in terms that belong to no protocol.
//
// A Broker decides who may write what (a derived topic only by its pipeline, a view never), checks every
// batch that comes from outside before it is proposed, turns the log's answers into Errors with a stable
// code, and makes a view look like a topic. It holds no state of its own beyond counters.
//
// All methods may be called by any goroutine. Those that take a context wait for the log; the others do
// not block, except for the disk when history is read.
package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication"
)

// A SourcedView is a topic that is computed while it is read: its offsets are its source's. The engine
// provides it; this is what the fronts need of it.
type SourcedView interface {
	// Name is the name that readers use; Source is the topic that it reads.
	Name() string
	Source() string
	Partitions() int32
	// SourcePartition is the partition behind one of the view's, or nil if it does not exist.
	SourcePartition(i int32) *log.Partition
	// Fetch delivers whole record batches with rows at and after from, reading at most a bounded part
	// of the source. It does not wait for new records. Its errors are those of log.Partition.Read.
	Fetch(ctx context.Context, partition int32, from int64, maxBytes int) (ViewFetch, error)
	// Latest is the log end as consumers see it. It looks at new source records until ctx ends.
	Latest(ctx context.Context, partition int32) (int64, error)
}

// A ViewFetch is the answer of a view to one fetch.
type ViewFetch struct {
	Batches          [][]byte // whole, each with at least one record
	LogStart, LogEnd int64
	Scanned          int64 // offset up to which the source was looked at
}

// Views finds views by name.
type Views interface {
	View(name string) (SourcedView, bool)
	Views() []SourcedView
}

// Options of a Broker. Node is required.
type Options struct {
	Node *replication.Node
	// Pipelines is the engine; nil: none.
	Pipelines Pipelines
	// DefaultPartitions is for topics that do not say; default 1.
	DefaultPartitions int32
	// FetchBytes is how much one fetch answers at most; default 16 MiB. FetchMemory is when fetches become
	// small because too many answers are being sent; default 256 MiB.
	FetchBytes, FetchMemory int
	// OffsetsRetention is shown as a setting of the node.
	OffsetsRetention time.Duration
	Logger           *slog.Logger
	Now              func() time.Time
}

// A Broker serves one node.
type Broker struct {
	opts  Options
	node  *replication.Node
	data  replication.Proposer
	store *log.Store
	meta  *replication.Metadata

	fetching atomic.Int64 // bytes of fetch answers that are not sent yet
	noRoom   atomic.Int64 // when an append last waited for the disk in vain, ns since 1970
	units    unitPool
	topics   TopicMetrics

	columnsKnown columnsKnown
}

// New makes a Broker. It owns nothing.
func New(o Options) *Broker {
	if o.DefaultPartitions <= 0 {
		o.DefaultPartitions = 1
	}
	if o.FetchBytes <= 0 {
		o.FetchBytes = 16 << 20
	}
	if o.FetchMemory <= 0 {
		o.FetchMemory = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Broker{opts: o, node: o.Node, data: o.Node.Data(), store: o.Node.Store(), meta: o.Node.Meta()}
}

// ClusterID names the cluster; NodeID is this node's number.
func (b *Broker) ClusterID() string { return b.node.ClusterID() }

// NodeID is this node's number.
func (b *Broker) NodeID() int32 { return b.node.NodeID() }

// A Start is how the node started, for people.
type Start struct {
	Kind  replication.StartKind `json:"kind"`
	Epoch int64                 `json:"epoch"` // node epoch: one more at every start
	// Of the run before, if it did not stop in order and its mark says.
	LastEpoch int64      `json:"last_epoch,omitempty"`
	LastSince *time.Time `json:"last_since,omitempty"`
}

// Startup says how the run before this one ended.
func (b *Broker) Startup() Start {
	s := b.node.Startup()
	out := Start{Kind: s.Kind, Epoch: b.node.Epoch(), LastEpoch: s.Last.Epoch}
	if !s.Last.Since.IsZero() {
		out.LastSince = &s.Last.Since
	}
	return out
}

// Ready says why the node cannot serve; empty is ready.
func (b *Broker) Ready() []string { return b.node.Ready() }

// Notes say what is wrong with what is stored while everything else is served: rot that was met since the start, as far
// as it still hides records.
func (b *Broker) Notes() []string {
	var notes []string
	for _, rot := range b.store.Rot() {
		if rot.Partition != (log.PartitionID{}) {
			p, ok := b.store.Partition(rot.Partition)
			if !ok || rot.Offset < p.LogStart() {
				continue // it is gone
			}
		}
		notes = append(notes, fmt.Sprintf("%s %s; stop the server and run `headrace debug log --repair`", RottenRecords, b.rotten(rot)))
	}
	return notes
}

// LeaderEpoch is the raft term of the data shard, which never falls.
func (b *Broker) LeaderEpoch() int32 {
	term, ok := b.data.Leader()
	if !ok {
		return -1
	}
	return int32(min(term, math.MaxInt32))
}

// Errors of leader epochs that a client believes in; only the Kafka front knows them.
var (
	ErrFencedEpoch  = errors.New("broker: the leader epoch is older than the leader's")
	ErrUnknownEpoch = errors.New("broker: the leader epoch is newer than the leader's")
)

// CheckEpoch compares a client's leader epoch with the leader's. -1 is none.
func (b *Broker) CheckEpoch(epoch int32) error {
	if epoch < 0 {
		return nil
	}
	switch now := b.LeaderEpoch(); {
	case now < 0:
		return Errorf(NotReady, "the shard has no leader")
	case epoch < now:
		return ErrFencedEpoch
	case epoch > now:
		return ErrUnknownEpoch
	}
	return nil
}

// A Kind says who writes a topic.
type Kind uint8

// The kinds.
const (
	Stored  Kind = iota // anybody
	Derived             // one pipeline
	View                // nobody
)

// String is the kind's name in the API.
func (k Kind) String() string { return [...]string{"topic", "derived", "view"}[k] }

// A Topic is a topic or a view as the fronts see it. It is immutable.
type Topic struct {
	Name       string
	ID         log.TopicID
	Partitions int32
	Kind       Kind
	Owner      string // module/topic of the pipeline, or the module, for Derived
	Ready      bool   // all partitions are open
	Settings   log.PartitionSettings
	SemiSync   bool              // an acknowledged record may not be synced yet
	Configs    map[string]string // must not be changed
	CreatedAt  int64             // ms since 1970; 0 for a view
	Schema     json.RawMessage   // declared, or nil
	View       SourcedView       // for View
}

func fromRow(r *replication.Topic) *Topic {
	owner, _, _ := strings.Cut(r.Owner, "#") // what follows is the engine's own
	t := &Topic{
		Name: r.Name, ID: r.ID, Partitions: r.Partitions, Owner: owner, Ready: r.Opened,
		Settings: r.Settings, Configs: r.Configs, CreatedAt: r.CreatedAt, Schema: r.Schema,
	}
	t.SemiSync = r.Configs["durability"] == "semi-sync"
	if r.Owner != "" {
		t.Kind = Derived
	}
	return t
}

func fromView(v SourcedView) *Topic {
	return &Topic{Name: v.Name(), ID: viewID(v.Name()), Partitions: v.Partitions(), Kind: View, Ready: true, View: v}
}

// Topic finds a topic or view by name.
func (b *Broker) Topic(name string) (*Topic, bool) {
	if r, ok := b.meta.Catalog().Topic(name); ok {
		return fromRow(r), true
	}
	if b.opts.Pipelines != nil {
		if v, ok := b.opts.Pipelines.View(name); ok {
			return fromView(v), true
		}
	}
	return nil, false
}

// TopicBytes is Topic for a name in place.
func (b *Broker) TopicBytes(name []byte) (*Topic, bool) { return b.Topic(string(name)) }

// TopicByID finds a topic or view by its id.
func (b *Broker) TopicByID(id [16]byte) (*Topic, bool) {
	if r, ok := b.meta.Catalog().TopicByID(id); ok {
		return fromRow(r), true
	}
	if b.opts.Pipelines != nil {
		for _, v := range b.opts.Pipelines.Views() {
			if viewID(v.Name()) == id {
				return fromView(v), true
			}
		}
	}
	return nil, false
}

// Topics lists topics and views by name.
func (b *Broker) Topics() []*Topic {
	rows := b.meta.Catalog().Topics()
	out := make([]*Topic, 0, len(rows))
	for _, r := range rows {
		out = append(out, fromRow(r))
	}
	if b.opts.Pipelines != nil {
		for _, v := range b.opts.Pipelines.Views() {
			if _, ok := b.meta.Catalog().Topic(v.Name()); !ok {
				out = append(out, fromView(v))
			}
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	}
	return out
}

// partition finds the partition that holds the records of one of t's: for a view, the source's.
func (b *Broker) partition(t *Topic, index int32) (*log.Partition, error) {
	if index < 0 || index >= t.Partitions {
		return nil, Errorf(UnknownPartition, "topic %q has %s, no partition %d", t.Name, partitionsOf(t), index)
	}
	var p *log.Partition
	if t.Kind == View {
		p = t.View.SourcePartition(index)
	} else {
		p, _ = b.store.Partition(log.PartitionID{Topic: t.ID, Index: index})
	}
	if p == nil {
		return nil, Errorf(UnknownPartition, "partition %d of topic %q is not open yet", index, t.Name)
	}
	return p, nil
}

// A TopicSpec is a topic to create. Partitions 0 is the default.
type TopicSpec struct {
	Name       string
	Partitions int32
	Configs    map[string]string
	Schema     json.RawMessage
}

// A Created is the answer to one TopicSpec.
type Created struct {
	Topic *Topic // nil if Err is not
	Err   error
}

// CreateTopics creates those of specs whose entry of errs is nil, or only judges them. It returns when the
// partitions are open.
func (b *Broker) CreateTopics(ctx context.Context, specs []TopicSpec, errs []error, validateOnly bool) []Created {
	out := make([]Created, len(specs))
	var rows []replication.TopicSpec
	var at []int
	for i := range specs {
		if errs != nil && errs[i] != nil {
			out[i].Err = errs[i]
			continue
		}
		row, err := b.topicRow(&specs[i])
		if err != nil {
			out[i].Err = err
			continue
		}
		if validateOnly {
			out[i].Topic = &Topic{Name: row.Name, Partitions: row.Partitions, Settings: *row.Settings, Configs: row.Configs}
			continue
		}
		rows, at = append(rows, row), append(at, i)
	}
	if len(rows) == 0 {
		return out
	}
	failed := b.meta.CreateTopics(ctx, rows)
	for k, i := range at {
		if failed[k] != nil {
			out[i].Err = metadataError(failed[k], rows[k].Name)
			continue
		}
		t, ok := b.Topic(rows[k].Name)
		if !ok {
			out[i].Err = Errorf(Conflict, "topic %q was deleted while it was created", rows[k].Name)
			continue
		}
		out[i].Topic = t
	}
	return out
}

// topicRow checks a spec and fills in defaults.
func (b *Broker) topicRow(s *TopicSpec) (replication.TopicSpec, error) {
	row := replication.TopicSpec{Name: s.Name, Partitions: s.Partitions, Configs: s.Configs, Schema: s.Schema}
	if err := CheckTopicName(s.Name); err != nil {
		return row, err
	}
	if _, ok := b.Topic(s.Name); ok {
		return row, Errorf(TopicExists, "topic %q exists", s.Name)
	}
	if row.Partitions == 0 {
		row.Partitions = b.opts.DefaultPartitions
	}
	if row.Partitions < 1 || row.Partitions > replication.MaxTopicPartitions {
		return row, Errorf(InvalidPartitions, "topic %q cannot have %d partitions", s.Name, row.Partitions)
	}
	settings, err := ParseConfigs(s.Configs)
	row.Settings = &settings
	return row, err
}

// AutoCreate creates a topic with defaults, or finds the one that somebody else created meanwhile.
func (b *Broker) AutoCreate(ctx context.Context, name string) (*Topic, error) {
	created := b.CreateTopics(ctx, []TopicSpec{{Name: name}}, nil, false)[0]
	if created.Err != nil && AsError(created.Err).Code == TopicExists {
		if t, ok := b.Topic(name); ok {
			return t, nil
		}
	}
	return created.Topic, created.Err
}

// DeleteTopic deletes a topic that no pipeline writes.
func (b *Broker) DeleteTopic(ctx context.Context, name string) error {
	t, ok := b.Topic(name)
	switch {
	case !ok:
		return Errorf(UnknownTopic, "topic %q does not exist", clip(name))
	case t.Kind == View:
		e := Errorf(TopicIsView, "%q is a view", name)
		e.Fix = "Delete or change the module that declares the view."
		return e
	case t.Kind == Derived:
		return Errorf(TopicInUse, "topic %q is written by %s", name, t.Owner)
	}
	if b.opts.Pipelines != nil {
		if by := b.opts.Pipelines.Readers(name); len(by) > 0 {
			return Errorf(TopicInUse, "topic %q is read by %s", name, strings.Join(by, ", "))
		}
	}
	if err := b.meta.DeleteTopic(ctx, name); err != nil {
		return metadataError(err, name)
	}
	return nil
}

// metadataError turns a refusal of the metadata into a user's terms.
func metadataError(err error, name string) error {
	name = clip(name)
	switch {
	case errors.Is(err, replication.ErrTopicExists):
		return &Error{Code: TopicExists, Message: fmt.Sprintf("topic %q exists", name), Err: err}
	case errors.Is(err, replication.ErrUnknownTopic):
		return &Error{Code: UnknownTopic, Message: fmt.Sprintf("topic %q does not exist", name), Err: err}
	case errors.Is(err, replication.ErrInvalidName):
		return &Error{Code: InvalidTopicName, Message: fmt.Sprintf("the topic name %q is not allowed", name), Err: err}
	case errors.Is(err, replication.ErrInvalidTopic):
		return &Error{Code: InvalidConfig, Message: err.Error(), Err: err}
	case errors.Is(err, replication.ErrLimit):
		return &Error{Code: TooManyPartitions, Message: err.Error(), Err: err}
	case errors.Is(err, replication.ErrVersionConflict):
		return &Error{Code: Conflict, Message: err.Error(), Err: err}
	}
	return proposalError(err)
}

// proposalError turns why a proposal failed into a user's terms.
func proposalError(err error) error {
	for _, row := range []struct {
		is   error
		code Code
	}{
		{replication.ErrUnknown, OutcomeUnknown}, // whatever the reason: the others are a definite no
		{log.ErrUnknownPartition, UnknownPartition},
		{log.ErrUnknownProducer, UnknownProducer},
		{log.ErrSequence, OutOfSequence},
		{log.ErrProducerFenced, ProducerFenced},
		{log.ErrTooLarge, BatchTooLarge},
		{replication.ErrTooLarge, BatchTooLarge},
		{log.ErrBadBatch, InvalidBatch},
		{log.ErrOffsetRange, OffsetOutOfRange},
		{replication.ErrNoRoom, NoRoom}, // is an ErrBusy too
		{replication.ErrBusy, Busy},
		{replication.ErrNotLeader, NotReady},
		{replication.ErrClosed, NotReady},
		{replication.ErrFailed, StorageFailed},
		{context.DeadlineExceeded, Timeout},
		{context.Canceled, NotReady},
	} {
		if errors.Is(err, row.is) {
			return &Error{Code: row.code, Message: err.Error(), Err: err}
		}
	}
	return AsError(err)
}

// readError turns why a read failed into a user's terms, and names the topic where bytes are rotten.
func (b *Broker) readError(err error) error {
	out := readError(err)
	var rot *log.CorruptError
	if e := AsError(out); e.Code == RottenRecords && errors.As(err, &rot) {
		e.Message = b.rotten(rot)
	}
	return out
}

// readError turns why a read failed into a user's terms.
func readError(err error) error {
	switch {
	case errors.Is(err, log.ErrOffsetRange):
		return &Error{Code: OffsetOutOfRange, Message: err.Error(), Err: err}
	case errors.Is(err, log.ErrClosed):
		return &Error{Code: NotReady, Message: err.Error(), Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return proposalError(err)
	case errors.Is(err, log.ErrCorrupt), errors.Is(err, wal.ErrCorrupt):
		return &Error{Code: RottenRecords, Message: err.Error(), Err: err}
	}
	return &Error{Code: StorageFailed, Message: err.Error(), Err: err}
}

// rotten names a place of rot by the topic and partition whose records it hides.
func (b *Broker) rotten(rot *log.CorruptError) string {
	file := path.Join(replication.StoreDir, rot.Path)
	if rot.Position >= 0 {
		file = fmt.Sprintf("%s, byte %d", file, rot.Position)
	}
	if rot.Partition == (log.PartitionID{}) {
		return fmt.Sprintf("rows of the store are rotten (%s): %v", file, rot.Err)
	}
	topic := rot.Partition.Topic.String()
	if b.meta != nil { // nil: a store alone
		if t, ok := b.TopicByID(rot.Partition.Topic); ok {
			topic = t.Name
		}
	}
	return fmt.Sprintf("%s[%d] cannot be read at offset %d: %s is rotten (%v)", topic, rot.Partition.Index, rot.Offset, file, rot.Err)
}

// ProducerID gives out an id that nobody had before.
func (b *Broker) ProducerID(ctx context.Context) (int64, error) {
	id, err := b.meta.ProducerID(ctx)
	if err != nil {
		return -1, proposalError(err)
	}
	return id, nil
}

// markTimeMark is what EndTopic appends: event time has come to its end.
func markTimeMark(now time.Time) []byte { return record.TimeMark(math.MaxInt64, now.UnixMilli()) }

// StorePartition finds a stored partition by topic id, nil if it is not open. For what provides views.
func (b *Broker) StorePartition(topic log.TopicID, index int32) *log.Partition {
	p, _ := b.store.Partition(log.PartitionID{Topic: topic, Index: index})
	return p
}
