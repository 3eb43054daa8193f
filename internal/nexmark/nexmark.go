// Package nexmark makes the events of Nexmark, an on-line auction that is the common yardstick of stream processors: people
// register, open auctions and bid. (Tucker, Tufte, Papadimos, Maier, "NEXMark: a benchmark for queries over data streams";
// the shapes and sizes are those of the later suites of Apache Beam and of the nexmark project.)
//
// Every event is a function of the seed and its number alone, so that any number of generators makes one data set, and a
// seed gives the same bytes everywhere. A Generator keeps one scratch buffer and must not be shared; making one is cheap
// beside its Tables, which may be shared.
package nexmark

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Config says what to make. Zero fields mean the default.
type Config struct {
	Rate int64  // events per second of event time; default 10,000
	Seed uint64 // default 1
	Base int64  // time of the first event, ms since 1970; default 1436918400000 (2015-07-15T00:00:00Z)

	// Of every Persons + Auctions + Bids events; default 1, 3 and 46.
	Persons, Auctions, Bids int64

	AvgPersonBytes, AvgAuctionBytes, AvgBidBytes int64 // what extra pads to; default 200, 500 and 100

	// One bid (person) in so many is not on a hot auction (of a hot seller, a hot bidder); default 2, 4 and 4.
	HotAuctionRatio, HotSellerRatio, HotBidderRatio uint64

	InFlightAuctions int64 // auctions that a bid may choose from; default 100
	ActivePeople     int64 // the most recent people, who bid or sell; default 1,000

	// Group is the size of groups in which events change places; default 1, which is in order. It has no factor in
	// common with 953.
	Group int64
}

const (
	firstPerson   = 1000
	firstAuction  = 1000
	firstCategory = 10
	categories    = 5
	idLead        = 10
	hotBlock      = 100
	channels      = 10_000
	hotChannels   = 4
	poolBytes     = 1 << 20
	groupStride   = 953
)

func (c Config) withDefaults() Config {
	def(&c.Rate, 10_000)
	def(&c.Seed, 1)
	def(&c.Base, 1436918400000)
	if c.Persons == 0 && c.Auctions == 0 && c.Bids == 0 {
		c.Persons, c.Auctions, c.Bids = 1, 3, 46
	}
	def(&c.AvgPersonBytes, 200)
	def(&c.AvgAuctionBytes, 500)
	def(&c.AvgBidBytes, 100)
	def(&c.HotAuctionRatio, 2)
	def(&c.HotSellerRatio, 4)
	def(&c.HotBidderRatio, 4)
	def(&c.InFlightAuctions, 100)
	def(&c.ActivePeople, 1000)
	def(&c.Group, 1)
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (c *Config) check() error {
	for _, x := range []struct {
		name     string
		v, least int64
	}{
		{"rate", c.Rate, 1},
		{"share of persons", c.Persons, 1},
		{"share of auctions", c.Auctions, 1},
		{"share of bids", c.Bids, 0},
		{"size of a person", c.AvgPersonBytes, 0},
		{"size of an auction", c.AvgAuctionBytes, 0},
		{"size of a bid", c.AvgBidBytes, 0},
		{"number of auctions in flight", c.InFlightAuctions, 1},
		{"number of active people", c.ActivePeople, 1},
		{"group", c.Group, 1},
	} {
		if x.v < x.least || x.v > math.MaxInt32 {
			return fmt.Errorf("nexmark: the %s is %d, not between %d and %d", x.name, x.v, x.least, math.MaxInt32)
		}
	}
	if c.Group%groupStride == 0 {
		return errors.New("nexmark: the group has a factor in common with 953")
	}
	return nil
}

// Kind says which of the three an event is.
type Kind uint8

// The kinds of events.
const (
	KindPerson Kind = iota
	KindAuction
	KindBid
)

// A Person is somebody who may sell and bid.
type Person struct {
	ID                                   int64
	Name, Email, CreditCard, City, State []byte
	Time                                 int64 // ms since 1970
	Extra                                []byte
}

// An Auction is something that a person sells. Prices are cents.
type Auction struct {
	ID                    int64
	ItemName, Description []byte
	InitialBid, Reserve   int64
	Time, Expires         int64 // ms since 1970
	Seller, Category      int64
	Extra                 []byte
}

// A Bid is what a person offers in an auction, in cents.
type Bid struct {
	Auction, Bidder, Price int64
	Channel, URL           []byte
	Time                   int64 // ms since 1970
	Extra                  []byte
}

// An Event is one of the three. The bytes of its fields belong to the generator until its next call.
type Event struct {
	Kind    Kind
	Person  Person
	Auction Auction
	Bid     Bid
}

// random is SplitMix64 with one stream per event (Steele, Lea, Flood, "Fast splittable pseudorandom number generators").
type random struct{ state uint64 }

const golden = 0x9E3779B97F4A7C15

func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

func stream(seed, s uint64) random { return random{mix(seed + (s+1)*golden)} }

func (r *random) u64() uint64 {
	r.state += golden
	return mix(r.state)
}

// below returns a number from 0 to n-1; n is below 2^32.
func (r *random) below(n uint64) uint64 { return ((r.u64() >> 32) * n) >> 32 }

// unit returns a number in [0, 1).
func (r *random) unit() float64 { return float64(r.u64()>>11) * 0x1p-53 }

// price is log-uniform from 100 to 100,000,000 cents.
func (r *random) price() int64 { return int64(math.Floor(math.Pow(10, 6*r.unit())*100 + 0.5)) }

// text appends 3 to m-1 letters, with filler among them, without spaces at the ends.
func (r *random) text(dst []byte, m uint64, filler byte) []byte {
	n, from := 3+r.below(m-3), len(dst)
	for range n {
		c := filler
		if r.below(13) != 0 {
			c = 'a' + byte(r.below(26))
		}
		dst = append(dst, c)
	}
	for len(dst) > from && dst[len(dst)-1] == ' ' {
		dst = dst[:len(dst)-1]
	}
	lead := 0
	for from+lead < len(dst) && dst[from+lead] == ' ' {
		lead++
	}
	return append(dst[:from], dst[from+lead:]...)
}

// Tables are what all generators of a seed have in common: padding and channels.
type Tables struct {
	pool        []byte
	urls        [][]byte
	names       [][]byte // of channels
	hot, hotURL [hotChannels][]byte
}

// NewTables makes the tables of a seed.
func NewTables(seed uint64) *Tables {
	r := stream(seed, math.MaxUint64-1)
	t := &Tables{pool: make([]byte, poolBytes), urls: make([][]byte, channels), names: make([][]byte, channels)}
	for i := range t.pool {
		t.pool[i] = 'a' + byte(r.below(26))
	}
	for i, name := range []string{"Google", "Facebook", "Baidu", "Apple"} {
		t.hot[i], t.hotURL[i] = []byte(name), r.url()
	}
	for i := range t.urls {
		t.names[i] = strconv.AppendInt([]byte("channel-"), int64(i), 10)
		t.urls[i] = r.url()
		if r.below(10) > 0 {
			t.urls[i] = strconv.AppendInt(append(t.urls[i], "&channel_id="...), channelID(uint32(i)), 10)
		}
	}
	return t
}

// channelID is the reversal of the bits of i as a signed number, made positive.
func channelID(i uint32) int64 {
	var v uint32
	for b := range 32 {
		v = v<<1 | i>>b&1
	}
	n := int64(int32(v))
	return max(n, -n)
}

func (r *random) url() []byte {
	u := []byte("https://www.nexmark.com/")
	for range 3 {
		u = append(r.text(u, 5, '_'), '/')
	}
	return append(u, "item.htm?query=1"...)
}
