package window

import (
	"math/big"
	"math/bits"

	"github.com/headrace/headrace/internal/scalar"
)

// A wide is a two's complement integer of 192 bits, lowest word first. It holds the sum of 2^63
// decimals of 38 digits.
type wide [3]uint64

func wideOf(d scalar.Int128) wide { return wide{d.Lo, uint64(d.Hi), uint64(d.Hi >> 63)} }

func (w wide) add(d scalar.Int128) wide {
	var c uint64
	w[0], c = bits.Add64(w[0], d.Lo, 0)
	w[1], c = bits.Add64(w[1], uint64(d.Hi), c)
	w[2] += uint64(d.Hi>>63) + c
	return w
}

func (w wide) negative() bool { return int64(w[2]) < 0 }

// magnitude is |w| as an unsigned number.
func (w wide) magnitude() wide {
	if !w.negative() {
		return w
	}
	var c uint64
	w[0], c = bits.Add64(^w[0], 1, 0)
	w[1], c = bits.Add64(^w[1], 0, c)
	w[2] = ^w[2] + c
	return w
}

// int128 is w if it fits.
func (w wide) int128() (scalar.Int128, bool) {
	d := scalar.Int128{Hi: int64(w[1]), Lo: w[0]}
	return d, w[2] == uint64(d.Hi>>63)
}

// big is w as a big integer.
func (w wide) big() *big.Int {
	m := w.magnitude()
	b := new(big.Int).SetUint64(m[2])
	b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(m[1]))
	b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(m[0]))
	if w.negative() {
		b.Neg(b)
	}
	return b
}

// mean is w * 10^shift / n rounded half-even, and whether it fits 128 bits. n is not 0; shift is 0 to 19.
func (w wide) mean(n uint64, shift int32) (scalar.Int128, bool) {
	m := w.magnitude()
	ten := uint64(1)
	for range shift {
		ten *= 10
	}
	// p = m * ten, four words.
	var p [4]uint64
	var carry uint64
	for i, x := range m {
		hi, lo := bits.Mul64(x, ten)
		var c uint64
		p[i], c = bits.Add64(lo, carry, 0)
		carry = hi + c
	}
	p[3] = carry
	// p / n, word by word from the top.
	rem := uint64(0)
	for i := 3; i >= 0; i-- {
		p[i], rem = bits.Div64(rem, p[i], n)
	}
	half := n - rem // the remainder is more than half if rem > half
	if rem > half || rem == half && p[0]&1 == 1 {
		var c uint64
		p[0], c = bits.Add64(p[0], 1, 0)
		p[1], c = bits.Add64(p[1], 0, c)
		p[2] += c
	}
	d := scalar.Int128{Hi: int64(p[1]), Lo: p[0]}
	if p[3] != 0 || p[2] != 0 || d.Hi < 0 {
		return d, false
	}
	if w.negative() {
		d = d.Neg()
	}
	return d, true
}

// meanFloat is the float64 nearest to w / (n * 10^scale). n is not 0.
func (w wide) meanFloat(n uint64, scale int32) float64 {
	if d, ok := w.int128(); ok && n < 1<<53 && scale == 0 {
		if i, ok := d.Int64(); ok && i > -1<<53 && i < 1<<53 {
			return float64(i) / float64(n) // both exact: rounded once
		}
	}
	den := new(big.Int).SetUint64(n)
	den.Mul(den, scalar.Pow10(scale).Big())
	f, _ := new(big.Rat).SetFrac(w.big(), den).Float64()
	return f
}
