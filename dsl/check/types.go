package check

import (
	"sort"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// simpleTypes are the types that a bare name writes.
var simpleTypes = map[string]scalar.Kind{
	"bool": scalar.KindBool,
	"int8": scalar.KindInt8, "int16": scalar.KindInt16, "int32": scalar.KindInt32, "int64": scalar.KindInt64,
	"uint8": scalar.KindUint8, "uint16": scalar.KindUint16, "uint32": scalar.KindUint32, "uint64": scalar.KindUint64,
	"float32": scalar.KindFloat32, "float64": scalar.KindFloat64,
	"string": scalar.KindString, "bytes": scalar.KindBytes,
	"time": scalar.KindTime, "duration": scalar.KindDuration, "date": scalar.KindDate,
}

// typeAliases are names that people bring from elsewhere.
var typeAliases = map[string]string{
	"int": "int64", "integer": "int32", "bigint": "int64", "long": "int64", "smallint": "int16",
	"uint": "uint64", "float": "float64", "double": "float64", "real": "float32", "number": "float64",
	"numeric": "decimal(18,6)", "text": "string", "varchar": "string", "str": "string",
	"boolean": "bool", "timestamp": "time", "datetime": "time", "interval": "duration",
	"blob": "bytes", "binary": "bytes", "array": "list<string>", "decimal": "decimal(18,6)",
}

func (c *checker) typeNames() []string {
	names := []string{"decimal", "list", "map"}
	for n := range simpleTypes {
		names = append(names, n)
	}
	for _, s := range c.order {
		if s.kind == symType {
			names = append(names, s.name)
		}
	}
	sort.Strings(names)
	return names
}

// column resolves a written type as a nameless column: its type, and how its times are spelled. ok is
// false when something was reported.
func (c *checker) column(t *syntax.TypeExpr) (plan.Column, bool) {
	var col plan.Column
	at := span{int(t.Pos), int(t.End)}
	ok := true
	switch {
	case t.Struct:
		col.Type.Kind = scalar.KindStruct
		col.Members, ok = c.fields(t.Fields)
		for _, m := range col.Members {
			col.Type.Fields = append(col.Type.Fields, scalar.Field{Name: m.Name, Type: m.Type})
		}
	case t.Name == "decimal" && (len(t.Ints) > 0 || len(t.Strings) > 0):
		var p, s int64
		if len(t.Ints) > 0 { // without, p = 0 is refused below
			p, ok = c.intValue(&t.Ints[0], at)
		}
		if ok && len(t.Ints) > 1 {
			s, ok = c.intValue(&t.Ints[1], at)
		}
		if ok && (len(t.Ints) > 2 || len(t.Strings) > 0 || p < 1 || p > 38 || s < 0 || s > p) {
			c.err("E0131", at, "`%s` is not a decimal type", c.src.slice(at)).
				because("decimal(p,s) takes 1 to 38 digits, s of them after the point").
				fix("for amounts of money `decimal(18,2)` is usual")
			ok = false
		}
		col.Type = scalar.Type{Kind: scalar.KindDecimal, Precision: int32(p), Scale: int32(s)}
	case t.Name == "time":
		col.Type.Kind = scalar.KindTime
		ok = c.timeSpelling(t, at, &col)
	case t.Name == "list":
		ok = c.typeArgs(t, at, 1)
		if ok {
			var e plan.Column
			e, ok = c.column(&t.Elems[0])
			col.Type = scalar.Type{Kind: scalar.KindList, Elem: &e.Type}
			col.Members = e.Members
			col.TimeLayout, col.TimeZone = e.TimeLayout, e.TimeZone
		}
	case t.Name == "map":
		ok = c.typeArgs(t, at, 2)
		if ok {
			k, ok1 := c.column(&t.Elems[0])
			e, ok2 := c.column(&t.Elems[1])
			ok = ok1 && ok2
			if ok1 && (k.Type.Kind != scalar.KindString || k.Type.Nullable) {
				c.err("E0131", at, "the keys of a map column are strings, not %s", TypeString(k.Type)).because("JSON objects have no other keys").
					fix("`map<string, %s>`", TypeString(e.Type))
				ok = false
			}
			col.Type = scalar.Type{Kind: scalar.KindMap, Key: &k.Type, Elem: &e.Type}
			col.Members = e.Members
			col.TimeLayout, col.TimeZone = e.TimeLayout, e.TimeZone
		}
	default:
		kind, simple := simpleTypes[t.Name]
		named := c.symbols[t.Name]
		switch {
		case simple:
			if len(t.Ints)+len(t.Strings)+len(t.Elems) > 0 {
				c.err("E0131", at, "type `%s` takes no arguments", t.Name).because("it has one form only").
					replace(at, t.Name+question(t.Nullable))
				return col, false
			}
			col.Type.Kind = kind
		case named != nil && named.kind == symType:
			c.resolveType(named)
			if named.typ == nil {
				return col, false
			}
			col = *named.typ
		default:
			f := c.err("E0106", at, "there is no type `%s`", t.Name).because("it is neither built in nor declared in this module")
			if a, is := typeAliases[strings.ToLower(t.Name)]; is {
				f.replace(at, a+question(t.Nullable))
			} else if n := c.nearest(t.Name, c.typeNames()); n != "" {
				f.fix("did you mean `%s`?", n)
				if _, simple := simpleTypes[n]; simple {
					f.replace(at, n+question(t.Nullable))
				}
			} else {
				f.fix("declare it: `type %s = { .. }`", t.Name)
			}
			return col, false
		}
	}
	if t.Nullable {
		col.Type.Nullable = true
	}
	if ok && typeSize(col.Type, maxTypeSize+1) > maxTypeSize {
		c.err("E0131", at, "this type has more than %d parts", maxTypeSize).
			because("the work for a row must be bounded").fix("leave out fields that are not read")
		return plan.Column{}, false
	}
	return col, ok
}

// maxTypeSize bounds the parts of a type, fields of fields included.
const maxTypeSize = 2000

// typeSize counts the parts of a type, up to limit.
func typeSize(t scalar.Type, limit int) int {
	n := 1
	if t.Key != nil {
		n += typeSize(*t.Key, limit-n)
	}
	if t.Elem != nil && n < limit {
		n += typeSize(*t.Elem, limit-n)
	}
	for _, f := range t.Fields {
		if n >= limit {
			return n
		}
		n += typeSize(f.Type, limit-n)
	}
	return n
}

func question(nullable bool) string {
	if nullable {
		return "?"
	}
	return ""
}

func (c *checker) typeArgs(t *syntax.TypeExpr, at span, n int) bool {
	if len(t.Elems) == n && len(t.Ints)+len(t.Strings) == 0 {
		return true
	}
	want := "list<T>"
	if n == 2 {
		want = "map<string, T>"
	}
	c.err("E0131", at, "`%s` needs its element type", t.Name).because("every element has the same type, known before the rows are").fix("write `%s`", want)
	return false
}

// timeUnits are the units of a time in a number, by their names.
var timeUnits = map[string]string{
	"s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "epoch": "s", "unix": "s", "ms": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
	"epoch_ms": "ms", "epoch_millis": "ms", "unix_ms": "ms", "us": "us", "micros": "us", "microsecond": "us", "microseconds": "us",
	"ns": "ns", "nanos": "ns", "nanosecond": "ns", "nanoseconds": "ns",
}

// timeSpelling reads time("ms") or time("yyyy-MM-dd HH:mm:ss", "Asia/Shanghai").
func (c *checker) timeSpelling(t *syntax.TypeExpr, at span, col *plan.Column) bool {
	if len(t.Ints)+len(t.Elems) > 0 || len(t.Strings) > 2 {
		f := c.err("E0131", at, "`time` takes a unit or a layout, then a zone").because("they say how the text or number of the input is read")
		if len(t.Ints) == 1 && len(t.Elems)+len(t.Strings) == 0 && timeUnits[t.Ints[0].Const] != "" {
			f.replace(at, `time("`+timeUnits[t.Ints[0].Const]+`")`+question(t.Nullable))
			return false
		}
		f.fix(`for example time("ms") or time("yyyy-MM-dd HH:mm:ss", "Europe/Berlin")`)
		return false
	}
	if len(t.Strings) == 0 {
		return true
	}
	col.TimeLayout = t.Strings[0]
	switch col.TimeLayout {
	case "s", "ms", "us", "ns":
		if len(t.Strings) == 2 {
			c.err("E0131", at, "a number of %s since 1970 has no zone", col.TimeLayout).because("it means the same moment everywhere").
				replace(at, `time("`+col.TimeLayout+`")`+question(t.Nullable))
			return false
		}
		return true
	}
	if bad := badLayout(col.TimeLayout); bad != "" {
		f := c.err("E0131", at, "the layout %q is not one that times can be read with", col.TimeLayout).because("%s", bad)
		better := timeUnits[strings.ToLower(col.TimeLayout)]
		if better == "" {
			better = scalar.SuggestLayout(col.TimeLayout)
		}
		if better != "" && len(t.Strings) == 1 {
			f.replace(at, `time("`+better+`")`+question(t.Nullable))
			return false
		}
		f.fix("letters are yyyy MM MMM dd d HH mm ss SSS XXX XX, or one of the units s, ms, us, ns")
		return false
	}
	if len(t.Strings) == 2 {
		col.TimeZone = t.Strings[1]
		if !zoneKnown(col.TimeZone) {
			c.err("E0131", at, "there is no time zone %q", col.TimeZone).because("zones are those of the IANA database").
				fix(`use a name of the IANA database, such as "Europe/Berlin", or "UTC"`)
			return false
		}
	}
	return true
}

// badLayout says what is wrong with a layout of letters, or "".
func badLayout(layout string) string {
	if _, err := scalar.ParseLayout(layout); err != nil {
		return err.Error()
	}
	if !strings.Contains(layout, "yy") {
		return "it has no year"
	}
	return ""
}

// fields resolves the members of a struct or the columns of a topic.
func (c *checker) fields(list []syntax.FieldDecl) ([]plan.Column, bool) {
	ok := true
	seen := map[string]bool{}
	inputs := map[string]bool{}
	var out []plan.Column
	for i := range list {
		f := &list[i]
		if seen[f.Name.Text] {
			c.err("E0108", c.nameSpan(f.Name), "there are two columns `%s`", f.Name.Text).because("later stages find a column by its name").
				fix("give one of them another name; a different name in the input is written `%s_2: T as \"%s\"`", f.Name.Text, f.Name.Text)
			ok = false
			continue
		}
		seen[f.Name.Text] = true
		col, good := c.column(&f.Type)
		ok = ok && good
		col.Name, col.Input = f.Name.Text, f.Name.Text
		if f.Input != "" {
			col.Input = f.Input
		}
		if inputs[col.Input] {
			c.err("E0108", c.nameSpan(f.Name), "two columns read the input field %q", col.Input).because("an input field is read into one column").
				fix("read it once and copy it with `set`")
			ok = false
		}
		inputs[col.Input] = true
		out = append(out, col)
	}
	return out, ok
}

func (c *checker) resolveType(s *symbol) {
	switch s.state {
	case done:
		return
	case running:
		c.err("E0135", s.at, "type `%s` contains itself", s.name).
			because("a column has a fixed shape").
			fix("end the recursion with `bytes` or `string`")
		return
	}
	s.state = running
	d := s.stmt.(*syntax.TypeDecl)
	if col, ok := c.column(&d.Type); ok {
		s.typ = &col
	}
	s.state = done
}

// intValue gives the value of an integer literal or const.
func (c *checker) intValue(n *syntax.Int, at span) (int64, bool) {
	if n.Const == "" {
		return n.Value, true
	}
	k := c.constNamed(n.Const, span{int(n.Pos), int(n.Pos) + len(n.Const)})
	if k == nil {
		return 0, false
	}
	if !k.expr.Type.Kind.Integer() || k.expr.Type.Nullable {
		c.err("E0130", span{int(n.Pos), int(n.Pos) + len(n.Const)}, "`%s` is %s, a whole number belongs here", n.Const, TypeString(k.expr.Type)).because("a const stands for its value, of its type").
			fix("write a number, or a const that holds one")
		return 0, false
	}
	return k.expr.Value.I, true
}

// durationValue gives the nanoseconds of a duration literal or const.
func (c *checker) durationValue(d *syntax.Duration) (int64, bool) {
	if d == nil {
		return 0, false
	}
	if d.Const == "" {
		return d.Nanos, true
	}
	at := span{int(d.Pos), int(d.Pos) + len(d.Const)}
	k := c.constNamed(d.Const, at)
	if k == nil {
		return 0, false
	}
	if k.expr.Type.Kind != scalar.KindDuration || k.expr.Type.Nullable {
		c.err("E0130", at, "`%s` is %s, a duration belongs here", d.Const, TypeString(k.expr.Type)).because("a const stands for its value, of its type").
			fix("write a duration such as `10s`, or a const that holds one")
		return 0, false
	}
	return k.expr.Value.I, true
}

// constNamed finds a const or param; it reports a name that is neither.
func (c *checker) constNamed(name string, at span) *constant {
	s := c.symbols[name]
	if s == nil || s.kind != symConst && s.kind != symParam {
		f := c.err("E0107", at, "there is no const `%s`", name).because("a word in this place is the name of a const or param")
		if s != nil {
			f.because("`%s` is a %s", name, s.kind)
		}
		var names []string
		for _, o := range c.order {
			if o.kind == symConst || o.kind == symParam {
				names = append(names, o.name)
			}
		}
		if n := c.nearest(name, names); n != "" {
			f.replace(at, n)
		} else {
			f.fix("declare it: `const %s = ..`", name)
		}
		return nil
	}
	c.resolveConst(s)
	return s.value
}

// TypeString writes a type as the language does.
func TypeString(t scalar.Type) string {
	switch t.Kind {
	case scalar.KindNull:
		return "nil"
	case scalar.KindInvalid:
		return "unknown"
	}
	return t.String()
}

// keyable says why values of t cannot be a key, or "".
func keyable(t scalar.Type) string {
	switch t.Kind {
	case scalar.KindList, scalar.KindMap, scalar.KindStruct:
		return "a key is one value or several, not a list, map or struct"
	case scalar.KindFloat32, scalar.KindFloat64:
		return "equal floats can have different texts, so a float does not say which partition a row belongs to"
	case scalar.KindNull:
		return "nil is the same for every row"
	}
	return ""
}

// memberColumns spells the members of t under their own names: what a derived topic writes.
func memberColumns(t scalar.Type) []plan.Column {
	for (t.Kind == scalar.KindList || t.Kind == scalar.KindMap) && t.Elem != nil {
		t = *t.Elem
	}
	if t.Kind != scalar.KindStruct {
		return nil
	}
	out := make([]plan.Column, len(t.Fields))
	for i, f := range t.Fields {
		out[i] = plan.Column{Name: f.Name, Input: f.Name, Type: f.Type, Members: memberColumns(f.Type)}
	}
	return out
}

// zoneKnown says whether the zone database that is built in has the name.
func zoneKnown(name string) bool {
	_, err := scalar.Zone(name)
	return name != "" && err == nil
}
