package segment

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/log/record"
)

var seed = Seed{Topic: [16]byte{0xAA, 1}, Partition: 3, Segment: 100}

// chain builds n batches, as they lie in a file, and their refs.
func chain(n int, base, pos int64, prev uint32) (file []byte, refs []Ref) {
	for i := range n {
		b := record.NewBuilder()
		for range 1 + i%3 {
			b.Append(1700000000000+int64(i), nil, fmt.Appendf(nil, "value %d", i), nil)
		}
		data := b.Finish()
		record.SetBase(data, base, 9)
		prev = seed.Link(prev, data)
		refs = append(refs, Ref{
			Base: base, Last: base + int64(i%3), Pos: pos, Size: int32(len(data)), Unit: int32(i % 2), Index: 40 + uint64(i/2), Term: 9,
			EntryPos: uint32(13 + i), Link: prev, AppendTime: 1700000000000000000 + int64(i)*1000, MaxTimestamp: 1700000000000 + int64(i),
		})
		file = append(file, data...)
		base, pos = base+int64(i%3)+1, pos+int64(len(data))
	}
	return file, refs
}

func TestBlockBytesAreTheDrawnOnes(t *testing.T) {
	_, refs := chain(3, 100, 0, 0)
	b := AppendBlock(nil, refs, 0)
	h, got, err := DecodeBlock(b, nil)
	if err != nil || !reflect.DeepEqual(got, refs) {
		t.Fatalf("%+v\n%+v\n%v", got, refs, err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", h)
	for _, r := range got {
		fmt.Fprintf(&out, "%+v\n", r)
	}
	golden.Check(t, "testdata/block.txt", out.String()+"----\n"+hex.Dump(b))
}

func TestEveryFlippedBitOfABlockIsNoticed(t *testing.T) {
	_, refs := chain(4, 100, 0, 0)
	b := AppendBlock(nil, refs, 0)
	for i := range len(b) * 8 {
		b[i/8] ^= 1 << (i % 8)
		if _, _, err := DecodeBlock(b, nil); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("bit %d: %v", i, err)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestABatchFitsOnlyItsOwnPlace(t *testing.T) {
	file, refs := chain(3, 100, 0, 0)
	second := file[refs[1].Pos : refs[1].Pos+int64(refs[1].Size)]
	if err := seed.Verify(second, &refs[1], refs[0].Link); err != nil {
		t.Fatal(err)
	}
	other := seed
	other.Partition++
	elsewhere := seed
	elsewhere.Segment++
	for name, err := range map[string]error{
		"another partition":  other.Verify(second, &refs[1], refs[0].Link),
		"another segment":    elsewhere.Verify(second, &refs[1], refs[0].Link),
		"after another":      seed.Verify(second, &refs[1], refs[2].Link),
		"under another name": seed.Verify(second, &refs[2], refs[1].Link),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnIndexIsReadAsItGrows(t *testing.T) {
	var file []byte
	var x Index
	base, pos, prev := int64(100), int64(0), uint32(0)
	var all []Ref
	for n := range 300 {
		_, refs := chain(1+n%7, base, pos, prev)
		all = append(all, refs...)
		file = AppendBlock(file, refs, prev)
		last := refs[len(refs)-1]
		base, pos, prev = last.Last+1, last.Pos+int64(last.Size), last.Link
		if n%50 != 49 {
			continue
		}
		marks, err := x.Marks(bytes.NewReader(file), int64(len(file)))
		if err != nil || len(marks) != n+1 {
			t.Fatalf("%d marks of %d: %v", len(marks), n+1, err)
		}
		for _, r := range all {
			i := Find(marks, r.Last)
			got, prev, err := ReadBlocks(bytes.NewReader(file), marks[i:min(i+2, len(marks))], nil)
			if err != nil {
				t.Fatal(err)
			}
			k := 0
			for got[k].Last < r.Last {
				prev = got[k].Link
				k++
			}
			if got[k] != r || (prev == 0) != (r.Base == 100) {
				t.Fatalf("%+v, want %+v", got[k], r)
			}
		}
	}
	if i := Find(nil, 5); i != -1 {
		t.Fatal(i)
	}
	if _, err := new(Index).Marks(bytes.NewReader(file), int64(len(file))+1); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("an index that ends early: %v", err)
	}
}

func TestNamesComeApart(t *testing.T) {
	for _, base := range []int64{0, 7, 1<<63 - 1} {
		for _, gen := range []uint32{0, 1, 1<<32 - 1} {
			if b, g, index, ok := ParseName(LogName(base, gen)); b != base || g != gen || index || !ok {
				t.Errorf("%s: %d %d %v %v", LogName(base, gen), b, g, index, ok)
			}
			if b, g, index, ok := ParseName(IndexName(base, gen)); b != base || g != gen || !index || !ok {
				t.Errorf("%s: %d %d %v %v", IndexName(base, gen), b, g, index, ok)
			}
		}
	}
	for _, name := range []string{"", ".log", "1.log", "00000000000000000001.txt", "99999999999999999999.log", "0000000000000000-001.log", "+0000000000000000001.log", "00000000000000000001-.log", "00000000000000000001-0.log", "00000000000000000001-01.log", "00000000000000000001-4294967296.log", "00000000000000000001-1-1.log"} {
		if _, _, _, ok := ParseName(name); ok {
			t.Errorf("%q is a name", name)
		}
	}
}

func FuzzDecodeBlock(f *testing.F) {
	for n := 1; n < 6; n++ {
		_, refs := chain(n, 100*int64(n), 5, 7)
		f.Add(AppendBlock(nil, refs, 7))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 12 { // or hardly anything would pass the checksum
			binary.BigEndian.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
		}
		h, refs, err := DecodeBlock(b, nil)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if len(refs) != h.Count || refs[0].Base != h.First || refs[len(refs)-1].Last != h.Last {
			t.Fatalf("%+v", h)
		}
		_, again, err := DecodeBlock(AppendBlock(nil, refs, h.Prev), nil)
		if err != nil || !reflect.DeepEqual(again, refs) {
			t.Fatalf("%+v\n%+v\n%v", refs, again, err)
		}
	})
}

// blocksOf are three blocks of one chain and where each ends.
func blocksOf() (file []byte, ends []int) {
	base, pos, prev := int64(100), int64(0), uint32(0)
	for n := 1; n < 4; n++ {
		_, refs := chain(n, base, pos, prev)
		file = AppendBlock(file, refs, prev)
		ends = append(ends, len(file))
		last := refs[n-1]
		base, pos, prev = last.Last+1, last.Pos+int64(last.Size), last.Link
	}
	return file, ends
}

// FuzzReadBlocks reads blocks with the marks of an index that was sound once, and with those that the bytes
// themselves give. What it returns is one chain, and no larger than the bytes allow.
func FuzzReadBlocks(f *testing.F) {
	sound, ends := blocksOf()
	var x Index
	old, err := x.Marks(bytes.NewReader(sound), int64(len(sound)))
	if err != nil || len(old) != len(ends) {
		f.Fatalf("%d marks: %v", len(old), err)
	}
	f.Add(sound, uint8(0), uint8(3))
	f.Add(sound, uint8(1), uint8(1))
	f.Add(sound[:ends[1]], uint8(0), uint8(2))
	f.Add(append(append([]byte(nil), sound[ends[0]:]...), sound...), uint8(0), uint8(4))
	f.Fuzz(func(t *testing.T, b []byte, from, n uint8) {
		for at := 0; at < len(b); { // or hardly anything would pass the checksums
			h, err := ParseHead(b[at:])
			if err != nil || h.Size < HeadBytes || h.Size > len(b)-at {
				break
			}
			binary.BigEndian.PutUint32(b[at+8:], crc32.Checksum(b[at+12:at+h.Size], castagnoli))
			at += h.Size
		}
		own, err := new(Index).Marks(bytes.NewReader(b), int64(len(b)))
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		for _, marks := range [][]Mark{old, own} {
			marks = marks[min(int(from), len(marks)):]
			marks = marks[:min(int(n), len(marks))]
			refs, _, err := ReadBlocks(bytes.NewReader(b), marks, nil)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				continue
			}
			if len(refs) > len(b)/minRefBytes || len(marks) > 0 && (len(refs) < len(marks) || refs[0].Base != marks[0].First) {
				t.Fatalf("%d batches of %d marks in %d bytes", len(refs), len(marks), len(b))
			}
			for i := 1; i < len(refs); i++ {
				if refs[i].Base != refs[i-1].Last+1 || refs[i].Last < refs[i].Base {
					t.Fatalf("%+v after %+v", refs[i], refs[i-1])
				}
			}
		}
	})
}

func BenchmarkDecodeBlock(b *testing.B) {
	_, refs := chain(80, 0, 0, 0)
	block := AppendBlock(nil, refs, 0)
	b.ReportAllocs()
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		var err error
		if _, refs, err = DecodeBlock(block, refs[:0]); err != nil {
			b.Fatal(err)
		}
	}
}
