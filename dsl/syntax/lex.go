package syntax

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A kind is the class of a token.
type kind uint8

const (
	kindEOF kind = iota
	kindName
	kindNumber   // 12, 0x1f, 1.5, 1e3
	kindDuration // 10s, 1h30m
	kindString   // "..", '..', `..`
	kindBytes    // b"..", in expressions only
	kindOp
	kindBad // a lexical error; problem says which
)

// A token is a piece of the text. Outside expressions an operator is |> -> => ~> or one character.
type token struct {
	kind     kind
	text     string
	pos, end int
	problem  *problem // kindBad
}

// A problem is a lexical error without its place.
type problem struct{ code, message, reason, fix string }

func (t token) is(op string) bool  { return t.kind == kindOp && t.text == op }
func (t token) word(w string) bool { return t.kind == kindName && t.text == w }
func (t token) describe() string {
	switch t.kind {
	case kindEOF:
		return "the end of the file"
	case kindString:
		if len(t.text) > 24 {
			return "a string"
		}
	}
	if len(t.text) > 40 {
		return "`" + string([]rune(t.text)[:20]) + "..`"
	}
	return "`" + t.text + "`"
}

func isLetter(r rune) bool { return r == '_' || r == '$' || unicode.IsLetter(r) }
func isAlnum(r rune) bool  { return isLetter(r) || unicode.IsDigit(r) }

// skipSpace returns the first position at or after pos that is neither space nor comment, and the start
// of a block comment that has no end, or -1.
func skipSpace(text string, pos int) (next, unclosed int) {
	for pos < len(text) {
		switch c := text[pos]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			pos++
		case c == '/' && strings.HasPrefix(text[pos:], "//"):
			if i := strings.IndexByte(text[pos:], '\n'); i >= 0 {
				pos += i + 1
			} else {
				pos = len(text)
			}
		case c == '/' && strings.HasPrefix(text[pos:], "/*"):
			i := strings.Index(text[pos+2:], "*/")
			if i < 0 {
				return len(text), pos
			}
			pos += i + 4
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(text[pos:])
			if !unicode.IsSpace(r) {
				return pos, -1
			}
			pos += n
		case c == '\v' || c == '\f':
			pos++
		default:
			return pos, -1
		}
	}
	return pos, -1
}

// scan reads the token at or after pos. In an expression operators are expr-lang's, longest first;
// outside they are |> -> => ~> and single characters, so that `+!=>` is three tokens of a pattern.
func scan(text string, pos int, inExpr bool) token {
	start, unclosed := skipSpace(text, pos)
	if unclosed >= 0 {
		return token{kind: kindBad, pos: unclosed, end: len(text), problem: &problem{"E0004", "this comment is not closed", "it would take in the rest of the module", "add `*/`"}}
	}
	if start >= len(text) {
		return token{kind: kindEOF, pos: start, end: start}
	}
	r, n := utf8.DecodeRuneInString(text[start:])
	tok := token{kind: kindOp, pos: start, end: start + n}
	switch {
	case inExpr && (r == 'b' || r == 'B') && start+1 < len(text) && (text[start+1] == '"' || text[start+1] == '\''):
		scanString(text, start+1, &tok)
		if tok.kind == kindString {
			tok.kind = kindBytes
		}
	case isLetter(r):
		tok.kind = kindName
		tok.end = start + len(text[start:]) - len(strings.TrimLeftFunc(text[start:], isAlnum))
		if strings.ContainsRune(text[start:tok.end], '$') {
			tok.kind = kindBad
			tok.problem = &problem{"E0034", "names have no `$`", "`$` is reserved", "a name of letters, digits and `_`"}
		}
	case r >= '0' && r <= '9', inExpr && r == '.' && start+1 < len(text) && text[start+1] >= '0' && text[start+1] <= '9':
		scanNumber(text, start, &tok)
	case r == '"' || r == '\'' || r == '`':
		scanString(text, start, &tok)
	case inExpr && r == '#':
		tok.end = start + 1 + len(text[start+1:]) - len(strings.TrimLeftFunc(text[start+1:], isAlnum))
		if strings.ContainsRune(text[start:tok.end], '$') {
			tok.kind = kindBad
			tok.problem = &problem{"E0034", "names have no `$`", "`$` is reserved", "a name of letters, digits and `_`"}
		}
	case inExpr:
		if start+2 <= len(text) && strings.Contains(" |> -> => ~> || && == != <= >= ** .. ?? ?. :: ", " "+text[start:start+2]+" ") && text[start+1] != ' ' {
			tok.end = start + 2
			if text[start:start+2] == "?." && start+2 < len(text) && text[start+2] >= '0' && text[start+2] <= '9' {
				tok.end = start + 1 // c ?.5 : 1
			}
		}
		if !strings.ContainsRune("+-*/%^<>=!?.,:;|()[]{}~&", r) {
			tok.kind, tok.problem = kindBad, strange(r)
		}
	default:
		if start+2 <= len(text) {
			switch text[start : start+2] {
			case "|>", "->", "=>", "~>":
				tok.end = start + 2
			}
		}
		if !strings.ContainsRune("+-*/%^<>=!?.,:;|()[]{}~&", r) {
			tok.kind, tok.problem = kindBad, strange(r)
		}
	}
	tok.text = text[start:tok.end]
	return tok
}

func strange(r rune) *problem {
	p := &problem{code: "E0002", message: fmt.Sprintf("the character %q means nothing here", r), reason: "no word or sign of the language begins with it", fix: "remove it"}
	switch r {
	case '#':
		p.fix = "comments are `//` and `/* */`"
	case '“', '”', '„', '‘', '’':
		p.fix = "a straight quote `\"`"
	}
	return p
}

func scanString(text string, at int, tok *token) {
	quote := text[at]
	i := at + 1
	for i < len(text) {
		c := text[i]
		switch {
		case c == quote && quote == '`' && i+1 < len(text) && text[i+1] == '`':
			i += 2
			continue
		case c == quote:
			tok.kind, tok.end = kindString, i+1
			return
		case c == '\n' && quote != '`':
			i = len(text)
			continue
		case c == '\\' && quote != '`':
			i++
		}
		i++
	}
	tok.end = len(text)
	if quote != '`' {
		if nl := strings.IndexByte(text[at:], '\n'); nl >= 0 {
			tok.end = at + nl
		}
	}
	tok.kind = kindBad
	tok.problem = &problem{"E0003", "this string is not closed", "a string ends on its line; back quotes span lines", "add `" + string(quote) + "`"}
	if quote == '`' {
		tok.problem.reason = "its closing back quote is missing"
	}
}

// scanNumber reads a number as expr's lexer does, or a duration.
func scanNumber(text string, start int, tok *token) {
	i := start
	run := func(set string) {
		for i < len(text) && strings.IndexByte(set, text[i]) >= 0 {
			i++
		}
	}
	digits, based := "0123456789_", false
	if text[i] == '0' && i+1 < len(text) {
		switch text[i+1] {
		case 'x', 'X':
			digits, based = "0123456789abcdefABCDEF_", true
		case 'o', 'O':
			digits, based = "01234567_", true
		case 'b', 'B':
			digits, based = "01_", true
		}
		if based {
			i += 2
		}
	}
	run(digits)
	tok.kind = kindNumber
	whole := !based && i > start
	if i < len(text) && text[i] == '.' && !strings.HasPrefix(text[i:], "..") {
		whole = false
		i++
		run(digits)
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		whole = false
		i++
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		run(digits)
	}
	tok.end = i
	rest := text[i:]
	word := rest[:len(rest)-len(strings.TrimLeftFunc(rest, isAlnum))]
	if word == "" {
		return
	}
	tok.end += len(word)
	tok.kind = kindDuration
	if _, why := parseDuration(text[start:tok.end]); why != nil {
		tok.kind, tok.problem = kindBad, why
		if !whole {
			tok.problem = &problem{"E0006", "this number cannot be read", "letters follow its digits", "a space, or a duration such as `10s`"}
			if strings.HasPrefix(rest, "s") || strings.HasPrefix(rest, "m") || strings.HasPrefix(rest, "h") || strings.HasPrefix(rest, "d") {
				tok.problem = &problem{"E0007", "a duration has whole numbers only", "parts of a unit are written in the next smaller one", "`1h30m` for one and a half hours"}
			}
		}
	}
}

// units are the units of duration literals in nanoseconds; a day is 24 hours.
var units = map[string]int64{
	"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 24 * 3600e9, "w": 7 * 24 * 3600e9,
}

// parseDuration reads 10ms, 5m, 1h30m, 7d, 2w: whole numbers with units, larger units first.
func parseDuration(text string) (nanos int64, why *problem) {
	last := int64(math.MaxInt64)
	for rest := text; rest != ""; {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789_"))]
		rest = rest[len(digits):]
		unit := rest[:len(rest)-len(strings.TrimLeftFunc(rest, isLetter))]
		rest = rest[len(unit):]
		if digits == "" || unit == "" {
			return 0, &problem{"E0007", fmt.Sprintf("`%s` is no duration", text), "each number needs a unit: ns us ms s m h d w", "for example `1h30m`"}
		}
		size, ok := units[unit]
		if !ok {
			return 0, &problem{"E0007", fmt.Sprintf("`%s` is no duration: there is no unit `%s`", text, unit), "units are ns us ms s m h d w; calendar units stand in `calendar(month)`", fmt.Sprintf("for example `%s`", unitHint(text, unit))}
		}
		if size >= last {
			return 0, &problem{"E0007", fmt.Sprintf("`%s` has its units out of order", text), "larger units come first, each once", "for example `1h30m`"}
		}
		last = size
		n, err := strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), 10, 64)
		if err != nil || n > math.MaxInt64/size || nanos > math.MaxInt64-n*size {
			return 0, &problem{"E0007", fmt.Sprintf("the duration `%s` is too long", text), "durations are int64 nanoseconds, about 292 years", "a shorter one, or `forever` where it is allowed"}
		}
		nanos += n * size
	}
	return nanos, nil
}
