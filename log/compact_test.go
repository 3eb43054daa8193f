package log

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headrace/headrace/internal/crash"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/segment"
	"github.com/headrace/headrace/log/wal"
)

// keyed is a record as the reference of compaction keeps it.
type keyed struct {
	offset     int64
	ts         int64
	key, value string // "" stands for null in key, and so does nil
	null       bool   // a tombstone
	seen       int64  // of a tombstone: ms of the first pass that met it, 0: none yet
}

// keyedLog is a partition of a compacted topic as one would write it without files: a list of records.
type keyedLog struct {
	all  []keyed // ever written
	kept []keyed

	start, end int64
}

// truncate drops what lies before start.
func (k *keyedLog) truncate(start int64) {
	k.start = start
	k.kept = slices.DeleteFunc(k.kept, func(r keyed) bool { return r.offset < start })
}

func (k *keyedLog) add(r keyed) {
	k.all = append(k.all, r)
	k.kept = append(k.kept, r)
	k.end = r.offset + 1
}

// compact is the reference: one pass over everything below end at a time, ms.
func (k *keyedLog) compact(end, now, retention int64) {
	last := map[string]int64{}
	for _, r := range k.kept {
		if r.offset < end && r.key != "" {
			last[r.key] = r.offset
		}
	}
	out := k.kept[:0]
	for _, r := range k.kept {
		switch {
		case r.offset >= end || r.key == "":
		case last[r.key] != r.offset:
			continue
		case r.null && r.seen > 0 && r.seen+retention <= now:
			continue
		case r.null && r.seen == 0:
			r.seen = now
		}
		out = append(out, r)
	}
	k.kept = out
}

// table is what a reader ends up with that takes everything up to index in all.
func table(records []keyed) map[string]string {
	t := map[string]string{}
	for _, r := range records {
		switch {
		case r.key == "":
		case r.null:
			delete(t, r.key)
		default:
			t[r.key] = r.value
		}
	}
	return t
}

// readKeyed reads a whole partition, checks that its batches are dense, and returns the records.
func readKeyed(p *Partition) (out []keyed, err error) {
	var rd record.Reader
	for at := p.LogStart(); at < p.LogEnd(); {
		batches, err := p.Read(at, 4000, nil)
		if err != nil {
			return out, fmt.Errorf("offset %d: %w", at, err)
		}
		if len(batches) == 0 {
			return out, fmt.Errorf("nothing at offset %d, log end %d", at, p.LogEnd())
		}
		for i := range batches {
			b := &batches[i]
			if i > 0 && b.Base != at || b.Base > at || b.Last < at {
				return out, fmt.Errorf("batch %d to %d at offset %d", b.Base, b.Last, at)
			}
			from := at
			at = b.Last + 1
			if err := rd.Reset(b.AppendTo(nil)); err != nil {
				return out, err
			}
			if rd.Header().Control() {
				continue
			}
			for rd.Next() {
				if r := rd.Record(); r.Offset >= from {
					out = append(out, keyed{offset: r.Offset, ts: r.Timestamp, key: string(r.Key), value: string(r.Value), null: r.Value == nil})
				}
			}
			if rd.Err() != nil {
				return out, rd.Err()
			}
		}
	}
	return out, nil
}

func sameRecords(got, want []keyed) error {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Errorf("%+v is missing", want[i])
		case i >= len(want):
			return fmt.Errorf("%+v is too much", got[i])
		}
		g, w := got[i], want[i]
		if w.seen = 0; g != w {
			return fmt.Errorf("%+v, want %+v", g, w)
		}
	}
	return nil
}

// keyedGenerator makes units for one compacted partition and the reference of it.
type keyedGenerator struct {
	r    *rand.Rand
	id   PartitionID
	log  *keyedLog
	seqs [3]int32
	keys int
}

// unit is one batch of random records, with or without a producer, in any codec.
func (g *keyedGenerator) unit() *Unit {
	b := record.NewBuilder()
	b.SetCodec(record.Codec(g.r.IntN(5)))
	n := 1 + g.r.IntN(6)
	if id := g.r.IntN(4); id > 0 {
		b.SetProducer(int64(id), 0, g.seqs[id-1])
		g.seqs[id-1] += int32(n)
	}
	for range n {
		r := keyed{offset: g.log.end, ts: 1000 + g.r.Int64N(1000), key: fmt.Sprintf("key %d", g.r.IntN(g.keys))}
		var key, value []byte
		if g.r.IntN(20) == 0 {
			r.key = ""
		} else {
			key = []byte(r.key)
		}
		if r.null = g.r.IntN(5) == 0; !r.null {
			r.value = strings.Repeat(fmt.Sprintf("%d ", r.offset), g.r.IntN(30))
			value = []byte(r.value)
		}
		var headers []record.KV
		if g.r.IntN(4) == 0 {
			headers = []record.KV{{Key: "h", Value: []byte("v")}}
		}
		b.Append(r.ts, key, value, headers)
		g.log.add(r)
	}
	u := new(Unit)
	u.Append(g.id, b.Finish())
	return u
}

var compactAll = PartitionSettings{RetentionMs: -1, RetentionBytes: -1, Compact: true}

// TestCompactionIsWhatAReferenceDoes runs random histories of one partition beside a list of records.
func TestCompactionIsWhatAReferenceDoes(t *testing.T) {
	runs := 20
	switch {
	case crash.Long():
		runs = 500
	case testing.Short() || raceEnabled:
		runs = 6
	}
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 3))
		o := testOptions(Options{FS: fsx.NewMem(), CacheBytes: 1 << 10, ThinBytes: 1000 + r.Int64N(5000), SegmentBytes: 4000 + r.Int64N(20_000)})
		if r.IntN(2) == 0 {
			o.CompactionBytes = 24 * (20 + r.Int64N(60)) // several rounds a pass
		}
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		g := &keyedGenerator{r: r, id: PartitionID{TopicID{1}, 0}, log: &keyedLog{}, keys: 1 + r.IntN(60)}
		set, meta := compactAll, uint64(1)
		set.DeleteRetentionMs = 5000
		feed(t, s, openUnit(set, g.id))
		now := int64(1e6)
		check := func(what string) {
			t.Helper()
			p, _ := s.Partition(g.id)
			got, err := readKeyed(p)
			if err == nil {
				err = sameRecords(got, g.log.kept)
			}
			if err != nil {
				t.Fatalf("seed %d: after %s: %v", seed, what, err)
			}
			if p.LogEnd() != g.log.end {
				t.Fatalf("seed %d: after %s: log end %d, want %d", seed, what, p.LogEnd(), g.log.end)
			}
			if p.LogStart() != g.log.start {
				t.Fatalf("seed %d: after %s: log start %d, want %d", seed, what, p.LogStart(), g.log.start)
			}
		}
		for range 120 {
			now += r.Int64N(3000)
			switch r.IntN(12) {
			case 0:
				if _, err := s.compact(t.Context(), g.id, now, true); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				g.log.compact(g.log.end, now, set.DeleteRetentionMs)
				check("compaction")
			case 1:
				if _, err := s.Step(); err != nil {
					t.Fatal(err)
				}
				check("step")
			case 2:
				if _, err := s.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
				check("checkpoint")
			case 3:
				if _, err := s.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(o); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				check("reopen")
			case 4:
				set.DeleteRetentionMs = 1 + r.Int64N(20_000)
				if meta++; r.IntN(3) == 0 {
					off := set
					off.Compact = false
					u := new(Unit)
					u.PartitionSettings(g.id, off, meta)
					feed(t, s, u)
					if _, err := s.compact(t.Context(), g.id, now, true); !errors.Is(err, ErrNotCompacted) {
						t.Fatalf("seed %d: compaction that nobody asked for: %v", seed, err)
					}
					meta++
				}
				u := new(Unit)
				u.PartitionSettings(g.id, set, meta)
				feed(t, s, u)
			case 5:
				if start := g.log.start + r.Int64N(1+(g.log.end-g.log.start)/4); r.IntN(3) == 0 {
					g.log.truncate(start)
					u := new(Unit)
					u.LogStart(g.id, start)
					feed(t, s, u)
					check("log start")
				}
			default:
				feed(t, s, g.unit())
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// compacting is one run of a compacted partition on a recorded disk.
type compacting struct {
	seed uint64
	g    *keyedGenerator
	ends []int64 // log end by entry
}

// playCompacted runs a random history with many passes.
func playCompacted(t *testing.T, seed uint64) (*compacting, *fsx.Recording) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 11))
	disk := fsx.Record(fsx.NewMem())
	disk.Mark(promised{})
	x, err := openWorld(disk, seed)
	if err != nil {
		t.Fatal(err)
	}
	g := &keyedGenerator{r: r, id: PartitionID{TopicID{1}, 0}, log: &keyedLog{}, keys: 10 + r.IntN(30)}
	h := &compacting{seed: seed, g: g, ends: []int64{0}}
	set := compactAll
	set.DeleteRetentionMs = 20_000
	for index, now := uint64(1), int64(1e6); index <= 150; index++ {
		u := openUnit(set, g.id)
		if index > 1 {
			u = g.unit()
		}
		h.ends = append(h.ends, g.log.end)
		data := EncodeEntry(nil, int64(index)*1e9, []*Unit{u})
		disk.Mark(promised{index - 1, index})
		if err := x.w.Append([]wal.Entry{{Index: index, Term: crashTerm, Data: data}}); err != nil {
			t.Fatal(err)
		}
		disk.Mark(promised{index, index})
		if res := x.s.Apply(index, crashTerm, data); len(res) != 1 || res[0].Err != nil {
			t.Fatalf("seed %d entry %d: %+v", seed, index, res)
		}
		now += r.Int64N(2000)
		if r.IntN(5) == 0 {
			if _, err := x.s.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if r.IntN(12) == 0 {
			if _, err := x.s.compact(t.Context(), g.id, now, r.IntN(2) == 0); err != nil {
				t.Fatalf("seed %d entry %d: %v", seed, index, err)
			}
		}
		if r.IntN(25) == 0 {
			info, err := x.s.Checkpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := x.w.TruncateFront(info.Index); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := x.close(); err != nil {
		t.Fatal(err)
	}
	return h, disk.Recording()
}

// recover opens what a crash has left, checks what was promised, and compacts it now and then.
func (h *compacting) recover(fs fsx.FS, mark any) (saw string, err error) {
	x, err := openWorld(fs, h.seed)
	if err != nil {
		return "", err
	}
	last, p := x.w.LastIndex(), mark.(promised)
	saw = fmt.Sprint(last)
	switch {
	case last < p.acked || last > p.begun:
		err = fmt.Errorf("log ends at %d; acknowledged %d, begun %d", last, p.acked, p.begun)
	case last > 0:
		err = h.check(x, last)
	}
	return saw, errors.Join(err, x.close())
}

func (h *compacting) check(x *world, last uint64) error {
	for a, _ := x.s.Applied(); a < last; {
		a++
		e, err := x.w.Read(a)
		if err != nil {
			return err
		}
		x.s.Apply(a, e.Term, e.Data)
	}
	if err := errors.Join(checkCompacted(x.s, h.g, h.ends[last]), checkPlacement(x.s)); err != nil {
		return err
	}
	if last%2 == 0 {
		return nil
	}
	if _, err := x.s.compact(noContext, h.g.id, 1e9, true); err != nil {
		return err
	}
	if err := errors.Join(checkCompacted(x.s, h.g, h.ends[last]), checkPlacement(x.s)); err != nil {
		return fmt.Errorf("compacted after recovery: %w", err)
	}
	// Now every key is there once, but for records without one.
	p, _ := x.s.Partition(h.g.id)
	got, err := readKeyed(p)
	n := map[string]int{}
	for _, k := range got {
		if n[k.key]++; k.key != "" && n[k.key] > 1 {
			err = fmt.Errorf("key %q is there twice", k.key)
		}
	}
	return err
}

// TestCrashDuringCompactionLosesNothing takes crash states anywhere in histories with many passes. What is read after
// recovery is what was written, nobody's latest value is missing, and no deleted key comes back.
func TestCrashDuringCompactionLosesNothing(t *testing.T) {
	x := &crash.Explorer{
		Images: fsx.ImageOptions{Random: 3, Every: 6, PerPlace: 5, Tears: 1},
		Inside: fsx.ImageOptions{Random: 1, Every: 12, PerPlace: 2, Tears: 1},
		Deep:   6, Limit: 500,
	}
	perSeed := 100
	switch {
	case crash.Long():
		x.Limit, perSeed = 10_000, 1000
	case testing.Short() || raceEnabled:
		x.Limit = 150
	}
	goal := x.Limit
	seed, one := crash.Seed()
	for ; x.Count().States < goal; seed++ {
		h, rec := playCompacted(t, seed)
		x.Recover = h.recover
		x.Images.Seed, x.Inside.Seed = seed, seed
		if x.Limit = min(goal, x.Count().States+perSeed); one {
			x.Limit = 0
		}
		x.Images.Every = max(1, rec.Len()*x.Images.PerPlace/2/perSeed)
		if err := x.Explore(rec); err != nil {
			t.Fatalf("%v\nreplay with HEADRACE_SEED=%d", err, seed)
		}
		if one {
			break
		}
	}
	if n := x.Count(); !one && (n.Deep == 0 || n.States < goal) {
		t.Errorf("%+v of %d: the test has lost its teeth", n, goal)
	}
}

// checkCompacted holds a compacted partition against all that was ever written below end.
func checkCompacted(s *Store, g *keyedGenerator, end int64) error {
	p, ok := s.Partition(g.id)
	if !ok {
		return ErrUnknownPartition
	}
	if p.LogEnd() != end {
		return fmt.Errorf("log end %d, want %d", p.LogEnd(), end)
	}
	got, err := readKeyed(p)
	if err != nil {
		return err
	}
	written := g.log.all
	if i := slices.IndexFunc(written, func(k keyed) bool { return k.offset >= end }); i >= 0 {
		written = written[:i]
	}
	keyless := 0
	for i := range got {
		at, ok := slices.BinarySearchFunc(written, got[i].offset, func(k keyed, o int64) int { return cmp.Compare(k.offset, o) })
		if !ok || got[i] != written[at] {
			return fmt.Errorf("%+v was never written", got[i])
		}
		if got[i].key == "" {
			keyless++
		}
	}
	for i := range written {
		if written[i].key == "" {
			keyless--
		}
	}
	if keyless != 0 {
		return fmt.Errorf("%d records without key are missing", -keyless)
	}
	have, want := table(got), table(written)
	for k, v := range want {
		if have[k] != v {
			return fmt.Errorf("%q is %q, want %q", k, have[k], v)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			return fmt.Errorf("%q was deleted and is back", k)
		}
	}
	return nil
}

// keyUnit is one batch with one record per pair of key and value; the value "-" is a tombstone.
func keyUnit(id PartitionID, pairs ...string) *Unit {
	b := record.NewBuilder()
	for i := 0; i < len(pairs); i += 2 {
		var key, value []byte
		if pairs[i] != "" {
			key = []byte(pairs[i])
		}
		if pairs[i+1] != "-" {
			value = []byte(pairs[i+1])
		}
		b.Append(5, key, value, nil)
	}
	u := new(Unit)
	u.Append(id, b.Finish())
	return u
}

func keysOf(t *testing.T, s *Store, id PartitionID) string {
	t.Helper()
	p, _ := s.Partition(id)
	got, err := readKeyed(p)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range got {
		v := r.value
		if r.null {
			v = "-"
		}
		out = append(out, fmt.Sprintf("%d:%s=%s", r.offset, r.key, v))
	}
	return strings.Join(out, " ")
}

func mustCompact(t *testing.T, s *Store, id PartitionID, now int64) Compaction {
	t.Helper()
	done, err := s.compact(t.Context(), id, now, true)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func TestTombstonesGoWhenTheirTimeIsOver(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1})
	id := PartitionID{TopicID{1}, 0}
	set := compactAll
	set.DeleteRetentionMs = 1000
	feed(t, s, openUnit(set, id), keyUnit(id, "a", "1", "b", "1"), keyUnit(id, "a", "-"), keyUnit(id, "c", "1"))
	mustCompact(t, s, id, 5000)
	if got := keysOf(t, s, id); got != "1:b=1 2:a=- 3:c=1" {
		t.Fatal(got)
	}
	feed(t, s, keyUnit(id, "b", "-"))
	mustCompact(t, s, id, 5999)
	if got := keysOf(t, s, id); got != "2:a=- 3:c=1 4:b=-" {
		t.Fatal(got)
	}
	mustCompact(t, s, id, 6000)
	if got := keysOf(t, s, id); got != "3:c=1 4:b=-" {
		t.Fatal(got)
	}
	st, err := s.compactStateOf(id)
	if err != nil || len(st.marks) != 1 || st.marks[0].seen != 5999 || st.marks[0].count != 1 {
		t.Fatalf("%+v %v", st, err)
	}
	if d, err := s.dirtOf(s.parts.m[id], 7000); err != nil || d.dirty != 0 || !d.due(&set, 7000) || d.due(&set, 6998) {
		t.Fatalf("%+v %v", d, err)
	}
	mustCompact(t, s, id, 7000)
	if got := keysOf(t, s, id); got != "3:c=1" {
		t.Fatal(got)
	}
}

func TestATombstoneStaysWhileARowBeforeItCannotBeTold(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1})
	id := PartitionID{TopicID{1}, 0}
	set := compactAll
	set.DeleteRetentionMs = -1
	columns := make([]byte, record.HeaderSize+8)
	record.PutHeader(columns, record.Header{Magic: record.Magic, Attributes: record.AttrColumnar, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, Count: 1})
	record.Seal(columns)
	u := new(Unit)
	u.Append(id, columns)
	feed(t, s, openUnit(set, id), keyUnit(id, "a", "-"), u, keyUnit(id, "b", "-", "", "keyless"), keyUnit(id, "c", "1"))
	for now := range int64(3) {
		mustCompact(t, s, id, 1000+now)
	}
	p, _ := s.Partition(id)
	var bases []string
	for at := int64(0); at < p.LogEnd(); {
		b, err := p.Read(at, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		h, _ := record.ParseHeader(b[0].Data)
		bases = append(bases, fmt.Sprintf("%d:%d", b[0].Base, h.Count))
		if at == 1 && !bytes.Equal(b[0].Data[12+4:], columns[12+4:]) {
			t.Error("the columnar batch has changed")
		}
		at = b[0].Last + 1
	}
	if got := strings.Join(bases, " "); got != "0:0 1:1 2:2 4:1" {
		t.Fatal(got)
	}
}

func TestTimeMarksWithNothingBetweenThemBecomeOne(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1})
	id := PartitionID{TopicID{1}, 0}
	mark := func(w int64) *Unit {
		u := new(Unit)
		u.Append(id, record.TimeMark(w, 5))
		return u
	}
	feed(t, s, openUnit(compactAll, id), keyUnit(id, "a", "1"), mark(10), keyUnit(id, "a", "2"), mark(20), mark(30),
		keyUnit(id, "a", "3"), mark(40), keyUnit(id, "b", "1"), mark(50), keyUnit(id, "b", "2"))
	mustCompact(t, s, id, 1000)
	p, _ := s.Partition(id)
	b, err := p.Read(0, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range b {
		w, ok := record.ParseTimeMark(b[i].AppendTo(nil))
		h, _ := record.ParseHeader(b[i].Data)
		got = append(got, fmt.Sprintf("%d-%d n=%d mark=%v %d", b[i].Base, b[i].Last, h.Count, ok, w))
	}
	want := "0-3 n=0 mark=false 0, 4-4 n=1 mark=true 30, 5-5 n=1 mark=false 0, 6-7 n=0 mark=false 0, 8-8 n=1 mark=true 50, 9-9 n=1 mark=false 0"
	if strings.Join(got, ", ") != want {
		t.Fatalf("%s", strings.Join(got, "\n"))
	}
}

func TestYoungRecordsAreLeftAlone(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1})
	id := PartitionID{TopicID{1}, 0}
	set := compactAll
	set.MinCompactionLagMs = 3000
	feed(t, s, openUnit(set, id))
	for i := range 4 {
		feed(t, s, keyUnit(id, "a", fmt.Sprint(i+1))) // appended at 2, 3, 4, 5 s
		if _, err := s.Step(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		now  int64
		want string
	}{
		{4999, "0:a=1 1:a=2 2:a=3 3:a=4"},
		{6500, "1:a=2 2:a=3 3:a=4"},
		{7000, "2:a=3 3:a=4"},
		{8000, "3:a=4"},
	} {
		mustCompact(t, s, id, c.now)
		if got := keysOf(t, s, id); got != c.want {
			t.Fatalf("at %d: %s", c.now, got)
		}
	}
}

// A batch that loses nothing keeps its bytes; one that loses some keeps everything but them.
func TestCompactionKeepsBytesItNeedNotChange(t *testing.T) {
	for codec := record.None; codec <= record.Zstd; codec++ {
		s := openTest(t, Options{CacheBytes: 1})
		id := PartitionID{TopicID{1}, 0}
		batch := func(keys ...string) *Unit {
			b := record.NewBuilder()
			b.SetCodec(codec)
			b.SetProducer(7, 3, 0)
			if keys[0] != "a" {
				b.SetProducer(8, 3, 0)
			}
			for i, k := range keys {
				b.Append(int64(100+i), []byte(k), []byte("value of "+k), []record.KV{{Key: "h", Value: []byte(k)}})
			}
			data := b.Finish()
			if codec == record.LZ4 { // of a topic with append times
				h, _ := record.ParseHeader(data)
				h.Attributes |= record.AttrLogAppendTime
				record.PutHeader(data, h)
				record.Seal(data)
			}
			u := new(Unit)
			u.Append(id, data)
			return u
		}
		feed(t, s, openUnit(compactAll, id), batch("a", "b", "c", "d"), batch("b", "d"))
		p, _ := s.Partition(id)
		before, err := p.Read(0, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		mustCompact(t, s, id, 1)
		s.trimCache()
		after, err := p.Read(0, 1<<20, nil)
		if err != nil || len(after) != 2 {
			t.Fatalf("%d batches, %v", len(after), err)
		}
		if !bytes.Equal(before[1].AppendTo(nil), after[1].Data) {
			t.Errorf("%s: a batch that lost nothing has changed", codec)
		}
		var rd record.Reader
		if err := rd.Reset(after[0].Data); err != nil {
			t.Fatal(err)
		}
		h, old := rd.Header(), before[0].Header()
		was, _ := record.ParseHeader(old[:])
		if h.BaseOffset != 0 || h.LastOffsetDelta != 3 || h.Count != 2 || h.ProducerID != 7 || h.ProducerEpoch != 3 || h.BaseSequence != 0 || h.Attributes != was.Attributes {
			t.Errorf("%s: %+v", codec, h)
		}
		for _, want := range []struct {
			offset, ts int64
			key        string
		}{{0, 100, "a"}, {2, 102, "c"}} {
			if codec == record.LZ4 {
				want.ts = was.MaxTimestamp
			}
			if !rd.Next() || rd.Record().Offset != want.offset || rd.Record().Timestamp != want.ts || string(rd.Record().Key) != want.key || len(rd.Headers()) != 1 || string(rd.Record().Headers[0].Value) != want.key {
				t.Errorf("%s: %+v, want %+v", codec, rd.Record(), want)
			}
		}
		// A lookup by time meets what is left, and passes what is empty.
		o, _, ok, err := p.OffsetForTime(102)
		if want := int64(2); codec != record.LZ4 && (err != nil || !ok || o != want) {
			t.Errorf("%s: offset for time: %d %v %v", codec, o, ok, err)
		}
	}
}

// fillKeys writes n batches of few keys, large enough for several segments, and makes them durable.
func fillKeys(t *testing.T, s *Store, id PartitionID, n int) {
	t.Helper()
	for i := range n {
		feed(t, s, keyUnit(id, fmt.Sprint(i%7), strings.Repeat("x", 500)+fmt.Sprint(i)))
		if i%8 == 7 {
			if _, err := s.Step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.trimCache()
}

func TestARottenSegmentIsNeverCompactedAway(t *testing.T) {
	for _, kind := range []string{".log", ".index"} {
		mem := fsx.NewMem()
		s := openTest(t, Options{FS: mem, CacheBytes: 1, SegmentBytes: 8 << 10})
		id := PartitionID{TopicID{1}, 0}
		feed(t, s, openUnit(compactAll, id))
		fillKeys(t, s, id, 100)
		p, _ := s.Partition(id)
		segs := p.layout.Load().segs
		bad := &segs[len(segs)/2]
		path := s.logPath(id, bad)
		if kind == ".index" {
			path = s.indexPath(id, bad)
		}
		f, err := mem.OpenFile(s.path(path))
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, 300); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 4
		if _, err := f.WriteAt(b, 300); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		var found *CorruptError
		if _, err := s.Compact(t.Context(), id); !errors.As(err, &found) || found.Path != path {
			t.Fatalf("%s: %v", kind, err)
		}
		m := s.Metrics()
		if m.CompactionsFailed != 1 || m.Corrupt != 1 || !strings.Contains(m.CompactionError, path) {
			t.Fatalf("%+v", m)
		}
		for i := len(segs) / 2; i < len(segs); i++ {
			if !p.layout.Load().names(&segs[i]) {
				t.Fatalf("%s: what lies from the damage on has changed: %+v", kind, p.layout.Load().segs)
			}
		}
		// Nothing is left of the attempt, and the partition is left alone for a while.
		if got := files(t, mem, "store/topics", func(n string) bool { return strings.Contains(n, "-") && !strings.Contains(n, "topics") }); len(got) != 0 {
			t.Fatalf("%v", got)
		}
		if due := s.duePartitions(1); len(due) != 0 {
			t.Fatalf("due again at once: %v", due)
		}
	}
}

func TestReadersGoOnWhileSegmentsAreReplaced(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1, SegmentBytes: 8 << 10})
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(compactAll, id))
	p, _ := s.Partition(id)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var turns atomic.Int64
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := readKeyed(p); err != nil {
					t.Errorf("reader: %v", err)
					return
				}
				if _, _, _, err := p.OffsetForTime(1 << 40); err != nil {
					t.Errorf("by time: %v", err)
					return
				}
				turns.Add(1)
			}
		})
	}
	for turn := range int64(15) {
		fillKeys(t, s, id, 40)
		mustCompact(t, s, id, turn)
	}
	for turns.Load() < 3 && !t.Failed() {
		mustCompact(t, s, id, 100)
	}
	close(stop)
	wg.Wait()
	if m := s.Metrics(); m.Corrupt != 0 || m.Compactions < 15 || m.CompactedOut >= m.CompactedIn {
		t.Fatalf("%+v", m)
	}
}

func TestOldFilesGoAndSmallSegmentsBecomeOne(t *testing.T) {
	mem := fsx.NewMem()
	o := testOptions(Options{FS: mem, CacheBytes: 1, SegmentBytes: 8 << 10})
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	id := PartitionID{TopicID{1}, 0}
	feed(t, s, openUnit(compactAll, id))
	for turn := range int64(3) {
		fillKeys(t, s, id, 60)
		mustCompact(t, s, id, turn)
	}
	p, _ := s.Partition(id)
	l := p.layout.Load()
	own := files(t, mem, "store/topics", func(string) bool { return true })
	if len(own) != 2*len(l.segs) || l.segs[0].end < 100 || l.segs[0].logBytes > 1000 {
		t.Fatalf("%v\n%+v", own, l.segs)
	}
	want := keysOf(t, s, id)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A file that a lost swap has made, and one that a swap has replaced, go at the next start.
	for _, name := range []string{s.logPath(id, &segmentInfo{base: l.segs[0].base, generation: 99}), s.indexPath(id, &segmentInfo{base: l.segs[0].base + 1})} {
		f, err := mem.CreateFile(s.path(name))
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	s = openTest(t, o)
	if got := keysOf(t, s, id); got != want {
		t.Fatal(got)
	}
	if again := files(t, mem, "store/topics", func(string) bool { return true }); len(again) != len(own) {
		t.Fatalf("%v", again)
	}
}

func TestWhatIsDueAndWhatIsNot(t *testing.T) {
	day := int64(24 * 3600 * 1000)
	for _, c := range []struct {
		name string
		d    dirt
		set  PartitionSettings
		want bool
	}{
		{"clean", dirt{total: 1 << 30, oldest: 1, tombstoneAt: 1 << 60}, PartitionSettings{}, false},
		{"half of it is dirty", dirt{dirty: 1 << 29, total: 1 << 30, oldest: day, tombstoneAt: 1 << 60}, PartitionSettings{}, true},
		{"less than half", dirt{dirty: 1<<29 - 1, total: 1 << 30, oldest: day, tombstoneAt: 1 << 60}, PartitionSettings{}, false},
		{"less than half, as asked", dirt{dirty: 1 << 28, total: 1 << 30, oldest: day, tombstoneAt: 1 << 60}, PartitionSettings{MinDirtyPPM: 200_000}, true},
		{"little and young", dirt{dirty: 1000, total: 1000, oldest: 9 * day, tombstoneAt: 1 << 60}, PartitionSettings{}, false},
		{"little and old", dirt{dirty: 1000, total: 1000, oldest: day, tombstoneAt: 1 << 60}, PartitionSettings{}, true},
		{"little, and short segments", dirt{dirty: 1000, total: 1000, oldest: 9 * day, tombstoneAt: 1 << 60}, PartitionSettings{SegmentMs: 1000}, true},
		{"too long unseen", dirt{dirty: 1, total: 1 << 30, oldest: 9 * day, tombstoneAt: 1 << 60}, PartitionSettings{MaxCompactionLagMs: day / 2}, true},
		{"a tombstone", dirt{total: 1 << 30, tombstoneAt: 5 * day}, PartitionSettings{}, true},
		{"a tombstone, and a pass just now", dirt{total: 1 << 30, tombstoneAt: 5 * day, last: 10*day - 1}, PartitionSettings{}, false},
	} {
		if got := c.d.due(&c.set, 10*day); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestTombstoneMarksAreBounded(t *testing.T) {
	var c compactState
	for i := range int64(1000) {
		c.addMark(tombstoneMark{end: i + 1, first: i * 10, seen: i * 10, count: 1})
	}
	n := int64(0)
	for i, m := range c.marks {
		n += m.count
		if i > 0 && (m.end <= c.marks[i-1].end || m.seen < c.marks[i-1].seen) || m.seen < (m.end-1)*10 {
			t.Fatalf("%+v", c.marks)
		}
	}
	if len(c.marks) != maxTombstoneMarks || n != 1000 || c.marks[0].seen > 1000 {
		t.Fatalf("%d marks of %d, the first %+v", len(c.marks), n, c.marks[0])
	}
	c.marks[5].count = 0
	c.addMark(tombstoneMark{})
	if len(c.marks) != maxTombstoneMarks-1 {
		t.Fatal("a mark without tombstones stays")
	}
}

func TestTheOffsetMapKeepsItsBudget(t *testing.T) {
	s := openTest(t, Options{})
	m := newOffsetMap(s.keySeeds, 1<<40, 24*1000)
	n := 0
	for m.put(m.hash(fmt.Append(nil, n)), int64(n)) {
		n++
	}
	if n != 750 || len(m.slots) != 1000 {
		t.Fatalf("%d keys in %d slots", n, len(m.slots))
	}
	if !m.put(m.hash([]byte("7")), 5000) || m.last([]byte("7")) != 5000 || m.last([]byte("8")) != 8 || m.last([]byte("x")) != -1 {
		t.Fatal("a full map forgets")
	}
	m.grow(3000)
	for i := range n {
		if want := int64(i); m.last(fmt.Append(nil, i)) != want && i != 7 {
			t.Fatalf("key %d: %d", i, m.last(fmt.Append(nil, i)))
		}
	}
}

// TestACompactedPartitionTellsItsStory writes what a reader sees after each step, batch by batch.
func TestACompactedPartitionTellsItsStory(t *testing.T) {
	s := openTest(t, Options{CacheBytes: 1, SegmentBytes: 4 << 10})
	id := PartitionID{TopicID{1}, 0}
	set := compactAll
	set.DeleteRetentionMs = 60_000
	feed(t, s, openUnit(set, id))
	p, _ := s.Partition(id)
	var out strings.Builder
	show := func(format string, args ...any) {
		fmt.Fprintf(&out, format+"\n----\n", args...)
		var rd record.Reader
		for at := p.LogStart(); at < p.LogEnd(); {
			b, err := p.Read(at, 1<<20, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b {
				if err := rd.Reset(b[i].AppendTo(nil)); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&out, "%d..%d", b[i].Base, b[i].Last)
				if rd.Header().Control() {
					out.WriteString(" control")
				}
				for rd.Next() {
					r := rd.Record()
					if !rd.Header().Control() {
						v := string(r.Value)
						if r.Value == nil {
							v = "-"
						}
						fmt.Fprintf(&out, " %d:%s=%s", r.Offset, r.Key, v)
					}
				}
				out.WriteByte('\n')
				at = b[i].Last + 1
			}
		}
		out.WriteByte('\n')
	}
	add := func(pairs ...string) {
		feed(t, s, keyUnit(id, pairs...))
		show("append %v", pairs)
	}
	compact := func(now int64) {
		done := mustCompact(t, s, id, now)
		st, err := s.compactStateOf(id)
		if err != nil {
			t.Fatal(err)
		}
		var files []string
		for _, seg := range p.layout.Load().segs {
			files = append(files, segment.LogName(seg.base, seg.generation))
		}
		show("compact at %d s: %d keys, end %d, tombstones %v, files %v", now/1000, done.Keys, done.End, st.marks, files)
	}
	add("a", "1", "b", "1", "c", "1")
	add("a", "2")
	add("b", "2")
	compact(100_000)
	add("a", "-", "d", "1")
	add("c", "2")
	mark := new(Unit)
	mark.Append(id, record.TimeMark(7, 5))
	feed(t, s, mark)
	show("time mark")
	compact(110_000)
	add("b", "3")
	compact(169_000)
	compact(170_000)
	golden.Check(t, "testdata/compaction.txt", out.String())
}

// FuzzJudge gives batches of any bytes to a cleaner that holds every second key for replaced.
func FuzzJudge(f *testing.F) {
	for codec := record.None; codec <= record.Zstd; codec++ {
		b := record.NewBuilder()
		b.SetCodec(codec)
		for i := range 5 {
			b.Append(int64(i), []byte{byte(i)}, bytes.Repeat([]byte("v"), 20*(i%3)), []record.KV{{Key: "h"}})
		}
		b.Append(9, nil, nil, nil)
		f.Add(b.Finish())
	}
	f.Add(record.TimeMark(5, 5))
	f.Add(emptyBatch(0, 9, 1))
	seeds := [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < record.HeaderSize {
			return
		}
		record.SetBase(data, 100, 1)
		record.Seal(data)
		h, err := record.Verify(data)
		if err != nil {
			return // never stored
		}
		m := newOffsetMap(seeds, 300, 1<<20)
		for i := range 256 {
			m.put(m.hash([]byte{byte(i)}), int64(i%2)*(1<<40))
		}
		before := bytes.Clone(data)
		c := cleaner{latest: m, state: &compactState{}, fresh: &tombstoneMark{}, end: 1 << 50}
		fate, out := c.judge(data)
		if !bytes.Equal(before, data) {
			t.Fatal("the batch has changed")
		}
		if fate != shrunk {
			return
		}
		n, err := record.Verify(out)
		if err != nil || n.BaseOffset != h.BaseOffset || n.LastOffsetDelta != h.LastOffsetDelta || n.ProducerID != h.ProducerID || n.BaseSequence != h.BaseSequence || n.Count >= h.Count || n.Count < 1 {
			t.Fatalf("%+v became %+v: %v", h, n, err)
		}
		var old, left record.Reader
		if old.Reset(data) != nil || left.Reset(out) != nil {
			t.Fatal("cannot be read")
		}
		for left.Next() {
			a := left.Record()
			for old.Next() && old.Record().Offset < a.Offset {
			}
			if b := old.Record(); b.Offset != a.Offset || b.Timestamp != a.Timestamp || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || (a.Value == nil) != (b.Value == nil) || !bytes.Equal(left.HeaderBytes(), old.HeaderBytes()) {
				t.Fatalf("%+v, was %+v", a, b)
			}
		}
		if left.Err() != nil {
			t.Fatal(left.Err())
		}
	})
}

func BenchmarkCompaction(b *testing.B) {
	for _, codec := range []record.Codec{record.None, record.Zstd} {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			var in, total int64
			for b.Loop() {
				b.StopTimer()
				s, err := Open(Options{FS: fsx.NewMem(), Dir: "store", Manual: true, CacheBytes: 1})
				if err != nil {
					b.Fatal(err)
				}
				id := PartitionID{TopicID{1}, 0}
				feed(b, s, openUnit(compactAll, id))
				bld := record.NewBuilder()
				bld.SetCodec(codec)
				for i := range 1000 {
					for k := range 100 {
						bld.Append(1, fmt.Appendf(nil, "key %d", (i*37+k*101)%20_000), bytes.Repeat([]byte{byte(k)}, 150), nil)
					}
					u := new(Unit)
					u.Append(id, bld.Finish())
					total = 1000 * 100 * 170
					feed(b, s, u)
				}
				if _, err := s.Checkpoint(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				done, err := s.Compact(b.Context(), id)
				if err != nil {
					b.Fatal(err)
				}
				in = done.BytesIn
				b.StopTimer()
				_ = s.Close()
				b.StartTimer()
			}
			b.SetBytes(total)
			b.ReportMetric(float64(in)/1e6, "MB/pass")
		})
	}
}
