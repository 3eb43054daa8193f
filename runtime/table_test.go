package runtime_test

import (
	"fmt"
	"testing"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime"
)

const noValue = "<none>"

// putRows appends rows to a table, noValue for a tombstone.
func (r *rig) putRows(topic string, p int, msgs ...msg) {
	r.t.Helper()
	b := record.NewBuilder()
	for _, m := range msgs {
		value := []byte(m.value)
		if m.value == noValue {
			value = nil
		}
		b.Append(m.ts, []byte(m.key), value, nil)
	}
	r.putBatch(topic, p, b.Finish())
}

// latest is what a table holds: the last value of each key, by key.
func (r *rig) latest(topic string) map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for p := range int(r.topic(topic).Partitions) {
		for _, w := range r.rows(topic, p) {
			if w.value == "" {
				delete(out, w.key)
				continue
			}
			out[w.key] = w.value
		}
	}
	return out
}

// A row that fails the condition, that fails to be computed, whose record is invalid or that is deleted
// leaves a derived table.
func TestRowsLeaveDerivedTables(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", `
table cards { id: string, total: int64 } with key (id)
table big = from cards |> where total > 100
table shares = from cards |> set share = div(1000, total) |> select id, share
topic raw { id: string, n: int64 } with key (id)
table last = from raw |> select id, n
view seen = from cards |> where total > 100 |> set twice = 2 * total`)
	if s := r.topic("big").Settings; !s.Compact || !r.topic("cards").Settings.Compact || r.topic("raw").Settings.Compact {
		t.Errorf("tables are compacted, topics are not: %+v", s)
	}
	row := func(id string, total int) msg { return msg{1000, id, fmt.Sprintf(`{"id":%q,"total":%d}`, id, total)} }
	r.putRows("cards", 0, row("a", 200), row("b", 5), row("c", 300), row("d", 400), row("e", 500))
	r.putRows("cards", 0, row("a", 7), row("b", 0), msg{1000, "c", noValue}, msg{1000, "d", "{"}, msg{1000, "x", `{"id":"y","total":700}`})
	r.put("raw", 0, msg{1, "a", `{"id":"a","n":1}`}, msg{1, "a", `{"id":"a","n":2}`})
	r.end("cards")
	r.end("raw")
	r.ended("m/big", "m/shares", "m/last")
	for topic, want := range map[string]string{
		"big":    `map[e:{"id":"e","total":500}]`,
		"shares": `map[a:{"id":"a","share":142} e:{"id":"e","share":2}]`,
		"last":   `map[a:{"id":"a","n":2}]`,
	} {
		if got := fmt.Sprint(r.latest(topic)); got != want {
			t.Errorf("%s holds %s, not %s", topic, got, want)
		}
	}
	for _, p := range []string{"m/big", "m/shares", "m/last"} {
		checkCounters(t, r.status(p))
	}
	v, _ := r.eng.View("seen")
	f, err := v.Fetch(ctxOf(t), 0, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range f.Batches {
		var rd record.Reader
		if err := rd.Reset(b); err != nil {
			t.Fatal(err)
		}
		for _, w := range rowsOf(t, &rd, 0) {
			got = append(got, w.key+"="+w.value)
		}
	}
	if want := `[a={"id":"a","total":200,"twice":400} b= c={"id":"c","total":300,"twice":600} d={"id":"d","total":400,"twice":800} e={"id":"e","total":500,"twice":1000} a= b= c= d=]`; fmt.Sprint(got) != want {
		t.Errorf("the view shows %s", got)
	}
}
