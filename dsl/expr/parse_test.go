package expr_test

import (
	"strings"
	"testing"

	"github.com/expr-lang/expr/ast"

	"github.com/headrace/headrace/dsl/expr"
)

func TestAggregateNamesAreCallsOnlyInTheirContext(t *testing.T) {
	for _, name := range []string{"count", "sum", "min", "max", "first", "last", "median", "join"} {
		node, err := expr.Parse(name+"(price)", 0, expr.Aggregate, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, ok := node.(*ast.CallNode); !ok {
			t.Errorf("%s(price) is %T in an aggregate context", name, node)
		}
		node, err = expr.Parse("::"+name+"(xs)", 0, expr.Aggregate, nil)
		if err != nil {
			t.Fatalf("::%s: %v", name, err)
		}
		if _, ok := node.(*ast.BuiltinNode); !ok {
			t.Errorf("::%s(xs) is %T in an aggregate context", name, node)
		}
		node, err = expr.Parse(name+"(xs)", 0, expr.Scalar, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, ok := node.(*ast.BuiltinNode); !ok {
			t.Errorf("%s(xs) is %T in a scalar context", name, node)
		}
	}
	if _, err := expr.Parse("count()", 0, expr.Aggregate, nil); err != nil {
		t.Error(err)
	}
	if _, err := expr.Parse("count()", 0, expr.Scalar, nil); err == nil || err.Code != expr.CodeAggregate {
		t.Errorf("count() of a row: %v", err)
	}
}

func TestLocationsCountFromTheModule(t *testing.T) {
	node, err := expr.Parse("a < b < c", 100, expr.Scalar, nil)
	if err != nil {
		t.Fatal(err)
	}
	both := node.(*ast.BinaryNode)
	left, right := both.Left.(*ast.BinaryNode), both.Right.(*ast.BinaryNode)
	if left.Right != right.Left {
		t.Error("the middle of a chained comparison is not shared")
	}
	if from := left.Right.Location().From; from != 104 {
		t.Errorf("b is at %d, want 104: a shared node must be moved once", from)
	}
}

func TestSharingCannotMultiplyTheWork(t *testing.T) {
	text := strings.Repeat("(", 40) + "a" + strings.Repeat(" ?: b)", 40) // each ?: repeats what is left of it
	if _, err := expr.Parse(text, 0, expr.Scalar, nil); err == nil || err.Code != expr.CodeTooLarge {
		t.Errorf("got %v", err)
	}
}

func TestTheSmallestIntegerIsReadFromItsText(t *testing.T) {
	node, err := expr.Parse("-$a", 0, expr.Scalar, map[string]ast.Node{"$a": expr.MinIntMagnitude()})
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := node.(*ast.IntegerNode); !ok || n.Value != -1<<63 {
		t.Errorf("got %v", node)
	}
	for _, text := range []string{"$a", "$a + 1", "1 - $a", "[$a]", "f($a)", "-$a ** 2", "{b: $a}", "b[$a]"} {
		if _, err := expr.Parse(text, 0, expr.Scalar, map[string]ast.Node{"$a": expr.MinIntMagnitude()}); err == nil || err.Code != expr.CodeNumber {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func FuzzExpression(f *testing.F) {
	for _, s := range []string{"a + 1", "filter(xs, {# > 1})", "a ?: b ?: c", "(let x = 1; x)", "a?.b[1:2]", "{a: 1}[b] ?? c", "not a in b", "x | map(#)", "\"\\u{1F600}\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, ctx := range []expr.Context{expr.Scalar, expr.Aggregate} {
			node, err := expr.Parse(text, 0, ctx, nil)
			if err == nil && node == nil {
				t.Fatalf("neither a tree nor an error for %q", text)
			}
			if err != nil && (err.Code == "" || err.Message == "" || err.To <= err.From) {
				t.Fatalf("a poor error %+v for %q", err, text)
			}
		}
	})
}
