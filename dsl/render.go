package dsl

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
)

// maxCaretText is how much fits beside the caret before it gets its own line.
const maxCaretText = 72

// Render shows a diagnostic as text: what is wrong, the line with a caret under the place, the reason and
// the fix. It ends with a newline and has no colours.
//
//	E0104 topic `clicks` has no column `usr`
//	  clicks.hr:3     |> where usr == "ann"
//	                           ^^^ did you mean `user`?
//	  fix: `user`
func Render(d plan.Diagnostic) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", d.Code, d.Message)
	file := d.File
	if i := strings.LastIndexAny(file, `/\`); i >= 0 {
		file = file[i+1:]
	}
	place := fmt.Sprintf("  %s:%d  ", file, d.Line)
	if pad := 16 - utf8.RuneCountInString(place); pad > 0 {
		place += strings.Repeat(" ", pad)
	}
	line := expandTabs(d.LineText)
	before := expandTabs(prefix(d.LineText, d.Column-1))
	indent := 0
	for indent < len(line) && line[indent] == ' ' && indent < utf8.RuneCountInString(before) {
		indent++
	}
	b.WriteString(strings.TrimRight(place+line[indent:], " ") + "\n")
	b.WriteString(strings.Repeat(" ", utf8.RuneCountInString(place)+utf8.RuneCountInString(before)-indent))
	b.WriteString(strings.Repeat("^", max(d.Length, 1)))
	fix := d.Fix
	switch {
	case d.Reason != "":
		b.WriteString(" " + d.Reason)
	case fix != "" && utf8.RuneCountInString(fix) <= maxCaretText:
		b.WriteString("   fix: " + fix)
		fix = ""
	}
	b.WriteString("\n")
	if fix != "" {
		b.WriteString("  fix: " + fix + "\n")
	}
	return b.String()
}

// RenderAll shows diagnostics one after the other, with an empty line between them.
func RenderAll(list []plan.Diagnostic) string {
	parts := make([]string, len(list))
	for i, d := range list {
		parts[i] = Render(d)
	}
	return strings.Join(parts, "\n")
}

// prefix is the first n runes of s.
func prefix(s string, n int) string {
	for i := range s {
		if n <= 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func expandTabs(s string) string { return strings.ReplaceAll(s, "\t", "    ") }
