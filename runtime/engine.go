package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
)

// Errors that callers branch on.
var (
	ErrUnknownModule   = errors.New("runtime: unknown module")
	ErrUnknownPipeline = errors.New("runtime: unknown pipeline")
	ErrBreaks          = errors.New("runtime: the change breaks what readers rely on")
	ErrInUse           = errors.New("runtime: the topic is used by a module")
	ErrNameTaken       = errors.New("runtime: the name is taken")
	ErrClosed          = errors.New("runtime: the engine is closed")
)

func (o Options) withDefaults() Options {
	o.StepBytes = cmp.Or(o.StepBytes, 4<<20)
	o.OutputBytes = cmp.Or(o.OutputBytes, 2<<20)
	o.BatchRows = cmp.Or(o.BatchRows, 8192)
	o.Workers = cmp.Or(o.Workers, goruntime.GOMAXPROCS(0))
	o.DefaultPartitions = cmp.Or(o.DefaultPartitions, 1)
	o.ViewScanBytes = cmp.Or(o.ViewScanBytes, 8<<20)
	if o.Allocator == nil {
		o.Allocator = memory.DefaultAllocator
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// An Engine runs the modules of a node.
type Engine struct {
	node *replication.Node
	opts Options

	ctx    context.Context
	cancel context.CancelFunc

	apply chan struct{} // held by the one change of modules under way

	mu struct {
		sync.RWMutex
		modules map[string]*module
		views   map[string]*View // by Kafka name
	}
	markers sync.Map // log.TopicID -> log.TaskID: who writes time marks into an idle source
}

// A module is a running (or stopped) module row with its plan and tasks.
type module struct {
	row   replication.ModuleRow
	plan  *plan.Module
	tasks []*task // in file order, nil entries for stopped pipelines
	fault string  // why the stored module does not run
}

// New makes an engine over an open node. Start runs the modules of its catalogue.
func New(node *replication.Node, opts Options) *Engine {
	e := &Engine{node: node, opts: opts.withDefaults(), apply: make(chan struct{}, 1)}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.mu.modules = map[string]*module{}
	e.mu.views = map[string]*View{}
	return e
}

// Start brings every module of the catalogue to its declared state. A module that cannot run is listed
// with its reason and keeps the others from nothing.
func (e *Engine) Start(ctx context.Context) error {
	e.node.SetRetentionFloor(e.notBegun)
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	for _, row := range e.node.Meta().Catalog().Modules() {
		if err := e.install(ctx, row); err != nil {
			e.opts.Logger.Error("module does not run", "module", row.Name, "error", err)
		}
	}
	return e.sweep(ctx)
}

// notBegun are the source partitions of the pipelines that have not made a step, with offset 0: they need all there is.
// Retention knows by itself what the others have yet to read.
func (e *Engine) notBegun() map[log.PartitionID]int64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := map[log.PartitionID]int64{}
	for _, m := range e.mu.modules {
		if m.plan == nil {
			continue
		}
		for _, pl := range m.plan.Pipelines {
			pr := pipelineRow(&m.row, pl.Name)
			if pr == nil {
				continue
			}
			if st, ok := e.node.Store().Task(pr.Task); ok && st.Step > 0 {
				continue
			}
			for _, name := range pl.Inputs() {
				if t, ok := e.node.Meta().Catalog().Topic(name); ok {
					for i := range t.Partitions {
						out[log.PartitionID{Topic: t.ID, Index: i}] = 0
					}
				}
			}
		}
	}
	return out
}

// lock waits until no other change of modules is under way. Errors: ErrClosed, or that of ctx.
func (e *Engine) lock(ctx context.Context) error {
	select {
	case e.apply <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.ctx.Done():
		return ErrClosed
	}
	if e.ctx.Err() != nil {
		e.unlock()
		return ErrClosed
	}
	return nil
}

func (e *Engine) unlock() { <-e.apply }

// Close stops every task and waits for them. The node stays open.
func (e *Engine) Close() {
	e.cancel()
	e.apply <- struct{}{}
	defer e.unlock()
	e.mu.RLock()
	modules := make([]*module, 0, len(e.mu.modules))
	for _, m := range e.mu.modules {
		modules = append(modules, m)
	}
	e.mu.RUnlock()
	for _, m := range modules {
		m.stop()
	}
}

func (m *module) stop() {
	for _, t := range m.tasks {
		if t != nil {
			t.cancel()
		}
	}
	for _, t := range m.tasks {
		if t != nil {
			<-t.done
		}
	}
}

// catalog lets the compiler find topics that a module does not declare. What the module itself has
// written is not there for it: it goes when the module no longer says how it is made.
type catalog struct {
	*replication.Catalog
	module string
}

// Topic implements dsl.Catalog.
func (c catalog) Topic(name string) (*plan.Topic, bool) {
	row, ok := c.Catalog.Topic(name)
	if !ok || ownerModule(row.Owner) == c.module {
		return nil, false
	}
	return storedTopic(row), true
}

// compile checks a module text against the catalogue.
func (e *Engine) compile(name, file, text string, params map[string]string) (*plan.Module, error) {
	return dsl.Compile(file, text, dsl.Options{
		Name: name, Catalog: catalog{e.node.Meta().Catalog(), name}, Params: params, Partitions: e.opts.DefaultPartitions,
	})
}

// install makes the running state of one module row: topics, tasks, views. The old state of the module,
// if there is one, has to be uninstalled first. The caller holds apply.
func (e *Engine) install(ctx context.Context, row *replication.ModuleRow) error {
	m := &module{row: *row}
	e.mu.Lock()
	e.mu.modules[row.Name] = m
	e.mu.Unlock()
	fault := func(err error) error {
		e.mu.Lock()
		m.fault = err.Error()
		e.mu.Unlock()
		return err
	}
	p, err := e.compile(row.Name, row.Name+".hr", row.Text, row.Params)
	if err != nil {
		return fault(err)
	}
	e.mu.Lock()
	m.plan, m.tasks = p, make([]*task, len(p.Pipelines)) // what it would be, if it does not run
	e.mu.Unlock()
	if err := e.ensureTopics(ctx, p, row); err != nil {
		return fault(err)
	}
	views := make([]*View, 0, len(p.Views))
	for _, v := range p.Views {
		parts, err := e.partitions(v.Source.Name)
		if err != nil {
			return fault(err)
		}
		w, err := newView(row.Name, v, parts, e.opts)
		if err != nil {
			return fault(err)
		}
		views = append(views, w)
	}
	tasks := make([]*task, len(p.Pipelines))
	if row.State != moduleStopped {
		for i, pl := range p.Pipelines {
			pr := pipelineRow(row, pl.Name)
			if pr == nil || pr.State == moduleStopped {
				continue
			}
			t, err := e.newTask(pl, pr.Task)
			if err != nil {
				return fault(err)
			}
			tasks[i] = t
		}
	}
	e.mu.Lock()
	m.plan, m.tasks = p, tasks
	for _, v := range views {
		e.mu.views[v.Topic().Name] = v
	}
	e.mu.Unlock()
	for _, t := range tasks {
		if t != nil {
			ctx, cancel := context.WithCancel(e.ctx)
			t.cancel = cancel
			go t.run(ctx)
		}
	}
	return nil
}

// uninstall stops what runs of a module and forgets it. The caller holds apply.
func (e *Engine) uninstall(name string) {
	e.mu.Lock()
	m := e.mu.modules[name]
	delete(e.mu.modules, name)
	for k, v := range e.mu.views {
		if v.Module == name {
			delete(e.mu.views, k)
		}
	}
	e.mu.Unlock()
	if m == nil {
		return
	}
	m.stop()
}

func pipelineRow(row *replication.ModuleRow, name string) *replication.PipelineRow {
	for i := range row.Pipelines {
		if row.Pipelines[i].Name == name {
			return &row.Pipelines[i]
		}
	}
	return nil
}

// partitions resolves a topic to its open partitions.
func (e *Engine) partitions(topic string) ([]*log.Partition, error) {
	row, ok := e.node.Meta().Catalog().Topic(topic)
	if !ok {
		return nil, fmt.Errorf("runtime: topic %s does not exist", topic)
	}
	parts := make([]*log.Partition, row.Partitions)
	for i := range parts {
		p, ok := e.node.Store().Partition(log.PartitionID{Topic: row.ID, Index: int32(i)})
		if !ok {
			return nil, fmt.Errorf("runtime: partition %d of topic %s is not open", i, topic)
		}
		parts[i] = p
	}
	return parts, nil
}

func (e *Engine) partitionIDs(topic string) ([]log.PartitionID, error) {
	parts, err := e.partitions(topic)
	if err != nil {
		return nil, err
	}
	ids := make([]log.PartitionID, len(parts))
	for i, p := range parts {
		ids[i] = p.ID()
	}
	return ids, nil
}

// newTask resolves the topics of a pipeline.
func (e *Engine) newTask(pl *plan.Pipeline, id log.TaskID) (*task, error) {
	source, err := e.partitionIDs(pl.Source.Name)
	if err != nil {
		return nil, err
	}
	var tables []log.PartitionID
	for _, t := range pl.Tables() {
		ids, err := e.partitionIDs(t.Name)
		if err != nil {
			return nil, err
		}
		tables = append(tables, ids...)
	}
	topics := map[string][]log.PartitionID{}
	for _, name := range pipelineTopics(pl) {
		if topics[name], err = e.partitionIDs(name); err != nil {
			return nil, err
		}
	}
	t := &task{
		id: id, pl: pl, shard: e.node.Data(), store: e.node.Store(), source: source, tables: tables, opts: e.opts, logger: e.opts.Logger,
		done: make(chan struct{}), resume: make(chan struct{}, 1), markers: &e.markers,
	}
	t.outs = func() sideOutputs {
		made := map[string]*output{}
		get := func(name string) *output {
			if made[name] == nil {
				made[name] = newOutput(name, topics[name], e.maxBatch(topics[name][0]))
			}
			return made[name]
		}
		side := func(s plan.Side) *output {
			if s.Action != plan.SideTo {
				return nil
			}
			return get(s.Topic)
		}
		return sideOutputs{main: get(pl.Output.Name), late: side(pl.Late), invalid: side(pl.Invalid), errors: side(pl.Errors)}
	}
	t.setState(StateStarting, "")
	return t, nil
}

// maxBatch is the largest batch that a partition takes.
func (e *Engine) maxBatch(id log.PartitionID) int {
	if p, ok := e.node.Store().Partition(id); ok {
		if n := int(p.Settings().MaxBatchBytes); n > 0 {
			return min(n, log.MaxBatchBytes)
		}
	}
	return log.MaxBatchBytes
}

// pipelineTopics lists the topics that a pipeline writes: the derived one, then its side topics.
func pipelineTopics(pl *plan.Pipeline) []string {
	names := []string{pl.Output.Name}
	for _, s := range []plan.Side{pl.Late, pl.Invalid, pl.Errors} {
		if s.Action == plan.SideTo && !slices.Contains(names, s.Topic) {
			names = append(names, s.Topic)
		}
	}
	return names
}

// sweep forgets what no module names any more: tasks with their progress and state, the derived topics
// that they wrote, and side topics into which no pipeline writes. It finishes changes of the catalogue
// that a crash has cut short.
func (e *Engine) sweep(ctx context.Context) error {
	cat := e.node.Meta().Catalog()
	live := map[string]bool{}
	for _, row := range cat.Modules() {
		for i := range row.Pipelines {
			live[row.Pipelines[i].Task.String()] = true
		}
	}
	for _, id := range e.node.Store().Tasks() {
		if live[id.String()] {
			continue
		}
		var u log.Unit
		u.TaskDrop(id)
		if res := e.node.Data().Do(ctx, &u); res.Outcome != replication.Yes {
			return fmt.Errorf("runtime: drop task %s: %w", id, resultError(res))
		}
	}
	sides, known := e.sideTopics()
	for name, row := range cat.AllTopics() {
		over := false
		switch _, task, _ := strings.Cut(row.Owner, "#"); {
		case row.Owner == "":
		case row.Owner == sideOwner:
			over = known && !sides[name]
		default:
			over = !live[task]
		}
		if !over {
			continue
		}
		if err := e.node.Meta().DeleteTopic(ctx, name); err != nil && !errors.Is(err, replication.ErrUnknownTopic) {
			return fmt.Errorf("runtime: delete topic %s: %w", name, err)
		}
	}
	return nil
}

// sideTopics are the side topics of all pipelines. known is false if a module does not compile, so that
// its topics are not known.
func (e *Engine) sideTopics() (sides map[string]bool, known bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	sides, known = map[string]bool{}, true
	for _, m := range e.mu.modules {
		if m.plan == nil {
			known = false
			continue
		}
		for _, pl := range m.plan.Pipelines {
			if pipelineRow(&m.row, pl.Name) == nil {
				continue
			}
			for _, t := range pipelineTopics(pl)[1:] {
				sides[t] = true
			}
			for _, t := range pl.Inputs() {
				sides[t] = true // a side topic that somebody reads
			}
		}
		for _, v := range m.plan.Views {
			sides[v.Source.Name] = true
		}
	}
	return sides, known
}

// View finds a running view by its Kafka name.
func (e *Engine) View(name string) (*View, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	v, ok := e.mu.views[name]
	return v, ok
}

// Views lists the running views by name.
func (e *Engine) Views() []*View {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := make([]*View, 0, len(e.mu.views))
	for _, v := range e.mu.views {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *View) int { return strings.Compare(a.Topic().Name, b.Topic().Name) })
	return out
}

// A TopicUse says how the modules use a topic.
type TopicUse struct {
	WrittenBy string   // module or pipeline, "" if outside clients may write
	ReadBy    []string // pipelines and views
}

// Use tells how the modules use a topic, so that fronts can refuse what would break them.
func (e *Engine) Use(topic string) TopicUse {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var u TopicUse
	for _, m := range e.mu.modules {
		if m.plan == nil {
			continue
		}
		for _, pl := range m.plan.Pipelines {
			if pipelineRow(&m.row, pl.Name) == nil {
				continue // deleted, though the text still has it
			}
			if slices.Contains(pipelineTopics(pl), topic) {
				u.WrittenBy = pl.Name
			}
			if slices.Contains(pl.Inputs(), topic) {
				u.ReadBy = append(u.ReadBy, pl.Name)
			}
		}
		for _, v := range m.plan.Views {
			if v.Source.Name == topic {
				u.ReadBy = append(u.ReadBy, m.row.Name+"/"+v.Name)
			}
		}
	}
	slices.Sort(u.ReadBy)
	return u
}

// A ModuleStatus describes a module.
type ModuleStatus struct {
	Name      string           `json:"name"`
	Version   int64            `json:"version"`
	State     string           `json:"state"`
	Reason    string           `json:"reason,omitempty"`
	AppliedAt time.Time        `json:"applied_at"`
	Text      string           `json:"text,omitempty"`
	Pipelines []PipelineStatus `json:"pipelines"`
	Views     []ViewStatus     `json:"views"`
}

// A ViewStatus describes a view.
type ViewStatus struct {
	Name       string `json:"name"` // Kafka name
	Source     string `json:"source"`
	Partitions int    `json:"partitions"`
	Failed     int64  `json:"failed"` // rows left out since the start
	LastError  string `json:"last_error,omitempty"`
}

// A PipelineStatus describes a pipeline after its last step.
type PipelineStatus struct {
	Name    string    `json:"name"` // module/topic
	Module  string    `json:"module"`
	Topic   string    `json:"topic"`
	Source  string    `json:"source"`
	State   TaskState `json:"state"`
	Reason  string    `json:"reason,omitempty"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	// Watermark is RFC 3339, "-inf" before the first row and "+inf" after a declared end.
	Watermark string `json:"watermark"`
	// HeldBy is the source partition with the smallest watermark, -1 if all are at their end.
	HeldBy     int32               `json:"held_by"`
	Lag        int64               `json:"lag"` // source records not yet part of a step
	Partitions []PartitionStatus   `json:"partitions"`
	Tables     []TableStatus       `json:"tables,omitempty"` // those that lookups read
	Counters   Counters            `json:"counters"`
	StateBytes int64               `json:"state_bytes"`
	StateRows  int64               `json:"state_rows"`
	Step       uint64              `json:"step"`
	watermark  operators.EventTime `json:"-"`
}

// A PartitionStatus describes a pipeline's reading of one source partition.
type PartitionStatus struct {
	Partition int32  `json:"partition"`
	Next      int64  `json:"next"` // offset of the next record to read
	End       int64  `json:"end"`  // log end
	Watermark string `json:"watermark"`
}

// A TableStatus describes a pipeline's reading of a table.
type TableStatus struct {
	Table string `json:"table"`
	Lag   int64  `json:"lag"` // records not yet part of a step
}

func timeText(t operators.EventTime) string {
	switch t {
	case operators.MinEventTime:
		return "-inf"
	case operators.MaxEventTime:
		return "+inf"
	}
	return time.Unix(0, t).UTC().Format(time.RFC3339Nano)
}

// Modules lists the modules by name, without their texts.
func (e *Engine) Modules() []ModuleStatus {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := make([]ModuleStatus, 0, len(e.mu.modules))
	for _, m := range e.mu.modules {
		s := e.moduleStatus(m)
		s.Text = ""
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b ModuleStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Module describes one module with its text.
func (e *Engine) Module(name string) (ModuleStatus, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	m, ok := e.mu.modules[name]
	if !ok {
		return ModuleStatus{}, fmt.Errorf("%w: %s", ErrUnknownModule, name)
	}
	return e.moduleStatus(m), nil
}

func (e *Engine) moduleStatus(m *module) ModuleStatus {
	s := ModuleStatus{
		Name: m.row.Name, Version: m.row.Version, State: m.row.State, Reason: m.fault, Text: m.row.Text,
		AppliedAt: time.UnixMilli(m.row.AppliedAt).UTC(), Pipelines: []PipelineStatus{}, Views: []ViewStatus{},
	}
	if m.fault != "" {
		s.State = string(StateFailed)
	}
	if m.plan == nil {
		return s
	}
	for i, pl := range m.plan.Pipelines {
		s.Pipelines = append(s.Pipelines, e.pipelineStatus(m, pl, m.tasks[i]))
	}
	for _, v := range m.plan.Views {
		vs := ViewStatus{Name: v.Topic.Name, Source: v.Source.Name}
		if w := e.mu.views[v.Topic.Name]; w != nil {
			vs.Partitions = w.Partitions()
			vs.Failed, vs.LastError = w.Failures()
		}
		s.Views = append(s.Views, vs)
	}
	return s
}

func (e *Engine) pipelineStatus(m *module, pl *plan.Pipeline, t *task) PipelineStatus {
	s := PipelineStatus{
		Name: pl.Name, Module: m.row.Name, Topic: pl.Output.Name, Source: pl.Source.Name, Version: pl.Version,
		State: StateStopped, HeldBy: -1, Watermark: timeText(operators.MinEventTime), Partitions: []PartitionStatus{},
	}
	st, source := e.stored(m, pl)
	if t != nil {
		st, source = t.status.Load(), t.source
	}
	if st == nil {
		return s
	}
	s.State, s.Reason, s.Since = st.state, st.reason, st.since.UTC()
	s.Watermark, s.watermark = timeText(st.w), st.w
	s.Counters, s.StateBytes, s.StateRows, s.Step = st.counters, st.stateBytes, st.stateRows, st.step
	if s.Counters.Stages == nil {
		s.Counters.Stages = []StageCounters{}
	}
	least := operators.MaxEventTime
	for i, w := range st.watermarks {
		ps := PartitionStatus{Partition: int32(i), Next: st.next[i], Watermark: timeText(w)}
		if p, ok := e.node.Store().Partition(source[i]); ok {
			ps.Partition, ps.End = source[i].Index, p.LogEnd()
			s.Lag += max(0, ps.End-ps.Next)
		}
		if w < least {
			least, s.HeldBy = w, source[i].Index
		}
		s.Partitions = append(s.Partitions, ps)
	}
	for _, cut := range st.tables {
		e.tableStatus(&s, cut)
	}
	return s
}

// tableStatus adds a partition of a table to the status of a pipeline.
func (e *Engine) tableStatus(s *PipelineStatus, cut log.Cut) {
	p, ok := e.node.Store().Partition(cut.Partition)
	row, known := e.node.Meta().Catalog().TopicByID(cut.Partition.Topic)
	if !ok || !known {
		return
	}
	if n := len(s.Tables); n == 0 || s.Tables[n-1].Table != row.Name {
		s.Tables = append(s.Tables, TableStatus{Table: row.Name})
	}
	s.Tables[len(s.Tables)-1].Lag += max(0, p.LogEnd()-cut.Offset)
}

// stored is the picture of a pipeline that does not run, from the progress of its last step; nil if it
// never made one.
func (e *Engine) stored(m *module, pl *plan.Pipeline) (*taskStatus, []log.PartitionID) {
	pr := pipelineRow(&m.row, pl.Name)
	if pr == nil {
		return nil, nil
	}
	ts, ok := e.node.Store().Task(pr.Task)
	if !ok || ts.Step == 0 {
		return nil, nil
	}
	p := &ts.Progress
	st := &taskStatus{state: StateStopped, step: ts.Step, w: p.W, watermarks: p.Watermarks}
	st.counters.Stages = make([]StageCounters, len(pl.Stages))
	for i := range pl.Stages {
		st.counters.Stages[i].Stage = pl.Stages[i].Word
	}
	inputs := make([]*inputState, len(p.To))
	var source []log.PartitionID
	for i, cut := range p.To {
		inputs[i] = &inputState{}
		if cut.Partition.Topic != p.To[0].Partition.Topic {
			st.tables = append(st.tables, cut)
			continue
		}
		source = append(source, cut.Partition)
		st.next = append(st.next, cut.Offset)
	}
	if _, err := parseExtra(p.Extra, &st.counters, inputs); err != nil || len(p.Watermarks) != len(p.To) {
		return nil, nil
	}
	st.watermarks = p.Watermarks[:len(source)]
	return st, source
}

// Pipelines lists all pipelines by name.
func (e *Engine) Pipelines() []PipelineStatus {
	out := []PipelineStatus{}
	for _, m := range e.Modules() {
		out = append(out, m.Pipelines...)
	}
	slices.SortFunc(out, func(a, b PipelineStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Pipeline describes one pipeline, module/topic.
func (e *Engine) Pipeline(name string) (PipelineStatus, error) {
	for _, p := range e.Pipelines() {
		if p.Name == name {
			return p, nil
		}
	}
	return PipelineStatus{}, fmt.Errorf("%w: %s", ErrUnknownPipeline, name)
}
