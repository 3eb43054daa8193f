// Package dsl compiles modules: text in, a checked plan or positioned errors out.
//
// It is the front of dsl/syntax (text to tree) and dsl/check (tree to plan), and shows what they found.
// It runs nothing. All functions may be called by any goroutine.
package dsl

import (
	"fmt"
	"sort"
	"strings"

	"github.com/headrace/headrace/dsl/check"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

// A Catalog finds topics that a module names and does not declare.
type Catalog = check.Catalog

// A Code explains one kind of diagnostic.
type Code = check.Code

// Options are what a module cannot say about itself. The zero value works.
type Options struct {
	Name       string            // of the module, prefix of its pipelines; "" is the base name of the file
	Catalog    Catalog           // of the server; nil: only the module's own topics
	Params     map[string]string // values of `param` statements, as text
	Partitions int               // of a topic that does not say; 0 is 1
}

// Errors are the errors of a module, and its warnings among them, sorted by place. It has at least one
// error.
type Errors struct {
	List []plan.Diagnostic
}

// Error is a summary: the first error and how many there are.
func (e *Errors) Error() string {
	first, n := plan.Diagnostic{}, 0
	for _, d := range e.List {
		if check.IsError(d) {
			if n == 0 {
				first = d
			}
			n++
		}
	}
	s := fmt.Sprintf("%s:%d:%d: %s %s", first.File, first.Line, first.Column, first.Code, first.Message)
	if n > 1 {
		s += fmt.Sprintf(" (and %d more)", n-1)
	}
	return s
}

// Compile checks a module and returns its plan. The error is *Errors; warnings alone do not fail and
// are in the plan.
func Compile(file, text string, o Options) (*plan.Module, error) {
	if o.Name == "" {
		o.Name = moduleName(file)
	}
	tree, syntaxErrors := syntax.Parse(file, text)
	m, found := check.Check(tree, check.Options{
		Name: o.Name, Catalog: o.Catalog, Params: o.Params, Partitions: o.Partitions, Syntax: syntaxErrors,
	})
	list := append(syntaxErrors, found...)
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return a.Line < b.Line || a.Line == b.Line && a.Column < b.Column
	})
	for _, d := range list {
		if check.IsError(d) {
			return nil, &Errors{List: list}
		}
	}
	return m, nil
}

// moduleName is the base name of a file without its ending.
func moduleName(file string) string {
	if i := strings.LastIndexAny(file, `/\`); i >= 0 {
		file = file[i+1:]
	}
	return strings.TrimSuffix(file, ".hr")
}

// Codes lists every code of the language with its explanation, in order.
func Codes() []Code { return check.Codes() }

// Apply makes the edit of a diagnostic in the text it was found in. ok is false when it has none.
func Apply(text string, d plan.Diagnostic) (edited string, ok bool) {
	e := d.Edit
	if e == nil || e.Start < 0 || e.End < e.Start || e.End > len(text) {
		return text, false
	}
	return text[:e.Start] + e.Text + text[e.End:], true
}
