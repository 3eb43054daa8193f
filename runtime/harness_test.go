package runtime_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
)

// A rig is a node with an engine over a file system in memory.
type rig struct {
	t    testing.TB
	fs   *fsx.Mem
	opts runtime.Options
	now  func() time.Time
	node *replication.Node
	eng  *runtime.Engine
}

func newRig(t testing.TB, o runtime.Options) *rig {
	r := &rig{t: t, fs: fsx.NewMem(), opts: o, now: o.Now}
	r.open()
	t.Cleanup(r.close)
	return r
}

func ctxOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) open() {
	r.t.Helper()
	no := replication.NodeOptions{Dir: "/data", FS: r.fs, Now: r.now, RetentionEvery: -1}
	no.Data.WALSegmentBytes = 16 << 20
	if os.Getenv("HEADRACE_VERBOSE") != "" {
		no.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		r.opts.Logger = no.Logger
	}
	node, err := replication.OpenNode(no)
	if err != nil {
		r.t.Fatalf("open node: %v", err)
	}
	r.node = node
	r.eng = runtime.New(node, r.opts)
	if err := r.eng.Start(context.Background()); err != nil {
		r.t.Fatalf("start engine: %v", err)
	}
}

func (r *rig) close() {
	if r.eng != nil {
		r.eng.Close()
		r.eng = nil
	}
	if r.node != nil {
		if err := r.node.Close(); err != nil {
			r.t.Errorf("close node: %v", err)
		}
		r.node = nil
	}
}

// reopen closes engine and node and opens them again.
func (r *rig) reopen() {
	r.close()
	r.open()
}

// crash continues from what a power cut at this moment leaves.
func (r *rig) crash() {
	clone := r.fs.CrashClone(vfs.CrashCloneCfg{})
	r.close()
	r.fs = clone
	r.open()
}

func (r *rig) apply(name, text string) *runtime.ApplyResult {
	r.t.Helper()
	res, err := r.eng.Apply(ctxOf(r.t), name, text, runtime.ApplyOptions{})
	if err != nil {
		r.t.Fatalf("apply %s: %v", name, err)
	}
	return res
}

func (r *rig) topic(name string) *replication.Topic {
	r.t.Helper()
	row, ok := r.node.Meta().Catalog().Topic(name)
	if !ok {
		r.t.Fatalf("topic %s does not exist", name)
	}
	return row
}

func (r *rig) partition(topic string, p int) *log.Partition {
	r.t.Helper()
	part, ok := r.node.Store().Partition(log.PartitionID{Topic: r.topic(topic).ID, Index: int32(p)})
	if !ok {
		r.t.Fatalf("partition %s/%d is not open", topic, p)
	}
	return part
}

// A msg is one record to write.
type msg struct {
	ts         int64 // ms
	key, value string
}

// put appends one record batch.
func (r *rig) put(topic string, p int, msgs ...msg) {
	r.t.Helper()
	b := record.NewBuilder()
	for _, m := range msgs {
		var key []byte
		if m.key != "" {
			key = []byte(m.key)
		}
		b.Append(m.ts, key, []byte(m.value), nil)
	}
	r.putBatch(topic, p, b.Finish())
}

func (r *rig) putBatch(topic string, p int, batch []byte) {
	r.t.Helper()
	var u log.Unit
	u.Append(log.PartitionID{Topic: r.topic(topic).ID, Index: int32(p)}, batch)
	if res := r.node.Data().Do(ctxOf(r.t), &u); res.Outcome != replication.Yes {
		r.t.Fatalf("append to %s/%d: %v", topic, p, res.Err)
	}
}

// end appends the mark of a declared end to every partition.
func (r *rig) end(topic string) {
	r.t.Helper()
	for p := range int(r.topic(topic).Partitions) {
		r.putBatch(topic, p, record.TimeMark(math.MaxInt64, 0))
	}
}

// A row is one record read back.
type row struct {
	offset     int64
	ts         int64 // ms
	time       int64 // event time, ns
	key, value string
	headers    map[string]string
}

func (w row) String() string { return fmt.Sprintf("%s=%s @%d", w.key, w.value, w.time) }

// rows reads all records of a partition, without marks.
func (r *rig) rows(topic string, p int) []row {
	r.t.Helper()
	return readRows(r.t, r.partition(topic, p))
}

func readRows(t testing.TB, part *log.Partition) []row {
	t.Helper()
	var out []row
	var rd record.Reader
	for at := part.LogStart(); at < part.LogEnd(); {
		batches, err := part.Read(at, 4<<20, nil)
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		for _, b := range batches {
			if err := rd.Reset(b.Data); err != nil {
				t.Fatalf("batch: %v", err)
			}
			at = b.Last + 1
			if rd.Header().Control() {
				continue
			}
			out = append(out, rowsOf(t, &rd, b.Base-rd.Header().BaseOffset)...)
		}
	}
	return out
}

func rowsOf(t testing.TB, rd *record.Reader, shift int64) []row {
	var out []row
	for rd.Next() {
		rec := rd.Record()
		w := row{offset: rec.Offset + shift, ts: rec.Timestamp, time: rec.Timestamp * 1e6, key: string(rec.Key), value: string(rec.Value), headers: map[string]string{}}
		if rec.Key == nil {
			w.key = "<null>"
		}
		for _, h := range rd.Headers() {
			w.headers[h.Key] = string(h.Value)
			if h.Key == "hr-time" {
				w.time = int64(binary.BigEndian.Uint64(h.Value))
			}
		}
		out = append(out, w)
	}
	if err := rd.Err(); err != nil {
		t.Fatalf("records: %v", err)
	}
	return out
}

// all renders the rows of every partition.
func (r *rig) all(topic string) string {
	r.t.Helper()
	var b strings.Builder
	for p := range int(r.topic(topic).Partitions) {
		for _, w := range r.rows(topic, p) {
			fmt.Fprintf(&b, "%d: %s\n", p, w)
		}
	}
	return b.String()
}

// wait waits until cond holds.
func (r *rig) wait(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			for _, p := range r.eng.Pipelines() {
				r.t.Logf("%+v", p)
			}
			r.t.Fatalf("timed out: %s", what)
		}
		time.Sleep(500 * time.Microsecond)
	}
}

func (r *rig) status(name string) runtime.PipelineStatus {
	r.t.Helper()
	s, err := r.eng.Pipeline(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// ended waits until the pipelines have seen the declared end of their input.
func (r *rig) ended(names ...string) {
	r.t.Helper()
	for _, n := range names {
		r.wait(n+" ends", func() bool { s := r.status(n); return s.Watermark == "+inf" && s.Lag == 0 })
	}
}

// caughtUp waits until the pipelines have read everything.
func (r *rig) caughtUp(names ...string) {
	r.t.Helper()
	for _, n := range names {
		r.wait(n+" catches up", func() bool {
			s := r.status(n)
			return s.State == runtime.StateRunning && s.Lag == 0 && len(s.Partitions) > 0
		})
	}
}

func itoa(n int) string { return fmt.Sprint(n) }

// countOf reads the member n of a JSON row.
func countOf(value string) int {
	var row struct{ N int }
	_ = json.Unmarshal([]byte(value), &row) // 0 shows in the sum
	return row.N
}
