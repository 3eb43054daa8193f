package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A RowEncoder turns the rows of a CSV file into records of a topic: header names, or the names that the
// topic's schema gives with `as`, find the columns, and the value is written in the topic's format. A
// cell that is not of its column's type is passed on as text: the topic's invalid rows are the
// pipelines' to judge.
//
// It is used by one goroutine.
type RowEncoder struct {
	topic   *plan.Topic
	cells   []int // cell of each column, -1: none
	ignored []string
	value   bytes.Buffer
}

// ErrSchema is a schema that cannot be read.
var ErrSchema = errors.New("client: malformed schema")

// ParseSchema reads the schema that the API shows of a topic; nil if it has none. The error is an ErrSchema.
func ParseSchema(raw json.RawMessage) (*plan.Topic, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil //nolint:nilnil // a topic without schema is no error
	}
	t := &plan.Topic{}
	if err := json.Unmarshal(raw, t); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	for _, k := range t.Key {
		if k < 0 || k >= len(t.Schema.Columns) {
			return nil, fmt.Errorf("%w: the key has column %d of %d", ErrSchema, k, len(t.Schema.Columns))
		}
	}
	if t.Format == plan.FormatRaw {
		return nil, nil //nolint:nilnil // likewise
	}
	return t, nil
}

// A HeaderError says which required columns a CSV header lacks.
type HeaderError struct {
	Missing []string
	Header  []string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("the header (%s) lacks %s", strings.Join(e.Header, ", "), strings.Join(e.Missing, ", "))
}

// NewRowEncoder matches a CSV header with the columns of a topic.
func NewRowEncoder(t *plan.Topic, header []string) (*RowEncoder, error) {
	e := &RowEncoder{topic: t, cells: make([]int, len(t.Schema.Columns))}
	used := make([]bool, len(header))
	var missing []string
	for i, c := range t.Schema.Columns {
		e.cells[i] = -1
		for k, h := range header {
			if h = strings.TrimSpace(strings.TrimPrefix(h, "\ufeff")); h == c.Input || h == c.Name {
				e.cells[i], used[k] = k, true
				break
			}
		}
		if e.cells[i] < 0 && !c.Type.Nullable {
			missing = append(missing, c.Input)
		}
	}
	if len(missing) > 0 {
		return nil, &HeaderError{missing, header}
	}
	for k, h := range header {
		if !used[k] {
			e.ignored = append(e.ignored, h)
		}
	}
	return e, nil
}

// Ignored lists the header names that no column has.
func (e *RowEncoder) Ignored() []string { return e.ignored }

// Encode makes key and value of one row. The slices are fresh.
func (e *RowEncoder) Encode(row []string) (key, value []byte) {
	e.value.Reset()
	if e.topic.Format == plan.FormatCSV {
		for i, k := range e.cells {
			if i > 0 {
				e.value.WriteByte(',')
			}
			cell := ""
			if k >= 0 && k < len(row) {
				cell = row[k]
			}
			e.csvCell(cell, e.topic.Schema.Columns[i].Type)
		}
	} else {
		e.value.WriteByte('{')
		for i, k := range e.cells {
			if i > 0 {
				e.value.WriteByte(',')
			}
			e.value.Write(AppendJSONString(nil, e.topic.Schema.Columns[i].Input))
			e.value.WriteByte(':')
			e.value.Write(e.cell(i, k, row))
		}
		e.value.WriteByte('}')
	}
	return e.key(row), bytes.Clone(e.value.Bytes())
}

// csvCell writes one cell of a CSV line. An empty one without quotes is null, so text that is empty and
// must not be null has quotes.
func (e *RowEncoder) csvCell(s string, t scalar.Type) {
	if s == "" {
		if t.Kind == scalar.KindString && !t.Nullable {
			e.value.WriteString(`""`)
		}
		return
	}
	if !strings.ContainsAny(s, "\",\r\n") && s[0] != ' ' && s[len(s)-1] != ' ' {
		e.value.WriteString(s)
		return
	}
	e.value.WriteByte('"')
	e.value.WriteString(strings.ReplaceAll(s, `"`, `""`))
	e.value.WriteByte('"')
}

// cell is the JSON text of one column.
func (e *RowEncoder) cell(column, k int, row []string) []byte {
	if k < 0 || k >= len(row) {
		return []byte("null")
	}
	c, s := e.topic.Schema.Columns[column], row[k]
	if s == "" && (c.Type.Nullable || c.Type.Kind != scalar.KindString) {
		return []byte("null")
	}
	switch {
	case c.Type.Kind == scalar.KindBool && (s == "true" || s == "false"):
		return []byte(s)
	case c.Type.Kind.Numeric() || c.Type.Kind == scalar.KindTime && isUnit(c.TimeLayout):
		if json.Valid([]byte(s)) && (s[0] == '-' || s[0] >= '0' && s[0] <= '9') {
			return []byte(s)
		}
	}
	return AppendJSONString(nil, s)
}

func isUnit(layout string) bool {
	return layout == "s" || layout == "ms" || layout == "us" || layout == "ns"
}

// key encodes the key columns: one string column as its bytes, one other as its JSON text, several as a
// JSON array; none or null: no key.
func (e *RowEncoder) key(row []string) []byte {
	cols := e.topic.Key
	switch len(cols) {
	case 0:
		return nil
	case 1:
		k := e.cells[cols[0]]
		if k < 0 || k >= len(row) {
			return nil
		}
		if kind := e.topic.Schema.Columns[cols[0]].Type.Kind; kind == scalar.KindString || kind == scalar.KindBytes {
			return []byte(row[k])
		}
		if b := e.cell(cols[0], k, row); string(b) != "null" {
			return b
		}
		return nil
	}
	key := []byte{'['}
	for i, c := range cols {
		if i > 0 {
			key = append(key, ',')
		}
		key = append(key, e.cell(c, e.cells[c], row)...)
	}
	return append(key, ']')
}

// JSONKey finds the key of a JSON object by the topic's key columns; nil if the line is no object or
// lacks them.
func JSONKey(t *plan.Topic, line []byte) []byte {
	if t == nil || len(t.Key) == 0 || t.Format != plan.FormatJSON && t.Format != plan.FormatArrow {
		return nil
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return nil
	}
	if len(t.Key) == 1 {
		c := t.Schema.Columns[t.Key[0]]
		raw := fields[c.Input]
		if len(raw) == 0 || string(raw) == "null" {
			return nil
		}
		var s string
		if (c.Type.Kind == scalar.KindString || c.Type.Kind == scalar.KindBytes) && json.Unmarshal(raw, &s) == nil {
			return []byte(s)
		}
		return raw
	}
	key := []byte{'['}
	for i, k := range t.Key {
		if i > 0 {
			key = append(key, ',')
		}
		raw := fields[t.Schema.Columns[k].Input]
		if len(raw) == 0 {
			raw = json.RawMessage("null")
		}
		key = append(key, raw...)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, append(key, ']')); err != nil { // it was parsed above
		return nil
	}
	return compact.Bytes()
}

// AppendJSONString appends a string as JSON. Bytes that are not UTF-8 become U+FFFD.
func AppendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s { // a broken byte is U+FFFD already
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r == '\r':
			dst = append(dst, '\\', 'r')
		case r == '\t':
			dst = append(dst, '\\', 't')
		case r < 0x20:
			dst = fmt.Appendf(dst, "\\u%04x", r)
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
