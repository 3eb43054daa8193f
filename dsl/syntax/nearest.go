package syntax

// nearest is the candidate that a misspelt word most likely meant, or "".
func nearest(word string, candidates []string) string {
	best, limit := "", max(1, len(word)/3)
	if len(word) > 32 || word == "" {
		return ""
	}
	for _, c := range candidates {
		if d := distance(word, c); d <= limit && d > 0 {
			best, limit = c, d-1
		}
	}
	return best
}

// distance counts the insertions, deletions, changes and swaps of neighbours between two short words.
func distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
