//go:build linux

package fsx

import (
	"errors"

	"golang.org/x/sys/unix"
)

var errUnsupported = errors.ErrUnsupported

const directFlags = unix.O_DIRECT | unix.O_DSYNC

func (f *diskFile) SyncData() error { return retry(func() error { return unix.Fdatasync(f.fd) }) }

func (f *diskFile) Preallocate(offset, length int64) error {
	err := retry(func() error { return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, offset, length) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func (f *diskFile) Prefetch(offset, length int64) error {
	return unix.Fadvise(f.fd, offset, length, unix.FADV_WILLNEED)
}

func (f *diskFile) WriteBack(offset, length int64) error {
	err := unix.SyncFileRange(f.fd, offset, length, unix.SYNC_FILE_RANGE_WRITE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) {
		return nil
	}
	return err
}

// retry repeats calls that a signal interrupted. An interrupted sync has not failed.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
