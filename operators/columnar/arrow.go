package columnar

import (
	"fmt"

	"github.com/apache/arrow/go/v15/arrow"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// Arrow is the schema in Arrow's terms. With dictionaries some columns of a batch may be
// dictionary-encoded all the same.
func (s *Schema) Arrow() *arrow.Schema {
	fields := make([]arrow.Field, len(s.columns))
	for i, c := range s.columns {
		fields[i] = arrow.Field{Name: c.Name, Type: operators.ArrowType(c.Type), Nullable: c.Type.Nullable}
	}
	return arrow.NewSchema(fields, nil)
}

// FromArrow is the schema of Arrow fields. Timestamps of any unit are times, in UTC if they name a zone;
// dictionaries of strings are strings; the large forms of strings and bytes are strings and bytes.
//
// Errors: ErrSchema.
func FromArrow(schema *arrow.Schema) (*Schema, error) {
	columns := make([]Column, schema.NumFields())
	for i, f := range schema.Fields() {
		t, err := typeOf(f.Type, f.Nullable, 0)
		if err != nil {
			return nil, fmt.Errorf("%w: column %s: %w", ErrSchema, f.Name, err)
		}
		columns[i] = Column{Name: f.Name, Type: t}
	}
	return NewSchema(columns)
}

var kinds = map[arrow.Type]scalar.Kind{
	arrow.BOOL: scalar.KindBool,
	arrow.INT8: scalar.KindInt8, arrow.INT16: scalar.KindInt16, arrow.INT32: scalar.KindInt32, arrow.INT64: scalar.KindInt64,
	arrow.UINT8: scalar.KindUint8, arrow.UINT16: scalar.KindUint16, arrow.UINT32: scalar.KindUint32, arrow.UINT64: scalar.KindUint64,
	arrow.FLOAT32: scalar.KindFloat32, arrow.FLOAT64: scalar.KindFloat64,
	arrow.STRING: scalar.KindString, arrow.LARGE_STRING: scalar.KindString,
	arrow.BINARY: scalar.KindBytes, arrow.LARGE_BINARY: scalar.KindBytes,
	arrow.TIMESTAMP: scalar.KindTime, arrow.DATE32: scalar.KindDate,
}

func typeOf(t arrow.DataType, nullable bool, depth int) (scalar.Type, error) {
	if depth > maxDepth {
		return scalar.Type{}, fmt.Errorf("it is nested too deeply")
	}
	if k, ok := kinds[t.ID()]; ok {
		return scalar.Type{Kind: k, Nullable: nullable}, nil
	}
	switch t := t.(type) {
	case *arrow.DurationType:
		if t.Unit == arrow.Nanosecond {
			return scalar.Type{Kind: scalar.KindDuration, Nullable: nullable}, nil
		}
		return scalar.Type{}, fmt.Errorf("a duration is in nanoseconds, not %s", t.Unit)
	case *arrow.Decimal128Type:
		return scalar.DecimalType(t.Precision, t.Scale).OrNull(nullable), nil
	case *arrow.DictionaryType:
		if t.ValueType.ID() == arrow.STRING {
			return scalar.TypeString.OrNull(nullable), nil
		}
	case *arrow.ListType:
		e, err := typeOf(t.Elem(), t.ElemField().Nullable, depth+1)
		return scalar.ListType(e).OrNull(nullable), err
	case *arrow.MapType:
		k, err := typeOf(t.KeyType(), false, depth+1)
		if err != nil {
			return k, err
		}
		e, err := typeOf(t.ItemType(), t.ItemField().Nullable, depth+1)
		return scalar.MapType(k, e).OrNull(nullable), err
	case *arrow.StructType:
		fields := make([]scalar.Field, t.NumFields())
		for i, f := range t.Fields() {
			e, err := typeOf(f.Type, f.Nullable, depth+1)
			if err != nil {
				return e, fmt.Errorf("field %s: %w", f.Name, err)
			}
			fields[i] = scalar.Field{Name: f.Name, Type: e}
		}
		return scalar.StructType(fields...).OrNull(nullable), nil
	}
	return scalar.Type{}, fmt.Errorf("Arrow type %s has no column type", t)
}
