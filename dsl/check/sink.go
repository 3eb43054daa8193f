package check

import (
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// viewStages are the stages that a view evaluates while delivering.
var viewStages = map[string]bool{
	"where": true, "set": true, "select": true, "drop": true, "rename": true, "unwrap": true, "key": true, "check": true,
}

// notForView is E0421.
func (c *checker) notForView(at span, what string) {
	c.err("E0421", at, "a view cannot hold %s", what).
		because("a view is evaluated while delivering and stores nothing").
		fix("make it a `topic`: a stored topic takes every stage")
}

// sinkTopic is what readers of a derived topic or view see; it settles the key and judges the emission.
func (c *checker) sinkTopic(s *symbol, f *flow, o options) *plan.Topic {
	s.opts = o
	c.judgeSink(s, f)
	if f.unknown || f.source == nil {
		return nil
	}
	d, _ := s.stmt.(*syntax.TopicDecl)
	table := d != nil && d.Table
	if table || s.kind == symView && f.stream != plan.StreamAppend {
		c.settleTable(s, f, o)
	} else {
		c.settleKey(s, f, o)
	}
	t := &plan.Topic{
		Ident: s.name, Name: c.kafkaName(s), Key: f.key, Format: o.format, Partitions: o.partitions, Retain: o.retain,
		Late: o.late, Invalid: o.invalid, Errors: o.errors, Derived: s.kind == symDerived,
		Table: table || f.stream != plan.StreamAppend,
	}
	if s.kind == symView {
		t.Partitions = f.source.Partitions
	}
	for _, col := range f.cols {
		t.Schema.Columns = append(t.Schema.Columns, plan.Column{
			Name: col.Name, Input: col.Name, Type: col.Type, Members: memberColumns(col.Type),
		})
	}
	c.formatColumns(t, o, func(int) span { return s.at })
	if t.Table {
		c.tableFormat(s, o)
	}
	c.warnIdle(s, f)
	return t
}

// settleKey applies `with key (..)`, and reports a key whose columns are gone.
func (c *checker) settleKey(s *symbol, f *flow, o options) {
	if opt := o.given["key"]; opt != nil {
		key := c.keyColumns(o.key, f.cols)
		if key == nil && len(o.key) > 0 {
			return
		}
		same := f.lost == nil && len(key) == len(f.key)
		for i := range key {
			same = same && key[i] == f.key[i]
		}
		if !same {
			c.rekey(f, "key", c.src.pos(int(opt.Pos)), key)
		}
		return
	}
	if f.lost == nil {
		return
	}
	l := f.lost
	what := "`" + l.word + "` drops"
	if l.word == "set" {
		what = "`set` changes"
	}
	x := c.err("E0430", l.at, "%s `%s`, which is part of the key", what, l.column).
		because("without it a reader cannot tell which partition a row belongs to")
	name := ""
	for i := range f.cols {
		if f.cols[i].Name == l.column && keyable(f.cols[i].Type) == "" {
			name = l.column
		}
	}
	for i := 0; name == "" && i < len(f.cols); i++ {
		if keyable(f.cols[i].Type) == "" {
			name = f.cols[i].Name
		}
	}
	if name == "" {
		x.fix("keep `%s`, or write `with key ()` for rows without a key", l.column)
		return
	}
	x.fix("keep `%s`, or name the new key: `|> key (%s)`", l.column, name)
	if p := pipelineOf(s.stmt); p != nil {
		x.replace(span{int(p.End), int(p.End)}, " |> key ("+name+")")
	}
}

func pipelineOf(st syntax.Statement) *syntax.Pipeline {
	switch d := st.(type) {
	case *syntax.TopicDecl:
		return d.Pipeline
	case *syntax.ViewDecl:
		return d.Pipeline
	case *syntax.StreamDecl:
		return d.Pipeline
	}
	return nil
}

// warnIdle is W0210: a silent partition would hold every window open.
func (c *checker) warnIdle(s *symbol, f *flow) {
	t := f.source
	if !f.judges || t.Derived || t.Time.Idle > 0 || t.Partitions <= 1 {
		return
	}
	p := pipelineOf(s.stmt)
	if p == nil {
		return
	}
	x := c.err("W0210", c.nameSpan(p.Source), "a silent partition of `%s` holds back every window of `%s`", t.Ident, s.name).
		because("windows close when all %d partitions have passed their end, and `%s` has no `idle`", t.Partitions, t.Ident)
	src := c.symbols[t.Ident]
	if src == nil || src.kind != symTopic {
		x.fix("declare the topic with `time .. idle 30s`")
		return
	}
	x.fix("add `idle 30s` to the time of `%s`", t.Ident)
	if d, ok := src.stmt.(*syntax.TopicDecl); ok {
		for i := range d.Options {
			if d.Options[i].Word == "time" {
				x.replace(span{int(d.Options[i].End), int(d.Options[i].End)}, " idle 30s")
				return
			}
		}
		opts := " with time (record.time) idle 30s"
		if len(d.Options) > 0 {
			opts = ", time (record.time) idle 30s"
		}
		x.replace(span{int(d.End), int(d.End)}, opts)
	}
}

// pipeline builds the plan of a derived topic, or nil if something in it was reported.
func (c *checker) pipeline(s *symbol) *plan.Pipeline {
	f := s.flow
	if f == nil || f.unknown || s.topic == nil {
		return nil
	}
	name := s.name
	if c.opts.Name != "" {
		name = c.opts.Name + "/" + s.name
	}
	p := &plan.Pipeline{Name: name, Source: f.source, Output: s.topic, Stages: prune(f.source, f.stages)}
	p.Invalid = c.sideOf(s, "invalid", f.source.Name+"_invalid", s.opts.invalid, f.source.Invalid)
	p.Errors = c.sideOf(s, "errors", s.topic.Name+"_errors", s.opts.errors, f.source.Errors)
	if f.judges {
		own := s.opts.late
		if f.late != nil {
			own = *f.late
		}
		p.Late = c.sideOf(s, "late", s.topic.Name+"_late", own, f.source.Late)
	}
	c.sideColumns(s, p)
	if p.Invalid.Action == plan.SideTo && p.Invalid.Topic == p.Source.Name {
		c.sideLoop(s, "invalid", p.Source)
	}
	p.Needed = neededColumns(f.source, p.Stages)
	p.Text = c.statementText(s.stmt)
	p.Version = version(p)
	return p
}

// sideOf picks the first side that was written, or the default topic.
func (c *checker) sideOf(s *symbol, word, def string, written ...plan.Side) plan.Side {
	for _, w := range written {
		if w.Action != plan.SideDefault {
			return w
		}
	}
	if len(def) > 200 {
		c.err("E0410", s.at, "the side topic %q would have too long a name", def).
			because("names have at most 200 characters").fix("name it: `%s to ..`", word)
	}
	if o := c.symbolWithKafkaName(def); o != nil && o.kind != symTopic {
		c.err("E0103", s.at, "the %s rows of `%s` would go to `%s`, which another statement writes", sideRows(word), s.name, def).
			because("two statements cannot write one topic").fix("name another topic: `%s to ..`", word)
	}
	return plan.Side{Action: plan.SideTo, Topic: def}
}

// sideLoop reports rows that would come back to the topic they came from.
func (c *checker) sideLoop(s *symbol, word string, t *plan.Topic) {
	c.err("E0109", s.at, "the %s rows of `%s` would come back to `%s`, which it reads", sideRows(word), s.name, t.Ident).
		because("each of them would fail again, for ever").
		fix("send them to a topic of their own: `%s to %s_%s`", word, identLike(t.Ident), word)
}

func sideRows(word string) string {
	if word == "errors" {
		return "failed"
	}
	return word
}

// sideColumns requires that a declared side topic has the columns of the rows that go there: late and
// failed rows keep the form of the source.
func (c *checker) sideColumns(s *symbol, p *plan.Pipeline) {
	for _, side := range []struct {
		word string
		plan.Side
	}{{"late", p.Late}, {"errors", p.Errors}} {
		if side.Action != plan.SideTo {
			continue
		}
		if side.Topic == p.Source.Name {
			c.sideLoop(s, side.word, p.Source)
			continue
		}
		o := c.symbolWithKafkaName(side.Topic)
		if o == nil || o.kind != symTopic || o.topic == nil || o.topic == p.Source {
			continue
		}
		if diff := columnDiff(p.Source.Schema.Columns, o.topic.Schema.Columns); diff != "" {
			c.err("E0441", s.at, "the %s rows of `%s` do not fit topic `%s`", sideRows(side.word), s.name, o.name).
				because("they keep the columns of `%s`: %s", p.Source.Ident, diff).
				fix("declare `%s` with the columns of `%s`, or send the rows to a topic that is not declared", o.name, p.Source.Ident)
		}
	}
}

// columnDiff says how two lists of columns differ, or "".
func columnDiff(want, got []plan.Column) string {
	for _, w := range want {
		i := columnIndex(got, w.Name)
		switch {
		case i < 0:
			return "`" + w.Name + "` is missing"
		case !w.Type.Same(got[i].Type) || w.Type.Nullable && !got[i].Type.Nullable:
			return "`" + w.Name + "` is " + TypeString(got[i].Type) + " instead of " + TypeString(w.Type)
		case w.Input != got[i].Input || w.TimeLayout != got[i].TimeLayout:
			return "`" + w.Name + "` is spelled differently in the records"
		}
	}
	return ""
}

// statementText is a statement as the formatter writes it.
func (c *checker) statementText(st syntax.Statement) string {
	start, end := extent(st)
	text := strings.TrimSpace(c.src.slice(span{start, end}))
	if out, list := syntax.Format(text); len(list) == 0 {
		return strings.TrimSpace(out)
	}
	return text
}

// view builds the plan of a view, or nil if something in it was reported.
func (c *checker) view(s *symbol) *plan.View {
	f := s.flow
	if f == nil || f.unknown || s.topic == nil {
		return nil
	}
	stages := prune(f.source, f.stages)
	return &plan.View{
		Name: s.name, Topic: s.topic, Source: f.source, Stages: stages,
		Needed: neededColumns(f.source, stages), Errors: plan.Side{Action: plan.SideDrop}, Text: c.statementText(s.stmt),
	}
}
