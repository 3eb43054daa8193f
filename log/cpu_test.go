package log

import (
	"syscall"
	"time"
)

// cpu is the processor time that this process has used. A bound on it holds on a machine that others use; one on the
// clock does not.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	t := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if raceEnabled {
		t /= 8 // about what the race detector costs
	}
	return t
}
