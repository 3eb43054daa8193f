package fsx

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// aroundMin is the size from which a write goes past the page cache: a direct write waits for the disk, which is
	// worth it only for a large one.
	aroundMin = 256 << 10
	// bounceBytes is what one direct write takes.
	bounceBytes = 1 << 20
)

// around is the second descriptor of a file, for direct writes. Its zero value opens itself when it is first needed.
type around struct {
	mu     sync.Mutex
	opened bool
	fd     int // -1: the file system cannot, or the file is closed
}

// open returns the descriptor, -1: write through the page cache.
func (a *around) open(fd int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened {
		return a.fd
	}
	a.opened = true
	// The file may have been renamed or removed since it was opened: the descriptor knows which one it is.
	direct, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		direct = -1
	}
	a.fd = direct
	return a.fd
}

// close gives the descriptor back.
func (a *around) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	fd := a.fd
	was := a.opened && fd >= 0
	a.opened, a.fd = true, -1
	if !was {
		return nil
	}
	return unix.Close(fd)
}

// bounces are buffers between writes. Memory of the Go heap is not aligned.
var bounces = make(chan []byte, 4)

func bounce() ([]byte, error) {
	select {
	case b := <-bounces:
		return b, nil
	default:
		return Aligned(bounceBytes)
	}
}

func unbounce(b []byte) {
	select {
	case bounces <- b:
	default:
		_ = Free(b)
	}
}

// WriteAround implements File. The pages that the page cache holds and those that are written past it never overlap in
// one call, and the kernel drops what the cache holds of a page before it is written directly.
func (f *diskFile) WriteAround(p []byte, offset int64) (int, error) {
	head := int(-offset & (PageSize - 1)) // up to the first whole page
	if len(p) < head+aroundMin {
		return f.writeThrough(p, offset)
	}
	fd := f.around.open(f.fd)
	if fd < 0 {
		return f.writeThrough(p, offset)
	}
	if n, err := f.WriteAt(p[:head], offset); err != nil {
		return n, err
	}
	whole := (len(p) - head) &^ (PageSize - 1)
	n, err := writeDirect(fd, p[head:head+whole], offset+int64(head))
	n += head
	switch {
	case errors.Is(err, unix.EINVAL):
		// The file system opens files so, and wants more of it than whole pages.
	case err != nil:
		return n, fmt.Errorf("fsx: direct write to %s: %w", f.Name(), err)
	}
	m, err := f.writeThrough(p[n:], offset+int64(n))
	return n + m, err
}

// writeThrough writes through the page cache and has the system begin to write it to the disk.
func (f *diskFile) writeThrough(p []byte, offset int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.WriteAt(p, offset)
	if err == nil {
		_ = f.WriteBack(offset, int64(n)) // a hint
	}
	return n, err
}

// pwriteDirect is pwrite; tests make it do what disks and file systems do at their worst.
var pwriteDirect = unix.Pwrite

func writeDirect(fd int, p []byte, offset int64) (n int, err error) {
	b, err := bounce()
	if err != nil {
		return 0, err
	}
	defer unbounce(b)
	for n < len(p) {
		m, err := pwriteDirect(fd, b[:copy(b, p[n:])], offset+int64(n))
		m = max(m, 0)
		n += m
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return n, err
		case m%PageSize != 0 || m == 0:
			return n &^ (PageSize - 1), unix.EINVAL // the rest goes through the page cache
		}
	}
	return n, nil
}
