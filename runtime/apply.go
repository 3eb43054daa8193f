package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
)

// States of module and pipeline rows in the catalogue.
const (
	moduleRunning = "running"
	moduleStopped = "stopped"
)

// ApplyOptions of Apply.
type ApplyOptions struct {
	DryRun     bool
	AllowBreak bool              // carry out changes that Apply would refuse
	Params     map[string]string // values of params
	File       string            // for diagnostics; default NAME.hr
}

// A Change says what applying a module does to one pipeline.
type Change string

// The changes of a plan difference.
const (
	ChangeSame    Change = "same"    // nothing: progress and state stay
	ChangeExtend  Change = "extend"  // new: starts at the beginning of its source
	ChangeRebuild Change = "rebuild" // computed again from the beginning of its source
	ChangeBreak   Change = "break"   // readers or writers would meet something else
)

// A PlanChange is one line of a plan difference.
type PlanChange struct {
	Pipeline string `json:"pipeline"` // module/topic
	Change   Change `json:"change"`
	Why      string `json:"why"`
}

// An ApplyResult says what an Apply did, or would do.
type ApplyResult struct {
	Name     string            `json:"name"`
	Version  int64             `json:"version"`
	Plan     []PlanChange      `json:"plan"`
	Warnings []plan.Diagnostic `json:"warnings"`
}

// Apply brings a module to the given text: it creates topics, keeps pipelines that are the same, starts
// new ones, and computes changed ones again. Applying the same text twice changes nothing.
//
// Errors: *dsl.Errors for a text that does not compile; ErrBreaks, with the plan in the result, unless
// o.AllowBreak; ErrNameTaken when another module writes one of the topics.
func (e *Engine) Apply(ctx context.Context, name, text string, o ApplyOptions) (*ApplyResult, error) {
	if o.File == "" {
		o.File = name + ".hr"
	}
	if err := replication.CheckName(name); err != nil {
		return nil, fmt.Errorf("runtime: module name: %w", err)
	}
	if err := e.lock(ctx); err != nil {
		return nil, err
	}
	defer e.unlock()
	p, err := e.compile(name, o.File, text, o.Params)
	if err != nil {
		return nil, err
	}
	cat := e.node.Meta().Catalog()
	old, exists := cat.Module(name)
	row := &replication.ModuleRow{Name: name, Text: text, State: moduleRunning, Params: o.Params, AppliedAt: e.opts.Now().UnixMilli()}
	res := &ApplyResult{Name: name, Plan: []PlanChange{}, Warnings: p.Warnings}
	if res.Warnings == nil {
		res.Warnings = []plan.Diagnostic{}
	}
	var was replication.ModuleRow
	if exists {
		was, res.Version = *old, old.Version
	}
	anew := map[string]bool{} // derived topics that are emptied
	for _, pl := range inOrder(p.Pipelines) {
		pr, change := e.nextPipeline(&was, pl, slices.ContainsFunc(pl.Inputs(), func(t string) bool { return anew[t] }))
		row.Pipelines = append(row.Pipelines, pr)
		res.Plan = append(res.Plan, change)
		if change.Change == ChangeRebuild {
			anew[pl.Output.Name] = true
		}
	}
	for _, pl := range p.Pipelines {
		if by := e.readersElsewhere(name, pl.Output.Name); anew[pl.Output.Name] && len(by) > 0 {
			res.Plan = append(res.Plan, PlanChange{pl.Name, ChangeBreak, "its derived topic is emptied under " + strings.Join(by, ", ") + ", which would have to be applied again"})
		}
	}
	for i := range was.Pipelines {
		gone := was.Pipelines[i].Name
		if pipelineRow(row, gone) == nil {
			why := "no longer in the module: it ends, and its derived topic is deleted"
			if by := e.readersOf(name, gone); len(by) > 0 {
				why += " under " + strings.Join(by, ", ")
			}
			res.Plan = append(res.Plan, PlanChange{gone, ChangeBreak, why})
		}
	}
	breaks, err := e.topicBreaks(cat, name, p)
	if err != nil {
		return nil, err
	}
	res.Plan = append(res.Plan, breaks...)
	if o.DryRun {
		return res, nil
	}
	if slices.ContainsFunc(res.Plan, func(c PlanChange) bool { return c.Change == ChangeBreak }) && !o.AllowBreak {
		return res, fmt.Errorf("%w: module %s", ErrBreaks, name)
	}
	if len(breaks) > 0 { // a declared topic of another shape is never replaced under its writers
		return res, fmt.Errorf("%w: %s", ErrBreaks, breaks[0].Why)
	}
	unchanged := exists && was.Text == text && sameParams(was.Params, o.Params) && was.State == row.State && slices.Equal(was.Pipelines, row.Pipelines)
	if unchanged {
		return res, e.reinstallIfFaulty(ctx, old)
	}
	version, err := e.node.Meta().PutModule(ctx, *row, was.Version)
	if err != nil {
		return nil, fmt.Errorf("runtime: store module %s: %w", name, err)
	}
	res.Version = version
	return res, e.reinstall(ctx, name)
}

// inOrder sorts pipelines so that each comes after the one whose derived topic it reads.
func inOrder(pls []*plan.Pipeline) []*plan.Pipeline {
	by := make(map[string]*plan.Pipeline, len(pls))
	for _, pl := range pls {
		by[pl.Output.Name] = pl
	}
	out := make([]*plan.Pipeline, 0, len(pls))
	done := make(map[*plan.Pipeline]bool, len(pls))
	var visit func(pl *plan.Pipeline)
	visit = func(pl *plan.Pipeline) {
		if pl == nil || done[pl] {
			return
		}
		done[pl] = true
		for _, t := range pl.Inputs() {
			visit(by[t])
		}
		out = append(out, pl)
	}
	for _, pl := range pls {
		visit(pl)
	}
	return out
}

// readersOf lists the pipelines and views of other modules that read what a pipeline writes.
func (e *Engine) readersOf(module, pipeline string) (by []string) {
	for t, row := range e.node.Meta().Catalog().AllTopics() {
		if row.Owner != "" && ownerName(row.Owner) == pipeline {
			by = append(by, e.readersElsewhere(module, t)...)
		}
	}
	return by
}

// readersElsewhere lists the pipelines and views of other modules that read a topic.
func (e *Engine) readersElsewhere(module, topic string) []string {
	return slices.DeleteFunc(e.Use(topic).ReadBy, func(by string) bool {
		m, _, _ := strings.Cut(by, "/")
		return m == module
	})
}

func sameParams(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func (e *Engine) reinstallIfFaulty(ctx context.Context, row *replication.ModuleRow) error {
	e.mu.RLock()
	m := e.mu.modules[row.Name]
	faulty := m == nil || m.fault != ""
	e.mu.RUnlock()
	if !faulty {
		return nil
	}
	return e.reinstall(ctx, row.Name)
}

// reinstall stops the running state of a module and makes the one that the catalogue now says. What
// nothing names any more is deleted.
func (e *Engine) reinstall(ctx context.Context, name string) error {
	e.uninstall(name)
	if row, ok := e.node.Meta().Catalog().Module(name); ok {
		if err := e.install(ctx, row); err != nil {
			return err
		}
	}
	return e.sweep(ctx)
}

// nextPipeline decides what becomes of a pipeline: the row to store and the line of the difference.
// emptied says that its source is computed again.
func (e *Engine) nextPipeline(was *replication.ModuleRow, pl *plan.Pipeline, emptied bool) (replication.PipelineRow, PlanChange) {
	fresh := replication.PipelineRow{Name: pl.Name, Version: pl.Version, Task: log.TaskID(uuid.New()), Start: "earliest", State: moduleRunning}
	rebuild := func(why string) (replication.PipelineRow, PlanChange) {
		return fresh, PlanChange{pl.Name, ChangeRebuild, why + ": `" + pl.Output.Name + "` is emptied and computed again from the beginning of `" + pl.Source.Name + "`"}
	}
	old := pipelineRow(was, pl.Name)
	switch {
	case old == nil:
		return fresh, PlanChange{pl.Name, ChangeExtend, "new: starts at the beginning of `" + pl.Source.Name + "`"}
	case old.Version != pl.Version:
		return rebuild("its text decides other output now")
	case emptied:
		return rebuild("what it reads is computed again")
	case !e.followsInputs(old.Task, pl):
		return rebuild("what it reads was made anew")
	}
	same := *old
	why := "nothing that decides its output has changed"
	if old.State == moduleStopped || was.State == moduleStopped {
		why += "; it goes on where it stopped"
	}
	same.State = moduleRunning
	return same, PlanChange{pl.Name, ChangeSame, why}
}

// followsInputs says whether the progress of a task is in the topics that now have the names of what it reads.
func (e *Engine) followsInputs(id log.TaskID, pl *plan.Pipeline) bool {
	st, ok := e.node.Store().Task(id)
	if !ok || st.Step == 0 {
		return true
	}
	var ids []log.TopicID
	for _, name := range pl.Inputs() {
		row, exists := e.node.Meta().Catalog().Topic(name)
		if !exists {
			return true
		}
		ids = append(ids, row.ID)
	}
	for _, cut := range st.Progress.To {
		if !slices.Contains(ids, cut.Partition.Topic) {
			return false
		}
	}
	return true
}

// topicBreaks compares the declared topics with those that exist.
func (e *Engine) topicBreaks(cat *replication.Catalog, name string, p *plan.Module) ([]PlanChange, error) {
	var out []PlanChange
	for _, t := range p.Topics {
		if v, ok := e.View(t.Name); ok && v.Module != name {
			return nil, fmt.Errorf("%w: %s is a view of module %s", ErrNameTaken, t.Name, v.Module)
		}
		row, ok := cat.Topic(t.Name)
		if ok && row.Settings.Compact && t.Format == plan.FormatArrow {
			out = append(out, PlanChange{name + "/" + t.Ident, ChangeBreak, fmt.Sprintf("topic `%s` exists and is compacted: `format arrow` does not go with cleanup.policy=compact, which looks for the latest record of each key", t.Name)})
			continue
		}
		if !ok || len(row.Schema) == 0 {
			if ok && t.Partitions > 0 && int32(t.Partitions) != row.Partitions {
				out = append(out, PlanChange{name + "/" + t.Ident, ChangeBreak, fmt.Sprintf("topic `%s` exists: its number of partitions is %d, the module says %d", t.Name, row.Partitions, t.Partitions)})
			}
			continue
		}
		if row.Owner != "" {
			return nil, fmt.Errorf("%w: topic %s is written by %s", ErrNameTaken, t.Name, ownerName(row.Owner))
		}
		if why := differs(storedTopic(row), t, row.Partitions); why != "" {
			out = append(out, PlanChange{name + "/" + t.Ident, ChangeBreak, fmt.Sprintf("topic `%s` exists with another %s", t.Name, why)})
		}
	}
	for _, pl := range p.Pipelines {
		for i, topic := range pipelineTopics(pl) {
			row, ok := cat.Topic(topic)
			free := !ok || ownerModule(row.Owner) == name
			if i > 0 { // side topics may be shared, with clients too
				free = free || row.Owner == "" || row.Owner == sideOwner
			}
			if !free {
				by := "a client"
				if row.Owner != "" {
					by = ownerName(row.Owner)
				}
				return nil, fmt.Errorf("%w: topic %s exists and is written by %s", ErrNameTaken, topic, by)
			}
			if v, ok := e.View(topic); ok && v.Module != name {
				return nil, fmt.Errorf("%w: %s is a view of module %s", ErrNameTaken, topic, v.Module)
			}
		}
	}
	for _, v := range p.Views {
		if row, ok := cat.Topic(v.Topic.Name); ok && ownerModule(row.Owner) != name {
			return nil, fmt.Errorf("%w: topic %s exists, so no view can have its name", ErrNameTaken, v.Topic.Name)
		}
		if w, ok := e.View(v.Topic.Name); ok && w.Module != name {
			return nil, fmt.Errorf("%w: %s is a view of module %s", ErrNameTaken, v.Topic.Name, w.Module)
		}
	}
	return out, nil
}

// differs names the first property in which a declared topic is not the stored one.
func differs(stored, declared *plan.Topic, partitions int32) string {
	a, b := shapeOf(stored), shapeOf(declared)
	switch {
	case stored.Table != declared.Table:
		return "kind: one of them is a table"
	case a.Schema != b.Schema:
		return "schema"
	case a.Key != b.Key:
		return "key"
	case a.Format != b.Format:
		return "format"
	case a.Time != b.Time:
		return "time"
	case declared.Partitions > 0 && int32(declared.Partitions) != partitions:
		return fmt.Sprintf("number of partitions (%d)", partitions)
	}
	return ""
}

type shape struct{ Schema, Key, Format, Time string }

// shapeOf renders what writers and readers of a topic rely on.
func shapeOf(t *plan.Topic) shape {
	var s shape
	for _, c := range t.Schema.Columns {
		s.Schema += columnText(c) + ";"
	}
	s.Key, s.Format = fmt.Sprint(t.Key), fmt.Sprint(t.Format)
	s.Time = fmt.Sprint(t.Time.Append, t.Time.Lag, t.Time.Delay, t.Time.Future)
	if t.Time.Expr != nil {
		s.Time += t.Time.Expr.Text
	}
	return s
}

func columnText(c plan.Column) string {
	s := fmt.Sprintf("%q %q %s %q %q", c.Name, c.Input, c.Type, c.TimeLayout, c.TimeZone)
	for _, m := range c.Members {
		s += "{" + columnText(m) + "}"
	}
	return s
}

// storedTopic is the plan's form of a topic of the catalogue.
func storedTopic(row *replication.Topic) *plan.Topic {
	return TopicOf(row.Name, row.Schema, row.Partitions, row.Owner != "" && row.Owner != sideOwner)
}

// sideOwner owns side topics that several pipelines may write, of several modules too.
const sideOwner = "#side"

// ownerOf says who writes a topic of a pipeline: "module/topic#task" for its derived topic and the side
// topics named after it, which are made anew with the task; sideOwner for others.
func ownerOf(pl *plan.Pipeline, id log.TaskID, topic string) string {
	if topic == pl.Output.Name || strings.HasPrefix(topic, pl.Output.Name+"_") {
		return pl.Name + "#" + id.String()
	}
	return sideOwner
}

func ownerName(owner string) string {
	name, _, _ := strings.Cut(owner, "#")
	if name == "" {
		return "pipelines, as a side topic"
	}
	return name
}

func ownerModule(owner string) string {
	name, _, _ := strings.Cut(owner, "#")
	name, _, _ = strings.Cut(name, "/")
	return name
}

// ensureTopics creates what a module needs and does not have: declared topics, derived topics, side
// topics. A derived topic that another task has written is emptied by making it anew. It is idempotent,
// so a crash inside is healed by the next start.
func (e *Engine) ensureTopics(ctx context.Context, p *plan.Module, row *replication.ModuleRow) error {
	meta := e.node.Meta()
	for _, t := range p.Topics {
		schema, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("runtime: schema of %s: %w", t.Name, err)
		}
		have, ok := meta.Catalog().Topic(t.Name)
		switch {
		case !ok:
			n := t.Partitions
			if n == 0 {
				n = e.opts.DefaultPartitions
			}
			if err := e.createTopic(ctx, topicSpec(t, int32(n), schema)); err != nil {
				return err
			}
		case !bytes.Equal(have.Schema, schema):
			err := meta.AlterTopic(ctx, t.Name, func(have *replication.Topic) (replication.TopicPatch, error) {
				return declare(t, schema, have), nil
			})
			if err != nil {
				return fmt.Errorf("runtime: set the schema of %s: %w", t.Name, err)
			}
		}
	}
	for _, pl := range inOrder(p.Pipelines) {
		pr := pipelineRow(row, pl.Name)
		if pr == nil {
			continue
		}
		source, ok := meta.Catalog().Topic(pl.Source.Name)
		if !ok {
			return fmt.Errorf("runtime: pipeline %s: its source %s does not exist", pl.Name, pl.Source.Name)
		}
		for i, name := range pipelineTopics(pl) {
			t := rawTopic()
			t.Name, t.Ident = name, name
			n := source.Partitions
			if i == 0 {
				t = pl.Output
				if t.Partitions > 0 {
					n = int32(t.Partitions)
				}
			}
			if err := e.ensureDerived(ctx, row.Name, t, n, ownerOf(pl, pr.Task, name), i > 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) ensureDerived(ctx context.Context, module string, t *plan.Topic, partitions int32, owner string, side bool) error {
	meta := e.node.Meta()
	have, ok := meta.Catalog().Topic(t.Name)
	switch {
	case !ok:
	case have.Owner == owner, side && (have.Owner == "" || have.Owner == sideOwner):
		return nil
	case ownerModule(have.Owner) != module:
		return fmt.Errorf("%w: topic %s", ErrNameTaken, t.Name)
	default:
		if err := meta.DeleteTopic(ctx, t.Name); err != nil {
			return fmt.Errorf("runtime: empty topic %s: %w", t.Name, err)
		}
	}
	schema, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("runtime: schema of %s: %w", t.Name, err)
	}
	spec := topicSpec(t, partitions, schema)
	// What pipelines write may be longer than what clients may: a record on its way to a side topic gains headers.
	spec.Owner, spec.Settings.MaxBatchBytes = owner, log.MaxBatchBytes
	spec.Configs["max.message.bytes"] = strconv.Itoa(log.MaxBatchBytes)
	return e.createTopic(ctx, spec)
}

func (e *Engine) createTopic(ctx context.Context, s replication.TopicSpec) error {
	if err := e.node.Meta().CreateTopics(ctx, []replication.TopicSpec{s})[0]; err != nil {
		return fmt.Errorf("runtime: create topic %s: %w", s.Name, err)
	}
	return nil
}

// topicSpec is a topic to create as it is declared. Configs has by their names what Settings has by their meaning, so that
// users see and change the same settings.
func topicSpec(t *plan.Topic, partitions int32, schema []byte) replication.TopicSpec {
	set := replication.DefaultSettings()
	s := replication.TopicSpec{Name: t.Name, Partitions: partitions, Settings: &set, Configs: map[string]string{}, Schema: schema}
	if t.Table {
		s.Settings.Compact, s.Configs[cleanupPolicy] = true, "compact"
		if t.Retain > 0 {
			s.Configs[cleanupPolicy] = "compact,delete"
		}
	}
	retain(t, s.Settings, s.Configs)
	return s
}

const (
	retentionMs   = "retention.ms"
	cleanupPolicy = "cleanup.policy"
)

// retain puts the declared retention into settings.
func retain(t *plan.Topic, set *log.PartitionSettings, configs map[string]string) {
	delete(configs, retentionMs)
	set.RetentionMs = -1
	if t.Retain <= 0 {
		return
	}
	ms := t.Retain.Milliseconds()
	configs[retentionMs] = strconv.FormatInt(ms, 10)
	if configs[cleanupPolicy] != "compact" { // which deletes nothing by time
		set.RetentionMs = ms
	}
}

// declare is the change that a new declaration makes to a topic. What it does not speak of stays as it was set.
func declare(t *plan.Topic, schema []byte, have *replication.Topic) replication.TopicPatch {
	raw := json.RawMessage(schema)
	patch := replication.TopicPatch{Schema: &raw}
	if t.Declared && len(have.Schema) > 0 || t.Retain > 0 {
		set, configs := have.Settings, maps.Clone(have.Configs)
		if configs == nil {
			configs = map[string]string{}
		}
		retain(t, &set, configs)
		patch.Settings, patch.Configs = &set, configs
	}
	return patch
}

// Stop ends the pipelines of a module, or one pipeline "module/topic". Progress and state stay, and the
// derived topics can be read.
func (e *Engine) Stop(ctx context.Context, name string) error {
	return e.setState(ctx, name, moduleStopped)
}

// Resume lets stopped or paused pipelines go on exactly where they were.
func (e *Engine) Resume(ctx context.Context, name string) error {
	e.mu.RLock()
	for _, m := range e.mu.modules {
		for _, t := range m.tasks {
			if t == nil || (t.pl.Name != name && m.row.Name != name) {
				continue
			}
			select {
			case t.resume <- struct{}{}:
			default:
			}
		}
	}
	e.mu.RUnlock()
	return e.setState(ctx, name, moduleRunning)
}

func (e *Engine) setState(ctx context.Context, name, state string) error {
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	mod, topic, one := strings.Cut(name, "/")
	old, ok := e.node.Meta().Catalog().Module(mod)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownModule, mod)
	}
	row := *old
	row.Pipelines = slices.Clone(old.Pipelines)
	if one {
		pr := pipelineRow(&row, mod+"/"+topic)
		if pr == nil {
			return fmt.Errorf("%w: %s", ErrUnknownPipeline, name)
		}
		pr.State = state
		if state == moduleRunning {
			row.State = state
		}
	} else {
		row.State = state
		for i := range row.Pipelines {
			row.Pipelines[i].State = state
		}
	}
	if row.State == old.State && slices.Equal(row.Pipelines, old.Pipelines) {
		return nil
	}
	if _, err := e.node.Meta().PutModule(ctx, row, old.Version); err != nil {
		return fmt.Errorf("runtime: store module %s: %w", mod, err)
	}
	return e.reinstall(ctx, mod)
}

// Delete ends a module and forgets it, with the topics that its pipelines wrote. Declared topics stay.
// "module/topic" ends one pipeline: applying the module again would start it anew.
func (e *Engine) Delete(ctx context.Context, name string) error {
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	mod, _, one := strings.Cut(name, "/")
	old, ok := e.node.Meta().Catalog().Module(mod)
	if !ok {
		return fmt.Errorf("%w: %s", ErrUnknownModule, mod)
	}
	if one && pipelineRow(old, name) == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPipeline, name)
	}
	for t, row := range e.node.Meta().Catalog().AllTopics() {
		if ownerModule(row.Owner) != mod || one && ownerName(row.Owner) != name {
			continue
		}
		for _, by := range e.Use(t).ReadBy {
			if m, _, _ := strings.Cut(by, "/"); m != mod || one {
				return fmt.Errorf("%w: %s reads %s", ErrInUse, by, t)
			}
		}
	}
	if !one {
		if err := e.node.Meta().DeleteModule(ctx, mod, old.Version); err != nil {
			return fmt.Errorf("runtime: delete module %s: %w", mod, err)
		}
		return e.reinstall(ctx, mod)
	}
	row := *old
	row.Pipelines = slices.DeleteFunc(slices.Clone(old.Pipelines), func(p replication.PipelineRow) bool { return p.Name == name })
	if _, err := e.node.Meta().PutModule(ctx, row, old.Version); err != nil {
		return fmt.Errorf("runtime: store module %s: %w", mod, err)
	}
	return e.reinstall(ctx, mod)
}
