package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// openDB opens Pebble: without its own log, because it is a cache of the shard's log, and small at rest.
func (s *Store) openDB() error {
	s.kvfs = &patientFS{FS: s.opts.FS, delay: s.opts.RetryDelay, state: s.setDegraded, stop: make(chan struct{})}
	cache := pebble.NewCache(s.opts.BlockCacheBytes)
	defer cache.Unref()
	db, err := pebble.Open(s.path("kv"), &pebble.Options{
		FS:                          s.kvfs,
		DisableWAL:                  true,
		Cache:                       cache,
		MemTableSize:                uint64(s.opts.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		MaxOpenFiles:                128,
		FormatMajorVersion:          pebble.FormatColumnarBlocks,
		Logger:                      &kvLogger{s: s, log: s.opts.Logger},
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", s.path("kv"), s.kvError(err))
	}
	s.db = db
	return nil
}

func (s *Store) closeDB() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", s.path("kv"), err)
	}
	return nil
}

// kvError makes what Pebble says about damage an ErrCorrupt.
func (s *Store) kvError(err error) error {
	if err != nil && (errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errRow)) {
		return s.corrupt(&CorruptError{Path: "kv", Position: -1, Err: fmt.Errorf("%w: %w", ErrCorrupt, err)})
	}
	return err
}

// kvLogger is Pebble's logger. Pebble expects Fatalf not to return, and a library does not end the process:
// the goroutine ends instead and the store is poisoned.
type kvLogger struct {
	s   *Store
	log *slog.Logger
}

func (l *kvLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("pebble", "msg", fmt.Sprintf(format, args...))
	}
}

func (l *kvLogger) Errorf(format string, args ...any) {
	l.log.Error("pebble", "msg", fmt.Sprintf(format, args...))
}

func (l *kvLogger) Fatalf(format string, args ...any) {
	l.s.kvfs.fatal.Store(true)
	l.s.poison(fmt.Errorf("pebble: "+format, args...))
	goruntime.Goexit()
}

// patientFS keeps a full disk away from Pebble, which would spin or give up: a write that finds no space
// waits and is tried again until there is some or the store is closed. Everything else passes.
type patientFS struct {
	vfs.FS
	delay   time.Duration
	state   func(error)
	stop    chan struct{}
	once    sync.Once
	waiting atomic.Int64
	gaveUp  atomic.Bool
	fatal   atomic.Bool
}

// hurry ends all waiting.
func (f *patientFS) hurry() { f.once.Do(func() { close(f.stop) }) }

// broken reports that Pebble cannot be closed any more.
func (f *patientFS) broken() bool { return f.fatal.Load() || f.gaveUp.Load() || f.waiting.Load() > 0 }

// retry calls do until it does not fail for want of space.
func (f *patientFS) retry(do func() error) error {
	err := do()
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	for errors.Is(err, syscall.ENOSPC) {
		f.state(err)
		select {
		case <-f.stop:
			f.gaveUp.Store(true)
			return err
		case <-time.After(f.delay):
		}
		err = do()
	}
	if err == nil {
		f.state(nil)
	}
	return err
}

func (f *patientFS) open(do func() (vfs.File, error)) (file vfs.File, err error) {
	err = f.retry(func() error {
		file, err = do()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &patientFile{File: file, fs: f}, nil
}

func (f *patientFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.Create(name, c) })
}

func (f *patientFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f *patientFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

func (f *patientFS) Unwrap() vfs.FS { return f.FS }

type patientFile struct {
	vfs.File
	fs *patientFS
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
