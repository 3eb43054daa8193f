package syntax

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

// A bracket is an open bracket of an expression while it is scanned.
type bracket struct {
	tok     token
	index   bool // [ after an operand
	call    bool // ( after an operand
	ternary int  // ? without their : so far
}

// An exprScanner finds where an expression ends. The rule: at bracket depth 0, after a complete operand,
// an expression goes on only at a binary operator (`not in` included), `.`, `?.`, `[`, `(`, `?`, the `:` of
// a ternary, or `|` before a name. No clause, stage or statement starts with one of those, so whatever
// follows belongs to the module's grammar. Inside brackets everything belongs to the expression.
type exprScanner struct {
	p        *parser
	what     string
	start    int
	pos      int // after the last token taken
	last     token
	operand  bool // a complete operand is behind us
	member   bool // a field name must follow
	at       int  // where the last operand at depth 0 starts
	coalesce int  // where the operand before the first ?? at depth 0 starts, -1 if there is none
	notIn    bool // `not` stood after an operand: in, matches, .. follows
	stack    []bracket
	top      bracket // depth 0
	broken   bool    // an error was reported; do not hand the text to expr
	literals map[string]ast.Node
	names    map[string]Duration
	subst    []substitution
}

// A substitution puts a generated identifier of the same rune length in the place of a literal.
type substitution struct {
	pos, end int
	text     string
}

// expr reads one expression; what says in messages what it is for. Its node is nil if it has an error that
// does not hide where it ends, which was reported then.
func (p *parser) expr(ctx expr.Context, what string) *Expr {
	s := &exprScanner{p: p, what: what, start: p.tok.pos, pos: p.tok.pos, at: p.tok.pos, coalesce: -1}
	s.run()
	e := &Expr{Pos: Pos(s.start), End: Pos(s.pos), Text: p.text[s.start:s.pos], Durations: s.names}
	p.tok = token{pos: s.pos, end: s.pos}
	p.end = s.pos
	p.tok = scan(p.text, s.pos, false)
	p.lastExpr.operand, p.lastExpr.end = s.at, s.pos
	if s.broken {
		return e
	}
	if len(e.Text) > MaxExpr {
		p.report(expr.CodeTooLarge, s.start, s.pos, fmt.Sprintf("an expression has at most %d bytes, this one has %d", MaxExpr, len(e.Text)),
			"the cost of a row must be bounded", "split it with `set` into named columns", nil)
		return e
	}
	offset := p.mod.src.runeOffset(s.start)
	node, err := expr.Parse(s.substituted(), offset, ctx, s.literals)
	if err != nil {
		from := int(p.mod.ByteOffset(offset + err.From))
		to := int(p.mod.ByteOffset(offset + err.To))
		from, to = min(from, s.pos), min(to, s.pos)
		if from >= s.pos {
			from = max(s.start, s.last.pos)
		}
		p.report(err.Code, from, to, s.unsubstituted(err.Message), err.Reason, s.unsubstituted(err.Fix), s.edit(err, from, to))
		return e
	}
	e.Node = node
	return e
}

// edit is the change that removes an error of expr's parser, where it is plain.
func (s *exprScanner) edit(err *expr.Error, from, to int) *plan.Edit {
	switch {
	case err.Edit != nil:
		at := func(runes int) int { return int(s.p.mod.ByteOffset(s.p.mod.src.runeOffset(s.start) + runes)) }
		return &plan.Edit{Start: at(err.Edit.From), End: at(err.Edit.To), Text: s.unsubstituted(err.Edit.Text)}
	case err.Code == "E0030" && s.p.text[from:to] == "=":
		return &plan.Edit{Start: from, End: to, Text: "=="}
	case err.Code == expr.CodeCoalesce && s.coalesce >= 0 && s.coalesce < from:
		whole := strings.TrimRight(s.p.text[s.coalesce:from], " \t\r\n")
		return &plan.Edit{Start: s.coalesce, End: s.coalesce + len(whole), Text: "(" + whole + ")"}
	}
	return nil
}

func (s *exprScanner) fail(code string, t token, message, reason, fix string) {
	if t.kind == kindBad {
		s.p.tok = t
		s.p.badToken()
	}
	pos, end := t.pos, t.end
	if t.kind == kindEOF {
		pos, end = max(0, s.pos-1), s.pos
	}
	s.p.tok, s.p.end = scan(s.p.text, s.pos, false), s.pos
	s.p.fail(code, pos, end, message, reason, fix)
}

func (s *exprScanner) frame() *bracket {
	if len(s.stack) == 0 {
		return &s.top
	}
	return &s.stack[len(s.stack)-1]
}

func (s *exprScanner) run() {
	for {
		t := scan(s.p.text, s.pos, true)
		if len(s.stack) == 0 {
			if s.operand && !s.member {
				if t.is("=") {
					t = s.equals(t)
				} else if !s.goesOn(t) {
					return
				}
			} else {
				s.checkOperand(t)
			}
		} else if t.kind == kindEOF || t.kind == kindBad || t.is("|>") || s.nextStatement(t) {
			s.unclosed(t)
		}
		if t.end-s.start > 2*MaxExpr { // far beyond the limit: do not look for the end
			s.fail(expr.CodeTooLarge, t, fmt.Sprintf("an expression has at most %d bytes", MaxExpr), "the cost of a row must be bounded", "split it with `set` into named columns")
		}
		s.take(t)
	}
}

// nextStatement tells whether t begins a statement although a bracket is open. In an expression that would
// be two operands in a row.
func (s *exprScanner) nextStatement(t token) bool {
	return t.kind == kindName && s.operand && startsLine(s.p.text, t.pos) && s.p.startsStatement(t)
}

// equals handles the single = where == was meant: one error, and the scan goes on.
func (s *exprScanner) equals(t token) token {
	if !s.broken {
		s.p.report("E0030", t.pos, t.end, "`=` gives a name to a value; it does not compare", "a condition compares with `==`", "`==`",
			&plan.Edit{Start: t.pos, End: t.end, Text: "=="})
	}
	s.broken = true
	t.text = "=="
	return t
}

// goesOn decides whether t continues an expression that could end here.
func (s *exprScanner) goesOn(t token) bool {
	switch t.kind {
	case kindName:
		switch t.text {
		case "and", "or", "in", "matches", "contains", "startsWith", "endsWith":
			return true
		case "not":
			switch n := scan(s.p.text, t.end, true); n.text {
			case "in", "matches", "contains", "startsWith", "endsWith":
				return n.kind == kindName
			}
		}
		return false
	case kindOp:
		switch t.text {
		case ".", "?.", "[", "(", "?", "||", "&&", "==", "!=", "<", ">", "<=", ">=", "..", "+", "-", "*", "/", "%", "**", "^", "??":
			return true
		case ":":
			return s.top.ternary > 0
		case "&":
			s.fail(expr.CodeExpr, t, "there is no operator `&`", "it would have to mean two things", "`and` joins conditions, `bitand(a, b)` joins bits")
		case "|":
			return scan(s.p.text, t.end, true).kind == kindName
		case ";":
			if n := scan(s.p.text, t.end, true); n.kind == kindEOF || n.is("|>") || n.kind == kindName && startsLine(s.p.text, n.pos) {
				return false // it ends a statement, as elsewhere
			}
			s.fail(expr.CodeStatement, t, "`;` cannot stand in an expression here", "outside parentheses `;` has no meaning", "wrap the `let` in parentheses: `(let x = ..; x + 1)`")
		}
	}
	return false
}

// checkOperand refuses what cannot begin an operand at depth 0.
func (s *exprScanner) checkOperand(t token) {
	if s.member {
		if t.kind == kindName || t.is("[") {
			return
		}
		s.fail(expr.CodeOperand, t, fmt.Sprintf("a field name must follow `%s`, not %s", s.last.text, t.describe()), "what follows a dot is known before the rows are", "write the name of a field, or remove the `"+s.last.text+"`")
	}
	if s.notIn {
		return // goesOn has looked
	}
	switch t.kind {
	case kindName:
		switch t.text {
		case "let", "if":
			s.fail(expr.CodeStatement, t, fmt.Sprintf("`%s` must stand in parentheses", t.text), "an expression ends where the next word begins",
				map[string]string{"let": "`(let x = ..; x + 1)`", "if": "`(if a {b} else {c})`, or `a ? b : c`"}[t.text])
		case "and", "or", "in", "matches", "contains", "startsWith", "endsWith", "else":
			s.missing(t)
		}
		return
	case kindNumber, kindDuration, kindString, kindBytes:
		return
	case kindOp:
		switch t.text {
		case "(", "[", "{", "+", "-", "!", "::":
			return
		case ":":
			if s.last.is("?") && s.top.ternary > 0 {
				return // a ?: b
			}
		}
		if strings.HasPrefix(t.text, "#") || t.text == "." {
			s.fail(expr.CodeOperand, t, fmt.Sprintf("`%s` means the element only inside a list function", t.text), "a closure is applied to the elements of a list", "for example `filter(xs, # > 1)`")
		}
	}
	s.missing(t)
}

func (s *exprScanner) missing(t token) {
	if t.pos == s.last.end && s.pos > s.start {
		for _, o := range [][3]string{{"<", ">", "!="}, {"==", "=", "=="}, {"!=", "=", "!="}} {
			if s.last.is(o[0]) && t.is(o[1]) {
				s.p.tok, s.p.end = scan(s.p.text, s.pos, false), s.pos
				s.p.report(expr.CodeOperand, s.last.pos, t.end, fmt.Sprintf("there is no operator `%s%s`", o[0], o[1]), "the two signs stand the other way round", fmt.Sprintf("`%s`", o[2]),
					&plan.Edit{Start: s.last.pos, End: t.end, Text: o[2]})
				panic(bail{})
			}
		}
	}
	switch {
	case s.pos == s.start:
		s.fail(expr.CodeOperand, t, fmt.Sprintf("%s needs an expression, not %s", s.what, t.describe()), "a value is computed from one", cmp.Or(firstExpr[s.what], "write the expression, such as `a + 1`"))
	case t.kind == kindEOF || t.is("|>"):
		s.p.tok, s.p.end = scan(s.p.text, s.pos, false), s.pos
		s.p.report(expr.CodeOperand, s.last.pos, s.last.end, fmt.Sprintf("nothing follows `%s`", s.last.text), "the operator needs a value on its right",
			"remove it, or write the value", &plan.Edit{Start: len(strings.TrimRight(s.p.text[:s.last.pos], " \t\r\n")), End: s.last.end})
		panic(bail{})
	}
	s.fail(expr.CodeOperand, t, fmt.Sprintf("`%s` is followed by %s where a value should be", s.last.text, t.describe()), "an operator needs a value on each side", "write the value, or remove the operator")
}

// unclosed reports the innermost open bracket.
func (s *exprScanner) unclosed(t token) {
	if t.kind == kindBad {
		s.p.tok = t
		s.p.badToken()
	}
	open := s.stack[len(s.stack)-1].tok
	s.p.tok, s.p.end = scan(s.p.text, t.pos, false), s.pos
	if t.kind == kindEOF {
		s.p.tok, s.p.end = scan(s.p.text, open.end, false), open.end // the bracket may have swallowed statements
	}
	s.p.report(expr.CodeBracket, open.pos, open.end, fmt.Sprintf("this `%s` is not closed", open.text),
		"found "+t.describe()+" first", fmt.Sprintf("`%s`", closing(open.text)), &plan.Edit{Start: s.pos, End: s.pos, Text: closing(open.text)})
	panic(bail{})
}

// firstExpr shows what could stand where nothing does.
var firstExpr = map[string]string{"`where`": "for example `where n > 0`", "`select`": "for example `select a, b`", "`by`": "for example `by id`"}

func closing(open string) string {
	switch open {
	case "(":
		return ")"
	case "[":
		return "]"
	}
	return "}"
}

// take consumes t, keeps the state of the scan and tells Format how t is spaced.
func (s *exprScanner) take(t token) {
	class := spaced
	wasMember := s.member
	s.member = false
	s.notIn = s.operand && t.word("not")
	if len(s.stack) == 0 {
		switch {
		case t.is("??") && s.coalesce < 0:
			s.coalesce = s.at
		case !s.operand && !wasMember && !s.last.is("::") && (t.kind != kindOp || t.is("(") || t.is("[") || t.is("{") || t.is("::")):
			s.at = t.pos
		}
	}
	switch t.kind {
	case kindName:
		class = s.takeName(t, wasMember)
	case kindDuration:
		s.takeDuration(t)
		s.operand = true
	case kindNumber:
		s.takeNumber(t)
		s.operand = true
	case kindString, kindBytes:
		s.operand = true
	default:
		class = s.takeOp(t, wasMember)
	}
	if s.p.rec != nil {
		s.p.rec.exprToken(t, class, len(s.stack))
	}
	s.last = t
	s.pos = t.end
}

func (s *exprScanner) takeName(t token, wasMember bool) spacing {
	if wasMember {
		s.operand = true
		return glued
	}
	switch t.text {
	case "and", "or", "in", "matches", "contains", "startsWith", "endsWith", "not", "let", "if", "else":
		s.operand = false
		return spaced
	}
	s.operand = true
	if s.last.is("::") {
		return glued
	}
	return spaced
}

func (s *exprScanner) takeOp(t token, wasMember bool) spacing {
	before := s.operand
	s.operand = false
	f := s.frame()
	switch t.text {
	case "(":
		s.push(bracket{tok: t, call: before})
		if before {
			return gluedOpen
		}
		return open
	case "[":
		s.push(bracket{tok: t, index: before || wasMember})
		if before || wasMember {
			return gluedOpen
		}
		return open
	case "{":
		s.push(bracket{tok: t})
		return open
	case ")", "]", "}":
		if len(s.stack) == 0 || closing(f.tok.text) != t.text {
			if len(s.stack) == 0 {
				s.fail(expr.CodeBracket, t, fmt.Sprintf("this `%s` closes nothing", t.text), "no bracket is open here", "remove it")
			}
			s.fail(expr.CodeBracket, t, fmt.Sprintf("this `%s` does not close `%s`", t.text, f.tok.text),
				"brackets close in the order they opened", fmt.Sprintf("`%s`", closing(f.tok.text)))
		}
		s.stack = s.stack[:len(s.stack)-1]
		s.operand = true
		return glued
	case ".", "?.":
		s.member = true
		if before {
			return gluedOpen
		}
		return open
	case "..":
		return gluedOpen
	case "::":
		return open
	case ",", ";":
		f.ternary = 0
		return glued
	case "?":
		f.ternary++
	case ":":
		if f.ternary > 0 {
			f.ternary--
			if s.last.is("?") {
				return glued
			}
			return spaced
		}
		if f.tok.text == "[" {
			return gluedOpen
		}
		return glued
	case "+", "-":
		if !before {
			return open
		}
	case "!":
		return open
	default:
		if strings.HasPrefix(t.text, "#") {
			s.operand = true
		}
	}
	return spaced
}

func (s *exprScanner) push(b bracket) {
	if len(s.stack) >= maxDepth {
		s.fail(expr.CodeTooLarge, b.tok, fmt.Sprintf("this expression nests deeper than %d brackets", maxDepth), "the cost of a row must be bounded", "split it with `set` into named columns")
	}
	s.stack = append(s.stack, b)
}

func (s *exprScanner) takeDuration(t token) {
	n, _ := parseDuration(t.text)
	if s.names == nil {
		s.names = make(map[string]Duration)
	}
	s.names[s.substitute(t)] = Duration{Nanos: n, Text: t.text, Pos: Pos(t.pos)}
}

// takeNumber replaces what expr's lexer cannot read where it stands: .5 after a ?, and the magnitude of
// the smallest int64.
func (s *exprScanner) takeNumber(t token) {
	var node ast.Node
	digits := strings.ReplaceAll(t.text, "_", "")
	switch _, fits := parseInt(digits); {
	case digits == "9223372036854775808":
		node = expr.MinIntMagnitude()
	case isWhole(digits) && !fits:
		s.p.report(expr.CodeNumber, t.pos, t.end, "this number is too large", "integers are int64, at most 9223372036854775807",
			"a string in `dec(\"..\")` or `u64(\"..\")` holds larger ones", nil)
		s.broken = true
		return
	case strings.HasPrefix(t.text, ".") && s.last.is("?") && s.last.end == t.pos:
		v, err := expr.ParseFloat(t.text)
		if err != nil {
			return
		}
		node = &ast.FloatNode{Value: v}
	default:
		return
	}
	if s.literals == nil {
		s.literals = make(map[string]ast.Node)
	}
	s.literals[s.substitute(t)] = node
}

// substitute makes the identifier of one literal: `$`, a letter that numbers it, and `_` up to its length.
// No name of the text has a `$`.
func (s *exprScanner) substitute(t token) string {
	n := len(s.subst)
	letter := rune('a' + n)
	if n >= 26 {
		letter = rune(0x4E00 + n) // enough letters for every literal of an expression
	}
	if n > 0x4000 {
		s.fail(expr.CodeTooLarge, t, fmt.Sprintf("an expression has at most %d bytes", MaxExpr), "the cost of a row must be bounded", "split it with `set` into named columns")
	}
	name := "$" + string(letter)
	if w := utf8.RuneCountInString(t.text); w > 2 {
		name += strings.Repeat("_", w-2)
	}
	s.subst = append(s.subst, substitution{t.pos, t.end, name})
	return name
}

// substituted is the text of the expression with its literals replaced.
func (s *exprScanner) substituted() string {
	if len(s.subst) == 0 {
		return s.p.text[s.start:s.pos]
	}
	var b strings.Builder
	at := s.start
	for _, r := range s.subst {
		b.WriteString(s.p.text[at:r.pos])
		b.WriteString(r.text)
		at = r.end
	}
	b.WriteString(s.p.text[at:s.pos])
	return b.String()
}

// unsubstituted puts the literals of the module back into a text that quotes the expression.
func (s *exprScanner) unsubstituted(text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	for i := len(s.subst) - 1; i >= 0; i-- {
		text = strings.ReplaceAll(text, s.subst[i].text, s.p.text[s.subst[i].pos:s.subst[i].end])
	}
	return text
}

// operandNext tells whether the current token could be a second operand.
func (p *parser) operandNext() bool {
	switch p.tok.kind {
	case kindNumber, kindDuration, kindString:
		return true
	case kindName:
		return !reserved[p.tok.text] || p.tok.text == "true" || p.tok.text == "false" || p.tok.text == "nil"
	}
	return false
}

// sqlOperators are words that people try between operands, with what to write instead.
var sqlOperators = map[string]string{
	"is": "`x == nil` or `x != nil`", "like": "`contains`, `startsWith`, `endsWith` or `matches`", "between": "`lo <= x and x <= hi`",
	"mod": "`%` or `mod(a, b)`", "div": "`div(a, b)`", "xor": "`a != b`", "ilike": "`lower(x) contains ..`",
}

// secondOperand reports `a b` where an operator, a comma or a |> is missing.
func (p *parser) secondOperand() {
	start := p.lastExpr.operand
	word := p.text[start:p.end]
	if utf8.RuneCountInString(word) > 40 || strings.Contains(word, "\n") {
		last := p.text[p.end-1 : p.end]
		word, start = ".."+last, p.end-1
	}
	p.habit()
	if p.tok.kind == kindName && stageWords[p.tok.text] {
		p.failEdit(expr.CodeOperands, fmt.Sprintf("`|>` is missing before `%s`", p.tok.text), "each stage begins with `|>`", fmt.Sprintf("`|> %s`", p.tok.text),
			&plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "|> "})
	}
	if p.tok.kind == kindName {
		if w := strings.ToLower(p.tok.text); w != p.tok.text && (w == "and" || w == "or" || w == "not" || w == "in") {
			p.failEdit(expr.CodeOperands, fmt.Sprintf("`%s` is no operator", p.tok.text), "operators are written in lower case", fmt.Sprintf("`%s`", w), p.replaceTok(w, true))
		}
		if fix := sqlOperators[strings.ToLower(p.tok.text)]; fix != "" {
			p.failTok(expr.CodeOperands, fmt.Sprintf("there is no operator `%s`", p.tok.text), "it is written otherwise here", fix)
		}
	}
	p.fail(expr.CodeOperands, start, p.tok.end, fmt.Sprintf("two operands in a row: `%s` then %s", word, p.tok.describe()),
		"an operator or a comma is missing, or a `|>` before a new stage", fmt.Sprintf("put one of them before %s, or remove it", p.tok.describe()))
}

// takeString takes the value of the current string token.
func (p *parser) takeString() string {
	v, err := expr.Unquote(p.tok.text)
	if err != nil {
		p.failTok(expr.CodeLiteral, "this string has an escape that does not exist", err.Error(), "`\\\\` is a backslash; back quotes hold text as it is")
	}
	p.next()
	return v
}
