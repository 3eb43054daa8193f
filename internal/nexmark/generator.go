package nexmark

import "math"

var (
	firstNames = []string{"Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"}
	lastNames  = []string{"Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"}
	cities     = []string{"Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"}
	states     = []string{"AZ", "CA", "ID", "OR", "WA", "WY"}
)

// A Generator makes events.
type Generator struct {
	c     Config
	t     *Tables
	total int64 // Persons + Auctions + Bids
	buf   []byte
}

// New returns a generator. tables must be those of the seed; nil makes them, which takes some milliseconds.
func New(c Config, tables *Tables) (*Generator, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	if tables == nil {
		tables = NewTables(c.Seed)
	}
	return &Generator{c: c, t: tables, total: c.Persons + c.Auctions + c.Bids}, nil
}

// Number returns the number of the event that is emitted at position j: another only if Group is above 1.
func (g *Generator) Number(j int64) int64 {
	n := g.c.Group
	return j/n*n + j*groupStride%n
}

// Watermark is a time, ms since 1970, before which no event comes after position j.
func (g *Generator) Watermark(j int64) int64 { return g.time(j / g.c.Group * g.c.Group) }

// time is that of event k. With rates that do not divide a million the product needs 128 bits from about 10^13 events on,
// which is beyond any run.
func (g *Generator) time(k int64) int64 { return g.c.Base + k*1_000_000/g.c.Rate/1000 }

func (g *Generator) lastPerson(k int64) int64 {
	e, o := k/g.total, k%g.total
	return e*g.c.Persons + min(o, g.c.Persons-1)
}

func (g *Generator) lastAuction(k int64) int64 {
	e, o := k/g.total, k%g.total
	switch {
	case o < g.c.Persons:
		return e*g.c.Auctions - 1
	case o < g.c.Persons+g.c.Auctions:
		return e*g.c.Auctions + o - g.c.Persons
	}
	return e*g.c.Auctions + g.c.Auctions - 1
}

func (g *Generator) randomPerson(k int64, r *random) int64 {
	n := g.lastPerson(k) + 1
	act := min(n, g.c.ActivePeople)
	return n - act + int64(r.below(uint64(act+idLead)))
}

func (g *Generator) randomAuction(k int64, r *random) int64 {
	m := g.lastAuction(k)
	lo := max(m-g.c.InFlightAuctions, 0)
	return lo + int64(r.below(uint64(m-lo+1+idLead)))
}

// At makes event k, counted from 0.
func (g *Generator) At(k int64, e *Event) {
	g.buf = g.buf[:0]
	r := stream(g.c.Seed, uint64(k))
	switch o := k % g.total; {
	case o < g.c.Persons:
		e.Kind = KindPerson
		g.person(k, &r, &e.Person)
	case o < g.c.Persons+g.c.Auctions:
		e.Kind = KindAuction
		g.auction(k, &r, &e.Auction)
	default:
		e.Kind = KindBid
		g.bid(k, &r, &e.Bid)
	}
}

// field returns what add appends. The buffer may move: fields keep what they have.
func (g *Generator) field(add func([]byte) []byte) []byte {
	from := len(g.buf)
	g.buf = add(g.buf)
	return g.buf[from:len(g.buf):len(g.buf)]
}

func (g *Generator) person(k int64, r *random, p *Person) {
	p.ID, p.Time = g.lastPerson(k)+firstPerson, g.time(k)
	p.Name = g.field(func(b []byte) []byte {
		b = append(b, firstNames[r.below(uint64(len(firstNames)))]...)
		return append(append(b, ' '), lastNames[r.below(uint64(len(lastNames)))]...)
	})
	p.Email = g.field(func(b []byte) []byte {
		b = append(r.text(b, 7, ' '), '@')
		return append(r.text(b, 5, ' '), ".com"...)
	})
	p.CreditCard = g.field(func(b []byte) []byte {
		for i := range 4 {
			if i > 0 {
				b = append(b, ' ')
			}
			n := r.below(10_000)
			b = append(b, byte('0'+n/1000), byte('0'+n/100%10), byte('0'+n/10%10), byte('0'+n%10))
		}
		return b
	})
	p.City = g.field(func(b []byte) []byte { return append(b, cities[r.below(uint64(len(cities)))]...) })
	p.State = g.field(func(b []byte) []byte { return append(b, states[r.below(uint64(len(states)))]...) })
	size := 8 + len(p.Name) + len(p.Email) + len(p.CreditCard) + len(p.City) + len(p.State)
	p.Extra = g.extra(r, int64(size), g.c.AvgPersonBytes)
}

func (g *Generator) auction(k int64, r *random, a *Auction) {
	a.ID, a.Time = g.lastAuction(k)+firstAuction, g.time(k)
	if r.below(g.c.HotSellerRatio) > 0 {
		a.Seller = g.lastPerson(k) / hotBlock * hotBlock
	} else {
		a.Seller = g.randomPerson(k, r)
	}
	a.Seller += firstPerson
	a.Category = firstCategory + int64(r.below(categories))
	a.InitialBid = r.price()
	horizon := g.time(k+g.c.InFlightAuctions*g.total/g.c.Auctions) - a.Time
	a.Expires = a.Time + 1 + int64(r.below(uint64(max(2*horizon, 1))))
	a.ItemName = g.field(func(b []byte) []byte { return r.text(b, 20, ' ') })
	a.Description = g.field(func(b []byte) []byte { return r.text(b, 100, ' ') })
	a.Reserve = a.InitialBid + r.price()
	a.Extra = g.extra(r, int64(48+len(a.ItemName)+len(a.Description)), g.c.AvgAuctionBytes)
}

func (g *Generator) bid(k int64, r *random, b *Bid) {
	b.Time = g.time(k)
	if r.below(g.c.HotAuctionRatio) > 0 {
		b.Auction = g.lastAuction(k) / hotBlock * hotBlock
	} else {
		b.Auction = g.randomAuction(k, r)
	}
	b.Auction += firstAuction
	if r.below(g.c.HotBidderRatio) > 0 {
		b.Bidder = g.lastPerson(k)/hotBlock*hotBlock + 1
	} else {
		b.Bidder = g.randomPerson(k, r)
	}
	b.Bidder += firstPerson
	b.Price = r.price()
	if r.below(2) > 0 {
		i := r.below(hotChannels)
		b.Channel, b.URL = g.t.hot[i], g.t.hotURL[i]
	} else {
		i := r.below(channels)
		b.Channel, b.URL = g.t.names[i], g.t.urls[i]
	}
	b.Extra = g.extra(r, 32, g.c.AvgBidBytes)
}

// extra is a slice of the pool that pads current bytes to average, give or take a fifth of what is missing.
func (g *Generator) extra(r *random, current, average int64) []byte {
	if current > average {
		return nil
	}
	d := average - current
	delta := int64(math.Floor(0.2*float64(d) + 0.5))
	n := d - delta
	if delta > 0 {
		n += int64(r.below(uint64(2 * delta)))
	}
	at := int64(r.below(uint64(poolBytes - n)))
	return g.t.pool[at : at+n : at+n]
}
