package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// parts are those of the demo that its test runs; none is all.
var parts []string

// TestTheDemoFindsEveryAnswerRight is the demo itself, as `make demo` runs it.
func TestTheDemoFindsEveryAnswerRight(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	err := Run(t.Context(), Options{Out: &out, Dir: dir, Seed: 2, Parts: parts})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if !regexp.MustCompile(`^demo ok: \d+ checks passed$`).MatchString(lines[len(lines)-1]) {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
	if strings.Contains(out.String(), "FAIL") {
		t.Error(out.String())
	}
	for _, line := range lines {
		if strings.TrimRight(line, " ") != line {
			t.Errorf("blanks at the end of %q", line)
		}
	}
}

func TestAnInterruptEndsTheDemoAndLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := Run(ctx, Options{Out: &bytes.Buffer{}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestHelpersOfTheDemo(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{milli("12.345"), "12345"},
		{milli("12"), "12000"},
		{milli("-0.5"), "-500"},
		{milli("0.001"), "1"},
		{milli("many"), "many"},
		{commas(0), "0"},
		{commas(1234567), "1,234,567"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	rows := make([][]string, 240)
	at := time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range rows {
		rows[i] = []string{at.Add(time.Duration(i) * time.Minute).Format(time.RFC3339)}
	}
	if err := shuffle(rows, 0, 2*time.Hour, 1); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i, r := range rows {
		got, err := time.Parse(time.RFC3339, r[0])
		if err != nil {
			t.Fatal(err)
		}
		minute := int(got.Sub(at).Minutes())
		if minute/120 != i/120 {
			t.Errorf("row %d left its block of two hours: minute %d", i, minute)
		}
		if minute != i {
			moved++
		}
	}
	if moved < 200 {
		t.Errorf("only %d rows moved", moved)
	}
}
