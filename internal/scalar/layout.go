package scalar

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// ZoneVersion is the release of the time zone database that is built in. The host's is never read, so
// that a replay on another machine finds the same hours.
const ZoneVersion = "2025c"

//go:embed zoneinfo/zoneinfo.zip
var zoneinfo []byte

var zones struct {
	once   sync.Once
	files  map[string]*zip.File
	err    error
	loaded sync.Map // name -> *time.Location
}

// Zone finds a time zone by its name in the built-in database. "" and "UTC" are UTC. Errors name the
// zone.
func Zone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if l, ok := zones.loaded.Load(name); ok {
		return l.(*time.Location), nil
	}
	zones.once.Do(func() {
		r, err := zip.NewReader(bytes.NewReader(zoneinfo), int64(len(zoneinfo)))
		if err != nil {
			zones.err = err
			return
		}
		zones.files = make(map[string]*zip.File, len(r.File))
		for _, f := range r.File {
			zones.files[f.Name] = f
		}
	})
	f := zones.files[name]
	if f == nil || strings.HasSuffix(name, "/") {
		return nil, fmt.Errorf("no time zone `%s`", name)
	}
	rc, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("time zone `%s`: %w", name, err)
	}
	defer rc.Close()
	data, err := io.ReadAll(io.LimitReader(rc, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("time zone `%s`: %w", name, err)
	}
	l, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("time zone `%s`: %w", name, err)
	}
	actual, _ := zones.loaded.LoadOrStore(name, l) // bounded by the database
	return actual.(*time.Location), nil
}

// ZoneOffset is what must be added to UTC at ns to read the clock of loc, in seconds.
func ZoneOffset(ns int64, loc *time.Location) int64 {
	if loc == time.UTC {
		return 0
	}
	_, off := time.Unix(FloorDiv(ns, nsPerSecond), 0).In(loc).Zone()
	return int64(off)
}

// A Layout is a compiled pattern for times. Letters: yyyy MM dd HH mm ss, S for each fraction digit
// (one to nine), XXX for the offset (`Z` or `+08:00`), XX for it without colon (`+0800`), MMM for the month's English name in
// three letters, d for the day without a leading zero (a space before it is read too, as system logs have it). Text in single quotes stands for itself, two
// quotes are one; T, Z and everything that is not a letter need no quotes.
type Layout struct{ items []layoutItem }

type layoutItem struct {
	field   byte // y M d H m s S X, or 0 for literal text
	digits  int
	literal string
}

// ParseLayout compiles a layout. The error says which letters have no meaning.
func ParseLayout(text string) (*Layout, error) {
	l := &Layout{}
	lit := func(s string) {
		if n := len(l.items); n > 0 && l.items[n-1].field == 0 {
			l.items[n-1].literal += s
			return
		}
		l.items = append(l.items, layoutItem{literal: s})
	}
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c == '\'':
			end := strings.IndexByte(text[i+1:], '\'')
			if end < 0 {
				return nil, fmt.Errorf("layout `%s`: a quote is not closed", text)
			}
			if end == 0 {
				lit("'")
			} else {
				lit(text[i+1 : i+1+end])
			}
			i += end + 2
		case c == 'T' || c == 'Z' || c|0x20 < 'a' || c|0x20 > 'z':
			lit(text[i : i+1])
			i++
		default:
			n := 1
			for i+n < len(text) && text[i+n] == c {
				n++
			}
			word := text[i : i+n]
			switch {
			case word == "yyyy" || word == "MM" || word == "dd" || word == "HH" || word == "mm" || word == "ss",
				c == 'S' && n <= 9, word == "XXX", word == "XX", word == "MMM", word == "d":
				l.items = append(l.items, layoutItem{field: c, digits: n})
			default:
				return nil, fmt.Errorf("layout `%s`: `%s` has no meaning; there are yyyy MM MMM dd d HH mm ss SSS XXX XX", text, word)
			}
			i += n
		}
	}
	if len(l.items) == 0 {
		return nil, fmt.Errorf("the layout is empty")
	}
	return l, nil
}

// layoutWords are how other languages write the parts of a layout, longest first.
var layoutWords = strings.NewReplacer(
	"2006", "yyyy", "Jan", "MMM", "-0700", "XX", "01", "MM", "02", "dd", "15", "HH", "04", "mm", "05", "ss", ".000", ".SSS",
	"YYYY", "yyyy", "DD", "dd", "hh24", "HH", "HH24", "HH", "hh", "HH", "MI", "mm", "mi", "mm", "SSS", "SSS", "SS", "ss", "fff", "SSS",
	"%Y", "yyyy", "%m", "MM", "%d", "dd", "%H", "HH", "%M", "mm", "%S", "ss", "%b", "MMM", "%z", "XX", "%F", "yyyy-MM-dd", "%T", "HH:mm:ss",
)

// SuggestLayout turns a layout of another language into one that means the same here, or gives "".
func SuggestLayout(text string) string {
	better := layoutWords.Replace(text)
	if l, err := ParseLayout(better); err != nil || better == text || !l.hasField('y') {
		return ""
	}
	return better
}

func (l *Layout) hasField(f byte) bool {
	for i := range l.items {
		if l.items[i].field == f {
			return true
		}
	}
	return false
}

// Append writes the time ns as the clock that is offset seconds ahead of UTC shows it.
func (l *Layout) Append(dst []byte, ns, offset int64) []byte {
	sec := FloorDiv(ns, nsPerSecond)
	return l.appendAt(dst, sec+offset, ns-sec*nsPerSecond, offset)
}

// appendAt writes the clock sec, in seconds since 1970.
func (l *Layout) appendAt(dst []byte, sec, frac, offset int64) []byte {
	days := FloorDiv(sec, 86400)
	clock := sec - days*86400
	var year, month, day int64
	dated := false
	for i := range l.items {
		it := &l.items[i]
		switch it.field {
		case 0:
			dst = append(dst, it.literal...)
			continue
		case 'y', 'M', 'd':
			if !dated {
				year, month, day = Civil(days)
				dated = true
			}
		}
		switch it.field {
		case 'y':
			dst = appendInt(dst, year, 4)
		case 'M':
			if it.digits == 3 {
				dst = append(dst, monthNames[3*month-3:3*month]...)
				continue
			}
			dst = append(dst, byte('0'+month/10), byte('0'+month%10))
		case 'd':
			if it.digits == 1 && day < 10 {
				dst = append(dst, byte('0'+day))
				continue
			}
			dst = append(dst, byte('0'+day/10), byte('0'+day%10))
		case 'H':
			h := clock / 3600
			dst = append(dst, byte('0'+h/10), byte('0'+h%10))
		case 'm':
			m := clock / 60 % 60
			dst = append(dst, byte('0'+m/10), byte('0'+m%10))
		case 's':
			s := clock % 60
			dst = append(dst, byte('0'+s/10), byte('0'+s%10))
		case 'S':
			dst = appendInt(dst, frac/int64pow10[9-it.digits], it.digits)
		case 'X':
			if it.digits == 2 {
				dst = appendShortOffset(dst, offset)
			} else {
				dst = appendOffset(dst, offset)
			}
		}
	}
	return dst
}

// monthNames are the names of months in logs, three letters each.
const monthNames = "JanFebMarAprMayJunJulAugSepOctNovDec"

// appendShortOffset writes +0000.
func appendShortOffset(dst []byte, offset int64) []byte {
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	dst = appendInt(append(dst, sign), offset/3600, 2)
	return appendInt(dst, offset/60%60, 2)
}

// cutShortOffset reads +0000.
func cutShortOffset(s string) (off int64, rest string, ok bool) {
	if s == "" || s[0] != '+' && s[0] != '-' {
		return 0, s, false
	}
	h, rest, ok := cutNumber(s[1:], 2)
	if !ok {
		return 0, s, false
	}
	m, rest, ok := cutNumber(rest, 2)
	if !ok || h > 23 || m > 59 {
		return 0, s, false
	}
	off = h*3600 + m*60
	if s[0] == '-' {
		off = -off
	}
	return off, rest, true
}

// cutMonth reads the name of a month.
func cutMonth(s string) (month int64, rest string, ok bool) {
	if len(s) < 3 {
		return 0, s, false
	}
	for i := 0; i < len(monthNames); i += 3 {
		if monthNames[i:i+3] == s[:3] {
			return int64(i/3 + 1), s[3:], true
		}
	}
	return 0, s, false
}

// cutDay reads a day of one or two digits; a space stands for a leading zero.
func cutDay(s string) (day int64, rest string, ok bool) {
	s = strings.TrimPrefix(s, " ")
	if day, rest, ok = cutNumber(s, 2); ok {
		return day, rest, true
	}
	return cutNumber(s, 1)
}

func appendOffset(dst []byte, offset int64) []byte {
	if offset == 0 {
		return append(dst, 'Z')
	}
	sign := byte('+')
	if offset < 0 {
		sign, offset = '-', -offset
	}
	dst = append(dst, sign)
	dst = appendInt(dst, offset/3600, 2)
	dst = append(dst, ':')
	return appendInt(dst, offset/60%60, 2)
}

var int64pow10 = [...]int64{1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}

// Parse reads text that follows the layout exactly. Parts that the layout lacks are those of
// 1970-01-01 00:00:00. Without an offset in the text the clock is that of loc; an hour that a change of
// the clock skips or repeats is read with the offset before the change.
//
// Errors: CodeBadCast, CodeTimeRange.
func (l *Layout) Parse(s string, loc *time.Location) (int64, Code) {
	var frac, h, mi, sec, off int64
	year, month, day := int64(1970), int64(1), int64(1)
	zoned := false
	for i := range l.items {
		it := &l.items[i]
		ok := true
		switch it.field {
		case 0:
			s, ok = strings.CutPrefix(s, it.literal)
		case 'y':
			year, s, ok = cutNumber(s, 4)
		case 'M':
			if it.digits == 3 {
				month, s, ok = cutMonth(s)
			} else {
				month, s, ok = cutNumber(s, 2)
			}
		case 'd':
			if it.digits == 1 {
				day, s, ok = cutDay(s)
			} else {
				day, s, ok = cutNumber(s, 2)
			}
		case 'H':
			h, s, ok = cutNumber(s, 2)
		case 'm':
			mi, s, ok = cutNumber(s, 2)
		case 's':
			sec, s, ok = cutNumber(s, 2)
		case 'S':
			frac, s, ok = cutNumber(s, it.digits)
			frac *= int64pow10[9-it.digits]
		case 'X':
			zoned = true
			switch {
			case it.digits == 2:
				off, s, ok = cutShortOffset(s)
			case s == "":
				ok = false
			default:
				off, s, ok = cutOffset(s)
			}
		}
		if !ok {
			return 0, CodeBadCast
		}
	}
	if s != "" || month < 1 || month > 12 || day < 1 || day > daysInMonth(year, month) || h > 23 || mi > 59 || sec > 59 {
		return 0, CodeBadCast
	}
	wall := DaysOf(year, month, day)*86400 + h*3600 + mi*60 + sec
	if !zoned {
		off = wallOffset(wall, loc)
	}
	ns, ok := nanos(wall-off, frac)
	if !ok {
		return 0, CodeTimeRange
	}
	return ns, CodeNone
}

// wallOffset is the offset of loc in force when its clock shows wall (seconds since 1970 on that
// clock); at a gap or a repetition the one before the change.
func wallOffset(wall int64, loc *time.Location) int64 {
	if loc == time.UTC {
		return 0
	}
	at := func(sec int64) int64 {
		_, off := time.Unix(sec, 0).In(loc).Zone()
		return int64(off)
	}
	// Offsets stay within a day, so the one in force a day earlier is the one before any change near.
	before := at(wall - 86400)
	if at(wall-before) == before {
		return before
	}
	after := at(wall + 86400)
	if at(wall-after) == after {
		return after
	}
	return before
}
