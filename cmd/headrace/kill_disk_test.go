package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// A smallDisk is where the servers that are killed keep their data: a file system of its own, so small that it fills up,
// or an ordinary directory where the machine does not allow one.
type smallDisk struct {
	dir  string
	root *os.File // of the file system; nil: an ordinary directory, which cannot be filled
}

// newSmallDisk makes an ext4 file system of so many bytes in a file. It is mounted and detached at once: all that holds
// it is a descriptor of this process, so nothing of it is left behind whatever becomes of the test.
func newSmallDisk(t *testing.T, bytes int64) *smallDisk {
	t.Helper()
	plain := &smallDisk{dir: t.TempDir()}
	if os.Geteuid() != 0 {
		t.Log("skipped: a small file system that fills up (needs root)")
		return plain
	}
	image, at := filepath.Join(plain.dir, "image"), filepath.Join(plain.dir, "mnt")
	root, err := mountImage(image, at, bytes)
	if err != nil {
		t.Logf("skipped: a small file system that fills up (%v)", err)
		return plain
	}
	t.Cleanup(func() { _ = root.Close() })
	link := filepath.Join(plain.dir, "disk")
	if err := os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root.Fd()), link); err != nil {
		t.Fatal(err)
	}
	return &smallDisk{dir: link, root: root}
}

func mountImage(image, at string, bytes int64) (root *os.File, err error) {
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	defer os.Remove(image) // the mount keeps its blocks
	if err := errors.Join(f.Truncate(bytes), f.Close(), os.Mkdir(at, 0o755)); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	root, err = os.Open(at)
	if out, uerr := exec.Command("umount", "-l", at).CombinedOutput(); uerr != nil {
		err = errors.Join(err, fmt.Errorf("umount: %w: %s", uerr, out))
	}
	return root, err
}

func (d *smallDisk) free() (bytes int64) {
	var s syscall.Statfs_t
	if syscall.Statfs(d.dir, &s) != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

// fill takes all space but keep bytes, with a file that empty removes.
func (d *smallDisk) fill(keep int64) error {
	f, err := os.Create(filepath.Join(d.dir, "ballast"))
	if err != nil {
		return err
	}
	defer f.Close()
	for take := d.free() - keep; take > 0; take -= max(1<<20, take/8) { // others take some in between
		if err = syscall.Fallocate(int(f.Fd()), 0, 0, take); !errors.Is(err, syscall.ENOSPC) {
			return err
		}
	}
	return nil
}

func (d *smallDisk) empty() { _ = os.Remove(filepath.Join(d.dir, "ballast")) } // it may not be there
