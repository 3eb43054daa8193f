package check_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/check"
)

// The table of codes must hold every code that some part of the language gives.
func TestTableHoldsEveryCodeInTheSources(t *testing.T) {
	known := map[string]bool{}
	for _, c := range check.Codes() {
		known[c.Code] = true
	}
	code := regexp.MustCompile(`"([EW]0\d{3})"`)
	for _, dir := range []string{".", "../syntax", "../expr"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources in %s: %v", dir, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range code.FindAllStringSubmatch(string(b), -1) {
				if !known[m[1]] {
					t.Errorf("%s gives %s, which is not in the table", f, m[1])
				}
			}
		}
	}
}
