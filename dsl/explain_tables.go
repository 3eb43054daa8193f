package dsl

import (
	"fmt"

	"github.com/headrace/headrace/dsl/plan"
)

// emissionText says when the groups of an aggregate leave.
func emissionText(a *plan.Aggregate) string {
	per := "per key and window"
	if a.Window.Kind == 0 {
		per = "per key"
	}
	switch {
	case a.Emit == plan.EmitUpdate && a.TTL > 0:
		return "a row " + per + " after each step that changed it, and a delete when it ends"
	case a.Emit == plan.EmitUpdate:
		return "a row " + per + " after each step that changed it"
	case a.Emit == plan.EmitEvery:
		return "a row " + per + " each " + durationText(a.Every) + " of event time, if it has changed"
	case a.Emit == plan.EmitChanges:
		return "inserts and deletes " + per
	case a.Accept > 0:
		return "a row " + per + " when it ends, and again for late rows"
	}
	return "one final row " + per
}

// endlessText says what bounds the state of an aggregate without a window.
func endlessText(a *plan.Aggregate) string {
	bytes, open := int64(72), ""
	for _, b := range a.By {
		bytes += typeBytes(b.Expr.Type)
	}
	for _, s := range a.Slots {
		bytes += 8 + typeBytes(s.Type)
		if s.Func == "count_distinct" || a.Retract && (s.Func == "min" || s.Func == "max") {
			open = " plus the distinct values of a key"
		}
	}
	text := "forever"
	switch {
	case a.TTL > 0:
		text = "until " + durationText(a.TTL) + " after the last row of a key"
	case a.Retract:
		text = "as long as the table has rows of a key"
	}
	if len(a.By) == 0 {
		return fmt.Sprintf("%s, about %d B%s", text, bytes, open)
	}
	return fmt.Sprintf("%s, about %d B x keys%s", text, bytes, open)
}

// keptText says what the kept rows of a table take.
func keptText(s plan.Schema) string {
	bytes := int64(64)
	for _, c := range s.Columns {
		bytes += 1 + typeBytes(c.Type)
	}
	return fmt.Sprintf("the rows of the table, about %d B each", bytes)
}
