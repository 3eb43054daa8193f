package vector

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A Step is one stage without state: a condition, or a projection whose expressions may fail. All expressions, of every
// step, are over the columns of the batch.
type Step struct {
	Filter  *Expr   // a bool; rows where it is not true leave
	Project []*Expr // else: rows where one fails leave
}

// Steps computes a run of stages without state as one graph: what an early stage has computed, a later one uses, and
// only the columns that leave the last one are made, of the rows that are left. It implements operators.Stepper.
type Steps struct {
	p     *Program
	steps []step
	out   []*node
	took  []operators.StepCount
	rows  []int32
}

type step struct {
	filter *node
	checks []*node // what may fail
	texts  []string
}

var _ operators.Stepper = (*Steps)(nil)

// NewSteps compiles steps and the columns that leave the last of them, as NewProgram does.
func NewSteps(alloc memory.Allocator, steps []Step, out []*Expr, input []scalar.Type) (*Steps, error) {
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	s := &Steps{p: &Program{alloc: alloc, input: input}, took: make([]operators.StepCount, len(steps))}
	c := compiler{p: s.p, shared: map[string]*node{}, memo: map[*Expr]*node{}}
	for i, st := range steps {
		var x step
		if st.Filter != nil {
			n, err := c.node(st.Filter)
			if err != nil {
				return nil, fmt.Errorf("vector: step %d: %w", i, err)
			}
			if n.form != formBool {
				return nil, fmt.Errorf("vector: step %d: a condition of type %s", i, n.typ)
			}
			x.filter, x.texts = n, []string{st.Filter.Text}
		}
		for _, e := range st.Project {
			n, err := c.node(e)
			if err != nil {
				return nil, fmt.Errorf("vector: step %d: %w", i, err)
			}
			if n.mayFail() {
				x.checks, x.texts = append(x.checks, n), append(x.texts, e.Text)
			}
		}
		s.steps = append(s.steps, x)
	}
	for i, e := range out {
		if e == nil {
			s.out = append(s.out, nil)
			continue
		}
		n, err := c.node(e)
		if err != nil {
			return nil, fmt.Errorf("vector: column %d: %w", i, err)
		}
		s.out = append(s.out, n)
	}
	return s, nil
}

// mayFail says whether a node may give a row error.
func (n *node) mayFail() bool {
	switch n.op {
	case OpColumn, OpMeta, OpConst:
		return false
	case OpField:
		return n.args[0].mayFail()
	}
	return true
}

// Steps implements operators.Stepper.
func (s *Steps) Steps(b *operators.Batch) (*operators.StepResult, error) {
	p := s.p
	if err := p.start(b, nil); err != nil {
		return nil, err
	}
	defer p.finish()
	sel := &p.root
	for i := range s.steps {
		st := &s.steps[i]
		took := operators.StepCount{In: len(sel.rows)}
		if len(sel.rows) > 0 {
			failed := false
			if p.texts = st.texts; st.filter != nil {
				before := sel
				sel = p.narrowTo(st.filter, sel, &failed)
				if failed {
					took.Errors = p.errorsAmong(before)
				}
			} else {
				sel = p.narrowToSound(st.checks, sel, &failed)
				if failed {
					took.Errors = p.errorsAmong(sel.parent)
				}
			}
			if p.loadErr != nil {
				return nil, p.loadErr
			}
		}
		took.Out = len(sel.rows)
		s.took[i] = took
	}
	r := &operators.StepResult{Steps: s.took, Rows: sel.rows}
	if len(sel.rows) == 0 {
		return r, nil
	}
	sel.dense = len(sel.rows) == b.Rows
	for {
		columns, tooLong := s.columns(sel)
		if p.loadErr != nil {
			release(columns)
			return nil, p.loadErr
		}
		if len(tooLong) == 0 {
			r.Columns = columns
			break
		}
		release(columns) // without the rows that do not fit
		last := &s.took[len(s.took)-1]
		last.Errors = mergeErrors(last.Errors, tooLong)
		last.Out -= len(tooLong)
		next := p.sub(sel)
		for _, i := range sel.rows {
			if len(tooLong) > 0 && tooLong[0].Row == int(i) {
				tooLong = tooLong[1:]
				continue
			}
			next.rows = append(next.rows, i)
		}
		sel = next
		r.Rows = sel.rows
	}
	s.rows = append(s.rows[:0], r.Rows...)
	if r.Rows = s.rows; len(s.rows) == b.Rows {
		r.Rows = nil
	}
	return r, nil
}

func release(columns []arrow.Array) {
	for _, c := range columns {
		if c != nil {
			c.Release()
		}
	}
}

// mergeErrors merges two lists by row.
func mergeErrors(a, b []operators.RowError) []operators.RowError {
	out := make([]operators.RowError, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Row < b[0].Row {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// errorsAmong lists the recorded errors of the rows of s.
func (p *Program) errorsAmong(s *selection) []operators.RowError {
	var errs []operators.RowError
	for _, i := range s.rows {
		if c := p.rowCode[i]; c != scalar.CodeNone {
			errs = append(errs, operators.RowError{Row: int(i), Code: c, Expr: p.texts[p.rowExpr[i]]})
		}
	}
	return errs
}

// narrowToSound is the rows of s where no check fails, s itself if that is all of them.
func (p *Program) narrowToSound(checks []*node, s *selection, failed *bool) *selection {
	for x, n := range checks {
		p.eval(n, s)
		if p.loadErr != nil {
			return s
		}
		if n.out.errs == nil {
			continue
		}
		for _, i := range s.rows {
			if c := n.out.errs[i]; c != scalar.CodeNone {
				p.record(failed, i, c, x)
			}
		}
	}
	if !*failed {
		return s
	}
	r := p.sub(s)
	for _, i := range s.rows {
		if p.rowCode[i] == scalar.CodeNone {
			r.rows = append(r.rows, i)
		}
	}
	return r
}

// columns makes the columns that leave, of the rows of s. The rows of tooLong have text that does not fit.
func (s *Steps) columns(sel *selection) (columns []arrow.Array, tooLong []operators.RowError) {
	p := s.p
	bad := map[int32]bool{}
	for _, n := range s.out {
		if n == nil {
			columns = append(columns, nil)
			continue
		}
		p.eval(n, sel)
		if p.loadErr != nil {
			return columns, nil
		}
		if n.konst {
			p.fillConst(n)
		}
		if arr := n.shared(); arr != nil {
			if sel.dense {
				arr.Retain()
				columns = append(columns, arr)
			} else {
				columns = append(columns, operators.Gather(p.alloc, arr, sel.rows))
			}
			continue
		}
		fail := func(i int32, c scalar.Code) {
			if !bad[i] {
				bad[i] = true
				tooLong = append(tooLong, operators.RowError{Row: int(i), Code: c, Expr: p.texts[0]})
			}
		}
		if sel.dense {
			columns = append(columns, n.out.store(p.alloc, n.typ, sel, fail))
		} else {
			columns = append(columns, n.out.storeRows(p.alloc, n.typ, sel.rows, fail))
		}
	}
	return columns, tooLong
}

// shared is the array of which a node shows the rows as they are, or nil.
func (n *node) shared() arrow.Array {
	if n.op == OpColumn || n.op == OpField && n.out.whole {
		return n.out.arr
	}
	return nil
}

// storeRows makes an Arrow array of the lanes named by rows. A lane that is null or failed is null in it.
func (o *vec) storeRows(alloc memory.Allocator, t scalar.Type, rows []int32, fail func(i int32, c scalar.Code)) arrow.Array {
	dt := operators.ArrowType(t)
	if o.form == formAny || o.form == formStruct || t.Kind == scalar.KindNull {
		b := array.NewBuilder(alloc, dt)
		defer b.Release()
		b.Reserve(len(rows))
		for _, i := range rows {
			if o.alive(i) {
				operators.AppendValue(b, t, o.get(&t, i))
			} else {
				operators.AppendNull(b)
			}
		}
		return b.NewArray()
	}
	n := len(rows)
	buffers := make([]*memory.Buffer, 2, 3)
	var nulls int
	buffers[0], nulls = o.bitmapRows(alloc, rows)
	switch o.form {
	case formInt:
		buffers[1] = storeIntRows(alloc, t.Kind, o.i, rows)
	case formFloat:
		if t.Kind == scalar.KindFloat32 {
			buffers[1] = newBuffer(alloc, 4*n)
			dst := arrow.Float32Traits.CastFromBytes(buffers[1].Bytes())
			for k, i := range rows {
				dst[k] = float32(o.f[i])
			}
		} else {
			buffers[1] = newBuffer(alloc, 8*n)
			pickLanes(arrow.Float64Traits.CastFromBytes(buffers[1].Bytes()), o.f, rows)
		}
	case formBool:
		buffers[1] = newBuffer(alloc, (n+7)/8)
		dst := buffers[1].Bytes()
		clear(dst)
		for k, i := range rows {
			dst[k/8] |= bit(o.b[i]) << (k % 8)
		}
	case formDecimal:
		buffers[1] = newBuffer(alloc, 16*n)
		dst := arrow.Decimal128Traits.CastFromBytes(buffers[1].Bytes())
		for k, i := range rows {
			dst[k] = operators.Decimal128(o.d[i])
		}
	case formText:
		offsets, data := o.storeTextRows(alloc, rows, fail)
		buffers[1] = offsets
		buffers = append(buffers, data)
	}
	d := array.NewData(dt, n, buffers, nil, nulls, 0)
	for _, b := range buffers {
		if b != nil {
			b.Release()
		}
	}
	arr := array.MakeFromData(d)
	d.Release()
	return arr
}

func pickLanes[T any](dst, from []T, rows []int32) {
	dst = dst[:len(rows)]
	for k, i := range rows {
		dst[k] = from[i]
	}
}

func narrowRows[T int8 | int16 | int32 | uint8 | uint16 | uint32](dst []T, from []int64, rows []int32) {
	dst = dst[:len(rows)]
	for k, i := range rows {
		dst[k] = T(from[i])
	}
}

func storeIntRows(alloc memory.Allocator, k scalar.Kind, from []int64, rows []int32) *memory.Buffer {
	var b *memory.Buffer
	n := len(rows)
	switch k {
	case scalar.KindInt8, scalar.KindUint8:
		b = newBuffer(alloc, n)
		narrowRows(b.Bytes(), from, rows)
	case scalar.KindInt16, scalar.KindUint16:
		b = newBuffer(alloc, 2*n)
		narrowRows(arrow.Int16Traits.CastFromBytes(b.Bytes()), from, rows)
	case scalar.KindInt32, scalar.KindUint32, scalar.KindDate:
		b = newBuffer(alloc, 4*n)
		narrowRows(arrow.Int32Traits.CastFromBytes(b.Bytes()), from, rows)
	default:
		b = newBuffer(alloc, 8*n)
		pickLanes(arrow.Int64Traits.CastFromBytes(b.Bytes()), from, rows)
	}
	return b
}

func (o *vec) bitmapRows(alloc memory.Allocator, rows []int32) (*memory.Buffer, int) {
	if o.valid == nil && o.errs == nil {
		return nil, 0
	}
	b := newBuffer(alloc, (len(rows)+7)/8)
	dst := b.Bytes()
	clear(dst)
	nulls := len(rows)
	for k, i := range rows {
		if o.alive(i) {
			dst[k/8] |= 1 << (k % 8)
			nulls--
		}
	}
	return b, nulls
}

func (o *vec) storeTextRows(alloc memory.Allocator, rows []int32, fail func(i int32, c scalar.Code)) (offsets, data *memory.Buffer) {
	offsets = newBuffer(alloc, 4*(len(rows)+1))
	off := arrow.Int32Traits.CastFromBytes(offsets.Bytes())
	total := 0
	off[0] = 0
	for k, i := range rows {
		if o.alive(i) {
			n := len(o.s.at(i))
			if total+n > maxColumnBytes || total+n > math.MaxInt32 {
				fail(i, scalar.CodeLimit)
				n = 0
			}
			total += n
		}
		off[k+1] = int32(total)
	}
	data = newBuffer(alloc, total)
	dst := data.Bytes()
	for k, i := range rows {
		if from, to := off[k], off[k+1]; from < to {
			copy(dst[from:to], o.s.at(i))
		}
	}
	return offsets, data
}
