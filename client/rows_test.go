package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// declared compiles the declaration of a topic.
func declared(t *testing.T, text string) *plan.Topic {
	t.Helper()
	m, err := dsl.Compile("t.hr", text, dsl.Options{Name: "t"})
	if err != nil {
		t.Fatal(err)
	}
	return m.Topics[0]
}

func TestRowsOfACSVFileBecomeRecords(t *testing.T) {
	for _, c := range []struct {
		name, topic string
		header, row string // cells divided by |
		key, value  string
	}{
		{
			"columns are found by name, in the schema's order",
			`topic t { a: string, b: int64 } with key (a)`,
			"b|a", "7|x",
			"x", `{"a":"x","b":7}`,
		},
		{
			"columns are found by the field's name, with spaces and a byte order mark",
			`topic t { a: string as "A b", b: int64 as "B" } with key (a)`,
			"\ufeffB| A b ", "7|x",
			"x", `{"A b":"x","B":7}`,
		},
		{
			"empty is null where null may be, else empty text",
			`topic t { a: string, b: string?, c: int64?, d: int64 }`,
			"a|b|c|d", "|||",
			"", `{"a":"","b":null,"c":null,"d":null}`,
		},
		{
			"a column that may be null may be absent",
			`topic t { a: string, b: string? }`,
			"a", "x",
			"", `{"a":"x","b":null}`,
		},
		{
			"what is no number or truth stays text for the pipeline to judge",
			`topic t { a: int64, b: bool, c: float64, d: decimal(10,2), e: bool }`,
			"a|b|c|d|e", "1 0|yes|NaN|1.50|true",
			"", `{"a":"1 0","b":"yes","c":"NaN","d":1.50,"e":true}`,
		},
		{
			"times are text, in units numbers",
			`topic t { a: time, b: time("ms"), c: time("yyyy-MM-dd") }`,
			"a|b|c", "2024-01-01T00:00:00Z|1700000000000|2024-01-01",
			"", `{"a":"2024-01-01T00:00:00Z","b":1700000000000,"c":"2024-01-01"}`,
		},
		{
			"text is escaped, and repaired where it is not UTF-8",
			`topic t { a: string }`,
			"a", "q\" b\\ n\n é \x01 \xff",
			"", `{"a":"q\" b\\ n\n é \u0001 ` + "\ufffd" + `"}`,
		},
		{
			"a key of a number is its JSON text",
			`topic t { a: int64 } with key (a)`,
			"a", "7",
			"7", `{"a":7}`,
		},
		{
			"a key of several columns is a JSON array",
			`topic t { a: string, b: int64, c: string? } with key (a, b, c)`,
			"a|b|c", "x|7|",
			`["x",7,null]`, `{"a":"x","b":7,"c":null}`,
		},
		{
			"a short row is filled with null",
			`topic t { a: string, b: int64 } with key (b)`,
			"a|b", "x",
			"", `{"a":"x","b":null}`,
		},
		{
			"CSV is quoted where it must be",
			`topic t { a: string, b: string, c: string, d: string } with format csv, key (a)`,
			"a|b|c|d", "x, y|say \"hi\"|two\nlines| edge ",
			"x, y", "\"x, y\",\"say \"\"hi\"\"\",\"two\nlines\",\" edge \"",
		},
		{
			"in CSV empty text has quotes, null has none",
			`topic t { a: string, b: string?, c: int64? } with format csv`,
			"a|b|c", "||",
			"", `"",,`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := NewRowEncoder(declared(t, c.topic), strings.Split(c.header, "|"))
			if err != nil {
				t.Fatal(err)
			}
			key, value := e.Encode(strings.Split(c.row, "|"))
			if string(key) != c.key || string(value) != c.value {
				t.Errorf("\ngot  %q %s\nwant %q %s", key, value, c.key, c.value)
			}
		})
	}
}

func TestAHeaderMustHaveTheColumnsThatCannotBeNull(t *testing.T) {
	topic := declared(t, `topic t { a: string as "A", b: int64, c: int64? }`)
	_, err := NewRowEncoder(topic, []string{"c", "z"})
	var lacks *HeaderError
	if !errors.As(err, &lacks) || !slices.Equal(lacks.Missing, []string{"A", "b"}) {
		t.Fatalf("got %v", err)
	}
	e, err := NewRowEncoder(topic, []string{"z", "a", "b", "y"})
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Ignored(); !slices.Equal(got, []string{"z", "y"}) {
		t.Errorf("ignored %v", got)
	}
}

func TestKeysOfJSONLines(t *testing.T) {
	one := declared(t, `topic t { a: string as "A", n: int64? } with key (a)`)
	number := declared(t, `topic t { n: int64 } with key (n)`)
	several := declared(t, `topic t { a: string, n: int64?, p: { x: int64 } } with key (a, n)`)
	for _, c := range []struct {
		topic      *plan.Topic
		line, want string
	}{
		{one, `{"A":"ann","n":1}`, "ann"},
		{one, `{"A":"a\"\u00e9"}`, `a"é`},
		{one, `{"A":null}`, ""},
		{one, `{"a":"ann"}`, ""},
		{one, `{"A":5}`, "5"},
		{one, `no JSON`, ""},
		{one, `[]`, ""},
		{number, `{"n": 7}`, "7"},
		{several, `{"a": "x", "n": 7}`, `["x",7]`},
		{several, `{"n": { "deep" : [ 1, 2 ] }}`, `[null,{"deep":[1,2]}]`},
		{declared(t, `topic t { a: string } with key ()`), `{"a":"x"}`, ""},
		{declared(t, `topic t { a: string } with key (a), format csv`), `x`, ""},
		{nil, `{"a":"x"}`, ""},
	} {
		if got := JSONKey(c.topic, []byte(c.line)); string(got) != c.want {
			t.Errorf("key of %s: got %q, want %q", c.line, got, c.want)
		}
	}
}

func TestSchemasTravelAsJSON(t *testing.T) {
	want := declared(t, `topic t { a: string as "A", d: decimal(10,2)?, at: time("ms") } with key (a), format csv, time at lag 1m`)
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSchema(raw)
	if err != nil {
		t.Fatal(err)
	}
	if got.Format != plan.FormatCSV || len(got.Schema.Columns) != 3 || got.Schema.Columns[0].Input != "A" || got.Schema.Columns[1].Type.String() != "decimal(10,2)?" {
		t.Errorf("got %+v", got)
	}
	for _, none := range []string{"", "null", `{"Format":0}`} {
		if s, err := ParseSchema(json.RawMessage(none)); s != nil || err != nil {
			t.Errorf("%q: got %v, %v", none, s, err)
		}
	}
	if _, err := ParseSchema(json.RawMessage(`{`)); err == nil {
		t.Error("half a schema is accepted")
	}
}

// FuzzParseSchema: whatever a server answers, it is an error, no schema, or one that goes through JSON again
// and encodes rows.
func FuzzParseSchema(f *testing.F) {
	topic, err := json.Marshal(plan.Topic{Name: "t", Format: plan.FormatJSON, Key: []int{0}, Schema: plan.Schema{
		Columns: []plan.Column{{Name: "a", Input: "A", Type: scalar.TypeString}, {Name: "b", Input: "b", Type: scalar.TypeInt64}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(topic)
	for _, s := range []string{"", "null", "{", `{"Format":0}`, `{"Format":2,"Key":[7,-1]}`, `{"Format":1,"Schema":{"Columns":[{"Name":"a"}]}}`, `{"Format":200}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ParseSchema(raw)
		if err != nil && (s != nil || !errors.Is(err, ErrSchema)) {
			t.Fatalf("%+v, %v", s, err)
		}
		if s == nil {
			return
		}
		var header, row []string
		for _, c := range s.Schema.Columns {
			header, row = append(header, c.Name), append(row, "1")
		}
		e, err := NewRowEncoder(s, header)
		if err != nil {
			var lacks *HeaderError
			if !errors.As(err, &lacks) {
				t.Fatal(err)
			}
			return
		}
		_, value := e.Encode(row)
		JSONKey(s, value)
		first, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseSchema(first)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := json.Marshal(back); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s became %s: %v", first, second, err)
		}
	})
}
