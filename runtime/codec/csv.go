package codec

import (
	"bytes"

	"github.com/headrace/headrace/internal/scalar"
)

// A csvLine is one line taken apart into fields.
type csvLine struct {
	fields []csvField
	buf    []byte // quoted fields that had quotes in them
}

type csvField struct {
	text   []byte
	quoted bool
}

// split takes a line apart as encoding/csv does, with one exception: a quoted field remembers that it
// was. A line break at the end is not part of the line; others only stand in quotes. It answers the
// reason why the line is no CSV, or "".
func (l *csvLine) split(line []byte) (reason string) {
	l.fields = l.fields[:0]
	line = bytes.TrimSuffix(line, []byte{'\n'})
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if bytes.IndexByte(line, '"') < 0 {
		if bytes.IndexByte(line, '\n') >= 0 {
			return "more than one line"
		}
		for {
			i := bytes.IndexByte(line, ',')
			if i < 0 {
				l.fields = append(l.fields, csvField{text: line})
				return ""
			}
			l.fields = append(l.fields, csvField{text: line[:i]})
			line = line[i+1:]
		}
	}
	l.buf = l.buf[:0]
	if cap(l.buf) < len(line) {
		l.buf = make([]byte, 0, 2*len(line)) // never grows while fields point into it
	}
	for {
		if len(line) == 0 || line[0] != '"' {
			i := bytes.IndexByte(line, ',')
			text := line
			if i >= 0 {
				text = line[:i]
			}
			switch {
			case bytes.IndexByte(text, '"') >= 0:
				return "a quote in a field without quotes"
			case bytes.IndexByte(text, '\n') >= 0:
				return "more than one line"
			}
			l.fields = append(l.fields, csvField{text: text})
			if i < 0 {
				return ""
			}
			line = line[i+1:]
			continue
		}
		line = line[1:]
		from := len(l.buf)
		for {
			i := bytes.IndexByte(line, '"')
			if i < 0 {
				return "a quoted field without its end"
			}
			l.buf = append(l.buf, line[:i]...)
			line = line[i+1:]
			if len(line) == 0 || line[0] != '"' {
				break
			}
			l.buf = append(l.buf, '"')
			line = line[1:]
		}
		l.fields = append(l.fields, csvField{text: l.buf[from:len(l.buf):len(l.buf)], quoted: true})
		switch {
		case len(line) == 0:
			return ""
		case line[0] != ',':
			return "text after a quoted field"
		}
		line = line[1:]
	}
}

func (d *Decoder) decodeCSV(value []byte) bool {
	p := &d.parse
	if value == nil {
		return p.fail(scalar.CodeUnparsable, "the record has no value")
	}
	if reason := d.line.split(value); reason != "" {
		return p.fail(scalar.CodeUnparsable, "not a CSV line: %s", reason)
	}
	if n := len(d.line.fields); n != len(d.columns) {
		return p.fail(scalar.CodeUnparsable, "%d fields, the topic has %d columns", n, len(d.columns))
	}
	for i, c := range d.columns {
		if c != nil && !p.field(c, d.line.fields[i]) {
			return false
		}
	}
	return true
}

// field reads a CSV field into c.
func (p *parser) field(c *column, f csvField) bool {
	if len(f.text) == 0 && !f.quoted {
		switch {
		case c.null:
			c.appendNull()
			return true
		case c.kind != scalar.KindString:
			return p.fail(scalar.CodeNull, "column %s is empty and not nullable", c.name)
		}
	}
	switch c.kind {
	case scalar.KindString:
		if !ascii(f.text) && !validUTF8(f.text) {
			return p.fail(scalar.CodeUnparsable, "column %s: the text is not UTF-8", c.name)
		}
		return c.appendBytes(f.text) || p.tooLarge(c)
	case scalar.KindList, scalar.KindMap, scalar.KindStruct:
		p.b, p.at = f.text, 0
		p.space()
		if !p.value(c) {
			return false
		}
		if p.space(); p.at < len(p.b) {
			return p.syntax("the end")
		}
		return true
	}
	if c.kind == scalar.KindTime && c.layout.unit != 0 {
		return p.numberText(c, f.text)
	}
	return p.fromText(c, f.text)
}
