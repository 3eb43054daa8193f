package check

import (
	"regexp"
	"slices"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// maxPatternBytes bounds the regular expression of a format.
const maxPatternBytes = 4096

// formatColumns holds the columns of a topic against its format. at is where a column stands.
func (c *checker) formatColumns(t *plan.Topic, o options, at func(int) span) {
	opt := o.given["format"]
	switch t.Format {
	case plan.FormatCSV:
		c.plainColumns(t.Schema.Columns, "a CSV field", "one record is one line of plain values", at)
	case plan.FormatLines:
		whole := span{int(opt.Pos), int(opt.End)}
		switch cols := t.Schema.Columns; {
		case len(cols) != 1:
			c.err("E0413", whole, "a topic of lines has one column, `%s` has %d", t.Ident, len(cols)).
				because("the value of the record is the column").
				fix("keep one string column, and take it apart with `extract` or `part`; `format regex(\"..\")` gives a column for each group")
		case cols[0].Type.Kind != scalar.KindString && cols[0].Type.Kind != scalar.KindBytes:
			c.err("E0413", at(0), "a line is a string, `%s` is %s", cols[0].Name, TypeString(cols[0].Type)).
				because("the value of the record is the column").fix("make it `string` or `bytes`")
		}
	case plan.FormatRegex:
		c.regexColumns(t, span{int(opt.Pos), int(opt.End)}, opt.String, at)
	}
}

// regexColumns reads the pattern of `format regex("..")`.
func (c *checker) regexColumns(t *plan.Topic, whole span, pattern string, at func(int) span) {
	example := "`format regex(\"(?P<ip>[^ ]+) (?P<status>[0-9]+)\")`"
	switch {
	case t.Derived || !t.Declared:
		c.err("E0411", whole, "`%s` cannot be written in format `regex`", t.Ident).
			because("a pattern says how to read a text, not how to write one").fix("use `format json`")
		return
	case pattern == "":
		c.err("E0414", whole, "format `regex` has no pattern").because("it says where in the text the columns are").fix("write it: %s", example)
		return
	case len(pattern) > maxPatternBytes:
		c.err("E0414", whole, "a pattern has at most %d bytes, this has %d", maxPatternBytes, len(pattern)).
			because("the work for a row must be bounded").fix("read less with it")
		return
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		why := strings.TrimPrefix(err.Error(), "error parsing regexp: ")
		c.err("E0414", whole, "this is no regular expression").because("%s", why).fix("write it in the syntax of RE2: %s", example)
		return
	}
	t.Pattern = pattern
	c.plainColumns(t.Schema.Columns, "a group of a pattern", "what it has matched is one plain value", at)
	groups := re.SubexpNames()
	for i, col := range t.Schema.Columns {
		if slices.Contains(groups, col.Input) {
			continue
		}
		f := c.err("E0414", at(i), "the pattern has no group for column `%s`", col.Name).because("a column is what a group with its name has matched")
		if m := c.nearest(col.Input, slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return g == "" })); m != "" {
			f.fix("read it from the group: `%s: %s as \"%s\"`", col.Name, TypeString(col.Type), m)
		} else {
			f.fix("name a group `(?P<%s>..)`", col.Input)
		}
	}
}
