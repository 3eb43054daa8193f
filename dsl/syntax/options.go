package syntax

import (
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

var optionWords = []string{"key", "format", "retain", "partitions", "time", "late", "invalid", "errors", "emit"}

// options reads `with opt, ..` if it is there.
func (p *parser) options(ownLine bool) []Option {
	if !p.tok.word("with") {
		if p.tok.kind == kindName && !p.atStatement() && !p.startsLine() && isOption(p.tok.text) {
			p.failEdit("E0016", fmt.Sprintf("`with` is missing before `%s`", p.tok.text), "options follow `with`, separated by commas", "`with`",
				&plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "with "})
		}
		return nil
	}
	if ownLine {
		p.mark(markWith)
	} else {
		p.mark(markWithSchema)
	}
	p.next()
	var out []Option
	seen := make(map[string]bool)
	for {
		p.mark(markItem)
		pos := p.tok.pos
		o := p.option(len(out) == 0)
		if seen[o.Word] {
			p.report("E0017", pos, pos+len(o.Word), fmt.Sprintf("option `%s` is given twice", o.Word), "each option stands once", "remove one", nil)
		}
		seen[o.Word] = true
		out = append(out, o)
		if p.accept(",") {
			continue
		}
		if p.tok.kind == kindName && isOption(p.tok.text) && !p.atStatement() {
			p.report("E0012", p.tok.pos, p.tok.end, fmt.Sprintf("a comma is missing before `%s`", p.tok.text), "options are separated by commas", "`,`",
				&plan.Edit{Start: p.end, End: p.end, Text: ","})
			continue
		}
		return out
	}
}

func isOption(w string) bool {
	for _, o := range optionWords {
		if o == w {
			return true
		}
	}
	return false
}

func (p *parser) option(first bool) Option {
	o := Option{Pos: Pos(p.tok.pos), Word: p.tok.text}
	if p.tok.kind != kindName {
		p.failTok("E0016", fmt.Sprintf("an option is missing: found %s", p.tok.describe()), "options are key format retain partitions time late invalid errors emit", "write one of those, or remove the comma")
	}
	switch p.tok.text {
	case "key":
		p.next()
		if p.tok.kind == kindName && !reserved[p.tok.text] {
			p.failEdit("E0012", "`key` needs its columns in parentheses", "found "+p.tok.describe(), "`key ("+p.tok.text+")`", p.replaceTok("("+p.tok.text+")", true))
		}
		p.expect("(", "after `key`")
		for !p.tok.is(")") {
			o.Names = append(o.Names, p.name("`key (..)`"))
			if !p.accept(",") {
				break
			}
		}
		p.expect(")", "after the key columns")
	case "format":
		p.next()
		p.noSign("format")
		if bare := strings.ToLower(strings.Trim(p.tok.text, "\"'`")); p.tok.kind == kindString && dashedName.FindString(bare) == bare {
			p.failEdit("E0011", "the name of a format stands without quotes", "it is a word of the language and no text", "`"+bare+"`", p.replaceTok(bare, true))
		}
		o.Names = []Name{p.name("`format`")}
		if p.tok.is("(") {
			p.glue()
			p.next()
			o.String = p.stringValue("a format")
			p.expect(")", "after the argument of a format")
		}
	case "retain":
		p.next()
		p.noSign("retain")
		d := p.duration("`retain`")
		o.Duration = &d
	case "partitions":
		p.next()
		p.noSign("partitions")
		n := p.integer("`partitions`")
		o.Int = &n
	case "time":
		p.next()
		p.timeOption(&o)
	case "late", "invalid", "errors":
		p.next()
		o.Action, o.Target = p.side(o.Word)
	case "emit":
		p.next()
		o.Emit = p.emit()
	default:
		p.optionHabit(first)
		if n := nearest(p.tok.text, optionWords); n != "" {
			p.failEdit("E0016", fmt.Sprintf("there is no option `%s`", p.tok.text), "options are key, format, retain, partitions, time, late, invalid, errors and emit", fmt.Sprintf("`%s`", n), p.replaceTok(n, true))
		}
		p.failTok("E0016", fmt.Sprintf("there is no option `%s`", p.tok.text), "options are key format retain partitions time late invalid errors emit", "use one of those")
	}
	o.End = Pos(p.end)
	return o
}

func (p *parser) timeOption(o *Option) {
	switch {
	case p.tok.word("append"):
		p.next()
		o.TimeAppend = true
	case p.tok.is("("):
		p.next()
		o.TimeExpr = p.expr(expr.Scalar, "`time (..)`")
		p.expect(")", "after the expression of `time`")
	case p.tok.kind == kindName:
		o.TimeExpr = p.columnExpr("`time`")
	default:
		p.failTok("E0016", fmt.Sprintf("`time` needs a column, `(expression)` or `append`, not %s", p.tok.describe()), "event time comes from the row or from when it was written", "for example `time ts lag 5s`")
	}
	seen := make(map[string]bool)
	for p.tok.kind == kindName {
		s := Span{Word: p.tok.text, Pos: Pos(p.tok.pos)}
		switch s.Word {
		case "lag", "idle", "delay", "future":
		case "watermark", "allowed_lateness", "delta":
			p.failEdit("E0016", fmt.Sprintf("there is no `%s`", s.Word), "how far rows may be out of order is the `lag` of the time", "`lag`", p.replaceTok("lag", true))
		default:
			return
		}
		if seen[s.Word] {
			p.report("E0017", p.tok.pos, p.tok.end, fmt.Sprintf("`%s` is given twice", s.Word), "each stands once", "remove one", nil)
		}
		seen[s.Word] = true
		p.next()
		s.Duration = p.duration("`" + s.Word + "`")
		o.Spans = append(o.Spans, s)
	}
}

// columnExpr reads one name as an expression.
func (p *parser) columnExpr(what string) *Expr {
	n := p.name(what)
	e := &Expr{Text: n.Text, Pos: n.Pos, End: Pos(p.end)}
	if node, err := expr.Parse(n.Text, p.mod.src.runeOffset(int(n.Pos)), expr.Scalar, nil); err == nil {
		e.Node = node
	}
	return e
}

// side reads what follows late, invalid or errors: to x, drop, fail.
func (p *parser) side(word string) (action string, target *Name) {
	switch {
	case p.accept("to"):
		n := p.topicName(fmt.Sprintf("`%s to`", word))
		return "to", &n
	case p.accept("drop"):
		return "drop", nil
	case p.accept("fail"):
		return "fail", nil
	}
	p.unexpected("E0016", fmt.Sprintf("`%s` is followed by `to topic`, `drop` or `fail`", word), fmt.Sprintf("`%s drop`", word), "")
	return "", nil
}

func (p *parser) emit() *Emit {
	e := &Emit{Pos: Pos(p.tok.pos), Word: p.tok.text}
	switch {
	case p.accept("close"), p.accept("update"), p.accept("changes"):
	case p.accept("every"):
		d := p.duration("`emit every`")
		e.Every = &d
	default:
		p.unexpected("E0023", "`emit` is followed by `close`, `update`, `changes` or `every` with a duration", "`emit close`", "")
	}
	return e
}
