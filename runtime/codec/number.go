package codec

import (
	"math"
	"strconv"
	"unsafe"

	"github.com/headrace/headrace/internal/scalar"
)

// A number is a JSON number taken apart. If exact, it is ±mant * 10^exp; otherwise it has too many
// digits for that.
type number struct {
	text  []byte
	neg   bool
	whole bool // neither fraction nor exponent
	exact bool
	mant  uint64
	exp   int
}

// number reads a number by the grammar of JSON.
func (p *parser) number(n *number) bool {
	b, at := p.b, p.at
	from := at
	*n = number{whole: true, exact: true}
	if b[at] == '-' {
		n.neg = true
		at++
	}
	digits := at
	for at < len(b) && b[at]-'0' <= 9 {
		n.mant = n.mant*10 + uint64(b[at]-'0')
		at++
	}
	if at == digits || b[digits] == '0' && at > digits+1 {
		p.at = min(at, digits+1)
		return p.syntax("a number")
	}
	count := at - digits
	if at < len(b) && b[at] == '.' {
		n.whole = false
		at++
		frac := at
		for at < len(b) && b[at]-'0' <= 9 {
			n.mant = n.mant*10 + uint64(b[at]-'0')
			at++
		}
		if at == frac {
			p.at = at
			return p.syntax("a digit")
		}
		n.exp = frac - at
		count += at - frac
	}
	if at < len(b) && b[at]|0x20 == 'e' {
		n.whole = false
		at++
		neg := false
		if at < len(b) && (b[at] == '+' || b[at] == '-') {
			neg = b[at] == '-'
			at++
		}
		start, e := at, 0
		for at < len(b) && b[at]-'0' <= 9 {
			e = min(e*10+int(b[at]-'0'), 1<<20)
			at++
		}
		if at == start {
			p.at = at
			return p.syntax("a digit")
		}
		if neg {
			e = -e
		}
		n.exp += e
	}
	if count > 19 { // 19 digits always fit 64 bits
		n.exact = false
	}
	n.text, p.at = b[from:at], at
	return true
}

// skipNumber checks a number and moves past it.
func (p *parser) skipNumber() bool {
	b, at := p.b, p.at
	if b[at] == '-' {
		at++
	}
	digits := at
	for at < len(b) && b[at]-'0' <= 9 {
		at++
	}
	if at == digits || b[digits] == '0' && at > digits+1 {
		p.at = min(at, digits+1)
		return p.syntax("a number")
	}
	if at < len(b) && (b[at] == '.' || b[at]|0x20 == 'e') {
		var n number
		return p.number(&n)
	}
	p.at = at
	return true
}

// str shares b as a string for the time of a call.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// fromNumber appends a number to a column of numbers, or of times in units.
func (p *parser) fromNumber(c *column, n *number) bool {
	switch k := c.kind; {
	case k.Integer() || k == scalar.KindTime:
		return p.integer(c, n)
	case k == scalar.KindFloat64:
		f, ok := n.float64()
		if !ok {
			return p.fail(scalar.CodeNotFinite, "column %s: %s is out of range for float64", c.name, n.text)
		}
		c.appendWord(int64(math.Float64bits(f)))
		return true
	case k == scalar.KindFloat32:
		f, err := strconv.ParseFloat(str(n.text), 32)
		if err != nil {
			return p.fail(scalar.CodeNotFinite, "column %s: %s is out of range for float32", c.name, n.text)
		}
		c.appendWord(int64(math.Float64bits(f)))
		return true
	case k == scalar.KindDecimal:
		return p.decimal(c, n)
	}
	return p.fail(scalar.CodeWrongType, "column %s: a number, want %s", c.name, c.t.NonNull())
}

var pow10f = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// float64 is the nearest float64, false if there is none.
func (n *number) float64() (float64, bool) {
	if n.exact && n.mant < 1<<53 && n.exp >= -22 && n.exp <= 22 {
		// Both operands are exact, so the result is rounded once.
		f := float64(n.mant)
		if n.neg {
			f = -f
		}
		if n.exp < 0 {
			return f / pow10f[-n.exp], true
		}
		return f * pow10f[n.exp], true
	}
	f, err := strconv.ParseFloat(str(n.text), 64)
	return f, err == nil
}

// limits of the integer kinds.
func intLimits(k scalar.Kind) (lo int64, hi uint64) {
	switch k {
	case scalar.KindInt8:
		return math.MinInt8, math.MaxInt8
	case scalar.KindInt16:
		return math.MinInt16, math.MaxInt16
	case scalar.KindInt32:
		return math.MinInt32, math.MaxInt32
	case scalar.KindUint8:
		return 0, math.MaxUint8
	case scalar.KindUint16:
		return 0, math.MaxUint16
	case scalar.KindUint32:
		return 0, math.MaxUint32
	case scalar.KindUint64:
		return 0, math.MaxUint64
	}
	return math.MinInt64, math.MaxInt64
}

func (p *parser) integer(c *column, n *number) bool {
	if !n.whole {
		return p.fail(scalar.CodeWrongType, "column %s: %s is not an integer", c.name, n.text)
	}
	mant := n.mant
	if !n.exact {
		digits := n.text
		if n.neg {
			digits = digits[1:]
		}
		var err error
		if mant, err = strconv.ParseUint(str(digits), 10, 64); err != nil {
			return p.outOfRange(c, n.text)
		}
	}
	lo, hi := intLimits(c.kind)
	var w int64
	switch {
	case !n.neg:
		if mant > hi {
			return p.outOfRange(c, n.text)
		}
		w = int64(mant)
	case mant <= uint64(-(lo+1))+1 && lo < 0 || mant == 0:
		w = int64(-mant)
	default:
		return p.outOfRange(c, n.text)
	}
	if c.kind == scalar.KindTime {
		var code scalar.Code
		if w, code = scalar.FromEpoch(w, c.layout.unit); code != scalar.CodeNone {
			return p.outOfRange(c, n.text)
		}
	}
	c.appendWord(w)
	return true
}

func (p *parser) outOfRange(c *column, text []byte) bool {
	code := scalar.CodeOverflow
	if c.kind == scalar.KindTime {
		code = scalar.CodeTimeRange
	}
	if len(text) > 60 {
		text = append(append([]byte(nil), text[:60]...), "..."...)
	}
	return p.fail(code, "column %s: %s is out of range for %s", c.name, text, c.t.NonNull())
}

func (p *parser) decimal(c *column, n *number) bool {
	var d scalar.Int128
	scale := -n.exp
	switch {
	case n.exact && n.mant == 0:
		scale = 0
	case n.exact && scale >= 0 && scale <= scalar.MaxPrecision:
		d = scalar.Uint128Of(n.mant)
		if n.neg {
			d = d.Neg()
		}
	default:
		var s int32
		var ok bool
		d, _, s, ok = scalar.ParseDecimal(str(n.text))
		if !ok {
			return p.decimalRange(c, n.text)
		}
		scale = int(s)
	}
	want := int(c.t.Scale)
	if scale > want {
		q, r := d.QuoRem(scalar.Pow10(int32(scale - want)))
		if !r.IsZero() {
			return p.fail(scalar.CodeDecimalOverflow, "column %s: %s has more than %d digits after the point", c.name, n.text, want)
		}
		d = q
	} else if scale < want && !d.IsZero() {
		var ok bool
		if d, ok = d.Mul(scalar.Pow10(int32(want - scale))); !ok {
			return p.decimalRange(c, n.text)
		}
	}
	if !d.FitsDigits(c.t.Precision) {
		return p.decimalRange(c, n.text)
	}
	c.appendDec(d)
	return true
}

func (p *parser) decimalRange(c *column, text []byte) bool {
	if len(text) > 60 {
		text = append(append([]byte(nil), text[:60]...), "..."...)
	}
	return p.fail(scalar.CodeDecimalOverflow, "column %s: %s does not fit %s", c.name, text, c.t.NonNull())
}
