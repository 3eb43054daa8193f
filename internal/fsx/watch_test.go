package fsx

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A blocker is a file system whose operations wait for leave.
type blocker struct {
	begun chan struct{}
	leave chan struct{}
	on    atomic.Bool
}

func (b *blocker) before(Op, string) error {
	if b.on.Load() {
		b.begun <- struct{}{}
		<-b.leave
	}
	return nil
}

// TestEveryOperationInFlightIsSeen blocks every operation in turn and looks at it from outside.
func TestEveryOperationInFlightIsSeen(t *testing.T) {
	b := &blocker{begun: make(chan struct{}), leave: make(chan struct{})}
	var now atomic.Int64
	w := Watch(Inject(NewMem(), b.before), now.Load)
	must(t, w.MkdirAll("d", 0o755))
	f := write(t, w, "d/f", "hello")
	old, err := w.Create("d/p", Category)
	must(t, err)
	dir, err := w.OpenDir("d")
	must(t, err)
	buf := make([]byte, 1)
	closing := func(c io.Closer, err error) error {
		if err != nil {
			return err
		}
		b.on.Store(false)
		return c.Close()
	}
	for _, c := range []struct {
		want string
		do   func() error
	}{
		{"create d/a", func() error { return closing(w.CreateFile("d/a")) }},
		{"create d/b", func() error { return closing(w.Create("d/b", Category)) }},
		{"open d/a", func() error { return closing(w.OpenFile("d/a")) }},
		{"open d/a", func() error { return closing(w.Open("d/a")) }},
		{"open d/a", func() error { return closing(w.OpenReadWrite("d/a", Category)) }},
		{"open d", func() error { return closing(w.OpenDir("d")) }},
		{"write d/f", func() error { _, err := f.WriteAt(buf, 0); return err }},
		{"write d/f", func() error { _, err := f.WriteAround(buf, 0); return err }},
		{"write d/p", func() error { _, err := old.Write(buf); return err }},
		{"read d/f", func() error { _, err := f.ReadAt(buf, 0); return err }},
		{"preallocate d/f", func() error { return f.Preallocate(0, 1) }},
		{"truncate d/f", func() error { return f.Truncate(1) }},
		{"sync d/f", f.Sync},
		{"sync d/f", f.SyncData},
		{"sync d/p", func() error { _, err := old.SyncTo(1); return err }},
		{"syncdir d", dir.Sync},
		{"syncdir d", func() error { return w.SyncDir("d") }},
		{"rename d/c", func() error { return w.Rename("d/a", "d/c") }},
		{"link d/l", func() error { return w.Link("d/c", "d/l") }},
		{"rename d/m", func() error { return closing(w.ReuseForWrite("d/l", "d/m", Category)) }},
		{"list d", func() error { _, err := w.List("d"); return err }},
		{"stat d/c", func() error { _, err := w.Stat("d/c"); return err }},
		{"mkdir d/e", func() error { return w.MkdirAll("d/e", 0o755) }},
		{"lock d/k", func() error { return closing(w.Lock("d/k")) }},
		{"remove d/c", func() error { return w.Remove("d/c") }},
		{"remove d/e", func() error { return w.RemoveAll("d/e") }},
	} {
		b.on.Store(true)
		ended := make(chan error, 1)
		go func() { ended <- c.do() }()
		<-b.begun
		now.Add(int64(3 * time.Second))
		got := w.Pending(2*time.Second, nil)
		if len(got) != 1 || got[0].String() != c.want || got[0].Age != 3*time.Second {
			t.Errorf("%s: in flight are %v", c.want, got)
		}
		if got := w.Pending(4*time.Second, nil); len(got) != 0 {
			t.Errorf("%s: in flight for 4 s are %v", c.want, got)
		}
		b.leave <- struct{}{}
		must(t, <-ended)
		b.on.Store(false)
		if got := w.Pending(0, nil); len(got) != 0 {
			t.Errorf("%s: after its return %v", c.want, got)
		}
	}
	must(t, errors.Join(f.Close(), old.Close(), dir.Close()))
}

// TestOperationsInFlightAreInOrder has many begin and end in any order.
func TestOperationsInFlightAreInOrder(t *testing.T) {
	var now atomic.Int64
	w := Watch(NewMem(), now.Load)
	var open []*flying
	for i := range 300 {
		now.Add(1)
		open = append(open, w.begin(OpWrite, fmt.Sprint(i)))
		if i%3 == 2 {
			k := i * 7 % len(open)
			w.end(open[k])
			open = slices.Delete(open, k, k+1)
		}
	}
	got := w.Pending(0, nil)
	if len(got) != len(open) {
		t.Fatalf("%d in flight, want %d", len(got), len(open))
	}
	for i, p := range got {
		if p.Name != open[i].name || p.ID != open[i].id || p.Age != time.Duration(now.Load()-open[i].start) {
			t.Fatalf("number %d is %v, want %q", i, p, open[i].name)
		}
	}
	for _, f := range open {
		w.end(f)
	}
	if allocs := testing.AllocsPerRun(100, func() { w.end(w.begin(OpRead, "x")) }); allocs != 0 {
		t.Errorf("an operation allocates %v times", allocs)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				w.end(w.begin(OpRead, "x"))
				w.Pending(0, nil)
			}
		})
	}
	wg.Wait()
	if got := w.Pending(0, nil); len(got) != 0 {
		t.Errorf("in flight at the end: %v", got)
	}
}

// TestAWatchedFileSystemIsTheSame: direct writes that are not supported stay so, and what is below is found.
func TestAWatchedFileSystemIsTheSame(t *testing.T) {
	mem := NewMem()
	w := Watch(mem, nil)
	if vfs.Root(w) != vfs.FS(mem) {
		t.Errorf("below is %T", vfs.Root(w))
	}
	if _, err := w.OpenFile("none"); err == nil {
		t.Error("opened a file that is not there")
	}
	if got := w.Pending(0, nil); len(got) != 0 {
		t.Errorf("in flight: %v", got)
	}
}
