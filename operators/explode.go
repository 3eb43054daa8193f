package operators

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/bitutil"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
)

// A batch that an Explode emits has at most maxExplodeRows rows. Each row repeats the columns of its record,
// and most often the list among them: a batch ends sooner when its lists hold maxExplodeElems elements.
const (
	maxExplodeRows  = 8192
	maxExplodeElems = 1 << 18
)

// An Explode makes a row of each element of a list, in the order of the list: the columns of the row, the
// element and, if asked for, its place. The rows of one list share event time, key, origin and offset.
type Explode struct {
	Counters
	list  Evaluator
	o     ExplodeOptions
	alloc memory.Allocator

	sel   []int32 // row of the batch, for each output row
	elems []int32 // element of the child array, or -1
	place []int64 // of the element in its list
	held  int64   // elements in the lists of the output rows
}

// ExplodeOptions describe an Explode.
type ExplodeOptions struct {
	Elem  scalar.Type // of the elements
	Left  bool        // a null or empty list gives one row, whose element and place are null
	Index bool        // a column with the place of the element, from 0, follows the element
	Alloc memory.Allocator
}

// NewExplode makes an Explode over the first column of list, a list. Rows whose list is null or empty give
// no row, unless Left asks for one.
func NewExplode(list Evaluator, o ExplodeOptions) *Explode {
	return &Explode{list: list, o: o, alloc: orDefault(o.Alloc)}
}

// Process implements Operator. In Counts, Filtered are the rows that gave none.
func (e *Explode) Process(b *Batch, out Emitter) {
	defer b.Release()
	e.In.Add(int64(b.Rows))
	if b.Rows == 0 {
		return
	}
	r := mustEval(e.list, b, nil)
	defer r.Release()
	fail(b, r.Errors, &e.Counters, out)
	lists, child := e.lists(r.Columns[0])
	defer lists.Release()
	errs := r.Errors
	e.reset()
	for row := range b.Rows {
		if len(errs) > 0 && errs[0].Row == row {
			errs = errs[1:]
			continue
		}
		from, to := int64(0), int64(0)
		if lists.IsValid(row) {
			from, to = lists.(array.ListLike).ValueOffsets(row)
		}
		if from == to {
			if !e.o.Left {
				e.Filtered.Add(1)
				continue
			}
			if len(e.sel) == maxExplodeRows {
				e.flush(b, child, out)
			}
			e.add(int32(row), -1, 0)
		}
		for i := from; i < to; i++ {
			if len(e.sel) == maxExplodeRows || e.held > maxExplodeElems {
				e.flush(b, child, out)
			}
			e.add(int32(row), int32(i), i-from)
			e.held += to - from
		}
	}
	e.flush(b, child, out)
}

// lists is the evaluated column with the array of all elements.
func (e *Explode) lists(c arrow.Array) (lists, child arrow.Array) {
	lists = Plain(e.alloc, c)
	if l, ok := lists.(array.ListLike); ok {
		return lists, l.ListValues()
	}
	return lists, nil // nothing but nulls
}

func (e *Explode) reset() { e.sel, e.elems, e.place, e.held = e.sel[:0], e.elems[:0], e.place[:0], 0 }

// add notes one output row.
func (e *Explode) add(row, elem int32, place int64) {
	e.sel, e.elems, e.place = append(e.sel, row), append(e.elems, elem), append(e.place, place)
}

// flush emits the rows noted since the last call.
func (e *Explode) flush(b *Batch, child arrow.Array, out Emitter) {
	if len(e.sel) == 0 {
		return
	}
	columns := make([]arrow.Array, 0, len(b.Columns)+2)
	for _, c := range b.Columns {
		if c != nil {
			c = Gather(e.alloc, c, e.sel)
		}
		columns = append(columns, c)
	}
	columns = append(columns, GatherOrNull(e.alloc, child, ArrowType(e.o.Elem), e.elems))
	if e.o.Index {
		columns = append(columns, e.places())
	}
	made := b.pick(columns, e.sel)
	e.Out.Add(int64(made.Rows))
	e.reset()
	out.Emit(made)
}

// places is the column of the elements' places.
func (e *Explode) places() arrow.Array {
	b := array.NewInt64Builder(e.alloc)
	defer b.Release()
	b.Reserve(len(e.place))
	for i, p := range e.place {
		if e.elems[i] < 0 {
			b.AppendNull()
		} else {
			b.Append(p)
		}
	}
	return b.NewArray()
}

// Advance implements Operator.
func (e *Explode) Advance(EventTime, Emitter) {}

// Close implements Operator.
func (e *Explode) Close() {}

// GatherOrNull is Gather with a null where sel is negative. arr may be nil if all of sel is.
func GatherOrNull(alloc memory.Allocator, arr arrow.Array, t arrow.DataType, sel []int32) arrow.Array {
	missing := 0
	for _, i := range sel {
		if i < 0 {
			missing++
		}
	}
	switch {
	case missing == 0:
		return Gather(alloc, arr, sel)
	case missing == len(sel):
		return array.MakeArrayOfNull(alloc, t, len(sel))
	}
	at := make([]int32, len(sel))
	for i, s := range sel {
		at[i] = max(s, 0)
	}
	full := gatherData(alloc, arr, at)
	defer full.Release()
	valid := newBuffer(alloc, int(bitutil.BytesForBits(int64(len(sel)))))
	defer valid.Release()
	memory.Set(valid.Bytes(), 0)
	nulls := 0
	for i, s := range sel {
		if s < 0 || arr.IsNull(int(s)) {
			nulls++
			continue
		}
		bitutil.SetBit(valid.Bytes(), i)
	}
	bufs := append([]*memory.Buffer{valid}, full.Buffers()[1:]...)
	d := array.NewData(full.DataType(), full.Len(), bufs, full.Children(), nulls, 0)
	defer d.Release()
	return array.MakeFromData(d)
}
