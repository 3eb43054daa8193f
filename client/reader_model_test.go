package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

// A modelLog is a partition as its leader has it: batches with gaps between them.
type modelLog struct {
	batches [][]byte
	values  map[int64]string // of what a reader is to get, by offset
	start   int64
	end     int64
}

// grow appends a batch of a random kind: with any codec, of records with gaps between their offsets, behind a gap, a time
// mark, or without a record that is left.
func (m *modelLog) grow(r *rand.Rand) {
	m.end += int64(r.IntN(3) * r.IntN(4)) // what compaction has taken
	if r.IntN(6) == 0 {
		mark := record.TimeMark(m.end, m.end)
		record.SetBase(mark, m.end, 3)
		m.batches = append(m.batches, mark)
		m.end++
		return
	}
	b := record.NewBuilder()
	b.SetCodec(record.Codec(max(0, r.IntN(12)-9))) // the others cost megabytes each
	b.SetBase(m.end, 3)
	delta := int32(0)
	for range r.IntN(9) {
		delta += int32(r.IntN(2) * r.IntN(3))
		v := fmt.Sprintf("%d-%0*d", m.end+int64(delta), r.IntN(200), r.Int64N(1000))
		b.AppendAt(delta, r.Int64N(1e12), []byte("k"), []byte(v), nil)
		m.values[m.end+int64(delta)] = v
		delta++
	}
	delta += int32(r.IntN(2))
	b.SetLastOffsetDelta(delta)
	m.batches = append(m.batches, b.Finish())
	m.end += int64(delta) + 1
}

// read is what a server answers to a Fetch: whole batches from the one with the offset on, one at least, the last one cut.
func (m *modelLog) read(r *rand.Rand, at int64, limit int) (data []byte) {
	for _, b := range m.batches {
		h, _ := record.ParseHeader(b)
		if h.LastOffset() < at {
			continue
		}
		if len(data) > 0 && len(data)+len(b) > limit {
			return append(data, b[:r.IntN(len(b))]...)
		}
		data = append(data, b...)
	}
	return data
}

// A readerSim drives a Reader without a network: requests of its lanes are answered by a model that now and then damages
// the answer, loses it, or says no.
type readerSim struct {
	t       *testing.T
	r       *rand.Rand
	rd      *Reader
	lanes   []*lane
	logs    map[int32]*modelLog
	answers []*answer
	got     map[int32][]int64
	calm    bool
	damaged int
}

func newReaderSim(t *testing.T, seed uint64) *readerSim {
	s := &readerSim{t: t, r: rand.New(rand.NewPCG(seed, 5)), logs: map[int32]*modelLog{}, got: map[int32][]int64{}}
	o := ReaderOptions{Topic: "t", FetchBytes: 1 + s.r.IntN(2000)}.withDefaults()
	s.rd = &Reader{o: o, moved: make(chan []*readPart, 9), failed: make(chan struct{}), bufs: make(chan []byte)}
	var parts []*readPart
	for n := range int32(1 + s.r.IntN(4)) {
		m := &modelLog{values: map[int64]string{}}
		for range 1 + s.r.IntN(30) {
			m.grow(s.r)
		}
		s.logs[n] = m
		p := &readPart{number: n, next: s.r.Int64N(m.end), end: m.end, found: true}
		if s.r.IntN(3) == 0 {
			p.end = p.next + 1 + s.r.Int64N(m.end-p.next)
		}
		for offset := range m.values {
			if offset < p.next || offset >= p.end {
				delete(m.values, offset)
			}
		}
		parts = append(parts, p)
	}
	s.rd.left = len(parts)
	s.rd.moved <- parts
	return s
}

// step does one of what goes on beside each other: a lane's round, Next, or the manager's.
func (s *readerSim) step() (done bool) {
	switch k := s.r.IntN(3); {
	case k == 0 && len(s.lanes) > 0 && len(s.answers) < 4:
		i := s.r.IntN(len(s.lanes))
		l := s.lanes[i]
		l.compose()
		body := s.serve(l)
		a := &answer{}
		move, err := l.parse(a, body)
		if len(a.parts) > 0 {
			if err != nil {
				s.t.Fatal("parts of an answer that makes no sense")
			}
			s.answers = append(s.answers, a)
		}
		if move || err != nil || len(l.parts) == 0 || !s.calm && s.r.IntN(20) == 0 { // the connection ends
			s.lanes = slices.Delete(s.lanes, i, i+1)
			if len(l.parts) > 0 {
				s.rd.moved <- l.parts
			}
		}
	case k == 1:
		select {
		case parts := <-s.rd.moved:
			s.check(parts)
			n := 1 + s.r.IntN(len(parts))
			s.lanes = append(s.lanes, &lane{r: s.rd, parts: slices.Clone(parts[:n])})
			if n < len(parts) {
				s.lanes = append(s.lanes, &lane{r: s.rd, parts: slices.Clone(parts[n:])})
			}
		default:
		}
	default:
		return s.consume()
	}
	return false
}

// check makes sure that no partition is read twice at a time.
func (s *readerSim) check(parts []*readPart) {
	for _, l := range s.lanes {
		for _, p := range l.parts {
			if slices.Contains(parts, p) {
				s.t.Fatalf("partition %d has two connections", p.number)
			}
		}
	}
}

func (s *readerSim) consume() (done bool) {
	r := s.rd
	if r.cur == nil {
		if len(s.answers) == 0 {
			return r.left == 0
		}
		r.cur, s.answers = s.answers[0], s.answers[1:]
	}
	b := r.advance()
	if b == nil {
		r.cur = nil
		return r.left == 0
	}
	for b.Next() {
		offset := b.Record().Offset
		if want, ok := s.logs[b.Partition].values[offset]; !ok || want != string(b.Record().Value) {
			s.t.Fatalf("partition %d offset %d: %q, want %q (%v)", b.Partition, offset, b.Record().Value, want, ok)
		}
		s.got[b.Partition] = append(s.got[b.Partition], offset)
	}
	if err := b.Err(); err != nil {
		s.t.Fatal(err)
	}
	return false
}

// serve answers a lane's request as the model has it, with the damage of the day.
func (s *readerSim) serve(l *lane) []byte {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = readerFetchVersion
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic = "t"
	for _, q := range l.reqs.Topics[0].Partitions {
		m := s.logs[q.Partition]
		p := kmsg.NewFetchResponseTopicPartition()
		p.Partition, p.HighWatermark, p.LogStartOffset = q.Partition, m.end, m.start
		p.RecordBatches = m.read(s.r, q.FetchOffset, int(q.PartitionMaxBytes))
		if !s.calm {
			s.damage(m, &p)
		}
		topic.Partitions = append(topic.Partitions, p)
	}
	if !s.calm && s.r.IntN(30) == 0 {
		s.damaged++
		topic.Partitions = append(topic.Partitions, topic.Partitions[s.r.IntN(len(topic.Partitions))])
	}
	resp.Topics = append(resp.Topics, topic)
	body := resp.AppendTo(nil)
	switch {
	case s.calm || s.r.IntN(15) > 0:
	case s.r.IntN(3) == 0:
		s.damaged++
		body = append(body, 0)
	default:
		s.damaged++
		body = body[:s.r.IntN(len(body))]
	}
	return body
}

// damage changes one partition's answer in a way that a reader has to notice.
func (s *readerSim) damage(m *modelLog, p *kmsg.FetchResponseTopicPartition) {
	data := p.RecordBatches
	h, err := record.ParseHeader(data)
	kind := s.r.IntN(40)
	if kind < 6 {
		s.damaged++
	}
	whole := err == nil && h.Size() <= len(data)
	switch kind {
	case 0:
		p.ErrorCode, p.RecordBatches = kerr.NotLeaderForPartition.Code, nil
	case 1: // a byte that the checksum covers
		if whole {
			data[21+s.r.IntN(h.Size()-21)] ^= byte(1 + s.r.IntN(255))
		}
	case 2: // beyond the log end
		if whole {
			record.SetBase(data, m.end+s.r.Int64N(1<<40), 3)
		}
	case 3: // back: the same batch again behind itself, at an offset before
		if whole {
			first := slices.Clone(data[:h.Size()])
			record.SetBase(first, max(0, h.BaseOffset-s.r.Int64N(20)), 3)
			p.RecordBatches = append(slices.Clone(data[:h.Size()]), first...)
		}
	case 4: // nothing of what was asked for
		if whole && h.BaseOffset > 0 {
			record.SetBase(data, -s.r.Int64N(1<<40)-1, 3)
			p.RecordBatches = data[:h.Size()]
		}
	case 5:
		p.HighWatermark = -1
	}
}

// TestAReaderHandsOutEachRecordOnceWhateverTheServerSends: in order, with its own value, and then the end.
func TestAReaderHandsOutEachRecordOnceWhateverTheServerSends(t *testing.T) {
	seeds := uint64(150)
	if os.Getenv("HEADRACE_LONG") != "" {
		seeds = 10_000
	}
	damaged, records, corrupt := 0, 0, 0
	for seed := range seeds {
		s := newReaderSim(t, seed)
		done := false
		for i := 0; !done; i++ {
			s.calm = i > 300
			if i > 50_000 {
				t.Fatalf("seed %d: no end; %d partitions are left", seed, s.rd.left)
			}
			done = s.step()
			if s.rd.err() != nil { // three damaged answers in a row
				if !errors.Is(s.rd.err(), ErrCorruptBatch) {
					t.Fatalf("seed %d: %v", seed, s.rd.err())
				}
				corrupt++
				break
			}
		}
		for n, m := range s.logs {
			want := make([]int64, 0, len(m.values))
			for offset := range m.values {
				want = append(want, offset)
			}
			slices.Sort(want)
			got := s.got[n]
			if !done {
				want = want[:min(len(want), len(got))]
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: partition %d was read at %d, holds %d", seed, n, got, want)
			}
			records += len(got)
		}
		damaged += s.damaged
	}
	if damaged < 300 || records < 3000 || corrupt > int(seeds)/4 {
		t.Errorf("the simulation is too quiet: %d answers damaged, %d records, %d readers gave up", damaged, records, corrupt)
	}
	t.Logf("%d answers damaged, %d records, %d readers gave up", damaged, records, corrupt)
}

// oneLane is a reader of partitions 0 and 1 of topic t at an offset, whose request is under way.
func oneLane(next, end int64) (*Reader, *lane) {
	r := &Reader{o: ReaderOptions{Topic: "t"}.withDefaults(), moved: make(chan []*readPart, 9), failed: make(chan struct{}), bufs: make(chan []byte), left: 2}
	l := &lane{r: r, parts: []*readPart{{number: 0, next: next, end: end, found: true}, {number: 1, next: next, end: end, found: true}}}
	l.compose()
	return r, l
}

func fetchAnswer(parts ...kmsg.FetchResponseTopicPartition) []byte {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = readerFetchVersion
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = "t", parts
	resp.Topics = append(resp.Topics, topic)
	return resp.AppendTo(nil)
}

func fetchPart(n int32, high int64, batches ...[]byte) kmsg.FetchResponseTopicPartition {
	p := kmsg.NewFetchResponseTopicPartition()
	p.Partition, p.HighWatermark, p.LastStableOffset, p.LogStartOffset = n, high, high, 0
	p.RecordBatches = slices.Concat(batches...)
	return p
}

func batchAt(base int64, codec record.Codec, values ...string) []byte {
	b := record.NewBuilder()
	b.SetCodec(codec)
	b.SetBase(base, 1)
	for _, v := range values {
		b.Append(1, nil, []byte(v), nil)
	}
	return b.Finish()
}

// An answer that makes no sense moves nothing, or the good part of it would be lost.
func TestAnAnswerIsTakenAsAWholeOrNotAtAll(t *testing.T) {
	good := fetchPart(0, 100, batchAt(5, record.None, "a", "b"))
	whole := fetchAnswer(good, fetchPart(1, 100, batchAt(5, record.None, "c")))
	negative := fetchPart(1, -1, nil)
	for name, body := range map[string][]byte{
		"twice the same partition": fetchAnswer(good, good),
		"a partition of nobody":    fetchAnswer(good, fetchPart(2, 100, nil)),
		"a negative log end":       fetchAnswer(good, negative),
		"bytes behind":             append(slices.Clone(whole), 1),
		"another topic":            append(fetchAnswer(good)[:10], fetchAnswer(good)[10:]...),
		"two billion partitions":   hostile(whole, 17, math.MaxInt32),
		"two billion topics":       hostile(whole, 10, math.MaxInt32),
		"an error for all":         hostile16(whole, 4, kerr.UnknownServerError.Code),
	} {
		if name == "another topic" {
			body[16] = 'x'
		}
		r, l := oneLane(5, 100)
		a := &answer{}
		if move, err := l.parse(a, body); err == nil || move || len(a.parts) > 0 || l.parts[0].next != 5 || r.err() != nil {
			t.Errorf("%s: error %v, %d parts, at %d, reader %v", name, err, len(a.parts), l.parts[0].next, r.err())
		}
	}
	for n := range whole { // cut anywhere
		_, l := oneLane(5, 100)
		a := &answer{}
		if _, err := l.parse(a, whole[:n]); err == nil || len(a.parts) > 0 || l.parts[0].next != 5 {
			t.Errorf("cut after %d of %d bytes: error %v, %d parts, at %d", n, len(whole), err, len(a.parts), l.parts[0].next)
		}
	}
	_, l := oneLane(5, 100)
	a := &answer{}
	if move, err := l.parse(a, whole); err != nil || move || len(a.parts) != 2 || l.parts[0].next != 7 || l.parts[1].next != 6 {
		t.Errorf("the good answer: error %v, move %v, parts %+v", err, move, a.parts)
	}
}

// hostile writes a count to a place of an answer.
func hostile(b []byte, at int, n int32) []byte {
	b = slices.Clone(b)
	binary.BigEndian.PutUint32(b[at:], uint32(n))
	return b
}

func hostile16(b []byte, at int, n int16) []byte {
	b = slices.Clone(b)
	binary.BigEndian.PutUint16(b[at:], uint16(n))
	return b
}

// What an answer's batches may be, and what becomes of those that may not.
func TestBatchesThatCannotBeAreAskedForAgain(t *testing.T) {
	control := record.TimeMark(9, 9)
	record.SetBase(control, 7, 1)
	columnar := batchAt(5, record.None, "a")
	columnar[21] |= byte(record.AttrColumnar >> 8)
	record.Seal(columnar)
	for _, c := range []struct {
		name    string
		batches [][]byte
		want    string // values handed out
		next    int64  // asked for next, once all is used up
		corrupt bool
	}{
		{"plain", [][]byte{batchAt(5, record.None, "a", "b"), batchAt(7, record.None, "c")}, "abc", 8, false},
		{"compressed", [][]byte{batchAt(5, record.Gzip, "a"), batchAt(6, record.Snappy, "b"), batchAt(7, record.LZ4, "c"), batchAt(8, record.Zstd, "d")}, "abcd", 9, false},
		{"from the middle", [][]byte{batchAt(3, record.LZ4, "a", "b", "c", "d")}, "cd", 7, false},
		{"a gap", [][]byte{batchAt(20, record.None, "a"), batchAt(30, record.None, "b")}, "ab", 31, false},
		{"a control batch between", [][]byte{batchAt(5, record.None, "a", "b"), control, batchAt(8, record.None, "c")}, "abc", 9, false},
		{"a cut batch behind", [][]byte{batchAt(5, record.None, "a"), batchAt(6, record.None, "b")[:65]}, "a", 6, false},
		{"one from before, then more", [][]byte{batchAt(2, record.None, "x"), batchAt(5, record.None, "a")}, "a", 6, false},
		{"nothing but a cut batch", [][]byte{batchAt(5, record.None, "a")[:65]}, "", 5, true},
		{"nothing but what was before", [][]byte{batchAt(2, record.None, "x")}, "", 5, true},
		{"backwards", [][]byte{batchAt(20, record.None, "a"), batchAt(6, record.None, "b")}, "", 5, true},
		{"the same twice", [][]byte{batchAt(5, record.None, "a"), batchAt(5, record.None, "a")}, "", 5, true},
		{"beyond the log end", [][]byte{batchAt(99, record.None, "a", "b")}, "", 5, true},
		{"at the largest offset", [][]byte{batchAt(math.MaxInt64, record.None, "a")}, "", 5, true},
		{"across the largest offset", [][]byte{batchAt(math.MaxInt64, record.None, "a", "b")}, "", 5, true},
		{"a negative offset", [][]byte{batchAt(-3, record.None, "a")}, "", 5, true},
		{"a length of two billion", [][]byte{hostile(batchAt(5, record.None, "a"), 8, math.MaxInt32)}, "", 5, true},
		{"a negative length", [][]byte{hostile(batchAt(5, record.None, "a"), 8, -1)}, "", 5, true},
		{"a length behind good ones", [][]byte{batchAt(5, record.None, "a"), hostile(batchAt(6, record.None, "b"), 8, 3)}, "a", 6, true},
		{"another message format", [][]byte{hostile(batchAt(5, record.None, "a"), 16, 1<<24)}, "", 5, true},
		{"a wrong byte", [][]byte{hostile(batchAt(5, record.None, "a"), 30, 7)}, "", 5, true},
		{"a wrong byte behind", [][]byte{batchAt(5, record.None, "a"), hostile(batchAt(6, record.None, "b"), 30, 7)}, "a", 6, true},
		{"columns", [][]byte{columnar}, "", 5, true},
		{"compressed bytes that are none", [][]byte{uncompressible()}, "", 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, l := oneLane(5, 200)
			for try := 0; ; try++ {
				a := &answer{}
				if _, err := l.parse(a, fetchAnswer(fetchPart(0, 100, c.batches...), fetchPart(1, 100, nil))); err != nil {
					t.Fatal(err)
				}
				got := ""
				r.cur = a
				for b := r.advance(); b != nil; b = r.advance() {
					for b.Next() {
						got += string(b.Record().Value)
					}
					if err := b.Err(); err != nil {
						t.Fatal(err)
					}
				}
				if try == 0 && got != c.want {
					t.Fatalf("got %q, want %q", got, c.want)
				}
				if next := l.parts[0].next; next != c.next {
					t.Fatalf("asks for %d next, want %d", next, c.next)
				}
				if !c.corrupt {
					if l.parts[0].bad != 0 || r.err() != nil {
						t.Fatalf("it counts as corrupt: %d, %v", l.parts[0].bad, r.err())
					}
					return
				}
				if try == maxCorrupt {
					break
				}
				if r.err() != nil {
					t.Fatalf("given up after %d answers: %v", try+1, r.err())
				}
				if c.want != "" { // from the batch that is corrupt on
					c.batches, c.want = c.batches[1:], ""
				}
				l.compose()
			}
			e := (*CorruptBatchError)(nil)
			if err := r.err(); !errors.As(err, &e) || e.Offset != c.next || e.Partition != 0 || !errors.Is(err, ErrCorruptBatch) {
				t.Errorf("the reader ends with %v", err)
			}
		})
	}
}

// uncompressible is a batch that says it is gzip, with the right checksum.
func uncompressible() []byte {
	b := batchAt(5, record.None, "a")
	b[22] |= byte(record.Gzip)
	record.Seal(b)
	return b
}

// A partition that is asked for again while its lane lets go of it, since it was read to the end, has one connection.
func TestAPartitionAskedForAgainAtItsEndHasOneConnection(t *testing.T) {
	r, l := oneLane(5, 7)
	bad := hostile(batchAt(5, record.None, "a"), 30, 7)
	first := &answer{}
	if _, err := l.parse(first, fetchAnswer(fetchPart(0, 7, bad), fetchPart(1, 7, nil))); err != nil {
		t.Fatal(err)
	}
	l.compose()
	last := fetched{asked: l.find(0), high: 7, data: batchAt(6, record.None, "b")}
	if _, err := l.take(&answer{}, &last); err != nil { // read to the end, and before the lane has let go …
		t.Fatal(err)
	}
	r.cur = first
	if b := r.advance(); b != nil { // … Next finds the first batch corrupt
		t.Fatal("a corrupt batch is handed out")
	}
	if l.leave(); slices.ContainsFunc(l.parts, func(p *readPart) bool { return p.number == 0 }) {
		t.Error("the lane keeps the partition")
	}
	if again := <-r.moved; len(again) != 1 || again[0].number != 0 || again[0].next != 5 {
		t.Errorf("moved: %+v", again)
	}
}

// What a server says about a partition's bounds.
func TestAnswersWithoutRecords(t *testing.T) {
	coded := func(code int16, start, high int64) []byte {
		p := fetchPart(0, high, nil)
		p.ErrorCode, p.LogStartOffset = code, start
		return fetchAnswer(p, fetchPart(1, 100, nil))
	}
	t.Run("records that are gone", func(t *testing.T) {
		r, l := oneLane(5, 100)
		if move, err := l.parse(&answer{}, coded(kerr.OffsetOutOfRange.Code, 20, 100)); !move || err != nil {
			t.Error(move, err)
		}
		e := (*OffsetRangeError)(nil)
		if !errors.As(r.err(), &e) || e.Offset != 5 || e.LogStart != 20 || e.LogEnd != 100 {
			t.Error(r.err())
		}
	})
	t.Run("records that are skipped", func(t *testing.T) {
		r, l := oneLane(5, 100)
		r.o.SkipLost = true
		if move, err := l.parse(&answer{}, coded(kerr.OffsetOutOfRange.Code, 20, 100)); move || err != nil || r.err() != nil {
			t.Error(move, err, r.err())
		}
		if l.parts[0].next != 20 || r.Skipped() != 15 {
			t.Errorf("at %d, %d skipped", l.parts[0].next, r.Skipped())
		}
	})
	t.Run("a log start beyond the log end", func(t *testing.T) {
		r, l := oneLane(5, math.MaxInt64)
		r.o.SkipLost = true
		if _, err := l.parse(&answer{}, coded(kerr.OffsetOutOfRange.Code, math.MaxInt64, 100)); err != nil || !errors.Is(r.err(), ErrOffsetRange) {
			t.Error(err, r.err())
		}
	})
	t.Run("an offset that is not there yet", func(t *testing.T) {
		r, l := oneLane(5, 100)
		r.o.SkipLost = true
		if _, err := l.parse(&answer{}, coded(kerr.OffsetOutOfRange.Code, 0, 3)); err != nil || !errors.Is(r.err(), ErrOffsetRange) {
			t.Error(err, r.err())
		}
	})
	t.Run("another leader", func(t *testing.T) {
		r, l := oneLane(5, 100)
		if move, err := l.parse(&answer{}, coded(kerr.NotLeaderForPartition.Code, -1, -1)); !move || err != nil || r.err() != nil || len(l.parts) != 2 {
			t.Error(move, err, r.err(), l.parts)
		}
	})
	t.Run("a topic that was removed", func(t *testing.T) {
		r, l := oneLane(5, 100)
		if _, err := l.parse(&answer{}, coded(kerr.UnknownTopicOrPartition.Code, -1, -1)); err != nil || !errors.Is(r.err(), ErrUnknownTopic) {
			t.Error(err, r.err())
		}
	})
	t.Run("an end that moves back", func(t *testing.T) {
		r, l := oneLane(5, 100)
		a := &answer{}
		if _, err := l.parse(a, coded(0, 0, 5)); err != nil || len(l.parts) != 1 || l.parts[0].number != 1 {
			t.Error(err, l.parts)
		}
		r.cur = a
		if b := r.advance(); b != nil || r.left != 1 {
			t.Error(b, r.left)
		}
	})
	t.Run("nothing yet", func(t *testing.T) {
		_, l := oneLane(5, 100)
		l.parts[0].found, l.parts[1].found = false, false
		a := &answer{}
		if move, err := l.parse(a, coded(0, 0, 5)); move || err != nil || len(a.parts) != 0 || len(l.parts) != 2 {
			t.Error(move, err, a.parts, l.parts)
		}
	})
}

// FuzzFetchAnswer: whatever arrives, positions only move with an answer that is whole, records come in order and inside
// the bounds, and what we take apart is what Kafka's own decoder does.
func FuzzFetchAnswer(f *testing.F) {
	control := record.TimeMark(9, 9)
	record.SetBase(control, 7, 1)
	for _, batches := range [][][]byte{
		{batchAt(5, record.None, "a", "b"), control, batchAt(8, record.Zstd, "c")},
		{batchAt(3, record.LZ4, "a", "b", "c", "d")},
		{batchAt(20, record.Gzip, "a"), batchAt(6, record.Snappy, "b")},
		{batchAt(5, record.None, "a")[:65]},
		{hostile(batchAt(5, record.None, "a"), 8, math.MaxInt32)},
		{batchAt(math.MaxInt64, record.None, "a")},
		{uncompressible()},
	} {
		f.Add(fetchAnswer(fetchPart(0, 100, batches...), fetchPart(1, 50, batches...)))
	}
	lost := fetchPart(1, 100, nil)
	lost.ErrorCode, lost.LogStartOffset = kerr.OffsetOutOfRange.Code, 20
	f.Add(fetchAnswer(fetchPart(0, 100, batchAt(5, record.None, "a")), lost))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, l := oneLane(5, 60)
		r.o.SkipLost = true
		parts := slices.Clone(l.parts)
		a := &answer{}
		_, err := l.parse(a, body)
		if err != nil {
			if len(a.parts) > 0 || parts[0].next != 5 || parts[1].next != 5 {
				t.Fatalf("%v, and positions %d and %d", err, parts[0].next, parts[1].next)
			}
			return
		}
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = readerFetchVersion
		if err := resp.ReadFrom(body); err != nil {
			t.Fatalf("Kafka's decoder takes it for malformed: %v", err)
		}
		high := map[int32]int64{}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				high[p.Partition] = p.HighWatermark
			}
		}
		at := map[int32]int64{0: 5, 1: 5}
		r.cur = a
		for b := r.advance(); b != nil; b = r.advance() {
			for b.Next() {
				o := b.Record().Offset
				if o < at[b.Partition] || o >= 60 || o >= high[b.Partition] {
					t.Fatalf("partition %d: offset %d behind %d, log end %d", b.Partition, o, at[b.Partition], high[b.Partition])
				}
				at[b.Partition] = o + 1
				b.Headers()
			}
			if err := b.Err(); err != nil && !errors.Is(err, record.ErrCorrupt) {
				t.Fatal(err)
			}
		}
		for _, p := range parts {
			if p.next < at[p.number] {
				t.Fatalf("partition %d asks for %d again, has handed out up to %d", p.number, p.next, at[p.number])
			}
		}
		if r.left < 0 || r.left == 0 && r.err() == io.EOF {
			t.Fatalf("%d partitions are left", r.left)
		}
	})
}
