package log

import (
	"cmp"
	"encoding/binary"
	"time"
)

// PartitionSettings is what Apply, retention and compaction need to know of a topic's configuration. The zero value of a
// field is what a topic has that was made before the field was: its default.
type PartitionSettings struct {
	RetentionMs      int64 // keep records at least this long after their append, -1: no limit
	RetentionBytes   int64 // keep at least this many of the last bytes, -1: no limit
	MaxBatchBytes    int32 // largest accepted batch; 0: MaxBatchBytes of this package
	Compact          bool  // keep the latest record of each key; retention goes on by the limits above
	AppendTimestamps bool  // the topic's record timestamps are append times

	// Of retention: what consumers need is kept beyond the limits above, up to these caps.

	MaxRetentionMs    int64 `json:",omitempty"` // nobody holds back what is older; 0: no cap
	MaxRetentionBytes int64 `json:",omitempty"` // nobody holds back more than about these last bytes; 0: no cap
	KeepForGroups     bool  `json:",omitempty"` // keep what consumer groups have yet to read
	IgnorePipelines   bool  `json:",omitempty"` // do not keep what pipelines have yet to read

	SegmentBytes int64 `json:",omitempty"` // size at which a segment file is closed; 0: Options.SegmentBytes
	SegmentMs    int64 `json:",omitempty"` // age at which one is closed, from the append of its first batch; 0: DefaultSegmentMs

	// Of compaction. See compact.go.

	DeleteRetentionMs  int64 `json:",omitempty"` // how long a tombstone stays that a pass has met; 0: DefaultDeleteRetentionMs, below: it goes at once
	MinCompactionLagMs int64 `json:",omitempty"` // records younger than this are left alone
	MaxCompactionLagMs int64 `json:",omitempty"` // one older than this makes the partition due, whatever its dirty ratio; 0: none
	MinDirtyPPM        int32 `json:",omitempty"` // least share of bytes no pass has seen that makes a partition due, in millionths; 0: DefaultMinDirtyPPM, below: any
}

// What fields of PartitionSettings mean when they are zero.
const (
	DefaultSegmentMs         = int64(7 * 24 * time.Hour / time.Millisecond)
	DefaultDeleteRetentionMs = int64(24 * time.Hour / time.Millisecond)
	DefaultMinDirtyPPM       = 500_000
)

func (s *PartitionSettings) segmentMs() int64 { return cmp.Or(max(0, s.SegmentMs), DefaultSegmentMs) }

func (s *PartitionSettings) deleteRetentionMs() int64 {
	return max(0, cmp.Or(s.DeleteRetentionMs, DefaultDeleteRetentionMs))
}

func (s *PartitionSettings) minDirtyPPM() int64 {
	return int64(max(0, cmp.Or(s.MinDirtyPPM, DefaultMinDirtyPPM)))
}

// Sizes and flags of encoded settings: those that every version has, and more if one of them is not zero.
const (
	settingsSz     = 8 + 8 + 4 + 1
	moreSettingsSz = 5*8 + 4
	capSettingsSz  = 2 * 8

	setCompact     = 1
	setAppendTimes = 2
	setMore        = 4
	setGroups      = 8
	setNoPipelines = 16
	setCaps        = 32
)

func (s *PartitionSettings) more() [5]int64 {
	return [...]int64{s.SegmentBytes, s.SegmentMs, s.DeleteRetentionMs, s.MinCompactionLagMs, s.MaxCompactionLagMs}
}

func (s *PartitionSettings) hasMore() bool { return s.more() != [5]int64{} || s.MinDirtyPPM != 0 }

func (s *PartitionSettings) hasCaps() bool { return s.MaxRetentionMs != 0 || s.MaxRetentionBytes != 0 }

func (s *PartitionSettings) flags() (b byte) {
	for _, f := range [...]struct {
		on  bool
		bit byte
	}{
		{s.Compact, setCompact},
		{s.AppendTimestamps, setAppendTimes},
		{s.hasMore(), setMore},
		{s.KeepForGroups, setGroups},
		{s.IgnorePipelines, setNoPipelines},
		{s.hasCaps(), setCaps},
	} {
		if f.on {
			b |= f.bit
		}
	}
	return b
}

func settingsSize(s PartitionSettings) int { return sizeOfSettings(s.flags()) }

func sizeOfSettings(flags byte) int {
	n := settingsSz
	if flags&setMore != 0 {
		n += moreSettingsSz
	}
	if flags&setCaps != 0 {
		n += capSettingsSz
	}
	return n
}

func appendSettings(b []byte, s PartitionSettings) []byte {
	b = appendI64(b, s.RetentionMs)
	b = appendI64(b, s.RetentionBytes)
	b = binary.BigEndian.AppendUint32(b, uint32(s.MaxBatchBytes))
	b = append(b, s.flags())
	if s.hasMore() {
		for _, v := range s.more() {
			b = appendI64(b, v)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(s.MinDirtyPPM))
	}
	if s.hasCaps() {
		b = appendI64(appendI64(b, s.MaxRetentionMs), s.MaxRetentionBytes)
	}
	return b
}

// validSettings reports whether b is settings and nothing else.
func validSettings(b []byte) bool {
	_, n := getSettings(b)
	return n > 0 && n == len(b)
}

// getSettings reads settings from the front of b. n is their size, 0 if b does not begin with settings.
func getSettings(b []byte) (s PartitionSettings, n int) {
	if len(b) < settingsSz {
		return s, 0
	}
	flags := b[settingsSz-1]
	if n = sizeOfSettings(flags); len(b) < n {
		return s, 0
	}
	s = PartitionSettings{
		RetentionMs: getI64(b), RetentionBytes: getI64(b[8:]), MaxBatchBytes: int32(binary.BigEndian.Uint32(b[16:])),
		Compact: flags&setCompact != 0, AppendTimestamps: flags&setAppendTimes != 0,
		KeepForGroups: flags&setGroups != 0, IgnorePipelines: flags&setNoPipelines != 0,
	}
	b = b[settingsSz:]
	if flags&setMore != 0 {
		for i, v := range [...]*int64{&s.SegmentBytes, &s.SegmentMs, &s.DeleteRetentionMs, &s.MinCompactionLagMs, &s.MaxCompactionLagMs} {
			*v = getI64(b[8*i:])
		}
		s.MinDirtyPPM = int32(binary.BigEndian.Uint32(b[40:]))
		b = b[moreSettingsSz:]
	}
	if flags&setCaps != 0 {
		s.MaxRetentionMs, s.MaxRetentionBytes = getI64(b), getI64(b[8:])
	}
	if s.flags() != flags {
		return s, 0 // one value, one encoding
	}
	return s, n
}
