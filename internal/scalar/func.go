package scalar

import (
	"fmt"
	"sort"
)

// An Arg describes an argument of a call that is to be resolved.
type Arg struct {
	Type   Type
	Const  *Value // the value, if it is known before any row is seen
	Lambda *Type  // for a closure: the type of its body; Type is ignored then
}

// A Func is a resolved call: one overload with its reference implementation.
type Func struct {
	Name string
	// Args are the argument types that Eval expects: those given, widened. A caller inserts casts
	// (CastName) where they differ in more than nullability; resolving again with these types gives
	// the same function. A closure's entry is the type of its body.
	Args   []Type
	Result Type
	// Eval computes one row. Unless NullSafe is set it is never called with a null argument: a null
	// argument makes the result null. It keeps nothing of args and is safe for concurrent use.
	Eval func(args []Value) (Value, Code)
	// NullSafe functions see nulls themselves.
	NullSafe bool
}

// Call evaluates f with the null rule applied.
func (f *Func) Call(args []Value) (Value, Code) {
	if !f.NullSafe {
		for i := range args {
			if args[i].IsNull() && args[i].Fn == nil {
				return Null, CodeNone
			}
		}
	}
	return f.Eval(args)
}

// A ResolveError says why a call has no meaning.
type ResolveError struct {
	Name       string
	Reason     string // one sentence without the name's place
	Suggestion string // an edit in words or backquoted code, or ""
	Arg        int    // index of the argument at fault, or -1
}

func (e *ResolveError) Error() string {
	if e.Suggestion == "" {
		return fmt.Sprintf("%s: %s", e.Name, e.Reason)
	}
	return fmt.Sprintf("%s: %s (%s)", e.Name, e.Reason, e.Suggestion)
}

// A resolver picks the overload of a function.
type resolver func(name string, args []Arg) (*Func, error)

// Resolve finds the overload of a function or operator for the given arguments. The error is a
// *ResolveError.
func Resolve(name string, args []Arg) (*Func, error) {
	r, ok := functions[name]
	if !ok {
		return nil, &ResolveError{Name: name, Reason: fmt.Sprintf("no function `%s`", name), Arg: -1}
	}
	f, err := r(name, args)
	if err != nil {
		return nil, err
	}
	f.Name = name
	if !f.NullSafe && anyNullable(args) {
		f.Result.Nullable = true
	}
	return f, nil
}

// Known says whether a function or operator of that name exists.
func Known(name string) bool {
	_, ok := functions[name]
	return ok
}

// Callable says whether a user may call that function by name: operators and implicit casts are known,
// but have no name in the language.
func Callable(name string) bool { return Known(name) && !hidden[name] }

// Names lists the functions that a user can call by name, sorted. Operators and implicit casts are not
// among them.
func Names() []string {
	names := make([]string, 0, len(functions))
	for n := range functions {
		if !hidden[n] {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	return names
}
