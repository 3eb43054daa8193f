package fsx

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever comes of a direct write, the file holds the bytes that were said to be written, and an error arrives.
func TestDirectWritesThatGoWrong(t *testing.T) {
	real := pwriteDirect
	t.Cleanup(func() { pwriteDirect = real })
	for _, c := range []struct {
		name string
		do   func(call, fd int, p []byte, at int64) (int, error)
		want error
	}{
		{"interrupted", func(call, fd int, p []byte, at int64) (int, error) {
			if call%2 == 0 {
				return -1, unix.EINTR
			}
			return real(fd, p, at)
		}, nil},
		{"a part of it at a time", func(_, fd int, p []byte, at int64) (int, error) {
			return real(fd, p[:min(len(p), 3*PageSize)], at)
		}, nil},
		{"a part that is no whole page", func(_, fd int, p []byte, at int64) (int, error) {
			n, err := real(fd, p[:min(len(p), 8*PageSize)], at)
			return n - 512, err
		}, nil},
		{"nothing of it", func(int, int, []byte, int64) (int, error) { return 0, nil }, nil},
		{"not at all", func(int, int, []byte, int64) (int, error) { return -1, unix.EINVAL }, nil},
		{"not at all, later", func(call, fd int, p []byte, at int64) (int, error) {
			if call == 1 {
				return -1, unix.EINVAL
			}
			return real(fd, p, at)
		}, nil},
		{"no space", func(call, fd int, p []byte, at int64) (int, error) {
			if call == 1 {
				return -1, unix.ENOSPC
			}
			return real(fd, p, at)
		}, unix.ENOSPC},
		{"a broken disk", func(int, int, []byte, int64) (int, error) { return -1, unix.EIO }, unix.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			calls := 0
			pwriteDirect = func(fd int, p []byte, at int64) (int, error) {
				calls++
				return c.do(calls-1, fd, p, at)
			}
			name := filepath.Join(t.TempDir(), "a")
			f, err := Disk().CreateFile(name)
			must(t, err)
			p := make([]byte, 3<<20+77)
			for i := range p {
				p[i] = byte(i>>12) + byte(i)
			}
			const at = 1234
			n, err := f.WriteAround(p, at)
			if !errors.Is(err, c.want) || c.want == nil && n != len(p) {
				t.Errorf("%d bytes of %d, %v", n, len(p), err)
			}
			if calls == 0 {
				t.Skip("no direct writes on this file system")
			}
			must(t, f.Close())
			got, err := os.ReadFile(name)
			must(t, err)
			if len(got) < at+n || !bytes.Equal(got[at:at+n], p[:n]) {
				t.Errorf("of %d bytes that were said to be written the file holds %d, or others", n, max(0, len(got)-at))
			}
		})
	}
}
