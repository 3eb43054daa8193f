package fsx

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A PatientFS keeps a full disk away from whoever uses it: a write that finds no space waits and is tried again until
// there is some or Hurry is called. Everything else passes. It is for Pebble, which would spin on a full disk, or give
// up for good.
//
// Until Patient is called, a full disk is an error like any other: what is being opened had better say so.
type PatientFS struct {
	vfs.FS
	o PatientOptions

	patient atomic.Bool
	stop    chan struct{}
	once    sync.Once
	waiting atomic.Int64
	gaveUp  atomic.Bool
}

// PatientOptions of a PatientFS.
type PatientOptions struct {
	// Delay is the pause between attempts; default 500 ms.
	Delay time.Duration
	// State is called with the error when a write begins to wait, and with nil when none waits any more. It may be
	// called by several goroutines at once. nil: nobody is told.
	State func(error)
	// Full is called before each pause: it may make room. nil: nobody can.
	Full func()
}

// NewPatient returns fs, not patient yet.
func NewPatient(fs vfs.FS, o PatientOptions) *PatientFS {
	if o.Delay <= 0 {
		o.Delay = 500 * time.Millisecond
	}
	if o.State == nil {
		o.State = func(error) {}
	}
	return &PatientFS{FS: fs, o: o, stop: make(chan struct{})}
}

// Patient makes writes wait for space from now on.
func (f *PatientFS) Patient() { f.patient.Store(true) }

// Hurry ends all waiting, for good: writes on a full disk fail.
func (f *PatientFS) Hurry() { f.once.Do(func() { close(f.stop) }) }

// Broken reports that a write was left waiting or was given up: Pebble cannot be relied on to close.
func (f *PatientFS) Broken() bool { return f.gaveUp.Load() || f.waiting.Load() > 0 }

// retry calls do until it does not fail for want of space.
func (f *PatientFS) retry(do func() error) error {
	err := do()
	if !errors.Is(err, syscall.ENOSPC) || !f.patient.Load() {
		return err
	}
	f.waiting.Add(1)
	for errors.Is(err, syscall.ENOSPC) {
		f.o.State(err)
		if f.o.Full != nil {
			f.o.Full()
		}
		t := time.NewTimer(f.o.Delay)
		select {
		case <-f.stop:
			t.Stop()
			f.gaveUp.Store(true)
			f.waiting.Add(-1)
			return err
		case <-t.C:
		}
		err = do()
	}
	if f.waiting.Add(-1) == 0 {
		f.o.State(nil)
	}
	return err
}

func (f *PatientFS) open(do func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.retry(func() error {
		file, err = do()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &patientFile{File: file, fs: f}, nil
}

// Create implements vfs.FS. The name of a manifest is durable when it returns: Pebble makes durable a marker that names
// the manifest, in the same directory, and relies on the sync of the manifest's bytes for its name, which is more than
// a file system must do.
func (f *PatientFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.open(func() (vfs.File, error) { return f.FS.Create(name, c) })
	if err != nil || !strings.HasPrefix(f.PathBase(name), "MANIFEST-") {
		return file, err
	}
	if err := f.syncDir(f.PathDir(name)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (f *PatientFS) syncDir(name string) error {
	dir, err := f.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// OpenReadWrite implements vfs.FS.
func (f *PatientFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

// ReuseForWrite implements vfs.FS.
func (f *PatientFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

// Unwrap implements vfs.FS.
func (f *PatientFS) Unwrap() vfs.FS { return f.FS }

type patientFile struct {
	vfs.File
	fs *PatientFS
}

func (f *patientFile) Write(p []byte) (n int, err error) {
	err = f.fs.retry(func() error {
		k, err := f.File.Write(p[n:])
		n += k
		return err
	})
	return n, err
}

func (f *patientFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.fs.retry(func() error {
		k, err := f.File.WriteAt(p[n:], off+int64(n))
		n += k
		return err
	})
	return n, err
}

// Preallocate only saves time later, so a full disk is no error.
func (f *patientFile) Preallocate(off, length int64) error {
	if err := f.File.Preallocate(off, length); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}
