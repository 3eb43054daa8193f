package replication

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/headrace/headrace/log"
)

// Definite nos of the metadata.
var (
	ErrTopicExists  = errors.New("replication: topic exists")
	ErrUnknownTopic = errors.New("replication: unknown topic")
	// ErrUnknownPartition: no topic, or not the one that was asked for, has a partition of this number.
	ErrUnknownPartition = errors.New("replication: unknown partition")
	ErrInvalidName      = errors.New("replication: invalid name")
	ErrInvalidTopic     = errors.New("replication: invalid topic settings")
	ErrUnknownModule    = errors.New("replication: unknown module")
	ErrVersionConflict  = errors.New("replication: version conflict")
	ErrLimit            = errors.New("replication: limit exceeded")
)

// Limits of the metadata. They are part of what Apply decides, so they are the same on every node.
const (
	MaxTopicPartitions = 10_000
	MaxPartitions      = 200_000 // of all topics together
	MaxTopics          = 100_000
	MaxModules         = 10_000
	MaxNameBytes       = 200
	MaxRowBytes        = 1 << 20 // one topic or module, encoded
)

// A Topic is one row of the catalogue. It is immutable: the catalogue replaces rows.
type Topic struct {
	Name       string                `json:"name"`
	ID         log.TopicID           `json:"id"`
	Partitions int32                 `json:"partitions"`
	Settings   log.PartitionSettings `json:"settings"`
	Configs    map[string]string     `json:"configs,omitempty"` // as given, for those who ask
	CreatedAt  int64                 `json:"created_at"`        // ms since 1970
	Index      uint64                `json:"index"`             // metadata index of the last change
	Owner      string                `json:"owner,omitempty"`   // module/pipeline that writes it
	Schema     json.RawMessage       `json:"schema,omitempty"`  // declared, or nil

	// Opened says that this node's data shard holds all partitions, Placed up to which metadata index their settings
	// follow the row. They are not stored.
	Opened bool   `json:"-"`
	Placed uint64 `json:"-"`
}

// A ModuleRow is one module of the catalogue, as text and as what the runtime made of it. Immutable.
type ModuleRow struct {
	Name      string            `json:"name"`
	Text      string            `json:"text"`
	Version   int64             `json:"version"` // 1, 2, ...; set by Apply
	State     string            `json:"state"`   // running, stopped
	Params    map[string]string `json:"params,omitempty"`
	AppliedAt int64             `json:"applied_at"` // ms since 1970
	Pipelines []PipelineRow     `json:"pipelines,omitempty"`
}

// A PipelineRow is one pipeline of a module.
type PipelineRow struct {
	Name    string     `json:"name"`
	Version string     `json:"version"`
	Task    log.TaskID `json:"task"`
	Start   string     `json:"start,omitempty"` // earliest, latest
	State   string     `json:"state"`
	Reason  string     `json:"reason,omitempty"`
}

// A NodeRow is a registered node.
type NodeRow struct {
	ID        int32  `json:"id"`
	Disk      string `json:"disk"`
	Epoch     int64  `json:"epoch"`      // one more at every start
	StartedAt int64  `json:"started_at"` // ms since 1970
}

// A SchemaRow is one version of a named schema.
type SchemaRow struct {
	Name    string `json:"name"`
	Version int32  `json:"version"` // 1, 2, ...
	ID      int32  `json:"id"`      // of all schemas
	Text    string `json:"text"`
}

// A tombstone is a deleted topic whose partitions may still be in the data shard.
type tombstone struct {
	ID         log.TopicID `json:"id"`
	Name       string      `json:"name"`
	Partitions int32       `json:"partitions"`
	Index      uint64      `json:"index"` // of the deletion
}

// A Catalog is the metadata at one index. It is immutable, and what it returns must not be changed.
type Catalog struct {
	Index uint64 // metadata index of the last entry that is in it

	topics     table[string, *Topic]
	ids        table[log.TopicID, *Topic]
	modules    table[string, *ModuleRow]
	nodes      table[int32, NodeRow]
	schemas    table[string, []SchemaRow] // by name, versions in order
	schemaIDs  table[int32, SchemaRow]
	tombstones table[log.TopicID, tombstone]
	partitions int64 // of all topics
	producer   int64 // next producer id
	schema     int32 // last schema id
}

func newCatalog() *Catalog {
	byID := func(a, b log.TopicID) int { return bytes.Compare(a[:], b[:]) }
	byNumber := func(a, b int32) int { return int(int64(a) - int64(b)) }
	return &Catalog{
		topics: newTable[string, *Topic](strings.Compare), ids: newTable[log.TopicID, *Topic](byID),
		modules: newTable[string, *ModuleRow](strings.Compare), nodes: newTable[int32, NodeRow](byNumber),
		schemas: newTable[string, []SchemaRow](strings.Compare), schemaIDs: newTable[int32, SchemaRow](byNumber),
		tombstones: newTable[log.TopicID, tombstone](byID),
		producer:   firstProducerID,
	}
}

// firstProducerID leaves low numbers to tests and hand-made batches.
const firstProducerID = 1000

// Topic returns the topic called name.
func (c *Catalog) Topic(name string) (*Topic, bool) { return c.topics.get(name) }

// TopicByID returns the topic with the given id.
func (c *Catalog) TopicByID(id log.TopicID) (*Topic, bool) { return c.ids.get(id) }

// Topics returns all topics by name.
func (c *Catalog) Topics() []*Topic { return c.topics.values() }

// AllTopics walks all topics by name without copying them.
func (c *Catalog) AllTopics() iter.Seq2[string, *Topic] { return c.topics.all() }

// TopicCount returns the number of topics, PartitionCount that of their partitions.
func (c *Catalog) TopicCount() int { return c.topics.len() }

// PartitionCount returns the number of partitions of all topics.
func (c *Catalog) PartitionCount() int64 { return c.partitions }

// Module returns the module called name.
func (c *Catalog) Module(name string) (*ModuleRow, bool) { return c.modules.get(name) }

// Modules returns all modules by name.
func (c *Catalog) Modules() []*ModuleRow { return c.modules.values() }

// Nodes returns the registered nodes by id.
func (c *Catalog) Nodes() []NodeRow { return c.nodes.values() }

// Schemas returns the versions of the schema called name, oldest first.
func (c *Catalog) Schemas(name string) []SchemaRow {
	rows, _ := c.schemas.get(name)
	return rows
}

// SchemaByID returns the schema with the given id.
func (c *Catalog) SchemaByID(id int32) (SchemaRow, bool) { return c.schemaIDs.get(id) }

// withTopic returns a copy of c that holds t in place of the row of the same name.
func (c *Catalog) putTopic(t *Topic) {
	if old, ok := c.topics.get(t.Name); ok {
		c.partitions -= int64(old.Partitions)
	}
	c.partitions += int64(t.Partitions)
	c.topics = c.topics.put(t.Name, t)
	c.ids = c.ids.put(t.ID, t)
}

func (c *Catalog) dropTopic(t *Topic) {
	c.partitions -= int64(t.Partitions)
	c.topics = c.topics.del(t.Name)
	c.ids = c.ids.del(t.ID)
}

func (c *Catalog) putSchema(s SchemaRow) {
	rows, _ := c.schemas.get(s.Name)
	c.schemas = c.schemas.put(s.Name, append(slices.Clip(rows), s))
	c.schemaIDs = c.schemaIDs.put(s.ID, s)
	c.schema = max(c.schema, s.ID)
}

// CheckName returns ErrInvalidName unless name is one of a topic or module: [A-Za-z0-9._-], at most 200
// bytes, neither "." nor "..".
func CheckName(name string) error {
	if name == "" || len(name) > MaxNameBytes || name == "." || name == ".." {
		return fmt.Errorf("%w: %.40q", ErrInvalidName, name)
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("%w: %.40q", ErrInvalidName, name)
		}
	}
	return nil
}

// A TopicSpec describes a topic to create.
type TopicSpec struct {
	Name       string
	Partitions int32 // 0: 1
	// Settings of the partitions. Nil: no limits of retention, the largest batch 1 MiB.
	Settings *log.PartitionSettings
	Configs  map[string]string
	Owner    string
	Schema   json.RawMessage
}

// DefaultMaxBatchBytes is the largest batch that a topic takes if its settings do not say: 1 MiB of records and what is
// before them, as in Kafka.
const DefaultMaxBatchBytes = 1<<20 + 12

// DefaultSettings are those of a topic that says nothing: kept for ever, batches up to DefaultMaxBatchBytes.
func DefaultSettings() log.PartitionSettings {
	return log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1, MaxBatchBytes: DefaultMaxBatchBytes}
}

// A TopicPatch changes a topic; nil fields stay as they are.
type TopicPatch struct {
	// Expect is the Index of the row that the patch was made from: another one is ErrVersionConflict. 0: any.
	Expect     uint64                 `json:"expect,omitempty"`
	Partitions *int32                 `json:"partitions,omitempty"` // may only grow
	Settings   *log.PartitionSettings `json:"settings,omitempty"`
	Configs    map[string]string      `json:"configs,omitzero"` // replaces all of them
	Owner      *string                `json:"owner,omitempty"`
	Schema     *json.RawMessage       `json:"schema,omitempty"`
}

// apply returns t as changed by p.
func (p *TopicPatch) apply(t *Topic, index uint64) (*Topic, error) {
	if p.Expect != 0 && p.Expect != t.Index {
		return nil, fmt.Errorf("%w: topic %s changed at %d, not %d", ErrVersionConflict, t.Name, t.Index, p.Expect)
	}
	c := *t
	c.Index = index
	if p.Partitions != nil {
		if *p.Partitions < t.Partitions {
			return nil, fmt.Errorf("%w: %d partitions, now %d", ErrInvalidTopic, *p.Partitions, t.Partitions)
		}
		c.Partitions = *p.Partitions
		c.Opened = c.Opened && c.Partitions == t.Partitions
	}
	if p.Settings != nil {
		c.Settings = *p.Settings
	}
	if p.Configs != nil {
		c.Configs = maps.Clone(p.Configs)
	}
	if p.Owner != nil {
		c.Owner = *p.Owner
	}
	if p.Schema != nil {
		c.Schema = *p.Schema
	}
	return &c, nil
}
