package record

import (
	"errors"
	"fmt"
)

// Errors of this package. Every error is one of these, possibly wrapped with a detail.
var (
	// ErrCorrupt: lengths, counts or the checksum do not fit together.
	ErrCorrupt = errors.New("record: corrupt batch")
	// ErrShort: the bytes end before the batch does. It is ErrCorrupt too.
	ErrShort = fmt.Errorf("%w: short", ErrCorrupt)
	// ErrChecksum: the CRC-32C does not match. It is ErrCorrupt too.
	ErrChecksum = fmt.Errorf("%w: checksum", ErrCorrupt)
	// ErrMagic: a message format other than v2. Old formats are not converted.
	ErrMagic = errors.New("record: batch format is not v2")
	// ErrCodec: the compression codec is unknown.
	ErrCodec = errors.New("record: unknown compression codec")
	// ErrTooLarge: the records decompress to more than MaxDecompressed, or to implausibly more than came in.
	ErrTooLarge = errors.New("record: batch decompresses to too many bytes")
	// ErrColumnar: the batch holds columns, not rows.
	ErrColumnar = errors.New("record: columnar batch has no rows")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
