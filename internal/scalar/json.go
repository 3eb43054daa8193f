package scalar

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// resolveJSON makes json(s, path, T): the value at a path of a JSON text, read as type T (a constant
// string such as "int64" or "list<string>"). A missing or null value is null. For the path see jsonPath.
func resolveJSON(name string, args []Arg) (*Func, error) {
	f, err := sig("szz", Type{}, nil)(name, args)
	if err != nil {
		return nil, err
	}
	typeText, _ := constString(args[2])
	t, known := ParseType(typeText)
	if !known {
		return nil, fail(name, 2, fmt.Sprintf("no type `%s`", typeText), "write a type such as `int64` or `list<string>`")
	}
	pathText, _ := constString(args[1])
	path, why := jsonPath(pathText)
	if why != "" {
		return nil, fail(name, 1, why, "a path is written `a.b[0].c`, a name with a dot in it `a[\"b.c\"]`")
	}
	f.Result = t.Null()
	f.Eval = func(v []Value) (Value, Code) {
		r, c := FromJSON(v[0].S, path, t)
		switch c {
		case CodeUnparsable, CodeWrongType, CodeNull: // these are about records of a topic
			c = CodeBadCast
		}
		return r, c
	}
	return f, nil
}

// jsonPath splits a path: member names joined by dots, `[0]` or `.0` for an element of an array, `["a.b"]`
// for any name. "" is the whole text. why says what is wrong with it, "" if nothing.
func jsonPath(text string) (path []string, why string) {
	rest := text
	for rest != "" {
		if rest[0] == '[' {
			end := strings.IndexByte(rest, ']')
			if len(rest) > 1 && rest[1] == '"' {
				if end = strings.Index(rest[2:], `"]`); end >= 0 {
					path, rest = append(path, rest[2:2+end]), rest[2+end+2:]
				}
			} else if end > 0 {
				n, err := strconv.Atoi(rest[1:end])
				if err != nil || n < 0 {
					return nil, fmt.Sprintf("`[%s]` in the path is no number of an element", rest[1:end])
				}
				path, rest = append(path, strconv.Itoa(n)), rest[end+1:]
			}
			if end < 0 {
				return nil, fmt.Sprintf("`%s` in the path has no end", rest)
			}
		} else {
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			switch name := rest[:end]; {
			case name == "":
				return nil, "the path has an empty name"
			case name == "$" && len(path) == 0:
				return nil, "the path begins inside the text, without `$`"
			default:
				path, rest = append(path, name), rest[end:]
			}
		}
		switch {
		case rest == "" || rest[0] == '[':
		case rest[0] != '.':
			return nil, fmt.Sprintf("`%s` in the path needs a dot before it", rest)
		case rest == ".":
			return nil, "the path ends with a dot"
		default:
			rest = rest[1:]
		}
	}
	return path, ""
}

// FromJSON reads the value at path of a JSON text as type t. The whole text must be JSON.
//
// Errors: CodeUnparsable if it is not; CodeWrongType if the value is of another type; the code of the
// cast if its text does not fit t.
func FromJSON(s string, path []string, t Type) (Value, Code) {
	p := jsonScanner{s: s}
	at, ok := p.find(path, 0)
	p.space()
	if !ok || p.i != len(s) {
		return Null, CodeUnparsable
	}
	if at < 0 {
		return Null, CodeNone
	}
	p.i = at
	return p.read(t, 0)
}

// maxJSONDepth bounds nesting.
const maxJSONDepth = 128

type jsonScanner struct {
	s string
	i int
}

func (p *jsonScanner) space() {
	for p.i < len(p.s) {
		switch p.s[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

func (p *jsonScanner) peek() byte {
	p.space()
	if p.i < len(p.s) {
		return p.s[p.i]
	}
	return 0
}

func (p *jsonScanner) eat(c byte) bool {
	if p.peek() == c && p.i < len(p.s) {
		p.i++
		return true
	}
	return false
}

// find passes over one value and gives the place of the value at path inside it, or -1.
func (p *jsonScanner) find(path []string, depth int) (int, bool) {
	if depth > maxJSONDepth {
		return -1, false
	}
	c := p.peek()
	found := -1
	if len(path) == 0 {
		found = p.i
	}
	switch c {
	case '{':
		p.i++
		if p.eat('}') {
			return found, true
		}
		for {
			if p.peek() != '"' {
				return -1, false
			}
			key, ok := p.str()
			if !ok || !p.eat(':') {
				return -1, false
			}
			var sub []string
			match := len(path) > 0 && key == path[0]
			if match {
				sub = path[1:]
			}
			at, ok := p.find(sub, depth+1)
			if !ok {
				return -1, false
			}
			if match {
				found = at // the last of equal names wins
			}
			if p.eat(',') {
				continue
			}
			return found, p.eat('}')
		}
	case '[':
		p.i++
		if p.eat(']') {
			return found, true
		}
		for n := 0; ; n++ {
			var sub []string
			match := len(path) > 0 && path[0] == strconv.Itoa(n)
			if match {
				sub = path[1:]
			}
			at, ok := p.find(sub, depth+1)
			if !ok {
				return -1, false
			}
			if match {
				found = at
			}
			if p.eat(',') {
				continue
			}
			return found, p.eat(']')
		}
	case '"':
		_, ok := p.str()
		return found, ok
	case 't':
		return found, p.word("true")
	case 'f':
		return found, p.word("false")
	case 'n':
		return found, p.word("null")
	}
	_, ok := p.number()
	return found, ok
}

func (p *jsonScanner) word(w string) bool {
	if strings.HasPrefix(p.s[p.i:], w) {
		p.i += len(w)
		return true
	}
	return false
}

func (p *jsonScanner) digits() bool {
	start := p.i
	for p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9' {
		p.i++
	}
	return p.i > start
}

func (p *jsonScanner) number() (string, bool) {
	start := p.i
	if p.i < len(p.s) && p.s[p.i] == '-' {
		p.i++
	}
	if p.i < len(p.s) && p.s[p.i] == '0' {
		p.i++
	} else if !p.digits() {
		return "", false
	}
	if p.i < len(p.s) && p.s[p.i] == '.' {
		p.i++
		if !p.digits() {
			return "", false
		}
	}
	if p.i < len(p.s) && p.s[p.i]|0x20 == 'e' {
		p.i++
		if p.i < len(p.s) && (p.s[p.i] == '+' || p.s[p.i] == '-') {
			p.i++
		}
		if !p.digits() {
			return "", false
		}
	}
	return p.s[start:p.i], true
}

// str reads a string that begins at the quote. It must be UTF-8.
func (p *jsonScanner) str() (string, bool) {
	p.i++
	start := p.i
	for p.i < len(p.s) {
		switch c := p.s[p.i]; {
		case c == '"':
			p.i++
			s := p.s[start : p.i-1]
			return s, utf8.ValidString(s)
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", false
		}
		p.i++
	}
	return "", false
}

func (p *jsonScanner) escaped(start int) (string, bool) {
	b := []byte(p.s[start:p.i])
	for p.i < len(p.s) {
		c := p.s[p.i]
		p.i++
		switch {
		case c == '"':
			return string(b), utf8.Valid(b)
		case c < 0x20:
			return "", false
		case c != '\\':
			b = append(b, c)
			continue
		}
		if p.i == len(p.s) {
			return "", false
		}
		c = p.s[p.i]
		p.i++
		switch c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r, ok := p.hex4()
			if !ok {
				return "", false
			}
			if utf16.IsSurrogate(r) {
				save := p.i
				r2 := rune(0)
				if strings.HasPrefix(p.s[p.i:], `\u`) {
					p.i += 2
					if r2, ok = p.hex4(); !ok {
						return "", false
					}
				}
				if d := utf16.DecodeRune(r, r2); d != utf8.RuneError {
					r = d
				} else {
					p.i, r = save, utf8.RuneError
				}
			}
			b = utf8.AppendRune(b, r)
		default:
			return "", false
		}
	}
	return "", false
}

func (p *jsonScanner) hex4() (rune, bool) {
	if len(p.s)-p.i < 4 {
		return 0, false
	}
	u, err := strconv.ParseUint(p.s[p.i:p.i+4], 16, 16)
	p.i += 4
	return rune(u), err == nil
}

// read takes one value, known to be well-formed, as type t.
func (p *jsonScanner) read(t Type, depth int) (Value, Code) {
	c := p.peek()
	if c == 'n' {
		p.word("null")
		return Null, CodeNone
	}
	wrong := func() (Value, Code) { return Null, CodeWrongType }
	switch k := t.Kind; {
	case k == KindBool:
		switch {
		case p.word("true"):
			return Bool(true), CodeNone
		case p.word("false"):
			return Bool(false), CodeNone
		}
		return wrong()
	case k.Numeric():
		if c == '"' || c == '{' || c == '[' || c == 't' || c == 'f' {
			return wrong()
		}
		num, _ := p.number()
		return numberAs(num, t)
	case k == KindString:
		if c != '"' {
			return wrong()
		}
		s, _ := p.str()
		return String(s), CodeNone
	case k == KindBytes:
		if c != '"' {
			return wrong()
		}
		s, _ := p.str()
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return Null, CodeBadCast
		}
		return Bytes(string(b)), CodeNone
	case k == KindTime || k == KindDate || k == KindDuration:
		if c != '"' {
			return wrong()
		}
		s, _ := p.str()
		return Cast(String(s), TypeString, t)
	case k == KindList:
		return p.readList(t, depth)
	case k == KindMap || k == KindStruct:
		return p.readObject(t, depth)
	}
	return wrong()
}

func numberAs(num string, t Type) (Value, Code) {
	switch k := t.Kind; {
	case k.Integer():
		// 1.0 and 1e3 are integers too.
		i, ok := ParseInt(num, k)
		if !ok {
			d, _, s, parsed := ParseDecimal(num)
			if !parsed {
				return Null, CodeBadCast
			}
			q, r := d.QuoRem(pow10[s])
			if !r.IsZero() {
				return Null, CodeBadCast
			}
			if i, ok = DecimalToInt(q, 0, k); !ok {
				return Null, CodeBadCast
			}
		}
		return Value{Kind: k, I: i}, CodeNone
	case k.Float():
		f, ok := ParseFloat(num, k)
		if !ok {
			return Null, CodeBadCast
		}
		return Value{Kind: k, F: f}, CodeNone
	}
	d, c := ParseDecimalAs(num, t.Precision, t.Scale)
	if c != CodeNone {
		return Null, c
	}
	return Decimal(d), CodeNone
}

func (p *jsonScanner) readList(t Type, depth int) (Value, Code) {
	if p.peek() != '[' {
		return Null, CodeWrongType
	}
	p.i++
	l := []Value{}
	if p.eat(']') {
		return Value{Kind: KindList, L: l}, CodeNone
	}
	for {
		v, c := p.read(*t.Elem, depth+1)
		if c != CodeNone {
			return Null, c
		}
		if v.IsNull() && !t.Elem.Nullable {
			return Null, CodeNull
		}
		if len(l) == MaxElements {
			return Null, CodeLimit
		}
		l = append(l, v)
		if !p.eat(',') {
			p.eat(']')
			return Value{Kind: KindList, L: l}, CodeNone
		}
	}
}

func (p *jsonScanner) readObject(t Type, depth int) (Value, Code) {
	if p.peek() != '{' {
		return Null, CodeWrongType
	}
	p.i++
	var keys []Value
	vals := make([]Value, 0, len(t.Fields))
	for range t.Fields {
		vals = append(vals, Null)
	}
	for first := true; ; first = false {
		if first && p.eat('}') {
			break
		}
		p.space()
		name, _ := p.str()
		p.eat(':')
		ft, slot := t.Elem, -1
		if t.Kind == KindStruct {
			if slot = t.FieldIndex(name); slot >= 0 {
				ft = &t.Fields[slot].Type
			}
		}
		if t.Kind == KindStruct && slot < 0 {
			if _, ok := p.find([]string{""}, depth+1); !ok {
				return Null, CodeUnparsable
			}
		} else {
			v, c := p.read(*ft, depth+1)
			if c != CodeNone {
				return Null, c
			}
			if t.Kind == KindStruct {
				vals[slot] = v
			} else {
				if v.IsNull() && !t.Elem.Nullable {
					return Null, CodeNull
				}
				k, c := Cast(String(name), TypeString, *t.Key)
				if c != CodeNone {
					return Null, c
				}
				if len(keys) == MaxElements {
					return Null, CodeLimit
				}
				keys, vals = append(keys, k), append(vals, v)
			}
		}
		if !p.eat(',') {
			p.eat('}')
			break
		}
	}
	if t.Kind == KindMap {
		return Map(keys, vals), CodeNone
	}
	for i, f := range t.Fields {
		if vals[i].IsNull() && !f.Type.Nullable {
			return Null, CodeNull
		}
	}
	return Value{Kind: KindStruct, L: vals}, CodeNone
}
