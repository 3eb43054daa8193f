package dsl

import (
	"fmt"
	"strings"
	"time"

	"github.com/headrace/headrace/dsl/plan"
)

func (e *explainer) explode(st *plan.Stage, cols []plan.Column) {
	x, made := st.Explode, st.Out.Columns[len(cols):]
	text := x.List.Text + " as " + made[0].Name
	if x.Index {
		text += " index " + made[1].Name
	}
	if x.Left {
		text += ", one row for an empty list"
	}
	e.line("%-8s %s", st.Word, text)
	e.how(x.List, cols)
}

func (e *explainer) top(st *plan.Stage, cols []plan.Column) {
	t := st.Top
	order := make([]string, len(t.Order))
	for i, o := range t.Order {
		order[i] = o.Expr.Text
		if o.Desc {
			order[i] += " desc"
		}
	}
	text := fmt.Sprintf("%d by %s", t.N, strings.Join(order, ", "))
	if t.Ties {
		text = fmt.Sprintf("%d with ties by %s", t.N, strings.Join(order, ", "))
	}
	if len(t.Group) > 0 {
		text += " per " + listText(names(st.Out.Columns, t.Group))
	}
	switch {
	case t.Update:
		text += ", a table of the best so far"
	case t.Window.Kind != 0:
		text += ", window " + t.Window.Text()
	default:
		text += ", window of the row"
	}
	e.line("%-8s %s%s", st.Word, text, shuffleText(st.Shuffle))
	e.added(t.Grouping, cols)
	for _, o := range t.Order {
		e.how(o.Expr, cols)
	}
}

// added lists the columns that a grouping adds.
func (e *explainer) added(g plan.Grouping, cols []plan.Column) {
	for _, a := range g.Added {
		e.line("         %s = %s: %s", a.Name, a.Expr.Text, a.Expr.Type)
		e.how(a.Expr, cols)
	}
}

// rowStates says what bounds the rows that stages keep.
func rowStates(p *plan.Pipeline) (out []string) {
	for i := range p.Stages {
		st := &p.Stages[i]
		if t := st.Top; t != nil {
			until := "until the window of the row ends"
			if t.Update {
				out = append(out, "forever, "+rowsText(t.N, st)+" x groups")
				continue
			}
			if t.Window.Kind != 0 {
				until = fmt.Sprintf("until the window ends (%s + lag %s)", durationText(t.Window.Size), durationText(p.Source.Time.Lag))
			}
			text := fmt.Sprintf("%s, %s in each window", until, rowsText(t.N, st))
			if len(t.Group) > 0 {
				text += " x groups"
			}
			if t.Ties {
				text += ", and those equal to the last"
			}
			out = append(out, text)
		}
		if st.Over != nil {
			out = append(out, overState(st)+fmt.Sprintf("; until the watermark passes it (lag %s), a row", durationText(p.Source.Time.Lag)))
		}
		if l := st.Lookup; l != nil {
			out = append(out, fmt.Sprintf("as long as table %s has them, %s x keys", l.Table.Name, lookupBytes(l)))
		}
		if d := st.Dedup; d != nil {
			text := "forever, about 40 B x keys"
			if d.Last {
				out = append(out, text)
				continue
			}
			if d.Within > 0 {
				text = "for " + durationText(d.Within) + ", about 40 B x keys"
			}
			out = append(out, text+fmt.Sprintf("; until the watermark passes it (lag %s), a row", durationText(p.Source.Time.Lag)))
		}
	}
	return out
}

// rowsText is how many rows are kept and what they take, roughly.
func rowsText(n int, st *plan.Stage) string {
	bytes := int64(160)
	for _, c := range st.Out.Columns {
		bytes += 1 + typeBytes(c.Type)
	}
	if n == 1 {
		return fmt.Sprintf("1 row of about %d B", bytes)
	}
	return fmt.Sprintf("%d rows of about %d B", n, bytes)
}

func (e *explainer) dedup(st *plan.Stage, cols []plan.Column) {
	d := st.Dedup
	if d.Last {
		e.line("%-8s by %s, a table of the last row%s", st.Word, listText(names(st.Out.Columns, d.Group)), shuffleText(st.Shuffle))
		e.added(d.Grouping, cols)
		return
	}
	e.line("%-8s by %s, the first row passes%s%s", st.Word, listText(names(st.Out.Columns, d.Group)), withinText(d.Within, d.Idle), shuffleText(st.Shuffle))
	e.added(d.Grouping, cols)
}

func withinText(d time.Duration, idle bool) string {
	switch {
	case d == 0:
		return ", once for ever"
	case idle:
		return ", again after " + durationText(d) + " without a row"
	}
	return ", again after " + durationText(d)
}
