package dsl

import (
	"fmt"

	"github.com/headrace/headrace/dsl/plan"
)

func (e *explainer) lookup(st *plan.Stage, cols []plan.Column) {
	l := st.Lookup
	t := l.Table
	kind := "rows without partner go"
	if l.Left {
		kind = "null for rows without partner"
	}
	e.line("%-8s %s %s, %s, %s, as %s on %s, %s", st.Word, kindText(t), t.Name, formatText(t.Format), keyText(t.Schema.Columns, t.Key), st.Out.Columns[len(cols)].Name, l.Text, kind)
	e.line("         the latest row: the table as it was when the pipeline started, then in shard order; not step-independent")
	for _, k := range l.Key {
		e.how(k, cols)
	}
	if l.On != nil {
		e.how(l.On, st.Out.Columns)
	}
}

// lookupBytes is what a row of a table takes, roughly.
func lookupBytes(l *plan.Lookup) string {
	bytes := int64(160)
	for _, c := range l.Table.Schema.Columns {
		bytes += 1 + typeBytes(c.Type)
	}
	return fmt.Sprintf("about %d B", bytes)
}
