package replication

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/headrace/headrace/replication/raftlog"
)

var errRestore = errors.New("replication: a checkpoint is switched to at start, not restored while running")

// An fsm is raft's view of the state machine. Raft calls it from its apply goroutine.
type fsm struct{ s *Shard }

var _ raft.BatchingFSM = (*fsm)(nil)

// ApplyBatch gets commands and configurations and answers each with one value, which nobody looks at: raft
// panics when the numbers differ.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	if f.s.solo.Load() {
		commands := 0
		for _, l := range logs {
			if l.Type == raft.LogCommand {
				commands++
			}
		}
		if f.s.core.appended(commands) {
			f.s.wake()
		}
	}
	for _, l := range logs {
		if l.Type == raft.LogConfiguration {
			f.s.reconfigured(raft.DecodeConfiguration(l.Data))
		}
		f.Apply(l)
	}
	return make([]any, len(logs))
}

// Apply applies one entry and answers those who proposed it.
func (f *fsm) Apply(l *raft.Log) any {
	if l.Type != raft.LogCommand {
		return nil
	}
	s := f.s
	results := s.machine.Apply(l.Index, l.Term, l.Data)
	if s.core.applied(l.Data, results) {
		s.o.Logger.Info("leading", "term", l.Term)
		s.announce(l.Term, true)
	}
	return nil
}

// Snapshot captures what a checkpoint will at least hold.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	index, _ := f.s.machine.Applied()
	return &fsmSnapshot{s: f.s, index: index}, nil
}

// Restore is never reached: raft does not restore at start, and the transport takes no streamed snapshot.
func (f *fsm) Restore(source io.ReadCloser) error {
	return errors.Join(errRestore, source.Close())
}

type fsmSnapshot struct {
	s     *Shard
	index uint64 // applied when captured
}

// Persist takes the machine's checkpoint. It runs beside Apply, so the checkpoint may hold more than index.
func (p *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	info, err := p.s.machine.Checkpoint(p.s.ctx)
	if err != nil {
		return err
	}
	if info.Index < p.index {
		return fmt.Errorf("checkpoint at %d, captured at %d", info.Index, p.index)
	}
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if _, err := sink.Write(b); err != nil {
		return err
	}
	if k, ok := sink.(*raftlog.Sink); ok {
		k.Local(info.Index)
	}
	return nil
}

func (p *fsmSnapshot) Release() {}
