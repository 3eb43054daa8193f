//go:build !race

package endtoend

const raceEnabled = false
