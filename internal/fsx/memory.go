//go:build unix

package fsx

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Aligned returns n zero bytes of page-aligned memory outside the Go heap. The memory is the caller's until Free;
// nothing may refer to it afterwards. Pages that are never touched cost nothing.
func Aligned(n int) ([]byte, error) {
	if n <= 0 {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("fsx: map %d bytes of memory: %w", n, err)
	}
	return b, nil
}

// Free gives back memory of Aligned. The whole slice must be given. Free of nil does nothing.
func Free(b []byte) error {
	if b == nil {
		return nil
	}
	return unix.Munmap(b)
}

// Lock keeps memory of Aligned from being paged out. It fails where the limit on locked memory (ulimit -l) is
// lower, which costs latency under memory pressure but not correctness: report it and go on.
func Lock(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := unix.Mlock(b); err != nil {
		return fmt.Errorf("fsx: lock %d bytes of memory: %w", len(b), err)
	}
	return nil
}
