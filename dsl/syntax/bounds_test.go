package syntax_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
)

func codes(diags []plan.Diagnostic) string {
	var b strings.Builder
	for _, d := range diags {
		b.WriteString(d.Code + " ")
	}
	return strings.TrimSpace(b.String())
}

func TestBoundsAreErrorsNotCrashes(t *testing.T) {
	n := strings.Repeat
	for _, c := range []struct{ name, text, code string }{
		{"a text over 1 MiB", n(" ", syntax.MaxText+1), "E0001"},
		{"a text that is not UTF-8", "topic a \xff", "E0002"},
		{"an expression over 8 KiB", "const a = " + n("1 + ", 4000) + "1", "E0037"},
		{"an expression of many nodes", "const a = " + n("b+", 400) + "1", "E0037"},
		{"nested brackets", "const a = " + n("(", 500) + "1" + n(")", 500), "E0037"},
		{"nested types", "param a: " + n("list<", 500) + "int64" + n(">", 500), "E0009"},
		{"nested structs", "type a = {b: " + n("{b: ", 300) + "int64" + n("}", 301), "E0009"},
		{"nested patterns", "topic a = from b |> match within 1h pattern " + n("(", 500) + "c" + n(")", 500) + " define c = d select e", "E0009"},
		{"sharing", "const a = " + n("(", 30) + "b" + n(" ?: c)", 30), "E0037"},
		{"a long duration", "const a = 99999999999w", "E0007"},
		{"a large count", "topic a = from b |> top 99999999999999999999 by c", "E0020"},
	} {
		_, diags := syntax.Parse("x.hr", c.text)
		if len(diags) == 0 || diags[0].Code != c.code {
			t.Errorf("%s: got %s, want %s", c.name, codes(diags), c.code)
		}
	}
}

// TestHostileTextsTakeLinearTime feeds texts of a quarter of a mebibyte that would be slow if recovery went back or looked
// ahead too far.
func TestHostileTextsTakeLinearTime(t *testing.T) {
	for _, unit := range []string{
		"from ", "const a = (\n", "const a = (b, ", "topic a = from b |> where (c\n", "\"", "`", "/*", "(", "{", "[", "topic a {b:", "|> ", "from a |> where b c ",
		"a\n", "topic a {b c, ", "test \"a\" { given b {c: ", "from a |> match pattern (", "from b |> where c[", "é", "const a = 1\n", "'\n", "from a |> set b = c, ",
		"param a: list<", "topic a = from b |> where ((((((((((c\n", "$", "1s", "fn f(", "topic x {a:int64}",
	} {
		text := strings.Repeat(unit, 1<<18/len(unit))
		start := time.Now()
		_, diags := syntax.Parse("x.hr", text)
		formatted, _ := syntax.Format(text)
		if d := time.Since(start); testing.Verbose() && d > 300*time.Millisecond {
			t.Logf("%q repeated: %v", unit, d)
		} else if d > 5*time.Second {
			t.Errorf("%q repeated takes %v", unit, d)
		}
		if len(diags) > 100 {
			t.Errorf("%q repeated gives %d diagnostics", unit, len(diags))
		}
		_ = formatted
	}
}

func TestContextualWordsStayColumnNames(t *testing.T) {
	words := strings.Fields(`topic table view stream const param type fn test with key format retain partitions time lag idle delay future late
		invalid errors to drop fail from as where set select rename unwrap explode index union check route when agg over top ties by
		asc desc dedup join left full semi anti lookup on within valid until of latest state forever ttl max runs emit close update
		changes every window tumble hop cumulate count session calendar append per rank keep first last rows before range match order
		arrival pattern define unless each skip past next none timeout one all for given advance expect wasm`)
	for _, w := range words {
		text := fmt.Sprintf(`topic %[1]s { %[1]s: int64, b: string } with key (%[1]s)
topic a = from %[1]s
  |> where %[1]s > 1 and b == "x" or %[1]s == 2
  |> set %[1]s = %[1]s + 1, d = (%[1]s)
  |> select %[1]s, e = %[1]s * 2
  |> drop %[1]s
  |> rename %[1]s = e
  |> key (%[1]s)
  |> agg %[1]s = sum(%[1]s) where %[1]s > 0 by %[1]s window tumble(1m)
  |> top 3 by %[1]s desc
`, w)
		if _, diags := syntax.Parse("x.hr", text); len(diags) > 0 {
			t.Errorf("%s cannot be a name everywhere:\n%s", w, render(diags))
			continue
		}
		checkFormat(t, text)
	}
}
