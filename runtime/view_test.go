package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
)

// A viewer reads a view like a client.
type viewer struct {
	t    testing.TB
	view *runtime.View
}

func (r *rig) view(name string) viewer {
	r.t.Helper()
	v, ok := r.eng.View(name)
	if !ok {
		r.t.Fatalf("no view %s", name)
	}
	return viewer{r.t, v}
}

// fetch is one fetch, its batches checked and read.
func (v viewer) fetch(from int64, maxBytes int) ([]row, runtime.ViewFetch) {
	v.t.Helper()
	f, err := v.view.Fetch(context.Background(), 0, from, maxBytes)
	if err != nil {
		v.t.Fatalf("fetch at %d: %v", from, err)
	}
	var out []row
	var rd record.Reader
	last := int64(-1)
	for _, b := range f.Batches {
		h, err := record.Verify(b)
		if err != nil {
			v.t.Fatalf("batch of a view: %v", err)
		}
		if h.Count == 0 {
			v.t.Fatal("a batch without records")
		}
		if h.BaseOffset <= last {
			v.t.Fatalf("batch at %d after offset %d", h.BaseOffset, last)
		}
		last = h.BaseOffset + int64(h.LastOffsetDelta)
		if err := rd.Reset(b); err != nil {
			v.t.Fatal(err)
		}
		out = append(out, rowsOf(v.t, &rd, 0)...)
	}
	return out, f
}

// drain reads everything from an offset as a client does: on from the last batch.
func (v viewer) drain(from int64) []row {
	v.t.Helper()
	var out []row
	for idle := 0; idle < 2; {
		rows, f := v.fetch(from, 1<<10)
		if len(f.Batches) == 0 {
			// A fetch that found nothing goes on behind what it looked at.
			if f.Source >= v.view.SourcePartition(0).LogEnd() {
				idle++
			}
			continue
		}
		out = append(out, rows...)
		h, _ := record.ParseHeader(f.Batches[len(f.Batches)-1])
		from = h.BaseOffset + int64(h.LastOffsetDelta) + 1
	}
	return out
}

const viewed = `topic src { id: int64, pass: bool, div: int64 } with partitions 1
view v = from src |> where pass and div(10, div) >= 0 |> select id
`

func viewRow(id int, pass bool, div int) msg {
	return msg{int64(id), "", fmt.Sprintf(`{"id":%d,"pass":%v,"div":%d}`, id, pass, div)}
}

func ids(rows []row) []string {
	var out []string
	for _, w := range rows {
		out = append(out, fmt.Sprintf("%d:%s", w.offset, w.value))
	}
	return out
}

func TestAViewHasTheOffsetsOfItsSource(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", viewed)
	v := r.view("v")
	if rows, f := v.fetch(0, 0); len(rows) != 0 || f.LogEnd != 0 || f.LogStart != 0 {
		t.Errorf("empty: %v %+v", rows, f)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var want []string
	for id := 0; id < 3000; {
		var msgs []msg
		for range 1 + rng.IntN(40) {
			pass := rng.IntN(3) == 0 && id/500%2 == 0 // long ranges where nothing passes
			div := 1
			if rng.IntN(30) == 0 {
				div = 0
			}
			if pass && div != 0 {
				want = append(want, fmt.Sprintf(`%d:{"id":%d}`, id, id))
			}
			msgs = append(msgs, viewRow(id, pass, div))
			id++
		}
		r.put("src", 0, msgs...)
	}
	if got := ids(v.drain(0)); !slices.Equal(got, want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	last, _, _ := strings.Cut(want[len(want)-1], ":")
	if end, err := v.view.Latest(context.Background(), 0); err != nil || fmt.Sprint(end-1) != last {
		t.Errorf("latest is %d (%v), the last row is at %s", end, err, last)
	}
	n, why := v.view.Failures()
	if n == 0 || !strings.Contains(why, "E0602") {
		t.Errorf("failures %d %q", n, why)
	}
	v.drain(0)
	if again, _ := v.view.Failures(); again != n {
		t.Errorf("%d failures are counted after a second reading, %d before", again, n)
	}
	// From the middle of a batch, of a gap, of anything.
	for range 200 {
		from := int64(rng.IntN(int(r.partition("src", 0).LogEnd()) + 1))
		rows, f := v.fetch(from, 1)
		i, _ := slices.BinarySearchFunc(want, from, func(s string, at int64) int {
			var o int64
			_, _ = fmt.Sscan(s[:strings.Index(s, ":")], &o)
			return int(o - at)
		})
		switch {
		case i == len(want):
			if len(rows) != 0 || f.LogEnd < from {
				t.Errorf("fetch at %d behind the last row: %v %+v", from, ids(rows), f)
			}
		case len(rows) == 0 || ids(rows)[0] != want[i]:
			t.Errorf("fetch at %d: %v, want %s first", from, ids(rows), want[i])
		}
	}
	end := r.partition("src", 0).LogEnd()
	var out *log.OffsetRangeError
	if _, err := v.view.Fetch(context.Background(), 0, end+1, 0); !errors.As(err, &out) {
		t.Errorf("fetch behind the end: %v", err)
	}
	// After a restart the mark is found again, from the end backwards.
	r.reopen()
	if end, err := r.view("v").view.Latest(context.Background(), 0); err != nil || fmt.Sprint(end-1) != last {
		t.Errorf("latest after a restart is %d (%v), the last row is at %s", end, err, last)
	}
	if _, f := r.view("v").fetch(end, 0); f.LogEnd != end {
		t.Errorf("a reader at %d is told the end is %d", end, f.LogEnd)
	}
}

func TestAViewOverALogWhoseStartHasMoved(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", viewed)
	for i := range 10 {
		r.put("src", 0, viewRow(3*i, i < 5, 1), viewRow(3*i+1, false, 1), viewRow(3*i+2, false, 1))
	}
	v := r.view("v")
	v.drain(0) // knows that the last row is at 12
	cut := func(at int64) {
		var u log.Unit
		u.LogStart(r.partition("src", 0).ID(), at)
		if res := r.node.Data().Do(ctxOf(t), &u); res.Outcome != replication.Yes {
			t.Fatal(res.Err)
		}
	}
	cut(7)
	var out *log.OffsetRangeError
	if _, err := v.view.Fetch(context.Background(), 0, 0, 0); !errors.As(err, &out) || out.Start != 7 {
		t.Errorf("fetch before the start: %v", err)
	}
	if got := ids(v.drain(7)); !slices.Equal(got, []string{`9:{"id":9}`, `12:{"id":12}`}) {
		t.Errorf("from the new start: %v", got)
	}
	cut(20) // behind the last row
	if rows, f := v.fetch(20, 0); len(rows) != 0 || f.LogStart != 20 || f.LogEnd < f.LogStart {
		t.Errorf("nothing left: %v %+v", ids(rows), f)
	}
	if end, err := v.view.Latest(context.Background(), 0); err != nil || end < 20 {
		t.Errorf("latest %d, %v", end, err)
	}
}

func TestAPipelineOverALogWhoseStartHasMoved(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1)
	for i := range 10 {
		r.put("pay", 0, payment(int64(i), "a", "x", int64(100+i)))
	}
	r.wait("rows", func() bool { return len(r.rows("big", 0)) == 10 })
	if err := r.eng.Stop(ctxOf(t), "m"); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		r.put("pay", 0, payment(int64(i), "a", "x", int64(200+i)))
	}
	cut := func(p int, at int64) {
		var u log.Unit
		u.LogStart(r.partition("pay", p).ID(), at)
		if res := r.node.Data().Do(ctxOf(t), &u); res.Outcome != replication.Yes {
			t.Fatal(res.Err)
		}
	}
	cut(0, 15)
	// It does not go on as if nothing had been there: it pauses, also after a restart, until somebody says that it may.
	goOn := func(what string) {
		t.Helper()
		if err := r.eng.Resume(ctxOf(t), "m"); err != nil {
			t.Fatal(err)
		}
		r.wait("it pauses", func() bool { return r.status("m/big").State == runtime.StatePaused })
		r.reopen()
		r.wait("it pauses again", func() bool { return r.status("m/big").State == runtime.StatePaused })
		if s := r.status("m/big"); !strings.Contains(s.Reason, what) {
			t.Errorf("reason %q, want %q", s.Reason, what)
		}
		if err := r.eng.Resume(ctxOf(t), "m"); err != nil {
			t.Fatal(err)
		}
	}
	goOn("offsets 10 to 14 of partition 0 were deleted before they were read")
	r.wait("the rest", func() bool { return len(r.rows("big", 0)) == 15 })
	r.wait("the loss is counted", func() bool { // a step's rows are seen a moment before its counters
		c := r.status("m/big").Counters
		return c.Skipped == 5 && c.In == 15
	})
	// Everything is gone before it was read.
	if err := r.eng.Stop(ctxOf(t), "m"); err != nil {
		t.Fatal(err)
	}
	r.put("pay", 1, payment(1, "b", "x", 100), payment(1, "b", "x", 100))
	cut(1, 2)
	goOn("offsets 0 to 1 of partition 1 were deleted before they were read")
	r.wait("the loss is counted", func() bool { return r.status("m/big").Counters.Skipped == 7 })
	r.reopen()
	r.put("pay", 1, payment(1, "b", "x", 300))
	r.wait("it goes on", func() bool { return len(r.rows("big", 1)) == 1 })
	if c := r.status("m/big").Counters; c.Skipped != 7 {
		t.Errorf("%+v", c)
	}
}

func TestViewsAreReadByManyAtOnce(t *testing.T) {
	r := newRig(t, runtime.Options{ViewScanBytes: 4 << 10})
	r.apply("m", viewed)
	const rows = 4000
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; i < rows; i += 20 {
			var msgs []msg
			for k := i; k < i+20; k++ {
				msgs = append(msgs, viewRow(k, k%50 == 0, 1))
			}
			r.put("src", 0, msgs...)
		}
	})
	v := r.view("v")
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			next, at := 0, int64(0)
			for next < rows {
				f, err := v.view.Fetch(context.Background(), 0, at, 1+rng.IntN(2000))
				if err != nil {
					t.Errorf("fetch: %v", err)
					return
				}
				var rd record.Reader
				for _, b := range f.Batches {
					if err := rd.Reset(b); err != nil {
						t.Error(err)
						return
					}
					for _, w := range rowsOf(t, &rd, 0) {
						if w.offset != int64(next) {
							t.Errorf("row at %d, want %d", w.offset, next)
							return
						}
						next += 50
					}
					at = rd.Header().BaseOffset + int64(rd.Header().LastOffsetDelta) + 1
				}
				if _, err := v.view.Latest(context.Background(), 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
