package log

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
)

// openDB opens Pebble: without its own log, because it is a cache of the shard's log, and small at rest.
func (s *Store) openDB() error {
	s.kvfs = fsx.NewPatient(s.opts.FS, fsx.PatientOptions{
		Delay: s.opts.RetryDelay, State: func(err error) { s.setDegraded(troubleKV, err) }, Full: s.makeRoom,
	})
	cache := pebble.NewCache(s.opts.BlockCacheBytes)
	defer cache.Unref()
	db, err := pebble.Open(s.path("kv"), &pebble.Options{
		FS:                          s.kvfs,
		DisableWAL:                  true,
		ReadOnly:                    s.opts.readOnly,
		Cache:                       cache,
		MemTableSize:                uint64(s.opts.MemTableBytes),
		MemTableStopWritesThreshold: 4,
		// With many partitions each round touches keys all over. Fewer and larger compactions write a row two or three
		// times instead of ten; that was half of the store's processor time with 10,000 active partitions.
		L0CompactionThreshold: 16,
		L0StopWritesThreshold: 100,
		LBaseMaxBytes:         256 << 20,
		MaxOpenFiles:          128,
		FormatMajorVersion:    pebble.FormatColumnarBlocks,
		Logger:                &kvLogger{s: s, log: s.opts.Logger},
	})
	if err != nil {
		if err = s.kvError(err); kvDamage(err) && !errors.Is(err, ErrCorrupt) {
			err = fmt.Errorf("%w: %w", ErrCorrupt, err) // Pebble does not call all of it corruption
		}
		return fmt.Errorf("open %s: %w", s.path("kv"), err)
	}
	s.db = db
	s.kvfs.Patient()
	return nil
}

// kvGone is the error of a call that Pebble has ended: what it met, as damage of the rows unless it is a full disk.
func (s *Store) kvGone() error {
	if err := s.poisonedErr(); errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("open %s: %w", s.path("kv"), err)
	}
	return s.corrupt(&CorruptError{Path: "kv", Position: -1, Err: fmt.Errorf("%w: %w", ErrCorrupt, s.poisonedErr())})
}

// flushDB makes what Pebble holds durable. On a full disk it waits for space, but not beyond ctx or the store's end.
func (s *Store) flushDB(ctx context.Context) error {
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return s.kvError(err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.poisoned:
		return s.poisonedErr()
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) closeDB() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", s.path("kv"), err)
	}
	return nil
}

// kvError makes what Pebble says about damage an ErrCorrupt.
func (s *Store) kvError(err error) error {
	if err != nil && !errors.Is(err, ErrCorrupt) && (errors.Is(err, pebble.ErrCorruption) || errors.Is(err, errRow)) {
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
	l.s.kvFatal.Store(true)
	l.s.poison(fsx.Fatal("pebble: "+format, args...))
	goruntime.Goexit()
}
