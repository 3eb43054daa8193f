package fsx

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// What is written around the page cache and what is written through it are one file, wherever the pieces begin and end,
// and whoever has read it before.
func TestWritesAroundThePageCacheAreTheFile(t *testing.T) {
	fs := Disk()
	name := filepath.Join(t.TempDir(), "a")
	f, err := fs.CreateFile(name)
	must(t, err)
	reader, err := fs.OpenFile(name)
	must(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	var want []byte
	for range 60 {
		p := make([]byte, 1+rng.IntN([]int{100, 5000, aroundMinForTest, 3 << 20}[rng.IntN(4)]))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		at := len(want)
		if rng.IntN(4) == 0 {
			at = rng.IntN(len(want) + 1)
		}
		must(t, f.Preallocate(int64(at), int64(len(p))))
		n, err := f.WriteAround(p, int64(at))
		if n != len(p) || err != nil {
			t.Fatalf("%d of %d bytes at %d: %v", n, len(p), at, err)
		}
		want = append(want[:at], append(p, want[min(len(want), at+len(p)):]...)...)
		if rng.IntN(2) == 0 {
			must(t, f.SyncData())
		}
		got := make([]byte, len(want)+1)
		n, err = reader.ReadAt(got, 0)
		if n != len(want) || err != io.EOF || !bytes.Equal(got[:n], want) {
			t.Fatalf("after %d bytes at %d: the file has %d bytes, want %d, %v", len(p), at, n, len(want), err)
		}
	}
	must(t, f.Close())
	must(t, reader.Close())
	got, err := os.ReadFile(name)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the file differs when it is closed")
	}
}

// A file that was renamed or removed while it was open is still the one that is written.
func TestAWriteAroundFollowsTheFile(t *testing.T) {
	fs := Disk()
	dir := t.TempDir()
	f, err := fs.CreateFile(filepath.Join(dir, "a"))
	must(t, err)
	must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("another"), 0o600))
	p := bytes.Repeat([]byte("x"), 1<<20)
	_, err = f.WriteAround(p, 0)
	must(t, err)
	must(t, f.Close())
	if got, _ := os.ReadFile(filepath.Join(dir, "b")); !bytes.Equal(got, p) {
		t.Errorf("the renamed file has %d bytes", len(got))
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "a")); string(got) != "another" {
		t.Errorf("the file at the old name has %d bytes", len(got))
	}
	if _, err := f.WriteAround(p, 0); err == nil {
		t.Error("a write to a closed file")
	}
}

const aroundMinForTest = 600 << 10

// BenchmarkWriteAround writes a new file of 64 MiB in pieces of 1 MiB, in turn around and through the page cache. The
// second has to find memory for every page.
func BenchmarkWriteAround(b *testing.B) {
	p := make([]byte, 1<<20)
	for _, c := range []struct {
		name  string
		write func(File, int64) error
	}{
		{"around", func(f File, at int64) error { _, err := f.WriteAround(p, at); return err }},
		{"through", func(f File, at int64) error {
			if _, err := f.WriteAt(p, at); err != nil {
				return err
			}
			return f.WriteBack(at, int64(len(p)))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(64 << 20)
			for range b.N {
				name := filepath.Join(b.TempDir(), "a")
				f, err := Disk().CreateFile(name)
				must(b, err)
				for i := range int64(64) {
					must(b, c.write(f, i<<20))
				}
				must(b, f.SyncData())
				must(b, f.Close())
				must(b, os.Remove(name))
			}
		})
	}
}
