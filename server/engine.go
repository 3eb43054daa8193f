package server

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/server/broker"
)

// EngineOptions are the options of the pipelines.
type EngineOptions = runtime.Options

// engine is runtime's engine as the fronts see it.
type engine struct {
	*runtime.Engine
	node *replication.Node
}

// startEngine runs the modules of the node's catalogue.
func startEngine(node *replication.Node, o *Options) (*engine, error) {
	eo := o.Engine
	if eo.Logger == nil {
		eo.Logger = o.Logger
	}
	if eo.Now == nil {
		eo.Now = o.Now
	}
	if eo.DefaultPartitions == 0 {
		eo.DefaultPartitions = int(o.DefaultPartitions)
	}
	e := &engine{Engine: runtime.New(node, eo), node: node}
	if err := e.Engine.Start(context.Background()); err != nil {
		e.Engine.Close()
		return nil, fmt.Errorf("server: start the pipelines: %w", err)
	}
	return e, nil
}

// engineError turns the engine's errors into a user's terms.
func engineError(err error) error {
	var compile *dsl.Errors
	if errors.As(err, &compile) {
		return &broker.CompileError{Errors: compile.List}
	}
	for _, row := range []struct {
		is   error
		code broker.Code
	}{
		{runtime.ErrUnknownModule, broker.UnknownModule},
		{runtime.ErrUnknownPipeline, broker.UnknownPipeline},
		{runtime.ErrBreaks, broker.Conflict},
		{runtime.ErrInUse, broker.Conflict},
		{runtime.ErrNameTaken, broker.Conflict},
		{replication.ErrVersionConflict, broker.Conflict},
		{replication.ErrTopicExists, broker.TopicExists},
		{replication.ErrInvalidName, broker.BadRequest},
		{replication.ErrLimit, broker.TooManyPartitions},
		{replication.ErrNotLeader, broker.NotReady},
		{replication.ErrNoRoom, broker.NoRoom}, // is an ErrBusy too
		{replication.ErrBusy, broker.Busy},
		{replication.ErrClosed, broker.NotReady},
		{replication.ErrFailed, broker.StorageFailed},
		{replication.ErrUnknown, broker.OutcomeUnknown},
		{context.DeadlineExceeded, broker.Timeout},
		{context.Canceled, broker.NotReady},
	} {
		if errors.Is(err, row.is) {
			e := &broker.Error{Code: row.code, Message: userText(err), Err: err}
			if errors.Is(err, runtime.ErrNameTaken) {
				e.Why, e.Fix = "Topics of all modules share one space of names, and one pipeline alone writes each.", "Give the topic another name with `as`, or delete the module that writes it."
			}
			return e
		}
	}
	return broker.AsError(err)
}

// userText leaves out of an error which package met it.
func userText(err error) string {
	text := err.Error()
	for _, prefix := range []string{"runtime: ", "replication: "} {
		text = strings.ReplaceAll(text, prefix, "")
	}
	return text
}

// view is runtime's view as the fronts see it.
type view struct{ *runtime.View }

func (v view) Name() string      { return v.View.Topic().Name }
func (v view) Source() string    { return v.View.Source().Name }
func (v view) Partitions() int32 { return int32(v.View.Partitions()) }

func (v view) SourcePartition(i int32) *log.Partition { return v.View.SourcePartition(i) }

func (v view) Fetch(ctx context.Context, partition int32, from int64, maxBytes int) (broker.ViewFetch, error) {
	f, err := v.View.Fetch(ctx, partition, from, maxBytes)
	return broker.ViewFetch{Batches: f.Batches, LogStart: f.LogStart, LogEnd: f.LogEnd, Scanned: f.Source}, err
}

// View implements broker.Views.
func (e *engine) View(name string) (broker.SourcedView, bool) {
	v, ok := e.Engine.View(name)
	if !ok {
		return nil, false
	}
	return view{v}, true
}

// Views implements broker.Views.
func (e *engine) Views() []broker.SourcedView {
	vs := e.Engine.Views()
	out := make([]broker.SourcedView, len(vs))
	for i, v := range vs {
		out[i] = view{v}
	}
	return out
}

// Apply implements broker.Pipelines.
func (e *engine) Apply(ctx context.Context, name, text string, o broker.ApplyOptions) (any, error) {
	res, err := e.Engine.Apply(ctx, name, text, runtime.ApplyOptions{DryRun: o.DryRun, AllowBreak: o.AllowBreak, Params: o.Params, File: o.File})
	if err != nil {
		err = engineError(err)
		var be *broker.Error
		if errors.Is(err, runtime.ErrBreaks) && errors.As(err, &be) && res != nil {
			for _, c := range res.Plan {
				if c.Change == runtime.ChangeBreak {
					be.Why = c.Pipeline + ": " + c.Why
					break
				}
			}
			be.Plan = res.Plan
			be.Fix = "Look at the plan with dry_run, then allow the break, or use another module name."
		}
		return nil, err
	}
	return res, nil
}

// Modules implements broker.Pipelines.
func (e *engine) Modules() []broker.Item {
	ms := e.Engine.Modules()
	out := make([]broker.Item, len(ms))
	for i := range ms {
		out[i] = broker.Item{Name: ms[i].Name, Body: &ms[i]}
	}
	return out
}

// Module implements broker.Pipelines.
func (e *engine) Module(name string) (any, error) {
	m, err := e.Engine.Module(name)
	if err != nil {
		return nil, engineError(err)
	}
	return m, nil
}

// Stop implements broker.Pipelines.
func (e *engine) Stop(ctx context.Context, name string) error {
	return wrapEngine(e.Engine.Stop(ctx, name))
}

// Resume implements broker.Pipelines.
func (e *engine) Resume(ctx context.Context, name string) error {
	return wrapEngine(e.Engine.Resume(ctx, name))
}

// Delete implements broker.Pipelines.
func (e *engine) Delete(ctx context.Context, name string) error {
	return wrapEngine(e.Engine.Delete(ctx, name))
}

func wrapEngine(err error) error {
	if err == nil {
		return nil
	}
	return engineError(err)
}

// Pipelines implements broker.Pipelines.
func (e *engine) Pipelines() []broker.Item {
	ps := e.Engine.Pipelines()
	out := make([]broker.Item, len(ps))
	for i := range ps {
		out[i] = broker.Item{Name: ps[i].Name, Body: &ps[i]}
	}
	return out
}

// Pipeline implements broker.Pipelines.
func (e *engine) Pipeline(name string) (any, error) {
	p, err := e.Engine.Pipeline(name)
	if err != nil {
		return nil, engineError(err)
	}
	return p, nil
}

// Readers implements broker.Pipelines.
func (e *engine) Readers(topic string) []string { return e.Engine.Use(topic).ReadBy }

// Stats implements broker.Pipelines.
func (e *engine) Stats() []broker.PipelineStats {
	ps := e.Engine.Pipelines()
	out := make([]broker.PipelineStats, len(ps))
	for i := range ps {
		p := &ps[i]
		out[i] = broker.PipelineStats{
			Name: p.Name, Running: p.State == runtime.StateRunning, In: p.Counters.In, Out: p.Counters.Out, Late: p.Counters.Late,
			Invalid: p.Counters.Invalid, Failed: p.Counters.Failed, LagRecords: p.Lag, StateBytes: p.StateBytes, StateRows: p.StateRows,
		}
		for _, st := range p.Counters.Stages {
			out[i].Filtered += st.Filtered
		}
	}
	return out
}

// NotReady implements broker.Pipelines: a pipeline that is being restored is not ready; one that was
// paused or has failed is a matter of its own status.
func (e *engine) NotReady() []string {
	var out []string
	for _, p := range e.Engine.Pipelines() {
		if p.State == runtime.StateStarting {
			out = append(out, fmt.Sprintf("pipeline %s is being restored", p.Name))
		}
	}
	return out
}
