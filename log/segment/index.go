package segment

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"
)

// An Index finds blocks in one index file. It keeps one mark per block in memory and reads the rest on
// demand, so it follows a file that still grows. Any goroutine may use it.
type Index struct {
	mu struct {
		sync.Mutex
		marks []Mark
		next  int64 // end of what has been read
	}
}

// A Mark is one block of the index: where it begins and what it covers.
type Mark struct {
	First        int64 // first offset
	IndexPos     int64 // byte in the index file
	Pos          int64 // byte in the log file
	MaxTimestamp int64 // ms
	Size         int32 // bytes of the block
}

const scanBytes = 64 << 10

// Marks returns the marks of the blocks in the first size bytes of the index file, reading what is new. The
// result is shared and must not be changed.
//
// The file is read under a lock that only readers of this segment share.
func (x *Index) Marks(f io.ReaderAt, size int64) ([]Mark, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.next < size {
		if err := x.scan(f, size); err != nil {
			return nil, err
		}
	}
	n := sort.Search(len(x.mu.marks), func(i int) bool { return x.mu.marks[i].IndexPos >= size })
	return x.mu.marks[:n:n], nil
}

func (x *Index) scan(f io.ReaderAt, size int64) error {
	buf := make([]byte, min(scanBytes, size-x.mu.next))
	var have []byte
	for at := x.mu.next; at < size; {
		if len(have) < HeadBytes {
			n := min(int64(len(buf)), size-at)
			if got, err := f.ReadAt(buf[:n], at); err != nil && (err != io.EOF || int64(got) < n) {
				return fmt.Errorf("index at byte %d: %w", at, shortIsCorrupt(err))
			}
			have = buf[:n]
		}
		h, err := ParseHead(have)
		if err != nil {
			return fmt.Errorf("index at byte %d: %w", at, err)
		}
		if at+int64(h.Size) > size {
			return fmt.Errorf("index at byte %d: %w: block passes the end", at, ErrCorrupt)
		}
		if k := len(x.mu.marks); k > 0 && (x.mu.marks[k-1].First >= h.First || x.mu.marks[k-1].Pos >= h.Pos) {
			return fmt.Errorf("index at byte %d: %w: blocks out of order", at, ErrCorrupt)
		}
		x.mu.marks = append(x.mu.marks, Mark{First: h.First, IndexPos: at, Pos: h.Pos, MaxTimestamp: h.MaxTimestamp, Size: int32(h.Size)})
		at += int64(h.Size)
		x.mu.next = at
		have = have[min(h.Size, len(have)):]
	}
	return nil
}

func shortIsCorrupt(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: file ends early", ErrCorrupt)
	}
	return err
}

// Find returns the number of the last mark whose First is at most offset, or -1.
func Find(marks []Mark, offset int64) int {
	return sort.Search(len(marks), func(i int) bool { return marks[i].First > offset }) - 1
}

// ReadBlocks reads and checks the blocks of adjacent marks and appends their batches to refs. prev is the
// link before the first batch. Without marks there is nothing to read.
func ReadBlocks(f io.ReaderAt, marks []Mark, refs []Ref) (out []Ref, prev uint32, err error) {
	out, _, prev, err = ReadBlocksInto(f, marks, refs, nil)
	return out, prev, err
}

// ReadBlocksInto is ReadBlocks with memory for the blocks, which it returns, grown, to be used again.
func ReadBlocksInto(f io.ReaderAt, marks []Mark, refs []Ref, mem []byte) (out []Ref, grown []byte, prev uint32, err error) {
	if len(marks) == 0 {
		return refs, mem, 0, nil
	}
	first, last := marks[0], marks[len(marks)-1]
	n := int(last.IndexPos + int64(last.Size) - first.IndexPos)
	mem = slices.Grow(mem[:0], n)
	b := mem[:n]
	if got, err := f.ReadAt(b, first.IndexPos); err != nil && got < n {
		return refs, mem, 0, fmt.Errorf("index at byte %d: %w", first.IndexPos, shortIsCorrupt(err))
	}
	for i, m := range marks {
		var h Head
		at := len(refs)
		h, refs, err = DecodeBlock(b, refs)
		switch {
		case err != nil:
			return refs, mem, 0, fmt.Errorf("index at byte %d: %w", m.IndexPos, err)
		case h.First != m.First || h.Pos != m.Pos || h.Size != int(m.Size):
			return refs, mem, 0, fmt.Errorf("index at byte %d: %w: block has changed", m.IndexPos, ErrCorrupt)
		case i == 0:
			prev = h.Prev
		case h.First != refs[at-1].Last+1 || h.Prev != refs[at-1].Link:
			return refs, mem, 0, fmt.Errorf("index at byte %d: %w: block does not continue the chain", m.IndexPos, ErrCorrupt)
		}
		b = b[h.Size:]
	}
	return refs, mem, prev, nil
}
