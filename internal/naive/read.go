package naive

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// read decodes the records of a declared topic and gives each row its event time.
func (p *pipeline) read(parts [][]Record) ([]*row, error) {
	t := p.plan.Source
	p.parts = len(parts)
	var out []*row
	future := int64(t.Time.Future)
	if future == 0 {
		future = int64(time.Minute)
	}
	for i, records := range parts {
		w := int64(Never)
		for o, rec := range records {
			r := &row{partition: i, offset: int64(o), appendTime: rec.AppendTime, key: rec.Key, keyNull: rec.Key == nil, topic: t.Name}
			var err error
			if r.values, err = decode(t, p.plan.Needed, rec); err != nil {
				p.lose(r, "invalid")
				continue
			}
			r.time = rec.Timestamp * 1e6
			switch {
			case t.Time.Append:
				r.time = rec.AppendTime
			case t.Time.Expr != nil:
				v, code := p.eval(t.Time.Expr, r)
				if code != 0 || v.IsNull() {
					p.lose(r, "invalid")
					continue
				}
				r.time = v.I
			}
			if !t.Time.Append && r.time-future > rec.AppendTime {
				p.lose(r, "invalid")
				continue
			}
			r.behind = w
			w = max(w, r.time-int64(t.Time.Lag))
			out = append(out, r)
		}
	}
	return out, nil
}

// readDerived decodes the rows of a derived topic: their event time and the watermark that a row was behind are with them.
func (p *pipeline) readDerived(parts [][]Row) ([]*row, error) {
	t := p.plan.Source
	p.parts = len(parts)
	var out []*row
	for i, rows := range parts {
		for o, d := range rows {
			values, err := decode(t, p.plan.Needed, Record{Key: d.Key, Value: d.Value})
			if err != nil {
				return nil, fmt.Errorf("row %d of %s/%d: %w", o, t.Name, i, err)
			}
			out = append(out, &row{values: values, partition: i, offset: int64(o), time: d.Time, behind: d.Late, key: d.Key, keyNull: d.Key == nil, topic: t.Name})
		}
	}
	return out, nil
}

// decode reads the value of one record: the columns that the pipeline needs, and no mistake in the others is one.
func decode(t *plan.Topic, needed []bool, rec Record) ([]scalar.Value, error) {
	switch t.Format {
	case plan.FormatJSON:
		return decodeJSON(t, needed, rec.Value)
	case plan.FormatCSV:
		return decodeCSV(t, needed, rec.Value)
	case plan.FormatRaw:
		raw := func(b []byte) scalar.Value {
			if b == nil {
				return scalar.Null
			}
			return scalar.Bytes(string(b))
		}
		return []scalar.Value{raw(rec.Key), raw(rec.Value)}, nil
	}
	return nil, fmt.Errorf("no naive form of format %d", t.Format)
}

func decodeJSON(t *plan.Topic, needed []bool, value []byte) ([]scalar.Value, error) {
	if !utf8.Valid(value) {
		return nil, fmt.Errorf("not UTF-8")
	}
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF || fields == nil {
		return nil, fmt.Errorf("not one object")
	}
	return object(t.Schema.Columns, needed, fields)
}

func object(columns []plan.Column, needed []bool, fields map[string]any) ([]scalar.Value, error) {
	out := make([]scalar.Value, len(columns))
	for i, c := range columns {
		if needed != nil && !needed[i] {
			continue
		}
		name := c.Input
		if name == "" {
			name = c.Name
		}
		v, err := fromJSON(c, fields[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[i] = v
	}
	return out, nil
}

// fromJSON reads a value of a column's type.
func fromJSON(c plan.Column, x any) (scalar.Value, error) {
	bad := fmt.Errorf("%v is no %v", x, c.Type)
	switch x := x.(type) {
	case nil:
		if !c.Type.Nullable {
			return scalar.Null, fmt.Errorf("null")
		}
		return scalar.Null, nil
	case bool:
		if c.Type.Kind != scalar.KindBool {
			return scalar.Null, bad
		}
		return scalar.Bool(x), nil
	case json.Number:
		if !c.Type.Kind.Numeric() && (c.Type.Kind != scalar.KindTime || timeUnit[c.TimeLayout] == 0) {
			return scalar.Null, bad
		}
		return fromText(c, x.String())
	case string:
		if c.Type.Kind.Numeric() || c.Type.Kind == scalar.KindBool || c.Type.Kind == scalar.KindTime && timeUnit[c.TimeLayout] != 0 {
			return scalar.Null, bad
		}
		return fromText(c, x)
	case []any:
		if c.Type.Kind != scalar.KindList {
			return scalar.Null, bad
		}
		list := []scalar.Value{}
		for _, e := range x {
			v, err := fromJSON(plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone}, e)
			if err != nil {
				return v, err
			}
			list = append(list, v)
		}
		return scalar.List(list...), nil
	case map[string]any:
		switch c.Type.Kind {
		case scalar.KindStruct:
			columns := make([]plan.Column, len(c.Type.Fields))
			for i, f := range c.Type.Fields {
				columns[i] = plan.Column{Name: f.Name, Input: f.Name}
				if i < len(c.Members) {
					columns[i] = c.Members[i]
				}
				columns[i].Type = f.Type
			}
			fields, err := object(columns, nil, x)
			return scalar.Struct(fields...), err
		case scalar.KindMap:
			var keys, values []scalar.Value
			for _, k := range sortedKeys(x) {
				key, err := fromText(plan.Column{Type: *c.Type.Key}, k)
				if err != nil {
					return key, err
				}
				v, err := fromJSON(plan.Column{Type: *c.Type.Elem, Members: c.Members, TimeLayout: c.TimeLayout, TimeZone: c.TimeZone}, x[k])
				if err != nil {
					return v, err
				}
				keys, values = append(keys, key), append(values, v)
			}
			return scalar.Map(keys, values), nil
		}
	}
	return scalar.Null, bad
}

var timeUnit = map[string]int64{"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}

// fromText reads a value from its plain text.
func fromText(c plan.Column, s string) (scalar.Value, error) {
	v, code := scalar.Null, scalar.CodeBadCast
	ok := true
	switch k := c.Type.Kind; {
	case k == scalar.KindString:
		return scalar.String(s), nil
	case k == scalar.KindBytes:
		b, err := base64.StdEncoding.Strict().DecodeString(s)
		return scalar.Bytes(string(b)), err
	case k == scalar.KindBool:
		v, ok = scalar.Bool(s == "true"), s == "true" || s == "false"
		code = 0
	case k == scalar.KindDuration:
		v.Kind = k
		v.I, code = scalar.ParseDuration(s)
	case k == scalar.KindDate:
		v.Kind = k
		v.I, code = scalar.ParseDate(s)
	case k == scalar.KindTime:
		v.Kind = k
		if unit := timeUnit[c.TimeLayout]; unit != 0 {
			v.I, ok = integer(s, unit, scalar.KindInt64)
			code = 0
			break
		}
		if c.TimeLayout == "" {
			v.I, code = scalar.ParseTime(s)
			break
		}
		layout, err := scalar.ParseLayout(c.TimeLayout)
		if err != nil {
			return v, err
		}
		zone, err := scalar.Zone(c.TimeZone)
		if err != nil {
			return v, err
		}
		v.I, code = layout.Parse(s, zone)
	case k.Float():
		v.Kind, code = k, 0
		v.F, ok = scalar.ParseFloat(s, k)
	case k == scalar.KindDecimal:
		v.Kind = k
		v.D, code = scalar.ParseDecimalAs(s, c.Type.Precision, c.Type.Scale)
	case k.Integer():
		v.Kind, code = k, 0
		v.I, ok = integer(s, 1, k)
	}
	if code != 0 || !ok {
		return scalar.Null, fmt.Errorf("%q is no %v", s, c.Type)
	}
	return v, nil
}

// integer is the number in s times unit, if that is an integer of kind k: 5.0 and 1e3 are.
func integer(s string, unit int64, k scalar.Kind) (int64, bool) {
	r, ok := new(big.Rat).SetString(s)
	if !ok || len(s) > 100 {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	if !r.IsInt() {
		return 0, false
	}
	return scalar.ParseInt(r.Num().String(), k)
}

func decodeCSV(t *plan.Topic, needed []bool, value []byte) ([]scalar.Value, error) {
	r := csv.NewReader(bytes.NewReader(value))
	r.FieldsPerRecord = len(t.Schema.Columns)
	fields, err := r.Read()
	if err != nil {
		return nil, err
	}
	if _, err := r.Read(); err != io.EOF {
		return nil, fmt.Errorf("more than one line")
	}
	out := make([]scalar.Value, len(fields))
	for i, c := range t.Schema.Columns {
		switch {
		case needed != nil && !needed[i]:
			continue
		case fields[i] == "" && c.Type.Nullable:
			continue
		case fields[i] == "" && c.Type.Kind != scalar.KindString:
			return nil, fmt.Errorf("%s is empty", c.Name)
		}
		if out[i], err = fromText(c, fields[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
