package server

import (
	"errors"
	"fmt"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// defaultMemory is the budget where the machine, or the container, has twice as much; half of what it has otherwise.
	defaultMemory = 1 << 30
	// MinMemory is the least budget that a server takes.
	MinMemory = 128 << 20
)

// ErrMemory is a budget that is too small.
var ErrMemory = errors.New("server: the memory budget is too small")

// DefaultMemory is the budget of a server that is not told any, in bytes: 1 GiB, or half of what this machine or
// container has if that is less.
func DefaultMemory() int64 {
	has, err := memlimit.FromCgroup()
	if system, serr := memlimit.FromSystem(); serr == nil && (err != nil || has == 0 || system < has) {
		has, err = system, nil
	}
	if err != nil || has == 0 || has/2 > defaultMemory {
		return defaultMemory
	}
	return max(MinMemory, int64(has/2))
}

// share divides the budget among what holds records: those not yet in segments, the newest ones, which readers get from
// memory, those on their way into the log, and the log's own. What is set already stays. The rest, at least three
// eighths, is for Pebble, connections and what the collector has not found yet.
func (o *Options) share() error {
	if o.Memory == 0 {
		o.Memory = DefaultMemory()
	}
	if o.Memory < MinMemory {
		return fmt.Errorf("%w: %d bytes, at least %d", ErrMemory, o.Memory, MinMemory)
	}
	n := &o.Node
	for _, x := range []struct {
		bytes *int64
		part  int64
	}{
		{&n.CacheBytes, 4},
		{&n.Data.MaxBacklogBytes, 4},
		{&n.Data.MaxInflightBytes, 16},
		{&n.Data.WALCacheBytes, 16},
	} {
		if *x.bytes == 0 {
			*x.bytes = o.Memory / x.part
		}
	}
	return nil
}
