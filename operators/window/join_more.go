package window

import (
	"bytes"
	"math"
	"math/bits"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/state"
)

func (a truth) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := &dst.Arena()[int(p)+cell], src.Arena()[int(q)+cell]
	switch {
	case *d == 0:
		*d = s
	case s == 0:
	case a.or:
		*d = max(*d, s)
	default:
		*d = min(*d, s)
	}
}

func (a argBest) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	if s[0] == 0 {
		return
	}
	if d[0] != 0 {
		cmp := compareShape(a.byForm, src, s[3:], dst, d[3:])
		if a.max {
			cmp = -cmp
		}
		if cmp > 0 || cmp == 0 && !(edge{}).beats(int64(s[1]), s[0], int64(s[2]), d) {
			return
		}
	}
	n := a.byForm.cells()
	copy(d[:3], s[:3])
	copyShape(a.byForm, dst, d[3:], src, s[3:])
	copyShape(a.shape, dst, d[3+n:], src, s[3+n:])
}

// compareShape orders two values in cells. Blobs order by their bytes.
func compareShape(f shape, x *state.Table, a []uint64, y *state.Table, b []uint64) int {
	switch f {
	case shapeWord:
		return compareInts(int64(a[0]), int64(b[0]))
	case shapeDec:
		return scalar.Int128{Hi: int64(a[1]), Lo: a[0]}.Cmp(scalar.Int128{Hi: int64(b[1]), Lo: b[0]})
	}
	return bytes.Compare(x.Blob(a), y.Blob(b))
}

// addWords adds numbers of as many words, lowest first.
func addWords(d, s []uint64) {
	carry := uint64(0)
	for i := range d {
		d[i], carry = bits.Add64(d[i], s[i], carry)
	}
}

func (spreadInt) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	d[0] += s[0]
	addWords(d[1:3], s[1:3])
	addWords(d[3:6], s[3:6])
}

func (spreadDec) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	d, s := dst.Arena()[int(p)+cell:], src.Arena()[int(q)+cell:]
	d[0] += s[0]
	addWords(d[1:4], s[1:4])
	addWords(d[4:9], s[4:9])
}

// join merges the moments of each partition with those of the same one.
func (spreadFloat) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	from := int(q) + cell
	if src.Arena()[from] == 0 {
		return
	}
	read := func(c []uint64) moments {
		return moments{c[1], math.Float64frombits(c[2]), math.Float64frombits(c[3])}
	}
	for {
		link := src.Arena()[from : from+momentLink]
		part, m, next := link[0], read(link), int(link[4])
		at := momentsOf(dst, int(p)+cell, part)
		c := dst.Arena()[at : at+momentLink]
		if c[1] > 0 {
			m = read(c).merge(m)
		}
		c[1], c[2], c[3] = m.n, math.Float64bits(m.mean), math.Float64bits(m.m2)
		if next == 0 {
			return
		}
		from = next
	}
}

func (approxQuantile) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	at := int(p) + cell
	d, s := dst.Arena()[at:at+7], src.Arena()[int(q)+cell:][:7]
	if s[0] == 0 {
		return
	}
	if d[0] == 0 {
		d[2], d[3] = s[2], s[3]
	}
	d[0] += s[0]
	d[1] += s[1]
	d[2], d[3] = uint64(min(int64(d[2]), int64(s[2]))), uint64(max(int64(d[3]), int64(s[3])))
	list := append(binsOf(dst.Arena(), d), binsOf(src.Arena(), s)...)
	mine := innerUsed(d[5:7])
	joined := max(d[4], s[4])
	for i := range list {
		was := s[4]
		if i < mine {
			was = d[4]
		}
		list[i][0] = (list[i][0]-1)>>(joined-was) + 1
	}
	d[4] = joined
	bins.clear(dst.Arena(), d[5:7])
	for _, e := range list {
		place, _ := bins.find(dst, at+5, e[0])
		dst.Arena()[place+1] += e[1]
	}
	if innerUsed(dst.Arena()[at+5:at+7]) > maxBins {
		joinBins(dst, at)
	}
}

func (approxDistinct) join(dst *state.Table, p state.Pos, src *state.Table, q state.Pos, cell int) {
	at, s := int(p)+cell, src.Arena()[int(q)+cell:][:2]
	if !dense(s) {
		var hashes []uint64
		hashSet.each(src.Arena(), s, func(e []uint64) { hashes = append(hashes, e[0]) })
		for _, h := range hashes {
			if c := dst.Arena()[at : at+2]; dense(c) {
				register(dst.Arena()[c[0]:], h)
			} else {
				addHash(dst, at, h)
			}
		}
		return
	}
	if !dense(dst.Arena()[at : at+2]) {
		toRegisters(dst, at)
	}
	d, words := dst.Arena()[dst.Arena()[at]:], src.Arena()[src.Arena()[int(q)+cell]:]
	for i := range uint64(registers) {
		setRegister(d, i, words[i/8]>>(i%8*8)&0xff)
	}
}
