package scalar

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

const (
	nsPerSecond = int64(time.Second)
	nsPerDay    = 24 * int64(time.Hour)
)

// FloorDiv is a / b rounded toward minus infinity; b is positive.
func FloorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Civil gives the date of a day number since 1970 in the proleptic Gregorian calendar.
func Civil(days int64) (year, month, day int64) {
	// Hinnant's civil_from_days: eras of 400 years that begin on March 1.
	z := days + 719468
	era := FloorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = doy - (153*mp+2)/5 + 1
	month = mp + 3
	if month > 12 {
		month -= 12
	}
	year = yoe + era*400
	if month <= 2 {
		year++
	}
	return year, month, day
}

// DaysOf is the day number since 1970 of a date; day may exceed the month.
func DaysOf(year, month, day int64) int64 {
	if month <= 2 {
		year--
	}
	era := FloorDiv(year, 400)
	yoe := year - era*400
	mp := month - 3
	if month <= 2 {
		mp = month + 9
	}
	doy := (153*mp+2)/5 + day - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

func daysInMonth(year, month int64) int64 {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// nanos puts seconds and a fraction together and says whether the result is a time.
func nanos(sec, frac int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(abs64(sec)), uint64(nsPerSecond))
	v := Int128{int64(hi), lo}
	if sec < 0 {
		v = v.Neg()
	}
	v, _ = v.Add(Int128Of(frac))
	return v.Int64()
}

func abs64(i int64) int64 {
	if i < 0 {
		return -i
	}
	return i
}

func appendInt(dst []byte, v int64, width int) []byte {
	if v < 0 {
		dst = append(dst, '-')
		v = -v
	}
	var buf [20]byte
	i := len(buf)
	for v > 0 || len(buf)-i < width {
		i--
		buf[i] = byte('0' + v%10)
		v /= 10
	}
	return append(dst, buf[i:]...)
}

// AppendDate appends days since 1970 as 2006-01-02.
func AppendDate(dst []byte, days int64) []byte {
	y, m, d := Civil(days)
	dst = appendInt(dst, y, 4)
	dst = append(dst, '-')
	dst = appendInt(dst, m, 2)
	dst = append(dst, '-')
	return appendInt(dst, d, 2)
}

// AppendTime appends nanoseconds since 1970 as RFC 3339 in UTC, with as many fraction digits as needed.
func AppendTime(dst []byte, ns int64) []byte {
	days := FloorDiv(ns, nsPerDay)
	rest := ns - days*nsPerDay
	sec, frac := rest/nsPerSecond, rest%nsPerSecond
	dst = AppendDate(dst, days)
	dst = append(dst, 'T', byte('0'+sec/36000), byte('0'+sec/3600%10), ':',
		byte('0'+sec/600%6), byte('0'+sec/60%10), ':', byte('0'+sec%60/10), byte('0'+sec%10))
	if frac != 0 {
		dst = append(dst, '.')
		dst = appendInt(dst, frac, 9)
		for dst[len(dst)-1] == '0' {
			dst = dst[:len(dst)-1]
		}
	}
	return append(dst, 'Z')
}

// ParseTime reads RFC 3339: a date, then optionally `T` or a space and a time of day with up to nine
// fraction digits, then `Z`, an offset, or nothing, which means UTC.
//
// Errors: CodeBadCast, CodeTimeRange.
func ParseTime(s string) (int64, Code) {
	days, s, ok := cutDate(s)
	if !ok {
		return 0, CodeBadCast
	}
	var sec, frac, off int64
	if s != "" {
		if s[0] != 'T' && s[0] != 't' && s[0] != ' ' {
			return 0, CodeBadCast
		}
		if sec, frac, s, ok = cutClock(s[1:]); !ok {
			return 0, CodeBadCast
		}
		if off, s, ok = cutOffset(s); !ok || s != "" {
			return 0, CodeBadCast
		}
	}
	ns, ok := nanos(days*86400+sec-off, frac)
	if !ok {
		return 0, CodeTimeRange
	}
	return ns, CodeNone
}

// ParseDate reads 2006-01-02 into days since 1970.
func ParseDate(s string) (int64, Code) {
	days, rest, ok := cutDate(s)
	if !ok || rest != "" {
		return 0, CodeBadCast
	}
	return days, CodeNone
}

func cutNumber(s string, width int) (int64, string, bool) {
	if len(s) < width {
		return 0, s, false
	}
	var v int64
	for i := range width {
		c := s[i] - '0'
		if c > 9 {
			return 0, s, false
		}
		v = v*10 + int64(c)
	}
	return v, s[width:], true
}

func cutDate(s string) (int64, string, bool) {
	if len(s) < 10 || s[4] != '-' || s[7] != '-' {
		return 0, s, false
	}
	y, _, ok1 := cutNumber(s, 4)
	m, _, ok2 := cutNumber(s[5:], 2)
	d, rest, ok3 := cutNumber(s[8:], 2)
	if !ok1 || !ok2 || !ok3 || m < 1 || m > 12 || d < 1 || d > daysInMonth(y, m) {
		return 0, s, false
	}
	return DaysOf(y, m, d), rest, true
}

// cutClock reads HH:mm[:ss[.fraction]].
func cutClock(s string) (sec, frac int64, rest string, ok bool) {
	h, s, ok1 := cutNumber(s, 2)
	if !ok1 || h > 23 || s == "" || s[0] != ':' {
		return 0, 0, s, false
	}
	m, s, ok2 := cutNumber(s[1:], 2)
	if !ok2 || m > 59 {
		return 0, 0, s, false
	}
	sec = h*3600 + m*60
	if s == "" || s[0] != ':' {
		return sec, 0, s, true
	}
	x, s, ok3 := cutNumber(s[1:], 2)
	if !ok3 || x > 59 {
		return 0, 0, s, false
	}
	sec += x
	if s != "" && s[0] == '.' {
		n := 1
		scale := nsPerSecond
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			if n > 9 {
				return 0, 0, s, false
			}
			scale /= 10
			frac += int64(s[n]-'0') * scale
			n++
		}
		if n == 1 {
			return 0, 0, s, false
		}
		s = s[n:]
	}
	return sec, frac, s, true
}

func cutOffset(s string) (int64, string, bool) {
	if s == "" {
		return 0, s, true
	}
	switch s[0] {
	case 'Z', 'z':
		return 0, s[1:], true
	case '+', '-':
		h, r, ok1 := cutNumber(s[1:], 2)
		if !ok1 || h > 23 {
			return 0, s, false
		}
		r = strings.TrimPrefix(r, ":")
		m, r, ok2 := cutNumber(r, 2)
		if !ok2 || m > 59 {
			return 0, s, false
		}
		off := h*3600 + m*60
		if s[0] == '-' {
			off = -off
		}
		return off, r, true
	}
	return 0, s, false
}

var durationUnits = []struct {
	name string
	ns   int64
}{
	{"d", nsPerDay},
	{"h", int64(time.Hour)},
	{"m", int64(time.Minute)},
	{"s", nsPerSecond},
	{"ms", int64(time.Millisecond)},
	{"us", int64(time.Microsecond)},
	{"ns", 1},
}

// AppendDuration appends a duration as the language writes it: "1h30m", "1d", "-500ms", "0s".
func AppendDuration(dst []byte, ns int64) []byte {
	if ns == 0 {
		return append(dst, "0s"...)
	}
	u := uint64(ns)
	if ns < 0 {
		dst = append(dst, '-')
		u = -u
	}
	for _, unit := range durationUnits {
		if n := u / uint64(unit.ns); n > 0 {
			dst = strconv.AppendUint(dst, n, 10)
			dst = append(dst, unit.name...)
			u -= n * uint64(unit.ns)
		}
	}
	return dst
}

// ParseDuration reads what AppendDuration writes, weeks (`w`) and fractions of a unit ("1.5h") too.
//
// Errors: CodeBadCast, CodeOverflow.
func ParseDuration(s string) (int64, Code) {
	neg := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg = s[0] == '-'
		s = s[1:]
	}
	if s == "" {
		return 0, CodeBadCast
	}
	var sum Int128
	for s != "" {
		n := 0
		for n < len(s) && (s[n] >= '0' && s[n] <= '9' || s[n] == '.') {
			n++
		}
		d, _, scale, ok := ParseDecimal(s[:n])
		if !ok {
			return 0, CodeBadCast
		}
		s = s[n:]
		n = 0
		for n < len(s) && s[n] >= 'a' && s[n] <= 'z' {
			n++
		}
		unit := int64(0)
		if s[:n] == "w" {
			unit = 7 * nsPerDay
		}
		for _, u := range durationUnits {
			if u.name == s[:n] {
				unit = u.ns
			}
		}
		if unit == 0 {
			return 0, CodeBadCast
		}
		s = s[n:]
		v, ok := d.Mul(Int128Of(unit))
		if !ok {
			return 0, CodeOverflow
		}
		if scale > 0 {
			var r Int128
			if v, r = v.QuoRem(pow10[scale]); !r.IsZero() {
				return 0, CodeBadCast // finer than a nanosecond
			}
		}
		if sum, ok = sum.Add(v); !ok {
			return 0, CodeOverflow
		}
	}
	if neg {
		sum = sum.Neg()
	}
	ns, ok := sum.Int64()
	if !ok {
		return 0, CodeOverflow
	}
	return ns, CodeNone
}

// EpochUnit is the length in nanoseconds of "s", "ms", "us" or "ns", or 0.
func EpochUnit(unit string) int64 {
	switch unit {
	case "s":
		return nsPerSecond
	case "ms":
		return int64(time.Millisecond)
	case "us":
		return int64(time.Microsecond)
	case "ns":
		return 1
	}
	return 0
}

// FromEpoch is n units since 1970 as a time. Errors: CodeTimeRange.
func FromEpoch(n, unit int64) (int64, Code) {
	if n > math.MaxInt64/unit || n < math.MinInt64/unit {
		return 0, CodeTimeRange
	}
	return n * unit, CodeNone
}
