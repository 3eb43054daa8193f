// Package soak runs a server for a long time under a steady load in which everything happens all the time (rolls,
// retention, checkpoints, topics and pipelines that come and go, members that join and leave, connections that are cut)
// and says whether anything that it holds grows. The run itself is a test: `make soak`. This file is the judgement.
package soak

import (
	"fmt"
	"slices"
)

// A Limit says how much of a rise of a series is noise: a share of its beginning and a fixed amount.
type Limit struct{ Share, Amount float64 }

// Grows says why a series of samples of a steady process rises without end, "" if it does not. The first quarter is left
// out: caches and pools fill. Of the rest it compares the medians of three parts, so that a few odd samples decide
// nothing: the last must be above the first by more than the limit, and the middle well on the way, because a level that
// was reached once and is kept is no growth. A steady rise of twice the limit in the whole run is always found.
func Grows(series []float64, limit Limit) string {
	rest := series[len(series)/4:]
	n := len(rest) / 3
	if n < 3 {
		return ""
	}
	first, middle, last := median(rest[:n]), median(rest[n:len(rest)-n]), median(rest[len(rest)-n:])
	rise := last - first
	if rise <= first*limit.Share+limit.Amount || middle-first < rise/4 || last-middle < rise/4 {
		return ""
	}
	return fmt.Sprintf("the medians of the three parts after the warm-up rise: %.4g, %.4g, %.4g", first, middle, last)
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// Plot draws a series as one line of so many characters, each the median of its part, from 0 to the highest.
func Plot(series []float64, width int) string {
	bars := []rune(" ▁▂▃▄▅▆▇█")
	top := 0.0
	for _, v := range series {
		top = max(top, v)
	}
	var out []rune
	for i := range min(width, len(series)) {
		from, to := i*len(series)/min(width, len(series)), (i+1)*len(series)/min(width, len(series))
		level := 0
		if top > 0 {
			level = int(median(series[from:to])/top*float64(len(bars)-1) + 0.5)
		}
		out = append(out, bars[level])
	}
	return string(out)
}
