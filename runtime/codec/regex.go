package codec

import (
	"fmt"
	"regexp"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// compile readies the pattern of a topic. Errors: ErrTopic.
func (d *Decoder) compile(t *plan.Topic) error {
	re, err := regexp.Compile(t.Pattern)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrTopic, t.Name, err)
	}
	d.regex, d.groups = re, make([]int, len(t.Schema.Columns))
	for i, c := range t.Schema.Columns {
		if d.groups[i] = re.SubexpIndex(inputName(c)); d.groups[i] < 0 {
			return fmt.Errorf("%w: %s: the pattern has no group %s", ErrTopic, t.Name, inputName(c))
		}
	}
	return nil
}

func (d *Decoder) decodeRegex(value []byte) bool {
	p := &d.parse
	if value == nil {
		return p.fail(scalar.CodeUnparsable, "the record has no value")
	}
	at := d.regex.FindSubmatchIndex(value)
	if at == nil {
		return p.fail(scalar.CodeUnparsable, "the pattern does not match")
	}
	for i, c := range d.columns {
		if c == nil {
			continue
		}
		g := d.groups[i]
		f := csvField{}
		if from := at[2*g]; from >= 0 {
			f = csvField{text: value[from:at[2*g+1]], quoted: c.kind == scalar.KindString}
		} else if !c.null {
			return p.fail(scalar.CodeNull, "column %s: its group took no part in the match, and it is not nullable", c.name)
		}
		if !p.field(c, f) {
			return false
		}
	}
	return true
}

func (d *Decoder) decodeLine(value []byte) bool {
	p, c := &d.parse, d.columns[0]
	switch {
	case c == nil:
		return true
	case value == nil && c.null:
		c.appendNull()
		return true
	case value == nil:
		return p.fail(scalar.CodeNull, "the record has no value, and column %s is not nullable", c.name)
	case c.kind == scalar.KindBytes:
		return c.appendBytes(value) || p.tooLarge(c)
	}
	return p.field(c, csvField{text: value, quoted: true})
}
