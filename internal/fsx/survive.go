package fsx

// Survive runs do in a goroutine of its own and returns its error, or that of gone if the goroutine ended without
// returning. Pebble expects its logger's Fatalf to end the process; ours ends the goroutine that met the error, which must
// not be that of somebody who waits for an answer.
func Survive(do, gone func() error) error {
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
	return <-done
}
