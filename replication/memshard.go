package replication

import (
	"context"
	"fmt"
	"sync"

	"github.com/headrace/headrace/log"
)

// A MemShard is a shard without consensus, disk, clock or goroutine: a group of one whose log is memory. It
// packs and answers by the same rules as a Shard, but only when it is told to, so that a test or a simulation
// decides what happens between two steps. The same calls give the same entries and results.
//
//	Propose … Propose, Pack (an entry is appended), Commit (the oldest appended entry is applied)
//
// Step packs and commits everything. With Auto, every Propose does a Step, and Do works.
//
// Lose and Lead take leadership away and give it back. What was appended and not committed is then kept or
// dropped, as the caller says: both happen to a leader that is cut off.
//
// Its methods may be called from any goroutine; machine and callbacks run in the calling one.
type MemShard struct {
	machine StateMachine
	core    *core
	now     func() int64
	auto    bool

	mu struct {
		sync.Mutex
		busy     bool // somebody steps; what is proposed meanwhile is stepped by them
		again    bool
		term     uint64
		index    uint64
		appended []memEntry
		log      []memEntry // committed
	}
}

// A memEntry is one entry of a MemShard's log.
type memEntry struct {
	index, term uint64
	data        []byte
}

// MemOptions of a MemShard.
type MemOptions struct {
	// Now stamps append times, ns. Nil: a counter that rises by a millisecond with every entry.
	Now func() int64
	// Auto steps after every Propose.
	Auto bool
	// MaxInflightBytes and MaxEntryBytes as in ShardOptions.
	MaxInflightBytes int64
	MaxEntryBytes    int
}

// NewMemShard returns a shard that leads in term 1 and has applied what machine has applied.
func NewMemShard(machine StateMachine, o MemOptions) *MemShard {
	def(&o.MaxInflightBytes, 64<<20)
	def(&o.MaxEntryBytes, log.MaxEntryBytes)
	s := &MemShard{machine: machine, core: newCore(o.MaxInflightBytes, o.MaxEntryBytes, 0), now: o.Now, auto: o.Auto}
	if s.now == nil {
		var ns int64
		s.now = func() int64 { ns += 1e6; return ns }
	}
	s.mu.index, s.mu.term = machine.Applied()
	s.Lead()
	return s
}

// Lead makes the shard lead in the next term: it applies an empty entry and then takes units again.
func (s *MemShard) Lead() {
	s.mu.Lock()
	s.mu.term++
	term := s.mu.term
	s.mu.Unlock()
	f := s.core.elected(term, s.now())
	if s.core.launch(f) {
		s.append(f.data)
	}
	for s.Commit() {
	}
}

// Lose takes leadership away: flights become unknown, waiting units a definite no. The last drop appended
// entries that are not committed are forgotten; the others are committed by the next Lead.
func (s *MemShard) Lose(drop int) {
	s.core.lost(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := max(0, len(s.mu.appended)-drop)
	s.mu.index -= uint64(len(s.mu.appended) - n)
	s.mu.appended = s.mu.appended[:n]
}

func (s *MemShard) append(data []byte) {
	s.mu.Lock()
	s.mu.index++
	s.mu.appended = append(s.mu.appended, memEntry{s.mu.index, s.mu.term, data})
	s.mu.Unlock()
	s.core.appended(1)
}

// Pack appends one entry of what waits, and says whether anything did.
func (s *MemShard) Pack() bool {
	f := s.core.pack(s.now)
	if f == nil || !s.core.launch(f) {
		return false
	}
	s.append(f.data)
	return true
}

// Commit applies the oldest entry that was appended and not yet committed, and says whether there was one.
func (s *MemShard) Commit() bool {
	s.mu.Lock()
	if len(s.mu.appended) == 0 {
		s.mu.Unlock()
		return false
	}
	e := s.mu.appended[0]
	s.mu.appended = s.mu.appended[1:]
	s.mu.log = append(s.mu.log, e)
	s.mu.Unlock()
	s.core.applied(e.data, s.machine.Apply(e.index, e.term, e.data))
	return true
}

// Step packs and commits until nothing waits. Called while it runs, by a callback or beside it, it leaves the
// work to the one that runs.
func (s *MemShard) Step() {
	s.mu.Lock()
	s.mu.again = true
	if s.mu.busy {
		s.mu.Unlock()
		return
	}
	s.mu.busy = true
	for s.mu.again {
		s.mu.again = false
		s.mu.Unlock()
		for s.Pack() || s.Commit() {
		}
		s.mu.Lock()
	}
	s.mu.busy = false
	s.mu.Unlock()
}

// Replay applies the committed entries after machine's applied index to machine: a restart.
func (s *MemShard) Replay(machine StateMachine) {
	s.mu.Lock()
	entries := s.mu.log
	s.mu.Unlock()
	applied, _ := machine.Applied()
	for _, e := range entries {
		if e.index > applied {
			machine.Apply(e.index, e.term, e.data)
		}
	}
}

// Propose implements Proposer.
func (s *MemShard) Propose(u *log.Unit, done func(Result)) error {
	_, err := s.core.add(proposal{unit: u, done: done, size: u.Size()})
	if err == nil && s.auto {
		s.Step()
	}
	return err
}

// ProposeWait implements Proposer. Room comes from steps alone, so it makes one instead of waiting.
func (s *MemShard) ProposeWait(ctx context.Context, u *log.Unit, done func(Result)) error {
	err := s.Propose(u, done)
	for err == ErrBusy && ctx.Err() == nil { //nolint:errorlint // core returns it bare
		s.Step()
		err = s.Propose(u, done)
	}
	return err
}

// Do implements Proposer. It steps the shard itself.
func (s *MemShard) Do(ctx context.Context, u *log.Unit) Result {
	ch := make(chan Result, 1)
	if err := s.ProposeWait(ctx, u, func(r Result) { ch <- r }); err != nil {
		return no(err)
	}
	s.Step()
	select {
	case r := <-ch:
		return r
	case <-ctx.Done():
		return unknown(ctx.Err())
	}
}

// Leader implements Proposer.
func (s *MemShard) Leader() (term uint64, ok bool) { return s.core.leader() }

// String names the shard's place in its log.
func (s *MemShard) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("term %d, index %d, %d not committed", s.mu.term, s.mu.index, len(s.mu.appended))
}
