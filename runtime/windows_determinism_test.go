package runtime_test

// Windows that are not cut by a grid: sessions, growing ones and calendars, keyed as their rows are and otherwise.
const windowStages = `
topic src {
  user: string, kind: string, amount: float64, qty: int64, big: int64, note: string?, ts: time("ms"),
} with key (user), partitions 3, time ts lag 2s future 1h

topic visits = from src
  |> agg n = count(), mean = avg(amount), total = sum(amount), kinds = count_distinct(kind), small = count() where qty < 3,
         head = first(note), tail = last(note), most = max(amount), least = min(user), spread = stddev_pop(amount)
     by user window session(700ms)
topic busy = from src
  |> agg n = count(), total = sum(amount), users = count_distinct(user), head = first(note), tail = last(note), spread = var_samp(amount)
     by kind window session(90ms)
topic whole = from src |> agg n = count(), s = sum(big) window session(40ms)
topic longest = from visits |> agg visits = count(), n = max(n), mean = avg(mean) window session(5s)
topic growing = from src
  |> agg n = count(), mean = avg(amount), users = count_distinct(user), head = first(note), most = max(amount), s = sum(big) by kind
     window cumulate(6s every 2s)
topic minutes = from src |> agg n = count(), total = sum(amount) by kind window calendar(minute, "Asia/Kolkata")
`

var windowSuite = suite{
	module:    windowStages,
	pipelines: []string{"visits", "busy", "whole", "longest", "growing", "minutes"},
	topics:    []string{"visits", "visits_late", "busy", "busy_late", "whole", "whole_late", "whole_errors", "longest", "growing", "growing_late", "growing_errors", "minutes", "minutes_late", "src_invalid"},
	exercised: []string{"visits", "visits_late", "busy", "busy_late", "whole", "longest", "growing", "growing_late", "minutes"},
}
