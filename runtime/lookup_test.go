package runtime_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/headrace/headrace/runtime"
)

const lookups = `
table cards { id: int64, owner: string?, max: int64 } with key (id), partitions 2
table pairs { a: string, b: int64, text: string } with key (a, b), partitions 2
topic src { user: string, card: int64?, n: int64, ts: time("ms") } with key (user), partitions 3, time ts lag 1s future 1h
table limits = from cards |> where max > 20 |> select id, max
topic inner = from src |> lookup cards as c on c.id == card latest |> select user, n, owner = c.owner, c
topic outer = from src |> lookup left cards as c on c.id == card and n < c.max latest |> select user, n, card, c
topic both = from src |> where n % 7 != 3 |> lookup left cards as c on c.id == (card ?? 1) latest |> lookup pairs as p on p.b == n % 3 and user == p.a latest
  |> select user, n, owner = c?.owner, p.text
topic derived = from src |> lookup limits as l on card == l.id latest |> select user, n, l.max
topic failing = from src |> lookup cards as c on c.id == div(12, n % 4) and div(n, c.max - 10) > 0 latest |> select user, n
table totals = from src |> lookup cards as c on c.id == card latest |> agg n = count(), q = sum(n) by owner = c.owner ?? "none" state forever
`

// A cardRow is a row of cards; owner "" is null.
type cardRow struct {
	owner string
	max   int64
}

// lookupModel is what a reader of the log would do, one record after the other.
type lookupModel struct {
	cards map[int64]cardRow
	pairs map[string]string
	out   map[string][]string // topic -> rows
}

func (m *lookupModel) card(card int64) string {
	c, ok := m.cards[card]
	if !ok {
		return "null"
	}
	return fmt.Sprintf(`{"id":%d,"owner":%s,"max":%d}`, card, quoted(c.owner), c.max)
}

func quoted(s string) string {
	if s == "" {
		return "null"
	}
	return fmt.Sprintf("%q", s)
}

func (m *lookupModel) row(p int, user string, card *int64, n int64) {
	put := func(topic, format string, args ...any) {
		m.out[topic] = append(m.out[topic], fmt.Sprintf("%d: ", p)+fmt.Sprintf(format, args...))
	}
	key, text := int64(1), "null"
	if card != nil {
		key, text = *card, fmt.Sprint(*card)
		if c, ok := m.cards[key]; ok {
			put("inner", `{"user":%q,"n":%d,"owner":%s,"c":%s}`, user, n, quoted(c.owner), m.card(key))
			if c.max > 20 {
				put("derived", `{"user":%q,"n":%d,"max":%d}`, user, n, c.max)
			}
		}
		found := "null"
		if c, ok := m.cards[key]; ok && n < c.max {
			found = m.card(key)
		}
		put("outer", `{"user":%q,"n":%d,"card":%d,"c":%s}`, user, n, key, found)
	} else {
		put("outer", `{"user":%q,"n":%d,"card":null,"c":null}`, user, n)
	}
	if p, ok := m.pairs[fmt.Sprintf("[%q,%d]", user, n%3)]; ok && n%7 != 3 {
		put("both", `{"user":%q,"n":%d,"owner":%s,"text":%q}`, user, n, quoted(m.cards[key].owner), p)
	}
	if n%4 != 0 {
		if c, ok := m.cards[12/(n%4)]; ok && c.max != 10 && n/(c.max-10) > 0 {
			put("failing", `{"user":%q,"n":%d}`, user, n)
		}
	}
	_ = text
}

// Whatever the sizes of batches and steps, restarts and crashes, a row meets the table as it was where the row
// stands in the log.
func TestALookupMeetsTheTableAsTheLogHasIt(t *testing.T) {
	seeds := 4
	if os.Getenv("HEADRACE_LONG") != "" {
		seeds = 60
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 31))
			var o runtime.Options
			if seed%2 == 1 {
				o = runtime.Options{StepBytes: 1 + rng.IntN(2000), BatchRows: 1 + rng.IntN(9), OutputBytes: 1 + rng.IntN(3000), Workers: 1 + rng.IntN(3)}
			}
			r := newRig(t, o)
			m := &lookupModel{cards: map[int64]cardRow{}, pairs: map[string]string{}, out: map[string][]string{}}
			declared, _, _ := strings.Cut(lookups, "table limits")
			r.apply("decl", declared)
			change := func(n int) {
				for range n {
					key, pairs := rng.Int64N(13), rng.IntN(3) == 0
					if pairs {
						a, b := fmt.Sprintf("u%d", rng.IntN(4)), key%3
						k, v := fmt.Sprintf("[%q,%d]", a, b), fmt.Sprintf("t%d", rng.IntN(99))
						if rng.IntN(4) == 0 {
							delete(m.pairs, k)
							r.putRows("pairs", int(b%2), msg{1000, k, noValue})
							continue
						}
						m.pairs[k] = v
						r.putRows("pairs", int(b%2), msg{1000, k, fmt.Sprintf(`{"a":%q,"b":%d,"text":%q}`, a, b, v)})
						continue
					}
					if rng.IntN(4) == 0 {
						delete(m.cards, key)
						r.putRows("cards", int(key%2), msg{1000, fmt.Sprint(key), noValue})
						continue
					}
					c := cardRow{[]string{"", "ann", "bob"}[rng.IntN(3)], rng.Int64N(60)}
					m.cards[key] = c
					r.putRows("cards", int(key%2), msg{1000, fmt.Sprint(key), fmt.Sprintf(`{"id":%d,"owner":%s,"max":%d}`, key, quoted(c.owner), c.max)})
				}
			}
			change(30)
			_, derived, _ := strings.Cut(lookups, "table limits")
			names := []string{"inner", "outer", "both", "failing"}
			// What rows meet that were there before the pipeline is the table as it is now.
			type pending struct {
				p    int
				user string
				card *int64
				n    int64
			}
			ts := int64(0)
			rows := func(n int) (all []pending) {
				byPart := map[int][]msg{}
				for range n {
					ts += 10
					x := pending{p: rng.IntN(3), user: fmt.Sprintf("u%d", rng.IntN(4)), n: rng.Int64N(60)}
					card := "null"
					if rng.IntN(6) > 0 {
						id := rng.Int64N(13)
						x.card, card = &id, fmt.Sprint(id)
					}
					byPart[x.p] = append(byPart[x.p], msg{ts, x.user, fmt.Sprintf(`{"user":%q,"card":%s,"n":%d,"ts":%d}`, x.user, card, x.n, ts)})
					all = append(all, x)
				}
				for p := range 3 {
					if len(byPart[p]) > 0 {
						r.put("src", p, byPart[p]...)
					}
				}
				return all
			}
			early := rows(20)
			change(10)
			r.apply("m", "table limits"+derived)
			for _, n := range append(slices.Clone(names), "totals", "derived") {
				r.wait(n+" starts", func() bool { return r.status("m/"+n).Step > 0 })
			}
			for _, x := range early {
				m.row(x.p, x.user, x.card, x.n)
			}
			for range 40 {
				change(rng.IntN(4))
				for _, x := range rows(1 + rng.IntN(5)) {
					m.row(x.p, x.user, x.card, x.n)
				}
				switch rng.IntN(14) {
				case 0:
					r.reopen()
				case 1:
					r.crash()
				}
			}
			r.end("src")
			r.ended("m/inner", "m/outer", "m/both", "m/failing", "m/totals", "m/derived")
			for _, name := range names {
				var got []string
				for p := range 3 {
					for _, w := range r.rows(name, p) {
						got = append(got, fmt.Sprintf("%d: %s", p, w.value))
					}
				}
				slices.Sort(got)
				want := m.out[name]
				slices.Sort(want)
				if len(want) == 0 || !slices.Equal(got, want) {
					t.Errorf("seed %d: %s has %d rows, want %d\n%.900s\n%.900s", seed, name, len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
			for _, n := range append(slices.Clone(names), "derived") {
				checkCounters(t, r.status("m/"+n))
			}
		})
	}
}

// Who reads a table beside a stream counts as its reader, tells how far it has read, and says so when the table is gone. One
// that is made anew asks for the pipeline to be computed again.
func TestALookupKnowsItsTable(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("decl", `table names { id: string, name: string } with key (id)
topic src { id: string, ts: time("ms") } with key (id), time ts lag 1s future 1h`)
	const module = `topic named = from src |> lookup names as n on n.id == id latest |> select id, n.name`
	r.putRows("names", 0, msg{1, "a", `{"id":"a","name":"Ann"}`}, msg{1, "b", `{"id":"b","name":"Bob"}`}, msg{1, "x", `{"id":"y","name":"Yes"}`}, msg{1, "b", `{`})
	r.apply("m", module)
	r.put("src", 0, msg{1, "a", `{"id":"a","ts":1}`}, msg{1, "b", `{"id":"b","ts":2}`}, msg{1, "y", `{"id":"y","ts":3}`})
	one := "0: a={\"id\":\"a\",\"name\":\"Ann\"} @1000000\n"
	r.wait("the row of a", func() bool { return r.all("named") == one })
	r.caughtUp("m/named")
	s := r.status("m/named")
	if by := fmt.Sprint(r.eng.Use("names").ReadBy); by != "[m/named]" {
		t.Errorf("names is read by %s", by)
	}
	if fmt.Sprint(s.Tables) != "[{names 0}]" || len(s.Partitions) != 1 || s.StateRows != 1 || s.Counters.Invalid != 2 || s.Counters.Stages[0].Filtered != 2 {
		t.Errorf("the status is %+v", s)
	}
	checkCounters(t, s)
	if err := r.eng.Stop(ctxOf(t), "m/named"); err != nil {
		t.Fatal(err)
	}
	r.putRows("names", 0, msg{1, "b", `{"id":"b","name":"Bea"}`})
	if s := r.status("m/named"); fmt.Sprint(s.Tables) != "[{names 1}]" || len(s.Partitions) != 1 {
		t.Errorf("the status of a stopped pipeline is %+v", s)
	}
	r.apply("m", module)
	r.put("src", 0, msg{1, "b", `{"id":"b","ts":4}`})
	r.wait("the row of b", func() bool { return r.all("named") == one+"0: b={\"id\":\"b\",\"name\":\"Bea\"} @4000000\n" })

	if err := r.node.Meta().DeleteTopic(ctxOf(t), "names"); err != nil {
		t.Fatal(err)
	}
	r.put("src", 0, msg{1, "a", `{"id":"a","ts":5}`})
	r.wait("the table is missed", func() bool {
		s := r.status("m/named")
		return s.State == runtime.StateFailed && strings.Contains(s.Reason, "a table that a lookup reads was deleted")
	})
	r.apply("decl2", `table names { id: string, name: string } with key (id)`)
	r.putRows("names", 0, msg{1, "a", `{"id":"a","name":"Abe"}`})
	if res := r.apply("m", module); len(res.Plan) != 1 || res.Plan[0].Change != runtime.ChangeRebuild {
		t.Errorf("the plan is %+v", res.Plan)
	}
	r.wait("the rows of a", func() bool { return strings.Count(r.all("named"), "Abe") == 2 })
}
