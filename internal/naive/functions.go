package naive

import (
	"math/big"
	"slices"
	"strings"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// limit is the constant argument of list, set and top_k.
func (p *pipeline) constant(e *plan.Expr) scalar.Value {
	v, code := p.eval(e, &row{})
	if code != 0 {
		panic("naive: a constant fails: " + code.String())
	}
	return v
}

// ordered folds functions whose rows are in the order of time, of which there is at least one.
func (p *pipeline) ordered(s *plan.AggCall, i int, rows []*folded) (scalar.Value, scalar.Code) {
	slices.SortStableFunc(rows, func(a, b *folded) int { return a.before(b.row) })
	values := make([]scalar.Value, len(rows))
	for k, r := range rows {
		values[k] = r.args[i]
	}
	switch s.Func {
	case "first", "any_value":
		return values[0], 0
	case "last":
		return values[len(values)-1], 0
	case "bool_and", "bool_or":
		any := s.Func == "bool_or"
		return scalar.Bool(slices.ContainsFunc(values, func(v scalar.Value) bool { return v.Bool() == any }) == any), 0
	case "arg_min", "arg_max":
		best := rows[0]
		for _, r := range rows {
			if c := scalar.Compare(r.by[i], best.by[i]); c < 0 && s.Func == "arg_min" || c > 0 && s.Func == "arg_max" {
				best = r
			}
		}
		return best.args[i], 0
	case "list":
		n := int(p.constant(s.Param).I)
		return scalar.List(values[:min(n, len(values))]...), 0
	case "join":
		texts := make([]string, len(values))
		for k, v := range values {
			texts[k] = v.S
		}
		return scalar.String(strings.Join(texts, p.constant(s.Param).S)), 0
	}
	slices.SortStableFunc(values, scalar.Compare)
	switch s.Func {
	case "set":
		values = slices.CompactFunc(values, func(a, b scalar.Value) bool { return scalar.Compare(a, b) == 0 })
		return scalar.List(values[:min(int(p.constant(s.Param).I), len(values))]...), 0
	case "top_k":
		slices.Reverse(values)
		return scalar.List(values[:min(int(p.constant(s.Param).I), len(values))]...), 0
	case "median", "quantile":
		q := big.NewRat(1, 2)
		if s.Func == "quantile" {
			v := p.constant(s.Param)
			q.SetFloat64(v.F)
			if v.Kind.Integer() {
				q.SetInt64(v.I)
			}
		}
		return quantile(s, values, q)
	case "var_pop", "var_samp", "stddev_pop", "stddev_samp":
		return variance(s, values)
	}
	panic("naive: no naive form of " + s.Func)
}

// number is the exact value of a number or duration.
func number(v scalar.Value, t scalar.Type) *big.Rat {
	switch {
	case v.Kind == scalar.KindDecimal:
		return new(big.Rat).SetFrac(v.D.Big(), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(t.Scale)), nil))
	case v.Kind.Float():
		return new(big.Rat).SetFloat64(v.F)
	case v.Kind.Unsigned():
		return new(big.Rat).SetInt(new(big.Int).SetUint64(v.Uint()))
	}
	return new(big.Rat).SetInt64(v.I)
}

// quantile lies at q·(n-1) of the sorted values.
func quantile(s *plan.AggCall, values []scalar.Value, q *big.Rat) (scalar.Value, scalar.Code) {
	at := new(big.Rat).Mul(q, new(big.Rat).SetInt64(int64(len(values)-1)))
	below := int(new(big.Int).Quo(at.Num(), at.Denom()).Int64())
	part := new(big.Rat).Sub(at, new(big.Rat).SetInt64(int64(below)))
	x := number(values[below], s.Arg.Type)
	if part.Sign() > 0 {
		y := number(values[below+1], s.Arg.Type)
		x.Add(x, part.Mul(part, y.Sub(y, x)))
	}
	switch s.Type.Kind {
	case scalar.KindDecimal:
		d, code := scalar.ParseDecimalAs(halfEven(x, int(s.Type.Scale)), s.Type.Precision, s.Type.Scale)
		return scalar.Decimal(d), code
	case scalar.KindDuration:
		n, _ := scalar.ParseInt(halfEven(x, 0), scalar.KindInt64)
		return scalar.Duration(n), 0
	}
	f, _ := x.Float64()
	return scalar.Float(f), 0
}

// variance of integers and decimals: exact, then rounded once; a standard deviation is its root.
func variance(s *plan.AggCall, values []scalar.Value) (scalar.Value, scalar.Code) {
	n := new(big.Rat).SetInt64(int64(len(values)))
	sum, squares := new(big.Rat), new(big.Rat)
	for _, v := range values {
		x := number(v, s.Arg.Type)
		sum.Add(sum, x)
		squares.Add(squares, new(big.Rat).Mul(x, x))
	}
	squares.Sub(squares, sum.Mul(sum, sum).Quo(sum, n))
	if strings.HasSuffix(s.Func, "_samp") {
		if len(values) == 1 {
			return scalar.Null, 0
		}
		n.Sub(n, big.NewRat(1, 1))
	}
	squares.Quo(squares, n)
	if strings.HasPrefix(s.Func, "stddev") {
		f := new(big.Float).SetPrec(400).SetRat(squares)
		x, _ := f.Sqrt(f).Float64()
		return scalar.Float(x), 0
	}
	x, _ := squares.Float64()
	return scalar.Float(x), 0
}
