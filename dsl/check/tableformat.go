package check

import "github.com/headrace/headrace/dsl/plan"

// tableFormat reports a table whose rows would lie in columns.
func (c *checker) tableFormat(s *symbol, o options) {
	if o.format != plan.FormatArrow {
		return
	}
	at := s.at
	if opt := o.given["format"]; opt != nil && len(opt.Names) > 0 {
		at = c.nameSpan(opt.Names[0])
	}
	c.notBuilt("format", "a table of format `arrow`", at, "rows that replace others, in columns").
		fix("`json` or `csv`").replace(at, "json")
}
