//go:build race

package endtoend

// raceEnabled makes the tests with many events shorter: `make test` runs them once more without the race detector.
const raceEnabled = true
