package scalar

import (
	"cmp"
	"math/big"
	"math/bits"
)

// An Int128 is a two's complement integer of 128 bits: the digits of a decimal without its point.
type Int128 struct {
	Hi int64
	Lo uint64
}

// Int128Of widens i.
func Int128Of(i int64) Int128 { return Int128{i >> 63, uint64(i)} }

// Uint128Of widens u.
func Uint128Of(u uint64) Int128 { return Int128{0, u} }

// IsZero says whether a is 0.
func (a Int128) IsZero() bool { return a.Hi == 0 && a.Lo == 0 }

// Sign is -1, 0 or 1.
func (a Int128) Sign() int {
	switch {
	case a.Hi < 0:
		return -1
	case a.Hi == 0 && a.Lo == 0:
		return 0
	}
	return 1
}

// Cmp compares by value.
func (a Int128) Cmp(b Int128) int {
	if a.Hi != b.Hi {
		return cmp.Compare(a.Hi, b.Hi)
	}
	return cmp.Compare(a.Lo, b.Lo)
}

// Int64 is a as an int64 if it fits.
func (a Int128) Int64() (int64, bool) {
	i := int64(a.Lo)
	return i, a.Hi == i>>63
}

// Uint64 is a as a uint64 if it fits.
func (a Int128) Uint64() (uint64, bool) { return a.Lo, a.Hi == 0 }

// Neg is -a, wrapping at the smallest value.
func (a Int128) Neg() Int128 {
	lo, c := bits.Add64(^a.Lo, 1, 0)
	return Int128{int64(uint64(^a.Hi) + c), lo}
}

// Abs is the magnitude of a; the smallest value stays itself and reads as 2^127 unsigned.
func (a Int128) abs() Int128 {
	if a.Hi < 0 {
		return a.Neg()
	}
	return a
}

// Add is a + b and whether it fits.
func (a Int128) Add(b Int128) (Int128, bool) {
	lo, c := bits.Add64(a.Lo, b.Lo, 0)
	hi := int64(uint64(a.Hi) + uint64(b.Hi) + c)
	r := Int128{hi, lo}
	return r, (a.Hi^hi)&(b.Hi^hi) >= 0
}

// Sub is a - b and whether it fits.
func (a Int128) Sub(b Int128) (Int128, bool) {
	lo, c := bits.Sub64(a.Lo, b.Lo, 0)
	hi := int64(uint64(a.Hi) - uint64(b.Hi) - c)
	return Int128{hi, lo}, (a.Hi^b.Hi)&(a.Hi^hi) >= 0
}

// Mul is a * b and whether it fits.
func (a Int128) Mul(b Int128) (Int128, bool) {
	x, y := a.abs(), b.abs()
	neg := (a.Hi < 0) != (b.Hi < 0)
	xh, yh := uint64(x.Hi), uint64(y.Hi)
	if xh != 0 && yh != 0 {
		return Int128{}, false
	}
	hi, lo := bits.Mul64(x.Lo, y.Lo)
	c1, m1 := bits.Mul64(xh, y.Lo)
	c2, m2 := bits.Mul64(x.Lo, yh)
	hi, k1 := bits.Add64(hi, m1, 0)
	hi, k2 := bits.Add64(hi, m2, 0)
	if c1|c2|k1|k2 != 0 {
		return Int128{}, false
	}
	r := Int128{int64(hi), lo}
	if neg {
		r = r.Neg()
		return r, r.Hi < 0 || r.IsZero()
	}
	return r, r.Hi >= 0
}

// QuoRem is a / b truncated and the remainder with the sign of a. b must not be 0.
func (a Int128) QuoRem(b Int128) (q, r Int128) {
	x, y := a.abs(), b.abs()
	uq, ur := udivmod(x, y)
	if (a.Hi < 0) != (b.Hi < 0) {
		uq = uq.Neg()
	}
	if a.Hi < 0 {
		ur = ur.Neg()
	}
	return uq, ur
}

// udivmod divides unsigned.
func udivmod(x, y Int128) (q, r Int128) {
	xh, yh := uint64(x.Hi), uint64(y.Hi)
	if yh == 0 {
		if xh == 0 {
			return Int128{0, x.Lo / y.Lo}, Int128{0, x.Lo % y.Lo}
		}
		qh, rem := xh/y.Lo, xh%y.Lo
		ql, rem := bits.Div64(rem, x.Lo, y.Lo)
		return Int128{int64(qh), ql}, Int128{0, rem}
	}
	// The quotient fits 64 bits: estimate it with the top 64 bits of y, then correct (Knuth D for two
	// words).
	n := uint(bits.LeadingZeros64(yh))
	v := yh<<n | shr(y.Lo, 64-n)
	u1, u0 := xh>>1, xh<<63|x.Lo>>1
	tq, _ := bits.Div64(u1, u0, v)
	tq >>= 63 - n
	if tq != 0 {
		tq--
	}
	hi, lo := bits.Mul64(tq, y.Lo)
	hi += tq * yh
	rl, c := bits.Sub64(x.Lo, lo, 0)
	rh, _ := bits.Sub64(xh, hi, c)
	if rh > yh || rh == yh && rl >= y.Lo {
		tq++
		rl, c = bits.Sub64(rl, y.Lo, 0)
		rh, _ = bits.Sub64(rh, yh, c)
	}
	return Int128{0, tq}, Int128{int64(rh), rl}
}

func shr(x uint64, n uint) uint64 {
	if n >= 64 {
		return 0
	}
	return x >> n
}

// Big is a as a big integer.
func (a Int128) Big() *big.Int {
	x := a.abs()
	b := new(big.Int).SetUint64(uint64(x.Hi))
	b.Lsh(b, 64)
	b.Or(b, new(big.Int).SetUint64(x.Lo))
	if a.Hi < 0 {
		b.Neg(b)
	}
	return b
}

// Int128FromBig converts b if it fits.
func Int128FromBig(b *big.Int) (Int128, bool) {
	if b.BitLen() > 127 {
		return Int128{}, false
	}
	var buf [16]byte
	b.FillBytes(buf[:])
	r := Int128{}
	for i := range 8 {
		r.Hi = r.Hi<<8 | int64(buf[i])
		r.Lo = r.Lo<<8 | uint64(buf[8+i])
	}
	if b.Sign() < 0 {
		r = r.Neg()
	}
	return r, true
}

// pow10 holds 10^0 to 10^38.
var pow10 = func() (t [MaxPrecision + 1]Int128) {
	t[0] = Int128{0, 1}
	for i := 1; i < len(t); i++ {
		t[i], _ = t[i-1].Mul(Int128{0, 10})
	}
	return t
}()

// Pow10 is 10^n for n from 0 to 38.
func Pow10(n int32) Int128 { return pow10[n] }

// FitsDigits says whether |a| has at most p decimal digits.
func (a Int128) FitsDigits(p int32) bool {
	x := a.abs()
	return x.Hi >= 0 && x.Cmp(pow10[p]) < 0
}

// Digits is the number of decimal digits of |a|, at least 1.
func (a Int128) Digits() int32 {
	for p := int32(1); p <= MaxPrecision; p++ {
		if a.FitsDigits(p) {
			return p
		}
	}
	return MaxPrecision + 1
}
