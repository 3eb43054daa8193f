package dsl

import (
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
)

// windowsOf is how many windows of a key are kept at a time, about.
func windowsOf(w plan.Window) int64 {
	switch w.Kind {
	case plan.WindowTumble, plan.WindowHop:
		return int64((w.Size + w.Every - 1) / w.Every)
	}
	return 1
}

// untilText says until when a window is kept; more is added to how long that is.
func untilText(w plan.Window, more ...string) string {
	and := strings.Join(more, "")
	switch w.Kind {
	case plan.WindowSession:
		return fmt.Sprintf("until the session ends (gap %s%s)", durationText(w.Size), and)
	case plan.WindowCalendar:
		return fmt.Sprintf("until the window ends (a %s%s)", w.Unit, and)
	}
	return fmt.Sprintf("until the window ends (%s%s)", durationText(w.Size), and)
}
