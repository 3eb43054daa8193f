package window

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// wideDecimal is digits for colWide, now and then as many as there are.
func wideDecimal(r *rand.Rand, extreme bool) scalar.Int128 {
	d := scalar.Int128Of(int64(r.IntN(2001) - 1000))
	if extreme && r.IntN(4) == 0 {
		d, _ = scalar.Pow10(38).Sub(scalar.Int128Of(1 + int64(r.IntN(3))))
		if r.IntN(2) == 0 {
			d = d.Neg()
		}
	}
	return d
}

// moreSlots are the aggregates beyond the first ones.
func moreSlots(slot func(f string, c int, out scalar.Type) Slot, where func(Slot) Slot) []Slot {
	f64 := scalar.TypeFloat64.Null()
	by := func(f string, c, y int) Slot {
		s := slot(f, c, rowTypes[c].Null())
		s.Arg, s.Column, s.ByColumn, s.ByType = operators.Columns{c, y}, 0, 1, rowTypes[y]
		return s
	}
	at := func(f string, c int, out scalar.Type, t scalar.Type, v scalar.Value) Slot {
		s := slot(f, c, out)
		s.Param, s.ParamType = v, t
		return s
	}
	q := func(f string, c int, out scalar.Type, x float64) Slot {
		return at(f, c, out, scalar.TypeFloat64, scalar.Float(x))
	}
	slots := []Slot{
		slot("any_value", colText, rowTypes[colText]), where(slot("any_value", colDec, rowTypes[colDec])),
		slot("bool_and", colMaybe, scalar.TypeBool.Null()), where(slot("bool_or", colMaybe, scalar.TypeBool.Null())),
		by("arg_min", colText, colInt), by("arg_max", colInt, colText), where(by("arg_max", colList, colFloat)), by("arg_min", colFloat, colWide),
		by("arg_max", colWide, colUint),
		slot("approx_distinct", colText, scalar.TypeInt64), slot("approx_distinct", colFloat, scalar.TypeInt64), where(slot("approx_distinct", colWide, scalar.TypeInt64)),
		slot("approx_distinct", colMaybe, scalar.TypeInt64),
		q("approx_quantile", colFloat, f64, 0.5), where(q("approx_quantile", colFloat, f64, 0.99)), q("approx_quantile", colFloat, f64, 0),
	}
	n := func(f string, c int, k int64) Slot {
		out := scalar.ListType(rowTypes[c].NonNull())
		return at(f, c, out.Null(), scalar.TypeInt64, scalar.Int(k))
	}
	join := func(sep string) Slot {
		return at("join", colText, scalar.TypeString.Null(), scalar.TypeString, scalar.String(sep))
	}
	slots = append(slots,
		n("list", colInt, 3), where(n("list", colText, 1000)), n("list", colList, 2), n("list", colWide, 1), n("list", colMaybe, 40),
		n("set", colInt, 2), where(n("set", colText, 1000)), n("set", colText, 3), n("set", colFloat, 5), n("set", colWide, 4), n("set", colMaybe, 1),
		n("top_k", colInt, 3), where(n("top_k", colText, 2)), n("top_k", colFloat, 1000), n("top_k", colWide, 4), n("top_k", colUint, 1),
		join(", "), where(join("")),
		slot("median", colInt, f64), where(slot("median", colDec, scalar.DecimalType(23, 6).Null())), slot("median", colFloat, f64), slot("median", colUint, f64),
		slot("median", colWide, scalar.DecimalType(38, 6).Null()),
		q("quantile", colFloat, f64, 0.9), q("quantile", colInt, f64, 0.1), where(q("quantile", colDec, scalar.DecimalType(23, 6).Null(), 0.333)), q("quantile", colUint, f64, 1),
		q("quantile", colWide, scalar.DecimalType(38, 6).Null(), 0.25), at("quantile", colFloat, f64, scalar.DecimalType(3, 2), scalar.Decimal(scalar.Int128Of(75))),
	)
	for _, c := range []int{colInt, colUint, colFloat, colDec, colWide} {
		slots = append(slots, slot("var_pop", c, f64), where(slot("var_samp", c, f64)), where(slot("stddev_pop", c, f64)), slot("stddev_samp", c, f64))
	}
	return slots
}

// before is the order of rows in a group.
func before(a, b row) bool {
	if a.ts != b.ts {
		return a.ts < b.ts
	}
	if a.partition != b.partition {
		return a.partition < b.partition
	}
	return a.offset < b.offset
}

// naiveMore folds rows without nulls, of which there is one at least.
func naiveMore(s Slot, col int, kept []row) (scalar.Value, bool) {
	values := make([]scalar.Value, len(kept))
	for i, r := range kept {
		values[i] = r.values[col]
	}
	sorted := slices.Clone(kept)
	slices.SortFunc(sorted, func(a, b row) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	ascending := slices.Clone(values)
	slices.SortFunc(ascending, scalar.Compare)
	switch s.Func {
	case "any_value":
		return sorted[0].values[col], true
	case "bool_and":
		return scalar.Bool(!slices.ContainsFunc(values, func(v scalar.Value) bool { return !v.Bool() })), true
	case "bool_or":
		return scalar.Bool(slices.ContainsFunc(values, scalar.Value.Bool)), true
	case "arg_min", "arg_max":
		y := s.Arg.(operators.Columns)[1]
		best := scalar.Null
		key := scalar.Null
		for _, r := range sorted {
			k := r.values[y]
			if k.IsNull() {
				continue
			}
			if c := scalar.Compare(k, key); key.IsNull() || c < 0 && s.Func == "arg_min" || c > 0 && s.Func == "arg_max" {
				best, key = r.values[col], k
			}
		}
		return best, true
	case "approx_quantile":
		v := ascending[int(math.Floor(s.Param.F*float64(len(ascending)-1)))].F
		least, most := ascending[0].F, ascending[len(ascending)-1].F
		if v == v && v != 0 {
			neg := v < 0
			bits := math.Float64bits(math.Abs(v))&^(1<<45-1) | 1<<44
			if neg {
				bits--
			}
			v = math.Copysign(math.Float64frombits(bits), v)
		} else if v == 0 {
			v = 0
		}
		if scalar.CompareFloat(v, least) < 0 {
			v = least
		}
		if scalar.CompareFloat(v, most) > 0 {
			v = most
		}
		return scalar.Float(v), true
	case "list":
		list := scalar.List()
		for _, r := range sorted[:min(len(sorted), int(s.Param.I))] {
			list.L = append(list.L, r.values[col])
		}
		return list, true
	case "set":
		set := slices.Clone(values)
		for i, v := range set {
			if v.F == 0 {
				set[i].F = 0
			}
		}
		slices.SortFunc(set, scalar.Compare)
		set = slices.CompactFunc(set, func(a, b scalar.Value) bool { return scalar.Compare(a, b) == 0 })
		return scalar.List(set[:min(len(set), int(s.Param.I))]...), true
	case "top_k":
		slices.Reverse(ascending)
		return scalar.List(ascending[:min(len(ascending), int(s.Param.I))]...), true
	case "join":
		var texts []string
		for _, r := range sorted {
			texts = append(texts, r.values[col].S)
		}
		return scalar.String(strings.Join(texts, s.Param.S)), true
	case "median", "quantile":
		return naiveQuantile(s, ascending), true
	case "var_pop", "var_samp", "stddev_pop", "stddev_samp":
		return naiveSpread(s, kept, values), true
	}
	return scalar.Null, false
}

// ratOf is an exact number.
func ratOf(v scalar.Value, t scalar.Type) *big.Rat {
	switch t.Kind {
	case scalar.KindDecimal:
		return new(big.Rat).SetFrac(v.D.Big(), scalar.Pow10(t.Scale).Big())
	case scalar.KindUint64:
		return new(big.Rat).SetInt(new(big.Int).SetUint64(v.Uint()))
	}
	return new(big.Rat).SetInt64(v.I)
}

func naiveQuantile(s Slot, ascending []scalar.Value) scalar.Value {
	q := big.NewRat(1, 2)
	if s.Func == "quantile" {
		text, _ := scalar.AppendText(nil, s.Param, s.ParamType)
		q.SetString(string(text))
	}
	at := new(big.Rat).Mul(q, big.NewRat(int64(len(ascending)-1), 1))
	i := int(new(big.Int).Quo(at.Num(), at.Denom()).Int64())
	lo, hi := ascending[i], ascending[min(i+1, len(ascending)-1)]
	share := at.Sub(at, big.NewRat(int64(i), 1))
	if s.ArgType.Kind.Float() {
		f, _ := share.Float64()
		x, y := lo.F, hi.F
		if f == 0 || x == y {
			return scalar.Float(x)
		}
		return scalar.Float(math.Min(math.Max(float64(x*(1-f))+float64(y*f), x), y))
	}
	x, y := ratOf(lo, s.ArgType), ratOf(hi, s.ArgType)
	v := y.Sub(y, x)
	v.Add(v.Mul(v, share), x)
	if s.Type.Kind == scalar.KindFloat64 {
		f, _ := v.Float64()
		return scalar.Float(f)
	}
	v.Mul(v, new(big.Rat).SetInt(scalar.Pow10(s.Type.Scale).Big()))
	floor := new(big.Int).Div(v.Num(), v.Denom())
	rest := new(big.Rat).Sub(v, new(big.Rat).SetInt(floor))
	if c := rest.Cmp(big.NewRat(1, 2)); c > 0 || c == 0 && floor.Bit(0) == 1 {
		floor.Add(floor, big.NewInt(1))
	}
	d, _ := scalar.Int128FromBig(floor)
	return scalar.Decimal(d)
}

func naiveSpread(s Slot, kept []row, values []scalar.Value) scalar.Value {
	n := len(values)
	d := n
	if s.Func == "var_samp" || s.Func == "stddev_samp" {
		d--
	}
	if d == 0 {
		return scalar.Null
	}
	var v float64
	if s.ArgType.Kind.Float() { // by partition, then the partitions
		type part struct{ n, mean, m2 float64 }
		var parts []part
		for i, r := range kept {
			if i == 0 || kept[i-1].partition != r.partition {
				parts = append(parts, part{})
			}
			p := &parts[len(parts)-1]
			p.n++
			d := values[i].F - p.mean
			p.mean += d / p.n
			p.m2 += float64(d * (values[i].F - p.mean))
		}
		t := parts[0]
		for _, p := range parts[1:] {
			d, n := p.mean-t.mean, t.n+p.n
			t.m2 += p.m2 + float64(float64(d*d)*float64(t.n*(p.n/n)))
			t.mean += float64(d * (p.n / n))
			t.n = n
		}
		v = t.m2 / float64(d)
	} else {
		rats := make([]*big.Rat, n)
		mean := new(big.Rat)
		for i, x := range values {
			rats[i] = ratOf(x, s.ArgType)
			mean.Add(mean, rats[i])
		}
		mean.Quo(mean, big.NewRat(int64(n), 1))
		sum := new(big.Rat)
		for _, x := range rats {
			x.Sub(x, mean)
			sum.Add(sum, x.Mul(x, x))
		}
		v, _ = sum.Quo(sum, big.NewRat(int64(d), 1)).Float64()
		if strings.HasPrefix(s.Func, "stddev") {
			f := new(big.Float).SetPrec(400).SetRat(sum)
			v, _ = f.Sqrt(f).Float64()
			return scalar.Float(v)
		}
	}
	if s.Func == "stddev_pop" || s.Func == "stddev_samp" {
		v = math.Sqrt(v)
	}
	return scalar.Float(v)
}

// foldAll gives what one slot makes of rows of one group.
func foldAll(t *testing.T, s Slot, types []scalar.Type, rows []row) scalar.Value {
	a, err := NewAggregate(Options{Slots: []Slot{s}, Results: operators.Columns{2}, Size: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for len(rows) > 0 {
		n := min(len(rows), 4096)
		a.Process(makeBatch(memory.DefaultAllocator, types, rows[:n]), &drain{})
		rows = rows[n:]
	}
	out := &keep{t: s.Type}
	a.Advance(operators.MaxEventTime, out)
	return out.v
}

type keep struct {
	drain
	t scalar.Type
	v scalar.Value
}

func (k *keep) Emit(b *operators.Batch) {
	k.v = operators.ValueAt(b.Columns[2], k.t, 0)
	b.Release()
}

func TestApproximateCountsAreNearTheTruth(t *testing.T) {
	slot := Slot{Func: "approx_distinct", Arg: operators.Columns{0}, ArgType: scalar.TypeInt64, Type: scalar.TypeInt64}
	text := slot
	text.ArgType = scalar.TypeString
	for _, n := range []int{0, 1, 256, 257, 1000, 5000, 30_000} {
		for kind, value := range map[string]func(i int) scalar.Value{
			"numbers": func(i int) scalar.Value { return scalar.Int(int64(i)) },
			"steps":   func(i int) scalar.Value { return scalar.Int(int64(i) << 20) },
			"texts":   func(i int) scalar.Value { return scalar.String(fmt.Sprintf("user-%d", i)) },
		} {
			s := slot
			if kind == "texts" {
				s = text
			}
			rows := make([]row, 0, n+n/4)
			for i := range n + n/4 {
				rows = append(rows, row{values: []scalar.Value{value(i % max(n, 1))}})
			}
			if n == 0 {
				rows = []row{{values: []scalar.Value{scalar.Null}}}
			}
			got := foldAll(t, s, []scalar.Type{s.ArgType}, rows).I
			allowed := 0.0
			if n > maxHashes {
				allowed = 4 * 0.01625 * float64(n) // four standard errors; the values are fixed
			}
			if math.Abs(float64(got-int64(n))) > allowed {
				t.Errorf("%d different %s are estimated as %d", n, kind, got)
			}
		}
	}
}

func TestApproximateQuantilesAreWithinTheirBound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, d := range map[string]struct {
		draw  func() float64
		bound float64
	}{
		"latencies":       {func() float64 { return math.Exp(r.NormFloat64()) * 20 }, 1.0 / 256},
		"both signs":      {func() float64 { return r.NormFloat64() * 1e6 }, 1.0 / 128},
		"few values":      {func() float64 { return float64(r.IntN(3)) }, 1.0 / 256},
		"forty octaves":   {func() float64 { return math.Ldexp(1+r.Float64(), r.IntN(40)) }, 1.0 / 64},
		"every magnitude": {func() float64 { return math.Ldexp(r.NormFloat64(), r.IntN(2000)-1000) }, 1},
	} {
		rows := make([]row, 20_000)
		values := make([]float64, len(rows))
		for i := range rows {
			values[i] = d.draw()
			rows[i] = row{values: []scalar.Value{scalar.Float(values[i])}}
		}
		slices.Sort(values)
		for _, q := range []float64{0, 0.01, 0.25, 0.5, 0.9, 0.999, 1} {
			s := Slot{Func: "approx_quantile", Arg: operators.Columns{0}, ArgType: scalar.TypeFloat64, Type: scalar.TypeFloat64.Null(), Param: scalar.Float(q), ParamType: scalar.TypeFloat64}
			got := foldAll(t, s, []scalar.Type{scalar.TypeFloat64}, rows).F
			want := values[int(q*float64(len(values)-1))]
			if math.Abs(got-want) > d.bound*math.Abs(want) {
				t.Errorf("%s: quantile %v is %v, estimated as %v", name, q, want, got)
			}
		}
	}
}

// The variance of floats that are large beside their differences keeps its digits.
func TestVarianceIsStable(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	rows := make([]row, 20_000)
	mean, exact := new(big.Rat), make([]*big.Rat, len(rows))
	for i := range rows {
		f := 1e9 + r.Float64()
		rows[i] = row{values: []scalar.Value{scalar.Float(f)}, partition: int32(i / 8_000)}
		exact[i] = new(big.Rat).SetFloat64(f)
		mean.Add(mean, exact[i])
	}
	mean.Quo(mean, big.NewRat(int64(len(rows)), 1))
	sum := new(big.Rat)
	for _, x := range exact {
		x.Sub(x, mean)
		sum.Add(sum, x.Mul(x, x))
	}
	want, _ := sum.Quo(sum, big.NewRat(int64(len(rows)), 1)).Float64()
	var parts [][]row
	for i, r := range rows {
		if i == 0 || rows[i-1].partition != r.partition {
			parts = append(parts, nil)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], r)
	}
	s := Slot{Func: "var_pop", Arg: operators.Columns{0}, ArgType: scalar.TypeFloat64, Type: scalar.TypeFloat64.Null()}
	a, err := NewAggregate(Options{Slots: []Slot{s}, Results: operators.Columns{2}, Size: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, p := range parts {
		a.Process(makeBatch(memory.DefaultAllocator, []scalar.Type{scalar.TypeFloat64}, p), &drain{})
	}
	out := &keep{t: s.Type}
	a.Advance(operators.MaxEventTime, out)
	if got := out.v.F; math.Abs(got-want) > 1e-6*want { // the sum of squares would have no digit left
		t.Errorf("variance %v, want %v", got, want)
	}
}
