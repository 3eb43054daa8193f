package syntax_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/golden"
)

// render shows diagnostics as text with a caret.
func render(diags []plan.Diagnostic) string {
	var b strings.Builder
	for _, d := range diags {
		fmt.Fprintf(&b, "%s %s\n", d.Code, d.Message)
		fmt.Fprintf(&b, "  %d:%d  %s\n", d.Line, d.Column, d.LineText)
		pad := fmt.Sprintf("  %d:%d  ", d.Line, d.Column)
		fmt.Fprintf(&b, "%s%s%s", strings.Repeat(" ", len(pad)), strings.Repeat(" ", d.Column-1), strings.Repeat("^", d.Length))
		if d.Reason != "" {
			fmt.Fprintf(&b, "  %s", d.Reason)
		}
		b.WriteString("\n")
		if d.Fix != "" {
			fmt.Fprintf(&b, "  fix: %s\n", d.Fix)
		}
		if d.Edit != nil {
			fmt.Fprintf(&b, "  edit: [%d,%d) %q\n", d.Edit.Start, d.Edit.End, d.Edit.Text)
		}
	}
	return b.String()
}

func blocks(t testing.TB) []string {
	files, err := filepath.Glob("testdata/blocks/*.hr")
	if err != nil || len(files) == 0 {
		t.Fatal("no blocks", err)
	}
	return files
}

func TestEveryFormOfTheLanguageParses(t *testing.T) {
	for _, file := range blocks(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m, diags := syntax.Parse(file, string(text))
			if len(diags) > 0 {
				t.Errorf("syntax errors:\n%s", render(diags))
			}
			golden.Check(t, strings.TrimSuffix(file, ".hr")+".tree", syntax.Dump(m))
		})
	}
}

// TestSyntaxErrors runs the cases of testdata/errors: a comment, a module, and in the golden file what is
// wrong with it. An edit that an error offers must remove it.
func TestSyntaxErrors(t *testing.T) {
	files, _ := filepath.Glob("testdata/errors/*.txt")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, c := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
				title, module, _ := strings.Cut(c, "\n")
				_, diags := syntax.Parse("x.hr", module)
				if len(diags) == 0 {
					t.Errorf("%s: no error", title)
				}
				fmt.Fprintf(&b, "%s\n%s", c, "\n----\n"+render(diags)+"\n")
				for _, d := range diags {
					checkEdit(t, title, module, d)
				}
			}
			golden.Check(t, strings.TrimSuffix(file, ".txt")+".golden", b.String())
		})
	}
}

func checkEdit(t *testing.T, title, module string, d plan.Diagnostic) {
	if d.Edit == nil {
		return
	}
	fixed := module[:d.Edit.Start] + d.Edit.Text + module[d.Edit.End:]
	_, before := syntax.Parse("x.hr", module)
	_, after := syntax.Parse("x.hr", fixed)
	if len(after) >= len(before) {
		t.Errorf("%s: the edit does not remove the error:\n%s\n%s", title, fixed, render(after))
	}
}
