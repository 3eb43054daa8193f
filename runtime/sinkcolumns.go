package runtime

import (
	"errors"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/columnar"
)

const (
	// fewRows are not worth a frame of their own: they are collected as records, and become one when the step ends.
	fewRows = 64
	// escaped is how much longer a text can be in JSON.
	escaped = 6
	// lastDay is the last one that has a written form: 9999-12-31.
	lastDay = 2932896
	// firstDay is 0000-01-01.
	firstDay = -719528
)

// flat says whether all columns of a topic are single values, which a step may write as they are.
func flat(t *plan.Topic) bool {
	for _, c := range t.Schema.Columns {
		switch c.Type.Kind {
		case scalar.KindList, scalar.KindMap, scalar.KindStruct:
			return false
		}
	}
	return true
}

// writeColumns writes the rows of a batch as columnar batches, column by column. It answers false, and has done nothing,
// where a row must be looked at: it may have no written form (then it is an error, whatever the format), be too long, or have
// to wait. b stays the caller's.
func (s *sink) writeColumns(b *operators.Batch) bool {
	if s.main.columns == nil || !s.flat || b.Rows < fewRows || b.Rows > columnar.MaxRows || s.keyed || s.release != nil && b.Partition >= 0 || b.Ops != nil {
		return false
	}
	if !written(b, s.types) {
		return false
	}
	keys, bad := encodeKeys(b, s.key, s.types)
	if len(bad) > 0 {
		return false
	}
	var behind []int64
	if b.Behind != nil {
		for i, w := range b.Behind {
			if b.Time[i] >= w {
				continue
			}
			if behind == nil {
				behind = make([]int64, b.Rows)
				for k := range behind {
					behind[k] = operators.MinEventTime
				}
			}
			behind[i] = w
		}
	}
	rows := make([][]int32, len(s.main.partitions))
	at, one := int32(0), true
	for i := range b.Rows {
		var key []byte
		if keys != nil {
			key = keys[i]
		}
		p := s.partition(b, i, key)
		if i == 0 {
			at = p
		}
		if one && p == at {
			continue
		}
		if one {
			one = false
			for k := range i {
				rows[at] = append(rows[at], int32(k))
			}
		}
		rows[p] = append(rows[p], int32(i))
	}
	if one {
		return s.writeFrame(at, b.Columns, b.Time, behind)
	}
	frames := make([][][]byte, len(rows))
	for p, sel := range rows {
		if len(sel) == 0 {
			continue
		}
		columns := make([]arrow.Array, len(b.Columns))
		for i, c := range b.Columns {
			columns[i] = operators.Gather(s.alloc, c, sel)
		}
		var ok bool
		frames[p], ok = s.frames(columns, operators.Pick(b.Time, sel), operators.Pick(behind, sel))
		for _, c := range columns {
			c.Release()
		}
		if !ok {
			return false
		}
	}
	for p := range frames {
		if frames[p] != nil {
			s.addFrames(int32(p), frames[p], len(rows[p]))
		}
	}
	return true
}

func (s *sink) writeFrame(p int32, columns []arrow.Array, times, behind []int64) bool {
	frames, ok := s.frames(columns, times, behind)
	if ok {
		s.addFrames(p, frames, len(times))
	}
	return ok
}

// frames makes columnar batches of rows, no larger than the topic takes.
func (s *sink) frames(columns []arrow.Array, times, behind []int64) (out [][]byte, ok bool) {
	limit := min(maxOutputBatch, s.main.maxBatch)
	from := 0
	for from < len(times) {
		to := len(times)
		for {
			frame, err := s.main.columns.Encode(columns, from, to, times, behind, limit)
			if err == nil {
				out = append(out, frame)
				break
			}
			if to-from == 1 || !errors.Is(err, columnar.ErrTooLarge) {
				return nil, false
			}
			to = from + (to-from+1)/2
		}
		from = to
	}
	return out, true
}

// addFrames adds batches after what a partition has.
func (s *sink) addFrames(p int32, frames [][]byte, rows int) {
	o := s.main
	if b := o.builders[p]; b != nil && b.Len() > 0 {
		o.full[p] = append(o.full[p], o.finish(b))
		b.Reset()
	}
	o.full[p] = append(o.full[p], frames...)
	o.written[p] = true
	for _, f := range frames {
		s.bytes += len(f)
	}
	s.counters.Out += int64(rows)
}

// written says whether every row of a batch has a written form that fits a record.
func written(b *operators.Batch, types []scalar.Type) bool {
	longest := 64 * len(types)
	for i, c := range b.Columns {
		switch a := c.(type) {
		case *array.Float64:
			for k, v := range a.Float64Values() {
				if v-v != 0 && a.IsValid(k) {
					return false
				}
			}
		case *array.Float32:
			for k, v := range a.Float32Values() {
				if v-v != 0 && a.IsValid(k) {
					return false
				}
			}
		case *array.Date32:
			for k, v := range a.Date32Values() {
				if (v < firstDay || v > lastDay) && a.IsValid(k) {
					return false
				}
			}
		case *array.String:
			longest += escaped * longestOf(a.ValueOffsets())
		case *array.Binary:
			longest += escaped * longestOf(a.ValueOffsets())
		default:
			if k := types[i].Kind; k == scalar.KindString || k == scalar.KindBytes {
				return false
			}
		}
	}
	return longest <= maxOutputRecord
}

func longestOf(offsets []int32) int {
	n := int32(0)
	for i := 1; i < len(offsets); i++ {
		n = max(n, offsets[i]-offsets[i-1])
	}
	return int(n)
}
