package fsx

import "io"

// Unlocked is fs without file locks, for who holds a lock on all of it already.
func Unlocked(fs FS) FS { return unlockedFS{fs} }

type unlockedFS struct{ FS }

func (unlockedFS) Lock(string) (io.Closer, error) { return noLock{}, nil }

type noLock struct{}

func (noLock) Close() error { return nil }
