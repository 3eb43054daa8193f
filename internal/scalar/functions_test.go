package scalar

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headrace/headrace/internal/golden"
)

// The files in testdata/functions are lines `name(type value; type value)` with the answer under each:
// the type and the JSON text of the result, a row error, or why the call does not resolve. A `#` before an
// argument makes it a constant. `=> ` lines are rewritten by -update.
func TestFunctionsGiveTheDocumentedAnswers(t *testing.T) {
	paths, err := filepath.Glob("testdata/functions/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			in, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, line := range strings.Split(strings.TrimSuffix(string(in), "\n"), "\n") {
				if strings.HasPrefix(line, "=> ") {
					continue
				}
				out.WriteString(line + "\n")
				if line != "" && !strings.HasPrefix(line, "//") {
					out.WriteString("=> " + answer(line) + "\n")
				}
			}
			golden.Check(t, path, out.String())
		})
	}
}

func answer(line string) string {
	name, rest, ok := strings.Cut(line, "(")
	if !ok || !strings.HasSuffix(rest, ")") {
		return "bad line"
	}
	var args []Arg
	var vals []Value
	if rest = strings.TrimSuffix(rest, ")"); rest != "" {
		for _, text := range strings.Split(rest, "; ") {
			text, constant := strings.CutPrefix(text, "#")
			t, v, err := argument(text)
			if err != nil {
				return err.Error()
			}
			a := Arg{Type: t}
			if constant {
				a.Const = &v
			}
			args, vals = append(args, a), append(vals, v)
		}
	}
	f, err := Resolve(name, args)
	if err != nil {
		return "no: " + strings.TrimPrefix(err.Error(), name+": ")
	}
	for i, want := range f.Args {
		if args[i].Type.Same(want) || args[i].Type.Kind == KindNull {
			continue
		}
		v, c := Cast(vals[i], args[i].Type, want)
		if c != CodeNone {
			return fmt.Sprintf("%s in the cast of argument %d", c, i+1)
		}
		vals[i], args[i].Type = v, want
		if args[i].Const != nil {
			args[i].Const = &vals[i]
		}
	}
	again, err := Resolve(name, args)
	if err != nil || !again.Result.Same(f.Result) {
		return fmt.Sprintf("resolves differently once widened: %v", err)
	}
	v, c := again.Call(vals)
	if c != CodeNone {
		return c.String() + " " + c.Message()
	}
	text, c := AppendJSON([]byte(f.Result.String()+" "), v, f.Result)
	if c != CodeNone {
		return f.Result.String() + " " + floatText(v.F, KindFloat64)
	}
	return string(text)
}

// argument reads `type json`; floats may be NaN and infinite.
func argument(text string) (Type, Value, error) {
	if text == "nil" {
		return TypeNull, Null, nil
	}
	p := typeParser{s: text}
	t, ok := p.parse(0)
	if !ok {
		return t, Null, fmt.Errorf("bad type in %q", text)
	}
	p.space()
	if t.Kind.Float() && (p.s == "NaN" || strings.Contains(p.s, "Infinity")) {
		f, _ := ParseFloat(p.s, t.Kind)
		return t, Value{Kind: t.Kind, F: f}, nil
	}
	v, c := FromJSON(p.s, nil, t)
	if c != CodeNone {
		return t, Null, fmt.Errorf("bad value %q: %s", p.s, c)
	}
	return t, v, nil
}
