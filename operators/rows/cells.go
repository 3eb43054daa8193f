package rows

import (
	"github.com/apache/arrow/go/v15/arrow"
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
)

// AppendCells appends the columns of row i of full-width columns, so that ReadCells gives them back. Equal
// rows have equal bytes.
func AppendCells(dst []byte, columns []arrow.Array, types []scalar.Type, i int) []byte {
	for c, t := range types {
		dst = AppendCell(dst, columns[c], t, i)
	}
	return dst
}

// ReadCells appends a row that AppendCells wrote to builders of its columns. Errors: ErrState, after which the
// builders are of no use.
func ReadCells(to []array.Builder, types []scalar.Type, b []byte) error {
	var err error
	for c, t := range types {
		if b, err = ReadInto(to[c], t, b); err != nil {
			return err
		}
	}
	return nil
}

// Back notes that a row that was removed since the last Flush is there again, with another value.
func (c *ChangeSet) Back(k *Kept, value []byte) {
	k.gone, k.Value = false, value
	c.grow(k, 1)
	c.list(k)
}
