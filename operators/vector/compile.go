package vector

import (
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// A kernel computes o for the rows of s from the lanes of a. o has its lanes, nulls and errors already.
type kernel func(o *vec, a []*vec, s *selection)

// A node is one shared part of the graph.
type node struct {
	op    Op
	typ   scalar.Type
	form  form
	args  []*node
	byRow string // for Explain: why there is no kernel; "" if there is one

	column   int
	meta     int
	field    int
	fallback func(b *operators.Batch, row int) (scalar.Value, scalar.Code)

	konst  bool
	folded bool // computed here: for overloads it is no constant, as it was none for the checker
	value  scalar.Value
	filled int // lanes of a constant that are set

	fn  *scalar.Func
	run kernel
	// onlyLive kernels are called for rows that are neither null nor failed; others compute every row
	// of the selection, whatever is in it, and may not fail rows that are null.
	onlyLive bool
	nullSafe bool // the kernel makes validity itself
	vecs     []*vec
	dict     *dictionary // how to compute once a dictionary value, or nil
	live     []int32
	arena    arena

	// The rows for which out is up to date.
	epoch uint64
	under *selection
	out   vec
}

func (n *node) evaluated(p *Program, s *selection) bool {
	return n.epoch == p.epoch && s.within(n.under)
}

// source is the array that a column node shows, if the output may share it.
func (n *node) source() arrow.Array { return n.out.arr }

type compiler struct {
	p      *Program
	shared map[string]*node
	lets   []*node
	memo   map[*Expr]*node // expressions that stand in several places; nil: none do
}

func (c *compiler) node(e *Expr) (*node, error) {
	if e == nil {
		return nil, fmt.Errorf("an argument is missing")
	}
	if n := c.memo[e]; n != nil && len(c.lets) == 0 {
		return n, nil
	}
	n, err := c.build(e)
	if err != nil {
		return nil, err
	}
	if c.memo != nil && len(c.lets) == 0 {
		defer func() { c.memo[e] = n }()
	}
	// Equal parts are one node. Fallbacks are never known to be equal.
	if n.op != OpFallback {
		key := n.key()
		if old := c.shared[key]; old != nil {
			n = old
			return old, nil
		}
		c.shared[key] = n
	}
	for _, a := range n.args {
		n.vecs = append(n.vecs, &a.out)
	}
	c.p.nodes = append(c.p.nodes, n)
	return n, nil
}

// key identifies what a node computes.
func (n *node) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s %d %d %d ", n.op, n.typ, n.column, n.meta, n.field)
	if n.fn != nil {
		b.WriteString(n.fn.Name)
	}
	if n.konst {
		fmt.Fprint(&b, n.folded)
		appendKey(&b, n.value)
	}
	for _, a := range n.args {
		fmt.Fprintf(&b, " %p", a)
	}
	return b.String()
}

// appendKey writes a constant so that different values differ, bit for bit.
func appendKey(b *strings.Builder, v scalar.Value) {
	fmt.Fprintf(b, "=%d,%d,%b,%q,%d,%d[", v.Kind, v.I, v.F, v.S, v.D.Hi, v.D.Lo)
	for i := range v.Keys {
		appendKey(b, v.Keys[i])
	}
	b.WriteByte('|')
	for i := range v.L {
		appendKey(b, v.L[i])
	}
	b.WriteByte(']')
}

func (c *compiler) build(e *Expr) (*node, error) {
	n := &node{op: e.Op, typ: e.Type, form: formOf(e.Type)}
	if e.Fallback != nil {
		n.op, n.fallback, n.byRow = OpFallback, e.Fallback, "fallback"
		if e.Reason != "" {
			n.byRow += " (" + e.Reason + ")"
		}
		return n, nil
	}
	switch e.Op {
	case OpColumn:
		if e.Column < 0 || e.Column >= len(c.p.input) {
			return nil, fmt.Errorf("no column %d among %d", e.Column, len(c.p.input))
		}
		n.column, n.typ = e.Column, c.p.input[e.Column]
		if !e.Type.Nullable && e.Type.Same(n.typ) {
			n.typ.Nullable = false // a stage before has seen to it
		}
		n.form = formOf(n.typ)
		if n.typ.Kind == scalar.KindStruct {
			n.form = formStruct
		}
		return n, nil
	case OpMeta:
		if e.Meta < MetaTime || e.Meta > MetaOffset || e.Meta == MetaHeaders {
			return nil, fmt.Errorf("no metadata column %d", e.Meta)
		}
		n.meta = e.Meta
		return n, checkMeta(e.Meta, n.form)
	case OpConst:
		n.konst, n.folded, n.value = true, e.Computed, e.Value
		return n, nil
	case OpVar:
		if e.Depth < 0 || e.Depth >= len(c.lets) {
			return nil, fmt.Errorf("no let %d levels up", e.Depth)
		}
		return c.lets[len(c.lets)-1-e.Depth], nil
	case OpLet:
		return c.let(n, e)
	}
	want := map[Op]int{OpAnd: 2, OpOr: 2, OpCond: 3, OpCoalesce: 2, OpField: 1}[e.Op]
	if want > 0 && len(e.Args) != want {
		return nil, fmt.Errorf("node %d has %d arguments, not %d", e.Op, len(e.Args), want)
	}
	if e.Op == OpCall {
		if m, err := c.fused(n, e); m != nil || err != nil {
			return m, err
		}
	}
	for _, a := range e.Args {
		x, err := c.node(a)
		if err != nil {
			return nil, err
		}
		n.args = append(n.args, x)
	}
	switch e.Op {
	case OpCall:
		return c.call(n, e)
	case OpAnd, OpOr:
		for _, a := range n.args {
			if a.form != formBool && a.typ.Kind != scalar.KindNull {
				return nil, fmt.Errorf("%s is no bool", a.typ)
			}
		}
		n.form = formBool
		n.typ = scalar.TypeBool.OrNull(n.args[0].typ.Nullable || n.args[1].typ.Nullable)
		return n, nil
	case OpCond:
		if n.args[0].form != formBool {
			return nil, fmt.Errorf("a condition of type %s", n.args[0].typ)
		}
		return n, sameForm(n, n.args[1:])
	case OpCoalesce:
		return n, sameForm(n, n.args)
	case OpField:
		t := n.args[0].typ
		if t.Kind != scalar.KindStruct || e.Field < 0 || e.Field >= len(t.Fields) {
			return nil, fmt.Errorf("no field %d in %s", e.Field, t)
		}
		n.field = e.Field
		n.typ = t.Fields[e.Field].Type.OrNull(t.Nullable)
		n.form = formOf(n.typ)
		if n.typ.Kind == scalar.KindStruct && n.args[0].form == formStruct {
			n.form = formStruct
		}
		return n, nil
	}
	return nil, fmt.Errorf("unknown node %d", e.Op)
}

// sameForm checks the branches of a choice against its result. The literal nil fits everywhere.
func sameForm(n *node, branches []*node) error {
	if n.typ.Kind == scalar.KindStruct {
		n.form = formAny
	}
	for _, b := range branches {
		if b.typ.Kind != scalar.KindNull && !b.typ.Same(n.typ) {
			return fmt.Errorf("a branch of type %s where %s is wanted", b.typ, n.typ)
		}
	}
	return nil
}

func (c *compiler) let(n *node, e *Expr) (*node, error) {
	if len(e.Args) != 2 {
		return nil, fmt.Errorf("a let has %d arguments", len(e.Args))
	}
	bound, err := c.node(e.Args[0])
	if err != nil {
		return nil, err
	}
	c.lets = append(c.lets, bound)
	body, err := c.node(e.Args[1])
	c.lets = c.lets[:len(c.lets)-1]
	if err != nil {
		return nil, err
	}
	if bound.op == OpColumn || bound.op == OpMeta || bound.konst {
		return body, nil // nothing in it can fail
	}
	n.args = []*node{bound, body}
	n.typ, n.form = body.typ, formOf(body.typ)
	return n, nil
}

// call resolves a function and finds its kernel.
func (c *compiler) call(n *node, e *Expr) (*node, error) {
	args := make([]scalar.Arg, len(n.args))
	constant := len(args) > 0
	for i, a := range n.args {
		args[i].Type = a.typ
		if a.konst && !a.folded {
			args[i].Const = &a.value
		}
		constant = constant && a.konst
	}
	f, err := scalar.Resolve(e.Func, args)
	if err != nil {
		return nil, err
	}
	for i, t := range f.Args {
		if !t.Same(n.args[i].typ) && n.args[i].typ.Kind != scalar.KindNull {
			return nil, fmt.Errorf("%s: argument %d is %s and needs a cast to %s", e.Func, i+1, n.args[i].typ, t)
		}
	}
	n.fn, n.typ, n.form = f, f.Result, formOf(f.Result)
	if constant {
		vals := make([]scalar.Value, len(n.args))
		for i, a := range n.args {
			vals[i] = a.value
		}
		if v, code := f.Call(vals); code == scalar.CodeNone {
			return &node{op: OpConst, typ: n.typ, form: n.form, konst: true, folded: true, value: v}, nil
		}
	}
	n.nullSafe = f.NullSafe
	if !n.pick(e.Func) {
		n.byRow = e.Func
		n.onlyLive = true
		n.run = rowByRow(n)
	}
	n.dict = dictionaryOf(n)
	return n, nil
}

// fused recognizes calls whose inner result need not be made.
func (c *compiler) fused(n *node, e *Expr) (*node, error) {
	if e.Func != "len" || len(e.Args) != 1 || e.Args[0] == nil {
		return nil, nil
	}
	in := e.Args[0]
	if in.Op != OpCall || in.Func != "split" || len(in.Args) != 2 || in.Fallback != nil {
		return nil, nil
	}
	for _, a := range in.Args {
		x, err := c.node(a)
		if err != nil {
			return nil, err
		}
		if x.typ.Kind != scalar.KindString {
			return nil, fmt.Errorf("split of %s", x.typ)
		}
		n.args = append(n.args, x)
	}
	n.typ = scalar.TypeInt64.OrNull(n.args[0].typ.Nullable || n.args[1].typ.Nullable)
	n.form = formInt
	n.fn = &scalar.Func{Name: "len(split)", Result: n.typ}
	n.onlyLive, n.run = true, splitCount
	n.dict = dictionaryOf(n)
	return n, nil
}

func checkMeta(meta int, f form) error {
	want := formInt
	if meta == MetaKey || meta == MetaTopic {
		want = formText
	}
	if f != want {
		return fmt.Errorf("metadata column %d has another type", meta)
	}
	return nil
}

// constText is argument i if it is a constant string.
func (n *node) constText(i int) (string, bool) {
	if i >= len(n.args) || !n.args[i].konst || n.args[i].value.Kind != scalar.KindString {
		return "", false
	}
	return n.args[i].value.S, true
}

// constInt is argument i if it is a constant integer or duration.
func (n *node) constInt(i int) (int64, bool) {
	if i >= len(n.args) || !n.args[i].konst || !n.args[i].value.Kind.Integer() && n.args[i].value.Kind != scalar.KindDuration {
		return 0, false
	}
	return n.args[i].value.I, true
}
