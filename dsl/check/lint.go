package check

import (
	"github.com/expr-lang/expr/ast"
)

// lint warns about expressions that mean something else than they seem to. parent is the node above.
func (c *checker) lint(n ast.Node, parent ast.Node) {
	if n == nil {
		return
	}
	if b, ok := n.(*ast.BinaryNode); ok {
		if b.Operator == "??" {
			c.lintCoalesce(b, parent)
		}
		if not := looseNot(c, b); not != nil {
			if _, name := not.Node.(*ast.IdentifierNode); !name {
				at := span{c.ownSpan(not).start, c.nodeSpan(b).end}
				rest := c.src.slice(span{c.outerSpan(not.Node).start, at.end})
				c.err("W0141", at, "`not` applies to the left side of `%s` only", b.Operator).
					because("`not` binds tighter than a comparison").
					fix("`not (%s)`, or put the left side in parentheses: `(not ..) %s ..`", oneLine(rest), b.Operator).
					replace(at, "not ("+rest+")")
			}
		}
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		c.lint(n.Node, n)
	case *ast.BinaryNode:
		c.lint(n.Left, n)
		c.lint(n.Right, n)
	case *ast.ChainNode:
		c.lint(n.Node, parent)
	case *ast.MemberNode:
		c.lint(n.Node, n)
		c.lint(n.Property, nil)
	case *ast.SliceNode:
		c.lint(n.Node, n)
		c.lint(n.From, nil)
		c.lint(n.To, nil)
	case *ast.CallNode:
		for _, a := range n.Arguments {
			c.lint(a, nil)
		}
	case *ast.BuiltinNode:
		for _, a := range n.Arguments {
			c.lint(a, nil)
		}
	case *ast.PredicateNode:
		c.lint(n.Node, nil)
	case *ast.ConditionalNode:
		c.lint(n.Cond, nil)
		c.lint(n.Exp1, nil)
		c.lint(n.Exp2, nil)
	case *ast.VariableDeclaratorNode:
		c.lint(n.Value, nil)
		c.lint(n.Expr, nil)
	case *ast.ArrayNode:
		for _, a := range n.Nodes {
			c.lint(a, nil)
		}
	case *ast.MapNode:
		for _, p := range n.Pairs {
			c.lint(p, nil)
		}
	case *ast.PairNode:
		c.lint(n.Value, nil)
	}
}

// lintCoalesce is W0140: `a + b ?? c` is `a + (b ?? c)`.
func (c *checker) lintCoalesce(n *ast.BinaryNode, parent ast.Node) {
	switch p := parent.(type) {
	case *ast.BinaryNode:
		switch p.Operator {
		case "??", "and", "&&", "or", "||", "in":
			return
		}
		if isComparison(p.Operator) {
			return
		}
	case *ast.UnaryNode:
	default:
		return
	}
	at := c.nodeSpan(n)
	if c.outerSpan(n) != at {
		return
	}
	c.err("W0140", at, "`??` binds tighter than every other operator here").
		because("`a + b ?? c` means `a + (b ?? c)`").
		fix("write the parentheses: `(%s)`", oneLine(c.src.slice(at))).
		replace(at, "("+c.src.slice(at)+")")
}
