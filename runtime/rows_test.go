package runtime_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime"
)

func TestRowsThatDoNotFitGoToTheInvalidTopicAsTheyCame(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", `topic src { k: string, n: int8, ts: time("ms") } with key (k), time ts lag 1s
topic out = from src |> where n > 0`)
	future := time.Now().Add(time.Hour).UnixMilli()
	bad := []struct{ value, code string }{
		{`{"k":"a"`, "E0609"},
		{`{"k":"a","n":"one","ts":1000}`, "E0610"},
		{`{"k":null,"n":1,"ts":1000}`, "E0608"},
		{`{"k":"a","n":300,"ts":1000}`, "E0601"},
		{fmt.Sprintf(`{"k":"a","n":1,"ts":%d}`, future), "E0611"},
		{`{"k":"a","n":1}`, "E0608"},
		{``, "E0609"},
	}
	msgs := []msg{{1, "a", `{"k":"a","n":1,"ts":1000}`}}
	for i, b := range bad {
		msgs = append(msgs, msg{int64(i), "key", b.value})
	}
	msgs = append(msgs, msg{1, "a", `{"k":"a","n":2,"ts":2000}`})
	r.put("src", 0, msgs...)
	r.end("src")
	r.ended("m/out")
	if got := len(r.rows("out", 0)); got != 2 {
		t.Errorf("%d good rows, want 2:\n%s", got, r.all("out"))
	}
	rows := r.rows("src_invalid", 0)
	if len(rows) != len(bad) {
		t.Fatalf("%d invalid rows, want %d:\n%s", len(rows), len(bad), r.all("src_invalid"))
	}
	for i, w := range rows {
		h := w.headers
		if w.value != bad[i].value || w.key != "key" || w.ts != int64(i) {
			t.Errorf("row %d is not what came: %s", i, w)
		}
		if h["hr-code"] != bad[i].code || h["hr-expr"] == "" || h["hr-topic"] != "src" || h["hr-partition"] != "0" ||
			h["hr-offset"] != fmt.Sprint(i+1) || h["hr-pipeline"] != "m/out" {
			t.Errorf("headers of %s: %v, want code %s", bad[i].value, h, bad[i].code)
		}
	}
	checkCounters(t, r.status("m/out"))
}

func TestABrokenRecordBatchIsOneInvalidRowAndStopsNothing(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+"topic out = from pay |> where amount > 0\nview v = from pay |> where amount > 0")
	r.put("pay", 0, payment(1000, "a", "x", 1))
	b := record.NewBuilder()
	for range 3 {
		b.Append(5, []byte("k"), []byte(`{"card":"a","kind":"x","amount":1,"ts":1000}`), nil)
	}
	batch := b.Finish()
	batch[len(batch)-40] = 0xff // inside the last record
	for i := record.HeaderSize + 56; i < len(batch); i++ {
		batch[i] = 0xff
	}
	record.Seal(batch)
	r.putBatch("pay", 0, batch)
	r.put("pay", 0, payment(3000, "a", "x", 3))
	r.end("pay")
	r.ended("m/out")
	rows := r.rows("out", 0)
	if len(rows) < 2 || !strings.Contains(rows[len(rows)-1].value, `"amount":3`) {
		t.Errorf("out:\n%s", r.all("out"))
	}
	if inv := r.rows("pay_invalid", 0); len(inv) != 1 || inv[0].headers["hr-code"] != "E0609" || inv[0].value != string(batch) {
		t.Errorf("invalid: %d rows: %.200s", len(inv), r.all("pay_invalid"))
	}
	v, _ := r.eng.View("v")
	f, err := v.Fetch(context.Background(), 0, 0, 1<<20)
	if err != nil || len(f.Batches) == 0 {
		t.Errorf("fetch of a view over a broken batch: %v, %d batches", err, len(f.Batches))
	}
	if n, why := v.Failures(); n != 1 || why == "" {
		t.Errorf("the view counts %d failures: %s", n, why)
	}
}

func TestLateRowsGoToTheLateTopicWithTheWatermarkTheyMissed(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+`
topic sums = from pay |> agg n = count() by card window tumble(10s)
topic quiet = from pay |> agg n = count() by card window tumble(10s) with late drop`)
	late := payment(3000, "a", "x", 2)
	r.put("pay", 0, payment(5000, "a", "x", 1), payment(11_000, "a", "x", 1), payment(10_500, "a", "x", 9)) // W_p is 10 s now
	r.put("pay", 0, late)
	r.put("pay", 1, payment(1, "b", "x", 1), payment(2, "b", "x", 1)) // another partition is not late
	r.end("pay")
	r.put("pay", 1, payment(50_000, "b", "x", 1)) // after a declared end everything is late
	r.ended("m/sums", "m/quiet")
	rows := r.rows("sums_late", 0)
	if len(rows) != 1 || rows[0].value != late.value || rows[0].headers["hr-stage"] != "agg" || rows[0].headers["hr-pipeline"] != "m/sums" {
		t.Fatalf("late rows:\n%s", r.all("sums_late"))
	}
	if w := int64(binary.BigEndian.Uint64([]byte(rows[0].headers["hr-late"]))); w != 10_000*1e6 {
		t.Errorf("it missed the watermark %d, want 10 s", w)
	}
	if after := r.rows("sums_late", 1); len(after) != 1 || !strings.Contains(after[0].value, "50000") {
		t.Errorf("late after the end:\n%s", r.all("sums_late"))
	}
	want := `0: a={"card":"a","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:00:10Z","n":1} @9999999999
0: b={"card":"b","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:00:10Z","n":2} @9999999999
0: a={"card":"a","window_start":"1970-01-01T00:00:10Z","window_end":"1970-01-01T00:00:20Z","n":2} @19999999999
`
	if got := r.all("sums"); got != want {
		t.Errorf("sums:\n%swant\n%s", got, want)
	}
	if _, ok := r.node.Meta().Catalog().Topic("quiet_late"); ok {
		t.Error("a topic for rows that are dropped")
	}
	if c := r.status("m/quiet").Counters; c.Late != 2 {
		t.Errorf("%d late rows are counted, want 2", c.Late)
	}
	checkCounters(t, r.status("m/sums"))
	checkCounters(t, r.status("m/quiet"))
}

func TestTheErrorLimitPausesAndResumeGoesOnWithTheNextRow(t *testing.T) {
	r := newRig(t, runtime.Options{BatchRows: 100, StepBytes: 4000})
	r.apply("m", pay+"topic out = from pay |> where amount > 0")
	const rows = 2500
	send := func(from, to int, good bool) {
		for i := from; i < to; i += 50 {
			var msgs []msg
			for k := i; k < min(i+50, to); k++ {
				m := payment(int64(k), "a", "x", int64(k+1))
				if !good {
					m.value = fmt.Sprintf(`{"n":%d`, k)
				}
				msgs = append(msgs, m)
			}
			r.put("pay", 0, msgs...)
		}
	}
	send(0, 100, true)
	send(100, 100+rows, false)
	send(100+rows, 200+rows, true)
	paused := func() bool { return r.status("m/out").State == runtime.StatePaused }
	seen := int64(0)
	for pauses := 0; pauses < 2; pauses++ {
		r.wait("pause", paused)
		s := r.status("m/out")
		if !strings.Contains(s.Reason, "E0609") || !strings.Contains(s.Reason, "pay/0 offset") {
			t.Errorf("the reason does not say enough: %s", s.Reason)
		}
		if bad := s.Counters.Invalid - seen; bad < 900 || bad > 1200 {
			t.Errorf("pause %d after %d failed rows", pauses, bad)
		}
		if n := len(r.rows("pay_invalid", 0)); int64(n) != s.Counters.Invalid {
			t.Errorf("%d invalid rows can be looked at, %d are counted", n, s.Counters.Invalid)
		}
		if s.Partitions[0].Next != s.Counters.In {
			t.Errorf("paused at offset %d after %d rows", s.Partitions[0].Next, s.Counters.In)
		}
		seen = s.Counters.Invalid
		if err := r.eng.Resume(ctxOf(t), "m/out"); err != nil {
			t.Fatal(err)
		}
		r.wait("resumes", func() bool { return !paused() || r.status("m/out").Counters.Invalid > seen })
	}
	r.end("pay")
	r.ended("m/out")
	if good, bad := len(r.rows("out", 0)), len(r.rows("pay_invalid", 0)); good != 200 || bad != rows {
		t.Errorf("%d good and %d bad rows, want 200 and %d", good, bad, rows)
	}
	for i, w := range r.rows("pay_invalid", 0) {
		if w.headers["hr-offset"] != fmt.Sprint(100+i) {
			t.Fatalf("row %d of the invalid ones is offset %s", i, w.headers["hr-offset"])
		}
	}
}

func TestFailStopsAtTheRowUntilTheModuleSaysOtherwise(t *testing.T) {
	r := newRig(t, runtime.Options{})
	text := pay + "topic out = from pay |> where div(100, amount) >= 0 with errors "
	r.apply("m", text+"fail")
	r.put("pay", 0, payment(1, "a", "x", 1), payment(2, "a", "x", 2))
	r.caughtUp("m/out")
	r.put("pay", 0, payment(3, "a", "x", 0), payment(4, "a", "x", 4))
	r.wait("pause", func() bool { return r.status("m/out").State == runtime.StatePaused })
	s := r.status("m/out")
	if !strings.Contains(s.Reason, "pay/0 offset 2") || s.Partitions[0].Next != 2 {
		t.Errorf("paused at %d: %s", s.Partitions[0].Next, s.Reason)
	}
	res := r.apply("m", text+"drop")
	if len(res.Plan) != 1 || res.Plan[0].Change != runtime.ChangeRebuild {
		t.Errorf("plan: %+v", res.Plan)
	}
	r.caughtUp("m/out")
	if n := len(r.rows("out", 0)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

func TestAGroupThatFailsIsReportedAndTheOthersLeave(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+"topic sums = from pay |> agg s = sum(amount) by card window tumble(10s)")
	r.put("pay", 0, payment(1, "a", "x", 1<<62), payment(2, "a", "x", 1<<62), payment(3, "c", "x", 7))
	r.end("pay")
	r.ended("m/sums")
	rows := append(r.rows("sums_errors", 0), r.rows("sums_errors", 1)...)
	if len(rows) != 1 || rows[0].key != "a" || rows[0].headers["hr-code"] != "E0601" || !strings.Contains(rows[0].value, `"card":"a"`) {
		t.Errorf("errors:\n%s %v", r.all("sums_errors"), rows)
	}
	if got := r.all("sums"); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"s":7`) {
		t.Errorf("sums:\n%s", got)
	}
	checkCounters(t, r.status("m/sums"))
}

// A step of many wide groups would not fit an entry of the log; it is cut, and nothing is lost.
func TestStepsThatAreTooLargeBecomeSmaller(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+`topic wide = from pay |> agg n = count(), t = last(kind) by card window hop(100s every 1s)
topic long = from pay |> set twice = kind + kind + kind + kind`)
	kind := strings.Repeat("k", 3000)
	for i := range 10 {
		var msgs []msg
		for k := range 20 {
			msgs = append(msgs, payment(int64(1000+i*10), fmt.Sprintf("c%d", i*20+k), kind, 1))
		}
		r.put("pay", 0, msgs...)
	}
	r.end("pay")
	r.ended("m/wide", "m/long")
	if n := len(r.rows("long", 0)); n != 200 {
		t.Errorf("%d long rows", n)
	}
	total := 0
	for p := range 2 {
		total += len(r.rows("wide", p))
	}
	if total != 20_000 {
		t.Errorf("%d groups, want %d", total, 20_000)
	}
	if s := r.status("m/wide"); s.Step > 500 {
		t.Errorf("%d steps: they stayed small", s.Step)
	}
	checkCounters(t, r.status("m/wide"))
}

func TestKeysTooLongForTheStoreAreRowErrors(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+"topic sums = from pay |> agg n = count(), d = count_distinct(kind) by card window tumble(10s)")
	r.put("pay", 0, payment(1, strings.Repeat("x", 100_000), "k", 1), payment(2, "a", strings.Repeat("y", 200_000), 1), payment(3, "a", strings.Repeat("y", 200_001), 1))
	r.end("pay")
	r.ended("m/sums")
	if got := r.all("sums"); !strings.Contains(got, `"n":2,"d":2`) {
		t.Errorf("sums: %.300s", got)
	}
	if c := r.status("m/sums").Counters; c.Failed != 1 {
		t.Errorf("%+v", c)
	}
}

func TestClosedEnginesTakeNoChanges(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.eng.Close()
	if _, err := r.eng.Apply(context.Background(), "m", pay, runtime.ApplyOptions{}); !errors.Is(err, runtime.ErrClosed) {
		t.Errorf("apply after close: %v", err)
	}
}
