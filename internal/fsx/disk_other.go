//go:build !linux

package fsx

import "errors"

var errUnsupported = errors.ErrUnsupported

const directFlags = 0

func (f *diskFile) SyncData() error                { return f.Sync() }
func (f *diskFile) Preallocate(int64, int64) error { return nil }
func (f *diskFile) Prefetch(int64, int64) error    { return nil }
func (f *diskFile) WriteBack(int64, int64) error   { return nil }

type around struct{}

func (around) close() error { return nil }

func (f *diskFile) WriteAround(p []byte, offset int64) (int, error) { return f.WriteAt(p, offset) }
