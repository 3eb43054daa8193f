package window

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// An accumulator folds the rows of a group into a few cells. It has no state of its own.
type accumulator interface {
	// cells is the number of cells of a group that the accumulator uses.
	cells() int
	// update folds rows into their groups.
	update(u *update)
	// finish appends a group's result to a builder of the slot's type. With a code nothing, or null,
	// is appended by the caller.
	finish(t *state.Table, c []uint64, b array.Builder) scalar.Code
	// save encodes a group's cells after a tag that names the accumulator; load decodes them.
	save(dst []byte, t *state.Table, c []uint64) []byte
	load(b []byte, t *state.Table, p state.Pos, cell int) (rest []byte, err error)
}

// An update is rows of one batch on their way into the groups of one window.
type update struct {
	t     *state.Table
	b     *operators.Batch
	rows  []int32
	pos   []state.Pos // of the groups, parallel to rows
	cell  int         // first cell, counted from the header
	col   *column     // the argument, or nil
	by    *column     // the second argument of arg_min and arg_max, or nil
	start int64       // of the window
	agg   *Aggregate
}

func newAccumulator(s Slot, index int) (accumulator, error) {
	t := s.ArgType
	if s.Func == uptoFunc {
		return upto{}, nil
	}
	if s.Arg == nil && s.Func != "count" {
		return nil, fmt.Errorf("%w: %s needs an argument", ErrOptions, s.Func)
	}
	switch s.Func {
	case "count":
		return count{}, nil
	case "count_distinct":
		return distinct{slot: index, shape: shapeOf(t)}, nil
	case "sum", "avg":
		avg := s.Func == "avg"
		switch {
		case t.Kind == scalar.KindDecimal:
			return sumDec{in: t, out: s.Type, avg: avg}, nil
		case t.Kind.Float():
			return sumFloat{out: s.Type, avg: avg}, nil
		case t.Kind.Integer() || t.Kind == scalar.KindDuration:
			return sumInt{in: t, out: s.Type, avg: avg}, nil
		}
	case "min", "max":
		return extreme{t: t, shape: shapeOf(t), max: s.Func == "max"}, nil
	case "first", "last", "any_value": // any value will do: the first is the same in every run
		return edge{t: t, shape: shapeOf(t), last: s.Func == "last"}, nil
	case "bool_and", "bool_or":
		if t.Kind == scalar.KindBool {
			return truth{or: s.Func == "bool_or"}, nil
		}
	case "var_pop", "var_samp", "stddev_pop", "stddev_samp":
		if acc := newSpread(s); acc != nil {
			return acc, nil
		}
	case "arg_min", "arg_max":
		if s.ByType.Kind != scalar.KindInvalid {
			return newArgBest(s), nil
		}
	case "approx_quantile":
		q, err := parseRank(s.ParamType, s.Param)
		if err != nil {
			return nil, err
		}
		if t.Kind.Float() {
			return approxQuantile{q}, nil
		}
	case "list", "join", "set", "top_k":
		return newCollection(s, index)
	case "median", "quantile":
		if s.Func == "median" {
			s.Param, s.ParamType = scalar.Float(0.5), scalar.TypeFloat64
		}
		q, err := parseRank(s.ParamType, s.Param)
		if err != nil {
			return nil, err
		}
		if t.Kind.Numeric() || t.Kind == scalar.KindDuration {
			return quantile{bag: newBag(s, index), q: q, out: s.Type}, nil
		}
	case "approx_distinct":
		return approxDistinct{shape: shapeOf(t), float: t.Kind.Float()}, nil
	}
	return nil, fmt.Errorf("%w: no aggregate %s of %s", ErrOptions, s.Func, t)
}

// count counts rows, or values that are not null. Cell: the count.
type count struct{}

func (count) cells() int { return 1 }

func (count) update(u *update) {
	arena := u.t.Arena()
	if u.col == nil || u.col.valid == nil {
		for _, p := range u.pos {
			arena[int(p)+u.cell]++
		}
		return
	}
	for i, row := range u.rows {
		if !u.col.isNull(row) {
			arena[int(u.pos[i])+u.cell]++
		}
	}
}

func (count) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	b.(*array.Int64Builder).Append(int64(c[0]))
	return scalar.CodeNone
}

func (count) save(dst []byte, _ *state.Table, c []uint64) []byte {
	return binary.AppendUvarint(append(dst, 'c'), c[0])
}

func (count) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('c')
	t.Arena()[int(p)+cell] = r.uvarint()
	return r.rest("count")
}

// sumInt sums and averages integers and durations. Cells: count of values, 128-bit sum (low, high).
type sumInt struct {
	in, out scalar.Type
	avg     bool
}

func (sumInt) cells() int { return 3 }

func (s sumInt) update(u *update) {
	arena := u.t.Arena()
	flip := uint64(0)
	if s.in.Kind == scalar.KindUint64 {
		flip = 1 << 63 // words of uint64 have their top bit flipped
	}
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+3 : at+3]
		v := uint64(u.col.words[row]) ^ flip
		sign := uint64(int64(v) >> 63)
		if flip != 0 {
			sign = 0
		}
		lo, carry := bits.Add64(c[1], v, 0)
		c[0]++
		c[1] = lo
		c[2] += sign + carry
	}
}

func (s sumInt) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	sum := scalar.Int128{Hi: int64(c[2]), Lo: c[1]}
	return finishExact(wideOf(sum), c[0], 0, s.out, s.avg, b)
}

func (sumInt) save(dst []byte, _ *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'i'), c[0])
	return appendDec(dst, scalar.Int128{Hi: int64(c[2]), Lo: c[1]})
}

func (sumInt) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('i')
	c := t.Arena()[int(p)+cell:]
	c[0] = r.uvarint()
	d := r.dec()
	c[1], c[2] = d.Lo, uint64(d.Hi)
	return r.rest("integer sum")
}

// finishExact appends the sum, or its mean over n values, of integers or decimals of the given scale.
func finishExact(sum wide, n uint64, scale int32, out scalar.Type, avg bool, b array.Builder) scalar.Code {
	switch {
	case out.Kind.Float():
		if !avg {
			n = 1
		}
		operators.AppendValue(b, out, scalar.Value{Kind: out.Kind, F: sum.meanFloat(n, scale)})
		return scalar.CodeNone
	case !avg:
		n = 1
	}
	shift := out.Scale - scale
	if out.Kind != scalar.KindDecimal {
		shift = -scale
	}
	if shift < 0 || shift > 19 {
		return scalar.CodeDecimalOverflow // the checker never widens like this
	}
	d, ok := sum.mean(n, shift)
	switch k := out.Kind; {
	case k == scalar.KindDecimal:
		if !ok || !d.FitsDigits(out.Precision) {
			return scalar.CodeDecimalOverflow
		}
		b.(*array.Decimal128Builder).Append(operators.Decimal128(d))
	case k.Unsigned():
		u, fits := d.Uint64()
		if !ok || !fits || u > maxUint(k) {
			return scalar.CodeOverflow
		}
		operators.AppendValue(b, out, scalar.IntOf(k, int64(u)))
	default:
		i, fits := d.Int64()
		if !ok || !fits || i > maxInt(k) || i < -maxInt(k)-1 {
			return scalar.CodeOverflow
		}
		appendWord(b, out, i)
	}
	return scalar.CodeNone
}

func maxInt(k scalar.Kind) int64 {
	switch k {
	case scalar.KindInt8:
		return math.MaxInt8
	case scalar.KindInt16:
		return math.MaxInt16
	case scalar.KindInt32:
		return math.MaxInt32
	}
	return math.MaxInt64
}

func maxUint(k scalar.Kind) uint64 {
	switch k {
	case scalar.KindUint8:
		return math.MaxUint8
	case scalar.KindUint16:
		return math.MaxUint16
	case scalar.KindUint32:
		return math.MaxUint32
	}
	return math.MaxUint64
}

// sumDec sums and averages decimals. Cells: count of values, 192-bit sum, lowest word first.
type sumDec struct {
	in, out scalar.Type
	avg     bool
}

func (sumDec) cells() int { return 4 }

func (s sumDec) update(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+4 : at+4]
		w := wide{c[1], c[2], c[3]}.add(operators.Int128(u.col.decs[row]))
		c[0]++
		c[1], c[2], c[3] = w[0], w[1], w[2]
	}
}

func (s sumDec) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	return finishExact(wide{c[1], c[2], c[3]}, c[0], s.in.Scale, s.out, s.avg, b)
}

func (sumDec) save(dst []byte, _ *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'd'), c[0])
	for _, w := range c[1:4] {
		dst = binary.BigEndian.AppendUint64(dst, w)
	}
	return dst
}

func (sumDec) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('d')
	c := t.Arena()[int(p)+cell:]
	c[0], c[1], c[2], c[3] = r.uvarint(), r.word(), r.word(), r.word()
	return r.rest("decimal sum")
}

// sumFloat sums and averages floats. Cells: count of values, then the sums of the source partitions as
// a chain of (partition + 2, sum, next): the first link lies here, the others in the arena. Zero
// partition: no link. (Partition -1 is a source too: rows that were merged before.)
type sumFloat struct {
	out scalar.Type
	avg bool
}

const link = 3 // cells of a link

func (sumFloat) cells() int { return 1 + link }

func (s sumFloat) update(u *update) {
	arena := u.t.Arena()
	part := uint64(u.b.Partition + 2)
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		v := wordFloat(u.col.words[row])
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+4 : at+4]
		c[0]++
		switch c[1] {
		case part:
			c[2] = math.Float64bits(math.Float64frombits(c[2]) + v)
		case 0:
			c[1], c[2] = part, math.Float64bits(v)
		default:
			s.chain(u.t, at+1, part, v)
			arena = u.t.Arena() // a new link may have moved it
		}
	}
}

// chain adds v to the link of part in the chain at place at.
func (sumFloat) chain(t *state.Table, at int, part uint64, v float64) {
	arena := t.Arena()
	for {
		if arena[at] == part {
			arena[at+1] = math.Float64bits(math.Float64frombits(arena[at+1]) + v)
			return
		}
		if arena[at+2] == 0 {
			break
		}
		at = int(arena[at+2])
	}
	p := t.Alloc(link)
	arena = t.Arena()
	arena[at+2] = uint64(p)
	arena[p], arena[p+1] = part, math.Float64bits(v)
}

// links are the sums by ascending partition.
func (sumFloat) links(t *state.Table, c []uint64) [][2]uint64 {
	arena := t.Arena()
	links := [][2]uint64{{c[1], c[2]}}
	for next := c[3]; next != 0; next = arena[next+2] {
		links = append(links, [2]uint64{arena[next], arena[next+1]})
	}
	slices.SortFunc(links, func(a, b [2]uint64) int { return int(int64(a[0]) - int64(b[0])) })
	return links
}

func (s sumFloat) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	sum := math.Float64frombits(c[2])
	if c[3] != 0 {
		for i, l := range s.links(t, c) {
			if v := math.Float64frombits(l[1]); i == 0 {
				sum = v
			} else {
				sum += v
			}
		}
	}
	if s.avg {
		sum /= float64(c[0])
	}
	if s.out.Kind == scalar.KindFloat64 {
		b.(*array.Float64Builder).Append(sum)
	} else {
		operators.AppendValue(b, s.out, scalar.Float32(float32(sum)))
	}
	return scalar.CodeNone
}

func (s sumFloat) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'f'), c[0])
	if c[0] == 0 {
		return append(dst, 0)
	}
	links := s.links(t, c)
	dst = binary.AppendUvarint(dst, uint64(len(links)))
	for _, l := range links {
		dst = binary.AppendUvarint(dst, l[0])
		dst = binary.BigEndian.AppendUint64(dst, l[1])
	}
	return dst
}

func (s sumFloat) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('f')
	at := int(p) + cell
	t.Arena()[at] = r.uvarint()
	n := r.uvarint()
	for i := range n {
		part, sum := r.uvarint(), r.word()
		if r.bad || part == 0 {
			r.bad = true
			break
		}
		if i == 0 {
			t.Arena()[at+1], t.Arena()[at+2] = part, sum
			continue
		}
		s.chain(t, at+1, part, math.Float64frombits(sum))
	}
	return r.rest("float sum")
}

// extreme is min and max. Cells: 1 if there is a value, the value by its shape.
type extreme struct {
	t     scalar.Type
	shape shape
	max   bool
}

func (e extreme) cells() int { return 1 + e.shape.cells() }

func (e extreme) update(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		switch e.shape {
		case shapeWord:
			c := arena[at : at+2 : at+2]
			if w := u.col.words[row]; c[0] == 0 || w != int64(c[1]) && (w > int64(c[1])) == e.max {
				c[0], c[1] = 1, uint64(w)
			}
		case shapeDec:
			c := arena[at : at+3 : at+3]
			d := operators.Int128(u.col.decs[row])
			if cmp := d.Cmp(scalar.Int128{Hi: int64(c[2]), Lo: c[1]}); c[0] == 0 || cmp != 0 && (cmp > 0) == e.max {
				c[0], c[1], c[2] = 1, d.Lo, uint64(d.Hi)
			}
		default:
			c := arena[at : at+3 : at+3]
			blob := u.col.bytes(row)
			if cmp := e.compare(u.col, blob, u.t, c[1:]); c[0] == 0 || cmp != 0 && (cmp > 0) == e.max {
				c[0] = 1
				u.t.SetBlob(c[1:], blob)
			}
		}
	}
}

// compare orders a blob against a stored one.
func (e extreme) compare(col *column, blob []byte, t *state.Table, c []uint64) int {
	if !col.nested {
		return bytes.Compare(blob, t.Blob(c))
	}
	old := t.Blob(c)
	if len(old) == 0 {
		return 0
	}
	x, _, _ := readValue(blob, e.t)
	y, _, _ := readValue(old, e.t)
	return scalar.Compare(x, y)
}

func (e extreme) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	return finishShape(e.shape, e.t, t, c[1:], b)
}

func (e extreme) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = append(dst, 'x')
	if c[0] == 0 {
		return append(dst, 0)
	}
	return saveShape(append(dst, 1), e.shape, t, c[1:])
}

func (e extreme) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('x')
	if r.flag() {
		c := t.Arena()[int(p)+cell:]
		c[0] = 1
		r.shape(e.shape, e.t, t, c[1:])
	}
	return r.rest("min or max")
}

// edge is first and last, by (event time, partition, offset). Cells: partition + 2 or zero if there is
// no value, event time, offset, the value by its shape.
type edge struct {
	t     scalar.Type
	shape shape
	last  bool
}

func (e edge) cells() int { return 3 + e.shape.cells() }

func (e edge) update(u *update) {
	arena := u.t.Arena()
	part := uint64(u.b.Partition + 2)
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		at := int(u.pos[i]) + u.cell
		c := arena[at : at+3+e.shape.cells()]
		offset := int64(0)
		if u.b.Offsets != nil {
			offset = u.b.Offsets[row]
		}
		ts := u.b.Time[row]
		if c[0] != 0 && !e.beats(ts, part, offset, c) {
			continue
		}
		c[0], c[1], c[2] = part, uint64(ts), uint64(offset)
		switch e.shape {
		case shapeWord:
			c[3] = uint64(u.col.words[row])
		case shapeDec:
			d := operators.Int128(u.col.decs[row])
			c[3], c[4] = d.Lo, uint64(d.Hi)
		default:
			u.t.SetBlob(c[3:5], u.col.bytes(row))
		}
	}
}

// beats says whether a row takes the place of the one in c. Rows that are equal in every respect (after
// a merge there are no offsets) keep the order in which they came.
func (e edge) beats(ts int64, part uint64, offset int64, c []uint64) bool {
	switch {
	case ts != int64(c[1]):
		return ts < int64(c[1]) != e.last
	case part != c[0]:
		return part < c[0] != e.last
	case offset != int64(c[2]):
		return offset < int64(c[2]) != e.last
	}
	return e.last
}

func (e edge) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	return finishShape(e.shape, e.t, t, c[3:], b)
}

func (e edge) save(dst []byte, t *state.Table, c []uint64) []byte {
	dst = binary.AppendUvarint(append(dst, 'e'), c[0])
	if c[0] == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint64(dst, c[1])
	dst = binary.BigEndian.AppendUint64(dst, c[2])
	return saveShape(dst, e.shape, t, c[3:])
}

func (e edge) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('e')
	if part := r.uvarint(); part != 0 {
		c := t.Arena()[int(p)+cell:]
		c[0], c[1], c[2] = part, r.word(), r.word()
		r.shape(e.shape, e.t, t, c[3:])
	}
	return r.rest("first or last")
}

func finishShape(s shape, typ scalar.Type, t *state.Table, c []uint64, b array.Builder) scalar.Code {
	switch s {
	case shapeWord:
		appendWord(b, typ, int64(c[0]))
	case shapeDec:
		b.(*array.Decimal128Builder).Append(operators.Decimal128(scalar.Int128{Hi: int64(c[1]), Lo: c[0]}))
	default:
		if err := appendBlob(b, typ, t.Blob(c)); err != nil {
			panic(err) // load has checked what is in the table
		}
	}
	return scalar.CodeNone
}

func saveShape(dst []byte, s shape, t *state.Table, c []uint64) []byte {
	switch s {
	case shapeWord:
		return binary.BigEndian.AppendUint64(append(dst, 'w'), c[0])
	case shapeDec:
		return appendDec(append(dst, 'd'), scalar.Int128{Hi: int64(c[1]), Lo: c[0]})
	}
	blob := t.Blob(c)
	dst = binary.AppendUvarint(append(dst, 'b'), uint64(len(blob)))
	return append(dst, blob...)
}

// A reader takes a state row apart. After the first misfit everything reads as zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad = true
		r.b = nil
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) tag(want byte) {
	if p := r.take(1); p == nil || p[0] != want {
		r.bad = true
	}
}

func (r *reader) flag() bool {
	p := r.take(1)
	if p == nil || p[0] > 1 {
		r.bad = true
		return false
	}
	return p[0] == 1
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) word() uint64 {
	if p := r.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (r *reader) dec() scalar.Int128 {
	if p := r.take(16); p != nil {
		return readDec(p)
	}
	return scalar.Int128{}
}

func (r *reader) shape(s shape, typ scalar.Type, t *state.Table, c []uint64) {
	switch s {
	case shapeWord:
		r.tag('w')
		c[0] = r.word()
	case shapeDec:
		r.tag('d')
		d := r.dec()
		c[0], c[1] = d.Lo, uint64(d.Hi)
	default:
		r.tag('b')
		n := r.uvarint()
		if n > uint64(len(r.b)) {
			r.bad = true
			return
		}
		blob := r.take(int(n))
		if k := typ.Kind; k == scalar.KindList || k == scalar.KindMap || k == scalar.KindStruct {
			if _, rest, err := readValue(blob, typ); err != nil || len(rest) > 0 {
				r.bad = true
				return
			}
		}
		t.SetBlob(c, blob)
	}
}

func (r *reader) rest(what string) ([]byte, error) {
	if r.bad {
		return nil, fmt.Errorf("%w: %s", ErrState, what)
	}
	return r.b, nil
}
