package syntax

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// markEvery is the distance in bytes of the rune counts a source keeps: turning bytes to runes and back
// costs one scan of at most that many bytes.
const markEvery = 256

// A source is a text with its lines and runes counted. It is immutable.
type source struct {
	text  string
	lines []int // byte offset of each line's start
	marks []int // marks[i]: runes before the first rune that starts at or after byte i*markEvery
	ascii bool
}

func newSource(text string) *source {
	s := &source{text: text, lines: []int{0}, ascii: true}
	runes := 0
	for i, r := range text {
		for len(s.marks)*markEvery <= i {
			s.marks = append(s.marks, runes)
		}
		runes++
		if r >= utf8.RuneSelf {
			s.ascii = false
		}
		if r == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

func (s *source) clamp(pos int) int { return max(0, min(pos, len(s.text))) }

func (s *source) runeOffset(pos int) int {
	pos = s.clamp(pos)
	if s.ascii {
		return pos
	}
	i := pos / markEvery
	if i >= len(s.marks) {
		i = len(s.marks) - 1
	}
	start := s.runeStart(i * markEvery)
	if start > pos {
		return s.marks[i]
	}
	return s.marks[i] + utf8.RuneCountInString(s.text[start:pos])
}

// runeStart is the first byte at or after pos where a rune starts. Parse refuses text that is not UTF-8.
func (s *source) runeStart(pos int) int {
	for pos < len(s.text) && !utf8.RuneStart(s.text[pos]) {
		pos++
	}
	return pos
}

func (s *source) byteOffset(runes int) int {
	if s.ascii {
		return s.clamp(runes)
	}
	i := sort.Search(len(s.marks), func(i int) bool { return s.marks[i] > runes }) - 1
	if i < 0 {
		return 0
	}
	pos := s.runeStart(i * markEvery)
	for n := s.marks[i]; n < runes && pos < len(s.text); n++ {
		_, size := utf8.DecodeRuneInString(s.text[pos:])
		pos += size
	}
	return pos
}

func (s *source) lineCol(pos int) (line, col int) {
	pos = s.clamp(pos)
	line = sort.SearchInts(s.lines, pos+1)
	return line, s.runeOffset(pos) - s.runeOffset(s.lines[line-1]) + 1
}

func (s *source) lineText(line int) string {
	if line < 1 || line > len(s.lines) {
		return ""
	}
	end := len(s.text)
	if line < len(s.lines) {
		end = s.lines[line] - 1
	}
	return strings.TrimSuffix(s.text[s.lines[line-1]:end], "\r")
}
