package endtoend

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A trip is a row of the window tests.
type trip struct {
	partition int
	offset    int64
	taxi      string
	kind      string
	km        float64
	fare      int64 // cents
	people    *int64
	zone      *string
	ts        int64 // ms
	behind    int64 // ms: the watermark of its partition before it; minInt if none
}

func (r *trip) json() string {
	return object("taxi", r.taxi, "kind", r.kind, "km", r.km, "fare", exact(cents(r.fare, 2)), "people", r.people, "zone", r.zone, "ts", r.ts)
}

const never = -1 << 60

// trips makes rows of several partitions, some further out of order than lag.
func trips(seed uint64, partitions, n int, lag int64) [][]trip {
	rng := rand.New(rand.NewPCG(seed, 3))
	out := make([][]trip, partitions)
	for p := range out {
		now, top := int64(1_600_000_000_000), int64(never)
		for o := range n {
			now += rng.Int64N(4000)
			ts := now - rng.Int64N(lag)
			if rng.IntN(8) == 0 {
				ts = now - rng.Int64N(8*60_000)
			}
			r := trip{
				partition: p, offset: int64(o), taxi: fmt.Sprintf("t%d", rng.IntN(4)), kind: []string{"a", "b", "ü"}[rng.IntN(3)],
				km: float64(rng.IntN(4000)) / 16, fare: rng.Int64N(20000) - 2000, ts: ts, behind: never,
			}
			if rng.IntN(3) > 0 {
				v := rng.Int64N(6)
				r.people = &v
			}
			if rng.IntN(4) > 0 {
				v := fmt.Sprintf("z%d", rng.IntN(5))
				r.zone = &v
			}
			if top != never {
				r.behind = top - lag
			}
			top = max(top, ts)
			out[p] = append(out[p], r)
		}
	}
	return out
}

func putTrips(r *rig, topic string, all [][]trip) {
	for p, rows := range all {
		var msgs []msg
		for i := range rows {
			msgs = append(msgs, msg{ts: rows[i].ts, key: rows[i].taxi, value: rows[i].json()})
		}
		r.put(topic, p, msgs...)
	}
}

// A group is what one window of one key holds.
type group struct {
	start, end int64 // ms
	key        string
	rows       []*trip
}

// windows groups rows by key and window, and gives the late ones by partition and offset.
func windows(all [][]trip, size, every int64, key func(*trip) string, keep func(*trip) bool) (groups []*group, late []*trip) {
	byID := map[string]*group{}
	for p := range all {
		for i := range all[p] {
			r := &all[p][i]
			if !keep(r) {
				continue
			}
			open := false
			for start := r.ts - (r.ts%every+every)%every; start+size > r.ts; start -= every {
				if start+size <= r.behind {
					continue
				}
				open = true
				id := fmt.Sprintf("%d %s", start, key(r))
				g := byID[id]
				if g == nil {
					g = &group{start: start, end: start + size, key: key(r)}
					byID[id] = g
					groups = append(groups, g)
				}
				g.rows = append(g.rows, r)
			}
			if !open {
				late = append(late, r)
			}
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.key, b.key)) })
	for _, g := range groups {
		slices.SortFunc(g.rows, func(a, b *trip) int {
			return cmp.Or(cmp.Compare(a.ts, b.ts), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
		})
	}
	return groups, late
}

const tripSchema = `
topic trips {
  taxi: string, kind: string, km: float64, fare: decimal(8,2), people: int64?, zone: string?, ts: time("ms"),
} with key (taxi), partitions 3, time ts lag 5s
`

const eightAggregates = `
  |> agg n = count(), np = count(people), far = count() where km > 100,
         people = sum(people), fares = sum(fare) where km > 10, km = sum(km),
         mean = avg(fare), mean_people = avg(people), mean_km = avg(km) where kind == "a",
         least = min(fare), most = max(km), from_ = min(ts), zones_to = max(zone),
         zones = count_distinct(zone), kinds = count_distinct(kind) where fare > 0,
         first_zone = first(zone), last_zone = last(zone), last_kind = last(kind) where people != nil and people > 2,
         share = sum(fare) / count(), spread = max(fare) - min(fare), busy = count() > 3 ? "busy" : "calm",
         half = (sum(people) ?? 0) * 2 + count()
`

// aggregated is the row of a group, in plain Go. Sums of floats go by partition, then offset.
func aggregated(g *group, by ...any) string {
	var np, far, people, fares, sum, nFar, nA int64
	var sumKm, sumA float64
	least, most, from := g.rows[0].fare, g.rows[0].km, g.rows[0].ts
	top := g.rows[0].fare
	var zonesTo, firstZone, lastZone, lastKind any
	zones, kinds := map[string]bool{}, map[string]bool{}
	for _, r := range g.rows {
		sum += r.fare
		least, top, most, from = min(least, r.fare), max(top, r.fare), max(most, r.km), min(from, r.ts)
		if r.people != nil {
			np++
			people += *r.people
			if *r.people > 2 {
				lastKind = r.kind
			}
		}
		if r.km > 100 {
			far++
		}
		if r.km > 10 {
			nFar++
			fares += r.fare
		}
		if r.fare > 0 {
			kinds[r.kind] = true
		}
		if r.zone != nil {
			zones[*r.zone] = true
			if firstZone == nil {
				firstZone = *r.zone
			}
			lastZone = *r.zone
			if zonesTo == nil || *r.zone > zonesTo.(string) {
				zonesTo = *r.zone
			}
		}
		sumKm += r.km // multiples of 1/16: exact in any order
		if r.kind == "a" {
			nA++
			sumA += r.km
		}
	}
	n := int64(len(g.rows))
	micro := func(sum, n int64) exact {
		return exact(cents(half(new(big.Int).Mul(big.NewInt(sum), big.NewInt(10000)), big.NewInt(n)).Int64(), 6))
	}
	busy := "calm"
	if n > 3 {
		busy = "busy"
	}
	pairs := append(by, "window_start", time.UnixMilli(g.start), "window_end", time.UnixMilli(g.end),
		"n", n, "np", np, "far", far, "people", opt(np > 0, people), "fares", opt[any](nFar > 0, exact(cents(fares, 2))), "km", number(sumKm),
		"mean", micro(sum, n), "mean_people", opt[any](np > 0, number(float64(people)/float64(max(np, 1)))),
		"mean_km", opt[any](nA > 0, number(sumA/float64(max(nA, 1)))),
		"least", exact(cents(least, 2)), "most", number(most), "from_", time.UnixMilli(from), "zones_to", zonesTo,
		"zones", len(zones), "kinds", len(kinds), "first_zone", firstZone, "last_zone", lastZone, "last_kind", lastKind,
		"share", micro(sum, n), "spread", exact(cents(top-least, 2)), "busy", busy, "half", people*2+n)
	return object(pairs...)
}

// number is a float in shortest form.
func number(f float64) exact { return exact(strconv.FormatFloat(f, 'g', -1, 64)) }

// checkGroups compares a derived topic with groups: in every partition the windows come in order.
func checkGroups(t *testing.T, r *rig, topic string, groups []*group, by func(*group) (key string, pairs []any)) {
	t.Helper()
	var wanted []string
	for _, g := range groups {
		key, pairs := by(g)
		wanted = append(wanted, fmt.Sprintf("%s=%s @%d", key, aggregated(g, pairs...), g.end*1e6-1))
	}
	var got []string
	lastEnd, lastKey := map[int]int64{}, map[int]string{}
	for _, w := range r.rows(topic) {
		got = append(got, fmt.Sprintf("%s=%s @%d", w.key, w.value, w.time))
		if w.time < lastEnd[w.partition] || w.time == lastEnd[w.partition] && w.key <= lastKey[w.partition] {
			t.Errorf("%s: %s is out of order", topic, w.value)
		}
		lastEnd[w.partition], lastKey[w.partition] = w.time, w.key
	}
	sameLines(t, topic, sorted(got), sorted(wanted))
}

func all(*trip) bool { return true }

// Tumbling and hopping windows over disordered partitions hold what the lateness rule says, all eight
// aggregates, their filters, and expressions over them.
func TestWindowsHoldWhatTheModelSays(t *testing.T) {
	data := trips(1, 3, 700, 5000)
	r := newRig(t)
	r.apply(tripSchema + `
topic tumbled = from trips` + eightAggregates + `by taxi window tumble(1m)
topic hopped = from trips` + eightAggregates + `by taxi, kind window hop(1m30s every 20s)
topic whole = from trips` + eightAggregates + `window tumble(10m)
topic part_of = from trips |> where km > 50 and kind != "b" ` + eightAggregates + `by zone window tumble(1m)
topic computed = from trips` + eightAggregates + `by big = fare > 100, len = len(taxi + kind) window hop(2m every 1m)
`)
	putTrips(r, "trips", data)
	r.end("trips")

	check := func(topic string, size, every int64, key func(*trip) string, keep func(*trip) bool, by func(*group) (string, []any)) {
		t.Helper()
		groups, late := windows(data, size, every, key, keep)
		if len(groups) < 5 {
			t.Fatalf("%s: only %d groups", topic, len(groups))
		}
		checkGroups(t, r, topic, groups, by)
		var wanted, got []string
		for _, l := range late {
			wanted = append(wanted, fmt.Sprintf("%d/%d %s=%s behind %d", l.partition, l.offset, l.taxi, l.json(), l.behind))
		}
		for _, w := range r.rows(topic + "_late") {
			h := w.headers
			got = append(got, fmt.Sprintf("%s/%s %s=%s behind %d", h["hr-partition"], h["hr-offset"], w.key, w.value, int64(binary.BigEndian.Uint64([]byte(h["hr-late"])))/1e6))
			if h["hr-topic"] != "trips" || h["hr-pipeline"] != "m/"+topic || h["hr-stage"] != "agg" {
				t.Errorf("%s_late has headers %q", topic, h)
			}
		}
		sameLines(t, topic+"_late", sorted(got), sorted(wanted))
	}
	taxi := func(r *trip) string { return r.taxi }
	check("tumbled", 60_000, 60_000, taxi, all, func(g *group) (string, []any) { return g.key, []any{"taxi", g.key} })
	check("hopped", 90_000, 20_000, func(r *trip) string { return jsonText([]string{r.taxi, r.kind}) }, all, func(g *group) (string, []any) {
		return g.key, []any{"taxi", g.rows[0].taxi, "kind", g.rows[0].kind}
	})
	check("whole", 600_000, 600_000, func(*trip) string { return "<null>" }, all, func(g *group) (string, []any) { return "<null>", nil })
	check("part_of", 60_000, 60_000, func(r *trip) string {
		if r.zone == nil {
			return "<null>"
		}
		return *r.zone
	}, func(r *trip) bool { return r.km > 50 && r.kind != "b" }, func(g *group) (string, []any) { return g.key, []any{"zone", g.rows[0].zone} })
	size := func(r *trip) (bool, int) { return r.fare > 10000, len([]rune(r.taxi + r.kind)) }
	check("computed", 120_000, 60_000, func(r *trip) string {
		b, n := size(r)
		return fmt.Sprintf("[%v,%d]", b, n)
	}, all, func(g *group) (string, []any) {
		b, n := size(g.rows[0])
		return g.key, []any{"big", b, "len", n}
	})
}

// Windows over a derived topic hold what they would over its source, with or without a change of key in
// between: a row that is behind takes its verdict along.
func TestWindowsOverDerivedTopicsHoldTheSame(t *testing.T) {
	data := trips(2, 3, 500, 5000)
	r := newRig(t)
	r.apply(tripSchema + `
topic same = from trips |> where km > 20
topic moved = from trips |> where km > 20 |> key (zone)
topic few = from trips |> where km > 20 |> key (kind, people) with partitions 2
topic direct = from trips |> where km > 20` + eightAggregates + `by kind window tumble(1m)
topic over_same = from same` + eightAggregates + `by kind window tumble(1m)
topic over_moved = from moved` + eightAggregates + `by kind window tumble(1m)
topic over_few = from few` + eightAggregates + `by kind window tumble(1m)
`)
	putTrips(r, "trips", data)
	r.end("trips")
	groups, late := windows(data, 60_000, 60_000, func(r *trip) string { return r.kind }, func(r *trip) bool { return r.km > 20 })
	checkGroups(t, r, "direct", groups, func(g *group) (string, []any) { return g.key, []any{"kind", g.key} })
	direct := sorted(keyed(r.rows("direct")))
	for _, topic := range []string{"over_same", "over_moved", "over_few"} {
		direct, got := direct, sorted(keyed(r.rows(topic)))
		if topic != "over_same" {
			// first and last break ties of time by the place in the topic they read.
			direct, got = untied(direct), untied(got)
		}
		sameLines(t, topic, got, direct)
		if n := len(r.rows(topic + "_late")); n != len(late) {
			t.Errorf("%s: %d late rows, not %d", topic, n, len(late))
		}
	}
	parts := r.topic("few").Partitions
	if parts != 2 {
		t.Errorf("few has %d partitions", parts)
	}
	for _, w := range r.rows("moved") {
		m := fields(t, w.value)
		zone := strings.Trim(string(m["zone"]), `"`)
		if zone == "null" {
			zone = "<null>"
		}
		if w.key != zone {
			t.Fatalf("key %s of %s", w.key, w.value)
		}
	}
	for _, w := range r.rows("few") {
		if m := fields(t, w.value); w.key != fmt.Sprintf("[%s,%s]", m["kind"], m["people"]) {
			t.Fatalf("key %s of %s", w.key, w.value)
		}
	}
}

func untied(rows []string) []string {
	out := make([]string, len(rows))
	for i, s := range rows {
		a, b := strings.Index(s, `"first_zone"`), strings.Index(s, `"share"`)
		out[i] = s[:a] + s[b:]
	}
	return out
}

// A chain of aggregates gives what one over all rows would.
func TestAggregatesOfAggregates(t *testing.T) {
	data := trips(3, 3, 600, 5000)
	r := newRig(t)
	r.apply(tripSchema + `
topic minutes = from trips |> agg n = count(), fares = sum(fare), km = max(km) by taxi window tumble(1m)
topic hours = from minutes |> agg minutes = count(), n = sum(n), fares = sum(fares), km = max(km), busiest = max(n) by taxi window tumble(10m)
topic total = from hours |> where n > 0 |> agg taxis = count_distinct(taxi), n = sum(n), fares = sum(fares) window tumble(1h)
stream busy = from minutes |> where n > 2
topic busy_minutes = from busy |> agg n = count(), last = last(n) by taxi window hop(5m every 1m)
`)
	putTrips(r, "trips", data)
	r.end("trips")
	groups, _ := windows(data, 60_000, 60_000, func(r *trip) string { return r.taxi }, all)
	type sums struct {
		minutes, n, fares, busiest int64
		km                         float64
		taxis                      map[string]bool
	}
	hours, totals := map[string]*sums{}, map[int64]*sums{}
	for _, g := range groups {
		h := g.start - g.start%600_000
		id := fmt.Sprintf("%d %s", h, g.key)
		if hours[id] == nil {
			hours[id] = &sums{}
		}
		if totals[h-h%3_600_000] == nil {
			totals[h-h%3_600_000] = &sums{taxis: map[string]bool{}}
		}
		x, y := hours[id], totals[h-h%3_600_000]
		x.minutes++
		y.taxis[g.key] = true
		x.busiest = max(x.busiest, int64(len(g.rows)))
		for _, r := range g.rows {
			x.n++
			y.n++
			x.fares += r.fare
			y.fares += r.fare
			x.km = max(x.km, r.km)
		}
	}
	var wanted, wantedTotals []string
	for id, x := range hours {
		var h int64
		var taxi string
		fmt.Sscanf(id, "%d %s", &h, &taxi)
		wanted = append(wanted, object("taxi", taxi, "window_start", time.UnixMilli(h), "window_end", time.UnixMilli(h+600_000),
			"minutes", x.minutes, "n", x.n, "fares", exact(cents(x.fares, 2)), "km", number(x.km), "busiest", x.busiest))
	}
	sameLines(t, "hours", sorted(values(r.rows("hours"))), sorted(wanted))
	for h, y := range totals {
		wantedTotals = append(wantedTotals, object("window_start", time.UnixMilli(h), "window_end", time.UnixMilli(h+3_600_000),
			"taxis", len(y.taxis), "n", y.n, "fares", exact(cents(y.fares, 2))))
	}
	sameLines(t, "total", sorted(values(r.rows("total"))), sorted(wantedTotals))

	busy := map[string][]*group{}
	for _, g := range groups {
		if len(g.rows) <= 2 {
			continue
		}
		for end := g.end; end < g.end+300_000; end += 60_000 { // its time is end - 1ns
			id := fmt.Sprintf("%d %s", end, g.key)
			busy[id] = append(busy[id], g)
		}
	}
	var wantedBusy []string
	for id, gs := range busy {
		var end int64
		var taxi string
		fmt.Sscanf(id, "%d %s", &end, &taxi)
		wantedBusy = append(wantedBusy, object("taxi", taxi, "window_start", time.UnixMilli(end-300_000), "window_end", time.UnixMilli(end),
			"n", len(gs), "last", len(gs[len(gs)-1].rows)))
	}
	sameLines(t, "busy_minutes", sorted(values(r.rows("busy_minutes"))), sorted(wantedBusy))
	for _, side := range []string{"hours_late", "total_late", "busy_minutes_late", "hours_errors"} {
		if n := len(r.rows(side)); n > 0 {
			t.Errorf("%s has %d rows", side, n)
		}
	}
}
