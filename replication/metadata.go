package replication

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/headrace/headrace/log"
)

// Metadata is a node's copy of the metadata shard. Reads come from the catalogue in memory; changes are
// proposals, answered when this node has applied them. Its methods may be called from any goroutine.
type Metadata struct {
	shard   Proposer
	machine *metaMachine
	now     func() time.Time
	closed  <-chan struct{}

	block chan idBlock // capacity 1: holds the block when nobody uses it
}

// An idBlock is what is left of a block of producer ids.
type idBlock struct{ next, end int64 }

func newMetadata(shard Proposer, m *metaMachine, now func() time.Time, closed <-chan struct{}) *Metadata {
	md := &Metadata{shard: shard, machine: m, now: now, closed: closed, block: make(chan idBlock, 1)}
	md.block <- idBlock{}
	return md
}

// Catalog returns the present catalogue.
func (m *Metadata) Catalog() *Catalog { return m.machine.catalog.Load() }

// Watch returns a channel that is closed at the next change of the catalogue, Opened marks included. Take it
// before Catalog, or a change may fall in between.
func (m *Metadata) Watch() <-chan struct{} { return m.machine.watch() }

// do proposes one command. The error of a definite no wraps its sentinel; one of an unknown outcome ErrUnknown.
func (m *Metadata) do(ctx context.Context, kind commandKind, body any) (log.Result, error) {
	u, err := command(kind, body)
	if err != nil {
		return log.Result{}, err
	}
	r := m.shard.Do(ctx, u)
	return r.Result, r.Err
}

// CreateTopics creates topics, each alone, and returns an error for each in order: nil when it exists and its
// partitions are open, ErrTopicExists, ErrInvalidName, ErrLimit, or what kept the outcome unknown. When ctx
// ends while partitions are being opened the topic exists all the same, and they open later.
func (m *Metadata) CreateTopics(ctx context.Context, specs []TopicSpec) []error {
	errs := make([]error, len(specs))
	ids := make([]log.TopicID, len(specs))
	created := m.now().UnixMilli()
	var left atomic.Int64
	left.Store(int64(len(specs)) + 1)
	all := make(chan struct{})
	finish := func() {
		if left.Add(-1) == 0 {
			close(all)
		}
	}
	results := make([]Result, len(specs))
	for i := range specs {
		var u *log.Unit
		u, ids[i], errs[i] = createUnit(&specs[i], created)
		if errs[i] == nil {
			errs[i] = m.shard.ProposeWait(ctx, u, func(r Result) {
				results[i] = r
				finish()
			})
		}
		if errs[i] != nil {
			results[i] = no(errs[i])
			finish()
		}
	}
	finish()
	select {
	case <-all:
	case <-ctx.Done():
		for i := range errs {
			if errs[i] == nil {
				errs[i] = unknown(ctx.Err()).Err
			}
		}
		return errs
	}
	for i := range specs {
		if errs[i] = results[i].Err; errs[i] == nil {
			errs[i] = m.waitOpened(ctx, specs[i].Name, ids[i])
		}
	}
	return errs
}

func createUnit(s *TopicSpec, created int64) (*log.Unit, log.TopicID, error) {
	if err := CheckName(s.Name); err != nil {
		return nil, log.TopicID{}, err
	}
	t := Topic{
		Name: s.Name, ID: log.TopicID(uuid.New()), Partitions: s.Partitions, Settings: DefaultSettings(),
		Configs: s.Configs, CreatedAt: created, Owner: s.Owner, Schema: s.Schema,
	}
	if t.Partitions == 0 {
		t.Partitions = 1
	}
	if s.Settings != nil {
		t.Settings = *s.Settings
	}
	u, err := command(cmdCreateTopic, &t)
	return u, t.ID, err
}

// wait waits until cond says that it is over.
func (m *Metadata) wait(ctx context.Context, cond func(c *Catalog) (bool, error)) error {
	for {
		changed := m.Watch()
		if done, err := cond(m.Catalog()); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-m.closed:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *Metadata) waitOpened(ctx context.Context, name string, id log.TopicID) error {
	return m.wait(ctx, func(c *Catalog) (bool, error) {
		t, ok := c.TopicByID(id)
		if !ok {
			return false, fmt.Errorf("%w: %s was deleted meanwhile", ErrUnknownTopic, name)
		}
		return t.Opened, nil
	})
}

// CreateTopic creates one topic. See CreateTopics.
func (m *Metadata) CreateTopic(ctx context.Context, spec TopicSpec) error {
	return m.CreateTopics(ctx, []TopicSpec{spec})[0]
}

// DeleteTopic deletes a topic and returns when its partitions are gone from the data shard.
func (m *Metadata) DeleteTopic(ctx context.Context, name string) error {
	t, ok := m.Catalog().Topic(name)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownTopic, name)
	}
	if _, err := m.do(ctx, cmdDeleteTopic, deleteTopic{Name: name}); err != nil {
		return err
	}
	return m.wait(ctx, func(c *Catalog) (bool, error) {
		_, still := c.tombstones.get(t.ID)
		return !still, nil
	})
}

// SetTopic changes a topic and returns when its partitions follow: the next append is judged by the new settings.
// Partitions may only be added. When ctx ends while the partitions are told, the topic is changed all the same.
func (m *Metadata) SetTopic(ctx context.Context, name string, patch TopicPatch) error {
	r, err := m.do(ctx, cmdSetTopic, setTopic{Name: name, Patch: patch})
	if err != nil {
		return err
	}
	return m.wait(ctx, func(c *Catalog) (bool, error) {
		t, ok := c.Topic(name)
		return !ok || t.Opened && t.Placed >= r.Index, nil
	})
}

// maxAlterAttempts bounds how often AlterTopic begins anew. Of those who change a topic at once one always succeeds.
const maxAlterAttempts = 100

// AlterTopic is SetTopic for a patch that depends on the row: change makes it, and is asked again when the row has
// changed meanwhile, so that of two alterations at once neither is lost. An error of change ends it.
func (m *Metadata) AlterTopic(ctx context.Context, name string, change func(t *Topic) (TopicPatch, error)) error {
	for i := 0; ; i++ {
		t, ok := m.Catalog().Topic(name)
		if !ok {
			return fmt.Errorf("%w: %s", ErrUnknownTopic, name)
		}
		patch, err := change(t)
		if err != nil {
			return err
		}
		patch.Expect = t.Index
		if err = m.SetTopic(ctx, name, patch); !errors.Is(err, ErrVersionConflict) || i+1 == maxAlterAttempts {
			return err
		}
	}
}

// PutModule stores a module if the version in force is expect (0: none, -1: any), and returns its new
// version. ErrVersionConflict otherwise. The row's own Version is ignored.
func (m *Metadata) PutModule(ctx context.Context, row ModuleRow, expect int64) (version int64, err error) {
	r, err := m.do(ctx, cmdPutModule, putModule{Module: row, Expect: expect})
	if err != nil {
		return 0, err
	}
	return r.Offsets[0], nil
}

// DeleteModule removes a module if its version is expect (-1: any).
func (m *Metadata) DeleteModule(ctx context.Context, name string, expect int64) error {
	_, err := m.do(ctx, cmdDeleteModule, deleteModule{Name: name, Expect: expect})
	return err
}

// PutSchema adds a version of a schema, unless the newest one has the same text, and returns it.
func (m *Metadata) PutSchema(ctx context.Context, name, text string) (SchemaRow, error) {
	r, err := m.do(ctx, cmdPutSchema, SchemaRow{Name: name, Text: text})
	if err != nil {
		return SchemaRow{}, err
	}
	return SchemaRow{Name: name, Text: text, ID: int32(r.Offsets[0]), Version: int32(r.Offsets[1])}, nil
}

// ProducerID returns a producer id that nobody else gets. Most calls take it from a block in memory; what is
// left of a block at a restart is not used.
func (m *Metadata) ProducerID(ctx context.Context) (int64, error) {
	var b idBlock
	select {
	case b = <-m.block:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { m.block <- b }()
	if b.next == b.end {
		r, err := m.do(ctx, cmdProducerBlock, struct{}{})
		if err != nil {
			return 0, err
		}
		b = idBlock{next: r.Offsets[0], end: r.Offsets[0] + ProducerBlock}
	}
	b.next++
	return b.next - 1, nil
}

// register records a start of this node and returns its epoch.
func (m *Metadata) register(ctx context.Context, row NodeRow) (epoch int64, err error) {
	r, err := m.do(ctx, cmdRegisterNode, row)
	if err != nil {
		return 0, err
	}
	if len(r.Offsets) != 1 {
		return 0, errors.New("replication: registration without an epoch")
	}
	return r.Offsets[0], nil
}
