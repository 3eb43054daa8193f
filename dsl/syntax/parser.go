package syntax

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
)

// The bounds of a module.
const (
	MaxText  = 1 << 20 // bytes of a module
	MaxExpr  = 8 << 10 // bytes of an expression
	maxDepth = 100     // nested brackets, types, pattern groups
	maxLine  = 2000    // bytes of a source line that a diagnostic shows
	maxDiags = 100     // syntax errors that are reported; the rest would only follow from them
)

// Parse reads a module. It never fails as a whole: what could be read is in the module, and every syntax
// error that was found is in the diagnostics, in the order of the text. A stage, field or statement with an
// error is left out, so a module that came with diagnostics must not be carried out.
func Parse(file, text string) (*Module, []plan.Diagnostic) {
	p := newParser(file, text)
	p.module()
	diags := p.result()
	verifyEdits(text, diags)
	return p.mod, diags
}

// verifyEdits keeps the edits that leave fewer syntax errors than there are. It parses at most a few
// megabytes for that; edits beyond are dropped.
func verifyEdits(text string, diags []plan.Diagnostic) {
	budget := 4 * MaxText
	for i := range diags {
		e := diags[i].Edit
		if e == nil {
			continue
		}
		diags[i].Edit = nil
		if budget -= len(text); budget < 0 || len(text) > 64<<10 {
			continue
		}
		p := newParser("", text[:e.Start]+e.Text+text[e.End:])
		p.module()
		if len(p.result()) < len(diags) {
			diags[i].Edit = e
		}
	}
}

// A parser holds one token of lookahead, scanned outside expressions. Its methods stop at the first error
// with fail, which unwinds to the nearest place that knows where to go on (recoverTo).
type parser struct {
	mod     *Module
	text    string
	tok     token // current
	end     int   // end of the token before tok
	depth   int
	diags   []plan.Diagnostic
	rec     *recorder // for Format; nil otherwise
	openRow bool      // inside the { } of a row of a test
	// lastExpr is the last expression that ended exactly at end: what follows may be a second operand.
	lastExpr struct{ operand, end int } // operand: where its last operand starts
}

// bail unwinds a parser to the nearest recovery point. Nothing else is caught there.
type bail struct{}

func newParser(file, text string) *parser {
	p := &parser{text: text, mod: &Module{File: file, Text: text}}
	if len(text) > MaxText || !utf8.ValidString(text) {
		p.mod.src = newSource("")
		code, reason := "E0001", "the work for a module must be bounded"
		message, fix := fmt.Sprintf("a module has at most %d bytes, this one has %d", MaxText, len(text)), "split it into several modules"
		if len(text) <= MaxText {
			code, reason = "E0002", "another encoding would be read as other letters"
			message, fix = "this file is not UTF-8 text", "save it as UTF-8"
		}
		p.text = ""
		p.diags = []plan.Diagnostic{{Code: code, Message: message, File: file, Line: 1, Column: 1, Length: 1, Reason: reason, Fix: fix}}
		return p
	}
	p.mod.src = newSource(text)
	if strings.HasPrefix(text, byteOrderMark) {
		p.tok.end = len(byteOrderMark)
	}
	return p
}

// byteOrderMark is what some editors put before UTF-8 text.
const byteOrderMark = "\uFEFF"

// result sorts and trims the diagnostics.
func (p *parser) result() []plan.Diagnostic {
	sort.SliceStable(p.diags, func(i, j int) bool {
		a, b := p.diags[i], p.diags[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	if len(p.diags) > maxDiags {
		p.diags = p.diags[:maxDiags]
	}
	return p.diags
}

// report adds a diagnostic about the bytes [pos, end).
func (p *parser) report(code string, pos, end int, message, reason, fix string, edit *plan.Edit) {
	if len(p.diags) >= 4*maxDiags {
		return
	}
	line, col := p.mod.src.lineCol(pos)
	if i := p.mod.src.lineText(line); pos < end {
		start := p.mod.src.lines[line-1]
		end = max(pos+1, min(end, start+len(i))) // the caret stays on its line
	}
	length := max(1, p.mod.src.runeOffset(end)-p.mod.src.runeOffset(pos))
	source := p.mod.src.lineText(line)
	if len(source) > maxLine {
		source = ""
	}
	p.diags = append(p.diags, plan.Diagnostic{
		Code: code, Message: message, File: p.mod.File, Line: line, Column: col, Length: length,
		Reason: reason, Fix: fix, LineText: source, Edit: edit,
	})
}

func (p *parser) fail(code string, pos, end int, message, reason, fix string) {
	p.report(code, pos, end, message, reason, fix, nil)
	panic(bail{})
}

// failTok reports the current token; a lexical error in it says more than what was expected instead.
func (p *parser) failTok(code, message, reason, fix string) {
	p.failEdit(code, message, reason, fix, nil)
}

func (p *parser) failEdit(code, message, reason, fix string, edit *plan.Edit) {
	if p.tok.kind == kindBad {
		p.badToken()
	}
	pos, end := p.tok.pos, p.tok.end
	if p.tok.kind == kindEOF && p.end > 0 {
		pos, end = p.end-1, p.end // under the last character: the end of the file has none
		for pos > 0 && !utf8.RuneStart(p.text[pos]) {
			pos--
		}
	}
	p.report(code, pos, end, message, reason, fix, edit)
	panic(bail{})
}

func (p *parser) badToken() {
	b := p.tok.problem
	pos, end := p.tok.pos, p.tok.end
	if p.tok.kind == kindBad && (b.code == "E0003" || b.code == "E0004") {
		end = pos + 1
	}
	p.fail(b.code, pos, end, b.message, b.reason, b.fix)
}

// try runs f and reports whether it ran to its end; a syntax error inside it was reported.
func (p *parser) try(f func()) (ok bool) {
	depth := p.depth
	defer func() {
		p.depth = depth
		if r := recover(); r != nil {
			if _, mine := r.(bail); !mine {
				panic(r)
			}
			ok = false
		}
	}()
	f()
	return true
}

// next moves to the next token outside expressions.
func (p *parser) next() {
	if p.rec != nil && p.tok.kind != kindEOF && p.tok.end > p.tok.pos {
		p.rec.token(p.tok)
	}
	p.end = p.tok.end
	p.tok = scan(p.text, p.tok.end, false)
}

// skip is next for tokens that recovery throws away.
func (p *parser) skip() {
	p.end = p.tok.end
	p.tok = scan(p.text, p.tok.end, false)
}

// peek gives the n-th token after the current one.
func (p *parser) peek(n int) token {
	t := p.tok
	for ; n > 0; n-- {
		t = scan(p.text, t.end, false)
	}
	return t
}

func (p *parser) enter() {
	p.depth++
	if p.depth > maxDepth {
		p.failTok("E0009", fmt.Sprintf("this nests deeper than %d levels", maxDepth), "the work for a module must be bounded", "name an inner part")
	}
}

func (p *parser) leave() { p.depth-- }

// accept takes a word or an operator if it is next.
func (p *parser) accept(text string) bool {
	if p.tok.is(text) || p.tok.word(text) {
		p.next()
		return true
	}
	return false
}

// expect takes an operator or a word, or says what it is for.
func (p *parser) expect(text, what string) {
	if !p.accept(text) {
		p.unexpected("E0012", fmt.Sprintf("`%s` is missing %s", text, what), fmt.Sprintf("`%s`", text), text)
	}
}

// unexpected reports that something else stands where insert should; insert, if not "", becomes an edit
// when it can stand before the current token.
func (p *parser) unexpected(code, message, fix, insert string) {
	reason := "found " + p.tok.describe()
	if p.lastExpr.end == p.end && p.end > 0 && p.operandNext() {
		p.secondOperand()
	}
	var edit *plan.Edit
	if insert != "" {
		edit = &plan.Edit{Start: p.end, End: p.end, Text: insert}
		if isLetter(rune(insert[0])) || insert == "=" {
			edit.Text = " " + insert
		}
	}
	p.failEdit(code, message, reason, fix, edit)
}

// name takes an identifier.
func (p *parser) name(what string) Name {
	if p.tok.kind == kindName {
		p.checkReserved(what)
		n := Name{Text: p.tok.text, Pos: Pos(p.tok.pos)}
		p.next()
		return n
	}
	p.failTok("E0011", fmt.Sprintf("%s needs a name, not %s", what, p.tok.describe()), "names are letters, digits and `_`", "write a name, such as `a_1`")
	return Name{}
}

// reserved are the words that expr's lexer never reads as identifiers.
var reserved = map[string]bool{
	"and": true, "or": true, "not": true, "in": true, "matches": true, "contains": true, "startsWith": true,
	"endsWith": true, "let": true, "if": true, "else": true, "true": true, "false": true, "nil": true,
}

func (p *parser) checkReserved(what string) {
	if !reserved[p.tok.text] {
		return
	}
	w := p.tok.text
	p.failEdit("E0029", fmt.Sprintf("`%s` is a word of expressions and cannot be a name", w), "an expression could not mention it",
		fmt.Sprintf("`%s_`; a column declared `%s_: .. as %q` is read from the field `%s`", w, w, w, w),
		&plan.Edit{Start: p.tok.pos, End: p.tok.end, Text: w + "_"})
}

// topicName takes an identifier or a string.
func (p *parser) topicName(what string) Name {
	if p.tok.kind == kindString {
		n := Name{Pos: Pos(p.tok.pos), Quoted: true}
		n.Text = p.stringValue(what)
		return n
	}
	return p.name(what)
}

func (p *parser) stringValue(what string) string {
	if p.tok.kind != kindString {
		p.failEdit("E0021", fmt.Sprintf("%s needs a string, not %s", what, p.tok.describe()), "strings stand in quotes", fmt.Sprintf("`%q`", p.tok.text), p.replaceTok(fmt.Sprintf("%q", p.tok.text), p.tok.kind == kindName))
	}
	return p.takeString()
}

// duration takes a duration literal or the name of a const.
func (p *parser) duration(what string) Duration {
	d := Duration{Text: p.tok.text, Pos: Pos(p.tok.pos)}
	switch p.tok.kind {
	case kindDuration:
		d.Nanos, _ = parseDuration(p.tok.text)
	case kindName:
		if reserved[p.tok.text] {
			p.failTok("E0019", fmt.Sprintf("%s needs a duration, not %s", what, p.tok.describe()), "a number says nothing without its unit", "for example `10s`, `1h30m` or `7d`")
		}
		d.Const = p.tok.text
	case kindNumber:
		if n := p.peek(1); n.kind == kindName && unitWords[strings.ToLower(n.text)] != "" && isWhole(p.tok.text) {
			text := p.tok.text + unitWords[strings.ToLower(n.text)]
			p.failEdit("E0019", fmt.Sprintf("a duration is written in one word: `%s`", text), "units are ns us ms s m h d w", "`"+text+"`", &plan.Edit{Start: p.tok.pos, End: n.end, Text: text})
		}
		p.failEdit("E0019", fmt.Sprintf("%s needs a duration, and `%s` has no unit", what, p.tok.text), "units are ns us ms s m h d w",
			fmt.Sprintf("`%ss` for seconds", p.tok.text), p.replaceTok(p.tok.text+"s", isWhole(p.tok.text)))
	default:
		if bare := strings.Trim(p.tok.text, "\"'`"); p.tok.kind == kindString {
			if t := scan(bare, 0, false); t.kind == kindDuration && t.end == len(bare) {
				p.failEdit("E0019", fmt.Sprintf("%s needs a duration, and this is a string", what), "durations stand without quotes", "`"+bare+"`", p.replaceTok(bare, true))
			}
		}
		p.failTok("E0019", fmt.Sprintf("%s needs a duration, not %s", what, p.tok.describe()), "a number says nothing without its unit", "for example `10s`, `1h30m` or `7d`")
	}
	p.next()
	return d
}

func (p *parser) replaceTok(text string, ok bool) *plan.Edit {
	if !ok {
		return nil
	}
	return &plan.Edit{Start: p.tok.pos, End: p.tok.end, Text: text}
}

func isWhole(text string) bool {
	for _, r := range text {
		if r < '0' || r > '9' {
			return false
		}
	}
	return text != ""
}

// signedDuration takes [-] DUR.
func (p *parser) signedDuration(what string) Duration {
	pos := p.tok.pos
	if !p.tok.is("-") {
		return p.duration(what)
	}
	p.next()
	p.glue()
	d := p.duration(what)
	if d.Const != "" {
		d.Negative = true
	}
	d.Nanos, d.Text, d.Pos = -d.Nanos, p.text[pos:p.end], Pos(pos)
	return d
}

// integer takes a whole number or the name of a const.
func (p *parser) integer(what string) Int {
	n := Int{Pos: Pos(p.tok.pos)}
	switch {
	case p.tok.kind == kindNumber && isWhole(p.tok.text):
		v, ok := parseInt(p.tok.text)
		if !ok {
			p.failTok("E0020", fmt.Sprintf("the number %s is too large", p.tok.describe()), "integers are int64", "use a smaller number")
		}
		n.Value = v
	case p.tok.kind == kindName && !reserved[p.tok.text]:
		n.Const = p.tok.text
	default:
		p.failTok("E0020", fmt.Sprintf("%s needs a whole number, not %s", what, p.tok.describe()), "it counts something", "for example `3`")
	}
	p.next()
	return n
}

func parseInt(digits string) (int64, bool) {
	var n int64
	for _, r := range digits {
		d := int64(r - '0')
		if n > (1<<63-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}

// glue asks Format for no space before the current token.
func (p *parser) glue() {
	if p.rec != nil {
		p.rec.glueAt(p.tok.pos)
	}
}

// mark tells Format what begins at the current token.
func (p *parser) mark(m mark) {
	if p.rec != nil {
		p.rec.markAt(p.tok.pos, m)
	}
}
