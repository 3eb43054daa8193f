package fsx

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// sectorSize is what a disk writes as a whole: a torn page is cut at multiples of it.
const sectorSize = 512

// A Mem is a file system in memory that remembers what was synced, so that CrashClone can give what a power cut
// leaves. It is used like Pebble's crashable MemFS, and differs from it in four ways: files can be truncated, a
// page may be torn in the middle, a sync costs what was written since the last one rather than the whole file, and
// names behave like those of a journaling file system:
//
//   - file data and directory entries become durable by their own Sync only, each;
//   - of what was not synced, a crash keeps each page and each new entry independently;
//   - a rename is atomic, the file is found under the old or the new name, and it is not kept when an earlier change
//     of the same file's name was lost;
//   - a removal is kept only together with everything done before it in its directory.
//
// All methods may be called from any goroutine.
type Mem struct {
	mu    sync.Mutex
	root  *memNode
	locks map[string]bool
}

var _ FS = (*Mem)(nil)

// NewMem returns an empty file system.
func NewMem() *Mem { return &Mem{root: newMemDir(), locks: map[string]bool{}} }

// A memNode is a file or a directory. Guarded by Mem.mu, except that pages are shared between clones: a page that is
// not in stale is never written in place.
type memNode struct {
	dir     bool
	modTime time.Time

	// Of a directory: what it holds, what was synced, and what happened since, in order.
	children map[string]*memNode
	synced   map[string]*memNode
	ops      []dirOp

	// Of a file: its pages (nil: zeros), and for each page changed since the last sync what was synced.
	pages      [][]byte
	size       int64
	stale      map[int][]byte
	lost       map[int]bool // of stale: a sync has failed to write them, and none will try again
	syncedSize int64
}

// A dirOp is a change of a directory that was not synced: node nil removes name.
type dirOp struct {
	name string
	node *memNode
	from string // the name that a rename within the directory takes away
	move *move  // a rename across directories: both halves share it
}

// A move is kept or lost as a whole; once its source directory was synced it is kept.
type move struct{ durable bool }

func newMemDir() *memNode { return &memNode{dir: true, children: map[string]*memNode{}} }

// CrashClone returns what a crash at this moment might leave: everything that was synced, and of the rest each page
// and each directory entry with a probability of cfg.UnsyncedDataPercent. At 0 nothing that was not synced is kept,
// at 100 everything; in between, some pages are torn at a 512-byte sector. The clone is independent of m, and
// everything in it is synced.
func (m *Mem) CrashClone(cfg vfs.CrashCloneCfg) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := cloner{percent: cfg.UnsyncedDataPercent, rng: cfg.RNG, nodes: map[*memNode]*memNode{}, moves: map[*move]bool{}}
	return &Mem{root: c.clone(m.root), locks: map[string]bool{}}
}

// PowerCut is a CrashClone that keeps nothing that was not synced.
func (m *Mem) PowerCut() *Mem { return m.CrashClone(vfs.CrashCloneCfg{}) }

type cloner struct {
	percent int
	rng     *rand.Rand
	nodes   map[*memNode]*memNode // so that links stay links
	moves   map[*move]bool
}

func (c *cloner) keep() bool {
	switch {
	case c.percent <= 0:
		return false
	case c.percent >= 100:
		return true
	}
	return c.rng.IntN(100) < c.percent
}

func (c *cloner) clone(n *memNode) *memNode {
	if done, ok := c.nodes[n]; ok {
		return done
	}
	out := &memNode{dir: n.dir, modTime: n.modTime}
	c.nodes[n] = out
	if n.dir {
		out.children = c.entries(n)
		for _, name := range slices.Sorted(maps.Keys(out.children)) {
			out.children[name] = c.clone(out.children[name])
		}
		out.synced = maps.Clone(out.children)
		return out
	}
	c.data(out, n)
	return out
}

func (c *cloner) entries(n *memNode) map[string]*memNode {
	entries := maps.Clone(n.synced)
	if entries == nil {
		entries = map[string]*memNode{}
	}
	lost := false
	lostNodes := map[*memNode]bool{}
	for _, op := range n.ops {
		keep := c.keep() && !lostNodes[op.node]
		if op.move != nil {
			if decided, ok := c.moves[op.move]; ok {
				keep = decided
			}
			keep = keep || op.move.durable
			c.moves[op.move] = keep
		}
		switch {
		case op.node == nil && (op.move != nil || !lost) && keep:
			delete(entries, op.name)
		case op.node != nil && keep:
			entries[op.name] = op.node
			if op.from != "" {
				delete(entries, op.from)
			}
		default:
			lost = true
			if op.node != nil {
				lostNodes[op.node] = true
			}
		}
	}
	return entries
}

func (c *cloner) data(out, n *memNode) {
	out.size = n.syncedSize
	if n.size != n.syncedSize && c.keep() {
		out.size = n.size
	}
	out.pages = make([][]byte, len(n.pages), max(len(n.pages), pageCount(n.syncedSize)))
	copy(out.pages, n.pages)
	for _, i := range slices.Sorted(maps.Keys(n.stale)) {
		for len(out.pages) <= i {
			out.pages = append(out.pages, nil)
		}
		old := n.stale[i]
		var now []byte
		if i < len(n.pages) {
			now = n.pages[i]
		}
		switch {
		case c.percent > 0 && c.percent < 100 && c.rng.IntN(8) == 0:
			out.pages[i] = c.tear(old, now)
		case c.keep():
			out.pages[i] = slices.Clone(now)
		default:
			out.pages[i] = old
			continue
		}
		if end := min(int64(i+1)*PageSize, n.size); end > out.size {
			out.size = end // a page beyond the synced size makes the file longer
		}
	}
	out.pages = out.pages[:min(len(out.pages), pageCount(out.size))]
	out.clearTail()
	out.stale, out.syncedSize = nil, out.size
}

// tear mixes two versions of a page by sectors.
func (c *cloner) tear(old, now []byte) []byte {
	page := make([]byte, PageSize)
	copy(page, old)
	for at := 0; at < len(now); at += sectorSize {
		if c.rng.IntN(2) == 0 {
			copy(page[at:at+sectorSize], now[at:])
		}
	}
	return page
}

func pageCount(size int64) int { return int((size + PageSize - 1) / PageSize) }

// touch makes page i writable in place and returns it.
func (n *memNode) touch(i int) []byte {
	for len(n.pages) <= i {
		n.pages = append(n.pages, nil)
	}
	if _, ok := n.stale[i]; !ok {
		if n.stale == nil {
			n.stale = map[int][]byte{}
		}
		n.stale[i] = n.pages[i]
		page := make([]byte, PageSize)
		copy(page, n.pages[i])
		n.pages[i] = page
	}
	if n.pages[i] == nil {
		n.pages[i] = make([]byte, PageSize)
	}
	return n.pages[i]
}

// clearTail zeroes what lies behind the size in the last page, so that growing the file shows zeros.
func (n *memNode) clearTail() {
	rest := int(n.size % PageSize)
	i := int(n.size / PageSize)
	if rest == 0 || i >= len(n.pages) || n.pages[i] == nil {
		return
	}
	for _, b := range n.pages[i][rest:] {
		if b != 0 {
			clear(n.touch(i)[rest:])
			return
		}
	}
}

func (n *memNode) writeAt(p []byte, off int64) {
	n.modTime = time.Now()
	for at := off; len(p) > 0; {
		page := n.touch(int(at / PageSize))
		delete(n.lost, int(at/PageSize))
		k := copy(page[at%PageSize:], p)
		p = p[k:]
		at += int64(k)
		n.size = max(n.size, at)
	}
}

func (n *memNode) readAt(p []byte, off int64) (int, error) {
	if off >= n.size {
		return 0, io.EOF
	}
	want := len(p)
	p = p[:min(int64(len(p)), n.size-off)]
	for done := 0; done < len(p); {
		at := off + int64(done)
		i, from := int(at/PageSize), int(at%PageSize)
		end := min(len(p), done+PageSize-from)
		if i < len(n.pages) && n.pages[i] != nil {
			copy(p[done:end], n.pages[i][from:])
		} else {
			clear(p[done:end])
		}
		done = end
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (n *memNode) truncate(size int64) {
	n.modTime = time.Now()
	for i := pageCount(size); i < len(n.pages); i++ {
		if _, ok := n.stale[i]; !ok {
			if n.stale == nil {
				n.stale = map[int][]byte{}
			}
			n.stale[i] = n.pages[i]
		}
	}
	n.pages = n.pages[:min(len(n.pages), pageCount(size))]
	n.size = size
	n.clearTail()
}

func (n *memNode) sync() {
	if n.dir {
		for _, op := range n.ops {
			if op.move != nil {
				op.move.durable = true
			}
		}
		n.synced, n.ops = maps.Clone(n.children), nil
		return
	}
	maps.DeleteFunc(n.stale, func(i int, _ []byte) bool { return !n.lost[i] })
	n.syncedSize = n.size
}

// FailSync does what the sync of a file does that fails: what was written is still read, and is not on the disk, and the
// system forgets that it is not. Only what is written again is written by a later sync. It returns EIO. A file that does
// not exist is an error, too.
func (m *Mem) FailSync(name string) error {
	f, err := m.OpenFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	mf := f.(*memFile) //nolint:errcheck // Mem opens no others
	return mf.do("sync", false, func(n *memNode) error {
		if n.lost == nil {
			n.lost = map[int]bool{}
		}
		for i := range n.stale {
			n.lost[i] = true
		}
		return &os.PathError{Op: "sync", Path: name, Err: syscall.EIO}
	})
}

// A memFile is an open file or directory.
type memFile struct {
	fs          *Mem
	n           *memNode
	name        string
	pos         int64
	read, write bool
	direct      bool
}

var _ File = (*memFile)(nil)

var (
	errClosed   = os.ErrClosed
	errIsDir    = syscall.EISDIR
	errReadOnly = syscall.EBADF
)

// do runs f under the lock if the file is open, is no directory, and was opened for writing where that is needed.
func (f *memFile) do(op string, write bool, do func(n *memNode) error) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	var err error
	switch {
	case f.n == nil:
		err = errClosed
	case f.n.dir:
		err = errIsDir
	case write && !f.write, !write && !f.read:
		err = errReadOnly
	default:
		return do(f.n)
	}
	return &os.PathError{Op: op, Path: f.name, Err: err}
}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.n == nil {
		return &os.PathError{Op: "close", Path: f.name, Err: errClosed}
	}
	f.n = nil
	return nil
}

func (f *memFile) Read(p []byte) (n int, err error) {
	err = f.do("read", false, func(node *memNode) error {
		n, err = node.readAt(p, f.pos)
		f.pos += int64(n)
		if n > 0 {
			return nil
		}
		return err
	})
	return n, err
}

func (f *memFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.do("read", false, func(node *memNode) error {
		n, err = node.readAt(p, off)
		return err
	})
	return n, err
}

func (f *memFile) Write(p []byte) (int, error) {
	err := f.do("write", true, func(n *memNode) error {
		n.writeAt(p, f.pos)
		f.pos += int64(len(p))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.do("write", true, func(n *memNode) error {
		if f.direct && (off%PageSize != 0 || len(p)%PageSize != 0) {
			return &os.PathError{Op: "write", Path: f.name, Err: syscall.EINVAL}
		}
		n.writeAt(p, off)
		if f.direct {
			for i := int(off / PageSize); i < pageCount(off+int64(len(p))); i++ {
				delete(n.stale, i)
			}
			n.syncedSize = max(n.syncedSize, min(n.size, off+int64(len(p))))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	return f.do("truncate", true, func(n *memNode) error {
		if size < 0 {
			return &os.PathError{Op: "truncate", Path: f.name, Err: syscall.EINVAL}
		}
		n.truncate(size)
		return nil
	})
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.n == nil {
		return &os.PathError{Op: "sync", Path: f.name, Err: errClosed}
	}
	f.n.sync()
	return nil
}

func (f *memFile) Stat() (vfs.FileInfo, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.n == nil {
		return nil, &os.PathError{Op: "stat", Path: f.name, Err: errClosed}
	}
	return f.n.info(f.name), nil
}

func (f *memFile) SyncData() error                { return f.Sync() }
func (f *memFile) SyncTo(int64) (bool, error)     { return false, nil } // promises nothing, as vfs allows
func (f *memFile) Preallocate(int64, int64) error { return nil }
func (f *memFile) Prefetch(int64, int64) error    { return nil }
func (f *memFile) WriteBack(int64, int64) error   { return nil }
func (f *memFile) Fd() uintptr                    { return vfs.InvalidFd }

func (f *memFile) WriteAround(p []byte, offset int64) (int, error) { return f.WriteAt(p, offset) }

type memInfo struct {
	name    string
	size    int64
	dir     bool
	modTime time.Time
}

func (n *memNode) info(name string) memInfo { return memInfo{name, n.size, n.dir, n.modTime} }

func (i memInfo) Name() string           { return i.name }
func (i memInfo) Size() int64            { return i.size }
func (i memInfo) ModTime() time.Time     { return i.modTime }
func (i memInfo) IsDir() bool            { return i.dir }
func (i memInfo) Sys() any               { return nil }
func (i memInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func (i memInfo) Mode() os.FileMode {
	if i.dir {
		return os.ModeDir | 0o755
	}
	return 0o644
}

// parts splits a path into its components. All paths start at the root.
func parts(name string) []string {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil
	}
	return strings.Split(name[1:], "/")
}

func pathError(op, name string, err error) error {
	return &os.PathError{Op: op, Path: name, Err: err}
}

// lookup finds a node. m.mu is held.
func (m *Mem) lookup(op, name string) (*memNode, error) {
	n := m.root
	for _, p := range parts(name) {
		if !n.dir {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		child := n.children[p]
		if child == nil {
			return nil, pathError(op, name, os.ErrNotExist)
		}
		n = child
	}
	return n, nil
}

// parent finds the directory that name is or will be in, and its last component. m.mu is held.
func (m *Mem) parent(op, name string) (*memNode, string, error) {
	p := parts(name)
	if len(p) == 0 {
		return nil, "", pathError(op, name, os.ErrInvalid)
	}
	dir, err := m.lookup(op, strings.Join(p[:len(p)-1], "/"))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", pathError(op, name, syscall.ENOTDIR)
	}
	return dir, p[len(p)-1], nil
}

func (n *memNode) set(name string, child *memNode) {
	n.children[name] = child
	n.ops = append(n.ops, dirOp{name: name, node: child})
}

// create makes a file; with fresh, an existing one is replaced by a new one. m.mu is held.
func (m *Mem) create(name string, fresh bool) (*memNode, error) {
	dir, base, err := m.parent("create", name)
	if err != nil {
		return nil, err
	}
	if old := dir.children[base]; old != nil {
		if old.dir {
			return nil, pathError("create", name, errIsDir)
		}
		if !fresh {
			return old, nil
		}
	}
	n := &memNode{modTime: time.Now()}
	dir.set(base, n)
	return n, nil
}

func (m *Mem) handle(n *memNode, name string) *memFile {
	return &memFile{fs: m, n: n, name: name, read: true}
}

// CreateFile implements FS.
func (m *Mem) CreateFile(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.create(name, false)
	if err != nil {
		return nil, err
	}
	n.truncate(0)
	f := m.handle(n, name)
	f.write = true
	return f, nil
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, pathError("open", name, errIsDir)
	}
	f := m.handle(n, name)
	f.write = true
	return f, nil
}

// OpenDirect implements FS.
func (m *Mem) OpenDirect(name string) (File, error) {
	f, err := m.OpenFile(name)
	if err != nil {
		return nil, err
	}
	f.(*memFile).direct = true
	return f, nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("sync", name)
	if err != nil {
		return err
	}
	n.sync()
	return nil
}

// Create implements vfs.FS.
func (m *Mem) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.create(name, true)
	if err != nil {
		return nil, err
	}
	f := m.handle(n, name)
	f.write = true
	return f, nil
}

// Link implements vfs.FS.
func (m *Mem) Link(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("link", oldname)
	if err != nil {
		return err
	}
	dir, base, err := m.parent("link", newname)
	if err != nil {
		return err
	}
	if dir.children[base] != nil {
		return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: os.ErrExist}
	}
	dir.set(base, n)
	return nil
}

// Open implements vfs.FS.
func (m *Mem) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	m.mu.Lock()
	n, err := m.lookup("open", name)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := m.handle(n, name)
	for _, o := range opts {
		o.Apply(f)
	}
	return f, nil
}

// OpenReadWrite implements vfs.FS.
func (m *Mem) OpenReadWrite(name string, _ vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	m.mu.Lock()
	n, err := m.create(name, false)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := m.handle(n, name)
	f.write = true
	for _, o := range opts {
		o.Apply(f)
	}
	return f, nil
}

// OpenDir implements vfs.FS.
func (m *Mem) OpenDir(name string) (vfs.File, error) { return m.Open(name) }

// Remove implements vfs.FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.children[base]
	switch {
	case n == nil:
		return pathError("remove", name, os.ErrNotExist)
	case len(n.children) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	dir.remove(base)
	return nil
}

func (n *memNode) remove(name string) {
	delete(n.children, name)
	n.ops = append(n.ops, dirOp{name: name})
}

// RemoveAll implements vfs.FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent("remove", name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if dir.children[base] != nil {
		dir.remove(base)
	}
	return nil
}

// Rename implements vfs.FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rename(oldname, newname)
}

func (m *Mem) rename(oldname, newname string) error {
	from, oldBase, err := m.parent("rename", oldname)
	if err != nil {
		return err
	}
	to, newBase, err := m.parent("rename", newname)
	if err != nil {
		return err
	}
	n := from.children[oldBase]
	if n == nil {
		return pathError("rename", oldname, os.ErrNotExist)
	}
	if from == to && oldBase == newBase {
		return nil
	}
	if old := to.children[newBase]; old != nil && old.dir && len(old.children) > 0 {
		return pathError("rename", newname, syscall.ENOTEMPTY)
	}
	delete(from.children, oldBase)
	to.children[newBase] = n
	if from == to {
		to.ops = append(to.ops, dirOp{name: newBase, node: n, from: oldBase})
		return nil
	}
	mv := &move{}
	to.ops = append(to.ops, dirOp{name: newBase, node: n, move: mv})
	from.ops = append(from.ops, dirOp{name: oldBase, move: mv})
	return nil
}

// ReuseForWrite implements vfs.FS.
func (m *Mem) ReuseForWrite(oldname, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldname, newname); err != nil {
		return nil, err
	}
	n, err := m.lookup("open", newname)
	if err != nil {
		return nil, err
	}
	f := m.handle(n, newname)
	f.read, f.write = false, true
	return f, nil
}

// MkdirAll implements vfs.FS.
func (m *Mem) MkdirAll(name string, _ os.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, p := range parts(name) {
		child := n.children[p]
		if child == nil {
			child = newMemDir()
			n.set(p, child)
		}
		if !child.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = child
	}
	return nil
}

// Lock implements vfs.FS. A crash releases all locks.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean("/" + name)
	if m.locks[name] {
		return nil, pathError("lock", name, syscall.EAGAIN)
	}
	if _, err := m.create(name, false); err != nil {
		return nil, err
	}
	m.locks[name] = true
	return memLock{m, name}, nil
}

type memLock struct {
	m    *Mem
	name string
}

func (l memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.locks, l.name)
	return nil
}

// List implements vfs.FS. Names are sorted.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("open", dir)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError("open", dir, syscall.ENOTDIR)
	}
	return slices.Sorted(maps.Keys(n.children)), nil
}

// Stat implements vfs.FS.
func (m *Mem) Stat(name string) (vfs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.lookup("stat", name)
	if err != nil {
		return nil, err
	}
	return n.info(path.Base(name)), nil
}

// PathBase implements vfs.FS.
func (m *Mem) PathBase(p string) string { return path.Base(p) }

// PathJoin implements vfs.FS.
func (m *Mem) PathJoin(elem ...string) string { return path.Join(elem...) }

// PathDir implements vfs.FS.
func (m *Mem) PathDir(p string) string { return path.Dir(p) }

// GetDiskUsage implements vfs.FS: a disk that is large and nearly empty.
func (m *Mem) GetDiskUsage(string) (vfs.DiskUsage, error) {
	const total = 1 << 40
	return vfs.DiskUsage{AvailBytes: total, TotalBytes: total}, nil
}

// Unwrap implements vfs.FS.
func (m *Mem) Unwrap() vfs.FS { return nil }

// String lists all files with their sizes, for test failures.
func (m *Mem) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out strings.Builder
	var walk func(prefix string, n *memNode)
	walk = func(prefix string, n *memNode) {
		for _, name := range slices.Sorted(maps.Keys(n.children)) {
			child := n.children[name]
			if child.dir {
				walk(prefix+name+"/", child)
				continue
			}
			fmt.Fprintf(&out, "%10d %s%s\n", child.size, prefix, name)
		}
	}
	walk("/", m.root)
	return out.String()
}
