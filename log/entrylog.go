package log

import (
	"github.com/headrace/headrace/log/wal"
)

// FromWAL is the EntryLog of a write-ahead log whose entries' Data are the bytes that Apply gets.
func FromWAL(w *wal.WAL) EntryLog { return walLog{w} }

type walLog struct{ w *wal.WAL }

func (l walLog) ReadEntry(index uint64) (term uint64, data []byte, err error) {
	e, err := l.w.Read(index)
	return e.Term, e.Data, err
}

func (l walLog) SyncTo(index uint64) error { return l.w.SyncTo(index) }

func (l walLog) Bounds() (first, last uint64) { return l.w.FirstIndex(), l.w.LastIndex() }
