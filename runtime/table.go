package runtime

import (
	"bytes"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// withWrongKeys adds to bad, by row, the rows of a table that clients write whose record key is not the
// encoding of the row's key columns: compaction goes by the one and everything else by the other.
func withWrongKeys(bad []invalidRow, b *operators.Batch, t *plan.Topic) []invalidRow {
	columns := make([]arrow.Array, len(t.Key))
	for i, c := range t.Key {
		columns[i] = b.Columns[c]
	}
	ts := pickTypes(types(t.Schema), t.Key)
	var all []invalidRow
	var key []byte
	for i := range b.Rows {
		if len(bad) > 0 && bad[0].row == i {
			all = append(all, bad[0])
			bad = bad[1:]
			continue
		}
		if b.Deletes(i) {
			continue
		}
		var null bool
		if key, null = operators.EncodeKey(columns, ts, i, key[:0]); null || !bytes.Equal(key, b.Key[i]) {
			all = append(all, invalidRow{i, scalar.CodeWrongType, "the record's key is not that of its columns, " + shortText(key)})
		}
	}
	return all
}

// shortText is a key for people.
func shortText(key []byte) string {
	if len(key) > 64 {
		return string(key[:64]) + ".."
	}
	return string(key)
}
