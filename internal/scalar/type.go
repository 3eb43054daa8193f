package scalar

import (
	"strconv"
	"strings"
)

var kindNames = [...]string{
	KindInvalid: "invalid", KindNull: "null", KindBool: "bool",
	KindInt8: "int8", KindInt16: "int16", KindInt32: "int32", KindInt64: "int64",
	KindUint8: "uint8", KindUint16: "uint16", KindUint32: "uint32", KindUint64: "uint64",
	KindFloat32: "float32", KindFloat64: "float64", KindDecimal: "decimal",
	KindString: "string", KindBytes: "bytes", KindTime: "time", KindDuration: "duration", KindDate: "date",
	KindList: "list", KindMap: "map", KindStruct: "struct",
}

// String is the word of the language for k.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

// Signed says whether k is a signed integer.
func (k Kind) Signed() bool { return k >= KindInt8 && k <= KindInt64 }

// Unsigned says whether k is an unsigned integer.
func (k Kind) Unsigned() bool { return k >= KindUint8 && k <= KindUint64 }

// Integer says whether k is an integer of any width and sign.
func (k Kind) Integer() bool { return k >= KindInt8 && k <= KindUint64 }

// Float says whether k is a binary floating-point number.
func (k Kind) Float() bool { return k == KindFloat32 || k == KindFloat64 }

// Numeric says whether k is an integer, a float or a decimal.
func (k Kind) Numeric() bool { return k >= KindInt8 && k <= KindDecimal }

// Types without parameters.
var (
	TypeNull     = Type{Kind: KindNull, Nullable: true}
	TypeBool     = Type{Kind: KindBool}
	TypeInt8     = Type{Kind: KindInt8}
	TypeInt16    = Type{Kind: KindInt16}
	TypeInt32    = Type{Kind: KindInt32}
	TypeInt64    = Type{Kind: KindInt64}
	TypeUint8    = Type{Kind: KindUint8}
	TypeUint16   = Type{Kind: KindUint16}
	TypeUint32   = Type{Kind: KindUint32}
	TypeUint64   = Type{Kind: KindUint64}
	TypeFloat32  = Type{Kind: KindFloat32}
	TypeFloat64  = Type{Kind: KindFloat64}
	TypeString   = Type{Kind: KindString}
	TypeBytes    = Type{Kind: KindBytes}
	TypeTime     = Type{Kind: KindTime}
	TypeDuration = Type{Kind: KindDuration}
	TypeDate     = Type{Kind: KindDate}
)

// MaxPrecision is the number of decimal digits that a decimal holds at most.
const MaxPrecision = 38

// DecimalType is decimal(p,s).
func DecimalType(p, s int32) Type { return Type{Kind: KindDecimal, Precision: p, Scale: s} }

// ListType is list<elem>.
func ListType(elem Type) Type { return Type{Kind: KindList, Elem: &elem} }

// MapType is map<key,value>.
func MapType(key, value Type) Type { return Type{Kind: KindMap, Key: &key, Elem: &value} }

// StructType is a struct with the given fields.
func StructType(fields ...Field) Type { return Type{Kind: KindStruct, Fields: fields} }

// Null is t with nulls allowed.
func (t Type) Null() Type { t.Nullable = true; return t }

// NonNull is t without nulls.
func (t Type) NonNull() Type { t.Nullable = t.Kind == KindNull; return t }

// OrNull is t, nullable if it was or if n is true.
func (t Type) OrNull(n bool) Type { t.Nullable = t.Nullable || n; return t }

// String is t as the language writes it: "decimal(12,2)?", "list<string>", "{a: int64, b: string?}".
func (t Type) String() string { return string(t.appendTo(nil)) }

func (t Type) appendTo(dst []byte) []byte {
	switch t.Kind {
	case KindNull:
		return append(dst, "null"...)
	case KindDecimal:
		dst = append(dst, "decimal("...)
		dst = strconv.AppendInt(dst, int64(t.Precision), 10)
		dst = append(dst, ',')
		dst = strconv.AppendInt(dst, int64(t.Scale), 10)
		dst = append(dst, ')')
	case KindList:
		dst = append(dst, "list<"...)
		dst = append(t.Elem.appendTo(dst), '>')
	case KindMap:
		dst = append(dst, "map<"...)
		dst = append(t.Key.appendTo(dst), ',')
		dst = append(t.Elem.appendTo(dst), '>')
	case KindStruct:
		dst = append(dst, '{')
		for i, f := range t.Fields {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(dst, f.Name...)
			dst = append(dst, ": "...)
			dst = f.Type.appendTo(dst)
		}
		dst = append(dst, '}')
	default:
		dst = append(dst, t.Kind.String()...)
	}
	if t.Nullable {
		dst = append(dst, '?')
	}
	return dst
}

// Equal says whether t and u are the same type, nullability included.
func (t Type) Equal(u Type) bool { return t.equal(u, false) }

// Same says whether t and u hold the same values apart from nulls, at every depth.
func (t Type) Same(u Type) bool { return t.equal(u, true) }

func (t Type) equal(u Type, ignoreNull bool) bool {
	if t.Kind != u.Kind || (!ignoreNull && t.Nullable != u.Nullable) {
		return false
	}
	switch t.Kind {
	case KindDecimal:
		return t.Precision == u.Precision && t.Scale == u.Scale
	case KindList:
		return t.Elem.equal(*u.Elem, ignoreNull)
	case KindMap:
		return t.Key.equal(*u.Key, ignoreNull) && t.Elem.equal(*u.Elem, ignoreNull)
	case KindStruct:
		if len(t.Fields) != len(u.Fields) {
			return false
		}
		for i, f := range t.Fields {
			if f.Name != u.Fields[i].Name || !f.Type.equal(u.Fields[i].Type, ignoreNull) {
				return false
			}
		}
	}
	return true
}

// FieldIndex is the position of the named field of a struct, or -1.
func (t Type) FieldIndex(name string) int {
	for i, f := range t.Fields {
		if f.Name == name {
			return i
		}
	}
	return -1
}

// intBits is the width of an integer kind.
func intBits(k Kind) int {
	switch k {
	case KindInt8, KindUint8:
		return 8
	case KindInt16, KindUint16:
		return 16
	case KindInt32, KindUint32:
		return 32
	}
	return 64
}

// intDigits is the number of decimal digits that an integer kind needs; int64 is decimal(19,0).
func intDigits(k Kind) int32 {
	switch k {
	case KindInt8, KindUint8:
		return 3
	case KindInt16, KindUint16:
		return 5
	case KindInt32, KindUint32:
		return 10
	case KindUint64:
		return 20
	}
	return 19
}

func signedOf(bits int) Kind {
	switch bits {
	case 8:
		return KindInt8
	case 16:
		return KindInt16
	case 32:
		return KindInt32
	}
	return KindInt64
}

// asDecimal is the decimal type that holds every value of an integer or decimal type.
func (t Type) asDecimal() Type {
	if t.Kind == KindDecimal {
		return t
	}
	return Type{Kind: KindDecimal, Precision: intDigits(t.Kind), Nullable: t.Nullable}
}

// Common is the type to which both a and b widen without being asked: a wider integer, an integer to a
// decimal, an integer to float64 beside a float, T to T?. It is what the branches of a conditional, the
// sides of `??` and the inputs of a union agree on. A decimal and a float have none, nor have int64 and
// uint64. Lists, maps and structs must be the same but for nullability.
func Common(a, b Type) (Type, bool) {
	null := a.Nullable || b.Nullable
	ak, bk := a.Kind, b.Kind
	switch {
	case ak == KindInvalid || bk == KindInvalid:
		return Type{}, false
	case ak == KindNull:
		return b.Null(), true
	case bk == KindNull:
		return a.Null(), true
	case ak.Integer() && bk.Integer():
		k, ok := commonInt(ak, bk)
		return Type{Kind: k, Nullable: null}, ok
	case ak == KindDecimal && (bk == KindDecimal || bk.Integer()), bk == KindDecimal && ak.Integer():
		x, y := a.asDecimal(), b.asDecimal()
		s := max(x.Scale, y.Scale)
		p := max(x.Precision-x.Scale, y.Precision-y.Scale) + s
		return Type{Kind: KindDecimal, Precision: min(p, MaxPrecision), Scale: s, Nullable: null}, true
	case ak.Float() && bk.Float():
		if ak != bk {
			ak = KindFloat64
		}
		return Type{Kind: ak, Nullable: null}, true
	case ak.Float() && bk.Integer(), bk.Float() && ak.Integer():
		return Type{Kind: KindFloat64, Nullable: null}, true
	case ak != bk || !a.Same(b):
		return Type{}, false
	}
	return mergeNull(a, b), true
}

func commonInt(a, b Kind) (Kind, bool) {
	if a.Signed() == b.Signed() {
		return max(a, b), true
	}
	s, u := a, b
	if u.Signed() {
		s, u = b, a
	}
	bits := max(intBits(s), 2*intBits(u))
	if bits > 64 {
		return KindInvalid, false
	}
	return signedOf(bits), true
}

// mergeNull joins two types that are the Same: a place is nullable if it is in either.
func mergeNull(a, b Type) Type {
	r := a
	r.Nullable = a.Nullable || b.Nullable
	if a.Elem != nil {
		e := mergeNull(*a.Elem, *b.Elem)
		r.Elem = &e
	}
	if a.Key != nil {
		k := mergeNull(*a.Key, *b.Key)
		r.Key = &k
	}
	if len(a.Fields) > 0 {
		r.Fields = make([]Field, len(a.Fields))
		for i := range a.Fields {
			r.Fields[i] = Field{a.Fields[i].Name, mergeNull(a.Fields[i].Type, b.Fields[i].Type)}
		}
	}
	return r
}

// ParseType reads a type as Type.String writes it. It knows no names of the module.
func ParseType(text string) (Type, bool) {
	p := typeParser{s: text}
	t, ok := p.parse(0)
	p.space()
	return t, ok && p.s == ""
}

type typeParser struct{ s string }

func (p *typeParser) space() { p.s = strings.TrimLeft(p.s, " \t\n\r") }

func (p *typeParser) eat(tok string) bool {
	p.space()
	if strings.HasPrefix(p.s, tok) {
		p.s = p.s[len(tok):]
		return true
	}
	return false
}

func (p *typeParser) word() string {
	p.space()
	i := 0
	for i < len(p.s) && (p.s[i] == '_' || p.s[i] >= '0' && p.s[i] <= '9' || p.s[i]|0x20 >= 'a' && p.s[i]|0x20 <= 'z') {
		i++
	}
	w := p.s[:i]
	p.s = p.s[i:]
	return w
}

func (p *typeParser) parse(depth int) (Type, bool) {
	if depth > 32 {
		return Type{}, false
	}
	t, ok := p.bare(depth)
	if ok && p.eat("?") {
		t.Nullable = true
	}
	return t, ok
}

func (p *typeParser) bare(depth int) (Type, bool) {
	if p.eat("{") {
		t := Type{Kind: KindStruct}
		for !p.eat("}") {
			if len(t.Fields) > 0 && !p.eat(",") {
				return Type{}, false
			}
			name := p.word()
			if name == "" || !p.eat(":") {
				return Type{}, false
			}
			ft, ok := p.parse(depth + 1)
			if !ok {
				return Type{}, false
			}
			t.Fields = append(t.Fields, Field{name, ft})
		}
		return t, true
	}
	k := KindByName(p.word())
	switch k {
	case KindInvalid, KindNull, KindStruct:
		return Type{}, false
	case KindDecimal:
		if !p.eat("(") {
			return Type{}, false
		}
		prec, err1 := strconv.Atoi(p.word())
		scale := 0
		var err2 error
		if p.eat(",") {
			scale, err2 = strconv.Atoi(p.word())
		}
		if err1 != nil || err2 != nil || !p.eat(")") || prec < 1 || prec > MaxPrecision || scale < 0 || scale > prec {
			return Type{}, false
		}
		return DecimalType(int32(prec), int32(scale)), true
	case KindList:
		if !p.eat("<") {
			return Type{}, false
		}
		e, ok := p.parse(depth + 1)
		return ListType(e), ok && p.eat(">")
	case KindMap:
		if !p.eat("<") {
			return Type{}, false
		}
		key, ok1 := p.parse(depth + 1)
		if !ok1 || !p.eat(",") {
			return Type{}, false
		}
		e, ok2 := p.parse(depth + 1)
		return MapType(key, e), ok2 && p.eat(">")
	}
	return Type{Kind: k}, true
}

// KindByName is the kind with that word ("int64", "list", ..), or KindInvalid.
func KindByName(name string) Kind {
	for k, n := range kindNames {
		if n == name {
			return Kind(k)
		}
	}
	return KindInvalid
}
