package syntax

import (
	"fmt"
	"strings"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
)

// clauseWords begin the trailing clauses of agg, over, top, dedup, join and lookup. Which stage takes which
// is the checker's table.
var clauseWords = map[string]bool{
	"by": true, "per": true, "window": true, "emit": true, "within": true, "valid": true, "until": true, "as": true, "latest": true,
	"state": true, "late": true, "rank": true, "keep": true, "rows": true, "range": true,
}

var clauseList = []string{
	"by", "per", "window", "emit", "within", "valid", "until", "latest", "state", "late", "rank", "keep", "rows", "range",
}

func (p *parser) clauses(stage string) []Clause {
	var out []Clause
	seen := make(map[string]bool)
	for p.tok.kind == kindName && clauseWords[p.tok.text] {
		p.mark(markClause)
		word, pos, end := p.tok.text, p.tok.pos, p.tok.end
		if seen[word] {
			p.report("E0015", pos, end, fmt.Sprintf("clause `%s` is given twice in `%s`", word, stage), "each clause stands once", "remove one", nil)
		}
		seen[word] = true
		out = append(out, p.clause(stage))
	}
	return out
}

func (p *parser) clause(stage string) Clause {
	c := Clause{Pos: Pos(p.tok.pos), Word: p.tok.text}
	p.next()
	switch c.Word {
	case "by":
		c.Items = p.items(expr.Scalar, "by")
	case "per":
		for {
			if p.tok.word("window") {
				p.mark(markItem)
				p.next()
				c.PerWindow = true
			} else {
				p.mark(markItem)
				c.Items = append(c.Items, p.item(expr.Scalar, "per"))
			}
			if !p.accept(",") {
				break
			}
		}
	case "window":
		c.Window = p.window()
		if p.tok.word("on") {
			p.next()
			p.expect("append", "after `on`: a window is over event time or `on append`")
			c.OnAppend = true
		}
	case "emit":
		c.Emit = p.emit()
	case "within":
		d := p.signedDuration("`within`")
		c.From = &d
		if p.accept("to") {
			t := p.signedDuration("`within .. to`")
			c.To = &t
		}
	case "valid":
		p.expect("from", "after `valid`")
		c.Exprs = []Expr{*p.expr(expr.Scalar, "`valid from`")}
		p.expect("to", "in `valid from .. to ..`")
		c.Exprs = append(c.Exprs, *p.expr(expr.Scalar, "`valid from .. to`"))
	case "until":
		c.Exprs = []Expr{*p.expr(expr.Scalar, "`until`")}
	case "as":
		p.expect("of", "after `as`: a lookup reads its table `as of` a time")
		c.Exprs = []Expr{*p.expr(expr.Scalar, "`as of`")}
	case "latest":
	case "state":
		p.state(&c)
	case "late":
		p.lateClause(&c)
	case "rank":
		n := p.name("`rank`")
		c.Name = &n
	case "keep":
		if !p.tok.word("first") && !p.tok.word("last") {
			p.unexpected("E0012", "`keep` is followed by `first` or `last`", "`keep last`", "")
		}
		c.Mode = p.tok.text
		p.next()
	case "rows":
		n := p.integer("`rows`")
		c.Int = &n
		c.Before = p.accept("before")
	case "range":
		d := p.duration("`range`")
		c.From = &d
	}
	c.End = Pos(p.end)
	return c
}

func (p *parser) state(c *Clause) {
	c.Mode = p.tok.text
	switch {
	case p.accept("forever"):
	case p.accept("ttl"):
		d := p.duration("`state ttl`")
		c.Duration = &d
	case p.accept("max"):
		n := p.integer("`state max`")
		c.Int = &n
		p.expect("runs", "after `state max n`")
	default:
		p.unexpected("E0012", "`state` is followed by `forever`, `ttl` with a duration, or `max n runs`", "`state ttl 7d`", "")
	}
}

func (p *parser) lateClause(c *Clause) {
	c.Mode = p.tok.text
	switch {
	case p.accept("accept"):
		d := p.duration("`late accept`")
		c.Duration = &d
	case p.accept("drop"):
	case p.accept("to"):
		n := p.topicName("`late to`")
		c.Target = &n
	default:
		p.unexpected("E0012", "`late` is followed by `accept` with a duration, `drop` or `to topic`", "`late drop`", "")
	}
}

var windowWords = []string{"tumble", "hop", "cumulate", "count", "session", "calendar"}

var windowElsewhere = map[string]string{"tumbling": "tumble", "hopping": "hop", "sliding": "hop", "cumulative": "cumulate", "rows": "count"}

func (p *parser) window() *Window {
	w := &Window{Pos: Pos(p.tok.pos), Word: p.tok.text}
	known := false
	for _, k := range windowWords {
		known = known || p.tok.word(k)
	}
	if !known {
		if p.tok.kind == kindDuration {
			p.failEdit("E0022", "a window needs its kind", "windows are tumble, hop, cumulate, count, session and calendar", fmt.Sprintf("`tumble(%s)`", p.tok.text),
				p.replaceTok("tumble("+p.tok.text+")", true))
		}
		n := windowElsewhere[strings.ToLower(p.tok.text)]
		for _, k := range windowWords {
			if strings.EqualFold(k, p.tok.text) {
				n = k
			}
		}
		if n == "" {
			n = nearest(p.tok.text, windowWords)
		}
		if n != "" && p.tok.kind == kindName {
			p.failEdit("E0022", fmt.Sprintf("there is no window `%s`", p.tok.text), "windows are tumble, hop, cumulate, count, session and calendar", fmt.Sprintf("`%s`", n), p.replaceTok(n, true))
		}
		p.failTok("E0022", fmt.Sprintf("`window` is followed by a kind of window, not %s", p.tok.describe()), "windows are tumble, hop, cumulate, count, session and calendar", "`window tumble(1m)`")
	}
	p.next()
	p.glue()
	if p.tok.kind == kindDuration && (w.Word == "tumble" || w.Word == "session") {
		p.failEdit("E0012", fmt.Sprintf("the length of `%s` stands in parentheses", w.Word), "found "+p.tok.describe(), fmt.Sprintf("`%s(%s)`", w.Word, p.tok.text),
			&plan.Edit{Start: p.end, End: p.tok.end, Text: "(" + p.tok.text + ")"})
	}
	p.expect("(", fmt.Sprintf("after `%s`", w.Word))
	what := fmt.Sprintf("`%s(..)`", w.Word)
	switch w.Word {
	case "tumble":
		d := p.duration(what)
		w.Size = &d
	case "hop", "cumulate":
		d := p.duration(what)
		w.Size = &d
		if n := p.peek(1); p.tok.is(",") && n.kind == kindDuration {
			p.failEdit("E0022", fmt.Sprintf("`%s` says with `every` how often it begins", w.Word), "found `,`", fmt.Sprintf("`%s(%s every %s)`", w.Word, d.Text, n.text), p.replaceTok(" every", true))
		}
		if !p.tok.word("every") {
			p.unexpected("E0022", fmt.Sprintf("`%s` needs how often it begins: `every` with a duration", w.Word), fmt.Sprintf("`%s(10s every 2s)`", w.Word), "")
		}
		p.next()
		e := p.duration("`every`")
		w.Every = &e
	case "count":
		n := p.integer(what)
		w.Int = &n
	case "session":
		d := p.duration(what)
		w.Size = &d
		if p.accept("max") {
			m := p.duration("`max`")
			w.Every = &m
		}
	case "calendar":
		n := p.name(what)
		w.Unit = n.Text
		if p.accept(",") {
			w.Zone = p.stringValue("the zone of `calendar`")
		}
	}
	p.expect(")", fmt.Sprintf("after the arguments of `%s`", w.Word))
	w.End = Pos(p.end)
	return w
}
