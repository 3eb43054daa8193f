package syntax_test

import (
	"math/rand"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/headrace/headrace/dsl/syntax"
)

// TestPlacesAgreeWithCounting checks offsets, lines and columns against counting from the start, on texts
// whose letters have one to four bytes.
func TestPlacesAgreeWithCounting(t *testing.T) {
	rng := rand.New(rand.NewSource(3))
	for _, letters := range []string{"ab \n", "aé\n", "日本語\n🙂x"} {
		var b strings.Builder
		all := []rune(letters)
		for b.Len() < 3000 {
			b.WriteRune(all[rng.Intn(len(all))])
		}
		text := "// " + strings.ReplaceAll(b.String(), "\n", "\n// ")
		m, diags := syntax.Parse("x.hr", text)
		if len(diags) > 0 {
			t.Fatal(render(diags))
		}
		runes, line, col := 0, 1, 1
		for i, r := range text {
			if l, c := m.LineCol(syntax.Pos(i)); l != line || c != col {
				t.Fatalf("byte %d is at %d:%d, want %d:%d", i, l, c, line, col)
			}
			if got := m.RuneOffset(syntax.Pos(i)); got != runes {
				t.Fatalf("byte %d is rune %d, want %d", i, got, runes)
			}
			if got := m.ByteOffset(runes); int(got) != i {
				t.Fatalf("rune %d is byte %d, want %d", runes, got, i)
			}
			runes, col = runes+1, col+1
			if r == '\n' {
				line, col = line+1, 1
			}
		}
		if got := m.RuneOffset(syntax.Pos(len(text))); got != utf8.RuneCountInString(text) {
			t.Errorf("the end is rune %d", got)
		}
		lines := strings.Split(text, "\n")
		for i, want := range lines {
			if got := m.LineText(i + 1); got != want {
				t.Errorf("line %d is %q, want %q", i+1, got, want)
			}
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]string{
		"10ns": "10ns", "5us": "5000ns", "10ms": "10000000ns", "1m": "60000000000ns", "1h30m": "5400000000000ns", "7d": "604800000000000ns",
		"2w": "1209600000000000ns", "1m500ms": "60500000000ns", "1_000ms": "1000000000ns", "0s": "0ns",
	} {
		m, diags := syntax.Parse("x.hr", "const a = "+text)
		if len(diags) > 0 {
			t.Errorf("%s: %s", text, render(diags))
			continue
		}
		if got := syntax.Dump(m); got != "(const a "+want+")\n" {
			t.Errorf("%s is %s", text, got)
		}
	}
	for _, text := range []string{"10min", "1s1m", "1m1m", "1.5h", "1e3s", "5y", "1h30", "300w1000w", "20000w"} {
		if _, diags := syntax.Parse("x.hr", "const a = "+text); len(diags) != 1 || diags[0].Code != "E0007" && diags[0].Code != "E0006" {
			t.Errorf("%s: %s", text, render(diags))
		}
	}
}
