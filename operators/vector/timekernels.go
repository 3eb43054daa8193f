package vector

import (
	"time"

	"github.com/headrace/headrace/internal/scalar"
)

var timeFields = map[string]scalar.TimeField{
	"year": scalar.FieldYear, "month": scalar.FieldMonth, "day": scalar.FieldDay, "hour": scalar.FieldHour,
	"minute": scalar.FieldMinute, "second": scalar.FieldSecond, "weekday": scalar.FieldWeekday, "day_of_year": scalar.FieldDayOfYear,
}

// zoneOf is the zone of argument i: UTC if there is none, nil if it is not constant.
func (n *node) zoneOf(i int) *time.Location {
	if i >= len(n.args) {
		return time.UTC
	}
	name, ok := n.constText(i)
	if !ok {
		return nil
	}
	loc, err := scalar.Zone(name)
	if err != nil {
		return nil
	}
	return loc
}

// clock is a time in seconds on the clock of loc.
func clock(ns int64, loc *time.Location) int64 {
	return scalar.FloorDiv(ns, int64(time.Second)) + scalar.ZoneOffset(ns, loc)
}

func (n *node) timeKernel(name string) kernel {
	if n.args[0].form != formInt {
		return nil
	}
	switch name {
	case "trunc":
		step, ok := n.constInt(1)
		if !ok || step <= 0 {
			return nil
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				t, c := scalar.Trunc(a[0].i[i], step)
				o.i[i] = t
				if c != scalar.CodeNone && o.alive(i) {
					o.fail(i, c)
				}
			}
		}
	case "epoch", "from_epoch":
		text, _ := n.constText(1)
		unit := scalar.EpochUnit(text)
		if unit == 0 {
			return nil
		}
		if name == "epoch" {
			return func(o *vec, a []*vec, s *selection) {
				for _, i := range s.rows {
					o.i[i] = scalar.FloorDiv(a[0].i[i], unit)
				}
			}
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				t, c := scalar.FromEpoch(a[0].i[i], unit)
				o.i[i] = t
				if c != scalar.CodeNone && o.alive(i) {
					o.fail(i, c)
				}
			}
		}
	case "fmt":
		return n.format()
	case "date_of":
		loc := n.zoneOf(1)
		if loc == nil {
			return nil
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.i[i] = scalar.FloorDiv(clock(a[0].i[i], loc), 86400)
			}
		}
	}
	field := timeFields[name]
	if n.args[0].typ.Kind == scalar.KindDate {
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.i[i] = field.OfDay(a[0].i[i])
			}
		}
	}
	loc := n.zoneOf(1)
	switch {
	case loc == nil:
		return nil
	case loc == time.UTC && name == "hour":
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				h := a[0].i[i] % (24 * int64(time.Hour))
				if h < 0 {
					h += 24 * int64(time.Hour)
				}
				o.i[i] = h / int64(time.Hour)
			}
		}
	}
	return func(o *vec, a []*vec, s *selection) {
		for _, i := range s.rows {
			o.i[i] = field.Of(clock(a[0].i[i], loc))
		}
	}
}

// format writes times by a constant layout.
func (n *node) format() kernel {
	text, ok := n.constText(1)
	loc := n.zoneOf(2)
	if !ok || loc == nil || n.args[0].typ.Kind != scalar.KindTime {
		return nil
	}
	layout, err := scalar.ParseLayout(text)
	if err != nil {
		return nil
	}
	n.onlyLive = true
	w := &n.arena
	return func(o *vec, a []*vec, s *selection) {
		w.begin()
		for _, i := range s.rows {
			t := a[0].i[i]
			w.buf = layout.Append(w.buf, t, scalar.ZoneOffset(t, loc))
			w.put(o, i)
		}
	}
}
