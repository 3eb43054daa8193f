package vector

import (
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
)

// eval brings n.out up to date for the rows of s.
//
// A node that was evaluated for a selection serves every selection below it. For another one it is
// computed again, over the old lanes. That is safe because whoever still needs the old ones has copied
// them: a strict node and its arguments share one selection, and a choice copies a branch before it
// evaluates the next.
func (p *Program) eval(n *node, s *selection) {
	if n.konst {
		p.fillConst(n)
		return
	}
	if n.evaluated(p, s) || p.loadErr != nil {
		return
	}
	switch n.op {
	case OpColumn:
		p.column(n)
		n.epoch, n.under = p.epoch, &p.root
		return
	case OpMeta:
		p.metadata(n)
		n.epoch, n.under = p.epoch, &p.root
		return
	}
	if len(s.rows) == 0 {
		n.out.begin(n.form, s.n)
		if n.form == formStruct {
			n.emptyStruct(s.n)
		}
		n.epoch, n.under = p.epoch, s
		return
	}
	switch n.op {
	case OpCall:
		p.call(n, s)
	case OpAnd:
		p.logic(n, s, false)
	case OpOr:
		p.logic(n, s, true)
	case OpCond:
		p.cond(n, s)
	case OpCoalesce:
		p.coalesce(n, s)
	case OpField:
		p.fieldOf(n, s)
	case OpLet:
		p.let(n, s)
	case OpFallback:
		p.fallback(n, s)
	}
	n.epoch, n.under = p.epoch, s
}

// emptyStruct stands for a struct array that no row of is looked at.
func (n *node) emptyStruct(lanes int) {
	n.out.form = formAny
	n.out.v = sized(&n.out.vbuf, lanes)
}

func (p *Program) fillConst(n *node) { n.fillTo(p.batch.Rows) }

// fillTo makes a constant hold at least rows lanes.
func (n *node) fillTo(rows int) {
	if n.filled >= rows && n.filled > 0 {
		return
	}
	n.filled = max(rows, 1024)
	n.out.fill(n.typ, n.value, n.filled)
	n.out.form = n.form
}

func (p *Program) column(n *node) {
	var arr arrow.Array
	if n.column < len(p.batch.Columns) {
		arr = p.batch.Columns[n.column]
	}
	if arr == nil {
		p.loadErr = fmt.Errorf("vector: column %d is needed and was not given", n.column)
		return
	}
	if arr.Len() != p.batch.Rows {
		p.loadErr = fmt.Errorf("vector: column %d has %d rows, the batch %d", n.column, arr.Len(), p.batch.Rows)
		return
	}
	if err := n.out.load(arr, n.typ); err != nil {
		p.loadErr = err
		return
	}
	if !n.typ.Nullable {
		n.out.valid = nil // rows where it is null are not selected
	}
	n.out.arr = arr
}

func (p *Program) metadata(n *node) {
	b, o := p.batch, &n.out
	o.begin(n.form, b.Rows)
	ints := func(from []int64) {
		if from == nil {
			for i := range int32(b.Rows) {
				o.setNull(i)
			}
			return
		}
		copy(o.i, from)
	}
	switch n.meta {
	case MetaTime:
		ints(b.Time)
	case MetaAppendTime:
		ints(b.AppendTime)
	case MetaOffset:
		ints(b.Offsets)
	case MetaPartition:
		for i := range o.i {
			o.i[i] = int64(b.Partition)
		}
	case MetaKey:
		for i := range b.Rows {
			o.s.str[i] = ""
			if b.Key == nil || b.Key[i] == nil {
				o.setNull(int32(i))
			} else {
				o.s.str[i] = view(b.Key[i])
			}
		}
	case MetaTopic:
		for i := range b.Rows {
			o.s.str[i] = ""
			if b.Origin == nil {
				o.setNull(int32(i))
			} else {
				o.s.str[i] = b.Origin(i).Topic
			}
		}
	}
}

// call evaluates a strict function: all arguments, then the kernel on the rows that are left.
func (p *Program) call(n *node, s *selection) {
	for _, a := range n.args {
		p.eval(a, s)
	}
	if p.loadErr != nil {
		return
	}
	o := &n.out
	o.begin(n.form, s.n)
	if n.nullSafe {
		for _, a := range n.vecs {
			o.inherit(a, s)
		}
		n.run(o, n.vecs, s)
		return
	}
	o.strict(n.vecs, s)
	r := s
	if n.onlyLive && (o.valid != nil || o.errs != nil) {
		n.live = n.live[:0]
		for _, i := range s.rows {
			if o.alive(i) {
				n.live = append(n.live, i)
			}
		}
		r = &selection{rows: n.live, n: s.n, parent: s}
	}
	if n.dict != nil && n.dict.eval(n, r) {
		return
	}
	n.run(o, n.vecs, r)
}

// logic is Kleene's and (decides false) or or (decides true). The right side sees the rows that the
// left one does not decide.
func (p *Program) logic(n *node, s *selection, decides bool) {
	l, r := n.args[0], n.args[1]
	p.eval(l, s)
	if p.loadErr != nil {
		return
	}
	o := &n.out
	o.begin(formBool, s.n)
	open := p.sub(s)
	a := &l.out
	null := l.typ.Kind == scalar.KindNull
	rows := sized(&open.rows, len(s.rows))
	k := 0
	if a.valid == nil && a.errs == nil && !null {
		for _, i := range s.rows {
			x := a.b[i]
			o.b[i] = x
			rows[k] = i
			k += int(bit(x != decides))
		}
	} else {
		for _, i := range s.rows {
			switch {
			case a.failed(i):
				o.fail(i, a.errs[i])
			case null || !a.isValid(i):
				o.setNull(i)
				rows[k] = i
				k++
			default:
				o.b[i] = a.b[i]
				if a.b[i] != decides {
					rows[k] = i
					k++
				}
			}
		}
	}
	open.rows = rows[:k]
	open.dense = k == s.n
	if k == 0 {
		return
	}
	p.eval(r, open)
	if p.loadErr != nil {
		return
	}
	b := &r.out
	if b.valid == nil && b.errs == nil && o.valid == nil && r.typ.Kind != scalar.KindNull {
		for _, i := range open.rows {
			o.b[i] = b.b[i]
		}
		return
	}
	for _, i := range open.rows {
		switch {
		case b.failed(i):
			o.fail(i, b.errs[i])
		case r.typ.Kind == scalar.KindNull || !b.isValid(i):
			o.setNull(i)
		case b.b[i] == decides:
			o.b[i] = decides
			if o.valid != nil {
				o.valid[i] = true // the left side may have been null
			}
		default:
			o.b[i] = !decides // null stays null
		}
	}
}

// cond copies each branch as soon as it is evaluated: the other one may use the same nodes.
func (p *Program) cond(n *node, s *selection) {
	c := n.args[0]
	p.eval(c, s)
	if p.loadErr != nil {
		return
	}
	o := &n.out
	o.begin(n.form, s.n)
	yes, no := p.sub(s), p.sub(s)
	ys, ns := sized(&yes.rows, len(s.rows)), sized(&no.rows, len(s.rows))
	y, m := 0, 0
	for _, i := range s.rows {
		switch {
		case c.out.failed(i):
			o.fail(i, c.out.errs[i])
		case c.out.isValid(i) && c.out.b[i]:
			ys[y] = i
			y++
		default:
			ns[m] = i
			m++
		}
	}
	yes.rows, no.rows = ys[:y], ns[:m]
	yes.dense, no.dense = y == s.n, m == s.n
	p.branch(n, n.args[1], yes)
	p.branch(n, n.args[2], no)
}

// branch evaluates a branch for its rows and copies it into n.
func (p *Program) branch(n, b *node, s *selection) {
	if len(s.rows) == 0 {
		return
	}
	p.eval(b, s)
	switch {
	case p.loadErr != nil:
	case b.typ.Kind == scalar.KindNull:
		for _, i := range s.rows {
			if b.out.failed(i) {
				n.out.fail(i, b.out.errs[i])
			} else {
				n.out.setNull(i)
			}
		}
	default:
		n.out.copyFrom(&b.out, &b.typ, s)
	}
}

func (p *Program) coalesce(n *node, s *selection) {
	l := n.args[0]
	p.eval(l, s)
	if p.loadErr != nil {
		return
	}
	o := &n.out
	o.begin(n.form, s.n)
	have, open := p.sub(s), p.sub(s)
	for _, i := range s.rows {
		if l.typ.Kind == scalar.KindNull && !l.out.failed(i) || !l.out.isValid(i) && !l.out.failed(i) {
			open.rows = append(open.rows, i)
		} else {
			have.rows = append(have.rows, i)
		}
	}
	open.dense = len(open.rows) == s.n
	if l.typ.Kind == scalar.KindNull {
		o.inherit(&l.out, s)
	} else {
		o.copyFrom(&l.out, &l.typ, have)
	}
	p.branch(n, n.args[1], open)
}

// let evaluates what is bound, whether or not the body asks for it.
func (p *Program) let(n *node, s *selection) {
	p.eval(n.args[0], s)
	p.eval(n.args[1], s)
	if p.loadErr != nil {
		return
	}
	n.out.begin(n.form, s.n)
	n.out.inherit(&n.args[0].out, s)
	if n.args[1].typ.Kind == scalar.KindNull {
		n.out.inherit(&n.args[1].out, s)
		for _, i := range s.rows {
			n.out.setNull(i)
		}
		return
	}
	n.out.copyFrom(&n.args[1].out, &n.args[1].typ, s)
}

// fieldOf reads a field of a struct column as a column of its own, or of boxed structs one by one.
func (p *Program) fieldOf(n *node, s *selection) {
	parent := n.args[0]
	p.eval(parent, s)
	if p.loadErr != nil {
		return
	}
	o := &n.out
	a, isColumn := parent.out.arr.(*array.Struct)
	if !isColumn || parent.out.form != formStruct {
		o.begin(n.form, s.n)
		if n.form == formStruct {
			n.emptyStruct(s.n)
		}
		o.inherit(&parent.out, s)
		for _, i := range s.rows {
			switch {
			case o.failed(i):
			case !parent.out.isValid(i):
				o.setNull(i)
			default:
				o.set(i, parent.out.v[i].L[n.field])
			}
		}
		return
	}
	if err := o.load(a.Field(n.field), n.typ); err != nil {
		p.loadErr = err
		return
	}
	o.arr, o.whole = a.Field(n.field), true
	o.inherit(&parent.out, s)
	if !n.typ.Nullable {
		o.valid = nil // in the rows of s, the struct and the field are there
		return
	}
	if pv := parent.out.valid; pv != nil && parent.typ.Nullable {
		o.whole = false
		o.ownValid()
		for i, v := range pv {
			o.valid[i] = o.valid[i] && v
		}
	}
}

// fallback calls the function for each row.
func (p *Program) fallback(n *node, s *selection) {
	o := &n.out
	o.begin(n.form, s.n)
	for _, i := range s.rows {
		v, c := n.fallback(p.batch, int(i))
		if c != scalar.CodeNone {
			o.fail(i, c)
			continue
		}
		if n.form == formText && v.IsNull() {
			o.s.str[i] = ""
		}
		o.set(i, v)
	}
}

// rowByRow is the kernel of a function that has none: its reference function for each row.
func rowByRow(n *node) kernel {
	eval, types := n.fn.Eval, make([]scalar.Type, len(n.args))
	for i, a := range n.args {
		types[i] = a.typ
	}
	return func(o *vec, a []*vec, s *selection) {
		vals := make([]scalar.Value, len(a))
		for _, i := range s.rows {
			if o.failed(i) {
				continue
			}
			for j := range a {
				vals[j] = a[j].get(&types[j], i)
			}
			v, c := eval(vals)
			if c != scalar.CodeNone {
				o.fail(i, c)
				continue
			}
			o.set(i, v)
		}
	}
}

// A dictionary computes a function of one string once for each value of a dictionary column.
type dictionary struct {
	arg  int // the only argument that is not constant
	out  vec
	vecs []*vec
	str  vec
	all  selection
}

func dictionaryOf(n *node) *dictionary {
	if n.nullSafe || n.form == formStruct {
		return nil
	}
	at := -1
	for i, a := range n.args {
		switch {
		case a.konst:
		case at >= 0 || a.form != formText:
			return nil
		default:
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	return &dictionary{arg: at}
}

// eval computes n over the dictionary, if there is one and that is less work than the rows of s.
func (d *dictionary) eval(n *node, s *selection) bool {
	in := &n.args[d.arg].out
	if in.s.dict == nil || 2*len(in.s.dict) > len(s.rows) {
		return false
	}
	m := len(in.s.dict)
	for i, a := range n.args {
		if i != d.arg {
			a.fillTo(m)
		}
	}
	d.vecs = append(d.vecs[:0], n.vecs...)
	d.str.form, d.str.n, d.str.s = formText, m, text{str: in.s.dict[:m:m]}
	d.vecs[d.arg] = &d.str
	for len(d.all.rows) < m {
		d.all.rows = append(d.all.rows, int32(len(d.all.rows)))
	}
	all := selection{rows: d.all.rows[:m], n: m, dense: true}
	d.out.begin(n.form, m)
	n.run(&d.out, d.vecs, &all)
	o, codes := &n.out, in.s.codes
	gather(o, &d.out, codes, s)
	if n.form == formText && d.out.errs == nil && d.out.valid == nil {
		o.s.codes, o.s.dict = codes, d.out.s.str[:m]
	}
	d.str.s = text{}
	return true
}

// gather sets the rows of s to what the dictionary lanes of d say.
func gather(o, d *vec, codes []int32, s *selection) {
	switch o.form {
	case formInt:
		for _, i := range s.rows {
			o.i[i] = d.i[codes[i]]
		}
	case formFloat:
		for _, i := range s.rows {
			o.f[i] = d.f[codes[i]]
		}
	case formBool:
		for _, i := range s.rows {
			o.b[i] = d.b[codes[i]]
		}
	case formDecimal:
		for _, i := range s.rows {
			o.d[i] = d.d[codes[i]]
		}
	case formText:
		for _, i := range s.rows {
			if d.alive(codes[i]) {
				o.s.str[i] = d.s.str[codes[i]]
			}
		}
	default:
		for _, i := range s.rows {
			if d.alive(codes[i]) {
				o.v[i] = d.v[codes[i]]
			}
		}
	}
	if d.valid == nil && d.errs == nil {
		return
	}
	for _, i := range s.rows {
		if !o.alive(i) {
			continue
		}
		switch c := codes[i]; {
		case d.failed(c):
			o.fail(i, d.errs[c])
		case !d.isValid(c):
			o.setNull(i)
		}
	}
}
