// Package fsx is the file-system seam: every file that Headrace touches is reached through an FS.
//
// It extends Pebble's vfs, so that one simulated disk serves the log, the write-ahead log and Pebble
// together. Three things that vfs lacks are added: truncation of an open file, paced writeback of a
// range, and direct synced writes.
package fsx

import (
	"github.com/cockroachdb/pebble/v2/vfs"
)

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
}

// FS is a vfs.FS whose files are Files.
type FS interface {
	vfs.FS

	// CreateFile creates or truncates name for reading and writing.
	CreateFile(name string) (File, error)

	// OpenFile opens an existing file for reading and writing and changes none of its bytes.
	OpenFile(name string) (File, error)

	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
}
