package check

import (
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// A flow is a pipeline while its stages are checked: the rows at this place.
type flow struct {
	source  *plan.Topic
	unknown bool   // something before was reported; columns are not known
	where   string // what has the columns, for messages
	cols    []plan.Column
	key     []int
	lost    *lostKey
	stages  []plan.Stage
	meta    metaScope
	facts   *fact // about metadata columns and fields; columns carry theirs in their types

	stateful bool // an aggregate is among the stages
	judges   bool // a stage calls rows late, and waits for event time
	late     *plan.Side
	stream   plan.StreamType
	updates  *updating      // why, if stream is not append
	border   borderColumn   // of windows whose rows stay
	emit     *syntax.Option // `with emit ..`, for aggregates that do not say
}

// A lostKey says where a key column went away.
type lostKey struct {
	column string
	at     span
	word   string
	insert int // where a `key (..)` stage could be inserted, or -1
}

func (f *flow) clone() *flow {
	g := *f
	g.stages = append([]plan.Stage(nil), f.stages...)
	g.key = append([]int(nil), f.key...)
	return &g
}

// scope is what the expressions of the next stage see.
func (f *flow) scope() *scope {
	return &scope{cols: f.cols, where: f.where, unknown: f.unknown, meta: f.meta, facts: f.facts}
}

// push appends a stage and moves on to its output.
func (f *flow) push(s plan.Stage) {
	s.Type = f.stream
	f.stages = append(f.stages, s)
	f.cols = s.Out.Columns
	f.key = s.OutKey
	f.where = "the row after `" + s.Word + "`"
}

// resolveFlow checks the pipeline of a derived topic, stream or view once. from is the name that asked,
// nil for the statement itself.
func (c *checker) resolveFlow(s *symbol, from *syntax.Name) *flow {
	switch s.state {
	case done:
		return s.flow
	case running:
		at := s.at
		if from != nil {
			at = c.nameSpan(*from)
		}
		c.err("E0109", at, "%s `%s` reads itself", s.kind, s.name).
			because("the statements that read each other form a circle").
			fix("let one of them read a topic that is declared")
		return &flow{unknown: true}
	}
	s.state = running
	var p *syntax.Pipeline
	var opts []syntax.Option
	var kind sink
	switch d := s.stmt.(type) {
	case *syntax.TopicDecl:
		p, opts, kind = d.Pipeline, d.Options, sinkDerived
		c.claim(s, d.As)
	case *syntax.ViewDecl:
		p, opts, kind = d.Pipeline, d.Options, sinkView
		c.claim(s, d.As)
	case *syntax.StreamDecl:
		p = d.Pipeline
	}
	f := c.flowOf(p, s.kind == symView, opts)
	s.flow = f
	if kind != 0 {
		s.topic = c.sinkTopic(s, f, c.checkOptions(opts, kind))
	}
	s.state = done
	return f
}

// flowOf checks one pipeline from its source through its stages; opts are those of its statement.
func (c *checker) flowOf(p *syntax.Pipeline, view bool, opts []syntax.Option) *flow {
	if p == nil {
		return &flow{unknown: true}
	}
	f := c.from(p.Source)
	f.unknown = f.unknown || c.damaged[p]
	f.emit = nil
	for i := range opts {
		if opts[i].Word == "emit" && opts[i].Emit != nil {
			f.emit = &opts[i]
		}
	}
	if view && f.stateful {
		c.notForView(c.nameSpan(p.Source), "the aggregate of stream `"+p.Source.Text+"`")
		f.unknown = true
	}
	if p.Alias != nil {
		c.notBuilt("from-as", "`from .. as`", c.nameSpan(*p.Alias), "a name for the rows of the source").
			fix("leave it out").replace(c.clauseWord(c.nameSpan(*p.Alias), "as"), "")
	}
	for _, st := range p.Stages {
		if view && !viewStages[st.Word] {
			c.notForView(c.wordSpan(st.Pos), "`"+st.Word+"`")
			f.unknown = true
			continue
		}
		c.stage(f, st)
	}
	return f
}

// clauseWord widens a span to the word before it and the space before that.
func (c *checker) clauseWord(at span, word string) span {
	w := c.lastWordBefore(at.start)
	if c.src.slice(w) != word {
		return at
	}
	start := w.start
	for start > 0 && (c.src.text[start-1] == ' ' || c.src.text[start-1] == '\n' || c.src.text[start-1] == '\t') {
		start--
	}
	return span{start, at.end}
}

// clauseSpan is a clause with the space before it.
func (c *checker) clauseSpan(cl *syntax.Clause) span {
	s := span{int(cl.Pos), int(cl.End)}
	for s.start > 0 && (c.src.text[s.start-1] == ' ' || c.src.text[s.start-1] == '\n' || c.src.text[s.start-1] == '\t') {
		s.start--
	}
	return s
}

// from starts a flow at what a name means.
func (c *checker) from(n syntax.Name) *flow {
	if n.Text == "" {
		return &flow{unknown: true}
	}
	var s *symbol
	if n.Quoted {
		s = c.symbolWithKafkaName(n.Text)
	} else if s = c.symbols[n.Text]; s == nil {
		s = c.symbolWithKafkaName(n.Text) // a name of the outside that this module makes
	}
	switch {
	case s != nil && s.kind == symTopic:
		if s.topic == nil {
			return &flow{unknown: true}
		}
		d, _ := s.stmt.(*syntax.TopicDecl)
		return reading(s.topic, s.broken || c.holes[d], c.nameSpan(n))
	case s != nil && s.kind == symDerived:
		f := c.resolveFlow(s, &n)
		if s.topic == nil || f.unknown {
			return &flow{unknown: true}
		}
		return reading(s.topic, false, c.nameSpan(n))
	case s != nil && s.kind.readable():
		g := c.resolveFlow(s, &n).clone()
		g.where = s.kind.String() + " `" + s.name + "`"
		return g
	case s != nil:
		c.err("E0101", c.nameSpan(n), "`%s` is a %s, not a topic", s.name, s.kind).
			because("`from` reads a topic, stream or view").fix("name one of those")
		return &flow{unknown: true}
	}
	if c.opts.Catalog != nil {
		if t, ok := c.opts.Catalog.Topic(n.Text); ok && t != nil {
			return reading(catalogTopic(t), false, c.nameSpan(n))
		}
	}
	if c.incomplete {
		return &flow{unknown: true} // it may be in a statement that did not parse
	}
	f := c.err("E0101", c.nameSpan(n), "there is no topic `%s`", n.Text)
	var names []string
	for _, o := range c.order {
		if o.kind.readable() {
			names = append(names, o.name)
		}
	}
	if m := c.nearest(n.Text, names); m != "" {
		f.because("did you mean `%s`?", m).replace(c.nameSpan(n), m)
	} else {
		if c.opts.Catalog == nil {
			f.because("this module does not declare it, and no server was asked")
		} else {
			f.because("neither this module nor the server knows it")
		}
		fix := "declare it: `topic " + identLike(n.Text) + " { .. }`"
		if c.opts.Catalog == nil {
			fix += ", or ask a server with `check --server`"
		}
		f.fix("%s", fix)
	}
	return &flow{unknown: true}
}

func identLike(name string) string {
	return strings.Map(func(r rune) rune {
		if r < 128 && isWordByte(byte(r)) {
			return r
		}
		return '_'
	}, name)
}

// reading starts a flow at a topic or table, named at at.
func reading(t *plan.Topic, unknown bool, at span) *flow {
	f := &flow{
		source: t, unknown: unknown, where: "topic `" + t.Ident + "`", cols: t.Schema.Columns,
		key: append([]int(nil), t.Key...),
	}
	if t.Table {
		f.where = "table `" + t.Ident + "`"
		f.stream = plan.StreamTable
		f.updates = &updating{why: "`" + t.Ident + "` is a table", at: at}
	}
	return f
}

// catalogTopic makes a topic of the server readable: one without a schema has key and value.
func catalogTopic(t *plan.Topic) *plan.Topic {
	out := *t
	out.Declared = false
	if out.Ident == "" {
		out.Ident = out.Name
	}
	if len(out.Schema.Columns) == 0 {
		out.Format = plan.FormatRaw
		out.Key = nil
		out.Schema.Columns = []plan.Column{
			{Name: "key", Input: "key", Type: scalar.TypeBytes.Null()},
			{Name: "value", Input: "value", Type: scalar.TypeBytes.Null()},
		}
	}
	if out.Time.Future == 0 && !out.Derived {
		out.Time.Future = defaultFuture
	}
	return &out
}

// notBuiltStages are the stages of the grammar that come later.
var notBuiltStages = map[string]string{
	"join": "joining two streams", "match": "patterns over time",
	"route": "sending rows to several topics", "check": "sending bad rows elsewhere",
	"union": "several inputs in one",
}

// stage checks one stage and moves f on.
func (c *checker) stage(f *flow, st *syntax.Stage) {
	if _, later := notBuiltStages[st.Word]; later {
		word := c.wordSpan(st.Pos)
		name := st.Word
		c.notBuilt(name, "`"+name+"`", word, notBuiltStages[st.Word])
		f.unknown = true
		return
	}
	if !c.takesType(f, st) {
		return
	}
	switch st.Word {
	case "where":
		c.where(f, st)
	case "set":
		c.set(f, st)
	case "select":
		c.selectStage(f, st)
	case "drop":
		c.drop(f, st)
	case "rename":
		c.rename(f, st)
	case "unwrap":
		c.unwrap(f, st)
	case "key":
		c.keyStage(f, st)
	case "agg":
		c.aggregateStage(f, st)
	case "explode":
		c.explode(f, st)
	case "top":
		c.top(f, st)
	case "dedup":
		c.dedup(f, st)
	case "over":
		c.over(f, st)
	case "lookup":
		c.lookup(f, st)
	default:
		c.notBuilt("stage", "`"+st.Word+"`", c.wordSpan(st.Pos), "")
		f.unknown = true
		return
	}
	if !ownClauses[st.Word] {
		c.clauses(st)
	}
}

// clauses indexes the clauses of a stage and reports those that it does not take.
func (c *checker) clauses(st *syntax.Stage, takes ...string) map[string]*syntax.Clause {
	out := map[string]*syntax.Clause{}
	for i := range st.Clauses {
		cl := &st.Clauses[i]
		ok := false
		for _, t := range takes {
			ok = ok || t == cl.Word
		}
		at := c.wordSpan(cl.Pos)
		switch {
		case !ok:
			x := c.err("E0402", at, "`%s` takes no `%s`", st.Word, cl.Word)
			if len(takes) > 0 {
				x.because("it takes %s", quoteList(takes))
			} else {
				x.because("it takes no clauses")
			}
			x.fix("leave it out").replace(c.clauseSpan(cl), "")
		case out[cl.Word] != nil:
			c.err("E0403", at, "`%s` is given twice", cl.Word).because("it is not clear which one holds").fix("keep one of them").replace(c.clauseSpan(cl), "")
		default:
			out[cl.Word] = cl
		}
	}
	return out
}
