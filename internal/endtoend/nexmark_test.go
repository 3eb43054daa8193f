package endtoend

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/nexmark"
	"github.com/headrace/headrace/runtime"
)

// nexmarkRig runs queries over events of seed 1 at 1,000 a second of event time, event k in partition k mod partitions.
func nexmarkRig(t *testing.T, events int64, partitions int, queries ...string) *rig {
	t.Helper()
	text, err := nexmark.Module(queries...)
	if err != nil {
		t.Fatal(err)
	}
	r := newRigWith(t, runtime.Options{Workers: 2})
	r.apply(strings.Replace(text, "with format json, time", "with format json, partitions 4, time", 1))
	if slices.Contains(queries, "q13") {
		var side []msg
		for k := range 10_000 {
			side = append(side, msg{ts: 1, key: strconv.Itoa(k), value: fmt.Sprintf("%d,%d", k, k)})
		}
		r.put("side", 0, side...)
	}
	for p, part := range nexmarkRows(events, partitions)(nil)["nexmark"] {
		var msgs []msg
		for _, rec := range part {
			msgs = append(msgs, msg{ts: 1, value: string(rec.Value)})
		}
		r.put("nexmark", p, msgs...)
	}
	r.end("nexmark")
	return r
}

// The answers for 100,000 events were computed by independent programs.
func TestNexmarkGivesTheKnownAnswers(t *testing.T) {
	var queries []string
	for name := range nexmarkAnswers {
		if raceEnabled && name != "q2" {
			continue // the others run without the race detector
		}
		queries = append(queries, name)
	}
	r := nexmarkRig(t, 100_000, 4, queries...)
	tables := map[string]bool{"q15": true, "q16": true, "q17": true, "q18": true}
	for name, check := range nexmarkAnswers {
		if !slices.Contains(queries, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			rows := r.rows(name)
			if tables[name] {
				rows = latest(rows)
			}
			out := make([]map[string]json.RawMessage, len(rows))
			for i, w := range rows {
				if err := json.Unmarshal([]byte(w.value), &out[i]); err != nil {
					t.Fatal(err)
				}
			}
			check(t, out)
		})
	}
}

type nexmarkCheck func(t *testing.T, rows []map[string]json.RawMessage)

var nexmarkAnswers = map[string]nexmarkCheck{
	"q0": func(t *testing.T, rows []map[string]json.RawMessage) { counted(t, rows, 92_000) },
	"q1": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 92_000)
		summed(t, rows, "price", "603891284774.588")
	},
	"q2": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 382)
		summed(t, rows, "price", "2577149732")
	},
	"q5": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, len(hotItems))
		var got [][3]int64
		for _, r := range rows {
			var start time.Time
			var auction, num int64
			read(t, r, "window_start", &start)
			read(t, r, "auction", &auction)
			read(t, r, "num", &num)
			got = append(got, [3]int64{start.UnixMilli(), auction, num})
		}
		slices.SortFunc(got, func(a, b [3]int64) int { return slices.Compare(a[:], b[:]) })
		if !slices.Equal(got, hotItems) {
			t.Errorf("%v, want %v", got, hotItems)
		}
	},
	"q11": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 2926)
		summed(t, rows, "bid_count", "92000")
	},
	"q15": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 1)
		for column, want := range map[string]string{
			"total_bids": "92000", "rank1_bids": "30553", "rank2_bids": "30668", "rank3_bids": "30779",
			"total_bidders": "1926", "rank1_bidders": "1749", "rank2_bidders": "1744", "rank3_bidders": "1730",
			"total_auctions": "6001", "rank1_auctions": "5512", "rank2_auctions": "5522", "rank3_auctions": "5504",
		} {
			summed(t, rows, column, want)
		}
	},
	"q16": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 9918)
		summed(t, rows, "total_bids", "92000")
		summed(t, rows, "rank2_bids", "30668")
	},
	"q17": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 6001)
		want := map[int64][5]int64{
			3000: {816, 101, 96353059, 8632765, 7044337004}, 4700: {815, 103, 99960490, 7261129, 5917820193}, 1500: {814, 100, 99213700, 6426374, 5231068745},
		}
		for _, r := range rows {
			var auction int64
			read(t, r, "auction", &auction)
			w, ok := want[auction]
			if !ok {
				continue
			}
			delete(want, auction)
			var got [5]int64
			for i, column := range []string{"total_bids", "min_price", "max_price", "avg_price", "sum_price"} {
				read(t, r, column, &got[i])
			}
			if got != w {
				t.Errorf("auction %d: %v, want %v", auction, got, w)
			}
		}
		if len(want) > 0 {
			t.Errorf("no rows of %v", want)
		}
	},
	"q18": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 28_186)
		summed(t, rows, "price", "207874681492")
	},
	"q10": func(t *testing.T, rows []map[string]json.RawMessage) { counted(t, rows, 92_000) },
	"q13": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 92_000)
		sum := int64(0)
		for _, r := range rows {
			var value string
			var auction int64
			if json.Unmarshal(r["value"], &value) != nil || json.Unmarshal(r["auction"], &auction) != nil || value != strconv.FormatInt(auction%10_000, 10) {
				t.Fatalf("%s of auction %s", r["value"], r["auction"])
			}
			sum += auction % 10_000
		}
		if sum != 363_714_616 {
			t.Errorf("the sum of the keys is %d", sum)
		}
	},
	"q14": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 26_213)
		summed(t, rows, "c_counts", "68048")
	},
	"q21": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 87_469)
		apple := 0
		for _, r := range rows {
			if string(r["channel"]) == `"Apple"` && string(r["channel_id"]) == `"0"` {
				apple++
			}
		}
		if apple != 11_532 {
			t.Errorf("%d rows of Apple", apple)
		}
	},
	"q22": func(t *testing.T, rows []map[string]json.RawMessage) {
		counted(t, rows, 92_000)
		seen := map[string]bool{}
		for _, r := range rows {
			seen[string(r["dir1"])] = true
		}
		if len(seen) != 9288 {
			t.Errorf("%d different first directories", len(seen))
		}
	},
}

// hotItems are the auctions with the most bids of each ten seconds: window start in ms, auction, bids.
var hotItems = [][3]int64{
	{1436918392000, 1000, 783},
	{1436918394000, 1000, 783},
	{1436918396000, 1200, 789},
	{1436918398000, 1200, 789},
	{1436918400000, 1500, 814},
	{1436918402000, 1500, 814},
	{1436918404000, 1500, 814},
	{1436918406000, 1500, 814},
	{1436918408000, 1500, 814},
	{1436918410000, 1800, 813},
	{1436918412000, 1800, 813},
	{1436918414000, 2100, 798},
	{1436918416000, 2100, 798},
	{1436918416000, 2400, 798},
	{1436918418000, 2100, 798},
	{1436918418000, 2400, 798},
	{1436918420000, 2400, 798},
	{1436918422000, 2400, 798},
	{1436918424000, 2900, 784},
	{1436918426000, 3000, 816},
	{1436918428000, 3000, 816},
	{1436918430000, 3000, 816},
	{1436918432000, 3000, 816},
	{1436918434000, 3400, 784},
	{1436918436000, 3600, 786},
	{1436918438000, 3600, 786},
	{1436918440000, 3800, 789},
	{1436918442000, 4000, 790},
	{1436918444000, 4000, 790},
	{1436918446000, 4200, 791},
	{1436918448000, 4200, 791},
	{1436918450000, 4500, 813},
	{1436918452000, 4500, 813},
	{1436918454000, 4700, 815},
	{1436918456000, 4700, 815},
	{1436918458000, 4700, 815},
	{1436918460000, 4700, 815},
	{1436918462000, 5100, 793},
	{1436918464000, 5300, 794},
	{1436918466000, 5300, 794},
	{1436918468000, 5300, 794},
	{1436918470000, 5700, 797},
	{1436918472000, 5700, 797},
	{1436918474000, 5700, 797},
	{1436918476000, 5700, 797},
	{1436918478000, 5700, 797},
	{1436918480000, 6200, 809},
	{1436918482000, 6200, 809},
	{1436918484000, 6200, 809},
	{1436918486000, 6200, 809},
	{1436918488000, 6300, 784},
	{1436918490000, 6900, 798},
	{1436918492000, 6900, 798},
	{1436918494000, 6900, 798},
	{1436918496000, 6900, 798},
	{1436918498000, 6900, 798},
}

// read decodes a column.
func read(t *testing.T, row map[string]json.RawMessage, column string, into any) {
	t.Helper()
	if err := json.Unmarshal(row[column], into); err != nil {
		t.Fatalf("%s: %v", column, err)
	}
}

// latest is the last row of each key, in the order of keys.
func latest(rows []row) []row {
	last := map[string]row{}
	for _, w := range rows {
		if last[w.key] = w; w.value == "" {
			delete(last, w.key)
		}
	}
	var out []row
	for _, k := range slices.Sorted(maps.Keys(last)) {
		out = append(out, last[k])
	}
	return out
}

func counted(t *testing.T, rows []map[string]json.RawMessage, want int) {
	t.Helper()
	if len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
}

// summed adds a column exactly.
func summed(t *testing.T, rows []map[string]json.RawMessage, column, want string) {
	t.Helper()
	sum := new(big.Rat)
	for _, r := range rows {
		x, ok := new(big.Rat).SetString(string(r[column]))
		if !ok {
			t.Fatalf("%s is %s", column, r[column])
		}
		sum.Add(sum, x)
	}
	w, _ := new(big.Rat).SetString(want)
	if sum.Cmp(w) != 0 {
		t.Errorf("the sum of %s is %s, want %s", column, sum.FloatString(3), want)
	}
}
