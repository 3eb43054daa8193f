package window

import (
	"math"
	"math/big"

	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/operators/state"
)

// quantile is median and quantile: of n values in ascending order v, the one at q * (n - 1), and between
// two the straight line. Integers and decimals are exact and rounded once: to the nearest float64, or half
// to even. Between two floats it is lo*(1-f) + hi*f, each product rounded, and never outside of them; NaN is
// the greatest.
type quantile struct {
	*bag
	q   rank
	out scalar.Type
}

func (a quantile) finish(t *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
		return scalar.CodeNone
	}
	members := t.Subs()[a.slot]
	list := a.best(members, c[0])
	n := uint64(0)
	for _, m := range list {
		n += members.Cells(m)[1]
	}
	k, rest := a.q.place(n)
	i, below := 0, members.Cells(list[0])[1] // values up to member i
	for below <= k {
		i++
		below += members.Cells(list[i])[1]
	}
	lo, hi := list[i], list[i]
	if rest > 0 && below == k+1 {
		hi = list[i+1]
	}
	return a.append(b, a.text(members, lo), a.text(members, hi), rest)
}

// append appends the value between two items.
func (a quantile) append(b array.Builder, lo, hi []byte, rest uint64) scalar.Code {
	if a.t.Kind.Float() {
		x, y := wordFloat(readWordBytes(lo)), wordFloat(readWordBytes(hi))
		if x != y && rest > 0 {
			f := float64(rest) / float64(a.q.unit)
			x = math.Min(math.Max(float64(x*(1-f))+float64(y*f), x), y)
		}
		b.(*array.Float64Builder).Append(x)
		return scalar.CodeNone
	}
	num, den := a.q.between(a.number(lo), a.number(hi), rest)
	switch a.out.Kind {
	case scalar.KindFloat64:
		f, _ := new(big.Rat).SetFrac(num, den).Float64()
		b.(*array.Float64Builder).Append(f)
	case scalar.KindDecimal:
		num.Mul(num, scalar.Pow10(a.out.Scale-a.t.Scale).Big())
		d, ok := scalar.Int128FromBig(halfEven(num, den))
		if !ok || !d.FitsDigits(a.out.Precision) {
			return scalar.CodeDecimalOverflow
		}
		b.(*array.Decimal128Builder).Append(operators.Decimal128(d))
	default:
		appendWord(b, a.out, halfEven(num, den).Int64())
	}
	return scalar.CodeNone
}

// number is the value of an item of an exact type.
func (a quantile) number(item []byte) *big.Int {
	if a.shape == shapeDec {
		return readDec(item).Big()
	}
	w := readWordBytes(item)
	if a.t.Kind == scalar.KindUint64 {
		return new(big.Int).SetUint64(uint64(w) ^ 1<<63)
	}
	return big.NewInt(w)
}

// halfEven is num / den rounded half to even; den is above 0.
func halfEven(num, den *big.Int) *big.Int {
	q, r := new(big.Int).DivMod(num, den, new(big.Int)) // r is 0 or above
	if c := r.Lsh(r, 1).Cmp(den); c > 0 || c == 0 && q.Bit(0) == 1 {
		q.Add(q, big.NewInt(1))
	}
	return q
}
