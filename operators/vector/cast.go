package vector

import (
	"strconv"

	"github.com/headrace/headrace/internal/scalar"
)

// cast finds the kernel of a conversion.
func (n *node) cast() kernel {
	from, to := n.args[0].typ, n.typ
	in := n.args[0].form
	fk, tk := from.Kind, to.Kind
	switch {
	case from.Same(to.NonNull().OrNull(from.Nullable)) && in != formAny && in != formStruct:
		t := from
		return func(o *vec, a []*vec, s *selection) { o.copyFrom(lanesOnly(a[0]), &t, s) }
	case fk.Integer() && tk.Integer():
		if wider(fk, tk) {
			return func(o *vec, a []*vec, s *selection) { copyLanes(o.i, a[0].i, s) }
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				x := a[0].i[i]
				o.i[i] = x
				if !scalar.CheckInt(x, fk, tk) && o.alive(i) {
					o.fail(i, scalar.CodeBadCast)
				}
			}
		}
	case fk == scalar.KindUint64 && tk == scalar.KindFloat64:
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.f[i] = float64(uint64(a[0].i[i]))
			}
		}
	case fk.Integer() && tk == scalar.KindFloat64:
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.f[i] = float64(a[0].i[i])
			}
		}
	case fk == scalar.KindFloat32 && tk == scalar.KindFloat64:
		return func(o *vec, a []*vec, s *selection) { copyLanes(o.f, a[0].f, s) }
	case fk.Float() && tk.Integer():
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := scalar.FloatToInt(a[0].f[i], tk)
				o.i[i] = v
				if !ok && o.alive(i) {
					o.fail(i, scalar.CodeBadCast)
				}
			}
		}
	case fk.Integer() && tk == scalar.KindDecimal, fk == scalar.KindDecimal && tk == scalar.KindDecimal:
		return n.toDecimal(from, to)
	case fk == scalar.KindDecimal && tk == scalar.KindFloat64:
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.f[i] = scalar.DecimalToFloat(a[0].d[i], from.Scale)
			}
		}
	case fk == scalar.KindDecimal && tk.Integer():
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := scalar.DecimalToInt(a[0].d[i], from.Scale, tk)
				o.i[i] = v
				if !ok {
					o.fail(i, scalar.CodeBadCast)
				}
			}
		}
	case fk == scalar.KindString && tk.Integer():
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := scalar.ParseInt(a[0].s.at(i), tk)
				o.i[i] = v
				if !ok {
					o.fail(i, scalar.CodeBadCast)
				}
			}
		}
	case fk == scalar.KindString && tk == scalar.KindFloat64:
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := scalar.ParseFloat(a[0].s.at(i), tk)
				o.f[i] = v
				if !ok {
					o.fail(i, scalar.CodeBadCast)
				}
			}
		}
	case fk == scalar.KindString && tk == scalar.KindDecimal:
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				d, c := scalar.ParseDecimalAs(a[0].s.at(i), to.Precision, to.Scale)
				o.d[i] = d
				if c != scalar.CodeNone {
					o.fail(i, c)
				}
			}
		}
	case fk.Integer() && tk == scalar.KindString:
		n.onlyLive = true
		unsigned := fk == scalar.KindUint64
		w := &n.arena
		return func(o *vec, a []*vec, s *selection) {
			w.begin()
			for _, i := range s.rows {
				if unsigned {
					w.buf = strconv.AppendUint(w.buf, uint64(a[0].i[i]), 10)
				} else {
					w.buf = strconv.AppendInt(w.buf, a[0].i[i], 10)
				}
				w.put(o, i)
			}
		}
	case (fk == scalar.KindTime || fk == scalar.KindDecimal || fk == scalar.KindDate || fk == scalar.KindDuration) && tk == scalar.KindString:
		n.onlyLive = true
		w := &n.arena
		return func(o *vec, a []*vec, s *selection) {
			w.begin()
			for _, i := range s.rows {
				w.buf, _ = scalar.AppendText(w.buf, a[0].get(&from, i), from)
				w.put(o, i)
			}
		}
	case fk == scalar.KindString && tk == scalar.KindBytes:
		n.onlyLive = true
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.s.str[i] = a[0].s.at(i)
			}
		}
	}
	return nil
}

// lanesOnly is a view of a without its nulls and errors, which the caller has dealt with.
func lanesOnly(a *vec) *vec {
	v := *a
	v.valid, v.errs = nil, nil
	return &v
}

// wider says whether every value of one integer kind is one of the other.
func wider(from, to scalar.Kind) bool {
	lo, hi := int64(0), int64(0)
	switch from {
	case scalar.KindInt8:
		lo, hi = -1<<7, 1<<7-1
	case scalar.KindInt16:
		lo, hi = -1<<15, 1<<15-1
	case scalar.KindInt32:
		lo, hi = -1<<31, 1<<31-1
	case scalar.KindInt64:
		lo, hi = -1<<63, 1<<63-1
	case scalar.KindUint8:
		hi = 1<<8 - 1
	case scalar.KindUint16:
		hi = 1<<16 - 1
	case scalar.KindUint32:
		hi = 1<<32 - 1
	default:
		return to == scalar.KindUint64
	}
	return scalar.CheckInt(lo, from, to) && scalar.CheckInt(hi, from, to)
}

// toDecimal scales integers and decimals.
func (n *node) toDecimal(from, to scalar.Type) kernel {
	n.onlyLive = true
	p, s := to.Precision, to.Scale
	unsigned := from.Kind == scalar.KindUint64
	return func(o *vec, a []*vec, sel *selection) {
		for _, i := range sel.rows {
			var d scalar.Int128
			fs := int32(0)
			switch {
			case a[0].form == formDecimal:
				d, fs = a[0].d[i], from.Scale
			case unsigned:
				d = scalar.Uint128Of(uint64(a[0].i[i]))
			default:
				d = scalar.Int128Of(a[0].i[i])
			}
			r, c := scalar.DecimalRescale(d, fs, s, p)
			o.d[i] = r
			if c != scalar.CodeNone {
				o.fail(i, c)
			}
		}
	}
}
