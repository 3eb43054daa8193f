package runtime_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/nexmark"
	"github.com/headrace/headrace/runtime"
)

// An auctionDay is what query 17 says of an auction, and 15 of all of them.
type auctionDay struct {
	Bids   int64 `json:"total_bids"`
	Low    int64 `json:"rank1_bids"`
	Mid    int64 `json:"rank2_bids"`
	High   int64 `json:"rank3_bids"`
	Min    int64 `json:"min_price"`
	Max    int64 `json:"max_price"`
	Avg    int64 `json:"avg_price"`
	Sum    int64 `json:"sum_price"`
	People int64 `json:"total_bidders"`
	Items  int64 `json:"total_auctions"`
	Rev    int64 `json:"rev"`
	Final  bool  `json:"final"`
}

func (a *auctionDay) add(price int64) {
	a.Bids++
	a.Rev++
	switch {
	case price < 10_000:
		a.Low++
	case price < 1_000_000:
		a.Mid++
	default:
		a.High++
	}
	if a.Min == 0 || price < a.Min {
		a.Min = price
	}
	a.Max = max(a.Max, price)
	a.Sum += price
	a.Avg = a.Sum / a.Bids
}

// The tables of Nexmark's queries 15 and 17 hold what adding up the bids gives, after steps of any size and a
// restart in the middle.
func TestNexmarkTables(t *testing.T) {
	text, err := nexmark.Module("q15", "q16", "q17")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, runtime.Options{StepBytes: 40_000, OutputBytes: 20_000})
	r.apply("m", strings.Replace(text, "with format json, time (", "with format json, partitions 2, time (", 1))
	g, err := nexmark.New(nexmark.Config{Rate: 1000}, nil)
	if err != nil {
		t.Fatal(err)
	}
	auctions, people, items := map[int64]*auctionDay{}, map[int64]bool{}, map[int64]bool{}
	var all auctionDay
	var e nexmark.Event
	var msgs [2][]msg
	for k := range int64(4000) {
		g.At(k, &e)
		msgs[k%2] = append(msgs[k%2], msg{1, "", string(nexmark.AppendJSON(nil, &e))})
		if e.Kind != nexmark.KindBid {
			continue
		}
		b := &e.Bid
		if auctions[b.Auction] == nil {
			auctions[b.Auction] = &auctionDay{Final: true}
		}
		auctions[b.Auction].add(b.Price)
		all.add(b.Price)
		people[b.Bidder], items[b.Auction] = true, true
	}
	for part := range 4 {
		for p := range 2 {
			n := len(msgs[p]) / 4
			r.put("nexmark", p, msgs[p][part*n:(part+1)*n]...)
		}
		if part == 1 {
			r.crash()
		}
	}
	r.end("nexmark")
	r.ended("m/q15", "m/q16", "m/q17")
	got := r.latest("q17")
	if len(got) != len(auctions) {
		t.Errorf("%d auctions, not %d", len(got), len(auctions))
	}
	for k, v := range got {
		var id int64
		var a auctionDay
		if _, err := fmt.Sscanf(k, "[%d,", &id); err != nil {
			t.Fatalf("key %q: %v", k, err)
		}
		if err := json.Unmarshal([]byte(v), &a); err != nil {
			t.Fatal(err)
		}
		if want := auctions[id]; want == nil || a != *want {
			t.Errorf("auction %d: %+v, not %+v", id, a, want)
		}
	}
	all.Min, all.Max, all.Avg, all.Sum = 0, 0, 0, 0
	all.People, all.Items, all.Final = int64(len(people)), int64(len(items)), true
	for _, v := range r.latest("q15") {
		var a auctionDay
		if err := json.Unmarshal([]byte(v), &a); err != nil {
			t.Fatal(err)
		}
		if a != all {
			t.Errorf("all: %+v, not %+v", a, all)
		}
	}
	if n := len(r.latest("q15")); n != 1 {
		t.Errorf("%d days", n)
	}
	for _, p := range []string{"m/q15", "m/q16", "m/q17"} {
		checkCounters(t, r.status(p))
	}
}
