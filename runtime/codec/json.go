package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/headrace/headrace/internal/scalar"
)

// maxDepth bounds the nesting of objects and lists in a record.
const maxDepth = 128

// A parser reads the JSON text of one record after the other. All of its methods answer whether to go
// on; when not, code and detail say why.
type parser struct {
	b       []byte
	at      int
	code    scalar.Code
	detail  string
	scratch []byte // the last string, if it had escapes
}

func (p *parser) ok() { p.code, p.detail = scalar.CodeNone, "" }

func (p *parser) fail(code scalar.Code, format string, args ...any) bool {
	p.code, p.detail = code, fmt.Sprintf(format, args...)
	return false
}

// syntax fails because the text is no JSON at the current byte.
func (p *parser) syntax(want string) bool {
	if p.at >= len(p.b) {
		return p.fail(scalar.CodeUnparsable, "not JSON: the text ends where %s should follow", want)
	}
	r, _ := utf8.DecodeRune(p.b[p.at:])
	return p.fail(scalar.CodeUnparsable, "not JSON: %q at byte %d where %s should be", r, p.at, want)
}

// mismatch fails because the value at hand, which starts at byte from, has another type than c.
func (p *parser) mismatch(c *column, from int) bool {
	what := "a value"
	if from < len(p.b) {
		switch b := p.b[from]; {
		case b == '"':
			what = "a string"
		case b == '{':
			what = "an object"
		case b == '[':
			what = "a list"
		case b == 't' || b == 'f':
			what = "a bool"
		case b == '-' || b >= '0' && b <= '9':
			what = "a number"
		default:
			return p.syntax("a value")
		}
	}
	want := c.t
	want.Nullable = false
	hint := ""
	if c.kind == scalar.KindTime && what == "a number" {
		hint = "; a number of units needs time(\"ms\") or the like"
	}
	return p.fail(scalar.CodeWrongType, "column %s: %s, want %s%s", c.name, what, want, hint)
}

func (p *parser) space() {
	for p.at < len(p.b) {
		if c := p.b[p.at]; c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return
		}
		p.at++
	}
}

// record reads the value of a record: one object.
func (p *parser) record(o *object, value []byte) bool {
	p.b, p.at = value, 0
	p.space()
	if p.at >= len(p.b) {
		if value == nil {
			return p.fail(scalar.CodeUnparsable, "the record has no value")
		}
		return p.syntax("an object")
	}
	if p.b[p.at] != '{' {
		return p.syntax("an object")
	}
	if !p.object(o, "") {
		return false
	}
	p.space()
	if p.at < len(p.b) {
		return p.syntax("the end")
	}
	return true
}

// object reads an object, from its brace on, into the fields of o: one value each.
func (p *parser) object(o *object, name string) bool {
	p.at++
	o.serial++
	serial := o.serial
	p.space()
	if p.at < len(p.b) && p.b[p.at] == '}' {
		p.at++
		return p.missing(o, serial)
	}
	for k := 0; ; k++ {
		field := -1
		if k < len(o.order) && len(o.order[k].text) > 0 && bytes.HasPrefix(p.b[p.at:], o.order[k].text) {
			field = o.order[k].field
			p.at += len(o.order[k].text)
		} else {
			var good bool
			if field, good = p.member(o, k); !good {
				return false
			}
		}
		if p.at >= len(p.b) || p.b[p.at] != ':' {
			if p.space(); p.at >= len(p.b) || p.b[p.at] != ':' {
				return p.syntax("`:`")
			}
		}
		p.at++
		p.space()
		if field >= 0 && o.fields[field] != nil {
			c := o.fields[field]
			if o.seen[field] == serial { // a second member of that name: the last wins
				c.truncate(c.n - 1)
			}
			o.seen[field] = serial
			if !p.value(c) {
				return false
			}
		} else if !p.skip(1) {
			return false
		}
		if p.at >= len(p.b) || p.b[p.at] > '}' {
			return p.syntax("`,` or `}`")
		}
		if p.b[p.at] <= ' ' {
			p.space()
		}
		if p.at >= len(p.b) {
			return p.syntax("`,` or `}`")
		}
		switch p.b[p.at] {
		case ',':
			p.at++
			p.space()
		case '}':
			p.at++
			return p.missing(o, serial)
		default:
			return p.syntax("`,` or `}`")
		}
	}
}

// member reads a name that is not the expected one and finds its field, -1 if it has none.
func (p *parser) member(o *object, k int) (field int, good bool) {
	from := p.at
	if from >= len(p.b) || p.b[from] != '"' {
		return -1, p.syntax("a name in quotes")
	}
	name, escaped, good := p.str()
	if !good {
		return -1, false
	}
	field, known := o.index[string(name)]
	if !known {
		field = -1
	}
	if !escaped {
		o.learn(k, p.b[from:p.at], field)
	}
	return field, true
}

// missing gives the fields that the object did not have a null.
func (p *parser) missing(o *object, serial uint64) bool {
	for _, i := range o.need {
		if o.seen[i] == serial {
			continue
		}
		c := o.fields[i]
		if !c.null {
			return p.fail(scalar.CodeNull, "column %s is missing and not nullable", c.name)
		}
		c.appendNull()
	}
	return true
}

// value reads a value into c.
func (p *parser) value(c *column) bool {
	if p.at >= len(p.b) {
		return p.syntax("a value")
	}
	from := p.at
	b := p.b[from]
	if b == 'n' {
		if !p.literal("null") {
			return false
		}
		if !c.null {
			return p.fail(scalar.CodeNull, "column %s is null and not nullable", c.name)
		}
		c.appendNull()
		return true
	}
	switch c.kind {
	case scalar.KindString:
		if b != '"' {
			return p.mismatch(c, from)
		}
		s, _, ok := p.text(c)
		if !ok {
			return false
		}
		return c.appendBytes(s) || p.tooLarge(c)
	case scalar.KindBool:
		switch {
		case b == 't':
			c.appendWord(1)
			return p.literal("true")
		case b == 'f':
			c.appendWord(0)
			return p.literal("false")
		}
		return p.mismatch(c, from)
	case scalar.KindList:
		if b != '[' {
			return p.mismatch(c, from)
		}
		return p.list(c)
	case scalar.KindMap:
		if b != '{' {
			return p.mismatch(c, from)
		}
		return p.mapping(c)
	case scalar.KindStruct:
		if b != '{' {
			return p.mismatch(c, from)
		}
		if !p.object(c.fields, c.name) {
			return false
		}
		c.n++
		return true
	case scalar.KindBytes, scalar.KindDuration, scalar.KindDate, scalar.KindTime:
		if c.layout.unit == 0 {
			if b != '"' {
				return p.mismatch(c, from)
			}
			s, _, ok := p.text(c)
			return ok && p.fromText(c, s)
		}
	}
	if b != '-' && (b < '0' || b > '9') {
		return p.mismatch(c, from)
	}
	var n number
	if !p.number(&n) {
		return false
	}
	return p.fromNumber(c, &n)
}

func (p *parser) tooLarge(c *column) bool {
	return p.fail(scalar.CodeLimit, "column %s: more than 2 GiB in one batch", c.name)
}

func (p *parser) literal(word string) bool {
	if len(p.b)-p.at < len(word) || string(p.b[p.at:p.at+len(word)]) != word {
		return p.syntax("a value")
	}
	p.at += len(word)
	return true
}

func (p *parser) list(c *column) bool {
	p.at++
	p.space()
	e := c.elems[0]
	if p.at < len(p.b) && p.b[p.at] == ']' {
		p.at++
		c.offsets = append(c.offsets, int32(e.n))
		c.n++
		return true
	}
	for {
		if !p.value(e) {
			return false
		}
		p.space()
		if p.at >= len(p.b) || p.b[p.at] != ',' && p.b[p.at] != ']' {
			return p.syntax("`,` or `]`")
		}
		p.at++
		if p.b[p.at-1] == ']' {
			c.offsets = append(c.offsets, int32(e.n))
			c.n++
			return true
		}
		p.space()
	}
}

// mapping reads an object into a map. Of equal names the last wins, when the map is read.
func (p *parser) mapping(c *column) bool {
	p.at++
	p.space()
	k, v := c.elems[0], c.elems[1]
	if p.at < len(p.b) && p.b[p.at] == '}' {
		p.at++
	} else {
		for {
			if p.at >= len(p.b) || p.b[p.at] != '"' {
				return p.syntax("a name in quotes")
			}
			name, _, ok := p.text(k)
			if !ok || !p.fromText(k, name) {
				return false
			}
			p.space()
			if p.at >= len(p.b) || p.b[p.at] != ':' {
				return p.syntax("`:`")
			}
			p.at++
			p.space()
			if !p.value(v) {
				return false
			}
			p.space()
			if p.at >= len(p.b) || p.b[p.at] != ',' && p.b[p.at] != '}' {
				return p.syntax("`,` or `}`")
			}
			p.at++
			if p.b[p.at-1] == '}' {
				break
			}
			p.space()
		}
	}
	c.offsets = append(c.offsets, int32(k.n))
	c.n++
	return true
}

// text reads a string for column c, which must be UTF-8. The bytes are valid until the next string.
func (p *parser) text(c *column) (s []byte, escaped, ok bool) {
	s, escaped, ok = p.str()
	if ok && !ascii(s) && !utf8.Valid(s) {
		return nil, false, p.fail(scalar.CodeUnparsable, "column %s: the text is not UTF-8", c.name)
	}
	return s, escaped, ok
}

func ascii(s []byte) bool {
	for ; len(s) >= 8; s = s[8:] {
		if binary.LittleEndian.Uint64(s)&tops != 0 {
			return false
		}
	}
	for _, b := range s {
		if b >= 0x80 {
			return false
		}
	}
	return true
}

const ones, tops = 0x0101010101010101, 0x8080808080808080

// special marks, by its top bit, the first byte of w that is a quote, a backslash or a control
// character. Bytes above the first mark may be marked wrongly.
func special(w uint64) uint64 {
	q, b := w^ones*'"', w^ones*'\\'
	return ((q-ones)&^q | (b-ones)&^b | (w-ones*0x20)&^w) & tops
}

// run moves past bytes that stand for themselves in a string, to a quote, backslash or control
// character, or the end.
func (p *parser) run() {
	b, at := p.b, p.at
	for len(b)-at >= 8 {
		if m := special(binary.LittleEndian.Uint64(b[at:])); m != 0 {
			p.at = at + bits.TrailingZeros64(m)>>3
			return
		}
		at += 8
	}
	for at < len(b) && b[at] != '"' && b[at] != '\\' && b[at] >= 0x20 {
		at++
	}
	p.at = at
}

// str reads a string from its quote on. The bytes are part of the record, or p.scratch if there were
// escapes.
func (p *parser) str() (s []byte, escaped, ok bool) {
	p.at++
	from := p.at
	p.run()
	if p.at < len(p.b) && p.b[p.at] == '"' {
		p.at++
		return p.b[from : p.at-1], false, true
	}
	p.scratch = append(p.scratch[:0], p.b[from:p.at]...)
	for {
		if p.at >= len(p.b) {
			return nil, true, p.syntax("the end of a string")
		}
		switch p.b[p.at] {
		case '"':
			p.at++
			return p.scratch, true, true
		case '\\':
			if !p.escape() {
				return nil, true, false
			}
		default:
			return nil, true, p.syntax("no control character")
		}
		from = p.at
		p.run()
		p.scratch = append(p.scratch, p.b[from:p.at]...)
	}
}

// escape appends what an escape stands for to p.scratch. A surrogate without its other half becomes
// U+FFFD.
func (p *parser) escape() bool {
	p.at++
	if p.at >= len(p.b) {
		return p.syntax("an escape")
	}
	c := p.b[p.at]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		r, ok := hex4(p.b[p.at+1:])
		if !ok {
			return p.syntax("a valid escape")
		}
		p.at += 5
		if utf16.IsSurrogate(r) {
			low := rune(-1)
			if rest := p.b[p.at:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
				if l, ok := hex4(rest[2:]); ok {
					low = l
				}
			}
			r = utf16.DecodeRune(r, low)
			if r != utf8.RuneError {
				p.at += 6
			}
		}
		p.scratch = utf8.AppendRune(p.scratch, r)
		return true
	default:
		return p.syntax("a valid escape")
	}
	p.at++
	p.scratch = append(p.scratch, c)
	return true
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// skip moves past a value that no column wants.
func (p *parser) skip(depth int) bool {
	if p.at >= len(p.b) {
		return p.syntax("a value")
	}
	switch b := p.b[p.at]; {
	case b == '"':
		return p.skipString()
	case b == '-' || b >= '0' && b <= '9':
		return p.skipNumber()
	case b == '{' || b == '[':
		if depth >= maxDepth {
			return p.fail(scalar.CodeUnparsable, "nested deeper than %d at byte %d", maxDepth, p.at)
		}
		return p.skipNested(depth, b+2) // '}' and ']'
	case b == 't':
		return p.literal("true")
	case b == 'f':
		return p.literal("false")
	case b == 'n':
		return p.literal("null")
	}
	return p.syntax("a value")
}

func (p *parser) skipString() bool {
	p.at++
	for {
		p.run()
		if p.at >= len(p.b) {
			return p.syntax("the end of a string")
		}
		switch p.b[p.at] {
		case '"':
			p.at++
			return true
		case '\\':
			p.scratch = p.scratch[:0]
			if !p.escape() {
				return false
			}
		default:
			return p.syntax("no control character")
		}
	}
}

func (p *parser) skipNested(depth int, end byte) bool {
	p.at++
	p.space()
	if p.at < len(p.b) && p.b[p.at] == end {
		p.at++
		return true
	}
	for {
		if end == '}' {
			if p.at >= len(p.b) || p.b[p.at] != '"' {
				return p.syntax("a name in quotes")
			}
			if !p.skipString() {
				return false
			}
			p.space()
			if p.at >= len(p.b) || p.b[p.at] != ':' {
				return p.syntax("`:`")
			}
			p.at++
			p.space()
		}
		if !p.skip(depth + 1) {
			return false
		}
		p.space()
		if p.at >= len(p.b) || p.b[p.at] != ',' && p.b[p.at] != end {
			return p.syntax("`,` or `" + string(rune(end)) + "`")
		}
		p.at++
		if p.b[p.at-1] == end {
			return true
		}
		p.space()
	}
}
