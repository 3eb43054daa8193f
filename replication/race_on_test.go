//go:build race

package replication

// raceEnabled: bounds on processor time are wider with the race detector.
const raceEnabled = true
