//go:build race

package wal

// raceEnabled makes the long tests shorter: the race detector is for the short ones with goroutines.
const raceEnabled = true
