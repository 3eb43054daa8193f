package dsl_test

import (
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/expr"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

const randomTopic = `topic t { b: bool, bn: bool?, n: int64, nn: int64?, i8: int8, u: uint64, u8: uint8?, x: float64, xn: float64?, d: decimal(12,2), dn: decimal(6,4)?,
  s: string, sn: string?, y: bytes, ts: time, tn: time?, w: duration, dt: date, l: list<int64>, ln: list<string?>?, m: map<string, int64>, p: { a: int64, b: string? }, q: { a: int64?, b: { c: string } }? }
`

var randomColumns = strings.Fields("b bn n nn i8 u u8 x xn d dn s sn y ts tn w dt l ln m p q p.a q?.a q?.b.c l[0] m[\"a\"] record.offset record.key record.time")

// randomExpr writes an expression; most of them do not compile, and many do.
func randomExpr(r *rand.Rand, depth int) string {
	if depth == 0 || r.Intn(6) == 0 {
		if r.Intn(3) == 0 {
			return []string{"0", "1", "2.5", "-3", "\"a\"", "\"10\"", "true", "nil", "5m", "\"yyyy-MM-dd\"", "[1, 2]", "[\"a\"]", "{\"a\": 1}", "100000"}[r.Intn(14)]
		}
		return randomColumns[r.Intn(len(randomColumns))]
	}
	a, b := randomExpr(r, depth-1), randomExpr(r, depth-1)
	switch r.Intn(13) {
	case 0, 1:
		return "(" + a + " " + []string{"+", "-", "*", "/", "%", "**"}[r.Intn(6)] + " " + b + ")"
	case 2, 3:
		return "(" + a + " " + []string{"==", "!=", "<", "<=", ">", ">="}[r.Intn(6)] + " " + b + ")"
	case 4:
		return "(" + a + " " + []string{"and", "or"}[r.Intn(2)] + " " + b + ")"
	case 5:
		return "(" + a + " ?? " + b + ")"
	case 6:
		return "(" + a + " != nil ? " + a + " : " + b + ")"
	case 7:
		return "((" + a + ") == true ? " + a + " : " + b + ")"
	case 8:
		return "(" + []string{"not ", "-"}[r.Intn(2)] + a + ")"
	case 9:
		return "(" + a + " " + []string{"in", "not in", "contains", "startsWith"}[r.Intn(4)] + " " + b + ")"
	case 10:
		f := []string{"map", "filter", "any", "all", "find", "count", "sum"}[r.Intn(7)]
		return fmt.Sprintf("%s(%s, %s)", f, []string{"l", "ln", "[1, nn]"}[r.Intn(3)], strings.Replace(b, "n", "#", 1))
	case 11:
		return "(let z = " + a + "; z == nil ? z : z)"
	default:
		names := scalar.Names()
		args := []string{a, b, randomExpr(r, depth-1)}
		return names[r.Intn(len(names))] + "(" + strings.Join(args[:r.Intn(4)], ", ") + ")"
	}
}

// Random expressions are refused, or give what their type says; never neither.
func TestRandomExpressionsAreRefusedOrTyped(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	compiled, evaluated := 0, 0
	for n := 0; n < 6000; n++ {
		text := randomExpr(r, 3)
		m, list := compile(randomTopic + "topic o = from t |> set out = " + text)
		if m == nil {
			if len(list) == 0 {
				t.Fatalf("refused without a word: %s", text)
			}
			continue
		}
		compiled++
		p := m.Pipelines[0]
		st := p.Stages[0]
		e := st.Project[len(st.Project)-1].Expr
		if e.Op == plan.ExprColumn {
			continue
		}
		prog, err := expr.Compile(e)
		if err != nil {
			t.Fatalf("%s does not compile: %v", text, err)
		}
		for i := 0; i < 8; i++ {
			in := make(row, len(p.Source.Schema.Columns))
			for j, c := range p.Source.Schema.Columns {
				in[j] = random(r, c.Type)
			}
			v, code := prog.Eval(in)
			if code != scalar.CodeNone {
				continue
			}
			evaluated++
			if !fits(v, e.Type) {
				t.Errorf("%s gives %+v, which is no %s\nrow %+v", text, v, e.Type, in)
				break
			}
		}
	}
	if compiled < 500 || evaluated < 2000 {
		t.Errorf("only %d compiled, %d values", compiled, evaluated)
	}
	t.Logf("%d compiled, %d values", compiled, evaluated)
}

// randomStage writes a stage over the columns c1 to c5, which most of them keep.
func randomStage(r *rand.Rand) string {
	col := func() string { return "c" + strconv.Itoa(1+r.Intn(5)) }
	val := func() string {
		switch r.Intn(5) {
		case 0:
			return col() + " + " + col()
		case 1:
			return "div(100, " + col() + ")"
		case 2:
			return strconv.Itoa(r.Intn(9))
		case 3:
			return "(" + col() + " > 3 ? " + col() + " : " + col() + ")"
		}
		return col()
	}
	switch r.Intn(7) {
	case 0:
		return "where " + val() + " > " + val()
	case 1:
		return "set " + col() + " = " + val()
	case 2:
		return "select c1 = " + val() + ", c2 = " + val() + ", c3 = " + val() + ", c4 = " + val() + ", c5 = " + val()
	case 3:
		c := col()
		return "drop " + c + " |> set " + c + " = c" + strconv.Itoa(1+r.Intn(5))
	case 4:
		return "rename x = c1, c1 = c2, c2 = x"
	case 5:
		return "key (" + col() + ")"
	}
	return "agg c1 = sum(" + val() + "), c2 = count(), c3 = last(" + val() + "), c4 = max(" + val() + ") where " + val() + " > 2 by c5 window tumble(1m) |> set c4 = c4 ?? 0"
}

// Random pipelines read what they need and nothing else, stage by stage.
func TestRandomPipelinesReadWhatTheyNeed(t *testing.T) {
	x := &runner{t: t, r: rand.New(rand.NewSource(4)), programs: map[*plan.Expr]*expr.Program{}}
	compiled, pruned := 0, 0
	for n := 0; n < 1200; n++ {
		var b strings.Builder
		b.WriteString("topic t { c1: int64, c2: int64, c3: int64, c4: int64, c5: int64, ts: time } with key (c1), time ts\n")
		b.WriteString("stream s = from t |> " + randomStage(x.r) + "\ntopic o = from s")
		for k := x.r.Intn(5); k >= 0; k-- {
			b.WriteString(" |> " + randomStage(x.r))
		}
		if x.r.Intn(2) == 0 {
			b.WriteString(" |> select c" + strconv.Itoa(1+x.r.Intn(5)))
		}
		b.WriteString(" with key ()\ntopic p = from s |> where c1 > 1 with key ()\n")
		x.text = b.String()
		m, list := compile(x.text)
		if m == nil {
			if len(list) == 0 {
				t.Fatalf("refused without a word:\n%s", x.text)
			}
			continue
		}
		compiled++
		for _, p := range m.Pipelines {
			for _, need := range p.Needed {
				if !need {
					pruned++
				}
			}
			for i := 0; i < 5; i++ {
				x.row(p)
			}
		}
	}
	if compiled < 300 || pruned < 500 {
		t.Errorf("%d modules compiled, %d columns were not needed", compiled, pruned)
	}
	t.Logf("%d modules compiled, %d columns were not needed, %d values", compiled, pruned, x.ran)
}
