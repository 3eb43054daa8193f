package raftlog

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/internal/fsx"
)

var oneServer = raft.Configuration{Servers: []raft.Server{{ID: "disk", Address: "disk@1"}}}

func save(t *testing.T, s *Snapshots, index uint64, local bool, data string) error {
	t.Helper()
	sink, err := s.Create(1, index, 2, oneServer, 1, nil)
	if err != nil {
		return err
	}
	if _, err := sink.Write([]byte(data)); err != nil {
		return err
	}
	if local {
		sink.(*Sink).Local(index - 1)
	}
	return sink.Close()
}

func listed(t *testing.T, s *Snapshots) uint64 {
	t.Helper()
	l, err := s.List()
	must(t, err)
	if len(l) == 0 {
		return 0
	}
	return l[0].Index
}

func TestTheNewestCheckpointIsListedWithItsConfiguration(t *testing.T) {
	fs := fsx.NewMem()
	s, err := OpenSnapshots(fs, "cp")
	must(t, err)
	must(t, save(t, s, 10, true, "ten"))
	must(t, save(t, s, 20, true, "twenty"))
	for range 2 {
		l, err := s.List()
		must(t, err)
		if len(l) != 1 || l[0].Index != 20 || l[0].Term != 2 || l[0].ConfigurationIndex != 1 || len(l[0].Configuration.Servers) != 1 {
			t.Fatalf("listed %+v", l)
		}
		_, r, err := s.Open(l[0].ID)
		must(t, err)
		if b, _ := io.ReadAll(r); string(b) != "twenty" {
			t.Errorf("data %q", b)
		}
		if m, ok := s.Newest(); !ok || m.Machine != 19 {
			t.Errorf("newest %+v", m)
		}
		if s, err = OpenSnapshots(fs, "cp"); err != nil {
			t.Fatal(err)
		}
	}
	names, err := fs.List("cp")
	must(t, err)
	if len(names) != 1 {
		t.Errorf("files %v", names)
	}
}

// raft trusts a listed snapshot at the next start without restoring it.
func TestAReceivedSnapshotIsPendingUntilTheStoreHasSwitched(t *testing.T) {
	fs := fsx.NewMem()
	s, err := OpenSnapshots(fs, "cp")
	must(t, err)
	must(t, save(t, s, 10, true, ""))
	must(t, save(t, s, 30, false, "from a peer"))
	if got := listed(t, s); got != 10 {
		t.Fatalf("listed %d while pending", got)
	}
	r, err := OpenSnapshots(fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}), "cp")
	must(t, err)
	if got := listed(t, r); got != 10 {
		t.Fatalf("listed %d after a restart while pending", got)
	}
	sink, err := s.Create(1, 30, 2, oneServer, 1, nil)
	must(t, err)
	must(t, sink.Close())
	must(t, s.Promote(sink.ID()))
	if got := listed(t, s); got != 30 {
		t.Fatalf("listed %d after the switch", got)
	}
	r, err = OpenSnapshots(fs, "cp")
	must(t, err)
	if got := listed(t, r); got != 30 {
		t.Fatalf("listed %d after switch and restart", got)
	}
}

// At every operation a crash leaves the old checkpoint or the new one, never none.
func TestAManifestIsReplacedAtomically(t *testing.T) {
	stop := errors.New("crash")
	for n := 0; ; n++ {
		mem := fsx.NewMem()
		s, err := OpenSnapshots(mem, "cp")
		must(t, err)
		must(t, save(t, s, 10, true, ""))
		count := 0
		crashed := false
		s.fs = fsx.Inject(mem, func(fsx.Op, string) error {
			if count == n {
				crashed = true
			}
			count++
			if crashed {
				return stop
			}
			return nil
		})
		err = save(t, s, 20, true, "x")
		for _, percent := range []int{0, 50, 100} {
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(n), 7))})
			r, openErr := OpenSnapshots(clone, "cp")
			if openErr != nil {
				t.Fatalf("crash before operation %d, %d%%: %v", n, percent, openErr)
			}
			got := listed(t, r)
			if got != 20 && (got != 10 || err == nil) {
				t.Errorf("crash before operation %d, %d%%: listed %d, Close said %v", n, percent, got, err)
			}
		}
		if !crashed {
			return
		}
	}
}

func TestADamagedManifestIsAnError(t *testing.T) {
	fs := fsx.NewMem()
	s, err := OpenSnapshots(fs, "cp")
	must(t, err)
	must(t, save(t, s, 10, true, "data"))
	f, err := fs.OpenFile("cp/" + s.mu.name)
	must(t, err)
	_, err = f.WriteAt([]byte{0xff}, 30)
	must(t, err)
	must(t, f.Close())
	if _, err := OpenSnapshots(fs, "cp"); !errors.Is(err, ErrManifest) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeManifest(f *testing.F) {
	b, err := Manifest{Index: 7, Term: 3, Configuration: []byte("c"), Data: []byte("d")}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(manifestMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(b)
		if err != nil {
			if !errors.Is(err, ErrManifest) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		if n, err := DecodeManifest(again); err != nil || n.Index != m.Index || !bytes.Equal(n.Data, m.Data) {
			t.Fatalf("%+v, then %+v, %v", m, n, err)
		}
	})
}
