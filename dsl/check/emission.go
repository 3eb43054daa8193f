package check

import (
	"time"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// The columns that `emit update` and `emit every` add.
const (
	revColumn   = "rev"
	finalColumn = "final"
)

// retracts says whether an aggregate can take a value of type t back. operators/window.Retracts says the
// same of what carries it out.
func retracts(f string, t scalar.Type) bool {
	switch f {
	case "count", "count_distinct", "min", "max":
		return true
	case "sum", "avg":
		return !t.Kind.Float()
	}
	return false
}

// aggMode decides when groups leave and how long they live: the clauses emit, state and late accept, and
// what the type of the input asks for. It sets f's type and why to that of the output.
func (c *checker) aggMode(f *flow, st *syntax.Stage, clauses map[string]*syntax.Clause, agg *plan.Aggregate) bool {
	windowed := clauses["window"] != nil
	ok := c.aggInput(f, st, windowed, agg)
	ok = c.aggState(f, st, clauses["state"], windowed, agg) && ok
	at, ok2 := c.aggEmit(f, st, clauses["emit"], windowed, agg)
	ok = ok && ok2
	if cl := clauses["late"]; cl != nil {
		ok = c.aggLate(f, cl, windowed, agg) && ok
	}
	if k := agg.Window.Kind; agg.Accept > 0 && (k == plan.WindowSession || k == plan.WindowCumulate || k == plan.WindowCount) {
		cl := clauses["late"]
		c.notBuilt("window-emit", "`late accept` of `"+agg.Window.Text()+"`", span{int(cl.Pos), int(cl.End)}, "").
			fix("`late drop`, or `late to x`").replace(c.clauseSpan(cl), " late drop")
		return false
	}
	if agg.Retract {
		c.changes(f, c.src.pos(int(st.Pos)))
	}
	u := &updating{at: at, window: windowed, clause: at}
	switch {
	case agg.Emit == plan.EmitChanges:
		f.stream, u.why = plan.StreamChangelog, "the aggregate takes rows back (emit changes)"
	case agg.Emit == plan.EmitUpdate && !windowed:
		f.stream, u.why = plan.StreamTable, "an aggregate without a window re-emits"
	case agg.Emit == plan.EmitUpdate:
		f.stream, u.why = plan.StreamTable, "the aggregate re-emits (emit update)"
	case agg.Emit == plan.EmitEvery:
		f.stream, u.why = plan.StreamTable, "the aggregate re-emits (emit every)"
	case agg.Accept > 0:
		cl := clauses["late"]
		u.at = span{int(cl.Pos), int(cl.End)}
		f.stream, u.why = plan.StreamTable, "the aggregate re-emits for late rows (late accept)"
		u.window = false
	default:
		f.stream, u = plan.StreamAppend, nil
	}
	f.updates = u
	return ok
}

// aggInput judges the type of the input.
func (c *checker) aggInput(f *flow, st *syntax.Stage, windowed bool, agg *plan.Aggregate) bool {
	if f.stream == plan.StreamAppend || f.unknown {
		return true
	}
	if windowed {
		x := c.err("E0419", c.wordSpan(st.Pos), "`agg` with a window needs rows that stay, and these are replaced: %s", f.updates.why)
		x.because("a row that closed a window could be taken back at any time after")
		switch {
		case columnIndex(f.cols, windowStart) >= 0:
			x.fix("leave the window out and group by the one that the rows have: `by window_start`")
		case f.updates.window:
			x.fix("let the aggregate before emit once: `emit close`").replace(f.updates.clause, "emit close")
		default:
			x.fix("leave the window out and group by a part of time: `by hour = trunc(ts, 1h) state forever`")
		}
		return false
	}
	agg.Retract = true
	return true
}

// aggState judges how long an aggregate without a window keeps its groups.
func (c *checker) aggState(f *flow, st *syntax.Stage, cl *syntax.Clause, windowed bool, agg *plan.Aggregate) bool {
	if windowed {
		if cl == nil {
			return true
		}
		c.err("E0212", span{int(cl.Pos), int(cl.End)}, "`state` says nothing beside a window").
			because("a window frees its state when it ends").fix("leave it out").replace(c.clauseSpan(cl), "")
		return false
	}
	end := span{int(st.End), int(st.End)}
	if cl == nil {
		x := c.err("E0207", c.wordSpan(st.Pos), "this stage would keep state forever").because("every key would be kept for good")
		if agg.Retract {
			x.fix("say `state forever` if that is meant: a key goes when the table has no row of it").replace(end, " state forever")
		} else {
			x.fix("add `window tumble(1h)`, or `state ttl 7d`, or say `state forever` if that is meant").replace(end, " window tumble(1h)")
		}
		return false
	}
	at := span{int(cl.Pos), int(cl.End)}
	switch cl.Mode {
	case "forever":
		agg.Forever = true
		return true
	case "ttl":
		d, ok := c.durationValue(cl.Duration)
		if !ok {
			return false
		}
		if d <= 0 {
			c.err("E0404", at, "`state ttl` needs a duration above zero").because("a group that dies at once could not be read").
				fix("`state ttl 7d`").replaceDuration(cl.Duration, "7d")
			return false
		}
		if agg.Retract {
			c.err("E0212", at, "rows of a table do not expire: %s", f.updates.why).
				because("a group would go while its rows are still in the table").
				fix("`state forever`: the group goes when its last row does").replace(at, "state forever")
			return false
		}
		agg.TTL = time.Duration(d)
		return true
	}
	c.err("E0212", at, "an aggregate is not bounded by runs").because("runs are what `match` keeps").
		fix("`state forever`, or `state ttl 7d`").replace(at, "state forever")
	return false
}

// onePartition requires that rows of a group come from one partition: only then is their order, and so
// which of them begins a new generation, the same in every run.
func (c *checker) onePartition(f *flow, at span, by []plan.NamedExpr) bool {
	if f.source.Partitions == 1 {
		return true
	}
	have := len(f.key) > 0 && f.lost == nil
	for _, k := range f.key {
		found := false
		for _, b := range by {
			found = found || b.Expr.Op == plan.ExprColumn && b.Expr.Column == k
		}
		have = have && found
	}
	for i := range f.stages {
		have = have && !f.stages[i].Shuffle
	}
	if have {
		return true
	}
	c.err("E0212", at, "`state ttl` needs the rows of a group in one partition").
		because("a pause ends a group, and rows of several partitions have no order in which to look for one").
		fix("write them to a topic with that key first: `topic x = from .. |> key (..)`, and aggregate that")
	return false
}

// aggEmit reads how the aggregate emits: its own clause, or what the statement says for all. at is the
// place of what was written, or of the stage.
func (c *checker) aggEmit(f *flow, st *syntax.Stage, cl *syntax.Clause, windowed bool, agg *plan.Aggregate) (at span, ok bool) {
	var e *syntax.Emit
	at = c.wordSpan(st.Pos)
	switch {
	case cl != nil && cl.Emit != nil:
		e, at = cl.Emit, span{int(cl.Pos), int(cl.End)}
	case cl == nil && f.emit != nil:
		e, at = f.emit.Emit, span{int(f.emit.Pos), int(f.emit.End)}
	}
	if e == nil {
		if !windowed {
			agg.Emit = plan.EmitUpdate
		}
		return at, true
	}
	switch e.Word {
	case "close":
		if !windowed {
			c.err("E0212", at, "without a window nothing closes").because("a group takes rows for ever").
				fix("`emit update`, or add a window").replace(at, "emit update")
			return at, false
		}
	case "update":
		agg.Emit = plan.EmitUpdate
	case "changes":
		agg.Emit = plan.EmitChanges
	case "every":
		d, good := c.durationValue(e.Every)
		if !good {
			return at, false
		}
		if d <= 0 {
			c.err("E0404", at, "`emit every` needs a duration above zero").because("ticks of no length never pass").
				fix("`emit every 10s`").replaceDuration(e.Every, "10s")
			return at, false
		}
		if agg.OnAppend {
			c.err("E0212", at, "`emit every` counts event time, and this window append time").because("the ticks and the windows would not belong together").
				fix("`emit update`").replace(at, "emit update")
			return at, false
		}
		agg.Emit, agg.Every = plan.EmitEvery, time.Duration(d)
	}
	return at, true
}

// aggLate reads the late clause of an aggregate.
func (c *checker) aggLate(f *flow, cl *syntax.Clause, windowed bool, agg *plan.Aggregate) bool {
	at := span{int(cl.Pos), int(cl.End)}
	if !windowed && agg.TTL == 0 {
		c.err("E0212", at, "without a window nothing is late").because("a group takes rows for ever").
			fix("leave it out").replace(c.clauseSpan(cl), "")
		return false
	}
	switch cl.Mode {
	case "drop":
		f.late = &plan.Side{Action: plan.SideDrop}
	case "to":
		if cl.Target != nil {
			if name := c.sideTarget(*cl.Target); name != "" {
				f.late = &plan.Side{Action: plan.SideTo, Topic: name}
			}
		}
	case "accept":
		d, ok := c.durationValue(cl.Duration)
		if !ok {
			return false
		}
		switch {
		case d <= 0:
			c.err("E0404", at, "`late accept` needs a duration above zero").because("a window that is kept for no time accepts nothing").
				fix("`late accept 1h`").replaceDuration(cl.Duration, "1h")
			return false
		case !windowed:
			c.err("E0212", at, "`late accept` needs a window").because("only a window closes").
				fix("leave it out").replace(c.clauseSpan(cl), "")
			return false
		case agg.OnAppend:
			c.err("E0212", at, "in a window on append time no row is late").because("it closes when the append time has passed its end").
				fix("leave it out").replace(c.clauseSpan(cl), "")
			return false
		}
		agg.Accept = time.Duration(d)
	}
	return true
}

// changes makes a changelog of a table before an aggregate takes it.
func (c *checker) changes(f *flow, pos plan.Pos) {
	where := f.where
	f.stream = plan.StreamChangelog
	f.push(plan.Stage{Kind: plan.StageChanges, Word: "changes", Pos: pos, Out: plan.Schema{Columns: f.cols}, OutKey: f.key})
	f.where = where
	f.meta = metaTime
}
