package syntax_test

import (
	"math/rand"
	"os"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/syntax"
)

func seeds(f *testing.F) {
	for _, file := range blocks(f) {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, s := range strings.Split(string(text), "\ntopic") {
			f.Add("topic" + strings.TrimPrefix(s, "topic"))
		}
	}
	for _, s := range oddities {
		f.Add(s)
	}
}

// oddities are texts where spacing, comments or lexing are easy to get wrong.
var oddities = []string{
	"", "// only a comment", "/* a */ topic x = from y /* b */ // c",
	"topic x = from y |> where c ?.5 : 1",
	"topic x = from y |> where (c?.d ?? 1) > 2",
	"const a = -9223372036854775808",
	"const a = - -1 const b = !!true",
	"const a = xs[1:2][:3][4:][-1]",
	"const a = xs[c ? 1 : 2 : 3]",
	"const a = {b: 1, \"c\": 2, (d): 3}[e]",
	"const a = filter(xs, {# > 1 and .x < #.y}) | map(# * 2)",
	"const a = reduce(xs, #acc + #, 0)",
	"const a = (let x = 1; x + 2)",
	"const a = (if b {1} else if c {2} else {3})",
	"const a = b not in [1, 2] and not c",
	"const a = 1..3",
	"const a = x . y ?. z ?.[0]",
	"const a = ::max(1, 2) + b ? ::c(1) : ::d(2)",
	"const a = \"s\\\"t\" + 'u' + `v``w` + b\"z\"",
	"topic x {\n  // one\n  a: int64, // two\n\n  b: string?, /* three */\n  // four\n}",
	"topic x as \"team.x-v1\" {a: map<string, list<{b: int64}>>?} with key (a), time (a ?? b) lag 1s",
	"topic x = from y // trailing\n  // own\n  |> where a // why\n     // last\n",
	"test \"t\" {\n  given x { a: 1 }\n\n  // now\n  expect none y\n}",
	"test \"t\" { }",
	"topic x {}",
	"param p: decimal(12,2) = 1.5",
	"fn f(a: int64, b: string?) -> bool = a > 1",
	"fn f() -> bool = wasm \"f.wasm\" \"f\"",
	"topic x = from y |> match by a within 1h pattern not_a{2,}?~ each until b -> (c|d)+! => not e for 5m define c = a > 1 select c",
	"topic by = from window |> where by == window |> set per = over, rows = range",
}

// FuzzParse holds that no text panics, that every diagnostic has a place in the text and a fix, and that what parses
// keeps its tree through Format, which is idempotent.
func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text string) { checkText(t, text) })
}

func checkText(t *testing.T, text string) {
	m, diags := syntax.Parse("x.hr", text)
	if m == nil {
		t.Fatal("no module")
	}
	lines := strings.Split(text, "\n")
	for _, d := range diags {
		if len(d.Code) != 5 || d.Code < "E0001" || d.Code > "E0099" || d.Message == "" {
			t.Fatalf("bad diagnostic %+v", d)
		}
		if d.Fix == "" || d.Reason == "" || strings.Contains(d.Message+d.Reason+d.Fix, "%!") {
			t.Fatalf("says not what to do: %+v", d)
		}
		if d.Line < 1 || d.Line > len(lines) || d.Column < 1 || d.Length < 1 {
			t.Fatalf("diagnostic outside the text: %+v of %q", d, text)
		}
		if e := d.Edit; e != nil && (e.Start < 0 || e.End < e.Start || e.End > len(text)) {
			t.Fatalf("edit outside the text: %+v", d)
		}
	}
	if len(diags) == 0 {
		checkFormat(t, text)
	}
}

// TestMutatedModulesNeverPanic is the fuzzer's work in small: tokens of real modules dropped, doubled,
// swapped and cut.
func TestMutatedModulesNeverPanic(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var corpus []string
	for _, file := range blocks(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range strings.Split(string(text), "\ntopic") {
			corpus = append(corpus, "topic"+strings.TrimPrefix(s, "topic"))
		}
	}
	corpus = append(corpus, oddities...)
	parsed := 0
	for i := 0; i < 8000; i++ {
		words := strings.SplitAfter(corpus[rng.Intn(len(corpus))], " ")
		for n := 1 + rng.Intn(3); n > 0 && len(words) > 1; n-- {
			a, b := rng.Intn(len(words)), rng.Intn(len(words))
			switch rng.Intn(6) {
			case 0:
				words = append(words[:a:a], words[a+1:]...)
			case 1:
				words[a], words[b] = words[b], words[a]
			case 2:
				words[a] += words[b]
			case 3:
				words = words[:a+1]
			case 4:
				other := strings.SplitAfter(corpus[rng.Intn(len(corpus))], " ")
				words[a] = other[rng.Intn(len(other))]
			case 5:
				words[a] = strings.Replace(words[a], " ", []string{"\n", " // c\n", " /* d */ ", "\n\n// e\n", ""}[rng.Intn(5)], 1)
			}
		}
		text := strings.Join(words, "")
		checkText(t, text)
		if t.Failed() {
			t.Fatalf("text %d: %q", i, text)
		}
		if _, diags := syntax.Parse("x.hr", text); len(diags) == 0 {
			parsed++
		}
	}
	if parsed < 800 {
		t.Errorf("only %d of 8000 mutated texts parse: they test little of Format", parsed)
	}
}

func TestOdditiesParseAndFormat(t *testing.T) {
	for _, text := range oddities {
		checkFormat(t, text)
	}
}
