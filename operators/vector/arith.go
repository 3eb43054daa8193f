package vector

import (
	"math"
	"math/bits"

	"github.com/headrace/headrace/internal/scalar"
)

// arithmetic finds a kernel for numbers. The fast loops compute every lane, garbage included, and only
// notice that something overflowed; then a second pass finds the rows.
func (n *node) arithmetic(name string) kernel {
	kinds := make([]scalar.Kind, len(n.args))
	ints, floats, decimals := true, true, true
	unsigned := false
	for i, a := range n.args {
		kinds[i] = a.typ.Kind
		ints = ints && a.form == formInt
		floats = floats && a.form == formFloat
		decimals = decimals && a.form == formDecimal
		unsigned = unsigned || a.typ.Kind == scalar.KindUint64
	}
	code := scalar.CodeOverflow
	if n.typ.Kind == scalar.KindTime {
		code = scalar.CodeTimeRange
	}
	switch {
	case ints && unsigned:
		return n.uintArithmetic(name)
	case ints:
		return n.intArithmetic(name, code)
	case floats && len(n.args) > 0:
		return n.floatArithmetic(name)
	case decimals && len(n.args) == 2:
		return n.decimalArithmetic(name)
	case name == "add" && n.form == formText:
		n.onlyLive = true
		return n.concat()
	case (name == "div_op" || name == "mod_op") && len(n.args) == 2 && n.args[0].form == formFloat && n.args[1].form == formInt:
		return n.floatByInt(name == "mod_op", kinds[1])
	}
	return nil
}

func (n *node) intArithmetic(name string, code scalar.Code) kernel {
	switch name {
	case "add":
		return checked(addInts, scalar.AddInt64, code)
	case "sub":
		return checked(subInts, scalar.SubInt64, code)
	case "mul":
		return checked(mulInts, scalar.MulInt64, code)
	case "div_op":
		if n.form == formFloat {
			return n.intRatio(false)
		}
		return divide(false)
	case "div":
		return divide(false)
	case "mod_op", "mod":
		return divide(true)
	case "wrap_add":
		return plainInts(func(a, b int64) int64 { return a + b })
	case "wrap_mul":
		return plainInts(func(a, b int64) int64 { return a * b })
	case "bitand":
		return plainInts(func(a, b int64) int64 { return a & b })
	case "bitor":
		return plainInts(func(a, b int64) int64 { return a | b })
	case "bitxor":
		return plainInts(func(a, b int64) int64 { return a ^ b })
	case "neg":
		return func(o *vec, a []*vec, s *selection) {
			x := a[0].i
			for _, i := range s.rows {
				o.i[i] = -x[i]
				if x[i] == math.MinInt64 && o.alive(i) {
					o.fail(i, scalar.CodeOverflow)
				}
			}
		}
	case "abs":
		return func(o *vec, a []*vec, s *selection) {
			x := a[0].i
			for _, i := range s.rows {
				o.i[i] = max(x[i], -x[i])
				if x[i] == math.MinInt64 && o.alive(i) {
					o.fail(i, scalar.CodeOverflow)
				}
			}
		}
	}
	return nil
}

// checked runs a loop that reports whether any lane overflowed.
func checked(loop func(dst, a, b []int64, s *selection) bool, op func(a, b int64) (int64, bool), code scalar.Code) kernel {
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].i, a[1].i
		if !loop(o.i, x, y, s) {
			return
		}
		for _, i := range s.rows {
			if _, ok := op(x[i], y[i]); !ok && o.alive(i) {
				o.fail(i, code)
			}
		}
	}
}

func addInts(dst, a, b []int64, s *selection) bool {
	over := int64(0)
	if s.dense {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			r := a[i] + b[i]
			over |= (a[i] ^ r) & (b[i] ^ r)
			dst[i] = r
		}
		return over < 0
	}
	for _, i := range s.rows {
		r := a[i] + b[i]
		over |= (a[i] ^ r) & (b[i] ^ r)
		dst[i] = r
	}
	return over < 0
}

func subInts(dst, a, b []int64, s *selection) bool {
	over := int64(0)
	if s.dense {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			r := a[i] - b[i]
			over |= (a[i] ^ b[i]) & (a[i] ^ r)
			dst[i] = r
		}
		return over < 0
	}
	for _, i := range s.rows {
		r := a[i] - b[i]
		over |= (a[i] ^ b[i]) & (a[i] ^ r)
		dst[i] = r
	}
	return over < 0
}

func mulInts(dst, a, b []int64, s *selection) bool {
	over := int64(0)
	for _, i := range s.rows {
		x, y := a[i], b[i]
		hi, lo := bits.Mul64(uint64(x), uint64(y))
		high := int64(hi) - (x>>63)&y - (y>>63)&x
		over |= high ^ int64(lo)>>63
		dst[i] = int64(lo)
	}
	return over != 0
}

func plainInts(op func(a, b int64) int64) kernel {
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].i, a[1].i
		for _, i := range s.rows {
			o.i[i] = op(x[i], y[i])
		}
	}
}

// divide is truncated division or its remainder.
func divide(rem bool) kernel {
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].i, a[1].i
		for _, i := range s.rows {
			d := y[i]
			switch {
			case d == 0:
				if o.alive(i) {
					o.fail(i, scalar.CodeDivisionByZero)
				}
			case d == -1 && rem:
				o.i[i] = 0
			case d == -1:
				if x[i] == math.MinInt64 && o.alive(i) {
					o.fail(i, scalar.CodeOverflow)
				}
				o.i[i] = -x[i]
			case rem:
				o.i[i] = x[i] % d
			default:
				o.i[i] = x[i] / d
			}
		}
	}
}

// intRatio is `/` of two integers, a float.
func (n *node) intRatio(unsigned bool) kernel {
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].i, a[1].i
		for _, i := range s.rows {
			if y[i] == 0 {
				if o.alive(i) {
					o.fail(i, scalar.CodeDivisionByZero)
				}
				continue
			}
			if unsigned {
				o.f[i] = float64(uint64(x[i])) / float64(uint64(y[i]))
			} else {
				o.f[i] = float64(x[i]) / float64(y[i])
			}
		}
	}
}

func (n *node) uintArithmetic(name string) kernel {
	if n.form == formInt && n.typ.Kind != scalar.KindUint64 {
		return nil
	}
	switch name {
	case "add":
		return uints(func(a, b uint64) (uint64, bool) {
			r, c := bits.Add64(a, b, 0)
			return r, c == 0
		})
	case "sub":
		return uints(func(a, b uint64) (uint64, bool) {
			r, c := bits.Sub64(a, b, 0)
			return r, c == 0
		})
	case "mul":
		return uints(func(a, b uint64) (uint64, bool) {
			hi, lo := bits.Mul64(a, b)
			return lo, hi == 0
		})
	case "div_op":
		return n.intRatio(true)
	case "div", "mod", "mod_op":
		rem := name != "div"
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].i, a[1].i
			for _, i := range s.rows {
				switch {
				case y[i] == 0:
					if o.alive(i) {
						o.fail(i, scalar.CodeDivisionByZero)
					}
				case rem:
					o.i[i] = int64(uint64(x[i]) % uint64(y[i]))
				default:
					o.i[i] = int64(uint64(x[i]) / uint64(y[i]))
				}
			}
		}
	case "wrap_add", "wrap_mul", "bitand", "bitor", "bitxor":
		return n.intArithmetic(name, scalar.CodeNone)
	}
	return nil
}

func uints(op func(a, b uint64) (uint64, bool)) kernel {
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].i, a[1].i
		for _, i := range s.rows {
			r, ok := op(uint64(x[i]), uint64(y[i]))
			o.i[i] = int64(r)
			if !ok && o.alive(i) {
				o.fail(i, scalar.CodeOverflow)
			}
		}
	}
}

func (n *node) floatArithmetic(name string) kernel {
	switch name {
	case "add":
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].f, a[1].f
			for _, i := range s.rows {
				o.f[i] = x[i] + y[i]
			}
		}
	case "sub":
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].f, a[1].f
			for _, i := range s.rows {
				o.f[i] = x[i] - y[i]
			}
		}
	case "mul":
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].f, a[1].f
			for _, i := range s.rows {
				o.f[i] = float64(x[i] * y[i]) // rounded here, never fused with an addition
			}
		}
	case "div_op":
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].f, a[1].f
			for _, i := range s.rows {
				o.f[i] = x[i] / y[i]
			}
		}
	case "mod_op":
		return func(o *vec, a []*vec, s *selection) {
			x, y := a[0].f, a[1].f
			for _, i := range s.rows {
				o.f[i] = math.Mod(x[i], y[i])
			}
		}
	case "neg":
		return func(o *vec, a []*vec, s *selection) {
			x := a[0].f
			for _, i := range s.rows {
				o.f[i] = -x[i]
			}
		}
	case "abs":
		return func(o *vec, a []*vec, s *selection) {
			x := a[0].f
			for _, i := range s.rows {
				o.f[i] = math.Abs(x[i])
			}
		}
	}
	return nil
}

// floatByInt divides a float by an integer, whose zero is an error.
func (n *node) floatByInt(rem bool, k scalar.Kind) kernel {
	unsigned := k == scalar.KindUint64
	return func(o *vec, a []*vec, s *selection) {
		x, y := a[0].f, a[1].i
		for _, i := range s.rows {
			if y[i] == 0 {
				if o.alive(i) {
					o.fail(i, scalar.CodeDivisionByZero)
				}
				continue
			}
			d := float64(y[i])
			if unsigned {
				d = float64(uint64(y[i]))
			}
			if rem {
				o.f[i] = math.Mod(x[i], d)
			} else {
				o.f[i] = x[i] / d
			}
		}
	}
}

// decimalArithmetic works on live rows only: what garbage costs is more than the check.
func (n *node) decimalArithmetic(name string) kernel {
	sa, sb, r := n.args[0].typ.Scale, n.args[1].typ.Scale, n.typ
	n.onlyLive = true
	switch name {
	case "add", "sub":
		op := scalar.DecimalAdd
		if name == "sub" {
			op = scalar.DecimalSub
		}
		ua, ub := scalar.Pow10(r.Scale-sa), scalar.Pow10(r.Scale-sb)
		same := sa == sb
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				x, y := a[0].d[i], a[1].d[i]
				if !same {
					var ok1, ok2 bool
					x, ok1 = x.Mul(ua)
					y, ok2 = y.Mul(ub)
					if !ok1 || !ok2 {
						o.fail(i, scalar.CodeDecimalOverflow)
						continue
					}
				}
				d, c := op(x, y, r.Precision)
				if c != scalar.CodeNone {
					o.fail(i, c)
					continue
				}
				o.d[i] = d
			}
		}
	case "mul":
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				d, c := scalar.DecimalMul(a[0].d[i], a[1].d[i], r.Precision)
				if c != scalar.CodeNone {
					o.fail(i, c)
					continue
				}
				o.d[i] = d
			}
		}
	case "div_op":
		shift := r.Scale - sa + sb
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				d, c := scalar.DecimalDiv(a[0].d[i], a[1].d[i], shift, r.Precision)
				if c != scalar.CodeNone {
					o.fail(i, c)
					continue
				}
				o.d[i] = d
			}
		}
	}
	n.onlyLive = false
	return nil
}
