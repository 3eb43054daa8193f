package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/lookup"
	"github.com/headrace/headrace/runtime/codec"
)

// Tables beside a source. What a lookup finds depends on which changes of the table come before a row, so
// a task with tables takes the batches of source and tables in shard order, the order in which the log
// committed them; of one unit the changes come first. What the tables held when the pipeline started comes
// before everything: what the entries up to the one that opened its first life had written.
//
// The order is a matter of the log alone. So that no step cuts it otherwise, a batch is taken only when
// all that comes before it in any other partition is known to be taken.

// An order is a place in shard order.
type order struct {
	index uint64
	unit  int32
}

func (o order) compare(p order) int {
	return cmp.Or(cmp.Compare(o.index, p.index), cmp.Compare(o.unit, p.unit))
}

func (o order) before(p order) bool { return o.compare(p) < 0 }

// An orderMark says where the records of an item below an offset, and not below that of the mark before,
// stand in shard order.
type orderMark struct {
	next     int64
	at       order
	appended operators.EventTime
}

// note remembers where a batch that goes into the next item stands.
func (p *input) note(b *log.Batch) {
	if !p.ordered {
		return
	}
	at := order{b.Index, b.Unit}
	if b.Index <= p.started {
		at = order{}
	}
	p.last = at
	p.marks = append(p.marks, orderMark{b.Last + 1, at, b.AppendTime})
}

// noted are the marks of the item that ends here.
func (p *input) noted() []orderMark {
	m := p.marks
	p.marks = nil
	return m
}

// trim drops the marks of what is below offset from, which was taken.
func (it *item) trim(from int64) {
	for len(it.marks) > 1 && it.marks[0].next <= from {
		it.marks = it.marks[1:]
	}
}

// end makes the last mark that of the item's end, for an item that ends inside of a batch.
func (it *item) end() {
	if n := len(it.marks); n > 0 {
		it.marks[n-1].next = it.next
	}
}

// split cuts the first pending item behind mark k.
func (p *input) split(k int) {
	it := &p.pending[0]
	if k == len(it.marks)-1 {
		return
	}
	m := it.marks[k]
	first := item{next: m.next, appended: m.appended, skipped: it.skipped, marks: it.marks[: k+1 : k+1]}
	it.skipped, it.marks = 0, it.marks[k+1:]
	if it.rows != nil {
		rows := it.rows
		n := sort.Search(rows.Rows, func(i int) bool { return rows.Offsets[i] >= m.next })
		switch n {
		case 0:
		case rows.Rows:
			first.rows, it.rows = rows, nil
		default:
			first.rows, it.rows = rows.Slice(0, n), rows.Slice(n, rows.Rows)
			rows.Release()
		}
	}
	n := sort.Search(len(it.invalid), func(i int) bool { return it.invalid[i].Offset >= m.next })
	first.invalid, it.invalid = it.invalid[:n:n], it.invalid[n:]
	p.pending = slices.Insert(p.pending, 0, first)
}

// frontier is the order before which the input has nothing that was not taken.
func (p *input) frontier() order {
	if len(p.pending) > 0 {
		return p.pending[0].marks[0].at
	}
	return p.edge
}

// below counts the marks of the first pending item for which ok holds, from the first on.
func (p *input) below(ok func(at order) bool) int {
	n := 0
	for _, m := range p.pending[0].marks {
		if !ok(m.at) {
			break
		}
		n++
	}
	return n
}

// A tableInputs reads the tables of a task.
type tableInputs struct {
	in      inputs
	of      []int  // table of each partition
	applied uint64 // raft index up to which every partition's end was known at the last fill
}

// errTable says that a table is gone.
var errTable = errors.New("runtime: a table that a lookup reads was deleted or made anew; apply the module again to compute the pipeline from its beginning")

// openTables begins to read the tables at from.
func (l *life) openTables(from []int64) error {
	tables := l.pl.Tables()
	if len(tables) == 0 {
		return nil
	}
	l.tables = &tableInputs{in: inputs{batchRows: l.batchRows, gone: errTable}}
	byTopic := map[string][]*log.Partition{}
	at := map[string][]int64{}
	k := 0
	for i := range l.task.tables {
		id := l.task.tables[i]
		if i > 0 && id.Topic != l.task.tables[i-1].Topic {
			k++
		}
		p, ok := l.store.Partition(id)
		if !ok {
			return fmt.Errorf("%w (partition %s)", errTable, id)
		}
		byTopic[tables[k].Name] = append(byTopic[tables[k].Name], p)
		at[tables[k].Name] = append(at[tables[k].Name], from[i])
	}
	for k, t := range tables {
		all := make([]bool, len(t.Schema.Columns))
		for i := range all {
			all[i] = true
		}
		in, err := newInputs(t, all, true, byTopic[t.Name], at[t.Name], l.passLost, l.batchRows, l.opts.Allocator)
		if err != nil {
			l.tables.in.close()
			return err
		}
		for _, p := range in.parts {
			p.started = l.started
			l.tables.in.parts = append(l.tables.in.parts, p)
			l.tables.of = append(l.tables.of, k)
		}
	}
	for _, in := range []*inputs{l.inputs, &l.tables.in} {
		for _, p := range in.parts {
			p.ordered = true
			for i := range p.pending { // what was passed over
				p.last = p.pending[i].marks[0].at
			}
		}
	}
	return nil
}

// fill reads what the sources and tables have next. It answers whether anything is pending.
func (l *life) fill() (bool, error) {
	applied, _ := l.store.Applied() // before the log ends: they know all that was applied
	pending, err := l.inputs.fill(l.stepBytes, l.opts.Workers)
	if err != nil {
		return false, l.notFilled(err)
	}
	if l.tables == nil {
		return pending, nil
	}
	l.tables.applied = applied
	more, err := l.tables.in.fill(l.stepBytes, l.opts.Workers)
	var lost *lostError
	switch {
	case errors.As(err, &lost) && l.step == 0:
		return false, fmt.Errorf("%w: %w", errRebuild, lost)
	case errors.As(err, &lost):
		return false, l.lost("a table that it looks rows up in", lost)
	case err != nil:
		return false, err
	}
	for _, in := range []*inputs{l.inputs, &l.tables.in} {
		for _, p := range in.parts {
			if p.edge = p.last; p.read >= p.part.LogEnd() {
				p.edge = order{index: applied + 1}
			}
		}
	}
	return pending || more, nil
}

// watch has w tell of new records in the tables; it answers whether there are some already.
func (t *tableInputs) watch(w *log.Waiter) bool {
	for _, p := range t.in.parts {
		if w.Watch(p.part, p.read) {
			return true
		}
	}
	return false
}

// ahead says whether something that was read is newer than what is known of the other partitions: the entry is just being
// applied.
func (l *life) ahead() bool {
	for _, in := range []*inputs{l.inputs, &l.tables.in} {
		for _, p := range in.parts {
			if f := p.frontier(); len(p.pending) > 0 && f.index > l.tables.applied {
				return true
			}
		}
	}
	return false
}

// takeInOrder is what a step takes with tables: rows and changes in shard order, as far as there is room. to
// are the cuts of the source partitions, then those of the tables.
func (l *life) takeInOrder(horizon operators.EventTime, to []log.Cut) (did bool) {
	c := l.chain
	room := func() bool { return !c.unfinished && c.used() < l.outputBytes && !l.limit.reached }
	tables := l.tables.in.parts
	for room() {
		changes := order{index: 1<<64 - 1} // none comes before
		for _, t := range tables {
			if f := t.frontier(); f.before(changes) {
				changes = f
			}
		}
		for _, p := range l.inputs.parts {
			for len(p.pending) > 0 && room() {
				n := p.below(func(at order) bool { return at.before(changes) })
				if n == 0 {
					break
				}
				p.split(n - 1)
				if p.pending[0].appended > horizon {
					break
				}
				to[p.index].Offset = l.takeItem(p)
				did = true
			}
		}
		if !room() || !l.takeChanges(to[len(l.parts):]) {
			return did
		}
		did = true
	}
	return did
}

// takeChanges takes the next changes of a table, if they are next. to are the cuts of the tables.
func (l *life) takeChanges(to []log.Cut) (did bool) {
	rows := order{index: 1<<64 - 1}
	for _, p := range l.inputs.parts {
		if f := p.frontier(); f.before(rows) {
			rows = f
		}
	}
	parts := l.tables.in.parts
	for i, p := range parts {
		if len(p.pending) == 0 {
			continue
		}
		n := p.below(func(at order) bool {
			if rows.before(at) {
				return false
			}
			for j, q := range parts {
				switch d := at.compare(q.frontier()); {
				case j == i || d < 0:
				case d > 0, j < i, len(q.pending) == 0: // of equal ones the first partition's come first
					return false
				}
			}
			return true
		})
		if n == 0 {
			continue
		}
		p.split(n - 1)
		to[i].Offset = l.takeChange(i, p)
		return true
	}
	return false
}

// takeChange gives the next item of a table to the chain, or as many of its rows as the step has room for, and answers the
// offset after what it took.
func (l *life) takeChange(i int, p *input) (next int64) {
	c, it := l.chain, &p.pending[0]
	c.counters.Skipped += it.skipped
	it.skipped = 0
	rows, invalid, next := it.rows, it.invalid, it.next
	it.rows, it.invalid = nil, nil
	if room := l.changeRows(rows); rows != nil && room < rows.Rows {
		first, rest := rows.Slice(0, room), rows.Slice(room, rows.Rows)
		rows.Release()
		next = rest.Offsets[0]
		k := sort.Search(len(invalid), func(i int) bool { return invalid[i].Offset >= next })
		it.rows, it.invalid = rest, invalid[k:]
		it.trim(next)
		rows, invalid = first, invalid[:k]
	} else {
		p.pop()
	}
	c.change(c.tables[l.tables.of[i]], p.part.ID().Index, rows, invalid)
	return next
}

// changeRows is how many rows of a table the step has room for, at least one.
func (l *life) changeRows(b *operators.Batch) int {
	if b == nil || b.Origin == nil {
		return 1
	}
	room, n := l.outputBytes-l.chain.used(), 0
	for n < b.Rows && room > 0 {
		o := b.Origin(n)
		room -= len(o.Key) + 2*len(o.Value) + 64 // as columns a row may take more than as text
		n++
	}
	return max(1, n)
}

// A tableRun is a table with the lookups in it.
type tableRun struct {
	topic *plan.Topic
	clock eventClock
	ops   []*lookup.Lookup
}

// openTables finds the tables of the operators.
func (c *chain) openTables(ops []operators.Operator) error {
	for _, t := range c.pl.Tables() {
		r := &tableRun{topic: t}
		if err := r.clock.init(t, c.alloc); err != nil {
			return err
		}
		for i, op := range ops {
			if x := c.pl.Stages[i].Lookup; x != nil && x.Table.Name == t.Name {
				r.ops = append(r.ops, op.(*lookup.Lookup))
			}
		}
		c.tables = append(c.tables, r)
	}
	return nil
}

// change takes rows of a table with the records among them that could not be decoded, in offset order. It
// owns b, which may be nil. What cannot be a row of the table is invalid, and counts as a row taken.
func (c *chain) change(t *tableRun, p int32, b *operators.Batch, invalid []codec.Invalid) {
	c.sink.collect()
	for i := range invalid {
		v := &invalid[i]
		c.counters.In++
		c.sink.giveInvalid(operators.Origin{
			Topic: t.topic.Name, Partition: p, Offset: v.Offset, Timestamp: v.Timestamp, Key: v.Key, Value: v.Value,
		}, v.Code, v.Detail)
	}
	if b != nil {
		bad := t.clock.stamp(b)
		if !t.topic.Derived {
			bad = withWrongKeys(bad, b, t.topic)
		}
		if len(bad) > 0 {
			for _, r := range bad {
				c.counters.In++
				c.sink.giveInvalid(b.Origin(r.row), r.code, r.detail)
			}
			good := b.Select(c.alloc, rowsExcept(b.Rows, bad))
			b.Release()
			b = good
		}
		for _, op := range t.ops {
			op.Change(b)
		}
		b.Release()
	}
	c.sink.give()
}

// buildLookup makes the operator of a lookup stage.
func buildLookup(low lowering, st *plan.Stage, alloc memory.Allocator) (operators.Operator, error) {
	x := st.Lookup
	key, err := low.program(x.Key)
	if err != nil {
		return nil, err
	}
	o := lookup.Options{Key: key, KeyTypes: typesOf(x.Key), Left: x.Left, Alloc: alloc}
	for _, col := range x.Table.Schema.Columns {
		o.Row = append(o.Row, scalar.Field{Name: col.Name, Type: col.Type})
	}
	if x.On != nil {
		joined := append(slices.Clone(low.input), scalar.StructType(o.Row...))
		if o.On, err = (lowering{alloc: low.alloc, input: joined}).program([]*plan.Expr{x.On}); err != nil {
			return nil, err
		}
	}
	return lookup.New(o)
}
