package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	goruntime "runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// MaxDecompressed bounds the bytes that the records of one batch may decompress to.
const MaxDecompressed = 64 << 20

// A batch of n compressed bytes may decompress to freeRatioBytes + maxRatio*n bytes. Real data stays far below;
// a small request that expands without end does not get far.
const (
	maxRatio       = 1024
	freeRatioBytes = 1 << 20
)

func decompressedLimit(n int) int {
	return int(min(MaxDecompressed, freeRatioBytes+maxRatio*int64(n)))
}

// decompress appends the decompressed form of src to dst. Memory grows with what was actually decompressed, not
// with what the input claims.
func decompress(dst, src []byte, c Codec) ([]byte, error) {
	return decompressWithin(dst, src, c, decompressedLimit(len(src)))
}

func decompressWithin(dst, src []byte, c Codec, limit int) ([]byte, error) {
	var out []byte
	var err error
	switch c {
	case Gzip:
		out, err = gunzip(dst, src, limit)
	case Snappy:
		out, err = unsnappy(dst, src, limit)
	case LZ4:
		out, err = unlz4(dst, src, limit)
	case Zstd:
		out, err = unzstd(dst, src, limit)
	default:
		return dst, ErrCodec
	}
	if err != nil {
		if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrCorrupt) {
			return dst, err
		}
		return dst, fmt.Errorf("%w: %s: %w", ErrCorrupt, c, err)
	}
	return out, nil
}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

func gunzip(dst, src []byte, limit int) ([]byte, error) {
	z := gzipReaders.Get().(*gzip.Reader)
	defer gzipReaders.Put(z)
	if err := z.Reset(bytes.NewReader(src)); err != nil {
		return dst, err
	}
	return readAll(dst, z, len(src), limit)
}

var lz4Readers = sync.Pool{New: func() any { return lz4.NewReader(nil) }}

func unlz4(dst, src []byte, limit int) ([]byte, error) {
	z := lz4Readers.Get().(*lz4.Reader)
	defer lz4Readers.Put(z)
	z.Reset(bytes.NewReader(src))
	return readAll(dst, z, len(src), limit)
}

// readAll appends what r yields to dst, growing it by doubling, at most limit bytes.
func readAll(dst []byte, r io.Reader, hint, limit int) ([]byte, error) {
	base := len(dst)
	dst = slices.Grow(dst, min(limit+1, max(512, 2*hint)))
	for {
		if len(dst) == cap(dst) {
			dst = slices.Grow(dst, min(limit+1-(len(dst)-base), len(dst)-base))
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst)-base > limit:
			return dst, ErrTooLarge
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return dst, err
		}
	}
}

// xerialMagic opens the block framing that the Java clients put around snappy.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeaderSize = 16 // magic, version, lowest compatible version

func unsnappy(dst, src []byte, limit int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return snappyBlock(dst, src, limit)
	}
	if len(src) < xerialHeaderSize {
		return dst, corrupt("snappy header")
	}
	base := len(dst)
	src = src[xerialHeaderSize:]
	for len(src) > 0 {
		if len(src) < 4 {
			return dst, corrupt("snappy block length")
		}
		n := int64(binary.BigEndian.Uint32(src))
		src = src[4:]
		if n > int64(len(src)) {
			return dst, corrupt("snappy block of %d bytes in %d", n, len(src))
		}
		var err error
		if dst, err = snappyBlock(dst, src[:n], limit-(len(dst)-base)); err != nil {
			return dst, err
		}
		src = src[n:]
	}
	return dst, nil
}

// snappyBlock appends one raw block. Snappy expands by at most 64/3, so a block that claims more is refused
// before memory is taken for it.
func snappyBlock(dst, src []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	switch {
	case err != nil:
		return dst, err
	case n > limit:
		return dst, ErrTooLarge
	case n > 64+32*len(src):
		return dst, corrupt("snappy block of %d bytes claims to hold %d", len(src), n)
	}
	base := len(dst)
	dst = slices.Grow(dst, n)
	out, err := s2.Decode(dst[base:base+n], src)
	if err != nil {
		return dst, err
	}
	if len(out) != n {
		return dst, corrupt("snappy block length")
	}
	return dst[:base+n], nil
}

// zstdReaders are decoders that work in the caller's goroutine, so that dropping one leaks nothing.
var zstdReaders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(MaxDecompressed))
	if err != nil {
		return err
	}
	return d
}}

// minZstdWindow is what every decoder should support (RFC 8878, 3.1.1.1.2).
const minZstdWindow = 8 << 20

// unzstd streams, although the library can decode at once: into memory that is too small for a frame of unknown
// size it fails with an error that cannot be told from corruption.
func unzstd(dst, src []byte, limit int) ([]byte, error) {
	var h zstd.Header
	if h.Decode(src) == nil && (h.HasFCS && h.FrameContentSize > uint64(limit) || h.WindowSize > uint64(max(limit, minZstdWindow))) {
		return dst, ErrTooLarge // before memory is taken for what the frame claims
	}
	d, ok := zstdReaders.Get().(*zstd.Decoder)
	if !ok {
		return dst, ErrCodec
	}
	defer zstdReaders.Put(d)
	if err := d.Reset(bytes.NewReader(src)); err != nil {
		return dst, err
	}
	return readAll(dst, d, len(src), limit)
}

var (
	gzipWriters = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}
	lz4Writers  = sync.Pool{New: func() any { return lz4.NewWriter(nil) }}
	zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(goruntime.GOMAXPROCS(0)), zstd.WithLowerEncoderMem(true))
	})
)

// compress appends the compressed form of src to dst. It fails on an unknown codec only.
func compress(dst, src []byte, c Codec) ([]byte, error) {
	switch c {
	case None:
		return append(dst, src...), nil
	case Gzip:
		w := bytes.NewBuffer(dst)
		z := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(z)
		z.Reset(w)
		if _, err := z.Write(src); err != nil {
			return dst, err
		}
		err := z.Close()
		return w.Bytes(), err
	case Snappy:
		base := len(dst)
		n := s2.MaxEncodedLen(len(src))
		if n < 0 {
			return dst, ErrTooLarge
		}
		dst = slices.Grow(dst, n)
		return dst[:base+len(s2.EncodeSnappy(dst[base:base+n], src))], nil
	case LZ4:
		w := bytes.NewBuffer(dst)
		z := lz4Writers.Get().(*lz4.Writer)
		defer lz4Writers.Put(z)
		z.Reset(w)
		if _, err := z.Write(src); err != nil {
			return dst, err
		}
		err := z.Close()
		return w.Bytes(), err
	case Zstd:
		z, err := zstdEncoder()
		if err != nil {
			return dst, err
		}
		return z.EncodeAll(src, dst), nil
	}
	return dst, ErrCodec
}
