package check

import (
	"math"
	"strconv"

	"github.com/headrace/headrace/internal/scalar"
)

// parseInt128 reads up to 38 digits.
func parseInt128(digits string, neg bool) (scalar.Int128, bool) {
	if digits == "" {
		return scalar.Int128{}, true
	}
	if neg {
		digits = "-" + digits
	}
	d, _, _, ok := scalar.ParseDecimal(digits)
	return d, ok
}

// integerText reads a whole number of kind k.
func integerText(k scalar.Kind, text string) (scalar.Value, bool) {
	bits := map[scalar.Kind]int{
		scalar.KindInt8: 8, scalar.KindUint8: 8, scalar.KindInt16: 16, scalar.KindUint16: 16,
		scalar.KindInt32: 32, scalar.KindUint32: 32, scalar.KindInt64: 64, scalar.KindUint64: 64,
	}[k]
	if k.Unsigned() {
		u, err := strconv.ParseUint(text, 10, bits)
		return scalar.IntOf(k, int64(u)), err == nil
	}
	i, err := strconv.ParseInt(text, 10, bits)
	return scalar.IntOf(k, i), err == nil
}

func floatText(text string) (scalar.Value, bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return scalar.Null, false
	}
	return scalar.Float(f), true
}
