package endtoend

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// The log of a host, taken apart by one pattern. Its lines have no year.
const authModule = `
topic auth {
  at: string, program: string, text: string,
} with format regex("^(?P<at>[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}) [^ ]+ (?P<program>[A-Za-z]+)(?:[[][0-9]+[]])?: (?P<text>.*)$"),
       time (parse_time("2014 " + at, "yyyy MMM d HH:mm:ss")) future 1m

stream kinds = from auth
  |> set kind = text startsWith "Invalid user " ? "invalid_user"
       : text startsWith "Did not receive identification string from " ? "no_ident"
       : text startsWith "Received disconnect from " and text contains ": 11:" ? "disconnect" : "other"
topic by_kind = from kinds |> agg n = count() by kind window tumble(7d)
topic kind_hours = from kinds |> where kind != "other" |> agg n = count() by kind window tumble(1h)
topic programs = from auth |> agg n = count() by program window tumble(7d)
topic scanners = from kinds |> where kind == "invalid_user" |> set ip = extract(text, " from ([0-9.]+)", 1)
  |> agg n = count() by ip window tumble(7d)
topic raw = from auth |> select line = text with format lines
`

func TestTheAuthLogGivesTheKnownAnswers(t *testing.T) {
	z, err := gzip.NewReader(bytes.NewReader(full(t, "security/secrepo_auth.log.gz")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.apply(authModule)
	var msgs []msg
	for line := range strings.Lines(string(text)) {
		msgs = append(msgs, msg{ts: 1, value: strings.TrimSuffix(line, "\n")})
	}
	r.put("auth", 0, msgs...)
	r.end("auth")
	if n := len(r.rows("raw")); n != len(msgs) {
		t.Errorf("%d of %d lines have come", n, len(msgs))
	}

	var want struct {
		Programs map[string]int `json:"by_program"`
		Kinds    map[string]int `json:"by_kind"`
		Scanners [][]any        `json:"top10_invalid_user_ip"`
	}
	if err := json.Unmarshal(full(t, "expected/auth.json"), &want); err != nil {
		t.Fatal(err)
	}
	got := func(topic, key string) map[string]int {
		out := map[string]int{}
		for _, w := range r.rows(topic) {
			var v map[string]any
			if err := json.Unmarshal([]byte(w.value), &v); err != nil {
				t.Fatal(err)
			}
			out[v[key].(string)] += int(v["n"].(float64))
		}
		return out
	}
	same := func(what string, got, want map[string]int) {
		t.Helper()
		for k, n := range want {
			if got[k] != n {
				t.Errorf("%s %q: %d, want %d", what, k, got[k], n)
			}
		}
	}
	same("program", got("programs", "program"), want.Programs)
	same("kind", got("by_kind", "kind"), want.Kinds)
	ips := map[string]int{}
	for _, x := range want.Scanners {
		ips[x[0].(string)] = int(x[1].(float64))
	}
	same("address", got("scanners", "ip"), ips)

	_, hours := csvRows(t, full(t, "expected/auth_tumble1h_kind.csv"))
	var wanted []string
	for _, h := range hours {
		at, err := time.Parse(time.RFC3339, h[0])
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, h[1]+"="+object("kind", h[1], "window_start", at, "window_end", at.Add(time.Hour), "n", exact(h[2])))
	}
	sameLines(t, "kind_hours", sorted(keyed(r.rows("kind_hours"))), sorted(wanted))
}
