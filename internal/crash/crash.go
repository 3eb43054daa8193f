// Package crash is the harness that proves recovery: it takes what was recorded of a workload (fsx.Recorder), makes the
// images that a crash can leave at every place of it (fsx.Images), recovers on each and has the result judged, recovers
// again, and crashes inside the recovery. It knows nothing of what is recovered; it is used by tests only.
package crash

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/headrace/headrace/internal/fsx"
)

// Long reports that the long suites are wanted: HEADRACE_LONG is set.
func Long() bool { return os.Getenv("HEADRACE_LONG") != "" }

// Seed returns the seed that HEADRACE_SEED asks for, to replay a failure, and whether it does.
func Seed() (seed uint64, set bool) {
	seed, err := strconv.ParseUint(os.Getenv("HEADRACE_SEED"), 10, 64)
	return seed, err == nil
}

// An Explorer looks at the states that crashes of one or more recordings leave. Fields are set before the first
// Explore.
type Explorer struct {
	// Recover opens what disk holds, checks it against mark (the last mark before the crash), closes it and returns
	// what it saw, in a form in which equal means equal. It writes nothing of its own but what recovery and an
	// abrupt end write. It may be called by several goroutines at once.
	Recover func(disk fsx.FS, mark any) (saw string, err error)
	// Images are the images of a workload, Inside those of a recovery.
	Images, Inside fsx.ImageOptions
	// Deep: in one of so many images the recovery is crashed, too. 0: in none.
	Deep int
	// Exact: a second recovery must leave the bytes that the first one left.
	Exact bool
	// Limit is how many states are looked at. 0: no bound.
	Limit int
	// Workers look at states at once. 0: 2.
	Workers int

	mu     sync.Mutex
	seen   map[uint64]bool
	states map[uint64]bool
	deep   int
	err    error
}

// A Count says how many states were looked at.
type Count struct {
	States int // different images, by their bytes
	Deep   int // of those, how many were left by a crash inside a recovery
}

// Count returns what was looked at so far.
func (e *Explorer) Count() Count {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Count{len(e.states), e.deep}
}

// Full reports that Limit is reached.
func (e *Explorer) Full() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fullLocked()
}

func (e *Explorer) fullLocked() bool { return e.err != nil || e.Limit > 0 && len(e.states) >= e.Limit }

// fresh reports whether an image was not seen before with this mark, and notes it.
func (e *Explorer) fresh(hash uint64, mark any, deep bool) bool {
	key := hash ^ markHash(mark)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen, e.states = map[uint64]bool{}, map[uint64]bool{}
	}
	if e.seen[key] || e.fullLocked() {
		return false
	}
	e.seen[key] = true
	if !e.states[hash] && deep {
		e.deep++
	}
	e.states[hash] = true
	return true
}

func markHash(mark any) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(fmt.Sprint(mark)) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// Explore looks at the states of a recording until Limit is reached. The error says which state was wrong; the first
// one ends all.
func (e *Explorer) Explore(rec *fsx.Recording) error {
	work := make(chan fsx.Image)
	var wg sync.WaitGroup
	for range max(1, e.Workers) {
		wg.Go(func() {
			n := 0
			for im := range work {
				n++
				if err := e.state(im, e.Deep > 0 && im.Hash%uint64(e.Deep) == 0); err != nil {
					e.fail(fmt.Errorf("state after %s: %w", im.String(), err))
				}
			}
		})
	}
	o := e.Images
	o.Skip = func(hash uint64, mark any) bool { return !e.fresh(hash, mark, false) }
	for im := range rec.Images(o) {
		work <- im
		if e.Full() {
			break
		}
	}
	close(work)
	wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *Explorer) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// A recovered is the mark that a recovery has ended, and what it saw.
type recovered struct{ saw string }

// state recovers on an image, cuts the power, and recovers again.
func (e *Explorer) state(im fsx.Image, deeper bool) error {
	var disk fsx.FS = im.FS
	var r *fsx.Recorder
	if deeper {
		r = fsx.Record(im.FS)
		r.Mark(recovered{})
		disk = r
	}
	saw, err := e.Recover(disk, im.Mark)
	if err != nil {
		return err
	}
	left := im.FS.PowerCut()
	again, err := e.Recover(left, im.Mark)
	switch {
	case err != nil:
		return fmt.Errorf("second recovery: %w", err)
	case again != saw:
		return fmt.Errorf("second recovery saw %s, the first %s", again, saw)
	case e.Exact && left.Hash() != im.FS.Hash():
		return fmt.Errorf("second recovery changed the disk from\n%s to\n%s", im.FS, left)
	case !deeper:
		return nil
	}
	r.Mark(recovered{saw})
	o := e.Inside
	o.Seed ^= im.Hash
	o.Skip = func(hash uint64, mark any) bool { return !e.fresh(hash, fmt.Sprint(im.Mark, mark), true) }
	for inner := range r.Recording().Images(o) {
		got, err := e.Recover(inner.FS, im.Mark)
		if err != nil {
			return fmt.Errorf("crash inside the recovery, %s: %w", inner.String(), err)
		}
		if want := inner.Mark.(recovered).saw; want != "" && got != want {
			return fmt.Errorf("crash after the recovery, %s: saw %s, before %s", inner.String(), got, want)
		}
	}
	return nil
}
