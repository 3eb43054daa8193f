// Package check gives a parsed module its meaning: names, types, keys, time and sinks. It turns the
// syntax tree into a plan, or says what is wrong with it.
//
// Expressions are expr-lang trees, but their types and their meaning are decided here: null
// propagation, Kleene logic, narrowing, exact decimals and comparisons, checked constants. Overloads
// come from internal/scalar, whose reference functions also fold constants; a typed plan.Expr
// therefore never depends on Go's own arithmetic.
//
// Every finding is a plan.Diagnostic with a stable code (see Codes), a place, a reason and a fix; the
// checker goes on after each one and reports all of a module, each cause once. It does no I/O, keeps
// no state between calls and never panics on a tree that the parser made.
package check

import (
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// A Catalog finds topics that a module names and does not declare. It is asked with the name as
// written; the topic that it returns must not be changed afterwards.
type Catalog interface {
	Topic(name string) (*plan.Topic, bool)
}

// Options are what a module cannot say about itself.
type Options struct {
	Name       string            // of the module; prefixes its pipelines
	Catalog    Catalog           // nil: only the module's own topics
	Params     map[string]string // values of param statements, as text
	Partitions int               // of a topic that does not say; 0 is 1
	// Syntax is what the parser reported. Statements with an error lack some of their parts, so what
	// only seems to be unknown there is not reported.
	Syntax []plan.Diagnostic
}

// Check decides what m means. The plan is complete when no diagnostic is an error (code E..); else it
// is nil. Warnings (code W..) are among the diagnostics and in Module.Warnings. Diagnostics are sorted
// by place.
func Check(m *syntax.Module, o Options) (*plan.Module, []plan.Diagnostic) {
	if o.Partitions <= 0 {
		o.Partitions = 1
	}
	c := &checker{
		mod:     m,
		opts:    o,
		src:     newSource(m.File, m.Text),
		symbols: map[string]*symbol{},
		writers: map[string]*symbol{},
	}
	c.findDamage()
	c.collect()
	c.checkParams()
	c.checkDecls()
	out := c.lower()
	list := c.diagnostics()
	if out != nil {
		for _, d := range list {
			if IsError(d) {
				return nil, list
			}
		}
		out.Warnings = list
	}
	return out, list
}

// IsError tells errors from warnings.
func IsError(d plan.Diagnostic) bool { return strings.HasPrefix(d.Code, "E") }

// A checker holds one Check.
type checker struct {
	mod     *syntax.Module
	opts    Options
	src     *source
	found   []*finding
	symbols map[string]*symbol // by identifier
	order   []*symbol          // in file order
	writers map[string]*symbol // statement that writes a topic, by Kafka name
	kafka   map[string]*symbol // topics and views by Kafka name, made by symbolWithKafkaName
	paths   int                // names given by freshPath
	columns int                // made by all stages so far

	incomplete bool                       // a statement is missing
	damaged    map[*syntax.Pipeline]bool  // something of the pipeline is missing
	holes      map[*syntax.TopicDecl]bool // a column is missing
}

// A symbolKind is the kind of statement that declares a name.
type symbolKind uint8

const (
	symTopic symbolKind = iota + 1 // declared by a schema
	symDerived
	symStream
	symView
	symConst
	symParam
	symFunc
	symType
)

func (k symbolKind) String() string {
	return [...]string{"", "topic", "topic", "stream", "view", "const", "param", "fn", "type"}[k]
}

// readable says whether `from` may name it.
func (k symbolKind) readable() bool { return k >= symTopic && k <= symView }

// A symbol is a declared name with what the checker knows about it so far.
type symbol struct {
	kind  symbolKind
	name  string
	stmt  syntax.Statement
	at    span
	state progress

	topic *plan.Topic // symTopic, symDerived, symView: what a reader sees; nil while unknown
	flow  *flow       // symDerived, symStream, symView: the checked pipeline
	value *constant   // symConst, symParam
	fn    *function   // symFunc
	opts  options     // symDerived, symView

	broken bool // symTopic: some columns were reported and are missing
	typ    *plan.Column
}

// progress marks symbols during the depth-first walk that finds cycles.
type progress uint8

const (
	untouched progress = iota
	running
	done
)

// findDamage notes which statements the parser could not read completely.
func (c *checker) findDamage() {
	c.damaged, c.holes = map[*syntax.Pipeline]bool{}, map[*syntax.TopicDecl]bool{}
	for _, d := range c.opts.Syntax {
		if d.Line < 1 || d.Line > len(c.src.lines) {
			continue
		}
		line := c.src.lineText(d.Line)
		at := c.src.lines[d.Line-1] + len(line)
		for i := range line {
			if utf8.RuneCountInString(line[:i]) == d.Column-1 {
				at = c.src.lines[d.Line-1] + i
				break
			}
		}
		inside := false
		for _, st := range c.mod.Statements {
			start, end := extent(st)
			if at < start || at > end {
				continue
			}
			inside = true
			if p := pipelineOf(st); p != nil {
				c.damaged[p] = true
			}
			if t, ok := st.(*syntax.TopicDecl); ok {
				c.holes[t] = true
			}
		}
		c.incomplete = c.incomplete || !inside
	}
}

func extent(st syntax.Statement) (start, end int) {
	switch d := st.(type) {
	case *syntax.TopicDecl:
		return int(d.Pos), int(d.End)
	case *syntax.StreamDecl:
		return int(d.Pos), int(d.End)
	case *syntax.ViewDecl:
		return int(d.Pos), int(d.End)
	case *syntax.PipelineStmt:
		return int(d.Pos), int(d.End)
	case *syntax.ConstDecl:
		return int(d.Pos), int(d.End)
	case *syntax.ParamDecl:
		return int(d.Pos), int(d.End)
	case *syntax.FuncDecl:
		return int(d.Pos), int(d.End)
	case *syntax.TypeDecl:
		return int(d.Pos), int(d.End)
	case *syntax.TestDecl:
		return int(d.Pos), int(d.End)
	}
	return 0, -1
}

// collect enters every declared name and reports names that are taken.
func (c *checker) collect() {
	for _, st := range c.mod.Statements {
		s := &symbol{stmt: st}
		var name syntax.Name
		switch d := st.(type) {
		case *syntax.TopicDecl:
			name, s.kind = d.Name, symTopic
			if d.Pipeline != nil {
				s.kind = symDerived
			}
		case *syntax.StreamDecl:
			name, s.kind = d.Name, symStream
		case *syntax.ViewDecl:
			name, s.kind = d.Name, symView
		case *syntax.ConstDecl:
			name, s.kind = d.Name, symConst
		case *syntax.ParamDecl:
			name, s.kind = d.Name, symParam
		case *syntax.FuncDecl:
			name, s.kind = d.Name, symFunc
		case *syntax.TypeDecl:
			name, s.kind = d.Name, symType
		case *syntax.PipelineStmt:
			c.notBuilt("bare", "a pipeline without a name", c.wordSpan(d.Pos), "its stages would write topics themselves").
				fix("name what it makes: `topic x = from ..`")
			continue
		case *syntax.TestDecl:
			c.notBuilt("test", "`test`", c.wordSpan(d.Pos), "tests in virtual time")
			continue
		default:
			continue
		}
		s.name, s.at = name.Text, c.nameSpan(name)
		if name.Text == "" {
			continue
		}
		if other, taken := c.symbols[s.name]; taken {
			c.err("E0102", s.at, "`%s` is declared twice", s.name).
				because("line %d already declares %s `%s`", c.src.line(other.at.start), other.kind, s.name).
				fix("give one of them another name")
			continue
		}
		c.symbols[s.name] = s
		c.order = append(c.order, s)
	}
}

// checkParams reports values that were given for no param.
func (c *checker) checkParams() {
	var names []string
	for _, s := range c.order {
		if s.kind == symParam {
			names = append(names, s.name)
		}
	}
	given := make([]string, 0, len(c.opts.Params))
	for n := range c.opts.Params {
		given = append(given, n)
	}
	sort.Strings(given)
	for _, n := range given {
		if s := c.symbols[n]; s != nil && s.kind == symParam {
			continue
		}
		f := c.err("E0138", span{0, 1}, "there is no param `%s`", n).because("a value was given for it")
		if m := c.nearest(n, names); m != "" {
			f.fix("did you mean `%s`?", m)
		} else {
			f.fix("declare it: `param %s: T`, or leave the value out", n)
		}
	}
}

// checkDecls resolves types, constants, functions and declared topics, each once.
func (c *checker) checkDecls() {
	for _, s := range c.order {
		switch s.kind {
		case symType:
			c.resolveType(s)
		case symConst, symParam:
			c.resolveConst(s)
		}
	}
	for _, s := range c.order {
		if s.kind == symFunc {
			c.resolveFunc(s)
		}
	}
	for _, s := range c.order {
		if s.kind == symTopic {
			c.declareTopic(s)
		}
	}
}

// lower checks every pipeline and gathers the plan.
func (c *checker) lower() *plan.Module {
	for _, s := range c.order {
		switch s.kind {
		case symDerived, symStream, symView:
			c.resolveFlow(s, nil)
		}
	}
	out := &plan.Module{Name: c.opts.Name, Text: c.mod.Text}
	for _, s := range c.order {
		switch s.kind {
		case symTopic:
			if s.topic != nil {
				out.Topics = append(out.Topics, s.topic)
			}
		case symDerived:
			if p := c.pipeline(s); p != nil {
				out.Pipelines = append(out.Pipelines, p)
			}
		case symView:
			if v := c.view(s); v != nil {
				out.Views = append(out.Views, v)
			}
		}
	}
	return out
}

// maxFindings bounds what is reported.
const maxFindings = 1000

// diagnostics returns the findings sorted by place, without repetitions.
func (c *checker) diagnostics() []plan.Diagnostic {
	sort.SliceStable(c.found, func(i, j int) bool {
		a, b := c.found[i], c.found[j]
		if a.at.start != b.at.start {
			return a.at.start < b.at.start
		}
		return a.d.Code < b.d.Code
	})
	var out []plan.Diagnostic
	seen := map[string]bool{}
	for _, f := range c.found {
		k := f.d.Code + "\x00" + f.d.Message + "\x00" + itoa(f.at.start)
		if seen[k] {
			continue
		}
		seen[k] = true
		if out = append(out, f.d); len(out) == maxFindings {
			break
		}
	}
	return out
}
