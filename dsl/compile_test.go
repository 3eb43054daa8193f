package dsl_test

import (
	"errors"
	"math/rand"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/nexmark"
)

const payments = `topic payments {
  card: string, kind: string, amount: decimal(12,2), ts: time,
} with key (card), format json, time ts lag 5s idle 30s future 1m, late to payments_late

topic expensive = from payments
  |> where kind == "pay" and amount > 100
  |> set fee = amount * 0.02

topic per_minute = from payments
  |> agg n = count(), total = sum(amount)
     by card
     window tumble(1m)

view big_eur = from payments |> where amount > 1000 |> select card, eur = amount * 0.908, ts
`

func must(t testing.TB, text string) *plan.Module {
	t.Helper()
	m, err := dsl.Compile("m.hr", text, dsl.Options{})
	if err != nil {
		var es *dsl.Errors
		if errors.As(err, &es) {
			t.Fatal(dsl.RenderAll(es.List))
		}
		t.Fatal(err)
	}
	return m
}

func versions(m *plan.Module) string {
	var out []string
	for _, p := range m.Pipelines {
		out = append(out, p.Name+" "+p.Version)
	}
	return strings.Join(out, "\n")
}

func TestVersionIgnoresHowATextIsWritten(t *testing.T) {
	want := versions(must(t, payments))
	formatted, list := syntax.Format(payments)
	if len(list) > 0 {
		t.Fatal(dsl.RenderAll(list))
	}
	for name, text := range map[string]string{
		"formatted": formatted,
		"comments":  "// hello\n" + strings.ReplaceAll(payments, "|> ", "/* x */ |> "),
		"spaces":    strings.ReplaceAll(payments, " ", "  "),
		"brackets":  strings.Replace(payments, "amount > 100", "(amount > (100))", 1),
		"words":     strings.Replace(payments, `"pay" and`, `'pay' &&`, 1),
		"const":     "const rate = 0.02\n" + strings.Replace(payments, "amount * 0.02", "amount * rate", 1),
		"retention": strings.Replace(payments, "format json,", "format json, retain 7d,", 1),
		"stream":    strings.Replace(payments, "topic per_minute = from payments", "stream p = from payments\ntopic per_minute = from p", 1),
		"order":     payments[strings.Index(payments, "topic expensive"):strings.Index(payments, "topic per")] + payments[:strings.Index(payments, "topic expensive")] + payments[strings.Index(payments, "topic per"):],
	} {
		if got := versions(must(t, text)); got != want {
			t.Errorf("%s: versions changed\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestVersionChangesWithWhatDecidesTheRows(t *testing.T) {
	before := must(t, payments)
	version := func(m *plan.Module, name string) string {
		for _, p := range m.Pipelines {
			if p.Name == name {
				return p.Version
			}
		}
		return "none"
	}
	for name, c := range map[string]struct{ from, to, changed, same string }{
		"a literal":           {"amount * 0.02", "amount * 0.03", "m/expensive", "m/per_minute"},
		"the scale of one":    {"amount * 0.02", "amount * 0.020", "m/expensive", "m/per_minute"},
		"a window":            {"tumble(1m)", "tumble(2m)", "m/per_minute", "m/expensive"},
		"the lag":             {"lag 5s", "lag 6s", "m/per_minute", ""},
		"where late rows go":  {"late to payments_late", "late drop", "m/per_minute", "m/expensive"},
		"a column's type":     {"amount: decimal(12,2)", "amount: decimal(12,3)", "m/per_minute", ""},
		"a column's spelling": {"amount: decimal(12,2)", `amount: decimal(12,2) as "a"`, "m/per_minute", ""},
		"a result's name":     {"total = sum", "sum_all = sum", "m/per_minute", "m/expensive"},
		"an unread column":    {"kind: string,", "kind: string, other: int64,", "m/expensive", "m/per_minute"},
	} {
		after := must(t, strings.Replace(payments, c.from, c.to, 1))
		if version(before, c.changed) == version(after, c.changed) {
			t.Errorf("%s does not change %s", name, c.changed)
		}
		if c.same != "" && version(before, c.same) != version(after, c.same) {
			t.Errorf("%s changes %s", name, c.same)
		}
	}
}

func TestExplainOfTheFirstExample(t *testing.T) {
	got := dsl.ExplainWith(must(t, payments), func(e *plan.Expr, _ []plan.Column) string { return "kernel" })
	for _, want := range []string{
		"pipeline m/expensive", "reads    card, amount, ts; skips kind", "shuffles 0", "late     to payments_late",
		"until the window ends (1m + lag 5s)", "view big_eur", "kernel",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestRenderPutsTheCaretUnderThePlace(t *testing.T) {
	_, err := dsl.Compile("dir/pay.hr", "topic t { größe: int64, ä: string }\ntopic d = from t\n\t|> where größe > 1 and ä == 5\n", dsl.Options{})
	var es *dsl.Errors
	if !errors.As(err, &es) || len(es.List) != 1 {
		t.Fatalf("got %v", err)
	}
	want := "E0110 cannot compare string and int64\n" +
		"  pay.hr:3      |> where größe > 1 and ä == 5\n" +
		"                                       ^^^^^^ `ä` is string, `5` is int64\n" +
		"  fix: `\"5\"`\n"
	if got := dsl.Render(es.List[0]); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := es.Error(); got != "dir/pay.hr:3:25: E0110 cannot compare string and int64" {
		t.Errorf("got %s", got)
	}
}

func TestParamsAreValuesFromOutside(t *testing.T) {
	const text = "param low: decimal(12,2) = 100\nparam span: duration = 1m\nparam who: string\ntopic t { who_: string, a: decimal(12,2), ts: time } with key (who_), time ts\n" +
		"topic d = from t |> where a > low and who_ == who |> agg n = count() by who_ window tumble(span)"
	compiled := func(params map[string]string) (*plan.Module, error) {
		return dsl.Compile("m.hr", text, dsl.Options{Params: params})
	}
	if _, err := compiled(nil); err == nil || !strings.Contains(err.Error(), "E0138") {
		t.Errorf("a missing value gives %v", err)
	}
	if _, err := compiled(map[string]string{"who": "ann", "low": "cheap"}); err == nil || !strings.Contains(err.Error(), "E0138") {
		t.Errorf("a wrong value gives %v", err)
	}
	a, err := compiled(map[string]string{"who": "ann"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := compiled(map[string]string{"who": "ann", "span": "2m"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Pipelines[0].Version == b.Pipelines[0].Version {
		t.Error("a param is not part of the version")
	}
	if _, err := compiled(map[string]string{"who": "ann", "nobody": "1"}); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("a value for no param gives %v", err)
	}
}

// seeds are all modules of the golden files.
func seeds(t testing.TB) []string {
	out := []string{payments}
	for _, path := range goldenFiles(t) {
		_, cases := readCases(t, path)
		for _, c := range cases {
			out = append(out, c.text)
		}
	}
	return out
}

// judge compiles and holds what must be true of every answer.
func judge(t testing.TB, text string) {
	m, err := dsl.Compile("m.hr", text, dsl.Options{Catalog: catalog{}})
	var es *dsl.Errors
	switch {
	case err == nil:
		if m == nil {
			t.Fatal("no plan and no error")
		}
		tree, _ := syntax.Parse("m.hr", text)
		pipelines, views := 0, 0
		for _, st := range tree.Statements {
			switch d := st.(type) {
			case *syntax.TopicDecl:
				if d.Pipeline != nil {
					pipelines++
				}
			case *syntax.ViewDecl:
				views++
			}
		}
		if len(m.Pipelines) != pipelines || len(m.Views) != views {
			t.Fatalf("%d of %d pipelines and %d of %d views, and no error\n%s", len(m.Pipelines), pipelines, len(m.Views), views, text)
		}
		for _, p := range m.Pipelines {
			if p.Source == nil || p.Output == nil || len(p.Needed) != len(p.Source.Schema.Columns) || len(p.Version) != 32 {
				t.Fatalf("incomplete pipeline %+v\n%s", p, text)
			}
			cols := len(p.Source.Schema.Columns)
			for i := range p.Stages {
				for _, k := range p.Stages[i].OutKey {
					if k < 0 || k >= len(p.Stages[i].Out.Columns) {
						t.Fatalf("key outside of stage %d of %s\n%s", i, p.Name, text)
					}
				}
				for _, x := range expressions(&p.Stages[i]) {
					walk(t, x, cols+slots(&p.Stages[i]), text)
				}
				cols = len(p.Stages[i].Out.Columns)
			}
		}
		_ = dsl.Explain(m)
	case errors.As(err, &es):
		if len(es.List) == 0 {
			t.Fatal("no errors in the error")
		}
		for _, d := range es.List {
			_ = dsl.Render(d)
			if d.Line < 1 || d.Column < 1 || d.Length < 1 {
				t.Fatalf("no place: %+v\n%s", d, text)
			}
			if edited, ok := dsl.Apply(text, d); ok {
				_, _ = dsl.Compile("m.hr", edited, dsl.Options{})
			} else if d.Edit != nil {
				t.Fatalf("edit outside of the text: %+v\n%s", d, text)
			}
		}
	default:
		t.Fatalf("an error of another kind: %v", err)
	}
}

func slots(st *plan.Stage) int {
	if st.Agg == nil {
		return 0
	}
	n := len(st.Agg.By) + len(st.Agg.Slots)
	if st.Agg.Window.Kind != 0 {
		n += 2
	}
	return n
}

func expressions(st *plan.Stage) []*plan.Expr {
	var out []*plan.Expr
	if st.Filter != nil {
		out = append(out, st.Filter)
	}
	for _, p := range st.Project {
		out = append(out, p.Expr)
	}
	if st.Agg != nil {
		for _, b := range st.Agg.By {
			out = append(out, b.Expr)
		}
		for _, s := range st.Agg.Slots {
			if s.Arg != nil {
				out = append(out, s.Arg)
			}
			if s.Filter != nil {
				out = append(out, s.Filter)
			}
		}
		for _, r := range st.Agg.Results {
			out = append(out, r.Expr)
		}
	}
	return out
}

func walk(t testing.TB, e *plan.Expr, cols int, text string) {
	if e == nil || e.Op == 0 || e.Type.Kind == 0 {
		t.Fatalf("an expression without type: %+v\n%s", e, text)
	}
	if e.Op == plan.ExprColumn && (e.Column < 0 || e.Column >= cols) || e.Op == plan.ExprVar || e.Op == plan.ExprLet {
		t.Fatalf("an expression that cannot be run: %+v\n%s", e, text)
	}
	for _, a := range e.Args {
		walk(t, a, cols, text)
	}
}

// mutate changes a module as people and accidents do: it cuts, repeats, swaps and replaces words.
func mutate(r *rand.Rand, text string, words []string) string {
	b := text
	for n := 1 + r.Intn(3); n > 0; n-- {
		if len(b) == 0 {
			break
		}
		i := r.Intn(len(b))
		j := min(len(b), i+1+r.Intn(12))
		switch r.Intn(5) {
		case 0:
			b = b[:i] + b[j:]
		case 1:
			b = b[:i] + b[i:j] + b[i:]
		case 2:
			b = b[:i] + " " + words[r.Intn(len(words))] + " " + b[i:]
		case 3: // replace a word
			fields := strings.Fields(b)
			if len(fields) > 0 {
				b = strings.Replace(b, fields[r.Intn(len(fields))], words[r.Intn(len(words))], 1)
			}
		case 4:
			b = b[:i] + string("(){}[],.|>=?:#\"'`$é\n"[r.Intn(20)]) + b[i:]
		}
	}
	return b
}

func TestCompileNeverPanicsOnMutatedModules(t *testing.T) {
	all := seeds(t)
	words := strings.Fields(strings.Join(all, " "))
	r := rand.New(rand.NewSource(1))
	n := 6000
	if testing.Short() {
		n = 600
	}
	for i := 0; i < n; i++ {
		text := mutate(r, all[r.Intn(len(all))], words)
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("panic %v for\n%s", p, text)
				}
			}()
			judge(t, text)
		}()
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) { judge(t, text) })
}

func TestNexmarkQueriesOfThisVersionCompile(t *testing.T) {
	text, err := nexmark.Module()
	if err != nil {
		t.Fatal(err)
	}
	m := must(t, text)
	if n := len(nexmark.Queries()); len(m.Pipelines) != n {
		t.Errorf("%d pipelines of %d queries", len(m.Pipelines), n)
	}
	for _, w := range m.Warnings {
		t.Errorf("%s", dsl.Render(w))
	}
}
