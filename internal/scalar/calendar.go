package scalar

import (
	"fmt"
	"math"
	"time"
)

// CalendarUnits are the units of calendar windows, the longest last.
var CalendarUnits = []string{"minute", "hour", "day", "week", "month", "quarter", "year"}

// A Calendar divides time into the days, weeks, .. of a time zone. A week begins on Monday. A unit begins at the first
// moment when the clock shows its beginning, or has passed it: where a day has no midnight it begins when the clock is
// put forward, and where the clock shows midnight twice it begins at the first. So days have 23 or 25 hours at a change
// of the clock. Minutes and hours follow the clock, too, and one that is repeated is two.
//
// A Calendar belongs to one goroutine.
type Calendar struct {
	loc        *time.Location
	floor      func(sec int64) int64
	short      int64 // length in seconds of a unit below a day, else 0
	start, end int64 // of the span found last, ns
}

// NewCalendar finds a unit and a zone by name. The error says which of them there is not.
func NewCalendar(unit, zone string) (*Calendar, error) {
	loc, err := Zone(zone)
	if err != nil {
		return nil, err
	}
	c := &Calendar{loc: loc, floor: calendarUnits[unit]}
	switch unit {
	case "minute":
		c.short = 60
	case "hour":
		c.short = 3600
	case "day", "week", "month", "quarter", "year":
	default:
		return nil, fmt.Errorf("no unit `%s`", unit)
	}
	return c, nil
}

// MaxCalendarSpan is longer than any span of a Calendar, in nanoseconds.
const MaxCalendarSpan = 370 * 24 * int64(time.Hour)

// Span is the unit [start, end) that holds the time ns. ns must be further than two MaxCalendarSpan from both ends of
// int64.
func (c *Calendar) Span(ns int64) (start, end int64) {
	if c.start <= ns && ns < c.end {
		return c.start, c.end
	}
	sec := FloorDiv(ns, nsPerSecond)
	if c.short > 0 {
		start, end = c.shortSpan(sec)
	} else {
		start, end = c.longSpan(sec)
	}
	c.start, c.end = start*nsPerSecond, end*nsPerSecond
	return c.start, c.end
}

// shortSpan cuts the units of a clock where it is changed.
func (c *Calendar) shortSpan(sec int64) (start, end int64) {
	off := ZoneOffset(sec*nsPerSecond, c.loc)
	from, to := c.bounds(sec)
	start = c.floor(sec+off) - off
	return max(start, from), min(start+c.short, to)
}

func (c *Calendar) longSpan(sec int64) (start, end int64) {
	wall := c.floor(sec + ZoneOffset(sec*nsPerSecond, c.loc))
	start, end = c.begins(wall), c.begins(c.next(wall))
	for end <= sec { // the clock was put back over midnight
		wall = c.next(wall)
		start, end = end, c.begins(c.next(wall))
	}
	return start, end
}

// next is the beginning of the unit after the one that begins at wall.
func (c *Calendar) next(wall int64) int64 {
	const day = 86400
	for _, days := range []int64{1, 7, 31, 92, 366} {
		if n := c.floor(wall + days*day); n > wall {
			return n
		}
	}
	panic("scalar: a calendar unit without an end")
}

// begins is the first second when the clock shows wall or a later time.
func (c *Calendar) begins(wall int64) int64 {
	sec := wall - 86400 // the clock shows less: no zone is a day ahead
	for {
		_, to := c.bounds(sec)
		off := ZoneOffset(sec*nsPerSecond, c.loc)
		switch {
		case wall-off < sec: // passed over by the change
			return sec
		case wall-off < to:
			return wall - off
		}
		sec = to
	}
}

// bounds are the seconds between which the offset of the zone does not change, as far as two days around sec.
func (c *Calendar) bounds(sec int64) (from, to int64) {
	const day = 86400
	off := ZoneOffset(sec*nsPerSecond, c.loc)
	from, to = c.rawBounds(sec)
	for to < sec+2*day && ZoneOffset(to*nsPerSecond, c.loc) == off {
		_, next := c.rawBounds(to)
		to = max(next, to+1)
	}
	for from > sec-2*day && ZoneOffset((from-1)*nsPerSecond, c.loc) == off {
		next, _ := c.rawBounds(from - 1)
		from = min(next, from-1)
	}
	return from, to
}

// rawBounds are those of the package time. They may lie at the turn of a year where nothing changes, and end a day
// early in a leap year.
func (c *Calendar) rawBounds(sec int64) (from, to int64) {
	from, to = math.MinInt64, math.MaxInt64
	a, b := time.Unix(sec, 0).In(c.loc).ZoneBounds()
	if !a.IsZero() {
		from = min(a.Unix(), sec)
	}
	if !b.IsZero() {
		if to = b.Unix(); to <= sec {
			to = sec + 86400
		}
	}
	return from, to
}
