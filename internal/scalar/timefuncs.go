package scalar

import (
	"fmt"
	"time"
)

// A TimeField is a part of the clock or the calendar.
type TimeField uint8

// The fields that functions read.
const (
	FieldYear TimeField = iota
	FieldMonth
	FieldDay
	FieldHour
	FieldMinute
	FieldSecond
	FieldWeekday // 1 is Monday, 7 is Sunday
	FieldDayOfYear
)

// Of reads the field from a time, given as seconds since 1970 on the clock in question.
func (f TimeField) Of(sec int64) int64 {
	days := FloorDiv(sec, 86400)
	switch f {
	case FieldHour:
		return (sec - days*86400) / 3600
	case FieldMinute:
		return (sec - days*86400) / 60 % 60
	case FieldSecond:
		return (sec - days*86400) % 60
	}
	return f.OfDay(days)
}

// OfDay reads the field from a date.
func (f TimeField) OfDay(days int64) int64 {
	switch f {
	case FieldWeekday: // 1970-01-01 was a Thursday
		return (days+3)%7 + 1 + 7*int64(btoi((days+3)%7 < 0))
	case FieldYear:
		y, _, _ := Civil(days)
		return y
	case FieldMonth:
		_, m, _ := Civil(days)
		return m
	case FieldDay:
		_, _, d := Civil(days)
		return d
	case FieldDayOfYear:
		y, _, _ := Civil(days)
		return days - DaysOf(y, 1, 1) + 1
	}
	return 0
}

// zoneArg is the zone of argument i: constant, or looked up a row.
func zoneArg(name string, args []Arg, i int) (func(v []Value) (*time.Location, Code), error) {
	if i >= len(args) {
		return func([]Value) (*time.Location, Code) { return time.UTC, CodeNone }, nil
	}
	if s, isConst := constString(args[i]); isConst {
		loc, err := Zone(s)
		if err != nil {
			return nil, fail(name, i, err.Error(), "zones are called like `Europe/Berlin`")
		}
		return func([]Value) (*time.Location, Code) { return loc, CodeNone }, nil
	}
	return func(v []Value) (*time.Location, Code) {
		loc, err := Zone(v[i].S)
		if err != nil {
			return nil, CodeBadPattern
		}
		return loc, CodeNone
	}, nil
}

// clock is the local time of ns in seconds since 1970.
func clock(ns int64, loc *time.Location) int64 {
	return FloorDiv(ns, nsPerSecond) + ZoneOffset(ns, loc)
}

func timeField(f TimeField) resolver {
	params := "t?s"
	if f != FieldHour && f != FieldMinute && f != FieldSecond {
		params = "T?s"
	}
	return func(name string, args []Arg) (*Func, error) {
		fn, err := sig(params, TypeInt64, nil)(name, args)
		if err != nil {
			return nil, err
		}
		zone, err := zoneArg(name, args, 1)
		if err != nil {
			return nil, err
		}
		if fn.Args[0].Kind == KindDate {
			if len(args) > 1 {
				return nil, fail(name, 1, "a date has no zone", "leave the zone out")
			}
			fn.Eval = func(v []Value) (Value, Code) { return Int(f.OfDay(v[0].I)), CodeNone }
			return fn, nil
		}
		fn.Eval = func(v []Value) (Value, Code) {
			loc, c := zone(v)
			if c != CodeNone {
				return Null, c
			}
			return Int(f.Of(clock(v[0].I, loc))), CodeNone
		}
		return fn, nil
	}
}

func resolveDateOf(name string, args []Arg) (*Func, error) {
	fn, err := sig("t?s", TypeDate, nil)(name, args)
	if err != nil {
		return nil, err
	}
	zone, err := zoneArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	fn.Eval = func(v []Value) (Value, Code) {
		loc, c := zone(v)
		if c != CodeNone {
			return Null, c
		}
		return Date(FloorDiv(clock(v[0].I, loc), 86400)), CodeNone
	}
	return fn, nil
}

// Trunc is the largest multiple of step since 1970 that is not above ns.
func Trunc(ns, step int64) (int64, Code) {
	if step <= 0 {
		return 0, CodeDivisionByZero
	}
	r := ns % step
	if r < 0 {
		r += step
	}
	t, ok := SubInt64(ns, r)
	if !ok {
		return 0, CodeTimeRange
	}
	return t, CodeNone
}

func resolveTrunc(name string, args []Arg) (*Func, error) {
	if len(args) == 2 && args[1].Const != nil && args[1].Const.Kind == KindDuration && args[1].Const.I <= 0 {
		return nil, fail(name, 1, "the step must be positive", "")
	}
	if len(args) > 0 && args[0].Type.Kind == KindDuration {
		return sig("dd", TypeDuration, evalTrunc(KindDuration))(name, args)
	}
	return sig("td", TypeTime, evalTrunc(KindTime))(name, args)
}

func evalTrunc(k Kind) evalFn {
	return func(v []Value) (Value, Code) {
		t, c := Trunc(v[0].I, v[1].I)
		if c != CodeNone {
			return Null, c
		}
		return Value{Kind: k, I: t}, CodeNone
	}
}

func resolveTruncTo(name string, args []Arg) (*Func, error) {
	fn, err := sig("tz?s", TypeTime, nil)(name, args)
	if err != nil {
		return nil, err
	}
	unit, _ := constString(args[1])
	floor, known := calendarUnits[unit]
	if !known {
		return nil, fail(name, 1, fmt.Sprintf("no unit `%s`", unit), "there are second minute hour day week month quarter year")
	}
	zone, err := zoneArg(name, args, 2)
	if err != nil {
		return nil, err
	}
	fn.Eval = func(v []Value) (Value, Code) {
		loc, c := zone(v)
		if c != CodeNone {
			return Null, c
		}
		wall := floor(clock(v[0].I, loc))
		off := wallOffset(wall, loc)
		// In a repeated hour the later pass keeps its own offset.
		if now := ZoneOffset(v[0].I, loc); now != off && v[0].I-(wall-now)*nsPerSecond < int64(time.Hour) && ZoneOffset((wall-now)*nsPerSecond, loc) == now {
			off = now
		}
		ns, fits := nanos(wall-off, 0)
		if !fits {
			return Null, CodeTimeRange
		}
		return Time(ns), CodeNone
	}
	return fn, nil
}

// calendarUnits floor seconds on a clock to the start of a unit.
var calendarUnits = map[string]func(sec int64) int64{
	"second": func(s int64) int64 { return s },
	"minute": func(s int64) int64 { return FloorDiv(s, 60) * 60 },
	"hour":   func(s int64) int64 { return FloorDiv(s, 3600) * 3600 },
	"day":    func(s int64) int64 { return FloorDiv(s, 86400) * 86400 },
	"week":   func(s int64) int64 { return (FloorDiv(FloorDiv(s, 86400)+3, 7)*7 - 3) * 86400 },
	"month": func(s int64) int64 {
		y, m, _ := Civil(FloorDiv(s, 86400))
		return DaysOf(y, m, 1) * 86400
	},
	"quarter": func(s int64) int64 {
		y, m, _ := Civil(FloorDiv(s, 86400))
		return DaysOf(y, (m-1)/3*3+1, 1) * 86400
	},
	"year": func(s int64) int64 {
		y, _, _ := Civil(FloorDiv(s, 86400))
		return DaysOf(y, 1, 1) * 86400
	},
}

func layoutArg(name string, args []Arg, i int) (*Layout, error) {
	s, isConst := constString(args[i])
	if !isConst {
		return nil, fail(name, i, "the layout must be a constant", "write it as a literal")
	}
	l, err := ParseLayout(s)
	if err != nil {
		suggestion := ""
		if better := SuggestLayout(s); better != "" {
			suggestion = "write `" + better + "`"
		}
		return nil, fail(name, i, err.Error(), suggestion)
	}
	return l, nil
}

func resolveParseTime(name string, args []Arg) (*Func, error) {
	fn, err := sig("sz?s", TypeTime, nil)(name, args)
	if err != nil {
		return nil, err
	}
	l, err := layoutArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	zone, err := zoneArg(name, args, 2)
	if err != nil {
		return nil, err
	}
	fn.Eval = func(v []Value) (Value, Code) {
		loc, c := zone(v)
		if c != CodeNone {
			return Null, c
		}
		ns, c := l.Parse(v[0].S, loc)
		if c != CodeNone {
			return Null, c
		}
		return Time(ns), CodeNone
	}
	return fn, nil
}

func resolveFmt(name string, args []Arg) (*Func, error) {
	fn, err := sig("Tz?s", TypeString, nil)(name, args)
	if err != nil {
		return nil, err
	}
	l, err := layoutArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	zone, err := zoneArg(name, args, 2)
	if err != nil {
		return nil, err
	}
	if fn.Args[0].Kind == KindDate {
		if len(args) > 2 {
			return nil, fail(name, 2, "a date has no zone", "leave the zone out")
		}
		fn.Eval = func(v []Value) (Value, Code) {
			// A date may lie where no time in nanoseconds reaches; write it from its days.
			return String(string(l.appendAt(nil, v[0].I*86400, 0, 0))), CodeNone
		}
		return fn, nil
	}
	fn.Eval = func(v []Value) (Value, Code) {
		loc, c := zone(v)
		if c != CodeNone {
			return Null, c
		}
		return String(string(l.Append(nil, v[0].I, ZoneOffset(v[0].I, loc)))), CodeNone
	}
	return fn, nil
}

func unitArg(name string, args []Arg, i int) (int64, error) {
	s, _ := constString(args[i])
	u := EpochUnit(s)
	if u == 0 {
		return 0, fail(name, i, fmt.Sprintf("no unit `%s`", s), "there are `s`, `ms`, `us` and `ns`")
	}
	return u, nil
}

func resolveEpoch(name string, args []Arg) (*Func, error) {
	fn, err := sig("tz", TypeInt64, nil)(name, args)
	if err != nil {
		return nil, err
	}
	u, err := unitArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	fn.Eval = func(v []Value) (Value, Code) { return Int(FloorDiv(v[0].I, u)), CodeNone }
	return fn, nil
}

func resolveFromEpoch(name string, args []Arg) (*Func, error) {
	fn, err := sig("iz", TypeTime, nil)(name, args)
	if err != nil {
		return nil, err
	}
	u, err := unitArg(name, args, 1)
	if err != nil {
		return nil, err
	}
	fn.Eval = func(v []Value) (Value, Code) {
		ns, c := FromEpoch(v[0].I, u)
		if c != CodeNone {
			return Null, c
		}
		return Time(ns), CodeNone
	}
	return fn, nil
}
