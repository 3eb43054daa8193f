package runtime

import (
	"errors"
	"fmt"
	"time"
)

// errPaused stops a pipeline until somebody resumes it.
var errPaused = errors.New("runtime: paused")

// An errorLimit says when a pipeline should pause: 1,000 rows in a row failed, or more than a tenth of at
// least 1,000 rows inside one minute of append time. The step that reaches the limit still commits, so
// that the rows can be looked at in their side topics, and the pipeline goes on with the very next row.
type errorLimit struct {
	run     int64 // failed rows since a good one
	began   int64 // append time at which the minute began, ns
	seen    int64 // rows of the minute
	failed  int64
	last    badRow
	reached bool
}

// A badRow is a row that failed, for messages.
type badRow struct {
	topic     string
	partition int32
	offset    int64
	code      string
	what      string
}

func (r *badRow) String() string {
	return fmt.Sprintf("%s/%d offset %d: %s %s", r.topic, r.partition, r.offset, r.code, r.what)
}

const (
	maxFailedRun  = 1000
	minFailedRows = 1000
	failedMinute  = int64(time.Minute)
)

// rows takes n rows appended at the time at, of which those at the positions bad (ascending) failed.
func (e *errorLimit) rows(at int64, n int, bad []int) {
	if n == 0 {
		return
	}
	if at-e.began >= failedMinute || at < e.began {
		e.began, e.seen, e.failed = at, 0, 0
	}
	e.seen += int64(n)
	e.failed += int64(len(bad))
	next := 0 // position after the last failed row
	for _, i := range bad {
		if i != next {
			e.run = 0
		}
		e.run++
		next = i + 1
		e.reached = e.reached || e.run >= maxFailedRun
	}
	if next < n {
		e.run = 0
	}
	e.reached = e.reached || e.seen >= minFailedRows && e.failed*10 > e.seen
}

// err is why the pipeline has to pause, if it has to.
func (e *errorLimit) err(pipeline string) error {
	if !e.reached {
		return nil
	}
	return fmt.Errorf("%w: %s: %d of %d rows within a minute failed, %d in a row, the last is %s; mend the source or the module, then resume", errPaused, pipeline, e.failed, e.seen, e.run, &e.last)
}
