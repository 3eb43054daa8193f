package endtoend

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"

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
		queries = append(queries, name)
	}
	r := nexmarkRig(t, 100_000, 4, queries...)
	for name, check := range nexmarkAnswers {
		t.Run(name, func(t *testing.T) {
			rows := r.rows(name)
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
