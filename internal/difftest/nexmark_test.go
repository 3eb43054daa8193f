package difftest

import (
	"errors"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/nexmark"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/vector"
)

func TestNexmarkExpressionsHaveKernels(t *testing.T) {
	text, err := nexmark.Module()
	if err != nil {
		t.Fatal(err)
	}
	m, err := dsl.Compile("nexmark.hr", text, dsl.Options{})
	if err != nil {
		var list *dsl.Errors
		if errors.As(err, &list) {
			for _, d := range list.List {
				t.Log(dsl.Render(d))
			}
		}
		t.Fatal(err)
	}
	checked := 0
	check := func(where string, input []scalar.Type, e *plan.Expr) {
		if e == nil {
			return
		}
		p, err := vector.NewProgram(nil, []*vector.Expr{toVector(e)}, input)
		if err != nil {
			t.Errorf("%s: %s: %v", where, e.Text, err)
			return
		}
		checked++
		if k := p.Kernel(0); k != "kernel" {
			t.Errorf("%s: %s: %s", where, e.Text, k)
		}
	}
	for _, topic := range m.Topics {
		check(topic.Name, types(topic.Schema), topic.Time.Expr)
	}
	for _, p := range m.Pipelines {
		input := types(p.Source.Schema)
		for _, s := range p.Stages {
			check(p.Name, input, s.Filter)
			for _, n := range s.Project {
				check(p.Name, input, n.Expr)
			}
			if a := s.Agg; a != nil {
				for _, n := range a.By {
					check(p.Name, input, n.Expr)
				}
				var row []scalar.Type
				for _, n := range a.By {
					row = append(row, n.Expr.Type)
				}
				row = append(row, scalar.TypeTime, scalar.TypeTime)
				for _, c := range a.Slots {
					check(p.Name, input, c.Arg)
					check(p.Name, input, c.By)
					check(p.Name, input, c.Filter)
					row = append(row, c.Type)
				}
				for _, n := range a.Results {
					check(p.Name, row, n.Expr)
				}
			}
			input = types(s.Out)
		}
	}
	t.Logf("%d expressions", checked)
	if checked < 60 {
		t.Errorf("only %d expressions were checked", checked)
	}
}

func types(s plan.Schema) []scalar.Type {
	out := make([]scalar.Type, len(s.Columns))
	for i, c := range s.Columns {
		out[i] = c.Type
	}
	return out
}

func toVector(e *plan.Expr) *vector.Expr {
	v := &vector.Expr{Type: e.Type, Column: e.Column, Value: e.Value, Func: e.Func, Field: e.Field, Depth: e.Depth, Text: e.Text}
	for op, p := range ops {
		if p == e.Op {
			v.Op = op
		}
	}
	for m, p := range metas {
		if p == e.Meta {
			v.Meta = m
		}
	}
	for _, a := range e.Args {
		v.Args = append(v.Args, toVector(a))
	}
	return v
}
