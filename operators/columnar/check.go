package columnar

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow/bitutil"

	"github.com/headrace/headrace/internal/scalar"
)

// The first and last date that has a written form, in days since 1970.
var firstDate, lastDate = int32(scalar.DaysOf(0, 1, 1)), int32(scalar.DaysOf(9999, 12, 31))

// Check judges every value of a payload from outside, a column at a time: offsets do not fall and stay inside
// their buffer, text is UTF-8, indexes are inside their dictionary, the counts of nulls are right and nulls are
// only where they may be, decimals have no more digits than their type, dates have four digits of year, and
// floats are finite, since the language has neither NaN nor infinities. What is behind a null is looked at
// only where a reader would stumble over it.
//
// Errors: ErrPayload, with the column and the row.
func (f *Frame) Check() error {
	for i, root := range f.roots {
		if _, err := f.check(root, -1); err != nil {
			name := "event time"
			if i < len(f.schema.columns) {
				name = f.schema.columns[i].Name
			}
			return fmt.Errorf("%w (column %s)", err, name)
		}
	}
	return nil
}

// check judges a part and what is nested in it, and returns the index of the next part. parent is the struct
// that it is a field of, -1: none.
func (f *Frame) check(i, parent int) (next int, err error) {
	p := &f.parts[i]
	if p.nulls > 0 {
		valid := f.bytes(p.valid)
		if have := p.n - bitutil.CountSetBits(valid, 0, p.n); have != p.nulls {
			return 0, malformed("%d nulls, the header says %d", have, p.nulls)
		}
		if !p.t.Nullable {
			if row := f.orphan(p, parent); row >= 0 {
				return 0, malformed("row %d is null where there are no nulls", row)
			}
		}
	}
	switch k := p.t.Kind; {
	case p.dict:
		dict := &f.parts[i+1]
		if row := above(lanes[uint32](f.bytes(p.data)), uint32(max(dict.n, 1))); row >= 0 {
			return 0, malformed("index %d of row %d is outside a dictionary of %d", lanes[uint32](f.bytes(p.data))[row], row, dict.n)
		}
		if dict.n == 0 && p.nulls < p.n {
			return 0, malformed("%d values of an empty dictionary", p.n-p.nulls)
		}
		return f.check(i+1, -1)
	case k == scalar.KindString || k == scalar.KindBytes || k == scalar.KindList || k == scalar.KindMap:
		offsets := lanes[int32](f.bytes(p.offsets))
		if !rising(offsets) {
			return 0, malformed("offsets fall at row %d", falls(offsets))
		}
		if k == scalar.KindString {
			if row := notText(f.bytes(p.data), offsets); row >= 0 {
				return 0, malformed("row %d is not UTF-8", row)
			}
		}
		i++
		if k == scalar.KindMap {
			if i, err = f.check(i, -1); err != nil {
				return 0, err
			}
		}
		if k == scalar.KindList || k == scalar.KindMap {
			return f.check(i, -1)
		}
		return i, nil
	case k == scalar.KindStruct:
		at := i + 1
		for range p.t.Fields {
			if at, err = f.check(at, i); err != nil {
				return 0, err
			}
		}
		return at, nil
	}
	return i + 1, f.checkFixed(p)
}

// orphan is a row that is null although its type has no nulls and its struct is there, or -1.
func (f *Frame) orphan(p *part, parent int) int {
	var above []byte
	if parent >= 0 && f.parts[parent].nulls > 0 {
		above = f.bytes(f.parts[parent].valid)
	}
	valid := f.bytes(p.valid)
	for row := range p.n {
		if !bitutil.BitIsSet(valid, row) && (above == nil || bitutil.BitIsSet(above, row)) {
			return row
		}
	}
	return -1
}

func (f *Frame) checkFixed(p *part) error {
	data := f.bytes(p.data)
	row, what := -1, ""
	switch p.t.Kind {
	case scalar.KindFloat32:
		row, what = f.first(p, exponents(lanes[uint32](data)), func(i int) bool { return lanes[uint32](data)[i]&0x7f800000 == 0x7f800000 }), "is not finite"
	case scalar.KindFloat64:
		row, what = f.first(p, exponents64(lanes[uint64](data)), func(i int) bool { return lanes[uint64](data)[i]&(0x7ff<<52) == 0x7ff<<52 }), "is not finite"
	case scalar.KindDate:
		days := lanes[int32](data)
		bad := false
		for _, d := range days {
			bad = bad || d < firstDate || d > lastDate
		}
		row, what = f.first(p, bad, func(i int) bool { return days[i] < firstDate || days[i] > lastDate }), "is outside the years 0 to 9999"
	case scalar.KindDecimal:
		limit := pow10(p.t.Precision)
		over := func(i int) bool {
			lo, hi := binary.LittleEndian.Uint64(data[16*i:]), binary.LittleEndian.Uint64(data[16*i+8:])
			if int64(hi) < 0 { // two's complement
				var c uint64
				lo, c = bits.Add64(^lo, 1, 0)
				hi = ^hi + c
			}
			return hi > limit[1] || hi == limit[1] && lo >= limit[0]
		}
		row, what = f.first(p, true, over), "has too many digits for "+p.t.NonNull().String()
	}
	if row >= 0 {
		return malformed("row %d %s", row, what)
	}
	return nil
}

// first is the first row that is not null and bad, or -1. Unless suspect there is none.
func (f *Frame) first(p *part, suspect bool, bad func(int) bool) int {
	if !suspect {
		return -1
	}
	valid := f.bytes(p.valid)
	for row := range p.n {
		if bad(row) && (p.nulls == 0 || bitutil.BitIsSet(valid, row)) {
			return row
		}
	}
	return -1
}

// exponents says whether a float is not finite: all bits of its exponent are set, so that adding one to the
// lowest of them carries into the sign.
func exponents(v []uint32) bool {
	var acc uint32
	for _, x := range v {
		acc |= x&0x7fffffff + 1<<23
	}
	return acc>>31 != 0
}

func exponents64(v []uint64) bool {
	var acc uint64
	for _, x := range v {
		acc |= x&(1<<63-1) + 1<<52
	}
	return acc>>63 != 0
}

// pow10 is 10 to the p, low and high word.
func pow10(p int32) [2]uint64 {
	var r [2]uint64
	r[0] = 1
	for range p {
		hi, lo := bits.Mul64(r[0], 10)
		r[0], r[1] = lo, r[1]*10+hi
	}
	return r
}

// rising says whether offsets begin at 0 and never fall. Open has checked that the last one is inside.
func rising(offsets []int32) bool {
	if len(offsets) == 0 || offsets[0] != 0 {
		return false
	}
	// Without a negative offset no difference overflows, so the sign of one tells a fall.
	last, acc := int32(0), int32(0)
	for _, o := range offsets {
		acc |= o | (o - last)
		last = o
	}
	return acc >= 0
}

// falls is the row where rising said no.
func falls(offsets []int32) int {
	last := int32(0)
	for i, o := range offsets {
		if o < last || i == 0 && o != 0 {
			return max(i-1, 0)
		}
		last = o
	}
	return 0
}

// notText is the first row whose bytes are not UTF-8, or -1. Rising offsets.
func notText(data []byte, offsets []int32) int {
	if ascii(data) {
		return -1
	}
	whole := utf8.Valid(data)
	for row := range len(offsets) - 1 {
		from, to := offsets[row], offsets[row+1]
		if from < to && (!utf8.RuneStart(data[from]) || !whole && !utf8.Valid(data[from:to])) {
			return row
		}
	}
	return -1
}

func ascii(b []byte) bool {
	for len(b) >= 32 {
		acc := binary.LittleEndian.Uint64(b) | binary.LittleEndian.Uint64(b[8:]) | binary.LittleEndian.Uint64(b[16:]) | binary.LittleEndian.Uint64(b[24:])
		if acc&0x8080808080808080 != 0 {
			return false
		}
		b = b[32:]
	}
	acc := byte(0)
	for _, c := range b {
		acc |= c
	}
	return acc < 0x80
}

// above is the first position whose value is not below limit, or -1.
func above(v []uint32, limit uint32) int {
	top := uint32(0)
	for _, x := range v {
		top = max(top, x)
	}
	if top < limit {
		return -1
	}
	for i, x := range v {
		if x >= limit {
			return i
		}
	}
	return -1
}
