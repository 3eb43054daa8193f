package log

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"reflect"
	"testing"
)

// anyRow decodes a row of a kind, encodes what it got and says whether the decoder took it.
func anyRow(kind byte, v []byte) (value any, again []byte, err error) {
	switch kind {
	case rowApplied:
		r, err := decodeApplied(v)
		return r, r.encode(), err
	case rowDropped:
		r, err := decodeDropped(v)
		return r, r.encode(), err
	case rowMixedFile:
		r, err := decodeMixedFile(v)
		return r, r.encode(), err
	case rowGroup:
		r, err := decodeGroupRow(make([]byte, partitionSz), v)
		return r, encodeGroupRow(nil, &r), err
	case rowActive:
		at, err := decodeActive(v)
		return at, encodeActive(at), err
	case rowPlaced:
		r, err := decodePlaced(v)
		return r, r.encode(nil), err
	case rowRuns:
		var runs [][]byte
		again = []byte{rowVersion}
		err = eachPlacedRun(v, func(id PartitionID, base int64) error {
			runs, again = append(runs, appendRun(nil, id, base)), appendRun(again, id, base)
			return nil
		})
		return runs, again, err
	case rowMixed:
		file, block, err := decodeMixed(v)
		return []any{file, block}, appendMixed(nil, file, block), err
	case rowPartition:
		r, err := decodePartition(v)
		return r, r.encode(nil), err
	case rowProducer:
		r, err := decodeProducer(7, v)
		if err != nil {
			return r, nil, err
		}
		return *r, r.encode(nil), nil
	case rowSegment:
		r, err := decodeSegment(7, v)
		return r, r.encode(nil), err
	case rowCompact:
		r, err := decodeCompact(v)
		return r, r.encode(nil), err
	case rowTask:
		r, err := decodeTask(v)
		return r, r.encode(r.Progress.Task), err
	}
	return nil, nil, errRow
}

var rowKinds = []byte{
	rowApplied, rowDropped, rowMixedFile, rowGroup, rowActive, rowPlaced, rowMixed, rowPartition, rowProducer, rowSegment, rowTask, rowCompact, rowRuns,
}

func seedRows() map[byte][]byte {
	id := PartitionID{Topic: TopicID{1, 2}, Index: 3}
	o := GroupOffset{Offset: 5, LeaderEpoch: -1, CommittedAt: 6, Metadata: "meta"}
	p := &producer{epoch: 2, seen: 3, touched: 4, n: 2}
	p.batches[0], p.batches[1] = sequenceRange{0, 4, 10, 15}, sequenceRange{5, 9, 15, 20}
	t := &TaskState{Epoch: 3, Step: 4, Progress: Progress{
		Epoch: 3, Step: 4, From: []Cut{{id, 1}}, To: []Cut{{id, 9}}, Watermarks: []int64{7}, W: 8, Extra: []byte("extra"),
	}}
	part := &partitionRow{metaIndex: 9, settings: PartitionSettings{RetentionMs: 1, MaxBatchBytes: 2, Compact: true, MinDirtyPPM: -1, MaxRetentionMs: 5, KeepForGroups: true}, start: 3, end: 8, mixRuns: 1}
	return map[byte][]byte{
		rowApplied:   appliedRow{1, 2, 3, 4, 5}.encode(),
		rowDropped:   droppedAt{1, 2}.encode(),
		rowMixedFile: mixedFile{10, 5}.encode(),
		rowGroup:     encodeGroupRow(nil, &o),
		rowActive:    encodeActive(8),
		rowPlaced:    (&placedRow{base: 4, indexPos: 5, blocks: []byte("blocks")}).encode(nil),
		rowRuns:      appendRun(appendRun([]byte{rowVersion}, id, 4), id, 1<<40),
		rowMixed:     appendMixed(nil, 3, []byte("block")),
		rowPartition: part.encode(nil),
		rowProducer:  p.encode(nil),
		rowSegment:   (&segmentInfo{end: 3, logBytes: 4, indexBytes: 5, link: 6, maxTime: 7, generation: 8}).encode(nil),
		rowCompact:   (&compactState{end: 5, last: 6, marks: []tombstoneMark{{3, 4, 5, 6}, {4, 5, 6, 7}}}).encode(nil),
		rowTask:      t.encode(TaskID{5}),
	}
}

func TestRowsComeBackAndNoShorterPrefixIsARow(t *testing.T) {
	rows := seedRows()
	for _, kind := range rowKinds {
		v := rows[kind]
		if _, again, err := anyRow(kind, v); err != nil || string(again) != string(v) {
			t.Errorf("kind %q: %x became %x: %v", kind, v, again, err)
		}
		for n := range v {
			_, again, err := anyRow(kind, v[:n])
			open := kind == rowGroup || kind == rowPlaced || kind == rowMixed || kind == rowTask || kind == rowSegment || kind == rowCompact || kind == rowRuns // these end with bytes of any length
			if err == nil && (!open || string(again) != string(v[:n])) || err != nil && !errors.Is(err, errRow) {
				t.Errorf("kind %q, %d of %d bytes: %v", kind, n, len(v), err)
			}
		}
	}
}

// FuzzRows: whatever bytes a row has, its decoder gives errRow or a value that encodes to a row of the same
// value. The kind is a number, so that every input reaches a decoder.
func FuzzRows(f *testing.F) {
	rows := seedRows()
	for i, kind := range rowKinds {
		f.Add(uint8(i), rows[kind])
	}
	f.Add(uint8(len(rowKinds)), groupKey("group"))
	f.Fuzz(func(t *testing.T, n uint8, v []byte) {
		if n %= uint8(len(rowKinds) + 1); int(n) == len(rowKinds) {
			group, prefix, err := parseGroupKey(v)
			switch {
			case err != nil && !errors.Is(err, errRow):
				t.Fatal(err)
			case err == nil && string(prefix[1:]) != string(groupKey(group)[1:]):
				t.Fatalf("group %q has the prefix %x", group, prefix)
			}
			return
		}
		kind := rowKinds[n]
		value, again, err := anyRow(kind, v)
		if err != nil {
			if !errors.Is(err, errRow) {
				t.Fatal(err)
			}
			return
		}
		if len(again) != len(v) {
			t.Fatalf("kind %q: %x became %x", kind, v, again)
		}
		if back, _, err := anyRow(kind, again); err != nil || !reflect.DeepEqual(back, value) {
			t.Fatalf("kind %q: %+v became %+v: %v", kind, value, back, err)
		}
	})
}

// FuzzDecodeManifest gives the checksum along, or hardly anything would pass it.
func FuzzDecodeManifest(f *testing.F) {
	f.Add(encodeManifest(point{3, 4}), false)
	f.Add(encodeManifest(point{1 << 63, 0})[:20], true)
	f.Fuzz(func(t *testing.T, b []byte, sum bool) {
		if sum && len(b) >= 4 {
			binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		}
		at, err := decodeManifest(b)
		switch {
		case err != nil && (!errors.Is(err, ErrCorrupt) || at != point{}):
			t.Fatalf("%+v, %v", at, err)
		case err == nil && string(encodeManifest(at)) != string(b):
			t.Fatalf("%x became %+v", b, at)
		}
	})
}
