package window

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// The columns of the test rows.
const (
	colKey   = iota // string?
	colInt          // int64?
	colUint         // uint64
	colFloat        // float64?
	colDec          // decimal(20,3)?
	colText         // string?
	colFlag         // bool
	colList         // list<int64>?
	colTag          // string
	colMaybe        // bool?
	colWide         // decimal(38,6)?
)

var rowTypes = []scalar.Type{
	scalar.TypeString.Null(), scalar.TypeInt64.Null(), scalar.TypeUint64, scalar.TypeFloat64.Null(),
	scalar.DecimalType(20, 3).Null(), scalar.TypeString.Null(), scalar.TypeBool, scalar.ListType(scalar.TypeInt64).Null(), scalar.TypeString,
	scalar.TypeBool.Null(), scalar.DecimalType(38, 6).Null(),
}

type row struct {
	values    []scalar.Value
	ts        int64
	partition int32
	offset    int64
	behind    int64
	appended  int64
}

func makeBatch(alloc memory.Allocator, types []scalar.Type, rows []row) *operators.Batch {
	columns := make([]arrow.Array, len(types))
	for c, t := range types {
		b := array.NewBuilder(alloc, operators.ArrowType(t))
		if t.Kind == scalar.KindString && len(rows) > 0 && rows[0].offset%4 == 0 { // some come as dictionaries
			b.Release()
			b = array.NewDictionaryBuilder(alloc, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String})
		}
		for _, r := range rows {
			if d, ok := b.(*array.BinaryDictionaryBuilder); ok && !r.values[c].IsNull() {
				if err := d.AppendString(r.values[c].S); err != nil {
					panic(err)
				}
				continue
			}
			operators.AppendValue(b, t, r.values[c])
		}
		columns[c] = b.NewArray()
		b.Release()
	}
	b := operators.NewBatch(columns, nil)
	b.Rows = len(rows)
	for _, r := range rows {
		b.Partition = r.partition
		b.Time = append(b.Time, r.ts)
		b.Behind = append(b.Behind, r.behind)
		b.Offsets = append(b.Offsets, r.offset)
		b.AppendTime = append(b.AppendTime, r.appended)
	}
	b.Origin = func(i int) operators.Origin {
		return operators.Origin{Partition: rows[i].partition, Offset: rows[i].offset}
	}
	return b
}

// sink writes down what leaves.
type sink struct {
	types []scalar.Type
	lines []string
	late  []string
	fails []string
}

func (s *sink) Emit(b *operators.Batch) {
	defer b.Release()
	for i := range b.Rows {
		line := []byte{}
		for c, arr := range b.Columns {
			line = append(line, ' ')
			v := operators.ValueAt(arr, s.types[c], i)
			if v.Kind.Float() && v.F-v.F != 0 {
				line = fmt.Append(line, v.F)
				continue
			}
			line, _ = scalar.AppendJSON(line, v, s.types[c])
		}
		s.lines = append(s.lines, fmt.Sprintf("@%d key=%s:%s", b.Time[i], keyText(b.Key[i]), line))
		o := b.Origin(i)
		if b.Partition != -1 || o.Offset != -1 || !bytes.Equal(o.Key, b.Key[i]) || o.Timestamp != scalar.FloorDiv(b.Time[i], 1e6) {
			s.lines = append(s.lines, "wrong origin")
		}
	}
}

func keyText(k []byte) string {
	if k == nil {
		return "null"
	}
	return fmt.Sprintf("%q", k)
}

func (s *sink) Late(b *operators.Batch, rows []int) {
	for _, i := range rows {
		s.late = append(s.late, fmt.Sprintf("%d/%d", b.Partition, b.Offsets[i]))
	}
}

func (s *sink) Fail(b *operators.Batch, errs []operators.RowError) {
	for _, e := range errs {
		o := b.Origin(e.Row)
		if b.Partition >= 0 {
			s.fails = append(s.fails, fmt.Sprintf("%s %s: row %d/%d", e.Code, e.Expr, o.Partition, o.Offset))
			continue
		}
		s.fails = append(s.fails, fmt.Sprintf("%s %s: key %s value %s", e.Code, e.Expr, keyText(o.Key), o.Value))
	}
}

// testSlots are the aggregates of the tests, with the filter `colFlag` on some.
func testSlots() []Slot {
	cols := func(c int) operators.Evaluator { return operators.Columns{c} }
	slot := func(f string, c int, out scalar.Type) Slot {
		return Slot{Func: f, Arg: cols(c), ArgType: rowTypes[c], Type: out, Text: fmt.Sprintf("%s(c%d)", f, c)}
	}
	where := func(s Slot) Slot { s.Filter = cols(colFlag); return s }
	i, f := scalar.TypeInt64.Null(), scalar.TypeFloat64.Null()
	return append([]Slot{
		{Func: "count", Type: scalar.TypeInt64, Text: "count()"},
		where(Slot{Func: "count", Type: scalar.TypeInt64, Text: "count()"}),
		slot("count", colInt, scalar.TypeInt64),
		slot("count_distinct", colText, scalar.TypeInt64),
		where(slot("count_distinct", colFloat, scalar.TypeInt64)),
		slot("sum", colInt, i), where(slot("avg", colInt, f)),
		slot("sum", colUint, scalar.TypeUint64.Null()), slot("avg", colUint, f),
		slot("sum", colFloat, f), where(slot("avg", colFloat, f)),
		slot("sum", colDec, scalar.DecimalType(38, 3).Null()), slot("avg", colDec, scalar.DecimalType(38, 6).Null()),
		slot("min", colInt, i), slot("max", colUint, scalar.TypeUint64.Null()), slot("min", colFloat, f), where(slot("max", colFloat, f)),
		slot("min", colDec, rowTypes[colDec]), slot("max", colDec, rowTypes[colDec]),
		slot("min", colText, rowTypes[colText]), where(slot("max", colText, rowTypes[colText])), slot("max", colList, rowTypes[colList]),
		slot("first", colText, rowTypes[colText]), slot("last", colText, rowTypes[colText]), where(slot("first", colInt, i)),
		slot("last", colDec, rowTypes[colDec]), slot("first", colList, rowTypes[colList]),
	}, moreSlots(slot, where)...)
}

type scenario struct {
	by     []int
	size   time.Duration
	every  time.Duration
	rows   [][]row // by partition
	lag    int64
	append bool
	slots  []Slot

	zone string // of calendar days
	day  func(at int64) [2]int64
}

func (sc *scenario) options(alloc memory.Allocator) Options {
	o := Options{By: operators.Columns(sc.by), Slots: sc.slots, Size: sc.size, Every: sc.every, OnAppend: sc.append, Alloc: alloc}
	for i, c := range sc.by {
		o.ByTypes = append(o.ByTypes, rowTypes[c])
		o.ByNames = append(o.ByNames, fmt.Sprintf("k%d", i))
	}
	if sc.day != nil {
		o.Calendar, _ = scalar.NewCalendar("day", sc.zone)
	}
	slots := operators.Columns{}
	for i := range o.Slots {
		slots = append(slots, len(sc.by)+2+i)
	}
	o.Results = slots
	return o
}

// forSessions leaves out what sessions do not have, and the spread of floats, whose digits depend on how sessions were
// joined.
func forSessions(slots []Slot) (list []Slot) {
	for _, s := range slots {
		acc, err := newAccumulator(s, 0)
		if err != nil {
			panic(err)
		}
		_, keeps := acc.(keeper)
		if _, float := acc.(spreadFloat); !float && (!keeps || s.Func == "count_distinct") {
			list = append(list, s)
		}
	}
	return list
}

func (sc *scenario) outTypes() []scalar.Type {
	var out []scalar.Type
	for _, c := range sc.by {
		out = append(out, rowTypes[c])
	}
	out = append(out, scalar.TypeTime, scalar.TypeTime)
	for _, s := range sc.slots {
		out = append(out, s.Type)
	}
	return out
}

func randomScenario(r *rand.Rand) *scenario {
	sc := &scenario{lag: int64(r.IntN(30)), append: r.IntN(4) == 0}
	sc.by = [][]int{{colTag}, {colKey}, {}, {colInt, colKey}, {colFloat}, {colTag, colFlag, colDec, colList}, {colUint}}[r.IntN(7)]
	for _, s := range testSlots() {
		if r.IntN(3) == 0 {
			sc.slots = append(sc.slots, s)
		}
	}
	sc.every = time.Duration(5 + r.IntN(20))
	sc.size = sc.every
	if r.IntN(2) == 0 {
		sc.size = sc.every + time.Duration(r.IntN(60))
	}
	extreme := r.IntN(4) == 0
	far := r.IntN(5) == 0
	n := 1 + r.IntN(4)
	for p := range n {
		var rows []row
		w, now := operators.MinEventTime, int64(r.IntN(100))
		for i := range 20 + r.IntN(150) {
			now += int64(r.IntN(4))
			ts := now + int64(r.IntN(40)) - 20
			if far && r.IntN(10) == 0 {
				ts = r.Int64N(1e6) - 5e5
			}
			row := row{ts: ts, partition: int32(p), offset: int64(10*p + 2*i), behind: w, appended: now, values: randomValues(r, extreme)}
			if r.IntN(40) == 0 {
				row.ts = []int64{operators.MaxEventTime, operators.MinEventTime}[r.IntN(2)] // its windows are out of range
			} else if !far || ts < 1e3 {
				w = max(w, ts-sc.lag)
			}
			rows = append(rows, row)
		}
		sc.rows = append(sc.rows, rows)
	}
	return sc
}

func randomValues(r *rand.Rand, extreme bool) []scalar.Value {
	null := func(v scalar.Value) scalar.Value {
		if r.IntN(5) == 0 {
			return scalar.Null
		}
		return v
	}
	num := int64(r.IntN(7) - 3)
	unum := uint64(r.IntN(5))
	dec := scalar.Int128Of(int64(r.IntN(20001) - 10000))
	if extreme && r.IntN(3) == 0 {
		num = []int64{math.MaxInt64, math.MinInt64}[r.IntN(2)]
		unum = math.MaxUint64
		dec, _ = scalar.Pow10(20).Sub(scalar.Int128Of(1))
	}
	f := []float64{0, math.Copysign(0, -1), 0.1, 1e16, -1e16, 1.0 / 3, r.NormFloat64()}[r.IntN(7)]
	if r.IntN(60) == 0 {
		f = []float64{math.NaN(), math.Inf(1)}[r.IntN(2)]
	}
	word := func() string { return strings.Repeat(string(rune('a'+r.IntN(3))), r.IntN(12)) }
	var list []scalar.Value
	for range r.IntN(3) {
		list = append(list, scalar.Int(int64(r.IntN(3))))
	}
	return []scalar.Value{
		null(scalar.String(word())), null(scalar.Int(num)), scalar.Uint(unum), null(scalar.Float(f)), null(scalar.Decimal(dec)),
		null(scalar.String(word())), scalar.Bool(r.IntN(2) == 0), null(scalar.List(list...)), scalar.String(word()),
		null(scalar.Bool(r.IntN(4) > 0)), null(scalar.Decimal(wideDecimal(r, extreme))),
	}
}

// A group is the rows of a key in a window.
type group struct {
	start, end int64
	key        []byte // encoded
	by         []scalar.Value
	rows       []row
	// sums are the float sums of the source partitions over the rows that a slot takes, nil: as the rows lie.
	sums func(takes func(row) bool, value func(row) float64) []float64
}

// keyOf is the group of a row: by values and a name of them; ok is false if they have no written form.
func (sc *scenario) keyOf(r row) (by []scalar.Value, name string, ok bool) {
	by, ok = make([]scalar.Value, len(sc.by)), true
	for i, c := range sc.by {
		by[i] = r.values[c]
		if by[i].Kind == scalar.KindFloat64 {
			ok = ok && by[i].F-by[i].F == 0
			if by[i].F == 0 {
				by[i].F = 0
			}
		}
		text, _ := scalar.AppendJSON(nil, by[i], rowTypes[c])
		name += string(text) + "|"
	}
	return by, name, ok
}

// spans are the windows that hold a time.
func (sc *scenario) spans(at int64) (spans [][2]int64) {
	if sc.day != nil {
		day := sc.day(at)
		return [][2]int64{day}
	}
	size, every := int64(sc.size), int64(sc.every)
	if every < 0 {
		start := scalar.FloorDiv(at, size) * size
		for end := start - every; end <= start+size; end -= every {
			if at < end {
				spans = append(spans, [2]int64{start, end})
			}
		}
		return spans
	}
	for s := scalar.FloorDiv(at, every) * every; s+size > at; s -= every {
		spans = append(spans, [2]int64{s, s + size})
	}
	return spans
}

// naive is the aggregate as its definition reads: every row of every group kept, folded at the end.
func (sc *scenario) naive() (lines, late, fails []string) {
	groups := map[string]*group{}
	for _, part := range sc.rows {
		for _, r := range part {
			at, behind := r.ts, r.behind
			if sc.append {
				at, behind = r.appended, operators.MinEventTime
			}
			if at > math.MaxInt64/2 || at < math.MinInt64/2 {
				fails = append(fails, fmt.Sprintf("E0605 window: row %d/%d", r.partition, r.offset))
				continue
			}
			var spans [][2]int64
			for _, s := range sc.spans(at) {
				if s[1] > behind {
					spans = append(spans, s)
				}
			}
			if len(spans) == 0 {
				late = append(late, fmt.Sprintf("%d/%d", r.partition, r.offset))
				continue
			}
			by, name, ok := sc.keyOf(r)
			if !ok {
				fails = append(fails, fmt.Sprintf("E0606 by: row %d/%d", r.partition, r.offset))
				continue
			}
			for _, s := range spans {
				id := fmt.Sprintf("%d|%d|%s", s[0], s[1], name)
				if groups[id] == nil {
					groups[id] = &group{start: s[0], end: s[1], by: by, key: sc.encodeKey(by)}
				}
				groups[id].rows = append(groups[id].rows, r)
			}
		}
	}
	var sorted []*group
	for _, g := range groups {
		sorted = append(sorted, g)
	}
	for _, g := range sorted {
		if sc.every < 0 {
			g.sums = sc.slicedSums(g.rows)
		}
	}
	lines, lost := sc.results(sorted)
	return lines, late, append(fails, lost...)
}

// results are the rows of groups in the order in which they leave, and those that cannot.
func (sc *scenario) results(sorted []*group) (lines, fails []string) {
	sort.Slice(sorted, func(i, j int) bool {
		if sorted[i].end != sorted[j].end {
			return sorted[i].end < sorted[j].end
		}
		return compareKeys(sorted[i].key, sorted[j].key) < 0
	})
	for _, g := range sorted {
		line := ""
		add := func(v scalar.Value, t scalar.Type) {
			if v.Kind.Float() && v.F-v.F != 0 {
				line += fmt.Sprint(" ", v.F)
				return
			}
			text, _ := scalar.AppendJSON(nil, v, t)
			line += " " + string(text)
		}
		for i, c := range sc.by {
			add(g.by[i], rowTypes[c])
		}
		add(scalar.Time(g.start), scalar.TypeTime)
		add(scalar.Time(g.end), scalar.TypeTime)
		failed := ""
		for _, s := range sc.slots {
			v, code := naiveSlot(s, g)
			if code != scalar.CodeNone && failed == "" {
				failed = fmt.Sprintf("%s %s: key %s", code, s.Text, keyText(g.key))
			}
			add(v, s.Type)
		}
		if failed != "" {
			fails = append(fails, failed)
			continue
		}
		lines = append(lines, fmt.Sprintf("@%d key=%s:%s", g.end-1, keyText(g.key), line))
	}
	return lines, fails
}

func (sc *scenario) encodeKey(by []scalar.Value) []byte {
	if len(by) == 1 {
		if by[0].IsNull() {
			return nil
		}
		if by[0].Kind == scalar.KindString {
			return []byte(by[0].S)
		}
		text, _ := scalar.AppendJSON([]byte{}, by[0], rowTypes[sc.by[0]])
		return text
	}
	if len(by) == 0 {
		return nil
	}
	var parts []string
	for i, v := range by {
		text, _ := scalar.AppendJSON(nil, v, rowTypes[sc.by[i]])
		parts = append(parts, string(text))
	}
	return []byte("[" + strings.Join(parts, ",") + "]")
}

// partitionSums are the sums of the rows of each partition, in order.
func (g *group) partitionSums(takes func(row) bool, value func(row) float64) (sums []float64) {
	if g.sums != nil {
		return g.sums(takes, value)
	}
	last := int32(-1)
	for _, r := range g.rows {
		switch {
		case !takes(r):
			continue
		case r.partition != last:
			sums = append(sums, value(r))
		default:
			sums[len(sums)-1] += value(r)
		}
		last = r.partition
	}
	return sums
}

// naiveSlot folds the rows of a group, which come partition by partition, each in offset order.
func naiveSlot(s Slot, g *group) (scalar.Value, scalar.Code) {
	col := -1
	if s.Arg != nil {
		col = s.Arg.(operators.Columns)[0]
	}
	takes := func(r row) bool {
		return (s.Filter == nil || r.values[colFlag].Bool()) && (col < 0 || !r.values[col].IsNull())
	}
	var kept []row
	for _, r := range g.rows {
		if takes(r) {
			kept = append(kept, r)
		}
	}
	switch s.Func {
	case "count":
		return scalar.Int(int64(len(kept))), 0
	case "count_distinct", "approx_distinct": // exact for so few
		seen := map[string]bool{}
		for _, r := range kept {
			v := r.values[col]
			if v.F == 0 {
				v.F = 0
			}
			seen[fmt.Sprint(v.S, v.F, v.I, v.D)] = true
		}
		return scalar.Int(int64(len(seen))), 0
	}
	if len(kept) == 0 {
		return scalar.Null, 0
	}
	if v, ok := naiveMore(s, col, kept); ok {
		return v, 0
	}
	best := kept[0]
	switch s.Func {
	case "min", "max":
		for _, r := range kept {
			if c := scalar.Compare(r.values[col], best.values[col]); c < 0 && s.Func == "min" || c > 0 && s.Func == "max" {
				best = r
			}
		}
		return best.values[col], 0
	case "first", "last":
		for _, r := range kept {
			if s.Func == "first" && before(r, best) || s.Func == "last" && before(best, r) {
				best = r
			}
		}
		return best.values[col], 0
	}
	if s.ArgType.Kind.Float() {
		total := 0.0
		for i, part := range g.partitionSums(takes, func(r row) float64 { return r.values[col].F }) {
			if i == 0 {
				total = part
			} else {
				total += part
			}
		}
		if s.Func == "avg" {
			total /= float64(len(kept))
		}
		return scalar.Float(total), 0
	}
	sum := new(big.Int)
	for _, r := range kept {
		v := r.values[col]
		switch s.ArgType.Kind {
		case scalar.KindDecimal:
			sum.Add(sum, v.D.Big())
		case scalar.KindUint64:
			sum.Add(sum, new(big.Int).SetUint64(v.Uint()))
		default:
			sum.Add(sum, big.NewInt(v.I))
		}
	}
	n := big.NewInt(int64(len(kept)))
	switch k := s.Type.Kind; {
	case k == scalar.KindFloat64:
		f, _ := new(big.Rat).SetFrac(sum, n).Float64()
		return scalar.Float(f), 0
	case k == scalar.KindDecimal:
		if s.Func == "avg" {
			sum.Mul(sum, big.NewInt(1000)) // scale 3 to 6
			q, m := new(big.Int).QuoRem(sum, n, new(big.Int))
			if c := new(big.Int).Abs(new(big.Int).Lsh(m, 1)).Cmp(n); c > 0 || c == 0 && q.Bit(0) == 1 {
				q.Add(q, big.NewInt(int64(sum.Sign())))
			}
			sum = q
		}
		d, ok := scalar.Int128FromBig(sum)
		if !ok || !d.FitsDigits(s.Type.Precision) {
			return scalar.Null, scalar.CodeDecimalOverflow
		}
		return scalar.Decimal(d), 0
	case k == scalar.KindUint64:
		if !sum.IsUint64() {
			return scalar.Null, scalar.CodeOverflow
		}
		return scalar.Uint(sum.Uint64()), 0
	}
	if !sum.IsInt64() {
		return scalar.Null, scalar.CodeOverflow
	}
	return scalar.Int(sum.Int64()), 0
}

// A machine is any of the operators of this package.
type machine interface {
	operators.Stateful
	More() bool
	ObserveAppend(operators.EventTime)
	Stats() Stats
}

// newMachine makes the operator that the options ask for.
func newMachine(o Options) (machine, error) {
	if o.Every == gapOnly {
		s, err := NewSessions(o)
		if err == nil {
			s.spare = 3 // so that a few rows compact
		}
		return s, err
	}
	if o.Every < 0 {
		o.Every = -o.Every
		return NewCumulate(o)
	}
	return NewAggregate(o)
}

// gapOnly as Options.Every asks newMachine for sessions; another negative number is the step of cumulate.
const gapOnly = -1

// held is how many groups an operator holds.
func held(m machine) int64 {
	switch m := m.(type) {
	case *Sessions:
		return int64(m.t.Len())
	case *Cumulate:
		return m.groups.Rows() + m.base.groups.Rows()
	}
	return m.(*Aggregate).groups.Rows()
}

// store is keyed state as the log would keep it.
type store map[string]string

func (s store) save(a machine) error {
	last := ""
	var err error
	a.Changes(func(key, value []byte) {
		k := string(key)
		if last != "" && k <= last {
			err = fmt.Errorf("change %q after %q", k, last)
		}
		last = k
		if value == nil {
			if _, ok := s[k]; !ok {
				err = fmt.Errorf("deletes %q, which is not stored", k)
			}
			delete(s, k)
			return
		}
		s[k] = string(value)
	})
	return err
}

func (s store) restore(t *testing.T, o Options) machine {
	a, err := newMachine(o)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, 0, len(s))
	for k := range s {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if err := a.Restore([]byte(k), []byte(s[k])); err != nil {
			t.Fatal(err)
		}
	}
	if a.StateRows() != int64(len(s)) {
		t.Fatalf("restored %d of %d rows", a.StateRows(), len(s))
	}
	return a
}

// run feeds the scenario in random steps: batches of random size, partitions in random turn, a
// watermark after each step, crashes that lose a step, restarts, and a bounded emission.
func (sc *scenario) run(t *testing.T, r *rand.Rand, alloc memory.Allocator) *sink {
	o := sc.options(alloc)
	if r.IntN(2) == 0 {
		o.EmitRows = 1 + r.IntN(100)
	}
	disk := store{}
	a := disk.restore(t, o)
	total := &sink{types: sc.outTypes()}
	next := make([]int, len(sc.rows))
	watermark := func() int64 {
		w := operators.MaxEventTime
		for p, rows := range sc.rows {
			if next[p] < len(rows) {
				w = min(w, rows[next[p]].behind)
			}
		}
		return w
	}
	appended := func() int64 { // every row before it has come
		at := operators.MaxEventTime
		for p, rows := range sc.rows {
			if next[p] < len(rows) {
				at = min(at, rows[next[p]].appended)
			}
		}
		return at
	}
	check := func() {
		s := a.Stats()
		if s.In != s.Folded+s.Late+s.Failed || s.Groups != s.Out+s.ResultsFailed+held(a) {
			t.Fatalf("counters do not add up: %+v with %d groups", s, held(a))
		}
	}
	for done := false; !done; {
		s := &sink{types: total.types}
		before := append([]int(nil), next...)
		for range r.IntN(5) {
			p := r.IntN(len(sc.rows))
			n := min(r.IntN(40), len(sc.rows[p])-next[p])
			a.Process(makeBatch(alloc, rowTypes, sc.rows[p][next[p]:next[p]+n]), s)
			next[p] += n
		}
		w := watermark()
		if sc.append {
			a.ObserveAppend(appended())
		}
		a.Advance(w, s)
		done = w == operators.MaxEventTime && !a.More()
		check()
		if r.IntN(12) == 0 { // a crash before the commit
			a.Close()
			a = disk.restore(t, o)
			next, done = before, false
			continue
		}
		if err := disk.save(a); err != nil {
			t.Fatal(err)
		}
		if a.StateRows() != int64(len(disk)) {
			t.Fatalf("%d rows in memory, %d stored", a.StateRows(), len(disk))
		}
		total.lines = append(total.lines, s.lines...)
		total.late = append(total.late, s.late...)
		total.fails = append(total.fails, s.fails...)
		if r.IntN(12) == 0 {
			a.Close()
			a = disk.restore(t, o)
		}
	}
	if len(disk) != 0 || a.StateRows() != 0 {
		t.Errorf("%d rows left in the store, %d in memory", len(disk), a.StateRows())
	}
	if a, ok := a.(*Aggregate); ok && (a.groups.Len() != 0) {
		t.Errorf("%d windows left in memory", a.groups.Len())
	}
	a.Close()
	return total
}

// scenarios is how many a test tries: n, or many times as many in the long suite.
func scenarios(n uint64) uint64 {
	if os.Getenv("HEADRACE_LONG") != "" {
		return 40 * n
	}
	return n
}

func TestAggregateEqualsItsDefinitionForAnyStepsAndRestarts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i := range scenarios(10) {
		r := rand.New(rand.NewPCG(seed, i))
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		sc := randomScenario(r)
		lines, late, fails := sc.naive()
		sc.compare(t, r, alloc, lines, late, fails)
		if t.Failed() {
			t.Fatalf("scenario %d: by %v, window %v every %v", i, sc.by, sc.size, sc.every)
		}
	}
}

// compare runs the scenario a few times, and expects the rows in order, the late ones and the failures.
func (sc *scenario) compare(t *testing.T, r *rand.Rand, alloc *memory.CheckedAllocator, lines, late, fails []string) {
	t.Helper()
	for range 3 {
		got := sc.run(t, r, alloc)
		compareLines(t, "row", got.lines, lines)
		sort.Strings(got.late)
		sort.Strings(late)
		compareLines(t, "late row", got.late, late)
		for i, f := range got.fails {
			got.fails[i], _, _ = strings.Cut(f, " value ")
		}
		sort.Strings(got.fails)
		sort.Strings(fails)
		compareLines(t, "failure", got.fails, fails)
	}
	alloc.AssertSize(t, 0)
}

func compareLines(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		g, w := "(nothing)", "(nothing)"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s %d of %d:\n got %s\nwant %s", what, i, len(want), g, w)
			return
		}
	}
}

func BenchmarkTumble(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			const batch = 8192
			r := rand.New(rand.NewPCG(1, 1))
			batches := make([]*operators.Batch, 64)
			for i := range batches {
				kb, vb := array.NewStringBuilder(memory.DefaultAllocator), array.NewInt64Builder(memory.DefaultAllocator)
				times, behind, offsets := make([]int64, batch), make([]int64, batch), make([]int64, batch)
				for j := range batch {
					kb.Append(fmt.Sprintf("user-%06d", r.IntN(n)))
					vb.Append(int64(r.IntN(1000)))
					offsets[j] = int64(i*batch + j)
				}
				batches[i] = operators.NewBatch([]arrow.Array{kb.NewArray(), vb.NewArray()}, times)
				batches[i].Behind, batches[i].Offsets = behind, offsets
			}
			value := func(f string) Slot {
				return Slot{Func: f, Arg: operators.Columns{1}, ArgType: scalar.TypeInt64, Type: scalar.TypeInt64.Null()}
			}
			a, err := NewAggregate(Options{
				By: operators.Columns{0}, ByTypes: []scalar.Type{scalar.TypeString}, ByNames: []string{"user"},
				Slots:   []Slot{{Func: "count", Type: scalar.TypeInt64}, value("sum"), value("max")},
				Results: operators.Columns{3, 4, 5}, Size: time.Minute,
			})
			if err != nil {
				b.Fatal(err)
			}
			s := drain{}
			b.ReportAllocs()
			i, w := 0, int64(0)
			for b.Loop() {
				in := batches[i%len(batches)]
				for j := range in.Time {
					in.Time[j] = w + int64(j)
					in.Behind[j] = w
				}
				in.Retain()
				a.Process(in, &s)
				if i++; i%200 == 0 { // 1.6 million rows a window
					w += int64(time.Minute)
					a.Advance(w, &s)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

type drain struct{ rows int }

func (d *drain) Emit(b *operators.Batch)                     { d.rows += b.Rows; b.Release() }
func (d *drain) Late(*operators.Batch, []int)                {}
func (d *drain) Fail(*operators.Batch, []operators.RowError) {}

// story runs an aggregate by column colTag step by step and writes down what happens.
type story struct {
	t    *testing.T
	out  strings.Builder
	a    machine
	disk store
	o    Options
	s    *sink
	next int64
}

func newStory(t *testing.T, alloc memory.Allocator, title string, o Options) *story {
	o.By, o.ByTypes, o.ByNames = operators.Columns{colTag}, []scalar.Type{scalar.TypeString}, []string{"tag"}
	if o.Slots == nil {
		o.Slots = []Slot{
			{Func: "count", Type: scalar.TypeInt64, Text: "count()"},
			{Func: "sum", Arg: operators.Columns{colInt}, ArgType: rowTypes[colInt], Type: scalar.TypeInt64.Null(), Text: "sum(n)"},
		}
	}
	slots := operators.Columns{}
	types := []scalar.Type{scalar.TypeString, scalar.TypeTime, scalar.TypeTime}
	for i, s := range o.Slots {
		slots = append(slots, 3+i)
		types = append(types, s.Type)
	}
	if o.Results == nil {
		o.Results = slots
	}
	o.Alloc = alloc
	st := &story{t: t, disk: store{}, o: o, s: &sink{types: types}}
	st.a = st.disk.restore(t, o)
	fmt.Fprintf(&st.out, "# %s\n", title)
	return st
}

func (st *story) tell() {
	for _, l := range st.s.lines {
		fmt.Fprintln(&st.out, "  row ", strings.ReplaceAll(strings.ReplaceAll(l, "1970-01-01T00:00:", ""), "Z", "s"))
	}
	for _, l := range st.s.late {
		fmt.Fprintln(&st.out, "  late", l)
	}
	for _, l := range st.s.fails {
		fmt.Fprintln(&st.out, "  fail", l)
	}
	st.s.lines, st.s.late, st.s.fails = nil, nil, nil
}

// row gives one row: seconds of event time, watermark before it, append time.
func (st *story) row(tag string, n int64, ts, behind, appended int64) {
	values := randomValues(rand.New(rand.NewPCG(1, 1)), false)
	values[colTag], values[colInt] = scalar.String(tag), scalar.Int(n)
	r := row{values: values, ts: ts * 1e9, behind: behind * 1e9, appended: appended * 1e9, offset: st.next}
	st.next++
	fmt.Fprintf(&st.out, "offset %d: %s n=%d at %ds, watermark %ds, appended %ds\n", r.offset, tag, n, ts, behind, appended)
	st.a.Process(makeBatch(st.o.Alloc, rowTypes, []row{r}), st.s)
	st.tell()
}

func (st *story) advance(w int64) {
	st.a.Advance(w, st.s)
	text := time.Duration(w).String()
	if w == operators.MaxEventTime {
		text = "the end"
	}
	fmt.Fprintf(&st.out, "watermark %s, more: %v\n", text, st.a.More())
	st.tell()
}

func (st *story) restart() {
	if err := st.disk.save(st.a); err != nil {
		st.t.Fatal(err)
	}
	st.a.Close()
	st.a = st.disk.restore(st.t, st.o)
	fmt.Fprintf(&st.out, "restart with %d state rows\n", len(st.disk))
}

func (st *story) end() string {
	st.advance(operators.MaxEventTime)
	s := st.a.Stats()
	fmt.Fprintf(&st.out, "%+v\n\n", s)
	st.a.Close()
	return st.out.String()
}

// failingResults fails the results of one key.
type failingResults struct {
	operators.Evaluator
	key string
}

func (f failingResults) Eval(b *operators.Batch, sel []int32) (*operators.Result, error) {
	r, err := f.Evaluator.Eval(b, sel)
	for i := range b.Rows {
		if string(b.Key[i]) == f.key {
			r.Errors = append(r.Errors, operators.RowError{Row: i, Code: scalar.CodeDivisionByZero, Expr: "sum(n) / 0"})
		}
	}
	return r, err
}

func TestStoriesOfWindows(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	const sec = int64(time.Second)
	var all strings.Builder

	st := newStory(t, alloc, "A tumbling window is half-open, closes when the watermark reaches its end, and its row carries the last nanosecond.", Options{Size: 10 * time.Second})
	st.row("b", 1, 0, 0, 0)
	st.row("a", 2, 9, 0, 0)
	st.row("a", 3, 10, 0, 0)
	st.advance(10*sec - 1)
	st.advance(10 * sec)
	all.WriteString(st.end())

	st = newStory(t, alloc, "A row is judged by its own partition: behind but in an open window it counts, in a closed one it is late, whatever the pipeline's watermark.", Options{Size: 10 * time.Second})
	st.row("a", 1, 25, 0, 0)
	st.row("a", 2, 21, 25, 0)
	st.row("a", 3, 19, 20, 0)
	st.row("a", 4, 19, 19, 0)
	all.WriteString(st.end())

	st = newStory(t, alloc, "A row that is behind counts in the hops that are still open, and is late when none is.", Options{Size: 10 * time.Second, Every: 5 * time.Second})
	st.row("a", 1, 7, 0, 0)
	st.row("a", 10, 8, 10, 0)
	st.row("a", 100, 8, 15, 0)
	all.WriteString(st.end())

	st = newStory(t, alloc, "A bounded emission goes on where it stopped, also after a restart.", Options{Size: 10 * time.Second, EmitRows: 2})
	for i, k := range []string{"d", "b", "a", "c", "e"} {
		st.row(k, int64(i), int64(3*i), 0, 0)
	}
	st.advance(20 * sec)
	st.restart()
	st.advance(20 * sec)
	st.restart()
	all.WriteString(st.end())

	st = newStory(t, alloc, "Windows on append time close by append time.", Options{Size: 10 * time.Second, OnAppend: true})
	st.row("a", 1, 1000, 2000, 3)
	st.advance(900 * sec)
	st.row("a", 2, 5, 2000, 12)
	st.advance(900 * sec)
	st.a.ObserveAppend(20 * sec)
	st.advance(900 * sec)
	all.WriteString(st.end())

	st = newStory(t, alloc, "A group that cannot leave fails by key and window; the others leave.", Options{Size: 10 * time.Second, Results: failingResults{operators.Columns{3, 4}, "c"}})
	st.row("a", math.MaxInt64, 1, 0, 0)
	st.row("a", 1, 2, 0, 0)
	st.row("b", 7, 2, 0, 0)
	st.row("c", 7, 2, 0, 0)
	all.WriteString(st.end())

	golden.Check(t, "testdata/windows.txt", all.String())
}

func TestOptionsThatNoPlanHasAreRefused(t *testing.T) {
	ok := Options{Results: operators.Columns{}, Size: time.Second}
	for name, change := range map[string]func(*Options){
		"no size": func(o *Options) { o.Size = 0 }, "gaps": func(o *Options) { o.Every = 2 * time.Second },
		"too many hops": func(o *Options) { o.Every = 1 }, "too long": func(o *Options) { o.Size = maxSize + 1 },
		"no results": func(o *Options) { o.Results = nil }, "unknown": func(o *Options) { o.Slots = []Slot{{Func: "mode", Arg: operators.Columns{0}}} },
		"no argument": func(o *Options) { o.Slots = []Slot{{Func: "sum"}} },
	} {
		o := ok
		change(&o)
		if _, err := NewAggregate(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRestore(f *testing.F) {
	sc := &scenario{by: []int{colTag, colList}, size: 20, every: 10, slots: testSlots(), rows: [][]row{{{ts: 5, values: randomValues(rand.New(rand.NewPCG(2, 2)), true)}}}}
	a, err := NewAggregate(sc.options(nil))
	if err != nil {
		f.Fatal(err)
	}
	a.Process(makeBatch(memory.DefaultAllocator, rowTypes, sc.rows[0]), &drain{})
	a.Changes(func(key, value []byte) { f.Add(bytes.Clone(key), bytes.Clone(value)) })
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a, err := NewAggregate(sc.options(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if err := a.Restore(key, value); err != nil && !errors.Is(err, ErrState) {
			t.Fatalf("untyped error: %v", err)
		}
		a.Advance(operators.MaxEventTime, &drain{})
	})
}

// pipe hands what one aggregate emits to the next.
type pipe struct {
	drain
	to  *Aggregate
	out operators.Emitter
}

func (p *pipe) Emit(b *operators.Batch) { p.to.Process(b, p.out) }

func TestAnAggregateFeedsAnother(t *testing.T) {
	alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
	defer alloc.AssertSize(t, 0)
	rows := []row{}
	for i := range 100 {
		v := randomValues(rand.New(rand.NewPCG(7, uint64(i))), false)
		v[colTag] = scalar.String(string(rune('a' + i%3)))
		rows = append(rows, row{values: v, ts: int64(i) * 1e9, offset: int64(i), behind: operators.MinEventTime})
	}
	first, err := NewAggregate(Options{
		By: operators.Columns{colTag}, ByTypes: []scalar.Type{scalar.TypeString}, ByNames: []string{"tag"},
		Slots: []Slot{{Func: "count", Type: scalar.TypeInt64}}, Results: operators.Columns{3}, Size: 10 * time.Second, Alloc: alloc,
	})
	if err != nil {
		t.Fatal(err)
	}
	col := func(f string, c int, typ scalar.Type) Slot {
		return Slot{Func: f, Arg: operators.Columns{c}, ArgType: typ, Type: typ.Null()}
	}
	second, err := NewAggregate(Options{
		Slots:   []Slot{col("sum", 3, scalar.TypeInt64), col("first", 0, scalar.TypeString), col("last", 0, scalar.TypeString)},
		Results: operators.Columns{2, 3, 4}, Size: time.Minute, Alloc: alloc,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{types: []scalar.Type{scalar.TypeTime, scalar.TypeTime, scalar.TypeInt64.Null(), scalar.TypeString.Null(), scalar.TypeString.Null()}}
	p := &pipe{to: second, out: s}
	first.Process(makeBatch(alloc, rowTypes, rows), p)
	for _, w := range []int64{30e9, 60e9, operators.MaxEventTime} {
		first.Advance(w, p)
		second.Advance(w, s)
	}
	compareLines(t, "row", s.lines, []string{
		`@59999999999 key=null: "1970-01-01T00:00:00Z" "1970-01-01T00:01:00Z" 60 "a" "c"`,
		`@119999999999 key=null: "1970-01-01T00:01:00Z" "1970-01-01T00:02:00Z" 40 "a" "c"`,
	})
	first.Close()
	second.Close()
}
