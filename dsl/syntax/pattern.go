package syntax

import (
	"fmt"

	"github.com/headrace/headrace/dsl/expr"
)

// match reads the parts of a match stage. `select` is the last; the others stand in any order.
func (p *parser) match() *Match {
	m := &Match{}
	at := p.tok
	seen := make(map[string]bool)
	for !seen["select"] {
		word := p.tok.text
		if p.tok.kind == kindName && seen[word] {
			p.report("E0015", p.tok.pos, p.tok.end, fmt.Sprintf("`%s` is given twice in `match`", word), "each part stands once", "remove one", nil)
		}
		if p.tok.kind == kindName {
			switch word {
			case "by", "within", "order":
			default:
				p.mark(markClause)
			}
		}
		if !p.matchPart(m) {
			break
		}
		seen[word] = true
	}
	p.matchMissing(at, seen)
	return m
}

// matchMissing reports the parts that every match has.
func (p *parser) matchMissing(at token, seen map[string]bool) {
	for _, part := range []struct{ word, reason, fix string }{
		{"within", "an unbounded match would keep every row", "`within 10m`, or `within forever` with a `state` clause"},
		{"pattern", "it says which rows follow each other", "`pattern a -> b`"},
		{"define", "a step is a condition on a row", "`define a = kind == \"x\"`"},
		{"select", "a match becomes one row", "`select n = count(a)`"},
	} {
		if !seen[part.word] {
			p.lastExpr.end = -1
			if p.tok.kind == kindName && !p.atStatement() && !p.tok.word("with") {
				p.failTok("E0025", fmt.Sprintf("%s is no part of `match`, and `%s` is missing", p.tok.describe(), part.word), part.reason, part.fix)
			}
			p.failTok("E0025", fmt.Sprintf("`match` has no `%s`", part.word), part.reason, part.fix)
		}
	}
}

func (p *parser) matchPart(m *Match) bool {
	if p.tok.kind != kindName {
		return false
	}
	switch p.tok.text {
	case "by":
		p.next()
		m.By = p.items(expr.Scalar, "by")
	case "within":
		p.next()
		if p.accept("forever") {
			m.Forever = true
			break
		}
		d := p.duration("`within`")
		m.Within = &d
	case "order":
		p.next()
		m.Order = p.oneOf("order", "time", "arrival")
	case "pattern":
		p.next()
		m.Pattern = p.pattern()
	case "define":
		p.next()
		m.Define = p.assigns(expr.Aggregate, "define", false)
	case "unless":
		p.next()
		m.Unless = p.names("unless")
	case "skip":
		p.next()
		m.Skip = p.oneOf("skip", "past", "next", "none", "to")
		if m.Skip == "to" {
			m.Skip += " " + p.oneOf("skip to", "first", "last")
			n := p.name("`skip " + m.Skip + "`")
			m.SkipTo = &n
		}
	case "timeout":
		p.next()
		p.expect("to", "after `timeout`")
		n := p.topicName("`timeout to`")
		m.TimeoutTo = &n
	case "rows":
		p.next()
		m.Rows = p.oneOf("rows", "one", "all")
	case "late", "state":
		m.Clauses = append(m.Clauses, p.clause("match"))
	case "select":
		p.next()
		m.Select = p.items(expr.Aggregate, "select")
	default:
		return false
	}
	return true
}

func (p *parser) oneOf(what string, words ...string) string {
	for _, w := range words {
		if p.accept(w) {
			return w
		}
	}
	list := ""
	for i, w := range words {
		if i > 0 {
			list += ", "
		}
		list += "`" + w + "`"
	}
	p.unexpected("E0025", fmt.Sprintf("`%s` is followed by one of %s", what, list), fmt.Sprintf("`%s %s`", what, words[0]), "")
	return ""
}

// pattern reads seq { "|" seq }.
func (p *parser) pattern() *Pattern {
	p.enter()
	defer p.leave()
	pat := &Pattern{Pos: Pos(p.tok.pos)}
	for {
		pat.Alternatives = append(pat.Alternatives, p.patternSeq())
		if !p.accept("|") {
			return pat
		}
	}
}

func (p *parser) patternSeq() PatternSeq {
	var s PatternSeq
	for {
		s.Elems = append(s.Elems, p.patternElem())
		if !p.tok.is("->") && !p.tok.is("=>") && !p.tok.is("~>") {
			break
		}
		l := PatternLink{Word: p.tok.text, Pos: Pos(p.tok.pos)}
		p.next()
		if p.tok.is("[") {
			p.glue()
			p.next()
			d := p.duration("the gap of a link")
			l.Gap = &d
			p.expect("]", "after the gap of a link")
		}
		s.Links = append(s.Links, l)
	}
	if p.tok.kind == kindName && p.peek(1).kind == kindOp {
		switch n := p.peek(1).text; n {
		case "->", "=>", "~>":
			p.failTok("E0024", fmt.Sprintf("a link is missing before `%s`", p.tok.text), "steps are joined by `->`, `=>` or `~>`", fmt.Sprintf("`-> %s`", p.tok.text))
		}
	}
	if p.tok.is("-") || p.tok.is("=") || p.tok.is(">") || p.tok.is(",") {
		p.failTok("E0024", fmt.Sprintf("%s joins no steps", p.tok.describe()), "steps are joined by `->` (later), `=>` (next) or `~>` (any later)", "`->`")
	}
	return s
}

func (p *parser) patternElem() PatternElem {
	e := PatternElem{Pos: Pos(p.tok.pos)}
	if p.tok.word("not") {
		p.next()
		e.Not = true
	}
	switch {
	case p.tok.is("("):
		open := p.tok
		p.next()
		e.Group = p.pattern()
		if !p.tok.is(")") {
			p.fail("E0036", open.pos, open.end, "this `(` is not closed", "found "+p.tok.describe()+" first", "`)`")
		}
		p.next()
	case p.tok.word("all") && p.peek(1).is("("):
		p.next()
		p.glue()
		p.next()
		for {
			e.All = append(e.All, p.name("`all(..)`"))
			if !p.accept(",") {
				break
			}
		}
		p.expect(")", "after the steps of `all`")
	case p.tok.kind == kindName && !(p.tok.text == "define" && p.peek(1).kind == kindName):
		n := p.name("a pattern")
		e.Name = &n
	default:
		p.failTok("E0024", fmt.Sprintf("a step of the pattern is missing: found %s", p.tok.describe()), "a step is a name, `(..)` or `all(..)`", "for example `a -> b`")
	}
	e.Quant = p.quant()
	if p.accept("for") {
		d := p.duration("`for`")
		e.For = &d
	}
	e.End = Pos(p.end)
	return e
}

// quant reads ? * + {n} {n,} {n,m}, then ? (lazy), ! or ~, each, until x.
func (p *parser) quant() *Quant {
	q := &Quant{Min: 1, Max: 1, Pos: Pos(p.tok.pos)}
	open := p.tok
	switch {
	case p.tok.is("?"):
		q.Min = 0
	case p.tok.is("*"):
		q.Min, q.Max = 0, -1
	case p.tok.is("+"):
		q.Max = -1
	case p.tok.is("{"):
		p.glue()
		p.next()
		p.glue()
		q.Min = p.count()
		q.Max = q.Min
		if p.accept(",") {
			q.Max = -1
			if !p.tok.is("}") {
				p.glue()
				q.Max = p.count()
			}
		}
		p.glue()
		if !p.tok.is("}") {
			p.fail("E0024", open.pos, p.tok.end, fmt.Sprintf("a repetition is `{n}`, `{n,}` or `{n,m}`; found %s", p.tok.describe()), "it says how often a step occurs", "`{3}`")
		}
		if q.Max >= 0 && q.Max < q.Min || q.Max == 0 {
			p.fail("E0024", open.pos, p.tok.end, fmt.Sprintf("this step can never repeat %d to %d times", q.Min, q.Max), "the second number is the larger one, and not 0", fmt.Sprintf("`{%d,%d}`", min(q.Min, q.Max), max(q.Min, q.Max, 1)))
		}
	default:
		return nil
	}
	p.glue()
	p.next()
	if p.tok.is("?") {
		p.glue()
		p.next()
		q.Lazy = true
	}
	if p.tok.is("!") || p.tok.is("~") {
		q.Link = p.tok.text
		p.glue()
		p.next()
	}
	q.Each = p.accept("each")
	if p.tok.word("until") {
		p.next()
		n := p.name("`until`")
		q.Until = &n
	}
	return q
}

// count takes the literal number of a repetition.
func (p *parser) count() int64 {
	if p.tok.kind != kindNumber || !isWhole(p.tok.text) {
		p.failTok("E0024", fmt.Sprintf("a repetition needs a whole number, not %s", p.tok.describe()), "it says how often a step occurs", "`{3}`")
	}
	n, ok := parseInt(p.tok.text)
	if !ok || n > 1e6 {
		p.failTok("E0024", fmt.Sprintf("%s repetitions are too many", p.tok.text), "at most 1000000", "`+` has no upper bound")
	}
	p.next()
	return n
}
