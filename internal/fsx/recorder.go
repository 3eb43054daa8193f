package fsx

import (
	"bytes"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A Recorder is a file system that passes everything on to another one and writes down, in order, what changes it:
// new names, writes with their bytes, cuts, syncs of files and of directories, renames, links, removals. Marks put
// between them say what somebody outside had been told by then. Recording gives the list, from which Images makes
// what a crash at any of its places can leave.
//
// An operation and its note are one step, so the order of the list is the order of the effects; operations that
// change something therefore wait for each other. Reads do not. Every byte written is kept in memory until the
// Recorder is let go: it is for workloads of some megabytes. All methods may be called from any goroutine.
type Recorder struct {
	fs FS

	mu   sync.Mutex
	base *Mem // what was there at the beginning
	ops  []recorded
	tree tree // the names as they are now
}

var _ FS = (*Recorder)(nil)

// An inode is a file or directory, whatever names it has. The root is 1.
type inode int

const rootInode inode = 1

// A tree is the names of a file system.
type tree struct {
	dirs map[inode]map[string]inode
	last inode
}

// A recorded is one operation that changed something, or a mark.
type recorded struct {
	op     Op    // opMark: a mark
	direct bool  // of a sync: of these bytes only
	dir    bool  // the entry is a directory
	node   inode // what is written, cut or synced; the directory whose entry changes
	child  inode // the entry
	name   string
	from   string // of a rename within the directory: the name it takes away
	move   int    // not 0: half of a rename across directories; the halves, one behind the other, have the same
	off    int64
	length int64  // bytes written, or the new size
	data   []byte // nil: zeros
	mark   any
}

const opMark Op = 0

// Record returns a Recorder over fs. If fs is a Mem, what it holds is what the recording begins with, all of it
// durable; otherwise fs must be empty.
func Record(fs FS) *Recorder {
	r := &Recorder{fs: fs, base: NewMem(), tree: tree{dirs: map[inode]map[string]inode{}, last: rootInode}}
	if m, ok := fs.(*Mem); ok {
		r.base = m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100})
	}
	number(r.base.root, rootInode, &r.tree, map[*memNode]inode{})
	return r
}

// number gives the nodes below a directory their inodes, in an order that depends on the names alone.
func number(n *memNode, as inode, t *tree, known map[*memNode]inode) {
	entries := map[string]inode{}
	t.dirs[as] = entries
	for _, name := range sortedKeys(n.children) {
		child := n.children[name]
		id, ok := known[child]
		if !ok {
			t.last++
			id = t.last
			known[child] = id
			if child.dir {
				number(child, id, t, known)
			}
		}
		entries[name] = id
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Mark notes what is known outside from here on, such as the last thing that was acknowledged. Images carry the last
// mark before them. The value must not change afterwards.
func (r *Recorder) Mark(v any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, recorded{op: opMark, mark: v})
}

// MarkWith is Mark with a value taken while no operation is under way.
func (r *Recorder) MarkWith(v func() any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, recorded{op: opMark, mark: v()})
}

// Recording returns what was recorded so far. It does not change any more.
func (r *Recorder) Recording() *Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Recording{base: r.base, ops: slices.Clone(r.ops)}
}

// A Recording is a list of operations and what was there before them.
type Recording struct {
	base *Mem
	ops  []recorded
}

// Len is the number of operations, marks included.
func (r *Recording) Len() int { return len(r.ops) }

// lookup returns the inode of a path, 0 if there is none. r.mu is held, as for the methods below.
func (r *Recorder) lookup(name string) inode {
	at := rootInode
	for _, p := range parts(name) {
		entries, ok := r.tree.dirs[at]
		if !ok {
			return 0
		}
		if at = entries[p]; at == 0 {
			return 0
		}
	}
	return at
}

func (r *Recorder) parent(name string) (inode, string) {
	p := parts(name)
	if len(p) == 0 {
		return 0, ""
	}
	return r.lookup(strings.Join(p[:len(p)-1], "/")), p[len(p)-1]
}

// enter notes a new entry.
func (r *Recorder) enter(name string, child inode) inode {
	dir, base := r.parent(name)
	if child == 0 {
		r.tree.last++
		child = r.tree.last
	}
	r.tree.dirs[dir][base] = child
	r.ops = append(r.ops, recorded{op: OpCreate, node: dir, name: base, child: child})
	return child
}

func (r *Recorder) leave(name string) {
	dir, base := r.parent(name)
	if child := r.tree.dirs[dir][base]; child != 0 {
		delete(r.tree.dirs[dir], base)
		r.ops = append(r.ops, recorded{op: OpRemove, node: dir, name: base, child: child})
	}
}

func (r *Recorder) move(oldname, newname string) inode {
	from, oldBase := r.parent(oldname)
	to, newBase := r.parent(newname)
	child := r.tree.dirs[from][oldBase]
	if from == to && oldBase == newBase {
		return child
	}
	delete(r.tree.dirs[from], oldBase)
	r.tree.dirs[to][newBase] = child
	if from == to {
		r.ops = append(r.ops, recorded{op: OpRename, node: to, name: newBase, from: oldBase, child: child})
		return child
	}
	move := len(r.ops) + 1
	r.ops = append(r.ops,
		recorded{op: OpRename, node: to, name: newBase, child: child, move: move},
		recorded{op: OpRemove, node: from, name: oldBase, child: child, move: move})
	return child
}

func (r *Recorder) handle(f vfs.File, own File, node inode, name string) *recordedFile {
	_, dir := r.tree.dirs[node]
	return &recordedFile{File: f, own: own, r: r, node: node, name: name, dir: dir}
}

// CreateFile implements FS.
func (r *Recorder) CreateFile(name string) (File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.CreateFile(name)
	if err != nil {
		return nil, err
	}
	node := r.lookup(name)
	if node == 0 {
		node = r.enter(name, 0)
	} else {
		r.ops = append(r.ops, recorded{op: OpTruncate, node: node})
	}
	return r.handle(f, f, node, name), nil
}

// OpenFile implements FS.
func (r *Recorder) OpenFile(name string) (File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.OpenFile(name)
	if err != nil {
		return nil, err
	}
	return r.handle(f, f, r.lookup(name), name), nil
}

// OpenDirect implements FS.
func (r *Recorder) OpenDirect(name string) (File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.OpenDirect(name)
	if err != nil {
		return nil, err
	}
	h := r.handle(f, f, r.lookup(name), name)
	h.direct = true
	return h, nil
}

// SyncDir implements FS.
func (r *Recorder) SyncDir(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.SyncDir(name); err != nil {
		return err
	}
	r.ops = append(r.ops, recorded{op: OpSyncDir, node: r.lookup(name)})
	return nil
}

// Create implements vfs.FS: a file that was there is replaced by a new one.
func (r *Recorder) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.Create(name, c)
	if err != nil {
		return nil, err
	}
	return r.handle(f, nil, r.enter(name, 0), name), nil
}

// Link implements vfs.FS.
func (r *Recorder) Link(oldname, newname string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.Link(oldname, newname); err != nil {
		return err
	}
	r.enter(newname, r.lookup(oldname))
	return nil
}

// Open implements vfs.FS.
func (r *Recorder) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return r.handle(f, nil, r.lookup(name), name), nil
}

// OpenReadWrite implements vfs.FS.
func (r *Recorder) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	node := r.lookup(name)
	if node == 0 {
		node = r.enter(name, 0)
	}
	return r.handle(f, nil, node, name), nil
}

// OpenDir implements vfs.FS.
func (r *Recorder) OpenDir(name string) (vfs.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return r.handle(f, nil, r.lookup(name), name), nil
}

// Remove implements vfs.FS.
func (r *Recorder) Remove(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.Remove(name); err != nil {
		return err
	}
	r.leave(name)
	return nil
}

// RemoveAll implements vfs.FS. What lies below a directory goes with its name.
func (r *Recorder) RemoveAll(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.RemoveAll(name); err != nil {
		return err
	}
	r.leave(name)
	return nil
}

// Rename implements vfs.FS.
func (r *Recorder) Rename(oldname, newname string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.Rename(oldname, newname); err != nil {
		return err
	}
	r.move(oldname, newname)
	return nil
}

// ReuseForWrite implements vfs.FS.
func (r *Recorder) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.fs.ReuseForWrite(oldname, newname, c)
	if err != nil {
		return nil, err
	}
	return r.handle(f, nil, r.move(oldname, newname), newname), nil
}

// MkdirAll implements vfs.FS.
func (r *Recorder) MkdirAll(name string, perm os.FileMode) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fs.MkdirAll(name, perm); err != nil {
		return err
	}
	at := ""
	for _, p := range parts(name) {
		at = path.Join(at, p)
		if r.lookup(at) == 0 {
			r.tree.dirs[r.enter(at, 0)] = map[string]inode{}
			r.ops[len(r.ops)-1].dir = true
		}
	}
	return nil
}

// Lock implements vfs.FS.
func (r *Recorder) Lock(name string) (io.Closer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, err := r.fs.Lock(name)
	if err != nil {
		return nil, err
	}
	if r.lookup(name) == 0 {
		r.enter(name, 0)
	}
	return c, nil
}

// List implements vfs.FS.
func (r *Recorder) List(dir string) ([]string, error) { return r.fs.List(dir) }

// Stat implements vfs.FS.
func (r *Recorder) Stat(name string) (vfs.FileInfo, error) { return r.fs.Stat(name) }

// PathBase implements vfs.FS.
func (r *Recorder) PathBase(p string) string { return r.fs.PathBase(p) }

// PathJoin implements vfs.FS.
func (r *Recorder) PathJoin(elem ...string) string { return r.fs.PathJoin(elem...) }

// PathDir implements vfs.FS.
func (r *Recorder) PathDir(p string) string { return r.fs.PathDir(p) }

// Unwrap implements vfs.FS.
func (r *Recorder) Unwrap() vfs.FS { return r.fs }

// GetDiskUsage implements vfs.FS.
func (r *Recorder) GetDiskUsage(p string) (vfs.DiskUsage, error) { return r.fs.GetDiskUsage(p) }

// A recordedFile notes what changes a file. own is nil for files that Pebble opened, which have no methods of ours.
type recordedFile struct {
	vfs.File
	own    File
	r      *Recorder
	node   inode
	name   string
	dir    bool
	direct bool
	pos    int64 // of Read and Write
}

func (f *recordedFile) Read(p []byte) (int, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	n, err := f.File.Read(p)
	f.pos += int64(n)
	return n, err
}

func (f *recordedFile) Write(p []byte) (int, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	n, err := f.File.Write(p)
	f.wrote(p[:n], f.pos)
	f.pos += int64(n)
	return n, err
}

func (f *recordedFile) WriteAt(p []byte, off int64) (int, error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	n, err := f.File.WriteAt(p, off)
	f.wrote(p[:n], off)
	if f.direct && n > 0 {
		f.r.ops = append(f.r.ops, recorded{op: OpSync, direct: true, node: f.node, off: off, length: int64(n)})
	}
	return n, err
}

func (f *recordedFile) wrote(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	op := recorded{op: OpWrite, node: f.node, off: off, length: int64(len(p))}
	if !allZero(p) {
		op.data = bytes.Clone(p)
	}
	f.r.ops = append(f.r.ops, op)
}

func allZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeroPage))
		if !bytes.Equal(p[:n], zeroPage[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

var zeroPage [PageSize]byte

// Preallocate is passed on. It changes neither size nor bytes.
func (f *recordedFile) Preallocate(offset, length int64) error {
	return f.File.Preallocate(offset, length)
}

func (f *recordedFile) sync(do func() error) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if err := do(); err != nil {
		return err
	}
	op := OpSync
	if f.dir {
		op = OpSyncDir
	}
	f.r.ops = append(f.r.ops, recorded{op: op, node: f.node})
	return nil
}

func (f *recordedFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *recordedFile) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo promises what the file system below does: a partial sync is taken for none.
func (f *recordedFile) SyncTo(length int64) (full bool, err error) {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if full, err = f.File.SyncTo(length); full && err == nil {
		f.r.ops = append(f.r.ops, recorded{op: OpSync, node: f.node})
	}
	return full, err
}

// Fd hides the descriptor, so that nobody works around the recording.
func (f *recordedFile) Fd() uintptr { return vfs.InvalidFd }

func (f *recordedFile) Truncate(size int64) error {
	f.r.mu.Lock()
	defer f.r.mu.Unlock()
	if err := f.own.Truncate(size); err != nil {
		return err
	}
	f.r.ops = append(f.r.ops, recorded{op: OpTruncate, node: f.node, length: size})
	return nil
}

// WriteBack is passed on. It promises nothing, so a crash may or may not keep what it was about.
func (f *recordedFile) WriteBack(offset, length int64) error { return f.own.WriteBack(offset, length) }

func (f *recordedFile) WriteAround(p []byte, offset int64) (int, error) { return f.WriteAt(p, offset) }
