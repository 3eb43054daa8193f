package scalar

import (
	"math"
	"strings"
)

// operatorFuncs are the operators by the names that expression trees use.
var operatorFuncs = map[string]resolver{
	"add": resolveAdd, "sub": resolveSub, "mul": resolveMul, "div_op": resolveDivOp,
	"mod_op": resolveIntDiv(true, true),
	"pow_op": sig("ff", TypeFloat64, evalPow),
	"neg":    resolveNeg, "pos": resolvePos, "not": resolveNot,
	"eq": resolveCompare, "ne": resolveCompare, "lt": resolveCompare, "le": resolveCompare, "gt": resolveCompare, "ge": resolveCompare,
	"in": resolveIn(false), "not_in": resolveIn(true),
	"contains":   sig("ss", TypeBool, predicate(strings.Contains)),
	"startsWith": sig("ss", TypeBool, predicate(strings.HasPrefix)),
	"endsWith":   sig("ss", TypeBool, predicate(strings.HasSuffix)),
	"matches":    resolveMatches,
	"index":      resolveIndex, "slice": resolveSlice, "member": resolveMember, "unwrap": resolveUnwrap,
	"list_of": resolveListOf,
	"range":   sig("ii", ListType(TypeInt64), evalRange),
}

func evalPow(v []Value) (Value, Code) { return Float(math.Pow(v[0].F, v[1].F)), CodeNone }

// userCasts are the conversions that a user writes; each has a try_ form.
var userCasts = map[string]Kind{
	"int": KindInt64, "float": KindFloat64, "string": KindString, "bool": KindBool, "bytes": KindBytes, "dec": KindDecimal,
	"int8": KindInt8, "int16": KindInt16, "int32": KindInt32, "int64": KindInt64,
	"uint8": KindUint8, "uint16": KindUint16, "uint32": KindUint32, "uint64": KindUint64, "u64": KindUint64,
	"float32": KindFloat32, "float64": KindFloat64,
}

var builtinFuncs = map[string]resolver{
	"abs": resolveAbs, "ceil": resolveRound(roundCeil, math.Ceil), "floor": resolveRound(roundFloor, math.Floor),
	"round": resolveRound(roundHalfAway, math.Round), "min": resolveExtreme(-1), "max": resolveExtreme(1),
	"bitand": bitOp(func(a, b int64) int64 { return a & b }), "bitor": bitOp(func(a, b int64) int64 { return a | b }),
	"bitxor": bitOp(func(a, b int64) int64 { return a ^ b }), "bitnot": resolveBitNot,
	"bitshl": shift(true), "bitshr": shift(false),
	"div": resolveIntDiv(false, false), "mod": resolveIntDiv(true, false),
	"sign": resolveSign, "sqrt": floatFunc(math.Sqrt), "pow": sig("ff", TypeFloat64, evalPow),
	"ln": floatFunc(math.Log), "log10": floatFunc(math.Log10), "exp": floatFunc(math.Exp),
	"is_nan":   sig("f", TypeBool, func(v []Value) (Value, Code) { return Bool(v[0].F != v[0].F), CodeNone }),
	"wrap_add": wrapping(func(a, b int64) int64 { return a + b }), "wrap_mul": wrapping(func(a, b int64) int64 { return a * b }),
	"geo_distance": sig("ffff", TypeFloat64, geoDistance),

	"len": resolveLen, "lower": sig("s", TypeString, mapText(Lower)), "upper": sig("s", TypeString, mapText(Upper)),
	"trim":       sig("s?s", TypeString, evalTrim(strings.Trim, strings.TrimSpace)),
	"trimPrefix": sig("ss", TypeString, func(v []Value) (Value, Code) { return ok(String(strings.TrimPrefix(v[0].S, v[1].S))) }),
	"trimSuffix": sig("ss", TypeString, func(v []Value) (Value, Code) { return ok(String(strings.TrimSuffix(v[0].S, v[1].S))) }),
	"split":      sig("ss?i", ListType(TypeString), evalSplit), "replace": sig("sss?i", TypeString, evalReplace),
	"join": resolveJoin,
	"indexOf": sig("ss", TypeInt64, func(v []Value) (Value, Code) {
		return ok(Int(charIndex(v[0].S, strings.Index(v[0].S, v[1].S))))
	}),
	"lastIndexOf": sig("ss", TypeInt64, func(v []Value) (Value, Code) {
		return ok(Int(charIndex(v[0].S, strings.LastIndex(v[0].S, v[1].S))))
	}),
	"hasPrefix": sig("ss", TypeBool, predicate(strings.HasPrefix)), "hasSuffix": sig("ss", TypeBool, predicate(strings.HasSuffix)),
	"repeat":   sig("si", TypeString, evalRepeat),
	"byte_len": sig("S", TypeInt64, func(v []Value) (Value, Code) { return ok(Int(int64(len(v[0].S)))) }),
	"substr":   sig("si?i", TypeString, evalSubstr), "part": sig("ssi", TypeString.Null(), evalPart),
	"lpad": sig("si?s", TypeString, evalPad(true)), "rpad": sig("si?s", TypeString, evalPad(false)),
	"reverse_str": sig("s", TypeString, mapText(reverseString)),
	"extract":     resolveExtract, "capture": resolveCapture, "url_param": sig("ss", TypeString.Null(), evalURLParam),

	"hour": timeField(FieldHour), "minute": timeField(FieldMinute), "second": timeField(FieldSecond), "day": timeField(FieldDay),
	"month": timeField(FieldMonth), "year": timeField(FieldYear), "weekday": timeField(FieldWeekday), "day_of_year": timeField(FieldDayOfYear),
	"date_of": resolveDateOf, "trunc": resolveTrunc, "trunc_to": resolveTruncTo, "parse_time": resolveParseTime, "fmt": resolveFmt,
	"epoch": resolveEpoch, "from_epoch": resolveFromEpoch,

	"is_null": resolveIsNull, "null_if": resolveNullIf, "coalesce": resolveCoalesce,

	"first": listFunc("", elemOrNull, func(v []Value) (Value, Code) { return ok(element(v[0].L, 0)) }),
	"last":  listFunc("", elemOrNull, func(v []Value) (Value, Code) { return ok(element(v[0].L, -1)) }),
	"take":  listFunc("i", sameList, evalTake), "reverse": listFunc("", sameList, evalReverse), "uniq": listFunc("", sameList, evalUniq),
	"sort": resolveSort, "sortBy": resolveSortBy, "concat": resolveConcat, "flatten": resolveFlatten,
	"filter": withPredicate(sameList, evalFilter), "map": resolveMap,
	"any":  withPredicate(boolResult, evalCountBy(func(n, _ int) bool { return n > 0 }, 1)),
	"all":  withPredicate(boolResult, evalAll),
	"none": withPredicate(boolResult, evalCountBy(func(n, _ int) bool { return n == 0 }, 1)),
	"one":  withPredicate(boolResult, evalCountBy(func(n, _ int) bool { return n == 1 }, 2)),
	"find": withPredicate(elemOrNull, evalFind), "findIndex": withPredicate(intNull, evalFindIndex),
	"count": resolveCount, "sum": fold(pickSum), "mean": fold(pickMean), "median": fold(pickMedian), "reduce": resolveReduce,
	"keys": mapFunc(func(t Type) Type { return ListType(*t.Key) }, func(v []Value) (Value, Code) {
		return ok(Value{Kind: KindList, L: v[0].Keys})
	}),
	"values": mapFunc(func(t Type) Type { return ListType(*t.Elem) }, func(v []Value) (Value, Code) {
		return ok(Value{Kind: KindList, L: v[0].L})
	}),
	"contains_key": resolveContainsKey,

	"json": resolveJSON, "to_json": resolveToJSON,
	"toBase64": sig("S", TypeString, func(v []Value) (Value, Code) {
		b, _ := AppendText(nil, v[0], TypeBytes)
		return text(string(b))
	}),
	"fromBase64": sig("s", TypeBytes, evalFromBase64),
	"hex": sig("S", TypeString, func(v []Value) (Value, Code) {
		if len(v[0].S) > MaxTextBytes/2 {
			return Null, CodeLimit
		}
		return ok(String(hexString(v[0].S)))
	}),
	"unhex": sig("s", TypeBytes, evalUnhex), "hash64": resolveHash64, "md5": sig("S", TypeString, evalMD5),
	"sha256": sig("S", TypeString, evalSHA256), "ip_in": resolveIPIn,
	"uuid_ok": sig("s", TypeBool, func(v []Value) (Value, Code) { return ok(Bool(uuidOK(v[0].S))) }),
}

func hexString(s string) string {
	b := make([]byte, 0, 2*len(s))
	for i := range len(s) {
		b = append(b, hexDigits[s[i]>>4], hexDigits[s[i]&15])
	}
	return string(b)
}

func resolveJoin(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 1, 2); err != nil {
		return nil, err
	}
	t, err := listArg(name, args, 0)
	if err != nil {
		return nil, err
	}
	if t.Elem.Kind != KindString {
		return nil, wrongType(name, 0, args[0], "a list of strings")
	}
	f := &Func{Args: []Type{t}, Result: TypeString, Eval: evalJoin}
	if len(args) == 2 {
		st, err := typed(name, args, 1, KindString, "a string")
		if err != nil {
			return nil, err
		}
		f.Args = append(f.Args, st)
	}
	return f, nil
}

// functions holds everything that Resolve finds; hidden are the names that users do not write.
var functions, hidden = func() (map[string]resolver, map[string]bool) {
	all, hide := map[string]resolver{}, map[string]bool{}
	for n, r := range operatorFuncs {
		all[n], hide[n] = r, true
	}
	for n, r := range builtinFuncs {
		all[n] = r
	}
	for n, k := range userCasts {
		all[n] = resolveCastTo(k, true)
		all["try_"+n] = try(all[n])
	}
	for k := KindBool; k <= KindDate; k++ {
		n := "cast_" + k.String()
		all[n], hide[n] = resolveCastTo(k, false), true
	}
	return all, hide
}()
