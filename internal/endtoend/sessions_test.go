package endtoend

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A session is one row of a derived topic of sessions.
type session struct {
	Key   string    `json:"key"`
	N     int       `json:"n"`
	Start time.Time `json:"window_start"`
	End   time.Time `json:"window_end"`
}

// sessions reads the topic `sessions` and checks that none is late or failed.
func sessions(t *testing.T, r *rig) []session {
	t.Helper()
	var out []session
	for _, w := range r.rows("sessions") {
		var s session
		if err := json.Unmarshal([]byte(w.value), &s); err != nil {
			t.Fatal(err)
		}
		if w.time != s.End.UnixNano()-1 {
			t.Errorf("event time of %s is %d", w.value, w.time)
		}
		out = append(out, s)
	}
	for _, side := range []string{"sessions_late", "sessions_errors", "t_invalid"} {
		if rows := r.rows(side); len(rows) > 0 {
			t.Errorf("%s has %d rows: %+v", side, len(rows), rows[0])
		}
	}
	return out
}

// top5 are the keys with the most sessions, with their counts.
func top5(list []session) string {
	counts := map[string]int{}
	for _, s := range list {
		counts[s.Key]++
	}
	var keys []string
	for k := range counts {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) })
	var top [][]any
	for _, k := range keys[:5] {
		top = append(top, []any{k, counts[k]})
	}
	text, _ := json.Marshal(top)
	return string(text)
}

// known reads the known answers about a data set.
func known(t *testing.T, file string) map[string]any {
	t.Helper()
	out := map[string]any{}
	d := json.NewDecoder(bytes.NewReader(full(t, "expected/"+file)))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	w, _ := json.Marshal(want)
	if want == nil || fmt.Sprint(got) != string(w) {
		t.Errorf("%s: %v, want %s", what, got, w)
	}
}

// spread writes rows to the partitions of t in turn, so that a key has rows in all of them.
func spread(r *rig, msgs []msg) {
	parts := make([][]msg, r.topic("t").Partitions)
	for i, m := range msgs {
		parts[i%len(parts)] = append(parts[i%len(parts)], m)
	}
	for p, ms := range parts {
		r.put("t", p, ms...)
	}
	r.end("t")
}

func gunzip(t *testing.T, raw []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(z); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSessionsOfRoutes(t *testing.T) {
	want := known(t, "flights.json")
	r := newRig(t)
	r.apply(`
topic t { date: time, delay: int64, distance: int64, origin: string, destination: string } with format csv, partitions 4, time date
topic sessions = from t |> agg n = count() by key = origin + "-" + destination window session(3h)
`)
	_, lines := csvRows(t, full(t, "flights/flights_2001-01-01_14.csv.gz"))
	var msgs []msg
	for _, l := range lines {
		msgs = append(msgs, msg{ts: 1, value: csvLine(l)})
	}
	spread(r, msgs)
	got := sessions(t, r)
	longest, rows := int64(0), 0
	for _, s := range got {
		longest, rows = max(longest, s.End.Sub(s.Start).Milliseconds()-3*3_600_000), rows+s.N
	}
	same(t, "sessions", len(got), want["route_sessions_gap3h_total"])
	same(t, "longest", longest, want["route_sessions_gap3h_longest_ms"])
	same(t, "top routes", top5(got), want["route_sessions_gap3h_top5_routes"])
	if rows != len(lines) {
		t.Errorf("sessions hold %d of %d rows", rows, len(lines))
	}
}

func TestSessionsOfCustomers(t *testing.T) {
	want := known(t, "retail.json")
	r := newRig(t)
	r.apply(`
topic t {
  invoice: string, stock: string, description: string?, quantity: int64, at: time("yyyy-MM-dd HH:mm:ss"), price: decimal(10,3), customer: string?, country: string,
} with format csv, partitions 3, time at
topic sessions = from t |> where customer != nil |> agg n = count() by key = customer window session(30m)
`)
	_, lines := csvRows(t, full(t, "retail/online_retail.csv.gz"))
	var msgs []msg
	for _, l := range lines {
		msgs = append(msgs, msg{ts: 1, value: csvLine(l)})
	}
	spread(r, msgs)
	got := sessions(t, r)
	same(t, "sessions", len(got), want["customer_sessions_gap30m_total"])
	same(t, "top customers", top5(got), want["customer_sessions_gap30m_top5"])
}

func TestSessionsOfIntruders(t *testing.T) {
	want := known(t, "auth.json")
	r := newRig(t)
	r.apply(`
topic t { ip: string, at: time } with partitions 2, time at
topic sessions = from t |> agg n = count() by key = ip window session(5m)
`)
	kinds := regexp.MustCompile(`Invalid user .* from (\S+)$|Did not receive identification string from (\S+)$|Received disconnect from ([^ :]+): 11: `)
	var msgs []msg
	for line := range strings.Lines(string(gunzip(t, full(t, "security/secrepo_auth.log.gz")))) {
		line = strings.TrimSuffix(line, "\n")
		m := kinds.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, err := time.Parse("2006 Jan _2 15:04:05", "2014 "+line[:15])
		if err != nil {
			t.Fatal(err)
		}
		msgs = append(msgs, msg{ts: 1, value: object("ip", m[1]+m[2]+m[3], "at", at)})
	}
	spread(r, msgs)
	got := sessions(t, r)
	same(t, "sessions", len(got), want["ip_sessions_gap5m_total"])
	same(t, "top addresses", top5(got), want["ip_sessions_gap5m_top5"])
}

func TestSessionsOfEditors(t *testing.T) {
	want := known(t, "wiki.json")
	r := newRig(t)
	r.apply(`
topic t { user: string, time_: time as "time" } with partitions 3, time time_
topic sessions = from t |> agg n = count() by key = user window session(30m)
`)
	var msgs []msg
	lines := bufio.NewScanner(bytes.NewReader(gunzip(t, full(t, "wiki/wikiticker-2015-09-12-sampled.jsonl.gz"))))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		msgs = append(msgs, msg{ts: 1, value: lines.Text()})
	}
	spread(r, msgs)
	got := sessions(t, r)
	most := 0
	for _, s := range got {
		most = max(most, s.N)
	}
	same(t, "sessions", len(got), want["user_sessions_gap30m_total"])
	same(t, "most edits", most, want["user_session_most_edits"])
}
