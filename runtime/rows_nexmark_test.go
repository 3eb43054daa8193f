package runtime_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/nexmark"
	"github.com/headrace/headrace/runtime"
)

const rowsOfNexmark = `
type Person  = { id: int64, ts: time("ms") as "dateTime" }
type Auction = { id: int64, ts: time("ms") as "dateTime" }
type Bid     = { auction: int64, bidder: int64, price: int64, channel: string, url: string, ts: time("ms") as "dateTime", extra: string }
topic nexmark { person: Person?, auction: Auction?, bid: Bid? }
  with partitions 3, format json, time (person?.ts ?? auction?.ts ?? bid?.ts) lag 4s future 100w
stream bid = from nexmark |> where bid != nil |> unwrap bid
stream hot = from bid |> agg num = count() by auction window hop(10s every 2s)
topic q5 = from hot |> top 1 ties by num desc per window |> select window_start, auction, num
topic q7 = from bid |> top 1 ties by price desc window tumble(10s) |> select auction, price, bidder, ts, extra
table q18 = from bid |> dedup by bidder, auction keep last state forever
table q19 = from bid |> top 10 by price desc, ts asc per auction rank rank_number emit update state forever
`

// nexmarkBids writes the first events of the known data set to the partitions in turn, and gives the bids.
func nexmarkBids(t *testing.T, r *rig, events int64) (bids []nexmark.Bid) {
	g, err := nexmark.New(nexmark.Config{Rate: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var parts [3][]msg
	var e nexmark.Event
	for j := range events {
		g.At(j, &e)
		if e.Kind == nexmark.KindBid {
			b := e.Bid
			b.Extra, b.Channel, b.URL = nil, nil, nil // they are the generator's
			bids = append(bids, b)
		}
		parts[j%3] = append(parts[j%3], msg{ts: 0, value: string(nexmark.AppendJSON(nil, &e))})
		if p := j % 3; len(parts[p]) == 500 {
			r.put("nexmark", int(p), parts[p]...)
			parts[p] = parts[p][:0]
		}
	}
	for p := range parts {
		if len(parts[p]) > 0 {
			r.put("nexmark", p, parts[p]...)
		}
	}
	r.end("nexmark")
	return bids
}

// columnsOf reads columns of the rows of a topic, sorted.
func columnsOf(t *testing.T, r *rig, topic string, columns ...string) (out []string) {
	for p := range int(r.topic(topic).Partitions) {
		for _, w := range r.rows(topic, p) {
			out = append(out, valuesOf(t, w.value, columns))
		}
	}
	slices.Sort(out)
	return out
}

// latestOf is columnsOf the last row of each key.
func latestOf(t *testing.T, r *rig, topic string, columns ...string) (out []string) {
	latest := map[string]string{}
	for p := range int(r.topic(topic).Partitions) {
		for _, w := range r.rows(topic, p) {
			latest[w.key] = w.value
		}
	}
	for _, value := range latest {
		out = append(out, valuesOf(t, value, columns))
	}
	slices.Sort(out)
	return out
}

func valuesOf(t *testing.T, value string, columns []string) string {
	var row map[string]json.RawMessage
	if err := json.Unmarshal([]byte(value), &row); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&b, "%s ", row[c])
	}
	return strings.TrimSpace(b.String())
}

func timeOf(ms int64) string { return time.UnixMilli(ms).UTC().Format(`"2006-01-02T15:04:05.999Z"`) }

func TestTheBestRowsOfNexmark(t *testing.T) {
	events := int64(20_000)
	dir := os.Getenv("HEADRACE_DATA")
	if dir != "" {
		events = 100_000 // those of the known answers
	}
	r := newRig(t, runtime.Options{})
	r.apply("n", rowsOfNexmark)
	bids := nexmarkBids(t, r, events)
	r.ended("n/q5", "n/q7", "n/q18", "n/q19")

	counts := map[int64]map[int64]int64{}
	best := map[int64][]nexmark.Bid{}
	for _, b := range bids {
		for start := b.Time/2000*2000 - 8000; start <= b.Time; start += 2000 {
			if counts[start] == nil {
				counts[start] = map[int64]int64{}
			}
			counts[start][b.Auction]++
		}
		w := b.Time / 10_000
		switch l := best[w]; {
		case len(l) == 0 || b.Price > l[0].Price:
			best[w] = []nexmark.Bid{b}
		case b.Price == l[0].Price:
			best[w] = append(l, b)
		}
	}
	var q5, q7 []string
	for start, of := range counts {
		most := int64(0)
		for _, n := range of {
			most = max(most, n)
		}
		for auction, n := range of {
			if n == most {
				q5 = append(q5, fmt.Sprint(timeOf(start), " ", auction, " ", n))
			}
		}
	}
	for _, l := range best {
		for _, b := range l {
			q7 = append(q7, fmt.Sprint(b.Auction, " ", b.Price, " ", b.Bidder, " ", timeOf(b.Time)))
		}
	}
	slices.Sort(q5)
	slices.Sort(q7)
	if got := columnsOf(t, r, "q5", "window_start", "auction", "num"); !slices.Equal(got, q5) {
		t.Errorf("q5 has %d rows, want %d:\n%.600s\n%.600s", len(got), len(q5), fmt.Sprint(got), fmt.Sprint(q5))
	}
	if got := columnsOf(t, r, "q7", "auction", "price", "bidder", "ts"); !slices.Equal(got, q7) {
		t.Errorf("q7 has %d rows, want %d:\n%.600s\n%.600s", len(got), len(q7), fmt.Sprint(got), fmt.Sprint(q7))
	}
	for _, n := range []string{"n/q5", "n/q7", "n/q18", "n/q19"} {
		checkCounters(t, r.status(n))
	}
	last, prices := map[[2]int64]nexmark.Bid{}, map[int64][]int64{}
	sum := int64(0)
	for _, b := range bids {
		last[[2]int64{b.Bidder, b.Auction}] = b
		prices[b.Auction] = append(prices[b.Auction], b.Price)
	}
	var q18, q19 []string
	for _, b := range last {
		q18 = append(q18, fmt.Sprint(b.Bidder, " ", b.Auction, " ", b.Price, " ", timeOf(b.Time)))
		sum += b.Price
	}
	for auction, l := range prices {
		slices.SortFunc(l, func(a, b int64) int { return int(b - a) })
		for i, p := range l[:min(len(l), 10)] {
			q19 = append(q19, fmt.Sprint(auction, " ", i+1, " ", p))
		}
	}
	slices.Sort(q18)
	slices.Sort(q19)
	if got := latestOf(t, r, "q18", "bidder", "auction", "price", "ts"); !slices.Equal(got, q18) {
		t.Errorf("q18 has %d rows, want %d:\n%.600s\n%.600s", len(got), len(q18), fmt.Sprint(got), fmt.Sprint(q18))
	}
	if got := latestOf(t, r, "q19", "auction", "rank_number", "price"); !slices.Equal(got, q19) {
		t.Errorf("q19 has %d rows, want %d:\n%.600s\n%.600s", len(got), len(q19), fmt.Sprint(got), fmt.Sprint(q19))
	}
	if dir == "" {
		return
	}
	if len(last) != 28186 || sum != 207874681492 {
		t.Errorf("q18 is not the known answer: %d rows, %d", len(last), sum)
	}
	text, err := os.ReadFile(filepath.Join(dir, "expected", "nexmark.json"))
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Queries struct {
			Q5 [][3]int64 `json:"q5_rows"`
		}
	}
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, w := range known.Queries.Q5 {
		rows = append(rows, fmt.Sprint(timeOf(w[0]), " ", w[1], " ", w[2]))
	}
	slices.Sort(rows)
	if !slices.Equal(rows, q5) {
		t.Errorf("q5 is not the known answer: %d rows, want %d", len(q5), len(rows))
	}
}

func TestTheBestPagesOfAQuarterOfADay(t *testing.T) {
	dir := os.Getenv("HEADRACE_DATA")
	if dir == "" {
		t.Skip("HEADRACE_DATA is not set: the full data sets are not here")
	}
	f, err := os.Open(filepath.Join(dir, "wiki", "wikiticker-2015-09-12-sampled.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, runtime.Options{})
	r.apply("w", `
topic wiki { channel: string, page: string, time: time } with format json, time time lag 1s future 1000w
topic best = from wiki |> agg n = count() by page = channel + " " + page window tumble(6h)
  |> top 3 by n desc, page per window rank rank |> select window_start, rank, page, n`)
	var msgs []msg
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if msgs = append(msgs, msg{value: lines.Text()}); len(msgs) == 500 {
			r.put("wiki", 0, msgs...)
			msgs = msgs[:0]
		}
	}
	if len(msgs) > 0 {
		r.put("wiki", 0, msgs...)
	}
	r.end("wiki")
	r.ended("w/best")
	want, err := os.ReadFile(filepath.Join(dir, "expected", "wiki_top3_pages_6h.csv"))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{"window_start,rank,page,n"}
	for _, w := range r.rows("best", 0) {
		var row struct {
			Start string `json:"window_start"`
			Rank  int
			Page  string
			N     int
		}
		if err := json.Unmarshal([]byte(w.value), &row); err != nil {
			t.Fatal(err)
		}
		page := row.Page
		if strings.ContainsAny(page, `,"`) {
			page = `"` + strings.ReplaceAll(page, `"`, `""`) + `"`
		}
		got = append(got, fmt.Sprintf("%s,%d,%s,%d", row.Start, row.Rank, page, row.N))
	}
	if text := strings.Join(got, "\n") + "\n"; text != string(want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
}
