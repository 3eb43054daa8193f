package nexmark

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func generator(t testing.TB, c Config) *Generator {
	t.Helper()
	g, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// The bytes are those that every implementation makes of seed 1 at 1,000 events a second.
func TestTheDataSetIsTheSameEverywhere(t *testing.T) {
	g := generator(t, Config{Rate: 1000})
	want := map[int64]string{
		50:      "0e9074d1ab289043052ae74fab1258da069d64e8a93a6c1e83c8d4841c3bbe58",
		1000:    "36540135a32379bd747d7649d4c771109473282f314d205ded0ed6536531ad78",
		10_000:  "dd6c0d696815fb34d7f127713eb92178f751d1580e878927c93773688b669efa",
		100_000: "742993b6bb0378a46b16aa326fd60cc180b38469af715bb0585e85f59279ec55",
	}
	h := sha256.New()
	var e Event
	var b []byte
	bytes, count := [3]int{}, [3]int{}
	for k := range int64(100_000) {
		g.At(k, &e)
		b = append(AppendJSON(b[:0], &e), '\n')
		h.Write(b)
		bytes[e.Kind] += len(b) // with the newline
		count[e.Kind]++
		if w := want[k+1]; w != "" && hex.EncodeToString(h.Sum(nil)) != w {
			t.Fatalf("the first %d events differ, the last is %s", k+1, b)
		}
	}
	if count != [3]int{2000, 6000, 92_000} {
		t.Errorf("%d persons, auctions and bids", count)
	}
	for kind, mean := range []int{315, 632, 251} {
		if got := (bytes[kind] + count[kind]/2) / count[kind]; got != mean {
			t.Errorf("kind %d has %d bytes on average, want %d", kind, got, mean)
		}
	}
}

func TestEventsOneByOne(t *testing.T) {
	g := generator(t, Config{Rate: 1000})
	for k, want := range map[int64]string{
		0: `{"person":{"id":1000,"name":"Saul Noris","emailAddress":"fqe@yuj.com","creditCard":"9823 7989 4839 0873","city":"Redmond","state":"AZ","dateTime":1436918400000,`,
		4: `{"bid":{"auction":1006,"bidder":1001,"price":227110,"channel":"channel-9610","url":"https://www.nexmark.com/qvpa/fwa/mqp/item.htm?query=1&channel_id=1369702400","dateTime":1436918400004,`,
		5: `{"bid":{"auction":1000,"bidder":1009,"price":134328,"channel":"Apple","url":"https://www.nexmark.com/mbbp/sqe/ewxx/item.htm?query=1","dateTime":1436918400005,`,
	} {
		var e Event
		g.At(k, &e)
		got := AppendJSON(nil, &e)
		if !strings.HasPrefix(string(got), want) {
			t.Errorf("event %d is\n%s, want\n%s", k, got, want)
		}
		if !json.Valid(got) {
			t.Errorf("event %d is no JSON", k)
		}
	}
	for i, want := range [][2]int64{{1880, 189}, {196, 990736}, {2810, 13934438}} {
		var e Event
		g.At(int64(i+1), &e)
		if a := e.Auction; a.ID != int64(1000+i) || a.Expires != 1436918400000+want[0] || a.InitialBid != want[1] {
			t.Errorf("auction %d expires at %d, first bid %d", a.ID, a.Expires, a.InitialBid)
		}
	}
	if got := channelID(1); got != 1<<31 {
		t.Errorf("the id of channel 1 is %d", got)
	}
}

// Whoever shares the work, and whatever the order in groups, the events are the same ones.
func TestOrderAndSharesDoNotChangeTheEvents(t *testing.T) {
	all := func(c Config, generators int64) (lines []string) {
		tables := NewTables(1)
		for part := range generators {
			g, err := New(c, tables)
			if err != nil {
				t.Fatal(err)
			}
			var e Event
			for j := part; j < 1000; j += generators {
				g.At(g.Number(j), &e)
				lines = append(lines, string(AppendJSON(nil, &e)))
			}
		}
		slices.Sort(lines)
		return lines
	}
	want := all(Config{Rate: 1000}, 1)
	if !slices.Equal(all(Config{Rate: 1000}, 3), want) {
		t.Error("three generators make other events")
	}
	if !slices.Equal(all(Config{Rate: 1000, Group: 100}, 1), want) {
		t.Error("out of order, there are other events")
	}
	g := generator(t, Config{Rate: 1000, Group: 100})
	moved := 0
	for j := range int64(1000) {
		if g.Number(j) != j {
			moved++
		}
		for later := j + 1; later < min(j+200, 1000); later++ {
			if at := g.time(g.Number(later)); at < g.Watermark(j) {
				t.Fatalf("at position %d time %d comes after the watermark %d of position %d", later, at, g.Watermark(j), j)
			}
		}
	}
	if moved < 900 {
		t.Errorf("%d of 1000 events change places", moved)
	}
}

func TestSettingsThatMakeNoSense(t *testing.T) {
	for _, c := range []Config{{Rate: -1}, {Persons: 1}, {Group: 953}, {Group: -4}, {AvgBidBytes: 1 << 40}, {ActivePeople: -1}} {
		if _, err := New(c, &Tables{}); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	g := generator(b, Config{})
	var e Event
	line := make([]byte, 0, 1024)
	b.ReportAllocs()
	n := 0
	for k := range int64(b.N) {
		g.At(k, &e)
		line = AppendJSON(line[:0], &e)
		n += len(line)
	}
	b.SetBytes(int64(n / b.N))
}
