// Package imports holds the import rules of ARCHITECTURE.md: who may import whom, and the one home of
// each outside library.
package imports

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/headrace/headrace"

// forbidden[p] lists what the packages at or below p must not import, tests included unless the
// import stands in testOnly.
var forbidden = []struct {
	from string   // package path below the module, "" for all; at or below
	not  []string // import path prefixes; a leading "./" stands for the module
	why  string
}{
	{"log", []string{"./replication", "./operators", "./dsl", "./runtime", "./server", "./client", "./cmd"}, "log knows neither raft nor operators nor the language"},
	{"log", []string{"github.com/hashicorp/raft", "github.com/apache/arrow", "github.com/expr-lang"}, "log knows neither raft, Arrow nor expressions"},
	{"log/record", []string{"./log/wal", "./log/segment", "./internal/fsx"}, "record is pure"},
	{"replication", []string{"./operators", "./dsl", "./runtime", "./server", "./client", "./cmd"}, "replication stands below runtime"},
	{"operators", []string{"./log", "./replication", "./dsl", "./runtime", "./server", "./client", "./cmd"}, "operators knows neither the log nor the language"},
	{"operators/rows", []string{"./operators/window", "./operators/top", "./operators/dedup", "./operators/over"}, "what families of operators share knows none of them"},
	{"operators/top", []string{"./operators/window", "./operators/dedup", "./operators/over"}, "a family of operators stands alone"},
	{"operators/dedup", []string{"./operators/window", "./operators/top", "./operators/over"}, "a family of operators stands alone"},
	{"operators/window", []string{"./operators/top", "./operators/dedup", "./operators/over"}, "a family of operators stands alone"},
	{"operators/over", []string{"./operators/window", "./operators/top", "./operators/dedup"}, "a family of operators stands alone"},
	{"dsl", []string{"./log", "./replication", "./operators", "./runtime", "./server", "./client", "./cmd"}, "dsl turns text into a plan and runs nothing"},
	{"dsl/plan", []string{"./dsl/syntax", "./dsl/check", "./dsl/expr"}, "the plan is plain data"},
	{"runtime", []string{"./server", "./client", "./cmd"}, "runtime stands below the fronts"},
	{"server", []string{"./cmd", "./client"}, "the fronts stand below the command"},
	{"client", []string{"./server", "./runtime", "./replication"}, "the client speaks protocols, it links no server"},
	{"internal/scalar", []string{"./log", "./operators", "./dsl", "./runtime", "./server", "./replication"}, "scalar is pure"},
	{"internal/fsx", []string{"./log", "./operators", "./dsl", "./runtime", "./server", "./replication"}, "helpers have no domain words"},
}

// homes gives each outside library the packages that may import it, tests aside.
var homes = map[string][]string{
	"github.com/hashicorp/raft":               {"replication"},
	"github.com/cockroachdb/pebble":           {"log", "replication", "internal/fsx"},
	"github.com/apache/arrow":                 {"operators", "runtime", "client", "server/flight", "internal/exprgen", "internal/rowtest", "internal/bench"},
	"google.golang.org/grpc":                  {"server/flight"},
	"github.com/google/flatbuffers":           {"server/flight"},
	"github.com/expr-lang/expr":               {"dsl"},
	"github.com/prometheus/client_golang":     {"server", "cmd"},
	"github.com/spf13/cobra":                  {"cmd/headrace"},
	"github.com/twmb/franz-go/pkg/kgo":        {"client", "cmd/headrace", "internal/bench", "internal/demo"},
	"github.com/twmb/franz-go/pkg/kadm":       {"client", "cmd/headrace"},
	"github.com/twmb/franz-go/pkg/kfake":      {"internal/bench"},
	"github.com/twmb/franz-go/pkg/kmsg":       {"server", "client"},
	"github.com/twmb/franz-go/pkg/kerr":       {"server", "client", "cmd/headrace"},
	"github.com/HdrHistogram/hdrhistogram-go": {"client", "internal/bench", "internal/demo"},
	"github.com/klauspost/compress":           {"log/record"},
	"github.com/pierrec/lz4":                  {"log/record"},
	"github.com/KimMachineGun/automemlimit":   {"server"},
	"github.com/dustin/go-humanize":           {"cmd/headrace"},
	"github.com/schollz/progressbar":          {"cmd/headrace"},
	"github.com/jedib0t/go-pretty":            {"cmd/headrace"},
}

// pure packages must not reach the clock, randomness or the environment: the same input gives the same
// output for ever.
var deterministic = []string{"operators", "internal/scalar", "log/record", "dsl/plan"}

type file struct {
	path    string // below the repository
	pkg     string // directory below the repository, slash-separated
	test    bool
	imports []string
}

func files(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var out []file
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || name == "tools") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), pkg: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(name, "_test.go")}
		for _, imp := range parsed.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, p)
		}
		out = append(out, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %d Go files from %s", len(out), root)
	}
	return out
}

func below(path, prefix string) bool {
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

func TestPackagesImportDownwardOnly(t *testing.T) {
	for _, f := range files(t) {
		for _, rule := range forbidden {
			if !below(f.pkg, rule.from) {
				continue
			}
			for _, imp := range f.imports {
				for _, not := range rule.not {
					if own, ok := strings.CutPrefix(not, "./"); ok {
						not = module + "/" + own
					}
					if below(imp, not) {
						t.Errorf("%s imports %s: %s", f.path, imp, rule.why)
					}
				}
			}
		}
	}
}

func TestOutsideLibrariesStayAtHome(t *testing.T) {
	for _, f := range files(t) {
		if f.test {
			continue
		}
		for _, imp := range f.imports {
			for lib, allowed := range homes {
				if below(imp, lib) && !slices.ContainsFunc(allowed, func(p string) bool { return below(f.pkg, p) }) {
					t.Errorf("%s imports %s, whose home is %s", f.path, imp, strings.Join(allowed, ", "))
				}
			}
		}
	}
}

func TestGoLogIsNeverImported(t *testing.T) {
	for _, f := range files(t) {
		for _, imp := range f.imports {
			if imp == "log" {
				t.Errorf("%s imports log; logging is log/slog", f.path)
			}
		}
	}
}

// The determinism of operators is an invariant of the engine: a replay must give the same bytes.
func TestPurePackagesReachNoClockAndNoChance(t *testing.T) {
	banned := []string{"math/rand", "math/rand/v2", "crypto/rand", "os", "net", "os/exec"}
	for _, f := range files(t) {
		if f.test || !slices.ContainsFunc(deterministic, func(p string) bool { return below(f.pkg, p) }) {
			continue
		}
		for _, imp := range f.imports {
			if slices.Contains(banned, imp) {
				t.Errorf("%s imports %s", f.path, imp)
			}
		}
		src, err := os.ReadFile(filepath.Join("../..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range []string{"time.Now(", "time.Since(", "time.Sleep(", "time.After("} {
			if strings.Contains(string(src), call) {
				t.Errorf("%s calls %s)", f.path, call)
			}
		}
	}
}
