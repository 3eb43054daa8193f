package replication

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headrace/headrace/internal/fsx"
)

const (
	reserveFile = "reserve"

	defaultReserveBytes = 16 << 20
	minReserveBytes     = 1 << 20
	reserveShare        = 32 // of the disk, at most one part in so many
	reserveRetry        = time.Second
)

// A reserve is a file that holds space which a start on a full disk needs: the rows' databases cannot be opened
// without writing some. It is given up before they are opened when the disk is full, and made again right behind them,
// as far as there is space. While it is not whole no records are taken, so it is never records that eat it up.
//
// Its methods may be called by any goroutine.
type reserve struct {
	fs   fsx.FS
	path string
	dir  string
	want int64 // bytes, 0: none is kept
	log  *slog.Logger

	mu struct {
		sync.Mutex // held while the file is resized
		have       int64
	}
	held    atomic.Int64          // mu.have
	trouble atomic.Pointer[error] // why it is not whole; nil: it is, or nobody has tried
}

// openReserve looks at the reserve of dir. want 0 is the default, less on a small disk; negative is none.
func openReserve(fs fsx.FS, dir string, want int64, log *slog.Logger) (*reserve, error) {
	r := &reserve{fs: fs, dir: dir, path: fs.PathJoin(dir, reserveFile), want: max(want, 0), log: log}
	if want == 0 {
		r.want = defaultReserveBytes
		if u, err := fs.GetDiskUsage(dir); err == nil && u.TotalBytes > 0 {
			r.want = max(minReserveBytes, min(r.want, int64(u.TotalBytes/reserveShare)))
		}
	}
	info, err := fs.Stat(r.path)
	switch {
	case err == nil:
		r.mu.have = info.Size()
		r.held.Store(r.mu.have)
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("replication: look at the reserve: %w", err)
	}
	return r, nil
}

// needed reports that the disk has less free space than the reserve holds.
func (r *reserve) needed() bool {
	u, err := r.fs.GetDiskUsage(r.dir)
	return err == nil && int64(u.AvailBytes) < r.want
}

// release gives the space to whoever needs it and says how much that was.
func (r *reserve) release() int64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	freed := r.mu.have
	if freed == 0 {
		return 0
	}
	if err := r.resize(0); err != nil {
		r.log.Warn("the reserve cannot be given up", "file", r.path, "error", err)
		return 0
	}
	r.mu.have = 0
	r.held.Store(0)
	r.log.Warn("the disk is full: the reserve is given up for the start", "bytes", freed)
	return freed
}

// restore makes the reserve whole, or as large as there is space for. It says whether it is whole.
func (r *reserve) restore() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.have >= r.want {
		r.trouble.Store(nil)
		return true
	}
	var err error
	for size := r.want; size > r.mu.have; size /= 2 {
		e := r.resize(size)
		if e == nil {
			r.mu.have = size
			r.held.Store(size)
			break
		}
		if err = errors.Join(err, e); !errors.Is(e, syscall.ENOSPC) || size <= minReserveBytes/16 {
			break
		}
	}
	was := r.trouble.Load()
	if err == nil {
		r.trouble.Store(nil)
	} else {
		first := firstOf(err)
		r.trouble.Store(&first)
	}
	switch {
	case err != nil && was == nil:
		r.log.Warn("the reserve is not whole, so no records are taken", "bytes", r.mu.have, "wanted", r.want, "error", firstOf(err))
	case err == nil && was != nil:
		r.log.Info("the reserve is whole again", "bytes", r.mu.have)
	}
	return err == nil
}

// firstOf is the first of joined errors: the others say the same of smaller sizes.
func firstOf(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok && len(j.Unwrap()) > 0 {
		return firstOf(j.Unwrap()[0])
	}
	return err
}

// resize makes the file hold size bytes of space. A failure leaves it as it was.
func (r *reserve) resize(size int64) (err error) {
	f, err := r.fs.OpenFile(r.path)
	if errors.Is(err, os.ErrNotExist) {
		f, err = r.fs.CreateFile(r.path)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if size > r.mu.have {
		if err := f.Preallocate(0, size); err != nil {
			_ = f.Truncate(r.mu.have) // gives back what was found beyond
			return err
		}
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// Err is why the reserve is not whole, an ENOSPC as a rule, or nil. It does not wait for the disk.
func (r *reserve) Err() error {
	if r == nil {
		return nil
	}
	err := r.trouble.Load()
	if err == nil {
		return nil
	}
	return fmt.Errorf("the reserve holds %d of %d bytes: %w", r.held.Load(), r.want, *err)
}

// sizes are the bytes that are held and those that are wanted.
func (r *reserve) sizes() (have, want int64) {
	if r == nil {
		return 0, 0
	}
	return r.held.Load(), r.want
}

// keepReserve makes the reserve whole again once there is space.
func (n *Node) keepReserve() {
	tick := time.NewTicker(reserveRetry)
	defer tick.Stop()
	for !n.reserve.restore() {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Segments of a log without which no records are taken: for the data shard one in use and one ready, for the metadata
// shard one in use and the ready ones that it makes before the data shard's. rowsBytes is for what lies beside them.
const (
	needDataSegments = 2
	needMetaSegments = 3
	rowsBytes        = 4 << 20
)

// needBytes is the least that a data directory takes with the node's options.
func (n *Node) needBytes() int64 {
	return needDataSegments*cmp.Or(n.o.Data.WALSegmentBytes, defaultWALSegmentBytes) + needMetaSegments*n.o.Meta.WALSegmentBytes +
		n.reserve.want + rowsBytes
}

// smallDisk says that the whole disk is too small for a data directory, or "".
func (n *Node) smallDisk() string {
	u, err := n.o.FS.GetDiskUsage(n.o.Dir)
	need := n.needBytes()
	if err != nil || u.TotalBytes == 0 || int64(u.TotalBytes) >= need {
		return ""
	}
	return fmt.Sprintf("the whole disk has %d MiB, a data directory needs at least %d MiB", u.TotalBytes>>20, (need+1<<20-1)>>20)
}
