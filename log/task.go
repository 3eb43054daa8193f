package log

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// A TaskState is where a task stands.
type TaskState struct {
	Epoch    uint64   // raft index of its last OpTaskOpen
	Step     uint64   // its last step, 0 before the first
	Progress Progress // of the last step; zero before the first
}

// stateOp is one change of state rows, in the order of Apply.
type stateOp struct {
	task       TaskID
	key, value []byte // in the entry
	kind       stateOpKind
}

type stateOpKind uint8

const (
	stateSet stateOpKind = iota
	stateDelete
	stateDrop // every row of the task
)

func stateKind(value []byte) stateOpKind {
	if value == nil {
		return stateDelete
	}
	return stateSet
}

func (s *Store) setTask(id TaskID, t TaskState) {
	s.tasks.Lock()
	s.tasks.m[id] = &t
	s.tasks.Unlock()
	s.pending.tasks[id] = struct{}{}
}

func (s *Store) dropTask(id TaskID) {
	if s.tasks.m[id] == nil {
		return
	}
	s.tasks.Lock()
	delete(s.tasks.m, id)
	s.tasks.Unlock()
	s.pending.tasks[id] = struct{}{}
	s.pending.state = append(s.pending.state, stateOp{task: id, kind: stateDrop})
}

// Task returns where a task stands; its slices must not be changed.
func (s *Store) Task(id TaskID) (TaskState, bool) {
	s.tasks.RLock()
	defer s.tasks.RUnlock()
	if t := s.tasks.m[id]; t != nil {
		return *t, true
	}
	return TaskState{}, false
}

// Tasks returns the names of all tasks in no order.
func (s *Store) Tasks() []TaskID {
	s.tasks.RLock()
	defer s.tasks.RUnlock()
	ids := make([]TaskID, 0, len(s.tasks.m))
	for id := range s.tasks.m {
		ids = append(ids, id)
	}
	return ids
}

// TaskRows calls f for every state row of a task in the order of keys. The rows are those after some entry
// at or after the last one applied before the call: it writes what waits first. key and value are valid during
// the call of f. It returns the first error of f.
func (s *Store) TaskRows(id TaskID, f func(key, value []byte) error) error {
	return s.use(func() error { return s.taskRows(id, f) })
}

func (s *Store) taskRows(id TaskID, f func(key, value []byte) error) error {
	if err := s.lockWriter(context.Background()); err != nil {
		return err
	}
	err := s.catchUp()
	var snap *pebble.Snapshot
	if err == nil {
		snap = s.db.NewSnapshot()
	}
	s.unlockWriter()
	if err != nil {
		return fmt.Errorf("task %s: %w", id, err)
	}
	defer snap.Close()
	prefix := stateKey(id, nil)
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyEnd(prefix)})
	if err != nil {
		return s.kvError(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		if err := f(it.Key()[len(prefix):], it.Value()); err != nil {
			_ = it.Close()
			return err
		}
	}
	return s.kvError(it.Close())
}
