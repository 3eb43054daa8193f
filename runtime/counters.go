package runtime

import (
	"encoding/binary"
	"errors"

	"github.com/headrace/headrace/operators"
)

// Counters account for every row that a pipeline has taken. They are part of a step, so they are as
// exact as the output. After any step, and after any crash,
//
//	In = Invalid + rows into the first stage
//	a stage's In = Out + Filtered + Failed - Deleted (stages without state)
//	a stage's In = Folded + Late + Failed           (windows, top and explode)
//	a stage's In = Out + Filtered + Late + Failed + Held (dedup, over)
//	rows out of the last stage = Out + Held + Unwritten
//	Late = the stages' Late, Failed = the stages' Failed and Lost, and Unwritten
type Counters struct {
	In        int64 `json:"in"`        // rows read from the source
	Invalid   int64 `json:"invalid"`   // failed before the first stage
	Late      int64 `json:"late"`      // given up by a stage that had closed
	Failed    int64 `json:"failed"`    // failed in a stage, or when they were written
	Unwritten int64 `json:"unwritten"` // of these: failed when they were written; a table has a delete of their keys, not counted
	Out       int64 `json:"out"`       // rows written to the derived topic
	Held      int64 `json:"held"`      // rows that wait for the watermark before they are written
	Skipped   int64 `json:"skipped"`   // offsets of the source that were gone before they were read

	Stages []StageCounters `json:"stages"`
}

// StageCounters account for one stage.
type StageCounters struct {
	Stage    string `json:"stage"`
	In       int64  `json:"in"`
	Out      int64  `json:"out"`
	Filtered int64  `json:"filtered"`
	Late     int64  `json:"late"`
	Failed   int64  `json:"failed"`
	Folded   int64  `json:"folded"` // rows that went into groups, or were replaced by their elements
	Lost     int64  `json:"lost"`   // groups whose result failed
	// Deleted rows of a table have failed, and also went on as deletes of their keys.
	Deleted int64 `json:"deleted,omitempty"`
	Held    int64 `json:"held,omitempty"` // rows that wait in the stage for the watermark
}

func (c *Counters) clone() Counters {
	d := *c
	d.Stages = append([]StageCounters(nil), c.Stages...)
	return d
}

func (c *Counters) fields() []*int64 {
	return []*int64{&c.In, &c.Invalid, &c.Late, &c.Failed, &c.Unwritten, &c.Out, &c.Held, &c.Skipped}
}

func (s *StageCounters) fields() []*int64 {
	return []*int64{&s.In, &s.Out, &s.Filtered, &s.Late, &s.Failed, &s.Folded, &s.Lost, &s.Deleted, &s.Held}
}

const extraVersion = 4

// appendExtra encodes what a progress operation carries beside cuts and watermarks: a version, the
// counters, and for each source partition, in the order of the cuts, the largest event time and the
// append time of the last row. The partitions of tables follow those of the source. The last is
// the raft index at which the pipeline started. All are varints. Version 1 has no Deleted, version 2 no Held,
// version 3 no index.
func appendExtra(dst []byte, c *Counters, inputs []inputState, started uint64) []byte {
	dst = append(dst, extraVersion)
	for _, v := range c.fields() {
		dst = binary.AppendVarint(dst, *v)
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.Stages)))
	for i := range c.Stages {
		for _, v := range c.Stages[i].fields() {
			dst = binary.AppendVarint(dst, *v)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(inputs)))
	for i := range inputs {
		dst = binary.AppendVarint(dst, inputs[i].maxTime)
		dst = binary.AppendVarint(dst, inputs[i].appended)
	}
	return binary.AppendUvarint(dst, started)
}

var errExtra = errors.New("runtime: unknown counters in the progress of a pipeline")

// parseExtra fills c, whose stages are those of the plan, and the inputs, in the order of the cuts.
func parseExtra(b []byte, c *Counters, inputs []*inputState) (started uint64, err error) {
	if len(b) == 0 || b[0] == 0 || b[0] > extraVersion {
		return 0, errExtra
	}
	version := int(b[0])
	skip := max(0, 3-version) // fields at the end of a stage's
	b = b[1:]
	ok := true
	read := func(to *int64) {
		v, k := binary.Varint(b)
		if k <= 0 {
			ok, b = false, nil
			return
		}
		*to, b = v, b[k:]
	}
	count := func(want int) {
		v, k := binary.Uvarint(b)
		if k <= 0 || v != uint64(want) {
			ok, b = false, nil
			return
		}
		b = b[k:]
	}
	for _, to := range c.fields() {
		read(to)
	}
	count(len(c.Stages))
	for i := range c.Stages {
		fields := c.Stages[i].fields()
		for _, to := range fields[:len(fields)-skip] {
			read(to)
		}
	}
	count(len(inputs))
	for _, in := range inputs {
		read(&in.maxTime)
		read(&in.appended)
	}
	if version >= 4 {
		v, k := binary.Uvarint(b)
		if k <= 0 {
			return 0, errExtra
		}
		started, b = v, b[k:]
	}
	if !ok || len(b) != 0 {
		return 0, errExtra
	}
	return started, nil
}

// unseen is an input of which nothing has been read.
func unseen() inputState {
	return inputState{watermark: operators.MinEventTime, maxTime: operators.MinEventTime, appended: operators.MinEventTime}
}
