package check

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// semantics numbers the meaning of plans: raise it when the same plan would give other rows.
const semantics = 1

// version hashes everything that decides the rows of a pipeline. Columns count by name, and of the
// source only those that are read, so that a new column elsewhere changes nothing. Places, comments,
// names of constants and retention do not count.
func version(p *plan.Pipeline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "semantics %d\n", semantics)
	src := p.Source
	fmt.Fprintf(&b, "from %q format %d derived %v key %s\n", src.Name, src.Format, src.Derived, keyNames(src.Schema.Columns, src.Key))
	if src.Pattern != "" {
		fmt.Fprintf(&b, "pattern %q\n", src.Pattern)
	}
	if src.Table {
		b.WriteString("from a table\n")
	}
	for i, c := range src.Schema.Columns {
		if i < len(p.Needed) && p.Needed[i] {
			writeColumn(&b, c)
		} else if src.Format == plan.FormatCSV {
			b.WriteString("skip\n") // fields of a line count by place
		}
	}
	t := src.Time
	fmt.Fprintf(&b, "time append %v lag %d delay %d future %d idle %d", t.Append, t.Lag, t.Delay, t.Future, t.Idle)
	if t.Expr != nil {
		b.WriteString(" ")
		writeExpr(&b, t.Expr, columnNames(src.Schema.Columns))
	}
	b.WriteString("\n")
	cols := src.Schema.Columns
	for i := range p.Stages {
		writeStage(&b, &p.Stages[i], cols)
		cols = p.Stages[i].Out.Columns
	}
	out := p.Output
	fmt.Fprintf(&b, "into %q format %d partitions %d key %s\n", out.Name, out.Format, out.Partitions, keyNames(out.Schema.Columns, out.Key))
	if out.Table {
		b.WriteString("into a table\n")
	}
	for _, c := range out.Schema.Columns {
		writeColumn(&b, c)
	}
	for _, s := range []plan.Side{p.Late, p.Invalid, p.Errors} {
		fmt.Fprintf(&b, "side %d %q\n", s.Action, s.Topic)
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}

func columnNames(cols []plan.Column) []string {
	out := make([]string, len(cols))
	for i := range cols {
		out[i] = cols[i].Name
	}
	return out
}

func keyNames(cols []plan.Column, key []int) string {
	var out []string
	for _, k := range key {
		if k >= 0 && k < len(cols) {
			out = append(out, cols[k].Name)
		}
	}
	return "(" + strings.Join(out, ", ") + ")"
}

func writeColumn(b *strings.Builder, c plan.Column) {
	fmt.Fprintf(b, "column %s %q %s", c.Name, c.Input, TypeString(c.Type))
	if c.TimeLayout != "" || c.TimeZone != "" {
		fmt.Fprintf(b, " %q %q", c.TimeLayout, c.TimeZone)
	}
	b.WriteString("\n")
	for _, m := range c.Members {
		b.WriteString(".")
		writeColumn(b, m)
	}
}

// writeStage writes a stage in canonical form, columns by name.
func writeStage(b *strings.Builder, st *plan.Stage, in []plan.Column) {
	names := columnNames(in)
	switch st.Kind {
	case plan.StageFilter:
		b.WriteString("filter ")
		writeExpr(b, st.Filter, names)
		b.WriteString("\n")
	case plan.StageProject:
		b.WriteString("project\n")
		for _, p := range st.Project {
			b.WriteString("  " + p.Name + " = ")
			writeExpr(b, p.Expr, names)
			b.WriteString("\n")
		}
	case plan.StageKey:
		b.WriteString("key " + keyNames(st.Out.Columns, st.OutKey) + "\n")
	case plan.StageChanges:
		b.WriteString("changes\n")
	case plan.StageExplode:
		x := st.Explode
		fmt.Fprintf(b, "explode left %v index %v as %s ", x.Left, x.Index, strings.Join(columnNames(st.Out.Columns[len(in):]), ", "))
		writeExpr(b, x.List, names)
		b.WriteString("\n")
	case plan.StageTop:
		writeTop(b, st, names)
	case plan.StageDedup:
		fmt.Fprintf(b, "dedup within %s idle %v last %v\n", durationText(int64(st.Dedup.Within)), st.Dedup.Idle, st.Dedup.Last)
		writeGrouping(b, st.Dedup.Grouping, st.Out.Columns, names)
	case plan.StageOver:
		writeOver(b, st, names)
	case plan.StageLookup:
		writeLookup(b, st, names)
	case plan.StageAggregate:
		a := st.Agg
		if a.Window.Kind == 0 {
			b.WriteString("aggregate without end")
		} else {
			b.WriteString("aggregate " + windowCanonical(a.Window))
		}
		b.WriteString(emissionText(a))
		if a.OnAppend {
			b.WriteString(" on append")
		}
		b.WriteString("\n")
		row := make([]string, 0, len(a.By)+2+len(a.Slots))
		for _, e := range a.By {
			b.WriteString("  by " + e.Name + " = ")
			writeExpr(b, e.Expr, names)
			b.WriteString("\n")
			row = append(row, e.Name)
		}
		if a.Window.Kind != 0 {
			row = append(row, windowStart, windowEnd)
		}
		for i, s := range a.Slots {
			fmt.Fprintf(b, "  slot %d = ", i)
			writeSlot(b, s, names)
			b.WriteString("\n")
			row = append(row, "$"+strconv.Itoa(i))
		}
		for _, r := range a.Results {
			b.WriteString("  " + r.Name + " = ")
			writeExpr(b, r.Expr, row)
			b.WriteString("\n")
		}
	}
}

// emissionText says what an aggregate does beyond emitting once.
func emissionText(a *plan.Aggregate) string {
	s := [...]string{"", " emit update", " emit every " + durationText(int64(a.Every)), " emit changes"}[a.Emit]
	if a.Accept > 0 {
		s += " late accept " + durationText(int64(a.Accept))
	}
	if a.TTL > 0 {
		s += " state ttl " + durationText(int64(a.TTL))
	}
	if a.Retract {
		s += " of changes"
	}
	return s
}

func windowCanonical(w plan.Window) string {
	switch w.Kind {
	case plan.WindowTumble, plan.WindowHop:
		word := "tumble"
		if w.Kind == plan.WindowHop {
			word = "hop"
		}
		return fmt.Sprintf("%s size %s every %s", word, durationText(int64(w.Size)), durationText(int64(w.Every)))
	case plan.WindowCalendar:
		return w.Text() + " zones " + scalar.ZoneVersion
	}
	return w.Text()
}

func writeSlot(b *strings.Builder, s plan.AggCall, names []string) {
	b.WriteString(s.Func + "(")
	for i, x := range []*plan.Expr{s.Arg, s.By, s.Param} {
		if x == nil {
			continue
		}
		if i > 0 {
			b.WriteString(", ")
		}
		writeExpr(b, x, names)
	}
	b.WriteString(")")
	if s.Filter != nil {
		b.WriteString(" where ")
		writeExpr(b, s.Filter, names)
	}
	b.WriteString(": " + TypeString(s.Type))
}

// canonicalSlot tells equal slots apart from others.
func canonicalSlot(s plan.AggCall) string {
	var b strings.Builder
	writeSlot(&b, s, nil)
	return b.String()
}

var metaWords = func() map[plan.Meta]string {
	out := map[plan.Meta]string{}
	for n, m := range metaColumns {
		out[m.meta] = n
	}
	return out
}()

// writeExpr writes an expression so that equal texts mean equal values. names spells the columns; nil
// writes their numbers.
func writeExpr(b *strings.Builder, e *plan.Expr, names []string) {
	list := func(open string, args []*plan.Expr, sep, end string) {
		b.WriteString(open)
		for i, a := range args {
			if i > 0 {
				b.WriteString(sep)
			}
			writeExpr(b, a, names)
		}
		b.WriteString(end)
	}
	switch e.Op {
	case plan.ExprColumn:
		if e.Column < len(names) {
			b.WriteString(names[e.Column])
		} else {
			b.WriteString("column " + strconv.Itoa(e.Column))
		}
		if !e.Type.Nullable {
			return
		}
		b.WriteString("?")
	case plan.ExprMeta:
		b.WriteString("record." + metaWords[e.Meta])
	case plan.ExprConst:
		writeValue(b, e.Value, e.Type)
	case plan.ExprCall:
		list(e.Func+"(", e.Args, ", ", "): "+TypeString(e.Type))
	case plan.ExprAnd:
		list("(", e.Args, " and ", ")")
	case plan.ExprOr:
		list("(", e.Args, " or ", ")")
	case plan.ExprCond:
		list("cond(", e.Args, ", ", "): "+TypeString(e.Type))
	case plan.ExprCoalesce:
		list("(", e.Args, " ?? ", ")")
	case plan.ExprField:
		list("", e.Args, "", "."+fieldName(e))
	case plan.ExprLambda:
		list("{", e.Args, "", "}")
	case plan.ExprElem:
		b.WriteString("#" + strconv.Itoa(e.Depth) + "." + strconv.Itoa(e.Field))
	case plan.ExprLet:
		list("let(", e.Args, ", ", ")")
	case plan.ExprVar:
		b.WriteString("var" + strconv.Itoa(e.Depth))
	}
}

func fieldName(e *plan.Expr) string {
	if len(e.Args) == 1 {
		if fs := e.Args[0].Type.Fields; e.Field < len(fs) {
			return fs[e.Field].Name
		}
	}
	return strconv.Itoa(e.Field)
}

// writeValue writes a constant with its type, exactly.
func writeValue(b *strings.Builder, v scalar.Value, t scalar.Type) {
	if v.IsNull() {
		b.WriteString("nil")
		if t.Kind != scalar.KindNull {
			b.WriteString(":" + TypeString(t))
		}
		return
	}
	elem := func(i int) scalar.Type {
		switch {
		case t.Elem != nil:
			return *t.Elem
		case i < len(t.Fields):
			return t.Fields[i].Type
		}
		return scalar.Type{Kind: v.L[i].Kind}
	}
	switch {
	case t.Kind == scalar.KindString:
		b.WriteString(strconv.Quote(v.S))
		return
	case t.Kind == scalar.KindBytes:
		b.WriteString("b" + strconv.Quote(v.S))
		return
	case t.Kind == scalar.KindMap:
		b.WriteString("{")
		for i := range v.Keys {
			if i > 0 {
				b.WriteString(", ")
			}
			writeValue(b, v.Keys[i], *t.Key)
			b.WriteString(": ")
			writeValue(b, v.L[i], elem(i))
		}
		b.WriteString("}")
		return
	case t.Kind == scalar.KindList || t.Kind == scalar.KindStruct:
		b.WriteString("[")
		for i := range v.L {
			if i > 0 {
				b.WriteString(", ")
			}
			writeValue(b, v.L[i], elem(i))
		}
		b.WriteString("]")
		return
	case t.Kind.Float() && (math.IsNaN(v.F) || math.IsInf(v.F, 0)):
		fmt.Fprintf(b, "float(%x)", math.Float64bits(v.F))
		return
	}
	text, code := scalar.AppendText(nil, v, t)
	if code != scalar.CodeNone {
		fmt.Fprintf(b, "%d/%v", v.I, v.F)
	}
	b.Write(text)
	switch t.Kind {
	case scalar.KindInt64, scalar.KindBool, scalar.KindDuration:
	default:
		b.WriteString(":" + TypeString(t.NonNull()))
	}
}

// StageText writes a stage in canonical form; in are the columns before it.
func StageText(st *plan.Stage, in []plan.Column) string {
	var b strings.Builder
	writeStage(&b, st, in)
	return b.String()
}
