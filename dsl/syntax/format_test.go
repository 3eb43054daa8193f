package syntax_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/golden"
)

// checkFormat verifies what Format promises for a text that parses: the same tree, and nothing left to do.
func checkFormat(t *testing.T, text string) string {
	t.Helper()
	before, diags := syntax.Parse("x.hr", text)
	if len(diags) > 0 {
		t.Fatalf("does not parse:\n%s", render(diags))
	}
	once, diags := syntax.Format(text)
	if len(diags) > 0 {
		t.Fatalf("Format finds errors that Parse does not:\n%s", render(diags))
	}
	after, diags := syntax.Parse("x.hr", once)
	if len(diags) > 0 {
		t.Fatalf("the formatted text does not parse:\n%s\n---\n%s\n--- from\n%s", render(diags), once, text)
	}
	if a, b := syntax.Dump(before), syntax.Dump(after); a != b {
		t.Fatalf("formatting changed the meaning\n--- before\n%s\n--- after\n%s\n--- text\n%s\n--- formatted\n%s", a, b, text, once)
	}
	if twice, _ := syntax.Format(once); twice != once {
		t.Fatalf("formatting twice differs\n--- once\n%s\n--- twice\n%s\n--- from\n%s", once, twice, text)
	}
	return once
}

func TestFormatKeepsTheTreeAndIsIdempotent(t *testing.T) {
	files, _ := filepath.Glob("testdata/format/*.hr")
	for _, file := range append(blocks(t), files...) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, strings.TrimSuffix(file, ".hr")+".fmt", checkFormat(t, string(text)))
		})
	}
}

func TestFormatReturnsBrokenTextUnchanged(t *testing.T) {
	text := "topic   x = from y |>  where"
	got, diags := syntax.Format(text)
	if got != text || len(diags) != 1 {
		t.Errorf("got %q with %d diagnostics", got, len(diags))
	}
}
