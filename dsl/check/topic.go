package check

import (
	"cmp"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// defaultFuture is how far ahead of its append time a row of a declared topic may be.
const defaultFuture = time.Minute

// maxPartitions bounds `partitions`.
const maxPartitions = 10_000

var topicName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

// A sink is a kind of statement that takes options.
type sink uint8

const (
	sinkDeclared sink = 1 << iota
	sinkDerived
	sinkView
)

func (k sink) String() string {
	switch k {
	case sinkDeclared:
		return "a declared topic"
	case sinkDerived:
		return "a derived topic"
	}
	return "a view"
}

// optionTable says which statement takes which option, and what to say about the others.
var optionTable = map[string]struct {
	takes sink
	why   string
}{
	"key":        {sinkDeclared | sinkDerived | sinkView, ""},
	"format":     {sinkDeclared | sinkDerived | sinkView, ""},
	"retain":     {sinkDeclared | sinkDerived, "a view stores nothing"},
	"partitions": {sinkDeclared | sinkDerived, "a view has the partitions of what it reads"},
	"time":       {sinkDeclared, "its rows already have the event time of the rows that they came from"},
	"late":       {sinkDeclared | sinkDerived, "a view has no windows, so nothing is late"},
	"invalid":    {sinkDeclared | sinkDerived, "a view leaves such rows out and counts them"},
	"errors":     {sinkDeclared | sinkDerived, "a view leaves such rows out and counts them"},
	"emit":       {sinkDerived, "only what a pipeline makes is emitted"},
}

// options are the checked options of a statement; names tell which were written.
type options struct {
	given      map[string]*syntax.Option
	key        []syntax.Name
	format     plan.Format
	retain     time.Duration
	partitions int
	late       plan.Side
	invalid    plan.Side
	errors     plan.Side
}

// checkOptions judges the options of one statement; `time` is left to declareTopic, which knows the
// columns.
func (c *checker) checkOptions(list []syntax.Option, kind sink) options {
	o := options{given: map[string]*syntax.Option{}, format: plan.FormatJSON}
	for i := range list {
		opt := &list[i]
		at := c.wordSpan(opt.Pos)
		row, known := optionTable[opt.Word]
		if !known {
			continue // the parser has reported it
		}
		if row.takes&kind == 0 {
			f := c.err("E0401", at, "%s takes no `%s`", kind, opt.Word)
			switch {
			case opt.Word == "emit":
				f.because("%s", row.why)
			case kind == sinkDerived && opt.Word == "time":
				f.because("%s", row.why).fix("put `time` on the topic that it reads")
			default:
				f.because("%s", row.why)
			}
			c.removeOption(f, list, i)
			continue
		}
		if o.given[opt.Word] != nil {
			continue // the parser has reported it
		}
		o.given[opt.Word] = opt
		switch opt.Word {
		case "key":
			o.key = opt.Names
		case "format":
			o.format = c.format(opt, at)
		case "retain":
			if d, ok := c.durationValue(opt.Duration); ok {
				if d <= 0 {
					c.err("E0404", at, "`retain` needs a duration above zero").because("rows that are kept for no time could not be read").fix("`retain 7d`").
						replaceDuration(opt.Duration, "7d")
				}
				o.retain = time.Duration(d)
			}
		case "partitions":
			if opt.Int != nil {
				if n, ok := c.intValue(opt.Int, at); ok {
					if n < 1 || n > maxPartitions {
						c.err("E0404", span{int(opt.Int.Pos), int(opt.End)}, "a topic has 1 to %d partitions, not %d", maxPartitions, n).because("each partition costs files and memory, and rows need at least one").
							replace(span{int(opt.Int.Pos), int(opt.End)}, itoa(int(min(max(n, 1), maxPartitions))))
					} else {
						o.partitions = int(n)
					}
				}
			}
		case "late", "invalid", "errors":
			side := c.side(opt, at)
			switch opt.Word {
			case "late":
				o.late = side
			case "invalid":
				o.invalid = side
			default:
				o.errors = side
			}
		}
	}
	return o
}

// removeOption offers to take option i out of the list.
func (c *checker) removeOption(f *finding, list []syntax.Option, i int) {
	switch {
	case i > 0:
		f.replace(span{int(list[i-1].End), int(list[i].End)}, "")
	case len(list) > 1:
		f.replace(span{int(list[0].Pos), int(list[1].Pos)}, "")
	default:
		w := c.lastWordBefore(int(list[0].Pos))
		if c.src.slice(w) != "with" {
			return
		}
		f.replace(span{w.start, int(list[0].End)}, "")
	}
	if f.d.Fix == "``" {
		f.d.Fix = "leave it out"
	}
}

// lastWordBefore is the word that ends before i, spaces apart.
func (c *checker) lastWordBefore(i int) span {
	t := c.src.text
	e := c.src.clamp(i)
	for e > 0 && (t[e-1] == ' ' || t[e-1] == '\t' || t[e-1] == '\n' || t[e-1] == '\r') {
		e--
	}
	s := e
	for s > 0 && isWordByte(t[s-1]) {
		s--
	}
	return span{s, e}
}

func (c *checker) format(opt *syntax.Option, at span) plan.Format {
	if len(opt.Names) == 0 {
		return plan.FormatJSON
	}
	n := opt.Names[0]
	ns := c.nameSpan(n)
	if opt.String != "" && (n.Text == "json" || n.Text == "csv" || n.Text == "arrow" || n.Text == "lines") {
		c.err("E0411", ns, "format `%s` takes no argument", n.Text).because("it is read in one way only").replace(span{ns.start, int(opt.End)}, n.Text)
	}
	switch n.Text {
	case "json":
		return plan.FormatJSON
	case "csv":
		return plan.FormatCSV
	case "arrow":
		return plan.FormatArrow
	case "lines":
		return plan.FormatLines
	case "regex":
		return plan.FormatRegex
	case "avro", "protobuf":
		c.notBuilt("format", "format `"+n.Text+"`", ns, "records in that encoding").
			fix("`json`, `csv` or `arrow`").replace(span{ns.start, int(opt.End)}, "json")
	default:
		f := c.err("E0411", ns, "there is no format `%s`", n.Text).because("formats are `json`, `csv`, `arrow`, `lines` and `regex`")
		if m := c.nearest(n.Text, []string{"json", "csv", "arrow", "lines", "regex"}); m != "" {
			f.replace(ns, m)
		} else {
			f.replace(ns, "json")
		}
	}
	return plan.FormatJSON
}

// side reads `late to x`, `late drop`, ...
func (c *checker) side(opt *syntax.Option, at span) plan.Side {
	switch opt.Action {
	case "drop":
		return plan.Side{Action: plan.SideDrop}
	case "fail":
		if opt.Word == "late" {
			c.err("E0405", span{at.start, int(opt.End)}, "a late row cannot stop the pipeline").
				because("one slow producer would hold everyone else").
				fix("`late drop`, or send them to a topic").replace(span{at.start, int(opt.End)}, "late drop")
		}
		return plan.Side{Action: plan.SideFail}
	case "to":
		if opt.Target == nil {
			return plan.Side{}
		}
		if name := c.sideTarget(*opt.Target); name != "" {
			return plan.Side{Action: plan.SideTo, Topic: name}
		}
	}
	return plan.Side{}
}

// sideTarget gives the Kafka name of a side topic, or "" after a report.
func (c *checker) sideTarget(n syntax.Name) string {
	at := c.nameSpan(n)
	if !n.Quoted {
		if s := c.symbols[n.Text]; s != nil {
			switch s.kind {
			case symTopic:
				return c.kafkaName(s)
			case symDerived:
				c.err("E0103", at, "`%s` is already written by its own pipeline", n.Text).
					because("two statements cannot write one topic").
					fix("send these rows to a topic of their own, such as `%s_side`", n.Text)
			default:
				c.err("E0101", at, "`%s` is a %s, not a topic that rows can be sent to", n.Text, s.kind).because("only topics store rows").
					fix("name a topic; one that is not declared is created")
			}
			return ""
		}
	}
	if !validTopicName(n.Text) {
		c.badTopicName(n)
		return ""
	}
	if w := c.symbolWithKafkaName(n.Text); w != nil && w.kind != symTopic {
		c.err("E0103", at, "%s `%s` already has the name %q", w.kind, w.name, n.Text).
			because("two statements cannot write one topic").
			fix("send these rows to a topic of their own")
		return ""
	}
	return n.Text
}

func validTopicName(s string) bool { return topicName.MatchString(s) && s != "." && s != ".." }

func (c *checker) badTopicName(n syntax.Name) {
	c.err("E0410", c.nameSpan(n), "%q cannot be the name of a topic", n.Text).
		because("names have 1 to 200 letters, digits, `.`, `_` or `-`").
		fix("choose another name")
}

// kafkaName is the name of a topic, derived topic or view outside the module.
func (c *checker) kafkaName(s *symbol) string {
	var as *syntax.Name
	switch d := s.stmt.(type) {
	case *syntax.TopicDecl:
		as = d.As
	case *syntax.ViewDecl:
		as = d.As
	}
	if as != nil {
		return as.Text
	}
	return s.name
}

func (c *checker) symbolWithKafkaName(name string) *symbol {
	if c.kafka == nil {
		c.kafka = map[string]*symbol{}
		for _, s := range c.order {
			if s.kind != symTopic && s.kind != symDerived && s.kind != symView {
				continue
			}
			if n := c.kafkaName(s); c.kafka[n] == nil {
				c.kafka[n] = s
			}
		}
	}
	return c.kafka[name]
}

// claim enters the Kafka name of a statement and reports one that is not free or not valid.
func (c *checker) claim(s *symbol, as *syntax.Name) {
	name := c.kafkaName(s)
	at := s.at
	if as != nil {
		at = c.nameSpan(*as)
	}
	if !validTopicName(name) {
		if as != nil {
			c.badTopicName(*as)
			return
		}
		c.err("E0410", at, "%q cannot be the name of a topic", name).
			because("names have 1 to 200 letters a to z, digits, `.`, `_` or `-`").
			fix("give it a name for the outside: `%s as \"%s\"`", name, asciiName(name)).
			replace(span{at.end, at.end}, " as \""+asciiName(name)+"\"")
		return
	}
	if other := c.writers[name]; other != nil {
		c.err("E0103", at, "topic %q is declared by two statements", name).
			because("`%s` in line %d has that name too", other.name, c.src.line(other.at.start)).
			fix("give one of them another name with `as \"..\"`")
		return
	}
	c.writers[name] = s
}

// asciiName is a topic name that resembles name.
func asciiName(name string) string {
	out := []byte{}
	for _, r := range name {
		if r < 128 {
			out = append(out, byte(r))
		} else {
			out = append(out, '_')
		}
	}
	return string(out[:min(len(out), 200)])
}

// declareTopic checks `topic x {schema} with ..`.
func (c *checker) declareTopic(s *symbol) {
	d := s.stmt.(*syntax.TopicDecl)
	if d.Schema == nil || s.state == done {
		return
	}
	s.state = done
	c.claim(s, d.As)
	cols, ok := c.fields(d.Schema.Fields)
	switch {
	case d.Schema.Broken:
		ok = false // what could not be read was reported, and may be what others ask for
	case len(d.Schema.Fields) == 0:
		c.err("E0440", s.at, "topic `%s` has no columns", s.name).
			because("a row needs at least one").
			fix("name the fields that its records have: `{ id: string, .. }`")
		ok = false
	}
	if len(cols) > maxColumns {
		c.err("E0139", s.at, "a row has at most %d columns, `%s` has %d", maxColumns, s.name, len(cols)).
			because("the work for a row must be bounded").fix("leave out fields that are not read")
		cols, ok = cols[:maxColumns], false
	}
	o := c.checkOptions(d.Options, sinkDeclared)
	t := &plan.Topic{
		Ident: s.name, Name: c.kafkaName(s), Schema: plan.Schema{Columns: cols},
		Format: o.format, Partitions: o.partitions, Retain: o.retain,
		Late: o.late, Invalid: o.invalid, Errors: o.errors, Declared: true,
		Time: plan.TimeSpec{Future: defaultFuture},
	}
	if t.Partitions == 0 {
		t.Partitions = c.opts.Partitions
	}
	c.formatColumns(t, o, func(i int) span {
		if len(cols) != len(d.Schema.Fields) {
			return span{}
		}
		return c.nameSpan(d.Schema.Fields[i].Name)
	})
	if ok {
		t.Key = c.keyColumns(o.key, cols)
	}
	s.topic = t
	if !ok {
		s.broken = true // readers see the columns that are good; the rest was reported
		return
	}
	if d.Table {
		c.tableFormat(s, o)
		c.declaredTable(s, t)
	}
	if opt := o.given["time"]; opt != nil {
		c.timeOption(opt, t)
	}
}

// plainColumns reports columns that have parts; holder is what would have to hold them, and record what a record is.
func (c *checker) plainColumns(cols []plan.Column, holder, record string, at func(int) span) {
	for i, col := range cols {
		switch col.Type.Kind {
		case scalar.KindList, scalar.KindMap, scalar.KindStruct:
			c.err("E0412", at(i), "%s cannot hold column `%s`, which is %s", holder, col.Name, TypeString(col.Type)).
				because("%s", record).
				fix("use `format json`, or select its parts as columns")
		}
	}
}

// keyColumns resolves `key (a, b)`.
func (c *checker) keyColumns(names []syntax.Name, cols []plan.Column) []int {
	var key []int
	for _, n := range names {
		i := columnIndex(cols, n.Text)
		at := c.nameSpan(n)
		if i < 0 {
			c.unknownColumn(n.Text, at, cols, "the key")
			return nil
		}
		if why := keyable(cols[i].Type); why != "" {
			f := c.err("E0406", at, "`%s` cannot be part of the key: it is %s", n.Text, TypeString(cols[i].Type)).because("%s", why)
			if cols[i].Type.Kind.Float() {
				f.fix("make it a decimal or a string first")
			} else {
				f.fix("use one of its parts")
			}
			return nil
		}
		for _, k := range key {
			if k == i {
				c.err("E0108", at, "`%s` is in the key twice", n.Text).because("the second one would tell no rows apart").fix("name it once")
				return key
			}
		}
		key = append(key, i)
	}
	return key
}

func columnIndex(cols []plan.Column, name string) int {
	for i := range cols {
		if cols[i].Name == name {
			return i
		}
	}
	return -1
}

// unknownColumn reports a name that is no column, with the nearest one.
func (c *checker) unknownColumn(name string, at span, cols []plan.Column, where string) *finding {
	names := make([]string, len(cols))
	for i := range cols {
		names[i] = cols[i].Name
	}
	f := c.err("E0104", at, "%s has no column `%s`", where, name)
	if _, is := simpleTypes[name]; is {
		return f.because("`%s` is a type", name).fix("a type is named in a string here: `\"%s\"`", name).replace(at, "\""+name+"\"")
	}
	if scalar.Callable(name) || isAggregate(name) {
		switch sample := name + "(x)"; {
		case name == "count":
			f.because("`count` is a function").fix("`count()`").replace(at, "count()")
		case closureFunctions[name]:
			f.because("`%s` is a function", name).fix("call it: `%s(xs, # > 1)`", name)
		default:
			f.because("`%s` is a function", name).fix("call it: `%s`; in a closure its argument is `#`", sample)
		}
		return f
	}
	if n := c.nearest(name, names); n != "" {
		return f.because("did you mean `%s`?", n).replace(at, n)
	}
	sort.Strings(names)
	switch {
	case len(names) == 0:
		f.because("there are no columns at this place")
	case len(names) <= 12:
		f.because("the columns are %s", quoteList(names))
	default:
		f.because("the columns are %s and %d more", quoteList(names[:12]), len(names)-12)
	}
	return f.fix("use one of the columns")
}

// timeOption checks `time ts lag 5s idle 30s`.
func (c *checker) timeOption(opt *syntax.Option, t *plan.Topic) {
	spec := &t.Time
	spec.Append = opt.TimeAppend
	seen := map[string]bool{}
	delay := false
	for i := range opt.Spans {
		sp := &opt.Spans[i]
		at := c.wordSpan(sp.Pos)
		seen[sp.Word] = true
		n, ok := c.durationValue(&sp.Duration)
		if !ok {
			continue
		}
		if n < 0 || n == 0 && sp.Word != "lag" && sp.Word != "delay" {
			c.err("E0404", at, "`%s` needs a duration above zero", sp.Word).because("a wait of no length never takes effect").
				fix("`%s 30s`", sp.Word).replaceDuration(&sp.Duration, "30s")
			continue
		}
		switch sp.Word {
		case "lag":
			spec.Lag = time.Duration(n)
		case "idle":
			spec.Idle = time.Duration(n)
		case "delay":
			spec.Delay, delay = time.Duration(n), true
		case "future":
			spec.Future = time.Duration(n)
		}
	}
	if !delay {
		spec.Delay = spec.Lag
	}
	if opt.TimeAppend {
		if seen["lag"] && spec.Lag > 0 {
			f := c.err("E0408", c.wordSpan(opt.Pos), "`time append` has no lag").
				because("append times never go back within a partition").
				fix("leave `lag` out")
			for i := range opt.Spans {
				if sp := &opt.Spans[i]; sp.Word == "lag" {
					end := int(sp.Duration.Pos) + len(cmp.Or(sp.Duration.Const, sp.Duration.Text))
					start := len(strings.TrimRight(c.src.text[:int(sp.Pos)], " \t"))
					f.replace(span{start, end}, "")
				}
			}
		}
		return
	}
	if opt.TimeExpr == nil {
		return
	}
	e := c.expression(opt.TimeExpr, topicScope(t))
	if e == nil {
		return
	}
	at := exprSpan(opt.TimeExpr)
	if e.Type.Kind != scalar.KindTime {
		f := c.err("E0407", at, "`time` needs a time, `%s` is %s", c.src.slice(at), TypeString(e.Type)).because("windows and lags are measured in event time")
		switch {
		case e.Type.Kind.Integer():
			f.because("a number does not say its unit").fix("declare the column as `time(\"ms\")`, or use `time (from_epoch(%s, \"ms\"))`", c.src.slice(at))
		case e.Type.Kind == scalar.KindString:
			f.fix("declare the column as `time`, or as `time(\"yyyy-MM-dd HH:mm:ss\")` with the layout that it has")
		case e.Type.Kind == scalar.KindDate:
			f.because("a date is a whole day").fix("use a column with the time of day")
		default:
			f.fix("name a column of type `time`")
		}
		return
	}
	if e.Op == plan.ExprMeta && e.Meta == plan.MetaTime {
		return // the record timestamp, which is the default
	}
	spec.Expr = e
}
