package dsl

import (
	"fmt"
	"strings"
	"time"

	"github.com/headrace/headrace/dsl/check"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A Kernel says how an expression is evaluated over the given input columns: "kernel", or "fallback:
// why". It comes from what runs plans.
type Kernel func(e *plan.Expr, input []plan.Column) string

// Explain describes what a module does: for each pipeline and view its source, stages, keys, shuffles,
// the columns that are read, how long state lives, and where the other rows go.
func Explain(m *plan.Module) string { return ExplainWith(m, nil) }

// ExplainWith is Explain with a line for each expression about how it is evaluated; kernel may be nil.
func ExplainWith(m *plan.Module, kernel Kernel) string {
	e := explainer{kernel: kernel}
	for i, p := range m.Pipelines {
		if i > 0 {
			e.b.WriteString("\n")
		}
		e.pipeline(p)
	}
	for _, v := range m.Views {
		if e.b.Len() > 0 {
			e.b.WriteString("\n")
		}
		e.view(v)
	}
	return e.b.String()
}

type explainer struct {
	b      strings.Builder
	kernel Kernel
}

func (e *explainer) line(format string, args ...any) { fmt.Fprintf(&e.b, "  "+format+"\n", args...) }

func (e *explainer) pipeline(p *plan.Pipeline) {
	fmt.Fprintf(&e.b, "pipeline %s, version %s\n", p.Name, p.Version)
	e.source(p.Source, p.Needed)
	e.stages(p.Stages, p.Source.Schema.Columns)
	e.line("into     %s %s, %s, %s", kindText(p.Output), p.Output.Name, formatText(p.Output.Format), keyText(p.Output.Schema.Columns, p.Output.Key))
	e.line("columns  %s", columnsText(p.Output.Schema.Columns))
	e.line("shuffles %d", shuffles(p.Stages))
	e.line("state    %s", stateText(p))
	e.line("invalid  %s", sideText(p.Invalid))
	e.line("errors   %s", sideText(p.Errors))
	if p.Late.Action != plan.SideDefault {
		e.line("late     %s", sideText(p.Late))
	}
}

func (e *explainer) view(v *plan.View) {
	fmt.Fprintf(&e.b, "view %s (evaluated while delivering, stores nothing)\n", v.Name)
	e.source(v.Source, v.Needed)
	e.stages(v.Stages, v.Source.Schema.Columns)
	e.line("as       %s %s, %s, %s", kindText(v.Topic), v.Topic.Name, formatText(v.Topic.Format), keyText(v.Topic.Schema.Columns, v.Topic.Key))
	e.line("columns  %s", columnsText(v.Topic.Schema.Columns))
}

func (e *explainer) source(t *plan.Topic, needed []bool) {
	e.line("from     %s %s, %s, %s", kindText(t), t.Name, formatText(t.Format), keyText(t.Schema.Columns, t.Key))
	var read, skip []string
	for i, c := range t.Schema.Columns {
		if i < len(needed) && needed[i] {
			read = append(read, c.Name)
		} else {
			skip = append(skip, c.Name)
		}
	}
	s := listText(read)
	if len(skip) > 0 {
		s += "; skips " + listText(skip)
	}
	e.line("reads    %s", s)
	e.line("time     %s", timeText(t))
}

func (e *explainer) stages(stages []plan.Stage, cols []plan.Column) {
	for i := range stages {
		st := &stages[i]
		switch st.Kind {
		case plan.StageFilter:
			e.line("%-8s %s", st.Word, st.Filter.Text)
			e.how(st.Filter, cols)
		case plan.StageProject:
			e.projection(st, cols)
		case plan.StageKey:
			e.line("%-8s %s%s", st.Word, listText(names(st.Out.Columns, st.OutKey)), shuffleText(st.Shuffle))
		case plan.StageAggregate:
			e.aggregate(st, cols)
		case plan.StageChanges:
			e.line("%-8s keeps the row of each key, to take it back when it is replaced", "changes")
		case plan.StageExplode:
			e.explode(st, cols)
		case plan.StageTop:
			e.top(st, cols)
		case plan.StageDedup:
			e.dedup(st, cols)
		case plan.StageOver:
			e.over(st, cols)
		case plan.StageLookup:
			e.lookup(st, cols)
		}
		cols = st.Out.Columns
	}
}

func (e *explainer) projection(st *plan.Stage, cols []plan.Column) {
	var kept []string
	for _, p := range st.Project {
		if p.Expr.Op == plan.ExprColumn && cols[p.Expr.Column].Name == p.Name {
			kept = append(kept, p.Name)
			continue
		}
		e.line("%-8s %s = %s: %s", st.Word, p.Name, p.Expr.Text, p.Expr.Type)
		e.how(p.Expr, cols)
	}
	if len(kept) > 0 && st.Word != "set" {
		e.line("%-8s keeps %s", st.Word, listText(kept))
	}
}

func (e *explainer) aggregate(st *plan.Stage, cols []plan.Column) {
	a := st.Agg
	on := ""
	if a.OnAppend {
		on = " on append time"
	}
	window := ", window " + a.Window.Text()
	if a.Window.Kind == 0 {
		window = ""
	}
	e.line("%-8s by %s%s%s, %s%s", st.Word, listText(exprNames(a.By)), window, on, emissionText(a), shuffleText(st.Shuffle))
	for _, b := range a.By {
		if b.Expr.Op != plan.ExprColumn {
			e.line("         %s = %s: %s", b.Name, b.Expr.Text, b.Expr.Type)
			e.how(b.Expr, cols)
		}
	}
	for _, s := range a.Slots {
		line := "         accumulates " + s.Text()
		if s.Filter != nil {
			line += " where " + s.Filter.Text
		}
		e.line("%s: %s", line, s.Type)
		for _, x := range []*plan.Expr{s.Arg, s.By, s.Filter} {
			if x != nil {
				e.how(x, cols)
			}
		}
	}
	for _, r := range a.Results {
		e.line("         %s = %s: %s", r.Name, r.Expr.Text, r.Expr.Type)
	}
}

func (e *explainer) how(x *plan.Expr, cols []plan.Column) {
	if e.kernel != nil && x.Op != plan.ExprColumn {
		e.line("           %s", e.kernel(x, cols))
	}
}

func exprNames(list []plan.NamedExpr) []string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].Name
	}
	return out
}

func names(cols []plan.Column, idx []int) []string {
	out := make([]string, len(idx))
	for i, k := range idx {
		out[i] = cols[k].Name
	}
	return out
}

func kindText(t *plan.Topic) string {
	if t.Table {
		return "table"
	}
	return "topic"
}

func listText(list []string) string {
	if len(list) == 0 {
		return "nothing"
	}
	return strings.Join(list, ", ")
}

func keyText(cols []plan.Column, key []int) string {
	if len(key) == 0 {
		return "no key"
	}
	return "key " + strings.Join(names(cols, key), ", ")
}

func columnsText(cols []plan.Column) string {
	out := make([]string, len(cols))
	for i, c := range cols {
		out[i] = c.Name + ": " + check.TypeString(c.Type)
	}
	return strings.Join(out, ", ")
}

func formatText(f plan.Format) string {
	switch f {
	case plan.FormatJSON:
		return "json"
	case plan.FormatCSV:
		return "csv"
	case plan.FormatArrow:
		return "arrow"
	case plan.FormatLines:
		return "lines"
	case plan.FormatRegex:
		return "regex"
	}
	return "raw"
}

func shuffleText(is bool) string {
	if is {
		return "  (shuffle: rows may change partition)"
	}
	return ""
}

func shuffles(stages []plan.Stage) int {
	n := 0
	for i := range stages {
		if stages[i].Shuffle {
			n++
		}
	}
	return n
}

func durationText(d time.Duration) string { return string(scalar.AppendDuration(nil, int64(d))) }

func timeText(t *plan.Topic) string {
	s := "record timestamp"
	switch {
	case t.Derived:
		return "as its pipeline wrote it"
	case t.Time.Append:
		s = "append time"
	case t.Time.Expr != nil:
		s = t.Time.Expr.Text
	}
	s += ", lag " + durationText(t.Time.Lag)
	if t.Time.Idle > 0 {
		s += ", idle " + durationText(t.Time.Idle)
	} else {
		s += ", never idle"
	}
	if t.Time.Future > 0 {
		s += ", at most " + durationText(t.Time.Future) + " ahead"
	}
	return s
}

func sideText(s plan.Side) string {
	switch s.Action {
	case plan.SideTo:
		return "to " + s.Topic
	case plan.SideDrop:
		return "dropped and counted"
	case plan.SideFail:
		return "stop the pipeline"
	}
	return "none"
}

// stateText says what bounds the state and how much a key takes, roughly: the row of the table, the
// encoded key and the accumulators.
func stateText(p *plan.Pipeline) string {
	var out []string
	for i := range p.Stages {
		st := &p.Stages[i]
		if st.Kind == plan.StageChanges {
			out = append(out, keptText(st.Out))
		}
		if st.Agg != nil && st.Agg.Window.Kind == 0 {
			out = append(out, endlessText(st.Agg))
		} else if st.Agg != nil {
			a := st.Agg
			windows := windowsOf(a.Window)
			bytes, open, bounded := int64(48), "", ""
			for _, b := range a.By {
				bytes += typeBytes(b.Expr.Type)
			}
			for _, s := range a.Slots {
				bytes += 8 + typeBytes(s.Type)
				switch s.Func {
				case "count_distinct", "median", "quantile":
					open = " plus the distinct values of a window"
				case "list", "set", "top_k", "join", "approx_distinct", "approx_quantile":
					bounded = " plus what " + s.Func + " keeps"
				}
			}
			until := untilText(a.Window)
			if !a.OnAppend {
				lag := " + lag " + durationText(p.Source.Time.Lag)
				if a.Accept > 0 {
					lag += " + accept " + durationText(a.Accept)
				}
				until = untilText(a.Window, lag)
			}
			text := fmt.Sprintf("%s, about %d B x keys", until, bytes*windows)
			if windows > 1 {
				text += fmt.Sprintf(" (%d windows each)", windows)
			}
			if len(a.By) == 0 {
				text = strings.Replace(text, " x keys", "", 1)
			}
			out = append(out, text+open+bounded)
		}
	}
	out = append(out, rowStates(p)...)
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, "; ")
}

func typeBytes(t scalar.Type) int64 {
	switch t.Kind {
	case scalar.KindBool, scalar.KindInt8, scalar.KindUint8:
		return 1
	case scalar.KindInt16, scalar.KindUint16:
		return 2
	case scalar.KindInt32, scalar.KindUint32, scalar.KindFloat32, scalar.KindDate:
		return 4
	case scalar.KindDecimal:
		return 16
	case scalar.KindString, scalar.KindBytes:
		return 24
	case scalar.KindList, scalar.KindMap, scalar.KindStruct:
		return 64
	}
	return 8
}
