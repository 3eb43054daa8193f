package raftlog

import "sync"

// trailingStep is how many bytes of the log lie between two marks.
const trailingStep = 64 << 10

// A mark says that the entries up to index take bytes of the log since it was opened.
type mark struct {
	index uint64
	bytes int64
}

// A trailing knows about how many of the newest entries hold a number of bytes, which raft cannot say: it
// counts entries. It keeps one mark per step, and thins itself to a bounded number of them.
type trailing struct {
	mu struct {
		sync.Mutex
		marks []mark // rising; the first is where counting began
		last  mark
	}
}

const maxMarks = 1 << 15 // 2 GiB of steps

func (t *trailing) init(last uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.marks = append(t.mu.marks[:0], mark{index: last})
	t.mu.last = mark{index: last}
}

// add counts bytes of the entries up to index.
func (t *trailing) add(index uint64, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.last.index = index
	t.mu.last.bytes += bytes
	if t.mu.last.bytes-t.mu.marks[len(t.mu.marks)-1].bytes < trailingStep {
		return
	}
	if len(t.mu.marks) == maxMarks { // forget the older half
		t.mu.marks = append(t.mu.marks[:0], t.mu.marks[maxMarks/2:]...)
	}
	t.mu.marks = append(t.mu.marks, t.mu.last)
}

// entries returns how many newest entries hold at most about n bytes.
func (t *trailing) entries(n int64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, last := t.mu.marks, t.mu.last
	for i := len(m) - 1; i > 0; i-- {
		if last.bytes-m[i-1].bytes > n {
			return last.index - m[i].index
		}
	}
	return last.index - m[0].index
}
