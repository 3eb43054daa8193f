package syntax

import (
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

// statementWords begin statements. They are contextual: elsewhere they are names.
var statementWords = []string{"topic", "table", "stream", "view", "const", "param", "fn", "type", "test", "from"}

func isStatementWord(w string) bool {
	for _, s := range statementWords {
		if s == w {
			return true
		}
	}
	return false
}

// atStatement tells whether the current token begins a statement.
func (p *parser) atStatement() bool { return p.startsStatement(p.tok) }

func (p *parser) startsStatement(t token) bool {
	if t.kind != kindName || !isStatementWord(t.text) {
		return false
	}
	n := scan(p.text, t.end, false)
	if t.text == "test" {
		return n.kind == kindString
	}
	return n.kind == kindName || n.kind == kindString && t.text == "from"
}

// toStatement skips to the next statement: its first word begins a line, or follows a }.
func (p *parser) toStatement() {
	for p.tok.kind != kindEOF {
		if p.atStatement() && p.startsLine() {
			return
		}
		p.skip()
	}
}

// startsLine tells whether only spaces stand before the current token on its line.
func (p *parser) startsLine() bool { return startsLine(p.text, p.tok.pos) }

func startsLine(text string, pos int) bool {
	for pos > 0 {
		switch text[pos-1] {
		case '\n':
			return true
		case ' ', '\t', '\r':
			pos--
		default:
			return false
		}
	}
	return true
}

func (p *parser) module() {
	p.next()
	for p.tok.kind != kindEOF {
		before := p.tok.pos
		if !p.try(p.statement) {
			if p.tok.pos == before {
				p.skip()
			}
			p.toStatement()
		}
	}
}

func (p *parser) add(s Statement) { p.mod.Statements = append(p.mod.Statements, s) }

func (p *parser) statement() {
	pos := Pos(p.tok.pos)
	if p.tok.kind != kindName {
		if p.tok.is("|>") {
			p.failTok("E0010", "a stage stands alone: no pipeline is open here", "a pipeline begins with `from`", "`from x |> ..`")
		}
		p.opHabit()
		p.unexpected("E0010", fmt.Sprintf("a statement cannot begin with %s", p.tok.describe()), "statements begin with topic, table, stream, view, const, param, fn, type, test or from", "")
	}
	p.mark(markStatement)
	switch p.tok.text {
	case "topic", "table":
		p.topic(pos)
	case "stream":
		p.next()
		d := &StreamDecl{Pos: pos, Name: p.name("`stream`")}
		p.expect("=", "after the name of a stream")
		d.Pipeline = p.pipeline()
		d.End = Pos(p.end)
		p.add(d)
		if p.tok.word("with") && !p.startsStatement(p.tok) {
			p.failTok("E0016", "a stream takes no options", "it is a name for a part of a pipeline, and stored nowhere", "give them to the topic or view that reads it")
		}
		p.endStatement()
	case "view":
		p.next()
		d := &ViewDecl{Pos: pos, Name: p.name("`view`")}
		d.As = p.kafkaName()
		p.expect("=", "after the name of a view")
		d.Pipeline = p.pipeline()
		d.Options = p.options(true)
		d.End = Pos(p.end)
		p.add(d)
		p.endStatement()
	case "from":
		d := &PipelineStmt{Pos: pos, Pipeline: p.pipeline()}
		d.End = Pos(p.end)
		p.add(d)
		p.endStatement()
	case "const":
		p.next()
		d := &ConstDecl{Pos: pos, Name: p.name("`const`")}
		if n := p.peek(1); p.tok.is(":") && n.kind == kindName && p.peek(2).is("=") {
			p.failEdit("E0012", "a const takes its type from its value", "found `:`", "`const "+d.Name.Text+" = ..`", &plan.Edit{Start: p.end, End: n.end})
		}
		p.expect("=", "after the name of a const")
		d.Value = *p.expr(expr.Scalar, "a const")
		d.End = Pos(p.end)
		p.add(d)
		p.endStatement()
	case "param":
		p.next()
		d := &ParamDecl{Pos: pos, Name: p.name("`param`")}
		p.colon("a param")
		d.Type = p.typeExpr()
		if p.accept("=") {
			d.Default = p.expr(expr.Scalar, "the default of a param")
		}
		d.End = Pos(p.end)
		p.add(d)
		p.endStatement()
	case "fn":
		p.function(pos)
	case "type":
		p.next()
		d := &TypeDecl{Pos: pos, Name: p.name("`type`")}
		p.expect("=", "after the name of a type")
		d.Type = p.schema("a type")
		d.End = Pos(p.end)
		p.add(d)
		p.endStatement()
	case "test":
		p.test(pos)
	default:
		p.unknownStatement()
	}
}

func (p *parser) unknownStatement() {
	w := p.tok.text
	p.statementHabit()
	near := nearest(w, statementWords)
	if p.lastExpr.end == p.end && p.end > 0 && (near == "" || p.peek(1).kind != kindName) {
		p.secondOperand()
	}
	if stageWords[w] && len(p.mod.Statements) == 0 {
		p.failTok("E0010", fmt.Sprintf("a statement cannot begin with the stage `%s`", w), "a pipeline begins with its source", fmt.Sprintf("`from x |> %s ..`", w))
	}
	if stageWords[w] {
		p.failEdit("E0010", fmt.Sprintf("`|>` is missing before `%s`", w), "each stage begins with `|>`", fmt.Sprintf("`|> %s`", w),
			&plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "|> "})
	}
	if near != "" {
		p.failEdit("E0010", fmt.Sprintf("no statement begins with `%s`", w), "statements begin with topic, table, stream, view, const, param, fn, type, test or from", fmt.Sprintf("`%s`", near), p.replaceTok(near, true))
	}
	p.failTok("E0010", fmt.Sprintf("no statement begins with `%s`", w), "statements begin with topic, table, stream, view, const, param, fn, type, test or from", "begin with one of those")
}

// endStatement checks that nothing of the statement is left over.
func (p *parser) endStatement() {
	if p.tok.kind == kindEOF || p.atStatement() {
		return
	}
	if p.tok.kind == kindName && p.startsLine() {
		return // the next statement will say what is wrong with it
	}
	p.habit()
	p.unexpected("E0014", fmt.Sprintf("%s does not belong to this statement", p.tok.describe()), "remove it, or begin a new statement", "")
}

func (p *parser) kafkaName() *Name {
	if !p.accept("as") {
		return nil
	}
	if p.tok.kind != kindString {
		p.failTok("E0021", fmt.Sprintf("the Kafka name after `as` is a string, not %s", p.tok.describe()), "it may hold dots and hyphens, which names here do not", fmt.Sprintf("`%q`", p.tok.text))
	}
	n := &Name{Pos: Pos(p.tok.pos), Quoted: true}
	n.Text = p.takeString()
	return n
}

func (p *parser) topic(pos Pos) {
	word := p.tok.text
	d := &TopicDecl{Pos: pos, Table: word == "table"}
	p.next()
	if p.tok.kind == kindString {
		p.failTok("E0011", fmt.Sprintf("`%s` needs a name of this module, not a string", word), "the Kafka name follows it", fmt.Sprintf("`%s x as %s`", word, p.tok.text))
	}
	d.Name = p.name("`" + word + "`")
	d.As = p.kafkaName()
	switch {
	case p.tok.is("{"):
		s := p.schema("a topic")
		d.Schema = &s
	case p.accept("="):
		d.Pipeline = p.pipeline()
	default:
		p.topicHabit(word, d.Name)
		p.unexpected("E0012", fmt.Sprintf("%s `%s` needs a schema `{ .. }` or a pipeline `= from ..`", word, d.Name.Text), fmt.Sprintf("for example `%s %s { id: int64 }`", word, d.Name.Text), "")
	}
	d.Options = p.options(d.Pipeline != nil)
	d.End = Pos(p.end)
	p.add(d)
	p.endStatement()
}

func (p *parser) function(pos Pos) {
	p.next()
	d := &FuncDecl{Pos: pos, Name: p.name("`fn`")}
	p.glue()
	p.expect("(", "after the name of a function")
	for !p.tok.is(")") {
		f := FieldDecl{Name: p.name("a parameter")}
		p.colon("a parameter")
		f.Type = p.typeExpr()
		d.Params = append(d.Params, f)
		if !p.accept(",") {
			break
		}
	}
	p.expect(")", "after the parameters")
	if p.tok.is(":") {
		p.failEdit("E0012", "the result of a function follows `->`", "found `:`", "`->`", p.replaceTok(" ->", true))
	}
	p.expect("->", "before the result type")
	d.Result = p.typeExpr()
	if p.tok.is("{") {
		p.failTok("E0012", "the body of a function is one expression after `=`", "found `{`", "`-> T = ..`")
	}
	p.expect("=", "before the body of a function")
	if p.tok.word("wasm") && p.peek(1).kind == kindString {
		p.next()
		d.Wasm = append(d.Wasm, p.stringValue("`wasm`"))
		d.Wasm = append(d.Wasm, p.stringValue("the name of a wasm export"))
	} else {
		d.Body = p.expr(expr.Scalar, "the body of a function")
	}
	d.End = Pos(p.end)
	p.add(d)
	p.endStatement()
}

func (p *parser) colon(what string) {
	p.glue()
	if !p.accept(":") {
		insert := ""
		if p.tok.kind == kindName && p.tok.pos > p.end {
			insert = ":"
		}
		p.unexpected("E0012", fmt.Sprintf("%s needs `: type` after its name", what), "for example `: string`", insert)
	}
}

// schema reads { field, .. }. A field with an error is left out and the others are read.
func (p *parser) schema(what string) TypeExpr {
	t := TypeExpr{Pos: Pos(p.tok.pos), Struct: true}
	if !p.tok.is("{") {
		p.unexpected("E0018", fmt.Sprintf("%s needs `{ name: type, .. }`", what), "for example `{ id: int64 }`", "")
	}
	open := p.tok
	p.enter()
	p.mark(markBrace)
	p.next()
	for !p.tok.is("}") {
		if p.tok.kind == kindEOF || p.atStatement() && p.startsLine() && !scan(p.text, p.tok.end, false).is(":") {
			p.fail("E0036", open.pos, open.end, "this `{` is not closed", "found "+p.tok.describe()+" first", "`}`")
		}
		p.mark(markField)
		if !p.try(func() { t.Fields = append(t.Fields, p.field()) }) {
			t.Broken = true
			p.skipField()
		}
		if p.accept(",") || p.tok.is("}") || p.tok.kind == kindEOF {
			continue
		}
		if p.tok.kind == kindName && p.peek(1).is(":") {
			p.report("E0012", p.tok.pos, p.tok.end, fmt.Sprintf("a comma is missing before %s", p.tok.describe()), "fields are separated by commas", "`,`",
				&plan.Edit{Start: p.end, End: p.end, Text: ","})
			continue
		}
		t.Broken = true
		p.try(func() {
			if n := len(t.Fields); n > 0 {
				p.fieldHabit(t.Fields[n-1])
			}
			p.unexpected("E0012", "a field is followed by `,` or `}`", "add `,` before the next field, or `}` after the last", "")
		})
		p.skipField()
		p.accept(",")
	}
	p.mark(markBraceEnd)
	p.next()
	p.leave()
	t.End = Pos(p.end)
	return t
}

// skipField moves to the , or } that ends a field, or to the next statement.
func (p *parser) skipField() {
	for depth := 0; p.tok.kind != kindEOF; p.skip() {
		switch {
		case p.tok.is("(") || p.tok.is("<") || p.tok.is("{"):
			depth++
		case depth == 0 && (p.tok.is(",") || p.tok.is("}")):
			return
		case p.tok.is(")") || p.tok.is(">") || p.tok.is("}"):
			depth = max(0, depth-1)
		case p.atStatement() && p.startsLine() && !scan(p.text, p.tok.end, false).is(":"):
			return
		}
	}
}

func (p *parser) field() FieldDecl {
	if p.tok.kind == kindString && p.peek(1).is(":") {
		text := strings.Trim(p.tok.text, "\"'`")
		ident := len(text) > 0 && dashedName.FindString(text) == text && !strings.ContainsAny(text, ".-") && !isWhole(text[:1]) && !reserved[text]
		if ident {
			p.failEdit("E0011", "the name of a field stands without quotes", "it is a name of this module and no text", fmt.Sprintf("`%s`", text), p.replaceTok(text, true))
		}
		p.failTok("E0011", "a column needs a name of letters, digits and `_`", "the field that it is read from may have another", fmt.Sprintf("`x: T as %s`", p.tok.text))
	}
	f := FieldDecl{Name: p.name("a field")}
	p.colon(fmt.Sprintf("field `%s`", f.Name.Text))
	f.Type = p.typeExpr()
	if p.accept("as") {
		f.InputPos = Pos(p.tok.pos)
		f.Input = p.stringValue("`as`")
	}
	return f
}

func (p *parser) typeExpr() TypeExpr {
	p.enter()
	defer p.leave()
	t := TypeExpr{Pos: Pos(p.tok.pos)}
	switch {
	case p.tok.is("{"):
		t = p.schema("a struct type")
	case p.tok.kind == kindName && !reserved[p.tok.text]:
		t.Name = p.tok.text
		p.next()
		p.typeArgs(&t)
		p.typeElems(&t)
	default:
		if n := p.peek(1); p.tok.is("?") && n.kind == kindName {
			p.failEdit("E0018", "the `?` of a type stands after it", "it is the last part of a type", fmt.Sprintf("`%s?`", n.text), &plan.Edit{Start: p.tok.pos, End: n.end, Text: n.text + "?"})
		}
		p.failTok("E0018", fmt.Sprintf("a type is missing: found %s", p.tok.describe()), "every field says what it holds", "for example `int64`, `string?`, `decimal(12,2)` or `list<string>`")
	}
	if p.tok.is("?") {
		p.glue()
		p.next()
		t.Nullable = true
	}
	t.End = Pos(p.end)
	return t
}

func (p *parser) typeArgs(t *TypeExpr) {
	if !p.tok.is("(") {
		return
	}
	p.glue()
	p.next()
	for {
		if p.tok.kind == kindString {
			t.Strings = append(t.Strings, p.stringValue("a type"))
		} else {
			if p.tok.kind == kindNumber {
				p.glueUnlessFirst(t)
			}
			t.Ints = append(t.Ints, p.integer(fmt.Sprintf("type `%s(..)`", t.Name)))
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(")", fmt.Sprintf("after the arguments of `%s`", t.Name))
}

// glueUnlessFirst prints decimal(12,2) without a space.
func (p *parser) glueUnlessFirst(t *TypeExpr) {
	if len(t.Ints) > 0 {
		p.glue()
	}
}

func (p *parser) typeElems(t *TypeExpr) {
	if !p.tok.is("<") {
		return
	}
	if n := p.peek(1); n.kind == kindName && p.peek(2).is(":") {
		p.failTok("E0018", "a struct is written in braces", "found `<`", "`{ "+n.text+": T }`")
	}
	p.glue()
	p.next()
	p.glue()
	for {
		t.Elems = append(t.Elems, p.typeExpr())
		if !p.accept(",") {
			break
		}
	}
	p.glue()
	p.expect(">", fmt.Sprintf("after the element type of `%s`", t.Name))
}

// test reads test "title" { steps }. A step with an error is left out.
func (p *parser) test(pos Pos) {
	p.next()
	d := &TestDecl{Pos: pos, Title: p.stringValue("`test`")}
	if !p.tok.is("{") {
		p.unexpected("E0028", "a test needs its steps in `{ .. }`", "for example `{ given x { id: 1 } }`", "")
	}
	open := p.tok
	p.mark(markSteps)
	p.next()
	for !p.tok.is("}") {
		if p.tok.kind == kindEOF || p.atStatement() && p.startsLine() {
			p.fail("E0036", open.pos, open.end, "this `{` is not closed", "found "+p.tok.describe()+" first", "`}`")
		}
		p.mark(markStep)
		if !p.try(func() { d.Steps = append(d.Steps, p.step()) }) {
			p.toStep()
		}
	}
	p.mark(markStepsEnd)
	p.next()
	d.End = Pos(p.end)
	p.add(d)
	p.endStatement()
}

func (p *parser) toStep() {
	depth := 0
	if p.openRow {
		depth, p.openRow = 1, false
	}
	for ; p.tok.kind != kindEOF; p.skip() {
		switch {
		case p.tok.is("{"):
			depth++
		case p.tok.is("}") && depth > 0:
			depth--
		case p.tok.is("}"):
			return
		case p.tok.kind == kindName && p.startsLine() && (p.tok.text == "given" || p.tok.text == "advance" || p.tok.text == "expect" || p.atStatement()):
			return
		}
	}
}

func (p *parser) step() TestStep {
	s := TestStep{Pos: Pos(p.tok.pos), Word: p.tok.text}
	switch {
	case p.accept("given"):
		s.Topic = p.topicName("`given`")
		s.Fields = p.row()
	case p.accept("advance"):
		s.Topic = p.topicName("`advance`")
		s.At = p.stringValue("`advance x`")
	case p.accept("expect"):
		if p.tok.word("none") && (p.peek(1).kind == kindName || p.peek(1).kind == kindString) {
			p.next()
			s.None = true
			s.Topic = p.topicName("`expect none`")
			break
		}
		s.Topic = p.topicName("`expect`")
		s.Fields = p.row()
	default:
		if n := nearest(p.tok.text, []string{"given", "advance", "expect"}); n != "" && p.tok.kind == kindName {
			p.failEdit("E0028", fmt.Sprintf("a test has no step %s", p.tok.describe()), "steps are given, advance and expect", fmt.Sprintf("`%s`", n), p.replaceTok(n, true))
		}
		p.failTok("E0028", fmt.Sprintf("a test has no step %s", p.tok.describe()), "steps are `given x {..}`, `advance x \"10:00:00\"`, `expect x {..}` and `expect none x`", "use one of those")
	}
	s.End = Pos(p.end)
	return s
}

// row reads { name: EXPR, .. }.
func (p *parser) row() []Assign {
	var out []Assign
	if !p.tok.is("{") {
		p.unexpected("E0028", "this step needs a row `{ name: value, .. }`", "for example `{ id: 1 }`", "")
	}
	p.mark(markBrace)
	p.next()
	p.openRow = true
	for !p.tok.is("}") {
		p.mark(markField)
		a := Assign{Name: p.name("a column of a row")}
		p.glue()
		p.expect(":", fmt.Sprintf("after column `%s`", a.Name.Text))
		a.Value = *p.expr(expr.Scalar, fmt.Sprintf("column `%s`", a.Name.Text))
		out = append(out, a)
		if !p.accept(",") {
			break
		}
	}
	p.mark(markBraceEnd)
	p.expect("}", "after the columns of a row")
	p.openRow = false
	return out
}
