package syntax

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

// People bring the ways of other languages. What they write parses as nothing here, but what they mean is
// plain: this file knows it, and says how it is written.

// operandText is the last operand before the current token, "" if there is none or it is too long to show.
func (p *parser) operandText() string {
	if p.lastExpr.end != p.end || p.end <= p.lastExpr.operand {
		return ""
	}
	w := p.text[p.lastExpr.operand:p.end]
	if len(w) > 60 || strings.Contains(w, "\n") {
		return ""
	}
	return w
}

// since is an edit of everything from the last operand to byte end.
func (p *parser) since(end int, text string) *plan.Edit {
	return &plan.Edit{Start: p.lastExpr.operand, End: end, Text: text}
}

// habit reports the current token, which cannot stand where it is, if it is a known habit. It returns when
// it is not.
func (p *parser) habit() {
	switch p.tok.kind {
	case kindName:
		p.wordHabit()
	case kindString:
		if w := p.operandText(); w != "" && p.tok.pos == p.end && w[len(w)-1] == p.tok.text[0] && p.tok.text[0] != '`' {
			q := string(w[len(w)-1])
			both := w[:len(w)-1] + `\` + q + p.tok.text[1:]
			p.failEdit(expr.CodeOperands, "a quote inside a string has a backslash before it", "a quote alone ends the string", fmt.Sprintf("`%s`", both), p.since(p.tok.end, both))
		}
	case kindOp:
		p.opHabit()
	}
}

func (p *parser) wordHabit() {
	w, next, low := p.operandText(), p.peek(1), strings.ToLower(p.tok.text)
	switch {
	case w == "":
	case low == "is":
		p.isHabit(w)
	case (low == "like" || low == "ilike") && next.kind == kindString:
		p.likeHabit(w, low == "ilike", next)
	case low == "between":
		lo, and, hi := next, p.peek(2), p.peek(3)
		if plainOperand(lo) && and.kind == kindName && strings.EqualFold(and.text, "and") && plainOperand(hi) {
			text := fmt.Sprintf("%s <= %s <= %s", lo.text, w, hi.text)
			p.failEdit(expr.CodeOperands, fmt.Sprintf("there is no operator `%s`", p.tok.text), "two comparisons may share their middle", "`"+text+"`", p.since(hi.end, text))
		}
	case w == "case" && low == "when":
		p.failTok(expr.CodeOperands, "there is no `case`", "a choice is an expression", "`a ? x : b ? y : z`, or `{\"k\": \"v\"}[c] ?? \"other\"`")
	case isWhole(w) && unitWords[low] != "":
		d := w + unitWords[low]
		p.failEdit(expr.CodeOperands, fmt.Sprintf("a duration is written in one word: `%s`", d), "units are ns us ms s m h d w", fmt.Sprintf("`%s`", d), p.since(p.tok.end, d))
	case low == "distinct" || w == "distinct" || w == "DISTINCT":
		p.failTok(expr.CodeOperands, "there is no `distinct`", "rows are told apart by group", "`agg n = count() by id window tumble(1m)`; values are counted by `count_distinct(x)`")
	case low == "as" && next.kind == kindName:
		p.failEdit(expr.CodeOperands, "a name stands before its value", "`as` does not name columns", fmt.Sprintf("`%s = %s`", next.text, w), p.since(next.end, next.text+" = "+w))
	}
	switch {
	case p.tok.text != low && clauseWords[low] && low != "as":
		p.failEdit("E0014", "words of the language are written in lower case", "names may be written in any case, so the two are told apart", "`"+low+"`", p.replaceTok(low, true))
	case (low == "group" || low == "partition") && next.word("by"):
		p.failEdit("E0014", fmt.Sprintf("`%s by` is only `by`", p.tok.text), "one word is enough after the results of `agg`", "`by`", &plan.Edit{Start: p.tok.pos, End: next.end, Text: "by"})
	case low == "having":
		p.failEdit("E0014", "there is no clause `having`", "the rows of an aggregate are filtered by the next stage", "`|> where ..`", p.replaceTok("|> where", true))
	case low == "every" && next.kind == kindDuration:
		p.failEdit("E0014", "`every` belongs to a hopping window", "a window that begins again when it ends has only a length", fmt.Sprintf("`window tumble(%s)`", next.text), &plan.Edit{Start: p.tok.pos, End: next.end, Text: "window tumble(" + next.text + ")"})
	case low == "filter" && next.is("("), p.tok.word("if") && w != "":
		p.failTok("E0014", "the filter of an aggregate is a `where`", "it follows the aggregate and chooses the rows that this one folds", "`sum(n) where n > 3`")
	}
}

// plainOperand says whether a token alone is a whole operand.
func plainOperand(t token) bool {
	return t.kind == kindNumber || t.kind == kindDuration || t.kind == kindString || t.kind == kindName && !reserved[t.text]
}

func (p *parser) isHabit(w string) {
	op, last := "==", p.peek(1)
	if strings.EqualFold(last.text, "not") {
		op, last = "!=", p.peek(2)
	}
	switch strings.ToLower(last.text) {
	case "null", "nil", "none":
		p.failEdit(expr.CodeOperands, "there is no operator `is`", "null is compared like a value", fmt.Sprintf("`%s %s nil`", w, op), &plan.Edit{Start: p.tok.pos, End: last.end, Text: op + " nil"})
	}
	p.failEdit(expr.CodeOperands, "there is no operator `is`", "values are compared with `==` and `!=`", fmt.Sprintf("`%s %s ..`", w, op), &plan.Edit{Start: p.tok.pos, End: last.pos, Text: op + " "})
}

// likeHabit turns a pattern with % at its ends into the operator that does the same.
func (p *parser) likeHabit(w string, fold bool, pattern token) {
	q := pattern.text[:1]
	body := strings.Trim(pattern.text, q)
	core := strings.Trim(body, "%")
	if strings.ContainsAny(core, `%_\`) || core == "" {
		return
	}
	op := "=="
	switch start, end := strings.HasPrefix(body, "%"), strings.HasSuffix(body, "%"); {
	case start && end:
		op = "contains"
	case start:
		op = "endsWith"
	case end:
		op = "startsWith"
	}
	x := w
	if fold {
		x, core = "lower("+w+")", strings.ToLower(core)
	}
	text := x + " " + op + " " + q + core + q
	p.failEdit(expr.CodeOperands, fmt.Sprintf("there is no operator `%s`", p.tok.text), "patterns are for regular expressions, `matches`; texts have words of their own", "`"+text+"`", p.since(pattern.end, text))
}

func (p *parser) opHabit() {
	w := p.operandText()
	switch next := p.peek(1); {
	case p.tok.is(".") && w != "" && p.tok.pos == p.end && next.kind == kindNumber && next.pos == p.tok.end && isWhole(next.text):
		p.failEdit("E0014", "a dot is followed by the name of a field", "a list has numbered elements and no fields", fmt.Sprintf("`%s[%s]` is an element of a list", w, next.text),
			&plan.Edit{Start: p.tok.pos, End: next.end, Text: "[" + next.text + "]"})
	case p.tok.is(":") && strings.HasPrefix(p.text[p.tok.pos:], "::") && w != "":
		if t := p.peek(2); t.kind == kindName {
			p.failEdit("E0014", "a cast is written as a function", "`:` belongs to choices and types", fmt.Sprintf("`%s(%s)`", castName(t.text), w), p.since(t.end, castName(t.text)+"("+w+")"))
		}
	case p.tok.is("|"):
		p.failEdit("E0014", "a stage begins with `|>`", "found `|`", "`|>`", p.replaceTok("|>", true))
	case p.tok.is(";"):
		p.failEdit("E0014", "nothing ends with `;` here", "a statement ends where the next one begins", "remove it", p.replaceTok("", true))
	case p.tok.is("-") && strings.HasPrefix(p.text[p.tok.pos:], "--"):
		p.failEdit("E0002", "a comment begins with `//`", "`-` is a sign of numbers", "`//`", &plan.Edit{Start: p.tok.pos, End: p.tok.pos + 2, Text: "//"})
	case p.tok.is(",") && (next.kind == kindEOF || next.is("|>") || p.startsStatement(next)):
		p.failEdit("E0014", "nothing follows this comma", "a comma announces another part", "remove it", p.replaceTok("", true))
	case p.tok.is(",") && isOption(p.peek(1).text):
		p.failEdit("E0016", fmt.Sprintf("`with` is missing before `%s`", p.peek(1).text), "options follow `with`, separated by commas", "`with`", p.replaceTok(" with", true))
	}
}

// castName is the cast to a type of another language.
func castName(t string) string {
	switch t = strings.ToLower(t); t {
	case "text", "varchar", "str":
		return "string"
	case "integer", "bigint", "long":
		return "int"
	case "double", "real":
		return "float"
	case "decimal", "numeric":
		return "dec"
	case "boolean":
		return "bool"
	}
	return t
}

// unitWords are units of time as words, with the letters that stand for them.
var unitWords = map[string]string{
	"ns": "ns", "us": "us", "ms": "ms", "s": "s", "m": "m", "h": "h", "d": "d", "w": "w",
	"nanoseconds": "ns", "microseconds": "us", "milliseconds": "ms", "millis": "ms", "millisecond": "ms",
	"second": "s", "seconds": "s", "sec": "s", "secs": "s", "minute": "m", "minutes": "m", "min": "m", "mins": "m",
	"hour": "h", "hours": "h", "hr": "h", "hrs": "h", "day": "d", "days": "d", "week": "w", "weeks": "w",
}

// statementElsewhere are first words of other languages' statements.
var statementElsewhere = map[string]string{
	"function": "fn", "func": "fn", "def": "fn", "let": "const", "var": "const", "val": "const", "struct": "type", "input": "topic", "pipeline": "topic",
}

// statementHabit reports a statement of another language.
func (p *parser) statementHabit() {
	w := p.tok.text
	low := strings.ToLower(w)
	next := p.peek(1)
	switch low {
	case "create":
		if next.kind == kindName {
			p.failEdit("E0010", "no statement begins with `create`", "a module says what there is; `apply` makes it", fmt.Sprintf("`%s ..`", next.text), &plan.Edit{Start: p.tok.pos, End: next.pos})
		}
	case "select", "insert":
		if next.is("*") || next.kind == kindName && !next.word("as") || w != low {
			p.failTok("E0010", fmt.Sprintf("no statement begins with `%s`", w), "a pipeline begins with what it reads", "`topic x = from t |> select a, b`")
		}
	}
	if word := statementElsewhere[low]; word != "" && next.kind == kindName {
		p.failEdit("E0010", fmt.Sprintf("no statement begins with `%s`", w), "it is called that here", fmt.Sprintf("`%s`", word), p.replaceTok(word, true))
	}
}

var dashedName = regexp.MustCompile(`^[A-Za-z0-9._-]+`)

// topicHabit reports what stands after the name of a topic instead of a schema or a pipeline.
func (p *parser) topicHabit(word string, name Name) {
	switch {
	case p.tok.is(":") && p.peek(1).is("="):
		p.failEdit("E0012", "a pipeline follows `=`", "found `:=`", "`=`", p.replaceTok("", true))
	case p.tok.word("from"):
		p.failEdit("E0012", fmt.Sprintf("`=` is missing after the name of the %s", word), "found `from`", "`= from ..`", &plan.Edit{Start: p.end, End: p.end, Text: " ="})
	case (p.tok.is("-") || p.tok.is(".")) && p.tok.pos == p.end:
		whole := dashedName.FindString(p.text[int(name.Pos):])
		ident := strings.NewReplacer("-", "_", ".", "_").Replace(whole)
		text := fmt.Sprintf("%s as %q", ident, whole)
		p.failEdit("E0012", "names in a module are letters, digits and `_`", "the Kafka name may be another one", fmt.Sprintf("`%s %s`", word, text),
			&plan.Edit{Start: int(name.Pos), End: int(name.Pos) + len(whole), Text: text})
	}
}

// fieldHabit reports what stands after a field instead of a comma.
func (p *parser) fieldHabit(f FieldDecl) {
	typ := p.text[int(f.Type.Pos):int(f.Type.End)]
	switch next := p.peek(1); {
	case p.tok.is(";"):
		p.failEdit("E0012", "fields are separated by commas", "found `;`", "`,`", p.replaceTok(",", true))
	case p.tok.word("not") && strings.EqualFold(next.text, "null"):
		p.failEdit("E0012", "a column takes no null unless its type ends with `?`", "so there is nothing to forbid", "remove `not null`", &plan.Edit{Start: p.end, End: next.end})
	case p.tok.is("|") && (strings.EqualFold(next.text, "null") || next.text == "nil"),
		p.tok.kind == kindName && (strings.EqualFold(p.tok.text, "null") || strings.EqualFold(p.tok.text, "nullable")):
		end := p.tok.end
		if p.tok.is("|") {
			end = next.end
		}
		p.failEdit("E0012", "a column that may be null has a type with `?`", "null is a part of the type", fmt.Sprintf("`%s?`", typ), &plan.Edit{Start: p.end, End: end, Text: "?"})
	case p.tok.is("[") && next.is("]"):
		p.failEdit("E0012", "a list is written `list<T>`", "brackets stand for elements and lists of values", fmt.Sprintf("`list<%s>`", typ), &plan.Edit{Start: int(f.Type.Pos), End: next.end, Text: "list<" + typ + ">"})
	case p.tok.is("=") || p.tok.word("default"):
		p.failTok("E0012", "a column has no default", "what a producer leaves out is null", fmt.Sprintf("`%s: %s?`, and `%s ?? ..` where it is used", f.Name.Text, strings.TrimSuffix(typ, "?"), f.Name.Text))
	case p.tok.word("primary"):
		p.failTok("E0012", "the key is an option of the topic", "it may have several columns, in an order", fmt.Sprintf("`} with key (%s)`", f.Name.Text))
	}
}

// optionElsewhere are names of options elsewhere.
var optionElsewhere = map[string]string{
	"retention": "retain", "ttl": "retain", "timestamp": "time", "event_time": "time", "keys": "key", "partition": "partitions", "encoding": "format", "type": "format",
}

// optionHabit reports an option of another language, or a part of `time` that stands alone.
func (p *parser) optionHabit(first bool) {
	w := strings.ToLower(p.tok.text)
	if word := optionElsewhere[w]; word != "" {
		p.failEdit("E0016", fmt.Sprintf("there is no option `%s`", p.tok.text), "it is called that here", fmt.Sprintf("`%s`", word), p.replaceTok(word, true))
	}
	switch w {
	case "lag", "idle", "delay", "future":
		var edit *plan.Edit
		if comma := strings.TrimRight(p.text[:p.tok.pos], " \t\r\n"); !first && strings.HasSuffix(comma, ",") {
			edit = &plan.Edit{Start: len(comma) - 1, End: len(comma)}
		}
		p.failEdit("E0016", fmt.Sprintf("`%s` is a part of the option `time`", w), "it follows without a comma", fmt.Sprintf("`time ts %s 5s`", w), edit)
	case "watermark":
		p.failTok("E0016", "there is no option `watermark`", "how far rows may be out of order is the `lag` of the time", "`time ts lag 5s`")
	}
}

// noSign reports `=` or a parenthesis between an option and its value.
func (p *parser) noSign(word string) {
	switch {
	case p.tok.is("="), p.tok.is(":"):
		p.failEdit("E0016", fmt.Sprintf("the value of `%s` follows without `%s`", word, p.tok.text), "an option is a word and its value", fmt.Sprintf("`%s %s`", word, p.peek(1).text),
			&plan.Edit{Start: p.tok.pos, End: p.peek(1).pos})
	case p.tok.is("(") && p.peek(2).is(")"):
		v := p.peek(1)
		p.failEdit("E0016", fmt.Sprintf("the value of `%s` stands without parentheses", word), "an option is a word and its value", fmt.Sprintf("`%s %s`", word, v.text), &plan.Edit{Start: p.tok.pos, End: p.peek(2).end, Text: " " + v.text})
	}
}

// unitHint is a duration with a unit that exists, for one that does not.
func unitHint(text, unit string) string {
	if u := unitWords[strings.ToLower(unit)]; u != "" && strings.HasSuffix(text, unit) && isWhole(strings.TrimSuffix(text, unit)) {
		return strings.TrimSuffix(text, unit) + u
	}
	return "30d"
}
