package naive

import (
	"bytes"
	"encoding/csv"
	"strconv"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// encode writes the value of a derived record.
func encode(values []scalar.Value, t *plan.Topic) ([]byte, scalar.Code) {
	if t.Format == plan.FormatCSV {
		fields := make([]string, len(values))
		for i, c := range t.Schema.Columns {
			if values[i].IsNull() {
				continue
			}
			text, code := appendValue(nil, values[i], c)
			if code != 0 {
				return nil, code
			}
			fields[i] = string(text)
			if len(text) > 0 && text[0] == '"' {
				fields[i], _ = strconv.Unquote(string(text))
			}
			if c.Type.Kind == scalar.KindString {
				fields[i] = values[i].S
			}
		}
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		_ = w.Write(fields)
		w.Flush()
		return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), 0
	}
	return appendObject(nil, values, t.Schema.Columns)
}

func appendObject(dst []byte, values []scalar.Value, columns []plan.Column) ([]byte, scalar.Code) {
	for i, c := range columns {
		dst = append(dst, "{,"[min(i, 1)])
		name := c.Input
		if name == "" {
			name = c.Name
		}
		dst = append(scalar.AppendJSONString(dst, name), ':')
		var code scalar.Code
		if dst, code = appendValue(dst, values[i], c); code != 0 {
			return nil, code
		}
	}
	return append(dst, '}'), 0
}

// appendValue writes a value as JSON, times by the layout of their column.
func appendValue(dst []byte, v scalar.Value, c plan.Column) ([]byte, scalar.Code) {
	switch {
	case v.IsNull():
	case v.Kind == scalar.KindTime && timeUnit[c.TimeLayout] != 0:
		return strconv.AppendInt(dst, scalar.FloorDiv(v.I, timeUnit[c.TimeLayout]), 10), 0
	case v.Kind == scalar.KindTime && c.TimeLayout != "":
		layout, err := scalar.ParseLayout(c.TimeLayout)
		if err != nil {
			panic("naive: " + err.Error())
		}
		zone, err := scalar.Zone(c.TimeZone)
		if err != nil {
			panic("naive: " + err.Error())
		}
		return scalar.AppendJSONString(dst, string(layout.Append(nil, v.I, scalar.ZoneOffset(v.I, zone)))), 0
	case v.Kind == scalar.KindStruct:
		columns := make([]plan.Column, len(c.Type.Fields))
		for i, f := range c.Type.Fields {
			columns[i] = plan.Column{Name: f.Name}
			if i < len(c.Members) {
				columns[i] = c.Members[i]
			}
			columns[i].Type = f.Type
		}
		return appendObject(dst, v.L, columns)
	case v.Kind == scalar.KindList:
		dst = append(dst, '[')
		for i, e := range v.L {
			if i > 0 {
				dst = append(dst, ',')
			}
			var code scalar.Code
			if dst, code = appendValue(dst, e, plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone}); code != 0 {
				return dst, code
			}
		}
		return append(dst, ']'), 0
	}
	return scalar.AppendJSON(dst, v, c.Type)
}

// encodeKey is the record key of a row: one text or bytes column as it is, another single column as its JSON,
// several as a JSON array. null: the row has no key.
func encodeKey(values []scalar.Value, key []int, s plan.Schema) (b []byte, null bool, code scalar.Code) {
	if len(key) == 0 {
		return nil, true, 0
	}
	cell := func(dst []byte, i int) []byte {
		v := values[i]
		if v.Kind.Float() && v.F == 0 {
			v.F = 0 // -0 is 0
		}
		dst, c := scalar.AppendJSON(dst, v, s.Columns[i].Type)
		code = max(code, c)
		return dst
	}
	if len(key) == 1 {
		v := values[key[0]]
		switch v.Kind {
		case scalar.KindString, scalar.KindBytes:
			return append([]byte{}, v.S...), false, 0
		}
		if v.IsNull() {
			return nil, true, 0
		}
		b = cell(nil, key[0])
		return b, false, code
	}
	for i, k := range key {
		b = cell(append(b, "[,"[min(i, 1)]), k)
	}
	return append(b, ']'), false, code
}

// murmur2 is the hash of Kafka's default partitioner.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := 0x9747b28c ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := (uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24) * m
		k = (k ^ k>>24) * m
		h = h*m ^ k
	}
	for i := len(b) - 1; i >= 0; i-- {
		h ^= uint32(b[i]) << (8 * i)
		if i == 0 {
			h *= m
		}
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
