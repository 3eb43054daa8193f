package scalar

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
)

// DecimalAdd adds two decimals of one scale.
func DecimalAdd(a, b Int128, p int32) (Int128, Code) {
	r, ok := a.Add(b)
	return checkDigits(r, ok, p)
}

// DecimalSub subtracts two decimals of one scale.
func DecimalSub(a, b Int128, p int32) (Int128, Code) {
	r, ok := a.Sub(b)
	return checkDigits(r, ok, p)
}

// DecimalMul multiplies; the scales add.
func DecimalMul(a, b Int128, p int32) (Int128, Code) {
	r, ok := a.Mul(b)
	return checkDigits(r, ok, p)
}

func checkDigits(r Int128, ok bool, p int32) (Int128, Code) {
	if !ok || !r.FitsDigits(p) {
		return Int128{}, CodeDecimalOverflow
	}
	return r, CodeNone
}

// DecimalDiv is a / b rounded half-even to a scale that is shift digits finer than that of a without
// b's: the caller passes shift = scale - scaleA + scaleB, which is never negative.
func DecimalDiv(a, b Int128, shift, p int32) (Int128, Code) {
	if b.IsZero() {
		return Int128{}, CodeDivisionByZero
	}
	if shift <= MaxPrecision {
		if n, ok := a.Mul(pow10[shift]); ok {
			return checkDigits(roundHalfEven(n, b), true, p)
		}
	}
	n := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(shift)), nil)
	n.Mul(n, a.Big())
	d := b.Big()
	q, r := new(big.Int).QuoRem(n, d, new(big.Int))
	r.Abs(r.Lsh(r, 1))
	if c := r.Cmp(new(big.Int).Abs(d)); c > 0 || c == 0 && q.Bit(0) == 1 {
		if n.Sign() == d.Sign() {
			q.Add(q, big.NewInt(1))
		} else {
			q.Sub(q, big.NewInt(1))
		}
	}
	v, ok := Int128FromBig(q)
	return checkDigits(v, ok, p)
}

// roundHalfEven is n / d to the nearest integer, ties to even. d is not 0.
func roundHalfEven(n, d Int128) Int128 {
	q, r := n.QuoRem(d)
	return adjust(q, r, d, n.Hi < 0 != (d.Hi < 0), q.Lo&1 == 1)
}

// adjust moves q one away from zero if the remainder is more than half of d, or half and tieUp.
func adjust(q, r, d Int128, neg, tieUp bool) Int128 {
	r, d = r.abs(), d.abs()
	// 2r against d without overflow: r against d - r.
	rest, _ := d.Sub(r)
	if c := cmpUnsigned(r, rest); c > 0 || c == 0 && tieUp {
		one := Int128{0, 1}
		if neg {
			q, _ = q.Sub(one)
		} else {
			q, _ = q.Add(one)
		}
	}
	return q
}

func cmpUnsigned(a, b Int128) int {
	return Int128{a.Hi ^ math.MinInt64, a.Lo}.Cmp(Int128{b.Hi ^ math.MinInt64, b.Lo})
}

// DecimalRescale changes the scale of a, half-even when digits go, and checks the new precision.
func DecimalRescale(a Int128, from, to, p int32) (Int128, Code) {
	switch {
	case to > from:
		r, ok := a.Mul(pow10[to-from])
		return checkDigits(r, ok, p)
	case to < from:
		return checkDigits(roundHalfEven(a, pow10[from-to]), true, p)
	}
	return checkDigits(a, true, p)
}

// DecimalCompare compares decimals of any scales exactly.
func DecimalCompare(a Int128, sa int32, b Int128, sb int32) int {
	switch {
	case sa < sb:
		if x, ok := a.Mul(pow10[sb-sa]); ok {
			return x.Cmp(b)
		}
		return a.Sign() // too large to be anything but further from zero
	case sa > sb:
		if y, ok := b.Mul(pow10[sa-sb]); ok {
			return a.Cmp(y)
		}
		return -b.Sign()
	}
	return a.Cmp(b)
}

// decimalMod is the remainder of truncated division at the finer of both scales; it has the sign of a.
func decimalMod(a Int128, sa int32, b Int128, sb, p int32) (Int128, Code) {
	if b.IsZero() {
		return Int128{}, CodeDivisionByZero
	}
	s := max(sa, sb)
	x, ok1 := a.Mul(pow10[s-sa])
	y, ok2 := b.Mul(pow10[s-sb])
	if ok1 && ok2 {
		_, r := x.QuoRem(y)
		return checkDigits(r, true, p)
	}
	scale := func(v Int128, k int32) *big.Int { return new(big.Int).Mul(v.Big(), pow10[k].Big()) }
	r := new(big.Int).Rem(scale(a, s-sa), scale(b, s-sb))
	v, ok := Int128FromBig(r)
	return checkDigits(v, ok, p)
}

// DecimalToFloat is the nearest float64.
func DecimalToFloat(a Int128, scale int32) float64 {
	// Both operands exact means one correctly rounded division.
	if i, ok := a.Int64(); ok && scale <= 22 && i > -1<<53 && i < 1<<53 {
		return float64(i) / float64pow10[scale]
	}
	f, _ := strconv.ParseFloat(string(AppendDecimal(nil, a, scale)), 64)
	return f
}

var float64pow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// DecimalFromFloat converts by way of the shortest text of f, so that 0.1 becomes 0.1.
func DecimalFromFloat(f float64, p, s int32) (Int128, Code) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return Int128{}, CodeBadCast
	}
	var buf [32]byte
	return ParseDecimalAs(string(strconv.AppendFloat(buf[:0], f, 'e', -1, 64)), p, s)
}

// AppendDecimal appends a as plain text with exactly scale digits after the point.
func AppendDecimal(dst []byte, a Int128, scale int32) []byte {
	if a.Hi < 0 {
		dst = append(dst, '-')
	}
	var buf [40]byte
	i := len(buf)
	x := a.abs()
	hi, lo := uint64(x.Hi), x.Lo
	for hi != 0 {
		// Take 19 digits at a time.
		const chunk = 1e19
		var q, r uint64
		qh := hi / chunk
		q, r = bits.Div64(hi%chunk, lo, chunk)
		hi, lo = qh, q
		for range 19 {
			i--
			buf[i] = byte('0' + r%10)
			r /= 10
		}
	}
	for lo != 0 {
		i--
		buf[i] = byte('0' + lo%10)
		lo /= 10
	}
	// The chunks may have left zeros in front.
	for i < len(buf) && buf[i] == '0' {
		i++
	}
	for len(buf)-i < int(scale)+1 {
		i--
		buf[i] = '0'
	}
	point := len(buf) - int(scale)
	dst = append(dst, buf[i:point]...)
	if scale > 0 {
		dst = append(dst, '.')
		dst = append(dst, buf[point:]...)
	}
	return dst
}

// ParseDecimal reads digits with an optional sign, point and exponent, exactly: the unscaled value and
// the smallest precision and scale that hold it as written ("1.50" has scale 2, "2e3" scale 0).
func ParseDecimal(text string) (d Int128, p, s int32, ok bool) {
	neg, digits, exp, ok := scanDecimal(text)
	if !ok {
		return Int128{}, 0, 0, false
	}
	digits = strings.TrimLeft(digits, "0")
	if exp > 0 && digits != "" {
		if len(digits)+exp > MaxPrecision {
			return Int128{}, 0, 0, false
		}
		digits += strings.Repeat("0", exp)
	}
	if exp > 0 {
		exp = 0
	}
	if len(digits) > MaxPrecision || -exp > MaxPrecision {
		return Int128{}, 0, 0, false
	}
	d = parseDigits(digits)
	if neg {
		d = d.Neg()
	}
	s = int32(-exp)
	return d, max(int32(len(digits)), s, 1), s, true
}

// ParseDecimalAs reads text into decimal(p,s), half-even when it has more digits than the scale.
// Errors: CodeBadCast if it is no number, CodeDecimalOverflow if it does not fit.
func ParseDecimalAs(text string, p, s int32) (Int128, Code) {
	neg, digits, exp, ok := scanDecimal(text)
	if !ok {
		return Int128{}, CodeBadCast
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return Int128{}, CodeNone
	}
	// The number is digits * 10^exp; unscaled is that times 10^s.
	shift := exp + int(s)
	var d Int128
	switch {
	case shift >= 0:
		if len(digits)+shift > int(p) {
			return Int128{}, CodeDecimalOverflow
		}
		d, _ = parseDigits(digits).Mul(pow10[shift])
	default:
		cut := len(digits) + shift
		if cut > int(p) {
			return Int128{}, CodeDecimalOverflow
		}
		keep, rest := "", digits
		if cut >= 0 {
			keep, rest = digits[:cut], digits[cut:]
		}
		d = parseDigits(keep)
		up := false
		if cut >= 0 {
			tail := strings.TrimRight(rest, "0")
			up = tail > "5" || tail == "5" && d.Lo&1 == 1
		}
		if up {
			d, _ = d.Add(Int128{0, 1})
		}
	}
	if neg {
		d = d.Neg()
	}
	return checkDigits(d, true, p)
}

// scanDecimal splits text into sign, digits without point, and the exponent that makes up for it.
func scanDecimal(text string) (neg bool, digits string, exp int, ok bool) {
	s := text
	if s != "" && (s[0] == '-' || s[0] == '+') {
		neg = s[0] == '-'
		s = s[1:]
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.Atoi(s[i+1:])
		if err != nil || e > 10000 || e < -10000 || strings.Contains(s[i+1:], "_") {
			return false, "", 0, false
		}
		exp, s = e, s[:i]
	}
	whole, frac, point := strings.Cut(s, ".")
	if whole == "" && frac == "" || point && frac == "" || len(s) > 10000 {
		return false, "", 0, false
	}
	for i := range len(s) {
		if s[i] != '.' && (s[i] < '0' || s[i] > '9') {
			return false, "", 0, false
		}
	}
	if strings.Contains(frac, ".") {
		return false, "", 0, false
	}
	return neg, whole + frac, exp - len(frac), true
}

// parseDigits reads at most 38 digits.
func parseDigits(s string) (d Int128) {
	for len(s) > 0 {
		n := min(len(s), 18)
		u, _ := strconv.ParseUint(s[:n], 10, 64)
		d, _ = d.Mul(pow10[n])
		d, _ = d.Add(Uint128Of(u))
		s = s[n:]
	}
	return d
}

// decimalOfFloatLiteral is the decimal that the shortest text of f denotes.
func decimalOfFloatLiteral(f float64) (Type, bool) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return Type{}, false
	}
	_, p, s, ok := ParseDecimal(strconv.FormatFloat(f, 'f', -1, 64))
	return DecimalType(p, s), ok
}
