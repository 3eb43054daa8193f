package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/wal"
)

// TestAFetchOfHistoryKeepsItsDeadline: once it has records, a fetch does not wait for turns to read more of them beyond
// the time that its client gives it.
func TestAFetchOfHistoryKeepsItsDeadline(t *testing.T) {
	s, err := log.Open(log.Options{FS: fsx.NewMem(), Dir: "d", CacheBytes: 1, ReadPause: 10 * time.Hour}) // a turn of minutes
	if err != nil {
		t.Fatal(err)
	}
	batch := record.NewBuilder()
	batch.Append(1, nil, make([]byte, 10_000), nil)
	data := batch.Finish()
	var index uint64
	apply := func(fill func(u *log.Unit)) {
		u := new(log.Unit)
		fill(u)
		index++
		s.Apply(index, 1, log.EncodeEntry(nil, int64(index), []*log.Unit{u}))
	}
	b := &Broker{opts: Options{FetchBytes: 1 << 20, FetchMemory: 1 << 20}}
	r := &FetchRequest{MaxBytes: 1 << 20, session: new(FetchSession), broker: b}
	for i := range int32(3) {
		id := log.PartitionID{Topic: log.TopicID{1}, Index: i}
		apply(func(u *log.Unit) {
			u.PartitionOpen(id, log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
		})
		for range 3 {
			apply(func(u *log.Unit) { u.Append(id, data) })
		}
		p, _ := s.Partition(id)
		r.Parts = append(r.Parts, FetchPart{Topic: new(Topic), MaxBytes: len(data), source: p, inited: true})
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(func(u *log.Unit) { u.TaskOpen(log.TaskID{1}) }) // evicts what is in files
	read := func(ctx context.Context) (answered int) {
		if _, failed := b.readAll(ctx, r); failed {
			t.Fatal(r.Parts[0].Err, r.Parts[1].Err, r.Parts[2].Err)
		}
		for i := range r.Parts {
			if p := &r.Parts[i]; len(p.Batches) > 0 {
				if !p.Batches[0].Stored {
					t.Fatal("read from memory")
				}
				p.Offset = p.Batches[0].Last + 1
				answered++
			}
		}
		r.Release()
		return answered
	}
	if n := read(t.Context()); n != 3 {
		t.Errorf("without writers %d parts are answered", n)
	}
	apply(func(u *log.Unit) { u.TaskOpen(log.TaskID{2}) })
	r.Deadline = time.Now()
	if n := read(t.Context()); n != 1 || r.Parts[1].scanned != r.Parts[1].Offset {
		t.Errorf("beside a writer %d parts are answered", n)
	}
	if n := s.Metrics().ReadPauses; n != 2 {
		t.Errorf("%d waits for a turn", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAReaderOfRotIsToldSo: and not that a write has failed, nor that there is no such record.
func TestAReaderOfRotIsToldSo(t *testing.T) {
	fs := fsx.NewMem()
	s, err := log.Open(log.Options{FS: fs, Dir: "d", CacheBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	batch := record.NewBuilder()
	batch.Append(1, nil, []byte("some value"), nil)
	id := log.PartitionID{Topic: log.TopicID{1}}
	for i := range uint64(3) {
		u := new(log.Unit)
		switch i {
		case 0:
			u.PartitionOpen(id, log.PartitionSettings{RetentionMs: -1, RetentionBytes: -1}, 1)
		case 1:
			u.Append(id, batch.Finish())
		case 2: // evicts what is in files
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			u.TaskOpen(log.TaskID{1})
		}
		s.Apply(i+1, 1, log.EncodeEntry(nil, 1, []*log.Unit{u}))
	}
	names, err := fs.List("d/mixed")
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	f, err := fs.OpenFile("d/mixed/" + names[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("S"), 70); err != nil {
		t.Fatal(err)
	}
	p, _ := s.Partition(id)
	part := FetchPart{Topic: new(Topic), source: p}
	new(Broker).read(t.Context(), t.Context(), new(FetchRequest), &part, 1000)
	e := AsError(part.Err)
	if e.Code != RottenRecords || !errors.Is(e, log.ErrCorrupt) || !strings.Contains(e.Message, names[0]) || !strings.Contains(e.Code.Info().Fix, "headrace debug log") {
		t.Errorf("told %v: %v", e, e.Code.Info())
	}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{fmt.Errorf("read entry: %w", &wal.CorruptError{}), RottenRecords},
		{fmt.Errorf("view: %w", &log.CorruptError{}), RottenRecords},
		{syscall.EIO, StorageFailed},
		{&log.OffsetRangeError{}, OffsetOutOfRange},
		{log.ErrClosed, NotReady},
		{context.Canceled, NotReady},
	} {
		if got := AsError(readError(c.err)).Code; got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
