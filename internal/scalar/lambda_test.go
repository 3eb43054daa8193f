package scalar

import (
	"fmt"
	"testing"
)

// lambda resolves and calls a list function with a closure.
func lambda(t *testing.T, name string, list Value, listType Type, body Type, fn func([]Value) (Value, Code), extra ...Value) (Value, Code, *Func) {
	t.Helper()
	args := []Arg{{Type: listType}, {Lambda: &body}}
	vals := []Value{list, {Fn: fn}}
	for _, e := range extra {
		args = append(args, Arg{Type: Type{Kind: e.Kind}, Const: &e})
		vals = append(vals, e)
	}
	f, err := Resolve(name, args)
	if err != nil {
		t.Fatal(err)
	}
	v, c := f.Call(vals)
	return v, c, f
}

func TestListFunctionsCallTheirClosures(t *testing.T) {
	list := List(Int(3), Int(1), Null, Int(2))
	lt := ListType(TypeInt64.Null())
	over1 := func(a []Value) (Value, Code) {
		if a[0].IsNull() {
			return Null, CodeNone
		}
		return Bool(a[0].I > 1), CodeNone
	}
	negate := func(a []Value) (Value, Code) {
		if a[0].IsNull() {
			return Null, CodeNone
		}
		return Int(-a[0].I), CodeNone
	}
	tests := []struct {
		name  string
		body  Type
		fn    func([]Value) (Value, Code)
		extra []Value
		want  string
	}{
		{"filter", TypeBool.Null(), over1, nil, "list<int64?> [3,2]"},
		{"map", TypeInt64.Null(), negate, nil, "list<int64?> [-3,-1,null,-2]"},
		{"any", TypeBool.Null(), over1, nil, "bool true"},
		{"all", TypeBool.Null(), over1, nil, "bool false"},
		{"none", TypeBool.Null(), over1, nil, "bool false"},
		{"one", TypeBool.Null(), over1, nil, "bool false"},
		{"find", TypeBool.Null(), over1, nil, "int64? 3"},
		{"findIndex", TypeBool.Null(), over1, nil, "int64? 0"},
		{"count", TypeBool.Null(), over1, nil, "int64 2"},
		{"sum", TypeInt64.Null(), negate, nil, "int64 -6"},
		{"mean", TypeInt64.Null(), negate, nil, "float64? -2"},
		{"median", TypeInt64.Null(), negate, nil, "float64? -2"},
		{"sortBy", TypeInt64.Null(), negate, nil, "list<int64?> [null,3,2,1]"},
		{"sortBy", TypeInt64.Null(), negate, []Value{String("desc")}, "list<int64?> [1,2,3,null]"},
		{"reduce", TypeInt64, func(a []Value) (Value, Code) { return Int(a[2].I*10 + a[1].I), CodeNone }, []Value{Int(7)}, "int64 70123"},
	}
	for _, test := range tests {
		v, c, f := lambda(t, test.name, list, lt, test.body, test.fn, test.extra...)
		text, _ := AppendJSON([]byte(f.Result.String()+" "), v, f.Result)
		if c != CodeNone || string(text) != test.want {
			t.Errorf("%s: %s %v, want %s", test.name, text, c, test.want)
		}
	}
}

func TestAnErrorInAClosureIsTheErrorOfTheCall(t *testing.T) {
	boom := func(a []Value) (Value, Code) {
		if a[1].I == 1 {
			return Null, CodeOverflow
		}
		return Bool(false), CodeNone
	}
	for _, name := range []string{"filter", "any", "all", "none", "one", "find", "count", "sortBy"} {
		want := CodeOverflow
		if name == "all" {
			want = CodeNone // decided by the first element
		}
		if _, c, _ := lambda(t, name, List(Int(1), Int(2)), ListType(TypeInt64), TypeBool, boom); c != want {
			t.Errorf("%s: %v, want %v", name, c, want)
		}
	}
	if _, c, _ := lambda(t, "filter", Null, ListType(TypeInt64).Null(), TypeBool, boom); c != CodeNone {
		t.Errorf("a null list must give null, not %v", c)
	}
}

func TestClosuresWithoutAMeaningDoNotResolve(t *testing.T) {
	i, lt := TypeInt64, ListType(TypeInt64)
	for _, args := range [][]Arg{
		{{Type: lt}, {Lambda: &i}},
		{{Type: lt}, {Type: TypeBool}},
		{{Type: TypeInt64}, {Lambda: &TypeBool}},
		{{Lambda: &TypeBool}, {Lambda: &TypeBool}},
		{{Type: lt}},
	} {
		if _, err := Resolve("filter", args); err == nil {
			t.Errorf("filter%v resolved", args)
		}
	}
	if _, err := Resolve("reduce", []Arg{{Type: lt}, {Lambda: &i}, {Type: TypeString}}); err == nil {
		t.Error("reduce into another type resolved")
	}
	for name := range functions {
		for n := range 4 {
			args := make([]Arg, n)
			for j := range args {
				args[j].Lambda = &TypeBool
			}
			if _, err := Resolve(name, args); err == nil && n > 0 {
				t.Errorf("%s takes %d closures", name, n)
			}
		}
	}
}

// Resolve must answer, never panic, whatever the types; and what it answers must accept its own types.
func TestResolveIsTotalAndIdempotent(t *testing.T) {
	types := []Type{
		TypeNull, TypeBool, TypeInt8, TypeInt64.Null(), TypeUint64, TypeFloat32, TypeFloat64.Null(), DecimalType(38, 10), DecimalType(3, 3).Null(),
		TypeString, TypeBytes.Null(), TypeTime, TypeDuration, TypeDate.Null(), ListType(TypeString), ListType(TypeNull), MapType(TypeString, TypeInt64), StructType(Field{"a", TypeInt64}),
	}
	resolved := 0
	check := func(name string, args []Arg) {
		f, err := Resolve(name, args)
		if err != nil {
			if err.Error() == "" {
				t.Errorf("%s: an empty reason", name)
			}
			return
		}
		resolved++
		if len(f.Args) != len(args) || f.Eval == nil || f.Result.Kind == KindInvalid || f.Name != name {
			t.Fatalf("%s%v: incomplete %+v", name, args, f)
		}
		again := make([]Arg, len(args))
		for i := range args {
			again[i] = Arg{Type: f.Args[i], Const: args[i].Const}
		}
		g, err := Resolve(name, again)
		if err != nil {
			t.Fatalf("%s%v does not accept its own types %v: %v", name, args, f.Args, err)
		}
		if fmt.Sprint(g.Args) != fmt.Sprint(f.Args) || !g.Result.Equal(f.Result) {
			t.Fatalf("%s%v: %v %v, then %v %v", name, args, f.Args, f.Result, g.Args, g.Result)
		}
	}
	for name := range functions {
		check(name, nil)
		for _, a := range types {
			check(name, []Arg{{Type: a}})
			for _, b := range types {
				check(name, []Arg{{Type: a}, {Type: b}})
				for _, c := range types[:12] {
					check(name, []Arg{{Type: a}, {Type: b}, {Type: c}})
				}
			}
		}
	}
	if resolved < 1000 {
		t.Errorf("only %d combinations resolved", resolved)
	}
}
