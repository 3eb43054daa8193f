package expr

import (
	"fmt"
	"reflect"
	"strconv"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A Row is what a program reads: one row of the columns its expression was checked against.
type Row interface {
	Column(i int) scalar.Value
	Meta(m plan.Meta) scalar.Value
}

// A Program evaluates one typed expression, row by row. It keeps its machine and every intermediate value
// between rows, so one goroutine at a time may use it.
type Program struct {
	m    machine
	main body
}

// A machine is the state that the functions of a program share: each node owns one slot for its value, so
// that the VM only ever moves pointers.
type machine struct {
	row  Row
	code scalar.Code // of the first error of this row
}

// A body is a compiled tree with the VM that runs it. The main expression and each closure have their own.
type body struct {
	program *vm.Program
	vm      vm.VM
}

// run evaluates the body. A failure of the VM itself is ours: no tree that Compile builds has one.
func (b *body) run() scalar.Value {
	out, err := b.vm.Run(b.program, nil)
	if err != nil {
		panic(fmt.Sprintf("expr: the machine failed: %v", err))
	}
	return *out.(*scalar.Value)
}

// Compile turns a checked expression into a program. Every operator and function becomes a call of its
// reference function, found by scalar.Resolve with the types of its arguments; and, or, ?: and ?? become
// the machine's jumps, so their right sides run only where they decide.
//
// An error means that e did not come from the checker.
func Compile(e *plan.Expr) (*Program, error) {
	p := &Program{}
	c := compilation{m: &p.m, config: &conf.Config{Functions: make(conf.FunctionsTable), MaxNodes: 0}}
	node, err := c.node(e)
	if err != nil {
		return nil, err
	}
	if err := c.finish(&p.main, node); err != nil {
		return nil, err
	}
	return p, nil
}

// Eval computes the expression for a row: its value, or the code of the first error in the order of
// evaluation, with a null value.
func (p *Program) Eval(row Row) (scalar.Value, scalar.Code) {
	p.m.row, p.m.code = row, scalar.CodeNone
	v := p.main.run()
	p.m.row = nil
	if p.m.code != scalar.CodeNone {
		return scalar.Null, p.m.code
	}
	return v, scalar.CodeNone
}

// Fold evaluates an expression that reads no row; ok is false for others.
func Fold(e *plan.Expr) (v scalar.Value, code scalar.Code, ok bool) {
	if !constant(e, 0, 0) {
		return scalar.Null, scalar.CodeNone, false
	}
	if e.Op == plan.ExprConst {
		return e.Value, scalar.CodeNone, true
	}
	p, err := Compile(e)
	if err != nil {
		return scalar.Null, scalar.CodeNone, false
	}
	v, code = p.Eval(nil)
	return v, code, true
}

// constant tells whether e reads neither a row nor a variable from outside it.
func constant(e *plan.Expr, lambdas, lets int) bool {
	switch e.Op {
	case plan.ExprColumn, plan.ExprMeta:
		return false
	case plan.ExprElem:
		return e.Depth < lambdas
	case plan.ExprVar:
		return e.Depth < lets
	case plan.ExprLambda:
		lambdas++
	case plan.ExprLet:
		return constant(e.Args[0], lambdas, lets) && constant(e.Args[1], lambdas, lets+1)
	}
	for _, a := range e.Args {
		if !constant(a, lambdas, lets) {
			return false
		}
	}
	return true
}

// A compilation builds expr-lang trees whose every call is a function made here.
type compilation struct {
	m       *machine
	config  *conf.Config
	lets    []*scalar.Value    // innermost last
	lambdas []*[3]scalar.Value // the arguments of the enclosing closures: element, index, accumulator
}

func (c *compilation) finish(b *body, node ast.Node) error {
	program, err := compiler.Compile(&parser.Tree{Node: node, Source: file.NewSource("")}, c.config)
	if err != nil {
		return fmt.Errorf("expr: compile: %w", err)
	}
	b.program = program
	return nil
}

// call makes a tree node that calls f.
func (c *compilation) call(f func(args ...any) (any, error), args ...ast.Node) ast.Node {
	name := "f" + strconv.Itoa(len(c.config.Functions))
	c.config.Functions[name] = &builtin.Function{Name: name, Func: f}
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: args}
}

// choice makes a lazy choice on a call that answers with a Go bool.
func (c *compilation) choice(cond func(v *scalar.Value) bool, arg, yes, no ast.Node) ast.Node {
	n := c.call(func(args ...any) (any, error) { return cond(args[0].(*scalar.Value)), nil }, arg)
	n.SetType(reflect.TypeFor[bool]())
	return &ast.ConditionalNode{Cond: n, Exp1: yes, Exp2: no}
}

// load makes a node that gives what a slot holds then.
func (c *compilation) load(slot *scalar.Value) ast.Node {
	return c.call(func(...any) (any, error) { return slot, nil })
}

func (c *compilation) args(e *plan.Expr, want int) ([]ast.Node, error) {
	if len(e.Args) != want {
		return nil, fmt.Errorf("expr: node %d has %d arguments, want %d", e.Op, len(e.Args), want)
	}
	nodes := make([]ast.Node, len(e.Args))
	for i, a := range e.Args {
		n, err := c.node(a)
		if err != nil {
			return nil, err
		}
		nodes[i] = n
	}
	return nodes, nil
}

func (c *compilation) node(e *plan.Expr) (ast.Node, error) {
	if e == nil {
		return nil, fmt.Errorf("expr: an argument is missing")
	}
	m, slot := c.m, new(scalar.Value)
	switch e.Op {
	case plan.ExprConst:
		*slot = e.Value
		return &ast.ConstantNode{Value: slot}, nil
	case plan.ExprColumn:
		i := e.Column
		return c.call(func(...any) (any, error) { *slot = m.row.Column(i); return slot, nil }), nil
	case plan.ExprMeta:
		meta := e.Meta
		return c.call(func(...any) (any, error) { *slot = m.row.Meta(meta); return slot, nil }), nil
	case plan.ExprCall:
		return c.function(e, slot)
	case plan.ExprAnd, plan.ExprOr:
		return c.kleene(e, slot)
	case plan.ExprCond:
		a, err := c.args(e, 3)
		if err != nil {
			return nil, err
		}
		return c.choice(func(v *scalar.Value) bool { return !v.IsNull() && v.Bool() }, a[0], a[1], a[2]), nil
	case plan.ExprCoalesce:
		a, err := c.args(e, 2)
		if err != nil {
			return nil, err
		}
		return c.choice(func(v *scalar.Value) bool { *slot = *v; return !v.IsNull() }, a[0], c.load(slot), a[1]), nil
	case plan.ExprField:
		a, err := c.args(e, 1)
		if err != nil {
			return nil, err
		}
		field := e.Field
		return c.call(func(args ...any) (any, error) {
			*slot = scalar.Null
			if v := args[0].(*scalar.Value); v.Kind == scalar.KindStruct && field < len(v.L) {
				*slot = v.L[field]
			}
			return slot, nil
		}, a...), nil
	case plan.ExprLet:
		return c.let(e, slot)
	case plan.ExprVar:
		if e.Depth < 0 || e.Depth >= len(c.lets) {
			return nil, fmt.Errorf("expr: no let %d levels up", e.Depth)
		}
		return c.load(c.lets[len(c.lets)-1-e.Depth]), nil
	case plan.ExprElem:
		if e.Depth < 0 || e.Depth >= len(c.lambdas) || e.Field < 0 || e.Field > plan.ElemAcc {
			return nil, fmt.Errorf("expr: no closure %d levels up", e.Depth)
		}
		return c.load(&c.lambdas[len(c.lambdas)-1-e.Depth][e.Field]), nil
	case plan.ExprLambda:
		return c.lambda(e, slot)
	}
	return nil, fmt.Errorf("expr: unknown node %d", e.Op)
}

// function makes the strict call of a reference function. Once a row has failed, nothing is called.
func (c *compilation) function(e *plan.Expr, slot *scalar.Value) (ast.Node, error) {
	nodes, err := c.args(e, len(e.Args))
	if err != nil {
		return nil, err
	}
	f, err := scalar.Resolve(e.Func, ArgsOf(e))
	if err != nil {
		return nil, fmt.Errorf("expr: %w", err)
	}
	m, buf := c.m, make([]scalar.Value, len(nodes))
	return c.call(func(args ...any) (any, error) {
		*slot = scalar.Null
		if m.code != scalar.CodeNone {
			return slot, nil
		}
		for i, a := range args {
			buf[i] = *a.(*scalar.Value)
		}
		v, code := f.Call(buf)
		if m.code == scalar.CodeNone { // a closure may have failed inside
			m.code = code
		}
		if m.code == scalar.CodeNone {
			*slot = v
		}
		return slot, nil
	}, nodes...), nil
}

// ArgsOf describes the arguments of a call for scalar.Resolve.
func ArgsOf(e *plan.Expr) []scalar.Arg {
	args := make([]scalar.Arg, len(e.Args))
	for i, a := range e.Args {
		args[i].Type = a.Type
		switch a.Op {
		case plan.ExprConst:
			args[i].Const = &a.Value
		case plan.ExprLambda:
			if len(a.Args) == 1 {
				args[i].Lambda = &a.Args[0].Type
			}
		}
	}
	return args
}

// kleene makes and, or: the right side runs unless the left one decides. After an error in the left side
// the right one is skipped too.
func (c *compilation) kleene(e *plan.Expr, slot *scalar.Value) (ast.Node, error) {
	a, err := c.args(e, 2)
	if err != nil {
		return nil, err
	}
	m, decides := c.m, e.Op == plan.ExprOr // true decides an or, false an and
	out := new(scalar.Value)
	right := c.call(func(args ...any) (any, error) {
		r := args[0].(*scalar.Value)
		switch {
		case !r.IsNull() && r.Bool() == decides:
			*out = scalar.Bool(decides)
		case slot.IsNull() || r.IsNull():
			*out = scalar.Null
		default:
			*out = scalar.Bool(!decides)
		}
		return out, nil
	}, a[1])
	return c.choice(func(v *scalar.Value) bool {
		*slot = *v
		return m.code != scalar.CodeNone || !v.IsNull() && v.Bool() == decides
	}, a[0], c.load(slot), right), nil
}

// let binds a slot while the body runs; arguments run in order.
func (c *compilation) let(e *plan.Expr, slot *scalar.Value) (ast.Node, error) {
	if len(e.Args) != 2 {
		return nil, fmt.Errorf("expr: a let has %d arguments, want 2", len(e.Args))
	}
	value, err := c.node(e.Args[0])
	if err != nil {
		return nil, err
	}
	bind := c.call(func(args ...any) (any, error) { *slot = *args[0].(*scalar.Value); return slot, nil }, value)
	c.lets = append(c.lets, slot)
	inner, err := c.node(e.Args[1])
	c.lets = c.lets[:len(c.lets)-1]
	if err != nil {
		return nil, err
	}
	return c.call(func(args ...any) (any, error) { return args[1], nil }, bind, inner), nil
}

// lambda makes a constant closure that runs its body on a machine of its own.
func (c *compilation) lambda(e *plan.Expr, slot *scalar.Value) (ast.Node, error) {
	if len(e.Args) != 1 {
		return nil, fmt.Errorf("expr: a closure has %d bodies", len(e.Args))
	}
	frame := new([3]scalar.Value)
	c.lambdas = append(c.lambdas, frame)
	node, err := c.node(e.Args[0])
	c.lambdas = c.lambdas[:len(c.lambdas)-1]
	if err != nil {
		return nil, err
	}
	b, m := new(body), c.m
	if err := c.finish(b, node); err != nil {
		return nil, err
	}
	slot.Fn = func(args []scalar.Value) (scalar.Value, scalar.Code) {
		for i := range frame {
			frame[i] = scalar.Null
		}
		copy(frame[:], args)
		if m.code != scalar.CodeNone {
			return scalar.Null, m.code
		}
		v := b.run()
		return v, m.code
	}
	return &ast.ConstantNode{Value: slot}, nil
}
