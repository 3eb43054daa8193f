// Package mutants proves that the tests of the log can fail: each mutant is a small fault seeded into the code, and a
// test that exists for its own sake must notice it. It is nothing but tests.
package mutants

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A mutant is one fault. Old occurs once in the file; a mutant that does not apply any more is an error of its own.
type mutant struct {
	name     string
	file     string
	old, new string
	pkg, run string // the tests that must notice it
}

const (
	walCrash   = "^TestEveryCrashStateRecovers$"
	storeCrash = "^TestCrashLosesNothingAcknowledged$"
	nodeCrash  = "^TestEveryCrashStateOfANodeRecovers$"
)

var mutants = []mutant{
	{
		name: "the log's sync is skipped", file: "log/wal/append.go", pkg: "./log/wal", run: walCrash,
		old: "err := s.out.SyncData()\n", new: "var err error\n",
	},
	{
		name: "a rename is not made durable by a sync of its directory", file: "log/wal/upkeep.go", pkg: "./log/wal", run: walCrash,
		old: "\treturn w.syncDir()\n}\n\nfunc (w *WAL) syncDir", new: "\treturn nil\n}\n\nfunc (w *WAL) syncDir",
	},
	{
		name: "stable values are not repeated in a new log segment", file: "log/wal/append.go", pkg: "./log/wal", run: walCrash,
		old: "\t\tg.stable(k, w.mu.stable[k])\n", new: "\t\t_ = k\n",
	},
	{
		name: "a log segment is recycled before the record that releases it is synced", file: "log/wal/upkeep.go", pkg: "./log/wal", run: walCrash,
		old: "s.base+n <= w.mu.syncedFront", new: "s.base+n <= w.mu.front",
	},
	{
		name: "recovery of the log does not check record checksums", file: "log/wal/format.go", pkg: "./log/wal", run: walCrash,
		old: "if crc32.Checksum(rest[4:size], castagnoli) != binary.LittleEndian.Uint32(rest) {", new: "if size < 0 {",
	},
	{
		name: "recovery of the log ignores the chain of groups", file: "log/wal/format.go", pkg: "./log/wal", run: walCrash + "|^TestAGroupOfALostBranchIsNotTakenForTheNextOne$",
		old: "(h.number != w.next || h.prev != w.chain)", new: "(h.number != w.next)",
	},
	{
		name: "a torn tail takes the entry before it along", file: "log/wal/recover.go", pkg: "./log/wal", run: walCrash,
		old: "\tif err := r.settle(); err != nil {", new: "\tif r.bad == \"record checksum\" {\n\t\tr.w.mu.state.truncateBack(r.w.mu.state.last)\n\t}\n\tif err := r.settle(); err != nil {",
	},
	{
		name: "a rotten middle of the log is cut like a torn tail", file: "log/wal/recover.go", pkg: "./log/wal", run: "^TestAFlippedBitIsNeverCutOffOrServed$",
		old: "if h, found, err := r.walk.proof(r.end, number); err != nil || found {", new: "if h, found, err := r.walk.proof(r.end, number); err != nil && found {",
	},
	{
		name: "left-overs of a half-made segment stop upkeep", file: "log/wal/upkeep.go", pkg: "./log/wal", run: walCrash,
		old: "return name == prepareName })", new: "return false })",
	},
	{
		name: "a checkpoint is listed before the segments are synced", file: "log/checkpoint.go", pkg: "./log", run: storeCrash,
		old: "\tif err := w.dirty.sync(); err != nil {\n\t\treturn err\n\t}\n\tif err := s.flushDB(ctx)", new: "\tif err := s.flushDB(ctx)",
	},
	{
		name: "a checkpoint is listed before the rows are durable", file: "log/checkpoint.go", pkg: "./log", run: storeCrash,
		old: "\tif err := s.flushDB(ctx); err != nil {\n\t\treturn err\n\t}\n\tif err := s.writeManifest(at)", new: "\tif err := s.writeManifest(at)",
	},
	{
		name: "a checkpoint's name is given before its bytes are synced", file: "log/checkpoint.go", pkg: "./log", run: storeCrash,
		old: "if err = f.Sync(); err != nil {", new: "if err != nil {",
	},
	{
		name: "directories of new segments are not synced", file: "log/files.go", pkg: "./log", run: storeCrash,
		old: "\tfor dir := range d.dirs {\n\t\tif err := d.s.opts.FS.SyncDir", new: "\tfor dir := range map[string]bool(nil) {\n\t\tif err := d.s.opts.FS.SyncDir",
	},
	{
		name: "recovery trusts the length of a file", file: "log/recover.go", pkg: "./log", run: storeCrash,
		old: "if int64(have) < end || seed.Verify(b[at:end], ref, prev) != nil {", new: "if int64(have) < end {",
	},
	{
		name: "recovery believes that what it reads is on the disk", file: "log/recover.go", pkg: "./log", run: "^TestAStartAfterAFailedSyncWritesAgain$",
		old: "\t\tif _, err := f.WriteAround(b, refs[0].Pos); err != nil {\n", new: "\t\tif _, err := f.WriteAround(nil, 0); err != nil {\n",
	},
	{
		name: "recovery does not repair indexes", file: "log/recover.go", pkg: "./log", run: storeCrash,
		old: "\treturn r.index(p, r.s.indexPath(p.id, &l.segs[i]), row)\n", new: "\treturn nil\n",
	},
	{
		name: "recovery does not repair the mixed segment", file: "log/recover.go", pkg: "./log", run: storeCrash,
		old: "return r.tolerate(p, r.mixed(p, l, base))", new: "return nil",
	},
	{
		name: "rows of one producer lose the order of Apply", file: "log/round.go", pkg: "./log", run: "^TestRowsOfOneKeyStayInTheOrderOfApply$",
		old: "cmp.Compare(a.producer, b.producer), cmp.Compare(a.at, b.at))", new: "cmp.Compare(a.producer, b.producer), cmp.Compare(b.at, a.at))",
	},
	{
		name: "a partition that gathers runs forgets what else has changed", file: "log/round.go", pkg: "./log", run: storeCrash,
		old: "grown := !rp.changed && l.mixRuns > 0", new: "grown := l.mixRuns > 0",
	},
	{
		name: "producers are not restored", file: "log/recover.go", pkg: "./log", run: storeCrash,
		old: "r.p.producers[r.id] = r\n", new: "_ = r.p.producers\n",
	},
	{
		name: "the log start is not kept", file: "log/round.go", pkg: "./log", run: storeCrash,
		old: "settings: rp.settings, start: rp.start, end: rp.end,", new: "settings: rp.settings, end: rp.end,",
	},
	{
		name: "retention drops the segment that holds the log start", file: "log/round.go", pkg: "./log", run: "^TestApplyAgreesWithAModel$",
		old: "l.segs[k].end <= start", new: "l.segs[k].base <= start",
	},
	{
		name: "the chain of batches is not verified", file: "log/segment/block.go", pkg: "./log", run: "^TestABatchInTheWrongPlaceIsCorrupt$|^TestFlippedBits",
		old: "case s.Link(prev, batch) != r.Link:", new: "case s.Link(prev, batch) != r.Link && r.Base < 0:",
	},
	{
		name: "entries are acknowledged and applied before the log is synced", file: "replication/raftlog/log.go", pkg: "./replication", run: nodeCrash,
		old: "\twrite := l.o.WAL.Append\n", new: "\twrite := l.o.WAL.AppendUnsynced\n",
	},
	{
		name: "a shard's manifest is named before its bytes are synced", file: "replication/raftlog/snapshots.go", pkg: "./replication", run: nodeCrash,
		old: "\tif _, err = f.Write(b); err == nil {\n\t\terr = f.Sync()\n\t}\n", new: "\t_, err = f.Write(b)\n",
	},
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// mutated returns a file of the tree with the fault in it.
func (m *mutant) mutated(root string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	switch strings.Count(string(b), m.old) {
	case 0:
		return nil, errors.New("the code that it changes is not in " + m.file + " any more")
	case 1:
		return []byte(strings.Replace(string(b), m.old, m.new, 1)), nil
	}
	return nil, errors.New("the code that it changes is in " + m.file + " more than once")
}

// TestEveryMutantApplies keeps the list in step with the code.
func TestEveryMutantApplies(t *testing.T) {
	names := map[string]bool{}
	for i := range mutants {
		m := &mutants[i]
		if _, err := m.mutated(root(t)); err != nil {
			t.Errorf("mutant %q does not apply: %v; mend the list or drop it", m.name, err)
		}
		if names[m.name] || m.old == m.new {
			t.Errorf("mutant %q is there twice, or changes nothing", m.name)
		}
		names[m.name] = true
	}
	if len(mutants) < 12 {
		t.Errorf("only %d mutants", len(mutants))
	}
}

// runTests runs tests of a package with a file replaced, and returns what it said and whether it failed as a test: a
// mutant that does not compile, or a test that is not there, catches nothing.
func runTests(t *testing.T, pkg, run, overlay string) (out string, failed bool) {
	t.Helper()
	args := []string{"test", "-count=1", "-timeout=8m", "-run", run, "-v"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, pkg)...)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "HEADRACE_LONG=")
	b, err := cmd.CombinedOutput()
	out = string(b)
	if !strings.Contains(out, "=== RUN") {
		t.Fatalf("%s %s ran no test: %v\n%s", pkg, run, err, out)
	}
	return out, err != nil
}

// TestEveryMutantIsCaught runs the named tests on the code as it is, where they must pass, and with each fault, where
// they must fail. It takes minutes: make mutants.
func TestEveryMutantIsCaught(t *testing.T) {
	if os.Getenv("HEADRACE_MUTANTS") == "" {
		t.Skip("HEADRACE_MUTANTS is not set: make mutants")
	}
	only := os.Getenv("HEADRACE_MUTANT")
	clean := map[string]bool{}
	for i := range mutants {
		m := &mutants[i]
		if !strings.Contains(m.name, only) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if key := m.pkg + m.run; !clean[key] {
				if out, failed := runTests(t, m.pkg, m.run, ""); failed {
					t.Fatalf("fails without the fault:\n%s", last(out, 3000))
				}
				clean[key] = true
			}
			b, err := m.mutated(root(t))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			replaced := filepath.Join(dir, "mutant.go")
			if err := os.WriteFile(replaced, b, 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root(t), m.file): replaced}})
			if err != nil {
				t.Fatal(err)
			}
			overlay := filepath.Join(dir, "overlay.json")
			if err := os.WriteFile(overlay, list, 0o600); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			out, failed := runTests(t, m.pkg, m.run, overlay)
			if !failed {
				t.Fatalf("not caught by %s of %s", m.run, m.pkg)
			}
			t.Logf("caught in %v: %s", time.Since(begun).Round(time.Second), reason(out))
		})
	}
}

// reason is the line in which a test says what is wrong.
func reason(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") || strings.Contains(line, "panic:") {
			return last(strings.TrimSpace(line[:min(len(line), 300)]), 300)
		}
	}
	return last(out, 300)
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }
