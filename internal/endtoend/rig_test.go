// Package endtoend holds modules against rows: each test compiles a module, runs it on a node in memory,
// and compares every derived record with what plain Go computes from the same input.
package endtoend

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
)

// A rig is a node with an engine over a file system in memory.
type rig struct {
	t    testing.TB
	node *replication.Node
	eng  *runtime.Engine
}

func newRig(t testing.TB) *rig { return newRigWith(t, runtime.Options{}) }

// newRigWith sets what the engine may vary: the sizes of batches and steps, and its workers.
func newRigWith(t testing.TB, o runtime.Options) *rig {
	t.Helper()
	no := replication.NodeOptions{Dir: "/data", FS: fsx.NewMem(), RetentionEvery: -1}
	no.Data.WALSegmentBytes = 16 << 20
	node, err := replication.OpenNode(no)
	if err != nil {
		t.Fatalf("open node: %v", err)
	}
	// The engine's clock stands still, so that no partition is ever idle: tests write one partition after
	// the other, and on a slow machine a mark for the silent ones would make their rows late.
	began := time.Now()
	o.Now = func() time.Time { return began }
	r := &rig{t: t, node: node, eng: runtime.New(node, o)}
	t.Cleanup(func() {
		r.eng.Close()
		if err := node.Close(); err != nil {
			t.Errorf("close node: %v", err)
		}
	})
	if err := r.eng.Start(context.Background()); err != nil {
		t.Fatalf("start engine: %v", err)
	}
	return r
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

// apply brings the module m to the node.
func (r *rig) apply(text string) { r.applyAs("m", text, nil) }

func (r *rig) applyAs(name, text string, params map[string]string) {
	r.t.Helper()
	_, err := r.eng.Apply(r.ctx(), name, text, runtime.ApplyOptions{File: name + ".hr", Params: params})
	var es *dsl.Errors
	if errors.As(err, &es) {
		r.t.Fatalf("compile:\n%s", dsl.RenderAll(es.List))
	}
	if err != nil {
		r.t.Fatalf("apply: %v", err)
	}
}

// A msg is one record to write: event time in ms, key ("" is null) and value.
type msg struct {
	ts         int64
	key, value string
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

func (r *rig) append(topic string, p int, batch []byte) {
	r.t.Helper()
	var u log.Unit
	u.Append(log.PartitionID{Topic: r.topic(topic).ID, Index: int32(p)}, batch)
	if res := r.node.Data().Do(r.ctx(), &u); res.Outcome != replication.Yes {
		r.t.Fatalf("append to %s/%d: %v", topic, p, res.Err)
	}
}

// put writes records to a partition, a thousand in a batch.
func (r *rig) put(topic string, p int, msgs ...msg) {
	r.t.Helper()
	for chunk := range slices.Chunk(msgs, 1000) {
		b := record.NewBuilder()
		for _, m := range chunk {
			var key []byte
			if m.key != "" {
				key = []byte(m.key)
			}
			b.Append(m.ts, key, []byte(m.value), nil)
		}
		r.append(topic, p, b.Finish())
	}
}

// putByKey writes records to the partitions of their keys.
func (r *rig) putByKey(topic string, msgs ...msg) {
	r.t.Helper()
	parts := make([][]msg, r.topic(topic).Partitions)
	for _, m := range msgs {
		p := operators.Partition([]byte(m.key), len(parts))
		parts[p] = append(parts[p], m)
	}
	for p, ms := range parts {
		r.put(topic, p, ms...)
	}
}

// end declares the end of topics and waits until every pipeline has seen it.
func (r *rig) end(topics ...string) {
	r.t.Helper()
	for _, topic := range topics {
		for p := range int(r.topic(topic).Partitions) {
			r.append(topic, p, record.TimeMark(math.MaxInt64, 0))
		}
	}
	deadline := time.Now().Add(time.Minute)
	for {
		open := ""
		for _, s := range r.eng.Pipelines() {
			if s.Watermark != "+inf" || s.Lag != 0 {
				open = fmt.Sprintf("%s: state %s %s watermark %s lag %d", s.Name, s.State, s.Reason, s.Watermark, s.Lag)
			}
		}
		if open == "" {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("timed out: %s", open)
		}
		time.Sleep(time.Millisecond)
	}
}

// A row is one record read back.
type row struct {
	partition int
	offset    int64
	time      int64 // event time, ns
	key       string
	value     string
	headers   map[string]string
}

// rows reads a topic, partition after partition, without marks.
func (r *rig) rows(topic string) []row {
	r.t.Helper()
	var out []row
	for p := range int(r.topic(topic).Partitions) {
		part := r.partition(topic, p)
		for at := part.LogStart(); at < part.LogEnd(); {
			batches, err := part.Read(at, 4<<20, nil)
			if err != nil {
				r.t.Fatalf("read: %v", err)
			}
			for _, b := range batches {
				at = b.Last + 1
				out = appendRows(r.t, out, p, b.Data, b.Base)
			}
		}
	}
	return out
}

// view reads a view.
func (r *rig) view(name string) []row {
	r.t.Helper()
	v, ok := r.eng.View(name)
	if !ok {
		r.t.Fatalf("view %s does not exist", name)
	}
	var out []row
	for p := range v.Partitions() {
		end := v.SourcePartition(int32(p)).LogEnd()
		for at := int64(0); at < end; {
			f, err := v.Fetch(r.ctx(), int32(p), at, 1<<20)
			if err != nil {
				r.t.Fatalf("view %s: %v", name, err)
			}
			for _, b := range f.Batches {
				out = appendRows(r.t, out, p, b, -1)
			}
			at = max(at, f.Source)
		}
	}
	return out
}

// appendRows decodes a batch; base -1 is that of its header.
func appendRows(t testing.TB, out []row, p int, batch []byte, base int64) []row {
	t.Helper()
	var rd record.Reader
	if err := rd.Reset(batch); err != nil {
		t.Fatalf("batch: %v", err)
	}
	if rd.Header().Control() {
		return out
	}
	shift := int64(0)
	if base >= 0 {
		shift = base - rd.Header().BaseOffset
	}
	for rd.Next() {
		rec := rd.Record()
		w := row{partition: p, offset: rec.Offset + shift, time: rec.Timestamp * 1e6, key: string(rec.Key), value: string(rec.Value), headers: map[string]string{}}
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

// values lists the values of rows.
func values(rows []row) []string {
	out := make([]string, len(rows))
	for i := range rows {
		out[i] = rows[i].value
	}
	return out
}

// keyed lists rows as key=value.
func keyed(rows []row) []string {
	out := make([]string, len(rows))
	for i := range rows {
		out[i] = rows[i].key + "=" + rows[i].value
	}
	return out
}

// sorted is a sorted copy.
func sorted(xs []string) []string { return slices.Sorted(slices.Values(xs)) }

// sameLines compares lists in order.
func sameLines(t testing.TB, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s: row %d of %d, %d expected:\n  got  %s\n  want %s", what, i, len(got), len(want), g, w)
			return
		}
	}
}

// want compares a short topic with lines.
func want(t testing.TB, what string, got []string, lines ...string) {
	t.Helper()
	sameLines(t, what, got, lines)
}

// An exact is a number as text, compared digit by digit.
type exact string

// agrees compares a JSON value with a Go one: nil, bool, int64, uint64, float64 (bit by bit), exact,
// string, []any, map[string]any or time.Time.
func agrees(raw json.RawMessage, want any) bool {
	text := string(raw)
	switch w := want.(type) {
	case nil:
		return text == "null"
	case *int64:
		if w == nil {
			return text == "null"
		}
		return agrees(raw, *w)
	case *string:
		if w == nil {
			return text == "null"
		}
		return agrees(raw, *w)
	case bool:
		return text == fmt.Sprint(w)
	case int:
		return text == fmt.Sprint(w)
	case int64, uint64:
		return text == fmt.Sprint(w)
	case exact:
		return text == string(w)
	case float64:
		var f float64
		return json.Unmarshal(raw, &f) == nil && !strings.HasPrefix(text, `"`) && math.Float64bits(f) == math.Float64bits(w)
	case string:
		var s string
		return json.Unmarshal(raw, &s) == nil && text != "null" && s == w
	case time.Time:
		var s string
		return json.Unmarshal(raw, &s) == nil && s == w.UTC().Format(time.RFC3339Nano)
	case []any:
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil || list == nil || len(list) != len(w) {
			return false
		}
		for i := range w {
			if !agrees(list[i], w[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil || m == nil || len(m) != len(w) {
			return false
		}
		for k := range w {
			if _, ok := m[k]; !ok || !agrees(m[k], w[k]) {
				return false
			}
		}
		return true
	}
	panic(fmt.Sprintf("endtoend: no comparison for %T", want))
}

// fields decodes a JSON object.
func fields(t testing.TB, value string) map[string]json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader([]byte(value))).Decode(&m); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	return m
}

// object writes a JSON object of alternating names and values, in order, as derived topics do.
func object(pairs ...any) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", pairs[i], jsonText(pairs[i+1]))
	}
	b.WriteByte('}')
	return b.String()
}

func jsonText(v any) string {
	switch v := v.(type) {
	case exact:
		return string(v)
	case time.Time:
		return `"` + v.UTC().Format(time.RFC3339Nano) + `"`
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cents writes an integer as a decimal with scale digits after the point.
func cents(v int64, scale int) string {
	neg := v < 0
	if neg {
		v = -v
	}
	s := fmt.Sprintf("%0*d", scale+1, v)
	if scale > 0 {
		s = s[:len(s)-scale] + "." + s[len(s)-scale:]
	}
	if neg {
		s = "-" + s
	}
	return s
}
