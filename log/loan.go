package log

import (
	"math/bits"
	"sync"
)

// A Loan is the memory under batches that a Cursor has read from files. It is the cursor's user who knows when the
// last byte has left for the socket, and gives it back then. The zero value is empty. One goroutine at a time uses it.
type Loan struct {
	bufs []*[]byte
	n    int
}

// Bytes is how much memory is lent.
func (l *Loan) Bytes() int { return l.n }

// Return gives the memory back: the batches that were read with this loan from files must not be used any more.
func (l *Loan) Return() {
	for i, b := range l.bufs {
		loanPools[class(cap(*b))].Put(b)
		l.bufs[i] = nil
	}
	l.bufs, l.n = l.bufs[:0], 0
}

// Lent buffers are of 64 KiB to 8 MiB, in powers of two; a longer read gets memory of its own.
const (
	minLoanBits, maxLoanBits = 16, 23
	loanClasses              = maxLoanBits - minLoanBits + 1
)

// loanPools holds what is lent again and again. What is not lent goes with the next collections.
var loanPools [loanClasses]sync.Pool

// class is the pool of buffers that hold n bytes, loanClasses or more if there is none.
func class(n int) int { return max(0, bits.Len(uint(max(n, 1)-1))-minLoanBits) }

// take lends n bytes. A nil loan, and a read longer than any buffer, gets memory of its own.
func (l *Loan) take(n int) []byte {
	k := class(n)
	if l == nil || k >= loanClasses {
		return make([]byte, n)
	}
	b, _ := loanPools[k].Get().(*[]byte) // nil: the pool is empty
	if b == nil {
		fresh := make([]byte, 1<<(k+minLoanBits))
		b = &fresh
	}
	l.bufs = append(l.bufs, b)
	l.n += cap(*b)
	return (*b)[:n]
}
