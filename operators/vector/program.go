package vector

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A Program computes the expressions of one stage. It implements operators.Selector.
type Program struct {
	alloc memory.Allocator
	input []scalar.Type
	roots []*node
	texts []string
	nodes []*node // all of them, each once

	// The state of one evaluation.
	batch      *operators.Batch
	epoch      uint64
	root       selection
	iota       []int32
	selections []*selection // scratch for lazy nodes, a stack
	used       int
	rowCode    []scalar.Code // first error of each row
	rowExpr    []int32
	loadErr    error
}

// NewProgram compiles exprs over columns of the types input. alloc makes the columns of results; nil is
// Go's heap.
//
// An error means that the tree is not one that a checker made: an unknown function, a wrong type, a
// column out of range.
func NewProgram(alloc memory.Allocator, exprs []*Expr, input []scalar.Type) (*Program, error) {
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	p := &Program{alloc: alloc, input: input}
	c := compiler{p: p, shared: map[string]*node{}}
	for i, e := range exprs {
		n, err := c.node(e)
		if err != nil {
			return nil, fmt.Errorf("vector: expression %d: %w", i, err)
		}
		p.roots = append(p.roots, n)
		p.texts = append(p.texts, e.Text)
	}
	return p, nil
}

var _ operators.Selector = (*Program)(nil)

// Types are the types of the columns that Eval makes.
func (p *Program) Types() []scalar.Type {
	types := make([]scalar.Type, len(p.roots))
	for i, n := range p.roots {
		types[i] = n.typ
	}
	return types
}

// start readies an evaluation of the rows sel of b, or of all.
func (p *Program) start(b *operators.Batch, sel []int32) error {
	if b.Rows < 0 || int64(b.Rows) > 1<<31-1 {
		return fmt.Errorf("vector: a batch of %d rows", b.Rows)
	}
	for _, i := range sel {
		if i < 0 || int(i) >= b.Rows {
			return fmt.Errorf("vector: row %d selected of %d", i, b.Rows)
		}
	}
	for len(p.iota) < b.Rows {
		p.iota = append(p.iota, int32(len(p.iota)))
	}
	p.batch, p.loadErr = b, nil
	p.epoch++
	p.used = 0
	p.root = selection{rows: sel, n: b.Rows}
	if sel == nil || len(sel) == b.Rows {
		p.root.rows, p.root.dense = p.iota[:b.Rows], true
	}
	return nil
}

// finish lets go of the batch.
func (p *Program) finish() {
	for _, n := range p.nodes {
		if !n.konst {
			n.out.end()
		}
		n.arena.reset()
		if n.dict != nil {
			n.dict.out.end()
		}
	}
	p.batch = nil
}

// Eval implements operators.Evaluator: one column for each expression, over all rows of b. In rows that
// are not in sel (ascending; nil: all), and in failed ones, a column is null or holds anything. The
// columns may share the memory of b's columns, which they keep alive.
func (p *Program) Eval(b *operators.Batch, sel []int32) (*operators.Result, error) {
	if err := p.start(b, sel); err != nil {
		return nil, err
	}
	defer p.finish()
	failed := false
	r := &operators.Result{Columns: make([]arrow.Array, 0, len(p.roots))}
	for x, n := range p.roots {
		p.eval(n, &p.root)
		if p.loadErr != nil {
			r.Release()
			return nil, p.loadErr
		}
		// A later expression may evaluate shared nodes, but only for rows of the root selection,
		// which is what this one has: its lanes stay until they are stored.
		if n.op == OpColumn && n.source() != nil {
			arr := n.source()
			arr.Retain()
			r.Columns = append(r.Columns, arr)
			continue
		}
		if n.konst {
			p.fillConst(n)
		}
		if n.out.errs != nil {
			for _, i := range p.root.rows {
				if c := n.out.errs[i]; c != scalar.CodeNone {
					p.record(&failed, i, c, x)
				}
			}
		}
		r.Columns = append(r.Columns, n.out.store(p.alloc, n.typ, &p.root, func(i int32, c scalar.Code) {
			p.record(&failed, i, c, x)
		}))
	}
	if failed {
		r.Errors = p.rowErrors()
	}
	return r, nil
}

// record notes the error of a row, unless an earlier expression failed in it.
func (p *Program) record(failed *bool, i int32, c scalar.Code, expr int) {
	if !*failed {
		*failed = true
		clear(sized(&p.rowCode, p.batch.Rows))
		sized(&p.rowExpr, p.batch.Rows)
	}
	if p.rowCode[i] == scalar.CodeNone {
		p.rowCode[i], p.rowExpr[i] = c, int32(expr)
	}
}

func (p *Program) rowErrors() []operators.RowError {
	var errs []operators.RowError
	for _, i := range p.root.rows {
		if c := p.rowCode[i]; c != scalar.CodeNone {
			errs = append(errs, operators.RowError{Row: int(i), Code: c, Expr: p.texts[p.rowExpr[i]]})
		}
	}
	return errs
}

// Select appends to dst the rows of b in which the first expression, a bool, is true, ascending; null
// counts as false. It is what a filter wants: no column is made, and each side of an `and` runs over
// the rows that the sides before it left.
func (p *Program) Select(b *operators.Batch, sel, dst []int32) ([]int32, []operators.RowError, error) {
	if len(p.roots) == 0 || p.roots[0].form != formBool {
		return dst, nil, fmt.Errorf("vector: no condition to select by")
	}
	if err := p.start(b, sel); err != nil {
		return dst, nil, err
	}
	defer p.finish()
	failed := false
	s := p.narrowTo(p.roots[0], &p.root, &failed)
	if p.loadErr != nil {
		return dst, nil, p.loadErr
	}
	var errs []operators.RowError
	if failed {
		errs = p.rowErrors()
	}
	return append(dst, s.rows...), errs, nil
}

// narrowTo is the rows of s where n is true.
func (p *Program) narrowTo(n *node, s *selection, failed *bool) *selection {
	if n.op == OpAnd && !n.args[0].typ.Nullable && !n.args[1].typ.Nullable && !n.evaluated(p, s) {
		return p.narrowTo(n.args[1], p.narrowTo(n.args[0], s, failed), failed)
	}
	p.eval(n, s)
	r := p.sub(s)
	if p.loadErr != nil {
		return r
	}
	o := &n.out
	switch {
	case o.valid == nil && o.errs == nil && s.dense:
		rows := sized(&r.rows, s.n)
		k := 0
		for i, x := range o.b[:s.n] {
			rows[k] = int32(i)
			k += int(bit(x))
		}
		r.rows = rows[:k]
	case o.valid == nil && o.errs == nil:
		rows := sized(&r.rows, len(s.rows))
		k := 0
		for _, i := range s.rows {
			rows[k] = i
			k += int(bit(o.b[i]))
		}
		r.rows = rows[:k]
	default:
		r.rows = r.rows[:0]
		for _, i := range s.rows {
			switch {
			case o.failed(i):
				p.record(failed, i, o.errs[i], 0)
			case o.isValid(i) && o.b[i]:
				r.rows = append(r.rows, i)
			}
		}
	}
	return r
}

// sub is a scratch selection below s, empty. It is good until the evaluation ends.
func (p *Program) sub(s *selection) *selection {
	if p.used == len(p.selections) {
		p.selections = append(p.selections, &selection{})
	}
	r := p.selections[p.used]
	p.used++
	*r = selection{rows: r.rows[:0], n: s.n, parent: s}
	return r
}

// Kernel says how expression i is computed: "kernel", or what in it goes row by row and why.
func (p *Program) Kernel(i int) string {
	var rows []string
	seen := map[*node]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		if n.byRow != "" && !slices.Contains(rows, n.byRow) {
			rows = append(rows, n.byRow)
		}
		for _, a := range n.args {
			walk(a)
		}
	}
	walk(p.roots[i])
	if len(rows) == 0 {
		return "kernel"
	}
	return "row by row: " + strings.Join(rows, ", ")
}

// Explain has a line for each expression: its text and Kernel.
func (p *Program) Explain() string {
	var b strings.Builder
	for i := range p.roots {
		fmt.Fprintf(&b, "%s: %s\n", p.texts[i], p.Kernel(i))
	}
	return b.String()
}
