package dsl

import (
	"fmt"

	"github.com/headrace/headrace/dsl/plan"
)

func (e *explainer) over(st *plan.Stage, cols []plan.Column) {
	o := st.Over
	text := "each row"
	if len(o.Group) > 0 {
		text = "by " + listText(names(st.Out.Columns, o.Group))
	}
	switch {
	case o.Before:
		text += ", the " + countText(o.Rows, "row") + " before it"
	case o.Rows > 0:
		text += ", the last " + countText(o.Rows, "row")
	case o.Range > 0:
		text += ", the last " + durationText(o.Range)
	}
	e.line("%-8s %s%s", st.Word, text, shuffleText(st.Shuffle))
	e.added(o.Grouping, cols)
	for i := range o.Slots {
		s := &o.Slots[i]
		e.line("         %s: %s", s.Text(), s.Type)
		for _, x := range []*plan.Expr{s.Arg, s.By} {
			if x != nil {
				e.how(x, cols)
			}
		}
	}
}

// overState says how many rows of a key an `over` keeps, how long, and what they take.
func overState(st *plan.Stage) string {
	o := st.Over
	keep, bytes := max(1, o.Rows-1), int64(140)
	if o.Before {
		keep = o.Rows
	}
	for i := range o.Slots {
		s := &o.Slots[i]
		if s.Func == "prev" {
			keep = max(keep, int(s.Param.Value.I))
		}
		for _, x := range []*plan.Expr{s.Arg, s.By} {
			if x != nil {
				bytes += 1 + typeBytes(x.Type)
			}
		}
	}
	what := countText(keep, "row")
	if o.Range > 0 {
		what = "the rows of " + durationText(o.Range)
		if keep > 1 {
			what += fmt.Sprintf(", at least %d,", keep)
		}
	}
	text := fmt.Sprintf("%s of about %d B", what, bytes)
	if len(o.Group) > 0 {
		text += " x keys"
	}
	switch {
	case o.TTL > 0:
		return text + ", until a key has no row for " + durationText(o.TTL)
	case o.Forever:
		return text + ", forever"
	}
	return text
}

func countText(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
