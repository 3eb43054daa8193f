package dsl_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/check"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
)

// A golden file is a prelude and cases. `====` begins a case, `----` ends its module; what follows is
// what the compiler says: diagnostics, or the plan. A case with `!alone` in its first line goes without
// the prelude.
type goldenCase struct {
	title string
	input string
	text  string // what is compiled
}

func readCases(t testing.TB, path string) (prelude string, cases []goldenCase) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(b), "\n====")
	prelude = parts[0]
	for _, p := range parts[1:] {
		title, rest, _ := strings.Cut(p, "\n")
		input, _, _ := strings.Cut(rest, "\n----")
		c := goldenCase{title: strings.TrimSpace(title), input: input, text: prelude + "\n" + input}
		if strings.Contains(title, "!alone") {
			c.text = input
		}
		cases = append(cases, c)
	}
	return prelude, cases
}

// catalog is a server with two topics: one with a schema, one without.
type catalog struct{}

func (catalog) Topic(name string) (*plan.Topic, bool) {
	switch name {
	case "stored":
		return &plan.Topic{
			Name: "stored", Format: plan.FormatJSON, Key: []int{0}, Partitions: 4,
			Schema: plan.Schema{Columns: []plan.Column{
				{Name: "id", Input: "id", Type: scalar.TypeString}, {Name: "v", Input: "v", Type: scalar.TypeFloat64},
			}},
		}, true
	case "raw-1":
		return &plan.Topic{Name: "raw-1", Partitions: 1}, true
	}
	return nil, false
}

func compile(text string) (*plan.Module, []plan.Diagnostic) {
	o := dsl.Options{Catalog: catalog{}}
	if strings.Contains(text, "param given") {
		o.Params = map[string]string{"given": "5"}
	}
	m, err := dsl.Compile("m.hr", text, o)
	var es *dsl.Errors
	if errors.As(err, &es) {
		return nil, es.List
	}
	return m, m.Warnings
}

// dump writes a plan so that all of it can be read.
func dump(m *plan.Module) string {
	var b strings.Builder
	side := func(name string, s plan.Side) {
		if s.Action != plan.SideDefault {
			fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(name+" "+[...]string{"", "to", "drop", "fail"}[s.Action]+" "+s.Topic))
		}
	}
	body := func(src *plan.Topic, needed []bool, stages []plan.Stage, out *plan.Topic) {
		var need []string
		for i, c := range src.Schema.Columns {
			if needed[i] {
				need = append(need, c.Name)
			}
		}
		fmt.Fprintf(&b, "  from %s reads %s\n", src.Name, strings.Join(need, " "))
		cols := src.Schema.Columns
		for i := range stages {
			st := &stages[i]
			shuffle := ""
			if st.Shuffle {
				shuffle = "shuffle "
			}
			b.WriteString("  " + shuffle + strings.ReplaceAll(strings.TrimRight(check.StageText(st, cols), "\n"), "\n", "\n  ") + "\n")
			cols = st.Out.Columns
		}
		var outs, key []string
		for _, c := range out.Schema.Columns {
			outs = append(outs, c.Name+": "+check.TypeString(c.Type))
		}
		for _, k := range out.Key {
			key = append(key, out.Schema.Columns[k].Name)
		}
		fmt.Fprintf(&b, "  into %s { %s } key (%s)\n", out.Name, strings.Join(outs, ", "), strings.Join(key, ", "))
	}
	for _, p := range m.Pipelines {
		fmt.Fprintf(&b, "pipeline %s\n", p.Name)
		body(p.Source, p.Needed, p.Stages, p.Output)
		side("late", p.Late)
		side("invalid", p.Invalid)
		side("errors", p.Errors)
	}
	for _, v := range m.Views {
		fmt.Fprintf(&b, "view %s\n", v.Name)
		body(v.Source, v.Needed, v.Stages, v.Topic)
	}
	return b.String()
}

func say(text string) string {
	m, list := compile(text)
	var b strings.Builder
	b.WriteString(dsl.RenderAll(list))
	if m != nil {
		if len(list) > 0 {
			b.WriteString("\n")
		}
		b.WriteString(dump(m))
	}
	return strings.TrimRight(b.String(), "\n")
}

func goldenFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	return files
}

func TestCompilerSaysWhatTheGoldenFilesSay(t *testing.T) {
	diagnostics := 0
	for _, path := range goldenFiles(t) {
		prelude, cases := readCases(t, path)
		var b strings.Builder
		b.WriteString(prelude)
		for _, c := range cases {
			said := say(c.text)
			if _, list := compile(c.text); len(list) > 0 {
				diagnostics++
			}
			title := c.title
			if title != "" {
				title = " " + title
			}
			b.WriteString("\n====" + title + "\n" + c.input + "\n----\n" + said + "\n")
		}
		t.Run(filepath.Base(path), func(t *testing.T) { golden.Check(t, path, b.String()) })
	}
	if diagnostics < 80 {
		t.Errorf("only %d cases with diagnostics", diagnostics)
	}
}

func key(d plan.Diagnostic) string { return d.Code + " " + d.Message }

func count(list []plan.Diagnostic, k string) int {
	n := 0
	for _, d := range list {
		if key(d) == k {
			n++
		}
	}
	return n
}

func TestEveryEditRemovesItsDiagnostic(t *testing.T) {
	edits := 0
	for _, path := range goldenFiles(t) {
		_, cases := readCases(t, path)
		for _, c := range cases {
			_, list := compile(c.text)
			for _, d := range list {
				edited, ok := dsl.Apply(c.text, d)
				if !ok {
					continue
				}
				edits++
				m, after := compile(edited)
				if count(after, key(d)) >= count(list, key(d)) {
					t.Errorf("%s: %s: the edit of %q leaves it\n%s\n%s", path, c.title, key(d), edited, dsl.RenderAll(after))
				}
				if len(list) == 1 && m == nil {
					t.Errorf("%s: %s: what the edit of %q makes does not compile\n%s\n%s", path, c.title, key(d), edited, dsl.RenderAll(after))
				}
			}
		}
	}
	if edits < 40 {
		t.Errorf("only %d edits were tried", edits)
	}
}

func TestDiagnosticsAreComplete(t *testing.T) {
	known := map[string]bool{}
	for _, c := range dsl.Codes() {
		known[c.Code] = true
	}
	for _, path := range goldenFiles(t) {
		_, cases := readCases(t, path)
		for _, c := range cases {
			_, list := compile(c.text)
			for i, d := range list {
				if !known[d.Code] {
					t.Errorf("%s: %s has no entry in the table of codes", path, d.Code)
				}
				if d.Fix == "" || d.Message == "" || d.Reason == "" || d.Reason == d.Message || d.Line < 1 || d.Column < 1 || d.Length < 1 || d.File != "m.hr" {
					t.Errorf("%s: %s: incomplete: %+v", path, c.title, d)
				}
				if strings.HasSuffix(d.Message, ".") || strings.Contains(d.Message, "%!") || strings.Contains(d.Fix, "%!") {
					t.Errorf("%s: %s: badly worded: %+v", path, c.title, d)
				}
				if i > 0 && (list[i-1].Line > d.Line || list[i-1].Line == d.Line && list[i-1].Column > d.Column) {
					t.Errorf("%s: %s: not sorted by place", path, c.title)
				}
			}
		}
	}
}
