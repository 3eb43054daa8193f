package wal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/internal/golden"
)

// TestFormat pins the drawings of log/FORMAT.md, "Write-ahead log segment".
func TestFormat(t *testing.T) {
	m := fsx.NewMem()
	w, _ := mustOpen(t, testOptions(m))
	var out strings.Builder
	at := int64(0)
	dump := func(title string) {
		b := readFile(t, m, segmentName(1))
		for ; at < w.pos; at += blockSize {
			h, _ := parseHeader(b[at:])
			fmt.Fprintf(&out, "# %s: group %d at byte %d, %d bytes of records\n%s\n", title, h.number, at, h.length,
				hex.Dump(b[at:at+headerSize+int64(h.length)]))
		}
	}
	dump("a new segment")
	must(t, w.SetStables([]Stable{{"term", []byte("7")}, {"vote", nil}}))
	dump("a stable value set, another removed")
	must(t, w.Append([]Entry{
		{Index: 5, Term: 7, Type: 1, AppendedAt: 1_700_000_000_000_000_000, Data: []byte("five")},
		{Index: 6, Term: 7, Type: 2, AppendedAt: 1_700_000_000_000_000_001, Extensions: []byte("ext"), Data: []byte("six")},
	}))
	dump("entries 5 and 6 in an empty log")
	must(t, w.TruncateFront(6))
	must(t, w.Append([]Entry{{Index: 6, Term: 8, Data: []byte("six again")}}))
	dump("entries below 6 are no longer needed, and entry 6 replaces what was there")
	must(t, w.Close())
	dump("closed")
	golden.Check(t, "testdata/segment.txt", out.String())
}

func TestGroupHeaderRoundTrip(t *testing.T) {
	h := groupHeader{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0}
	var b [headerSize]byte
	h.crc = h.put(b[:])
	if got, ok := parseHeader(b[:]); !ok || got != h {
		t.Fatalf("%+v", got)
	}
}

// FuzzSegment reads any bytes as a segment: no panic, and nothing is allocated on the word of a length.
func FuzzSegment(f *testing.F) {
	m := damageLog(f)
	seed := readFile(f, m, segmentName(1))
	f.Add(seed[:2*blockSize], false)
	f.Add(seed[blockSize:2*blockSize], true)
	f.Add(readFile(f, m, segmentName(2))[:blockSize], true)
	f.Fuzz(func(t *testing.T, b []byte, reseal bool) {
		if reseal { // so that the fuzzer gets past the checksums
			b = resealed(b)
		}
		w := walker{r: bytes.NewReader(b), size: int64(len(b)) &^ (blockSize - 1), segment: 1}
		for {
			pos := w.pos
			h, bad, err := w.group(func(r recordView) error {
				if r.kind == kindEntry && r.entry.Index == 0 {
					t.Fatal("entry 0")
				}
				return nil
			})
			if err != nil && !errors.Is(err, errBadRecord) {
				t.Fatal(err)
			}
			if err != nil || bad != "" {
				break
			}
			if w.pos <= pos || h.number == 0 {
				t.Fatal("no progress")
			}
		}
		if _, _, err := w.proof(w.pos, 1); err != nil {
			t.Fatal(err)
		}
		if cap(w.win) > len(b)+windowBytes {
			t.Fatalf("%d bytes of memory for %d of input", cap(w.win), len(b))
		}

		// Recovery of a directory with just this file gives a log or a typed error.
		fs := fsx.NewMem()
		must(t, fs.MkdirAll("wal", 0o755))
		file, err := fs.CreateFile("wal/" + segmentName(1))
		must(t, err)
		_, err = file.WriteAt(b, 0)
		must(t, err)
		log, _, err := Open(Options{FS: fs, Dir: "wal", SegmentBytes: 64 << 10, Inline: true})
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if last := log.LastIndex(); last > 0 {
			if _, err := log.Read(last); err != nil {
				t.Fatal(err)
			}
		}
		must(t, log.Close())
	})
}

// resealed makes the checksums of the group at the start of b right, as far as its lengths allow.
func resealed(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < 2*headerSize {
		return b
	}
	h := groupHeader{logID: 1, segment: 1, number: 1, length: uint32(b[1]) | uint32(b[2])<<8}
	h.length = min(h.length, uint32(len(b)-headerSize))
	payload := b[headerSize : headerSize+h.length]
	g := group{buf: b, n: headerSize}
	for len(payload) >= frameSize {
		size := min(frameSize+int(payload[4])|int(payload[5])<<8, len(payload))
		payload[6], payload[7] = 0, 0
		payload[4], payload[5] = byte(size-frameSize), byte((size-frameSize)>>8)
		g.sealSmall(payload[:size])
		payload = payload[size:]
	}
	h.records, h.payloadCRC = g.records, g.crc
	h.put(b)
	return b
}
