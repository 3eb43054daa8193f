package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// plotRows is the height of the plot.
const plotRows = 12

// plot draws p50, p99 and the largest latency of each slice of the run, over a logarithmic scale of milliseconds.
func (r *Report) plot() string {
	n := len(r.Timeline)
	if n < 2 {
		return ""
	}
	if len(r.TimelineP50) != n || len(r.TimelineP99) != n {
		return ""
	}
	low, high := math.Inf(1), 0.0
	for i := range n {
		if r.TimelineP50[i] > 0 {
			low = min(low, r.TimelineP50[i])
		}
		high = max(high, r.Timeline[i])
	}
	if high <= 0 || math.IsInf(low, 1) {
		return ""
	}
	high = max(high, 2*low)
	step := math.Log(high/low) / (plotRows - 1)
	row := func(v float64) int { return int(math.Round(math.Log(max(v, low)/low) / step)) }
	grid := make([][]byte, plotRows)
	for i := range grid {
		grid[i] = slices.Repeat([]byte{' '}, n)
	}
	for i := range n {
		if r.Timeline[i] == 0 {
			continue // nothing fell due
		}
		grid[row(r.TimelineP50[i])][i] = '.'
		grid[row(r.TimelineP99[i])][i] = '+'
		grid[row(r.Timeline[i])][i] = '#' // in front where they meet
	}
	var b strings.Builder
	fmt.Fprintf(&b, "latency over time, ms (. p50, + p99, # max; a column is %.2g s)\n", r.SliceSeconds)
	for i := plotRows - 1; i >= 0; i-- {
		label := ""
		if i%3 == 2 || i == 0 {
			label = fmt.Sprintf("%.3g", low*math.Exp(float64(i)*step))
		}
		fmt.Fprintf(&b, "%9s |%s\n", label, strings.TrimRight(string(grid[i]), " "))
	}
	fmt.Fprintf(&b, "%9s +%s\n", "", strings.Repeat("-", n))
	return b.String()
}
