// Package golden compares test output with files under testdata.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

// Update is the -update flag of test binaries: rewrite golden files instead of comparing.
var Update = flag.Bool("update", false, "rewrite golden files")

// Check fails t unless the file at path holds exactly got. With -update it writes the file.
func Check(t testing.TB, path, got string) {
	t.Helper()
	if *Update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if string(want) != got {
		t.Errorf("%s differs from what the code gives\n--- want\n%s\n--- got\n%s", path, want, got)
	}
}
