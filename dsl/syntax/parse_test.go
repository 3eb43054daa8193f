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
