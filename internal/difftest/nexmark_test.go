package difftest

import (
	"errors"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/vector"
)

// The expressions of the Nexmark queries, in stages that exist.
const nexmark = `
type Person  = { id: int64, name: string, email: string as "emailAddress", credit_card: string as "creditCard", city: string, state: string, ts: time("ms") as "dateTime", extra: string }
type Auction = { id: int64, item: string as "itemName", descr: string as "description", initial_bid: int64 as "initialBid", reserve: int64, ts: time("ms") as "dateTime", expires: time("ms"), seller: int64, category: int64, extra: string }
type Bid     = { auction: int64, bidder: int64, price: int64, channel: string, url: string, ts: time("ms") as "dateTime", extra: string }
topic nexmark { person: Person?, auction: Auction?, bid: Bid? } with format json, time (person?.ts ?? auction?.ts ?? bid?.ts) lag 4s idle 5s
stream person  = from nexmark |> where person != nil |> unwrap person
stream auction = from nexmark |> where auction != nil |> unwrap auction
stream bid     = from nexmark |> where bid != nil |> unwrap bid
fn count_char(s: string, c: string) -> int64 = len(split(s, c)) - 1

topic q0 = from bid |> select auction, bidder, price, ts, extra
topic q1 = from bid |> select auction, bidder, price = dec("0.908") * price, ts, extra
topic q2 = from bid |> where auction % 123 == 0 |> select auction, price
topic q3 = from person |> where state in ["OR", "ID", "CA"] |> select name, city, state, id
topic q4 = from auction |> where category == 10 |> select id, expires
topic q5 = from bid |> agg num = count() by auction window hop(10s every 2s)
topic q10 = from bid |> select auction, bidder, price, ts, extra, dt = fmt(ts, "yyyy-MM-dd"), hm = fmt(ts, "HH:mm")
topic q14 = from bid |> set eur = dec("0.908") * price |> where eur > 1000000 and eur < 50000000
  |> select auction, bidder, price = eur, ts, extra, c_counts = count_char(extra, "c"),
     kind = hour(ts) >= 8 and hour(ts) <= 18 ? "dayTime" : hour(ts) <= 6 or hour(ts) >= 20 ? "nightTime" : "otherTime"
topic q15 = from bid |> set day = date_of(ts), lvl = price < 10000 ? 1 : price < 1000000 ? 2 : 3
  |> agg total_bids = count(), rank1_bids = count() where lvl == 1, total_bidders = count_distinct(bidder), minute = max(fmt(ts, "HH:mm")),
     avg_price = div(sum(price), count()) by day window tumble(1d)
topic q21 = from bid
  |> set channel_id = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}[lower(channel)] ?? extract(url, "(&|^)channel_id=([^&]*)", 2)
  |> where channel_id != nil |> select auction, bidder, price, channel, channel_id
topic q22 = from bid |> select auction, bidder, price, channel, dir1 = part(url, "/", 3), dir2 = part(url, "/", 4), dir3 = part(url, "/", 5)
`

func TestNexmarkExpressionsHaveKernels(t *testing.T) {
	m, err := dsl.Compile("nexmark.hr", nexmark, dsl.Options{})
	if err != nil {
		var list *dsl.Errors
		if errors.As(err, &list) {
			for _, d := range list.List {
				t.Log(dsl.Render(d))
			}
		}
		t.Fatal(err)
	}
	checked := 0
	check := func(where string, input []scalar.Type, e *plan.Expr) {
		if e == nil {
			return
		}
		p, err := vector.NewProgram(nil, []*vector.Expr{toVector(e)}, input)
		if err != nil {
			t.Errorf("%s: %s: %v", where, e.Text, err)
			return
		}
		checked++
		if k := p.Kernel(0); k != "kernel" {
			t.Errorf("%s: %s: %s", where, e.Text, k)
		}
	}
	for _, topic := range m.Topics {
		check(topic.Name, types(topic.Schema), topic.Time.Expr)
	}
	for _, p := range m.Pipelines {
		input := types(p.Source.Schema)
		for _, s := range p.Stages {
			check(p.Name, input, s.Filter)
			for _, n := range s.Project {
				check(p.Name, input, n.Expr)
			}
			if a := s.Agg; a != nil {
				for _, n := range a.By {
					check(p.Name, input, n.Expr)
				}
				var row []scalar.Type
				for _, n := range a.By {
					row = append(row, n.Expr.Type)
				}
				row = append(row, scalar.TypeTime, scalar.TypeTime)
				for _, c := range a.Slots {
					check(p.Name, input, c.Arg)
					check(p.Name, input, c.By)
					check(p.Name, input, c.Filter)
					row = append(row, c.Type)
				}
				for _, n := range a.Results {
					check(p.Name, row, n.Expr)
				}
			}
			input = types(s.Out)
		}
	}
	t.Logf("%d expressions", checked)
	if checked < 60 {
		t.Errorf("only %d expressions were checked", checked)
	}
}

func types(s plan.Schema) []scalar.Type {
	out := make([]scalar.Type, len(s.Columns))
	for i, c := range s.Columns {
		out[i] = c.Type
	}
	return out
}

func toVector(e *plan.Expr) *vector.Expr {
	v := &vector.Expr{Type: e.Type, Column: e.Column, Value: e.Value, Func: e.Func, Field: e.Field, Depth: e.Depth, Text: e.Text}
	for op, p := range ops {
		if p == e.Op {
			v.Op = op
		}
	}
	for m, p := range metas {
		if p == e.Meta {
			v.Meta = m
		}
	}
	for _, a := range e.Args {
		v.Args = append(v.Args, toVector(a))
	}
	return v
}
