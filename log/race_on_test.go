//go:build race

package log

// raceEnabled makes the long tests shorter: with the race detector Pebble checks itself too, which takes most of the
// time. The write-ahead log, which has no Pebble in it, makes up for the crash states.
const raceEnabled = true
