package runtime_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/runtime/codec"
)

const columnsModule = `
topic src {
  user: string, kind: string, amount: float64, qty: int64, big: int64, note: string?, ts: time("ms"),
} with key (user), partitions 3, time ts lag 2s future 1h, format %[1]s

topic same = from src |> where kind != "skip" |> set share = div(1000, qty) with format %[2]s
topic rekeyed = from src |> where div(100, qty) >= 0 |> select user, kind, amount, k = record.key, ts |> key (kind) with partitions 2, format %[2]s
topic tumbled = from src |> agg n = count(), mean = avg(amount), head = first(note) by kind window tumble(5s) with format %[2]s
topic grown = from src |> select user, qty, ts, r = pow(1e300, qty) with format %[2]s
topic groups = from src |> agg n = count(), m = avg(amount) by user, qty window tumble(10m) with format %[2]s
topic chained = from same |> agg n = count(), a = sum(amount), tail = last(note) by kind window tumble(15s) with format %[2]s
topic second = from tumbled |> where n > 1 |> agg windows = count(), n = sum(n) by kind window tumble(1m)
view few = from src |> where qty == 2 |> select user, note, ts
`

// planTopic is a topic as the catalogue has it.
func (r *rig) planTopic(name string) *plan.Topic {
	r.t.Helper()
	t := &plan.Topic{}
	if err := json.Unmarshal(r.topic(name).Schema, t); err != nil {
		r.t.Fatal(err)
	}
	return t
}

// delivered reads all records of a partition as a Kafka client gets them, columnar batches transcoded.
func (r *rig) delivered(name string, p, maxBytes int) (rows []row, columns int) {
	r.t.Helper()
	part := r.partition(name, p)
	x, err := runtime.NewTranscoder(r.planTopic(name))
	if err != nil {
		r.t.Fatal(err)
	}
	var rd record.Reader
	for at := part.LogStart(); at < part.LogEnd(); {
		batches, err := part.Read(at, 4<<20, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		b := batches[0]
		out := []log.Batch{b}
		if codec.Columnar(b.Data) {
			columns++
			if out, err = x.Rows(&b, at, maxBytes, nil); err != nil {
				r.t.Fatal(err)
			}
			if len(out) == 0 || out[0].Base != at {
				r.t.Fatalf("rows from offset %d begin elsewhere: %v", at, out)
			}
		}
		for i := range out {
			h, err := record.Verify(out[i].Data)
			if err != nil || h.BaseOffset != out[i].Base && codec.Columnar(b.Data) || h.Count < 1 {
				r.t.Fatalf("transcoded batch: %v %+v", err, h)
			}
			if err := rd.Reset(out[i].Data); err != nil {
				r.t.Fatal(err)
			}
			at = out[i].Last + 1
			if h.Control() {
				continue
			}
			for _, w := range rowsOf(r.t, &rd, out[i].Base-h.BaseOffset) {
				if w.offset < b.Base {
					r.t.Fatalf("offset %d in a batch from %d on", w.offset, b.Base)
				}
				rows = append(rows, w)
			}
		}
	}
	return rows, columns
}

// A pipeline gives the same derived topics whether its source and its outputs are JSON or columns, and a reader of
// rows cannot tell them apart.
func TestColumnsAndRowsGiveTheSame(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	raw := sourceRows(rng, 220) // fewer than the thousand of which a tenth may not fail
	forms := map[string]string{}
	run := func(src, out string, o runtime.Options, batch int, crash bool) map[string]string {
		r := newRig(t, o)
		r.apply("m", fmt.Sprintf(columnsModule, src, out))
		st := r.planTopic("src")
		cst := *st
		cst.Format = plan.FormatArrow
		conv, err := codec.NewColumns(&cst)
		if err != nil {
			t.Fatal(err)
		}
		x, err := runtime.NewTranscoder(&cst)
		if err != nil {
			t.Fatal(err)
		}
		for p := range raw {
			n := 0
			for from := 0; from < len(raw[p]); from += batch {
				b := record.NewBuilder()
				for _, m := range raw[p][from:min(from+batch, len(raw[p]))] {
					one := record.NewBuilder()
					one.Append(m.ts, nil, []byte(m.value), nil)
					if _, err := conv.Convert(one.Finish()); err != nil {
						continue // no row of the topic
					}
					b.Append(m.ts, []byte(m.key), []byte(m.value), nil)
				}
				if b.Len() == 0 {
					continue
				}
				columns, err := conv.Convert(b.Finish())
				if err != nil {
					t.Fatal(err)
				}
				if src == "arrow" {
					r.putBatch("src", p, columns)
				} else { // the same rows in the same spelling
					rows, err := x.Rows(&log.Batch{Data: columns}, 0, 1<<30, nil)
					if err != nil {
						t.Fatal(err)
					}
					for i := range rows {
						r.putBatch("src", p, rows[i].Data)
					}
				}
				if n++; crash && n%5 == 0 {
					r.crash()
				}
			}
		}
		r.end("src")
		r.ended("m/same", "m/rekeyed", "m/tumbled", "m/grown", "m/groups", "m/chained", "m/second")
		got := map[string]string{}
		for _, name := range []string{"same", "rekeyed", "tumbled", "grown", "groups", "chained", "second", "src"} {
			var b strings.Builder
			columns := 0
			for p := range int(r.topic(name).Partitions) {
				rows, n := r.delivered(name, p, []int{1, 3000, 1 << 20}[p%3])
				columns += n
				for _, w := range rows {
					fmt.Fprintf(&b, "%d: %s %q\n", p, w, fmt.Sprint(w.headers))
				}
			}
			if want := name == "src" && src == "arrow" || name != "src" && name != "second" && out == "arrow"; want != (columns > 0) {
				t.Fatalf("%s has %d columnar batches", name, columns)
			}
			got[name] = b.String()
		}
		for _, name := range []string{"same_errors", "rekeyed_errors", "tumbled_late", "grown_errors"} {
			var lines []string
			for p := range int(r.topic(name).Partitions) {
				for _, w := range r.rows(name, p) {
					lines = append(lines, fmt.Sprintf("%d: %s %s %q", p, w.key, w.value, fmt.Sprint(w.headers)))
				}
			}
			got[name] = strings.Join(lines, "\n")
		}
		v := r.view("few")
		for at, end := int64(0), r.partition("src", 0).LogEnd(); at < end; {
			rows, f := v.fetch(at, 500)
			for _, w := range rows {
				got["few"] += w.String() + "\n"
			}
			if f.Source <= at {
				break
			}
			at = f.Source
		}
		return got
	}
	want := run("json", "json", runtime.Options{}, 100, false)
	for name, text := range want {
		if text == "" {
			t.Fatalf("%s is empty", name)
		}
		forms[name] = text
	}
	for _, v := range []struct {
		src, out string
		o        runtime.Options
		batch    int
		crash    bool
	}{
		{"arrow", "json", runtime.Options{}, 1 << 20, false},
		{"arrow", "arrow", runtime.Options{}, 100, true},
		{"arrow", "arrow", runtime.Options{StepBytes: 1, BatchRows: 3, OutputBytes: 300}, 17, false},
		{"json", "arrow", runtime.Options{BatchRows: 50, OutputBytes: 5000}, 9, true},
	} {
		got := run(v.src, v.out, v.o, v.batch, v.crash)
		for name := range forms {
			if got[name] != forms[name] {
				a, b := strings.Split(forms[name], "\n"), strings.Split(got[name], "\n")
				i := 0
				for i < min(len(a), len(b)) && a[i] == b[i] {
					i++
				}
				t.Errorf("%s of %s to %s (%+v): line %d of %d and %d\n%s\n%s", name, v.src, v.out, v.o, i, len(a), len(b),
					slices.Concat(a, []string{"", ""})[i], slices.Concat(b, []string{"", ""})[i])
			}
		}
	}
}

// Records that are already in a topic when it is declared with columns are read as JSON, beside columnar batches.
func TestColumnsBesideRecords(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", `topic src { n: int64 } with format arrow  topic out = from src |> where n > 1 with format arrow`)
	conv, err := codec.NewColumns(r.planTopic("src"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		b := record.NewBuilder()
		b.Append(1000+int64(i), nil, fmt.Appendf(nil, `{"n":%d}`, i), nil)
		b.Append(1000+int64(i), nil, fmt.Appendf(nil, `{"n":%d}`, 10+i), nil)
		batch := b.Finish()
		if i%2 == 0 {
			if batch, err = conv.Convert(batch); err != nil {
				t.Fatal(err)
			}
		}
		r.putBatch("src", 0, batch)
	}
	r.caughtUp("m/out")
	rows, _ := r.delivered("out", 0, 1<<20)
	var got []string
	for _, w := range rows {
		got = append(got, w.String())
	}
	want := []string{
		`<null>={"n":10} @1000000000`, `<null>={"n":11} @1001000000`, `<null>={"n":2} @1002000000`,
		`<null>={"n":12} @1002000000`, `<null>={"n":3} @1003000000`, `<null>={"n":13} @1003000000`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// Columns are used where they lie: the allocator that rows are decoded with gives nothing.
func TestColumnsTakeNoMemory(t *testing.T) {
	topic := &plan.Topic{}
	r := newRig(t, runtime.Options{})
	r.apply("m", `topic src { n: int64, s: string?, l: list<string> } with format arrow`)
	topic = r.planTopic("src")
	conv, err := codec.NewColumns(topic)
	if err != nil {
		t.Fatal(err)
	}
	b := record.NewBuilder()
	for i := range 10 {
		b.Append(1000, nil, fmt.Appendf(nil, `{"n":%d,"s":null,"l":["a","b"]}`, i), nil)
	}
	batch, err := conv.Convert(b.Finish())
	if err != nil {
		t.Fatal(err)
	}
	was := string(batch)
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	d, err := codec.NewDecoder(topic, []bool{true, false, true}, alloc)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Append(50, 7, batch, 53); err != nil {
		t.Fatal(err)
	}
	if err := d.Append(60, 7, batch, 0); err == nil {
		t.Error("a second columnar batch joins the first")
	}
	rows, invalid := d.Flush()
	if alloc.CurrentAlloc() != 0 || len(invalid) > 0 || rows.Rows != 7 || rows.Offsets[0] != 53 || rows.Columns[1] != nil {
		t.Errorf("%d bytes taken; %+v", alloc.CurrentAlloc(), rows)
	}
	o := rows.Origin(0)
	if o.Offset != 53 || string(o.Value) != `{"n":3,"s":null,"l":["a","b"]}` {
		t.Errorf("origin %d %s", o.Offset, o.Value)
	}
	rows.Release()
	d.Close()
	if string(batch) != was {
		t.Error("the batch was written to")
	}
	alloc.AssertSize(t, 0)
}
