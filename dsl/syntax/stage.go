package syntax

import (
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

// stageWords begin stages, after |>.
var stageWords = map[string]bool{
	"where": true, "set": true, "select": true, "drop": true, "rename": true, "unwrap": true, "explode": true, "union": true,
	"key": true, "check": true, "route": true, "agg": true, "over": true, "top": true, "dedup": true, "join": true, "lookup": true, "match": true,
}

var stageList = []string{
	"where", "set", "select", "drop", "rename", "unwrap", "explode", "union", "key", "check", "route", "agg", "over", "top", "dedup",
	"join", "lookup", "match",
}

var takesClauses = map[string]bool{"agg": true, "over": true, "top": true, "dedup": true, "join": true, "lookup": true, "match": true}

// elsewhere are the words other languages use, with the stage that does the same here.
var elsewhere = map[string]string{
	"filter": "where", "having": "where", "extend": "set", "project": "select", "map": "select", "summarize": "agg", "aggregate": "agg",
	"group": "agg", "distinct": "dedup", "sequence": "match", "expand": "explode", "unnest": "explode", "limit": "top", "order": "top", "sort": "top",
}

// pipeline reads from x [as n] { |> stage }. A stage with an error is left out and the next one is read.
func (p *parser) pipeline() *Pipeline {
	l := &Pipeline{Pos: Pos(p.tok.pos)}
	if !p.accept("from") {
		var edit *plan.Edit
		if p.tok.kind == kindName && nearest(p.tok.text, []string{"from"}) != "" || strings.EqualFold(p.tok.text, "from") {
			p.failEdit("E0026", fmt.Sprintf("a pipeline begins with `from`, not %s", p.tok.describe()), "it names first what it reads", "`from`", p.replaceTok("from", true))
		}
		if p.tok.kind == kindName && !p.atStatement() {
			edit = &plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "from "}
		}
		p.failEdit("E0026", fmt.Sprintf("a pipeline begins with `from`, not %s", p.tok.describe()), "it names first what it reads", "`from x`", edit)
	}
	l.Source = p.topicName("`from`")
	if p.accept("as") {
		n := p.name("`as`")
		l.Alias = &n
	}
	if p.tok.is(",") && p.peek(1).kind == kindName {
		p.failTok("E0014", "a pipeline reads one topic", "found `,`", "one pipeline for each; `union` is not built yet")
	}
	for {
		if p.tok.is("|>") {
			p.mark(markStage)
			p.next()
			s := &Stage{Pos: Pos(p.tok.pos), Word: p.tok.text}
			if p.try(func() { p.stage(s); s.End = Pos(p.end); p.endStage(s) }) {
				l.Stages = append(l.Stages, s)
			} else {
				p.toStage()
			}
			continue
		}
		if p.tok.kind == kindName && stageWords[p.tok.text] && !p.atStatement() && len(l.Stages) == 0 && !p.startsLine() {
			p.try(func() {
				p.failEdit("E0010", fmt.Sprintf("`|>` is missing before `%s`", p.tok.text), "each stage begins with `|>`", fmt.Sprintf("`|> %s`", p.tok.text),
					&plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "|> "})
			})
			p.toStage()
			continue
		}
		l.End = Pos(p.end)
		return l
	}
}

// toStage skips to the next |> or to the next statement.
func (p *parser) toStage() {
	for p.tok.kind != kindEOF && !p.tok.is("|>") && !(p.atStatement() && p.startsLine()) {
		p.skip()
	}
}

// endStage checks that the stage was read to its end.
func (p *parser) endStage(s *Stage) {
	if p.tok.kind == kindEOF || p.tok.is("|>") || p.atStatement() || p.tok.word("with") {
		return
	}
	if p.tok.kind == kindName && p.startsLine() && !stageWords[p.tok.text] && !clauseWords[p.tok.text] && p.nextLineStatement() {
		return
	}
	p.habit()
	if p.tok.kind == kindName && stageWords[p.tok.text] {
		p.failEdit("E0014", fmt.Sprintf("`|>` is missing before `%s`", p.tok.text), "each stage begins with `|>`", fmt.Sprintf("`|> %s`", p.tok.text),
			&plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "|> "})
	}
	if p.tok.kind == kindName && clauseWords[p.tok.text] {
		p.failTok("E0014", fmt.Sprintf("clause `%s` cannot stand here in `%s`", p.tok.text, s.Word), "clauses follow the results of a stage, in its order", "move it to the stage that takes it, or remove it")
	}
	if p.tok.kind == kindName && takesClauses[s.Word] {
		if n := nearest(p.tok.text, clauseList); n != "" {
			p.failEdit("E0014", fmt.Sprintf("`%s` does not belong to `%s`", p.tok.text, s.Word), "no clause of this stage has that name", fmt.Sprintf("`%s`", n), p.replaceTok(n, true))
		}
	}
	if p.lastExpr.end == p.end && p.operandNext() {
		p.secondOperand()
	}
	if p.tok.kind == kindOp && (p.tok.text == ")" || p.tok.text == "]" || p.tok.text == "}") {
		p.failEdit(expr.CodeBracket, fmt.Sprintf("this `%s` closes nothing", p.tok.text), "no bracket is open here", "remove it", p.replaceTok("", true))
	}
	p.failTok("E0014", fmt.Sprintf("%s does not belong to `%s`", p.tok.describe(), s.Word), "a stage ends at `|>` or at the next statement", "remove it, or begin a stage with `|>`")
}

// nextLineStatement tells whether the line that begins here looks like a misspelt statement: word name =
// or word name {, with a word close to one that begins statements.
func (p *parser) nextLineStatement() bool {
	n := p.peek(1)
	return n.kind == kindName && nearest(p.tok.text, statementWords) != ""
}

func (p *parser) stage(s *Stage) {
	if p.tok.kind != kindName || !stageWords[p.tok.text] {
		p.unknownStage()
	}
	p.next()
	switch s.Word {
	case "where":
		s.Expr = p.expr(expr.Scalar, "`where`")
	case "set":
		s.Assigns = p.assigns(expr.Scalar, "set", false)
	case "select":
		s.Items = p.items(expr.Scalar, "select")
	case "drop":
		s.Names = p.names("drop")
	case "rename":
		s.Renames = p.renames()
	case "unwrap":
		s.Names = []Name{p.name("`unwrap`")}
	case "explode":
		p.explode(s)
	case "union":
		for {
			p.mark(markItem)
			s.Names = append(s.Names, p.topicName("`union`"))
			if !p.accept(",") {
				break
			}
		}
	case "key":
		p.keyStage(s)
	case "check":
		p.check(s)
	case "route":
		p.route(s)
	case "agg":
		s.Assigns = p.assigns(expr.Aggregate, "agg", true)
		s.Clauses = p.clauses(s.Word)
	case "over":
		s.Clauses = p.clauses(s.Word)
		p.mark(markClause)
		p.expect("set", "in `over`")
		s.Assigns = p.assigns(expr.Aggregate, "over .. set", false)
	case "top":
		p.top(s)
	case "dedup":
		s.Clauses = p.clauses(s.Word)
	case "join", "lookup":
		p.join(s)
	case "match":
		s.Match = p.match()
	}
}

func (p *parser) unknownStage() {
	if p.tok.kind != kindName {
		before := strings.TrimRight(strings.TrimSuffix(p.text[:p.end], "|>"), " \t\r\n")
		p.failEdit("E0013", fmt.Sprintf("a stage must follow `|>`, not %s", p.tok.describe()), "`|>` passes the rows on to something", "remove it, or write the stage", &plan.Edit{Start: len(before), End: p.end})
	}
	w := p.tok.text
	n, reason := elsewhere[w], "it is called that here"
	if n == "" {
		n = nearest(w, stageList)
		reason = fmt.Sprintf("did you mean `%s`?", n)
	}
	if n != "" {
		p.failEdit("E0013", fmt.Sprintf("there is no stage `%s`", w), reason, fmt.Sprintf("`%s`", n), p.replaceTok(n, true))
	}
	p.failTok("E0013", fmt.Sprintf("there is no stage `%s`", w),
		"stages are where set select drop rename unwrap explode union key check route agg over top dedup join lookup match", "use one of those")
}

// assigns reads name = EXPR [where EXPR], ..
func (p *parser) assigns(ctx expr.Context, what string, filters bool) []Assign {
	var out []Assign
	for {
		p.mark(markItem)
		if p.tok.kind != kindName || !p.peek(1).is("=") {
			p.notAssign(what)
		}
		a := Assign{Name: p.name(fmt.Sprintf("`%s`", what))}
		p.next() // =
		if p.tok.is("=") {
			p.failEdit("E0012", fmt.Sprintf("`%s` names a value with one `=`", what), "`==` compares", "`=`", p.replaceTok("", true))
		}
		a.Value = *p.expr(ctx, fmt.Sprintf("`%s =` in `%s`", a.Name.Text, what))
		if filters && p.tok.word("where") {
			p.next()
			a.Filter = p.expr(expr.Scalar, "the `where` of an aggregate")
		}
		out = append(out, a)
		if p.accept(",") {
			continue
		}
		if p.tok.kind == kindName && !reserved[p.tok.text] && p.peek(1).is("=") {
			p.report("E0012", p.tok.pos, p.tok.end, fmt.Sprintf("a comma is missing before `%s`", p.tok.text), fmt.Sprintf("the parts of `%s` are separated by commas", what), "`,`",
				&plan.Edit{Start: p.end, End: p.end, Text: ","})
			continue
		}
		return out
	}
}

func (p *parser) notAssign(what string) {
	next := p.peek(1)
	switch {
	case p.tok.word("by") && what == "agg":
		before := strings.TrimRight(p.text[:p.tok.pos], " \t\r\n")
		if strings.HasSuffix(before, ",") {
			p.failEdit("E0012", "nothing follows the last comma of `agg`", "a comma announces another result", "remove it", &plan.Edit{Start: len(before) - 1, End: len(before)})
		}
		p.failEdit("E0012", "`agg` needs a result before `by`", "a group without a result would give no columns", "`agg n = count() by ..`", &plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "n = count() "})
	case p.tok.kind == kindName && next.kind == kindOp && strings.Contains("+-*/", next.text) && p.peek(2).is("="):
		text := fmt.Sprintf("%s = %s %s ", p.tok.text, p.tok.text, next.text)
		p.failEdit("E0012", fmt.Sprintf("there is no `%s=`", next.text), "a column is replaced, not changed", "`"+text+"..`", &plan.Edit{Start: p.tok.pos, End: p.peek(3).pos, Text: text})
	case p.tok.kind == kindName && next.word("as"):
		p.failEdit("E0012", fmt.Sprintf("`%s` names a value with `=`", what), "found `as`", "`=`", &plan.Edit{Start: next.pos, End: next.end, Text: "="})
	case p.tok.kind == kindName && !reserved[p.tok.text] || p.tok.is("("):
		p.aliased(what)
	}
	if p.tok.kind == kindName && !reserved[p.tok.text] || p.tok.kind == kindNumber || p.tok.is("(") {
		p.failEdit("E0012", fmt.Sprintf("`%s` needs a name for this value: `name = ..`", what), "results are columns, and columns have names",
			"`x = ..`", &plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "x = "})
	}
	if p.tok.kind == kindName {
		p.checkReserved("`" + p.tok.text + "`")
	}
	p.failTok("E0012", fmt.Sprintf("`%s` needs `name = value`, not %s", what, p.tok.describe()), "results are columns, and columns have names", "for example `x = a + 1`")
}

// aliased reports EXPR as name, which is written name = EXPR.
func (p *parser) aliased(what string) {
	ctx := expr.Scalar
	if what != "set" {
		ctx = expr.Aggregate
	}
	ahead := *p
	ahead.diags, ahead.rec = nil, nil
	var e *Expr
	if !ahead.try(func() { e = ahead.expr(ctx, what) }) || !ahead.tok.word("as") || ahead.peek(1).kind != kindName {
		return
	}
	name := ahead.peek(1)
	text := name.text + " = " + e.Text
	p.failEdit("E0012", fmt.Sprintf("in `%s` a name stands before its value", what), "`as` does not name columns", "`"+text+"`",
		&plan.Edit{Start: int(e.Pos), End: name.end, Text: text})
}

// items reads *, x.*, [name =] EXPR, ..
func (p *parser) items(ctx expr.Context, what string) []Item {
	var out []Item
	for {
		p.mark(markItem)
		out = append(out, p.item(ctx, what))
		if p.tok.word("as") && p.peek(1).kind == kindName && !p.peek(1).word("of") && out[len(out)-1].Value != nil {
			it, alias := out[len(out)-1], p.peek(1)
			text := alias.text + " = " + p.text[int(it.Value.Pos):p.end]
			p.failEdit("E0014", fmt.Sprintf("in `%s` a name stands before its value", what), "`as` does not name columns", "`"+text+"`",
				&plan.Edit{Start: int(it.Pos), End: alias.end, Text: text})
		}
		if !p.tok.is(",") {
			return out
		}
		p.lastComma(what)
		p.next()
	}
}

// lastComma reports a comma that nothing follows.
func (p *parser) lastComma(what string) {
	if n := p.peek(1); n.kind == kindEOF || n.is("|>") || p.startsStatement(n) {
		p.failEdit("E0012", fmt.Sprintf("nothing follows the last comma of `%s`", what), "a comma announces another part", "remove it", p.replaceTok("", true))
	}
}

func (p *parser) item(ctx expr.Context, what string) Item {
	it := Item{Pos: Pos(p.tok.pos)}
	switch {
	case p.tok.is("*"):
		p.next()
		it.Star = true
	case p.tok.kind == kindName && p.peek(1).is(".") && p.peek(2).is("*"):
		n := p.name("`.*`")
		p.glue()
		p.next()
		p.glue()
		p.next()
		it.Of = &n
	default:
		if p.tok.kind == kindName && p.peek(1).is("=") && !scan(p.text, p.tok.end, true).is("==") {
			n := p.name(fmt.Sprintf("`%s`", what))
			p.next()
			it.Name = &n
		}
		it.Value = p.expr(ctx, fmt.Sprintf("`%s`", what))
	}
	return it
}

func (p *parser) names(what string) []Name {
	var out []Name
	for {
		p.mark(markItem)
		out = append(out, p.name(fmt.Sprintf("`%s`", what)))
		if !p.accept(",") {
			return out
		}
	}
}

func (p *parser) renames() [][2]Name {
	var out [][2]Name
	for {
		p.mark(markItem)
		to := p.name("`rename`")
		if n := p.peek(1); (p.tok.word("as") || p.tok.word("to") || p.tok.is("->")) && n.kind == kindName {
			text := n.text + " = " + to.Text
			p.failEdit("E0012", "in `rename` the new name comes first", "found "+p.tok.describe(), "`rename "+text+"`", &plan.Edit{Start: int(to.Pos), End: n.end, Text: text})
		}
		p.expect("=", "in `rename new = old`")
		out = append(out, [2]Name{to, p.name("`rename`")})
		if !p.accept(",") {
			return out
		}
	}
}

func (p *parser) explode(s *Stage) {
	if p.tok.word("left") && !p.peek(1).word("as") && p.peek(1).kind == kindName {
		p.next()
		s.Left = true
	}
	s.Expr = p.expr(expr.Scalar, "`explode`")
	p.expect("as", "in `explode xs as x`")
	n := p.name("`explode .. as`")
	s.As = &n
	if p.accept("index") {
		i := p.name("`index`")
		s.Index = &i
	}
}

func (p *parser) keyStage(s *Stage) {
	if !p.tok.is("(") {
		p.failEdit("E0012", "`key` needs its expressions in parentheses", "found "+p.tok.describe(), "`key (a, b)`", p.replaceTok("("+p.tok.text+")", p.tok.kind == kindName))
	}
	p.next()
	if p.tok.is(")") {
		p.failTok("E0032", "`key ()` names no column", "a stage sets a key", "`with key ()` after the last stage leaves the rows without one")
	}
	for {
		s.Keys = append(s.Keys, *p.expr(expr.Scalar, "`key (..)`"))
		if !p.accept(",") {
			break
		}
	}
	p.expect(")", "after the expressions of `key`")
}

func (p *parser) check(s *Stage) {
	s.Expr = p.expr(expr.Scalar, "`check`")
	if !p.tok.word("else") {
		p.unexpected("E0012", "`check` says with `else` what happens to the other rows", "`else to bad_rows` or `else fail`", "")
	}
	p.next()
	switch {
	case p.tok.word("to"):
		r := Route{Pos: Pos(p.tok.pos)}
		p.next()
		r.To = p.topicName("`else to`")
		s.Targets = []Route{r}
	case p.accept("fail"):
		s.Fail = true
	default:
		p.unexpected("E0012", "`check .. else` is followed by `to topic` or `fail`", "`else to bad_rows` or `else fail`", "")
	}
}

func (p *parser) route(s *Stage) {
	for p.tok.word("when") {
		p.mark(markClause)
		r := Route{Pos: Pos(p.tok.pos)}
		p.next()
		r.When = p.expr(expr.Scalar, "`when`")
		p.expect("to", "after the condition of `when`")
		r.To = p.topicName("`when .. to`")
		s.Targets = append(s.Targets, r)
	}
	if p.tok.word("else") {
		p.mark(markClause)
		r := Route{Pos: Pos(p.tok.pos)}
		p.next()
		p.expect("to", "after `else`")
		r.To = p.topicName("`else to`")
		s.Targets = append(s.Targets, r)
	}
	if len(s.Targets) == 0 {
		p.unexpected("E0012", "`route` needs `when condition to topic`", "`route when amount > 100 to big else to small`", "")
	}
}

func (p *parser) top(s *Stage) {
	if p.tok.word("by") && !p.peek(1).word("by") && !p.peek(1).word("ties") {
		p.failEdit("E0020", "`top` needs how many rows to keep", "what it keeps must be bounded", "`top 10 by ..`", &plan.Edit{Start: p.tok.pos, End: p.tok.pos, Text: "10 "})
	}
	n := p.integer("`top`")
	s.N = &n
	s.Ties = p.accept("ties")
	p.expect("by", "in `top n by ..`")
	for {
		p.mark(markItem)
		o := Order{Value: *p.expr(expr.Scalar, "`top .. by`")}
		switch {
		case p.accept("asc"):
		case p.accept("desc"):
			o.Desc = true
		}
		s.Orders = append(s.Orders, o)
		if !p.accept(",") {
			break
		}
	}
	s.Clauses = p.clauses(s.Word)
}

func (p *parser) join(s *Stage) {
	if p.tok.kind == kindName {
		switch p.tok.text {
		case "full", "semi", "anti":
			if s.Word == "lookup" {
				break
			}
			s.Kind = p.tok.text
			p.next()
		case "left":
			if s.Word == "join" {
				s.Kind = "left"
			} else {
				s.Left = true
			}
			p.next()
		}
	}
	n := p.topicName("`" + s.Word + "`")
	s.Source = &n
	p.expect("as", fmt.Sprintf("after the topic of `%s`: its row needs a name", s.Word))
	as := p.name("`as`")
	s.As = &as
	p.expect("on", fmt.Sprintf("in `%s`", s.Word))
	s.Expr = p.expr(expr.Scalar, "`on`")
	s.Clauses = p.clauses(s.Word)
}
