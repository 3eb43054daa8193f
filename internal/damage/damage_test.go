// Package damage_test damages files of a server and looks what comes of it. It stands alone because a database that is given
// up leaves its goroutines behind, which in a server ends with the process.
package damage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

func client(t *testing.T, s *server.Server, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.KafkaAddr())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func damageOptions(fs fsx.FS) server.Options {
	o := server.Options{Data: "/data", FS: fs, KafkaAddr: "127.0.0.1:0", HTTPAddr: "-", NoEngine: true}
	o.Node.Data.WALSegmentBytes, o.Node.Meta.WALSegmentBytes = 1<<20, 256<<10
	o.Node.SegmentBytes, o.Node.ReserveBytes = 256<<10, -1
	o.Node.OpenTimeout = 20 * time.Second
	return o
}

// fill writes what a small server has: a topic with files of its own, a thin one, committed offsets; half of it is in a
// checkpoint. It returns the file system as a clean stop leaves it, and as a crash does.
func fill(t *testing.T) (stopped, crashed *fsx.Mem) {
	t.Helper()
	fs := fsx.NewMem()
	o := damageOptions(fs)
	s, err := server.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // it was closed before, or the test has failed
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	admin := kadm.NewClient(client(t, s))
	for name, parts := range map[string]int32{"thick": 1, "thin": 2} {
		if _, err := admin.CreateTopic(ctx, parts, 1, nil, name); err != nil {
			t.Fatal(err)
		}
	}
	c := client(t, s, kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	rng := rand.New(rand.NewPCG(1, 1))
	pad := make([]byte, 30<<10)
	for i := range pad {
		pad[i] = 'a' + byte(rng.IntN(26))
	}
	write := func(n int) {
		for i := range n {
			recs := []*kgo.Record{
				{Topic: "thick", Value: fmt.Appendf(nil, "%d %s", i, pad)},
				{Topic: "thin", Value: fmt.Appendf(nil, "%d", i), Partition: int32(i % 2)},
			}
			if err := c.ProduceSync(ctx, recs...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		commits := kadm.Offsets{}
		commits.AddOffset("thin", 0, int64(n/4), -1)
		if err := admin.CommitAllOffsets(ctx, "readers", commits); err != nil {
			t.Fatal(err)
		}
	}
	write(40)
	for _, sh := range []*replication.Shard{s.Node().Data(), s.Node().MetaShard()} {
		if err := sh.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
	}
	write(20)
	if err := s.Node().Store().Flush(ctx); err != nil {
		t.Fatal(err)
	}
	crashed = fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return fs.CrashClone(vfs.CrashCloneCfg{}), crashed
}

// contents is everything that a node answers: batches, committed offsets.
func contents(n *replication.Node) (map[string]string, error) {
	out := map[string]string{}
	var errs []error
	for _, topic := range n.Meta().Catalog().Topics() {
		for i := range topic.Partitions {
			id := log.PartitionID{Topic: topic.ID, Index: i}
			p, ok := n.Store().Partition(id)
			if !ok {
				return nil, fmt.Errorf("partition %s is not open", id)
			}
			for at := p.LogStart(); at < p.LogEnd(); {
				got, err := p.Read(at, 1<<20, nil)
				for _, b := range got {
					out[fmt.Sprintf("%s/%d@%d", topic.Name, i, b.Base)] = string(b.AppendTo(nil))
					at = b.Last + 1
				}
				if err != nil {
					errs = append(errs, err)
					at++ // the next one may be sound
				}
			}
			out[fmt.Sprintf("%s/%d end", topic.Name, i)] = fmt.Sprint(p.LogEnd())
		}
	}
	offsets, err := n.Store().GroupOffsets("readers")
	if err != nil {
		errs = append(errs, err)
	}
	for _, o := range offsets {
		out["committed "+o.Partition.String()] = fmt.Sprint(o.Offset)
	}
	return out, errors.Join(errs...)
}

func openDamaged(fs fsx.FS) (got map[string]string, start, read error) {
	o := damageOptions(fs)
	no := o.Node
	no.Dir, no.FS = o.Data, fs
	n, err := replication.OpenNode(no)
	if err != nil {
		return nil, err, nil
	}
	got, read = contents(n)
	if err := n.Close(); err != nil && read == nil {
		read = fmt.Errorf("close: %w", err)
	}
	return got, nil, read
}

func allFiles(t *testing.T, fs fsx.FS, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p := path.Join(dir, name)
		info, err := fs.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			maps.Copy(out, allFiles(t, fs, p))
		} else if info.Size() > 0 {
			out[p] = info.Size()
		}
	}
	return out
}

// kindOf is the kind of a file, for the statistic.
func kindOf(p string) string {
	base := path.Base(p)
	switch {
	case strings.HasSuffix(base, ".wal"):
		return path.Base(path.Dir(path.Dir(p))) + " wal"
	case strings.Contains(p, "/mixed/"):
		return "mixed"
	case strings.HasSuffix(base, ".index"):
		return "index"
	case strings.Contains(p, "/topics/"):
		return "segment"
	case strings.HasSuffix(base, ".manifest"):
		return "manifest"
	case strings.Contains(p, "/kv/"), strings.Contains(p, "/rows/"):
		name, _, _ := strings.Cut(strings.TrimRight(base, "0123456789."), ".")
		if strings.HasSuffix(base, ".sst") {
			name = "sst"
		}
		return "pebble " + strings.TrimRight(name, "-0123456789")
	}
	return base
}

func flip(t *testing.T, fs fsx.FS, name string, at int64, bit uint) {
	t.Helper()
	f, err := fs.OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// judgeDamage opens a damaged directory and says what came of it: "same", "named at the start", "named at the read".
// Anything else is a failure.
func judgeDamage(t *testing.T, what string, fs *fsx.Mem, file string, want map[string]string) string {
	t.Helper()
	got, start, read := openDamaged(fs)
	short := strings.TrimPrefix(file, "/data/")
	names := func(err error) bool {
		// The file itself, or its directory where the rows' database speaks.
		text := err.Error()
		return strings.Contains(text, path.Base(file)) || strings.Contains(text, path.Base(path.Dir(file))) ||
			strings.Contains(text, "segment") && strings.HasSuffix(file, ".wal") || strings.Contains(short, "/kv/") && strings.Contains(text, "kv") ||
			strings.Contains(short, "/rows/") && strings.Contains(text, "metadata row")
	}
	switch {
	case start != nil:
		if !errors.Is(start, replication.ErrRotten) && !errors.Is(start, replication.ErrIdentity) {
			t.Errorf("%s: the start does not say that the directory is rotten: %v", what, start)
		}
		if !names(start) {
			t.Errorf("%s: the start does not name the file: %v", what, start)
		}
		return "named at the start"
	}
	for k, v := range got {
		if want[k] != v {
			t.Errorf("%s: %s is other bytes than were written (%d, %d)", what, k, len(v), len(want[k]))
			return "WRONG"
		}
	}
	switch {
	case read != nil:
		if !names(read) {
			t.Errorf("%s: the read does not name the file: %v", what, read)
		}
		return "named at the read"
	case len(got) != len(want):
		t.Errorf("%s: %d of %d things are there, and nobody complains", what, len(got), len(want))
		return "SILENT"
	}
	return "same"
}

// eachImage gives f the files of a server after a stop in order and after a crash, with what is in them.
func eachImage(t *testing.T, f func(name string, image *fsx.Mem, files map[string]int64, want map[string]string)) {
	t.Helper()
	stopped, crashed := fill(t)
	for name, image := range map[string]*fsx.Mem{"stopped": stopped, "crashed": crashed} {
		want, start, read := openDamaged(image.CrashClone(vfs.CrashCloneCfg{}))
		if start != nil || read != nil || len(want) < 50 {
			t.Fatalf("%s: %v %v, %d things", name, start, read, len(want))
		}
		f(name, image, some(allFiles(t, image, "/data")), want)
	}
}

// some is one file of each kind, or all of them in the long run.
func some(files map[string]int64) map[string]int64 {
	if os.Getenv("HEADRACE_LONG") != "" {
		return files
	}
	seen := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if kind := kindOf(file); seen[kind] {
			delete(files, file)
		} else {
			seen[kind] = true
		}
	}
	return files
}

// outcomes counts what came of damage, by kind of file.
type outcomes map[string]map[string]int

func (o outcomes) add(kind, outcome string) {
	if o[kind] == nil {
		o[kind] = map[string]int{}
	}
	o[kind][outcome]++
}

// check holds the counts against what must be: kinds where no damage passes unnoticed, and kinds there must be.
func (o outcomes) check(t *testing.T, noticed ...string) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(o)) {
		t.Logf("%-20s %v", kind, o[kind])
	}
	for _, kind := range noticed {
		if len(o[kind]) == 0 || o[kind]["same"] > 0 {
			t.Errorf("%s: %v", kind, o[kind])
		}
	}
	if len(o) < 11 {
		t.Errorf("only %d kinds of files", len(o))
	}
}

// One bit of any file is wrong, after a stop in order and after a crash: either everything is as it was, or an error
// names the file. Nothing wrong is ever served, nothing is cut in silence, nothing panics.
func TestAFlippedBitIsHarmlessOrNamed(t *testing.T) {
	flips := 2
	if os.Getenv("HEADRACE_LONG") != "" {
		flips = 60
	}
	rng := rand.New(rand.NewPCG(7, 7))
	seen := outcomes{}
	eachImage(t, func(name string, image *fsx.Mem, files map[string]int64, want map[string]string) {
		for _, file := range slices.Sorted(maps.Keys(files)) {
			for range flips {
				at, bit := rng.Int64N(files[file]), uint(rng.IntN(8))
				if strings.HasSuffix(file, ".wal") {
					at = rng.Int64N(min(files[file], 256<<10)) // most of it was never written
				}
				fs := image.CrashClone(vfs.CrashCloneCfg{})
				flip(t, fs, file, at, bit)
				what := fmt.Sprintf("%s, %s byte %d bit %d", name, file, at, bit)
				seen.add(kindOf(file), judgeDamage(t, what, fs, file, want))
			}
		}
	})
	seen.check(t, "checkpoint", "identity")
	for _, kind := range []string{"index", "mixed", "segment"} {
		if seen[kind]["named at the read"] == 0 {
			t.Errorf("%s: %v", kind, seen[kind])
		}
	}
}

// A file that is cut, or gone.
func TestATruncatedOrMissingFileIsHarmlessOrNamed(t *testing.T) {
	seen := outcomes{}
	eachImage(t, func(name string, image *fsx.Mem, files map[string]int64, want map[string]string) {
		for _, file := range slices.Sorted(maps.Keys(files)) {
			for _, keep := range []int64{files[file] / 2, files[file] - 1, 0, -1} {
				fs := image.CrashClone(vfs.CrashCloneCfg{})
				if keep < 0 {
					if err := fs.Remove(file); err != nil {
						t.Fatal(err)
					}
				} else {
					f, err := fs.OpenFile(file)
					if err != nil {
						t.Fatal(err)
					}
					if err := errors.Join(f.Truncate(keep), f.Close()); err != nil {
						t.Fatal(err)
					}
				}
				what := fmt.Sprintf("%s, %s cut to %d of %d bytes", name, file, keep, files[file])
				seen.add(kindOf(file), judgeDamage(t, what, fs, file, want))
			}
		}
	})
	seen.check(t, "identity")
}

// Every kind of damage but that of the identity can be repaired in a directory as small as this one, whose logs still hold
// every entry; and what is lost is said.
func TestDamageIsRepairedOrTheLossIsSaid(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	flips := 1
	if os.Getenv("HEADRACE_LONG") != "" {
		flips = 20
	}
	seen := outcomes{}
	eachImage(t, func(name string, image *fsx.Mem, files map[string]int64, want map[string]string) {
		for _, file := range slices.Sorted(maps.Keys(files)) {
			for k := range flips + 1 {
				fs := image.CrashClone(vfs.CrashCloneCfg{})
				at := rng.Int64N(files[file])
				if strings.HasSuffix(file, ".wal") {
					at = rng.Int64N(min(files[file], 128<<10))
				}
				what := fmt.Sprintf("%s, %s byte %d", name, file, at)
				if k < flips {
					flip(t, fs, file, at, 3)
				} else if err := fs.Remove(file); err != nil {
					t.Fatal(err)
				}
				seen.add(kindOf(file), repairDamage(t, what, fs, file, want))
			}
		}
	})
	seen.check(t)
	for kind, n := range seen {
		if n["not repaired"] > 0 && kind != "identity" {
			t.Errorf("%s: %v", kind, n)
		}
	}
}

// content is what a file holds, nil if there is none.
func content(t *testing.T, fs fsx.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// repairDamage repairs a directory, first without and then with a loss, and holds what is there against what was, and
// what is not against what the repair says.
func repairDamage(t *testing.T, what string, fs *fsx.Mem, file string, want map[string]string) string {
	t.Helper()
	damaged := content(t, fs, file)
	outcome := "repaired"
	before, err := replication.Inspect(replication.InspectOptions{Dir: "/data", FS: fs, Partition: -1})
	if err != nil {
		t.Errorf("%s: inspect: %v", what, err)
		return "FAILED"
	}
	if before.Verdict != wal.Rotten {
		outcome = string(before.Verdict)
	}
	o := replication.RepairOptions{Dir: "/data", FS: fs}
	rep, err := replication.Repair(t.Context(), o)
	if errors.Is(err, replication.ErrLoss) {
		outcome = "lost"
		o.AcceptLoss = true
		rep, err = replication.Repair(t.Context(), o)
		if err == nil && len(rep.Lost) == 0 {
			t.Errorf("%s: a loss without a word", what)
		}
	}
	if errors.Is(err, replication.ErrNoRepair) {
		return "not repaired"
	}
	if err != nil {
		t.Errorf("%s: repair: %v", what, err)
		return "FAILED"
	}
	after, err := replication.Inspect(replication.InspectOptions{Dir: "/data", FS: fs, Partition: -1})
	if err != nil || after.Verdict == wal.Rotten {
		t.Errorf("%s: after the repair: %v %+v (steps %q)", what, err, after.Faults, rep.Steps)
		return "FAILED"
	}
	got, start, read := openDamaged(fs)
	if start != nil || read != nil {
		t.Errorf("%s: after the repair (%q): %v %v", what, rep.Steps, start, read)
		return "FAILED"
	}
	switch kindOf(file) {
	case "mixed", "segment", "index":
		if damaged != nil && before.Verdict == wal.Rotten && !bytes.Equal(content(t, fs, file+".bad"), damaged) {
			t.Errorf("%s: the damaged file is not kept (%q)", what, rep.Steps)
		}
	}
	if outcome == "lost" {
		return outcome
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %s is not what it was after %q; before: %+v %+v", what, k, rep.Steps, before.Faults, before.Shards[1].WAL.Files)
			return "WRONG"
		}
	}
	return outcome
}
