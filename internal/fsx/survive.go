package fsx

import (
	"fmt"
	"time"
)

// surviveGrace is how long Survive waits for what is not over although somebody has given up.
const surviveGrace = 200 * time.Millisecond

// Survive runs do in a goroutine of its own and returns its error, or that of gone if the goroutine ended without
// returning, or if over is closed and do does not return soon after.
//
// It is for Pebble, which expects its logger's Fatalf to end the process. Ours closes over and ends the goroutine that met
// the error. That may be the one that runs do, or one of Pebble's own that do waits for: then do never returns, and is left
// behind with what it holds.
func Survive(do, gone func() error, over <-chan struct{}) error {
	done := make(chan error, 1)
	go func() {
		returned := false
		var err error
		defer func() {
			if !returned {
				err = gone()
			}
			done <- err
		}()
		err = do()
		returned = true
	}()
	select {
	case err := <-done:
		return err
	case <-over:
	}
	select {
	case err := <-done:
		return err
	case <-time.After(surviveGrace):
		return &LeftBehindError{gone()}
	}
}

// A LeftBehindError is what ended a call that Survive left behind: whatever it had opened is not to be opened again by
// this process.
type LeftBehindError struct{ Err error }

func (e *LeftBehindError) Error() string { return e.Err.Error() }

func (e *LeftBehindError) Unwrap() error { return e.Err }

// Fatal is the error of a call of Fatalf. It wraps the errors among args, whatever the format does with them.
func Fatal(format string, args ...any) error {
	f := &fatalError{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			f.errs = append(f.errs, err)
		}
	}
	return f
}

type fatalError struct {
	text string
	errs []error
}

func (e *fatalError) Error() string { return e.text }

func (e *fatalError) Unwrap() []error { return e.errs }
