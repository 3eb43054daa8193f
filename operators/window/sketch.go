package window

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// approxQuantile is a histogram whose bins grow with the values, as in DDSketch [Masson, Rim and Lee,
// VLDB 2019], cut by the bits of a float instead of a logarithm, so that every processor agrees: a bin is
// the sign, the exponent and the first seven bits of the fraction. Its middle is within 1/256 of each of
// its values.
//
// A group keeps at most maxBins bins, enough for values that fill 16 powers of two. When there are more,
// neighbours are joined two and two, which doubles the error. How often depends on the values
// alone and not on their order: the bins of some of the values are never more than those of all.
//
// Cells: count of values, NaNs among them, least and greatest as words, how often bins were joined, the
// bins (inner: bin number + 1, count).
type approxQuantile struct {
	q rank
}

const (
	maxBins   = 2048
	binShift  = 52 - 7
	maxJoined = 8 // then there are no more bins than that
)

var bins = inner{width: 2}

func (approxQuantile) cells() int { return 7 }

// binOf is the bin of a word, 1 or more; bins are ordered as the values are.
func binOf(w int64, joined uint64) uint64 {
	return uint64(w)>>(binShift+joined) ^ 1<<(63-binShift-joined) + 1
}

func (a approxQuantile) update(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+7 : at+7]
		w := u.col.words[row]
		if c[0] == 0 {
			c[2], c[3] = uint64(w), uint64(w)
		}
		c[0]++
		c[2], c[3] = uint64(min(int64(c[2]), w)), uint64(max(int64(c[3]), w))
		if w == math.MaxInt64 { // NaN
			c[1]++
			continue
		}
		p, fresh := bins.find(u.t, at+5, binOf(w, c[4]))
		arena = u.t.Arena()
		arena[p+1]++
		if fresh && innerUsed(arena[at+5:at+7]) > maxBins {
			joinBins(u.t, at)
		}
	}
}

// joinBins joins the bins of the group whose cells begin at at until there are few enough.
func joinBins(t *state.Table, at int) {
	arena := t.Arena()
	c := arena[at : at+7 : at+7]
	list := binsOf(arena, c)
	for len(list) > maxBins && c[4] < maxJoined {
		c[4]++
		n := 0
		for _, e := range list {
			e[0] = (e[0]-1)>>1 + 1
			if n > 0 && list[n-1][0] == e[0] {
				list[n-1][1] += e[1]
				continue
			}
			list[n] = e
			n++
		}
		list = list[:n]
	}
	bins.clear(arena, c[5:7])
	for _, e := range list {
		p, _ := bins.find(t, at+5, e[0]) // there is room: the arena stays
		arena[p+1] = e[1]
	}
}

// binsOf is the bins by ascending value, as (number, count).
func binsOf(arena, c []uint64) [][2]uint64 {
	list := make([][2]uint64, 0, innerUsed(c[5:7]))
	bins.each(arena, c[5:7], func(e []uint64) { list = append(list, [2]uint64{e[0], e[1]}) })
	slices.SortFunc(list, func(a, b [2]uint64) int { return int(int64(a[0]) - int64(b[0])) })
	return list
}

// finish gives the middle of the bin that holds the value of rank floor(q * (n - 1)), within the least
// and the greatest value.
func (a approxQuantile) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	k, _ := a.q.place(c[0])
	w := int64(math.MaxInt64)
	for _, e := range binsOf(t.Arena(), c) {
		if k < e[1] {
			shift := binShift + c[4]
			w = int64((e[0]-1)<<shift | 1<<(shift-1) ^ 1<<63)
			if w>>shift == 0 || w>>shift == -1 {
				w = 0 // values too small to matter
			}
			break
		}
		k -= e[1]
	}
	w = max(int64(c[2]), min(int64(c[3]), w))
	b.(*array.Float64Builder).Append(wordFloat(w))
	return scalar.CodeNone
}

func (approxQuantile) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'q'), c[0])
	if c[0] == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, c[1])
	dst = binary.BigEndian.AppendUint64(dst, c[2])
	dst = binary.BigEndian.AppendUint64(dst, c[3])
	dst = binary.AppendUvarint(dst, c[4])
	list := binsOf(t.Arena(), c)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	last := uint64(0)
	for _, e := range list {
		dst = binary.AppendUvarint(dst, e[0]-last)
		dst = binary.AppendUvarint(dst, e[1])
		last = e[0]
	}
	return dst
}

func (approxQuantile) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('q')
	at := int(p) + cell
	if n := r.uvarint(); n != 0 {
		nans, least, most, joined, used := r.uvarint(), r.word(), r.word(), r.uvarint(), r.uvarint()
		if joined > maxJoined || used > maxBins {
			r.bad = true
		}
		copy(t.Arena()[at:], []uint64{n, nans, least, most, joined})
		last := uint64(0)
		for range used {
			last += r.uvarint()
			count := r.uvarint()
			if r.bad || last == 0 || last > 1<<(64-binShift) {
				r.bad = true
				break
			}
			place, _ := bins.find(t, at+5, last)
			t.Arena()[place+1] = count
		}
	}
	return r.rest("approximate quantile")
}

// approxDistinct is HyperLogLog with 2^12 registers, a standard error of 1.6 %, after a set of hashes
// that is exact (but for equal 64-bit hashes) up to maxHashes values. Both are what the values make of
// them in any order. Cells: an inner of hashes; once there are more, its place is that of the registers,
// one byte each, and its slots are 0.
type approxDistinct struct {
	shape shape
	float bool
}

const (
	registerBits = 12
	registers    = 1 << registerBits
	maxHashes    = 256
	maxRank      = 64 - registerBits + 1
)

var hashSet = inner{width: 1}

func (approxDistinct) cells() int { return 2 }

func dense(c []uint64) bool { return c[0] != 0 && c[1] == 0 }

func (a approxDistinct) update(u *update) {
	arena := u.t.Arena()
	var buf [16]byte
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		var h uint64
		switch a.shape {
		case shapeWord:
			w := u.col.words[row]
			if a.float && w == -1 { // -0
				w = 0
			}
			h = state.HashWord(uint64(w))
		case shapeDec:
			h = state.Hash64(appendDec(buf[:0], operators.Int128(u.col.decs[row])))
		default:
			h = state.Hash64(u.col.bytes(row))
		}
		at := int(u.pos[i]) + u.cell
		if dense(arena[at : at+2]) {
			register(arena[arena[at]:], h)
			continue
		}
		addHash(u.t, at, h)
		arena = u.t.Arena()
	}
}

// addHash adds to a set of hashes, which becomes registers when it is full.
func addHash(t *state.Table, at int, h uint64) {
	_, fresh := hashSet.find(t, at, max(h, 1))
	c := t.Arena()[at : at+2]
	if !fresh || innerUsed(c) <= maxHashes {
		return
	}
	toRegisters(t, at)
}

// toRegisters turns a set of hashes into registers.
func toRegisters(t *state.Table, at int) {
	place := t.Alloc(registers / 8)
	arena := t.Arena()
	old := []uint64{arena[at], arena[at+1]}
	hashSet.each(arena, old, func(e []uint64) { register(arena[place:], e[0]) })
	arena[at], arena[at+1] = uint64(place), 0
}

// register notes a hash: its low bits choose a register, the zeros above them are its rank.
func register(words []uint64, h uint64) {
	i, rest := h&(registers-1), h>>registerBits
	rank := uint64(1)
	for rest&1 == 0 && rank < maxRank {
		rest >>= 1
		rank++
	}
	setRegister(words, i, rank)
}

func setRegister(words []uint64, i, rank uint64) {
	w, shift := &words[i/8], i%8*8
	if rank > *w>>shift&0xff {
		*w = *w&^(0xff<<shift) | rank<<shift
	}
}

func (approxDistinct) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	n := int64(innerUsed(c))
	if dense(c) {
		n = estimate(t.Arena()[c[0]:])
	}
	b.(*array.Int64Builder).Append(n)
	return scalar.CodeNone
}

// estimate is the improved raw estimator of Ertl, "New cardinality estimation algorithms for HyperLogLog
// sketches" (2017), which needs no correction for small counts.
func estimate(words []uint64) int64 {
	var ranks [maxRank + 1]float64
	for i := range uint64(registers) {
		ranks[words[i/8]>>(i%8*8)&0xff]++
	}
	const m = float64(registers)
	z := float64(m * tau(1-ranks[maxRank]/m))
	for k := maxRank - 1; k >= 1; k-- {
		z = 0.5 * (z + ranks[k])
	}
	z += float64(m * sigma(ranks[0]/m))
	const alpha = 0.721347520444481703680 // 1 / (2 ln 2)
	return int64(math.Round(alpha * m * m / z))
}

func sigma(x float64) float64 {
	y, z := 1.0, x
	for x < 1 {
		x = float64(x * x)
		was := z
		z += float64(x * y)
		y += y
		if z == was {
			return z
		}
	}
	return math.Inf(1)
}

func tau(x float64) float64 {
	if x == 0 || x == 1 {
		return 0
	}
	y, z := 1.0, 1-x
	for {
		x = math.Sqrt(x)
		was := z
		y *= 0.5
		z -= float64(float64((1-x)*(1-x)) * y)
		if z == was {
			return z / 3
		}
	}
}

func (approxDistinct) save(dst []byte, t *state.Table, c []uint64) []byte {
	arena := t.Arena()
	if dense(c) {
		dst = append(dst, 'H')
		words := arena[c[0]:][:registers/8]
		for i := uint64(0); i < registers; i += 4 { // four registers of six bits in three bytes
			var v uint64
			for k := range uint64(4) {
				v = v<<6 | words[(i+k)/8]>>((i+k)%8*8)&0xff
			}
			dst = append(dst, byte(v>>16), byte(v>>8), byte(v))
		}
		return dst
	}
	hashes := make([]uint64, 0, innerUsed(c))
	hashSet.each(arena, c, func(e []uint64) { hashes = append(hashes, e[0]) })
	slices.Sort(hashes)
	dst = binary.AppendUvarint(append(dst, 'h'), uint64(len(hashes)))
	for _, h := range hashes {
		dst = binary.BigEndian.AppendUint64(dst, h)
	}
	return dst
}

func (approxDistinct) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	at := int(p) + cell
	if len(b) > 0 && b[0] == 'H' {
		r.tag('H')
		packed := r.take(registers / 4 * 3)
		if r.bad {
			return r.rest("approximate count")
		}
		place := t.Alloc(registers / 8)
		arena := t.Arena()
		for i := uint64(0); i < registers; i += 4 {
			v := uint64(packed[0])<<16 | uint64(packed[1])<<8 | uint64(packed[2])
			packed = packed[3:]
			for k := range uint64(4) {
				rank := v >> (18 - 6*k) & 63
				r.bad = r.bad || rank > maxRank
				setRegister(arena[place:], i+k, rank)
			}
		}
		arena[at], arena[at+1] = uint64(place), 0
		return r.rest("approximate count")
	}
	r.tag('h')
	n := r.uvarint()
	if n > maxHashes {
		r.bad = true
		n = 0
	}
	for range n {
		h := r.word()
		if r.bad || h == 0 {
			r.bad = true
			break
		}
		hashSet.find(t, at, h)
	}
	return r.rest("approximate count")
}
