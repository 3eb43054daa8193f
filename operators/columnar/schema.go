package columnar

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/headrace/headrace/internal/scalar"
)

// Bounds of a schema.
const (
	maxColumns = 4096
	maxParts   = 1 << 14 // columns and nested parts
	maxDepth   = 32
)

// ErrSchema is a schema that no payload can have.
var ErrSchema = errors.New("columnar: unusable schema")

// A Column is a name and a type.
type Column struct {
	Name string
	Type scalar.Type
}

// A Schema is the ordered columns of a topic. Its ID is a hash of its canonical form: schemas with equal
// names, types and order have the same.
type Schema struct {
	columns []Column
	id      uint64
	text    string
	parts   int // columns and nested parts
}

// NewSchema checks and hashes columns, which it keeps.
//
// Errors: ErrSchema for no columns, too many, too deep ones, and types without an Arrow form.
func NewSchema(columns []Column) (*Schema, error) {
	if len(columns) == 0 || len(columns) > maxColumns {
		return nil, fmt.Errorf("%w: %d columns; 1 to %d are possible", ErrSchema, len(columns), maxColumns)
	}
	s := &Schema{columns: columns}
	var b strings.Builder
	for i := range columns {
		c := &columns[i]
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strconv.Quote(c.Name))
		b.WriteByte(' ')
		if err := s.add(&b, &c.Type, 0); err != nil {
			return nil, fmt.Errorf("%w: column %s: %w", ErrSchema, c.Name, err)
		}
	}
	s.text = b.String()
	sum := sha256.Sum256([]byte(s.text))
	s.id = binary.LittleEndian.Uint64(sum[:])
	return s, nil
}

// add writes the canonical form of a type and counts its parts.
func (s *Schema) add(b *strings.Builder, t *scalar.Type, depth int) error {
	if s.parts++; s.parts > maxParts {
		return errors.New("the schema has too many parts")
	}
	if depth > maxDepth {
		return errors.New("it is nested too deeply")
	}
	switch t.Kind {
	case scalar.KindInvalid, scalar.KindNull:
		return fmt.Errorf("type %s has no columnar form", t)
	case scalar.KindDecimal:
		if t.Precision < 1 || t.Precision > scalar.MaxPrecision || t.Scale < 0 || t.Scale > t.Precision {
			return fmt.Errorf("there is no %s", t)
		}
		b.WriteString(t.NonNull().String())
	case scalar.KindList:
		b.WriteString("list<")
		if err := s.add(b, t.Elem, depth+1); err != nil {
			return err
		}
		b.WriteByte('>')
	case scalar.KindMap:
		if t.Key.Nullable {
			return errors.New("the key of a map cannot be null")
		}
		b.WriteString("map<")
		if err := s.add(b, t.Key, depth+1); err != nil {
			return err
		}
		b.WriteByte(',')
		if err := s.add(b, t.Elem, depth+1); err != nil {
			return err
		}
		b.WriteByte('>')
	case scalar.KindStruct:
		b.WriteByte('{')
		for i := range t.Fields {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Quote(t.Fields[i].Name))
			b.WriteByte(' ')
			if err := s.add(b, &t.Fields[i].Type, depth+1); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		b.WriteString(t.Kind.String())
	}
	if t.Nullable {
		b.WriteByte('?')
	}
	return nil
}

// ID names the schema in a payload.
func (s *Schema) ID() uint64 { return s.id }

// Columns are the columns in order. They must not be changed.
func (s *Schema) Columns() []Column { return s.columns }

// String is the canonical form: a quoted name and a type on each line.
func (s *Schema) String() string { return s.text }
