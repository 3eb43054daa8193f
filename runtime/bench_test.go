package runtime_test

import (
	"fmt"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/runtime"
)

const benchTopic = `topic src {
  ts: time("ms"), user: string, amount: float64, country: string, qty: int64,
} with key (user), partitions 2, time ts lag 1s
`

// benchRows are JSON rows of about 200 B in batches of 500.
func benchRows(rows int) (batches [][]byte) {
	countries := []string{"US", "DE", "FR", "JP", "BR", "IN", "CN", "GB", "NL", "SE"}
	seed, start := uint64(1), int64(1_700_000_000_000)
	b := record.NewBuilder()
	for i := range rows {
		seed = seed*6364136223846793005 + 1442695040888963407
		x := seed >> 33
		user := "user-" + strconv.FormatUint(x%100_000, 10)
		ts := start + int64(i)/10
		v := fmt.Appendf(nil, `{"ts":%d,"user":%q,"amount":%.2f,"country":%q,"qty":%d,"session":"0f3a-11be-77","page":"/shop/item/4711","agent":"Mozilla/5.0","ok":true,"note":"none so far"}`,
			ts, user, float64(x%100_000)/100, countries[(x>>8)%10], x%10)
		b.Append(ts, []byte(user), v, nil)
		if b.Len() == 500 || i == rows-1 {
			batches = append(batches, b.Finish())
		}
	}
	return batches
}

// BenchmarkCatchUp is a new pipeline over rows that are there: read, decode, compute, commit.
func BenchmarkCatchUp(b *testing.B) {
	const rows = 400_000
	for _, bench := range []struct{ name, text string }{
		{"filter+tumble", `topic out = from src |> where amount > 100 and country != "US"
  |> agg n = count(), total = sum(qty), top = max(amount) by country window tumble(10s)`},
		{"tumble/keys=100k", `topic out = from src |> agg n = count(), total = sum(qty) by user window tumble(10s)`},
		{"stateless", `topic out = from src |> where amount > 100 |> set twice = amount * 2.0`},
		{"rekeyed", `topic out = from src |> where amount > 900 |> key (country)`},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := newRig(b, runtime.Options{})
			r.apply("src", benchTopic)
			bytes := 0
			for i, batch := range benchRows(rows) {
				bytes += len(batch)
				r.putBatch("src", i%2, batch)
			}
			r.end("src")
			debug.FreeOSMemory()
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				name := fmt.Sprintf("m%d", i)
				r.apply(name, benchTopic+bench.text+" with late drop, invalid drop, errors drop")
				r.ended(name + "/out")
				b.StopTimer()
				if err := r.eng.Delete(ctxOf(b), name); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
