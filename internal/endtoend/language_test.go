package endtoend

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/replication"
)

const orders = `
topic orders { id: string, user: string?, amount: decimal(12,2), n: int64, kind: string, at: time("ms") }
  with key (id), time at lag 1s
`

func order(id string, user any, amount int64, n int64, kind string, at int64) msg {
	return msg{ts: at, key: id, value: object("id", id, "user", user, "amount", exact(cents(amount, 2)), "n", n, "kind", kind, "at", at)}
}

var someOrders = []msg{
	order("o1", "ann", 1050, 3, "pay", 1000),
	order("o2", nil, -500, 1, "refund", 1500),
	order("o3", "bob", 99999, -7, "pay", 1200),
	order("o4", "ann", 0, 0, "other", 2500),
}

// Each stateless stage does what the reference says of it.
func TestStatelessStages(t *testing.T) {
	r := newRig(t)
	r.apply(orders + `
topic kept = from orders |> where kind == "pay" and amount > 10
topic swapped = from orders |> set n = amount * 2, amount = dec(n, 12, 2), at2 = at + 1s
topic picked = from orders |> select who = user ?? "-", id, amount
topic starred = from orders |> select *, twice = n * 2
topic dropped = from orders |> drop user, at, kind
topic renamed = from orders |> rename who = user, user = id |> drop amount, n, kind, at
topic narrowed = from orders |> where user != nil |> set len = len(user) |> select id, user, len
topic rekeyed = from orders |> select id, kind, n |> key (kind, n)
topic unkeyed = from orders |> select n with key ()
topic keyed = from orders |> key (n) |> select n, id
topic bykind = from orders |> select up = upper(kind), id |> key (up)
topic nothing = from orders |> where false
`)
	r.put("orders", 0, someOrders...)
	r.end("orders")
	o := func(i int) string { return someOrders[i].value }
	at := func(s string) string { // as derived topics write times
		for i := range someOrders {
			ms := someOrders[i].ts
			s = strings.ReplaceAll(s, fmt.Sprintf(`"at":%d`, ms), fmt.Sprintf(`"at":"%s"`, time.UnixMilli(ms).UTC().Format(time.RFC3339Nano)))
		}
		return s
	}
	want(t, "kept", keyed(r.rows("kept")), "o1="+at(o(0)), "o3="+at(o(2)))
	want(t, "swapped", values(r.rows("swapped")),
		at(`{"id":"o1","user":"ann","amount":3.00,"n":21.00,"kind":"pay","at":1000,"at2":"1970-01-01T00:00:02Z"}`),
		at(`{"id":"o2","user":null,"amount":1.00,"n":-10.00,"kind":"refund","at":1500,"at2":"1970-01-01T00:00:02.5Z"}`),
		at(`{"id":"o3","user":"bob","amount":-7.00,"n":1999.98,"kind":"pay","at":1200,"at2":"1970-01-01T00:00:02.2Z"}`),
		at(`{"id":"o4","user":"ann","amount":0.00,"n":0.00,"kind":"other","at":2500,"at2":"1970-01-01T00:00:03.5Z"}`))
	want(t, "picked", keyed(r.rows("picked")), `o1={"who":"ann","id":"o1","amount":10.50}`, `o2={"who":"-","id":"o2","amount":-5.00}`,
		`o3={"who":"bob","id":"o3","amount":999.99}`, `o4={"who":"ann","id":"o4","amount":0.00}`)
	want(t, "starred", values(r.rows("starred"))[2:3], strings.TrimSuffix(at(o(2)), "}")+`,"twice":-14}`)
	want(t, "dropped", values(r.rows("dropped"))[:1], `{"id":"o1","amount":10.50,"n":3}`)
	want(t, "renamed", keyed(r.rows("renamed")), `o1={"user":"o1","who":"ann"}`, `o2={"user":"o2","who":null}`, `o3={"user":"o3","who":"bob"}`, `o4={"user":"o4","who":"ann"}`)
	want(t, "narrowed", keyed(r.rows("narrowed")), `o1={"id":"o1","user":"ann","len":3}`, `o3={"id":"o3","user":"bob","len":3}`, `o4={"id":"o4","user":"ann","len":3}`)
	want(t, "rekeyed", keyed(r.rows("rekeyed")), `["pay",3]={"id":"o1","kind":"pay","n":3}`, `["refund",1]={"id":"o2","kind":"refund","n":1}`,
		`["pay",-7]={"id":"o3","kind":"pay","n":-7}`, `["other",0]={"id":"o4","kind":"other","n":0}`)
	want(t, "unkeyed", keyed(r.rows("unkeyed")), `<null>={"n":3}`, `<null>={"n":1}`, `<null>={"n":-7}`, `<null>={"n":0}`)
	want(t, "keyed", keyed(r.rows("keyed")), `3={"n":3,"id":"o1"}`, `1={"n":1,"id":"o2"}`, `-7={"n":-7,"id":"o3"}`, `0={"n":0,"id":"o4"}`)
	want(t, "bykind", keyed(r.rows("bykind"))[:2], `PAY={"up":"PAY","id":"o1"}`, `REFUND={"up":"REFUND","id":"o2"}`)
	want(t, "nothing", values(r.rows("nothing")))
	for i, w := range r.rows("kept") {
		if ms := []int64{1000, 1200}[i]; w.time != ms*1e6 {
			t.Errorf("kept %d has the event time %d, its source %d ms", i, w.time, ms)
		}
	}
}

// Rows of a new key go where any Kafka client looks for them, and keep their event time to the nanosecond.
func TestRekeyedRowsGoToThePartitionOfTheirKey(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src { a: string, b: int64, at: time } with key (a), partitions 3, time at lag 1s
topic out = from src |> key (b) with partitions 5
topic same = from src |> where b > 10
`)
	var wanted, sameWanted []string
	for p := range 3 {
		var msgs []msg
		for i := range 60 {
			at := time.Unix(1_700_000_000+int64(i), int64(p*100+i))
			b := int64(i * 7 % 23)
			v := object("a", fmt.Sprint("k", p), "b", b, "at", at)
			msgs = append(msgs, msg{ts: 0, key: fmt.Sprint("k", p), value: v})
			wanted = append(wanted, fmt.Sprintf("%d %d=%s @%d", operators.Partition(fmt.Append(nil, b), 5), b, v, at.UnixNano()))
			if b > 10 {
				sameWanted = append(sameWanted, fmt.Sprintf("%d k%d=%s @%d", p, p, v, at.UnixNano()))
			}
		}
		r.put("src", p, msgs...)
	}
	r.end("src")
	list := func(topic string) (out []string) {
		for _, w := range r.rows(topic) {
			out = append(out, fmt.Sprintf("%d %s=%s @%d", w.partition, w.key, w.value, w.time))
		}
		return out
	}
	sameLines(t, "out", sorted(list("out")), sorted(wanted))
	sameLines(t, "same", list("same"), sameWanted)
}

// Constants, parameters, functions, types and streams are put in the place where they are used.
func TestDeclarations(t *testing.T) {
	r := newRig(t)
	r.applyAs("m", orders+`
const minute = 1m
const rate = 1.25
const names = ["ann", "eve"]
param smallest: decimal(12,2) = 100.00
param label: string = "none"
type Who = { name: string, score: int64? }
fn twice(x: int64) -> int64 = x * 2
fn quad(x: int64) -> int64 = twice(twice(x))
fn tax(x: decimal(12,2)) -> decimal(15,4) = x * rate
fn known(name: string?) -> bool = name != nil and name in names
fn shout(s: string, mark: string) -> string = (let u = upper(s); u + mark + u)
stream paid = from orders |> where kind == "pay" |> set label = label
stream large = from paid |> where amount >= smallest

topic out = from large |> select id, amount, label, q = quad(n), tax = tax(amount), known = known(user), loud = shout(id, "!")
topic all_paid = from paid |> select id, label
topic per = from paid |> agg n = count(), q = sum(quad(n)), twice = twice(sum(n)) by known = known(user) window tumble(minute)
topic people { who: Who, more: Who?, ts: time("s") } with time ts, key ()
topic called = from people |> select name = who.name, score = (more?.score ?? who.score) ?? -1, other = more?.name
topic inner = from people |> where more != nil |> unwrap more |> key (name)
topic parts = from people |> select who.*, more_name = more?.name
`, map[string]string{"smallest": "5.5", "label": "given"})
	r.put("orders", 0, someOrders...)
	r.put("people", 0,
		msg{1, "", `{"who":{"name":"a","score":null},"ts":1}`},
		msg{2, "", `{"who":{"name":"b","score":2},"more":{"name":"c","score":3,"x":1},"ts":2}`},
		msg{3, "", `{"who":{"name":"d","score":4},"more":{"name":"e"},"ts":3}`})
	r.end("orders", "people")
	want(t, "out", values(r.rows("out")),
		`{"id":"o1","amount":10.50,"label":"given","q":12,"tax":13.1250,"known":true,"loud":"O1!O1"}`,
		`{"id":"o3","amount":999.99,"label":"given","q":-28,"tax":1249.9875,"known":false,"loud":"O3!O3"}`)
	want(t, "all_paid", values(r.rows("all_paid")), `{"id":"o1","label":"given"}`, `{"id":"o3","label":"given"}`)
	w := `"window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:01:00Z"`
	want(t, "per", keyed(r.rows("per")), `false={"known":false,`+w+`,"n":1,"q":-28,"twice":-14}`, `true={"known":true,`+w+`,"n":1,"q":12,"twice":6}`)
	want(t, "called", values(r.rows("called")), `{"name":"a","score":-1,"other":null}`, `{"name":"b","score":3,"other":"c"}`, `{"name":"d","score":4,"other":"e"}`)
	want(t, "inner", keyed(r.rows("inner")), `c={"name":"c","score":3}`, `e={"name":"e","score":null}`)
	want(t, "parts", values(r.rows("parts")), `{"name":"a","score":null,"more_name":null}`, `{"name":"b","score":2,"more_name":"c"}`, `{"name":"d","score":4,"more_name":"e"}`)
}

// A view over a view over a stream delivers the rows at the offsets of their source, and leaves out those
// that fail.
func TestViews(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src { id: string, n: int64?, s: { a: int64, b: string }?, at: time } with key (id), partitions 2, time at lag 1s
stream numbers = from src |> where n != nil
view ratio = from numbers |> set r = div(100, n) |> select id, n, r, record.offset
view big as "src.big" = from ratio |> where r > 10 |> rename quotient = r |> key (n)
view flat = from src |> where s != nil |> unwrap s |> key (b) |> set c = a * 2 |> drop a
`)
	var msgs []msg
	at := time.Unix(1_700_000_000, 5)
	for i := range 50 {
		n, s := any(i%7), any(map[string]any{"a": i, "b": fmt.Sprint("b", i)})
		if i%5 == 0 {
			n = nil
		}
		if i%3 == 0 {
			s = nil
		}
		msgs = append(msgs, msg{7, fmt.Sprint("k", i), object("id", fmt.Sprint("k", i), "n", n, "s", s, "at", at)})
	}
	r.put("src", 0, msgs[:30]...)
	r.put("src", 1, msgs[30:]...)
	r.put("src", 1, msg{8, "x", `{"id":"bad"`})
	var ratio, big, flat []string
	for i := range msgs {
		p, off := 0, i
		if i >= 30 {
			p, off = 1, i-30
		}
		id, n := fmt.Sprint("k", i), i%7
		if i%5 > 0 && n > 0 {
			ratio = append(ratio, fmt.Sprintf("%d/%d %s=%s", p, off, id, object("id", id, "n", n, "r", 100/n, "offset", off)))
			if 100/n > 10 {
				big = append(big, fmt.Sprintf("%d/%d %d=%s", p, off, n, object("id", id, "n", n, "quotient", 100/n, "offset", off)))
			}
		}
		if i%3 > 0 {
			flat = append(flat, fmt.Sprintf("%d/%d b%d=%s", p, off, i, object("b", fmt.Sprint("b", i), "c", i*2)))
		}
	}
	for name, wanted := range map[string][]string{"ratio": ratio, "src.big": big, "flat": flat} {
		var got []string
		for _, w := range r.view(name) {
			got = append(got, fmt.Sprintf("%d/%d %s=%s", w.partition, w.offset, w.key, w.value))
			if w.time != at.UnixNano() {
				t.Fatalf("%s: event time %d", name, w.time)
			}
		}
		sameLines(t, name, got, wanted)
	}
}

// What is wrong with a record decides where it goes, with headers that say why.
func TestSideTopics(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src { id: string, n: int64, s: string?, at: time("ms") } with key (id), time at lag 1s future 5m
topic divided = from src |> set q = 100 % n |> set c = int(s ?? "0") |> where q >= 0
topic overflown = from src |> select id, x = n * 9223372036854775807 with errors to problems
topic silent = from src |> select id, x = div(10, n) with errors drop
topic sums = from src |> agg total = sum(n), per = div(count(), sum(n)) by id window tumble(10s) late drop
topic lates = from src |> agg n = count() by id window tumble(10s) late to too_late
topic counted = from src |> agg n = sum(div(10, n)) window tumble(10s)
`)
	now := time.Now().UnixMilli()
	bad := func(v string) msg { return msg{5, "k", v} }
	msgs := []msg{
		/*0*/ {1, "a", `{"id":"a","n":1,"at":1000}`},
		/*1*/ {2, "b", `{"id":"b","n":0,"at":1000}`},
		/*2*/ {3, "c", `{"id":"c","n":7,"s":"x","at":1000}`},
		/*3*/ bad(`{"id":"d","n":1`),
		/*4*/ bad(`{"id":"e","n":"1","at":1}`),
		/*5*/ bad(`{"id":null,"n":1,"at":1}`),
		/*6*/ bad(`{"id":"g","n":1.5,"at":1}`),
		/*7*/ bad(fmt.Sprintf(`{"id":"h","n":1,"at":%d}`, now+3600_000)),
		/*8*/ {4, "i", `{"id":"i","n":2,"at":30000,"more":[1,{"x":null}]}`},
		/*9*/ {4, "j", `{"id":"j","n":2,"at":9000}`},
		/*10*/ {4, "a", `{"id":"a","n":-2,"s":"5","at":29500}`},
	}
	r.put("src", 0, msgs...)
	r.end("src")
	at := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

	want(t, "divided", keyed(r.rows("divided")), `a={"id":"a","n":1,"s":null,"at":"`+at(1000)+`","q":0,"c":0}`,
		`i={"id":"i","n":2,"s":null,"at":"`+at(30000)+`","q":0,"c":0}`, `j={"id":"j","n":2,"s":null,"at":"`+at(9000)+`","q":0,"c":0}`,
		`a={"id":"a","n":-2,"s":"5","at":"`+at(29500)+`","q":0,"c":5}`)
	side := func(topic, pipeline string) (out []string) {
		for _, w := range r.rows(topic) {
			h := w.headers
			if pipeline != "" && h["hr-pipeline"] != "m/"+pipeline {
				continue
			}
			off := h["hr-offset"]
			var i int
			fmt.Sscan(off, &i)
			if i < 0 { // a group
				off += " " + w.key
			} else if w.key != msgs[i].key || w.value != msgs[i].value || w.time != msgs[i].ts*1e6 || h["hr-topic"] != "src" || h["hr-partition"] != "0" {
				t.Errorf("%s: %+v is not the record of its source", topic, w)
			}
			if l, ok := h["hr-late"]; ok {
				off += fmt.Sprintf(" behind %s", at(int64(binary.BigEndian.Uint64([]byte(l)))/1e6))
			}
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", off, h["hr-code"], h["hr-stage"], h["hr-expr"])))
		}
		return out
	}
	want(t, "divided_errors", side("divided_errors", ""), "1 E0602 set 100 % n", `2 E0603 set int(s ?? "0")`)
	want(t, "problems", side("problems", ""), "2 E0601 select n * 9223372036854775807", "8 E0601 select n * 9223372036854775807",
		"9 E0601 select n * 9223372036854775807", "10 E0601 select n * 9223372036854775807")
	want(t, "silent", values(r.rows("silent")), `{"id":"a","x":10}`, `{"id":"c","x":1}`, `{"id":"i","x":5}`, `{"id":"j","x":5}`, `{"id":"a","x":-5}`)
	invalid := side("src_invalid", "divided")
	for i, prefix := range []string{"3 E0609  not JSON", "4 E0610  column n: a string", "5 E0608  column id is null", "6 E0610  column n", "7 E0611  event time"} {
		if i >= len(invalid) || !strings.HasPrefix(invalid[i], prefix) {
			t.Fatalf("src_invalid: %q, line %d should begin with %q", invalid, i, prefix)
		}
	}
	if len(invalid) != 5 {
		t.Errorf("src_invalid: %q", invalid)
	}
	sums := func(topic string) (out []string) {
		for _, w := range r.rows(topic) {
			out = append(out, w.key+"="+string(fields(t, w.value)["window_start"])+" "+strings.SplitN(w.value, `Z",`, 3)[2])
		}
		return out
	}
	// row 9 is late, row 10 behind and in time: the windows that end at 30 s are open at 29 s.
	want(t, "sums", sums("sums"), `a="`+at(0)+`" "total":1,"per":1}`, `c="`+at(0)+`" "total":7,"per":0}`,
		`a="`+at(20000)+`" "total":-2,"per":0}`, `i="`+at(30000)+`" "total":2,"per":0}`)
	want(t, "sums_errors", side("sums_errors", ""), "-1 b E0602 agg div(count(), sum(n))")
	want(t, "too_late", side("too_late", ""), "9 behind "+at(29000)+"  agg")
	want(t, "counted_errors", side("counted_errors", ""), "1 E0602 agg div(10, n)")
	want(t, "counted_late", side("counted_late", ""), "9 behind "+at(29000)+"  agg")
	st, err := r.eng.Pipeline("m/silent")
	if err != nil || st.Counters.Failed != 1 || st.Counters.Invalid != 5 {
		t.Errorf("silent: %+v %v", st.Counters, err)
	}
}

// A CSV topic is read and written with quotes where they are needed; an empty field is null, or "" where
// nothing may be null.
func TestCSV(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src {
  id: string as "Id", note: string, more: string? as "More", n: int64?, price: decimal(8,3), day: time("dd/MM/yyyy HH:mm", "Europe/Berlin"), ok: bool?,
} with key (id), format csv, time day lag 1h
topic back = from src |> set long = note + "," + (more ?? "-") with format csv
topic asjson = from src |> select id, note, more, n, price, day, ok
topic sums = from src |> agg n = count(n), total = sum(price * (n ?? 1)) by note window tumble(1d)
`)
	r.put("src", 0,
		msg{1, "1", `1,plain,text,5,1.5,31/01/2024 00:30,true`},
		msg{1, "2", `2,"a, ""b""
c","",,2.125,01/02/2024 12:00,`},
		msg{1, "3", "3,,,-1,-0.001,01/07/2024 12:00,false\r\n"},
		msg{1, "4", `4,x,y,z,1,01/07/2024 12:00,false`},
		msg{1, "5", `5,x,y`},
		msg{1, "6", `6,x,y,1,1.2345,01/07/2024 12:00,`},
		msg{1, "7", `7,x,y,1,,01/07/2024 12:00,`},
	)
	r.end("src")
	want(t, "asjson", keyed(r.rows("asjson")),
		`1={"id":"1","note":"plain","more":"text","n":5,"price":1.500,"day":"2024-01-30T23:30:00Z","ok":true}`,
		`2={"id":"2","note":"a, \"b\"\nc","more":"","n":null,"price":2.125,"day":"2024-02-01T11:00:00Z","ok":null}`,
		`3={"id":"3","note":"","more":null,"n":-1,"price":-0.001,"day":"2024-07-01T10:00:00Z","ok":false}`)
	want(t, "back", values(r.rows("back")),
		`1,plain,text,5,1.500,2024-01-30T23:30:00Z,true,"plain,text"`,
		`2,"a, ""b""
c","",,2.125,2024-02-01T11:00:00Z,,"a, ""b""
c,"`,
		`3,,,-1,-0.001,2024-07-01T10:00:00Z,false,",-"`)
	var codes []string
	for _, w := range r.rows("src_invalid") {
		if w.headers["hr-pipeline"] == "m/back" {
			codes = append(codes, w.key+" "+w.headers["hr-code"])
		}
	}
	want(t, "src_invalid", codes, "4 E0610", "5 E0609", "6 E0604", "7 E0608")
	want(t, "sums", keyed(r.rows("sums")),
		`plain={"note":"plain","window_start":"2024-01-30T00:00:00Z","window_end":"2024-01-31T00:00:00Z","n":1,"total":7.500}`,
		"a, \"b\"\nc="+`{"note":"a, \"b\"\nc","window_start":"2024-02-01T00:00:00Z","window_end":"2024-02-02T00:00:00Z","n":0,"total":2.125}`,
		`={"note":"","window_start":"2024-07-01T00:00:00Z","window_end":"2024-07-02T00:00:00Z","n":1,"total":0.001}`)
}

// Event time comes from a column, an expression, the record or the log.
func TestEventTime(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic plain { id: string } with key (id)
topic layouts { id: string, d: time("yyyy-MM-dd"), s: time("s"), us: time("us"), ns: time("ns"), l: time("yyyy-MM-dd HH:mm:ss.SSS", "Asia/Shanghai"), z: time }
  with key (id), time l lag 1s
topic either { id: string, a: time("ms")?, q: { at: time("s") }? } with key (id), time (a ?? q?.at) lag 2s
topic moved { id: string, a: time("ms"), d: duration } with key (id), time (a + d * 2) lag 1m
topic appended { id: string, a: time("ms") } with key (id), time append

topic plain_out = from plain |> select id, t = record.time
topic layouts_out = from layouts
topic either_out = from either |> select id, t = record.time
topic moved_out = from moved |> select id, t = record.time
topic appended_out = from appended |> select id, same = record.time == record.append_time
topic by_append = from plain |> agg n = count(), least = min(id) window tumble(1h) on append
topic by_minute = from either |> agg n = count() by id window tumble(1m)
`)
	r.put("plain", 0, msg{12345, "a", `{"id":"a"}`}, msg{-5, "b", `{"id":"b"}`})
	r.put("layouts", 0, msg{1, "a", `{"id":"a","d":"2024-02-29","s":1700000000,"us":1700000000123456,"ns":1700000000123456789,"l":"2024-03-01 07:59:59.250","z":"2024-01-01T01:00:00.5+01:00"}`})
	r.put("either", 0, msg{1, "a", `{"id":"a","a":1500}`}, msg{1, "b", `{"id":"b","q":{"at":2}}`}, msg{1, "c", `{"id":"c"}`}, msg{1, "d", `{"id":"d","a":90000,"q":{"at":1}}`})
	r.put("moved", 0, msg{1, "a", `{"id":"a","a":1000,"d":"1m30s"}`}, msg{1, "b", `{"id":"b","a":1000,"d":"-250ms"}`})
	before := time.Now()
	r.put("appended", 0, msg{1, "a", `{"id":"a","a":1000}`})
	r.end("plain", "layouts", "either", "moved", "appended")

	want(t, "plain_out", values(r.rows("plain_out")), `{"id":"a","t":"1970-01-01T00:00:12.345Z"}`, `{"id":"b","t":"1969-12-31T23:59:59.995Z"}`)
	want(t, "layouts_out", values(r.rows("layouts_out")),
		`{"id":"a","d":"2024-02-29T00:00:00Z","s":"2023-11-14T22:13:20Z","us":"2023-11-14T22:13:20.123456Z","ns":"2023-11-14T22:13:20.123456789Z","l":"2024-02-29T23:59:59.25Z","z":"2024-01-01T00:00:00.5Z"}`)
	want(t, "either_out", values(r.rows("either_out")), `{"id":"a","t":"1970-01-01T00:00:01.5Z"}`, `{"id":"b","t":"1970-01-01T00:00:02Z"}`, `{"id":"d","t":"1970-01-01T00:01:30Z"}`)
	inv := r.rows("either_invalid")
	if len(inv) == 0 || inv[0].key != "c" || inv[0].headers["hr-code"] != "E0608" {
		t.Errorf("a row without an event time: %+v", inv)
	}
	want(t, "moved_out", values(r.rows("moved_out")), `{"id":"a","t":"1970-01-01T00:03:01Z"}`, `{"id":"b","t":"1970-01-01T00:00:00.5Z"}`)
	got := r.rows("appended_out")
	want(t, "appended_out", values(got), `{"id":"a","same":true}`)
	if at := time.Unix(0, got[0].time); at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("append time %v", at)
	}
	if got := r.rows("by_append"); len(got) != 1 || !strings.HasSuffix(got[0].value, `"n":2,"least":"a"}`) {
		t.Errorf("by_append: %+v", got)
	}
	want(t, "by_minute", keyed(r.rows("by_minute")),
		`a={"id":"a","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:01:00Z","n":1}`,
		`b={"id":"b","window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T00:01:00Z","n":1}`,
		`d={"id":"d","window_start":"1970-01-01T00:01:00Z","window_end":"1970-01-01T00:02:00Z","n":1}`)
}

// Options of topics reach the log, and names that are no words of the language can be used for topics.
func TestTopicOptions(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src as "shop.src-v1" { id: string, n: int64 } with key (id), partitions 3, retain 7d, invalid to "shop.bad"
topic out as "shop.out" = from src |> where n > 0 with retain 1h, partitions 2, errors to "shop.bad"
topic again = from out |> select id, n, topic = record.topic
view seen as "shop.seen" = from out |> select id, record.topic, record.partition, key = string(record.key ?? bytes("-"))
topic many { a: string, b: int64, c: bool } with key (b, a, c)
topic many_out = from many |> select c, b, a
topic many_less = from many |> select b, a |> key (a, b)
`)
	r.putByKey("shop.src-v1", msg{1, "a", `{"id":"a","n":1}`}, msg{2, "b", `{"id":"b","n":0}`}, msg{3, "c", `{"id":"c","n":3}`}, msg{4, "d", `{`})
	r.put("many", 0, msg{1, `[5,"x",true]`, `{"a":"x","b":5,"c":true}`})
	r.end("shop.src-v1", "many")
	if tp := r.topic("shop.src-v1"); tp.Partitions != 3 || tp.Settings.RetentionMs != 7*86_400_000 {
		t.Errorf("src: %+v", tp)
	}
	if tp := r.topic("shop.out"); tp.Partitions != 2 || tp.Settings.RetentionMs != 3_600_000 {
		t.Errorf("out: %+v", tp)
	}
	want(t, "again", sorted(values(r.rows("again"))), `{"id":"a","n":1,"topic":"shop.out"}`, `{"id":"c","n":3,"topic":"shop.out"}`)
	part := func(k string) int { return int(operators.Partition([]byte(k), 2)) }
	want(t, "seen", sorted(values(r.view("shop.seen"))), object("id", "a", "topic", "shop.out", "partition", part("a"), "key", "a"),
		object("id", "c", "topic", "shop.out", "partition", part("c"), "key", "c"))
	if bad := r.rows("shop.bad"); len(bad) != 1 || bad[0].key != "d" {
		t.Errorf("shop.bad: %+v", bad)
	}
	want(t, "many_out", keyed(r.rows("many_out")), `[5,"x",true]={"c":true,"b":5,"a":"x"}`)
	want(t, "many_less", keyed(r.rows("many_less")), `["x",5]={"b":5,"a":"x"}`)
}

// Arguments of functions and variables of `let` may be used many times, in closures too, and mean their
// value at the place where they were given.
func TestFunctionsAndVariablesInsideClosures(t *testing.T) {
	r := newRig(t)
	r.apply(`
topic src { id: int64, n: int64, xs: list<int64>, s: string? } with key (id)
fn shifted(x: int64, by: int64) -> int64 = sum(map([1, 2], # * x + by + x))
fn clamp(x: int64, lo: int64, hi: int64) -> int64 = x < lo ? lo : x > hi ? hi : x
fn positive(xs: list<int64>) -> list<int64> = filter(xs, # > 0)
fn square(x: int64) -> int64 = x * x
fn quartic(x: int64) -> int64 = square(square(x))
fn orElse(s: string?, t: string) -> string = s != nil ? s : t
topic out = from src |> select id,
  a = map(xs, shifted(#, n)),
  b = map(xs, clamp(# + #index, n, n + 2)),
  c = (let k = n * 2; map(xs, (let v = # + k; v * v - k))),
  d = sum(map(positive(xs), # * sum(positive(xs)))),
  e = map(xs, sum(map(xs, # * #))),
  f = quartic(n + 1),
  g = orElse(s, orElse(upper(s), "none") + "!"),
  h = any(xs, # == n) and all(positive(xs), clamp(#, 0, n) == #),
  i = reduce(xs, #acc * 2 + clamp(#, 0, 1), 1),
  j = sum(map(filter(xs, # % 2 == 0), quartic(#))),
  k = (let f = filter(xs, # > n); len(f) + sum(f) * len(f))
topic kept = from src |> where (let f = filter(xs, # > n); len(f) > 1 and (f[0] ?? 0) != (f[1] ?? 0)) |> set m = quartic(n)
topic agg = from src |> agg q = sum(quartic(n)), w = square(sum(n)), p = max(sum(positive(xs))) window tumble(1m)
`)
	rows := []struct {
		id, n int64
		xs    []int64
		s     any
	}{{1, 2, []int64{1, -2, 3, 2}, nil}, {2, -1, []int64{}, "x"}, {3, 0, []int64{5, 5, 4, -9}, ""}, {4, 3, []int64{7, 8}, "y"}}
	clamp := func(x, lo, hi int64) int64 {
		if x < lo {
			return lo
		}
		return min(x, hi)
	}
	quartic := func(x int64) int64 { return x * x * x * x }
	var msgs []msg
	var out, kept []string
	var q, w, p int64
	for _, x := range rows {
		v := object("id", x.id, "n", x.n, "xs", x.xs, "s", x.s)
		msgs = append(msgs, msg{1, fmt.Sprint(x.id), v})
		a, b, c, e := []int64{}, []int64{}, []int64{}, []int64{}
		var d, pos, squares, j, above, aboveSum int64
		anyN, allClamped, acc := false, true, int64(1)
		for _, y := range x.xs {
			pos += max(y, 0)
			squares += y * y
		}
		firstTwo := []int64{}
		for i, y := range x.xs {
			a = append(a, y*1+x.n+y+y*2+x.n+y)
			b = append(b, clamp(y+int64(i), x.n, x.n+2))
			k := x.n * 2
			c = append(c, (y+k)*(y+k)-k)
			e = append(e, squares)
			d += max(y, 0) * pos
			anyN = anyN || y == x.n
			allClamped = allClamped && (y <= 0 || clamp(y, 0, x.n) == y)
			acc = acc*2 + clamp(y, 0, 1)
			if y%2 == 0 {
				j += quartic(y)
			}
			if y > x.n {
				above++
				aboveSum += y
				firstTwo = append(firstTwo, y)
			}
		}
		g := "NONE!"
		if x.s != nil {
			g = x.s.(string)
		} else {
			g = "none!"
		}
		out = append(out, object("id", x.id, "a", a, "b", b, "c", c, "d", d, "e", e, "f", quartic(x.n+1), "g", g, "h", anyN && allClamped, "i", acc, "j", j, "k", above+aboveSum*above))
		if above > 1 && firstTwo[0] != firstTwo[1] {
			kept = append(kept, strings.TrimSuffix(v, "}")+fmt.Sprintf(`,"m":%d}`, quartic(x.n)))
		}
		q += quartic(x.n)
		w += x.n
		p = max(p, pos)
	}
	r.put("src", 0, msgs...)
	r.end("src")
	want(t, "out", values(r.rows("out")), out...)
	want(t, "kept", values(r.rows("kept")), kept...)
	want(t, "agg", values(r.rows("agg")), object("window_start", time.Unix(0, 0), "window_end", time.Unix(60, 0), "q", q, "w", w*w, "p", p))
}

// A topic that a client made has no schema: it reads as key and value.
func TestTopicsWithoutASchema(t *testing.T) {
	r := newRig(t)
	if errs := r.node.Meta().CreateTopics(r.ctx(), []replication.TopicSpec{{Name: "raw.in", Partitions: 2}}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	r.apply(`
topic parsed = from "raw.in"
  |> where value != nil
  |> set text = string(value)
  |> where text startsWith "{"
  |> select user = json(text, "user.name", "string") ?? "-", n = json(text, "n[1]", "int64"), k = string(key ?? bytes("none"))
  |> key (user)
topic names = from parsed |> agg n = count(), sum = sum(n) by user window tumble(1h)
`)
	r.put("raw.in", 0, msg{1000, "a", `{"user":{"name":"ann"},"n":[1,2]}`}, msg{2000, "", `{"user":{"name":"bob"},"n":[]}`}, msg{3000, "c", `plain`})
	r.put("raw.in", 1, msg{1500, "d", `{"n":[0,40]}`}, msg{1500, "e", `{"user":{"name":"ann"},"n":[0,5]}`}, msg{1500, "f", `{"user":7}`}, msg{1500, "g", `{nothing`})
	r.end("raw.in")
	want(t, "parsed", sorted(keyed(r.rows("parsed"))), `-={"user":"-","n":40,"k":"d"}`, `-={"user":"-","n":null,"k":"f"}`, `ann={"user":"ann","n":2,"k":"a"}`, `ann={"user":"ann","n":5,"k":"e"}`, `bob={"user":"bob","n":null,"k":"none"}`)
	var failed []string
	for _, w := range r.rows("parsed_errors") {
		failed = append(failed, w.key+" "+w.headers["hr-code"])
	}
	want(t, "parsed_errors", failed, "g E0603")
	win := `"window_start":"1970-01-01T00:00:00Z","window_end":"1970-01-01T01:00:00Z"`
	want(t, "names", sorted(keyed(r.rows("names"))), `-={"user":"-",`+win+`,"n":2,"sum":40}`, `ann={"user":"ann",`+win+`,"n":2,"sum":7}`, `bob={"user":"bob",`+win+`,"n":1,"sum":null}`)
}
