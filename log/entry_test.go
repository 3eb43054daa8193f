package log

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/golden"
)

// oneOfEach is an entry that holds every operation once or twice.
func oneOfEach() []*Unit {
	topic, task := TopicID{0xAA, 1, 2, 3}, TaskID{0xBB, 4, 5, 6}
	p := PartitionID{Topic: topic, Index: 7}
	set := PartitionSettings{RetentionMs: 86_400_000, RetentionBytes: -1, MaxBatchBytes: 1 << 20, Compact: true}
	var open, produce, offsets, step, end, cmd Unit
	open.PartitionOpen(p, set, 41)
	open.PartitionSettings(p, PartitionSettings{RetentionMs: -1, RetentionBytes: -1, AppendTimestamps: true}, 42)
	open.PartitionSettings(p, PartitionSettings{
		RetentionMs: -1, RetentionBytes: -1, Compact: true, SegmentBytes: 1 << 20, SegmentMs: 3_600_000,
		DeleteRetentionMs: 1000, MinCompactionLagMs: 2000, MaxCompactionLagMs: 3000, MinDirtyPPM: 100_000,
	}, 43)
	open.PartitionSettings(p, PartitionSettings{RetentionMs: 1, RetentionBytes: 2, KeepForGroups: true, IgnorePipelines: true, MaxRetentionMs: 3, MaxRetentionBytes: 4}, 44)
	open.TaskOpen(task)
	produce.Append(p, []byte("(a record batch)"))
	offsets.Offsets("readers", []GroupOffset{
		{Partition: p, Offset: 12, LeaderEpoch: 3, Metadata: "m", CommittedAt: 1700000000000},
		{Partition: p, Offset: -1, LeaderEpoch: -1},
	})
	step.Progress(Progress{
		Task: task, Epoch: 9, Step: 2, From: []Cut{{p, 5}}, To: []Cut{{p, 12}}, Watermarks: []int64{1e18}, W: 1e18 - 1, Extra: []byte("cursor"),
	})
	step.Append(p, []byte("(rows)"))
	step.State(task, []byte("key"), []byte("value"))
	step.State(task, []byte("gone"), nil)
	step.State(task, []byte("empty"), []byte{})
	end.LogStart(p, 4)
	end.GroupDrop("readers")
	end.GroupExpire("old readers", 168*time.Hour)
	end.TaskDrop(task)
	end.PartitionDrop(p, 45)
	cmd.Command([]byte("metadata"))
	return []*Unit{&open, &produce, &offsets, &step, &end, &cmd, {}}
}

func describe(e Entry) string {
	var b strings.Builder
	fmt.Fprintf(&b, "append time %d, %d units\n", e.AppendTime, e.Count)
	for i, u := range e.Units() {
		fmt.Fprintf(&b, "unit %d step=%v\n", i, u.Step)
		for op := range u.Ops() {
			fmt.Fprintf(&b, "  %-18s ", op.Kind)
			switch op.Kind {
			case OpAppend:
				p, batch := op.Append()
				fmt.Fprintf(&b, "%s %q", p, batch)
			case OpOffsets:
				g, o := op.Offsets()
				fmt.Fprintf(&b, "%s %+v", g, o)
			case OpProgress:
				p := op.Progress()
				fmt.Fprintf(&b, "%s epoch=%d step=%d from=%v to=%v W_p=%v W=%d %q", p.Task, p.Epoch, p.Step, p.From, p.To, p.Watermarks, p.W, p.Extra)
			case OpState:
				t, k, v := op.State()
				fmt.Fprintf(&b, "%s %q %q delete=%v", t, k, v, v == nil)
			case OpTaskOpen, OpTaskDrop:
				fmt.Fprint(&b, op.Task())
			case OpPartitionOpen, OpPartitionSettings, OpPartitionDrop:
				p, s, m := op.Partition()
				fmt.Fprintf(&b, "%s meta=%d %+v", p, m, s)
			case OpLogStart:
				p, o := op.LogStart()
				fmt.Fprintf(&b, "%s %d", p, o)
			case OpCommand:
				fmt.Fprintf(&b, "%q", op.Body)
			case OpGroupDrop:
				fmt.Fprint(&b, op.Group())
			case OpGroupExpire:
				g, idle := op.GroupExpire()
				fmt.Fprintf(&b, "%s %v", g, time.Duration(idle))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func TestEntryBytesAreTheDrawnOnes(t *testing.T) {
	b := EncodeEntry(nil, 1700000000123456789, oneOfEach())
	e, err := DecodeEntry(b)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/entry.txt", describe(e)+"----\n"+hex.Dump(b))
}

// rebuild encodes a decoded entry again through the public methods.
func rebuild(e Entry) []byte {
	var units []*Unit
	for _, v := range e.Units() {
		u := new(Unit)
		for op := range v.Ops() {
			switch op.Kind {
			case OpAppend:
				u.Append(op.Append())
			case OpOffsets:
				u.Offsets(op.Offsets())
			case OpProgress:
				u.Progress(op.Progress())
			case OpState:
				u.State(op.State())
			case OpTaskOpen:
				u.TaskOpen(op.Task())
			case OpTaskDrop:
				u.TaskDrop(op.Task())
			case OpPartitionOpen:
				u.PartitionOpen(op.Partition())
			case OpPartitionSettings:
				u.PartitionSettings(op.Partition())
			case OpPartitionDrop:
				p, _, m := op.Partition()
				u.PartitionDrop(p, m)
			case OpLogStart:
				u.LogStart(op.LogStart())
			case OpCommand:
				u.Command(op.Body)
			case OpGroupDrop:
				u.GroupDrop(op.Group())
			case OpGroupExpire:
				g, idle := op.GroupExpire()
				u.GroupExpire(g, time.Duration(idle))
			}
		}
		units = append(units, u)
	}
	return EncodeEntry(nil, e.AppendTime, units)
}

func TestUnitSizeIsWhatItAddsToAnEntry(t *testing.T) {
	n := EntryHeaderBytes
	for _, u := range oneOfEach() {
		n += u.Size()
	}
	if got := len(EncodeEntry(nil, 0, oneOfEach())); got != n {
		t.Fatalf("entry of %d bytes, sizes say %d", got, n)
	}
}

func TestUnitCopiesAndIsReusable(t *testing.T) {
	var u Unit
	batch := []byte("batch")
	u.Append(PartitionID{}, batch)
	first := EncodeEntry(nil, 1, []*Unit{&u})
	want := bytes.Clone(first)
	batch[0] = 'X'
	u.Reset()
	u.TaskOpen(TaskID{9})
	second := EncodeEntry(nil, 1, []*Unit{&u})
	if !bytes.Equal(first, want) || bytes.Equal(first, second) {
		t.Fatal("an encoded entry changed with the unit that it came from")
	}
}

// A unit that refers to its batches makes the same entry as one that copies them, whatever follows in it.
func TestAUnitWithReferencesMakesTheSameEntry(t *testing.T) {
	p := PartitionID{Topic: TopicID{7}, Index: 3}
	build := func(add func(u *Unit, batch []byte)) (*Unit, []byte) {
		u := &Unit{}
		for range 2 { // the second time in kept memory
			u.Reset()
			add(u, []byte("first batch"))
			u.LogStart(p, 5)
			add(u, []byte("second"))
			add(u, []byte("third"))
		}
		return u, EncodeEntry(nil, 42, []*Unit{u, u})
	}
	copied, want := build(func(u *Unit, b []byte) { u.Append(p, b) })
	u, got := build(func(u *Unit, b []byte) { u.AppendRef(p, b) })
	if !bytes.Equal(got, want) || u.Size() != copied.Size() || u.Empty() || !u.Appends() {
		t.Errorf("size %d, want %d\n%x\n%x", u.Size(), copied.Size(), got, want)
	}
	if u.Reset(); !u.Empty() || u.Size() != unitHeader || u.Appends() {
		t.Error("a unit that was reset holds something")
	}
	one, two := &Unit{}, &Unit{}
	one.Append(p, []byte("b"))
	two.AppendRef(p, []byte("b"))
	if a, b := EncodeEntry(nil, 1, []*Unit{one}), EncodeEntry(nil, 1, []*Unit{two}); !bytes.Equal(a, b) {
		t.Errorf("%x\n%x", a, b)
	}
}

func TestDecodeEntryRejectsEveryShorterPrefix(t *testing.T) {
	b := EncodeEntry(nil, 5, oneOfEach())
	for n := range b {
		if _, err := DecodeEntry(b[:n]); !errors.Is(err, ErrBadEntry) {
			t.Fatalf("prefix of %d bytes: %v", n, err)
		}
	}
	if _, err := DecodeEntry(append(b, 0)); !errors.Is(err, ErrBadEntry) {
		t.Fatalf("one byte more: %v", err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add(EncodeEntry(nil, 5, oneOfEach()))
	f.Add(EncodeEntry(nil, 0, nil))
	for _, u := range oneOfEach() {
		f.Add(EncodeEntry(nil, 1, []*Unit{u}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		if err != nil {
			if !errors.Is(err, ErrBadEntry) || !reflect.DeepEqual(e, Entry{}) {
				t.Fatalf("%+v, %v", e, err)
			}
			return
		}
		describe(e)
		if got := rebuild(e); !bytes.Equal(got, b) {
			t.Fatalf("encode(decode(x)) != x\n%x\n%x", b, got)
		}
	})
}
