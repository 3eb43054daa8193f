package window

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// A spread says which measure a variance accumulator gives.
type spread struct {
	sample bool // divide by n - 1; a group of one value gives null
	root   bool // the standard deviation
}

var spreads = map[string]spread{
	"var_pop": {}, "var_samp": {sample: true}, "stddev_pop": {root: true}, "stddev_samp": {sample: true, root: true},
}

func newSpread(s Slot) accumulator {
	sp := spreads[s.Func]
	switch t := s.ArgType; {
	case t.Kind.Float():
		return spreadFloat{sp}
	case t.Kind == scalar.KindDecimal:
		return spreadDec{sp, t.Scale}
	case t.Kind.Integer():
		return spreadInt{sp, t.Kind == scalar.KindUint64}
	}
	return nil
}

// append adds the measure of n values with the given sum of squared differences from the mean.
func (s spread) append(b array.Builder, n uint64, squares float64) {
	if s.sample {
		n--
	}
	if n == 0 {
		b.AppendNull()
		return
	}
	v := squares / float64(n)
	if s.root {
		v = math.Sqrt(v)
	}
	b.(*array.Float64Builder).Append(v)
}

// appendExact is append for values whose sum and sum of squares are exact, in units of 10^-scale: the
// variance is (n*squares - sum^2) / (n*d), d being n or n - 1. It, or its root, is rounded once.
func (s spread) appendExact(b array.Builder, n uint64, sum, squares *big.Int, scale int32) {
	d := n
	if s.sample {
		d--
	}
	if d == 0 {
		b.AppendNull()
		return
	}
	count := new(big.Int).SetUint64(n)
	num := new(big.Int).Mul(squares, count)
	num.Sub(num, new(big.Int).Mul(sum, sum))
	den := count.Mul(count, new(big.Int).SetUint64(d))
	if scale > 0 {
		unit := scalar.Pow10(scale).Big()
		den.Mul(den, unit).Mul(den, unit)
	}
	exact := new(big.Rat).SetFrac(num, den)
	v, _ := exact.Float64()
	if s.root {
		v = rootOf(exact)
	}
	b.(*array.Float64Builder).Append(v)
}

// rootPrecision is so far above that of a float64 that rounding the root twice does not show.
const rootPrecision = 256

// rootOf is the square root of r, rounded once.
func rootOf(r *big.Rat) float64 {
	f := new(big.Float).SetPrec(rootPrecision).SetRat(r)
	v, _ := f.Sqrt(f).Float64()
	return v
}

// bigOf is an unsigned number of words, lowest first.
func bigOf(words []uint64) *big.Int {
	n := new(big.Int)
	for _, w := range slices.Backward(words) {
		n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(w))
	}
	return n
}

// spreadInt is the variance of integers. Cells: count of values, 128-bit sum (low, high), 192-bit sum of
// squares, lowest word first.
type spreadInt struct {
	spread
	unsigned bool
}

func (spreadInt) cells() int { return 6 }

func (s spreadInt) update(u *update) {
	arena := u.t.Arena()
	flip := uint64(0)
	if s.unsigned {
		flip = 1 << 63
	}
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+6 : at+6]
		v := uint64(u.col.words[row]) ^ flip
		sign := uint64(int64(v) >> 63)
		if flip != 0 {
			sign = 0
		}
		var carry uint64
		c[0]++
		c[1], carry = bits.Add64(c[1], v, 0)
		c[2] += sign + carry
		abs := (v ^ sign) - sign
		hi, lo := bits.Mul64(abs, abs)
		c[3], carry = bits.Add64(c[3], lo, 0)
		c[4], carry = bits.Add64(c[4], hi, carry)
		c[5] += carry
	}
}

func (s spreadInt) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	s.appendExact(b, c[0], scalar.Int128{Hi: int64(c[2]), Lo: c[1]}.Big(), bigOf(c[3:6]), 0)
	return scalar.CodeNone
}

func (spreadInt) save(dst []byte, _ *state.Table, c []uint64) []byte {
	return saveWords(dst, 'v', c[:6])
}

func (spreadInt) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	return loadWords(b, 'v', t.Arena()[int(p)+cell:][:6], "variance")
}

// saveWords encodes a count and, if it is not 0, the words that go with it.
func saveWords(dst []byte, tag byte, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, tag), c[0])
	if c[0] == 0 {
		return dst
	}
	for _, w := range c[1:] {
		dst = binary.BigEndian.AppendUint64(dst, w)
	}
	return dst
}

func loadWords(b []byte, tag byte, c []uint64, what string) ([]byte, error) {
	r := reader{b: b}
	r.tag(tag)
	if c[0] = r.uvarint(); c[0] != 0 {
		for i := range c[1:] {
			c[1+i] = r.word()
		}
	}
	return r.rest(what)
}

// spreadDec is the variance of decimals. Cells: count of values, 192-bit sum, 320-bit sum of squares,
// lowest words first.
type spreadDec struct {
	spread
	scale int32
}

func (spreadDec) cells() int { return 9 }

func (s spreadDec) update(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+9 : at+9]
		d := operators.Int128(u.col.decs[row])
		w := wide{c[1], c[2], c[3]}.add(d)
		c[0]++
		c[1], c[2], c[3] = w[0], w[1], w[2]
		if d.Hi < 0 {
			d = d.Neg()
		}
		// (hi, lo)^2 = hi^2 << 128 + 2*hi*lo << 64 + lo^2; hi < 2^63, so 2*hi fits a word.
		a1, a0 := bits.Mul64(d.Lo, d.Lo)
		b1, b0 := bits.Mul64(2*uint64(d.Hi), d.Lo)
		e1, e0 := bits.Mul64(uint64(d.Hi), uint64(d.Hi))
		var carry uint64
		a1, carry = bits.Add64(a1, b0, 0)
		e0, carry = bits.Add64(e0, b1, carry)
		e1 += carry
		c[4], carry = bits.Add64(c[4], a0, 0)
		c[5], carry = bits.Add64(c[5], a1, carry)
		c[6], carry = bits.Add64(c[6], e0, carry)
		c[7], carry = bits.Add64(c[7], e1, carry)
		c[8] += carry
	}
}

func (s spreadDec) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	s.appendExact(b, c[0], wide{c[1], c[2], c[3]}.big(), bigOf(c[4:9]), s.scale)
	return scalar.CodeNone
}

func (spreadDec) save(dst []byte, _ *state.Table, c []uint64) []byte {
	return saveWords(dst, 'V', c[:9])
}

func (spreadDec) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	return loadWords(b, 'V', t.Arena()[int(p)+cell:][:9], "variance")
}

// spreadFloat is the variance of floats: Welford's recurrence for each source partition in offset order,
// and Chan's formula to add the partitions in their order. Cells: a chain of (partition + 2, count, mean,
// sum of squared differences, next) like that of sumFloat.
type spreadFloat struct{ spread }

const momentLink = 5 // cells of a link

// moments are the count, the mean and the sum of squared differences from it.
type moments struct {
	n        uint64
	mean, m2 float64
}

// add takes one value. Products are rounded before they are added, so that no processor fuses them.
func (m moments) add(v float64) moments {
	m.n++
	d := v - m.mean
	m.mean += d / float64(m.n)
	m.m2 += float64(d * (v - m.mean))
	return m
}

// merge takes the values of o.
func (m moments) merge(o moments) moments {
	n := m.n + o.n
	d := o.mean - m.mean
	share := float64(o.n) / float64(n)
	m.m2 += o.m2 + float64(float64(d*d)*float64(float64(m.n)*share))
	m.mean += float64(d * share)
	m.n = n
	return m
}

func (spreadFloat) cells() int { return momentLink }

func (s spreadFloat) update(u *update) {
	arena := u.t.Arena()
	part := uint64(u.b.Partition + 2)
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		if arena[at] != part {
			at = momentsOf(u.t, at, part)
			arena = u.t.Arena() // a new link may have moved it
		}
		c := arena[at : at+momentLink : at+momentLink]
		m := moments{c[1], math.Float64frombits(c[2]), math.Float64frombits(c[3])}.add(wordFloat(u.col.words[row]))
		c[1], c[2], c[3] = m.n, math.Float64bits(m.mean), math.Float64bits(m.m2)
	}
}

// momentsOf finds or makes the link of part in the chain at place at.
func momentsOf(t *state.Table, at int, part uint64) int {
	arena := t.Arena()
	for arena[at] != part {
		if arena[at] == 0 {
			arena[at] = part
			return at
		}
		if arena[at+4] == 0 {
			p := int(t.Alloc(momentLink))
			arena = t.Arena()
			arena[at+4], arena[p] = uint64(p), part
			return p
		}
		at = int(arena[at+4])
	}
	return at
}

// links are the links of a chain by ascending partition.
func (spreadFloat) links(t *state.Table, c []uint64) [][]uint64 {
	arena := t.Arena()
	links := [][]uint64{c[:4]}
	for next := c[4]; next != 0; next = arena[next+4] {
		links = append(links, arena[next:next+4])
	}
	slices.SortFunc(links, func(a, b []uint64) int { return int(int64(a[0]) - int64(b[0])) })
	return links
}

func (s spreadFloat) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	total := moments{c[1], math.Float64frombits(c[2]), math.Float64frombits(c[3])}
	if c[4] != 0 {
		for i, l := range s.links(t, c) {
			m := moments{l[1], math.Float64frombits(l[2]), math.Float64frombits(l[3])}
			if i == 0 {
				total = m
			} else {
				total = total.merge(m)
			}
		}
	}
	s.append(b, total.n, total.m2)
	return scalar.CodeNone
}

func (s spreadFloat) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = append(dst, 'w')
	if c[0] == 0 {
		return append(dst, 0)
	}
	links := s.links(t, c)
	dst = binary.AppendUvarint(dst, uint64(len(links)))
	for _, l := range links {
		dst = binary.AppendUvarint(dst, l[0])
		dst = binary.AppendUvarint(dst, l[1])
		dst = binary.BigEndian.AppendUint64(dst, l[2])
		dst = binary.BigEndian.AppendUint64(dst, l[3])
	}
	return dst
}

func (spreadFloat) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('w')
	for range r.uvarint() {
		part, n, mean, m2 := r.uvarint(), r.uvarint(), r.word(), r.word()
		if r.bad || part == 0 || n == 0 {
			r.bad = true
			break
		}
		at := momentsOf(t, int(p)+cell, part)
		copy(t.Arena()[at+1:at+4], []uint64{n, mean, m2})
	}
	return r.rest("variance of floats")
}
