package scalar

import (
	"fmt"
	"strings"
)

func fail(name string, arg int, reason, suggestion string) error {
	return &ResolveError{Name: name, Reason: reason, Suggestion: suggestion, Arg: arg}
}

// arity checks the number of arguments; max < 0 means no bound.
func arity(name string, args []Arg, lo, hi int) error {
	if len(args) >= lo && (hi < 0 || len(args) <= hi) {
		return nil
	}
	want := fmt.Sprintf("%d", lo)
	switch {
	case hi < 0:
		want += " or more"
	case hi != lo:
		want += fmt.Sprintf(" to %d", hi)
	}
	noun := "arguments"
	if want == "1" {
		noun = "argument"
	}
	return fail(name, -1, fmt.Sprintf("takes %s %s, not %d", want, noun, len(args)), "")
}

func wrongType(name string, i int, a Arg, want string) error {
	suggestion := ""
	if a.Lambda != nil {
		return fail(name, i, fmt.Sprintf("argument %d must be %s, not a closure", i+1, want), "")
	}
	if strings.HasPrefix(want, "a string") && (a.Type.Kind.Numeric() || a.Type.Kind == KindBool || a.Type.Kind == KindTime) {
		suggestion = "convert it with `string(..)`"
	}
	if a.Type.Kind == KindDecimal && strings.Contains(want, "float") {
		suggestion = "convert it with `float(..)`"
	}
	return fail(name, i, fmt.Sprintf("argument %d must be %s, not %s", i+1, want, a.Type), suggestion)
}

// evalFn is the shape of Func.Eval.
type evalFn = func(args []Value) (Value, Code)

// typed is argument i as a type of kind k, taking the literal nil as one, or an error.
func typed(name string, args []Arg, i int, k Kind, want string) (Type, error) {
	t := args[i].Type
	if args[i].Lambda != nil || t.Kind != k && t.Kind != KindNull {
		return Type{}, wrongType(name, i, args[i], want)
	}
	return Type{Kind: k, Nullable: t.Nullable}, nil
}

// sig is a fixed signature without parameters of types; it resolves the most functions.
// Params: i int64, I any integer, f float64, s string, b bool, t time, d duration, y bytes,
// S string or bytes, D date, T time or date, ? the rest is optional, lower case z: constant string.
func sig(params string, result Type, eval evalFn) resolver {
	lo, _, _ := strings.Cut(params, "?")
	all := strings.ReplaceAll(params, "?", "")
	return func(name string, args []Arg) (*Func, error) {
		if err := arity(name, args, len(lo), len(all)); err != nil {
			return nil, err
		}
		types := make([]Type, len(args))
		for i := range args {
			t, err := param(name, args, i, all[i])
			if err != nil {
				return nil, err
			}
			types[i] = t
		}
		return &Func{Args: types, Result: result, Eval: eval}, nil
	}
}

func param(name string, args []Arg, i int, c byte) (Type, error) {
	a := args[i]
	k := a.Type.Kind
	if a.Lambda != nil {
		k = KindInvalid
	}
	switch c {
	case 'i':
		if k.Integer() && k != KindUint64 {
			return a.Type, nil // the same int64 in every width
		}
		if k == KindUint64 {
			return Type{}, fail(name, i, fmt.Sprintf("argument %d must be int64, not uint64", i+1), "convert it with `int(..)`")
		}
		return typed(name, args, i, KindInt64, "an integer")
	case 'I':
		if k.Integer() {
			return a.Type, nil
		}
		return typed(name, args, i, KindInt64, "an integer")
	case 'f':
		if k.Integer() || k.Float() {
			return TypeFloat64.OrNull(a.Type.Nullable), nil
		}
		return typed(name, args, i, KindFloat64, "a float or an integer")
	case 's':
		return typed(name, args, i, KindString, "a string")
	case 'z':
		if a.Const == nil || a.Const.IsNull() {
			return Type{}, fail(name, i, fmt.Sprintf("argument %d must be a constant string", i+1), "write it as a literal")
		}
		return typed(name, args, i, KindString, "a constant string")
	case 'b':
		return typed(name, args, i, KindBool, "a bool")
	case 't':
		return typed(name, args, i, KindTime, "a time")
	case 'd':
		return typed(name, args, i, KindDuration, "a duration")
	case 'y':
		return typed(name, args, i, KindBytes, "bytes")
	case 'D':
		return typed(name, args, i, KindDate, "a date")
	case 'S':
		if k == KindBytes {
			return a.Type, nil
		}
		return typed(name, args, i, KindString, "a string or bytes")
	case 'T':
		if k == KindDate {
			return a.Type, nil
		}
		return typed(name, args, i, KindTime, "a time or a date")
	}
	panic("scalar: unknown parameter class " + string(c))
}

// constString is the value of a constant string argument.
func constString(a Arg) (string, bool) {
	if a.Const == nil || a.Const.Kind != KindString {
		return "", false
	}
	return a.Const.S, true
}

// constInt is the value of a constant integer argument.
func constInt(a Arg) (int64, bool) {
	if a.Const == nil || !a.Const.Kind.Integer() {
		return 0, false
	}
	return a.Const.I, true
}

func ok(v Value) (Value, Code) { return v, CodeNone }

func anyNullable(args []Arg) bool {
	for _, a := range args {
		if a.Lambda == nil && a.Type.Nullable {
			return true
		}
	}
	return false
}
