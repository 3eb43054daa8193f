package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/wal"
)

var errRefused = errors.New("refused")

// A ledger is a small state machine: it keeps the text of every command, and refuses those that begin with
// "no". Its checkpoint is one file.
type ledger struct {
	fs      fsx.FS
	dir     string
	onApply func(index uint64)
	backlog atomic.Int64

	mu    sync.Mutex
	index uint64
	term  uint64
	lines []string
}

type ledgerFile struct {
	Index, Term uint64
	Lines       []string
}

func openLedger(fs fsx.FS, dir string) (*ledger, error) {
	l := &ledger{fs: fs, dir: dir}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := fs.Open(fs.PathJoin(dir, "ledger"))
	if err != nil {
		return l, nil //nolint:nilerr // none yet
	}
	defer file.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	var f ledgerFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, err
	}
	l.index, l.term, l.lines = f.Index, f.Term, f.Lines
	return l, nil
}

func (l *ledger) Apply(index, term uint64, entry []byte) []log.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index <= l.index {
		return nil
	}
	if l.onApply != nil {
		l.onApply(index)
	}
	e, err := log.DecodeEntry(entry)
	if err != nil {
		panic(err)
	}
	l.index, l.term = index, term
	results := make([]log.Result, 0, e.Count)
	for _, u := range e.Units() {
		r := log.Result{Index: index, AppendTime: e.AppendTime}
		for op := range u.Ops() {
			text := string(op.Body)
			if len(text) >= 2 && text[:2] == "no" {
				r.Err = &log.RejectError{Reason: errRefused}
				continue
			}
			l.lines = append(l.lines, text)
		}
		results = append(results, r)
	}
	return results
}

func (l *ledger) Applied() (uint64, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index, l.term
}

func (l *ledger) Checkpoint(context.Context) (log.CheckpointInfo, error) {
	l.mu.Lock()
	f := ledgerFile{l.index, l.term, append([]string(nil), l.lines...)}
	l.mu.Unlock()
	b, err := json.Marshal(f)
	if err != nil {
		return log.CheckpointInfo{}, err
	}
	if err := l.fs.SyncDir(l.fs.PathDir(l.dir)); err != nil {
		return log.CheckpointInfo{}, err
	}
	return log.CheckpointInfo{Index: f.Index, Term: f.Term}, replaceFile(l.fs, l.dir, "ledger", b)
}

func (l *ledger) Backlog() int64 { return l.backlog.Load() }
func (l *ledger) Close() error   { return nil }

func (l *ledger) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.lines...)
}

// nothing applies everything and keeps nothing: the replication's own cost.
type nothing struct{ index, term atomic.Uint64 }

func (n *nothing) Apply(index, term uint64, entry []byte) []log.Result {
	e, err := log.DecodeEntry(entry)
	if err != nil {
		panic(err)
	}
	n.index.Store(index)
	n.term.Store(term)
	return make([]log.Result, e.Count)
}
func (n *nothing) Applied() (uint64, uint64) { return n.index.Load(), n.term.Load() }
func (n *nothing) Checkpoint(context.Context) (log.CheckpointInfo, error) {
	i, t := n.Applied()
	return log.CheckpointInfo{Index: i, Term: t}, nil
}
func (n *nothing) Backlog() int64 { return 0 }
func (n *nothing) Close() error   { return nil }

func ledgerShard(fs fsx.FS, dir string, l **ledger) ShardOptions {
	return ShardOptions{
		Name: "test", Dir: dir, FS: fs, ID: "disk", NodeID: 1, Bootstrap: true, Logger: quiet,
		WALSegmentBytes: 256 << 10, CheckpointBytes: -1, CheckpointEvery: -1, TrailingBytes: 1,
		Machine: func(*wal.WAL) (StateMachine, error) {
			m, err := openLedger(fs, fs.PathJoin(dir, "machine"))
			if l != nil {
				*l = m
			}
			return m, err
		},
	}
}

func line(format string, args ...any) *log.Unit {
	u := new(log.Unit)
	u.Command([]byte(fmt.Sprintf(format, args...)))
	return u
}
