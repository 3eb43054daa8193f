package replication

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

// A command of the metadata: one kind byte and a JSON body. A unit holds exactly one.
type commandKind byte

// The kinds are on disk.
const (
	cmdCreateTopic   commandKind = 1 // Topic
	cmdDeleteTopic   commandKind = 2 // deleteTopic
	cmdSetTopic      commandKind = 3 // setTopic
	cmdPutModule     commandKind = 4 // putModule
	cmdDeleteModule  commandKind = 5 // deleteModule
	cmdProducerBlock commandKind = 6 // nothing; Offsets[0] is the first id of the block
	cmdRegisterNode  commandKind = 7 // NodeRow; Offsets[0] is the node epoch
	cmdPutSchema     commandKind = 8 // SchemaRow; Offsets are the id and the version
	cmdPurge         commandKind = 9 // purge: partitions of deleted topics are gone
)

// ProducerBlock is how many producer ids one metadata entry hands out.
const ProducerBlock = 1000

type deleteTopic struct {
	Name string `json:"name"`
}

type setTopic struct {
	Name  string     `json:"name"`
	Patch TopicPatch `json:"patch"`
}

type putModule struct {
	Module ModuleRow `json:"module"`
	Expect int64     `json:"expect"` // version in force; 0: none; -1: any
}

type deleteModule struct {
	Name   string `json:"name"`
	Expect int64  `json:"expect"`
}

type purge struct {
	IDs []log.TopicID `json:"ids"`
}

func command(kind commandKind, body any) (*log.Unit, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("replication: encode metadata command: %w", err)
	}
	if len(b) > MaxRowBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrLimit, len(b), MaxRowBytes)
	}
	u := new(log.Unit)
	u.Command(append([]byte{byte(kind)}, b...))
	return u, nil
}

// Rows in Pebble. Every write batch also carries the applied row, so the database is the metadata as it was
// after some entry; its own log is off, and what a crash loses is applied again from the shard's log.
const (
	rowApplied   = 'a' // applied index and raft term, 8 bytes each
	rowTopic     = 't' // name: Topic
	rowTombstone = 'x' // topic id: tombstone
	rowModule    = 'm' // name: ModuleRow
	rowNode      = 'n' // id, 4 bytes: NodeRow
	rowSchema    = 's' // id, 4 bytes: SchemaRow
	rowProducer  = 'p' // next producer id, 8 bytes
)

func rowKey(kind byte, key []byte) []byte { return append([]byte{kind}, key...) }
func rowNumber(kind byte, n int32) []byte {
	return binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))
}

// A placement is work for whoever opens and drops partitions: a topic that was created or changed, or a
// tombstone.
type placement struct {
	topic   *Topic
	dropped *tombstone
	// unsure: settings of an earlier row were proposed and may still come to be applied, so the store's present ones
	// say nothing.
	unsure bool
}

// A metaMachine is the state machine of the metadata shard.
type metaMachine struct {
	db  *pebble.DB
	fs  *fsx.PatientFS
	log *slog.Logger

	catalog atomic.Pointer[Catalog]
	term    atomic.Uint64 // raft term of the catalogue's index
	failed  atomic.Pointer[error]
	gaveUp  chan struct{}         // closed when failed is set
	fatal   atomic.Bool           // Pebble has given up; it cannot be closed
	full    atomic.Pointer[error] // Pebble waits for space, and goes on when there is some

	owner sync.Mutex // held while a new catalogue is made from the present one; before mu
	mu    struct {
		sync.Mutex
		changed chan struct{} // closed at the next change
		work    []placement
		waked   chan struct{} // capacity 1: work is there
	}
}

var _ StateMachine = (*metaMachine)(nil)

// openMeta opens the metadata under dir.
func openMeta(fs fsx.FS, dir string, logger *slog.Logger) (*metaMachine, error) {
	m := &metaMachine{log: logger, gaveUp: make(chan struct{})}
	m.mu.changed = make(chan struct{})
	m.mu.waked = make(chan struct{}, 1)
	m.fs = fsx.NewPatient(fs, fsx.PatientOptions{State: m.waits})
	cache := pebble.NewCache(4 << 20)
	defer cache.Unref()
	var c *Catalog
	var term uint64
	err := fsx.Survive(func() error {
		db, err := pebble.Open(dir, &pebble.Options{
			FS: m.fs, DisableWAL: true, Cache: cache, MemTableSize: 8 << 20, MaxOpenFiles: 64,
			FormatMajorVersion: pebble.FormatNewest, Logger: pebbleLogger{m},
			// Apply must not wait for a compaction.
			L0StopWritesThreshold: 1000, MemTableStopWritesThreshold: 16,
		})
		if err != nil {
			return err
		}
		m.db = db
		m.fs.Patient()
		if c, term, err = load(db); err != nil {
			return errors.Join(err, db.Close())
		}
		return nil
	}, m.Err, m.gaveUp)
	if err != nil {
		if damaged(err) && !rotten(err) {
			err = fmt.Errorf("%w: %w", log.ErrCorrupt, err) // Pebble does not call all of it corruption
		}
		return nil, fmt.Errorf("replication: open metadata rows in %s: %w", dir, err)
	}
	m.catalog.Store(c)
	m.term.Store(term)
	for _, t := range c.topics.all() {
		m.mu.work = append(m.mu.work, placement{topic: t})
	}
	for _, x := range c.tombstones.all() {
		m.mu.work = append(m.mu.work, placement{dropped: &x})
	}
	m.mu.waked <- struct{}{}
	return m, nil
}

// A pebbleLogger keeps Pebble's voice down. Pebble expects Fatalf not to return, and it calls it for a disk
// that fails at the wrong moment: the goroutine ends, the rows are given up, and the process lives.
type pebbleLogger struct{ m *metaMachine }

func (p pebbleLogger) Infof(string, ...any) {}
func (p pebbleLogger) Errorf(format string, args ...any) {
	p.m.log.Warn("metadata rows: " + fmt.Sprintf(format, args...))
}

func (p pebbleLogger) Fatalf(format string, args ...any) {
	p.m.fatal.Store(true)
	p.m.fail(fsx.Fatal(format, args...))
	goruntime.Goexit()
}

// errMetaRow is a row that makes no sense.
var errMetaRow = errors.New("replication: metadata row")

// load reads the whole catalogue out of the rows.
func load(db pebble.Reader) (*Catalog, uint64, error) {
	c := newCatalog()
	var term uint64
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, 0, fmt.Errorf("replication: read metadata rows: %w", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		k, v := it.Key(), it.Value()
		var err error
		switch k[0] {
		case rowApplied:
			if len(v) != 16 {
				err = fmt.Errorf("applied row of %d bytes", len(v))
				break
			}
			c.Index, term = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
		case rowTopic:
			t := new(Topic)
			if err = json.Unmarshal(v, t); err == nil {
				c.putTopic(t)
			}
		case rowTombstone:
			var x tombstone
			if err = json.Unmarshal(v, &x); err == nil {
				c.tombstones = c.tombstones.put(x.ID, x)
			}
		case rowModule:
			m := new(ModuleRow)
			if err = json.Unmarshal(v, m); err == nil {
				c.modules = c.modules.put(m.Name, m)
			}
		case rowNode:
			var n NodeRow
			if err = json.Unmarshal(v, &n); err == nil {
				c.nodes = c.nodes.put(n.ID, n)
			}
		case rowSchema:
			var s SchemaRow
			if err = json.Unmarshal(v, &s); err == nil {
				c.putSchema(s)
			}
		case rowProducer:
			if len(v) != 8 {
				err = fmt.Errorf("producer row of %d bytes", len(v))
				break
			}
			c.producer = int64(binary.BigEndian.Uint64(v))
		default:
			err = errors.New("unknown row")
		}
		if err != nil {
			return nil, 0, errors.Join(fmt.Errorf("%w %q: %w", errMetaRow, k, err), it.Close())
		}
	}
	if err := it.Close(); err != nil {
		return nil, 0, fmt.Errorf("replication: read metadata rows: %w", err)
	}
	return c, term, nil
}

// Apply implements StateMachine.
func (m *metaMachine) Apply(index, term uint64, entry []byte) []log.Result {
	cur := m.catalog.Load()
	if index <= cur.Index {
		return nil
	}
	e, err := log.DecodeEntry(entry)
	if err != nil {
		m.fail(fmt.Errorf("entry %d: %w", index, err))
		return nil
	}
	m.owner.Lock()
	defer m.owner.Unlock()
	next := *m.catalog.Load()
	a := applier{c: &next, index: index, batch: m.db.NewBatch()}
	results := make([]log.Result, 0, e.Count)
	for _, u := range e.Units() {
		r := log.Result{LastOffset: -1, AppendTime: e.AppendTime, Index: index}
		r.Offsets, r.Err = a.unit(u)
		if r.Err != nil {
			r.Err = &log.RejectError{Reason: r.Err}
		}
		results = append(results, r)
	}
	a.c.Index = index
	applied := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, index), term)
	a.set([]byte{rowApplied}, applied)
	if a.err == nil && m.Err() == nil {
		a.err = m.db.Apply(a.batch, pebble.NoSync)
	}
	if a.err != nil {
		m.fail(fmt.Errorf("entry %d: %w", index, a.err))
	}
	m.term.Store(term)
	m.publish(a.c, a.work)
	return results
}

// publish makes c the catalogue and wakes watchers. The caller owns the catalogue.
func (m *metaMachine) publish(c *Catalog, work []placement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.catalog.Store(c)
	m.mu.work = append(m.mu.work, work...)
	m.signal()
	if len(work) > 0 {
		select {
		case m.mu.waked <- struct{}{}:
		default:
		}
	}
}

// opened marks topics whose partitions the data shard holds, with the settings of these rows. A row may have changed
// since: partitions that came later are not open yet.
func (m *metaMachine) opened(topics []*Topic) {
	m.owner.Lock()
	defer m.owner.Unlock()
	next := *m.catalog.Load()
	for _, t := range topics {
		if cur, ok := next.ids.get(t.ID); ok && cur.Placed < t.Index {
			c := *cur
			c.Opened, c.Placed = cur.Opened || cur.Partitions == t.Partitions, t.Index
			next.putTopic(&c)
		}
	}
	m.publish(&next, nil)
}

// signal wakes watchers. The lock is held.
func (m *metaMachine) signal() {
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
}

// watch returns a channel that is closed at the next change of the catalogue.
func (m *metaMachine) watch() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.changed
}

// takeWork returns what is to be placed and forgets it.
func (m *metaMachine) takeWork() []placement {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.mu.work
	m.mu.work = nil
	return w
}

// fail says that the rows can no longer be trusted to follow the log. The catalogue in memory goes on;
// checkpoints fail, so the log keeps everything.
func (m *metaMachine) fail(err error) {
	if m.failed.CompareAndSwap(nil, &err) {
		close(m.gaveUp)
		m.log.Error("metadata rows cannot be written; the log is kept", "error", err)
	}
}

// Err returns why rows cannot be written, or nil.
func (m *metaMachine) Err() error {
	if p := m.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// waits notes that Pebble waits for space, nil that it does not any more.
func (m *metaMachine) waits(err error) {
	if err == nil {
		m.full.Store(nil)
		m.log.Info("metadata rows are written again")
		return
	}
	err = fmt.Errorf("metadata rows wait for space: %w", err)
	if m.full.Swap(&err) == nil {
		m.log.Warn("metadata rows", "error", err)
	}
}

// trouble is Err, or what keeps the rows waiting.
func (m *metaMachine) trouble() error {
	if err := m.Err(); err != nil {
		return err
	}
	if p := m.full.Load(); p != nil {
		return *p
	}
	return nil
}

// Applied implements StateMachine.
func (m *metaMachine) Applied() (index, term uint64) {
	return m.catalog.Load().Index, m.term.Load()
}

// Checkpoint implements StateMachine.
func (m *metaMachine) Checkpoint(ctx context.Context) (log.CheckpointInfo, error) {
	index, term := m.Applied()
	if err := m.Err(); err != nil {
		return log.CheckpointInfo{}, err
	}
	flushed, err := m.db.AsyncFlush()
	if err != nil {
		return log.CheckpointInfo{}, fmt.Errorf("replication: flush metadata rows: %w", err)
	}
	// Pebble tries a flush that fails again and again, so it may take until the disk is back.
	select {
	case <-flushed:
	case <-m.gaveUp:
		return log.CheckpointInfo{}, m.Err()
	case <-ctx.Done():
		return log.CheckpointInfo{}, fmt.Errorf("replication: flush metadata rows: %w", ctx.Err())
	}
	return log.CheckpointInfo{Index: index, Term: term}, nil
}

// Backlog implements StateMachine: rows are in Pebble when Apply returns.
func (m *metaMachine) Backlog() int64 { return 0 }

// Close implements StateMachine.
func (m *metaMachine) Close() error {
	m.fs.Hurry()
	switch {
	case m.fatal.Load():
		return m.Err()
	case m.fs.Broken():
		return m.trouble() // Pebble's goroutines may never answer; the log has what the rows lack
	}
	return m.db.Close()
}

// An applier judges the units of one entry against a catalogue of its own. A refused unit changes nothing.
type applier struct {
	c     *Catalog
	index uint64
	batch *pebble.Batch
	work  []placement
	err   error // of the batch
}

func (a *applier) set(k, v []byte) {
	if err := a.batch.Set(k, v, nil); a.err == nil {
		a.err = err
	}
}

func (a *applier) del(k []byte) {
	if err := a.batch.Delete(k, nil); a.err == nil {
		a.err = err
	}
}

func (a *applier) setRow(k []byte, row any) {
	b, err := json.Marshal(row)
	if err != nil && a.err == nil {
		a.err = err
	}
	a.set(k, b)
}

func (a *applier) unit(u log.UnitView) ([]int64, error) {
	var cmd []byte
	n := 0
	for op := range u.Ops() {
		if op.Kind != log.OpCommand || n > 0 || len(op.Body) == 0 {
			return nil, log.ErrBadUnit
		}
		cmd = op.Body
		n++
	}
	if n == 0 {
		return nil, nil
	}
	return a.command(commandKind(cmd[0]), cmd[1:])
}

func decode[T any](body []byte) (T, error) {
	var v T
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", log.ErrBadUnit, err)
	}
	return v, nil
}

func (a *applier) command(kind commandKind, body []byte) ([]int64, error) {
	switch kind {
	case cmdCreateTopic:
		t, err := decode[Topic](body)
		if err != nil {
			return nil, err
		}
		return nil, a.createTopic(t)
	case cmdDeleteTopic:
		d, err := decode[deleteTopic](body)
		if err != nil {
			return nil, err
		}
		return nil, a.deleteTopic(d)
	case cmdSetTopic:
		s, err := decode[setTopic](body)
		if err != nil {
			return nil, err
		}
		return nil, a.setTopic(s)
	case cmdPutModule:
		p, err := decode[putModule](body)
		if err != nil {
			return nil, err
		}
		return a.putModule(p)
	case cmdDeleteModule:
		d, err := decode[deleteModule](body)
		if err != nil {
			return nil, err
		}
		return nil, a.deleteModule(d)
	case cmdProducerBlock:
		first := a.c.producer
		a.c.producer += ProducerBlock
		a.set([]byte{rowProducer}, binary.BigEndian.AppendUint64(nil, uint64(a.c.producer)))
		return []int64{first}, nil
	case cmdRegisterNode:
		n, err := decode[NodeRow](body)
		if err != nil {
			return nil, err
		}
		old, _ := a.c.nodes.get(n.ID)
		n.Epoch = old.Epoch + 1
		a.c.nodes = a.c.nodes.put(n.ID, n)
		a.setRow(rowNumber(rowNode, n.ID), n)
		return []int64{n.Epoch}, nil
	case cmdPutSchema:
		s, err := decode[SchemaRow](body)
		if err != nil {
			return nil, err
		}
		return a.putSchema(s)
	case cmdPurge:
		p, err := decode[purge](body)
		if err != nil {
			return nil, err
		}
		for _, id := range p.IDs {
			a.c.tombstones = a.c.tombstones.del(id)
			a.del(rowKey(rowTombstone, id[:]))
		}
		return nil, nil
	}
	return nil, fmt.Errorf("%w: command %d", log.ErrBadUnit, kind)
}

func (a *applier) createTopic(t Topic) error {
	if err := CheckName(t.Name); err != nil {
		return err
	}
	if _, ok := a.c.topics.get(t.Name); ok {
		return fmt.Errorf("%w: %s", ErrTopicExists, t.Name)
	}
	if _, ok := a.c.ids.get(t.ID); ok {
		return fmt.Errorf("%w: id %s", ErrTopicExists, t.ID)
	}
	if err := a.fits(0, t.Partitions); err != nil {
		return err
	}
	if a.c.topics.len() >= MaxTopics {
		return fmt.Errorf("%w: %d topics", ErrLimit, MaxTopics)
	}
	t.Index = a.index
	a.putTopic(&t)
	return nil
}

// fits checks a topic's partition count and what it makes of the sum.
func (a *applier) fits(old, now int32) error {
	if now < 1 || now > MaxTopicPartitions {
		return fmt.Errorf("%w: %d partitions, allowed are 1 to %d", ErrLimit, now, MaxTopicPartitions)
	}
	if a.c.partitions+int64(now)-int64(old) > MaxPartitions {
		return fmt.Errorf("%w: %d partitions in all", ErrLimit, MaxPartitions)
	}
	return nil
}

func (a *applier) putTopic(t *Topic) {
	a.c.putTopic(t)
	a.setRow(rowKey(rowTopic, []byte(t.Name)), t)
	a.work = append(a.work, placement{topic: t})
}

func (a *applier) deleteTopic(d deleteTopic) error {
	t, ok := a.c.topics.get(d.Name)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownTopic, d.Name)
	}
	a.c.dropTopic(t)
	x := tombstone{ID: t.ID, Name: t.Name, Partitions: t.Partitions, Index: a.index}
	a.c.tombstones = a.c.tombstones.put(x.ID, x)
	a.del(rowKey(rowTopic, []byte(t.Name)))
	a.setRow(rowKey(rowTombstone, t.ID[:]), x)
	a.work = append(a.work, placement{dropped: &x})
	return nil
}

func (a *applier) setTopic(s setTopic) error {
	old, ok := a.c.topics.get(s.Name)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownTopic, s.Name)
	}
	t, err := s.Patch.apply(old, a.index)
	if err != nil {
		return err
	}
	if err := a.fits(old.Partitions, t.Partitions); err != nil {
		return err
	}
	a.putTopic(t)
	return nil
}

func conflict(name string, expect, have int64) error {
	return fmt.Errorf("%w: module %s has version %d, not %d", ErrVersionConflict, name, have, expect)
}

func (a *applier) putModule(p putModule) ([]int64, error) {
	if err := CheckName(p.Module.Name); err != nil {
		return nil, err
	}
	var version int64
	old, ok := a.c.modules.get(p.Module.Name)
	if ok {
		version = old.Version
	}
	switch {
	case p.Expect >= 0 && p.Expect != version:
		return nil, conflict(p.Module.Name, p.Expect, version)
	case !ok && a.c.modules.len() >= MaxModules:
		return nil, fmt.Errorf("%w: %d modules", ErrLimit, MaxModules)
	}
	m := p.Module
	m.Version = version + 1
	a.c.modules = a.c.modules.put(m.Name, &m)
	a.setRow(rowKey(rowModule, []byte(m.Name)), &m)
	return []int64{m.Version}, nil
}

func (a *applier) deleteModule(d deleteModule) error {
	m, ok := a.c.modules.get(d.Name)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownModule, d.Name)
	}
	if d.Expect >= 0 && d.Expect != m.Version {
		return conflict(d.Name, d.Expect, m.Version)
	}
	a.c.modules = a.c.modules.del(d.Name)
	a.del(rowKey(rowModule, []byte(d.Name)))
	return nil
}

// putSchema adds a version unless the newest one says the same.
func (a *applier) putSchema(s SchemaRow) ([]int64, error) {
	if err := CheckName(s.Name); err != nil {
		return nil, err
	}
	rows, _ := a.c.schemas.get(s.Name)
	if n := len(rows); n > 0 && bytes.Equal([]byte(rows[n-1].Text), []byte(s.Text)) {
		return []int64{int64(rows[n-1].ID), int64(rows[n-1].Version)}, nil
	}
	if a.c.schemaIDs.len() >= MaxTopics {
		return nil, fmt.Errorf("%w: %d schemas", ErrLimit, MaxTopics)
	}
	s.ID, s.Version = a.c.schema+1, int32(len(rows)+1)
	a.c.putSchema(s)
	a.setRow(rowNumber(rowSchema, s.ID), s)
	return []int64{int64(s.ID), int64(s.Version)}, nil
}
