package log

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/log/record"
)

// model is the store as one would write it without files, speed or concurrency. It was written from the
// documents and shares no decision with the store.
type model struct {
	now     int64
	parts   map[PartitionID]*modelPart
	dropped map[PartitionID]int64
	tasks   map[TaskID]*modelTask
	groups  map[string]map[PartitionID]GroupOffset
	active  map[string]int64 // append time of a group's last commit
}

type modelPart struct {
	start, end int64
	meta       uint64
	settings   PartitionSettings
	batches    []Batch
	producers  map[int64]*modelProducer
}

type modelProducer struct {
	epoch int16
	seen  int64
	last  []sequenceRange
}

type modelTask struct {
	epoch, step uint64
	cut         map[PartitionID]int64
	progress    Progress
	rows        map[string]string
}

func newModel() *model {
	return &model{parts: map[PartitionID]*modelPart{}, dropped: map[PartitionID]int64{}, tasks: map[TaskID]*modelTask{}, groups: map[string]map[PartitionID]GroupOffset{}, active: map[string]int64{}}
}

// modelResult is what matters of a Result.
type modelResult struct {
	err     error // sentinel
	offsets []int64
	dup     bool
}

func (m *model) apply(index, term uint64, e Entry) (out []modelResult) {
	m.now = max(m.now, e.AppendTime)
	for i, u := range e.Units() {
		var ops []Op
		for op := range u.Ops() {
			ops = append(ops, op)
		}
		out = append(out, m.unit(index, term, int32(i), ops))
	}
	return out
}

// remembers reports that a partition was dropped not too long ago.
func (m *model) remembers(id PartitionID) bool {
	at, ok := m.dropped[id]
	return ok && m.now-at < int64(dropMemory)
}

func (m *model) unit(index, term uint64, unit int32, ops []Op) (r modelResult) {
	if r.err = m.check(ops); r.err != nil {
		return r
	}
	appends, dups := 0, 0
	for _, op := range ops {
		switch op.Kind {
		case OpAppend:
			id, data := op.Append()
			p := m.parts[id]
			h, _ := record.ParseHeader(data)
			appends++
			if x := p.producers[h.ProducerID]; h.ProducerID >= 0 && x != nil {
				if d := x.duplicate(h); d != nil && x.epoch == h.ProducerEpoch && m.now-x.seen <= int64(ProducerExpiry) && !r.inUnit(p, h) {
					r.offsets = append(r.offsets, d.base)
					dups++
					continue
				}
			}
			last := p.end + int64(h.LastOffsetDelta)
			p.batches = append(p.batches, Batch{
				Base: p.end, Last: last, Epoch: int32(term), Unit: unit, Index: index, AppendTime: m.now,
				MaxTimestamp: h.MaxTimestamp, Data: Batch{Base: p.end, Epoch: int32(term), Data: data}.AppendTo(nil),
			})
			if h.ProducerID >= 0 {
				x := p.producers[h.ProducerID]
				if x == nil || x.epoch != h.ProducerEpoch || m.now-x.seen > int64(ProducerExpiry) {
					x = &modelProducer{epoch: h.ProducerEpoch}
					p.producers[h.ProducerID] = x
				}
				x.seen = m.now
				x.last = append(x.last, sequenceRange{h.BaseSequence, addSequence(h.BaseSequence, h.LastOffsetDelta), p.end, last})
				if len(x.last) > 5 {
					x.last = x.last[1:]
				}
			}
			r.offsets = append(r.offsets, p.end)
			p.end = last + 1
		case OpOffsets:
			g, offsets := op.Offsets()
			m.active[g] = m.now
			if m.groups[g] == nil {
				m.groups[g] = map[PartitionID]GroupOffset{}
			}
			for _, o := range offsets {
				if m.remembers(o.Partition) {
					continue
				}
				m.groups[g][o.Partition] = o
				if o.Offset < 0 {
					delete(m.groups[g], o.Partition)
				}
			}
		case OpGroupDrop:
			delete(m.groups, op.Group())
			delete(m.active, op.Group())
		case OpGroupExpire:
			if g, idle := op.GroupExpire(); m.active[g] != 0 && m.now-m.active[g] > idle {
				delete(m.groups, g)
				delete(m.active, g)
			}
		case OpProgress:
			pr := op.Progress()
			t := m.tasks[pr.Task]
			t.step, t.progress, t.cut = pr.Step, pr, map[PartitionID]int64{}
			for _, c := range pr.To {
				t.cut[c.Partition] = c.Offset
			}
		case OpState:
			id, k, v := op.State()
			if v == nil {
				delete(m.tasks[id].rows, string(k))
			} else {
				m.tasks[id].rows[string(k)] = string(v)
			}
		case OpTaskOpen:
			if m.tasks[op.Task()] == nil {
				m.tasks[op.Task()] = &modelTask{rows: map[string]string{}}
			}
			m.tasks[op.Task()].epoch = index
		case OpTaskDrop:
			delete(m.tasks, op.Task())
		case OpPartitionOpen, OpPartitionSettings:
			id, set, meta := op.Partition()
			p := m.parts[id]
			if p == nil {
				if m.remembers(id) {
					continue
				}
				delete(m.dropped, id)
				m.parts[id] = &modelPart{meta: meta, settings: set, producers: map[int64]*modelProducer{}}
			} else if meta > p.meta {
				p.meta, p.settings = meta, set
			}
		case OpPartitionDrop:
			id, _, meta := op.Partition()
			if p := m.parts[id]; p != nil && meta < p.meta {
				continue
			}
			delete(m.parts, id)
			m.dropped[id] = m.now
			for _, offsets := range m.groups {
				delete(offsets, id)
			}
		case OpLogStart:
			id, offset := op.LogStart()
			m.parts[id].start = max(m.parts[id].start, offset)
		}
	}
	r.dup = appends > 0 && dups == appends
	return r
}

// inUnit is false: generated units hold at most one batch of a producer and partition.
func (r *modelResult) inUnit(*modelPart, record.Header) bool { return false }

func (x *modelProducer) duplicate(h record.Header) *sequenceRange {
	for i := range x.last {
		if x.last[i].first == h.BaseSequence && x.last[i].last == addSequence(h.BaseSequence, h.LastOffsetDelta) {
			return &x.last[i]
		}
	}
	return nil
}

func (m *model) check(ops []Op) error {
	var steps, drops, others int
	var stepped TaskID
	for _, op := range ops {
		if op.Kind == OpProgress {
			stepped = op.Task()
		}
	}
	for _, op := range ops {
		if err := m.checkOp(op, stepped); err != nil {
			return err
		}
		switch op.Kind {
		case OpProgress:
			steps++
			others++
		case OpTaskDrop, OpPartitionDrop:
			drops++
		case OpAppend, OpState, OpLogStart, OpPartitionSettings:
			others++
		}
	}
	if steps > 1 || drops > 0 && others > 0 {
		return ErrBadUnit
	}
	return nil
}

func (m *model) checkOp(op Op, stepped TaskID) error {
	switch op.Kind {
	case OpAppend:
		id, data := op.Append()
		p := m.parts[id]
		if p == nil {
			return ErrUnknownPartition
		}
		if p.settings.MaxBatchBytes > 0 && len(data) > int(p.settings.MaxBatchBytes) {
			return ErrTooLarge
		}
		h, _ := record.ParseHeader(data)
		if h.ProducerID < 0 {
			return nil
		}
		x := p.producers[h.ProducerID]
		switch {
		case x == nil || m.now-x.seen > int64(ProducerExpiry):
			if h.BaseSequence != 0 {
				return ErrUnknownProducer
			}
		case h.ProducerEpoch < x.epoch:
			return ErrProducerFenced
		case h.ProducerEpoch > x.epoch:
			if h.BaseSequence != 0 {
				return ErrSequence
			}
		case x.duplicate(h) == nil && h.BaseSequence != addSequence(x.last[len(x.last)-1].last, 1):
			return ErrSequence
		}
	case OpProgress:
		pr := op.Progress()
		t := m.tasks[pr.Task]
		if t == nil {
			return ErrUnknownTask
		}
		if pr.Epoch != t.epoch || pr.Step != t.step+1 {
			return ErrFenced
		}
		from := map[PartitionID]int64{}
		for _, c := range pr.From {
			from[c.Partition] = c.Offset
		}
		for id, o := range t.cut {
			if f, ok := from[id]; !ok || f != o {
				return ErrFenced
			}
		}
		for _, c := range pr.To {
			if c.Offset < from[c.Partition] {
				return ErrBadUnit
			}
			if p := m.parts[c.Partition]; p != nil && c.Offset > p.end {
				return ErrOffsetRange
			}
		}
	case OpState:
		if op.Task() != stepped {
			return ErrFenced
		}
	case OpPartitionSettings:
		if id, _, _ := op.Partition(); m.parts[id] == nil {
			return ErrUnknownPartition
		}
	case OpLogStart:
		id, offset := op.LogStart()
		if m.parts[id] == nil {
			return ErrUnknownPartition
		}
		if offset > m.parts[id].end {
			return ErrOffsetRange
		}
	case OpCommand:
		return ErrBadUnit
	}
	return nil
}

// compare holds results of Apply against the model's.
func compareResults(got []Result, want []modelResult) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d results, model %d", len(got), len(want))
	}
	for i := range got {
		g, w := &got[i], &want[i]
		var reject *RejectError
		switch {
		case (g.Err == nil) != (w.err == nil) || (w.err != nil && !errors.Is(g.Err, w.err)):
			return fmt.Errorf("unit %d: %v, model %v", i, g.Err, w.err)
		case g.Err != nil && !errors.As(g.Err, &reject):
			return fmt.Errorf("unit %d: %T", i, g.Err)
		case g.Err == nil && (!slices.Equal(g.Offsets, w.offsets) || g.Duplicate != w.dup):
			return fmt.Errorf("unit %d: %v dup=%v, model %v dup=%v", i, g.Offsets, g.Duplicate, w.offsets, w.dup)
		}
	}
	return nil
}

// compare holds everything that can be seen of a store, and its producers, against the model.
func (m *model) compare(s *Store) error {
	ids := slices.SortedFunc(maps.Keys(m.parts), PartitionID.Compare)
	if got := s.Partitions(); !slices.Equal(got, ids) {
		return fmt.Errorf("partitions %v, model %v", got, ids)
	}
	for _, id := range ids {
		p, _ := s.Partition(id)
		if err := m.parts[id].compare(p); err != nil {
			return fmt.Errorf("partition %s: %w", id, err)
		}
	}
	for id, t := range m.tasks {
		got, ok := s.Task(id)
		if !ok || got.Epoch != t.epoch || got.Step != t.step || describeProgress(got.Progress) != describeProgress(t.progress) {
			return fmt.Errorf("task %s: %+v, model %+v", id, got, t)
		}
		rows := map[string]string{}
		if err := s.TaskRows(id, func(k, v []byte) error {
			rows[string(k)] = string(v)
			return nil
		}); err != nil {
			return err
		}
		if !maps.Equal(rows, t.rows) {
			return fmt.Errorf("task %s: rows %v, model %v", id, rows, t.rows)
		}
	}
	if n := len(s.Tasks()); n != len(m.tasks) {
		return fmt.Errorf("%d tasks, model %d", n, len(m.tasks))
	}
	var names []string
	for g, offsets := range m.groups {
		got, err := s.GroupOffsets(g)
		if err != nil {
			return err
		}
		want := slices.SortedFunc(maps.Values(offsets), func(a, b GroupOffset) int { return a.Partition.Compare(b.Partition) })
		if !slices.Equal(got, want) {
			return fmt.Errorf("group %s: %v, model %v", g, got, want)
		}
		if len(offsets) > 0 {
			names = append(names, g)
		}
	}
	slices.Sort(names)
	for _, g := range []string{"a", "b", "c"} {
		if at, ok := s.GroupActive(g); at != m.active[g] || ok != (m.active[g] != 0) {
			return fmt.Errorf("group %s was active at %d %v, model %d", g, at, ok, m.active[g])
		}
	}
	all, twice := map[string]map[PartitionID]GroupOffset{}, false
	if err := s.EachGroupOffset(func(g string, o GroupOffset) {
		if all[g] == nil {
			all[g] = map[PartitionID]GroupOffset{}
		}
		_, again := all[g][o.Partition]
		twice = twice || again
		all[g][o.Partition] = o
	}); err != nil {
		return err
	}
	for g, offsets := range m.groups {
		if len(offsets) > 0 && !maps.Equal(all[g], offsets) || len(all) != len(names) || twice {
			return fmt.Errorf("offsets of group %s: %v, model %v", g, all[g], offsets)
		}
	}
	if got, err := s.Groups(); err != nil || !slices.Equal(got, names) {
		return fmt.Errorf("groups %v %v, model %v", got, err, names)
	}
	return nil
}

func describeProgress(p Progress) string {
	p.Task = TaskID{}
	if len(p.Extra) == 0 {
		p.Extra = nil
	}
	return fmt.Sprintf("%+v", p)
}

func (mp *modelPart) compare(p *Partition) error {
	if p.LogStart() != mp.start || p.LogEnd() != mp.end || p.Settings() != mp.settings || p.metaIndex != mp.meta {
		return fmt.Errorf("[%d, %d) %+v meta %d, model [%d, %d) %+v meta %d", p.LogStart(), p.LogEnd(), p.Settings(), p.metaIndex, mp.start, mp.end, mp.settings, mp.meta)
	}
	for id, x := range mp.producers {
		if p.st.now-x.seen > int64(ProducerExpiry) {
			continue // may be forgotten
		}
		got := p.producers[id]
		if got == nil || got.epoch != x.epoch || got.seen != x.seen || !slices.Equal(got.batches[:got.n], x.last) {
			return fmt.Errorf("producer %d: %+v, model %+v", id, got, x)
		}
	}
	for id := range p.producers {
		if mp.producers[id] == nil {
			return fmt.Errorf("producer %d of nowhere", id)
		}
	}
	i := slices.IndexFunc(mp.batches, func(b Batch) bool { return b.Last >= mp.start })
	at := mp.start
	for at < mp.end {
		got, err := p.Read(at, 2000, nil)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			return fmt.Errorf("nothing at %d of [%d, %d)", at, mp.start, mp.end)
		}
		for _, b := range got {
			w := &mp.batches[i]
			i++
			if b.Base != w.Base || b.Last != w.Last || b.Epoch != w.Epoch || b.Unit != w.Unit || b.Index != w.Index || b.AppendTime != w.AppendTime || b.MaxTimestamp != w.MaxTimestamp {
				b.Data, w.Data = nil, nil
				return fmt.Errorf("batch %+v, model %+v", b, *w)
			}
			if !bytes.Equal(b.AppendTo(nil), w.Data) {
				return fmt.Errorf("batch at %d has other bytes", b.Base)
			}
			at = b.Last + 1
		}
	}
	if _, err := p.Read(mp.end+1, 1, nil); !errors.Is(err, ErrOffsetRange) {
		return fmt.Errorf("read past the end: %v", err)
	}
	if mp.start > 0 {
		if _, err := p.Read(mp.start-1, 1, nil); !errors.Is(err, ErrOffsetRange) {
			return fmt.Errorf("read before the start: %v", err)
		}
	}
	return mp.compareTime(p)
}

// compareTime asks for three times.
func (mp *modelPart) compareTime(p *Partition) error {
	for _, ms := range []int64{0, 1050, 1e6} {
		if err := mp.compareTimeAt(p, ms); err != nil {
			return err
		}
	}
	return nil
}

// compareTimeAt asks for the first record at or after a time.
func (mp *modelPart) compareTimeAt(p *Partition, ms int64) error {
	wantOffset, wantTime, wantOK := int64(0), int64(0), false
search:
	for i := range mp.batches {
		var r record.Reader
		if err := r.Reset(mp.batches[i].Data); err != nil {
			return err
		}
		for r.Next() {
			if rec := r.Record(); rec.Offset >= mp.start && rec.Timestamp >= ms {
				wantOffset, wantTime, wantOK = rec.Offset, rec.Timestamp, true
				break search
			}
		}
	}
	o, ts, ok, err := p.OffsetForTime(ms)
	if err != nil || o != wantOffset || ts != wantTime || ok != wantOK {
		return fmt.Errorf("offset for time %d: %d %d %v %v, model %d %d %v", ms, o, ts, ok, err, wantOffset, wantTime, wantOK)
	}
	return nil
}

// generator makes random entries, most of which make sense.
type generator struct {
	r     *rand.Rand
	m     *model
	meta  uint64
	time  int64
	ids   []PartitionID
	tasks []TaskID
}

func newGenerator(r *rand.Rand, m *model) *generator {
	g := &generator{r: r, m: m, time: 1e15}
	for i := range 7 {
		g.ids = append(g.ids, PartitionID{TopicID{byte(1 + i/3)}, int32(i % 3)})
	}
	g.tasks = []TaskID{{1}, {2}}
	return g
}

func (g *generator) id() PartitionID {
	// The first ones get most: they become thick, the others stay thin.
	return g.ids[min(g.r.IntN(len(g.ids)), g.r.IntN(len(g.ids)))]
}

func (g *generator) batch(id PartitionID) []byte {
	b := record.NewBuilder()
	n := 1 + g.r.IntN(4)
	if p := g.m.parts[id]; p != nil && g.r.IntN(2) == 0 {
		pid, epoch, seq := g.r.Int64N(3), int16(0), int32(0)
		if x := p.producers[pid]; x != nil {
			epoch = x.epoch
			switch last := x.last[len(x.last)-1]; g.r.IntN(8) {
			case 0, 1: // again
				old := x.last[g.r.IntN(len(x.last))]
				seq, n = old.first, int(old.last-old.first)+1
			case 2:
				epoch++
			case 3:
				epoch--
			case 4:
				seq = last.last + 2
			default:
				seq = last.last + 1
			}
		}
		b.SetProducer(pid, max(epoch, 0), seq)
	}
	for range n {
		v := make([]byte, g.r.IntN(300))
		for i := range v {
			v[i] = byte(g.r.Uint32())
		}
		b.Append(1000+g.r.Int64N(100), []byte("k"), v, nil)
	}
	return b.Finish()
}

func (g *generator) unit() *Unit {
	u := new(Unit)
	set := PartitionSettings{RetentionMs: g.r.Int64N(1000), RetentionBytes: -1, MaxBatchBytes: 5000, Compact: g.r.IntN(2) == 0}
	switch g.r.IntN(20) {
	case 0, 1:
		for range 1 + g.r.IntN(3) {
			g.meta++
			u.PartitionOpen(g.id(), set, g.meta)
		}
	case 2:
		u.PartitionSettings(g.id(), set, g.meta+g.r.Uint64N(2))
	case 3:
		if g.r.IntN(3) == 0 {
			g.meta++
			u.PartitionDrop(g.ids[g.r.IntN(len(g.ids))], g.meta)
			if g.r.IntN(2) == 0 {
				g.ids[len(g.ids)-1] = PartitionID{TopicID{byte(g.meta), 1}, 0}
			}
		}
	case 4:
		id := g.id()
		if p := g.m.parts[id]; p != nil {
			u.LogStart(id, p.start+g.r.Int64N(p.end-p.start+2))
		} else {
			u.LogStart(id, 3)
		}
	case 5, 6, 7:
		group := string(rune('a' + g.r.IntN(3)))
		switch g.r.IntN(8) {
		case 0:
			u.GroupDrop(group)
			return u
		case 1:
			u.GroupExpire(group, time.Duration(g.r.Int64N(5e9)))
			return u
		case 2:
			u.Offsets(group, nil)
			return u
		}
		u.Offsets(group, []GroupOffset{
			{Partition: g.id(), Offset: g.r.Int64N(20) - 2, Metadata: "m", CommittedAt: g.time},
			{Partition: g.id(), Offset: g.r.Int64N(20), LeaderEpoch: 1},
		})
	case 8:
		task := g.tasks[g.r.IntN(2)]
		if g.r.IntN(5) == 0 {
			u.TaskDrop(task)
		} else {
			u.TaskOpen(task)
		}
	case 9, 10, 11, 12:
		g.step(u)
	default:
		seen := map[PartitionID]bool{}
		for range 1 + g.r.IntN(2)*g.r.IntN(3) {
			if id := g.id(); !seen[id] {
				seen[id] = true
				u.Append(id, g.batch(id))
			}
		}
	}
	if g.r.IntN(60) == 0 {
		u.Command([]byte("x"))
	}
	return u
}

func (g *generator) step(u *Unit) {
	task := g.tasks[g.r.IntN(2)]
	p := Progress{Task: task, Epoch: 1, Step: 1, W: g.r.Int64(), Extra: []byte("extra")}
	if t := g.m.tasks[task]; t != nil {
		p.Epoch, p.Step = t.epoch, t.step+1
		p.From = slices.Clone(t.progress.To)
		if len(p.From) == 0 {
			p.From = []Cut{{g.ids[0], 0}}
		}
	}
	for _, c := range p.From {
		if part := g.m.parts[c.Partition]; part != nil && part.end > c.Offset {
			c.Offset += g.r.Int64N(part.end - c.Offset + 1)
		}
		p.To = append(p.To, c)
		p.Watermarks = append(p.Watermarks, c.Offset)
	}
	switch g.r.IntN(12) {
	case 0:
		p.Epoch++
	case 1:
		p.Step--
	case 2:
		if len(p.From) > 0 {
			p.From[0].Offset++
		}
	}
	u.Progress(p)
	for range g.r.IntN(5) {
		key := []byte{byte('a' + g.r.IntN(10))}
		if g.r.IntN(4) == 0 {
			u.State(task, key, nil)
		} else {
			u.State(task, key, []byte(strings.Repeat("v", g.r.IntN(50))))
		}
	}
	if id := g.id(); g.m.parts[id] != nil {
		b := record.NewBuilder()
		b.Append(1000+g.r.Int64N(100), nil, []byte("out"), nil)
		u.Append(id, b.Finish())
	}
}

func (g *generator) entry() []byte {
	g.time += g.r.Int64N(1e9)
	if g.r.IntN(300) == 0 {
		g.time += int64(ProducerExpiry)
	}
	var units []*Unit
	for range 1 + g.r.IntN(4) {
		units = append(units, g.unit())
	}
	return EncodeEntry(nil, g.time-g.r.Int64N(2)*1e6, units)
}

func TestApplyAgreesWithAModel(t *testing.T) {
	rejected, dups := 0, 0
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newModel()
		s := openTest(t, Options{Dir: "store", CacheBytes: 1 << 20})
		g := newGenerator(r, m)
		for index := uint64(1); index <= 400; index++ {
			data := g.entry()
			e, err := DecodeEntry(data)
			if err != nil {
				t.Fatal(err)
			}
			want := m.apply(index, 2, e)
			if err := compareResults(s.Apply(index, 2, data), want); err != nil {
				t.Fatalf("seed %d entry %d: %v", seed, index, err)
			}
			for _, w := range want {
				if w.err != nil {
					rejected++
				}
				if w.dup {
					dups++
				}
			}
			if r.IntN(20) == 0 {
				if _, err := s.Step(); err != nil {
					t.Fatal(err)
				}
			}
			if r.IntN(50) == 0 {
				if _, err := s.Checkpoint(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if r.IntN(25) == 0 {
				if err := m.compare(s); err != nil {
					t.Fatalf("seed %d after entry %d: %v", seed, index, err)
				}
			}
		}
		if err := m.compare(s); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	if rejected < 100 || dups < 10 {
		t.Errorf("%d rejected units, %d duplicates: the test has lost its teeth", rejected, dups)
	}
}
