package expr

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/parser/lexer"
)

// A Context says which functions a place in a module offers.
type Context uint8

// The two parse configurations. In Aggregate (right sides of agg, over .. set, define, and the select of
// match) the names of aggregates are ordinary calls; `::sum(list)` still reaches the list function.
const (
	Scalar Context = iota + 1
	Aggregate
)

// MaxNodes bounds the tree of one expression, shared subtrees (chained comparisons, `?:`) counted each time
// they are reached. Walks over a tree that Parse returned are therefore cheap.
const MaxNodes = 500

// The codes of what can be wrong inside one expression. They are part of the language's stable list.
const (
	CodeOperands  = "E0031" // two operands in a row
	CodeOperand   = "E0032" // an operand is missing
	CodeStatement = "E0033" // let, if or ; where they are not allowed
	CodeDollar    = "E0034" // a name with $
	CodeMethod    = "E0035" // a method call
	CodeBracket   = "E0036" // a bracket is not closed, or closes nothing
	CodeTooLarge  = "E0037" // too long, too many nodes, too deep
	CodeCoalesce  = "E0038" // ?? beside another operator
	CodeExpr      = "E0039" // anything else
	CodeAggregate = "E0040" // an aggregate outside agg, over, define and the select of match
	CodeLiteral   = "E0005" // a literal that cannot be read
	CodeNumber    = "E0006" // a number that cannot be read
)

// An Error is a syntax error inside one expression. From and To are rune offsets in the slice.
type Error struct {
	Code     string
	From, To int
	Message  string
	Reason   string
	Fix      string
	Edit     *Edit // nil if there is none
}

// An Edit replaces the runes [From, To) of the slice.
type Edit struct {
	From, To int
	Text     string
}

func (e *Error) Error() string { return e.Code + " " + e.Message }

// aggregates are the aggregate names that expr's parser would otherwise read as list functions.
var aggregates = []string{"count", "sum", "min", "max", "first", "last", "median", "join"}

var (
	scalarConfig    = newConfig(nil)
	aggregateConfig = newConfig(aggregates)
)

// newConfig makes a parse configuration. The parser only reads it, so it may be shared by goroutines.
func newConfig(overridden []string) *conf.Config {
	c := conf.CreateNew()
	c.MaxNodes = MaxNodes
	c.Optimize = false
	for _, name := range overridden {
		c.Functions[name] = &builtin.Function{Name: name}
	}
	return c
}

// Parse reads one expression. text is the slice with each duration literal replaced by an identifier of
// the same rune length; literals holds the nodes that replace other identifiers of that kind (numbers that
// expr's lexer cannot read where they stand). Locations of the returned tree are rune offsets plus offset.
//
// List functions of expr with a predicate (filter, map, ..) and its other built-ins are ast.BuiltinNode,
// all other calls, and the aggregates in an Aggregate context, are ast.CallNode with an
// ast.IdentifierNode as callee. No method call, no sequence and no `$env` is in the tree.
func Parse(text string, offset int, ctx Context, literals map[string]ast.Node) (node ast.Node, failed *Error) {
	config := scalarConfig
	if ctx == Aggregate {
		config = aggregateConfig
	}
	tree, err := parser.ParseWithConfig(text, config)
	if err != nil {
		return nil, translate(err, text, ctx)
	}
	p := patcher{offset: offset, literals: literals, seen: make(map[ast.Node]ast.Node)}
	node = p.patch(tree.Node)
	if p.failed != nil {
		return nil, p.failed
	}
	return node, nil
}

// Unquote gives the value of a string literal as expr's lexer reads it.
func Unquote(literal string) (string, error) {
	tokens, err := lexer.Lex(file.NewSource(literal))
	if err != nil {
		var fe *file.Error
		if errors.As(err, &fe) {
			return "", errors.New(fe.Message)
		}
		return "", err
	}
	if len(tokens) != 2 || tokens[0].Kind != lexer.String {
		return "", errors.New("not a string literal")
	}
	return tokens[0].Value, nil
}

// A patcher moves locations, puts literals in and rejects what the language does not have. Chained
// comparisons share their middle operand, so nodes are handled once; reached counts every way to a node.
type patcher struct {
	offset   int
	literals map[string]ast.Node
	seen     map[ast.Node]ast.Node
	reached  int
	failed   *Error
}

func (p *patcher) fail(n ast.Node, code, message, reason, fix string) {
	if p.failed != nil {
		return
	}
	loc := n.Location()
	if _, moved := p.seen[n]; moved {
		loc.From, loc.To = loc.From-p.offset, loc.To-p.offset
	}
	p.failed = &Error{Code: code, From: loc.From, To: loc.To, Message: message, Reason: reason, Fix: fix}
}

// patch returns what stands for n after its literals were put in. It visits every path, so that an
// expression whose sharing multiplies is refused instead of walked.
func (p *patcher) patch(n ast.Node) ast.Node {
	if n == nil || p.failed != nil {
		return n
	}
	p.reached++
	if p.reached > MaxNodes {
		p.fail(n, CodeTooLarge, fmt.Sprintf("this expression has more than %d parts", MaxNodes),
			"the cost of a row must be bounded", "split it with `set` into named columns")
		return n
	}
	out, done := p.seen[n]
	if !done {
		out = n
		if id, ok := n.(*ast.IdentifierNode); ok {
			if lit, ok := p.literals[id.Value]; ok {
				lit.SetLocation(id.Location())
				out = lit
			}
		}
		loc := n.Location()
		out.SetLocation(file.Location{From: loc.From + p.offset, To: loc.To + p.offset})
		p.seen[n], p.seen[out] = out, out
	}
	switch n := n.(type) {
	case *ast.UnaryNode:
		n.Node = p.patch(n.Node)
		if lit, ok := n.Node.(*minInt); ok && n.Operator == "-" {
			lit.signed = true
			m := &ast.IntegerNode{Value: -1 << 63}
			m.SetLocation(n.Location())
			p.seen[n], p.seen[m] = m, m
			return m
		}
		p.operand(n.Node)
	case *ast.BinaryNode:
		n.Left, n.Right = p.patch(n.Left), p.patch(n.Right)
		p.operand(n.Left)
		p.operand(n.Right)
	case *ast.ChainNode:
		n.Node = p.patch(n.Node)
	case *ast.MemberNode:
		n.Node, n.Property = p.patch(n.Node), p.patch(n.Property)
		p.operand(n.Property)
	case *ast.SliceNode:
		n.Node, n.From, n.To = p.patch(n.Node), p.patch(n.From), p.patch(n.To)
		p.operand(n.From)
		p.operand(n.To)
	case *ast.CallNode:
		if _, ok := n.Callee.(*ast.IdentifierNode); !ok {
			p.fail(n, CodeMethod, "this calls a method, and the language has only functions",
				"values have no methods", "write `f(x)` instead of `x.f()`")
			return n
		}
		n.Callee = p.patch(n.Callee)
		p.list(n.Arguments)
	case *ast.BuiltinNode:
		p.list(n.Arguments)
	case *ast.PredicateNode:
		n.Node = p.patch(n.Node)
		p.operand(n.Node)
	case *ast.ConditionalNode:
		n.Cond, n.Exp1, n.Exp2 = p.patch(n.Cond), p.patch(n.Exp1), p.patch(n.Exp2)
		p.operand(n.Cond)
		p.operand(n.Exp1)
		p.operand(n.Exp2)
	case *ast.VariableDeclaratorNode:
		n.Value, n.Expr = p.patch(n.Value), p.patch(n.Expr)
		p.operand(n.Value)
		p.operand(n.Expr)
	case *ast.SequenceNode:
		p.fail(n, CodeStatement, "`;` gives the last of several values, and the language has no such sequence",
			"every part of an expression must be used", "keep only the last part, or name the others with `let x = .. ;`")
	case *ast.ArrayNode:
		p.list(n.Nodes)
	case *ast.MapNode:
		p.list(n.Pairs)
	case *ast.PairNode:
		n.Key, n.Value = p.patch(n.Key), p.patch(n.Value)
		p.operand(n.Value)
	}
	if p.reached == 1 {
		p.operand(out)
	}
	return out
}

func (p *patcher) list(nodes []ast.Node) {
	for i, n := range nodes {
		nodes[i] = p.patch(n)
		p.operand(nodes[i])
	}
}

// operand refuses the magnitude of the smallest integer without its sign.
func (p *patcher) operand(n ast.Node) {
	if lit, ok := n.(*minInt); ok && !lit.signed {
		p.fail(n, CodeNumber, "the integer 9223372036854775808 is too large", "int64 ends at 9223372036854775807",
			"`u64(\"9223372036854775808\")`")
	}
}

// minInt stands for 9223372036854775808, which is an integer only after a minus sign.
type minInt struct {
	ast.NilNode
	signed bool
}

// MinIntMagnitude is the literal node of 9223372036854775808: Parse joins it with the sign before it.
func MinIntMagnitude() ast.Node { return &minInt{} }

// translate says in the user's terms what expr's parser found.
func translate(err error, text string, ctx Context) *Error {
	var fe *file.Error
	if !errors.As(err, &fe) {
		return &Error{Code: CodeExpr, To: utf8.RuneCountInString(text), Message: "this expression cannot be read", Reason: err.Error(), Fix: remedy[CodeExpr]}
	}
	e := &Error{Code: CodeExpr, From: fe.From, To: fe.To, Message: "this expression cannot be read", Reason: fe.Message}
	msg := fe.Message
	switch {
	case strings.HasPrefix(msg, "unexpected token EOF"), strings.HasPrefix(msg, "unexpected end"):
		e.Code, e.Message, e.Reason = CodeOperand, "the expression ends too early", "an operator or a bracket needs something after it"
		if strings.Contains(text, "?") {
			e.Fix = "a choice has both branches: `c ? a : b`"
		}
	case strings.HasPrefix(msg, "unexpected token"):
		if !habit(e, text) {
			unexpected(e, text)
		}
	case strings.Contains(msg, "coalesce expressions"):
		e.Code, e.Message = CodeCoalesce, "`??` stands beside another operator without parentheses"
		e.Reason, e.Fix = "`??` binds tighter than everything, which surprises", "write `(a ?? b)` around it"
	case strings.Contains(msg, "maximum allowed nodes"):
		e.Code, e.Message = CodeTooLarge, fmt.Sprintf("this expression has more than %d parts", MaxNodes)
		e.Reason, e.Fix = "the cost of a row must be bounded", "split it with `set` into named columns"
	case strings.HasPrefix(msg, "expected at least"):
		e.Message, e.Reason = "an argument is missing", "list functions take a list and a predicate"
		if name := callBefore(text, fe.From); ctx == Scalar && isAggregate(name) {
			e.From = max(0, utf8.RuneCountInString(text[:strings.LastIndex(string([]rune(text)[:fe.From]), name)]))
			e.To = e.From + utf8.RuneCountInString(name)
			e.Code, e.Message = CodeAggregate, fmt.Sprintf("`%s` of rows is an aggregate, and this place has one row", name)
			e.Reason, e.Fix = "rows are counted and summed by a stage of their own", "`|> agg n = "+name+"() by .. window tumble(1m)`, and what follows sees `n`"
		}
	case strings.Contains(msg, "too large"), strings.Contains(msg, "integer literal"), strings.Contains(msg, "float literal"),
		strings.Contains(msg, "hex literal"), strings.Contains(msg, "binary literal"), strings.Contains(msg, "octal literal"),
		strings.Contains(msg, "bad number syntax"):
		e.Code, e.Message = CodeNumber, "this number cannot be read"
		if strings.Contains(msg, "out of range") {
			e.Message, e.Reason = "this number is too large", "integers are int64, at most 9223372036854775807"
			e.Fix = "a string in `dec(\"..\")` or `u64(\"..\")` holds larger ones"
		}
	case strings.Contains(msg, "escape"), strings.Contains(msg, "unescape"), strings.Contains(msg, "invalid syntax"):
		e.Code, e.Message, e.Fix = CodeLiteral, "this string has an escape that does not exist", "`\\\\` is a backslash; back quotes hold text as it is"
	case strings.Contains(msg, "not terminated"):
		e.Code, e.Message = CodeLiteral, "this string is not closed"
	case strings.Contains(msg, "map key"):
		e.Message, e.Reason = "this cannot be the key of a map", "a key is a name, a string, a number, or an expression in parentheses"
		e.Fix = "put parentheses around it"
	case strings.Contains(msg, "expected name"):
		e.Message, e.Reason = "a field name must follow the dot", "fields are known before the rows are"
	case strings.Contains(msg, "wrap predicate"):
		e.Code, e.Message, e.Reason = CodeStatement, "`;` gives the last of several values, and the language has no such sequence", "an expression has one value"
	}
	if e.To <= e.From {
		e.To = e.From + 1
	}
	if e.Fix == "" {
		e.Fix = remedy[e.Code]
	}
	return e
}

// remedy is the fix of an error that has no better one.
var remedy = map[string]string{
	CodeOperands: "write an operator or a comma between them, or remove one", CodeOperand: "write the value, or remove what needs it",
	CodeExpr: "write it in another way; docs/language.md has the forms", CodeNumber: "for example `12`, `0.5` or `1e6`",
	CodeLiteral: "end it with the quote that it began with", CodeStatement: "keep one value", CodeAggregate: "compute it in a stage of its own",
}

// unexpected describes a token that cannot stand where it is, with the one before it.
func unexpected(e *Error, text string) {
	runes := []rune(text)
	from, to := min(e.From, len(runes)), min(e.To, len(runes))
	word := string(runes[from:to])
	e.Message, e.Reason = fmt.Sprintf("`%s` cannot stand here", word), "it fits neither before nor after what stands beside it"
	before := strings.TrimRight(string(runes[:from]), " \t\r\n")
	prev := lastWord(before)
	r, _ := utf8.DecodeRuneInString(word)
	operand := r == '"' || r == '\'' || r == '`' || isWord(r)
	switch {
	case word == "":
		e.Code, e.Message = CodeOperand, "the expression ends too early"
	case operand && prev != "":
		e.Code, e.Message = CodeOperands, fmt.Sprintf("two operands in a row: `%s` then `%s`", prev, word)
		e.Reason = "an operator is missing, or a comma"
		if word == "max" {
			e.Fix = "a limit is the second argument: `list(x, 10)`"
		}
	case strings.ContainsAny(word, ")]},:"):
		e.Code, e.Message = CodeOperand, fmt.Sprintf("something is missing before `%s`", word)
		e.Reason = "an operator or a comma needs a value after it"
	case word == "=":
		e.Code, e.Message, e.Reason, e.Fix = "E0030", "`=` gives a name to a value; it does not compare", "a condition compares with `==`", "`==`"
	default:
		e.Code, e.Message = CodeOperand, fmt.Sprintf("`%s` needs a value before it", word)
	}
}

func isWord(r rune) bool {
	return r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= utf8.RuneSelf
}

// lastWord is the name, number or closing literal at the end of text, or "".
func lastWord(text string) string {
	i := strings.LastIndexFunc(text, func(r rune) bool { return !isWord(r) && r != '.' })
	w := text[i+1:]
	switch w {
	case "and", "or", "not", "in", "contains", "matches", "startsWith", "endsWith":
		return ""
	}
	if w == "" && text != "" && strings.ContainsAny(text[len(text)-1:], ")]}\"'`") {
		return text[len(text)-1:]
	}
	return w
}

func callBefore(text string, at int) string {
	runes := []rune(text)
	t := strings.TrimRight(string(runes[:min(at, len(runes))]), " \t\r\n(")
	return lastWord(t)
}

func isAggregate(name string) bool {
	for _, a := range aggregates {
		if a == name {
			return true
		}
	}
	return false
}

// ParseFloat reads a float literal as expr's parser does.
func ParseFloat(text string) (float64, error) {
	return strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
}
