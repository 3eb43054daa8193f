package codec

import (
	"encoding/base64"
	"math"
	"slices"
	"strconv"

	"github.com/headrace/headrace/internal/scalar"
)

// fromText appends a value written as plain text: JSON strings of times, dates, durations and bytes, map
// keys, and CSV fields. text is UTF-8 where it comes from JSON.
func (p *parser) fromText(c *column, text []byte) bool {
	var w int64
	code := scalar.CodeNone
	switch k := c.kind; {
	case k == scalar.KindString:
		return c.appendBytes(text) || p.tooLarge(c)
	case k == scalar.KindBytes:
		from := len(c.data)
		n := base64.StdEncoding.DecodedLen(len(text))
		if from+n > math.MaxInt32 {
			return p.tooLarge(c)
		}
		c.data = slices.Grow(c.data, n)[:from+n]
		n, err := base64.StdEncoding.Strict().Decode(c.data[from:], text)
		if err != nil {
			c.data = c.data[:from]
			return p.unreadable(c, text, "base64")
		}
		c.data = c.data[:from+n]
		c.endBytes()
		return true
	case k == scalar.KindBool:
		switch string(text) {
		case "true":
			w = 1
		case "false":
		default:
			return p.unreadable(c, text, "true or false")
		}
	case k == scalar.KindDuration:
		if w, code = scalar.ParseDuration(str(text)); code != scalar.CodeNone {
			return p.unreadable(c, text, "a duration like 1h30m")
		}
	case k == scalar.KindDate:
		if w, code = scalar.ParseDate(str(text)); code != scalar.CodeNone {
			return p.unreadable(c, text, "a date like 2006-01-02")
		}
	case k == scalar.KindTime && c.layout.unit == 0:
		want := "an RFC 3339 time"
		if c.layout.layout != nil {
			want = "a time like " + c.layout.text
			w, code = c.layout.layout.Parse(str(text), c.layout.zone)
		} else {
			w, code = scalar.ParseTime(str(text))
		}
		switch code {
		case scalar.CodeNone:
		case scalar.CodeTimeRange:
			return p.outOfRange(c, text)
		default:
			return p.unreadable(c, text, want)
		}
	case k == scalar.KindList || k == scalar.KindMap || k == scalar.KindStruct:
		return p.unreadable(c, text, "JSON") // only reached for map keys, which newColumn refuses
	default:
		return p.numberText(c, text)
	}
	c.appendWord(w)
	return true
}

// numberText reads a number from text that holds nothing else.
func (p *parser) numberText(c *column, text []byte) bool {
	b, at := p.b, p.at
	defer func() { p.b, p.at = b, at }()
	p.b, p.at = text, 0
	var n number
	if len(text) == 0 || text[0] != '-' && text[0]-'0' > 9 || !p.number(&n) || p.at < len(text) {
		return p.unreadable(c, text, "a number")
	}
	return p.fromNumber(c, &n)
}

func (p *parser) unreadable(c *column, text []byte, want string) bool {
	if len(text) > 60 {
		text = append(append([]byte(nil), text[:60]...), "..."...)
	}
	return p.fail(scalar.CodeWrongType, "column %s: %s is not %s", c.name, strconv.Quote(string(text)), want)
}
