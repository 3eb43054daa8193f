package dsl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/internal/golden"
)

// docs/errors.md is the table of codes as a page.
func TestErrorsPageIsTheTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Errors of the language\n\n" +
		"Every diagnostic has a stable code. `headrace explain-error E0112` prints one entry of this page. Codes that begin\n" +
		"with W are warnings. E06xx are also the codes of rows that fail at run time. This page is made from the compiler's\n" +
		"table; `go test ./dsl -update` writes it again. Examples that do not declare what they read read this topic:\n" +
		"\n```hr\n" + exampleTopic(t) + "\n```\n")
	section := ""
	for _, c := range dsl.Codes() {
		if s := sectionOf(c.Code); s != section {
			section = s
			b.WriteString("\n## " + s + "\n")
		}
		fmt.Fprintf(&b, "\n### %s: %s\n\n%s\n", c.Code, c.Title, c.Explanation)
		if c.Example != "" {
			fmt.Fprintf(&b, "\n```hr\n%s\n```\n", strings.TrimRight(strings.TrimPrefix(c.Example, exampleTopic(t)+"\n"), "\n"))
		}
	}
	golden.Check(t, "../docs/errors.md", b.String())
}

// exampleTopic is the line that most examples begin with.
func exampleTopic(t testing.TB) string {
	for _, c := range dsl.Codes() {
		if c.Code == "E0112" {
			line, _, _ := strings.Cut(c.Example, "\n")
			return line
		}
	}
	t.Fatal("no E0112")
	return ""
}

func sectionOf(code string) string {
	switch code[1:3] {
	case "00":
		return "Reading the text"
	case "01":
		return "Names, types and nulls"
	case "02":
		return "Windows, time and state"
	case "04":
		return "Topics, views and stages"
	case "06":
		return "Constants and rows that fail"
	}
	return "Not built yet"
}
