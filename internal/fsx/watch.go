package fsx

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A WatchFS keeps account of the operations in flight on another FS, so that a watchdog sees a disk that hangs whoever
// waits for it. What only asks about an open file is not counted. Its methods may be called by any goroutine.
//
// The account costs two locks of a few instructions per operation, and no memory once as many operations as are in
// flight together have been.
type WatchFS struct {
	fs  FS
	now func() int64
	mu  struct {
		sync.Mutex
		first, last *flying // by their start
		free        *flying // linked by next
		count       uint64
	}
}

// A Pending is an operation that has not returned.
type Pending struct {
	ID   uint64 // counts the operations: of two, the one that began later has the larger one
	Op   Op
	Name string // of the file; after a rename or link, the new one
	Age  time.Duration
}

// String is the operation and the file's name.
func (p Pending) String() string { return p.Op.String() + " " + p.Name }

type flying struct {
	next, prev *flying
	id         uint64
	op         Op
	name       string
	start      int64
}

// Watch returns fs with an account of its operations. now is a monotonic clock in ns; nil: the machine's.
func Watch(fs FS, now func() int64) *WatchFS {
	if now == nil {
		start := time.Now()
		now = func() int64 { return int64(time.Since(start)) }
	}
	return &WatchFS{fs: fs, now: now}
}

// Pending appends the operations to buf that have been in flight for least or longer, oldest first.
func (w *WatchFS) Pending(least time.Duration, buf []Pending) []Pending {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.first == nil {
		return buf
	}
	now := w.now()
	for f := w.mu.first; f != nil; f = f.next {
		age := time.Duration(now - f.start)
		if age < least {
			break
		}
		buf = append(buf, Pending{f.id, f.op, f.name, age})
	}
	return buf
}

// begin enters an operation; end takes it out.
func (w *WatchFS) begin(op Op, name string) *flying {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.mu.free
	if f == nil {
		f = new(flying)
	} else {
		w.mu.free = f.next
	}
	w.mu.count++
	*f = flying{prev: w.mu.last, id: w.mu.count, op: op, name: name, start: w.now()}
	if f.prev == nil {
		w.mu.first = f
	} else {
		f.prev.next = f
	}
	w.mu.last = f
	return f
}

func (w *WatchFS) end(f *flying) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.prev == nil {
		w.mu.first = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		w.mu.last = f.prev
	} else {
		f.next.prev = f.prev
	}
	*f = flying{next: w.mu.free}
	w.mu.free = f
}

func (w *WatchFS) file(f vfs.File, name string, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &watchFile{File: f, fs: w, name: name}, nil
}

func (w *WatchFS) own(f File, name string, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &watchFile{File: f, own: f, fs: w, name: name}, nil
}

// CreateFile implements FS.
func (w *WatchFS) CreateFile(name string) (File, error) {
	defer w.end(w.begin(OpCreate, name))
	f, err := w.fs.CreateFile(name)
	return w.own(f, name, err)
}

// OpenFile implements FS.
func (w *WatchFS) OpenFile(name string) (File, error) {
	defer w.end(w.begin(OpOpen, name))
	f, err := w.fs.OpenFile(name)
	return w.own(f, name, err)
}

// OpenDirect implements FS.
func (w *WatchFS) OpenDirect(name string) (File, error) {
	defer w.end(w.begin(OpOpen, name))
	f, err := w.fs.OpenDirect(name)
	return w.own(f, name, err)
}

// SyncDir implements FS.
func (w *WatchFS) SyncDir(name string) error {
	defer w.end(w.begin(OpSyncDir, name))
	return w.fs.SyncDir(name)
}

// Create implements vfs.FS.
func (w *WatchFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer w.end(w.begin(OpCreate, name))
	f, err := w.fs.Create(name, c)
	return w.file(f, name, err)
}

// Link implements vfs.FS.
func (w *WatchFS) Link(oldname, newname string) error {
	defer w.end(w.begin(OpLink, newname))
	return w.fs.Link(oldname, newname)
}

// Open implements vfs.FS.
func (w *WatchFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	defer w.end(w.begin(OpOpen, name))
	f, err := w.fs.Open(name, opts...)
	return w.file(f, name, err)
}

// OpenReadWrite implements vfs.FS.
func (w *WatchFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	defer w.end(w.begin(OpOpen, name))
	f, err := w.fs.OpenReadWrite(name, c, opts...)
	return w.file(f, name, err)
}

// OpenDir implements vfs.FS.
func (w *WatchFS) OpenDir(name string) (vfs.File, error) {
	defer w.end(w.begin(OpOpen, name))
	f, err := w.fs.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &watchFile{File: f, fs: w, name: name, dir: true}, nil
}

// Remove implements vfs.FS.
func (w *WatchFS) Remove(name string) error {
	defer w.end(w.begin(OpRemove, name))
	return w.fs.Remove(name)
}

// RemoveAll implements vfs.FS.
func (w *WatchFS) RemoveAll(name string) error {
	defer w.end(w.begin(OpRemove, name))
	return w.fs.RemoveAll(name)
}

// Rename implements vfs.FS.
func (w *WatchFS) Rename(oldname, newname string) error {
	defer w.end(w.begin(OpRename, newname))
	return w.fs.Rename(oldname, newname)
}

// ReuseForWrite implements vfs.FS.
func (w *WatchFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	defer w.end(w.begin(OpRename, newname))
	f, err := w.fs.ReuseForWrite(oldname, newname, c)
	return w.file(f, newname, err)
}

// MkdirAll implements vfs.FS.
func (w *WatchFS) MkdirAll(dir string, perm os.FileMode) error {
	defer w.end(w.begin(OpMkdir, dir))
	return w.fs.MkdirAll(dir, perm)
}

// Lock implements vfs.FS.
func (w *WatchFS) Lock(name string) (io.Closer, error) {
	defer w.end(w.begin(OpLock, name))
	return w.fs.Lock(name)
}

// List implements vfs.FS.
func (w *WatchFS) List(dir string) ([]string, error) {
	defer w.end(w.begin(OpList, dir))
	return w.fs.List(dir)
}

// Stat implements vfs.FS.
func (w *WatchFS) Stat(name string) (vfs.FileInfo, error) {
	defer w.end(w.begin(OpStat, name))
	return w.fs.Stat(name)
}

// GetDiskUsage implements vfs.FS.
func (w *WatchFS) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	defer w.end(w.begin(OpStat, path))
	return w.fs.GetDiskUsage(path)
}

// PathBase implements vfs.FS.
func (w *WatchFS) PathBase(p string) string { return w.fs.PathBase(p) }

// PathJoin implements vfs.FS.
func (w *WatchFS) PathJoin(elem ...string) string { return w.fs.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (w *WatchFS) PathDir(p string) string { return w.fs.PathDir(p) }

// Unwrap implements vfs.FS.
func (w *WatchFS) Unwrap() vfs.FS { return w.fs }

// A watchFile enters its operations. own is nil for files that Pebble opened, which have no methods of ours.
type watchFile struct {
	vfs.File
	own  File
	fs   *WatchFS
	name string
	dir  bool
}

func (f *watchFile) Close() error {
	defer f.fs.end(f.fs.begin(OpClose, f.name)) // the last close of a removed file gives its space back
	return f.File.Close()
}

func (f *watchFile) Read(p []byte) (int, error) {
	defer f.fs.end(f.fs.begin(OpRead, f.name))
	return f.File.Read(p)
}

func (f *watchFile) ReadAt(p []byte, off int64) (int, error) {
	defer f.fs.end(f.fs.begin(OpRead, f.name))
	return f.File.ReadAt(p, off)
}

func (f *watchFile) Prefetch(offset, length int64) error {
	defer f.fs.end(f.fs.begin(OpRead, f.name))
	return f.File.Prefetch(offset, length)
}

func (f *watchFile) Write(p []byte) (int, error) {
	defer f.fs.end(f.fs.begin(OpWrite, f.name))
	return f.File.Write(p)
}

func (f *watchFile) WriteAt(p []byte, off int64) (int, error) {
	defer f.fs.end(f.fs.begin(OpWrite, f.name))
	return f.File.WriteAt(p, off)
}

func (f *watchFile) Preallocate(offset, length int64) error {
	defer f.fs.end(f.fs.begin(OpPreallocate, f.name))
	return f.File.Preallocate(offset, length)
}

func (f *watchFile) syncing() *flying {
	if f.dir {
		return f.fs.begin(OpSyncDir, f.name)
	}
	return f.fs.begin(OpSync, f.name)
}

func (f *watchFile) Sync() error {
	defer f.fs.end(f.syncing())
	return f.File.Sync()
}

func (f *watchFile) SyncData() error {
	defer f.fs.end(f.syncing())
	return f.File.SyncData()
}

func (f *watchFile) SyncTo(length int64) (bool, error) {
	defer f.fs.end(f.syncing())
	return f.File.SyncTo(length)
}

func (f *watchFile) Truncate(size int64) error {
	defer f.fs.end(f.fs.begin(OpTruncate, f.name))
	return f.own.Truncate(size)
}

// WriteBack blocks when the device's queue is full.
func (f *watchFile) WriteBack(offset, length int64) error {
	defer f.fs.end(f.fs.begin(OpWrite, f.name))
	return f.own.WriteBack(offset, length)
}

func (f *watchFile) WriteAround(p []byte, offset int64) (int, error) {
	defer f.fs.end(f.fs.begin(OpWrite, f.name))
	return f.own.WriteAround(p, offset)
}
