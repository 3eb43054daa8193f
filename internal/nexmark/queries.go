package nexmark

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed queries.hr
var queries string

// A Query is one of the queries that the language has.
type Query struct {
	Name string // q0; also the topic or table that it writes
	text string
}

// split takes the file apart: what the queries share, and each of them.
func split() (common string, list []Query) {
	parts := strings.Split(queries, "\n// q")
	for _, p := range parts[1:] {
		number, text, _ := strings.Cut(p, "\n")
		list = append(list, Query{Name: "q" + number, text: strings.TrimSpace(text)})
	}
	return parts[0], list
}

// Queries lists the queries by their numbers.
func Queries() []Query {
	_, list := split()
	return list
}

// Module is a module with the given queries over the topic nexmark; none means all.
func Module(names ...string) (string, error) {
	common, list := split()
	var b strings.Builder
	b.WriteString(common)
	for _, q := range list {
		if len(names) == 0 || slices.Contains(names, q.Name) {
			b.WriteString("\n" + q.text + "\n")
		}
	}
	for _, n := range names {
		if !slices.ContainsFunc(list, func(q Query) bool { return q.Name == n }) {
			return "", fmt.Errorf("nexmark: no query %q: want one of %s", n, Names())
		}
	}
	return b.String(), nil
}

// Names is the names of all queries, for messages.
func Names() string {
	var out []string
	for _, q := range Queries() {
		out = append(out, q.Name)
	}
	return strings.Join(out, ", ")
}
