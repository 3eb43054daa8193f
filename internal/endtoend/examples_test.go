package endtoend

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/examples"
)

// csvRows reads a CSV file, gzipped or not, with its header.
func csvRows(t testing.TB, raw []byte) (header []string, rows [][]string) {
	t.Helper()
	if len(raw) > 2 && raw[0] == 0x1f && raw[1] == 0x8b {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := b.ReadFrom(z); err != nil {
			t.Fatal(err)
		}
		raw = b.Bytes()
	}
	all, err := csv.NewReader(bytes.NewReader(raw)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all[0], all[1:]
}

func embedded(t testing.TB, file string) []byte {
	t.Helper()
	raw, err := examples.Files.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// fullData is the folder of the complete public data sets. Without it, the cuts of the examples have to do.
func fullData(t *testing.T) string {
	dir := os.Getenv("HEADRACE_DATA")
	if dir == "" {
		t.Skip("HEADRACE_DATA is not set: the full data sets are not here")
	}
	return dir
}

func full(t *testing.T, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(fullData(t), file))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func csvLine(fields []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	if err := w.Write(fields); err != nil {
		panic(err)
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// retail runs the example over invoice lines and compares every day up to before with the expected table.
func retail(t *testing.T, data, expected []byte, before string) {
	r := newRig(t)
	r.applyAs("retail", string(embedded(t, "retail/retail.hr")), nil)
	header, lines := csvRows(t, data)
	country := len(header) - 1
	if header[country] != "Country" {
		t.Fatalf("header %q", header)
	}
	msgs := make([]msg, len(lines))
	for i, l := range lines {
		msgs[i] = msg{ts: 1, key: l[country], value: csvLine(l)}
	}
	r.putByKey("lines", msgs...)
	r.end("lines")

	_, table := csvRows(t, expected)
	var wanted []string
	for _, e := range table {
		if e[0] >= before {
			continue
		}
		day, err := time.Parse(time.DateOnly, e[0])
		if err != nil {
			t.Fatal(err)
		}
		milli, err := strconv.ParseInt(e[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, e[1]+"="+object("country", e[1], "window_start", day, "window_end", day.AddDate(0, 0, 1),
			"lines", exact(e[2]), "revenue", exact(cents(milli, 3)), "invoices", exact(e[4])))
	}
	if len(wanted) < 100 {
		t.Fatalf("only %d days are expected", len(wanted))
	}
	sameLines(t, "country_days", sorted(keyed(r.rows("country_days"))), sorted(wanted))
	for _, side := range []string{"lines_late", "lines_invalid", "country_days_errors"} {
		if rows := r.rows(side); len(rows) > 0 {
			t.Errorf("%s has %d rows: %+v", side, len(rows), rows[0])
		}
	}
}

func TestRetailExample(t *testing.T) {
	retail(t, embedded(t, "data/online_retail_2011-05.csv.gz"), embedded(t, "data/expected/retail_tumble1d_country.csv"), "2011-06-01")
}

func TestRetailExampleOverAllDays(t *testing.T) {
	retail(t, full(t, "retail/online_retail.csv.gz"), full(t, "expected/retail_tumble1d_country.csv"), "9999")
}

func flightMsgs(t *testing.T) []msg {
	t.Helper()
	header, lines := csvRows(t, embedded(t, "data/flights_2001-01-01_14.csv.gz"))
	if strings.Join(header, ",") != "date,delay,distance,origin,destination" {
		t.Fatalf("header %q", header)
	}
	msgs := make([]msg, len(lines))
	for i, l := range lines {
		msgs[i] = msg{ts: 1, key: l[3], value: object("date", l[0], "delay", exact(l[1]), "distance", exact(l[2]), "origin", l[3], "destination", l[4])}
	}
	return msgs
}

// The flights example, a hopping window over the same rows, and the view.
func TestFlightsExample(t *testing.T) {
	r := newRig(t)
	r.applyAs("flights", string(embedded(t, "flights/flights.hr")), nil)
	r.applyAs("more", `
topic atl = from flights
  |> where origin == "ATL" and record.time < parse_time("2001-01-04", "yyyy-MM-dd")
  |> agg n = count(), max_delay = max(delay)
     window hop(1h every 15m)
`, nil)
	msgs := flightMsgs(t)
	r.putByKey("flights", msgs...)
	r.end("flights")

	_, table := csvRows(t, embedded(t, "data/expected/flights_tumble1h_hubs.csv"))
	var wanted []string
	for _, e := range table {
		start, err := time.Parse(time.RFC3339, e[0])
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.ParseFloat(e[2], 64)
		sum, _ := strconv.ParseFloat(e[3], 64)
		wanted = append(wanted, e[1]+"="+object("origin", e[1], "window_start", start, "window_end", start.Add(time.Hour),
			"n", exact(e[2]), "sum_delay", exact(e[3]), "max_delay", exact(e[4]), "mean_delay", number(sum/n)))
	}
	sameLines(t, "hub_hours", sorted(keyed(r.rows("hub_hours"))), sorted(wanted))

	_, table = csvRows(t, embedded(t, "data/expected/flights_hop1h15m_ATL_3d.csv"))
	wanted = nil
	for _, e := range table {
		start, err := time.Parse(time.RFC3339, e[0])
		if err != nil {
			t.Fatal(err)
		}
		wanted = append(wanted, object("window_start", start, "window_end", start.Add(time.Hour), "n", exact(e[1]), "max_delay", exact(e[2])))
	}
	sameLines(t, "atl", values(r.rows("atl")), wanted)

	delayed := 0
	for _, w := range r.view("delayed") {
		delay, err := strconv.Atoi(string(fields(t, w.value)["delay"]))
		if err != nil || delay < 60 {
			t.Fatalf("delayed: %s", w.value)
		}
		delayed++
	}
	if f := fields(t, string(embedded(t, "data/expected/flights.json"))); fmt.Sprint(delayed) != string(f["delay_ge_60"]) {
		t.Errorf("delayed: %d rows, not %s", delayed, f["delay_ge_60"])
	}
}
