package check

import (
	"strings"
	"time"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// otherWindow reads a window whose spans are not all of one length.
func (c *checker) otherWindow(f *flow, cl *syntax.Clause, agg *plan.Aggregate) bool {
	w := cl.Window
	at := span{int(w.Pos), int(w.End)}
	ok := false
	switch w.Word {
	case "session":
		ok = c.sessionWindow(w, at, agg)
	case "calendar":
		ok = c.calendarWindow(w, at, agg)
	case "cumulate":
		ok = c.cumulateWindow(w, at, agg)
	default:
		c.notBuilt("window-"+w.Word, "`window "+w.Word+"`", at, "").fix("use `tumble(1m)` or `hop(1m every 10s)`").replace(at, "tumble(1m)")
	}
	return ok && c.windowOnAppend(f, cl, agg)
}

// windowOnAppend reads `on append`.
func (c *checker) windowOnAppend(f *flow, cl *syntax.Clause, agg *plan.Aggregate) bool {
	agg.OnAppend = cl.OnAppend
	if cl.OnAppend && f.meta != metaAll {
		c.err("E0121", span{int(cl.Window.Pos), int(cl.Window.End)}, "there is no append time after an aggregate").
			because("a row that an aggregate made comes from many records").fix("leave `on append` out")
		return false
	}
	return true
}

func (c *checker) sessionWindow(w *syntax.Window, at span, agg *plan.Aggregate) bool {
	gap, ok := c.durationValue(w.Size)
	if !ok {
		return false
	}
	if gap <= 0 {
		c.err("E0208", at, "a session needs a gap above zero").because("a row joins a session if it comes less than the gap after it").fix("`session(30m)`").
			replace(at, "session(30m)")
		return false
	}
	if w.Every != nil {
		c.notBuilt("session-max", "`max` of a session", at, "").fix("leave `max` out").replace(at, "session("+durationText(gap)+")")
		return false
	}
	agg.Window = plan.Window{Kind: plan.WindowSession, Size: time.Duration(gap)}
	return true
}

func (c *checker) cumulateWindow(w *syntax.Window, at span, agg *plan.Aggregate) bool {
	size, ok := c.durationValue(w.Size)
	if !ok {
		return false
	}
	every, ok := c.durationValue(w.Every)
	if !ok {
		return false
	}
	switch {
	case size <= 0 || every <= 0:
		c.err("E0208", at, "a window needs a length above zero").because("it would hold no row").fix("`cumulate(1d every 1h)`")
		return false
	case size%every != 0:
		c.err("E0208", at, "%s is not a multiple of %s", durationText(size), durationText(every)).
			because("a window grows step by step until it is whole").fix("`cumulate(1d every 1h)`")
		return false
	case size/every > maxHops:
		c.err("E0208", at, "each row would be in %d windows", size/every).
			because("each of them gives a row; %d is the most", maxHops).fix("use a larger step")
		return false
	}
	agg.Window = plan.Window{Kind: plan.WindowCumulate, Size: time.Duration(size), Every: time.Duration(every)}
	return true
}

func (c *checker) calendarWindow(w *syntax.Window, at span, agg *plan.Aggregate) bool {
	known := false
	for _, u := range scalar.CalendarUnits {
		known = known || u == w.Unit
	}
	if !known {
		x := c.err("E0211", at, "there is no calendar unit `%s`", w.Unit).because("the units are %s", strings.Join(scalar.CalendarUnits, ", "))
		if near := nearest(w.Unit, scalar.CalendarUnits); near != "" {
			x.fix("`calendar(%s)`", near)
		} else {
			x.fix("`calendar(day)`")
		}
		return false
	}
	if w.Zone != "" && !zoneKnown(w.Zone) {
		c.err("E0211", at, "there is no time zone `%s`", w.Zone).because("zones have names of the IANA database, which is built in (%s)", scalar.ZoneVersion).
			fix("`calendar(%s, \"Europe/Berlin\")`, or leave the zone out for UTC", w.Unit)
		return false
	}
	agg.Window = plan.Window{Kind: plan.WindowCalendar, Unit: w.Unit, Zone: w.Zone}
	if w.Zone == "UTC" {
		agg.Window.Zone = ""
	}
	return true
}

// joins are the aggregates whose groups can be joined after their rows were folded, as sessions need it.
var joins = map[string]bool{
	"count": true, "sum": true, "avg": true, "min": true, "max": true, "count_distinct": true, "first": true, "last": true,
	"any_value": true, "bool_and": true, "bool_or": true, "arg_min": true, "arg_max": true, "approx_distinct": true, "approx_quantile": true,
	"var_pop": true, "var_samp": true, "stddev_pop": true, "stddev_samp": true,
}

// joinable reports what windows whose groups are joined cannot have.
func (c *checker) joinable(f *flow, st *syntax.Stage, clauses map[string]*syntax.Clause, agg *plan.Aggregate) bool {
	if k := agg.Window.Kind; k != plan.WindowSession && k != plan.WindowCumulate && k != plan.WindowCount {
		return true
	}
	var e *syntax.Emit
	var at span
	switch cl := clauses["emit"]; {
	case cl != nil:
		e, at = cl.Emit, span{int(cl.Pos), int(cl.End)}
	case f.emit != nil:
		e, at = f.emit.Emit, span{int(f.emit.Pos), int(f.emit.End)}
	}
	if e != nil && e.Word != "close" {
		c.notBuilt("window-emit", "`emit "+e.Word+"` of `"+agg.Window.Text()+"`", at, "").fix("`emit close`").replace(at, "emit close")
		return false
	}
	if agg.Accept > 0 {
		cl := clauses["late"]
		c.notBuilt("window-emit", "`late accept` of `"+agg.Window.Text()+"`", span{int(cl.Pos), int(cl.End)}, "").fix("`late drop`, or `late to x`").
			replace(c.clauseSpan(cl), " late drop")
		return false
	}
	for _, s := range agg.Slots {
		if !joins[s.Func] && agg.Window.Kind != plan.WindowCount {
			c.notBuilt("window-aggregate", "the aggregate `"+s.Func+"` over `"+agg.Window.Text()+"`", c.wordSpan(st.Pos), "").
				fix("over tumble, hop and calendar windows it is")
			return false
		}
	}
	return true
}
