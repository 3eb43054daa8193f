package scalar

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func calendar(t testing.TB, unit, zone string) *Calendar {
	t.Helper()
	c, err := NewCalendar(unit, zone)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCalendarSpans(t *testing.T) {
	for _, x := range []struct{ unit, zone, at, start, end string }{
		{"day", "", "2024-02-29T12:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"day", "Europe/Berlin", "2024-03-31T12:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"}, // 23 h
		{"day", "Europe/Berlin", "2024-10-27T12:00:00Z", "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"}, // 25 h
		{"hour", "Europe/Berlin", "2024-10-27T00:30:00Z", "2024-10-27T00:00:00Z", "2024-10-27T01:00:00Z"},
		{"hour", "Europe/Berlin", "2024-10-27T01:30:00Z", "2024-10-27T01:00:00Z", "2024-10-27T02:00:00Z"},
		{"hour", "Asia/Kolkata", "2024-10-27T01:45:00Z", "2024-10-27T01:30:00Z", "2024-10-27T02:30:00Z"},
		{"hour", "Australia/Lord_Howe", "2024-04-06T15:10:00Z", "2024-04-06T15:00:00Z", "2024-04-06T15:30:00Z"}, // half an hour back at 02:00
		{"week", "", "2024-01-07T23:59:59Z", "2024-01-01T00:00:00Z", "2024-01-08T00:00:00Z"},
		{"week", "America/New_York", "2024-01-08T04:59:59Z", "2024-01-01T05:00:00Z", "2024-01-08T05:00:00Z"},
		{"month", "Europe/Berlin", "2024-03-31T22:30:00Z", "2024-03-31T22:00:00Z", "2024-04-30T22:00:00Z"},
		{"quarter", "", "2024-05-05T00:00:00Z", "2024-04-01T00:00:00Z", "2024-07-01T00:00:00Z"},
		{"year", "Asia/Shanghai", "2023-12-31T16:00:00Z", "2023-12-31T16:00:00Z", "2024-12-31T16:00:00Z"},
		{"day", "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"}, // no midnight
		{"day", "America/Sao_Paulo", "2018-02-18T02:30:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"}, // 23:00 twice
		{"day", "Pacific/Apia", "2011-12-30T10:30:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},      // the 30th is left out
		{"day", "America/Havana", "2024-11-03T05:30:00Z", "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"},    // midnight twice
		{"minute", "Europe/Berlin", "1969-12-31T23:59:59Z", "1969-12-31T23:59:00Z", "1970-01-01T00:00:00Z"},
	} {
		at, err := time.Parse(time.RFC3339, x.at)
		if err != nil {
			t.Fatal(err)
		}
		start, end := calendar(t, x.unit, x.zone).Span(at.UnixNano())
		got := fmt.Sprint(time.Unix(0, start).UTC().Format(time.RFC3339), " ", time.Unix(0, end).UTC().Format(time.RFC3339))
		if want := x.start + " " + x.end; got != want {
			t.Errorf("%s %s at %s: %s, want %s", x.unit, x.zone, x.at, got, want)
		}
	}
}

// Spans lie side by side, each holds what it is asked for, and each but the cut ones begins where the clock does.
func TestCalendarDividesTime(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	zones := []string{"", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Pacific/Apia", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Monrovia", "Asia/Tehran"}
	for range 3000 {
		unit, zone := CalendarUnits[r.IntN(len(CalendarUnits))], zones[r.IntN(len(zones))]
		ns := r.Int64N(150*365*24*int64(time.Hour)) - 75*365*24*int64(time.Hour)
		start, end := calendar(t, unit, zone).Span(ns)
		if ns < start || ns >= end || end-start > MaxCalendarSpan {
			t.Fatalf("%s %s: %d is not in [%d, %d)", unit, zone, ns, start, end)
		}
		c := calendar(t, unit, zone)
		for _, at := range []int64{start, end - 1, start + r.Int64N(end-start)} {
			if s, e := c.Span(at); s != start || e != end {
				t.Fatalf("%s %s: [%d, %d) at %d, [%d, %d) at %d", unit, zone, start, end, ns, s, e, at)
			}
			c.Span(ns + int64(time.Hour)*24*400) // forget
		}
		if s, _ := c.Span(end); s != end {
			t.Fatalf("%s %s: after [%d, %d) comes %d", unit, zone, start, end, s)
		}
		if _, e := c.Span(start - 1); e != start {
			t.Fatalf("%s %s: before [%d, %d) ends %d", unit, zone, start, end, e)
		}
	}
}
