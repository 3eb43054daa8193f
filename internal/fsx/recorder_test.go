package fsx

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dump is everything in a file system, for comparing.
func dump(t *testing.T, fs FS, dir string) string {
	t.Helper()
	var out strings.Builder
	names, err := fs.List(dir)
	must(t, err)
	for _, name := range names {
		p := path.Join(dir, name)
		fi, err := fs.Stat(p)
		must(t, err)
		if fi.IsDir() {
			fmt.Fprintf(&out, "%s/\n%s", p, dump(t, fs, p))
			continue
		}
		f, err := fs.OpenFile(p)
		must(t, err)
		b := make([]byte, fi.Size())
		if n, err := f.ReadAt(b, 0); n < len(b) || err != nil && err != io.EOF {
			t.Fatal(n, err)
		}
		must(t, f.Close())
		fmt.Fprintf(&out, "%s %d %x\n", p, len(b), sum64(b))
	}
	return out.String()
}

// scribble does n random operations, as a log, a store and Pebble do them.
func scribble(t *testing.T, fs FS, rng *rand.Rand, n int) {
	t.Helper()
	name := func() string { return fmt.Sprintf("%c/%d", 'a'+rune(rng.IntN(3)), rng.IntN(4)) }
	for _, dir := range []string{"a", "b", "c"} {
		must(t, fs.MkdirAll(dir, 0o755))
	}
	bytes := func() []byte {
		b := make([]byte, 1+rng.IntN(9000))
		if rng.IntN(4) > 0 {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		}
		return b
	}
	for range n {
		p := name()
		_, err := fs.Stat(p)
		there := err == nil
		switch k := rng.IntN(20); {
		case k < 2:
			f, err := fs.CreateFile(p)
			must(t, err)
			must(t, f.Close())
		case k < 4:
			f, err := fs.Create(p, Category)
			must(t, err)
			_, err = f.Write(bytes())
			must(t, err)
			_, err = f.Write(bytes())
			must(t, err)
			must(t, f.Close())
		case k == 4:
			must(t, fs.SyncDir([]string{"a", "b", "c", ""}[rng.IntN(4)]))
		case k == 5 && there:
			q := name()
			if q != p {
				must(t, fs.Rename(p, q))
			}
		case k == 6 && there:
			must(t, fs.Remove(p))
		case k == 7 && there:
			q := name()
			if _, err := fs.Stat(q); err != nil {
				must(t, fs.Link(p, q))
			}
		case there:
			f, err := fs.OpenFile(p)
			must(t, err)
			switch {
			case k < 10:
				must(t, f.Truncate(rng.Int64N(20_000)))
			case k < 12:
				must(t, f.SyncData())
			case k == 12:
				d, err := fs.OpenDirect(p)
				must(t, err)
				must(t, f.Sync())
				_, err = d.WriteAt(make([]byte, PageSize), PageSize*rng.Int64N(4))
				must(t, err)
				must(t, d.Close())
			default:
				_, err = f.WriteAt(bytes(), rng.Int64N(12_000))
				must(t, err)
			}
			must(t, f.Close())
		}
	}
}

// TestImagesAgreeWithTheMemoryDisk holds the first and the last of all choices, nothing and everything that was not
// synced, against what the memory disk says of the same operations.
func TestImagesAgreeWithTheMemoryDisk(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := NewMem()
		scribble(t, m, rng, 20)
		m = m.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100})
		r := Record(m)
		for place := range 6 {
			scribble(t, r, rng, 15)
			var images []Image
			for im := range r.Recording().Images(ImageOptions{Every: 1 << 30, PerPlace: 2}) {
				if im.Place == r.Recording().Len() {
					images = append(images, im)
					if im.Hash != im.FS.Hash() {
						t.Fatalf("%s: hash %x, that of its bytes is %x", im.String(), im.Hash, im.FS.Hash())
					}
				}
			}
			if len(images) == 0 {
				t.Fatal("no images")
			}
			lost := m.CrashClone(vfs.CrashCloneCfg{})
			if got, want := dump(t, images[0].FS, ""), dump(t, lost, ""); got != want {
				t.Fatalf("seed %d place %d: nothing unsynced:\n%s\nthe disk:\n%s", seed, place, got, want)
			}
			if got, want := dump(t, images[len(images)-1].FS, ""), dump(t, m, ""); got != want {
				t.Fatalf("seed %d place %d: everything:\n%s\nthe disk:\n%s", seed, place, got, want)
			}
		}
	}
}

// TestImagesAreWhatTheirKindSays looks at a rename, a torn write and a direct one.
func TestImagesAreWhatTheirKindSays(t *testing.T) {
	r := Record(NewMem())
	f, err := r.CreateFile("new")
	must(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("x", 1000)), 100)
	must(t, err)
	must(t, r.Rename("new", "name"))
	r.Mark("renamed")
	must(t, r.SyncDir(""))
	d, err := r.OpenDirect("name")
	must(t, err)
	_, err = d.WriteAt(make([]byte, PageSize), 0)
	must(t, err)
	found := map[string]bool{}
	seen := map[uint64]bool{}
	for im := range r.Recording().Images(ImageOptions{Random: 4}) {
		text := dump(t, im.FS, "")
		if strings.Contains(im.Kind, "cut after") || strings.Contains(im.Kind, "garbage") {
			found[im.Kind] = true
		}
		switch names, _ := im.FS.List(""); {
		case len(names) > 1:
			t.Fatalf("%s: a rename is atomic: %s", im.String(), text)
		case len(names) == 1 && names[0] == "name" && strings.HasPrefix(text, "name 0 "):
			found["renamed early"] = true
		case len(names) == 0 && im.Place > 4:
			t.Fatalf("%s: a synced name is gone", im.String())
		}
		if im.Mark == "renamed" {
			found["mark"] = true
		}
		if im.Place == r.Recording().Len() && !strings.HasPrefix(text, "name 4096 ") {
			t.Fatalf("%s: a direct write is not durable: %s", im.String(), text)
		}
		seen[im.Hash] = true
	}
	for _, want := range []string{"renamed early", "mark", "operation 1 cut after 412 bytes", "operation 1 cut after 924 bytes", "operation 1 left garbage"} {
		if !found[want] {
			t.Errorf("no image: %s", want)
		}
	}
	if len(seen) < 15 {
		t.Errorf("%d different images", len(seen))
	}
}
