package check

import (
	"slices"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// keepsType are the stages that take every type of stream and give the type that they took. Another stage
// that is not in signatures takes append only.
var keepsType = map[string]bool{
	"where": true, "set": true, "select": true, "drop": true, "rename": true, "unwrap": true,
}

// judgesType are the stages that judge the type of their input themselves.
var judgesType = map[string]bool{"agg": true}

// An updating says why the rows of a stream do not stay as they are.
type updating struct {
	why    string // "the aggregate re-emits (emit update)", without a full stop
	at     span
	window bool // an aggregate with a window: `emit close` would make it append
	clause span // what `emit close` would replace, if window
}

// takesType reports a stage over rows that are replaced or taken back, if it takes only rows that stay.
func (c *checker) takesType(f *flow, st *syntax.Stage) bool {
	if f.unknown || f.stream == plan.StreamAppend || keepsType[st.Word] || judgesType[st.Word] {
		return true
	}
	c.needsAppend(f, st.Word, c.wordSpan(st.Pos))
	f.unknown = true
	return false
}

// needsAppend is E0419.
func (c *checker) needsAppend(f *flow, word string, at span) {
	x := c.err("E0419", at, "`%s` needs rows that stay, and these are replaced: %s", word, f.updates.why)
	switch word {
	case "key":
		x.because("a row that changes would have to leave one key and come under another").
			fix("group by the new key: `|> agg .. by ..`")
	default:
		x.because("it could not take back what it made of a row that goes")
		if f.updates.window {
			x.fix("let the aggregate emit once: `emit close`").replace(f.updates.clause, "emit close")
		} else {
			x.fix("read a topic, or put the stage before what makes updates of the rows")
		}
	}
}

// judgeSink reports rows that are replaced or taken back on their way into a topic.
func (c *checker) judgeSink(s *symbol, f *flow) {
	d, ok := s.stmt.(*syntax.TopicDecl)
	if !ok || d.Table || f.updates == nil || f.unknown || f.stream == plan.StreamAppend {
		return
	}
	code, what, why := "E0418", "updates", f.updates.why
	if f.stream == plan.StreamChangelog {
		code, what = "E0419", "changes"
	}
	x := c.err(code, f.updates.at, "`topic %s` cannot hold %s: %s", s.name, what, why).
		because("readers of a topic take every row as new")
	fix := "`table " + s.name + " = ..` (keeps the latest per key)"
	if f.updates.window {
		x.fix("%s, or `emit close` (one final row per window)", fix).replace(f.updates.clause, "emit close")
	} else {
		x.fix("%s", fix).replace(c.wordSpan(d.Pos), "table")
	}
}

// settleTable settles the key of a table and what a reader of it may rely on.
func (c *checker) settleTable(s *symbol, f *flow, o options) {
	opt := o.given["key"]
	switch {
	case f.unknown:
		return
	case f.stream != plan.StreamAppend:
		if opt != nil {
			if key := c.keyColumns(o.key, f.cols); f.lost == nil && !slices.Equal(key, f.key) && (key != nil || len(o.key) == 0) {
				c.err("E0419", c.wordSpan(opt.Pos), "`%s` keeps the key of its rows, which are replaced by it: %s", s.name, f.updates.why).
					because("under another key a row would not take the place of the one before").
					fix("leave `key` out, or group by the new key: `|> agg .. by ..`")
				return
			}
		}
		if f.lost != nil {
			l := f.lost
			c.err("E0430", l.at, "`%s` loses `%s`, which is part of the key", l.word, l.column).
				because("a row of a table takes the place of the one with its key").
				fix("keep `%s`", l.column)
			return
		}
	case opt == nil && f.border.is:
		// One row for each key and window.
		if f.border.column < 0 {
			c.err("E0430", f.border.at, "`%s` loses `%s`, which tells the rows of table `%s` apart", f.border.word, f.border.name, s.name).
				because("it has a row for each key and window").
				fix("keep `%s`, or say that the latest window of a key is enough: `with key (..)`", f.border.name)
			return
		}
		c.settleKey(s, f, o)
		if f.lost == nil {
			c.rekey(f, "key", c.src.pos(s.at.start), append(slices.Clone(f.key), f.border.column))
		}
	default:
		c.settleKey(s, f, o)
		if f.lost == nil && len(f.key) == 0 {
			x := c.err("E0442", s.at, "table `%s` has no key", s.name).because("a row of a table takes the place of the one with its key")
			x.fix("say which columns tell its rows apart: `with key (..)`")
		}
	}
	c.neverNull(s.at, s.name, f.cols, f.key)
}

// neverNull reports a table whose key may be null: several columns are written as a list, which has a place
// for nulls, one column by itself is not.
func (c *checker) neverNull(at span, table string, cols []plan.Column, key []int) {
	if len(key) != 1 || !cols[key[0]].Type.Nullable {
		return
	}
	name := cols[key[0]].Name
	c.err("E0443", at, "the key of table `%s` may be null: `%s` is %s", table, name, TypeString(cols[key[0]].Type)).
		because("a record without a key takes the place of none").
		fix("say what null means: `%s ?? ..`, or leave such rows out: `where %s != nil`", name, name)
}

// declaredTable judges `table x {schema}`.
func (c *checker) declaredTable(s *symbol, t *plan.Topic) {
	t.Table = true
	if len(t.Key) == 0 {
		c.err("E0442", s.at, "table `%s` has no key", s.name).
			because("a record of a table takes the place of the one with its key").
			fix("say which columns tell its rows apart: `with key (%s)`", t.Schema.Columns[0].Name)
		return
	}
	c.neverNull(s.at, s.name, t.Schema.Columns, t.Key)
}

// A borderColumn is where the column is that tells the windows of a key apart, after an aggregate with a window whose rows
// stay: window_start, of windows that begin together window_end.
type borderColumn struct {
	is     bool // there was such an aggregate, and no other key since
	column int  // -1: lost
	name   string
	word   string
	at     span
}

// follow finds the column after a projection.
func (s *borderColumn) follow(out []plan.NamedExpr, word string, at span) {
	if !s.is || s.column < 0 {
		return
	}
	for i, o := range out {
		if o.Expr.Op == plan.ExprColumn && o.Expr.Column == s.column {
			s.column = i
			return
		}
	}
	s.column, s.word, s.at = -1, word, at
}
