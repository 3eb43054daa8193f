package expr

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	countStar     = regexp.MustCompile(`^\(\s*\*\s*\)`)
	plainWord     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)
	castEnd       = regexp.MustCompile(`^as\s+([A-Za-z_][A-Za-z0-9_]*)\s*(\([0-9, ]*\))?\s*\)`)
	arrowFunction = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*|\([A-Za-z0-9_, ]*\))\s*[-=]$`)
)

// habit words an unexpected token that comes from another language, with what is written here.
func habit(e *Error, text string) bool {
	runes := []rune(text)
	from, to := min(e.From, len(runes)), min(e.To, len(runes))
	before, word, rest := string(runes[:from]), string(runes[from:to]), string(runes[from:])
	trimmed := strings.TrimRight(before, " \t\r\n")
	open, inner := openParen(before)
	set := func(code, message, reason, fix string, at, end int, replacement string) bool {
		e.Code, e.Message, e.Reason, e.Fix = code, message, reason, fix
		e.Edit = &Edit{From: utf8.RuneCountInString(text[:at]), To: utf8.RuneCountInString(text[:end]), Text: replacement}
		return true
	}
	switch {
	case word == "*" && strings.HasSuffix(trimmed, "(") && countStar.MatchString(text[len(trimmed)-1:]):
		name := lastWord(trimmed[:len(trimmed)-1])
		at := len(trimmed)
		if name != "count" {
			e.Code, e.Message, e.Reason, e.Fix = CodeOperand, fmt.Sprintf("`%s` takes one value of a row, not all of them", name), "only `count` needs no value", fmt.Sprintf("`%s(x)`", name)
			return true
		}
		return set(CodeOperand, fmt.Sprintf("`%s(*)` is written `%s()`", name, name), "it counts rows and looks at no column", fmt.Sprintf("`%s()`", name), at, at+strings.IndexByte(text[at:], ')'), "")
	case open >= 0 && strings.EqualFold(strings.TrimSpace(inner), "distinct") && strings.HasPrefix(plainWord.FindString(rest), word) && isWord([]rune(word + " ")[0]):
		name := lastWord(text[:open])
		if name == "count" {
			return set(CodeOperands, "distinct values are counted by `count_distinct`", "arguments are values and take no words before them", "`count_distinct(..)`", open-len(name), len(before), "count_distinct(")
		}
		e.Code, e.Message, e.Reason, e.Fix = CodeOperands, fmt.Sprintf("`%s` takes no `distinct`", name), "arguments are values and take no words before them", "`count_distinct(x)` counts distinct values"
		return true
	case word == "as" && open >= 0 && castEnd.MatchString(rest):
		m := castEnd.FindStringSubmatch(rest)
		if name := lastWord(text[:open]); name == "cast" || name == "CAST" || name == "try_cast" {
			f := castTo(m[1])
			if name == "try_cast" {
				f = "try_" + f
			}
			x := strings.TrimSpace(inner)
			return set(CodeOperands, "a cast is a function with the name of its type", "so it takes one value and no `as`", fmt.Sprintf("`%s(%s)`", f, x), open-len(name), len(before)+len(m[0]), f+"("+x+")")
		}
	case word == "," && open >= 0 && !callParen(text[:open]):
		end := closeParen(text, open)
		if end < 0 {
			return false
		}
		list := text[open+1 : end]
		switch prev := strings.TrimRight(text[:open], " \t\r\n"); {
		case strings.HasSuffix(prev, " in") || prev == "in":
			return set(CodeOperand, "a list is written in brackets", "parentheses hold one value", fmt.Sprintf("`[%s]`", list), open, end+1, "["+list+"]")
		case prev == "" && strings.TrimSpace(text[end+1:]) == "":
			return set(CodeOperand, "parentheses hold one value", "a list of columns has none", fmt.Sprintf("`%s`", list), open, end+1, list)
		}
		e.Code, e.Message, e.Reason, e.Fix = CodeOperand, "parentheses hold one value", "a list is written in brackets", fmt.Sprintf("`[%s]`", list)
		return true
	case word == ">" && arrowFunction.MatchString(trimmed), word == "=" && strings.HasPrefix(rest, "=>"):
		e.Code, e.Message, e.Reason, e.Fix = CodeOperand, "a closure has no parameter", "the element is called `#`", "`filter(xs, # > 1)`"
		return true
	}
	return false
}

// openParen is the last ( that is not closed at the end of text, or -1, and what follows it.
func openParen(text string) (at int, inner string) {
	depth := 0
	for i := len(text) - 1; i >= 0; i-- {
		switch text[i] {
		case ')', ']', '}':
			depth++
		case '(', '[', '{':
			if depth == 0 {
				if text[i] == '(' {
					return i, text[i+1:]
				}
				return -1, ""
			}
			depth--
		}
	}
	return -1, ""
}

// closeParen is the ) that closes the ( at byte open, or -1. Brackets in strings are not looked for: a
// wrong end only costs the hint.
func closeParen(text string, open int) int {
	depth := 0
	for i := open; i < len(text); i++ {
		switch text[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// callParen says whether a ( after text begins the arguments of a call.
func callParen(text string) bool {
	w := lastWord(strings.TrimRight(text, " \t\r\n"))
	return w != ""
}

// castTo is the cast to a type of another language.
func castTo(t string) string {
	switch t = strings.ToLower(t); t {
	case "text", "varchar", "str", "char":
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
