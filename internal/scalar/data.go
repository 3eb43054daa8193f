package scalar

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/netip"

	"github.com/cespare/xxhash/v2"
)

func resolveToJSON(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil {
		return nil, wrongType(name, 0, args[0], "a value")
	}
	return &Func{Args: []Type{t}, Result: TypeString, Eval: func(v []Value) (Value, Code) {
		b, c := AppendJSON(nil, v[0], t)
		if c != CodeNone {
			return Null, c
		}
		return text(string(b))
	}}, nil
}

func evalFromBase64(v []Value) (Value, Code) {
	b, err := base64.StdEncoding.DecodeString(v[0].S)
	if err != nil {
		return Null, CodeBadCast
	}
	return Bytes(string(b)), CodeNone
}

func evalUnhex(v []Value) (Value, Code) {
	b, err := hex.DecodeString(v[0].S)
	if err != nil {
		return Null, CodeBadCast
	}
	return Bytes(string(b)), CodeNone
}

func evalMD5(v []Value) (Value, Code) {
	h := md5.Sum([]byte(v[0].S))
	return String(hex.EncodeToString(h[:])), CodeNone
}

func evalSHA256(v []Value) (Value, Code) {
	h := sha256.Sum256([]byte(v[0].S))
	return String(hex.EncodeToString(h[:])), CodeNone
}

// resolveHash64 makes hash64: xxhash64 of the bytes of one string or bytes, of the JSON text of another
// value, of the JSON array of several.
func resolveHash64(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, -1); err != nil {
		return nil, err
	}
	f := &Func{Result: TypeUint64}
	for i, a := range args {
		if a.Lambda != nil {
			return nil, wrongType(name, i, a, "a value")
		}
		f.Args = append(f.Args, a.Type)
	}
	if k := args[0].Type.Kind; len(args) == 1 && (k == KindString || k == KindBytes) {
		f.Eval = func(v []Value) (Value, Code) { return Uint(xxhash.Sum64String(v[0].S)), CodeNone }
		return f, nil
	}
	types := f.Args
	f.Eval = func(v []Value) (Value, Code) {
		var b []byte
		var c Code
		for i := range v {
			if len(v) > 1 {
				b = append(b, ",["[btoi(i == 0)])
			}
			if b, c = AppendJSON(b, v[i], types[i]); c != CodeNone {
				return Null, c
			}
		}
		if len(v) > 1 {
			b = append(b, ']')
		}
		return Uint(xxhash.Sum64(b)), CodeNone
	}
	return f, nil
}

func resolveIPIn(name string, args []Arg) (*Func, error) {
	f, err := sig("ss", TypeBool, func(v []Value) (Value, Code) {
		p, err := netip.ParsePrefix(v[1].S)
		if err != nil {
			return Null, CodeBadPattern
		}
		return ipIn(v[0].S, p)
	})(name, args)
	if err != nil {
		return nil, err
	}
	if s, isConst := constString(args[1]); isConst {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fail(name, 1, "`"+s+"` is not a network", "write `10.0.0.0/8`")
		}
		f.Eval = func(v []Value) (Value, Code) { return ipIn(v[0].S, p) }
	}
	return f, nil
}

func ipIn(s string, p netip.Prefix) (Value, Code) {
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return Null, CodeBadCast
	}
	ip = ip.Unmap().WithZone("")
	return Bool(p.Contains(ip)), CodeNone
}

func uuidOK(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
			continue
		}
		if !(c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f') {
			return false
		}
	}
	return true
}

func resolveIsNull(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	if args[0].Lambda != nil {
		return nil, wrongType(name, 0, args[0], "a value")
	}
	return &Func{Args: []Type{args[0].Type}, Result: TypeBool, NullSafe: true, Eval: func(v []Value) (Value, Code) {
		return Bool(v[0].IsNull()), CodeNone
	}}, nil
}

// resolveNullIf makes null_if(a, b): null where a == b, else a.
func resolveNullIf(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	if args[0].Type.Kind == KindNull || args[1].Type.Kind == KindNull {
		return nil, fail(name, -1, "takes two values that may be equal, not nil", "")
	}
	c, a, b, _, err := comparerOf(name, args)
	if err != nil {
		return nil, err
	}
	return &Func{Args: []Type{a, b}, Result: a.Null(), NullSafe: true, Eval: func(v []Value) (Value, Code) {
		if !v[0].IsNull() && !v[1].IsNull() && c(v[0], v[1]) == 0 {
			return Null, CodeNone
		}
		return v[0], CodeNone
	}}, nil
}

// resolveCoalesce makes coalesce(..): the first argument that is not null. All are evaluated; `??` is
// the lazy form.
func resolveCoalesce(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, -1); err != nil {
		return nil, err
	}
	t, err := commonOf(name, args)
	if err != nil {
		return nil, err
	}
	f := &Func{NullSafe: true, Result: t}
	f.Result.Nullable = true
	for _, a := range args {
		f.Args = append(f.Args, t.NonNull().OrNull(a.Type.Nullable))
		f.Result.Nullable = f.Result.Nullable && a.Type.Nullable
	}
	f.Eval = func(v []Value) (Value, Code) {
		for _, x := range v {
			if !x.IsNull() {
				return x, CodeNone
			}
		}
		return Null, CodeNone
	}
	return f, nil
}

// resolveUnwrap makes a nullable struct non-null: a null one is a row error.
func resolveUnwrap(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 1); err != nil {
		return nil, err
	}
	if args[0].Lambda != nil || args[0].Type.Kind != KindStruct {
		return nil, wrongType(name, 0, args[0], "a struct")
	}
	return &Func{Args: []Type{args[0].Type}, Result: args[0].Type.NonNull(), NullSafe: true, Eval: func(v []Value) (Value, Code) {
		if v[0].IsNull() {
			return Null, CodeNullStruct
		}
		return v[0], CodeNone
	}}, nil
}

// resolveMember reads a field of a struct by its constant name.
func resolveMember(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t := args[0].Type
	if args[0].Lambda != nil || t.Kind != KindStruct {
		return nil, wrongType(name, 0, args[0], "a struct")
	}
	field, _ := constString(args[1])
	i := t.FieldIndex(field)
	if i < 0 {
		return nil, fail(name, 1, "the struct has no field `"+field+"`", "")
	}
	return &Func{Args: []Type{t, TypeString}, Result: t.Fields[i].Type, Eval: func(v []Value) (Value, Code) {
		return v[0].L[i], CodeNone
	}}, nil
}
