package fsx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, fs FS, name, text string) File {
	t.Helper()
	f, err := fs.CreateFile(name)
	must(t, err)
	_, err = f.WriteAt([]byte(text), 0)
	must(t, err)
	return f
}

func read(t testing.TB, fs FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return "<none>"
	}
	must(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	must(t, err)
	return string(b)
}

func crash(m *Mem, percent int) *Mem {
	return m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 1))})
}

// TestDiskAndMemoryBehaveAlike runs the same story on both file systems.
func TestDiskAndMemoryBehaveAlike(t *testing.T) {
	story := func(t *testing.T, fs FS, dir string) string {
		var out bytes.Buffer
		p := func(name string) string { return fs.PathJoin(dir, name) }
		must(t, fs.MkdirAll(p("d/e"), 0o755))
		f := write(t, fs, p("d/a"), "hello")
		must(t, f.Truncate(3))
		must(t, f.Truncate(6))
		_, err := f.WriteAt([]byte("xy"), 9000)
		must(t, err)
		must(t, f.Preallocate(0, 8192))
		must(t, f.WriteBack(0, 4096))
		must(t, f.SyncData())
		fi, err := f.Stat()
		must(t, err)
		fmt.Fprintln(&out, fi.Size())
		buf := make([]byte, 8)
		n, err := f.ReadAt(buf, 0)
		fmt.Fprintf(&out, "%q %v\n", buf[:n], err)
		n, err = f.ReadAt(buf, 8998)
		fmt.Fprintf(&out, "%q %v\n", buf[:n], err)
		_, err = f.ReadAt(buf, 9002)
		fmt.Fprintln(&out, err)
		must(t, f.Close())
		must(t, fs.Rename(p("d/a"), p("d/b")))
		must(t, fs.SyncDir(p("d")))
		_, err = fs.OpenFile(p("d/a"))
		fmt.Fprintln(&out, errors.Is(err, os.ErrNotExist))
		g, err := fs.OpenFile(p("d/b"))
		must(t, err)
		_, err = g.WriteAt([]byte("J"), 0)
		must(t, err)
		must(t, g.Close())
		fmt.Fprintf(&out, "%q\n", read(t, fs, p("d/b"))[:4])
		must(t, fs.Link(p("d/b"), p("d/c")))
		must(t, fs.Remove(p("d/b")))
		fmt.Fprintf(&out, "%q\n", read(t, fs, p("d/c"))[:4])
		fmt.Fprintln(&out, fs.Remove(p("d")) != nil)
		_, err = fs.CreateFile(p("no/such"))
		fmt.Fprintln(&out, errors.Is(err, os.ErrNotExist))
		write(t, fs, p("d/c"), "new").Close()
		fmt.Fprintf(&out, "%q\n", read(t, fs, p("d/c")))
		must(t, fs.RemoveAll(p("d")))
		names, err := fs.List(dir)
		fmt.Fprintln(&out, names, err)
		return out.String()
	}
	disk := story(t, Disk(), t.TempDir())
	mem := NewMem()
	must(t, mem.MkdirAll("/root", 0o755))
	if got := story(t, mem, "/root"); got != disk {
		t.Errorf("disk:\n%s\nmemory:\n%s", disk, got)
	}
	if got := story(t, Watch(Disk(), nil), t.TempDir()); got != disk {
		t.Errorf("disk:\n%s\nwatched:\n%s", disk, got)
	}
}

func TestACrashKeepsWhatWasSyncedAndAtMostWhatWasWritten(t *testing.T) {
	m := NewMem()
	f := write(t, m, "a", "old")
	must(t, f.SyncData())
	if got := read(t, crash(m, 0), "a"); got != "<none>" {
		t.Fatalf("the name was never synced, yet: %q", got)
	}
	must(t, m.SyncDir("/"))
	_, err := f.WriteAt([]byte("new"), 0)
	must(t, err)
	write(t, m, "b", "b")
	must(t, m.Rename("a", "c"))
	if got := read(t, crash(m, 0), "a"); got != "old" {
		t.Fatalf("%q", got)
	}
	all := crash(m, 100)
	if a, b, c := read(t, all, "a"), read(t, all, "b"), read(t, all, "c"); a != "<none>" || b != "b" || c != "new" {
		t.Fatalf("%q %q %q", a, b, c)
	}
	// A clone is a disk of its own.
	must(t, all.Remove("c"))
	if read(t, m, "c") != "new" {
		t.Fatal("the clone changed its origin")
	}
}

func TestRenamedFileIsNeverLostAndNeverDoubled(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		m := NewMem()
		must(t, m.MkdirAll("x", 0o755))
		must(t, m.SyncDir("/"))
		f := write(t, m, "a", "data")
		must(t, f.Sync())
		must(t, m.SyncDir("/"))
		if rng.IntN(2) == 0 {
			must(t, m.Rename("a", "b"))
			must(t, m.Rename("b", "c"))
		} else {
			must(t, m.Rename("a", "x/c"))
		}
		if rng.IntN(3) == 0 {
			must(t, m.SyncDir("/"))
		}
		c := m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
		found := 0
		for _, name := range []string{"a", "b", "c", "x/c"} {
			if read(t, c, name) == "data" {
				found++
			}
		}
		if found != 1 {
			t.Fatalf("%d copies:\n%s", found, c)
		}
	}
}

// TestPagesOfACrash checks every page of a crash clone against the versions that the file has had since its sync.
func TestPagesOfACrash(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	m := NewMem()
	f := write(t, m, "a", "")
	must(t, m.SyncDir("/"))
	const pages = 16
	var synced, now [pages]byte
	size, syncedSize := int64(0), int64(0)
	torn := 0
	for range 2000 {
		switch rng.IntN(6) {
		case 0:
			must(t, f.SyncData())
			synced, syncedSize = now, size
		case 1:
			size = rng.Int64N(pages) * PageSize
			must(t, f.Truncate(size))
			for i := size / PageSize; i < pages; i++ {
				now[i] = 0
			}
		default:
			i, v := rng.IntN(pages), byte(1+rng.IntN(255))
			_, err := f.WriteAt(bytes.Repeat([]byte{v}, PageSize), int64(i)*PageSize)
			must(t, err)
			now[i] = v
			size = max(size, int64(i+1)*PageSize)
		}
		for _, percent := range []int{0, 50, 100} {
			got := read(t, m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), "a")
			switch {
			case percent == 0 && int64(len(got)) != syncedSize, percent == 100 && int64(len(got)) != size,
				int64(len(got)) > max(size, syncedSize), int64(len(got)) < min(size, syncedSize):
				t.Fatalf("%d %%: %d bytes, synced %d, written %d", percent, len(got), syncedSize, size)
			}
			for i := range len(got) / PageSize {
				page := got[i*PageSize : (i+1)*PageSize]
				old, cur := bytes.Count([]byte(page), []byte{synced[i]}), bytes.Count([]byte(page), []byte{now[i]})
				switch {
				case percent == 0 && old != PageSize, percent == 100 && cur != PageSize,
					synced[i] != now[i] && old+cur != PageSize, synced[i] == now[i] && old != PageSize:
					t.Fatalf("%d %%: page %d: %d bytes synced, %d written", percent, i, old, cur)
				case old != PageSize && cur != PageSize:
					torn++
				}
			}
		}
	}
	if torn == 0 {
		t.Fatal("no page was ever torn")
	}
}

func TestPebbleSurvivesCrashesOfThisDisk(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	open := func(m *Mem) *pebble.DB {
		db, err := pebble.Open("db", &pebble.Options{FS: m, MemTableSize: 64 << 10, Logger: quiet{}})
		must(t, err)
		return db
	}
	m := NewMem()
	db := open(m)
	acked := 0
	for round := range 20 {
		for range 20 {
			must(t, db.Set(fmt.Appendf(nil, "%06d", acked), bytes.Repeat([]byte("v"), 1000), pebble.Sync))
			acked++
		}
		if round%5 == 4 {
			must(t, db.Flush())
		}
		must(t, db.Set([]byte("zz"), []byte("not synced"), pebble.NoSync))
		c := m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * rng.IntN(3), RNG: rng})
		must(t, db.Close())
		m = c
		db = open(m)
		for i := range acked {
			_, closer, err := db.Get(fmt.Appendf(nil, "%06d", i))
			if err != nil {
				t.Fatalf("round %d: key %d of %d: %v\n%s", round, i, acked, err, m)
			}
			closer.Close()
		}
	}
	must(t, db.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func TestInjectedErrorsPreventTheOperation(t *testing.T) {
	m := NewMem()
	var fail Op
	fs := Inject(m, func(op Op, name string) error {
		if op == fail {
			return &os.PathError{Op: op.String(), Path: name, Err: syscall.EIO}
		}
		return nil
	})
	f := write(t, fs, "a", "1")
	for _, op := range []Op{OpWrite, OpSync, OpTruncate, OpRead} {
		fail = op
		_, werr := f.WriteAt([]byte("2"), 0)
		_, rerr := f.ReadAt(make([]byte, 1), 0)
		for got, err := range map[Op]error{OpWrite: werr, OpRead: rerr, OpSync: f.SyncData(), OpTruncate: f.Truncate(1)} {
			if (got == op) != errors.Is(err, syscall.EIO) {
				t.Errorf("fail %s: %s gives %v", op, got, err)
			}
		}
	}
	fail = OpSyncDir
	if err := fs.SyncDir("/"); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	fail = OpRename
	if err := fs.Rename("a", "b"); !errors.Is(err, syscall.EIO) || read(t, m, "a") != "2" {
		t.Fatal(err)
	}
}

func TestAlignedMemory(t *testing.T) {
	b, err := Aligned(3 * PageSize)
	must(t, err)
	if err := Lock(b); err != nil {
		t.Log(err) // depends on the machine's limit
	}
	for i := range b {
		b[i] = 1
	}
	must(t, Free(b))
	must(t, Free(nil))
}

func TestDirectWritesAreDurable(t *testing.T) {
	m := NewMem()
	write(t, m, "a", "x").Close()
	must(t, m.SyncDir("/"))
	f, err := m.OpenDirect("a")
	must(t, err)
	page := bytes.Repeat([]byte("p"), PageSize)
	_, err = f.WriteAt(page, 0)
	must(t, err)
	if got := read(t, crash(m, 0), "a"); got != string(page) {
		t.Fatalf("%d bytes", len(got))
	}
	if _, err := f.WriteAt(page[:100], 0); err == nil {
		t.Fatal("an unaligned direct write must fail")
	}

	name := filepath.Join(t.TempDir(), "a")
	write(t, Disk(), name, string(page)).Close()
	f, err = Disk().OpenDirect(name)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	must(t, err)
	b, err := Aligned(PageSize)
	must(t, err)
	defer Free(b)
	b[0] = 'q'
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Close())
	if read(t, Disk(), name)[0] != 'q' {
		t.Fatal("not written")
	}
}

func TestMadeDirectoriesOutliveAPowerCut(t *testing.T) {
	m := NewMem()
	must(t, MkdirAll(m, "a/b/c"))
	if fi, err := crash(m, 0).Stat("a/b/c"); err != nil || !fi.IsDir() {
		t.Fatal(err)
	}
	must(t, MkdirAll(Disk(), filepath.Join(t.TempDir(), "x", "y")))
}

// A sync that fails leaves what the system believes to be on the disk, and a crash shows that it is not.
func TestAFailedSyncLosesWhatItWasToWrite(t *testing.T) {
	mem := NewMem()
	f := write(t, mem, "a", "old.")
	must(t, f.Sync())
	must(t, mem.SyncDir("/"))
	_, err := f.WriteAt([]byte("new."), 0)
	must(t, err)
	if err := mem.FailSync("a"); !errors.Is(err, syscall.EIO) {
		t.Errorf("the sync: %v", err)
	}
	must(t, f.Sync())
	if got, want := read(t, mem, "a"), "new."; got != want {
		t.Errorf("read back %q, want %q", got, want)
	}
	if got, want := read(t, mem.PowerCut(), "a"), "old."; got != want {
		t.Errorf("after a power cut %q, want %q", got, want)
	}
	_, err = f.WriteAt([]byte("n"), 0)
	must(t, err)
	must(t, f.Sync())
	if got, want := read(t, mem.PowerCut(), "a"), "new."; got != want {
		t.Errorf("written again and after a power cut %q, want %q", got, want)
	}
	if err := mem.FailSync("b"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}
