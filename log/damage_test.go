package log

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
)

// filled is a store whose partition 0 is in files of its own and whose partition 1 is in the mixed segment;
// nothing is in memory.
func filled(t *testing.T, fs fsx.FS) (*Store, *model) {
	t.Helper()
	s := openTest(t, Options{FS: fs, CacheBytes: 1, RetryDelay: time.Millisecond})
	m := newModel()
	apply := func(u *Unit) {
		index, _ := s.Applied()
		data := EncodeEntry(nil, int64(index), []*Unit{u})
		e, _ := DecodeEntry(data)
		if err := compareResults(s.Apply(index+1, 1, data), m.apply(index+1, 1, e)); err != nil {
			t.Fatal(err)
		}
	}
	var u Unit
	for i := range int32(2) {
		u.PartitionOpen(PartitionID{TopicID{7}, i}, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
	}
	apply(&u)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		u.Reset()
		b := record.NewBuilder()
		v := make([]byte, 700)
		for i := range v {
			v[i] = byte(r.Uint32())
		}
		b.Append(int64(1000+i), nil, v, nil)
		batch := b.Finish()
		u.Append(PartitionID{TopicID{7}, 0}, batch)
		if i%20 == 0 {
			u.Append(PartitionID{TopicID{7}, 1}, batch)
		}
		apply(&u)
		if i%15 == 14 {
			if _, err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trimCache()
	return s, m
}

// files lists the files under dir that f accepts, with their sizes.
func files(t *testing.T, fs fsx.FS, dir string, f func(name string) bool) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p := path.Join(dir, name)
		info, err := fs.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			for p, n := range files(t, fs, p, f) {
				out[p] = n
			}
		} else if f(p) {
			out[p] = info.Size()
		}
	}
	return out
}

// TestFlippedBitsAreNamedAndNeverServed flips one bit at many places of every segment and index file.
func TestFlippedBitsAreNamedAndNeverServed(t *testing.T) {
	mem := fsx.NewMem()
	var named atomic.Int64
	s, m := filled(t, mem)
	s.opts.Events.Corrupt = func(*CorruptError) { named.Add(1) }
	targets := files(t, mem, "store", func(p string) bool {
		return strings.HasSuffix(p, ".log") && !strings.Contains(p, "/kv/") || strings.HasSuffix(p, ".index")
	})
	if len(targets) < 7 {
		t.Fatalf("only %v", targets)
	}
	flips, found := 0, 0
	for name, size := range targets {
		f, err := mem.OpenFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(0); at < size; at += 1 + size/70 {
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				t.Fatal(err)
			}
			bad := [1]byte{b[0] ^ 1<<(at%8)}
			if _, err := f.WriteAt(bad[:], at); err != nil {
				t.Fatal(err)
			}
			s.indexes.m = nil // nothing is remembered of before
			flips++
			if err := readAllOrCorrupt(s, m); err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s byte %d: %v", name, at, err)
				}
				var ce *CorruptError
				if !errors.As(err, &ce) || !strings.HasSuffix(name, ce.Path) {
					t.Fatalf("%s byte %d: blamed %v", name, at, err)
				}
				found++
			}
			if _, err := f.WriteAt(b[:], at); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.indexes.m = nil
	if err := readAllOrCorrupt(s, m); err != nil {
		t.Fatalf("with every bit back: %v", err)
	}
	t.Logf("%d flips, %d named", flips, found)
	if found != flips || named.Load() < int64(found) {
		t.Errorf("%d of %d flips were noticed, %d told", found, flips, named.Load())
	}
}

// readAllOrCorrupt reads everything from batch to batch and holds what comes against the model.
func readAllOrCorrupt(s *Store, m *model) error {
	for _, id := range s.Partitions() {
		p, _ := s.Partition(id)
		i := 0
		for at := int64(0); at < p.LogEnd(); {
			got, err := p.Read(at, 1500, nil)
			for _, b := range got {
				if string(b.AppendTo(nil)) != string(m.parts[id].batches[i].Data) || b.Base != at {
					return fmt.Errorf("served other bytes at %d", at)
				}
				at = b.Last + 1
				i++
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func TestABatchInTheWrongPlaceIsCorrupt(t *testing.T) {
	mem := fsx.NewMem()
	s, _ := filled(t, mem)
	logs := files(t, mem, "store/topics", func(p string) bool { return strings.HasSuffix(p, ".log") })
	for name := range logs {
		f, err := mem.OpenFile(name)
		if err != nil {
			t.Fatal(err)
		}
		// The second batch over the first: intact, of the right size, from the same partition.
		size := int64(record.HeaderSize + 700 + 8)
		b := make([]byte, size)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		h, err := record.ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		b = make([]byte, h.Size())
		if _, err := f.ReadAt(b, int64(h.Size())); err != nil {
			t.Fatal(err)
		}
		record.SetBase(b, h.BaseOffset, h.LeaderEpoch)
		if _, err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		p, _ := s.Partition(PartitionID{TopicID{7}, 0})
		if got, err := p.Read(h.BaseOffset, 1, nil); !errors.Is(err, ErrCorrupt) || len(got) != 0 {
			t.Errorf("%s: %d batches, %v", name, len(got), err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFullDiskDegradesAndRecoversWithoutARestart(t *testing.T) {
	for _, where := range []string{"topics", "mixed", "kv"} {
		t.Run(where, func(t *testing.T) {
			var full atomic.Bool
			var refused atomic.Int64
			fs := fsx.Inject(fsx.NewMem(), func(op fsx.Op, name string) error {
				if full.Load() && (op == fsx.OpWrite || op == fsx.OpCreate) && strings.Contains(name, where) {
					refused.Add(1)
					return syscall.ENOSPC
				}
				return nil
			})
			s, m := filled(t, fs)
			full.Store(true)
			for range 12 {
				var u Unit
				b := record.NewBuilder()
				size := 700
				if where == "mixed" {
					size = 10
				}
				b.Append(2000, nil, make([]byte, size), nil)
				batch := b.Finish()
				for i := range int32(2) {
					if where == "mixed" && i == 0 || where == "topics" && i == 1 {
						continue
					}
					u.Append(PartitionID{TopicID{7}, i}, batch)
				}
				index, _ := s.Applied()
				data := EncodeEntry(nil, int64(index), []*Unit{&u})
				e, _ := DecodeEntry(data)
				if err := compareResults(s.Apply(index+1, 1, data), m.apply(index+1, 1, e)); err != nil {
					t.Fatal(err)
				}
				if where == "mixed" {
					break // stay thin
				}
			}
			if where == "kv" {
				// Pebble waits for space; the checkpoint returns when there is some.
				done := make(chan error, 1)
				go func() {
					_, err := s.Checkpoint(t.Context())
					done <- err
				}()
				for s.Err() == nil {
					select {
					case err := <-done:
						t.Fatalf("checkpoint on a full disk: %v", err)
					default:
					}
				}
				if err := readAllOrCorrupt(s, m); err != nil {
					t.Fatalf("reads while the disk is full: %v", err)
				}
				full.Store(false)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			} else {
				if _, err := s.Checkpoint(t.Context()); !errors.Is(err, ErrDegraded) || !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("checkpoint on a full disk: %v", err)
				}
				if err := s.Err(); !errors.Is(err, ErrDegraded) {
					t.Fatalf("state: %v", err)
				}
				if err := readAllOrCorrupt(s, m); err != nil {
					t.Fatalf("reads while the disk is full: %v", err)
				}
				full.Store(false)
				if _, err := s.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if s.Err() != nil || refused.Load() == 0 {
				t.Fatalf("after space came back: %v, %d writes refused", s.Err(), refused.Load())
			}
			s.trimCache()
			if err := m.compare(s); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAFailedSyncIsFinal(t *testing.T) {
	var fail atomic.Bool
	mem := fsx.NewMem()
	fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
		if op == fsx.OpSync && strings.Contains(name, "mixed") && fail.Swap(false) {
			return syscall.EIO
		}
		return nil
	})
	s, m := filled(t, fs)
	var u Unit
	b := record.NewBuilder()
	b.Append(1, nil, []byte("x"), nil)
	u.Append(PartitionID{TopicID{7}, 1}, b.Finish())
	index, _ := s.Applied()
	data := EncodeEntry(nil, 1, []*Unit{&u})
	s.Apply(index+1, 1, data)
	e, _ := DecodeEntry(data)
	m.apply(index+1, 1, e)
	fail.Store(true)
	for i := range 2 {
		if _, err := s.Checkpoint(t.Context()); !errors.Is(err, ErrPoisoned) {
			t.Fatalf("checkpoint %d: %v", i, err)
		}
	}
	if s.Durable() != index || !errors.Is(s.Err(), ErrPoisoned) {
		t.Fatalf("durable %d, %v", s.Durable(), s.Err())
	}
	if err := readAllOrCorrupt(s, m); err != nil {
		t.Fatalf("reads: %v", err)
	}
}

// After a sync that failed the system reads back what is not on the disk, and later syncs succeed without writing it. A
// process that starts then believes nothing that no checkpoint holds.
func TestAStartAfterAFailedSyncWritesAgain(t *testing.T) {
	for _, where := range []string{"/topics/.log", "/topics/.index", "/mixed/.log"} {
		t.Run(where, func(t *testing.T) {
			var fail atomic.Bool
			mem := fsx.NewMem()
			fs := fsx.Inject(mem, func(op fsx.Op, name string) error {
				if op == fsx.OpSync && strings.Contains(name, path.Dir(where)+"/") && strings.HasSuffix(name, path.Ext(where)) && fail.Load() {
					return mem.FailSync(name)
				}
				return nil
			})
			s, m := filled(t, fs)
			apply := func(u *Unit) {
				index, _ := s.Applied()
				data := EncodeEntry(nil, int64(index), []*Unit{u})
				e, _ := DecodeEntry(data)
				if err := compareResults(s.Apply(index+1, 1, data), m.apply(index+1, 1, e)); err != nil {
					t.Fatal(err)
				}
			}
			batch := func(value []byte) []byte {
				b := record.NewBuilder()
				b.Append(5000, nil, value, nil)
				return b.Finish()
			}
			var u Unit
			u.PartitionOpen(PartitionID{TopicID{7}, 2}, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
			apply(&u)
			u.Reset()
			u.Append(PartitionID{TopicID{7}, 2}, batch([]byte("thin")))
			for i := range 40 {
				u.Append(PartitionID{TopicID{7}, 0}, batch(bytes.Repeat([]byte{byte(i)}, 600)))
				apply(&u)
				u.Reset()
			}
			if _, err := s.Step(); err != nil {
				t.Fatal(err)
			}
			if err := s.flushDB(t.Context()); err != nil { // as a full memtable does: the rows outlive the process
				t.Fatal(err)
			}
			fail.Store(true)
			if _, err := s.Checkpoint(t.Context()); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("checkpoint: %v", err)
			}
			fail.Store(false)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			index, _ := s.Applied()

			again, err := Open(testOptions(Options{FS: fs, Log: fakeLog{1, index, 1}}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := again.Checkpoint(t.Context()); err != nil {
				t.Fatal(err)
			}
			durable := again.Durable()
			cut := mem.PowerCut()
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
			last, err := Open(testOptions(Options{FS: cut, Log: fakeLog{durable + 1, durable, 1}}))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.compare(last); err != nil {
				t.Error(err)
			}
			if err := last.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A mixed file of which a process wrote runs that are gone, before it ended without a checkpoint, is a name that nobody
// has synced. The next process writes on in it.
func TestTheNameOfAMixedFileIsSyncedAfterARestart(t *testing.T) {
	mem := fsx.NewMem()
	m := newModel()
	apply := func(s *Store, u *Unit) {
		t.Helper()
		index, _ := s.Applied()
		data := EncodeEntry(nil, int64(index), []*Unit{u})
		e, _ := DecodeEntry(data)
		if err := compareResults(s.Apply(index+1, 1, data), m.apply(index+1, 1, e)); err != nil {
			t.Fatal(err)
		}
	}
	open := func(fs fsx.FS, index uint64) *Store {
		t.Helper()
		o := Options{FS: fs}
		if index > 0 {
			o.Log = fakeLog{1, index, 1}
		}
		s, err := Open(testOptions(o))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	thin := func(s *Store, id PartitionID) {
		t.Helper()
		b := record.NewBuilder()
		b.Append(5000, nil, []byte("thin"), nil)
		var u Unit
		u.Append(id, b.Finish())
		apply(s, &u)
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(mem, 0)
	var u Unit
	for i := range int32(2) {
		u.PartitionOpen(PartitionID{TopicID{7}, i}, PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
	}
	apply(s, &u)
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	thin(s, PartitionID{TopicID{7}, 0})
	u.Reset()
	u.PartitionDrop(PartitionID{TopicID{7}, 0}, 2)
	apply(s, &u)
	if _, err := s.Step(); err != nil {
		t.Fatal(err)
	}
	if err := s.flushDB(t.Context()); err != nil { // the rows outlive the process
		t.Fatal(err)
	}
	index, _ := s.Applied()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(mem, index)
	thin(s, PartitionID{TopicID{7}, 1})
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	index, _ = s.Applied()
	cut := mem.PowerCut()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(cut, index)
	if err := m.compare(s); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAStoreAheadOfItsLogSaysSo(t *testing.T) {
	mem := fsx.NewMem()
	s, _ := filled(t, mem)
	index, _ := s.Applied()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		log  EntryLog
		want error
	}{
		{"shorter log", fakeLog{1, index - 1, 1}, ErrAheadOfLog},
		{"other term", fakeLog{1, index + 5, 2}, ErrAheadOfLog},
		{"empty log, all of it in the checkpoint", fakeLog{}, nil},
		{"same", fakeLog{index, index, 1}, nil},
		{"released up to the applied index", fakeLog{index + 1, index + 1, 1}, nil},
	} {
		s, err := Open(testOptions(Options{FS: mem, Log: c.log}))
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Open(testOptions(Options{FS: mem, Log: fakeLog{index + 2, index + 9, 1}})); err == nil {
		t.Error("a log that begins after the store's next entry was accepted")
	}
}

type fakeLog struct{ first, last, term uint64 }

func (l fakeLog) SyncTo(uint64) error { return nil }

func (l fakeLog) Bounds() (first, last uint64) { return l.first, l.last }

func (l fakeLog) ReadEntry(index uint64) (term uint64, data []byte, err error) {
	return l.term, nil, nil
}
