package replication

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/headrace/headrace/internal/fsx"
)

// A tightDisk is a memory disk without space for anything but what the reserve gives back.
type tightDisk struct {
	fsx.FS
	mem  *fsx.Mem
	full atomic.Bool
	left atomic.Int64 // operations that still find space
}

func newTightDisk() *tightDisk { return tightDiskOf(fsx.NewMem()) }

func tightDiskOf(mem *fsx.Mem) *tightDisk {
	d := &tightDisk{mem: mem}
	d.FS = fsx.Inject(mem, func(op fsx.Op, name string) error {
		reserve := strings.HasSuffix(name, "/"+reserveFile)
		switch {
		case !d.full.Load():
			return nil
		case op == fsx.OpTruncate && reserve:
			d.left.CompareAndSwap(0, 200)
			return nil
		case op == fsx.OpCreate, op == fsx.OpPreallocate, op == fsx.OpLink, op == fsx.OpWrite && !strings.Contains(name, "/wal/"):
		default:
			return nil
		}
		if !reserve && d.left.Add(-1) >= 0 {
			return nil
		}
		d.left.Store(0)
		return syscall.ENOSPC
	})
	return d
}

// A node whose disk is full when it starts: without a reserve it does not; with one it serves reads and deletes, takes no
// records, says why, and takes them again once there is space.
func TestANodeStartsOnAFullDisk(t *testing.T) {
	d := newTightDisk()
	o := fullOptions(d)
	testFullStart(t, o, func() { d.full.Store(true) }, func() { d.full.Store(false) })

	t.Run("without a reserve", func(t *testing.T) {
		d := newTightDisk()
		o := fullOptions(d)
		o.ReserveBytes = -1
		must(t, openNode(t, o).Close())
		d.full.Store(true)
		if n, err := OpenNode(o); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("it starts: %v", err)
			if n != nil {
				_ = n.Close()
			}
		}
	})
}

// The same on a real file system, if this process may mount one.
func TestANodeStartsOnAFullTmpfs(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	o := fullOptions(nil)
	o.Dir = filepath.Join(dir, "data")
	filler := filepath.Join(dir, "filler")
	testFullStart(t, o, func() {
		f, err := os.Create(filler)
		must(t, err)
		for size := 1 << 20; size >= 4096; {
			if _, err := f.Write(make([]byte, size)); err != nil {
				size /= 2
			}
		}
		must(t, f.Close())
	}, func() { must(t, os.Remove(filler)) })
}

func testFullStart(t *testing.T, o NodeOptions, fill, free func()) {
	t.Helper()
	ctx := t.Context()
	n := openNode(t, o)
	must(t, n.Meta().CreateTopic(ctx, TopicSpec{Name: "kept", Partitions: 1}))
	must(t, n.Meta().CreateTopic(ctx, TopicSpec{Name: "gone", Partitions: 1}))
	id := partition(t, n, "kept", 0)
	if r := produce(ctx, n, id, "a"); r.Err != nil {
		t.Fatal(r.Err)
	}
	whole := func() bool {
		have, want := n.Reserve()
		return have == want && want > 0
	}
	eventually(t, "the reserve is whole", whole)
	must(t, n.Close())

	fill()
	n = openNode(t, o)
	defer func() { must(t, n.Close()) }()
	eventually(t, "it says that the reserve is not whole", func() bool {
		return strings.Contains(strings.Join(n.Ready(), "; "), "the reserve holds")
	})
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if r := produce(brief, n, id, "b"); !errors.Is(r.Err, ErrNoRoom) || !errors.Is(r.Err, syscall.ENOSPC) || r.Outcome != No {
		t.Errorf("a record on a full disk: %v %v", r.Outcome, r.Err)
	}
	if got := values(t, n, id); len(got) != 1 || got[0] != "a" {
		t.Errorf("read %q", got)
	}
	must(t, n.Meta().DeleteTopic(ctx, "gone"))

	free()
	eventually(t, "the reserve is whole again", whole)
	eventually(t, "records are taken", func() bool { return produce(ctx, n, id, "c").Err == nil })
	if got := values(t, n, id); len(got) != 2 || got[1] != "c" {
		t.Errorf("read %q", got)
	}
}

// Wherever in its start the disk fills up, a node without a reserve starts or says why not, soon, and the next start finds
// everything.
func TestAStartWhoseDiskFillsUpEnds(t *testing.T) {
	if os.Getenv(childEnv) == "" { // Pebble leaves goroutines behind when it gives up
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), childEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	d := newTightDisk()
	o := fullOptions(d)
	o.ReserveBytes, o.OpenTimeout = -1, time.Second
	o.Meta.CloseTimeout, o.Data.CloseTimeout = time.Second/2, time.Second/2
	n := openNode(t, o)
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a"}))
	id := partition(t, n, "a", 0)
	for _, v := range []string{"x", "y", "z"} {
		must(t, produce(t.Context(), n, id, v).Err)
	}
	want := values(t, n, id)
	image := d.mem.CrashClone(powerCut)
	must(t, n.Close())
	for k := int64(0); ; k++ {
		d := tightDiskOf(image.CrashClone(powerCut))
		o.FS = d
		d.left.Store(k)
		d.full.Store(true)
		opened := make(chan *Node, 1)
		go func() {
			n, err := OpenNode(o)
			if err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("with space for %d writes: %v", k, err)
			}
			if err != nil {
				n = nil
			}
			opened <- n
		}()
		select {
		case n = <-opened:
		case <-time.After(time.Minute):
			buf := make([]byte, 1<<20)
			t.Fatalf("with space for %d writes the start does not end\n%s", k, buf[:runtime.Stack(buf, true)])
		}
		whole := n != nil && d.left.Load() > 0
		d.full.Store(false)
		if n == nil { // another process, which sees what this one has written
			o.FS = d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, uint64(k)))})
			n = openNode(t, o)
		}
		if got := values(t, n, id); !slices.Equal(got, want) {
			t.Errorf("with space for %d writes: %q afterwards, want %q", k, got, want)
		}
		must(t, n.Close())
		if whole {
			t.Logf("a start takes %d writes", k-d.left.Load())
			break
		}
	}
}

// A disk that hangs under the reserve stops nobody who appends to the log.
func TestNobodyWaitsForTheReserve(t *testing.T) {
	hang, hung := make(chan struct{}), make(chan struct{}, 1)
	fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
		if op == fsx.OpSync && strings.HasSuffix(name, "/"+reserveFile) {
			select {
			case hung <- struct{}{}:
			default:
			}
			<-hang
		}
		return nil
	})
	n := openNode(t, fullOptions(fs))
	must(t, n.Meta().CreateTopic(t.Context(), TopicSpec{Name: "a"}))
	id := partition(t, n, "a", 0)
	<-hung
	must(t, produce(t.Context(), n, id, "x").Err)
	_ = n.Data().State()
	_ = n.Ready()
	_, want := n.Reserve()
	close(hang)
	eventually(t, "the reserve is whole", func() bool {
		have, _ := n.Reserve()
		return have == want
	})
	must(t, n.Close())
}

// A sizedDisk is a memory disk that says how large it is.
type sizedDisk struct {
	fsx.FS
	total uint64
}

func (d sizedDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.total, TotalBytes: d.total}, nil
}

// A refusal for want of room says when the whole disk is too small, and how large it has to be.
func TestARefusalSaysThatTheDiskIsTooSmall(t *testing.T) {
	for total, want := range map[uint64]string{
		1 << 20:  "the whole disk has 1 MiB, a data directory needs at least 9 MiB",
		64 << 20: "",
	} {
		n := openNode(t, fullOptions(sizedDisk{fsx.NewMem(), total}))
		if got := n.data.o.SmallDisk; got != want {
			t.Errorf("a disk of %d bytes: %q, want %q", total, got, want)
		}
		must(t, n.Close())
	}
	err := error(&noRoomError{syscall.ENOSPC, "too small"})
	if !errors.Is(err, ErrNoRoom) || !errors.Is(err, syscall.ENOSPC) || !strings.HasSuffix(err.Error(), "no space left on device; too small") {
		t.Error(err)
	}
}
