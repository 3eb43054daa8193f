package check

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// A span is a stretch of the module text in bytes.
type span struct{ start, end int }

// A source maps between byte offsets, rune offsets and lines of a text.
type source struct {
	file  string
	text  string
	lines []int // byte offset of the first byte of each line
	runes []int // byte offset of each rune, and of the end; nil if the text is ASCII
}

func newSource(file, text string) *source {
	s := &source{file: file, text: text, lines: []int{0}}
	ascii := true
	for i := 0; i < len(text); i++ {
		if text[i] == '\n' {
			s.lines = append(s.lines, i+1)
		}
		if text[i] >= utf8.RuneSelf {
			ascii = false
		}
	}
	if !ascii {
		for i := range text {
			s.runes = append(s.runes, i)
		}
		s.runes = append(s.runes, len(text))
	}
	return s
}

// byteOf turns a rune offset into a byte offset, clamped to the text.
func (s *source) byteOf(r int) int {
	if s.runes == nil {
		return s.clamp(r)
	}
	if r < 0 {
		return 0
	}
	if r >= len(s.runes) {
		return len(s.text)
	}
	return s.runes[r]
}

func (s *source) clamp(i int) int {
	return min(max(i, 0), len(s.text))
}

// line returns the 1-based line of a byte offset.
func (s *source) line(i int) int {
	return sort.SearchInts(s.lines, s.clamp(i)+1)
}

// pos returns the place of a byte offset.
func (s *source) pos(i int) plan.Pos {
	i = s.clamp(i)
	l := s.line(i)
	return plan.Pos{Offset: i, Line: l, Column: utf8.RuneCountInString(s.text[s.lines[l-1]:i]) + 1}
}

// lineText returns line l without its end.
func (s *source) lineText(l int) string {
	start := s.lines[l-1]
	end := len(s.text)
	if l < len(s.lines) {
		end = s.lines[l] - 1
	}
	return strings.TrimRight(s.text[start:end], "\r")
}

// slice returns the text of a span.
func (s *source) slice(p span) string {
	a, b := s.clamp(p.start), s.clamp(p.end)
	if a >= b {
		return ""
	}
	return s.text[a:b]
}

// A finding is a diagnostic under construction.
type finding struct {
	d  plan.Diagnostic
	at span
}

func (c *checker) err(code string, at span, format string, args ...any) *finding {
	f := &finding{at: at}
	p := c.src.pos(at.start)
	line := c.src.lineText(p.Line)
	lineEnd := c.src.lines[p.Line-1] + len(line)
	end := min(c.src.clamp(at.end), lineEnd)
	length := 1
	if end > p.Offset {
		length = utf8.RuneCountInString(c.src.text[p.Offset:end])
	}
	f.d = plan.Diagnostic{
		Code: code, Message: fmt.Sprintf(format, args...), File: c.src.file,
		Line: p.Line, Column: p.Column, Length: max(length, 1), LineText: line,
	}
	c.found = append(c.found, f)
	return f
}

// because adds the reason.
func (f *finding) because(format string, args ...any) *finding {
	f.d.Reason = fmt.Sprintf(format, args...)
	return f
}

// fix adds what to do, in words.
func (f *finding) fix(format string, args ...any) *finding {
	f.d.Fix = fmt.Sprintf(format, args...)
	return f
}

// replace adds an edit of the bytes at; applying it must make the finding vanish. Without words of
// its own the fix is the new text.
func (f *finding) replace(at span, text string) *finding {
	f.d.Edit = &plan.Edit{Start: at.start, End: at.end, Text: text}
	if f.d.Fix == "" {
		f.d.Fix = "`" + strings.TrimSpace(text) + "`"
	}
	return f
}

// replaceDuration edits a duration that is written out; what a const holds may stand in other places too.
func (f *finding) replaceDuration(d *syntax.Duration, text string) *finding {
	if d.Const != "" {
		return f
	}
	return f.replace(span{int(d.Pos), int(d.Pos) + len(d.Text)}, text)
}

func (c *checker) nameSpan(n syntax.Name) span {
	start := int(n.Pos)
	if n.Quoted {
		return span{start, c.skipString(start)}
	}
	return span{start, start + len(n.Text)}
}

// wordSpan is the identifier that starts at p.
func (c *checker) wordSpan(p syntax.Pos) span {
	i := c.src.clamp(int(p))
	j := i
	for j < len(c.src.text) && isWordByte(c.src.text[j]) {
		j++
	}
	return span{i, max(j, i+1)}
}

func exprSpan(e *syntax.Expr) span { return span{int(e.Pos), int(e.End)} }

func isWordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= utf8.RuneSelf
}

// skipString returns the offset after the string literal at i.
func (c *checker) skipString(i int) int {
	t := c.src.text
	if i >= len(t) {
		return i
	}
	q := t[i]
	for j := i + 1; j < len(t); j++ {
		switch {
		case t[j] == '\\' && q != '`':
			j++
		case t[j] == q:
			return j + 1
		}
	}
	return len(t)
}

// skipSpace returns the offset of the next byte that is neither space nor comment.
func (c *checker) skipSpace(i int) int {
	t := c.src.text
	for i < len(t) {
		switch {
		case t[i] == ' ' || t[i] == '\t' || t[i] == '\n' || t[i] == '\r':
			i++
		case strings.HasPrefix(t[i:], "//"):
			n := strings.IndexByte(t[i:], '\n')
			if n < 0 {
				return len(t)
			}
			i += n
		case strings.HasPrefix(t[i:], "/*"):
			n := strings.Index(t[i:], "*/")
			if n < 0 {
				return len(t)
			}
			i += n + 2
		default:
			return i
		}
	}
	return i
}

// closing returns the offset after the bracket that closes the one at i, or after i if none does.
func (c *checker) closing(i int) int {
	t := c.src.text
	depth := 0
	for j := i; j < len(t); {
		switch t[j] {
		case '(', '[', '{':
			depth++
			j++
		case ')', ']', '}':
			depth--
			j++
			if depth == 0 {
				return j
			}
		case '"', '\'', '`':
			j = c.skipString(j)
		case '/':
			if k := c.skipSpace(j); k > j {
				j = k
			} else {
				j++
			}
		default:
			j++
		}
	}
	return min(i+1, len(t))
}

func itoa(i int) string { return strconv.Itoa(i) }

// quoteList writes `a`, `b` and `c`.
func quoteList(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = "`" + n + "`"
	}
	if len(q) < 2 {
		return strings.Join(q, "")
	}
	return strings.Join(q[:len(q)-1], ", ") + " and " + q[len(q)-1]
}

// maxHints bounds the findings that get a hint: after so many, the module is something else.
const maxHints = 200

// nearest returns the candidate that name most likely means, or "".
func (c *checker) nearest(name string, candidates []string) string {
	if len(c.found) > maxHints {
		return ""
	}
	return nearest(name, candidates)
}

func nearest(name string, candidates []string) string {
	best, bestD := "", (len(name)+7)/4
	low := strings.ToLower(name)
	for _, cand := range candidates {
		d := distance(low, strings.ToLower(cand))
		if d == 0 && name == cand {
			continue
		}
		if len(cand) >= 4 && len(low) >= 3 && (strings.HasPrefix(strings.ToLower(cand), low) || strings.HasPrefix(low, strings.ToLower(cand))) {
			d = min(d, bestD-1)
		}
		if d < bestD && d < max(len(cand), len(name)) {
			best, bestD = cand, d
		}
	}
	return best
}

// distance is the edit distance with transpositions (optimal string alignment), over bytes; names
// longer than 64 bytes count as far.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	cur := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
