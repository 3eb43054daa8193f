// Package naive runs a checked module the slow and obvious way: rows and maps, one row after the other,
// everything kept until the input has ended. It shares nothing with the engine but the plan, the single-row
// reference functions and the text forms of values, and is what the engine's output is compared with.
//
// It knows no steps, no batches, no clock and no idle partitions: every source is read to a declared end.
package naive

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// A Record is one record of a source partition; its offset is its place there.
type Record struct {
	Timestamp  int64 // ms
	AppendTime int64 // ns
	Key, Value []byte
}

// A Row is one record of a derived topic.
type Row struct {
	Key, Value []byte
	Time       int64 // event time, ns
	Late       int64 // watermark of its source partition before it, if the row was behind; else Never
}

// Never is a watermark before every row.
const Never = math.MinInt64

// A Lost row left the main stream: "late", or the code of its error. What happened to a group carries partition
// and offset -1 and the key.
type Lost struct {
	Partition int
	Offset    int64
	Key       string // of a group
	Why       string
}

// A Result is what one pipeline makes.
type Result struct {
	Rows [][]Row // by partition
	Lost []Lost  // by (partition, offset, key, why)
}

// Run computes every pipeline of a module, by the name of the topic that it writes. sources are the records
// of each source topic by partition, under the topic's name.
func Run(m *plan.Module, sources map[string][][]Record) (map[string]*Result, error) {
	out := map[string]*Result{}
	left := slices.Clone(m.Pipelines)
	for len(left) > 0 {
		ready := slices.IndexFunc(left, func(p *plan.Pipeline) bool {
			_, source := sources[p.Source.Name]
			return source || out[p.Source.Name] != nil
		})
		if ready < 0 {
			return nil, fmt.Errorf("naive: no input for %s", left[0].Name)
		}
		p := left[ready]
		left = slices.Delete(left, ready, ready+1)
		r, err := run(p, sources[p.Source.Name], out[p.Source.Name])
		if err != nil {
			return nil, fmt.Errorf("naive: %s: %w", p.Name, err)
		}
		out[p.Output.Name] = r
	}
	return out, nil
}

// A row is one row on its way through the stages.
type row struct {
	values     []scalar.Value
	time       int64
	behind     int64 // watermark of its source partition before it
	appendTime int64
	partition  int // -1: made of several rows
	offset     int64
	nth        int // among the rows of one record
	key        []byte
	keyNull    bool
	topic      string
}

// Column and Meta implement expr.Row.
func (r *row) Column(i int) scalar.Value { return r.values[i] }

func (r *row) Meta(m plan.Meta) scalar.Value {
	switch m {
	case plan.MetaTime:
		return scalar.Time(r.time)
	case plan.MetaAppendTime:
		if r.partition >= 0 {
			return scalar.Time(r.appendTime)
		}
	case plan.MetaKey:
		if !r.keyNull {
			return scalar.Bytes(string(r.key))
		}
	case plan.MetaTopic:
		if r.partition >= 0 {
			return scalar.String(r.topic)
		}
	case plan.MetaPartition:
		return scalar.IntOf(scalar.KindInt32, int64(r.partition))
	case plan.MetaOffset:
		if r.partition >= 0 {
			return scalar.Int(r.offset)
		}
	}
	return scalar.Null
}

// before is the order of rows of several partitions.
func (r *row) before(s *row) int {
	return cmp.Or(cmp.Compare(r.time, s.time), cmp.Compare(r.partition, s.partition), cmp.Compare(r.offset, s.offset), cmp.Compare(r.nth, s.nth))
}

// A pipeline is one run of one pipeline.
type pipeline struct {
	plan     *plan.Pipeline
	lost     []Lost
	parts    int // of the source
	programs map[*plan.Expr]*expr.Program
}

func (p *pipeline) lose(r *row, why string) {
	l := Lost{Partition: r.partition, Offset: r.offset, Why: why}
	if r.partition < 0 {
		l.Offset, l.Key = -1, string(r.key)
	}
	p.lost = append(p.lost, l)
}

// eval evaluates an expression over a row.
func (p *pipeline) eval(e *plan.Expr, r expr.Row) (scalar.Value, scalar.Code) {
	prog := p.programs[e]
	if prog == nil {
		var err error
		if prog, err = expr.Compile(e); err != nil {
			panic("naive: " + err.Error()) // the checker has passed it
		}
		p.programs[e] = prog
	}
	return prog.Eval(r)
}

func run(pl *plan.Pipeline, records [][]Record, derived *Result) (*Result, error) {
	p := &pipeline{plan: pl, programs: map[*plan.Expr]*expr.Program{}}
	var rows []*row
	var err error
	if derived != nil {
		rows, err = p.readDerived(derived.Rows)
	} else {
		rows, err = p.read(records)
	}
	if err != nil {
		return nil, err
	}
	shuffled, merged := false, false
	for i := range pl.Stages {
		st := &pl.Stages[i]
		shuffled = shuffled || st.Shuffle
		switch st.Kind {
		case plan.StageFilter:
			rows = p.filter(st, rows)
		case plan.StageProject:
			rows = p.project(st, rows)
		case plan.StageKey:
			rows = p.rekey(st, rows)
		case plan.StageAggregate:
			merged = true
			if rows, err = p.aggregate(st, rows); err != nil {
				return nil, err
			}
		case plan.StageExplode:
			rows = p.explode(st, rows)
		case plan.StageOver:
			merged = true
			rows = p.over(st, rows)
		case plan.StageTop:
			merged = true
			if rows, err = p.top(st, rows); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("no naive form of `%s`", st.Word)
		}
	}
	if shuffled && !merged && p.parts > 1 {
		slices.SortStableFunc(rows, func(a, b *row) int {
			return cmp.Or(cmp.Compare(max(a.time, a.behind), max(b.time, b.behind)), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset), cmp.Compare(a.nth, b.nth))
		})
	}
	return p.write(rows, shuffled)
}

func (p *pipeline) filter(st *plan.Stage, rows []*row) (out []*row) {
	for _, r := range rows {
		v, code := p.eval(st.Filter, r)
		switch {
		case code != 0:
			p.lose(r, code.String())
		case v.Bool():
			out = append(out, r)
		}
	}
	return out
}

func (p *pipeline) project(st *plan.Stage, rows []*row) (out []*row) {
	for _, r := range rows {
		next := *r
		next.values = make([]scalar.Value, len(st.Project))
		bad := scalar.Code(0)
		for i, n := range st.Project {
			v, code := p.eval(n.Expr, r)
			if bad == 0 {
				bad = code
			}
			next.values[i] = v
		}
		if bad != 0 {
			p.lose(r, bad.String())
			continue
		}
		out = append(out, &next)
	}
	return out
}

func (p *pipeline) rekey(st *plan.Stage, rows []*row) (out []*row) {
	for _, r := range rows {
		next := *r
		var code scalar.Code
		if next.key, next.keyNull, code = encodeKey(r.values, st.OutKey, st.Out); code != 0 {
			p.lose(r, code.String())
			continue
		}
		out = append(out, &next)
	}
	return out
}

// write encodes rows for the derived topic.
func (p *pipeline) write(rows []*row, shuffled bool) (*Result, error) {
	t := p.plan.Output
	n := t.Partitions
	if n == 0 {
		n = p.parts
	}
	res := &Result{Rows: make([][]Row, n)}
	for _, r := range rows {
		key, null, code := encodeKey(r.values, t.Key, t.Schema)
		if code == 0 {
			var value []byte
			if value, code = encode(r.values, t); code == 0 {
				at := 0
				keep := !shuffled && n == p.parts
				switch {
				case r.partition >= 0 && (keep || null):
					at = r.partition % n
				case !null:
					at = int(murmur2(key)&0x7fffffff) % n
				}
				row := Row{Value: value, Time: r.time, Late: Never}
				if !null {
					row.Key = key
				}
				if r.partition >= 0 && r.time < r.behind {
					row.Late = r.behind
				}
				res.Rows[at] = append(res.Rows[at], row)
				continue
			}
		}
		p.lose(r, code.String())
	}
	slices.SortFunc(p.lost, func(a, b Lost) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Why, b.Why))
	})
	res.Lost = p.lost
	return res, nil
}

// sortedKeys is the keys of a map, ascending.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
