package check

import (
	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/plan"
)

func (w *walk) pos(n ast.Node) plan.Pos { return w.c.src.pos(w.c.nodeSpan(n).start) }

func (w *walk) err(code string, n ast.Node, format string, args ...any) *finding {
	return w.c.err(code, w.c.nodeSpan(n), format, args...)
}

// ownSpan is the token that the tree gives as the place of n.
func (c *checker) ownSpan(n ast.Node) span {
	l := n.Location()
	return span{c.src.byteOf(l.From), c.src.byteOf(max(l.To, l.From))}
}

// nodeSpan is the text of n without the parentheses around it.
func (c *checker) nodeSpan(n ast.Node) span {
	own := c.ownSpan(n)
	join := func(s span, nodes ...ast.Node) span {
		for _, m := range nodes {
			if m == nil {
				continue
			}
			o := c.outerSpan(m)
			s.start, s.end = min(s.start, o.start), max(s.end, o.end)
		}
		return s
	}
	call := func(s span) span {
		if i := c.skipSpace(own.end); i < len(c.src.text) && c.src.text[i] == '(' {
			s.end = max(s.end, c.closing(i))
		}
		return s
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		return join(own, n.Node)
	case *ast.BinaryNode:
		return join(own, n.Left, n.Right)
	case *ast.ChainNode:
		return c.nodeSpan(n.Node)
	case *ast.MemberNode:
		s := join(own, n.Node)
		if own.start < len(c.src.text) && c.src.text[own.start] == '[' {
			s.end = c.closing(own.start)
		}
		return s
	case *ast.SliceNode:
		s := join(own, n.Node)
		s.end = max(s.end, c.closing(own.start))
		return s
	case *ast.CallNode:
		if id, ok := n.Callee.(*ast.IdentifierNode); ok {
			own = c.ownSpan(id)
		}
		s := call(own)
		if len(n.Arguments) > 0 { // a | f(b)
			s = join(s, n.Arguments[0])
		}
		return s
	case *ast.BuiltinNode:
		s := call(own)
		if len(n.Arguments) > 0 {
			s = join(s, n.Arguments[0])
		}
		return s
	case *ast.ConditionalNode:
		s := join(c.outerSpan(n.Cond), n.Exp1, n.Exp2)
		if w := c.lastWordBefore(s.start); c.src.slice(w) == "if" { // if a {b} else {c}
			s.start = w.start
			if i := c.skipSpace(s.end); i < len(c.src.text) && c.src.text[i] == '}' {
				s.end = i + 1
			}
		}
		return s
	case *ast.VariableDeclaratorNode:
		s := join(own, n.Value, n.Expr)
		if w := c.lastWordBefore(s.start); c.src.slice(w) == "let" {
			s.start = w.start
		}
		return s
	case *ast.ArrayNode, *ast.MapNode:
		return span{own.start, c.closing(own.start)}
	case *ast.PredicateNode:
		return c.nodeSpan(n.Node)
	case *ast.PairNode:
		return join(c.nodeSpan(n.Key), n.Value)
	}
	return own
}

// outerSpan is nodeSpan with the parentheses around it.
func (c *checker) outerSpan(n ast.Node) span {
	s := c.nodeSpan(n)
	for {
		i := s.start
		for i > 0 && (c.src.text[i-1] == ' ' || c.src.text[i-1] == '\n' || c.src.text[i-1] == '\t') {
			i--
		}
		j := c.skipSpace(s.end)
		if i == 0 || c.src.text[i-1] != '(' || j >= len(c.src.text) || c.src.text[j] != ')' {
			return s
		}
		// `f(x)` is a call, not parentheses around x.
		if k := i - 1; k > 0 && (isWordByte(c.src.text[k-1]) || c.src.text[k-1] == ')' || c.src.text[k-1] == ']') {
			w := c.src.slice(c.lastWordBefore(k))
			switch w {
			case "and", "or", "not", "in", "where", "by", "contains", "matches", "startsWith", "endsWith", "on", "when", "else":
			default:
				return s
			}
		}
		s = span{i - 1, j + 1}
	}
}

func (w *walk) text(n ast.Node) string { return w.c.src.slice(w.c.nodeSpan(n)) }
