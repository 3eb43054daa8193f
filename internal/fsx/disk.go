package fsx

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Disk is the operating system's file system.
func Disk() FS { return diskFS{vfs.Default} }

// diskFS is vfs.Default plus what it lacks. Its own files are diskFiles; those that Pebble opens stay Pebble's.
type diskFS struct{ vfs.FS }

func (diskFS) CreateFile(name string) (File, error) {
	return openDisk(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (diskFS) OpenFile(name string) (File, error) { return openDisk(name, os.O_RDWR) }

func (diskFS) OpenDirect(name string) (File, error) {
	if directFlags == 0 {
		return nil, fmt.Errorf("fsx: direct writes to %s: %w", name, errUnsupported)
	}
	f, err := openDisk(name, os.O_RDWR|directFlags)
	if pe, ok := err.(*os.PathError); ok && pe.Err == syscall.EINVAL {
		return nil, fmt.Errorf("fsx: direct writes to %s: %w", name, errUnsupported)
	}
	return f, err
}

func (diskFS) SyncDir(name string) error {
	d, err := os.Open(filepath.Clean(name))
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

func openDisk(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_CLOEXEC, 0o666)
	if err != nil {
		return nil, err
	}
	return &diskFile{File: f, fd: int(f.Fd())}, nil
}

// A diskFile is an os.File with the methods of vfs.File. The system-dependent ones are in disk_linux.go.
type diskFile struct {
	*os.File
	fd int
	around
}

func (f *diskFile) Close() error {
	err := f.around.close()
	if cerr := f.File.Close(); err == nil {
		err = cerr
	}
	return err
}

func (f *diskFile) Stat() (vfs.FileInfo, error) {
	fi, err := f.File.Stat()
	if err != nil {
		return nil, err
	}
	return fileInfo{fi}, nil
}

// SyncTo syncs everything, which vfs allows.
func (f *diskFile) SyncTo(int64) (bool, error) { return true, f.SyncData() }

// fileInfo adds the device, which nobody asks our files for, to os.FileInfo.
type fileInfo struct{ os.FileInfo }

func (fileInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
