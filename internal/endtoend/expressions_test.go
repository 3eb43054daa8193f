package endtoend

import (
	"cmp"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A sample is a source row with a column of each kind.
type sample struct {
	id   int64
	i    int64
	j    *int64
	k    int64 // int32, never 0
	u    uint64
	f    float64
	s    string
	n    *string
	d    int64 // decimal(12,2), in cents
	e    int64 // decimal(6,3), in thousandths, above 0
	t    time.Time
	took time.Duration
	day  time.Time
	xs   []int64
	ys   []*int64
	w    []string
	m    map[string]int64
	by   []byte
	q    *inner
	url  string
}

type inner struct {
	a *int64
	b string
}

const sampleSchema = `
topic src {
  id: int64, i: int64, j: int64?, k: int32, u: uint64, f: float64, s: string, n: string?, d: decimal(12,2), e: decimal(6,3), t: time,
  took: duration, day: date, xs: list<int64>, ys: list<int64?>, w: list<string>, m: map<string, int64>, by: bytes,
  q: { a: int64?, b: string }?, url: string, p: string,
} with key (id), time t lag 1s
`

var words = []string{"", "a", "Ännchen", "straße", "hello world", "a/b/c/d", "  padded  ", "x=1&y=2", "naïve café", "日本語", "UPPER lower", "null", `q"uote`, "a,b,,c"}

func samples(n int) []sample {
	rng := rand.New(rand.NewPCG(1, 2))
	ptr := func(v int64) *int64 { return &v }
	var out []sample
	for id := range int64(n) {
		r := sample{
			id: id, i: rng.Int64N(2000) - 1000, k: 1 + rng.Int64N(9), u: rng.Uint64() >> 8, f: rng.NormFloat64() * 100, s: words[rng.IntN(len(words))],
			d: rng.Int64N(2_000_000) - 1_000_000, e: 1 + rng.Int64N(900_000),
			t:    time.Unix(1_000_000_000+rng.Int64N(700_000_000), rng.Int64N(1e9)).UTC(),
			took: time.Duration(rng.Int64N(int64(50 * time.Hour))),
			day:  time.Unix(86400*rng.Int64N(20000), 0).UTC(), url: fmt.Sprintf("https://ex.org/p/%d?g=%s&n=%d", id, url.QueryEscape(words[rng.IntN(len(words))]), id),
			m: map[string]int64{}, q: nil, by: []byte{byte(id), byte(id * 7), 0xff},
		}
		if rng.IntN(3) > 0 {
			r.j = ptr(rng.Int64N(100) - 50)
		}
		if rng.IntN(3) > 0 {
			r.n = &words[rng.IntN(len(words))]
		}
		r.xs, r.w, r.ys = []int64{}, []string{}, []*int64{}
		for range rng.IntN(6) {
			r.xs = append(r.xs, rng.Int64N(20)-10)
			r.w = append(r.w, words[rng.IntN(len(words))])
			if rng.IntN(3) > 0 {
				r.ys = append(r.ys, ptr(rng.Int64N(9)))
			} else {
				r.ys = append(r.ys, nil)
			}
		}
		for range rng.IntN(4) {
			r.m[[]string{"a", "b", "c", "d"}[rng.IntN(4)]] = rng.Int64N(100)
		}
		switch rng.IntN(4) {
		case 0:
		case 1:
			r.q = &inner{b: "only"}
		default:
			r.q = &inner{a: ptr(rng.Int64N(50)), b: words[rng.IntN(len(words))]}
		}
		out = append(out, r)
	}
	return out
}

func (r *sample) json() string {
	q := any(nil)
	if r.q != nil {
		q = map[string]any{"a": r.q.a, "b": r.q.b}
	}
	return object("id", r.id, "i", r.i, "j", r.j, "k", r.k, "u", r.u, "f", r.f, "s", r.s, "n", r.n, "d", exact(cents(r.d, 2)), "e", exact(cents(r.e, 3)),
		"t", r.t, "took", r.took.String(), "day", r.day.Format(time.DateOnly), "xs", r.xs, "ys", r.ys, "w", r.w, "m", r.m,
		"by", r.by, "q", q, "url", r.url, "p", fmt.Sprintf(`{"a":{"b":[%d,"%d"]},"n":null}`, r.i, r.k))
}

func ints(xs []int64) []any {
	out := make([]any, len(xs))
	for i, x := range xs {
		out[i] = x
	}
	return out
}

func texts(xs []string) []any {
	out := make([]any, len(xs))
	for i, x := range xs {
		out[i] = x
	}
	return out
}

func opt[T any](ok bool, v T) any {
	if ok {
		return v
	}
	return nil
}

func orZero(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

func zone(name string) *time.Location {
	l, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return l
}

// half rounds num/den half to even.
func half(num, den *big.Int) *big.Int {
	q, m := new(big.Int).QuoRem(num, den, new(big.Int))
	twice := new(big.Int).Abs(m)
	twice.Lsh(twice, 1)
	c := twice.Cmp(new(big.Int).Abs(den))
	if c > 0 || c == 0 && q.Bit(0) == 1 {
		if num.Sign()*den.Sign() < 0 {
			return q.Sub(q, big.NewInt(1))
		}
		return q.Add(q, big.NewInt(1))
	}
	return q
}

func isoMonday(t time.Time) time.Time {
	t = t.UTC().Truncate(24 * time.Hour)
	return t.AddDate(0, 0, -(int(t.Weekday())+6)%7)
}

// An expression is written in the language and in Go.
type expression struct {
	text string
	want func(r *sample) any
}

var berlin, shanghai, kathmandu = zone("Europe/Berlin"), zone("Asia/Shanghai"), zone("Asia/Kathmandu")

var expressions = []expression{
	// numbers
	{`i + 1`, func(r *sample) any { return r.i + 1 }},
	{`i - k * 3`, func(r *sample) any { return r.i - r.k*3 }},
	{`-i`, func(r *sample) any { return -r.i }},
	{`i / k`, func(r *sample) any { return float64(r.i) / float64(r.k) }},
	{`div(i, k)`, func(r *sample) any { return r.i / r.k }},
	{`mod(i, k)`, func(r *sample) any { return r.i % r.k }},
	{`i % k`, func(r *sample) any { return r.i % r.k }},
	{`2 ** 10`, func(r *sample) any { return 1024.0 }},
	{`f ** 2`, func(r *sample) any { return math.Pow(r.f, 2) }},
	{`f * 2 - 1.5`, func(r *sample) any { a := r.f * 2; return a - 1.5 }},
	{`i + f`, func(r *sample) any { return float64(r.i) + r.f }},
	{`abs(i)`, func(r *sample) any { return max(r.i, -r.i) }},
	{`abs(f)`, func(r *sample) any { return math.Abs(r.f) }},
	{`abs(d)`, func(r *sample) any { return exact(cents(max(r.d, -r.d), 2)) }},
	{`ceil(f)`, func(r *sample) any { return math.Ceil(r.f) }},
	{`floor(f)`, func(r *sample) any { return math.Floor(r.f) }},
	{`round(f)`, func(r *sample) any { return math.Round(r.f) }},
	{`sign(i)`, func(r *sample) any { return int64(cmp.Compare(r.i, 0)) }},
	{`sqrt(abs(f))`, func(r *sample) any { return math.Sqrt(math.Abs(r.f)) }},
	{`pow(f, 3)`, func(r *sample) any { return math.Pow(r.f, 3) }},
	{`exp(f / 100)`, func(r *sample) any { return math.Exp(r.f / 100) }},
	{`ln(abs(f) + 1)`, func(r *sample) any { return math.Log(math.Abs(r.f) + 1) }},
	{`log10(abs(f) + 1)`, func(r *sample) any { return math.Log10(math.Abs(r.f) + 1) }},
	{`min(i, k, 3)`, func(r *sample) any { return min(r.i, r.k, 3) }},
	{`max(i, k)`, func(r *sample) any { return max(r.i, r.k) }},
	{`min(f, i)`, func(r *sample) any { return min(r.f, float64(r.i)) }},
	{`is_nan(f)`, func(r *sample) any { return false }},
	{`bitand(i, 255)`, func(r *sample) any { return r.i & 255 }},
	{`bitor(i, 8)`, func(r *sample) any { return r.i | 8 }},
	{`bitxor(i, k)`, func(r *sample) any { return r.i ^ r.k }},
	{`bitnot(i)`, func(r *sample) any { return ^r.i }},
	{`bitshl(k, 4)`, func(r *sample) any { return r.k << 4 }},
	{`bitshr(abs(i), 2)`, func(r *sample) any { return max(r.i, -r.i) >> 2 }},
	{`wrap_mul(9223372036854775807, i)`, func(r *sample) any { return int64(math.MaxInt64) * r.i }},
	{`wrap_add(9223372036854775807, abs(i))`, func(r *sample) any { x := int64(math.MaxInt64); return x + max(r.i, -r.i) }},
	{`i > 10 and i <= 500 or f < 0`, func(r *sample) any { return r.i > 10 && r.i <= 500 || r.f < 0 }},
	{`-100 <= i <= 100`, func(r *sample) any { return -100 <= r.i && r.i <= 100 }},
	{`i in [1, 2, 3, -4] or i not in [5, 6]`, func(r *sample) any { return r.i != 5 && r.i != 6 }},
	{`i in 1..100`, func(r *sample) any { return r.i >= 1 && r.i <= 100 }},
	{`i == f`, func(r *sample) any { return float64(r.i) == r.f }},
	{`u > 36028797018963967`, func(r *sample) any { return r.u > 36028797018963967 }},
	{`u + 1`, func(r *sample) any { return r.u + 1 }},
	{`!(i > 0) && not (f > 0)`, func(r *sample) any { return r.i <= 0 && r.f <= 0 }},
	{`0x1f + 1_000`, func(r *sample) any { return int64(0x1f + 1000) }},
	{`(if i > 0 { "pos" } else if i == 0 { "zero" } else { "neg" })`, func(r *sample) any { return [3]string{"neg", "zero", "pos"}[cmp.Compare(r.i, 0)+1] }},
	{`(let x = i * 2; let y = x + 1; x * y)`, func(r *sample) any { return r.i * 2 * (r.i*2 + 1) }},
	{`round(geo_distance(52.52, 13.405, 48.8566, 2.3522) / 1000)`, func(r *sample) any { return 877.0 }},

	// casts
	{`int(f)`, func(r *sample) any { return int64(r.f) }},
	{`int(string(i)) + 1`, func(r *sample) any { return r.i + 1 }},
	{`string(i) + "!"`, func(r *sample) any { return fmt.Sprint(r.i) + "!" }},
	{`string(d)`, func(r *sample) any { return cents(r.d, 2) }},
	{`string(i > 0)`, func(r *sample) any { return fmt.Sprint(r.i > 0) }},
	{`string(t)`, func(r *sample) any { return r.t.Format(time.RFC3339Nano) }},
	{`float(i)`, func(r *sample) any { return float64(r.i) }},
	{`float("1.5e3")`, func(r *sample) any { return 1500.0 }},
	{`int8(k)`, func(r *sample) any { return r.k }},
	{`u64(k)`, func(r *sample) any { return r.k }},
	{`dec("0.908")`, func(r *sample) any { return exact("0.908") }},
	{`dec(i, 12, 2)`, func(r *sample) any { return exact(cents(r.i*100, 2)) }},
	{`try_int(s)`, func(r *sample) any { return nil }},
	{`try_int(string(i))`, func(r *sample) any { return r.i }},
	{`try_int8(i) ?? 0`, func(r *sample) any {
		if int64(int8(r.i)) == r.i {
			return r.i
		}
		return 0
	}},
	{`bool("true")`, func(r *sample) any { return true }},

	// decimals
	{`d + 0.5`, func(r *sample) any { return exact(cents(r.d+50, 2)) }},
	{`d + e`, func(r *sample) any { return exact(cents(r.d*10+r.e, 3)) }},
	{`d - e`, func(r *sample) any { return exact(cents(r.d*10-r.e, 3)) }},
	{`d * 0.02`, func(r *sample) any { return exact(cents(r.d*2, 4)) }},
	{`d * e`, func(r *sample) any { return exact(cents(r.d*r.e, 5)) }},
	{`d * i`, func(r *sample) any { return exact(cents(r.d*r.i, 2)) }},
	{`d / e`, func(r *sample) any {
		q := half(new(big.Int).Mul(big.NewInt(r.d), big.NewInt(1e7)), big.NewInt(r.e))
		return exact(cents(q.Int64(), 6))
	}},
	{`d / 3`, func(r *sample) any {
		q := half(new(big.Int).Mul(big.NewInt(r.d), big.NewInt(1e4)), big.NewInt(3))
		return exact(cents(q.Int64(), 6))
	}},
	{`d > 100`, func(r *sample) any { return r.d > 10000 }},
	{`d >= 0.01 and d < e`, func(r *sample) any { return r.d >= 1 && r.d*10 < r.e }},
	{`d == dec(string(d), 12, 2)`, func(r *sample) any { return true }},
	{`-d`, func(r *sample) any { return exact(cents(-r.d, 2)) }},
	{`floor(d)`, func(r *sample) any {
		q := r.d / 100
		if r.d%100 < 0 {
			q--
		}
		return exact(fmt.Sprint(q))
	}},
	{`ceil(d)`, func(r *sample) any {
		q := r.d / 100
		if r.d%100 > 0 {
			q++
		}
		return exact(fmt.Sprint(q))
	}},
	{`float(d)`, func(r *sample) any { x, _ := strconv.ParseFloat(cents(r.d, 2), 64); return x }},
	{`int(d * 100)`, func(r *sample) any { return r.d }},
	{`dec(d, 12, 1)`, func(r *sample) any { return exact(cents(half(big.NewInt(r.d), big.NewInt(10)).Int64(), 1)) }},
	{`max(d, e)`, func(r *sample) any { return exact(cents(max(r.d*10, r.e), 3)) }},

	// null
	{`j ?? 0`, func(r *sample) any { return orZero(r.j) }},
	{`j + i`, func(r *sample) any { return opt(r.j != nil, orZero(r.j)+r.i) }},
	{`j == nil`, func(r *sample) any { return r.j == nil }},
	{`j != nil and j > 0`, func(r *sample) any { return r.j != nil && *r.j > 0 }},
	{`j == nil or j > 0`, func(r *sample) any { return r.j == nil || *r.j > 0 }},
	{`j != nil ? j * 2 : -1`, func(r *sample) any {
		if r.j != nil {
			return *r.j * 2
		}
		return -1
	}},
	{`is_null(n)`, func(r *sample) any { return r.n == nil }},
	{`null_if(i % 3, 0)`, func(r *sample) any { return opt(r.i%3 != 0, r.i%3) }},
	{`coalesce(j, null_if(i, 5), 7)`, func(r *sample) any {
		switch {
		case r.j != nil:
			return *r.j
		case r.i != 5:
			return r.i
		}
		return 7
	}},
	{`(j > 0) and false`, func(r *sample) any { return false }},
	{`(j > 0) or true`, func(r *sample) any { return true }},
	{`(j > 0) and true`, func(r *sample) any { return opt(r.j != nil, orZero(r.j) > 0) }},
	{`upper(n)`, func(r *sample) any {
		if r.n == nil {
			return nil
		}
		return strings.ToUpper(*r.n)
	}},
	{`(n ?? s) + "."`, func(r *sample) any {
		if r.n != nil {
			return *r.n + "."
		}
		return r.s + "."
	}},
	{`q?.a`, func(r *sample) any {
		if r.q == nil {
			return nil
		}
		return r.q.a
	}},
	{`(q?.a ?? 0) + 1`, func(r *sample) any {
		if r.q == nil {
			return 1
		}
		return orZero(r.q.a) + 1
	}},
	{`q != nil ? q.b : "none"`, func(r *sample) any {
		if r.q == nil {
			return "none"
		}
		return r.q.b
	}},
	{`q`, func(r *sample) any {
		if r.q == nil {
			return nil
		}
		return map[string]any{"a": r.q.a, "b": r.q.b}
	}},

	// text
	{`len(s)`, func(r *sample) any { return len([]rune(r.s)) }},
	{`byte_len(s)`, func(r *sample) any { return len(r.s) }},
	{`lower(s)`, func(r *sample) any { return strings.ToLower(r.s) }},
	{`upper(s)`, func(r *sample) any { return strings.ToUpper(r.s) }},
	{`trim(s)`, func(r *sample) any { return strings.TrimSpace(r.s) }},
	{`trim(s, "a d")`, func(r *sample) any { return strings.Trim(r.s, "a d") }},
	{`trimPrefix(s, "a")`, func(r *sample) any { return strings.TrimPrefix(r.s, "a") }},
	{`trimSuffix(s, "d")`, func(r *sample) any { return strings.TrimSuffix(r.s, "d") }},
	{`split(s, ",")`, func(r *sample) any { return texts(strings.Split(r.s, ",")) }},
	{`join(split(s, "/"), "-")`, func(r *sample) any { return strings.ReplaceAll(r.s, "/", "-") }},
	{`replace(s, "a", "bb")`, func(r *sample) any { return strings.ReplaceAll(r.s, "a", "bb") }},
	{`indexOf(s, "a")`, func(r *sample) any { return runeIndex(r.s, strings.Index(r.s, "a")) }},
	{`lastIndexOf(s, "a")`, func(r *sample) any { return runeIndex(r.s, strings.LastIndex(r.s, "a")) }},
	{`hasPrefix(s, "a") or s startsWith "h"`, func(r *sample) any { return strings.HasPrefix(r.s, "a") || strings.HasPrefix(r.s, "h") }},
	{`hasSuffix(s, "d") or s endsWith "c"`, func(r *sample) any { return strings.HasSuffix(r.s, "d") || strings.HasSuffix(r.s, "c") }},
	{`s contains "a"`, func(r *sample) any { return strings.Contains(r.s, "a") }},
	{`not (s contains "a")`, func(r *sample) any { return !strings.Contains(r.s, "a") }},
	{`s matches "^[a-z]+ [a-z]+$"`, func(r *sample) any { return regexp.MustCompile("^[a-z]+ [a-z]+$").MatchString(r.s) }},
	{`repeat(s, 2)`, func(r *sample) any { return r.s + r.s }},
	{`substr(s, 1, 3)`, func(r *sample) any {
		x := []rune(r.s)
		from := min(1, len(x))
		return string(x[from:min(from+3, len(x))])
	}},
	{`s[1:3]`, func(r *sample) any { x := []rune(r.s); return string(x[min(1, len(x)):min(3, len(x))]) }},
	{`part(s, "/", 2)`, func(r *sample) any {
		p := strings.Split(r.s, "/")
		if len(p) < 3 {
			return nil
		}
		return p[2]
	}},
	{`lpad(s, 6, "*")`, func(r *sample) any {
		x := []rune(r.s)
		return strings.Repeat("*", max(0, 6-len(x))) + string(x[:min(len(x), 6)])
	}},
	{`rpad(s, 6)`, func(r *sample) any {
		x := []rune(r.s)
		return string(x[:min(len(x), 6)]) + strings.Repeat(" ", max(0, 6-len(x)))
	}},
	{`reverse_str(s)`, func(r *sample) any { x := []rune(r.s); slices.Reverse(x); return string(x) }},
	{`extract(url, "/p/([0-9]+)", 1)`, func(r *sample) any { return fmt.Sprint(r.id) }},
	{`extract(s, "(z)", 1)`, func(r *sample) any { return nil }},
	{`capture(url, "/p/(?P<id>[0-9]+)")`, func(r *sample) any { return map[string]any{"id": fmt.Sprint(r.id)} }},
	{`url_param(url, "g")`, func(r *sample) any { u, _ := url.Parse(r.url); return u.Query().Get("g") }},
	{`url_param(url, "none") ?? "-"`, func(r *sample) any { return "-" }},
	{`s < "m"`, func(r *sample) any { return r.s < "m" }},
	{`s + "\t\"" + 'x' + ` + "`y\\`", func(r *sample) any { return r.s + "\t\"x" + `y\` }},
	{`s in ["a", "null"]`, func(r *sample) any { return r.s == "a" || r.s == "null" }},
	{`s == "a" ? "A" : s == "null" ? "N" : "-"`, func(r *sample) any {
		return map[string]string{"a": "A", "null": "N"}[r.s] + map[bool]string{false: "-"}[r.s == "a" || r.s == "null"]
	}},
	{`{"a": "one", "null": "two"}[s] ?? "other"`, func(r *sample) any {
		switch r.s {
		case "a":
			return "one"
		case "null":
			return "two"
		}
		return "other"
	}},

	// time
	{`hour(t)`, func(r *sample) any { return r.t.Hour() }},
	{`hour(t, "Europe/Berlin")`, func(r *sample) any { return r.t.In(berlin).Hour() }},
	{`minute(t, "Asia/Kathmandu")`, func(r *sample) any { return r.t.In(kathmandu).Minute() }},
	{`second(t)`, func(r *sample) any { return r.t.Second() }},
	{`day(t, "Asia/Shanghai")`, func(r *sample) any { return r.t.In(shanghai).Day() }},
	{`month(t)`, func(r *sample) any { return int(r.t.Month()) }},
	{`year(t)`, func(r *sample) any { return r.t.Year() }},
	{`day_of_year(t)`, func(r *sample) any { return r.t.YearDay() }},
	{`date_of(t)`, func(r *sample) any { return r.t.Format(time.DateOnly) }},
	{`date_of(t, "Asia/Shanghai")`, func(r *sample) any { return r.t.In(shanghai).Format(time.DateOnly) }},
	{`trunc(t, 5m)`, func(r *sample) any { return r.t.Truncate(0).Add(-time.Duration(r.t.UnixNano() % int64(5*time.Minute))) }},
	{`trunc(took, 1m30s)`, func(r *sample) any { return durationText(r.took - r.took%(90*time.Second)) }},
	{`trunc_to(t, "month")`, func(r *sample) any { return time.Date(r.t.Year(), r.t.Month(), 1, 0, 0, 0, 0, time.UTC) }},
	{`trunc_to(t, "week")`, func(r *sample) any { return isoMonday(r.t) }},
	{`trunc_to(t, "day", "Europe/Berlin")`, func(r *sample) any {
		x := r.t.In(berlin)
		return time.Date(x.Year(), x.Month(), x.Day(), 0, 0, 0, 0, berlin)
	}},
	{`trunc_to(t, "year", "Asia/Shanghai")`, func(r *sample) any { return time.Date(r.t.In(shanghai).Year(), 1, 1, 0, 0, 0, 0, shanghai) }},
	{`parse_time("2024-02-29 12:30", "yyyy-MM-dd HH:mm")`, func(r *sample) any { return time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC) }},
	{`parse_time("2024-02-29 12:30", "yyyy-MM-dd HH:mm", "Europe/Berlin")`, func(r *sample) any { return time.Date(2024, 2, 29, 11, 30, 0, 0, time.UTC) }},
	{`fmt(t, "yyyy-MM-dd HH:mm:ss.SSS")`, func(r *sample) any { return r.t.Format("2006-01-02 15:04:05.000") }},
	{`fmt(t, "dd.MM.yyyy HH:mm", "Europe/Berlin")`, func(r *sample) any { return r.t.In(berlin).Format("02.01.2006 15:04") }},
	{`epoch(t, "ms")`, func(r *sample) any { return r.t.UnixMilli() }},
	{`epoch(t, "s")`, func(r *sample) any { return r.t.Unix() }},
	{`from_epoch(i, "s")`, func(r *sample) any { return time.Unix(r.i, 0) }},
	{`from_epoch(i * 1000 + 7, "us")`, func(r *sample) any { return time.UnixMicro(r.i*1000 + 7) }},
	{`t + 1h30m`, func(r *sample) any { return r.t.Add(90 * time.Minute) }},
	{`t - took`, func(r *sample) any { return r.t.Add(-r.took) }},
	{`(t + took) - t`, func(r *sample) any { return durationText(r.took) }},
	{`took * 2 > 1d`, func(r *sample) any { return r.took*2 > 24*time.Hour }},
	{`took / 1s`, func(r *sample) any { return float64(r.took) / 1e9 }},
	{`took + 1w`, func(r *sample) any { return durationText(r.took + 7*24*time.Hour) }},
	{`day`, func(r *sample) any { return r.day.Format(time.DateOnly) }},
	{`year(day) * 100 + month(day)`, func(r *sample) any { return r.day.Year()*100 + int(r.day.Month()) }},
	{`weekday(t) == weekday(t + 7d)`, func(r *sample) any { return true }},
	{`t > from_epoch(1500000000, "s")`, func(r *sample) any { return r.t.After(time.Unix(1500000000, 0)) }},

	// lists, maps, closures
	{`len(xs)`, func(r *sample) any { return len(r.xs) }},
	{`xs[0]`, func(r *sample) any {
		if len(r.xs) == 0 {
			return nil
		}
		return r.xs[0]
	}},
	{`xs[-1] ?? 99`, func(r *sample) any {
		if len(r.xs) == 0 {
			return 99
		}
		return r.xs[len(r.xs)-1]
	}},
	{`xs[1:3]`, func(r *sample) any { return ints(r.xs[min(1, len(r.xs)):min(3, len(r.xs))]) }},
	{`first(xs) == xs[0]`, func(r *sample) any { return opt(len(r.xs) > 0, true) }},
	{`last(w) ?? ""`, func(r *sample) any {
		if len(r.w) == 0 {
			return ""
		}
		return r.w[len(r.w)-1]
	}},
	{`take(xs, 2)`, func(r *sample) any { return ints(r.xs[:min(2, len(r.xs))]) }},
	{`reverse(xs)`, func(r *sample) any { x := slices.Clone(r.xs); slices.Reverse(x); return ints(x) }},
	{`sort(xs)`, func(r *sample) any { return ints(slices.Sorted(slices.Values(r.xs))) }},
	{`sort(w, "desc")`, func(r *sample) any { x := slices.Sorted(slices.Values(r.w)); slices.Reverse(x); return texts(x) }},
	{`sortBy(xs, -#)`, func(r *sample) any { x := slices.Sorted(slices.Values(r.xs)); slices.Reverse(x); return ints(x) }},
	{`uniq(xs)`, func(r *sample) any {
		var x []int64
		for _, v := range r.xs {
			if !slices.Contains(x, v) {
				x = append(x, v)
			}
		}
		return ints(x)
	}},
	{`concat(xs, [1, 2])`, func(r *sample) any { return ints(append(slices.Clone(r.xs), 1, 2)) }},
	{`flatten([xs, xs])`, func(r *sample) any { return ints(append(slices.Clone(r.xs), r.xs...)) }},
	{`sum(xs)`, func(r *sample) any { return total(r.xs) }},
	{`mean(xs)`, func(r *sample) any { return opt(len(r.xs) > 0, float64(total(r.xs))/float64(len(r.xs))) }},
	{`median(xs)`, func(r *sample) any {
		x := slices.Sorted(slices.Values(r.xs))
		if len(x) == 0 {
			return nil
		}
		return float64(x[(len(x)-1)/2]+x[len(x)/2]) / 2
	}},
	{`filter(xs, # > 0)`, func(r *sample) any {
		return ints(slices.DeleteFunc(slices.Clone(r.xs), func(x int64) bool { return x <= 0 }))
	}},
	{`filter(xs, # > k)`, func(r *sample) any {
		return ints(slices.DeleteFunc(slices.Clone(r.xs), func(x int64) bool { return x <= r.k }))
	}},
	{`map(xs, # * 2 + #index)`, func(r *sample) any {
		out := []any{}
		for i, x := range r.xs {
			out = append(out, x*2+int64(i))
		}
		return out
	}},
	{`any(xs, # == 3)`, func(r *sample) any { return slices.Contains(r.xs, 3) }},
	{`all(xs, # > -5)`, func(r *sample) any { return !slices.ContainsFunc(r.xs, func(x int64) bool { return x <= -5 }) }},
	{`none(w, # contains "a")`, func(r *sample) any {
		return !slices.ContainsFunc(r.w, func(x string) bool { return strings.Contains(x, "a") })
	}},
	{`one(xs, # > 0)`, func(r *sample) any { return positives(r.xs) == 1 }},
	{`count(xs, # > 0)`, func(r *sample) any { return positives(r.xs) }},
	{`find(xs, # > 4)`, func(r *sample) any {
		i := slices.IndexFunc(r.xs, func(x int64) bool { return x > 4 })
		if i < 0 {
			return nil
		}
		return r.xs[i]
	}},
	{`findIndex(xs, # > 4)`, func(r *sample) any {
		i := slices.IndexFunc(r.xs, func(x int64) bool { return x > 4 })
		return opt(i >= 0, i)
	}},
	{`reduce(xs, #acc + # * 2, 0)`, func(r *sample) any { return total(r.xs) * 2 }},
	{`count(ys, # != nil)`, func(r *sample) any {
		return len(r.ys) - len(slices.DeleteFunc(slices.Clone(r.ys), func(p *int64) bool { return p != nil }))
	}},
	{`map(ys, # ?? -1)`, func(r *sample) any {
		out := []any{}
		for _, p := range r.ys {
			if p == nil {
				out = append(out, -1)
			} else {
				out = append(out, *p)
			}
		}
		return out
	}},
	{`sum(map(filter(xs, # > 0), # * #))`, func(r *sample) any {
		n := int64(0)
		for _, x := range r.xs {
			if x > 0 {
				n += x * x
			}
		}
		return n
	}},
	{`len(filter(xs, any(xs, # == 3)))`, func(r *sample) any {
		if slices.Contains(r.xs, 3) {
			return len(r.xs)
		}
		return 0
	}},
	{`i in xs`, func(r *sample) any { return slices.Contains(r.xs, r.i) }},
	{`[i, k, 7]`, func(r *sample) any { return ints([]int64{r.i, r.k, 7}) }},
	{`keys(m)`, func(r *sample) any { return texts(slices.Sorted(keysOf(r.m))) }},
	{`values(m)`, func(r *sample) any {
		out := []any{}
		for _, k := range slices.Sorted(keysOf(r.m)) {
			out = append(out, r.m[k])
		}
		return out
	}},
	{`contains_key(m, "a")`, func(r *sample) any { _, ok := r.m["a"]; return ok }},
	{`m["a"]`, func(r *sample) any { v, ok := r.m["a"]; return opt(ok, v) }},
	{`(m["b"] ?? 0) + len(m)`, func(r *sample) any { return r.m["b"] + int64(len(r.m)) }},
	{`"c" in m`, func(r *sample) any { _, ok := r.m["c"]; return ok }},
	{`m`, func(r *sample) any {
		out := map[string]any{}
		for k, v := range r.m {
			out[k] = v
		}
		return out
	}},

	// data
	{`json(p, "a.b[0]", "int64")`, func(r *sample) any { return r.i }},
	{`json(p, "a.b[1]", "string")`, func(r *sample) any { return fmt.Sprint(r.k) }},
	{`json(p, "a.b.0", "int64")`, func(r *sample) any { return r.i }},
	{`json(p, "n", "int64")`, func(r *sample) any { return nil }},
	{`json(p, "no.such", "string")`, func(r *sample) any { return nil }},
	{`to_json(xs)`, func(r *sample) any { return jsonText(r.xs) }},
	{`to_json(s)`, func(r *sample) any { return jsonText(r.s) }},
	{`toBase64(s)`, func(r *sample) any { return base64.StdEncoding.EncodeToString([]byte(r.s)) }},
	{`fromBase64(toBase64(by)) == by`, func(r *sample) any { return true }},
	{`by`, func(r *sample) any { return base64.StdEncoding.EncodeToString(r.by) }},
	{`hex(by)`, func(r *sample) any { return hex.EncodeToString(r.by) }},
	{`unhex(hex(by)) == by`, func(r *sample) any { return true }},
	{`string(unhex("c3a4"))`, func(r *sample) any { return "ä" }},
	{`md5(s)`, func(r *sample) any { x := md5.Sum([]byte(r.s)); return hex.EncodeToString(x[:]) }},
	{`sha256(by)`, func(r *sample) any { x := sha256.Sum256(r.by); return hex.EncodeToString(x[:]) }},
	{`hash64("")`, func(r *sample) any { return uint64(0xef46db3751d8e999) }},
	{`ip_in("10.1.2.3", "10.0.0.0/8") and not ip_in("11.1.2.3", "10.0.0.0/8") and ip_in("2001:db8::1", "2001:db8::/32")`, func(r *sample) any { return true }},
	{`uuid_ok("123e4567-e89b-12d3-a456-426614174000") and not uuid_ok(s)`, func(r *sample) any { return true }},
	{`bytes(s) == fromBase64(toBase64(s))`, func(r *sample) any { return true }},

	// the record
	{`record.time`, func(r *sample) any { return r.t }},
	{`record.topic`, func(r *sample) any { return "src" }},
	{`record.partition`, func(r *sample) any { return 0 }},
	{`record.offset`, func(r *sample) any { return r.id }},
	{`string(record.key ?? bytes("none"))`, func(r *sample) any { return fmt.Sprint(r.id) }},
	{`record.append_time > t`, func(r *sample) any { return true }},
}

func total(xs []int64) (n int64) {
	for _, x := range xs {
		n += x
	}
	return n
}

func positives(xs []int64) (n int) {
	for _, x := range xs {
		if x > 0 {
			n++
		}
	}
	return n
}

func keysOf(m map[string]int64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func runeIndex(s string, i int) int {
	if i < 0 {
		return -1
	}
	return len([]rune(s[:i]))
}

// durationText writes a duration as the language does: days, hours, minutes, seconds and so on, none that is 0.
func durationText(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	if d < 0 {
		b.WriteByte('-')
		d = -d
	}
	for _, u := range []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}, {"ns", 1}} {
		if n := d / u.of; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.of
		}
	}
	return b.String()
}

// Every function and operator gives what Go gives, for every row.
func TestExpressionsGiveWhatGoGives(t *testing.T) {
	var text strings.Builder
	text.WriteString(sampleSchema + "\ntopic out = from src |> select id")
	for i, e := range expressions {
		fmt.Fprintf(&text, ",\n  c%d = %s", i, e.text)
	}
	data := samples(200)
	r := newRig(t)
	r.apply(text.String())
	var msgs []msg
	for i := range data {
		msgs = append(msgs, msg{ts: 1, key: fmt.Sprint(data[i].id), value: data[i].json()})
	}
	r.put("src", 0, msgs...)
	r.end("src")
	for _, side := range []string{"src_invalid", "out_errors"} {
		for _, w := range r.rows(side) {
			t.Fatalf("%s: %s %s\n%s", side, w.headers["hr-code"], w.headers["hr-expr"], w.value)
		}
	}
	got := r.rows("out")
	if len(got) != len(data) {
		t.Fatalf("%d rows of %d", len(got), len(data))
	}
	wrong := make([]int, len(expressions))
	for n, w := range got {
		s := &data[n]
		if w.key != fmt.Sprint(s.id) || w.time != s.t.UnixNano() {
			t.Fatalf("row %d: key %s time %d, not %d and %d", n, w.key, w.time, s.id, s.t.UnixNano())
		}
		m := fields(t, w.value)
		for i, e := range expressions {
			raw := m[fmt.Sprintf("c%d", i)]
			if x := e.want(s); !agrees(raw, x) {
				if wrong[i]++; wrong[i] == 1 {
					t.Errorf("`%s` is %s, not %v, for %s", e.text, raw, x, s.json())
				}
			}
		}
	}
	for i, n := range wrong {
		if n > 0 {
			t.Errorf("`%s` is wrong in %d rows", expressions[i].text, n)
		}
	}
}
