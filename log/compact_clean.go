package log

import (
	"slices"

	"github.com/headrace/headrace/log/record"
)

// tombstoneMark says that the tombstones below end, and not below the mark before, were first met by a pass at a time.
type tombstoneMark struct {
	end   int64 // offset after the last
	first int64 // ms since 1970, of the first of the marks that have become this one
	seen  int64 // ms since 1970, of the last
	count int64 // how many are left
}

// maxTombstoneMarks bounds the marks of a partition. Beyond, the two become one, with the later time, that then span the
// least: some tombstones stay a few hundredths longer.
const maxTombstoneMarks = 64

// A compactState is what compaction knows of one partition.
type compactState struct {
	end   int64 // below, every key has one record, tombstones and what cannot be judged aside
	last  int64 // ms since 1970 of the last pass
	marks []tombstoneMark
}

// addMark notes the tombstones that a pass has met first, and forgets marks without any.
func (c *compactState) addMark(m tombstoneMark) {
	if m.count > 0 {
		c.marks = append(c.marks, m)
	}
	c.marks = slices.DeleteFunc(c.marks, func(x tombstoneMark) bool { return x.count == 0 })
	for len(c.marks) > maxTombstoneMarks {
		closest := 1
		for i := 1; i < len(c.marks); i++ {
			if c.marks[i].seen-c.marks[i-1].first < c.marks[closest].seen-c.marks[closest-1].first {
				closest = i
			}
		}
		into, from := &c.marks[closest], &c.marks[closest-1]
		into.count += from.count
		into.first, into.seen = min(into.first, from.first), max(into.seen, from.seen)
		c.marks = slices.Delete(c.marks, closest-1, closest)
	}
}

// A fate is what a pass does with a batch.
type fate uint8

const (
	stays  fate = iota // with its bytes
	shrunk             // some of its records go
	goes               // all of them
	mark               // a time mark: goes if nothing stays between it and the next
)

// A cleaner decides which records of a partition stay. It is given every batch in order, from the log start on, and does
// no I/O.
type cleaner struct {
	latest *offsetMap     // of the records in [state.end, end)
	state  *compactState  // before the pass; counts of its marks are made anew
	fresh  *tombstoneMark // tombstones that this pass is the first to meet
	end    int64          // from here on everything stays
	gone   int64          // tombstones first met at or before this time go, ms since 1970

	// blind: a batch has come whose keys nobody can tell. Its rows may have the key of a tombstone that comes later, so
	// no tombstone goes any more.
	blind bool

	reader  record.Reader
	builder record.Builder
	lost    []int32 // offset deltas of what goes from the batch
}

// readKeys calls f for the records of a batch that have a key. ok is false, and nothing was called, if the keys of the
// batch cannot be told: columns, transactions whose outcome is open, records that make no sense.
func readKeys(r *record.Reader, data []byte, f func(rec *record.Record)) (ok bool) {
	h, err := record.ParseHeader(data)
	if err != nil || h.Attributes&(record.AttrTransactional|record.AttrDeleteHorizon) != 0 {
		return false
	}
	if r.Reset(data) != nil {
		return false
	}
	for r.Next() {
		if r.Record().Key != nil {
			f(r.Record())
		}
	}
	return r.Err() == nil
}

// judge says what becomes of a batch, whose header holds its base offset. out is its new form if it is shrunk.
func (c *cleaner) judge(data []byte) (f fate, out []byte) {
	h, err := record.ParseHeader(data)
	switch {
	case err != nil:
		c.blind = true
		return stays, nil
	case h.BaseOffset >= c.end:
		return stays, nil
	case h.Control():
		if _, ok := record.ParseTimeMark(data); ok {
			return mark, nil
		}
		return stays, nil
	case h.Count == 0 && !h.Columnar():
		return goes, nil
	}
	c.lost = c.lost[:0]
	var met, kept [maxTombstoneMarks + 1]int64 // by mark; the last: fresh
	ok := readKeys(&c.reader, data, func(rec *record.Record) {
		lost := false
		if last := c.latest.last(rec.Key); last > rec.Offset {
			lost = true
		} else if rec.Value == nil {
			i := c.markOf(rec.Offset)
			met[i]++
			if lost = i < len(c.state.marks) && c.state.marks[i].seen <= c.gone && !c.blind; !lost {
				kept[i]++
			}
		}
		if lost {
			c.lost = append(c.lost, int32(rec.Offset-h.BaseOffset))
		}
	})
	if !ok {
		c.blind = true
		return stays, nil
	}
	switch len(c.lost) {
	case 0:
	case int(h.Count):
		f = goes
	default:
		if out = c.shrink(data, h); out != nil {
			f = shrunk
		} else {
			// It stays as it is, with records that may be older than a tombstone.
			c.blind, kept = true, met
		}
	}
	for i := range c.state.marks {
		c.state.marks[i].count += kept[i]
	}
	c.fresh.count += kept[maxTombstoneMarks]
	return f, out
}

// markOf is the number of the mark that a tombstone belongs to, maxTombstoneMarks for one that is met first.
func (c *cleaner) markOf(offset int64) int {
	if offset < c.state.end {
		for i := range c.state.marks {
			if offset < c.state.marks[i].end {
				return i
			}
		}
	}
	return maxTombstoneMarks
}

// shrink makes a batch without the records in c.lost. It keeps base offset, last offset delta, producer, codec and kind of
// timestamp. nil: it would be too large, because the producer compressed better.
func (c *cleaner) shrink(data []byte, h record.Header) []byte {
	b := &c.builder
	b.Reset()
	b.SetCodec(h.Codec())
	b.SetProducer(h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	b.SetBase(h.BaseOffset, h.LeaderEpoch)
	if c.reader.Reset(data) != nil {
		return nil
	}
	lost := c.lost
	for c.reader.Next() {
		rec := c.reader.Record()
		delta := int32(rec.Offset - h.BaseOffset)
		if len(lost) > 0 && lost[0] == delta {
			lost = lost[1:]
			continue
		}
		b.AppendRaw(delta, rec.Timestamp, rec.Key, rec.Value, c.reader.HeaderBytes())
	}
	b.SetLastOffsetDelta(h.LastOffsetDelta)
	out := b.Finish()
	if len(out) > MaxBatchBytes {
		return nil
	}
	if h.LogAppendTime() {
		n, err := record.ParseHeader(out)
		if err != nil {
			return nil
		}
		n.Attributes |= record.AttrLogAppendTime
		n.MaxTimestamp = h.MaxTimestamp
		record.PutHeader(out, n)
		record.Seal(out)
	}
	return out
}

// emptyBatch stands for offsets whose records are gone.
func emptyBatch(base, last int64, term int32) []byte {
	b := make([]byte, record.HeaderSize)
	record.PutHeader(b, record.Header{
		BaseOffset: base, LeaderEpoch: term, Magic: record.Magic, LastOffsetDelta: int32(last - base),
		FirstTimestamp: -1, MaxTimestamp: -1, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	})
	record.Seal(b)
	return b
}
