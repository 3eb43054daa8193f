package check_test

import (
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/check"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// diagnose returns what a module is told, syntax errors first.
func diagnose(t testing.TB, text string, o check.Options) (*plan.Module, []plan.Diagnostic) {
	t.Helper()
	tree, found := syntax.Parse("m.hr", text)
	o.Syntax = found
	m, more := check.Check(tree, o)
	return m, append(found, more...)
}

func has(list []plan.Diagnostic, code string) bool {
	for _, d := range list {
		if d.Code == code {
			return true
		}
	}
	return false
}

func TestEveryCodeExplainsItselfAndItsExampleGivesIt(t *testing.T) {
	seen := map[string]bool{}
	last := map[byte]string{}
	for _, c := range check.Codes() {
		if seen[c.Code] {
			t.Errorf("%s is listed twice", c.Code)
		}
		seen[c.Code] = true
		if c.Code[1:] < last[c.Code[0]] {
			t.Errorf("%s is out of order", c.Code)
		}
		last[c.Code[0]] = c.Code[1:]
		if c.Title == "" || len(c.Explanation) < 10 || strings.HasSuffix(c.Title, ".") {
			t.Errorf("%s: title %q, explanation %q", c.Code, c.Title, c.Explanation)
		}
		if c.Example == "" {
			continue
		}
		_, list := diagnose(t, c.Example, check.Options{Name: "m"})
		for _, d := range list {
			if d.Reason == "" {
				t.Errorf("the example of %s: %s has no reason: %s", c.Code, d.Code, d.Message)
			}
		}
		if !has(list, c.Code) {
			var got []string
			for _, d := range list {
				got = append(got, d.Code+" "+d.Message)
			}
			t.Errorf("the example of %s gives %q\n%s", c.Code, got, c.Example)
		}
	}
}
