package dsl

import "github.com/headrace/headrace/dsl/plan"

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
