// Package operators is the contract between a pipeline and its operators: columnar batches, event
// time, watermarks and the operators without state.
//
// It knows neither the log nor the language. Operators are driven by one goroutine at a time; nothing
// here starts goroutines, reads a clock, draws random numbers or depends on map order.
//
// Ownership: Arrow memory is counted. Process owns the batch that it is given and releases it; what it
// emits belongs to the receiver.
package operators

import (
	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
)

// EventTime is when something happened: nanoseconds since 1970, UTC.
type EventTime = int64

// MaxEventTime is +inf: the watermark after the end of the input. MinEventTime is the watermark before
// the first row.
const (
	MaxEventTime EventTime = 1<<63 - 1
	MinEventTime EventTime = -1 << 63
)

// A Batch is rows in columns. All rows of a batch come from one source partition, in offset order,
// until an operator that merges partitions (a window) has made them; then Partition is -1 and the
// per-row origin slices are nil.
type Batch struct {
	Columns []arrow.Array // one per column of the schema; a column that no one needs may be nil
	Rows    int
	Time    []EventTime // event time of each row

	Partition int32 // source partition, or -1
	// Behind[i] is W_p: the watermark of the row's own partition before the row. A row is behind when
	// Time[i] < Behind[i]. Nil when Partition is -1.
	Behind     []EventTime
	Offsets    []int64     // source offsets, rising, the same for all rows that an Explode made of one; nil when Partition is -1
	AppendTime []EventTime // when the log stamped the row, ns
	// Origin finds the record of a row for side topics: its original key and value. It is valid until
	// Release. A row that an aggregate made has no record; its Origin has Partition and Offset -1, the
	// encoded key, and a JSON object of the by columns and the window.
	Origin func(row int) Origin
	// Key holds the encoded key of each row (the bytes of the record key), nil entries for null. Set
	// by the decoder from the record key, replaced by a key stage or an aggregate.
	Key [][]byte

	// Ops says what each row does in a table or changelog. Nil: every row is an OpInsert, as always in
	// a stream that only appends.
	Ops []Op

	refs int32   // owners beyond the first
	src  *source // what Origin and Key point into
}

// An Op is what a row of a table or changelog does.
//
// In a table, rows are told apart by Batch.Key, which every row has. An insert takes the place of the row
// with its key, if there is one. A delete says that there is none any more: of such a row only Key and
// Time mean something, its columns hold nothing. In a changelog a row that is replaced is taken back
// first: a delete has the columns of the row that goes.
type Op uint8

// OpFinal is an OpInsert after which no row with its key follows, so that what is kept for the key can go;
// the row itself stays.
const (
	OpInsert Op = iota
	OpDelete
	OpFinal
)

// Deletes says whether row i is a delete.
func (b *Batch) Deletes(i int) bool { return b.Ops != nil && b.Ops[i] == OpDelete }

// Origin is the source record of a row. The slices belong to the batch.
type Origin struct {
	Topic     string
	Partition int32
	Offset    int64
	Timestamp int64 // record timestamp, ms
	Key       []byte
	Value     []byte
}

// A RowError is one row that failed in a stage.
type RowError struct {
	Row  int // in the batch that was being processed
	Code scalar.Code
	Expr string // text of the expression
}

// An Emitter takes what an operator gives away. Calls come in the order that readers will see.
type Emitter interface {
	// Emit passes a batch on; the receiver owns it.
	Emit(*Batch)
	// Late gives up rows of b that are late in this stage. b stays the caller's.
	Late(b *Batch, rows []int)
	// Fail gives up rows of b with their errors. b stays the caller's.
	Fail(b *Batch, errs []RowError)
}

// An Operator is one stage of a pipeline.
type Operator interface {
	// Process takes the next rows. It owns b.
	Process(b *Batch, out Emitter)
	// Advance tells that the pipeline's watermark has become w: no row with event time below w is
	// still on time. w never falls. Windows that end at or before w close, in the order (window end,
	// encoded key).
	Advance(w EventTime, out Emitter)
	// Close releases everything that the operator holds.
	Close()
}

// A Stateful operator's memory can be saved as keyed rows and restored from them.
type Stateful interface {
	Operator
	// Changes calls put for every key changed since the last call, in key order, with value nil for a
	// deleted key, and forgets the change set. The slices are valid during the call only.
	Changes(put func(key, value []byte))
	// Restore gives back one row that Changes once gave. All Restore calls come before Process.
	Restore(key, value []byte) error
	// StateBytes is the memory held, roughly.
	StateBytes() int64
	// StateRows is the number of keyed rows held.
	StateRows() int64
}
