package runtime_test

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime"
)

// A clock stands still until it is moved.
type clock struct{ ns atomic.Int64 }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.ns.Store(at.UnixNano())
	return c
}

func (c *clock) now() time.Time           { return time.Unix(0, c.ns.Load()) }
func (c *clock) move(d time.Duration)     { c.ns.Add(int64(d)) }
func (c *clock) ms(d time.Duration) int64 { return c.now().Add(d).UnixMilli() }

// marks are the time marks of a partition, ns.
func (r *rig) marks(topic string, p int) []int64 {
	r.t.Helper()
	var out []int64
	part := r.partition(topic, p)
	for at := part.LogStart(); at < part.LogEnd(); {
		batches, err := part.Read(at, 4<<20, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, b := range batches {
			if w, ok := record.ParseTimeMark(b.Data); ok {
				out = append(out, w)
			}
			at = b.Last + 1
		}
	}
	return out
}

const idlePay = `topic pay { card: string, kind: string, amount: int64, ts: time("ms") }
  with key (card), partitions 3, time ts lag 1s idle 40ms
topic sums = from pay |> agg n = count() by card window tumble(10s)
`

func TestIdlePartitionsGetMarksThatAReplayReads(t *testing.T) {
	c := newClock(time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC))
	r := newRig(t, runtime.Options{Now: c.now})
	r.apply("m", idlePay)
	start := c.ms(0)
	r.put("pay", 0, payment(start, "a", "x", 1), payment(start+20_000, "a", "x", 1)) // W is start + 19 s
	r.put("pay", 1, payment(start+1000, "b", "x", 1))                                // W is start
	r.caughtUp("m/sums")
	time.Sleep(100 * time.Millisecond) // the clock that counts stands still
	for p := range 3 {
		if m := r.marks("pay", p); len(m) != 0 {
			t.Fatalf("partition %d has marks %v before its time", p, m)
		}
	}
	if s := r.status("m/sums"); s.HeldBy != 2 || s.Watermark != "-inf" {
		t.Errorf("held by %d at %s, want the partition without rows", s.HeldBy, s.Watermark)
	}
	c.move(12 * time.Second)
	r.wait("windows close", func() bool { return strings.Count(r.all("sums"), "\n") == 2 })
	// The largest event time, and what has passed since the row came, and less the lag.
	if m := r.marks("pay", 1); len(m) == 0 || m[0] != (start+1000+12_000-1000)*1e6 {
		t.Errorf("marks of partition 1: %v, want %d", m, (start+12_000)*1e6)
	}
	// Without rows: no further than the others.
	for _, m := range r.marks("pay", 2) {
		if m > (start+12_000)*1e6 {
			t.Errorf("partition 2 is marked %d", m)
		}
	}
	r.reopen()
	r.caughtUp("m/sums")
	c.move(time.Minute)
	r.wait("all windows close", func() bool { return strings.Count(r.all("sums"), "\n") == 3 })
	if m := r.marks("pay", 1); m[len(m)-1] != (start+72_000)*1e6 {
		t.Errorf("after a restart partition 1 is marked %d, want %d", m[len(m)-1], (start+72_000)*1e6)
	}
	// A pipeline that comes later finds history as it was.
	want := r.all("sums")
	late := r.rows("sums_late", 0)
	r.apply("again", strings.Replace(idlePay, "topic sums", "topic sums2", 1))
	r.wait("replay", func() bool { return strings.Count(r.all("sums2"), "\n") == 3 })
	if got := r.all("sums2"); got != want || len(late) != 0 {
		t.Errorf("replay:\n%swant\n%s", got, want)
	}
	// A row of an idle partition that comes behind its mark is late.
	r.put("pay", 1, payment(start+1500, "b", "x", 1))
	r.wait("late", func() bool { return len(r.rows("sums_late", 1)) == 1 && len(r.rows("sums2_late", 1)) == 1 })
}

func TestABusyPartitionDoesNotHideAnIdleOne(t *testing.T) {
	c := newClock(time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC))
	r := newRig(t, runtime.Options{Now: c.now})
	r.apply("m", idlePay)
	start := c.ms(0)
	r.put("pay", 1, payment(start, "b", "x", 1))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			r.put("pay", 0, payment(c.ms(0), "a", "x", int64(i)))
			c.move(20 * time.Millisecond)
		}
	}()
	r.wait("a window closes", func() bool { return strings.Count(r.all("sums"), "\n") >= 2 })
	close(stop)
	<-done
}

func TestADeclaredEndClosesEverythingDownTheChain(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+`topic big = from pay |> where amount > 0
topic sums = from big |> agg n = count() by card window tumble(10s)
topic all = from sums |> agg n = sum(n) window tumble(1m)`)
	r.put("pay", 0, payment(1, "a", "x", 1))
	r.end("pay")
	r.ended("m/big", "m/sums", "m/all")
	for _, topic := range []string{"big", "sums", "all"} {
		for p := range int(r.topic(topic).Partitions) {
			if m := r.marks(topic, p); len(m) == 0 || m[len(m)-1] != math.MaxInt64 {
				t.Errorf("%s/%d: marks %v", topic, p, m)
			}
		}
	}
	if got := r.all("all"); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"n":1`) {
		t.Errorf("all: %s", got)
	}
	steps := r.status("m/all").Step
	r.reopen()
	r.ended("m/all")
	time.Sleep(50 * time.Millisecond)
	if s := r.status("m/all").Step; s > steps+1 {
		t.Errorf("%d steps after everything has ended", s-steps)
	}
}

func TestWindowsOnAppendTimeHoldTheRowsOfTheirTime(t *testing.T) {
	c := newClock(time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC))
	r := newRig(t, runtime.Options{Now: c.now, StepBytes: 300, OutputBytes: 500})
	r.apply("m", pay+"topic sums = from pay |> agg n = count(), s = sum(amount) by kind window tumble(10s) on append\n"+
		"topic all = from sums |> agg n = sum(n) window tumble(20s)")
	want := map[int64]int{} // by window
	total := 0
	for i := range 300 {
		if i == 150 {
			r.reopen()
		}
		n := 1 + i%3
		var msgs []msg
		for range n {
			msgs = append(msgs, payment(int64(1000+i), "a", "k", 1)) // event time says nothing here
		}
		r.put("pay", i%2, msgs...)
		want[c.now().Unix()/10] += n
		total += n
		c.move(time.Duration(i%5) * 200 * time.Millisecond)
	}
	c.move(30 * time.Second)
	r.wait("time alone closes windows", func() bool {
		r.put("pay", 0, msg{1, "a", "not counted"}) // something is appended now and then
		return strings.Count(r.all("sums"), "\n") == len(want)
	})
	got := 0
	for _, line := range strings.Split(strings.TrimSpace(r.all("sums")), "\n") {
		for start, n := range want {
			at := time.Unix(start*10, 0).UTC().Format(time.RFC3339)
			if strings.Contains(line, `"window_start":"`+at+`"`) {
				got++
				if !strings.Contains(line, `"n":`+itoa(n)+`,"s":`+itoa(n)+`}`) {
					t.Errorf("window %s has %d rows: %s; %+v", at, n, line, r.status("m/sums").Counters)
				}
			}
		}
	}
	if got != len(want) {
		t.Errorf("%d windows, want %d", got, len(want))
	}
	r.end("pay")
	r.ended("m/sums", "m/all")
	sum := 0
	for _, w := range r.rows("all", 0) {
		sum += countOf(w.value)
	}
	if sum != total {
		t.Errorf("the chain counts %d rows of %d:\n%s", sum, total, r.all("all"))
	}
}
