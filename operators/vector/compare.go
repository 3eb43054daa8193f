package vector

import (
	"cmp"
	"strings"

	"github.com/headrace/headrace/internal/scalar"
)

// comparison finds the kernel of a relation, or of a test for the literal nil.
func (n *node) comparison(name string) kernel {
	if n.nullSafe { // one side is the literal nil
		i := 0
		if n.args[0].typ.Kind == scalar.KindNull {
			i = 1
		}
		if n.args[i].typ.Kind == scalar.KindNull {
			return nil
		}
		return nullTestOf(i, name == "eq")
	}
	return n.relationOf(name)
}

// relationOf compares the first two arguments.
func (n *node) relationOf(name string) kernel {
	x, y := n.args[0], n.args[1]
	if x.typ.Kind == scalar.KindNull || y.typ.Kind == scalar.KindNull {
		return nil
	}
	xu, yu := x.typ.Kind == scalar.KindUint64, y.typ.Kind == scalar.KindUint64
	switch {
	case x.form == formInt && y.form == formInt && !xu && !yu:
		return lanes(name, y.konst, func(v *vec) []int64 { return v.i })
	case x.form == formInt && y.form == formInt && x.typ.Kind.Unsigned() && y.typ.Kind.Unsigned():
		return lanes(name, y.konst, func(v *vec) []uint64 { return as64[uint64](v.i) })
	case x.form == formInt && y.form == formInt && xu:
		return mixed(name, func(a, b *vec, i int32) int { return -scalar.CompareIntUint(b.i[i], uint64(a.i[i])) })
	case x.form == formInt && y.form == formInt:
		return mixed(name, func(a, b *vec, i int32) int { return scalar.CompareIntUint(a.i[i], uint64(b.i[i])) })
	case x.form == formFloat && y.form == formFloat:
		return lanes(name, y.konst, func(v *vec) []float64 { return v.f })
	case x.form == formInt && y.form == formFloat:
		c := intFloat(xu)
		return mixed(name, func(a, b *vec, i int32) int { return c(a.i[i], b.f[i]) })
	case x.form == formFloat && y.form == formInt && y.konst && !y.value.IsNull() && exactFloat(y.value.I):
		return floatAgainst(name, float64(y.value.I))
	case x.form == formFloat && y.form == formInt:
		c := intFloat(yu)
		return mixed(name, func(a, b *vec, i int32) int {
			r := c(b.i[i], a.f[i])
			if r == unordered {
				return r
			}
			return -r
		})
	case x.form == formBool && y.form == formBool:
		want := name == "eq"
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.b[i] = (a[0].b[i] == a[1].b[i]) == want
			}
		}
	case x.form == formDecimal && y.form == formDecimal:
		sx, sy := x.typ.Scale, y.typ.Scale
		if sx == sy {
			return mixed(name, func(a, b *vec, i int32) int { return a.d[i].Cmp(b.d[i]) })
		}
		if y.konst {
			// The constant at the scale of the column, if that is exact.
			if d, c := scalar.DecimalRescale(y.value.D, sy, sx, scalar.MaxPrecision); c == scalar.CodeNone && scalar.DecimalCompare(d, sx, y.value.D, sy) == 0 {
				return mixed(name, func(a, _ *vec, i int32) int { return a.d[i].Cmp(d) })
			}
		}
		return mixed(name, func(a, b *vec, i int32) int { return scalar.DecimalCompare(a.d[i], sx, b.d[i], sy) })
	case x.form == formText && y.form == formText:
		n.onlyLive = true
		if y.konst && (name == "eq" || name == "ne") {
			return textEquals(y.value.S, name == "eq")
		}
		switch name {
		case "eq", "ne":
			want := name == "eq"
			return func(o *vec, a []*vec, s *selection) {
				for _, i := range s.rows {
					o.b[i] = (a[0].s.at(i) == a[1].s.at(i)) == want
				}
			}
		}
		return mixed(name, func(a, b *vec, i int32) int { return strings.Compare(a.s.at(i), b.s.at(i)) })
	}
	return nil
}

// unordered is a comparison with NaN: only `!=` holds.
const unordered = 2

func intFloat(unsigned bool) func(a int64, b float64) int {
	if unsigned {
		return func(a int64, b float64) int {
			if b != b {
				return unordered
			}
			return scalar.CompareUintFloat(uint64(a), b)
		}
	}
	return func(a int64, b float64) int {
		if b != b {
			return unordered
		}
		return scalar.CompareIntFloat(a, b)
	}
}

// mixed compares with a function of -1, 0, 1 or unordered.
func mixed(name string, c func(a, b *vec, i int32) int) kernel {
	var holds [4]bool // by result + 1
	switch name {
	case "eq":
		holds = [4]bool{false, true, false, false}
	case "ne":
		holds = [4]bool{true, false, true, true}
	case "lt":
		holds = [4]bool{true, false, false, false}
	case "le":
		holds = [4]bool{true, true, false, false}
	case "gt":
		holds = [4]bool{false, false, true, false}
	case "ge":
		holds = [4]bool{false, true, true, false}
	}
	return func(o *vec, a []*vec, s *selection) {
		for _, i := range s.rows {
			o.b[i] = holds[(c(a[0], a[1], i)+1)&3]
		}
	}
}

// lanes compares numbers of one machine type. A loop for each relation, so that the comparison is one
// instruction; the dense ones have no index to load either.
func lanes[T cmp.Ordered](name string, konst bool, of func(v *vec) []T) kernel {
	var vv func(dst []bool, x, y []T, rows []int32)
	var vc func(dst []bool, x []T, c T)
	switch name {
	case "eq":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] == c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] == y[i]
			}
		}
	case "ne":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] != c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] != y[i]
			}
		}
	case "lt":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] < c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] < y[i]
			}
		}
	case "le":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] <= c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] <= y[i]
			}
		}
	case "gt":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] > c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] > y[i]
			}
		}
	case "ge":
		vc = func(dst []bool, x []T, c T) {
			for i := range dst {
				dst[i] = x[i] >= c
			}
		}
		vv = func(dst []bool, x, y []T, rows []int32) {
			for _, i := range rows {
				dst[i] = x[i] >= y[i]
			}
		}
	}
	return func(o *vec, a []*vec, s *selection) {
		x, y := of(a[0]), of(a[1])
		if konst && s.dense && len(s.rows) > 0 {
			vc(o.b[:s.n], x[:s.n], y[0])
			return
		}
		vv(o.b, x, y, s.rows)
	}
}

// textEquals compares lengths first, then bytes, without making string headers of columns.
func textEquals(c string, want bool) kernel {
	return func(o *vec, a []*vec, s *selection) {
		t := &a[0].s
		if t.off == nil {
			for _, i := range s.rows {
				o.b[i] = (t.at(i) == c) == want
			}
			return
		}
		off, data := t.off, t.data
		n := int32(len(c))
		for _, i := range s.rows {
			from, to := off[i], off[i+1]
			o.b[i] = (to-from == n && string(data[from:to]) == c) == want
		}
	}
}
