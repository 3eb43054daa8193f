package plan

import "time"

// An Over gives each row values over the rows of its group before it. Its Stage.Out is the input, Added, and
// one column a slot, `$0` and on; a StageProject that makes columns of them follows.
//
// Beside aggregates a slot is prev (Arg so many rows before, Param), row_number or rank. No slot has a
// filter.
type Over struct {
	Grouping
	Slots   []AggCall // over the input columns
	Rows    int       // the frame is as many rows, the row itself included; 0: another frame, or none
	Before  bool      // Rows: those before the row, without it
	Range   time.Duration
	TTL     time.Duration // a group is forgotten when no row has come for so long; 0: Forever, or when Range has passed
	Forever bool
}
