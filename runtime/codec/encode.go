package codec

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

func validUTF8(b []byte) bool { return utf8.Valid(b) }

// An Encoder writes the values of a topic's records: JSON objects with the columns in order (of format arrow
// too), CSV lines without a line break, or the one column of a topic of lines (a null is no value: nil). What it writes, a
// Decoder of the same topic reads back.
type Encoder struct {
	format plan.Format
	cells  []cell
}

// A cell writes one column or a nested part of one.
type cell struct {
	t      scalar.Type
	layout timeLayout
	prefix []byte // `{"name":` or `,"name":`
	parts  []cell // of a struct its fields, of a list or map its element, where these need more than the type
}

// NewEncoder makes an encoder of the topic's format. Errors: ErrTopic.
func NewEncoder(t *plan.Topic) (*Encoder, error) {
	e := &Encoder{format: t.Format}
	switch t.Format {
	case plan.FormatJSON, plan.FormatCSV, plan.FormatArrow, plan.FormatLines:
	case plan.FormatRaw:
		if len(t.Schema.Columns) == 0 {
			t = &plan.Topic{Name: t.Name, Schema: RawSchema()}
		}
	default:
		return nil, fmt.Errorf("%w: %s has format %d", ErrTopic, t.Name, t.Format)
	}
	for i, c := range t.Schema.Columns {
		cl, err := newCell(c)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: column %s: %w", ErrTopic, t.Name, c.Name, err)
		}
		cl.prefix = prefixOf(i, inputName(c))
		e.cells = append(e.cells, cl)
	}
	if t.Format == plan.FormatRaw && (len(e.cells) != 2 || e.cells[1].t.Kind != scalar.KindBytes) {
		return nil, fmt.Errorf("%w: %s has a schema but no format", ErrTopic, t.Name)
	}
	return e, nil
}

func prefixOf(i int, name string) []byte {
	b := []byte{'{'}
	if i > 0 {
		b[0] = ','
	}
	return append(scalar.AppendJSONString(b, name), ':')
}

func newCell(c plan.Column) (cell, error) {
	cl := cell{t: c.Type}
	var err error
	switch c.Type.Kind {
	case scalar.KindTime:
		cl.layout, err = newTimeLayout(c)
	case scalar.KindList, scalar.KindMap:
		var e cell
		e, err = newCell(plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone})
		if !e.plain() {
			cl.parts = []cell{e}
		}
	case scalar.KindStruct:
		special := false
		parts := make([]cell, len(c.Type.Fields))
		for i, f := range c.Type.Fields {
			m := plan.Column{Name: f.Name}
			if i < len(c.Members) {
				m = c.Members[i]
			}
			m.Type = f.Type
			if parts[i], err = newCell(m); err != nil {
				return cl, err
			}
			parts[i].prefix = prefixOf(i, inputName(m))
			special = special || !parts[i].plain() || inputName(m) != f.Name
		}
		if special {
			cl.parts = parts
		}
	}
	return cl, err
}

// plain says whether the type alone tells how the cell is written.
func (c *cell) plain() bool { return c.layout.text == "" && c.parts == nil }

// Encode appends the value of a record for one row of b, whose columns are those of the topic. A raw
// topic's value is its value column.
//
// Errors: scalar.CodeNotFinite for a NaN or infinity; dst is then returned as it came.
func (e *Encoder) Encode(dst []byte, b *operators.Batch, row int) ([]byte, scalar.Code) {
	start := len(dst)
	var code scalar.Code
	switch e.format {
	case plan.FormatRaw:
		if arr, ok := b.Columns[1].(*array.Binary); ok && arr.IsValid(row) {
			dst = append(dst, arr.Value(row)...)
		}
		return dst, scalar.CodeNone
	case plan.FormatLines:
		if operators.IsNull(b.Columns[0], row) {
			return nil, scalar.CodeNone
		}
		return append(dst, operators.ValueAt(b.Columns[0], e.cells[0].t, row).S...), scalar.CodeNone
	case plan.FormatCSV:
		for i := range e.cells {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, code = e.cells[i].csv(dst, b.Columns[i], row); code != scalar.CodeNone {
				return dst[:start], code
			}
		}
		return dst, scalar.CodeNone
	}
	for i := range e.cells {
		c := &e.cells[i]
		dst = append(dst, c.prefix...)
		if c.plain() {
			dst, code = operators.AppendJSON(dst, b.Columns[i], c.t, row)
		} else {
			dst, code = c.json(dst, b.Columns[i], row)
		}
		if code != scalar.CodeNone {
			return dst[:start], code
		}
	}
	if len(e.cells) == 0 {
		dst = append(dst, '{')
	}
	return append(dst, '}'), scalar.CodeNone
}

// json appends a cell that its type alone does not describe.
func (c *cell) json(dst []byte, arr arrow.Array, row int) ([]byte, scalar.Code) {
	if c.plain() {
		return operators.AppendJSON(dst, arr, c.t, row)
	}
	if operators.IsNull(arr, row) {
		return append(dst, "null"...), scalar.CodeNone
	}
	if a, ok := arr.(*array.Timestamp); ok {
		return c.timeJSON(dst, int64(a.Value(row))), scalar.CodeNone
	}
	return c.value(dst, operators.ValueAt(arr, c.t, row))
}

// value is json for a value that was taken out of its column.
func (c *cell) value(dst []byte, v scalar.Value) ([]byte, scalar.Code) {
	if c.plain() || v.IsNull() {
		return scalar.AppendJSON(dst, v, c.t)
	}
	var code scalar.Code
	switch c.t.Kind {
	case scalar.KindTime:
		return c.timeJSON(dst, v.I), scalar.CodeNone
	case scalar.KindStruct:
		for i := range c.parts {
			dst = append(dst, c.parts[i].prefix...)
			if dst, code = c.parts[i].value(dst, v.L[i]); code != scalar.CodeNone {
				return dst, code
			}
		}
		return append(dst, '}'), scalar.CodeNone
	case scalar.KindList:
		dst = append(dst, '[')
		for i, e := range v.L {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, code = c.parts[0].value(dst, e); code != scalar.CodeNone {
				return dst, code
			}
		}
		return append(dst, ']'), scalar.CodeNone
	}
	dst = append(dst, '{')
	for i, e := range v.L {
		if i > 0 {
			dst = append(dst, ',')
		}
		key, keyCode := scalar.AppendText(nil, v.Keys[i], *c.t.Key)
		if keyCode != scalar.CodeNone {
			return dst, keyCode
		}
		dst = append(scalar.AppendJSONString(dst, string(key)), ':')
		if dst, code = c.parts[0].value(dst, e); code != scalar.CodeNone {
			return dst, code
		}
	}
	return append(dst, '}'), scalar.CodeNone
}

func (c *cell) timeJSON(dst []byte, ns int64) []byte {
	if c.layout.unit != 0 {
		return c.time(dst, ns)
	}
	return append(c.time(append(dst, '"'), ns), '"')
}

// time appends a time as the column writes it. Units finer than the column's are cut off.
func (c *cell) time(dst []byte, ns int64) []byte {
	switch {
	case c.layout.unit != 0:
		return strconv.AppendInt(dst, scalar.FloorDiv(ns, c.layout.unit), 10)
	case c.layout.layout != nil:
		return c.layout.layout.Append(dst, ns, scalar.ZoneOffset(ns, c.layout.zone))
	}
	return scalar.AppendTime(dst, ns)
}

// csv appends a field, quoted where it must be.
func (c *cell) csv(dst []byte, arr arrow.Array, row int) ([]byte, scalar.Code) {
	start := len(dst)
	if operators.IsNull(arr, row) {
		return dst, scalar.CodeNone
	}
	var code scalar.Code
	switch k := c.t.Kind; {
	case k == scalar.KindTime:
		if a, ok := arr.(*array.Timestamp); ok {
			dst = c.time(dst, int64(a.Value(row)))
		}
	case k == scalar.KindList || k == scalar.KindMap || k == scalar.KindStruct:
		dst, code = c.json(dst, arr, row)
	default:
		dst, code = operators.AppendText(dst, arr, c.t, row)
	}
	if code != scalar.CodeNone {
		return dst[:start], code
	}
	field := dst[start:]
	if len(field) == 0 && !c.t.Nullable {
		return dst, code
	}
	if len(field) > 0 && !bytes.ContainsAny(field, ",\"\r\n") {
		return dst, code
	}
	quotes := bytes.Count(field, []byte{'"'})
	n := len(field)
	for range quotes + 2 {
		dst = append(dst, 0)
	}
	// Move the field into place from its end, doubling quotes.
	to := len(dst) - 1
	dst[to] = '"'
	for i := start + n - 1; i >= start; i-- {
		to--
		dst[to] = dst[i]
		if dst[i] == '"' {
			to--
			dst[to] = '"'
		}
	}
	dst[start] = '"'
	return dst, scalar.CodeNone
}
