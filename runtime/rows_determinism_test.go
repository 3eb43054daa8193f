package runtime_test

// The stages that keep rows, or make several of one.
const rowStages = `
topic src {
  user: string, kind: string, amount: float64, qty: int64, big: int64, note: string?, ts: time("ms"),
} with key (user), partitions 3, time ts lag 2s future 1h

topic parts = from src |> explode left filter([1, 2, 3], # < qty) as part index i |> set share = div(60, qty - (part ?? 0))
topic spread = from src |> explode [kind, user, kind] as word |> where word != "b" |> select word, qty |> key (word) with partitions 2
topic counted = from src |> explode split(kind, "a") as word |> agg n = count(), head = first(note), q = sum(qty) by word window tumble(10s)
topic best = from src |> top 2 by div(big, qty) desc, note per kind window hop(9s every 3s) rank r
topic ranked = from parts |> agg n = count(), q = sum(qty) by user, part window tumble(10s) |> top 2 ties by n desc per window rank r |> where r < 3
topic once = from src |> where kind != "d" |> dedup by kind, qty within 8s keep first |> set inverse = div(60, qty)
topic ever = from src |> dedup by word = kind + user state forever |> select word, user, qty, note
topic rolling = from src |> where kind != "d" |> over by user rows 3 state forever set mean = avg(amount), q = sum(qty), head = first(note), nr = row_number(), up = delta(amount), inverse = div(60, qty)
topic recent = from parts |> over by kind, part range 5s set n = count(), total = sum(amount), mid = median(qty), texts = join(note, " "), most = ::max(qty, 3) |> drop big
topic paused = from src |> over by kind rows 4 before state ttl 2s set big = sum(big), place = rank(), before = prev(note, 2), users = count_distinct(user)
topic graded = from ranked |> over rows 5 set best = max(n), all = list(q, 3) |> agg n = count(), b = max(best), m = first(all) by user window tumble(20s)
topic quiet = from parts |> dedup by user state ttl 20s |> agg n = count() by kind window tumble(20s)
`

var rowSuite = suite{
	module:    rowStages,
	pipelines: []string{"parts", "spread", "counted", "best", "ranked", "once", "ever", "quiet", "rolling", "recent", "paused", "graded"},
	topics: []string{
		"parts", "parts_errors", "spread", "counted", "counted_late", "src_invalid", "best", "best_errors", "best_late", "ranked", "ranked_late", "once", "once_late", "once_errors", "ever", "ever_late", "quiet", "quiet_late",
		"rolling", "rolling_late", "rolling_errors", "recent", "recent_late", "paused", "paused_late", "paused_errors", "graded", "graded_late",
	},
	exercised: []string{
		"parts", "parts_errors", "spread", "counted", "counted_late", "best", "best_errors", "best_late", "ranked", "once", "once_late", "once_errors", "ever", "quiet",
		"rolling", "rolling_late", "rolling_errors", "recent", "paused", "paused_late", "paused_errors", "graded",
	},
}
