//go:build race

package kafka

// raceEnabled: the race detector's pools forget at random, so allocations cannot be counted.
const raceEnabled = true
