package broker

import (
	"context"

	"github.com/headrace/headrace/dsl/plan"
)

// Pipelines is what the fronts need of the engine that runs modules. The bodies are plain data that
// encodes to the JSON of the API. Errors are *Error or *CompileError.
type Pipelines interface {
	Views

	Apply(ctx context.Context, name, text string, o ApplyOptions) (result any, err error)
	Modules() []Item
	Module(name string) (any, error)
	// Stop, Resume and Delete take a module or one pipeline, "module/topic".
	Stop(ctx context.Context, name string) error
	Resume(ctx context.Context, name string) error
	Delete(ctx context.Context, name string) error
	Pipelines() []Item
	Pipeline(name string) (any, error)
	// Readers lists the pipelines and views that read a topic.
	Readers(topic string) []string
	// Stats are the numbers of every pipeline, for metrics.
	Stats() []PipelineStats
	// NotReady says why pipelines are not restored yet; empty is ready.
	NotReady() []string
}

// ApplyOptions of Pipelines.Apply.
type ApplyOptions struct {
	DryRun, AllowBreak bool
	Params             map[string]string
	File               string // name of the text in diagnostics
}

// An Item is one element of a list, in the order of the names.
type Item struct {
	Name string
	Body any
}

// PipelineStats are the numbers of one pipeline.
type PipelineStats struct {
	Name                              string
	Running                           bool
	In, Out, Late, Invalid, Failed    int64
	Filtered                          int64
	LagRecords, StateBytes, StateRows int64
}

// A CompileError is a module text that is not a module.
type CompileError struct{ Errors []plan.Diagnostic }

func (e *CompileError) Error() string {
	if len(e.Errors) == 0 {
		return "the module does not compile"
	}
	return e.Errors[0].Code + " " + e.Errors[0].Message
}
