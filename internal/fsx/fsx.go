// Package fsx is the file-system seam: every file that Headrace touches is reached through an FS.
//
// It extends Pebble's vfs, so that one simulated disk serves the log, the write-ahead log and Pebble
// together. Three things that vfs lacks are added: truncation of an open file, paced writeback of a
// range, and direct synced writes.
//
// Disk is the real file system. NewMem makes one in memory that can lose what was not synced (CrashClone).
// Inject puts a function before every operation of another FS, which may fail it or delay it. Watch keeps account of
// the operations in flight. Aligned gives
// page-aligned memory outside the Go heap for the buffers of direct and large writes.
package fsx

import (
	"github.com/cockroachdb/pebble/v2/vfs"
)

// PageSize is the unit of direct writes, and of what a crash keeps or loses.
const PageSize = 4096

// Category labels our writes in Pebble's disk statistics.
const Category = vfs.WriteCategoryUnspecified

// File is an open file. Methods of different goroutines may overlap as with os.File.
type File interface {
	vfs.File

	// Truncate changes the size of the file. It is not durable until Sync.
	Truncate(size int64) error

	// WriteBack asks the system to start writing [offset, offset+length) to the disk and returns at
	// once. It promises nothing about durability; it only keeps a later Sync short.
	WriteBack(offset, length int64) error

	// WriteAround is WriteAt for bytes that nobody is expected to read soon: where the file system can, they go to
	// the disk past the page cache and take no memory of it. What is not a whole page, and all of a small p, is
	// written as by WriteAt, with WriteBack behind it. It is as durable as WriteAt: not before Sync. p may be
	// anywhere in memory.
	WriteAround(p []byte, offset int64) (int, error)
}

// FS is a vfs.FS whose files are Files.
type FS interface {
	vfs.FS

	// CreateFile creates or truncates name for reading and writing.
	CreateFile(name string) (File, error)

	// OpenFile opens an existing file for reading and writing and changes none of its bytes.
	OpenFile(name string) (File, error)

	// OpenDirect opens an existing file for writes that are durable when WriteAt returns and that leave
	// no copy in the page cache. Memory, position and length must be multiples of PageSize. File systems
	// that cannot do it return an error that is errors.ErrUnsupported.
	OpenDirect(name string) (File, error)

	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
}
