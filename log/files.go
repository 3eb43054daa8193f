package log

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/segment"
)

// Paths are relative to the store's directory: UUIDs and numbers, never names from outside.

func (s *Store) path(rel string) string { return s.opts.FS.PathJoin(s.opts.Dir, rel) }

// Aside reports that only readers of history or a compaction wait for an operation on a file of the store: a disk that
// does not return from it keeps neither the writer nor a checkpoint.
func (s *Store) Aside(op fsx.Op, name string) bool {
	_, generation, _, ok := segment.ParseName(s.opts.FS.PathBase(name))
	switch {
	case !ok || op == fsx.OpRemove || op == fsx.OpTruncate: // the writer removes what a compaction has replaced
		return false
	case op == fsx.OpRead: // the writer reads runs of the mixed segment, seldom
		return true
	}
	return generation > 0
}

const topicsDir, mixedDir = "topics", "mixed"

func (s *Store) topicDir(t TopicID) string { return s.opts.FS.PathJoin(topicsDir, t.String()) }

func (s *Store) partitionDir(id PartitionID) string {
	return s.opts.FS.PathJoin(s.topicDir(id.Topic), fmt.Sprint(id.Index))
}

func (s *Store) logPath(id PartitionID, seg *segmentInfo) string {
	return s.opts.FS.PathJoin(s.partitionDir(id), segment.LogName(seg.base, seg.generation))
}

func (s *Store) indexPath(id PartitionID, seg *segmentInfo) string {
	return s.opts.FS.PathJoin(s.partitionDir(id), segment.IndexName(seg.base, seg.generation))
}

func (s *Store) mixedPath(number uint64) string {
	return s.opts.FS.PathJoin(mixedDir, segment.LogName(int64(number), 0))
}

// handleCache holds the files that readers have open, at most max of them and those in use.
type handleCache struct {
	s  *Store
	mu struct {
		sync.Mutex
		m      map[string]*handle
		clock  uint64
		closed bool
	}
}

type handle struct {
	f    fsx.File
	path string
	refs int
	used uint64
	gone bool // not in the cache any more: closed with the last reference
}

// open returns a file for reading; release it.
func (c *handleCache) open(path string) (*handle, error) {
	c.mu.Lock()
	if h := c.mu.m[path]; h != nil {
		c.mu.clock++
		h.used = c.mu.clock
		h.refs++
		c.mu.Unlock()
		return h, nil
	}
	closed := c.mu.closed
	c.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	f, err := c.s.opts.FS.OpenFile(c.s.path(path))
	if err != nil {
		return nil, err
	}
	h := &handle{f: f, path: path, refs: 1}
	c.mu.Lock()
	var close []*handle
	if c.mu.closed || c.mu.m[path] != nil {
		h.gone = true // used once
	} else {
		c.mu.clock++
		h.used = c.mu.clock
		c.mu.m[path] = h
		close = c.shrinkLocked()
	}
	c.mu.Unlock()
	for _, x := range close {
		_ = x.f.Close()
	}
	return h, nil
}

// shrinkLocked takes the oldest unused handles out until max are left.
func (c *handleCache) shrinkLocked() (out []*handle) {
	for len(c.mu.m) > c.s.opts.MaxOpenFiles {
		var oldest *handle
		for _, h := range c.mu.m {
			if h.refs == 0 && (oldest == nil || h.used < oldest.used) {
				oldest = h
			}
		}
		if oldest == nil {
			return out
		}
		delete(c.mu.m, oldest.path)
		oldest.gone = true
		out = append(out, oldest)
	}
	return out
}

func (c *handleCache) release(h *handle) {
	c.mu.Lock()
	h.refs--
	last := h.refs == 0 && h.gone
	c.mu.Unlock()
	if last {
		_ = h.f.Close() // opened for reading
	}
}

// forget closes a file that is about to be removed, once its readers are done.
func (c *handleCache) forget(path string) {
	c.mu.Lock()
	h := c.mu.m[path]
	delete(c.mu.m, path)
	idle := h != nil && h.refs == 0
	if h != nil {
		h.gone = true
	}
	c.mu.Unlock()
	if idle {
		_ = h.f.Close()
	}
}

func (c *handleCache) close() {
	c.mu.Lock()
	c.mu.closed = true
	var idle []*handle
	for _, h := range c.mu.m {
		h.gone = true
		if h.refs == 0 {
			idle = append(idle, h)
		}
	}
	clear(c.mu.m)
	c.mu.Unlock()
	for _, h := range idle {
		_ = h.f.Close()
	}
}

// dirtyFiles are the files that were written since the last sync, held open until they are synced, so that
// an error of writing them back cannot get lost. They belong to the writer.
type dirtyFiles struct {
	s     *Store
	m     map[string]fsx.File
	order []string
	dirs  map[string]bool
}

// open returns a file for writing. With fresh it is made, empty.
func (d *dirtyFiles) open(path string, fresh bool) (fsx.File, error) {
	if f := d.m[path]; f != nil && !fresh {
		return f, nil
	}
	if f := d.m[path]; f != nil {
		// Left by a round that failed.
		_ = f.Close()
		d.drop(path)
	}
	for len(d.order) >= d.s.opts.MaxOpenFiles {
		if err := d.syncOne(d.order[0]); err != nil {
			return nil, err
		}
	}
	var f fsx.File
	var err error
	if fresh {
		d.s.handles.forget(path)
		dir := d.s.opts.FS.PathDir(path)
		if err := d.s.opts.FS.MkdirAll(d.s.path(dir), 0o755); err != nil {
			return nil, err
		}
		for ; dir != "." && dir != "/" && dir != ""; dir = d.s.opts.FS.PathDir(dir) {
			d.dirs[dir] = true
		}
		d.dirs["."] = true
		f, err = d.s.opts.FS.CreateFile(d.s.path(path))
	} else {
		f, err = d.s.opts.FS.OpenFile(d.s.path(path))
	}
	if err != nil {
		return nil, err
	}
	d.m[path] = f
	d.order = append(d.order, path)
	return f, nil
}

func (d *dirtyFiles) drop(path string) {
	delete(d.m, path)
	for i, p := range d.order {
		if p == path {
			d.order = append(d.order[:i], d.order[i+1:]...)
			break
		}
	}
}

// discardUnder forgets a file that is to be removed, or a directory with all its files.
func (d *dirtyFiles) discardUnder(path string) {
	for name, f := range d.m {
		if name == path || d.s.opts.FS.PathDir(name) == path {
			_ = f.Close() // its bytes are not needed
			d.drop(name)
		}
	}
	delete(d.dirs, path)
}

// syncOne syncs and closes a file. A failed sync is final: the system may have dropped the bytes.
func (d *dirtyFiles) syncOne(path string) error {
	f := d.m[path]
	err := f.SyncData()
	if err != nil {
		err = fmt.Errorf("sync %s: %w", path, err)
		d.s.poison(err)
		return errors.Join(ErrPoisoned, err)
	}
	d.drop(path)
	if err := f.Close(); err != nil {
		return fmt.Errorf("close %s: %w", path, err)
	}
	return nil
}

// sync makes everything durable that was written.
func (d *dirtyFiles) sync() error {
	for len(d.order) > 0 {
		if err := d.syncOne(d.order[0]); err != nil {
			return err
		}
	}
	for dir := range d.dirs {
		if err := d.s.opts.FS.SyncDir(d.s.path(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("sync directory %s: %w", dir, err)
			d.s.poison(err)
			return errors.Join(ErrPoisoned, err)
		}
		delete(d.dirs, dir)
	}
	return nil
}

func (d *dirtyFiles) close() {
	for _, f := range d.m {
		_ = f.Close() // not synced: the placed rows cover it
	}
	clear(d.m)
	d.order = nil
}

// indexCache holds the marks of the segments that are being read.
type indexCache struct {
	mu    sync.Mutex
	m     map[string]*indexSlot
	clock uint64
}

type indexSlot struct {
	x    *segment.Index
	used uint64
}

// maxIndexes bounds the segments whose marks are in memory: at worst half a megabyte each.
const maxIndexes = 64

func (c *indexCache) get(path string) *segment.Index {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if s := c.m[path]; s != nil {
		s.used = c.clock
		return s.x
	}
	if c.m == nil {
		c.m = map[string]*indexSlot{}
	}
	for len(c.m) >= maxIndexes {
		var oldest string
		for p, s := range c.m {
			if oldest == "" || s.used < c.m[oldest].used {
				oldest = p
			}
		}
		delete(c.m, oldest)
	}
	s := &indexSlot{x: new(segment.Index), used: c.clock}
	c.m[path] = s
	return s.x
}

func (c *indexCache) forget(path string) {
	c.mu.Lock()
	delete(c.m, path)
	c.mu.Unlock()
}
