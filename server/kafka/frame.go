package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// smallFrame is the size of a connection's own buffer. An idle connection holds nothing else.
const smallFrame = 4 << 10

// minFrame is the shortest request: key, version, correlation id.
const minFrame = 8

// growStep is the first size of a big frame's buffer; it doubles as bytes arrive, so a length field
// alone reserves nothing.
const growStep = 64 << 10

// maxPooled is the largest buffer that is kept for reuse.
const maxPooled = 8 << 20

var (
	// errFrame is a frame that no client of the protocol sends.
	errFrame = errors.New("kafka: bad frame")
	// errBusy is a frame that found no room in the memory budget in time.
	errBusy = errors.New("kafka: no memory for the frame")
)

// A FrameError says why a frame was refused. It is errFrame.
type FrameError struct {
	Key    int16 // API key, -1 when not known yet
	Length int64
	Reason string
}

func (e *FrameError) Error() string {
	if e.Key < 0 {
		return fmt.Sprintf("kafka: frame of %d bytes refused: %s", e.Length, e.Reason)
	}
	return fmt.Sprintf("kafka: frame of %d bytes for api key %d refused: %s", e.Length, e.Key, e.Reason)
}

func (e *FrameError) Is(target error) bool { return target == errFrame }

// A budget bounds the bytes of all frames that are being read or handled.
type budget struct {
	mu struct {
		sync.Mutex
		free int64
		wait chan struct{} // closed when free grows; nil when nobody waits
	}
}

func newBudget(n int64) *budget {
	b := &budget{}
	b.mu.free = n
	return b
}

// acquire takes n bytes, waiting at most timeout for others to give theirs back.
func (b *budget) acquire(n int64, timeout time.Duration) bool {
	var timer *time.Timer
	for {
		b.mu.Lock()
		if b.mu.free >= n {
			b.mu.free -= n
			b.mu.Unlock()
			return true
		}
		if b.mu.wait == nil {
			b.mu.wait = make(chan struct{})
		}
		wait := b.mu.wait
		b.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(timeout)
			defer timer.Stop()
		}
		select {
		case <-wait:
		case <-timer.C:
			return false
		}
	}
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	b.mu.free += n
	if b.mu.wait != nil {
		close(b.mu.wait)
		b.mu.wait = nil
	}
	b.mu.Unlock()
}

// A frameBuffer is the memory of one big frame, and its share of the budget.
type frameBuffer struct {
	b      []byte
	budget *budget
	held   int64
}

var framePool = sync.Pool{New: func() any { return &frameBuffer{} }}

// release gives the buffer back, once. Nil: nothing.
func (f *frameBuffer) release() {
	if f == nil {
		return
	}
	b := f.budget
	held := f.held
	f.budget, f.held = nil, 0
	if cap(f.b) <= maxPooled {
		framePool.Put(f)
	}
	b.release(held)
}

// A frameReader splits a connection's bytes into frames. One goroutine uses it.
type frameReader struct {
	ctx    context.Context // of the server: no read starts after its end
	nc     net.Conn
	budget *budget
	limit  func(key int16) int64 // bytes of the longest frame of an API
	idle   time.Duration         // how long a connection may send nothing between frames
	stall  time.Duration         // how long a frame may make no progress

	small []byte // smallFrame bytes; [r, w) is read and not consumed
	r, w  int

	big *frameBuffer // the current big frame's, or nil
}

// next returns the next frame without its length field. The bytes are the reader's and are valid until
// the next call of next or done. io.EOF is a clean end between frames.
func (f *frameReader) next() ([]byte, error) {
	f.done()
	if err := f.fill(4+2, f.idle); err != nil {
		if f.w-f.r == 0 && errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, err
	}
	length := int64(int32(binary.BigEndian.Uint32(f.small[f.r:])))
	key := int16(binary.BigEndian.Uint16(f.small[f.r+4:]))
	if length < minFrame {
		return nil, &FrameError{Key: -1, Length: length, Reason: "shorter than a request header; is this a Kafka client?"}
	}
	if limit := f.limit(key); length > limit {
		return nil, &FrameError{Key: key, Length: length, Reason: fmt.Sprintf("the limit is %d bytes", limit)}
	}
	n := int(length)
	if 4+n <= smallFrame {
		if err := f.fill(4+n, f.stall); err != nil {
			return nil, err
		}
		frame := f.small[f.r+4 : f.r+4+n : f.r+4+n]
		f.r += 4 + n
		return frame, nil
	}
	return f.readBig(n)
}

// done gives the big buffer back. The frame must not be used any more.
func (f *frameReader) done() {
	f.big.release()
	f.big = nil
}

// take hands the current frame's buffer to the caller, who releases it when nobody reads the frame any more. Nil: the
// frame is in the connection's own buffer, and valid until the next one only.
func (f *frameReader) take() *frameBuffer {
	b := f.big
	f.big = nil
	return b
}

// fill reads until n bytes (at most smallFrame) are in the small buffer. wait is how long the first
// byte may take when there is none.
func (f *frameReader) fill(n int, wait time.Duration) error {
	if f.w-f.r >= n {
		return nil
	}
	if f.r == f.w {
		f.r, f.w = 0, 0
	} else if f.r+n > smallFrame {
		f.w = copy(f.small, f.small[f.r:f.w])
		f.r = 0
	}
	for f.w-f.r < n {
		if f.w-f.r > 0 {
			wait = f.stall
		}
		k, err := f.read(f.small[f.w:], wait)
		f.w += k
		if err != nil && f.w-f.r < n {
			if errors.Is(err, io.EOF) && f.w-f.r > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// read waits at most wait for bytes. The server's end interrupts it by moving the deadline into the past;
// looking at ctx after setting the deadline makes sure that this is not undone.
func (f *frameReader) read(p []byte, wait time.Duration) (int, error) {
	if err := f.nc.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return 0, err
	}
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	return f.nc.Read(p)
}

// readBig reads a frame of n bytes into a pooled buffer that grows with what arrives.
func (f *frameReader) readBig(n int) ([]byte, error) {
	big := framePool.Get().(*frameBuffer) //nolint:errcheck // the pool holds nothing else
	buf := big.b
	have := min(max(cap(buf), growStep), n)
	if !f.budget.acquire(int64(have), f.stall) {
		framePool.Put(big)
		return nil, errBusy
	}
	big.budget, big.held, f.big = f.budget, int64(have), big
	if cap(buf) < have {
		buf = make([]byte, have)
	}
	buf = buf[:have]
	big.b = buf
	got := copy(buf, f.small[f.r+4:f.w])
	f.r, f.w = 0, 0
	for {
		for got < len(buf) {
			k, err := f.read(buf[got:], f.stall)
			got += k
			if err != nil && got < n {
				if errors.Is(err, io.EOF) {
					return nil, io.ErrUnexpectedEOF
				}
				return nil, err
			}
		}
		if got == n {
			return buf, nil
		}
		next := min(2*len(buf), n)
		if !f.budget.acquire(int64(next-len(buf)), f.stall) {
			return nil, errBusy
		}
		big.held += int64(next - len(buf))
		grown := make([]byte, next)
		copy(grown, buf)
		buf = grown
		big.b = buf
	}
}
