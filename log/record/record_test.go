package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/golden"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

var codecs = []Codec{None, Gzip, Snappy, LZ4, Zstd}

// readAllRecords copies what a Reader yields.
func readAllRecords(t testing.TB, batch []byte) []Record {
	t.Helper()
	var r Reader
	if err := r.Reset(batch); err != nil {
		t.Fatal(err)
	}
	var out []Record
	for r.Next() {
		rec := *r.Record()
		rec.Key, rec.Value = clone(rec.Key), clone(rec.Value)
		rec.Headers = nil
		for _, h := range r.Headers() {
			rec.Headers = append(rec.Headers, KV{h.Key, clone(h.Value)})
		}
		out = append(out, rec)
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

func equalRecords(a, b []Record) bool { return fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b) }

func randomRecords(rng *rand.Rand, n int) []Record {
	bytesOf := func(limit int) []byte {
		switch rng.IntN(5) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, rng.IntN(limit))
		for i := range b {
			b[i] = byte('a' + rng.IntN(6))
		}
		return b
	}
	out := make([]Record, n)
	off := int64(0)
	for i := range out {
		out[i] = Record{Offset: off, Timestamp: 1_700_000_000_000 + rng.Int64N(5_000_000) - 2_000_000, Key: bytesOf(20), Value: bytesOf(300)}
		for range rng.IntN(3) {
			out[i].Headers = append(out[i].Headers, KV{"h" + string(rune('a'+rng.IntN(26))), bytesOf(10)})
		}
		off += 1 + rng.Int64N(3)*int64(rng.IntN(2))
	}
	return out
}

func build(codec Codec, recs []Record) []byte {
	b := NewBuilder()
	b.SetCodec(codec)
	for _, r := range recs {
		b.AppendAt(int32(r.Offset), r.Timestamp, r.Key, r.Value, r.Headers)
	}
	return b.Finish()
}

func TestReaderGivesBackWhatBuilderGot(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		recs := randomRecords(rng, 1+rng.IntN(60))
		for _, codec := range codecs {
			batch := build(codec, recs)
			h, err := Verify(batch)
			if err != nil {
				t.Fatalf("%d %s: %v", i, codec, err)
			}
			if h.Codec() != codec || int(h.Count) != len(recs) || h.LastOffset() != recs[len(recs)-1].Offset {
				t.Fatalf("%d %s: header %+v", i, codec, h)
			}
			if got := readAllRecords(t, batch); !equalRecords(got, recs) {
				t.Fatalf("%d %s:\n got %#v\nwant %#v", i, codec, got, recs)
			}
		}
	}
}

func TestSnappyInJavaFramingIsRead(t *testing.T) {
	recs := randomRecords(rand.New(rand.NewPCG(3, 4)), 40)
	plain := build(None, recs)
	payload := append([]byte{}, xerialMagic...)
	payload = append(payload, 0, 0, 0, 1, 0, 0, 0, 1)
	for rest := plain[HeaderSize:]; len(rest) > 0; {
		n := min(1000, len(rest))
		block := s2.EncodeSnappy(nil, rest[:n])
		payload = binary.BigEndian.AppendUint32(payload, uint32(len(block)))
		payload = append(payload, block...)
		rest = rest[n:]
	}
	batch := append(plain[:HeaderSize:HeaderSize], payload...)
	h, _ := ParseHeader(plain)
	h.Attributes |= int16(Snappy)
	PutHeader(batch, h)
	Seal(batch)
	if got := readAllRecords(t, batch); !equalRecords(got, recs) {
		t.Fatal("records differ")
	}
	for cut := HeaderSize; cut < len(batch); cut += 7 {
		short := append([]byte{}, batch[:cut]...)
		Seal(short)
		var r Reader
		if r.Reset(short) == nil {
			for r.Next() {
			}
			if r.Err() == nil && cut < len(batch)-1 {
				t.Fatalf("cut at %d goes unnoticed", cut)
			}
		}
	}
}

func TestHeaderHoldsEveryFieldAndBaseIsOutsideTheChecksum(t *testing.T) {
	b := NewBuilder()
	b.SetProducer(77, 5, 900)
	b.SetTransactional()
	b.Append(1000, []byte("k"), []byte("v"), nil)
	b.Append(900, nil, nil, nil)
	b.SetLastOffsetDelta(9)
	batch := b.Finish()
	SetBase(batch, 1<<40, 12)
	h, err := Verify(batch)
	if err != nil {
		t.Fatal(err)
	}
	if h.BaseOffset != 1<<40 || h.LeaderEpoch != 12 || h.ProducerID != 77 || h.ProducerEpoch != 5 || h.BaseSequence != 900 ||
		h.Count != 2 || h.LastOffsetDelta != 9 || h.FirstTimestamp != 1000 || h.MaxTimestamp != 1000 || !h.Transactional() || h.Control() {
		t.Fatalf("%+v", h)
	}
	got := readAllRecords(t, batch)
	if got[1].Offset != 1<<40+1 || got[1].Timestamp != 900 {
		t.Fatalf("%+v", got[1])
	}
	// The producer and the codec stay for the next batch, the records do not.
	b.Append(1, nil, nil, nil)
	if h, _ := ParseHeader(b.Finish()); h.ProducerID != 77 || h.Count != 1 || h.Transactional() {
		t.Fatalf("%+v", h)
	}
	var plain Builder
	plain.Append(1, nil, nil, nil)
	if h, _ := ParseHeader(plain.Finish()); h.ProducerID != -1 || h.ProducerEpoch != -1 || h.BaseSequence != -1 {
		t.Fatalf("%+v", h)
	}
}

func TestEmptyBatchStandsForFilteredOffsets(t *testing.T) {
	b := NewBuilder()
	b.SetLastOffsetDelta(41)
	batch := b.Finish()
	h, err := Verify(batch)
	if err != nil || h.Count != 0 || h.LastOffsetDelta != 41 {
		t.Fatalf("%+v %v", h, err)
	}
	if got := readAllRecords(t, batch); len(got) != 0 {
		t.Fatal(got)
	}
	if VerifyRecords(batch) == nil {
		t.Fatal("a producer must not send it")
	}
}

func TestLogAppendTimeOverridesRecordTimes(t *testing.T) {
	batch := build(None, []Record{{Timestamp: 5}, {Offset: 1, Timestamp: 6}})
	h, _ := ParseHeader(batch)
	h.Attributes |= AttrLogAppendTime
	h.MaxTimestamp = 99
	PutHeader(batch, h)
	Seal(batch)
	for _, r := range readAllRecords(t, batch) {
		if r.Timestamp != 99 {
			t.Fatal(r.Timestamp)
		}
	}
}

func TestVerifyFindsEveryFlippedBit(t *testing.T) {
	batch := build(None, randomRecords(rand.New(rand.NewPCG(5, 6)), 5))
	for bit := range len(batch) * 8 {
		if pos := bit / 8; pos < posLength || pos >= posLeaderEpoch && pos < posMagic {
			continue // base offset and leader epoch lie outside the checksum
		}
		batch[bit/8] ^= 1 << (bit % 8)
		if _, err := Verify(batch); err == nil {
			t.Fatalf("bit %d", bit)
		}
		batch[bit/8] ^= 1 << (bit % 8)
	}
}

func TestVerifyRecordsRefusesWhatAProducerMustNotSend(t *testing.T) {
	good := build(None, []Record{{Key: []byte("k"), Headers: []KV{{"a", nil}}}, {Offset: 1}})
	if err := VerifyRecords(good); err != nil {
		t.Fatal(err)
	}
	gap := build(None, []Record{{}, {Offset: 2}})
	if err := VerifyRecords(gap); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	for pos := HeaderSize; pos < len(good); pos++ {
		for _, v := range []byte{0x00, 0x01, 0x03, 0x7f, 0x80, 0xff} {
			b := append([]byte{}, good...)
			b[pos] = v
			Seal(b)
			verr := VerifyRecords(b)
			var r Reader
			rerr := r.Reset(b)
			for r.Next() {
			}
			if rerr == nil {
				rerr = r.Err()
			}
			if verr == nil && rerr != nil {
				t.Fatalf("byte %d = %#x: accepted, but the Reader says %v", pos, v, rerr)
			}
		}
	}
}

func TestNextSplitsBatches(t *testing.T) {
	a, b := build(None, randomRecords(rand.New(rand.NewPCG(7, 8)), 3)), build(Zstd, randomRecords(rand.New(rand.NewPCG(9, 8)), 30))
	all := append(append([]byte{}, a...), b...)
	x, rest, err := Next(all)
	if err != nil || !bytes.Equal(x, a) {
		t.Fatal(err)
	}
	y, rest, err := Next(rest)
	if err != nil || !bytes.Equal(y, b) || len(rest) != 0 {
		t.Fatal(err)
	}
	if _, _, err := Next(all[:len(a)-1]); !errors.Is(err, ErrShort) {
		t.Fatal(err)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	const limit = 1 << 20
	zeros := make([]byte, limit+1)
	for _, codec := range codecs[1:] {
		t.Run(codec.String(), func(t *testing.T) {
			payload, err := compress(nil, zeros, codec)
			if err != nil {
				t.Fatal(err)
			}
			out, err := decompressWithin(nil, payload, codec, limit)
			if !errors.Is(err, ErrTooLarge) || cap(out) > 2*limit {
				t.Fatalf("%d bytes became %d: %v", len(payload), len(out), err)
			}
			if out, err := decompressWithin(nil, payload, codec, limit+1); err != nil || !bytes.Equal(out, zeros) {
				t.Fatalf("%d: %v", len(out), err)
			}
		})
	}
	if n := decompressedLimit(1 << 30); n != MaxDecompressed {
		t.Fatal(n)
	}
	if n := decompressedLimit(10); n != freeRatioBytes+10*maxRatio {
		t.Fatal(n)
	}
}

func TestALieAboutTheSizeTakesNoMemory(t *testing.T) {
	// A snappy block and a zstd frame that claim 60 MiB in a few bytes.
	claim := binary.AppendUvarint(nil, 60<<20)
	claim = append(claim, 0, 'x')
	z := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0xc0, 3, 1, 0, 0}
	for codec, payload := range map[Codec][]byte{Snappy: claim, Zstd: z} {
		const runs = 20
		var before, after goruntime.MemStats
		for i := range 2 * runs {
			if i == runs { // the decompressors have their memory now
				goruntime.ReadMemStats(&before)
			}
			if _, err := decompress(nil, payload, codec); err == nil {
				t.Fatal("accepted")
			}
		}
		goruntime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / runs; n > 1<<20 {
			t.Errorf("%s: %d bytes", codec, n)
		}
	}
}

func TestReaderAllocatesNothingPerRecord(t *testing.T) {
	recs := randomRecords(rand.New(rand.NewPCG(11, 12)), 1000)
	for _, codec := range codecs {
		batch := build(codec, recs)
		var r Reader
		n := testing.AllocsPerRun(20, func() {
			if err := r.Reset(batch); err != nil {
				t.Fatal(err)
			}
			for r.Next() {
			}
		})
		if n > 50 { // for 1,000 records; the decompressors' pools may be empty
			t.Errorf("%s: %v allocations", codec, n)
		}
	}
}

func TestTimeMarkRoundTrip(t *testing.T) {
	m := TimeMark(1_700_000_000_123_456_789, 42)
	if _, err := Verify(m); err != nil {
		t.Fatal(err)
	}
	if w, ok := ParseTimeMark(m); !ok || w != 1_700_000_000_123_456_789 {
		t.Fatal(w, ok)
	}
	if _, ok := ParseTimeMark(build(None, []Record{{Key: []byte("abcd"), Value: make([]byte, 8)}})); ok {
		t.Fatal("a user's record is not a time mark")
	}
}

func TestAppendRawCopiesHeadersUnchanged(t *testing.T) {
	src := build(None, randomRecords(rand.New(rand.NewPCG(21, 12)), 50))
	var r Reader
	if err := r.Reset(src); err != nil {
		t.Fatal(err)
	}
	b := NewBuilder()
	for r.Next() {
		rec := r.Record()
		b.AppendRaw(int32(rec.Offset), rec.Timestamp, rec.Key, rec.Value, r.HeaderBytes())
	}
	if !bytes.Equal(b.Finish(), src) {
		t.Fatal("copy differs")
	}
}

// TestFormat pins the drawings of log/FORMAT.md, "Record batch".
func TestFormat(t *testing.T) {
	var out strings.Builder
	dump := func(title string, b []byte) {
		fmt.Fprintf(&out, "# %s\n%s\n", title, hex.Dump(b))
	}
	b := NewBuilder()
	b.SetBase(1000, 7)
	b.SetProducer(4001, 2, 15)
	b.Append(1_700_000_000_000, []byte("k1"), []byte("v1"), []KV{{"h", []byte("x")}, {"n", nil}})
	b.Append(1_700_000_000_005, nil, []byte("v2"), nil)
	b.AppendAt(3, 1_699_999_999_999, []byte("k3"), nil, nil)
	b.SetLastOffsetDelta(4)
	dump("three records (the second has no key, the third no value), offset deltas 0, 1, 3 of 5", b.Finish())
	dump("a time mark", TimeMark(1_700_000_000_000_000_000, 1_700_000_000_000))
	b = NewBuilder()
	b.SetLastOffsetDelta(9)
	dump("ten offsets without records", b.Finish())
	golden.Check(t, "testdata/batch.txt", out.String())
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, codec := range codecs {
		f.Add(build(codec, randomRecords(rng, 5)))
	}
	f.Add(TimeMark(1, 2))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) >= HeaderSize {
			in = append([]byte{}, in...)
			Seal(in) // so that the fuzzer gets past the checksum
		}
		_, _, _ = Next(in)
		h, err := Verify(in)
		if err != nil {
			return
		}
		producible := VerifyRecords(in) == nil
		_, _ = ParseTimeMark(in)
		var r Reader
		if err := r.Reset(in); err != nil {
			if producible && h.Codec() == None && !h.Columnar() {
				t.Fatalf("VerifyRecords accepts what Reset refuses: %v", err)
			}
			return
		}
		if cap(r.buf) > 2*(decompressedLimit(len(in))+1024) {
			t.Fatalf("%d bytes of memory for %d of input", cap(r.buf), len(in))
		}
		b := NewBuilder()
		b.SetProducer(h.ProducerID, h.ProducerEpoch, h.BaseSequence)
		b.SetLastOffsetDelta(h.LastOffsetDelta)
		var recs []Record
		for r.Next() {
			rec := *r.Record()
			rec.Headers = append([]KV(nil), r.Headers()...)
			if len(rec.Headers) == 0 {
				rec.Headers = nil
			}
			recs = append(recs, rec)
			b.AppendAt(int32(rec.Offset-h.BaseOffset), rec.Timestamp, rec.Key, rec.Value, rec.Headers)
		}
		if r.Err() != nil {
			if producible && h.Codec() == None && !h.Columnar() {
				t.Fatalf("VerifyRecords accepts what the Reader refuses: %v", r.Err())
			}
			return
		}
		again := b.Finish()
		SetBase(again, h.BaseOffset, h.LeaderEpoch)
		if _, err := Verify(again); err != nil {
			t.Fatal(err)
		}
		if got := readAllRecords(t, again); !equalRecords(got, recs) {
			t.Fatalf("decode(encode(x)):\n got %#v\nwant %#v", got, recs)
		}
	})
}

// A zstd frame may not say how large it is; librdkafka's do not. Whatever room a Reader has at hand, the
// records come out.
func TestReaderTakesZstdFramesOfUnknownSize(t *testing.T) {
	for _, n := range []int{1, 200, 5000, 100_000} {
		b := NewBuilder()
		for i := range n {
			b.Append(int64(i), []byte("k"), fmt.Appendf(nil, "value %d", i%7), nil)
		}
		plain := b.Finish()
		var z bytes.Buffer
		w, err := zstd.NewWriter(&z) // a stream: no content size
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(plain[HeaderSize:]); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		batch := append(bytes.Clone(plain[:HeaderSize]), z.Bytes()...)
		batch[posAttributes+1] |= byte(Zstd)
		Seal(batch)
		var r Reader
		if err := r.Reset(batch); err != nil {
			t.Fatalf("%d records: %v", n, err)
		}
		got := 0
		for r.Next() {
			got++
		}
		if r.Err() != nil || got != n {
			t.Errorf("%d of %d records: %v", got, n, r.Err())
		}
	}
}

// What the fast way through the records accepts is what the careful one accepts, to the byte.
func FuzzPlainRecord(f *testing.F) {
	for _, n := range []int{1, 200, 20_000} {
		batch := build(None, randomRecords(rand.New(rand.NewPCG(uint64(n), 1)), 3))
		f.Add(batch[HeaderSize:], int32(0))
		b := NewBuilder()
		for i := range n {
			b.Append(int64(i), nil, []byte("0123456789abcdef"), nil)
		}
		tail := b.Finish()
		f.Add(tail[len(tail)-30:], int32(n-1))
	}
	f.Add([]byte{0x28, 0, 0, 0x80, 0x80, 0x80, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, int32(1<<20))
	f.Fuzz(func(t *testing.T, p []byte, delta int32) {
		n := plainRecord(p, delta)
		if n == 0 {
			return
		}
		var r frame
		if m := r.parse(p); m != n || r.offsetDelta != delta || len(r.headers) != 1 || !r.skipHeaders() {
			t.Fatalf("%d bytes with delta %d; the careful way says %d, %d, headers %x", n, delta, m, r.offsetDelta, r.headers)
		}
	})
}

// Every record that was built is walked, whichever way decides about it.
func TestVerifyRecordsTakesLengthsOfEverySize(t *testing.T) {
	b := NewBuilder()
	count := 0
	for _, size := range []int{0, 1, 14, 62, 63, 64, 65, 120, 8190, 8192, 100_000, 1_100_000} {
		for _, key := range [][]byte{nil, {}, []byte("k"), make([]byte, 70)} {
			for _, ts := range []int64{0, 63, 64, -65, 9000, 1 << 40} {
				b.Append(ts, key, make([]byte, size), nil)
				count++
			}
		}
		if b.Size() > 4<<20 {
			if err := VerifyRecords(b.Finish()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 70_000 {
		b.Append(int64(i), nil, []byte("v"), nil)
	}
	if err := VerifyRecords(b.Finish()); err != nil {
		t.Fatal(err)
	}
}
