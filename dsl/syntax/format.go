package syntax

import (
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
)

// lineWidth is where Format breaks lines, in runes.
const lineWidth = 100

// Format prints a module in its canonical layout: the tokens and comments of the text, respaced. It
// changes no literal, adds and removes no token, and formatting its result again changes nothing. Where
// lines break is the author's choice as far as it fits: a statement written on one line stays on one line
// up to 100 columns; in others each stage has its line, and each clause of a stage that is broken.
//
// A text with syntax errors is returned as it is, with the errors.
func Format(text string) (string, []plan.Diagnostic) {
	p := newParser("", text)
	p.rec = newRecorder()
	p.module()
	if len(p.diags) > 0 {
		return text, p.result()
	}
	l := layout{toks: p.rec.toks}
	for i := range l.toks {
		l.toks[i].mark = p.rec.marks[l.toks[i].pos]
	}
	l.findGaps(text)
	l.module()
	return l.result(), nil
}

// A comment is a comment with what surrounds it.
type comment struct {
	text  string
	line  bool // //
	own   bool // a line break stands before it
	blank bool // an empty line stands before it
	after bool // a line break stands after it
}

// A gap is what stands before a token.
type gap struct {
	comments []comment
	newline  bool // a line break between the token before and this one
	blank    bool // an empty line right before the token
}

// A layout prints recorded tokens.
type layout struct {
	toks []printed
	gaps []gap // gaps[i] stands before toks[i]; the last one before the end of the text
	out  strings.Builder
	col  int // runes on the current line

	indent int // of what continues here
	pad    map[int]int

	line     int
	trailing []trailing
}

// A trailing is a // comment behind code, in the order of the text.
type trailing struct {
	line, col int
	at        int // byte of the output where it starts
}

// findGaps reads the comments between the tokens.
func (l *layout) findGaps(text string) {
	l.gaps = make([]gap, len(l.toks)+1)
	at := 0
	for i := range l.gaps {
		to := len(text)
		if i < len(l.toks) {
			to = l.toks[i].pos
		}
		l.gaps[i] = readGap(text[at:to])
		if i < len(l.toks) {
			at = l.toks[i].end
		}
	}
}

func readGap(text string) gap {
	var g gap
	lines := 0 // line breaks since the last comment or token
	for len(text) > 0 {
		n := 1
		switch {
		case text[0] == '\n':
			lines++
		case strings.HasPrefix(text, "//"):
			if n = strings.IndexByte(text, '\n'); n < 0 {
				n = len(text)
			}
			g.add(comment{text: strings.TrimRightFunc(text[:n], isSpace), line: true}, lines)
			lines = 0
		case strings.HasPrefix(text, "/*"):
			if n = strings.Index(text[2:], "*/"); n < 0 {
				n = len(text)
			} else {
				n += 4
			}
			g.add(comment{text: text[:n]}, lines)
			lines = 0
		}
		text = text[n:]
	}
	if lines > 0 && len(g.comments) > 0 {
		g.comments[len(g.comments)-1].after = true
	}
	g.newline = g.newline || lines > 0
	g.blank = lines > 1
	return g
}

func (g *gap) add(c comment, lines int) {
	c.own, c.blank = lines > 0, lines > 1
	if lines > 0 {
		g.newline = true
		if n := len(g.comments); n > 0 {
			g.comments[n-1].after = true
		}
	}
	g.comments = append(g.comments, c)
}

func isSpace(r rune) bool { return r == ' ' || r == '\t' || r == '\r' }

// write puts text on the current line.
func (l *layout) write(text string) {
	l.out.WriteString(text)
	l.line += strings.Count(text, "\n")
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		l.col = utf8.RuneCountInString(text[i+1:])
		return
	}
	l.col += utf8.RuneCountInString(text)
}

func (l *layout) newline(indent int) {
	l.out.WriteByte('\n')
	l.line++
	l.out.WriteString(strings.Repeat(" ", indent))
	l.col = indent
}

// empty ends the line, so that the newline that follows leaves an empty one.
func (l *layout) empty() {
	l.out.WriteByte('\n')
	l.line++
}

// comment prints a comment behind what is on the line.
func (l *layout) comment(c comment) {
	if c.line && !c.own {
		l.trailing = append(l.trailing, trailing{l.line, l.col, l.out.Len()})
	}
	l.write(c.text)
}

// maxPad is how far a // comment moves to stand under its neighbours.
const maxPad = 30

// result is the output, with the // comments behind code on neighbouring lines under each other.
func (l *layout) result() string {
	out := l.out.String()
	var b strings.Builder
	at := 0
	for i := 0; i < len(l.trailing); {
		j, low, high := i, l.trailing[i].col, l.trailing[i].col
		for ; j < len(l.trailing) && l.trailing[j].line == l.trailing[i].line+j-i; j++ {
			low, high = min(low, l.trailing[j].col), max(high, l.trailing[j].col)
		}
		if high-low > maxPad {
			high = 0
		}
		for ; i < j; i++ {
			b.WriteString(out[at:l.trailing[i].at])
			b.WriteString(strings.Repeat(" ", max(0, high-l.trailing[i].col)))
			at = l.trailing[i].at
		}
	}
	b.WriteString(out[at:])
	return b.String()
}

func (l *layout) module() {
	for i := 0; i < len(l.toks); {
		j := i + 1
		for j < len(l.toks) && l.toks[j].mark != markStatement {
			j++
		}
		l.between(i)
		if l.isFlat(i, j) && l.width(i, j) <= lineWidth {
			for k := i; k < j; k++ {
				l.put(k, -1, k == i)
			}
		} else {
			l.statement(i, j)
		}
		i = j
	}
	l.between(len(l.toks))
	if l.out.Len() > 0 {
		l.out.WriteByte('\n')
	}
}

// between prints the comments and empty lines before the statement at token i, or at the end.
func (l *layout) between(i int) {
	g := l.gaps[i]
	for _, c := range g.comments {
		l.separate(c.own || i == 0, c.blank)
		l.comment(c)
	}
	if i == len(l.toks) {
		return
	}
	sameLine := len(g.comments) > 0 && !g.comments[len(g.comments)-1].line && !g.comments[len(g.comments)-1].after &&
		(g.comments[len(g.comments)-1].own || i == 0)
	l.separate(!sameLine, g.blank)
}

// separate begins a new line (with an empty one before it), or leaves a space.
func (l *layout) separate(line, blank bool) {
	switch {
	case l.out.Len() == 0:
	case !line:
		l.write(" ")
	case blank:
		l.newline(0)
		l.newline(0)
	default:
		l.newline(0)
	}
}

// isFlat tells whether tokens i to j stood on one line without comments.
func (l *layout) isFlat(i, j int) bool {
	for k := i + 1; k < j; k++ {
		if l.gaps[k].newline || len(l.gaps[k].comments) > 0 {
			return false
		}
	}
	return true
}

// width is the length of tokens i to j on one line.
func (l *layout) width(i, j int) int {
	n := 0
	for k := i; k < j; k++ {
		if k > i && l.space(k) {
			n++
		}
		n += utf8.RuneCountInString(l.toks[k].text) + l.pad[k]
	}
	return n
}

// space tells whether a space stands before token k when both are on one line.
func (l *layout) space(k int) bool {
	p, t := &l.toks[k-1], &l.toks[k]
	if p.space != open && p.space != gluedOpen && t.space != glued && t.space != gluedOpen {
		return !(t.is("}") && p.is("{")) || t.mark == markStepsEnd
	}
	// Two tokens stay apart where together they would be read differently.
	joined := p.text + t.text
	inExpr := p.inExpr && t.inExpr
	first := scan(joined, 0, inExpr)
	if first.kind != p.kind || first.text != p.text {
		return true
	}
	second := scan(joined, first.end, inExpr)
	return second.text != t.text
}

// put prints token k, with the comments before it. brk is the column of a line break before it, or -1.
func (l *layout) put(k, brk int, first bool) {
	if !first {
		at := brk
		if at < 0 {
			at = l.indent + 4
		} else if m := l.toks[k].mark; m == markBraceEnd || m == markStepsEnd {
			at += 2
		}
		must := false
		prev := l.toks[k-1].mark
		mayBlank := prev != markBrace && prev != markSteps
		for _, c := range l.gaps[k].comments {
			if c.own || must {
				if c.blank && mayBlank {
					l.empty()
				}
				l.newline(at)
			} else {
				l.write(" ")
			}
			l.comment(c)
			must = c.line || c.own && c.after
			mayBlank = true
		}
		if must && brk < 0 {
			brk = at
		}
		switch {
		case brk >= 0:
			switch l.toks[k].mark {
			case markField, markStep, markStage:
				if l.gaps[k].blank && mayBlank {
					l.empty()
				}
			}
			l.newline(brk)
		case l.space(k):
			l.write(" ")
		}
	}
	l.write(strings.Repeat(" ", l.pad[k]))
	l.write(l.toks[k].text)
}

// until finds the first token after k, before j, that has one of the marks.
func (l *layout) until(k, j int, marks ...mark) int {
	for k++; k < j; k++ {
		for _, m := range marks {
			if l.toks[k].mark == m {
				return k
			}
		}
	}
	return j
}

// startsLine tells whether the current line holds only a closing brace.
func (l *layout) startsLine() bool { return l.col == 1 }

// A brace is an open { of a schema, a row or a test.
type brace struct {
	multi  bool // fields on their own lines
	indent int
}

// statement prints tokens i to j over several lines.
func (l *layout) statement(i, j int) {
	l.indent = 0
	var (
		braces    []brace
		breakable = true // comma lists may break here
		listCol   int
		onePer    bool // each item of this list on its own line
		base      int  // indent of the block around fields
	)
	for k := i; k < j; k++ {
		t := &l.toks[k]
		brk := -1
		newline := l.gaps[k].newline
		switch t.mark {
		case markStage:
			end := l.until(k, j, markStage, markWith)
			brk, l.indent, onePer = 2, 5, false
			breakable = !l.isFlat(k, end) || 2+l.width(k, end) > lineWidth
		case markClause:
			onePer = false
			if breakable {
				brk = 5
				end := l.until(k, j, markStage, markWith, markClause)
				if t.text == "define" {
					onePer = l.define(k, end)
				}
			}
		case markWith:
			brk, l.indent, breakable, onePer = 2, 2, true, false
		case markWithSchema:
			breakable = true
			if newline || l.col+1+l.width(k, j) > lineWidth && !l.startsLine() {
				brk, l.indent = 2, 2
			}
		case markStep:
			brk, l.indent, base = 2, 2, 2
		case markStepsEnd:
			brk, l.indent, base = 0, 0, 0
		case markField:
			if n := len(braces); n > 0 && braces[n-1].multi {
				if l.toks[k-1].mark == markBrace || newline || l.col+1+l.width(k, l.until(k, j, markField, markBraceEnd)) > lineWidth {
					brk = braces[n-1].indent + 2
				}
			}
		case markBrace:
			end := l.braceEnd(k, j)
			multi := l.gaps[k+1].newline || l.hasComments(k+1, end+1) || l.col+1+l.width(k, end+1) > lineWidth
			if end == k+1 {
				multi = l.hasComments(k+1, end+1)
			}
			braces = append(braces, brace{multi, base})
			if multi {
				base += 2
			}
		case markBraceEnd:
			if n := len(braces); n > 0 {
				b := braces[n-1]
				braces = braces[:n-1]
				base = b.indent
				if b.multi {
					brk = b.indent
				}
			}
		case markItem:
			switch {
			case !l.toks[k-1].is(","):
				listCol = l.col
				if l.space(k) {
					listCol++
				}
			case breakable && (onePer || newline || l.col+1+l.width(k, l.itemEnd(k, j)) > lineWidth):
				brk = listCol
			}
		}
		if t.mark == markNone && t.inExpr && newline && l.toks[k-1].inExpr {
			brk = l.indent + 4 + 2*min(t.depth, 8)
			if t.is(")") || t.is("]") || t.is("}") {
				brk = l.indent + 4 + 2*min(t.depth-1, 8)
			}
		}
		l.put(k, brk, k == i)
	}
}

// itemEnd is the token after a list item and its comma.
func (l *layout) itemEnd(k, j int) int {
	return l.until(k, j, markItem, markClause, markStage, markWith)
}

// braceEnd finds the } of the { at k.
func (l *layout) braceEnd(k, j int) int {
	depth := 0
	for ; k < j; k++ {
		switch l.toks[k].mark {
		case markBrace:
			depth++
		case markBraceEnd:
			if depth--; depth == 0 {
				return k
			}
		}
	}
	return j - 1
}

func (l *layout) hasComments(i, j int) bool {
	for k := i; k < j && k < len(l.gaps); k++ {
		if len(l.gaps[k].comments) > 0 {
			return true
		}
	}
	return false
}

// define decides whether the steps of a match get a line each; their = are then aligned.
func (l *layout) define(k, end int) bool {
	var names []int
	for i := k + 1; i < end; i++ {
		if l.toks[i].mark == markItem {
			names = append(names, i)
		}
	}
	if len(names) < 2 || l.isFlat(k, end) && 5+l.width(k, end) <= lineWidth {
		return false
	}
	longest := 0
	for _, i := range names {
		longest = max(longest, utf8.RuneCountInString(l.toks[i].text))
	}
	if l.pad == nil {
		l.pad = make(map[int]int)
	}
	for _, i := range names {
		l.pad[i+1] = longest - utf8.RuneCountInString(l.toks[i].text)
	}
	return true
}
