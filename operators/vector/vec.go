package vector

import (
	"unsafe"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
)

// A form is how values lie in a vec. All integers are 64 bits wide in here, whatever their type.
type form uint8

const (
	formInt   form = iota // integers (unsigned: their bits), time, duration, date
	formFloat             // both widths; a float32 is exact
	formBool
	formText    // string, bytes
	formDecimal // unscaled digits
	formStruct  // the struct array itself; its fields are read from it
	formAny     // lists, maps, structs that were made here
)

func formOf(t scalar.Type) form {
	switch k := t.Kind; {
	case k.Integer(), k == scalar.KindTime, k == scalar.KindDuration, k == scalar.KindDate:
		return formInt
	case k.Float():
		return formFloat
	case k == scalar.KindBool:
		return formBool
	case k == scalar.KindString, k == scalar.KindBytes:
		return formText
	case k == scalar.KindDecimal:
		return formDecimal
	}
	return formAny
}

// A selection is a set of rows, ascending.
type selection struct {
	rows   []int32
	n      int  // lanes: the rows of the batch
	dense  bool // rows is 0, 1, .. n-1
	parent *selection
}

// within says whether s is t or was made from it.
func (s *selection) within(t *selection) bool {
	for ; s != nil; s = s.parent {
		if s == t {
			return true
		}
	}
	return false
}

// text holds strings one by one, as Arrow does, or by the codes of a dictionary. A text may have a
// dictionary beside its strings.
type text struct {
	str  []string
	off  []int32 // with data, if str is nil
	data []byte

	codes []int32 // dict[codes[i]] is row i, if it is not null
	dict  []string
}

func (t *text) at(i int32) string {
	if t.str != nil {
		return t.str[i]
	}
	return t.slow(i)
}

func (t *text) slow(i int32) string {
	if t.off == nil {
		return t.dict[t.codes[i]]
	}
	from, to := t.off[i], t.off[i+1]
	return unsafe.String(unsafe.SliceData(t.data[from:to]), int(to-from))
}

// A vec is one column of values with lanes for validity and errors. Only the lanes of its form are
// set; in rows that were not selected, are null or failed, they hold anything (but never a dangling
// string).
//
// Lanes may be shared with Arrow memory or, when the whole batch is selected, with another vec. The
// buffers are the vec's own and stay for the next batch.
type vec struct {
	form  form
	n     int
	i     []int64
	f     []float64
	b     []bool
	d     []scalar.Int128
	s     text
	v     []scalar.Value
	arr   arrow.Array   // formStruct, or what a column shows
	whole bool          // arr is a field whose nulls are all there are
	valid []bool        // nil: no nulls
	errs  []scalar.Code // nil: no errors

	sharedValid, sharedErrs bool

	ibuf     []int64
	fbuf     []float64
	bbuf     []bool
	dbuf     []scalar.Int128
	strbuf   []string
	codebuf  []int32
	vbuf     []scalar.Value
	validbuf []bool
	errsbuf  []scalar.Code
}

func sized[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n+n/4+16)
	}
	*buf = (*buf)[:cap(*buf)]
	return (*buf)[:n]
}

// begin readies the lanes of the form for n rows, without nulls and errors.
func (o *vec) begin(f form, n int) {
	o.form, o.n = f, n
	o.valid, o.errs = nil, nil
	o.sharedValid, o.sharedErrs = false, false
	o.whole = false
	switch f {
	case formInt:
		o.i = sized(&o.ibuf, n)
	case formFloat:
		o.f = sized(&o.fbuf, n)
	case formBool:
		o.b = sized(&o.bbuf, n)
	case formDecimal:
		o.d = sized(&o.dbuf, n)
	case formText:
		o.s = text{str: sized(&o.strbuf, n)}
	case formAny:
		o.v = sized(&o.vbuf, n)
	}
}

// end lets go of everything that is not the vec's own, and of strings that may point elsewhere.
func (o *vec) end() {
	clear(o.strbuf)
	clear(o.vbuf)
	o.i, o.f, o.b, o.d, o.v, o.arr, o.valid, o.errs = nil, nil, nil, nil, nil, nil, nil, nil
	o.s = text{}
}

func (o *vec) isValid(i int32) bool { return o.valid == nil || o.valid[i] }

// alive says whether row i is neither null nor failed.
func (o *vec) alive(i int32) bool {
	return (o.valid == nil || o.valid[i]) && (o.errs == nil || o.errs[i] == scalar.CodeNone)
}

func (o *vec) failed(i int32) bool { return o.errs != nil && o.errs[i] != scalar.CodeNone }

func (o *vec) setNull(i int32) {
	o.ownValid()
	o.valid[i] = false
}

func (o *vec) ownValid() {
	switch {
	case o.valid == nil:
		o.valid = sized(&o.validbuf, o.n)
		for i := range o.valid {
			o.valid[i] = true
		}
	case o.sharedValid:
		own := sized(&o.validbuf, o.n)
		copy(own, o.valid)
		o.valid = own
	}
	o.sharedValid = false
}

// fail marks row i; the first error of a row stays.
func (o *vec) fail(i int32, c scalar.Code) {
	switch {
	case o.errs == nil:
		o.errs = sized(&o.errsbuf, o.n)
		clear(o.errs)
	case o.sharedErrs:
		own := sized(&o.errsbuf, o.n)
		copy(own, o.errs)
		o.errs = own
	}
	o.sharedErrs = false
	if o.errs[i] == scalar.CodeNone {
		o.errs[i] = c
	}
}

// inherit takes over the errors of a, for the rows of s.
func (o *vec) inherit(a *vec, s *selection) {
	if a.errs == nil {
		return
	}
	if o.errs == nil && s.dense {
		o.errs, o.sharedErrs = a.errs, true
		return
	}
	for _, i := range s.rows {
		if c := a.errs[i]; c != scalar.CodeNone {
			o.fail(i, c)
		}
	}
}

// strict makes o null where an argument is null and failed where one failed.
func (o *vec) strict(args []*vec, s *selection) {
	for _, a := range args {
		o.inherit(a, s)
		if a.valid == nil {
			continue
		}
		switch {
		case o.valid == nil && s.dense:
			o.valid, o.sharedValid = a.valid, true
		case o.valid == nil:
			o.ownValid()
			for _, i := range s.rows {
				o.valid[i] = a.valid[i]
			}
		default:
			o.ownValid()
			for _, i := range s.rows {
				o.valid[i] = o.valid[i] && a.valid[i]
			}
		}
	}
}

// get boxes row i, which is valid unless null.
func (o *vec) get(t *scalar.Type, i int32) scalar.Value {
	if o.valid != nil && !o.valid[i] {
		return scalar.Null
	}
	switch o.form {
	case formInt:
		return scalar.Value{Kind: t.Kind, I: o.i[i]}
	case formFloat:
		return scalar.Value{Kind: t.Kind, F: o.f[i]}
	case formBool:
		return scalar.Bool(o.b[i])
	case formText:
		return scalar.Value{Kind: t.Kind, S: o.s.at(i)}
	case formDecimal:
		return scalar.Decimal(o.d[i])
	case formStruct:
		return valueAt(o.arr, *t, int(i))
	}
	return o.v[i]
}

// set stores v in row i.
func (o *vec) set(i int32, v scalar.Value) {
	if v.IsNull() {
		o.setNull(i)
		return
	}
	switch o.form {
	case formInt:
		o.i[i] = v.I
	case formFloat:
		o.f[i] = v.F
	case formBool:
		o.b[i] = v.I != 0
	case formText:
		o.s.str[i] = v.S
	case formDecimal:
		o.d[i] = v.D
	default:
		o.v[i] = v
	}
}

// copyFrom stores the rows of s of a in o: values, nulls and errors. The forms agree, but for a struct
// array that goes into boxes.
func (o *vec) copyFrom(a *vec, t *scalar.Type, s *selection) {
	switch {
	case o.form == formInt:
		for _, i := range s.rows {
			o.i[i] = a.i[i]
		}
	case o.form == formFloat:
		for _, i := range s.rows {
			o.f[i] = a.f[i]
		}
	case o.form == formBool:
		for _, i := range s.rows {
			o.b[i] = a.b[i]
		}
	case o.form == formDecimal:
		for _, i := range s.rows {
			o.d[i] = a.d[i]
		}
	case o.form == formText:
		for _, i := range s.rows {
			if a.alive(i) {
				o.s.str[i] = a.s.at(i)
			}
		}
	default:
		for _, i := range s.rows {
			if a.alive(i) {
				o.v[i] = a.get(t, i)
			}
		}
	}
	if a.valid != nil {
		for _, i := range s.rows {
			if !a.valid[i] {
				o.setNull(i)
			}
		}
	}
	if a.errs != nil {
		for _, i := range s.rows {
			if a.errs[i] != scalar.CodeNone {
				o.fail(i, a.errs[i])
			}
		}
	}
}

// fill makes o hold v in n rows.
func (o *vec) fill(t scalar.Type, v scalar.Value, n int) {
	o.begin(formOf(t), n)
	if v.IsNull() {
		o.valid = sized(&o.validbuf, n)
		clear(o.valid)
		return
	}
	switch o.form {
	case formInt:
		fillLanes(o.i, v.I)
	case formFloat:
		fillLanes(o.f, v.F)
	case formBool:
		fillLanes(o.b, v.I != 0)
	case formText:
		fillLanes(o.s.str, v.S)
	case formDecimal:
		fillLanes(o.d, v.D)
	default:
		fillLanes(o.v, v)
	}
}

func fillLanes[T any](lanes []T, v T) {
	for i := range lanes {
		lanes[i] = v
	}
}
