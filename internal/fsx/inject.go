package fsx

import (
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// An Op is a kind of file-system operation, for Inject and Watch.
type Op uint8

// The kinds of operations.
const (
	OpCreate Op = iota + 1
	OpOpen
	OpRead
	OpWrite
	OpSync
	OpSyncDir
	OpTruncate
	OpPreallocate
	OpRename
	OpLink
	OpRemove
	OpMkdir
	OpList
	OpStat
	OpLock
	OpClose // Watch only
)

// String is the operation's name.
func (o Op) String() string {
	names := [...]string{
		"none", "create", "open", "read", "write", "sync", "syncdir", "truncate", "preallocate", "rename", "link",
		"remove", "mkdir", "list", "stat", "lock", "close",
	}
	if int(o) < len(names) {
		return names[o]
	}
	return "unknown"
}

// Inject returns fs with before called ahead of every operation, with the kind and the name of the file. When
// before returns an error the operation fails with it and is not performed; a slow disk is a before that takes its
// time. It may be called from several goroutines at once.
func Inject(fs FS, before func(op Op, name string) error) FS {
	return &injectFS{fs: fs, before: before}
}

type injectFS struct {
	fs     FS
	before func(Op, string) error
}

// file wraps what an inner open returned.
func (i *injectFS) file(f vfs.File, name string, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &injectFile{File: f, fs: i, name: name}, nil
}

func (i *injectFS) own(f File, name string, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &injectFile{File: f, own: f, fs: i, name: name}, nil
}

func (i *injectFS) CreateFile(name string) (File, error) {
	if err := i.before(OpCreate, name); err != nil {
		return nil, err
	}
	f, err := i.fs.CreateFile(name)
	return i.own(f, name, err)
}

func (i *injectFS) OpenFile(name string) (File, error) {
	if err := i.before(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.OpenFile(name)
	return i.own(f, name, err)
}

func (i *injectFS) OpenDirect(name string) (File, error) {
	if err := i.before(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.OpenDirect(name)
	return i.own(f, name, err)
}

func (i *injectFS) SyncDir(name string) error {
	if err := i.before(OpSyncDir, name); err != nil {
		return err
	}
	return i.fs.SyncDir(name)
}

func (i *injectFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := i.before(OpCreate, name); err != nil {
		return nil, err
	}
	f, err := i.fs.Create(name, c)
	return i.file(f, name, err)
}

func (i *injectFS) Link(oldname, newname string) error {
	if err := i.before(OpLink, newname); err != nil {
		return err
	}
	return i.fs.Link(oldname, newname)
}

func (i *injectFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := i.before(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.Open(name, opts...)
	return i.file(f, name, err)
}

func (i *injectFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := i.before(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.OpenReadWrite(name, c, opts...)
	return i.file(f, name, err)
}

func (i *injectFS) OpenDir(name string) (vfs.File, error) {
	if err := i.before(OpOpen, name); err != nil {
		return nil, err
	}
	f, err := i.fs.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &injectFile{File: f, fs: i, name: name, dir: true}, nil
}

func (i *injectFS) Remove(name string) error {
	if err := i.before(OpRemove, name); err != nil {
		return err
	}
	return i.fs.Remove(name)
}

func (i *injectFS) RemoveAll(name string) error {
	if err := i.before(OpRemove, name); err != nil {
		return err
	}
	return i.fs.RemoveAll(name)
}

func (i *injectFS) Rename(oldname, newname string) error {
	if err := i.before(OpRename, newname); err != nil {
		return err
	}
	return i.fs.Rename(oldname, newname)
}

func (i *injectFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := i.before(OpRename, newname); err != nil {
		return nil, err
	}
	f, err := i.fs.ReuseForWrite(oldname, newname, c)
	return i.file(f, newname, err)
}

func (i *injectFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := i.before(OpMkdir, dir); err != nil {
		return err
	}
	return i.fs.MkdirAll(dir, perm)
}

func (i *injectFS) Lock(name string) (io.Closer, error) {
	if err := i.before(OpLock, name); err != nil {
		return nil, err
	}
	return i.fs.Lock(name)
}

func (i *injectFS) List(dir string) ([]string, error) {
	if err := i.before(OpList, dir); err != nil {
		return nil, err
	}
	return i.fs.List(dir)
}

func (i *injectFS) Stat(name string) (vfs.FileInfo, error) {
	if err := i.before(OpStat, name); err != nil {
		return nil, err
	}
	return i.fs.Stat(name)
}

func (i *injectFS) PathBase(p string) string       { return i.fs.PathBase(p) }
func (i *injectFS) PathJoin(elem ...string) string { return i.fs.PathJoin(elem...) }
func (i *injectFS) PathDir(p string) string        { return i.fs.PathDir(p) }
func (i *injectFS) Unwrap() vfs.FS                 { return i.fs }

func (i *injectFS) GetDiskUsage(path string) (vfs.DiskUsage, error) { return i.fs.GetDiskUsage(path) }

// An injectFile calls before ahead of its operations. own is nil for files that Pebble opened, which have no
// methods of ours.
type injectFile struct {
	vfs.File
	own  File
	fs   *injectFS
	name string
	dir  bool
}

func (f *injectFile) Read(p []byte) (int, error) {
	if err := f.fs.before(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *injectFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.before(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *injectFile) Write(p []byte) (int, error) {
	if err := f.fs.before(OpWrite, f.name); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *injectFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.before(OpWrite, f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *injectFile) Preallocate(offset, length int64) error {
	if err := f.fs.before(OpPreallocate, f.name); err != nil {
		return err
	}
	return f.File.Preallocate(offset, length)
}

func (f *injectFile) sync() error {
	if f.dir {
		return f.fs.before(OpSyncDir, f.name)
	}
	return f.fs.before(OpSync, f.name)
}

func (f *injectFile) Sync() error {
	if err := f.sync(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *injectFile) SyncData() error {
	if err := f.sync(); err != nil {
		return err
	}
	return f.File.SyncData()
}

func (f *injectFile) SyncTo(length int64) (bool, error) {
	if err := f.sync(); err != nil {
		return false, err
	}
	return f.File.SyncTo(length)
}

// Fd hides the descriptor, so that nobody works around the injection.
func (f *injectFile) Fd() uintptr { return vfs.InvalidFd }

func (f *injectFile) Truncate(size int64) error {
	if err := f.fs.before(OpTruncate, f.name); err != nil {
		return err
	}
	return f.own.Truncate(size)
}

func (f *injectFile) WriteBack(offset, length int64) error { return f.own.WriteBack(offset, length) }

func (f *injectFile) WriteAround(p []byte, offset int64) (int, error) { return f.WriteAt(p, offset) }
