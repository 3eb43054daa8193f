package flight

import (
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/ipc"
	"github.com/apache/arrow/go/v15/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/server/broker"
)

const (
	// maxReadBytes bounds what one message may take in memory, decompressed, with the dictionaries that it adds to.
	maxReadBytes = 4 * MaxMessageBytes
	// maxSchemaFields and maxSchemaDepth bound the fields of a schema, nested ones included.
	maxSchemaFields = 16 << 10
	maxSchemaDepth  = 40
)

// errMalformed is bytes that are no Arrow IPC message, or one that no reader should follow.
var errMalformed = errors.New("malformed Arrow message")

// An incoming is the record batches of a client's stream. It belongs to one goroutine.
type incoming struct {
	recv  func() (*flight.FlightData, error)
	s     *Server
	alloc boundedAllocator
	first *flight.FlightDescriptor
	rd    *flight.Reader
	meta  []byte // app_metadata of the batch that was read last
	n     int    // batches
	size  int    // bytes of the last message
}

// newIncoming reads the first message, which has the descriptor and the schema. io.EOF: there is none.
func (s *Server) newIncoming(recv func() (*flight.FlightData, error)) (in *incoming, err error) {
	in = &incoming{recv: recv, s: s}
	defer in.caught(&err)
	in.rd, err = flight.NewRecordReader(in, ipc.WithAllocator(&in.alloc))
	if err != nil {
		if in.first == nil && errors.Is(err, io.EOF) {
			return in, io.EOF
		}
		return in, in.refused(err)
	}
	return in, nil
}

// Recv implements flight.DataStreamReader: it hands on what Arrow's reader can be trusted with.
func (in *incoming) Recv() (*flight.FlightData, error) {
	for first := in.first == nil; ; {
		m, err := in.recv()
		if err != nil {
			return nil, err
		}
		if first {
			first = false
			if in.first = m.FlightDescriptor; in.first == nil {
				in.first = &flight.FlightDescriptor{}
			}
		}
		if len(m.DataHeader) == 0 {
			continue // a descriptor or metadata alone
		}
		if err := checkMessage(m.DataHeader); err != nil {
			return nil, err
		}
		in.alloc.used = 0
		in.size = len(m.DataHeader) + len(m.DataBody)
		in.s.metrics.BytesIn.Add(uint64(len(m.DataBody)))
		return m, nil
	}
}

// next is the next record batch, valid until the one after it; nil at the end of the stream.
func (in *incoming) next() (rec arrow.Record, err error) {
	defer in.caught(&err)
	if !in.rd.Next() {
		if err := in.rd.Err(); err != nil && !errors.Is(err, io.EOF) {
			return nil, in.refused(err)
		}
		return nil, nil
	}
	rec = in.rd.Record()
	in.meta = in.rd.LatestAppMetadata()
	in.n++
	if rec.NumRows() > columnar.MaxRows {
		return nil, in.refused(fmt.Errorf("%w: %d rows, at most %d", errMalformed, rec.NumRows(), columnar.MaxRows))
	}
	for i, c := range rec.Columns() {
		if err := measure(c.Data(), int(rec.NumRows())); err != nil {
			return nil, in.refused(fmt.Errorf("%w (column %s)", err, clip(rec.ColumnName(i))))
		}
	}
	return rec, nil
}

// release gives up what the reader holds.
func (in *incoming) release() {
	if in.rd != nil {
		var ignored error
		defer in.caught(&ignored)
		in.rd.Release()
	}
}

// caught turns a panic of Arrow's reader into an error.
func (in *incoming) caught(err *error) {
	if v := recover(); v != nil {
		*err = in.refused(fmt.Errorf("%w: %v", errMalformed, v))
	}
}

// refused is an error about what came in. One of the stream itself stays what it is.
func (in *incoming) refused(err error) error {
	if grpcError(err) {
		return err
	}
	e := broker.Errorf(broker.InvalidBatch, "record batch %d of the stream cannot be read: %w", in.n, err)
	e.Why = "The message is no Arrow IPC message, or its parts do not agree with each other."
	e.Fix = "Write with an Arrow library; each message has at most 16 MiB, and a batch at most 1,048,576 rows."
	return e
}

// A boundedAllocator panics when one message takes more than maxReadBytes: lengths in a message are not to be trusted.
type boundedAllocator struct {
	memory.GoAllocator
	used int
}

func (a *boundedAllocator) take(n int) {
	if n < 0 || n > maxReadBytes-a.used {
		panic(fmt.Sprintf("a message takes more than %d bytes", maxReadBytes))
	}
	a.used += n
}

// Allocate implements memory.Allocator.
func (a *boundedAllocator) Allocate(size int) []byte {
	a.take(size)
	return a.GoAllocator.Allocate(size)
}

// Reallocate implements memory.Allocator.
func (a *boundedAllocator) Reallocate(size int, b []byte) []byte {
	a.take(size)
	return a.GoAllocator.Reallocate(size, b)
}

// Slots of the FlatBuffers tables of Arrow's Message.fbs and Schema.fbs.
const (
	slotHeaderType = 6 // Message
	slotHeader     = 8

	slotFields     = 6 // Schema
	slotSchemaMeta = 8
	slotFeatures   = 10

	slotChildren  = 14 // Field
	slotFieldMeta = 16

	headerSchema = 1
)

// checkMessage walks the metadata of a message as far as Arrow's reader follows it by recursion, or makes memory by a count
// in it: a reference may lead back to where it came from.
func checkMessage(b []byte) (err error) {
	defer func() {
		if v := recover(); v != nil { // a reference beyond the end
			err = fmt.Errorf("%w: its metadata refers to what is not there", errMalformed)
		}
	}()
	if len(b) < 8 {
		return fmt.Errorf("%w: %d bytes of metadata", errMalformed, len(b))
	}
	message := flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
	if message.GetByteSlot(slotHeaderType, 0) != headerSchema {
		return nil // record batches and dictionaries follow the schema
	}
	at := message.Offset(slotHeader)
	if at == 0 {
		return fmt.Errorf("%w: no header", errMalformed)
	}
	var schema flatbuffers.Table
	message.Union(&schema, flatbuffers.UOffsetT(at))
	left := maxSchemaFields
	if err := checkVector(&schema, slotSchemaMeta); err != nil {
		return err
	}
	if err := checkVector(&schema, slotFeatures); err != nil {
		return err
	}
	return checkFields(&schema, slotFields, 0, &left)
}

// checkVector refuses a vector that is longer than all bytes.
func checkVector(t *flatbuffers.Table, slot flatbuffers.VOffsetT) error {
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	if n := t.VectorLen(at); n < 0 || n > len(t.Bytes)/4 {
		return fmt.Errorf("%w: a list of %d in %d bytes", errMalformed, n, len(t.Bytes))
	}
	return nil
}

func checkFields(t *flatbuffers.Table, slot flatbuffers.VOffsetT, depth int, left *int) error {
	if err := checkVector(t, slot); err != nil {
		return err
	}
	at := flatbuffers.UOffsetT(t.Offset(slot))
	if at == 0 {
		return nil
	}
	n, vector := t.VectorLen(at), t.Vector(at)
	if *left -= n; *left < 0 || depth > maxSchemaDepth {
		return fmt.Errorf("%w: a schema of more than %d fields, or nested more than %d deep", errMalformed, maxSchemaFields, maxSchemaDepth)
	}
	for i := range n {
		field := flatbuffers.Table{Bytes: t.Bytes, Pos: t.Indirect(vector + flatbuffers.UOffsetT(4*i))}
		if err := checkVector(&field, slotFieldMeta); err != nil {
			return err
		}
		if err := checkFields(&field, slotChildren, depth+1, left); err != nil {
			return err
		}
	}
	return nil
}

// measure checks that the buffers of an array hold what its n values need: nothing behind it reads beyond them.
func measure(d arrow.ArrayData, n int) error {
	bad := func(what string) error { return fmt.Errorf("%w: %s of a %s", errMalformed, what, d.DataType()) }
	if d.Len() < n || d.Len() < 0 || d.Len() > maxReadBytes || d.Offset() != 0 {
		return bad(fmt.Sprintf("%d values instead of %d", d.Len(), n))
	}
	n = d.Len()
	buffer := func(i int) []byte {
		if b := d.Buffers(); i < len(b) && b[i] != nil {
			return b[i].Bytes()
		}
		return nil
	}
	if valid := buffer(0); valid != nil && len(valid) < (n+7)/8 && d.DataType().ID() != arrow.NULL {
		return bad("too short a validity")
	}
	children := func(want int) error {
		if len(d.Children()) != want {
			return bad(fmt.Sprintf("%d parts", len(d.Children())))
		}
		return nil
	}
	var err error
	switch t := d.DataType().(type) {
	case *arrow.NullType:
		return nil
	case *arrow.StringType, *arrow.BinaryType:
		_, err = ends32(buffer(1), n, len(buffer(2)))
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		err = ends64(buffer(1), n, len(buffer(2)))
	case *arrow.ListType, *arrow.MapType:
		if err = children(1); err != nil {
			return err
		}
		end := 0
		if end, err = ends32(buffer(1), n, d.Children()[0].Len()); err == nil {
			err = measure(d.Children()[0], end)
		}
	case *arrow.StructType:
		if err = children(t.NumFields()); err != nil {
			return err
		}
		for _, c := range d.Children() {
			if err = measure(c, n); err != nil {
				break
			}
		}
	case *arrow.DictionaryType:
		dict := d.Dictionary()
		if dict == nil {
			return bad("no words")
		}
		if width := t.IndexType.(arrow.FixedWidthDataType).Bytes(); len(buffer(1)) < n*width { //nolint:errcheck // indexes are integers
			return bad("too few indexes")
		}
		err = measure(dict, dict.Len())
	case arrow.FixedWidthDataType:
		if need := (n*t.BitWidth() + 7) / 8; len(buffer(1)) < need {
			return bad(fmt.Sprintf("%d bytes instead of %d", len(buffer(1)), need))
		}
	default:
		return bad("a layout that is not read")
	}
	if err != nil && !errors.Is(err, errMalformed) {
		return bad(err.Error())
	}
	return err
}

// ends32 checks n+1 offsets, which rise from 0 or more to the limit at most, and answers the last.
func ends32(raw []byte, n, limit int) (int, error) {
	if n == 0 {
		return 0, nil
	}
	o := arrow.Int32Traits.CastFromBytes(raw)
	if len(o) < n+1 {
		return 0, errors.New("too few offsets")
	}
	before := int32(0)
	for _, x := range o[:n+1] {
		if x < before {
			return 0, errors.New("falling offsets")
		}
		before = x
	}
	if int(before) > limit {
		return 0, errors.New("offsets beyond the end")
	}
	return int(before), nil
}

func ends64(raw []byte, n, limit int) error {
	if n == 0 {
		return nil
	}
	o := arrow.Int64Traits.CastFromBytes(raw)
	if len(o) < n+1 {
		return errors.New("too few offsets")
	}
	before := int64(0)
	for _, x := range o[:n+1] {
		if x < before {
			return errors.New("falling offsets")
		}
		before = x
	}
	if before > int64(limit) {
		return errors.New("offsets beyond the end")
	}
	return nil
}
