package window

import (
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
	"strings"

	"github.com/headrace/headrace/internal/scalar"
)

// A rank is q of a quantile as written: num / 10^places, exactly, between 0 and 1.
type rank struct {
	num  uint64 // at most 10^places
	unit uint64 // 10^places
}

// maxPlaces is how many digits of q after the point count.
const maxPlaces = 17

// parseRank reads the q of a quantile from a float or decimal constant. A float stands for the shortest
// decimal that reads back as it.
func parseRank(t scalar.Type, v scalar.Value) (rank, error) {
	var text string
	switch {
	case v.IsNull():
		return rank{}, fmt.Errorf("%w: a quantile at null", ErrOptions)
	case t.Kind.Float():
		text = strconv.FormatFloat(v.F, 'f', -1, 64)
	default:
		b, code := scalar.AppendText(nil, v, t)
		if code != scalar.CodeNone {
			return rank{}, fmt.Errorf("%w: a quantile at %s", ErrOptions, code)
		}
		text = string(b)
	}
	whole, frac, _ := strings.Cut(text, ".")
	frac = strings.TrimRight(frac[:min(len(frac), maxPlaces)], "0")
	n, err := strconv.ParseUint(whole+frac, 10, 64)
	r := rank{num: n, unit: 1}
	for range frac {
		r.unit *= 10
	}
	if err != nil || n > r.unit {
		return rank{}, fmt.Errorf("%w: a quantile at %s", ErrOptions, text)
	}
	return r, nil
}

// place is where the quantile of n values lies: q * (n - 1) = k + rest / unit.
func (r rank) place(n uint64) (k, rest uint64) {
	hi, lo := bits.Mul64(r.num, n-1)
	return bits.Div64(hi, lo, r.unit) // num <= unit, so the quotient fits
}

// between is lo + (hi - lo) * rest / unit, as an exact fraction.
func (r rank) between(lo, hi *big.Int, rest uint64) (num, den *big.Int) {
	den = new(big.Int).SetUint64(r.unit)
	num = new(big.Int).Sub(hi, lo)
	num.Mul(num, new(big.Int).SetUint64(rest))
	return num.Add(num, new(big.Int).Mul(lo, den)), den
}
